//! One thing wrong at a time, in one database: it is found, its own lines fix it, and it is not found again.

use super::cases::{Case, PUBLICATION, SLOT, TABLE};
use super::patient::{Checked, Patient, fixes};
use crate::await_that::SOON;
use crate::pipeline::Pipeline;
use crate::relay::postrider_ok;
use crate::server::{Client, Version};

/// A pipeline that is well but for what a shared server of tests has by itself.
async fn patient(version: Version, test: &str) -> (Pipeline, Patient) {
    let pipeline = Pipeline::shared(version, test).await;
    let patient = Patient::new(&pipeline.config, &pipeline.url);
    let checked = patient.check(&[]);
    assert_eq!(checked.code, Some(0), "{checked}");
    assert_eq!(errors(&checked), Vec::<&str>::new(), "{checked}");
    (pipeline, patient)
}

fn errors(checked: &Checked) -> Vec<&str> {
    checked.ids(&["error"])
}

/// Hurts, looks, mends by the lines of the finding, looks again, and puts everything back.
async fn one(pipeline: &Pipeline, patient: &Patient, (hurt, id, severity, back): &Case) {
    pipeline.sql(hurt).await;
    let checked = patient.check(&[]);
    let finding = checked.expect(id, severity);
    assert_eq!(checked.code, Some(i32::from(!errors(&checked).is_empty())), "{hurt}");
    if finding["fix"].as_array().is_some_and(|fix| !fix.is_empty()) {
        patient.fix(finding).await;
        let again = patient.check(&[]);
        assert!(again.find(id).is_none(), "{hurt}: it was mended: {finding:#}\n{again}");
    }
    if !back.is_empty() {
        pipeline.sql(back).await;
    }
    patient.write(&pipeline.config);
}

#[tokio::test]
async fn a_table_that_does_not_fit_is_found_and_mended() {
    for version in [Version::Pg15, Version::Pg18] {
        let (pipeline, patient) = patient(version, "check_table").await;
        for case in TABLE {
            one(&pipeline, &patient, case).await;
        }
        let well = patient.check(&[]);
        assert_eq!(errors(&well), Vec::<&str>::new(), "{well}");
    }
}

#[tokio::test]
async fn a_publication_that_does_not_fit_is_found_and_mended() {
    for version in [Version::Pg15, Version::Pg18] {
        let (pipeline, patient) = patient(version, "check_publication").await;
        for case in PUBLICATION {
            one(&pipeline, &patient, case).await;
        }
        let well = patient.check(&[]);
        assert_eq!(well.ids(&["error"]), Vec::<&str>::new(), "{well}");
    }
}

#[tokio::test]
async fn a_slot_that_does_not_fit_is_found_and_mended() {
    let (pipeline, patient) = patient(Version::Pg17, "check_slot").await;
    for case in SLOT {
        one(&pipeline, &patient, case).await;
        anew(&pipeline).await;
    }
    // It is read by somebody else, and then by the relay itself.
    for (name, severity) in [("?application_name=impostor", "warning"), ("", "ok")] {
        let url = format!("{}{}", tcp(&pipeline).await, name);
        let relay = crate::relay::Relay::spawn(&pipeline.config.replace(&pipeline.url, &url));
        relay.await_state("streaming", SOON).await;
        let checked = patient.check(&[]);
        if severity == "ok" {
            assert!(checked.find("slot_active").is_none(), "{checked}");
        } else {
            let finding = checked.expect("slot_active", severity);
            assert!(finding["what"].as_str().unwrap().contains("impostor"), "{finding:#}");
        }
        assert_eq!(errors(&checked), Vec::<&str>::new(), "{checked}");
        relay.terminate(SOON).await;
    }
    // A standby would not have it. The command that mends it is PostgreSQL's own, over its replication protocol.
    pipeline.sql("select pg_drop_replication_slot('{slot}'); delete from postrider.cursor").await;
    pipeline.sql("select pg_create_logical_replication_slot('{slot}', 'pgoutput')").await;
    let checked = patient.check(&[]);
    patient.fix(checked.expect("slot_failover", "warning")).await;
    let again = patient.check(&[]);
    assert!(again.find("slot_failover").is_none(), "{again}");
    assert_eq!(again.code, Some(0));
}

