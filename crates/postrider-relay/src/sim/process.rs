//! The fake driver's process: one relay, its producer, its records, and what it does with effects.
//!
//! Does what `driver::pipeline` and `driver::session` do, in the same order; the rows and tries of parked events are in
//! [`shelf`](super::shelf).

use super::broker::{NotTaken, Post, Producer, Record, TOO_LARGE};
use super::feed::halt;
use super::postgres::{Statement, at, watermark};
use super::session::Stage;
use super::shelf::{Shelf, Try};
use super::told::Told;
use super::world::World;
use super::{Check, Stop, wrong};
use crate::relay::{Effect, Input, Relay, Restart};
use postrider_core::error::HaltReason;
use postrider_core::record::{Outcome, Ticket};
use std::collections::BTreeSet;
use std::time::Duration;

/// As in `driver::pipeline`, in a world that is ten times as fast. Unit: milliseconds.
pub(super) const LEASE: u64 = 300;

/// Milliseconds by which a report of a producer that was thrown away may come late.
const STRAGGLES_MAX: u64 = 100;

#[derive(Debug)]
pub(super) struct Process {
    pub(super) relay: Relay,
    pub(super) producer: Producer,
    pub(super) mailbox: Vec<Post>,
    /// What a producer that was thrown away had begun to say, and when it comes.
    pub(super) stragglers: Vec<(u64, Ticket, Outcome)>,
    pub(super) shelf: Shelf,
    pub(super) effects: Vec<Effect>,
    pub(super) confirmed: u64,
    pub(super) stage: Stage,
    /// Of its last stream.
    pub(super) epoch: Option<u64>,
    pub(super) lease_ends: u64,
    born_at: u64,
    /// Boundaries of effects until it dies.
    pub(super) dies_after: Option<u64>,
    /// What was said by this producer, and by the one before.
    pub(super) told: Told,
    pub(super) told_before: Told,
    /// Events whose row has to say that they were overtaken.
    pub(super) overtaken: BTreeSet<usize>,
    /// What may be parked: what the stream brings again counts on top.
    pub(super) rows_max: u64,
}

impl Process {
    pub(super) fn new(world_now: u64, relay: Relay, producer: Producer) -> Self {
        Self {
            relay,
            producer,
            mailbox: Vec::new(),
            stragglers: Vec::new(),
            shelf: Shelf::default(),
            effects: Vec::new(),
            confirmed: 0,
            stage: Stage::Off { until: world_now },
            epoch: None,
            lease_ends: world_now,
            born_at: world_now,
            dies_after: None,
            told: Told::default(),
            told_before: Told::default(),
            overtaken: BTreeSet::new(),
            rows_max: 0,
        }
    }

    /// The relay's clock.
    pub(super) fn clock(&self, now: u64) -> Duration {
        Duration::from_millis(now - self.born_at)
    }

    /// When the relay wants to be called, by the world's clock.
    pub(super) fn due(&self) -> Option<u64> {
        let due = self.relay.deadline()?;
        // Rounded up: at the deadline it is over.
        Some(self.born_at + u64::try_from(due.as_nanos().div_ceil(1_000_000)).unwrap())
    }

    /// Whether an effect waits that ends the stream.
    pub(super) fn ending(&self) -> bool {
        let ends = |effect: &Effect| {
            matches!(effect, Effect::Restart { .. } | Effect::Drained | Effect::Halt(_))
        };
        self.effects.iter().any(ends)
    }

    pub(super) fn wants_records(&self) -> bool {
        self.shelf.wants_records()
    }
}

/// How a session ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum End {
    Over,
    Restart,
}

impl World {
    pub(super) fn apply(&mut self, i: usize, input: Input<'_>) -> Check {
        self.run.inputs += 1;
        let now = self.now;
        let mark = self.procs[i].effects.len();
        if self.telling {
            let line = format!("{input:?}");
            self.tell(i, &line);
        }
        let process = &mut self.procs[i];
        let clock = process.clock(now);
        process.relay.apply(clock, input, &mut process.effects);
        if self.telling {
            let told: Vec<String> =
                self.procs[i].effects[mark..].iter().map(|effect| format!("{effect:?}")).collect();
            for effect in told {
                self.tell(i, &format!("    {effect}"));
            }
        }
        self.check_bounds(i)
    }

