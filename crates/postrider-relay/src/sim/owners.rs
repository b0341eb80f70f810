//! Which of two processes publishes: all interleavings of their transactions, without the relay.
//!
//! The world of the relay ([`world`](super::world)) knows one way of publishing, the stream. This one knows both, and
//! of each only what decides who publishes which event: the pipeline's lock, the slot, the cursor row with its epoch
//! and `polls_on`, the marks in the table, and claims. The steps of a process are those of `driver::connect`,
//! `driver::poll`, `driver::claim` and `driver::renewal`, in their order; each is one transaction of the server, or
//! one record of the broker. All events are of one aggregate and nothing is refused, so a state is small, and every
//! state is visited that a few events, lost slots, lost sessions and killed processes lead to.
//!
//! What must hold is checked in every state: an event is marked, or passed by the cursor, only when the topic has it;
//! a stream begins only behind events that the topic has; a record follows the one before it, or an earlier one. That
//! is also true where a process publishes for a while after the server has ended its session ([`Rules::lingers`], a
//! broker that is slow), since its successor waits for that to end (`driver::former`; that the wait is long enough, and
//! who need not wait, is taken for granted here).

use std::collections::HashSet;
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};

/// Records of one process on their way to the broker.
const IN_FLIGHT_MAX: usize = 2;

/// Rows of one claim.
const CLAIM_MAX: usize = 2;

/// States of one search. A search that needs more fails: it would not be complete.
const STATES_MAX: usize = 3_000_000;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Mode {
    Wal,
    Poll,
    Auto,
}

/// A rule that is broken on purpose.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Bug {
    /// The slot alone keeps a stream from publishing beside another process.
    StreamTakesNoLock,
    /// The cursor row and the slot are read before the lock is taken.
    ReadsBeforeLock,
    /// The write of an earlier owner counts.
    CursorIsNotFenced,
    /// A claim that began before the slot was made counts as the last one.
    HandsOverUndrained,
    /// The row does not say that the table comes before the new slot.
    ForgetsToPollOn,
    /// The stream passes over whatever this process remembers.
    PassesById,
    /// What a process remembers survives another owner.
    RemembersAcrossOwners,
    /// The lock is given back while records of a claim are on their way.
    UnlocksEarly,
    /// The cursor passes events that are not marked.
    CursorPassesUnmarked,
    /// A successor publishes while records of the owner before may still arrive.
    FollowsAtOnce,
}

/// Each, and the events within which it shows.
const BUGS: [(Bug, u8); 10] = [
    (Bug::StreamTakesNoLock, 2),
    (Bug::ReadsBeforeLock, 2),
    (Bug::CursorIsNotFenced, 2),
    (Bug::HandsOverUndrained, 2),
    (Bug::ForgetsToPollOn, 2),
    (Bug::PassesById, 2),
    (Bug::RemembersAcrossOwners, 3),
    (Bug::UnlocksEarly, 2),
    (Bug::CursorPassesUnmarked, 2),
    (Bug::FollowsAtOnce, 2),
];

