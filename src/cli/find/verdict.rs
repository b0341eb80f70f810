//! Where one event is, by what process and database know of it. Nothing here asks anybody.
//!
//! "Published" is said only if it is proved: by the broker's acknowledgement in the memory of the process, by the row of
//! a parked event, by the layout's mark, or by the stored position. What is not proved is named as what is known.

use super::process::{SentEvent, SentState};
use crate::parked::State;
use crate::postgres::find::FoundRow;
use crate::postgres::retention::Hold;
use crate::postgres::store::requests::ParkedEvent;

/// Where an event is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Whereabouts {
    /// The broker has it.
    Published,
    /// It is dealt with: published, or skipped on purpose.
    PublishedOrSkipped,
    /// The sink has it, and the broker has not acknowledged it.
    InFlight,
    /// It was in flight when the producer was replaced: the broker may have it.
    Unconfirmed,
    /// The broker has refused it, and its parked row is not committed yet.
    Refused,
    /// It is among the parked events.
    Parked,
    /// It is parked, and only an operator can change that; or its row says that it is never published.
    Dead,
    /// An operator has skipped it.
    Skipped,
    /// It is committed, and not published.
    NotReached,
    /// It is committed, and the stored position has not passed it. Whether it is in flight is not known.
    NotPassed,
    /// Its row is in the table, and nothing proves where the event is.
    NotProved,
}

impl Whereabouts {
    /// The name, as in JSON.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Published => "published",
            Self::PublishedOrSkipped => "published_or_skipped",
            Self::InFlight => "in_flight",
            Self::Unconfirmed => "unconfirmed",
            Self::Refused => "refused",
            Self::Parked => "parked",
            Self::Dead => "dead",
            Self::Skipped => "skipped",
            Self::NotReached => "not_reached",
            Self::NotPassed => "not_passed",
            Self::NotProved => "not_proved",
        }
    }
}

/// What is known of one event.
#[derive(Clone, Copy, Debug)]
pub(super) struct EventFacts<'a> {
    /// What the process has passed to its sink, the newest first.
    pub(super) sent: &'a [&'a SentEvent],
    /// Its parked row.
    pub(super) parked: Option<&'a ParkedEvent>,
    /// Its row in the outbox.
    pub(super) row: Option<&'a FoundRow>,
}

/// What is known of the pipeline.
#[derive(Clone, Copy, Debug)]
pub(super) struct PipelineFacts<'a> {
    /// Why the stored position proves nothing about rows.
    pub(super) holds: &'a [Hold],
    /// Polling publishes what has no mark, so that a row without one is not published.
    pub(super) marks_decide: bool,
    /// The process that reads for the pipeline has answered, and remembers publications.
    pub(super) process_reads: bool,
}

/// Where an event is, and what proves it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Verdict {
    pub(super) whereabouts: Whereabouts,
    pub(super) because: String,
}

impl Verdict {
    fn new(whereabouts: Whereabouts, because: impl Into<String>) -> Self {
        Self { whereabouts, because: because.into() }
    }
}

/// Decides about one event. `None` if nothing is known of it.
pub(super) fn decide(event: EventFacts<'_>, pipeline: PipelineFacts<'_>) -> Option<Verdict> {
    let is = |state: SentState| event.sent.iter().any(|sent| sent.state == state);
    if is(SentState::Published) {
        let because = "the broker has acknowledged it, and the process remembers that";
        return Some(Verdict::new(Whereabouts::Published, because));
    }
    if is(SentState::InFlight) {
        let because = "the process has passed it to the sink, and the broker has not answered yet";
        return Some(Verdict::new(Whereabouts::InFlight, because));
    }
    if is(SentState::InTransaction) {
        let because = "it is in a transaction of the sink that is not committed yet";
        return Some(Verdict::new(Whereabouts::InFlight, because));
    }
    if let Some(parked) = event.parked {
        return Some(of_parked(parked));
    }
    if is(SentState::Refused) {
        let because = "the broker has refused it; it is being parked, or the pipeline halts: \
                       postrider parked list, postrider status";
        return Some(Verdict::new(Whereabouts::Refused, because));
    }
    let by_row = event.row.map(|row| of_row(row, pipeline));
    let settled = |verdict: &Verdict| {
        matches!(verdict.whereabouts, Whereabouts::Published | Whereabouts::PublishedOrSkipped)
    };
    if is(SentState::GivenUp) && !by_row.as_ref().is_some_and(settled) {
        let because = "it was in flight when the producer was replaced, so the broker may have it; the pipeline \
                       publishes it again, unless another process has done so";
        return Some(Verdict::new(Whereabouts::Unconfirmed, because));
    }
    by_row
}

