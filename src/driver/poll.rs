//! Polling: the same relay, fed with claims of the outbox table instead of a stream.
//!
//! One claim at a time: claimed, fed, published, settled. Nothing is marked before the broker's acknowledgement, and a
//! connection that is lost leaves the rows as they were: they are claimed and published again.

mod claims;
mod locked;
mod looks;
mod turn;

pub(super) use turn::Turn;

use super::claim::Open;
use super::former;
use super::history::History;
use super::parking::{Desk, wishes};
use super::patience::unless_stopped;
use super::pipeline::{Pipeline, Waited};
use super::reader::Reader;
use super::renewal::Renewal;
use super::returning::Returning;
use super::run::{Exit, Stop};
use super::say::{self, Expiry};
use super::session::End;
use super::spec::Mode;
use crate::ack::Progress;
use crate::backoff::Backoff;
use crate::lsn::{Lsn, Watermark};
use crate::parked::Entry;
use crate::pgoutput::{self, Message};
use crate::postgres::SourceError;
use crate::postgres::action::Phase;
use crate::postgres::cursor::Written;
use crate::postgres::parked::{Loaded, Stored};
use crate::postgres::poll::{CLAIM_ROWS_MAX, PollSpec};
use crate::postgres::server::Instance;
use crate::relay::{Effect, Input, Restart};
use locked::LockedRows;
use looks::RowLooks;
use std::sync::Arc;
use tokio::time::Instant;

/// The sessions of a pipeline that polls, and the claim at hand.
pub(super) struct Polling {
    pub(super) poller: Reader,
    pub(super) desk: Desk,
    pub(super) parked: Vec<Loaded>,
    /// The server's end of WAL when this began.
    pub(super) start: Lsn,
    /// The server.
    pub(super) server: History,
    /// The process of the server, which other sessions of the pipeline must reach too.
    pub(super) instance: Instance,
    /// Failures are kept in the outbox table itself.
    pub(super) keeps_failures: bool,
    /// The same for the claim at hand.
    pub(super) keeps_now: bool,
    pub(super) open: Option<Open>,
    /// A row failed, and the table says so: the relay's memory of it is over with the claim.
    pub(super) failed: bool,
    /// The end of the claim before.
    floor: Lsn,
    /// What is parked is to be read again, as soon as no write is under way.
    anew: Anew,
    /// The pauses before a claim is fed again, since one was settled; and the end of the one at hand.
    again: Backoff,
    again_at: Instant,
    limit: usize,
    /// Rows of the next claim, at most: fewer where one was held too long.
    limit_max: usize,
    next_at: Instant,
    /// `mode = "auto"`: the slot that is to be streamed from again.
    pub(super) renewal: Option<Renewal>,
    leave_at: Option<Instant>,
    looks: RowLooks,
    locked: LockedRows,
    /// When the newest claim began that took all that was ready; none since rows were left.
    empties_since: Option<Instant>,
}

/// Whether what is parked is to be read again.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Anew {
    No,
    /// Since then.
    Due(Instant),
    /// By the claim's own session, if there is one: positions mean what they meant.
    SameHistory,
}

/// How polling comes to its end.
pub(super) enum Over {
    Exit(Exit),
    /// All that the new slot does not bring is published.
    Streams,
    /// Another process has taken the pipeline over.
    Overruled,
    /// Another cluster answers than the session began with.
    Located,
}

impl Polling {
    pub(super) fn new(
        poller: Reader,
        desk: Desk,
        parked: Vec<Loaded>,
        (start, server, instance): (Lsn, History, Instance),
        keeps_failures: bool,
    ) -> Self {
        let looks = RowLooks::new(desk.control.shared_client(), poller.oldest_ready());
        Self {
            looks,
            locked: LockedRows::default(),
            empties_since: None,
            poller,
            desk,
            parked,
            start,
            server,
            instance,
            keeps_failures,
            keeps_now: keeps_failures,
            open: None,
            failed: false,
            floor: start,
            anew: Anew::No,
            again: claims::AGAIN,
            again_at: Instant::now(),
            limit: 0,
            limit_max: CLAIM_ROWS_MAX,
            next_at: Instant::now(),
            renewal: None,
            leave_at: None,
        }
    }
}

impl Pipeline {
    /// Polls until something ends it.
    pub(super) async fn poll(&mut self, mut polling: Polling, stop: &Stop) -> End {
        let Polling { poller, desk, .. } = &mut polling;
        match Box::pin(former::wait(self, desk, poller.closed(), stop)).await {
            Waited::Done(Ok(true)) => {}
            Waited::Done(Ok(false)) => return End::Restart,
            Waited::Done(Err(error)) => return End::Lost(error, Phase::Control),
            Waited::Over(exit) => return End::Over(exit),
        }
        self.shelf.failures_stay = polling.keeps_failures;
        let expires = self.spec.poll.table.as_ref().is_some_and(PollSpec::expires);
        if expires && polling.poller.repairs().is_none() {
            self.tell.expiry = Expiry::Left;
        }
        self.marking.polls(true);
        let end = self.poll_on(polling, stop).await;
        self.marking.polls(false);
        self.tell.expiry = Expiry::Judged;
        self.shelf.failures_stay = false;
        self.returning = Returning::default();
        end
    }

