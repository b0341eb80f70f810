//! The query of each panel over a live Prometheus that scrapes running processes, while something happens to everything
//! that a panel shows; and values of metrics, as Prometheus has them, against what was done.

use super::panels::ROWS;
use crate::alerts::shortened_rules;
use crate::await_that::{SOON, await_or_dump, await_that};
use crate::inbox_run::{self, Written};
use crate::log_maintenance;
use crate::parking::Scene;
use crate::pipeline::{Pipeline, show};
use crate::polling::polls;
use crate::private::{PrivateKafka, PrivatePostgres, free_port};
use crate::prometheus::Prometheus;
use crate::relay::{Relay, postrider_ok};
use crate::server::{Client, Version, brokers};
use crate::topic::{Topic, Topics, client_config};
use rdkafka::producer::{BaseProducer, Producer};
use std::time::{Duration, SystemTime};
use tokio::net::TcpStream;

/// Time between two scrapes. Grafana's `$__rate_interval` is four of them.
const SCRAPE: Duration = Duration::from_secs(1);
const RATE_INTERVAL: &str = "4s";

/// `[maintenance]` of the process: events older than a day are dropped.
const MAINTENANCE: &str = "[maintenance]\nsweep_interval = \"1s\"\nlog_keep = \"1d\"\nlog_retain_interval = \"1s\"\n\
                           inbox_drain_interval = \"1s\"\n";

/// Groups and inboxes with metrics of their own, as `docs/metrics.md` says.
const GROUPS_MAX: u32 = 200;
const INBOXES_MAX: u32 = 100;

/// The pipelines of one process, an intake in another one, and the Prometheus that scrapes both.
struct Watched {
    prometheus: Prometheus,
    relay: Relay,
    intake: Relay,
}

impl Watched {
    /// Waits until Prometheus has a value of `query` that is as `wanted` says.
    async fn fits(&self, query: &str, wanted: impl Fn(f64) -> bool) {
        let look = || async {
            let found = self.prometheus.query(query).await?;
            let values: Vec<f64> =
                found.iter().flat_map(|series| &series.samples).map(|(_, value)| *value).collect();
            if values.iter().any(|value| wanted(*value)) {
                Ok(())
            } else {
                Err(format!("{values:?}"))
            }
        };
        let logs = || format!("{}\n--- intake\n{}", self.relay.stderr(), self.intake.stderr());
        await_or_dump(query, SOON, look, logs).await;
    }

    /// Waits until Prometheus has this value of `query`.
    async fn is(&self, query: &str, wanted: f64) {
        let equal = |value: f64| (value - wanted).abs() < 1e-6;
        self.fits(query, equal).await;
    }

    async fn is_at_least(&self, query: &str, wanted: f64) {
        self.fits(query, |value| value >= wanted).await;
    }
}

/// A series of a pipeline; `more`: further labels, behind a comma.
fn of(pipeline: &Pipeline, metric: &str, more: &str) -> String {
    of_name(&pipeline.name, metric, more)
}

fn of_name(pipeline: &str, metric: &str, more: &str) -> String {
    format!("{metric}{{pipeline=\"{pipeline}\"{more}}}")
}

/// Inserts events that are so many days old.
async fn insert_old(pipeline: &Pipeline, rows: u32, days: u32) {
    let sql = format!(
        "insert into public.outbox (aggregate_type, aggregate_id, event_type, payload, created_at) \
         select 'order', (i % 10)::text, 'Written', to_json(i), now() - interval '{days} days' \
         from generate_series(1, {rows}) i"
    );
    pipeline.sql.batch(&sql).await;
}

