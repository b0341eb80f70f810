//! Two processes of one pipeline, whatever each of them reads from: one publishes, the other stands by.

use crate::await_that::{SOON, await_that};
use crate::handover::{auto, auto_of, committed, drop_slot};
use crate::load::Load;
use crate::pipeline::{Pipeline, show};
use crate::private::PrivateKafka;
use crate::relay::Relay;
use crate::server::Version;
use serde_json::Value;

/// A configuration of the same pipeline that polls.
fn polls(pipeline: &Pipeline) -> String {
    let head = format!("[pipelines.{}]\n", pipeline.name);
    let lines = format!("{head}mode = \"poll\"\npoll = {{ interval = \"50ms\" }}\n");
    pipeline.config.replacen(&head, &lines, 1)
}

/// Waits until a table holds no row: layout `postrider` deletes what is published.
async fn await_empty(pipeline: &Pipeline, relays: &[&Relay]) {
    await_that("an empty table", SOON, || async {
        match pipeline.sql.text("select count(*)::text from outbox").await.as_deref() {
            Some("0") => Ok(()),
            rows => {
                let logs: Vec<String> = relays.iter().map(|relay| relay.stderr()).collect();
                Err(format!("{rows:?} rows\n{}", logs.join("\n---\n")))
            }
        }
    })
    .await;
}

/// A rolling change of mode: the process that polls waits for the one that streams, and the other way round.
#[tokio::test]
async fn process_that_polls_stands_by_while_another_streams_and_the_other_way_round() {
    for version in [Version::Pg15, Version::Pg18] {
        let mut pipeline = Pipeline::shared(version, "owners").await;
        let marks = format!("[pipelines.{}]\n", pipeline.name);
        let marks = (marks.clone(), format!("{marks}poll = {{ mark_streamed = true }}\n"));
        let polls = polls(&pipeline);
        // From polling the way back is by mode "auto" (`adopt::`).
        let auto = polls.replace("mode = \"poll\"", "mode = \"auto\"");
        pipeline.config = pipeline.config.replacen(&marks.0, &marks.1, 1);
        for (first, second) in [(&pipeline.config, &polls), (&polls, &auto)] {
            let before = pipeline.topic.read_all().await.len();
            let works = Relay::spawn(first);
            let state = if first == &polls { "polling" } else { "streaming" };
            works.await_state(state, SOON).await;
            let waits = Relay::spawn(second);
            waits.await_state("standing_by", SOON).await;
            pipeline.insert(200).await;
            let records = pipeline.topic.await_records(before + 200, SOON).await;
            // The second has asked for the lock once more, at least.
            let asked = || async {
                let log = waits.stderr();
                let times = log.matches("standing by").count();
                if times > 0 { Ok(()) } else { Err(log) }
            };
            await_that("it says so", SOON, asked).await;
            assert_eq!(records.len(), before + 200, "each once");
            assert_eq!(works.terminate(SOON).await.code, Some(0));
            let state = if second == &polls { "polling" } else { "streaming" };
            waits.await_state(state, SOON).await;
            pipeline.insert(100).await;
            await_empty(&pipeline, &[&waits]).await;
            assert_eq!(waits.terminate(SOON).await.code, Some(0));
        }
    }
}

/// How often the slot goes.
const TIMES: usize = 4;

/// Two processes of mode `auto`, and a slot that goes again and again under a backlog.
#[tokio::test]
async fn two_auto_processes_lose_and_swap_nothing_however_often_the_slot_goes() {
    let pipeline = auto(Version::Pg17, "twoauto").await;
    let relays = [pipeline.run(), pipeline.run()];
    // A slot that is being made is active too.
    let streams = async |times: usize| {
        await_that(&format!("{times} streams begun"), SOON, || async {
            let logs = relays.each_ref().map(Relay::stderr);
            let begun: usize = logs.iter().map(|log| log.matches("INFO streaming ").count()).sum();
            if begun > times { Ok(begun) } else { Err(logs.join("\n---\n")) }
        })
        .await
    };
    let mut begun = streams(0).await;
    let mut plan = pipeline.plan();
    (plan.rate, plan.transaction_events) = (1_500, 10);
    let load = Load::start(&plan, 2);
    for _ in 0..TIMES {
        committed(&load, 3_000).await;
        drop_slot(&pipeline).await;
        begun = streams(begun).await;
    }
    let ledger = load.stop().await;
    await_empty(&pipeline, &[&relays[0], &relays[1]]).await;
    let idle = |status: &Value| status["pipelines"][0]["in_flight_events"] == 0;
    let mut logs = Vec::new();
    for relay in relays {
        relay.await_status("nothing in flight", SOON, idle).await;
        let ended = relay.terminate(SOON).await;
        assert_eq!(ended.code, Some(0), "{}", ended.stderr);
        logs.push(ended.stderr);
    }
    let findings = ledger.check(&pipeline.topic.read_all().await);
    if !findings.balanced() {
        for log in &logs {
            show(log);
        }
    }
    show(&format!("two auto processes, the slot gone {TIMES} times: {findings}"));
    // The other process streams what this one has polled since the new slot: as much as was committed until then.
    findings.assert_balanced(TIMES * findings.committed);
}

