//! What librdkafka has to say, on the thread that takes its events: delivery reports, errors, log lines.
//!
//! Reports go to the mailbox by ticket; the order in which they come means nothing (measured: they
//! come by partition).

use super::codes::{Answers, outcome};
use super::introductions::Firsts;
use super::native::Report;
use super::shared::Shared;
use super::throttle::Throttle;
use crate::Post;
use postrider_core::record::{Outcome, Scope, Ticket};
use rdkafka::client::ClientContext;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::error::KafkaError;
use rdkafka::message::{DeliveryResult, Message};
use rdkafka::producer::ProducerContext;
use rdkafka::types::RDKafkaErrorCode as Code;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// librdkafka's warnings that reach the log, a second and producer.
const LOG_LINES_PER_SECOND: u32 = 5;

/// Pause between two of its lines on a connection that failed, each producer. A cluster that can't be reached is told
/// by ourselves, with what mends it; this is for the one broker of several that is gone.
const CONNECTION_PAUSE: Duration = Duration::from_mins(15);

/// Why a producer is done with whose report no broker gave.
const INFERRED: &str =
    "a record was taken for written because a later one was: its topic may have been recreated";

/// The callbacks of one producer.
pub(super) struct Context {
    shared: Arc<Shared>,
    /// The producer was given up: nothing it says counts any more.
    muted: AtomicBool,
    /// `Broken` was asked for, by this one or by one beside it.
    broken: Arc<AtomicBool>,
    answers: Answers,
    firsts: Firsts,
    lines: Throttle,
    connections: Throttle,
}

impl Context {
    /// Of one of several producers, which share `broken`.
    pub(super) fn new(shared: Arc<Shared>, broken: Arc<AtomicBool>) -> Self {
        Self {
            shared,
            muted: AtomicBool::new(false),
            broken,
            answers: Answers::default(),
            firsts: Firsts::default(),
            lines: Throttle::new(LOG_LINES_PER_SECOND, Duration::from_secs(1)),
            connections: Throttle::new(1, CONNECTION_PAUSE),
        }
    }

    /// From here on this producer's reports and errors go nowhere.
    pub(super) fn mute(&self) {
        self.muted.store(true, Ordering::Release);
    }

    pub(super) fn muted(&self) -> bool {
        self.muted.load(Ordering::Acquire)
    }

    /// Has it said, once, that the producer's state can't be trusted any more. The keeper says it, a moment later:
    /// the report of the record that was the cause may still be on its way, behind the news of a fatal error or of
    /// others that were purged.
    pub(super) fn broken(&self, reason: String) {
        if self.muted() || self.broken.swap(true, Ordering::AcqRel) {
            return;
        }
        // Under the inbox's lock, as a reset takes it back: else one that comes in between leaves half of it.
        self.shared.tell(|inbox| {
            if !self.muted() {
                self.shared.failed.store(true, Ordering::SeqCst);
                inbox.broken = Some(reason);
            }
        });
    }

    /// That was asked for.
    pub(super) fn is_broken(&self) -> bool {
        self.broken.load(Ordering::Acquire)
    }

    /// The records that are the first of their partitions.
    pub(super) const fn firsts(&self) -> &Firsts {
        &self.firsts
    }

    /// Reports of one request. What was acknowledged is gathered in `acked`, for [`told`](Self::told).
    pub(super) fn delivered(&self, reports: impl Iterator<Item = Report>, acked: &mut Vec<Ticket>) {
        if self.muted() {
            return;
        }
        for Report { ticket, result } in reports {
            match result {
                Ok(offset) if self.answers.has(offset) => acked.push(ticket),
                // Behind what was acknowledged before.
                Ok(_) => {
                    self.acknowledged(acked);
                    self.broken(INFERRED.to_owned());
                }
                Err(code) => {
                    self.acknowledged(acked);
                    self.refused(ticket, code);
                }
            }
        }
    }

    /// Tells of what was gathered.
    pub(super) fn told(&self, acked: &mut Vec<Ticket>) {
        if self.muted() {
            acked.clear();
            return;
        }
        self.acknowledged(acked);
    }

    /// Somebody waits for an answer.
    pub(super) fn is_awaited(&self) -> bool {
        self.shared.full.load(Ordering::SeqCst)
    }