/// The broker of two pipelines, of which one polls, is frozen under load, and the slot of the other one grows; its
/// session is ended, and what is in flight has the size that was sent.
async fn flow(watched: &Watched, flow: &Pipeline, polled: &Pipeline, kafka: &PrivateKafka) {
    const EVENTS: u32 = 50;
    const PAYLOAD: u32 = 2_000;
    // Beside the payload: key and headers, at most so many bytes, and the overhead of `docs/metrics.md`.
    const MORE_MAX: u32 = 600;
    const OVERHEAD: u32 = 768;
    let published = ",outcome=\"published\"";
    for pipeline in [flow, polled] {
        pipeline.insert(200).await;
        watched.is(&of(pipeline, "postrider_events_total", published), 200.0).await;
    }
    watched.is(&of(flow, "postrider_bookmarks_dropped_total", ""), 1.0).await;
    watched.is(&of(flow, "postrider_parked_pruned_total", ""), 3.0).await;
    watched.is_at_least(&of(flow, "postrider_retention_failures_total", ""), 2.0).await;

    kafka.freeze();
    let large = format!(
        "insert into public.outbox (aggregate_type, aggregate_id, event_type, payload) \
         select 'order', (i % 10)::text, 'Large', to_json(repeat('x', {PAYLOAD} - 2)) \
         from generate_series(1, {EVENTS}) i"
    );
    flow.sql.batch(&large).await;
    polled.insert(10).await;
    watched.is(&of(flow, "postrider_in_flight_events", ""), f64::from(EVENTS)).await;
    let least = f64::from(EVENTS * (PAYLOAD + OVERHEAD));
    let most = f64::from(EVENTS * (PAYLOAD + OVERHEAD + MORE_MAX));
    let bytes = of(flow, "postrider_in_flight_bytes", "");
    watched.fits(&bytes, |value| (least..most).contains(&value)).await;
    let growth = of(flow, "postrider_slot_retained_bytes", "");
    let growth = format!("deriv({growth}[10m]) > 0");
    await_that("a slot that grows", SOON, || async {
        // A megabyte of WAL.
        let wal = "select pg_logical_emit_message(false, 'filler', repeat('x', 1000000))";
        flow.sql.batch(wal).await;
        let found = watched.prometheus.query(&growth).await?;
        if found.is_empty() { Err("not yet".to_owned()) } else { Ok(()) }
    })
    .await;
    watched.is_at_least(&of(flow, "postrider_lag_seconds", ""), 2.0).await;
    watched.is_at_least(&of(flow, "postrider_lag_bytes", ""), 100_000.0).await;
    kafka.thaw();
    let all = f64::from(200 + EVENTS);
    watched.is(&of(flow, "postrider_events_total", published), all).await;
    watched.is(&of(polled, "postrider_events_total", published), 210.0).await;
    watched.is(&of(flow, "postrider_in_flight_bytes", ""), 0.0).await;
    watched.is(&of(flow, "postrider_publish_latency_seconds_count", ""), all).await;

    let cut = format!(
        "select pg_terminate_backend(active_pid) from pg_replication_slots where slot_name = '{}'",
        flow.slot()
    );
    flow.sql.batch(&cut).await;
    let lost = of(flow, "postrider_reconnects_total", ",side=\"source\"");
    watched.is_at_least(&lost, 1.0).await;

    postrider_ok(&polled.config, &["pause", &polled.name]);
    watched.is(&of(polled, "postrider_state", ",state=\"paused\""), 1.0).await;
    postrider_ok(&polled.config, &["resume", &polled.name]);
    watched.is(&of(polled, "postrider_state", ",state=\"polling\""), 1.0).await;
}

/// An event that the broker refuses, one behind it, and maintenance whose table `holder` has locked; another pipeline
/// halts.
async fn parking(watched: &Watched, scene: &mut Scene, holder: &Client, halted: &Pipeline) {
    let poison = "alter table outbox alter event_type drop not null; \
                  insert into outbox (aggregate_type, aggregate_id) values ('order', 'a')";
    halted.sql.batch(poison).await;
    scene.insert(&["!a", "a"]).await;
    let parked = &scene.pipeline;
    for (metric, more, wanted) in [
        ("postrider_parked_events", ",state=\"waiting\"", 1.0),
        ("postrider_parked_events", ",state=\"behind\"", 1.0),
    ] {
        watched.is(&of(parked, metric, more), wanted).await;
    }
    watched.is_at_least(&of(parked, "postrider_events_total", ",outcome=\"parked\""), 1.0).await;
    watched.is_at_least(&of(parked, "outbox_failures", ",event_type=\"T\""), 1.0).await;
    watched.is_at_least(&of(parked, "postrider_parked_attempts", ""), 3.0).await;
    watched.is_at_least(&of(parked, "postrider_parked_oldest_seconds", ""), 3.0).await;
    watched.is(&of(halted, "postrider_halted", ",code=\"PR011\""), 1.0).await;
    watched.is_at_least(&of(parked, "postrider_maintenance_failures_total", ""), 1.0).await;
    holder.batch("rollback").await;
    watched.fits(&of(parked, "postrider_maintenance_last_run_seconds", ""), |_| true).await;
    scene.raise_the_limit().await;
    watched.is(&format!("sum({})", of(&scene.pipeline, "postrider_parked_events", "")), 0.0).await;
}

