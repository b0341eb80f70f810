//! The marks, column by column, beside the statements of the places the layouts come from.

use super::*;
use crate::await_that::{SOON, await_that};
use postrider::event::Aggregate;
use postrider::offset::Offset;
use postrider::parked::Lane;
use postrider::postgres::lock_holders::Holder;
use postrider::postgres::poll::row_status::{PublishedRow, StatusWriter, WritingTransaction};
use postrider::postgres::{Statement, StatementError};
use postrider::store::PipelineKey;
use postrider::timestamp::Timestamp;
use std::collections::HashSet;
use std::iter::once;

/// A layout, rows of it, and what its own relay runs on row 1 (published) and row 2 (failed).
struct Case {
    layout: Layout,
    table: &'static str,
    rows: &'static str,
    published: &'static str,
    failed: &'static str,
}

const ID: &str = "'00000000-0000-4000-8000-00000000000";

const COMMERCE: Case = Case {
    layout: Layout::Commerce,
    table: "outbox_messages",
    rows: "insert into outbox_messages (tenant_id, aggregate_type, aggregate_id, event_type, payload, trace_id)
           select 1, 'Order', n, 'OrderConfirmed', '{}', 't' from generate_series(1, 3) n",
    published: "update {t} set processed_at = now() where id = any('{1}'::bigint[])",
    failed: "update {t} set attempts = attempts + 1,
             available_at = now() + (least(attempts + 1, 8) * interval '30 seconds'),
             last_error = 'too_large: the broker''s limit is ''smaller''' where id = 2",
};

/// The seed has its table alone: the statements are what its columns say.
const GCX: Case = Case {
    layout: Layout::Gcx,
    table: "outbox",
    rows: "insert into outbox (id, aggregate_type, aggregate_id, event_type, topic, payload, created_at)
           select {id}' || n)::uuid, 'Order', {id}' || n)::uuid, 'x', 'orders', '{}', now() + n * interval '1 ms'
           from generate_series(1, 3) n",
    published: "update {t} set status = 'published', published_at = now() where id = {id}1'",
    failed: "update {t} set retry_count = retry_count + 1 where id = {id}2'",
};

const SQLGARDEN: Case = Case {
    layout: Layout::Sqlgarden,
    table: "outbox_events",
    rows: "insert into outbox_events (aggregate_type, aggregate_id, event_type, payload)
           select 'Order', n, 'x', '{}' from generate_series(1, 3) n",
    published: "update {t} set status = 'PUBLISHING', attempt_count = attempt_count + 1, last_attempt_at = now()
                where id = 1 and status in ('PENDING', 'FAILED');
                update {t} set status = 'PUBLISHED' where id = 1",
    failed: "update {t} set status = 'PUBLISHING', attempt_count = attempt_count + 1, last_attempt_at = now()
             where id = 2 and status in ('PENDING', 'FAILED');
             update {t} set status = 'FAILED' where id = 2",
};

const ADR30: Case = Case {
    layout: Layout::Adr30,
    table: "outbox",
    rows: "insert into outbox (id, aggregate_type, aggregate_id, event_type, payload, created_at)
           select {id}' || n)::uuid, 'booking', {id}' || n)::uuid, 'booking.created', '{}',
                  now() + n * interval '1 ms' from generate_series(1, 3) n",
    published: "update {t} set published_at = now() where id = {id}1'",
    failed: "select 1",
};

const POSTRIDER: Case = Case {
    layout: Layout::Postrider,
    table: "outbox",
    rows: "insert into outbox (aggregate_type, aggregate_id, event_type, payload)
           select 'order', n, 'x', '{}' from generate_series(1, 3) n",
    published: "delete from {t} where id = 1",
    failed: "select 1",
};

const DEBEZIUM: Case = Case {
    layout: Layout::Debezium,
    table: "outboxevent",
    rows: "insert into outboxevent (id, aggregatetype, aggregateid, type, payload)
           select {id}' || n)::uuid, 'Order', n, 'x', '{}' from generate_series(1, 3) n",
    published: "delete from {t} where id = {id}1'",
    failed: "select 1",
};

const CASES: [Case; 6] = [COMMERCE, GCX, SQLGARDEN, ADR30, POSTRIDER, DEBEZIUM];

