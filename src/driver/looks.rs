//! Looks at the slot and the publication while a stream runs: what they hold back, and whether they still stand.
//!
//! One look at a time, on the control connection, never in the way of the stream. What is seen goes to the board; a
//! publication that no longer publishes the outbox is a halt, since PostgreSQL 18 skips its rows with a mere warning.

use super::alarm::Alarm;
use super::say;
use super::session::{Job, job};
use super::spec::PipelineSpec;
use crate::error::{Halt, HaltReason};
use crate::lsn::Lsn;
use crate::postgres::control;
use crate::postgres::cursor::Ledger;
use crate::postgres::fence::{Facts, Resume};
use crate::postgres::publication::{self, Change, Concerned, Version};
use crate::postgres::slot::{self, SlotRow};
use crate::postgres::table::{self, LeafChange};
use crate::postgres::{SourceError, bookmark, fence, parked};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;
use tokio_postgres::Client;

/// Pause between two looks: a handful of catalog queries of a millisecond together.
const INTERVAL: Duration = Duration::from_secs(5);

/// Pause between two times that resolved parked events are deleted.
pub(super) const PRUNE_INTERVAL: Duration = Duration::from_mins(1);

/// How long resolved parked events are kept, for people; those the stream may bring again are kept in any case.
pub(super) const KEPT: Duration = Duration::from_hours(7 * 24);

/// The publication that a stream reads through, as it was when the stream was last known to be whole.
#[derive(Clone, Debug)]
pub(super) struct Published {
    /// Which slot of the name: behind a new one older changes mean nothing.
    pub(super) slot_created_lsn: Lsn,
    /// `None` where it may have left out rows before the stream began: the start has said so.
    pub(super) version: Option<Version>,
    /// The outbox table's OID.
    pub(super) table: u32,
}

impl Published {
    /// As a stream begins; `None` without a table.
    pub(super) fn of(facts: &Facts, resume: &Resume) -> Option<Self> {
        let (table, publication) = (facts.table.as_ref()?, facts.publication.as_ref()?);
        Some(Self {
            slot_created_lsn: resume.cursor.slot_created_lsn,
            version: Some(publication.version.clone()).filter(|_| !facts.since.publication),
            table: table.oid,
        })
    }

    /// What a write of the cursor row may take for resolved.
    pub(super) fn ledger(&self) -> Ledger {
        match &self.version {
            Some(version) => Ledger::While(version.clone(), self.table),
            None => Ledger::Stopped,
        }
    }
}

/// What a look saw.
#[derive(Debug)]
pub(super) struct Look {
    pub(super) slot: Option<SlotRow>,
    /// End of the server's WAL.
    pub(super) wal_end: Lsn,
    /// How long the oldest parked event has been parked.
    pub(super) oldest_parked: Option<Duration>,
    /// The stream waits for a standby.
    pub(super) waits_for_standby: bool,
    /// OIDs of the outbox's partitions, ascending; empty where it has none.
    leaves: Vec<u32>,
    /// The publication, where the stream is known to be whole with it.
    version: Option<Version>,
    halt: Option<Halt>,
}

impl Look {
    /// WAL that the slot holds back. Unit: bytes.
    pub(super) fn retained(&self) -> Option<u64> {
        let restart = self.slot.as_ref()?.restart_lsn?;
        Some(self.wal_end.bytes_since(restart))
    }
}

pub(super) struct Looks {
    client: Arc<Client>,
    spec: Arc<PipelineSpec>,
    running: Option<Job<Look>>,
    next_at: Instant,
    alarm: Alarm,
    prune_at: Instant,
    latest: Option<Look>,
    /// `None` for a pipeline without a table.
    published: Option<Published>,
}

impl Looks {
    pub(super) fn new(
        client: Arc<Client>,
        spec: Arc<PipelineSpec>,
        published: Option<Published>,
    ) -> Self {
        let now = Instant::now();
        Self {
            client,
            spec,
            running: None,
            next_at: now,
            alarm: Alarm::default(),
            prune_at: now + PRUNE_INTERVAL,
            latest: None,
            published,
        }
    }

