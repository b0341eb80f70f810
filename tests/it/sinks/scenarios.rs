//! The tests that every sink passes.

use super::pipeline::{IN_FLIGHT_EVENTS, SinkPipeline, state, values_of};
use super::server::SinkServer;
use crate::await_that::{SOON, await_that};
use crate::load::Load;
use crate::pipeline::show;
use crate::private::Signal;
use crate::programs::{Process, python};
use crate::proxy::Proxy;
use crate::relay::{Relay, postrider, postrider_ok};
use crate::topic::ReadRecord;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use std::time::Duration;

/// Waits until the load has committed so many events more.
pub(super) async fn grown(load: &Load, events: usize) {
    let wanted = load.committed() + events;
    await_that("more events", SOON, || async {
        let committed = load.committed();
        if committed >= wanted { Ok(()) } else { Err(committed) }
    })
    .await;
}

/// Waits until the relay has published so many events more.
async fn published(relay: &Relay, events: u64) {
    let count = |status: &Value| status["pipelines"][0]["published_total"].as_u64().unwrap_or(0);
    let before = relay.status().await.map_or(0, |status| count(&status));
    relay.await_status("more published", SOON, |status| count(status) >= before + events).await;
}

/// A line of the conformance table.
pub(super) async fn row<S: SinkServer>(server: &S, test: &str, found: &str) {
    show(&format!("conformance | {} | {} | {test} | {found}", S::KIND, server.version().await));
}

pub(super) async fn events_arrive_in_order_with_all_their_parts<S: SinkServer>() {
    let pipeline = SinkPipeline::<S>::start("order").await;
    let relay = pipeline.run();
    for first in [1, 1_001] {
        let sql = format!(
            "insert into outbox (aggregate_type, aggregate_id, event_type, payload) \
             select 'orders', (i % 10)::text, 'Written', to_json(i) from generate_series({first}, {first} + 999) i"
        );
        pipeline.sql.batch(&sql).await;
    }
    let sql = "insert into outbox (aggregate_type, aggregate_id, event_type, payload, headers) values \
               ('orders', 'ключ 1', 'Größe', '{\"text\": \"ünïcode \\u2028\"}', '{\"tenant\": \"a\", \"n\": 7}'), \
               ('orders', 'ключ 1', 'Gone', null, null)";
    pipeline.sql.batch(sql).await;
    let records = pipeline.await_records("orders", 2_002).await;
    assert_eq!(records.len(), 2_002, "each event once");
    for aggregate in 0..10_u32 {
        let expected: Vec<String> =
            (1..=2_000).filter(|n| n % 10 == aggregate).map(|n: u32| n.to_string()).collect();
        assert_eq!(values_of(&records, &aggregate.to_string()), expected, "in order");
    }
    let positions: Vec<&str> =
        records.iter().map(|record| record.header("position").expect("a position")).collect();
    let of_one: Vec<&str> = records
        .iter()
        .zip(&positions)
        .filter(|(record, _)| record.key_text() == Some("1"))
        .map(|(_, position)| *position)
        .collect();
    assert!(of_one.is_sorted(), "positions rise: {of_one:?}");
    let of_key = |record: &&ReadRecord| record.key_text() == Some("ключ 1");
    let unicode: Vec<_> = records.iter().filter(of_key).collect();
    assert_eq!(unicode[0].value_text(), Some("{\"text\": \"ünïcode \\u2028\"}"));
    assert_eq!(unicode[0].header("type"), Some("Größe"));
    assert_eq!((unicode[0].header("tenant"), unicode[0].header("n")), (Some("a"), Some("7")));
    assert_eq!(unicode[0].header("id"), Some("2001"));
    assert_eq!((unicode[1].value.as_ref(), unicode[1].header("type")), (None, Some("Gone")));
    pipeline.resolved().await;
    assert_eq!(pipeline.parked().await, "");
    row(&pipeline.server, "order", "2,002 events of 11 aggregates, each once and in order").await;
    assert_eq!(relay.terminate(SOON).await.code, Some(0));
}