fn fill(sql: &str, table: &str) -> String {
    // In a row the id's last digit is appended, in a condition it stands there.
    sql.replace("{id}' || n)", &format!("({ID}' || n)")).replace("{id}", ID).replace("{t}", table)
}

/// How far apart two times may be that two statements wrote for the same reason. Pauses differ by 30 s and more.
const APART_MAX: f64 = 20.0;

/// Every column of every row, by column and id; times as seconds since 1970.
async fn rows(client: &Client, table: &str) -> Vec<(String, Option<f64>)> {
    let sql = format!(
        "select concat(id, ' ', key, '=', case when time then 'a time' else coalesce(value, 'NULL') end),
                case when time then extract(epoch from value::timestamptz)::float8 end
         from (select t.id, key, value, coalesce(value ~ '^\\d{{4}}-\\d\\d-\\d\\dT', false) as time
               from {table} t, jsonb_each_text(to_jsonb(t))) as lines order by 1"
    );
    let rows = client.query(&sql, &[]).await.unwrap();
    rows.iter().map(|row| (row.get(0), row.get(1))).collect()
}

async fn assert_same(client: &Client, table: &str, twin: &str, what: &str) {
    let (marked, expected) = (rows(client, table).await, rows(client, twin).await);
    let same = |a: &(String, Option<f64>), b: &(String, Option<f64>)| {
        let apart = a.1.zip(b.1).map_or(0.0, |(a, b)| (a - b).abs());
        a.0 == b.0 && apart < APART_MAX
    };
    let all = marked.iter().zip(&expected).all(|(a, b)| same(a, b));
    assert!(all && marked.len() == expected.len(), "{what}\n{marked:#?}\nexpected {expected:#?}");
}

async fn with_twin(version: Version, case: &Case, test: &str) -> Outbox {
    let outbox = Outbox::create(version, case.layout, test).await;
    outbox.client.batch(&fill(case.rows, case.table)).await;
    outbox.client.batch(&format!("create table twin as table {}", case.table)).await;
    outbox
}

#[tokio::test]
async fn marks_are_those_of_the_layouts_own_statements() {
    for version in VERSIONS {
        for case in &CASES {
            let outbox = with_twin(version, case, "poll_marks").await;
            let mut poller = outbox.poller().await;
            let claim = poller.claim(100, None).await.unwrap();
            assert_eq!(claim.rows.len(), 3, "{:?}", case.layout);
            let second = if outbox.spec.keeps_failures() { failed() } else { RowOutcome::Held };
            poller.settle(claim, &[RowOutcome::Published, second, RowOutcome::Held]).await.unwrap();
            outbox.client.batch(&fill(case.published, "twin")).await;
            outbox.client.batch(&fill(case.failed, "twin")).await;
            let what = format!("{version:?} {:?}", case.layout);
            assert_same(&outbox.client, case.table, "twin", &what).await;
        }
    }
}

#[tokio::test]
async fn what_is_moved_elsewhere_counts_as_published_and_delete_deletes_everywhere() {
    for case in &CASES {
        let mut outbox = with_twin(Version::Pg18, case, "poll_moved").await;
        let mut poller = outbox.poller().await;
        let claim = poller.claim(1, None).await.unwrap();
        assert!(claim.more && claim.rows.len() == 1, "{:?}", case.layout);
        poller.settle(claim, &[RowOutcome::Moved]).await.unwrap();
        outbox.client.batch(&fill(case.published, "twin")).await;
        let what = format!("{:?}", case.layout);
        assert_same(&outbox.client, case.table, "twin", &what).await;
        drop(poller);

        outbox.spec.delete = true;
        outbox.spec.key = PipelineKey::first("another");
        let mut poller = outbox.poller().await;
        assert_eq!(outbox.drain(&mut poller, 10).await.len(), 2, "{:?}", case.layout);
        let left = outbox.client.text(&format!("select count(*) from {}", case.table)).await;
        let marked = if outbox.spec.row_state.has_status() { "1" } else { "0" };
        assert_eq!(left.as_deref(), Some(marked), "{:?}", case.layout);
    }
}

