//! What an intake shows: its status, and its log lines.

use crate::health::{Condition, DueReport, LogRateLimit, duration_text};
use crate::inbox::batch::Partition;
use crate::inbox::store::{Counts, DeadMessage};
use crate::intake_status::{BLOCKED_MAX, BlockedPartition, IntakeHandle, IntakeState};
use crate::postgres::SourceError;
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::Instant;
use tracing::{error, info, warn};

/// The code of a partition whose next message the table refuses.
const UNSTORABLE: &str = "message_unstorable";

/// Kinds of refusals that have a line of their own; further ones have none.
const UNSTORABLE_MAX: usize = 100;

/// The status and the log of one intake. Its own thread calls it, and nothing else.
#[derive(Debug)]
pub(crate) struct IntakeObserver {
    intake: String,
    handle: IntakeHandle,
    /// Why nothing is stored, while it lasts.
    outage: Option<Outage>,
    /// What the client reports again and again of a topic or the group.
    warning: Option<Condition>,
    /// The blocked partitions that were logged.
    blocked: Vec<BlockedPartition>,
    /// Lines about dead messages.
    dead_lines: LogRateLimit,
    /// Lines about refused requests.
    refused_lines: LogRateLimit,
    /// SQLSTATE and constraint of the refusals that were logged.
    unstorable: BTreeSet<(String, Option<String>)>,
    /// That the table refuses messages of Kafka again and again, while it lasts.
    refusals: Option<Condition>,
    /// Why the file of secrets can't be read, while it lasts.
    secrets: Option<Condition>,
}

/// A state in which nothing is stored.
#[derive(Debug)]
struct Outage {
    state: IntakeState,
    condition: Option<Condition>,
}

impl IntakeObserver {
    pub(crate) fn new(intake: &str, handle: IntakeHandle) -> Self {
        Self {
            intake: intake.to_owned(),
            handle,
            outage: None,
            warning: None,
            blocked: Vec::new(),
            dead_lines: LogRateLimit::default(),
            refused_lines: LogRateLimit::default(),
            unstorable: BTreeSet::new(),
            refusals: None,
            secrets: None,
        }
    }

    /// The loop turns.
    pub(crate) fn turns(&self) {
        self.handle.update(|snapshot| snapshot.turned_at = Some(Instant::now()));
    }

    /// No partition is assigned. `is_member`: the group has answered, so other members have all of them; otherwise a
    /// topic that can't be used may be why it does not.
    pub(crate) fn stands_by(&mut self, is_member: bool) {
        // An outage is why the group assigns nothing.
        if self.outage.is_none() && (is_member || self.warning.is_some()) {
            self.handle.update(|snapshot| {
                snapshot.state = IntakeState::StandingBy;
                (snapshot.partitions, snapshot.lag_records) = (0, None);
                let warning = self.warning.as_ref();
                snapshot.reason = warning.map(|warning| warning.reason.clone());
                snapshot.hint = warning.and_then(|warning| warning.hint.clone());
            });
        }
    }

    /// Another process reads, or has messages that come before those that are here. `reason` says which ones.
    pub(crate) fn waits_for_others(&mut self, reason: Option<&str>) {
        self.resumes();
        self.handle.update(|snapshot| {
            snapshot.state = IntakeState::StandingBy;
            (snapshot.reason, snapshot.hint) = (reason.map(str::to_owned), None);
            if reason.is_none() {
                (snapshot.partitions, snapshot.lag_records) = (0, None);
            }
        });
    }

    /// Whether everything that is to be read exists. If it does, what was missing is missing again another time.
    pub(crate) fn found_all(&mut self, has_all: bool) {
        if has_all {
            self.warning = None;
        }
    }

    /// The broker has deleted messages that were not stored.
    pub(crate) fn lost(&self, messages: u64, reason: &str, hint: &str) {
        let intake = &self.intake;
        error!(event = "intake_messages_lost", intake, messages, reason, hint, "{reason}");
        self.handle.update(|snapshot| {
            snapshot.totals.lost_total = snapshot.totals.lost_total.saturating_add(messages);
        });
    }

    /// A topic or the group can't be used, while others may be.
    pub(crate) fn warns(&mut self, reason: &str, hint: &str) {
        let (now, hint) = (Instant::now(), Some(hint.to_owned()));
        let due = Condition::note(&mut self.warning, reason.to_owned(), hint.clone(), now);
        if let Some(DueReport { seconds, tries }) = due {
            let intake = &self.intake;
            warn!(
                event = "intake_topic_unavailable",
                intake, seconds, tries, reason, hint, "{reason}"
            );
        }
    }

    /// The broker answers again.
    pub(crate) fn broker_answers(&mut self) {
        if self.outage.as_ref().is_some_and(|outage| outage.state == IntakeState::BrokerDown) {
            self.resumes();
        }
    }

