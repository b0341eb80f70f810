//! What measures, and so runs with nothing beside it.

use super::{Going, SOON, another_topic, assert_in_order, position, same};
use crate::alone::{latencies, median, p99_between};
use crate::await_that::await_that;
use crate::load::Load;
use crate::pipeline::{Pipeline, show};
use crate::relay::{Relay, postrider_ok};
use crate::server::Version;
use crate::stream::published;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// A p99 below this is as good as none, on a machine that other things run on too. Unit: milliseconds.
const FLOOR_MILLIS: f64 = 10.0;

/// Times that the live stream runs alone for a while, then beside a replay: the medians count. Where they are not well
/// there are some more: what else runs on the machine only ever makes figures worse.
const ROUNDS: usize = 3;
const ROUNDS_MAX: usize = 5;

/// Events of the live stream that its p99 alone is taken of: five seconds.
const CALM_EVENTS: usize = 10_000;

/// 50,000 events live at 2,000/s, a bookmark, 50,000 more; then from the bookmark to another topic, while a third load
/// goes on: exactly the second 50,000, in order, the same records, and the live stream does not feel it.
#[tokio::test]
async fn second_half_is_replayed_beside_the_live_stream() {
    const HALF: usize = 50_000;
    let pipeline = Pipeline::shared(Version::Pg17, "second_half").await;
    let again = another_topic(&pipeline).await;
    let relay = pipeline.run();
    relay.await_state("streaming", SOON).await;
    let mut plan = pipeline.plan();
    (plan.rate, plan.transaction_events, plan.rollback_every) = (1_000, 5, 0);
    let minutes = Duration::from_mins(3);
    let reaches = |load: &Load, wanted: usize| {
        let committed = load.committed();
        std::future::ready(if committed >= wanted { Ok(()) } else { Err(committed) })
    };

    let first = Load::start(&plan, 2);
    await_that("the first half", minutes, || reaches(&first, HALF)).await;
    let first = first.stop().await;
    postrider_ok(&pipeline.config, &["bookmark", "create", "half"]);
    let second = Load::start(&plan, 2);
    await_that("the second half", minutes, || reaches(&second, HALF)).await;
    let second = second.stop().await;
    let until = pipeline.wal_end().await;
    let all = u64::try_from(first.committed() + second.committed()).expect("a count");
    relay.await_status("both halves", minutes, |status| published(status) >= all).await;
    let third = Load::start(&plan, 2);
    let args = ["--bookmark", "half", "--until", &until, "--rate", "5000", "--to"];
    let mut rounds = Vec::new();
    for round in 0..ROUNDS_MAX {
        let topic = if round == 0 { again.clone() } else { another_topic(&pipeline).await };
        let figures =
            beside(&pipeline, &relay, &third, &[&args[..], &[&topic.name]].concat()).await;
        show(&format!("replay of the second half at 5,000/s beside 2,000/s live: {figures}"));
        rounds.push(figures);
        if rounds.len() >= ROUNDS && more_than_doubled(&rounds).is_none() {
            break;
        }
    }
    let third = third.stop().await;

    let wanted: BTreeSet<&str> = second.entries.iter().map(|entry| entry.id.as_str()).collect();
    let replayed = again.read_all().await;
    let got: BTreeSet<&str> = super::ids(&replayed).into_iter().collect();
    assert_eq!((replayed.len(), got.len()), (wanted.len(), wanted.len()), "each once");
    assert_eq!(got, wanted);
    assert_in_order(&replayed);
    let count = u64::try_from(third.committed()).expect("a count") + all;
    relay.await_status("the live stream", minutes, |status| published(status) >= count).await;
    let live = pipeline.topic.read_all().await;
    let originals: BTreeMap<_, _> = live.iter().map(|one| (position(one), same(one))).collect();
    for record in &replayed {
        assert_eq!(originals.get(&position(record)), Some(&same(record)));
        assert!(record.header("replay").is_some_and(|name| name.starts_with("half-")));
    }
    let mut ledger = first;
    ledger.absorb(second.clone());
    ledger.absorb(third);
    ledger.check(&live).assert_balanced(0);

    show(&format!("replayed {} of {} events, each once, in order", replayed.len(), live.len()));
    let worse = more_than_doubled(&rounds);
    assert_eq!(worse, None, "live p99 in ms, medians of {} rounds: alone, beside", rounds.len());
}

