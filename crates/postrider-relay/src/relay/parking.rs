//! What becomes of parked events: rows to be written, marks on them, and tries of the heads that are due.
//!
//! A row or mark counts only when its write is committed ([`Parking::written`]): an event is resolved then and not
//! before, and a lane is live then and not before. One write is under way at a time, and takes all that has gathered.
//! Knows tickets and positions; the records are the driver's.

mod letters;
mod rules;
mod tries;
mod wishes;
mod writes;

use super::lanes::{Counts, Lanes};
use crate::ack::bug::{Bug, injected};
use letters::Letters;
use postrider_core::event::Position;
use postrider_core::parked::{Became, Entry, Lane, Mark, State};
use postrider_core::record::{Refusal, Ticket};
pub use rules::{OnPoison, Rules};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
use std::time::Duration;

/// Tries that are out at once, and soundings.
pub(super) const TRIES_MAX: usize = 32;

/// Rows, and marks, of one write.
const WRITE_MAX: usize = 500;

/// Events that wait for their rows to be committed; reaching it shuts the intake.
const PENDING_EVENTS_MAX: usize = 2_000;

/// Bytes of their records; one event may exceed it alone.
const PENDING_BYTES_MAX: u64 = 16 << 20;

/// Pause before marks are written again whose rows another session had locked.
const LOCKED_PAUSE: Duration = Duration::from_secs(1);

/// Tickets of tries have this bit, tickets of the stream do not.
const TRY: u64 = 1 << 63;

/// An event whose row is not committed.
#[derive(Clone, Copy, Debug)]
struct Pending {
    ticket: Ticket,
    entry: Entry,
    size_bytes: u64,
}

/// A mark that is not committed.
#[derive(Clone, Copy, Debug)]
struct Owed {
    mark: Mark,
    lane: Option<Lane>,
    /// It is part of the write that is under way.
    writing: bool,
    /// It was left out of the last write that it was part of.
    left: bool,
}

/// Marks that were left out of a write because another session had locked their rows, and which marks wait for them: a
/// later one of the same lane must not be committed first, or a crash would repeat the earlier event alone, behind it.
#[derive(Debug, Default)]
struct Locked {
    /// They are written again from here on.
    until: Option<Duration>,
    lanes: HashSet<Lane>,
    rows: HashSet<Position>,
    /// How many marks wait.
    marks: usize,
}

impl Locked {
    fn keeps(&self, owed: &Owed) -> bool {
        self.until.is_some()
            && (self.rows.contains(&owed.mark.position)
                || owed.lane.is_some_and(|lane| self.lanes.contains(&lane))
                    && !injected(Bug::MarksPassLeftOnes))
    }

    fn leave(&mut self, now: Duration, owed: &Owed) {
        self.until = Some(now.saturating_add(LOCKED_PAUSE));
        self.rows.insert(owed.mark.position);
        self.lanes.extend(owed.lane);
    }
}

#[derive(Debug)]
pub(super) struct Parking {
    pub(super) rules: Rules,
    pub(super) lanes: Lanes,
    /// In order of the stream; the first `writing` are being written.
    pending: VecDeque<Pending>,
    pending_bytes: u64,
    writing: usize,
    /// In order.
    marks: VecDeque<Owed>,
    locked: Locked,
    under_way: bool,
    tries: HashMap<Ticket, Position>,
    /// Rows that are to be tried alone, while their destinations are asked for.
    soundings: HashMap<Ticket, Position>,
    letters: Letters,
    next_try: u64,
    /// Rows that were in a batch a broker refused.
    suspects: BTreeSet<Position>,
    /// Events of the stream that a broker refused alone, and why: they are parked when they come again.
    condemned: BTreeMap<Position, (Entry, Refusal)>,
    connected: bool,
    /// A try has to be alone: letters wait.
    hushed: bool,
}

impl Parking {
    pub(super) fn new(rules: Rules) -> Self {
        Self {
            rules,
            lanes: Lanes::default(),
            pending: VecDeque::new(),
            pending_bytes: 0,
            writing: 0,
            marks: VecDeque::new(),
            locked: Locked::default(),
            under_way: false,
            tries: HashMap::new(),
            soundings: HashMap::new(),
            letters: Letters::new(rules.letters),
            next_try: 0,
            suspects: BTreeSet::new(),
            condemned: BTreeMap::new(),
            connected: false,
            hushed: false,
        }
    }

    /// Whether the next change may come, and be parked. Rows that the stream has not reached again since the last start
    /// must not shut it out: they are tried only when it has passed them.
    pub(super) fn has_room(&self, next: Position) -> bool {
        !self.is_full(next)
            && self.pending.len() < PENDING_EVENTS_MAX
            && self.pending_bytes < PENDING_BYTES_MAX
    }

    /// Whether as many events are parked as may be.
    pub(super) fn is_full(&self, next: Position) -> bool {
        self.lanes.counts().total() >= self.rules.rows_max
            && (!self.lanes.any_from(next) || injected(Bug::FullShutsOut))
    }

    /// Whether there is nothing to decide: no row, no mark, no try.
    #[inline]
    pub(super) fn idle(&self) -> bool {
        self.lanes.is_empty()
            && self.pending.is_empty()
            && self.marks.is_empty()
            && self.tries() == 0
    }

