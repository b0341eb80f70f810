//! The thread that commits: librdkafka's calls about transactions wait for brokers.
//!
//! A recovery makes the producer the only one of its transactional id, and reads the progress after that. A commit
//! writes the progress as the last record of the transaction. The next transaction is begun before the answer, so that
//! the pipeline's thread never waits.
//!
//! A producer whose commit has failed, or was sent twice, is never used again.

use super::native::{self, Producer, TransactionFailure};
use super::producer::{Context, PROGRESS, Polled, Producers};
use super::progress::{self, ProgressProblem, StoredProgress};
use super::secrets::Secrets;
use super::shared::{OutageOf, Shared};
use super::spec::KafkaSpec;
use super::transaction_spec::KafkaTransaction;
use postrider_core::record::Record;
use postrider_core::sink::{Post, SinkCall, SinkProgress};
use rdkafka::types::RDKafkaErrorCode as Code;
use std::ffi::CString;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How long one call of librdkafka may take, before the thread checks whether it is still wanted.
const STEP: Duration = Duration::from_millis(200);

/// Pause before the cluster's admission is checked again, and before the progress is read again.
const ADMISSION_PAUSE: Duration = Duration::from_millis(20);
const READ_PAUSE: Duration = Duration::from_secs(1);

/// Pause before a producer that brokers have refused for good is tried again.
const REFUSED_PAUSE: Duration = Duration::from_secs(5);

/// How long a call may take before the reason is reported, and how often it is reported again.
const LATE: Duration = Duration::from_secs(5);

/// How long the records of a transaction may be in flight at its commit before the brokers are asked whether the
/// progress can be written at all, and how long their answer may take: nothing else is done meanwhile.
const DOUBT: Duration = Duration::from_secs(1);

/// The same time before a transaction is begun. Without an answer it is begun.
const WRITABLE_MAX: Duration = Duration::from_secs(2);

/// A call of the pipeline that is not answered yet.
pub(super) enum KafkaCall {
    /// Become the only producer, and read the progress.
    Recover { call: SinkCall, producers: Arc<Producers> },
    /// Write the progress, and commit.
    Commit { call: SinkCall, progress: String },
}

#[derive(Default)]
struct CommitState {
    call: Option<KafkaCall>,
    /// Raised by each reset. What the thread does belongs to one generation.
    generation: u64,
    /// A transaction is open: records may be handed over.
    is_open: bool,
    /// A commit is called, and not answered.
    is_committing: bool,
    /// When the last commit was answered.
    committed_at: Option<Instant>,
    is_closed: bool,
}

/// What the sink and the thread share.
#[derive(Default)]
pub(super) struct CommitLink {
    state: Mutex<CommitState>,
    changed: Condvar,
}

impl CommitLink {
    fn state(&self) -> MutexGuard<'_, CommitState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    // The sink's side.

    /// Hands a call over to the thread.
    pub(super) fn call(&self, call: KafkaCall) {
        let mut state = self.state();
        state.is_committing = matches!(call, KafkaCall::Commit { .. });
        state.is_open = false;
        state.call = Some(call);
        drop(state);
        self.changed.notify_one();
    }

    /// Whether records may be handed over.
    pub(super) fn is_open(&self) -> bool {
        self.state().is_open
    }

    /// When the last commit was answered; `None` if the producer has committed nothing.
    pub(super) fn committed_at(&self) -> Option<Instant> {
        self.state().committed_at
    }

    /// Whether a commit is not answered yet.
    pub(super) fn is_committing(&self) -> bool {
        self.state().is_committing
    }

    /// Discards the call that is not answered. Answers to it have no effect from now on.
    pub(super) fn reset(&self) {
        let mut state = self.state();
        let (generation, is_closed) = (state.generation + 1, state.is_closed);
        *state = CommitState { generation, is_closed, ..CommitState::default() };
        drop(state);
        self.changed.notify_one();
    }

    /// Ends the thread.
    pub(super) fn close(&self) {
        self.state().is_closed = true;
        self.changed.notify_one();
    }

    // The thread's side.

