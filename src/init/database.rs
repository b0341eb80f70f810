//! A proposal from the tables of a database: the outbox table, its layout and its columns.
//!
//! Only the catalog is read: [`fit`] decides from the names and types of the columns.

use super::{Draft, InitError};
use crate::outbox::{Layout, OutboxSpec, Role, TableName};
use crate::postgres::catalog::{BASE_TYPE_SQL, IS_TEXT_SQL};
use crate::postgres::control::Control;
use crate::postgres::{Conninfo, SourceError, conninfo};
use crate::sink::DEFAULT_KIND;
use toml::Value;

/// `application_name` of the session.
const APPLICATION_NAME: &str = "postrider init";

/// Number of tables that are read at most.
const TABLES_MAX: usize = 10_000;

/// Number of tables that a message lists at most.
const NAMES_MAX: usize = 10;

/// Ordinary and partitioned tables that are written to WAL, without partitions, and their columns. The type of a domain
/// is its base type. Text types that are not built in (`citext`) are `text`.
const SELECT_SQL: &str = "\
SELECT n.nspname::pg_catalog.text, c.relname::pg_catalog.text, \
       pg_catalog.array_agg(a.attname::pg_catalog.text ORDER BY a.attnum), ";

const FROM_SQL: &str = "\
FROM pg_catalog.pg_class c \
JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace \
JOIN pg_catalog.pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped ";

const WHERE_SQL: &str = "\
JOIN pg_catalog.pg_type t ON t.oid = base.oid \
WHERE c.relkind IN ('r', 'p') AND c.relpersistence = 'p' AND NOT c.relispartition \
  AND n.nspname NOT IN ('pg_catalog', 'information_schema', 'postrider', 'postrider_log') \
GROUP BY n.nspname, c.relname ORDER BY n.nspname, c.relname LIMIT $1";

/// A table of the database and its columns.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CandidateTable {
    /// Its name.
    pub name: TableName,
    /// Its columns, in order.
    pub columns: Vec<Column>,
}

/// A proposal.
#[derive(Debug)]
pub struct Proposal {
    /// The configuration.
    pub draft: Draft,
    /// What was found, as lines to print.
    pub found: Vec<String>,
    /// Whether `setup` accepts the file as it is: every required column was found, and no column requires a time zone
    /// that is not set.
    pub complete: bool,
}

/// The proposed role of the relay, if the login is that of an administrator.
const RELAY_ROLE: &str = "postrider";

/// Number of required columns that an outbox table may lack at most.
const MISSING_MAX: usize = 2;

/// Reads the tables of a database and proposes a configuration. `table`, as in SQL, and `layout` restrict the choice.
///
/// # Errors
/// The database cannot be read, or no table or several tables may be the outbox table.
pub async fn propose(
    url: &str,
    conninfo: &Conninfo,
    table: Option<&str>,
    layout: Option<Layout>,
) -> Result<Proposal, InitError> {
    let (tables, admin) = read(conninfo).await?;
    let (chosen, fit) = match table {
        Some(name) => named(&tables, name, conninfo.dbname(), layout)?,
        None => only(&tables, conninfo.dbname(), layout)?,
    };
    let mut draft = Draft::new(chosen.name.name.trim_end_matches("_events"));
    if admin {
        draft.set("source", "url", conninfo::of_user(url, RELAY_ROLE)?);
        draft.note(
            "source",
            format!(
                "The role of the relay; setup --url ADMIN grants its rights. As an administrator: CREATE ROLE \
                 {RELAY_ROLE} LOGIN REPLICATION PASSWORD '…';"
            ),
        );
    } else {
        draft.set("source", "url", conninfo::masked(url, None)?);
    }
    draft.set("outbox", "table", sql_name(&chosen.name));
    draft.set("outbox", "layout", fit.layout.name());
    for (role, column) in &fit.columns {
        draft.set("outbox.columns", role.name(), column.replace("${", "$${"));
    }
    super::set_sink(&mut draft, DEFAULT_KIND);
    super::explain(&mut draft, fit.layout);
    let mut found = vec![format!("table {}, layout {}", sql_name(&chosen.name), fit.layout.name())];
    for (role, column) in &fit.columns {
        let what = if column.is_empty() {
            "no such column".to_owned()
        } else {
            format!("column {column}")
        };
        found.push(format!("{role}: {what}"));
    }
    if admin {
        found.push(format!(
            "to do: source.url names role {RELAY_ROLE}, not the administrator. Create the role (the file has the \
             statement); setup --url ADMIN_URL grants its rights"
        ));
    }
    found.push(
        "to do: write the role's password to a file and set source.password_file, or set PGPASSWORD"
            .to_owned(),
    );
    let zoneless = zoneless(chosen, &fit);
    request_zone(&zoneless, &mut draft, &mut found);
    let names: Vec<&str> = chosen.columns.iter().map(|column| column.name.as_str()).collect();
    for role in &fit.missing {
        found.push(format!("to do: fill in outbox.columns.{role}: no column was recognised"));
        draft.note(
            "outbox.columns",
            format!("{role} = \"…\"   required; the table has {}", names.join(", ")),
        );
    }
    place_left(&fit, &mut draft, &mut found);
    let topic = OutboxSpec::for_layout(fit.layout).topic;
    found.push(format!(
        "to do: create the topics that route.topic ({}) names, or set sink.create_topics",
        Value::String(topic)
    ));
    let complete = fit.missing.is_empty() && !zoneless.iter().any(|(role, _)| needs_zone(*role));
    Ok(Proposal { draft, found, complete })
}

