//! The maintenance of event logs and consumer groups by the relay: sweeping, reaping, retention and eviction; what is
//! interrupted; and that nobody waits for it.

use crate::await_that::{SOON, await_that};
use crate::relay::{Relay, postrider_ok};
use crate::server::{Client, Database, Version, describe, unique};
use crate::toolkit::install_toolkit;
use serde_json::Value;
use std::time::{Duration, Instant};

/// A poll that nothing delays, on a machine that is busy with other tests.
const UNDELAYED: Duration = Duration::from_secs(8);

/// Events in each child of the log's table.
const PER_CHILD: u64 = 100;

/// `[maintenance]` of most tests: retention of a day, decided every second.
const KEEP_A_DAY: &str =
    "[maintenance]\nsweep_interval = \"1s\"\nlog_keep = \"1d\"\nlog_retain_interval = \"1s\"\n";

/// A pipeline that writes log `orders` into the database of its outbox.
pub(crate) struct Fixture {
    pub(crate) name: String,
    pub(crate) config: String,
    pub(crate) sql: Client,
    database: Database,
}

impl Fixture {
    pub(crate) async fn new(version: Version, test: &str, maintenance: &str) -> Self {
        let database = Database::create(version, test).await;
        let name = unique(test);
        let config = format!(
            "{maintenance}[pipelines.{name}]\n\
             [pipelines.{name}.source]\nurl = \"{}\"\n\
             [pipelines.{name}.outbox]\ntable = \"public.outbox\"\n\
             [pipelines.{name}.route]\ntopic = \"orders\"\n\
             [pipelines.{name}.sink]\nkind = \"postgres\"\n\
             [pipelines.{name}.sink.postgres.create]\npartitions = 4\nrows_per_child = {PER_CHILD}\n",
            database.socket_url()
        );
        postrider_ok(&config, &["setup", "--create-table"]);
        let sql = database.connect().await;
        install_toolkit(&sql, "postgres").await;
        Self { name, config, sql, database }
    }

    fn run(&self) -> Relay {
        Relay::spawn(&self.config)
    }

    /// The address of the database.
    pub(crate) fn url(&self) -> String {
        self.database.url()
    }

    /// Writes events of ten aggregates, and waits until the log has them.
    pub(crate) async fn publish(&self, relay: &Relay, count: u64) {
        let before =
            self.number("select coalesce(max(last_seq), 0) from postrider.event_log_head").await;
        let sql = format!(
            "insert into public.outbox (aggregate_type, aggregate_id, event_type, payload) \
             select 'order', (i % 10)::text, 'Written', to_json(i) from generate_series(1, {count}) i"
        );
        self.sql.batch(&sql).await;
        await_that("the events in the log", SOON, || async {
            let sql = "select coalesce(max(last_seq), 0) from postrider.event_log_head";
            let now = self.number(sql).await;
            if now == before + count { Ok(()) } else { Err(format!("{now}\n{}", relay.stderr())) }
        })
        .await;
    }

    /// Makes events older by ten days, up to this number.
    pub(crate) async fn age(&self, to_seq: u64) {
        let sql = format!(
            "update postrider_log.log_orders set appended_at = appended_at - interval '10 days' where seq <= {to_seq}"
        );
        self.sql.batch(&sql).await;
    }

    async fn number(&self, sql: &str) -> u64 {
        let text = self.sql.text(&format!("select ({sql})::text")).await;
        text.and_then(|text| text.parse().ok()).unwrap_or_else(|| panic!("{sql}: no number"))
    }

    /// The tables of events, oldest first, with their states.
    async fn children(&self) -> String {
        let sql = "select string_agg(child || ' ' || state, ', ' order by from_seq) \
                   from postrider.log_children('orders')";
        self.sql.text(sql).await.unwrap_or_default()
    }

    /// Waits until the oldest table of events is this one, attached as all others, and no other table is left.
    async fn await_oldest(&self, relay: &Relay, number: u64) {
        let wanted = format!("log_orders_{number} attached");
        await_that(&wanted, SOON, || async {
            let children = self.children().await;
            let tables = "select count(*) from pg_class where relnamespace = 'postrider_log'::regnamespace \
                          and relkind = 'r'";
            let tables = self.number(tables).await;
            let all: Vec<&str> = children.split(", ").collect();
            let is_so = children.starts_with(&wanted)
                && all.iter().all(|child| child.ends_with("attached"))
                && u64::try_from(all.len()).ok() == Some(tables);
            if is_so { Ok(()) } else { Err(format!("{children}; {tables} tables\n{}", relay.stderr())) }
        })
        .await;
        assert_eq!(
            self.number("select first_seq from postrider.event_log").await,
            number * PER_CHILD
        );
    }

