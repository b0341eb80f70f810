//! The polling session: one lock, and one claim at a time.

use super::claim::{Claim, ClaimAnswer, KeptRows, MissedRows, Place};
use super::order;
use super::spec::PollSpec;
use super::sql::{self, ClaimQuery, PayloadCopy, StatusUpdate, dies, ready};
use super::table::{self, TableShape};
use crate::control::Control;
use crate::names::ident;
use crate::pipeline_lock::{PipelineLock, lock};
use crate::statement::{Statement, StatementError};
use pg_replication::client::Canceller;
use pg_replication::conninfo::Conninfo;
use pg_replication::error::{ServerReport, SourceError, SourceErrorKind, SqlState};
use postrider_core::outbox_rows::RowOutcome;
use postrider_core::row::{OwnedTable, Row};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::Notify;
use tokio_postgres::{Client, SimpleQueryMessage};

/// Most rows of one claim.
pub const CLAIM_ROWS_MAX: usize = 10_000;

/// The channel on which the trigger of `setup --notify` reports inserted rows; the payload is schema and name of the
/// table.
pub const CHANNEL: &str = "postrider_outbox";
/// Most statements of one claim, each without the aggregates, or the expired rows, that filled the one before.
const STATEMENTS_MAX: usize = 4;

/// Settings in addition to those of [`Control`]. Without sequential scans the rows come from an index in their order if
/// there is one, even just after a backlog has grown and the planner's statistics are those of an empty table.
///
/// `statement_timeout`: without an index in polling order a claim sorts the whole table; a claim that is cancelled
/// before that makes no progress the next time either.
const PINNED: &str = "SET statement_timeout = '10min'; SET enable_seqscan = off; \
     SET default_transaction_read_only = off; LISTEN postrider_outbox";

/// The result of [`Poller::open`].
#[derive(Debug)]
pub enum Opened {
    /// The lock was acquired: this session polls.
    Polling(Box<Poller>),
    /// Another session polls for this pipeline: try again later.
    StandBy {
        /// That session's backend; `None` if the session has just ended.
        pid: Option<u32>,
    },
}

/// The polling session. Dropping it ends the connection: the rows of an open claim are unlocked, without a new status.
pub struct Poller {
    control: Control,
    inserted: Arc<Notify>,
    spec: PollSpec,
    shape: TableShape,
    /// A transaction of this session may be open.
    open: bool,
    /// Aggregates to leave out, until when, and after how many failures in a row.
    pauses: BTreeMap<String, (Instant, u32)>,
}

impl fmt::Debug for Poller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Poller")
            .field("spec", &self.spec)
            .field("open", &self.open)
            .finish_non_exhaustive()
    }
}

impl Poller {
    /// Opens a session, reads the table's definition, and takes the pipeline's lock.
    ///
    /// # Errors
    /// An error of the server or of the connection; 42P01 or 42703 if the table or a column does not exist.
    pub async fn open(
        conninfo: &Conninfo,
        application_name: &str,
        spec: &PollSpec,
    ) -> Result<Opened, SourceError> {
        let inserted = Arc::new(Notify::new());
        let table = format!("{}.{}", spec.table.schema, spec.table.name);
        let listen = Arc::clone(&inserted);
        let about = move |_channel: &str, payload: &str| {
            if payload.is_empty() || payload == table {
                listen.notify_one();
            }
        };
        let control = Control::connect_notified(conninfo, application_name, about).await?;
        let failed = |e| SourceError::control("set up the polling session", e).of(Statement::Claim);
        let client = control.client();
        client.batch_execute(PINNED).await.map_err(failed)?;
        let shape = table::read(client, spec).await?;
        // The lock is taken last, so that an error before this point leaves none behind. A session keeps its lock until
        // the server has ended the session, and the next attempt of this process would be refused as long.
        if let PipelineLock::HeldBy { pid } = lock(client, &spec.key).await? {
            return Ok(Opened::StandBy { pid });
        }
        if spec.dlq().is_some() && shape.dlq.is_none() {
            tracing::warn!(table = %spec.table, "no dead-letter table: failed events are retried without a limit");
        }
        let spec = spec.clone();
        let pauses = BTreeMap::new();
        let poller = Self { control, inserted, spec, shape, open: false, pauses };
        Ok(Opened::Polling(Box::new(poller)))
    }

