//! A stream from the handshake to its end, the statements beside it, and the pauses between two streams.

use super::Check;
use super::postgres::{Answer, Statement};
use super::process::{End, LEASE};
use super::walsender::{Frame, Walsender};
use super::world::World;
use crate::ack::Progress;
use crate::relay::Input;
use postrider_core::event::Position;
use postrider_core::parked::{Entry, Request};
use std::collections::VecDeque;

/// What a process is at.
#[derive(Debug)]
pub(super) enum Stage {
    /// It does not run.
    Off {
        until: u64,
    },
    /// Between two tries to connect.
    Pause {
        until: u64,
    },
    /// It has read the facts.
    Read {
        row: Progress,
    },
    /// It has the slot.
    Owns {
        start: Progress,
    },
    /// Nobody else writes any more, and it has read what is parked.
    TookOver {
        start: Progress,
        row: Progress,
        parked: Vec<Entry>,
        requests: Vec<(Position, Request)>,
    },
    Streaming(Box<Session>),
}

#[derive(Debug)]
pub(super) struct Session {
    epoch: u64,
    walsender: Walsender,
    pub(super) frames: VecDeque<Frame>,
    /// What the server will be told.
    telling: u64,
    told: u64,
    /// Made, and not sent: the loop has not waited since.
    made: VecDeque<Statement>,
    pub(super) sent: VecDeque<Statement>,
    pub(super) answers: VecDeque<Answer>,
    pub(super) fetching: bool,
    pub(super) asking: bool,
    pub(super) ask_at: u64,
}

impl Session {
    /// Passes a confirmation on, if the stream has sent it.
    pub(super) fn tell(&mut self, confirmed: u64) {
        if confirmed <= self.walsender.sent() {
            self.telling = self.telling.max(confirmed);
        }
    }

    pub(super) fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Whether all is sent and taken.
    pub(super) fn idle(&self, transactions: usize) -> bool {
        self.walsender.idle(transactions) && self.frames.is_empty() && self.calm()
    }

    /// Whether nothing is under way beside the stream.
    pub(super) fn calm(&self) -> bool {
        self.made.is_empty()
            && self.sent.is_empty()
            && self.answers.is_empty()
            && self.telling == self.told
    }
}

impl World {
    /// A process has its turn.
    pub(super) fn turn(&mut self, i: usize) -> Check {
        match &self.procs[i].stage {
            Stage::Off { until } if *until <= self.now => {
                self.boot(i);
                Ok(())
            }
            Stage::Off { .. } => Ok(()),
            Stage::Streaming(_) => self.stream(i),
            Stage::Pause { .. }
            | Stage::Read { .. }
            | Stage::Owns { .. }
            | Stage::TookOver { .. } => {
                self.wait(i)?;
                self.connect(i)
            }
        }
    }

    /// Without a stream: reports still come, and the lease may end.
    fn wait(&mut self, i: usize) -> Check {
        self.take_posts(i)?;
        if self.outcome(i)? {
            return self.exit(i);
        }
        let held = self.procs[i].relay.in_flight().0 > 0;
        if held && self.procs[i].lease_ends <= self.now {
            self.apply(i, Input::SlotTaken)?;
            if self.outcome(i)? {
                return self.exit(i);
            }
        }
        Ok(())
    }

    fn connect(&mut self, i: usize) -> Check {
        let stage = std::mem::replace(&mut self.procs[i].stage, Stage::Pause { until: self.now });
        self.procs[i].stage = match stage {
            Stage::Pause { until } if until > self.now => Stage::Pause { until },
            Stage::Pause { .. } => match self.server.holder {
                Some(_) => {
                    if self.procs[i].relay.in_flight().0 > 0 {
                        self.apply(i, Input::SlotTaken)?;
                    }
                    Stage::Pause { until: self.now + self.rng.range(1, 40) }
                }
                None => Stage::Read { row: self.server.resume()? },
            },
            Stage::Read { row } if self.server.holder.is_some() => {
                // `55006`: somebody was faster.
                self.tell(i, &format!("too late for {row:?}"));
                Stage::Pause { until: self.now + 1 }
            }
            Stage::Read { row } => {
                self.server.holder = Some(i);
                self.overrule_others(i)?;
                if self.server.confirmed > row.watermark.lsn().to_wire() {
                    // Somebody was at it: the whole handshake again.
                    self.server.holder = None;
                    Stage::Pause { until: self.now + 1 }
                } else {
                    Stage::Owns { start: row }
                }
            }
            Stage::Owns { start } => {
                self.server.epoch += 1;
                // Only now is the row the last that anybody before us wrote.
                let row = self.server.row;
                let (parked, requests) = self.server.load(row.position(), self.now);
                Stage::TookOver { start, row, parked, requests }
            }
            Stage::TookOver { start, row, parked, requests } => {
                return self.begin(i, start, row, (&parked, &requests));
            }
            other @ (Stage::Off { .. } | Stage::Streaming(_)) => other,
        };
        Ok(())
    }

