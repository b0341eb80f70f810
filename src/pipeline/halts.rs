//! The halts of the pipeline itself: settings, the sink, the table, one event. Halts because of the server's state or
//! errors are in `postgres`. A halt never contains a payload.

use super::mode::Mode;
use crate::error::{Chain, Halt, HaltReason};
use crate::event::{HistoryId, Position, shown_id};
use crate::offset::Offset;
use crate::outbox::{EventKept, MapError, Poison, SpecError, TableName};
use crate::record::Refusal;
use crate::relay::PollingRefused;
use crate::sink::{SinkConfig, SinkError};
use crate::source::Unreadable;

/// The `error` of a row that is parked because a parked event has the same ID.
pub(super) const DOUBT: &str = "an event with this id was parked before, and PostgreSQL does not show whether this \
                                row is that event or another one: retry publishes it, skip leaves it out";

/// What a halt because of one event means.
fn before_it(mode: Mode) -> String {
    let keeper = mode.words().keeper;
    format!("everything before it is published; it and all that follows wait in {keeper}")
}

pub(super) fn unfit_outbox(errors: &[SpecError]) -> Halt {
    let list: Vec<String> = errors.iter().map(|error| Chain(error).to_string()).collect();
    Halt {
        reason: HaltReason::TableUnfit,
        message: list.join("; "),
        meaning: "nothing was touched".into(),
        hint: "correct the configuration and start again".into(),
    }
}

pub(super) fn unfit_sink(error: &SinkError, mode: Mode) -> Halt {
    unfit_running(Chain(error).to_string(), error.hint().to_owned(), mode)
}

pub(super) fn unfit_running(reason: String, hint: String, mode: Mode) -> Halt {
    Halt {
        reason: HaltReason::SinkUnfit,
        message: reason,
        meaning: format!(
            "nothing is lost: what is not acknowledged waits in {}",
            mode.words().keeper
        ),
        hint,
    }
}

/// The sink refuses this event for good. The halt shows its ID, position and topic, never its payload.
pub(super) fn refused_event(
    (sink, mode): (&dyn SinkConfig, Mode),
    (topic, event_id): (&str, &str),
    position: Position,
    reason: Refusal,
) -> Halt {
    let id = shown_id(event_id);
    Halt {
        reason: HaltReason::PoisonEvent,
        message: format!(
            "event {id:?} at {position} can't be published to topic {topic:?}: {reason}"
        ),
        meaning: before_it(mode),
        hint: sink.hint(reason, topic),
    }
}

/// A row of the outbox table was updated, and `outbox.on_update = "halt"`.
pub(super) fn updated_row(table: &str, id: Option<&str>, at: Option<Position>, mode: Mode) -> Halt {
    let row = id.map_or_else(|| "a row".to_owned(), |id| format!("the row with id {id:?}"));
    let at = at.map_or_else(String::new, |at| format!(" at {at}"));
    Halt {
        reason: HaltReason::RowUpdated,
        message: format!("{row} of table {table} was updated{at}, and outbox.on_update is \"halt\""),
        meaning: format!(
            "the event of this row is published as it was inserted, not as it is now; {}",
            before_it(mode)
        ),
        hint: "find out which session updates the table, and what consumers have to know. To skip this and every \
               other UPDATE: set outbox.on_update = \"skip\" and start again; nothing is lost by it. When the pipeline \
               has passed it, \"halt\" can be set again"
            .to_owned(),
    }
}

/// An event can't be read from its row. The halt shows its ID, position and column, never its payload.
/// `claimed`: the event's row was read from the table, and is read again as it is at the next start.
pub(super) fn poison_event(poison: &Poison, mode: Mode, claimed: bool) -> Halt {
    let kept = match mode {
        Mode::Embedded => EventKept::Source,
        Mode::Wal | Mode::Auto | Mode::Poll if claimed => EventKept::Row,
        Mode::Wal | Mode::Auto | Mode::Poll => EventKept::Log,
    };
    Halt {
        reason: HaltReason::PoisonEvent,
        message: poison.to_string(),
        meaning: before_it(mode),
        hint: poison.hint(kept),
    }
}

