//! The metadata thread: asks brokers for topics, checks whether brokers answer, and closes old producers.
//!
//! Everything that waits for a broker waits in this thread, so that `enqueue` never does. The thread posts `Down`, `Up`
//! and `Retry`.

use super::codes;
use super::health::{self, About, AckStall, BootstrapAgain, Problem, ReportedProblems};
use super::native::{self, Description, Producer, TransactionFailure};
use super::producer::Producers;
use super::secrets::{SaslLogin, Secrets};
use super::shared::{RetiredProducers, Shared, Suspicion};
use super::spec::KafkaSpec;
use super::topics::{self, CONFIG_ANSWER_MAX, Creation, Facts, Made, Rights, TopicIds, Unusable};
use postrider_core::record::{Outcome, Scope};
use postrider_core::sink::Post;
use rdkafka::types::RDKafkaErrorCode as Code;
use std::collections::{BTreeSet, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The interval of the checks without a wake-up; also the pause between two requests for a topic or a broker.
const TICK: Duration = Duration::from_secs(1);
/// The same while old producers are being closed.
const RETIRED_TICK: Duration = Duration::from_millis(20);
/// How long a broker may take to answer a request.
const ANSWER_MAX: Duration = Duration::from_secs(2);
/// How long an old producer's requests are waited for before they are purged. See `KafkaSink::reset`.
const DRAIN_MAX: Duration = Duration::from_secs(1);
/// How long the reports of a broken producer are waited for. After a fatal error some never come (measured).
const LAST_REPORTS_MAX: Duration = Duration::from_millis(100);

/// The interval in which producers are attempted with files that have not changed.
const TRIAL_INTERVAL: Duration = Duration::from_secs(10);

/// Secrets of which no producer could be made.
struct UnfitSecrets {
    secrets: Secrets,
    problem: Problem,
    tried_at: Instant,
}

pub(super) struct MetadataThread {
    shared: Arc<Shared>,
    spec: KafkaSpec,
    producers: Option<Arc<Producers>>,
    /// What the secret files held when the producers were made.
    made_with: Secrets,
    /// The content at the last check. Live producers have its SASL login.
    secrets: Secrets,
    /// Secrets of which no producer can be made, with the problem to report.
    unfit: Option<UnfitSecrets>,
    /// The sink has no producers, because none could be made: those here are former ones.
    unmade: bool,
    /// The first of them has had an answer from a broker.
    connected: bool,
    /// The cluster of the brokers that they have reached is known.
    located: bool,
    suspicion: Option<Suspicion>,
    bootstrap: BootstrapAgain,
    problems: ReportedProblems,
    /// Old producers; with the time since when, if their records are given up.
    retired: Vec<(RetiredProducers, Option<Instant>)>,
    stall: AckStall,
    refreshed_at: Instant,
    opened_at: Instant,
    /// Topics that are to be asked for again.
    stale: VecDeque<String>,
    /// Those of them whose configuration was not read in time: once it is waited for longer.
    unread: BTreeSet<String>,
    rights: Rights,
    creation: Creation,
    ids: TopicIds,
    /// When a topic that was made anew last cost the producers.
    anew_at: Option<Instant>,
}

impl MetadataThread {
    pub(super) fn new(shared: Arc<Shared>, spec: KafkaSpec, creation: Creation) -> Self {
        let now = Instant::now();
        // Known topics are created before their first event.
        for topic in creation.known() {
            shared.request(&topic);
        }
        Self {
            problems: ReportedProblems::new(Arc::clone(&shared)),
            shared,
            bootstrap: BootstrapAgain::new(&spec.brokers),
            spec,
            producers: None,
            made_with: Secrets::default(),
            secrets: Secrets::default(),
            unfit: None,
            unmade: false,
            connected: false,
            located: false,
            suspicion: None,
            retired: Vec::new(),
            stall: AckStall::new(now),
            refreshed_at: now,
            opened_at: now,
            stale: VecDeque::new(),
            unread: BTreeSet::new(),
            rights: Rights::default(),
            creation,
            ids: TopicIds::default(),
            anew_at: None,
        }
    }

    /// Runs until the sink is closed; then drops the producers.
    pub(super) fn run(mut self) {
        while self.take_inbox() {
            self.close_retired();
            self.read_secrets();
            if self.ask() {
                self.watch();
            } else {
                self.stall.no_answer();
            }
            self.refresh();
        }
    }

    /// Takes the inbox; false when the thread is to end.
    fn take_inbox(&mut self) -> bool {
        let timeout = if self.retired.is_empty() { TICK } else { RETIRED_TICK };
        let (stop, broken, unmade, producers, suspicion, retired) =
            self.shared.wait(timeout, |inbox| {
                (
                    inbox.stop,
                    inbox.broken.is_some(),
                    inbox.unmade.take(),
                    inbox.producers.take(),
                    inbox.suspicion.take(),
                    std::mem::take(&mut inbox.retired),
                )
            });
        let now = Instant::now();
        let hour = u32::try_from((now - self.opened_at).as_secs() / 3_600).unwrap_or(u32::MAX);
        self.shared.hour.store(hour, Ordering::Relaxed);
        self.retired.extend(retired.into_iter().map(|retired| (retired, None)));
        if let Some(problem) = unmade {
            self.problems.report(problem);
            self.unmade = true;
        }
        if let Some((producers, secrets)) = producers {
            self.producers = Some(producers);
            (self.unfit, self.unmade) = (None, false);
            self.secrets.clone_from(&secrets);
            self.made_with = secrets;
            (self.connected, self.located) = (false, false);
            self.stall.new_producers(now);
            // What a topic was is known of those before.
            self.stale_are_all();
        }
        if broken {
            // Reports that are ready come first.
            if let Some(producers) = &self.producers {
                producers.flush(LAST_REPORTS_MAX);
                self.explain_failure(producers);
            }
            self.shared.report_broken();
        }
        if let Some(suspicion) = suspicion {
            suspicion.outweigh(&mut self.suspicion);
        }
        !stop
    }

    /// Names the reason of a transaction that has failed: librdkafka discards all records of it, and their reports do
    /// not say why. Where a topic is the reason, all topics are asked for again.
    fn explain_failure(&self, producers: &Producers) {
        let Some(TransactionFailure { code, reason, .. }) = producers.transaction_failure() else {
            return;
        };
        if let Outcome::Rejected { scope: Scope::Destination, .. } = codes::outcome(code) {
            self.shared.forget_topics(code);
        }
        let context = producers.first().client().context();
        let reason = if code == Code::Fenced { context.fenced() } else { reason };
        self.shared.update_inbox(|inbox| {
            if let Some(broken) = &mut inbox.broken {
                *broken = reason;
            }
        });
    }

    /// Reads the secret files, and hands a SASL login that has changed to the live producers, which use it from their
    /// next login on.
    ///
    /// Where a connection fails, producers that were made with other certificates or keys than the files hold now are
    /// given up: librdkafka reads those files only when a producer is made.
    fn read_secrets(&mut self) {
        let secrets = Secrets::read(&self.spec, &self.secrets);
        let before = std::mem::replace(&mut self.secrets, secrets);
        let in_doubt = self.suspicion.is_some() || self.problems.is_about(About::Broker);
        let changed = self.secrets.needs_new_producers(&self.made_with);
        if !self.unmade && !changed {
            self.unfit = None;
        }
        if (self.unmade || in_doubt && changed) && self.are_fit() {
            let reason = "the files of its certificates or keys have changed since it was made";
            if self.unmade {
                self.shared.update_inbox(|inbox| inbox.broken = Some(reason.to_owned()));
            } else if let Some(producers) = &self.producers {
                producers.first().client().context().broken(reason.to_owned());
            }
        }
        let login = self.secrets.login(&self.spec);
        if login == before.login(&self.spec) {
            return;
        }
        let Some(SaslLogin { username, password }) = login else { return };
        let retired = self.retired.iter().map(|(retired, _)| &retired.producers);
        for producers in retired.chain(&self.producers) {
            producers.set_login(&username, &password);
        }
        tracing::info!(
            target: "postrider::kafka",
            "the SASL login was read again from its file: used from the next login on"
        );
    }

    /// Whether a producer can be made of the secrets as they are. Those of which none could be made are tried again
    /// when they change, and now and then: the reason may have been another one.
    fn are_fit(&mut self) -> bool {
        let same = |unfit: &UnfitSecrets| {
            unfit.secrets == self.secrets && unfit.tried_at.elapsed() < TRIAL_INTERVAL
        };
        if self.unfit.as_ref().is_some_and(same) {
            return false;
        }
        let tried = self.secrets.try_out(&self.spec);
        self.unfit = tried.as_ref().err().map(|error| UnfitSecrets {
            secrets: self.secrets.clone(),
            problem: health::of_files(error),
            tried_at: Instant::now(),
        });
        tried.is_ok()
    }

    /// Closes old producers: when all their records have reports, or, if they were given up, after `DRAIN_MAX`.
    fn close_retired(&mut self) {
        if self.retired.is_empty() {
            return;
        }
        for (RetiredProducers { producers }, given_up) in &mut self.retired {
            // A reset may come while they are being closed: it waits for their requests too.
            if producers.muted() {
                given_up.get_or_insert_with(Instant::now);
            }
        }
        let (gone, staying) = std::mem::take(&mut self.retired).into_iter().partition(
            |(RetiredProducers { producers }, given_up): &(RetiredProducers, Option<Instant>)| {
                if given_up.is_some() {
                    producers.purge(false);
                }
                let empty = producers.flush(RETIRED_TICK);
                empty || given_up.is_some_and(|since| since.elapsed() >= DRAIN_MAX)
            },
        );
        self.retired = staying;
        let gone: Vec<_> = gone;
        // To drop some takes 0.4 s (0.2 s measured, the first and then the others): empty ones can take their time
        // while the new ones send.
        let (empty, full): (Vec<_>, Vec<_>) =
            gone.into_iter().partition(|(old, _)| old.producers.in_flight_count() == 0);
        drop(full);
        if self.retired.is_empty() && self.shared.resumes() {
            self.shared.mailbox.post(Post::Retry);
        }
        drop(empty);
    }

    /// Detects that no broker answers, that one answers again, or that brokers answer and acknowledge nothing.
    fn watch(&mut self) {
        let Some(producers) = self.producers.clone() else {
            return;
        };
        if self.unmade {
            let problem = self.broker_problem();
            self.problems.report(problem);
            return;
        }
        let acked = self.shared.tally.acked.load(Ordering::Relaxed);
        // New producers wait for the records of the old ones: if those are not acknowledged, nothing is sent.
        let retired = self.retired.iter().map(|(retired, _)| retired.producers.in_flight_count());
        let flying = retired.sum::<i32>() + producers.in_flight_count();
        if self.stall.look(acked, flying > 0, Instant::now()) {
            self.problems.over(About::Stall);
        }
        let stalled = self.stall.is_due(Instant::now());
        let in_trouble = self.problems.is_about(About::Broker);
        if self.connected && self.located && self.suspicion.is_none() && !in_trouble && !stalled {
            self.bootstrap.over();
            return;
        }
        if !self.answers(producers.first()) {
            self.stall.no_answer();
            self.name_brokers(&producers);
            let problem = self.broker_problem();
            self.problems.report(problem);
            return;
        }
        self.connected = true;
        self.suspicion = None;
        self.problems.over(About::Broker);
        if stalled {
            // One of the other producers may know no broker.
            self.name_brokers(&producers);
            let why = self.why_stalled(&producers);
            let explained =
                why.is_some() || self.shared.known_topics().values().any(|one| one.lacks());
            let hopeless = self.stall.is_hopeless(explained, Instant::now());
            // An acknowledgement may have come while topics were requested.
            if hopeless && self.shared.tally.acked.load(Ordering::Relaxed) == acked {
                let reason = "brokers answer, and acknowledge nothing";
                producers.first().client().context().broken(reason.to_owned());
            }
            self.problems.report(why.unwrap_or_else(|| health::of_stall(health::STALL)));
        }
    }

    /// Whether a broker answers. The first request also makes the producer connect before it has a record to send.
    fn answers(&mut self, producer: &Producer) -> bool {
        let topic = self.shared.any_topic();
        let asks =
            |topic: Option<&str>| producer.client().fetch_metadata(topic, ANSWER_MAX).is_ok();
        if self.located {
            return asks(topic.as_deref());
        }
        let names = || producer.client().fetch_cluster_id(ANSWER_MAX);
        // The name comes with any answer to a question for topics, and is only waited for here. Where no record asks
        // for a topic, and librdkafka has forgotten the brokers, nobody else asks: the second time all topics are asked
        // for. Brokers that name no cluster answer all the same. A broker that came up meanwhile is not taken for
        // one of them: its name came with this answer.
        let again = self.problems.is_about(About::Broker);
        let answers = || (topic.is_some() || again) && asks(topic.as_deref());
        let cluster = names().or_else(|| answers().then(|| names().unwrap_or_default()));
        let Some(cluster) = cluster else { return false };
        self.located = true;
        self.shared.mailbox.post(if self.shared.admission.locate(&cluster) {
            Post::Retry
        } else {
            Post::Located
        });
        true
    }

    /// Gives the brokers' addresses to all producers again; old ones need them too.
    fn name_brokers(&mut self, producers: &Producers) {
        let retired = self.retired.iter().map(|(retired, _)| &*retired.producers);
        self.bootstrap.silence(retired.chain([producers]), Instant::now());
    }

    fn broker_problem(&mut self) -> Problem {
        if let Some(suspicion) = self.shared.take_suspicion() {
            suspicion.outweigh(&mut self.suspicion);
        }
        if let Some(unfit) = &self.unfit {
            return unfit.problem.clone();
        }
        health::of_broker(&self.spec.brokers, self.suspicion.as_ref())
    }
}

// Requests for topics: for those that records wait for, at intervals for those that are known, and for all of them when
// nothing is acknowledged. Results go to [`Shared`](super::shared::Shared); a topic that can't be used is reported.

/// How long the answer about a topic may take that records wait for: its configuration may come later.
const SHORT: (Duration, Duration) = (ANSWER_MAX, CONFIG_ANSWER_MAX);
/// Topics requested in one cycle while nothing is acknowledged.
const STALL_TOPICS: usize = 8;
/// Topics requested in one cycle while records wait for them: each may take `ANSWER_MAX`.
const ASKED_TOPICS: usize = 8;
/// How often what is known of topics is asked for again.
const REFRESH: Duration = Duration::from_mins(1);
/// Between two sets of producers that topics cost which were recreated: whatever brokers say of ids.
const ANEW_APART: Duration = Duration::from_secs(10);

impl MetadataThread {
    /// Requests the topics that records wait for, a few in each cycle. False when no broker answered.
    fn ask(&mut self) -> bool {
        if self.shared.drop_old_requests() {
            // Whoever waits all the same asks again.
            self.shared.mailbox.post(Post::Retry);
        }
        let topics = self.shared.to_ask(ASKED_TOPICS, TICK);
        let Some(producers) = self.producers.clone() else { return true };
        for topic in topics {
            let asked_at = Instant::now();
            let mut found = self.look_up(producers.first(), &topic, SHORT, false);
            let mut not_made = None;
            if let Err(why) = found
                && why.does_not_exist()
            {
                match self.creation.make(producers.first(), &topic, ANSWER_MAX) {
                    Made::Yes => {
                        found = self.look_up(producers.first(), &topic, SHORT, false);
                        // Not every broker has heard of it yet: it is asked for again in the next turn.
                        if found.as_ref().is_err_and(|why| why.does_not_exist()) {
                            continue;
                        }
                    }
                    Made::No => {}
                    Made::Not(why) => {
                        not_made = Some(topics::problem(&topic, &why, &self.spec.brokers));
                    }
                    Made::Later => not_made = Some(topics::too_many(&topic)),
                }
            }
            match found {
                Ok(facts) => {
                    if !producers.learn(&topic, ANSWER_MAX) {
                        self.name_brokers(&producers);
                    }
                    // What nobody waits for is asked after that.
                    if !facts.configured && self.unread.insert(topic.clone()) {
                        self.stale.push_front(topic.clone());
                    } else if !self.stale.contains(&topic) {
                        self.stale.push_back(topic.clone());
                    }
                    self.learn(&topic, facts);
                    self.shared.fulfilled(&topic);
                    self.connected = true;
                    self.suspicion = None;
                    self.problems.topic_resolved(topic);
                    if !self.unmade {
                        self.problems.over(About::Broker);
                    }
                    self.shared.mailbox.post(Post::Retry);
                }
                Err(why) => {
                    let Some(problem) = health::of_topic(&topic, why, &self.spec.brokers) else {
                        self.shared.refuse_none();
                        self.name_brokers(&producers);
                        let problem = self.broker_problem();
                        self.problems.report(problem);
                        return false;
                    };
                    let problem = not_made.unwrap_or(problem);
                    let missing = why.is_missing() && !self.shared.was_known(&topic);
                    self.shared.refuse(&topic, asked_at, missing);
                    self.problems.report_topic(topic, problem, missing);
                }
            }
        }
        true
    }

    /// The problem of a topic that was usable and is not any more, if there is one. Requests a few topics in each
    /// cycle, all in rotation.
    fn why_stalled(&mut self, producers: &Producers) -> Option<Problem> {
        if self.stale.is_empty() {
            self.stale_are_all();
        }
        let begun = Instant::now();
        for _ in 0..STALL_TOPICS {
            // Who waits for a reset waits for this: where a broker gives no answer, others are asked in the next turn.
            if begun.elapsed() >= ANSWER_MAX {
                break;
            }
            let topic = self.stale.pop_front()?;
            match self.look_up(producers.first(), &topic, SHORT, true) {
                Ok(facts) => self.learn(&topic, facts),
                Err(why) => {
                    if let Some(problem) = health::of_topic(&topic, why, &self.spec.brokers) {
                        // It stays at hand: after all others it is asked for again.
                        if self.stale.is_empty() {
                            self.stale_are_all();
                        }
                        self.stale.retain(|other| *other != topic);
                        self.stale.push_back(topic);
                        return Some(Problem { about: About::Stall, ..problem });
                    }
                }
            }
        }
        None
    }

    /// All that is known is to be asked for again.
    fn stale_are_all(&mut self) {
        self.stale = self.shared.known_topics().into_keys().collect();
        self.refreshed_at = Instant::now();
    }

    /// Requests one known topic again in each cycle: all of them within `REFRESH`, or in as many cycles as there are
    /// topics.
    fn refresh(&mut self) {
        if self.stale.is_empty() && self.refreshed_at.elapsed() >= REFRESH {
            self.stale_are_all();
        }
        let Some(producers) = self.producers.clone().filter(|_| !self.problems.is_any()) else {
            return;
        };
        let Some(topic) = self.stale.pop_front() else {
            return;
        };
        let unread = self.unread.remove(&topic);
        let patience = if unread { (ANSWER_MAX, ANSWER_MAX) } else { SHORT };
        match self.look_up(producers.first(), &topic, patience, true) {
            Ok(facts) => {
                // All of them, before anything is sent by it. One that knows no broker any more is not noticed by what
                // is acknowledged: the others go on.
                if !producers.learn(&topic, ANSWER_MAX) {
                    self.name_brokers(&producers);
                }
                self.learn(&topic, facts);
            }
            Err(why) => {
                tracing::debug!(
                    target: "postrider::kafka", topic, code = %why.code, "could not ask for the topic again"
                );
                if health::of_topic(&topic, why, &self.spec.brokers).is_none() {
                    // The next look asks whether any broker answers.
                    let code = Code::AllBrokersDown;
                    Suspicion { code, reason: String::new() }.outweigh(&mut self.suspicion);
                }
            }
        }
    }

    /// Asks for a topic, and for our rights to it where there is doubt; `closely`, also whether it is the one that it
    /// was.
    fn look_up(
        &mut self,
        producer: &Producer,
        topic: &str,
        patience: (Duration, Duration),
        closely: bool,
    ) -> Result<Facts, Unusable> {
        let facts = topics::look_up(producer, topic, patience)?;
        if closely || self.shared.rights.load(Ordering::Acquire) {
            self.describe(producer, topic, &facts)?;
        }
        Ok(facts)
    }

    fn describe(
        &mut self,
        producer: &Producer,
        topic: &str,
        facts: &Facts,
    ) -> Result<(), Unusable> {
        let described = native::describe(producer, &facts.name, ANSWER_MAX);
        let due = self.anew_at.is_none_or(|at| at.elapsed() >= ANEW_APART);
        if let Ok(Description { id: Some(id), .. }) = described
            && self.ids.changed(topic, id, due)
        {
            self.anew_at = Some(Instant::now());
            let reason = format!("topic \"{topic}\" was deleted and recreated");
            producer.client().context().broken(reason);
        }
        let in_doubt = self.shared.rights.load(Ordering::Acquire);
        if in_doubt && self.rights.closed(topic, described) {
            return Err(Unusable { code: Code::TopicAuthorizationFailed, brokers: 0 });
        }
        Ok(())
    }

    fn learn(&self, topic: &str, facts: Facts) {
        let (partitions, limit, min_insync) = (facts.partitions, facts.limit, facts.min_insync);
        match self.shared.learn(topic, facts) {
            None => tracing::debug!(
                target: "postrider::kafka", topic, partitions, limit, min_insync, "found the topic"
            ),
            Some(before) if before.partitions != partitions => tracing::warn!(
                target: "postrider::kafka", topic, before = before.partitions, now = partitions,
                "the topic's partitions have changed: keys move to other partitions, \
                 and a reader may see an aggregate's events out of order across the change"
            ),
            Some(before) if before.limit != limit => tracing::debug!(
                target: "postrider::kafka", topic, before = before.limit, limit, "found the topic's limit"
            ),
            Some(_) => {}
        }
    }
}

// Which cluster records may go to: the one that the pipeline's position belongs to.
//
// The configuration names hosts, and hosts can come to belong to another cluster: their names are given to other
// machines, or the configuration is changed. So the brokers are asked for their cluster by each new set of producers,
// before anything is handed to those.

/// The cluster that records may go to. Open, unless the caller decides on it ([`Admission::hold`]).
pub(super) struct Admission {
    open: AtomicBool,
    clusters: Mutex<Clusters>,
}

#[derive(Default)]
struct Clusters {
    /// Records wait for an answer.
    held: bool,
    /// Where they may go.
    admitted: Option<String>,
    /// The cluster that the brokers named last.
    found: Option<String>,
}

impl Default for Admission {
    fn default() -> Self {
        Self { open: AtomicBool::new(true), clusters: Mutex::default() }
    }
}

impl Admission {
    fn clusters(&self) -> MutexGuard<'_, Clusters> {
        self.clusters.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Brings `open` in step with what is known, under the lock; whether it is open.
    fn settle(&self, clusters: &Clusters) -> bool {
        let known = clusters.found.is_some() && clusters.found == clusters.admitted;
        let open = !clusters.held || known;
        self.open.store(open, Ordering::Release);
        open
    }

    /// Whether records may be handed over.
    #[inline]
    pub(super) fn is_open(&self) -> bool {
        self.open.load(Ordering::Acquire)
    }

    /// Nothing is handed over until a cluster is admitted from now on.
    pub(super) fn hold(&self) {
        let mut clusters = self.clusters();
        (clusters.held, clusters.admitted) = (true, None);
        self.settle(&clusters);
    }

    /// Records may go to this cluster alone.
    pub(super) fn admit(&self, cluster: &str) {
        let mut clusters = self.clusters();
        clusters.admitted = Some(cluster.to_owned());
        self.settle(&clusters);
    }

    /// New producers are made: they may reach other brokers.
    pub(super) fn reconnects(&self) {
        let mut clusters = self.clusters();
        clusters.found = None;
        self.settle(&clusters);
    }

    /// The brokers are of this cluster; whether records may be handed over.
    pub(super) fn locate(&self, cluster: &str) -> bool {
        let mut clusters = self.clusters();
        clusters.found = Some(cluster.to_owned());
        self.settle(&clusters)
    }

    /// The cluster that the brokers named; `None` if none of the present producers has had an answer.
    pub(super) fn found(&self) -> Option<String> {
        self.clusters().found.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_go_to_the_admitted_cluster_alone() {
        let admission = Admission::default();
        assert!(admission.is_open(), "nobody asked to be asked");
        admission.hold();
        assert!(!admission.is_open());
        assert!(!admission.locate("A"), "not admitted yet");
        admission.admit("A");
        assert!(admission.is_open());
        admission.reconnects();
        assert!(!admission.is_open(), "the new producers may have reached another cluster");
        assert!(!admission.locate("B"));
        assert!(!admission.is_open());
        assert_eq!(admission.found().as_deref(), Some("B"));
        assert!(admission.locate("A"));
        admission.admit("B");
        assert!(!admission.is_open());
        admission.admit("A");
        assert!(admission.is_open());
        admission.hold();
        assert!(!admission.is_open(), "what was admitted before is not any more");
        assert!(!admission.locate("A"));
    }
}
