//! The parked table as an operator sees it: lists, the record of one event, and requests.
//!
//! Only requests are written. The relay that owns the pipeline carries them out, now or at its next start. An existing
//! request is not overwritten.

use super::parked::{CHANNEL, columns, fetch_any, micros, position, state};
use crate::catalog::BASE_TYPE_SQL;
use crate::names::TableName;
use pg_replication::error::SourceError;
use postrider_core::event::Position;
use postrider_core::parked::{Request, State};
use postrider_core::record::OwnedRecord;
use postrider_core::store::PipelineKey;
use std::time::Duration;
use tokio_postgres::types::PgLsn;
use tokio_postgres::{Client, Row};

/// Resolves domains to their base type.
const JSON_TYPE: &str = "\
WITH RECURSIVE base AS ( \
  SELECT t.oid, t.typbasetype, t.typname FROM pg_catalog.pg_attribute a \
  JOIN pg_catalog.pg_class c ON c.oid = a.attrelid JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace \
  JOIN pg_catalog.pg_type t ON t.oid = a.atttypid \
  WHERE n.nspname = $1::text AND c.relname = $2::text AND a.attname = $3::text AND NOT a.attisdropped \
  UNION ALL \
  SELECT t.oid, t.typbasetype, t.typname FROM base b JOIN pg_catalog.pg_type t ON t.oid = b.typbasetype) \
SELECT typname::text FROM base WHERE typbasetype = 0 AND typname IN ('json', 'jsonb')";

/// `json` or `jsonb`, if the column has that type or a domain over it.
///
/// # Errors
/// An error of the server or of the connection.
pub async fn json_type(
    client: &Client,
    table: &TableName,
    column: &str,
) -> Result<Option<String>, SourceError> {
    let failed = |e| SourceError::control("read the type of the payload column", e);
    let row = client.query_opt(JSON_TYPE, &[&table.schema, &table.name, &column]).await;
    row.map_err(failed)?.map(|row| row.try_get(0).map_err(failed)).transpose()
}

/// Which columns of the outbox are `character(n)`, or a domain over it. Trailing blanks of such values do not count
/// when two of them are compared.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Padded {
    /// The event's id.
    pub id: bool,
    /// The aggregate's type.
    pub aggregate_type: bool,
    /// The aggregate's id.
    pub aggregate_id: bool,
}

impl Padded {
    /// Reads the types of these columns, in the order of the fields; a column that does not exist is not padded.
    ///
    /// # Errors
    /// An error of the server or of the connection.
    pub async fn read(
        client: &Client,
        table: &TableName,
        columns: [Option<&str>; 3],
    ) -> Result<Self, SourceError> {
        let failed = |e| SourceError::control("read the types of the outbox table's columns", e);
        let sql = format!(
            "SELECT a.attname::text FROM pg_catalog.pg_class c \
             JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace \
             JOIN pg_catalog.pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped \
             {BASE_TYPE_SQL} \
             WHERE n.nspname = $1::text AND c.relname = $2::text \
               AND base.oid = 'pg_catalog.bpchar'::pg_catalog.regtype"
        );
        let rows = client.query(&sql, &[&table.schema, &table.name]).await.map_err(failed)?;
        let names: Result<Vec<String>, _> = rows.iter().map(|row| row.try_get(0)).collect();
        let names = names.map_err(failed)?;
        let [id, aggregate_type, aggregate_id] =
            columns.map(|column| names.iter().any(|name| Some(name.as_str()) == column));
        Ok(Self { id, aggregate_type, aggregate_id })
    }

    /// `text` without the trailing blanks that are not compared, if its column is padded.
    pub fn bare(text: &str, padded: bool) -> &str {
        if padded { text.trim_end_matches(' ') } else { text }
    }

    /// The SQL expression for `column` of the parked table without the blanks that are not compared.
    fn sql(column: &str, padded: bool) -> String {
        if padded { format!("pg_catalog.rtrim({column})") } else { column.to_owned() }
    }
}

/// Which events are selected. A field that is left empty does not restrict the selection.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Filter {
    /// Events at these positions, or with the ids of [`Filter::event_ids`].
    pub positions: Vec<Position>,
    /// Events of these ids.
    pub event_ids: Vec<String>,
    /// Type and id of the aggregate.
    pub aggregate: Option<(String, String)>,
    /// The error code.
    pub error_code: Option<String>,
    /// Parked for longer than this.
    pub older_than: Option<Duration>,
    /// In one of these states; empty for any.
    pub states: Vec<State>,
}

