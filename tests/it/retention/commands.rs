//! Retention as users have it: a running relay, `postrider retain`, mistakes of the file, missing rights.

use crate::await_that::{SOON, await_that};
use crate::pipeline::Pipeline;
use crate::private::{PrivateKafka, Signal};
use crate::relay::{Relay, postrider, postrider_ok};
use crate::server::{Client, Version, unique};
use serde_json::Value;

/// Adds `[pipelines.NAME.retention]` with these lines.
fn retains(pipeline: &mut Pipeline, lines: &str) {
    let section = format!("[pipelines.{}.retention]\n{lines}\n", pipeline.name);
    pipeline.config.push_str(&section);
}

/// Inserts events that are so many days old.
async fn insert(pipeline: &Pipeline, rows: u32, days: u32) {
    pipeline
        .sql
        .batch(&format!(
            "insert into public.outbox (aggregate_type, aggregate_id, event_type, payload, created_at) \
             select 'order', (i % 10)::text, 'Written', to_json(i), now() - interval '{days} days' \
             from generate_series(1, {rows}) i"
        ))
        .await;
}

async fn await_rows(pipeline: &Pipeline, relay: &Relay, of: &str, wanted: &str) {
    await_that(&format!("{wanted} rows of {of}"), SOON, || async {
        let found =
            pipeline.sql.text(&format!("select count(*) from {of}")).await.unwrap_or_default();
        if found == wanted { Ok(()) } else { Err(format!("{found}\n{}", relay.stderr())) }
    })
    .await;
}

#[tokio::test]
async fn running_relay_removes_what_it_has_published() {
    for version in Version::ALL {
        let mut pipeline = Pipeline::shared(version, "retention_run").await;
        retains(&mut pipeline, "keep = \"7d\"\ninterval = \"1s\"");
        insert(&pipeline, 200, 8).await;
        let relay = pipeline.run();
        insert(&pipeline, 300, 8).await;
        insert(&pipeline, 50, 6).await;
        pipeline.topic.await_records(550, SOON).await;
        await_rows(&pipeline, &relay, "public.outbox", "50").await;
        let of = |status: &Value| status["pipelines"][0]["maintenance"]["retention"].clone();
        let done = |status: &Value| of(status)["last_run_seconds"].is_number();
        let status = relay.await_status("a pass", SOON, done).await;
        assert_eq!(of(&status)["removed_rows_total"], 500, "{status}");
        let (_, metrics) = relay.get("/metrics").await.expect("an answer");
        let line = format!(
            "postrider_retention_removed_rows_total{{pipeline=\"{}\",shard=\"0\"}} 500",
            pipeline.name
        );
        assert!(metrics.contains(&line), "{metrics}");
        assert!(relay.stderr().contains("retention removed"), "{}", relay.stderr());
        assert_eq!(relay.terminate(SOON).await.code, Some(0));
    }
}

