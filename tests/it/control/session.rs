//! The control session and its end.

use super::Pipeline;
use crate::await_that::SOON;
use crate::private::PrivatePostgres;
use crate::server::Version;
use postrider::postgres::control::Control;
use postrider::postgres::{SourceErrorKind, SqlState};
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
