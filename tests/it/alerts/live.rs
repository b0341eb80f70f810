//! The alert rules against a live Prometheus that scrapes running relays and intakes: each fault is produced, its alert
//! fires, and clears when the fault is over. `docs/operations/alerts.md` has when.
//!
//! The rules are those of `config/alerts.yml`, numbers included, with other spans of time: see [`shortened_rules`].

use super::{page, shortened_rules};
use crate::await_that::{SOON, await_that};
use crate::inbox_run::{self, Written};
use crate::log_maintenance::Fixture;
use crate::parking::Scene;
use crate::pipeline::Pipeline;
use crate::private::{PrivateKafka, PrivatePostgres, free_port};
use crate::prometheus::{Prometheus, seconds};
use crate::relay::{Relay, postrider_ok};
use crate::server::{Client, Version, brokers};
use crate::topic::Topics;
use serde_json::Value;
use std::cell::Cell;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, SystemTime};

/// Time between two scrapes, and between two evaluations of the rules.
const SCRAPE: Duration = Duration::from_millis(250);

fn prometheus(ports: &[u16]) -> Prometheus {
    Prometheus::start(ports, SCRAPE, &shortened_rules())
}

/// A fault that was produced, and the alert that it is to fire.
#[derive(Clone, Copy)]
struct Fault<'a> {
    prometheus: &'a Prometheus,
    alert: &'static str,
    /// The pipeline or the intake of the alert; empty if it is about none.
    of: &'a str,
    /// The fault in words, for the page.
    words: &'static str,
    since: SystemTime,
}

impl<'a> Fault<'a> {
    /// Call it right before the fault is produced.
    fn begins(
        prometheus: &'a Prometheus,
        alert: &'static str,
        of: &'a str,
        words: &'static str,
    ) -> Self {
        Self { prometheus, alert, of, words, since: SystemTime::now() }
    }

    /// Whether the alert fires, or what fires instead.
    async fn is_firing(&self, wanted: bool) -> Result<(), String> {
        let firing = self.prometheus.firing().await?;
        let found = firing.iter().any(|(name, of)| name == self.alert && of == self.of);
        if found == wanted { Ok(()) } else { Err(format!("{firing:?}")) }
    }

    async fn fires(&self) {
        let what = format!("{} of {:?} fires", self.alert, self.of);
        await_that(&what, SOON, || self.is_firing(true)).await;
    }

    /// Call it right before the fault is fixed.
    fn ends(self) -> Ended<'a> {
        Ended { fault: self, at: SystemTime::now() }
    }
}

/// A fault that is being fixed.
#[derive(Clone, Copy)]
struct Ended<'a> {
    fault: Fault<'a>,
    at: SystemTime,
}

