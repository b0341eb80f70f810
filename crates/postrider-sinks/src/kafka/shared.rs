//! What the sink, librdkafka's callbacks and the metadata thread share: the known topics, and the inbox of that thread.

use super::health::Problem;
use super::metadata::Admission;
use super::producer::Producers;
use super::secrets::Secrets;
use super::topics::{Facts, LargeRecords};
use postrider_core::sink::{Mailbox, Post};
use rdkafka::types::RDKafkaErrorCode as Code;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Bytes of librdkafka's error text that are kept.
const REASON_BYTES_MAX: usize = 300;

/// Topics that are remembered as unavailable.
const REFUSED_TOPICS_MAX: usize = 1_000;

/// Topics whose settings are remembered after they were forgotten; a further one counts as never known when it is
/// missing.
const KNOWN_ONCE_MAX: usize = 10_000;

/// Topics that are requested at a time; further ones wait until one of them is known, or its request has expired.
const REQUESTED_TOPICS_MAX: usize = 100;

/// How long a topic is asked for after a record last waited for it.
const REQUEST_LIFETIME: Duration = Duration::from_secs(5);

pub(super) struct Shared {
    pub(super) mailbox: Mailbox,
    /// librdkafka's queue was full: the next report posts `Retry`.
    pub(super) full: AtomicBool,
    /// Records wait in the partition scheduler, and so for the answers to others.
    pub(super) is_queueing: AtomicBool,
    pub(super) tally: Tally,
    /// Hours since the sink was opened.
    pub(super) hour: AtomicU32,
    /// A producer gave up a record. Nothing more is sent before the caller has taken the report and reset the sink, or
    /// records behind it would overtake it.
    pub(super) failed: AtomicBool,
    /// A topic that we may describe has refused a record of ours: from here on our right to write is checked with each
    /// topic.
    pub(super) rights: AtomicBool,
    /// Records that are larger than their topics accept before compression.
    pub(super) large: LargeRecords,
    /// Which cluster records may go to.
    pub(super) admission: Admission,
    /// Who has reported that nothing can be sent, and not that this is over.
    pub(super) outages: Outages,
    /// Old producers are being closed: nothing may be sent before that is done.
    pub(super) settling: AtomicBool,
    pub(super) topics: Mutex<BTreeMap<String, Arc<Facts>>>,
    /// Increases with every change of `topics`.
    pub(super) topics_version: AtomicU64,
    /// Topics that are not known at present.
    unknown: UnknownTopics,
    pub(super) inbox: Mutex<Inbox>,
    pub(super) wakeup: Condvar,
}

/// What is remembered of topics while they are not known.
#[derive(Default)]
struct UnknownTopics {
    /// Topics that a broker reports as unavailable.
    refused: Mutex<BTreeMap<String, UnavailableTopic>>,
    /// All topics that were ever known, with their settings as they were last read.
    seen_settings: Mutex<BTreeMap<String, Option<TopicSettings>>>,
}

/// What is counted since the sink was opened.
#[derive(Default)]
pub(super) struct Tally {
    /// Acknowledgements.
    pub(super) acked: AtomicU64,
    /// Producers that brokers have fenced off.
    pub(super) fenced: AtomicU64,
}

/// What the metadata thread has to do. Everything in it is bounded: there is one of each, except topics, and producers
/// that are closed, of which there can be two.
#[derive(Default)]
pub(super) struct Inbox {
    /// New producers, and the secrets that they were made with.
    pub(super) producers: Option<(Arc<Producers>, Secrets)>,
    /// The topics that records wait for.
    pub(super) requested: BTreeMap<String, TopicRequest>,
    /// The error callback's most telling error since the last time.
    pub(super) suspicion: Option<Suspicion>,
    /// No producers could be made of the secret files: there are none until the files change.
    pub(super) unmade: Option<Problem>,
    /// A producer's state can't be trusted any more, and why.
    pub(super) broken: Option<String>,
    /// Producers that are to be closed.
    pub(super) retired: Vec<RetiredProducers>,
    /// The thread is to end.
    pub(super) stop: bool,
}

