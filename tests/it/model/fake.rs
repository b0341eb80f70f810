//! Runs a script on the simulator's fake.

use super::notes::{Notes, Seen, marker};
use super::plan::Bad;
use super::postgres::{Reply, Server, Statement, Transaction, WalChange, at, watermark};
use super::rng::Rng;
use super::script::{By, From, Step};
use super::truth::Truth;
use super::walsender::{Frame, Walsender};
use postrider::ack::Progress;
use postrider::event::{Aggregate, Position};
use postrider::offset::Watermark;
use postrider::parked::{Entry, Lane, ParkedOutcome, ParkedUpdate, State};
use postrider::record::Refusal;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// The one process.
const US: usize = 0;

/// Every transcript that the fake can make of a script: one for each way in which its draws can fall.
pub(super) fn transcripts(script: &[Step]) -> BTreeSet<Vec<String>> {
    let mut all = BTreeSet::new();
    let mut bits = 0_u32;
    loop {
        let mut fake = Fake::new(bits);
        for step in script {
            fake.step(*step);
        }
        all.insert(fake.notes.lines);
        bits += 1;
        if bits >> fake.drawn > 0 {
            return all;
        }
    }
}

struct Fake {
    server: Server,
    truth: Truth,
    /// Keepalives and gaps in the WAL, which a transcript does not show.
    rng: Rng,
    walsender: Option<(Walsender, Frame)>,
    /// What open transactions have written.
    open: BTreeMap<char, Vec<String>>,
    /// Rows of the committed ones, by their commit.
    rows: BTreeMap<u64, Vec<String>>,
    locked: bool,
    waiting: Option<Statement>,
    notes: Notes,
    markers: u32,
    /// How the draws fall, and how many there were.
    bits: u32,
    drawn: u32,
}

impl Fake {
    fn new(bits: u32) -> Self {
        Self {
            server: Server::new(),
            truth: Truth::new(1, false),
            rng: Rng::new(7),
            walsender: None,
            open: BTreeMap::new(),
            rows: BTreeMap::new(),
            locked: false,
            waiting: None,
            notes: Notes::default(),
            markers: 0,
            bits,
            drawn: 0,
        }
    }

