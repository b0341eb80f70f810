//! Values at the edges of their types, and names that only quotes make possible: published as they are.

use super::SOON;
use crate::answers::{Answer, answer};
use crate::await_that::await_that;
use crate::pipeline::Pipeline;
use crate::relay::{Relay, postrider_ok};
use crate::server::Version;
use crate::sink_caller::alter;
use crate::topic::ReadRecord;

const TABLE: &str = "create table weird (id text, aggregate_type text, aggregate_id text, event_type text, \
                     payload text, headers json, created_at timestamptz, amount numeric)";

/// A pipeline on a table of texts without any constraint, which `setup --create-table` would not make.
pub(super) async fn of_texts(version: Version) -> Pipeline {
    let mut pipeline = Pipeline::shared(version, "weird").await;
    pipeline.sql(&format!("{TABLE}; alter publication {{publication}} set table weird")).await;
    let extra =
        format!("[pipelines.{}.outbox.extra]\namount = {{ header = \"amount\" }}\n", pipeline.name);
    pipeline.config = pipeline.config.replace("public.outbox", "public.weird") + "\n" + &extra;
    pipeline
}

/// Inserts a row in which only one column is strange: its name, and its value in SQL.
pub(super) async fn insert(
    pipeline: &Pipeline,
    id: &str,
    aggregate: &str,
    column: &str,
    value: &str,
) {
    let (id, aggregate) = (format!("'{id}'"), format!("'{aggregate}'"));
    // Where the topic is the aggregate's type, it is the usual one.
    let kind = format!("'{}'", pipeline.topic.name);
    let usual = [
        ("id", id.as_str()),
        ("aggregate_type", kind.as_str()),
        ("aggregate_id", aggregate.as_str()),
        ("event_type", "'T'"),
        ("payload", id.as_str()),
        ("headers", "null"),
        ("created_at", "now()"),
        ("amount", "null"),
    ];
    let values = usual.map(|(name, usual)| if name == column { value } else { usual });
    pipeline.sql.batch(&format!("insert into weird values ({})", values.join(", "))).await;
}

/// The input, the column and its value, what of it is in the record, and how the page says it.
type Row = (&'static str, &'static str, &'static str, fn(&ReadRecord) -> bool, &'static str);

