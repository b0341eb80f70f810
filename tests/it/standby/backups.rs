//! Restored backups: the same cluster, an earlier state.
//!
//! The backup is a copy of the stopped server's files, as a snapshot of its disk would be. Restored with archive
//! recovery it gets a timeline of its own; started as it is, it can't be told from the server it once was, but by a
//! process that has seen that server further on.

use crate::await_that::SOON;
use crate::halted::{Halted, halt_of, run_to_halt, spawn};
use crate::pipeline::{Pipeline, show};
use crate::private::PrivatePostgres;
use crate::server::{Client, Version, brokers};
use crate::topic::ReadRecord;
use std::collections::BTreeSet;
use std::fs;

/// A server with a pipeline that has published 50 events, 25 of them before its backup was taken.
struct Backup {
    original: PrivatePostgres,
    copy: PrivatePostgres,
    pipeline: Pipeline,
}

impl Backup {
    /// Both servers are stopped when this returns.
    async fn taken(version: Version, test: &str) -> Self {
        let mut original = PrivatePostgres::start(version, "").await;
        let pipeline = Pipeline::on(&original.url(), &brokers(), test).await;
        publish(&pipeline, 25).await;
        original.stop_fast(SOON).await;
        let copy = original.cold_copy("");
        original.restart().await;
        publish(&pipeline, 50).await;
        let after = Client::connect(&pipeline.url).await.expect("a session");
        after.text("select pg_create_restore_point('monday')").await;
        after.batch("create table later (i int)").await;
        original.stop_fast(SOON).await;
        Self { original, copy, pipeline }
    }

    /// The copy is the source from now on, at its own port.
    async fn use_copy(&mut self) {
        self.copy.restart().await;
        let (old, new) = (self.original.url(), self.copy.url());
        self.pipeline.config = self.pipeline.config.replace(&old, &new);
        self.pipeline.url = new;
        self.pipeline.sql = self.copy.connect().await;
    }

    /// Archive recovery: WAL is fetched from the original, and the copy has a timeline of its own behind it.
    fn recovers(&self, target: &str) {
        let wal = self.original.data().join("pg_wal");
        self.copy.configure(&format!("restore_command = 'cp {}/%f %p'\n{target}", wal.display()));
        self.copy.place("recovery.signal");
    }
}

/// A run that ends when `total` records are in the topic.
async fn publish(pipeline: &Pipeline, total: usize) {
    let session = Client::connect(&pipeline.url).await.expect("a session");
    session
        .batch(
            "insert into public.outbox (aggregate_type, aggregate_id, event_type, payload) \
             select 'order', (i % 10)::text, 'Written', to_json(i) from generate_series(1, 25) i",
        )
        .await;
    let relay = pipeline.run();
    pipeline.topic.await_records(total, SOON).await;
    assert_eq!(relay.terminate(SOON).await.code, Some(0));
}

/// Recovery was told where to end: the server's own timeline history says so.
#[tokio::test]
async fn backup_restored_to_a_point_halts_and_goes_on_by_the_line_of_the_hint() {
    for version in Version::ALL {
        let mut backup = Backup::taken(version, "restored").await;
        backup.recovers("recovery_target_name = 'monday'\nrecovery_target_action = 'promote'");
        backup.use_copy().await;
        let halted = run_to_halt(&backup.pipeline.config).await;
        let why = ["from timeline 1 to 2", "at restore point \"monday\""];
        halted.assert_says("PR004", &why, &["postrider repair", "UPDATE postrider.cursor"]);
        tell(version, "a backup restored to a restore point", &halted);
        vouch(&backup.pipeline, &halted).await;
        publish(&backup.pipeline, 75).await;
    }
}

/// Recovery went to the end of WAL, as a promotion does; but the slot came with the files, and no primary gave it.
#[tokio::test]
async fn restored_copy_with_its_own_slot_halts_and_goes_on_by_the_line_of_the_hint() {
    for version in [Version::Pg17, Version::Pg18] {
        let mut backup = Backup::taken(version, "copied").await;
        backup.recovers("");
        backup.use_copy().await;
        let halted = run_to_halt(&backup.pipeline.config).await;
        let why = ["from timeline 1 to 2", "came with its files"];
        halted.assert_says("PR004", &why, &["postrider repair", "UPDATE postrider.cursor"]);
        tell(version, "a restored copy with its own slot", &halted);
        vouch(&backup.pipeline, &halted).await;
        publish(&backup.pipeline, 75).await;
    }
}

/// As `pg_basebackup` makes it: without slots.
#[tokio::test]
async fn restored_backup_without_slots_halts_with_the_command() {
    for version in Version::ALL {
        let mut backup = Backup::taken(version, "noslots").await;
        backup.recovers("");
        for slot in fs::read_dir(backup.copy.data().join("pg_replslot")).unwrap() {
            fs::remove_dir_all(slot.unwrap().path()).unwrap();
        }
        backup.use_copy().await;
        let halted = run_to_halt(&backup.pipeline.config).await;
        halted.assert_says("PR002", &["does not exist"], &["postrider repair"]);
        tell(version, "a restored backup without slots", &halted);
    }
}

/// The files of an earlier day behind the same address and on the same timeline, under a process that saw the later
/// day.
#[tokio::test]
async fn server_set_back_under_a_running_process_halts() {
    for version in Version::ALL {
        let Backup { mut original, mut copy, pipeline } = Backup::taken(version, "setback").await;
        original.restart().await;
        let relay = spawn(&pipeline.config);
        relay.await_state("streaming", SOON).await;
        original.kill().await;
        copy.configure(&format!("port = {}", original.port));
        copy.port = original.port;
        copy.restart().await;
        let halted = halt_of(relay).await;
        halted.assert_says("PR004", &["this process had"], &["start again"]);
        tell(
            version,
            "an earlier copy behind the same address, seen by a running process",
            &halted,
        );

        // A new process has nothing but the server's word: it publishes all that is committed behind the row, at
        // positions that are other events' in the history before.
        let histories = |records: &[ReadRecord]| -> BTreeSet<u32> {
            records.iter().map(|record| record.place().expect("a position").0).collect()
        };
        let before = histories(&pipeline.topic.read_all().await);
        publish(&pipeline, 75).await;
        let after = histories(&pipeline.topic.read_all().await);
        assert_eq!((before.len(), after.len()), (1, 2), "{before:?} {after:?}");
        assert!(after.last() > before.last(), "{before:?} {after:?}");
    }
}

/// The statement of the hint, word for word.
async fn vouch(pipeline: &Pipeline, halted: &Halted) {
    let (_, rest) = halted.hint.split_once("UPDATE").expect("a statement");
    let statement = rest.split(';').next().expect("its end");
    pipeline.sql.batch(&format!("UPDATE{statement}")).await;
}

fn tell(version: Version, what: &str, halted: &Halted) {
    let (code, message, hint) = (&halted.code, &halted.message, &halted.hint);
    show(&format!("PostgreSQL {}: {what}: {code} {message}; to run: {hint}", version.major()));
}