    pub(crate) async fn create_group(&self, name: &str, from: &str, retain_max: &str) {
        let sql = format!(
            "select postrider.create_consumer_group('{name}', 'orders', '{from}', {retain_max})"
        );
        self.sql.batch(&sql).await;
    }

    /// Polls and commits until nothing is left.
    pub(crate) async fn consume(&self, group: &str) {
        let sql = format!(
            "with p as materialized (select * from postrider.poll_outbox('{group}', 'c', 10000)), \
             l as (select lease, max(seq) as seq, count(*) as n from p group by lease) \
             select coalesce((select sum(n) from l \
               where postrider.commit_offset('{group}', 'c', l.seq, l.lease) > 0), 0)"
        );
        while self.number(&sql).await > 0 {}
    }

    /// Sessions of the maintenance of logs.
    async fn sessions(&self) -> u64 {
        let sql = format!(
            "select count(*) from pg_stat_activity where application_name = 'postrider {} log maintenance'",
            self.name
        );
        self.number(&sql).await
    }
}

fn of(status: &Value) -> &Value {
    &status["pipelines"][0]["maintenance"]["event_logs"]
}

fn count(relay: &Relay, words: &str) -> usize {
    relay.stderr().matches(words).count()
}

/// Each duty on each version, with what status, metrics and log say of it.
#[tokio::test]
#[expect(clippy::too_many_lines, reason = "the duties in the order in which a log meets them")]
async fn states_consumers_and_old_events_go_by_themselves() {
    for version in Version::ALL {
        let fixture = Fixture::new(version, "logduty", KEEP_A_DAY).await;
        let relay = fixture.run();
        fixture.publish(&relay, 20).await;
        fixture.create_group("billing", "earliest", "null").await;
        for _ in 0..10 {
            fixture.publish(&relay, 43).await;
            fixture.consume("billing").await;
        }
        // Heads, progress and states: only the newest ones are left.
        await_that("swept states", SOON, || async {
            let rows = fixture
                .number(
                    "select greatest((select count(*) from postrider.event_log_head), \
                     (select count(*) from postrider.event_log_progress), (select max(n) from (select count(*) as n \
                      from postrider.consumer_group_state group by group_name, part) x))",
                )
                .await;
            if rows <= 4 { Ok(()) } else { Err(format!("{rows} rows\n{}", relay.stderr())) }
        })
        .await;
        // Consumers: one has died, one is silent since a moment. At the first reading none is new.
        let read = |status: &Value| of(status)["logs"][0]["groups"][0].is_object();
        relay.await_status("a reading", SOON, read).await;
        fixture
            .sql
            .batch(
                "insert into postrider.consumer_seen values ('billing', 'dead', now() - interval '25 hours'), \
                 ('billing', 'silent', now() - interval '2 minutes')",
            )
            .await;
        relay.await_log("a consumer of group billing is forgotten", SOON).await;
        relay.await_log("consumer=\"silent\"", SOON).await;
        let seen = "select count(*) from postrider.consumer where consumer = 'dead'";
        assert_eq!(fixture.number(seen).await, 0);
        // Events: 450 in five tables, of which two are old and one is old in part.
        fixture.age(250).await;
        fixture.await_oldest(&relay, 2).await;
        relay
            .await_log("2 tables of log orders are dropped, with its events up to 199", SOON)
            .await;
        let read = |status: &Value| {
            let log = &of(status)["logs"][0];
            log["first_seq"] == 200 && log["groups"][0]["consumers_silent"].as_u64() >= Some(1)
        };
        let status = relay.await_status("the log", SOON, read).await;
        let (log, group) = (&of(&status)["logs"][0], &of(&status)["logs"][0]["groups"][0]);
        assert_eq!((&log["log"], &log["last_seq"]), (&"orders".into(), &450.into()), "{status}");
        assert_eq!(
            (&group["group"], &group["lag_events"]),
            (&"billing".into(), &0.into()),
            "{status}"
        );
        assert_eq!(group["evicted"], false, "{status}");
        assert_eq!(of(&status)["dropped_total"], 2, "{status}");
        assert_eq!(of(&status)["failures_total"], 0, "{status}\n{}", relay.stderr());
        let (_, metrics) = relay.get("/metrics").await.expect("an answer");
        let labels = format!("{{pipeline=\"{}\",shard=\"0\",log=\"orders\"", fixture.name);
        for line in [
            format!("postrider_log_last_seq{labels}}} 450.0"),
            format!("postrider_log_retained_events{labels}}} 251.0"),
            format!("postrider_group_lag_events{labels},group=\"billing\"}} 0.0"),
            format!("postrider_group_consumers{labels},group=\"billing\",state=\"silent\"}} "),
            format!("postrider_group_evicted{labels},group=\"billing\"}} 0.0"),
        ] {
            assert!(metrics.contains(&line), "{line}\n{metrics}");
        }
        // What was said once is not said again.
        assert_eq!(count(&relay, "consumer=\"silent\""), 1, "{}", relay.stderr());
        let (host, port) = relay.admin_address();
        let asked = format!("{}\n[admin]\nlisten = \"{host}:{port}\"\n", fixture.config);
        let shown = postrider_ok(&asked, &["status"]);
        assert!(shown.contains("log orders ends with event 450 and has 251 events"), "{shown}");
        assert!(shown.contains("group billing: 0 events to read; "), "{shown}");
        assert_eq!(relay.terminate(SOON).await.code, Some(0));
        assert_eq!(fixture.sessions().await, 0);
    }
}

