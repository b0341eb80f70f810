//! What the endpoint and `postrider status` say, held against what is so.

use crate::await_that::{SOON, await_that};
use crate::parking::Scene;
use crate::pipeline::Pipeline;
use crate::private::{PrivateKafka, free_port};
use crate::relay::{Relay, postrider};
use crate::server::Version;
use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::ops::RangeInclusive;
use std::process::{Command, Stdio};

/// The value of one sample of `/metrics`.
async fn metric(relay: &Relay, name: &str, label: &str) -> Option<f64> {
    let (code, text) = relay.get("/metrics").await.expect("an answer");
    assert_eq!(code, 200);
    let line = text
        .lines()
        .find(|line| line.starts_with(name) && !line.starts_with('#') && line.contains(label))?;
    line.rsplit(' ').next()?.parse().ok()
}

/// Exactly one state is 1, and it is this one.
async fn assert_state(relay: &Relay, wanted: &str) {
    let (_, text) = relay.get("/metrics").await.expect("an answer");
    let ones: Vec<&str> = text
        .lines()
        .filter(|line| line.starts_with("postrider_state{") && line.ends_with(" 1"))
        .collect();
    assert_eq!(ones.len(), 1, "{ones:?}");
    assert!(ones[0].contains(&format!("state=\"{wanted}\"")), "{wanted}: {ones:?}");
}

async fn ready(relay: &Relay) -> (u16, String) {
    relay.get("/ready").await.expect("an answer")
}

#[tokio::test]
async fn endpoint_tells_the_truth_of_a_broker_that_goes_and_comes() {
    let mut kafka = PrivateKafka::start("").await;
    let pipeline = Pipeline::to_broker(Version::Pg18, &kafka.brokers(), "truth").await;
    let relay = pipeline.run();
    relay.await_state("streaming", SOON).await;
    pipeline.insert(100).await;
    pipeline.topic.await_records(100, SOON).await;
    let all = |status: &Value| status["pipelines"][0]["published_total"] == 100;
    let status = relay.await_status("100 published", SOON, all).await;
    assert_eq!(status["pipelines"][0]["ready"], true, "{status}");
    assert_eq!(status["pipelines"][0]["in_flight_events"], 0, "{status}");
    assert_eq!(ready(&relay).await, (200, "ok\n".to_owned()));
    assert_eq!(metric(&relay, "postrider_events_total", "published").await, Some(100.0));
    assert_eq!(metric(&relay, "postrider_publish_latency_seconds_count", "").await, Some(100.0));
    assert_eq!(metric(&relay, "postrider_in_flight_events", "").await, Some(0.0));
    assert_state(&relay, "streaming").await;

    kafka.kill().await;
    pipeline.insert(50).await;
    relay.await_state("broker_down", SOON).await;
    let (code, why) = ready(&relay).await;
    assert_eq!(code, 503);
    assert!(why.contains(&pipeline.name) && why.contains(&kafka.brokers()), "{why}");
    assert_eq!(why.lines().count(), 1, "one line of why: {why}");
    assert_eq!(relay.get("/live").await.expect("an answer").0, 200, "waiting is living");
    assert_state(&relay, "broker_down").await;
    let grown = |status: &Value| status["pipelines"][0]["lag_seconds"].as_f64() > Some(1.0);
    let status = relay.await_status("a lag that grows", SOON, grown).await;
    assert_eq!(status["pipelines"][0]["published_total"], 100, "{status}");
    assert_eq!(status["pipelines"][0]["ready"], false, "{status}");
    assert!(metric(&relay, "postrider_lag_seconds", "").await > Some(1.0));

    kafka.restart().await;
    relay.await_state("streaming", 2 * SOON).await;
    assert_eq!(pipeline.topic.await_records(150, SOON).await.len(), 150);
    let all = |status: &Value| status["pipelines"][0]["published_total"] == 150;
    let status = relay.await_status("150 published", SOON, all).await;
    assert_eq!(status["pipelines"][0]["lag_seconds"], 0.0, "{status}");
    // A broker that has just started may stall once more: what counts is that the endpoint is well again by itself.
    let well = |status: &Value| status["pipelines"][0]["ready"] == true;
    relay.await_status("ready", 2 * SOON, well).await;
    assert_eq!(relay.terminate(SOON).await.code, Some(0));
}