/// Most repetitions of `losses` lost connections.
fn repeats_max<S: SinkServer>(losses: usize) -> usize {
    losses * S::REPEATS_PER_LOSS
}

pub(super) async fn lost_connections_lose_and_swap_nothing<S: SinkServer>() {
    let mut pipeline = SinkPipeline::<S>::start("cut").await;
    let proxy = pipeline.server.port().map(|port| Proxy::start(port, None));
    let config = match &proxy {
        Some(proxy) => pipeline.with_sink(&pipeline.server.sink(Some(proxy.port))),
        None => pipeline.config.clone(),
    };
    let relay = Relay::spawn(&config);
    let load = Load::start(&pipeline.plan(), 1);
    let cuts = if proxy.is_some() { 10 } else { 3 };
    for cut in 0..cuts {
        published(&relay, 500).await;
        match &proxy {
            // In the middle of a command or of an answer, in turn with a reset between two.
            Some(proxy) if cut % 2 == 0 => proxy.halve(),
            Some(proxy) => proxy.cut(),
            None => pipeline.server.cut().await,
        }
    }
    published(&relay, 500).await;
    let ledger = load.stop().await;
    let found = pipeline.arrived(&ledger).await;
    found.assert_balanced(repeats_max::<S>(cuts));
    pipeline.resolved().await;
    let found = format!("{cuts} cuts under 2,000 events/s: {found}").replace('\n', ", ");
    row(&pipeline.server, "lost connection", &found).await;
    relay.terminate(SOON).await;
}

pub(super) async fn killed_servers_lose_and_swap_nothing<S: SinkServer>() {
    let mut pipeline = SinkPipeline::<S>::start("kill").await;
    let relay = pipeline.run();
    let load = Load::start(&pipeline.plan(), 1);
    for _ in 0..3 {
        published(&relay, 500).await;
        pipeline.server.kill().await;
        grown(&load, 1_000).await;
        pipeline.server.restart().await;
    }
    published(&relay, 500).await;
    let ledger = load.stop().await;
    let found = pipeline.arrived(&ledger).await;
    found.assert_balanced(repeats_max::<S>(3));
    pipeline.resolved().await;
    let found = format!("3 kill -9 under 2,000 events/s: {found}").replace('\n', ", ");
    row(&pipeline.server, "killed server", &found).await;
    relay.terminate(SOON).await;
}

pub(super) async fn frozen_server_is_waited_for<S: SinkServer>() {
    let pipeline = SinkPipeline::<S>::start("frozen").await;
    let relay = pipeline.run();
    let load = Load::start(&pipeline.plan(), 1);
    published(&relay, 500).await;
    pipeline.server.freeze();
    grown(&load, 2 * IN_FLIGHT_EVENTS).await;
    // The status says so without an answer of the server.
    relay
        .await_status("that it waits", SOON, |status| {
            state(status) == "broker_down"
                || status["pipelines"][0]["in_flight_events"].as_u64() > Some(0)
        })
        .await;
    pipeline.server.thaw();
    published(&relay, 500).await;
    let ledger = load.stop().await;
    let found = pipeline.arrived(&ledger).await;
    found.assert_balanced(repeats_max::<S>(1));
    pipeline.resolved().await;
    let found = format!("frozen under 2,000 events/s: {found}").replace('\n', ", ");
    row(&pipeline.server, "frozen server", &found).await;
    relay.terminate(SOON).await;
}

/// A killed relay repeats what was in flight, and what its cursor row does not have yet.
pub(super) async fn killed_relays_repeat_a_bounded_number<S: SinkServer>() {
    let pipeline = SinkPipeline::<S>::start("killed").await;
    let load = Load::start(&pipeline.plan(), 1);
    for _ in 0..5 {
        let relay = pipeline.run();
        published(&relay, 1_000).await;
        relay.kill().await;
    }
    let relay = pipeline.run();
    published(&relay, 500).await;
    let ledger = load.stop().await;
    let found = pipeline.arrived(&ledger).await;
    // What was published since the last cursor row (1 s, or 10,000 events), and what was in flight.
    found.assert_balanced(if S::EXACTLY_ONCE { 0 } else { 5 * (10_000 + IN_FLIGHT_EVENTS) });
    pipeline.resolved().await;
    let found = format!("5 kill -9 of the relay: {found}").replace('\n', ", ");
    row(&pipeline.server, "killed relay", &found).await;
    relay.terminate(SOON).await;
}