/// A row has the ID of a parked event, and may be that event or another one.
pub(super) fn doubted_event(id: &str, position: Position, mode: Mode) -> Halt {
    Halt {
        reason: HaltReason::PoisonEvent,
        message: format!("event {:?} at {position} can't be published: {DOUBT}", shown_id(id)),
        meaning: before_it(mode),
        hint: "with parking.on_poison = \"block_key\" it is parked; then postrider parked retry or postrider parked \
               skip decides"
            .to_owned(),
    }
}

/// Logical messages can't be read: the server converts the encoding of rows, but not of logical messages.
pub(super) fn unreadable_messages(encoding: &str) -> Halt {
    Halt {
        reason: HaltReason::ServerUnfit,
        message: format!(
            "outbox.message_prefix is set, and the database has encoding {encoding}: its logical messages can't be \
             converted to UTF-8"
        ),
        meaning: "nothing was touched".into(),
        hint: "insert the events into a table (outbox.table), whose rows the server converts, and set \
               outbox.message_prefix to \"\"; or use a database with encoding UTF8"
            .into(),
    }
}

/// Polling needs a table: logical messages leave no rows.
pub(super) fn nothing_to_poll() -> Halt {
    Halt {
        reason: HaltReason::TableUnfit,
        message: "there is no outbox table to poll".to_owned(),
        meaning: "nothing was touched".into(),
        hint: "set outbox.table, or mode = \"wal\"".into(),
    }
}

pub(super) fn unfit_table(error: &MapError, mode: Mode) -> Halt {
    let keeps = match mode {
        Mode::Wal | Mode::Poll | Mode::Auto => "PostgreSQL keeps the WAL",
        Mode::Embedded => "the source keeps the rest",
    };
    Halt {
        reason: HaltReason::TableUnfit,
        message: Chain(error).to_string(),
        meaning: format!("nothing is lost: the cursor is before this row, and {keeps}"),
        hint: match error {
            MapError::Unfit(unfit) => unfit.hint(),
            MapError::Inconsistent { .. } if mode == Mode::Embedded => {
                "let the source describe each table on each stream before its first row, with the columns that its \
                 rows have; then start again"
                    .into()
            }
            MapError::Poison(_) | MapError::Inconsistent { .. } => "start again".into(),
        },
    }
}

/// A change of the source can't be read.
pub(super) fn unreadable(error: &Unreadable, mode: Mode) -> Halt {
    let error = match error {
        Unreadable::Protocol(error) => error,
        Unreadable::NotText(table) => return unfit_table(&MapError::not_text(*table), mode),
    };
    let hint = match mode {
        Mode::Wal | Mode::Poll | Mode::Auto => {
            "start again; if it comes back, report it with the server's version"
        }
        Mode::Embedded => "start again; if it comes back, correct the source",
    };
    Halt {
        reason: HaltReason::Protocol,
        message: format!("{} sent a message that can't be read: {error}", mode.words().sender),
        meaning:
            "nothing is lost: the cursor is before this message; skipping it could lose an event"
                .into(),
        hint: hint.into(),
    }
}

/// A source of the caller's own waits for an answer that nothing gives.
pub(super) fn blocked() -> Halt {
    Halt {
        reason: HaltReason::Protocol,
        message: "the source sent Change::Blocked, which an embedded pipeline can't answer".into(),
        meaning: "everything before it is published; the change and all that follows wait in the source".into(),
        hint: "let the source find out what a batch needs before Stream::next returns it, then start again".into(),
    }
}

/// The source of an embedded pipeline sends rows of another table, and has not described the outbox: a name is probably
/// wrong, and every event would be skipped.
pub(super) fn outbox_not_described(other: &TableName, outbox: &TableName) -> Halt {
    Halt {
        reason: HaltReason::TableUnfit,
        message: format!(
            "the source sent a row of table {other}, and has not described the outbox {outbox}"
        ),
        meaning: "rows of other tables are no events. The cursor is before this row".into(),
        hint: format!(
            "if the events are in {other}, correct OutboxSpec::table; otherwise let the source describe {outbox} on \
             each stream, before the first row of any table"
        ),
    }
}

