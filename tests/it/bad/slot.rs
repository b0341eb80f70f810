//! Slots and publications of the wrong kind, made in the wrong order, taken, or used up.

use super::{SOON, arrives};
use crate::answers::{Answer, answer};
use crate::await_that::await_that;
use crate::halted::{run_to_halt, spawn};
use crate::pipeline::Pipeline;
use crate::private::PrivatePostgres;
use crate::refusals::follow;
use crate::relay::postrider;
use crate::server::{Version, brokers};

/// A slot of the pipeline's name that no stream of ours can be read from; the way out leads on.
#[tokio::test]
async fn slot_of_another_kind_halts_with_the_way_out() {
    for (input, make, word) in [
        (
            "slot with two_phase",
            "pg_create_logical_replication_slot('{slot}', 'pgoutput', false, true)",
            "two_phase",
        ),
        ("a physical slot", "pg_create_physical_replication_slot('{slot}')", "physical"),
    ] {
        let pipeline = Pipeline::shared(Version::Pg17, "slotkind").await;
        pipeline.insert(10).await;
        pipeline.sql("select pg_drop_replication_slot('{slot}')").await;
        pipeline.sql(&format!("select {make}")).await;
        let halted = run_to_halt(&pipeline.config).await;
        halted.assert_says(
            "PR003",
            &[&pipeline.slot(), word],
            &["source.slot", "postrider repair"],
        );
        // A standby's is not offered to be dropped.
        let drops = halted.hint.contains("pg_drop_replication_slot");
        assert_eq!(drops, word == "two_phase", "{halted:#?}");
        answer(input, &pipeline, &halted);
        pipeline.sql("select pg_drop_replication_slot('{slot}')").await;
        let halted = run_to_halt(&pipeline.config).await;
        follow(&pipeline, &halted).await;
    }
}

/// Made by hand in the wrong order: what was committed in between can't be decoded, and is named.
#[tokio::test]
async fn publication_made_after_the_slot_halts_and_confirms_nothing() {
    for version in Version::ALL {
        let pipeline = Pipeline::shared(version, "order").await;
        pipeline
            .sql(
                "select pg_drop_replication_slot('{slot}'); drop publication {publication}; \
                 delete from postrider.cursor; select pg_create_logical_replication_slot('{slot}', 'pgoutput')",
            )
            .await;
        let early = postrider(&pipeline.config, &["setup"]);
        assert_eq!(early.status.code(), Some(3), "{}", String::from_utf8_lossy(&early.stderr));
        pipeline.insert(5).await;
        pipeline
            .sql("create publication {publication} for table outbox with (publish = 'insert')")
            .await;
        let setup = postrider(&pipeline.config, &["setup"]);
        assert_eq!(setup.status.code(), Some(0), "{}", String::from_utf8_lossy(&setup.stderr));
        let before = pipeline.confirmed_lsn().await;
        pipeline.insert(5).await;
        let halted = run_to_halt(&pipeline.config).await;
        halted.assert_says("PR007", &[], &["repair", "--from-table"]);
        assert_eq!(pipeline.confirmed_lsn().await, before);
        assert_eq!(
            pipeline.topic.read_all().await.len(),
            0,
            "nothing overtakes what can't be decoded"
        );
        if version == Version::Pg17 {
            answer("publication made after the slot", &pipeline, &halted);
        } else if version == Version::Pg18 {
            answer("publication made after the slot, on 18", &pipeline, &halted);
        }
        follow(&pipeline, &halted).await;
    }
}

#[tokio::test]
async fn slot_that_another_process_holds_is_stood_by_for() {
    let pipeline = Pipeline::shared(Version::Pg18, "active").await;
    let first = pipeline.run();
    first.await_state("streaming", SOON).await;
    let second = spawn(&pipeline.config);
    second.await_state("standing_by", SOON).await;
    pipeline.insert(10).await;
    assert_eq!(pipeline.topic.await_records(10, SOON).await.len(), 10);
    assert_eq!(first.terminate(SOON).await.code, Some(0));
    second.await_state("streaming", SOON).await;
    answer(
        "slot that another process holds",
        &pipeline,
        Answer::logged(&second.stderr(), "standing by").then("waits: `standing_by`"),
    );
    pipeline.insert(10).await;
    assert_eq!(pipeline.topic.await_records(20, SOON).await.len(), 20);
    assert_eq!(second.terminate(SOON).await.code, Some(0));
}

/// PostgreSQL 18 takes a slot away that nobody used for a while.
#[tokio::test]
async fn slot_invalidated_because_it_was_idle_halts_with_the_way_out() {
    let server =
        PrivatePostgres::start(Version::Pg18, "idle_replication_slot_timeout = '1s'").await;
    let pipeline = Pipeline::on(&server.url(), &brokers(), "idle").await;
    pipeline.insert(10).await;
    let slot = pipeline.slot();
    let look =
        format!("select invalidation_reason from pg_replication_slots where slot_name = '{slot}'");
    await_that("the slot's end", SOON, || async {
        pipeline.sql.batch("checkpoint").await;
        pipeline.sql.text(&look).await.filter(|why| why == "idle_timeout").ok_or("it stands")
    })
    .await;
    let halted = run_to_halt(&pipeline.config).await;
    halted.assert_says("PR001", &[&slot, "idle_timeout"], &["idle_replication_slot_timeout"]);
    answer("slot invalidated: idle_timeout", &pipeline, &halted);
    pipeline.sql("alter system set idle_replication_slot_timeout = 0").await;
    pipeline.sql("select pg_reload_conf()").await;
    pipeline.sql("select pg_drop_replication_slot('{slot}')").await;
    follow(&pipeline, &halted).await;
}

/// Another stream has the last walsender, another pipeline the last slot.
#[tokio::test]
async fn senders_and_slots_that_are_used_up_are_told_and_waited_for() {
    let conf = "max_wal_senders = 1\nmax_replication_slots = 1";
    let server = PrivatePostgres::start(Version::Pg15, conf).await;
    let pipeline = Pipeline::on(&server.url(), &brokers(), "usedup").await;
    pipeline.insert(10).await;
    let other = pipeline.config.replace(&pipeline.name, "another");
    let setup = postrider(&other, &["setup"]);
    assert_eq!(setup.status.code(), Some(1));
    answer("no replication slot is free", &pipeline, &setup);

    let first = pipeline.run();
    first.await_state("streaming", SOON).await;
    let second = spawn(&pipeline.config);
    let status = second
        .await_status("no walsender", SOON, |status| {
            status["pipelines"][0]["reason"].as_str().unwrap_or_default().contains("53300")
        })
        .await;
    answer("no walsender is free", &pipeline, Answer::waits(&status));
    assert_eq!(first.terminate(SOON).await.code, Some(0));
    second.await_state("streaming", SOON).await;
    assert_eq!(second.terminate(SOON).await.code, Some(0));
    arrives(&pipeline, 10).await;
}
