//! Inboxes of the SQL toolkit as an operator sees them: their settings and state, and how one is created and dropped.
//!
//! The functions of the SQL toolkit do the work, and their errors have hints. The messages are in `inbox_messages`.

use super::log_maintenance::number;
use crate::names::{TableName, ident, literal};
use pg_replication::error::{SourceError, SourceErrorKind};
use std::fmt::Write as _;
use tokio_postgres::{Client, Row};

/// What decides the order of the messages of an aggregate.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum InboxOrder {
    /// `sequence_num`, numbers without gaps.
    Sequence,
    /// The order of the inserts.
    Arrival,
}

impl InboxOrder {
    /// The name in SQL.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Sequence => "sequence",
            Self::Arrival => "arrival",
        }
    }

    fn of(name: &str) -> Option<Self> {
        [Self::Sequence, Self::Arrival].into_iter().find(|order| order.name() == name)
    }
}

/// The table of an inbox.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct InboxTable {
    /// Schema and name.
    pub name: TableName,
    /// Its owner; `None` if the table does not exist any more.
    pub owner: Option<String>,
    /// The type of the column of ids, ready for SQL; `None` if table or column do not exist any more.
    pub id_type: Option<String>,
}

/// The columns of an inbox's table that have a meaning here.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct InboxColumns {
    /// The id of a message.
    pub id: String,
    /// When it was processed.
    pub processed_at: String,
    /// How often it has failed.
    pub retry_count: String,
    /// The last error.
    pub error: String,
    /// When it arrived.
    pub received_at: String,
    /// Its type; `None`: a table of others without types.
    pub event_type: Option<String>,
}

/// An inbox: a row of `postrider.inbox`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct InboxFacts {
    /// The name.
    pub name: String,
    /// The table of its messages.
    pub table: InboxTable,
    /// The table was created with the inbox; otherwise it is a table of others that was adopted.
    pub is_managed: bool,
    /// The order, if there is one.
    pub order: Option<InboxOrder>,
    /// The first number of an aggregate, with [`InboxOrder::Sequence`].
    pub first_sequence: i64,
    /// The tiers of priorities as JSON: name to lowest and highest number. `None`: no priorities.
    pub tiers: Option<String>,
    /// A message that has failed this often is dead.
    pub max_retries: u64,
    /// How long processed messages are kept; 0: for ever. Unit: hours.
    pub retention_hours: u64,
    /// How long dead messages are kept; 0: for ever. Unit: hours.
    pub dead_retention_hours: u64,
    /// The inbox is degraded if the oldest pending message is this old. Unit: seconds.
    pub degraded_after: u64,
    /// The inbox is critical if the oldest pending message is this old. Unit: seconds.
    pub critical_after: u64,
    /// The columns.
    pub columns: InboxColumns,
}

impl InboxFacts {
    fn of(row: &Row) -> Result<Self, SourceError> {
        let failed = |e| SourceError::control("read the inboxes", e);
        let order: Option<String> = row.try_get(4).map_err(failed)?;
        let order = match order {
            None => None,
            Some(name) => Some(InboxOrder::of(&name).ok_or_else(|| {
                SourceError::new(SourceErrorKind::Protocol, format!("read the order {name:?}"))
            })?),
        };
        let whole = || -> Result<Self, tokio_postgres::Error> {
            Ok(Self {
                name: row.try_get(0)?,
                table: InboxTable {
                    name: TableName::new(
                        row.try_get::<_, String>(1)?,
                        row.try_get::<_, String>(2)?,
                    ),
                    owner: row.try_get(18)?,
                    id_type: row.try_get(19)?,
                },
                is_managed: row.try_get(3)?,
                order,
                first_sequence: row.try_get(5)?,
                tiers: row.try_get(6)?,
                max_retries: number(row, 7)?,
                retention_hours: number(row, 8)?,
                dead_retention_hours: number(row, 9)?,
                degraded_after: number(row, 10)?,
                critical_after: number(row, 11)?,
                columns: InboxColumns {
                    id: row.try_get(12)?,
                    processed_at: row.try_get(13)?,
                    retry_count: row.try_get(14)?,
                    error: row.try_get(15)?,
                    received_at: row.try_get(16)?,
                    event_type: row.try_get(17)?,
                },
            })
        };
        whole().map_err(failed)
    }

    /// The condition that message `m` is processed.
    pub(super) fn is_processed(&self) -> String {
        format!("m.{} IS NOT NULL", ident(&self.columns.processed_at))
    }

