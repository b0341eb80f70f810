//! Transactions that are too large for one document: sequences, and relays that are killed within them.

use super::keeper::{Keeper, document, list};
use crate::await_that::{SOON, await_that};
use crate::pipeline::{Pipeline, show};
use crate::relay::{Relay, postrider_ok};
use crate::server::Version;
use crate::stream::published;
use crate::topic::{ReadRecord, Topics};
use serde_json::Value;
use std::collections::BTreeSet;
use std::time::Duration;

/// Two tables with different identities.
pub(super) const DDL: &str = "create table orders (id int primary key, n int, note text); \
                   create table logs (id int primary key, n int, note text); \
                   alter table logs replica identity full";

/// A transaction that changes the rows of both tables in turn: it inserts, updates and deletes.
pub(super) fn large(rows: usize) -> String {
    format!(
        "do $$ begin \
           for i in 1..{rows} loop \
             insert into orders values (i, 0, 'order'); \
             insert into logs values (i, 0, 'log'); \
             if i % 3 = 0 then update orders set n = i where id = i - 1; end if; \
             if i % 5 = 0 then delete from orders where id = i - 2; update logs set n = n + 1 where id = i; end if; \
             if i % 7 = 0 then delete from logs where id = i - 3; end if; \
           end loop; end $$"
    )
}

async fn pipeline(version: Version, test: &str, threshold: u32) -> Pipeline {
    let capture = format!(
        "tables = [\"orders\", \"logs\"]\ninline_threshold_rows = {threshold}\nchunk_bytes = \"64KiB\""
    );
    let mut pipeline = Pipeline::capturing(version, test, DDL, &capture).await;
    pipeline.bound_in_flight(50);
    postrider_ok(&pipeline.config, &["setup"]);
    pipeline
}

pub(super) async fn confirmed(pipeline: &Pipeline) {
    let end = pipeline.wal_end().await;
    await_that("all to be confirmed", 3 * SOON, || pipeline.confirmed(&end)).await;
}

/// Every sequence is complete and in order, among records without repetitions.
pub(super) fn assert_sequences(records: &[ReadRecord], threshold: usize) -> usize {
    let mut open: Vec<(String, String, u64)> = Vec::new();
    let mut complete = 0;
    for record in records {
        let document = document(record);
        let key = record.key_text().expect("a key").to_owned();
        let Some(sequence) = document["sequence"].as_str() else { continue };
        if document.get("claim_check").is_some() {
            assert!(!open.iter().any(|(of, ..)| *of == key), "{key}: two sequences");
            open.push((key, sequence.to_owned(), 0));
            continue;
        }
        let at = open.iter().position(|(of, id, _)| *of == key && id == sequence);
        let at = at.unwrap_or_else(|| panic!("{sequence}: a chunk without its header"));
        open[at].2 += 1;
        assert_eq!(document["chunk"], open[at].2);
        let rows = list(&document, "inserted").len() + list(&document, "deleted").len();
        assert!(rows <= threshold && record.value.as_ref().is_some_and(|of| of.len() <= 64 << 10));
        if document.get("last").is_some() {
            assert_eq!(document["chunks"], open[at].2);
            open.remove(at);
            complete += 1;
        }
    }
    assert!(open.is_empty(), "{open:?}");
    complete
}

/// Without the records whose id came before.
pub(super) fn first_copies(records: &[ReadRecord]) -> Vec<ReadRecord> {
    let mut seen = BTreeSet::new();
    let first = |record: &&ReadRecord| seen.insert(record.header("id").map(str::to_owned));
    records.iter().filter(first).cloned().collect()
}

#[tokio::test]
async fn a_relay_that_is_killed_within_a_sequence_loses_nothing_and_repeats_the_same_documents() {
    let pipeline = pipeline(Version::Pg17, "killed", 10).await;
    pipeline.sql.batch(&large(20_000)).await;
    for count in [100, 700, 2_000] {
        let relay = pipeline.run();
        relay.await_status("a part", SOON, |status| published(status) > count).await;
        relay.kill().await;
    }
    let there = pipeline.topic.read_all().await.len();
    let relay = pipeline.run();
    confirmed(&pipeline).await;
    assert_eq!(relay.terminate(SOON).await.code, Some(0));
    let records = pipeline.topic.read_all().await;
    // Copies of one event are the same document.
    let mut documents = std::collections::BTreeMap::new();
    for record in &records {
        let (id, value) = (record.header("id").expect("an id"), record.value_text());
        assert_eq!(*documents.entry(id).or_insert(value), value, "{id}");
    }
    let first = first_copies(&records);
    show(&format!(
        "{} records, {} when it was killed last, {} events",
        records.len(),
        there,
        first.len()
    ));
    assert_eq!(assert_sequences(&first, 10), 2);
    assert!(there < first.len(), "the transaction was over before the last kill");
    for records in [&records, &first] {
        let mut keeper = Keeper::default();
        keeper.apply_all(records);
        keeper.assert_has(&pipeline.sql, "public.orders").await;
        keeper.assert_has(&pipeline.sql, "public.logs").await;
    }
}