    /// Waits for the next look. Cancel-safe.
    pub(super) async fn next(&mut self) -> Result<Look, SourceError> {
        if self.running.is_none() {
            self.alarm.at(self.next_at).await;
            let (client, spec) = (Arc::clone(&self.client), Arc::clone(&self.spec));
            let before = self.latest.as_ref().map(|look| look.leaves.clone());
            let published = self.published.clone();
            let prune = self.prune_at <= Instant::now();
            if prune {
                self.prune_at = Instant::now() + PRUNE_INTERVAL;
            }
            self.running = Some(Box::pin(async move {
                if prune {
                    parked::prune(&client, spec.name(), Lsn::from_wire(u64::MAX), KEPT).await?;
                    let max = spec.bookmarks_retain_max;
                    for swept in bookmark::sweep(&client, spec.name(), max).await? {
                        say::bookmark_let_go(spec.name(), &swept, max);
                    }
                }
                let look = look(&client, &spec, published.as_ref()).await?;
                if let Some(before) = before {
                    for change in changes(&client, &before, &look.leaves).await? {
                        say::partition_changed(spec.name(), &change);
                    }
                }
                Ok(look)
            }));
        }
        let outcome = job(&mut self.running).await;
        self.running = None;
        self.next_at = Instant::now() + INTERVAL;
        outcome
    }

    /// Keeps a look, and gives back the halt it asks for.
    pub(super) fn keep(&mut self, mut look: Look) -> Option<Halt> {
        let halt = look.halt.take();
        if let (Some(published), Some(version)) = (&mut self.published, look.version.take()) {
            published.version = Some(version);
        }
        self.latest = Some(look);
        halt
    }

    /// What a write of the cursor row may take for resolved.
    pub(super) fn ledger(&self) -> Ledger {
        self.published.as_ref().map_or(Ledger::Kept, Published::ledger)
    }

    /// The publication, for the next stream's looks.
    pub(super) fn published(&self) -> Option<&Published> {
        self.published.as_ref()
    }

    /// The newest look.
    pub(super) fn latest(&self) -> Option<&Look> {
        self.latest.as_ref()
    }
}

async fn look(
    client: &Client,
    spec: &PipelineSpec,
    published: Option<&Published>,
) -> Result<Look, SourceError> {
    let columns = spec.columns();
    let facts = control::facts(client, &spec.ask(&None, &columns)).await?;
    let mut halt = fence::check_running(&facts).err().map(seen_late);
    let mut version = None;
    if halt.is_none()
        && let Some(before) = published.and_then(|published| published.version.as_ref())
    {
        match compared(client, spec, &facts, before).await? {
            Ok(now) => version = Some(now),
            Err(left_out) => halt = Some(left_out),
        }
    }
    let oldest_parked = parked::counts(client, spec.name()).await?.oldest;
    let waits_for_standby = match facts.slot.as_ref().and_then(|slot| slot.active_pid) {
        Some(pid) => slot::waits_for_standby(client, pid).await?,
        None => false,
    };
    let wal_end = facts.server.wal_end;
    let leaves = facts.table.map(|table| table.partitions.leaves).unwrap_or_default();
    Ok(Look { slot: facts.slot, wal_end, oldest_parked, waits_for_standby, leaves, version, halt })
}

/// The publication as it is now, where it has left out nothing since `before`; the halt, where it may have.
async fn compared(
    client: &Client,
    spec: &PipelineSpec,
    facts: &Facts,
    before: &Version,
) -> Result<Result<Version, Halt>, SourceError> {
    let (Some(now), Some(table)) = (&facts.publication, &facts.names.table) else {
        return Ok(Ok(before.clone()));
    };
    let concerned = match before.change(&now.version) {
        Change::Unchanged => return Ok(Ok(now.version.clone())),
        Change::Explained => None,
        Change::MayHaveLeftOut => Some(publication::concerned(client, table, before).await?),
    };
    let may_lose = |found: &Concerned| found.rows != Some(0) || found.open_writers;
    if let Some(concerned) = concerned.filter(may_lose) {
        return Ok(Err(fence::left_out(facts, concerned, INTERVAL)));
    }
    say::publication_changed(spec.name(), &facts.names.publication, concerned.is_some());
    Ok(Ok(now.version.clone()))
}

/// Partitions that were attached with what they held, or detached, since the look before.
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
    table::leaf_changes(client, &gone, &new).await
}

/// A publication that was changed under the stream left rows out from then on, and nothing in the stream says so.
fn seen_late(mut halt: Halt) -> Halt {
    if halt.reason == HaltReason::PublicationUnfit {
        let seconds = INTERVAL.as_secs();
        halt.meaning = format!(
            "rows committed since it was changed, as a rule not more than {seconds} s ago, may have been passed over: \
             they are still in the outbox unless the application deleted them; nothing more is confirmed while halted"
        );
    }
    halt
}
