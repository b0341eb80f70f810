//! How the events that a claim parks are written: into the parked table, or as the failure of their row in the outbox
//! table.

use super::input::{ParkPlan, WrittenAs};
use super::open_claim::OpenClaim;
use crate::published::{ParkedRow, RequeuedEvents, RowOrigin};
use postrider_core::event::Position;
use postrider_core::parked::{Entry, State};
use std::collections::HashSet;

/// Rows of parked events are written to the parked table in the transaction of the claim, or become the failure of
/// their row if the outbox table has columns for that (`keeps`).
pub(super) fn plan(
    mut open: Option<&mut OpenClaim>,
    rows: &[ParkedRow<'_>],
    alike: &HashSet<Position>,
    keeps: bool,
    requeued: &mut RequeuedEvents,
) -> ParkPlan {
    let origin = |row: &ParkedRow<'_>| {
        let at = row.entry.position;
        let xmin = open.as_ref().map_or(0, |open| open.xmin(at));
        requeued.origin(row, xmin, alike.contains(&at))
    };
    let origins: Vec<RowOrigin> = rows.iter().map(origin).collect();
    let parted =
        origins.iter().any(|origin| matches!(origin, RowOrigin::Kept | RowOrigin::Doubted));
    // Some rows are not written: those that the outbox table keeps, and those that are parked already.
    let some = keeps || parted;
    let mut plan = ParkPlan { all_as_they_are: !some, ..ParkPlan::default() };
    if let Some(open) = open.as_deref_mut() {
        for (index, (row, origin)) in rows.iter().zip(origins).enumerate() {
            let found_now = origin == RowOrigin::Doubted && row.error_code.is_none();
            let entry = if origin == RowOrigin::Doubted {
                Entry { state: State::Dead, ..row.entry }
            } else {
                row.entry
            };
            if !open.parks((entry, row), origin, keeps) {
                continue;
            }
            let written = match origin {
                // The row of the parked event is moved to its new position. It is written only if it was deleted
                // meanwhile.
                RowOrigin::Requeued => {
                    plan.moves.extend(requeued.moves(row));
                    WrittenAs::Parked
                }
                RowOrigin::Doubted => {
                    requeued.keeps_beside(row);
                    WrittenAs::Undecided { entry, found_now }
                }
                RowOrigin::Kept => continue,
                RowOrigin::New => WrittenAs::Parked,
            };
            plan.rows.push((index, written));
        }
    }
    if keeps {
        plan.rows.extend(dead_letters(open.as_deref(), rows));
    }
    if plan.all_as_they_are {
        plan.rows = (0..rows.len()).map(|index| (index, WrittenAs::Parked)).collect();
    }
    let at = |(index, _): &(usize, WrittenAs)| rows.get(*index).map(|row| row.entry.position);
    let unread = |at: Position| Some((open.as_deref()?.unread_and_moved(at)?, at));
    plan.payloads = plan.rows.iter().filter_map(at).filter_map(unread).collect();
    plan
}

/// Of rows whose failure is kept in their table, those that are dead with this failure and go to the dead-letter topic.
/// They are written to the parked table too, in the same transaction as the failure, so that a crash does not lose the
/// dead letter. They block no aggregate.
fn dead_letters<'a>(
    open: Option<&'a OpenClaim>,
    rows: &'a [ParkedRow<'_>],
) -> impl Iterator<Item = (usize, WrittenAs)> + 'a {
    let dead_letter = move |(index, row): (usize, &ParkedRow<'_>)| {
        let fails = open.is_some_and(|open| open.keeps_failure_of(row.entry.position));
        let attempts = row.dies.filter(|_| fails)?;
        let entry = Entry { state: State::Dead, lane: None, attempts, ..row.entry };
        Some((index, WrittenAs::DeadLetter { entry }))
    };
    rows.iter().enumerate().filter_map(dead_letter)
}
