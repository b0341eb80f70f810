//! Frames of the stream into the relay, and its records into the sink: what `driver::feed` does.

use super::broker::{NotTaken, Record};
use super::plan::Bad;
use super::postgres::{Change, at};
use super::session::Stage;
use super::walsender::Frame;
use super::world::World;
use super::{Check, wrong};
use crate::relay::{Change as RelayChange, Effect, Input};
use postrider_core::error::{Halt, HaltReason};
use postrider_core::event::{Aggregate, PgTime};
use postrider_core::parked::Entry;
use postrider_core::record::Ticket;
use std::time::Duration;

/// Names of aggregates; the last is nobody's.
const NAMES: [&str; 8] = ["a", "b", "c", "d", "e", "f", "fresh", "nobody"];

/// What is to be done with the record at hand.
enum Answer {
    Publish(Ticket),
    Park(Entry),
    Nothing,
}

#[expect(clippy::unnecessary_box_returns, reason = "every input that halts wants a box")]
pub(super) fn halt(reason: HaltReason) -> Box<Halt> {
    let (message, meaning, hint) = (String::new(), String::new(), String::new());
    Box::new(Halt { reason, message, meaning, hint })
}

fn take_answer(effects: &mut Vec<Effect>, first: usize) -> Answer {
    let at_hand = |effect: &Effect| matches!(effect, Effect::Publish(_) | Effect::Park { .. });
    let Some(at) = effects.iter().skip(first).position(at_hand) else { return Answer::Nothing };
    let effect = effects.remove(first + at);
    if let Effect::Park { ticket: _, entry, reason: _ } = effect {
        return Answer::Park(entry);
    }
    if let Effect::Publish(ticket) = effect { Answer::Publish(ticket) } else { Answer::Nothing }
}

impl World {
    /// Feeds frames until something stops it.
    pub(super) fn feed(&mut self, i: usize) -> Check {
        for _ in 0..self.rng.range(1, self.plan.knobs.frames_max) {
            let process = &self.procs[i];
            if process.relay.stopping() || process.ending() {
                return Ok(());
            }
            let Stage::Streaming(session) = &process.stage else { return Ok(()) };
            let Some(frame) = session.frames.front().copied() else { return Ok(()) };
            if !self.frame(i, frame)? {
                return Ok(());
            }
            if let Stage::Streaming(session) = &mut self.procs[i].stage {
                session.frames.pop_front();
            }
        }
        Ok(())
    }

    /// Whether the frame is done with.
    fn frame(&mut self, i: usize, frame: Frame) -> Check<bool> {
        match frame {
            Frame::Keepalive { wal_end } => {
                self.apply(i, Input::Keepalive { wal_end: at(wal_end) })?;
            }
            Frame::Begin { commit } => {
                let commit_time = PgTime::default();
                self.apply(i, Input::Begin { commit_lsn: at(commit), commit_time })?;
            }
            Frame::Commit { commit, end } => {
                self.apply(i, Input::Commit { commit_lsn: at(commit), end_lsn: at(end) })?;
            }
            Frame::Change(change) => return self.change(i, change),
        }
        Ok(true)
    }

    fn change(&mut self, i: usize, change: Change) -> Check<bool> {
        let relay = &self.procs[i].relay;
        let known = relay.upcoming().is_none();
        if !known && !relay.intake_open() {
            return Ok(false);
        }
        let Change::Event(event) = change else {
            self.apply(i, Input::Change(RelayChange::Skipped))?;
            return Ok(true);
        };
        if known {
            self.apply(i, Input::Change(RelayChange::Skipped))?;
            return Ok(true);
        }
        let what = &self.truth.events[event];
        let id = NAMES[what.aggregate.unwrap_or(NAMES.len() - 1)];
        let aggregate = Aggregate { kind: "order", id };
        if let Bad::Poison { known } = self.truth.bad(event, self.now) {
            let aggregate = known.then_some(aggregate);
            self.truth.events[event].refused += 1;
            let halt = halt(HaltReason::PoisonEvent);
            return self.refused(i, event, Input::Change(RelayChange::Poison { aggregate, halt }));
        }
        if !relay.admits(aggregate) {
            return Ok(false);
        }
        let size_bytes = usize::try_from(what.size).unwrap();
        let wait = Duration::from_millis(what.not_before.saturating_sub(self.now));
        let overtaken = relay.is_overtaken(what.position);
        let first = self.procs[i].effects.len();
        self.apply(i, Input::Change(RelayChange::Event { aggregate, size_bytes, wait }))?;
        let ticket = match take_answer(&mut self.procs[i].effects, first) {
            // What the driver takes the record's position off by: consumers have a later event of its aggregate.
            Answer::Publish(_) if self.procs[i].overtaken.contains(&event) && !overtaken => {
                let position = self.truth.events[event].position;
                return wrong(format!("{position} was overtaken, and comes with its position"));
            }
            Answer::Publish(ticket) => ticket,
            Answer::Park(entry) => {
                self.keep(i, entry, event)?;
                return Ok(true);
            }
            Answer::Nothing => return Ok(true),
        };
        self.boundary(i)?;
        // In runs with large records it is the broker that refuses one for its size.
        let is_judged = self.large_in_1000 > 0 && self.truth.bad(event, self.now) == Bad::TooLarge;
        let large = self.large.chance(self.large_in_1000) || is_judged;
        if large && !self.procs[i].relay.sends_exclusively() {
            self.apply(i, Input::NeedsExclusive { ticket })?;
            return Ok(false);
        }
        let record = Record { ticket, event, version: 0 };
        let taken = if is_judged { self.send_refused(i, record) } else { self.enqueue(i, record) };
        self.boundary(i)?;
        self.taken(i, event, ticket, taken)
    }

    /// What the sink answered to a record of the stream; whether the next change is read.
    fn taken(
        &mut self,
        i: usize,
        event: usize,
        ticket: Ticket,
        taken: Result<(), NotTaken>,
    ) -> Check<bool> {
        match taken {
            Ok(()) => Ok(true),
            // Its destination was waited for long enough, or what is known of it may be old.
            Err(NotTaken::Destination) if self.late.chance(300) => {
                let old = self.late.chance(500);
                let soon = self.large.chance(500);
                let input = if old {
                    Input::StaleDestination { ticket }
                } else {
                    Input::Unavailable { ticket, soon }
                };
                self.refused(i, event, input)
            }
            Err(NotTaken::Full | NotTaken::Destination) => {
                self.apply(i, Input::NotTaken { ticket })?;
                Ok(false)
            }
            Err(NotTaken::Refused(reason)) => {
                let halt = halt(HaltReason::PoisonEvent);
                self.refused(i, event, Input::Refused { ticket, reason, halt })
            }
        }
    }

    /// The event can't be published.
    pub(super) fn refused(&mut self, i: usize, event: usize, input: Input<'_>) -> Check<bool> {
        let first = self.procs[i].effects.len();
        self.apply(i, input)?;
        if let Answer::Park(entry) = take_answer(&mut self.procs[i].effects, first) {
            self.keep(i, entry, event)?;
        }
        Ok(true)
    }
}
