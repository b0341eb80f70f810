//! The alert rules against a live Prometheus that scrapes running relays: each fault is produced, its alert fires, and
//! clears when the fault is over.
//!
//! The rules are those of `config/alerts.yml`, numbers included, with other spans of time: see [`shortened`].

use super::root;
use crate::await_that::{SOON, await_that};
use crate::log_maintenance::Fixture;
use crate::parking::Scene;
use crate::pipeline::Pipeline;
use crate::private::{PrivateKafka, PrivatePostgres, free_port};
use crate::relay::{Relay, http_get, postrider_ok};
use crate::server::{Client, Version, brokers};
use serde_json::Value;
use std::cell::Cell;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use tempfile::TempDir;

/// The rules with `for` in seconds where they have minutes or days, and the range of a rate cut from 15 minutes to
/// 20 s. The rate itself, per second, is as it is shipped.
///
/// A range has to be longer than the pause between two reconnects (`RECONNECT_MAX`, 15 s), and as in the shipped rules
/// it is shorter than the rule's `for`: one reconnect raises no alert.
fn shortened(rules: &str) -> String {
    let spans = regex::Regex::new(r"(?m)^(\s+for: \d+)[md]$").expect("a pattern");
    assert!(spans.is_match(rules), "{rules}");
    assert_eq!(rules.matches("[15m]").count(), 1, "{rules}");
    spans.replace_all(rules, "${1}s").replace("[15m]", "[20s]")
}

/// Ended when dropped.
struct Prometheus {
    child: Child,
    port: u16,
    _dir: TempDir,
}

impl Prometheus {
    fn start(targets: &[u16]) -> Self {
        let fetched = root().join("target/tools/usr/bin/prometheus");
        let program = if fetched.exists() { fetched } else { PathBuf::from("prometheus") };
        let dir = TempDir::new().expect("a directory");
        let rules = fs::read_to_string(root().join("config/alerts.yml")).expect("the rules");
        fs::write(dir.path().join("alerts.yml"), shortened(&rules)).unwrap();
        let targets: Vec<String> =
            targets.iter().map(|port| format!("\"127.0.0.1:{port}\"")).collect();
        let config = format!(
            "global: {{ scrape_interval: 250ms, scrape_timeout: 250ms, evaluation_interval: 250ms }}\n\
             rule_files: [alerts.yml]\nscrape_configs:\n  - job_name: postrider\n    \
             static_configs: [ {{ targets: [ {} ] }} ]\n",
            targets.join(", ")
        );
        fs::write(dir.path().join("prometheus.yml"), config).expect("a configuration");
        let port = free_port();
        let child = Command::new(&program)
            .arg(format!("--config.file={}", dir.path().join("prometheus.yml").display()))
            .arg(format!("--storage.tsdb.path={}", dir.path().join("data").display()))
            .arg(format!("--web.listen-address=127.0.0.1:{port}"))
            .arg("--log.level=error")
            .stdin(Stdio::null())
            .spawn();
        let child = child.unwrap_or_else(|error| panic!("{}: {error}", program.display()));
        Self { child, port, _dir: dir }
    }

    /// The alerts that fire, by name and pipeline.
    async fn firing(&self) -> Result<Vec<(String, String)>, String> {
        let (_, body) = http_get(self.port, "/api/v1/alerts").await?;
        let answer: Value = serde_json::from_str(&body).map_err(|error| error.to_string())?;
        let alerts = answer["data"]["alerts"].as_array().cloned().unwrap_or_default();
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let firing = alerts.iter().filter(|alert| alert["state"] == "firing");
        let names = firing
            .map(|alert| (text(&alert["labels"]["alertname"]), text(&alert["labels"]["pipeline"])));
        Ok(names.collect())
    }

    async fn await_alert(&self, alert: &str, pipeline: &str, fires: bool) {
        let what = format!("{alert} of {pipeline:?} {}", if fires { "fires" } else { "clears" });
        await_that(&what, SOON, || async {
            let firing = self.firing().await?;
            let found = firing.iter().any(|(name, of)| name == alert && of == pipeline);
            if found == fires { Ok(()) } else { Err(format!("{firing:?}")) }
        })
        .await;
    }

    async fn fires(&self, alert: &str, pipeline: &Pipeline) {
        self.await_alert(alert, &pipeline.name, true).await;
    }