/// One event, without its record. Times are UTC, `2026-01-02T03:04:05Z`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ParkedEvent {
    /// The event's position, which identifies the event.
    pub position: Position,
    /// The event's state.
    pub state: State,
    /// The event's id, if it has one.
    pub event_id: Option<String>,
    /// The event's type, if it has one.
    pub event_type: Option<String>,
    /// Type and id of the event's aggregate, if they are known.
    pub aggregate: Option<(String, String)>,
    /// Whether later events of its aggregate wait for it.
    pub blocks: bool,
    /// The event's topic; empty if none could be determined.
    pub topic: String,
    /// Bytes of the payload, as long as the payload is kept.
    pub payload_bytes: Option<i64>,
    /// Failed attempts.
    pub attempts: i32,
    /// When the next attempt is due.
    pub next_attempt_at: Option<String>,
    /// The error code.
    pub error_code: Option<String>,
    /// The error's text.
    pub error: Option<String>,
    /// When its transaction was committed.
    pub commit_time: Option<String>,
    /// When the event was parked.
    pub parked_at: Option<String>,
    /// When the event was published or skipped.
    pub resolved_at: Option<String>,
    /// A later event of its aggregate that was published before it.
    pub overtaken_by: Option<Position>,
    /// The request that has not been carried out yet.
    pub requested: Option<OperatorAction>,
    /// The last request that was carried out or declined.
    pub acted: Option<OperatorAction>,
    /// The request in `acted` could not be carried out.
    pub declined: bool,
}

/// An action of an operator.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct OperatorAction {
    /// `retry`, `skip` or `replace`.
    pub what: String,
    /// Database role and operating system user.
    pub by: Option<String>,
    /// When it was requested, or carried out.
    pub at: Option<String>,
    /// The reason that the operator gave.
    pub reason: Option<String>,
}

/// The columns of [`ParkedEvent`], in order; `{…}` is a time.
const COLUMNS: &str = "\
commit_lsn, ordinal, state, event_id, event_type, aggregate_type, aggregate_id, blocks, topic, \
pg_catalog.octet_length(value)::pg_catalog.int8, attempts, {next_attempt_at}, error_code, error, \
{commit_time}, {parked_at}, {resolved_at}, overtaken_lsn, overtaken_ordinal, requested_action, \
requested_by, {requested_at}, requested_reason, acted_action, acted_by, {acted_at}, acted_reason, \
acted_declined";

/// `{…}` is a column whose trailing blanks may not count.
const MATCHES: &str = "\
pipeline = $1 AND shard = $11 \
AND (pg_catalog.cardinality($2::pg_catalog.pg_lsn[]) + pg_catalog.cardinality($4::pg_catalog.text[]) = 0 \
  OR (commit_lsn, ordinal) IN (SELECT * FROM unnest($2::pg_catalog.pg_lsn[], $3::pg_catalog.int8[])) \
  OR {event_id} = ANY ($4)) \
AND ($5::pg_catalog.text IS NULL \
  OR {aggregate_type} = $5 AND {aggregate_id} = $6::pg_catalog.text) \
AND ($7::pg_catalog.text IS NULL OR error_code = $7) \
AND ($8::pg_catalog.int8 IS NULL \
  OR parked_at < pg_catalog.now() - $8::pg_catalog.int8 * interval '1 microsecond') \
AND (pg_catalog.cardinality($9::pg_catalog.text[]) = 0 OR state = ANY ($9))";

/// Lists the events that `filter` selects, in order, at most `limit`.
///
/// # Errors
/// An error of the server or of the connection.
pub async fn list(
    client: &Client,
    key: &PipelineKey,
    filter: &Filter,
    padded: Padded,
    limit: i64,
) -> Result<Vec<ParkedEvent>, SourceError> {
    let failed = |e| SourceError::control(format!("list the parked events of pipeline {key}"), e);
    let columns_sql = COLUMNS
        .replace('{', "pg_catalog.to_char(")
        .replace('}', " AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS\"Z\"')");
    let matches = MATCHES
        .replace("{event_id}", &Padded::sql("event_id", padded.id))
        .replace("{aggregate_type}", &Padded::sql("aggregate_type", padded.aggregate_type))
        .replace("{aggregate_id}", &Padded::sql("aggregate_id", padded.aggregate_id));
    let sql = format!(
        "SELECT {columns_sql} FROM postrider.parked WHERE {matches} \
         ORDER BY commit_lsn, ordinal LIMIT $10"
    );
    let (lsns, ordinals) = columns(&filter.positions);
    let event_ids: Vec<&str> =
        filter.event_ids.iter().map(|id| Padded::bare(id, padded.id)).collect();
    let aggregate = filter.aggregate.as_ref().map(|(kind, id)| {
        (Padded::bare(kind, padded.aggregate_type), Padded::bare(id, padded.aggregate_id))
    });
    let (kind, id) = aggregate.unzip();
    let states: Vec<&str> = filter.states.iter().map(|state| state.name()).collect();
    let older = filter.older_than.map(micros);
    let rows = client
        .query(
            &sql,
            &[
                &key.pipeline,
                &lsns,
                &ordinals,
                &event_ids,
                &kind,
                &id,
                &filter.error_code,
                &older,
                &states,
                &limit,
                &key.shard,
            ],
        )
        .await
        .map_err(failed)?;
    rows.iter().map(|row| listed(row).map_err(failed)).collect()
}

