//! `setup` on real servers.

use super::{OUTBOX, Pipeline, ROW};
use crate::await_that::{SOON, await_that};
use crate::server::{Version, unique};
use postrider::error::{Chain, HaltReason};
use postrider::postgres::control::Control;
use postrider::postgres::setup::{Options, SetupError, SetupProgress, StepKind, apply, plan};
use postrider::postgres::store::cursor::{self, CursorWrite};
use postrider::postgres::store::parked;
use std::io::Write;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};

fn halted(outcome: Result<postrider::postgres::setup::SetupPlan, SetupError>) -> HaltReason {
    match outcome {
        Err(SetupError::Halt(halt)) => halt.reason,
        other => panic!("not refused: {other:?}"),
    }
}

#[tokio::test]
async fn setup_makes_everything_once_and_the_fence_is_content() {
    for version in Version::ALL {
        let pipeline = Pipeline::bare(version, "setup_once").await;
        let options = Options { create_table: Some(OUTBOX), role: None, ..Options::default() };
        let done = pipeline.set_up(&options).await.unwrap();
        let kinds: Vec<StepKind> = done.steps.iter().map(|step| step.kind).collect();
        assert_eq!(
            kinds,
            [StepKind::Table, StepKind::Publication, StepKind::Schema, StepKind::Slot]
        );
        let again = pipeline.set_up(&options).await.unwrap();
        assert_eq!(again.steps, []);
        assert_eq!(again.adopted.len(), 5, "{:?}", again.adopted);

        let (_wal, identity) = pipeline.wal().await;
        let facts = pipeline.control.facts(&pipeline.ask(&identity)).await.unwrap();
        let slot = facts.slot.as_ref().unwrap();
        assert_eq!(slot.failover, version.major() >= 17);
        let cursor = facts.cursor.as_ref().unwrap();
        assert_eq!(Some(cursor.slot_created_lsn), slot.confirmed_flush_lsn);
        let resume = pipeline.resume().await;
        assert_eq!(resume.start, cursor.watermark);
        assert_eq!(resume.skip_before, None);
        assert!(!resume.adopt);
        let notes: Vec<&str> = resume.notes.iter().map(|note| note.name).collect();
        assert!(notes.iter().all(|name| *name == "old_minor"), "{notes:?}");
    }
}

fn psql(url: &str, sql: &str) {
    let mut child = Command::new(format!("{}/psql", Version::Pg15.variable("BIN")))
        .args(["-X", "-q", "-v", "ON_ERROR_STOP=1", "-f", "-", url])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("psql");
    child.stdin.take().expect("a pipe").write_all(sql.as_bytes()).expect("psql reads");
    let output = child.wait_with_output().expect("psql ends");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success() && said.is_empty(), "psql: {said}\n{sql}");
}

/// The role owns nothing, and everything the relay does works.
#[tokio::test]
async fn printed_sql_runs_in_psql_and_is_enough_for_the_role() {
    for version in Version::ALL {
        let pipeline = Pipeline::bare(version, "print_sql").await;
        let role = unique("relay");
        pipeline.sql(OUTBOX).await;
        pipeline.sql(&format!("create role {role} login")).await;
        let options = Options { create_table: None, role: Some(&role), ..Options::default() };
        let printed = plan(&pipeline.facts().await, &options).unwrap().to_string();
        psql(&pipeline.url, &printed);

        let url = pipeline.url.replace("postgres@", &format!("{role}@"));
        let control = Control::connect(&super::conninfo(&url), "postrider test").await.unwrap();
        let facts = control.facts(&pipeline.ask(&None)).await.unwrap();
        assert!(facts.server.replication);
        let plan = plan(&facts, &Options::default()).unwrap();
        assert_eq!(plan.steps, []);
        let resume = pipeline.resume().await;
        assert_eq!(
            cursor::write(control.client(), &resume.cursor, &cursor::SnapshotPolicy::Always)
                .await
                .unwrap(),
            CursorWrite::Stored
        );
        let name = &pipeline.names.key;
        let epoch = cursor::take_over(control.client(), name).await.unwrap();
        let stored = parked::write(control.client(), name, epoch, &[], &[]).await.unwrap();
        assert_eq!(stored, parked::Stored::Yes);
        assert_eq!(parked::requests(control.client(), name).await.unwrap(), []);
        control.client().query("SELECT id FROM public.outbox", &[]).await.unwrap();
        pipeline.sql(&format!("drop owned by {role} cascade; drop role {role}")).await;
    }
}

