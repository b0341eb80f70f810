//! What the sink makes of answers: refusals, pauses, redirects, answers that are late, twice or too large.

use super::receiver::{Received, Reply};
use super::{HttpServer, with_keys};
use crate::await_that::{SOON, await_that};
use crate::relay::{Relay, postrider, postrider_ok};
use crate::sinks::pipeline::{SinkPipeline, state, values_of};
use crate::sinks::server::SinkServer as _;
use axum::http::Version;
use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpListener;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

async fn start(test: &str, keys: &str) -> SinkPipeline<HttpServer> {
    let mut pipeline = SinkPipeline::<HttpServer>::start(test).await;
    pipeline.config = pipeline.with_sink(&with_keys(&pipeline.server, keys));
    pipeline
}

fn is_of(request: &Received, key: &str) -> bool {
    request.header("key").as_deref() == Some(key)
}

/// A 422 parks the event with the later ones of its aggregate. A retry that is refused again keeps it parked, and stops
/// nothing either.
#[tokio::test]
async fn refused_event_parks_its_aggregate_alone_and_its_refused_retry_stops_nothing() {
    let pipeline = start("refused", "").await;
    let refuses = |request: &Received| {
        (is_of(request, "a") && request.text() == "2").then(|| Reply::status(422))
    };
    pipeline.server.0.script(refuses);
    let relay = pipeline.run();
    pipeline.insert("orders", "b", &[0]).await;
    pipeline.insert("orders", "a", &[1, 2, 3]).await;
    let many: Vec<u32> = (100..600).collect();
    pipeline.insert("orders", "b", &many).await;
    pipeline.await_records("orders", 502).await;
    pipeline.await_values("orders", "a", &["1"]).await;
    pipeline.await_parked("a waiting, a behind").await;
    pipeline.resolved().await;
    let shown = postrider_ok(&pipeline.config, &["parked", "list"]);
    assert!(shown.contains("invalid_record"), "{shown}");
    for attempt in 2..=3 {
        let retry = ["parked", "retry", "--all", "--reason", "try again", "--yes"];
        // It reports that the event is refused again.
        postrider(&pipeline.config, &retry);
        await_that("the retry to be refused", SOON, || async {
            let found = pipeline.server.0.refused().len();
            if found >= attempt { Ok(()) } else { Err(found) }
        })
        .await;
        pipeline.insert("orders", &format!("c{attempt}"), &[7, 8]).await;
        pipeline.await_values("orders", &format!("c{attempt}"), &["7", "8"]).await;
        pipeline.await_parked("a waiting, a behind").await;
    }
    let ids: BTreeSet<_> =
        pipeline.server.0.refused().iter().map(|request| request.header("webhook-id")).collect();
    assert_eq!(ids.len(), 1, "one id for all attempts: {ids:?}");
    pipeline.server.0.script(|_| None);
    let retry = ["parked", "retry", "--all", "--reason", "fixed", "--yes"];
    postrider_ok(&pipeline.config, &retry);
    pipeline.await_values("orders", "a", &["1", "2", "3"]).await;
    pipeline.await_parked("").await;
    relay.terminate(SOON).await;
}

#[tokio::test]
async fn pause_that_a_receiver_asks_for_is_that_of_one_aggregate() {
    let pipeline = start("pause", "").await;
    let mut first = None;
    pipeline.server.0.script(move |request| {
        if !is_of(request, "a") || first.is_some() {
            return None;
        }
        first = Some(request.at);
        Some(Reply { headers: vec![("retry-after", "3".to_owned())], ..Reply::status(429) })
    });
    let relay = pipeline.run();
    pipeline.insert("orders", "a", &[1, 2]).await;
    await_that("the 429", SOON, || async {
        if pipeline.server.0.refused().is_empty() { Err("none") } else { Ok(()) }
    })
    .await;
    let others: Vec<u32> = (1..=200).collect();
    pipeline.insert("orders", "b", &others).await;
    pipeline.await_values("orders", "a", &["1", "2"]).await;
    let (refused, received) = (pipeline.server.0.refused(), pipeline.server.0.received("orders"));
    let of_a: Vec<&Received> = received.iter().filter(|request| is_of(request, "a")).collect();
    assert!(of_a[0].at - refused[0].at >= Duration::from_secs(3), "the pause was kept");
    assert_eq!(of_a[0].header("webhook-id"), refused[0].header("webhook-id"));
    assert_eq!(of_a[0].body, refused[0].body);
    let before = received.iter().filter(|request| is_of(request, "b") && request.at < of_a[0].at);
    assert_eq!(before.count(), 200, "the others did not wait");
    relay.terminate(SOON).await;
}

