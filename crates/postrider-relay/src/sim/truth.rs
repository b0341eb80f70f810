//! What really happened, and what may happen. The checks compare the relay with this, and not with its own state.

use super::plan::Bad;
use super::{Check, wrong};
use postrider_core::event::Position;
use std::collections::BTreeSet;

/// A committed event.
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
#[derive(Clone, Debug)]
pub(super) struct Event {
    pub(super) position: Position,
    pub(super) aggregate: Option<usize>,
    /// Its place among the events of its aggregate.
    place: usize,
    pub(super) bad: Bad,
    /// The time from which the event is published without a refusal. Unit: milliseconds, as all times here.
    pub(super) fixed_at: u64,
    pub(super) size: u64,
    pub(super) not_before: u64,
    /// Number of times that the broker wrote the event.
    delivered: u32,
    /// The number of the newest of these records, among all records.
    pub(super) newest: u64,
    /// The lowest version that may still be published: 0 is its own value, n its n-th replacement.
    pub(super) version: u32,
    /// Number of refusals that meant this event.
    pub(super) refused: u32,
    /// An operator skipped the event, and its row records that.
    pub(super) skipped: bool,
    /// An operator has requested to skip the event.
    pub(super) skip_asked: bool,
    /// What became of the row of the event.
    pub(super) outbox_row: RowFate,
    /// The event is parked without a lane: it blocks no other event, and has no place in the order any more.
    pub(super) free: bool,
    /// Its refusal and the record of a later event were in flight together, or the rules let no other event wait for
    /// it, so that later events of its aggregate may be published before it.
    pub(super) overtaken: bool,
}

/// What became of the row of an event.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct RowFate {
    /// The row was parked beside the parked event, because it may be another one: an operator decides whether it is
    /// published too.
    pub(super) undecided: bool,
    /// An operator deleted the row.
    pub(super) deleted: bool,
}

impl Event {
    /// Whether an operator has decided, or requested, that the event is not published (any more).
    fn is_dropped(&self) -> bool {
        self.skipped || self.skip_asked || self.outbox_row.deleted
    }
}

/// The events of an aggregate, and the places of its records.
#[derive(Clone, Debug, Default)]
struct Aggregate {
    events: Vec<usize>,
    /// The place of the newest record.
    last: Option<usize>,
    /// The highest place of all records.
    highest: Option<usize>,
    /// Polling began while the stream repeated records of this aggregate whose rows are set to published: the others of
    /// them are not repeated (`docs/guarantees/order.md`, the last of the four windows).
    cut_short: bool,
    /// The application has written or deleted rows of this aggregate that were not published, or has used ids again, so
    /// that the table does not show the order of its events (`docs/decisions/reused-ids.md`). None of them may be lost.
    touched: bool,
    /// Events whose parked rows are behind that of a later event: each may be repeated without those after it.
    alone: BTreeSet<usize>,
}

/// What the outbox table has of an event, beyond the WAL.
#[derive(Clone, Debug, Default)]
pub(super) struct RowFacts {
    /// The id of its row; several events may have one id, one after the other.
    pub(super) id: u64,
    /// From this time on the event is not published any more.
    pub(super) expires_at: Option<u64>,
}

/// All events and what became of them.
#[derive(Debug)]
pub(super) struct Truth {
    pub(super) events: Vec<Event>,
    aggregates: Vec<Aggregate>,
    /// For each event, if there is an outbox table.
    pub(super) rows: Vec<RowFacts>,
    /// Unit: milliseconds.
    pub(super) now: u64,
    strict: bool,
    pub(super) written: u64,
    pub(super) repeated: u64,
}

impl Truth {
    pub(super) fn new(aggregates: usize, strict: bool) -> Self {
        let aggregates = vec![Aggregate::default(); aggregates];
        Self {
            events: Vec::new(),
            aggregates,
            rows: Vec::new(),
            now: 0,
            strict,
            written: 0,
            repeated: 0,
        }
    }

    /// Adds a committed event. Returns its index.
    pub(super) fn commit(
        &mut self,
        position: Position,
        aggregate: Option<usize>,
        bad: Bad,
        fixed_at: u64,
        (size, not_before): (u64, u64),
    ) -> usize {
        let at = self.events.len();
        let mut place = 0;
        if let Some(aggregate) = aggregate {
            place = self.aggregates[aggregate].events.len();
            self.aggregates[aggregate].events.push(at);
        }
        self.events.push(Event {
            position,
            aggregate,
            place,
            bad,
            fixed_at,
            size,
            not_before,
            delivered: 0,
            newest: 0,
            version: 0,
            refused: 0,
            skipped: false,
            skip_asked: false,
            outbox_row: RowFate::default(),
            free: false,
            overtaken: false,
        });
        at
    }

    /// What is wrong with an event at this time.
    pub(super) fn bad(&self, event: usize, now: u64) -> Bad {
        let event = &self.events[event];
        if now < event.fixed_at { event.bad } else { Bad::No }
    }

    pub(super) fn delivered(&self, event: usize) -> bool {
        self.events[event].delivered > 0
    }

    /// Whether the event is published, skipped, deleted or expired.
    pub(super) fn settled(&self, event: usize) -> bool {
        let what = &self.events[event];
        what.delivered > 0 || what.skipped || what.outbox_row.deleted || self.is_expired(event)
    }

    /// Whether the event has expired.
    pub(super) fn is_expired(&self, event: usize) -> bool {
        let row = self.rows.get(event);
        row.and_then(|row| row.expires_at).is_some_and(|at| at <= self.now)
    }

