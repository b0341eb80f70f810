//! Who may write: epochs, positions that would go back, and statements whose session is gone.

use super::agree_on;
use super::script::By::{TheFormer, TheOwner};
use super::script::Step::{
    Cursor, Gone, Lock, Park, Row, Send, Table, TakeOver, TakeOverLocked, Unlock,
};
use super::script::{then, three_that_are_known};
use super::{agree, fake};
use postrider::parked::State;

const KNOWN: [&str; 4] = ["a stream:", "  a: a1 a2 a3", "  b: b1 b2 b3", "  c: c1 c2 c3"];

fn known_and(rest: &[&'static str]) -> Vec<&'static str> {
    KNOWN.iter().chain(rest).copied().collect()
}

#[tokio::test]
async fn write_under_an_older_epoch_stores_nothing() {
    let rest = [
        Cursor('a', TheOwner),
        Park(&[("b1", State::Waiting)], &[], TheOwner),
        TakeOver,
        Cursor('b', TheFormer),
        Park(&[("b2", State::Behind)], &[], TheFormer),
        Row,
        Table(None),
        Cursor('b', TheOwner),
        Park(&[("b3", State::Behind)], &[], TheOwner),
        Row,
        Table(None),
    ];
    let seen = known_and(&[
        "the cursor row to a: stored true",
        "a parking write: stored true",
        "the cursor row to b: stored false",
        "a parking write: stored false",
        "the cursor row is at the end of a",
        "the table:",
        "  b1 waiting, 1 refusals",
        "the cursor row to b: stored true",
        "a parking write: stored true",
        "the cursor row is at the end of b",
        "the table:",
        "  b1 waiting, 1 refusals",
        "  b3 behind, 0 refusals",
    ]);
    agree_on(&then(three_that_are_known(), &rest), &seen).await;
}

#[tokio::test]
async fn cursor_that_would_go_back_stores_nothing() {
    let rest = [
        Cursor('b', TheOwner),
        Cursor('a', TheOwner),
        Row,
        Cursor('b', TheOwner),
        Cursor('c', TheOwner),
        Row,
    ];
    let seen = known_and(&[
        "the cursor row to b: stored true",
        "the cursor row to a: stored false",
        "the cursor row is at the end of b",
        "the cursor row to b: stored true",
        "the cursor row to c: stored true",
        "the cursor row is at the end of c",
    ]);
    agree_on(&then(three_that_are_known(), &rest), &seen).await;
}

/// The fake draws whether it had arrived. Here it had: it waited for a lock when its session went.
#[tokio::test]
async fn statement_whose_session_is_gone_may_still_be_carried_out() {
    let rest = [Cursor('a', TheOwner), Lock, Send('b'), Gone, Unlock, Row];
    let script = then(three_that_are_known(), &rest);
    assert_eq!(fake::transcripts(&script).len(), 2, "carried out, or not");
    for lines in agree(&script).await {
        assert_eq!(lines.last().unwrap(), "the cursor row is at the end of b");
    }
}

#[tokio::test]
async fn statement_whose_session_is_gone_is_fenced_by_a_take_over_that_came_first() {
    let rest = [Cursor('a', TheOwner), Lock, Send('b'), Gone, TakeOverLocked, Unlock, Row];
    let seen =
        known_and(&["the cursor row to a: stored true", "the cursor row is at the end of a"]);
    agree_on(&then(three_that_are_known(), &rest), &seen).await;
}