fn of_parked(parked: &ParkedEvent) -> Verdict {
    let error = match (&parked.error_code, &parked.error) {
        (Some(code), Some(error)) => format!("{code}: {error}"),
        (Some(text), None) | (None, Some(text)) => text.clone(),
        (None, None) => "no error is recorded".to_owned(),
    };
    let resolved = parked.resolved_at.as_deref().unwrap_or("a time that is not recorded");
    match parked.state {
        State::Waiting => Verdict::new(
            Whereabouts::Parked,
            format!("it was refused {} times, and is attempted again: {error}", parked.attempts),
        ),
        State::Behind => Verdict::new(
            Whereabouts::Parked,
            "an earlier event of its aggregate is parked, and this one waits behind it",
        ),
        State::Due => Verdict::new(
            Whereabouts::Parked,
            "its time of publication (available_at) is in the future",
        ),
        State::Dead => Verdict::new(
            Whereabouts::Dead,
            format!("it was refused for the last time, and only an operator can retry it: {error}"),
        ),
        State::Done => Verdict::new(
            Whereabouts::Published,
            format!("it was parked, and was published at {resolved}; its offset is not stored"),
        ),
        State::Skipped => {
            Verdict::new(Whereabouts::Skipped, format!("an operator has skipped it at {resolved}"))
        }
    }
}

fn of_row(row: &FoundRow, pipeline: PipelineFacts<'_>) -> Verdict {
    if row.is_marked == Some(true) {
        return Verdict::new(
            Whereabouts::Published,
            "its row has the layout's mark of a published row; its offset is not stored",
        );
    }
    if !pipeline.marks_decide {
        return by_position(row, pipeline);
    }
    if row.is_to_publish == Some(false) {
        return Verdict::new(
            Whereabouts::Dead,
            "its row has the status of one that has expired, or has failed for the last time",
        );
    }
    if row.is_resolved == Some(true) && pipeline.holds.is_empty() {
        return Verdict::new(
            Whereabouts::NotProved,
            "the stored position has passed its row, which has no mark of a published row: an operator may have \
             skipped it, or the mark was removed",
        );
    }
    not_passed("its row has no mark of a published row", pipeline)
}

/// A row that is not marked, or whose marks decide nothing.
fn by_position(row: &FoundRow, pipeline: PipelineFacts<'_>) -> Verdict {
    let is_foreign = |hold: &&Hold| matches!(hold, Hold::OtherCluster(_) | Hold::OtherSettings(_));
    // A position of another cluster, table or mode says nothing. Other holds are about rows that it seems to have passed.
    let hold = match row.is_resolved {
        Some(true) => pipeline.holds.first(),
        Some(false) | None => pipeline.holds.iter().find(is_foreign),
    };
    if let Some(hold) = hold {
        let because = format!(
            "its row is in the table, but the stored position proves nothing about it: {hold}"
        );
        return Verdict::new(Whereabouts::NotProved, because);
    }
    match row.is_resolved {
        None => {
            not_passed("the pipeline has no transaction that is known to be resolved", pipeline)
        }
        Some(false) => not_passed("the stored position has not passed its transaction", pipeline),
        Some(true) if row.may_expire => Verdict::new(
            Whereabouts::PublishedOrSkipped,
            "the stored position has passed its transaction, and it is not parked: it was published, or had expired \
             before that",
        ),
        Some(true) if !row.is_recent => Verdict::new(
            Whereabouts::PublishedOrSkipped,
            "the stored position has passed its transaction, and it is not parked: it was published, unless an \
             operator has skipped it more than 6 days ago",
        ),
        Some(true) => Verdict::new(
            Whereabouts::Published,
            "the stored position has passed its transaction, and it is neither parked nor skipped; its offset is not \
             stored. An event that was passed over by hand in the cursor row looks the same",
        ),
    }
}

