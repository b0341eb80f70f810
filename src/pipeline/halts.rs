//! The halts of the pipeline itself: settings, the sink, the table, one event. Halts because of the server's state or
//! errors are in `postgres`. A halt never contains a payload.

use super::requeue::DOUBT;
use super::spec::Mode;
use crate::error::{Chain, Halt, HaltReason};
use crate::event::{Position, shown_id};
use crate::outbox::{MapError, Poison, SpecError};
use crate::postgres::Names;
use crate::record::Refusal;
use crate::sink::{SinkConfig, SinkError};

/// What to do about a row of a source of the caller's own that can't be published. Its table is not known here.
const EMBEDDED_HINT: &str = "correct the row in the source, or let the source send Change::Other in \
                             its place; then start again";

/// What a halt because of one event means.
const BEFORE_IT: &str =
    "everything before it is published; it and all that follows wait in the database";

pub(super) fn unfit_outbox(errors: &[SpecError]) -> Halt {
    let list: Vec<String> = errors.iter().map(|error| Chain(error).to_string()).collect();
    Halt {
        reason: HaltReason::TableUnfit,
        message: list.join("; "),
        meaning: "nothing was touched".into(),
        hint: "correct the configuration and start again".into(),
    }
}

pub(super) fn unfit_sink(error: &SinkError) -> Halt {
    unfit_running(Chain(error).to_string(), error.hint().to_owned())
}

pub(super) fn unfit_running(reason: String, hint: String) -> Halt {
    Halt {
        reason: HaltReason::SinkUnfit,
        message: reason,
        meaning: "nothing is lost: what is not acknowledged waits in the database".into(),
        hint,
    }
}

/// The sink refuses this event for good. The halt shows its ID, position and topic, never its payload.
pub(super) fn refused_event(
    sink: &dyn SinkConfig,
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
        meaning: BEFORE_IT.to_owned(),
        hint: sink.hint(reason, topic),
    }
}

/// A row of the outbox table was updated, and `outbox.on_update = "halt"`.
pub(super) fn updated_row(names: &Names, id: Option<&str>, at: Option<Position>) -> Halt {
    let table = names.table.as_ref().map_or_else(String::new, ToString::to_string);
    let row = id.map_or_else(|| "a row".to_owned(), |id| format!("the row with id {id:?}"));
    let at = at.map_or_else(String::new, |at| format!(" at {at}"));
    Halt {
        reason: HaltReason::RowUpdated,
        message: format!("{row} of table {table} was updated{at}, and outbox.on_update is \"halt\""),
        meaning: format!(
            "the event of this row is published as it was inserted, not as it is now; {BEFORE_IT}"
        ),
        hint: "find out which session updates the table, and what consumers have to know. To skip this and every \
               other UPDATE: set outbox.on_update = \"skip\" and start again; nothing is lost by it. When the pipeline \
               has passed it, \"halt\" can be set again"
            .to_owned(),
    }
}

/// An event can't be read from its row. The halt shows its ID, position and column, never its payload.
pub(super) fn poison_event(poison: &Poison, mode: Mode) -> Halt {
    let hint = if mode == Mode::Embedded { EMBEDDED_HINT.to_owned() } else { poison.hint() };
    Halt {
        reason: HaltReason::PoisonEvent,
        message: poison.to_string(),
        meaning: BEFORE_IT.to_owned(),
        hint,
    }
}

/// A row has the ID of a parked event, and may be that event or another one.
pub(super) fn doubted_event(id: &str, position: Position) -> Halt {
    Halt {
        reason: HaltReason::PoisonEvent,
        message: format!("event {:?} at {position} can't be published: {DOUBT}", shown_id(id)),
        meaning: BEFORE_IT.to_owned(),
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

pub(super) fn unfit_table(error: &MapError) -> Halt {
    Halt {
        reason: HaltReason::TableUnfit,
        message: Chain(error).to_string(),
        meaning: "nothing is lost: the cursor is before this row, and PostgreSQL keeps the WAL"
            .into(),
        hint: match error {
            MapError::Unfit(unfit) => unfit.hint(),
            MapError::Poison(_) | MapError::Inconsistent { .. } => "start again".into(),
        },
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