/// An installation of the first release: the relay refuses it with the line that mends it, and that line does.
#[tokio::test]
async fn a_schema_of_version_1_is_refused_by_the_fence_and_brought_forward_by_setup() {
    for version in [Version::Pg15, Version::Pg18] {
        let pipeline = Pipeline::ready(version, "setup_v1").await;
        let before = pipeline.facts().await.cursor.unwrap();
        pipeline
            .sql(
                "drop table postrider.parked; alter table postrider.cursor drop owner_epoch, drop shard; \
                 delete from postrider.migration where number > 1",
            )
            .await;
        let halt = pipeline.decide().await.unwrap_err();
        assert_eq!(halt.reason, HaltReason::SchemaUnfit);
        assert!(halt.message.contains("has version 1, 10 is needed"), "{}", halt.message);
        assert!(halt.hint.starts_with("postrider setup"), "{}", halt.hint);
        // The row is read all the same: a slot that is gone is a gap, also now.
        assert_eq!(pipeline.facts().await.cursor.as_ref(), Some(&before));

        let done = pipeline.set_up(&Options::default()).await.unwrap();
        let kinds: Vec<StepKind> = done.steps.iter().map(|step| step.kind).collect();
        assert_eq!(kinds, [StepKind::Schema]);
        assert_eq!(pipeline.resume().await.cursor, before);
        let client = pipeline.control.client();
        assert!(cursor::take_over(client, &pipeline.names.key).await.unwrap() > 0);
    }
}

/// A pipeline of before histories were kept: its positions stay what they were to consumers, until the server is
/// another.
#[tokio::test]
async fn a_row_of_version_4_is_of_history_0_and_a_new_row_of_no_timeline() {
    for version in [Version::Pg15, Version::Pg18] {
        let pipeline = Pipeline::ready(version, "setup_v4").await;
        let (name, client) = (&pipeline.names.key.pipeline, pipeline.control.client());
        let bound = async || {
            let sql = "select histories::text || ' ' || histories_from::text || ' ' \
                         || coalesce(history_system_identifier = system_identifier \
                              and history_timeline = timeline, false)::text \
                       from postrider.cursor where pipeline = $1";
            client.query_one(sql, &[name]).await.unwrap().get::<_, String>(0)
        };
        // A new one: the first start raises it, in the second of that start.
        let new = bound().await;
        assert!(new.ends_with(" {0/0} false") && !new.starts_with("{0}"), "{new}");
        pipeline
            .sql(
                "alter table postrider.cursor drop histories, drop histories_from, \
                   drop history_system_identifier, drop history_timeline; \
                 delete from postrider.migration where number > 4",
            )
            .await;
        pipeline.set_up(&Options::default()).await.unwrap();
        assert_eq!(bound().await, "{0} {0/0} true");
        // Once more, after a table was dropped: what was asked for meanwhile stays asked for.
        pipeline
            .sql(
                "update postrider.cursor set histories = '{7}', history_timeline = null; \
                 drop table postrider.replay",
            )
            .await;
        pipeline.set_up(&Options::default()).await.unwrap();
        assert_eq!(bound().await, "{7} {0/0} false");
    }
}

