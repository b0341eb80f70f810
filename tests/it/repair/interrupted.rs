//! A repair that is interrupted: killed half way, or its new slot is lost in its turn. It goes on where it was.

use super::{UNPUBLISHED, committed, drop_slot, number, repaired, streams_on};
use crate::answers::{Answer, answer};
use crate::await_that::{SOON, await_that};
use crate::load::Load;
use crate::pipeline::{Pipeline, show};
use crate::private::{Signal, exit_of, signal};
use crate::relay::postrider_ok;
use crate::server::Version;
use postrider::postgres::repair::PAGE_ROWS;
use std::collections::BTreeSet;
use std::process::{Child, Command, Stdio};
use tempfile::TempDir;

/// A repair as a process of its own, to be killed.
pub(crate) struct Repairing {
    child: Child,
    _dir: TempDir,
}

impl Repairing {
    pub(super) fn start(config: &str) -> Self {
        Self::start_with(config, &[])
    }

    /// With further arguments.
    pub(crate) fn start_with(config: &str, args: &[&str]) -> Self {
        let dir = TempDir::new().expect("a directory");
        let file = dir.path().join("postrider.toml");
        std::fs::write(&file, config).expect("a configuration");
        let child = Command::new(env!("CARGO_BIN_EXE_postrider"))
            .arg("-c")
            .arg(&file)
            .arg("repair")
            .args(args)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("postrider");
        Self { child, _dir: dir }
    }

    /// Its process.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) async fn kill(mut self) {
        signal(self.child.id(), Signal::Kill);
        exit_of(&mut self.child, SOON).await;
    }

    /// Waits for its end.
    pub(crate) async fn ends_well(mut self) {
        assert_eq!(exit_of(&mut self.child, SOON).await.code(), Some(0));
    }
}