/// Transactions of Kafka, expired events, and a producer that is fenced off.
async fn transactions(watched: &Watched, exact: &Pipeline) {
    let insert = "insert into outbox (aggregate_type, aggregate_id, event_type, payload, topic, expires_at) \
                  select 'order', gen_random_uuid(), 'T', to_jsonb(i), 't', \
                    case i % 2 when 0 then now() - interval '1 second' else now() + interval '1 hour' end \
                  from generate_series(1, 20) i";
    exact.sql.batch(insert).await;
    watched.is(&of(exact, "postrider_sink_transaction_records_total", ""), 10.0).await;
    watched.is(&of(exact, "postrider_skipped_total", ",reason=\"expired\""), 10.0).await;
    let other = exact.name.clone();
    let fencing = tokio::task::spawn_blocking(move || {
        let mut config = client_config(&brokers());
        config.set("transactional.id", other);
        let producer: BaseProducer = config.create().expect("a producer");
        producer.init_transactions(SOON).expect("the transactional id");
    });
    fencing.await.expect("a producer");
    exact.sql.batch(insert).await;
    watched.is_at_least(&of(exact, "postrider_sink_fenced_total", ""), 1.0).await;
    watched.is(&of(exact, "postrider_sink_transaction_records_total", ""), 20.0).await;
    watched
        .is_at_least(&of(exact, "postrider_sink_transactions_total", ",outcome=\"committed\""), 2.0)
        .await;
    watched.is_at_least(&of(exact, "postrider_sink_commit_seconds_count", ""), 2.0).await;
}

/// Rows that are removed, kept by a bookmark, and kept by a replay; partitions that are created and dropped.
async fn retention(watched: &Watched, rows: &Pipeline, parts: &Pipeline) {
    insert_old(rows, 100, 8).await;
    let removed = of(rows, "postrider_retention_removed_rows_total", "");
    watched.is(&removed, 100.0).await;
    postrider_ok(&rows.config, &["bookmark", "create", "hold"]);
    insert_old(rows, 50, 8).await;
    let held = of(rows, "postrider_retention_held_rows", ",reason=\"bookmark\"");
    watched.is(&held, 50.0).await;
    let replay = format!(
        "insert into postrider.replay (pipeline, name, request, source) values ('{}', 'r1', '{{}}', 'table')",
        rows.name
    );
    rows.sql.batch(&replay).await;
    let blocked = of(rows, "postrider_retention_blocked", ",reason=\"replay\"");
    watched.is(&blocked, 1.0).await;
    rows.sql.batch("update postrider.replay set finished_at = now()").await;
    watched.is(&format!("absent({blocked})"), 1.0).await;
    postrider_ok(&rows.config, &["bookmark", "drop", "hold"]);
    watched.is(&removed, 150.0).await;
    watched.fits(&of(rows, "postrider_retention_last_run_seconds", ""), |_| true).await;
    for metric in [
        "postrider_retention_partitions_created_total",
        "postrider_retention_partitions_removed_total",
    ] {
        watched.is_at_least(&of(parts, metric, ""), 1.0).await;
    }
}

