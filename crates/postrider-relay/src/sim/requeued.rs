//! The fake of the queries for parked events whose rows are read from the table again (`store::requeue` of
//! `postrider-postgres`), with its rule for what an equal id proves (`docs/decisions/reused-ids.md`).

use super::outbox::{Outbox, OutboxRow};
use super::postgres::{ParkedTableRow, Server, is_of_claim, watermark};
use super::truth::Truth;
use crate::ack::bug::{Bug, injected};
use postrider_core::event::Position;
use postrider_core::outbox_rows::{CandidateRow, CandidateState, RequeueCandidate};
use std::collections::BTreeMap;

/// Whether the row was written by a later transaction than the one that wrote the row of the parked table last.
fn is_newer(parked: &ParkedTableRow, row: &OutboxRow) -> bool {
    row.xmin.wrapping_sub(parked.xmin).cast_signed() > 0
}

/// Whether the row was committed with the event, or before a claim found the event; `None` if the server does not keep
/// commit times.
fn is_committed_with(
    parked: &ParkedTableRow,
    at: Position,
    row: &OutboxRow,
    outbox: &Outbox,
) -> Option<bool> {
    let committed_with = if is_of_claim(at) {
        row.written_at <= parked.commit_time
    } else {
        row.written_at == parked.commit_time
    };
    outbox.rules.commit_times.then_some(committed_with)
}

/// Whether the row is certainly the event, provided that it is not certainly another one.
pub(super) fn is_the_same(
    parked: &ParkedTableRow,
    at: Position,
    row: &OutboxRow,
    outbox: &Outbox,
) -> bool {
    is_committed_with(parked, at, row, outbox) == Some(true) && !is_newer(parked, row)
}

/// Whether the row is certainly another event, or was written again since.
pub(super) fn is_another(
    parked: &ParkedTableRow,
    at: Position,
    row: &OutboxRow,
    (truth, outbox): (&Truth, &Outbox),
) -> bool {
    let aggregate = |event: usize| truth.events[event].aggregate;
    is_committed_with(parked, at, row, outbox) == Some(false)
        || is_newer(parked, row)
        || aggregate(parked.event) != aggregate(row.event)
        // The times of two events differ.
        || parked.event != row.event
}

/// Parked events that are on the list of a repair. `cursor`: the position of the cursor row, which stays where it is
/// until the repair has ended.
pub(super) fn listed(
    server: &Server,
    (outbox, truth, now): (&Outbox, &Truth, u64),
    (on_list, by_status): (&[u64], bool),
) -> Vec<RequeueCandidate> {
    let cursor = watermark(server.row);
    let precedes = |at: Position| {
        is_of_claim(at) && at.commit.get() >= cursor && !injected(Bug::ListedStaysBeforeClaimed)
    };
    let candidate = |(at, row): (&Position, &ParkedTableRow)| {
        let id = truth.rows[row.event].id;
        let counts = row.lane.is_some() && !row.state.resolved() || on_list.contains(&id);
        let once = row.is_decided() || by_status;
        let is_listed = |_: &OutboxRow| on_list.contains(&id);
        counts.then(|| RequeueCandidate {
            precedes: precedes(*at),
            ..found(row, *at, once, (outbox, truth, now), is_listed)
        })
    };
    server.table.iter().filter_map(candidate).collect()
}

/// Parked events whose rows polling will claim. `polls_on`: the cursor row is bound to a slot, and the table is polled.
pub(super) fn unpublished(
    server: &Server,
    (outbox, truth, now): (&Outbox, &Truth, u64),
    polls_on: bool,
) -> Vec<RequeueCandidate> {
    let keeps_failures = outbox.rules.keeps_failures;
    let row_at = watermark(server.row);
    let candidate = |(at, row): (&Position, &ParkedTableRow)| {
        let decided = polls_on && row.is_decided() && !injected(Bug::ForgetsDecided);
        let repeatable = at.commit.get() >= row_at || decided;
        let counts =
            (row.lane.is_some() || !keeps_failures) && (!row.state.resolved() || repeatable);
        counts.then(|| RequeueCandidate {
            precedes: is_of_claim(*at),
            ..found(row, *at, true, (outbox, truth, now), OutboxRow::is_unpublished)
        })
    };
    server.table.iter().filter_map(candidate).collect()
}

/// The parked event, with the row that has its id, meets `filter` and is not certainly another event. `once`: the event
/// must not be published a second time.
fn found(
    parked: &ParkedTableRow,
    position: Position,
    once: bool,
    (outbox, truth, now): (&Outbox, &Truth, u64),
    filter: impl Fn(&OutboxRow) -> bool,
) -> RequeueCandidate {
    let id = truth.rows[parked.event].id;
    let row = outbox.visible(now).find(|(of, _)| *of == id).map(|(_, row)| row);
    let row = row.filter(|row| filter(row) && !is_another(parked, position, row, (truth, outbox)));
    RequeueCandidate {
        event_id: id.to_string(),
        position,
        lane: parked.lane,
        blocks: parked.lane.is_some(),
        state: CandidateState::of(parked.state.resolved(), once),
        precedes: false,
        row: row.map(|row| CandidateRow {
            certain: is_the_same(parked, position, row, outbox),
            xmin: row.xmin,
        }),
    }
}

/// Whether the content of a claimed row equals that of the parked event at this position.
pub(super) fn is_alike(
    table: &BTreeMap<Position, ParkedTableRow>,
    before: Position,
    row: (usize, u32),
) -> bool {
    let parked = table.get(&before);
    parked.is_some_and(|parked| {
        !parked.state.resolved() && parked.version == 0 && (parked.event, parked.content) == row
    })
}