impl Ended<'_> {
    async fn clears(&self) {
        let what = format!("{} of {:?} clears", self.fault.alert, self.fault.of);
        await_that(&what, SOON, || self.fault.is_firing(false)).await;
        self.report().await;
    }

    /// The alert has cleared: holds the page to it.
    async fn report(&self) {
        let Fault { prometheus, alert, of, words, since } = self.fault;
        let query = format!("ALERTS{{alertname=\"{alert}\",alertstate=\"firing\"}}");
        let found = prometheus.over(&query, since, SystemTime::now()).await.expect("the alerts");
        let of_fault = |label: &str| label == of;
        let times: Vec<f64> = found
            .iter()
            .filter(|series| {
                of.is_empty()
                    || ["pipeline", "intake"]
                        .map(|name| series.label(name))
                        .into_iter()
                        .any(of_fault)
            })
            .flat_map(|series| series.samples.iter().map(|(time, _)| *time))
            .collect();
        let first = times.iter().copied().fold(f64::INFINITY, f64::min);
        let last = times.iter().copied().fold(0.0, f64::max) + SCRAPE.as_secs_f64();
        assert!(first < last, "{alert} of {of:?} has fired: {found:?}");
        let (fired, cleared) = (first - seconds(since), last - seconds(self.at));
        page::hold(alert, words, fired, cleared.max(0.0));
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
    let prometheus = prometheus(&ports);
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
    let names = [&parked, &dead, &full].map(|scene| scene.pipeline.name.clone());
    let [parked_name, dead_name, full_name] = names.each_ref().map(String::as_str);
    let begins = |alert, of, words| Fault::begins(&prometheus, alert, of, words);
    let stands_by = begins(
        "PostriderStandingBy",
        &standing.name,
        "a process that is not scraped publishes, and the scraped one stands by",
    );
    let refused = begins("PostriderParked", parked_name, "the topic refuses an event as too large");
    let attempted = begins("PostriderAttempts", parked_name, "an event is refused again and again");
    parked.insert(&["!a", "a"]).await;
    let is_dead = begins(
        "PostriderDeadLetters",
        dead_name,
        "the topic refuses an event, with `parking.attempts_max = 1`",
    );
    dead.insert(&["!a"]).await;
    full.insert(&["!a", "a"]).await;
    full.await_rows("a waiting, a behind").await;
    let is_full = begins(
        "PostriderParkingFull",
        full_name,
        "`parking.rows_max` events are parked, and more come",
    );
    let lags = begins(
        "PostriderLagging",
        full_name,
        "nothing is published, because the parking table is full",
    );
    full.insert(&["b"]).await;
    let broker = begins("PostriderBrokerDown", &budget.name, "the broker is frozen (SIGSTOP)");
    kafka.freeze();
    budget.insert(10).await;
    let halts = begins(
        "PostriderHalted",
        &halted.name,
        "an event has no type, with `parking.on_poison = \"stop\"`",
    );
    let poison = "alter table outbox alter event_type drop not null; \
                  insert into outbox (aggregate_type, aggregate_id) values ('order', 'a')";
    halted.sql.batch(poison).await;
    for fault in [is_full, stands_by, is_dead, broker, attempted, refused, halts] {
        fault.fires().await;
    }

    // Each is fixed, and its alert clears.
    let ended = [attempted.ends(), refused.ends()];
    parked.raise_the_limit().await;
    for fault in ended {
        fault.clears().await;
    }
    let ended = is_dead.ends();
    postrider_ok(&dead.config, &["parked", "skip", "--all", "--yes"]);
    ended.clears().await;
    let ended = stands_by.ends();
    assert_eq!(hidden.terminate(SOON).await.code, Some(0));
    ended.clears().await;
    let ended = halts.ends();
    let gone =
        begins("PostriderPipelineGone", &halted.name, "the process is stopped, and others run on");
    assert_eq!(halted_relay.terminate(SOON).await.code, Some(3));
    gone.fires().await;
    let started = gone.ends();
    let halted_relay = at(&halted.config, 5);
    ended.clears().await;
    started.clears().await;
    let ended = broker.ends();
    kafka.thaw();
    ended.clears().await;

    // The slot: WAL that is retained, and WAL that is about to be lost.
    let session = server.connect().await;
    let losing = begins(
        "PostriderSlotLosingWal",
        &source.name,
        "`max_slot_wal_keep_size` leaves less than a gigabyte",
    );
    session.batch("alter system set max_slot_wal_keep_size = '512MB'").await;
    session.batch("select pg_reload_conf()").await;
    losing.fires().await;
    let ended = losing.ends();
    session.batch("alter system reset max_slot_wal_keep_size").await;
    session.batch("select pg_reload_conf()").await;
    ended.clears().await;
    assert_eq!(budget_relay.terminate(SOON).await.code, Some(0));
    let budget_relay = at(&budget.with_line("source", "wal_retain_max = \"64MiB\""), 4);
    budget_relay.await_state("streaming", SOON).await;
    let over_budget = begins(
        "PostriderWalBudget",
        &budget.name,
        "48 MiB of WAL are written while the broker is frozen, with `source.wal_retain_max = \"64MiB\"`",
    );
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
    over_budget.fires().await;
    let ended = over_budget.ends();
    kafka.thaw();
    await_that("less WAL is retained", SOON, || async {
        session.batch("checkpoint").await;
        over_budget.is_firing(false).await
    })
    .await;
    ended.clears().await;

    let down = begins("PostriderSourceDown", &source.name, "the database server is stopped");
    server.stop_fast(SOON).await;
    down.fires().await;
    let ended = down.ends();
    server.restart().await;
    ended.clears().await;

    // By now it is more than a minute behind.
    lags.fires().await;
    let ended = [is_full.ends(), lags.ends()];
    full.raise_the_limit().await;
    for fault in ended {
        fault.clears().await;
    }

    let all_gone = begins("PostriderGone", "", "every process is killed");

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
    all_gone.fires().await;
    let ended = all_gone.ends();
    let again = at(&standing.config, 6);
    again.await_state("streaming", SOON).await;
    ended.clears().await;
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
    let prometheus = prometheus(&[port]);
    let begins = |alert, words| Fault::begins(&prometheus, alert, &fixture.name, words);
    fixture.publish(&relay, 20).await;
    let behind =
        begins("PostriderGroupBehind", "a group has not read events that are ten days old");
    let unread = begins("PostriderGroupUnhealthy", "a group has events to read and no consumer");
    fixture.create_group("billing", "earliest", "null").await;
    fixture.age(20).await;
    behind.fires().await;
    unread.fires().await;
    let ended = [behind.ends(), unread.ends()];
    fixture.consume("billing").await;
    for fault in ended {
        fault.clears().await;
    }
    let evicted = begins("PostriderGroupEvicted", "a group is evicted");
    fixture.sql.batch("select postrider.evict_consumer_group('billing')").await;
    evicted.fires().await;
    let ended = evicted.ends();
    fixture.sql.batch("select postrider.seek_offset('billing', null, 20)").await;
    ended.clears().await;
    // Nothing is swept; events are published all the same.
    let unswept =
        begins("PostriderLogMaintenance", "a function that maintenance calls does not exist");
    fixture
        .sql
        .batch("alter function postrider.sweep_states(integer, integer) rename to gone")
        .await;
    fixture.publish(&relay, 20).await;
    unswept.fires().await;
    let ended = unswept.ends();
    fixture
        .sql
        .batch("alter function postrider.gone(integer, integer) rename to sweep_states")
        .await;
    ended.clears().await;
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
    let prometheus = prometheus(&[port]);
    let faults = [
        ("PostriderInboxDead", "a message of an inbox is dead"),
        ("PostriderInboxDegraded", "a message of an inbox is dead, which degrades the inbox"),
        ("PostriderInboxGap", "a message of an ordered inbox is missing"),
    ]
    .map(|(alert, words)| Fault::begins(&prometheus, alert, &fixture.name, words));
    fixture
        .sql
        .batch(
            "insert into postrider_inbox.mail (event_id, dead_at) values ('m-1', now()); \
             insert into postrider_inbox.stock (event_id, aggregate_id, sequence_num) values ('s-2', 'a', 2)",
        )
        .await;
    for fault in faults {
        fault.fires().await;
    }
    let ended = faults.map(Fault::ends);
    fixture
        .sql
        .batch(
            "select postrider.skip_inbox_messages('mail', array['m-1'], 'a test'); \
             select postrider.skip_inbox_gap('stock', 'a')",
        )
        .await;
    for fault in ended {
        fault.clears().await;
    }
    let unmaintained = Fault::begins(
        &prometheus,
        "PostriderInboxMaintenance",
        &fixture.name,
        "the table of an inbox does not exist",
    );
    fixture.sql.batch("alter table postrider_inbox.mail rename to mail_gone").await;
    unmaintained.fires().await;
    let ended = unmaintained.ends();
    fixture.sql.batch("alter table postrider_inbox.mail_gone rename to mail").await;
    ended.clears().await;
    assert_eq!(relay.terminate(SOON).await.code, Some(0));
}