    async fn poll_on(&mut self, mut polling: Polling, stop: &Stop) -> End {
        if let Err(halt) = self.renew_mapper(&polling.desk, true) {
            return End::Over(Exit::Halted(halt));
        }
        let in_its_stead = self.spec.mode == Mode::Auto && polling.poller.repairs().is_none();
        let canceller = polling.desk.control.canceller();
        let looks = Box::pin(self.look_before_polling(&mut polling, in_its_stead, stop));
        match unless_stopped(stop, canceller, looks).await {
            Ok(Some(())) => {}
            // Nothing was claimed yet, and nothing is in flight.
            Ok(None) => {
                self.apply(self.now(), Input::Drain);
                self.apply(self.now(), Input::SourceLost);
                let exit = self.outcome().unwrap_or(Exit::Stopped);
                if self.leave_nothing_in_flight() {
                    former::leave(self, &polling.desk).await;
                }
                return End::Over(exit);
            }
            Err(error) => return End::Lost(error, Phase::Control),
        }
        if let Some(halt) = self.begin_polling(&polling, false) {
            return End::Over(Exit::Halted(halt));
        }
        if self.spec.mode == Mode::Poll {
            polling.looks.watch_slot(Arc::clone(&self.spec));
        }
        if in_its_stead {
            let lets_go = std::mem::take(&mut self.lets_go);
            polling.renewal = Some(Renewal::new(lets_go));
            self.handed.begins(polling.desk.former.epoch, polling.desk.epoch);
        }
        loop {
            match self.poll_turn(&mut polling, stop).await {
                Ok(None) => {}
                Ok(Some(Over::Streams)) => {
                    // A service goes on as the owner; a repair by hand ends here.
                    if self.spec.only_repair && self.leave_nothing_in_flight() {
                        former::leave(self, &polling.desk).await;
                    }
                    // The session may outlive this for a moment, and the stream asks for the lock at once.
                    if let Err(error) = polling.poller.unlock(self.spec.name()).await {
                        return End::Lost(error, Phase::Control);
                    }
                    self.apply(self.now(), Input::SourceLost);
                    return self.outcome().map_or(End::Restart, End::Over);
                }
                Ok(Some(Over::Overruled | Over::Located)) => {
                    self.apply(self.now(), Input::SourceLost);
                    return self.outcome().map_or(End::Restart, End::Over);
                }
                Ok(Some(Over::Exit(exit))) => {
                    let left = self.leave_nothing_in_flight();
                    if let Err(error) = self.settle_claim(&mut polling, stop).await {
                        say::shutdown_error(self, &error);
                    }
                    if left {
                        former::leave(self, &polling.desk).await;
                    }
                    return End::Over(exit);
                }
                Err(error) => {
                    // Nothing is known of the claim at hand: all of it is claimed again.
                    self.apply(self.now(), Input::SlotTaken);
                    self.apply(self.now(), Input::SourceLost);
                    return self.outcome().map_or(End::Lost(error, Phase::Control), End::Over);
                }
            }
        }
    }

    /// What is asked of the table before the first claim; each may take as long as a statement may.
    async fn look_before_polling(
        &mut self,
        polling: &mut Polling,
        in_its_stead: bool,
        stop: &Stop,
    ) -> Result<(), SourceError> {
        // Marked first: what the cursor row has passed does not come again.
        if in_its_stead {
            self.mark_streamed(polling).await?;
        }
        if polling.poller.repairs().is_none() && !self.tell.polling {
            self.look_for_unmarked(polling).await;
        }
        self.find_returning(polling, stop).await
    }

    /// Tells mapper and relay where it begins, and whether positions mean what they meant; a halt where the table does
    /// not fit.
    fn begin_polling(&mut self, polling: &Polling, same: bool) -> Option<Box<crate::error::Halt>> {
        self.mapper.forget_relations(Some(polling.poller.table_oid()));
        if let Ok(Message::Relation(relation)) = pgoutput::decode(&polling.poller.relation())
            && let Err(error) = self.mapper.relation(&relation)
        {
            return Some(Box::new(super::halts::unfit_table(&error)));
        }
        self.history = None;
        self.destinations.awaits(None);
        self.confirmed = Watermark::default();
        let start = Progress { watermark: Watermark::from_keepalive(polling.start), partial: None };
        let cursor = if same { self.relay.progress() } else { start };
        let entries: Vec<Entry> = polling.parked.iter().map(|row| row.entry).collect();
        let entries = match &polling.open {
            Some(open) => open.parked(entries),
            None => entries,
        };
        let wishes = wishes(&polling.parked);
        let (parked, wishes) = (entries.as_slice(), wishes.as_slice());
        let (same_history, same_owner) = (same, same);
        let started = Input::Started { cursor, same_history, same_owner, parked, wishes };
        self.relay.apply(self.now(), started, &mut self.effects);
        // What is out of the time before goes with its producer. No claim does: none is open where there is such.
        let past = Effect::Restart { why: Restart::SlotTaken };
        if let Some(index) = self.effects.iter().position(|effect| *effect == past) {
            self.effects.remove(index);
            self.reset_sink(Restart::SlotTaken);
        }
        self.go_on_with(&polling.parked);
        say::polling(self);
        None
    }