    /// The condition that message `m` is dead.
    pub(super) fn is_dead(&self) -> String {
        let open = format!("m.{} IS NULL", ident(&self.columns.processed_at));
        if self.is_managed {
            return format!("{open} AND m.dead_at IS NOT NULL");
        }
        let retries = ident(&self.columns.retry_count);
        format!("{open} AND coalesce(m.{retries}, 0) >= {}", self.max_retries)
    }

    /// The condition that the id of message `m` is in the array of texts `array`.
    pub(super) fn id_in(&self, array: &str) -> String {
        format!("m.{} = ANY ({array}::text[]::{}[])", ident(&self.columns.id), self.id_type())
    }

    /// The type of the ids. That of a table that does not exist does not matter: the statement fails anyway.
    pub(super) fn id_type(&self) -> &str {
        self.table.id_type.as_deref().unwrap_or("text")
    }

    /// The type of message `m` as text, which is empty if it has none.
    pub(super) fn type_text(&self) -> String {
        match &self.columns.event_type {
            Some(column) => format!("coalesce(m.{}::text, '')", ident(column)),
            None => "''::text".to_owned(),
        }
    }
}

const FACTS: &str = "\
SELECT i.name, i.table_schema::text, i.table_name::text, i.is_managed, i.ordering, i.first_sequence, i.tiers::text, \
  i.max_retries::int8, i.retention_hours::int8, i.dead_retention_hours::int8, \
  floor(extract(epoch FROM i.degraded_after))::int8, floor(extract(epoch FROM i.critical_after))::int8, \
  i.id_column::text, i.processed_at_column::text, i.retry_count_column::text, i.error_column::text, \
  i.received_at_column::text, i.event_type_column::text, t.owner, t.id_type \
FROM postrider.inbox i LEFT JOIN LATERAL ( \
  SELECT pg_get_userbyid(c.relowner)::text AS owner, (SELECT format_type(a.atttypid, NULL) FROM pg_attribute a \
    WHERE a.attrelid = c.oid AND a.attname = i.id_column AND a.attnum > 0 AND NOT a.attisdropped) AS id_type \
  FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace \
  WHERE n.nspname = i.table_schema AND c.relname = i.table_name) t ON true \
WHERE $1::text IS NULL OR i.name = $1 ORDER BY i.name COLLATE \"C\" LIMIT $2";

/// The inboxes by name, at most `max`, and whether there are more.
///
/// # Errors
/// SQLSTATE 42P01, 3F000, 42703: the database has no inboxes of this version. Any other error of the server or of the
/// connection.
pub async fn list(client: &Client, max: usize) -> Result<(Vec<InboxFacts>, bool), SourceError> {
    let failed = |e| SourceError::control("read the inboxes", e);
    let limit = i64::try_from(max).unwrap_or(i64::MAX).saturating_add(1);
    let rows = client.query(FACTS, &[&None::<String>, &limit]).await.map_err(failed)?;
    let all: Result<Vec<_>, _> = rows.iter().take(max).map(InboxFacts::of).collect();
    Ok((all?, rows.len() > max))
}

/// The inbox of this name.
///
/// # Errors
/// As [`list`].
pub async fn find(client: &Client, name: &str) -> Result<Option<InboxFacts>, SourceError> {
    let failed = |e| SourceError::control(format!("read inbox {name:?}"), e);
    let rows = client.query(FACTS, &[&name, &1_i64]).await.map_err(failed)?;
    rows.first().map(InboxFacts::of).transpose()
}

/// What `inbox_health` says of an inbox.
#[derive(Clone, PartialEq, Debug)]
pub struct InboxHealth {
    /// Messages that are neither processed nor dead.
    pub pending: u64,
    /// Dead messages.
    pub dead: u64,
    /// Age of the oldest pending message; 0 if there is none. Unit: seconds.
    pub oldest_seconds: f64,
    /// Messages that were processed in the last minutes. Unit: messages per second.
    pub per_second: f64,
    /// From their arrival until they were processed, on average; `None` if there are none. Unit: seconds.
    pub processing_seconds: Option<f64>,
    /// `healthy`, `degraded` or `critical`.
    pub status: String,
}

impl InboxHealth {
    /// Nothing is to be done.
    pub fn is_healthy(&self) -> bool {
        self.status == "healthy"
    }
}

