//! The program: `postrider inbox run` with a receiver of webhooks.

use super::sender::Sender;
use super::{SECRET, with_inbox};
use crate::await_that::{SOON, await_or_dump};
use crate::groups::number;
use crate::private::free_port;
use crate::relay::{Relay, postrider};
use crate::server::Version;
use tempfile::TempDir;

/// A configuration with one receiver, whose secrets are in this file.
fn config(url: &str, port: u16, file: &str, more: &str) -> String {
    format!(
        "[inboxes.hooks.database]\nurl = \"{url}\"\n\
         [inboxes.hooks.source]\nkind = \"webhook\"\nlisten = \"127.0.0.1:{port}\"\npath = \"/hooks\"\n\
         secret_file = \"{file}\"\n{more}"
    )
}

#[tokio::test]
async fn the_program_receives_webhooks_until_sigterm() {
    let (database, sql) = with_inbox(Version::Pg18, "hook_program").await;
    let (secrets, port) = (TempDir::new().expect("a directory"), free_port());
    let file = secrets.path().join("hooks");
    std::fs::write(&file, SECRET).expect("a file of secrets");
    let config =
        config(&database.url(), port, &file.display().to_string(), "body_max = \"2KiB\"\n");
    let relay = Relay::spawn_intake(&config);
    let sender = Sender::new(port, SECRET);
    let send = || async {
        let answer = sender.send("msg_1", "{\"card\": \"4242\"}").await?;
        if answer.code == 204 { Ok(()) } else { Err(format!("{answer:?}")) }
    };
    await_or_dump("a stored message", SOON, send, || relay.stderr()).await;
    for (id, body, code) in [
        ("msg_1", "{}".to_owned(), 204),
        ("msg_2", "a".repeat(3000), 413),
        ("msg_3", "[1]".to_owned(), 204),
    ] {
        assert_eq!(sender.sent(id, &body).await.code, code, "{id}");
    }
    let (code, ready) = relay.get("/ready").await.expect("an answer");
    assert_eq!(code, 200, "{ready}");
    let (_, status) = relay.get("/status").await.expect("an answer");
    let status: serde_json::Value = serde_json::from_str(&status).expect("JSON");
    let intake = &status["intakes"][0];
    for (field, value) in [("source", "webhook"), ("state", "storing")] {
        assert_eq!(intake[field].as_str(), Some(value), "{status}");
    }
    // That of 413, and those of before the first connection to the database.
    assert!(intake["refused_total"].as_u64() >= Some(1), "{status}");
    let ended = relay.terminate(SOON).await;
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    assert!(!ended.stderr.contains("4242") && !ended.stderr.contains(SECRET), "{}", ended.stderr);
    assert_eq!(number(&sql, "select count(*) from postrider_inbox.hooks").await, 2);
}

#[test]
fn a_configuration_without_a_secret_is_refused_with_the_key_that_is_missing() {
    let url = "postgresql://worker@db.internal/app";
    let wrong = config(url, 8080, "no/such/file", "tolerence = \"5m\"\n");
    let output = postrider(&wrong, &["config", "show"]);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{errors}");
    for part in ["inboxes.hooks.source.secret_file", "no/such/file", "tolerence", "tolerance"] {
        assert!(errors.contains(part), "{part}: {errors}");
    }
}
