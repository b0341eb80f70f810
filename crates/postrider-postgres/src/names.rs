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

/// A table whose changes a pipeline publishes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CapturedTable {
    /// The table.
    pub name: TableName,
    /// The columns that are published, as stored in the catalog; `None` for all columns, also those that are added
    /// later.
    pub columns: Option<Vec<String>>,
}

impl CapturedTable {
    /// The qualified name without quotes: the aggregate id of the table's events.
    pub fn qualified(&self) -> String {
        format!("{}.{}", self.name.schema, self.name.name)
    }

    /// The table as an entry of `CREATE PUBLICATION … FOR TABLE`, with its columns. `ONLY`: tables that inherit from it
    /// are not published; the partitions of a partitioned table always are.
    pub fn published(&self) -> String {
        let columns = self.columns.as_ref().map_or_else(String::new, |columns| {
            let columns: Vec<String> = columns.iter().map(|column| ident(column)).collect();
            format!(" ({})", columns.join(", "))
        });
        format!("ONLY {}{columns}", self.name)
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
    /// The outbox table; `None` if only logical messages are published, or the changes of captured tables.
    pub table: Option<TableName>,
    /// The tables whose changes are published instead of an outbox; empty for an outbox or logical messages.
    pub captured: Vec<CapturedTable>,
    /// The columns of the table that hold times, and their zone.
    pub times: Times,
    /// `mode = "auto"`: `postrider run` polls the table while there is no slot, and creates a new one; there is no
    /// other repair.
    pub auto: bool,
    /// The sink publishes in transactions. It takes no rows that are read from the table: no repair, no backfill, and
    /// no replay.
    pub in_transactions: bool,
    /// `outbox.on_update = "halt"`: the publication must publish updates too, or the relay never sees one.
    pub updates: bool,
}

impl Names {
    /// The statements that the publication publishes, as its option `publish` names them.
    pub fn published(&self) -> &'static str {
        match (self.captures(), self.updates) {
            (true, _) => "insert, update, delete, truncate",
            (false, true) => "insert, update",
            (false, false) => "insert",
        }
    }

    /// The outbox table, if events that no slot sends can be published from its rows.
    pub fn repair_table(&self) -> Option<&TableName> {
        self.table.as_ref().filter(|_| !self.in_transactions)
    }

    /// Whether the pipeline publishes the changes of tables.
    pub const fn captures(&self) -> bool {
        !self.captured.is_empty()
    }

    /// The captured tables, as SQL, with commas.
    pub fn captured_list(&self) -> String {
        let names: Vec<String> = self.captured.iter().map(|table| table.name.to_string()).collect();
        names.join(", ")
    }

    /// ` FOR TABLE …`: the tables that the publication has; empty for logical messages alone.
    pub fn for_tables(&self) -> String {
        let tables: Vec<String> = match &self.table {
            Some(table) => vec![table.to_string()],
            None => self.captured.iter().map(CapturedTable::published).collect(),
        };
        if tables.is_empty() { String::new() } else { format!(" FOR TABLE {}", tables.join(", ")) }
    }

    /// The options of the publication in `WITH (…)`, for a server of this version (`server_version_num`).
    pub fn publication_options(&self, version: u32) -> String {
        // Without it an UPDATE of a table that has such a column and REPLICA IDENTITY FULL fails.
        let generated = if self.captures() && version >= PUBLISHES_GENERATED {
            ", publish_generated_columns = stored"
        } else {
            ""
        };
        format!("publish = '{}', publish_via_partition_root = true{generated}", self.published())
    }

    /// What becomes of events that no slot sends, for a pipeline without an outbox table: a clause.
    pub const fn unrepeatable(&self) -> &'static str {
        if self.captures() {
            "changes of captured tables are in WAL alone: they are lost as events, and the tables have their result"
        } else {
            "logical messages leave no row: they are lost"
        }
    }
}

/// The first server with `publish_generated_columns`. Unit: `server_version_num`.
pub const PUBLISHES_GENERATED: u32 = 180_000;

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
pub const OWN_TABLES: [&str; 8] =
    ["migration", "cursor", "parked", "repair", "repair_page", "bookmark", "replay", "pause"];

/// Grants a role all rights on rows of these tables of schema `postrider`. `role` is quoted.
pub(crate) fn grant_rows(tables: &[&str], role: &str) -> String {
    let tables: Vec<String> = tables.iter().map(|table| format!("postrider.{table}")).collect();
    format!("GRANT SELECT, INSERT, UPDATE, DELETE ON TABLE {} TO {role};", tables.join(", "))
}

/// Longest name PostgreSQL keeps (`NAMEDATALEN` - 1). Unit: bytes.
pub const NAME_BYTES_MAX: usize = 63;

/// A name with a suffix, cut to what PostgreSQL keeps.
pub(crate) fn fitted(name: &str, suffix: &str) -> String {
    let mut stem = name.to_owned();
    while stem.len() + suffix.len() > NAME_BYTES_MAX {
        stem.pop();
    }
    stem + suffix
}

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
    fn a_publication_names_captured_tables_with_their_columns() {
        let all = CapturedTable { name: TableName::new("public", "orders"), columns: None };
        let columns = Some(vec!["id".to_owned(), "To\"tal".to_owned()]);
        let some = CapturedTable { name: TableName::new("shop", "Lines"), columns };
        let names = Names {
            key: PipelineKey::first("changes"),
            slot: "s".to_owned(),
            publication: "p".to_owned(),
            table: None,
            captured: vec![all, some],
            times: Times::default(),
            auto: false,
            in_transactions: false,
            updates: false,
        };
        assert_eq!(
            names.for_tables(),
            " FOR TABLE ONLY \"public\".\"orders\", ONLY \"shop\".\"Lines\" (\"id\", \"To\"\"tal\")"
        );
        let options =
            "publish = 'insert, update, delete, truncate', publish_via_partition_root = true";
        assert_eq!(names.publication_options(150_000), options);
        assert_eq!(
            names.publication_options(180_000),
            format!("{options}, publish_generated_columns = stored")
        );
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