    fn check_bounds(&self, i: usize) -> Check {
        let relay = &self.procs[i].relay;
        let settings = &self.plan.knobs.settings;
        let (events, bytes) = relay.in_flight();
        // Tries are counted among them.
        let (most, parked) = (settings.limits.events_max + 32, relay.parked().total());
        if events > most || bytes > settings.limits.bytes_max + 120 {
            return wrong(format!("{events} events and {bytes} bytes are in flight"));
        }
        // What the stream brings again may be parked again, beside what is parked behind it.
        if parked > self.procs[i].rows_max.max(settings.rules.rows_max) {
            return wrong(format!("{parked} events are parked"));
        }
        Ok(())
    }

    /// A boundary of an effect: here the process may die.
    pub(super) fn boundary(&mut self, i: usize) -> Check {
        match &mut self.procs[i].dies_after {
            None => Ok(()),
            Some(0) => Err(Stop::Died),
            Some(left) => {
                *left -= 1;
                Ok(())
            }
        }
    }

    /// Hands the relay everything the sink has said.
    pub(super) fn take_posts(&mut self, i: usize) -> Check {
        let now = self.now;
        let due: Vec<_> = self.procs[i].stragglers.extract_if(.., |(at, ..)| *at <= now).collect();
        for (_, ticket, outcome) in due {
            self.apply(i, Input::Report { ticket, outcome })?;
        }
        for post in std::mem::take(&mut self.procs[i].mailbox) {
            match post {
                Post::Report { record, outcome: TOO_LARGE, by: _ } => {
                    let (ticket, event) = (record.ticket, record.event);
                    let Outcome::Rejected { reason, .. } = TOO_LARGE else { continue };
                    let halt = halt(HaltReason::PoisonEvent);
                    self.refused(i, event, Input::Refused { ticket, reason, halt })?;
                }
                Post::Report { record, outcome, by } => {
                    if record.version == 0 && record.ticket.0 >> 63 == 0 {
                        self.note(i, record.event, outcome, by);
                    }
                    let mark = self.procs[i].effects.len();
                    self.apply(i, Input::Report { ticket: record.ticket, outcome })?;
                    self.check_told(i, record.event, mark)?;
                }
                Post::Broken => self.apply(i, Input::SinkBroken)?,
            }
        }
        Ok(())
    }

    /// An event that was overtaken and is published, is told as such.
    fn check_told(&mut self, i: usize, event: usize, mark: usize) -> Check {
        let process = &mut self.procs[i];
        let effects = process.effects.get(mark..).unwrap_or_default();
        let published = effects.iter().any(|effect| matches!(effect, Effect::Published { .. }));
        let told = effects.iter().any(|effect| matches!(effect, Effect::Overtaken { .. }));
        if published && process.overtaken.remove(&event) && !told {
            let position = self.truth.events[event].position;
            return wrong(format!("{position} was overtaken and published, and nothing says so"));
        }
        Ok(())
    }