    /// Where the simulator draws whether something happens.
    fn draw(&mut self) -> bool {
        self.drawn += 1;
        self.bits >> (self.drawn - 1) & 1 == 1
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Begin(letter) => drop(self.open.insert(letter, Vec::new())),
            Step::Write(letter) => self.add(letter, false),
            Step::Other(letter) => self.add(letter, true),
            Step::Commit(letter) => {
                let rows = self.open.remove(&letter).unwrap();
                self.commit(rows);
            }
            Step::RollBack(letter) => {
                self.open.remove(&letter).unwrap();
                self.server.write(0);
            }
            Step::Open(_)
            | Step::Read
            | Step::Second
            | Step::Confirm(_)
            | Step::Close
            | Step::Slot
            | Step::Checkpoint
            | Step::Crash => self.stream(step),
            Step::TakeOver
            | Step::Cursor(..)
            | Step::Row
            | Step::Lock
            | Step::Send(_)
            | Step::Gone
            | Step::TakeOverLocked
            | Step::Unlock => self.owning(step),
            Step::Park(rows, marks, by) => self.park(rows, marks, by),
            Step::AtOnce(event) => {
                let (state, reason) = (State::Dead, Refusal::destination("no such topic"));
                let dead =
                    ParkedOutcome::Refused { state, attempts: 2, wait: Duration::ZERO, reason };
                self.park(&[(event, State::Waiting)], &[(event, dead)], By::TheOwner);
            }
            Step::Overtaken(event, by) => {
                let by = self.notes.position(by);
                self.park(&[], &[(event, ParkedOutcome::Overtaken { by })], By::TheOwner);
            }
            Step::Ask(event, request) => {
                let row = self.server.table.get_mut(&self.notes.position(event)).unwrap();
                row.request = Some(request);
                self.truth.events[row.event].skip_asked = true;
            }
            Step::Table(from) => {
                let commit = from.map_or(0, |letter| self.notes.commit_of(letter));
                let (entries, requests) =
                    self.server.load(Position { commit: at(commit), ordinal: 0 }, 0);
                let request = |entry: &Entry| {
                    let mut requests = requests.iter();
                    requests.find(|(at, _)| *at == entry.position).map(|(_, request)| *request)
                };
                let rows: Vec<_> = entries.iter().map(|entry| (*entry, request(entry))).collect();
                self.notes.table(&rows);
            }
        }
    }

    #[expect(clippy::wildcard_enum_match_arm, reason = "the caller has chosen")]
    fn owning(&mut self, step: Step) {
        match step {
            Step::TakeOver | Step::TakeOverLocked => self.server.epoch += 1,
            Step::Cursor(letter, by) => {
                let statement = self.cursor(letter, by);
                let Reply::Cursor(stored) = self.execute(statement) else { panic!("its answer") };
                self.notes.say(format!("the cursor row to {letter}: stored {stored}"));
            }
            Step::Row => {
                let row = self.notes.name(watermark(self.server.row));
                self.notes.say(format!("the cursor row is {row}"));
            }
            Step::Lock => self.locked = true,
            Step::Send(letter) => {
                assert!(self.locked);
                self.waiting = Some(self.cursor(letter, By::TheOwner));
            }
            // As `World::release`: what was sent may have arrived, and then somebody carries it out some time.
            Step::Gone => {
                let arrived = self.draw();
                self.server.orphans.extend(self.waiting.take().filter(|_| arrived));
            }
            Step::Unlock => {
                self.locked = false;
                while let Some(statement) = self.server.orphans.pop_front() {
                    self.execute(statement);
                }
            }
            other => panic!("{other:?} is not about the owner"),
        }
    }

    fn add(&mut self, letter: char, other: bool) {
        let rows = self.open.get_mut(&letter).unwrap();
        let events = rows.iter().filter(|row| !row.contains("other")).count();
        let number = events + 1;
        rows.push(if other { format!("{letter}-other") } else { format!("{letter}{number}") });
    }

    /// As `World::commit`.
    fn commit(&mut self, rows: Vec<String>) {
        let gap = self.rng.below(2) * 24;
        let (commit, end) = self.server.write(gap);
        let mut changes = Vec::new();
        for (row, ordinal) in rows.iter().zip(0..) {
            if row.contains("other") {
                changes.push(WalChange::Other);
                continue;
            }
            let position = Position { commit: at(commit), ordinal };
            let event = self.truth.commit(position, None, Bad::No, 0, (1, 0));
            // Published and refused often enough for whatever is written of it.
            self.truth.write(event, 0, &[]).unwrap();
            self.truth.events[event].refused = 100;
            changes.push(WalChange::Event(event));
        }
        self.server.transactions.push(Transaction {
            commit,
            end,
            changes,
            ..Transaction::default()
        });
        self.rows.insert(commit, rows);
    }

    #[expect(clippy::wildcard_enum_match_arm, reason = "the caller has chosen")]
    fn stream(&mut self, step: Step) {
        match step {
            Step::Open(from) => {
                assert_eq!(self.server.slot.holder, None);
                self.server.slot.holder = Some(US);
                let from = match from {
                    From::Slot => 0,
                    From::CommitOf(letter) => self.notes.commit_of(letter),
                    From::PastCommitOf(letter) => self.notes.commit_of(letter) + 1,
                    From::EndOf(letter) => self.notes.end_of(letter),
                };
                self.walsender = Some(Walsender::start(&self.server, from));
                self.notes.stream();
            }
            Step::Read => self.read(),
            Step::Second => {
                let refused = self.server.slot.holder.is_some();
                self.notes.say(format!("a second reader: refused {refused}"));
            }
            Step::Confirm(letter) => {
                let end = self.notes.end_of(letter);
                self.server.confirm(&self.truth, end).unwrap();
                self.may_be_saved();
            }
            Step::Close => (self.walsender, self.server.slot.holder) = (None, None),
            Step::Slot => {
                let slot = self.notes.name(self.server.slot.confirmed);
                self.notes.say(format!("the slot is {slot}"));
            }
            Step::Checkpoint => self.may_be_saved(),
            Step::Crash => {
                self.server.crash();
                self.walsender = None;
                self.notes.say("it crashes");
            }
            other => panic!("{other:?} is not about the stream"),
        }
    }

    /// As `Fault::Checkpoint`, which may come at any time.
    fn may_be_saved(&mut self) {
        if self.draw() {
            self.server.save();
        }
    }

    fn read(&mut self) {
        self.markers += 1;
        self.commit(vec![marker(self.markers)]);
        let (walsender, first) = self.walsender.as_mut().expect("a stream");
        let mut frames = Vec::new();
        let mut rows = std::slice::Iter::<String>::default();
        let mut next = Some(*first);
        while let Some(frame) = next {
            frames.push(match frame {
                Frame::Keepalive { upto: wal_end } => Seen::Keepalive(wal_end),
                Frame::Begin { commit, .. } => {
                    rows = self.rows[&commit].iter();
                    Seen::Begin(commit)
                }
                Frame::Change(_) => Seen::Row(rows.next().expect("a row").clone()),
                Frame::Commit { commit, end } => Seen::Commit { commit, end },
            });
            next = walsender.send(&self.server, &mut self.rng, 300);
        }
        self.notes.read(&frames);
    }

    fn epoch(&self, by: By) -> u64 {
        match by {
            By::TheOwner => self.server.epoch,
            By::TheFormer => self.server.epoch - 1,
        }
    }

    fn cursor(&self, letter: char, by: By) -> Statement {
        let watermark = Watermark::from_commit_end(at(self.notes.end_of(letter)));
        Statement::Cursor { progress: Progress { watermark, partial: None }, epoch: self.epoch(by) }
    }

    fn execute(&mut self, statement: Statement) -> Reply {
        self.server.execute(&mut self.truth, 0, statement).unwrap()
    }

    fn park(&mut self, rows: &[(&str, State)], marks: &[(&str, ParkedOutcome)], by: By) {
        let row = |(event, state): &(&str, State)| {
            let position = self.notes.position(event);
            let known = self.truth.events.iter().position(|event| event.position == position);
            (entry(position, *state), known.unwrap())
        };
        let mark = |(event, became): &(&str, ParkedOutcome)| ParkedUpdate {
            position: self.notes.position(event),
            became: *became,
        };
        let rows = rows.iter().map(row).collect();
        let marks = marks.iter().map(mark).collect();
        let statement = Statement::Parking { rows, statuses: marks, epoch: self.epoch(by) };
        let Reply::Parking(left) = self.execute(statement) else { panic!("its answer") };
        self.notes.say(format!("a parking write: stored {}", left.is_some()));
    }
}

/// What the relay remembers of a parked event.
pub(super) fn entry(position: Position, state: State) -> Entry {
    let lane = Lane::of(Aggregate { kind: "order", id: "7" });
    let attempts = u32::from(matches!(state, State::Waiting | State::Dead));
    let wait = Duration::ZERO;
    Entry { position, lane: Some(lane), state, attempts, wait, overtaken_by: None, xid: None }
}