    /// The description of the table.
    pub fn description(&self) -> OwnedTable {
        self.shape.description(&self.spec.table)
    }

    /// The query for the oldest ready row.
    pub fn oldest_ready(&self) -> OldestReady {
        OldestReady::of(&self.spec, &self.shape)
    }

    /// The session's client: between [`Self::claim`] and [`Self::settle`] its statements belong to the claim's
    /// transaction.
    pub fn client(&self) -> &Client {
        self.control.client()
    }

    /// Locks the next rows, at most `limit` (and [`CLAIM_ROWS_MAX`], [`super::CLAIM_BYTES_MAX`]). A claim that was
    /// neither settled nor abandoned is abandoned first. Without rows the transaction has already ended.
    ///
    /// `visible_in`: only rows that this `pg_snapshot` sees, and rows that polling has marked as failed. A row that
    /// another session updated after the snapshot is not among them, although it may have been inserted before: the
    /// table does not record that.
    ///
    /// # Errors
    /// An error of the server or of the connection. Then no row has a new status.
    pub async fn claim(
        &mut self,
        limit: usize,
        visible_in: Option<&str>,
    ) -> Result<Claim, SourceError> {
        self.claim_what(limit, (visible_in, false), &|_| false).await
    }

    /// As [`Self::claim`], for a caller that keeps rows elsewhere too. Rows whose ids meet `keeps` do not expire.
    /// `unready`: including rows that are delayed or have failed; only locked rows hold others back.
    ///
    /// # Errors
    /// An error of the server or of the connection. Then no row has a new status.
    pub async fn claim_beside(
        &mut self,
        limit: usize,
        unready: bool,
        keeps: &(dyn Fn(&str) -> bool + Sync),
    ) -> Result<Claim, SourceError> {
        self.claim_what(limit, (None, unready), keeps).await
    }

    async fn claim_what(
        &mut self,
        limit: usize,
        which: (Option<&str>, bool),
        keeps: &(dyn Fn(&str) -> bool + Sync),
    ) -> Result<Claim, SourceError> {
        self.abandon().await?;
        let limit = limit.clamp(1, CLAIM_ROWS_MAX);
        let now = Instant::now();
        let mut blocked: Vec<String> = Vec::new();
        let mut claimed = ClaimAnswer::default();
        let (mut expired, mut withheld, mut missed) = (0, 0, MissedRows::default());
        for _ in 0..STATEMENTS_MAX {
            claimed = self.claim_once(limit, which, (now, &blocked), keeps).await?;
            expired += self.expire(&claimed).await?;
            withheld += claimed.withheld;
            missed.extend(&claimed.missed);
            let in_vain = !claimed.blocked.is_empty() || !claimed.expired.is_empty();
            if !claimed.rows.is_empty() || !claimed.cut(limit) || !in_vain {
                break;
            }
            blocked.extend(claimed.blocked.iter().cloned());
            blocked.truncate(PAUSES_MAX);
        }
        for key in blocked {
            if self.pauses.len() < PAUSES_MAX {
                self.pauses.entry(key).or_insert((now + BLOCKED_PAUSE, 0));
            }
        }
        let more = claimed.cut(limit);
        if claimed.rows.is_empty() {
            self.end("COMMIT").await?;
        }
        let ClaimAnswer { rows, places, keys, large, at, claimed_at, .. } = claimed;
        Ok(Claim { rows, at, claimed_at, expired, withheld, missed, more, places, keys, large })
    }

