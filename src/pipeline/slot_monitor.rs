//! Monitors the slot and the publication while a stream runs: the WAL that the slot retains, and whether both still
//! exist.
//!
//! One query at a time runs on the control connection, beside the stream. The result goes to the status. A publication
//! that no longer publishes the outbox table is a halt, because PostgreSQL 18 skips its rows with only a warning.

use super::mode::Mode;
use super::spec::PipelineSpec;
use super::stop::Stop;
use super::store_job::{StoreJob, await_job};
use super::timer::Timer;
use crate::error::{Halt, HaltReason};
use crate::offset::Offset;
use crate::postgres::SourceError;
use crate::postgres::catalog::{self, AffectedRows, LeafChange, SlotRow};
use crate::postgres::control::{self, Control};
use crate::postgres::names::literal;
use crate::postgres::publication_version::{PublicationChange, PublicationVersion};
use crate::postgres::start::{self, Facts, Resume};
use crate::postgres::store::cursor::SnapshotPolicy;
use crate::postgres::store::parked;
use crate::status::StatusHandle;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;
use tokio_postgres::Client;
use tracing::{info, warn};

/// Pause between two queries: a handful of catalog queries that take a millisecond together.
const INTERVAL: Duration = Duration::from_secs(5);

/// The publication of a stream, as it was when the stream was last known to be complete.
#[derive(Clone, Debug)]
pub(super) struct PublicationState {
    /// Identifies the slot: a new slot of the same name starts after earlier changes.
    pub(super) slot_created_lsn: Offset,
    /// What it was.
    known: KnownPublication,
}

/// What is known of a publication.
#[derive(Clone, Debug)]
enum KnownPublication {
    /// It may have left out rows of the outbox table before the stream began; the start has logged that.
    Incomplete,
    /// The publication of an outbox table with this OID.
    Outbox(PublicationVersion, u32),
    /// The publication of captured tables. What it may have left out before the stream began is in no table, so the
    /// start has logged it and nothing is to follow.
    Captured(PublicationVersion),
}

impl PublicationState {
    /// The publication when a stream begins; `None` without a table.
    pub(super) fn of(facts: &Facts, resume: &Resume) -> Option<Self> {
        let known = if let Some(captured) = &facts.captured {
            KnownPublication::Captured(captured.publication.as_ref()?.version.clone())
        } else {
            let (table, publication) = (facts.table.as_ref()?, facts.publication.as_ref()?);
            if facts.since.publication {
                KnownPublication::Incomplete
            } else {
                KnownPublication::Outbox(publication.version.clone(), table.oid)
            }
        };
        Some(Self { slot_created_lsn: resume.cursor.slot_created_lsn, known })
    }

    /// What a write of the cursor row may record as resolved.
    pub(super) fn ledger(&self) -> SnapshotPolicy {
        match &self.known {
            KnownPublication::Outbox(version, table) => {
                SnapshotPolicy::WhileUnchanged(version.clone(), *table)
            }
            KnownPublication::Captured(version) => SnapshotPolicy::WhileCaptured(version.clone()),
            KnownPublication::Incomplete => SnapshotPolicy::Never,
        }
    }
}

/// The result of a query.
#[derive(Debug)]
pub(super) struct SlotStatus {
    /// The slot, if it exists.
    pub(super) slot: Option<SlotRow>,
    /// The server's end of WAL.
    pub(super) wal_end: Offset,
    /// How long the oldest parked event has been parked.
    pub(super) oldest_parked: Option<Duration>,
    /// The stream waits for a standby.
    pub(super) waits_for_standby: bool,
    /// OIDs of the partitions of the outbox table or of captured tables, in ascending order; empty without partitions.
    leaves: Vec<u32>,
    /// The publication, if the stream is known to be complete with it.
    known: Option<KnownPublication>,
    /// Why the stream may not continue.
    halt: Option<Halt>,
}

impl SlotStatus {
    /// WAL that the slot retains. Unit: bytes.
    pub(super) fn retained(&self) -> Option<u64> {
        let restart = self.slot.as_ref()?.restart_lsn?;
        Some(self.wal_end.distance_from(restart))
    }
}

/// Queries the slot and the publication of a stream, one query at a time.
pub(super) struct SlotMonitor {
    /// The control connection.
    client: Arc<Client>,
    /// The pipeline.
    spec: Arc<PipelineSpec>,
    /// The running query.
    running: Option<StoreJob<SlotStatus>>,
    /// When the next query is made.
    next_at: Instant,
    /// Wakes at `next_at`.
    timer: Timer,
    /// The newest result.
    latest: Option<SlotStatus>,
    /// `None` for a pipeline without a table.
    publication: Option<PublicationState>,
}

