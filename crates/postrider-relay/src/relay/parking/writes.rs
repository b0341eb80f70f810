//! The write that is due: new rows and marks, as one statement takes them, and what it settles once it is committed.

use super::{Locked, Owed, Parking, WRITE_MAX};
use crate::ack::bug::{Bug, injected};
use crate::relay::effect::Effect;
use postrider_core::event::Position;
use postrider_core::parked::{Became, Mark};
use postrider_core::record::Ticket;
use std::collections::HashSet;
use std::time::Duration;

impl Parking {
    /// The write that is due, if one is.
    pub(in crate::relay) fn write_due(&mut self, now: Duration) -> Option<Effect> {
        if !self.connected || self.under_way {
            return None;
        }
        if self.locked.until.is_some_and(|until| until <= now) {
            self.locked = Locked::default();
        }
        if self.pending.is_empty() && self.no_mark_is_due(now) {
            return None;
        }
        self.under_way = true;
        self.writing = self.pending.len().min(WRITE_MAX);
        let marks = self.marks_of_one_write();
        Some(Effect::WriteParking { rows: self.writing, marks })
    }

    /// Whether all marks that are owed wait for rows that another session had locked at the last try.
    pub(super) fn no_mark_is_due(&self, now: Duration) -> bool {
        let waiting =
            if self.locked.until.is_some_and(|until| until > now) { self.locked.marks } else { 0 };
        self.marks.len() == waiting
    }

    /// When marks are written again that were left out.
    pub(in crate::relay) fn locked_until(&self) -> Option<Duration> {
        self.locked.until.filter(|_| self.connected && !self.marks.is_empty())
    }

    /// Which marks go together: one statement changes a row once, and not one that it also makes.
    fn marks_of_one_write(&mut self) -> Vec<Mark> {
        let rows = self.pending.iter().take(self.writing).map(|pending| pending.entry.position);
        let mut taken: HashSet<Position> = rows.collect();
        let mut marks = Vec::new();
        for owed in &mut self.marks {
            if self.locked.keeps(owed) {
                continue;
            }
            if marks.len() == WRITE_MAX || !taken.insert(owed.mark.position) {
                break;
            }
            owed.writing = true;
            marks.push(owed.mark);
        }
        marks
    }

    /// The write is committed, but for the marks of the rows in `left`; gives the tickets that are resolved by it.
    pub(in crate::relay) fn written(&mut self, now: Duration, left: &[Position]) -> Vec<Ticket> {
        self.under_way = false;
        let mut resolved = Vec::with_capacity(self.writing);
        let written: Vec<_> = self.pending.drain(..self.writing).collect();
        for pending in written {
            self.pending_bytes -= pending.size_bytes;
            self.lanes.written(pending.entry.position);
            self.may_be_a_letter(pending.entry.position);
            resolved.push(pending.ticket);
        }
        self.writing = 0;
        let left: HashSet<&Position> = left.iter().collect();
        for owed in std::mem::take(&mut self.marks) {
            if !owed.writing {
                self.marks.push_back(owed);
            } else if left.contains(&owed.mark.position) && !injected(Bug::ForgetsLeftMarks) {
                self.leave(now, owed);
            } else {
                self.settle_mark(&owed);
            }
        }
        self.locked.marks = self.marks.iter().filter(|owed| self.locked.keeps(owed)).count();
        resolved
    }

    /// The mark is committed.
    fn settle_mark(&mut self, Owed { mark, lane, .. }: &Owed) {
        match mark.became {
            Became::Done | Became::Skipped => self.lanes.marked(*lane),
            Became::Refused { .. } | Became::Again => {
                self.lanes.written(mark.position);
                self.may_be_a_letter(mark.position);
            }
            Became::DeadSent => self.letters.marked(mark.position),
            Became::Declined | Became::Overtaken { .. } => {}
        }
    }

    /// The mark is written later. Until then nothing more of its lane is tried: what is parked behind it stays there,
    /// within `rows_max`.
    fn leave(&mut self, now: Duration, owed: Owed) {
        self.locked.leave(now, &owed);
        if let (Became::Done | Became::Skipped, Some(lane)) = (owed.mark.became, owed.lane) {
            self.lanes.hold(lane);
        }
        self.marks.push_back(Owed { writing: false, left: true, ..owed });
    }
}
