//! Rows that are too large to be read: the server copies the payload of one into the parked table by itself.

use super::claim::Claim;
use super::spec::PollSpec;
use super::table::Shape;
use crate::names::{ident, literal};
use pg_replication::error::{SourceError, SourceErrorKind, Statement};
use postrider_core::event::Position;
use tokio_postgres::Client;

/// Which payload is to be kept, and where.
#[derive(Clone, Copy, Debug)]
pub struct Keep<'a> {
    /// The claim that has the row.
    pub claim: &'a Claim,
    /// Which row of it.
    pub row: usize,
    /// The column of the payload.
    pub payload: &'a str,
    /// The pipeline, and the position of the parked event.
    pub pipeline: &'a str,
    /// The same.
    pub position: Position,
}

impl Keep<'_> {
    /// Copies it, in the claim's transaction. What is parked is the payload alone, as a person may want to read it.
    pub(super) async fn run(
        &self,
        client: &Client,
        spec: &PollSpec,
        shape: &Shape,
    ) -> Result<(), SourceError> {
        let doing = || format!("keep the payload of a large row of table {}", spec.table);
        let Some(place) = self.claim.places.get(self.row) else { return Ok(()) };
        let payload = ident(self.payload);
        let value = match shape.column(self.payload) {
            Some(column) if column.type_name == "bytea" => format!("o.{payload}"),
            Some(_) => format!("convert_to(o.{payload}::text, 'UTF8')"),
            None => return Ok(()),
        };
        let sql = format!(
            "UPDATE postrider.parked AS p SET value = {value} FROM {table} AS o \
             WHERE o.tableoid = {oid} AND o.ctid = '({block},{line})'::tid AND o.xmin::text = '{xmin}' \
               AND p.pipeline = {pipeline} AND p.commit_lsn = '{lsn}'::pg_lsn AND p.ordinal = {ordinal}",
            table = spec.table,
            oid = place.oid,
            block = place.block,
            line = place.line,
            xmin = place.xmin,
            pipeline = literal(self.pipeline),
            lsn = self.position.commit_lsn,
            ordinal = self.position.ordinal,
        );
        let failed = |error| SourceError::control(doing(), error).of(Statement::Settle);
        match client.execute(&sql, &[]).await.map_err(failed)? {
            1 => Ok(()),
            // A repair locks no rows: the row was changed, or deleted. It is read again.
            _ => Err(SourceError::new(SourceErrorKind::Closed, doing())),
        }
    }
}
