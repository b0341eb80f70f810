//! What only RabbitMQ has: bindings, alarms, queues that refuse, limits of AMQP, and the lock queue.

use super::pipeline::{SinkPipeline, state, values_of};
use super::rabbitmq::RabbitServer;
use super::server::SinkServer;
use crate::await_that::{SOON, await_that};
use crate::load::Load;
use crate::proxy::{Mode, Proxy};
use crate::relay::{Relay, postrider, postrider_ok};
use serde_json::{Value, json};
use std::time::Duration;

const EXCHANGE: &str = "exchange = \"events\"\n";

/// A pipeline to exchange `events` of type `topic`, and queue `orders` that gets what is named so.
async fn with_exchange(test: &str) -> SinkPipeline<RabbitServer> {
    let server = RabbitServer::start().await;
    declare_exchange(&server).await;
    server.create("orders").await;
    bind(&server, "orders", "orders").await;
    let sink = server.sink_with(None, EXCHANGE);
    SinkPipeline::to(server, test, &sink).await
}

async fn declare_exchange(server: &RabbitServer) {
    let exchange = json!({ "type": "topic", "durable": true });
    server.rabbitmq.api_ok("PUT", "/api/exchanges/%2f/events", &exchange).await;
}

async fn bind(server: &RabbitServer, routing_key: &str, queue: &str) {
    let path = format!("/api/bindings/%2f/e/events/q/{queue}");
    server.rabbitmq.api_ok("POST", &path, &json!({ "routing_key": routing_key })).await;
}

/// Waits until the relay waits for the broker, for a reason with these words.
async fn await_down(relay: &Relay, words: &str) {
    relay.await_log(words, SOON).await;
    relay.await_state("broker_down", SOON).await;
}

#[tokio::test]
async fn unroutable_event_is_parked_and_published_once_its_binding_exists() {
    let mut pipeline = with_exchange("unroutable").await;
    pipeline.retry_each_second();
    let relay = pipeline.run();
    pipeline.insert("orders", "b", &[1]).await;
    pipeline.await_values("orders", "b", &["1"]).await;
    pipeline.insert("nowhere", "a", &[2, 3]).await;
    pipeline.insert("orders", "b", &[4]).await;
    pipeline.await_values("orders", "b", &["1", "4"]).await;
    pipeline.await_parked("a waiting, a behind").await;
    relay.await_log("NO_ROUTE", SOON).await;
    bind(&pipeline.server, "nowhere", "orders").await;
    pipeline.await_values("orders", "a", &["2", "3"]).await;
    pipeline.await_parked("").await;
    pipeline.resolved().await;
    relay.terminate(SOON).await;
}

#[tokio::test]
async fn exchange_that_is_deleted_is_waited_for() {
    let pipeline = with_exchange("exchange").await;
    let relay = pipeline.run();
    pipeline.insert("orders", "a", &[1]).await;
    pipeline.await_values("orders", "a", &["1"]).await;
    let path = "/api/exchanges/%2f/events";
    pipeline.server.rabbitmq.api_ok("DELETE", path, &Value::Null).await;
    pipeline.insert("orders", "a", &[2, 3]).await;
    await_down(&relay, "no exchange 'events'").await;
    let checked = postrider(&pipeline.config, &["check"]);
    let shown = String::from_utf8_lossy(&checked.stdout).into_owned();
    assert!(checked.status.code() == Some(1) && shown.contains("exchanges declare"), "{shown}");
    declare_exchange(&pipeline.server).await;
    bind(&pipeline.server, "orders", "orders").await;
    pipeline.await_values("orders", "a", &["1", "2", "3"]).await;
    relay.await_state("streaming", SOON).await;
    pipeline.resolved().await;
    assert_eq!(pipeline.parked().await, "");
    relay.terminate(SOON).await;
}