/// The hint is followed to its end: a replay publishes every row, and the statement lets all of them go.
#[tokio::test]
async fn rows_from_before_the_slot_stay_until_a_person_decides() {
    let mut pipeline = Pipeline::shared(Version::Pg17, "retention_before").await;
    postrider_ok(&pipeline.config, &["setup", "--undo", "--yes"]);
    insert(&pipeline, 20, 30).await;
    postrider_ok(&pipeline.config, &["setup"]);
    retains(&mut pipeline, "keep = \"7d\"\ninterval = \"1s\"");
    let relay = pipeline.run();
    insert(&pipeline, 5, 30).await;
    // As new as the others by their transactions.
    pipeline.sql.batch("update public.outbox set event_type = 'x' where id <= 10").await;
    pipeline.topic.await_records(5, SOON).await;
    let blocked = |status: &Value| {
        let blocked = &status["pipelines"][0]["maintenance"]["retention"]["blocked"];
        blocked.as_array().is_some_and(|all| all.iter().any(|of| of["reason"] == "before_slot"))
    };
    let status = relay.await_status("a blocked pass", SOON, blocked).await;
    let (_, metrics) = relay.get("/metrics").await.expect("an answer");
    let line = format!(
        "postrider_retention_blocked{{pipeline=\"{}\",shard=\"0\",reason=\"before_slot\"}} 1",
        pipeline.name
    );
    assert!(metrics.contains(&line), "{metrics}");
    await_that("all rows to be resolved", SOON, || async {
        let printed = postrider(&pipeline.config, &["retain", "--dry-run"]);
        let printed = String::from_utf8_lossy(&printed.stdout).into_owned();
        let none = printed.contains(": 0 of 25 rows of");
        if none && printed.contains("25 rows would be deleted if nothing blocked it") {
            Ok(())
        } else {
            Err(printed)
        }
    })
    .await;
    let all = &status["pipelines"][0]["maintenance"]["retention"]["blocked"];
    let hint = all[0]["hint"].as_str().expect("a hint");
    let (command, rest) =
        hint.split_once("postrider replay ").expect("a command").1.split_once(';').unwrap();
    let args: Vec<&str> = ["replay"].into_iter().chain(command.split(' ')).collect();
    postrider_ok(&pipeline.config, &args);
    pipeline.topic.await_records(30, SOON).await;
    let statement = rest.split_once("removed then): ").expect("a statement").1;
    assert_eq!(
        pipeline.sql.text("select count(*) from public.outbox").await.as_deref(),
        Some("25")
    );
    pipeline.sql.batch(statement).await;
    await_rows(&pipeline, &relay, "public.outbox", "0").await;
}

/// Rows that are older than `keep` before their events are published: of transactions that were open, prepared or
/// divided by savepoints while no relay ran, and of an outage of the broker.
#[tokio::test]
async fn rows_that_are_published_late_stay_until_then() {
    let kafka = PrivateKafka::start("").await;
    for version in Version::ALL {
        let mut pipeline = Pipeline::to_broker(version, &kafka.brokers(), "retention_late").await;
        retains(&mut pipeline, "keep = \"7d\"\ninterval = \"1s\"");
        let relay = pipeline.run();
        insert(&pipeline, 10, 30).await;
        await_rows(&pipeline, &relay, "public.outbox", "0").await;
        assert_eq!(relay.terminate(SOON).await.code, Some(0));

        let row = "insert into public.outbox (aggregate_type, aggregate_id, event_type, payload, created_at) \
                   values ('order', '1', 'Written', '1', now() - interval '30 days')";
        let open = Client::connect(&pipeline.url).await.unwrap();
        open.batch(&format!("begin; {row}; savepoint a; {row}; release a; savepoint b; {row}"))
            .await;
        let name = &pipeline.name;
        let prepares = format!("begin; {row}; savepoint a; {row}; prepare transaction '{name}'");
        Client::connect(&pipeline.url).await.unwrap().batch(&prepares).await;
        insert(&pipeline, 10, 30).await;
        open.batch("rollback to b; commit").await;
        pipeline.sql.batch(&format!("commit prepared '{name}'")).await;
        let printed = postrider_ok(&pipeline.config, &["retain"]);
        assert!(printed.contains("removed 0 rows"), "{printed}");
        assert!(
            printed.contains("kept 14 rows that are old enough: their transactions"),
            "{printed}"
        );

        let relay = pipeline.run();
        pipeline.topic.await_records(24, SOON).await;
        await_rows(&pipeline, &relay, "public.outbox", "0").await;

        kafka.freeze();
        insert(&pipeline, 15, 30).await;
        let unresolved = |status: &Value| {
            let held = &status["pipelines"][0]["maintenance"]["retention"]["held_rows"];
            held.as_array().is_some_and(|held| {
                held.iter().any(|of| of["reason"] == "unresolved" && of["rows"] == 15)
            })
        };
        relay.await_status("a pass during the outage", SOON, unresolved).await;
        kafka.thaw();
        pipeline.topic.await_records(39, SOON).await;
        await_rows(&pipeline, &relay, "public.outbox", "0").await;
        assert_eq!(relay.terminate(SOON).await.code, Some(0));
    }
}

