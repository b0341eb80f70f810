//! The maintenance of inboxes by the relay: what is forgotten and deleted, what is logged about dead messages, gaps and
//! health, whose rights it needs, and that several relays may do it at once.

use crate::await_that::{SOON, await_that};
use crate::log_maintenance::Fixture;
use crate::managed::Managed;
use crate::pipeline::Pipeline;
use crate::relay::{Relay, postrider_ok};
use crate::server::{Client, Database, Version, unique};
use crate::toolkit::install_toolkit;
use serde_json::Value;
use std::time::Duration;
use tokio_postgres::error::SqlState;

/// `[maintenance]` of most tests.
const QUICK: &str = "[maintenance]\ninbox_drain_interval = \"1s\"\ninbox_drain_batch = 5\n";

/// The maintenance of inboxes in the status of the first pipeline.
fn of(status: &Value) -> &Value {
    &status["pipelines"][0]["maintenance"]["inboxes"][0]
}

/// An inbox in the status.
fn inbox<'s>(status: &'s Value, name: &str) -> &'s Value {
    let all = of(status)["inboxes"].as_array().map_or(&[][..], Vec::as_slice);
    all.iter().find(|inbox| inbox["inbox"] == name).unwrap_or(&Value::Null)
}

fn count(relay: &Relay, words: &str) -> usize {
    relay.stderr().matches(words).count()
}

async fn number(sql: &Client, query: &str) -> i64 {
    let text = sql.text(&format!("select ({query})::text")).await;
    text.and_then(|text| text.parse().ok()).unwrap_or_else(|| panic!("{query}: no number"))
}

/// Waits until a query returns this number.
async fn await_number(sql: &Client, relay: &Relay, query: &str, wanted: i64) {
    await_that(query, SOON, || async {
        let found = number(sql, query).await;
        if found == wanted { Ok(()) } else { Err(format!("{found}\n{}", relay.stderr())) }
    })
    .await;
}

/// Waits until the inboxes have been read two more times: what is to be logged has been logged.
async fn await_readings(sql: &Client, relay: &Relay) {
    for pending in 1..=2 {
        // A message that no worker of the test takes.
        let insert = "insert into postrider_inbox.marks (event_id) select gen_random_uuid()::text";
        sql.batch(insert).await;
        let read = |status: &Value| {
            inbox(status, "marks")["pending"].as_u64().is_some_and(|found| found % 2 == pending % 2)
        };
        relay.await_status("a reading", SOON, read).await;
    }
}

