//! The writer thread: one connection to the primary, which becomes the only one that commits for the pipeline, and
//! commits one transaction after another.
//!
//! A connection that is lost is never replaced without a recovery: whether its last commit was executed is not known,
//! and the primary may be another one by now, which lacks the last commits.

use super::commit::{self, CommitAnswer, CommitCall, RecoverAnswer};
use super::connection::Connection;
use super::link;
use super::looks::why_unusable;
use super::problem::{RedisProblem, RedisStep, RedisVerdict};
use super::rejected_streams::RejectedStreams;
use super::spec::RedisSpec;
use super::worker::{fenced, lost_acknowledged, unknown};
use crate::destinations::DESTINATIONS_MAX;
use crate::life::Life;
use crate::record_batch::RecordBatch;
use crate::transaction_link::{TransactionCall, TransactionLink, WriterJob};
use postrider_core::backoff::Backoff;
use postrider_core::sink::{Post, SinkCall, SinkProgress};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

/// The shortest and the longest pause between two attempts.
const PAUSE_MIN: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(5);

/// What the sink and its writer share. Of a stream that accepts records nothing else is known.
pub(super) type RedisTransactionLink = TransactionLink<RecordBatch, ()>;

/// The thread's state.
pub(super) struct RedisWriter {
    shared: Arc<RedisTransactionLink>,
    spec: RedisSpec,
    /// What it does belongs to this generation of the sink.
    generation: u64,
    /// `None` before a recovery, and after the connection was lost.
    primary: Option<Primary>,
    /// Streams that exist, or have accepted events.
    seen: BTreeSet<String>,
    /// Streams of which a problem is reported.
    streams_down: BTreeSet<String>,
    rejected: RejectedStreams,
    /// Pauses between recoveries without a commit between them.
    pauses: Backoff,
    /// A problem of the server is reported.
    down: bool,
}

/// The connection, and what this process commits with.
struct Primary {
    connection: Connection,
    place: String,
    token: String,
    /// The name of script `COMMIT`.
    commit: String,
}

/// Why a commit did not happen.
enum CommitFailure {
    /// Nothing was stored; the same commit is called again after a pause.
    Wait(RedisProblem),
    /// The pipeline has to recover.
    Recover(String),
}

