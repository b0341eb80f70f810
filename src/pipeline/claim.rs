//! The session of the claims: what [`Claims`](crate::claims::Claims) require of it, as statements.

use super::claim_reader::ClaimReader;
use super::commit_watchdog::unless_stopped;
use super::connect::load_all;
use super::record_buffer::undecided;
use super::spec::PipelineSpec;
use super::stop::Stop;
use crate::claims::{ClaimedRow, Claims, NewClaim, ParkPlan, WrittenAs};
use crate::engine::Engine;
use crate::event::{Aggregate, Position};
use crate::outbox::Role;
use crate::outbox_rows::RowOutcome;
use crate::parked::{Lane, Parked};
use crate::postgres::SourceError;
use crate::postgres::poll::{Claim, MissedRows, OldestReady, PayloadCopy};
use crate::postgres::repair::RepairReader;
use crate::postgres::store::parked::{self, Loaded, Stored};
use crate::postgres::store::{cursor, requeue};
use crate::published::ParkedRow;
use crate::row::{OwnedTable, Row};
use std::borrow::Cow;
use std::sync::Arc;
use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_postgres::Client;

/// The session that claims rows, and the newest claim.
pub(super) struct ClaimPort {
    /// Claims rows.
    reader: ClaimReader,
    /// The pipeline.
    spec: Arc<PipelineSpec>,
    /// The rows of the newest claim, until it is settled.
    rows: Option<Claim>,
    /// When it was requested.
    claimed_at: Instant,
    /// When the newest claim began that took every ready row; `None` once rows were left.
    empties_since: Option<Instant>,
}

/// What is to be logged of a claim.
pub(super) struct ClaimReport {
    /// Rows that have expired.
    pub(super) expired: u64,
    /// Rows that the claim could not have.
    pub(super) missed: MissedRows,
}

/// Rows that are parked in the transaction of a claim.
pub(super) struct ParkedInClaim<'a> {
    /// The rows.
    rows: Cow<'a, [Parked]>,
    /// Those among them of which it was found only now that they are in doubt.
    found_now: Vec<usize>,
}

impl ClaimPort {
    pub(super) fn new(reader: ClaimReader, spec: Arc<PipelineSpec>) -> Self {
        Self { reader, spec, rows: None, claimed_at: Instant::now(), empties_since: None }
    }

    /// The client of the session. While a claim is open, it is in the transaction of the claim.
    pub(super) fn client(&self) -> &Client {
        self.reader.client()
    }

    /// The description of the table.
    pub(super) fn description(&self) -> OwnedTable {
        self.reader.description()
    }

    /// The query for the oldest row that is ready; a list has none.
    pub(super) fn oldest_ready(&self) -> Option<OldestReady> {
        self.reader.oldest_ready()
    }

    /// The list of a repair, if its rows are claimed.
    pub(super) fn repairs(&self) -> Option<&RepairReader> {
        self.reader.repairs()
    }

    /// Notified of new rows.
    pub(super) fn wake(&self) -> Arc<Notify> {
        self.reader.wake()
    }

    /// Waits until the session ends; returns the reason. Cancel-safe.
    pub(super) async fn closed(&mut self) -> SourceError {
        self.reader.closed().await
    }

    /// Releases the pipeline's lock. The session is not used any more.
    pub(super) async fn unlock(&self) -> Result<(), SourceError> {
        self.reader.unlock(self.spec.key()).await
    }

