//! What was read and the driver does not have yet.
//!
//! To be told costs the driver as much as several events, and so does each of its turns; a request to a broker costs as
//! much as dozens of records. So while much is coming, what little of it has come is kept back for a moment. Of a
//! backlog that is milliseconds: its events are late by seconds, and what is handed over together reaches a broker
//! together. Knows no clock and no socket.

use super::batch::Batch;
use super::queue::Queue;
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// The driver gets what there is at this age, or when it is this much.
const AGE: Duration = Duration::from_micros(400);
const BYTES: usize = 64 << 10;

/// The same for a backlog. The size holds what a walsender sends in that time (some 100 MB a second).
const BACKLOG_AGE: Duration = Duration::from_millis(4);
const BACKLOG_BYTES: usize = 512 << 10;

/// Batches in order.
#[derive(Default)]
pub(super) struct Held {
    batches: VecDeque<Batch>,
    bytes: usize,
    /// When the first of them was read.
    since: Option<Instant>,
    /// The queue has no room for the first of them.
    stuck: bool,
}

impl Held {
    /// One more, read at this time.
    pub(super) fn keep(&mut self, batch: Batch, read_at: Instant) {
        self.bytes += batch.size_bytes();
        self.since.get_or_insert(read_at);
        self.batches.push_back(batch);
    }

    /// Whether the driver gets it now, if nothing more comes before `next`.
    pub(super) fn is_ripe(&self, next: Instant, backlog: bool, queue: &Queue) -> bool {
        let (age, bytes) = if backlog { (BACKLOG_AGE, BACKLOG_BYTES) } else { (AGE, BYTES) };
        // Of a small queue not much more is read ahead than it may hold.
        self.bytes >= bytes.min(queue.bytes_max() / 4)
            || self.since.is_some_and(|since| next.duration_since(since) >= age)
    }

    /// Hands over as much as the queue has room for.
    pub(super) fn hand_over(&mut self, queue: &Queue) {
        let before = self.bytes;
        self.stuck = false;
        while let Some(batch) = self.batches.pop_front() {
            let bytes = batch.size_bytes();
            if let Err(batch) = queue.offer(batch) {
                self.batches.push_front(batch);
                self.stuck = true;
                break;
            }
            self.bytes -= bytes;
        }
        if !self.stuck {
            self.since = None;
        }
        if self.bytes < before {
            queue.announce();
        }
    }

    /// Whether the queue had no room when it was last asked: then nothing more is read.
    pub(super) fn is_stuck(&self) -> bool {
        self.stuck
    }

    /// It is not wanted any more.
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wal::batch::batch;

    const MILLISECOND: Duration = Duration::from_millis(1);

    fn large() -> Queue {
        Queue::new(8 << 20)
    }

    /// What the driver finds.
    fn found(queue: &Queue) -> Vec<usize> {
        std::iter::from_fn(|| queue.ready()).map(|batch| batch.size_bytes()).collect()
    }

    #[test]
    fn little_is_kept_back_for_a_moment_and_of_a_backlog_for_longer() {
        let (mut held, now) = (Held::default(), Instant::now());
        assert!(!held.is_ripe(now + 60 * MILLISECOND, false, &large()), "nothing is held");
        held.keep(batch(100), now);
        held.keep(batch(100), now + MILLISECOND / 5);
        assert!(!held.is_ripe(now + MILLISECOND / 5, false, &large()));
        assert!(
            held.is_ripe(now + MILLISECOND / 2, false, &large()),
            "the first has waited long enough"
        );
        assert!(!held.is_ripe(now + 3 * MILLISECOND, true, &large()));
        assert!(held.is_ripe(now + 4 * MILLISECOND, true, &large()));
    }

    #[test]
    fn much_is_not_kept_back() {
        let (mut held, now) = (Held::default(), Instant::now());
        held.keep(batch(64 << 10), now);
        assert!(held.is_ripe(now, false, &large()));
        assert!(!held.is_ripe(now, true, &large()));
        assert!(
            held.is_ripe(now, true, &Queue::new(256 << 10)),
            "a quarter of what may be read ahead"
        );
        held.keep(batch(448 << 10), now);
        assert!(held.is_ripe(now, true, &large()));
    }

    #[test]
    fn what_was_handed_over_leaves_no_age_behind() {
        let (mut held, queue, now) = (Held::default(), Queue::new(1 << 20), Instant::now());
        held.keep(batch(100), now);
        held.hand_over(&queue);
        assert_eq!(found(&queue), [100]);
        held.keep(batch(200), now + 9 * MILLISECOND);
        assert!(!held.is_ripe(now + 9 * MILLISECOND, true, &large()));
        assert!(!held.is_stuck());
    }

    #[test]
    fn a_full_queue_takes_what_it_has_room_for_and_the_rest_follows_in_order() {
        let (mut held, queue, now) = (Held::default(), Queue::new(250), Instant::now());
        for bytes in [100, 101, 102, 103] {
            held.keep(batch(bytes), now);
        }
        held.hand_over(&queue);
        assert!(held.is_stuck(), "nothing more is read");
        assert_eq!(found(&queue), [100, 101]);
        held.hand_over(&queue);
        assert_eq!(found(&queue), [102, 103]);
        assert!(!held.is_stuck());
        held.hand_over(&queue);
        assert!(found(&queue).is_empty());
    }
}
