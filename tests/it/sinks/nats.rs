//! The NATS sink in the conformance test, and what only NATS has: other writers of the stream, full streams,
//! identifiers, and rights that are not answered.

use super::pipeline::SinkPipeline;
use super::scenarios::grown;
use super::server::SinkServer;
use crate::await_that::{SOON, await_that};
use crate::load::Load;
use crate::pipeline::show;
use crate::private::PrivateNats;
use crate::proxy::Proxy;
use crate::relay::{Relay, postrider, postrider_ok};
use crate::topic::ReadRecord;
use serde_json::{Value, json};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpStream;

/// The stream of the tests.
const STREAM: &str = "EVENTS";

/// How long reading the stream may take.
const READ_MAX: Duration = Duration::from_secs(30);

/// A server with one stream.
pub(super) struct NatsServer {
    pub(super) nats: PrivateNats,
    stream: Mutex<StreamConfig>,
}

/// What the stream has at present.
#[derive(Clone, Default)]
pub(super) struct StreamConfig {
    pub(super) subjects: Vec<String>,
    /// Further settings.
    pub(super) settings: serde_json::Map<String, Value>,
}

impl NatsServer {
    /// Of this server, which has no stream yet.
    pub(super) fn of(nats: PrivateNats) -> Self {
        Self { nats, stream: Mutex::default() }
    }

    fn config(&self) -> StreamConfig {
        self.stream.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Changes the stream, or creates it.
    pub(super) async fn change(&self, change: impl FnOnce(&mut StreamConfig)) {
        let (before, after) = {
            let mut stream = self.stream.lock().unwrap_or_else(PoisonError::into_inner);
            let before = stream.clone();
            change(&mut stream);
            (before, stream.clone())
        };
        let verb = match (before.subjects.is_empty(), after.subjects.is_empty()) {
            (true, true) => return,
            (true, false) => "CREATE",
            (false, false) => "UPDATE",
            (false, true) => "DELETE",
        };
        let mut body = after.settings;
        body.insert("name".to_owned(), json!(STREAM));
        body.insert("subjects".to_owned(), json!(after.subjects));
        let body = if verb == "DELETE" { String::new() } else { Value::Object(body).to_string() };
        let subject = format!("$JS.API.STREAM.{verb}.{STREAM}");
        let answer = self.nats.admin(&subject, &body).await.expect("an answer");
        assert!(!answer.contains("\"error\""), "{subject} {body}: {answer}");
    }

    /// Changes a setting of the stream.
    async fn set(&self, key: &str, value: Value) {
        self.change(|stream| {
            stream.settings.insert(key.to_owned(), value);
        })
        .await;
    }

    pub(super) fn sink_at(&self, url: &str, more: &str) -> String {
        let password = self.nats.ca().with_file_name("relay-password");
        std::fs::write(&password, "secret\n").expect("a file");
        format!(
            "[.sink]\nkind = \"nats\"\n[.sink.nats]\nurl = \"{url}\"\nstream = \"{STREAM}\"\n\
             user = \"relay\"\npassword_file = \"{}\"\nack_timeout = \"3s\"\n{more}",
            password.display()
        )
    }
}

impl SinkServer for NatsServer {
    const KIND: &'static str = "nats";

    /// The stream is asked what it has.
    const REPEATS_PER_LOSS: usize = 0;

    const CLOUD_EVENTS: &'static str = "http";

    async fn start() -> Self {
        Self::of(PrivateNats::start("").await)
    }

    async fn version(&self) -> String {
        self.nats.version().replace(": v", " ")
    }

    fn port(&self) -> Option<u16> {
        Some(self.nats.port())
    }

    fn sink(&self, port: Option<u16>) -> String {
        let port = port.unwrap_or_else(|| self.nats.port());
        self.sink_at(&format!("nats://127.0.0.1:{port}"), "")
    }