/// An event log with groups: one that reads, one with leases that it does not commit, an evicted one, and more than
/// have metrics of their own.
async fn event_logs(watched: &Watched, logs: &log_maintenance::Fixture) {
    let of = |metric: &str, more: &str| of_name(&logs.name, metric, more);
    logs.publish(&watched.relay, 250).await;
    watched.is(&of("postrider_log_last_seq", ",log=\"orders\""), 250.0).await;
    for group in ["billing", "evicted", "stuck"] {
        logs.create_group(group, "earliest", "null").await;
    }
    // A batch that is never committed, and a consumer that has not been heard of for two minutes.
    logs.sql
        .batch(&format!(
            "select postrider.evict_consumer_group('evicted');
             select postrider.consumer_heartbeat('stuck', 'alive');
             select count(*) from postrider.poll_outbox('stuck', 'alive', 1000, 3600);
             insert into postrider.consumer_seen values ('stuck', 'silent', now() - interval '2 minutes');
             select postrider.create_consumer_group('x' || i, 'orders', 'latest')
               from generate_series(1, {GROUPS_MAX}) i"
        ))
        .await;
    logs.age(150).await;
    let parts = logs.sql.text("select count(distinct part) from postrider_log.log_orders").await;
    let parts: f64 = parts.expect("a count").parse().expect("a number");
    let group = |group: &str, more: &str| format!(",log=\"orders\",group=\"{group}\"{more}");
    for (metric, labels, wanted) in [
        ("postrider_group_lag_events", group("stuck", ""), 250.0),
        ("postrider_group_consumers", group("stuck", ",state=\"silent\""), 1.0),
        ("postrider_group_consumers", group("stuck", ",state=\"alive\""), 1.0),
        ("postrider_group_leased_partitions", group("stuck", ""), parts),
        ("postrider_group_deliveries", group("stuck", ""), 1.0),
        ("postrider_group_evicted", group("evicted", ""), 1.0),
        ("postrider_groups_unreported", String::new(), 3.0),
    ] {
        watched.is(&of(metric, &labels), wanted).await;
    }
    // Events 1 to 150 were made older by ten days.
    let age = of("postrider_group_lag_seconds", &group("stuck", ""));
    watched.fits(&age, |seconds| (863_000.0..870_000.0).contains(&seconds)).await;
    // The first table has events 0 to 99, of which the log has 99, and all of them are old enough.
    watched.is(&of("postrider_group_held_events", &group("stuck", "")), 99.0).await;
    watched.is(&of("postrider_log_retained_events", ",log=\"orders\""), 250.0).await;

    logs.consume("billing").await;
    logs.sql
        .batch(&format!(
            "select postrider.drop_consumer_group(name) from (values ('evicted'), ('stuck')) g (name);
             select postrider.drop_consumer_group('x' || i) from generate_series(1, {GROUPS_MAX}) i"
        ))
        .await;
    watched.is(&of("postrider_log_children_dropped_total", ""), 1.0).await;
    watched.is(&of("postrider_log_retained_events", ",log=\"orders\""), 151.0).await;
    watched.is(&of("postrider_group_lag_events", &group("billing", "")), 0.0).await;
    watched.is(&of("postrider_groups_unreported", ""), 0.0).await;
    let rename = |from: &str, to: &str| {
        format!("alter function postrider.{from}(integer, integer) rename to {to}")
    };
    logs.sql.batch(&rename("sweep_states", "gone")).await;
    watched.is_at_least(&of("postrider_log_maintenance_failures_total", ""), 1.0).await;
    logs.sql.batch(&rename("gone", "sweep_states")).await;
    watched.fits(&of("postrider_log_maintenance_last_run_seconds", ""), |age| age < 10.0).await;
}

/// Inboxes with pending, dead, missing and old messages, and more inboxes than have metrics of their own.
async fn inboxes(watched: &Watched, logs: &log_maintenance::Fixture) {
    let of = |metric: &str, more: &str| {
        of_name(&logs.name, metric, &format!(",database=\"source\"{more}"))
    };
    logs.sql
        .batch(
            "insert into postrider_inbox.mail (event_id, dead_at) values ('m-1', now());
             insert into postrider_inbox.mail (event_id, received_at) values ('m-2', now() - interval '1 hour');
             insert into postrider_inbox.mail (event_id, processed_at)
               select 'old-' || i, now() - interval '80 hours' from generate_series(1, 30) i;
             insert into postrider_inbox.stock (event_id, aggregate_id, sequence_num) values ('s-2', 'a', 2)",
        )
        .await;
    for (metric, labels, wanted) in [
        ("postrider_inbox_drained_messages_total", "", 30.0),
        ("postrider_inboxes_unreported", "", 2.0),
        ("postrider_inbox_dead_messages", ",inbox=\"mail\"", 1.0),
        ("postrider_inbox_pending_messages", ",inbox=\"mail\"", 1.0),
        ("postrider_inbox_degraded", ",inbox=\"mail\"", 1.0),
        ("postrider_inbox_gaps", ",inbox=\"stock\"", 1.0),
    ] {
        watched.is(&of(metric, labels), wanted).await;
    }
    let age = of("postrider_inbox_oldest_pending_seconds", ",inbox=\"mail\"");
    watched.fits(&age, |seconds| (3_600.0..4_000.0).contains(&seconds)).await;
    logs.sql
        .batch(&format!(
            "select postrider.drop_inbox('x' || i, p_cascade => true) from generate_series(1, {INBOXES_MAX}) i"
        ))
        .await;
    watched.is(&of("postrider_inboxes_unreported", ""), 0.0).await;
    logs.sql.batch("alter table postrider_inbox.mail rename to mail_gone").await;
    watched.is_at_least(&of("postrider_inbox_maintenance_failures_total", ""), 1.0).await;
    logs.sql.batch("alter table postrider_inbox.mail_gone rename to mail").await;
    watched.fits(&of("postrider_inbox_maintenance_last_run_seconds", ""), |age| age < 10.0).await;
}

