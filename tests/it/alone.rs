//! What measures memory and idleness, and so runs with nothing beside it. The figures are printed: run it with
//! `--nocapture` to see them.

use crate::await_that::{SOON, await_that};
use crate::load::Load;
use crate::pipeline::{Pipeline, show};
use crate::private::PrivateKafka;
use crate::relay::{Relay, postrider_ok};
use crate::server::Version;
use crate::sink_caller::alter;
use crate::stream::published;
use serde_json::Value;
use std::cell::Cell;
use std::time::Duration;

/// A transaction of a million rows goes through as it arrives, in bounded memory.
#[tokio::test]
async fn transaction_of_a_million_rows_needs_no_more_memory() {
    const ROWS: usize = 1_000_000;
    let pipeline = Pipeline::shared(Version::Pg15, "million").await;
    pipeline.insert(ROWS).await;
    let relay = pipeline.run();
    relay
        .await_status("a million published", Duration::from_mins(4), |status| {
            published(status) >= ROWS as u64
        })
        .await;
    let (_, peak_kib) = relay.memory_kib();
    show(&format!("one transaction of {ROWS} rows: peak RSS {peak_kib} KiB"));
    assert!(peak_kib < 100 * 1024, "peak RSS was {peak_kib} KiB");
    assert_eq!(relay.terminate(SOON).await.code, Some(0));
}

/// What can't be handed on stays with the server, and not in memory.
#[tokio::test]
async fn frozen_broker_in_front_of_a_large_transaction_needs_no_more_memory() {
    const ROWS: usize = 400_000;
    // Looks that must see the same, one after the other: the server has sent what it could.
    const STILL: u32 = 100;
    let kafka = PrivateKafka::start("").await;
    let pipeline = Pipeline::to_broker(Version::Pg15, &kafka.brokers(), "heap").await;
    let relay = pipeline.run();
    pipeline.insert(10).await;
    pipeline.topic.await_records(10, SOON).await;
    kafka.freeze();
    let sql = format!(
        "insert into public.outbox (aggregate_type, aggregate_id, event_type, payload) \
         select 'order', (i % 10)::text, 'Written', to_json(repeat('x', 500)) from generate_series(1, {ROWS}) i"
    );
    pipeline.sql.batch(&sql).await;
    let in_flight = |status: &Value| status["pipelines"][0]["in_flight_events"].as_u64();
    relay.await_status("something in flight", SOON, |status| in_flight(status) > Some(0)).await;
    let sent =
        "select max(sent_lsn)::text from pg_stat_replication where application_name like '%heap%'";
    let seen = Cell::new((String::new(), 0));
    await_that("the server to have sent what it can", SOON, || async {
        let now = pipeline.sql.text(sent).await.expect("a stream");
        let (before, looks) = seen.take();
        let looks = if now == before { looks + 1 } else { 0 };
        let still = if looks >= STILL { Ok(()) } else { Err(format!("{now} seen {looks} times")) };
        seen.set((now, looks));
        still
    })
    .await;
    let (_, peak_kib) = relay.memory_kib();
    show(&format!("a frozen broker before {ROWS} rows of 500 B: peak RSS {peak_kib} KiB"));
    assert!(peak_kib < 100 * 1024, "peak RSS was {peak_kib} KiB");
    kafka.thaw();
    relay.await_status("all published", SOON, |s| published(s) >= ROWS as u64 + 10).await;
    assert_eq!(relay.terminate(SOON).await.code, Some(0));
}

/// Ten thousand events a second, for as long as it takes to see that memory does not grow.
#[tokio::test]
async fn ten_thousand_events_a_second_need_less_than_fifty_megabytes() {
    const EVENTS: u64 = 100_000;
    let pipeline = Pipeline::shared(Version::Pg15, "steady").await;
    let relay = pipeline.run();
    relay.await_state("streaming", SOON).await;
    let mut plan = pipeline.plan();
    (plan.rate, plan.transaction_events, plan.rollback_every) = (5_000, 50, 0);
    let load = Load::start(&plan, 2);
    let mut half_kib = 0;
    for part in [EVENTS / 2, EVENTS] {
        relay.await_status("published", Duration::from_mins(2), |s| published(s) >= part).await;
        let (now_kib, peak_kib) = relay.memory_kib();
        show(&format!("{part} events at 10,000/s: RSS {now_kib} KiB, peak {peak_kib} KiB"));
        assert!(now_kib < 50 * 1024, "RSS was {now_kib} KiB after {part} events");
        if half_kib > 0 {
            assert!(now_kib < half_kib + half_kib / 4, "{half_kib} KiB became {now_kib} KiB");
        }
        half_kib = now_kib;
    }
    let ledger = load.stop().await;
    let committed = u64::try_from(ledger.committed()).expect("a count");
    relay.await_status("all published", SOON, |status| published(status) >= committed).await;
    assert_eq!(relay.terminate(SOON).await.code, Some(0));
    ledger.check(&pipeline.topic.read_all().await).assert_balanced(0);
}

