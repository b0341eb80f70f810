//! Streams that are looked up: whether they exist, and whether the login may add to them.

use super::link::{RedisCall, RedisLink};
use super::problem::RedisProblem;
use super::rejected_streams::RejectedStreams;
use super::resp;
use super::spec::RedisSpec;
use crate::destinations::DESTINATIONS_MAX;
use crate::send_queue::SendQueue;
use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

/// Streams that are looked up at once.
const LOOKS_MAX: usize = 16;

/// The state of all look-ups.
#[derive(Default)]
pub(super) struct Looks {
    wanted: VecDeque<String>,
    /// Sent, and not answered.
    open: BTreeSet<String>,
    /// The login may not add to these; the second answer is not used.
    refused: BTreeSet<String>,
    /// Streams that have accepted records, or have existed.
    known: BTreeSet<String>,
    /// Streams of which a problem is reported.
    down: BTreeSet<String>,
    rejected: RejectedStreams,
}

impl Looks {
    /// A stream is to be looked up.
    pub(super) fn want(&mut self, topic: String) {
        if !self.open.contains(&topic) && !self.wanted.contains(&topic) {
            self.wanted.push_back(topic);
        }
    }

    /// What was in flight is asked again.
    pub(super) fn disconnected(&mut self) {
        self.wanted.extend(std::mem::take(&mut self.open));
        self.refused.clear();
    }

    /// Sends look-ups, two commands each. Returns a slot that no node has.
    pub(super) fn send(
        &mut self,
        link: &mut RedisLink,
        spec: &RedisSpec,
        slot_of: impl Fn(&str) -> u16,
    ) -> Option<u16> {
        while self.open.len() < LOOKS_MAX {
            let topic = self.wanted.pop_front()?;
            let slot = slot_of(&topic);
            let Some(mut calls) = link.line(slot, spec.timeout) else {
                // Behind the others: those of another slot may be answered.
                self.wanted.push_back(topic);
                return Some(slot);
            };
            // No entry can have this ID. Rights and the state of the server are checked before that.
            let add: [&[u8]; 6] = [b"XADD", topic.as_bytes(), b"NOMKSTREAM", b"0-0", b"a", b"b"];
            resp::command(calls.out, &add);
            calls.sent(RedisCall::MayAdd { topic: topic.clone() }, Duration::ZERO);
            resp::command(calls.out, &[b"TYPE", topic.as_bytes()]);
            calls.sent(RedisCall::Exists { topic: topic.clone() }, Duration::ZERO);
            self.open.insert(topic);
        }
        None
    }

    /// The login may not add to the stream, or may not read its type.
    pub(super) fn refused(&mut self, queue: &SendQueue<()>, topic: String, problem: &RedisProblem) {
        let reason = format!("stream {topic:?}: {}", problem.reason);
        self.report(queue, &topic, reason, problem.hint.clone());
        self.refused.insert(topic);
    }

    /// Nothing but the type of the key can keep the stream from accepting events.
    pub(super) fn may_add(&mut self, topic: &str) {
        self.refused.remove(topic);
    }

    /// The type of the key is known.
    pub(super) fn found(
        &mut self,
        queue: &SendQueue<()>,
        topic: &str,
        kind: &str,
        spec: &RedisSpec,
    ) {
        self.open.remove(topic);
        if self.refused.remove(topic) {
            return;
        }
        let unusable = match kind {
            "stream" => self.rejected.why_closed(topic),
            other => why_unusable(topic, other, spec),
        };
        match unusable {
            Some((reason, hint)) => self.report(queue, topic, reason, hint),
            None => self.opened(queue, topic),
        }
    }

    fn opened(&mut self, queue: &SendQueue<()>, topic: &str) {
        self.remember(topic);
        let was_down = self.down.remove(topic);
        queue.opened(topic, (), was_down);
    }

    /// The stream has accepted events, or exists.
    fn remember(&mut self, topic: &str) {
        if self.known.len() >= DESTINATIONS_MAX && !self.known.contains(topic) {
            self.known.pop_first();
        }
        self.known.insert(topic.to_owned());
    }

    fn report(&mut self, queue: &SendQueue<()>, topic: &str, reason: String, hint: Option<String>) {
        self.closed(topic);
        queue.unavailable(topic, !self.known.contains(topic), reason, hint);
    }

    /// The stream has refused an event.
    pub(super) fn rejected(
        &mut self,
        queue: &SendQueue<()>,
        topic: &str,
        reason: String,
        hint: Option<String>,
    ) {
        self.rejected.rejected(topic, &reason, hint.as_ref());
        self.remember(topic);
        self.report(queue, topic, reason, hint);
    }

    /// Whether streams have refused events.
    pub(super) fn has_rejected(&self) -> bool {
        !self.rejected.is_empty()
    }

    /// The stream has accepted an event.
    pub(super) fn accepted(&mut self, topic: &str) {
        self.rejected.accepted(topic);
    }

    /// A problem of the stream is reported.
    fn closed(&mut self, topic: &str) {
        if self.down.len() < DESTINATIONS_MAX {
            self.down.insert(topic.to_owned());
        }
    }
}

/// Why a key of this type accepts no events, with a hint; `None` if it does.
pub(super) fn why_unusable(
    topic: &str,
    kind: &str,
    spec: &RedisSpec,
) -> Option<(String, Option<String>)> {
    let (reason, hint) = match kind {
        "stream" => return None,
        "none" if spec.storing.creates => return None,
        "none" => (format!("stream {topic:?} does not exist"), create(topic)),
        other => (
            format!("key {topic:?} has type {other}, and is no stream"),
            "rename or delete the key, or fix route.topic".to_owned(),
        ),
    };
    Some((reason, Some(hint)))
}

/// How a stream is created without an event.
fn create(topic: &str) -> String {
    format!("create it: {}; the sink continues automatically", create_command(topic))
}

/// The command that creates a stream.
pub(super) fn create_command(topic: &str) -> String {
    let word = postrider_core::finding::shell_word(topic);
    format!("redis-cli XGROUP CREATE {word} CONSUMERS 0 MKSTREAM")
}
