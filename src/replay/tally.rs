//! What a replay has done so far, for whoever watches it and for its last word.

use crate::event::Position;
use crate::lsn::Lsn;
use std::collections::BTreeMap;
use std::time::Duration;

/// Events that were not published which are told one by one.
const REFUSED_MAX: usize = 20;

/// Topics that are counted one by one.
const TOPICS_MAX: usize = 1000;

/// Counts, without payloads or keys.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Tally {
    /// Events handed to the sink in this run; in a dry run, events that would be.
    pub sent: u64,
    /// Events that the broker has acknowledged, with those of earlier runs.
    pub published: u64,
    /// Changes of the source that were not asked for.
    pub passed: u64,
    /// Bytes of keys, values and headers of what was sent.
    pub bytes: u64,
    /// Events that were asked for and not published, with those of earlier runs.
    pub refused: u64,
    /// The first of them in this run.
    pub refusals: Vec<Refused>,
    /// The first event that was sent: its position, or of the table its id.
    pub first: Option<String>,
    /// Events sent by topic.
    pub topics: BTreeMap<String, u64>,
    /// Transactions that had begun before the position that was asked for, and committed behind it.
    pub straddling: u64,
    last: Last,
}

#[derive(Clone, PartialEq, Eq, Debug, Default)]
enum Last {
    #[default]
    None,
    At(Position),
    Id(String),
}

/// An event that was asked for and not published.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Refused {
    /// Its position, or of the table its id.
    pub event: String,
    /// Why.
    pub why: String,
}

impl Tally {
    /// With what earlier runs of the replay have done.
    pub(super) fn going_on(published: u64, refused: u64) -> Self {
        Self { published, refused, ..Self::default() }
    }

    /// One event was sent.
    pub(super) fn sent(&mut self, at: Option<Position>, id: &str, topic: &str, bytes: usize) {
        self.sent += 1;
        self.bytes += u64::try_from(bytes).unwrap_or(0);
        match (at, &mut self.last) {
            (Some(at), last) => *last = Last::At(at),
            (None, Last::Id(last)) => id.clone_into(last),
            (None, last) => *last = Last::Id(id.to_owned()),
        }
        if self.first.is_none() {
            self.first = self.last();
        }
        if let Some(count) = self.topics.get_mut(topic) {
            *count += 1;
        } else if self.topics.len() < TOPICS_MAX {
            self.topics.insert(topic.to_owned(), 1);
        }
    }

    /// The last event that was sent, as [`Tally::first`].
    pub fn last(&self) -> Option<String> {
        match &self.last {
            Last::None => None,
            Last::At(at) => Some(at.to_string()),
            Last::Id(id) => Some(id.clone()),
        }
    }

    /// One event can't be published.
    pub(super) fn refuse(&mut self, event: String, why: String) {
        self.refused += 1;
        if self.refusals.len() < REFUSED_MAX {
            self.refusals.push(Refused { event, why });
        }
    }
}

/// How it stands, a few times a second.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Moment<'a> {
    /// What was done.
    pub tally: &'a Tally,
    /// Since this run began.
    pub elapsed: Duration,
    /// Of the log: where it began, how far it is read, and its end.
    pub log: Option<(Lsn, Lsn, Lsn)>,
    /// Events on their way to the broker.
    pub in_flight: usize,
}

/// What a replay has to say while it runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Tell<'a> {
    /// How it stands.
    Progress(Moment<'a>),
    /// The broker can't be reached, or takes nothing: what, and what mends it. It waits.
    Down(&'a str, Option<&'a str>),
    /// That is over.
    Up,
}
