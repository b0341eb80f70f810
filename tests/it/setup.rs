//! `postrider setup` as it is typed: what it says before it acts, and the way back.

use crate::await_that::SOON;
use crate::pipeline::Pipeline;
use crate::relay::{Relay, postrider, postrider_ok};
use crate::server::{Client, Version, unique};
use std::process::Output;
use std::time::{Duration, Instant};

fn code(output: &Output) -> Option<i32> {
    output.status.code()
}

fn said(output: &Output) -> String {
    format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    )
}

/// Slots, publications and schemas of this database that are ours.
async fn ours(sql: &Client) -> String {
    let count = "select (select count(*) from pg_replication_slots where database = current_database()) || ' ' ||
                        (select count(*) from pg_publication) || ' ' ||
                        (select count(*) from pg_namespace where nspname = 'postrider')";
    sql.text(count).await.expect("a row")
}

#[tokio::test]
async fn what_is_going_to_be_done_is_told_first_with_its_reason() {
    let pipeline = Pipeline::shared(Version::Pg17, "words").await;
    postrider_ok(&pipeline.config, &["setup", "--undo", "--yes"]);
    let text = postrider_ok(&pipeline.config, &["setup"]);
    let at = |words: &str| text.find(words).unwrap_or_else(|| panic!("{words:?} in\n{text}"));
    let plan = at("3 steps, in this order");
    let publication = at("1. create publication");
    let slot = at("3. create slot");
    assert!(plan < publication && publication < slot && slot < at("done  "), "{text}");
    at("Events committed from here on are kept for the relay.");
    let again = postrider_ok(&pipeline.config, &["setup"]);
    assert!(again.contains("nothing is missing"), "{again}");
}

#[tokio::test]
async fn undo_names_what_is_lost_asks_and_leaves_the_outbox() {
    for version in Version::ALL {
        let pipeline = Pipeline::shared(version, "undo").await;
        pipeline.insert(3).await;

        // Nobody to ask: nothing is done, and what would be lost is told.
        let refused = postrider(&pipeline.config, &["setup", "--undo"]);
        assert_eq!(code(&refused), Some(2), "{}", said(&refused));
        for words in
            ["lost   slot", "are lost to the stream", "stays  table \"public\".\"outbox\"", "--yes"]
        {
            assert!(said(&refused).contains(words), "{words}: {}", said(&refused));
        }
        assert_eq!(ours(&pipeline.sql).await, "1 1 1");

        // In use: stop it first.
        let relay = pipeline.run();
        pipeline.topic.await_records(3, SOON).await;
        let busy = postrider(&pipeline.config, &["setup", "--undo", "--yes"]);
        assert_eq!(code(&busy), Some(3), "{}", said(&busy));
        assert!(said(&busy).contains("stop postrider run first"), "{}", said(&busy));
        assert_eq!(relay.terminate(SOON).await.code, Some(0));

        let text = postrider_ok(&pipeline.config, &["setup", "--undo", "--yes"]);
        assert!(text.contains("removed from the database"), "{text}");
        assert_eq!(ours(&pipeline.sql).await, "0 0 0");
        assert_eq!(pipeline.sql.text("select count(*) from outbox").await.as_deref(), Some("3"));
        let again = postrider_ok(&pipeline.config, &["setup", "--undo", "--yes"]);
        assert!(again.contains("nothing to undo"), "{again}");

        // And forward again.
        postrider_ok(&pipeline.config, &["setup"]);
        let relay = pipeline.run();
        pipeline.insert(2).await;
        pipeline.topic.await_records(5, SOON).await;
        assert_eq!(relay.terminate(SOON).await.code, Some(0));
    }
}

#[tokio::test]
async fn undoing_one_of_two_pipelines_leaves_the_other_streaming() {
    let pipeline = Pipeline::shared(Version::Pg18, "undo_one").await;
    let other = unique("other");
    let config = pipeline
        .config
        .replace(&format!("pipelines.{}", pipeline.name), &format!("pipelines.{other}"));
    postrider_ok(&config, &["setup"]);
    assert_eq!(ours(&pipeline.sql).await, "2 2 1");
    let relay = Relay::spawn(&config);
    relay.await_state("streaming", SOON).await;
    let text = postrider_ok(&pipeline.config, &["setup", "--undo", "--yes"]);
    assert!(text.contains("other pipelines have rows in it"), "{text}");
    assert_eq!(ours(&pipeline.sql).await, "1 1 1");
    pipeline.insert(4).await;
    pipeline.topic.await_records(4, SOON).await;
    assert_eq!(relay.terminate(SOON).await.code, Some(0));
}

#[tokio::test]
async fn printed_undo_changes_nothing_until_it_is_run() {
    let pipeline = Pipeline::shared(Version::Pg15, "undo_print").await;
    let sql = postrider_ok(&pipeline.config, &["setup", "--undo", "--print-sql"]);
    assert!(sql.contains("-- Lost: slot"), "{sql}");
    assert_eq!(ours(&pipeline.sql).await, "1 1 1");
    pipeline.sql.batch(&sql).await;
    assert_eq!(ours(&pipeline.sql).await, "0 0 0");
}

/// A table that is locked for long: setup gives up before it stands in anybody's way, says at which step, and the next
/// run goes on.
#[tokio::test]
async fn a_lock_is_waited_for_no_longer_than_five_seconds() {
    let pipeline = Pipeline::shared(Version::Pg17, "lock").await;
    postrider_ok(&pipeline.config, &["setup", "--undo", "--yes"]);
    let holder = Client::connect(&pipeline.url).await.expect("a session");
    holder.batch("begin; lock table public.outbox in access exclusive mode").await;
    let start = Instant::now();
    let output = postrider(&pipeline.config, &["setup"]);
    assert_eq!(code(&output), Some(1), "{}", said(&output));
    assert!(said(&output).contains("could not create publication"), "{}", said(&output));
    // Five seconds of waiting, and what a busy machine adds.
    assert!(start.elapsed() < Duration::from_secs(30), "{:?}", start.elapsed());
    holder.batch("rollback").await;
    postrider_ok(&pipeline.config, &["setup"]);
}

/// Who may not drop all of it drops nothing of it.
#[tokio::test]
async fn undo_by_a_role_that_owns_only_half_does_nothing() {
    let pipeline = Pipeline::shared(Version::Pg18, "undo_half").await;
    let role = unique("half");
    pipeline.sql.batch(&format!("create role {role} login replication")).await;
    for object in [
        "schema postrider",
        "table postrider.cursor",
        "table postrider.migration",
        "table postrider.parked",
        "table postrider.repair",
        "table postrider.repair_page",
        "table postrider.bookmark",
        "table postrider.replay",
        "table postrider.pause",
    ] {
        pipeline.sql.batch(&format!("alter {object} owner to {role}")).await;
    }
    let config = pipeline.config.replace("user=postgres", &format!("user={role}"));
    let refused = postrider(&config, &["setup", "--undo", "--yes"]);
    assert_eq!(code(&refused), Some(3), "{}", said(&refused));
    for words in ["may not drop publication", "setup --undo --url"] {
        assert!(said(&refused).contains(words), "{words}: {}", said(&refused));
    }
    assert_eq!(ours(&pipeline.sql).await, "1 1 1");
    pipeline.sql.batch(&format!("drop owned by {role} cascade; drop role {role}")).await;
}
