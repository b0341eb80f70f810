//! The session: its lock, its end, what it hears, and that it is in nobody's way.

use super::*;
use crate::await_that::await_that;
use postrider::store::PipelineKey;

const ROWS: &str = "insert into outbox (aggregate_type, aggregate_id, event_type, payload)
    select 'order', n, 'x', '{}' from generate_series(1, 3) n";

#[tokio::test]
async fn writers_are_not_blocked_by_an_open_claim() {
    for version in VERSIONS {
        let outbox = Outbox::create(version, Layout::Postrider, "poll_writers").await;
        outbox.client.batch(ROWS).await;
        let mut poller = outbox.poller().await;
        let claim = poller.claim(2, None).await.unwrap();
        assert_eq!(claim.rows.len(), 2);
        // A wait for a lock would be an error.
        outbox.client.batch("set lock_timeout = '1ms'").await;
        outbox.client.batch(ROWS).await;
        outbox
            .client
            .batch(
                "update outbox set event_type = 'y' where id = 3; delete from outbox where id = 4",
            )
            .await;
        published(&mut poller, claim).await;
        assert_eq!(outbox.drain(&mut poller, 10).await.len(), 3);
    }
}

#[tokio::test]
async fn a_session_that_dies_before_settling_marks_nothing() {
    for version in VERSIONS {
        let outbox = Outbox::create(version, Layout::Postrider, "poll_dies").await;
        outbox.client.batch(ROWS).await;
        let mut poller = outbox.poller().await;
        let claim = poller.claim(10, None).await.unwrap();
        assert_eq!(claim.rows.len(), 3);
        let kill = "select pg_terminate_backend(pid) from pg_stat_activity where application_name = 'postrider poll'
            and datname = current_database()";
        outbox.client.batch(kill).await;
        let outcomes = vec![RowOutcome::Published; 3];
        let refused = poller.settle(claim, &outcomes).await.unwrap_err();
        let end = tokio::time::timeout(DEADLINE, poller.closed()).await.unwrap();
        // Whoever was waiting when the server's last word came has it.
        let told = [&refused, &end].map(|error| error.sqlstate().map(|state| state.to_string()));
        assert!(told.contains(&Some("57P01".to_owned())), "{refused}; {end}");
        drop(poller);
        let mut poller = taken_over(&outbox).await;
        assert_eq!(outbox.drain(&mut poller, 10).await, ["1/1", "2/2", "3/3"]);
    }
}

/// What is published is committed, the others stay locked; a row that is gone or another version can't stay.
#[tokio::test]
async fn claim_is_settled_in_part_and_keeps_its_other_rows_locked() {
    for version in VERSIONS {
        let outbox = Outbox::create(version, Layout::Postrider, "poll_part").await;
        outbox.client.batch(ROWS).await;
        let mut poller = outbox.poller().await;
        let claim = poller.claim(10, None).await.unwrap();
        let part = [RowOutcome::Published, RowOutcome::Held, RowOutcome::Held];
        assert!(poller.settle_part(&claim, &part, &[1, 2]).await.unwrap());
        let left = "select count(*)::text from outbox";
        assert_eq!(outbox.client.text(left).await.as_deref(), Some("2"));
        let free = "select count(*)::text from (select from outbox for update skip locked) f";
        assert_eq!(outbox.client.text(free).await.as_deref(), Some("0"));
        let rest = [RowOutcome::Held, RowOutcome::Published, RowOutcome::Published];
        poller.settle(claim, &rest).await.unwrap();
        assert_eq!(outbox.client.text(left).await.as_deref(), Some("0"));

        outbox.client.batch(ROWS).await;
        let claim = poller.claim(10, None).await.unwrap();
        assert!(!poller.settle_part(&claim, &part, &[0, 1, 2]).await.unwrap(), "the first is gone");
        poller.abandon().await.unwrap();
        assert_eq!(outbox.drain(&mut poller, 10).await, ["2/5", "3/6"]);
    }
}

#[tokio::test]
async fn what_is_given_up_is_claimed_again() {
    let outbox = Outbox::create(Version::Pg18, Layout::Postrider, "poll_given_up").await;
    outbox.client.batch(ROWS).await;
    let mut poller = outbox.poller().await;
    drop(poller.claim(10, None).await.unwrap());
    assert_eq!(
        poller.claim(10, None).await.unwrap().rows.len(),
        3,
        "the next claim ends the one before"
    );
    poller.abandon().await.unwrap();
    outbox.client.batch("select from outbox for update nowait").await;
    assert_eq!(outbox.drain(&mut poller, 10).await.len(), 3);
}

#[tokio::test]
async fn a_claims_transaction_takes_rows_that_are_parked() {
    let outbox = Outbox::create(Version::Pg15, Layout::Postrider, "poll_parked").await;
    outbox.client.batch(ROWS).await;
    outbox.client.batch("create table parked (id int)").await;
    let mut poller = outbox.poller().await;
    let claim = poller.claim(10, None).await.unwrap();
    poller.client().batch_execute("insert into public.parked values (1)").await.unwrap();
    poller.abandon().await.unwrap();
    drop(claim);
    assert_eq!(outbox.client.text("select count(*) from parked").await.as_deref(), Some("0"));
    let claim = poller.claim(10, None).await.unwrap();
    poller.client().batch_execute("insert into public.parked values (1)").await.unwrap();
    poller
        .settle(claim, &[RowOutcome::Moved, RowOutcome::Published, RowOutcome::Held])
        .await
        .unwrap();
    assert_eq!(outbox.client.text("select count(*) from parked").await.as_deref(), Some("1"));
    assert_eq!(
        outbox.client.text("select string_agg(id::text, ' ') from outbox").await.as_deref(),
        Some("3")
    );
}