    fn resumes(&mut self) {
        let Some(Outage { state, condition }) = self.outage.take() else { return };
        let seconds = condition.map_or(0, |condition| condition.seconds(Instant::now()));
        let (intake, after, state) = (&self.intake, duration_text(seconds), state.name());
        info!(
            event = "intake_resumed",
            intake, state, seconds, "the outage has ended after {after}"
        );
    }

    /// Messages are stored as they come. `partitions`: number of those that are read.
    pub(crate) fn stores(&mut self, partitions: usize) {
        self.resumes();
        if partitions > 0 {
            self.warning = None;
        }
        self.handle.update(|snapshot| {
            let all_blocked = partitions == 0 && snapshot.blocked_total > 0;
            snapshot.state = if all_blocked { IntakeState::Blocked } else { IntakeState::Storing };
            snapshot.partitions = partitions;
            (snapshot.reason, snapshot.hint) = (None, None);
        });
    }

    /// Nothing is stored: the broker or the database is not available, or the inbox is full.
    pub(crate) fn waits(&mut self, state: IntakeState, reason: &str, hint: Option<&str>) {
        let now = Instant::now();
        self.handle.update(|snapshot| {
            snapshot.state = state;
            (snapshot.reason, snapshot.hint) = (Some(reason.to_owned()), hint.map(str::to_owned));
        });
        if self.outage.as_ref().is_none_or(|outage| outage.state != state) {
            self.outage = Some(Outage { state, condition: None });
        }
        let Some(outage) = &mut self.outage else { return };
        let due =
            Condition::note(&mut outage.condition, reason.to_owned(), hint.map(str::to_owned), now);
        let Some(DueReport { seconds, tries }) = due else { return };
        let (intake, state) = (&self.intake, state.name());
        let words = if tries == 1 {
            format!("stores nothing until this ends: {reason}")
        } else {
            format!("still stores nothing, {tries} tries, last: {reason}")
        };
        warn!(event = "intake_waits", intake, state, seconds, tries, reason, hint, "{words}");
    }

    /// The partitions that wait for a decision of a person, or for an answer of the brokers.
    pub(crate) fn blocked(&mut self, blocked: Vec<BlockedPartition>) {
        let intake = &self.intake;
        let same = |one: &BlockedPartition, other: &BlockedPartition| {
            (&one.topic, one.partition) == (&other.topic, other.partition)
        };
        // What the brokers say instead of an answer changes while they are asked again and again: it is logged once.
        let was_logged = |new: &BlockedPartition| {
            let mut former = self.blocked.iter().filter(|former| same(former, new));
            former.any(|former| former == new || !new.needs_decision && former.code == new.code)
        };
        for new in blocked.iter().filter(|new| !was_logged(new)) {
            let BlockedPartition { topic, partition, code, reason, hint, needs_decision } = new;
            if !needs_decision {
                warn!(
                    event = "intake_partition_unavailable",
                    intake,
                    topic,
                    partition,
                    code,
                    hint,
                    "partition {partition} of topic \"{topic}\" is not read meanwhile: {reason}"
                );
                continue;
            }
            error!(
                event = "intake_partition_blocked",
                intake,
                topic,
                partition,
                code,
                hint,
                "partition {partition} of topic \"{topic}\" is not read until a person decides: {reason}"
            );
        }
        for former in &self.blocked {
            if !blocked.iter().any(|now| same(now, former)) {
                let BlockedPartition { topic, partition, .. } = former;
                info!(
                    event = "intake_partition_unblocked",
                    intake,
                    topic,
                    partition,
                    "partition {partition} of topic \"{topic}\" is read again, or is not ours any more"
                );
            }
        }
        if !blocked.iter().any(|partition| partition.code == UNSTORABLE) {
            self.refusals = None;
        }
        self.handle.update(|snapshot| {
            snapshot.blocked_total = blocked.len();
            snapshot.blocked = blocked.iter().take(BLOCKED_MAX).cloned().collect();
        });
        self.blocked = blocked;
    }

    /// A partition of which nothing was stored begins at `offset`.
    pub(crate) fn begins(&self, topic: &str, partition: i32, offset: i64) {
        let intake = &self.intake;
        info!(
            event = "intake_partition_begins",
            intake,
            topic,
            partition,
            offset,
            "partition {partition} of topic \"{topic}\" is read from offset {offset} on"
        );
    }

    /// Offsets were changed by another process or a person: nothing of a batch was stored.
    pub(crate) fn moved(&self) {
        let intake = &self.intake;
        info!(
            event = "intake_offsets_moved",
            intake,
            "another process or a person has changed the stored offsets: continuing at them"
        );
    }

    /// A batch was committed.
    pub(crate) fn stored(&mut self, counts: &Counts) {
        for DeadMessage { event_id, reason } in &counts.dead {
            let Some(suppressed) = self.dead_lines.admit(Instant::now()) else { continue };
            let intake = &self.intake;
            warn!(
                event = "intake_message_dead",
                intake,
                event_id,
                reason,
                suppressed,
                "message \"{event_id}\" is stored as a dead one: {reason}"
            );
        }
        self.handle.update(|snapshot| {
            snapshot.totals.stored_total += counts.stored;
            snapshot.totals.repeated_total += counts.repeated;
            snapshot.totals.dead_total += u64::try_from(counts.dead.len()).unwrap_or(u64::MAX);
            snapshot.stored_at = Some(Instant::now());
        });
    }