/// Messages are returned, and others of the same aggregates get to the queue a moment later.
#[tokio::test]
async fn binding_that_is_removed_for_a_moment_swaps_and_loses_nothing() {
    let pipeline = with_exchange("binding").await;
    let relay = pipeline.run();
    let load = Load::start(&pipeline.plan(), 1);
    for round in 1..=5 {
        relay
            .await_status("more events", SOON, |status| {
                status["pipelines"][0]["published_total"].as_u64() >= Some(round * 500)
            })
            .await;
        let path = "/api/bindings/%2f/e/events/q/orders/orders";
        pipeline.server.rabbitmq.api_ok("DELETE", path, &Value::Null).await;
        relay.await_log("NO_ROUTE", SOON).await;
        bind(&pipeline.server, "orders", "orders").await;
    }
    let ledger = load.stop().await;
    pipeline.arrived(&ledger).await.assert_balanced(0);
    relay.await_state("streaming", SOON).await;
    assert_eq!(pipeline.parked().await, "");
    relay.terminate(SOON).await;
}

#[tokio::test]
async fn memory_alarm_is_reported_and_nothing_is_lost() {
    let pipeline = SinkPipeline::<RabbitServer>::start("alarm").await;
    let relay = pipeline.run();
    pipeline.insert("orders", "a", &[1]).await;
    pipeline.await_values("orders", "a", &["1"]).await;
    let rabbitmq = &pipeline.server.rabbitmq;
    rabbitmq.ctl(&["set_vm_memory_high_watermark", "absolute", "1MB"]);
    let numbers: Vec<u32> = (2..=500).collect();
    pipeline.insert("orders", "a", &numbers).await;
    await_down(&relay, "alarm").await;
    assert!(relay.stderr().contains("vm_memory_high_watermark"), "a hint");
    rabbitmq.ctl(&["set_vm_memory_high_watermark", "0.9"]);
    pipeline.await_records("orders", 500).await;
    let records = pipeline.server.read("orders").await.expect("records");
    let expected: Vec<String> = (1..=500).map(|number: u32| number.to_string()).collect();
    assert_eq!(values_of(&records, "a"), expected);
    relay.await_state("streaming", SOON).await;
    assert_eq!(records.len(), 500, "each once");
    relay.terminate(SOON).await;
}

#[tokio::test]
async fn full_queue_that_refuses_keeps_the_order_of_each_aggregate() {
    let server = RabbitServer::start().await;
    let limits = json!({ "x-max-length": 10, "x-overflow": "reject-publish" });
    server.rabbitmq.create_queue("orders", "quorum", limits).await;
    let sink = server.sink(None);
    let pipeline = SinkPipeline::to(server, "full", &sink).await;
    let relay = pipeline.run();
    let sql = "insert into outbox (aggregate_type, aggregate_id, event_type, payload) \
               select 'orders', (i % 7)::text, 'T', to_json(i) from generate_series(1, 400) i";
    pipeline.sql.batch(sql).await;
    await_down(&relay, "refuses messages").await;
    // Each read makes room for a few more.
    let records = pipeline.await_records("orders", 400).await;
    for aggregate in 0..7_u32 {
        let expected: Vec<String> =
            (1..=400).filter(|n| n % 7 == aggregate).map(|n: u32| n.to_string()).collect();
        let of = |r: &&crate::topic::ReadRecord| r.key_text() == Some(&aggregate.to_string());
        let found: Vec<&str> = records.iter().filter(of).filter_map(|r| r.value_text()).collect();
        assert_eq!(found, expected, "each once, in order");
    }
    relay.await_state("streaming", SOON).await;
    pipeline.resolved().await;
    assert_eq!(pipeline.parked().await, "");
    relay.terminate(SOON).await;
}

