//! Who may write: the owner alone, whatever happens at the same time; and what a commit waits for.

use super::{PIPELINE, SOON, Table, at, key, row, session};
use crate::await_that::await_that;
use crate::private::PrivatePostgres;
use crate::server::{Client, Version};
use postrider::event::Position;
use postrider::parked::{ParkedOutcome, ParkedUpdate, State};
use postrider::postgres::store::cursor::{self, CursorWrite};
use postrider::postgres::store::parked::{self, Stored};
use postrider::store::PipelineKey;

#[tokio::test]
async fn who_lost_the_pipeline_writes_nothing_more() {
    for version in [Version::Pg15, Version::Pg18] {
        let table = Table::new(version, "fence_lost").await;
        table.write(&[row("0/1:0", "1", State::Waiting)], &[]).await;
        let row_before = cursor::read(table.client(), key()).await.unwrap().unwrap();
        assert_eq!(row_before.owner_epoch, table.epoch);

        let owner = session(&table.url).await;
        let epoch = cursor::take_over(owner.client(), key()).await.unwrap();
        assert!(epoch > table.epoch);
        let done = ParkedUpdate { position: at("0/1:0"), became: ParkedOutcome::Done };
        let late = [row("0/2:0", "1", State::Behind)];
        let zombie = parked::write(table.client(), key(), table.epoch, &late, &[done]).await;
        assert_eq!(zombie.unwrap(), Stored::TakenOver);
        let zombie = cursor::write(table.client(), &row_before, &cursor::SnapshotPolicy::Always)
            .await
            .unwrap();
        assert_eq!(zombie, CursorWrite::TakenOver);
        let loaded = table.load().await;
        assert_eq!(loaded.len(), 1);
        assert_eq!(loaded[0].entry.state, State::Waiting);

        let stored = parked::write(owner.client(), key(), epoch, &late, &[done]).await;
        assert_eq!(stored.unwrap(), Stored::Yes);
        let other =
            parked::write(owner.client(), &PipelineKey::first("another"), epoch, &late, &[]).await;
        assert_eq!(other.unwrap(), Stored::TakenOver);
    }
}

#[tokio::test]
async fn an_epoch_is_not_met_again_where_the_row_was_made_anew() {
    let table = Table::new(Version::Pg15, "fence_anew").await;
    let row = cursor::read(table.client(), key()).await.unwrap().unwrap();
    table.person().await.batch("delete from postrider.cursor").await;
    assert!(cursor::take_over(table.client(), key()).await.is_err(), "there is no row");
    let anew = cursor::Cursor { owner_epoch: 0, ..row };
    assert!(cursor::create(table.client(), &anew).await.unwrap());
    assert!(cursor::take_over(table.client(), key()).await.unwrap() > table.epoch);
    let late = parked::write(table.client(), key(), table.epoch, &[], &[]).await;
    assert_eq!(late.unwrap(), Stored::TakenOver);
    // Whatever the clock does.
    let ahead = "update postrider.cursor set owner_epoch = 9000000000000000000";
    table.person().await.batch(ahead).await;
    let next = cursor::take_over(table.client(), key()).await.unwrap();
    assert_eq!(next, 9_000_000_000_000_000_001);
}

