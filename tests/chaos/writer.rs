//! The writers of events, and the ledger of what was committed, rolled back, or is unknown.
//!
//! Each writer has its own aggregates and its own thread, and connects directly to the server, which may fail at any
//! time: only a commit without an answer is unknown.

use crate::server::Client;
use fastrand::Rng;
use std::fmt::Write as _;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::time::{Instant, MissedTickBehavior};

/// Aggregates of each writer.
const AGGREGATES: u32 = 40;
/// Events of one large transaction.
const BURST_EVENTS: u32 = 5_000;
/// Bytes of an event that is larger than the topic accepts.
const POISON_BYTES: u32 = 60_000;

/// The outcome of an event's transaction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Outcome {
    Committed,
    RolledBack,
    /// The connection ended between COMMIT and its answer.
    Unknown,
}

/// One event that was written.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Entry {
    pub(crate) id: String,
    pub(crate) aggregate: String,
    /// Bytes of the payload.
    pub(crate) bytes: usize,
    pub(crate) outcome: Outcome,
}

/// Shared state of the writers: requests to them, and their results.
#[derive(Default)]
pub(crate) struct WriterControl {
    pub(crate) stop: AtomicBool,
    /// The writer of the side topic has to pause.
    pub(crate) side_pauses: AtomicBool,
    /// The writer has paused: its last transaction is in the ledger.
    pub(crate) side_paused: AtomicBool,
    /// When the side topic was recreated, in milliseconds since the Unix epoch.
    pub(crate) recreated: Mutex<Vec<i64>>,
    /// Some events are larger than the topic accepts.
    pub(crate) poison: AtomicBool,
    /// The next transaction is large.
    pub(crate) burst: AtomicBool,
    /// Events whose COMMIT was answered.
    pub(crate) committed: AtomicUsize,
    pub(crate) side_committed: AtomicUsize,
    /// In commit order for each writer.
    pub(crate) ledger: Mutex<Vec<Entry>>,
}

/// The payload of an event. ID and size determine it, so that a reader can check it.
pub(crate) fn payload(id: &str, size: u32) -> String {
    let seed = id
        .bytes()
        .fold(u64::from(size), |sum, byte| sum.wrapping_mul(0x0100_0000_01b3) ^ u64::from(byte));
    let mut rng = Rng::with_seed(seed);
    let mut text = format!("{{\"id\": \"{id}\", \"size\": {size}, \"x\": \"");
    while text.len() < size as usize {
        write!(text, "{:016x}", rng.u64(..)).expect("a string takes all");
    }
    text + "\"}"
}

/// All writers.
pub(crate) struct Writers {
    pub(crate) control: Arc<WriterControl>,
    threads: Vec<JoinHandle<()>>,
}

impl Writers {
    /// Starts `number` writers to the main topic, each with `rate` events a second, and one with a tenth of that to the
    /// side topic.
    pub(crate) fn start(url: &str, number: usize, rate: u32, seed: u64) -> Self {
        let control = Arc::new(WriterControl::default());
        let plans = (0..number).map(|number| (format!("w{number}"), "main", rate));
        let plans = plans.chain([("side".to_owned(), "side", rate / 10)]);
        let threads = plans
            .zip(seed..)
            .map(|((name, topic, rate), seed)| {
                let (url, control) = (url.to_owned(), Arc::clone(&control));
                let rng = Rng::with_seed(seed);
                let mut writer = Writer { name, topic, url, control, rng, serial: 0, client: None };
                std::thread::spawn(move || {
                    let runtime = tokio::runtime::Builder::new_current_thread();
                    let runtime = { runtime }.enable_all().build().expect("a runtime");
                    runtime.block_on(writer.run(rate));
                })
            })
            .collect();
        Self { control, threads }
    }

    /// Stops the writers after their current transactions.
    pub(crate) async fn stop(&mut self) {
        self.control.stop.store(true, Ordering::Relaxed);
        let threads = std::mem::take(&mut self.threads);
        let ends = tokio::task::spawn_blocking(move || {
            for thread in threads {
                thread.join().expect("a writer");
            }
        });
        ends.await.expect("the writers");
    }
}

impl Drop for Writers {
    fn drop(&mut self) {
        self.control.stop.store(true, Ordering::Relaxed);
    }
}

struct Writer {
    name: String,
    topic: &'static str,
    url: String,
    control: Arc<WriterControl>,
    rng: Rng,
    serial: u64,
    client: Option<Client>,
}

