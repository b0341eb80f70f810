//! A soak: a steady load for as long as `scripts/soak` is given, a fault every few minutes, and figures of what must
//! not grow. Everything that was committed is compared with the topic at the end.
//!
//! The ledger of ten million events has to be small: an event is a number, an outcome is a byte.

use crate::await_that::await_that;
use crate::pipeline::{Pipeline, show};
use crate::private::{PrivateKafka, PrivatePostgres};
use crate::relay::{Relay, postrider_ok};
use crate::server::{Client, Version};
use crate::topic::{Topic, client_config};
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::message::Message;
use rdkafka::topic_partition_list::{Offset, TopicPartitionList};
use serde_json::Value;
use std::cell::Cell;
use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::time::{Instant, MissedTickBehavior};

/// Number of writers, and events of one transaction.
const WRITERS: u32 = 2;
const TRANSACTION_EVENTS: u32 = 10;

/// Aggregates of each writer.
const AGGREGATES: u32 = 500;

/// Every n-th transaction is rolled back.
const ROLLBACK_EVERY: u32 = 10;

/// Pause between two faults, and how long a server is frozen.
const FAULT_INTERVAL: Duration = Duration::from_mins(3);
const FROZEN: Duration = Duration::from_secs(20);

/// Pause between two looks; the application deletes its old rows as often.
const LOOK_INTERVAL: Duration = Duration::from_secs(15);

/// How long everything may take to be normal after a fault.
const SETTLE: Duration = Duration::from_mins(3);

/// The reader is at the end if no record comes for this time.
const QUIET: Duration = Duration::from_secs(5);

/// What may be added to the memory of a process between the first and the last figure: an eighth, and KiB.
const GROWTH_PART_MAX: u64 = 8;
const GROWTH_KIB_MAX: u64 = 8 * 1024;

/// The size of Postrider's tables. Resolved parked events stay for days, and are few.
const TABLES_BYTES_MAX: i64 = 4 << 20;

const OPEN: u8 = 0;
const COMMITTED: u8 = 1;
const ROLLED_BACK: u8 = 2;

/// What a writer has written: the outcome of each event, by its number. Number `n` belongs to aggregate
/// `n % AGGREGATES`.
struct Written {
    outcomes: Vec<u8>,
}

/// Writes at a fixed rate until it is stopped.
struct Writer {
    url: String,
    number: u32,
    every: Duration,
    stop: Arc<AtomicBool>,
    committed: Arc<AtomicU64>,
}

impl Writer {
    fn start(self) -> JoinHandle<Written> {
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.expect("a runtime").block_on(self.run())
        })
    }

    async fn run(self) -> Written {
        let mut written = Written { outcomes: Vec::new() };
        let mut ticks = tokio::time::interval_at(Instant::now(), self.every);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
        let mut session = None;
        let mut transactions = 0_u32;
        while !self.stop.load(Ordering::Relaxed) {
            ticks.tick().await;
            let client = match session.take() {
                Some(client) => client,
                None => match tokio::time::timeout(FROZEN, Client::connect(&self.url)).await {
                    Ok(Ok(client)) => client,
                    Ok(Err(_)) | Err(_) => continue,
                },
            };
            let first = written.outcomes.len();
            transactions += 1;
            let rolled_back = transactions.is_multiple_of(ROLLBACK_EVERY);
            let (outcome, usable) = self.transaction(&client, first, rolled_back).await;
            written.outcomes.resize(first + TRANSACTION_EVENTS as usize, outcome);
            if outcome == COMMITTED {
                self.committed.fetch_add(u64::from(TRANSACTION_EVENTS), Ordering::Relaxed);
            }
            session = usable.then_some(client);
        }
        written
    }

    /// The outcome, and whether the session can be used again. A session that ends before the answer of COMMIT leaves
    /// the outcome open.
    async fn transaction(&self, client: &Client, first: usize, rolled_back: bool) -> (u8, bool) {
        let last = first + TRANSACTION_EVENTS as usize - 1;
        let insert = format!(
            "begin; insert into outbox (aggregate_type, aggregate_id, event_type, payload) \
             select 'order', 'w{0}-' || n % {AGGREGATES}, 'Written', json_build_array({0}, n) \
             from generate_series({first}, {last}) n",
            self.number
        );
        if client.batch_execute(&insert).await.is_err() {
            return (ROLLED_BACK, false);
        }
        if rolled_back {
            return (ROLLED_BACK, client.batch_execute("rollback").await.is_ok());
        }
        match client.batch_execute("commit").await {
            Ok(()) => (COMMITTED, true),
            Err(_) => (OPEN, false),
        }
    }
}

