//! Whether anything is acknowledged, and when producers are given up that are acknowledged nothing.
//!
//! Decides for the keeper, by the counts and the time that it is given. Knows no broker, and not why.

use super::config::OpenError;
use super::producer::Producers;
use super::shared::{Shared, Suspicion};
use super::topics::Unusable;
use postrider_core::error::Chain;
use postrider_core::sink::Post;
use rdkafka::types::RDKafkaErrorCode as Code;
use std::collections::BTreeMap;
use std::ffi::CString;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long records may be in flight without any acknowledgement before that is told.
pub(super) const STALL: Duration = Duration::from_secs(5);

/// How long brokers may answer and acknowledge nothing before the producers are taken for what is at fault: librdkafka
/// may have lost its way to a leader, as a program that is started again has not. Longer than a copy that hangs counts
/// as in sync (`replica.lag.time.max.ms`, 30 s, and half as much). Twice as long after each that did not help.
const GIVE_UP: Duration = Duration::from_mins(1);
/// The longest such time, since what is in flight comes twice after it; and where the topics themselves explain it.
const GIVE_UP_MAX: Duration = Duration::from_mins(10);

/// What is acknowledged to a set of producers, and what is not.
pub(super) struct Stall {
    acked: u64,
    /// When something was acknowledged last, or nothing was in flight.
    moved_at: Instant,
    /// Since when nothing is in flight.
    idle_since: Option<Instant>,
    /// How long brokers have answered since then, and when the last answer was, if none was missing since.
    answered: Duration,
    answered_at: Option<Instant>,
    /// Since then topics lacked leaders, or copies, or were not there.
    explained: bool,
    patience: Duration,
}

impl Stall {
    pub(super) const fn new(now: Instant) -> Self {
        Self {
            acked: 0,
            moved_at: now,
            idle_since: None,
            answered: Duration::ZERO,
            answered_at: None,
            explained: false,
            patience: GIVE_UP,
        }
    }

    /// Other producers are looked at from here on.
    pub(super) const fn new_producers(&mut self, now: Instant) {
        self.idle_since = None;
        self.moves(now);
    }

    const fn moves(&mut self, now: Instant) {
        self.moved_at = now;
        self.answered = Duration::ZERO;
        self.answered_at = None;
        self.explained = false;
    }

    /// So much was acknowledged by now, and something is `flying`. Whether a stall that was told is over.
    pub(super) fn look(&mut self, acked: u64, flying: bool, now: Instant) -> bool {
        let moved = acked != self.acked;
        self.acked = acked;
        if moved {
            self.patience = GIVE_UP;
        }
        // What flies now may have begun to since the look before.
        let idle_since = self.idle_since.take();
        if moved || !flying || idle_since.is_some() {
            self.moves(now);
        }
        if flying {
            return moved;
        }
        let idle_since = *self.idle_since.insert(idle_since.unwrap_or(now));
        // New producers have nothing in flight at first, and that is no end of a trouble that they were made for. But
        // who polls claims nothing while there is trouble.
        moved || self.patience == GIVE_UP || now - idle_since >= STALL
    }

    /// Whether that is to be told.
    pub(super) fn is_told(&self, now: Instant) -> bool {
        now - self.moved_at >= STALL
    }

    /// No broker answers: the time until one does not count.
    pub(super) const fn no_answer(&mut self) {
        self.answered_at = None;
    }

    /// A broker answered though nothing moves: whether the producers are to be given up. `explained`: their topics lack
    /// leaders, or copies, or are not there. Once that is known it holds until something moves: not each answer has it.
    pub(super) fn is_hopeless(&mut self, explained: bool, now: Instant) -> bool {
        self.answered += self.answered_at.map_or(Duration::ZERO, |at| now - at);
        self.answered_at = Some(now);
        self.explained |= explained;
        let patience = if self.explained { GIVE_UP_MAX } else { self.patience };
        if self.answered < patience {
            return false;
        }
        self.patience = (2 * self.patience).min(GIVE_UP_MAX);
        self.answered = Duration::ZERO;
        true
    }
}

