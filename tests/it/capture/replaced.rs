//! A sequence within which the server or the relay is replaced: what consumers get.

use super::keeper::Keeper;
use super::sequences::{DDL, assert_sequences, confirmed, first_copies, large};
use crate::await_that::SOON;
use crate::pipeline::{Pipeline, show};
use crate::relay::postrider_ok;
use crate::server::{Client, Version};
use crate::standby::pair::Pair;
use crate::stream::published;
use crate::topic::ReadRecord;
use std::collections::BTreeMap;

const CAPTURE: &str =
    "tables = [\"orders\", \"logs\"]\ninline_threshold_rows = 10\nchunk_bytes = \"64KiB\"";

/// Copies of one event are the same document at the same position, and the first copies of the documents of a table are
/// in the order of their positions: a consumer that skips what is not above the highest position misses nothing.
fn assert_repetitions(records: &[ReadRecord]) {
    let mut documents = BTreeMap::new();
    for record in records {
        let id = record.header("id").expect("an id");
        let event = (record.value_text(), record.header("position"));
        assert_eq!(*documents.entry(id).or_insert(event), event, "{id}");
    }
    let first = first_copies(records);
    let mut highest: BTreeMap<&str, &str> = BTreeMap::new();
    for record in &first {
        let Some(position) = record.header("position") else { continue };
        let before = highest.insert(record.key_text().expect("a key"), position);
        assert!(before < Some(position), "{before:?} and then {position}");
    }
}

/// A consumer has the tables of `sql`, whether it skips repetitions or applies them.
async fn assert_tables(records: &[ReadRecord], sql: &Client) {
    for mut keeper in [Keeper::default(), Keeper::skipping_repetitions()] {
        keeper.apply_all(records);
        keeper.assert_has(sql, "public.orders").await;
        keeper.assert_has(sql, "public.logs").await;
    }
}

/// The transaction was committed before the promotion, so its documents have the history of before it, also those that
/// the promoted server sends.
#[tokio::test]
async fn sequence_within_which_a_standby_is_promoted_is_continued_with_the_same_documents() {
    let mut pair = Pair::start(Version::Pg17, true).await;
    let url = pair.primary.url();
    let mut pipeline = Pipeline::capturing_on(&url, "captured_promoted", DDL, CAPTURE).await;
    pipeline.bound_in_flight(50);
    postrider_ok(&pipeline.config, &["setup"]);
    pipeline.config = pipeline.config.replace(&url, &pair.url());
    pipeline.url = pair.url();
    let relay = pipeline.run();
    relay.await_state("streaming", SOON).await;
    pipeline.sql.batch("insert into orders values (-1, 1, 'before')").await;
    pair.await_synced(&pipeline.slot()).await;
    pipeline.sql.batch(&large(20_000)).await;
    relay.await_status("a part", SOON, |status| published(status) > 300).await;
    pair.primary.kill().await;
    let there = first_copies(&pipeline.topic.read_all().await).len();
    let promoted = pair.promote().await;
    relay.await_log("the server went from timeline 1 to 2", SOON).await;
    promoted.batch("update orders set n = -n - 1 where id < 40").await;
    confirmed(&pipeline).await;
    assert_eq!(relay.terminate(SOON).await.code, Some(0));
    let records = pipeline.topic.read_all().await;
    let first = first_copies(&records);
    show(&format!("{} records, {there} events at the kill, {} events", records.len(), first.len()));
    assert!(there < first.len() - 10, "the transaction was over before the kill");
    assert_repetitions(&records);
    // The two of the transaction, and the update.
    assert_eq!(assert_sequences(&first, 10), 3);
    let histories: Vec<u32> = first.iter().filter_map(|of| Some(of.place()?.0)).collect();
    let last = histories.last().expect("a position");
    let raised = histories.iter().filter(|of| *of == last).count();
    assert!(histories[0] < *last && raised < 20, "{raised} of {} events", first.len());
    assert_tables(&records, &promoted).await;
}

/// A process that stands by takes over from one that is killed.
#[tokio::test]
async fn sequence_within_which_another_process_takes_over_is_continued_with_the_same_documents() {
    let mut pipeline = Pipeline::capturing(Version::Pg15, "captured_taken", DDL, CAPTURE).await;
    pipeline.bound_in_flight(50);
    postrider_ok(&pipeline.config, &["setup"]);
    let first = pipeline.run();
    first.await_state("streaming", SOON).await;
    let second = pipeline.run();
    second.await_state("standing_by", SOON).await;
    pipeline.sql.batch(&large(20_000)).await;
    first.await_status("a part", SOON, |status| published(status) > 300).await;
    first.kill().await;
    let there = first_copies(&pipeline.topic.read_all().await).len();
    confirmed(&pipeline).await;
    assert_eq!(second.terminate(SOON).await.code, Some(0));
    let records = pipeline.topic.read_all().await;
    let first = first_copies(&records);
    show(&format!("{} records, {there} events at the kill, {} events", records.len(), first.len()));
    assert!(there < first.len() - 10, "the transaction was over before the kill");
    assert_repetitions(&records);
    assert_eq!(assert_sequences(&first, 10), 2);
    assert_tables(&records, &pipeline.sql).await;
}