    async fn claim_once(
        &mut self,
        limit: usize,
        (visible_in, unready): (Option<&str>, bool),
        (now, blocked): (Instant, &[String]),
        keeps: &(dyn Fn(&str) -> bool + Sync),
    ) -> Result<ClaimAnswer, SourceError> {
        let rests = |until: &Instant| *until > now && !unready;
        let resting = self.pauses.iter().filter(|(_, (until, _))| rests(until)).map(|(key, _)| key);
        let without = resting.chain(blocked).map(String::as_str).collect();
        let ask = ClaimQuery { limit, visible_in, without, unready };
        let text = sql::claim(&self.spec, &self.shape, &ask);
        // Further statements of a claim run in the same transaction.
        let text = if self.open { text.trim_start_matches(BEGIN) } else { &text };
        self.open = true;
        let doing = || format!("claim rows of table {}", self.spec.table);
        let failed = |error| SourceError::control(doing(), error).of(Statement::Claim);
        let answer = self.control.client().simple_query(text).await.map_err(failed)?;
        let kept = KeptRows { id: &self.spec.id, keeps };
        let claimed = ClaimAnswer::read(&answer, &self.shape, Some(&kept))?;
        if claimed.table.is_some_and(|oid| oid != self.shape.oid) {
            return Err(self.replaced());
        }
        Ok(claimed)
    }

    /// The table was renamed or dropped since the session began, and another one has its name. Its rows must not be
    /// published before the next start has compared the two tables. The SQLSTATE is the server's for a table that does
    /// not exist.
    fn replaced(&self) -> SourceError {
        let table = &self.spec.table;
        let report = ServerReport {
            severity: "ERROR".to_owned(),
            sqlstate: SqlState::UNDEFINED_TABLE,
            message: format!("table {table} was renamed or dropped, and another one has its name"),
            detail: None,
            hint: None,
            constraint: None,
            associated_lsn: None,
        };
        SourceError::server(format!("claim rows of table {table}"), report).of(Statement::Claim)
    }

    async fn expire(&self, claimed: &ClaimAnswer) -> Result<u64, SourceError> {
        if claimed.expired.is_empty() {
            return Ok(0);
        }
        let marked = sql::expire(&self.spec, &self.shape, &claimed.expired);
        self.mark(&marked).await?;
        Ok(marked.rows)
    }

    /// Sets the status of each row of the claim as its outcome says, in order, and commits.
    ///
    /// # Errors
    /// An error of the server or of the connection: then possibly no row has a new status, and published events will be
    /// claimed again. SQLSTATE 09000 if rows did not take their status (a trigger of the table undoes it): to continue
    /// would publish them without end.
    ///
    /// # Panics
    /// If there are not as many outcomes as rows, or a failure is to be stored in a table that keeps none.
    pub async fn settle(
        &mut self,
        claim: Claim,
        outcomes: &[RowOutcome],
    ) -> Result<(), SourceError> {
        if !claim.rows.is_empty() {
            self.mark_outcomes(&claim, outcomes).await?;
        }
        Ok(())
    }

    async fn mark_outcomes(
        &mut self,
        claim: &Claim,
        outcomes: &[RowOutcome],
    ) -> Result<(), SourceError> {
        assert_eq!(claim.rows.len(), outcomes.len(), "one outcome a row");
        let fails = outcomes.iter().any(|outcome| matches!(outcome, RowOutcome::Failed { .. }));
        assert!(!fails || self.spec.keeps_failures(), "the table keeps no failures: park them");
        let mut marked = sql::settle(&self.spec, &self.shape, &claim.places, outcomes);
        marked.sql.push_str("COMMIT");
        self.mark(&marked).await?;
        self.open = false;
        self.pause(claim, outcomes);
        Ok(())
    }

    /// Sets the status of rows of the claim as their outcomes say, in order, and commits; the rows of `left` are locked
    /// again immediately and stay in the claim. Returns `false` if another session has locked, changed or deleted one
    /// of them in between. The status that was set is kept, and the claim must be abandoned.
    ///
    /// # Errors
    /// As [`Self::settle`].
    ///
    /// # Panics
    /// As [`Self::settle`].
    pub async fn settle_part(
        &mut self,
        claim: &Claim,
        outcomes: &[RowOutcome],
        left: &[usize],
    ) -> Result<bool, SourceError> {
        self.mark_outcomes(claim, outcomes).await?;
        let left: Vec<Place> =
            left.iter().filter_map(|row| claim.places.get(*row).copied()).collect();
        self.open = true;
        let text = sql::lock_again(&self.spec, &left);
        let doing = || format!("lock rows of table {} again", self.spec.table);
        let failed = |error| SourceError::control(doing(), error).of(Statement::Claim);
        let answer = self.control.client().simple_query(&text).await.map_err(failed)?;
        let mut had = BTreeSet::new();
        for message in &answer {
            if let SimpleQueryMessage::Row(row) = message {
                had.insert(Place::of_locked(row)?);
            }
        }
        Ok(left.iter().all(|place| had.contains(place)))
    }

