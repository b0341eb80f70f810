//! From an older program to this one, under load: `setup` migrates the schema beside a relay of the older version,
//! which goes on until it is stopped; a relay of this version takes over; nothing is lost or swapped.
//!
//! `scripts/test long` builds the older program from the commit that `tests/upgrade-from.txt` names, and gives its path
//! in `POSTRIDER_OLDER`.

use crate::await_that::{SOON, await_that};
use crate::halted::{Halted, halt_of};
use crate::handover::committed;
use crate::ledger::Ledger;
use crate::load::Load;
use crate::pipeline::{Pipeline, drop_slot, show};
use crate::relay::{Relay, postrider_ok, program};
use crate::server::Version;
use crate::sink_caller::alter;
use std::path::PathBuf;
use std::process::Output;
use std::time::Instant;

/// Bytes that the topic takes at first, and after somebody has raised the limit.
const LIMIT: (&str, &str) = ("3000", "100000");

/// Records that one change of the owner may repeat: what was in flight is published again.
const DUPLICATES_MAX: usize = 4_000;

/// How the relay of the older version ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Ends {
    /// SIGTERM.
    Terminated,
    /// kill -9.
    Killed,
}

/// The older program.
struct Older(PathBuf);

impl Older {
    fn find() -> Self {
        let path = std::env::var_os("POSTRIDER_OLDER");
        Self(path.expect("POSTRIDER_OLDER: scripts/test long builds it").into())
    }

    fn run(&self, config: &str) -> Relay {
        Relay::spawn_program(&self.0, config, &[])
    }

    /// The same, which ends when it halts, and logs as JSON.
    fn run_to_halt(&self, config: &str) -> Relay {
        Relay::spawn_program(&self.0, config, &["--log-format", "json", "--fail-fast"])
    }

    fn command(&self, config: &str, args: &[&str]) -> Output {
        program(&self.0, config, args)
    }
}

/// A pipeline that the older program has set up. Parked events are retried all the time.
async fn set_up(older: &Older, version: Version, test: &str, mode: &str) -> Pipeline {
    let mut pipeline = Pipeline::shared(version, test).await;
    alter(&pipeline.topic, "max.message.bytes", LIMIT.0).await;
    drop_slot(&pipeline).await;
    let publication = pipeline.slot();
    pipeline
        .sql
        .batch(&format!("drop publication \"{publication}\" ;; drop schema postrider cascade"))
        .await;
    let head = format!("[pipelines.{}]\n", pipeline.name);
    let lines = format!("{head}mode = \"{mode}\"\npoll = {{ interval = \"50ms\" }}\n");
    pipeline.config = pipeline.config.replacen(&head, &lines, 1);
    let parking = "attempts_max = 1000\nbackoff = { step = \"300ms\", steps_max = 1 }";
    pipeline.config = pipeline.with_parking(&pipeline.config, parking);
    let setup = older.command(&pipeline.config, &["setup"]);
    assert!(setup.status.success(), "{}", text(&setup));
    pipeline
}

fn text(output: &Output) -> String {
    let (out, errors) = (&output.stdout, &output.stderr);
    format!("{}{}", String::from_utf8_lossy(out), String::from_utf8_lossy(errors))
}

async fn number(pipeline: &Pipeline, sql: &str) -> usize {
    let text = pipeline.sql.text(sql).await.unwrap_or_default();
    text.parse().unwrap_or_else(|_| panic!("{sql}: {text:?}"))
}

const PARKED: &str =
    "select count(*)::text from postrider.parked where state not in ('done', 'skipped')";

/// More events are acknowledged than before, and a parked event is refused again.
async fn goes_on(pipeline: &Pipeline, relay: &Relay) {
    let published = |status: &serde_json::Value| status["pipelines"][0]["published_total"].as_u64();
    let before = published(&relay.status().await.expect("a status")).expect("a number");
    let what = "the older relay to publish beside the new schema";
    relay
        .await_status(what, SOON, |status| {
            published(status).is_some_and(|now| now > before + 1_000)
        })
        .await;
    let attempts = "select coalesce(sum(attempts), 0)::text from postrider.parked";
    let before = number(pipeline, attempts).await;
    await_that("another attempt of a parked event", SOON, || async {
        let now = number(pipeline, attempts).await;
        if now > before { Ok(()) } else { Err(format!("{now} attempts")) }
    })
    .await;
}

