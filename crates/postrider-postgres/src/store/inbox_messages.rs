//! Messages of an inbox as an operator changes them: dead ones are listed, messages are replayed, skipped and deleted,
//! and missing numbers are given up.
//!
//! Replay, skip and gaps are functions of the SQL toolkit, and their errors have hints. What an operator was shown
//! before the change is checked again when the rows are locked: a message that was processed since is not replayed.

use super::inboxes::{InboxFacts, InboxGap, InboxOrder};
use super::log_maintenance::number;
use crate::names::ident;
use pg_replication::error::SourceError;
use std::time::Duration;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Row};

/// The most bytes of a payload that are read, as text.
pub const PAYLOAD_MAX: u64 = 256 << 10;

/// Which dead messages.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct DeadFilter<'a> {
    /// Those behind this id, in the order of the ids.
    pub after: Option<&'a str>,
    /// Those of this type; an empty text: those without a type.
    pub event_type: Option<&'a str>,
}

/// The payload of a message.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum MessagePayload {
    /// JSON.
    Json(String),
    /// Bytes.
    Bytes(Vec<u8>),
    /// It has more than [`PAYLOAD_MAX`] bytes.
    TooLarge,
}

/// A dead message.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DeadMessage {
    /// Its id, as text.
    pub id: String,
    /// Its type.
    pub event_type: Option<String>,
    /// Its aggregate; `None` also in an adopted table.
    pub aggregate: Option<String>,
    /// How often it has failed.
    pub attempts: i64,
    /// The last error.
    pub error: Option<String>,
    /// When it arrived, ISO 8601 in UTC.
    pub received_at: Option<String>,
    /// When it became dead, ISO 8601 in UTC; `None` in an adopted table, which does not say so.
    pub dead_at: Option<String>,
    /// Size of the payload as text or bytes; `None` if there is none, or the table is adopted. Unit: bytes.
    pub payload_bytes: Option<u64>,
    /// The payload, if it was asked for.
    pub payload: Option<MessagePayload>,
}

/// A time column in ISO 8601.
fn iso(column: &str) -> String {
    format!("to_char(m.{column} AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS\"Z\"')")
}

/// Dead messages in the order of their ids, at most `max`. Reads the view `dlq_NAME`. The payload of a managed inbox is
/// read only with `payload`.
///
/// # Errors
/// SQLSTATE 22P02, 22003: `after` is no id of this table. Any other error of the server or of the connection.
pub async fn dead(
    client: &Client,
    inbox: &InboxFacts,
    filter: DeadFilter<'_>,
    max: usize,
    payload: bool,
) -> Result<Vec<DeadMessage>, SourceError> {
    let failed =
        |e| SourceError::control(format!("read the dead messages of inbox {:?}", inbox.name), e);
    let columns = &inbox.columns;
    let (aggregate, dead_at, size, body) = if inbox.is_managed {
        let size = "coalesce(octet_length(m.payload::text), octet_length(m.payload_bytes))";
        let body = if payload {
            format!(
                "CASE WHEN {size} <= {PAYLOAD_MAX} THEN m.payload::text END, \
                 CASE WHEN {size} <= {PAYLOAD_MAX} AND m.payload IS NULL THEN m.payload_bytes END"
            )
        } else {
            NO_PAYLOAD.to_owned()
        };
        ("m.aggregate_id".to_owned(), iso("dead_at"), format!("{size}::int8"), body)
    } else {
        (
            "NULL::text".to_owned(),
            "NULL::text".to_owned(),
            "NULL::int8".to_owned(),
            NO_PAYLOAD.to_owned(),
        )
    };
    let event_type = match &columns.event_type {
        Some(column) => format!("m.{}::text", ident(column)),
        None => "NULL::text".to_owned(),
    };
    let id = ident(&columns.id);
    let sql = format!(
        "SELECT m.{id}::text, {event_type}, {aggregate}, m.{retries}::int8, m.{error}::text, {received}, {dead_at}, \
           {size}, {body} FROM postrider_inbox.{view} m \
         WHERE ($1::text IS NULL OR m.{id} > $1::text::{id_type}) AND ($2::text IS NULL OR {type_text} = $2) \
         ORDER BY m.{id} LIMIT $3",
        retries = ident(&columns.retry_count),
        error = ident(&columns.error),
        received = iso(&ident(&columns.received_at)),
        view = ident(&format!("dlq_{}", inbox.name)),
        id_type = inbox.id_type(),
        type_text = inbox.type_text(),
    );
    let limit = i64::try_from(max).unwrap_or(i64::MAX);
    let rows =
        client.query(&sql, &[&filter.after, &filter.event_type, &limit]).await.map_err(failed)?;
    let message = |row: &Row| dead_message(row, payload);
    rows.iter().map(message).collect::<Result<_, _>>().map_err(failed)
}

