//! Compares what arrived with what was committed.
//!
//! The WAL of the database shows what was committed and in which order; the writers' ledger shows the answers that they
//! got. Both must agree before the topic is compared with them.

use crate::reader::Read;
use crate::relays::Reads;
use crate::truth::Truth;
use crate::writer::{Entry, Outcome};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;

/// Findings of one kind that are listed.
const NAMED_MAX: usize = 200;

/// The result of a run.
#[derive(Default, PartialEq, Eq, Debug)]
pub(crate) struct Findings {
    pub(crate) committed: usize,
    pub(crate) rolled_back: usize,
    /// Events whose commit had no answer, and how many of them are in the WAL.
    pub(crate) unknown: usize,
    pub(crate) unknown_committed: usize,
    /// Records read, including repetitions.
    pub(crate) records: usize,
    pub(crate) duplicates: usize,
    /// Events that were committed and are in no record.
    pub(crate) lost: Vec<String>,
    /// Records of events that were rolled back or never written.
    pub(crate) invented: Vec<String>,
    /// Records with another payload, key or position than committed, and aggregates in two partitions.
    pub(crate) corrupted: Vec<String>,
    /// Events whose first record comes before that of an earlier event of the aggregate.
    pub(crate) swapped: Vec<String>,
    /// Repetitions that are not a suffix: of a process or a request that came too late (`docs/guarantees.md`, order).
    /// Consumers that skip positions below the highest one never see them. With the broker's time of the record that
    /// was repeated alone, in milliseconds since the Unix epoch.
    pub(crate) late: Vec<String>,
    /// Events swapped in a topic that was recreated a short time before: its partitions do not know the producer, and
    /// may accept a later request after they refused an earlier one (`docs/guarantees.md`, order).
    pub(crate) recreated: Vec<String>,
    /// The records of aggregates with swapped events, from a few before to some after: the event's place in its
    /// aggregate, its commit, the time of its row, and when the broker appended the record.
    pub(crate) around: Vec<String>,
    /// Differences between the ledger and the WAL: an error of the harness, or of the database.
    pub(crate) disagree: Vec<String>,
}

impl Findings {
    /// Whether nothing happened that must never happen.
    pub(crate) fn balanced(&self) -> bool {
        let never = [&self.lost, &self.invented, &self.corrupted, &self.swapped, &self.disagree];
        self.committed > 0 && never.iter().all(|found| found.is_empty())
    }
}

impl fmt::Display for Findings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "committed {}, records {}, duplicates {}",
            self.committed, self.records, self.duplicates
        )?;
        let kinds = [
            ("lost", &self.lost),
            ("invented", &self.invented),
            ("corrupted", &self.corrupted),
            ("swapped", &self.swapped),
            ("late", &self.late),
            ("swapped in a recreated topic", &self.recreated),
            ("disagree", &self.disagree),
        ];
        for (kind, found) in kinds {
            writeln!(
                f,
                "{kind} {}: {:?}",
                found.len(),
                found.iter().take(NAMED_MAX).collect::<Vec<_>>()
            )?;
        }
        for line in &self.around {
            writeln!(f, "  {line}")?;
        }
        Ok(())
    }
}

/// How long after a topic was recreated refused events may arrive in another order. Unit: milliseconds.
const RECREATED_MILLIS: i64 = 60_000;

/// Compares the records of all topics, in order of partition and offset, with what was committed. `recreated`: when the
/// side topic was recreated, in milliseconds since the Unix epoch.
pub(crate) fn check(
    entries: &[Entry],
    truth: &Truth,
    records: &[Read],
    (recreated, reads): (&[i64], Reads),
) -> Findings {
    let mut found = Findings { records: records.len(), ..Findings::default() };
    let written: HashMap<&str, &Entry> = entries.iter().map(|e| (e.id.as_str(), e)).collect();
    let committed = committed(entries, &written, truth, &mut found);
    let mut lanes: BTreeMap<&str, Vec<&Read>> = BTreeMap::new();
    let mut ordinals: HashMap<&str, u64> = HashMap::new();
    for record in records {
        let id = record.id.as_str();
        let (Some(entry), Some((commit_lsn, rank))) = (written.get(id), committed.get(id)) else {
            found.invented.push(record.id.clone());
            continue;
        };
        let lane = lanes.entry(entry.aggregate.as_str()).or_default();
        // A record that was read from the table has no position, and neither has a record of an event that was
        // overtaken.
        let is_overtaken = || lane.iter().any(|before| committed[before.id.as_str()].1 > *rank);
        let wrong_position = if record.position_missing() {
            reads == Reads::Stream && !is_overtaken()
        } else {
            record.commit_lsn != *commit_lsn
                || *ordinals.entry(id).or_insert(record.ordinal) != record.ordinal
        };
        let wrong = [
            ("payload", !record.intact || record.bytes != entry.bytes),
            ("key", record.key != entry.aggregate),
            ("position", wrong_position),
        ];
        for (what, _) in wrong.into_iter().filter(|(_, wrong)| *wrong) {
            found.corrupted.push(format!("{id}: {what}"));
        }
        if lane.last().is_some_and(|last| last.partition != record.partition) {
            found.corrupted.push(format!("{} in another partition", record.id));
        }
        lane.push(record);
    }
    let delivered: HashSet<&str> = records.iter().map(|record| record.id.as_str()).collect();
    let lost = committed.keys().filter(|id| !delivered.contains(*id));
    found.lost = lost.map(|id| (*id).to_owned()).collect();
    found.lost.sort_unstable();
    found.duplicates = records.len() - found.invented.len() - (committed.len() - found.lost.len());
    for (aggregate, lane) in lanes {
        let ranks: Vec<(usize, &Read)> =
            lane.iter().map(|record| (committed[record.id.as_str()].1, *record)).collect();
        let is_recreated = |at: i64| {
            recreated
                .iter()
                .any(|recreated| (*recreated..recreated + RECREATED_MILLIS).contains(&at))
        };
        let excused = |at: i64| aggregate.starts_with("side-") && is_recreated(at);
        let before = found.swapped.len();
        order(aggregate, &ranks, excused, &mut found);
        if found.swapped.len() > before {
            around(&ranks, truth, &mut found);
        }
    }
    found
}

