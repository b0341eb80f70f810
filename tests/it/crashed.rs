//! What a crash of the server leaves of the order in which rows were inserted: PostgreSQL does not log the command that
//! inserted a row, and polling, repair and replay publish the events of one transaction in their order all the same.

use crate::await_that::SOON;
use crate::check::Patient;
use crate::pipeline::{Pipeline, drop_slot};
use crate::private::PrivatePostgres;
use crate::relay::postrider_ok;
use crate::server::{Client, Version, brokers};
use crate::topic::{Topic, Topics};

/// An outbox without a time that differs inside a transaction, and the statement that makes it so.
struct Kind {
    layout: &'static str,
    table: &'static str,
    columns: &'static str,
    same_time: &'static str,
}

const KINDS: [Kind; 2] = [
    Kind {
        layout: "adr30",
        table: "outbox",
        columns: "aggregate_type, aggregate_id, event_type, payload",
        // As now(), which has no digits below the millisecond one time in a thousand.
        same_time: "alter table outbox alter created_at \
                    set default date_trunc('milliseconds', now()) + interval '123 microseconds'",
    },
    Kind {
        layout: "debezium",
        table: "outboxevent",
        columns: "aggregatetype, aggregateid, type, payload",
        same_time: "select",
    },
];

const AGGREGATE: &str = "00000000-0000-4000-8000-000000000001";

/// Most events of one page of the table, and more: one transaction has rows in several pages.
const EVENTS: usize = 200;

impl Kind {
    fn row(&self, aggregate: &str, payload: usize) -> String {
        let Self { table, columns, .. } = self;
        format!(
            "insert into {table} ({columns}) values ('order', '{aggregate}', 'T', '{payload}');"
        )
    }

    /// Events of one transaction.
    fn rows(&self) -> String {
        (1..=EVENTS).map(|event| self.row(AGGREGATE, event)).collect()
    }

    /// A pipeline that has published one event, and was stopped. Then a transaction inserted `rows` behind a row of
    /// its business, and the server crashed.
    async fn after_a_crash(
        &self,
        version: Version,
        mode: &str,
        rows: &str,
    ) -> (PrivatePostgres, Pipeline) {
        let mut server = PrivatePostgres::start(version, "full_page_writes = on").await;
        let (url, brokers) = (server.url(), brokers());
        let mut pipeline = Pipeline::with_layout(&url, &brokers, "crashed", self.layout, "").await;
        let head = format!("[pipelines.{}]\n", pipeline.name);
        pipeline.config = pipeline.config.replace(&head, &format!("{head}mode = \"{mode}\"\n"));
        pipeline.sql.batch(self.same_time).await;
        pipeline.sql.batch("create table business (x int)").await;
        let relay = pipeline.run();
        pipeline.sql.batch(&self.row("00000000-0000-4000-8000-000000000002", 0)).await;
        pipeline.topic.await_records(1, SOON).await;
        assert_eq!(relay.terminate(SOON).await.code, Some(0));
        // Rows of the page from before the checkpoint, so that the first change of it after that is logged with the
        // whole page, and the others are not.
        pipeline.sql.batch("checkpoint").await;
        pipeline.sql.batch(&format!("begin; insert into business values (1); {rows} commit")).await;
        server.stop_immediately().await;
        server.restart().await;
        pipeline.sql = Client::connect(&url).await.expect("a session");
        (server, pipeline)
    }
}

/// The events of the transaction are there, in order, once.
async fn assert_in_order(topic: &Topic, events: usize, what: &str) {
    let records = topic.read_all().await;
    let of_it = records.iter().filter(|record| record.key_text() == Some(AGGREGATE));
    let values: Vec<usize> = of_it
        .map(|record| record.value_text().expect("a payload").parse().expect("a number"))
        .collect();
    assert_eq!(values, (1..=events).collect::<Vec<_>>(), "{what}");
}

#[tokio::test]
async fn events_of_one_transaction_are_polled_in_their_order_after_a_crash() {
    for (kind, version) in KINDS.iter().zip([Version::Pg15, Version::Pg18]) {
        let (_server, pipeline) = kind.after_a_crash(version, "poll", &kind.rows()).await;
        let relay = pipeline.run();
        pipeline.topic.await_records(1 + EVENTS, SOON).await;
        assert_eq!(relay.terminate(SOON).await.code, Some(0));
        assert_in_order(&pipeline.topic, EVENTS, kind.layout).await;
    }
}

