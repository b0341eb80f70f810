//! What goes wrong on purpose, and what persons do.

use super::Check;
use super::broker::{Post, Producer};
use super::feed::halt;
use super::plan::{Bad, Fault};
use super::process::Process;
use super::session::Stage;
use super::world::World;
use crate::relay::{Input, OnPoison, Relay};
use postrider_core::error::HaltReason;
use postrider_core::parked::Request;

impl World {
    pub(super) fn strike(&mut self, fault: Fault) -> Check {
        let i = self.rng.index(self.procs.len());
        self.tell(i, &format!("FAULT {fault:?}"));
        match fault {
            Fault::Crash { boundaries: 0 } => self.kill(i)?,
            Fault::Crash { boundaries } => self.procs[i].dies_after = Some(boundaries),
            Fault::Lost => {
                if !matches!(self.procs[i].stage, Stage::Off { .. }) {
                    self.lose(i)?;
                }
            }
            Fault::ServerCrash => {
                self.server.crash();
                for i in 0..self.procs.len() {
                    if !matches!(self.procs[i].stage, Stage::Off { .. }) {
                        self.lose(i)?;
                    }
                }
                // What the sessions had sent dies with the server.
                self.server.orphans.clear();
            }
            Fault::Checkpoint => self.server.save(),
            Fault::SinkFatal => self.procs[i].producer.fatal(),
            Fault::Drain => {
                if matches!(self.procs[i].stage, Stage::Streaming(_)) {
                    self.apply(i, Input::Drain)?;
                }
            }
            Fault::Halt => {
                if matches!(self.procs[i].stage, Stage::Streaming(_)) {
                    self.apply(i, Input::Halt(halt(HaltReason::Protocol)))?;
                }
            }
            Fault::Request => self.request(),
            Fault::Delete => self.delete(),
            Fault::Prune => self.server.prune(),
        }
        Ok(())
    }

    /// A person asks for something to be done with some row, and may change their mind.
    fn request(&mut self) {
        if self.server.table.is_empty() {
            return;
        }
        let nth = self.rng.index(self.server.table.len());
        let request = [Request::Retry, Request::Skip, Request::Replace][self.rng.index(3)];
        let Some((_, row)) = self.server.table.iter_mut().nth(nth) else { return };
        // One at a time: what is asked stays until the relay has taken it off.
        if row.state.resolved() || row.request.is_some() {
            return;
        }
        row.request = Some(request);
        self.truth.events[row.event].skip_asked |= request == Request::Skip;
        for process in &mut self.procs {
            // The notification.
            if let Stage::Streaming(session) = &mut process.stage {
                session.ask_at = self.now;
            }
        }
    }

    /// A person deletes a row that nobody has resolved.
    fn delete(&mut self) {
        let rows = self.server.table.iter().filter(|(_, row)| !row.state.resolved());
        let rows: Vec<_> = rows.map(|(at, row)| (*at, row.event)).collect();
        if rows.is_empty() {
            return;
        }
        let (at, event) = rows[self.rng.index(rows.len())];
        self.server.table.remove(&at);
        let what = &mut self.truth.events[event];
        // Above the cursor the stream may bring it again, as it was.
        (what.deleted, what.version) = (true, 0);
    }

    /// The process is gone; of what it had on the way, some may arrive.
    pub(super) fn kill(&mut self, i: usize) -> Check {
        self.tell(i, "dies");
        self.release(i);
        let knobs = (&self.plan.knobs, &mut self.rng, self.now);
        self.procs[i].producer.cut(&mut self.truth, knobs)?;
        let knobs = self.plan.knobs;
        let mut process =
            Process::new(self.now, Relay::new(knobs.settings), Producer::new(&knobs, 0, self.now));
        process.stage = Stage::Off { until: self.now + self.rng.below(100) };
        self.procs[i] = process;
        Ok(())
    }

    /// The process has come to its end by itself. It is started again, with what stopped it mended.
    pub(super) fn exit(&mut self, i: usize) -> Check {
        self.tell(i, "exits");
        if self.plan.knobs.settings.rules.on_poison == OnPoison::Stop {
            let now = self.now;
            let bad = |at: &usize| self.truth.bad(*at, now) != Bad::No && !self.truth.settled(*at);
            if let Some(first) = (0..self.truth.events.len()).find(bad) {
                self.truth.events[first].mended_at = now;
            }
        }
        self.kill(i)
    }

    pub(super) fn boot(&mut self, i: usize) {
        self.tell(i, "starts");
        let knobs = self.plan.knobs;
        self.procs[i] =
            Process::new(self.now, Relay::new(knobs.settings), Producer::new(&knobs, 0, self.now));
        self.procs[i].stage = Stage::Pause { until: self.now };
    }

    /// Process `i` has the slot: what others have on the way is written now or never.
    pub(super) fn overrule_others(&mut self, i: usize) -> Check {
        for other in (0..self.procs.len()).filter(|other| *other != i) {
            let knobs = (&self.plan.knobs, &mut self.rng, self.now);
            self.procs[other].producer.overruled(&mut self.truth, knobs)?;
        }
        Ok(())
    }

    /// Reports that would never come are given up by their sink.
    pub(super) fn end_silences(&mut self) {
        for process in &mut self.procs {
            if process.producer.silent && !process.producer.broken_due {
                process.producer.silent = false;
                process.producer.fatal();
                process.mailbox.push(Post::Broken);
            }
        }
    }
}
