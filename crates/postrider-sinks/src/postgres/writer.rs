//! The writer thread: one session, which becomes the only writer of the pipeline's logs, and appends one transaction
//! after another.
//!
//! A session that is lost is never replaced without a recovery: what its last statement did is not known, and the
//! server may be another one by now, which lacks the last appends.

use super::batch::{Batch, LogBatch, LogFacts};
use super::problem::{LogProblem, Step, Verdict};
use super::session::{Append, CHILDREN_AHEAD, LogEnd, Session};
use super::spec::PostgresSpec;
use crate::destinations::DESTINATIONS_MAX;
use crate::life::Life;
use crate::transaction_link::{TransactionCall, TransactionLink, WriterJob};
use pg_replication::{SourceError, SourceErrorKind};
use postrider_core::backoff::Backoff;
use postrider_core::record::has_empty_part;
use postrider_core::sink::{Post, SinkCall, SinkProgress};
use postrider_core::store::ParseCursorError;
use std::collections::{BTreeSet, HashMap};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

/// The shortest and the longest pause between two attempts.
const PAUSE_MIN: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(5);

/// How long an append may take before it is reported. It is reported again each time this has passed.
const APPEND_REPORTED: Duration = Duration::from_secs(10);

/// The only encoding in which every text that a record can have is storable.
const ENCODING: &str = "UTF8";

/// The thread's state.
pub(super) struct Writer {
    shared: Arc<TransactionLink<Batch, LogFacts>>,
    spec: PostgresSpec,
    /// What it does belongs to this generation of the sink.
    generation: u64,
    /// `None` before a recovery, and after the session was lost.
    session: Option<Session>,
    /// A session of an earlier generation, which may still execute a statement.
    former: Option<Session>,
    /// The number of this writer among all that wrote under its name.
    epoch: i64,
    /// The number of appends under its name.
    appends: i64,
    /// Where logs end.
    logs: HashMap<String, LogEnd>,
    /// Pauses between recoveries without a commit between them.
    pauses: Backoff,
    /// A problem of the server is reported.
    down: bool,
    /// Logs of which a problem is reported.
    logs_down: BTreeSet<String>,
}

impl Writer {
    pub(super) fn new(shared: Arc<TransactionLink<Batch, LogFacts>>, spec: PostgresSpec) -> Self {
        Self {
            shared,
            spec,
            generation: 0,
            session: None,
            former: None,
            epoch: 0,
            appends: 0,
            logs: HashMap::new(),
            pauses: Backoff::new(PAUSE_MIN, PAUSE_MAX),
            down: false,
            logs_down: BTreeSet::new(),
        }
    }

    /// Works until the sink is closed.
    pub(super) async fn run(mut self) {
        loop {
            let Life { generation, closed } = self.shared.life();
            if closed {
                return;
            }
            if generation != self.generation {
                self.generation = generation;
                self.former = self.session.take().or(self.former.take());
                self.logs.clear();
            }
            match self.shared.take(generation) {
                Some(job) => {
                    let shared = Arc::clone(&self.shared);
                    tokio::select! {
                        biased;
                        () = shared.ended(generation) => {}
                        () = self.perform(job) => {}
                    }
                }
                None => self.idle().await,
            }
        }
    }

    async fn perform(&mut self, job: WriterJob<Batch>) {
        match job {
            WriterJob::Call(TransactionCall::Recover(call)) => self.recover(call).await,
            WriterJob::Call(TransactionCall::Commit { call, progress, batch }) => {
                self.commit(call, &progress, batch).await;
            }
            WriterJob::LookUp(log) => self.look_up(&log).await,
        }
    }

    /// Waits for work, or for the end of the session.
    async fn idle(&mut self) {
        let Self { session, shared, .. } = self;
        let closed = async {
            match session {
                Some(session) => session.closed().await,
                None => std::future::pending().await,
            }
        };
        let error = tokio::select! {
            biased;
            () = shared.worked() => return,
            error = closed => error,
        };
        self.lost(&LogProblem::of(Step::Append, &error, &self.spec));
    }

