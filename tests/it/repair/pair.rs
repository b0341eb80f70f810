//! `source.on_slot_lost = "repair"` with two processes: one repairs, the other stands by and takes over afterwards.

use super::{committed, drop_slot};
use crate::await_that::{SOON, await_that};
use crate::load::Load;
use crate::pipeline::Pipeline;
use crate::relay::Relay;
use crate::server::Version;
use postrider::postgres::Conninfo;
use postrider::postgres::stream::{StartReplication, WalConnection};

async fn repairing(version: Version, test: &str) -> Pipeline {
    let mut pipeline = Pipeline::shared(version, test).await;
    pipeline.config = pipeline.with_line("source", "on_slot_lost = \"repair\"");
    pipeline
}

/// The slot is dropped three times under load, and each time one of the two processes repairs. At the end the one that
/// streams is stopped, and the other takes over.
#[tokio::test]
async fn standby_process_stands_by_through_repairs_and_takes_over() {
    let pipeline = repairing(Version::Pg17, "repair_pair").await;
    let relays = [Relay::spawn(&pipeline.config), Relay::spawn(&pipeline.config)];
    let one_streams = || async {
        let mut found = Vec::new();
        for relay in &relays {
            let status = relay.status().await?;
            found.push(status["pipelines"][0]["state"].as_str().unwrap_or_default().to_owned());
        }
        found.sort();
        if found == ["standing_by", "streaming"] { Ok(()) } else { Err(format!("{found:?}")) }
    };
    await_that("one to stream and one to stand by", SOON, one_streams).await;
    let load = Load::start(&pipeline.plan(), 2);
    for times in 1..=3 {
        committed(&load, 1_000).await;
        let before = pipeline.sql.text("select now()::text").await.expect("a time");
        drop_slot(&pipeline).await;
        let finished = format!(
            "select 'yes' from postrider.repair where state = 'done' and started_at > '{before}'"
        );
        await_that(&format!("repair {times}"), SOON, || async {
            pipeline.sql.text(&finished).await.ok_or("not finished")
        })
        .await;
        await_that("one to stream and one to stand by", SOON, one_streams).await;
    }
    let ledger = load.stop().await;
    let [first, second] = relays;
    let (streams, waits) =
        match first.status().await.expect("a status")["pipelines"][0]["state"].as_str() {
            Some("streaming") => (first, second),
            _ => (second, first),
        };
    let ended = streams.terminate(SOON).await;
    waits.await_state("streaming", SOON).await;
    ledger.arrived(&pipeline.topic).await;
    for log in [&ended.stderr, &waits.stderr()] {
        assert!(!log.contains("halted"), "{log}");
    }
    let lost = ledger.check(&pipeline.topic.read_all().await);
    assert!(lost.lost.is_empty() && lost.swapped.is_empty(), "{lost}");
    assert_eq!(waits.terminate(SOON).await.code, Some(0));
}

/// A repair that is begun is found while another process has the slot: as when that one has just finished it.
#[tokio::test]
async fn process_that_finds_the_repaired_slot_in_use_stands_by() {
    let pipeline = repairing(Version::Pg17, "repair_held").await;
    let slot = pipeline.slot();
    pipeline
        .sql
        .batch(&format!(
            "insert into postrider.repair (pipeline, kind, state, selection, slot, slot_created_lsn) \
             select '{}', 'repair', 'publishing', 'unresolved', slot_name, confirmed_flush_lsn \
             from pg_replication_slots where slot_name = '{slot}'",
            pipeline.name
        ))
        .await;
    let conninfo = Conninfo::parse(&pipeline.url, &|_| None).expect("a connection string");
    let holder = WalConnection::connect(&conninfo, "holder").await.expect("a login");
    let start = StartReplication::new(&slot, &slot);
    let holder = holder.start(&start).await.expect("a stream");
    let relay = pipeline.run();
    relay.await_state("standing_by", SOON).await;
    holder.abandon();
    relay.await_state("streaming", SOON).await;
    pipeline.insert(10).await;
    pipeline.topic.await_records(10, SOON).await;
    assert_eq!(relay.terminate(SOON).await.code, Some(0));
}
