//! Claims as transcripts: what a session does next, effect by effect.

use super::*;
use crate::engine::{Answer, NextChange, Offered, PollingRules};
use crate::published::RowStatusRule;
use crate::relay::{HaltWords, Limits, OnPoison, ParkingRules, Settings};
use postrider_core::error::{Halt, HaltReason};
use postrider_core::event::Aggregate;
use postrider_core::outbox_rows::{CandidateRow, CandidateState};
use postrider_core::parked::{Lane, State};
use postrider_core::record::{Outcome, Ticket};
use postrider_core::timestamp::Timestamp;

/// A session whose driver performs nothing by itself.
struct Session {
    now: Duration,
    engine: Engine,
    claims: Claims,
    effects: Vec<ClaimEffect>,
}

const SECOND: Duration = Duration::from_secs(1);

const TABLE: ClaimSource = ClaimSource::Table;

const UNTIL_SLOT: ClaimSource =
    ClaimSource::TableUntilSlot { drops_slot: false, former: 0, epoch: 1 };

fn halt() -> Halt {
    Halt {
        reason: HaltReason::PoisonEvent,
        message: String::new(),
        meaning: String::new(),
        hint: String::new(),
    }
}

fn aggregate(id: &str) -> Aggregate<'_> {
    Aggregate { kind: "order", id }
}

/// A claim of one row for each of these aggregates.
fn new_claim(aggregates: &[&str]) -> NewClaim {
    let row = |id: &&str| ClaimedRow { key: Lane::of(aggregate(id)), xmin: 7, too_large: false };
    NewClaim {
        wal_end: Offset::new(0x100),
        rows: aggregates.iter().map(row).collect(),
        ..NewClaim::default()
    }
}

impl Session {
    fn new(source: ClaimSource, keeps_failures: bool) -> Self {
        let rules = ParkingRules {
            on_poison: OnPoison::BlockKey,
            attempts_max: 10,
            step: SECOND,
            steps_max: 8,
            rows_max: 100,
            strict: false,
            dead_letters: false,
        };
        let settings = Settings {
            limits: Limits { events_max: 100, bytes_max: 1 << 20 },
            cursor_interval: SECOND,
            idle_step: 1,
            words: HaltWords::POSTGRES,
            rules,
            transactions: None,
        };
        let mut engine = Engine::new(settings, RowStatusRule::Off);
        let polling = PollingRules { failures_stay: keeps_failures, claims_expire: false };
        engine.polls(polling).unwrap();
        let (interval, batch, rows_max) = (SECOND, 100, 10_000);
        let settings = ClaimSettings { interval, batch, rows_max, keeps_failures, source };
        let claims = Claims::new(Duration::ZERO, settings, Offset::new(0x80));
        Self { now: Duration::ZERO, engine, claims, effects: Vec::new() }
    }

    /// A session that has begun, with these requeued events and parked events.
    fn begun(source: ClaimSource, found: Vec<RequeueCandidate>, parked: &[Entry]) -> Self {
        let mut session = Self::new(source, false);
        session.apply(ClaimInput::Begin);
        if source == UNTIL_SLOT {
            assert_eq!(session.take(), [ClaimEffect::MarkStreamed]);
            session.apply(ClaimInput::Marked);
        }
        assert_eq!(session.take(), [ClaimEffect::QueryRequeued]);
        session.apply(ClaimInput::RequeuedFound(found));
        assert_eq!(session.take(), [ClaimEffect::ReadParked { in_claim: false }]);
        session.read(parked);
        session
    }

    fn apply(&mut self, input: ClaimInput<'_>) {
        self.claims.apply(self.now, input, &mut self.engine, &mut self.effects);
    }

    fn take(&mut self) -> Vec<ClaimEffect> {
        std::mem::take(&mut self.effects)
    }

    fn read(&mut self, parked: &[Entry]) {
        self.apply(ClaimInput::ParkedRead(ParkedEvents { parked, ..ParkedEvents::default() }));
        let effects = self.take();
        assert!(effects.contains(&ClaimEffect::Started), "{effects:?}");
    }

