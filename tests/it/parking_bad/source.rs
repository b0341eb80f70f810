//! The database while events are parked: the table missing, read-only, killed.

use super::OFTEN;
use crate::halted::{halt_of, run_to_halt, spawn};
use crate::parking::{SOON, Scene, assert_in_order};
use crate::pipeline::Pipeline;
use crate::private::PrivatePostgres;
use crate::relay::postrider_ok;
use crate::server::{Version, brokers};

#[tokio::test]
async fn missing_parked_table_halts_with_the_line_that_mends_it() {
    let mut scene = Scene::set_with(Version::Pg18, "table", OFTEN).await;
    scene.insert(&["a", "!a", "a", "b"]).await;
    scene.pipeline.sql("alter table postrider.parked rename to aside").await;
    let halted = run_to_halt(&scene.config).await;
    halted.assert_says("PR010", &["schema \"postrider\""], &["postrider setup"]);
    scene.pipeline.sql("alter table postrider.aside rename to parked").await;

    // The same while it runs.
    let relay = spawn(&scene.config);
    scene.await_rows("a waiting, a behind").await;
    scene.pipeline.sql("alter table postrider.parked rename to aside").await;
    let halted = halt_of(relay).await;
    halted.assert_says("PR010", &["schema \"postrider\""], &["postrider setup"]);
    scene.pipeline.sql("alter table postrider.aside rename to parked").await;
    scene.raise_the_limit().await;
    let relay = scene.run();
    scene.await_last("a", 3).await;
    scene.await_rows("").await;
    scene.await_passed().await;
    scene.end(relay).await;
    assert_in_order(&scene.delivered().await["a"], &[1, 2, 3]);
}

/// The hint is right: setup makes the table anew, and what the cursor has not passed is parked again.
#[tokio::test]
async fn setup_makes_a_missing_parked_table_anew() {
    let mut scene = Scene::set_with(Version::Pg15, "anew", OFTEN).await;
    scene.pipeline.sql("drop table postrider.parked").await;
    scene.insert(&["a", "!a", "a", "b"]).await;
    run_to_halt(&scene.config).await.assert_says(
        "PR010",
        &["schema \"postrider\""],
        &["postrider setup"],
    );
    postrider_ok(&scene.config, &["setup"]);
    let relay = scene.run();
    scene.await_rows("a waiting, a behind").await;
    scene.raise_the_limit().await;
    scene.await_last("a", 3).await;
    scene.end(relay).await;
    assert_in_order(&scene.delivered().await["a"], &[1, 2, 3]);
}

/// A read-only database can store neither rows nor the cursor: nothing goes on, and nothing is lost.
#[tokio::test]
async fn read_only_database_is_waited_for() {
    let mut scene = Scene::set_with(Version::Pg17, "readonly", OFTEN).await;
    let relay = scene.run();
    scene.insert(&["a", "!a", "a", "b"]).await;
    scene.await_rows("a waiting, a behind").await;
    let database = scene.value("select current_database()").await;
    let read_only = |on: &str| {
        format!(
            "alter database {database} set default_transaction_read_only = {on}; \
             select pg_terminate_backend(pid) from pg_stat_activity \
               where datname = current_database() and pid <> pg_backend_pid()"
        )
    };
    scene.pipeline.sql(&read_only("on")).await;
    let told = |status: &serde_json::Value| {
        let pipeline = &status["pipelines"][0];
        let reason = pipeline["reason"].as_str().unwrap_or_default();
        pipeline["state"] == "source_down" && reason.contains("read-only")
    };
    relay.await_status("the reason", SOON, told).await;
    scene.insert(&["!c", "c", "b"]).await;
    scene.raise_the_limit().await;
    scene.pipeline.sql(&read_only("off")).await;
    for (aggregate, last) in [("a", 3), ("b", 7), ("c", 6)] {
        scene.await_last(aggregate, last).await;
    }
    scene.await_rows("").await;
    scene.await_passed().await;
    scene.end(relay).await;
    let delivered = scene.delivered().await;
    assert_in_order(&delivered["a"], &[1, 2, 3]);
    assert_in_order(&delivered["b"], &[4, 7]);
    assert_in_order(&delivered["c"], &[5, 6]);
}

