//! What an operator or a migration does while the stream runs: told, and nothing lost.

use crate::answers::{Answer, answer};
use crate::await_that::{SOON, await_that};
use crate::halted::{Halted, halt_of, run_to_halt, spawn};
use crate::pipeline::Pipeline;
use crate::private::PrivatePostgres;
use crate::relay::Relay;
use crate::server::{Version, brokers};

/// Ten events are published and confirmed, and the stream goes on.
async fn streaming(version: Version, test: &str) -> (Pipeline, Relay) {
    let pipeline = Pipeline::shared(version, test).await;
    let relay = spawn(&pipeline.config);
    relay.await_state("streaming", SOON).await;
    pipeline.insert(10).await;
    let records = pipeline.topic.await_records(10, SOON).await;
    // Not the end of WAL: a cursor row may stand there, and one alone is not worth another.
    let commit = records[0].commit_lsn();
    await_that("the confirmation", SOON, || pipeline.confirmed(&commit)).await;
    (pipeline, relay)
}

/// Ends the walsender, as often as it takes for `statement` to succeed.
async fn behind_its_back(pipeline: &Pipeline, statement: &str) {
    let slot = pipeline.slot();
    let end = format!(
        "select pg_terminate_backend(active_pid) from pg_replication_slots \
         where slot_name = '{slot}' and active_pid is not null"
    );
    await_that(statement, SOON, || async {
        pipeline.sql.batch(&end).await;
        pipeline.sql.batch_execute(statement).await.map_err(|error| error.to_string())
    })
    .await;
}

#[tokio::test]
async fn slot_dropped_while_running_halts_and_is_not_made_again() {
    for version in Version::ALL {
        let (pipeline, relay) = streaming(version, "dropslot").await;
        let drop = format!("select pg_drop_replication_slot('{}')", pipeline.slot());
        behind_its_back(&pipeline, &drop).await;
        pipeline.insert(5).await;
        let halted = halt_of(relay).await;
        halted.assert_says("PR002", &[&pipeline.slot(), "does not exist"], &["postrider repair"]);
        answer("slot dropped while running", &pipeline, &halted);
        assert!(halted.meaning.contains("their rows are still in"), "{halted:#?}");
        assert_eq!(pipeline.confirmed_lsn().await, None);
        assert_eq!(pipeline.topic.read_all().await.len(), 10);
    }
}

/// PostgreSQL 15 and 17 break the stream at the next change; 18 skips the rows and says so in a notice. Either way a
/// halt, and nothing behind the drop is confirmed: the rows are in the table, and the halt says what to do with them.
async fn publication_dropped(version: Version) {
    let (pipeline, relay) = streaming(version, "droppub").await;
    let before = pipeline.wal_end().await;
    pipeline.sql("drop publication {publication}").await;
    let after = pipeline.wal_end().await;
    pipeline.insert(5).await;
    let halted = halt_of(relay).await;
    halted.assert_says(
        "PR007",
        &[&pipeline.slot()],
        &["CREATE PUBLICATION", "repair", "--from-table"],
    );
    not_past(&pipeline, &before, &after).await;
    // Made again: the rows of the time without it are in the WAL and can't be decoded.
    pipeline
        .sql("create publication {publication} for table outbox with (publish = 'insert')")
        .await;
    pipeline.insert(5).await;
    let halted = run_to_halt(&pipeline.config).await;
    halted.assert_says(
        "PR007",
        &[&pipeline.slot()],
        &["CREATE PUBLICATION", "repair", "--from-table"],
    );
    if version == Version::Pg18 {
        answer("publication dropped while running", &pipeline, &halted);
    }
    not_past(&pipeline, &before, &after).await;
    assert_eq!(pipeline.topic.read_all().await.len(), 10);
    way_out(&pipeline, &halted).await;
}

/// The slot stands no further than the drop.
async fn not_past(pipeline: &Pipeline, before: &str, after: &str) {
    let confirmed = pipeline.confirmed_lsn().await.expect("a slot");
    let sql = format!("select ('{confirmed}'::pg_lsn <= '{after}'::pg_lsn)::text");
    let held = pipeline.sql.text(&sql).await;
    assert_eq!(held.as_deref(), Some("true"), "{confirmed}, dropped at {before} to {after}");
}