/// A relay that is frozen with events in flight, and another one that takes over: when the first one is thawed, what it
/// still sends swaps nothing. Where no fence is possible it repeats what it had in flight behind newer events, and no
/// event is first published before an earlier one.
pub(super) async fn relay_that_froze_publishes_nothing_out_of_order<S: SinkServer>() {
    frozen_relay_publishes_nothing_out_of_order(&SinkPipeline::<S>::start("ghost").await).await;
}

pub(super) async fn frozen_relay_publishes_nothing_out_of_order<S: SinkServer>(
    pipeline: &SinkPipeline<S>,
) {
    let load = Load::start(&pipeline.plan(), 1);
    let first = pipeline.run();
    published(&first, 1_000).await;
    let second = pipeline.run();
    first.signal(Signal::Stop);
    // PostgreSQL gives the slot to the second one only after the first one's connection has ended.
    let ended = "select pg_terminate_backend(active_pid) from pg_replication_slots where active \
                 and active_pid is not null";
    await_that("the second relay to publish", SOON, || async {
        let status = second.status().await?;
        if status["pipelines"][0]["published_total"].as_u64() >= Some(500) {
            return Ok(());
        }
        if state(&status) == "standing_by" {
            pipeline.sql.batch(ended).await;
        }
        Err(status.to_string())
    })
    .await;
    first.signal(Signal::Cont);
    published(&second, 1_000).await;
    let ledger = load.stop().await;
    let mut found = pipeline.arrived(&ledger).await;
    if !S::FENCES_FROZEN_PROCESS {
        assert_eq!(found.early, Vec::<String>::new(), "{found}");
        found.swapped.clear();
    }
    found.assert_balanced(if S::EXACTLY_ONCE { 0 } else { 2 * (10_000 + IN_FLIGHT_EVENTS) });
    let found = format!("a relay frozen with events in flight, and thawed: {found}");
    row(&pipeline.server, "frozen relay", &found.replace('\n', ", ")).await;
    first.kill().await;
    second.terminate(SOON).await;
}

/// Larger than the limit that the test sets.
const TOO_LARGE: usize = 60_000;
const LIMIT: usize = 20_000;

pub(super) async fn event_that_is_too_large_parks_its_aggregate_alone<S: SinkServer>() {
    let mut pipeline = SinkPipeline::<S>::start("large").await;
    let sink = pipeline.server.limit("orders", Some(LIMIT)).await;
    pipeline.config = pipeline.with_sink(&sink);
    let relay = pipeline.run();
    pipeline.insert("orders", "a", &[1]).await;
    pipeline.insert_large("orders", "a", TOO_LARGE).await;
    pipeline.insert("orders", "a", &[3]).await;
    pipeline.insert("orders", "b", &[4, 5]).await;
    pipeline.await_values("orders", "b", &["4", "5"]).await;
    pipeline.await_values("orders", "a", &["1"]).await;
    pipeline.await_parked("a waiting, a behind").await;
    pipeline.resolved().await;
    let shown = postrider_ok(&pipeline.config, &["parked", "list"]);
    assert!(shown.contains("too_large"), "{shown}");
    row(&pipeline.server, "too large", "parked with its aggregate, the others flow").await;
    relay.terminate(SOON).await;
}

