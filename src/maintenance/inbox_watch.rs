//! What is new about an inbox from one reading to the next: messages that died, gaps, and its health. It decides what
//! is logged, and knows neither database nor log.

use crate::postgres::store::inbox_maintenance::{DeathMark, NewDeadMessage, WaitingGap};
use std::collections::{BTreeMap, BTreeSet};

/// A message that is read later than this after its death, because its transaction was open for so long, is counted and
/// not logged by its id. Unit: microseconds.
const LATE_MAX: i64 = 5 * 60 * 1_000_000;

/// Deaths that are remembered, so that a message is logged once.
const DEATHS_MAX: usize = 5000;

/// New deaths that one reading reads; further ones are read by the next reading.
const NEW_DEATHS_MAX: usize = 2000;

/// Gaps that are remembered, so that each is logged once.
pub(super) const GAPS_MAX: usize = 1000;

/// How an inbox is, by its own limits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum HealthChange {
    Healthy,
    Degraded,
    Critical,
}

impl HealthChange {
    /// Reads `health_status` of `inbox_health`.
    pub(super) fn of(text: &str) -> Self {
        match text {
            "healthy" => Self::Healthy,
            "degraded" => Self::Degraded,
            _ => Self::Critical,
        }
    }
}

/// What is known of an inbox.
#[derive(Debug)]
pub(super) struct InboxWatch {
    /// Deaths up to this one are not read again. `None` before the first reading.
    read_to: Option<DeathMark>,
    /// Deaths behind `read_to` that are known.
    deaths: BTreeSet<DeathMark>,
    /// The number of dead messages at the last reading.
    dead: Option<u64>,
    /// The gaps that are known: for each aggregate the missing numbers, from the first to the last.
    gaps: BTreeMap<String, (i64, i64)>,
    /// The health at the last reading.
    health: Option<HealthChange>,
    /// What was logged of the health, until its end is logged.
    reported: HealthChange,
}

/// Gaps that are new, and those that are closed.
#[derive(PartialEq, Eq, Debug, Default)]
pub(super) struct GapChanges {
    pub(super) opened: Vec<WaitingGap>,
    /// The missing numbers, from the first to the last.
    pub(super) closed: Vec<(i64, i64)>,
}

impl Default for InboxWatch {
    fn default() -> Self {
        Self {
            read_to: None,
            deaths: BTreeSet::new(),
            dead: None,
            gaps: BTreeMap::new(),
            health: None,
            reported: HealthChange::Healthy,
        }
    }
}

impl InboxWatch {
    /// From where on deaths are to be read, and how many at most. `now`: the server's clock at the first reading, in
    /// microseconds since 1970.
    pub(super) fn deaths_to_read(&mut self, now: i64) -> (DeathMark, usize) {
        let start = DeathMark { at: now.saturating_sub(LATE_MAX), seq: 0 };
        (*self.read_to.get_or_insert(start), self.deaths.len() + NEW_DEATHS_MAX)
    }

    /// Whether there was a reading.
    pub(super) const fn is_known(&self) -> bool {
        self.read_to.is_some()
    }

    /// Takes the deaths that were read, in their order, and returns those that are new; none at the first reading.
    pub(super) fn died(
        &mut self,
        read: Vec<NewDeadMessage>,
        is_first: bool,
    ) -> Vec<NewDeadMessage> {
        let mut new = Vec::new();
        for message in read {
            if self.deaths.insert(message.mark) && !is_first {
                new.push(message);
            }
        }
        // A transaction that commits late brings a death that lies before others.
        let newest = self.deaths.last().map_or(0, |mark| mark.at);
        while let Some(oldest) = self.deaths.first().copied() {
            if self.deaths.len() <= DEATHS_MAX && oldest.at >= newest.saturating_sub(LATE_MAX) {
                break;
            }
            self.deaths.remove(&oldest);
            self.read_to = Some(oldest);
        }
        new
    }

    /// Takes the number of dead messages. Returns by how much it has risen; at the first reading the number itself.
    pub(super) fn dead(&mut self, dead: u64) -> u64 {
        dead.saturating_sub(self.dead.replace(dead).unwrap_or(0))
    }

    /// Takes the gaps that were read, of `count` that exist. A gap from which numbers have come is still the same gap.
    pub(super) fn gaps(&mut self, read: Vec<WaitingGap>, count: u64) -> GapChanges {
        let mut changes = GapChanges::default();
        let are_all = u64::try_from(read.len()).is_ok_and(|read| read >= count);
        let mut now = BTreeMap::new();
        for gap in read {
            let numbers = (gap.missing_from, gap.missing_to);
            now.insert(gap.aggregate_id.clone(), numbers);
            match self.gaps.get(&gap.aggregate_id).copied() {
                Some((_, to)) if numbers.0 <= to => {}
                Some(before) => {
                    changes.closed.push(before);
                    changes.opened.push(gap);
                }
                None => changes.opened.push(gap),
            }
        }
        for (aggregate, numbers) in std::mem::take(&mut self.gaps) {
            if now.contains_key(&aggregate) {
                continue;
            }
            if are_all {
                changes.closed.push(numbers);
            } else if now.len() < 2 * GAPS_MAX {
                // It may be among those that were not read.
                now.insert(aggregate, numbers);
            }
        }
        self.gaps = now;
        changes
    }

