//! Words all errors share: how a chain is printed, and why a pipeline halts.
//!
//! Errors themselves live beside what fails. `Display` prints one error, never its sources; [`Chain`] prints them
//! all, in the one place that logs. Classes come from SQLSTATE and Kafka's codes, never from text.

use std::error::Error;
use std::fmt;

/// Prints an error with all its sources: `what: why: why`.
pub struct Chain<'a>(pub &'a (dyn Error + 'static));

impl fmt::Display for Chain<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)?;
        let mut source = self.0.source();
        while let Some(error) = source {
            write!(f, ": {error}")?;
            source = error.source();
        }
        Ok(())
    }
}

/// Why a pipeline stopped for an operator: going on could lose or reorder events.
///
/// Each has a code that stands in log, status and `docs/operations.md`, what happened, what it means for the data,
/// and the lines that get out of it. Nothing here holds a payload or a secret.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Halt {
    /// Which of the known reasons.
    pub reason: HaltReason,
    /// What happened, with the names of the objects: a lowercase fragment without full stop.
    pub message: String,
    /// What it means for the data.
    pub meaning: String,
    /// Commands or edits that mend it, in order.
    pub hint: String,
}

impl fmt::Display for Halt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}: {}", self.reason.code(), self.reason.name(), self.message)
    }
}

impl Error for Halt {}

macro_rules! halt_reasons {
    ($($(#[$doc:meta])* $variant:ident = $code:literal $name:literal,)*) => {
        /// The reasons a pipeline halts for, each with a stable code.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
        pub enum HaltReason { $($(#[$doc])* $variant,)* }

        impl HaltReason {
            /// Every reason, in order of code.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];

            /// The stable code, `PR001`.
            pub const fn code(self) -> &'static str {
                match self { $(Self::$variant => $code,)* }
            }

            /// The stable name, `slot_lost`.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }
        }
    };
}

halt_reasons! {
    /// The slot was invalidated: WAL it needs is gone.
    SlotLost = "PR001" "slot_lost",
    /// The slot does not exist. It is never created on a reconnect.
    SlotMissing = "PR002" "slot_missing",
    /// The slot is another plugin's, another database's, or physical.
    SlotUnusable = "PR003" "slot_unusable",
    /// The server is not the one the cursor belongs to, or its timeline went back.
    OtherHistory = "PR004" "other_history",
    /// The cursor or the slot is ahead of the server's WAL.
    PositionAhead = "PR005" "position_ahead",
    /// The slot was moved past the cursor by somebody else.
    SlotMoved = "PR006" "slot_moved",
    /// The publication does not exist, now or at the position being decoded.
    PublicationMissing = "PR007" "publication_missing",
    /// The publication does not publish the outbox table's inserts whole.
    PublicationUnfit = "PR008" "publication_unfit",
    /// The outbox table does not exist or lacks a column the layout needs.
    TableUnfit = "PR009" "table_unfit",
    /// Postrider's own schema is missing or of another version.
    SchemaUnfit = "PR010" "schema_unfit",
    /// An event can never be published as it is.
    PoisonEvent = "PR011" "poison_event",
    /// The server sent what the protocol does not allow.
    Protocol = "PR012" "protocol",
    /// The server can't be used as it is configured: `wal_level`, encoding, version, rights.
    ServerUnfit = "PR013" "server_unfit",
    /// The server refused the login, TLS or a right before this process had ever streamed.
    AccessDenied = "PR014" "access_denied",
    /// A setting of the sink is refused by librdkafka or by the broker.
    SinkUnfit = "PR015" "sink_unfit",
    /// The server fails on the same WAL position each time.
    Wedged = "PR016" "wedged",
    /// The slot holds back more WAL than the operator allows.
    WalBudget = "PR017" "wal_budget",
    /// The check at the start found that published rows can't be marked: a column is missing, or a mark would move rows
    /// between partitions. A mark that the server refuses while running is `TableUnfit`.
    MarksUnfit = "PR018" "marks_unfit",
    /// Another process is at work on the pipeline or its slot; commands that would disturb it are refused.
    RelayRunning = "PR020" "relay_running",
    /// The command does not apply to a pipeline of this mode or without a table.
    NotApplicable = "PR021" "not_applicable",
    /// A first start is asked for, and the pipeline has a cursor row or a slot already.
    AlreadySetUp = "PR022" "already_set_up",
    /// A row of the outbox table was updated, and the configuration says that this never happens.
    RowUpdated = "PR023" "row_updated",
    /// Schema `postrider` belongs to another role or has objects that are not ours: it could run code as this session.
    SchemaUntrusted = "PR024" "schema_untrusted",
    /// Mode, destination, table or layout are not those that the pipeline's position belongs to.
    PipelineChanged = "PR025" "pipeline_changed",
}