#[tokio::test]
async fn postgresql_killed_while_hundreds_are_being_parked() {
    const AGGREGATES: usize = 300;
    let mut postgres = PrivatePostgres::start(Version::Pg18, "").await;
    let pipeline = Pipeline::on(&postgres.url(), &brokers(), "restarted").await;
    let mut scene = Scene::of(pipeline, OFTEN).await;
    let relay = scene.run();
    relay.await_state("streaming", SOON).await;
    let crowd: Vec<String> = (0..AGGREGATES)
        .flat_map(|i| [format!("h{i}"), format!("!p{i}"), format!("p{i}")])
        .collect();
    let crowd: Vec<&str> = crowd.iter().map(String::as_str).collect();
    for part in crowd.chunks(90) {
        scene.insert(part).await;
    }
    for _ in 0..2 {
        postgres.kill().await;
        postgres.restart().await;
    }
    scene.pipeline.sql = postgres.connect().await;
    let count = format!("select (count(*) = {})::text from postrider.parked", 2 * AGGREGATES);
    crate::await_that::await_that("all parked", SOON, || async {
        let all = scene.value(&count).await;
        if all == "true" { Ok(()) } else { Err(all) }
    })
    .await;
    scene.await_passed().await;
    scene.raise_the_limit().await;
    scene.await_rows("").await;
    scene.end(relay).await;
    let delivered = scene.delivered().await;
    for i in 0..AGGREGATES as u64 {
        assert_in_order(&delivered[&format!("h{i}")], &[3 * i + 1]);
        assert_in_order(&delivered[&format!("p{i}")], &[3 * i + 2, 3 * i + 3]);
    }
}

/// Rows of the parked table commit on the standby too. While it is away they wait, and that is said; polling hears a
/// stop.
#[tokio::test]
async fn synchronous_standby_that_is_away_is_told_of_and_waited_for() {
    let postgres = PrivatePostgres::start(Version::Pg17, "").await;
    let pipeline = Pipeline::on(&postgres.url(), &brokers(), "syncrep").await;
    let mut scene = Scene::of(pipeline, OFTEN).await;
    // The application does not wait for it.
    scene.pipeline.sql("set synchronous_commit = local").await;
    let relay = scene.run();
    relay.await_state("streaming", SOON).await;
    standby(&postgres, &scene, "nobody").await;
    scene.insert(&["!a", "a", "b"]).await;
    relay.await_log("has not committed a write", SOON).await;
    let told = |status: &serde_json::Value| {
        let hint = status["pipelines"][0]["hint"].as_str().unwrap_or_default();
        hint.contains("synchronous_standby_names")
    };
    relay.await_status("the hint", SOON, told).await;
    scene.await_last("b", 3).await;
    standby(&postgres, &scene, "").await;
    scene.await_rows("a waiting, a behind").await;
    relay.await_log("commits writes again", SOON).await;
    scene.end(relay).await;

    let head = format!("[pipelines.{}]\n", scene.pipeline.name);
    let polls = format!("{head}mode = \"poll\"\npoll = {{ interval = \"50ms\" }}\n");
    scene.config = scene.config.replacen(&head, &polls, 1);
    scene.pipeline.sql("delete from outbox").await;
    postrider_ok(&scene.config, &["adopt"]);
    let relay = scene.run();
    relay.await_state("polling", SOON).await;
    standby(&postgres, &scene, "nobody").await;
    scene.insert(&["!c"]).await;
    relay.await_log("has not committed a write", SOON).await;
    scene.end(relay).await;
    standby(&postgres, &scene, "").await;
    scene.raise_the_limit().await;
    let relay = scene.run();
    scene.await_last("c", 4).await;
    scene.await_last("a", 2).await;
    scene.await_rows("").await;
    scene.end(relay).await;
    assert_eq!(scene.delivered().await["c"], [4], "once");
}