async fn taken_over(outbox: &Outbox) -> Box<Poller> {
    await_that("the lock to be free", DEADLINE, || async {
        match outbox.open().await.map_err(|error| error.to_string())? {
            Opened::Polling(poller) => Ok(poller),
            Opened::StandBy { pid } => Err(format!("{pid:?} polls")),
        }
    })
    .await
}

#[tokio::test]
async fn a_second_poller_stands_by_and_takes_over() {
    for version in VERSIONS {
        let mut outbox = Outbox::create(version, Layout::Postrider, "poll_two").await;
        let poller = outbox.poller().await;
        let pid = poller
            .client()
            .query_one("select pg_backend_pid()", &[])
            .await
            .unwrap()
            .get::<_, i32>(0);
        match outbox.open().await.unwrap() {
            Opened::StandBy { pid: holder } => assert_eq!(holder, Some(pid.cast_unsigned())),
            Opened::Polling(_) => panic!("two poll"),
        }
        outbox.spec.key = PipelineKey::first("another");
        drop(outbox.poller().await);
        outbox.spec.key = PipelineKey::first("orders");
        drop(poller);
        drop(taken_over(&outbox).await);
    }
}

#[tokio::test]
async fn an_insert_wakes_the_poller_where_the_trigger_is() {
    for version in VERSIONS {
        let outbox = Outbox::create(version, Layout::Postrider, "poll_wakes").await;
        let mut poller = outbox.poller().await;
        outbox.client.batch(ROWS).await;
        assert_eq!(outbox.drain(&mut poller, 10).await.len(), 3);
        let sql = postrider::postgres::setup::notify_sql(&outbox.spec.table);
        outbox.client.batch("create schema postrider").await;
        outbox.client.batch(&sql).await;
        outbox.client.batch(&sql).await;
        outbox.client.batch(ROWS).await;
        tokio::time::timeout(DEADLINE, poller.notified()).await.expect("it hears of the rows");
        let claim = poller.claim(10, None).await.unwrap();
        outbox.client.batch(ROWS).await;
        published(&mut poller, claim).await;
        let wake = poller.wake();
        let woken = async {
            tokio::select! {
                () = wake.notified() => {}
                end = poller.closed() => panic!("{end}"),
            }
        };
        tokio::time::timeout(DEADLINE, woken).await.expect("it hears of what came meanwhile");
        outbox.client.batch(&postrider::postgres::setup::notify_undo_sql(&outbox.spec.table)).await;
        outbox.client.batch(ROWS).await;
        assert_eq!(outbox.drain(&mut poller, 10).await.len(), 6);
    }
}

#[tokio::test]
async fn a_trigger_that_undoes_the_marks_is_told() {
    let outbox = Outbox::create(Version::Pg18, Layout::Adr30, "poll_undone").await;
    let sql = "insert into outbox (aggregate_type, aggregate_id, event_type, payload)
            values ('a', gen_random_uuid(), 'x', '{}');
        create function nothing() returns trigger language plpgsql as 'begin return null; end';
        create trigger undo before update on outbox for each row execute function nothing()";
    outbox.client.batch(sql).await;
    let mut poller = outbox.poller().await;
    let claim = poller.claim(10, None).await.unwrap();
    let error = poller.settle(claim, &[RowOutcome::Published]).await.unwrap_err();
    assert_eq!(error.sqlstate().unwrap().as_str(), "09000", "{error}");
    assert!(error.to_string().contains("0 of 1 rows took their mark"), "{error}");
}

#[tokio::test]
async fn a_role_needs_to_read_update_and_delete_and_nothing_else() {
    let mut outbox = Outbox::create(Version::Pg15, Layout::Postrider, "poll_role").await;
    outbox.client.batch(ROWS).await;
    let role = crate::server::unique("poll_role");
    outbox
        .client
        .batch(&format!(
            "create role {role} login; grant select, update, delete on outbox to {role}"
        ))
        .await;
    let url = outbox.database.url().replace("postgres@", &format!("{role}@"));
    let conninfo = Conninfo::parse(&url, &|_| None).unwrap();
    let Opened::Polling(mut poller) =
        Poller::open(&conninfo, "postrider poll", &outbox.spec).await.unwrap()
    else {
        panic!("another polls");
    };
    assert_eq!(outbox.drain(&mut poller, 10).await.len(), 3);
    drop(poller);
    outbox.client.batch(&format!("revoke all on outbox from {role}")).await;
    outbox.spec.key = PipelineKey::first("another");
    let Opened::Polling(mut poller) =
        Poller::open(&conninfo, "postrider poll", &outbox.spec).await.unwrap()
    else {
        panic!("another polls");
    };
    let error = poller.claim(10, None).await.unwrap_err();
    assert_eq!(error.sqlstate().unwrap().as_str(), "42501", "{error}");
    drop(poller);
    outbox.client.batch(&format!("drop role {role}")).await;
}