    /// The application has written or deleted the row of the event, or has used an id again for the event.
    pub(super) fn touch(&mut self, event: usize) {
        if let Some(aggregate) = self.events[event].aggregate {
            self.aggregates[aggregate].touched = true;
        }
    }

    /// Polling begins: repetitions that a stream has begun may not be continued, and neither may those that begin with
    /// these parked events.
    pub(super) fn cut_repetitions(&mut self, parked: impl Iterator<Item = usize>) {
        for lane in &mut self.aggregates {
            lane.cut_short |= lane.last < lane.highest;
        }
        for event in parked {
            let Event { aggregate: Some(aggregate), place, .. } = self.events[event] else {
                continue;
            };
            let lane = &mut self.aggregates[aggregate];
            lane.cut_short |= lane.highest.is_some_and(|highest| place < highest);
        }
    }

    /// The row of a parked event is behind that of a later event of its aggregate.
    pub(super) fn repeats_alone(&mut self, event: usize) {
        if let Some(aggregate) = self.events[event].aggregate {
            self.aggregates[aggregate].alone.insert(event);
        }
    }

    /// Whether both events have the same aggregate, and `later` has the higher place.
    pub(super) fn is_behind(&self, later: usize, earlier: usize) -> bool {
        let (later, earlier) = (&self.events[later], &self.events[earlier]);
        later.aggregate.is_some()
            && later.aggregate == earlier.aggregate
            && later.place > earlier.place
    }

    /// A transaction makes a record visible: the event must not be visible yet.
    pub(super) fn show(&mut self, event: usize, version: u32) -> Check {
        if self.delivered(event) {
            return wrong(format!("{} is visible twice", self.events[event].position));
        }
        self.write(event, version, &[])
    }

    /// The broker writes a record. `refused`: the events for which this producer has reported a refusal.
    pub(super) fn write(&mut self, event: usize, version: u32, refused: &[usize]) -> Check {
        let what = self.events[event].clone();
        self.written += 1;
        self.repeated += u64::from(what.delivered > 0);
        self.events[event].delivered += 1;
        self.events[event].newest = self.written;
        // A row that was written again since it was parked is published like another event.
        if what.aggregate.is_some_and(|aggregate| self.aggregates[aggregate].touched) {
            return Ok(());
        }
        if what.skipped && !what.outbox_row.undecided {
            return wrong(format!("{} was skipped and is published", what.position));
        }
        if version < what.version && !what.outbox_row.undecided {
            return wrong(format!(
                "{} was replaced and is published with its old value",
                what.position
            ));
        }
        let Some(aggregate) = what.aggregate.filter(|_| !what.free) else { return Ok(()) };
        let lane = &self.aggregates[aggregate];
        let (last, highest) = (lane.last, lane.highest);
        // If the row of a parked event is deleted before the cursor has passed it, no trace of the parking is left.
        // Later events may have been published while an event counted as skipped whose row was found to be undecided.
        let excused = what.overtaken || what.outbox_row.deleted || what.outbox_row.undecided;
        if what.delivered == 0 && highest.is_some_and(|at| at > what.place) && !excused {
            return wrong(format!(
                "{} is published after a later event of its aggregate",
                what.position
            ));
        }
        // Its row in the outbox may be all that is left of it. Polling publishes the event alone then.
        if what.outbox_row.deleted
            && !self.rows.is_empty()
            && highest.is_some_and(|at| at > what.place)
        {
            return Ok(());
        }
        let before = if lane.cut_short { highest } else { last };
        let next = before.map_or(0, |last| last + 1);
        for place in next..what.place {
            let between = self.aggregates[aggregate].events[place];
            let overtakes = refused.contains(&between) && !self.strict;
            let expired = self.is_expired(between);
            let between = &mut self.events[between];
            if overtakes {
                between.overtaken = true;
            } else if !(between.is_dropped()
                || expired
                || between.free
                || (between.overtaken && between.delivered == 0))
            {
                let again = if between.delivered > 0 { "again " } else { "" };
                let message = format!(
                    "{} is published without {} {again}before it",
                    what.position, between.position
                );
                return wrong(message);
            }
        }
        let lane = &mut self.aggregates[aggregate];
        // As may an overtaken event whose row is kept as failed.
        let repeats = what.delivered > 0 && lane.alone.contains(&event);
        let alone = what.overtaken && !self.rows.is_empty() || repeats;
        lane.last = Some(what.place).max(last.filter(|_| alone));
        lane.highest = Some(highest.map_or(what.place, |at| at.max(what.place)));
        lane.cut_short &= lane.last < lane.highest;
        Ok(())
    }

    /// At the end the newest record of each aggregate is of its highest event, unless that event is `parked` and will
    /// be repeated, or an operator has dropped every event above the newest record.
    pub(super) fn check_ends(&self, parked: impl Fn(usize) -> bool) -> Check {
        let at = |lane: &Aggregate, place: usize| &self.events[lane.events[place]];
        let dropped = |event: usize| self.events[event].is_dropped() || self.is_expired(event);
        for lane in self.aggregates.iter().filter(|lane| !lane.cut_short && !lane.touched) {
            let (Some(last), Some(highest)) = (lane.last, lane.highest) else { continue };
            let missing = (last + 1..=highest).any(|place| !dropped(lane.events[place]));
            let is_parked = parked(lane.events[highest]);
            let (last, highest) = (at(lane, last).position, at(lane, highest).position);
            if missing && !is_parked {
                let message = format!("after {highest} its aggregate ends with {last}");
                return wrong(message);
            }
        }
        Ok(())
    }
}
