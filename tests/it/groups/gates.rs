//! The times that were asked for:
//! `cargo test --locked --test it -- --ignored --nocapture --test-threads 1 groups::gates`.

use super::{GroupDatabase, Polled, commit_text, poll, rows};
use crate::pipeline::show;
use crate::server::{Client, Version};
use std::time::{Duration, Instant};
use tokio::time::MissedTickBehavior;

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

    /// The median of the hundred calls in a row that were disturbed least: other programs share the machine.
    fn quietest(&self) -> f64 {
        let medians = self.0.chunks_exact(100).map(|calls| Self(calls.to_vec()).at(50));
        medians.fold(f64::INFINITY, f64::min)
    }

    fn shown(&self) -> String {
        format!(
            "p50 {:.2} ms, p99 {:.2} ms, p50 of the quietest hundred {:.2} ms ({} calls)",
            self.at(50),
            self.at(99),
            self.quietest(),
            self.0.len()
        )
    }
}

/// What one statement takes that does next to nothing: how busy the machine is.
async fn show_the_machine(sql: &Client) {
    sql.batch("create table if not exists one_row (n int)").await;
    let (mut look, mut insert) = (Times::default(), Times::default());
    for _ in 0..200 {
        look.measure(sql.batch("select 1")).await;
        insert.measure(sql.batch("insert into one_row values (1)")).await;
    }
    show(&format!("beside it: SELECT 1 {}", look.shown()));
    show(&format!("beside it: INSERT of one row {}", insert.shown()));
}

async fn commit(sql: &Client, consumer: &str, polled: &Polled) {
    sql.batch(&commit_text("g", consumer, polled.end(), polled.lease)).await;
}

#[tokio::test]
#[ignore = "measures: run by name"]
async fn poll_of_10_000_rows_takes_less_than_5_ms() {
    for version in Version::ALL {
        let world = GroupDatabase::create(version, "gate_poll").await;
        world.append(10_000, 1_000).await;
        world.group("g").await;
        world.sql.batch("vacuum analyze").await;
        let (mut full, mut empty) = (Times::default(), Times::default());
        for _ in 0..10 {
            loop {
                let polled = full.measure(poll(&world.sql, "g", "a", 100, 30)).await;
                if polled.lease == 0 {
                    full.0.pop();
                    break;
                }
                commit(&world.sql, "a", &polled).await;
            }
            for _ in 0..20 {
                empty.measure(poll(&world.sql, "g", "a", 100, 30)).await;
            }
            world
                .sql
                .batch(
                    "select postrider.seek_offset('g', null, 0); select postrider.sweep_states()",
                )
                .await;
        }
        show(&format!(
            "PostgreSQL {}: poll_outbox, 100 of 10,000: {}",
            version.major(),
            full.shown()
        ));
        show(&format!(
            "PostgreSQL {}: poll_outbox, nothing there: {}",
            version.major(),
            empty.shown()
        ));
        show_the_machine(&world.sql).await;
        assert!(full.quietest() < 5.0);
    }
}

#[tokio::test]
#[ignore = "measures: run by name"]
async fn commit_with_ten_consumers_takes_less_than_10_ms() {
    let world = GroupDatabase::create(Version::Pg17, "gate_commit").await;
    world.append(100_000, 1_000).await;
    world.sql.batch("vacuum analyze").await;
    for (form, pause) in [("140 a second", Some(Duration::from_millis(71))), ("flat out", None)] {
        world.group("g").await;
        let mut consumers = tokio::task::JoinSet::new();
        for i in 0..10 {
            let (sql, name) = (world.connect().await, format!("c{i}"));
            consumers.spawn(async move {
                let mut times = Times::default();
                let period = pause.unwrap_or(Duration::from_nanos(1));
                // One after the other, as consumers that do not know of each other are.
                let start = tokio::time::Instant::now() + period * i / 10;
                let mut ticks = tokio::time::interval_at(start, period);
                ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
                while times.0.len() < 100 {
                    ticks.tick().await;
                    let polled = poll(&sql, "g", &name, 50, 30).await;
                    if polled.lease > 0 {
                        times.measure(commit(&sql, &name, &polled)).await;
                    }
                }
                times
            });
        }
        let times =
            Times(consumers.join_all().await.into_iter().flat_map(|times| times.0).collect());
        show(&format!("commit_offset, ten consumers, {form}: {}", times.shown()));
        show_the_machine(&world.sql).await;
        assert!(pause.is_none() || times.quietest() < 10.0);
        world.sql.batch("select postrider.drop_consumer_group('g')").await;
    }
}