    /// The pipeline has to recover, or to halt.
    fn lost(&mut self, problem: &LogProblem) {
        self.former = self.session.take();
        let reason = problem.reason.clone();
        let post = match problem.verdict {
            Verdict::Halt => Post::Unfit { reason, hint: problem.hint_or_log() },
            Verdict::Recover | Verdict::Wait | Verdict::Destination => Post::Broken { reason },
        };
        self.shared.lost(self.generation, post);
    }

    /// Reports a problem of the server, which is repeated while it lasts.
    fn report(&mut self, problem: LogProblem) {
        self.down = true;
        let LogProblem { reason, hint, .. } = problem;
        let post = Post::Down { reason, hint, topic: None, missing: false };
        self.shared.post(self.generation, post);
    }

    /// The server works again.
    fn report_over(&mut self) {
        if std::mem::take(&mut self.down) {
            self.shared.post(self.generation, Post::Up { topic: None });
        }
    }

    async fn pause(&mut self) {
        let pause = self.pauses.next(fastrand::f64());
        tokio::time::sleep(pause).await;
    }

    /// Becomes the writer, and reads what was committed. Repeated until it succeeds, or can't.
    async fn recover(&mut self, call: SinkCall) {
        // Without a commit since the last one, something fails each time.
        if self.pauses.attempts() > 0 {
            self.pause().await;
        } else {
            self.pauses.next(0.0);
        }
        loop {
            let problem = match self.take_over().await {
                Ok(progress) => {
                    self.report_over();
                    return self
                        .shared
                        .recovered(self.generation, Post::Recovered { call, progress });
                }
                Err(problem) => problem,
            };
            self.former = self.session.take().or(self.former.take());
            match problem.verdict {
                Verdict::Halt => return self.lost(&problem),
                Verdict::Recover | Verdict::Wait | Verdict::Destination => self.report(problem),
            }
            self.pause().await;
        }
    }

    async fn take_over(&mut self) -> Result<Option<SinkProgress>, LogProblem> {
        if let Some(former) = self.former.take() {
            former.end().await;
        }
        let spec = &self.spec;
        let failed = |step| move |error: SourceError| LogProblem::of(step, &error, spec);
        let name = format!("postrider {} log", spec.writer);
        let connected = Session::connect(&spec.conninfo, &name).await;
        let session = self.session.insert(connected.map_err(failed(Step::Connect))?);
        let encoding = session.encoding().await.map_err(failed(Step::Connect))?;
        if encoding != ENCODING {
            let (database, hint) = (
                spec.conninfo.dbname(),
                "let sink.postgres.url name a database with encoding UTF8",
            );
            let reason = format!(
                "database {database:?} has encoding {encoding}, and event logs need {ENCODING}"
            );
            return Err(LogProblem::new(Verdict::Halt, reason, hint));
        }
        let taken = session.take_over(&spec.writer).await.map_err(failed(Step::TakeOver))?;
        let progress = taken.progress.as_deref().map(str::parse::<SinkProgress>).transpose();
        let progress = progress.map_err(|error| unreadable_progress(error, spec))?;
        self.epoch = taken.epoch;
        self.appends = taken.appends;
        self.logs.clear();
        Ok(progress)
    }

    /// Finds out where a log ends.
    async fn look_up(&mut self, log: &str) {
        let problem = match self.find(log).await {
            Ok(facts) => {
                let was_down = self.logs_down.remove(log);
                return self.shared.opened(self.generation, log, facts, was_down);
            }
            Err(problem) => problem,
        };
        let is_connected = self.is_connected().await;
        match problem.verdict {
            Verdict::Destination => self.unavailable(log, true, problem),
            Verdict::Wait if is_connected => self.unavailable(log, false, problem),
            Verdict::Recover | Verdict::Wait | Verdict::Halt => self.lost(&problem),
        }
    }

    fn unavailable(&mut self, log: &str, missing: bool, problem: LogProblem) {
        if self.logs_down.len() < DESTINATIONS_MAX {
            self.logs_down.insert(log.to_owned());
        }
        let LogProblem { reason, hint, .. } = problem;
        self.shared.unavailable(self.generation, (log, missing), (reason, hint));
    }

