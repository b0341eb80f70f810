//! The statements of polling as snapshots, with names that must be quoted.

use super::claim::Place;
use super::dialect::{Dialect, column_type};
use super::row_status;
use super::spec::{Backoff, PollSpec};
use super::sql::{self, ClaimQuery, claim};
use super::table::TableShape;
use crate::names::TableName;
use expect_test::{expect, expect_file};
use postrider_core::outbox_rows::RowOutcome;
use postrider_core::row::{Kind, TableId, ValueType};
use postrider_core::row_state::{
    Condition, Failed, FailureLimit, NamedRowState, Pause, StateColumn, StateType,
};
use postrider_core::store::PipelineKey;
use postrider_core::zone::Zone;
use postrider_outbox::{Layout, OutboxSpec};
use std::fmt::Write as _;
use std::time::Duration;

const ASK: ClaimQuery<'_> =
    ClaimQuery { limit: 100, visible_in: None, without: Vec::new(), unready: false };

fn states(layout: Layout) -> NamedRowState {
    OutboxSpec::for_layout(layout).row_state()
}

fn spec(layout: Layout) -> PollSpec {
    PollSpec {
        key: PipelineKey::first("orders"),
        table: TableName::new("public", "outbox"),
        id: "id".to_owned(),
        aggregate_type: "aggregate_type".to_owned(),
        aggregate_id: "aggregate_id".to_owned(),
        time: Some("created_at".to_owned()),
        stamps: true,
        row_state: states(layout),
        delete: false,
        block_key: true,
        attempts_max: 10,
        backoff: Backoff::DEFAULT,
        zone: None,
    }
}

fn shape(id: &str) -> TableShape {
    let columns =
        [("id", id), ("aggregate_type", "text"), ("aggregate_id", "text"), ("payload", "jsonb")];
    TableShape::of(&columns)
}

fn place(line: u16) -> Place {
    Place { oid: 16_384, block: 7, line, xmin: 3 }
}

#[test]
fn a_number_is_the_order() {
    let sql = claim(&spec(Layout::Postrider), &shape("bigint"), &ASK);
    expect_file!["snapshots/delete.sql"].assert_eq(&sql);
}

#[test]
fn a_random_id_is_ordered_by_its_time_and_what_is_unready_blocks() {
    let ask = ClaimQuery {
        limit: 5,
        visible_in: Some("10:20:10,14"),
        without: vec!["order\u{1f}it's"],
        unready: false,
    };
    let shape = TableShape::of(&[
        ("id", "uuid"),
        ("aggregate_type", "text"),
        ("aggregate_id", "text"),
        ("payload", "jsonb"),
        ("created_at", "timestamp with time zone"),
    ]);
    let sql = claim(&spec(Layout::Gcx), &shape, &ask);
    expect_file!["snapshots/gcx.sql"].assert_eq(&sql);
}

#[test]
fn names_are_quoted_everywhere() {
    let mut spec = spec(Layout::Commerce);
    for (column, name) in [
        ("processed_at", "Done \"at\""),
        ("attempts", "Versüche"),
        ("available_at", "not' before"),
        ("last_error", "select"),
    ] {
        spec.row_state = spec.row_state.with_name(column, name);
    }
    spec.table = TableName::new("my schema", "out\"box");
    spec.id = "Id\\".to_owned();
    spec.aggregate_id = "номер".to_owned();
    let mut shape = TableShape::of(&[
        ("Id\\", "bigint"),
        ("aggregate_type", "text"),
        ("номер", "text"),
        ("Versüche", "smallint"),
        ("select", "text"),
    ]);
    shape.dlq = Some(["Id\\", "Versüche", "select"].map(str::to_owned).into());
    let failed = RowOutcome::Failed { error: "it's 'too' large\n".to_owned(), code: "too_large" };
    let outcomes = [RowOutcome::Published, failed, RowOutcome::Held, RowOutcome::Moved];
    let places = [place(1), place(2), place(3), Place { oid: 16_385, ..place(4) }];
    let marked = sql::settle(&spec, &shape, &places, &outcomes);
    assert_eq!(marked.rows, 3);
    let all = [claim(&spec, &shape, &ASK), marked.sql, row_status::sql(&spec, &shape).unwrap()];
    expect_file!["snapshots/names.sql"].assert_eq(&all.join("\n\n"));
}

