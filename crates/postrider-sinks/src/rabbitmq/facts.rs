//! What the worker has learned of the server, for the rules that judge records on the pipeline's thread.

use super::codec::FRAME_PAYLOAD_MAX;
use std::collections::HashSet;
use std::hash::{BuildHasher as _, RandomState};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Routing keys without a queue that are remembered. A message for a further one is sent, and returned.
const UNROUTABLE_MAX: usize = 10_000;

/// Routing keys that are remembered as those of a queue.
const ROUTED_MAX: usize = 100_000;

/// What the worker has learned, for the rules.
#[derive(Debug)]
pub(super) struct RabbitFacts {
    /// Routing keys for which no queue is bound.
    unroutable: Mutex<HashSet<String>>,
    /// Their number, to spare the lock.
    count: AtomicUsize,
    frame_max: AtomicUsize,
}

impl RabbitFacts {
    pub(super) fn new() -> Self {
        Self {
            unroutable: Mutex::default(),
            count: AtomicUsize::new(0),
            frame_max: AtomicUsize::new(FRAME_PAYLOAD_MAX),
        }
    }

    fn unroutable(&self) -> MutexGuard<'_, HashSet<String>> {
        self.unroutable.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether no queue is bound for a routing key, as far as is known.
    pub(super) fn is_unroutable(&self, topic: &str) -> bool {
        self.count.load(Ordering::Acquire) > 0 && self.unroutable().contains(topic)
    }

    /// No queue is bound for this routing key.
    pub(super) fn lacks_route(&self, topic: &str) {
        let mut unroutable = self.unroutable();
        if unroutable.len() >= UNROUTABLE_MAX
            && !unroutable.contains(topic)
            && let Some(other) = unroutable.iter().next().cloned()
        {
            // Of this one it is found out again.
            unroutable.remove(&other);
        }
        unroutable.insert(topic.to_owned());
        self.count.store(unroutable.len(), Ordering::Release);
    }

    /// A queue has got a message with this routing key. Returns whether none was bound before.
    pub(super) fn has_route(&self, topic: &str) -> bool {
        if self.count.load(Ordering::Acquire) == 0 {
            return false;
        }
        let mut unroutable = self.unroutable();
        let was = unroutable.remove(topic);
        self.count.store(unroutable.len(), Ordering::Release);
        was
    }

    pub(super) fn frame_max(&self) -> usize {
        self.frame_max.load(Ordering::Acquire)
    }

    /// The largest frame of the present connection.
    pub(super) fn set_frame_max(&self, bytes: usize) {
        self.frame_max.store(bytes, Ordering::Release);
    }
}

/// Routing keys with which a queue has got a message, as hashes.
#[derive(Debug, Default)]
pub(super) struct RoutedKeys {
    hashes: HashSet<u64>,
    hasher: RandomState,
}

impl RoutedKeys {
    pub(super) fn has(&self, topic: &str) -> bool {
        self.hashes.contains(&self.hasher.hash_one(topic))
    }

    pub(super) fn add(&mut self, topic: &str) {
        if self.hashes.len() >= ROUTED_MAX {
            self.hashes.clear();
        }
        self.hashes.insert(self.hasher.hash_one(topic));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn routing_keys_without_a_queue_are_remembered_until_one_gets_a_message() {
        let facts = RabbitFacts::new();
        assert!(!facts.is_unroutable("a") && !facts.has_route("a"));
        facts.lacks_route("a");
        assert!(facts.is_unroutable("a") && !facts.is_unroutable("b"));
        assert!(!facts.has_route("b") && facts.has_route("a") && !facts.has_route("a"));
        assert!(!facts.is_unroutable("a"));
    }
}