    async fn clears(&self, alert: &str, pipeline: &Pipeline) {
        self.await_alert(alert, &pipeline.name, false).await;
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

#[tokio::test]
#[expect(clippy::too_many_lines, reason = "one Prometheus, one fault after the other")]
async fn each_fault_fires_its_alert_and_clears_when_it_is_over() {
    let mut server = PrivatePostgres::start(Version::Pg17, "").await;
    let mut kafka = PrivateKafka::start("").await;
    let tried = "attempts_max = 1000\nbackoff = { step = \"300ms\", steps_max = 1 }";
    let mut parked = Scene::set_with(Version::Pg17, "al_parked", tried).await;
    let mut dead = Scene::set_with(Version::Pg17, "al_dead", "attempts_max = 1").await;
    let full_lines = format!("rows_max = 2\n{tried}");
    let mut full = Scene::set_with(Version::Pg17, "al_full", &full_lines).await;
    let source = Pipeline::on(&server.url(), &brokers(), "al_source").await;
    let budget = Pipeline::with_layout(
        &server.url_of("postgres"),
        &kafka.brokers(),
        "al_broker",
        "postrider",
        "[.parking]\nrows_max = 1000\n",
    )
    .await;
    let halted = Pipeline::shared(Version::Pg17, "al_halted").await;
    let standing = Pipeline::shared(Version::Pg17, "al_standing").await;

    let hidden = standing.run();
    hidden.await_state("streaming", SOON).await;
    let ports: Vec<u16> = (0..7).map(|_| free_port()).collect();
    let at = |config: &str, index: usize| Relay::spawn_at(config, ports[index], &[]);
    let parked_relay = at(&parked.config, 0);
    let dead_relay = at(&dead.config, 1);
    let full_relay = at(&full.config, 2);
    let source_relay = at(&source.config, 3);
    let budget_relay = at(&budget.with_line("source", "wal_retain_max = \"1GiB\""), 4);
    let halted_relay = at(&halted.stops(), 5);
    let standing_relay = at(&standing.config, 6);
    let prometheus = Prometheus::start(&ports);
    for (relay, state) in [
        (&parked_relay, "streaming"),
        (&dead_relay, "streaming"),
        (&full_relay, "streaming"),
        (&source_relay, "streaming"),
        (&budget_relay, "streaming"),
        (&halted_relay, "streaming"),
        (&standing_relay, "standing_by"),
    ] {
        relay.await_state(state, SOON).await;
    }

    // All faults that need nothing of each other, at once.
    parked.insert(&["!a", "a"]).await;
    dead.insert(&["!a"]).await;
    full.insert(&["!a", "a"]).await;
    full.await_rows("a waiting, a behind").await;
    full.insert(&["b"]).await;
    kafka.freeze();
    budget.insert(10).await;
    let poison = "alter table outbox alter event_type drop not null; \
                  insert into outbox (aggregate_type, aggregate_id) values ('order', 'a')";
    halted.sql.batch(poison).await;
    prometheus.fires("PostriderParkingFull", &full.pipeline).await;
    prometheus.fires("PostriderStandingBy", &standing).await;
    prometheus.fires("PostriderDeadLetters", &dead.pipeline).await;
    prometheus.fires("PostriderBrokerDown", &budget).await;
    prometheus.fires("PostriderAttempts", &parked.pipeline).await;
    prometheus.fires("PostriderParked", &parked.pipeline).await;
    prometheus.fires("PostriderHalted", &halted).await;

    // Each is mended, and its alert clears.
    parked.raise_the_limit().await;
    prometheus.clears("PostriderAttempts", &parked.pipeline).await;
    prometheus.clears("PostriderParked", &parked.pipeline).await;
    postrider_ok(&dead.config, &["parked", "skip", "--all", "--yes"]);
    prometheus.clears("PostriderDeadLetters", &dead.pipeline).await;
    assert_eq!(hidden.terminate(SOON).await.code, Some(0));
    prometheus.clears("PostriderStandingBy", &standing).await;
    assert_eq!(halted_relay.terminate(SOON).await.code, Some(3));
    prometheus.fires("PostriderPipelineGone", &halted).await;
    let halted_relay = at(&halted.config, 5);
    prometheus.clears("PostriderHalted", &halted).await;
    prometheus.clears("PostriderPipelineGone", &halted).await;
    kafka.thaw();
    prometheus.clears("PostriderBrokerDown", &budget).await;

    // The slot: WAL that is retained, and WAL that is about to be lost.
    let session = server.connect().await;
    session.batch("alter system set max_slot_wal_keep_size = '512MB'").await;
    session.batch("select pg_reload_conf()").await;
    prometheus.fires("PostriderSlotLosingWal", &source).await;
    session.batch("alter system reset max_slot_wal_keep_size").await;
    session.batch("select pg_reload_conf()").await;
    prometheus.clears("PostriderSlotLosingWal", &source).await;
    assert_eq!(budget_relay.terminate(SOON).await.code, Some(0));
    let budget_relay = at(&budget.with_line("source", "wal_retain_max = \"64MiB\""), 4);
    budget_relay.await_state("streaming", SOON).await;
    kafka.freeze();
    budget.insert(10).await;
    budget_relay.await_state("broker_down", SOON).await;
    session.batch("create table if not exists filler (x text)").await;
    for _ in 0..3 {
        // 16 MiB of WAL: a segment.
        session
            .batch("insert into filler select repeat(md5(i::text), 30) from generate_series(1, 14000) i; select pg_switch_wal()")
            .await;
    }
    prometheus.fires("PostriderWalBudget", &budget).await;
    kafka.thaw();
    await_that("less WAL is retained", SOON, || async {
        session.batch("checkpoint").await;
        let firing = prometheus.firing().await?;
        let over = firing.iter().all(|(name, _)| name != "PostriderWalBudget");
        if over { Ok(()) } else { Err(format!("{firing:?}")) }
    })
    .await;

    server.stop_fast(SOON).await;
    prometheus.fires("PostriderSourceDown", &source).await;
    server.restart().await;
    prometheus.clears("PostriderSourceDown", &source).await;

    // By now it is more than a minute behind.
    prometheus.fires("PostriderLagging", &full.pipeline).await;
    full.raise_the_limit().await;
    prometheus.clears("PostriderParkingFull", &full.pipeline).await;
    prometheus.clears("PostriderLagging", &full.pipeline).await;

    for relay in [
        parked_relay,
        dead_relay,
        full_relay,
        source_relay,
        budget_relay,
        halted_relay,
        standing_relay,
    ] {
        relay.kill().await;
    }
    prometheus.await_alert("PostriderGone", "", true).await;
    let again = at(&standing.config, 6);
    again.await_state("streaming", SOON).await;
    prometheus.await_alert("PostriderGone", "", false).await;
    assert_eq!(again.terminate(SOON).await.code, Some(0));
    kafka.stop().await;
}

/// Event logs: a group that is behind and has no consumer, one that is evicted, and maintenance that fails.
#[tokio::test]
async fn groups_and_maintenance_of_event_logs_fire_and_clear() {
    let fixture = Fixture::new(Version::Pg17, "al_groups", "").await;
    let port = free_port();
    let relay = Relay::spawn_at(&fixture.config, port, &[]);
    relay.await_state("streaming", SOON).await;
    let prometheus = Prometheus::start(&[port]);
    let name = fixture.name.as_str();
    fixture.publish(&relay, 20).await;
    fixture.create_group("billing", "earliest", "null").await;
    fixture.age(20).await;
    prometheus.await_alert("PostriderGroupBehind", name, true).await;
    prometheus.await_alert("PostriderGroupUnhealthy", name, true).await;
    fixture.consume("billing").await;
    prometheus.await_alert("PostriderGroupBehind", name, false).await;
    prometheus.await_alert("PostriderGroupUnhealthy", name, false).await;
    fixture.sql.batch("select postrider.evict_consumer_group('billing')").await;
    prometheus.await_alert("PostriderGroupEvicted", name, true).await;
    fixture.sql.batch("select postrider.seek_offset('billing', null, 20)").await;
    prometheus.await_alert("PostriderGroupEvicted", name, false).await;
    // Nothing is swept; events are published all the same.
    fixture
        .sql
        .batch("alter function postrider.sweep_states(integer, integer) rename to gone")
        .await;
    fixture.publish(&relay, 20).await;
    prometheus.await_alert("PostriderLogMaintenance", name, true).await;
    fixture
        .sql
        .batch("alter function postrider.gone(integer, integer) rename to sweep_states")
        .await;
    prometheus.await_alert("PostriderLogMaintenance", name, false).await;
    assert_eq!(relay.terminate(SOON).await.code, Some(0));
}

/// Inboxes: a dead message, a gap, and maintenance that fails. A dead message degrades its inbox.
#[tokio::test]
async fn dead_messages_and_gaps_of_inboxes_fire_and_clear() {
    let fixture = Fixture::new(Version::Pg17, "al_inbox", "").await;
    fixture
        .sql
        .batch(
            "select postrider.create_inbox('mail'); select postrider.create_inbox('stock'); \
             select postrider.enable_inbox_ordering('stock')",
        )
        .await;
    let port = free_port();
    let relay = Relay::spawn_at(&fixture.config, port, &[]);
    relay.await_state("streaming", SOON).await;
    let prometheus = Prometheus::start(&[port]);
    let name = fixture.name.as_str();
    fixture
        .sql
        .batch(
            "insert into postrider_inbox.mail (event_id, dead_at) values ('m-1', now()); \
             insert into postrider_inbox.stock (event_id, aggregate_id, sequence_num) values ('s-2', 'a', 2)",
        )
        .await;
    for alert in ["PostriderInboxDead", "PostriderInboxDegraded", "PostriderInboxGap"] {
        prometheus.await_alert(alert, name, true).await;
    }
    fixture
        .sql
        .batch(
            "select postrider.skip_inbox_messages('mail', array['m-1'], 'a test'); \
             select postrider.skip_inbox_gap('stock', 'a')",
        )
        .await;
    for alert in ["PostriderInboxDead", "PostriderInboxDegraded", "PostriderInboxGap"] {
        prometheus.await_alert(alert, name, false).await;
    }
    fixture.sql.batch("alter table postrider_inbox.mail rename to mail_gone").await;
    prometheus.await_alert("PostriderInboxMaintenance", name, true).await;
    fixture.sql.batch("alter table postrider_inbox.mail_gone rename to mail").await;
    prometheus.await_alert("PostriderInboxMaintenance", name, false).await;
    assert_eq!(relay.terminate(SOON).await.code, Some(0));
}

/// Retention that is blocked, and one whose passes fail. The second alert looks at an hour, so it does not clear here.
#[tokio::test]
async fn retention_that_is_blocked_or_fails_fires() {
    let mut blocked = Pipeline::shared(Version::Pg17, "al_blocked").await;
    let mut failing = Pipeline::shared(Version::Pg17, "al_failing").await;
    for (pipeline, line) in
        [(&mut blocked, "keep = \"7d\""), (&mut failing, "processed_events = \"public.none\"")]
    {
        let section =
            format!("[pipelines.{}.retention]\n{line}\ninterval = \"1s\"\n", pipeline.name);
        pipeline.config.push_str(&section);
    }
    let replay = format!(
        "insert into postrider.replay (pipeline, name, request, source) values ('{}', 'r1', '{{}}', 'table')",
        blocked.name
    );
    blocked.sql.batch(&replay).await;
    // In a table without a row there is nothing to remove.
    blocked.insert(1).await;
    let ports = [free_port(), free_port()];
    let relays = [
        Relay::spawn_at(&blocked.config, ports[0], &[]),
        Relay::spawn_at(&failing.config, ports[1], &[]),
    ];
    for relay in &relays {
        relay.await_state("streaming", SOON).await;
    }
    let prometheus = Prometheus::start(&ports);
    prometheus.fires("PostriderRetentionBlocked", &blocked).await;
    blocked.sql.batch("update postrider.replay set finished_at = now()").await;
    prometheus.clears("PostriderRetentionBlocked", &blocked).await;
    // The sixth failure comes about three minutes after the first one.
    let failures = |status: &Value| {
        let failures = &status["pipelines"][0]["maintenance"]["retention"]["failures_total"];
        failures.as_u64() > Some(6)
    };
    relays[1].await_status("seven failures", 2 * SOON, failures).await;
    prometheus.fires("PostriderRetention", &failing).await;
    for relay in relays {
        assert_eq!(relay.terminate(SOON).await.code, Some(0));
    }
}

/// Bytes of a WAL segment, and segments that one statement fills.
const SEGMENT_BYTES: u64 = 16 << 20;
const SEGMENTS_AT_ONCE: u64 = 32;

/// Makes the server write `bytes` of WAL, and gives back the memory that its files take.
///
/// `pg_switch_wal` leaves a segment after one record and writes zeros to its end. Those are made a hole of the file:
/// what is read stays the same, byte for byte.
async fn write_wal(session: &Client, data: &Path, bytes: u64) {
    let sql = format!(
        "select o.file_name, o.file_offset::int8 from ( \
           select pg_logical_emit_message(false, 'filler', 'x'), pg_switch_wal() as ended \
           from generate_series(1, {SEGMENTS_AT_ONCE}) offset 0) s, pg_walfile_name_offset(s.ended) o"
    );
    for _ in 0..bytes.div_ceil(SEGMENTS_AT_ONCE * SEGMENT_BYTES) {
        let segments = session.query(&sql, &[]).await.expect("segments of WAL");
        for segment in segments {
            let (name, used): (String, i64) = (segment.get(0), segment.get(1));
            let used = u64::try_from(used).expect("an offset");
            let punched = Command::new("fallocate")
                .arg("--punch-hole")
                .args(["--offset", &used.to_string()])
                .args(["--length", &(SEGMENT_BYTES - used).to_string()])
                .arg(data.join("pg_wal").join(&name))
                .status();
            assert!(punched.is_ok_and(|status| status.success()), "a hole in {name} from {used}");
        }
    }
}

/// Both at real thresholds: more than 10 GB of WAL behind a slot, and a connection that is cut again and again.
#[tokio::test]
async fn retained_wal_and_reconnects_fire_and_clear() {
    // Nothing of the WAL is written twice, and no checkpoint of its own makes the server slow.
    let settings = "wal_init_zero = off\nwal_recycle = off\nmax_wal_size = '64GB'";
    let server = PrivatePostgres::start(Version::Pg17, settings).await;
    let retains = Pipeline::on(&server.url(), &brokers(), "al_retains").await;
    let flaps = Pipeline::shared(Version::Pg17, "al_flaps").await;
    let ports = [free_port(), free_port()];
    let retaining = Relay::spawn_at(&retains.config, ports[0], &[]);
    let flapping = Relay::spawn_at(&flaps.config, ports[1], &[]);
    for relay in [&retaining, &flapping] {
        relay.await_state("streaming", SOON).await;
    }
    let prometheus = Prometheus::start(&ports);

    let retained = async {
        // A transaction that stays open holds the slot where it began.
        let (forgotten, session) = (server.connect().await, server.connect().await);
        forgotten.batch("begin; create table forgotten (i int)").await;
        write_wal(&session, &server.data(), 10_000_000_000).await;
        prometheus.fires("PostriderRetainsWal", &retains).await;
        forgotten.batch("rollback").await;
        await_that("the slot to follow", SOON, || async {
            // A slot follows from one record of running transactions to the next: a checkpoint writes one.
            session.batch("checkpoint").await;
            let firing = prometheus.firing().await?;
            let over = firing.iter().all(|(name, _)| name != "PostriderRetainsWal");
            if over { Ok(()) } else { Err(format!("{firing:?}")) }
        })
        .await;
    };
    let reconnects = async {
        let cuts = Cell::new(0);
        let cut = format!(
            "select count(pg_terminate_backend(active_pid))::text from pg_replication_slots \
             where slot_name = '{}' and active",
            flaps.slot()
        );
        let (alert, name) = ("PostriderReconnects".to_owned(), flaps.name.clone());
        let fired = (alert.clone(), name);
        await_that("PostriderReconnects fires", SOON, || async {
            let cut = flaps.sql.text(&cut).await.expect("a count");
            cuts.set(cuts.get() + cut.parse::<u32>().expect("a count"));
            let firing = prometheus.firing().await?;
            if firing.contains(&fired) {
                Ok(())
            } else {
                Err(format!("{} cuts: {firing:?}", cuts.get()))
            }
        })
        .await;
        assert!(cuts.get() > 2, "one reconnect is no reason to call: {}", cuts.get());
        prometheus.clears(&alert, &flaps).await;
    };
    tokio::join!(retained, reconnects);

    for (relay, pipeline) in [(retaining, &retains), (flapping, &flaps)] {
        pipeline.insert(10).await;
        assert_eq!(pipeline.topic.await_records(10, SOON).await.len(), 10);
        assert_eq!(relay.terminate(SOON).await.code, Some(0));
    }
}