impl Writer {
    async fn run(&mut self, rate: u32) {
        let mut ticks = tokio::time::interval(Duration::from_millis(5));
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut due = Instant::now();
        while !self.control.stop.load(Ordering::Relaxed) {
            ticks.tick().await;
            let rests = self.topic == "side" && self.control.side_pauses.load(Ordering::Relaxed);
            if self.topic == "side" {
                self.control.side_paused.store(rests, Ordering::Relaxed);
            }
            if Instant::now() < due || rests {
                continue;
            }
            let events = self.transaction().await;
            // A delayed writer makes up for at most one second.
            let late = Instant::now().checked_sub(Duration::from_secs(1)).unwrap_or(due);
            due = due.max(late) + Duration::from_secs(1) * events / rate.max(1);
        }
    }

    /// One transaction. After a lost connection its outcome is what is known, and the next one connects again.
    async fn transaction(&mut self) -> u32 {
        let Some(client) = self.connected().await else { return 0 };
        let (sql, mut entries) = self.draw();
        let events = u32::try_from(entries.len()).expect("a small number");
        let rolled_back = self.rng.u32(..10) == 0;
        let outcome = if client.batch_execute(&sql).await.is_err() {
            Outcome::RolledBack
        } else if rolled_back {
            if client.batch_execute("rollback").await.is_ok() {
                self.client = Some(client);
            }
            Outcome::RolledBack
        } else {
            match client.batch_execute("commit").await {
                Ok(()) => {
                    self.client = Some(client);
                    Outcome::Committed
                }
                // An error of the server is a rollback, unless it ends the session: then the transaction may have
                // committed.
                Err(error) if error.as_db_error().is_some_and(|e| !ends(e.code().code())) => {
                    Outcome::RolledBack
                }
                Err(_) => Outcome::Unknown,
            }
        };
        for entry in &mut entries {
            // Rolled back to a savepoint already.
            if entry.outcome == Outcome::Unknown {
                entry.outcome = outcome;
            }
        }
        let committed = entries.iter().filter(|entry| entry.outcome == Outcome::Committed).count();
        let side = self.topic == "side";
        let counter = if side { &self.control.side_committed } else { &self.control.committed };
        self.control.ledger.lock().expect("the ledger").extend(entries);
        counter.fetch_add(committed, Ordering::Relaxed);
        events
    }

    /// The statements of a transaction without its end, and its events.
    fn draw(&mut self) -> (String, Vec<Entry>) {
        let events = if self.topic == "main" && self.control.burst.swap(false, Ordering::Relaxed) {
            BURST_EVENTS
        } else {
            self.rng.u32(1..16)
        };
        let savepoint = events > 2 && self.rng.u32(..12) == 0;
        let poison = self.topic == "main" && self.control.poison.load(Ordering::Relaxed);
        let poison = poison && self.rng.u32(..40) == 0;
        let mut sql = "begin;".to_owned();
        let mut entries = Vec::new();
        for event in 0..events {
            // The second of three parts is rolled back.
            let undone = savepoint && event >= events / 3 && event < 2 * events / 3;
            if savepoint && event == events / 3 {
                sql += "savepoint s;";
            }
            if savepoint && event == 2 * events / 3 {
                sql += "rollback to s;";
            }
            self.serial += 1;
            // Padded: polling orders events of the same time by ID.
            let id = format!("{}-{:09}", self.name, self.serial);
            let aggregate = format!("{}-a{}", self.name, self.rng.u32(..AGGREGATES));
            let large = poison && event == events / 2;
            let size = if large { POISON_BYTES } else { self.rng.u32(60..400) };
            let payload = payload(&id, size);
            write!(
                sql,
                "insert into outbox (id, aggregate_type, aggregate_id, event_type, payload) \
                 values ('{id}', '{}', '{aggregate}', 'Written', '{payload}');",
                self.topic
            )
            .expect("a string takes all");
            let outcome = if undone { Outcome::RolledBack } else { Outcome::Unknown };
            entries.push(Entry { id, aggregate, bytes: payload.len(), outcome });
        }
        (sql, entries)
    }

    /// The connection, or a new one once the server accepts it; `None` after a stop.
    async fn connected(&mut self) -> Option<Client> {
        if let Some(client) = self.client.take() {
            return Some(client);
        }
        let mut ticks = tokio::time::interval(Duration::from_millis(50));
        loop {
            ticks.tick().await;
            let attempt = tokio::time::timeout(Duration::from_secs(2), Client::connect(&self.url));
            if let Ok(Ok(client)) = attempt.await {
                return Some(client);
            }
            if self.control.stop.load(Ordering::Relaxed) {
                return None;
            }
        }
    }
}

/// SQLSTATEs with which a server ends a session: 57P01 to 57P03, class 08.
fn ends(code: &str) -> bool {
    code.starts_with("57P") || code.starts_with("08")
}