/// What a consumer has read of each aggregate, in order: the events' numbers.
#[derive(Default)]
struct Delivered(HashMap<String, Vec<u32>>);

impl Delivered {
    /// Reads the topic until it is stopped and nothing comes for a while.
    fn start(topic: &Topic, stop: Arc<AtomicBool>, read: Arc<AtomicU64>) -> JoinHandle<Self> {
        let topic = topic.clone();
        std::thread::spawn(move || {
            let consumer: BaseConsumer = client_config(&topic.brokers)
                .set("group.id", "soak")
                .set("enable.auto.commit", "false")
                .create()
                .expect("a consumer");
            let mut all = TopicPartitionList::new();
            for partition in 0..8 {
                all.add_partition_offset(&topic.name, partition, Offset::Beginning)
                    .expect("an offset");
            }
            consumer.assign(&all).expect("an assignment");
            let mut delivered = Self::default();
            while !stop.load(Ordering::Relaxed) {
                // Errors are those of a broker that is away: librdkafka connects again.
                let Some(Ok(message)) = consumer.poll(Duration::from_millis(200)) else { continue };
                let key = std::str::from_utf8(message.key().unwrap_or_default()).expect("a key");
                if key.starts_with('w') {
                    let value = message.payload().expect("a value");
                    let [_, number]: [u32; 2] =
                        serde_json::from_slice(value).expect("writer and number");
                    delivered.0.entry(key.to_owned()).or_default().push(number);
                    read.fetch_add(1, Ordering::Relaxed);
                }
            }
            delivered
        })
    }

    /// Compares with what a writer has written.
    fn check(&self, writer: u32, written: &Written, found: &mut Findings) {
        let mut times = vec![0_u8; written.outcomes.len()];
        for aggregate in 0..AGGREGATES {
            let name = format!("w{writer}-{aggregate}");
            let numbers = self.0.get(&name).map_or(&[][..], Vec::as_slice);
            // A repetition goes back and comes forward again; a step forward passes over nothing that was committed.
            let mut next = aggregate;
            for &number in numbers {
                let skipped = (next..number).step_by(AGGREGATES as usize);
                if skipped.clone().any(|n| written.outcomes[n as usize] == COMMITTED) {
                    found.swapped.push(format!("{name}: {number} instead of {next}"));
                }
                if written.outcomes[number as usize] == ROLLED_BACK {
                    found.invented.push(format!("{name}: {number}"));
                }
                times[number as usize] = times[number as usize].saturating_add(1);
                next = number + AGGREGATES;
            }
            if numbers.last() < numbers.iter().max() {
                found.cut_off.push(name);
            }
        }
        for (number, (&outcome, &times)) in written.outcomes.iter().zip(&times).enumerate() {
            found.committed += u64::from(outcome == COMMITTED);
            found.repeated += u64::from(times.saturating_sub(1));
            if outcome == COMMITTED && times == 0 {
                found.lost.push(format!("w{writer}: {number}"));
            }
        }
    }
}

/// What the comparison shows.
#[derive(Default)]
struct Findings {
    committed: u64,
    repeated: u64,
    lost: Vec<String>,
    invented: Vec<String>,
    swapped: Vec<String>,
    /// Aggregates whose last record is not their newest event.
    cut_off: Vec<String>,
}

impl Findings {
    fn balanced(&self) -> bool {
        [&self.lost, &self.invented, &self.swapped, &self.cut_off].iter().all(|one| one.is_empty())
    }
}

impl fmt::Display for Findings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "committed {}, lost {}, invented {}, swapped {}, cut off {}, repeated {}",
            self.committed,
            self.lost.len(),
            self.invented.len(),
            self.swapped.len(),
            self.cut_off.len(),
            self.repeated
        )?;
        for found in [&self.lost, &self.invented, &self.swapped, &self.cut_off] {
            for one in found.iter().take(3) {
                write!(f, "\n  {one}")?;
            }
        }
        Ok(())
    }
}

/// Figures of a relay.
#[derive(Clone, Copy, Debug)]
struct Figures {
    pid: u32,
    /// The process is the owner.
    streams: bool,
    memory_kib: u64,
    descriptors: usize,
    threads: usize,
}