pub(super) async fn parked_event_is_published_behind_newer_ones<S: SinkServer>() {
    let mut pipeline = SinkPipeline::<S>::start("late").await;
    let sink = pipeline.server.limit("orders", Some(LIMIT)).await;
    pipeline.config = pipeline.with_sink(&sink);
    let relay = pipeline.run();
    pipeline.insert("orders", "a", &[1]).await;
    pipeline.insert_large("orders", "a", TOO_LARGE).await;
    pipeline.insert("orders", "a", &[3]).await;
    let newer: Vec<u32> = (100..1_100).collect();
    pipeline.insert("orders", "b", &newer).await;
    pipeline.await_records("orders", 1_001).await;
    pipeline.await_parked("a waiting, a behind").await;
    relay.terminate(SOON).await;
    let sink = pipeline.server.limit("orders", None).await;
    pipeline.config = pipeline.with_sink(&sink);
    let relay = pipeline.run();
    pipeline.insert("orders", "b", &[2_000]).await;
    let retry = ["parked", "retry", "--all", "--reason", "limit raised", "--yes"];
    postrider_ok(&pipeline.config, &retry);
    // A refusal that comes after sending repeats events: their number alone does not say that all are there.
    pipeline.await_parked("").await;
    let records = pipeline.await_records("orders", 1_004).await;
    let values = values_of(&records, "a");
    assert_eq!((values[0].as_str(), values[2].as_str()), ("1", "3"), "{} values", values.len());
    assert!(values[1].len() > LIMIT, "the large one is between them");
    let place =
        |position: &str| records.iter().position(|record| record.header("id") == Some(position));
    let (late, newest) = (place("2"), place("1003"));
    assert!(late > newest, "event 2 is published behind newer ones: {late:?}, {newest:?}");
    pipeline.resolved().await;
    row(&pipeline.server, "parked retry", "published behind 1,000 newer events, in its order")
        .await;
    relay.terminate(SOON).await;
}

pub(super) async fn destination_that_is_missing_parks_its_events_alone<S: SinkServer>() {
    if !S::DESTINATIONS_ARE_MADE {
        return;
    }
    let mut pipeline = SinkPipeline::<S>::start("missing").await;
    pipeline.retry_each_second();
    let relay = pipeline.run();
    pipeline.insert("orders", "b", &[1]).await;
    pipeline.await_values("orders", "b", &["1"]).await;
    pipeline.insert("nowhere", "a", &[2, 3]).await;
    pipeline.insert("orders", "b", &[4]).await;
    pipeline.await_values("orders", "b", &["1", "4"]).await;
    pipeline.await_parked("a waiting, a behind").await;
    pipeline.resolved().await;
    pipeline.server.create("nowhere").await;
    pipeline.await_values("nowhere", "a", &["2", "3"]).await;
    pipeline.await_parked("").await;
    row(&pipeline.server, "missing destination", "parked alone, published once it exists").await;
    relay.terminate(SOON).await;
}

pub(super) async fn destination_that_goes_away_is_waited_for<S: SinkServer>() {
    if !S::DESTINATIONS_ARE_MADE {
        return;
    }
    let mut pipeline = SinkPipeline::<S>::start("gone").await;
    pipeline.retry_each_second();
    let relay = pipeline.run();
    pipeline.insert("orders", "a", &[1]).await;
    pipeline.await_values("orders", "a", &["1"]).await;
    pipeline.server.delete("orders").await;
    pipeline.insert("orders", "a", &[2, 3]).await;
    relay
        .await_status("that it waits, or has parked", SOON, |status| {
            state(status) == "broker_down"
                || status["pipelines"][0]["parked"]["aggregates"].as_u64() > Some(0)
        })
        .await;
    pipeline.server.create("orders").await;
    pipeline.await_values("orders", "a", &["2", "3"]).await;
    pipeline.await_parked("").await;
    pipeline.resolved().await;
    row(&pipeline.server, "destination deleted", "waited for, nothing lost or swapped").await;
    relay.terminate(SOON).await;
}

pub(super) async fn server_that_is_down_at_the_start_is_waited_for<S: SinkServer>() {
    let mut pipeline = SinkPipeline::<S>::start("down").await;
    pipeline.server.kill().await;
    let relay = pipeline.run();
    pipeline.insert("orders", "a", &[1, 2]).await;
    relay.await_state("broker_down", SOON).await;
    relay.await_log("nothing is lost", SOON).await;
    pipeline.server.restart().await;
    pipeline.await_values("orders", "a", &["1", "2"]).await;
    pipeline.resolved().await;
    row(&pipeline.server, "down at the start", "reported, waited for").await;
    relay.terminate(SOON).await;
}

