//! The publisher between a source that repeats its changes and a sink whose reports the test chooses.

use super::*;
use crate::outbox::{Layout, Mapper, OutboxSpec};
use crate::record::{Refusal, RefusalKind};
use crate::replay::plan::{From, ReplayRequest, SourceChoice};
use crate::source::Message;
use std::sync::{Arc, Mutex, PoisonError};

const COMMIT: Offset = Offset::new(32);

/// A record that the sink has taken: its ticket, and whether it has a position.
type Taken = (Ticket, bool);

/// Takes every record, but refuses those of topic `refused`.
#[derive(Clone, Default)]
struct FakeSink {
    taken: Arc<Mutex<Vec<Taken>>>,
    resets: Arc<Mutex<u32>>,
}

impl Sink for FakeSink {
    fn enqueue(&mut self, ticket: Ticket, record: &Record<'_>) -> Result<(), NotTaken> {
        if record.topic == "refused" {
            return Err(NotTaken::Refused(Refusal::partition(7)));
        }
        let is_position = |header: &Header<'_>| header.name == "position";
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        taken.push((ticket, record.headers.iter().any(is_position)));
        Ok(())
    }

    fn reset(&mut self) {
        *self.resets.lock().unwrap_or_else(PoisonError::into_inner) += 1;
    }

    fn close(&mut self, _: Duration) {}
}

struct Bench {
    publisher: Publisher,
    mapper: Mapper,
    mailbox: Mailbox,
    sink: FakeSink,
}

impl Bench {
    /// A replay that starts at a change of the transaction.
    fn new(start: Position) -> Self {
        Self::of(start, Account::of_positions(Tally::default()))
    }

    fn of(start: Position, account: Account) -> Self {
        let request = ReplayRequest {
            from: From::Anywhere,
            until: None,
            ids: Vec::new(),
            aggregate: None,
            to: None,
            include_parked: true,
            source: SourceChoice::Auto,
        };
        let (mailbox, sink) = (Mailbox::default(), FakeSink::default());
        let publisher = Publisher::new(PublisherParts {
            sink: Some((Box::new(sink.clone()), 0)),
            mailbox: mailbox.clone(),
            rate: 0,
            selection: Selection { start, choice: Choice::new(&request, &[]), parked: None },
            stamp: Stamp { to: None, name: "again".to_owned() },
            account,
        });
        let message_prefix = Some("p".to_owned());
        let spec =
            OutboxSpec { message_prefix, table: None, ..OutboxSpec::for_layout(Layout::Postrider) };
        Self { publisher, mapper: Mapper::new(spec).unwrap(), mailbox, sink }
    }

    /// A session begins, and the source sends the transaction from its beginning.
    fn session(&mut self) {
        self.publisher.session_started();
        self.publisher.begin(COMMIT, Timestamp::default(), Instant::now());
    }

    /// Offers events of one aggregate, as the stream does; the topic is the type of the aggregate.
    fn events(&mut self, topics: &[&str]) -> Offered {
        let now = Instant::now();
        for kind in topics {
            let content = format!(
                r#"{{"aggregate_type": "{kind}", "aggregate_id": "1", "event_type": "t", "payload": 1}}"#
            );
            let content = content.as_bytes();
            let message = Message { transactional: true, prefix: "p", content, is_text: true };
            let offered = match self.publisher.upcoming() {
                Some(_) if !self.publisher.intake_open() => return Offered::Wait(None),
                Some(at) if !self.publisher.is_before_start(at.position) => {
                    self.publisher.offer(self.mapper.message(&message, at), now).unwrap()
                }
                Some(_) | None => self.publisher.skip(now),
            };
            if offered != Offered::Done {
                return offered;
            }
        }
        Offered::Done
    }

    fn report(&mut self, ticket: u64, outcome: Outcome) {
        self.mailbox.report(Ticket(ticket), outcome);
        self.publisher.take_posts(&mut |_| {}).unwrap();
    }

    /// The records that the sink has taken since the last call.
    fn taken(&self) -> Vec<Taken> {
        let mut taken = self.sink.taken.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut *taken)
    }

    fn tickets(&self) -> Vec<u64> {
        self.taken().iter().map(|(ticket, _)| ticket.0).collect()
    }

    fn resets(&self) -> u32 {
        *self.sink.resets.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn refused(&self) -> Vec<&str> {
        self.publisher.tally().refusals.iter().map(|refused| refused.event.as_str()).collect()
    }
}

