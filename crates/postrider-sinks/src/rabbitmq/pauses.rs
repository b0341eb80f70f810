//! Routing keys whose messages are refused for now: a full queue refuses them, or no queue is bound.
//!
//! The records of such a key wait in the sink. After a pause one of them is sent, and its confirm ends the wait of all.

use super::window::WindowEntry;
use postrider_core::backoff::Backoff;
use std::collections::{HashMap, HashSet, VecDeque};
use std::time::{Duration, Instant};

/// The first pause before a message is sent again, and the longest.
const PAUSE_MIN: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(5);

#[derive(Debug)]
struct Pause {
    waiting: VecDeque<WindowEntry>,
    /// The record that is sent to find out.
    trying: Option<WindowEntry>,
    due: Instant,
    backoff: Backoff,
    /// Events of the stream wait here, not only parked ones.
    has_live: bool,
}

/// The pauses, by routing key.
#[derive(Debug, Default)]
pub(super) struct Pauses {
    by_key: HashMap<String, Pause>,
    /// Routing keys whose refusals are reported, until a queue has got a message. A lost connection ends the pauses and
    /// not these.
    reported: HashSet<String>,
}

impl Pauses {
    pub(super) fn is_empty(&self) -> bool {
        self.by_key.is_empty()
    }

    /// Whether events of the stream wait for a routing key, and not only parked ones.
    pub(super) fn has_live(&self, topic: &str) -> bool {
        self.by_key.get(topic).is_some_and(|pause| pause.has_live)
    }

    /// The refusals of a routing key are reported.
    pub(super) fn reports(&mut self, topic: &str) {
        if !self.reported.contains(topic) {
            self.reported.insert(topic.to_owned());
        }
    }

    /// Whether refusals of some routing key are reported.
    pub(super) fn has_reports(&self) -> bool {
        !self.reported.is_empty()
    }

    /// A queue has got a record: whether the reported refusals of its routing key are over. A record that was sent
    /// before the refused one says nothing of the queue.
    pub(super) fn ends_report(&mut self, topic: &str, entry: WindowEntry) -> bool {
        let pause = self.by_key.get(topic);
        pause.is_none_or(|pause| pause.trying == Some(entry)) && self.reported.remove(topic)
    }

    /// Keeps a record that is to be sent, if its routing key is paused. False: it may be sent.
    pub(super) fn keeps(&mut self, topic: &str, entry: WindowEntry, is_retry: bool) -> bool {
        let Some(pause) = self.by_key.get_mut(topic) else { return false };
        if pause.trying == Some(entry) {
            return false;
        }
        pause.waiting.push_back(entry);
        pause.has_live |= !is_retry;
        true
    }

    /// A message was refused: its record waits. Returns whether that is to be reported: for each attempt once.
    pub(super) fn refused(&mut self, topic: &str, entry: WindowEntry, is_retry: bool) -> bool {
        let is_new = !self.by_key.contains_key(topic);
        let pause = self.by_key.entry(topic.to_owned()).or_insert_with(|| Pause {
            waiting: VecDeque::new(),
            trying: None,
            due: Instant::now(),
            backoff: Backoff::new(PAUSE_MIN, PAUSE_MAX),
            has_live: false,
        });
        let was_tried = pause.trying == Some(entry);
        if was_tried {
            pause.trying = None;
        }
        if is_new || was_tried {
            pause.due = Instant::now() + pause.backoff.next(fastrand::f64());
        }
        pause.waiting.push_front(entry);
        pause.has_live |= !is_retry;
        is_new || was_tried
    }

    /// A record is given up that would have been tried again.
    pub(super) fn gave_up(&mut self, topic: &str, entry: WindowEntry) {
        let Some(pause) = self.by_key.get_mut(topic) else { return };
        pause.trying = pause.trying.filter(|trying| *trying != entry);
        if pause.waiting.is_empty() && pause.trying.is_none() {
            self.by_key.remove(topic);
        }
    }

