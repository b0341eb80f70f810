//! The new slot, and the list of rows that its snapshot sees.
//!
//! The slot's exported snapshot and its stream part history: a row whose transaction committed before the consistent
//! point is in the snapshot, any other comes by the stream. The list is made inside that snapshot, by a transaction
//! that takes it over, so the server's own visibility decides, with savepoints and all.

use super::list::{Method, survey};
use super::reader::PAGE_ROWS;
use super::row::{Kind, Row, Selection};
use crate::catalog::{self, pg_lsn};
use crate::control::Control;
use crate::names::{Names, literal};
use crate::poll::claim::Table;
use crate::setup::Blocker;
use crate::setup::apply::blockers;
use pg_replication::conninfo::Conninfo;
use pg_replication::error::{SourceError, SourceErrorKind};
use pg_replication::stream::{CreatedSlot, WalConnection};
use std::time::{Duration, SystemTime};
use tokio::time::{Instant, interval_at};
use tokio_postgres::Client;

/// How often the wait for running transactions is looked at.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// What is to be made.
#[derive(Clone, Debug)]
pub struct Ask<'a> {
    /// The login that may make slots.
    pub conninfo: &'a Conninfo,
    /// What the server's lists show us as.
    pub application_name: &'a str,
    /// The pipeline's objects.
    pub names: &'a Names,
    /// A failover slot.
    pub failover: bool,
    /// Why.
    pub kind: Kind,
    /// Which rows.
    pub selection: Selection,
    /// A snapshot whose transactions are resolved.
    pub known: Option<String>,
    /// Until when a relay may have published.
    pub known_at: Option<SystemTime>,
    /// What an interrupted one has left: its list goes on.
    pub before: Option<&'a Row>,
    /// The slot stands, and is to go.
    pub drop_slot: bool,
}

/// What is being told while it runs.
#[derive(Debug)]
pub enum Told<'a> {
    /// The slot waits for transactions that were running when it was begun.
    Waiting(&'a [Blocker]),
    /// The slot stands, at this position; the list is being made.
    Listing(pg_replication::lsn::Lsn),
}