#[tokio::test]
async fn events_of_one_transaction_are_repaired_and_replayed_in_their_order_after_a_crash() {
    for (kind, version) in KINDS.iter().zip([Version::Pg18, Version::Pg17]) {
        let (_server, pipeline) = kind.after_a_crash(version, "wal", &kind.rows()).await;
        let of = format!("order:{AGGREGATE}");
        let again = Topics::new(&pipeline.topic.brokers, "again").create("again", 8).await;
        postrider_ok(
            &pipeline.config,
            &["replay", "--source", "table", "--aggregate", &of, "--to", &again.name],
        );
        assert_in_order(&again, EVENTS, &format!("{}, replay", kind.layout)).await;
        drop_slot(&pipeline).await;
        postrider_ok(&pipeline.config, &["repair"]);
        assert_in_order(&pipeline.topic, EVENTS, &format!("{}, repair", kind.layout)).await;
    }
}

/// The rows lie in one page, whose places tell the order of a transaction and its savepoints.
#[tokio::test]
async fn events_of_savepoints_are_in_their_order_after_a_crash() {
    let [kind, _] = &KINDS;
    let row = |event: usize| kind.row(AGGREGATE, event);
    let rows = format!(
        "{} savepoint s; {} release s; {} savepoint t; {} release t; {}",
        row(1),
        row(2),
        row(3),
        row(4),
        row(5)
    );
    let (_server, pipeline) = kind.after_a_crash(Version::Pg17, "wal", &rows).await;
    let again = Topics::new(&pipeline.topic.brokers, "again").create("again", 8).await;
    let of = format!("order:{AGGREGATE}");
    postrider_ok(
        &pipeline.config,
        &["replay", "--source", "table", "--aggregate", &of, "--to", &again.name],
    );
    assert_in_order(&again, 5, "replay").await;
    drop_slot(&pipeline).await;
    postrider_ok(&pipeline.config, &["repair"]);
    assert_in_order(&pipeline.topic, 5, "repair").await;
    let (_server, pipeline) = kind.after_a_crash(Version::Pg15, "poll", &rows).await;
    let relay = pipeline.run();
    pipeline.topic.await_records(1 + 5, SOON).await;
    assert_eq!(relay.terminate(SOON).await.code, Some(0));
    assert_in_order(&pipeline.topic, 5, "poll").await;
}

/// What `check` says of a table whose times do not differ inside a transaction, in every mode and beside any other
/// finding; its lines end that.
#[tokio::test]
async fn table_that_does_not_record_the_order_is_named_and_its_lines_mend_it() {
    let [adr30, debezium] = &KINDS;
    let milliseconds = Kind {
        same_time: "alter table outbox alter created_at type timestamptz(3)",
        layout: adr30.layout,
        table: adr30.table,
        columns: adr30.columns,
    };
    for (kind, mode) in [
        (adr30, "poll"),
        (debezium, "poll"),
        (debezium, "auto"),
        (adr30, "wal"),
        (&milliseconds, "wal"),
    ] {
        let server = PrivatePostgres::start(Version::Pg17, "").await;
        let url = server.url();
        let mut pipeline =
            Pipeline::with_layout(&url, &brokers(), "unordered", kind.layout, "").await;
        let head = format!("[pipelines.{}]\n", pipeline.name);
        pipeline.config = pipeline.config.replace(&head, &format!("{head}mode = \"{mode}\"\n"));
        pipeline.sql.batch(kind.same_time).await;
        let patient = Patient::new(&pipeline.config, &url);
        if mode == "poll" && kind.layout == "adr30" {
            pipeline.sql.batch("alter table outbox rename published_at to sent_at").await;
            let checked = patient.check(&[]);
            assert!(checked.find("poll_column").is_some(), "{checked}");
            assert!(checked.find("poll_order").is_some(), "{checked}");
            pipeline.sql.batch("alter table outbox rename sent_at to published_at").await;
        }
        let checked = patient.check(&[]);
        for cause in ["savepoint", "rolled back", "crash", "failover"] {
            let why = checked.expect("poll_order", "warning")["why"].to_string();
            assert!(why.contains(cause), "{cause}: {why}");
        }
        patient.fix(checked.expect("poll_order", "warning")).await;
        let checked = patient.check(&[]);
        assert!(checked.find("poll_order").is_none(), "{mode}: {checked}");
    }
}