pub(super) async fn withdrawn_rights_are_named_and_waited_for<S: SinkServer>() {
    let mut pipeline = SinkPipeline::<S>::start("rights").await;
    let relay = pipeline.run();
    pipeline.insert("orders", "a", &[1]).await;
    pipeline.await_values("orders", "a", &["1"]).await;
    pipeline.server.allow(false).await;
    pipeline.insert("orders", "a", &[2, 3]).await;
    let status = relay.await_state("broker_down", SOON).await;
    let log = relay.stderr();
    assert!(log.contains("hint="), "the line that fixes it: {status}\n{log}");
    pipeline.server.allow(true).await;
    pipeline.await_values("orders", "a", &["1", "2", "3"]).await;
    pipeline.resolved().await;
    assert_eq!(pipeline.parked().await, "");
    row(&pipeline.server, "rights withdrawn", "named, waited for, nothing lost or parked").await;
    relay.terminate(SOON).await;
}

pub(super) async fn certificate_for_another_name_is_refused<S: SinkServer>() {
    let pipeline = SinkPipeline::<S>::start("tls").await;
    pipeline.insert("orders", "a", &[1, 2]).await;
    let wrong = pipeline.with_sink(&pipeline.server.sink_over_tls(false));
    let relay = Relay::spawn(&wrong);
    relay.await_state("broker_down", SOON).await;
    let log = relay.stderr().to_lowercase();
    assert!(log.contains("certificate") || log.contains("tls"), "{log}");
    relay.terminate(SOON).await;
    assert_eq!(pipeline.server.read("orders").await.expect("records").len(), 0);
    let relay = Relay::spawn(&pipeline.with_sink(&pipeline.server.sink_over_tls(true)));
    pipeline.await_values("orders", "a", &["1", "2"]).await;
    row(&pipeline.server, "TLS", "another name is refused, the right one is used").await;
    relay.terminate(SOON).await;
}

/// Names of destinations that some server does not take. Each event is published, or parked; none is lost, and the
/// others flow.
pub(super) async fn names_that_the_server_does_not_take_stop_nothing<S: SinkServer>() {
    let pipeline = SinkPipeline::<S>::start("names").await;
    let relay = pipeline.run();
    let long = "x".repeat(300);
    let names = [
        "",
        " ",
        "a b",
        "a\tb",
        "a\r\nPUB b 1",
        "*",
        ">",
        "a.*",
        "..",
        "/",
        "a//b",
        "é",
        "%",
        &long,
    ];
    pipeline.insert("orders", "b", &[0]).await;
    for (number, name) in names.iter().enumerate() {
        let sql = "insert into outbox (aggregate_type, aggregate_id, event_type, payload) \
                   values ($1::text, $2::text, 'T', '1')";
        let id = format!("n{number}");
        pipeline.sql.execute(sql, &[name, &id.as_str()]).await.expect("an event");
    }
    pipeline.insert("orders", "b", &[1, 2]).await;
    pipeline.await_values("orders", "b", &["0", "1", "2"]).await;
    pipeline.resolved().await;
    let parked = pipeline.parked().await;
    let status = relay.status().await.expect("a status");
    let accepted = status["pipelines"][0]["published_total"].as_u64().unwrap_or(0);
    let parked = parked.split(", ").filter(|row| !row.is_empty()).count();
    // Where a destination is found missing after sending, what was in flight is repeated.
    let all = 3 + names.len();
    let found = usize::try_from(accepted).expect("a small number") + parked;
    assert!((all..=all + all * S::REPEATS_PER_LOSS).contains(&found), "{found} of {all}: {status}");
    row(&pipeline.server, "names", &format!("{parked} of {} parked, others flow", names.len()))
        .await;
    relay.terminate(SOON).await;
}

