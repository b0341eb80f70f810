//! The application of a demo: it changes orders and inserts an event for each change in the same transaction. Some
//! transactions are rolled back.
//!
//! Every connection has its own thread and its own aggregates, so the transactions of an aggregate follow each other.
//! The outcome of each event goes to the ledger.

use super::database::Database;
use super::error::DemoError;
use super::ledger::{EventId, Outcome, SharedLedger};
use crate::error::Chain;
use crate::postgres::names::TableName;
use crate::postgres::{Conninfo, connect_client};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tokio_postgres::{Client, Statement};

/// Aggregates of a demo.
pub(super) const AGGREGATES: usize = 100;

/// The aggregate type, in the column and in every key.
pub(super) const AGGREGATE_TYPE: &str = "order";

/// Events per second of one connection: with `fsync` on, many disks cannot do more.
const RATE_OF_CONNECTION: u32 = 500;

/// Number of connections at most.
const CONNECTIONS_MAX: u32 = 8;

/// Events of one transaction at most.
const TRANSACTION_EVENTS_MAX: usize = 5;

/// One of so many transactions is rolled back.
const ROLLBACK_EVERY: u32 = 12;

/// How far a writer may fall behind its rate; events beyond that are not made up for.
const DEBT_MAX: Duration = Duration::from_secs(1);

/// Between two attempts to connect.
const ATTEMPT_EVERY: Duration = Duration::from_millis(200);

/// Pause between two checks whether to begin.
const CHECK_EVERY: Duration = Duration::from_millis(5);

const EVENT_TYPES: [&str; 4] = ["OrderPlaced", "OrderPaid", "OrderPacked", "OrderShipped"];

/// The threads that write.
#[derive(Debug)]
pub(super) struct Writers {
    go: Arc<AtomicBool>,
    stop: Arc<AtomicBool>,
    trouble: LastError,
    threads: Vec<JoinHandle<()>>,
}

/// The newest error, for the screen.
type LastError = Arc<Mutex<Option<String>>>;

impl Writers {
    /// Starts the threads: one of them writes a first event, then all wait for [`Writers::go`]. Together they write
    /// `rate` events per second.
    pub(super) fn start(
        database: &Database,
        ledger: &SharedLedger,
        rate: u32,
    ) -> Result<Self, DemoError> {
        let connections = rate.div_ceil(RATE_OF_CONNECTION).clamp(1, CONNECTIONS_MAX);
        let mut writers = Self {
            go: Arc::default(),
            stop: Arc::default(),
            trouble: LastError::default(),
            threads: Vec::new(),
        };
        let table = TableName::new(&database.name, "outbox");
        for number in 0..connections {
            let writer = Writer {
                conninfo: database.conninfo.clone(),
                table: table.clone(),
                ledger: ledger.clone(),
                lanes: (0..AGGREGATES)
                    .skip(number as usize)
                    .step_by(connections as usize)
                    .collect(),
                pause: Duration::from_secs(1) * connections / rate.max(1),
                is_first: number == 0,
                go: Arc::clone(&writers.go),
                stop: Arc::clone(&writers.stop),
                trouble: Arc::clone(&writers.trouble),
            };
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            let runtime = runtime.map_err(DemoError::Thread)?;
            let thread = std::thread::Builder::new().name(format!("demo-writer-{number}"));
            let thread = thread.spawn(move || runtime.block_on(writer.run()));
            writers.threads.push(thread.map_err(DemoError::Thread)?);
        }
        Ok(writers)
    }

    /// Starts writing at the rate.
    pub(super) fn go(&self) {
        self.go.store(true, Ordering::Relaxed);
    }