#[tokio::test]
async fn other_limits_within_a_sequence_publish_the_transaction_again_and_lose_nothing() {
    for (number, (before, after)) in [(10, 3), (3, 40), (7, 60)].into_iter().enumerate() {
        let case = format!("{before} then {after}");
        let mut pipeline = pipeline(Version::ALL[number], "other_limits", before).await;
        pipeline.sql.batch("insert into orders values (-1, 1, 'before')").await;
        pipeline.sql.batch(&large(5_000)).await;
        let relay = pipeline.run();
        relay.await_status("a part", SOON, |status| published(status) > 300).await;
        // Killed, or ended: then the row has the position.
        if number == 0 {
            relay.kill().await;
        } else {
            relay.terminate(SOON).await;
        }
        let limit = |rows| format!("inline_threshold_rows = {rows}\n");
        pipeline.config = pipeline.config.replace(&limit(before), &limit(after));
        // It is killed once more, with the new limits.
        let relay = pipeline.run();
        relay.await_status("a part", SOON, |status| published(status) > 100).await;
        relay.kill().await;
        let relay = pipeline.run();
        confirmed(&pipeline).await;
        pipeline.sql.batch("update orders set n = -n where id < 100").await;
        confirmed(&pipeline).await;
        assert_eq!(relay.terminate(SOON).await.code, Some(0), "{case}");
        let records = pipeline.topic.read_all().await;
        let mut keeper = Keeper::default();
        keeper.apply_all(&records);
        keeper.assert_has(&pipeline.sql, "public.orders").await;
        keeper.assert_has(&pipeline.sql, "public.logs").await;
    }
}

#[tokio::test]
async fn a_killed_relay_that_publishes_exactly_once_repeats_nothing_of_a_sequence() {
    let mut pipeline = pipeline(Version::Pg18, "exact", 10).await;
    let kind = "kind = \"kafka\"\n";
    pipeline.config =
        pipeline.config.replace(kind, &format!("{kind}delivery = \"exactly-once\"\n"));
    // The beginning of the progress is written by setup.
    postrider_ok(&pipeline.config, &["setup"]);
    pipeline.sql.batch(&large(20_000)).await;
    for count in [100, 1_500] {
        let relay = pipeline.run();
        relay.await_status("a part", SOON, |status| published(status) > count).await;
        relay.kill().await;
    }
    let relay = pipeline.run();
    confirmed(&pipeline).await;
    assert_eq!(relay.terminate(SOON).await.code, Some(0));
    let records = pipeline.topic.read_all().await;
    assert_eq!(first_copies(&records).len(), records.len(), "some came twice");
    assert_eq!(assert_sequences(&records, 10), 2);
    let mut keeper = Keeper::default();
    keeper.apply_all(&records);
    keeper.assert_has(&pipeline.sql, "public.orders").await;
    keeper.assert_has(&pipeline.sql, "public.logs").await;
}

#[tokio::test]
async fn a_replay_from_a_bookmark_publishes_the_same_documents() {
    let pipeline = pipeline(Version::Pg16, "replayed", 20).await;
    let relay = pipeline.run();
    relay.await_state("streaming", SOON).await;
    postrider_ok(&pipeline.config, &["bookmark", "create", "b"]);
    pipeline.sql.batch(&large(500)).await;
    pipeline.sql.batch("update orders set n = 7 where id = 1; truncate logs").await;
    confirmed(&pipeline).await;
    let again = Topics::new(&pipeline.topic.brokers, "replayed").create("again", 1).await;
    postrider_ok(
        &pipeline.config,
        &["replay", "--bookmark", "b", "--to", &again.name, "--rate", "0"],
    );
    assert_eq!(relay.terminate(SOON).await.code, Some(0));
    let of = |records: Vec<ReadRecord>| -> Vec<(Option<String>, Option<String>)> {
        let of = |record: &ReadRecord| {
            (record.header("id").map(str::to_owned), record.value_text().map(str::to_owned))
        };
        records.iter().map(of).collect()
    };
    let (first, replayed) = (of(pipeline.topic.read_all().await), of(again.read_all().await));
    assert!(first.len() > 20);
    assert_eq!(first, replayed);
}

/// A million rows in one transaction, at once in memory they would be more than this.
const MEMORY_MAX_KIB: u64 = 256 << 10;

#[tokio::test]
async fn a_transaction_of_a_million_rows_takes_the_memory_of_two_documents() {
    const ROWS: usize = 1_000_000;
    let capture = "tables = [\"orders\", \"logs\"]";
    let pipeline = Pipeline::capturing(Version::Pg17, "million", DDL, capture).await;
    postrider_ok(&pipeline.config, &["setup"]);
    let sql = format!(
        "begin; insert into logs values (1, 1, 'one'); \
         insert into orders select i, i, repeat('x', 200) || i from generate_series(1, {ROWS}) i; commit"
    );
    pipeline.sql.batch(&sql).await;
    let relay = Relay::spawn(&pipeline.config);
    let end = pipeline.wal_end().await;
    let minutes = Duration::from_mins(5);
    await_that("all to be confirmed", minutes, || pipeline.confirmed(&end)).await;
    let (_, most) = relay.memory_kib();
    assert_eq!(relay.terminate(SOON).await.code, Some(0));
    show(&format!("a transaction of {ROWS} rows: VmHWM {} MiB", most >> 10));
    let records = pipeline.topic.read_all().await;
    let documents: Vec<Value> = records.iter().map(document).collect();
    let rows: usize = documents.iter().map(|document| list(document, "inserted").len()).sum();
    assert_eq!(rows, ROWS + 1);
    let last = documents.iter().find(|document| document.get("last").is_some()).expect("an end");
    assert_eq!(last["inserted_count"], ROWS);
    assert!(most < MEMORY_MAX_KIB, "{} MiB", most >> 10);
}
