//! Resolved rows are deleted by a session beside the stream's: which ones, on whose behalf, and who waits for it.

use super::fence::blocked;
use super::{SOON, Table, at, key, lsn, row, session};
use crate::server::Version;
use postrider::offset::Watermark;
use postrider::parked::{ParkedOutcome, ParkedUpdate, State};
use postrider::postgres::control::Control;
use postrider::postgres::store::cursor::{self, Cursor, CursorWrite, SnapshotPolicy};
use postrider::postgres::store::parked::{self, PruneRule, Pruned};
use std::time::Duration;

/// The versions these run on: the oldest and the newest.
const VERSIONS: [Version; 2] = [Version::Pg15, Version::Pg18];

const HOUR: Duration = Duration::from_hours(1);

/// Writes resolved rows at these positions.
async fn resolved(table: &Table, positions: &[String]) {
    let rows: Vec<_> = positions.iter().map(|at| row(at, at, State::Waiting)).collect();
    let done = rows
        .iter()
        .map(|row| ParkedUpdate { position: row.entry.position, became: ParkedOutcome::Done });
    let done: Vec<ParkedUpdate> = done.collect();
    table.write(&rows, &[]).await;
    table.write(&[], &done).await;
}

fn positions(last: u32) -> Vec<String> {
    (1..=last).map(|number| format!("0/{number:X}:0")).collect()
}

/// The cursor row with this watermark.
async fn at_watermark(table: &Table, watermark: &str) -> Cursor {
    let row = cursor::read(table.client(), key()).await.unwrap().unwrap();
    Cursor { watermark: Watermark::resumed(lsn(watermark)), ..row }
}

async fn pass(table: &Table, watermark: &str) {
    let row = at_watermark(table, watermark).await;
    let written = cursor::write(table.client(), &row, &SnapshotPolicy::Always).await;
    assert_eq!(written.unwrap(), CursorWrite::Stored);
}

/// Prunes until nothing is left; returns how many rows were deleted, or `None` for a process that is not the owner.
async fn prune(table: &Table, epoch: i64, rule: PruneRule, keep: Duration) -> Option<u64> {
    let mut total = 0;
    loop {
        match parked::prune(table.client(), key(), epoch, rule, keep).await.unwrap() {
            Pruned::NotOwner => return None,
            Pruned::Rows { deleted, more } => {
                total += deleted;
                if !more {
                    return Some(total);
                }
            }
        }
    }
}

async fn rows(table: &Table) -> String {
    let sql = "select count(*)::text from postrider.parked";
    table.person().await.text(sql).await.expect("a count")
}

#[tokio::test]
async fn only_what_the_cursor_has_passed_and_is_old_is_pruned() {
    for version in VERSIONS {
        let table = Table::new(version, "parked_prune").await;
        let (epoch, rule) = (table.epoch, PruneRule::PassedByCursor);
        resolved(&table, &positions(2500)).await;
        table.write(&[row("0/2:1", "1", State::Waiting)], &[]).await;
        assert_eq!(prune(&table, epoch, rule, Duration::ZERO).await, Some(0), "none is passed");
        pass(&table, "0/900").await;
        assert_eq!(prune(&table, epoch, rule, HOUR).await, Some(0), "none is old");
        // What is at the watermark may be streamed again.
        assert_eq!(prune(&table, epoch, rule, Duration::ZERO).await, Some(0x900 - 1));
        // What is not resolved stays for ever.
        assert_eq!(table.load().await.len(), 2500 - (0x900 - 1) + 1);
        // A request has not been carried out yet.
        let person = table.person().await;
        let request = "update postrider.parked set requested_action = 'retry', requested_at = now() \
                       where commit_lsn = '0/900'";
        person.batch(request).await;
        pass(&table, "0/902").await;
        assert_eq!(prune(&table, epoch, rule, Duration::ZERO).await, Some(1));
        // Nothing streams what was polled.
        assert_eq!(prune(&table, epoch, PruneRule::Aged, HOUR).await, Some(0), "none is old");
        let left = 2500 - 0x901;
        assert_eq!(prune(&table, epoch, PruneRule::Aged, Duration::ZERO).await, Some(left));
        assert_eq!(rows(&table).await, "2");
    }
}