#[tokio::test]
async fn a_slot_and_a_publication_that_stand_are_adopted() {
    for version in Version::ALL {
        let pipeline = Pipeline::bare(version, "adopts").await;
        pipeline.sql(OUTBOX).await;
        pipeline.sql("create publication {publication} for table public.outbox").await;
        pipeline.sql("select pg_create_logical_replication_slot('{slot}', 'pgoutput')").await;
        pipeline.sql(ROW).await;
        let before = pipeline.facts().await.slot.unwrap().confirmed_flush_lsn;
        let done = pipeline.set_up(&Options::default()).await.unwrap();
        let kinds: Vec<StepKind> = done.steps.iter().map(|step| step.kind).collect();
        assert_eq!(kinds, [StepKind::Schema, StepKind::Cursor]);
        let facts = pipeline.facts().await;
        assert_eq!(facts.slot.as_ref().unwrap().confirmed_flush_lsn, before);
        assert_eq!(Some(facts.cursor.unwrap().watermark.offset()), before);
        let resume = pipeline.resume().await;
        assert!(resume.notes.iter().any(|note| note.name == "more_than_insert"));
    }
}

#[tokio::test]
async fn the_slot_waits_for_running_transactions_and_says_which() {
    for version in Version::ALL {
        let pipeline = Pipeline::bare(version, "waits").await;
        pipeline.sql(OUTBOX).await;
        let writer = pipeline.client().await;
        writer.batch("set application_name = 'slow import'; begin").await;
        writer.batch(ROW).await;
        let pid: u32 = writer.text("select pg_backend_pid()").await.unwrap().parse().unwrap();

        let seen = Arc::new(Mutex::new(Vec::new()));
        let sink = Arc::clone(&seen);
        let mut told = move |progress: SetupProgress<'_>| {
            if let SetupProgress::Waiting(blockers) = progress {
                sink.lock().unwrap().extend_from_slice(blockers);
            }
        };
        let ask = pipeline.ask(&None);
        let options = Options::default();
        let setup = apply(&pipeline.control, &pipeline.watch, &ask, &options, &mut told);
        let release = async {
            await_that("setup says what it waits for", SOON, || async {
                if seen.lock().unwrap().is_empty() { Err("nothing said") } else { Ok(()) }
            })
            .await;
            writer.batch("commit").await;
        };
        let (outcome, ()) = tokio::join!(setup, release);
        outcome.unwrap();
        let first = seen.lock().unwrap().first().cloned().unwrap();
        assert_eq!(first.pid, Some(pid));
        assert_eq!(first.name, "slow import");
        assert_eq!(first.state, "idle in transaction");
        assert!(first.xid.parse::<u32>().is_ok());
    }
}

#[tokio::test]
async fn a_prepared_transaction_is_named_as_what_is_waited_for() {
    let server =
        crate::private::PrivatePostgres::start(Version::Pg15, "max_prepared_transactions = 5")
            .await;
    let pipeline = Pipeline::on(&server.url(), "prepared").await;
    let client = pipeline.client().await;
    client.batch(OUTBOX).await;
    client.batch(&format!("begin; {ROW}; prepare transaction 'forgotten'")).await;
    let ask = pipeline.ask(&None);
    let seen = Arc::new(Mutex::new(None));
    let sink = Arc::clone(&seen);
    let mut told = move |progress: SetupProgress<'_>| {
        if let SetupProgress::Waiting([blocker, ..]) = progress {
            *sink.lock().unwrap() = Some(blocker.clone());
        }
    };
    let options = Options::default();
    let release = async {
        await_that("setup says what it waits for", SOON, || async {
            seen.lock().unwrap().clone().ok_or("nothing said")
        })
        .await;
        client.batch("commit prepared 'forgotten'").await;
    };
    let (outcome, ()) =
        tokio::join!(apply(&pipeline.control, &pipeline.watch, &ask, &options, &mut told), release);
    outcome.unwrap();
    let blocker = seen.lock().unwrap().clone().unwrap();
    assert_eq!((blocker.pid, &*blocker.name, &*blocker.state), (None, "forgotten", "prepared"));
}