    /// Applies the effects of the relay; returns what the claims require.
    fn relay_effects(&mut self) -> Vec<ClaimEffect> {
        self.apply(ClaimInput::RelayEffects);
        while !self.engine.effects().is_empty() {
            for effect in std::mem::take(self.engine.effects()) {
                self.apply(ClaimInput::Relay(effect));
            }
        }
        let mut effects = self.take();
        effects.retain(|effect| !matches!(effect, ClaimEffect::Perform(_)));
        effects
    }

    fn turn(&mut self) -> Vec<ClaimEffect> {
        self.apply(ClaimInput::Turn { overruled: false, writing: false });
        self.take()
    }

    fn claim(&mut self, all: bool, claim: NewClaim) -> Vec<ClaimEffect> {
        self.apply(ClaimInput::ClaimDue);
        // A claim that was held for long is followed by a smaller one.
        let effects = self.take();
        let claims =
            matches!(effects.as_slice(), [ClaimEffect::Claim { all: of, .. }] if *of == all);
        assert!(claims, "{effects:?}");
        self.apply(ClaimInput::Claimed(claim));
        self.take()
    }

    /// Feeds all rows, each an event whose id is the number of its row; returns the tickets.
    fn feed(&mut self, aggregates: &[&str]) -> Vec<Ticket> {
        let mut tickets = Vec::new();
        while let Some((row, _)) = self.claims.next_row(self.now, &mut self.engine) {
            let NextChange::New(next) = self.engine.next_change() else {
                self.engine.skip(self.now);
                self.claims.row_fed();
                continue;
            };
            let id = row.to_string();
            let event = Offered {
                position: next.position,
                id: &id,
                aggregate: aggregate(aggregates[row]),
                size_bytes: 10,
                available_at: None,
                expires_at: None,
                wall: Timestamp::default(),
            };
            if let Answer::Publish(ticket) =
                self.engine.offer(self.now, &event, || Box::new(halt()))
            {
                self.engine.taken(ticket, &event, None);
                tickets.push(ticket);
            }
            self.claims.row_fed();
        }
        tickets
    }

    fn report(&mut self, ticket: Ticket, outcome: Outcome) {
        self.engine.apply(self.now, Input::Report { ticket, outcome });
    }
}

fn settle(outcomes: Vec<RowOutcome>) -> ClaimEffect {
    ClaimEffect::Settle { outcomes, undo_from: None, places: Vec::new() }
}

use RowOutcome::{Held, Published};

#[test]
fn claim_is_settled_when_every_row_is_acknowledged_and_the_next_one_is_made_at_once() {
    let mut session = Session::begun(TABLE, Vec::new(), &[]);
    let rows = ["a", "b"];
    assert_eq!(session.claim(false, new_claim(&rows)), [ClaimEffect::Accepted]);
    assert_eq!(session.claims.claim_due(&session.engine, false), None, "one claim is open");
    let tickets = session.feed(&rows);
    session.report(tickets[0], Outcome::Acked);
    assert_eq!(session.relay_effects(), []);
    assert_eq!(session.turn(), [], "the second row is in flight");
    session.report(tickets[1], Outcome::Acked);
    assert_eq!(session.relay_effects(), []);
    assert_eq!(session.turn(), [settle(vec![Published, Published])]);
    session.apply(ClaimInput::Settled { owned: true, writing: false });
    assert_eq!(session.take(), [ClaimEffect::Processed]);
    assert_eq!(session.claims.claim_due(&session.engine, false), Some(session.now));
    assert_eq!(session.claims.claim_due(&session.engine, true), None, "the broker is down");
    session.claim(false, new_claim(&[]));
    assert_eq!(
        session.claims.claim_due(&session.engine, false),
        Some(SECOND),
        "the table is empty"
    );
}