    fn sink_over_tls(&self, right: bool) -> String {
        let host = if right { "localhost" } else { "127.0.0.1" };
        let ca = format!("ca_file = \"{}\"\n", self.nats.ca().display());
        self.sink_at(&format!("tls://{host}:{}", self.nats.tls_port()), &ca)
    }

    async fn create(&self, destination: &str) {
        self.change(|stream| stream.subjects.push(destination.to_owned())).await;
    }

    async fn delete(&self, destination: &str) {
        let purge = json!({ "filter": destination }).to_string();
        let subject = format!("$JS.API.STREAM.PURGE.{STREAM}");
        self.nats.admin(&subject, &purge).await.expect("an answer");
        self.change(|stream| stream.subjects.retain(|subject| subject != destination)).await;
    }

    async fn limit(&mut self, _destination: &str, bytes: Option<usize>) -> String {
        self.set("max_msg_size", bytes.map_or_else(|| json!(-1), |bytes| json!(bytes))).await;
        self.sink(None)
    }

    async fn read(&self, destination: &str) -> Result<Vec<ReadRecord>, String> {
        let read =
            tokio::time::timeout(READ_MAX, read_subject(self.nats.port(), destination)).await;
        read.map_err(|elapsed| elapsed.to_string())?
    }

    async fn kill(&mut self) {
        self.nats.kill().await;
    }

    async fn restart(&mut self) {
        self.nats.restart().await;
    }

    fn freeze(&self) {
        self.nats.freeze();
    }

    fn thaw(&self) {
        self.nats.thaw();
    }

