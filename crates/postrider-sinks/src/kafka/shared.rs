//! What the sink, librdkafka's callbacks and the metadata thread share: the known topics, and the inbox of that thread.

use super::health::Trouble;
use super::metadata::Admission;
use super::producer::Producers;
use super::secrets::Secrets;
use super::topics::{Facts, Large};
use postrider_core::sink::{Mailbox, Post};
use rdkafka::types::RDKafkaErrorCode as Code;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Bytes of librdkafka's own words that are kept of an error.
const REASON_BYTES_MAX: usize = 300;

/// Topics remembered as taking no records.
const REFUSED_TOPICS_MAX: usize = 1_000;

/// Topics that are remembered as known at some time; one beyond counts as never known when it is missing.
const KNOWN_ONCE_MAX: usize = 10_000;

/// Topics that are asked for at a time; further ones wait until one of them is known, or waited for no more.
const WANTED_TOPICS_MAX: usize = 100;

/// A topic that nobody has waited for since so long is asked for no more.
const WANTED_FOR: Duration = Duration::from_secs(5);

pub(super) struct Shared {
    pub(super) mailbox: Mailbox,
    /// librdkafka's queue was full: the next report is to post `Retry`.
    pub(super) full: AtomicBool,
    /// Partitions wait for their turn, and so for answers to others.
    pub(super) in_turns: AtomicBool,
    /// Reports of success so far: whether the broker still works.
    pub(super) acked: AtomicU64,
    /// Hours since the sink was opened.
    pub(super) hour: AtomicU32,
    /// A producer gave up a record: nothing more is sent before the caller has heard of it and reset the sink, or
    /// what is behind the record would overtake it.
    pub(super) failed: AtomicBool,
    /// A topic that we may see took no record of ours: from here on each is also asked whether we may write.
    pub(super) rights: AtomicBool,
    /// Records that are larger than their topics take before compression.
    pub(super) large: Large,
    /// Which cluster records may go to.
    pub(super) admission: Admission,
    /// An old producer is on its way out: nothing may be sent before it is gone.
    pub(super) settling: AtomicBool,
    pub(super) topics: Mutex<BTreeMap<String, Arc<Facts>>>,
    /// Rises with every change of `topics`.
    pub(super) topics_version: AtomicU64,
    /// Topics of which a broker says that they take no records.
    pub(super) refused: Mutex<BTreeMap<String, RefusedTopic>>,
    /// Topics that were known at some time, with their settings as they were last read.
    pub(super) once: Mutex<BTreeMap<String, Option<Read>>>,
    pub(super) inbox: Mutex<Inbox>,
    pub(super) bell: Condvar,
}

/// What the keeper is asked to do. Everything in it is bounded: one of each, but for topics, and for producers, of
/// which two can be on the way out.
#[derive(Default)]
pub(super) struct Inbox {
    /// The producers to ask with, and the secrets that they were made with.
    pub(super) producers: Option<(Arc<Producers>, Secrets)>,
    /// The topics that are being waited for.
    pub(super) wanted: BTreeMap<String, Wanted>,
    /// What the error callback said since.
    pub(super) suspicion: Option<Suspicion>,
    /// No new producers could be made of the files as they were: there are none until the files change.
    pub(super) unmade: Option<Trouble>,
    /// A producer's state can't be trusted any more, and why.
    pub(super) broken: Option<String>,
    /// Producers that are to go.
    pub(super) leaving: Vec<Leaving>,
    /// No more work.
    pub(super) stop: bool,
}

/// A topic that is being waited for.
#[derive(Clone, Copy)]
pub(super) struct Wanted {
    /// When somebody last waited for it.
    pub(super) at: Instant,
    /// When it was last asked for.
    pub(super) asked_at: Option<Instant>,
}

/// A topic's settings, as they were read.
pub(super) struct Read {
    pub(super) limit: usize,
    pub(super) min_insync: Option<u32>,
    pub(super) compression: Option<String>,
}

/// A topic of which a broker says that it takes no records.
#[derive(Clone, Copy)]
pub(super) struct RefusedTopic {
    /// When the broker was asked.
    pub(super) at: Instant,
    /// The topic was never known.
    pub(super) missing: bool,
}

/// What librdkafka said of a broker.
#[derive(Clone, Debug)]
pub(super) struct Suspicion {
    pub(super) code: Code,
    pub(super) reason: String,
}

