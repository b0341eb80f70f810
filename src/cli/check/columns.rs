//! Compares the columns of the outbox table with those that the layout needs: they exist, their types fit, they are not
//! NULL, and they are in the stream.

use crate::config::PipelineConfig;
use crate::finding::Finding;
use crate::outbox::{Layout, OutboxSpec, Role, Unfit};
use crate::pipeline::{Mode, PipelineSpec};
use crate::postgres::catalog::{ColumnFacts, TableFacts};
use crate::postgres::names::{TableName, ident};

/// The table as it is, and the pipeline that reads it.
struct ColumnCheck<'a> {
    pipeline: &'a PipelineConfig,
    spec: &'a PipelineSpec,
    name: &'a TableName,
    table: &'a TableFacts,
    published: Option<&'a [String]>,
    version: u32,
}

pub(super) fn findings(
    pipeline: &PipelineConfig,
    spec: &PipelineSpec,
    table: &TableFacts,
    published: Option<&[String]>,
    version: Option<u32>,
) -> Vec<Finding> {
    let Some(name) = &spec.names.table else { return Vec::new() };
    let check =
        ColumnCheck { pipeline, spec, name, table, published, version: version.unwrap_or(0) };
    let mut found = Vec::new();
    check.missing(&mut found);
    let unfit = spec.unfit_types(table);
    let unfit: Vec<Role> = unfit.iter().filter_map(Unfit::role).collect();
    for (role, column) in spec.common.outbox.roles() {
        if let Some(facts) = check.facts(column) {
            check.of_role(role, facts, &unfit, &mut found);
        }
    }
    check.generated(&mut found);
    check.moves(&mut found);
    if found.is_empty() {
        found.push(Finding::ok(
            "columns",
            format!("all {} columns exist and fit", spec.common.outbox.required_columns().len()),
        ));
    }
    found
}

