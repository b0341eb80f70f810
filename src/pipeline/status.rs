//! Updates the status that `/status`, `/ready` and the metrics read.

use super::health::Condition;
use super::lag::ReadMode;
use super::lifecycle::Pipeline;
use super::log::{self, PipelineLog, REPORT_SOON};
use super::slot_monitor::SlotMonitor;
use crate::event::Position;
use crate::parked;
use crate::status::{Head, Lag, ParkedSummary, PipelineState};
use std::time::{Duration, Instant};

/// A lag above this is the state `catching_up`.
const CATCHING_UP: Duration = Duration::from_secs(5);

/// What to do when no more events can be parked.
pub(super) const FULL_HINT: &str =
    "postrider parked list; then retry, skip or replace the events, or raise parking.rows_max";

/// Parked heads shown in the status.
const HEADS_MAX: usize = 10;

impl Pipeline {
    /// Updates the status, unless that was done a moment ago.
    pub(super) fn report_sometimes(&mut self, slot_monitor: Option<&SlotMonitor>) {
        if self.log.reported_at.is_none_or(|at| at.elapsed() >= REPORT_SOON) {
            self.report(slot_monitor);
        }
    }

    /// Updates the status.
    pub(super) fn report(&mut self, slot_monitor: Option<&SlotMonitor>) {
        self.log.read_clock();
        self.log.reported_at = Some(Instant::now());
        self.log.reported_total = self.log.published_total;
        let (events, bytes) = self.relay.in_flight();
        let watermark = self.relay.progress().watermark;
        let lag = self.lag_now();
        let (state, reason, hint) = self.state(lag);
        let PipelineLog { parked_rows, write, claims, marks, row, standby, wal_retention, .. } =
            &self.log;
        let waits = [parked_rows, write, row, claims, marks, standby, wal_retention]
            .into_iter()
            .flatten()
            .next();
        let (reason, hint) = match waits {
            Some(spent) if reason.is_none() => (Some(spent.reason.clone()), spent.hint.clone()),
            Some(_) | None => (reason, hint),
        };
        log::lag(self, state, lag);
        self.log.skipped.report(self.spec.name());
        let parked = self.parked();
        let (log, relay) = (&self.log, &self.relay);
        let parked_any = relay.parked().total() > 0;
        let retain_max = self.spec.wal_retain_max;
        let contact = self.lag.answered_at();
        self.status_handle.update(|snapshot| {
            snapshot.state = state;
            (snapshot.reason, snapshot.hint) = (reason, hint);
            snapshot.watermark = watermark.to_string();
            snapshot.received = relay.received().to_string();
            (snapshot.in_flight_events, snapshot.in_flight_bytes) = (events, bytes);
            snapshot.published_total = log.published_total;
            snapshot.skipped_total = log.skipped.counts.total();
            snapshot.skipped = log.skipped.counts;
            snapshot.parked_total = log.parked_total;
            snapshot.parked = parked;
            snapshot.source_reconnects_total = log.reconnects_total;
            snapshot.sink_resets_total = log.resets_total;
            snapshot.lag = Lag::growing(lag);
            snapshot.source_contact_at = contact;
            snapshot.turned_at = log.reported_at;
            let Some(slot_status) = slot_monitor.and_then(SlotMonitor::latest) else { return };
            // The result of the slot monitor is older than what the relay knows.
            snapshot.parked.oldest_seconds = slot_status
                .oldest_parked
                .filter(|_| parked_any)
                .map_or(0.0, |age| age.as_secs_f64());
            snapshot.lag_bytes = slot_status.wal_end.distance_from(watermark.offset());
            let slot = slot_status.slot.as_ref();
            snapshot.slot_retained_bytes = slot_status.retained();
            snapshot.slot_retain_max_bytes = retain_max;
            snapshot.slot_safe_bytes = slot.and_then(|slot| slot.safe_wal_size);
            snapshot.slot_state = slot.and_then(|slot| slot.wal_status.clone());
            let confirmed = slot.and_then(|slot| slot.confirmed_flush_lsn);
            snapshot.confirmed_flush_lsn = confirmed.map(|at| at.to_string());
        });
    }