/// Nothing is dropped unless it was asked for.
#[tokio::test]
async fn without_log_keep_everything_stays() {
    let fixture =
        Fixture::new(Version::Pg17, "logstay", "[maintenance]\nlog_retain_interval = \"1s\"\n")
            .await;
    let relay = fixture.run();
    fixture.publish(&relay, 450).await;
    fixture.age(450).await;
    // Two readings, which are 10 s apart.
    let runs = |status: &Value| of(status)["logs"][0]["last_seq"] == 450;
    relay.await_status("the log", SOON, runs).await;
    fixture.publish(&relay, 1).await;
    let runs = |status: &Value| of(status)["logs"][0]["last_seq"] == 451;
    let status = relay.await_status("the log again", SOON, runs).await;
    assert_eq!(of(&status)["dropped_total"], 0, "{status}");
    assert_eq!(fixture.number("select first_seq from postrider.event_log").await, 1);
    assert_eq!(relay.terminate(SOON).await.code, Some(0));
}

/// A group that has not read old events keeps them, and the log says so once; when it has read them they go.
#[tokio::test]
async fn a_group_that_is_behind_holds_tables_back_until_it_has_read_them() {
    let fixture = Fixture::new(Version::Pg16, "loghold", KEEP_A_DAY).await;
    let relay = fixture.run();
    fixture.publish(&relay, 150).await;
    fixture.create_group("slow", "earliest", "null").await;
    fixture.create_group("quick", "latest", "10").await;
    fixture.publish(&relay, 300).await;
    fixture.age(450).await;
    relay.await_log("group slow holds 399 events of log orders back", SOON).await;
    let held = |status: &Value| {
        let groups = of(status)["logs"][0]["groups"].as_array();
        groups.is_some_and(|groups| groups.len() == 2 && groups[1]["held_events"] == 399)
    };
    let status = relay.await_status("what is held", SOON, held).await;
    // Eviction is off: the other one only holds back what it has not read.
    assert_eq!(of(&status)["logs"][0]["groups"][0]["held_events"], 300, "{status}");
    assert_eq!(fixture.number("select first_seq from postrider.event_log").await, 1);
    fixture.consume("quick").await;
    fixture.consume("slow").await;
    fixture.await_oldest(&relay, 4).await;
    relay.await_log("no group holds events of log orders back any more", SOON).await;
    assert_eq!(count(&relay, "group slow holds"), 1, "{}", relay.stderr());
    assert_eq!(count(&relay, "group quick holds"), 1, "{}", relay.stderr());
    assert_eq!(relay.terminate(SOON).await.code, Some(0));
}

