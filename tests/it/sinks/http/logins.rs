//! Who the receiver knows the sender by: signatures, tokens, certificates. And what events must not choose.

use super::receiver::{Received, Receiver, Reply};
use super::{HttpServer, with_keys};
use crate::await_that::{SOON, await_that};
use crate::relay::{Relay, postrider};
use crate::sinks::pipeline::SinkPipeline;
use crate::sinks::server::SinkServer as _;
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};

struct Secrets {
    directory: tempfile::TempDir,
}

impl Secrets {
    fn new() -> Self {
        Self { directory: tempfile::tempdir().expect("a directory") }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn write(&self, name: &str, content: &str) {
        use std::os::unix::fs::PermissionsExt as _;
        fs::write(self.path(name), content).expect("a file");
        let rights = fs::Permissions::from_mode(0o600);
        fs::set_permissions(self.path(name), rights).expect("rights");
    }

    fn key(&self, key: &str, name: &str) -> String {
        format!("{key} = \"{}\"\n", self.path(name).display())
    }
}

/// HMAC-SHA256 in base64, by openssl.
fn hmac(secret: &[u8], message: &[u8]) -> String {
    let hex: Vec<String> = secret.iter().map(|byte| format!("{byte:02x}")).collect();
    let hex = hex.concat();
    let mut command = Command::new("sh");
    let pipe =
        format!("openssl dgst -sha256 -mac HMAC -macopt hexkey:{hex} -binary | openssl base64 -A");
    command.args(["-c", &pipe]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().expect("openssl");
    child.stdin.take().expect("a pipe").write_all(message).expect("written");
    let output = child.wait_with_output().expect("openssl");
    String::from_utf8(output.stdout).expect("base64")
}

/// The signatures that a request must have for these secrets.
fn signatures(request: &Received, secrets: &[&[u8]]) -> String {
    let header = |name: &str| request.headers[name].to_str().expect("a text").to_owned();
    let mut message =
        format!("{}.{}.", header("webhook-id"), header("webhook-timestamp")).into_bytes();
    message.extend_from_slice(&request.body);
    let all: Vec<String> =
        secrets.iter().map(|secret| format!("v1,{}", hmac(secret, &message))).collect();
    all.join(" ")
}

/// Signatures are those of Standard Webhooks, by another implementation. A secret is replaced while the relay runs.
#[tokio::test]
async fn signatures_are_verified_and_secrets_are_replaced() {
    let (secrets, pipeline) = (Secrets::new(), SinkPipeline::<HttpServer>::start("signed").await);
    // "first secret of 24 bytes" and "other"
    secrets.write("hooks", "whsec_Zmlyc3Qgc2VjcmV0IG9mIDI0IGJ5dGVz\n");
    let sink = with_keys(&pipeline.server, &secrets.key("secret_file", "hooks"));
    let relay = Relay::spawn(&pipeline.with_sink(&sink));
    let signed = |request: &Received| {
        request.headers["webhook-signature"].to_str().expect("a text").to_owned()
    };
    pipeline.insert("orders", "a", &[1]).await;
    pipeline.await_records("orders", 1).await;
    let first = &pipeline.server.0.received("orders")[0];
    assert_eq!(signed(first), signatures(first, &[b"first secret of 24 bytes"]));
    assert_eq!(first.headers["idempotency-key"], first.headers["webhook-id"]);
    secrets.write("hooks", "whsec_Zmlyc3Qgc2VjcmV0IG9mIDI0IGJ5dGVz\nwhsec_b3RoZXI=\n");
    let mut number = 1;
    for (what, keys) in
        [("two", &[&b"first secret of 24 bytes"[..], b"other"][..]), ("the new one", &[b"other"])]
    {
        await_that(&format!("{what} in a signature"), SOON, || {
            number += 1;
            let (pipeline, number) = (&pipeline, number);
            async move {
                pipeline.insert("orders", "a", &[number]).await;
                pipeline.await_records("orders", number as usize).await;
                let last = pipeline.server.0.received("orders").pop().expect("a request");
                if signed(&last) == signatures(&last, keys) { Ok(()) } else { Err(signed(&last)) }
            }
        })
        .await;
        secrets.write("hooks", "whsec_b3RoZXI=\n");
    }
    relay.terminate(SOON).await;
}

#[tokio::test]
async fn tokens_and_passwords_are_sent_and_read_again() {
    let (secrets, pipeline) = (Secrets::new(), SinkPipeline::<HttpServer>::start("tokens").await);
    let expected = Arc::new(Mutex::new("Bearer one".to_owned()));
    let wanted = Arc::clone(&expected);
    pipeline.server.0.script(move |request| {
        let wanted = wanted.lock().expect("a header");
        let found = request.headers.get("authorization").and_then(|value| value.to_str().ok());
        (found != Some(wanted.as_str())).then(|| Reply::status(401))
    });
    secrets.write("token", "one\n");
    secrets.write("password", "pa:ss\n");
    let sink = with_keys(&pipeline.server, &secrets.key("token_file", "token"));
    let relay = Relay::spawn(&pipeline.with_sink(&sink));
    pipeline.insert("orders", "a", &[1]).await;
    pipeline.await_records("orders", 1).await;
    // The receiver has another one first; the new file is read at once after a 401.
    *expected.lock().expect("a header") = "Bearer two".to_owned();
    secrets.write("token", "two\n");
    pipeline.insert("orders", "a", &[2]).await;
    pipeline.await_records("orders", 2).await;
    assert!(!relay.stderr().contains("Bearer"), "no secrets in the log");
    relay.terminate(SOON).await;
    // "postrider:pa:ss"
    *expected.lock().expect("a header") = "Basic cG9zdHJpZGVyOnBhOnNz".to_owned();
    let keys = format!("username = \"postrider\"\n{}", secrets.key("password_file", "password"));
    let relay = Relay::spawn(&pipeline.with_sink(&with_keys(&pipeline.server, &keys)));
    pipeline.insert("orders", "a", &[3]).await;
    pipeline.await_records("orders", 3).await;
    let shown =
        postrider(&pipeline.with_sink(&with_keys(&pipeline.server, &keys)), &["config", "show"]);
    assert!(!String::from_utf8_lossy(&shown.stdout).contains("pa:ss"));
    relay.terminate(SOON).await;
}

/// A token is requested once, and once again when the receiver refuses it.
#[tokio::test]
async fn client_credentials_are_exchanged_for_a_token() {
    let (secrets, pipeline) = (Secrets::new(), SinkPipeline::<HttpServer>::start("oauth").await);
    let issued = Arc::new(Mutex::new((0, 1)));
    let state = Arc::clone(&issued);
    pipeline.server.0.script(move |request| {
        let mut state = state.lock().expect("a state");
        let found = request.headers.get("authorization").and_then(|value| value.to_str().ok());
        if request.path == "/token" {
            // "relay:hu%2Fsh", by RFC 6749 2.3.1
            if found != Some("Basic cmVsYXk6aHUlMkZzaA==") {
                return Some(Reply::status(401));
            }
            assert_eq!(request.text(), "grant_type=client_credentials&scope=events%20write");
            state.0 += 1;
            let body = format!(
                "{{\"access_token\": \"t{}\", \"token_type\": \"Bearer\", \"expires_in\": 3600}}",
                state.0
            );
            return Some(Reply { body: body.into_bytes(), ..Reply::status(200) });
        }
        (found != Some(format!("Bearer t{}", state.1).as_str())).then(|| Reply::status(401))
    });
    secrets.write("client", "hu/sh\n");
    let keys = format!(
        "[.sink.http.oauth]\ntoken_url = \"http://127.0.0.1:{}/token\"\nclient_id = \"relay\"\n\
         scope = \"events write\"\n{}",
        pipeline.server.0.port,
        secrets.key("client_secret_file", "client")
    );
    let relay = Relay::spawn(&pipeline.with_sink(&with_keys(&pipeline.server, &keys)));
    let numbers: Vec<u32> = (1..=100).collect();
    pipeline.insert("orders", "a", &numbers).await;
    pipeline.await_records("orders", 100).await;
    assert_eq!(issued.lock().expect("a state").0, 1, "one token for all");
    issued.lock().expect("a state").1 = 2;
    pipeline.insert("orders", "a", &[101]).await;
    pipeline.await_records("orders", 101).await;
    assert_eq!(issued.lock().expect("a state").0, 2);
    assert_eq!(pipeline.parked().await, "");
    relay.terminate(SOON).await;
}

#[tokio::test]
async fn client_certificates_are_shown_and_read_again() {
    let server = HttpServer(Receiver::start_with(true).await);
    server.create("orders").await;
    let tls = server.sink_over_tls(true);
    let directory = server.0.certificates.path().to_owned();
    let pipeline = SinkPipeline::to(server, "mtls", &tls).await;
    let relay = pipeline.run();
    pipeline.insert("orders", "a", &[1]).await;
    relay.await_state("broker_down", SOON).await;
    relay.terminate(SOON).await;
    let secrets = Secrets::new();
    let copy = |from: &str, to: &Path| {
        fs::write(to, fs::read(directory.join(from)).expect("a file")).expect("a file");
    };
    copy("renewed.crt", &secrets.path("client.crt"));
    secrets.write("client.key", &fs::read_to_string(directory.join("renewed.key")).expect("a key"));
    let keys = secrets.key("cert_file", "client.crt") + &secrets.key("key_file", "client.key");
    let relay = Relay::spawn(&pipeline.with_sink(&format!("{tls}{keys}")));
    // It is of another authority.
    relay.await_state("broker_down", SOON).await;
    assert!(pipeline.server.0.received("orders").is_empty());
    copy("client.crt", &secrets.path("client.crt"));
    secrets.write("client.key", &fs::read_to_string(directory.join("client.key")).expect("a key"));
    pipeline.await_values("orders", "a", &["1"]).await;
    relay.terminate(SOON).await;
}

/// Where the topic is the URL, an event must not lead into the network of the relay, neither by address nor by name.
#[tokio::test]
async fn events_do_not_choose_private_addresses() {
    let pipeline = SinkPipeline::<HttpServer>::start("private").await;
    let port = pipeline.server.0.port;
    let sink = "[.sink]\nkind = \"http\"\n[.sink.http]\ntopic = \"url\"\n";
    let topics = [
        format!("http://127.0.0.1:{port}/hooks/orders"),
        format!("http://[::ffff:127.0.0.1]:{port}/hooks/orders"),
        format!("http://localhost:{port}/hooks/orders"),
        format!("http://0:{port}/hooks/orders"),
        format!("http://2130706433:{port}/hooks/orders"),
        "no URL".to_owned(),
    ];
    let relay = Relay::spawn(&pipeline.with_sink(sink));
    for (topic, number) in topics.iter().zip(0..) {
        pipeline.insert(topic, &format!("k{number}"), &[number]).await;
    }
    await_that("all to be parked", SOON, || async {
        let parked = pipeline.parked().await;
        if parked.split(", ").count() == topics.len() { Ok(()) } else { Err(parked) }
    })
    .await;
    pipeline.resolved().await;
    assert_eq!(pipeline.server.0.connections(), 0, "nothing was connected to");
    relay.terminate(SOON).await;
    let relay =
        Relay::spawn(&pipeline.with_sink(&format!("{sink}private_addresses = \"allowed\"\n")));
    pipeline.insert(&topics[0], "x", &[100]).await;
    pipeline.insert(&topics[2], "y", &[200]).await;
    pipeline.await_records("orders", 2).await;
    relay.terminate(SOON).await;
}

/// Headers of events do not become those of the connection or of a login.
#[tokio::test]
async fn reserved_headers_are_parked_unless_they_have_a_prefix() {
    let pipeline = SinkPipeline::<HttpServer>::start("reserved").await;
    let relay = pipeline.run();
    pipeline.insert("orders", "b", &[0]).await;
    for (name, number) in
        ["Authorization", "host", "webhook-id", "Transfer-Encoding"].iter().zip(0..)
    {
        let sql = "insert into outbox (aggregate_type, aggregate_id, event_type, payload, headers) \
                   values ('orders', $1::text, 'T', '1', json_build_object($2::text, 'forged'))";
        let id = format!("h{number}");
        pipeline.sql.execute(sql, &[&id.as_str(), name]).await.expect("an event");
    }
    pipeline.await_parked("h0 waiting, h1 waiting, h2 waiting, h3 waiting").await;
    assert_eq!(pipeline.server.0.received("orders").len(), 1);
    relay.terminate(SOON).await;
    let sink = with_keys(&pipeline.server, "header_prefix = \"x-event-\"\n");
    let config = pipeline.with_sink(&sink);
    let relay = Relay::spawn(&config);
    let retry = ["parked", "retry", "--all", "--reason", "prefix", "--yes"];
    crate::relay::postrider_ok(&config, &retry);
    pipeline.await_parked("").await;
    let received = pipeline.server.0.received("orders");
    let of = |key: &str| {
        received.iter().find(|request| request.header("x-event-key").as_deref() == Some(key))
    };
    assert_eq!(
        of("h0").and_then(|request| request.header("x-event-authorization")).as_deref(),
        Some("forged")
    );
    assert!(of("h0").is_some_and(|request| !request.headers.contains_key("authorization")));
    relay.terminate(SOON).await;
}
