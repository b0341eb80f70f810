//! `postrider setup --backfill`: a first start on a table that has rows, while writers go on.

use crate::answers::answer;
use crate::await_that::{SOON, await_that};
use crate::ledger::{Ledger, Outcome};
use crate::load::Load;
use crate::pipeline::{Pipeline, show};
use crate::relay::{postrider, postrider_at_a_terminal, postrider_ok};
use crate::server::{Client, Version};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The table and nothing else of ours: as if `setup` had never been run.
async fn bare(version: Version, test: &str, layout: &str) -> Pipeline {
    let pipeline = Pipeline::in_layout(version, test, layout).await;
    postrider_ok(&pipeline.config, &["setup", "--undo", "--yes"]);
    pipeline
}

async fn committed(load: &Load, more: usize) {
    let wanted = load.committed() + more;
    await_that(&format!("{wanted} committed"), SOON, || async {
        let now = load.committed();
        if now >= wanted { Ok(()) } else { Err(now) }
    })
    .await;
}

/// Old rows, a setup under load, a run under load, and the end of the load.
async fn under_load(pipeline: &Pipeline, which: &str) -> (Ledger, usize) {
    let load = Load::start(&pipeline.plan(), 2);
    committed(&load, 4_000).await;
    let text = postrider_ok(&pipeline.config, &["setup", "--backfill", which]);
    show(&text);
    let at_setup = load.committed();
    committed(&load, 2_000).await;
    let relay = pipeline.run();
    relay.await_state("streaming", SOON).await;
    committed(&load, 2_000).await;
    let ledger = load.stop().await;
    let last = ledger.entries.iter().rev().find(|entry| entry.outcome == Outcome::Committed);
    let last = last.expect("an event").id.clone();
    await_that("the last event", SOON, || async {
        let records = pipeline.topic.read_all().await;
        let there = records.iter().any(|record| record.header("id") == Some(&last));
        if there { Ok(()) } else { Err(records.len()) }
    })
    .await;
    relay
        .await_status("all published", SOON, |status| {
            let pipeline = &status["pipelines"][0];
            pipeline["in_flight_events"] == 0 && pipeline["lag_seconds"] == 0.0
        })
        .await;
    assert_eq!(relay.terminate(SOON).await.code, Some(0));
    (ledger, at_setup)
}

#[tokio::test]
async fn backfill_of_all_hands_one_snapshot_over_to_the_stream() {
    for version in [Version::Pg15, Version::Pg18] {
        let pipeline = bare(version, "bfall", "postrider").await;
        let (ledger, _) = under_load(&pipeline, "all").await;
        let findings = ledger.check(&pipeline.topic.read_all().await);
        show(&format!(
            "PostgreSQL {}, setup --backfill all beside two writers: {} committed, {} delivered, {} lost, {} swapped, \
             {} duplicates",
            version.major(),
            findings.committed,
            findings.delivered,
            findings.lost.len(),
            findings.swapped.len(),
            findings.duplicates
        ));
        // A row is in the snapshot or in the stream, never in both.
        findings.assert_balanced(0);
    }
}

/// At a terminal `setup` asks which of the rows that are there go first, until it has an answer that it knows, and
/// makes nothing before; `setup --undo` wants a yes in full.
#[tokio::test]
async fn at_a_terminal_a_person_is_asked_which_rows_go_first() {
    let pipeline = bare(Version::Pg17, "bftty", "adr30").await;
    let insert = "insert into outbox (id, aggregate_type, aggregate_id, event_type, payload, published_at) \
                  select gen_random_uuid(), 'order', gen_random_uuid(), 'T', to_json(i), \
                    case when i > 3 then now() end from generate_series(1, 5) i";
    pipeline.sql.batch(insert).await;
    let slots = || async {
        let slot = pipeline.slot();
        let sql =
            format!("select count(*)::text from pg_replication_slots where slot_name = '{slot}'");
        pipeline.sql.text(&sql).await.expect("a count")
    };
    let at_terminal =
        |args: &[&str], typed: &str| postrider_at_a_terminal(&pipeline.config, args, typed);
    let question = "Publish them before streaming starts? [none / unpublished / all]:";

    // Nobody types anything: the end of input is no answer.
    let (code, shown) = at_terminal(&["setup"], "");
    assert_ne!(code, Some(0), "{shown}");
    assert!(shown.contains(question), "{shown}");
    let rows = "The table has 5 rows of \"public\".\"outbox\" from before the slot";
    assert!(shown.contains(rows), "{shown}");
    assert_eq!(slots().await, "0", "{shown}");

    let mut published = 0;
    for (typed, times, listed) in [("\n", 1, 0), ("perhaps\nUnpublished\n", 2, 3), ("all\n", 1, 5)]
    {
        let (code, shown) = at_terminal(&["setup"], typed);
        assert_eq!(code, Some(0), "{typed:?}: {shown}");
        assert_eq!(shown.matches(question).count(), times, "{typed:?}: {shown}");
        let unknown = "\"perhaps\" is not an answer; type one of none, unpublished, all.";
        assert_eq!(shown.contains(unknown), typed.starts_with("perhaps"), "{typed:?}: {shown}");
        assert_eq!(
            shown.contains(&format!("list {listed} rows")),
            listed > 0,
            "{typed:?}: {shown}"
        );
        assert_eq!(slots().await, "1");
        let (code, again) = at_terminal(&["setup"], "");
        assert!(code == Some(0) && !again.contains(question), "asked once: {again}");

        let relay = pipeline.run();
        relay.await_state("streaming", SOON).await;
        published += listed;
        assert_eq!(
            pipeline.topic.await_records(published, SOON).await.len(),
            published,
            "{typed:?}"
        );
        assert_eq!(relay.terminate(SOON).await.code, Some(0));
        for typed in ["no\n", "y\n", ""] {
            let (code, shown) = at_terminal(&["setup", "--undo"], typed);
            assert_eq!(code, Some(0), "{typed:?}: {shown}");
            assert!(shown.contains(&format!("Undo {}? Type yes:", pipeline.name)), "{shown}");
            assert!(shown.contains("nothing was changed"), "{typed:?}: {shown}");
            assert_eq!(slots().await, "1", "{typed:?}");
        }
        let (code, shown) = at_terminal(&["setup", "--undo"], "yes\n");
        assert!(code == Some(0) && shown.contains("removed from the database"), "{shown}");
        assert_eq!(slots().await, "0");
    }
}