impl Suspicion {
    /// Takes the place of `held`, unless that says more: a refused login says more than the broken connection that
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

/// Producers on their way out. Muted, their records are given up (reset); else they are waited for (a smaller batch is
/// needed).
pub(super) struct Leaving {
    pub(super) producers: Arc<Producers>,
}

impl Shared {
    pub(super) fn new(mailbox: Mailbox) -> Self {
        Self {
            mailbox,
            full: AtomicBool::new(false),
            in_turns: AtomicBool::new(false),
            acked: AtomicU64::new(0),
            hour: AtomicU32::new(0),
            failed: AtomicBool::new(false),
            rights: AtomicBool::new(false),
            large: Large::default(),
            admission: Admission::default(),
            settling: AtomicBool::new(false),
            topics: Mutex::default(),
            topics_version: AtomicU64::new(0),
            refused: Mutex::default(),
            once: Mutex::default(),
            inbox: Mutex::default(),
            bell: Condvar::new(),
        }
    }

    pub(super) fn inbox(&self) -> MutexGuard<'_, Inbox> {
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the inbox and wakes the keeper.
    pub(super) fn tell<T>(&self, change: impl FnOnce(&mut Inbox) -> T) -> T {
        let answer = change(&mut self.inbox());
        self.bell.notify_one();
        answer
    }

    /// Hands an old producer over. Nothing is sent from here on until the keeper has let all of them go.
    pub(super) fn sees_out(&self, old: Leaving) {
        self.tell(|inbox| {
            inbox.leaving.push(old);
            self.settling.store(true, Ordering::SeqCst);
        });
    }

    /// Lets the new producer send, if no other was handed over since the keeper looked; whether it may.
    pub(super) fn settles(&self) -> bool {
        let inbox = self.inbox();
        let last = inbox.leaving.is_empty();
        if last {
            self.settling.store(false, Ordering::SeqCst);
        }
        last
    }

    /// Asks for a topic. Asking again for one that is being asked for costs no wake-up.
    pub(super) fn want(&self, topic: &str) {
        let (mut inbox, now) = (self.inbox(), Instant::now());
        if let Some(wanted) = inbox.wanted.get_mut(topic) {
            wanted.at = now;
            return;
        }
        if inbox.wanted.len() == WANTED_TOPICS_MAX {
            return;
        }
        inbox.wanted.insert(topic.to_owned(), Wanted { at: now, asked_at: None });
        drop(inbox);
        self.bell.notify_one();
    }

    /// Up to `most` topics that are to be asked for now, those first that were not for longest; again after `pause`.
    pub(super) fn to_ask(&self, most: usize, pause: Duration) -> Vec<String> {
        let (mut inbox, now) = (self.inbox(), Instant::now());
        let due = |wanted: &Wanted| wanted.asked_at.is_none_or(|at| now - at >= pause);
        let mut topics: Vec<(Option<Instant>, String)> = inbox
            .wanted
            .iter()
            .filter(|(_, wanted)| due(wanted))
            .map(|(topic, wanted)| (wanted.asked_at, topic.clone()))
            .collect();
        topics.sort();
        topics.truncate(most);
        let topics: Vec<String> = topics.into_iter().map(|(_, topic)| topic).collect();
        for topic in &topics {
            if let Some(wanted) = inbox.wanted.get_mut(topic) {
                wanted.asked_at = Some(now);
            }
        }
        topics
    }

    /// Drops topics that nobody waits for any more; whether there were any.
    pub(super) fn drop_unwanted(&self) -> bool {
        let mut inbox = self.inbox();
        let before = inbox.wanted.len();
        inbox.wanted.retain(|_, wanted| wanted.at.elapsed() < WANTED_FOR);
        inbox.wanted.len() < before
    }

    pub(super) fn refused(&self) -> MutexGuard<'_, BTreeMap<String, RefusedTopic>> {
        self.refused.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A broker that was asked then says that the topic takes no records.
    pub(super) fn refuse(&self, topic: &str, at: Instant, missing: bool) {
        let mut refused = self.refused();
        if refused.len() >= REFUSED_TOPICS_MAX && !refused.contains_key(topic) {
            // Whoever waits for a topic that is forgotten here asks for it again.
            let oldest = refused.iter().min_by_key(|(_, one)| one.at);
            if let Some(oldest) = oldest.map(|(topic, _)| topic.clone()) {
                refused.remove(&oldest);
            }
        }
        refused.insert(topic.to_owned(), RefusedTopic { at, missing });
    }