/// What would be removed, what keeps the rest, and who.
#[tokio::test]
async fn retain_prints_what_would_go_and_what_keeps_the_rest() {
    let mut pipeline = Pipeline::shared(Version::Pg18, "retention_dry").await;
    let none = postrider(&pipeline.config, &["retain"]);
    assert_eq!(none.status.code(), Some(2));
    let printed = String::from_utf8_lossy(&none.stderr).into_owned();
    assert!(printed.contains("[pipelines.NAME.retention] keep = \"7d\""), "{printed}");

    retains(&mut pipeline, "keep = \"7d\"");
    insert(&pipeline, 30, 8).await;
    let relay = pipeline.run();
    pipeline.topic.await_records(30, SOON).await;
    let dry = || postrider_ok(&pipeline.config, &["retain", "--dry-run"]);
    await_that("the rows to be removable", SOON, || async {
        let printed = dry();
        if printed.contains(": 30 of 30 rows of") { Ok(()) } else { Err(printed) }
    })
    .await;
    assert_eq!(relay.terminate(SOON).await.code, Some(0));
    insert(&pipeline, 4, 8).await;
    insert(&pipeline, 3, 1).await;
    let printed = dry();
    assert!(
        printed.contains(": 30 of 37 rows of \"public\".\"outbox\" would be deleted"),
        "{printed}"
    );
    assert!(printed.contains("kept 3 rows: not older than retention.keep"), "{printed}");
    assert!(
        printed.contains("kept 4 rows: their transactions are not known to be resolved"),
        "{printed}"
    );
    let printed = postrider_ok(&pipeline.config, &["retain", "--dry-run", "--json"]);
    let found: Value = serde_json::from_str(&printed).expect("JSON");
    assert_eq!(
        (&found["removable_rows"], &found["held_rows"]["unresolved"]),
        (&30.into(), &4.into())
    );

    pipeline
        .sql
        .batch(&format!(
            "insert into postrider.replay (pipeline, name, request, source) values ('{}', 'r1', '{{}}', 'table')",
            pipeline.name
        ))
        .await;
    let blocked = postrider(&pipeline.config, &["retain"]);
    let printed = String::from_utf8_lossy(&blocked.stdout).into_owned();
    retains_blocked(&pipeline).await;
    assert_eq!(blocked.status.code(), Some(1), "{printed}");
    assert!(printed.contains("replay r1 of pipeline"), "{printed}");
    assert!(printed.contains("postrider replay -p"), "{printed}");
    pipeline.sql.batch("update postrider.replay set finished_at = now()").await;
    let printed = postrider_ok(&pipeline.config, &["retain"]);
    assert!(printed.contains("removed 3"), "{printed}");
    // The relay that ran in between may have published the four, and recorded that.
    let left = pipeline.sql.text("select count(*) from public.outbox").await.unwrap_or_default();
    assert!(["7", "3"].contains(&left.as_str()), "{left}");
}

/// The status of a running relay says what blocks retention, and what ends that.
async fn retains_blocked(pipeline: &Pipeline) {
    let relay = pipeline.run();
    let blocked = |status: &Value| {
        let blocked = &status["pipelines"][0]["maintenance"]["retention"]["blocked"];
        blocked.as_array().is_some_and(|blocked| blocked.iter().any(|of| of["reason"] == "replay"))
    };
    relay.await_status("retention that is blocked", SOON, blocked).await;
    let (_, port) = relay.admin_address();
    let config = format!("[admin]\nlisten = \"127.0.0.1:{port}\"\n{}", pipeline.config);
    let status = postrider(&config, &["status"]);
    let printed = String::from_utf8_lossy(&status.stdout).into_owned();
    assert!(printed.contains("retention removes nothing: replay r1 of pipeline"), "{printed}");
    assert_eq!(relay.terminate(SOON).await.code, Some(0));
}