/// A write of the process before is still under way when the next one has the slot: it waits for a standby. The next
/// process waits for it, and reads what is parked after that. Otherwise the event would be published as a new one, and
/// once more when the start after that finds its parked row.
#[tokio::test]
async fn row_whose_commit_waits_for_a_standby_is_found_by_the_process_that_takes_over() {
    let postgres = PrivatePostgres::start(Version::Pg17, "").await;
    let pipeline = Pipeline::on(&postgres.url(), &brokers(), "syncover").await;
    let mut scene = Scene::of(pipeline, OFTEN).await;
    scene.pipeline.sql("set synchronous_commit = local").await;
    let first = scene.run();
    first.await_state("streaming", SOON).await;
    standby(&postgres, &scene, "nobody").await;
    scene.insert(&["!a", "a"]).await;
    first.await_log("has not committed a write", SOON).await;
    drop(first.kill().await);
    scene.raise_the_limit().await;
    let second = scene.run();
    let waits = "select count(*)::text from pg_stat_activity where wait_event_type = 'Lock' \
                 and query like '%postrider.cursor%for update%' and pid <> pg_backend_pid()";
    let waits = waits.replace("like", "ilike");
    crate::await_that::await_that(
        "the second process waits for the write of the first",
        SOON,
        || async {
            match scene.pipeline.sql.text(&waits).await.as_deref() {
                Some("1") => Ok(()),
                other => Err(format!("{other:?}")),
            }
        },
    )
    .await;
    standby(&postgres, &scene, "").await;
    scene.await_last("a", 2).await;
    scene.await_rows("").await;
    scene.end(second).await;
    // Nothing is left that a later start would publish.
    let third = scene.run();
    scene.insert(&["a"]).await;
    scene.await_last("a", 3).await;
    scene.await_rows("").await;
    scene.end(third).await;
    assert_eq!(scene.delivered().await["a"], [1, 2, 3], "in order, none twice");
}

/// Polling hears it also where what waits is a mark of an earlier event, and a claim that parks one stands behind it.
#[tokio::test]
async fn stop_is_heard_by_a_claim_that_waits_behind_a_mark_for_a_standby() {
    let postgres = PrivatePostgres::start(Version::Pg17, "").await;
    let pipeline = Pipeline::on(&postgres.url(), &brokers(), "syncmark").await;
    let mut scene = Scene::of(pipeline, OFTEN).await;
    scene.pipeline.sql("set synchronous_commit = local").await;
    let head = format!("[pipelines.{}]\n", scene.pipeline.name);
    let polls = format!("{head}mode = \"poll\"\npoll = {{ interval = \"50ms\" }}\n");
    scene.config = scene.config.replacen(&head, &polls, 1);
    scene.config.insert_str(0, "shutdown_grace = \"2s\"\n");
    let relay = scene.run();
    scene.insert(&["!a"]).await;
    scene.await_rows("a waiting").await;
    standby(&postgres, &scene, "nobody").await;
    relay.await_log("has not committed a write", SOON).await;
    scene.insert(&["!b", "c"]).await;
    crate::await_that::await_that("a claim", SOON, || async {
        let free = "select count(*)::text from (select from outbox for update skip locked) as free";
        let found = scene.value(free).await;
        if found == "0" { Ok(()) } else { Err(found) }
    })
    .await;
    scene.end(relay).await;
    standby(&postgres, &scene, "").await;
    scene.raise_the_limit().await;
    let relay = scene.run();
    scene.await_last("a", 1).await;
    scene.await_last("b", 2).await;
    scene.await_last("c", 3).await;
    scene.await_rows("").await;
    scene.end(relay).await;
}

/// Names the standby that commits have to wait for.
async fn standby(postgres: &PrivatePostgres, scene: &Scene, name: &str) {
    postgres.configure(&format!("synchronous_standby_names = '{name}'"));
    postgres.reload();
    crate::await_that::await_that("the setting", SOON, || async {
        let found = scene.value("select current_setting('synchronous_standby_names')").await;
        if found == name { Ok(()) } else { Err(found) }
    })
    .await;
}
