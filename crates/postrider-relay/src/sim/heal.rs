//! The end of a run: the faults are over, and what has to come true then.

use super::plan::{Bad, PlannedChange, PlannedTransaction};
use super::postgres::{Change, at, watermark};
use super::session::Stage;
use super::world::World;
use super::{Check, wrong};
use pg_replication::lsn::Lsn;
use postrider_core::parked::{Request, State};

/// Steps within which everything must have come to rest.
const PATIENCE: u64 = 40_000;

/// Times a person mends everything because nothing goes on.
const ROUNDS: u32 = 20;

/// The aggregate of the event at the end.
const FRESH: u64 = super::plan::AGGREGATES;

impl World {
    pub(super) fn heal(&mut self) -> Check {
        self.tell(9, "HEAL");
        let knobs = &mut self.plan.knobs;
        (knobs.sink_full, knobs.destination_down, knobs.unknown) = (0, 0, 0);
        (knobs.refused_wider, knobs.report_lost, knobs.keepalive) = (0, 0, 0);
        knobs.turns = [2, 4, 4, 6, 8, 2];
        self.server.locks.in_1000 = 0;
        for process in &mut self.procs {
            process.dies_after = None;
        }
        self.end_silences();
        if self.truth.events.iter().any(|event| event.deleted) {
            // Of a row that is deleted the relay hears when it tries it, or when it next reads the table.
            for i in 0..self.procs.len() {
                if matches!(self.procs[i].stage, Stage::Streaming(_)) {
                    self.lose(i)?;
                }
            }
        }
        let amnesty = self.rng.chance(500);
        self.come_to_rest(0)?;
        let mut rounds = 0;
        while self.is_full() || (amnesty && rounds == 0) {
            if rounds == ROUNDS {
                return wrong("parked events are mended, and it stays full".into());
            }
            rounds += 1;
            self.mend_all();
            self.come_to_rest(0)?;
        }
        self.check_accounts(amnesty)?;
        let changes = vec![PlannedChange::Event {
            aggregate: FRESH,
            bad: Bad::No,
            mends_after: 0,
            size: 1,
            kept_back: 0,
        }];
        self.commit(&PlannedTransaction { pause: 0, gap: 8, rolled_back: false, changes });
        let end = self.server.end;
        self.come_to_rest(end)?;
        let fresh = self.truth.events.len() - 1;
        if !self.truth.delivered(fresh) {
            return wrong("a fresh event does not flow".into());
        }
        self.check_accounts(amnesty)
    }

    /// Whether nothing goes on before a person does something.
    fn is_full(&self) -> bool {
        let mut streaming = self.procs.iter().filter(|p| matches!(p.stage, Stage::Streaming(_)));
        streaming.any(|process| process.relay.parking_is_full())
    }

    /// Everything is mended, and what is dead is tried again.
    fn mend_all(&mut self) {
        for event in &mut self.truth.events {
            event.mended_at = 0;
        }
        for row in self.server.table.values_mut() {
            if row.state == State::Dead && row.request.is_none() {
                row.request = Some(Request::Retry);
            }
        }
    }

    /// Goes on until nothing moves any more, and the slot has reached `least`.
    fn come_to_rest(&mut self, least: u64) -> Check {
        let give_up_at = self.step + PATIENCE;
        while self.step < give_up_at {
            self.advance()?;
            if self.step.is_multiple_of(16) && self.at_rest(least)? {
                return Ok(());
            }
        }
        self.at_rest(least)?;
        for i in 0..self.procs.len() {
            self.tell_positions(i);
        }
        let why = self.unrest(least).unwrap_or_default();
        wrong(format!("it does not come to rest: {why}"))
    }

    fn at_rest(&mut self, least: u64) -> Check<bool> {
        for i in 0..self.procs.len() {
            self.status(i)?;
        }
        Ok(self.unrest(least).is_none())
    }

    /// What is not at rest.
    fn unrest(&self, least: u64) -> Option<&'static str> {
        let streaming = self.procs.iter().find(|p| matches!(p.stage, Stage::Streaming(_)));
        let Some(process) = streaming else { return Some("nobody streams") };
        let Stage::Streaming(session) = &process.stage else { return None };
        let relay = &process.relay;
        let has_events = |changes: &[Change]| changes.iter().any(|c| matches!(c, Change::Event(_)));
        let newest = self.server.transactions.iter().rev().find(|txn| has_events(&txn.changes));
        let newest = newest.map_or(at(0), |txn| at(txn.end));
        let reached = |lsn: Lsn| relay.progress().watermark.lsn() >= lsn;
        let full = relay.parking_is_full();
        let heads = relay.heads(1_000);
        let moving = heads.iter().any(|(_, state, ..)| *state != State::Dead);
        let asked = self.server.table.values().any(|row| row.request.is_some());
        let states = [
            (relay.stopping(), "stopping"),
            (process.producer.busy() || !process.mailbox.is_empty(), "the sink is busy"),
            (relay.in_flight().0 > 0, "something is in flight"),
            (!full && !session.idle(self.server.transactions.len()), "the session is busy"),
            (full && !session.calm(), "the session is busy"),
            (!full && !reached(newest), "the watermark is behind"),
            (moving, "a head that is not dead is left"),
            (asked, "a request is left"),
            (process.wants_records(), "a try waits for its record"),
            (relay.deferred_statuses() > 0, "a mark waits for its row"),
            (!process.effects.is_empty(), "effects wait"),
            (!self.server.orphans.is_empty(), "a statement is on its way"),
            (watermark(self.server.row) < least, "the row is behind"),
            (self.server.confirmed < least, "the slot is behind"),
        ];
        states.iter().find_map(|(busy, why)| busy.then_some(*why))
    }

    /// Everything that was committed is delivered, parked for a person, or given up by one.
    fn check_accounts(&self, amnesty: bool) -> Check {
        for (event, number) in self.truth.events.iter().zip(0..) {
            let position = event.position;
            let row = self.server.table.get(&position).filter(|row| !row.state.resolved());
            if row.is_none() && !self.truth.settled(number) {
                return wrong(format!("{position} is lost"));
            }
            if amnesty && row.is_some() {
                return wrong(format!("{position} is mended and still parked"));
            }
        }
        let table = &self.server.table;
        self.truth.check_ends(|at| table.get(&at).is_some_and(|row| !row.state.resolved()))
    }
}