    async fn allow(&mut self, allowed: bool) {
        self.nats.allow(allowed).await;
    }
}

/// All messages of a subject, by a consumer that the server forgets. This reader shares no code with the sink.
async fn read_subject(port: u16, subject: &str) -> Result<Vec<ReadRecord>, String> {
    let text = |error: std::io::Error| error.to_string();
    let mut stream = BufReader::new(TcpStream::connect(("127.0.0.1", port)).await.map_err(text)?);
    let body = json!({ "stream_name": STREAM, "config": {
        "deliver_policy": "all", "ack_policy": "none", "replay_policy": "instant", "mem_storage": true,
        "filter_subject": subject, "inactive_threshold": 5_000_000_000_u64,
    } })
    .to_string();
    let connect = json!({
        "verbose": false, "user": "admin", "pass": "admin", "headers": true, "no_responders": true,
    });
    let commands = format!(
        "CONNECT {connect}\r\nSUB _INBOX.read.* 1\r\n\
         PUB $JS.API.CONSUMER.CREATE.{STREAM} _INBOX.read.made {}\r\n{body}\r\n",
        body.len()
    );
    stream.get_mut().write_all(commands.as_bytes()).await.map_err(text)?;
    let (mut wanted, mut records) = (None, Vec::new());
    while wanted.is_none_or(|wanted| records.len() < wanted) {
        let mut line = String::new();
        stream.read_line(&mut line).await.map_err(text)?;
        let words: Vec<&str> = line.split_whitespace().collect();
        let number =
            |at: usize| words.get(at).and_then(|word| word.parse().ok()).unwrap_or(0_usize);
        let last = words.len().saturating_sub(1);
        let (headers, total) = match words.first().copied() {
            Some("MSG") => (0, number(last)),
            Some("HMSG") => (number(last - 1), number(last)),
            Some("PING") => {
                stream.get_mut().write_all(b"PONG\r\n").await.map_err(text)?;
                continue;
            }
            Some("INFO" | "PONG") => continue,
            _ => return Err(format!("the server answers {line:?}")),
        };
        let mut bytes = vec![0; total + 2];
        stream.read_exact(&mut bytes).await.map_err(text)?;
        bytes.truncate(total);
        let payload = bytes.split_off(headers);
        if words[1] != "_INBOX.read.made" {
            records.push(record(&words, &bytes, payload));
            continue;
        }
        let answer: Value = serde_json::from_slice(&payload).map_err(|error| error.to_string())?;
        let pending = answer["num_pending"].as_u64().ok_or_else(|| answer.to_string())?;
        wanted = Some(usize::try_from(pending).expect("a count"));
        let name = answer["name"].as_str().ok_or_else(|| answer.to_string())?;
        let next = json!({ "batch": pending.max(1), "no_wait": true }).to_string();
        let next = format!(
            "PUB $JS.API.CONSUMER.MSG.NEXT.{STREAM}.{name} _INBOX.read.next {}\r\n{next}\r\n",
            next.len()
        );
        stream.get_mut().write_all(next.as_bytes()).await.map_err(text)?;
    }
    Ok(records)
}

/// The acknowledgement subject of a delivered message has its sequence: `$JS.ACK.EVENTS.CONSUMER.1.SEQUENCE.…`.
fn record(words: &[&str], headers: &[u8], payload: Vec<u8>) -> ReadRecord {
    let text = String::from_utf8(headers.to_vec()).expect("UTF-8");
    let lines = text.split("\r\n").skip(1).filter_map(|line| line.split_once(": "));
    let headers: Vec<(String, Option<Vec<u8>>)> =
        lines.map(|(name, value)| (name.to_owned(), Some(value.as_bytes().to_vec()))).collect();
    let find = |name: &str| {
        let header = headers.iter().find(|(known, _)| known == name);
        header.and_then(|(_, value)| value.clone())
    };
    let sequence = words.get(3).and_then(|reply| reply.split('.').nth(5)?.parse().ok());
    let is_null = find("null").is_some_and(|value| value == b"true");
    ReadRecord {
        partition: 0,
        offset: sequence.unwrap_or(0),
        key: find("key"),
        value: (!is_null).then_some(payload),
        headers,
        timestamp: None,
    }
}

super::conformance!(NatsServer);

/// Messages of another program in the stream: the sequence that a message of the relay names is right again after each
/// of them, one message too late.
#[tokio::test]
async fn messages_of_another_program_swap_nothing() {
    let pipeline = SinkPipeline::<NatsServer>::start("foreign").await;
    pipeline.server.create("nowhere").await;
    let relay = pipeline.run();
    let load = Load::start(&pipeline.plan(), 1);
    let mut others = 0;
    while others < 50 {
        pipeline.server.nats.admin("nowhere", "other").await.expect("an answer");
        others += 1;
        grown(&load, 200).await;
    }
    let ledger = load.stop().await;
    let found = pipeline.arrived(&ledger).await;
    found.assert_balanced(0);
    let stored = pipeline.server.read("nowhere").await.expect("messages");
    assert_eq!(stored.len(), others);
    show(&format!("nats | {others} messages of another program | {found}").replace('\n', ", "));
    relay.terminate(SOON).await;
}

#[tokio::test]
async fn without_a_chain_lost_connections_swap_nothing() {
    let mut pipeline = SinkPipeline::<NatsServer>::start("unchained").await;
    let sink = pipeline.server.sink(None) + "chain = \"none\"\n";
    pipeline.config = pipeline.with_sink(&sink);
    let relay = pipeline.run();
    let load = Load::start(&pipeline.plan(), 1);
    for _ in 0..3 {
        grown(&load, 2_000).await;
        pipeline.server.kill().await;
        pipeline.server.restart().await;
    }
    let ledger = load.stop().await;
    let found = pipeline.arrived(&ledger).await;
    // The server discards what it has seen within duplicate_window.
    found.assert_balanced(0);
    relay.terminate(SOON).await;
}

/// Another program writes another subject of the stream before each fault. Connections are cut, the server is killed,
/// and so is the relay. Of each subject one message is in flight, so there are many subjects.
#[tokio::test]
async fn chain_of_each_subject_loses_and_swaps_nothing_beside_another_writer() {
    let server = NatsServer::start().await;
    server.create("orders.>").await;
    server.create("nowhere").await;
    let proxy = Proxy::start(server.nats.port(), None);
    let sink = server.sink(Some(proxy.port)) + "chain = \"subject\"\n";
    let mut pipeline = SinkPipeline::to(server, "subject", &sink).await;
    let topic = "topic = \"{aggregate_type}\"";
    let of_aggregate = "topic = \"{aggregate_type}.{aggregate_id}\"";
    pipeline.config = pipeline.config.replace(topic, of_aggregate);
    let mut relay = pipeline.run();
    let load = Load::start(&pipeline.plan(), 1);
    for round in 0..12 {
        pipeline.server.nats.admin("nowhere", "other").await.expect("an answer");
        grown(&load, 1_000).await;
        match round % 4 {
            0 => proxy.cut(),
            1 => proxy.halve(),
            2 => {
                pipeline.server.nats.kill().await;
                pipeline.server.nats.restart().await;
            }
            _ => {
                relay.kill().await;
                relay = pipeline.run();
            }
        }
    }
    let ledger = load.stop().await;
    let found = await_that("every committed event", SOON, || async {
        let found = ledger.check(&pipeline.server.read("orders.>").await?);
        let is_whole = found.lost.is_empty() && found.cut_off.is_empty();
        if is_whole { Ok(found) } else { Err(found.to_string()) }
    })
    .await;
    // The server discards what the killed relays send again, within duplicate_window.
    found.assert_balanced(0);
    pipeline.resolved().await;
    assert_eq!(pipeline.parked().await, "");
    let words = "chain = \"subject\", another writer, 12 cuts and kills under 2,000 events/s";
    show(&format!("nats | {words}: {found}").replace('\n', ", "));
    relay.terminate(SOON).await;
}

/// The other program writes the subject that the pipeline writes: it is found out, and the order is kept.
#[tokio::test]
async fn chain_of_a_subject_goes_on_behind_messages_of_another_program() {
    let pipeline = SinkPipeline::<NatsServer>::start("others").await;
    let sink = pipeline.server.sink(None) + "chain = \"subject\"\n";
    let relay = Relay::spawn(&pipeline.with_sink(&sink));
    for number in 1..=20 {
        pipeline.insert("orders", "a", &[number]).await;
        let numbers: Vec<String> = (1..=number).map(|number| number.to_string()).collect();
        let wanted: Vec<&str> = numbers.iter().map(String::as_str).collect();
        pipeline.await_values("orders", "a", &wanted).await;
        pipeline.server.nats.admin("orders", "other").await.expect("an answer");
    }
    pipeline.resolved().await;
    let stored = pipeline.server.read("orders").await.expect("messages");
    assert_eq!(stored.len(), 40, "20 of each writer");
    relay.terminate(SOON).await;
}

/// What a process had sent, and sends after it was stopped, is refused once another process has published.
#[tokio::test]
async fn chain_of_each_subject_refuses_a_process_that_was_frozen() {
    let mut pipeline = SinkPipeline::<NatsServer>::start("subjectghost").await;
    let sink = pipeline.server.sink(None) + "chain = \"subject\"\n";
    pipeline.config = pipeline.with_sink(&sink);
    super::scenarios::frozen_relay_publishes_nothing_out_of_order(&pipeline).await;
}

#[tokio::test]
async fn full_stream_is_waited_for_in_order() {
    let pipeline = SinkPipeline::<NatsServer>::start("full").await;
    pipeline.server.set("discard", json!("new")).await;
    pipeline.server.set("max_msgs", json!(3)).await;
    let relay = pipeline.run();
    pipeline.insert("orders", "a", &[1, 2, 3, 4, 5, 6]).await;
    relay.await_state("broker_down", SOON).await;
    relay.await_log("stream EVENTS is full", SOON).await;
    pipeline.await_values("orders", "a", &["1", "2", "3"]).await;
    pipeline.server.set("max_msgs", json!(-1)).await;
    pipeline.await_values("orders", "a", &["1", "2", "3", "4", "5", "6"]).await;
    pipeline.resolved().await;
    assert_eq!(pipeline.parked().await, "");
    assert_eq!(pipeline.server.read("orders").await.expect("messages").len(), 6);
    relay.terminate(SOON).await;
}

/// The message was admitted for the limit of the server that was there.
#[tokio::test]
async fn message_that_a_restarted_server_takes_no_more_is_parked() {
    let mut pipeline = SinkPipeline::<NatsServer>::start("payload").await;
    let relay = pipeline.run();
    pipeline.insert("orders", "a", &[1]).await;
    pipeline.await_values("orders", "a", &["1"]).await;
    pipeline.server.nats.kill().await;
    relay.await_state("broker_down", SOON).await;
    pipeline.insert_large("orders", "a", 300_000).await;
    pipeline.insert("orders", "a", &[3]).await;
    let waits = |status: &Value| status["pipelines"][0]["in_flight_events"].as_u64() >= Some(2);
    relay.await_status("both to be in flight", SOON, waits).await;
    pipeline.server.nats.set("max_payload: 100KB");
    pipeline.server.nats.restart().await;
    pipeline.insert("orders", "b", &[4]).await;
    pipeline.await_values("orders", "b", &["4"]).await;
    pipeline.await_parked("a waiting, a behind").await;
    pipeline.resolved().await;
    relay.terminate(SOON).await;
}

/// The server does not answer such a message; it only reports that it was refused.
#[tokio::test]
async fn message_without_the_right_to_publish_is_named_and_waited_for() {
    let pipeline = SinkPipeline::<NatsServer>::start("denied").await;
    pipeline.server.create("forbidden").await;
    let relay = pipeline.run();
    pipeline.insert("orders", "a", &[1]).await;
    pipeline.await_values("orders", "a", &["1"]).await;
    pipeline.insert("forbidden", "b", &[2]).await;
    relay.await_state("broker_down", SOON).await;
    relay.await_log("Permissions Violation for Publish to", SOON).await;
    pipeline.insert("orders", "a", &[3]).await;
    pipeline.server.create("nowhere").await;
    assert_eq!(pipeline.parked().await, "");
    relay.kill().await;
}

/// The login `relay` has the rights that docs/sinks/nats.md lists; the account of `sys` has no JetStream.
#[tokio::test]
async fn account_without_jetstream_is_named() {
    let pipeline = SinkPipeline::<NatsServer>::start("nojs").await;
    let sink = pipeline.server.sink(None).replace("\"relay\"", "\"sys\"");
    let password = pipeline.server.nats.ca().with_file_name("sys-password");
    std::fs::write(&password, "sys\n").expect("a file");
    let sink = sink.replace("relay-password", "sys-password");
    let config = pipeline.with_sink(&sink);
    let output = postrider(&config, &["check"]);
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("JetStream"), "{said}");
    let relay = Relay::spawn(&config);
    relay.await_state("broker_down", SOON).await;
    relay.await_log("enable JetStream", SOON).await;
    relay.terminate(SOON).await;
}