#[tokio::test]
#[ignore = "measures: run by name"]
async fn lag_of_100_000_takes_less_than_50_ms() {
    for version in Version::ALL {
        let world = GroupDatabase::create(version, "gate_lag").await;
        world.append(100_000, 1_000).await;
        world.group("g").await;
        let (mut lag, mut view) = (Times::default(), Times::default());
        for _ in 0..200 {
            let text = "select * from postrider.consumer_lag('g')";
            assert_eq!(lag.measure(rows(&world.sql, text)).await.len(), 16);
            let text = "select lag from postrider.consumer_group_lag";
            let row = view.measure(rows(&world.sql, text)).await;
            assert_eq!(row[0][0].as_deref(), Some("100000"));
        }
        show(&format!("PostgreSQL {}: consumer_lag of 100,000: {}", version.major(), lag.shown()));
        show(&format!(
            "PostgreSQL {}: consumer_group_lag of 100,000: {}",
            version.major(),
            view.shown()
        ));
        show_the_machine(&world.sql).await;
        assert!(lag.quietest() < 50.0);
    }
}

/// Sixteen events, one for each partition.
const APPEND_16: &str = "create function append_16() returns void language plpgsql as $$
    declare h postrider.event_log_head; begin
        select * into h from postrider.log_head('orders');
        insert into postrider_log.log_orders (seq, part, event_id, event_type, aggregate_id, payload)
            select h.last_seq + i, i - 1, i::text, 'Written', i::text, '{}' from generate_series(1, 16) i;
        perform postrider.log_move('orders', h.last_seq, 16,
            (select array_agg(h.last_seq + i) from generate_series(1, 16) i),
            (select array_agg(c + 1) from unnest(h.counts) c));
    end $$";

/// Rounds of append, poll and commit in two databases side by side: another session of one of them keeps a snapshot.
#[tokio::test]
#[ignore = "minutes: run by name"]
async fn a_held_snapshot_does_not_slow_poll_and_commit() {
    const EARLY: usize = 2_400;
    const LATE: usize = 12_000;
    /// Rounds whose times are reported, up to the one that is named.
    const WINDOW: usize = 200;
    let mut sides = Vec::new();
    for held in [false, true] {
        let world = GroupDatabase::create(Version::Pg17, "gate_held").await;
        world.sql.batch(APPEND_16).await;
        world.group("g").await;
        let holder = world.connect().await;
        if held {
            holder
                .batch("begin isolation level repeatable read; select count(*) from pg_class")
                .await;
        }
        sides.push((if held { "held" } else { "free" }, world, holder));
    }
    let mut seen = std::collections::BTreeMap::new();
    for window in [EARLY, LATE] {
        let done = if window == EARLY { 0 } else { EARLY };
        let mut times =
            [(Times::default(), Times::default()), (Times::default(), Times::default())];
        for round in done..window {
            for ((_, world, _), (polls, commits)) in sides.iter().zip(&mut times) {
                world.sql.batch("select append_16()").await;
                let (mut one, mut two) = (Times::default(), Times::default());
                let polled = one.measure(poll(&world.sql, "g", "a", 100, 30)).await;
                assert_eq!(polled.seqs.len(), 16);
                two.measure(commit(&world.sql, "a", &polled)).await;
                if round + WINDOW >= window {
                    polls.0.append(&mut one.0);
                    commits.0.append(&mut two.0);
                }
                if round % 100 == 99 {
                    world.sql.batch("select postrider.sweep_states()").await;
                }
            }
        }
        for ((name, world, _), (polls, commits)) in sides.iter().zip(&times) {
            let size =
                "select pg_size_pretty(pg_total_relation_size('postrider.consumer_group_state'))";
            let size = world.sql.text(size).await.unwrap_or_default();
            show(&format!("round {window}, {name}: poll {}", polls.shown()));
            show(&format!("round {window}, {name}: commit {}; states {size}", commits.shown()));
            seen.insert((*name, window), (polls.at(50), commits.at(50)));
        }
    }
    let (early, late, free) =
        (seen[&("held", EARLY)], seen[&("held", LATE)], seen[&("free", LATE)]);
    // What both sides have in common is the machine. State that is updated in place becomes thirty times as slow.
    assert!(late.0 < 1.5 * early.0.max(free.0), "poll: {early:?} became {late:?}");
    assert!(late.1 < 1.5 * early.1.max(free.1), "commit: {early:?} became {late:?}");
}
