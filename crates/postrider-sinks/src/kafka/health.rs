//! Health of the broker connection: stalls, reported problems, and the brokers that librdkafka has to be given again.
//!
//! The metadata thread asks these types with counts and times; they send nothing themselves.

use super::producer::Producers;
use super::shared::{OutageOf, Shared, Suspicion};
use super::spec::OpenError;
use super::topics::Unusable;
use postrider_core::error::Chain;
use postrider_core::sink::Post;
use rdkafka::types::RDKafkaErrorCode as Code;
use std::collections::BTreeMap;
use std::ffi::CString;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long records may be in flight without any acknowledgement before that is reported.
pub(super) const STALL: Duration = Duration::from_secs(5);

/// How long brokers may answer and acknowledge nothing before the producers are replaced: librdkafka may have lost the
/// connection to a leader, which a restarted program would find again. Longer than a hanging replica counts as in sync
/// (`replica.lag.time.max.ms`, 30 s, and half as much again). Doubled after each replacement that did not help.
const GIVE_UP: Duration = Duration::from_mins(1);
/// The longest such time, because records in flight are published twice after a replacement; also the time if the
/// topics themselves explain the stall.
const GIVE_UP_MAX: Duration = Duration::from_mins(10);

/// Detects that a set of producers gets no acknowledgements.
pub(super) struct AckStall {
    acked: u64,
    /// When a record was last acknowledged, or none was in flight.
    moved_at: Instant,
    /// Since when nothing is in flight.
    idle_since: Option<Instant>,
    /// How long brokers have answered since then, and the time of the last answer, unless one was missing since.
    answered: Duration,
    answered_at: Option<Instant>,
    /// Since then topics lacked leaders or replicas, or were missing.
    explained: bool,
    patience: Duration,
}

impl AckStall {
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

    /// From here on the counts are those of other producers.
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

    /// Takes the number of acknowledgements so far, and whether records are in flight (`flying`). Returns whether a
    /// reported stall is over.
    pub(super) fn look(&mut self, acked: u64, flying: bool, now: Instant) -> bool {
        let moved = acked != self.acked;
        self.acked = acked;
        if moved {
            self.patience = GIVE_UP;
        }
        // The records in flight may have been sent since the previous call.
        let idle_since = self.idle_since.take();
        if moved || !flying || idle_since.is_some() {
            self.moves(now);
        }
        if flying {
            return moved;
        }
        let idle_since = *self.idle_since.insert(idle_since.unwrap_or(now));
        // New producers have nothing in flight at first, which does not end the problem that they were made for. But
        // polling claims nothing while there is a problem.
        moved || self.patience == GIVE_UP || now - idle_since >= STALL
    }

    /// Whether the stall is to be reported.
    pub(super) fn is_due(&self, now: Instant) -> bool {
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

/// A problem of the brokers or of a topic, with what fixes it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Problem {
    pub(super) about: About,
    pub(super) reason: String,
    pub(super) hint: Option<String>,
}

/// What a problem is about, which decides what ends it.
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

/// The problem that a failed request for a topic shows; `None` if the brokers are at fault.
#[expect(
    clippy::wildcard_enum_match_arm,
    reason = "librdkafka's list is open: what does not blame the topic is the broker's"
)]
pub(super) fn of_topic(topic: &str, why: Unusable, brokers: &str) -> Option<Problem> {
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
    Some(Problem { about: About::Topic, reason, hint: Some(hint) })
}