async fn upgrades(version: Version, mode: &str, ends: Ends) {
    let older = Older::find();
    let state = if mode == "poll" { "polling" } else { "streaming" };
    let pipeline = set_up(&older, version, "upgrade", mode).await;
    let old = older.run(&pipeline.config);
    old.await_state(state, SOON).await;
    let waits = older.run_to_halt(&pipeline.config);
    waits.await_state("standing_by", SOON).await;
    let mut plan = pipeline.plan();
    (plan.rate, plan.large_every) = (500, 199);
    let load = Load::start(&plan, 2);
    committed(&load, 2_000).await;
    await_that("parked events", SOON, || async {
        let parked = number(&pipeline, PARKED).await;
        if parked > 10 { Ok(()) } else { Err(format!("{parked} are")) }
    })
    .await;

    let since = Instant::now();
    postrider_ok(&pipeline.config, &["setup"]);
    let migrated = since.elapsed();
    assert!(postrider_ok(&pipeline.config, &["setup"]).contains("version 10"), "nothing to do");
    goes_on(&pipeline, &old).await;
    // A process of the older version that stands by reads the schema again at its next attempt.
    refused(&halt_of(waits).await);

    let new = Relay::spawn(&pipeline.config);
    new.await_state("standing_by", SOON).await;
    committed(&load, 1_000).await;
    let log = old.stderr();
    assert!(!log.contains("PR0"), "the older relay has met an error: {log}");
    match ends {
        Ends::Terminated => {
            let ended = old.terminate(SOON).await;
            assert_eq!(ended.code, Some(0), "{}", ended.stderr);
        }
        Ends::Killed => drop(old.kill().await),
    }
    let since = Instant::now();
    let publishes = |status: &serde_json::Value| {
        status["pipelines"][0]["published_total"].as_u64().is_some_and(|events| events > 0)
    };
    new.await_status("the new relay to publish", SOON, publishes).await;
    let taken_over = since.elapsed();
    committed(&load, 2_000).await;
    let parked = number(&pipeline, PARKED).await;
    let (known, all) = (
        number(&pipeline, "select count(xid)::text from postrider.parked").await,
        number(&pipeline, "select count(*)::text from postrider.parked where shard = 0").await,
    );
    assert!(0 < known && known < all, "{known} of {all} rows have a transaction");
    alter(&pipeline.topic, "max.message.bytes", LIMIT.1).await;
    committed(&load, 1_000).await;
    let ledger = all_published(&pipeline, &new, load).await;
    let ended = new.terminate(SOON).await;
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    let findings = ledger.check(&pipeline.topic.read_all().await);
    show(&format!(
        "PostgreSQL {}, mode {mode}, {ends:?}: schema migrated in {migrated:.1?}, taken over after {taken_over:.1?}, \
         {parked} parked events taken over, {} committed, {} duplicates",
        version.major(),
        findings.committed,
        findings.duplicates
    ));
    findings.assert_balanced(DUPLICATES_MAX);

    refuses_the_schema(&older, &pipeline).await;
    there_and_back(&older, &pipeline, state).await;
}

/// Stops the writers, and waits until everything is published, the parked events too.
async fn all_published(pipeline: &Pipeline, new: &Relay, load: Load) -> Ledger {
    let ledger = load.stop().await;
    await_that("no parked event", 4 * SOON, || async {
        let parked = number(pipeline, PARKED).await;
        if parked == 0 { Ok(()) } else { Err(format!("{parked} are\n{}", new.stderr())) }
    })
    .await;
    pipeline.topic.await_records(ledger.committed(), 4 * SOON).await;
    new.await_status("nothing in flight", SOON, |status| {
        let pipeline = &status["pipelines"][0];
        pipeline["in_flight_events"] == 0 && pipeline["lag_seconds"] == 0.0
    })
    .await;
    ledger
}

/// What the older program says about the newer schema: at a start, and in its commands.
async fn refuses_the_schema(older: &Older, pipeline: &Pipeline) {
    refused(&halt_of(older.run_to_halt(&pipeline.config)).await);
    let setup = older.command(&pipeline.config, &["setup"]);
    assert!(!setup.status.success(), "{}", text(&setup));
    show(&format!("the older setup: {}", text(&setup).trim()));
    let list = older.command(&pipeline.config, &["parked", "list"]);
    assert!(!list.status.success(), "{}", text(&list));
    show(&format!("the older parked list: {}", text(&list).trim()));
}