/// Records of an intake: what of 70 records is stored waits in the inbox, which is full, and the rest is the lag. A
/// record of the other partition can't be stored. Then both are over.
async fn intakes(watched: &Watched, world: &inbox_run::World, topic: &Topic) {
    watched.is("postrider_intake_blocked_partitions", 1.0).await;
    watched.is("postrider_intake_partitions", 1.0).await;
    watched.is("postrider_intake_state{state=\"full\"}", 1.0).await;
    write_records(topic, 50).await;
    let stored = "postrider_intake_messages_total{outcome=\"stored\"}";
    let all = format!("sum({stored}) + sum(postrider_intake_lag_records)");
    watched.is(&all, 70.0).await;
    watched.is_at_least("postrider_intake_lag_records", 40.0).await;
    watched.is(&format!("sum(postrider_intake_pending_messages) - sum({stored})"), 0.0).await;
    watched.is_at_least("postrider_intake_last_stored_seconds", 2.0).await;
    world.sql.batch("alter table postrider_inbox.jobs drop constraint no_first").await;
    let work = "with batch as materialized (select * from postrider.inbox_next('jobs', 'w', 1000)) \
                select postrider.inbox_done('jobs', array_agg(event_id)) from batch having count(*) > 0";
    await_that("everything stored and processed", SOON, || async {
        world.sql.batch(work).await;
        let found = watched.prometheus.query(&format!("sum({stored})")).await?;
        let stored = found.first().and_then(|series| series.samples.first());
        if stored.is_some_and(|(_, value)| *value >= 71.0) {
            Ok(())
        } else {
            Err(format!("{found:?}"))
        }
    })
    .await;
    watched.is("postrider_intake_blocked_partitions", 0.0).await;
    watched.is("postrider_intake_lag_records", 0.0).await;
    watched.is("postrider_intake_partitions", 2.0).await;
}

/// Writes records to the first partition.
async fn write_records(topic: &Topic, count: usize) {
    let record =
        Written { partition: Some(0), key: Some(b"k"), value: Some(b"{}"), ..Written::default() };
    inbox_run::write(topic, &vec![record; count]).await;
}

/// The figures of the process against those of the host, and a connection that asks for nothing.
async fn process(watched: &Watched) {
    let relay = &watched.relay;
    let silent = TcpStream::connect(relay.admin_address()).await.expect("a connection");
    let of =
        |metric: &str| format!("{metric}{{instance=\"127.0.0.1:{}\"}}", relay.admin_address().1);
    let memory = of("process_resident_memory_bytes");
    watched
        .fits(&memory, |bytes| {
            let (kib, _) = relay.memory_kib();
            let now = f64::from(u32::try_from(kib).expect("less than 4 TiB")) * 1024.0;
            (bytes - now).abs() < 0.2 * now
        })
        .await;
    let open = of("process_open_fds");
    watched
        .fits(&open, |open| {
            let now = u32::try_from(relay.descriptors()).expect("a number");
            (open - f64::from(now)).abs() < 12.0
        })
        .await;
    // Clock ticks are 10 ms.
    let cpu = of("process_cpu_seconds_total");
    watched
        .fits(&cpu, |seconds| {
            let now = f64::from(u32::try_from(relay.cpu_ticks()).expect("a number")) / 100.0;
            seconds > 0.0 && seconds <= now + 0.02 && seconds > now - 5.0
        })
        .await;
    watched.is_at_least(&of("process_max_fds"), 100.0).await;
    let age = format!("time() - {}", of("process_start_time_seconds"));
    watched.fits(&age, |seconds| (0.0..600.0).contains(&seconds)).await;
    let late = format!(
        "postrider_admin_connections_closed_total{{reason=\"late\",instance=\"127.0.0.1:{}\"}}",
        relay.admin_address().1
    );
    watched.is_at_least(&late, 1.0).await;
    drop(silent);
}

