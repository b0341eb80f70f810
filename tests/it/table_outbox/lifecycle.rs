//! Enabling and disabling beside sessions that write, a dump that is restored, and a pooler.

use super::{ORDERS, TableDatabase};
use crate::await_that::{SOON, await_that};
use crate::groups::{number, rows};
use crate::private::PrivatePooler;
use crate::server::{Client, Database, Version};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use tokio::task::JoinSet;

/// The SQLSTATE of a statement, if it fails.
async fn state(sql: &Client, statement: &str) -> Result<(), String> {
    let answer = sql.simple_query(statement).await;
    answer.map(drop).map_err(|error| error.code().expect("a SQLSTATE").code().to_owned())
}

/// Repeats a statement as long as it does not get its locks.
async fn until_locked(sql: &Client, statement: &str) -> Result<(), String> {
    await_that(statement, SOON, || async {
        match state(sql, statement).await {
            Err(waited) if waited == "55P03" => Err("it waits for a lock"),
            other => Ok(other),
        }
    })
    .await
}

const ENABLE: &str = "select postrider.enable_outbox('orders')";

#[tokio::test]
async fn of_two_sessions_that_enable_one_outbox_one_is_refused() {
    for version in [Version::Pg15, Version::Pg18] {
        let world = TableDatabase::create(version, "tbl_race").await;
        world.sql.batch(ORDERS).await;
        let other = world.database.connect().await;
        let pid = number(&other, "select pg_backend_pid()").await;
        world.sql.batch(&format!("begin; {ENABLE}")).await;
        let mut call = JoinSet::new();
        call.spawn(async move {
            let answer = state(&other, ENABLE).await;
            (other, answer)
        });
        let look = world.database.connect().await;
        let blocked = format!("select cardinality(pg_blocking_pids({pid}))");
        let answered = format!(
            "select count(*) from pg_stat_activity where pid = {pid} and state = 'idle' \
            and query = '{}'",
            ENABLE.replace('\'', "''")
        );
        await_that("the second call to wait", SOON, || async {
            let seen = number(&look, &blocked).await + number(&look, &answered).await;
            if seen > 0 { Ok(()) } else { Err("it waits for nobody") }
        })
        .await;
        world.sql.batch("commit").await;
        let (other, answer) = call.join_next().await.expect("the call").expect("its end");
        let answer = match answer {
            // The first session was too slow.
            Err(waited) if waited == "55P03" => until_locked(&other, ENABLE).await,
            answer => answer,
        };
        assert_eq!(answer, Err("PR130".to_owned()));
        world.sql.batch("insert into orders values (1)").await;
        assert_eq!(world.lines("outbox_orders").await, ["INSERT +1 -0"]);
    }
}

/// Writers of a table whose outbox is enabled and disabled under them.
#[tokio::test]
async fn writers_see_no_error_while_the_outbox_is_enabled_and_disabled() {
    for version in [Version::Pg15, Version::Pg18] {
        let world = TableDatabase::create(version, "tbl_churn").await;
        world.sql.batch(ORDERS).await;
        let (stop, written) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let mut writers = JoinSet::new();
        for writer in 0..3 {
            let sql = world.database.connect().await;
            let (stop, written) = (Arc::clone(&stop), Arc::clone(&written));
            writers.spawn(async move {
                let insert = "insert into orders values ($1, 1, 'x')";
                let insert = sql.prepare(insert).await.expect("a statement");
                for i in (writer..).step_by(3) {
                    sql.execute(&insert, &[&i]).await.expect("an insert");
                    let change = format!(
                        "begin; update orders set note = 'y' where id = {i}; \
                         delete from orders where id = {i} - 30; commit"
                    );
                    sql.simple_query(&change).await.expect("a transaction");
                    written.fetch_add(1, Ordering::Relaxed);
                    if stop.load(Ordering::Relaxed) {
                        return;
                    }
                }
            });
        }
        for _ in 0..8 {
            assert_eq!(until_locked(&world.sql, ENABLE).await, Ok(()));
            let now = written.load(Ordering::Relaxed);
            await_that("the writers to write", SOON, || async {
                if written.load(Ordering::Relaxed) > now + 10 { Ok(()) } else { Err("not yet") }
            })
            .await;
            // What was captured is whole: each row of the table is the last one of its key in the documents.
            let disable = "select postrider.disable_outbox('orders', p_discard => true)";
            assert_eq!(until_locked(&world.sql, disable).await, Ok(()));
        }
        stop.store(true, Ordering::Relaxed);
        while let Some(writer) = writers.join_next().await {
            writer.expect("a writer without an error");
        }
        assert_eq!(
            world.number("select count(*) from pg_trigger where tgname like 'postrider%'").await,
            0
        );
    }
}

