//! `postrider verify` with the real binary: what is planted is found, and nothing else is.

mod ledgers;
mod planted;
mod ranges;

use crate::await_that::{SOON, await_that};
use crate::pipeline::Pipeline;
use crate::relay::{Relay, postrider};
use crate::server::Version;
use crate::topic::{ReadRecord, Topic, client_config};
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::{BaseProducer, BaseRecord, Producer};
use serde_json::Value;
use std::collections::BTreeMap;
use std::time::Duration;

/// `postrider verify … --json`: its exit code, and what it found.
fn verify(config: &str, args: &[&str]) -> (Option<i32>, Value) {
    let output = postrider(config, &[&["verify"], args, &["--json"]].concat());
    let errors = String::from_utf8_lossy(&output.stderr);
    let value = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("verify {args:?}: {error}\n{errors}"));
    (output.status.code(), value)
}

/// The findings that are not 0, of events and of records.
fn found(value: &Value) -> BTreeMap<String, u64> {
    let mut found = BTreeMap::new();
    for side in ["events", "records"] {
        let counts = value[side]["by_finding"].as_object().expect("counts");
        for (name, count) in counts {
            let count = count.as_u64().expect("a number");
            if count > 0 {
                found.insert(name.clone(), count);
            }
        }
    }
    found
}

fn counts(list: &[(&str, u64)]) -> BTreeMap<String, u64> {
    list.iter().map(|(name, count)| ((*name).to_owned(), *count)).collect()
}

