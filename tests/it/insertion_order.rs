//! The order of the events of one aggregate wherever the table is read, where only what PostgreSQL notes of its rows
//! tells it: savepoints, which have transaction numbers of their own; statements that were rolled back, which leave
//! their command in a row; and transactions that have a time in common.

use crate::await_that::{SOON, await_that};
use crate::pipeline::{Pipeline, drop_slot};
use crate::private::PrivatePostgres;
use crate::relay::postrider_ok;
use crate::server::{Version, brokers};
use crate::topic::{ReadRecord, Topic, Topics};

/// A table that does not record the order of events of one transaction.
struct Kind {
    layout: &'static str,
    table: &'static str,
    columns: &'static str,
    /// The time column, where it has one.
    time: Option<&'static str>,
    settings: &'static str,
}

/// Times with digits below the millisecond, and commit times without times.
const KINDS: [Kind; 2] = [
    Kind {
        layout: "adr30",
        table: "outbox",
        columns: "aggregate_type, aggregate_id, event_type, payload",
        time: Some("created_at"),
        settings: "",
    },
    Kind {
        layout: "debezium",
        table: "outboxevent",
        columns: "aggregatetype, aggregateid, type, payload",
        time: None,
        settings: "track_commit_timestamp = on",
    },
];

/// What one aggregate went through. Its events are numbered from 1, as they were inserted.
struct Case {
    what: &'static str,
    sql: String,
    events: usize,
}

/// Savepoints of one transaction, whose events lie in several pages.
const MANY: usize = 150;

/// The aggregate of rows that fill pages.
const OTHER: &str = "00000000-0000-4000-8000-ffffffffffff";

/// What aggregates of this kind go through.
///
/// `{row N}` inserts event N, and `{large N}` one that does not fit into the page behind `{fill 9}` and two events;
/// `{fill N}` inserts N rows of another aggregate; `{other}` is a statement that counts as a command; `{at TIME}` in
/// front gives all rows this time.
fn cases(kind: &Kind) -> Vec<Case> {
    let case = |what, events, sql: &str| Case { what, sql: sql.to_owned(), events };
    let pair = |n| format!("savepoint s; {{row {}}}; release s; {{row {}}};", 2 * n + 1, 2 * n + 2);
    let many: String = (0..MANY).map(pair).collect();
    let savepoints = [
        case("savepoint", 3, "begin; {row 1}; savepoint s; {row 2}; release s; {row 3}; commit"),
        case("savepoint first", 2, "begin; savepoint s; {row 1}; release s; {row 2}; commit"),
        case(
            "savepoint that is rolled back, and written again",
            3,
            "begin; {row 1}; savepoint s; {row 0}; rollback to s; {row 2}; release s; {row 3}; commit",
        ),
        case(
            "nested savepoints",
            5,
            "begin; {row 1}; savepoint s; {row 2}; savepoint t; {row 3}; release t; {row 4}; release s; {row 5}; \
             commit",
        ),
        case(
            "blocks with EXCEPTION",
            4,
            "begin; {row 1}; do $$ begin begin {row 0}; perform 1 / 0; exception when division_by_zero then {row 2}; \
             end; begin {row 3}; exception when others then raise; end; end $$; {row 4}; commit",
        ),
        case("many savepoints, in several pages", 2 * MANY, &format!("begin; {many} commit")),
    ];
    let rolled_back = [
        case(
            "DELETE that was rolled back",
            3,
            "begin; {row 1}; {row 2}; {row 3}; commit; \
             begin; {other} {other} {other} {other} {delete 1}; rollback",
        ),
        case(
            "UPDATE that was rolled back",
            3,
            "begin; {row 1}; {row 2}; {row 3}; commit; begin; {update 3}; rollback",
        ),
        case(
            "row lock that was given back",
            3,
            "begin; {row 1}; savepoint s; {row 2}; release s; {row 3}; commit; \
             begin; {other} {lock 2}; rollback",
        ),
    ];
    let mut cases: Vec<Case> = savepoints.into_iter().chain(rolled_back).collect();
    if kind.time.is_some() {
        cases.extend(in_pages());
    }
    cases.extend(of_two_transactions());
    cases
}

