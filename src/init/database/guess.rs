//! How well a table fits a layout, by the names and types of its columns.

use super::Table;
use crate::outbox::{Layout, OutboxSpec, Role};

/// A column.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Column {
    /// The name.
    pub name: String,
    /// The type, of a domain the one beneath it, as SQL writes it, without length or precision.
    pub type_name: String,
}

impl Column {
    /// Whether it holds times.
    pub(super) fn is_time(&self) -> bool {
        self.type_name.starts_with("timestamp")
    }

    /// Whether it holds times without a time zone.
    pub(super) fn lacks_zone(&self) -> bool {
        matches!(self.type_name.as_str(), "timestamp without time zone" | "date")
    }
}

/// What a table is in one layout.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Fit {
    /// The layout.
    pub layout: Layout,
    /// Columns that are called otherwise than in the layout; empty for what the table does not have.
    pub columns: Vec<(Role, String)>,
    /// What every event has, and no column was found for.
    pub missing: Vec<Role>,
    /// Columns that nothing was made of.
    pub left: Vec<Column>,
    /// Higher is better.
    score: i32,
}

impl Fit {
    /// How many things every event of the layout has.
    pub(super) fn needed(&self) -> usize {
        Role::ALL.iter().filter(|role| is_needed(self.layout, **role)).count()
    }
}

/// Names that people give to what an event has, beside those of the layouts: lower case, without `_`.
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

/// The best layout for a table, or how it fits the one that was named.
pub fn fit(table: &Table, layout: Option<Layout>) -> Fit {
    let all =
        Layout::ALL.iter().filter(|candidate| layout.is_none_or(|wanted| wanted == **candidate));
    let fits = all.map(|layout| one(table, *layout));
    // The first of the best: layouts stand in the order in which they are preferred.
    let best = fits.reduce(|best, next| if next.score > best.score { next } else { best });
    best.unwrap_or_else(|| one(table, Layout::Postrider))
}

fn one(table: &Table, layout: Layout) -> Fit {
    let spec = OutboxSpec::for_layout(layout);
    let mut left = table.columns.clone();
    let mut fit =
        Fit { layout, columns: Vec::new(), missing: Vec::new(), left: Vec::new(), score: 0 };
    // First what is called so, that no other role takes it.
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
            // A layout's further columns can't be left out.
            fit.missing.push(Role::Headers);
            fit.score -= 10;
        }
    }
    let polling = |column: &Column| marks(layout).contains(&column.name.as_str());
    fit.score += i32::try_from(left.iter().filter(|column| polling(column)).count()).unwrap_or(0);
    left.retain(|column| !polling(column));
    fit.score += i32::from(table.name.name == layout.table());
    fit.left = left;
    fit
}

fn is_needed(layout: Layout, role: Role) -> bool {
    match role {
        Role::Id | Role::AggregateType | Role::AggregateId | Role::Payload => true,
        Role::EventType => layout != Layout::Debezium,
        // The layout's topic is this column.
        Role::Topic => layout == Layout::Gcx,
        Role::Headers
        | Role::PartitionKey
        | Role::Time
        | Role::Trace
        | Role::AvailableAt
        | Role::ExpiresAt => false,
    }
}

/// Columns that polling marks its rows with, and the stream does not look at.
const fn marks(layout: Layout) -> &'static [&'static str] {
    match layout {
        Layout::Postrider | Layout::Debezium => &[],
        Layout::Commerce => &["processed_at", "attempts", "last_error"],
        Layout::Gcx => &["status", "retry_count", "max_retries", "published_at"],
        Layout::Sqlgarden => &["status", "last_attempt_at", "attempt_count"],
        Layout::Adr30 => &["published_at"],
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
        // A JSON object or bytes names nothing.
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

    fn table(name: &str, columns: &[(&str, &str)]) -> Table {
        let column = |(name, kind): &(&str, &str)| Column {
            name: (*name).to_owned(),
            type_name: (*kind).to_owned(),
        };
        Table {
            name: TableName { schema: "public".to_owned(), name: name.to_owned() },
            columns: columns.iter().map(column).collect(),
        }
    }

    /// The columns of a layout's own SQL.
    fn own(layout: Layout) -> Table {
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
    fn each_layout_knows_its_own_table() {
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
    fn a_table_of_something_else_is_no_outbox() {
        let orders = table(
            "orders",
            &[("id", "bigint"), ("type", "text"), ("status", "text"), ("data", "jsonb")],
        );
        assert!(!fit(&orders, None).missing.is_empty());
        let debezium = fit(&own(Layout::Debezium), Some(Layout::Gcx));
        assert_eq!(debezium.missing, [Role::Topic]);
    }
}