/// A relay with nothing to do does nothing: no thread spins.
#[tokio::test]
async fn idle_relay_leaves_the_processor_alone() {
    let pipeline = Pipeline::shared(Version::Pg15, "lazy").await;
    let relay = pipeline.run();
    pipeline.insert(10).await;
    pipeline.topic.await_records(10, SOON).await;
    let start = std::time::Instant::now();
    let before = relay.cpu_ticks();
    let long_enough = Duration::from_secs(4);
    await_that("four seconds of nothing", SOON, || async {
        if start.elapsed() >= long_enough { Ok(()) } else { Err("not yet") }
    })
    .await;
    let ticks = relay.cpu_ticks() - before;
    show(&format!("idle for {long_enough:?}: {ticks} clock ticks of 10 ms"));
    assert!(ticks < 20, "{ticks} ticks of 10 ms in {long_enough:?}");
    assert_eq!(relay.terminate(SOON).await.code, Some(0));
}

/// The publish latency's buckets: upper bound in seconds, and how many so far.
pub(crate) async fn latencies(relay: &Relay) -> Vec<(f64, f64)> {
    let (_, text) = relay.get("/metrics").await.expect("an answer");
    let bucket = |line: &str| {
        let (bound, rest) =
            line.strip_prefix("postrider_publish_latency_seconds_bucket{le=\"")?.split_once('"')?;
        let bound = if bound == "+Inf" { f64::INFINITY } else { bound.parse().ok()? };
        Some((bound, rest.rsplit(' ').next()?.parse().ok()?))
    };
    text.lines().filter_map(bucket).collect()
}

/// The 99th percentile in milliseconds of what came between two looks, even inside a bucket.
pub(crate) fn p99_between(before: &[(f64, f64)], after: &[(f64, f64)]) -> f64 {
    let counts: Vec<(f64, f64)> =
        before.iter().zip(after).map(|(old, new)| (new.0, new.1 - old.1)).collect();
    let wanted = counts.last().map_or(0.0, |(_, all)| all * 0.99);
    let (mut low, mut below) = (0.0, 0.0);
    for (bound, count) in counts {
        if count >= wanted {
            return (low + (bound - low) * (wanted - below) / (count - below)) * 1000.0;
        }
        (low, below) = (bound, count);
    }
    f64::INFINITY
}

/// The upper bound of the slowest one's bucket, in milliseconds.
fn slowest_between(before: &[(f64, f64)], after: &[(f64, f64)]) -> f64 {
    let all = before.iter().zip(after).map(|(old, new)| (new.0, new.1 - old.1));
    let all: Vec<(f64, f64)> = all.collect();
    let most = all.last().map_or(0.0, |(_, count)| *count);
    all.iter().find(|(_, count)| *count >= most).map_or(0.0, |(bound, _)| bound * 1000.0)
}

/// Below this a percentile, and a slowest one, is the machine's noise. Milliseconds.
const NOISE_MILLIS: (f64, f64) = (10.0, 250.0);

pub(crate) fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures[figures.len() / 2]
}