/// The problem that no broker answers, with librdkafka's last error if there is one.
#[expect(
    clippy::wildcard_enum_match_arm,
    reason = "librdkafka's list is open: the rest is a connection that fails"
)]
pub(super) fn of_broker(brokers: &str, suspicion: Option<&Suspicion>) -> Problem {
    let (reason, hint) = match suspicion {
        // A listener that wants TLS or SASL closes a connection that begins without, and there is no other error.
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
    Problem { about: About::Broker, reason, hint: Some(hint) }
}

/// No producer can be made of the files of secrets, certificates and keys.
pub(super) fn of_files(error: &OpenError) -> Problem {
    let reason =
        format!("the changed files of secrets or certificates do not fit: {}", Chain(error));
    Problem { about: About::Broker, reason, hint: Some(error.hint()) }
}

/// Brokers answer, but for a while nothing was acknowledged.
pub(super) fn of_stall(after: Duration) -> Problem {
    Problem {
        about: About::Stall,
        reason: format!("the broker has acknowledged nothing for more than {} s", after.as_secs()),
        hint: Some(
            "look for partitions below min.insync.replicas: \
             kafka-topics.sh --describe --under-min-isr-partitions"
                .to_owned(),
        ),
    }
}

/// How often a problem that lasts is reported again.
const REPEAT: Duration = Duration::from_secs(5);
/// Topics whose reported problems are remembered.
const TOPICS_MAX: usize = 1_000;

/// Problems that were reported and are not over, each with the time of the report. A report is not repeated with every
/// check, and the end of a problem is reported too.
pub(super) struct ReportedProblems {
    shared: Arc<Shared>,
    /// Of the brokers.
    of_all: Option<(Problem, Instant)>,
    /// Of each topic, until it is known.
    of_topics: BTreeMap<String, (Problem, Instant)>,
}

impl ReportedProblems {
    pub(super) const fn new(shared: Arc<Shared>) -> Self {
        Self { shared, of_all: None, of_topics: BTreeMap::new() }
    }

    pub(super) const fn is_any(&self) -> bool {
        self.of_all.is_some()
    }

    pub(super) fn is_about(&self, about: About) -> bool {
        self.of_all.as_ref().is_some_and(|(reported, _)| reported.about == about)
    }

    pub(super) fn report(&mut self, problem: Problem) {
        // The records of a transaction that can't be committed are in flight: the reason is the transaction's.
        let is_explained =
            problem.about == About::Stall && self.shared.outages.is(OutageOf::Transactions);
        if !is_explained && is_news(self.of_all.as_ref(), &problem) {
            self.shared.outages.begins(OutageOf::Brokers);
            let Problem { about: _, reason, hint } = problem.clone();
            self.shared.mailbox.post(Post::Down { reason, hint, topic: None, missing: false });
            self.of_all = Some((problem, Instant::now()));
        }
    }

    /// `missing`: the topic was never known.
    pub(super) fn report_topic(&mut self, topic: String, problem: Problem, missing: bool) {
        if is_news(self.of_topics.get(&topic), &problem) {
            let Problem { about: _, reason, hint } = problem.clone();
            let about = Some(topic.clone());
            self.shared.mailbox.post(Post::Down { reason, hint, topic: about, missing });
            if self.of_topics.len() == TOPICS_MAX {
                self.of_topics.clear();
            }
            self.of_topics.insert(topic, (problem, Instant::now()));
        }
    }

    /// A problem of this kind is over, if one was reported.
    pub(super) fn over(&mut self, about: About) {
        if self.is_about(about) {
            self.of_all = None;
            if self.shared.outages.ends(OutageOf::Brokers) {
                self.shared.mailbox.post(Post::Up { topic: None });
            }
        }
    }

    /// The topic is known now.
    pub(super) fn topic_resolved(&mut self, topic: String) {
        if self.of_topics.remove(&topic).is_some() {
            self.shared.mailbox.post(Post::Up { topic: Some(topic) });
        }
    }
}

/// Whether a problem is reported (again). The hint identifies the problem; the reason may contain times that change
/// with every attempt.
fn is_news(reported: Option<&(Problem, Instant)>, problem: &Problem) -> bool {
    reported.is_none_or(|(reported, at)| {
        (reported.about, &reported.hint) != (problem.about, &problem.hint) || at.elapsed() >= REPEAT
    })
}

// Bootstrap again: librdkafka is given the brokers' addresses again after it has dropped all of them.
//
// A cluster whose brokers are all fenced (they missed their heartbeats, or have just started) keeps answering, and
// lists no broker in its metadata. Since 2.10 librdkafka drops all brokers that are not listed, and schedules a new
// start from `bootstrap.servers`; if the same answer cancels that, it never asks any broker again (its issue 5301,
// open; seen with 2.12.1: `kafka_outages::brokers_that_name_none_for_a_moment_are_found_again`). From outside this
// state can't be distinguished from brokers that are down, so the addresses are added whenever no broker answers: if
// the brokers are known, that has no effect.

/// Pause after the addresses were added for the first time.
const PAUSE_MIN: Duration = Duration::from_secs(5);
/// The longest pause. librdkafka keeps the text of each call, and reads all of them when it starts anew: a day without
/// an answer adds 1,440.
const PAUSE_MAX: Duration = Duration::from_mins(1);

/// Decides when the brokers' addresses are added again.
pub(super) struct BootstrapAgain {
    brokers: CString,
    /// The next pause, and when this one ends.
    pause: Duration,
    not_before: Option<Instant>,
}

impl BootstrapAgain {
    /// `brokers` as in `sink.brokers`; a text with a NUL in it was refused before.
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

    /// Brokers answer: the next time that none does, the addresses are added at once.
    pub(super) fn over(&mut self) {
        self.pause = PAUSE_MIN;
        self.not_before = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use postrider_core::sink::Mailbox;

    const SECOND: Duration = Duration::from_secs(1);

    /// Updates every second; returns the seconds at which the producers were given up.
    fn given_up(stall: &mut AckStall, from: Instant, seconds: u32, explained: bool) -> Vec<u32> {
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
        let mut stall = AckStall::new(start);
        stall.look(7, true, start);
        let back = start + Duration::from_hours(1);
        assert!(stall.is_due(back));
        stall.no_answer();
        assert!(!stall.is_hopeless(false, back));
        assert!(!stall.is_hopeless(false, back + 59 * SECOND));
        stall.no_answer();
        assert!(!stall.is_hopeless(false, back + 120 * SECOND));
        assert!(stall.is_hopeless(false, back + 121 * SECOND));
    }

    #[test]
    fn each_time_without_help_is_followed_by_one_twice_as_long() {
        let mut stall = AckStall::new(Instant::now());
        let given_up = given_up(&mut stall, Instant::now(), 3_000, false);
        assert_eq!(given_up, [60, 180, 420, 900, 1500, 2100, 2700]);
    }

    #[test]
    fn what_the_topics_explain_is_waited_for() {
        let mut stall = AckStall::new(Instant::now());
        let now = Instant::now();
        stall.look(7, true, now);
        assert!(!stall.is_hopeless(true, now));
        assert_eq!(given_up(&mut stall, now, 1_300, false), [600, 1200]);
    }

    #[test]
    fn what_has_just_begun_to_fly_is_no_stall() {
        let start = Instant::now();
        let mut stall = AckStall::new(start);
        stall.look(0, false, start);
        let later = start + 2 * STALL;
        stall.look(0, true, later);
        assert!(!stall.is_due(later));
        stall.look(0, true, later + STALL);
        assert!(stall.is_due(later + STALL));
    }

    /// The pipeline shows one outage: an end of one of two would look like the end of both until the other one is
    /// reported again.
    #[test]
    fn end_of_an_outage_is_reported_when_no_other_one_lasts() {
        let mailbox = Mailbox::default();
        let shared = Arc::new(Shared::new(mailbox.clone()));
        let mut problems = ReportedProblems::new(Arc::clone(&shared));
        let posted = || {
            let mut posts = Vec::new();
            mailbox.take(&mut posts);
            let names = posts.iter().map(|post| {
                if matches!(post, Post::Down { .. }) {
                    return "down";
                }
                assert!(matches!(post, Post::Up { .. }), "{post:?}");
                "up"
            });
            names.collect::<Vec<_>>()
        };
        problems.report(of_broker("localhost:9092", None));
        shared.outages.begins(OutageOf::Transactions);
        problems.over(About::Broker);
        assert_eq!(posted(), ["down"]);
        // The records in flight are those of the transaction.
        problems.report(of_stall(STALL));
        problems.over(About::Stall);
        assert!(posted().is_empty());
        problems.report(of_broker("localhost:9092", None));
        assert!(!shared.outages.ends(OutageOf::Transactions), "no broker answers");
        problems.over(About::Broker);
        assert_eq!(posted(), ["down", "up"]);
    }

    /// Polling claims nothing while a stall is reported: without an acknowledgement it would never be over.
    #[test]
    fn a_stall_is_over_when_nothing_is_in_flight_for_a_while() {
        let start = Instant::now();
        let mut stall = AckStall::new(start);
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
