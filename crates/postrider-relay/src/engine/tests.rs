//! The engine as transcripts: what becomes of offered events.

use super::*;
use crate::relay::{HaltWords, Limits, ParkingRules};
use postrider_core::error::HaltReason;
use postrider_core::offset::Watermark;
use postrider_core::outbox_rows::{
    CandidateRow, CandidateState, FoundParked, RequeueCandidate, WithdrawnEvent,
};
use postrider_core::parked::Lane;
use postrider_core::sink::TransactionLimits;

const NOW: Duration = Duration::ZERO;

fn settings() -> Settings {
    let second = Duration::from_secs(1);
    Settings {
        limits: Limits { events_max: 100, bytes_max: 1 << 20 },
        cursor_interval: second,
        idle_step: 1,
        words: HaltWords::POSTGRES,
        transactions: None,
        rules: ParkingRules {
            on_poison: OnPoison::BlockKey,
            attempts_max: 10,
            step: second,
            steps_max: 8,
            rows_max: 100,
            strict: false,
            dead_letters: false,
        },
    }
}

/// An engine inside a transaction.
fn engine(polling: Option<PollingRules>, requeued: Vec<RequeueCandidate>) -> Engine {
    let mut engine = Engine::new(settings(), RowStatusRule::Off);
    if let Some(polling) = polling {
        engine.polls(polling).unwrap();
    }
    engine.requeued = RequeuedEvents::new(requeued);
    let cursor = Progress { watermark: Watermark::resumed(Offset::new(1)), partial: None };
    let (parked, requests) = (&[], &[]);
    let (same_history, same_owner) = (false, false);
    engine.apply(NOW, Input::Started { cursor, same_history, same_owner, parked, requests });
    engine.begin(NOW, Offset::new(8), Timestamp::default(), Some(5));
    engine
}

fn offer(engine: &mut Engine, id: &str, expires_at: Option<Timestamp>) -> Answer {
    let NextChange::New(next) = engine.next_change() else { panic!("the intake is closed") };
    let event = Offered {
        position: next.position,
        id,
        aggregate: Aggregate { kind: "order", id },
        size_bytes: 10,
        available_at: None,
        expires_at,
        wall: Timestamp { unix_micros: 1_000_000 },
    };
    engine.offer(NOW, &event, || Box::new(halt()))
}

fn halt() -> Halt {
    Halt {
        reason: HaltReason::PoisonEvent,
        message: String::new(),
        meaning: String::new(),
        hint: String::new(),
    }
}

/// A parked event of an aggregate of its own, with its row.
fn parked(id: &str, state: CandidateState, certain: bool) -> RequeueCandidate {
    RequeueCandidate {
        event_id: id.to_owned(),
        position: Position::default(),
        lane: Some(Lane::of(Aggregate { kind: "order", id })),
        blocks: true,
        state,
        precedes: false,
        row: Some(CandidateRow { certain, xmin: 0 }),
    }
}

#[test]
fn event_expires_unless_it_is_parked_and_requeued() {
    let requeued = || {
        let waits = parked("parked", CandidateState::Unresolved, true);
        vec![waits, parked("resolved", CandidateState::Final, true)]
    };
    // The beginning of 1970, and the end of time.
    let (past, future) = (Timestamp::default(), Timestamp::MAX);
    for (id, expires_at, expired) in [
        ("another", Some(past), true),
        ("another", Some(future), false),
        ("another", None, false),
        ("resolved", Some(past), true),
        ("parked", Some(past), false),
    ] {
        let mut engine = engine(Some(PollingRules::default()), requeued());
        let answer = offer(&mut engine, id, expires_at);
        assert_eq!(answer == Answer::Expired, expired, "{id}: {answer:?}");
    }
}

/// Two events have had one id, and an operator has skipped both; a third event has it now.
#[test]
fn stream_passes_over_skipped_events_and_over_no_other_with_their_id() {
    let skipped = |xid, unix_micros| WithdrawnEvent {
        id: "a".to_owned(),
        commit_time: Timestamp { unix_micros },
        xid,
    };
    let mut engine = engine(None, Vec::new());
    let withdrawn = vec![skipped(Some(5), 70), skipped(None, 80)];
    engine.stream_begins(FoundParked { ahead: Vec::new(), withdrawn });
    assert_eq!(offer(&mut engine, "a", None), Answer::Repeated, "by its transaction");
    for (commit, commit_time, published) in [(16, 80, false), (24, 90, true)] {
        let time = Timestamp { unix_micros: commit_time };
        engine.apply(
            NOW,
            Input::Commit { commit: Offset::new(commit - 8), end: Offset::new(commit) },
        );
        engine.begin(NOW, Offset::new(commit), time, Some(6));
        let answer = offer(&mut engine, "a", None);
        assert_eq!(matches!(answer, Answer::Publish(_)), published, "{answer:?}");
    }
}