/// A topic that records wait for.
#[derive(Clone, Copy)]
pub(super) struct TopicRequest {
    /// When a record last waited for it.
    pub(super) at: Instant,
    /// When a broker was last asked for it.
    pub(super) asked_at: Option<Instant>,
}

/// A topic's settings, as they were read.
pub(super) struct TopicSettings {
    pub(super) limit: usize,
    pub(super) min_insync: Option<u32>,
    pub(super) compression: Option<String>,
}

/// A topic that a broker reports as unavailable.
#[derive(Clone, Copy)]
pub(super) struct UnavailableTopic {
    /// When the broker was asked.
    pub(super) at: Instant,
    /// The topic was never known.
    pub(super) missing: bool,
}

/// An error that librdkafka has reported of a broker.
#[derive(Clone, Debug)]
pub(super) struct Suspicion {
    pub(super) code: Code,
    pub(super) reason: String,
}

impl Suspicion {
    /// Replaces `held`, unless that explains more: a refused login explains more than the broken connection that
    /// follows it.
    pub(super) fn outweigh(self, held: &mut Option<Self>) {
        if held.as_ref().is_none_or(|held| held.weight() <= self.weight()) {
            *held = Some(self);
        }
    }

    #[expect(
        clippy::wildcard_enum_match_arm,
        reason = "librdkafka's list is open: the rest is a connection that fails"
    )]
    pub(super) const fn weight(&self) -> u8 {
        match self.code {
            Code::Authentication | Code::SaslAuthenticationFailed | Code::SSL => 2,
            Code::AllBrokersDown => 0,
            _ => 1,
        }
    }
}

/// Producers that are to be closed. If they are muted, their records are given up (after a reset); else their records
/// are waited for (producers with other sizes take over).
pub(super) struct RetiredProducers {
    pub(super) producers: Arc<Producers>,
}

/// What a report is about that no record can be sent, to whatever topic.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum OutageOf {
    /// No broker answers, or none acknowledges anything.
    Brokers,
    /// No transaction can be begun or committed.
    Transactions,
}

/// The outages that are reported and not over. Two threads report them, and the pipeline shows the outage that was
/// reported last. The end is reported when no outage is left.
#[derive(Default)]
pub(super) struct Outages {
    reported: Mutex<Vec<OutageOf>>,
}

impl Outages {
    fn reported(&self) -> MutexGuard<'_, Vec<OutageOf>> {
        self.reported.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// An outage is reported.
    pub(super) fn begins(&self, of: OutageOf) {
        let mut reported = self.reported();
        if !reported.contains(&of) {
            reported.push(of);
        }
    }

    /// An outage is over. Returns whether none is left.
    pub(super) fn ends(&self, of: OutageOf) -> bool {
        let mut reported = self.reported();
        reported.retain(|other| *other != of);
        reported.is_empty()
    }

    /// Whether this one is reported.
    pub(super) fn is(&self, of: OutageOf) -> bool {
        self.reported().contains(&of)
    }
}

impl Shared {
    pub(super) fn new(mailbox: Mailbox) -> Self {
        Self {
            mailbox,
            full: AtomicBool::new(false),
            is_queueing: AtomicBool::new(false),
            tally: Tally::default(),
            hour: AtomicU32::new(0),
            failed: AtomicBool::new(false),
            rights: AtomicBool::new(false),
            large: LargeRecords::default(),
            admission: Admission::default(),
            outages: Outages::default(),
            settling: AtomicBool::new(false),
            topics: Mutex::default(),
            topics_version: AtomicU64::new(0),
            unknown: UnknownTopics::default(),
            inbox: Mutex::default(),
            wakeup: Condvar::new(),
        }
    }

    pub(super) fn inbox(&self) -> MutexGuard<'_, Inbox> {
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the inbox and wakes the metadata thread.
    pub(super) fn update_inbox<T>(&self, change: impl FnOnce(&mut Inbox) -> T) -> T {
        let answer = change(&mut self.inbox());
        self.wakeup.notify_one();
        answer
    }