const DISABLE: &str = "select postrider.disable_outbox('orders')";

/// A transaction that writes, or has read the table and writes then, is open when the outbox is disabled. Its event is
/// counted: the outbox stays. Neither of the two sessions ends in a deadlock.
#[tokio::test]
async fn change_that_is_committed_while_the_outbox_is_disabled_is_not_dropped() {
    for version in [Version::Pg15, Version::Pg18] {
        for begins in ["insert into orders values (1)", "select from orders"] {
            let world = TableDatabase::with_orders(version, "tbl_disabled", "").await;
            let (writer, other) = (world.database.connect().await, world.database.connect().await);
            let pid = number(&other, "select pg_backend_pid()").await;
            writer.batch(&format!("begin; {begins}")).await;
            let mut call = JoinSet::new();
            call.spawn(async move {
                let answer = state(&other, DISABLE).await;
                (other, answer)
            });
            let waits = format!("select cardinality(pg_blocking_pids({pid}))");
            await_that("the call to wait", SOON, || async {
                let waits = world.number(&waits).await;
                if waits > 0 { Ok(()) } else { Err("it waits for nobody") }
            })
            .await;
            assert_eq!(state(&writer, "insert into orders values (2)").await, Ok(()), "{begins}");
            assert_eq!(state(&writer, "commit").await, Ok(()));
            let (other, answer) = call.join_next().await.expect("the call").expect("its end");
            let answer = match answer {
                // The writer was too slow.
                Err(waited) if waited == "55P03" => until_locked(&other, DISABLE).await,
                answer => answer,
            };
            assert_eq!(answer, Err("PR132".to_owned()), "{begins}");
            let events = if begins.starts_with("insert") { 2 } else { 1 };
            assert_eq!(world.lines("outbox_orders").await, vec!["INSERT +1 -0"; events]);
        }
    }
}

/// Rows by their ids, as a consumer keeps them that is given each change exactly once.
#[derive(PartialEq, Debug)]
struct ExactCopy(BTreeMap<i64, Value>);

impl ExactCopy {
    async fn of(sql: &Client, table: &str) -> Self {
        let list = rows(sql, &format!("select id, row_to_json(t.*) from {table} t")).await;
        let whole = |cell: Option<&str>| cell.expect("a value").parse().expect("a number");
        let row = |row: &Vec<Option<String>>| (whole(row[0].as_deref()), json(row[1].as_deref()));
        Self(list.iter().map(row).collect())
    }

    /// Takes all events out of the outbox, and applies them. A row that is there already, or is not as the event has
    /// it, is a failure.
    async fn take(&mut self, sql: &Client) {
        let take = "with taken as (delete from postrider_outbox.outbox_orders returning id, payload) \
                    select payload from taken order by id";
        for event in rows(sql, take).await {
            let document = json(event[0].as_deref());
            for row in document["deleted"].as_array().expect("rows") {
                let before = self.0.remove(&row["id"].as_i64().expect("an id"));
                assert_eq!(before.as_ref(), Some(row), "lost or changed before: {document}");
            }
            for row in document["inserted"].as_array().expect("rows") {
                let before = self.0.insert(row["id"].as_i64().expect("an id"), row.clone());
                assert_eq!(before, None, "recorded twice: {document}");
            }
        }
    }
}

fn json(cell: Option<&str>) -> Value {
    serde_json::from_str(cell.expect("a value")).expect("JSON")
}