/// Retention deletes what is older than the keys say, in batches, and ids are forgotten. A table of the user's own
/// stays.
#[tokio::test]
async fn old_messages_and_ids_go_by_the_keys() {
    for version in [Version::Pg15, Version::Pg18] {
        let keys = format!(
            "{QUICK}inbox_ids_keep = \"7d\"\ninbox_processed_keep = \"2h\"\ninbox_dead_keep = \"3h\"\n"
        );
        let fixture = Fixture::new(version, "ibkeys", &keys).await;
        let sql = &fixture.sql;
        sql.batch(
            "select postrider.create_inbox('mail'); select postrider.create_inbox('other');
             insert into postrider_inbox.mail (event_id) select i::text from generate_series(1, 130) i;
             insert into postrider_inbox.other (event_id, processed_at) select i::text, now() - interval '3 hours'
               from generate_series(1, 10) i;
             update postrider_inbox.mail set processed_at = now() - interval '3 hours' where seq <= 112;
             update postrider_inbox.mail set processed_at = now() - interval '1 hour' where seq between 113 and 116;
             update postrider_inbox.mail set dead_at = now() - interval '4 hours' where seq between 117 and 122;
             update postrider_inbox.mail set dead_at = now() - interval '2 hours' where seq between 123 and 124;
             create table public.webhook (id bigint primary key, processed_at timestamptz, received_at timestamptz,
               retry_count int, error text, event_type text);
             insert into public.webhook (id, processed_at, received_at)
               select i, now() - interval '1 year', now() - interval '2 years' from generate_series(1, 3) i;
             select postrider.enable_inbox_tracking('webhook', 'public.webhook', p_id_column => 'id');
             select postrider.inbox_once('c', 's', 'old', now() - interval '10 days');
             select postrider.inbox_once('c', 's', 'new', now() - interval '2 days');
             select postrider.inbox_once('c', 's', 'old'), postrider.inbox_once('c', 's', 'new');
             update postrider.inbox_seen_undated set seen_at = now() - interval '8 days' where message_id = 'old'",
        )
        .await;
        let relay = Relay::spawn(&fixture.config);
        await_number(sql, &relay, "select count(*) from postrider_inbox.mail", 12).await;
        await_number(sql, &relay, "select count(*) from postrider_inbox.other", 0).await;
        let left = "select format('%s %s %s', count(*) filter (where processed_at is not null and dead_at is null), \
                    count(*) filter (where dead_at is not null), \
                    count(*) filter (where processed_at is null and dead_at is null)) from postrider_inbox.mail";
        assert_eq!(sql.text(left).await.as_deref(), Some("4 2 6"));
        await_number(sql, &relay, "select count(*) from postrider.inbox_seen_undated", 1).await;
        await_number(sql, &relay, "select count(*) from postrider.inbox_seen", 1).await;
        let forgotten = "select postrider.inbox_once('c', 's', 'old', now() - interval '10 days')";
        let refused = sql.batch_execute(forgotten).await.expect_err("a message that is too old");
        assert_eq!(refused.code().map(SqlState::code), Some("PR120"));
        let is_new = "select postrider.inbox_once('c', 's', 'new')::text";
        assert_eq!(sql.text(is_new).await.as_deref(), Some("false"));
        // Numbers are folded: no more than a row for each minute and type, and one for all minutes before.
        await_number(
            sql,
            &relay,
            "select (count(*) <= 11)::int from postrider.inbox_delta where inbox = 'mail'",
            1,
        )
        .await;
        let read = |status: &Value| {
            inbox(status, "mail")["dead"] == 2
                && inbox(status, "mail")["pending"] == 6
                && of(status)["drained_total"] == 128
        };
        let status = relay.await_status("what is left", SOON, read).await;
        assert_eq!(of(&status)["failures_total"], 0, "{status}\n{}", relay.stderr());
        assert_eq!(of(&status)["database"], "source", "{status}");
        assert_eq!(number(sql, "select count(*) from public.webhook").await, 3);
        assert_eq!(relay.terminate(SOON).await.code, Some(0));
    }
}

/// Without a key the row of the inbox decides, and "0" is for ever.
#[tokio::test]
async fn the_inbox_decides_without_a_key_and_zero_keeps_for_ever() {
    let keys = format!("{QUICK}inbox_dead_keep = \"0\"\n");
    let fixture = Fixture::new(Version::Pg16, "ibown", &keys).await;
    let sql = &fixture.sql;
    sql.batch(
        "select postrider.create_inbox('mail', p_retention_hours => 5), postrider.create_inbox('kept', p_retention_hours => 0);
         update postrider.inbox set dead_retention_hours = 1;
         insert into postrider_inbox.mail (event_id, processed_at)
           values ('old', now() - interval '6 hours'), ('new', now() - interval '4 hours');
         insert into postrider_inbox.mail (event_id, dead_at) values ('dead', now() - interval '100 hours');
         insert into postrider_inbox.kept (event_id, processed_at) values ('old', now() - interval '1000 hours')",
    )
    .await;
    let relay = Relay::spawn(&fixture.config);
    await_number(sql, &relay, "select count(*) from postrider_inbox.mail", 2).await;
    // A second deletion, after all that the first one could have deleted.
    sql.batch(
        "insert into postrider_inbox.mail (event_id, processed_at) values ('later', now() - interval '6 hours')",
    )
    .await;
    await_number(sql, &relay, "select count(*) from postrider_inbox.mail", 2).await;
    let left = "select string_agg(event_id, ' ' order by event_id) from postrider_inbox.mail";
    assert_eq!(sql.text(left).await.as_deref(), Some("dead new"));
    assert_eq!(number(sql, "select count(*) from postrider_inbox.kept").await, 1);
    assert_eq!(relay.terminate(SOON).await.code, Some(0));
}