    /// Requests that the writers stop after their current transactions.
    pub(super) fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }

    /// Whether every thread has ended.
    pub(super) fn are_done(&self) -> bool {
        self.threads.iter().all(JoinHandle::is_finished)
    }

    /// Why the writers do not write, if they do not.
    pub(super) fn trouble(&self) -> Option<String> {
        self.trouble.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Drop for Writers {
    fn drop(&mut self) {
        self.stop();
    }
}

struct Writer {
    conninfo: Conninfo,
    table: TableName,
    ledger: SharedLedger,
    lanes: Vec<usize>,
    /// Time for one event.
    pause: Duration,
    /// Writes the first event.
    is_first: bool,
    go: Arc<AtomicBool>,
    stop: Arc<AtomicBool>,
    trouble: LastError,
}

impl Writer {
    async fn run(&self) {
        while !self.stopped() {
            let ended = self.session().await;
            let trouble = ended.err().map(|error| Chain(&error).to_string());
            let failed = trouble.is_some();
            *self.trouble.lock().unwrap_or_else(PoisonError::into_inner) = trouble;
            if failed && !self.stopped() {
                tokio::time::sleep(ATTEMPT_EVERY).await;
            }
        }
    }

    fn goes(&self) -> bool {
        self.go.load(Ordering::Relaxed)
    }

    fn stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Writes on one connection until a stop is requested or the connection breaks.
    async fn session(&self) -> Result<(), DemoError> {
        let connected = connect_client(&self.conninfo, "postrider demo writer").await;
        let (client, connection) = connected.map_err(DemoError::Connect)?;
        *self.trouble.lock().unwrap_or_else(PoisonError::into_inner) = None;
        let mut connection = std::pin::pin!(connection);
        // When the connection ends, the current statement fails, and its error decides the outcome of the transaction.
        let mut alive = true;
        let mut writing = std::pin::pin!(self.write(&client));
        loop {
            tokio::select! {
                done = &mut writing => return done.map_err(DemoError::Sql),
                _ended = &mut connection, if alive => alive = false,
            }
        }
    }

    async fn write(&self, client: &Client) -> Result<(), tokio_postgres::Error> {
        let sql = format!(
            "insert into {} (aggregate_type, aggregate_id, event_type, payload) \
             select '{AGGREGATE_TYPE}', a, e, p::json \
             from unnest($1::text[], $2::text[], $3::text[]) with ordinality u(a, e, p, n) order by n \
             returning id",
            self.table
        );
        let insert = client.prepare(&sql).await?;
        if self.is_first && !self.goes() {
            self.transaction(client, &insert, 1, false).await?;
        }
        while !self.goes() && !self.stopped() {
            tokio::time::sleep(CHECK_EVERY).await;
        }
        let mut due = Instant::now();
        while !self.stopped() {
            let events = fastrand::usize(1..=TRANSACTION_EVENTS_MAX);
            let roll_back = fastrand::u32(..ROLLBACK_EVERY) == 0;
            self.transaction(client, &insert, events, roll_back).await?;
            // Only committed events count towards the rate.
            let events = if roll_back { 0 } else { u32::try_from(events).unwrap_or(1) };
            due += self.pause * events;
            let now = Instant::now();
            due = due.max(now.checked_sub(DEBT_MAX).unwrap_or(now));
            tokio::time::sleep_until(due.into()).await;
        }
        Ok(())
    }

    /// One transaction, whose outcome is entered in the ledger.
    async fn transaction(
        &self,
        client: &Client,
        insert: &Statement,
        events: usize,
        roll_back: bool,
    ) -> Result<(), tokio_postgres::Error> {
        let events: Vec<EventId> = {
            let mut ledger = self.ledger.lock();
            (0..events)
                .filter_map(|_| Some(ledger.write(*fastrand::choice(&self.lanes)?)))
                .collect()
        };
        let outcome = self.attempt(client, insert, &events, roll_back).await;
        let resolved = match &outcome {
            Ok(resolved) | Err((resolved, _)) => *resolved,
        };
        self.ledger.lock().resolve(&events, resolved);
        outcome.map(|_| ()).map_err(|(_, error)| error)
    }

    async fn attempt(
        &self,
        client: &Client,
        insert: &Statement,
        events: &[EventId],
        roll_back: bool,
    ) -> Result<Outcome, (Outcome, tokio_postgres::Error)> {
        let aborted = |error| (Outcome::RolledBack, error);
        let (mut ids, mut types, mut payloads) = (Vec::new(), Vec::new(), Vec::new());
        for EventId { lane, sequence } in events {
            ids.push(key(*lane));
            types.push(EVENT_TYPES[sequence % EVENT_TYPES.len()]);
            let total = f64::from(fastrand::u16(100..)) / 100.0;
            payloads.push(format!(
                "{{\"order\": {lane}, \"sequence\": {sequence}, \"total\": {total:.2}}}"
            ));
        }
        client.batch_execute("begin").await.map_err(aborted)?;
        let rows = client.query(insert, &[&ids, &types, &payloads]).await.map_err(aborted)?;
        let inserted: Result<Vec<i64>, _> = rows.iter().map(|row| row.try_get(0)).collect();
        self.ledger.lock().inserted(events, &inserted.map_err(aborted)?);
        if roll_back {
            client.batch_execute("rollback").await.map_err(aborted)?;
            return Ok(Outcome::RolledBack);
        }
        self.ledger.lock().committing(events, Instant::now());
        client.batch_execute("commit").await.map_err(|error| {
            // An error of the server means that the transaction was aborted. After a lost connection the outcome is
            // unknown.
            let refused = error.code().is_some_and(|code| !ends_session(code.code()));
            (if refused { Outcome::RolledBack } else { Outcome::Unknown }, error)
        })?;
        Ok(Outcome::Committed)
    }
}

/// Codes with which a server ends a session: 57P01 to 57P03, class 08.
fn ends_session(code: &str) -> bool {
    code.starts_with("57P") || code.starts_with("08")
}

/// The aggregate's id, which is the record's key.
pub(super) fn key(lane: usize) -> String {
    format!("{AGGREGATE_TYPE}-{lane}")
}
