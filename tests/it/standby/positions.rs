//! Header `position` over a failover, a restored backup and another failover: an aggregate's positions rise, and a
//! consumer that compares them passes over no event that it has not seen.
//!
//! Each server commits events that the next one does not have, and gives their ids and their LSNs to others: a consumer
//! that compared LSNs, or ids alone, would lose those.

use super::pair::{Pair, STANDBY};
use super::promotion::pipeline;
use crate::await_that::{SOON, await_or_dump};
use crate::consumers::{Inbox, await_numbers, headers, insert, number};
use crate::halted::{Halted, run_to_halt};
use crate::pipeline::{Pipeline, show};
use crate::private::PrivatePostgres;
use crate::relay::postrider_ok;
use crate::server::{Client, Version};
use crate::sink_caller::alter;
use crate::topic::ReadRecord;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;

/// A pipeline, and the numbers of its events.
struct Scene {
    pipeline: Pipeline,
    next: usize,
}

impl Scene {
    /// Inserts so many events.
    async fn insert(&mut self, count: usize) {
        let session = Client::connect(&self.pipeline.url).await.expect("a session");
        session.batch(&insert(self.next, count)).await;
        self.next += count;
    }

    /// A run that publishes so many new events, and whatever waits.
    async fn publish(&mut self, count: usize) {
        let relay = self.pipeline.run();
        relay.await_state("streaming", SOON).await;
        let first = self.next;
        self.insert(count).await;
        await_numbers(&self.pipeline, first..self.next).await;
        assert_eq!(relay.terminate(SOON).await.code, Some(0));
    }

    /// Another server is the source from now on.
    fn moves(&mut self, url: &str) {
        self.pipeline.config = self.pipeline.config.replace(&self.pipeline.url, url);
        url.clone_into(&mut self.pipeline.url);
    }

    /// The statement of a halt's hint, word for word.
    async fn vouch(&self, halted: &Halted) {
        let (_, rest) = halted.hint.split_once("UPDATE").expect("a statement");
        let statement = rest.split(';').next().expect("its end");
        let session = Client::connect(&self.pipeline.url).await.expect("a session");
        session.batch(&format!("UPDATE{statement}")).await;
    }

    async fn records(&self) -> Vec<ReadRecord> {
        let mut records = self.pipeline.topic.read_all().await;
        records.sort_by_key(|record| (record.partition, record.offset));
        records
    }
}

/// Of each aggregate: an event that comes for the first time has a position above all before it. And by the rule of the
/// page each event that was published has its effect. The histories, in their order.
fn judge(records: &[ReadRecord]) -> Vec<u32> {
    let mut inbox = Inbox::default();
    let mut effects: BTreeMap<u64, usize> = BTreeMap::new();
    let mut highest: BTreeMap<&str, &str> = BTreeMap::new();
    let mut histories = BTreeSet::new();
    for record in records {
        let (key, number) = (record.key_text().expect("a key"), number(record));
        let is_new = !effects.contains_key(&number);
        if let Some(position) = record.header("position") {
            histories.insert(record.place().expect("a position").0);
            let before = highest.entry(key).or_default();
            assert!(
                !is_new || position > *before,
                "event {number} at {position} after {before}; the aggregate's records:\n{}",
                of_aggregate(records, key)
            );
            *before = position.max(before);
        }
        let applied = inbox.is_new(key, &headers(record));
        *effects.entry(number).or_default() += usize::from(applied);
    }
    let lost: Vec<_> = effects.iter().filter(|(_, times)| **times == 0).collect();
    assert!(lost.is_empty(), "passed over as seen: {lost:?}");
    // Nothing of the stream twice; what a repair brings again is known within its history.
    let positioned = |number: &u64| {
        records
            .iter()
            .filter(|r| self::number(r) == *number)
            .all(|r| r.header("position").is_some())
    };
    let twice: Vec<_> =
        effects.iter().filter(|(number, times)| **times > 1 && positioned(number)).collect();
    assert!(twice.is_empty(), "twice: {twice:?}");
    histories.into_iter().collect()
}