/// The database over TCP, as a URI.
async fn tcp(pipeline: &Pipeline) -> String {
    let database = pipeline.sql.text("select current_database()").await.expect("a name");
    let port = pipeline.sql.text("show port").await.expect("a port");
    format!("postgresql://postgres@127.0.0.1:{port}/{database}")
}

/// Slot, publication and cursor as `setup` makes them, whatever stands there.
async fn anew(pipeline: &Pipeline) {
    let session = Client::connect(&pipeline.url).await.expect("a session");
    session
        .batch(&format!(
            "select pg_drop_replication_slot(slot_name) from pg_replication_slots where slot_name like '{}%'; \
             drop publication if exists {0}; drop publication if exists {0}_outbox; \
             create schema if not exists postrider; drop schema postrider cascade",
            pipeline.slot()
        ))
        .await;
    crate::relay::postrider_ok(&pipeline.config, &["setup"]);
}

/// A slot of another database, and a partition in place of the whole table.
#[tokio::test]
async fn what_belongs_to_another_is_found_and_mended() {
    let (pipeline, patient) = patient(Version::Pg17, "check_other").await;
    let other = crate::server::Database::create(Version::Pg17, "check_other").await;
    pipeline.sql("select pg_drop_replication_slot('{slot}')").await;
    let make =
        format!("select pg_create_logical_replication_slot('{}', 'pgoutput')", pipeline.slot());
    other.connect().await.batch(&make).await;
    let checked = patient.check(&[]);
    patient.fix(checked.expect("slot_database", "error")).await;
    let well = patient.check(&[]);
    assert_eq!(errors(&well), Vec::<&str>::new(), "{well}");

    // A partition in place of the whole.
    pipeline
        .sql(
            "create table whole (like outbox) partition by hash (aggregate_id); \
             create table part partition of whole for values with (modulus 1, remainder 0)",
        )
        .await;
    patient.write(&patient.config().replace("public.outbox", "public.part"));
    let checked = patient.check(&[]);
    // It is another table than the one that the first repair has brought the position for.
    checked.expect("pipeline_changed", "error");
    for fix in fixes(checked.expect("table_partition", "error")) {
        if fix["kind"] == "shell" {
            postrider_ok(&patient.config(), &["adopt"]);
        }
        patient.execute(fix).await;
    }
    let well = patient.check(&[]);
    assert_eq!(errors(&well), Vec::<&str>::new(), "{well}");
    assert!(patient.config().contains("public.whole"), "{}", patient.config());
    pipeline.sql("alter publication {publication} set (publish_via_partition_root = false)").await;
    patient.fix(patient.check(&[]).expect("publication_via_root", "error")).await;
    assert_eq!(errors(&patient.check(&[])), Vec::<&str>::new());
}

/// With `route.replace` the topics are those of the records, not those of the template.
#[tokio::test]
async fn topics_are_known_with_a_replacement_too() {
    let (pipeline, patient) = patient(Version::Pg16, "check_replaced").await;
    let base = pipeline.topic.name.clone();
    let config = pipeline
        .with_line("route", &format!("replace = {{ pattern = \"(.*)\", with = \"{base}.$1\" }}"))
        .replace(&format!("topic = \"{base}\""), "topic = \"{aggregate_type}\"");
    patient.write(&config);
    let empty = patient.check(&[]);
    let what =
        empty.find("topics").unwrap_or_else(|| panic!("no row yet: {empty}"))["what"].clone();
    assert!(what.as_str().is_some_and(|what| what.contains("has no rows")), "{what}");
    pipeline.insert(3).await;
    let checked = patient.check(&[]);
    let finding = checked.expect("topic_missing", "error");
    assert!(finding["what"].as_str().unwrap().contains(&format!("{base}.order")), "{finding:#}");
    patient.fix(finding).await;
    assert_eq!(errors(&patient.check(&[])), Vec::<&str>::new());
}

