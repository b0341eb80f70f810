//! Tests of the private NATS, Redis, Valkey and RabbitMQ, by their plain protocols.

use crate::await_that::{SOON, await_that};
use crate::private::{Flavor, PrivateNats, PrivateRabbitMq, PrivateRedis, tls};
use serde_json::{Value, json};
use std::path::Path;
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;

/// How long a frozen server is given to answer.
const FROZEN: Duration = Duration::from_millis(300);

async fn connect(port: u16) -> TcpStream {
    TcpStream::connect(("127.0.0.1", port)).await.unwrap()
}

/// Sends a request through TLS, and reads as many bytes as are expected.
async fn exchange_by_tls(port: u16, ca: &Path, request: &[u8], expected: usize) -> Vec<u8> {
    let mut stream = tls(connect(port).await, ca, "localhost").await.unwrap();
    stream.write_all(request).await.unwrap();
    let mut answer = vec![0; expected];
    stream.read_exact(&mut answer).await.unwrap();
    answer
}

async fn assert_wrong_name(stream: TcpStream, ca: &Path) {
    let error = tls(stream, ca, "127.0.0.1").await.unwrap_err().to_string();
    assert!(error.contains("not valid for name"), "{error}");
}

/// Waits until the server closes a connection.
async fn await_end(stream: &mut TcpStream) {
    let read = async {
        let mut rest = Vec::new();
        drop(stream.read_to_end(&mut rest).await);
    };
    tokio::time::timeout(SOON, read).await.unwrap();
}

#[tokio::test]
async fn a_private_redis_comes_back_from_kill_9_with_its_stream_and_thaws() {
    for flavor in Flavor::ALL {
        let mut server = PrivateRedis::start(flavor, "maxmemory 100mb").await;
        let added = server.relay("XADD events 7-1 k before").await.unwrap();
        assert_eq!(added, "$3\r\n7-1\r\n");
        server.kill().await;
        server.admin("PING").await.unwrap_err();
        server.restart().await;
        assert_eq!(server.relay("XLEN events").await.unwrap(), ":1\r\n");
        let limit = server.admin("CONFIG GET maxmemory").await.unwrap();
        assert!(limit.contains("104857600"), "{limit}");

        server.freeze();
        assert!(tokio::time::timeout(FROZEN, server.admin("PING")).await.is_err());
        server.thaw();
        assert_eq!(server.admin("PING").await.unwrap(), "+PONG\r\n");

        server.stop().await;
        server.restart().await;
        assert_eq!(server.relay("XLEN events").await.unwrap(), ":1\r\n");
    }
}

#[tokio::test]
async fn a_private_redis_has_tls_and_rights() {
    for (flavor, version) in [(Flavor::Redis7, "v=7.0."), (Flavor::Valkey9, "v=9.")] {
        let server = PrivateRedis::start(flavor, "").await;
        assert!(server.version().contains(version), "{}", server.version());
        let login = b"AUTH relay secret\r\nPING\r\n";
        let answer = exchange_by_tls(server.tls_port(), &server.ca(), login, 12).await;
        assert_eq!(answer, b"+OK\r\n+PONG\r\n");
        assert_wrong_name(connect(server.tls_port()).await, &server.ca()).await;

        let refused = server.relay("FLUSHALL").await.unwrap();
        assert!(refused.starts_with("-NOPERM"), "{refused}");
        let mut open = connect(server.port()).await;
        open.write_all(b"AUTH relay secret\r\n").await.unwrap();
        open.read_exact(&mut [0; 5]).await.unwrap();
        server.allow(false).await;
        await_end(&mut open).await;
        let refused = server.relay("PING").await.unwrap_err();
        assert!(refused.contains("WRONGPASS"), "{refused}");
        server.allow(true).await;
        assert_eq!(server.relay("PING").await.unwrap(), "+PONG\r\n");
    }
}

#[tokio::test]
async fn a_private_nats_comes_back_from_kill_9_with_its_stream_and_thaws() {
    let mut server = PrivateNats::start("max_payload: 100000").await;
    let stream = json!({ "name": "EVENTS", "subjects": ["events.>"], "storage": "file" });
    let made = server.admin("$JS.API.STREAM.CREATE.EVENTS", &stream.to_string()).await.unwrap();
    assert!(!made.contains("\"error\""), "{made}");
    let store = async |server: &PrivateNats| {
        let answer = server.relay("events.a", "before").await?;
        let answer: Value = serde_json::from_str(&answer).map_err(|error| error.to_string())?;
        answer["seq"].as_u64().ok_or_else(|| answer.to_string())
    };
    assert_eq!(store(&server).await, Ok(1));
    server.kill().await;
    store(&server).await.unwrap_err();
    server.restart().await;
    assert_eq!(store(&server).await, Ok(2));

    server.freeze();
    assert!(tokio::time::timeout(FROZEN, store(&server)).await.is_err());
    server.thaw();
    let info = server.relay("$JS.API.STREAM.INFO.EVENTS", "").await.unwrap();
    let info: Value = serde_json::from_str(&info).unwrap();
    assert!(info["state"]["messages"].as_u64() >= Some(2), "{info}");
    server.stop().await;
    server.restart().await;
    server.relay("$JS.API.STREAM.INFO.EVENTS", "").await.unwrap();
}