impl ColumnCheck<'_> {
    fn facts(&self, column: &str) -> Option<&ColumnFacts> {
        self.table.columns.iter().find(|have| have.name == column)
    }

    fn config(&self, key: &str, value: &str) -> String {
        format!(
            "pipelines.{}.{key} = {}",
            self.pipeline.name,
            toml::Value::String(value.to_owned())
        )
    }

    /// Columns of the partition key that an application is likely to change.
    fn moves(&self, found: &mut Vec<Finding>) {
        const FIXED: [Role; 7] = [
            Role::Id,
            Role::AggregateType,
            Role::AggregateId,
            Role::EventType,
            Role::Time,
            Role::Topic,
            Role::PartitionKey,
        ];
        if self.spec.common.mode == Mode::Poll {
            return;
        }
        let fixed = |column: &String| {
            FIXED.iter().any(|role| self.spec.common.outbox.column(*role) == Some(column))
        };
        let key = self.table.partitions.key.iter().filter(|column| !fixed(column));
        let list: Vec<String> = key.map(|column| ident(column)).collect();
        if !list.is_empty() {
            let what = format!("table {} is partitioned by column {}", self.name, list.join(", "));
            found.push(Finding::warning("table_moves", what).why(
                "an UPDATE that moves a row to another partition is a DELETE and an INSERT in WAL: the event is \
                 published again, with the same id and another position. Do not change the column after the INSERT",
            ));
        }
    }

    fn missing(&self, found: &mut Vec<Finding>) {
        let outbox = &self.spec.common.outbox;
        let missing: Vec<&str> = outbox
            .required_columns()
            .into_iter()
            .filter(|column| self.facts(column).is_none())
            .collect();
        let role_of =
            |column: &str| outbox.roles().find(|(_, known)| *known == column).map(|(role, _)| role);
        // Another layout may publish to other topics. It is proposed only if a missing column cannot be left out.
        let left_out = missing.iter().all(|column| role_of(column).is_some_and(may_be_left_out));
        let layout = if left_out { None } else { self.other_layout() };
        for column in missing {
            let finding = Finding::error(
                "column_missing",
                format!("table {} has no column {}", self.name, ident(column)),
            )
            .why(format!(
                "layout \"{}\" requires this column: without it no row can be published (PR009)",
                outbox.layout.name()
            ));
            found.push(match (layout, role_of(column)) {
                (Some(layout), _) => finding.config(self.config("outbox.layout", layout.name())),
                (None, Some(role)) => self.mapped(finding, role, column),
                (None, None) => finding.config(format!(
                    "pipelines.{}.outbox.extra.{} = {{ ignore = true }}",
                    self.pipeline.name,
                    toml::Value::String(column.to_owned())
                )),
            });
        }
    }

    /// A layout whose columns all exist; `None` if columns are mapped in the configuration.
    fn other_layout(&self) -> Option<Layout> {
        if !self.pipeline.outbox.columns.is_empty() || !self.pipeline.outbox.extra.is_empty() {
            return None;
        }
        let fits = |layout: &Layout| {
            let spec = OutboxSpec::for_layout(*layout);
            spec.required_columns().into_iter().all(|column| self.facts(column).is_some())
        };
        Layout::ALL.iter().copied().find(fits)
    }

    /// Proposes another column for the role; else no column, if an event can be made without it; else explains what the
    /// application must add.
    fn mapped(&self, finding: Finding, role: Role, column: &str) -> Finding {
        let key = format!("outbox.columns.{role}");
        let taken: Vec<&str> = self.spec.common.outbox.roles().map(|(_, column)| column).collect();
        let free = || {
            let columns = self.table.columns.iter().map(|have| have.name.as_str());
            columns.filter(|have| !taken.contains(have))
        };
        let usual = || {
            let plain = |name: &str| name.to_ascii_lowercase().replace('_', "");
            free().find(|have| {
                Layout::ALL.iter().any(|layout| layout.column(role) == Some(*have))
                    || usual_names(role).contains(&plain(have).as_str())
            })
        };
        let alike = || {
            let distance = |have: &&str| strsim::damerau_levenshtein(have, column);
            let near = free().min_by_key(distance)?;
            let inside = free().find(|have| have.contains(role.name()) || column.contains(*have));
            (distance(&near) * 3 <= column.len()).then_some(near).or(inside)
        };
        let by_type = || {
            let json = |have: &&ColumnFacts| matches!(have.type_name.as_str(), "json" | "jsonb");
            let mut free = self
                .table
                .columns
                .iter()
                .filter(|h| !taken.contains(&h.name.as_str()))
                .filter(json);
            let only = free.next().filter(|_| role == Role::Payload)?;
            free.next().is_none().then_some(only.name.as_str())
        };
        if let Some(other) = usual().or_else(alike).or_else(by_type) {
            return finding.config(self.config(&key, other));
        }
        if may_be_left_out(role) {
            return finding.config(self.config(&key, ""));
        }
        // Only the application knows the value of such a column, so no default is proposed.
        let columns: Vec<String> = free().map(ident).collect();
        let or = if columns.is_empty() {
            "every column of the table has another role".to_owned()
        } else {
            format!("it may be one of {}", columns.join(", "))
        };
        let layout = self.spec.common.outbox.layout.name();
        finding.why(format!(
            "layout \"{layout}\" requires this column: without it no row can be published (PR009). If another column \
             holds the value, name that column in pipelines.{}.{key}: {or}. Otherwise the application must add the \
             column and write it",
            self.pipeline.name
        ))
    }

    fn of_role(&self, role: Role, column: &ColumnFacts, unfit: &[Role], found: &mut Vec<Finding>) {
        let (table, name, kind) = (self.name, ident(&column.name), &column.type_name);
        let key = format!("outbox.columns.{role}");
        if unfit.contains(&role) {
            let wanted = if role == Role::Headers { "a JSON object" } else { "a time" };
            found.push(
                Finding::error(
                    "column_type",
                    format!(
                        "column {name} of table {table} is {kind}, but \"{role}\" must be {wanted}"
                    ),
                )
                .why("no row can be published (PR009)")
                .config(self.config(&key, "")),
            );
        }
        let debezium = self.spec.common.outbox.layout == Layout::Debezium;
        let needed = match role {
            Role::Id | Role::AggregateType => true,
            Role::AggregateId | Role::EventType => !debezium,
            Role::Topic => self.spec.common.outbox.topic == "{topic}",
            Role::Payload
            | Role::Headers
            | Role::PartitionKey
            | Role::Time
            | Role::Trace
            | Role::AvailableAt
            | Role::ExpiresAt => false,
        };
        if needed && !column.not_null {
            found.push(
                Finding::warning(
                    "column_null",
                    format!("column {name} of table {table} may be NULL"),
                )
                .why(
                    "an event with NULL in this column is parked, and later events of its aggregate wait; with NOT \
                     NULL the INSERT fails instead",
                )
                .sql(format!("ALTER TABLE {table} ALTER COLUMN {name} SET NOT NULL;")),
            );
        }
    }

    /// Generated columns are not in the stream, unless the publication of PostgreSQL 18 or later includes them.
    fn generated(&self, found: &mut Vec<Finding>) {
        let needed = self.spec.common.outbox.required_columns();
        let unsent = |column: &&ColumnFacts| {
            // Before PostgreSQL 18 pg_publication_tables lists generated columns, but the stream does not contain them.
            let sent = self.version >= 180_000
                && self.published.is_some_and(|published| published.contains(&column.name));
            column.generated && needed.contains(&column.name.as_str()) && !sent
        };
        for column in self.table.columns.iter().filter(unsent) {
            let (table, name) = (self.name, ident(&column.name));
            let finding = Finding::error(
                "column_generated",
                format!("column {name} of table {table} is generated"),
            )
            .why("the stream does not contain generated columns: no row can be published (PR009)");
            found.push(if self.version >= 180_000 && self.published.is_some() {
                finding.sql(format!(
                    "ALTER PUBLICATION {} SET (publish_generated_columns = stored);",
                    ident(&self.spec.names.publication)
                ))
            } else {
                finding.sql(format!("ALTER TABLE {table} ALTER COLUMN {name} DROP EXPRESSION;"))
            });
        }
    }
}