/// The rows stay claimed, so that the relay knows at which positions a broker has refused an event.
#[test]
fn claim_is_fed_again_after_its_producer_broke() {
    let mut session = Session::begun(TABLE, Vec::new(), &[]);
    let rows = ["a", "b"];
    session.claim(false, new_claim(&rows));
    let tickets = session.feed(&rows);
    session.report(tickets[0], Outcome::Acked);
    session.engine.apply(session.now, Input::SinkBroken);
    assert_eq!(session.relay_effects(), [ClaimEffect::ResetSink(Restart::SinkBroken)]);
    assert_eq!(session.turn(), [], "it pauses");
    assert!(session.feed(&rows).is_empty());
    session.now = session.claims.deadline(session.now).unwrap();
    assert_eq!(session.turn(), [ClaimEffect::ReadParked { in_claim: true }]);
    session.read(&[]);
    // The first row was resolved before, and is skipped.
    let tickets = session.feed(&rows);
    assert_eq!(tickets.len(), 1);
    session.report(tickets[0], Outcome::Acked);
    assert_eq!(session.relay_effects(), []);
    assert_eq!(session.turn(), [settle(vec![Published, Published])]);
}

#[test]
fn claim_that_is_held_for_long_is_settled_in_part_and_given_up_if_nothing_is_acknowledged() {
    let mut session = Session::begun(TABLE, Vec::new(), &[]);
    let rows = ["a", "b", "b", "c"];
    session.claim(false, new_claim(&rows));
    let tickets = session.feed(&rows);
    for row in [2, 3] {
        session.report(tickets[row], Outcome::Acked);
    }
    assert_eq!(session.relay_effects(), []);
    session.now = session.claims.deadline(session.now).unwrap();
    session.apply(ClaimInput::Tick { broker_down: false });
    let part = vec![Held, Held, Held, Published];
    assert_eq!(
        session.take(),
        [ClaimEffect::SettlePart { outcomes: part, left: vec![0, 1, 2] }],
        "an earlier row of the third one's aggregate is open"
    );
    session.apply(ClaimInput::SettledPart { owned: true, kept: true });
    assert_eq!(session.take(), []);
    session.now = session.claims.deadline(session.now).unwrap();
    session.apply(ClaimInput::Tick { broker_down: false });
    assert_eq!(session.take(), [], "nothing more is acknowledged");
    assert_eq!(
        session.relay_effects(),
        [ClaimEffect::ResetSink(Restart::SlotTaken), ClaimEffect::Abandon]
    );
    session.apply(ClaimInput::Abandoned { writing: false });
    assert_eq!(session.turn(), [ClaimEffect::ReadParked { in_claim: false }]);
    session.read(&[]);
    assert!(session.claims.open().is_none());
    session.apply(ClaimInput::ClaimDue);
    assert_eq!(session.take(), [ClaimEffect::Claim { limit: 2, all: false }], "a smaller one");
}

#[test]
fn another_owner_ends_the_session() {
    let mut session = Session::begun(TABLE, Vec::new(), &[]);
    session.claim(false, new_claim(&["a"]));
    let tickets = session.feed(&["a"]);
    session.report(tickets[0], Outcome::Acked);
    session.relay_effects();
    assert_eq!(session.turn(), [settle(vec![Published])]);
    session.apply(ClaimInput::Settled { owned: false, writing: false });
    session.take();
    session.relay_effects();
    assert_eq!(session.turn(), [ClaimEffect::Ends(PollEnd::Overruled)]);
}

/// The last two claims begin while the slot exists: the second one takes the rows that are not ready as well.
#[test]
fn polling_ends_when_a_claim_that_began_with_the_slot_has_taken_every_row() {
    let mut session = Session::begun(UNTIL_SLOT, Vec::new(), &[]);
    let nothing = [ClaimEffect::Accepted, ClaimEffect::Processed];
    assert_eq!(session.claim(false, new_claim(&[])), nothing);
    assert_eq!(session.claims.slot_due(), Some(Duration::ZERO));
    session.apply(ClaimInput::SlotDue);
    assert_eq!(session.take(), [ClaimEffect::Slot(SlotStep::Create)]);
    session.apply(ClaimInput::Slot(SlotAnswer::Usable));
    assert_eq!(session.claim(false, new_claim(&[])), nothing);
    assert_eq!(session.claim(true, new_claim(&["a"])), [ClaimEffect::Accepted]);
    let tickets = session.feed(&["a"]);
    session.report(tickets[0], Outcome::Acked);
    session.relay_effects();
    assert_eq!(session.turn(), [settle(vec![Published])]);
    session.apply(ClaimInput::Settled { owned: true, writing: false });
    assert_eq!(session.take(), [ClaimEffect::Processed, ClaimEffect::FinishPolling]);
    session.apply(ClaimInput::PollingFinished(Offset::new(0x200)));
    assert_eq!(session.take(), [ClaimEffect::Ends(PollEnd::Streams)]);
}