/// What only a table with a time column tells.
fn in_pages() -> Vec<Case> {
    let case = |what, events, sql: String| Case { what, sql, events };
    let mut cases = vec![case(
        "DELETE of a savepoint's row that was rolled back",
        3,
        "{fill 6} begin; {row 1}; savepoint s; {row 2}; release s; {row 3}; commit; \
             begin; {other} {other} {other} {other} {delete 2}; rollback"
            .to_owned(),
    )];
    let pages = "{fill 9} begin; {row 1}; {row 2}; {large 3}; {row 4}; commit; begin;";
    for (what, sql) in [
        ("UPDATE of the first row of a page that was rolled back", "{update 3};"),
        (
            "DELETE of the last row of a page that was rolled back",
            "{other} {other} {other} {other} {other} {delete 2};",
        ),
        ("row locks of a claim that was given back", "{lock 1}; {lock 2}; {lock 3};"),
    ] {
        cases.push(case(what, 4, format!("{pages} {sql} rollback")));
    }
    cases
}

/// The later transaction has the lower command, in the same page and in another one.
fn of_two_transactions() -> Vec<Case> {
    let case = |what, events, sql: String| Case { what, sql, events };
    let mut cases = Vec::new();
    for (what, at) in [
        ("transactions of one second", "2026-01-01 00:00:01+00"),
        ("transactions of one millisecond", "2026-01-01 00:00:01.123+00"),
        ("transactions of one microsecond", "2026-01-01 00:00:01.123456+00"),
    ] {
        let here =
            "begin; {other} {other} {row 1}; {other} {row 2}; commit; begin; {row 3}; commit;";
        let there = "{fill 6} begin; {other} {row 4}; commit";
        cases.push(case(what, 4, format!("{{at {at}}} {here} {there}")));
        let (here, there) =
            ("begin; {other} {other} {row 1}; commit;", "{fill 6} begin; {row 2}; commit");
        cases.push(case(what, 2, format!("{{at {at}}} {here} {there}")));
    }
    cases
}

fn aggregate(number: usize) -> String {
    format!("00000000-0000-4000-8000-{number:012}")
}

impl Kind {
    /// An event; its payload is a text that begins with its number.
    fn insert(&self, aggregate: &str, payload: &str, at: Option<&str>) -> String {
        let Self { table, columns, time, .. } = self;
        let (column, value) = match (time, at) {
            (Some(time), Some(at)) => (format!(", {time}"), format!(", '{at}'")),
            _ => (String::new(), String::new()),
        };
        format!(
            "insert into {table} ({columns}{column}) \
             values ('order', '{aggregate}', 'T', '\"{payload}\"'{value})"
        )
    }

    /// The statements of a case, for the aggregate of this id.
    fn statements(&self, case: &Case, aggregate: &str) -> String {
        let table = self.table;
        let of = self.columns.split(", ").nth(1).expect("the aggregate's id");
        let (mut out, mut rest, mut at) = (String::new(), case.sql.as_str(), None);
        while let Some((before, behind)) = rest.split_once('{') {
            let (word, behind) = behind.split_once('}').expect("the end of a word");
            out.push_str(before);
            rest = behind;
            let (word, what) = word.split_once(' ').unwrap_or((word, ""));
            let this = format!("{of} = '{aggregate}' and payload::text ~ '^\"{what}[ \"]'");
            let statement = match word {
                "at" => {
                    at = Some(what);
                    String::new()
                }
                "row" => self.insert(aggregate, what, at),
                "large" => self.insert(aggregate, &format!("{what} {}", "x".repeat(1_800)), at),
                "delete" => format!("delete from {table} where {this}"),
                "update" => format!("update {table} set payload = '0' where {this}"),
                "lock" => format!("select from {table} where {this} for update"),
                "other" => "insert into business values (1);".to_owned(),
                "fill" => {
                    let row = format!("{};", self.insert(OTHER, &"x".repeat(1_500), at));
                    row.repeat(what.parse().expect("a number"))
                }
                _ => unreachable!("{word}"),
            };
            out.push_str(&statement);
        }
        out + rest
    }