/// An aggregate whose requests fail is retried for ever, and the others do not wait for it.
#[tokio::test]
async fn aggregate_whose_requests_fail_is_waited_for_alone() {
    let pipeline = start("failing", "").await;
    pipeline.server.0.script(|request| is_of(request, "a").then(|| Reply::status(500)));
    let relay = pipeline.run();
    pipeline.insert("orders", "a", &[1, 2]).await;
    let mut expected = Vec::new();
    for number in 10..40_u32 {
        pipeline.insert("orders", "b", &[number]).await;
        expected.push(number.to_string());
        let expected: Vec<&str> = expected.iter().map(String::as_str).collect();
        pipeline.await_values("orders", "b", &expected).await;
    }
    relay.await_log("was not accepted 5 times", SOON).await;
    assert_eq!(pipeline.parked().await, "");
    pipeline.server.0.script(|_| None);
    pipeline.await_values("orders", "a", &["1", "2"]).await;
    relay.terminate(SOON).await;
}

#[tokio::test]
async fn host_that_fails_is_reported_and_gets_few_requests_until_it_answers() {
    let pipeline = start("outage", "").await;
    pipeline.server.0.script(|_| Some(Reply::status(503)));
    let relay = pipeline.run();
    for aggregate in 0..200_u32 {
        pipeline.insert("orders", &aggregate.to_string(), &[aggregate]).await;
    }
    relay.await_state("broker_down", SOON).await;
    relay.await_log("503", SOON).await;
    let (before, until) = (pipeline.server.0.asked(), Instant::now() + Duration::from_secs(2));
    await_that("two seconds", SOON, || async {
        if Instant::now() > until { Ok(()) } else { Err("not yet") }
    })
    .await;
    let asked = pipeline.server.0.asked() - before;
    assert!(asked < 20, "{asked} requests in 2 s, of 200 aggregates");
    pipeline.server.0.script(|_| None);
    pipeline.await_records("orders", 200).await;
    relay.await_state("streaming", SOON).await;
    relay.terminate(SOON).await;
}

#[tokio::test]
async fn redirects_are_not_followed() {
    let pipeline = start("redirect", "").await;
    pipeline.server.create("elsewhere").await;
    let location = format!("http://127.0.0.1:{}/hooks/elsewhere", pipeline.server.0.port);
    let relay = pipeline.run();
    pipeline.insert("orders", "a", &[1]).await;
    pipeline.await_values("orders", "a", &["1"]).await;
    let redirects = move |request: &Received| {
        request
            .path
            .ends_with("orders")
            .then(|| Reply { headers: vec![("location", location.clone())], ..Reply::status(307) })
    };
    pipeline.server.0.script(redirects);
    pipeline.server.0.answer_options(307);
    pipeline.insert("orders", "a", &[2]).await;
    relay.await_state("broker_down", SOON).await;
    relay.await_log("redirects are not followed", SOON).await;
    assert!(pipeline.server.0.received("elsewhere").is_empty());
    pipeline.server.0.script(|_| None);
    pipeline.server.0.answer_options(204);
    pipeline.await_values("orders", "a", &["1", "2"]).await;
    assert!(pipeline.server.0.received("elsewhere").is_empty());
    relay.terminate(SOON).await;
}

