//! What the sink says, on its way to the relay; what was published, on its way to the metrics; and its reset.

use super::Pipeline;
use crate::driver::cut::cut;
use crate::driver::halts;
use crate::driver::say;
use crate::event::{PgTime, Position};
use crate::metrics::Side;
use crate::record::Ticket;
use crate::relay::{Input, Restart};
use crate::sink::Post;
use std::time::Duration;

impl Pipeline {
    pub(in crate::driver) fn reset_sink(&mut self, why: Restart) {
        // While the table is polled there is no slot that somebody could have taken: a claim was given up.
        let given_up = why == Restart::SlotTaken && self.tell.polling;
        let reason = if given_up { "claim_given_up" } else { why.name() };
        say::resetting(self, reason);
        self.metrics.reconnected(Side::Sink, reason);
        self.shelf.clear();
        self.marking.given_up();
        self.ownership.resets();
        self.sink.reset();
    }

    /// What is in flight at an end is given up before the slot is: another process may have it at once, and what this
    /// one's producer sent after that might land behind the other's events. The sink may have more than the relay
    /// counts, which has given up what it holds for unknown. Returns whether nothing was in flight.
    pub(in crate::driver) fn leave_nothing_in_flight(&mut self) -> bool {
        let nothing =
            self.relay.in_flight().0 == 0 && !self.relay.is_trying() && self.sink.is_idle();
        if !nothing {
            self.ownership.resets();
            self.sink.reset();
        }
        nothing
    }

    /// A parked event reached the broker.
    pub(in crate::driver) fn released(&mut self, position: Position) {
        cut("retry_acknowledged");
        self.tell.published_total += 1;
        say::released(self, position);
    }

    pub(in crate::driver) fn published(&mut self, ticket: Ticket, commit_time: PgTime) {
        self.marking.published(ticket);
        self.tell.published_total += 1;
        // Events of one transaction share a latency, and are mostly reported together.
        if self.observed.0 != commit_time {
            self.observe_latency();
            self.observed.0 = commit_time;
        }
        self.observed.1 += 1;
    }

    /// Counts what is not counted yet of what was published.
    pub(in crate::driver) fn observe_latency(&mut self) {
        let (commit_time, times) = std::mem::take(&mut self.observed);
        if times > 0 {
            self.metrics.latency().observe_many(self.tell.since(commit_time), times);
        }
    }