/// A replaced event has the position of the one in whose place it is published, and is no repetition of it.
#[tokio::test]
async fn replaced_event_is_not_taken_for_a_repetition() {
    let mut pipeline = SinkPipeline::<NatsServer>::start("replaced").await;
    pipeline.server.limit("orders", Some(20_000)).await;
    let relay = pipeline.run();
    pipeline.insert_large("orders", "a", 60_000).await;
    pipeline.insert("orders", "a", &[2]).await;
    pipeline.await_parked("a waiting, a behind").await;
    let listed = postrider_ok(&pipeline.config, &["parked", "list", "--json"]);
    let first = listed.lines().next().expect("a line");
    let id = find_id(&serde_json::from_str(first).expect("JSON")).expect("an event's id");
    let payload = pipeline.server.nats.ca().with_file_name("payload");
    std::fs::write(&payload, "{\"small\":1}").expect("a file");
    let replace = [
        "parked",
        "replace",
        &id,
        "--payload-file",
        payload.to_str().expect("a path"),
        "--reason",
        "r",
        "--yes",
    ];
    postrider_ok(&pipeline.config, &replace);
    pipeline.await_values("orders", "a", &["{\"small\":1}", "2"]).await;
    pipeline.await_parked("").await;
    relay.terminate(SOON).await;
}