const NO_PAYLOAD: &str = "NULL::text, NULL::bytea";

fn dead_message(row: &Row, payload: bool) -> Result<DeadMessage, tokio_postgres::Error> {
    let payload_bytes = row.try_get::<_, Option<i64>>(7)?.and_then(|size| u64::try_from(size).ok());
    let json: Option<String> = row.try_get(8)?;
    let bytes: Option<Vec<u8>> = row.try_get(9)?;
    let body = match (json, bytes) {
        (Some(json), _) => Some(MessagePayload::Json(json)),
        (None, Some(bytes)) => Some(MessagePayload::Bytes(bytes)),
        (None, None) if payload && payload_bytes.is_some() => Some(MessagePayload::TooLarge),
        (None, None) => None,
    };
    Ok(DeadMessage {
        id: row.try_get(0)?,
        event_type: row.try_get(1)?,
        aggregate: row.try_get(2)?,
        attempts: row.try_get::<_, Option<i64>>(3)?.unwrap_or(0),
        error: row.try_get(4)?,
        received_at: row.try_get(5)?,
        dead_at: row.try_get(6)?,
        payload_bytes,
        payload: body,
    })
}

/// Counts the dead messages of a type, or all.
///
/// # Errors
/// An error of the server or of the connection.
pub async fn count_dead(
    client: &Client,
    inbox: &InboxFacts,
    event_type: Option<&str>,
) -> Result<u64, SourceError> {
    let failed =
        |e| SourceError::control(format!("count the dead messages of inbox {:?}", inbox.name), e);
    let sql = format!(
        "SELECT count(*) FROM {} m WHERE {} AND ($1::text IS NULL OR {} = $1)",
        inbox.table.name,
        inbox.is_dead(),
        inbox.type_text()
    );
    let row = client.query_one(&sql, &[&event_type]).await.map_err(failed)?;
    number(&row, 0).map_err(failed)
}

/// What a message is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MessageState {
    /// Neither processed nor dead.
    Pending,
    /// Pending, and a worker has it with a lease.
    Leased,
    /// It has failed as often as it may.
    Dead,
    /// Processed, or skipped.
    Processed,
}

/// A message that an operator has named.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NamedMessage {
    /// Its id, as the table has it.
    pub id: String,
    /// Its state.
    pub state: MessageState,
}

/// The messages of these ids that exist, in the order of their ids.
///
/// # Errors
/// SQLSTATE 22P02, 22003: one of the texts is no id of this table. Any other error of the server or of the connection.
pub async fn named(
    client: &Client,
    inbox: &InboxFacts,
    ids: &[String],
) -> Result<Vec<NamedMessage>, SourceError> {
    states(client, inbox, ids, "").await
}

async fn states(
    client: &Client,
    inbox: &InboxFacts,
    ids: &[String],
    lock: &str,
) -> Result<Vec<NamedMessage>, SourceError> {
    let failed =
        |e| SourceError::control(format!("look for messages of inbox {:?}", inbox.name), e);
    let id = ident(&inbox.columns.id);
    let leased = if inbox.is_managed { "m.claim IS NOT NULL" } else { "false" };
    let sql = format!(
        "SELECT m.{id}::text, {processed}, {dead}, {leased} FROM {table} m WHERE {these} ORDER BY m.{id} {lock}",
        processed = inbox.is_processed(),
        dead = inbox.is_dead(),
        table = inbox.table.name,
        these = inbox.id_in("$1"),
    );
    let rows = client.query(&sql, &[&ids]).await.map_err(failed)?;
    let message = |row: &Row| -> Result<NamedMessage, tokio_postgres::Error> {
        let state = match (row.try_get(1)?, row.try_get(2)?, row.try_get(3)?) {
            (true, _, _) => MessageState::Processed,
            (false, true, _) => MessageState::Dead,
            (false, false, true) => MessageState::Leased,
            (false, false, false) => MessageState::Pending,
        };
        Ok(NamedMessage { id: row.try_get(0)?, state })
    };
    rows.iter().map(message).collect::<Result<_, _>>().map_err(failed)
}

/// Which of the messages a replay takes, by their state when they are locked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReplayScope {
    /// Only dead ones.
    Dead,
    /// Those that are not processed.
    NotProcessed,
    /// Also processed ones: their effects happen again.
    Any,
}

impl ReplayScope {
    const fn takes(self, state: MessageState) -> bool {
        match (self, state) {
            (Self::Any, _)
            | (_, MessageState::Dead)
            | (Self::NotProcessed, MessageState::Pending | MessageState::Leased) => true,
            (Self::Dead | Self::NotProcessed, _) => false,
        }
    }
}

