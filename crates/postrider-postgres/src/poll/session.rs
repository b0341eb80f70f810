//! The session that polls: one lock, one claim at a time.

use super::claim::{Claim, Look, Missed, Place, Settled};
use super::order;
use super::spec::{Marks, PollSpec};
use super::sql::{self, Ask, Keep, Marked, dies, ready};
use super::table::{self, Shape};
use crate::control::Control;
use crate::names::ident;
use crate::pipeline_lock::{Locked, lock};
use crate::statement::{Statement, StatementError};
use bytes::Bytes;
use pg_replication::client::Canceller;
use pg_replication::conninfo::Conninfo;
use pg_replication::error::{ServerReport, SourceError, SourceErrorKind, SqlState};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::Notify;
use tokio_postgres::{Client, SimpleQueryMessage};

/// Most rows of one claim.
pub const CLAIM_ROWS_MAX: usize = 10_000;

/// Where the trigger of `setup --notify` says that rows were inserted; the payload is schema and name of the table.
pub const CHANNEL: &str = "postrider_outbox";
/// Looks of one claim, each without the aggregates, or the expired rows, that filled the one before.
const LOOKS_MAX: usize = 4;

/// Settings beside [`Control`]'s. Without sequential scans the rows come from an index in their order wherever there
/// is one, also just after a backlog grew, when the planner's figures are those of an empty table.
///
/// `statement_timeout`: where there is no index in polling order, a claim sorts the whole table, and one that is
/// ended before that gets no further the next time.
const PINNED: &str = "SET statement_timeout = '10min'; SET enable_seqscan = off; \
     SET default_transaction_read_only = off; LISTEN postrider_outbox";

/// Whether we may poll.
#[derive(Debug)]
pub enum Opened {
    /// We do.
    Polling(Box<Poller>),
    /// Another session polls for this pipeline: ask again in a while.
    StandBy {
        /// Its backend; `None` where it has just gone.
        pid: Option<u32>,
    },
}

/// The session that polls. Dropping it ends the connection: an open claim is free again, unmarked.
pub struct Poller {
    control: Control,
    heard: Arc<Notify>,
    spec: PollSpec,
    shape: Shape,
    relation: Bytes,
    /// A transaction of ours may be open.
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
    /// Opens a session, reads what the table looks like, and takes the pipeline's lock.
    ///
    /// # Errors
    /// What the server says; 42P01 and 42703 where table or columns are missing.
    pub async fn open(
        conninfo: &Conninfo,
        application_name: &str,
        spec: &PollSpec,
    ) -> Result<Opened, SourceError> {
        let heard = Arc::new(Notify::new());
        let table = format!("{}.{}", spec.table.schema, spec.table.name);
        let listen = Arc::clone(&heard);
        let about = move |_channel: &str, payload: &str| {
            if payload.is_empty() || payload == table {
                listen.notify_one();
            }
        };
        let control = Control::hearing(conninfo, application_name, about).await?;
        let failed = |e| SourceError::control("set up the polling session", e).of(Statement::Claim);
        let client = control.client();
        client.batch_execute(PINNED).await.map_err(failed)?;
        let shape = table::read(client, spec).await?;
        // Last: what fails before it leaves no lock behind, which a session keeps until the server has ended it, and
        // our next try would take for another's.
        if let Locked::By { pid } = lock(client, &spec.pipeline).await? {
            return Ok(Opened::StandBy { pid });
        }
        if matches!(spec.marks, Marks::Commerce { .. }) && shape.dlq.is_none() {
            tracing::warn!(table = %spec.table, "no dead-letter table: failed events are retried without a limit");
        }
        let relation = shape.relation(&spec.table);
        let spec = spec.clone();
        let pauses = BTreeMap::new();
        let poller = Self { control, heard, spec, shape, relation, open: false, pauses };
        Ok(Opened::Polling(Box::new(poller)))
    }

    /// The table as a pgoutput Relation message, for `Mapper::relation`.
    pub fn relation(&self) -> &Bytes {
        &self.relation
    }

    /// The question for the oldest row that is ready.
    pub fn oldest_ready(&self) -> OldestReady {
        OldestReady::of(&self.spec, &self.shape)
    }

    /// The table's OID, for `Mapper::clear_relations`.
    pub fn table_oid(&self) -> u32 {
        self.shape.oid
    }