#[tokio::test]
async fn an_eleventh_failure_moves_a_commerce_row_to_the_dead_letters() {
    for version in VERSIONS {
        let outbox = with_twin(version, &COMMERCE, "poll_dlq").await;
        outbox.client.batch("update outbox_messages set attempts = 9 where id = 1; update twin set attempts = 9 where id = 1").await;
        let mut poller = outbox.poller().await;
        for failures in [10, 11] {
            outbox
                .client
                .batch("update outbox_messages set available_at = now() where id = 1")
                .await;
            let claim = poller.claim(1, None).await.unwrap();
            assert_eq!(outbox.ids(&poller, &claim), ["1/1"], "failure {failures}");
            poller.settle(claim, &[failed()]).await.unwrap();
            outbox.client.batch(&fill(COMMERCE.failed, "twin").replace("id = 2", "id = 1")).await;
        }
        // The seed's own move.
        outbox
            .client
            .batch(
                "create table twin_dlq (like outbox_messages);
                 with moved as (delete from twin where id = 1 returning *) insert into twin_dlq select * from moved",
            )
            .await;
        assert_same(&outbox.client, "outbox_messages_dlq", "twin_dlq", "outbox_messages_dlq").await;
        assert_same(&outbox.client, "outbox_messages", "twin", "outbox_messages").await;
    }
}

#[tokio::test]
async fn failures_of_gcx_rest_and_the_last_one_blocks_its_aggregate_until_a_person_acts() {
    let mut outbox = with_twin(Version::Pg15, &GCX, "poll_gcx").await;
    outbox
        .client
        .batch(&fill("update outbox set aggregate_id = {id}1', max_retries = 2", ""))
        .await;
    let mut poller = outbox.poller().await;
    let claim = poller.claim(10, None).await.unwrap();
    poller.settle(claim, &[failed(), RowOutcome::Held, RowOutcome::Held]).await.unwrap();
    assert_eq!(poller.claim(10, None).await.unwrap().rows.len(), 0, "it rests");
    drop(poller);
    outbox.spec.key = PipelineKey::first("again");
    let mut poller = outbox.poller().await;
    let claim = poller.claim(10, None).await.unwrap();
    poller.settle(claim, &[failed(), RowOutcome::Held, RowOutcome::Held]).await.unwrap();
    let status = "select string_agg(status || retry_count, ' ' order by id) from outbox";
    assert_eq!(outbox.client.text(status).await.as_deref(), Some("failed2 pending0 pending0"));
    drop(poller);
    outbox.spec.key = PipelineKey::first("third");
    let mut poller = outbox.poller().await;
    let claim = poller.claim(10, None).await.unwrap();
    assert_eq!((claim.rows.len(), claim.withheld), (0, 2));
    outbox
        .client
        .batch("update outbox set status = 'pending', retry_count = 0 where status = 'failed'")
        .await;
    assert_eq!(outbox.drain(&mut poller, 10).await.len(), 3);
}

#[tokio::test]
async fn expired_rows_are_marked_and_counted_and_hold_nothing_back() {
    let outbox = with_twin(Version::Pg18, &GCX, "poll_expired").await;
    outbox.client.batch(&fill("update outbox set aggregate_id = {id}1'", "")).await;
    outbox.client.batch(&fill("update outbox set expires_at = now() where id = {id}1'", "")).await;
    let mut poller = outbox.poller().await;
    let claim = poller.claim(1, None).await.unwrap();
    assert_eq!((claim.rows.len(), claim.expired, claim.more), (1, 1, true));
    published(&mut poller, claim).await;
    assert_eq!(outbox.drain(&mut poller, 1).await.len(), 1);
    let status = "select string_agg(status || retry_count, ' ' order by id) from outbox";
    assert_eq!(outbox.client.text(status).await.as_deref(), Some("failed0 published0 published0"));
}

/// The row's event is parked, and will be parked again at the place of the row.
#[tokio::test]
async fn expired_row_that_the_caller_keeps_is_claimed_in_its_order() {
    let outbox = with_twin(Version::Pg18, &GCX, "poll_expired_kept").await;
    outbox.client.batch(&fill("update outbox set aggregate_id = {id}1'", "")).await;
    outbox.client.batch(&fill("update outbox set expires_at = now() where id = {id}1'", "")).await;
    let id = outbox.client.text("select id::text from outbox where expires_at <= now()").await;
    let mut poller = outbox.poller().await;
    let keeps = |row: &str| Some(row) == id.as_deref();
    let claim = poller.claim_beside(10, false, &keeps).await.unwrap();
    assert_eq!((claim.rows.len(), claim.expired), (3, 0));
    published(&mut poller, claim).await;
    assert_eq!(outbox.drain(&mut poller, 10).await.len(), 0);
}