/// Makes messages pending again, in one transaction, and returns how many. A message whose state is not of `scope` by
/// now is left as it is.
///
/// The rows of an ordered inbox's aggregates are locked before its messages, as the functions of the toolkit do it.
///
/// # Errors
/// SQLSTATE PR121: there is no such inbox; 55P03: another transaction has one of the messages. Any other error of the
/// server or of the connection. The session is of no use afterwards.
pub async fn replay(
    client: &Client,
    inbox: &InboxFacts,
    ids: &[String],
    scope: ReplayScope,
) -> Result<u64, SourceError> {
    let failed = |e| SourceError::control(format!("replay messages of inbox {:?}", inbox.name), e);
    client.batch_execute("BEGIN ISOLATION LEVEL READ COMMITTED").await.map_err(failed)?;
    if inbox.order.is_some() {
        let sql = format!(
            "SELECT FROM postrider.inbox_order o WHERE o.inbox = $1 AND o.aggregate_id IN ( \
             SELECT m.aggregate_id FROM {} m WHERE {}) ORDER BY o.aggregate_id FOR UPDATE",
            inbox.table.name,
            inbox.id_in("$2")
        );
        client.query(&sql, &[&inbox.name, &ids]).await.map_err(failed)?;
    }
    let locked = states(client, inbox, ids, "FOR UPDATE").await?;
    let taken: Vec<String> = locked
        .into_iter()
        .filter(|message| scope.takes(message.state))
        .map(|message| message.id)
        .collect();
    let sql = "SELECT postrider.replay_inbox_messages($1, $2)::int8";
    let row = client.query_one(sql, &[&inbox.name, &taken]).await.map_err(failed)?;
    let replayed = number(&row, 0).map_err(failed)?;
    client.batch_execute("COMMIT").await.map_err(failed)?;
    Ok(replayed)
}

/// Gives messages up, in one transaction, and returns how many. Those that are processed by now are left as they are.
///
/// # Errors
/// SQLSTATE PR114: a message of an ordered inbox is not the next one of its aggregate; PR124: the table is adopted;
/// 22023: the reason is empty; 55P03: another transaction has one of the messages. Any other error of the server or of
/// the connection.
pub async fn skip(
    client: &Client,
    inbox: &InboxFacts,
    ids: &[String],
    reason: &str,
) -> Result<u64, SourceError> {
    let failed = |e| SourceError::control(format!("skip messages of inbox {:?}", inbox.name), e);
    let sql = "SELECT postrider.skip_inbox_messages($1, $2, $3)::int8";
    let row = client.query_one(sql, &[&inbox.name, &ids, &reason]).await.map_err(failed)?;
    number(&row, 0).map_err(failed)
}

/// Which messages are deleted. Pending ones never are.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Purge {
    /// Those that were processed before this time. Unit: microseconds since 1970 of the server's clock.
    ProcessedBefore(i64),
    /// Those that became dead before this time. Unit: microseconds since 1970 of the server's clock. An adopted table
    /// does not say when a message became dead.
    DeadBefore(i64),
    /// Those of these that are dead.
    DeadIds(Vec<String>),
}

impl Purge {
    /// The condition of a message `m`, with the value for `$1`.
    fn condition(&self, inbox: &InboxFacts) -> (String, &(dyn ToSql + Sync)) {
        let before = |column: &str| {
            format!("m.{column} < timestamptz 'epoch' + $1::int8 * interval '1 microsecond'")
        };
        match self {
            Self::ProcessedBefore(time) => (before(&ident(&inbox.columns.processed_at)), time),
            Self::DeadBefore(time) => {
                (format!("{} AND {}", inbox.is_dead(), before("dead_at")), time)
            }
            Self::DeadIds(ids) => (format!("{} AND {}", inbox.is_dead(), inbox.id_in("$1")), ids),
        }
    }
}

/// The time of the server's clock, less a duration. Unit: microseconds since 1970.
///
/// # Errors
/// An error of the server or of the connection.
pub async fn time_before(client: &Client, ago: Duration) -> Result<i64, SourceError> {
    let failed = |e| SourceError::control("read the server's clock", e);
    let sql = "SELECT floor(extract(epoch FROM clock_timestamp()) * 1000000)::int8";
    let now: i64 =
        client.query_one(sql, &[]).await.and_then(|row| row.try_get(0)).map_err(failed)?;
    Ok(now.saturating_sub(i64::try_from(ago.as_micros()).unwrap_or(i64::MAX)))
}