#[tokio::test]
async fn second_process_waits_for_the_lock_until_the_first_one_has_ended() {
    let lock = "lock_queue = \"postrider.shared\"\n";
    let mut pipeline = SinkPipeline::<RabbitServer>::start("lock").await;
    pipeline.config = pipeline.with_sink(&pipeline.server.sink_with(None, lock));
    let first = pipeline.run();
    let load = Load::start(&pipeline.plan(), 1);
    first
        .await_status("that it publishes", SOON, |status| {
            status["pipelines"][0]["published_total"].as_u64() > Some(500)
        })
        .await;
    // A server for the second pipeline's destination is not needed: it is the first one's.
    let other = pipeline.server.neighbour();
    let sink = other.sink_with(None, lock);
    let second_pipeline = SinkPipeline::to(other, "lock2", &sink).await;
    second_pipeline.server.create("second").await;
    second_pipeline.insert("second", "a", &[1, 2]).await;
    let second = second_pipeline.run();
    await_down(&second, "postrider.shared").await;
    assert_eq!(second_pipeline.server.read("second").await.expect("records").len(), 0);
    first.kill().await;
    second_pipeline.await_values("second", "a", &["1", "2"]).await;
    second.await_state("streaming", SOON).await;
    drop(load.stop().await);
    second.terminate(SOON).await;
}

#[tokio::test]
async fn queues_of_each_type_get_messages_with_all_properties() {
    let server = RabbitServer::start().await;
    for kind in ["quorum", "classic", "stream"] {
        server.rabbitmq.create_queue(kind, kind, json!({})).await;
    }
    let sink = server.sink(None);
    let pipeline = SinkPipeline::to(server, "types", &sink).await;
    let relay = pipeline.run();
    let numbers: Vec<u32> = (1..=100).collect();
    for kind in ["quorum", "classic", "stream"] {
        pipeline.insert(kind, "a", &numbers).await;
    }
    let rabbitmq = &pipeline.server.rabbitmq;
    for kind in ["quorum", "classic", "stream"] {
        await_that(&format!("100 messages in queue {kind}"), SOON, || async {
            let (_, queue) =
                rabbitmq.api("GET", &format!("/api/queues/%2f/{kind}"), &Value::Null).await?;
            if queue["messages"] == 100 { Ok(()) } else { Err(queue["messages"].to_string()) }
        })
        .await;
    }
    let body = json!({ "count": 1, "ackmode": "ack_requeue_true", "encoding": "auto" });
    let messages = rabbitmq.api_ok("POST", "/api/queues/%2f/quorum/get", &body).await;
    let properties = &messages[0]["properties"];
    let expected = [
        ("message_id", json!("1")),
        ("type", json!("T")),
        ("app_id", json!("postrider")),
        ("content_type", json!("application/json")),
        ("delivery_mode", json!(2)),
    ];
    for (name, value) in expected {
        assert_eq!(properties[name], value, "{properties}");
    }
    let ms = properties["headers"]["timestamp_in_ms"].as_i64().expect("milliseconds");
    assert_eq!(properties["timestamp"].as_i64(), Some(ms / 1_000), "{properties}");
    assert_eq!(properties["headers"]["key"], "a", "{properties}");
    pipeline.resolved().await;
    relay.terminate(SOON).await;
}

/// A message that the server refuses closes the channel: such an event is parked before it is sent, or found by sending
/// the messages one at a time.
#[tokio::test]
async fn events_that_the_server_would_refuse_are_parked_alone() {
    let server = RabbitServer::start_with("max_message_size = 30000").await;
    server.create("orders").await;
    let sink = server.sink(None);
    let pipeline = SinkPipeline::to(server, "refused", &sink).await;
    let relay = pipeline.run();
    pipeline.insert("orders", "b", &[1]).await;
    // Above the server's limit, of which the sink does not know.
    pipeline.insert_large("orders", "large", 60_000).await;
    let row = "insert into outbox (aggregate_type, aggregate_id, event_type, payload, headers) \
               values ('orders', $1::text, 'T', '1', $2::text::json)";
    let wide = json!({ "wide": "x".repeat(200_000) }).to_string();
    let routes = json!({ "CC": "elsewhere" }).to_string();
    for (aggregate, headers) in [("wide", &wide), ("routes", &routes)] {
        pipeline.sql.execute(row, &[&aggregate, headers]).await.expect("an event");
    }
    pipeline.insert("orders", "b", &[2, 3]).await;
    pipeline.await_values("orders", "b", &["1", "2", "3"]).await;
    pipeline.await_parked("large waiting, wide waiting, routes waiting").await;
    pipeline.resolved().await;
    let shown = postrider_ok(&pipeline.config, &["parked", "list"]);
    assert!(shown.contains("too_large") && shown.contains("invalid_record"), "{shown}");
    relay.terminate(SOON).await;
}