fn find_id(listed: &Value) -> Option<String> {
    match listed {
        Value::Object(map) => match map.get("id").or_else(|| map.get("event_id")) {
            Some(Value::String(id)) => Some(id.clone()),
            Some(Value::Number(id)) => Some(id.to_string()),
            _ => map.values().find_map(find_id),
        },
        Value::Array(rows) => rows.iter().find_map(find_id),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => None,
    }
}

#[tokio::test]
async fn check_warns_of_what_is_lost_although_it_was_acknowledged() {
    let pipeline = SinkPipeline::<NatsServer>::start("warned").await;
    let config = pipeline.config.replace("topic = \"{aggregate_type}\"", "topic = \"orders\"");
    pipeline.server.set("max_msgs", json!(1_000)).await;
    pipeline.server.set("max_age", json!(3_600_000_000_000_u64)).await;
    let said = postrider_ok(&config, &["check", "--json"]);
    for id in ["nats_discard", "nats_max_age", "nats_replicas", "nats_stream", "nats_server"] {
        assert!(said.contains(&format!("\"{id}\"")), "{id}: {said}");
    }
    let output = postrider(&config.replace("\"orders\"", "\"elsewhere.a\""), &["check", "--json"]);
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(said.contains("\"nats_subject\"") && said.contains("orders,elsewhere.a"), "{said}");
}