    /// Partitions wait for their turn.
    pub(super) fn is_in_turns(&self) -> bool {
        self.shared.in_turns.load(Ordering::Relaxed)
    }

    /// Says, where somebody waits for it, that there is room again.
    pub(super) fn has_room(&self) {
        if self.muted() {
            return;
        }
        if self.shared.full.load(Ordering::SeqCst) && self.shared.full.swap(false, Ordering::SeqCst)
        {
            self.shared.mailbox.post(Post::Retry);
        }
    }

    fn acknowledged(&self, acked: &mut Vec<Ticket>) {
        self.shared.acked.fetch_add(acked.len() as u64, Ordering::Relaxed);
        for &ticket in acked.iter() {
            self.firsts.answered(ticket);
        }
        self.shared.mailbox.report_all(acked, Outcome::Acked);
        acked.clear();
    }

    /// A record was given up. Whatever is behind it would overtake it, so the producer is done with. Only behind one
    /// that was sent to find out whether the broker takes its size there is nothing, and all goes on.
    fn refused(&self, ticket: Ticket, code: Code) {
        let outcome = outcome(code);
        let too_large = matches!(code, Code::MessageSizeTooLarge | Code::MessageBatchTooLarge);
        if too_large && let Some(reason) = self.shared.large.refuse(ticket) {
            let outcome = Outcome::Rejected { scope: Scope::Event, reason };
            self.shared.mailbox.report(ticket, outcome);
            return;
        }
        if too_large || matches!(outcome, Outcome::Rejected { scope: Scope::Destination, .. }) {
            self.shared.forget_topics(code);
        }
        // What is merely unknown is said once, by `Broken`, behind the report that names the cause.
        if outcome != Outcome::Unknown {
            self.shared.mailbox.report(ticket, outcome);
        }
        self.broken(format!("the producer gave up a record: {code}"));
    }
}

impl ProducerContext for Context {
    type DeliveryOpaque = usize;

    /// What comes when the producer is dropped, and nobody takes its events any more.
    fn delivery(&self, result: &DeliveryResult<'_>, ticket: usize) {
        let result = match result {
            Ok(message) => Ok(message.offset()),
            Err((error, _)) => Err(error.rdkafka_error_code().unwrap_or(Code::Unknown)),
        };
        let report = Report { ticket: Ticket(ticket as u64), result };
        let mut acked = Vec::new();
        self.delivered(std::iter::once(report), &mut acked);
        self.told(&mut acked);
        self.has_room();
    }
}

impl ClientContext for Context {
    fn error(&self, error: KafkaError, reason: &str) {
        if self.muted() {
            return;
        }
        let code = error.rdkafka_error_code().unwrap_or(Code::Unknown);
        if code == Code::Fatal {
            self.broken(format!("the producer's state is lost: {reason}"));
            return;
        }
        self.shared.suspect(code, reason);
    }

    fn log(&self, level: RDKafkaLogLevel, facility: &str, line: &str) {
        // Remarks on settings are about ours (`enable.gapless.guarantee` is called experimental, and is meant) or
        // about those of the operator, who reads CONFIGURATION.md: not worth a warning at every start.
        let level = if facility == "CONFWARN" { RDKafkaLogLevel::Debug } else { level };
        let throttle = if facility == "FAIL" { &self.connections } else { &self.lines };
        match level {
            RDKafkaLogLevel::Emerg
            | RDKafkaLogLevel::Alert
            | RDKafkaLogLevel::Critical
            | RDKafkaLogLevel::Error
            | RDKafkaLogLevel::Warning => match throttle.admit() {
                None => tracing::debug!(target: "postrider::kafka", facility, "{line}"),
                Some(0) => tracing::warn!(target: "postrider::kafka", facility, "{line}"),
                Some(dropped) => {
                    tracing::warn!(target: "postrider::kafka", facility, dropped, "{line}");
                }
            },
            RDKafkaLogLevel::Notice | RDKafkaLogLevel::Info | RDKafkaLogLevel::Debug => {
                tracing::debug!(target: "postrider::kafka", facility, "{line}");
            }
        }
    }

    fn stats_raw(&self, _statistics: &[u8]) {}
}
