//! `postrider tail`: the records that will be published, in each state, and that nothing moves.

use crate::await_that::{SOON, await_that};
use crate::pipeline::Pipeline;
use crate::private::{Signal, exit_of, signal};
use crate::relay::{postrider, postrider_ok};
use crate::server::Version;
use serde_json::Value;
use std::fs::{self, File};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use tempfile::TempDir;

/// A command that runs beside the test. Killed when dropped.
struct Running {
    child: Child,
    dir: TempDir,
}

impl Running {
    fn start(config: &str, args: &[&str]) -> Self {
        let dir = TempDir::new().expect("a directory");
        fs::write(dir.path().join("postrider.toml"), config).expect("a configuration");
        let output = |name: &str| File::create(dir.path().join(name)).expect("a file");
        let child = Command::new(Path::new(env!("CARGO_BIN_EXE_postrider")))
            .args(["-c", "postrider.toml"])
            .args(args)
            .current_dir(dir.path())
            .stdin(Stdio::null())
            .stdout(output("stdout"))
            .stderr(output("stderr"))
            .spawn()
            .expect("postrider");
        Self { child, dir }
    }

    fn output(&self, name: &str) -> String {
        fs::read_to_string(self.dir.path().join(name)).unwrap_or_default()
    }

    /// Waits until so many events are printed.
    async fn await_events(&self, count: usize) -> Vec<Value> {
        await_that(&format!("{count} events"), SOON, || async {
            let text = self.output("stdout");
            let events = events(&text);
            if events.len() >= count { Ok(events) } else { Err(text + &self.output("stderr")) }
        })
        .await
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// The complete lines.
fn events(text: &str) -> Vec<Value> {
    let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
    whole.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

/// The slots of the database, with what must not move.
async fn slots(pipeline: &Pipeline) -> String {
    let sql = "select coalesce(string_agg(concat_ws(' ', slot_name, confirmed_flush_lsn, restart_lsn), ', ' \
                 order by slot_name), '') from pg_replication_slots where database = current_database()";
    pipeline.sql.text(sql).await.expect("a text")
}

/// Waits until the command has a temporary slot that is ready, or until there is none.
async fn await_temporary(pipeline: &Pipeline, exists: bool) {
    // A slot has no confirmed position while it is being created.
    let sql = "select concat_ws(' ', count(*), count(confirmed_flush_lsn)) from pg_replication_slots \
               where database = current_database() and slot_name like 'postrider_tail_%'";
    let wanted = if exists { "1 1" } else { "0 0" };
    await_that("the temporary slot", SOON, || async {
        let found = pipeline.sql.text(sql).await.unwrap_or_default();
        if found == wanted { Ok(()) } else { Err(found) }
    })
    .await;
}

fn ids(events: &[Value]) -> Vec<&str> {
    events.iter().filter_map(|event| event["id"].as_str()).collect()
}

/// Each event is the record that a consumer reads later.
#[tokio::test]
async fn stopped_pipeline_is_peeked_and_nothing_moves() {
    for version in [Version::Pg15, Version::Pg18] {
        let pipeline = Pipeline::shared(version, "tailpeek").await;
        pipeline.insert(3).await;
        pipeline.insert(3).await;
        let before = slots(&pipeline).await;
        let text = postrider_ok(&pipeline.config, &["tail", "--json"]);
        let shown = events(&text);
        assert_eq!(ids(&shown), ["1", "2", "3", "4", "5", "6"], "{text}");
        assert_eq!(slots(&pipeline).await, before);
        assert!(!text.contains("\"payload\":"), "{text}");
        let few = postrider(&pipeline.config, &["tail", "--json", "--limit", "2", "--payload"]);
        let few_text = String::from_utf8_lossy(&few.stdout).into_owned();
        let few_events = events(&few_text);
        assert_eq!(ids(&few_events), ["1", "2"]);
        assert_eq!(few_events[1]["payload"], "2", "{few_text}");
        let errors = String::from_utf8_lossy(&few.stderr).into_owned();
        assert!(errors.contains("without moving it"), "{errors}");
        assert!(errors.contains("raise --limit"), "{errors}");
        assert_eq!(slots(&pipeline).await, before);

        let relay = pipeline.run();
        let records = pipeline.topic.await_records(6, SOON).await;
        for event in &shown {
            let of =
                |record: &&crate::topic::ReadRecord| record.header("id") == event["id"].as_str();
            let record = records.iter().find(of).expect("a record");
            assert_eq!(event["key"].as_str(), record.key_text(), "{event}");
            assert_eq!(event["topic"], pipeline.topic.name.as_str());
            let (_, lsn, ordinal) = record.place().expect("a position");
            assert_eq!(event["position"], format!("{lsn}:{ordinal}"), "{event}");
            // The first start may begin another history, which is a part of this header.
            let shown = event["headers"].as_array().expect("headers").iter();
            let headers: Vec<(&str, &str)> = shown
                .filter_map(|header| Some((header["name"].as_str()?, header["value"].as_str()?)))
                .filter(|(name, _)| *name != "position")
                .collect();
            let read: Vec<(&str, &str)> = record
                .headers
                .iter()
                .filter(|(name, _)| name != "position")
                .map(|(name, _)| (name.as_str(), record.header(name).unwrap_or_default()))
                .collect();
            assert_eq!(headers, read, "{event}");
        }
        assert_eq!(relay.terminate(SOON).await.code, Some(0));
        // What is published is not shown again.
        pipeline.insert(1).await;
        let shown = events(&postrider_ok(&pipeline.config, &["tail", "--json"]));
        assert_eq!(ids(&shown), ["7"]);
    }
}

#[tokio::test]
async fn running_pipeline_is_tailed_by_a_temporary_slot_that_leaves_nothing_also_after_kill_9() {
    let pipeline = Pipeline::shared(Version::Pg17, "tailrun").await;
    let relay = pipeline.run();
    relay.await_state("streaming", SOON).await;
    pipeline.insert(2).await;
    pipeline.topic.await_records(2, SOON).await;
    // To the limit.
    let running =
        Running::start(&pipeline.config, &["tail", "--json", "--limit", "3", "--wait", "5m"]);
    await_temporary(&pipeline, true).await;
    pipeline.insert(4).await;
    let shown = running.await_events(3).await;
    assert_eq!(ids(&shown), ["3", "4", "5"]);
    await_temporary(&pipeline, false).await;
    assert!(running.output("stderr").contains("committed before is not seen"));
    // Ctrl-C.
    let mut running = Running::start(&pipeline.config, &["tail", "--json", "--follow"]);
    await_temporary(&pipeline, true).await;
    pipeline.insert(1).await;
    assert_eq!(ids(&running.await_events(1).await), ["7"]);
    assert!(signal(running.child.id(), Signal::Int));
    assert_eq!(exit_of(&mut running.child, SOON).await.code(), Some(0));
    await_temporary(&pipeline, false).await;
    // kill -9.
    let mut running = Running::start(&pipeline.config, &["tail", "--json", "--follow"]);
    await_temporary(&pipeline, true).await;
    signal(running.child.id(), Signal::Kill);
    exit_of(&mut running.child, SOON).await;
    await_temporary(&pipeline, false).await;
    // Nothing was read away from the pipeline.
    let records = pipeline.topic.await_records(7, SOON).await;
    assert_eq!(records.len(), 7);
    assert_eq!(relay.terminate(SOON).await.code, Some(0));
}

#[tokio::test]
async fn polled_table_shows_the_rows_that_wait() {
    let mut pipeline = Pipeline::shared(Version::Pg16, "tailpoll").await;
    let head = format!("[pipelines.{}]\n", pipeline.name);
    let lines = format!("{head}mode = \"poll\"\npoll = {{ interval = \"50ms\" }}\n");
    pipeline.config = pipeline.config.replacen(&head, &lines, 1);
    pipeline.insert(5).await;
    let output = postrider(&pipeline.config, &["tail", "--json", "--limit", "3"]);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(ids(&events(&text)), ["1", "2", "3"], "{text}{errors}");
    assert!(errors.contains("rows that polling has not published yet"), "{errors}");
    assert!(errors.contains("there are more rows"), "{errors}");
    assert_eq!(pipeline.sql.text("select count(*)::text from outbox").await.as_deref(), Some("5"));
    let refused = postrider(&pipeline.config, &["tail", "--follow"]);
    assert_eq!(refused.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("--follow needs a stream"));
    let relay = pipeline.run();
    pipeline.topic.await_records(5, SOON).await;
    await_that("no row that waits", SOON, || async {
        let text = postrider_ok(&pipeline.config, &["tail", "--json"]);
        if text.trim().is_empty() { Ok(()) } else { Err(text) }
    })
    .await;
    assert_eq!(relay.terminate(SOON).await.code, Some(0));
}

/// An event that can't be published has its reason, and a lost slot the command that helps.
#[tokio::test]
async fn poison_event_and_a_missing_slot_are_named() {
    let pipeline = Pipeline::shared(Version::Pg17, "tailbad").await;
    pipeline
        .sql
        .batch(
            "alter table outbox alter event_type drop not null; \
             insert into outbox (aggregate_type, aggregate_id, payload) values ('order', 'a', '1')",
        )
        .await;
    let shown = events(&postrider_ok(&pipeline.config, &["tail", "--json"]));
    assert!(shown[0]["error"].is_string(), "{shown:?}");
    assert_eq!(shown[0]["id"], "1", "{shown:?}");
    crate::pipeline::drop_slot(&pipeline).await;
    let output = postrider(&pipeline.config, &["tail"]);
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{errors}");
    assert!(errors.contains("does not exist") && errors.contains("postrider repair"), "{errors}");
}