/// Processed, and answered after the time-out: the same request comes again, with the same id.
#[tokio::test]
async fn late_answers_are_repeated_with_the_same_id() {
    let pipeline = start("late_answer", "timeout = \"500ms\"\n").await;
    let late = Arc::new(Mutex::new(2));
    let left = Arc::clone(&late);
    pipeline.server.0.script(move |request| {
        let mut left = left.lock().expect("a count");
        if request.text() != "2" || *left == 0 {
            return None;
        }
        *left -= 1;
        Some(Reply { after: Duration::from_millis(1_500), ..Reply::status(200) })
    });
    let relay = pipeline.run();
    pipeline.insert("orders", "a", &[1, 2, 3]).await;
    pipeline.await_values("orders", "a", &["1", "2", "3"]).await;
    let received = pipeline.server.0.received("orders");
    let values: Vec<&str> = received.iter().map(Received::text).collect();
    assert_eq!(values, ["1", "2", "2", "2", "3"]);
    let ids: BTreeSet<_> = received.iter().map(|request| request.header("webhook-id")).collect();
    assert_eq!(ids.len(), 3);
    relay.terminate(SOON).await;
}

/// Of an answer's body 64 KiB are read: its connection is not used again.
#[tokio::test]
async fn large_answers_do_not_matter() {
    let pipeline = start("large_answer", "").await;
    pipeline.server.0.script(|_| Some(Reply { body: vec![b'x'; 5 << 20], ..Reply::status(200) }));
    let relay = pipeline.run();
    pipeline.insert("orders", "a", &[0]).await;
    pipeline.await_records("orders", 1).await;
    let (before, _) = relay.memory_kib();
    let numbers: Vec<u32> = (1..=20).collect();
    pipeline.insert("orders", "a", &numbers).await;
    pipeline.await_records("orders", 21).await;
    pipeline.resolved().await;
    let (_, peak) = relay.memory_kib();
    assert!(peak.saturating_sub(before) < 32 << 10, "{before} KiB, {peak} KiB");
    assert!(pipeline.server.0.connections() > 10, "{}", pipeline.server.0.connections());
    relay.terminate(SOON).await;
}

/// A receiver that answers each request twice on a connection: the second answer is not that of the next request.
#[tokio::test]
async fn second_answer_is_not_that_of_the_next_request() {
    let pipeline = start("twice", "").await;
    let twice =
        "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";
    let (port, seen) = raw_receiver(twice, true);
    let relay = Relay::spawn(&pipeline.with_sink(&pipeline.server.sink(Some(port))));
    let numbers: Vec<u32> = (1..=50).collect();
    pipeline.insert("orders", "a", &numbers).await;
    pipeline.resolved().await;
    let expected: Vec<String> = numbers.iter().map(ToString::to_string).collect();
    let mut found = seen.lock().expect("the log").clone();
    found.dedup();
    assert_eq!(found, expected, "each event has arrived, in order");
    relay.terminate(SOON).await;
}

/// A receiver that gives these bytes in answer to each request, and the bodies of its requests.
fn raw_receiver(answer: &'static str, ends: bool) -> (u16, Arc<Mutex<Vec<String>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("an address").port();
    let seen = Arc::new(Mutex::new(Vec::<String>::new()));
    let log = Arc::clone(&seen);
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let log = Arc::clone(&log);
            std::thread::spawn(move || {
                let mut writer = stream.try_clone().expect("a stream");
                let mut reader = BufReader::new(stream);
                while let Some(body) = next_body(&mut reader) {
                    log.lock().expect("the log").push(body);
                    if writer.write_all(answer.as_bytes()).is_err() {
                        return;
                    }
                    if !ends {
                        // The rest of the answer never comes.
                        drop(reader.read(&mut [0]));
                        return;
                    }
                }
            });
        }
    });
    (port, seen)
}

/// The body of the next request of a connection.
fn next_body(reader: &mut BufReader<std::net::TcpStream>) -> Option<String> {
    let mut length = 0;
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line).unwrap_or(0) == 0 {
            return None;
        }
        let lower = line.to_ascii_lowercase();
        if let Some(text) = lower.strip_prefix("content-length:") {
            length = text.trim().parse().expect("a length");
        }
        if line.trim().is_empty() {
            break;
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    Some(String::from_utf8(body).expect("a text"))
}