/// Adds what must be done about columns without a time zone.
fn request_zone(zoneless: &[(Role, &str)], draft: &mut Draft, found: &mut Vec<String>) {
    for (role, column) in zoneless {
        let needed = needs_zone(*role);
        found.push(format!(
            "{}: {column} has no time zone: set source.time_zone to the zone of the sessions that insert (SHOW \
             TimeZone there){}",
            if needed { "to do" } else { "to check" },
            if needed { "; setup refuses the table without it" } else { "; without it the column is read as UTC" },
        ));
        draft.note(
            "source",
            format!(
                "time_zone = \"Area/City\"   {}: {column} has no time zone; the zone of the sessions that insert",
                if needed { "required" } else { "UTC if not set" },
            ),
        );
    }
}

/// Adds the unused columns: how each can be published, and what columns with times may be.
fn place_left(fit: &Fit, draft: &mut Draft, found: &mut Vec<String>) {
    if fit.left.is_empty() {
        return;
    }
    let names: Vec<_> = fit.left.iter().map(|column| column.name.as_str()).collect();
    found.push(format!("not published: {}; to publish them: outbox.extra", names.join(", ")));
    draft.note(
        "outbox",
        "Columns that are not published; each can be a header, with such a line in [….outbox.extra]:",
    );
    for column in &fit.left {
        let placed = Value::String(column.name.clone());
        draft.note(
            "outbox",
            format!("  {} = {{ header = {placed} }}", crate::config::key_as_toml(&column.name)),
        );
    }
    for column in fit.left.iter().filter(|column| column.is_time()) {
        found.push(format!(
            "to check: {} contains a time. If events must wait until then, set outbox.columns.available_at to this \
             column; if they expire then, outbox.columns.expires_at",
            column.name
        ));
    }
}

/// Whether a column of this role decides when or whether an event is published. Then `setup` requires a time zone.
const fn needs_zone(role: Role) -> bool {
    matches!(role, Role::AvailableAt | Role::ExpiresAt)
}

/// The columns with times without a time zone, and their roles.
fn zoneless<'t>(table: &'t CandidateTable, fit: &Fit) -> Vec<(Role, &'t str)> {
    let spec = OutboxSpec::for_layout(fit.layout);
    let roles = spec.roles().filter(|(role, _)| *role == Role::Time || needs_zone(*role));
    let columns = roles.filter_map(|(role, of_layout)| {
        let by_hand = fit.columns.iter().find(|(named, _)| *named == role);
        let name = by_hand.map_or(of_layout, |(_, column)| column.as_str());
        let column = table.columns.iter().find(|column| column.name == name)?;
        column.lacks_zone().then_some((role, column.name.as_str()))
    });
    columns.collect()
}