impl Drop for Repairing {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// Killed with -9 half way, twice, and run again; and the third time `postrider run` carries it on.
#[tokio::test]
async fn repair_that_is_killed_goes_on_where_it_was() {
    for again in ["repair", "run"] {
        let pipeline = Pipeline::shared(Version::Pg17, "halfway").await;
        let relay = pipeline.run();
        relay.await_state("streaming", SOON).await;
        let load = Load::start(&pipeline.plan(), 4);
        committed(&load, 2_000).await;
        drop(relay.kill().await);
        committed(&load, UNPUBLISHED).await;
        drop_slot(&pipeline).await;
        let mut last = 0;
        for _ in 1..=2 {
            let repairing = Repairing::start(&pipeline.config);
            await_that("some rows to be published", SOON, || async {
                let published = progress(&pipeline).await.0;
                if published > last { Ok(()) } else { Err(published) }
            })
            .await;
            repairing.kill().await;
            gone(&pipeline).await;
            last = progress(&pipeline).await.0;
        }
        let (published, total) = progress(&pipeline).await;
        assert!(published < total, "killed too late: {published} of {total}");
        let uncertain = if again == "repair" {
            let value = repaired(&pipeline.config);
            assert_eq!(number(&value, "published"), number(&value, "rows"), "{value}");
            number(&value, "uncertain")
        } else {
            let sql = "select rows_uncertain::text from postrider.repair";
            let text = pipeline.sql.text(sql).await.expect("the repair's row");
            text.parse().expect("a number")
        };
        // A page that was published and not settled comes again, each time it was killed.
        let findings = streams_on(&pipeline, load, uncertain + 2 * 1_000).await;
        answer(
            "repair killed half way and run again",
            &pipeline,
            Answer::published("published: it goes on where it was, and so does `postrider run`"),
        );
        show(&format!(
            "killed with -9 at {published} of {total} rows, then postrider {again}: {} lost, {} swapped, {} duplicates",
            findings.lost.len(),
            findings.swapped.len(),
            findings.duplicates
        ));
    }
}

/// The server has seen that the killed one is gone: until then another is refused.
pub(crate) async fn gone(pipeline: &Pipeline) {
    let sql = format!(
        "select count(*)::text from pg_stat_activity where application_name = 'postrider {}' \
         and datname = current_database()",
        pipeline.name
    );
    await_that("the killed one's sessions to end", SOON, || async {
        let left = pipeline.sql.text(&sql).await.unwrap_or_default();
        if left == "0" { Ok(()) } else { Err(left) }
    })
    .await;
}

/// The new slot is dropped in its turn, while the repair is at work on the list: it makes another one, and goes on.
#[tokio::test]
async fn slot_that_is_lost_again_half_way_is_made_again() {
    let pipeline = Pipeline::shared(Version::Pg18, "twice").await;
    let relay = pipeline.run();
    relay.await_state("streaming", SOON).await;
    let load = Load::start(&pipeline.plan(), 2);
    committed(&load, 2_000).await;
    drop(relay.kill().await);
    committed(&load, UNPUBLISHED / 2).await;
    drop_slot(&pipeline).await;
    let mut repairing = Repairing::start(&pipeline.config);
    await_that("some rows to be published", SOON, || async {
        let published = progress(&pipeline).await.0;
        if published > 0 { Ok(()) } else { Err(published) }
    })
    .await;
    drop_slot(&pipeline).await;
    let (published, total) = progress(&pipeline).await;
    assert!(published < total, "dropped too late: {published} of {total}");
    assert_eq!(exit_of(&mut repairing.child, SOON).await.code(), Some(0));
    let (all, listed) = progress(&pipeline).await;
    assert!(all == listed && listed > total, "{all} of {listed}, {total} before");
    let uncertain = "select rows_uncertain::text from postrider.repair";
    let uncertain = pipeline.sql.text(uncertain).await.expect("the repair's row");
    let uncertain = uncertain.parse().expect("a number");
    let findings = streams_on(&pipeline, load, uncertain).await;
    show(&format!(
        "the new slot dropped at {published} of {total} rows: {listed} in the end, {} lost, {} swapped, {} duplicates \
         (it said: at most {uncertain})",
        findings.lost.len(),
        findings.swapped.len(),
        findings.duplicates
    ));
}

/// Rows published so far, and of how many.
pub(crate) async fn progress(pipeline: &Pipeline) -> (i64, i64) {
    let sql = "select rows_published, rows_total from postrider.repair";
    let rows = pipeline.sql.query(sql, &[]).await.expect("the repair's row");
    rows.first().map_or((0, 0), |row| (row.get(0), row.get(1)))
}

/// A backfill is killed half way, and its slot is lost before it is run again. The rows that were on the list stay on
/// it, and are not listed a second time.
#[tokio::test]
async fn list_of_a_killed_backfill_outlives_its_slot() {
    const ROWS: usize = 20_000;
    const LATER: usize = 10;
    let pipeline = Pipeline::in_layout(Version::Pg17, "outlives", "postrider").await;
    postrider_ok(&pipeline.config, &["setup", "--undo", "--yes"]);
    pipeline.insert(ROWS).await;
    postrider_ok(&pipeline.config, &["setup", "--backfill", "all"]);
    let repairing = Repairing::start(&pipeline.config);
    await_that("some rows to be published", SOON, || async {
        let published = progress(&pipeline).await.0;
        if published > 0 { Ok(()) } else { Err(published) }
    })
    .await;
    repairing.kill().await;
    gone(&pipeline).await;
    let (published, total) = progress(&pipeline).await;
    assert!(published < total, "killed too late: {published} of {total}");
    drop_slot(&pipeline).await;
    pipeline.insert(LATER).await;
    let value = repaired(&pipeline.config);
    let counts = (number(&value, "published"), number(&value, "rows"));
    assert_eq!(counts, (ROWS + LATER, ROWS + LATER), "{value}");
    let records = pipeline.topic.read_all().await;
    let ids: BTreeSet<_> = records.iter().filter_map(|record| record.header("id")).collect();
    assert_eq!(ids.len(), ROWS + LATER, "every row is published");
    let repeated = records.len() - ids.len();
    assert!(repeated <= PAGE_ROWS, "{repeated} rows came twice, more than a page");
}