    /// Row `index` of the newest claim.
    pub(super) fn row(&self, index: usize) -> Option<Row<'_>> {
        self.rows.as_ref()?.rows.row(index)
    }

    /// Claims rows; `None` if a stop is requested, and nothing was claimed. `all`: delayed and failed rows too.
    /// Rows whose ids meet `keeps` do not expire.
    pub(super) async fn claim(
        &mut self,
        (limit, all): (usize, bool),
        keeps: &(dyn Fn(&str) -> bool + Sync),
        stop: &Stop,
    ) -> Result<Option<NewClaim>, SourceError> {
        self.claimed_at = Instant::now();
        let reader = &mut self.reader;
        let canceller = reader.canceller();
        let claim = reader.claim(limit, all, keeps);
        let Some(claim) = unless_stopped(stop, canceller, claim).await? else {
            self.reader.abandon().await?;
            return Ok(None);
        };
        let drained = self.reader.repairs().is_some_and(RepairReader::drained);
        let claimed = new_claim(&claim, drained);
        self.rows = Some(claim);
        Ok(Some(claimed))
    }

    /// The newest claim is accepted; `None` if there is none. `reads_list`: of a repair.
    pub(super) fn accepted(&mut self, reads_list: bool) -> Option<ClaimReport> {
        let claim = self.rows.as_mut()?;
        let takes_all = !claim.more && claim.withheld == 0 && !reads_list;
        self.empties_since = takes_all.then_some(self.claimed_at);
        let report =
            ClaimReport { expired: claim.expired, missed: std::mem::take(&mut claim.missed) };
        if claim.rows.is_empty() {
            self.rows = None;
        }
        Some(report)
    }

    /// All claimed rows are settled. Returns when the claim began, if it took every ready row.
    pub(super) fn processed(&mut self) -> Option<Instant> {
        self.empties_since.take()
    }

    /// How `rows` are parked. Those that may be parked already are compared with the parked event.
    pub(super) async fn plan_parking(
        &self,
        rows: &[Parked],
        claims: &mut Claims,
        engine: &mut Engine,
    ) -> Result<ParkPlan, SourceError> {
        let claim = self.rows.as_ref().filter(|_| self.spec.common.dead_topic.is_some());
        let dies = |row: &Parked| {
            let index = usize::try_from(row.entry.position.ordinal).ok()?;
            self.reader.dies(&claim?.rows.row(index)?)
        };
        let of = |row| ParkedRow { dies: dies(row), ..ParkedRow::of(row) };
        let parked: Vec<ParkedRow<'_>> = rows.iter().map(of).collect();
        let compared = claims.to_compare(&parked, engine);
        let compared = compared.into_iter().filter_map(|(at, row)| Some((at, rows.get(row)?)));
        let compared: Vec<(Position, &Parked)> = compared.collect();
        let alike = requeue::alike(self.client(), self.spec.key(), &compared).await?;
        Ok(claims.plan_parking(&parked, &alike, engine))
    }

    /// Writes parked rows in the transaction of the claim. If the outbox table has columns for failures, the row gets
    /// its failure instead.
    pub(super) async fn park(
        &self,
        epoch: i64,
        plan: &ParkPlan,
        rows: &ParkedInClaim<'_>,
    ) -> Result<Stored, SourceError> {
        let (client, key) = (self.client(), self.spec.key());
        requeue::move_rows(client, key, &plan.moves).await?;
        let stored = parked::write(client, key, epoch, &rows.rows, &[]).await?;
        if stored != Stored::TakenOver {
            self.copy_payloads(&plan.payloads).await?;
        }
        Ok(stored)
    }

    /// Makes the server copy the payloads of parked rows that were not read.
    async fn copy_payloads(&self, payloads: &[(usize, Position)]) -> Result<(), SourceError> {
        let Some(claim) = &self.rows else { return Ok(()) };
        let payload = self.spec.common.outbox.column(Role::Payload).unwrap_or_default();
        for (row, position) in payloads.iter().copied() {
            let key = self.spec.key();
            let keep = PayloadCopy { claim, row, payload, key, position };
            self.reader.keep_value(&keep).await?;
        }
        Ok(())
    }

    /// Writes the outcomes of a claim, and commits; returns whether this process still owns the pipeline. If another
    /// process has taken over, nothing is written.
    pub(super) async fn settle(
        &mut self,
        epoch: i64,
        outcomes: &[RowOutcome],
        (undo_from, places): (Option<Position>, &[(Position, Position)]),
    ) -> Result<bool, SourceError> {
        let claim = self.rows.take();
        let key = self.spec.key();
        // Checked in the transaction of the claim: a process that takes over now waits for its commit.
        if !cursor::is_owned(self.reader.client(), key, epoch).await? {
            self.reader.abandon().await?;
            return Ok(false);
        }
        if let Some(from) = undo_from {
            requeue::undo_parking(self.reader.client(), key, from, places).await?;
        }
        match claim {
            Some(claim) => self.reader.settle(claim, outcomes).await.map(|()| true),
            None => Ok(true),
        }
    }

    /// Writes the outcomes of a part of a claim, and commits; the rows `left` stay in the claim. Returns whether they
    /// could be kept; `None` if this process does not own the pipeline any more, and nothing is written.
    pub(super) async fn settle_part(
        &mut self,
        epoch: i64,
        outcomes: &[RowOutcome],
        left: &[usize],
    ) -> Result<Option<bool>, SourceError> {
        // As in `settle`.
        if !cursor::is_owned(self.reader.client(), self.spec.key(), epoch).await? {
            self.reader.abandon().await?;
            self.rows = None;
            return Ok(None);
        }
        match &self.rows {
            Some(claim) => self.reader.settle_part(claim, outcomes, left).await.map(Some),
            None => Ok(Some(true)),
        }
    }

    /// Gives up the open claim.
    pub(super) async fn abandon(&mut self) -> Result<(), SourceError> {
        self.reader.abandon().await?;
        self.rows = None;
        Ok(())
    }

    /// Sends a statement while a page of a list is open.
    pub(super) async fn keep_open(&self) -> Result<(), SourceError> {
        self.reader.keep_open().await
    }

    /// Reads all parked events as this session sees them: its claim may have parked some.
    pub(super) async fn load_parked(&self) -> Result<Vec<Loaded>, SourceError> {
        load_all(self.client(), self.spec.key()).await
    }
}

impl<'a> ParkedInClaim<'a> {
    /// The rows to write, by the plan.
    pub(super) fn of(plan: &ParkPlan, rows: &'a [Parked]) -> Self {
        if plan.all_as_they_are {
            return Self { rows: Cow::Borrowed(rows), found_now: Vec::new() };
        }
        let (mut written, mut doubted) = (Vec::with_capacity(plan.rows.len()), Vec::new());
        for (index, how) in &plan.rows {
            let Some(row) = rows.get(*index) else { continue };
            written.push(match *how {
                WrittenAs::Parked => row.clone(),
                WrittenAs::DeadLetter { entry } => Parked { entry, ..row.clone() },
                WrittenAs::Undecided { entry, found_now } => {
                    if found_now {
                        doubted.push(written.len());
                    }
                    undecided(row, entry)
                }
            });
        }
        Self { rows: Cow::Owned(written), found_now: doubted }
    }

    /// The rows of which it was found only now that they are in doubt.
    pub(super) fn doubted(&self) -> impl Iterator<Item = &Parked> {
        self.found_now.iter().filter_map(|index| self.rows.get(*index))
    }
}

/// A claim, as the core knows it.
fn new_claim(claim: &Claim, drained: bool) -> NewClaim {
    let row = |row| ClaimedRow {
        key: Lane::of(Aggregate { kind: "", id: claim.key(row) }),
        xmin: claim.xmin(row),
        too_large: claim.is_too_large(row),
    };
    NewClaim {
        wal_end: claim.at,
        claimed_at: claim.claimed_at,
        rows: (0..claim.rows.len()).map(row).collect(),
        more: claim.more,
        withheld: claim.withheld,
        expired: claim.expired,
        drained,
    }
}
