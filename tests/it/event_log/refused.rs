//! What a log refuses, and what the pipeline does about it.

use super::*;
use crate::answers::{Answer, answer_alone};
use crate::halted::{halt_of, run_to_halt, spawn};
use crate::private::PrivatePostgres;
use crate::relay::{postrider, postrider_ok};
use crate::stream::published;
use std::path::Path;
use std::process::Command;

/// A role that may log in, and has the rights of a relay in both databases.
async fn relay_role(pipeline: &LogPipeline) -> String {
    let role = unique("log_role");
    pipeline.sql.batch(&format!("create role {role} login replication")).await;
    role
}

async fn drop_role(pipeline: &LogPipeline, role: &str) {
    for sql in [&pipeline.log, &pipeline.sql] {
        sql.batch(&format!("drop owned by {role} cascade")).await;
    }
    pipeline.sql.batch(&format!("drop role {role}")).await;
}

/// As with a missing topic: events of a missing log are parked, those of others are published, and when the log exists
/// the parked ones are published too.
#[tokio::test]
async fn events_of_a_log_that_does_not_exist_are_parked_until_it_exists() {
    let pipeline = LogPipeline::shared(Version::Pg17, "log_missing", LogAt::Other, "").await;
    let config = pipeline.config.replace("topic = \"orders\"", "topic = \"{aggregate_type}\"");
    let config = format!(
        "{config}[pipelines.{}.parking.backoff]\nstep = \"100ms\"\nsteps_max = 1\n",
        pipeline.name
    );
    pipeline.log.batch("select postrider.create_log('orders', 4, 1000)").await;
    let relay = spawn(&config);
    let row = |log: &str| {
        format!(
            "insert into outbox (aggregate_type, aggregate_id, event_type, payload) \
             values ('{log}', '1', 'T', '{{}}')"
        )
    };
    pipeline.sql.batch(&row("orders")).await;
    pipeline.await_count("orders", 1).await;
    pipeline.sql.batch(&row("nosuch")).await;
    pipeline.sql.batch(&row("orders")).await;
    pipeline.await_count("orders", 2).await;
    let hint = "postrider.create_log('nosuch')";
    relay.await_log(hint, SOON).await;
    answer_alone("an event log that does not exist", Answer::logged(&relay.stderr(), hint));
    let parked = "select string_agg(distinct error_code, ',') from postrider.parked";
    await_that("the event to be parked", SOON, || async {
        match pipeline.sql.text(parked).await.as_deref() {
            Some("topic_missing") => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await;
    pipeline.log.batch("select postrider.create_log('nosuch', 4, 1000)").await;
    pipeline.await_count("nosuch", 1).await;
    pipeline.resolved().await;
    let rest = "select count(*)::text from postrider.parked where resolved_at is null";
    await_that("nothing to be parked", SOON, || async {
        match pipeline.sql.text(rest).await.as_deref() {
            Some("0") => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await;
    relay.terminate(SOON).await;
}

/// A payload that is too large is parked, later events of its aggregate wait, and a retry after the limit was raised
/// publishes both, each once.
#[tokio::test]
async fn an_event_that_is_too_large_is_parked_and_its_retry_is_published_once() {
    let pipeline = LogPipeline::shared(Version::Pg16, "log_large", LogAt::Other, CREATE).await;
    let limit = |bytes: &str| {
        format!(
            "{}[pipelines.{}.payload]\nsize_max = \"{bytes}\"\n",
            pipeline.config, pipeline.name
        )
    };
    let relay = Relay::spawn(&limit("1KiB"));
    pipeline
        .sql
        .batch(
            "insert into outbox (aggregate_type, aggregate_id, event_type, payload) values \
               ('order', '1', 'T', to_json(repeat('x', 2000))), ('order', '1', 'T', '1'), ('order', '2', 'T', '2')",
        )
        .await;
    pipeline.await_count("orders", 1).await;
    let parked = "select count(*) || ' ' || string_agg(distinct coalesce(error_code, '-'), ',') from postrider.parked";
    await_that("two parked events", SOON, || async {
        match pipeline.sql.text(parked).await {
            Some(found) if found.starts_with("2 ") => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await;
    let why = "select error from postrider.parked where error is not null";
    let why = pipeline.sql.text(why).await.expect("the reason");
    answer_alone(
        "an event that is larger than payload.size_max, for a log",
        Answer::said(&why, "", "").then("goes on"),
    );
    relay.terminate(SOON).await;
    let config = limit("10KiB");
    let relay = Relay::spawn(&config);
    relay.await_state("streaming", SOON).await;
    postrider_ok(&config, &["parked", "retry", "--aggregate", "order:1", "--yes"]);
    pipeline.await_count("orders", 3).await;
    let order = "select string_agg(length(payload)::text, ',' order by seq) from postrider_log.log_orders \
                 where aggregate_id = '1'";
    assert_eq!(pipeline.log.text(order).await.unwrap(), "2002,1");
    pipeline.resolved().await;
    relay.kill().await;
    let relay = Relay::spawn(&config);
    pipeline.insert(1).await;
    pipeline.await_count("orders", 4).await;
    assert_counted(&pipeline.log, "orders").await;
    relay.terminate(SOON).await;
}

/// A bytea that is no text: PostgreSQL could not store it as one.
#[tokio::test]
async fn a_payload_that_is_not_utf8_is_parked() {
    let pipeline = LogPipeline::shared(Version::Pg18, "log_bytes", LogAt::Source, CREATE).await;
    pipeline.sql.batch("alter table outbox alter payload type bytea using null").await;
    let relay = pipeline.run();
    pipeline
        .sql
        .batch(
            "insert into outbox (aggregate_type, aggregate_id, event_type, payload) values \
               ('order', '1', 'T', '\\xff'), ('order', '2', 'T', 'a\\000b'), ('order', '3', 'T', 'plain')",
        )
        .await;
    pipeline.await_count("orders", 1).await;
    let parked = "select string_agg(error, '; ' order by aggregate_id) from postrider.parked";
    await_that("two parked events", SOON, || async {
        match pipeline.sql.text(parked).await {
            Some(why) if why.contains("UTF-8") && why.contains("zero byte") => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await;
    for (input, aggregate) in [
        ("a payload that is not UTF-8, for a log", 1),
        ("a payload with a zero byte, for a log", 2),
    ] {
        let why = format!("select error from postrider.parked where aggregate_id = '{aggregate}'");
        let why = pipeline.sql.text(&why).await.expect("the reason");
        answer_alone(input, Answer::said(&why, "", "").then("goes on"));
    }
    assert_eq!(
        pipeline.log.text("select payload from postrider_log.log_orders").await.unwrap(),
        "plain"
    );
    relay.terminate(SOON).await;
}

/// Without the toolkit, or without rights, the pipeline halts with the command that helps.
#[tokio::test]
async fn toolkit_and_rights_that_are_missing_halt_with_the_command() {
    let pipeline = LogPipeline::shared(Version::Pg17, "log_rights", LogAt::Other, CREATE).await;
    let role = relay_role(&pipeline).await;
    let as_role = pipeline.log_url.replace("user=postgres", &format!("user={role}"));
    let config = pipeline.config.replace(&pipeline.log_url, &as_role);
    let halted = run_to_halt(&config).await;
    halted.assert_says("PR015", &["42501"], &["postrider sql --install", &role]);
    answer_alone("a role without the rights of a relay", &halted);
    install_toolkit(&pipeline.log, &role).await;
    let relay = Relay::spawn(&config);
    pipeline.insert(10).await;
    pipeline.await_count("orders", 10).await;
    relay.terminate(SOON).await;
    pipeline.log.batch("drop schema postrider cascade").await;
    let halted = run_to_halt(&config).await;
    halted.assert_says("PR015", &["SQLSTATE"], &["postrider sql --install"]);
    answer_alone("a database without the toolkit", &halted);
    drop_role(&pipeline, &role).await;
}

/// A table that was truncated has lost what consumers have not seen.
#[tokio::test]
async fn a_log_that_was_truncated_halts() {
    let pipeline = LogPipeline::shared(Version::Pg15, "log_truncate", LogAt::Other, CREATE).await;
    let relay = pipeline.run();
    pipeline.insert(100).await;
    pipeline.await_count("orders", 100).await;
    pipeline.resolved().await;
    relay.terminate(SOON).await;
    pipeline.log.batch("truncate postrider_log.log_orders").await;
    pipeline.insert(1).await;
    let halted = run_to_halt(&pipeline.config).await;
    halted.assert_says("PR015", &["has lost event 100", "PR103"], &["truncated"]);
    answer_alone("an event log whose table was truncated", &halted);
    // As docs/sql/log.md describes.
    pipeline
        .log
        .batch(
            "update postrider.event_log set first_seq = \
             (select last_seq + 1 from postrider.log_head('orders')) where name = 'orders'",
        )
        .await;
    let relay = pipeline.run();
    pipeline.await_count("orders", 101).await;
    let read = "select seq::text from postrider.log_read('orders', 100)";
    assert_eq!(pipeline.log.text(read).await.as_deref(), Some("101"));
    relay.terminate(SOON).await;
}

/// A log that an administrator has created: `check` prints the statements that give it to the relay's role.
#[tokio::test]
async fn a_log_of_another_owner_is_given_to_the_relay_as_check_says() {
    let pipeline = LogPipeline::shared(Version::Pg16, "log_given", LogAt::Other, "").await;
    let role = relay_role(&pipeline).await;
    install_toolkit(&pipeline.log, &role).await;
    pipeline.log.batch("select postrider.create_log('orders', 4, 1000)").await;
    let as_role = pipeline.log_url.replace("user=postgres", &format!("user={role}"));
    let config = pipeline.config.replace(&pipeline.log_url, &as_role);
    let found = || {
        let check = postrider(&config, &["check"]);
        String::from_utf8_lossy(&check.stdout).into_owned()
    };
    let said = found();
    assert!(said.contains("log_owner"), "{said}");
    let statements: Vec<&str> =
        said.split("ALTER TABLE").skip(1).filter_map(|rest| rest.split(';').next()).collect();
    assert_eq!(statements.len(), 4, "{said}");
    for statement in statements {
        pipeline.log.batch(&format!("ALTER TABLE{statement}")).await;
    }
    let said = found();
    assert!(!said.contains("log_owner"), "{said}");
    let relay = Relay::spawn(&config);
    pipeline.insert(1).await;
    pipeline.await_count("orders", 1).await;
    relay.terminate(SOON).await;
    drop_role(&pipeline, &role).await;
}

/// Two pipelines of one name, on different sources, with one database of logs: the second one would continue behind the
/// positions of the first one.
#[tokio::test]
async fn a_pipeline_of_another_source_with_the_same_name_halts() {
    let pipeline = LogPipeline::shared(Version::Pg17, "log_name", LogAt::Other, CREATE).await;
    let relay = pipeline.run();
    pipeline.insert(10).await;
    pipeline.await_count("orders", 10).await;
    pipeline.resolved().await;
    relay.terminate(SOON).await;
    // As if the source were another one, set up at another time.
    let history = "update postrider.cursor set histories = array[histories[1] + 1]";
    pipeline.sql.batch(history).await;
    let halted = run_to_halt(&pipeline.config).await;
    halted.assert_says("PR004", &["history"], &["belong together"]);
    answer_alone("two sources, one name of the pipeline, one database of logs", &halted);
}

/// The steps of docs/operations/halts.md: the position of the former slot is deleted before the start.
#[tokio::test]
async fn lost_slot_of_a_log_is_followed_by_a_new_one() {
    let pipeline = LogPipeline::shared(Version::Pg17, "log_slot", LogAt::Other, CREATE).await;
    let relay = pipeline.run();
    pipeline.insert(10).await;
    pipeline.await_count("orders", 10).await;
    pipeline.resolved().await;
    relay.terminate(SOON).await;
    let name = &pipeline.name;
    let drop_slot = format!("select pg_drop_replication_slot('postrider_{name}')");
    pipeline.sql.batch(&drop_slot).await;
    let halted = run_to_halt(&pipeline.config).await;
    let forget = format!("DELETE FROM postrider.cursor WHERE pipeline = '{name}'");
    halted.assert_says("PR002", &["does not exist"], &["insert the rows again", &forget]);
    pipeline.sql.batch(&forget).await;
    postrider_ok(&pipeline.config, &["setup"]);
    let halted = run_to_halt(&pipeline.config).await;
    halted.assert_says("PR004", &["history"], &["docs/operations/halts.md#begin-a-new-slot"]);
    let discard = format!("DELETE FROM postrider.event_log_progress WHERE writer = '{name}'");
    pipeline.log.batch(&discard).await;
    let relay = pipeline.run();
    pipeline.insert(5).await;
    pipeline.await_count("orders", 15).await;
    relay.terminate(SOON).await;
}

/// Two pipelines can't write one log: the events of the second one are parked.
#[tokio::test]
async fn a_log_of_another_pipeline_takes_no_events() {
    let pipeline = LogPipeline::shared(Version::Pg16, "log_writer", LogAt::Other, CREATE).await;
    pipeline
        .log
        .batch(
            "select postrider.create_log('orders', 4); \
                        select postrider.log_take_over('other'); \
                        select * from postrider.log_open('orders', 'other')",
        )
        .await;
    let check = postrider(&pipeline.config, &["check"]);
    let said = String::from_utf8_lossy(&check.stdout).into_owned();
    assert!(said.contains("event log \"orders\" is written by \"other\""), "{said}");
    let relay = spawn(&pipeline.config);
    pipeline.insert(1).await;
    relay.await_log("is written by", SOON).await;
    let refused = Answer::logged(&relay.stderr(), "is written by");
    refused.assert_says(&["log \"orders\" is written by \"other\""]);
    answer_alone("an event log of another pipeline", refused);
    relay.terminate(SOON).await;
    assert_eq!(pipeline.count("orders").await, Ok(0));
}

/// The database of the log was restored from a backup: it lacks events of which the source may have removed the WAL. A
/// bookmark from before has them, and the pipeline reads them from there.
#[tokio::test]
async fn a_log_that_is_older_than_the_cursor_halts_and_is_filled_from_a_bookmark() {
    let pipeline = LogPipeline::shared(Version::Pg15, "log_older", LogAt::Other, CREATE).await;
    let relay = pipeline.run();
    pipeline.insert(60).await;
    pipeline.await_count("orders", 60).await;
    pipeline.resolved().await;
    postrider_ok(&pipeline.config, &["bookmark", "create", "before"]);
    pipeline.insert(40).await;
    pipeline.await_count("orders", 100).await;
    pipeline.resolved().await;
    relay.terminate(SOON).await;
    let file = std::env::temp_dir().join(format!("{}.dump", pipeline.name));
    let bin = Path::new(&Version::Pg15.variable("BIN")).to_owned();
    ran(Command::new(bin.join("pg_dump")).args(["-Fc", "-d", &pipeline.log_url, "-f"]).arg(&file));
    let relay = pipeline.run();
    pipeline.insert(50).await;
    pipeline.await_count("orders", 150).await;
    pipeline.resolved().await;
    relay.terminate(SOON).await;
    let drop = "drop schema postrider cascade; drop schema postrider_log cascade; \
                drop schema postrider_inbox cascade; drop schema postrider_outbox cascade";
    pipeline.log.batch(drop).await;
    ran(Command::new(bin.join("pg_restore")).args(["-d", &pipeline.log_url]).arg(&file));
    std::fs::remove_file(&file).expect("the dump");
    assert_eq!(pipeline.count("orders").await, Ok(100));
    let halted = run_to_halt(&pipeline.config).await;
    halted.assert_says("PR025", &["behind the cursor row"], &["docs/sql/log.md"]);
    answer_alone("an event log that was restored from a backup", &halted);
    // As docs/sql/log.md describes.
    let (name, slot) = (&pipeline.name, format!("postrider_{}", pipeline.name));
    let bookmark = "select slot::text from postrider.bookmark where name = 'before'";
    let bookmark = pipeline.sql.text(bookmark).await.unwrap();
    for statement in [
        format!("select pg_drop_replication_slot('{slot}')"),
        format!("select pg_copy_logical_replication_slot('{bookmark}', '{slot}')"),
        format!(
            "update postrider.cursor c set watermark = s.confirmed_flush_lsn, \
               flush_limit = s.confirmed_flush_lsn, partial_commit_lsn = null, partial_ordinal = null \
             from pg_replication_slots s where c.pipeline = '{name}' and s.slot_name = '{slot}'"
        ),
    ] {
        pipeline.sql.batch(&statement).await;
    }
    let relay = pipeline.run();
    pipeline.await_count("orders", 150).await;
    pipeline.insert(10).await;
    pipeline.await_count("orders", 160).await;
    assert_sound(&pipeline.log, "orders").await;
    let once = "select count(distinct event_id)::text from postrider_log.log_orders";
    assert_eq!(pipeline.log.text(once).await.unwrap(), "160");
    relay.terminate(SOON).await;
}

/// As above without a bookmark: the rows are inserted again, keep their ids, and are appended behind the others.
#[tokio::test]
async fn a_log_is_filled_from_the_rows_of_the_outbox() {
    let pipeline = LogPipeline::shared(Version::Pg18, "log_fill", LogAt::Other, CREATE).await;
    let relay = pipeline.run();
    pipeline.insert(150).await;
    pipeline.await_count("orders", 150).await;
    pipeline.resolved().await;
    relay.terminate(SOON).await;
    // What a log has that lacks the last append of 50 events.
    let name = &pipeline.name;
    pipeline
        .log
        .batch(&format!(
            "delete from postrider_log.log_orders where seq > 100; \
             delete from postrider.event_log_head; \
             insert into postrider.event_log_head \
               select 'orders', 100, array_agg(coalesce(last, 0) order by i), array_agg(coalesce(n, 0) order by i), \
                 now() \
               from generate_series(0, 3) i left join (select part, max(seq) last, count(*) n \
                 from postrider_log.log_orders group by part) e on part = i; \
             update postrider.event_log_progress set progress = \
               split_part(progress, ' ', 1) || ' 0/' || upper(to_hex(1)) where writer = '{name}'"
        ))
        .await;
    run_to_halt(&pipeline.config).await.assert_says("PR025", &["behind the cursor row"], &[]);
    // As docs/sql/log.md describes.
    let progress = format!("delete from postrider.event_log_progress where writer = '{name}'");
    pipeline.log.batch(&progress).await;
    let last = "select event_id from postrider.log_read('orders', \
                (select last_seq - 1 from postrider.log_head('orders')))";
    assert_eq!(pipeline.log.text(last).await.unwrap(), "100");
    let relay = pipeline.run();
    relay.await_state("streaming", SOON).await;
    pipeline
        .sql
        .batch(
            "with gone as (delete from public.outbox where id > 100 and id <= 150 returning *) \
             insert into public.outbox overriding system value select * from gone order by id",
        )
        .await;
    pipeline.await_count("orders", 150).await;
    assert_sound(&pipeline.log, "orders").await;
    let order = "select count(*)::text from postrider_log.log_orders \
                 where event_id = seq::text and payload = seq::text";
    assert_eq!(pipeline.log.text(order).await.unwrap(), "150");
    relay.terminate(SOON).await;
}

/// The server of the log fails over to one that lacks the last commits, while the relay runs: the relay does not
/// continue behind a gap.
#[tokio::test]
async fn a_log_that_has_lost_the_last_commits_halts() {
    let mut server = PrivatePostgres::start(Version::Pg18, "").await;
    let source = Database::create(Version::Pg18, "log_failover").await;
    let pipeline =
        LogPipeline::on(&source.socket_url(), &server.url(), "log_failover", CREATE).await;
    let relay = pipeline.run();
    pipeline.insert(100).await;
    pipeline.await_count("orders", 100).await;
    pipeline.resolved().await;
    relay.terminate(SOON).await;
    server.stop_fast(SOON).await;
    let mut standby = server.cold_copy("");
    server.restart().await;
    let hosts = format!(
        "host=127.0.0.1,127.0.0.1 port={},{} user=postgres dbname=postgres \
         target_session_attrs=read-write",
        server.port, standby.port
    );
    let config = pipeline.config.replace(&server.url(), &hosts);
    let config = format!("{config}[pipelines.{}.flow]\ncursor_interval = \"5m\"\n", pipeline.name);
    let relay = spawn(&config);
    pipeline.insert(50).await;
    pipeline.await_count("orders", 150).await;
    server.stop_immediately().await;
    standby.restart().await;
    // The cursor row was written at the end of the session, or not: then it is behind the last commit.
    halt_of(relay).await.assert_says("PR025", &["which is behind the"], &[]);
    let log = Client::connect(&standby.url()).await.unwrap();
    let last = "select last_seq::text from postrider.log_head('orders')";
    assert_eq!(log.text(last).await.unwrap(), "100", "nothing is appended behind a gap");
    assert_sound(&log, "orders").await;
}

fn ran(command: &mut Command) {
    let output = command.output().expect("a program of PostgreSQL");
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
}

/// Refused when the file is read, with the key.
#[tokio::test]
async fn a_mode_without_a_stream_is_refused_by_the_configuration() {
    for (input, key, line) in [
        ("mode poll with the sink postgres", "mode", "mode = \"poll\"\n"),
        ("mode auto with the sink postgres", "mode", "mode = \"auto\"\n"),
        (
            "on_slot_lost repair with the sink postgres",
            "source.on_slot_lost",
            "[pipelines.p.source]\non_slot_lost = \"repair\"\n",
        ),
    ] {
        let source = "url = \"postgresql://postrider@127.0.0.1/app\"\n";
        let line =
            line.replace("[pipelines.p.source]\n", &format!("[pipelines.p.source]\n{source}"));
        let line = if line.contains(source) {
            line
        } else {
            format!("{line}[pipelines.p.source]\n{source}")
        };
        let config = format!(
            "[pipelines.p]\n{line}[pipelines.p.outbox]\ntable = \"outbox\"\n\
             [pipelines.p.sink]\nkind = \"postgres\"\n"
        );
        let output = postrider(&config, &["config", "show"]);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success(), "{line}");
        assert!(said.contains(&format!("pipelines.p.{key}")), "{said}");
        assert!(said.contains("publishes in transactions"), "{said}");
        answer_alone(input, &output);
    }
}

/// A server that takes no writes, and one whose disk is full, are waited for.
#[tokio::test]
async fn a_database_without_writes_is_waited_for() {
    let pipeline = LogPipeline::shared(Version::Pg18, "log_readonly", LogAt::Other, CREATE).await;
    let relay = spawn(&pipeline.config);
    pipeline.insert(1).await;
    pipeline.await_count("orders", 1).await;
    let database = pipeline.log.text("select current_database()::text").await.unwrap();
    pipeline
        .log
        .batch(&format!("alter database {database} set default_transaction_read_only = on"))
        .await;
    let end = "select pg_terminate_backend(pid) from pg_stat_activity where application_name like 'postrider % log' \
               and datname = current_database()";
    pipeline.log.text(end).await;
    pipeline.insert(1).await;
    relay.await_state("broker_down", SOON).await;
    let status = relay.status().await.expect("a status");
    answer_alone("a database of event logs that accepts no writes", Answer::waits(&status));
    relay.await_log("accepts no writes", SOON).await;
    pipeline
        .log
        .batch(&format!(
            "begin read write; alter database {database} reset default_transaction_read_only; commit"
        ))
        .await;
    pipeline.await_count("orders", 2).await;
    relay.await_status("both published", SOON, |status| published(status) >= 2).await;
    relay.terminate(SOON).await;
}

/// Two processes of one pipeline: the one without the slot ends, or waits; nothing is published twice.
#[tokio::test]
async fn a_halt_is_not_repeated_for_a_writer_that_was_deposed() {
    let pipeline = LogPipeline::shared(Version::Pg17, "log_deposed", LogAt::Other, CREATE).await;
    let relay = pipeline.run();
    pipeline.insert(10).await;
    pipeline.await_count("orders", 10).await;
    // As another process would: the writer is deposed while it runs, and recovers.
    let name = &pipeline.name;
    for round in 1..=3 {
        pipeline
            .log
            .text(&format!("select epoch::text from postrider.log_take_over('{name}')"))
            .await;
        pipeline.insert(10).await;
        pipeline.await_count("orders", 10 + 10 * round).await;
    }
    assert_sound(&pipeline.log, "orders").await;
    assert_eq!(relay.terminate(SOON).await.code, Some(0));
}