/// A query of the dashboard with everything chosen.
fn chosen(expr: &str, instances: &str) -> String {
    [
        ("$__rate_interval", RATE_INTERVAL),
        ("$pipeline", ".*"),
        ("$intake", ".*"),
        ("$instance", instances),
    ]
    .into_iter()
    .fold(expr.to_owned(), |expr, (variable, value)| expr.replace(variable, value))
}

/// Each query of each panel has had a value other than 0 in the run.
async fn assert_panels_have_data(prometheus: &Prometheus, since: SystemTime, ports: &[u16]) {
    let instances: Vec<String> =
        ports.iter().map(|port| format!("127\\\\.0\\\\.0\\\\.1:{port}")).collect();
    let instances = format!("({})", instances.join("|"));
    let (now, mut empty, mut queries, mut shown) = (SystemTime::now(), Vec::new(), 0, 0);
    for panel in ROWS.iter().flat_map(|row| row.panels) {
        for query in panel.queries {
            let expr = chosen(&query.expr(), &instances);
            assert!(!expr.contains('$'), "a variable without a value: {expr}");
            let found = prometheus.over(&expr, since, now).await;
            let found = found.unwrap_or_else(|error| panic!("{}: {expr}: {error}", panel.title));
            let samples = found.iter().flat_map(|series| &series.samples);
            let (samples, moved): (Vec<f64>, Vec<f64>) =
                samples.map(|(_, value)| *value).partition(|value| *value == 0.0);
            queries += 1;
            shown += samples.len() + moved.len();
            if moved.is_empty() {
                empty.push(format!("{} ({} zeros): {expr}", panel.title, samples.len()));
            }
        }
    }
    show(&format!("{queries} queries of the dashboard had {shown} samples"));
    assert!(empty.is_empty(), "panels without data:\n{}", empty.join("\n"));
}

/// A pipeline whose outbox has partitions, of which retention drops the old ones.
async fn partitioned() -> Pipeline {
    let mut parts = Pipeline::shared(Version::Pg17, "gf_parts").await;
    postrider_ok(&parts.config, &["setup", "--undo", "--yes"]);
    retains(
        &mut parts,
        "keep = \"7d\"\naction = \"drop\"\ninterval = \"1s\"\npartitions = { by = \"day\" }",
    );
    parts
        .sql
        .batch(
            "drop table public.outbox; create table public.outbox (id bigint generated always as identity, \
               aggregate_type text not null, aggregate_id text not null, event_type text not null, payload json, \
               headers json, created_at timestamptz not null default clock_timestamp()) \
               partition by range (created_at); \
             create table public.past partition of public.outbox for values from (minvalue) \
               to (date_trunc('day', now()) - interval '9 days'); \
             create table public.present partition of public.outbox for values \
               from (date_trunc('day', now()) - interval '9 days') to (date_trunc('day', now()) + interval '1 day')",
        )
        .await;
    postrider_ok(&parts.config, &["setup"]);
    // Before the first pass, which drops a partition without rows.
    insert_old(&parts, 100, 30).await;
    parts.insert(1).await;
    parts
}

fn retains(pipeline: &mut Pipeline, lines: &str) {
    let section = format!("[pipelines.{}.retention]\n{lines}\n", pipeline.name);
    pipeline.config.push_str(&section);
}

/// A pipeline that publishes exactly once, under a transactional id that is its name.
async fn transactional() -> Pipeline {
    let mut exact = Pipeline::in_layout(Version::Pg17, "gf_exact", "gcx").await;
    exact.config = exact.with_line("sink", "delivery = \"exactly-once\"");
    let id = format!("[pipelines.{0}.sink.transaction]\nid = \"{0}\"\n", exact.name);
    exact.config.push_str(&id);
    postrider_ok(&exact.config, &["setup"]);
    exact
}

/// The databases of event logs and inboxes.
async fn logs_and_inboxes() -> log_maintenance::Fixture {
    let logs = log_maintenance::Fixture::new(Version::Pg17, "gf_logs", MAINTENANCE).await;
    logs.sql
        .batch(&format!(
            "select postrider.create_inbox('mail'); select postrider.create_inbox('stock');
             select postrider.enable_inbox_ordering('stock');
             select postrider.create_inbox('x' || i) from generate_series(1, {INBOXES_MAX}) i"
        ))
        .await;
    logs
}

