//! A chain: the records of one hash slot, or of all slots without a cluster, and what is known of their progress.
//!
//! The records have numbers without gaps. The server stores a number with the records, and takes only the record that
//! follows it. So what is stored is always the beginning of the chain.

use super::held::RecordPlace;
use std::collections::VecDeque;

/// Tokens of take-overs without an answer that are remembered.
const TOKENS_MAX: usize = 16;

/// Whether the progress is this worker's, on the present connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Claim {
    No,
    /// The take-over is not answered.
    Sent,
    Yes,
}

/// The records of a slot.
pub(super) struct SlotChain {
    pub(super) state_key: String,
    /// Records without an acknowledgement, in their order.
    records: VecDeque<RecordPlace>,
    /// The number of the last record that was acknowledged: the first of `records` has the next one.
    acked: u64,
    /// The number of the last record that is known to be stored.
    stored: u64,
    /// Records from the front that are stored or in flight.
    sent: usize,
    /// Calls that are not answered.
    pub(super) calls: usize,
    pub(super) claim: Claim,
    /// Tokens of this worker that may be in the progress; none if what is there does not matter.
    tokens: Vec<String>,
    /// One of the tokens was put into the progress for sure, and records may have been stored under it.
    confirmed: bool,
    /// A call has failed, and later ones are not stored.
    pub(super) failing: bool,
    /// Calls have one topic each, because one of several topics is refused.
    pub(super) careful: bool,
}

impl SlotChain {
    pub(super) fn new(state_key: String) -> Self {
        Self {
            state_key,
            records: VecDeque::new(),
            acked: 0,
            stored: 0,
            sent: 0,
            calls: 0,
            claim: Claim::No,
            tokens: Vec::new(),
            confirmed: false,
            failing: false,
            careful: false,
        }
    }

    pub(super) fn push(&mut self, place: RecordPlace) {
        self.records.push_back(place);
    }

    /// Number of records without an acknowledgement.
    pub(super) fn len(&self) -> usize {
        self.records.len()
    }

    /// Whether records have not been sent on this connection.
    pub(super) fn has_unsent(&self) -> bool {
        self.sent < self.records.len()
    }

    /// The records that have not been sent on this connection, and the number of the first one.
    pub(super) fn unsent(&self) -> (u64, impl Iterator<Item = RecordPlace> + Clone + '_) {
        (self.acked + self.sent as u64 + 1, self.records.iter().skip(self.sent).copied())
    }

    /// So many records were sent.
    pub(super) fn sent(&mut self, records: usize) {
        self.sent += records;
        self.calls += 1;
    }

    /// Records up to this number are stored.
    ///
    /// # Errors
    /// The number is none of a record that was sent, or is one that was stored before.
    pub(super) fn stored(&mut self, number: u64) -> Result<(), ()> {
        let possible = self.stored..=self.acked + self.records.len() as u64;
        if !possible.contains(&number) {
            return Err(());
        }
        self.stored = number;
        self.sent = self.sent.max(self.stored_records());
        Ok(())
    }

    /// The number of the last record that is known to be stored.
    pub(super) fn last_stored(&self) -> u64 {
        self.stored
    }

    /// The number of the last record that was acknowledged.
    pub(super) fn last_acked(&self) -> u64 {
        self.acked
    }

    fn stored_records(&self) -> usize {
        // No more than there are records.
        usize::try_from(self.stored - self.acked).unwrap_or(usize::MAX).min(self.records.len())
    }

    /// Records that are stored and not acknowledged.
    pub(super) fn has_stored(&self) -> bool {
        self.stored > self.acked
    }