    fn begin(
        &mut self,
        i: usize,
        start: Progress,
        row: Progress,
        (parked, requests): (&[Entry], &[(Position, Request)]),
    ) -> Check {
        let from = start.watermark.lsn().to_wire();
        let (walsender, first) = Walsender::start(&self.server, from);
        let epoch = self.server.epoch;
        let process = &mut self.procs[i];
        process.stage = Stage::Streaming(Box::new(Session {
            epoch,
            walsender,
            frames: VecDeque::from([first]),
            telling: 0,
            told: 0,
            made: VecDeque::new(),
            sent: VecDeque::new(),
            answers: VecDeque::new(),
            fetching: false,
            asking: false,
            ask_at: self.now,
        }));
        // Nobody else has owned the pipeline since.
        let before = process.epoch.replace(epoch);
        let same_owner = before.is_some_and(|before| before + 1 == epoch);
        let same_history = before.is_some();
        let cursor = row.watermark.lsn().to_wire();
        process.confirmed = if same_history { process.confirmed.max(cursor) } else { cursor };
        if !same_owner {
            process.overtaken.clear();
        }
        let again = self.truth.events.iter().filter(|event| event.position >= row.position());
        let rows = parked.iter().filter(|entry| !entry.state.resolved()).count() as u64;
        let rows_max = self.plan.knobs.settings.rules.rows_max;
        process.rows_max = rows.max(rows_max) + again.count() as u64;
        self.apply(i, Input::Started { cursor: row, same_history, same_owner, parked, requests })?;
        match self.perform(i)? {
            Some(end) => self.end(i, end),
            None => Ok(()),
        }
    }

    /// One turn of a stream's loop.
    fn stream(&mut self, i: usize) -> Check {
        self.take_posts(i)?;
        self.offer_tries(i)?;
        if let Some(end) = self.perform(i)? {
            return self.end(i, end);
        }
        self.feed(i)?;
        if let Some(end) = self.perform(i)? {
            return self.end(i, end);
        }
        let (now, due) = (self.now, self.procs[i].due());
        let Stage::Streaming(session) = &mut self.procs[i].stage else { return Ok(()) };
        session.sent.append(&mut session.made);
        if let Some(answer) = session.answers.pop_front() {
            self.answered(i, answer)?;
        } else if due.is_some_and(|due| due <= now) {
            self.apply(i, Input::Tick)?;
        } else if !session.asking && session.ask_at <= now {
            (session.asking, session.ask_at) = (true, now + 500);
            session.made.push_back(Statement::Ask);
        }
        match self.perform(i)? {
            Some(end) => self.end(i, end),
            None => Ok(()),
        }
    }

    /// A statement is made: it leaves when the loop next waits.
    pub(super) fn send(&mut self, i: usize, statement: impl FnOnce(u64) -> Statement) {
        let Stage::Streaming(session) = &mut self.procs[i].stage else { return };
        let statement = statement(session.epoch());
        session.fetching |= matches!(statement, Statement::Fetch { .. });
        session.made.push_back(statement);
    }

    fn end(&mut self, i: usize, end: End) -> Check {
        match end {
            End::Over => {
                // The farewell: the last position is told.
                self.status(i)?;
                self.release(i);
                self.exit(i)
            }
            End::Restart => self.lose(i),
        }
    }

    /// The session is gone.
    pub(super) fn lose(&mut self, i: usize) -> Check {
        self.release(i);
        if matches!(self.procs[i].stage, Stage::Streaming(_)) {
            self.procs[i].stage = Stage::Pause { until: self.now + self.rng.range(1, 60) };
            self.apply(i, Input::SourceLost)?;
            self.procs[i].lease_ends = self.now + LEASE;
            if self.outcome(i)? {
                return self.exit(i);
            }
        } else {
            self.procs[i].stage = Stage::Pause { until: self.now + self.rng.range(1, 60) };
        }
        Ok(())
    }

    /// The server has noticed that the session is gone. What it was sent may still be carried out.
    pub(super) fn release(&mut self, i: usize) {
        if self.server.holder == Some(i) {
            self.server.holder = None;
        }
        if let Stage::Streaming(session) = &mut self.procs[i].stage {
            let arrived = self.rng.index(session.sent.len() + 1);
            self.server.orphans.extend(session.sent.drain(..arrived));
        }
    }

    /// The server sends something.
    pub(super) fn serve(&mut self, i: usize) {
        let keepalive = self.plan.knobs.keepalive;
        let Stage::Streaming(session) = &mut self.procs[i].stage else { return };
        let frame = session.walsender.send(&self.server, &mut self.rng, keepalive);
        session.frames.extend(frame);
    }

    /// A status update arrives.
    pub(super) fn status(&mut self, i: usize) -> Check {
        let Stage::Streaming(session) = &mut self.procs[i].stage else { return Ok(()) };
        if session.telling > session.told {
            session.told = session.telling;
            self.server.confirm(&self.truth, session.told)?;
        }
        Ok(())
    }

    /// The server carries out a statement, or answers one.
    pub(super) fn control(&mut self, i: usize) -> Check {
        let now = self.now;
        let Stage::Streaming(session) = &mut self.procs[i].stage else { return Ok(()) };
        let Some(statement) = session.sent.pop_front() else { return Ok(()) };
        let answer = self.server.execute(&mut self.truth, now, statement)?;
        session.answers.push_back(answer);
        Ok(())
    }
}