impl SlotMonitor {
    pub(super) fn new(
        client: Arc<Client>,
        spec: Arc<PipelineSpec>,
        publication: Option<PublicationState>,
    ) -> Self {
        Self {
            client,
            spec,
            running: None,
            next_at: Instant::now(),
            timer: Timer::default(),
            latest: None,
            publication,
        }
    }

    /// Waits for the next result. Cancel-safe.
    pub(super) async fn next(&mut self) -> Result<SlotStatus, SourceError> {
        if self.running.is_none() {
            self.timer.at(self.next_at).await;
            let (client, spec) = (Arc::clone(&self.client), Arc::clone(&self.spec));
            let before = self.latest.as_ref().map(|status| status.leaves.clone());
            let publication = self.publication.clone();
            self.running = Some(Box::pin(async move {
                let status = query(&client, &spec, publication.as_ref()).await?;
                if let Some(before) = before {
                    for change in changes(&client, &before, &status.leaves).await? {
                        partition_changed(spec.name(), &change, spec.names.captures());
                    }
                }
                Ok(status)
            }));
        }
        let outcome = await_job(&mut self.running).await;
        self.running = None;
        self.next_at = Instant::now() + INTERVAL;
        outcome
    }

    /// Keeps a result; returns the halt that it requires.
    pub(super) fn keep(&mut self, mut status: SlotStatus) -> Option<Halt> {
        let halt = status.halt.take();
        if let (Some(publication), Some(known)) = (&mut self.publication, status.known.take()) {
            publication.known = known;
        }
        self.latest = Some(status);
        halt
    }

    /// What a write of the cursor row may record as resolved.
    pub(super) fn ledger(&self) -> SnapshotPolicy {
        self.publication.as_ref().map_or(SnapshotPolicy::Always, PublicationState::ledger)
    }

    /// The publication, for the monitor of the next stream.
    pub(super) fn publication(&self) -> Option<&PublicationState> {
        self.publication.as_ref()
    }

    /// The newest result.
    pub(super) fn latest(&self) -> Option<&SlotStatus> {
        self.latest.as_ref()
    }
}

async fn query(
    client: &Client,
    spec: &PipelineSpec,
    publication: Option<&PublicationState>,
) -> Result<SlotStatus, SourceError> {
    let columns = spec.columns();
    let facts = control::facts(client, &spec.ask(&None, &columns)).await?;
    let is_captured = spec.names.captures();
    let mut halt = start::check_running(&facts).err().map(|halt| with_delay(halt, is_captured));
    let mut known = None;
    if halt.is_none() {
        let now = match publication.map(|publication| &publication.known) {
            Some(KnownPublication::Outbox(before, table)) => {
                let now = publication_now(client, spec, &facts, before).await?;
                now.map(|now| Some(KnownPublication::Outbox(now, *table)))
            }
            Some(KnownPublication::Captured(before)) => {
                captured_now(spec, &facts, before).map(Some)
            }
            Some(KnownPublication::Incomplete) | None => Ok(None),
        };
        match now {
            Ok(now) => known = now,
            Err(left_out) => halt = Some(left_out),
        }
    }
    let oldest_parked = parked::counts(client, spec.key()).await?.oldest;
    let waits_for_standby = match facts.slot.as_ref().and_then(|slot| slot.active_pid) {
        Some(pid) => catalog::waits_for_standby(client, pid).await?,
        None => false,
    };
    let wal_end = facts.server.wal_end;
    let leaves = match &facts.captured {
        Some(captured) => captured.leaves(),
        None => facts.table.map(|table| table.partitions.leaves).unwrap_or_default(),
    };
    Ok(SlotStatus {
        slot: facts.slot,
        wal_end,
        oldest_parked,
        waits_for_standby,
        leaves,
        known,
        halt,
    })
}

