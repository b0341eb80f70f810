//! The reasons for which a pipeline halts, and how a chain of errors is printed.
//!
//! Error types are in the modules that fail. Their `Display` prints one error without its sources; [`Chain`] prints all
//! of them. Errors are classified by SQLSTATE and by Kafka's error codes, never by text.

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

/// Why a pipeline stopped until an operator acts: continuing could lose or reorder events.
///
/// A halt has a code, which log, status and the operations documents have too, what happened, what it means for the
/// data, and what to do. It never contains a payload or a secret.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Halt {
    /// The reason.
    pub reason: HaltReason,
    /// What happened, with the names of the objects: a lowercase fragment without a full stop.
    pub message: String,
    /// What it means for the data.
    pub meaning: String,
    /// Commands or edits that fix it, in order.
    pub hint: String,
}

impl fmt::Display for Halt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}: {}", self.reason.code(), self.reason.name(), self.message)
    }
}

impl Error for Halt {}

/// Why a source or a store of an embedded pipeline has failed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Failure {
    /// The pipeline connects again, after a pause that grows up to 15 s, without a limit of attempts.
    Temporary {
        /// What happened, in one line without secrets and payloads.
        reason: String,
        /// What fixes it, if an operator can do something.
        hint: Option<String>,
    },
    /// An operator must act: the pipeline ends.
    Halt(Box<Halt>),
}

impl Failure {
    /// A temporary failure because of this error, with all its sources.
    pub fn temporary(error: &(dyn Error + 'static)) -> Self {
        Self::Temporary { reason: Chain(error).to_string(), hint: None }
    }

    /// The end of a pipeline until an operator acts. `meaning`: what it means for the data; `hint`: what fixes it.
    pub fn halt(
        reason: HaltReason,
        message: impl Into<String>,
        meaning: impl Into<String>,
        hint: impl Into<String>,
    ) -> Self {
        let (message, meaning, hint) = (message.into(), meaning.into(), hint.into());
        Self::Halt(Box::new(Halt { reason, message, meaning, hint }))
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Temporary { reason, .. } => f.write_str(reason),
            Self::Halt(halt) => halt.fmt(f),
        }
    }
}

impl Error for Failure {}

macro_rules! halt_reasons {
    ($($(#[$doc:meta])* $variant:ident = $code:literal $name:literal,)*) => {
        /// The reasons for which a pipeline halts, each with a stable code.
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
    /// The slot was invalidated: the server removed WAL that it needs.
    SlotLost = "PR001" "slot_lost",
    /// The slot does not exist. A reconnect never creates a slot.
    SlotMissing = "PR002" "slot_missing",
    /// The slot belongs to another plugin or another database, or is physical.
    SlotUnusable = "PR003" "slot_unusable",
    /// The server is not the one that the cursor belongs to, or its timeline is lower than before.
    OtherHistory = "PR004" "other_history",
    /// The cursor or the slot is ahead of the server's WAL.
    PositionAhead = "PR005" "position_ahead",
    /// Another client moved the slot past the cursor.
    SlotMoved = "PR006" "slot_moved",
    /// The publication does not exist, now or at the position being decoded.
    PublicationMissing = "PR007" "publication_missing",
    /// The publication does not publish the outbox table's inserts whole.
    PublicationUnfit = "PR008" "publication_unfit",
    /// The outbox table does not exist or lacks a column the layout needs.
    TableUnfit = "PR009" "table_unfit",
    /// Postrider's own schema is missing or of another version.
    SchemaUnfit = "PR010" "schema_unfit",
    /// An event can't be published as it is.
    PoisonEvent = "PR011" "poison_event",
    /// The server violated the protocol.
    Protocol = "PR012" "protocol",
    /// The server can't be used as it is configured: `wal_level`, encoding, version, rights.
    ServerUnfit = "PR013" "server_unfit",
    /// The server refused the login, TLS or a right before this process had ever streamed or polled.
    AccessDenied = "PR014" "access_denied",
    /// A setting of the sink is refused by librdkafka or by the broker.
    SinkUnfit = "PR015" "sink_unfit",
    /// The server fails at the same WAL position each time.
    Wedged = "PR016" "wedged",
    /// The slot retains more WAL than `source.wal_retain_max` allows.
    WalBudget = "PR017" "wal_budget",
    /// The start check found that the row status of published rows can't be written: a column is missing, or the write
    /// would move rows between partitions. A write that the server refuses later is `TableUnfit`.
    MarksUnfit = "PR018" "marks_unfit",
    /// Another process uses the pipeline or its slot; commands that would disturb it are refused.
    RelayRunning = "PR020" "relay_running",
    /// The command, or the sink, does not apply to a pipeline of this mode or without a table.
    NotApplicable = "PR021" "not_applicable",
    /// A first start is requested, but the pipeline has a cursor row or a slot already.
    AlreadySetUp = "PR022" "already_set_up",
    /// A row of the outbox table was updated, and the configuration says that this never happens.
    RowUpdated = "PR023" "row_updated",
    /// Schema `postrider` belongs to another role, or has objects that Postrider did not create: they could execute
    /// code with the rights of this session.
    SchemaUntrusted = "PR024" "schema_untrusted",
    /// Mode, destination, table or layout differ from those that the pipeline's position belongs to.
    PipelineChanged = "PR025" "pipeline_changed",
}
