//! The write that is due: new rows and marks, as one statement takes them, and what it settles once it is committed.

use super::{Parking, WRITE_MAX};
use crate::event::Position;
use crate::parked::Became;
use crate::record::Ticket;
use crate::relay::effect::Effect;
use std::collections::HashSet;

impl Parking {
    /// The write that is due, if one is.
    pub(in crate::relay) fn write_due(&mut self) -> Option<Effect> {
        let idle = self.connected && !self.under_way;
        if !idle || (self.pending.is_empty() && self.marks.is_empty()) {
            return None;
        }
        self.under_way = true;
        self.writing = self.pending.len().min(WRITE_MAX);
        self.marking = self.marks_of_one_write();
        let marks = self.marks.iter().take(self.marking).map(|(mark, _)| *mark).collect();
        Some(Effect::WriteParking { rows: self.writing, marks })
    }

    /// How many marks go together: one statement changes a row once, and not one that it also makes.
    fn marks_of_one_write(&self) -> usize {
        let rows = self.pending.iter().take(self.writing).map(|pending| pending.entry.position);
        let mut taken: HashSet<Position> = rows.collect();
        let marks = self.marks.iter().take(WRITE_MAX);
        marks.take_while(|(mark, _)| taken.insert(mark.position)).count()
    }

    /// The write is committed; gives the tickets that are resolved by it.
    pub(in crate::relay) fn written(&mut self) -> Vec<Ticket> {
        self.under_way = false;
        let mut resolved = Vec::with_capacity(self.writing);
        let written: Vec<_> = self.pending.drain(..self.writing).collect();
        for pending in written {
            self.pending_bytes -= pending.size_bytes;
            self.lanes.written(pending.entry.position);
            self.may_be_a_letter(pending.entry.position);
            resolved.push(pending.ticket);
        }
        let marks: Vec<_> = self.marks.drain(..self.marking).collect();
        for (mark, lane) in marks {
            match mark.became {
                Became::Done | Became::Skipped => self.lanes.marked(lane),
                Became::Refused { .. } | Became::Again => {
                    self.lanes.written(mark.position);
                    self.may_be_a_letter(mark.position);
                }
                Became::DeadSent => self.letters.marked(mark.position),
                Became::Declined | Became::Overtaken { .. } => {}
            }
        }
        (self.writing, self.marking) = (0, 0);
        resolved
    }
}