/// A payload above RabbitMQ's default limit, which is the sink's too.
#[tokio::test]
async fn event_of_seventeen_megabytes_is_parked_without_closing_the_channel() {
    let pipeline = SinkPipeline::<RabbitServer>::start("seventeen").await;
    let relay = pipeline.run();
    pipeline.insert_large("orders", "large", 17 << 20).await;
    pipeline.insert("orders", "b", &[1, 2]).await;
    pipeline.await_values("orders", "b", &["1", "2"]).await;
    pipeline.await_parked("large waiting").await;
    assert_ne!(state(&relay.status().await.expect("a status")), "broker_down");
    let log = pipeline.server.rabbitmq.log();
    assert!(!log.contains("PRECONDITION_FAILED"), "{log}");
    relay.terminate(SOON).await;
}

/// A queue is full. The report names it, and the events of another queue are published meanwhile.
#[tokio::test]
async fn queue_that_refuses_is_named_and_other_queues_continue() {
    let server = RabbitServer::start().await;
    let limits = json!({ "x-max-length": 2, "x-overflow": "reject-publish" });
    server.rabbitmq.create_queue("orders", "quorum", limits).await;
    server.create("other").await;
    let sink = server.sink(None);
    let pipeline = SinkPipeline::to(server, "named", &sink).await;
    let relay = pipeline.run();
    let numbers: Vec<u32> = (1..=10).collect();
    pipeline.insert("orders", "a", &numbers).await;
    relay.await_log("waiting for topic \"orders\"", SOON).await;
    let status = relay.await_state("broker_down", SOON).await;
    let reason = status["pipelines"][0]["reason"].as_str().unwrap_or_default();
    assert!(reason.contains("refuses messages (basic.nack)"), "{status}");
    assert!(!relay.stderr().contains("broker not available"), "{}", relay.stderr());
    pipeline.insert("other", "b", &[1, 2]).await;
    pipeline.await_values("other", "b", &["1", "2"]).await;
    pipeline.await_records("orders", 10).await;
    relay.await_log("topic \"orders\" accepts records after", SOON).await;
    relay.await_state("streaming", SOON).await;
    let records = pipeline.server.read("orders").await.expect("records");
    let expected: Vec<String> = numbers.iter().map(ToString::to_string).collect();
    assert_eq!(values_of(&records, "a"), expected);
    assert_eq!(pipeline.parked().await, "");
    pipeline.resolved().await;
    relay.terminate(SOON).await;
}