/// The medians alone and beside, where that is so.
fn more_than_doubled(rounds: &[Figures]) -> Option<(f64, f64)> {
    let alone = median(rounds.iter().map(|figures| figures.alone_millis).collect());
    let beside = median(rounds.iter().map(|figures| figures.beside_millis).collect());
    (beside > 2.0 * alone.max(FLOOR_MILLIS)).then_some((alone, beside))
}

/// What a replay did to the live stream.
struct Figures {
    took: Duration,
    alone_millis: f64,
    beside_millis: f64,
}

impl std::fmt::Display for Figures {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (alone, beside) = (self.alone_millis, self.beside_millis);
        write!(
            f,
            "{:.1} s; live p99, commit to acknowledgement: alone {alone:.1} ms, beside it {beside:.1} ms",
            self.took.as_secs_f64()
        )
    }
}

/// The live stream for a while alone, then beside a replay.
async fn beside(pipeline: &Pipeline, relay: &Relay, load: &Load, args: &[&str]) -> Figures {
    let minutes = Duration::from_mins(3);
    let wanted = load.committed() + CALM_EVENTS;
    let before = latencies(relay).await;
    await_that("the live stream alone", minutes, || {
        let committed = load.committed();
        std::future::ready(if committed >= wanted { Ok(()) } else { Err(committed) })
    })
    .await;
    let calm = latencies(relay).await;
    let clock = std::time::Instant::now();
    let (code, said) = Going::start(pipeline, args).end(minutes).await;
    let took = clock.elapsed();
    assert_eq!(code, Some(0), "{said}");
    let during = latencies(relay).await;
    Figures {
        took,
        alone_millis: p99_between(&before, &calm),
        beside_millis: p99_between(&calm, &during),
    }
}

/// One transaction of 300,000 rows is replayed as it arrives.
#[tokio::test]
async fn a_replay_of_a_large_transaction_needs_no_more_memory() {
    const ROWS: usize = 300_000;
    let pipeline = Pipeline::shared(Version::Pg15, "replay_large").await;
    let again = another_topic(&pipeline).await;
    postrider_ok(&pipeline.config, &["bookmark", "create", "large"]);
    pipeline.insert(ROWS).await;
    let args = ["--bookmark", "large", "--to", &again.name, "--rate", "0"];
    let peak_kib = peak_kib_of(&pipeline, &args).await;
    show(&format!("replay of one transaction of {ROWS} rows: peak RSS {peak_kib} KiB"));
    assert!(peak_kib > 0 && peak_kib < 100 * 1024, "peak RSS was {peak_kib} KiB");
    assert_eq!(again.read_all().await.len(), ROWS);
}

/// How many rows are asked for goes by the size of those before: here these are small, and a thousand of the others
/// would be 300 MB.
#[tokio::test]
async fn large_rows_behind_small_ones_are_not_all_read_at_once() {
    const SMALL: usize = 1_000;
    const LARGE: usize = 300;
    let pipeline = Pipeline::shared(Version::Pg17, "replay_sizes").await;
    let insert = |count: usize, payload: &str| {
        format!(
            "insert into outbox (aggregate_type, aggregate_id, event_type, payload) \
             select 'order', i::text, 'T', {payload} from generate_series(1, {count}) i"
        )
    };
    for sql in [insert(SMALL, "'1'"), insert(LARGE, "to_json(repeat('x', 1000000))")] {
        pipeline.sql.batch_execute(&sql).await.expect("rows");
    }
    let args = ["--since", "1h", "--source", "table", "--dry-run"];
    let peak_kib = peak_kib_of(&pipeline, &args).await;
    show(&format!("replay of {LARGE} rows of 1 MB behind small ones: peak RSS {peak_kib} KiB"));
    assert!(peak_kib > 0 && peak_kib < 60 * 1024, "peak RSS was {peak_kib} KiB");
    let (code, last) = super::replay(&pipeline, &args);
    assert_eq!((code, &last["events"]), (Some(0), &(SMALL + LARGE).into()), "{last}");
}

/// Runs a replay to its end, and says how large its process became. Unit: KiB.
async fn peak_kib_of(pipeline: &Pipeline, args: &[&str]) -> u64 {
    let going = Going::start(pipeline, args);
    let status = format!("/proc/{}/status", going.child.id());
    let mut peak_kib = 0;
    await_that("the end", Duration::from_mins(4), || {
        let text = std::fs::read_to_string(&status).unwrap_or_default();
        let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
        peak_kib = peak_kib.max(kib.unwrap_or(0));
        let said = going.text("stdout");
        let over = ["complete:", "would be published"].iter().any(|word| said.contains(word));
        std::future::ready(if over { Ok(()) } else { Err(going.text("stderr")) })
    })
    .await;
    peak_kib
}