/// Further behind than `retain_max`, and in the way: evicted, reported once, refused, and resumed.
#[tokio::test]
async fn an_evicted_group_is_refused_until_it_is_resumed() {
    for version in [Version::Pg15, Version::Pg18] {
        let evict = format!("{KEEP_A_DAY}log_evict = true\n");
        let fixture = Fixture::new(version, "logevict", &evict).await;
        let relay = fixture.run();
        fixture.publish(&relay, 10).await;
        fixture.create_group("lost", "earliest", "420").await;
        fixture.create_group("kept", "earliest", "450").await;
        fixture.publish(&relay, 440).await;
        fixture.consume("kept").await;
        fixture.age(350).await;
        fixture.await_oldest(&relay, 3).await;
        relay.await_log("group lost is evicted", SOON).await;
        let evicted = |status: &Value| of(status)["logs"][0]["groups"][1]["evicted"] == true;
        let status = relay.await_status("the eviction", SOON, evicted).await;
        assert_eq!(of(&status)["logs"][0]["groups"][0]["evicted"], false, "{status}");
        let refused =
            fixture.sql.simple_query("select * from postrider.poll_outbox('lost', 'c')").await;
        let refused = describe(&refused.expect_err("an evicted group"));
        assert!(refused.starts_with("PR113"), "{refused}");
        assert_eq!(count(&relay, "group lost is evicted"), 1, "{}", relay.stderr());
        relay.await_log("postrider groups resume lost", SOON).await;
        let said = postrider_ok(&fixture.config, &["groups", "resume", "lost"]);
        assert_eq!(
            said,
            "group lost of log orders continues; 299 events that it had not done are gone, dropped by retention\n"
        );
        let first = "select min(seq) from postrider.poll_outbox('lost', 'c', 1000)";
        assert_eq!(fixture.number(first).await, 300);
        let back = |status: &Value| of(status)["logs"][0]["groups"][1]["evicted"] == false;
        relay.await_status("the group back", SOON, back).await;
        assert_eq!(relay.terminate(SOON).await.code, Some(0));
    }
}

/// A transaction that reads the log stays open: the detach is interrupted by its time-out, polls and appends go on, and
/// the detach is finished later.
#[tokio::test]
async fn a_reader_that_stays_open_delays_the_drop_and_neither_polls_nor_appends() {
    for version in [Version::Pg15, Version::Pg18] {
        let fixture = Fixture::new(version, "logopen", KEEP_A_DAY).await;
        let relay = fixture.run();
        fixture.publish(&relay, 250).await;
        fixture.create_group("billing", "latest", "null").await;
        let reader = fixture.database.connect().await;
        reader.batch("begin; select count(*) from postrider_log.log_orders").await;
        fixture.age(150).await;
        await_that("a detach that waits", SOON, || async {
            let children = fixture.children().await;
            if children.starts_with("log_orders_0 detaching") { Ok(()) } else { Err(children) }
        })
        .await;
        let failed = |status: &Value| of(status)["failures_total"].as_u64() >= Some(1);
        let waits = relay.await_status("a time-out", SOON, failed);
        let polls = async {
            for _ in 0..5 {
                let start = Instant::now();
                fixture.publish(&relay, 30).await;
                fixture.consume("billing").await;
                assert!(start.elapsed() < UNDELAYED, "{:?}", start.elapsed());
            }
        };
        let (status, ()) = tokio::join!(waits, polls);
        let hint = of(&status)["hint"].as_str().unwrap_or_default();
        assert!(hint.contains("pg_stat_activity"), "{status}");
        // The reader still sees what it saw.
        let seen = reader
            .text("select count(*)::text from postrider_log.log_orders where seq < 100")
            .await;
        assert!(seen.is_some());
        assert_eq!(status["pipelines"][0]["state"], "streaming", "{status}");
        reader.batch("commit").await;
        fixture.await_oldest(&relay, 1).await;
        let well = |status: &Value| of(status)["reason"].is_null();
        relay.await_status("it works again", SOON, well).await;
        relay.await_log("maintenance of event logs works again", SOON).await;
        assert_eq!(relay.terminate(SOON).await.code, Some(0));
    }
}

/// The relay is killed while a detach waits, and its session with it.
#[tokio::test]
async fn a_relay_that_is_killed_in_a_detach_leaves_what_the_next_one_finishes() {
    let fixture = Fixture::new(Version::Pg17, "logkill", KEEP_A_DAY).await;
    let relay = fixture.run();
    fixture.publish(&relay, 350).await;
    let reader = fixture.database.connect().await;
    reader.batch("begin; select count(*) from postrider_log.log_orders").await;
    fixture.age(250).await;
    await_that("a detach that waits", SOON, || async {
        let children = fixture.children().await;
        if children.starts_with("log_orders_0 detaching") { Ok(()) } else { Err(children) }
    })
    .await;
    relay.kill().await;
    reader.batch("commit").await;
    let relay = fixture.run();
    fixture.await_oldest(&relay, 2).await;
    assert_eq!(relay.terminate(SOON).await.code, Some(0));
}