// What to tell when a broker or a topic can't take records, and what mends it.

/// One thing that is wrong, as it is told.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Trouble {
    pub(super) about: About,
    pub(super) reason: String,
    pub(super) hint: Option<String>,
}

/// What is in trouble, which decides what ends it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum About {
    /// No broker answers.
    Broker,
    /// A topic can't be used.
    Topic,
    /// Brokers answer, but acknowledge nothing.
    Stall,
}

/// Replicas of a topic that survives the loss of a broker without a halt, where there are as many brokers.
const REPLICAS: usize = 3;

/// The answer to a look-up that failed: the topic's fault, or the broker's (`None`).
#[expect(
    clippy::wildcard_enum_match_arm,
    reason = "librdkafka's list is open: what does not blame the topic is the broker's"
)]
pub(super) fn of_topic(topic: &str, why: Unusable, brokers: &str) -> Option<Trouble> {
    let (reason, hint) = match why.code {
        Code::UnknownTopicOrPartition | Code::UnknownTopic => (
            format!("topic \"{topic}\" does not exist"),
            format!(
                "kafka-topics.sh --bootstrap-server {brokers} --create --topic {topic} \
                 --partitions 8 --replication-factor {}",
                if why.brokers == 0 { REPLICAS } else { why.brokers.min(REPLICAS) }
            ),
        ),
        Code::TopicAuthorizationFailed => (
            format!("topic \"{topic}\" is not open to us"),
            format!(
                "kafka-acls.sh --bootstrap-server {brokers} --add --allow-principal User:NAME \
                 --producer --topic {topic}"
            ),
        ),
        Code::InvalidTopic => (
            format!("the broker does not allow the topic name \"{topic}\""),
            "change `route.topic`".to_owned(),
        ),
        Code::LeaderNotAvailable => (
            format!("topic \"{topic}\" has no leader yet"),
            "wait, or see why its brokers are down".to_owned(),
        ),
        _ => return None,
    };
    Some(Trouble { about: About::Topic, reason, hint: Some(hint) })
}

/// No broker answers: what librdkafka said of it, where it said something.
#[expect(
    clippy::wildcard_enum_match_arm,
    reason = "librdkafka's list is open: the rest is a connection that fails"
)]
pub(super) fn of_broker(brokers: &str, said: Option<&Suspicion>) -> Trouble {
    let (reason, hint) = match said {
        // A listener that wants TLS or SASL closes a connection that begins without, and nothing else is heard.
        None | Some(Suspicion { code: Code::AllBrokersDown, .. }) => (
            format!("no answer from the brokers at {brokers}"),
            "check `sink.brokers`, `security.protocol`, the network, and that the brokers run"
                .to_owned(),
        ),
        Some(Suspicion { code, reason }) => match code {
            Code::Authentication | Code::SaslAuthenticationFailed => (
                format!("the brokers at {brokers} refuse our login: {reason}"),
                "check `sasl.username`, `sasl.password` and `sasl.mechanism`".to_owned(),
            ),
            Code::SSL => (
                format!("no TLS connection to the brokers at {brokers}: {reason}"),
                "check `ssl.ca.location` and that the certificate names this host".to_owned(),
            ),
            Code::Resolve => (
                format!("the brokers at {brokers} have no address: {reason}"),
                "check the host names in `sink.brokers` and the broker's advertised.listeners"
                    .to_owned(),
            ),
            _ => (
                format!("no connection to the brokers at {brokers}: {reason}"),
                "check `sink.brokers`, `security.protocol`, the network, and that the brokers run"
                    .to_owned(),
            ),
        },
    };
    Trouble { about: About::Broker, reason, hint: Some(hint) }
}

/// No producer can be made of the files of secrets, certificates and keys.
pub(super) fn of_files(error: &OpenError) -> Trouble {
    let reason =
        format!("the changed files of secrets or certificates do not fit: {}", Chain(error));
    Trouble { about: About::Broker, reason, hint: Some(error.hint()) }
}

