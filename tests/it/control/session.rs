//! The control session and its end.

use super::Pipeline;
use crate::await_that::{SOON, await_that};
use crate::private::PrivatePostgres;
use crate::server::{Database, Version};
use postrider::postgres::control::Control;
use postrider::postgres::{SourceErrorKind, SqlState, connect_client};
use std::time::Duration;

#[tokio::test]
async fn a_server_that_stops_is_told_with_its_sqlstate() {
    for version in Version::ALL {
        let mut server = PrivatePostgres::start(version, "").await;
        let conninfo = super::conninfo(&server.url());
        let mut control = Control::connect(&conninfo, "postrider").await.unwrap();
        let early = tokio::time::timeout(Duration::from_millis(50), control.closed()).await;
        assert!(early.is_err(), "ended early: {early:?}");
        let took = server.stop_fast(SOON).await;
        let error = tokio::time::timeout(SOON, control.closed()).await.unwrap();
        assert_eq!(error.sqlstate(), Some(SqlState::ADMIN_SHUTDOWN), "{error} after {took:?}");
        let again = control.closed().await;
        assert_eq!(again.kind(), &SourceErrorKind::Closed);
    }
}

/// The writer of `postrider demo` waited for ever when its server was restarted between two of its transactions.
#[tokio::test]
async fn statement_behind_the_end_of_its_connection_fails_and_does_not_wait() {
    let database = Database::create(Version::Pg18, "ended").await;
    let conninfo = super::conninfo(&database.url());
    let (client, connection) = connect_client(&conninfo, "it").await.unwrap();
    let (other, others) = connect_client(&conninfo, "it").await.unwrap();
    let mut beside = tokio::task::JoinSet::new();
    beside.spawn(others);
    let mut connection = std::pin::pin!(connection);
    let asked = client.query_one("select pg_backend_pid()", &[]);
    let pid: i32 = tokio::select! {
        row = asked => row.unwrap().get(0),
        ended = &mut connection => panic!("{ended:?}"),
    };
    other.execute("select pg_terminate_backend($1)", &[&pid]).await.unwrap();
    await_that("its end", SOON, || async {
        let left = "select count(*) from pg_stat_activity where pid = $1";
        let left: i64 = other.query_one(left, &[&pid]).await.unwrap().get(0);
        if left == 0 { Ok(()) } else { Err("it is there") }
    })
    .await;
    // The statement is made, and the connection, which has it yet to send, reads of its end.
    let both = async { tokio::join!(client.batch_execute("begin"), &mut connection) };
    let (begin, ended) = tokio::time::timeout(Duration::from_secs(20), both).await.unwrap();
    assert_eq!(ended.unwrap_err().sqlstate(), Some(SqlState::ADMIN_SHUTDOWN));
    assert!(begin.is_err());
}

#[tokio::test]
async fn the_session_is_pinned_whatever_the_role_has_set() {
    let pipeline = Pipeline::bare(Version::Pg18, "pinned").await;
    let name = &pipeline.database.as_ref().unwrap().name;
    pipeline
        .sql(&format!(
            "alter database {name} set search_path = public; \
             alter database {name} set synchronous_commit = off; \
             alter database {name} set lock_timeout = 1; \
             alter database {name} set default_transaction_read_only = off"
        ))
        .await;
    let control = Control::connect(&pipeline.conninfo, "postrider test").await.unwrap();
    for (setting, value) in [
        ("search_path", ""),
        ("synchronous_commit", "local"),
        ("lock_timeout", "5s"),
        ("statement_timeout", "30s"),
        ("application_name", "postrider test"),
    ] {
        let sql = format!("SELECT pg_catalog.current_setting('{setting}')");
        let row = control.client().query_one(&sql, &[]).await.unwrap();
        let shown: &str = row.get(0);
        assert_eq!(shown.trim_matches('"'), value, "{setting}");
    }
}

#[tokio::test]
async fn a_dropped_session_leaves_the_server() {
    let pipeline = Pipeline::bare(Version::Pg15, "leaves").await;
    let Pipeline { control, watch, database, .. } = pipeline;
    let database = database.unwrap();
    drop(control);
    let count = format!(
        "select count(*) from pg_stat_activity where application_name = 'postrider test' \
         and datname = '{}'",
        database.name
    );
    let client = database.connect().await;
    crate::await_that::await_that("the session has gone", SOON, || async {
        match client.text(&count).await.as_deref() {
            Some("0") => Ok(()),
            seen => Err(format!("{seen:?} sessions")),
        }
    })
    .await;
    drop(watch);
}
