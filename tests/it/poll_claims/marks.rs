//! The marks, column by column, beside the statements of the places the layouts come from.

use super::*;
use postrider::postgres::poll::marks::Marker;

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
            let second = if outbox.spec.keeps_failures() { failed() } else { Settled::Held };
            poller.settle(claim, &[Settled::Published, second, Settled::Held]).await.unwrap();
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
        poller.settle(claim, &[Settled::Moved]).await.unwrap();
        outbox.client.batch(&fill(case.published, "twin")).await;
        let what = format!("{:?}", case.layout);
        assert_same(&outbox.client, case.table, "twin", &what).await;
        drop(poller);

        outbox.spec.delete = true;
        outbox.spec.pipeline = "another".to_owned();
        let mut poller = outbox.poller().await;
        assert_eq!(outbox.drain(&mut poller, 10).await.len(), 2, "{:?}", case.layout);
        let left = outbox.client.text(&format!("select count(*) from {}", case.table)).await;
        let marked =
            if outbox.spec.marks == postrider::postgres::poll::Marks::Delete { "0" } else { "1" };
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
    poller.settle(claim, &[failed(), Settled::Held, Settled::Held]).await.unwrap();
    assert_eq!(poller.claim(10, None).await.unwrap().rows.len(), 0, "it rests");
    drop(poller);
    outbox.spec.pipeline = "again".to_owned();
    let mut poller = outbox.poller().await;
    let claim = poller.claim(10, None).await.unwrap();
    poller.settle(claim, &[failed(), Settled::Held, Settled::Held]).await.unwrap();
    let status = "select string_agg(status || retry_count, ' ' order by id) from outbox";
    assert_eq!(outbox.client.text(status).await.as_deref(), Some("failed2 pending0 pending0"));
    drop(poller);
    outbox.spec.pipeline = "third".to_owned();
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

#[tokio::test]
async fn rows_that_the_stream_brought_are_marked_by_their_ids() {
    for version in VERSIONS {
        for case in &CASES {
            let outbox = with_twin(version, case, "poll_wal_marks").await;
            let client = outbox.database.connect().await;
            client.batch("set search_path = ''").await;
            let marker = Marker::prepare(&client, &outbox.spec).await.unwrap();
            let id = client
                .text(&format!("select min(id::text) from public.{}", case.table))
                .await
                .unwrap();
            assert_eq!(marker.mark(&client, &[&id]).await.unwrap(), 1);
            assert_eq!(marker.mark(&client, &[&id]).await.unwrap(), 0, "twice does nothing");
            outbox.client.batch(&fill(case.published, "twin")).await;
            let what = format!("{version:?} {:?}", case.layout);
            assert_same(&outbox.client, case.table, "twin", &what).await;
        }
    }
}