#[tokio::test]
async fn rows_that_the_stream_brought_are_marked_by_their_ids() {
    for version in VERSIONS {
        for case in &CASES {
            let outbox = with_twin(version, case, "poll_wal_marks").await;
            let client = outbox.database.connect().await;
            client.batch("set search_path = ''").await;
            let marker = StatusWriter::prepare(&client, &outbox.spec).await.unwrap();
            let id = client
                .text(&format!("select min(id::text) from public.{}", case.table))
                .await
                .unwrap();
            for _ in ["once", "twice does nothing"] {
                let left = marker.mark(&client, &[event(1, None, &id)], &HashSet::new()).await;
                assert!(left.unwrap().is_empty());
            }
            outbox.client.batch(&fill(case.published, "twin")).await;
            let what = format!("{version:?} {:?}", case.layout);
            assert_same(&outbox.client, case.table, "twin", &what).await;
        }
    }
}

fn of(xid: u32) -> WritingTransaction {
    WritingTransaction { xid: Some(xid), ..WritingTransaction::default() }
}

/// An event of the stream, at a position of its own.
fn event(number: u64, aggregate: Option<&str>, id: &str) -> PublishedRow {
    let position = Position { commit: Offset::new(number * 8), ordinal: 0 };
    let lane = aggregate.map(|id| Lane::of(Aggregate { kind: "order", id }));
    PublishedRow {
        position,
        lane,
        id: id.to_owned(),
        written: WritingTransaction::default(),
        visible: true,
    }
}

/// A session as the relay's, and a marker on it.
async fn marker(outbox: &Outbox) -> (Client, StatusWriter) {
    let client = outbox.database.connect().await;
    client.batch("set search_path = ''").await;
    let marker = StatusWriter::prepare(&client, &outbox.spec).await.unwrap();
    (client, marker)
}

/// Whoever casts a text to the type `gated` waits while a test holds the lock: a statement that compares ids has its
/// snapshot then, and nothing else.
const GATE: &str = "create type gated; \
    create function gated_in(cstring) returns gated language internal immutable strict as 'textin'; \
    create function gated_out(gated) returns cstring language internal immutable strict as 'textout'; \
    create type gated (input = gated_in, output = gated_out, like = text, collatable = true); \
    create function gated_lt(gated, gated) returns boolean language internal immutable strict as 'text_lt'; \
    create function gated_le(gated, gated) returns boolean language internal immutable strict as 'text_le'; \
    create function gated_eq(gated, gated) returns boolean language internal immutable strict as 'texteq'; \
    create function gated_ge(gated, gated) returns boolean language internal immutable strict as 'text_ge'; \
    create function gated_gt(gated, gated) returns boolean language internal immutable strict as 'text_gt'; \
    create function gated_cmp(gated, gated) returns integer language internal immutable strict as 'bttextcmp'; \
    create operator < (leftarg = gated, rightarg = gated, function = gated_lt); \
    create operator <= (leftarg = gated, rightarg = gated, function = gated_le); \
    create operator = (leftarg = gated, rightarg = gated, function = gated_eq); \
    create operator >= (leftarg = gated, rightarg = gated, function = gated_ge); \
    create operator > (leftarg = gated, rightarg = gated, function = gated_gt); \
    create operator class gated_ops default for type gated using btree as operator 1 <, operator 2 <=, \
      operator 3 =, operator 4 >=, operator 5 >, function 1 gated_cmp(gated, gated); \
    create function to_gated(text) returns gated language plpgsql volatile as \
      $$ begin perform pg_catalog.pg_advisory_xact_lock_shared(4242); \
      return public.gated_in(pg_catalog.textout($1)); end $$; \
    create cast (text as gated) with function to_gated(text)";