    /// A pipeline of this kind, which never ran.
    async fn pipeline(&self, version: Version, mode: &str) -> (PrivatePostgres, Pipeline) {
        let server = PrivatePostgres::start(version, self.settings).await;
        let (url, brokers) = (server.url(), brokers());
        let mut pipeline =
            Pipeline::with_layout(&url, &brokers, "insertion", self.layout, "").await;
        let head = format!("[pipelines.{}]\n", pipeline.name);
        pipeline.config = pipeline.config.replace(&head, &format!("{head}mode = \"{mode}\"\n"));
        if let Some(time) = self.time {
            // As now(), which has no digits below the millisecond one time in a thousand.
            let time = format!(
                "alter table {} alter {time} \
                 set default date_trunc('milliseconds', now()) + interval '123 microseconds'",
                self.table
            );
            pipeline.sql.batch(&time).await;
        }
        pipeline.sql.batch("create table business (x int)").await;
        (server, pipeline)
    }

    /// Goes through all cases.
    async fn write(&self, pipeline: &Pipeline) {
        for (number, case) in cases(self).iter().enumerate() {
            pipeline.sql.batch(&self.statements(case, &aggregate(number))).await;
        }
    }
}

/// The events of each case are there, in order, once.
async fn assert_in_order(topic: &Topic, kind: &Kind, by: &str) {
    let cases = cases(kind);
    let events = cases.iter().map(|case| case.events).sum();
    let of_cases = |record: &ReadRecord| record.key_text() != Some(OTHER);
    let records = await_that("the events of all cases", SOON, || async {
        let records = topic.read_all().await;
        let there = records.iter().filter(|record| of_cases(record)).count();
        if there >= events { Ok(records) } else { Err(there) }
    })
    .await;
    let mut wrong = Vec::new();
    for (number, case) in cases.iter().enumerate() {
        let key = aggregate(number);
        let of_it = records.iter().filter(|record| record.key_text() == Some(&key));
        let number = |record: &ReadRecord| -> usize {
            let value = record.value_text().expect("a payload").trim_matches('"');
            value.split(' ').next().and_then(|number| number.parse().ok()).expect("a number")
        };
        let numbers: Vec<usize> = of_it.map(number).collect();
        if numbers != (1..=case.events).collect::<Vec<_>>() {
            wrong.push(format!("{}: {numbers:?}", case.what));
        }
    }
    assert!(wrong.is_empty(), "{}, {by}: {wrong:#?}", kind.layout);
}

#[tokio::test]
async fn events_are_polled_in_the_order_in_which_they_were_inserted() {
    for (kind, version) in KINDS.iter().zip([Version::Pg17, Version::Pg15]) {
        let (_server, pipeline) = kind.pipeline(version, "poll").await;
        kind.write(&pipeline).await;
        let relay = pipeline.run();
        assert_in_order(&pipeline.topic, kind, "poll").await;
        assert_eq!(relay.terminate(SOON).await.code, Some(0));
    }
}

#[tokio::test]
async fn events_are_replayed_and_repaired_in_the_order_in_which_they_were_inserted() {
    for (kind, version) in KINDS.iter().zip([Version::Pg18, Version::Pg17]) {
        let (_server, pipeline) = kind.pipeline(version, "wal").await;
        kind.write(&pipeline).await;
        let again = Topics::new(&pipeline.topic.brokers, "again").create("again", 8).await;
        let replay = ["replay", "--source", "table", "--rate", "0", "--to", &again.name];
        if kind.time.is_some() {
            let since = ["--since", "2000-01-01T00:00:00Z"];
            postrider_ok(&pipeline.config, &[&replay[..], &since].concat());
        } else {
            for number in 0..cases(kind).len() {
                let aggregate = format!("order:{}", aggregate(number));
                let of = ["--aggregate", &aggregate];
                postrider_ok(&pipeline.config, &[&replay[..], &of].concat());
            }
        }
        assert_in_order(&again, kind, "replay").await;
        drop_slot(&pipeline).await;
        postrider_ok(&pipeline.config, &["repair"]);
        assert_in_order(&pipeline.topic, kind, "repair").await;
    }
}

#[tokio::test]
async fn events_of_before_the_slot_are_published_in_the_order_in_which_they_were_inserted() {
    for (kind, version) in KINDS.iter().zip([Version::Pg15, Version::Pg18]) {
        let (_server, pipeline) = kind.pipeline(version, "wal").await;
        postrider_ok(&pipeline.config, &["setup", "--undo", "--yes"]);
        kind.write(&pipeline).await;
        postrider_ok(&pipeline.config, &["setup", "--backfill", "all"]);
        let relay = pipeline.run();
        assert_in_order(&pipeline.topic, kind, "backfill").await;
        assert_eq!(relay.terminate(SOON).await.code, Some(0));
    }
}