/// Whatever was done when a process ended: decided; detached in part; detached.
#[tokio::test]
async fn each_step_of_a_drop_is_found_again() {
    for version in Version::ALL {
        let fixture = Fixture::new(version, "logsteps", "").await;
        let relay = fixture.run();
        fixture.publish(&relay, 450).await;
        assert_eq!(relay.terminate(SOON).await.code, Some(0));
        fixture.age(450).await;
        let decided = "select string_agg(child || ' ' || state, ', ') from postrider.log_retain('orders', '1 day')";
        let decided = fixture.sql.text(decided).await.unwrap_or_default();
        assert_eq!(
            decided,
            "log_orders_0 attached, log_orders_1 attached, log_orders_2 attached, log_orders_3 attached"
        );
        let detach = |number: u64| {
            format!(
                "alter table postrider_log.log_orders detach partition postrider_log.log_orders_{number} concurrently"
            )
        };
        fixture.sql.batch(&detach(0)).await;
        let reader = fixture.database.connect().await;
        reader.batch("begin; select count(*) from postrider_log.log_orders").await;
        fixture.sql.batch("set statement_timeout = '300ms'").await;
        let interrupted = fixture.sql.batch_execute(&detach(2)).await;
        assert!(interrupted.is_err());
        fixture.sql.batch("reset statement_timeout").await;
        reader.batch("commit").await;
        let children = fixture.children().await;
        let left = "log_orders_0 detached, log_orders_1 attached, log_orders_2 detaching, log_orders_3 attached, ";
        assert!(children.starts_with(left), "{children}");
        // A table of somebody else's is left alone, and so is one that was renamed.
        fixture
            .sql
            .batch(
                "create table postrider_log.log_orders_00 (like postrider_log.log_orders_1 including constraints); \
                 create table public.log_orders_0 (seq int)",
            )
            .await;
        let config = format!("{KEEP_A_DAY}{}", fixture.config);
        let relay = Relay::spawn(&config);
        await_that("nothing but what is kept", SOON, || async {
            let children = fixture.children().await;
            let is_so =
                children.starts_with("log_orders_4 attached") && !children.contains(" deta");
            if is_so { Ok(()) } else { Err(format!("{children}\n{}", relay.stderr())) }
        })
        .await;
        let left =
            "select count(*) from pg_class where relname in ('log_orders_00', 'log_orders_0')";
        assert_eq!(fixture.number(left).await, 2);
        // The log goes on.
        fixture.publish(&relay, 10).await;
        assert_eq!(relay.terminate(SOON).await.code, Some(0));
    }
}

/// Its row of the log and retention exclude each other: whichever is first, the other one sees it.
#[tokio::test]
async fn a_group_that_is_created_at_earliest_while_retention_decides_loses_nothing() {
    for version in [Version::Pg15, Version::Pg18] {
        let fixture = Fixture::new(version, "lograce", "").await;
        let relay = fixture.run();
        fixture.publish(&relay, 450).await;
        assert_eq!(relay.terminate(SOON).await.code, Some(0));
        fixture.age(250).await;
        let waits = |pid: String| {
            let sql = format!("select count(*) from pg_locks where pid = {pid} and not granted");
            let fixture = &fixture;
            async move {
                await_that("a session that waits", SOON, || async {
                    match fixture.number(&sql).await {
                        0 => Err("no lock is waited for"),
                        _ => Ok(()),
                    }
                })
                .await;
            }
        };
        let (first, second) = (fixture.database.connect().await, fixture.database.connect().await);
        let pid = second.text("select pg_backend_pid()::text").await.expect("a pid");
        let create = |name: &str| {
            format!("select postrider.create_consumer_group('{name}', 'orders', 'earliest')")
        };
        let retain = "select count(*)::text from postrider.log_retain('orders', '1 day')";
        // The group is first: nothing may be dropped.
        first.batch(&format!("begin; {}", create("before"))).await;
        let decided = async { second.text(retain).await.expect("a count") };
        let commits = async {
            waits(pid.clone()).await;
            first.batch("commit").await;
        };
        let (decided, ()) = tokio::join!(decided, commits);
        assert_eq!(decided, "0");
        assert_eq!(fixture.number("select first_seq from postrider.event_log").await, 1);
        // Retention is first: the group begins with what is kept.
        first.batch("select postrider.drop_consumer_group('before')").await;
        first.batch(&format!("begin; {retain}")).await;
        let creates = async { second.batch(&create("after")).await };
        let commits = async {
            waits(pid).await;
            first.batch("commit").await;
        };
        tokio::join!(creates, commits);
        assert_eq!(fixture.number("select first_seq from postrider.event_log").await, 200);
        let lag = "select sum(lag) from postrider.consumer_lag('after')";
        assert_eq!(fixture.number(lag).await, 251);
        let first_event = "select min(seq) from postrider.poll_outbox('after', 'c', 1000)";
        assert_eq!(fixture.number(first_event).await, 200);
    }
}

