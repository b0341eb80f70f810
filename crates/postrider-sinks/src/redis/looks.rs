//! Streams that are looked up: whether they exist, and whether the login may add to them.

use super::link::{RedisCall, RedisLink};
use super::problem::RedisProblem;
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

    /// Sends look-ups, two commands each.
    pub(super) fn send(
        &mut self,
        link: &mut RedisLink,
        spec: &RedisSpec,
        slot: impl Fn(&str) -> u16,
    ) {
        while self.open.len() < LOOKS_MAX {
            let Some(topic) = self.wanted.pop_front() else { return };
            let Some(mut calls) = link.line(slot(&topic), spec.timeout) else {
                self.wanted.push_front(topic);
                return;
            };
            // No entry can have this ID. Rights and the state of the server are checked before that.
            let add: [&[u8]; 6] = [b"XADD", topic.as_bytes(), b"NOMKSTREAM", b"0-0", b"a", b"b"];
            resp::command(calls.out, &add);
            calls.sent(RedisCall::MayAdd { topic: topic.clone() }, Duration::ZERO);
            resp::command(calls.out, &[b"TYPE", topic.as_bytes()]);
            calls.sent(RedisCall::Exists { topic: topic.clone() }, Duration::ZERO);
            self.open.insert(topic);
        }
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
        match kind {
            "stream" => self.opened(queue, topic),
            "none" if spec.storing.creates => self.opened(queue, topic),
            "none" => {
                let reason = format!("stream {topic:?} does not exist");
                self.report(queue, topic, reason, Some(create(topic)));
            }
            other => {
                let reason = format!("key {topic:?} has type {other}, and is no stream");
                let hint = "rename or delete the key, or fix route.topic";
                self.report(queue, topic, reason, Some(hint.to_owned()));
            }
        }
    }

    fn opened(&mut self, queue: &SendQueue<()>, topic: &str) {
        if self.known.len() >= DESTINATIONS_MAX {
            self.known.pop_first();
        }
        self.known.insert(topic.to_owned());
        let was_down = self.down.remove(topic);
        queue.opened(topic, (), was_down);
    }

    fn report(&mut self, queue: &SendQueue<()>, topic: &str, reason: String, hint: Option<String>) {
        self.closed(topic);
        queue.unavailable(topic, !self.known.contains(topic), reason, hint);
    }

    /// A problem of the stream is reported.
    pub(super) fn closed(&mut self, topic: &str) {
        if self.down.len() < DESTINATIONS_MAX {
            self.down.insert(topic.to_owned());
        }
    }
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