/// Transactions of one writer: rows that are inserted, updated in the same transaction and in a later one, and deleted.
async fn write(sql: Client, writer: i64, round: i64) {
    for number in 0..20 {
        let id = (round * 20 + number) * 3 + writer;
        let change = format!(
            "begin; insert into orders values ({id}, {number}, 'new'); \
             update orders set note = 'changed' where id in ({id}, {id} - 6); \
             delete from orders where id = {id} - 12; commit"
        );
        sql.simple_query(&change).await.expect("a transaction");
    }
}

/// An outbox without events is disabled among transactions of writers. What a consumer has then, from the copy at the
/// beginning of the capture and from the events, is the table at its end.
#[tokio::test]
async fn no_change_is_lost_or_recorded_twice_between_enabling_and_disabling_beside_writers() {
    for version in [Version::Pg15, Version::Pg18] {
        let world = TableDatabase::create(version, "tbl_exact").await;
        let sql = &world.sql;
        sql.batch(ORDERS).await;
        for round in 0..8 {
            let mut writers = JoinSet::new();
            for writer in 0..3 {
                writers.spawn(write(world.database.connect().await, writer, round));
            }
            let enable = format!(
                "rollback; begin; {ENABLE}; create table first as select * from orders; commit"
            );
            until_locked(sql, &enable).await.expect("the copy");
            let mut copy = ExactCopy::of(sql, "first").await;
            let disable = format!(
                "rollback; begin; {DISABLE}; create table last as select * from orders; commit"
            );
            loop {
                copy.take(sql).await;
                match state(sql, &disable).await {
                    Ok(()) => break,
                    Err(refused) => {
                        assert!(["PR132", "55P03"].contains(&&*refused), "{refused}");
                        sql.batch("rollback").await;
                    }
                }
            }
            assert_eq!(copy, ExactCopy::of(sql, "last").await, "round {round}");
            sql.batch("drop table first, last").await;
            while let Some(writer) = writers.join_next().await {
                writer.expect("a writer without an error");
            }
        }
    }
}

/// The lock is given up before writers have waited for long, and nothing has changed then.
#[tokio::test]
async fn disabling_beside_an_open_transaction_gives_up_and_the_capture_goes_on() {
    let world = TableDatabase::with_orders(Version::Pg17, "tbl_held", "").await;
    let holder = world.database.connect().await;
    holder.batch("begin; insert into orders values (1)").await;
    let disable = "select postrider.disable_outbox('orders', p_discard => true)";
    assert_eq!(state(&world.sql, disable).await, Err("55P03".to_owned()));
    assert_eq!(state(&world.sql, "select postrider.outbox_refresh('orders')").await, Ok(()));
    holder.batch("commit").await;
    world.sql.batch("insert into orders values (2)").await;
    assert_eq!(world.lines("outbox_orders").await, ["INSERT +1 -0", "INSERT +1 -0"]);
    assert_eq!(world.refused("disable_outbox('orders')").await, "PR132", "it has events");
    assert_eq!(world.refused("disable_outbox('orders', true)").await, "PR132", "it has events");
    world.sql.batch("delete from postrider_outbox.outbox_orders").await;
    world.sql.batch("select postrider.disable_outbox('orders')").await;
}

/// A first copy in the transaction that enables the outbox, and the events after it, are the table.
#[tokio::test]
async fn a_copy_in_the_transaction_that_enables_misses_no_row_and_has_none_twice() {
    let world = TableDatabase::create(Version::Pg18, "tbl_copy").await;
    world.sql.batch(ORDERS).await;
    let (stop, writer) = (Arc::new(AtomicBool::new(false)), world.database.connect().await);
    let stopped = Arc::clone(&stop);
    let mut writers = JoinSet::new();
    writers.spawn(async move {
        for i in 1.. {
            writer.batch(&format!("insert into orders values ({i})")).await;
            if stopped.load(Ordering::Relaxed) {
                return;
            }
        }
    });
    let rows = "select count(*) from orders";
    await_that("rows before the copy", SOON, || async {
        if world.number(rows).await > 20 { Ok(()) } else { Err("not yet") }
    })
    .await;
    until_locked(
        &world.sql,
        "rollback; begin; select postrider.enable_outbox('orders'); \
         create table copied as select id from orders; commit",
    )
    .await
    .expect("the copy");
    let events = "select count(*) from postrider_outbox.outbox_orders";
    await_that("events after the copy", SOON, || async {
        if world.number(events).await > 20 { Ok(()) } else { Err("not yet") }
    })
    .await;
    stop.store(true, Ordering::Relaxed);
    writers.join_next().await.expect("the writer").expect("its end");
    let all = "with every as (select id from copied union all \
          select (payload #>> '{inserted,0,id}')::int from postrider_outbox.outbox_orders) \
        select (select count(*) from every) || ' ' || (select count(distinct id) from every)";
    let rows = world.number(rows).await;
    assert_eq!(world.sql.text(all).await, Some(format!("{rows} {rows}")));
}

