//! What a repair refuses, and what it says.

use super::interrupted::{Repairing, gone, progress};
use super::{SOON, drop_slot, number, repair, repaired};
use crate::answers::{Answer, answer};
use crate::await_that::await_that;
use crate::halted::run_to_halt;
use crate::pipeline::{Pipeline, show};
use crate::relay::{postrider, postrider_ok};
use crate::server::Version;

/// It ended with 3, says this, and what the page has for `input`.
fn refused(pipeline: &Pipeline, input: &str, says: &[&str]) {
    let (output, _) = repair(&pipeline.config, &[]);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(3), "{errors}");
    for text in says {
        assert!(errors.contains(text), "{text:?} is not in: {errors}");
    }
    show(&errors);
    answer(input, pipeline, &output);
}

#[tokio::test]
async fn repair_beside_a_live_relay_is_refused() {
    let pipeline = Pipeline::shared(Version::Pg17, "beside").await;
    let relay = pipeline.run();
    relay.await_state("streaming", SOON).await;
    let says = ["another relay of this pipeline is live", "stop postrider run"];
    refused(&pipeline, "repair beside a live relay", &says);
    let (output, _) = repair(&pipeline.config, &["--dry-run"]);
    assert_eq!(output.status.code(), Some(3), "a dry run beside a live relay");
    pipeline.insert(50).await;
    assert_eq!(pipeline.topic.await_records(50, SOON).await.len(), 50);
    assert_eq!(relay.terminate(SOON).await.code, Some(0));
    let (output, value) = repair(&pipeline.config, &[]);
    assert_eq!((output.status.code(), value["state"].as_str()), (Some(0), Some("sound")));
}

#[tokio::test]
async fn dry_run_counts_and_changes_nothing() {
    let pipeline = Pipeline::shared(Version::Pg18, "dry").await;
    let relay = pipeline.run();
    relay.await_state("streaming", SOON).await;
    pipeline.insert(200).await;
    pipeline.topic.await_records(200, SOON).await;
    assert_eq!(relay.terminate(SOON).await.code, Some(0));
    // Long after the relay had ended, as the time column has it.
    let rows = "insert into outbox (aggregate_type, aggregate_id, event_type, payload, created_at) \
                select 'order', (i % 10)::text, 'Written', to_json(i), now() + interval '1 hour' \
                from generate_series(1, 300) i";
    pipeline.sql.batch(rows).await;
    pipeline.sql.batch("delete from outbox where id in (250, 251)").await;
    drop_slot(&pipeline).await;
    let before = facts(&pipeline).await;
    let text = postrider(&pipeline.config, &["repair", "--dry-run"]);
    show(&String::from_utf8_lossy(&text.stdout));
    let (output, value) = repair(&pipeline.config, &["--dry-run"]);
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(facts(&pipeline).await, before, "a dry run changed something");
    let rows = number(&value, "rows");
    assert!((298..=498).contains(&rows), "{value}");
    assert_eq!(rows - number(&value, "uncertain"), 298, "{value}");
    assert_eq!(number(&value, "ids_missing"), 2, "{value}");
    assert_eq!(number(&value, "aggregates"), 10, "{value}");

    let done = repaired(&pipeline.config);
    assert_eq!((number(&done, "rows"), number(&done, "published")), (rows, rows), "{done}");
    assert_eq!(number(&done, "ids_missing"), 2, "{done}");
    let records = pipeline.topic.await_records(200 + rows, SOON).await;
    assert_eq!(records.len(), 200 + rows);
}

/// Slots, cursor and repair, as text.
async fn facts(pipeline: &Pipeline) -> String {
    let slot = pipeline.slot();
    let sql = format!(
        "select concat((select string_agg(s::text, ';') from pg_replication_slots s where slot_name = '{slot}'), \
           (select string_agg(c::text, ';') from postrider.cursor c), \
           (select string_agg(r::text, ';') from postrider.repair r))"
    );
    pipeline.sql.text(&sql).await.unwrap_or_default()
}

#[tokio::test]
async fn cursor_that_is_missing_or_of_another_system_is_told_with_what_is_possible() {
    let pipeline = Pipeline::shared(Version::Pg15, "nocursor").await;
    pipeline.insert(10).await;
    drop_slot(&pipeline).await;
    pipeline.sql.batch("update postrider.cursor set system_identifier = '1'").await;
    let input = "repair with a cursor row of another system";
    refused(&pipeline, input, &["belongs to cluster 1", "DELETE FROM postrider.cursor"]);
    pipeline.sql.batch("delete from postrider.cursor").await;
    let says = ["has no cursor row", "nothing in the database records", "--backfill none"];
    refused(&pipeline, "repair without a cursor row", &says);
}

