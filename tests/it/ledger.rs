//! What was committed, and what that asks of the delivered records.
//!
//! Only `Committed` is an obligation; `Unknown` (the connection died during COMMIT) may appear or not. A restart may
//! repeat a suffix of an aggregate (1 2 3, 2 3 4), never swap or skip (1 3 2).

use crate::await_that::{SOON, await_that};
use crate::topic::{Looker, ReadRecord, Topic};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::fmt;

/// What became of an event's transaction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Outcome {
    Committed,
    RolledBack,
    /// The connection ended between COMMIT and its answer.
    Unknown,
}

/// One event that was written.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Entry {
    /// The event's id, as in the header `id`.
    pub(crate) id: String,
    /// The aggregate's id, as in the key.
    pub(crate) aggregate: String,
    pub(crate) payload: String,
    pub(crate) outcome: Outcome,
}

/// Everything that was written. Entries of one aggregate stand in commit order: one writer has it for its own.
#[derive(Clone, Default, Debug)]
pub(crate) struct Ledger {
    pub(crate) entries: Vec<Entry>,
}

/// What the records show; at most a few of each kind are named when it is printed.
#[derive(Default, PartialEq, Eq, Debug)]
pub(crate) struct Findings {
    pub(crate) committed: usize,
    pub(crate) delivered: usize,
    /// Committed and not delivered.
    pub(crate) lost: Vec<String>,
    /// Delivered, though rolled back or never written.
    pub(crate) invented: Vec<String>,
    /// Delivered with another key or payload than written, or at two places of one transaction.
    pub(crate) corrupted: Vec<String>,
    /// Out of commit order in its aggregate: `aggregate: id after id`.
    pub(crate) swapped: Vec<String>,
    /// Those of `swapped` that were first delivered before an earlier event was. The others stand behind a repetition
    /// that another process cut off.
    pub(crate) early: Vec<String>,
    /// An aggregate whose last record is not its newest event: a repetition is cut off there, or under way.
    pub(crate) cut_off: Vec<String>,
    /// Deliveries beyond the first of each event.
    pub(crate) duplicates: usize,
}

impl Findings {
    /// Nothing lost, invented, corrupted or swapped. Duplicates are for the test to bound.
    pub(crate) fn balanced(&self) -> bool {
        let all = [&self.lost, &self.invented, &self.corrupted, &self.swapped, &self.cut_off];
        all.iter().all(|found| found.is_empty())
    }

    /// Fails with the findings unless balanced, with at most `duplicates_max` duplicates.
    pub(crate) fn assert_balanced(&self, duplicates_max: usize) {
        assert!(self.balanced() && self.duplicates <= duplicates_max, "{self}");
    }
}

impl fmt::Display for Findings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "committed {}, delivered {}", self.committed, self.delivered)?;
        let kinds = [
            ("lost", &self.lost),
            ("invented", &self.invented),
            ("corrupted", &self.corrupted),
            ("swapped", &self.swapped),
            ("early", &self.early),
            ("cut off", &self.cut_off),
        ];
        for (kind, found) in kinds {
            writeln!(f, "{kind} {}: {:?}", found.len(), found.iter().take(5).collect::<Vec<_>>())?;
        }
        write!(f, "duplicates {}", self.duplicates)
    }
}

impl Ledger {
    /// How many must be delivered.
    pub(crate) fn committed(&self) -> usize {
        self.entries.iter().filter(|entry| entry.outcome == Outcome::Committed).count()
    }

    /// Adds another writer's ledger, of other aggregates.
    pub(crate) fn absorb(&mut self, other: Self) {
        self.entries.extend(other.entries);
    }

    /// Waits until everything that was committed is in the topic. Reads it only when it holds more than before: a whole
    /// topic is much to read again and again.
    pub(crate) async fn arrived(&self, topic: &Topic) -> Findings {
        let (read, looker) = (Cell::new(0), Looker::default());
        await_that(&format!("every committed event in {}", topic.name), SOON, || async {
            let held = topic.held(&looker).await?;
            if held < self.committed() || held == read.get() {
                return Err(format!("{held} records for {} events", self.committed()));
            }
            read.set(held);
            let found = self.check(&topic.read_all().await);
            if found.lost.is_empty() && found.cut_off.is_empty() {
                Ok(found)
            } else {
                Err(found.to_string())
            }
        })
        .await
    }

