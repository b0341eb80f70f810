//! How long the oldest ready row of a polled table has waited: what the lag of polling is made from.
//!
//! Reads only, on any session: the answer does not depend on claims, and is there when no claim can be made.

use super::order;
use super::spec::{Marks, PollSpec};
use super::sql::ready;
use super::table::Shape;
use crate::names::ident;
use pg_replication::error::{SourceError, SourceErrorKind};
use std::time::Duration;
use tokio_postgres::Client;

/// The type of a column whose value is a moment, without a look at the session's time zone.
const MOMENT: &str = "timestamp with time zone";

/// The question for the oldest ready row of one table.
#[derive(Clone, Debug)]
pub struct OldestReady {
    sql: String,
}

impl OldestReady {
    /// The question, for a table of this description.
    pub(super) fn of(spec: &PollSpec, shape: &Shape) -> Self {
        let moment =
            |name: &str| shape.column(name).is_some_and(|column| column.type_name == MOMENT);
        let (table, ready) = (&spec.table, ready(spec, shape, "o"));
        let Some(time) = spec.time.as_deref().filter(|time| moment(time)) else {
            let sql = format!("SELECT NULL::int8 FROM {table} AS o WHERE {ready} LIMIT 1");
            return Self { sql };
        };
        // A row that was delayed, or has failed before, is ready since then.
        let later = match &spec.marks {
            Marks::Commerce { available_at, .. } => Some(available_at),
            Marks::Sqlgarden { last_attempt_at, .. } => Some(last_attempt_at),
            Marks::Delete | Marks::PublishedAt { .. } | Marks::Gcx { .. } => None,
        };
        let columns = [Some(time), later.map(String::as_str).filter(|name| moment(name))];
        let columns: Vec<String> =
            columns.iter().flatten().map(|name| format!("o.{}", ident(name))).collect();
        let since = format!("greatest({})", columns.join(", "));
        let age = |since: &str| {
            format!("(extract(epoch FROM clock_timestamp() - {since}) * 1000000)::int8")
        };
        // With a number for an id the first row by its index is the oldest; else each ready row has to be looked at.
        let sql = if shape.column(&spec.id).is_some_and(|column| column.number) {
            let order = order::id(spec, shape, "o");
            format!(
                "SELECT {} FROM {table} AS o WHERE {ready} ORDER BY {order} LIMIT 1",
                age(&since)
            )
        } else {
            let oldest = format!("min({since})");
            format!("SELECT {} FROM {table} AS o WHERE {ready} HAVING count(*) > 0", age(&oldest))
        };
        Self { sql }
    }

    /// Whether a row is ready, and for how long where its table tells.
    ///
    /// # Errors
    /// What the server says.
    pub async fn ask(&self, client: &Client) -> Result<Option<Option<Duration>>, SourceError> {
        let doing = "look for the oldest row of the outbox that is ready";
        let row = client.query_opt(&self.sql, &[]).await;
        let Some(row) = row.map_err(|error| SourceError::control(doing, error))? else {
            return Ok(None);
        };
        let micros: Option<i64> = row
            .try_get(0)
            .map_err(|error| SourceError::new(SourceErrorKind::Protocol, doing).caused_by(error))?;
        Ok(Some(micros.map(|micros| Duration::from_micros(u64::try_from(micros).unwrap_or(0)))))
    }
}