/// Waits until a sample of `/metrics` is in this range.
async fn await_metric(relay: &Relay, (name, label): (&str, &str), wanted: RangeInclusive<f64>) {
    await_that(&format!("{name} {label} in {wanted:?}"), SOON, || async {
        match metric(relay, name, label).await {
            Some(value) if wanted.contains(&value) => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await;
}

/// The series of a pipeline's own work change with what they count.
#[tokio::test]
async fn metrics_change_with_what_they_count() {
    let mut scene = Scene::set(Version::Pg17, "counted").await;
    let source = format!("[pipelines.{}.source]\n", scene.pipeline.name);
    let limited = format!("{source}wal_retain_max = \"1GiB\"\n");
    scene.config = scene.config.replacen(&source, &limited, 1);
    scene
        .pipeline
        .sql("create table other (i int); alter publication {publication} add table other")
        .await;
    let relay = scene.run();
    relay.await_state("streaming", SOON).await;
    scene.pipeline.sql.batch("insert into other values (1), (2)").await;
    // The second event of `c` waits behind the first one, which its topic does not take.
    scene.insert(&["a", "b", "!c", "c"]).await;
    let some = 1.0..=f64::MAX;
    for (series, wanted) in [
        (("postrider_events_total", "\"published\""), 2.0..=2.0),
        (("postrider_events_total", "\"parked\""), 2.0..=2.0),
        (("postrider_events_total", "\"skipped\""), 2.0..=2.0),
        (("postrider_skipped_total", "\"others\""), 2.0..=2.0),
        (("postrider_publish_latency_seconds_count", ""), 2.0..=2.0),
        (("postrider_parked_events", "\"waiting\""), 1.0..=1.0),
        (("postrider_parked_events", "\"behind\""), 1.0..=1.0),
        // It is attempted again and again.
        (("postrider_parked_attempts", ""), 3.0..=f64::MAX),
        (("postrider_parked_oldest_seconds", ""), some.clone()),
        (("postrider_slot_retained_bytes", ""), some.clone()),
        (("postrider_slot_retain_max_bytes", ""), some.clone()),
        (("postrider_slot_state", "\"reserved\""), 1.0..=1.0),
        (("postrider_source_contact_seconds", ""), 0.0..=10.0),
        (("postrider_lag_bytes", ""), 0.0..=f64::MAX),
        (("outbox_lag_seconds", ""), 0.0..=10.0),
        (("outbox_throughput", ""), 2.0..=2.0),
        (("outbox_failures", ""), some.clone()),
        (("outbox_dlq_depth", ""), 0.0..=0.0),
    ] {
        await_metric(&relay, series, wanted).await;
    }
    scene.raise_the_limit().await;
    for (series, wanted) in [
        (("postrider_events_total", "\"published\""), 4.0..=4.0),
        (("postrider_parked_events", "\"waiting\""), 0.0..=0.0),
        (("postrider_parked_events", "\"behind\""), 0.0..=0.0),
        (("postrider_parked_attempts", ""), 0.0..=0.0),
        (("outbox_throughput", ""), 4.0..=4.0),
    ] {
        await_metric(&relay, series, wanted).await;
    }
    assert_eq!(relay.terminate(SOON).await.code, Some(0));
}

/// `postrider status` asks the running process, says the same, and its exit code is an answer too.
#[tokio::test]
async fn status_says_what_the_endpoint_says() {
    let pipeline = Pipeline::shared(Version::Pg17, "status").await;
    let port = free_port();
    let config = format!("{}\n[admin]\nlisten = \"127.0.0.1:{port}\"\n", pipeline.config);
    let nobody = postrider(&config, &["status"]);
    assert_eq!(nobody.status.code(), Some(1), "nobody answers");
    let relay = Relay::spawn_at(&pipeline.config, port, &[]);
    relay.await_state("streaming", SOON).await;
    pipeline.insert(10).await;
    let all = |status: &Value| status["pipelines"][0]["published_total"] == 10;
    relay.await_status("10 published", SOON, all).await;
    let json = postrider(&config, &["status", "--json"]);
    assert_eq!(json.status.code(), Some(0), "{}", String::from_utf8_lossy(&json.stderr));
    let told: Value = serde_json::from_slice(&json.stdout).expect("JSON");
    assert_eq!(told["pipelines"][0]["state"], "streaming", "{told}");
    assert_eq!(told["pipelines"][0]["published_total"], 10, "{told}");
    let table = postrider(&config, &["status"]);
    let table = String::from_utf8_lossy(&table.stdout).into_owned();
    assert!(table.contains(&pipeline.name) && table.contains("streaming"), "{table}");
    assert_eq!(relay.terminate(SOON).await.code, Some(0));
}

#[tokio::test]
async fn parked_events_are_counted_by_error_and_by_those_behind_them_also_after_a_restart() {
    for polls in [false, true] {
        let mut pipeline = Pipeline::shared(Version::Pg18, "by_error").await;
        if polls {
            crate::polling::polls(&mut pipeline).await;
        }
        pipeline
            .sql
            .batch(
                "alter table outbox alter event_type drop not null; \
                 insert into outbox (aggregate_type, aggregate_id) values ('order', 'a'), ('order', 'b'); \
                 insert into outbox (aggregate_type, aggregate_id, event_type, payload) \
                 values ('order', 'b', 'T', '1'), ('order', 'b', 'T', '2')",
            )
            .await;
        let mut seen = Vec::new();
        for _ in 0..2 {
            let relay = pipeline.run();
            let counted = |status: &Value| {
                let parked = &status["pipelines"][0]["parked"];
                parked["behind"] == 2 && parked["by_error"][0]["events"] == 2
            };
            let status = relay.await_status("two events by error", SOON, counted).await;
            let pipeline = &status["pipelines"][0];
            let heads = pipeline["parked"]["heads"].as_array().expect("heads");
            let behind: Vec<&Value> = heads.iter().map(|head| &head["behind"]).collect();
            assert_eq!(behind, [2, 0], "{status}");
            let code = &pipeline["parked"]["by_error"][0]["error_code"];
            assert!(code.as_str().is_some_and(|code| !code.is_empty()), "{status}");
            assert!(heads.iter().all(|head| head["error_code"] == *code), "{status}");
            let sentence = pipeline["sentence"].as_str().unwrap_or_default();
            assert!(sentence.contains("4 events are parked"), "{sentence}");
            seen.push(code.clone());
            assert_eq!(relay.terminate(SOON).await.code, Some(0));
        }
        assert_eq!(seen[0], seen[1]);
    }
}

/// Looks go on while the process is away, and end when nobody reads them any more.
#[tokio::test]
async fn watched_status_follows_the_process_and_ends_with_its_reader() {
    let pipeline = Pipeline::shared(Version::Pg15, "watch").await;
    let port = free_port();
    let config = format!("{}\n[admin]\nlisten = \"127.0.0.1:{port}\"\n", pipeline.config);
    let dir = tempfile::TempDir::new().expect("a directory");
    let file = dir.path().join("postrider.toml");
    std::fs::write(&file, config).expect("a configuration");
    let mut watch = Command::new(env!("CARGO_BIN_EXE_postrider"))
        .arg("-c")
        .arg(&file)
        .args(["status", "--watch=1", "--json"])
        .stdout(Stdio::piped())
        .spawn()
        .expect("postrider");
    let mut lines = BufReader::new(watch.stdout.take().expect("a pipe")).lines();
    let mut next = || -> Value {
        let line = lines.next().expect("a line").expect("text");
        serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line}"))
    };
    assert!(next()["error"].as_str().is_some_and(|error| error.contains("no Postrider answers")));
    let relay = Relay::spawn_at(&pipeline.config, port, &[]);
    relay.await_state("streaming", SOON).await;
    let seen = (0..20).map(|_| next()).find(|look| look["pipelines"][0]["state"] == "streaming");
    assert!(seen.is_some(), "never seen to stream");
    drop(lines);
    let status = crate::private::exit_of(&mut watch, SOON).await;
    assert_eq!(status.code(), Some(0));
    assert_eq!(relay.terminate(SOON).await.code, Some(0));
}