/// Another session has the pipeline's lock: a process that stands by opens no session, and drops nothing.
#[tokio::test]
async fn process_that_stands_by_maintains_no_log() {
    // Longer than it takes until the first run of an owner.
    const LONG_ENOUGH: Duration = Duration::from_secs(12);
    let fixture = Fixture::new(Version::Pg17, "logidle", "").await;
    let relay = fixture.run();
    fixture.publish(&relay, 450).await;
    assert_eq!(relay.terminate(SOON).await.code, Some(0));
    fixture.age(450).await;
    let lock =
        format!("select pg_advisory_lock(hashtextextended('postrider poll {}', 0))", fixture.name);
    let owner = fixture.database.connect().await;
    owner.batch(&lock).await;
    let relay = Relay::spawn(&format!("{KEEP_A_DAY}{}", fixture.config));
    relay.await_state("standing_by", SOON).await;
    let since = Instant::now();
    await_that("some time as a standby process", SOON, || async {
        assert_eq!(fixture.sessions().await, 0);
        if since.elapsed() >= LONG_ENOUGH { Ok(()) } else { Err("not yet") }
    })
    .await;
    assert_eq!(fixture.number("select first_seq from postrider.event_log").await, 1);
    let status = relay.status().await.expect("a status");
    assert!(of(&status)["last_run_seconds"].is_null(), "{status}");
    drop(owner);
    fixture.await_oldest(&relay, 4).await;
    assert_eq!(relay.terminate(SOON).await.code, Some(0));
}

/// The statement that grants what the role lacks is shown, and works; meanwhile the events are published, and the steps
/// that lack nothing are done.
#[tokio::test]
async fn right_that_is_missing_is_named_by_the_statement_that_grants_it() {
    let fixture = Fixture::new(Version::Pg17, "logright", KEEP_A_DAY).await;
    let role = &fixture.name;
    fixture
        .sql
        .batch(&format!("create role {role} login replication; grant select on outbox to {role}"))
        .await;
    fixture
        .sql
        .batch(&format!(
            "grant usage on schema postrider to {role}; grant all on all tables in schema postrider to {role}"
        ))
        .await;
    install_toolkit(&fixture.sql, role).await;
    fixture
        .sql
        .batch(&format!("revoke delete on postrider.consumer_group_state from {role}"))
        .await;
    let config = fixture.config.replace("user=postgres", &format!("user={role}"));
    let relay = Relay::spawn(&config);
    fixture.publish(&relay, 450).await;
    fixture.create_group("billing", "earliest", "null").await;
    for _ in 0..8 {
        fixture.publish(&relay, 10).await;
        fixture.consume("billing").await;
    }
    let hinted = |status: &Value| of(status)["hint"].is_string();
    let status = relay.await_status("what is missing", SOON, hinted).await;
    let hint = of(&status)["hint"].as_str().expect("a hint");
    assert_eq!(hint, format!("GRANT DELETE ON TABLE postrider.consumer_group_state TO {role};"));
    assert!(of(&status)["reason"].as_str().expect("a reason").contains("42501"), "{status}");
    fixture.publish(&relay, 1).await;
    fixture.consume("billing").await;
    fixture.age(250).await;
    fixture.await_oldest(&relay, 2).await;
    fixture.sql.batch(hint).await;
    relay.await_log("maintenance of event logs works again", SOON).await;
    let well = |status: &Value| of(status)["reason"].is_null();
    relay.await_status("it works again", SOON, well).await;
    assert_eq!(relay.terminate(SOON).await.code, Some(0));
    fixture.sql.batch(&format!("drop owned by {role} cascade; drop role {role}")).await;
}