/// Each new dead message is logged once by its id, up to the limit; the others, and those of before, are counted.
#[tokio::test]
async fn a_dead_message_is_logged_once_and_those_beyond_the_limit_are_counted() {
    let fixture = Fixture::new(
        Version::Pg17,
        "ibdead",
        "[maintenance]\ninbox_dead_alerts_max = 2\ninbox_drain_interval = \"1s\"\n",
    )
    .await;
    let sql = &fixture.sql;
    sql.batch(
        "select postrider.create_inbox('mail', p_max_retries => 1); select postrider.create_inbox('marks');
         insert into postrider_inbox.mail (event_id) select 'm-' || i from generate_series(1, 9) i;
         select postrider.inbox_fail('mail', 'm-1', 'secret payload');
         create table public.webhook (event_id text primary key, processed_at timestamptz, received_at timestamptz,
           retry_count int, error text, event_type text);
         select postrider.enable_inbox_tracking('webhook', 'public.webhook')",
    )
    .await;
    let relay = Relay::spawn(&fixture.config);
    relay.await_log("dead messages of inbox mail that are not logged one by one: 1", SOON).await;
    await_readings(sql, &relay).await;
    assert_eq!(count(&relay, "a message of inbox mail is dead"), 0, "{}", relay.stderr());
    // A transaction that fails first and commits last.
    let late = Client::connect(&fixture.url()).await.expect("a session");
    late.batch("begin; select postrider.inbox_fail('mail', 'm-2', 'no')").await;
    sql.batch(
        "insert into public.webhook (event_id, retry_count, received_at) values ('w-1', 5, now());
         begin; select postrider.inbox_fail('mail', 'm-' || i, 'no') from generate_series(3, 7) i; commit",
    )
    .await;
    relay.await_log("dead messages of inbox mail that are not logged one by one: 3", SOON).await;
    relay.await_log("dead messages of inbox webhook that are not logged one by one: 1", SOON).await;
    late.batch("commit").await;
    relay.await_log("id=m-2", SOON).await;
    await_readings(sql, &relay).await;
    let log = relay.stderr();
    assert_eq!(count(&relay, "a message of inbox mail is dead"), 3, "{log}");
    for id in ["id=m-2", "id=m-3", "id=m-4"] {
        assert_eq!(count(&relay, id), 1, "{id}: {log}");
    }
    // Replayed, and dead again: that is new.
    sql.batch(
        "select postrider.replay_inbox_messages('mail', array['m-3']);
         select postrider.inbox_fail('mail', 'm-3', 'no')",
    )
    .await;
    await_that("m-3 a second time", SOON, || async {
        if count(&relay, "id=m-3") == 2 { Ok(()) } else { Err(relay.stderr()) }
    })
    .await;
    assert!(!relay.stderr().contains("secret payload"));
    let dead = |status: &Value| inbox(status, "mail")["dead"] == 7;
    let status = relay.await_status("the number", SOON, dead).await;
    assert_eq!(inbox(&status, "webhook")["dead"], 1, "{status}");
    assert_eq!(relay.terminate(SOON).await.code, Some(0));
}