/// The publication as it is now, if it has left out nothing since `before`; otherwise the halt.
async fn publication_now(
    client: &Client,
    spec: &PipelineSpec,
    facts: &Facts,
    before: &PublicationVersion,
) -> Result<Result<PublicationVersion, Halt>, SourceError> {
    let (Some(now), Some(table)) = (&facts.publication, &facts.names.table) else {
        return Ok(Ok(before.clone()));
    };
    let concerned = match before.change(&now.version) {
        PublicationChange::Unchanged => return Ok(Ok(now.version.clone())),
        PublicationChange::Explained => None,
        PublicationChange::MayHaveLeftOut => {
            Some(catalog::affected_rows(client, table, before).await?)
        }
    };
    let may_lose = |found: &AffectedRows| found.rows != Some(0) || found.open_writers;
    if let Some(concerned) = concerned.filter(may_lose) {
        return Ok(Err(start::left_out(facts, concerned, INTERVAL)));
    }
    publication_changed(spec.name(), &facts.names.publication, concerned.is_some());
    Ok(Ok(now.version.clone()))
}

/// The publication of captured tables as it is now, if it has left out nothing since `before`; otherwise the halt.
/// Nothing in the tables shows how many changes were left out, so any change that was undone is a halt.
fn captured_now(
    spec: &PipelineSpec,
    facts: &Facts,
    before: &PublicationVersion,
) -> Result<KnownPublication, Halt> {
    let publication = facts.captured.as_ref().and_then(|captured| captured.publication.as_ref());
    let Some(now) = publication.map(|publication| &publication.version) else {
        return Ok(KnownPublication::Captured(before.clone()));
    };
    match before.change(now) {
        PublicationChange::Unchanged => {}
        PublicationChange::Explained => {
            publication_changed(spec.name(), &facts.names.publication, false);
        }
        PublicationChange::MayHaveLeftOut => {
            return Err(start::capture_left_out(facts, INTERVAL));
        }
    }
    Ok(KnownPublication::Captured(now.clone()))
}

/// Partitions that were attached with rows in them, or detached, since the previous query.
async fn changes(
    client: &Client,
    before: &[u32],
    now: &[u32],
) -> Result<Vec<LeafChange>, SourceError> {
    let without = |these: &[u32], those: &[u32]| -> Vec<u32> {
        these.iter().copied().filter(|oid| those.binary_search(oid).is_err()).collect()
    };
    let (gone, new) = (without(before, now), without(now, before));
    if gone.is_empty() && new.is_empty() {
        return Ok(Vec::new());
    }
    catalog::leaf_changes(client, &gone, &new).await
}

/// Adds to the halt how late it may be. A publication that is changed during a stream leaves out rows from then on, and
/// the stream does not show that.
fn with_delay(mut halt: Halt, is_captured: bool) -> Halt {
    let seconds = INTERVAL.as_secs();
    if halt.reason == HaltReason::PublicationUnfit && is_captured {
        halt.meaning = format!(
            "changes committed since it was changed, as a rule not more than {seconds} s ago, may have been skipped, \
             and no table has them: load the consumers of these tables again after the fix; nothing more is confirmed \
             while halted"
        );
    } else if halt.reason == HaltReason::PublicationUnfit {
        halt.meaning = format!(
            "rows committed since it was changed, as a rule not more than {seconds} s ago, may have been skipped: \
             they are still in the outbox unless the application deleted them; nothing more is confirmed while halted"
        );
    }
    halt
}

/// A slot that retained more than the limit when the process started may grow by this part of the limit while it
/// catches up. Otherwise no backlog could be published by starting again.
const GROWTH_PART: u64 = 4;

/// How much WAL the slot retains, compared with the limit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum RetentionLevel {
    /// Less than half of the limit.
    BelowHalf,
    /// More than half: somebody should check why.
    AboveHalf,
    /// More than the limit: the pipeline halts, or drops the slot.
    Exceeded,
}

/// The WAL retention limit (`source.wal_retain_max`) of one process: how much WAL the slot may retain on the database's
/// disk.
#[derive(Clone, Copy, Debug)]
pub(super) struct WalRetentionLimit {
    /// The configured limit. Unit: bytes.
    max: u64,
    /// The limit in force: more than `max` while a backlog from before the start is published. Unknown before the first
    /// query.
    limit: Option<u64>,
    /// A backlog is not published from the slot above the limit, because it can be published from the table.
    strict: bool,
}

impl WalRetentionLimit {
    /// `max` in bytes. `strict`: the table can be polled instead.
    pub(super) const fn new(max: u64, strict: bool) -> Self {
        Self { max, limit: None, strict }
    }

    /// The configured limit. Unit: bytes.
    pub(super) const fn max(&self) -> u64 {
        self.max
    }

    /// The halt of a pipeline whose slot retains more than the limit. Unit: bytes.
    pub(super) fn exceeded(&self, spec: &PipelineSpec, retained: u64) -> Halt {
        past(spec, retained, self.max)
    }