/// Brokers answer, but for a while nothing was acknowledged.
pub(super) fn of_stall(after: Duration) -> Trouble {
    Trouble {
        about: About::Stall,
        reason: format!("the broker has acknowledged nothing for more than {} s", after.as_secs()),
        hint: Some(
            "look for partitions below min.insync.replicas: \
             kafka-topics.sh --describe --under-min-isr-partitions"
                .to_owned(),
        ),
    }
}

// Problems that were reported and are not over: a report is not repeated with every check, and the end is reported
// too.

/// How often a trouble that lasts is told again.
const REPEAT: Duration = Duration::from_secs(5);
/// Topics whose trouble is remembered as told.
const TOPICS_MAX: usize = 1_000;

/// Troubles that were told and are not over, each with when.
pub(super) struct Told {
    shared: Arc<Shared>,
    /// Of the brokers.
    of_all: Option<(Trouble, Instant)>,
    /// Of each topic, until it is known.
    of_topics: BTreeMap<String, (Trouble, Instant)>,
}

impl Told {
    pub(super) const fn new(shared: Arc<Shared>) -> Self {
        Self { shared, of_all: None, of_topics: BTreeMap::new() }
    }

    pub(super) const fn is_trouble(&self) -> bool {
        self.of_all.is_some()
    }

    pub(super) fn is_about(&self, about: About) -> bool {
        self.of_all.as_ref().is_some_and(|(told, _)| told.about == about)
    }

    pub(super) fn say(&mut self, trouble: Trouble) {
        if is_news(self.of_all.as_ref(), &trouble) {
            let Trouble { about: _, reason, hint } = trouble.clone();
            self.shared.mailbox.post(Post::Down { reason, hint, topic: None, missing: false });
            self.of_all = Some((trouble, Instant::now()));
        }
    }

    /// `missing`: the topic was never known.
    pub(super) fn say_of(&mut self, topic: String, trouble: Trouble, missing: bool) {
        if is_news(self.of_topics.get(&topic), &trouble) {
            let Trouble { about: _, reason, hint } = trouble.clone();
            let about = Some(topic.clone());
            self.shared.mailbox.post(Post::Down { reason, hint, topic: about, missing });
            if self.of_topics.len() == TOPICS_MAX {
                self.of_topics.clear();
            }
            self.of_topics.insert(topic, (trouble, Instant::now()));
        }
    }

    /// A trouble of this kind, if it was told, is over.
    pub(super) fn over(&mut self, about: About) {
        if self.is_about(about) {
            self.of_all = None;
            self.shared.mailbox.post(Post::Up { topic: None });
        }
    }

    /// The topic is known now.
    pub(super) fn over_for(&mut self, topic: String) {
        if self.of_topics.remove(&topic).is_some() {
            self.shared.mailbox.post(Post::Up { topic: Some(topic) });
        }
    }
}

/// Whether a trouble is told again. The hint names what is in trouble; the reason may carry times that change with
/// every try.
fn is_news(told: Option<&(Trouble, Instant)>, trouble: &Trouble) -> bool {
    told.is_none_or(|(told, at)| {
        (told.about, &told.hint) != (trouble.about, &trouble.hint) || at.elapsed() >= REPEAT
    })
}

// Brokers that librdkafka has forgotten: they are named to it again.
//
// A cluster whose brokers are all fenced (they missed their heartbeats, or have just started) answers on, and names no
// broker in its metadata. librdkafka lets go of all that are not named, since 2.10, and plans to begin anew with
// `bootstrap.servers`; where the same answer ends that plan, it asks nobody ever again (its issue 5301, open; seen
// with 2.12.1: `kafka_outages::brokers_that_name_none_for_a_moment_are_found_again`). From outside that can't be told
// from brokers that are down, so they are named whenever none answers: where they are known, nothing comes of it.

/// Pause after the first time that they were named.
const PAUSE_MIN: Duration = Duration::from_secs(5);
/// The longest pause. librdkafka keeps the text of each time, and reads all of them when it begins anew: a day of
/// silence adds 1,440.
const PAUSE_MAX: Duration = Duration::from_mins(1);

