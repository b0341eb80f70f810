//! Counts the transactions of a sink, for status and metrics.
//!
//! A transaction is counted when it ends: committed, given up before its commit was called, or with a commit that was
//! not answered before the sink was reset. What became of the last kind, the recovery says to the relay.

use crate::status::TransactionsSummary;
use crate::timestamp::Timestamp;
use std::time::{Duration, Instant};

/// The commit that is not answered yet.
#[derive(Debug)]
struct CalledCommit {
    since: Instant,
    records: u64,
}

/// The transactions of a sink since it was opened.
#[derive(Debug)]
pub(super) struct TransactionMeter {
    /// What the status shows.
    summary: TransactionsSummary,
    /// Records of the open transaction.
    open: u64,
    called: Option<CalledCommit>,
    keeps_whole: bool,
    /// Producers that were fenced off before the sink was opened again.
    fenced_before: u64,
}

impl TransactionMeter {
    /// `id`: the name by which brokers know the producers. `keeps_whole`: transactions of the source are not to be
    /// divided.
    pub(super) fn new(id: Option<&str>, keeps_whole: bool) -> Self {
        let summary =
            TransactionsSummary { id: id.map(str::to_owned), ..TransactionsSummary::default() };
        Self { summary, open: 0, called: None, keeps_whole, fenced_before: 0 }
    }

    /// The process owns the pipeline as the owner of this epoch: the time of the takeover, in microseconds since 1970.
    pub(super) fn owned_as(&mut self, epoch: i64) {
        self.summary.taken_over_at = Timestamp { unix_micros: epoch }.to_rfc3339();
    }

    /// Whether transactions of the source are not to be divided.
    pub(super) const fn keeps_whole(&self) -> bool {
        self.keeps_whole
    }

    /// A record is in the open transaction.
    #[inline]
    pub(super) fn record(&mut self) {
        self.open += 1;
    }

    /// The commit of the open transaction is called.
    pub(super) fn committing(&mut self) {
        let records = std::mem::take(&mut self.open);
        self.called = Some(CalledCommit { since: Instant::now(), records });
    }

    /// The commit is answered. Returns how long it took; `None` if it was given up before.
    pub(super) fn committed(&mut self) -> Option<Duration> {
        let CalledCommit { since, records } = self.called.take()?;
        self.summary.committed_total += 1;
        self.summary.records_total += records;
        Some(since.elapsed())
    }

    /// The sink is reset.
    pub(super) fn given_up(&mut self) {
        self.summary.unknown_total += u64::from(self.called.take().is_some());
        self.summary.aborted_total += u64::from(std::mem::take(&mut self.open) > 0);
    }

    /// The name by which brokers know the producers.
    pub(super) fn id(&self) -> Option<&str> {
        self.summary.id.as_deref()
    }

    /// The sink is closed, and will be opened again. `fenced`: the producers that were fenced off since it was opened.
    pub(super) fn closed(&mut self, fenced: Option<u64>) {
        self.given_up();
        self.fenced_before += fenced.unwrap_or(0);
    }

    /// What the status shows. `fenced`: the producers that were fenced off since the sink was opened; `None` if it does
    /// not count them, or is closed.
    pub(super) fn summary(&self, fenced: Option<u64>) -> TransactionsSummary {
        let before = self.fenced_before;
        let fenced_total = fenced.map(|fenced| before + fenced).or((before > 0).then_some(before));
        TransactionsSummary { fenced_total, ..self.summary.clone() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transactions_are_counted_when_they_end_and_by_how() {
        let mut meter = TransactionMeter::new(Some("orders"), false);
        assert_eq!(meter.summary(None).taken_over_at, None);
        meter.owned_as(1_796_007_440_123_456);
        assert_eq!(
            meter.summary(None).taken_over_at.as_deref(),
            Some("2026-11-30T02:57:20.123456Z")
        );
        assert!(meter.committed().is_none(), "nothing was called");
        meter.record();
        meter.record();
        meter.committing();
        // Records behind a commit that is called belong to the next transaction.
        meter.record();
        assert!(meter.committed().is_some());
        meter.given_up();
        meter.committing();
        meter.given_up();
        meter.given_up();
        let TransactionsSummary {
            id,
            committed_total,
            records_total,
            aborted_total,
            unknown_total,
            ..
        } = meter.summary(None);
        assert_eq!(id.as_deref(), Some("orders"));
        assert_eq!([committed_total, records_total, aborted_total, unknown_total], [1, 2, 1, 1]);
    }

    #[test]
    fn producers_that_were_fenced_off_stay_counted_when_the_sink_is_opened_again() {
        let mut meter = TransactionMeter::new(None, false);
        assert_eq!(meter.summary(None).fenced_total, None);
        assert_eq!(meter.summary(Some(2)).fenced_total, Some(2));
        meter.closed(Some(2));
        assert_eq!(meter.summary(None).fenced_total, Some(2));
        assert_eq!(meter.summary(Some(1)).fenced_total, Some(3));
    }
}