    async fn poll_turn(
        &mut self,
        polling: &mut Polling,
        stop: &Stop,
    ) -> Result<Option<Over>, SourceError> {
        let now = self.now();
        self.take_posts(now);
        if self.cluster.located {
            say::located(self);
            return Ok(Some(Over::Located));
        }
        self.offer_tries(now);
        if polling.anew == Anew::No
            && let Some(mut open) = polling.open.take()
        {
            self.feed_claim(now, &mut open);
            polling.open = Some(open);
        }
        if let Some(exit) = self.perform_polling(polling, stop).await? {
            return Ok(Some(Over::Exit(exit)));
        }
        if polling.desk.overruled {
            return Ok(Some(Over::Overruled));
        }
        self.begin_anew(polling, stop).await?;
        let resolved = polling.open.as_ref().is_some_and(|open| self.claim_is_resolved(open));
        if resolved {
            self.end_claim(polling, stop).await?;
            return Ok(self.hands_over(polling, stop).await?.then_some(Over::Streams));
        }
        self.writes_wait(polling.desk.jobs.written_since());
        self.report_sometimes(None);
        let turn = self.wait_polling(polling, stop).await;
        self.react_polling(polling, turn, stop).await
    }

    /// Performs the relay's effects; the exit, if it has come to its end.
    async fn perform_polling(
        &mut self,
        polling: &mut Polling,
        stop: &Stop,
    ) -> Result<Option<Exit>, SourceError> {
        let mut exit = None;
        // An end waits for its cursor row, and the claim for the end.
        if self.relay.stopping() && polling.open.as_mut().is_some_and(Open::takes_cursor) {
            self.apply(self.now(), Input::CursorWritten);
        }
        while !self.effects.is_empty() {
            for effect in std::mem::take(&mut self.effects) {
                match effect {
                    Effect::Publish(_) | Effect::Park { .. } | Effect::Confirm(_) => {}
                    Effect::Published { ticket, commit_time } => {
                        self.published(ticket, commit_time);
                        if let Some(open) = &mut polling.open {
                            open.acknowledged(ticket);
                        }
                    }
                    Effect::Sound { ticket, position } => self.shelf.sound(ticket, position),
                    // Its row is committed with the claim: it is found when all is read again.
                    Effect::Letter { ticket, position }
                        if polling.desk.jobs.unseen == Some(position.commit_lsn) =>
                    {
                        polling.failed = true;
                        self.apply(self.now(), Input::Gone { ticket });
                    }
                    Effect::Letter { ticket, position } => {
                        self.shelf.send_letter(ticket, position);
                    }
                    Effect::Overtaken { position, by } => say::overtaken(self, position, by),
                    Effect::Undelivered { position, reason } => {
                        say::undelivered(self, position, reason);
                    }
                    Effect::Released { position } => self.released(position),
                    Effect::Try { ticket, position } => {
                        self.shelf.try_again(ticket, position);
                    }
                    // What is published stands in the table itself, once the claim is committed: before that no
                    // parked event of it may be tried, nor before a new beginning that follows it.
                    Effect::WriteCursor(_) if self.relay.stopping() => {
                        self.apply(self.now(), Input::CursorWritten);
                    }
                    Effect::WriteCursor(_) => match (&mut polling.open, polling.anew) {
                        (Some(open), _) => open.cursor_waits = true,
                        (None, Anew::Due(_)) => {}
                        (None, Anew::No | Anew::SameHistory) => {
                            self.apply(self.now(), Input::CursorWritten);
                        }
                    },
                    Effect::WriteParking { rows: 0, marks } => {
                        self.write_parking(&mut polling.desk, 0, marks);
                    }
                    Effect::WriteParking { rows, marks } => {
                        let stored = self.park_in_claim(polling, rows, marks, stop).await?;
                        if stored == Stored::TakenOver {
                            polling.desk.overruled = true;
                            say::row_taken(self, &Written::TakenOver);
                            self.apply(self.now(), Input::SlotTaken);
                        } else {
                            // Who has locked what is left out is found out by the next write.
                            self.parking_written(self.now(), &stored, &[]);
                        }
                    }
                    Effect::Restart { why } => self.send_again(polling, why).await?,
                    Effect::Drained => exit = Some(Exit::Stopped),
                    Effect::Halt(halt) => exit = Some(Exit::Halted(halt)),
                }
            }
        }
        self.fetch_for_tries(&mut polling.desk);
        self.observe_latency();
        Ok(exit)
    }
}
