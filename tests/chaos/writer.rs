//! Who writes events, and keeps the ledger of what was committed, rolled back, or is unknown.
//!
//! Each writer has aggregates of its own and a thread of its own, and goes straight to the server, which may go at any
//! time: a commit without an answer is unknown, and nothing else is.

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
/// Bytes of an event that is larger than the topic takes.
const POISON_BYTES: u32 = 60_000;

/// What became of an event's transaction.
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
    /// Of the payload.
    pub(crate) bytes: usize,
    pub(crate) outcome: Outcome,
}

/// What writers are told, and tell.
#[derive(Default)]
pub(crate) struct Desk {
    pub(crate) stop: AtomicBool,
    /// The side topic's writer is to rest.
    pub(crate) side_rests: AtomicBool,
    /// It does: its last transaction is in the ledger.
    pub(crate) side_at_rest: AtomicBool,
    /// When it was made anew, in milliseconds since the Unix epoch.
    pub(crate) made_anew: Mutex<Vec<i64>>,
    /// Some events are larger than the topic takes.
    pub(crate) poison: AtomicBool,
    /// The next transaction of somebody is large.
    pub(crate) burst: AtomicBool,
    /// Events whose COMMIT was answered.
    pub(crate) committed: AtomicUsize,
    pub(crate) side_committed: AtomicUsize,
    /// In order of commit for each writer.
    pub(crate) ledger: Mutex<Vec<Entry>>,
}

/// The payload of an event: its size and its content follow from its id and `size`, so that a reader knows it too.
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

/// All writers at work.
pub(crate) struct Writers {
    pub(crate) desk: Arc<Desk>,
    threads: Vec<JoinHandle<()>>,
}

impl Writers {
    /// Starts so many on the main topic, each with `rate` events a second, and one at a tenth of it on the side topic.
    pub(crate) fn start(url: &str, number: usize, rate: u32, seed: u64) -> Self {
        let desk = Arc::new(Desk::default());
        let plans = (0..number).map(|number| (format!("w{number}"), "main", rate));
        let plans = plans.chain([("side".to_owned(), "side", rate / 10)]);
        let threads = plans
            .zip(seed..)
            .map(|((name, topic, rate), seed)| {
                let (url, desk) = (url.to_owned(), Arc::clone(&desk));
                let rng = Rng::with_seed(seed);
                let mut writer = Writer { name, topic, url, desk, rng, serial: 0, client: None };
                std::thread::spawn(move || {
                    let runtime = tokio::runtime::Builder::new_current_thread();
                    let runtime = { runtime }.enable_all().build().expect("a runtime");
                    runtime.block_on(writer.run(rate));
                })
            })
            .collect();
        Self { desk, threads }
    }

    /// Ends them behind the transactions at hand.
    pub(crate) async fn stop(&mut self) {
        self.desk.stop.store(true, Ordering::Relaxed);
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
        self.desk.stop.store(true, Ordering::Relaxed);
    }
}

struct Writer {
    name: String,
    topic: &'static str,
    url: String,
    desk: Arc<Desk>,
    rng: Rng,
    serial: u64,
    client: Option<Client>,
}

impl Writer {
    async fn run(&mut self, rate: u32) {
        let mut ticks = tokio::time::interval(Duration::from_millis(5));
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut due = Instant::now();
        while !self.desk.stop.load(Ordering::Relaxed) {
            ticks.tick().await;
            let rests = self.topic == "side" && self.desk.side_rests.load(Ordering::Relaxed);
            if self.topic == "side" {
                self.desk.side_at_rest.store(rests, Ordering::Relaxed);
            }
            if Instant::now() < due || rests {
                continue;
            }
            let events = self.transaction().await;
            // A writer that was held up makes good for a second of it, not for all.
            let late = Instant::now().checked_sub(Duration::from_secs(1)).unwrap_or(due);
            due = due.max(late) + Duration::from_secs(1) * events / rate.max(1);
        }
    }

    /// One transaction; on a broken connection its outcome is what is known, and the next one connects again.
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
                // What the server answers is a refusal, unless it ends the session with it: then it may have committed.
                Err(error) if error.as_db_error().is_some_and(|e| !ends(e.code().code())) => {
                    Outcome::RolledBack
                }
                Err(_) => Outcome::Unknown,
            }
        };
        for entry in &mut entries {
            // Behind a savepoint they are rolled back already.
            if entry.outcome == Outcome::Unknown {
                entry.outcome = outcome;
            }
        }
        let committed = entries.iter().filter(|entry| entry.outcome == Outcome::Committed).count();
        let side = self.topic == "side";
        let counter = if side { &self.desk.side_committed } else { &self.desk.committed };
        self.desk.ledger.lock().expect("the ledger").extend(entries);
        counter.fetch_add(committed, Ordering::Relaxed);
        events
    }

    /// The statements of a transaction without its end, and its events.
    fn draw(&mut self) -> (String, Vec<Entry>) {
        let events = if self.topic == "main" && self.desk.burst.swap(false, Ordering::Relaxed) {
            BURST_EVENTS
        } else {
            self.rng.u32(1..16)
        };
        let savepoint = events > 2 && self.rng.u32(..12) == 0;
        let poison = self.topic == "main" && self.desk.poison.load(Ordering::Relaxed);
        let poison = poison && self.rng.u32(..40) == 0;
        let mut sql = "begin;".to_owned();
        let mut entries = Vec::new();
        for event in 0..events {
            // The second of three parts is undone.
            let undone = savepoint && event >= events / 3 && event < 2 * events / 3;
            if savepoint && event == events / 3 {
                sql += "savepoint s;";
            }
            if savepoint && event == 2 * events / 3 {
                sql += "rollback to s;";
            }
            self.serial += 1;
            // Padded: polling orders the events of one moment by their ids.
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

    /// The connection, or a new one as soon as the server takes it; none once told to stop.
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
            if self.desk.stop.load(Ordering::Relaxed) {
                return None;
            }
        }
    }
}

/// Codes with which a server ends a session: 57P01 to 57P03, class 08.
fn ends(code: &str) -> bool {
    code.starts_with("57P") || code.starts_with("08")
}