    /// The session's client: between [`Self::claim`] and [`Self::settle`] its statements are of the claim's
    /// transaction.
    pub fn client(&self) -> &Client {
        self.control.client()
    }

    /// Locks the next rows, `limit` at most (and [`CLAIM_ROWS_MAX`], [`super::CLAIM_BYTES_MAX`]). A claim that was
    /// neither settled nor abandoned is abandoned first. Without rows the transaction is over already.
    ///
    /// `visible_in`: only rows that this `pg_snapshot` sees, and those that polling has marked as failed. A row that
    /// somebody else updated after the snapshot is not among them, although it may have been inserted before: the
    /// table does not say any more.
    ///
    /// # Errors
    /// What the server says. Nothing is marked then.
    pub async fn claim(
        &mut self,
        limit: usize,
        visible_in: Option<&str>,
    ) -> Result<Claim, SourceError> {
        self.claim_what(limit, visible_in, false).await
    }

    /// As [`Self::claim`], and also rows that are delayed or have failed, for whoever keeps them elsewhere: only what
    /// is locked is held back.
    ///
    /// # Errors
    /// What the server says. Nothing is marked then.
    pub async fn claim_all(&mut self, limit: usize) -> Result<Claim, SourceError> {
        self.claim_what(limit, None, true).await
    }

    async fn claim_what(
        &mut self,
        limit: usize,
        visible_in: Option<&str>,
        unready: bool,
    ) -> Result<Claim, SourceError> {
        self.abandon().await?;
        let limit = limit.clamp(1, CLAIM_ROWS_MAX);
        let now = Instant::now();
        let mut blocked: Vec<String> = Vec::new();
        let mut look = Look::default();
        let (mut expired, mut withheld, mut missed) = (0, 0, Missed::default());
        for _ in 0..LOOKS_MAX {
            look = self.look(limit, (visible_in, unready), now, &blocked).await?;
            expired += self.expire(&look).await?;
            withheld += look.withheld;
            missed.extend(&look.missed);
            let in_vain = !look.blocked.is_empty() || !look.expired.is_empty();
            if !look.rows.is_empty() || !look.cut(limit) || !in_vain {
                break;
            }
            blocked.extend(look.blocked.iter().cloned());
            blocked.truncate(PAUSES_MAX);
        }
        for key in blocked {
            if self.pauses.len() < PAUSES_MAX {
                self.pauses.entry(key).or_insert((now + BLOCKED_PAUSE, 0));
            }
        }
        let more = look.cut(limit);
        if look.rows.is_empty() {
            self.end("COMMIT").await?;
        }
        let Look { rows, places, keys, large, at, claimed_at, .. } = look;
        Ok(Claim { rows, at, claimed_at, expired, withheld, missed, more, places, keys, large })
    }

    async fn look(
        &mut self,
        limit: usize,
        (visible_in, unready): (Option<&str>, bool),
        now: Instant,
        blocked: &[String],
    ) -> Result<Look, SourceError> {
        let rests = |until: &Instant| *until > now && !unready;
        let resting = self.pauses.iter().filter(|(_, (until, _))| rests(until)).map(|(key, _)| key);
        let without = resting.chain(blocked).map(String::as_str).collect();
        let ask = Ask { limit, visible_in, without, unready };
        let text = sql::claim(&self.spec, &self.shape, &ask);
        // Looking again is in the same transaction.
        let text = if self.open { text.trim_start_matches(BEGIN) } else { &text };
        self.open = true;
        let doing = || format!("claim rows of table {}", self.spec.table);
        let failed = |error| SourceError::control(doing(), error).of(Statement::Claim);
        let answer = self.control.client().simple_query(text).await.map_err(failed)?;
        let look = Look::read(&answer, &self.shape)?;
        if look.table.is_some_and(|oid| oid != self.shape.oid) {
            return Err(self.replaced());
        }
        Ok(look)
    }

    /// The table was renamed or dropped since the session began, and another one has its name. Its rows are not
    /// published before the next start has compared the two. The SQLSTATE is the server's where no table has the name.
    fn replaced(&self) -> SourceError {
        let table = &self.spec.table;
        let report = ServerReport {
            severity: "ERROR".to_owned(),
            sqlstate: SqlState::UNDEFINED_TABLE,
            message: format!("table {table} was renamed or dropped, and another one has its name"),
            detail: None,
            hint: None,
            associated_lsn: None,
        };
        SourceError::server(format!("claim rows of table {table}"), report).of(Statement::Claim)
    }

