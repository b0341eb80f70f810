//! The names of a pipeline's objects in its database, and the quoting of identifiers and literals for SQL. Every text
//! for a server, a log or a person is quoted here, so that a quote inside a name does no harm.

use postrider_core::store::PipelineKey;
use postrider_core::zone::Zone;
use std::fmt;

/// A table by schema and name.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct TableName {
    /// The schema, as stored in the catalog.
    pub schema: String,
    /// The table, as stored in the catalog.
    pub name: String,
}

impl TableName {
    /// A table by schema and name, both as stored in the catalog.
    pub fn new(schema: impl Into<String>, name: impl Into<String>) -> Self {
        Self { schema: schema.into(), name: name.into() }
    }
}

/// Quoted and qualified, ready for SQL.
impl fmt::Display for TableName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", ident(&self.schema), ident(&self.name))
    }
}

/// The configured names of one pipeline's objects.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Names {
    /// The pipeline and its shard: the key of its cursor row.
    pub key: PipelineKey,
    /// The replication slot.
    pub slot: String,
    /// The publication.
    pub publication: String,
    /// The outbox table; `None` if only logical messages are published.
    pub table: Option<TableName>,
    /// The columns of the table that hold times, and their zone.
    pub times: Times,
    /// `mode = "auto"`: `postrider run` polls the table while there is no slot, and creates a new one; there is no
    /// other repair.
    pub auto: bool,
    /// `outbox.on_update = "halt"`: the publication must publish updates too, or the relay never sees one.
    pub updates: bool,
}

impl Names {
    /// The statements that the publication publishes, as its option `publish` names them.
    pub fn published(&self) -> &'static str {
        if self.updates { "insert, update" } else { "insert" }
    }
}

/// The columns that hold times, and the zone of those that have none.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Times {
    /// `source.time_zone`.
    pub zone: Option<Zone>,
    /// Columns that decide whether or when an event is published.
    pub deciding: Vec<DecidingColumn>,
    /// The column of the event's own time, if records are stamped or ordered by it.
    pub stamp: Option<String>,
}

/// A column that decides whether or when an event is published.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DecidingColumn {
    /// The name of the column.
    pub column: String,
    /// What depends on it: a clause such as "when an event expires".
    pub what: &'static str,
}

impl Times {
    /// The names of all columns.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.deciding.iter().map(|d| d.column.as_str()).chain(self.stamp.as_deref())
    }
}

/// `name` as an SQL identifier: always quoted, so keywords and capital letters need no special case.
pub fn ident(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

/// `text` as an SQL string literal that is correct with `standard_conforming_strings` on and off.
pub fn literal(text: &str) -> String {
    let quoted = text.replace('\'', "''");
    if text.contains('\\') {
        format!(" E'{}'", quoted.replace('\\', "\\\\"))
    } else {
        format!("'{quoted}'")
    }
}

/// The login of an administrator as an example URL with placeholders for user and host.
pub fn admin_url(database: &str) -> String {
    format!("postgresql://ADMIN@HOST/{database}")
}

/// Postrider's own tables in schema `postrider`, which may also have those of the SQL toolkit ([`crate::toolkit`]).
pub const OWN_TABLES: [&str; 7] =
    ["migration", "cursor", "parked", "repair", "repair_page", "bookmark", "replay"];

/// Grants a role all rights on rows of these tables of schema `postrider`. `role` is quoted.
pub(crate) fn grant_rows(tables: &[&str], role: &str) -> String {
    let tables: Vec<String> = tables.iter().map(|table| format!("postrider.{table}")).collect();
    format!("GRANT SELECT, INSERT, UPDATE, DELETE ON TABLE {} TO {role};", tables.join(", "))
}

/// Longest name PostgreSQL keeps (`NAMEDATALEN` - 1). Unit: bytes.
pub const NAME_BYTES_MAX: usize = 63;

/// Whether a slot may have this name (`ReplicationSlotValidateName`: lower-case letters, digits, underscore).
pub fn slot_name_allowed(name: &str) -> bool {
    (1..=NAME_BYTES_MAX).contains(&name.len())
        && name.bytes().all(|b| matches!(b, b'a'..=b'z' | b'0'..=b'9' | b'_'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_quoted_whatever_is_in_them() {
        assert_eq!(ident("outbox"), "\"outbox\"");
        assert_eq!(ident("Out\"box"), "\"Out\"\"box\"");
        assert_eq!(literal("it's"), "'it''s'");
        assert_eq!(literal("a\\'b"), " E'a\\\\''b'");
        assert_eq!(TableName::new("public", "Out.box").to_string(), "\"public\".\"Out.box\"");
    }

    #[test]
    fn slot_names_are_postgresqls() {
        for good in ["a", "postrider_orders", "0", &"x".repeat(63)] {
            assert!(slot_name_allowed(good), "{good}");
        }
        for bad in ["", "Orders", "a-b", "a b", "ä", "a'b", &"x".repeat(64)] {
            assert!(!slot_name_allowed(bad), "{bad}");
        }
    }
}
