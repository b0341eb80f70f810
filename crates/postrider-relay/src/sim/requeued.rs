//! The fake of the queries for parked events whose rows are read from the table again (`store::requeue` of
//! `postrider-postgres`), with its rule for what an equal id proves (`docs/decisions/reused-ids.md`).

use super::outbox::{Outbox, OutboxRow};
use super::postgres::{ParkedTableRow, Server, is_of_claim, watermark};
use super::truth::Truth;
use crate::ack::bug::{Bug, injected};
use postrider_core::event::Position;
use postrider_core::outbox_rows::{RequeueDecision, RequeuedEvent};
use postrider_core::parked::Lane;
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

/// A parked event that may have a row in the table.
struct Candidate {
    position: Position,
    id: u64,
    lane: Option<Lane>,
    resolved: bool,
    once: bool,
}

/// Parked events that are on the list of a repair.
pub(super) fn listed(
    server: &Server,
    (outbox, truth, now): (&Outbox, &Truth, u64),
    (on_list, by_status): (&[u64], bool),
) -> Vec<RequeuedEvent> {
    let candidate = |(at, row): (&Position, &ParkedTableRow)| {
        let id = truth.rows[row.event].id;
        let resolved = row.state.resolved();
        let blocks = row.lane.is_some();
        (blocks && !resolved || on_list.contains(&id)).then(|| Candidate {
            position: *at,
            id,
            lane: row.lane,
            resolved,
            once: row.is_decided() || by_status,
        })
    };
    let candidates: Vec<Candidate> = server.table.iter().filter_map(candidate).collect();
    let rows = rows_of(server, (outbox, truth, now), &candidates, |id, _| on_list.contains(&id));
    decide(&candidates, &rows, !injected(Bug::ListedStaysBeforeClaimed))
}

/// Parked events whose rows polling will claim. `polls_on`: the cursor row is bound to a slot, and the table is polled.
pub(super) fn unpublished(
    server: &Server,
    (outbox, truth, now): (&Outbox, &Truth, u64),
    polls_on: bool,
) -> Vec<RequeuedEvent> {
    let keeps_failures = outbox.rules.keeps_failures;
    let row_at = watermark(server.row);
    let candidate = |(at, row): (&Position, &ParkedTableRow)| {
        let resolved = row.state.resolved();
        let decided = polls_on && row.is_decided() && !injected(Bug::ForgetsDecided);
        let repeatable = at.commit.get() >= row_at || decided;
        let counts = (row.lane.is_some() || !keeps_failures) && (!resolved || repeatable);
        counts.then(|| Candidate {
            position: *at,
            id: truth.rows[row.event].id,
            lane: row.lane,
            resolved,
            once: true,
        })
    };
    let candidates: Vec<Candidate> = server.table.iter().filter_map(candidate).collect();
    let is_row = |_, row: &OutboxRow| row.is_unpublished();
    let rows = rows_of(server, (outbox, truth, now), &candidates, is_row);
    decide(&candidates, &rows, true)
}

/// The rows that may be the candidates whose ids they have: whether each certainly is, and its transaction.
fn rows_of(
    server: &Server,
    (outbox, truth, now): (&Outbox, &Truth, u64),
    candidates: &[Candidate],
    filter: impl Fn(u64, &OutboxRow) -> bool,
) -> BTreeMap<Position, (bool, u32)> {
    let mut rows = BTreeMap::new();
    for Candidate { position, id, .. } in candidates {
        let parked = &server.table[position];
        let found = outbox.visible(now).find(|(of, _)| of == id).map(|(_, row)| row);
        let Some(row) = found.filter(|row| filter(*id, row)) else { continue };
        if !is_another(parked, *position, row, (truth, outbox)) {
            let certain = is_the_same(parked, *position, row, outbox);
            rows.insert(*position, (certain, row.xmin));
        }
    }
    rows
}

fn decide(
    candidates: &[Candidate],
    rows: &BTreeMap<Position, (bool, u32)>,
    claims_precede: bool,
) -> Vec<RequeuedEvent> {
    let mut last_that_stays: BTreeMap<Option<Lane>, Position> = BTreeMap::new();
    for candidate in candidates {
        let precedes = claims_precede && is_of_claim(candidate.position);
        let blocks = candidate.lane.is_some() && !candidate.resolved;
        if blocks && !precedes && !rows.contains_key(&candidate.position) {
            last_that_stays.insert(candidate.lane, candidate.position);
        }
    }
    let mut coming: BTreeMap<u64, RequeuedEvent> = BTreeMap::new();
    for candidate in candidates {
        let Some(&(certain, xmin)) = rows.get(&candidate.position) else { continue };
        let last = last_that_stays.get(&candidate.lane).filter(|_| candidate.lane.is_some());
        let stays = last.is_some_and(|last| candidate.position <= *last);
        let blocks = candidate.lane.is_some();
        let decision = match (candidate.resolved, certain) {
            (false, _) if blocks && !stays => RequeueDecision::Requeue { certain },
            (_, true) => RequeueDecision::MarkOnly,
            (false, false) => RequeueDecision::Undecided { kept: true },
            (true, false) if candidate.once => RequeueDecision::Undecided { kept: false },
            (true, false) => continue,
        };
        let event_id = candidate.id.to_string();
        let again = RequeuedEvent { event_id, position: candidate.position, decision, xmin };
        let rank = |again: &RequeuedEvent| {
            let rank = match again.decision {
                RequeueDecision::MarkOnly | RequeueDecision::Requeue { certain: true } => 3,
                RequeueDecision::Requeue { certain: false } => 2,
                RequeueDecision::Undecided { kept } => u8::from(kept),
            };
            (rank, again.position)
        };
        if coming.get(&candidate.id).is_none_or(|known| rank(known) < rank(&again)) {
            coming.insert(candidate.id, again);
        }
    }
    coming.into_values().collect()
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