/// Without a cursor row nobody knows what a stream may send again.
#[tokio::test]
async fn nobody_but_the_owner_prunes() {
    for version in VERSIONS {
        for rule in [PruneRule::PassedByCursor, PruneRule::Aged] {
            let table = Table::new(version, "prune_owner").await;
            resolved(&table, &positions(10)).await;
            pass(&table, "0/100").await;
            let former = table.epoch;
            let epoch = cursor::take_over(table.client(), key()).await.unwrap();
            assert_eq!(prune(&table, former, rule, Duration::ZERO).await, None);
            assert_eq!(rows(&table).await, "10");
            let person = table.person().await;
            person.batch("begin; delete from postrider.cursor").await;
            assert_eq!(prune(&table, epoch, rule, Duration::ZERO).await, None, "it is locked");
            person.batch("commit").await;
            assert_eq!(prune(&table, epoch, rule, Duration::ZERO).await, None, "it is gone");
            assert_eq!(rows(&table).await, "10");
        }
    }
}

/// Opens a transaction on a session of maintenance, in which all rows below the watermark are deleted.
async fn pruning(table: &Table, deleted: u64) -> Control {
    let maintenance = session(&table.url).await;
    maintenance.client().batch_execute("BEGIN").await.unwrap();
    let rule = PruneRule::PassedByCursor;
    let pruned = parked::prune(maintenance.client(), key(), table.epoch, rule, Duration::ZERO);
    assert_eq!(pruned.await.unwrap(), Pruned::Rows { deleted, more: false });
    maintenance
}

/// The transaction that deletes is still open: the owner writes its cursor row and parks events, also at positions that
/// follow those of the deleted rows.
#[tokio::test]
async fn owner_waits_for_no_lock_of_a_deletion() {
    for version in Version::ALL {
        let table = Table::new(version, "prune_beside").await;
        resolved(&table, &positions(0x200)).await;
        pass(&table, "0/100").await;
        let maintenance = pruning(&table, 0x100 - 1).await;
        // A statement that waited for a lock would fail: the session's lock_timeout is 5 s.
        let client = table.client();
        pass(&table, "0/180").await;
        let late = [row("0/300:0", "1", State::Waiting)];
        let done = [ParkedUpdate { position: at("0/300:0"), became: ParkedOutcome::Done }];
        table.write(&late, &[]).await;
        table.write(&[], &done).await;
        assert!(cursor::is_owned(client, key(), table.epoch).await.unwrap());
        maintenance.client().batch_execute("COMMIT").await.unwrap();
        assert_eq!(rows(&table).await, (0x200 - 0x100 + 2).to_string());
    }
}

/// A process that takes the pipeline over reads the parked rows after the deletion, and not before it.
#[tokio::test]
async fn successor_reads_the_rows_after_a_deletion_that_it_met() {
    for version in VERSIONS {
        let table = Table::new(version, "prune_meets").await;
        resolved(&table, &positions(0x20)).await;
        pass(&table, "0/10").await;
        let maintenance = pruning(&table, 0x10 - 1).await;
        let successor = session(&table.url).await;
        let pid = successor.client().query_one("SELECT pg_catalog.pg_backend_pid()", &[]).await;
        let pid: i32 = pid.unwrap().get(0);
        let takes = async {
            let seized = cursor::seize(successor.client(), key()).await.unwrap();
            let loaded = parked::load(successor.client(), key(), at("0/1:0")).await.unwrap();
            (seized.epoch, loaded.len())
        };
        let commits = async {
            blocked(&table, pid).await;
            maintenance.client().batch_execute("COMMIT").await.unwrap();
        };
        let ((epoch, loaded), ()) = tokio::join!(takes, commits);
        assert_eq!(loaded, 0x20 - 0x10 + 1);
        let rule = PruneRule::PassedByCursor;
        assert_eq!(prune(&table, table.epoch, rule, Duration::ZERO).await, None);
        assert_eq!(prune(&table, epoch, rule, Duration::ZERO).await, Some(0));
    }
}

/// Rows that another session has locked stay for the next time, and nothing waits for that session.
#[tokio::test]
async fn locked_rows_are_passed_over_and_deleted_later() {
    let table = Table::new(Version::Pg17, "prune_locked").await;
    resolved(&table, &positions(0x20)).await;
    pass(&table, "0/100").await;
    let person = table.person().await;
    person.batch("begin; select from postrider.parked where commit_lsn < '0/4' for share").await;
    let rule = PruneRule::PassedByCursor;
    let pruned = prune(&table, table.epoch, rule, Duration::ZERO);
    let pruned = tokio::time::timeout(SOON, pruned).await.expect("no wait for a lock");
    assert_eq!(pruned, Some(0x20 - 3));
    person.batch("commit").await;
    assert_eq!(prune(&table, table.epoch, rule, Duration::ZERO).await, Some(3));
}