    /// The age of the oldest commit that is not published or parked, whether it was read yet or not.
    fn lag_now(&mut self) -> Duration {
        let log = &self.log;
        let reading = if log.standing_by.is_some() {
            ReadMode::Other
        } else if !log.streaming {
            ReadMode::Nothing
        } else if log.polling {
            ReadMode::Table
        } else {
            ReadMode::Stream { received: self.relay.received() }
        };
        let known = self.relay.oldest_unresolved().into_iter().chain(log.held_at);
        let known = known.map(|at| log.since(at)).max().unwrap_or_default();
        known.max(self.lag.of_unread(reading, Instant::now()))
    }

    fn parked(&self) -> ParkedSummary {
        let (counts, now) = (self.relay.parked(), self.now());
        if counts.total() == 0 {
            return ParkedSummary::default();
        }
        let head = |(position, state, attempts, due): (Position, parked::State, u32, Duration)| {
            let wait = due.saturating_sub(now).as_secs_f64();
            let retry_in_seconds = (state != parked::State::Dead).then_some(wait);
            Head { position: position.to_string(), state: state.name(), attempts, retry_in_seconds }
        };
        ParkedSummary {
            waiting: counts.waiting,
            behind: counts.behind,
            due: counts.due,
            dead: counts.dead,
            aggregates: self.relay.blocked_lanes() as u64,
            full: self.relay.parking_is_full(),
            oldest_seconds: self.records.oldest.map_or(0.0, |age| age.as_secs_f64()),
            heads: self.relay.heads(HEADS_MAX).into_iter().map(head).collect(),
        }
    }

    /// `parking table full (100,000 of 100,000 rows): the pipeline is paused`
    pub(super) fn full(&self) -> String {
        let (rows, max) = (self.relay.parked().total(), self.spec.parking.rows_max);
        format!(
            "parking table full ({} of {} rows): the pipeline is paused",
            grouped(rows),
            grouped(max)
        )
    }

    fn state(&self, lag: Duration) -> (PipelineState, Option<String>, Option<String>) {
        let log = &self.log;
        let shown =
            |condition: &Condition| (Some(condition.reason.clone()), condition.hint.clone());
        if let Some(halt) = self.relay.halting() {
            let reason = format!("halting once what is in flight is answered: {halt}");
            return (PipelineState::Draining, Some(reason), Some(halt.hint.clone()));
        }
        if log.draining {
            return (PipelineState::Draining, Some("received a signal to stop".into()), None);
        }
        if log.standing_by.is_some() {
            let reason = format!("slot {:?} is held by another process", self.spec.names.slot);
            return (PipelineState::StandingBy, Some(reason), None);
        }
        let wait = log.publishes_at.map(|at| at.saturating_duration_since(Instant::now()));
        if let Some(wait) = wait.filter(|wait| !wait.is_zero()) {
            let reason = format!(
                "publishing begins in {:.0} s: records of the process that ran before may still reach the broker",
                wait.as_secs_f64()
            );
            return (PipelineState::Starting, Some(reason), None);
        }
        if let Some(condition) = &log.source {
            let (reason, hint) = shown(condition);
            return (PipelineState::SourceDown, reason, hint);
        }
        if let Some(condition) = self.sink_condition() {
            let (reason, hint) = shown(condition);
            return (PipelineState::BrokerDown, reason, hint);
        }
        if self.relay.parking_is_full() {
            let (reason, hint) = (self.full(), FULL_HINT.to_owned());
            return (PipelineState::ParkingFull, Some(reason), Some(hint));
        }
        if !log.streaming {
            return (PipelineState::Starting, None, None);
        }
        if lag > CATCHING_UP {
            let reason = self.relay.waits_for().map(|what| format!("the intake waits for {what}"));
            return (PipelineState::CatchingUp, reason, None);
        }
        (if log.polling { PipelineState::Polling } else { PipelineState::Streaming }, None, None)
    }
}

/// `1234567` as `1,234,567`.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}
