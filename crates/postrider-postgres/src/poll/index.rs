//! The index from which a claim reads the unpublished rows in the order in which they are published. Without it each
//! claim reads, and sorts, all rows that are unpublished, or passes over all that are published.

use super::spec::{Marks, PollSpec};
use crate::names::ident;
use pg_replication::error::SourceError;
use tokio_postgres::Client;

/// What the table has of it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct ClaimIndex {
    /// The statement that makes it.
    pub(crate) create: String,
    /// There is one.
    pub(crate) exists: bool,
}

/// The order is that of the id where it is a number, else that of the time; `kind` is what the table is. An index
/// serves whose first column is the order's, or the mark's and then the order's; and which has the unpublished rows
/// alone, by its condition or by the mark's column in front, where published rows stay.
const SQL: &str = "\
WITH o AS ( \
  SELECT CASE WHEN CASE WHEN t.typbasetype <> 0 THEN t.typbasetype ELSE t.oid END IN (20, 21, 23, 1700) \
           THEN $2::text ELSE $3::text END AS name, c.relkind = 'p' AS partitioned \
  FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attname = $2::text \
  JOIN pg_type t ON t.oid = a.atttypid WHERE c.oid = $1 \
) \
SELECT o.name, o.partitioned, EXISTS ( \
  SELECT FROM pg_index i \
  JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attname = o.name \
  LEFT JOIN pg_attribute m ON m.attrelid = i.indrelid AND m.attname = $4::text \
  WHERE i.indrelid = $1 AND i.indisvalid \
    AND (i.indkey[0] = a.attnum OR i.indkey[0] = m.attnum AND i.indkey[1] = a.attnum) \
    AND CASE WHEN m.attnum IS NULL THEN i.indpred IS NULL \
          ELSE i.indkey[0] = m.attnum OR strpos(pg_get_expr(i.indpred, i.indrelid), m.attname) > 0 END) \
FROM o WHERE o.name IS NOT NULL";

/// Reads whether the table with this OID has it; `None` where there is no order that an index could have (the id is no
/// number, and no time is named).
///
/// # Errors
/// What the server says.
pub(crate) async fn read(
    client: &Client,
    oid: u32,
    spec: &PollSpec,
) -> Result<Option<ClaimIndex>, SourceError> {
    let failed = |e| SourceError::control("look for the index of claims", e);
    let (mark, condition) = unpublished(spec).unzip();
    let mark = mark.as_deref();
    let row = client.query_opt(SQL, &[&oid, &spec.id, &spec.time, &mark]).await.map_err(failed)?;
    let Some(row) = row else { return Ok(None) };
    let (order, partitioned): (String, bool) =
        (row.try_get(0).map_err(failed)?, row.try_get(1).map_err(failed)?);
    // A partitioned table takes no CONCURRENTLY.
    let how = if partitioned { "" } else { " CONCURRENTLY" };
    let condition = condition.map_or_else(String::new, |condition| format!(" WHERE {condition}"));
    let create = format!("CREATE INDEX{how} ON {} ({}){condition};", spec.table, ident(&order));
    Ok(Some(ClaimIndex { create, exists: row.try_get(2).map_err(failed)? }))
}

/// The column that says whether a row is published, and the condition under which it is not; `None` where published
/// rows go.
fn unpublished(spec: &PollSpec) -> Option<(String, String)> {
    if spec.delete {
        return None;
    }
    let (column, is_so) = match &spec.marks {
        Marks::Delete => return None,
        Marks::PublishedAt { published_at } => (published_at, "IS NULL"),
        Marks::Commerce { processed_at, .. } => (processed_at, "IS NULL"),
        Marks::Gcx { status, .. } => (status, "= 'pending'"),
        Marks::Sqlgarden { status, .. } => (status, "<> 'PUBLISHED'"),
    };
    Some((column.clone(), format!("{} {is_so}", ident(column))))
}
