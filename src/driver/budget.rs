//! The WAL budget (`source.wal_retain_max`): how much of the database's disk the slot may hold back.
//!
//! Decides from what a look saw, and does nothing itself. Whoever has to be warned, halted or polled for is the
//! session's to say.

use super::pipeline::Pipeline;
use super::say;
use crate::error::{Halt, HaltReason};
use crate::postgres::names::literal;

/// What a slot that was past the budget already when the process started may grow by, while it catches up: this part of
/// the budget. Without it no backlog could ever be drained by starting again.
const GROWTH_PART: u64 = 4;

/// Where a slot stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Standing {
    /// Below half.
    Well,
    /// A person should look.
    Half,
    /// It may not go on so.
    Past,
}

/// The budget of one process.
#[derive(Clone, Copy, Debug)]
pub(super) struct Budget {
    max: u64,
    /// What counts as past it: more than `max` while a backlog from before the start is drained. Unknown before the
    /// first look.
    limit: Option<u64>,
    /// No backlog is drained past it: there is another way to publish it.
    strict: bool,
}

impl Budget {
    /// `max` in bytes; `strict` where the table can be polled instead.
    pub(super) const fn new(max: u64, strict: bool) -> Self {
        Self { max, limit: None, strict }
    }

    /// Judges what the slot holds back now. Unit: bytes.
    pub(super) fn judge(&mut self, retained: u64) -> Standing {
        let drains = retained > self.max && !self.strict;
        let catching_up =
            if drains { retained.saturating_add(self.max / GROWTH_PART) } else { self.max };
        let limit = self.limit.unwrap_or(u64::MAX).min(catching_up).max(self.max);
        self.limit = Some(limit);
        match retained {
            _ if retained > limit => Standing::Past,
            _ if retained > self.max / 2 => Standing::Half,
            _ => Standing::Well,
        }
    }
}

impl Pipeline {
    /// Speaks of what the slot holds back; the halt where it is past the budget.
    pub(super) fn spend(&mut self, retained: u64) -> Option<Halt> {
        let budget = self.budget.as_mut()?;
        let max = budget.max;
        match budget.judge(retained) {
            Standing::Well => say::wal_budget_ok(self, retained),
            Standing::Half => say::wal_budget_half(self, retained, max),
            Standing::Past => return Some(past(self, retained, max)),
        }
        None
    }
}

fn past(pipeline: &Pipeline, retained: u64, max: u64) -> Halt {
    let names = &pipeline.spec.names;
    let (slot, name) = (&names.slot, &names.pipeline);
    let message = format!(
        "slot {slot:?} retains {} MiB of WAL, source.wal_retain_max is {} MiB",
        retained.div_ceil(1 << 20),
        max >> 20
    );
    if pipeline.spec.polls_in_its_stead() {
        return Halt {
            reason: HaltReason::WalBudget,
            message,
            meaning: "nothing is lost: the slot is dropped, and what is not published is taken from the table".into(),
            hint: "fix what delays the pipeline (see postrider status); a new slot is made automatically".into(),
        };
    }
    Halt {
        reason: HaltReason::WalBudget,
        message,
        meaning: "nothing is lost yet: the slot keeps what is not published, and retains more WAL with all that the \
                  database writes"
            .into(),
        hint: format!(
            "fix what delays the pipeline and start again: it drains the backlog as long as that does not grow by a \
             {GROWTH_PART}th of the budget; or raise source.wal_retain_max; or, before the disk is full, drop the \
             slot: postrider repair -p {name} --from-table --dry-run (it counts the rows to publish from the table, \
             and the ids that have no row: those events are lost with the slot); then SELECT \
             pg_drop_replication_slot({}); then fix what holds the pipeline up; then postrider repair -p {name} (it \
             publishes them and begins a new slot)",
            literal(slot)
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 100 bytes, half of it, and so on.
    fn judged(strict: bool, looks: &[u64]) -> String {
        let mut budget = Budget::new(100, strict);
        let judge = |retained: &u64| match budget.judge(*retained) {
            Standing::Well => 'w',
            Standing::Half => 'h',
            Standing::Past => 'P',
        };
        looks.iter().map(judge).collect()
    }

    #[test]
    fn half_is_told_and_all_of_it_is_past() {
        for strict in [false, true] {
            assert_eq!(judged(strict, &[0, 50, 51, 100, 40, 101]), "wwhhwP");
        }
    }

    #[test]
    fn backlog_from_before_the_start_may_be_drained_but_not_grow() {
        assert_eq!(judged(false, &[300, 325, 310, 200, 225]), "hhhhh");
        assert_eq!(judged(false, &[300, 326]), "hP");
        assert_eq!(judged(false, &[300, 200, 226]), "hhP");
        assert_eq!(judged(false, &[300, 90, 116]), "hhP");
        assert_eq!(judged(false, &[300, 60, 101]), "hhP");
    }

    #[test]
    fn where_the_table_is_polled_instead_no_backlog_is_waited_for() {
        assert_eq!(judged(true, &[300]), "P");
        assert_eq!(judged(true, &[60, 101]), "hP");
    }
}