/// Events were accepted for the frames of one connection, and the next one has smaller frames, in which the headers of
/// one of them have no room.
#[tokio::test]
async fn headers_that_a_new_connection_has_no_frame_for_are_parked_alone() {
    let server = RabbitServer::start().await;
    server.create("orders").await;
    let proxy = Proxy::start(server.rabbitmq.port(), None);
    let sink = server.sink_with(Some(proxy.port), "");
    let pipeline = SinkPipeline::to(server, "frames", &sink).await;
    let relay = pipeline.run();
    pipeline.insert("orders", "b", &[1]).await;
    pipeline.await_values("orders", "b", &["1"]).await;
    // For connections from now on.
    pipeline.server.rabbitmq.ctl(&["eval", "application:set_env(rabbit, frame_max, 8192)."]);
    proxy.set(Mode::Hole);
    let wide = json!({ "wide": "x".repeat(100_000) }).to_string();
    let row = "insert into outbox (aggregate_type, aggregate_id, event_type, payload, headers) \
               values ('orders', 'wide', 'T', '1', $1::text::json)";
    pipeline.sql.execute(row, &[&wide]).await.expect("an event");
    pipeline.insert("orders", "b", &[2, 3]).await;
    let waits = |status: &Value| status["pipelines"][0]["in_flight_events"].as_u64() >= Some(3);
    relay.await_status("all to be in flight", SOON, waits).await;
    proxy.cut();
    proxy.heal();
    pipeline.await_values("orders", "b", &["1", "2", "3"]).await;
    pipeline.await_parked("wide waiting").await;
    pipeline.resolved().await;
    assert!(!relay.stderr().contains("FRAME_ERROR"), "{}", relay.stderr());
    relay.await_state("streaming", SOON).await;
    relay.terminate(SOON).await;
}

/// Each answer takes a second, and a request several of them: more than a heartbeat, without any stop of the process.
#[tokio::test]
async fn slow_answers_to_requests_are_no_stop_of_the_process() {
    let server = RabbitServer::start().await;
    server.create("orders").await;
    let proxy = Proxy::start(server.rabbitmq.port(), None);
    let sink = server.sink_with(Some(proxy.port), "heartbeat = \"2s\"\n");
    let pipeline = SinkPipeline::to(server, "slow", &sink).await;
    proxy.set(Mode::Delay(Duration::from_millis(500)));
    let relay = pipeline.run();
    pipeline.insert("orders", "a", &[1, 2]).await;
    pipeline.await_values("orders", "a", &["1", "2"]).await;
    assert!(!relay.stderr().contains("stood still"), "{}", relay.stderr());
    pipeline.resolved().await;
    relay.terminate(SOON).await;
}

/// The server lets only clients with a certificate of its authority in: first beside a password, then the name in the
/// certificate is the user.
#[tokio::test]
async fn client_certificate_that_the_server_requires_is_shown() {
    let server = RabbitServer::start_with(
        "ssl_options.verify = verify_peer\nssl_options.fail_if_no_peer_cert = true\n\
         auth_mechanisms.1 = PLAIN\nauth_mechanisms.2 = EXTERNAL\nssl_cert_login_from = common_name",
    )
    .await;
    server.create("orders").await;
    let port = server.rabbitmq.tls_port();
    let ca = format!("ca_file = \"{}\"\n", server.rabbitmq.ca().display());
    let client = format!(
        "{ca}cert_file = \"{}\"\nkey_file = \"{}\"\n",
        server.rabbitmq.ca().with_file_name("client.pem").display(),
        server.rabbitmq.ca().with_file_name("client.key").display()
    );
    let user = format!("amqps://relay@localhost:{port}");
    let without = server.sink_at(&user, &ca);
    let pipeline = SinkPipeline::to(server, "rabbitmtls", &without).await;
    pipeline.insert("orders", "a", &[1]).await;
    let relay = pipeline.run();
    relay.await_state("broker_down", SOON).await;
    relay.terminate(SOON).await;
    assert_eq!(pipeline.server.read("orders").await.expect("records").len(), 0);
    let with = pipeline.server.sink_at(&user, &client);
    let relay = Relay::spawn(&pipeline.with_sink(&with));
    pipeline.await_values("orders", "a", &["1"]).await;
    relay.terminate(SOON).await;
    let external = format!(
        "[.sink]\nkind = \"rabbitmq\"\n[.sink.rabbitmq]\nurl = \"amqps://localhost:{port}\"\n{client}"
    );
    pipeline.insert("orders", "a", &[2]).await;
    let relay = Relay::spawn(&pipeline.with_sink(&external));
    pipeline.await_values("orders", "a", &["1", "2"]).await;
    relay.terminate(SOON).await;
}