/// A parked event of an aggregate of its own, whose row transaction 7 has certainly written.
fn requeued(id: &str, at: Position) -> RequeueCandidate {
    RequeueCandidate {
        event_id: id.to_owned(),
        position: at,
        lane: Some(Lane::of(Aggregate { kind: "requeued", id })),
        blocks: true,
        state: CandidateState::Unresolved,
        precedes: false,
        row: Some(CandidateRow { certain: true, xmin: 7 }),
    }
}

/// The relay must know an event that is parked and is no longer requeued before a later event of its aggregate is
/// published.
#[test]
fn claim_is_given_up_if_the_row_of_a_requeued_event_was_deleted() {
    let at = Position { commit: Offset::new(0x10), ordinal: 0 };
    let parked = Entry {
        position: at,
        lane: Some(Lane::of(aggregate("a"))),
        state: State::Dead,
        attempts: 1,
        wait: Duration::ZERO,
        overtaken_by: None,
        xid: None,
    };
    let mut session = Session::begun(UNTIL_SLOT, vec![requeued("0", at)], &[parked]);
    assert_eq!(session.engine.relay().parked().total(), 0, "its row comes again");
    assert_eq!(session.claim(false, new_claim(&["a"])), [ClaimEffect::QueryRequeued]);
    session.apply(ClaimInput::RequeuedFound(Vec::new()));
    assert_eq!(session.take(), [ClaimEffect::Abandon]);
    session.apply(ClaimInput::Abandoned { writing: false });
    assert_eq!(session.take(), [ClaimEffect::ReadParked { in_claim: false }]);
    session.read(&[parked]);
    assert_eq!(session.engine.relay().parked().total(), 1);
}

/// A row that the outbox table keeps as failed is not written to the parked table, and blocks its aggregate.
#[test]
fn failures_are_kept_in_a_table_that_has_columns_for_them() {
    for keeps in [false, true] {
        let mut session = Session::new(TABLE, keeps);
        session.apply(ClaimInput::Begin);
        session.apply(ClaimInput::RequeuedFound(Vec::new()));
        session.take();
        session.read(&[]);
        session.claim(false, new_claim(&["a"]));
        let (row, claimed) = session.claims.next_row(session.now, &mut session.engine).unwrap();
        assert_eq!((row, claimed.xmin), (0, 7));
        let NextChange::New(next) = session.engine.next_change() else { panic!("a repetition") };
        let event = (next.position, "0");
        session.engine.poison(session.now, event, Some(aggregate("a")), || Box::new(halt()));
        session.claims.row_fed();
        assert!(session.feed(&["a"]).is_empty());
        assert_eq!(
            session.relay_effects(),
            [ClaimEffect::Park { rows: 1, statuses: Vec::new() }],
            "keeps: {keeps}"
        );
        let entry = Entry {
            position: next.position,
            lane: Some(Lane::of(aggregate("a"))),
            state: State::Dead,
            attempts: 0,
            wait: Duration::ZERO,
            overtaken_by: None,
            xid: None,
        };
        let (error, error_code) = (Some("it is poison"), Some("poison"));
        let rows = [ParkedRow { entry, event_id: Some("0"), error, error_code, dies: None }];
        assert_eq!(session.claims.to_compare(&rows, &session.engine), []);
        let plan = session.claims.plan_parking(&rows, &HashSet::new(), &mut session.engine);
        assert_eq!((plan.rows.len(), plan.all_as_they_are), (usize::from(!keeps), !keeps));
        session.apply(ClaimInput::Parked { owned: true, locked: &[] });
        assert_eq!(session.engine.unseen(), Some(next.position.commit));
        assert_eq!(session.relay_effects(), []);
        let failed = RowOutcome::Failed { error: "it is poison".to_owned(), code: "poison" };
        let outcome = if keeps { failed } else { RowOutcome::Moved };
        assert_eq!(session.turn(), [settle(vec![outcome])]);
        session.apply(ClaimInput::Settled { owned: true, writing: false });
        let effects = session.take();
        let reads = effects.contains(&ClaimEffect::ReadParked { in_claim: false });
        assert_eq!(reads, keeps, "the table blocks the aggregate from here on: {effects:?}");
    }
}

