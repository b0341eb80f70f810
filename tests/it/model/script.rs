//! The language of the scripts. Transactions are letters; their events are `a1`, `a2`, in the order of writing.

use postrider::parked::{ParkedOutcome, Request, State};

/// Where a stream is asked to start.
#[derive(Clone, Copy, Debug)]
pub(super) enum From {
    /// Where the slot stands.
    Slot,
    /// The first byte of a transaction's commit.
    CommitOf(char),
    /// One byte behind that.
    PastCommitOf(char),
    /// The first byte after a transaction.
    EndOf(char),
}

/// Under whose epoch something is written.
#[derive(Clone, Copy, Debug)]
pub(super) enum By {
    TheOwner,
    /// Who was it before the last take-over.
    TheFormer,
}

/// What is done, or looked at.
#[derive(Clone, Copy, Debug)]
pub(super) enum Step {
    Begin(char),
    /// An event.
    Write(char),
    /// A row of another table of the publication.
    Other(char),
    Commit(char),
    RollBack(char),
    /// A stream begins. There is one at a time.
    Open(From),
    /// All that the stream brings up to now.
    Read,
    /// A second reader asks for the slot.
    Second,
    /// The server is told that all up to the end of a transaction is done.
    Confirm(char),
    /// The stream ends, and the server has read what it was told.
    Close,
    /// Where the slot stands.
    Slot,
    Checkpoint,
    /// An immediate shutdown, and a start.
    Crash,
    TakeOver,
    /// The cursor row is moved to the end of a transaction.
    Cursor(char, By),
    /// Where the cursor row stands.
    Row,
    /// The row is locked by somebody.
    Lock,
    /// The row is to be moved by the owner, and waits for the lock.
    Send(char),
    /// The session that waits is gone.
    Gone,
    /// Who has locked the row takes over with it.
    TakeOverLocked,
    Unlock,
    /// One write of the parked table: rows, then marks.
    Park(&'static [(&'static str, State)], &'static [(&'static str, ParkedOutcome)], By),
    /// A row and a mark on it that says it is dead, in one statement.
    AtOnce(&'static str),
    /// A mark: the second event was published before the first, which is parked.
    Overtaken(&'static str, &'static str),
    /// A person asks for something.
    Ask(&'static str, Request),
    /// The parked table as a start reads it that resumes at the commit of a transaction, or at the beginning.
    Table(Option<char>),
}

/// A transaction of `events` events, alone.
pub(super) fn transaction(letter: char, events: usize) -> Vec<Step> {
    let mut steps = vec![Step::Begin(letter)];
    steps.extend(std::iter::repeat_n(Step::Write(letter), events));
    steps.push(Step::Commit(letter));
    steps
}

/// Three transactions of three events, and all of it read: so their positions have names.
pub(super) fn three_that_are_known() -> Vec<Step> {
    let written = ['a', 'b', 'c'].into_iter().flat_map(|letter| transaction(letter, 3));
    written.chain([Step::Open(From::Slot), Step::Read, Step::Close]).collect()
}

/// One after the other.
pub(super) fn then(mut first: Vec<Step>, rest: &[Step]) -> Vec<Step> {
    first.extend_from_slice(rest);
    first
}
