//! What is in a log, and which logs there are.

use super::*;
use crate::load::Load;
use std::time::Duration;

#[tokio::test]
async fn each_event_is_in_the_log_once_and_in_commit_order() {
    for (version, at) in [
        (Version::Pg15, LogAt::Source),
        (Version::Pg16, LogAt::Other),
        (Version::Pg17, LogAt::Source),
        (Version::Pg18, LogAt::Other),
    ] {
        let pipeline = LogPipeline::shared(version, "log_basic", at, CREATE).await;
        let relay = pipeline.run();
        let load = Load::start(&pipeline.plan(), 4);
        await_that("the load", SOON, || async {
            let committed = load.committed();
            if committed >= 3_000 { Ok(()) } else { Err(format!("{committed} committed")) }
        })
        .await;
        let ledger = load.stop().await;
        pipeline.assert_exactly_once(&ledger).await;
        pipeline.resolved().await;
        assert_eq!(relay.terminate(SOON).await.code, Some(0), "{version:?}");
        // Children of 1,000 events were created while it ran.
        let children = "select count(*)::text from pg_inherits i join postrider.event_log l on i.inhparent = \
                        format('postrider_log.%I', l.table_name)::regclass";
        let children: usize = pipeline.log.text(children).await.unwrap().parse().unwrap();
        assert!(children > ledger.committed() / 1_000, "{children} children, {version:?}");
        // A restart appends nothing.
        let count = ledger.committed();
        let relay = pipeline.run();
        relay.await_state("streaming", SOON).await;
        pipeline.insert(1).await;
        pipeline.await_count("orders", count + 1).await;
        relay.terminate(SOON).await;
        pipeline.records("orders").await;
    }
}

/// What the columns of an event are, and that those of Postrider are not among the headers.
#[tokio::test]
async fn the_columns_are_those_of_the_event() {
    let more = format!("[.route.headers]\nsource = \"shop\"\n{CREATE}");
    let pipeline = LogPipeline::shared(Version::Pg17, "log_row", LogAt::Source, &more).await;
    let relay = pipeline.run();
    pipeline
        .sql
        .batch(
            "insert into outbox (aggregate_type, aggregate_id, event_type, payload, headers, created_at) values \
               ('order', '42', 'Placed', '{\"a\": 1}', '{\"tenant\": \"t1\", \"n\": 5, \"id\": \"x\"}', \
                '2026-01-02 03:04:05.678+00'); \
             insert into outbox (aggregate_type, aggregate_id, event_type, payload, created_at) values \
               ('order', 'ü', 'Deleted', null, '2026-01-02 03:04:06+00')",
        )
        .await;
    pipeline.await_count("orders", 2).await;
    let row = |seq: u32| {
        format!(
            "select concat_ws(' ', seq, part, postrider.hash_partition(aggregate_id, 4), history > 0, \
               commit_lsn is not null, ordinal, to_char(occurred_at at time zone 'UTC', 'HH24:MI:SS.MS'), event_id, \
               event_type, aggregate_type, aggregate_id, coalesce(payload, 'NULL'), headers) \
             from postrider_log.log_orders where seq = {seq}"
        )
    };
    let first = pipeline.log.text(&row(1)).await.unwrap();
    assert_eq!(
        first,
        "1 0 0 t t 0 03:04:05.678 1 Placed order 42 {\"a\": 1} \
         {\"tenant\":\"t1\",\"n\":\"5\",\"row.id\":\"x\",\"source\":\"shop\"}"
    );
    let second = pipeline.log.text(&row(2)).await.unwrap();
    assert!(
        second.ends_with("03:04:06.000 2 Deleted order ü NULL {\"source\":\"shop\"}"),
        "{second}"
    );
    relay.terminate(SOON).await;
}

#[tokio::test]
async fn a_log_by_reference_is_joined_to_the_outbox() {
    let create = CREATE.replace("partitions", "kind = \"reference\"\npartitions");
    let pipeline = LogPipeline::shared(Version::Pg17, "log_ref", LogAt::Source, &create).await;
    let relay = pipeline.run();
    pipeline.insert(2_500).await;
    pipeline.await_count("orders", 2_500).await;
    assert_sound(&pipeline.log, "orders").await;
    let joined = "select count(*) || ' ' || count(e.payload) || ' ' || count(e.headers) from \
                  postrider_log.log_orders e join public.outbox o on o.id::text = e.event_id \
                  and o.payload::text = e.seq::text";
    assert_eq!(pipeline.sql.text(joined).await.unwrap(), "2500 0 0");
    relay.terminate(SOON).await;
}

/// Events of one transaction of the source go to several logs in one transaction.
#[tokio::test]
async fn several_logs_are_written_by_one_pipeline() {
    let pipeline = LogPipeline::shared(Version::Pg16, "log_many", LogAt::Other, CREATE).await;
    let config = pipeline.config.replace("topic = \"orders\"", "topic = \"{aggregate_type}\"");
    let relay = Relay::spawn(&config);
    let rows = "insert into outbox (aggregate_type, aggregate_id, event_type, payload) \
                select (array['orders', 'pay \"it''s\"', 'stock'])[1 + i % 3], i::text, 'T', to_json(i) \
                from generate_series(0, 8999) i";
    for _ in 0..2 {
        pipeline.sql.batch(rows).await;
    }
    for log in ["orders", "pay \"it''s\"", "stock"] {
        pipeline.await_count(log, 6_000).await;
        assert_sound(&pipeline.log, log).await;
    }
    pipeline.resolved().await;
    let read =
        "select string_agg(payload, ',' order by seq) from postrider.log_read('stock', 0, 3)";
    assert_eq!(pipeline.log.text(read).await.unwrap(), "2,5,8");
    relay.terminate(SOON).await;
}