/// The status is the answer, also if the body does not come within the time-out.
#[tokio::test]
async fn answer_whose_body_never_comes_counts() {
    let pipeline = start("slow_body", "").await;
    let (port, seen) = raw_receiver("HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nx", false);
    let sink = pipeline.server.sink(Some(port)) + "timeout = \"500ms\"\n";
    let relay = Relay::spawn(&pipeline.with_sink(&sink));
    pipeline.insert("orders", "a", &[1, 2, 3]).await;
    pipeline.resolved().await;
    assert_eq!(*seen.lock().expect("the log"), ["1", "2", "3"], "each once");
    relay.terminate(SOON).await;
}

/// The rows of a claim that is held for too long are given up. Then no request is left that would find the receiver.
#[tokio::test]
async fn polled_events_are_sent_when_the_receiver_is_back_after_a_long_time() {
    let mut pipeline = start("poll_outage", "").await;
    let head = format!("[pipelines.{}]\n", pipeline.name);
    let polls = format!("{head}mode = \"poll\"\npoll = {{ interval = \"50ms\" }}\n");
    pipeline.config = pipeline.config.replacen(&head, &polls, 1);
    let relay = pipeline.run();
    pipeline.insert("orders", "a", &[1]).await;
    pipeline.await_values("orders", "a", &["1"]).await;
    pipeline.server.kill().await;
    pipeline.insert("orders", "a", &[2, 3]).await;
    relay.await_state("broker_down", SOON).await;
    relay.await_log("resetting the producer", SOON).await;
    pipeline.server.restart().await;
    pipeline.await_values("orders", "a", &["1", "2", "3"]).await;
    relay.terminate(SOON).await;
}

/// The event in front of the refused one is still being tried when the refusal comes.
#[tokio::test]
async fn refusal_halts_a_pipeline_that_stops_at_poison() {
    let mut pipeline = start("stop", "").await;
    let keys = "on_poison = \"stop\"\nbackoff = {";
    pipeline.config = pipeline.config.replacen("backoff = {", keys, 1);
    let mut failures = 8;
    pipeline.server.0.script(move |request| {
        if is_of(request, "a") && failures > 0 {
            failures -= 1;
            return Some(Reply::status(503));
        }
        is_of(request, "b").then(|| Reply::status(400))
    });
    let sql = "insert into outbox (aggregate_type, aggregate_id, event_type, payload) \
               values ('orders', 'a', 'T', '1'), ('orders', 'b', 'T', '2'), ('orders', 'c', 'T', '3')";
    pipeline.sql.batch(sql).await;
    let halted = crate::halted::run_to_halt(&pipeline.config).await;
    halted.assert_says("PR011", &["can't be published", "code 400"], &["fix the destination"]);
    pipeline.await_values("orders", "a", &["1"]).await;
    assert_eq!(pipeline.parked().await, "");
}

/// A receiver that knows POST alone, and answers 404 to every OPTIONS.
#[tokio::test]
async fn receiver_that_does_not_know_options_gets_its_events() {
    let mut pipeline = start("options", "").await;
    pipeline.retry_each_second();
    pipeline.server.0.answer_options(404);
    let relay = pipeline.run();
    pipeline.insert("orders", "a", &[1]).await;
    pipeline.await_values("orders", "a", &["1"]).await;
    pipeline.insert("new", "b", &[2]).await;
    pipeline.await_parked("b waiting").await;
    pipeline.server.create("new").await;
    pipeline.await_values("new", "b", &["2"]).await;
    pipeline.await_parked("").await;
    relay.terminate(SOON).await;
}

