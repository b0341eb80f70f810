//! The calls of a sink that publishes in transactions, and what a commit stores.

use crate::event::Position;
use crate::store::{self, Cursor, ParseCursorError};
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// A sink that publishes in transactions: records become visible at a commit, all at once and in the order in which the
/// sink has accepted them, together with the pipeline's own progress. So every event is visible exactly once, whatever
/// ends: what is visible and the progress never differ.
///
/// The calls come in this order: `recover`, then records ([`Sink::enqueue`](crate::sink::Sink::enqueue) and its
/// variants) and `commit` in turns. A transaction begins with its first record, or with a `commit` without records. The
/// sink reports a record ([`Outcome::Acked`](crate::record::Outcome::Acked)) as soon as the open transaction is sure to
/// have it: nothing is visible then. A record that is refused is not in the transaction. If a client can't go on after
/// that, it posts [`Post::Broken`]. No record is offered between a `commit` and its answer, nor before `recover` is
/// answered.
///
/// Both calls return at once; the answers are posted. There is no post for "not committed": a commit that failed, and a
/// commit of which the outcome is not known, are answered with [`Post::Broken`]. The pipeline then resets the sink, and
/// `recover` says what is committed. [`Sink::reset`] and [`Sink::close`] discard the open transaction. A commit that
/// was called before may still take effect, until the next `recover` of any process is answered.
///
/// [`Post::Broken`]: crate::sink::Post::Broken
/// [`Sink::reset`]: crate::sink::Sink::reset
/// [`Sink::close`]: crate::sink::Sink::close
pub trait Transactional {
    /// Discards the open transaction of every producer of this pipeline, including those of other processes, and
    /// prevents their later commits. Answered with
    /// [`Post::Recovered`](crate::sink::Post::Recovered): what the last commit stored, read after that.
    ///
    /// How long it may take is up to the sink; the pipeline waits, and shows it in its status. After a loss of the
    /// connection, [`Post::Down`](crate::sink::Post::Down) tells the reason, and the sink tries again.
    ///
    /// The pipeline may call it again before the answer, for example after a loss of the source's connection. Later
    /// commits then belong to the last call. If a server executes the earlier call later than that, behind the recovery
    /// of another producer, this producer stays fenced off.
    fn recover(&mut self, call: SinkCall);

    /// Makes the records of the open transaction visible, and stores `progress` in place of what was stored before, in
    /// one step. Answered with [`Post::Committed`](crate::sink::Post::Committed), after both are durable. Also called
    /// without a record.
    ///
    /// Must not take effect if any recovery of this pipeline was executed since the last one that this producer called.
    fn commit(&mut self, call: SinkCall, progress: &SinkProgress);

    /// The name by which brokers know the producers of this pipeline, one after the other, for the status. `None` if
    /// there is no such name.
    fn id(&self) -> Option<&str> {
        None
    }

    /// How often brokers have refused a producer of this sink since it was opened, because another one had its name, or
    /// because its transaction had taken too long. `None` if the sink does not count that.
    fn fenced_total(&self) -> Option<u64> {
        None
    }
}

/// A call of [`Transactional`]. Its answer names the call, so that a late answer to an earlier call has no effect. Each
/// call of a process has a higher number than the one before it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Debug)]
pub struct SinkCall(pub u64);

/// What a commit stores beside its records. The sink does not interpret it.
///
/// Its text, for sinks that store texts, is that of the cursor, followed by the parked events: each with ` +` before
/// it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct SinkProgress {
    /// Every change of the source below it is resolved: it is visible in the sink, is parked, or is no event.
    pub cursor: Cursor,
    /// Parked events that this commit or an earlier one has made visible, and whose rows in the table of parked events
    /// do not have that status yet. Usually none, and at most some more than 10,000.
    pub published: Vec<Position>,
}

impl fmt::Display for SinkProgress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.cursor.fmt(f)?;
        self.published.iter().try_for_each(|position| write!(f, " +{position}"))
    }
}

impl FromStr for SinkProgress {
    type Err = ParseCursorError;

    fn from_str(text: &str) -> Result<Self, ParseCursorError> {
        let mut parts = text.split(" +");
        let cursor = parts.next().ok_or(ParseCursorError)?.parse()?;
        let position = |text| store::position(text).ok_or(ParseCursorError);
        Ok(Self { cursor, published: parts.map(position).collect::<Result<_, _>>()? })
    }
}

/// When a transaction is committed: as soon as one of these bounds is reached. A pipeline also commits before, where it
/// has to: at its end, and before an event that must have nothing else in flight.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TransactionLimits {
    /// Number of records, at least 1. Retries of parked events that are in flight when the bound is reached are added.
    pub records_max: usize,
    /// Bytes of keys, values and headers of the records of the stream. The last record may exceed it.
    pub bytes_max: u64,
    /// Time between the closes of two transactions; after a transaction of a quarter of `records_max` or more, time
    /// since the first record was reported. Publication is late by up to this time and the time of a commit.
    pub interval: Duration,
    /// With a time, a transaction of the source is not divided: its records are in one transaction of the sink. The
    /// other bounds are looked at behind its end, so that a transaction of the sink may have twice `records_max`
    /// records and twice `bytes_max` bytes. A transaction of the source may be divided nevertheless if it is larger
    /// than these bounds, or if the sink's transaction has been open for this time, which servers of the sink must
    /// allow.
    pub whole_for: Option<Duration>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_of_a_progress_is_read_as_it_was_written() {
        for text in [
            "00000000 0/0",
            "68F1A2B3 16/B374D848 16/B374D900:5",
            "68F1A2B3 16/B374D848 16/B374D900:5 +16/B374D700:1 +16/B374D710:0",
            "68F1A2B3 16/B374D848 +16/B374D700:1",
        ] {
            assert_eq!(text.parse::<SinkProgress>().unwrap().to_string(), text);
        }
        for text in ["", " +16/1:0", "68F1A2B3 16/B374D848 +", "68F1A2B3 16/B374D848 + 16/1:0"] {
            assert_eq!(text.parse::<SinkProgress>(), Err(ParseCursorError), "{text:?}");
        }
    }
}