#[tokio::test]
async fn a_slot_that_went_away_is_not_made_again_before_the_gap_is_accepted() {
    let pipeline = Pipeline::ready(Version::Pg18, "gap").await;
    pipeline.sql("select pg_drop_replication_slot('{slot}')").await;
    assert_eq!(halted(pipeline.set_up(&Options::default()).await), HaltReason::SlotMissing);
    pipeline.sql("delete from postrider.cursor where pipeline = '{pipeline}'").await;
    let done = pipeline.set_up(&Options::default()).await.unwrap();
    assert_eq!(done.steps.len(), 1);
    pipeline.resume().await;
}

#[tokio::test]
async fn what_setup_can_not_use_is_refused_and_left_alone() {
    let cases = [
        ("create table public.other (id int)", HaltReason::TableUnfit),
        (OUTBOX, HaltReason::TableUnfit),
    ];
    let pipeline = Pipeline::bare(Version::Pg17, "refused").await;
    assert_eq!(halted(pipeline.set_up(&Options::default()).await), cases[0].1);
    pipeline.sql(&OUTBOX.replace("payload", "body")).await;
    assert_eq!(halted(pipeline.set_up(&Options::default()).await), cases[1].1);
    pipeline.sql("alter table public.outbox rename body to payload").await;
    pipeline.sql("select pg_create_logical_replication_slot('{slot}', 'pgoutput')").await;
    assert_eq!(halted(pipeline.set_up(&Options::default()).await), HaltReason::PublicationMissing);
    let untouched = pipeline.facts().await;
    assert_eq!(untouched.schema, postrider::postgres::schema::SchemaState::Missing);
}

#[tokio::test]
async fn a_step_that_fails_names_itself_and_leaves_the_session_usable() {
    let pipeline = Pipeline::bare(Version::Pg15, "step_fails").await;
    let options = Options {
        create_table: Some("CREATE TABLE outbox (id nonsense)"),
        role: None,
        ..Options::default()
    };
    let error = pipeline.set_up(&options).await.unwrap_err();
    let said = Chain(&error).to_string();
    assert!(said.starts_with("could not create table \"public\".\"outbox\""), "{said}");
    assert!(said.contains("SQLSTATE 42704"), "{said}");
    let options = Options { create_table: Some(OUTBOX), role: None, ..Options::default() };
    pipeline.set_up(&options).await.unwrap();
}

/// Transactions that change the catalog while the slot finds its starting point. Joined with anything that reads a
/// table, `pg_create_logical_replication_slot` then fails with "relcache reference … is not owned" (measured on 15).
#[tokio::test]
async fn slot_is_made_while_tables_come_and_go() {
    for version in Version::ALL {
        let pipeline = Pipeline::bare(version, "setup_churn").await;
        pipeline.sql(OUTBOX).await;
        let churn = |number: usize| {
            let pipeline = &pipeline;
            async move {
                let client = pipeline.client().await;
                loop {
                    let table = format!("churn_{number}");
                    client
                        .batch(&format!(
                            "begin; create table {table} (a int); select pg_sleep(0.02); commit; \
                             drop table {table}"
                        ))
                        .await;
                }
            }
        };
        let set_up = async {
            for _ in 0..8 {
                pipeline.set_up(&Options::default()).await.expect("setup");
                let (slot, name) = (&pipeline.names.slot, &pipeline.names.key.pipeline);
                pipeline.sql(&format!("select pg_drop_replication_slot('{slot}')")).await;
                pipeline
                    .sql(&format!("delete from postrider.cursor where pipeline = '{name}'"))
                    .await;
            }
        };
        tokio::select! {
            () = set_up => {}
            () = churn(1) => {}
            () = churn(2) => {}
            () = churn(3) => {}
        }
    }
}
