//! Two processes of one pipeline, whatever each of them reads from: one publishes, the other stands by.

use crate::await_that::{SOON, await_that};
use crate::handover::{auto, auto_of, committed, drop_slot};
use crate::load::Load;
use crate::pipeline::{Pipeline, show};
use crate::private::PrivateKafka;
use crate::proxy::{Mode, Proxy};
use crate::relay::{Relay, postrider_ok};
use crate::server::Version;
use serde_json::Value;
use std::sync::OnceLock;

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

async fn await_published(pipeline: &Pipeline, relay: &Relay) {
    let idle = |status: &Value| {
        let status = &status["pipelines"][0];
        status["published_total"].as_u64() >= Some(20) && status["in_flight_events"] == 0
    };
    relay.await_status(&format!("all of {} published", pipeline.name), SOON, idle).await;
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

/// Bytes that pass to the broker in a second, and of an event's payload: what is on its way takes a second to arrive.
const BYTES_A_SECOND: u32 = 60_000;
const PAYLOAD_BYTES: usize = 1_000;
const EVENTS: u64 = 300;

/// The server ends the owner's session while its requests are on their way to the broker. The other process streams the
/// same aggregates from an earlier position, and publishes nothing between those records.
#[tokio::test]
async fn successor_of_an_owner_that_lost_its_session_publishes_behind_its_last_record() {
    static PROXY: OnceLock<Proxy> = OnceLock::new();
    let broker = PrivateKafka::start_on(|port, _| {
        let proxy = PROXY.get_or_init(|| Proxy::start(port, None));
        format!("advertised.listeners=PLAINTEXT://127.0.0.1:{}", proxy.port)
    });
    let broker = broker.await;
    let proxy = PROXY.get().expect("a proxy");
    let mut pipeline = Pipeline::to_broker(Version::Pg17, &broker.brokers(), "behind").await;
    // The cursor row stays where it is, and a request has few records.
    pipeline.config = format!(
        "{}\n[pipelines.{name}.flow]\ncursor_interval = \"5m\"\n\
         [pipelines.{name}.sink.properties]\n\"compression.type\" = \"none\"\n\"batch.num.messages\" = \"10\"\n",
        pipeline.config,
        name = pipeline.name
    );
    let insert = async |count: u64| {
        let sql = format!(
            "insert into outbox (aggregate_type, aggregate_id, event_type, payload) select 'order', '1', 'T', \
               to_json((select string_agg(md5(random()::text), '') from generate_series(1, {} + 0 * i))) \
             from generate_series(1, {count}) i",
            PAYLOAD_BYTES / 32
        );
        pipeline.sql.batch(&sql).await;
    };
    let owner = pipeline.run();
    owner.await_state("streaming", SOON).await;
    let other = pipeline.run();
    other.await_state("standing_by", SOON).await;
    proxy.set(Mode::Slow(BYTES_A_SECOND));
    insert(EVENTS).await;
    let publishes = |status: &Value| status["pipelines"][0]["published_total"].as_u64() >= Some(80);
    owner.await_status("some published", SOON, publishes).await;
    let end = format!(
        "select pg_terminate_backend(active_pid) from pg_replication_slots where slot_name = '{}'",
        pipeline.slot()
    );
    pipeline.sql.batch(&end).await;
    other.await_log("INFO streaming ", SOON).await;
    proxy.heal();
    let idle = |status: &Value| {
        let status = &status["pipelines"][0];
        status["published_total"].as_u64() > Some(EVENTS / 2) && status["in_flight_events"] == 0
    };
    other.await_status("all published", SOON, idle).await;
    for relay in [other, owner] {
        assert_eq!(relay.terminate(SOON).await.code, Some(0));
    }
    let records = pipeline.topic.read_all().await;
    let ids: Vec<u64> = records
        .iter()
        .map(|record| record.header("id").expect("an id").parse().expect("a number"))
        .collect();
    let first = ids[0];
    assert!(ids.len() > 320, "the other process begins at an earlier event: {}", ids.len());
    assert_eq!(ids.iter().max(), Some(&(first + EVENTS - 1)));
    for step in ids.windows(2) {
        assert!(step[1] <= step[0] + 1, "{} after {} in {ids:?}", step[1], step[0]);
    }
}

/// Whoever stops in order says that nothing of it is on its way: the next one publishes at once. After a kill, or where
/// the broker has not answered, it waits.
#[tokio::test]
async fn successor_waits_where_the_owner_did_not_stop_in_order_and_else_not() {
    let broker = PrivateKafka::start("").await;
    let mut pipeline = Pipeline::to_broker(Version::Pg17, &broker.brokers(), "inorder").await;
    pipeline.config = format!("shutdown_grace = \"1s\"\n{}", pipeline.config);
    let polls = polls(&pipeline);
    let auto = polls.replace("mode = \"poll\"", "mode = \"auto\"");
    let waits = |relay: &Relay| relay.stderr().contains("publishing begins in 8 s");
    for config in [&pipeline.config, &auto, &polls] {
        if config == &polls {
            postrider_ok(config, &["adopt", "-p", &pipeline.name]);
        }
        let mut waited = Vec::new();
        for end in
            ["stopped", "killed", "killed while it waits", "stopped behind a broker", "stopped"]
        {
            let relay = Relay::spawn(config);
            let state = if config == &polls { "polling" } else { "streaming" };
            if end == "killed while it waits" {
                relay.await_log("publishing begins in 8 s", SOON).await;
                relay.kill().await;
                continue;
            }
            relay.await_state(state, SOON).await;
            pipeline.insert(20).await;
            await_published(&pipeline, &relay).await;
            waited.push(waits(&relay));
            match end {
                "stopped" => assert_eq!(relay.terminate(SOON).await.code, Some(0)),
                "killed" => drop(relay.kill().await),
                _ => {
                    broker.freeze();
                    pipeline.insert(1).await;
                    let sent = |status: &Value| status["pipelines"][0]["in_flight_events"] != 0;
                    relay.await_status("one in flight", SOON, sent).await;
                    drop(relay.terminate(SOON).await);
                    broker.thaw();
                }
            }
        }
        assert_eq!(waited, [false, false, true, true], "{config}");
    }
}

/// A repair by hand after a kill waits, and whoever streams after it does not.
#[tokio::test]
async fn stream_behind_a_repair_by_hand_begins_at_once() {
    let mut pipeline = Pipeline::shared(Version::Pg17, "afterrepair").await;
    pipeline.config = pipeline.with_line("source", "on_slot_lost = \"halt\"");
    let relay = pipeline.run();
    relay.await_state("streaming", SOON).await;
    drop(relay.kill().await);
    pipeline.insert(20).await;
    drop_slot(&pipeline).await;
    let said = postrider_ok(&pipeline.config, &["repair"]);
    assert!(said.contains("20"), "{said}");
    let left = "select (owner_left = owner_epoch)::text from postrider.cursor";
    assert_eq!(pipeline.sql.text(left).await.as_deref(), Some("true"), "{said}");
    let relay = pipeline.run();
    relay.await_state("streaming", SOON).await;
    assert!(!relay.stderr().contains("publishing begins in"), "{}", relay.stderr());
    assert_eq!(relay.terminate(SOON).await.code, Some(0));
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