#[test]
fn each_layout_has_its_marks() {
    let mut all = String::new();
    for layout in [Layout::Postrider, Layout::Adr30, Layout::Gcx, Layout::Sqlgarden] {
        let spec = spec(layout);
        let failed = RowOutcome::Failed { error: String::new(), code: "x" };
        let outcomes = [RowOutcome::Published, failed];
        let outcomes = if spec.keeps_failures() { &outcomes[..] } else { &outcomes[..1] };
        let marked = sql::settle(&spec, &shape("uuid"), &[place(1), place(2)], outcomes);
        all.push_str(&marked.sql);
        all.push_str(&sql::expire(&spec, &shape("uuid"), &[place(3)]).sql);
        all.push('\n');
    }
    expect_file!["snapshots/marks.sql"].assert_eq(&all);
}

/// Every piece of SQL that a layout's description makes, with times that are points in time, and with local ones.
#[test]
fn each_layout_is_rendered() {
    let mut all = String::new();
    for layout in [
        Layout::Postrider,
        Layout::Adr30,
        Layout::Commerce,
        Layout::Gcx,
        Layout::Sqlgarden,
        Layout::Pgtrickle,
    ] {
        for (times, zone) in [
            ("timestamp with time zone", None),
            ("timestamp without time zone", Zone::named("Europe/Berlin")),
        ] {
            let spec = PollSpec { zone, ..spec(layout) };
            all.push_str(&rendered(&spec, &format!("{layout:?}: {times}"), times));
        }
    }
    expect_file!["snapshots/layouts.sql"].assert_eq(&all);
}

fn rendered(spec: &PollSpec, title: &str, times: &str) -> String {
    let state = spec.row_state.state;
    let columns: Vec<(&str, &str)> = state_columns(spec, times);
    let mut shape = TableShape::of(&columns);
    shape.dlq = spec.dlq().map(|_| columns.iter().map(|(name, _)| (*name).to_owned()).collect());
    let dialect = Dialect::new(spec, &shape);
    let mut out = format!("==== {title}\n");
    for name in spec.row_state.columns() {
        let _infallible = writeln!(out, "column {name}: {}", column_type(spec, name));
    }
    for (name, condition, row) in [
        ("not done", Some(&state.not_done), "o"),
        ("unpublished", Some(&state.unpublished), "o"),
        ("ready", Some(&state.ready), "o"),
        ("blocked", state.blocked.as_ref(), "b"),
        ("delayed", state.delayed.as_ref(), "b"),
        ("indexed", Some(&state.indexed), ""),
        ("expired", state.expired.as_ref().map(|expiry| &expiry.condition), "o"),
        ("removable", state.removable.as_ref(), "o"),
    ] {
        let condition = condition
            .map_or_else(|| "none".to_owned(), |condition| dialect.condition(condition, row));
        let _infallible = writeln!(out, "{name}: {condition}");
    }
    let failed = |error: &str| RowOutcome::Failed { error: error.to_owned(), code: "x" };
    for (name, outcome) in [("done", RowOutcome::Published), ("failed", failed("it's"))] {
        let marked = sql::settle(spec, &shape, &[place(1)], &[outcome]);
        let _infallible = writeln!(out, "{name}: {}", or_none(&marked.sql));
    }
    let expired = sql::expire(spec, &shape, &[place(1)]);
    let _infallible = writeln!(out, "expire: {}", or_none(&expired.sql));
    out
}

fn or_none(sql: &str) -> &str {
    if sql.is_empty() { "none" } else { sql.trim_end() }
}

fn state_columns<'a>(spec: &'a PollSpec, times: &'a str) -> Vec<(&'a str, &'a str)> {
    let mut columns = vec![("id", "bigint")];
    let names = spec.row_state.columns().into_iter();
    columns.extend(names.map(|name| {
        let is_time = matches!(
            spec.row_state.column_type(name),
            Some(StateType::Time | StateType::InsertTime)
        );
        (name, if is_time { times } else { "text" })
    }));
    columns
}