/// The tables, and whether the login is that of an administrator, which the relay should not use.
async fn read(conninfo: &Conninfo) -> Result<(Vec<CandidateTable>, bool), InitError> {
    const ADMIN: &str = "SELECT rolsuper OR rolcreaterole OR rolcreatedb OR rolbypassrls \
                         OR EXISTS (SELECT FROM pg_database d WHERE d.datname = current_database() \
                                    AND pg_has_role(current_user, d.datdba, 'USAGE')) \
                         FROM pg_roles WHERE rolname = current_user";
    let control = Control::connect(conninfo, APPLICATION_NAME).await?;
    let failed = |e| SourceError::control("read the attributes of the role", e);
    let admin = control.client().query_one(ADMIN, &[]).await.and_then(|row| row.try_get(0));
    let admin: bool = admin.map_err(failed)?;
    let failed = |e| SourceError::control("read the tables of the database", e);
    let limit = i64::try_from(TABLES_MAX).unwrap_or(i64::MAX);
    let type_sql = format!(
        "pg_catalog.array_agg(CASE WHEN {IS_TEXT_SQL} THEN 'text' \
           ELSE pg_catalog.format_type(base.oid, NULL) END ORDER BY a.attnum) "
    );
    let sql = [SELECT_SQL, &type_sql, FROM_SQL, BASE_TYPE_SQL, WHERE_SQL].concat();
    let rows = control.client().query(&sql, &[&limit]).await.map_err(failed)?;
    let table = |row: &tokio_postgres::Row| {
        let names: Vec<String> = row.try_get(2)?;
        let types: Vec<String> = row.try_get(3)?;
        let columns = names.into_iter().zip(types);
        let columns = columns.map(|(name, type_name)| Column { name, type_name }).collect();
        Ok(CandidateTable {
            name: TableName { schema: row.try_get(0)?, name: row.try_get(1)? },
            columns,
        })
    };
    let tables: Result<Vec<_>, _> = rows.iter().map(table).collect();
    Ok((tables.map_err(failed)?, admin))
}

/// The only table that looks like an outbox table.
fn only<'t>(
    tables: &'t [CandidateTable],
    database: &str,
    layout: Option<Layout>,
) -> Result<(&'t CandidateTable, Fit), InitError> {
    let all: Vec<_> = tables.iter().map(|table| (table, fit(table, layout))).collect();
    let is_whole = |fit: &Fit| fit.missing.is_empty();
    // Many tables have an id, a type and data, but usually only an outbox table has the columns of an aggregate.
    let is_near = |fit: &Fit| {
        let of_aggregate = [Role::AggregateType, Role::AggregateId];
        fit.missing.len() <= MISSING_MAX
            && of_aggregate.iter().any(|role| !fit.missing.contains(role))
    };
    let whole = all.iter().any(|(_, fit)| is_whole(fit));
    let mut fits: Vec<_> = all
        .into_iter()
        .filter(|(_, fit)| if whole { is_whole(fit) } else { is_near(fit) })
        .collect();
    match fits.len() {
        0 => Err(InitError::NoCandidate { database: database.to_owned(), tables: tables.len() }),
        1 => Ok(fits.swap_remove(0)),
        _ => {
            let names = fits.iter().take(NAMES_MAX);
            let names = names.map(|(table, fit)| {
                format!("{} (layout {})", sql_name(&table.name), fit.layout.name())
            });
            Err(InitError::Candidates(names.collect()))
        }
    }
}

/// The table of `--table`.
fn named<'t>(
    tables: &'t [CandidateTable],
    name: &str,
    database: &str,
    layout: Option<Layout>,
) -> Result<(&'t CandidateTable, Fit), InitError> {
    let wanted = crate::config::table_name(name);
    let is = |table: &&CandidateTable| wanted.as_ref() == Some(&table.name);
    let Some(table) = tables.iter().find(is) else {
        let known = tables.iter().take(NAMES_MAX).map(|table| sql_name(&table.name)).collect();
        return Err(InitError::NoTable {
            database: database.to_owned(),
            table: name.to_owned(),
            known,
        });
    };
    let fit = fit(table, layout);
    if fit.missing.len() * 2 <= fit.needed() {
        return Ok((table, fit));
    }
    Err(InitError::Unplaced {
        table: sql_name(&table.name),
        missing: fit.missing.iter().map(|role| role.name()).collect(),
        columns: table.columns.iter().map(|column| column.name.clone()).collect(),
    })
}

/// The name in SQL, quoted if necessary.
fn sql_name(table: &TableName) -> String {
    let one = |part: &str| {
        let plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_';
        let bare = part.bytes().all(plain) && !part.starts_with(|c: char| c.is_ascii_digit());
        if bare { part.to_owned() } else { format!("\"{}\"", part.replace('"', "\"\"")) }
    };
    format!("{}.{}", one(&table.schema), one(&table.name))
}

/// A column.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Column {
    /// The name.
    pub name: String,
    /// The type as SQL writes it, without length or precision; of a domain its base type.
    pub type_name: String,
}

impl Column {
    /// Whether the column has a type for times.
    fn is_time(&self) -> bool {
        self.type_name.starts_with("timestamp")
    }

    /// Whether the column has a type for times without a time zone.
    fn lacks_zone(&self) -> bool {
        matches!(self.type_name.as_str(), "timestamp without time zone" | "date")
    }
}