    async fn expire(&self, look: &Look) -> Result<u64, SourceError> {
        if look.expired.is_empty() {
            return Ok(0);
        }
        let marked = sql::expire(&self.spec, &look.expired);
        self.mark(&marked).await?;
        Ok(marked.rows)
    }

    /// Marks each row of the claim as its outcome says, in order, and commits.
    ///
    /// # Errors
    /// What the server says: then nothing may have been marked, and what was published will be claimed again. SQLSTATE
    /// 09000 where rows took no mark (a trigger of the table undoes them): going on would publish them for ever.
    ///
    /// # Panics
    /// Where the outcomes are not as many as the rows, or a failure is to be kept by a table that keeps none.
    pub async fn settle(&mut self, claim: Claim, outcomes: &[Settled]) -> Result<(), SourceError> {
        if !claim.rows.is_empty() {
            self.mark_outcomes(&claim, outcomes).await?;
        }
        Ok(())
    }

    async fn mark_outcomes(
        &mut self,
        claim: &Claim,
        outcomes: &[Settled],
    ) -> Result<(), SourceError> {
        assert_eq!(claim.rows.len(), outcomes.len(), "one outcome a row");
        let fails = outcomes.iter().any(|outcome| matches!(outcome, Settled::Failed { .. }));
        assert!(!fails || self.spec.keeps_failures(), "the table keeps no failures: park them");
        let mut marked = sql::settle(&self.spec, &self.shape, &claim.places, outcomes);
        marked.sql.push_str("COMMIT");
        self.mark(&marked).await?;
        self.open = false;
        self.pause(claim, outcomes);
        Ok(())
    }

    /// Marks rows of the claim as their outcomes say, in order, and commits; the rows of `left` are locked again at
    /// once and stay the claim's. `false`: another session has locked, changed or deleted one of those in that
    /// moment. What was marked stays so, and the claim is to be abandoned.
    ///
    /// # Errors
    /// As [`Self::settle`].
    ///
    /// # Panics
    /// As [`Self::settle`].
    pub async fn settle_part(
        &mut self,
        claim: &Claim,
        outcomes: &[Settled],
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

    /// The failures of a row of a claim and one more, where it is dead with that, as its layout counts; `None` where
    /// it is not, or its table keeps no failures ([`PollSpec::keeps_failures`]).
    pub fn dies(&self, row: &[u8]) -> Option<u32> {
        dies(&self.spec, &self.shape, row)
    }

    /// Copies the payload of a row that is too large to be read into its row of `postrider.parked`, in the claim's
    /// transaction.
    ///
    /// # Errors
    /// What the server says.
    pub async fn keep_value(&self, keep: &Keep<'_>) -> Result<(), SourceError> {
        keep.run(self.client(), &self.spec, &self.shape).await
    }

    /// Gives the claim up: its rows are free, and nothing is marked. Does nothing where there is none.
    ///
    /// # Errors
    /// What the server says.
    pub async fn abandon(&mut self) -> Result<(), SourceError> {
        if self.open { self.end("ROLLBACK").await } else { Ok(()) }
    }

    async fn end(&mut self, how: &str) -> Result<(), SourceError> {
        let ended = self.control.client().batch_execute(how).await;
        ended.map_err(|error| SourceError::control("end a claim", error).of(Statement::Claim))?;
        self.open = false;
        Ok(())
    }

    /// Runs marks, and sees that every row took its own.
    async fn mark(&self, marked: &Marked) -> Result<(), SourceError> {
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
            associated_lsn: None,
        };
        Err(SourceError::server(doing(), report).of(Statement::Settle))
    }

    /// Waits until rows were inserted, where the table has the trigger of `setup --notify`; else for ever. What came
    /// while nobody waited counts. Cancel-safe. A session hears nothing while its claim is open.
    pub async fn notified(&self) {
        self.heard.notified().await;
    }

    /// The same, apart from the poller: to wait for both this and [`Self::closed`].
    pub fn wake(&self) -> Arc<Notify> {
        Arc::clone(&self.heard)
    }

    /// What cancels the statement of a claim.
    pub fn canceller(&self) -> Option<Canceller> {
        self.control.canceller()
    }