#[tokio::test]
async fn a_private_nats_has_tls_and_rights() {
    let server = PrivateNats::start("").await;
    assert!(server.version().contains("v2."), "{}", server.version());
    // The server speaks first, without TLS.
    let greeted = async || {
        let mut stream = BufReader::with_capacity(4096, connect(server.tls_port()).await);
        let mut info = String::new();
        stream.read_line(&mut info).await.unwrap();
        assert!(info.contains("\"tls_available\":true"), "{info}");
        stream.into_inner()
    };
    let mut stream = tls(greeted().await, &server.ca(), "localhost").await.unwrap();
    let login = b"CONNECT {\"verbose\":false,\"user\":\"relay\",\"pass\":\"secret\"}\r\nPING\r\n";
    stream.write_all(login).await.unwrap();
    let mut answer = [0; 6];
    stream.read_exact(&mut answer).await.unwrap();
    assert_eq!(&answer, b"PONG\r\n");
    assert_wrong_name(greeted().await, &server.ca()).await;

    let refused = server.relay("other", "x").await.unwrap_err();
    assert!(refused.contains("Permissions Violation"), "{refused}");
    server.allow(false).await;
    tokio::time::timeout(SOON, stream.read_to_end(&mut Vec::new())).await.unwrap().ok();
    let refused = server.relay("$JS.API.INFO", "").await.unwrap_err();
    assert!(refused.contains("Authorization Violation"), "{refused}");
    server.allow(true).await;
    server.relay("$JS.API.INFO", "").await.unwrap();
}

#[tokio::test]
async fn a_private_rabbitmq_comes_back_from_kill_9_with_its_queue_and_thaws() {
    let mut server = PrivateRabbitMq::start("max_message_size = 100000").await;
    assert!(server.version().await.starts_with("4."), "{}", server.version().await);
    let name = std::fs::read_to_string(format!("/proc/{}/comm", server.pid())).unwrap();
    assert_eq!(name, "beam.smp\n");
    server.create_queue("kept", "quorum", json!({})).await;
    let message = json!({ "properties": { "delivery_mode": 2 }, "routing_key": "kept",
        "payload": "before", "payload_encoding": "string" });
    let publish = "/api/exchanges/%2f/amq.default/publish";
    let routed = server.api_ok("POST", publish, &message).await;
    assert_eq!(routed, json!({ "routed": true }));

    assert_amqp_answers(&server).await;
    server.kill().await;
    server.api("GET", "/api/overview", &Value::Null).await.unwrap_err();
    server.restart().await;
    assert_eq!(server.await_payloads("kept", 1).await, ["before"]);

    server.freeze();
    let overview = server.api("GET", "/api/overview", &Value::Null);
    assert!(tokio::time::timeout(FROZEN, overview).await.is_err());
    server.thaw();
    server.api_ok("GET", "/api/overview", &Value::Null).await;

    server.allow(false).await;
    let permissions = "/api/permissions/%2f/relay";
    assert_eq!(server.api("GET", permissions, &Value::Null).await.unwrap().0, 404);
    server.allow(true).await;
    assert_eq!(server.api_ok("GET", permissions, &Value::Null).await["write"], ".*");
    server.stop().await;
    await_that("the end of its epmd", SOON, || async {
        match TcpStream::connect(("127.0.0.1", server.epmd_port())).await {
            Ok(_) => Err("it answers"),
            Err(_) => Ok(()),
        }
    })
    .await;
}

/// Without and with TLS: the header of AMQP 0.9.1 is answered by a frame of method `connection.start`.
async fn assert_amqp_answers(server: &PrivateRabbitMq) {
    let header = b"AMQP\x00\x00\x09\x01";
    let start = |frame: &[u8]| (frame[0], frame[7..11].to_vec());
    let mut plain = connect(server.port()).await;
    plain.write_all(header).await.unwrap();
    let mut answer = [0; 11];
    plain.read_exact(&mut answer).await.unwrap();
    assert_eq!(start(&answer), (1, vec![0, 10, 0, 10]));
    let answer = exchange_by_tls(server.tls_port(), &server.ca(), header, 11).await;
    assert_eq!(start(&answer), (1, vec![0, 10, 0, 10]));
    assert_wrong_name(connect(server.tls_port()).await, &server.ca()).await;
}
