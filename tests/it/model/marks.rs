//! Writes of the parked table: rows that stand, marks on rows, and what a start reads of it.

use super::agree;
use super::script::By::TheOwner;
use super::script::Step::{Ask, AtOnce, Overtaken, Park, Table};
use super::script::{Step, then, three_that_are_known};
use postrider::parked::{ParkedOutcome, Request, State};
use postrider::record::Refusal;
use std::time::Duration;

const KNOWN: usize = 4;

const fn refused(state: State, attempts: u32) -> ParkedOutcome {
    ParkedOutcome::Refused {
        state,
        attempts,
        wait: Duration::ZERO,
        reason: Refusal::destination("no such topic"),
    }
}

/// Both agree, and say `seen` after what makes the transactions known.
async fn agree_that(rest: &[Step], seen: &[&str]) {
    for lines in agree(&then(three_that_are_known(), rest)).await {
        assert_eq!(lines[KNOWN..], *seen);
    }
}

#[tokio::test]
async fn row_that_stands_stays_and_a_mark_on_none_changes_nothing() {
    const DEAD: &[(&str, ParkedOutcome)] = &[("a3", refused(State::Dead, 3))];
    let rest = [
        Park(&[("a1", State::Waiting), ("a2", State::Behind)], &[], TheOwner),
        Park(&[("a1", State::Behind)], DEAD, TheOwner),
        Table(None),
    ];
    let seen = [
        "a parking write: stored true",
        "a parking write: stored true",
        "the table:",
        "  a1 waiting, 1 refusals",
        "  a2 behind, 0 refusals",
    ];
    agree_that(&rest, &seen).await;
}

/// So the relay never asks for both at once, and the adapter would make it two statements.
#[tokio::test]
async fn marks_of_one_statement_do_not_see_its_rows() {
    let seen = ["a parking write: stored true", "the table:", "  a1 waiting, 1 refusals"];
    agree_that(&[AtOnce("a1"), Table(None)], &seen).await;
}

#[tokio::test]
async fn marks_change_what_they_name_in_order() {
    const ROWS: &[(&str, State)] =
        &[("a1", State::Waiting), ("a2", State::Behind), ("a3", State::Due), ("b1", State::Dead)];
    const MARKS: &[(&str, ParkedOutcome)] = &[
        ("a1", ParkedOutcome::Done),
        ("a2", refused(State::Waiting, 4)),
        ("a2", refused(State::Dead, 5)),
        ("b1", ParkedOutcome::Again),
    ];
    let rest = [
        Park(ROWS, &[], TheOwner),
        Park(&[], MARKS, TheOwner),
        Table(None),
        // The tombstone is read where the stream brings its event again, and nowhere else.
        Table(Some('b')),
    ];
    let seen = [
        "a parking write: stored true",
        "a parking write: stored true",
        "the table:",
        "  a1 done, 1 refusals",
        "  a2 dead, 5 refusals",
        "  a3 due, 0 refusals",
        "  b1 waiting, 0 refusals",
        "the table:",
        "  a2 dead, 5 refusals",
        "  a3 due, 0 refusals",
        "  b1 waiting, 0 refusals",
    ];
    agree_that(&rest, &seen).await;
}

#[tokio::test]
async fn resolved_row_stays_resolved() {
    const ROWS: &[(&str, State)] = &[("a1", State::Done), ("a2", State::Skipped)];
    const MARKS: &[(&str, ParkedOutcome)] = &[
        ("a1", ParkedOutcome::Again),
        ("a1", refused(State::Dead, 3)),
        ("a1", ParkedOutcome::Skipped),
        ("a2", ParkedOutcome::Done),
    ];
    let rest = [Park(ROWS, &[], TheOwner), Park(&[], MARKS, TheOwner), Table(None)];
    let seen = [
        "a parking write: stored true",
        "a parking write: stored true",
        "the table:",
        "  a1 done, 0 refusals",
        "  a2 skipped, 0 refusals",
    ];
    agree_that(&rest, &seen).await;
}

#[tokio::test]
async fn first_that_overtook_a_row_stands_in_it_resolved_or_not() {
    let rest = [
        Park(&[("a1", State::Waiting), ("a2", State::Done)], &[], TheOwner),
        Overtaken("a1", "b1"),
        Overtaken("a1", "b2"),
        Overtaken("a2", "b3"),
        Table(None),
    ];
    let seen = [
        "a parking write: stored true",
        "a parking write: stored true",
        "a parking write: stored true",
        "a parking write: stored true",
        "the table:",
        "  a1 waiting, 1 refusals, overtaken by b1",
        "  a2 done, 0 refusals, overtaken by b3",
    ];
    agree_that(&rest, &seen).await;
}

#[tokio::test]
async fn wish_is_taken_off_by_what_answers_it_alone() {
    const ROWS: &[(&str, State)] =
        &[("a1", State::Waiting), ("a2", State::Dead), ("a3", State::Dead), ("b1", State::Dead)];
    const MARKS: &[(&str, ParkedOutcome)] = &[
        ("a1", refused(State::Waiting, 2)),
        ("a2", ParkedOutcome::Skipped),
        ("a3", ParkedOutcome::Again),
        ("b1", ParkedOutcome::Declined),
    ];
    let rest = [
        Park(ROWS, &[], TheOwner),
        Ask("a1", Request::Retry),
        Ask("a2", Request::Skip),
        Ask("a3", Request::Replace),
        Ask("b1", Request::Retry),
        Table(None),
        Park(&[], MARKS, TheOwner),
        Table(None),
    ];
    let seen = [
        "a parking write: stored true",
        "the table:",
        "  a1 waiting, 1 refusals, asked to retry",
        "  a2 dead, 1 refusals, asked to skip",
        "  a3 dead, 1 refusals, asked to replace",
        "  b1 dead, 1 refusals, asked to retry",
        "a parking write: stored true",
        "the table:",
        "  a1 waiting, 2 refusals, asked to retry",
        "  a2 skipped, 1 refusals",
        "  a3 waiting, 0 refusals",
        "  b1 dead, 1 refusals",
    ];
    agree_that(&rest, &seen).await;
}