/// Waits until the backend of `client` waits for a lock.
pub(super) async fn blocked(table: &Table, pid: i32) {
    let person = table.person().await;
    let sql = format!("select wait_event_type from pg_stat_activity where pid = {pid}");
    await_that("a statement that waits for a lock", SOON, || async {
        match person.text(&sql).await.as_deref() {
            Some("Lock") => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await;
}

async fn pid(client: &tokio_postgres::Client) -> i32 {
    client.query_one("SELECT pg_catalog.pg_backend_pid()", &[]).await.unwrap().get(0)
}

#[tokio::test]
async fn a_write_that_meets_a_take_over_waits_for_it_and_fails() {
    for version in [Version::Pg15, Version::Pg18] {
        let table = Table::new(version, "fence_meets").await;
        let owner = table.person().await;
        owner.batch("begin; update postrider.cursor set owner_epoch = owner_epoch + 1").await;
        let zombie = pid(table.client()).await;
        let rows = [row("0/1:0", "1", State::Waiting)];
        let write = parked::write(table.client(), key(), table.epoch, &rows, &[]);
        let commit = async {
            blocked(&table, zombie).await;
            owner.batch("commit").await;
        };
        let (written, ()) = tokio::join!(write, commit);
        assert_eq!(written.unwrap(), Stored::TakenOver);
        assert_eq!(table.load().await, []);
    }
}

#[tokio::test]
async fn a_take_over_waits_for_a_write_and_sees_its_rows() {
    for version in [Version::Pg15, Version::Pg18] {
        let table = Table::new(version, "fence_waits").await;
        // Holds the write up in its middle, behind the fence: a row of the same identity that is not committed.
        let person = table.person().await;
        person
            .batch(&format!(
                "begin; insert into postrider.parked (pipeline, commit_lsn, ordinal, commit_time, blocks, topic, \
                 state) values ('{PIPELINE}', '0/1', 0, now(), false, 't', 'dead')"
            ))
            .await;
        let owner = session(&table.url).await;
        let (zombie, next) = (pid(table.client()).await, pid(owner.client()).await);
        let rows = ["0/1:0", "0/2:0"].map(|at| row(at, at, State::Waiting));
        let write = parked::write(table.client(), key(), table.epoch, &rows, &[]);
        let take_over = async {
            blocked(&table, zombie).await;
            let epoch = cursor::take_over(owner.client(), key()).await.unwrap();
            (epoch, parked::load(owner.client(), key(), Position::default()).await.unwrap())
        };
        let release = async {
            blocked(&table, next).await;
            person.batch("rollback").await;
        };
        let (written, (epoch, loaded), ()) = tokio::join!(write, take_over, release);
        assert_eq!(written.unwrap(), Stored::Yes);
        assert!(epoch > table.epoch);
        assert_eq!(loaded.len(), 2, "the write had its commit before the take-over had its answer");
    }
}

/// Sessions have a new setting before the checkpointer, and it is the checkpointer who has commits wait. What it takes
/// is a commit that wrote something; a session that waits then is left until the setting ends.
async fn does_a_commit_wait(url: &str, admin: &Client) -> Result<(), String> {
    let session = Client::connect(url).await.map_err(|error| error.to_string())?;
    let pid = session.text("select pg_backend_pid()").await.ok_or("no pid")?;
    let sql = format!("select wait_event from pg_stat_activity where pid = {pid}");
    let waits = async {
        while admin.text(&sql).await.as_deref() != Some("SyncRep") {
            tokio::task::yield_now().await;
        }
    };
    tokio::select! {
        () = session.batch("create temp table written ()") => Err("it did not wait".to_owned()),
        () = waits => Ok(()),
    }
}

/// The session's own `synchronous_commit` is `local`; a parked row must outlive a failover to a synchronous standby.
#[tokio::test]
async fn a_parked_row_waits_for_the_synchronous_standby_and_the_cursor_does_not() {
    let server = PrivatePostgres::start(Version::Pg18, "").await;
    let table = Table::at(&server.url()).await;
    let admin = table.person().await;
    let standby = async |name: &str| {
        admin.batch(&format!("alter system set synchronous_standby_names = '{name}'")).await;
        admin.batch("select pg_reload_conf()").await;
        await_that("the setting", SOON, || async {
            let session = Client::connect(&table.url).await.map_err(|error| error.to_string())?;
            let seen = session.text("show synchronous_standby_names").await;
            if seen.as_deref() == Some(name) { Ok(()) } else { Err(format!("{seen:?}")) }
        })
        .await;
    };
    // A superuser's own commits would wait as well.
    admin.batch("set synchronous_commit = local").await;
    standby("nobody").await;
    await_that("commits wait", SOON, || does_a_commit_wait(&table.url, &admin)).await;
    let cursor = cursor::read(table.client(), key()).await.unwrap().unwrap();
    assert_eq!(
        cursor::write(table.client(), &cursor, &cursor::SnapshotPolicy::Always).await.unwrap(),
        CursorWrite::Stored
    );

    let rows = [row("0/1:0", "1", State::Waiting)];
    let writer = pid(table.client()).await;
    let write = parked::write(table.client(), key(), table.epoch, &rows, &[]);
    let release = async {
        let sql = format!("select wait_event from pg_stat_activity where pid = {writer}");
        await_that("a commit that waits for the standby", SOON, || async {
            match admin.text(&sql).await.as_deref() {
                Some("SyncRep") => Ok(()),
                other => Err(format!("{other:?}")),
            }
        })
        .await;
        standby("").await;
    };
    let (written, ()) = tokio::join!(write, release);
    assert_eq!(written.unwrap(), Stored::Yes);
    let session: String = table
        .client()
        .query_one("SELECT pg_catalog.current_setting('synchronous_commit')", &[])
        .await
        .unwrap()
        .get(0);
    assert_eq!(session, "local", "the session's own setting stands again");
}