/// Follows the hint: the ten rows that were not published come from the table.
async fn way_out(pipeline: &Pipeline, halted: &Halted) {
    pipeline.sql("delete from outbox where id <= 10").await;
    let config = crate::remedies::follow(pipeline, halted).await;
    let relay = Relay::spawn(&config);
    relay.await_state("streaming", SOON).await;
    assert_eq!(pipeline.topic.await_records(20, SOON).await.len(), 20);
    assert_eq!(relay.terminate(SOON).await.code, Some(0));
}

#[tokio::test]
async fn publication_dropped_while_running_halts_and_confirms_nothing_behind_it_on_15() {
    publication_dropped(Version::Pg15).await;
}

#[tokio::test]
async fn publication_dropped_while_running_halts_and_confirms_nothing_behind_it_on_17() {
    publication_dropped(Version::Pg17).await;
}

#[tokio::test]
async fn publication_dropped_while_running_halts_and_confirms_nothing_behind_it_on_18() {
    publication_dropped(Version::Pg18).await;
}

/// Taken out of the publication: told within seconds, and goes on when it is back.
#[tokio::test]
async fn publication_without_the_table_halts_while_running() {
    for version in [Version::Pg15, Version::Pg18] {
        let (pipeline, relay) = streaming(version, "pubtable").await;
        pipeline.sql("alter publication {publication} drop table outbox").await;
        let halted = halt_of(relay).await;
        halted.assert_says("PR008", &["does not publish table"], &["ADD TABLE"]);
        answer("table taken out of the publication while running", &pipeline, &halted);
        assert!(halted.meaning.contains("since it was changed"), "{halted:#?}");
        pipeline.sql("alter publication {publication} add table outbox").await;
        let relay = pipeline.run();
        pipeline.insert(5).await;
        assert_eq!(pipeline.topic.await_records(15, SOON).await.len(), 15);
        assert_eq!(relay.terminate(SOON).await.code, Some(0));
    }
}

/// Columns that the layout does not need come and go; events of before, between and after arrive.
#[tokio::test]
async fn columns_added_and_dropped_while_streaming_change_nothing() {
    for version in Version::ALL {
        let (pipeline, relay) = streaming(version, "columns").await;
        let changes = [
            "alter table outbox add column note text default 'x'",
            "alter table outbox drop column note",
            "alter table outbox add column early int; alter table outbox drop column early",
            "alter table outbox alter aggregate_id type varchar(40)",
        ];
        for (round, change) in (2..).zip(changes) {
            pipeline.sql(change).await;
            pipeline.insert(10).await;
            let records = pipeline.topic.await_records(10 * round, SOON).await;
            assert_eq!(records.len(), 10 * round, "{change}");
        }
        // Inside one transaction, with rows on both sides.
        let insert = "insert into outbox (aggregate_type, aggregate_id, event_type, payload) \
                      values ('order', 'a', 'T', '1')";
        pipeline
            .sql
            .batch(&format!(
                "begin; {insert}; alter table outbox add column late int; {insert}; commit"
            ))
            .await;
        assert_eq!(pipeline.topic.await_records(52, SOON).await.len(), 52);
        assert_eq!(relay.terminate(SOON).await.code, Some(0));
    }
}

#[tokio::test]
async fn needed_column_renamed_while_streaming_halts_and_goes_on_when_it_is_mapped() {
    for version in Version::ALL {
        let (pipeline, relay) = streaming(version, "rename").await;
        pipeline.sql("alter table outbox rename payload to body").await;
        pipeline
            .sql(
                "insert into outbox (aggregate_type, aggregate_id, event_type, body) \
                 select 'order', 'a', 'T', to_json(i) from generate_series(1, 5) i",
            )
            .await;
        let halted = halt_of(relay).await;
        halted.assert_says("PR009", &["no column", "payload"], &["outbox.columns"]);
        answer("column renamed", &pipeline, &run_to_halt(&pipeline.config).await);
        let config = format!(
            "{}\n[pipelines.{}.outbox.columns]\npayload = \"body\"\n",
            pipeline.config, pipeline.name
        );
        let relay = Relay::spawn(&config);
        // They may all be there before it has begun, and before it listens to signals.
        relay.await_state("streaming", SOON).await;
        let records = pipeline.topic.await_records(15, SOON).await;
        assert_eq!(records.len(), 15, "nothing lost, nothing twice");
        assert_eq!(relay.terminate(SOON).await.code, Some(0));
    }
}