/// The state of an inbox. Costs the same for any number of messages if the inbox is managed; otherwise it reads the
/// table.
///
/// # Errors
/// SQLSTATE PR121: there is no such inbox; 42P01: its table does not exist. Any other error of the server or of the
/// connection.
pub async fn health(client: &Client, name: &str) -> Result<InboxHealth, SourceError> {
    let failed = |e| SourceError::control(format!("read the state of inbox {name:?}"), e);
    let sql = "SELECT (h ->> 'pending_count')::int8, (h ->> 'dead_letter_count')::int8, \
                 (h ->> 'oldest_pending_age_sec')::float8, (h ->> 'throughput_per_sec')::float8, \
                 (h ->> 'avg_processing_time_sec')::float8, h ->> 'health_status' FROM postrider.inbox_health($1) h";
    let row = client.query_one(sql, &[&name]).await.map_err(failed)?;
    let health = |row: &Row| -> Result<InboxHealth, tokio_postgres::Error> {
        Ok(InboxHealth {
            pending: number(row, 0)?,
            dead: number(row, 1)?,
            oldest_seconds: row.try_get(2)?,
            per_second: row.try_get(3)?,
            processing_seconds: row.try_get(4)?,
            status: row.try_get(5)?,
        })
    };
    health(&row).map_err(failed)
}

/// The messages of one type.
#[derive(Clone, PartialEq, Debug)]
pub struct TypeNumbers {
    /// The type; empty for messages without one.
    pub event_type: String,
    /// Messages that are neither processed nor dead.
    pub pending: u64,
    /// Dead messages.
    pub dead: u64,
    /// Processed messages that are still in the table.
    pub processed: u64,
    /// From arrival until processed, on average. Unit: seconds.
    pub processing_seconds: Option<f64>,
}

/// The numbers of an inbox by type, those with most open messages first, at most `max`; and whether there are more.
///
/// # Errors
/// An error of the server or of the connection.
pub async fn types(
    client: &Client,
    name: &str,
    max: usize,
) -> Result<(Vec<TypeNumbers>, bool), SourceError> {
    let failed = |e| SourceError::control(format!("read the types of inbox {name:?}"), e);
    let sql = format!(
        "SELECT s.event_type, s.pending, s.dead, s.processed, s.avg_processing_time_sec::float8 \
         FROM postrider_inbox.{} s ORDER BY s.pending + s.dead DESC, s.event_type COLLATE \"C\" LIMIT $1",
        ident(&format!("stats_{name}"))
    );
    let limit = i64::try_from(max).unwrap_or(i64::MAX).saturating_add(1);
    let rows = client.query(&sql, &[&limit]).await.map_err(failed)?;
    let numbers = |row: &Row| -> Result<TypeNumbers, tokio_postgres::Error> {
        Ok(TypeNumbers {
            event_type: row.try_get(0)?,
            pending: number(row, 1)?,
            dead: number(row, 2)?,
            processed: number(row, 3)?,
            processing_seconds: row.try_get(4)?,
        })
    };
    let all: Result<Vec<_>, _> = rows.iter().take(max).map(numbers).collect();
    Ok((all.map_err(failed)?, rows.len() > max))
}

/// Numbers that are missing in an inbox that is ordered by sequence.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct InboxGap {
    /// The aggregate.
    pub aggregate: String,
    /// The first missing number.
    pub from: i64,
    /// The last missing number.
    pub to: i64,
    /// The message behind the gap; `None` in a list of all gaps.
    pub next_id: Option<String>,
    /// When that message arrived, ISO 8601 in UTC; `None` in a list of all gaps.
    pub waiting_since: Option<String>,
}

impl InboxGap {
    /// How many numbers are missing.
    pub fn count(&self) -> u64 {
        u64::try_from(i128::from(self.to) - i128::from(self.from) + 1).unwrap_or(0)
    }
}

/// Which gaps are wanted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum GapScope<'a> {
    /// The first gap of each aggregate that waits for one.
    First,
    /// The same, of these aggregates.
    FirstOf(&'a [String]),
    /// Every gap. Reads all messages that wait.
    All,
}

