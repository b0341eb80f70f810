//! `outbox.on_update = "halt"`: an UPDATE of the outbox table halts the pipeline in front of it, and nothing is lost.

use crate::answers::answer;
use crate::await_that::{SOON, await_that};
use crate::check::Patient;
use crate::halted::{halt_of, run_to_halt, spawn};
use crate::pipeline::Pipeline;
use crate::relay::{Relay, postrider, postrider_ok};
use crate::server::{Client, Version};
use crate::topic::ReadRecord;
use std::collections::BTreeSet;

/// A pipeline that is set up with the key.
async fn halts_at_updates(version: Version) -> Pipeline {
    let mut pipeline = Pipeline::shared(version, "updates").await;
    postrider_ok(&pipeline.config, &["setup", "--undo", "--yes"]);
    pipeline.config = pipeline.with_line("outbox", "on_update = \"halt\"");
    postrider_ok(&pipeline.config, &["setup"]);
    pipeline
}

/// Events before the UPDATE are published, in its own transaction too; those behind it wait. The remedy passes over it.
#[tokio::test]
async fn an_update_halts_in_front_of_it_and_loses_nothing() {
    for version in Version::ALL {
        let pipeline = halts_at_updates(version).await;
        let relay = spawn(&pipeline.config);
        relay.await_state("streaming", SOON).await;
        pipeline.insert(10).await;
        pipeline.topic.await_records(10, SOON).await;
        // A deletion is no update.
        pipeline.sql("delete from outbox where id = 1").await;
        let row = "insert into outbox (aggregate_type, aggregate_id, event_type, payload) values ('order', 'u', 'T', '1')";
        let update = "update outbox set payload = '2' where id = 2";
        pipeline.sql.batch(&format!("begin; {row}; {update}; {row}; commit")).await;
        pipeline.insert(5).await;
        let halted = halt_of(relay).await;
        halted.assert_says("PR023", &["id \"2\"", "was updated"], &["outbox.on_update = \"skip\""]);
        answer("row of the outbox updated, with on_update = halt", &pipeline, &halted);
        assert_eq!(pipeline.topic.read_all().await.len(), 11);
        // It halts again as long as nobody decides, and publishes nothing twice.
        run_to_halt(&pipeline.config).await.assert_says("PR023", &["id \"2\""], &[]);
        assert_eq!(pipeline.topic.read_all().await.len(), 11);

        let skips = pipeline.config.replace("\"halt\"", "\"skip\"");
        let relay = Relay::spawn(&skips);
        relay.await_state("streaming", SOON).await;
        assert_eq!(pipeline.topic.await_records(17, SOON).await.len(), 17);
        assert_eq!(relay.terminate(SOON).await.code, Some(0));
        // "When the pipeline has passed it, halt can be set again."
        let relay = pipeline.run();
        relay.await_state("streaming", SOON).await;
        pipeline.insert(1).await;
        assert_eq!(pipeline.topic.await_records(18, SOON).await.len(), 18);
        assert_eq!(relay.terminate(SOON).await.code, Some(0));
    }
}

/// An UPDATE that was passed over as `skip` says, and lies in the part of a transaction that is published: where that
/// part comes again, after a kill, it does not halt the pipeline that has `halt` since.
#[tokio::test]
async fn update_that_was_passed_over_does_not_halt_where_it_comes_again() {
    const ROWS: usize = 30_000;
    let mut pipeline = halts_at_updates(Version::Pg17).await;
    pipeline.bound_in_flight(2_000);
    let halts = pipeline.config.clone();
    pipeline.config = halts.replace("\"halt\"", "\"skip\"");
    let transaction = format!(
        "do $$ begin for i in 1..{ROWS} loop \
           insert into outbox (aggregate_type, aggregate_id, event_type, payload) \
             values ('order', (i % 10)::text, 'T', to_json(i)); \
           if i = 1 then update outbox set event_type = 'U' where id = 1; end if; \
         end loop; end $$"
    );
    pipeline.sql.batch(&transaction).await;
    let relay = pipeline.run();
    let partial = format!(
        "select coalesce(partial_ordinal, 0)::text from postrider.cursor where pipeline = '{}'",
        pipeline.name
    );
    await_that("a cursor row inside the transaction", SOON, || async {
        let ordinal = pipeline.sql.text(&partial).await.unwrap_or_default();
        if ordinal.parse::<u64>().is_ok_and(|at| at > 2) { Ok(()) } else { Err(ordinal) }
    })
    .await;
    relay.kill().await;
    let ordinal = pipeline.sql.text(&partial).await.unwrap_or_default();
    assert_ne!(ordinal, "0", "the transaction was over before the kill");
    let relay = spawn(&halts);
    let end = pipeline.wal_end().await;
    await_that("all to be confirmed", SOON, || pipeline.confirmed(&end)).await;
    assert_eq!(relay.terminate(SOON).await.code, Some(0));
    let ids: BTreeSet<_> = pipeline.topic.read_all().await.iter().map(id_of).collect();
    assert_eq!(ids.len(), ROWS, "every event arrived");
}

fn id_of(record: &ReadRecord) -> String {
    record.header("id").expect("an id").to_owned()
}

/// Set for a pipeline that runs already: its publication has inserts alone, so no UPDATE would be seen.
#[tokio::test]
async fn a_publication_without_updates_is_refused_and_mended_without_loss() {
    for version in [Version::Pg15, Version::Pg18] {
        let pipeline = Pipeline::shared(version, "noupdates").await;
        pipeline.insert(5).await;
        let config = pipeline.with_line("outbox", "on_update = \"halt\"");
        let halted = run_to_halt(&config).await;
        halted.assert_says("PR008", &["does not publish updates"], &["'insert, update'"]);
        answer("on_update = halt with a publication of inserts", &pipeline, &halted);
        let patient = Patient::new(&config, &pipeline.url);
        let checked = patient.check(&[]);
        patient.fix(checked.expect("publication_update", "error")).await;
        assert_eq!(patient.check(&[]).ids(&["error"]), Vec::<&str>::new());
        let relay = spawn(&config);
        relay.await_state("streaming", SOON).await;
        pipeline.insert(5).await;
        assert_eq!(pipeline.topic.await_records(10, SOON).await.len(), 10);
        let writer = Client::connect(&pipeline.url).await.expect("a session");
        writer.batch("update outbox set payload = '2' where id = 1").await;
        halt_of(relay).await.assert_says("PR023", &["id \"1\""], &[]);
    }
}

/// What can't see an UPDATE, or makes UPDATEs of its own, is refused by name.
#[test]
fn what_sees_no_update_is_refused_by_name() {
    let file = |mode: &str, more: &str| {
        format!(
            "[pipelines.a]\nmode = \"{mode}\"\nsource.url = \"host=/tmp user=u dbname=d\"\nsink.kind = \"discard\"\n\
             outbox = {{ layout = \"adr30\", on_update = \"halt\", {more} }}\n"
        )
    };
    let table = "table = \"outbox\"";
    for (config, word) in [
        (file("auto", table), "mode = \\\"wal\\\""),
        (file("poll", table), "mode = \\\"wal\\\""),
        (file("wal", table) + "poll.mark_streamed = true\n", "poll.mark_streamed"),
        (file("wal", "message_prefix = \"x\""), "outbox.table"),
    ] {
        let output = postrider(&config, &["check", "--offline"]);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(
            said.contains(&word.replace('\\', "")) && said.contains("on_update"),
            "{word}: {said}"
        );
    }
}