    /// Takes the health. Returns what it is from now on, if that is to be logged: worse in two readings one after the
    /// other, or healthy again.
    pub(super) fn health(&mut self, now: HealthChange) -> Option<HealthChange> {
        let lasting =
            self.health.replace(now).map_or(HealthChange::Healthy, |before| before.min(now));
        let is_over = now == HealthChange::Healthy && self.reported != HealthChange::Healthy;
        (lasting > self.reported || is_over).then(|| {
            self.reported = lasting;
            lasting
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dead(at: i64, seq: i64) -> NewDeadMessage {
        NewDeadMessage { mark: DeathMark { at, seq }, id: format!("m-{seq}") }
    }

    fn gap(aggregate: &str, missing_from: i64, missing_to: i64) -> WaitingGap {
        WaitingGap {
            aggregate_id: aggregate.to_owned(),
            missing_from,
            missing_to,
            next_id: String::new(),
            waiting_seconds: 10,
        }
    }

    #[test]
    fn a_death_is_new_once_also_where_its_transaction_commits_late() {
        let mut watch = InboxWatch::default();
        let now = 1_000 * LATE_MAX;
        assert!(!watch.is_known());
        let (from, _) = watch.deaths_to_read(now);
        assert_eq!(from.at, now - LATE_MAX);
        assert_eq!(watch.died(vec![dead(now - 5, 1)], true), []);
        assert!(watch.is_known());
        assert_eq!(watch.deaths_to_read(now + 99).0, from, "the first reading decides");
        let both = || vec![dead(now - 5, 1), dead(now + 5, 2)];
        assert_eq!(watch.died(both(), false), [dead(now + 5, 2)]);
        assert_eq!(watch.died(both(), false), []);
        let late = vec![dead(now - 5, 1), dead(now + 4, 3), dead(now + 5, 2)];
        assert_eq!(watch.died(late, false), [dead(now + 4, 3)]);
        // The same message, which was replayed and has died again.
        assert_eq!(watch.died(vec![dead(now + 6, 2)], false), [dead(now + 6, 2)]);
        // Much later, only what is late by less than the limit is read again.
        let later = dead(now + LATE_MAX + 5, 4);
        assert_eq!(watch.died(vec![later.clone()], false), [later]);
        assert_eq!(watch.deaths_to_read(0).0, DeathMark { at: now + 4, seq: 3 });
    }

    #[test]
    fn any_number_of_deaths_is_read_in_parts_and_the_memory_is_bounded() {
        let all: Vec<NewDeadMessage> = (1..=20_000).map(|seq| dead(1, seq)).collect();
        let mut watch = InboxWatch::default();
        watch.died(Vec::new(), true);
        watch.read_to = Some(DeathMark::default());
        let mut new = 0;
        loop {
            let (from, max) = watch.deaths_to_read(0);
            let part = all.iter().filter(|message| message.mark > from).take(max);
            let found = watch.died(part.cloned().collect(), false).len();
            assert!(watch.deaths.len() <= DEATHS_MAX);
            new += found;
            if found == 0 {
                break;
            }
        }
        assert_eq!(new, all.len());
    }

    #[test]
    fn a_gap_is_new_once_and_over_when_its_last_number_has_come() {
        let mut watch = InboxWatch::default();
        let changes = watch.gaps(vec![gap("a", 2, 4), gap("b", 1, 1)], 2);
        assert_eq!((changes.opened.len(), changes.closed.len()), (2, 0));
        // Number 2 has come.
        assert_eq!(watch.gaps(vec![gap("a", 3, 4), gap("b", 1, 1)], 2), GapChanges::default());
        let changes = watch.gaps(vec![gap("a", 7, 7)], 1);
        assert_eq!(changes.opened, [gap("a", 7, 7)]);
        assert_eq!(changes.closed, [(3, 4), (1, 1)]);
        // With more gaps than are read, one that is not among them is not known to be closed.
        assert_eq!(watch.gaps(vec![gap("c", 1, 1)], 1001).closed, []);
        assert_eq!(watch.gaps(Vec::new(), 0).closed, [(7, 7), (1, 1)]);
    }

    #[test]
    fn health_is_reported_when_it_lasts_and_when_it_is_back() {
        use HealthChange::{Critical, Degraded, Healthy};
        let mut watch = InboxWatch::default();
        let reported: Vec<Option<HealthChange>> = [
            Degraded, Healthy, Critical, Degraded, Degraded, Critical, Critical, Degraded, Healthy,
            Degraded,
        ]
        .map(|health| watch.health(health))
        .into();
        let none = None;
        let expected = [
            none,
            none,
            none,
            Some(Degraded),
            none,
            none,
            Some(Critical),
            none,
            Some(Healthy),
            none,
        ];
        assert_eq!(reported, expected);
    }

    #[test]
    fn the_number_of_dead_messages_rises_from_the_first_reading_on() {
        let mut watch = InboxWatch::default();
        assert_eq!([3, 3, 1, 4].map(|dead| watch.dead(dead)), [3, 0, 0, 3]);
    }
}