const ROWS: &[Row] = &[
    ("empty id", "id", "''", |r| r.header("id") == Some(""), "an empty header"),
    ("empty aggregate_id", "aggregate_id", "''", |r| r.key_text() == Some(""), "an empty key"),
    ("empty event_type", "event_type", "''", |r| r.header("type") == Some(""), "an empty header"),
    ("empty payload", "payload", "''", |r| r.value_text() == Some(""), "an empty value"),
    (
        "NULL payload",
        "payload",
        "null",
        |r| r.value.is_none(),
        "a tombstone, or as payload.null says",
    ),
    (
        "nested headers",
        "headers",
        r#"'{"a": {"b": [1, {"c": null}]}, "n": 1.50, "t": null, "s": "x\ny\u0000", "e": ""}'"#,
        |r| {
            r.header("a") == Some(r#"{"b": [1, {"c": null}]}"#)
                && (r.header("n"), r.header("t")) == (Some("1.50"), Some("null"))
                && (r.header("s"), r.header("e")) == (Some("x\ny\0"), Some(""))
        },
        "members as JSON, strings as they are",
    ),
    (
        "1,000 headers",
        "headers",
        "(select json_object_agg('h' || i, i) from generate_series(1, 1000) i)",
        |r| {
            let own = r.headers.iter().filter(|(name, _)| name.starts_with('h'));
            own.map(|(name, _)| name.clone()).eq((1..=1000).map(|i| format!("h{i}")))
        },
        "all of them, in order",
    ),
    (
        "headers with one name twice",
        "headers",
        r#"'{"a": 1, "b": 2, "a": 3}'"#,
        |r| {
            let own = r.headers.iter().filter(|(name, _)| name.len() == 1);
            let own: Vec<_> = own.map(|(_, value)| value.clone().unwrap_or_default()).collect();
            own == [b"1", b"2", b"3"]
        },
        "both, in order (`jsonb` keeps the last)",
    ),
    (
        "key with NUL-like escapes",
        "aggregate_id",
        r"'a\0b\x00c\u0000d%00'",
        |r| r.key_text() == Some(r"a\0b\x00c\u0000d%00"),
        "character by character",
    ),
    (
        "key with emoji, joiners and marks",
        "aggregate_id",
        r"U&'\+01F980\200D\+01F468\FEFF\0301'",
        |r| r.key_text() == Some("\u{1f980}\u{200d}\u{1f468}\u{feff}\u{301}"),
        "as UTF-8",
    ),
    (
        "key with control characters",
        "aggregate_id",
        r"E'\b\f\n\r\t\x01\x7f '",
        |r| r.key_text() == Some("\u{8}\u{c}\n\r\t\u{1}\u{7f} "),
        "character by character",
    ),
    (
        "key of 1 MB",
        "aggregate_id",
        "repeat('k', 1048576)",
        |r| r.key.as_ref().is_some_and(|key| key.len() == 1 << 20),
        "whole, where the topic's max.message.bytes allows it",
    ),
    (
        "infinity as time",
        "created_at",
        "'infinity'",
        commit_time,
        "the commit's time is the timestamp",
    ),
    (
        "-infinity as time",
        "created_at",
        "'-infinity'",
        commit_time,
        "the commit's time is the timestamp",
    ),
    (
        "time in the year 10000",
        "created_at",
        "'10000-01-01 00:00:00Z'",
        commit_time,
        "the commit's time is the timestamp",
    ),
    (
        "time before Christ",
        "created_at",
        "'4713-01-02 00:00:00Z BC'",
        commit_time,
        "the commit's time is the timestamp",
    ),
    ("NULL as time", "created_at", "null", commit_time, "the commit's time is the timestamp"),
    ("numeric NaN", "amount", "'NaN'", |r| r.header("amount") == Some("NaN"), "as text"),
    (
        "numeric infinity",
        "amount",
        "'-Infinity'",
        |r| r.header("amount") == Some("-Infinity"),
        "as text",
    ),
];

/// Of this minute.
fn commit_time(record: &ReadRecord) -> bool {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let now = i64::try_from(now.expect("a clock").as_millis()).expect("a date");
    record.timestamp.is_some_and(|stamp| (now - stamp).abs() < 120_000)
}

#[tokio::test]
async fn values_at_the_edges_are_published_as_they_are_and_hold_nothing_up() {
    for version in [Version::Pg15, Version::Pg18] {
        let pipeline = of_texts(version).await;
        alter(&pipeline.topic, "max.message.bytes", "4000000").await;
        for (input, column, value, _, _) in ROWS {
            insert(&pipeline, input, "a", column, value).await;
        }
        let relay = pipeline.run();
        let records = pipeline.topic.await_records(ROWS.len(), SOON).await;
        assert_eq!(records.len(), ROWS.len());
        for (input, _, _, is_right, how) in ROWS {
            let record = records
                .iter()
                .find(|record| [record.header("id"), record.value_text()].contains(&Some(input)));
            let record = record.unwrap_or_else(|| panic!("{input} is not there"));
            assert!(is_right(record), "{input}: {:?} {:?}", record.timestamp, record.headers);
            answer(input, &pipeline, Answer::published(&format!("published: {how}")));
        }
        in_order(&records);
        assert_eq!(relay.terminate(SOON).await.code, Some(0));
    }
}

/// Those of the usual aggregate, which are of one partition, come as they were committed.
fn in_order(records: &[ReadRecord]) {
    let of_a = records.iter().filter(|record| record.key_text() == Some("a"));
    let seen: Vec<&str> =
        of_a.filter_map(|record| record.header("id").filter(|id| !id.is_empty())).collect();
    let wanted = ROWS.iter().filter(|(_, column, ..)| !["aggregate_id", "id"].contains(column));
    assert_eq!(seen, wanted.map(|(input, ..)| *input).collect::<Vec<_>>());
}

/// 63 bytes, as long as PostgreSQL's names may be: capitals, a blank, a dot, quotes, and letters of three bytes.
const NAME: &str = "Gro\u{df}e \"Stra\u{df}e\".'n' \u{43a}\u{43b}\u{44e}\u{447} \u{30c4}\u{30c4}\u{30c4}\u{30c4}\u{30c4}\u{30c4}$1 {x} %s;-- /\\";

#[tokio::test]
async fn names_that_need_quotes_are_taken_as_they_are() {
    for version in Version::ALL {
        let mut pipeline = Pipeline::shared(version, "names").await;
        assert_eq!(NAME.len(), 63, "{NAME}");
        let quoted = format!("\"{}\"", NAME.replace('"', "\"\""));
        let columns = format!(
            "\"select\" bigint generated always as identity, \"Order\" text, {quoted} text, \"group by\" text, \
             \"\u{43f}\u{43e}\u{43b}\u{435}\" json, \"from\" text"
        );
        pipeline
            .sql(&format!("create schema \"User\"; create table \"User\".{quoted} ({columns})"))
            .await;
        let toml = |text: &str| format!("{text:?}");
        let tables = format!(
            "columns = {{ id = \"select\", aggregate_type = \"Order\", aggregate_id = {}, event_type = \"group by\", \
             payload = \"\u{43f}\u{43e}\u{43b}\u{435}\", headers = \"\", time = \"\" }}\n\
             extra = {{ from = {{ header = \"from\" }} }}",
            toml(NAME)
        );
        let table = format!("\"User\".{quoted}");
        pipeline.config = pipeline.config.replace("\"public.outbox\"", &toml(&table));
        pipeline.config = pipeline.with_line("outbox", &tables);
        pipeline
            .sql("select pg_drop_replication_slot('{slot}'); drop publication {publication}; delete from postrider.cursor")
            .await;
        postrider_ok(&pipeline.config, &["setup"]);
        pipeline
            .sql
            .batch(&format!(
                "insert into {table} (\"Order\", {quoted}, \"group by\", \"\u{43f}\u{43e}\u{43b}\u{435}\", \"from\") \
                 values ('o', 'key', 'T', '1', 'there')"
            ))
            .await;
        let relay = Relay::spawn(&pipeline.config);
        let records = pipeline.topic.await_records(1, SOON).await;
        assert_eq!(records[0].key_text(), Some("key"));
        assert_eq!(
            (records[0].header("type"), records[0].header("from")),
            (Some("T"), Some("there"))
        );
        let commit = records[0].commit_lsn();
        await_that("the confirmation", SOON, || pipeline.confirmed(&commit)).await;
        assert_eq!(relay.terminate(SOON).await.code, Some(0));
        let how = "published: names are taken as the catalog has them";
        answer("quoted, mixed-case, 63-byte and Unicode names", &pipeline, Answer::published(how));
        answer("reserved words as names", &pipeline, Answer::published(how));
    }
}
