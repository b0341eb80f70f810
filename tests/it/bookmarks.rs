//! `postrider bookmark` as it is typed, on real servers: what stands afterwards, what it costs, what is refused.

use crate::answers::answer;
use crate::await_that::await_that;
use crate::pipeline::Pipeline;
use crate::private::PrivatePostgres;
use crate::relay::{postrider, postrider_ok};
use crate::server::{Version, brokers};
use serde_json::Value;
use std::process::Output;
use std::time::Duration;

/// The bookmarks as `list --json` has them.
pub(crate) fn listed(pipeline: &Pipeline) -> Vec<Value> {
    let text = postrider_ok(&pipeline.config, &["bookmark", "list", "--json"]);
    text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

fn refused(pipeline: &Pipeline, args: &[&str]) -> (Option<i32>, String, Output) {
    let output = postrider(&pipeline.config, args);
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    (output.status.code(), text, output)
}

async fn slots(pipeline: &Pipeline) -> i64 {
    let sql = "select count(*) from pg_replication_slots where database = current_database()";
    pipeline.sql.text(sql).await.expect("a count").parse().expect("a number")
}

#[tokio::test]
async fn a_bookmark_is_a_slot_of_its_own_that_is_listed_and_dropped() {
    for version in Version::ALL {
        let pipeline = Pipeline::shared(version, "bookmark").await;
        let note = ["--note", "before the fix", "--expire", "7d"];
        let said = postrider_ok(
            &pipeline.config,
            &[&["bookmark", "create", "before-fix"], &note[..]].concat(),
        );
        assert!(said.contains("postrider replay --bookmark before-fix"), "{said}");
        assert_eq!(slots(&pipeline).await, 2);

        pipeline.insert(1000).await;
        let all = listed(&pipeline);
        let [one] = all.as_slice() else { panic!("{all:?}") };
        assert_eq!(one["state"], "usable");
        assert_eq!(one["note"], "before the fix");
        assert!(one["slot"].as_str().unwrap().starts_with("postrider_bm_before_fix_"), "{one}");
        assert!(one["held_bytes"].as_u64().unwrap() > 0, "{one}");
        let at = one["position"].as_str().unwrap();
        let ahead = format!("select '{at}'::pg_lsn < pg_current_wal_lsn()");
        assert_eq!(pipeline.sql.text(&ahead).await.as_deref(), Some("t"));
        // For people.
        let table = postrider_ok(&pipeline.config, &["bookmark", "list"]);
        assert!(table.contains("before the fix") && table.contains("of 10 GiB"), "{table}");

        let said = postrider_ok(&pipeline.config, &["bookmark", "drop", "before-fix"]);
        assert!(said.starts_with("dropped bookmark before-fix"), "{said}");
        assert_eq!(slots(&pipeline).await, 1, "the pipeline's own stays");
        assert_eq!(listed(&pipeline), Vec::<Value>::new());
    }
}

#[tokio::test]
async fn what_can_not_be_bookmarked_is_refused_and_leaves_nothing_behind() {
    let pipeline = Pipeline::shared(Version::Pg17, "bookmark_no").await;
    postrider_ok(&pipeline.config, &["bookmark", "create", "twice"]);
    let (code, text, output) = refused(&pipeline, &["bookmark", "create", "twice"]);
    assert_eq!(code, Some(1), "{text}");
    answer("bookmark named twice", &pipeline, &output);
    let (code, text, output) = refused(&pipeline, &["bookmark", "create", "a/b"]);
    assert_eq!(code, Some(2), "{text}");
    answer("bookmark with a name of other characters", &pipeline, &output);
    let (code, text, output) = refused(&pipeline, &["bookmark", "drop", "never"]);
    assert_eq!(code, Some(1), "{text}");
    answer("bookmark that there is not", &pipeline, &output);
    assert_eq!(slots(&pipeline).await, 2);

    let drop = format!("select pg_drop_replication_slot('{}')", pipeline.slot());
    pipeline.sql.batch(&drop).await;
    let (code, text, output) = refused(&pipeline, &["bookmark", "create", "late"]);
    assert_eq!(code, Some(1), "{text}");
    answer("bookmark of a dropped slot", &pipeline, &output);
    assert_eq!(listed(&pipeline).len(), 1);
    assert_eq!(slots(&pipeline).await, 1);
}

#[tokio::test]
async fn a_server_out_of_slots_refuses_a_bookmark_and_keeps_the_pipeline() {
    let server = PrivatePostgres::start(Version::Pg15, "max_replication_slots = 2").await;
    let pipeline = Pipeline::on(&server.url(), &brokers(), "bookmark_full").await;
    postrider_ok(&pipeline.config, &["bookmark", "create", "one"]);
    let (code, text, output) = refused(&pipeline, &["bookmark", "create", "two"]);
    assert_eq!(code, Some(1), "{text}");
    answer("bookmark on a server out of slots", &pipeline, &output);
    assert_eq!(listed(&pipeline).len(), 1);
    postrider_ok(&pipeline.config, &["bookmark", "drop", "one"]);
    postrider_ok(&pipeline.config, &["bookmark", "create", "two"]);
}

#[tokio::test]
async fn a_bookmark_whose_slot_is_gone_says_so_and_check_warns() {
    let pipeline = Pipeline::shared(Version::Pg18, "bookmark_gone").await;
    postrider_ok(&pipeline.config, &["bookmark", "create", "lost"]);
    let slot = listed(&pipeline)[0]["slot"].as_str().unwrap().to_owned();
    pipeline.sql.batch(&format!("select pg_drop_replication_slot('{slot}')")).await;
    assert_eq!(listed(&pipeline)[0]["state"], "slot_missing");
    let output = postrider(&pipeline.config, &["check", "--json"]);
    let findings: Vec<Value> = serde_json::from_slice(&output.stdout).expect("JSON");
    let found = findings.iter().find(|finding| finding["id"] == "bookmark_unusable").unwrap();
    assert_eq!(found["severity"], "warning");
    // The line that mends it.
    let line = found["fix"][0]["line"].as_str().unwrap();
    let words: Vec<&str> = line.split(' ').skip_while(|word| *word != "bookmark").collect();
    postrider_ok(&pipeline.config, &words);
    assert_eq!(listed(&pipeline), Vec::<Value>::new());
}

/// More WAL than the budget of 1 MiB.
async fn write_much(pipeline: &Pipeline) {
    let sql = "insert into public.outbox (aggregate_type, aggregate_id, event_type, payload) \
               select 'order', '1', 'Written', to_json(repeat(md5(random()::text), 40)) from generate_series(1, 2000)";
    pipeline.sql.batch(sql).await;
}

#[tokio::test]
async fn past_the_budget_the_oldest_is_let_go_and_never_the_pipelines_own_slot() {
    let mut pipeline = Pipeline::shared(Version::Pg18, "bookmark_budget").await;
    let tight = format!("[pipelines.{}.bookmarks]\nretain_max = \"1MiB\"\n", pipeline.name);
    let roomy = pipeline.config.clone();
    postrider_ok(&roomy, &["bookmark", "create", "older"]);
    write_much(&pipeline).await;
    pipeline.config.push_str(&tight);
    let output = postrider(&pipeline.config, &["check", "--json"]);
    let findings: Vec<Value> = serde_json::from_slice(&output.stdout).expect("JSON");
    let found = findings.iter().find(|finding| finding["id"] == "bookmarks_held").unwrap();
    assert_eq!(found["severity"], "warning", "{found}");

    let (code, text, _) = refused(&pipeline, &["bookmark", "list"]);
    assert_eq!(code, Some(0), "{text}");
    assert!(text.contains("warning: dropped bookmark older"), "{text}");
    let all = listed(&pipeline);
    assert_eq!(all[0]["state"], "dropped", "{all:?}");
    assert!(all[0]["why"].as_str().unwrap().contains("bookmarks.retain_max"), "{all:?}");
    assert_eq!(slots(&pipeline).await, 1, "the pipeline's own slot holds as much, and stays");
    // The name is free again.
    postrider_ok(&roomy, &["bookmark", "create", "older"]);
    assert_eq!(listed(&pipeline)[0]["state"], "dropped", "as far back as the pipeline's slot");
}

#[tokio::test]
async fn the_running_relay_lets_go_of_what_has_expired() {
    let pipeline = Pipeline::shared(Version::Pg17, "bookmark_expire").await;
    let relay = pipeline.run();
    // In this order: each of these commands looks for what has expired as well.
    postrider_ok(&pipeline.config, &["bookmark", "create", "long", "--expire", "1d"]);
    postrider_ok(&pipeline.config, &["bookmark", "create", "short", "--expire", "5s"]);
    await_that("the relay's look", Duration::from_secs(100), || async {
        let left = slots(&pipeline).await;
        let told = relay.stderr().contains("the bookmark has expired");
        if left == 2 && told { Ok(()) } else { Err(format!("{left} slots\n{}", relay.stderr())) }
    })
    .await;
    let states: Vec<Value> = listed(&pipeline).iter().map(|one| one["state"].clone()).collect();
    assert_eq!(states, ["usable", "dropped"]);
}

#[tokio::test]
async fn undoing_a_setup_drops_the_bookmarks_slots_too() {
    let pipeline = Pipeline::shared(Version::Pg15, "bookmark_undo").await;
    postrider_ok(&pipeline.config, &["bookmark", "create", "one"]);
    postrider_ok(&pipeline.config, &["setup", "--undo", "--yes"]);
    assert_eq!(slots(&pipeline).await, 0);
}