    /// The database refuses a message even as a dead one. One line for each SQLSTATE and constraint: the message comes
    /// again until somebody changes the constraint.
    pub(crate) fn unstorable(&mut self, error: &SourceError) {
        let Some(report) = error.report() else { return };
        let kind = (report.sqlstate.to_string(), report.constraint.clone());
        if self.unstorable.len() >= UNSTORABLE_MAX || !self.unstorable.insert(kind) {
            return;
        }
        let (intake, sqlstate, constraint) = (&self.intake, report.sqlstate, &report.constraint);
        warn!(
            event = "intake_message_unstorable",
            intake,
            %sqlstate,
            constraint,
            hint = "change the constraint of the inbox's table, or drop it: until then the message is neither stored \
                    nor lost",
            "the database refuses a message even as a dead one without type and trace (SQLSTATE {sqlstate})"
        );
    }

    /// The database refuses a message of this partition even as a dead one, and has perhaps done so before. Beside the
    /// lines of [`unstorable`](Self::unstorable) and [`blocked`](Self::blocked), one about all partitions at growing
    /// intervals.
    pub(crate) fn refuses(&mut self, Partition { topic, number }: &Partition, error: &SourceError) {
        self.unstorable(error);
        // The reason is the same one for all partitions, so that each has no line of its own.
        let (now, code) = (Instant::now(), UNSTORABLE);
        let due = Condition::note(&mut self.refusals, code.to_owned(), None, now);
        let Some(report) = due.filter(|report| report.tries > 1) else { return };
        let (intake, partition) = (&self.intake, number);
        error!(
            event = "intake_partition_blocked",
            intake,
            topic,
            partition,
            code,
            hint = "postrider status shows each partition, what refuses its message, and the command that passes it",
            "the table still refuses messages ({}), last one of partition {partition} of topic \"{topic}\": {error}",
            report.text()
        );
    }

    /// A request was refused. `reason` has no content of the request.
    pub(crate) fn refused(&mut self, reason: &str) {
        if let Some(suppressed) = self.refused_lines.admit(Instant::now()) {
            let intake = &self.intake;
            warn!(
                event = "intake_request_refused",
                intake, reason, suppressed, "refused a request: {reason}"
            );
        }
        self.handle.update(|snapshot| snapshot.totals.refused_total += 1);
    }

    /// A request was put off by an outage, which has a line of its own.
    pub(crate) fn puts_off(&self) {
        self.handle.update(|snapshot| snapshot.totals.refused_total += 1);
    }

    /// The receiver accepts connections.
    pub(crate) fn listens(&self, address: SocketAddr) {
        let intake = &self.intake;
        info!(event = "intake_listens", intake, %address, "receives webhooks on {address}");
    }

    /// The file of secrets was read. `is_new`: it has other secrets than before.
    pub(crate) fn reads_secrets(&mut self, is_new: bool, count: usize) {
        let was_missing = self.secrets.take().is_some();
        if is_new || was_missing {
            let intake = &self.intake;
            info!(event = "intake_secrets_read", intake, count, "read {count} secrets again");
        }
    }

    /// The file of secrets could not be read. `has_others`: those that were read before are used meanwhile.
    pub(crate) fn misses_secrets(&mut self, reason: &str, has_others: bool) {
        let hint =
            "correct the file that secret_file names; it is read again within 2 s".to_owned();
        let note = Condition::note(
            &mut self.secrets,
            reason.to_owned(),
            Some(hint.clone()),
            Instant::now(),
        );
        let Some(DueReport { seconds, tries }) = note else { return };
        let intake = &self.intake;
        let words = if has_others {
            "the secrets that were read before are used"
        } else {
            "every request is answered with 503"
        };
        warn!(
            event = "intake_secrets_unreadable",
            intake, seconds, tries, reason, hint, "{reason}: {words}"
        );
    }

    /// Records that are not stored yet.
    pub(crate) fn lag(&self, records: Option<u64>) {
        self.handle.update(|snapshot| snapshot.lag_records = records);
    }

    /// Messages of the inbox that wait to be processed.
    pub(crate) fn pending(&self, messages: u64) {
        self.handle.update(|snapshot| snapshot.pending = Some(messages));
    }

    /// The intake has ended on request.
    pub(crate) fn stopped(&self) {
        let intake = &self.intake;
        info!(event = "intake_stopped", intake, "stopped");
        self.handle.update(|snapshot| {
            snapshot.state = IntakeState::Stopped;
            (snapshot.partitions, snapshot.lag_records) = (0, None);
        });
    }
}