    /// Passes old producers to the metadata thread. Nothing is sent from here on until that has closed all of them.
    pub(super) fn retire(&self, old: RetiredProducers) {
        self.update_inbox(|inbox| {
            inbox.retired.push(old);
            self.settling.store(true, Ordering::SeqCst);
        });
    }

    /// Passes old producers to the metadata thread, which closes them while new ones send: brokers accept nothing more
    /// of them.
    pub(super) fn discard(&self, old: RetiredProducers) {
        self.update_inbox(|inbox| inbox.retired.push(old));
    }

    /// Allows the new producers to send, unless further old ones came meanwhile; whether they may.
    pub(super) fn resumes(&self) -> bool {
        let inbox = self.inbox();
        let last = inbox.retired.is_empty();
        if last {
            self.settling.store(false, Ordering::SeqCst);
        }
        last
    }

    /// Requests a topic. A repeated request wakes no thread.
    pub(super) fn request(&self, topic: &str) {
        let (mut inbox, now) = (self.inbox(), Instant::now());
        if let Some(requested) = inbox.requested.get_mut(topic) {
            requested.at = now;
            return;
        }
        if inbox.requested.len() == REQUESTED_TOPICS_MAX {
            return;
        }
        inbox.requested.insert(topic.to_owned(), TopicRequest { at: now, asked_at: None });
        drop(inbox);
        self.wakeup.notify_one();
    }

    /// Up to `most` requested topics that are due, the ones asked for longest ago first. A topic is due again after
    /// `pause`.
    pub(super) fn to_ask(&self, most: usize, pause: Duration) -> Vec<String> {
        let (mut inbox, now) = (self.inbox(), Instant::now());
        let due = |requested: &TopicRequest| requested.asked_at.is_none_or(|at| now - at >= pause);
        let mut topics: Vec<(Option<Instant>, String)> = inbox
            .requested
            .iter()
            .filter(|(_, requested)| due(requested))
            .map(|(topic, requested)| (requested.asked_at, topic.clone()))
            .collect();
        topics.sort();
        topics.truncate(most);
        let topics: Vec<String> = topics.into_iter().map(|(_, topic)| topic).collect();
        for topic in &topics {
            if let Some(requested) = inbox.requested.get_mut(topic) {
                requested.asked_at = Some(now);
            }
        }
        topics
    }

    /// Drops expired requests; whether there were any.
    pub(super) fn drop_old_requests(&self) -> bool {
        let mut inbox = self.inbox();
        let before = inbox.requested.len();
        inbox.requested.retain(|_, requested| requested.at.elapsed() < REQUEST_LIFETIME);
        inbox.requested.len() < before
    }

    pub(super) fn refused(&self) -> MutexGuard<'_, BTreeMap<String, UnavailableTopic>> {
        self.unknown.refused.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A broker that was asked at `at` reports the topic as unavailable.
    pub(super) fn refuse(&self, topic: &str, at: Instant, missing: bool) {
        let mut refused = self.refused();
        if refused.len() >= REFUSED_TOPICS_MAX && !refused.contains_key(topic) {
            // A record that waits for a topic dropped here requests it again.
            let oldest = refused.iter().min_by_key(|(_, one)| one.at);
            if let Some(oldest) = oldest.map(|(topic, _)| topic.clone()) {
                refused.remove(&oldest);
            }
        }
        refused.insert(topic.to_owned(), UnavailableTopic { at, missing });
    }

    pub(super) fn seen_settings(&self) -> MutexGuard<'_, BTreeMap<String, Option<TopicSettings>>> {
        self.unknown.seen_settings.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the topic was ever known.
    pub(super) fn was_known(&self, topic: &str) -> bool {
        self.seen_settings().contains_key(topic)
    }

    /// No broker answers: no topic is reported as unavailable any more.
    pub(super) fn refuse_none(&self) {
        self.refused().clear();
    }

    /// Whether, and when, a broker has reported the topic as unavailable.
    pub(super) fn refused_topic(&self, topic: &str) -> Option<UnavailableTopic> {
        self.refused().get(topic).copied()
    }

