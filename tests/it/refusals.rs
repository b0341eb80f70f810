//! A wrong start: told with its code and what mends it; nothing is confirmed, and when it is mended nothing is lost.

use crate::answers::{Answer, answer};
use crate::await_that::SOON;
use crate::halted::{Halted, run_to_halt};
use crate::pipeline::Pipeline;
use crate::private::free_port;
use crate::relay::Relay;
use crate::server::{Database, Version};

/// Its name, what is done to the database, what mends it, the code, words of the message, and words of the hint.
type Case = (
    &'static str,
    &'static str,
    &'static str,
    &'static str,
    &'static [&'static str],
    &'static [&'static str],
);

const MENDABLE: &[Case] = &[
    (
        "table missing",
        "alter table outbox rename to aside",
        "alter table aside rename to outbox",
        "PR009",
        &["outbox", "does not exist"],
        &["outbox.table", "postrider setup", "--create-table"],
    ),
    (
        "column missing",
        "alter table outbox rename payload to body",
        "alter table outbox rename body to payload",
        "PR009",
        &["has no column", "payload"],
        &["outbox.columns"],
    ),
    (
        "publication without the table",
        "alter publication {publication} drop table outbox",
        "alter publication {publication} add table outbox",
        "PR008",
        &["{publication}", "does not publish table"],
        &["ALTER PUBLICATION", "ADD TABLE"],
    ),
    (
        "publication with a row filter",
        "alter publication {publication} set table outbox where (id > 5)",
        "alter publication {publication} set table outbox",
        "PR008",
        &["row filter"],
        &["ALTER PUBLICATION", "SET TABLE"],
    ),
    (
        "publication without inserts",
        "alter publication {publication} set (publish = 'delete')",
        "alter publication {publication} set (publish = 'insert')",
        "PR008",
        &["does not publish inserts"],
        &["publish = 'insert'"],
    ),
    (
        "schema postrider missing",
        "alter schema postrider rename to aside",
        "alter schema aside rename to postrider",
        "PR010",
        &["schema \"postrider\""],
        &["postrider setup"],
    ),
    (
        "database of another cluster",
        "update postrider.cursor set system_identifier = '1' || system_identifier",
        "update postrider.cursor set system_identifier = substr(system_identifier, 2)",
        "PR004",
        &["cluster"],
        &["source.url"],
    ),
];

/// All of them in turn on one pipeline; the events written before the first arrive once after the last.
async fn told_and_mended(version: Version) {
    let pipeline = Pipeline::shared(version, "refusals").await;
    pipeline.insert(10).await;
    let before = pipeline.confirmed_lsn().await;
    for (input, hurt, fix, code, message, hint) in MENDABLE {
        pipeline.sql(hurt).await;
        let halted = run_to_halt(&pipeline.config).await;
        let message: Vec<String> =
            message.iter().map(|m| m.replace("{publication}", &pipeline.slot())).collect();
        let message: Vec<&str> = message.iter().map(String::as_str).collect();
        halted.assert_says(code, &message, hint);
        assert_eq!(pipeline.confirmed_lsn().await, before, "{hurt}");
        answer(input, &pipeline, &halted);
        pipeline.sql(fix).await;
    }
    all_arrive(&pipeline, 10).await;
}

async fn all_arrive(pipeline: &Pipeline, count: usize) {
    all_arrive_by(pipeline, &pipeline.config, count).await;
}

async fn all_arrive_by(pipeline: &Pipeline, config: &str, count: usize) {
    let relay = Relay::spawn(config);
    // They may all be there before it has begun, and before it listens to signals.
    relay.await_state("streaming", SOON).await;
    let records = pipeline.topic.await_records(count, SOON).await;
    assert_eq!(records.len(), count, "nothing is lost and nothing comes twice");
    assert_eq!(relay.terminate(SOON).await.code, Some(0));
}

#[tokio::test]
async fn what_does_not_fit_in_the_database_is_told_and_mended_without_loss_on_15() {
    told_and_mended(Version::Pg15).await;
}

#[tokio::test]
async fn what_does_not_fit_in_the_database_is_told_and_mended_without_loss_on_17() {
    told_and_mended(Version::Pg17).await;
}

#[tokio::test]
async fn what_does_not_fit_in_the_database_is_told_and_mended_without_loss_on_18() {
    told_and_mended(Version::Pg18).await;
}

/// Names in the configuration that nothing answers to.
#[tokio::test]
async fn wrong_names_in_the_configuration_are_told() {
    for version in Version::ALL {
        let pipeline = Pipeline::shared(version, "names").await;
        pipeline.insert(10).await;
        let before = pipeline.confirmed_lsn().await;

        let config = pipeline.with_line("source", "slot = \"nobodys\"");
        let halted = run_to_halt(&config).await;
        halted.assert_says("PR002", &["\"nobodys\""], &["postrider repair"]);
        answer("slot missing", &pipeline, &halted);

        let config = pipeline.with_line("source", "publication = \"nobodys\"");
        let halted = run_to_halt(&config).await;
        halted.assert_says("PR007", &["\"nobodys\""], &["CREATE PUBLICATION", "repair"]);
        answer("publication missing", &pipeline, &halted);

        let other = format!("{}_other", pipeline.slot());
        let make = format!("select pg_create_logical_replication_slot('{other}', 'test_decoding')");
        pipeline.sql(&make).await;
        let config = pipeline.with_line("source", &format!("slot = \"{other}\""));
        let halted = run_to_halt(&config).await;
        halted.assert_says("PR003", &[&other, "test_decoding"], &["source.slot"]);
        answer("slot of test_decoding", &pipeline, &halted);

        let database = pipeline.url.split("dbname=").nth(1).expect("a database");
        let config = pipeline.config.replace(database, "no_such_database");
        let halted = run_to_halt(&config).await;
        halted.assert_says("PR014", &["no_such_database", "3D000"], &["source.url"]);
        answer("wrong database", &pipeline, &halted);

        let config = pipeline.config.replace("user=postgres", "user=nobody");
        let halted = run_to_halt(&config).await;
        halted.assert_says("PR014", &["nobody"], &["user"]);
        answer("wrong user", &pipeline, &halted);

        assert_eq!(pipeline.confirmed_lsn().await, before);
        all_arrive(&pipeline, 10).await;
    }
}