/// Whether an event can be made without a column for it.
const fn may_be_left_out(role: Role) -> bool {
    match role {
        Role::Headers
        | Role::Time
        | Role::Trace
        | Role::PartitionKey
        | Role::AvailableAt
        | Role::ExpiresAt => true,
        Role::Id
        | Role::AggregateType
        | Role::AggregateId
        | Role::EventType
        | Role::Topic
        | Role::Payload => false,
    }
}

/// Usual names of the column of a role, in lower case and without `_`.
const fn usual_names(role: Role) -> &'static [&'static str] {
    match role {
        Role::Id => &["eventid", "messageid", "uuid", "eventuuid", "outboxid"],
        Role::AggregateType => {
            &["aggregate", "aggregatename", "entitytype", "entity", "streamtype", "objecttype"]
        }
        Role::AggregateId => {
            &["aggregatekey", "entityid", "streamid", "objectid", "eventkey", "key"]
        }
        Role::EventType => &["type", "kind", "eventname", "messagetype", "event"],
        Role::Payload => &["body", "data", "content", "message", "eventdata", "eventpayload"],
        Role::Headers => &["metadata", "meta", "attributes"],
        Role::Topic => &["destination", "channel"],
        Role::PartitionKey => &["routingkey"],
        Role::Time => &[
            "occurredat",
            "occurredon",
            "created",
            "createdon",
            "eventtime",
            "timestamp",
            "insertedat",
        ],
        Role::Trace => &["traceparent", "traceid", "tracecontext"],
        Role::AvailableAt => &["notbefore", "deliverat"],
        Role::ExpiresAt => &["expiry", "notafter"],
    }
}