    /// The topic is known now.
    pub(super) fn fulfilled(&self, topic: &str) {
        self.inbox().requested.remove(topic);
    }

    /// The error callback has reported an error.
    pub(super) fn note_error(&self, code: Code, reason: &str) {
        let reason: String =
            reason.lines().next().unwrap_or_default().chars().take(REASON_BYTES_MAX).collect();
        self.update_inbox(|inbox| Suspicion { code, reason }.outweigh(&mut inbox.suspicion));
    }

    /// The error callback's most telling error since the last call.
    pub(super) fn take_suspicion(&self) -> Option<Suspicion> {
        self.inbox().suspicion.take()
    }

    /// Posts that a producer is broken, unless a reset has come first.
    pub(super) fn report_broken(&self) {
        // The lock orders this against `reset`: either `reset` clears `broken` first, or the post is made before it.
        let mut inbox = self.inbox();
        if let Some(reason) = inbox.broken.take() {
            self.mailbox.post(Post::Broken { reason });
        }
    }

    /// Waits for work, for `timeout` at most, and passes the inbox to `take`.
    pub(super) fn wait<T>(&self, timeout: Duration, take: impl FnOnce(&mut Inbox) -> T) -> T {
        let quiet = |inbox: &mut Inbox| {
            !inbox.stop
                && inbox.requested.values().all(|requested| requested.asked_at.is_some())
                && inbox.producers.is_none()
                && inbox.suspicion.is_none()
                && inbox.broken.is_none()
                && inbox.retired.is_empty()
        };
        let (mut inbox, _timeout) = self
            .wakeup
            .wait_timeout_while(self.inbox(), timeout, quiet)
            .unwrap_or_else(PoisonError::into_inner);
        take(&mut inbox)
    }

    pub(super) fn topics(&self) -> MutexGuard<'_, BTreeMap<String, Arc<Facts>>> {
        self.topics.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// All known topics, for the sink's own copy.
    pub(super) fn known_topics(&self) -> BTreeMap<String, Arc<Facts>> {
        self.topics().clone()
    }

    /// The name of a known topic, for a metadata request.
    pub(super) fn any_topic(&self) -> Option<String> {
        self.topics().keys().next().cloned()
    }

    /// Settings that were read once are better than defaults: a topic whose settings were not answered in time keeps
    /// the former ones, also after all topics were forgotten.
    pub(super) fn keep_settings(&self, topic: &str, facts: &mut Facts) {
        let mut seen_settings = self.seen_settings();
        if facts.configured {
            let (limit, min_insync) = (facts.limit, facts.min_insync);
            let read =
                Some(TopicSettings { limit, min_insync, compression: facts.compression.clone() });
            if let Some(known) = seen_settings.get_mut(topic) {
                *known = read;
            } else if seen_settings.len() < KNOWN_ONCE_MAX {
                seen_settings.insert(topic.to_owned(), read);
            }
            return;
        }
        match seen_settings.get(topic) {
            Some(Some(read)) => {
                facts.limit = read.limit;
                facts.min_insync = read.min_insync;
                facts.compression.clone_from(&read.compression);
                facts.configured = true;
            }
            None if seen_settings.len() < KNOWN_ONCE_MAX => {
                seen_settings.insert(topic.to_owned(), None);
            }
            Some(None) | None => {}
        }
    }

    /// Stores what was found of a topic, and returns what was known before.
    pub(super) fn learn(&self, topic: &str, mut facts: Facts) -> Option<Arc<Facts>> {
        self.refused().remove(topic);
        self.keep_settings(topic, &mut facts);
        let before = self.topics().insert(topic.to_owned(), Arc::new(facts));
        self.topics_version.fetch_add(1, Ordering::Release);
        before
    }

    /// Forgets all topics: `code` shows that one of them has changed since it was asked for.
    pub(super) fn forget_topics(&self, code: Code) {
        if code == Code::TopicAuthorizationFailed {
            self.rights.store(true, Ordering::Release);
        }
        self.topics().clear();
        self.topics_version.fetch_add(1, Ordering::Release);
    }
}