/// A gap and a degraded inbox are logged once each, and so is their end; status, metrics and the command agree.
#[tokio::test]
#[expect(clippy::too_many_lines, reason = "one run of the relay, from good to bad and back")]
async fn gaps_and_health_are_logged_when_they_begin_and_when_they_end() {
    for version in [Version::Pg15, Version::Pg18] {
        let fixture = Fixture::new(version, "ibgap", QUICK).await;
        let sql = &fixture.sql;
        sql.batch(
            "select postrider.create_inbox('stock'); select postrider.enable_inbox_ordering('stock');
             select postrider.create_inbox('mail'); select postrider.create_inbox('marks');
             update postrider.inbox set degraded_after = '1 second' where name = 'mail';
             insert into postrider_inbox.mail (event_id) values ('late');
             insert into postrider_inbox.stock (event_id, aggregate_id, sequence_num)
               values ('s-4', 'key-of-a-person', 4), ('t-1', 'another', 1)",
        )
        .await;
        let relay = Relay::spawn(&fixture.config);
        relay.await_log("inbox mail is degraded in two readings one after the other", SOON).await;
        relay.await_log("an aggregate of inbox stock waits for messages", SOON).await;
        let waits = |status: &Value| {
            inbox(status, "stock")["gaps"] == 1 && inbox(status, "mail")["health"] == "degraded"
        };
        let status = relay.await_status("a gap", SOON, waits).await;
        assert_eq!(inbox(&status, "stock")["pending"], 2, "{status}");
        assert!(inbox(&status, "mail")["gaps"].is_null(), "{status}");
        assert!(inbox(&status, "mail")["oldest_pending_seconds"].as_f64() >= Some(1.0), "{status}");
        let (_, metrics) = relay.get("/metrics").await.expect("an answer");
        let labels =
            format!("{{pipeline=\"{}\",shard=\"0\",database=\"source\",inbox=", fixture.name);
        for line in [
            format!("postrider_inbox_pending_messages{labels}\"stock\"}} 2.0"),
            format!("postrider_inbox_dead_messages{labels}\"stock\"}} 0.0"),
            format!("postrider_inbox_gaps{labels}\"stock\"}} 1.0"),
            format!("postrider_inbox_degraded{labels}\"mail\"}} 1.0"),
            format!("postrider_inbox_degraded{labels}\"stock\"}} 0.0"),
            format!("postrider_inbox_oldest_pending_seconds{labels}\"mail\"}} "),
        ] {
            assert!(metrics.contains(&line), "{line}\n{metrics}");
        }
        assert!(!metrics.contains(&format!("postrider_inbox_gaps{labels}\"mail\"")), "{metrics}");
        let (host, port) = relay.admin_address();
        let asked = format!("{}\n[admin]\nlisten = \"{host}:{port}\"\n", fixture.config);
        let shown = postrider_ok(&asked, &["status"]);
        assert!(
            shown.contains("inbox mail: degraded; 1 message pending, the oldest since"),
            "{shown}"
        );
        assert!(shown.contains("inbox stock: healthy; 2 messages pending"), "{shown}");
        assert!(shown.contains("; 1 gap"), "{shown}");
        // One of the missing numbers comes: it is the same gap.
        sql.batch(
            "insert into postrider_inbox.stock (event_id, aggregate_id, sequence_num)
             values ('s-1', 'key-of-a-person', 1);
             with batch as materialized (select * from postrider.inbox_next('stock', 'w', 10))
             select postrider.inbox_done('stock', array_agg(event_id)) from batch having count(*) > 0",
        )
        .await;
        await_readings(sql, &relay).await;
        assert_eq!(count(&relay, "an aggregate of inbox stock waits"), 1, "{}", relay.stderr());
        assert_eq!(count(&relay, "inbox mail is degraded in two"), 1, "{}", relay.stderr());
        sql.batch(
            "select postrider.skip_inbox_gap('stock', 'key-of-a-person');
             with batch as materialized (select * from postrider.inbox_next('mail', 'w'))
             select postrider.inbox_done('mail', array_agg(event_id)) from batch having count(*) > 0",
        )
        .await;
        relay
            .await_log("an aggregate of inbox stock does not wait for missing messages", SOON)
            .await;
        relay.await_log("inbox mail is healthy again", SOON).await;
        let over = |status: &Value| {
            inbox(status, "stock")["gaps"] == 0 && inbox(status, "mail")["health"] == "healthy"
        };
        let status = relay.await_status("no gap", SOON, over).await;
        assert_eq!(of(&status)["failures_total"], 0, "{status}\n{}", relay.stderr());
        let ended = relay.terminate(SOON).await;
        assert_eq!(ended.code, Some(0));
        assert!(!ended.stderr.contains("key-of-a-person"), "{}", ended.stderr);
    }
}

/// The words of a command in a hint, from `postrider` to a semicolon or the end, with the administrator's URL.
fn command(hint: &str, url: &str) -> Vec<String> {
    let (_, command) = hint.split_once("postrider ").unwrap_or_else(|| panic!("{hint}"));
    let command = command.split(';').next().unwrap_or_default().replace("ADMIN_URL", url);
    command.split_whitespace().map(str::to_owned).collect()
}