fn listed(row: &Row) -> Result<ParkedEvent, tokio_postgres::Error> {
    let kind: Option<String> = row.try_get(5)?;
    let overtaken = row.try_get::<_, Option<PgLsn>>(17)?.zip(row.try_get::<_, Option<i64>>(18)?);
    Ok(ParkedEvent {
        position: position(row.try_get(0)?, row.try_get(1)?),
        state: state(row.try_get(2)?),
        event_id: row.try_get(3)?,
        event_type: row.try_get(4)?,
        aggregate: kind.zip(row.try_get(6)?),
        blocks: row.try_get(7)?,
        topic: row.try_get(8)?,
        payload_bytes: row.try_get(9)?,
        attempts: row.try_get(10)?,
        next_attempt_at: row.try_get(11)?,
        error_code: row.try_get(12)?,
        error: row.try_get(13)?,
        commit_time: row.try_get(14)?,
        parked_at: row.try_get(15)?,
        resolved_at: row.try_get(16)?,
        overtaken_by: overtaken.map(|(lsn, ordinal)| position(lsn, ordinal)),
        requested: action(row, 19)?,
        acted: action(row, 23)?,
        declined: row.try_get(27)?,
    })
}

fn action(row: &Row, first: usize) -> Result<Option<OperatorAction>, tokio_postgres::Error> {
    let Some(what) = row.try_get(first)? else { return Ok(None) };
    let (by, at) = (row.try_get(first + 1)?, row.try_get(first + 2)?);
    Ok(Some(OperatorAction { what, by, at, reason: row.try_get(first + 3)? }))
}

/// Reads the record of one event in any state; `None` if there is no such row.
///
/// # Errors
/// An error of the server or of the connection.
pub async fn record(
    client: &Client,
    key: &PipelineKey,
    position: Position,
) -> Result<Option<OwnedRecord>, SourceError> {
    let mut found = fetch_any(client, key, &[position]).await?;
    Ok(found.pop().map(|(_, record)| record))
}

/// A request and its author.
#[derive(Clone, Copy)]
pub struct NewRequest<'a> {
    /// The requested action.
    pub request: Request,
    /// The operating system user; the server adds the database role.
    pub by: &'a str,
    /// Why.
    pub reason: Option<&'a str>,
    /// The new payload of [`Request::Replace`], and of nothing else.
    pub value: Option<&'a [u8]>,
}

/// Writes a request into these rows and notifies the relays of the pipeline. Returns the rows that it was written into,
/// in order: rows that are resolved, deleted, or have a request already are left out.
///
/// # Errors
/// An error of the server or of the connection.
pub async fn write_requests(
    client: &Client,
    key: &PipelineKey,
    positions: &[Position],
    request: &NewRequest<'_>,
) -> Result<Vec<Position>, SourceError> {
    let failed = |e| SourceError::control(format!("write requests for pipeline {key}"), e);
    let sql = format!(
        "WITH asked AS ( \
           UPDATE postrider.parked p SET requested_action = $4, \
             requested_by = session_user::pg_catalog.text || ' (' || $5::pg_catalog.text || ')', \
             requested_at = pg_catalog.now(), requested_reason = $6, requested_value = $7 \
           FROM unnest($2::pg_catalog.pg_lsn[], $3::pg_catalog.int8[]) AS w(commit_lsn, ordinal) \
           WHERE p.pipeline = $1 AND p.shard = $8 AND p.commit_lsn = w.commit_lsn AND p.ordinal = w.ordinal \
             AND p.requested_action IS NULL AND p.state NOT IN ('done', 'skipped') \
           RETURNING p.commit_lsn, p.ordinal) \
         SELECT commit_lsn, ordinal, pg_catalog.pg_notify('{CHANNEL}', $1)::pg_catalog.text \
         FROM asked ORDER BY commit_lsn, ordinal"
    );
    let (lsns, ordinals) = columns(positions);
    let action = request.request.name();
    let rows = client
        .query(
            &sql,
            &[
                &key.pipeline,
                &lsns,
                &ordinals,
                &action,
                &request.by,
                &request.reason,
                &request.value,
                &key.shard,
            ],
        )
        .await
        .map_err(failed)?;
    let place = |row: &Row| Ok(position(row.try_get(0)?, row.try_get(1)?));
    rows.iter().map(|row| place(row).map_err(failed)).collect()
}
