//! The times that were asked for:
//! `cargo test --locked --test it -- --ignored --nocapture --test-threads 1 inbox::gates`.

use super::{InboxDatabase, next_text};
use crate::groups::{number, rows};
use crate::pipeline::show;
use crate::server::Version;
use std::time::{Duration, Instant};

/// Times of calls.
#[derive(Default)]
struct Times(Vec<Duration>);

impl Times {
    async fn measure<T>(&mut self, call: impl Future<Output = T>) -> T {
        let start = Instant::now();
        let result = call.await;
        self.0.push(start.elapsed());
        result
    }

    /// In milliseconds.
    fn at(&self, percent: usize) -> f64 {
        let mut times = self.0.clone();
        times.sort_unstable();
        let place = (times.len() * percent / 100).min(times.len() - 1);
        times[place].as_secs_f64() * 1_000.0
    }

    /// The median of the tenth of the calls, in a row, that was disturbed least: other programs share the machine.
    fn quietest(&self) -> f64 {
        let medians =
            self.0.chunks_exact(self.0.len() / 10).map(|calls| Self(calls.to_vec()).at(50));
        medians.fold(f64::INFINITY, f64::min)
    }

    fn show(&self, version: Version, what: &str) {
        show(&format!(
            "PostgreSQL {}: {what}: p50 {:.2} ms, p99 {:.2} ms, p50 of the quietest tenth {:.2} ms ({} calls)",
            version.major(),
            self.at(50),
            self.at(99),
            self.quietest(),
            self.0.len()
        ));
    }
}

/// Times of one query.
async fn times(world: &InboxDatabase, calls: usize, text: &str) -> Times {
    let mut times = Times::default();
    for _ in 0..calls {
        times.measure(rows(&world.sql, text)).await;
    }
    times
}

#[tokio::test]
#[ignore = "measures: run by name"]
async fn next_and_the_number_of_pending_take_less_than_50_ms_at_10_000_pending() {
    for version in [Version::Pg15, Version::Pg18] {
        let world = InboxDatabase::with_inbox(version, "gate_next").await;
        world.add(1..=10_000).await;
        world.sql.batch("vacuum analyze").await;
        for (what, lease) in [("locks", None), ("leases", Some("1 hour"))] {
            let mut calls = Times::default();
            for _ in 0..100 {
                let next = next_text("w", 10, lease);
                assert_eq!(calls.measure(rows(&world.sql, &next)).await.len(), 10);
            }
            calls.show(version, &format!("inbox_next, 10 of 10,000, {what}"));
            assert!(calls.quietest() < 50.0);
        }
        let text = "select postrider.inbox_health('jobs')";
        let health = times(&world, 100, text).await;
        health.show(version, "inbox_health, 10,000 pending");
        let text = "select count(*) from postrider_inbox.pending_jobs";
        let count = times(&world, 100, text).await;
        count.show(version, "count of the view of 10,000 pending");
        assert!(health.quietest() < 50.0 && count.quietest() < 50.0);
    }
}

#[tokio::test]
#[ignore = "measures: run by name"]
async fn gaps_of_1_000_000_messages_take_less_than_a_second() {
    for version in [Version::Pg15, Version::Pg18] {
        let world = InboxDatabase::with_inbox(version, "gate_gaps").await;
        // A hundred messages of each aggregate: a thousand begin with a gap, a thousand have one in the middle.
        world
            .sql
            .batch(
                "insert into postrider_inbox.jobs (event_id, aggregate_id, sequence_num)
                    select a || ' ' || n, a::text, n from generate_series(1, 10000) a,
                        lateral (select i + (a <= 1000 or i > 50 and a > 9000)::int as n
                            from generate_series(1, 100) i) x;
                 select postrider.enable_inbox_ordering('jobs')",
            )
            .await;
        world.sql.batch("vacuum analyze").await;
        let first = times(&world, 20, "select * from postrider.inbox_ordering_gaps('jobs')").await;
        first.show(version, "inbox_ordering_gaps, 1,000,000 messages of 10,000 aggregates");
        let all = times(&world, 10, "select * from postrider.inbox_all_gaps('jobs')").await;
        all.show(version, "inbox_all_gaps, 1,000,000 messages of 10,000 aggregates");
        let count = "select count(*) from postrider.inbox_ordering_gaps('jobs')";
        assert_eq!(world.number(count).await, 1_000);
        let count = "select count(*) from postrider.inbox_all_gaps('jobs')";
        assert_eq!(world.number(count).await, 2_000);
        assert!(first.quietest() < 1_000.0);
    }
}

#[tokio::test]
#[ignore = "measures: run by name"]
async fn health_and_statistics_of_1_000_000_recent_messages_take_less_than_50_ms() {
    for version in [Version::Pg15, Version::Pg18] {
        let world = InboxDatabase::with_inbox(version, "gate_health").await;
        // Ten thousand statements, half of whose messages are processed.
        world
            .sql
            .batch(
                "do $$ begin for s in 1 .. 10000 loop
                    insert into postrider_inbox.jobs (event_id, event_type)
                        select s || ' ' || i, 'T' || i % 3 from generate_series(1, 100) i;
                    if s % 100 = 0 then
                        update postrider_inbox.jobs set processed_at = clock_timestamp()
                            where processed_at is null and seq > s * 100 - 10000 and seq % 2 = 0;
                    end if;
                 end loop; end $$",
            )
            .await;
        world.sql.batch("vacuum analyze").await;
        for folded in [false, true] {
            if folded {
                while number(&world.sql, "select postrider.inbox_fold('jobs')").await > 0 {}
                world.sql.batch("vacuum analyze").await;
            }
            let deltas = world.number("select count(*) from postrider.inbox_delta").await;
            for (what, text) in [
                ("inbox_health", "select postrider.inbox_health('jobs')"),
                ("stats view", "select * from postrider_inbox.stats_jobs"),
            ] {
                let calls = times(&world, 100, text).await;
                calls.show(
                    version,
                    &format!("{what}, 1,000,000 messages, {deltas} rows of numbers"),
                );
                assert!(!folded || calls.quietest() < 50.0);
            }
        }
        assert_eq!(world.health(&["pending_count"]).await, "500000");
    }
}

#[tokio::test]
#[ignore = "measures: run by name"]
async fn next_of_an_ordered_inbox_with_nothing_due_takes_less_than_10_ms() {
    for version in [Version::Pg15, Version::Pg18] {
        let world = InboxDatabase::ordered(version, "gate_nothing", "sequence").await;
        // Every aggregate waits for its number 1.
        world
            .sql
            .batch(
                "insert into postrider_inbox.jobs (event_id, aggregate_id, sequence_num)
                    select a || ' ' || n, a::text, n from generate_series(1, 10000) a, generate_series(2, 6) n",
            )
            .await;
        let next = next_text("w", 10, None);
        let mut settling = Times::default();
        while world.number("select count(*) from postrider.inbox_wake").await > 0 {
            assert!(settling.measure(rows(&world.sql, &next)).await.is_empty());
        }
        show(&format!(
            "PostgreSQL {}: inbox_next that looks at 10,000 aggregates: {} calls, the longest {:.0} ms",
            version.major(),
            settling.0.len(),
            settling.at(100)
        ));
        world.sql.batch("vacuum analyze").await;
        let empty = times(&world, 200, &next).await;
        empty.show(version, "inbox_next of 10,000 aggregates, nothing due");
        assert!(empty.quietest() < 10.0);
    }
}