    /// The failures of a claimed row plus one more, if that failure is its last one by the rules of its layout; `None`
    /// if it is not, or the table keeps no failures ([`PollSpec::keeps_failures`]).
    pub fn dies(&self, row: &Row<'_>) -> Option<u32> {
        dies(&self.spec, &self.shape, row)
    }

    /// Copies the payload of a row that is too large to be read into its row of `postrider.parked`, in the claim's
    /// transaction.
    ///
    /// # Errors
    /// An error of the server or of the connection.
    pub async fn keep_value(&self, keep: &PayloadCopy<'_>) -> Result<(), SourceError> {
        keep.run(self.client(), &self.spec, &self.shape).await
    }

    /// Abandons the claim: its rows are unlocked, without a new status. Does nothing if no claim is open.
    ///
    /// # Errors
    /// An error of the server or of the connection.
    pub async fn abandon(&mut self) -> Result<(), SourceError> {
        if self.open { self.end("ROLLBACK").await } else { Ok(()) }
    }

    async fn end(&mut self, how: &str) -> Result<(), SourceError> {
        let ended = self.control.client().batch_execute(how).await;
        ended.map_err(|error| SourceError::control("end a claim", error).of(Statement::Claim))?;
        self.open = false;
        Ok(())
    }

    /// Runs status updates, and checks that every row took its status.
    async fn mark(&self, marked: &StatusUpdate) -> Result<(), SourceError> {
        let doing = || format!("mark rows of table {}", self.spec.table);
        let failed = |error| SourceError::control(doing(), error).of(Statement::Settle);
        let answer = self.control.client().simple_query(&marked.sql).await.map_err(failed)?;
        let touched: u64 =
            answer
                .iter()
                .map(|message| {
                    if let SimpleQueryMessage::CommandComplete(rows) = message { *rows } else { 0 }
                })
                .sum();
        if touched == marked.rows {
            return Ok(());
        }
        let report = ServerReport {
            severity: "ERROR".to_owned(),
            sqlstate: SqlState::TRIGGERED_ACTION_EXCEPTION,
            message: format!("{touched} of {} rows took their mark", marked.rows),
            detail: None,
            hint: Some(
                "see which trigger or rule of the table changes what is written to it".to_owned(),
            ),
            constraint: None,
            associated_lsn: None,
        };
        Err(SourceError::server(doing(), report).of(Statement::Settle))
    }

    /// Waits until rows were inserted, if the table has the trigger of `setup --notify`; otherwise without an end. A
    /// notification that arrived while nobody waited counts. Cancel-safe. A session receives no notification while its
    /// claim is open.
    pub async fn notified(&self) {
        self.inserted.notified().await;
    }

    /// The notification of [`Self::notified`] as a handle, to wait for it and for [`Self::closed`] together.
    pub fn wake(&self) -> Arc<Notify> {
        Arc::clone(&self.inserted)
    }

    /// Cancels the statement of a claim.
    pub fn canceller(&self) -> Option<Canceller> {
        self.control.canceller()
    }

    /// Waits until the session ends, and returns why. Cancel-safe, and may be called again.
    pub async fn closed(&mut self) -> SourceError {
        self.control.closed().await
    }
}

/// How [`sql::claim`] begins.
const BEGIN: &str = "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE;\n";

/// Most aggregates that are left out for a while, in memory: their rows would fill each claim without being
/// publishable. Further aggregates are claimed again each time.
const PAUSES_MAX: usize = 1_000;
/// How long an aggregate is left out when its held-back rows filled a claim.
const BLOCKED_PAUSE: Duration = Duration::from_secs(1);