impl Figures {
    async fn take(relay: &Relay) -> Self {
        let status = relay.status().await.unwrap_or_default();
        let tasks = std::fs::read_dir(format!("/proc/{}/task", relay.pid()));
        Self {
            pid: relay.pid(),
            streams: status["pipelines"][0]["state"] == "streaming",
            memory_kib: relay.memory_kib().0,
            descriptors: relay.descriptors(),
            threads: tasks.map_or(0, Iterator::count),
        }
    }
}

impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { pid, streams, memory_kib, descriptors, threads } = self;
        let role = if *streams { "owner" } else { "standby" };
        write!(f, "{role} {pid}: {memory_kib} KiB, {descriptors} descriptors, {threads} threads")
    }
}

/// Figures that must not grow.
#[derive(Clone, Debug)]
struct Sample {
    minute: u64,
    relays: Vec<Figures>,
    /// Size of the tables in schema postrider, and rows of postrider.parked.
    tables_bytes: i64,
    parked: i64,
    /// WAL that the slot retains.
    retained_bytes: i64,
}

impl Sample {
    async fn take(soak: &Soak) -> Self {
        let sql = format!(
            "select (select sum(pg_total_relation_size(c.oid))::text from pg_class c \
               join pg_namespace n on n.oid = c.relnamespace where n.nspname = 'postrider' and c.relkind = 'r') \
             || ' ' || (select count(*) from postrider.parked) || ' ' || \
             (select pg_current_wal_lsn() - confirmed_flush_lsn from pg_replication_slots where slot_name = '{}')",
            soak.pipeline.slot()
        );
        let session = Client::connect(&soak.pipeline.url).await.expect("a session");
        let text = session.text(&sql).await.expect("a row");
        let mut figures = text.split(' ').map(|figure| figure.parse().expect("a number"));
        let mut relays = Vec::new();
        for relay in &soak.relays {
            relays.push(Figures::take(relay).await);
        }
        Self {
            minute: soak.began.elapsed().as_secs() / 60,
            relays,
            tables_bytes: figures.next().unwrap_or(0),
            parked: figures.next().unwrap_or(0),
            retained_bytes: figures.next().unwrap_or(0),
        }
    }
}

impl fmt::Display for Sample {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "minute {:>3}:", self.minute)?;
        for relay in &self.relays {
            write!(f, "  {relay};")?;
        }
        write!(
            f,
            "  tables {} KiB, parked rows {}, retained WAL {} KiB",
            self.tables_bytes / 1024,
            self.parked,
            self.retained_bytes / 1024
        )
    }
}

/// What is done to a server or a relay.
#[derive(Clone, Copy, Debug)]
enum Fault {
    EndSessions,
    FreezeBroker,
    RestartPostgres,
    KillBroker,
    FreezePostgres,
}

const FAULTS: [Fault; 5] = [
    Fault::EndSessions,
    Fault::FreezeBroker,
    Fault::RestartPostgres,
    Fault::KillBroker,
    Fault::FreezePostgres,
];

struct Soak {
    server: PrivatePostgres,
    broker: PrivateKafka,
    pipeline: Pipeline,
    config: String,
    program: String,
    relays: Vec<Relay>,
    began: Instant,
    poison: u64,
}

impl Soak {
    async fn start(program: String) -> Self {
        let server = PrivatePostgres::start(Version::Pg17, "max_wal_size = 1GB\n").await;
        let broker = PrivateKafka::start("").await;
        let pipeline = Pipeline::on(&server.url(), &broker.brokers(), "soak").await;
        let config = pipeline.with_parking(&pipeline.config, "on_poison = \"block_key\"");
        let relays = (0..2).map(|_| Relay::spawn_program(&program, &config, &[])).collect();
        let began = Instant::now();
        let soak = Self { server, broker, pipeline, config, program, relays, began, poison: 0 };
        soak.settled().await;
        soak
    }