/// A relay that is killed while its DETACH CONCURRENTLY waits: the next one ends it.
#[tokio::test]
async fn relay_that_is_killed_while_a_partition_is_detached_is_continued() {
    for version in Version::ALL {
        let mut pipeline = Pipeline::shared(version, "retention_killed").await;
        retains(&mut pipeline, "keep = \"7d\"\naction = \"drop\"\ninterval = \"1s\"");
        postrider_ok(&pipeline.config, &["setup", "--undo", "--yes"]);
        pipeline
            .sql
            .batch(
                "drop table public.outbox; create table public.outbox (id bigint generated always as identity, \
                   aggregate_type text not null, aggregate_id text not null, event_type text not null, payload json, \
                   headers json, created_at timestamptz not null default clock_timestamp()) \
                   partition by range (created_at); \
                 create table public.past partition of public.outbox for values from (minvalue) \
                   to (date_trunc('day', now()) - interval '9 days'); \
                 create table public.present partition of public.outbox for values \
                   from (date_trunc('day', now()) - interval '9 days') to (maxvalue)",
            )
            .await;
        postrider_ok(&pipeline.config, &["setup"]);
        let relay = pipeline.run();
        relay.await_state("streaming", SOON).await;
        insert(&pipeline, 100, 30).await;
        let reader = Client::connect(&pipeline.url).await.unwrap();
        reader.batch("begin isolation level repeatable read; select from public.outbox").await;
        insert(&pipeline, 1, 0).await;
        pipeline.topic.await_records(101, SOON).await;
        let pending = "select count(*) from pg_inherits where inhdetachpending";
        await_that("a detach that waits", SOON, || async {
            let found = pipeline.sql.text(pending).await.unwrap_or_default();
            if found == "1" { Ok(()) } else { Err(format!("{found}\n{}", relay.stderr())) }
        })
        .await;
        relay.signal(Signal::Kill);
        relay.ended(SOON).await;
        reader.batch("commit").await;
        let relay = pipeline.run();
        await_rows(&pipeline, &relay, "pg_class where relname = 'past'", "0").await;
        await_rows(&pipeline, &relay, "public.outbox", "1").await;
        insert(&pipeline, 5, 0).await;
        let records = pipeline.topic.await_records(106, SOON).await;
        assert!(records.len() >= 106);
    }
}

/// A transaction has inserted an old event and is open while `postrider retain` wants to drop the partition: after its
/// commit the event is published, and its row gets its mark, by the stream too.
#[tokio::test]
async fn event_that_is_committed_beside_the_end_of_its_partition_is_published_and_marked() {
    for (version, mode, state) in
        [(Version::Pg15, "poll", "polling"), (Version::Pg18, "auto", "streaming")]
    {
        let mut pipeline = Pipeline::in_layout(version, "retention_beside", "adr30").await;
        postrider_ok(&pipeline.config, &["setup", "--undo", "--yes"]);
        let head = format!("[pipelines.{}]\n", pipeline.name);
        let with = format!("{head}mode = \"{mode}\"\npoll = {{ interval = \"50ms\" }}\n");
        pipeline.config = pipeline.config.replacen(&head, &with, 1);
        retains(&mut pipeline, "keep = \"7d\"\naction = \"drop\"");
        pipeline
            .sql
            .batch(
                "alter table public.outbox rename to plain; \
                 create table public.outbox (like public.plain including defaults) partition by range (created_at); \
                 create table public.past partition of public.outbox for values from (minvalue) \
                   to (date_trunc('day', now()) - interval '9 days'); \
                 create table public.present partition of public.outbox for values \
                   from (date_trunc('day', now()) - interval '9 days') to (maxvalue)",
            )
            .await;
        postrider_ok(&pipeline.config, &["setup"]);
        let relay = pipeline.run();
        relay.await_state(state, SOON).await;
        let event = "insert into public.outbox (aggregate_type, aggregate_id, event_type, payload, created_at) \
                     values ('o', gen_random_uuid(), 'e', '1', now() - interval '30 days')";
        let writer = Client::connect(&pipeline.url).await.unwrap();
        writer.batch(&format!("begin; {event}")).await;
        await_that("a pass that waits for the transaction", SOON, || async {
            // Another transaction, which the pass needs to be resolved.
            pipeline.sql.batch(&event.replace("30 days", "1 day")).await;
            let pass = postrider(&pipeline.config, &["retain"]);
            let printed = [&pass.stdout, &pass.stderr].map(|text| String::from_utf8_lossy(text));
            let printed = printed.concat();
            if printed.contains("xact_start") { Ok(()) } else { Err(printed) }
        })
        .await;
        writer.batch("commit").await;
        await_rows(&pipeline, &relay, "public.past where published_at is not null", "1").await;
        let rows =
            pipeline.sql.text("select count(*) from public.outbox").await.unwrap_or_default();
        let id = pipeline.sql.text("select id from public.past").await.expect("the old event");
        let records = pipeline.topic.await_records(rows.parse().expect("a number"), SOON).await;
        assert!(records.iter().any(|record| record.header("id") == Some(&*id)), "{records:?}");
        assert_eq!(relay.terminate(SOON).await.code, Some(0));
    }
}