/// A slot that somebody made again by hand, and one that somebody moved, leave a gap: the repair closes it.
#[tokio::test]
async fn slot_made_again_by_hand_is_repaired() {
    let pipeline = Pipeline::shared(Version::Pg17, "byhand").await;
    let relay = pipeline.run();
    relay.await_state("streaming", SOON).await;
    assert_eq!(relay.terminate(SOON).await.code, Some(0));
    pipeline.insert(100).await;
    drop_slot(&pipeline).await;
    let slot = pipeline.slot();
    let made = format!("select pg_create_logical_replication_slot('{slot}', 'pgoutput')::text");
    pipeline.sql.text(&made).await;
    let halted =
        crate::relay::Relay::spawn_with(&pipeline.config, &["--fail-fast"], &[]).ended(SOON).await;
    assert_eq!(halted.code, Some(3), "{}", halted.stderr);
    let value = repaired(&pipeline.config);
    assert_eq!(number(&value, "published"), 100, "{value}");
    let relay = pipeline.run();
    relay.await_state("streaming", SOON).await;
    pipeline.insert(5).await;
    assert_eq!(pipeline.topic.await_records(105, SOON).await.len(), 105);
    assert_eq!(relay.terminate(SOON).await.code, Some(0));
}

#[tokio::test]
async fn repair_without_a_publication_or_without_a_stream_is_refused() {
    let mut pipeline = Pipeline::shared(Version::Pg18, "nopub").await;
    drop_slot(&pipeline).await;
    pipeline.insert(20).await;
    let publication = pipeline.slot();
    pipeline.sql.batch(&format!("drop publication {publication}")).await;
    let says = ["CREATE PUBLICATION", "then postrider repair"];
    refused(&pipeline, "repair without the publication", &says);
    let made =
        format!("create publication {publication} for table outbox with (publish = 'insert')");
    pipeline.sql.batch(&made).await;
    assert_eq!(number(&repaired(&pipeline.config), "published"), 20);
    let head = format!("[pipelines.{}]\n", pipeline.name);
    pipeline.config = pipeline.config.replacen(&head, &format!("{head}mode = \"poll\"\n"), 1);
    refused(&pipeline, "repair of a pipeline that polls", &["has no slot"]);
}

