//! Creates the new slot and the list of rows that its snapshot sees.
//!
//! The slot's exported snapshot and its stream divide all transactions: a row whose transaction committed before the
//! consistent point is in the snapshot, any other row is in the stream. The list is made inside that snapshot, by a
//! transaction that imports it, so the server's own visibility rules decide, savepoints included.

use super::list::{Method, summarize};
use super::reader::PAGE_ROWS;
use super::row::{RepairKind, RepairRow, Selection};
use crate::catalog::{self, pg_lsn};
use crate::control::Control;
use crate::names::{Names, literal};
use crate::poll::by_id::OutboxTable;
use crate::setup::Blocker;
use crate::setup::apply::blockers;
use pg_replication::conninfo::Conninfo;
use pg_replication::error::{SourceError, SourceErrorKind};
use pg_replication::stream::{CreatedSlot, WalConnection};
use postrider_core::store::PipelineKey;
use std::time::{Duration, SystemTime};
use tokio::time::{Instant, interval_at};
use tokio_postgres::Client;

/// How often the wait for running transactions is checked.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// A repair to begin.
#[derive(Clone, Debug)]
pub struct NewRepair<'a> {
    /// The login that may create slots.
    pub conninfo: &'a Conninfo,
    /// The `application_name` of the sessions.
    pub application_name: &'a str,
    /// The pipeline's objects.
    pub names: &'a Names,
    /// Whether to create a failover slot.
    pub failover: bool,
    /// The reason.
    pub kind: RepairKind,
    /// Which rows to publish.
    pub selection: Selection,
    /// A snapshot whose transactions are resolved.
    pub known: Option<String>,
    /// Until when a relay may have published.
    pub known_at: Option<SystemTime>,
    /// The row of an interrupted repair, whose list is continued.
    pub before: Option<&'a RepairRow>,
    /// The slot exists and must be dropped.
    pub drop_slot: bool,
}

/// Progress, reported while the repair begins.
#[derive(Debug)]
pub enum RepairProgress<'a> {
    /// The slot waits for transactions that were running when its creation began.
    Waiting(&'a [Blocker]),
    /// The slot was created at this position; the list is being made.
    Listing(crate::wire::Lsn),
}