/// For each event in the WAL: its transaction, and its rank in its aggregate.
fn committed<'a>(
    entries: &'a [Entry],
    written: &HashMap<&'a str, &'a Entry>,
    truth: &'a Truth,
    found: &mut Findings,
) -> HashMap<&'a str, (u64, usize)> {
    let mut ranks: HashMap<&str, usize> = HashMap::new();
    let mut committed = HashMap::new();
    for transaction in truth.transactions.values() {
        for id in &transaction.events {
            let Some(entry) = written.get(id.as_str()) else {
                found.disagree.push(format!("{id}: in the log, and nobody wrote it"));
                continue;
            };
            let rank = ranks.entry(entry.aggregate.as_str()).or_default();
            committed.insert(id.as_str(), (transaction.commit_lsn, *rank));
            *rank += 1;
        }
    }
    let mut last: HashMap<&str, (usize, &str)> = HashMap::new();
    for entry in entries {
        let place = committed.get(entry.id.as_str());
        match (entry.outcome, place) {
            (Outcome::Committed, None) => {
                found.disagree.push(format!("{}: committed, and not in the log", entry.id));
            }
            (Outcome::RolledBack, Some(_)) => {
                found.disagree.push(format!("{}: rolled back, and in the log", entry.id));
            }
            (Outcome::RolledBack, None) => found.rolled_back += 1,
            (Outcome::Unknown, place) => {
                found.unknown += 1;
                found.unknown_committed += usize::from(place.is_some());
            }
            (Outcome::Committed, Some(_)) => {}
        }
        // Only one writer writes to the aggregate, so its order is that of the WAL.
        if let Some((_, rank)) = place {
            let before = last.insert(entry.aggregate.as_str(), (*rank, entry.id.as_str()));
            if before.is_some_and(|(before, _)| before >= *rank) {
                found.disagree.push(format!("{}: the log has another order", entry.id));
            }
        }
    }
    found.committed = committed.len();
    committed
}

/// Checks the records of one aggregate, by rank of the event.
fn order(
    aggregate: &str,
    lane: &[(usize, &Read)],
    excused: impl Fn(i64) -> bool,
    found: &mut Findings,
) {
    // The first rank that has not arrived yet.
    let mut next = 0;
    let mut before: Option<(usize, &Read)> = None;
    for &(rank, record) in lane {
        let (id, after) = (&record.id, before.map_or("the start", |(_, before)| &before.id));
        let step = before.map_or(0, |(rank, _)| rank + 1);
        if rank > next {
            let swapped = format!("{aggregate}: {id} after {after}");
            let kind =
                if excused(record.appended) { &mut found.recreated } else { &mut found.swapped };
            kind.push(swapped);
        } else if let Some((_, cut)) = before.filter(|_| rank > step) {
            // A jump forward over ranks that had arrived already: the repetition before it was cut off.
            found.late.push(format!("{aggregate}: {id} after {after} of {}", cut.appended));
        }
        next = next.max(rank + 1);
        before = Some((rank, record));
    }
    if let Some((_, cut)) = before.filter(|(rank, _)| rank + 1 < next) {
        found.late.push(format!("{aggregate} ends with {} of {}", cut.id, cut.appended));
    }
}