    /// Whether the session still exists.
    async fn is_connected(&mut self) -> bool {
        let Some(session) = &mut self.session else { return false };
        tokio::select! {
            biased;
            _ = session.closed() => false,
            () = std::future::ready(()) => true,
        }
    }

    async fn find(&mut self, log: &str) -> Result<LogFacts, LogProblem> {
        let spec = &self.spec;
        let failed = |error: SourceError| LogProblem::of(Step::Log, &error, spec);
        if self.logs.len() >= DESTINATIONS_MAX && !self.logs.contains_key(log) {
            let reason = format!(
                "the pipeline writes {DESTINATIONS_MAX} event logs already, and log {log:?} is another one"
            );
            let hint = "write fewer logs: correct route.topic, or divide the events among several pipelines";
            return Err(LogProblem::new(Verdict::Destination, reason, hint));
        }
        let session = self.session.as_mut().ok_or_else(no_session)?;
        let mut end = session.open_log(log, &spec.writer).await.map_err(failed)?;
        if end.is_none()
            && let Some(create) = spec.create.as_ref().filter(|_| !has_empty_part(log))
        {
            match session.create_log(log, create).await {
                // Another session has created it.
                Err(error) if error.sqlstate().is_some_and(|state| state.as_str() == "PR111") => {}
                created => created.map_err(failed)?,
            }
            end = session.open_log(log, &spec.writer).await.map_err(failed)?;
        }
        let Some(end) = end else { return Err(missing(log, spec)) };
        let facts = end.facts;
        self.logs.insert(log.to_owned(), end);
        Ok(facts)
    }

    /// Appends the events of a transaction, and stores the progress. A step that did nothing for a reason that ends
    /// is repeated.
    async fn commit(&mut self, call: SinkCall, progress: &str, mut batch: Batch) {
        loop {
            let problem = match self.append(progress, &batch).await {
                Ok(()) => break,
                Err(problem) => problem,
            };
            let is_connected = self.is_connected().await;
            match problem.verdict {
                Verdict::Wait if is_connected => self.report(problem),
                Verdict::Recover | Verdict::Wait | Verdict::Destination | Verdict::Halt => {
                    return self.lost(&problem);
                }
            }
            self.pause().await;
        }
        self.pauses.reset();
        self.report_over();
        let grown: Vec<String> = batch.logs().map(|log| log.name.to_string()).collect();
        batch.clear();
        self.shared.committed(self.generation, call, batch);
        for log in grown {
            self.extend_ahead(&log).await;
        }
    }

    async fn append(&mut self, progress: &str, batch: &Batch) -> Result<(), LogProblem> {
        for log in batch.logs() {
            self.make_room(log).await?;
        }
        let mut append = Append {
            writer: &self.spec.writer,
            epoch: self.epoch,
            appends: self.appends,
            progress,
            logs: Vec::new(),
            last_seqs: Vec::new(),
            sizes: Vec::new(),
            partitions: Vec::new(),
            heads: Vec::new(),
            counts: Vec::new(),
            columns: batch.columns(),
        };
        for log in batch.logs() {
            let end = self.logs.get(&*log.name).ok_or_else(no_session)?;
            let (heads, counts) = advanced(end, log);
            append.logs.push(&log.name);
            append.last_seqs.push(end.last_seq);
            append.sizes.push(i32::try_from(log.events).unwrap_or(i32::MAX));
            append.partitions.push(log.partitions().cast_signed());
            append.heads.extend(heads);
            append.counts.extend(counts);
        }
        let session = self.session.as_mut().ok_or_else(no_session)?;
        let done = {
            let mut answer = pin!(session.append(&append));
            loop {
                tokio::select! {
                    biased;
                    done = &mut answer => break done,
                    () = tokio::time::sleep(APPEND_REPORTED) => {}
                }
                self.down = true;
                self.shared.post(self.generation, slow());
            }
        };
        done.map_err(|error| LogProblem::of(Step::Append, &error, &self.spec))?;
        let (mut heads, mut counts) = (append.heads.into_iter(), append.counts.into_iter());
        for log in batch.logs() {
            let Some(end) = self.logs.get_mut(&*log.name) else { continue };
            let partitions = end.heads.len();
            end.heads = heads.by_ref().take(partitions).collect();
            end.counts = counts.by_ref().take(partitions).collect();
            end.last_seq += count(log);
        }
        self.appends += 1;
        Ok(())
    }