    /// Injects a fault every few minutes. Returns the figures before each fault, and the number of faults.
    async fn run(&mut self, load: &Load, length: Duration) -> (Vec<Sample>, usize) {
        let mut samples: Vec<Sample> = Vec::new();
        let (mut faults, mut killed) = (0, false);
        let mut next_fault = self.began + FAULT_INTERVAL;
        let mut looks = tokio::time::interval(LOOK_INTERVAL);
        while self.began.elapsed() < length {
            looks.tick().await;
            self.clean().await;
            if Instant::now() < next_fault {
                continue;
            }
            self.settled().await;
            let sample = Sample::take(self).await;
            show(&format!("{sample}; {} events committed", load.committed()));
            samples.push(sample);
            if !killed && self.began.elapsed() >= length / 3 {
                killed = true;
                show("kill -9 of the relay that streams");
                self.kill_owner().await;
            } else {
                let fault = FAULTS[faults % FAULTS.len()];
                show(&format!("{fault:?}"));
                self.inject(fault).await;
            }
            faults += 1;
            self.settled().await;
            self.poison().await;
            next_fault += FAULT_INTERVAL;
        }
        (samples, faults)
    }

    async fn inject(&mut self, fault: Fault) {
        match fault {
            Fault::EndSessions => {
                let session = Client::connect(&self.pipeline.url).await.expect("a session");
                let sql = "select count(pg_terminate_backend(pid))::text from pg_stat_activity \
                           where application_name like 'postrider%'";
                drop(session.text(sql).await);
            }
            Fault::FreezeBroker => {
                self.broker.freeze();
                frozen().await;
                self.broker.thaw();
            }
            Fault::RestartPostgres => {
                self.server.stop_fast(SETTLE).await;
                self.server.restart().await;
            }
            Fault::KillBroker => {
                self.broker.kill().await;
                self.broker.restart().await;
            }
            Fault::FreezePostgres => {
                self.server.freeze();
                frozen().await;
                self.server.thaw();
            }
        }
    }

    /// One relay streams, and has nothing left to publish but what is committed now.
    async fn settled(&self) {
        await_that("a relay that keeps up", SETTLE, || async {
            let mut seen = Vec::new();
            for relay in &self.relays {
                let status = relay.status().await.unwrap_or_default();
                let pipeline = &status["pipelines"][0];
                let lag = pipeline["lag_seconds"].as_f64().unwrap_or(f64::MAX);
                if pipeline["state"] == "streaming" && lag < 1.0 {
                    return Ok(());
                }
                seen.push((pipeline["state"].to_string(), lag));
            }
            Err(format!("{seen:?}"))
        })
        .await;
    }

    /// Some events that can't be published; those of the last time are skipped.
    async fn poison(&mut self) {
        self.poison += 1;
        let words = ["parked", "skip", "--all", "--state", "dead", "--reason", "soak", "--yes"];
        postrider_ok(&self.config, &words);
        let sql = format!(
            "insert into outbox (aggregate_type, aggregate_id, event_type, payload, headers) \
             select 'order', 'poison-{}-' || n / 2, 'Written', to_json(n), case n % 2 when 0 then '[]'::jsonb end \
             from generate_series(0, 9) n",
            self.poison
        );
        let session = Client::connect(&self.pipeline.url).await.expect("a session");
        session.batch(&sql).await;
    }

    /// Deletes rows as the application would: the relay does not need them.
    async fn clean(&self) {
        let session = Client::connect(&self.pipeline.url).await.expect("a session");
        session.batch("delete from outbox where created_at < now() - interval '1 minute'").await;
    }

    /// kill -9 of the relay that streams; a new one stands by afterwards.
    async fn kill_owner(&mut self) {
        let mut owner = 0;
        for (number, relay) in self.relays.iter().enumerate() {
            let status: Value = relay.status().await.unwrap_or_default();
            if status["pipelines"][0]["state"] == "streaming" {
                owner = number;
            }
        }
        drop(self.relays.remove(owner).kill().await);
        self.settled().await;
        self.relays.push(Relay::spawn_program(&self.program, &self.config, &[]));
    }
}

/// The load beside the relays, and the reader of what they publish.
struct Load {
    stop: Arc<AtomicBool>,
    committed: Arc<AtomicU64>,
    writers: Vec<JoinHandle<Written>>,
    stop_reader: Arc<AtomicBool>,
    read: Arc<AtomicU64>,
    reader: JoinHandle<Delivered>,
}