/// The way back of `docs/operations/upgrades.md`, and forward again.
async fn there_and_back(older: &Older, pipeline: &Pipeline, state: &str) {
    let before = pipeline.topic.read_all().await.len();
    pipeline.sql.batch("delete from postrider.migration where number > 8").await;
    let old = older.run(&pipeline.config);
    old.await_state(state, SOON).await;
    pipeline.insert(100).await;
    pipeline.topic.await_records(before + 100, SOON).await;
    let ended = old.terminate(SOON).await;
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    postrider_ok(&pipeline.config, &["setup"]);
    let new = Relay::spawn(&pipeline.config);
    new.await_state(state, SOON).await;
    pipeline.insert(100).await;
    pipeline.topic.await_records(before + 200, SOON).await;
    let ended = new.terminate(SOON).await;
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    assert_eq!(pipeline.topic.read_all().await.len(), before + 200, "nothing is repeated");
}

/// What a relay of the older version says at its start about the newer schema.
fn refused(halt: &Halted) {
    halt.assert_says("PR010", &["has version 10", "versions up to 8"], &["newer postrider"]);
}

/// Rows that a relay of the older version has published, under retention of this one: that version did not record
/// whether the table had rows from before its slot, so an operator decides; rows that are not published stay anyway.
#[tokio::test]
#[ignore = "needs the program of an older commit: scripts/test long"]
async fn rows_of_the_older_version_stay_until_an_operator_decides() {
    let older = Older::find();
    for version in [Version::Pg15, Version::Pg18] {
        let mut pipeline = set_up(&older, version, "upgrade_retention", "wal").await;
        let insert = "insert into public.outbox (aggregate_type, aggregate_id, event_type, payload, created_at) \
                      select 'order', (i % 10)::text, 'Written', to_json(i), now() - interval '30 days' \
                      from generate_series(1, 30) i";
        pipeline.sql.batch(insert).await;
        let old = older.run(&pipeline.config);
        pipeline.topic.await_records(30, SOON).await;
        assert_eq!(old.terminate(SOON).await.code, Some(0));
        pipeline.sql.batch(insert).await;
        postrider_ok(&pipeline.config, &["setup"]);
        let section =
            format!("[pipelines.{}.retention]\nkeep = \"7d\"\ninterval = \"1s\"\n", pipeline.name);
        pipeline.config.push_str(&section);
        let decides = "update postrider.cursor set before_slot = '3:3:'";
        let blocked = |status: &serde_json::Value| {
            let blocked = &status["pipelines"][0]["maintenance"]["retention"]["blocked"];
            blocked.as_array().is_some_and(|all| all.iter().any(|of| of["reason"] == "before_slot"))
        };
        let new = Relay::spawn(&pipeline.config);
        new.await_status("a blocked pass", SOON, blocked).await;
        pipeline.topic.await_records(60, SOON).await;
        assert_eq!(number(&pipeline, "select count(*)::text from public.outbox").await, 60);
        pipeline.sql.batch(decides).await;
        await_that("the rows of both versions to be removed", SOON, || async {
            let left = number(&pipeline, "select count(*)::text from public.outbox").await;
            if left == 0 { Ok(()) } else { Err(format!("{left} are left\n{}", new.stderr())) }
        })
        .await;
        assert_eq!(new.terminate(SOON).await.code, Some(0));
    }
}

#[tokio::test]
#[ignore = "needs the program of an older commit: scripts/test long"]
async fn streaming_relay_is_replaced_after_sigterm() {
    upgrades(Version::Pg15, "wal", Ends::Terminated).await;
}

#[tokio::test]
#[ignore = "needs the program of an older commit: scripts/test long"]
async fn streaming_relay_is_replaced_after_it_was_killed() {
    upgrades(Version::Pg18, "wal", Ends::Killed).await;
}

#[tokio::test]
#[ignore = "needs the program of an older commit: scripts/test long"]
async fn polling_relay_is_replaced_after_sigterm() {
    upgrades(Version::Pg16, "poll", Ends::Terminated).await;
}

#[tokio::test]
#[ignore = "needs the program of an older commit: scripts/test long"]
async fn polling_relay_is_replaced_after_it_was_killed() {
    upgrades(Version::Pg17, "poll", Ends::Killed).await;
}

#[tokio::test]
#[ignore = "needs the program of an older commit: scripts/test long"]
async fn relay_in_mode_auto_is_replaced_after_it_was_killed() {
    upgrades(Version::Pg17, "auto", Ends::Killed).await;
}