    /// Hands the relay everything the sink has said, and has the sink go on with what waited for that.
    pub(in crate::driver) fn take_posts(&mut self, now: Duration) {
        let mut posts = std::mem::take(&mut self.posts);
        self.mailbox.take(&mut posts);
        self.tell.look_at_the_clock();
        for post in posts.drain(..) {
            match post {
                Post::Report { ticket, outcome } => self.reported(now, ticket, outcome),
                Post::Retry => {}
                // The last start was decided without knowing the cluster, or with another one.
                Post::Located => self.compare_cluster(),
                Post::Down { reason, hint, topic, missing } => {
                    let topic = topic.as_deref().map(|topic| (topic, missing));
                    self.sink_down(now, &reason, hint.as_deref(), topic);
                }
                Post::Up { topic } => self.sink_up(topic.as_deref()),
                Post::Broken { reason } => {
                    say::sink_broken(self, &reason);
                    self.apply(now, Input::SinkBroken);
                }
                Post::Unfit { reason, hint } => {
                    self.apply(now, Input::Halt(Box::new(halts::unfit_running(reason, hint))));
                    // Reports of what is in flight may never come.
                    self.apply(now, Input::SinkBroken);
                }
            }
        }
        self.posts = posts;
        // Where all is to be given up, nothing more goes on its way before the reset.
        self.sink_due = if self.ending() { None } else { self.sink.turn() };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::spec::{Mode, OnSlotLost, PipelineSpec, PollSettings};
    use crate::metrics::Metrics;
    use crate::outbox::{Layout, OutboxSpec};
    use crate::postgres::names::Times;
    use crate::postgres::{Conninfo, Names};
    use crate::record::Record;
    use crate::relay::{Limits, OnPoison, Rules};
    use crate::sink::{NotTaken, Sink, SinkSpec};
    use crate::status::Board;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Instant;

    /// Counts its turns, and what is given up by a reset.
    #[derive(Clone, Default)]
    struct Counting {
        turns: Arc<AtomicUsize>,
        on_their_way: Arc<AtomicUsize>,
    }

    impl Sink for Counting {
        fn enqueue(&mut self, _: Ticket, _: &Record<'_>) -> Result<(), NotTaken> {
            Ok(())
        }

        fn turn(&mut self) -> Option<Instant> {
            self.turns.fetch_add(1, Ordering::Relaxed);
            None
        }

        fn is_idle(&self) -> bool {
            self.on_their_way.load(Ordering::Relaxed) == 0
        }

        fn reset(&mut self) {
            self.on_their_way.store(0, Ordering::Relaxed);
        }

        fn close(&mut self, _: Duration) {}
    }

    fn spec() -> PipelineSpec {
        let second = Duration::from_secs(1);
        let poll = PollSettings { table: None, interval: second, batch: 100, mark_streamed: false };
        PipelineSpec {
            conninfo: Conninfo::parse("postgresql://postrider@localhost/app", &|_| None).unwrap(),
            names: Names {
                pipeline: "orders".to_owned(),
                slot: "postrider_orders".to_owned(),
                publication: "postrider_orders".to_owned(),
                table: None,
                times: Times::default(),
                auto: false,
                updates: false,
            },
            failover: false,
            wal_retain_max: None,
            outbox: OutboxSpec::for_layout(Layout::Postrider),
            sink: SinkSpec::Discard,
            limits: Limits { events_max: 100, bytes_max: 1 << 20 },
            parking: Rules {
                on_poison: OnPoison::BlockKey,
                attempts_max: 10,
                step: second,
                steps_max: 8,
                rows_max: 100,
                strict: false,
                letters: false,
            },
            dead_topic: None,
            park_after: None,
            mode: Mode::Wal,
            on_slot_lost: OnSlotLost::Halt,
            only_repair: false,
            from_table: false,
            poll,
            bookmarks_retain_max: 1 << 20,
            cursor_interval: second,
            confirm_interval: second,
            shutdown_grace: second,
        }
    }

    fn pipeline() -> (Pipeline, Counting) {
        let board = Board::new("orders");
        let metrics = Metrics::default().pipeline(&board);
        let mut pipeline = Pipeline::new(spec(), board, metrics).unwrap();
        let sink = Counting::default();
        pipeline.sink = Box::new(sink.clone());
        (pipeline, sink)
    }

    /// A report that gives a record up has the relay give up all, and end if it is to: what the sink has beside it
    /// would be sent behind the events of whoever has the slot next.
    #[test]
    fn what_a_relay_has_given_up_while_it_stops_is_not_sent_when_the_slot_is_free() {
        let (mut pipeline, sink) = pipeline();
        sink.on_their_way.store(2, Ordering::Relaxed);
        pipeline.apply(pipeline.now(), Input::Drain);
        pipeline.apply(pipeline.now(), Input::SinkBroken);
        assert!(pipeline.outcome().is_some());
        pipeline.leave_nothing_in_flight();
        assert_eq!(sink.on_their_way.load(Ordering::Relaxed), 0);
    }

    /// What waits in a sink may not be ours any more: it must not go on its way before the reset.
    #[test]
    fn a_sink_that_is_to_be_reset_has_no_turn_before_that() {
        let (mut pipeline, sink) = pipeline();
        let turns = || sink.turns.load(Ordering::Relaxed);

        pipeline.take_posts(pipeline.now());
        assert_eq!(turns(), 1);
        pipeline.mailbox.post(Post::Broken { reason: "its state is lost".to_owned() });
        pipeline.take_posts(pipeline.now());
        pipeline.take_posts(pipeline.now());
        assert_eq!(turns(), 1, "a restart waits to be performed");
        assert!(pipeline.outcome().is_none());
        pipeline.take_posts(pipeline.now());
        assert_eq!(turns(), 2);
    }
}
