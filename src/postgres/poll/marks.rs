//! Marks on rows that the stream brought (`poll.mark_streamed`; always in mode `auto`): by their ids, so that an
//! application's own cleanup and dashboards go on working, and polling knows what is published.

use super::settle::success;
use super::spec::{Marks, PollSpec};
use super::table::{self, Shape};
use crate::postgres::error::SourceError;
use crate::postgres::names::ident;
use tokio_postgres::{Client, Statement};

/// Most ids of one statement.
pub const MARK_ROWS_MAX: usize = 10_000;

/// A prepared mark. It belongs to the session that prepared it.
#[derive(Clone, Debug)]
pub struct Marker {
    statement: Statement,
    doing: String,
}

impl Marker {
    /// Prepares it on a session of [`crate::postgres::control::Control`]: its `search_path` must be empty.
    ///
    /// # Errors
    /// What the server says; 42P01 and 42703 where table or columns are missing.
    pub async fn prepare(client: &Client, spec: &PollSpec) -> Result<Self, SourceError> {
        let shape = table::read(client, spec).await?;
        let doing = format!("mark published rows of table {}", spec.table);
        let statement = client.prepare(&sql(spec, &shape)?).await;
        let statement = statement.map_err(|error| SourceError::control(&doing, error))?;
        Ok(Self { statement, doing })
    }

    /// Marks the rows of these ids, as `Mapped::event_id` has them, [`MARK_ROWS_MAX`] a statement, and says how many
    /// took the mark: rows that are marked already, or gone, are none.
    ///
    /// # Errors
    /// What the server says. Asking again does no harm.
    pub async fn mark<I: AsRef<str>>(
        &self,
        client: &Client,
        ids: &[I],
    ) -> Result<u64, SourceError> {
        let mut marked = 0;
        for ids in ids.chunks(MARK_ROWS_MAX) {
            let ids: Vec<&str> = ids.iter().map(AsRef::as_ref).collect();
            let rows = client.execute(&self.statement, &[&ids]).await;
            marked += rows.map_err(|error| SourceError::control(&self.doing, error))?;
        }
        Ok(marked)
    }
}

/// Locks in the order of the ids, so that two of them never wait for each other; rows that are not ready (failed,
/// marked) are left as they are, except that a delay does not matter any more.
pub(super) fn sql(spec: &PollSpec, shape: &Shape) -> Result<String, SourceError> {
    let (table, id) = (&spec.table, shape.id(&spec.table, &spec.id)?);
    let (wanted, order) = (id.is_one_of("o", "$1::text[]"), id.sort_key("o"));
    let ready = unmarked(spec);
    Ok(format!(
        "WITH k AS MATERIALIZED (\n  SELECT o.tableoid AS oid, o.ctid AS tid FROM {table} AS o\n  \
         WHERE {wanted} AND {ready}\n  ORDER BY {order} FOR UPDATE\n)\n\
         {}\n{} k WHERE o.tableoid = k.oid AND o.ctid = k.tid",
        success(spec, shape, "statement_timestamp()"),
        if deletes(spec) { "USING" } else { "FROM" },
    ))
}

fn deletes(spec: &PollSpec) -> bool {
    spec.delete || matches!(spec.marks, Marks::Delete)
}

/// What has no mark of success yet.
pub(in crate::postgres) fn unmarked(spec: &PollSpec) -> String {
    let column = |name: &str| format!("o.{}", ident(name));
    match &spec.marks {
        Marks::Delete => "true".to_owned(),
        Marks::PublishedAt { published_at } => format!("{} IS NULL", column(published_at)),
        Marks::Commerce { processed_at, .. } => format!("{} IS NULL", column(processed_at)),
        Marks::Gcx { status, .. } => format!("{} <> 'published'", column(status)),
        Marks::Sqlgarden { status, .. } => format!("{} <> 'PUBLISHED'", column(status)),
    }
}