    /// Waits until the session ends and says why. Cancel-safe, and may be called again.
    pub async fn closed(&mut self) -> SourceError {
        self.control.closed().await
    }
}

/// How [`sql::claim`] begins.
const BEGIN: &str = "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE;\n";

// Aggregates that are left out for a while: their rows would fill each claim, and bring nothing.
//
// Kept in memory, and gone with the session. Which rows are claimed without them is for the statement in `sql`.

/// Most aggregates that are left out for a while; further ones are looked at again by each claim.
const PAUSES_MAX: usize = 1_000;
/// How long an aggregate is left out when its held-back rows filled a claim.
const BLOCKED_PAUSE: Duration = Duration::from_secs(1);

impl Poller {
    /// A table that has no column for it: the pause after a failure is ours to remember.
    fn pause(&mut self, claim: &Claim, outcomes: &[Settled]) {
        let now = Instant::now();
        // All are held, for events that are parked: else the oldest rows of some aggregates are all that is claimed.
        let all_held = outcomes.iter().all(|outcome| *outcome == Settled::Held);
        for key in claim.keys.iter().filter(|_| all_held) {
            if self.pauses.len() < PAUSES_MAX {
                self.pauses.entry(key.clone()).or_insert((now + BLOCKED_PAUSE, 0));
            }
        }
        if !matches!(self.spec.marks, Marks::Gcx { .. }) {
            self.pauses.retain(|_, (until, _)| *until > now);
            return;
        }
        for (key, outcome) in claim.keys.iter().zip(outcomes) {
            match outcome {
                Settled::Published | Settled::Moved => {
                    self.pauses.remove(key);
                }
                Settled::Failed { .. } if self.pauses.len() < PAUSES_MAX => {
                    let failures = self.pauses.get(key).map_or(1, |(_, failures)| failures + 1);
                    let until = now + self.spec.backoff.after(failures);
                    self.pauses.insert(key.clone(), (until, failures));
                }
                Settled::Failed { .. } | Settled::Held => {}
            }
        }
        let kept = self.spec.backoff.after(u32::MAX);
        self.pauses
            .retain(|_, (until, failures)| *failures > 0 && *until + kept > now || *until > now);
    }
}

// How long the oldest ready row of a polled table has waited: what the lag of polling is made from.
//
// Reads only, on any session: the answer does not depend on claims, and is there when no claim can be made.

/// The type of a column whose value is a moment, without a look at the session's time zone.
const MOMENT: &str = "timestamp with time zone";

/// The question for the oldest ready row of one table.
#[derive(Clone, Debug)]
pub struct OldestReady {
    sql: String,
}

impl OldestReady {
    /// The question, for a table of this description.
    pub(super) fn of(spec: &PollSpec, shape: &Shape) -> Self {
        let moment =
            |name: &str| shape.column(name).is_some_and(|column| column.type_name == MOMENT);
        let (table, ready) = (&spec.table, ready(spec, shape, "o"));
        let Some(time) = spec.time.as_deref().filter(|time| moment(time)) else {
            let sql = format!("SELECT NULL::int8 FROM {table} AS o WHERE {ready} LIMIT 1");
            return Self { sql };
        };
        // A row that was delayed, or has failed before, is ready since then.
        let later = match &spec.marks {
            Marks::Commerce { available_at, .. } => Some(available_at),
            Marks::Sqlgarden { last_attempt_at, .. } => Some(last_attempt_at),
            Marks::Delete | Marks::PublishedAt { .. } | Marks::Gcx { .. } => None,
        };
        let columns = [Some(time), later.map(String::as_str).filter(|name| moment(name))];
        let columns: Vec<String> =
            columns.iter().flatten().map(|name| format!("o.{}", ident(name))).collect();
        let since = format!("greatest({})", columns.join(", "));
        let age = |since: &str| {
            format!("(extract(epoch FROM clock_timestamp() - {since}) * 1000000)::int8")
        };
        // With a number for an id the first row by its index is the oldest; else each ready row has to be looked at.
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

    /// Whether a row is ready, and for how long where its table tells.
    ///
    /// # Errors
    /// What the server says.
    pub async fn ask(&self, client: &Client) -> Result<Option<Option<Duration>>, SourceError> {
        let doing = "look for the oldest row of the outbox that is ready";
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