/// What another session commits between the snapshot of a mark and its look at the row.
const CHANGES: [&str; 3] = [
    "update {t} set payload = payload where id::text = '{id}'",
    "delete from {t} where id::text = '{id}'",
    "update {t} set {key} = {value} where id::text = '{id}'",
];

/// The first row of the case is changed by a transaction that the mark's snapshot does not see. It gets its mark.
async fn marked_behind_its_snapshot(outbox: &Outbox, table: &str, change: &str) {
    marked_with(outbox, table, change, &[]).await;
}

/// As [`marked_behind_its_snapshot`], with further events of these ids.
async fn marked_with(outbox: &Outbox, table: &str, change: &str, further: &[&str]) {
    let id = outbox.client.text(&format!("select min(id::text) from {table}")).await.unwrap();
    let (client, marker) = marker(outbox).await;
    let gate = outbox.database.connect().await;
    gate.batch("select pg_advisory_lock(4242)").await;
    let further = further.iter().map(|id| event(2, Some("b"), id));
    let rows: Vec<PublishedRow> = once(event(1, Some("a"), &id)).chain(further).collect();
    let none = HashSet::new();
    // Of this database alone: other tests wait on the same server.
    let waits = "select count(*)::text from pg_locks where locktype = 'advisory' and not granted \
                 and database = (select oid from pg_database where datname = current_database())";
    let change_it = async {
        await_that("a mark that has its snapshot", SOON, || async {
            match gate.text(waits).await.as_deref() {
                Some("1") => Ok(()),
                other => Err(format!("{other:?}")),
            }
        })
        .await;
        // The trigger of the type is the marker's own business.
        gate.batch(&change.replace("{t}", table).replace("{id}", &id)).await;
        gate.batch("select pg_advisory_unlock(4242)").await;
    };
    let (left, ()) = tokio::join!(marker.mark(&client, &rows, &none), change_it);
    assert_eq!(left.unwrap(), Vec::<usize>::new(), "{table}: {change}");
}

#[tokio::test]
async fn mark_reaches_a_row_that_was_changed_behind_its_snapshot() {
    for version in VERSIONS {
        for case in &CASES {
            for change in &CHANGES[..2] {
                let outbox = with_twin(version, case, "poll_race").await;
                let table = case.table;
                outbox.client.batch(GATE).await;
                let gated = format!(
                    "alter table {table} alter id drop identity if exists; \
                     alter table {table} alter id drop default; \
                     alter table {table} alter id type gated using id::text::gated"
                );
                outbox.client.batch(&gated).await;
                marked_behind_its_snapshot(&outbox, table, change).await;
                let what = format!("{version:?} {:?} {change}", case.layout);
                if change.starts_with("delete") {
                    let gone = fill("delete from {t} where id::text = {id}1'", "twin");
                    outbox.client.batch(&gone.replace(ID, "'").replace("''1'", "'1'")).await;
                    let left = format!("select count(*)::text from {table}");
                    assert_eq!(outbox.client.text(&left).await.as_deref(), Some("2"), "{what}");
                } else {
                    outbox.client.batch(&fill(case.published, "twin")).await;
                    assert_same(&outbox.client, table, "twin", &what).await;
                }
            }
        }
    }
}

/// A table that an application partitions by a column of its own, and an UPDATE that moves the row.
#[tokio::test]
async fn mark_reaches_a_row_that_was_moved_to_another_partition_behind_its_snapshot() {
    for version in VERSIONS {
        for layout in [Layout::Postrider, Layout::Adr30] {
            let marks = OutboxSpec::for_layout(layout).row_state();
            let mut outbox =
                Outbox::with(version, OutboxSpec::for_layout(Layout::Postrider), "poll_moves")
                    .await;
            outbox.client.batch(GATE).await;
            outbox
                .client
                .batch(
                    "create table outbox (id gated, region text, aggregate_type text, aggregate_id text, \
                       event_type text, payload json, headers json, created_at timestamptz default now(), \
                       published_at timestamptz, primary key (id, region)) partition by list (region); \
                     create table outbox_a partition of outbox for values in ('a'); \
                     create table outbox_b partition of outbox for values in ('b'); \
                     insert into outbox (id, region, aggregate_type, aggregate_id, event_type, payload) \
                       select i::text::gated, 'a', 'order', 'a', 'T', '1' from generate_series(1, 2) i",
                )
                .await;
            outbox.spec.row_state = marks;
            let moves = CHANGES[2].replace("{key}", "region").replace("{value}", "'b'");
            marked_behind_its_snapshot(&outbox, "outbox", &moves).await;
            let left =
                "select string_agg(id::text || region, ' ') from outbox where published_at is null";
            let left = outbox.client.text(left).await;
            assert_eq!(left.as_deref(), Some("2a"), "{version:?} {layout:?}");
        }
    }
}