    /// The records that are due to be sent, one for each routing key.
    pub(super) fn due(&mut self, now: Instant) -> Vec<WindowEntry> {
        let mut due = Vec::new();
        for pause in self.by_key.values_mut() {
            if pause.trying.is_none() && pause.due <= now {
                pause.trying = pause.waiting.pop_front();
                due.extend(pause.trying);
            }
        }
        due
    }

    /// When the next record is due.
    pub(super) fn next_due(&self) -> Option<Instant> {
        let waiting = self.by_key.values().filter(|pause| pause.trying.is_none());
        waiting.map(|pause| pause.due).min()
    }

    /// A message was published. If it was sent to find out, the records that waited may be sent; otherwise `None`.
    pub(super) fn published(
        &mut self,
        topic: &str,
        entry: WindowEntry,
    ) -> Option<VecDeque<WindowEntry>> {
        let pause = self.by_key.get(topic)?;
        if pause.trying != Some(entry) {
            return None;
        }
        self.by_key.remove(topic).map(|pause| pause.waiting)
    }

    /// The connection is lost: all records that wait may be sent.
    pub(super) fn end(&mut self) -> Vec<WindowEntry> {
        self.by_key.drain().flat_map(|(_, pause)| pause.waiting).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rabbitmq::window::Window;
    use crate::record_batch::RecordBatch;
    use postrider_core::record::{Record, Ticket};

    fn entries() -> (Window, Vec<WindowEntry>) {
        let (mut window, mut batch) = (Window::default(), RecordBatch::default());
        for (ticket, key) in [(1, "a"), (2, "b"), (3, "c")] {
            let key = Some(str::as_bytes(key));
            let record = Record {
                topic: "t",
                partition: None,
                key,
                value: None,
                timestamp_ms: None,
                headers: &[],
            };
            batch.push(Ticket(ticket), &record);
        }
        window.add(batch);
        let entries = std::iter::from_fn(|| window.next_ready()).collect();
        (window, entries)
    }

    #[test]
    fn one_record_of_a_paused_key_is_tried_at_a_time() {
        let (_window, entries) = entries();
        let mut pauses = Pauses::default();
        assert!(!pauses.keeps("t", entries[0], false));
        assert!(pauses.refused("t", entries[0], false), "reported");
        assert!(pauses.has_live("t") && !pauses.has_live("u"));
        assert!(!pauses.refused("t", entries[1], false), "reported once");
        assert!(pauses.keeps("t", entries[2], false) && !pauses.keeps("u", entries[2], false));
        let later = Instant::now() + PAUSE_MAX;
        let tried = pauses.due(later);
        assert_eq!(tried.len(), 1);
        assert!(pauses.due(later).is_empty() && pauses.next_due().is_none());
        assert!(!pauses.keeps("t", tried[0], false), "it may be sent");
        assert!(pauses.refused("t", tried[0], false), "reported again");
        let tried = pauses.due(later + PAUSE_MAX);
        pauses.reports("t");
        assert!(!pauses.ends_report("t", entries[2]), "it was sent before the pause");
        assert_eq!(pauses.published("t", entries[2]), None, "it was sent before the pause");
        assert!(pauses.has_reports() && pauses.ends_report("t", tried[0]));
        assert!(!pauses.has_reports());
        assert_eq!(pauses.published("t", tried[0]).map(|waiting| waiting.len()), Some(2));
        assert!(pauses.is_empty() && !pauses.has_live("t"));
    }

    #[test]
    fn pause_of_parked_events_alone_ends_with_the_last_one() {
        let (_window, entries) = entries();
        let mut pauses = Pauses::default();
        pauses.refused("t", entries[0], true);
        assert!(!pauses.has_live("t"));
        let tried = pauses.due(Instant::now() + PAUSE_MAX);
        pauses.gave_up("t", tried[0]);
        assert!(pauses.is_empty());
    }
}