    /// Waits for the next call, and returns it with its generation; `None` when the thread is to end. `idle` is called
    /// when the sink was reset, before the thread waits.
    fn next(&self, generation: u64, mut idle: impl FnMut()) -> Option<(u64, KafkaCall)> {
        let mut generation = generation;
        let mut state = self.state();
        loop {
            if state.is_closed {
                return None;
            }
            if let Some(call) = state.call.take() {
                return Some((state.generation, call));
            }
            if state.generation != generation {
                generation = state.generation;
                drop(state);
                idle();
                state = self.state();
                continue;
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Whether the sink is open, and in this generation.
    fn is(&self, generation: u64) -> bool {
        let state = self.state();
        !state.is_closed && state.generation == generation
    }

    /// Waits for `pause`, or until the sink is in another generation, or closed.
    fn pause(&self, generation: u64, pause: Duration) {
        let current = |state: &mut CommitState| !state.is_closed && state.generation == generation;
        let waited = self.changed.wait_timeout_while(self.state(), pause, current);
        drop(waited);
    }

    /// Changes the state and posts, if the sink is still in this generation; returns whether it is.
    fn answer(
        &self,
        generation: u64,
        shared: &Shared,
        post: Post,
        change: impl FnOnce(&mut CommitState),
    ) -> bool {
        let mut state = self.state();
        let is_current = !state.is_closed && state.generation == generation;
        if is_current {
            change(&mut state);
            // Locked: a reset comes before both, or after both.
            shared.mailbox.post(post);
        }
        is_current
    }
}

/// The thread's state.
pub(super) struct CommitThread {
    link: Arc<CommitLink>,
    shared: Arc<Shared>,
    spec: KafkaSpec,
    transaction: KafkaTransaction,
    progress_topic: CString,
    generation: u64,
    /// Those of the last recovery.
    producers: Option<Arc<Producers>>,
    /// When the problem of the present call was reported last.
    reported_at: Option<Instant>,
    /// No transaction was committed since the start, or since one has failed: whether the progress can be written is
    /// asked before the next one is begun. Otherwise one transaction after the other would fail.
    is_in_doubt: bool,
}

/// The producers were replaced, or can't be used any more: nobody waits for an answer.
struct Abandoned;

impl CommitThread {
    pub(super) fn new(
        link: Arc<CommitLink>,
        shared: Arc<Shared>,
        spec: KafkaSpec,
        transaction: KafkaTransaction,
    ) -> Self {
        // A name with a zero byte was refused before.
        let progress_topic = CString::new(transaction.progress_topic.as_str()).unwrap_or_default();
        Self {
            link,
            shared,
            spec,
            transaction,
            progress_topic,
            generation: 0,
            producers: None,
            reported_at: None,
            is_in_doubt: true,
        }
    }

    /// Works until the sink is closed.
    pub(super) fn run(mut self) {
        let link = Arc::clone(&self.link);
        while let Some((generation, call)) = link.next(self.generation, || self.producers = None) {
            self.generation = generation;
            // A call that is abandoned is answered by the next recovery.
            let _abandoned = match call {
                KafkaCall::Recover { call, producers } => {
                    self.producers = Some(Arc::clone(&producers));
                    self.recover(call, &producers)
                }
                KafkaCall::Commit { call, progress } => match self.producers.clone() {
                    Some(producers) => self.commit(call, &progress, &producers),
                    None => Err(Abandoned),
                },
            };
        }
    }

    /// Whether the producers are still wanted and can be used.
    fn check(&self, producers: &Producers) -> Result<(), Abandoned> {
        // A fatal error of the producer is the answer to the next call of it.
        let is_broken = producers.first().client().context().is_broken();
        if self.link.is(self.generation) && !is_broken { Ok(()) } else { Err(Abandoned) }
    }

    /// Reports a problem, unless it was reported a moment ago.
    fn report(&mut self, reason: String, hint: String) {
        if self.reported_at.is_some_and(|at| at.elapsed() < LATE) {
            return;
        }
        self.reported_at = Some(Instant::now());
        self.shared.outages.begins(OutageOf::Transactions);
        let post = Post::Down { reason, hint: Some(hint), topic: None, missing: false };
        self.link.answer(self.generation, &self.shared, post, |_| {});
    }

    /// Reports that the problem is over, if one was reported.
    fn report_over(&mut self) {
        if self.reported_at.is_none() {
            return;
        }
        if self.shared.outages.ends(OutageOf::Transactions)
            && !self.link.answer(self.generation, &self.shared, Post::Up { topic: None }, |_| {})
        {
            // The sink was reset meanwhile, and got no post: the next call reports it.
            self.shared.outages.begins(OutageOf::Transactions);
            return;
        }
        self.reported_at = None;
    }

    fn recover(&mut self, call: SinkCall, producers: &Arc<Producers>) -> Result<(), Abandoned> {
        self.fence(producers)?;
        let progress = self.read(producers)?;
        let producer = producers.first();
        let begun = native::begin_transaction(producer);
        begun.map_err(|failure| give_up(producer, failed(producer, "begin", &failure)))?;
        self.report_over();
        let post = Post::Recovered { call, progress };
        self.link.answer(self.generation, &self.shared, post, |state| state.is_open = true);
        Ok(())
    }

    /// Makes the producer the only one of its transactional id.
    fn fence(&mut self, producers: &Producers) -> Result<(), Abandoned> {
        let producer = producers.first();
        let mut began = Instant::now();
        loop {
            self.check(producers)?;
            // Another cluster has other transactions.
            if !self.shared.admission.is_open() {
                self.link.pause(self.generation, ADMISSION_PAUSE);
                began = Instant::now();
                continue;
            }
            match native::init_transactions(producer, STEP) {
                Ok(()) => return Ok(()),
                Err(failure) if failure.continues => {
                    if began.elapsed() >= LATE {
                        let (reason, hint) = self.problem(&failure);
                        self.report(reason, hint);
                    }
                    // A failure may come at once.
                    self.link.pause(self.generation, ADMISSION_PAUSE);
                }
                Err(failure) if failure.code == Code::Fenced => {
                    return Err(give_up(producer, producer.client().context().fenced()));
                }
                Err(failure) => return Err(self.await_acceptance(producer, &failure)),
            }
        }
    }

    /// Brokers refuse the producer for good. librdkafka's producer can't be used after that, so others are tried until
    /// the reason is over.
    fn await_acceptance(&mut self, producer: &Producer, failure: &TransactionFailure) -> Abandoned {
        let (reason, hint) = self.problem(failure);
        loop {
            self.reported_at = None;
            self.report(reason.clone(), hint.clone());
            self.link.pause(self.generation, REFUSED_PAUSE);
            if !self.link.is(self.generation) {
                return Abandoned;
            }
            if self.is_accepted() {
                return give_up(producer, format!("it was refused before: {reason}"));
            }
        }
    }

    /// Whether brokers accept a producer of these settings for its transactional id.
    fn is_accepted(&self) -> bool {
        let config = Secrets::read(&self.spec, &Secrets::default()).config(&self.spec);
        let Ok(config) = config else { return true };
        let context = Context::new(Arc::clone(&self.shared), Arc::default());
        context.mute();
        let Ok(trial) = Polled::make(&config, context) else { return true };
        let began = Instant::now();
        while self.link.is(self.generation) && began.elapsed() < REFUSED_PAUSE {
            match native::init_transactions(&trial, STEP) {
                Ok(()) => return true,
                Err(failure) if failure.continues => {}
                Err(_) => return false,
            }
        }
        false
    }

    /// Reads the progress, after all former producers are excluded. In doubt, waits until it can be written as well.
    fn read(&mut self, producers: &Producers) -> Result<Option<SinkProgress>, Abandoned> {
        let producer = producers.first();
        loop {
            self.check(producers)?;
            let (link, generation) = (Arc::clone(&self.link), self.generation);
            let is_wanted = || link.is(generation) && !producer.client().context().is_broken();
            let found = match progress::read(&self.spec, &self.transaction, producer, &is_wanted) {
                Ok(StoredProgress::Absent) => {
                    Err(Some(progress::absent(&self.spec, &self.transaction)))
                }
                Ok(found) => {
                    self.unwritable(producer, WRITABLE_MAX).map_or(Ok(found), |why| Err(Some(why)))
                }
                // A topic that we may not describe is reported as one that does not exist: the metadata has the reason.
                Err(Some(why)) => Err(Some(self.unwritable(producer, WRITABLE_MAX).unwrap_or(why))),
                Err(None) => Err(None),
            };
            match found {
                Ok(StoredProgress::At(progress)) => return Ok(Some(progress)),
                Ok(StoredProgress::Begun | StoredProgress::Absent) => return Ok(None),
                Err(None) => {}
                Err(Some(ProgressProblem { reason, hint })) => self.report(reason, hint),
            }
            self.link.pause(self.generation, READ_PAUSE);
        }
    }

    /// In doubt, asks the brokers why the progress can't be written; `None` if it can.
    fn unwritable(&self, producer: &Producer, timeout: Duration) -> Option<ProgressProblem> {
        if !self.is_in_doubt {
            return None;
        }
        progress::unwritable(&self.spec, &self.transaction, producer, timeout)
    }

    /// Every record of the transaction is acknowledged.
    fn commit(
        &mut self,
        call: SinkCall,
        progress: &str,
        producers: &Producers,
    ) -> Result<(), Abandoned> {
        let producer = producers.first();
        self.check(producers)?;
        self.is_in_doubt = true;
        self.write(producer, progress)?;
        let began = Instant::now();
        let mut asks_at = began + DOUBT;
        while !native::flush(producer, STEP) {
            self.check(producers)?;
            // librdkafka reports some failures only to the next call about the transaction.
            if let Some(failure) = producers.transaction_failure() {
                return Err(give_up(producer, failed(producer, "commit", &failure)));
            }
            if Instant::now() >= asks_at {
                if let Some(ProgressProblem { reason, hint }) = self.unwritable(producer, DOUBT) {
                    self.report(reason.clone(), hint);
                    return Err(give_up(producer, reason));
                }
                asks_at = Instant::now() + LATE;
            }
            self.report_late(began);
        }
        self.check(producers)?;
        let (began, ended) = (Instant::now(), producer.ended_count());
        while let Err(failure) = native::commit_transaction(producer, STEP) {
            if !failure.continues {
                return Err(give_up(producer, failed(producer, "commit", &failure)));
            }
            self.check(producers)?;
            self.report_late(began);
        }
        // librdkafka keeps the result of a call that has timed out, and may return it to a later call: then the next
        // transaction can't be begun, or nothing was sent. What is committed is read by the next recovery.
        let sent = producer.ended_count() - ended;
        if sent == 0 {
            return Err(give_up(producer, NOT_SENT.to_owned()));
        }
        native::begin_transaction(producer)
            .map_err(|failure| give_up(producer, failed(producer, "begin", &failure)))?;
        // The connection of a first request may be lost, and the request be executed after the answer to the second
        // one. The first one would then commit a part of the next transaction, without its progress: a new producer
        // excludes that.
        let was_sent_once = sent == 1;
        self.is_in_doubt = false;
        self.report_over();
        self.link.answer(self.generation, &self.shared, Post::Committed { call }, |state| {
            state.is_committing = false;
            state.committed_at = Some(Instant::now());
            state.is_open = was_sent_once;
        });
        if was_sent_once { Ok(()) } else { Err(give_up(producer, SENT_TWICE.to_owned())) }
    }

    /// Writes the progress as the last record of the transaction.
    fn write(&self, producer: &Producer, progress: &str) -> Result<(), Abandoned> {
        let value = progress::value(progress);
        let record = Record {
            topic: &self.transaction.progress_topic,
            partition: Some(0),
            key: Some(self.transaction.id.as_bytes()),
            value: Some(value.as_bytes()),
            timestamp_ms: None,
            headers: &[],
        };
        let to = (self.progress_topic.as_c_str(), Some(0));
        native::produce(producer, to, PROGRESS, &record).map_err(|code| {
            give_up(producer, format!("the record with the progress was not taken: {code}"))
        })
    }

    /// Reports a commit that is not answered for long.
    fn report_late(&mut self, began: Instant) {
        if began.elapsed() >= LATE {
            self.report(
                "the commit of a transaction is not answered".to_owned(),
                COORDINATOR_HINT.to_owned(),
            );
        }
    }

    /// The problem that keeps the producer from its transactional id.
    #[expect(
        clippy::wildcard_enum_match_arm,
        reason = "librdkafka's list is open: the rest is a coordinator in trouble"
    )]
    fn problem(&self, failure: &TransactionFailure) -> (String, String) {
        let (brokers, id) = (&self.spec.brokers, &self.transaction.id);
        match failure.code {
            Code::TransactionalIdAuthorizationFailed | Code::ClusterAuthorizationFailed => (
                format!("the brokers do not allow us the transactional id \"{id}\""),
                format!(
                    "kafka-acls.sh --bootstrap-server {brokers} --add --allow-principal User:NAME --operation Write \
                     --operation Describe --transactional-id '{id}'"
                ),
            ),
            Code::InvalidTransactionTimeout => (
                format!(
                    "the brokers do not allow a transaction to take {} ms",
                    self.transaction.timeout.as_millis()
                ),
                "lower `transaction.timeout`, or raise the brokers' transaction.max.timeout.ms".to_owned(),
            ),
            Code::UnsupportedFeature => (
                format!("the brokers at {brokers} have no transactions: {}", failure.reason),
                "use Apache Kafka 0.11 or later, or set delivery = \"at-least-once\" and fencing = \"none\""
                    .to_owned(),
            ),
            _ => (
                format!("no transaction can be begun at {brokers}: {}", failure.reason),
                COORDINATOR_HINT.to_owned(),
            ),
        }
    }
}

/// The producer can't be used any more: the pipeline resets the sink.
fn give_up(producer: &Producer, reason: String) -> Abandoned {
    producer.client().context().broken(reason);
    Abandoned
}

/// Why a producer is replaced whose commit seems to be answered.
const NOT_SENT: &str = "librdkafka has answered a commit that it has not sent";

/// Why a producer is replaced after a commit.
const SENT_TWICE: &str = "the commit of its last transaction was sent twice";

/// What to look at while the coordinator of the transactions does not answer.
const COORDINATOR_HINT: &str = "see whether topic __transaction_state has its leaders and replicas: \
                                transaction.state.log.replication.factor needs as many brokers";

fn failed(producer: &Producer, step: &str, failure: &TransactionFailure) -> String {
    let TransactionFailure { code, reason, .. } = failure;
    if *code == Code::Fenced {
        return producer.client().context().fenced();
    }
    format!("could not {step} a transaction: {reason}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use postrider_core::sink::Mailbox;
    use std::collections::BTreeMap;

    fn posts(mailbox: &Mailbox) -> Vec<Post> {
        let mut posts = Vec::new();
        mailbox.take(&mut posts);
        posts
    }

    /// Otherwise the status would show an outage of the broker for as long as there is no other one.
    #[test]
    fn end_of_an_outage_that_a_reset_swallows_is_reported_by_the_next_call() {
        let mailbox = Mailbox::default();
        let link = Arc::new(CommitLink::default());
        let transaction = KafkaTransaction {
            id: "orders".to_owned(),
            progress_topic: "progress".to_owned(),
            timeout: Duration::from_secs(15),
        };
        let spec = KafkaSpec {
            brokers: "k1:9092".to_owned(),
            properties: BTreeMap::new(),
            secret_files: BTreeMap::new(),
            producers: 1,
            client_id: "postrider".to_owned(),
            in_flight_events: 1,
            in_flight_bytes: 1,
            size_max: None,
            create_topics: None,
            transaction: None,
        };
        let shared = Arc::new(Shared::new(mailbox.clone()));
        let mut thread = CommitThread::new(Arc::clone(&link), shared, spec, transaction);
        thread.report("no coordinator".to_owned(), "wait".to_owned());
        assert!(matches!(posts(&mailbox).as_slice(), [Post::Down { .. }]));
        link.reset();
        thread.report_over();
        assert_eq!(posts(&mailbox), []);
        // The next call is of the next generation.
        thread.generation = 1;
        thread.report_over();
        assert_eq!(posts(&mailbox), [Post::Up { topic: None }]);
        thread.report_over();
        assert_eq!(posts(&mailbox), []);
    }
}