/// A walsender sends a commit before other sessions see its rows: with a synchronous standby that is down, long before.
#[tokio::test]
async fn mark_of_a_row_that_is_not_visible_yet_waits_until_it_is() {
    for version in VERSIONS {
        for layout in [Layout::Postrider, Layout::Adr30] {
            let marks = OutboxSpec::for_layout(layout).row_state();
            let mut outbox =
                Outbox::with(version, OutboxSpec::for_layout(Layout::Postrider), "poll_unseen")
                    .await;
            outbox
                .client
                .batch(
                    "create table outbox (id bigint primary key, aggregate_type text, aggregate_id text, \
                       event_type text, payload json, headers json, created_at timestamptz default now(), \
                       published_at timestamptz)",
                )
                .await;
            outbox.spec.row_state = marks;
            let (client, marker) = marker(&outbox).await;
            let writer = outbox.database.connect().await;
            writer.batch("begin").await;
            let insert = "insert into outbox (id, aggregate_type, aggregate_id, event_type, payload) \
                          values ({id}, 'order', 'a', 'T', '1')";
            writer.batch(&insert.replace("{id}", "1")).await;
            let own = "select (pg_current_xact_id()::text::int8 & 4294967295)::text";
            let xid: u32 = writer.text(own).await.unwrap().parse().unwrap();
            outbox.client.batch(&insert.replace("{id}", "2")).await;
            let committed = outbox.client.text("select xmin::text from outbox where id = 2").await;
            let committed: u32 = committed.unwrap().parse().unwrap();
            let unseen =
                PublishedRow { written: of(xid), visible: false, ..event(1, Some("a"), "1") };
            let seen =
                PublishedRow { written: of(committed), visible: false, ..event(2, Some("b"), "2") };
            let deleted =
                PublishedRow { written: of(committed), visible: false, ..event(3, Some("c"), "3") };
            let rows = [unseen, seen, deleted];
            let left = marker.mark(&client, &rows, &HashSet::new()).await.unwrap();
            assert_eq!(left, [0], "{version:?} {layout:?}");
            writer.batch("commit").await;
            let left = marker.mark(&client, &rows, &HashSet::new()).await.unwrap();
            assert!(left.is_empty(), "{version:?} {layout:?}: {left:?}");
            let unmarked = "select count(*)::text from outbox where published_at is null";
            let unmarked = outbox.client.text(unmarked).await;
            assert_eq!(unmarked.as_deref(), Some("0"), "{version:?} {layout:?}");
        }
    }
}

