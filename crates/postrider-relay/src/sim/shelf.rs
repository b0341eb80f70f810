//! The fake driver's shelf: rows of parked events that wait to be written, and tries on their way to the sink.
//!
//! Does what `driver::parking` and `driver::shelf` do, in the same order; takes the answers of the fake PostgreSQL.

use super::broker::{NotTaken, Record};
use super::postgres::{Answer, Statement};
use super::session::Stage;
use super::world::World;
use super::{Check, wrong};
use crate::relay::{Input, OnPoison};
use postrider_core::event::Position;
use postrider_core::parked::{Entry, State};
use postrider_core::record::{Outcome, Refusal, Scope, Ticket};
use std::collections::VecDeque;

/// As in `driver::shelf`.
const DESTINATION_PATIENCE: u64 = 100;

/// A try on its way to the sink.
#[derive(Clone, Copy, Debug)]
pub(super) struct Try {
    pub(super) ticket: Ticket,
    pub(super) position: Position,
    pub(super) record: Option<(usize, u32)>,
    pub(super) since: u64,
}

/// Records of parked events.
#[derive(Debug, Default)]
pub(super) struct Shelf {
    pub(super) kept: VecDeque<(Entry, usize)>,
    pub(super) writing: Vec<(Entry, usize)>,
    pub(super) tries: VecDeque<Try>,
    pub(super) soundings: Vec<Ticket>,
}

impl Shelf {
    pub(super) fn wants_records(&self) -> bool {
        self.tries.iter().any(|a_try| a_try.record.is_none())
    }

    pub(super) fn take_rows(&mut self, count: usize) -> Vec<(Entry, usize)> {
        for row in std::mem::take(&mut self.writing).into_iter().rev() {
            self.kept.push_front(row);
        }
        assert!(count <= self.kept.len(), "{count} rows to write, {} are kept", self.kept.len());
        self.writing = self.kept.drain(..count).collect();
        self.writing.clone()
    }
}

impl World {
    /// What the parked row of an event must say.
    pub(super) fn keep(&mut self, i: usize, entry: Entry, event: usize) -> Check {
        let process = &mut self.procs[i];
        let refused = matches!(entry.state, State::Waiting | State::Dead);
        if refused && process.overtaken.remove(&event) && entry.overtaken_by.is_none() {
            return wrong(format!("{} was overtaken, and its row does not say so", entry.position));
        }
        process.shelf.kept.push_back((entry, event));
        let what = &mut self.truth.events[event];
        let may_block = self.plan.knobs.settings.rules.on_poison != OnPoison::SkipEvent;
        if entry.lane.is_none() && what.aggregate.is_some() && may_block {
            return wrong(format!(
                "{} is parked, and does not block its aggregate",
                entry.position
            ));
        }
        what.overtaken |= entry.lane.is_none();
        Ok(())
    }

    pub(super) fn fetch_for_tries(&mut self, i: usize) {
        let process = &self.procs[i];
        let Stage::Streaming(session) = &process.stage else { return };
        if session.fetching || !process.wants_records() {
            return;
        }
        let missing = process.shelf.tries.iter().filter(|a_try| a_try.record.is_none());
        let positions = missing.map(|a_try| a_try.position).collect();
        self.send(i, |_| Statement::Fetch { positions });
    }

    /// Offers the sink what is to be tried.
    pub(super) fn offer_tries(&mut self, i: usize) -> Check {
        for ticket in std::mem::take(&mut self.procs[i].shelf.soundings) {
            let nowhere = self.late.chance(self.plan.knobs.destination_down);
            let (scope, reason) = (Scope::Destination, Refusal::TopicName);
            let outcome = Outcome::Rejected { scope, reason };
            let said = Input::Report { ticket, outcome };
            self.apply(i, if nowhere { said } else { Input::Probed { ticket } })?;
        }
        let mut left = VecDeque::new();
        for a_try in std::mem::take(&mut self.procs[i].shelf.tries) {
            let Some((event, version)) = a_try.record else {
                left.push_back(a_try);
                continue;
            };
            let record = Record { ticket: a_try.ticket, event, version };
            let outcome = match self.enqueue(i, record) {
                Ok(()) => continue,
                Err(NotTaken::Full) => {
                    left.push_back(a_try);
                    continue;
                }
                Err(NotTaken::Destination) if self.now - a_try.since < DESTINATION_PATIENCE => {
                    left.push_back(a_try);
                    continue;
                }
                Err(NotTaken::Destination) => {
                    let reason = Refusal::TopicName;
                    Outcome::Rejected { scope: Scope::Destination, reason }
                }
                Err(NotTaken::Refused(reason)) => Outcome::Rejected { scope: Scope::Event, reason },
            };
            self.apply(i, Input::Report { ticket: a_try.ticket, outcome })?;
        }
        let tries = &mut self.procs[i].shelf.tries;
        left.append(tries);
        *tries = left;
        Ok(())
    }

    /// Takes what a statement came to; an end where the session can't go on.
    pub(super) fn answered(&mut self, i: usize, answer: Answer) -> Check {
        let process = &mut self.procs[i];
        let Stage::Streaming(session) = &mut process.stage else { return Ok(()) };
        match answer {
            Answer::Cursor(true) => self.apply(i, Input::CursorWritten),
            Answer::Cursor(false) | Answer::Parking(None) => self.apply(i, Input::SlotTaken),
            Answer::Parking(Some(left)) => {
                process.shelf.writing.clear();
                self.apply(i, Input::ParkingWritten { locked: &left })
            }
            Answer::Fetched(asked, found) => {
                session.fetching = false;
                let mut gone = Vec::new();
                process.shelf.tries.retain_mut(|a_try| {
                    let row = found.iter().find(|(position, ..)| *position == a_try.position);
                    if let Some((_, event, version)) = row {
                        a_try.record = Some((*event, *version));
                    }
                    let stays = a_try.record.is_some() || !asked.contains(&a_try.position);
                    if !stays {
                        gone.push((a_try.ticket, a_try.position));
                    }
                    stays
                });
                for (ticket, position) in gone {
                    self.check_gone(position)?;
                    self.apply(i, Input::RowMissing { ticket })?;
                }
                self.offer_tries(i)
            }
            Answer::Asked(requests) => {
                session.asking = false;
                for (position, request) in requests {
                    self.apply(i, Input::Request { position, request })?;
                }
                Ok(())
            }
        }
    }

    /// A row that nobody deleted and nothing resolved is not gone.
    fn check_gone(&self, position: Position) -> Check {
        let event = self.truth.events.iter().position(|event| event.position == position);
        if event.is_none_or(|event| !self.truth.settled(event)) {
            return wrong(format!("{position} is tried, and has no row"));
        }
        Ok(())
    }
}