/// A host that is wrong looks like one that is down: the run waits, and says what to check.
#[tokio::test]
async fn wrong_host_or_port_is_waited_for_and_told() {
    let pipeline = Pipeline::shared(Version::Pg17, "host").await;
    let database = pipeline.url.split("dbname=").nth(1).expect("a database");
    let nowhere = [
        ("wrong port", format!("postgresql://postgres@127.0.0.1:{}/{database}", free_port())),
        ("wrong host", format!("postgresql://postgres@no-such-host.invalid/{database}")),
        ("wrong socket", format!("host=/no/such/directory user=postgres dbname={database}")),
    ];
    for (input, url) in nowhere {
        let relay = Relay::spawn(&pipeline.config.replace(&pipeline.url, &url));
        let status = relay.await_state("source_down", SOON).await;
        answer(input, &pipeline, Answer::waits(&status));
        let pipeline = &status["pipelines"][0];
        let reason = pipeline["reason"].as_str().expect("a reason");
        let host = ["127.0.0.1", "no-such-host.invalid", "/no/such/directory"];
        assert!(host.iter().any(|host| reason.contains(host)), "{reason}");
        let hint = pipeline["hint"].as_str().unwrap_or_default();
        assert!(hint.contains("source.url"), "a hint names the key: {pipeline}");
        let (ready, why) = relay.get("/ready").await.expect("an answer");
        assert_eq!(ready, 503);
        assert!(why.contains("source_down"), "{why}");
        let (live, _) = relay.get("/live").await.expect("an answer");
        assert_eq!(live, 200, "waiting is not being stuck");
        assert_eq!(relay.terminate(SOON).await.code, Some(0));
    }
}

/// A slot that somebody else moved: going on would leave out what it passed over.
#[tokio::test]
async fn a_slot_that_was_moved_or_made_again_halts_with_the_way_out() {
    for version in Version::ALL {
        for (input, hurt) in [
            (
                "slot moved by somebody else",
                "select pg_replication_slot_advance('{slot}', pg_current_wal_lsn())",
            ),
            (
                "slot recreated",
                "select pg_drop_replication_slot('{slot}'); \
             select pg_create_logical_replication_slot('{slot}', 'pgoutput')",
            ),
        ] {
            let pipeline = Pipeline::shared(version, "moved").await;
            pipeline.insert(10).await;
            pipeline.sql(hurt).await;
            let before = pipeline.confirmed_lsn().await;
            let halted = run_to_halt(&pipeline.config).await;
            halted.assert_says("PR006", &[&pipeline.slot(), "is at"], &["postrider repair"]);
            assert!(halted.meaning.contains("may never have been published"), "{halted:#?}");
            answer(input, &pipeline, &halted);
            assert_eq!(pipeline.confirmed_lsn().await, before);
            assert_eq!(pipeline.topic.read_all().await.len(), 0);
            follow(&pipeline, &halted).await;
        }
    }
}

/// A slot that is gone is never made again by a run.
#[tokio::test]
async fn a_slot_that_is_gone_halts_and_is_not_made_again() {
    let pipeline = Pipeline::shared(Version::Pg18, "gone").await;
    pipeline.sql("select pg_drop_replication_slot('{slot}')").await;
    pipeline.insert(10).await;
    let halted = run_to_halt(&pipeline.config).await;
    halted.assert_says("PR002", &[&pipeline.slot(), "does not exist"], &["postrider repair"]);
    answer("slot dropped", &pipeline, &halted);
    assert!(halted.meaning.contains("their rows are still in"), "{halted:#?}");
    assert_eq!(pipeline.confirmed_lsn().await, None, "nobody made it again");
    follow(&pipeline, &halted).await;
}

/// What the hint says, as it is printed: then all ten rows are there, once.
pub(crate) async fn follow(pipeline: &Pipeline, halted: &Halted) {
    assert!(!halted.hint.contains("insert again"), "{halted:#?}");
    let config = crate::remedies::follow(pipeline, halted).await;
    all_arrive_by(pipeline, &config, 10).await;
}

/// A slot of another database can't be seen to be one by its name alone.
#[tokio::test]
async fn a_slot_of_another_database_halts() {
    let pipeline = Pipeline::shared(Version::Pg15, "elsewhere").await;
    let other = Database::create(Version::Pg15, "elsewhere").await;
    pipeline.sql("select pg_drop_replication_slot('{slot}')").await;
    let make =
        format!("select pg_create_logical_replication_slot('{}', 'pgoutput')", pipeline.slot());
    other.connect().await.batch(&make).await;
    let halted = run_to_halt(&pipeline.config).await;
    halted.assert_says("PR003", &[&other.name], &["source.slot"]);
    answer("slot of another database", &pipeline, &halted);
}