/// The publication follows a renamed table, the configuration does not.
#[tokio::test]
async fn table_renamed_while_streaming_halts_and_goes_on_when_it_is_named() {
    for version in Version::ALL {
        let (pipeline, relay) = streaming(version, "retable").await;
        pipeline.sql("alter table outbox rename to events").await;
        pipeline
            .sql(
                "insert into events (aggregate_type, aggregate_id, event_type, payload) \
                 select 'order', 'a', 'T', to_json(i) from generate_series(1, 5) i",
            )
            .await;
        let halted = halt_of(relay).await;
        assert!(["PR008", "PR009"].contains(&halted.code.as_str()), "{halted:#?}");
        let config = pipeline.config.replace("public.outbox", "public.events");
        let relay = Relay::spawn(&config);
        // They may all be there before it has begun, and before it listens to signals.
        relay.await_state("streaming", SOON).await;
        let records = pipeline.topic.await_records(15, SOON).await;
        assert_eq!(records.len(), 15, "nothing lost, nothing twice");
        assert_eq!(relay.terminate(SOON).await.code, Some(0));
    }
}

/// What was committed before the drop is published before the halt.
#[tokio::test]
async fn table_dropped_while_streaming_halts_after_what_it_held() {
    for version in [Version::Pg15, Version::Pg18] {
        let (pipeline, relay) = streaming(version, "droptable").await;
        pipeline.insert(1_000).await;
        pipeline.sql("drop table outbox").await;
        let halted = halt_of(relay).await;
        halted.assert_says(
            "PR009",
            &["outbox", "does not exist"],
            &["postrider setup -p", "--create-table"],
        );
        answer("table dropped", &pipeline, &halted);
        assert_eq!(pipeline.topic.read_all().await.len(), 1_010);
    }
}

#[tokio::test]
async fn walsender_terminated_reconnects_without_a_duplicate() {
    for version in Version::ALL {
        let (pipeline, relay) = streaming(version, "terminated").await;
        for round in 2..=4 {
            behind_its_back(&pipeline, "select 1").await;
            pipeline.insert(10).await;
            let records = pipeline.topic.await_records(10 * round, SOON).await;
            assert_eq!(records.len(), 10 * round);
        }
        assert_eq!(relay.terminate(SOON).await.code, Some(0));
        assert_eq!(pipeline.topic.read_all().await.len(), 40);
    }
}

/// A password that has worked and works no more is waited for: secrets rotate.
#[tokio::test]
async fn password_changed_while_running_is_waited_for() {
    let rule = "host all carrier 127.0.0.1/32 scram-sha-256";
    let server = PrivatePostgres::start_with(Version::Pg18, "", rule).await;
    let pipeline = Pipeline::on(&server.url(), &brokers(), "rotate").await;
    pipeline.sql.batch("create role carrier superuser login password 'first-one'").await;
    let login = "postgresql://carrier:first-one@";
    let relay = Relay::spawn(&pipeline.config.replace("postgresql://postgres@", login));
    relay.await_state("streaming", SOON).await;
    pipeline.sql.batch("alter role carrier password 'second-one'").await;
    behind_its_back(&pipeline, "select 1").await;
    let status = relay.await_state("source_down", SOON).await;
    let reason = status["pipelines"][0]["reason"].as_str().unwrap_or_default();
    let refused = |status: &serde_json::Value| {
        let pipeline = &status["pipelines"][0];
        let hint = pipeline["hint"].as_str().unwrap_or_default();
        pipeline["reason"].as_str().unwrap_or_default().contains("28P01")
            && hint.contains("password_file")
    };
    let status = relay.await_status(&format!("28P01 (was {reason})"), SOON, refused).await;
    answer("password changed while running", &pipeline, Answer::waits(&status));
    pipeline.insert(10).await;
    pipeline.sql.batch("alter role carrier password 'first-one'").await;
    assert_eq!(pipeline.topic.await_records(10, SOON).await.len(), 10);
    relay.await_state("streaming", SOON).await;
    let ended = relay.terminate(SOON).await;
    assert_eq!(ended.code, Some(0));
    assert!(!ended.stderr.contains("first-one"), "{}", ended.stderr);
}