#[tokio::test]
async fn each_panel_shows_what_happens_to_running_relays() {
    let (server, kafka) = tokio::join!(
        PrivatePostgres::start(Version::Pg17, "max_slot_wal_keep_size = '4GB'"),
        PrivateKafka::start("")
    );
    let mut flowing = Pipeline::on(&server.url(), &kafka.brokers(), "gf_flow").await;
    flowing.config = flowing.with_line("source", "wal_retain_max = \"1GiB\"");
    retains(&mut flowing, "processed_events = \"public.none\"\ninterval = \"1s\"");
    postrider_ok(&flowing.config, &["bookmark", "create", "short", "--expire", "5s"]);
    let resolved = format!(
        "insert into postrider.parked (pipeline, commit_lsn, ordinal, commit_time, blocks, topic, state, resolved_at) \
         select '{}', '0/1', i, now(), false, 'events', 'done', now() - interval '8 days' from generate_series(1, 3) i",
        flowing.name
    );
    flowing.sql.batch(&resolved).await;
    let tried = "attempts_max = 1000\nbackoff = { step = \"300ms\", steps_max = 1 }";
    server.connect().await.batch("create database parked").await;
    let parked = Pipeline::on(&server.url_of("parked"), &brokers(), "gf_parked").await;
    let mut scene = Scene::of(parked, tried).await;
    let halted = Pipeline::shared(Version::Pg17, "gf_halted").await;
    let exact = transactional().await;
    let mut polled = Pipeline::to_broker(Version::Pg17, &kafka.brokers(), "gf_polled").await;
    polls(&mut polled).await;
    let mut rows = Pipeline::shared(Version::Pg17, "gf_rows").await;
    retains(&mut rows, "keep = \"7d\"\ninterval = \"1s\"");
    let parts = partitioned().await;
    let logs = logs_and_inboxes().await;

    let world = inbox_run::World::create(Version::Pg17, "gf_intake").await;
    let topics = Topics::new(&brokers(), "gf_intake");
    let topic = topics.create("numbers", 2).await;
    // Refuses the first record of the second partition.
    let refusal = "alter table postrider_inbox.jobs add constraint no_first check (event_id !~ '@[^/]*/1/[0-9]*/0$')";
    world.sql.batch(refusal).await;
    let first =
        Written { partition: Some(1), key: Some(b"k"), value: Some(b"{}"), ..Written::default() };
    inbox_run::write(&topic, &[first]).await;
    write_records(&topic, 20).await;

    // Not earlier: slots are not created while a transaction is open.
    let holder = Client::connect(&scene.pipeline.url).await.expect("a session");
    holder.batch("begin; lock table postrider.bookmark in access exclusive mode").await;
    let ports = [free_port(), free_port()];
    let since = SystemTime::now();
    let prometheus = Prometheus::start(&ports, SCRAPE, &shortened_rules());
    let halts = halted.stops();
    let configs = [
        &logs.config,
        &flowing.config,
        &scene.config,
        &halts,
        &exact.config,
        &polled.config,
        &rows.config,
        &parts.config,
    ];
    let config = configs.map(String::as_str).join("\n");
    let full = "[inboxes.jobs]\npending_max = 10\nbatch = 20\n";
    let intake_config = world.config(&topic, "").replace("[inboxes.jobs]\n", full);
    let watched = Watched {
        prometheus,
        relay: Relay::spawn_at(&config, ports[0], &[]),
        intake: Relay::spawn_intake_at(&intake_config, ports[1]),
    };
    let streaming = "count(postrider_state{state=\"streaming\"} == 1)";
    watched.is(streaming, 7.0).await;
    let watched_ref = &watched;
    tokio::join!(
        Box::pin(flow(watched_ref, &flowing, &polled, &kafka)),
        Box::pin(parking(watched_ref, &mut scene, &holder, &halted)),
        Box::pin(transactions(watched_ref, &exact)),
        Box::pin(retention(watched_ref, &rows, &parts)),
        Box::pin(event_logs(watched_ref, &logs)),
        Box::pin(inboxes(watched_ref, &logs)),
        Box::pin(intakes(watched_ref, &world, &topic)),
        Box::pin(process(watched_ref)),
    );
    assert_panels_have_data(&watched.prometheus, since, &ports).await;
    let Watched { relay, intake, .. } = watched;
    assert_eq!(relay.terminate(SOON).await.code, Some(0));
    assert_eq!(intake.terminate(SOON).await.code, Some(0));
}