    /// Performs the effects, in order, on a session.
    pub(super) fn perform(&mut self, i: usize) -> Check<Option<End>> {
        let mut end = None;
        for effect in std::mem::take(&mut self.procs[i].effects) {
            self.boundary(i)?;
            match effect {
                Effect::Publish(_) | Effect::Park { .. } => {
                    return wrong("a record is asked for that is not at hand".into());
                }
                Effect::WriteParking { rows, statuses } => {
                    let rows = self.procs[i].shelf.take_rows(rows);
                    self.send(i, |epoch| Statement::Parking { rows, marks: statuses, epoch });
                }
                Effect::Attempt { ticket, position } => {
                    let a_try = Try { ticket, position, record: None, since: self.now };
                    self.procs[i].shelf.tries.push_back(a_try);
                }
                Effect::Probe { ticket, .. } => self.procs[i].shelf.soundings.push(ticket),
                Effect::DeadLetter { .. } | Effect::DeadLetterRefused { .. } => {
                    return wrong("a letter, though there are none".into());
                }
                Effect::Released { .. } | Effect::Published { .. } | Effect::Overtaken { .. } => {}
                Effect::WriteCursor(progress) => {
                    self.send(i, |epoch| Statement::Cursor { progress, epoch });
                }
                Effect::Confirm(watermark) => {
                    self.procs[i].confirmed = watermark.lsn().to_wire();
                }
                Effect::Restart { why } => {
                    self.reset_sink(i, why)?;
                    end = Some(End::Restart);
                }
                Effect::Drained | Effect::Halt(_) => end = Some(End::Over),
            }
            self.boundary(i)?;
        }
        let confirmed = self.procs[i].confirmed;
        if let Stage::Streaming(session) = &mut self.procs[i].stage {
            session.tell(confirmed);
        }
        self.fetch_for_tries(i);
        Ok(end)
    }

    /// Performs the effects that need no session; whether the relay has come to its end.
    pub(super) fn outcome(&mut self, i: usize) -> Check<bool> {
        let mut over = false;
        for effect in std::mem::take(&mut self.procs[i].effects) {
            match effect {
                Effect::Restart { why } => self.reset_sink(i, why)?,
                Effect::Drained | Effect::Halt(_) => over = true,
                Effect::Published { .. }
                | Effect::Overtaken { .. }
                | Effect::Released { .. }
                | Effect::Publish(_)
                | Effect::Park { .. }
                | Effect::WriteParking { .. }
                | Effect::Attempt { .. }
                | Effect::Probe { .. }
                | Effect::DeadLetter { .. }
                | Effect::DeadLetterRefused { .. }
                | Effect::WriteCursor(_)
                | Effect::Confirm(_) => {}
            }
        }
        Ok(over)
    }

    fn reset_sink(&mut self, i: usize, why: Restart) -> Check {
        self.tell(i, &format!("reset {}", why.name()));
        let settles = Producer::settles(&mut self.rng, self.now);
        let (knobs, now) = (&self.plan.knobs, self.now);
        let process = &mut self.procs[i];
        process.shelf = Shelf::default();
        let number = process.producer.number + 1;
        process.overtaken.extend(process.told.overtaken(&self.truth));
        let told = Told::by(number);
        process.told_before = std::mem::replace(&mut process.told, told);
        // What it posted before it was muted is still in the box.
        while self.rng.chance(500)
            && let Some(post) = process.producer.report(knobs, &mut self.rng)
        {
            process.mailbox.push(post);
        }
        while self.late.chance(knobs.stragglers)
            && let Some(Post::Report { record, outcome, by: _ }) =
                process.producer.report(knobs, &mut self.late)
        {
            let at = now + self.late.below(STRAGGLES_MAX);
            process.stragglers.push((at, record.ticket, outcome));
        }
        process.producer.cut(&mut self.truth, (knobs, &mut self.rng, now))?;
        process.producer = Producer::new(knobs, number, settles);
        Ok(())
    }

    /// Hands over a record that the broker refuses for its size, with nothing else in flight.
    pub(super) fn send_refused(&mut self, i: usize, record: Record) -> Result<(), NotTaken> {
        let knobs = (&self.plan.knobs, &mut self.rng, self.now);
        self.procs[i].producer.send_refused(&mut self.truth, knobs, record)
    }

    pub(super) fn enqueue(&mut self, i: usize, record: Record) -> Result<(), NotTaken> {
        let knobs = (&self.plan.knobs, &mut self.rng, self.now);
        self.procs[i].producer.enqueue(&mut self.truth, knobs, record)
    }

    /// What is known of a position in the table and in the relay, for the transcript.
    pub(super) fn tell_positions(&mut self, i: usize) {
        let (row, relay) = (watermark(self.server.row), self.procs[i].relay.progress());
        self.tell(i, &format!("row {} relay {relay:?}", at(row)));
    }
}