/// The claims of a layout with expiry have compared the time with the clock of the server.
#[test]
fn claimed_event_of_a_layout_with_expiry_does_not_expire_by_the_clock_of_this_host() {
    let rules = PollingRules { claims_expire: true, ..PollingRules::default() };
    let mut engine = engine(Some(rules), Vec::new());
    let answer = offer(&mut engine, "a", Some(Timestamp::default()));
    assert!(matches!(answer, Answer::Publish(_)), "{answer:?}");
}

#[test]
fn requeued_event_waits_and_the_row_of_a_resolved_one_is_skipped() {
    let requeued = vec![
        parked("parked", CandidateState::Unresolved, true),
        parked("resolved", CandidateState::Final, true),
        RequeueCandidate { blocks: false, ..parked("doubted", CandidateState::Unresolved, false) },
    ];
    let mut engine = engine(Some(PollingRules::default()), requeued);
    let answer = offer(&mut engine, "parked", None);
    let Answer::Park(entry, None) = answer else { panic!("{answer:?}") };
    assert_eq!(entry.wait, crate::published::REQUEUED_WAIT);
    assert_eq!(offer(&mut engine, "resolved", None), Answer::Repeated);
    let answer = offer(&mut engine, "doubted", None);
    assert!(matches!(answer, Answer::Doubted(Some(_))), "{answer:?}");
    assert!(matches!(offer(&mut engine, "new", None), Answer::Publish(_)));
}

/// A sink that takes an event only with nothing else in flight, and one that can't take the event now, get it again. An
/// event that the sink refuses is parked.
#[test]
fn event_that_the_sink_does_not_take_is_offered_again_or_parked() {
    let mut engine = engine(None, Vec::new());
    let lost = || false;
    let position = Position { commit: Offset::new(8), ordinal: 0 };
    for not_taken in [NotTaken::Full, NotTaken::Destination, NotTaken::Unavailable] {
        let Answer::Publish(ticket) = offer(&mut engine, "a", None) else { panic!("it waits") };
        let aside = engine.not_taken(NOW, (ticket, "a"), not_taken, lost, |_| Box::new(halt()));
        assert_eq!(aside, None, "{not_taken:?}");
    }
    let Answer::Publish(ticket) = offer(&mut engine, "a", None) else { panic!("it waits") };
    let refused = NotTaken::Refused(Refusal::too_large(2, 1));
    let aside = engine.not_taken(NOW, (ticket, "a"), refused, lost, |_| Box::new(halt())).unwrap();
    assert_eq!(aside.entry.map(|entry| entry.position), Some(position));
    assert_eq!(aside.refused, Some(Refusal::too_large(2, 1)));
}

#[test]
fn polling_is_refused_with_a_sink_that_publishes_in_transactions() {
    let second = Duration::from_secs(1);
    let limits =
        TransactionLimits { records_max: 10, bytes_max: 1_000, interval: second, whole_for: None };
    let settings = Settings { transactions: Some(limits), ..settings() };
    let mut engine = Engine::new(settings, RowStatusRule::Off);
    assert_eq!(engine.polls(PollingRules::default()), Err(PollingRefused));
}

/// What was in flight when the sink was lost in a drain has no outcome: `pause` prints how many events that are.
#[test]
fn events_given_up_in_a_drain_are_counted() {
    let mut engine = engine(None, Vec::new());
    for id in ["a", "b"] {
        let answer = offer(&mut engine, id, None);
        assert!(matches!(answer, Answer::Publish(_)), "{id}: {answer:?}");
    }
    let count = |engine: &Engine| (engine.relay().in_flight().0, engine.relay().unacknowledged());
    assert_eq!(count(&engine), (2, 2));
    engine.apply(NOW, Input::Drain);
    engine.apply(NOW, Input::SinkBroken);
    assert_eq!(count(&engine), (0, 2));
    engine.begin_again(settings(), RowStatusRule::Off);
    assert_eq!(count(&engine), (0, 0));
}

/// The process was not replaced, so what it has polled it has published.
#[test]
fn ids_that_polling_has_published_outlive_a_pause() {
    let mut engine = Engine::new(settings(), RowStatusRule::Off);
    engine.polled_ids().begins(0, 1);
    engine.polled_ids().claims();
    engine.polled_ids().claimed(0, 5, "a");
    engine.polled_ids().settled(|_| true);
    engine.begin_again(settings(), RowStatusRule::Off);
    engine.polled_ids().begins(1, 2);
    engine.polled_ids().ends(Offset::new(10));
    assert!(engine.polled_ids().has("a", (Offset::new(1), Some(5)), None));
    // Another process was the owner meanwhile.
    engine.begin_again(settings(), RowStatusRule::Off);
    engine.polled_ids().streams(3, 4);
    assert!(!engine.polled_ids().has("a", (Offset::new(1), Some(5)), None));
}