/// How a table fits a layout.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Fit {
    /// The layout.
    pub layout: Layout,
    /// Columns that have another name than in the layout; an empty name if the table has no such column.
    pub columns: Vec<(Role, String)>,
    /// Required roles for which no column was found.
    pub missing: Vec<Role>,
    /// Unused columns.
    pub left: Vec<Column>,
    /// Higher is better.
    score: i32,
}

impl Fit {
    /// Number of roles that the layout requires.
    fn needed(&self) -> usize {
        Role::ALL.iter().filter(|role| is_needed(self.layout, **role)).count()
    }
}

/// Usual names of the columns, besides those of the layouts, in lower case and without `_`.
const NAMES: &[(Role, &[&str])] = &[
    (Role::Id, &["id", "eventid", "messageid", "uuid", "eventuuid", "outboxid"]),
    (
        Role::AggregateType,
        &[
            "aggregatetype",
            "aggregate",
            "aggregatename",
            "entitytype",
            "entity",
            "streamtype",
            "objecttype",
            "resourcetype",
        ],
    ),
    (
        Role::AggregateId,
        &[
            "aggregateid",
            "aggregatekey",
            "entityid",
            "streamid",
            "objectid",
            "resourceid",
            "eventkey",
            "messagekey",
            "key",
        ],
    ),
    (Role::EventType, &["eventtype", "type", "eventname", "kind", "messagetype", "event"]),
    (
        Role::Payload,
        &["payload", "body", "data", "content", "message", "eventdata", "eventpayload", "json"],
    ),
    (Role::Headers, &["headers", "metadata", "meta", "attributes"]),
    (Role::Topic, &["topic", "destination", "channel"]),
    (Role::PartitionKey, &["partitionkey", "routingkey"]),
    (
        Role::Time,
        &[
            "createdat",
            "occurredat",
            "occurredon",
            "created",
            "createdon",
            "eventtime",
            "timestamp",
            "insertedat",
        ],
    ),
    (Role::Trace, &["traceparent", "traceid", "tracecontext"]),
];

/// How a table fits the layout that fits it best, or the given layout.
pub fn fit(table: &CandidateTable, layout: Option<Layout>) -> Fit {
    let all =
        Layout::ALL.iter().filter(|candidate| layout.is_none_or(|wanted| wanted == **candidate));
    let fits = all.map(|layout| one(table, *layout));
    // The first of the best layouts: they are listed in the order of preference.
    let best = fits.reduce(|best, next| if next.score > best.score { next } else { best });
    best.unwrap_or_else(|| one(table, Layout::Postrider))
}

fn one(table: &CandidateTable, layout: Layout) -> Fit {
    let spec = OutboxSpec::for_layout(layout);
    let mut left = table.columns.clone();
    let mut fit =
        Fit { layout, columns: Vec::new(), missing: Vec::new(), left: Vec::new(), score: 0 };
    // First columns with the layout's names, so that no other role takes them.
    let mut open = Vec::new();
    for (role, column) in spec.roles() {
        match take(&mut left, |name, kind| name == column && can_be(role, kind)) {
            Some(_) => fit.score += 4,
            None => open.push(role),
        }
    }
    for role in open {
        match by_other_name(&mut left, role) {
            Some(column) => {
                fit.columns.push((role, column));
                fit.score += 1;
            }
            None if is_needed(layout, role) => {
                fit.missing.push(role);
                fit.score -= 10;
            }
            None if spec.may_lack(role) => {}
            None => fit.columns.push((role, String::new())),
        }
    }
    for extra in &spec.extra {
        if take(&mut left, |name, _| name == extra.column).is_some() {
            fit.score += 4;
        } else {
            // Additional columns of a layout are required.
            fit.missing.push(Role::Headers);
            fit.score -= 10;
        }
    }
    // Columns with the row status of polling, which the stream ignores.
    let state = spec.row_state();
    let status: Vec<&str> = state
        .columns()
        .into_iter()
        .filter(|name| spec.roles().all(|(_, column)| column != *name))
        .collect();
    let polling = |column: &Column| status.contains(&column.name.as_str());
    fit.score += i32::try_from(left.iter().filter(|column| polling(column)).count()).unwrap_or(0);
    left.retain(|column| !polling(column) && !layout.ignored().contains(&column.name.as_str()));
    fit.score += i32::from(table.name.name == layout.table());
    fit.left = left;
    fit
}