/// The gaps of an inbox that is ordered by sequence, at most `max`, and how many there are.
///
/// # Errors
/// SQLSTATE PR121: there is no such inbox; PR124, PR125: it is not ordered by sequence. Any other error of the server
/// or of the connection.
pub async fn gaps(
    client: &Client,
    name: &str,
    scope: GapScope<'_>,
    max: usize,
) -> Result<(Vec<InboxGap>, u64), SourceError> {
    let failed = |e| SourceError::control(format!("read the gaps of inbox {name:?}"), e);
    let (columns, function, only) = match scope {
        GapScope::First => (SINCE, "inbox_ordering_gaps", None),
        GapScope::FirstOf(aggregates) => (SINCE, "inbox_ordering_gaps", Some(aggregates)),
        GapScope::All => ("NULL::text, NULL::text", "inbox_all_gaps", None),
    };
    let sql = format!(
        "SELECT g.aggregate_id, g.missing_from, g.missing_to, {columns}, count(*) OVER () \
         FROM postrider.{function}($1) g WHERE $3::text[] IS NULL OR g.aggregate_id = ANY ($3) \
         ORDER BY g.aggregate_id COLLATE \"C\", g.missing_from LIMIT $2"
    );
    let limit = i64::try_from(max).unwrap_or(i64::MAX);
    let rows = client.query(&sql, &[&name, &limit, &only]).await.map_err(failed)?;
    let gap = |row: &Row| -> Result<InboxGap, tokio_postgres::Error> {
        Ok(InboxGap {
            aggregate: row.try_get(0)?,
            from: row.try_get(1)?,
            to: row.try_get(2)?,
            next_id: row.try_get(3)?,
            waiting_since: row.try_get(4)?,
        })
    };
    let total = rows.first().map(|row| number(row, 5)).transpose().map_err(failed)?.unwrap_or(0);
    let all: Result<Vec<_>, _> = rows.iter().map(gap).collect();
    Ok((all.map_err(failed)?, total))
}

const SINCE: &str = "g.next_event_id, \
    to_char(g.waiting_since AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS\"Z\"')";

/// The table of a new inbox.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum InboxOrigin {
    /// It is created, in this schema; `None`: `postrider_inbox`.
    Created {
        /// The schema.
        schema: Option<String>,
    },
    /// It exists, and is adopted.
    Adopted {
        /// Its name as SQL, with its schema.
        table: String,
        /// The argument of `enable_inbox_tracking` and the column, where it is not the default. `None`: the table has
        /// no such column.
        columns: Vec<(&'static str, Option<String>)>,
    },
}

/// Which message is next.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum InboxRule {
    /// The next one of each aggregate.
    Order {
        /// What decides the order.
        by: InboxOrder,
        /// The first number of each aggregate; `None`: 1.
        first_sequence: Option<i64>,
    },
    /// The lowest priority number.
    Priorities {
        /// Name, lowest and highest number.
        tiers: Vec<(String, i16, i16)>,
        /// The priority of messages without one; `None`: 5.
        default: Option<i16>,
    },
}

/// An inbox to be created.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NewInbox {
    /// The name.
    pub name: String,
    /// Its table.
    pub origin: InboxOrigin,
    /// After how many failures a message is dead; `None`: the default of the function.
    pub max_retries: Option<u32>,
    /// How long processed messages are kept, 0: for ever; `None`: the default of the function. Unit: hours.
    pub retention_hours: Option<u32>,
    /// Order or priorities.
    pub rule: Option<InboxRule>,
    /// An inbox of this name that exists is left as it is.
    pub if_not_exists: bool,
}

impl NewInbox {
    /// The statements, in one transaction.
    pub fn sql(&self) -> String {
        let mut calls = vec![self.creation()];
        calls.extend(self.rule.as_ref().map(|rule| self.rule_call(rule)));
        let mut text = "BEGIN ISOLATION LEVEL READ COMMITTED;\n".to_owned();
        // Writing to a String does not fail.
        if self.if_not_exists {
            let name = literal(&self.name);
            let mut body = String::new();
            for call in &calls {
                writeln!(body, "        PERFORM {call};").unwrap_or_default();
            }
            let tag = tag_for(&body);
            writeln!(
                text,
                "DO {tag} BEGIN\n    IF NOT EXISTS (SELECT FROM postrider.inbox i WHERE i.name = {name}) THEN\n\
                 {body}    END IF;\nEND {tag};"
            )
            .unwrap_or_default();
        } else {
            for call in &calls {
                writeln!(text, "SELECT {call};").unwrap_or_default();
            }
        }
        text.push_str("COMMIT;");
        text
    }

    fn creation(&self) -> String {
        let mut arguments = vec![literal(&self.name)];
        let function = match &self.origin {
            InboxOrigin::Created { schema } => {
                arguments
                    .extend(schema.iter().map(|name| format!("p_schema => {}", literal(name))));
                "create_inbox"
            }
            InboxOrigin::Adopted { table, columns } => {
                arguments.push(literal(table));
                arguments.extend(columns.iter().map(|(argument, column)| {
                    let column = column.as_deref().map_or("NULL".to_owned(), literal);
                    format!("{argument} => {column}")
                }));
                "enable_inbox_tracking"
            }
        };
        arguments.extend(self.max_retries.map(|retries| format!("p_max_retries => {retries}")));
        arguments.extend(self.retention_hours.map(|hours| format!("p_retention_hours => {hours}")));
        format!("postrider.{function}({})", arguments.join(", "))
    }