    /// Takes the records up to this number, which are stored: they are acknowledged.
    pub(super) fn ack(&mut self, number: u64) -> impl Iterator<Item = RecordPlace> + '_ {
        let count = number.min(self.stored).saturating_sub(self.acked);
        let count = usize::try_from(count).unwrap_or(usize::MAX).min(self.records.len());
        self.acked += count as u64;
        self.sent = self.sent.saturating_sub(count);
        self.records.drain(..count)
    }

    /// Takes the first record that is not stored, which is refused. Nothing behind it is sent any more.
    pub(super) fn refuse(&mut self) -> Option<RecordPlace> {
        self.records.remove(self.stored_records())
    }

    /// The calls are answered or lost: records that are not stored are sent again.
    pub(super) fn rewind(&mut self) {
        self.sent = self.stored_records();
        self.failing = false;
    }

    /// The connection is lost: what was in flight is found out by the next take-over.
    pub(super) fn disconnected(&mut self) {
        self.calls = 0;
        self.claim = Claim::No;
        self.careful = false;
        self.rewind();
        if !self.confirmed {
            self.tokens.clear();
        }
    }

    /// The progress belongs to nobody that matters, or to somebody else: the next take-over is unconditional.
    pub(super) fn forget(&mut self) {
        self.tokens.clear();
        self.confirmed = false;
        self.claim = Claim::No;
    }

    /// Gives up all records, of which none is in flight on this connection. Returns them. Without a claim what the
    /// server may have stored does not matter any more, since a take-over comes before the next record.
    pub(super) fn clear(&mut self) -> impl Iterator<Item = RecordPlace> + '_ {
        if self.claim != Claim::Yes {
            self.forget();
        }
        self.acked = self.stored;
        self.sent = 0;
        self.failing = false;
        self.careful = false;
        self.records.drain(..)
    }

    /// A new token for a take-over, which is one of this worker's from now on, and the earlier ones.
    pub(super) fn next_token(&mut self, token: String) -> Vec<String> {
        let own = self.tokens.clone();
        if own.is_empty() {
            // Events are counted from 0 again.
            (self.acked, self.stored, self.sent) = (0, 0, 0);
        }
        self.tokens.push(token);
        if self.tokens.len() > TOKENS_MAX {
            // The oldest one that was not confirmed. If the progress has it, the pipeline starts again from its cursor.
            self.tokens.remove(1);
        }
        self.claim = Claim::Sent;
        own
    }

    /// The last token is in the progress.
    pub(super) fn claimed(&mut self) {
        let last = self.tokens.pop();
        self.tokens.clear();
        self.tokens.extend(last);
        self.confirmed = true;
        self.claim = Claim::Yes;
    }

    /// The token of the present claim.
    pub(super) fn token(&self) -> &str {
        self.tokens.last().map_or("", String::as_str)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record_batch::RecordBatch;
    use crate::redis::held::HeldRecords;
    use postrider_core::record::{Record, Ticket};

    /// A chain with so many records, and claimed.
    fn chain(records: u64) -> SlotChain {
        let mut chain = SlotChain::new("state".to_owned());
        let mut batch = RecordBatch::default();
        for ticket in 0..records {
            let (topic, partition, key, value) = ("orders", None, None, None);
            let record = Record { topic, partition, key, value, timestamp_ms: None, headers: &[] };
            batch.push(Ticket(ticket), &record);
        }
        HeldRecords::default().push(batch).for_each(|place| chain.push(place));
        assert!(chain.next_token("a".to_owned()).is_empty());
        chain.claimed();
        chain
    }

    fn unsent(chain: &SlotChain) -> (u64, usize) {
        let (first, records) = chain.unsent();
        (first, records.count())
    }

    #[test]
    fn records_are_sent_once_and_acknowledged_in_order() {
        let mut chain = chain(10);
        assert_eq!(unsent(&chain), (1, 10));
        chain.sent(4);
        chain.sent(3);
        assert_eq!(unsent(&chain), (8, 3));
        chain.stored(4).unwrap();
        assert_eq!(chain.ack(4).count(), 4);
        assert_eq!((unsent(&chain), chain.len()), ((8, 3), 6));
        // The second call has stored two of its three.
        chain.stored(6).unwrap();
        assert_eq!(chain.ack(6).count(), 2);
        chain.rewind();
        assert_eq!(unsent(&chain), (7, 4));
        assert!(chain.refuse().is_some());
        assert_eq!(chain.len(), 3);
    }

    #[test]
    fn only_what_was_not_stored_is_sent_again_on_another_connection() {
        let mut chain = chain(10);
        chain.sent(8);
        chain.disconnected();
        assert_eq!(chain.next_token("b".to_owned()), ["a"]);
        // The answer was lost: the progress may have either token.
        chain.disconnected();
        assert_eq!(chain.next_token("c".to_owned()), ["a", "b"]);
        chain.stored(5).unwrap();
        chain.claimed();
        assert_eq!((unsent(&chain), chain.token()), ((6, 5), "c"));
        assert_eq!(chain.next_token("d".to_owned()), ["c"]);
    }

    #[test]
    fn numbers_that_can_not_be_are_refused() {
        let mut chain = chain(10);
        chain.sent(10);
        chain.stored(5).unwrap();
        assert_eq!(chain.ack(5).count(), 5);
        assert_eq!((chain.stored(4), chain.stored(11)), (Err(()), Err(())));
        assert_eq!(chain.stored(10), Ok(()));
    }

    #[test]
    fn a_take_over_without_any_answer_is_made_again_without_condition() {
        let mut chain = SlotChain::new("state".to_owned());
        assert!(chain.next_token("a".to_owned()).is_empty());
        chain.disconnected();
        assert!(chain.next_token("b".to_owned()).is_empty());
    }

    #[test]
    fn after_a_reset_with_calls_in_flight_the_progress_is_taken_over_anew() {
        let mut chain = chain(10);
        chain.sent(10);
        chain.disconnected();
        assert_eq!(chain.clear().count(), 10);
        assert!(chain.next_token("b".to_owned()).is_empty());
        // All were answered: the claim goes on.
        let mut chain = self::chain(10);
        chain.sent(10);
        chain.stored(7).unwrap();
        assert_eq!(chain.clear().count(), 10);
        assert_eq!((chain.claim, unsent(&chain)), (Claim::Yes, (8, 0)));
    }
}