/// An aggregate's records, a line each: number, position, offset.
fn of_aggregate(records: &[ReadRecord], key: &str) -> String {
    let ours = records.iter().filter(|record| record.key_text() == Some(key));
    let line = |record: &ReadRecord| {
        format!("{} {:?} at offset {}", number(record), record.header("position"), record.offset)
    };
    ours.map(line).collect::<Vec<_>>().join("\n")
}

/// The broker took each record of a history that was raised after the second of the history's number: a history of
/// another branch that is begun afterwards has a higher number.
fn assert_second_is_over(records: &[ReadRecord], first: u32) {
    let mut raised = 0;
    for record in records {
        let Some((history, ..)) = record.place().filter(|place| place.0 > first) else { continue };
        let taken = record.timestamp.expect("a time");
        assert!(
            taken >= (i64::from(history) + 1) * 1_000,
            "history {history}, taken at {taken} ms"
        );
        raised += 1;
    }
    assert!(raised > 0, "no record of a history that was raised");
}

/// Whether LSNs of a later history lie below those of an earlier one: otherwise the test shows nothing.
fn overlaps(records: &[ReadRecord]) -> bool {
    let lsn = |record: &ReadRecord| {
        let (history, lsn, _) = record.place()?;
        Some((history, lsn.parse::<postrider::offset::Offset>().expect("an LSN")))
    };
    let places: Vec<_> = records.iter().filter_map(lsn).collect();
    places.iter().any(|later| places.iter().any(|before| before.0 < later.0 && later.1 < before.1))
}

/// Waits until its recovery has ended.
async fn takes_writes(server: &PrivatePostgres) {
    let look = || async {
        let recovers = server.connect().await.text("select pg_is_in_recovery()::text").await;
        if recovers.as_deref() == Some("false") { Ok(()) } else { Err(format!("{recovers:?}")) }
    };
    await_or_dump("the end of recovery", SOON, look, || server.log()).await;
}

async fn failover_restore_and_failover_again(version: Version) {
    let mut pair = Pair::start(version, true).await;
    let mut scene = Scene { pipeline: pipeline(&pair, "positions").await, next: 1 };
    alter(&scene.pipeline.topic, "message.timestamp.type", "LogAppendTime").await;
    scene.publish(50).await;
    // The backup; what is published after it is lost later.
    pair.primary.stop_fast(SOON).await;
    let mut copy =
        pair.primary.cold_copy("synchronized_standby_slots = ''\nsynchronous_standby_names = ''");
    pair.primary.restart().await;
    scene.publish(50).await;
    let primary = pair.primary.connect().await;
    primary.text("select pg_create_restore_point('monday')").await;
    primary.batch("create table later (i int)").await;
    scene.publish(50).await;

    // A failover, with events on the way.
    let relay = scene.pipeline.run();
    relay.await_state("streaming", SOON).await;
    pair.await_synced(&scene.pipeline.slot()).await;
    scene.insert(50).await;
    pair.fail_over().await;
    relay.await_log("the server went from timeline 1 to 2", SOON).await;
    let first = scene.next;
    scene.insert(50).await;
    await_numbers(&scene.pipeline, first..scene.next).await;
    assert_eq!(relay.terminate(SOON).await.code, Some(0));

    // The backup is restored to Monday: its timeline is 2 as well.
    let wal = pair.primary.data().join("pg_wal");
    copy.configure(&format!(
        "restore_command = 'cp {}/%f %p'\nrecovery_target_name = 'monday'\nrecovery_target_action = 'promote'",
        wal.display()
    ));
    copy.place("recovery.signal");
    fs::remove_dir_all(copy.data().join("pg_replslot").join(STANDBY)).expect("the standby's slot");
    copy.restart().await;
    takes_writes(&copy).await;
    scene.moves(&copy.url());
    let halted = run_to_halt(&scene.pipeline.config).await;
    halted.assert_says("PR004", &["from timeline 1 to 2"], &["UPDATE postrider.cursor"]);
    scene.vouch(&halted).await;
    scene.publish(50).await;

    // And a failover of that.
    copy.configure("restore_command = ''\nrecovery_target_name = ''");
    let mut again = Pair::of(copy, true).await;
    scene.moves(&again.url());
    let relay = scene.pipeline.run();
    relay.await_state("streaming", SOON).await;
    again.await_synced(&scene.pipeline.slot()).await;
    scene.insert(50).await;
    again.fail_over().await;
    relay.await_log("the server went from timeline 2 to 3", SOON).await;
    let first = scene.next;
    scene.insert(50).await;
    await_numbers(&scene.pipeline, first..scene.next).await;
    assert_eq!(relay.terminate(SOON).await.code, Some(0));

    let records = scene.records().await;
    let last = u64::try_from(scene.next - 1).expect("a number");
    crate::inbox_run::each_effect_once_and_in_order(&scene.pipeline.topic, last).await;
    let histories = judge(&records);
    assert_eq!(histories.len(), 4, "the first, and three raises: {histories:?}");
    assert_second_is_over(&records, histories[0]);
    assert!(overlaps(&records), "no LSN was given twice");
    show(&format!(
        "PostgreSQL {}: {} records of {} events over a failover, a restored backup and a failover: histories {}",
        version.major(),
        records.len(),
        scene.next - 1,
        histories.iter().map(|history| format!("{history:08X}")).collect::<Vec<_>>().join(", ")
    ));
}

