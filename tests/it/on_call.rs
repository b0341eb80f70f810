//! What somebody types who was called: on the host of the process, after a halt, with the process still there.

use crate::await_that::SOON;
use crate::pipeline::Pipeline;
use crate::private::free_port;
use crate::relay::{Relay, postrider, postrider_ok};
use crate::server::Version;
use std::process::Output;

fn with_admin(config: &str, port: u16) -> String {
    format!("{config}\n[admin]\nlisten = \"127.0.0.1:{port}\"\n")
}

fn said(output: &Output) -> String {
    let text = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text));
    text.concat()
}

/// The service has its password by a variable, or in a file, that a shell does not have.
#[tokio::test]
async fn status_needs_no_secret() {
    let pipeline = Pipeline::shared(Version::Pg17, "nosecret").await;
    let port = free_port();
    let relay = Relay::spawn_at(&pipeline.config, port, &[]);
    relay.await_state("streaming", SOON).await;
    for line in [
        "password_file = \"${CREDENTIALS_DIRECTORY_THAT_IS_NOT_SET}/pg-password\"",
        "password_file = \"/nonexistent/pg-password\"",
    ] {
        let config = with_admin(&pipeline.with_line("source", line), port);
        let output = postrider(&config, &["status"]);
        assert_eq!(output.status.code(), Some(0), "{line}: {}", said(&output));
        assert!(said(&output).contains("streaming"), "{}", said(&output));
        // A command that logs in does need it.
        assert_eq!(postrider(&config, &["repair", "--dry-run"]).status.code(), Some(2), "{line}");
    }
    let config = pipeline.config.clone()
        + &format!(
            "[pipelines.{}.sink.properties]\n\"security.protocol\" = \"SASL_PLAINTEXT\"\n\
             \"sasl.mechanism\" = \"PLAIN\"\n\"sasl.username\" = \"u\"\n\
             \"sasl.password_file\" = \"/nonexistent/kafka\"\n",
            pipeline.name
        );
    let output = postrider(&with_admin(&config, port), &["status"]);
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    // What it asks at must be known.
    let config = format!("{}\n[admin]\nlisten = \"${{NOT_SET_ANYWHERE}}\"\n", pipeline.config);
    let output = postrider(&config, &["status"]);
    assert_eq!(output.status.code(), Some(2), "{}", said(&output));
    assert_eq!(relay.terminate(SOON).await.code, Some(0));
}

#[tokio::test]
async fn parked_events_are_seen_in_the_table_of_status() {
    let pipeline = Pipeline::shared(Version::Pg18, "aside").await;
    let port = free_port();
    let relay = Relay::spawn_at(&pipeline.config, port, &[]);
    relay.await_state("streaming", SOON).await;
    let config = with_admin(&pipeline.config, port);
    let calm = postrider_ok(&config, &["status"]);
    assert!(!calm.contains("parked"), "{calm}");
    pipeline
        .sql
        .batch(
            "alter table outbox alter event_type drop not null; \
             insert into outbox (aggregate_type, aggregate_id) values ('order', 'a'); \
             insert into outbox (aggregate_type, aggregate_id, event_type, payload) \
             values ('order', 'a', 'T', '1'), ('order', 'a', 'T', '2')",
        )
        .await;
    let parked = |status: &serde_json::Value| status["pipelines"][0]["parked"]["behind"] == 2;
    relay.await_status("three parked events", SOON, parked).await;
    let shown = said(&postrider(&config, &["status"]));
    for words in ["3 events are parked", "2 behind an earlier event", "1 aggregate is blocked"] {
        assert!(shown.contains(words), "{words}: {shown}");
    }
    // The command that it names is one.
    let command = shown.lines().find_map(|line| line.trim().strip_prefix("postrider parked "));
    let args: Vec<&str> = command.expect("a command").split_whitespace().collect();
    let listed = postrider_ok(&config, &[&["parked"][..], &args[..]].concat());
    assert!(listed.contains("order"), "{listed}");
    assert_eq!(relay.terminate(SOON).await.code, Some(0));
}

/// From the halt to the stream again, by what is printed on the way: the process that halted is still there.
#[tokio::test]
async fn process_that_halted_is_restarted_and_no_second_one_is_started_beside_it() {
    for version in [Version::Pg15, Version::Pg18] {
        let pipeline = Pipeline::shared(version, "restarted").await;
        let port = free_port();
        let config = with_admin(&pipeline.config, port);
        let relay = Relay::spawn_at(&pipeline.config, port, &[]);
        relay.await_state("streaming", SOON).await;
        let setup = postrider_ok(&config, &["setup"]);
        assert!(setup.contains("postrider run is running"), "{setup}");
        let sql = "select pg_terminate_backend(active_pid, 10000) from pg_replication_slots \
                   where slot_name = '{slot}'; select pg_drop_replication_slot('{slot}')";
        pipeline.sql(sql).await;
        relay.await_state("halted", SOON).await;
        let shown = said(&postrider(&config, &["status"]));
        assert!(shown.contains("PR002") && shown.contains("then restart the process"), "{shown}");
        pipeline.insert(3).await;
        let repaired = postrider_ok(&config, &["repair"]);
        assert!(repaired.contains("halted with PR002 is still running: restart"), "{repaired}");
        assert!(!repaired.contains("start it with"), "{repaired}");
        let again = postrider_ok(&config, &["repair"]);
        assert!(again.contains("nothing to repair") && again.contains("restart"), "{again}");
        let setup = postrider_ok(&config, &["setup"]);
        assert!(setup.contains("halted with PR002 is still running: restart"), "{setup}");

        // Whoever starts another one is told what is in the way, and not to give it a port of its own.
        let second = postrider(&config, &["run"]);
        assert_eq!(second.status.code(), Some(2), "{}", said(&second));
        let told = said(&second);
        let names = format!("pipeline \"{}\", halted with PR002", pipeline.name);
        assert!(told.contains("another Postrider listens") && told.contains(&names), "{told}");

        assert_eq!(relay.terminate(SOON).await.code, Some(3));
        let setup = postrider_ok(&config, &["setup"]);
        assert!(setup.contains("start it with: postrider run"), "{setup}");
        let relay = Relay::spawn_at(&pipeline.config, port, &[]);
        relay.await_state("streaming", SOON).await;
        pipeline.insert(2).await;
        pipeline.topic.await_records(5, SOON).await;
        assert_eq!(relay.terminate(SOON).await.code, Some(0));
    }
}
