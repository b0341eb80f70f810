//! Writers under load that keep a ledger, whatever happens to the server.
//!
//! They insert into an outbox of layout `postrider`. Each runs on a thread of its own, so that a busy test does not
//! hold it up.

use crate::ledger::{Entry, Ledger, Outcome};
use crate::server::Client;
use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::time::{Instant, MissedTickBehavior};

/// What a writer does.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    /// The database.
    pub(crate) url: String,
    /// The outbox, as SQL names it.
    pub(crate) table: String,
    /// Written to `aggregate_type`; the route makes the topic of it.
    pub(crate) aggregate_type: String,
    /// Aggregates of each writer; no two writers share one.
    pub(crate) aggregates: usize,
    /// Events of one transaction.
    pub(crate) transaction_events: usize,
    /// Events a second of each writer.
    pub(crate) rate: u32,
    /// Every n-th transaction is rolled back; 0: none.
    pub(crate) rollback_every: usize,
    /// The first event of every n-th transaction has a payload of some 8,000 bytes that can't be compressed to less
    /// than half of that; 0: none.
    pub(crate) large_every: usize,
}

impl Plan {
    /// 250 events a second in transactions of five, over 50 aggregates, every tenth rolled back.
    pub(crate) fn new(url: &str, aggregate_type: &str) -> Self {
        Self {
            url: url.to_owned(),
            table: "outbox".to_owned(),
            aggregate_type: aggregate_type.to_owned(),
            aggregates: 50,
            transaction_events: 5,
            rate: 250,
            rollback_every: 10,
            large_every: 0,
        }
    }
}

/// Writers at work.
pub(crate) struct Load {
    stop: Arc<AtomicBool>,
    committed: Arc<AtomicUsize>,
    writers: Vec<JoinHandle<Ledger>>,
}

