//! A publication that was changed and changed back under a running stream, with rows of between: PostgreSQL leaves them
//! out without a word, so the relay halts, and its remedy publishes them.

use crate::answers::answer;
use crate::await_that::{SOON, await_that};
use crate::halted::{Halted, halt_of, spawn};
use crate::pipeline::Pipeline;
use crate::relay::{Relay, postrider_ok};
use crate::remedies::{every_row_arrives, follow};
use crate::server::{Client, Version};

/// Ten events are published, and what is resolved is written down.
async fn streaming(version: Version, json_log: bool) -> (Pipeline, Relay) {
    let pipeline = Pipeline::shared(version, "leftout").await;
    let relay = if json_log { spawn(&pipeline.config) } else { pipeline.run() };
    relay.await_state("streaming", SOON).await;
    pipeline.insert(10).await;
    pipeline.topic.await_records(10, SOON).await;
    resolved(&pipeline, "10").await;
    (pipeline, relay)
}

/// Waits until the cursor row knows the transaction of the row with this id to be resolved.
async fn resolved(pipeline: &Pipeline, id: &str) {
    let sql = format!(
        "select coalesce(pg_visible_in_snapshot(o.xmin::text::xid8, c.resolved_snapshot), false)::text \
         from postrider.cursor c, outbox o where o.id = {id} and c.pipeline = '{}'",
        pipeline.name
    );
    await_that("a cursor row that knows what is resolved", SOON, || async {
        // Each gives the relay something to write a row for.
        pipeline.insert(1).await;
        let known = pipeline.sql.text(&sql).await;
        if known.as_deref() == Some("true") { Ok(()) } else { Err(format!("{known:?}")) }
    })
    .await;
}

/// What is done, and what undoes it.
const CHANGES: &[(&str, &str, &str)] = &[
    (
        "table taken out and put back",
        "alter publication {publication} drop table outbox",
        "alter publication {publication} add table outbox",
    ),
    (
        "inserts switched off and on",
        "alter publication {publication} set (publish = 'update')",
        "alter publication {publication} set (publish = 'insert')",
    ),
    (
        "row filter set and removed",
        "alter publication {publication} set table outbox where (id < 0)",
        "alter publication {publication} set table outbox",
    ),
    (
        "publication dropped and created again",
        "drop publication {publication}",
        "create publication {publication} for table outbox with (publish = 'insert', publish_via_partition_root = true)",
    ),
];

/// Rows of before, of between and of after; those of after are published and confirmed before anybody looks.
async fn changed_and_back(version: Version) {
    for (name, change, back) in CHANGES {
        let (pipeline, relay) = streaming(version, true).await;
        pipeline.sql(change).await;
        pipeline.insert(5).await;
        pipeline.sql(back).await;
        pipeline.insert(5).await;
        let mut halted = halt_of(relay).await;
        // A server before 18 ends the stream where there was no publication.
        let code =
            if halted.code == "PR007" && name.contains("created") { "PR007" } else { "PR008" };
        halted.assert_says(code, &[&pipeline.slot()], &["postrider repair", "--from-table"]);
        if name.contains("taken out") {
            let input = "table taken out of the publication and put back while running";
            // How many rows there were depends on when somebody looked before.
            let (before, rows) = halted.meaning.split_once(" s before: ").expect("the interval");
            let (_, after) = rows.split_once(' ').expect("a number");
            let meaning = format!("{before} s before: 10 {after}");
            let Halted { code, message, hint, ended, .. } = halted;
            halted = Halted { code, message, meaning, hint, ended };
            answer(input, &pipeline, &halted);
        }
        let config = follow(&pipeline, &halted).await;
        every_row_arrives(&pipeline, &config, &format!("{version:?} {name}")).await;
    }
}

#[tokio::test]
async fn change_that_was_undone_between_two_looks_halts_and_loses_nothing_on_15() {
    changed_and_back(Version::Pg15).await;
}

#[tokio::test]
async fn change_that_was_undone_between_two_looks_halts_and_loses_nothing_on_18() {
    changed_and_back(Version::Pg18).await;
}

/// The row is written while the table is not published, and committed long after it is published again.
#[tokio::test]
async fn row_of_a_transaction_that_is_still_open_is_not_lost() {
    for version in [Version::Pg15, Version::Pg18] {
        let (pipeline, relay) = streaming(version, true).await;
        let writer = Client::connect(&pipeline.url).await.expect("a session");
        pipeline.sql("alter publication {publication} drop table outbox").await;
        let insert = "insert into outbox (aggregate_type, aggregate_id, event_type, payload) \
                      values ('order', 'open', 'T', '1')";
        writer.batch(&format!("begin; {insert}")).await;
        pipeline.sql("alter publication {publication} add table outbox").await;
        let halted = halt_of(relay).await;
        halted.assert_says("PR008", &[], &["--from-table"]);
        assert!(halted.meaning.contains("still open"), "{halted:#?}");
        writer.batch("commit").await;
        let config = follow(&pipeline, &halted).await;
        every_row_arrives(&pipeline, &config, "open transaction").await;
    }
}

/// The process is killed before it looks, or was not running: the next start goes on and says so, and however much it
/// has published since, a repair finds the rows.
#[tokio::test]
async fn rows_that_were_left_out_are_found_long_after_the_next_start() {
    for version in [Version::Pg15, Version::Pg18] {
        let (pipeline, relay) = streaming(version, false).await;
        drop(relay.kill().await);
        pipeline.sql("alter publication {publication} drop table outbox").await;
        pipeline.insert(5).await;
        pipeline.sql("alter publication {publication} add table outbox").await;
        let relay = pipeline.run();
        relay.await_log("publication_changed", SOON).await;
        for _ in 0..5 {
            let before = pipeline.topic.read_all().await.len();
            pipeline.insert(5).await;
            let records = pipeline.topic.await_records(before + 5, SOON).await;
            let commit = records.last().expect("records").commit_lsn();
            await_that("the confirmation", SOON, || pipeline.confirmed(&commit)).await;
        }
        assert_eq!(relay.terminate(SOON).await.code, Some(0));
        let said = postrider_ok(&pipeline.config, &["repair"]);
        assert!(said.contains("created or changed"), "{said}");
        every_row_arrives(&pipeline, &pipeline.config, "a late repair").await;
    }
}

/// What one statement explains, and what can have left out no row, goes on.
#[tokio::test]
async fn harmless_change_goes_on() {
    for version in [Version::Pg15, Version::Pg18] {
        let (pipeline, relay) = streaming(version, false).await;
        pipeline.sql("alter publication {publication} set (publish = 'insert, delete')").await;
        pipeline.insert(5).await;
        relay.await_log("one ALTER PUBLICATION explains", SOON).await;
        pipeline.insert(5).await;
        let newest = "select max(id)::text from outbox";
        let newest = pipeline.sql.text(newest).await.expect("an id");
        resolved(&pipeline, &newest).await;
        assert_eq!(relay.terminate(SOON).await.code, Some(0));
        let said = postrider_ok(&pipeline.config, &["repair"]);
        assert!(said.contains("nothing to repair"), "{said}");
    }
}