fn not_passed(what: &str, pipeline: PipelineFacts<'_>) -> Verdict {
    if pipeline.process_reads {
        Verdict::new(
            Whereabouts::NotReached,
            format!(
                "{what}, and the process neither has it in flight nor remembers that it has published it"
            ),
        )
    } else {
        Verdict::new(
            Whereabouts::NotPassed,
            format!(
                "{what}: it is not reached yet, in flight, or was published a moment ago. The process that would know \
                 was not asked"
            ),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(change: impl FnOnce(&mut FoundRow)) -> FoundRow {
        let mut row = FoundRow {
            id: "1".to_owned(),
            aggregate: ("order".to_owned(), "42".to_owned()),
            time: None,
            is_resolved: Some(true),
            is_marked: None,
            is_to_publish: None,
            may_expire: false,
            is_recent: true,
        };
        change(&mut row);
        row
    }

    fn sent(state: SentState) -> SentEvent {
        SentEvent {
            state,
            position: "0/1:0".to_owned(),
            topic: None,
            partition: None,
            offset: None,
            sent_unix_ms: 0,
            settled_unix_ms: None,
        }
    }

    const STREAMS: PipelineFacts<'_> =
        PipelineFacts { holds: &[], marks_decide: false, process_reads: true };

    fn name(row: Option<&FoundRow>, sent: &[&SentEvent], of: PipelineFacts<'_>) -> &'static str {
        let event = EventFacts { sent, parked: None, row };
        decide(event, of).map_or("unknown", |verdict| verdict.whereabouts.name())
    }

    #[test]
    fn a_row_is_published_only_if_the_position_proves_it() {
        let of = |change: fn(&mut FoundRow), pipeline: PipelineFacts<'_>| {
            name(Some(&row(change)), &[], pipeline)
        };
        assert_eq!(of(|_| {}, STREAMS), "published");
        assert_eq!(of(|row| row.is_resolved = Some(false), STREAMS), "not_reached");
        assert_eq!(of(|row| row.is_resolved = None, STREAMS), "not_reached");
        assert_eq!(of(|row| row.may_expire = true, STREAMS), "published_or_skipped");
        assert_eq!(of(|row| row.is_recent = false, STREAMS), "published_or_skipped");
        let silent = PipelineFacts { process_reads: false, ..STREAMS };
        assert_eq!(of(|row| row.is_resolved = Some(false), silent), "not_passed");
        for hold in [
            Hold::BeforeSlot("orders".to_owned()),
            Hold::Repair("orders".to_owned(), "repair (publishing)".to_owned()),
            Hold::OtherSettings("orders".to_owned()),
        ] {
            let holds = std::slice::from_ref(&hold);
            let held = PipelineFacts { holds, ..STREAMS };
            assert_eq!(of(|_| {}, held), "not_proved");
            assert_eq!(of(|row| row.is_marked = Some(true), held), "published");
            let foreign = matches!(hold, Hold::OtherSettings(_));
            let unresolved = of(|row| row.is_resolved = Some(false), held);
            assert_eq!(unresolved, if foreign { "not_proved" } else { "not_reached" });
        }
        assert_eq!(name(None, &[], STREAMS), "unknown");
    }

    #[test]
    fn a_row_of_a_polled_table_is_published_only_if_it_is_marked() {
        let polls = PipelineFacts { marks_decide: true, ..STREAMS };
        let of = |marked, to_publish, resolved| {
            let row = row(|row| {
                (row.is_marked, row.is_to_publish) = (Some(marked), Some(to_publish));
                row.is_resolved = resolved;
            });
            name(Some(&row), &[], polls)
        };
        assert_eq!(of(true, false, None), "published");
        assert_eq!(of(false, true, None), "not_reached");
        assert_eq!(of(false, false, None), "dead");
        assert_eq!(of(false, true, Some(false)), "not_reached");
        assert_eq!(of(false, true, Some(true)), "not_proved");
    }

    #[test]
    fn what_was_given_up_is_unconfirmed_until_something_proves_more() {
        let given_up = sent(SentState::GivenUp);
        let unresolved = row(|row| row.is_resolved = Some(false));
        assert_eq!(name(Some(&unresolved), &[&given_up], STREAMS), "unconfirmed");
        assert_eq!(name(None, &[&given_up], STREAMS), "unconfirmed");
        assert_eq!(name(Some(&row(|_| {})), &[&given_up], STREAMS), "published");
        let again = sent(SentState::InFlight);
        assert_eq!(name(Some(&unresolved), &[&again, &given_up], STREAMS), "in_flight");
        let published = sent(SentState::Published);
        assert_eq!(name(Some(&unresolved), &[&published, &given_up], STREAMS), "published");
        let transaction = sent(SentState::InTransaction);
        assert_eq!(name(Some(&unresolved), &[&transaction], STREAMS), "in_flight");
    }
}