#[tokio::test]
async fn positions_rise_over_failover_restore_and_failover_again_on_17() {
    failover_restore_and_failover_again(Version::Pg17).await;
}

#[tokio::test]
async fn positions_rise_over_failover_restore_and_failover_again_on_18() {
    failover_restore_and_failover_again(Version::Pg18).await;
}

/// A backup without slots, as `pg_basebackup` makes it, is repaired: its rows have ids that other events had.
#[tokio::test]
async fn rows_of_a_repaired_backup_are_not_taken_for_events_whose_ids_they_have() {
    for version in Version::ALL {
        let mut original = PrivatePostgres::start(version, "").await;
        let pipeline =
            Pipeline::on(&original.url(), &crate::server::brokers(), "repaired_backup").await;
        let mut scene = Scene { pipeline, next: 1 };
        scene.publish(50).await;
        original.stop_fast(SOON).await;
        let mut copy = original.cold_copy("");
        original.restart().await;
        scene.publish(50).await;
        original.stop_fast(SOON).await;

        let wal = original.data().join("pg_wal");
        copy.configure(&format!(
            "restore_command = 'cp {}/%f %p'\nrecovery_target = 'immediate'\nrecovery_target_action = 'promote'",
            wal.display()
        ));
        copy.place("recovery.signal");
        for slot in fs::read_dir(copy.data().join("pg_replslot")).expect("slots") {
            fs::remove_dir_all(slot.expect("a slot").path()).expect("a slot's files");
        }
        copy.restart().await;
        takes_writes(&copy).await;
        scene.moves(&copy.url());
        let first = scene.next;
        scene.insert(50).await;
        postrider_ok(&scene.pipeline.config, &["repair"]);
        await_numbers(&scene.pipeline, first..scene.next).await;
        scene.publish(50).await;

        let records = scene.records().await;
        judge(&records);
        let mut numbers: BTreeMap<&str, BTreeSet<u64>> = BTreeMap::new();
        for record in &records {
            let id = record.header("id").expect("an id");
            numbers.entry(id).or_default().insert(number(record));
        }
        let shared = numbers.values().filter(|of| of.len() > 1).count();
        assert!(shared > 0, "no id was given twice");
        show(&format!("PostgreSQL {}: {shared} ids are two events' each", version.major()));
    }
}