/// Without the rights nothing is done, and one line has the command that grants them. What is missing at one inbox
/// stops no other one.
#[tokio::test]
async fn rights_that_are_missing_are_named_by_the_command_that_grants_them() {
    let managed = Managed::new(Version::Pg17, "ibright", "replication", "").await;
    let (sql, role, url) = (&managed.sql, managed.relay.as_str(), managed.database.url());
    postrider_ok(&managed.config, &["setup", "--url", &url]);
    postrider_ok(&managed.config, &["sql", "--install", "--url", &url]);
    sql.batch(
        "select postrider.create_inbox('mail'), postrider.create_inbox('zeta'), postrider.create_inbox('marks');
         create table public.webhook (event_id text primary key, processed_at timestamptz, received_at timestamptz,
           retry_count int, error text, event_type text);
         select postrider.enable_inbox_tracking('webhook', 'public.webhook', p_retention_hours => 1);
         insert into public.webhook (event_id, processed_at, received_at)
           values ('w', now() - interval '2 hours', now());
         insert into postrider_inbox.zeta (event_id, processed_at) values ('z', now() - interval '80 hours')",
    )
    .await;
    let relay = Relay::spawn(&format!("{QUICK}{}", managed.config));
    let denied = "the inboxes of the database are not maintained";
    relay.await_log(denied, SOON).await;
    let hinted = |status: &Value| of(status)["hint"].is_string();
    let status = relay.await_status("what is missing", SOON, hinted).await;
    let hint = of(&status)["hint"].as_str().expect("a hint").to_owned();
    assert!(hint.contains("maintenance.inbox_enabled = false"), "{hint}");
    assert!(of(&status)["last_run_seconds"].is_null(), "{status}");
    assert_eq!(number(sql, "select count(*) from postrider_inbox.zeta").await, 1);
    let words = command(&hint, &url);
    postrider_ok(&managed.config, &words.iter().map(String::as_str).collect::<Vec<_>>());
    // The table of the user's own is not the toolkit's to grant: the others are maintained nevertheless.
    relay.await_log("the inboxes of the database are maintained", SOON).await;
    await_number(sql, &relay, "select count(*) from postrider_inbox.zeta", 0).await;
    assert_eq!(count(&relay, denied), 1, "{}", relay.stderr());
    let own = |status: &Value| {
        of(status)["hint"].as_str().is_some_and(|hint| hint.contains("public.webhook"))
    };
    let status = relay.await_status("the table that lacks rights", SOON, own).await;
    assert!(of(&status)["reason"].as_str().expect("a reason").contains("42501"), "{status}");
    let words = "maintenance of inboxes failed, and is repeated; publishing is not affected";
    relay.await_log(words, SOON).await;
    let hint = of(&status)["hint"].as_str().expect("a hint").to_owned();
    assert!(hint.contains(&format!("TO \"{role}\";")), "{hint}");
    sql.batch(crate::managed::line(&hint, "GRANT")).await;
    await_number(sql, &relay, "select count(*) from public.webhook", 0).await;
    relay.await_log("maintenance of inboxes works again", SOON).await;
    // The rights on an inbox of the toolkit.
    sql.batch(&format!("revoke all on postrider_inbox.mail from \"{role}\"")).await;
    let managed_one = |status: &Value| {
        of(status)["hint"].as_str().is_some_and(|hint| hint.contains("inbox_grant('mail')"))
    };
    let status = relay.await_status("the inbox that lacks rights", SOON, managed_one).await;
    let hint = of(&status)["hint"].as_str().expect("a hint").to_owned();
    sql.batch(
        "insert into postrider_inbox.zeta (event_id, processed_at) values ('y', now() - interval '80 hours')",
    )
    .await;
    await_number(sql, &relay, "select count(*) from postrider_inbox.zeta", 0).await;
    sql.batch(crate::managed::line(&hint, "SELECT")).await;
    let well = |status: &Value| of(status)["reason"].is_null();
    relay.await_status("nothing that fails", SOON, well).await;
    // The functions of an earlier version of the toolkit.
    sql.batch("drop function postrider.inbox_drain(text, integer, interval, interval)").await;
    relay.await_log("the database has an earlier version of the SQL toolkit", SOON).await;
    let status = relay.await_status("the command", SOON, hinted).await;
    let words = command(of(&status)["hint"].as_str().expect("a hint"), &url);
    postrider_ok(&managed.config, &words.iter().map(String::as_str).collect::<Vec<_>>());
    relay.await_status("nothing that fails", SOON, well).await;
    assert_eq!(relay.terminate(SOON).await.code, Some(0));
    managed.gone().await;
}