/// The records around the first swap of an aggregate.
fn around(lane: &[(usize, &Read)], truth: &Truth, found: &mut Findings) {
    let mut next = 0;
    let swapped = lane.iter().position(|(rank, _)| {
        let swapped = *rank > next;
        next = next.max(rank + 1);
        swapped
    });
    let from = swapped.unwrap_or(0).saturating_sub(6);
    for (rank, record) in lane.iter().skip(from).take(30) {
        let Read { id, appended, commit_lsn, .. } = record;
        let created = truth.created.get(id).map_or("", String::as_str);
        let partition = record.partition;
        found.around.push(format!(
            "{id} rank {rank} created {created} position {commit_lsn:X} appended {appended} in {partition}"
        ));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::truth::Transaction;

    /// Committed are 1, 2 (unknown to its writer), 3 and 4; 5 was rolled back.
    fn found(delivered: &str) -> Findings {
        found_in("a", delivered, &[])
    }

    fn found_in(aggregate: &str, delivered: &str, recreated: &[i64]) -> Findings {
        let entry = |id: &str, outcome| Entry {
            id: id.to_owned(),
            aggregate: aggregate.to_owned(),
            bytes: 9,
            outcome,
        };
        let entries = [
            entry("1", Outcome::Committed),
            entry("2", Outcome::Unknown),
            entry("3", Outcome::Committed),
            entry("4", Outcome::Committed),
            entry("5", Outcome::RolledBack),
            entry("6", Outcome::Unknown),
        ];
        let mut truth = Truth::default();
        for (commit_lsn, events) in [(10, ["1", "2"]), (20, ["3", "4"])] {
            let events = events.iter().map(|event| (*event).to_owned()).collect();
            truth.transactions.insert(commit_lsn, Transaction { commit_lsn, events });
        }
        let records: Vec<Read> = delivered
            .split_whitespace()
            .map(|id| Read {
                id: id.trim_end_matches(['!', '?', '-']).to_owned(),
                key: aggregate.to_owned(),
                partition: 0,
                bytes: 9,
                intact: !id.ends_with('!'),
                commit_lsn: match id {
                    "1" | "2" | "2?" => 10,
                    _ if id.ends_with('-') => 0,
                    _ => 20,
                },
                ordinal: match id.chars().last() {
                    Some('?') => 1,
                    Some('-') => u64::MAX,
                    _ => 0,
                },
                appended: 0,
            })
            .collect();
        check(&entries, &truth, &records, (recreated, Reads::Stream))
    }

    #[test]
    fn suffixes_may_be_repeated() {
        for (delivered, duplicates) in
            [("1 2 3 4", 0), ("1 2 3 2 3 4", 2), ("1 1 2 3 4 1 2 3 4", 5)]
        {
            let found = found(delivered);
            assert!(found.balanced() && found.late.is_empty(), "{delivered}: {found}");
            assert_eq!(found.duplicates, duplicates, "{delivered}");
            assert_eq!((found.unknown, found.unknown_committed), (2, 1));
        }
    }

    #[test]
    fn lost_invented_corrupted_and_swapped_are_found() {
        assert_eq!(found("1 2 4").lost, ["3"]);
        assert_eq!(found("1 2 4").swapped, ["a: 4 after 2"]);
        assert_eq!(found("1 2 3 4 5").invented, ["5"]);
        assert_eq!(found("1 2 3 4 7").invented, ["7"]);
        assert_eq!(found("1 2 3! 4").corrupted, ["3: payload"]);
        assert_eq!(found("1 3 2 4").swapped, ["a: 3 after 1"]);
    }

    #[test]
    fn a_repetition_that_is_cut_off_is_late_and_nothing_worse() {
        for (delivered, late) in
            [("1 2 3 2 4", "a: 4 after 2 of 0"), ("1 2 3 4 3", "a ends with 3 of 0")]
        {
            let found = found(delivered);
            assert!(found.balanced());
            assert_eq!(found.late, [late]);
        }
    }

    #[test]
    fn order_is_excused_after_a_topic_was_recreated_and_a_loss_is_not() {
        let found = found_in("side-a", "1 3 2 3 4", &[-1_000]);
        assert!(found.balanced(), "{found}");
        assert_eq!(found.recreated, ["side-a: 3 after 1"]);
        assert_eq!(found_in("side-a", "1 3 4", &[-1_000]).lost, ["2"]);
        for (aggregate, at) in [("a", -1_000), ("side-a", -RECREATED_MILLIS), ("side-a", 1)] {
            assert_eq!(
                found_in(aggregate, "1 3 2 3 4", &[at]).swapped.len(),
                1,
                "{aggregate} {at}"
            );
        }
    }

    #[test]
    fn an_event_that_comes_with_another_position_is_corrupted() {
        assert_eq!(found("1 2 3 4 2? 3 4").corrupted, ["2: position"]);
    }

    #[test]
    fn only_an_event_that_was_overtaken_may_come_without_a_position() {
        assert_eq!(found("1 2 3 2- 3- 4").corrupted, ["3: position"]);
        assert!(found("1 2 3 4 2- 3- 4").balanced());
    }
}