    /// Compares what the slot retains now with the limit. Unit: bytes.
    pub(super) fn assess(&mut self, retained: u64) -> RetentionLevel {
        let drains = retained > self.max && !self.strict;
        let catching_up =
            if drains { retained.saturating_add(self.max / GROWTH_PART) } else { self.max };
        let limit = self.limit.unwrap_or(u64::MAX).min(catching_up).max(self.max);
        self.limit = Some(limit);
        match retained {
            _ if retained > limit => RetentionLevel::Exceeded,
            _ if retained > self.max / 2 => RetentionLevel::AboveHalf,
            _ => RetentionLevel::BelowHalf,
        }
    }
}

fn past(spec: &PipelineSpec, retained: u64, max: u64) -> Halt {
    let names = &spec.names;
    let (slot, name) = (&names.slot, &names.key.pipeline);
    let message = format!(
        "slot {slot:?} retains {} MiB of WAL, source.wal_retain_max is {} MiB",
        retained.div_ceil(1 << 20),
        max >> 20
    );
    if spec.polls_instead_of_slot() {
        return Halt {
            reason: HaltReason::WalBudget,
            message,
            meaning: "nothing is lost: the slot is dropped, and what is not published is taken from the table".into(),
            hint: "fix what delays the pipeline (see postrider status); a new slot is created automatically".into(),
        };
    }
    let meaning = "nothing is lost yet: the slot keeps what is not published, and retains more WAL with all that the \
                   database writes";
    let at_first = format!(
        "fix what delays the pipeline and start again: it drains the backlog as long as that does not grow by a \
         {GROWTH_PART}th of the budget; or raise source.wal_retain_max; or, before the disk is full"
    );
    if names.in_transactions && names.table.is_some() {
        return Halt {
            reason: HaltReason::WalBudget,
            message,
            meaning: meaning.into(),
            hint: format!(
                "{at_first}, begin \
                 a new slot and insert the rows again that consumers do not have, since a sink that publishes in \
                 transactions takes no repair (docs/operations/halts.md#begin-a-new-slot): events whose row was \
                 deleted, and logical messages, are lost with the slot"
            ),
        };
    }
    if names.captures() {
        return Halt {
            reason: HaltReason::WalBudget,
            message,
            meaning: meaning.into(),
            hint: format!(
                "{at_first}, begin \
                 with a new slot: SELECT pg_drop_replication_slot({}); then DELETE FROM postrider.cursor WHERE \
                 pipeline = {}; then postrider setup -p {name}. The changes in that WAL that are not published are \
                 lost as events: load the consumers again from the tables {}",
                literal(slot),
                literal(name),
                names.captured_list()
            ),
        };
    }
    Halt {
        reason: HaltReason::WalBudget,
        message,
        meaning: meaning.into(),
        hint: format!(
            "{at_first}, drop the \
             slot: postrider repair -p {name} --from-table --dry-run (it counts the rows to publish from the table, \
             and the ids that have no row: those events are lost with the slot); then SELECT \
             pg_drop_replication_slot({}); then fix what holds the pipeline up; then postrider repair -p {name} (it \
             publishes them and creates a new slot)",
            literal(slot)
        ),
    }
}

/// Pause between two queries while halted; each of them logs in.
const HALTED_INTERVAL: Duration = Duration::from_secs(15);

/// The longest time for such a query.
const QUERY_MAX: Duration = Duration::from_secs(30);

/// `application_name` of these queries. It differs from that of a running pipeline, so that `postrider repair` and
/// `setup` do not find the pipeline running.
const APPLICATION_NAME: &str = "postrider (halted)";

/// `postrider_slot_state` of a slot that does not exist.
const MISSING: &str = "missing";

/// Updates the status of the slot while the pipeline is halted, until the process stops: the slot retains WAL
/// meanwhile, or is dropped. Each query has a short session of its own.
pub(super) async fn watch(spec: &PipelineSpec, status_handle: &StatusHandle, stop: &Stop) {
    loop {
        // A database that does not answer changes nothing: the last known values stay, and `source_contact_seconds`
        // grows.
        if let Ok(Ok((slot, wal_end))) = tokio::time::timeout(QUERY_MAX, query_while_halted(spec)).await
            // Polling has no slot, unless one was left behind.
            && (spec.common.mode != Mode::Poll || slot.is_some())
        {
            show(status_handle, slot.as_ref(), wal_end);
        }
        tokio::select! {
            () = stop.drain() => return,
            () = tokio::time::sleep(HALTED_INTERVAL) => {}
        }
    }
}