fn ran(command: &mut Command) {
    let output = command.output().expect("a program of PostgreSQL");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
}

#[tokio::test]
async fn a_restored_dump_captures_on_and_one_without_rows_says_what_is_missing() {
    let world =
        TableDatabase::with_orders(Version::Pg15, "tbl_dump", ", p_inline_threshold_rows => 1")
            .await;
    world.sql.batch("insert into orders values (1); insert into orders values (2), (3)").await;
    let bin = PathBuf::from(Version::Pg15.variable("BIN"));
    let dir = tempfile::TempDir::new().expect("a directory");
    for what in ["", "--schema-only"] {
        let file = dir.path().join("dump.sql");
        let mut dump = Command::new(bin.join("pg_dump"));
        dump.args(["-d", &world.database.url(), "-f"]).arg(&file);
        if !what.is_empty() {
            dump.arg(what);
        }
        ran(&mut dump);
        let restored = Database::create(Version::Pg15, "tbl_restored").await;
        ran(Command::new(bin.join("psql"))
            .args(["-X", "-q", "-v", "ON_ERROR_STOP=1", "-o", "/dev/null", "-f"])
            .arg(&file)
            .arg(restored.url()));
        let sql = restored.connect().await;
        sql.batch("insert into orders values (4)").await;
        let events = number(&sql, "select count(*) from postrider_outbox.outbox_orders").await;
        if what.is_empty() {
            assert_eq!(events, 3, "the two of before, and the new one");
            let ask = "select postrider.outbox_status('orders') ->> 'claim_check_pending_count'";
            assert_eq!(sql.text(ask).await.as_deref(), Some("1"));
            sql.batch("select postrider.disable_outbox('orders', p_discard => true)").await;
            sql.batch(ENABLE).await;
        } else {
            assert_eq!(events, 1);
            let error = sql.simple_query(ENABLE).await.expect_err("its triggers are there");
            let error = error.as_db_error().expect("the server's");
            assert_eq!(error.code().code(), "PR130");
            assert!(
                error.hint().is_some_and(|hint| hint.contains("postrider.table_outbox")),
                "{error:?}"
            );
        }
    }
}

/// What a transaction leaves in the session of a pooler is nothing that the next one sees.
#[tokio::test]
async fn writers_through_a_pooler_in_transaction_mode_are_captured() {
    let world = TableDatabase::create(Version::Pg17, "tbl_pooler").await;
    world
        .sql
        .batch(
            "create table m (id int, day int) partition by range (day); \
             create table m1 partition of m for values from (0) to (10); select postrider.enable_outbox('m')",
        )
        .await;
    let pooler = PrivatePooler::in_transaction_mode(1).await;
    let url = pooler.url(&world.database.name);
    let (one, two) = (
        Client::connect(&url).await.expect("a session"),
        Client::connect(&url).await.expect("a session"),
    );
    one.batch("set timezone = 'Asia/Kolkata'; insert into m values (1, 1)").await;
    two.batch("insert into m1 values (2, 2)").await;
    one.batch("begin; truncate m; insert into m values (3, 3); commit").await;
    // The same session of the server has just truncated the whole table, in another transaction.
    assert_eq!(state(&two, "truncate m1").await, Err("0A000".to_owned()));
    two.batch("begin; delete from m1; savepoint s; truncate m; rollback to s; commit").await;
    assert_eq!(
        world.lines("outbox_m").await,
        ["INSERT +1 -0", "INSERT +1 -0", "TRUNCATE +0 -0", "INSERT +1 -0", "DELETE +0 -1"]
    );
    drop((one, two));
    pooler.stop().await;
}