    fn rule_call(&self, rule: &InboxRule) -> String {
        let name = literal(&self.name);
        match rule {
            InboxRule::Order { by, first_sequence } => {
                let first = first_sequence.map(|first| format!(", {first}")).unwrap_or_default();
                format!("postrider.enable_inbox_ordering({name}, '{}'{first})", by.name())
            }
            InboxRule::Priorities { tiers, default } => {
                // A name has only letters and digits: `enable_inbox_priority` checks it.
                let tier = |(name, low, high): &(String, i16, i16)| {
                    format!("\"{}\": [{low}, {high}]", name.replace(['"', '\\'], "?"))
                };
                let tiers: Vec<String> = tiers.iter().map(tier).collect();
                let tiers = literal(&format!("{{{}}}", tiers.join(", ")));
                let default = default.map(|number| format!(", {number}")).unwrap_or_default();
                format!("postrider.enable_inbox_priority({name}, {tiers}{default})")
            }
        }
    }
}

/// A quote for a body that does not have it.
fn tag_for(body: &str) -> String {
    let mut tag = "$create$".to_owned();
    let mut number = 0_u32;
    while body.contains(&tag) {
        number += 1;
        tag = format!("$create{number}$");
    }
    tag
}

/// Creates an inbox, or adopts a table, in one transaction.
///
/// # Errors
/// SQLSTATE PR122: the inbox or the table exists, or the table is adopted already; PR123: the table can't be adopted;
/// PR124: an adopted table has neither order nor priorities; 22023: an argument is out of bounds; 3F000, 42P01: there
/// is no such schema or table. Any other error of the server or of the connection. The session is of no use afterwards.
pub async fn create(client: &Client, new: &NewInbox) -> Result<(), SourceError> {
    let failed = |e| SourceError::control(format!("create inbox {:?}", new.name), e);
    client.batch_execute(&new.sql()).await.map_err(failed)
}

/// How many messages of a managed inbox are not processed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct OpenMessages {
    /// Neither processed nor dead.
    pub pending: u64,
    /// Dead.
    pub dead: u64,
}

impl OpenMessages {
    /// Neither number is higher than that of `other`.
    pub const fn is_within(self, other: Self) -> bool {
        self.pending <= other.pending && self.dead <= other.dead
    }
}

/// Counts the messages of an inbox that are not processed, in its table.
///
/// # Errors
/// SQLSTATE 42P01: the table does not exist. Any other error of the server or of the connection.
pub async fn open_messages(
    client: &Client,
    inbox: &InboxFacts,
) -> Result<OpenMessages, SourceError> {
    let failed =
        |e| SourceError::control(format!("count the messages of inbox {:?}", inbox.name), e);
    let sql = format!(
        "SELECT count(*) FILTER (WHERE NOT ({dead})), count(*) FILTER (WHERE {dead}) FROM {table} m \
         WHERE NOT ({processed})",
        dead = inbox.is_dead(),
        table = inbox.table.name,
        processed = inbox.is_processed()
    );
    let row = client.query_one(&sql, &[]).await.map_err(failed)?;
    let (pending, dead) = (number(&row, 0).map_err(failed)?, number(&row, 1).map_err(failed)?);
    Ok(OpenMessages { pending, dead })
}

/// How an inbox is dropped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DropScope {
    /// The table stays with its messages: it is adopted, or was asked to stay.
    KeepTable,
    /// The table does not exist any more.
    TableIsGone,
    /// With the table, if it has at most as many open messages as this; `None`: any number.
    WithTable(Option<OpenMessages>),
}

/// The end of a drop.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Dropped {
    /// The inbox is dropped, and with its table these messages.
    Done(OpenMessages),
    /// The table has more open messages by now: nothing was changed.
    Grown(OpenMessages),
}