/// Rows that another session has locked get their marks later, and with them the later ones of their aggregates; all
/// others get theirs at once. The holder is named.
#[tokio::test]
async fn marks_pass_over_locked_rows_and_what_follows_them_in_their_aggregates() {
    for version in VERSIONS {
        for case in &CASES {
            let outbox = with_twin(version, case, "poll_locked").await;
            let table = case.table;
            let (client, marker) = marker(&outbox).await;
            let ids = format!("select string_agg(id::text, ' ' order by id) from {table}");
            let ids = outbox.client.text(&ids).await.unwrap();
            let ids: Vec<&str> = ids.split(' ').collect();
            // The third is of another aggregate than the first two.
            let rows = [
                event(1, Some("a"), ids[0]),
                event(2, Some("a"), ids[1]),
                event(3, Some("b"), ids[2]),
            ];
            for lock in ["for update", "for share", "for key share"] {
                let blocks = lock != "for key share" || outbox.spec.deletes();
                let holder = outbox.database.connect().await;
                let take = format!(
                    "set application_name = 'a person'; begin; select from {table} where id::text = '{}' {lock}",
                    ids[0]
                );
                holder.batch(&take).await;
                let twice = outbox.database.connect().await;
                if lock == "for share" {
                    let take = take.replace("a person", "another person");
                    twice.batch(&take).await;
                }
                let what = format!("{version:?} {:?} {lock}", case.layout);
                let left = marker.mark(&client, &rows, &HashSet::new()).await.unwrap();
                // FOR UPDATE conflicts with all of them.
                assert_eq!(left, [0, 1], "{what} {blocks}");
                let waiting = HashSet::from_iter(rows[0].lane);
                let again = marker.mark(&client, &rows, &waiting).await.unwrap();
                assert_eq!(again, [0, 1], "{what}: again");
                let holders = marker.holders(&client, &rows[..2]).await.unwrap();
                let mut names: Vec<&str> = holders
                    .iter()
                    .map(|holder| match holder {
                        Holder::Session { application, .. } => application.as_str(),
                        Holder::Prepared { gid } => panic!("{gid}"),
                    })
                    .collect();
                names.sort_unstable();
                let wanted: &[&str] = if lock == "for share" {
                    &["a person", "another person"]
                } else {
                    &["a person"]
                };
                assert_eq!(names, wanted, "{what}");
                holder.batch("rollback").await;
                if lock == "for share" {
                    twice.batch("rollback").await;
                }
            }
            let waiting = HashSet::from_iter(rows[0].lane);
            let left = marker.mark(&client, &rows, &waiting).await.unwrap();
            assert!(left.is_empty(), "{left:?}");
            let ready = format!("select count(*)::text from {table}");
            if !outbox.spec.row_state.has_status() {
                assert_eq!(outbox.client.text(&ready).await.as_deref(), Some("0"));
            }
        }
    }
}

/// A row was deleted, and its id inserted again for another aggregate. The first event of the id waits behind a locked
/// row of its aggregate; the row is the second event's, and gets its status.
#[tokio::test]
async fn row_of_an_id_that_two_events_have_gets_the_status_of_its_own_event() {
    for version in VERSIONS {
        let spec = OutboxSpec::for_layout(Layout::Postrider);
        let outbox = Outbox::with(version, spec, "poll_twice").await;
        outbox
            .client
            .batch(
                "create table outbox (id text primary key, aggregate_type text, aggregate_id text, \
                   event_type text, payload json, headers json, created_at timestamptz default now()); \
                 insert into outbox values ('w', 'order', 'a', 'T'), ('x', 'order', 'b', 'T')",
            )
            .await;
        let (client, marker) = marker(&outbox).await;
        let xid = "select xmin::text from outbox where id = 'x'";
        let xid: u32 = outbox.client.text(xid).await.unwrap().parse().unwrap();
        let other = WritingTransaction {
            xid: Some(xid - 1),
            committed: Some(Timestamp { unix_micros: 0 }),
            time_ms: Some(1),
        };
        let mut rows =
            [event(1, Some("a"), "w"), event(2, Some("a"), "x"), event(3, Some("b"), "x")];
        rows[1].written = other;
        rows[2].written = WritingTransaction { xid: Some(xid), ..other };
        let holder = outbox.database.connect().await;
        holder.batch("begin; select from outbox where id = 'w' for update").await;
        let left = marker.mark(&client, &rows, &HashSet::new()).await.unwrap();
        assert_eq!(left, [0, 1], "{version:?}");
        let ids = "select coalesce(string_agg(id, ' '), '') from outbox";
        assert_eq!(outbox.client.text(ids).await.as_deref(), Some("w"), "{version:?}");
        holder.batch("rollback").await;
        let waiting = HashSet::from_iter(rows[0].lane);
        let left = marker.mark(&client, &rows[..2], &waiting).await.unwrap();
        assert!(left.is_empty(), "{version:?} {left:?}");
        assert_eq!(outbox.client.text(ids).await.as_deref(), Some(""), "{version:?}");
    }
}

/// A row gets the id of another event's row behind the snapshot of the statement: no trigger has undone a status.
#[tokio::test]
async fn row_that_gets_another_id_behind_the_snapshot_is_no_error() {
    for version in VERSIONS {
        let case = &CASES[0];
        let outbox = with_twin(version, case, "poll_renamed").await;
        let table = case.table;
        outbox.client.batch(GATE).await;
        let gated = format!(
            "alter table {table} alter id drop identity if exists; alter table {table} alter id drop default; \
             alter table {table} alter id type gated using id::text::gated"
        );
        outbox.client.batch(&gated).await;
        let change = "update {t} set id = gated_in('renamed') where id::text = '{id}'";
        marked_with(&outbox, table, change, &["renamed"]).await;
    }
}