async fn query_while_halted(spec: &PipelineSpec) -> Result<(Option<SlotRow>, Offset), SourceError> {
    let control = Control::connect(&spec.conninfo, APPLICATION_NAME).await?;
    let server = catalog::read_server(control.client()).await?;
    let slot = catalog::read_slot(control.client(), server.version, &spec.names.slot).await?;
    Ok((slot, server.wal_end))
}

/// Updates the status with a slot that is not streamed from.
pub(super) fn show(status_handle: &StatusHandle, slot: Option<&SlotRow>, wal_end: Offset) {
    let since = |lsn: Option<Offset>| lsn.map(|lsn| wal_end.distance_from(lsn));
    status_handle.update(|snapshot| {
        snapshot.moments.source_contact_at = Some(std::time::Instant::now());
        snapshot.slot_state = match slot {
            Some(slot) => slot.wal_status.clone(),
            None => Some(MISSING.to_owned()),
        };
        snapshot.slot_safe_bytes = slot.and_then(|slot| slot.safe_wal_size);
        snapshot.read.wal_end = Some(wal_end.to_string());
        snapshot.slot_retained_bytes = since(slot.and_then(|slot| slot.restart_lsn));
        let confirmed = slot.and_then(|slot| slot.confirmed_flush_lsn);
        snapshot.confirmed_flush_lsn = confirmed.map(|lsn| lsn.to_string());
        if let Some(bytes) = since(confirmed) {
            snapshot.lag_bytes = bytes;
        }
    });
}

/// The publication was changed while it was streamed, and no row is known that the change left out. `undone`: it was
/// changed back, or created again.
fn publication_changed(pipeline: &str, publication: &str, undone: bool) {
    if undone {
        warn!(
            event = "publication_changed",
            pipeline,
            publication,
            "the publication was changed and changed back, or created again, while it was streamed; the table has no \
             row that was committed in this time, so nothing is known to be left out"
        );
    } else {
        warn!(
            event = "publication_changed",
            pipeline,
            publication,
            "the publication was changed while it was streamed; one ALTER PUBLICATION explains the difference, and \
             what the pipeline publishes was published before and after it"
        );
    }
}

/// A partition of the outbox table, or of a captured table, was attached with rows in it, or detached.
fn partition_changed(pipeline: &str, change: &LeafChange, is_captured: bool) {
    let partition = change.name.to_string();
    if change.detached && is_captured {
        warn!(
            event = "partition_detached",
            pipeline,
            partition,
            "the partition was detached: its rows are not in the table any more, and the stream has no deletion of \
             them; changes of it from now on are not published"
        );
    } else if change.detached {
        info!(
            event = "partition_detached",
            pipeline,
            partition,
            "the partition was detached: rows inserted into it from now on are no events; those that were committed \
             before are still streamed"
        );
    } else if change.bytes > 0 {
        warn!(
            event = "partition_attached",
            pipeline,
            partition,
            bytes = change.bytes,
            hint = "those that are not published: delete and insert them again through the partitioned table, in one \
                    transaction",
            "a table with rows was attached as a partition: rows inserted before that are in no stream"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The levels for a limit of 100 bytes.
    fn levels(strict: bool, retained: &[u64]) -> String {
        let mut limit = WalRetentionLimit::new(100, strict);
        let level = |retained: &u64| match limit.assess(*retained) {
            RetentionLevel::BelowHalf => 'w',
            RetentionLevel::AboveHalf => 'h',
            RetentionLevel::Exceeded => 'P',
        };
        retained.iter().map(level).collect()
    }

    #[test]
    fn levels_are_half_and_all_of_the_limit() {
        for strict in [false, true] {
            assert_eq!(levels(strict, &[0, 50, 51, 100, 40, 101]), "wwhhwP");
        }
    }

    #[test]
    fn backlog_from_before_the_start_may_be_published_but_not_grow() {
        assert_eq!(levels(false, &[300, 325, 310, 200, 225]), "hhhhh");
        assert_eq!(levels(false, &[300, 326]), "hP");
        assert_eq!(levels(false, &[300, 200, 226]), "hhP");
        assert_eq!(levels(false, &[300, 90, 116]), "hhP");
        assert_eq!(levels(false, &[300, 60, 101]), "hhP");
    }

    #[test]
    fn no_backlog_is_published_above_the_limit_if_the_table_can_be_polled() {
        assert_eq!(levels(true, &[300]), "P");
        assert_eq!(levels(true, &[60, 101]), "hP");
    }
}