/// Waits until the cursor row knows that every transaction of before is resolved.
async fn await_resolved(pipeline: &Pipeline) {
    let now = pipeline.sql.text("select pg_current_xact_id()::text").await.expect("a transaction");
    let sql = format!(
        "select coalesce((select pg_snapshot_xmin(resolved_snapshot)::text::int8 > {now} from postrider.cursor \
         where pipeline = '{}'), false)::text",
        pipeline.name
    );
    await_that("transactions of before are known to be resolved", SOON, || async {
        // Something commits, so that the position of the stream moves.
        pipeline.sql.batch("select pg_logical_emit_message(true, 'tests', '')").await;
        match pipeline.sql.text(&sql).await.as_deref() {
            Some("true") => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await;
}

/// A pipeline of this layout, with `count` events that are published and known to be resolved; its relay has stopped.
async fn published(version: Version, test: &str, count: usize) -> Pipeline {
    let pipeline = Pipeline::shared(version, test).await;
    let relay = pipeline.run();
    relay.await_state("streaming", SOON).await;
    pipeline.insert(count).await;
    pipeline.topic.await_records(count, SOON).await;
    await_resolved(&pipeline).await;
    assert_eq!(relay.terminate(SOON).await.code, Some(0));
    pipeline
}

/// Writes copies of records to a topic, each to its partition, in this order.
async fn write(topic: &Topic, records: Vec<ReadRecord>) {
    write_with(topic, records, None).await;
}

/// The same; with a transactional id, in a transaction that is committed or aborted.
async fn write_with(topic: &Topic, records: Vec<ReadRecord>, commits: Option<bool>) {
    let topic = topic.clone();
    let written = tokio::task::spawn_blocking(move || {
        let max = Duration::from_secs(30);
        let mut config = client_config(&topic.brokers);
        config.set("enable.idempotence", "true").set("queue.buffering.max.messages", "1000000");
        if commits.is_some() {
            config.set("transactional.id", format!("verify-{}", topic.name));
        }
        let producer: BaseProducer = config.create().expect("a producer");
        if commits.is_some() {
            producer.init_transactions(max).expect("a producer");
            producer.begin_transaction().expect("a transaction");
        }
        for record in &records {
            let headers =
                record.headers.iter().fold(OwnedHeaders::new(), |headers, (key, value)| {
                    headers.insert(Header { key, value: value.as_deref() })
                });
            let mut copy: BaseRecord<'_, [u8], [u8]> =
                BaseRecord::to(&topic.name).partition(record.partition).headers(headers);
            copy = match &record.key {
                Some(key) => copy.key(key),
                None => copy,
            };
            copy = match &record.value {
                Some(value) => copy.payload(value),
                None => copy,
            };
            if let Some(timestamp) = record.timestamp {
                copy = copy.timestamp(timestamp);
            }
            producer.send(copy).map_err(|(error, _)| error).expect("room");
        }
        producer.flush(max).expect("a flush");
        match commits {
            Some(true) => producer.commit_transaction(max).expect("a commit"),
            Some(false) => producer.abort_transaction(max).expect("an abort"),
            None => {}
        }
    });
    written.await.expect("the producer's thread");
}

/// The places of two neighbours of one aggregate, neither of them before `from`.
fn neighbours(records: &[ReadRecord], from: usize) -> (usize, usize) {
    let next = |first: usize| {
        let record = &records[first];
        let is_next =
            |other: &ReadRecord| other.partition == record.partition && other.key == record.key;
        records.iter().skip(first + 1).position(is_next).map(|next| (first, first + 1 + next))
    };
    let is_first = |place: usize| records[place].header("id") == Some("1");
    let mut pairs = (from..records.len()).filter_map(next);
    pairs.find(|(first, second)| !is_first(*first) && !is_first(*second)).expect("neighbours")
}

/// The configuration with another topic.
fn with_topic(pipeline: &Pipeline, topic: &Topic) -> String {
    pipeline.config.replace(&pipeline.topic.name, &topic.name)
}

/// A record that no pipeline has written.
fn foreign(headers: &[(&str, &str)]) -> ReadRecord {
    let header =
        |(name, value): &(&str, &str)| ((*name).to_owned(), Some(value.as_bytes().to_vec()));
    ReadRecord {
        partition: 0,
        offset: 0,
        key: Some(b"1".to_vec()),
        value: Some(b"{}".to_vec()),
        headers: headers.iter().map(header).collect(),
        timestamp: None,
    }
}

/// One event of each layout's table, ten aggregates, of which some are published.
fn inserts(layout: &str, count: usize) -> String {
    let series = format!("from generate_series(1, {count}) i");
    let uuid = "lpad(to_hex(i % 10), 32, '0')::uuid";
    match layout {
        "debezium" => format!(
            "insert into outboxevent (id, aggregatetype, aggregateid, type, payload) \
             select lpad(to_hex(i), 32, '0')::uuid, 'order', (i % 10)::text, 'Made', json_build_object('n', i) {series}"
        ),
        "gcx" => format!(
            "insert into outbox (aggregate_type, aggregate_id, event_type, topic, partition_key, payload, headers) \
             select 'Order', {uuid}, 'made', 'unused', (i % 10)::text, jsonb_build_object('n', i), \
             '{{\"source\":\"shop\"}}' {series}"
        ),
        "adr30" => format!(
            "insert into outbox (aggregate_type, aggregate_id, event_type, payload, metadata) \
             select 'booking', {uuid}, 'booking.created', jsonb_build_object('n', i), '{{\"userId\":\"u1\"}}' {series}"
        ),
        "commerce" => format!(
            "insert into outbox_messages (tenant_id, aggregate_type, aggregate_id, event_type, payload, trace_id) \
             select 7, 'Order', i % 10, 'Made', jsonb_build_object('n', i), \
             '00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01' {series}"
        ),
        _ => format!(
            "insert into outbox (aggregate_type, aggregate_id, event_type, payload) \
             select 'order', (i % 10)::text, 'Made', json_build_object('n', i) {series}"
        ),
    }
}

#[tokio::test]
async fn everything_is_found_in_every_layout_and_a_removed_record_of_each() {
    for layout in ["postrider", "debezium", "gcx", "adr30", "commerce"] {
        let pipeline = Pipeline::in_layout(Version::Pg17, "verify_layouts", layout).await;
        let relay = pipeline.run();
        relay.await_state("streaming", SOON).await;
        pipeline.sql.batch(&inserts(layout, 100)).await;
        let records = pipeline.topic.await_records(100, SOON).await;
        await_resolved(&pipeline).await;
        let (code, value) = verify(&pipeline.config, &[]);
        let mut expected = counts(&[("published", 100)]);
        if layout == "debezium" {
            expected.insert("without_order".to_owned(), 100);
        }
        assert_eq!((code, found(&value)), (Some(0), expected.clone()), "{layout}: {value:#}");
        assert_eq!(relay.terminate(SOON).await.code, Some(0));

        let copy = another_topic(&pipeline, "copy").await;
        let kept: Vec<ReadRecord> = records.iter().skip(1).cloned().collect();
        write(&copy, kept).await;
        let (code, value) = verify(&with_topic(&pipeline, &copy), &[]);
        expected.insert("published".to_owned(), 99);
        expected.insert("lost".to_owned(), 1);
        expected.entry("without_order".to_owned()).and_modify(|count| *count = 99);
        assert_eq!((code, found(&value)), (Some(1), expected), "{layout}: {value:#}");
        let id = value["examples"]["lost"][0]["id"].as_str();
        assert_eq!(id, records[0].header("id"), "{layout}");
    }
}

/// An empty topic with as many partitions as that of the pipeline.
async fn another_topic(pipeline: &Pipeline, name: &str) -> Topic {
    let topics = crate::topic::Topics::new(&pipeline.topic.brokers, "verify");
    topics.create(name, 8).await
}

#[tokio::test]
async fn formats_and_routed_topics_are_recognised() {
    let more = "[.format]\nkind = \"cloudevents\"\nsource = \"/shop\"\nmode = \"structured\"\n";
    let brokers = crate::server::brokers();
    let pipeline =
        Pipeline::in_database(Version::Pg18, &brokers, "verify_cloud", "postrider", more).await;
    let prefix = pipeline.topic.name.clone();
    for kind in ["order", "payment"] {
        crate::topic::create_topic(&brokers, &format!("{prefix}.{kind}"), 4, &[]).await;
    }
    let routed = format!("topic = \"{prefix}.{{aggregate_type}}\"");
    let config = pipeline.config.replace(&format!("topic = \"{prefix}\""), &routed);
    assert_ne!(config, pipeline.config);
    let relay = Relay::spawn(&config);
    relay.await_state("streaming", SOON).await;
    pipeline
        .sql
        .batch(
            "insert into outbox (aggregate_type, aggregate_id, event_type, payload) \
             select case when i % 2 = 0 then 'order' else 'payment' end, (i % 10)::text, 'Made', to_json(i) \
             from generate_series(1, 60) i",
        )
        .await;
    for kind in ["order", "payment"] {
        let topic = Topic { brokers: brokers.clone(), name: format!("{prefix}.{kind}") };
        topic.await_records(30, SOON).await;
    }
    await_resolved(&pipeline).await;
    let (code, value) = verify(&config, &[]);
    assert_eq!((code, found(&value)), (Some(0), counts(&[("published", 60)])), "{value:#}");
    assert_eq!(value["topics"].as_array().map(Vec::len), Some(2));
    assert_eq!(relay.terminate(SOON).await.code, Some(0));
}

#[tokio::test]
async fn beside_a_load_nothing_is_ever_called_lost_or_swapped() {
    let pipeline = Pipeline::shared(Version::Pg16, "verify_load").await;
    let relay = pipeline.run();
    relay.await_state("streaming", SOON).await;
    let load = crate::load::Load::start(&pipeline.plan(), 2);
    for round in 1..=8 {
        let grown = load.committed() + 200;
        await_that(&format!("round {round}"), SOON, || async {
            let committed = load.committed();
            if committed >= grown { Ok(()) } else { Err(committed) }
        })
        .await;
        let (code, value) = verify(&pipeline.config, &["--no-repeats"]);
        assert_eq!(code, Some(0), "{value:#}");
        assert!(value["events"]["total"].as_u64() > Some(0), "{value:#}");
    }
    load.stop().await;
    await_resolved(&pipeline).await;
    let (code, value) = verify(&pipeline.config, &["--no-repeats"]);
    let total = value["events"]["total"].as_u64().expect("a number");
    assert_eq!((code, found(&value)), (Some(0), counts(&[("published", total)])), "{value:#}");
    relay.terminate(SOON).await;
}

#[tokio::test]
async fn parked_skipped_and_dead_events_are_told_apart_from_lost_ones() {
    let lines = "attempts_max = 1\nbackoff = { step = \"300ms\", steps_max = 1 }";
    let mut scene = crate::parking::Scene::set_with(Version::Pg17, "verify_parked", lines).await;
    let relay = scene.run();
    relay.await_state("streaming", SOON).await;
    scene.insert(&["a", "!b", "b", "b", "!c", "d"]).await;
    scene.await_rows("b dead, b behind, b behind, c dead").await;
    let id = scene.pipeline.sql.text("select id::text from outbox where aggregate_id = 'c'").await;
    let id = id.expect("an id");
    crate::relay::postrider_ok(&scene.config, &["parked", "skip", &id, "--yes"]);
    scene.await_rows("b dead, b behind, b behind").await;
    await_resolved(&scene.pipeline).await;
    let (code, value) = verify(&scene.config, &[]);
    let expected = counts(&[("published", 2), ("dead", 1), ("parked", 2), ("skipped", 1)]);
    assert_eq!((code, found(&value)), (Some(0), expected), "{value:#}");
    relay.terminate(SOON).await;
}

#[tokio::test]
async fn rows_that_are_not_reached_and_those_of_before_the_pipeline_are_not_lost() {
    let pipeline = Pipeline::shared(Version::Pg18, "verify_before").await;
    // Nothing has run yet.
    pipeline.insert(5).await;
    let (code, value) = verify(&pipeline.config, &[]);
    assert_eq!((code, found(&value)), (Some(0), counts(&[("not_reached", 5)])), "{value:#}");
    let relay = pipeline.run();
    relay.await_state("streaming", SOON).await;
    pipeline.topic.await_records(5, SOON).await;
    await_resolved(&pipeline).await;
    assert_eq!(relay.terminate(SOON).await.code, Some(0));
    pipeline.insert(3).await;
    let (code, value) = verify(&pipeline.config, &[]);
    let expected = counts(&[("published", 5), ("not_reached", 3)]);
    assert_eq!((code, found(&value)), (Some(0), expected), "{value:#}");
}

#[tokio::test]
async fn polled_rows_are_published_by_their_status() {
    let mut pipeline = Pipeline::in_layout(Version::Pg16, "verify_poll", "gcx").await;
    crate::polling::polls(&mut pipeline).await;
    let config = pipeline.config.clone();
    let relay = Relay::spawn(&config);
    relay.await_state("polling", SOON).await;
    // Rows from the second of the first start may be from before it.
    let over =
        "select (extract(epoch from clock_timestamp()) > histories[1])::text from postrider.cursor";
    await_that("the second of the start is over", SOON, || async {
        pipeline.sql.text(over).await.filter(|over| over == "true").ok_or("it is not")
    })
    .await;
    pipeline.sql.batch(&inserts("gcx", 40)).await;
    let records = pipeline.topic.await_records(40, SOON).await;
    await_that("all rows are marked", SOON, || async {
        let count =
            pipeline.sql.text("select count(*)::text from outbox where status = 'published'").await;
        if count.as_deref() == Some("40") { Ok(()) } else { Err(format!("{count:?}")) }
    })
    .await;
    relay.terminate(SOON).await;
    let (code, value) = verify(&config, &[]);
    let expected = counts(&[("published", 40), ("without_order", 40)]);
    assert_eq!((code, found(&value)), (Some(0), expected), "{value:#}");
    let (code, value) = verify(&config, &["--order", "source"]);
    assert_eq!((code, found(&value)), (Some(0), counts(&[("published", 40)])), "{value:#}");
    let copy = another_topic(&pipeline, "copy").await;
    write(&copy, records[1..].to_vec()).await;
    let copied = config.replace(&pipeline.topic.name, &copy.name);
    let (code, value) = verify(&copied, &["--order", "source"]);
    assert_eq!(
        (code, found(&value)),
        (Some(1), counts(&[("published", 39), ("lost", 1)])),
        "{value:#}"
    );
}

#[tokio::test]
async fn nothing_is_moved_or_committed() {
    let pipeline = published(Version::Pg17, "verify_still", 20).await;
    let state = "select string_agg(slot_name || coalesce(confirmed_flush_lsn::text, ''), ',' order by 1) \
                 || (select string_agg(c::text, ',') from postrider.cursor c) from pg_replication_slots \
                 where database = current_database()";
    let before = pipeline.sql.text(state).await;
    let (code, value) = verify(&pipeline.config, &[]);
    assert_eq!((code, found(&value)), (Some(0), counts(&[("published", 20)])), "{value:#}");
    assert_eq!(pipeline.sql.text(state).await, before);
    let group = format!("postrider-verify-{}", pipeline.name);
    let brokers = pipeline.topic.brokers.clone();
    let groups = tokio::task::spawn_blocking(move || {
        use rdkafka::consumer::{BaseConsumer, Consumer};
        let consumer: BaseConsumer = client_config(&brokers).create().expect("a consumer");
        let list = consumer.fetch_group_list(Some(&group), Duration::from_secs(10));
        list.map(|list| list.groups().iter().map(|group| group.members().len()).sum::<usize>())
    });
    assert_eq!(groups.await.expect("a thread").unwrap_or(0), 0, "no member of a group");
}

#[test]
fn other_sinks_captured_tables_and_empty_ranges_are_wrong_usage() {
    let base = "[pipelines.p]\nsource.url = \"postgresql://nobody@127.0.0.1:1/none\"\n";
    let ledger = tempfile::NamedTempFile::new().expect("a file");
    let file = ledger.path().display().to_string();
    let kafka = format!("{base}outbox.table = \"public.outbox\"\nsink.brokers = \"127.0.0.1:1\"\n");
    let stdout = format!("{base}outbox.table = \"public.outbox\"\nsink.kind = \"stdout\"\n");
    for (config, args, says) in [
        (&stdout, vec!["--ledger", file.as_str()], "verify reads only Kafka"),
        (&kafka, vec!["--ledger", "/none/ledger"], "could not read ledger"),
        (&kafka, vec!["--ledger", file.as_str()], "the file is empty"),
        (
            &kafka,
            vec!["--ledger", file.as_str(), "--since", "1h", "--until", "2h"],
            "the range is empty",
        ),
        (&kafka, vec!["--ledger", file.as_str(), "--lsn", "0/20..0/10"], "the range is empty"),
        (&kafka, vec!["--offsets", "t:0:5"], "expected TOPIC:PARTITION:FROM..TO"),
        (&kafka, vec!["--lsn", "5"], "expected two LSNs"),
    ] {
        let output = postrider(config, &[&["verify"], &args[..]].concat());
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{args:?}: {errors}");
        assert!(errors.contains(says), "{args:?}: {errors}");
        assert!(output.stdout.is_empty());
    }
}