/// Creates the slot and the list. If the process is killed, the same call begins again.
///
/// # Errors
/// An error of the server or of the connection.
pub async fn begin(
    control: &Control,
    table: &OutboxTable,
    repair: &NewRepair<'_>,
    progress: &mut (dyn FnMut(RepairProgress<'_>) + Send),
) -> Result<(), SourceError> {
    note(control.client(), repair).await?;
    if repair.drop_slot {
        let failed = |e| SourceError::control("drop the slot that can't be used", e);
        let sql = "SELECT pg_catalog.pg_drop_replication_slot($1)";
        control.client().execute(sql, &[&repair.names.slot]).await.map_err(failed)?;
    }
    let mut wal = WalConnection::connect(repair.conninfo, repair.application_name).await?;
    // A slot on another server would not be noticed there, and would retain WAL.
    if !catalog::has_backend(control.client(), wal.backend_pid()).await? {
        return Err(elsewhere(catalog::TWO_SERVERS));
    }
    let created = slot(&mut wal, control.client(), repair, progress).await?;
    progress(RepairProgress::Listing(crate::wire::from_wire(created.consistent_point)));
    let listing = Control::connect(repair.conninfo, repair.application_name).await?;
    let one = catalog::instance(control.client()).await?;
    if let Some(differs) = one.differs(&catalog::instance(listing.client()).await?) {
        return Err(elsewhere(&differs));
    }
    let listed = list(listing.client(), table, repair, &created).await;
    // The snapshot exists as long as its connection.
    drop(wal);
    listed
}

fn elsewhere(what: &str) -> SourceError {
    SourceError::new(SourceErrorKind::SessionAttrs, format!("create the repair's slot: {what}"))
}

/// Records what is known to be resolved, before anything is changed.
async fn note(client: &Client, repair: &NewRepair<'_>) -> Result<(), SourceError> {
    let failed = |e| SourceError::control("record the repair", e);
    let PipelineKey { pipeline, shard } = &repair.names.key;
    // Rows that were listed before stay listed, also if a slot was being created for the rest of them.
    let continues = repair.before.is_some_and(RepairRow::unfinished);
    let pages = if continues { "number < 0" } else { "true" };
    // The positions of the list must lie between the last position of the old slot and the first one of the new slot.
    // This transaction writes some WAL, so that there are enough positions between them.
    // The lock of the cursor row: a statement of retention that decided before this row exists has ended when the lock
    // is granted, and one that decides later sees the row.
    let sql = format!(
        "BEGIN;\n\
         SELECT FROM postrider.cursor WHERE pipeline = {pipeline} AND shard = {shard} FOR UPDATE;\n\
         INSERT INTO postrider.repair AS r (pipeline, shard, kind, state, selection, ledger, ledger_at, slot) \
         SELECT {pipeline}, {shard}, {kind}, 'making', {selection}, {known}, {known_at}, {slot} \
         ON CONFLICT (pipeline, shard) DO UPDATE SET state = 'making', slot = excluded.slot, \
           slot_created_lsn = NULL, snapshot = NULL, kind = excluded.kind, selection = excluded.selection, \
           ledger = excluded.ledger, ledger_at = excluded.ledger_at{reset};\n\
         DELETE FROM postrider.repair_page WHERE pipeline = {pipeline} AND shard = {shard} AND {pages};\n\
         INSERT INTO postrider.repair_page (pipeline, shard, number, ids) \
           SELECT {pipeline}, {shard}, -n, ARRAY[repeat('.', 1000)] FROM generate_series(1, 256) AS n;\n\
         DELETE FROM postrider.repair_page WHERE pipeline = {pipeline} AND shard = {shard} AND number < 0;\n\
         COMMIT",
        pipeline = literal(pipeline),
        kind = literal(repair.kind.word()),
        selection = literal(repair.selection.word()),
        known = repair
            .known
            .as_deref()
            .map_or("NULL".to_owned(), |s| format!("{}::pg_snapshot", literal(s))),
        known_at = repair.known_at.map_or("NULL::timestamptz".to_owned(), micros),
        slot = literal(&repair.names.slot),
        reset = if continues {
            ""
        } else {
            ", rows_total = 0, rows_published = 0, rows_uncertain = 0, rows_gone = 0, ids_missing = NULL, \
             started_at = now(), finished_at = NULL"
        },
    );
    let Err(error) = client.batch_execute(&sql).await else { return Ok(()) };
    drop(client.batch_execute("ROLLBACK").await);
    Err(failed(error))
}

fn micros(at: SystemTime) -> String {
    let micros = at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_micros();
    format!("timestamptz 'epoch' + {micros} * interval '1 microsecond'")
}

async fn slot(
    wal: &mut WalConnection,
    watch: &Client,
    repair: &NewRepair<'_>,
    progress: &mut (dyn FnMut(RepairProgress<'_>) + Send),
) -> Result<CreatedSlot, SourceError> {
    let pid = i32::try_from(wal.backend_pid()).unwrap_or_default();
    let creation = wal.create_slot(&repair.names.slot, repair.failover);
    tokio::pin!(creation);
    let mut checks = interval_at(Instant::now() + CHECK_INTERVAL, CHECK_INTERVAL);
    loop {
        tokio::select! {
            created = &mut creation => return created,
            _ = checks.tick() => {
                // If the blockers cannot be read, the wait continues.
                progress(RepairProgress::Waiting(&blockers(watch, pid).await.unwrap_or_default()));
            }
        }
    }
}

/// Lists the rows inside the slot's snapshot and records the new state, in one transaction.
async fn list(
    client: &Client,
    table: &OutboxTable,
    repair: &NewRepair<'_>,
    created: &CreatedSlot,
) -> Result<(), SourceError> {
    let failed = |e| SourceError::control("list the rows to publish", e);
    let sql = format!(
        "BEGIN ISOLATION LEVEL REPEATABLE READ; SET TRANSACTION SNAPSHOT {}; \
         SET LOCAL statement_timeout = 0; SET LOCAL lock_timeout = 0",
        literal(&created.snapshot)
    );
    client.batch_execute(&sql).await.map_err(failed)?;
    let method = Method::of(client, repair.selection, repair.known.as_deref()).await?;
    let survey = summarize(client, table, &method, repair.known_at).await?;
    let PipelineKey { pipeline, shard } = &repair.names.key;
    let sql = format!(
        "INSERT INTO postrider.repair_page (pipeline, shard, number, ids) \
         SELECT $1, $2::pg_catalog.int4, b.first + (l.n - 1) / {PAGE_ROWS}, array_agg(l.id ORDER BY l.n) \
         FROM (SELECT {id} AS id, row_number() OVER (ORDER BY {order}) AS n \
               FROM {source}) AS l, \
              (SELECT coalesce(max(p.number) + 1, 0) AS first FROM postrider.repair_page AS p \
               WHERE p.pipeline = $1 AND p.shard = $2) AS b \
         GROUP BY 3",
        id = table.id(),
        order = method.order(table),
        source = table.source(&method.rows(table)),
    );
    client.execute(&sql, &[pipeline, shard]).await.map_err(failed)?;
    // The snapshot of a slot may have an xmax below its xmin, and PostgreSQL cannot read the text that it wrote of such
    // a snapshot. Everything below xmin is visible in it, and nothing else.
    let sql = "UPDATE postrider.repair SET state = 'publishing', slot_created_lsn = $2, \
                 snapshot = (SELECT CASE WHEN pg_snapshot_xmin(s)::text::numeric > pg_snapshot_xmax(s)::text::numeric \
                   THEN concat(pg_snapshot_xmin(s), ':', pg_snapshot_xmin(s), ':')::pg_snapshot ELSE s END \
                   FROM pg_current_snapshot() AS s), \
                 method = $3, rows_total = rows_total + $4, \
                 rows_uncertain = rows_uncertain + $5, ids_missing = coalesce($6, ids_missing) \
               WHERE pipeline = $1 AND shard = $7 AND state = 'making'";
    let missing = (repair.kind == RepairKind::Repair).then_some(survey.missing).flatten();
    let (rows, uncertain) = (survey.rows.cast_signed(), survey.uncertain.cast_signed());
    let missing = missing.map(u64::cast_signed);
    let at = pg_lsn(crate::wire::from_wire(created.consistent_point));
    let words = method.words(table);
    client
        .execute(sql, &[pipeline, &at, &words, &rows, &uncertain, &missing, shard])
        .await
        .map_err(failed)?;
    client.batch_execute("COMMIT").await.map_err(failed)
}