impl RedisWriter {
    pub(super) fn new(shared: Arc<RedisTransactionLink>, spec: RedisSpec) -> Self {
        Self {
            shared,
            spec,
            generation: 0,
            primary: None,
            seen: BTreeSet::new(),
            streams_down: BTreeSet::new(),
            rejected: RejectedStreams::default(),
            pauses: Backoff::new(PAUSE_MIN, PAUSE_MAX),
            down: false,
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
                // A reply may be outstanding. What the server still commits comes before the next recovery, or is
                // refused.
                self.primary = None;
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

    async fn perform(&mut self, job: WriterJob<RecordBatch>) {
        match job {
            WriterJob::Call(TransactionCall::Recover(call)) => self.recover(call).await,
            WriterJob::Call(TransactionCall::Commit { call, progress, batch }) => {
                self.commit(call, &progress, batch).await;
            }
            WriterJob::LookUp(topic) => self.look_up(&topic).await,
        }
    }

    /// Waits for work, or for the end of the connection.
    async fn idle(&mut self) {
        let Self { primary, shared, .. } = self;
        let ended = async {
            match primary {
                Some(primary) => primary.connection.ended().await,
                None => std::future::pending().await,
            }
        };
        let problem = tokio::select! {
            biased;
            () = shared.worked() => return,
            problem = ended => problem,
        };
        self.lost(problem.reason);
    }

    /// The pipeline has to recover.
    fn lost(&mut self, reason: String) {
        self.primary = None;
        self.shared.lost(self.generation, Post::Broken { reason });
    }

    /// Reports a problem of the server, which is repeated while it lasts, and pauses.
    async fn report(&mut self, problem: RedisProblem) {
        self.down = true;
        let RedisProblem { reason, hint, .. } = problem;
        let post = Post::Down { reason, hint, topic: None, missing: false };
        self.shared.post(self.generation, post);
        self.pause().await;
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

    /// Becomes the writer, and reads what was committed. Repeated until it succeeds.
    async fn recover(&mut self, call: SinkCall) {
        // Without a commit since the last one, something fails each time.
        if self.pauses.attempts() > 0 {
            self.pause().await;
        } else {
            self.pauses.next(0.0);
        }
        loop {
            match self.take_over().await {
                Ok((primary, progress)) => {
                    self.primary = Some(primary);
                    // What the last commit has stored counts only once the replicas have it.
                    if let Err(problem) = self.replicated().await {
                        self.primary = None;
                        self.report(problem).await;
                        continue;
                    }
                    self.report_over();
                    return self
                        .shared
                        .recovered(self.generation, Post::Recovered { call, progress });
                }
                Err(problem) => self.report(problem).await,
            }
        }
    }

    async fn take_over(&self) -> Result<(Primary, Option<SinkProgress>), RedisProblem> {
        let spec = &self.spec;
        let attempt = usize::try_from(self.pauses.attempts()).unwrap_or_default();
        let mut connection = link::primary_connection(spec, attempt).await?;
        let place = connection.address.to_string();
        let recover = connection.load(commit::RECOVER, spec).await?;
        let commit = connection.load(commit::COMMIT, spec).await?;
        let token = format!("{:016x}{:016x}", fastrand::u64(..), fastrand::u64(..));
        commit::recover(connection.out(), &recover, &spec.state_key, &token);
        let progress = match RecoverAnswer::of(connection.reply().await?) {
            RecoverAnswer::Recovered(progress) if progress.is_empty() => None,
            RecoverAnswer::Recovered(progress) => {
                Some(progress.parse().map_err(|_unreadable| foreign(&place, spec))?)
            }
            RecoverAnswer::Foreign => return Err(foreign(&place, spec)),
            RecoverAnswer::Refused(error) => {
                return Err(RedisProblem::server(RedisStep::TakeOver, &place, &error, spec));
            }
            RecoverAnswer::Unknown => return Err(unknown(&place)),
        };
        Ok((Primary { connection, place, token, commit }, progress))
    }

    /// Adds the records of a transaction and stores its progress. A commit that did nothing, for a reason that ends, is
    /// called again.
    async fn commit(&mut self, call: SinkCall, progress: &str, mut batch: RecordBatch) {
        loop {
            match self.try_commit(progress, &batch).await {
                Ok(()) => break,
                Err(CommitFailure::Wait(problem)) => self.report(problem).await,
                Err(CommitFailure::Recover(reason)) => return self.lost(reason),
            }
        }
        if let Err(problem) = self.replicated().await {
            return self.lost(problem.reason);
        }
        self.pauses.reset();
        self.report_over();
        if !self.rejected.is_empty() {
            batch.iter().for_each(|record| self.rejected.accepted(record.topic));
        }
        batch.clear();
        self.shared.committed(self.generation, call, batch);
    }

    async fn try_commit(
        &mut self,
        progress: &str,
        batch: &RecordBatch,
    ) -> Result<(), CommitFailure> {
        let Self { primary, spec, .. } = self;
        let no_connection = || CommitFailure::Recover("there is no connection to Redis".to_owned());
        let Primary { connection, place, token, commit } =
            primary.as_mut().ok_or_else(no_connection)?;
        let commit = CommitCall {
            sha: commit,
            state_key: &spec.state_key,
            token,
            progress,
            storing: &spec.storing,
        };
        commit.encode(connection.out(), batch);
        let reply = connection.reply().await;
        let reply = reply.map_err(|problem| CommitFailure::Recover(problem.reason))?;
        let place = place.clone();
        let (problem, stream) = match CommitAnswer::of(reply) {
            CommitAnswer::Committed => return Ok(()),
            CommitAnswer::Fenced => return Err(CommitFailure::Recover(fenced(spec))),
            CommitAnswer::Gone => {
                return Err(CommitFailure::Recover(lost_acknowledged(&place, None)));
            }
            CommitAnswer::Unknown => return Err(CommitFailure::Recover(unknown(&place).reason)),
            CommitAnswer::Missing(stream) => {
                let reason = format!("{place}: stream {stream:?} does not exist any more");
                // The look-up after the recovery names the problem.
                return Err(CommitFailure::Recover(reason));
            }
            CommitAnswer::Error { stream, error } if stream.is_empty() => {
                (RedisProblem::server(RedisStep::Store, &place, &error, spec), None)
            }
            CommitAnswer::Error { stream, error } => {
                (RedisProblem::server(RedisStep::Add, &place, &error, spec), Some(stream))
            }
            CommitAnswer::Refused(error) => {
                (RedisProblem::server(RedisStep::Store, &place, &error, spec), None)
            }
        };
        match (problem.verdict, stream) {
            (RedisVerdict::Wait, _) | (RedisVerdict::Rights, None) => {
                Err(CommitFailure::Wait(problem))
            }
            (RedisVerdict::Rights | RedisVerdict::Destination, Some(stream)) => {
                self.rejected.rejected(&stream, &problem.reason, problem.hint.as_ref());
                let reason = format!("stream {stream:?} accepts no events: {}", problem.reason);
                Err(CommitFailure::Recover(reason))
            }
            (RedisVerdict::Reconnect | RedisVerdict::Destination, _) => {
                Err(CommitFailure::Recover(problem.reason))
            }
        }
    }

    /// Waits until so many replicas as are set have what is stored, and reports meanwhile that they do not.
    ///
    /// # Errors
    /// The server can't be asked.
    async fn replicated(&mut self) -> Result<(), RedisProblem> {
        while let Err(problem) = self.await_replicas().await {
            match problem.verdict {
                RedisVerdict::Wait => self.report(problem).await,
                RedisVerdict::Reconnect | RedisVerdict::Rights | RedisVerdict::Destination => {
                    return Err(problem);
                }
            }
        }
        Ok(())
    }

    /// Waits once until so many replicas as are set have what is stored.
    async fn await_replicas(&mut self) -> Result<(), RedisProblem> {
        let Self { primary, spec, .. } = self;
        let (wanted, timeout) = (spec.storing.replicas, spec.storing.replica_timeout);
        if wanted == 0 {
            return Ok(());
        }
        let Some(Primary { connection, place, .. }) = primary else {
            return Err(RedisProblem::lost("there is no connection to Redis", ""));
        };
        let (replicas, millis) = (wanted.to_string(), timeout.as_millis().to_string());
        let words: [&[u8]; 3] = [b"WAIT", replicas.as_bytes(), millis.as_bytes()];
        let reply = connection.ask_slowly(&words, timeout).await?.checked();
        let reply =
            reply.map_err(|error| RedisProblem::server(RedisStep::Store, place, &error, spec))?;
        let found = reply.integer().unwrap_or_default();
        if found >= i64::from(wanted) {
            return Ok(());
        }
        Err(RedisProblem::replicas(place, (found, wanted), timeout))
    }

    /// Finds out whether a stream accepts events.
    async fn look_up(&mut self, topic: &str) {
        match self.find(topic).await {
            Ok(None) => {
                if self.seen.len() >= DESTINATIONS_MAX {
                    self.seen.pop_first();
                }
                self.seen.insert(topic.to_owned());
                let was_down = self.streams_down.remove(topic);
                self.shared.opened(self.generation, topic, (), was_down);
            }
            Ok(Some((reason, hint))) => {
                if self.streams_down.len() < DESTINATIONS_MAX {
                    self.streams_down.insert(topic.to_owned());
                }
                let missing = !self.seen.contains(topic);
                self.shared.unavailable(self.generation, (topic, missing), (reason, hint));
            }
            Err(problem) => self.lost(problem.reason),
        }
    }

    /// Why the stream accepts no events, with a hint; `None` if it does.
    ///
    /// # Errors
    /// The server can't be asked.
    async fn find(
        &mut self,
        topic: &str,
    ) -> Result<Option<(String, Option<String>)>, RedisProblem> {
        let Self { primary, spec, rejected, .. } = self;
        let Some(Primary { connection, place, .. }) = primary else {
            return Err(RedisProblem::lost("there is no connection to Redis", ""));
        };
        let name = topic.as_bytes();
        // No entry can have these IDs. Rights, type and the state of the server are checked before that.
        let commands: [&[&[u8]]; 3] = [
            &[b"XADD", name, b"NOMKSTREAM", b"0-0", b"a", b"b"],
            &[b"XDEL", name, b"0-1"],
            &[b"TYPE", name],
        ];
        let mut kind = String::new();
        for words in commands {
            match connection.command(words).await?.checked() {
                Ok(reply) => kind = reply.text().unwrap_or_default(),
                Err(error) => {
                    let problem = RedisProblem::server(RedisStep::LookUp, place, &error, spec);
                    match problem.verdict {
                        RedisVerdict::Rights => {
                            let reason = format!("stream {topic:?}: {}", problem.reason);
                            return Ok(Some((reason, problem.hint)));
                        }
                        // TYPE names the type; the commit shows what else is wrong.
                        RedisVerdict::Destination | RedisVerdict::Wait => {}
                        RedisVerdict::Reconnect if error.code() == "ERR" => {}
                        RedisVerdict::Reconnect => return Err(problem),
                    }
                }
            }
        }
        let unusable = why_unusable(topic, &kind, spec);
        Ok(unusable.or_else(|| rejected.why_closed(topic)))
    }
}

/// The key has other content than the progress of a pipeline.
fn foreign(place: &str, spec: &RedisSpec) -> RedisProblem {
    let key = &spec.state_key;
    RedisProblem::lost(
        format!("{place}: key {key:?} has other content than progress"),
        "set another sink.redis.state_key if the key is not Postrider's. If it was damaged, delete it: the pipeline \
         continues at its cursor row, and events that were published since then are published twice",
    )
}