/// Where there is no toolkit, or it is turned off, nothing is said, and no session is kept.
#[tokio::test]
async fn a_database_without_inboxes_is_not_mentioned() {
    let pipeline = Pipeline::shared(Version::Pg16, "ibnone").await;
    let sessions = format!(
        "select count(*) from pg_stat_activity where application_name = 'postrider {} inbox maintenance'",
        pipeline.name
    );
    let absent = "the database has no inboxes of the SQL toolkit";
    let relay = Relay::spawn_with(&pipeline.config, &["--log", "debug"], &[]);
    relay.await_log(absent, SOON).await;
    await_number(&pipeline.sql, &relay, &sessions, 0).await;
    let status = relay.status().await.expect("a status");
    assert!(status["pipelines"][0]["maintenance"]["inboxes"].is_null(), "{status}");
    let ended = relay.terminate(SOON).await;
    assert_eq!(ended.code, Some(0));
    let said =
        ended.stderr.lines().filter(|line| line.contains("inbox") && !line.contains("DEBUG"));
    assert_eq!(said.collect::<Vec<_>>(), Vec::<&str>::new());
    // Turned off: other maintenance runs, and this one does not look.
    let off = format!("[maintenance]\ninbox_enabled = false\n{}", pipeline.config);
    let relay = Relay::spawn_with(&off, &["--log", "debug"], &[]);
    let ran = |status: &Value| {
        let seconds = status["pipelines"][0]["maintenance"]["last_run_seconds"].as_f64();
        seconds.is_some_and(|seconds| seconds > 2.0)
    };
    relay.await_status("a run of other maintenance", SOON, ran).await;
    assert_eq!(count(&relay, "inbox"), 0, "{}", relay.stderr());
    assert_eq!(relay.terminate(SOON).await.code, Some(0));
}

/// Two relays maintain one database while workers use it: nothing fails, and the numbers are right.
#[tokio::test]
async fn two_relays_maintain_one_database_and_disturb_nobody() {
    for version in [Version::Pg15, Version::Pg18] {
        let fixture = Fixture::new(version, "ibtwo", QUICK).await;
        let sql = &fixture.sql;
        sql.batch(
            "select postrider.create_inbox('mail');
             insert into postrider_inbox.mail (event_id, processed_at)
               select i::text, now() - interval '80 hours' from generate_series(1, 500) i",
        )
        .await;
        // Its outbox is in a database of its own, which has no toolkit; its log is beside that of the first one.
        let second = Database::create(version, "ibtwob").await;
        let name = unique("ibtwob");
        let config = format!(
            "{QUICK}[pipelines.{name}]\n[pipelines.{name}.source]\nurl = \"{}\"\n\
             [pipelines.{name}.outbox]\ntable = \"public.outbox\"\n[pipelines.{name}.route]\ntopic = \"others\"\n\
             [pipelines.{name}.sink]\nkind = \"postgres\"\n[pipelines.{name}.sink.postgres]\nurl = \"{}\"\n",
            second.socket_url(),
            fixture.url()
        );
        postrider_ok(&config, &["setup", "--create-table"]);
        let relays = [Relay::spawn(&fixture.config), Relay::spawn(&config)];
        let both = "select count(*) from pg_stat_activity where application_name like '% inbox maintenance' \
                    and datname = current_database()";
        await_number(sql, &relays[0], both, 2).await;
        // A worker beside them.
        for i in 0..200 {
            sql.batch(&format!(
                "insert into postrider_inbox.mail (event_id) values ('n-{i}');
                 with batch as materialized (select * from postrider.inbox_next('mail', 'w', 10))
                 select postrider.inbox_done('mail', array_agg(event_id)) from batch having count(*) > 0;
                 select postrider.inbox_once('c', 's', 'n-{i}'), postrider.inbox_once('c', 's', 'n-{i}', now())"
            ))
            .await;
        }
        await_number(sql, &relays[0], "select count(*) from postrider_inbox.mail", 200).await;
        for relay in &relays {
            let read = |status: &Value| inbox(status, "mail")["pending"] == 0;
            let status = relay.await_status("a reading", SOON, read).await;
            assert_eq!(of(&status)["failures_total"], 0, "{status}\n{}", relay.stderr());
        }
        await_that("the sum of what both have deleted", SOON, || async {
            let mut drained = 0;
            for relay in &relays {
                let status = relay.status().await?;
                drained += of(&status)["drained_total"].as_u64().unwrap_or(0);
            }
            if drained == 500 { Ok(()) } else { Err(format!("{drained} of 500")) }
        })
        .await;
        let databases: Vec<Value> = {
            let status = relays[1].status().await.expect("a status");
            status["pipelines"][0]["maintenance"]["inboxes"].as_array().cloned().unwrap_or_default()
        };
        assert_eq!(databases.len(), 1, "{databases:?}");
        assert_eq!(databases[0]["database"], "sink");
        let before = "select format('%s %s', sum(pending), sum(processed)) from postrider.inbox_stats('mail')";
        assert_eq!(sql.text(before).await.as_deref(), Some("0 200"));
        for relay in relays {
            assert_eq!(relay.terminate(SOON).await.code, Some(0));
        }
    }
}