/// Line breaks in headers are published as they are, or the event is parked: they never become another header.
pub(super) async fn line_breaks_in_headers_inject_nothing<S: SinkServer>() {
    let pipeline = SinkPipeline::<S>::start("breaks").await;
    let relay = pipeline.run();
    let rows = [
        r#"{"fine": "x"}"#,
        r#"{"value": "a\r\nInjected: yes"}"#,
        r#"{"na\r\nInjected: yes": "b"}"#,
        r#"{"": "empty"}"#,
        r#"{"a b:c": "d", "ümlaut": "ö", "nul": "x\u0001y"}"#,
    ];
    for (number, headers) in rows.iter().enumerate() {
        let sql = "insert into outbox (aggregate_type, aggregate_id, event_type, payload, headers) \
                   values ('orders', $1::text, 'T', '1', $2::text::json)";
        let id = format!("h{number}");
        pipeline.sql.execute(sql, &[&id.as_str(), headers]).await.expect("an event");
    }
    pipeline.insert("orders", "b", &[1]).await;
    pipeline.await_values("orders", "b", &["1"]).await;
    pipeline.resolved().await;
    let records = pipeline.server.read("orders").await.expect("records");
    let parked = pipeline.parked().await;
    for (number, headers) in rows.iter().enumerate() {
        let id = format!("h{number}");
        let record = records.iter().find(|record| record.key_text() == Some(&id));
        let is_parked = parked.split(", ").any(|row| row.starts_with(&format!("{id} ")));
        assert!(record.is_some() != is_parked, "{headers}: published or parked");
        let Some(record) = record else { continue };
        let injected = record.headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("injected"));
        assert!(!injected, "{headers}: {:?}", record.headers);
        let written: serde_json::Map<String, Value> = serde_json::from_str(headers).expect("JSON");
        for (name, value) in written {
            assert_eq!(record.header(&name), value.as_str(), "{headers}: {:?}", record.headers);
        }
    }
    assert!(!parked.contains("h0 "), "a harmless header");
    row(&pipeline.server, "line breaks in headers", "published as they are, or parked").await;
    relay.terminate(SOON).await;
}

/// 40 MB wait, with a bound of 8 MiB in flight.
pub(super) async fn memory_is_bounded_while_the_server_is_frozen<S: SinkServer>() {
    let pipeline = SinkPipeline::<S>::start("memory").await;
    let relay = pipeline.run();
    pipeline.insert("orders", "a", &[1]).await;
    pipeline.await_values("orders", "a", &["1"]).await;
    let (before, _) = relay.memory_kib();
    pipeline.server.freeze();
    let sql = "insert into outbox (aggregate_type, aggregate_id, event_type, payload) \
               select 'orders', (i % 100)::text, 'T', to_json(repeat(md5(i::text), 63)) \
               from generate_series(1, 20000) i";
    pipeline.sql.batch(sql).await;
    let full = |status: &Value| {
        let bytes = status["pipelines"][0]["in_flight_bytes"].as_u64().unwrap_or(0);
        bytes > 2_000_000 || state(status) == "broker_down"
    };
    relay.await_status("full flight", SOON, full).await;
    // What the relay would take beyond its bound, it would take now.
    let until = std::time::Instant::now() + Duration::from_secs(3);
    let peak = await_that("three seconds", SOON, || async {
        let (_, peak) = relay.memory_kib();
        if std::time::Instant::now() > until { Ok(peak) } else { Err("not yet") }
    })
    .await;
    pipeline.server.thaw();
    pipeline.await_records("orders", 20_001).await;
    pipeline.resolved().await;
    let grown = peak.saturating_sub(before) >> 10;
    assert!(grown < 64, "{grown} MiB more than the {} MiB at rest", before >> 10);
    row(&pipeline.server, "back-pressure", &format!("40 MB waiting, {grown} MiB more memory"))
        .await;
    relay.terminate(SOON).await;
}