/// Rows tell which topics there are, by any template; names that Kafka does not allow are told.
#[tokio::test]
async fn topics_are_known_from_the_rows_of_the_outbox() {
    let (pipeline, patient) = patient(Version::Pg18, "check_topics").await;
    let base = pipeline.topic.name.clone();
    patient.write(&pipeline.config.replace(&base, &format!("{base}.{{aggregate_type}}")));
    let checked = patient.check(&[]);
    assert!(checked.find("topics").is_some(), "no row yet: {checked}");
    pipeline.insert(3).await;
    let checked = patient.check(&[]);
    let finding = checked.expect("topic_missing", "error");
    assert!(finding["what"].as_str().unwrap().contains(&format!("{base}.order")), "{finding:#}");
    patient.fix(finding).await;
    assert_eq!(errors(&patient.check(&[])), Vec::<&str>::new());
    pipeline
        .sql(
            "insert into outbox (aggregate_type, aggregate_id, event_type, payload) \
             values ('no/topic', '1', 'T', '0')",
        )
        .await;
    let checked = patient.check(&[]);
    checked.expect("topic_name", "error");
}

/// Messages that anybody may write are no events to rely on.
#[tokio::test]
async fn messages_that_everybody_may_write_are_told() {
    let (pipeline, patient) = patient(Version::Pg17, "check_messages").await;
    patient.write(&pipeline.with_line("outbox", "message_prefix = \"shop\""));
    let checked = patient.check(&[]);
    patient.fix(checked.expect("messages_public", "warning")).await;
    let well = patient.check(&[]);
    assert!(
        well.find("messages_public").is_none() && well.find("messages_only_in_wal").is_none(),
        "{well}"
    );
    // A slot that is lost takes them along, and the other mode goes on without it.
    let head = format!("[pipelines.{}]\n", pipeline.name);
    let auto = pipeline.with_line("outbox", "message_prefix = \"shop\"");
    patient.write(&auto.replacen(&head, &format!("{head}mode = \"auto\"\n"), 1));
    patient.check(&[]).expect("messages_only_in_wal", "warning");
}

/// A table that is polled needs no log, but columns to mark its rows in and the right to.
#[tokio::test]
async fn polling_needs_marks_and_the_right_to_write_them() {
    let pipeline = Pipeline::in_layout(Version::Pg15, "check_poll", "adr30").await;
    let role = crate::server::unique("check_poll");
    pipeline
        .sql(&format!("create role {role} login; alter table outbox drop column published_at"))
        .await;
    let head = format!("[pipelines.{}]\n", pipeline.name);
    let config = pipeline
        .config
        .replacen(&head, &format!("{head}mode = \"poll\"\n"), 1)
        .replace("user=postgres", &format!("user={role}"));
    let patient = Patient::new(&config, &pipeline.url);
    let checked = patient.check(&[]);
    assert_eq!(checked.code, Some(1), "{checked}");
    for log in ["wal_level", "slot", "publication", "role_replication"] {
        assert!(checked.findings.iter().all(|finding| finding["id"] != log), "{log}: {checked}");
    }
    for id in ["poll_column", "poll_rights", "cursor_rights"] {
        patient.fix(checked.expect(id, "error")).await;
    }
    let checked = patient.check(&[]);
    assert_eq!(errors(&checked), Vec::<&str>::new(), "{checked}");
    // The column took the index with it that claims are read from.
    patient.fix(checked.expect("poll_index", "warning")).await;
    patient.fix(checked.expect("poll", "info")).await;
    // The slot that `setup` made in the mode of before.
    patient.fix(checked.expect("slot_left_behind", "warning")).await;
    let well = patient.check(&[]);
    // What keeps it from streaming is no error where it may poll meanwhile.
    patient.write(&patient.config().replace("mode = \"poll\"", "mode = \"auto\""));
    pipeline.sql(&format!("alter role {role} noreplication")).await;
    let auto = patient.check(&[]);
    auto.expect("slot_missing", "warning");
    auto.expect("role_replication", "warning");
    assert_eq!(auto.code, Some(0), "{auto}");
    // A publication that left rows out halts a pipeline in that mode too: it is an error.
    pipeline.sql("drop publication {slot}").await;
    let halts = patient.check(&[]);
    assert!(errors(&halts).iter().any(|id| id.starts_with("publication")), "{halts}");
    assert_eq!(halts.code, Some(1), "{halts}");
    pipeline.sql(&format!("drop owned by {role} cascade; drop role {role}")).await;
    assert_eq!(well.ids(&["error", "warning", "info"]), ["topics"; 0], "{well}");
}