/// Makes the slot and the list. Killed anywhere, it is begun again by the same call.
///
/// # Errors
/// What the server says.
pub async fn begin(
    control: &Control,
    table: &Table,
    ask: &Ask<'_>,
    told: &mut (dyn FnMut(Told<'_>) + Send),
) -> Result<(), SourceError> {
    note(control.client(), ask).await?;
    if ask.drop_slot {
        let failed = |e| SourceError::control("drop the slot that can't be used", e);
        let sql = "SELECT pg_catalog.pg_drop_replication_slot($1)";
        control.client().execute(sql, &[&ask.names.slot]).await.map_err(failed)?;
    }
    let mut wal = WalConnection::connect(ask.conninfo, ask.application_name).await?;
    // The slot of another server would be in nobody's sight, and keep WAL.
    if !catalog::has_backend(control.client(), wal.backend_pid()).await? {
        return Err(elsewhere(catalog::TWO_SERVERS));
    }
    let created = slot(&mut wal, control.client(), ask, told).await?;
    told(Told::Listing(created.consistent_point));
    let listing = Control::connect(ask.conninfo, ask.application_name).await?;
    let one = catalog::instance(control.client()).await?;
    if let Some(differs) = one.differs(&catalog::instance(listing.client()).await?) {
        return Err(elsewhere(&differs));
    }
    let listed = list(listing.client(), table, ask, &created).await;
    // The snapshot lives as long as its connection.
    drop(wal);
    listed
}

fn elsewhere(what: &str) -> SourceError {
    SourceError::new(SourceErrorKind::SessionAttrs, format!("make the repair's slot: {what}"))
}

/// Writes down what is known to be resolved, before anything changes.
async fn note(client: &Client, ask: &Ask<'_>) -> Result<(), SourceError> {
    let failed = |e| SourceError::control("note the repair", e);
    let pipeline = &ask.names.pipeline;
    // What was listed before stays listed, also where a slot was being made for the rest of it.
    let goes_on = ask.before.is_some_and(Row::unfinished);
    let pages = if goes_on { "number < 0" } else { "true" };
    // The list's positions lie between the last of the old slot and the first of the new: some WAL of our own makes
    // room for them.
    let sql = format!(
        "BEGIN;\n\
         INSERT INTO postrider.repair AS r (pipeline, kind, state, selection, ledger, ledger_at, slot) \
         SELECT {pipeline}, {kind}, 'making', {selection}, {known}, {known_at}, {slot} \
         ON CONFLICT (pipeline) DO UPDATE SET state = 'making', slot = excluded.slot, \
           slot_created_lsn = NULL, snapshot = NULL, kind = excluded.kind, selection = excluded.selection, \
           ledger = excluded.ledger, ledger_at = excluded.ledger_at{anew};\n\
         DELETE FROM postrider.repair_page WHERE pipeline = {pipeline} AND {pages};\n\
         INSERT INTO postrider.repair_page (pipeline, number, ids) \
           SELECT {pipeline}, -n, ARRAY[repeat('.', 1000)] FROM generate_series(1, 256) AS n;\n\
         DELETE FROM postrider.repair_page WHERE pipeline = {pipeline} AND number < 0;\n\
         COMMIT",
        pipeline = literal(pipeline),
        kind = literal(ask.kind.word()),
        selection = literal(ask.selection.word()),
        known = ask
            .known
            .as_deref()
            .map_or("NULL".to_owned(), |s| format!("{}::pg_snapshot", literal(s))),
        known_at = ask.known_at.map_or("NULL::timestamptz".to_owned(), micros),
        slot = literal(&ask.names.slot),
        anew = if goes_on {
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
    ask: &Ask<'_>,
    told: &mut (dyn FnMut(Told<'_>) + Send),
) -> Result<CreatedSlot, SourceError> {
    let pid = i32::try_from(wal.backend_pid()).unwrap_or_default();
    let creation = wal.create_slot(&ask.names.slot, ask.failover);
    tokio::pin!(creation);
    let mut looks = interval_at(Instant::now() + LOOK_INTERVAL, LOOK_INTERVAL);
    loop {
        tokio::select! {
            created = &mut creation => return created,
            _ = looks.tick() => {
                // Not seeing what it waits for is no reason not to wait.
                told(Told::Waiting(&blockers(watch, pid).await.unwrap_or_default()));
            }
        }
    }
}

/// Lists the rows inside the slot's snapshot, and says that they are listed, in one transaction.
async fn list(
    client: &Client,
    table: &Table,
    ask: &Ask<'_>,
    created: &CreatedSlot,
) -> Result<(), SourceError> {
    let failed = |e| SourceError::control("list the rows to publish", e);
    let sql = format!(
        "BEGIN ISOLATION LEVEL REPEATABLE READ; SET TRANSACTION SNAPSHOT {}; \
         SET LOCAL statement_timeout = 0; SET LOCAL lock_timeout = 0",
        literal(&created.snapshot)
    );
    client.batch_execute(&sql).await.map_err(failed)?;
    let method = Method::of(client, ask.selection, ask.known.as_deref()).await?;
    let survey = survey(client, table, &method, ask.known_at).await?;
    let pipeline = &ask.names.pipeline;
    let sql = format!(
        "INSERT INTO postrider.repair_page (pipeline, number, ids) \
         SELECT $1, b.first + (l.n - 1) / {PAGE_ROWS}, array_agg(l.id ORDER BY l.n) \
         FROM (SELECT {id} AS id, row_number() OVER (ORDER BY {order}) AS n \
               FROM {source}) AS l, \
              (SELECT coalesce(max(p.number) + 1, 0) AS first FROM postrider.repair_page AS p \
               WHERE p.pipeline = $1) AS b \
         GROUP BY 2",
        id = table.id(),
        order = method.order(table),
        source = table.source(&method.rows(table)),
    );
    client.execute(&sql, &[pipeline]).await.map_err(failed)?;
    // The snapshot of a slot may have an xmax below its xmin, and PostgreSQL does not read back what it wrote of it
    // then. Everything below xmin is seen, and nothing else.
    let sql = "UPDATE postrider.repair SET state = 'publishing', slot_created_lsn = $2, \
                 snapshot = (SELECT CASE WHEN pg_snapshot_xmin(s)::text::numeric > pg_snapshot_xmax(s)::text::numeric \
                   THEN concat(pg_snapshot_xmin(s), ':', pg_snapshot_xmin(s), ':')::pg_snapshot ELSE s END \
                   FROM pg_current_snapshot() AS s), \
                 method = $3, rows_total = rows_total + $4, \
                 rows_uncertain = rows_uncertain + $5, ids_missing = coalesce($6, ids_missing) \
               WHERE pipeline = $1 AND state = 'making'";
    let missing = (ask.kind == Kind::Repair).then_some(survey.missing).flatten();
    let (rows, uncertain) = (survey.rows.cast_signed(), survey.uncertain.cast_signed());
    let missing = missing.map(u64::cast_signed);
    let at = pg_lsn(created.consistent_point);
    let words = method.words(table);
    client
        .execute(sql, &[pipeline, &at, &words, &rows, &uncertain, &missing])
        .await
        .map_err(failed)?;
    client.batch_execute("COMMIT").await.map_err(failed)
}
