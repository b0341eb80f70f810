//! Where records go: the seam that every broker is plugged into.
//!
//! A sink takes records one at a time with a ticket, never waits, and posts what became of each to a [`Mailbox`].

pub use crate::mailbox::{Mailbox, Post};
use crate::record::{Record, Refusal, Ticket};
use std::time::{Duration, Instant};

/// A broker, or what stands in its place.
///
/// All methods are called from one thread, in the order of the stream. None of them waits except `close`.
pub trait Sink: Send {
    /// Hands over one record. The sink copies what it needs before it returns.
    ///
    /// On `Ok` exactly one report for the ticket comes to the mailbox, or none if the sink is reset or closed first, or
    /// posts [`Post::Broken`]. On `Err` no report comes: the same record has to be offered again, before any other,
    /// or it is refused for good. The refusal is an answer and not a post, so that nothing behind the record can
    /// overtake it.
    fn enqueue(&mut self, ticket: Ticket, record: &Record<'_>) -> Result<(), NotTaken>;

    /// As `enqueue`, for a record that is tried again: what was heard of its destination before `since` refuses
    /// nothing, for somebody may have mended it. One answer serves all that were tried before it was asked for.
    ///
    /// # Errors
    /// As `enqueue`. [`NotTaken::Unavailable`] and [`NotTaken::Missing`] were heard after `since`.
    fn enqueue_again(
        &mut self,
        ticket: Ticket,
        record: &Record<'_>,
        _since: Instant,
    ) -> Result<(), NotTaken> {
        self.enqueue(ticket, record)
    }

    /// As `enqueue`, or with `since` as `enqueue_again`, for a record that was answered [`NotTaken::Alone`]: nothing
    /// that must stay in order with it is in flight, and nothing such is handed over before its report.
    ///
    /// # Errors
    /// As those, but not [`NotTaken::Alone`]. [`NotTaken::Full`] also while another such record is in flight.
    fn enqueue_alone(
        &mut self,
        ticket: Ticket,
        record: &Record<'_>,
        _since: Option<Instant>,
    ) -> Result<(), NotTaken> {
        self.enqueue(ticket, record)
    }

    /// Whether a record for this destination could be offered now. Hands over nothing.
    ///
    /// # Errors
    /// [`NotTaken::Destination`] while it is being asked for, [`NotTaken::Unavailable`] or
    /// [`NotTaken::Missing`] where the broker has said after `since` that it takes none.
    fn sound(&mut self, _topic: &str, _since: Instant) -> Result<(), NotTaken> {
        Ok(())
    }

    /// Sends the records that waited for reports which have arrived. To be called after posts were taken, and at the
    /// returned time.
    fn turn(&mut self) -> Option<Instant> {
        None
    }

    /// The cluster whose brokers answer, by its identifier; `None` until one has answered, and where there is no such
    /// thing. Empty where the brokers name none.
    fn cluster(&self) -> Option<String> {
        None
    }

    /// No record is taken until the next [`Self::admit`]: `enqueue` answers [`NotTaken::Full`].
    fn hold(&mut self) {}

    /// Records may go to this cluster, and to no other. Where the brokers turn out to be of another one, nothing is
    /// taken, and [`Post::Located`] says so.
    fn admit(&mut self, _cluster: &str) {}

    /// Whether nothing is on its way, reported or not.
    fn is_idle(&self) -> bool {
        true
    }

    /// Gives up everything in flight and starts with new producers; reports of what was in flight may still come, or
    /// not.
    ///
    /// What was in flight is then `Unknown`, all of it: the caller starts again from its cursor.
    fn reset(&mut self);

    /// Lets what was handed over be sent, unless something of it was given up, and waits for reports, at most `grace`;
    /// then disconnects. Records that still wait for the reports of others are not sent: to have them sent, wait until
    /// [`is_idle`](Self::is_idle) first.
    fn close(&mut self, grace: Duration);
}

/// Why a record was not taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NotTaken {
    /// The client's own queue is full, or the client is being replaced. A post to the mailbox says when to offer it
    /// again.
    Full,
    /// What the sink must know of the destination is still being asked for. A post says when to offer the record again.
    Destination,
    /// The broker answers, and says that the destination takes no records: it is missing, or not open to us. A post
    /// says when that is over.
    Unavailable,
    /// As `Unavailable`, and this sink has never known the destination: it may be the record's fault, which names one
    /// that nobody has made.
    Missing,
    /// It does not fit what was last heard of the destination, which is old news and is being asked for again. Nothing
    /// else waits for the answer: others may be offered meanwhile. A post says when to offer this one again.
    Doubted(Refusal),
    /// It is taken only by a producer of its own, with nothing in flight that must stay in order with it: only the
    /// broker can say whether it takes the record. To be offered by `enqueue_alone`; no post says when.
    Alone,
    /// It can never be published as it is.
    Refused(Refusal),
}