    /// Compares with a topic, read in order of partition and offset; an aggregate lives in one partition.
    pub(crate) fn check(&self, records: &[ReadRecord]) -> Findings {
        let mut found = Findings {
            committed: self.committed(),
            delivered: records.len(),
            ..Findings::default()
        };
        // A sequence may give a number again that it gave to a transaction which a crash of the server undid.
        let mut known: BTreeMap<&str, usize> = BTreeMap::new();
        for (at, entry) in self.entries.iter().enumerate() {
            let stands = known.entry(entry.id.as_str()).or_insert(at);
            if entry.outcome == Outcome::Committed {
                *stands = at;
            }
        }
        let mut deliveries: BTreeMap<usize, usize> = BTreeMap::new();
        let mut lanes: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
        let mut places: BTreeMap<(usize, &str), &str> = BTreeMap::new();
        for record in records {
            let id = record.header("id").unwrap_or("a record without an id");
            let Some(&at) = known.get(id) else {
                found.invented.push(id.to_owned());
                continue;
            };
            let entry = &self.entries[at];
            if entry.outcome == Outcome::RolledBack {
                found.invented.push(id.to_owned());
                continue;
            }
            let as_written = record.value_text() == Some(entry.payload.as_str())
                && record.key_text() == Some(entry.aggregate.as_str());
            if !as_written {
                found.corrupted.push(id.to_owned());
            }
            let place = record.header("position").and_then(|position| position.rsplit_once('-'));
            if let Some((transaction, ordinal)) = place
                && *places.entry((at, transaction)).or_insert(ordinal) != ordinal
            {
                found.corrupted.push(format!("{id} at {transaction}-{ordinal} too"));
            }
            *deliveries.entry(at).or_default() += 1;
            lanes.entry(entry.aggregate.as_str()).or_default().push(at);
        }
        found.duplicates = deliveries.values().map(|times| times - 1).sum();
        found.lost = self
            .entries
            .iter()
            .enumerate()
            .filter(|(at, entry)| {
                entry.outcome == Outcome::Committed && !deliveries.contains_key(at)
            })
            .map(|(_, entry)| entry.id.clone())
            .collect();
        (found.swapped, found.early) = self.swaps(&lanes);
        for (aggregate, delivered) in &lanes {
            let (last, newest) = (delivered.last(), delivered.iter().max());
            if let (Some(&last), Some(&newest)) = (last, newest)
                && last < newest
            {
                let [last, newest] = [last, newest].map(|at| self.entries[at].id.as_str());
                found.cut_off.push(format!("{aggregate} ends with {last} after {newest}"));
            }
        }
        found
    }

    /// Each step of an aggregate goes to the next committed event, or back; an unknown one may be passed over. Returns
    /// the steps that do not, and those of them that lead to an event before an earlier one was delivered.
    fn swaps(&self, lanes: &BTreeMap<&str, Vec<usize>>) -> (Vec<String>, Vec<String>) {
        let mut written: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
        for (at, entry) in self.entries.iter().enumerate() {
            written.entry(entry.aggregate.as_str()).or_default().push(at);
        }
        let (mut swapped, mut early) = (Vec::new(), Vec::new());
        for (aggregate, delivered) in lanes {
            let order = &written[aggregate];
            let rank = |at: usize| order.binary_search(&at).expect("an entry of this aggregate");
            // The event behind the last step, and behind all steps so far.
            let (mut next, mut newest) = (0, 0);
            for (step, &at) in delivered.iter().enumerate() {
                let rank = rank(at);
                // A lost event is reported as lost and, behind it, as a skip.
                let skips = |from: usize| {
                    let skipped = order.get(from..rank).unwrap_or_default();
                    skipped.iter().any(|&at| self.entries[at].outcome == Outcome::Committed)
                };
                if skips(next) {
                    let before = step.checked_sub(1).map(|step| delivered[step]);
                    let before = before.map_or("the start", |at| self.entries[at].id.as_str());
                    let step = format!("{aggregate}: {} after {before}", self.entries[at].id);
                    if skips(newest) {
                        early.push(step.clone());
                    }
                    swapped.push(step);
                }
                next = rank + 1;
                newest = newest.max(next);
            }
        }
        (swapped, early)
    }
}