/// What a table can do to marks, and the SQLSTATE of it. The error names the statement.
#[tokio::test]
async fn error_of_a_mark_is_an_error_of_a_mark() {
    let trigger = |body: &str| {
        format!(
            "create function no() returns trigger language plpgsql as $$ begin {body} end $$; \
             create trigger no before update or delete on outbox for each row execute function no()"
        )
    };
    let cases = [
        (
            "55000",
            "alter table outbox drop constraint outbox_pkey; create publication p for table outbox"
                .to_owned(),
        ),
        ("42501", "revoke update, delete on outbox from {role}".to_owned()),
        ("P0001", trigger("raise exception 'no';")),
        ("09000", trigger("return null;")),
        ("23514", "alter table outbox add check (published_at is null)".to_owned()),
        ("42703", "alter table outbox drop column published_at".to_owned()),
        ("42P01", "drop table outbox".to_owned()),
        ("42804", "alter table outbox alter published_at type int using null".to_owned()),
        ("40001", trigger("raise exception using errcode = '40001';")),
        ("40P01", trigger("raise exception using errcode = '40P01';")),
        ("57014", trigger("raise exception using errcode = '57014';")),
        ("55P03", "begin; lock table outbox in access exclusive mode".to_owned()),
        ("25006", "alter role {role} set default_transaction_read_only = on".to_owned()),
        ("0A000", "create rule no as on update to outbox do instead nothing".to_owned()),
        ("53100", trigger("raise exception using errcode = '53100';")),
    ];
    for version in VERSIONS {
        for (state, sql) in &cases {
            let outbox = with_twin(version, &ADR30, "poll_refused").await;
            let role = format!("r_{}", outbox.database.name);
            let grants = format!(
                "create role {role} login; grant select, update, delete on outbox to {role}"
            );
            outbox.client.batch(&grants).await;
            let before = ["42703", "42P01", "25006"].contains(state);
            let holder = outbox.database.connect().await;
            let sql = sql.replace("{role}", &role);
            if before {
                holder.batch(&sql).await;
            }
            let url = outbox.database.url().replace("postgres@", &format!("{role}@"));
            let client = Client::connect(&url).await.unwrap();
            client.batch("set search_path = ''; set lock_timeout = '200ms'").await;
            let prepared = StatusWriter::prepare(&client, &outbox.spec).await;
            let error = match prepared {
                Err(error) => error,
                Ok(marker) => {
                    if !before {
                        holder.batch(&sql).await;
                    }
                    let id = "00000000-0000-4000-8000-000000000001";
                    let rows = [event(1, None, id)];
                    marker.mark(&client, &rows, &HashSet::new()).await.expect_err(state)
                }
            };
            assert_eq!(error.statement(), Some(Statement::Mark), "{version:?} {state}: {error}");
            let found = error.sqlstate().map(|state| state.to_string());
            assert_eq!(found.as_deref(), Some(*state), "{version:?}: {error}");
            drop(holder);
            drop(client);
            outbox.client.batch(&format!("drop owned by {role}; drop role {role}")).await;
        }
    }
}

/// An id that the column can't have (a logical message's) does not keep the others from their marks.
#[tokio::test]
async fn id_that_the_column_cannot_have_is_in_no_row() {
    for case in &CASES {
        let outbox = with_twin(Version::Pg17, case, "poll_alien").await;
        let (client, marker) = marker(&outbox).await;
        let id =
            outbox.client.text(&format!("select min(id::text) from {}", case.table)).await.unwrap();
        let rows = [event(1, None, "not a key"), event(2, Some("a"), &id)];
        let left = marker.mark(&client, &rows, &HashSet::new()).await.unwrap();
        assert!(left.is_empty(), "{:?}", case.layout);
        outbox.client.batch(&fill(case.published, "twin")).await;
        assert_same(&outbox.client, case.table, "twin", &format!("{:?}", case.layout)).await;
    }
}
