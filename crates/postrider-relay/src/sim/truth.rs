//! What really happened, and what may happen: the checks hold the relay against this, never against itself.

use super::plan::Bad;
use super::{Check, wrong};
use postrider_core::event::Position;

/// An event that was committed.
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
#[derive(Clone, Debug)]
pub(super) struct Event {
    pub(super) position: Position,
    pub(super) aggregate: Option<usize>,
    /// Its place among the events of its aggregate.
    place: usize,
    pub(super) bad: Bad,
    /// When it is good again. Unit: milliseconds, as all times here.
    pub(super) mended_at: u64,
    pub(super) size: u64,
    pub(super) not_before: u64,
    /// Times the broker wrote it.
    delivered: u32,
    /// The number of the newest of these writings, of all that there are.
    pub(super) newest: u64,
    /// What may still be published of it: 0 its own value, n the n-th that took its place.
    pub(super) version: u32,
    /// Refusals that meant this event and no other.
    pub(super) refused: u32,
    /// A person gave it up, and the row says so.
    pub(super) skipped: bool,
    /// A person asked for it to be given up.
    pub(super) skip_asked: bool,
    /// A person deleted its row.
    pub(super) deleted: bool,
    /// Parked without a lane: it blocks nobody and has no place in the order any more.
    pub(super) free: bool,
    /// Its refusal and a later event's writing were under way together, or nothing waits for it by the rules: so later
    /// events of its aggregate may come before it.
    pub(super) overtaken: bool,
}

impl Event {
    /// A person said, or is saying, that it is not to be published (any more).
    fn is_given_up(&self) -> bool {
        self.skipped || self.skip_asked || self.deleted
    }
}

#[derive(Clone, Debug, Default)]
struct Aggregate {
    events: Vec<usize>,
    /// Of the newest record.
    last: Option<usize>,
    /// The furthest that was ever written.
    furthest: Option<usize>,
}

#[derive(Debug)]
pub(super) struct Truth {
    pub(super) events: Vec<Event>,
    aggregates: Vec<Aggregate>,
    strict: bool,
    pub(super) written: u64,
    pub(super) repeated: u64,
}

impl Truth {
    pub(super) fn new(aggregates: usize, strict: bool) -> Self {
        let aggregates = vec![Aggregate::default(); aggregates];
        Self { events: Vec::new(), aggregates, strict, written: 0, repeated: 0 }
    }

    /// An event is committed.
    pub(super) fn commit(
        &mut self,
        position: Position,
        aggregate: Option<usize>,
        bad: Bad,
        mended_at: u64,
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
            mended_at,
            size,
            not_before,
            delivered: 0,
            newest: 0,
            version: 0,
            refused: 0,
            skipped: false,
            skip_asked: false,
            deleted: false,
            free: false,
            overtaken: false,
        });
        at
    }

    /// What is wrong with an event at this time.
    pub(super) fn bad(&self, event: usize, now: u64) -> Bad {
        let event = &self.events[event];
        if now < event.mended_at { event.bad } else { Bad::No }
    }

    pub(super) fn delivered(&self, event: usize) -> bool {
        self.events[event].delivered > 0
    }

    /// Whether nothing is owed for it any more, but for its row.
    pub(super) fn settled(&self, event: usize) -> bool {
        let event = &self.events[event];
        event.delivered > 0 || event.skipped || event.deleted
    }

    /// Whether `later` has the place behind `earlier` in the same aggregate.
    pub(super) fn is_behind(&self, later: usize, earlier: usize) -> bool {
        let (later, earlier) = (&self.events[later], &self.events[earlier]);
        later.aggregate.is_some()
            && later.aggregate == earlier.aggregate
            && later.place > earlier.place
    }

    /// The broker writes a record; `refused` are the events this producer has a refusal for.
    pub(super) fn write(&mut self, event: usize, version: u32, refused: &[usize]) -> Check {
        let what = self.events[event].clone();
        self.written += 1;
        self.repeated += u64::from(what.delivered > 0);
        self.events[event].delivered += 1;
        self.events[event].newest = self.written;
        if what.skipped {
            return wrong(format!("{} was skipped and is published", what.position));
        }
        if version < what.version {
            return wrong(format!("{} was replaced and is published as it was", what.position));
        }
        let Some(aggregate) = what.aggregate.filter(|_| !what.free) else { return Ok(()) };
        let lane = &self.aggregates[aggregate];
        let (last, furthest) = (lane.last, lane.furthest);
        // Nobody knows any more that an event was parked whose row a person deleted before the cursor had passed it.
        let excused = what.overtaken || what.deleted;
        if what.delivered == 0 && furthest.is_some_and(|at| at > what.place) && !excused {
            return wrong(format!("{} comes behind a later event of its aggregate", what.position));
        }
        let next = last.map_or(0, |last| last + 1);
        for place in next..what.place {
            let between = self.aggregates[aggregate].events[place];
            let meant = refused.contains(&between) && !self.strict;
            let between = &mut self.events[between];
            if meant {
                between.overtaken = true;
            } else if !(between.is_given_up()
                || between.free
                || (between.overtaken && between.delivered == 0))
            {
                let again = if between.delivered > 0 { "again " } else { "" };
                let message = format!(
                    "{} comes without {} {again}before it",
                    what.position, between.position
                );
                return wrong(message);
            }
        }
        let lane = &mut self.aggregates[aggregate];
        lane.last = Some(what.place);
        lane.furthest = Some(furthest.map_or(what.place, |at| at.max(what.place)));
        Ok(())
    }

    /// At the end the newest record of each aggregate is of its furthest event, unless that comes again because it is
    /// `parked`, or a person gave up each that would have come again behind the newest.
    pub(super) fn check_ends(&self, parked: impl Fn(Position) -> bool) -> Check {
        let at = |lane: &Aggregate, place: usize| &self.events[lane.events[place]];
        for lane in &self.aggregates {
            let (Some(last), Some(furthest)) = (lane.last, lane.furthest) else { continue };
            let owed = (last + 1..=furthest).any(|place| !at(lane, place).is_given_up());
            let (last, furthest) = (at(lane, last).position, at(lane, furthest).position);
            if owed && !parked(furthest) {
                let message = format!("after {furthest} its aggregate ends with {last}");
                return wrong(message);
            }
        }
        Ok(())
    }
}