#[tokio::test]
async fn stream_is_created_if_asked() {
    let server = NatsServer::start().await;
    let password = server.nats.ca().with_file_name("admin-password");
    std::fs::write(&password, "admin\n").expect("a file");
    let sink = server.sink(None).replace("\"relay\"", "\"admin\"");
    let sink = sink.replace("relay-password", "admin-password")
        + "[.sink.nats.create]\nsubjects = \"orders, invoices.>\"\nmax_age = \"1h\"\n";
    let pipeline = SinkPipeline::to(server, "made", &sink).await;
    let relay = pipeline.run();
    pipeline.insert("orders", "a", &[1]).await;
    pipeline.insert("invoices.x", "b", &[2]).await;
    pipeline.await_values("orders", "a", &["1"]).await;
    pipeline.await_values("invoices.x", "b", &["2"]).await;
    relay.terminate(SOON).await;
}

/// Run alone, for the figure: 200,000 events at full speed, with kill -9 of the server in the middle.
#[tokio::test]
#[ignore = "takes minutes"]
async fn kill_9_at_full_speed_leaves_no_hole_and_no_duplicate() {
    let mut pipeline = SinkPipeline::<NatsServer>::start("speed").await;
    let sql = "insert into outbox (aggregate_type, aggregate_id, event_type, payload) \
               select 'orders', (i % 1000)::text, 'T', to_json(i) from generate_series(1, 200000) i";
    pipeline.sql.batch(sql).await;
    let started = std::time::Instant::now();
    let relay = pipeline.run();
    for wanted in [50_000, 100_000, 150_000] {
        relay
            .await_status("events", SOON, |status| {
                status["pipelines"][0]["published_total"].as_u64() >= Some(wanted)
            })
            .await;
        pipeline.server.kill().await;
        pipeline.server.restart().await;
    }
    let records = pipeline.await_records("orders", 200_000).await;
    let elapsed = started.elapsed();
    pipeline.resolved().await;
    let values: Vec<u32> =
        records.iter().filter_map(|record| record.value_text()?.parse().ok()).collect();
    assert!(values.iter().copied().eq(1..=200_000), "each once, in one order");
    show(&format!("nats | 200,000 events, 3 kill -9, in {elapsed:?}, each once and in order"));
    relay.terminate(SOON).await;
}