/// A page of a list locks no rows: it is kept open however long the broker takes. The repair ends when the list is
/// empty.
#[test]
fn page_of_a_repair_is_kept_open_and_the_repair_ends_with_the_list() {
    let mut session = Session::begun(ClaimSource::List, Vec::new(), &[]);
    assert_eq!(session.claim(false, new_claim(&["a"])), [ClaimEffect::Accepted]);
    let tickets = session.feed(&["a"]);
    for _ in 0..3 {
        session.now = session.claims.deadline(session.now).unwrap();
        session.apply(ClaimInput::Tick { broker_down: true });
        assert_eq!(session.take(), [ClaimEffect::KeepOpen]);
        session.apply(ClaimInput::KeptOpen);
    }
    session.report(tickets[0], Outcome::Acked);
    session.relay_effects();
    assert_eq!(session.turn(), [settle(vec![Published])]);
    session.apply(ClaimInput::Settled { owned: true, writing: false });
    assert_eq!(session.take(), [ClaimEffect::Processed], "the list may have more rows");
    let empty = NewClaim { drained: true, more: true, ..new_claim(&[]) };
    let effects = session.claim(false, empty);
    assert_eq!(effects, [ClaimEffect::Accepted, ClaimEffect::Processed, ClaimEffect::FinishRepair]);
    session.apply(ClaimInput::RepairFinished { ended: true });
    assert_eq!(session.take(), [ClaimEffect::Ends(PollEnd::Streams)]);
}

/// The requeued event is parked behind an open row of its claim. The open row gets a position of the next claim, after
/// the position to which the event was moved: the move is undone when the claim is settled before its end.
#[test]
fn stop_undoes_what_a_claim_has_parked_behind_an_open_row() {
    let before = Position { commit: Offset::new(0x10), ordinal: 0 };
    let mut session = Session::begun(UNTIL_SLOT, vec![requeued("1", before)], &[]);
    session.claim(false, new_claim(&["a", "b"]));
    session.apply(ClaimInput::RequeuedFound(vec![requeued("1", before)]));
    assert_eq!(session.take(), [ClaimEffect::Accepted]);
    let tickets = session.feed(&["a", "b"]);
    assert_eq!(tickets.len(), 1, "the second event is parked");
    assert_eq!(session.relay_effects(), [ClaimEffect::Park { rows: 1, statuses: Vec::new() }]);
    let commit = session.claims.open().unwrap().at();
    let position = Position { commit, ordinal: 1 };
    let entry = Entry {
        position,
        lane: Some(Lane::of(aggregate("b"))),
        state: State::Due,
        attempts: 0,
        wait: Duration::ZERO,
        overtaken_by: None,
        xid: None,
    };
    let row = ParkedRow { entry, event_id: Some("1"), error: None, error_code: None, dies: None };
    let plan = session.claims.plan_parking(&[row], &HashSet::new(), &mut session.engine);
    assert_eq!((plan.moves, plan.rows), (vec![(before, position)], vec![(0, WrittenAs::Parked)]));
    session.apply(ClaimInput::Parked { owned: true, locked: &[] });
    session.relay_effects();
    session.apply(ClaimInput::Exit);
    assert_eq!(
        session.take(),
        [ClaimEffect::Settle {
            outcomes: vec![Held, Held],
            undo_from: Some(Position { commit, ordinal: 0 }),
            places: vec![(position, before)],
        }]
    );
    session.apply(ClaimInput::Settled { owned: true, writing: false });
    assert_eq!(session.take(), []);
}
