//! `postrider pause` and `postrider resume`: nothing is published in between, and nothing is lost, swapped or repeated.

use crate::await_that::{SOON, await_that};
use crate::handover::{auto_of, committed, drop_slot};
use crate::load::Load;
use crate::pipeline::{Pipeline, show};
use crate::private::{PrivateKafka, PrivatePostgres};
use crate::relay::{Relay, postrider, postrider_ok};
use crate::server::{Version, brokers};
use crate::topic::Looker;
use serde_json::Value;
use std::process::Output;

/// The pipeline with another mode.
fn with_mode(mut pipeline: Pipeline, mode: &str) -> Pipeline {
    match mode {
        "wal" => pipeline,
        "auto" => auto_of(pipeline),
        mode => {
            let head = format!("[pipelines.{}]\n", pipeline.name);
            let lines = format!("{head}mode = \"{mode}\"\npoll = {{ interval = \"50ms\" }}\n");
            pipeline.config = pipeline.config.replacen(&head, &lines, 1);
            pipeline
        }
    }
}

fn pause(pipeline: &Pipeline) -> Value {
    let args = ["pause", &pipeline.name, "--reason", "broker maintenance", "--json"];
    serde_json::from_str(&postrider_ok(&pipeline.config, &args)).expect("JSON")
}

fn resume(pipeline: &Pipeline) -> Value {
    let args = ["resume", &pipeline.name, "--json"];
    serde_json::from_str(&postrider_ok(&pipeline.config, &args)).expect("JSON")
}

/// What a command prints, without its line breaks.
fn said(config: &str, args: &[&str]) -> String {
    flat(&postrider_ok(config, args))
}