/// When brokers are named again.
pub(super) struct Forgotten {
    brokers: CString,
    /// The next pause, and when this one ends.
    pause: Duration,
    not_before: Option<Instant>,
}

impl Forgotten {
    /// `brokers` as in `sink.brokers`; a text with a NUL in it was refused by then.
    pub(super) fn new(brokers: &str) -> Self {
        Self {
            brokers: CString::new(brokers).unwrap_or_default(),
            pause: PAUSE_MIN,
            not_before: None,
        }
    }

    /// No broker answered, or none acknowledged anything.
    pub(super) fn silence<'p>(
        &mut self,
        producers: impl Iterator<Item = &'p Producers>,
        now: Instant,
    ) {
        if self.not_before.is_none_or(|not_before| now >= not_before) {
            producers.for_each(|producers| producers.add_brokers(&self.brokers));
            self.not_before = Some(now + self.pause);
            self.pause = (self.pause * 2).min(PAUSE_MAX);
        }
    }

    /// All is well: the next silence is answered at once.
    pub(super) fn over(&mut self) {
        self.pause = PAUSE_MIN;
        self.not_before = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    /// Looks every second; when it was given up, in seconds.
    fn given_up(stall: &mut Stall, from: Instant, seconds: u32, explained: bool) -> Vec<u32> {
        (0..seconds)
            .filter(|second| {
                let now = from + *second * SECOND;
                stall.look(7, true, now);
                stall.is_hopeless(explained, now)
            })
            .collect()
    }

    #[test]
    fn the_time_of_an_outage_does_not_count() {
        let start = Instant::now();
        let mut stall = Stall::new(start);
        stall.look(7, true, start);
        let back = start + Duration::from_hours(1);
        assert!(stall.is_told(back));
        stall.no_answer();
        assert!(!stall.is_hopeless(false, back));
        assert!(!stall.is_hopeless(false, back + 59 * SECOND));
        stall.no_answer();
        assert!(!stall.is_hopeless(false, back + 120 * SECOND));
        assert!(stall.is_hopeless(false, back + 121 * SECOND));
    }

    #[test]
    fn each_time_without_help_is_followed_by_one_twice_as_long() {
        let mut stall = Stall::new(Instant::now());
        let given_up = given_up(&mut stall, Instant::now(), 3_000, false);
        assert_eq!(given_up, [60, 180, 420, 900, 1500, 2100, 2700]);
    }

    #[test]
    fn what_the_topics_explain_is_waited_for() {
        let mut stall = Stall::new(Instant::now());
        let now = Instant::now();
        stall.look(7, true, now);
        assert!(!stall.is_hopeless(true, now));
        assert_eq!(given_up(&mut stall, now, 1_300, false), [600, 1200]);
    }

    #[test]
    fn what_has_just_begun_to_fly_is_no_stall() {
        let start = Instant::now();
        let mut stall = Stall::new(start);
        stall.look(0, false, start);
        let later = start + 2 * STALL;
        stall.look(0, true, later);
        assert!(!stall.is_told(later));
        stall.look(0, true, later + STALL);
        assert!(stall.is_told(later + STALL));
    }

    /// Who polls claims nothing while a stall is told: without an acknowledgement it would never be over.
    #[test]
    fn a_stall_is_over_when_nothing_is_in_flight_for_a_while() {
        let start = Instant::now();
        let mut stall = Stall::new(start);
        stall.look(7, true, start);
        assert!(stall.look(7, false, start), "nothing was given up");
        stall.look(7, true, start);
        assert_eq!(given_up(&mut stall, start, 61, false), [60]);
        stall.new_producers(start);
        assert!(!stall.look(7, false, start));
        assert!(!stall.look(7, false, start + 4 * SECOND));
        assert!(stall.look(7, false, start + STALL));
        assert!(!stall.look(7, true, start + STALL));
        assert!(stall.look(8, true, start + STALL), "something was acknowledged");
    }
}