fn at(ordinal: u64) -> Position {
    Position { commit: COMMIT, ordinal }
}

fn of_batch() -> Outcome {
    let reason = Refusal::of_broker(RefusalKind::TooLarge(None), 10);
    Outcome::Rejected { scope: Scope::Event, reason }
}

/// The end must not be recorded: a process that resumes there would leave the event out.
#[test]
fn a_replay_is_not_settled_while_an_event_is_to_be_sent_again() {
    let mut bench = Bench::new(at(0));
    bench.session();
    assert!(bench.publisher.is_settled());
    bench.events(&["order"]);
    assert!(!bench.publisher.is_settled());
    bench.report(0, Outcome::Unknown);
    assert_eq!((bench.publisher.in_flight(), bench.resets()), (0, 1));
    assert!(bench.publisher.restarts() && !bench.publisher.is_settled());
    bench.session();
    assert_eq!(bench.events(&["order"]), Offered::Done);
    assert!(!bench.publisher.is_settled());
    bench.report(1, Outcome::Acked);
    assert!(bench.publisher.is_settled());
}

/// The parked event was published or skipped meanwhile. An event of its aggregate that was left out before would be
/// missing between those that are sent.
#[test]
fn an_aggregate_of_which_an_event_was_left_out_is_left_out_to_the_end() {
    let (one, other) = (Aggregate { kind: "order", id: "1" }, Aggregate { kind: "order", id: "2" });
    let mut parked = ParkedLanes::default();
    assert!(!parked.leave_out(one) && !parked.leave_out(other));
    parked.now = [Lane::of(one)].into();
    assert!(parked.leave_out(one) && !parked.leave_out(other));
    parked.now = [Lane::of(other)].into();
    assert!(parked.leave_out(one) && parked.leave_out(other));
    parked.now.clear();
    assert!(parked.leave_out(one) && parked.leave_out(other));
}

/// The events of a refused batch are sent one at a time. The one that is refused then is listed, and the replay goes on
/// without a restart.
#[test]
fn culprit_of_a_refused_batch_is_listed_and_the_others_are_published() {
    let mut bench = Bench::new(at(0));
    bench.session();
    bench.events(&["order"; 3]);
    bench.report(0, Outcome::Acked);
    bench.report(2, of_batch());
    assert!(!bench.publisher.restarts(), "the other report of the batch is awaited");
    assert_eq!(bench.events(&["order"]), Offered::Wait(None));
    bench.report(1, of_batch());
    assert!(bench.publisher.restarts());
    bench.session();
    assert_eq!(bench.tickets(), [0, 1, 2]);
    assert_eq!(bench.events(&["order"; 3]), Offered::Wait(None));
    assert_eq!(bench.tickets(), [3], "the first event is done, the second alone");
    bench.report(3, of_batch());
    assert_eq!(bench.refused(), ["0/20:1"]);
    assert_eq!(bench.events(&["order"; 2]), Offered::Wait(None));
    bench.report(4, Outcome::Acked);
    assert_eq!(bench.events(&["order"]), Offered::Done);
    bench.report(5, Outcome::Acked);
    assert_eq!((bench.publisher.done(), bench.resets()), (at(4), 1));
    assert_eq!((bench.publisher.tally().published, bench.publisher.tally().refused), (3, 1));
}

/// An event that the sink refuses is listed. While an earlier event has no outcome, the refusal may be repeated, and
/// does not count.
#[test]
fn event_refused_again_after_a_restart_counts_once() {
    let mut bench = Bench::new(at(0));
    bench.session();
    bench.events(&["order", "refused"]);
    assert_eq!(bench.publisher.tally().refused, 0);
    bench.report(0, Outcome::Unknown);
    bench.session();
    bench.events(&["order", "refused"]);
    bench.report(2, Outcome::Acked);
    assert_eq!((bench.publisher.tally().refused, bench.refused()), (1, vec!["0/20:1"]));
}