#[tokio::test]
async fn versions_of_http_are_negotiated_or_chosen() {
    let pipeline = SinkPipeline::<HttpServer>::start("versions").await;
    let (plain, tls) = (pipeline.server.sink(None), pipeline.server.sink_over_tls(true));
    let mut number = 0;
    for (sink, version) in [
        (plain.clone(), Version::HTTP_11),
        (format!("{plain}version = \"2\"\n"), Version::HTTP_2),
        (tls.clone(), Version::HTTP_2),
        (format!("{tls}version = \"1.1\"\n"), Version::HTTP_11),
        (format!("{tls}version = \"2\"\n"), Version::HTTP_2),
    ] {
        let relay = Relay::spawn(&pipeline.with_sink(&sink));
        for aggregate in 0..20_u32 {
            pipeline.insert("orders", &aggregate.to_string(), &[aggregate]).await;
            number += 1;
        }
        pipeline.await_records("orders", number).await;
        let last = pipeline.server.0.received("orders").pop().expect("a request");
        assert_eq!(last.version, version, "{sink}");
        relay.terminate(SOON).await;
    }
}

/// A batch has the events of a destination in their order. One that is refused parks its aggregate alone.
#[tokio::test]
async fn batches_keep_the_order_and_a_refused_event_is_found() {
    let pipeline = start("batch", "batch = 50\n").await;
    pipeline.server.0.script(|request| {
        let events: serde_json::Value = serde_json::from_slice(&request.body).expect("JSON");
        let events = events.as_array().expect("an array");
        events.iter().any(|event| event["payload"] == 666).then(|| Reply::status(422))
    });
    let relay = pipeline.run();
    let numbers: Vec<u32> = (1..=500).collect();
    pipeline.insert("orders", "b", &numbers).await;
    pipeline.insert("orders", "a", &[1, 666, 2]).await;
    let more: Vec<u32> = (501..=600).collect();
    pipeline.insert("orders", "b", &more).await;
    let of = |key: &str| {
        let mut values = Vec::new();
        for request in pipeline.server.0.received("orders") {
            let events: Vec<serde_json::Value> =
                serde_json::from_slice(&request.body).expect("JSON");
            for event in events.iter().filter(|event| event["key"] == key) {
                assert!(event["id"].as_str().is_some() && event["headers"]["position"].is_string());
                let value = event["payload"].as_u64().expect("a number");
                if !values.contains(&value) {
                    values.push(value);
                }
            }
        }
        values
    };
    await_that("all events of b", SOON, || async {
        let found = of("b");
        if found.len() == 600 { Ok(()) } else { Err(found.len()) }
    })
    .await;
    pipeline.await_parked("a waiting, a behind").await;
    assert!(of("b").is_sorted());
    assert_eq!(of("a"), [1]);
    let requests = pipeline.server.0.received("orders").len();
    assert!(requests < 400, "{requests} requests");
    relay.terminate(SOON).await;
}

/// The answers of the requests in flight are taken before the pipeline starts again for a refusal: what is before the
/// refused event is not repeated, and what is behind it has the same id.
#[tokio::test]
async fn refusal_repeats_nothing_before_it() {
    let pipeline = start("no_repeats", "").await;
    pipeline.server.0.script(|request| {
        let status = if request.text() == "666" { 422 } else { 200 };
        Some(Reply { after: Duration::from_millis(50), ..Reply::status(status) })
    });
    let sql = "insert into outbox (aggregate_type, aggregate_id, event_type, payload) \
               select 'orders', i::text, 'T', to_json(case when i = 50 then 666 else i end) \
               from generate_series(0, 99) i";
    pipeline.sql.batch(sql).await;
    let relay = pipeline.run();
    let records = pipeline.await_records("orders", 99).await;
    pipeline.await_parked("50 waiting").await;
    pipeline.resolved().await;
    let mut ids = BTreeMap::<String, usize>::new();
    for request in pipeline.server.0.received("orders") {
        *ids.entry(request.header("webhook-id").expect("an id")).or_default() += 1;
    }
    assert_eq!(ids.len(), 99, "each event has one id");
    assert!(ids.values().take(50).all(|times| *times == 1), "{ids:?}");
    assert!(values_of(&records, "50").is_empty());
    let status = relay.status().await.expect("a status");
    assert_eq!(state(&status), "streaming");
    relay.terminate(SOON).await;
}
