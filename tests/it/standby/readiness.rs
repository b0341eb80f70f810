//! What `check` says of failover, on a real pair: ready, and each setting that is missing.

use super::pair::{Pair, STANDBY};
use super::promotion::pipeline;
use crate::await_that::{SOON, await_or_dump};
use crate::pipeline::{Pipeline, show};
use crate::private::PrivatePostgres;
use crate::relay::postrider;
use crate::server::Version;
use serde_json::Value;
use std::collections::BTreeSet;

/// The findings about failover: id and severity.
const ABOUT: [&str; 5] = [
    "slot_failover",
    "failover",
    "synchronized_standby_slots",
    "sync_replication_slots",
    "hot_standby_feedback",
];

fn findings(pipeline: &Pipeline) -> BTreeSet<(String, String)> {
    let output = postrider(&pipeline.config, &["check", "--json"]);
    let said = String::from_utf8_lossy(&output.stdout);
    let all: Vec<Value> =
        serde_json::from_str(&said).unwrap_or_else(|error| panic!("{error}: {said}"));
    let text = |finding: &Value, name: &str| finding[name].as_str().unwrap_or_default().to_owned();
    let all = all.iter().map(|finding| (text(finding, "id"), text(finding, "severity")));
    all.filter(|(id, _)| ABOUT.contains(&id.as_str())).collect()
}

async fn await_findings(pipeline: &Pipeline, wanted: &[(&str, &str)]) {
    let wanted: BTreeSet<_> =
        wanted.iter().map(|(id, severity)| ((*id).to_owned(), (*severity).to_owned())).collect();
    let look = || async {
        let found = findings(pipeline);
        if found == wanted { Ok(()) } else { Err(format!("{found:?}")) }
    };
    await_or_dump(&format!("{wanted:?}"), SOON, look, String::new).await;
}

/// A setting of a server, read again at once.
fn set(server: &PrivatePostgres, line: &str) {
    server.configure(line);
    server.reload();
}

async fn each_setting_of_failover_is_missed(version: Version) {
    let pair = Pair::start(version, true).await;
    let pipeline = pipeline(&pair, "ready").await;
    let (primary, standby) = (&pair.primary, &pair.standby);
    set(primary, "sync_replication_slots = on");
    await_findings(&pipeline, &[("failover", "ok")]).await;

    set(primary, "sync_replication_slots = off");
    await_findings(&pipeline, &[("sync_replication_slots", "info")]).await;
    set(primary, "sync_replication_slots = on");

    set(primary, "synchronized_standby_slots = ''");
    await_findings(&pipeline, &[("synchronized_standby_slots", "warning")]).await;
    set(primary, "synchronized_standby_slots = 'nobody'");
    await_findings(&pipeline, &[("synchronized_standby_slots", "error")]).await;
    set(primary, &format!("synchronized_standby_slots = '{STANDBY}'"));

    set(standby, "hot_standby_feedback = off");
    await_findings(&pipeline, &[("hot_standby_feedback", "warning")]).await;
    set(standby, "hot_standby_feedback = on");
    await_findings(&pipeline, &[("failover", "ok")]).await;

    let again = format!(
        "select pg_drop_replication_slot('{0}'); \
         select pg_create_logical_replication_slot('{0}', 'pgoutput')",
        pipeline.slot()
    );
    for statement in again.split("; ") {
        pipeline.sql.batch(statement).await;
    }
    let found = findings(&pipeline);
    assert!(
        found.iter().any(|(id, severity)| id == "slot_failover" && severity != "ok"),
        "{found:?}"
    );
    show(&format!(
        "PostgreSQL {}: check on a real pair: ready is ok; sync_replication_slots off, synchronized_standby_slots \
         empty or naming nobody, hot_standby_feedback off and a slot without failover are each found",
        version.major()
    ));
}

#[tokio::test]
async fn each_setting_of_failover_is_missed_by_check_on_17() {
    each_setting_of_failover_is_missed(Version::Pg17).await;
}

#[tokio::test]
async fn each_setting_of_failover_is_missed_by_check_on_18() {
    each_setting_of_failover_is_missed(Version::Pg18).await;
}

/// The findings of `doctor` about the standby: severity and description.
fn of_standby(pipeline: &Pipeline) -> (String, String) {
    let output = postrider(&pipeline.config, &["doctor", "--json"]);
    let said = String::from_utf8_lossy(&output.stdout);
    let all: Vec<Value> =
        serde_json::from_str(&said).unwrap_or_else(|error| panic!("{error}: {said}"));
    let mut found = all.iter().filter(|finding| finding["id"] == "standby_slot");
    let text = |finding: &Value, key: &str| finding[key].as_str().unwrap_or_default().to_owned();
    let one = found.next().unwrap_or_else(|| panic!("no finding: {said}"));
    assert!(found.next().is_none(), "the primary is no standby: {said}");
    (text(one, "severity"), format!("{} {} {}", text(one, "what"), text(one, "why"), one["fix"]))
}

async fn await_standby(pipeline: &Pipeline, severity: &str, words: &str) {
    let look = || async {
        let (found, said) = of_standby(pipeline);
        let is_so = found == severity && said.contains(words);
        if is_so { Ok(()) } else { Err(format!("{found}: {said}")) }
    };
    await_or_dump(&format!("{severity}: {words}"), SOON, look, String::new).await;
}

/// `check` sees the primary alone; `doctor` queries each host by itself.
async fn doctor_says_what_the_standby_has(version: Version) {
    let pair = Pair::start(version, true).await;
    let pipeline = pipeline(&pair, "doctor").await;
    let standby = &pair.standby;
    let relay = pipeline.run();
    relay.await_state("streaming", SOON).await;
    pipeline.insert(10).await;
    await_standby(&pipeline, "ok", "synchronised").await;

    set(standby, "hot_standby_feedback = off");
    await_standby(&pipeline, "warning", "ALTER SYSTEM SET hot_standby_feedback = on;").await;
    set(standby, "hot_standby_feedback = on");
    await_standby(&pipeline, "ok", "synchronised").await;
    set(standby, "sync_replication_slots = off");
    await_standby(&pipeline, "warning", "ALTER SYSTEM SET sync_replication_slots = on;").await;

    // A slot that no standby synchronises.
    let again = format!(
        "select pg_drop_replication_slot('{0}'); \
         select pg_create_logical_replication_slot('{0}', 'pgoutput')",
        pipeline.slot()
    );
    assert_eq!(relay.terminate(SOON).await.code, Some(0));
    for statement in again.split("; ") {
        pipeline.sql.batch(statement).await;
    }
    set(standby, "sync_replication_slots = on");
    await_standby(&pipeline, "warning", "does not have slot").await;
}

#[tokio::test]
async fn doctor_says_what_the_standby_has_on_17() {
    doctor_says_what_the_standby_has(Version::Pg17).await;
}

#[tokio::test]
async fn doctor_says_what_the_standby_has_on_18() {
    doctor_says_what_the_standby_has(Version::Pg18).await;
}