/// Counts what a purge would delete: messages, and their aggregates if the inbox has an order.
///
/// # Errors
/// SQLSTATE 22P02, 22003: one of the texts is no id of this table. Any other error of the server or of the connection.
pub async fn count_purged(
    client: &Client,
    inbox: &InboxFacts,
    purge: &Purge,
) -> Result<(u64, u64), SourceError> {
    let failed = |e| {
        SourceError::control(format!("count the messages to delete from inbox {:?}", inbox.name), e)
    };
    let (condition, value) = purge.condition(inbox);
    let aggregates =
        if inbox.order.is_some() { "count(DISTINCT m.aggregate_id)" } else { "0::int8" };
    let sql =
        format!("SELECT count(*), {aggregates} FROM ONLY {} m WHERE {condition}", inbox.table.name);
    let row = client.query_one(&sql, &[value]).await.map_err(failed)?;
    Ok((number(&row, 0).map_err(failed)?, number(&row, 1).map_err(failed)?))
}

/// Deletes messages in a transaction of its own, at most `max`, and returns how many. Messages that another transaction
/// has are passed over: if fewer than `max` were deleted, [`count_purged`] says whether there are such.
///
/// # Errors
/// SQLSTATE 42501: the session's role may not delete from the table. Any other error of the server or of the
/// connection.
pub async fn purge(
    client: &Client,
    inbox: &InboxFacts,
    purge: &Purge,
    max: u32,
) -> Result<u64, SourceError> {
    let failed = |e| SourceError::control(format!("delete messages of inbox {:?}", inbox.name), e);
    let (condition, value) = purge.condition(inbox);
    let sql = format!(
        "DELETE FROM ONLY {table} t WHERE t.ctid = ANY (ARRAY(SELECT m.ctid FROM ONLY {table} m WHERE {condition} \
         LIMIT {max} FOR UPDATE SKIP LOCKED))",
        table = inbox.table.name
    );
    client.execute(&sql, &[value]).await.map_err(failed)
}

/// The end of an attempt to skip a gap.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum GapSkip {
    /// The aggregate goes on; how many numbers are missing.
    Done(u64),
    /// The aggregate does not wait for these numbers any more: nothing was changed.
    Changed,
}

/// Gives up waiting for the numbers of a gap that an operator was shown. Numbers that have arrived since are not given
/// up, and no other numbers are.
///
/// # Errors
/// SQLSTATE PR121, PR124, PR125: there is no such inbox, or it is not ordered by sequence. Any other error of the
/// server or of the connection. The session is of no use afterwards.
pub async fn skip_gap(
    client: &Client,
    inbox: &InboxFacts,
    gap: &InboxGap,
) -> Result<GapSkip, SourceError> {
    let failed =
        |e| SourceError::control(format!("skip missing numbers of inbox {:?}", inbox.name), e);
    client.batch_execute("BEGIN ISOLATION LEVEL READ COMMITTED").await.map_err(failed)?;
    // While its row is locked, nobody moves the aggregate on.
    let sql = "SELECT o.last_seq FROM postrider.inbox_order o \
               WHERE o.inbox = $1 AND o.aggregate_id = $2 FOR UPDATE";
    let row = client.query_opt(sql, &[&inbox.name, &gap.aggregate]).await.map_err(failed)?;
    let last: Option<i64> = row.map(|row| row.try_get(0)).transpose().map_err(failed)?;
    let last = last.unwrap_or_else(|| inbox.first_sequence.saturating_sub(1));
    let mut outcome = GapSkip::Changed;
    if inbox.order != Some(InboxOrder::Sequence) || last.saturating_add(1) == gap.from {
        let sql = "SELECT postrider.skip_inbox_gap($1, $2)";
        let row = client.query_one(sql, &[&inbox.name, &gap.aggregate]).await.map_err(failed)?;
        let missing = number(&row, 0).map_err(failed)?;
        // Zero: a message with the first number has arrived. More: the message behind the gap is gone.
        if (1..=gap.count()).contains(&missing) {
            outcome = GapSkip::Done(missing);
        }
    }
    let end = if outcome == GapSkip::Changed { "ROLLBACK" } else { "COMMIT" };
    client.batch_execute(end).await.map_err(failed)?;
    Ok(outcome)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_replay_takes_processed_messages_only_if_it_was_asked_to() {
        use MessageState::{Dead, Leased, Pending, Processed};
        let takes =
            |scope: ReplayScope| [Pending, Leased, Dead, Processed].map(|state| scope.takes(state));
        assert_eq!(takes(ReplayScope::Dead), [false, false, true, false]);
        assert_eq!(takes(ReplayScope::NotProcessed), [true, true, true, false]);
        assert_eq!(takes(ReplayScope::Any), [true; 4]);
    }
}