fn flat(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn text(output: &Output) -> String {
    let (out, errors) = (&output.stdout, &output.stderr);
    flat(&format!("{}{}", String::from_utf8_lossy(out), String::from_utf8_lossy(errors)))
}

/// Whether a process streams from the slot.
async fn slot_is_read(pipeline: &Pipeline) -> bool {
    let sql = format!(
        "select active::text from pg_replication_slots where slot_name = '{}'",
        pipeline.slot()
    );
    pipeline.sql.text(&sql).await.as_deref() == Some("true")
}

/// Pauses under load, restarts the process during the pause, and resumes: once each in modes wal, poll and auto.
#[tokio::test]
async fn pause_under_load_loses_swaps_and_repeats_nothing() {
    for (version, mode) in [
        (Version::Pg15, "wal"),
        (Version::Pg18, "wal"),
        (Version::Pg17, "poll"),
        (Version::Pg16, "auto"),
    ] {
        let pipeline = with_mode(Pipeline::shared(version, "pause").await, mode);
        let reads = if mode == "poll" { "polling" } else { "streaming" };
        let relay = pipeline.run();
        relay.await_state(reads, SOON).await;
        let load = Load::start(&pipeline.plan(), 2);
        committed(&load, 1_000).await;

        let paused = pause(&pipeline);
        assert_eq!(paused["state"], "paused", "{mode}: {paused}");
        assert_eq!(paused["unacknowledged_events"], 0, "{mode}: {paused}");
        let status = relay.await_state("paused", SOON).await;
        let shown = &status["pipelines"][0];
        assert_eq!(shown["in_flight_events"], 0, "{mode}: {status}");
        let reason = shown["reason"].as_str().unwrap_or_default();
        assert!(reason.contains("broker maintenance"), "{mode}: {status}");
        assert!(
            shown["hint"].as_str().unwrap_or_default().contains("postrider resume"),
            "{status}"
        );
        let (code, why) = relay.get("/ready").await.expect("an answer");
        assert!(code == 503 && why.contains("paused"), "{mode}: {why}");
        let (code, _) = relay.get("/live").await.expect("an answer");
        assert_eq!(code, 200, "{mode}");
        let (_, metrics) = relay.get("/metrics").await.expect("metrics");
        let is_paused =
            |line: &str| line.starts_with("postrider_state{") && line.contains("state=\"paused\"");
        let line = metrics.lines().find(|line| is_paused(line)).unwrap_or_default();
        assert!(line.ends_with(" 1"), "{mode}: {line}");
        assert!(!slot_is_read(&pipeline).await, "{mode}");

        // Nothing is published while more is committed, also by a process that starts meanwhile.
        let looker = Looker::default();
        let held = pipeline.topic.held(&looker).await.expect("the records");
        committed(&load, 1_000).await;
        assert_eq!(relay.terminate(SOON).await.code, Some(0), "{mode}");
        let relay = pipeline.run();
        relay.await_state("paused", SOON).await;
        committed(&load, 1_000).await;
        let now = pipeline.topic.held(&looker).await.expect("the records");
        assert_eq!(now, held, "{mode}: published during the pause");

        let resumed = resume(&pipeline);
        assert_eq!(resumed["state"], "resumed", "{mode}: {resumed}");
        relay.await_state(reads, SOON).await;
        let ledger = load.stop().await;
        ledger.arrived(&pipeline.topic).await;
        assert_eq!(relay.terminate(SOON).await.code, Some(0), "{mode}");
        let findings = ledger.check(&pipeline.topic.read_all().await);
        show(&format!("{mode}, PostgreSQL {}: {findings}", version.major()));
        findings.assert_balanced(0);
    }
}

/// Without a restart in between: the process itself pauses and continues, several times.
#[tokio::test]
async fn process_that_is_paused_and_resumed_again_and_again_repeats_nothing() {
    for mode in ["wal", "poll"] {
        let mut pipeline = with_mode(Pipeline::shared(Version::Pg18, "pauses").await, mode);
        // Processes are not found by this name.
        pipeline.config =
            pipeline.config.replace("user=postgres", "user=postgres application_name=ours");
        assert!(pipeline.config.contains("application_name=ours"), "{}", pipeline.config);
        let relay = pipeline.run();
        let load = Load::start(&pipeline.plan(), 2);
        for times in 1..=4 {
            committed(&load, 500).await;
            assert_eq!(pause(&pipeline)["state"], "paused", "{mode}, {times}");
            committed(&load, 200).await;
            assert_eq!(resume(&pipeline)["state"], "resumed", "{mode}, {times}");
        }
        let ledger = load.stop().await;
        ledger.arrived(&pipeline.topic).await;
        let log = relay.terminate(SOON).await.stderr;
        assert_eq!(log.matches("the pause has ended").count(), 4, "{mode}: {log}");
        ledger.check(&pipeline.topic.read_all().await).assert_balanced(0);
    }
}

/// The process that stands by stays paused too, also when the one that published is killed; one of the two continues.
#[tokio::test]
async fn standby_process_stays_paused_and_takes_over_after_the_pause() {
    let pipeline = Pipeline::shared(Version::Pg17, "pausepair").await;
    let owner = pipeline.run();
    owner.await_state("streaming", SOON).await;
    let other = pipeline.run();
    other.await_state("standing_by", SOON).await;
    pipeline.insert(100).await;
    pipeline.topic.await_records(100, SOON).await;
    assert_eq!(pause(&pipeline)["state"], "paused");
    other.await_state("paused", SOON).await;
    owner.await_state("paused", SOON).await;
    pipeline.insert(100).await;
    owner.kill().await;
    let third = pipeline.run();
    third.await_state("paused", SOON).await;
    other.await_state("paused", SOON).await;
    assert_eq!(pipeline.topic.read_all().await.len(), 100, "published during the pause");

    assert_eq!(resume(&pipeline)["state"], "resumed");
    pipeline.topic.await_records(200, SOON).await;
    let states = || async {
        let mut found = Vec::new();
        for relay in [&other, &third] {
            let status = relay.status().await?;
            found.push(status["pipelines"][0]["state"].as_str().unwrap_or_default().to_owned());
        }
        found.sort();
        if found == ["standing_by", "streaming"] { Ok(()) } else { Err(format!("{found:?}")) }
    };
    await_that("one streams, the other stands by", SOON, states).await;
    assert_eq!(pipeline.topic.read_all().await.len(), 200, "each once");
}

/// A request before the first start, the same again, and the end of a pause that nobody waits for.
#[tokio::test]
async fn pause_and_resume_of_a_pipeline_that_does_not_run_hold_for_its_next_start() {
    for version in [Version::Pg15, Version::Pg18] {
        let pipeline = Pipeline::shared(version, "pauseoff").await;
        let config = &pipeline.config;
        let name = pipeline.name.as_str();
        pipeline.insert(10).await;
        let none = said(config, &["resume", name]);
        assert!(none.contains("it was not paused: nothing was changed"), "{none}");
        let said = said(config, &["pause", name, "--reason", "first"]);
        for part in [
            "paused, requested by postgres (",
            ": first",
            "no process of this pipeline is connected",
            "of WAL, and more with everything that the server writes",
            "max_slot_wal_keep_size sets no limit",
            &format!("postrider resume {name}"),
        ] {
            assert!(said.contains(part), "{part}\n{said}");
        }
        let again = postrider_ok(config, &["pause", name, "--reason", "second", "--json"]);
        let again: Value = serde_json::from_str(&again).expect("JSON");
        assert_eq!(again["new"], false, "{again}");
        assert_eq!(again["reason"], "first", "{again}");
        assert_eq!(again["state"], "not_running", "{again}");
        assert!(again["slot_retained_bytes"].is_u64(), "{again}");
        assert!(again["wal_bytes_per_second"].as_f64() > Some(0.0), "{again}");

        let relay = pipeline.run();
        relay.await_state("paused", SOON).await;
        assert_eq!(pause(&pipeline)["state"], "paused");
        assert_eq!(relay.terminate(SOON).await.code, Some(0));
        assert!(pipeline.topic.read_all().await.is_empty());
        let ended = resume(&pipeline);
        assert_eq!(ended["state"], "not_running", "{ended}");
        let relay = pipeline.run();
        pipeline.topic.await_records(10, SOON).await;
        assert_eq!(relay.terminate(SOON).await.code, Some(0));
        assert_eq!(pipeline.topic.read_all().await.len(), 10);
    }
}

/// The session that reads the request is ended again and again: the pipeline stays paused, and the end of the pause is
/// found.
#[tokio::test]
async fn paused_process_that_loses_its_session_stays_paused() {
    let pipeline = Pipeline::shared(Version::Pg17, "pauselost").await;
    let relay = pipeline.run();
    relay.await_state("streaming", SOON).await;
    pause(&pipeline);
    relay.await_state("paused", SOON).await;
    let mut ended = "0".to_owned();
    for _ in 1..=3 {
        // A session that was ended is shown for a moment longer.
        let find = format!(
            "select pid::text from pg_stat_activity where application_name like 'postrider % (paused)' \
               and datname = current_database() and pid <> {ended}"
        );
        ended = await_that("another session", SOON, || async {
            pipeline.sql.text(&find).await.ok_or_else(|| "none".to_owned())
        })
        .await;
        pipeline.sql.batch(&format!("select pg_terminate_backend({ended})")).await;
        relay.await_log("the pause can't be read", SOON).await;
        relay.await_state("paused", SOON).await;
    }
    pipeline.insert(10).await;
    resume(&pipeline);
    pipeline.topic.await_records(10, SOON).await;
    assert_eq!(relay.terminate(SOON).await.code, Some(0));
    assert_eq!(pipeline.topic.read_all().await.len(), 10);
}

/// A broker that answers nothing: the pause is reached after `shutdown_grace`, what was in flight is counted, and the
/// broker may be replaced meanwhile.
#[tokio::test]
async fn pause_behind_a_broker_that_does_not_answer_gives_up_what_is_in_flight_and_says_so() {
    let broker = PrivateKafka::start("").await;
    let mut pipeline = Pipeline::to_broker(Version::Pg17, &broker.brokers(), "pausefrozen").await;
    pipeline.config = format!("shutdown_grace = \"1s\"\n{}", pipeline.config);
    let relay = pipeline.run();
    relay.await_state("streaming", SOON).await;
    pipeline.insert(20).await;
    pipeline.topic.await_records(20, SOON).await;
    broker.freeze();
    pipeline.insert(5).await;
    let sent = |status: &Value| status["pipelines"][0]["in_flight_events"] == 5;
    relay.await_status("five in flight", SOON, sent).await;
    let paused = pause(&pipeline);
    assert_eq!(paused["state"], "paused", "{paused}");
    assert_eq!(paused["unacknowledged_events"], 5, "{paused}");
    assert!(
        relay.stderr().contains("paused before everything was acknowledged"),
        "{}",
        relay.stderr()
    );
    let said = said(&pipeline.config, &["pause", &pipeline.name]);
    assert!(said.contains("5 events were not acknowledged"), "{said}");
    broker.thaw();
    resume(&pipeline);
    // What was given up may still reach the broker, and nothing may be written before it.
    relay.await_log("some may still reach the broker", SOON).await;
    let last = |records: &[crate::topic::ReadRecord]| {
        let ids: std::collections::BTreeSet<_> =
            records.iter().filter_map(|record| record.header("id").map(str::to_owned)).collect();
        ids.len()
    };
    await_that("every event", SOON, || async {
        let records = pipeline.topic.read_all().await;
        if last(&records) == 25 { Ok(()) } else { Err(format!("{} records", records.len())) }
    })
    .await;
    assert_eq!(relay.terminate(SOON).await.code, Some(0));
    let records = pipeline.topic.read_all().await;
    assert!(records.len() <= 30, "at most what was given up comes twice: {}", records.len());
}

/// A pipeline that has halted takes no request; its next start is paused, and halts after the pause.
#[tokio::test]
async fn halted_pipeline_is_paused_at_its_next_start_and_halts_after_the_pause() {
    let pipeline = Pipeline::shared(Version::Pg17, "pausehalted").await;
    let config = pipeline.with_line("source", "on_slot_lost = \"halt\"");
    drop_slot(&pipeline).await;
    let relay = Relay::spawn(&config);
    relay.await_state("halted", SOON).await;
    let args = ["pause", &pipeline.name, "--json"];
    let asked: Value = serde_json::from_str(&postrider_ok(&config, &args)).expect("JSON");
    assert_eq!(asked["state"], "not_running", "{asked}");
    relay.await_state("halted", SOON).await;
    assert_eq!(relay.terminate(SOON).await.code, Some(3));
    let relay = Relay::spawn(&config);
    relay.await_state("paused", SOON).await;
    let text = said(&config, &["pause", &pipeline.name]);
    assert!(text.contains("does not exist, or was invalidated"), "{text}");
    // The command may ask before or after the process has halted: each state has its own exit code.
    let output = postrider(&config, &["resume", &pipeline.name, "--json"]);
    let answer: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    match output.status.code() {
        Some(0) => assert_eq!(answer["state"], "resumed", "{answer}"),
        Some(1) => assert_eq!(answer["state"], "waiting", "{answer}"),
        _ => panic!("{output:?}"),
    }
    let status = relay.await_state("halted", SOON).await;
    assert_eq!(status["pipelines"][0]["halt_code"], "PR002", "{status}");
}

/// Above `source.wal_retain_max` the pause goes on, and the backlog is published after it.
#[tokio::test]
async fn slot_that_retains_more_than_its_limit_in_a_pause_is_published_after_it() {
    let pipeline = Pipeline::shared(Version::Pg17, "pausewal").await;
    let config = pipeline.with_line("source", "wal_retain_max = \"32MiB\"");
    let relay = Relay::spawn(&config);
    relay.await_state("streaming", SOON).await;
    pipeline.insert(10).await;
    pipeline.topic.await_records(10, SOON).await;
    pause(&pipeline);
    let write = "insert into outbox (aggregate_type, aggregate_id, event_type, payload) \
                 select 'order', '1', 'T', to_json((select string_agg(md5(random()::text), '') \
                 from generate_series(1, 1000 + 0 * i))) from generate_series(1, 1500) i";
    pipeline.sql.batch(write).await;
    let retains =
        |status: &Value| status["pipelines"][0]["slot_retained_bytes"].as_u64() > Some(33 << 20);
    let status = relay.await_status("more than the limit", SOON, retains).await;
    assert_eq!(status["pipelines"][0]["state"], "paused", "{status}");
    let said = said(&config, &["pause", &pipeline.name]);
    assert!(said.contains("is not enforced during the pause"), "{said}");
    resume(&pipeline);
    pipeline.topic.await_records(1_510, SOON).await;
    assert_eq!(relay.terminate(SOON).await.code, Some(0));
    assert_eq!(pipeline.topic.read_all().await.len(), 1_510, "each once");
}

/// `postrider repair` is started by a person, and is not held up by a pause; the service stays paused.
#[tokio::test]
async fn repair_by_hand_works_during_a_pause() {
    let pipeline = Pipeline::shared(Version::Pg17, "pauserepair").await;
    let relay = pipeline.run();
    relay.await_state("streaming", SOON).await;
    pipeline.insert(10).await;
    pipeline.topic.await_records(10, SOON).await;
    pause(&pipeline);
    relay.await_state("paused", SOON).await;
    pipeline.insert(10).await;
    drop_slot(&pipeline).await;
    let said = postrider_ok(&pipeline.config, &["repair"]);
    assert!(said.contains("10"), "{said}");
    pipeline.topic.await_records(20, SOON).await;
    relay.await_state("paused", SOON).await;
    resume(&pipeline);
    relay.await_state("streaming", SOON).await;
    pipeline.insert(10).await;
    pipeline.topic.await_records(30, SOON).await;
    assert_eq!(relay.terminate(SOON).await.code, Some(0));
}

/// What a user gets for a wrong name, a database that is not set up, and a reason that is too long.
#[tokio::test]
async fn refusals_of_pause_name_what_is_wrong() {
    let pipeline = Pipeline::shared(Version::Pg18, "pausebad").await;
    let config = &pipeline.config;
    for command in ["pause", "resume"] {
        let said = postrider(config, &[command, "nobody"]);
        assert_eq!(said.status.code(), Some(2));
        let words = text(&said);
        assert!(
            words.contains("no pipeline \"nobody\"") && words.contains(&pipeline.name),
            "{words}"
        );
        assert_eq!(postrider(config, &[command]).status.code(), Some(2));
    }
    let long = "x".repeat(501);
    let said = postrider(config, &["pause", &pipeline.name, "--reason", &long]);
    assert_eq!(said.status.code(), Some(2));
    assert!(text(&said).contains("501 characters, at most 500"), "{}", text(&said));
    pipeline.sql.batch("drop table postrider.pause").await;
    for command in ["pause", "resume"] {
        let said = postrider(config, &[command, &pipeline.name]);
        assert_eq!(said.status.code(), Some(1));
        assert!(text(&said).contains("postrider setup"), "{}", text(&said));
    }
    postrider_ok(config, &["setup"]);
    let hostile = "a\u{1b}[31m\nb";
    postrider_ok(config, &["pause", &pipeline.name, "--reason", hostile]);
    let said = postrider_ok(config, &["pause", &pipeline.name]);
    assert!(!said.contains('\u{1b}'), "{said:?}");
    let relay = pipeline.run();
    relay.await_state("paused", SOON).await;
    assert!(!relay.stderr().contains('\u{1b}'), "{:?}", relay.stderr());
}

/// A paused pipeline does not read its slot, and PostgreSQL 18 takes an unused slot away: `pause`, the status and the
/// log name the limit, which no amount of WAL shows.
#[tokio::test]
async fn time_after_which_an_unused_slot_is_lost_is_named_before_it_is_lost() {
    let server =
        PrivatePostgres::start(Version::Pg18, "idle_replication_slot_timeout = '1h'").await;
    let pipeline = Pipeline::on(&server.url(), &brokers(), "pauseidle").await;
    let relay = pipeline.run();
    relay.await_state("streaming", SOON).await;
    let words = said(&pipeline.config, &["pause", &pipeline.name]);
    assert!(words.contains("the slot is lost after 60 min without a reader"), "{words}");
    assert!(words.contains("ALTER SYSTEM SET idle_replication_slot_timeout = 0"), "{words}");
    let json = pause(&pipeline);
    assert_eq!(json["slot_idle_timeout_seconds"], 3_600, "{json}");
    let named = |status: &Value| {
        let hint = status["pipelines"][0]["hint"].as_str().unwrap_or_default().to_owned();
        hint.contains("postrider resume") && hint.contains("idle_replication_slot_timeout")
    };
    relay.await_status("the limit in the hint", SOON, named).await;
    // The printed statements remove it.
    pipeline.sql.batch("alter system set idle_replication_slot_timeout = 0").await;
    pipeline.sql.batch("select pg_reload_conf()").await;
    let json = pause(&pipeline);
    assert_eq!(json["slot_idle_timeout_seconds"], Value::Null, "{json}");
    resume(&pipeline);
    relay.await_state("streaming", SOON).await;
    assert_eq!(relay.terminate(SOON).await.code, Some(0));
}

/// A process that finds the pause at its start has drained nothing: records of the process before it, which was killed,
/// may be on their way. `pause` does not say that nothing is in flight before that is true.
#[tokio::test]
async fn pause_after_a_kill_is_reached_only_when_no_record_of_the_killed_process_can_arrive() {
    let pipeline = Pipeline::shared(Version::Pg17, "pausekilled").await;
    let owner = pipeline.run();
    owner.await_state("streaming", SOON).await;
    pipeline.insert(10).await;
    pipeline.topic.await_records(10, SOON).await;
    owner.kill().await;
    let args = ["pause", &pipeline.name, "--wait", "1ms"];
    let asked = postrider(&pipeline.config, &args);
    assert_eq!(asked.status.code(), Some(1), "{}", text(&asked));
    let relay = pipeline.run();
    relay.await_state("paused", SOON).await;
    let asked = postrider(&pipeline.config, &args);
    assert_eq!(asked.status.code(), Some(1), "{}", text(&asked));
    assert!(text(&asked).contains("not reached yet"), "{}", text(&asked));
    assert_eq!(pause(&pipeline)["state"], "paused");
    resume(&pipeline);
    relay.await_state("streaming", SOON).await;
    assert_eq!(relay.terminate(SOON).await.code, Some(0));
}

/// `setup --undo` drops what a running process needs, also one that uses no slot: it polls, or is paused.
#[tokio::test]
async fn undo_is_refused_while_a_process_polls_or_is_paused() {
    for mode in ["poll", "wal"] {
        let pipeline = with_mode(Pipeline::shared(Version::Pg18, "pauseundo").await, mode);
        let relay = pipeline.run();
        if mode == "poll" {
            relay.await_state("polling", SOON).await;
        } else {
            relay.await_state("streaming", SOON).await;
            pause(&pipeline);
            relay.await_state("paused", SOON).await;
        }
        let refused = postrider(&pipeline.config, &["setup", "--undo", "--yes"]);
        assert_eq!(refused.status.code(), Some(3), "{mode}: {}", text(&refused));
        let words = if mode == "poll" { "runs" } else { "is paused" };
        assert!(text(&refused).contains(words), "{mode}: {}", text(&refused));
        assert!(text(&refused).contains("nothing was changed"), "{mode}: {}", text(&refused));
        assert_eq!(relay.terminate(SOON).await.code, Some(0), "{mode}");
        postrider_ok(&pipeline.config, &["setup", "--undo", "--yes"]);
    }
}

/// The table of the pauses is dropped under a paused process, as with the schema: the process halts with the reason,
/// and publishes nothing.
#[tokio::test]
async fn paused_process_whose_request_was_dropped_halts_with_the_reason() {
    let pipeline = Pipeline::shared(Version::Pg17, "pausegone").await;
    let relay = pipeline.run();
    relay.await_state("streaming", SOON).await;
    pause(&pipeline);
    relay.await_state("paused", SOON).await;
    pipeline.insert(10).await;
    pipeline.sql.batch("drop schema postrider cascade").await;
    let status = relay.await_state("halted", SOON).await;
    let log = relay.stderr();
    assert!(
        log.contains("the pause can't be read") && !log.contains("the pause has ended"),
        "{log}"
    );
    let code = status["pipelines"][0]["halt_code"].as_str().unwrap_or_default();
    assert!(code.starts_with("PR0"), "{status}");
    let hint = status["pipelines"][0]["hint"].as_str().unwrap_or_default();
    assert!(hint.contains("postrider setup"), "{status}");
    assert!(pipeline.topic.read_all().await.is_empty(), "published without a request to read");
    assert_eq!(relay.terminate(SOON).await.code, Some(3));
}

/// While the table is polled after the slot was lost, a new slot exists already: what is polled meanwhile is in its WAL
/// too. A pause does not make the process forget what it has polled.
#[tokio::test]
async fn pause_while_the_table_is_polled_after_a_lost_slot_repeats_nothing() {
    for version in [Version::Pg15, Version::Pg18] {
        let pipeline = auto_of(Pipeline::shared(version, "pausepolled").await);
        let relay = pipeline.run();
        relay.await_state("streaming", SOON).await;
        let load = Load::start(&pipeline.plan(), 2);
        committed(&load, 500).await;
        drop_slot(&pipeline).await;
        relay.await_log("the slot exists", SOON).await;
        committed(&load, 200).await;
        assert_eq!(pause(&pipeline)["state"], "paused");
        committed(&load, 200).await;
        assert_eq!(resume(&pipeline)["state"], "resumed");
        committed(&load, 200).await;
        let ledger = load.stop().await;
        ledger.arrived(&pipeline.topic).await;
        relay.await_state("streaming", SOON).await;
        assert_eq!(relay.terminate(SOON).await.code, Some(0));
        ledger.check(&pipeline.topic.read_all().await).assert_balanced(0);
    }
}
