//! Requests that are not stored, clients that do nothing, and what the log says of them.

use super::sender::now;
use super::{Hooks, SECRET};
use crate::await_that::{SOON, await_that};
use crate::server::Version;
use std::fmt::Write as _;
use std::io::Write;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

/// Everything that this process logs, in the order of its lines.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl Log {
    /// Takes the lines of all threads, down to the finest.
    fn begin() -> Self {
        let log = Self::default();
        let writer = log.clone();
        let subscriber = tracing_subscriber::fmt()
            .json()
            .with_max_level(tracing_subscriber::filter::LevelFilter::TRACE)
            .with_writer(move || writer.clone())
            .finish();
        tracing::subscriber::set_global_default(subscriber).expect("the only subscriber");
        log
    }

    fn text(&self) -> String {
        let bytes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

#[tokio::test]
async fn a_request_that_is_not_signed_well_is_refused_and_not_stored() {
    let hooks = Hooks::start(Version::Pg17, "hook_refused").await;
    let sender = hooks.receiver.sender();
    let wrong = sender.with_secret("whsec_YW5vdGhlciBzZWNyZXQ=");
    let body = "{\"n\": 1}";
    let without = |name: &str| {
        let mut headers = sender.signed("msg_1", body);
        headers.retain(|(known, _)| *known != name);
        headers
    };
    let twice = [without(""), vec![("Webhook-Id", "msg_1".to_owned())]].concat();
    for (what, headers, code) in [
        ("another secret", wrong.signed("msg_1", body), 401),
        ("another body", sender.signed("msg_1", "{\"n\": 2}"), 401),
        ("no signature", without("Webhook-Signature"), 401),
        ("no time", without("Webhook-Timestamp"), 401),
        ("six minutes old", sender.signed_at("msg_1", now() - 360, body), 401),
        ("six minutes early", sender.signed_at("msg_1", now() + 360, body), 401),
        ("no id", without("Webhook-Id"), 400),
        ("two ids", twice, 400),
        ("a long id", sender.signed(&"a".repeat(2000), body), 400),
    ] {
        let answer = sender.post(&headers, body.as_bytes()).await.expect("an answer");
        assert_eq!(answer.code, code, "{what}: {answer:?}");
        assert!(!answer.body.contains("msg_1"), "{what}: {answer:?}");
    }
    let good = sender.signed("msg_1", body);
    for (request, code) in
        [("POST /", 404), ("POST /hooks/", 404), ("GET /hooks", 405), ("PUT /hooks", 405)]
    {
        let answer = sender.ask(request, &good, body.as_bytes()).await.expect("an answer");
        assert_eq!(answer.code, code, "{request}: {answer:?}");
        assert_eq!(answer.head.contains("\r\nallow: post\r\n"), code == 405, "{answer:?}");
    }
    assert_eq!(hooks.count().await, 0);
    assert_eq!(hooks.receiver.status().totals.refused_total, 13);
    // The same message, as it should be; a query is no part of the path.
    let answer = sender.ask("POST /hooks?a=b", &good, body.as_bytes()).await.expect("an answer");
    assert_eq!((answer.code, hooks.count().await), (204, 1));
    hooks.receiver.stop().await;
}

#[tokio::test]
async fn a_body_that_is_too_large_is_refused_and_its_sender_sees_the_answer() {
    let hooks = Hooks::start(Version::Pg17, "hook_large").await;
    let sender = hooks.receiver.sender();
    for (id, bytes, code) in [("msg_1", 64 << 10, 204), ("msg_2", (64 << 10) + 1, 413)] {
        assert_eq!(sender.sent(id, &"a".repeat(bytes)).await.code, code, "{bytes} bytes");
    }
    // Far more than the buffers of a connection hold.
    assert_eq!(sender.sent("msg_3", &"a".repeat(8 << 20)).await.code, 413);
    // In chunks, without a length in the header.
    let mut request = String::from("POST /hooks HTTP/1.1\r\nHost: hooks\r\n");
    let body = "a".repeat(100_000);
    for (name, value) in sender.signed("msg_4", &body) {
        write!(request, "{name}: {value}\r\n").expect("a text");
    }
    let length = body.len();
    write!(request, "Transfer-Encoding: chunked\r\n\r\n{length:x}\r\n{body}\r\n0\r\n\r\n")
        .expect("a text");
    assert_eq!(sender.raw(request.as_bytes()).await.expect("an answer").code, 413);
    let (small, body) = (request.replace(&body, "{}").replace("186a0\r\n", "2\r\n"), "{}");
    let signed = sender.signed("msg_5", body);
    let lines: Vec<String> = small
        .lines()
        .map(|line| {
            let known = signed.iter().find(|(name, _)| line.starts_with(&format!("{name}:")));
            known.map_or_else(|| line.to_owned(), |(name, value)| format!("{name}: {value}"))
        })
        .collect();
    let small = lines.join("\r\n") + "\r\n";
    assert_eq!(sender.raw(small.as_bytes()).await.expect("an answer").code, 204, "{small}");
    assert_eq!(hooks.count().await, 2);
    hooks.receiver.stop().await;
}

#[tokio::test]
async fn clients_that_do_nothing_keep_no_sender_out() {
    const CONNECTIONS: usize = 8;
    let hooks = Hooks::start_with(Version::Pg17, "hook_slow", |_, config| {
        config.connections_max = CONNECTIONS;
    })
    .await;
    let sender = hooks.receiver.sender();
    let head = "POST /hooks HTTP/1.1\r\nHost: hooks\r\nContent-Length: 1000\r\n\r\n";
    for (what, begin) in
        [("idle", ""), ("in the header", "POST /hooks HTTP/1.1\r\nHost: "), ("in the body", head)]
    {
        let mut clients = Vec::new();
        for _ in 0..5 * CONNECTIONS {
            let mut client = sender.connect().await.expect("a connection");
            // One that is closed already is one less.
            drop(client.write_all(begin.as_bytes()).await);
            clients.push(client);
        }
        let start = Instant::now();
        for i in 0..20 {
            let answer = sender.sent(&format!("{what} {i}"), "{}").await;
            assert_eq!(answer.code, 204, "{what}: {answer:?}");
        }
        // No request waited until a client that does nothing was closed for being late.
        assert!(start.elapsed() < Duration::from_secs(5), "{what}: {:?}", start.elapsed());
        // All but the newest ones are closed; the others are by their deadline.
        for client in clients.iter_mut().take(4 * CONNECTIONS) {
            let closed = tokio::time::timeout(SOON, client.read_to_end(&mut Vec::new())).await;
            drop(closed.unwrap_or_else(|_| panic!("{what}: a connection is still open")));
        }
    }
    assert_eq!(hooks.count().await, 60);
    hooks.receiver.stop().await;
}

/// More than a header may have, and a body that never ends.
#[tokio::test]
async fn requests_that_are_too_slow_or_have_too_large_a_header_are_answered() {
    let hooks = Hooks::start(Version::Pg17, "hook_bounds").await;
    let sender = hooks.receiver.sender();
    for headers in
        ["X-Long: ".to_owned() + &"a".repeat(20 << 10) + "\r\n", "X-Many: a\r\n".repeat(80)]
    {
        let request = format!("POST /hooks HTTP/1.1\r\nHost: hooks\r\n{headers}\r\n");
        let answer = sender.raw(request.as_bytes()).await.expect("an answer");
        assert_eq!(answer.code, 431, "{answer:?}");
    }
    let start = Instant::now();
    let endless =
        "POST /hooks HTTP/1.1\r\nHost: hooks\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n";
    let answer = sender.raw(endless.as_bytes()).await.expect("an answer");
    assert_eq!((answer.code, answer.body.as_str()), (408, "the body did not arrive within 10 s\n"));
    assert!(start.elapsed() >= Duration::from_secs(9), "{:?}", start.elapsed());
    assert_eq!(sender.sent("msg_1", "{}").await.code, 204);
    hooks.receiver.stop().await;
}

#[tokio::test]
async fn bodies_in_memory_are_bounded_and_further_requests_are_put_off() {
    const BODY: usize = 16 << 20;
    let hooks = Hooks::start_with(Version::Pg17, "hook_memory", |_, config| {
        config.body_max = BODY;
    })
    .await;
    let sender = hooks.receiver.sender();
    let head = format!("POST /hooks HTTP/1.1\r\nHost: hooks\r\nContent-Length: {BODY}\r\n\r\n");
    // A body that is not complete is given up after 10 s, so each is sent again until the test has seen the bound.
    let mut large = tokio::task::JoinSet::new();
    for _ in 0..6 {
        let (sender, head) = (sender.clone(), head.clone());
        large.spawn(async move {
            loop {
                let mut client = sender.connect().await.expect("a connection");
                // All but the last byte; one that is refused is closed.
                let body = [head.as_bytes(), &vec![b'a'; BODY - 1]].concat();
                drop(client.write_all(&body).await);
                drop(client.read_to_end(&mut Vec::new()).await);
            }
        });
    }
    let body = format!("{{\"a\": \"{}\"}}", "a".repeat(1000));
    await_that("a request that is put off", SOON, || async {
        let answer = sender.send("msg_1", &body).await?;
        let is_busy = answer.is_put_off() && answer.body == "too many requests wait to be stored\n";
        if is_busy { Ok(()) } else { Err(format!("{answer:?}")) }
    })
    .await;
    large.shutdown().await;
    await_that("room", SOON, || async {
        let answer = sender.send("msg_1", &body).await?;
        if answer.code == 204 { Ok(()) } else { Err(format!("{answer:?}")) }
    })
    .await;
    assert_eq!(hooks.count().await, 1);
    hooks.receiver.stop().await;
}

#[tokio::test]
async fn no_line_of_the_log_has_a_payload_a_secret_or_a_signature() {
    let log = Log::begin();
    let hooks = Hooks::start(Version::Pg17, "hook_log").await;
    let constraint = "alter table postrider_inbox.hooks add constraint no_msg_2 check (event_id <> 'hooks//msg_2')";
    hooks.sql.batch(constraint).await;
    let sender = hooks.receiver.sender();
    let card = "4242424242424242";
    let body = format!("{{\"type\": \"paid\", \"card\": \"{card}\"}}");
    let never = body.replace("paid", "never");
    let mut headers = sender.signed("msg_1", &body);
    headers.push(("Authorization", "Bearer hush-hush".to_owned()));
    assert_eq!(sender.post(&headers, body.as_bytes()).await.expect("an answer").code, 204);
    assert_eq!(sender.post(&headers, never.as_bytes()).await.expect("an answer").code, 401);
    for _ in 0..2 {
        assert_eq!(sender.sent("msg_2", &never).await.code, 503);
    }
    let zero = format!("{{\"card\": \"{card}\\u0000\"}}");
    assert_eq!(sender.sent("msg_3", &zero).await.code, 204);
    hooks.receiver.give_secrets(&["hush-hush"]);
    await_that("a line about the file", SOON, || async {
        drop(sender.send("msg_4", &body).await);
        if log.text().contains("intake_secrets_unreadable") { Ok(()) } else { Err("no line") }
    })
    .await;
    hooks.receiver.give_secrets(&[SECRET]);
    await_that("a line about the secrets", SOON, || async {
        drop(sender.send("msg_4", &body).await);
        if log.text().contains("intake_secrets_read\"") { Ok(()) } else { Err("no line") }
    })
    .await;
    hooks.receiver.stop().await;
    let text = log.text();
    for event in ["intake_listens", "intake_request_refused", "intake_stopped"] {
        assert!(text.contains(event), "{event}: {text}");
    }
    // Other tests of this process may have such a line too.
    let is_of_this =
        |line: &&str| line.contains("intake_message_unstorable") && line.contains("no_msg_2");
    let unstorable: Vec<&str> = text.lines().filter(is_of_this).collect();
    assert_eq!(unstorable.len(), 1, "{unstorable:?}");
    assert!(unstorable[0].contains("23514"), "{unstorable:?}");
    // Clients of databases log their statements at level TRACE; the lines of Postrider are looked at.
    let ours: Vec<&str> =
        text.lines().filter(|line| line.contains("\"target\":\"postrider")).collect();
    assert!(ours.len() > 5, "{ours:?}");
    for hidden in [card, "hush-hush", "v1,", SECRET, "c2VjcmV0"] {
        let found: Vec<&&str> = ours.iter().filter(|line| line.contains(hidden)).collect();
        assert!(found.is_empty(), "{hidden}: {found:?}");
    }
}
