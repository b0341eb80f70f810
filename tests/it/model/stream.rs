//! What a stream brings, where it starts, and what becomes of the slot's position.

use super::script::By::TheOwner;
use super::script::Step::{
    Begin, Checkpoint, Close, Commit, Confirm, Crash, Cursor, Open, Other, Read, RollBack, Row,
    Second, Slot, Write,
};
use super::script::{From, then, three_that_are_known, transaction};
use super::{agree, agree_on};
use std::collections::BTreeSet;

/// The lines of [`three_that_are_known`].
const KNOWN: [&str; 4] = ["a stream:", "  a: a1 a2 a3", "  b: b1 b2 b3", "  c: c1 c2 c3"];

fn known_and(rest: &[&'static str]) -> Vec<&'static str> {
    KNOWN.iter().chain(rest).copied().collect()
}

#[tokio::test]
async fn interleaved_transactions_come_in_commit_order_whole_and_aborted_ones_never() {
    let script = [
        Begin('a'),
        Write('a'),
        Begin('b'),
        Write('b'),
        Begin('c'),
        Write('c'),
        Write('a'),
        Other('b'),
        Open(From::Slot),
        Commit('c'),
        Write('b'),
        Begin('d'),
        Write('d'),
        Commit('b'),
        RollBack('d'),
        Other('a'),
        Write('a'),
        Commit('a'),
        Read,
        Close,
    ];
    let seen = ["a stream:", "  c: c1", "  b: b1 b-other b2", "  a: a1 a2 a-other a3"];
    agree_on(&script, &seen).await;
}

#[tokio::test]
async fn stream_leaves_out_what_commits_below_its_start_and_nothing_else() {
    let rest = [
        Open(From::CommitOf('b')),
        Read,
        Close,
        Open(From::PastCommitOf('b')),
        Read,
        Close,
        Open(From::EndOf('b')),
        Read,
        Close,
        Slot,
    ];
    let seen = known_and(&[
        "a stream:",
        "  b: b1 b2 b3",
        "  c: c1 c2 c3",
        "a stream:",
        "  c: c1 c2 c3",
        "a stream:",
        "  c: c1 c2 c3",
        "the slot is before all",
    ]);
    agree_on(&then(three_that_are_known(), &rest), &seen).await;
}

/// A transaction that began below the start and commits above it comes whole.
#[tokio::test]
async fn transaction_that_was_open_at_the_start_comes_whole() {
    let mut script = vec![Begin('d'), Write('d')];
    script.extend(three_that_are_known());
    script.extend([Cursor('b', TheOwner), Open(From::EndOf('b')), Confirm('b'), Write('d')]);
    script.extend([Commit('d'), Read, Close, Open(From::Slot), Read, Close]);
    let seen = known_and(&[
        "the cursor row to b: stored true",
        "a stream:",
        "  c: c1 c2 c3",
        "  d: d1 d2",
        "a stream:",
        "  c: c1 c2 c3",
        "  d: d1 d2",
    ]);
    agree(&script).await.iter().for_each(|lines| assert_eq!(*lines, seen));
}

#[tokio::test]
async fn confirmed_position_never_goes_back_while_the_server_lives() {
    let rest = [
        Cursor('c', TheOwner),
        Open(From::EndOf('c')),
        Confirm('c'),
        Close,
        Slot,
        // A client that knows less says so: a stream of its own, and an older position.
        Open(From::EndOf('a')),
        Confirm('a'),
        Read,
        Close,
        Slot,
    ];
    let seen = known_and(&[
        "the cursor row to c: stored true",
        "a stream:",
        "the slot is at the end of c",
        "a stream:",
        "the slot is at the end of c",
    ]);
    agree(&then(three_that_are_known(), &rest)).await.iter().for_each(|lines| {
        assert_eq!(*lines, seen);
    });
}

/// The fake draws whether the slot was saved; a real server must do one of what comes of it: the position is one that
/// was confirmed once, never a later one.
#[tokio::test]
async fn after_a_crash_the_slot_may_be_further_back_and_the_cursor_leaves_out_what_was_done() {
    let rest = [
        Cursor('a', TheOwner),
        Open(From::Slot),
        Read,
        Confirm('a'),
        Close,
        Checkpoint,
        Cursor('b', TheOwner),
        Open(From::EndOf('a')),
        Read,
        Confirm('b'),
        Close,
        Slot,
        Crash,
        Slot,
        Row,
        Open(From::EndOf('b')),
        Read,
        Close,
        Open(From::Slot),
        Read,
        Close,
    ];
    let transcripts = agree(&then(three_that_are_known(), &rest)).await;
    let after = |lines: &Vec<String>| {
        let crash = lines.iter().position(|line| line == "it crashes").unwrap();
        assert_eq!(lines[crash - 1], "the slot is at the end of b");
        lines[crash + 1].clone()
    };
    let positions: BTreeSet<_> = transcripts.iter().map(after).collect();
    assert!(!positions.contains("the slot is at the end of b"), "nothing went back: {positions:?}");
    for lines in transcripts {
        // From the cursor's position: what commits below it does not come, wherever the slot stands.
        let row =
            lines.iter().position(|line| line == "the cursor row is at the end of b").unwrap();
        assert_eq!(lines[row + 1..row + 3], ["a stream:", "  c: c1 c2 c3"]);
    }
}

#[tokio::test]
async fn second_reader_of_an_active_slot_is_refused() {
    let rest = [Open(From::Slot), Second, Read, Close];
    let seen = ["a stream:", "a second reader: refused true", "  a: a1"];
    agree_on(&then(transaction('a', 1), &rest), &seen).await;
}

/// [`Notes::read`](super::notes::Notes::read) tells of a transaction that commits below a keepalive that came before
/// it.
#[tokio::test]
async fn keepalives_never_run_ahead_of_what_was_sent() {
    let mut script = vec![Open(From::Slot)];
    for letter in 'a'..='h' {
        script.extend(transaction(letter, 2));
        if letter > 'e' {
            script.push(Read);
        }
    }
    script.extend([Close, Open(From::EndOf('f')), Read, Close]);
    for lines in agree(&script).await {
        assert!(!lines.iter().any(|line| line.contains("keepalive")), "{lines:?}");
        assert_eq!(lines.last().unwrap(), "  h: h1 h2");
    }
}