    /// Creates the children that the events need, if the last look ahead could not.
    async fn make_room(&mut self, log: &LogBatch) -> Result<(), LogProblem> {
        let end = self.logs.get_mut(&*log.name).ok_or_else(no_session)?;
        let session = self.session.as_mut().ok_or_else(no_session)?;
        let mut ahead = CHILDREN_AHEAD;
        while end.last_seq + count(log) > end.room_to {
            // A transaction may have more events than a child.
            let extended = session.extend(&log.name, ahead).await;
            end.room_to =
                extended.map_err(|error| LogProblem::of(Step::Log, &error, &self.spec))?;
            ahead = ahead.saturating_mul(2);
        }
        Ok(())
    }

    /// Creates children ahead while there is still room, so that an event seldom waits for one. An error here is one of
    /// [`make_room`](Self::make_room), if it lasts.
    async fn extend_ahead(&mut self, log: &str) {
        let Some(end) = self.logs.get_mut(log) else { return };
        let Some(session) = self.session.as_mut() else { return };
        if end.room_to - end.last_seq > end.extends_at {
            return;
        }
        if let Ok(room_to) = session.extend(log, CHILDREN_AHEAD).await {
            end.room_to = room_to;
        }
        // After an error again when half of the rest is used.
        end.extends_at = (end.room_to - end.last_seq) / 2;
    }
}

/// The heads and the counts of a log after the events.
fn advanced(end: &LogEnd, log: &LogBatch) -> (Vec<i64>, Vec<i64>) {
    let (mut heads, mut counts) = (end.heads.clone(), end.counts.clone());
    for (seq, part) in (end.last_seq + 1..).zip(log.parts()) {
        if let (Some(head), Some(count)) = (heads.get_mut(part), counts.get_mut(part)) {
            *head = seq;
            *count += 1;
        }
    }
    (heads, counts)
}

fn count(log: &LogBatch) -> i64 {
    i64::try_from(log.events).unwrap_or(i64::MAX)
}

fn no_session() -> LogProblem {
    let error = SourceError::new(SourceErrorKind::Closed, "use the session of the event logs");
    LogProblem { verdict: Verdict::Recover, reason: error.to_string(), hint: None }
}

fn unreadable_progress(error: ParseCursorError, spec: &PostgresSpec) -> LogProblem {
    let reason = format!("the progress of writer {:?} can't be read: {error}", spec.writer);
    let hint =
        "table postrider.event_log_progress was changed: restore its last row, then start again";
    LogProblem::new(Verdict::Halt, reason, hint)
}

fn missing(log: &str, spec: &PostgresSpec) -> LogProblem {
    let (place, database) = (spec.conninfo.hosts(), spec.conninfo.dbname());
    let reason = format!("event log {log:?} does not exist in {place}/{database}");
    let name = log.replace('\'', "''");
    let hint = format!(
        "SELECT postrider.create_log('{name}'), as role {}; or set sink.postgres.create",
        spec.conninfo.user()
    );
    LogProblem::new(Verdict::Destination, reason, hint)
}

/// The server has not answered an append for a while.
fn slow() -> Post {
    Post::Down {
        reason: format!("no answer to a commit of the event logs for {} s", APPEND_REPORTED.as_secs()),
        hint: Some(
            "see what its session waits for: SELECT wait_event_type, wait_event FROM pg_stat_activity WHERE query LIKE \
             '%log_append%'; SyncRep: a synchronous standby does not answer"
                .to_owned(),
        ),
        topic: None,
        missing: false,
    }
}