    pub(super) fn once(&self) -> MutexGuard<'_, BTreeMap<String, Option<Read>>> {
        self.once.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the topic was known at some time.
    pub(super) fn was_known(&self, topic: &str) -> bool {
        self.once().contains_key(topic)
    }

    /// No broker answers: nothing is known of any topic.
    pub(super) fn refuse_none(&self) {
        self.refused().clear();
    }

    /// What a broker has said of a topic that takes no records.
    pub(super) fn refused_topic(&self, topic: &str) -> Option<RefusedTopic> {
        self.refused().get(topic).copied()
    }

    /// The topic is known now.
    pub(super) fn got(&self, topic: &str) {
        self.inbox().wanted.remove(topic);
    }

    /// The error callback heard something.
    pub(super) fn suspect(&self, code: Code, reason: &str) {
        let reason: String =
            reason.lines().next().unwrap_or_default().chars().take(REASON_BYTES_MAX).collect();
        self.tell(|inbox| Suspicion { code, reason }.outweigh(&mut inbox.suspicion));
    }

    /// What the error callback heard since the last look.
    pub(super) fn heard(&self) -> Option<Suspicion> {
        self.inbox().suspicion.take()
    }

    /// Says that a producer is broken, unless a reset has come first.
    pub(super) fn say_broken(&self) {
        // The lock orders this against `reset`: either `reset` clears `broken` first, or the post is made before it.
        let mut inbox = self.inbox();
        if let Some(reason) = inbox.broken.take() {
            self.mailbox.post(Post::Broken { reason });
        }
    }

    /// Waits for work, at most `timeout`, and shows the inbox to `take`.
    pub(super) fn wait<T>(&self, timeout: Duration, take: impl FnOnce(&mut Inbox) -> T) -> T {
        let quiet = |inbox: &mut Inbox| {
            !inbox.stop
                && inbox.wanted.values().all(|wanted| wanted.asked_at.is_some())
                && inbox.producers.is_none()
                && inbox.suspicion.is_none()
                && inbox.broken.is_none()
                && inbox.leaving.is_empty()
        };
        let (mut inbox, _timeout) = self
            .bell
            .wait_timeout_while(self.inbox(), timeout, quiet)
            .unwrap_or_else(PoisonError::into_inner);
        take(&mut inbox)
    }

    pub(super) fn topics(&self) -> MutexGuard<'_, BTreeMap<String, Arc<Facts>>> {
        self.topics.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Everything known of topics, for the sink's own copy.
    pub(super) fn known_topics(&self) -> BTreeMap<String, Arc<Facts>> {
        self.topics().clone()
    }

    /// The name of a known topic, for a question to a broker.
    pub(super) fn any_topic(&self) -> Option<String> {
        self.topics().keys().next().cloned()
    }

    /// What was read once is better than a default: a topic whose settings were not answered in time has those that it
    /// had, also after all topics were forgotten.
    pub(super) fn keep_settings(&self, topic: &str, facts: &mut Facts) {
        let mut once = self.once();
        if facts.configured {
            let (limit, min_insync) = (facts.limit, facts.min_insync);
            let read = Some(Read { limit, min_insync, compression: facts.compression.clone() });
            if let Some(known) = once.get_mut(topic) {
                *known = read;
            } else if once.len() < KNOWN_ONCE_MAX {
                once.insert(topic.to_owned(), read);
            }
            return;
        }
        match once.get(topic) {
            Some(Some(read)) => {
                facts.limit = read.limit;
                facts.min_insync = read.min_insync;
                facts.compression.clone_from(&read.compression);
                facts.configured = true;
            }
            None if once.len() < KNOWN_ONCE_MAX => {
                once.insert(topic.to_owned(), None);
            }
            Some(None) | None => {}
        }
    }

    /// Remembers what was found of a topic, and gives back what was known before.
    pub(super) fn learn(&self, topic: &str, mut facts: Facts) -> Option<Arc<Facts>> {
        self.refused().remove(topic);
        self.keep_settings(topic, &mut facts);
        let before = self.topics().insert(topic.to_owned(), Arc::new(facts));
        self.topics_version.fetch_add(1, Ordering::Release);
        before
    }

    /// Forgets all topics: one of them is not what it was when it was asked for, as `code` says.
    pub(super) fn forget_topics(&self, code: Code) {
        if code == Code::TopicAuthorizationFailed {
            self.rights.store(true, Ordering::Release);
        }
        self.topics().clear();
        self.topics_version.fetch_add(1, Ordering::Release);
    }
}