/// What may happen in one search.
#[derive(Clone, Copy, Debug)]
struct Rules {
    modes: [Mode; 2],
    /// Events that are committed, one after the other. They are numbered from 0.
    events: u8,
    /// How often somebody drops the slot, a session is lost, and a process is killed.
    faults: Faults,
    /// What a process had on its way when its session ended is written or given up at any later time, before its
    /// successor publishes.
    lingers: bool,
    bug: Option<Bug>,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Faults {
    drops: u8,
    losses: u8,
    kills: u8,
}

/// Who has the lock or reads from the slot: a process, or the session of one that was killed, which the server has
/// not noticed yet.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Holder {
    Process(usize),
    Ghost,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Slot {
    /// The first event that it brings.
    from: u8,
    holder: Option<Holder>,
    /// The cursor row belongs to it.
    bound: bool,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Claim {
    rows: Vec<u8>,
    /// How many are handed to the broker's client.
    sent: usize,
    flight: Vec<u8>,
    /// No row was left for another claim.
    all: bool,
    /// It began when this process knew that the slot stands.
    behind_slot: bool,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
enum Stage {
    /// Pauses, or stands by.
    Off,
    /// The replication session is open, and the lock was asked for.
    Asked {
        locked: bool,
    },
    /// The facts are read: from here on the stream is to begin.
    Decided {
        cursor: u8,
    },
    /// START_REPLICATION was answered.
    Started {
        cursor: u8,
    },
    Streams {
        epoch: u8,
        next: u8,
        flight: Vec<u8>,
    },
    /// The stream is of no use: the table is polled after a pause.
    WillPoll,
    /// The claiming session has the lock.
    Locked,
    Polls {
        epoch: u8,
        slot_stands: bool,
        drained: bool,
        claim: Option<Claim>,
    },
    /// An operator has to act.
    Halted,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Process {
    stage: Stage,
    /// Events that it has published from the table and remembers, one bit each.
    handed: u8,
    /// The epoch under which it has published last, and whether from the table.
    owner: (u8, bool),
    /// A cursor row on its way, with its epoch.
    sent: Option<(u8, u8)>,
    /// Records that its client may still write, though its session is over.
    lingering: Vec<u8>,
    /// The same of a session that gave the lock back too early: nobody waits for them.
    unlocked: Vec<u8>,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct State {
    committed: u8,
    /// One bit for each event.
    marked: u8,
    slot: Option<Slot>,
    cursor: u8,
    epoch: u8,
    polls_on: bool,
    lock: Option<Holder>,
    processes: [Process; 2],
    /// How many events the topic has.
    written: u8,
    /// The newest record.
    last: Option<u8>,
    /// Polling began while a stream repeated what is marked already: the rest of it is not repeated.
    cut: bool,
    left: Faults,
}

impl Process {
    /// An open claim of it has the event's row.
    fn has_claimed(&self, event: u8) -> bool {
        if let Stage::Polls { claim: Some(claim), .. } = &self.stage {
            claim.rows.contains(&event)
        } else {
            false
        }
    }

    /// It streams, and all events are written.
    fn has_streamed(&self, events: u8) -> bool {
        if let Stage::Streams { next, flight, .. } = &self.stage {
            *next == events && flight.is_empty()
        } else {
            false
        }
    }

    /// It publishes from here on: as `driver::marking::Handed`, it forgets what it has published from the table where
    /// another process owned the pipeline in between, or where it polls again after it has streamed.
    fn owns(&mut self, rules: Rules, epoch: u8, polls: bool) {
        let (before, polled) = self.owner;
        let other = before + 1 != epoch && rules.bug != Some(Bug::RemembersAcrossOwners);
        if other || polls && !polled {
            self.handed = 0;
        }
        self.owner = (epoch, polls);
    }
}

type Next = Vec<(&'static str, usize, Result<State, String>)>;

impl State {
    fn new(rules: Rules) -> Self {
        let process = Process {
            stage: Stage::Off,
            handed: 0,
            owner: (0, false),
            sent: None,
            lingering: Vec::new(),
            unlocked: Vec::new(),
        };
        Self {
            committed: 0,
            marked: 0,
            slot: Some(Slot { from: 0, holder: None, bound: true }),
            cursor: 0,
            epoch: 0,
            polls_on: false,
            lock: None,
            processes: [process.clone(), process],
            written: 0,
            last: None,
            cut: false,
            left: rules.faults,
        }
    }

    fn is_marked(&self, event: u8) -> bool {
        self.marked & (1 << event) != 0
    }

    fn write(&mut self, event: u8) -> Result<(), String> {
        let next = if self.cut { self.written } else { self.next_record() };
        if event > next {
            return Err(format!("event {event} is written behind {:?}", self.last));
        }
        self.last = Some(event);
        self.written = self.written.max(event + 1);
        self.cut &= self.next_record() < self.written;
        Ok(())
    }

    /// What follows the newest record.
    fn next_record(&self) -> u8 {
        self.last.map_or(0, |last| last + 1)
    }

    fn mark(&mut self, event: u8) -> Result<(), String> {
        if event >= self.written {
            return Err(format!("event {event} is marked, and the topic does not have it"));
        }
        self.marked |= 1 << event;
        Ok(())
    }

    /// The server ends the session of a process, whose client may have written some of what was on its way.
    fn ends(&self, rules: Rules, i: usize) -> Vec<Result<Self, String>> {
        let mut over = self.clone();
        over.release(Holder::Process(i), None);
        let process = &mut over.processes[i];
        let flight = match &mut process.stage {
            Stage::Streams { flight, .. } => std::mem::take(flight),
            Stage::Polls { claim: Some(claim), .. } => std::mem::take(&mut claim.flight),
            Stage::Polls { claim: None, .. }
            | Stage::Off
            | Stage::Asked { .. }
            | Stage::Decided { .. }
            | Stage::Started { .. }
            | Stage::WillPoll
            | Stage::Locked
            | Stage::Halted => Vec::new(),
        };
        process.stage = Stage::Off;
        if rules.lingers {
            process.lingering.extend(flight);
            return vec![Ok(over)];
        }
        let written = |count: usize| {
            let mut over = over.clone();
            flight.iter().take(count).try_for_each(|event| over.write(*event))?;
            Ok(over)
        };
        (0..=flight.len()).map(written).collect()
    }

    fn release(&mut self, holder: Holder, by: Option<Holder>) {
        if self.lock == Some(holder) {
            self.lock = by;
        }
        if let Some(slot) = self.slot.as_mut().filter(|slot| slot.holder == Some(holder)) {
            slot.holder = by;
        }
    }

    /// All that can happen next.
    fn next(&self, rules: Rules) -> Next {
        let mut next: Next = Vec::new();
        if self.committed < rules.events {
            let mut then = self.clone();
            then.committed += 1;
            next.push(("commits an event", 0, Ok(then)));
        }
        if self.lock == Some(Holder::Ghost)
            || self.slot.as_ref().is_some_and(|slot| slot.holder == Some(Holder::Ghost))
        {
            let mut then = self.clone();
            then.release(Holder::Ghost, None);
            next.push(("the server notices that a process is gone", 0, Ok(then)));
        }
        if self.left.drops > 0
            && let Some(slot) = &self.slot
        {
            let mut then = self.clone();
            then.left.drops -= 1;
            then.slot = None;
            match slot.holder {
                Some(Holder::Process(i)) => {
                    for ended in then.ends(rules, i) {
                        next.push(("the slot is dropped, the stream ends", i, ended));
                    }
                }
                Some(Holder::Ghost) | None => {
                    next.push(("the slot is dropped", 0, Ok(then)));
                }
            }
        }
        for i in 0..self.processes.len() {
            self.faults(rules, i, &mut next);
            self.late(rules, i, &mut next);
            self.step(rules, i, &mut next);
        }
        next
    }

    fn faults(&self, rules: Rules, i: usize, next: &mut Next) {
        let idle = matches!(self.processes[i].stage, Stage::Off | Stage::WillPoll | Stage::Halted);
        if self.left.losses > 0 && !idle {
            for then in self.ends(rules, i) {
                let then = then.map(|mut then| {
                    then.left.losses -= 1;
                    then
                });
                next.push(("loses its session", i, then));
            }
        }
        if self.left.kills > 0 && !idle {
            let mut then = self.clone();
            then.left.kills -= 1;
            // What was on its way is never written: that it is, is the same as a later kill.
            then.release(Holder::Process(i), Some(Holder::Ghost));
            then.processes[i].stage = Stage::Off;
            (then.processes[i].handed, then.processes[i].owner) = (0, (0, false));
            next.push(("is killed", i, Ok(then)));
        }
    }

    /// What a process has sent and the server, or the broker, carries out at some time.
    fn late(&self, rules: Rules, i: usize, next: &mut Next) {
        if let Some((epoch, cursor)) = self.processes[i].sent {
            let mut then = self.clone();
            then.processes[i].sent = None;
            let of_another = epoch != then.epoch && rules.bug != Some(Bug::CursorIsNotFenced);
            // The statement lets no position go back, whoever the owner is.
            let fenced = of_another || cursor < then.cursor;
            if !fenced {
                then.cursor = cursor;
            }
            let behind = then.slot.as_ref().is_some_and(|slot| slot.bound && slot.from > cursor);
            let then = if !fenced && (behind || cursor > then.written) {
                Err(format!("the cursor row is written at {cursor}"))
            } else {
                Ok(then)
            };
            next.push(("cursor row arrives", i, then));
        }
        if !self.processes[i].lingering.is_empty() {
            let mut then = self.clone();
            let event = then.processes[i].lingering.remove(0);
            let written = then.write(event).map(|()| then);
            next.push(("a record of an earlier session is written", i, written));
            let mut then = self.clone();
            then.processes[i].lingering.clear();
            next.push(("gives up what was on its way", i, Ok(then)));
        }
        if !self.processes[i].unlocked.is_empty() {
            let mut then = self.clone();
            let event = then.processes[i].unlocked.remove(0);
            let written = then.write(event).map(|()| then);
            next.push(("a record from before the lock was given back is written", i, written));
        }
    }

    /// What the process does next.
    fn step(&self, rules: Rules, i: usize, next: &mut Next) {
        let mut then = self.clone();
        let me = Some(Holder::Process(i));
        let no_lock = rules.bug == Some(Bug::StreamTakesNoLock);
        let reads_first = rules.bug == Some(Bug::ReadsBeforeLock);
        match &self.processes[i].stage {
            Stage::Halted => {}
            Stage::Off if rules.modes[i] == Mode::Poll => {
                then.processes[i].stage = Stage::WillPoll;
                next.push(("begins to poll", i, Ok(then)));
            }
            Stage::Off => {
                let locked = no_lock || reads_first || self.lock.is_none();
                if locked && !no_lock && !reads_first {
                    then.lock = me;
                }
                then.processes[i].stage = Stage::Asked { locked };
                next.push(("asks for the lock of the stream", i, Ok(then)));
            }
            Stage::Asked { locked } => {
                then.processes[i].stage = self.decided(rules, i, *locked);
                let streams = matches!(then.processes[i].stage, Stage::Decided { .. });
                if !streams {
                    then.release(Holder::Process(i), None);
                }
                next.push(("reads the facts", i, Ok(then)));
            }
            Stage::Decided { cursor } => {
                let locked = !reads_first || self.lock.is_none();
                let free = then.slot.as_mut().filter(|slot| slot.holder.is_none() && locked);
                if let Some(slot) = free {
                    slot.holder = me;
                    then.processes[i].stage = Stage::Started { cursor: *cursor };
                    if reads_first {
                        then.lock = me;
                    }
                } else {
                    then.release(Holder::Process(i), None);
                    then.processes[i].stage = Stage::Off;
                }
                next.push(("starts replication", i, Ok(then)));
            }
            Stage::Started { cursor } => {
                next.push(("seizes the cursor row", i, self.seized(rules, i, *cursor)));
            }
            Stage::Streams { epoch, next: at, flight } => {
                self.stream(rules, (i, *epoch, *at, flight), next);
            }
            Stage::WillPoll => {
                if self.lock.is_none() {
                    then.lock = me;
                    then.processes[i].stage = Stage::Locked;
                } else {
                    then.processes[i].stage = Stage::Off;
                }
                next.push(("asks for the lock of a poller", i, Ok(then)));
            }
            Stage::Locked => {
                then.epoch += 1;
                let epoch = then.epoch;
                let (slot_stands, drained) = (false, false);
                then.processes[i].stage = Stage::Polls { epoch, slot_stands, drained, claim: None };
                then.processes[i].owns(rules, epoch, true);
                then.cut |= then.next_record() < then.written;
                next.push(("takes the row over to poll", i, Ok(then)));
            }
            Stage::Polls { .. } => self.poll(rules, i, next),
        }
    }

    /// What the facts make of a stream that is to begin.
    fn decided(&self, rules: Rules, i: usize, locked: bool) -> Stage {
        let polls = rules.modes[i] == Mode::Auto;
        if !locked {
            return Stage::Off;
        }
        if self.polls_on {
            return if polls { Stage::WillPoll } else { Stage::Halted };
        }
        match &self.slot {
            None if polls => Stage::WillPoll,
            None => Stage::Halted,
            // As the fence: somebody has moved the slot, or made it.
            Some(slot) if !slot.bound || slot.from > self.cursor => Stage::Halted,
            Some(slot) if slot.holder.is_some() => Stage::Off,
            Some(_) => Stage::Decided { cursor: self.cursor },
        }
    }

    fn seized(&self, rules: Rules, i: usize, cursor: u8) -> Result<Self, String> {
        let mut then = self.clone();
        then.epoch += 1;
        let Some(slot) = &then.slot else { return Ok(then) };
        let next = slot.from.max(cursor).max(then.cursor);
        if next > then.written {
            return Err(format!("a stream begins at {next}, the topic has {}", then.written));
        }
        let (epoch, flight) = (then.epoch, Vec::new());
        then.processes[i].owns(rules, epoch, false);
        then.processes[i].stage = Stage::Streams { epoch, next, flight };
        Ok(then)
    }

    fn stream(
        &self,
        rules: Rules,
        (i, epoch, at, flight): (usize, u8, u8, &[u8]),
        next: &mut Next,
    ) {
        let process = &self.processes[i];
        if at < self.committed && flight.len() < IN_FLIGHT_MAX && self.may_publish(rules) {
            let mut then = self.clone();
            let remembered = process.handed & (1 << at) != 0;
            if !remembered && rules.bug != Some(Bug::PassesById) {
                // Everything of the aggregate that follows comes as well.
                then.processes[i].handed = 0;
            }
            if let Stage::Streams { next: at, flight, .. } = &mut then.processes[i].stage {
                flight.extend((!remembered).then_some(*at));
                *at += 1;
            }
            next.push(("streams an event", i, Ok(then)));
        }
        if !flight.is_empty() {
            let mut then = self.clone();
            let Stage::Streams { flight, .. } = &mut then.processes[i].stage else { return };
            let event = flight.remove(0);
            let written = then.write(event).map(|()| then);
            next.push(("its record is written", i, written));
        }
        let resolved = flight.first().copied().unwrap_or(at);
        let unmarked = (0..resolved).find(|event| !self.is_marked(*event));
        if unmarked.is_some() {
            let mut then = self.clone();
            let marked = (0..resolved).try_for_each(|event| then.mark(event)).map(|()| then);
            next.push(("marks what it has published", i, marked));
        }
        let passes = unmarked.is_none() || rules.bug == Some(Bug::CursorPassesUnmarked);
        if resolved > self.cursor && passes && process.sent.is_none() {
            let mut then = self.clone();
            then.processes[i].sent = Some((epoch, resolved));
            next.push(("sends the cursor row", i, Ok(then)));
        }
        let behind = self.slot.as_ref().is_some_and(|slot| slot.from < self.cursor);
        if behind && epoch == self.epoch {
            let mut then = self.clone();
            if let Some(slot) = &mut then.slot {
                slot.from = then.cursor;
            }
            next.push(("confirms the cursor row", i, Ok(then)));
        }
    }

    fn poll(&self, rules: Rules, i: usize, next: &mut Next) {
        let Stage::Polls { epoch, slot_stands, drained, claim } = &self.processes[i].stage else {
            return;
        };
        let polls_on = rules.modes[i] == Mode::Auto;
        match claim {
            None => next.push(("claims", i, Ok(self.claimed(i, *slot_stands)))),
            Some(claim) => self.publish(rules, (i, *epoch, claim), next),
        }
        if polls_on && !slot_stands {
            let mut then = self.clone();
            let mut label = "finds that the slot stands";
            match &mut then.slot {
                None => {
                    then.slot = Some(Slot { from: self.committed, holder: None, bound: false });
                    label = "makes a slot";
                }
                Some(slot) if !slot.bound => {
                    if *epoch == then.epoch {
                        slot.bound = true;
                        then.cursor = slot.from;
                        then.polls_on = rules.bug != Some(Bug::ForgetsToPollOn);
                    }
                    label = "binds the cursor row to the slot";
                }
                Some(_) => {
                    if let Stage::Polls { slot_stands, .. } = &mut then.processes[i].stage {
                        *slot_stands = true;
                    }
                }
            }
            next.push((label, i, Ok(then)));
        }
        let early = rules.bug == Some(Bug::UnlocksEarly)
            && claim.as_ref().is_some_and(|claim| claim.all && claim.behind_slot);
        if polls_on && slot_stands & (*drained && claim.is_none() || early) {
            let mut then = self.clone();
            if *epoch == then.epoch {
                then.polls_on = false;
            }
            then.release(Holder::Process(i), None);
            if let Stage::Polls { claim: Some(claim), .. } = &mut then.processes[i].stage {
                let flight = std::mem::take(&mut claim.flight);
                then.processes[i].unlocked.extend(flight);
            }
            then.processes[i].stage = Stage::Off;
            next.push(("hands over to the stream", i, Ok(then)));
        }
    }

    fn claimed(&self, i: usize, behind_slot: bool) -> Self {
        let mut then = self.clone();
        let claimed_elsewhere =
            |event: &u8| self.processes.iter().any(|process| process.has_claimed(*event));
        let unmarked: Vec<u8> =
            (0..self.committed).filter(|event| !self.is_marked(*event)).collect();
        // A locked row holds up the rest of its aggregate.
        let free = unmarked.iter().take_while(|event| !claimed_elsewhere(event));
        let rows: Vec<u8> = free.take(CLAIM_MAX).copied().collect();
        let all = rows.len() == unmarked.len();
        if let Stage::Polls { claim, drained, .. } = &mut then.processes[i].stage {
            *drained = false;
            *claim = Some(Claim { rows, sent: 0, flight: Vec::new(), all, behind_slot });
        }
        then
    }

    fn publish(&self, rules: Rules, (i, epoch, claim): (usize, u8, &Claim), next: &mut Next) {
        let sends = claim.sent < claim.rows.len() && claim.flight.len() < IN_FLIGHT_MAX;
        if sends && self.may_publish(rules) {
            let mut then = self.clone();
            if let Stage::Polls { claim: Some(claim), .. } = &mut then.processes[i].stage {
                claim.flight.push(claim.rows[claim.sent]);
                claim.sent += 1;
            }
            next.push(("sends a row of its claim", i, Ok(then)));
        }
        if !claim.flight.is_empty() {
            let mut then = self.clone();
            if let Stage::Polls { claim: Some(claim), .. } = &mut then.processes[i].stage {
                claim.flight.remove(0);
            }
            let written = then.write(claim.flight[0]).map(|()| then);
            next.push(("a row of its claim is written", i, written));
        }
        if claim.sent == claim.rows.len() && claim.flight.is_empty() {
            next.push(("settles its claim", i, self.settled(rules, i, epoch, claim)));
        }
    }

    fn settled(&self, rules: Rules, i: usize, epoch: u8, claim: &Claim) -> Result<Self, String> {
        let mut then = self.clone();
        if epoch != then.epoch {
            then.release(Holder::Process(i), None);
            then.processes[i].stage = Stage::Off;
            return Ok(then);
        }
        for event in &claim.rows {
            then.mark(*event)?;
            then.processes[i].handed |= 1 << event;
        }
        let enough = claim.behind_slot || rules.bug == Some(Bug::HandsOverUndrained);
        if let Stage::Polls { drained, claim: open, .. } = &mut then.processes[i].stage {
            *drained = claim.all && enough;
            *open = None;
        }
        Ok(then)
    }

    /// Whether no record of an earlier session can arrive any more. A process that has its own session again is taken
    /// for another one here: its relay knows what it has in flight, and sends nothing of that a second time.
    fn may_publish(&self, rules: Rules) -> bool {
        let none = self.processes.iter().all(|process| process.lingering.is_empty());
        none || rules.bug == Some(Bug::FollowsAtOnce)
    }

    /// What holds when a stream has come to its end: the topic ends with the newest event.
    fn ended_well(&self, rules: Rules) -> Result<(), String> {
        let ended = self.processes.iter().any(|process| process.has_streamed(rules.events));
        if ended && !self.cut && self.last != Some(rules.events - 1) {
            return Err(format!("the topic ends with {:?}", self.last));
        }
        Ok(())
    }
}

/// Visits every state; how many there are, or what is wrong and what led to it. States are known by their hashes:
/// among a million states, the chance that one is taken for another is below one in ten million.
fn search(rules: Rules) -> Result<usize, String> {
    let hash = |state: &State| BuildHasherDefault::<DefaultHasher>::default().hash_one(state);
    let begin = State::new(rules);
    let mut seen = HashSet::from([hash(&begin)]);
    let mut states = vec![(begin, 0, ("", 0))];
    let mut at = 0;
    while let Some((state, ..)) = states.get(at) {
        for (label, process, then) in state.clone().next(rules) {
            let checked = then.and_then(|then| {
                then.ended_well(rules)?;
                Ok(then)
            });
            match checked {
                Ok(then) if seen.insert(hash(&then)) => states.push((then, at, (label, process))),
                Ok(_) => {}
                Err(wrong) => {
                    let mut path = vec![format!("p{process} {label}: {wrong}")];
                    let mut from = at;
                    while from != 0 {
                        let (_, before, (label, process)) = &states[from];
                        path.push(format!("p{process} {label}"));
                        from = *before;
                    }
                    path.reverse();
                    return Err(path.join("\n"));
                }
            }
        }
        at += 1;
        assert!(states.len() < STATES_MAX, "more than {STATES_MAX} states");
    }
    Ok(states.len())
}

const AUTO: [Mode; 2] = [Mode::Auto, Mode::Auto];

fn searches(events: u8) -> Vec<Rules> {
    let rules = |modes, (drops, losses, kills), lingers| {
        let faults = Faults { drops, losses, kills };
        Rules { modes, events, faults, lingers, bug: None }
    };
    vec![
        rules(AUTO, (1, 0, 1), false),
        rules(AUTO, (1, 1, 0), false),
        rules([Mode::Wal, Mode::Poll], (0, 1, 1), false),
        rules(AUTO, (1, 0, 0), true),
        rules(AUTO, (0, 1, 0), true),
        rules([Mode::Wal, Mode::Poll], (0, 1, 0), true),
    ]
}

fn search_all(searches: &[Rules]) {
    for rules in searches {
        match search(*rules) {
            Ok(states) => println!("{rules:?}: {states} states"),
            Err(wrong) => panic!("{rules:?}\n{wrong}"),
        }
    }
}

#[test]
fn whoever_publishes_nothing_is_lost_or_swapped() {
    // A lost session is left to the long run.
    let few: Vec<Rules> = searches(2)
        .into_iter()
        .filter(|rules| rules.faults.drops * rules.faults.losses == 0)
        .collect();
    search_all(&few);
}

/// `scripts/test` runs it: it takes half a minute.
#[test]
#[ignore = "takes longer than the other unit tests"]
fn long_run_of_two_owners() {
    search_all(&searches(3));
}

#[test]
fn broken_rules_of_two_owners_are_noticed() {
    let mut missed = Vec::new();
    for (bug, events) in BUGS {
        let found = searches(events)
            .into_iter()
            .find_map(|rules| search(Rules { bug: Some(bug), ..rules }).err());
        match found {
            Some(path) => println!("{bug:?}\n{path}\n"),
            None => missed.push(bug),
        }
    }
    assert!(missed.is_empty(), "not noticed: {missed:?}");
}