/// Retention that is blocked, and one whose passes fail. Pauses between failures double up to five minutes, so the
/// process is started three times, and fails often enough within the range of the rule.
#[tokio::test]
async fn retention_that_is_blocked_or_fails_fires_and_clears() {
    let mut blocked = Pipeline::shared(Version::Pg17, "al_blocked").await;
    let mut failing = Pipeline::shared(Version::Pg17, "al_failing").await;
    let fixed = failing.config.clone();
    for (pipeline, line) in
        [(&mut blocked, "keep = \"7d\""), (&mut failing, "processed_events = \"public.none\"")]
    {
        let section =
            format!("[pipelines.{}.retention]\n{line}\ninterval = \"1s\"\n", pipeline.name);
        pipeline.config.push_str(&section);
    }
    // In a table without a row there is nothing to remove.
    blocked.insert(1).await;
    let ports = [free_port(), free_port()];
    let blocked_relay = Relay::spawn_at(&blocked.config, ports[0], &[]);
    blocked_relay.await_state("streaming", SOON).await;
    let prometheus = prometheus(&ports);
    let is_blocked = Fault::begins(
        &prometheus,
        "PostriderRetentionBlocked",
        &blocked.name,
        "a replay of the table is not finished",
    );
    let replay = format!(
        "insert into postrider.replay (pipeline, name, request, source) values ('{}', 'r1', '{{}}', 'table')",
        blocked.name
    );
    blocked.sql.batch(&replay).await;
    is_blocked.fires().await;
    let ended = is_blocked.ends();
    blocked.sql.batch("update postrider.replay set finished_at = now()").await;
    ended.clears().await;
    assert_eq!(blocked_relay.terminate(SOON).await.code, Some(0));

    let passes_fail = Fault::begins(
        &prometheus,
        "PostriderRetention",
        &failing.name,
        "the table `retention.processed_events` does not exist; the process is started three times",
    );
    let failures = |least: u64| {
        move |status: &Value| {
            let failures = &status["pipelines"][0]["maintenance"]["retention"]["failures_total"];
            failures.as_u64() >= Some(least)
        }
    };
    for _ in 0..2 {
        let again = Relay::spawn_at(&failing.config, ports[1], &[]);
        again.await_status("three failures", SOON, failures(3)).await;
        assert_eq!(again.terminate(SOON).await.code, Some(0));
    }
    let again = Relay::spawn_at(&failing.config, ports[1], &[]);
    again.await_status("another failure", SOON, failures(1)).await;
    passes_fail.fires().await;
    let ended = passes_fail.ends();
    assert_eq!(again.terminate(SOON).await.code, Some(0));
    let corrected = Relay::spawn_at(&fixed, ports[1], &[]);
    corrected.await_state("streaming", SOON).await;
    ended.clears().await;
    assert_eq!(corrected.terminate(SOON).await.code, Some(0));
}