/// A 2 MB event amid 100,000 others: they go on as if it were not there, the slot passes it, and what is behind it in
/// its aggregate follows in order once the topic takes it and somebody says `parked retry`.
///
/// Each round is a stretch without the event and a stretch beside it. What the event costs is seen in each round, and a
/// stall of the machine is not. So rounds follow until two of them have shown no difference, five at most.
#[tokio::test]
async fn event_of_two_megabytes_slows_nobody_but_its_aggregate() {
    const ROUNDS_WITHOUT_DIFFERENCE: usize = 2;
    const ROUNDS_MAX: usize = 5;
    const EVENTS: u64 = 100_000;
    let mut pipeline = Pipeline::shared(Version::Pg15, "twomb").await;
    // Without compression its size is known before it is sent. With it the broker judges it, and the first such event
    // of a process waits for a producer of its own: others wait for some 0.2 s then (docs/decisions/large-records.md).
    pipeline.config = pipeline.uncompressed();
    let relay = pipeline.run();
    relay.await_state("streaming", SOON).await;
    let mut plan = pipeline.plan();
    // Half of what a build that is not optimised manages: its queues are empty, and every stall is seen.
    (plan.rate, plan.transaction_events, plan.rollback_every) = (2_500, 10, 0);
    let load = Load::start(&plan, 2);
    let more = async |what: &str, events: u64| {
        let so_far = published(&relay.status().await.expect("a status"));
        relay.await_status(what, SOON, |status| published(status) >= so_far + events).await;
        latencies(&relay).await
    };
    let mut rounds: Vec<Round> = Vec::new();
    loop {
        let aggregate = format!("large{}", rounds.len() + 1);
        let start = if rounds.is_empty() {
            more("warm", EVENTS / 5).await
        } else {
            latencies(&relay).await
        };
        let before = more("without", EVENTS).await;
        insert_large(&pipeline, &aggregate).await;
        let parked = |status: &Value| {
            let parked = &status["pipelines"][0]["parked"];
            parked["behind"] == 2 && parked["waiting"] == 1
        };
        let after = more("while it is parked", EVENTS).await;
        relay.await_status("two behind it", SOON, parked).await;
        let end = pipeline.wal_end().await;
        await_that("the slot past it", SOON, || pipeline.confirmed(&end)).await;
        rounds.push(Round {
            p99: (p99_between(&start, &before), p99_between(&before, &after)),
            slowest: (slowest_between(&start, &before), slowest_between(&before, &after)),
        });
        if without_difference(&rounds) == ROUNDS_WITHOUT_DIFFERENCE || rounds.len() == ROUNDS_MAX {
            break;
        }
        act_on(&pipeline, "skip", &aggregate);
        let live = |status: &Value| status["pipelines"][0]["parked"]["aggregates"] == 0;
        relay.await_status("nothing parked", SOON, live).await;
    }
    show(&format!("commit to acknowledgement, ms: {rounds:.1?}"));
    let ledger = load.stop().await;
    let last = rounds.len();
    assert_eq!(without_difference(&rounds), ROUNDS_WITHOUT_DIFFERENCE, "of {last} rounds");

    alter(&pipeline.topic, "max.message.bytes", "4000000").await;
    act_on(&pipeline, "retry", &format!("large{last}"));
    let wanted = ledger.committed() + 3 * last + 1;
    let records = pipeline.topic.await_records(wanted, SOON).await;
    for round in 1..=last {
        let aggregate = format!("large{round}");
        let of_large = records.iter().filter(|record| record.key_text() == Some(&aggregate));
        let sizes: Vec<usize> = of_large.map(|r| r.value.as_ref().map_or(0, Vec::len)).collect();
        let whole: &[usize] = if round < last { &[1, 1, 1] } else { &[1, 2_097_154, 1, 1] };
        assert_eq!(sizes, whole, "in order, none twice");
    }
    assert_eq!(relay.terminate(SOON).await.code, Some(0));
}

/// Without the large event, and while it is parked: milliseconds.
#[derive(Debug)]
struct Round {
    p99: (f64, f64),
    slowest: (f64, f64),
}

impl Round {
    /// Whether the events beside the large one were published as fast as those without.
    fn shows_no_difference(&self) -> bool {
        let within = |(without, with): (f64, f64), noise: f64| with <= (2.0 * without).max(noise);
        within(self.p99, NOISE_MILLIS.0) && within(self.slowest, NOISE_MILLIS.1)
    }
}

fn without_difference(rounds: &[Round]) -> usize {
    rounds.iter().filter(|round| round.shows_no_difference()).count()
}

/// One of 2 MB between small ones.
async fn insert_large(pipeline: &Pipeline, aggregate: &str) {
    let large =
        "to_json((select string_agg(md5(random()::text), '') from generate_series(1, 65536)))";
    for payload in ["'1'", large, "'3'", "'4'"] {
        let sql = format!(
            "insert into outbox (aggregate_type, aggregate_id, event_type, payload) \
             values ('order', '{aggregate}', 'T', {payload})"
        );
        pipeline.sql.batch(&sql).await;
    }
}

fn act_on(pipeline: &Pipeline, action: &str, aggregate: &str) {
    let aggregate = format!("order:{aggregate}");
    let words = ["parked", action, "--aggregate", &aggregate, "--reason", "a test", "--yes"];
    show(&postrider_ok(&pipeline.config, &words));
}