/// Drops an inbox in one transaction. With its table: the table is locked, and its messages are counted, before.
///
/// # Errors
/// SQLSTATE 42501: the session's role does not own the table and the views; 55P03: other transactions use the table.
/// Any other error of the server or of the connection. The session is of no use afterwards.
pub async fn drop(
    client: &Client,
    inbox: &InboxFacts,
    scope: DropScope,
) -> Result<Dropped, SourceError> {
    let failed = |e| SourceError::control(format!("drop inbox {:?}", inbox.name), e);
    client.batch_execute("BEGIN ISOLATION LEVEL READ COMMITTED").await.map_err(failed)?;
    let mut lost = OpenMessages::default();
    if let DropScope::WithTable(agreed) = scope {
        let lock = format!("LOCK TABLE {} IN ACCESS EXCLUSIVE MODE", inbox.table.name);
        client.batch_execute(&lock).await.map_err(failed)?;
        lost = open_messages(client, inbox).await?;
        if agreed.is_some_and(|agreed| !lost.is_within(agreed)) {
            client.batch_execute("ROLLBACK").await.map_err(failed)?;
            return Ok(Dropped::Grown(lost));
        }
    }
    let cascades = scope != DropScope::KeepTable;
    let sql = "SELECT postrider.drop_inbox($1, false, $2)";
    client.query(sql, &[&inbox.name, &cascades]).await.map_err(failed)?;
    client.batch_execute("COMMIT").await.map_err(failed)?;
    Ok(Dropped::Done(lost))
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::expect;

    fn inbox(name: &str) -> NewInbox {
        NewInbox {
            name: name.to_owned(),
            origin: InboxOrigin::Created { schema: None },
            max_retries: None,
            retention_hours: None,
            rule: None,
            if_not_exists: false,
        }
    }

    #[test]
    fn an_inbox_is_created_by_statements_of_one_transaction() {
        expect![[r#"
            BEGIN ISOLATION LEVEL READ COMMITTED;
            SELECT postrider.create_inbox('mail');
            COMMIT;"#]]
        .assert_eq(&inbox("mail").sql());
        let ordered = NewInbox {
            origin: InboxOrigin::Created { schema: Some("\"s\"".to_owned()) },
            max_retries: Some(3),
            retention_hours: Some(0),
            rule: Some(InboxRule::Order { by: InboxOrder::Sequence, first_sequence: Some(-7) }),
            ..inbox("it's")
        };
        expect![[r#"
            BEGIN ISOLATION LEVEL READ COMMITTED;
            SELECT postrider.create_inbox('it''s', p_schema => '"s"', p_max_retries => 3, p_retention_hours => 0);
            SELECT postrider.enable_inbox_ordering('it''s', 'sequence', -7);
            COMMIT;"#]]
        .assert_eq(&ordered.sql());
        let adopted = NewInbox {
            origin: InboxOrigin::Adopted {
                table: "public.h".to_owned(),
                columns: vec![("p_id_column", Some("k".to_owned())), ("p_event_type_column", None)],
            },
            ..inbox("h")
        };
        expect![[r#"
            BEGIN ISOLATION LEVEL READ COMMITTED;
            SELECT postrider.enable_inbox_tracking('h', 'public.h', p_id_column => 'k', p_event_type_column => NULL);
            COMMIT;"#]]
        .assert_eq(&adopted.sql());
    }

    #[test]
    fn an_inbox_that_exists_is_left_as_it_is_whatever_its_name_contains() {
        let tiers = vec![("urgent".to_owned(), -3, 3), ("re\"st".to_owned(), 4, 9)];
        let new = NewInbox {
            rule: Some(InboxRule::Priorities { tiers, default: Some(5) }),
            if_not_exists: true,
            ..inbox("a$create$b")
        };
        expect![[r#"
            BEGIN ISOLATION LEVEL READ COMMITTED;
            DO $create1$ BEGIN
                IF NOT EXISTS (SELECT FROM postrider.inbox i WHERE i.name = 'a$create$b') THEN
                    PERFORM postrider.create_inbox('a$create$b');
                    PERFORM postrider.enable_inbox_priority('a$create$b', '{"urgent": [-3, 3], "re?st": [4, 9]}', 5);
                END IF;
            END $create1$;
            COMMIT;"#]]
        .assert_eq(&new.sql());
    }

    #[test]
    fn a_gap_counts_its_numbers_without_an_overflow() {
        let gap = |from, to| InboxGap {
            aggregate: "a".to_owned(),
            from,
            to,
            next_id: None,
            waiting_since: None,
        };
        assert_eq!(gap(2, 2).count(), 1);
        assert_eq!(gap(i64::MIN, i64::MAX - 1).count(), u64::MAX);
        assert_eq!(gap(3, 1).count(), 0);
    }
}