impl Load {
    /// Starts them.
    pub(crate) fn start(plan: &Plan, writers: usize) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let committed = Arc::new(AtomicUsize::new(0));
        let writers = (0..writers)
            .map(|number| {
                let mut writer = Writer::new(plan.clone(), number, Arc::clone(&committed));
                let stop = Arc::clone(&stop);
                std::thread::spawn(move || {
                    let runtime = tokio::runtime::Builder::new_current_thread()
                        .enable_all()
                        .build()
                        .expect("a runtime");
                    runtime.block_on(writer.run(&stop));
                    writer.ledger
                })
            })
            .collect();
        Self { stop, committed, writers }
    }

    /// Events whose COMMIT was answered so far.
    pub(crate) fn committed(&self) -> usize {
        self.committed.load(Ordering::Relaxed)
    }

    /// Stops the writers behind the transaction at hand. The server must be up, or they wait for it.
    pub(crate) async fn stop(mut self) -> Ledger {
        self.stop.store(true, Ordering::Relaxed);
        let writers = std::mem::take(&mut self.writers);
        let all = tokio::task::spawn_blocking(move || {
            let mut all = Ledger::default();
            for writer in writers {
                all.absorb(writer.join().expect("a writer"));
            }
            all
        });
        all.await.expect("the writers")
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

/// One writer; tests that need no load use it directly.
pub(crate) struct Writer {
    plan: Plan,
    number: usize,
    client: Option<Client>,
    transactions: usize,
    committed: Arc<AtomicUsize>,
    pub(crate) ledger: Ledger,
}

impl Writer {
    /// A writer with aggregates of its own, told apart by `number`.
    pub(crate) fn new(plan: Plan, number: usize, committed: Arc<AtomicUsize>) -> Self {
        let ledger = Ledger::default();
        Self { plan, number, client: None, transactions: 0, committed, ledger }
    }

    async fn run(&mut self, stop: &AtomicBool) {
        let events = u32::try_from(self.plan.transaction_events).expect("a small number");
        let every = Duration::from_secs(1) * events / self.plan.rate.max(1);
        let mut ticks = tokio::time::interval_at(Instant::now(), every);
        // A writer that was held up makes good for it: the rate is the offered load, not a pause.
        ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
        while !stop.load(Ordering::Relaxed) {
            ticks.tick().await;
            self.transaction(stop).await;
        }
    }

    /// One transaction; on a broken connection its outcome is what is known, and the next one connects again.
    pub(crate) async fn transaction(&mut self, stop: &AtomicBool) {
        let Some(client) = self.connected(stop).await else { return };
        self.transactions += 1;
        let rolled_back = self.plan.rollback_every > 0
            && self.transactions.is_multiple_of(self.plan.rollback_every);
        let mut entries = Vec::new();
        match self.insert(&client, &mut entries).await {
            Err(_) => mark(&mut entries, Outcome::RolledBack),
            Ok(()) if rolled_back => {
                mark(&mut entries, Outcome::RolledBack);
                if client.batch_execute("rollback").await.is_ok() {
                    self.client = Some(client);
                }
            }
            Ok(()) => match client.batch_execute("commit").await {
                Ok(()) => {
                    mark(&mut entries, Outcome::Committed);
                    self.committed.fetch_add(entries.len(), Ordering::Relaxed);
                    self.client = Some(client);
                }
                // An error that the server sent is a refusal; a lost connection is anybody's guess.
                Err(error) if error.as_db_error().is_some_and(|e| !ended(e.code().code())) => {
                    mark(&mut entries, Outcome::RolledBack);
                }
                Err(_) => mark(&mut entries, Outcome::Unknown),
            },
        }
        self.ledger.entries.extend(entries);
    }

    async fn insert(
        &self,
        client: &Client,
        entries: &mut Vec<Entry>,
    ) -> Result<(), tokio_postgres::Error> {
        client.batch_execute("begin").await?;
        let sql = format!(
            "insert into {} (aggregate_type, aggregate_id, event_type, payload) \
             select $1, a, 'Written', p::json from unnest($2::text[], $3::text[]) with ordinality u(a, p, n) \
             order by n returning id::text",
            self.plan.table
        );
        let mut aggregates = Vec::new();
        let mut payloads = Vec::new();
        for event in 0..self.plan.transaction_events {
            let serial = self.transactions * self.plan.transaction_events + event;
            aggregates.push(format!("w{}-{}", self.number, serial % self.plan.aggregates));
            let large = self.plan.large_every > 0
                && event == 0
                && self.transactions.is_multiple_of(self.plan.large_every);
            let mut filler = String::new();
            if large {
                filler.push_str(", \"filler\": \"");
                for _ in 0..500 {
                    write!(filler, "{:016x}", fastrand::u64(..)).unwrap_or_default();
                }
                filler.push('"');
            }
            payloads.push(format!("{{\"writer\": {}, \"serial\": {serial}{filler}}}", self.number));
        }
        let rows = client.query(&sql, &[&self.plan.aggregate_type, &aggregates, &payloads]).await?;
        for ((row, aggregate), payload) in rows.iter().zip(aggregates).zip(payloads) {
            entries.push(Entry { id: row.get(0), aggregate, payload, outcome: Outcome::Unknown });
        }
        Ok(())
    }

    /// The connection, or a new one as soon as the server takes it; none once told to stop.
    async fn connected(&mut self, stop: &AtomicBool) -> Option<Client> {
        if let Some(client) = self.client.take() {
            return Some(client);
        }
        let mut ticks = tokio::time::interval(Duration::from_millis(20));
        loop {
            ticks.tick().await;
            let attempt =
                tokio::time::timeout(Duration::from_secs(2), Client::connect(&self.plan.url));
            if let Ok(Ok(client)) = attempt.await {
                return Some(client);
            }
            if stop.load(Ordering::Relaxed) {
                return None;
            }
        }
    }
}

/// Codes with which a server ends a session: the commit may have happened (57P01 to 57P03, class 08).
fn ended(code: &str) -> bool {
    code.starts_with("57P") || code.starts_with("08")
}

fn mark(entries: &mut [Entry], outcome: Outcome) {
    for entry in entries {
        entry.outcome = outcome;
    }
}