pub(super) async fn check_names_what_is_wrong<S: SinkServer>() {
    let mut pipeline = SinkPipeline::<S>::start("check").await;
    let config = pipeline.config.replace("topic = \"{aggregate_type}\"", "topic = \"orders\"");
    let said = |config: &str| {
        let output = postrider(config, &["check"]);
        (output.status.code(), String::from_utf8_lossy(&output.stdout).into_owned())
    };
    let (code, good) = said(&config);
    assert_eq!(code, Some(0), "{good}");
    if S::DESTINATIONS_ARE_MADE {
        let (code, missing) = said(&config.replace("topic = \"orders\"", "topic = \"nowhere\""));
        assert!(code == Some(1) && missing.contains("nowhere"), "{code:?}: {missing}");
    }
    pipeline.server.kill().await;
    let (code, down) = said(&config);
    assert!(code == Some(1) && down.contains("127.0.0.1"), "{code:?}: {down}");
    row(&pipeline.server, "check", "good, missing destination, down").await;
}

/// Events in both modes of CloudEvents, read by the SDK for Python.
pub(super) async fn cloud_events_are_read_by_their_own_library<S: SinkServer>() {
    let pipeline = SinkPipeline::<S>::start("cloud_events").await;
    let sink = pipeline.server.sink(pipeline.server.port());
    for (mode, number) in [("binary", 1), ("structured", 2)] {
        let format = format!(
            "[.format]\nkind = \"cloudevents\"\nmode = \"{mode}\"\nsource = \"/shop/{{aggregate_type}}\"\n"
        );
        let relay = Relay::spawn(&pipeline.with_sink(&format!("{sink}{format}")));
        let payload = "{\"n\": 1.50, \"big\": 123456789012345678901234567890, \"text\": \"Größe\"}";
        let sql = format!(
            "insert into outbox (aggregate_type, aggregate_id, event_type, payload) \
             values ('orders', 'Größe \"{number}\" 50%', 'Placed', '{payload}')"
        );
        pipeline.sql.batch(&sql).await;
        let records = pipeline.await_records("orders", number).await;
        let event = read_cloud_event(S::CLOUD_EVENTS, &records[number - 1]).await;
        let attribute = |name: &str| event["attributes"][name].as_str().unwrap_or_default();
        assert_eq!(attribute("specversion"), "1.0", "{event}");
        assert_eq!(attribute("id"), number.to_string(), "{event}");
        assert_eq!(attribute("source"), "/shop/orders", "{event}");
        assert_eq!(attribute("type"), "Placed", "{event}");
        assert_eq!(attribute("subject"), format!("Größe \"{number}\" 50%"), "{event}");
        assert!(attribute("time").contains("+00:00"), "{event}");
        assert!(attribute("datacontenttype").starts_with("application/json"), "{event}");
        assert_eq!(Some(attribute("position")), records[number - 1].header("position"), "{event}");
        let data = "{\"n\":1.5,\"big\":\"123456789012345678901234567890\",\"text\":\"Größe\"}";
        assert_eq!(event["data"].to_string(), data, "{event}");
        assert_eq!(relay.terminate(SOON).await.code, Some(0));
    }
    row(&pipeline.server, "CloudEvents", "binary and structured, read by the SDK for Python").await;
}

/// The event that the SDK makes of a record: its attributes as texts, and its data.
async fn read_cloud_event(binding: &str, record: &ReadRecord) -> Value {
    let headers: serde_json::Map<String, Value> = record
        .headers
        .iter()
        .filter_map(|(name, value)| {
            let value = String::from_utf8(value.clone()?).ok()?;
            Some((name.clone(), Value::from(value)))
        })
        .collect();
    let value = STANDARD.encode(record.value.as_deref().unwrap_or_default());
    let message = json!({
        "binding": binding, "headers": headers, "key": record.key_text(), "value": value,
    });
    let mut reader =
        Process::spawn(python("formats/cloud_events.py"), "", &[], &format!("{message}\n"));
    assert_eq!(reader.gives_up().await, Some(0), "{} {message}", reader.log());
    serde_json::from_str(&reader.output())
        .unwrap_or_else(|error| panic!("{error}: {} {message}", reader.log()))
}