/// Words of the description that no layout uses in this way yet.
#[test]
fn each_word_is_rendered() {
    const A: StateColumn = StateColumn::new("a");
    const FAILED: Failed = Failed {
        counter: A,
        limit: FailureLimit::Configured,
        pause: Pause::InMemory,
        set: &[],
        dead_letters: None,
    };
    let spec = spec(Layout::Postrider);
    let dialect = Dialect::without_types(&spec);
    let shown = [
        Condition::Not(&Condition::Always),
        Condition::Not(&Condition::IsNull(A)),
        Condition::Not(&Condition::IsZero(A)),
        Condition::Not(&Condition::IsOneOf(A, &["it's", "b"])),
        Condition::Not(&Condition::Any(&[Condition::IsNull(A), Condition::Is(A, "b")])),
        Condition::Not(&Condition::All(&[Condition::IsNull(A), Condition::Is(A, "b")])),
        Condition::Not(&Condition::Not(&Condition::Is(A, "b"))),
    ]
    .map(|condition| dialect.condition(&condition, "o"));
    expect![[r#"
        NOT (true)
        o."a" IS NOT NULL
        NOT (o."a" = 0)
        NOT (o."a" IN ('it''s', 'b'))
        NOT (o."a" IS NULL OR o."a" = 'b')
        NOT (o."a" IS NULL AND o."a" = 'b')
        NOT (o."a" <> 'b')"#]]
    .assert_eq(&shown.join("\n"));
    assert_eq!(dialect.limit(&FAILED, "<"), "o.\"a\" + 1 < 10");
}

#[test]
fn rows_of_the_stream_are_marked_by_their_id() {
    let spec = PollSpec { delete: true, ..spec(Layout::Sqlgarden) };
    expect![[r#"
        WITH e AS MATERIALIZED (
          SELECT w.id, w.xid, w.at, w.ms, w.visible, w.lane, w.n
          FROM unnest($1::text[], $2::int8[], $3::int8[], $4::int8[], $5::bool[], $6::int8[])
            WITH ORDINALITY AS w(id, xid, at, ms, visible, lane, n)
        ), k AS MATERIALIZED (
          SELECT o.tableoid AS oid, o.ctid AS tid, concat(o."id") AS id FROM "public"."outbox" AS o
          WHERE o."id" OPERATOR(pg_catalog.=) ANY (($1::text[])::bigint[]) AND o."status" <> 'PUBLISHED'
            AND ((concat(o."id"), o.xmin::text::int8) IN (SELECT e.id, e.xid FROM e WHERE e.xid IS NOT NULL)
              OR concat(o."id") IN (SELECT e.id FROM e WHERE e.at IS NULL)
              OR CASE WHEN CASE WHEN current_setting('track_commit_timestamp') = 'on' THEN (extract(epoch FROM pg_xact_commit_timestamp(o.xmin) - timestamptz '2000-01-01 00:00:00+00') * 1000000)::int8 END IS NOT NULL
                THEN (concat(o."id"), CASE WHEN current_setting('track_commit_timestamp') = 'on' THEN (extract(epoch FROM pg_xact_commit_timestamp(o.xmin) - timestamptz '2000-01-01 00:00:00+00') * 1000000)::int8 END) IN (SELECT e.id, e.at FROM e WHERE e.at IS NOT NULL)
                ELSE true END)
          ORDER BY o."id" FOR UPDATE SKIP LOCKED
        ), l AS MATERIALIZED (
          SELECT concat(o."id") AS id FROM "public"."outbox" AS o
          WHERE o."id" OPERATOR(pg_catalog.=) ANY (($1::text[])::bigint[]) AND o."status" <> 'PUBLISHED'
            AND ((concat(o."id"), o.xmin::text::int8) IN (SELECT e.id, e.xid FROM e WHERE e.xid IS NOT NULL)
              OR concat(o."id") IN (SELECT e.id FROM e WHERE e.at IS NULL)
              OR CASE WHEN CASE WHEN current_setting('track_commit_timestamp') = 'on' THEN (extract(epoch FROM pg_xact_commit_timestamp(o.xmin) - timestamptz '2000-01-01 00:00:00+00') * 1000000)::int8 END IS NOT NULL
                THEN (concat(o."id"), CASE WHEN current_setting('track_commit_timestamp') = 'on' THEN (extract(epoch FROM pg_xact_commit_timestamp(o.xmin) - timestamptz '2000-01-01 00:00:00+00') * 1000000)::int8 END) IN (SELECT e.id, e.at FROM e WHERE e.at IS NOT NULL)
                ELSE true END)
            AND (o.tableoid, o.ctid) NOT IN (SELECT k.oid, k.tid FROM k)
          UNION ALL SELECT w.id FROM e AS w
          WHERE NOT w.visible
            AND NOT pg_visible_in_snapshot(((SELECT pg_snapshot_xmax(pg_current_snapshot())::text::int8) - ((((SELECT pg_snapshot_xmax(pg_current_snapshot())::text::int8) - w.xid + 2147483648) & 4294967295) - 2147483648))::text::xid8, pg_current_snapshot())
        ), b AS MATERIALIZED (
          SELECT w.lane, min(w.n) AS n FROM e AS w
          WHERE w.id IN (SELECT l.id FROM l) GROUP BY w.lane
        ), u AS MATERIALIZED (
          SELECT k.oid, k.tid FROM k
          WHERE k.id NOT IN (SELECT l.id FROM l
            UNION ALL SELECT w.id FROM e AS w JOIN b ON b.lane = w.lane WHERE w.n > b.n)
        ), m AS (
          DELETE FROM "public"."outbox" AS o
          USING u WHERE o.tableoid = u.oid AND o.ctid = u.tid
          RETURNING 1
        )
        SELECT (SELECT count(*) FROM u), (SELECT count(*) FROM m), ARRAY(SELECT l.id FROM l)"#]]
    .assert_eq(&row_status::sql(&spec, &shape("bigint")).unwrap());
}

#[test]
fn an_error_is_kept_short_and_in_one_line() {
    let spec = spec(Layout::Commerce);
    let error = format!("zero\0 line\n{}", "x".repeat(10_000));
    let failed = RowOutcome::Failed { error, code: "refused" };
    let marked = sql::settle(&spec, &shape("bigint"), &[place(1)], &[failed]);
    assert!(marked.sql.contains("'refused: zero  line xxx"), "{}", marked.sql);
    assert!(marked.sql.len() < sql::ERROR_CHARS_MAX + 500, "{}", marked.sql.len());
}

#[test]
fn failures_that_block_nothing_leave_their_aggregate_alone() {
    for layout in [Layout::Gcx, Layout::Sqlgarden] {
        let spec = PollSpec { block_key: false, ..spec(layout) };
        assert!(!claim(&spec, &shape("uuid"), &ASK).contains("NOT EXISTS"));
    }
}

#[test]
fn pauses_grow_to_a_bound() {
    let secs: Vec<u64> =
        [0, 1, 7, 8, 9, u32::MAX].map(|n| Backoff::DEFAULT.after(n).as_secs()).into();
    assert_eq!(secs, [0, 30, 210, 240, 240, 240]);
    let backoff = Backoff { step: Duration::MAX, steps_max: u32::MAX };
    assert_eq!(backoff.after(u32::MAX), Duration::MAX);
}

#[test]
fn the_table_is_described_as_the_stream_describes_it() {
    let described = shape("bigint").description(&TableName::new("Ä", "outbox"));
    let table = described.as_table();
    assert_eq!((table.id, table.schema, table.name), (TableId(16_384), "Ä", "outbox"));
    let text = ValueType::of(Kind::Text);
    let columns: Vec<_> = table.columns.iter().map(|c| (c.name.as_str(), c.of)).collect();
    let expected = ["id", "aggregate_type", "aggregate_id", "payload"].map(|name| (name, text));
    assert_eq!(columns, expected);
}