/// The owner's epoch is raised by hand while a claim is open: the claim is not marked, and all of it comes again.
#[tokio::test]
async fn claim_of_an_overruled_owner_marks_nothing() {
    let broker = PrivateKafka::start("").await;
    let pipeline = Pipeline::to_broker(Version::Pg17, &broker.brokers(), "overruled").await;
    let pipeline = auto_of(pipeline);
    let relay = pipeline.run();
    relay.await_state("streaming", SOON).await;
    drop_slot(&pipeline).await;
    relay.await_state("polling", SOON).await;
    broker.freeze();
    pipeline.insert(20).await;
    let open = "select count(*)::text from pg_stat_activity where state = 'idle in transaction' \
                and application_name like 'postrider %'";
    await_that("an open claim", SOON, || async {
        let now = pipeline.sql.text(open).await.unwrap_or_default();
        if now == "1" { Ok(()) } else { Err(now) }
    })
    .await;
    // The new slot belongs to the row by then.
    relay.await_log("the slot exists", SOON).await;
    pipeline.sql.batch("update postrider.cursor set owner_epoch = owner_epoch + 1").await;
    broker.thaw();
    relay.await_log("another process changed the cursor row", SOON).await;
    await_empty(&pipeline, &[&relay]).await;
    let records = pipeline.topic.await_records(20, SOON).await;
    assert!(records.len() >= 20, "{}", records.len());
    assert_eq!(relay.terminate(SOON).await.code, Some(0));
}

/// A session of ours has the pipeline's lock, as an owner that recreates the slot: the new slot exists and the cursor
/// row does not know it, or the row says that the table is polled first. When the lock is free, the same facts are a
/// reason to halt, in mode `wal`; also with `on_slot_lost = "repair"`, since no repair publishes what polling has left.
#[tokio::test]
async fn process_that_does_not_own_the_pipeline_halts_for_nothing_that_the_owner_may_change() {
    for (hurt, code) in
        [("made again", "PR006"), ("dropped", "PR002"), ("polled", "PR002"), ("repairs", "PR002")]
    {
        let mut pipeline = Pipeline::shared(Version::Pg17, "notowner").await;
        if hurt == "repairs" {
            pipeline.config = pipeline.with_line("source", "on_slot_lost = \"repair\"");
        }
        let relay = pipeline.run();
        relay.await_state("streaming", SOON).await;
        assert_eq!(relay.terminate(SOON).await.code, Some(0));
        pipeline.insert(5).await;
        let slot = pipeline.slot();
        if matches!(hurt, "made again" | "dropped") {
            drop_slot(&pipeline).await;
        } else {
            pipeline.sql.batch("update postrider.cursor set polls_on = true").await;
        }
        if hurt == "made again" {
            let make = format!("select pg_create_logical_replication_slot('{slot}', 'pgoutput')");
            pipeline.sql.batch(&make).await;
        }
        let lock = |call: &str| {
            let name = &pipeline.name;
            format!(
                "select pg_advisory{call}lock(hashtextextended('postrider poll ' || '{name}', 0))"
            )
        };
        pipeline.sql.batch(&lock("_")).await;
        let relay = pipeline.run();
        relay.await_state("standing_by", SOON).await;
        pipeline.sql.batch(&lock("_un")).await;
        relay.await_state("halted", SOON).await;
        assert!(relay.stderr().contains(code), "{hurt}: {}", relay.stderr());
    }
}
