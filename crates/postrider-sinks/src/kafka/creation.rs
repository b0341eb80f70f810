//! Topics that are missing and may be made (`sink.create_topics`): which, how many a minute, and what came of it.

use super::Producer;
use super::native::{self, NotMade};
use super::trouble::{About, Trouble};
use crate::SinkError;
use crate::spec::CreateTopics;
use postrider_core::record::{has_empty_part, is_topic_name};
use rdkafka::types::RDKafkaErrorCode as Code;
use regex::Regex;
use std::collections::{BTreeMap, VecDeque};
use std::ffi::CString;
use std::time::{Duration, Instant};

/// Topics that are made in a minute. A field that has another value in each row must not fill the cluster with topics.
const A_MINUTE: usize = 60;

/// Before a topic that could not be made is tried again.
const PAUSE: Duration = Duration::from_secs(10);

/// Topics that could not be made and are remembered with the reason.
const FAILED_MAX: usize = 1_000;

/// What `sink.create_topics` says, compiled.
#[derive(Clone, Debug)]
pub(super) struct Wanted {
    pub(super) spec: CreateTopics,
    allow: Option<Regex>,
}

impl Wanted {
    pub(super) fn of(spec: &CreateTopics) -> Result<Self, SinkError> {
        let compile = |pattern: &str| Regex::new(&format!("^(?:{pattern})$"));
        let allow = spec.allow.as_deref().map(compile).transpose();
        Ok(Self { spec: spec.clone(), allow: allow.map_err(|_syntax| SinkError::AllowPattern)? })
    }

    /// Whether a topic of this name is made. One with an empty part is not: a field of its template was empty in a row.
    pub(super) fn allows(&self, topic: &str) -> bool {
        is_topic_name(topic.as_bytes())
            && !has_empty_part(topic)
            && self.allow.as_ref().is_none_or(|allow| allow.is_match(topic))
    }

    /// How a topic is made, for a reader.
    pub(super) fn words(&self) -> String {
        let count = |number: Option<u32>, what: &str| match number {
            Some(1) => format!("1 {what}"),
            Some(number) => format!("{number} {what}s"),
            None => format!("the broker's default of {what}s"),
        };
        let (partitions, replicas) = (
            count(self.spec.partitions, "partition"),
            count(self.spec.replication_factor, "replica"),
        );
        let config: Vec<_> =
            self.spec.config.iter().map(|(name, value)| format!("{name}={value}")).collect();
        let config =
            if config.is_empty() { String::new() } else { format!(", {}", config.join(", ")) };
        format!("{partitions}, {replicas}{config}")
    }
}

/// What came of the wish to make a topic.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Made {
    /// It is there now, by us or by somebody else at the same time.
    Yes,
    /// It is not to be made, or nothing says that topics are.
    No,
    /// It is to be made, and was not: why.
    Not(NotMade),
    /// Too many were made in the last minute.
    Later,
}

/// Makes topics.
#[derive(Debug)]
pub(super) struct Creation {
    wanted: Option<Wanted>,
    /// When the last ones were made.
    made_at: VecDeque<Instant>,
    failed: BTreeMap<String, (NotMade, Instant)>,
}

impl Creation {
    pub(super) const fn new(wanted: Option<Wanted>) -> Self {
        Self { wanted, made_at: VecDeque::new(), failed: BTreeMap::new() }
    }

    /// The topics that are known before the first event.
    pub(super) fn known(&self) -> Vec<String> {
        self.wanted.as_ref().map_or_else(Vec::new, |wanted| wanted.spec.known.clone())
    }