/// Rows from before the slot are only in the table, and this mode does not poll.
pub(super) fn unpolled(pipeline: &str) -> Halt {
    Halt {
        reason: HaltReason::SlotMissing,
        message: "the slot was created while the table was polled (mode = \"auto\"), and polling has not \
                  finished"
            .into(),
        meaning: "rows committed before the slot and not marked are only in the table; nothing is lost".into(),
        hint: format!(
            "start once with mode = \"auto\" until the log says that it streams again; to leave those rows out: UPDATE \
             postrider.cursor SET polls_on = false WHERE pipeline = {}",
            crate::postgres::names::literal(pipeline)
        ),
    }
}

/// The sink does not go with polling or a repair.
pub(super) fn polling_refused(why: PollingRefused, mode: Mode) -> Halt {
    let hint = match mode {
        Mode::Wal | Mode::Embedded => {
            "if the slot is lost, begin a new slot, and insert the rows that consumers do not have again \
             (docs/operations/halts.md#begin-a-new-slot). A repair that was begun with another sink is finished with \
             that sink"
        }
        Mode::Poll | Mode::Auto => "set mode = \"wal\", or use another sink",
    };
    Halt {
        reason: HaltReason::NotApplicable,
        message: why.to_string(),
        meaning: "nothing was changed, and nothing was published".to_owned(),
        hint: hint.to_owned(),
    }
}

/// A sink has announced transactions and has none.
pub(super) fn no_transactions(kind: &str, mode: Mode) -> Halt {
    let reason = format!("sink {kind:?} announces transactions, and has no calls for them");
    unfit_running(reason, "correct the sink: Sink::transactional must return it".to_owned(), mode)
}

/// What the sink has stored is of another history than the source.
pub(super) fn other_history_of_sink(
    stored: HistoryId,
    ours: HistoryId,
    transactional_id: Option<&str>,
) -> Halt {
    let (under, hint) = match transactional_id {
        None => (
            String::new(),
            "if the slot of this pipeline was created again, discard the position that the sink has stored \
             (docs/operations/halts.md#begin-a-new-slot). Otherwise connect a source and a sink that belong together"
                .to_owned(),
        ),
        Some(id) => (
            format!(", under transactional id \"{id}\","),
            "if the slot of this pipeline was created again: postrider setup --adopt-cursor \
             (docs/operations/halts.md#begin-a-new-slot). If a pipeline of another database has this transactional id, \
             set another transaction.id in the \
             configuration of one of them, and run postrider setup with it: no event is lost, and what that pipeline \
             published since its cursor row comes twice, once. Otherwise connect a source and brokers that belong \
             together"
                .to_owned(),
        ),
    };
    Halt {
        reason: HaltReason::OtherHistory,
        message: format!(
            "the sink has stored{under} a position of history {stored}, which the source of history {ours} does not \
             have"
        ),
        meaning: "the sink may have events that the source has lost; nothing was published"
            .to_owned(),
        hint,
    }
}

/// The sink has a part of a transaction, and the changes of the transaction are counted in another way now.
pub(super) fn recounted_transaction(
    pipeline: &str,
    commit: Offset,
    transactional_id: Option<&str>,
) -> Halt {
    let again = transactional_id.map_or_else(String::new, |_| {
        format!(
            ". (b) to continue at the cursor row, so that consumers see twice what was published since that row, at \
             least the published part of this transaction: postrider setup --adopt-cursor -p {pipeline}. Then start \
             again"
        )
    });
    Halt {
        reason: HaltReason::PipelineChanged,
        message: format!(
            "the sink has a part of the transaction that was committed at {commit}, and outbox.message_prefix or \
             source.publication was changed since: the stream has other changes of this transaction now"
        ),
        meaning: "nothing was published, and nothing is lost. The sink has stored how many changes are published, and \
                  with the new settings the same number would leave out events, or publish some twice"
            .to_owned(),
        hint: format!(
            "(a) to lose and repeat nothing: set both as they were, start, and wait until postrider status shows no \
             lag for a few seconds; stop, set the new values, and start again{again}"
        ),
    }
}