fn is_needed(layout: Layout, role: Role) -> bool {
    match role {
        Role::Id | Role::AggregateType | Role::AggregateId | Role::Payload => true,
        Role::EventType => layout != Layout::Debezium,
        // The column is the topic of this layout.
        Role::Topic => layout == Layout::Gcx,
        Role::Headers
        | Role::PartitionKey
        | Role::Time
        | Role::Trace
        | Role::AvailableAt
        | Role::ExpiresAt => false,
    }
}

fn by_other_name(left: &mut Vec<Column>, role: Role) -> Option<String> {
    let (_, names) = NAMES.iter().find(|(of, _)| *of == role)?;
    // In the order of the list, not of the table.
    names.iter().find_map(|wanted| {
        let column = take(left, |name, kind| bare(name) == *wanted && can_be(role, kind))?;
        Some(column.name)
    })
}

fn bare(name: &str) -> String {
    name.chars().filter(|c| *c != '_').flat_map(char::to_lowercase).collect()
}

fn take(left: &mut Vec<Column>, is: impl Fn(&str, &str) -> bool) -> Option<Column> {
    let at = left.iter().position(|column| is(&column.name, &column.type_name))?;
    Some(left.remove(at))
}

fn can_be(role: Role, kind: &str) -> bool {
    let is_text = matches!(kind, "text" | "character varying" | "character");
    let is_json = matches!(kind, "json" | "jsonb");
    match role {
        Role::Payload => is_text || is_json || kind == "bytea",
        Role::Headers => is_text || is_json,
        Role::Time | Role::AvailableAt | Role::ExpiresAt => {
            kind.starts_with("timestamp") || kind == "date"
        }
        // JSON and bytes are not names.
        Role::Id
        | Role::AggregateType
        | Role::AggregateId
        | Role::EventType
        | Role::Topic
        | Role::PartitionKey
        | Role::Trace => !is_json && kind != "bytea" && !kind.starts_with("timestamp"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::outbox::TableName;

    fn table(name: &str, columns: &[(&str, &str)]) -> CandidateTable {
        let column = |(name, kind): &(&str, &str)| Column {
            name: (*name).to_owned(),
            type_name: (*kind).to_owned(),
        };
        CandidateTable {
            name: TableName { schema: "public".to_owned(), name: name.to_owned() },
            columns: columns.iter().map(column).collect(),
        }
    }

    /// The columns of a layout's own SQL.
    fn own(layout: Layout) -> CandidateTable {
        let body = layout.create_sql().split_once(" (\n").unwrap().1.split_once("\n);").unwrap().0;
        let lines = body.lines().map(str::trim).filter(|line| !line.starts_with("CHECK"));
        let columns: Vec<_> = lines
            .map(|line| {
                let (name, rest) = line.split_once(' ').unwrap();
                let kind = rest.trim_start().split([' ', '(', ',']).next().unwrap();
                (name, if kind == "varchar" { "character varying" } else { kind })
            })
            .collect();
        table(layout.table(), &columns)
    }

    #[test]
    fn each_layout_fits_its_own_table() {
        for layout in Layout::ALL {
            let fit = fit(&own(*layout), None);
            assert_eq!(fit.layout, *layout);
            assert_eq!(
                (&fit.columns, &fit.missing, &fit.left),
                (&vec![], &vec![], &vec![]),
                "{layout:?}"
            );
        }
    }

    #[test]
    fn columns_of_other_names_are_found() {
        let table = table(
            "events",
            &[
                ("event_id", "uuid"),
                ("entity_type", "text"),
                ("event_key", "text"),
                ("kind", "text"),
                ("body", "jsonb"),
                ("tenant_id", "bigint"),
                ("created_at", "timestamp with time zone"),
            ],
        );
        let fit = fit(&table, None);
        assert_eq!(fit.layout, Layout::Postrider);
        assert_eq!(fit.missing, []);
        let columns: Vec<_> =
            fit.columns.iter().map(|(role, column)| (role.name(), column.as_str())).collect();
        let expected = [
            ("id", "event_id"),
            ("aggregate_type", "entity_type"),
            ("aggregate_id", "event_key"),
            ("event_type", "kind"),
            ("payload", "body"),
            ("headers", ""),
        ];
        assert_eq!(columns, expected);
        assert_eq!(fit.left.len(), 1);
    }

    #[test]
    fn another_table_is_not_an_outbox() {
        let orders = table(
            "orders",
            &[("id", "bigint"), ("type", "text"), ("status", "text"), ("data", "jsonb")],
        );
        assert!(!fit(&orders, None).missing.is_empty());
        let debezium = fit(&own(Layout::Debezium), Some(Layout::Gcx));
        assert_eq!(debezium.missing, [Role::Topic]);
    }
}