    /// Makes a topic that is missing, if it is to be made. Waits at most `timeout`.
    pub(super) fn make(&mut self, producer: &Producer, topic: &str, timeout: Duration) -> Made {
        let Some(wanted) = self.wanted.as_ref().filter(|wanted| wanted.allows(topic)) else {
            return Made::No;
        };
        let now = Instant::now();
        if let Some((why, at)) = self.failed.get(topic)
            && now.duration_since(*at) < PAUSE
        {
            return Made::Not(why.clone());
        }
        let minute = Duration::from_mins(1);
        while self.made_at.front().is_some_and(|at| now.duration_since(*at) >= minute) {
            self.made_at.pop_front();
        }
        if self.made_at.len() >= A_MINUTE {
            return Made::Later;
        }
        let Ok(name) = CString::new(topic) else { return Made::No };
        self.made_at.push_back(now);
        match native::create_topic(producer, &name, &wanted.spec, false, timeout) {
            Ok(()) => {
                tracing::info!(
                    target: "postrider::kafka", event = "topic_made", topic, settings = wanted.words(),
                    "made the topic, which did not exist (sink.create_topics)"
                );
                self.failed.remove(topic);
                Made::Yes
            }
            // Somebody else made it at the same time.
            Err(NotMade { code: Code::TopicAlreadyExists, .. }) => {
                self.failed.remove(topic);
                Made::Yes
            }
            Err(why) => {
                if self.failed.len() == FAILED_MAX {
                    self.failed.clear();
                }
                self.failed.insert(topic.to_owned(), (why.clone(), now));
                Made::Not(why)
            }
        }
    }
}

/// What is told of a topic that is to be made and was not.
pub(super) fn trouble(topic: &str, why: &NotMade, brokers: &str) -> Trouble {
    let denied =
        matches!(why.code, Code::TopicAuthorizationFailed | Code::ClusterAuthorizationFailed);
    let (reason, hint) = if denied {
        (
            format!("topic \"{topic}\" does not exist, and we may not create it"),
            format!(
                "kafka-acls.sh --bootstrap-server {brokers} --add --allow-principal User:NAME \
                 --operation Create --topic {topic}"
            ),
        )
    } else {
        let words = if why.words.is_empty() { why.code.to_string() } else { why.words.clone() };
        (
            format!("topic \"{topic}\" does not exist, and could not be made: {words}"),
            "check sink.create_topics, or make the topic by hand".to_owned(),
        )
    };
    Trouble { about: About::Topic, reason, hint: Some(hint) }
}

/// What is told of a topic whose turn has not come.
pub(super) fn too_many(topic: &str) -> Trouble {
    Trouble {
        about: About::Topic,
        reason: format!(
            "topic \"{topic}\" does not exist, and is made later: {A_MINUTE} were made in the last minute"
        ),
        hint: Some("see whether route.topic has a field with too many values".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted(allow: Option<&str>) -> Wanted {
        let spec = CreateTopics { allow: allow.map(str::to_owned), ..CreateTopics::default() };
        Wanted::of(&spec).unwrap()
    }

    #[test]
    fn names_are_made_that_are_whole_and_allowed() {
        for (allow, topic, made) in [
            (None, "orders", true),
            (None, "outbox.event.order", true),
            (None, "outbox.event.", false),
            (None, ".order", false),
            (None, "a..b", false),
            (None, "order ", false),
            (None, "", false),
            (Some(r"outbox\.event\..+"), "outbox.event.order", true),
            (Some(r"outbox\.event\..+"), "x.outbox.event.order", false),
            (Some("order|invoice"), "invoice", true),
            (Some("order|invoice"), "invoices", false),
        ] {
            assert_eq!(wanted(allow).allows(topic), made, "{allow:?} {topic:?}");
        }
        let spec = CreateTopics { allow: Some("(".to_owned()), ..CreateTopics::default() };
        assert!(matches!(Wanted::of(&spec), Err(SinkError::AllowPattern)));
    }

    #[test]
    fn settings_are_told_as_they_are_asked_for() {
        let mut wanted = wanted(None);
        assert_eq!(
            wanted.words(),
            "the broker's default of partitions, the broker's default of replicas"
        );
        wanted.spec.partitions = Some(8);
        wanted.spec.replication_factor = Some(1);
        wanted.spec.config.insert("retention.ms".to_owned(), "-1".to_owned());
        assert_eq!(wanted.words(), "8 partitions, 1 replica, retention.ms=-1");
    }
}