/// Rows are listed, and what they are changes before they are published.
async fn listed(test: &str, id: &str) -> Pipeline {
    let pipeline = Pipeline::shared(Version::Pg17, test).await;
    let alter = format!(
        "alter table outbox alter id drop identity; alter table outbox alter id type text using 'x' || id; \
         create sequence ids; alter table outbox alter id set default {id}"
    );
    pipeline.sql.batch(&alter).await;
    let relay = pipeline.run();
    relay.await_state("streaming", SOON).await;
    assert_eq!(relay.terminate(SOON).await.code, Some(0));
    pipeline.insert(40).await;
    drop_slot(&pipeline).await;
    let nowhere = pipeline.config.replace(&pipeline.topic.brokers, "127.0.0.1:1");
    let listing = Repairing::start(&nowhere);
    await_that("the list", SOON, || async {
        match progress(&pipeline).await {
            (0, 40) => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await;
    listing.kill().await;
    gone(&pipeline).await;
    pipeline
}

/// Most of the list is in no row any more, and the table has rows that may be those: nothing is taken for deleted.
#[tokio::test]
async fn rows_that_are_not_found_though_the_table_has_rows_stop_a_repair() {
    let changes = [
        "update outbox set id = 'y' || id",
        "alter table outbox alter id drop default; \
         alter table outbox alter id type bigint using substr(id, 2)::bigint",
    ];
    for change in changes {
        let pipeline = listed("unfound", "'x' || nextval('ids')").await;
        pipeline.sql.batch(change).await;
        let (output, value) = repair(&pipeline.config, &[]);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(3), "{value}\n{errors}");
        assert!(errors.contains("were not found in table"), "{errors}");
        let halted = run_to_halt(&pipeline.config).await;
        halted.assert_says(
            "PR009",
            &["were not found in table"],
            &["DELETE FROM postrider.repair WHERE", "postrider repair"],
        );
        answer("ids changed while a repair is at work", &pipeline, &halted);
        assert_eq!(pipeline.topic.read_all().await.len(), 0, "nothing was published");
        // As the hint says.
        let name = &pipeline.name;
        pipeline
            .sql
            .batch(&format!("delete from postrider.repair where pipeline = '{name}'"))
            .await;
        let value = repaired(&pipeline.config);
        assert!(number(&value, "published") >= 40, "{value}");
        let values: std::collections::BTreeSet<_> =
            pipeline.topic.read_all().await.into_iter().map(|record| record.value).collect();
        assert_eq!(values.len(), 40, "each is there");
    }
}

/// The table of [`Pipeline`] with a column `id` that may be NULL.
const NULLABLE: &str = "alter table outbox alter id drop identity; alter table outbox drop constraint outbox_pkey; \
                        alter table outbox alter id drop not null";

/// `expression` makes an id of the number `i`.
fn numbered(expression: &str, from: usize, to: usize) -> String {
    format!(
        "insert into outbox (id, aggregate_type, aggregate_id, event_type, payload) \
         select {expression}, 'order', (i % 10)::text, 'Written', to_json(i) from generate_series({from}, {to}) i"
    )
}

/// A list of ids can't hold a row that has none: it is counted and named before and after, the rest is published, and
/// what the hint says publishes it.
#[tokio::test]
async fn rows_without_an_id_are_counted_and_no_success() {
    for (of, id) in [("text", "'id-' || i"), ("bigint", "i"), ("uuid", "md5(i::text)::uuid")] {
        let pipeline = Pipeline::shared(Version::Pg17, "noid").await;
        let alter = format!("{NULLABLE}; alter table outbox alter id type {of} using null");
        pipeline.sql.batch(&alter).await;
        let relay = pipeline.run();
        relay.await_state("streaming", SOON).await;
        assert_eq!(relay.terminate(SOON).await.code, Some(0));
        pipeline.sql.batch(&numbered(id, 1, 20)).await;
        pipeline.sql.batch(&numbered("null", 21, 23)).await;
        drop_slot(&pipeline).await;

        let (_, planned) = repair(&pipeline.config, &["--dry-run"]);
        assert_eq!(
            (&planned["rows"], &planned["without_id"]),
            (&20.into(), &3.into()),
            "{planned}"
        );
        let output = postrider(&pipeline.config, &["repair"]);
        let said = String::from_utf8_lossy(&output.stdout);
        let flat = said.split_whitespace().collect::<Vec<_>>().join(" ");
        assert_eq!(output.status.code(), Some(1), "{of}: {said}");
        let words = "no id 3 rows have no id and are not published, because rows are listed by id.";
        assert_eq!(flat.matches(words).count(), 2, "before and after, {of}: {said}");
        assert!(flat.contains("published 20 of 20 rows"), "{of}: {said}");
        assert!(!flat.contains("were deleted"), "{of}: {said}");
        let log = String::from_utf8_lossy(&output.stderr);
        assert!(log.contains("3 rows of table \"public\".\"outbox\" have no id"), "{of}: {log}");
        let answered = Answer::said(words, "", "delete them and insert them again with an id");
        answer("rows without an id in a repair", &pipeline, answered.then("1"));

        // As it says.
        let relay = pipeline.run();
        relay.await_state("streaming", SOON).await;
        let again =
            format!("begin; delete from outbox where id is null; {}; commit", numbered(id, 21, 23));
        pipeline.sql.batch(&again).await;
        let mut values: Vec<u32> = pipeline
            .topic
            .await_records(23, SOON)
            .await
            .iter()
            .map(|record| record.value_text().expect("a payload").parse().expect("a number"))
            .collect();
        values.sort_unstable();
        assert_eq!(values, (1..=23).collect::<Vec<_>>(), "{of}");
        assert_eq!(relay.terminate(SOON).await.code, Some(0));
    }
}

/// The same at a first start.
#[tokio::test]
async fn rows_without_an_id_are_named_by_a_backfill() {
    let pipeline = Pipeline::shared(Version::Pg18, "bfnoid").await;
    postrider_ok(&pipeline.config, &["setup", "--undo", "--yes"]);
    pipeline.sql.batch(NULLABLE).await;
    pipeline.sql.batch(&numbered("i", 1, 5)).await;
    pipeline.sql.batch(&numbered("null", 6, 7)).await;
    let said = postrider_ok(&pipeline.config, &["setup", "--backfill", "all"]);
    let flat = said.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(flat.contains("list 5 rows"), "{said}");
    assert!(flat.contains("not listed 2 rows have no id"), "{said}");
    let relay = pipeline.run();
    assert_eq!(pipeline.topic.await_records(5, SOON).await.len(), 5);
    relay.await_state("streaming", SOON).await;
    let ended = relay.terminate(SOON).await;
    assert!(ended.stderr.contains("2 rows of table"), "{}", ended.stderr);
    assert_eq!(ended.code, Some(0));
}

/// What was deleted is lost, and no success.
#[tokio::test]
async fn rows_that_were_deleted_while_they_waited_are_no_success() {
    let pipeline = listed("deleted", "'x' || nextval('ids')").await;
    pipeline.sql.batch("delete from outbox where (payload #>> '{}')::int > 10").await;
    let output = postrider(&pipeline.config, &["repair"]);
    let said = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "{said}");
    let words = "deleted 30 rows were deleted after they were listed and before they were published: their events are lost";
    let flat = said.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(flat.contains(words), "{said}");
    answer(
        "rows deleted while a repair is at work",
        &pipeline,
        Answer::said(words, "", "").then("1"),
    );
}

/// A person skips an event, and corrects it: the row is inserted again under its id. When the slot is lost then, the
/// corrected row is unpublished, though an event of its id is skipped.
#[tokio::test]
async fn row_that_was_inserted_again_after_its_event_was_skipped_is_published() {
    let mut pipeline = Pipeline::shared(Version::Pg17, "again").await;
    pipeline
        .sql
        .batch("alter table outbox alter id drop identity; alter table outbox alter id type text")
        .await;
    pipeline.config = pipeline.with_parking(&pipeline.config, "on_poison = \"skip_event\"");
    let relay = pipeline.run();
    relay.await_state("streaming", SOON).await;
    let insert = |id: &str, headers: &str| {
        format!(
            "insert into public.outbox (id, aggregate_type, aggregate_id, event_type, payload, headers) \
             values ('{id}', 'order', '1', 'Written', to_json('{id}'::text), {headers})"
        )
    };
    pipeline.sql.batch(&insert("refused", "'[]'")).await;
    let waiting = "select count(*)::text from postrider.parked where event_id = 'refused'";
    await_that("a parked event", SOON, || async {
        let found = pipeline.sql.text(waiting).await;
        if found.as_deref() == Some("1") { Ok(()) } else { Err(format!("{found:?}")) }
    })
    .await;
    postrider_ok(&pipeline.config, &["parked", "skip", "--all", "--yes"]);
    let skipped = "select state from postrider.parked where event_id = 'refused'";
    await_that("the event to be skipped", SOON, || async {
        let found = pipeline.sql.text(skipped).await;
        if found.as_deref() == Some("skipped") { Ok(()) } else { Err(format!("{found:?}")) }
    })
    .await;
    assert_eq!(relay.terminate(SOON).await.code, Some(0));
    drop_slot(&pipeline).await;
    pipeline.sql.batch("delete from public.outbox where id = 'refused'").await;
    pipeline.sql.batch(&insert("refused", "null")).await;
    let repaired = postrider_ok(&pipeline.config, &["repair"]);
    let records = pipeline.topic.read_all().await;
    let published = records.iter().filter(|record| record.header("id") == Some("refused")).count();
    assert_eq!(published, 1, "{repaired}");
}

/// What expired while the slot was lost is skipped by a repair, as by the stream and by polling.
#[tokio::test]
async fn expired_rows_are_skipped_by_a_repair() {
    let pipeline = Pipeline::in_layout(Version::Pg17, "expired", "gcx").await;
    let relay = pipeline.run();
    relay.await_state("streaming", SOON).await;
    assert_eq!(relay.terminate(SOON).await.code, Some(0));
    drop_slot(&pipeline).await;
    let insert = format!(
        "insert into outbox (id, aggregate_type, aggregate_id, event_type, topic, payload, expires_at) \
         select md5(i::text)::uuid, 'order', md5('a')::uuid, 'E', '{}', to_jsonb(i), \
           now() + (i - 2.5) * interval '1 hour' from generate_series(1, 4) i",
        pipeline.topic.name
    );
    pipeline.sql.batch(&insert).await;
    let (output, value) = repair(&pipeline.config, &[]);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{value}\n{errors}");
    assert_eq!(errors.matches("event expired before it was published").count(), 2, "{errors}");
    let records = pipeline.topic.read_all().await;
    let payloads: Vec<_> = records.iter().filter_map(|record| record.value_text()).collect();
    assert_eq!(payloads, ["3", "4"], "{value}");
}