#[tokio::test]
async fn backfill_of_none_begins_with_the_stream() {
    let pipeline = bare(Version::Pg17, "bfnone", "postrider").await;
    let (ledger, at_setup) = under_load(&pipeline, "none").await;
    let records = pipeline.topic.read_all().await;
    let mut delivered: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for record in &records {
        let (key, id) = (record.key_text().expect("a key"), record.header("id").expect("an id"));
        delivered.entry(key).or_default().push(id);
    }
    let mut written: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for entry in ledger.entries.iter().filter(|entry| entry.outcome == Outcome::Committed) {
        written.entry(&entry.aggregate).or_default().push(&entry.id);
    }
    for (aggregate, ids) in &delivered {
        assert!(
            written[aggregate].ends_with(ids),
            "{aggregate}: {ids:?} is no end of what was written"
        );
    }
    let all = ledger.committed();
    assert!(records.len() >= all - at_setup, "{} of {all}, {at_setup} at setup", records.len());
    assert!(records.len() < all - 3_000, "old rows were published: {} of {all}", records.len());
    show(&format!(
        "setup --backfill none beside two writers: {all} committed, {at_setup} of them before setup was done, {} \
         delivered: of each aggregate its end, without a gap",
        records.len()
    ));
}

/// Layout `adr30`: old rows that are marked stay away, those that are not are published, and so is what comes beside.
#[tokio::test]
#[expect(clippy::disallowed_methods, reason = "the handle is awaited")]
async fn backfill_of_unpublished_leaves_marked_rows_out() {
    let pipeline = bare(Version::Pg17, "bfunpub", "adr30").await;
    let insert = "insert into outbox (id, aggregate_type, aggregate_id, event_type, payload) \
                  select gen_random_uuid(), 'order', gen_random_uuid(), 'T', to_json(i) from generate_series";
    pipeline.sql.batch(&format!("{insert}(1, 3000) i")).await;
    let marked = "update outbox set published_at = now() where (payload #>> '{}')::int % 3 = 0";
    pipeline.sql.batch(marked).await;
    let stop = Arc::new(AtomicBool::new(false));
    let writer = {
        let (stop, url, sql) =
            (Arc::clone(&stop), pipeline.url.clone(), format!("{insert}(10001, 10003) i"));
        tokio::spawn(async move {
            let client = Client::connect(&url).await.expect("a session");
            let mut rows = 0;
            while !stop.load(Ordering::Relaxed) {
                client.batch(&sql).await;
                rows += 3;
            }
            rows
        })
    };
    show(&postrider_ok(&pipeline.config, &["setup", "--backfill", "unpublished"]));
    let relay = pipeline.run();
    relay.await_state("streaming", SOON).await;
    stop.store(true, Ordering::Relaxed);
    let beside: usize = writer.await.expect("the writer");
    let wanted = 2_000 + beside;
    let records = pipeline.topic.await_records(wanted, SOON).await;
    relay
        .await_status("all published", SOON, |status| {
            status["pipelines"][0]["in_flight_events"] == 0
                && status["pipelines"][0]["lag_seconds"] == 0.0
        })
        .await;
    assert_eq!(relay.terminate(SOON).await.code, Some(0));
    assert_eq!(pipeline.topic.read_all().await.len(), wanted);
    let third = |text: Option<&str>| {
        text.and_then(|n| n.parse::<u32>().ok()).is_some_and(|n| n <= 3000 && n % 3 == 0)
    };
    assert!(!records.iter().any(|record| third(record.value_text())), "a marked row was published");
    show(&format!(
        "setup --backfill unpublished: 3000 old rows, 1000 of them marked, {beside} written beside it: {wanted} \
         delivered, each once, none of the marked"
    ));
}

#[tokio::test]
async fn backfill_is_for_the_first_start_alone() {
    let pipeline = Pipeline::shared(Version::Pg15, "bftwice").await;
    let output = postrider(&pipeline.config, &["setup", "--backfill", "all"]);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(3), "{errors}");
    assert!(errors.contains("has begun already"), "{errors}");
    assert!(errors.contains("postrider repair"), "{errors}");
    answer("backfill of a pipeline that has begun", &pipeline, &output);
    postrider_ok(&pipeline.config, &["setup", "--undo", "--yes"]);
    pipeline.insert(10).await;
    let once = postrider_ok(&pipeline.config, &["setup", "--backfill", "all"]);
    assert!(once.contains("list 10 rows"), "{once}");
    let again = postrider_ok(&pipeline.config, &["setup", "--backfill", "all"]);
    assert!(again.contains("list 10 rows"), "{again}");
    let relay = pipeline.run();
    relay.await_state("streaming", SOON).await;
    assert_eq!(pipeline.topic.await_records(10, SOON).await.len(), 10);
    assert_eq!(relay.terminate(SOON).await.code, Some(0));
}