/// Layout `debezium` sends neither header `type` nor `position`, and may have an event without an aggregate: the
/// columns are filled all the same, and such an event goes by its id.
#[tokio::test]
async fn layout_debezium_fills_the_columns_too() {
    let source = Database::create(Version::Pg17, "log_debezium").await;
    let url = source.socket_url();
    let layout = ("debezium", "outboxevent");
    let pipeline = LogPipeline::with_layout((&url, &url), "log_debezium", layout, CREATE).await;
    let rows = "alter table outboxevent alter aggregateid drop not null; \
                insert into outboxevent (id, aggregatetype, aggregateid, type, payload) values \
                  ('7f0c1d9e-0000-4000-8000-000000000001', 'order', '42', 'Placed', '{\"a\": 1}'), \
                  ('7f0c1d9e-0000-4000-8000-000000000002', 'order', null, 'Paid', '{\"a\": 2}')";
    let relay = pipeline.run();
    relay.await_state("streaming", SOON).await;
    pipeline.sql.batch(rows).await;
    pipeline.await_count("orders", 2).await;
    assert_sound(&pipeline.log, "orders").await;
    let read = "select string_agg(concat_ws(' ', event_type, aggregate_type, coalesce(aggregate_id, 'NULL'), \
                  part = postrider.hash_partition(coalesce(aggregate_id, event_id), 4), history > 0, ordinal, \
                  payload), '; ' order by seq) from postrider_log.log_orders";
    let row = pipeline.log.text(read).await.unwrap();
    assert_eq!(row, "Placed order 42 t t 0 {\"a\": 1}; Paid order NULL t t 1 {\"a\": 2}");
    relay.terminate(SOON).await;
}

/// A logical message has no row: its position is the one of the message.
#[tokio::test]
async fn logical_messages_are_appended_among_the_rows() {
    let pipeline = LogPipeline::shared(Version::Pg16, "log_message", LogAt::Source, CREATE).await;
    let config = pipeline.config.replace(
        "table = \"public.outbox\"\n",
        "table = \"public.outbox\"\nmessage_prefix = \"events\"\n",
    );
    let relay = Relay::spawn(&config);
    relay.await_state("streaming", SOON).await;
    pipeline.insert(1).await;
    let emit = "select pg_logical_emit_message(true, 'events', '{\"aggregate_type\": \"order\", \
                \"aggregate_id\": \"7\", \"event_type\": \"T\", \"payload\": {\"a\": 1}}')";
    pipeline.sql.text(emit).await;
    pipeline.insert(1).await;
    pipeline.await_count("orders", 3).await;
    assert_sound(&pipeline.log, "orders").await;
    let read = "select string_agg(concat_ws(' ', aggregate_id, payload), ', ' order by seq) \
                from postrider_log.log_orders";
    assert_eq!(pipeline.log.text(read).await.unwrap(), "1 1, 7 {\"a\": 1}, 1 1");
    relay.terminate(SOON).await;
}

/// The hash partition that the sink computes is the one of `postrider.hash_partition`; here for keys of many forms.
#[tokio::test]
async fn hash_partition_is_that_of_sql() {
    let create = CREATE.replace("partitions = 4", "partitions = 1024");
    for version in Version::ALL {
        let pipeline = LogPipeline::shared(version, "log_hash", LogAt::Source, &create).await;
        let relay = pipeline.run();
        let rows = "insert into outbox (aggregate_type, aggregate_id, event_type, payload) \
                    select 'order', case i % 4 when 0 then i::text when 1 then md5(i::text) when 2 then 'ü€' || i \
                      else repeat('x', i) end, 'T', '{}' from generate_series(1, 400) i";
        pipeline.sql.batch(rows).await;
        pipeline.await_count("orders", 400).await;
        // This compares the partitions.
        assert_sound(&pipeline.log, "orders").await;
        relay.terminate(SOON).await;
    }
}

/// The functions' own interval is a bound: without load an event is visible soon after its commit.
#[tokio::test]
async fn a_single_event_is_visible_soon() {
    let pipeline = LogPipeline::shared(Version::Pg18, "log_soon", LogAt::Source, CREATE).await;
    let relay = pipeline.run();
    relay.await_state("streaming", SOON).await;
    pipeline.insert(1).await;
    pipeline.await_count("orders", 1).await;
    // The first one has created the log.
    let committed = tokio::time::Instant::now();
    pipeline.insert(1).await;
    pipeline.await_count("orders", 2).await;
    let late = committed.elapsed();
    assert!(late < Duration::from_secs(10), "{late:?}");
    relay.terminate(SOON).await;
}