    /// Whether parking needs no decision now: no head is due, and no write, mark, attempt or dead letter is pending.
    /// Takes the same time whatever the number of parked events.
    #[inline]
    pub(super) fn asleep(&self, now: Duration) -> bool {
        self.lanes.asleep(now)
            && self.pending.is_empty()
            && self.no_mark_is_due(now)
            && self.tries.is_empty()
            && self.letters.asleep(now)
            && !self.hushed
    }

    /// Marks that could not be written when they were last to be.
    pub(super) fn left_marks(&self) -> usize {
        self.marks.iter().filter(|owed| owed.left).count()
    }

    pub(super) fn counts(&self) -> Counts {
        self.lanes.counts()
    }

    /// Tries and letters that are out.
    pub(super) fn tries(&self) -> usize {
        self.tries.len() + self.letters.flying()
    }

    /// Whether nothing is being tried and everything decided is committed.
    pub(super) fn quiet(&self) -> bool {
        self.tries() == 0 && self.pending.is_empty() && self.marks.is_empty()
    }

    /// Sets an event aside: its row has to be written before it counts as resolved.
    pub(super) fn park(&mut self, now: Duration, ticket: Ticket, entry: Entry, size_bytes: u64) {
        self.lanes.insert(now, &entry, false);
        self.condemned.remove(&entry.position);
        self.pending.push_back(Pending { ticket, entry, size_bytes });
        self.pending_bytes += size_bytes;
    }

    /// An event that is to be parked as this when the stream brings it again.
    pub(super) fn condemn(&mut self, entry: Entry, reason: Refusal) {
        self.condemned.insert(entry.position, (entry, reason));
    }

    pub(super) fn condemned(&self, position: Position) -> Option<(Entry, Refusal)> {
        if self.condemned.is_empty() { None } else { self.condemned.get(&position).copied() }
    }

    /// The connection is gone, and with it the answer to a write: it is written again, which changes nothing where it
    /// had arrived.
    pub(super) fn lost(&mut self) {
        self.connected = false;
        self.under_way = false;
        self.writing = 0;
        self.locked = Locked::default();
        for owed in &mut self.marks {
            owed.writing = false;
        }
    }

    /// Everything in flight is given up: the stream brings again what has no row, and no try will be reported.
    ///
    /// The session may go on, for a last row and the last marks: a write that is under way stays so.
    pub(super) fn given_up(&mut self) {
        self.writing = 0;
        if injected(Bug::DrainForgetsWrite) {
            self.lost();
        }
        for pending in std::mem::take(&mut self.pending) {
            self.lanes.remove(pending.entry.position, false, false);
        }
        self.pending_bytes = 0;
        self.tries.clear();
        self.soundings.clear();
        self.letters.given_up();
        self.lanes.stop_trying();
    }

    /// What is decided and not committed is another owner's to decide again. That a broker refused an event alone stays
    /// true, where positions mean the same: else two processes that take turns would each begin anew with every turn.
    pub(super) fn forget(&mut self, same_history: bool) {
        self.lost();
        self.given_up();
        self.marks.clear();
        self.locked = Locked::default();
        self.letters.clear();
        self.suspects.clear();
        if !same_history {
            self.condemned.clear();
        }
        self.lanes.clear();
    }

    /// Reads the table's rows, in order of the stream: memory is made from them, and from what is on its way.
    pub(super) fn load(&mut self, now: Duration, rows: &[Entry]) {
        self.lost();
        self.connected = true;
        self.letters.reload();
        self.soundings.clear();
        self.lanes.clear();
        for entry in rows {
            self.lanes.insert(now, entry, true);
        }
        for Pending { entry, .. } in &self.pending {
            if self.lanes.row(entry.position).is_some() {
                self.lanes.writing(entry.position);
            } else {
                self.lanes.insert(now, entry, false);
            }
        }
        for Owed { mark, lane, .. } in &self.marks {
            let position = mark.position;
            match mark.became {
                Became::Done | Became::Skipped if self.lanes.row(position).is_some() => {
                    self.lanes.remove(position, true, true);
                }
                Became::Done | Became::Skipped => {
                    if let Some(lane) = *lane {
                        self.lanes.owe_mark(lane);
                    }
                }
                Became::Refused { state, attempts, wait, reason: _ } => {
                    self.lanes.becomes(position, state, attempts, now.saturating_add(wait));
                    self.lanes.writing(position);
                }
                Became::Again => {
                    self.lanes.becomes(position, State::Waiting, 0, now);
                    self.lanes.writing(position);
                }
                Became::Declined | Became::DeadSent | Became::Overtaken { .. } => {}
            }
        }
        for position in &self.suspects {
            self.lanes.set_alone(*position);
        }
        let lanes = &mut self.lanes;
        self.tries.retain(|ticket, position| lanes.try_again(*position, *ticket));
    }

    fn mark(&mut self, position: Position, became: Became, lane: Option<Lane>) {
        let owed = Owed { mark: Mark { position, became }, lane, writing: false, left: false };
        self.locked.marks += usize::from(self.locked.keeps(&owed));
        self.marks.push_back(owed);
    }
}