impl Poller {
    /// Remembers pauses: a table without a column for them does not record the pause after a failure.
    fn pause(&mut self, claim: &Claim, outcomes: &[RowOutcome]) {
        let now = Instant::now();
        // All rows are held for parked events: without a pause only the oldest rows of these aggregates would be
        // claimed.
        let all_held = outcomes.iter().all(|outcome| *outcome == RowOutcome::Held);
        for key in claim.keys.iter().filter(|_| all_held) {
            if self.pauses.len() < PAUSES_MAX {
                self.pauses.entry(key.clone()).or_insert((now + BLOCKED_PAUSE, 0));
            }
        }
        if !self.spec.pauses_in_memory() {
            self.pauses.retain(|_, (until, _)| *until > now);
            return;
        }
        for (key, outcome) in claim.keys.iter().zip(outcomes) {
            match outcome {
                RowOutcome::Published | RowOutcome::Moved => {
                    self.pauses.remove(key);
                }
                RowOutcome::Failed { .. } if self.pauses.len() < PAUSES_MAX => {
                    let failures = self.pauses.get(key).map_or(1, |(_, failures)| failures + 1);
                    let until = now + self.spec.backoff.after(failures);
                    self.pauses.insert(key.clone(), (until, failures));
                }
                RowOutcome::Failed { .. } | RowOutcome::Held => {}
            }
        }
        let kept = self.spec.backoff.after(u32::MAX);
        self.pauses
            .retain(|_, (until, failures)| *failures > 0 && *until + kept > now || *until > now);
    }
}

/// The type of a column whose value is a point in time, regardless of the session's time zone.
const MOMENT: &str = "timestamp with time zone";

/// The query for how long the oldest ready row of a polled table has waited, from which the lag of polling is computed.
/// The query only reads, and any session can run it, so it works when no claim is possible.
#[derive(Clone, Debug)]
pub struct OldestReady {
    sql: String,
}

impl OldestReady {
    /// The query for a table of this shape.
    pub(super) fn of(spec: &PollSpec, shape: &TableShape) -> Self {
        let moment =
            |name: &str| shape.column(name).is_some_and(|column| column.type_name == MOMENT);
        let (table, ready) = (&spec.table, ready(spec, shape, "o"));
        let Some(time) = spec.time.as_deref().filter(|time| moment(time)) else {
            let sql = format!("SELECT NULL::int8 FROM {table} AS o WHERE {ready} LIMIT 1");
            return Self { sql };
        };
        // A row that was delayed, or has failed before, is ready since then.
        let later = spec.row_state.ready_since();
        let columns = [Some(time), later.filter(|name| moment(name))];
        let columns: Vec<String> =
            columns.iter().flatten().map(|name| format!("o.{}", ident(name))).collect();
        let since = format!("greatest({})", columns.join(", "));
        let age = |since: &str| {
            format!("(extract(epoch FROM clock_timestamp() - {since}) * 1000000)::int8")
        };
        // If the id is a number, the first row by its index is the oldest; otherwise every ready row has to be read.
        let sql = if shape.column(&spec.id).is_some_and(|column| column.number) {
            let order = order::id(spec, shape, "o");
            format!(
                "SELECT {} FROM {table} AS o WHERE {ready} ORDER BY {order} LIMIT 1",
                age(&since)
            )
        } else {
            let oldest = format!("min({since})");
            format!("SELECT {} FROM {table} AS o WHERE {ready} HAVING count(*) > 0", age(&oldest))
        };
        Self { sql }
    }

    /// Whether a row is ready, and for how long, if the table records that.
    ///
    /// # Errors
    /// An error of the server or of the connection.
    pub async fn ask(&self, client: &Client) -> Result<Option<Option<Duration>>, SourceError> {
        let doing = "read the oldest row of the outbox that is ready";
        let row = client.query_opt(&self.sql, &[]).await;
        let Some(row) = row.map_err(|error| SourceError::control(doing, error))? else {
            return Ok(None);
        };
        let micros: Option<i64> = row
            .try_get(0)
            .map_err(|error| SourceError::new(SourceErrorKind::Protocol, doing).caused_by(error))?;
        Ok(Some(micros.map(|micros| Duration::from_micros(u64::try_from(micros).unwrap_or(0)))))
    }
}