/// The role of the relay has no right to delete: the reason is printed with the GRANT.
#[tokio::test]
async fn missing_rights_are_named_with_the_statement_that_grants_them() {
    let mut pipeline = Pipeline::shared(Version::Pg17, "retention_rights").await;
    retains(&mut pipeline, "keep = \"7d\"\ninterval = \"1s\"");
    let role = unique("retention_role");
    pipeline.sql.batch(&format!("create role {role} login replication")).await;
    postrider_ok(&pipeline.config, &["setup", "--url", &pipeline.url]);
    let rights = format!(
        "grant usage on schema public, postrider to {role}; grant select on public.outbox to {role}; \
         grant select, insert, update, delete on all tables in schema postrider to {role}"
    );
    pipeline.sql.batch(&rights).await;
    insert(&pipeline, 5, 30).await;
    let sql = format!(
        "update postrider.cursor set of_mode = 'wal', of_marks = false, of_layout = 'postrider', \
           of_table_oid = 'public.outbox'::regclass::oid, resolved_snapshot = '{0}:{0}:' where pipeline = '{1}'",
        u32::MAX,
        pipeline.name
    );
    pipeline.sql.batch(&sql).await;
    let as_role = pipeline.url.replace("user=postgres", &format!("user={role}"));
    let config = pipeline.config.replace(&pipeline.url, &as_role);
    let refused = postrider(&config, &["retain"]);
    let printed = String::from_utf8_lossy(&refused.stdout).into_owned();
    let grant = format!("GRANT DELETE ON TABLE public.outbox TO {role};");
    assert_eq!(refused.status.code(), Some(1), "{printed}");
    assert!(printed.contains(&grant), "{printed}");
    pipeline.sql.batch(&grant).await;
    let printed = postrider_ok(&config, &["retain"]);
    assert!(printed.contains("removed 5 rows"), "{printed}");
    pipeline.sql.batch(&format!("drop owned by {role}; drop role {role}")).await;
}

#[test]
fn settings_that_contradict_each_other_are_refused_with_what_fixes_them() {
    for (lines, says) in [
        ("keep = \"1d\"\naction = \"archive\"", "action = \"archive\" needs the table"),
        ("keep = \"1d\"\narchive = \"a\"", "needs action = \"archive\""),
        ("keep = \"1d\"\narchive_keep = \"9d\"", "needs an archive"),
        ("keep = \"1d\"\nkeep_from = \"expiry\"", "needs a layout with a time of expiry"),
        ("keep = \"1d\"\npartitions = { by = \"moon\" }", "expected one of \"hour\""),
        ("keep = \"1 day\"", "duration"),
    ] {
        let config = format!(
            "[pipelines.orders.source]\nurl = \"postgresql://postrider@localhost/none\"\n\
             [pipelines.orders.outbox]\ntable = \"outbox\"\n\
             [pipelines.orders.sink]\nbrokers = \"localhost:1\"\n[pipelines.orders.retention]\n{lines}\n"
        );
        let refused = postrider(&config, &["config", "show"]);
        let printed = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert_eq!(refused.status.code(), Some(2), "{lines}: {printed}");
        assert!(printed.contains(says), "{lines}: {printed}");
    }
}