/// The session is killed: another one is opened, and the work goes on. The session ends with the process.
#[tokio::test]
async fn a_session_that_is_killed_is_opened_again() {
    let fixture = Fixture::new(Version::Pg18, "ibkill", QUICK).await;
    let sql = &fixture.sql;
    sql.batch("select postrider.create_inbox('mail')").await;
    let relay = Relay::spawn(&fixture.config);
    let session = format!(
        "select coalesce(max(pid), 0) from pg_stat_activity where application_name = 'postrider {} inbox maintenance'",
        fixture.name
    );
    let read = |status: &Value| inbox(status, "mail")["pending"] == 0;
    relay.await_status("a reading", SOON, read).await;
    let first = number(sql, &session).await;
    assert_ne!(first, 0);
    sql.batch(&format!("select pg_terminate_backend({first})")).await;
    await_that("another session", SOON, || async {
        match number(sql, &session).await {
            0 => Err(format!("none\n{}", relay.stderr())),
            pid if pid == first => Err("the same one".to_owned()),
            _ => Ok(()),
        }
    })
    .await;
    sql.batch(
        "insert into postrider_inbox.mail (event_id, processed_at) values ('old', now() - interval '80 hours')",
    )
    .await;
    await_number(sql, &relay, "select count(*) from postrider_inbox.mail", 0).await;
    let well = |status: &Value| of(status)["reason"].is_null() && of(status)["failures_total"] != 0;
    relay.await_status("nothing that fails", SOON, well).await;
    relay.await_log("maintenance of inboxes works again", SOON).await;
    assert_eq!(relay.terminate(SOON).await.code, Some(0));
    let left = async || number(sql, &session).await;
    await_that("no session", Duration::from_secs(5), || async {
        if left().await == 0 { Ok(()) } else { Err("a session is left") }
    })
    .await;
}

/// A toolkit that has `inbox_drain` without the times is updated: one function is left, and a call is not ambiguous.
#[tokio::test]
async fn the_former_inbox_drain_is_replaced() {
    for version in [Version::Pg15, Version::Pg18] {
        let database = Database::create(version, "ibformer").await;
        let sql = database.connect().await;
        install_toolkit(&sql, "postgres").await;
        sql.batch(
            "select postrider.create_inbox('mail');
             drop function postrider.inbox_drain(text, integer, interval, interval);
             create function postrider.inbox_drain(p_name text, p_batch integer default 1000) returns integer
               language sql as $$ select -1 $$",
        )
        .await;
        let url = database.url();
        postrider_ok("", &["sql", "--install", "--url", &url]);
        let drained = number(&sql, "select postrider.inbox_drain('mail')").await;
        assert_eq!(drained, 0);
        let functions = "select count(*) from pg_proc where proname = 'inbox_drain'";
        assert_eq!(number(&sql, functions).await, 1);
    }
}