/// A pipeline that is paused; an inbox that is full, a partition that is not read, a broker that is gone, and a process
/// of intakes that is gone.
#[tokio::test]
async fn pauses_and_intakes_fire_and_clear() {
    let mut kafka = PrivateKafka::start("").await;
    let pipeline = Pipeline::shared(Version::Pg17, "al_paused").await;
    let world = inbox_run::World::create(Version::Pg17, "al_intake").await;
    let topic = Topics::new(&kafka.brokers(), "al_intake").create("numbers", 2).await;
    let config = world
        .config(&topic, "")
        .replace("[inboxes.jobs]\n", "[inboxes.jobs]\npending_max = 10\nbatch = 20\n");
    let ports = [free_port(), free_port()];
    let relay = Relay::spawn_at(&pipeline.config, ports[0], &[]);
    relay.await_state("streaming", SOON).await;
    let intake = Relay::spawn_intake_at(&config, ports[1]);
    inbox_run::await_intake_state(&intake, "storing").await;
    let prometheus = prometheus(&ports);

    let paused =
        Fault::begins(&prometheus, "PostriderPaused", &pipeline.name, "`postrider pause` is run");
    postrider_ok(&pipeline.config, &["pause", &pipeline.name]);
    paused.fires().await;
    let ended = paused.ends();
    postrider_ok(&pipeline.config, &["resume", &pipeline.name]);
    ended.clears().await;

    let begins = |alert, words| Fault::begins(&prometheus, alert, "jobs", words);
    let record = |partition| Written {
        partition: Some(partition),
        key: Some(b"k"),
        value: Some(b"{}"),
        ..Written::default()
    };
    let work = "with batch as materialized (select * from postrider.inbox_next('jobs', 'w', 1000)) \
                select postrider.inbox_done('jobs', array_agg(event_id)) from batch having count(*) > 0";
    let full = begins("PostriderIntakeFull", "`pending_max` messages wait, and no worker runs");
    inbox_run::write(&topic, &[record(0); 20]).await;
    full.fires().await;
    let ended = full.ends();
    await_that("a worker has processed them", SOON, || async {
        world.sql.batch(work).await;
        full.is_firing(false).await
    })
    .await;
    ended.clears().await;

    let refusal = "alter table postrider_inbox.jobs add constraint no_first check (event_id !~ '@[^/]*/1/[0-9]*/0$')";
    world.sql.batch(refusal).await;
    let blocked = begins("PostriderIntakeBlocked", "the table of the inbox refuses a message");
    inbox_run::write(&topic, &[record(1)]).await;
    blocked.fires().await;
    let ended = blocked.ends();
    world.sql.batch("alter table postrider_inbox.jobs drop constraint no_first").await;
    ended.clears().await;

    let down = begins("PostriderIntakeDown", "the broker is killed");
    kafka.kill().await;
    down.fires().await;
    let ended = down.ends();
    kafka.restart().await;
    ended.clears().await;

    let gone = begins("PostriderIntakeGone", "the process of the intake is killed");
    intake.kill().await;
    gone.fires().await;
    let ended = gone.ends();
    let intake = Relay::spawn_intake_at(&config, ports[1]);
    ended.clears().await;
    inbox_run::await_intake_state(&intake, "storing").await;
    assert_eq!(intake.terminate(SOON).await.code, Some(0));
    assert_eq!(relay.terminate(SOON).await.code, Some(0));
    kafka.stop().await;
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
    let prometheus = prometheus(&ports);

    let retained = async {
        // A transaction that stays open holds the slot where it began.
        let (forgotten, session) = (server.connect().await, server.connect().await);
        forgotten.batch("begin; create table forgotten (i int)").await;
        let retains_wal = Fault::begins(
            &prometheus,
            "PostriderRetainsWal",
            &retains.name,
            "10 GB of WAL are written while a transaction is open",
        );
        write_wal(&session, &server.data(), 10_000_000_000).await;
        retains_wal.fires().await;
        let ended = retains_wal.ends();
        forgotten.batch("rollback").await;
        await_that("the slot to follow", SOON, || async {
            // A slot follows from one record of running transactions to the next: a checkpoint writes one.
            session.batch("checkpoint").await;
            retains_wal.is_firing(false).await
        })
        .await;
        ended.clears().await;
    };
    let reconnects = async {
        let cuts = Cell::new(0);
        let cut = format!(
            "select count(pg_terminate_backend(active_pid))::text from pg_replication_slots \
             where slot_name = '{}' and active",
            flaps.slot()
        );
        let reconnects = Fault::begins(
            &prometheus,
            "PostriderReconnects",
            &flaps.name,
            "the replication connection is terminated again and again",
        );
        await_that("PostriderReconnects fires", SOON, || async {
            let cut = flaps.sql.text(&cut).await.expect("a count");
            cuts.set(cuts.get() + cut.parse::<u32>().expect("a count"));
            let firing = reconnects.is_firing(true).await;
            firing.map_err(|firing| format!("{} cuts: {firing}", cuts.get()))
        })
        .await;
        assert!(cuts.get() > 2, "one reconnect is no reason to call: {}", cuts.get());
        reconnects.ends().clears().await;
    };
    tokio::join!(retained, reconnects);

    for (relay, pipeline) in [(retaining, &retains), (flapping, &flaps)] {
        pipeline.insert(10).await;
        assert_eq!(pipeline.topic.await_records(10, SOON).await.len(), 10);
        assert_eq!(relay.terminate(SOON).await.code, Some(0));
    }
}