impl Load {
    fn start(pipeline: &Pipeline, rate: u32) -> Self {
        let flag = || Arc::new(AtomicBool::new(false));
        let (stop, stop_reader) = (flag(), flag());
        let (committed, read) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        let every = Duration::from_secs(1) * TRANSACTION_EVENTS * WRITERS / rate;
        let writer = |number| {
            let (stop, committed) = (Arc::clone(&stop), Arc::clone(&committed));
            Writer { url: pipeline.url.clone(), number, every, stop, committed }.start()
        };
        let writers = (0..WRITERS).map(writer).collect();
        let reader = Delivered::start(&pipeline.topic, Arc::clone(&stop_reader), Arc::clone(&read));
        Self { stop, committed, writers, stop_reader, read, reader }
    }

    fn committed(&self) -> u64 {
        self.committed.load(Ordering::Relaxed)
    }

    /// Stops the writers, waits until everything is published and read, and compares.
    async fn compare(mut self, soak: &Soak) -> Findings {
        self.stop.store(true, Ordering::Relaxed);
        let writers = std::mem::take(&mut self.writers);
        let written: Vec<Written> =
            writers.into_iter().map(|writer| writer.join().expect("a writer")).collect();
        soak.settled().await;
        // A repetition may still be read when every event is there.
        let last = Cell::new((0, Instant::now()));
        await_that("the reader at the end", SETTLE, || async {
            let read = self.read.load(Ordering::Relaxed);
            if last.get().0 != read {
                last.set((read, Instant::now()));
            }
            let quiet = last.get().1.elapsed() >= QUIET;
            if quiet && read >= self.committed() {
                Ok(())
            } else {
                Err(format!("{read} of {}", self.committed()))
            }
        })
        .await;
        self.stop_reader.store(true, Ordering::Relaxed);
        let delivered = self.reader.join().expect("the reader");
        let mut found = Findings::default();
        for (number, written) in (0..).zip(&written) {
            delivered.check(number, written, &mut found);
        }
        found
    }
}

/// As long as a server does not answer.
async fn frozen() {
    let begin = Instant::now();
    await_that("the end of a pause of the server", SETTLE, || async {
        if begin.elapsed() >= FROZEN { Ok(()) } else { Err("not yet") }
    })
    .await;
}

/// Fails if a process has more memory, descriptors or threads than when it had filled its pools: the second figure of a
/// time in which the process was the owner without interruption, or stood by.
fn assert_flat(samples: &[Sample]) {
    for pid in samples.iter().flat_map(|sample| sample.relays.iter().map(|relay| relay.pid)) {
        let of_process =
            |sample: &Sample| sample.relays.iter().find(|relay| relay.pid == pid).copied();
        let figures: Vec<Figures> = samples.iter().filter_map(of_process).collect();
        for time in figures.chunk_by(|one, next| one.streams == next.streams) {
            let (Some(first), Some(now)) = (time.get(1), time.last()) else { continue };
            let most = first.memory_kib + first.memory_kib / GROWTH_PART_MAX + GROWTH_KIB_MAX;
            assert!(now.memory_kib <= most, "{first}, then {now}");
            assert!(now.descriptors <= first.descriptors + 8, "{first}, then {now}");
            assert!(now.threads <= first.threads + 2, "{first}, then {now}");
        }
    }
    let end = samples.last().expect("a sample");
    assert!(end.tables_bytes <= TABLES_BYTES_MAX, "{end}");
}

#[expect(clippy::disallowed_methods, reason = "scripts/soak says how long the test takes")]
fn variable(name: &str, otherwise: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| otherwise.to_owned())
}

#[tokio::test]
#[ignore = "takes as long as scripts/soak says"]
async fn nothing_grows_and_nothing_is_lost_however_long_it_runs() {
    let minutes: u64 = variable("POSTRIDER_SOAK_MINUTES", "7").parse().expect("minutes");
    let rate: u32 = variable("POSTRIDER_SOAK_RATE", "2000").parse().expect("events a second");
    let program = variable("POSTRIDER_SOAK_PROGRAM", env!("CARGO_BIN_EXE_postrider"));
    let mut soak = Soak::start(program).await;
    let load = Load::start(&soak.pipeline, rate);
    let (mut samples, faults) = soak.run(&load, Duration::from_secs(minutes * 60)).await;
    let found = load.compare(&soak).await;
    samples.push(Sample::take(&soak).await);
    for relay in std::mem::take(&mut soak.relays) {
        assert_eq!(relay.terminate(SETTLE).await.code, Some(0));
    }
    let end = samples.last().expect("a sample");
    show(&format!("{end}\n{faults} faults in {minutes} minutes\n{found}"));
    assert!(found.balanced(), "{found}");
    assert_flat(&samples);
}