/// The second event is in the topic before the first one. Consumers skip replayed events by the position of their first
/// publication, so it stays; a repetition of the second event is the last record.
#[test]
fn event_that_a_later_one_has_overtaken_is_repeated_before_it_with_its_position() {
    let mut bench = Bench::new(at(0));
    bench.session();
    bench.events(&["order"; 2]);
    bench.report(0, of_batch());
    bench.report(1, Outcome::Acked);
    assert!(bench.publisher.restarts());
    bench.session();
    bench.events(&["order"]);
    bench.report(2, Outcome::Acked);
    bench.events(&["order"]);
    let taken: Vec<Taken> = (0..4).map(|ticket| (Ticket(ticket), true)).collect();
    assert_eq!(bench.taken(), taken);
}

/// The database was unavailable: the stream repeats the transaction, and what is in flight is not sent twice.
#[test]
fn lost_session_repeats_nothing_that_is_in_flight() {
    let mut bench = Bench::new(at(0));
    bench.session();
    bench.events(&["order"; 3]);
    bench.report(1, Outcome::Acked);
    bench.publisher.session_lost();
    bench.report(0, Outcome::Acked);
    bench.session();
    bench.events(&["order"; 4]);
    assert_eq!((bench.tickets(), bench.resets()), (vec![0, 1, 2, 3], 0));
    bench.report(2, Outcome::Acked);
    bench.report(3, Outcome::Acked);
    bench.publisher.commit(COMMIT, Offset::new(48), Instant::now());
    assert_eq!(bench.publisher.done(), Position { commit: Offset::new(48), ordinal: 0 });
}

/// Rows have no position by which a repeated row is recognised: they may have been deleted meanwhile.
#[test]
fn lost_session_gives_up_rows_that_are_in_flight() {
    let mut bench = Bench::of(Position::default(), Account::of_rows(Tally::default(), None));
    bench.publisher.session_started();
    for (number, id) in [(0, "a"), (1, "b"), (2, "c")] {
        let (number, end) = (Offset::new(number), Offset::new(number + 1));
        bench.publisher.begin(number, Timestamp::default(), Instant::now());
        assert_eq!(bench.events(&["order"]), Offered::Done);
        bench.publisher.row_offered(number, id.to_owned());
        bench.publisher.commit(number, end, Instant::now());
    }
    bench.report(0, Outcome::Acked);
    bench.report(2, Outcome::Acked);
    bench.publisher.session_lost();
    assert_eq!((bench.publisher.row_done(), bench.resets()), (Some("a"), 1));
    bench.publisher.session_started();
    assert_eq!(bench.publisher.read_from(), Offset::new(1), "the number of the row after it");
    bench.publisher.begin(Offset::new(1), Timestamp::default(), Instant::now());
    assert_eq!(bench.events(&["order"]), Offered::Done);
}

/// A start that a person has typed may be inside a transaction, and beyond its last change.
#[test]
fn changes_before_the_start_are_not_sent_and_progress_is_not_below_it() {
    let mut bench = Bench::new(at(2));
    bench.session();
    assert_eq!(bench.publisher.done(), at(2));
    bench.events(&["order"; 3]);
    assert_eq!(bench.tickets(), [2]);
    assert_eq!(bench.publisher.done(), at(2));
    bench.report(2, Outcome::Acked);
    assert_eq!(bench.publisher.done(), at(3));

    let mut beyond = Bench::new(at(9));
    beyond.session();
    beyond.events(&["order"; 3]);
    beyond.publisher.commit(COMMIT, Offset::new(48), Instant::now());
    assert_eq!(beyond.publisher.done(), Position { commit: Offset::new(48), ordinal: 0 });
    beyond.publisher.begin(Offset::new(64), Timestamp::default(), Instant::now());
    beyond.events(&["order"]);
    assert_eq!(beyond.tickets(), [3]);
}

/// The message comes after progress is written.
#[test]
fn stream_that_contradicts_itself_ends_the_replay() {
    let mut bench = Bench::new(at(0));
    bench.session();
    bench.publisher.begin(Offset::new(64), Timestamp::default(), Instant::now());
    assert!(bench.publisher.is_stopping());
    if bench.publisher.cursor_is_due() {
        bench.publisher.cursor_written();
    }
    let error = bench.publisher.tick().unwrap_err();
    assert!(matches!(error, ReplayError::Broken(_)), "{error}");
}
