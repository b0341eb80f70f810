//! What a statement on the control connection is for, as a label of its errors.
//!
//! The meaning of an SQLSTATE depends on the statement: 55000 of `START_REPLICATION` is a lost slot, and 55000 of an
//! UPDATE of the outbox table is a missing replica identity.

use pg_replication::error::SourceError;

macro_rules! statements {
    ($($(#[$doc:meta])* $variant:ident = $name:literal,)*) => {
        /// Statements of Postrider by purpose.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
        pub enum Statement { $($(#[$doc])* $variant,)* }

        impl Statement {
            /// Every statement.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];

            /// The name of the statement in the table of errors.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }
        }
    };
}

statements! {
    /// Writes the row status of published rows of the outbox table, in stream mode.
    Mark = "mark",
    /// Polling: locks and reads rows of the outbox table.
    Claim = "claim",
    /// Polling: writes the row status of claimed rows, or moves them to the table of dead letters.
    Settle = "settle",
    /// Reads, writes or takes over the cursor row.
    Cursor = "cursor",
    /// Reads or writes rows of the parked table.
    Parked = "parked",
    /// Listens for requests of operators, or reads them.
    Requests = "requests",
    /// Reads the state of the slot, the publication or the end of WAL while a stream runs.
    Look = "look",
}

/// Connects a [`SourceError`] with the statement that failed.
pub trait StatementError: Sized {
    /// Labels the error with `statement`, unless it has a label already.
    #[must_use]
    fn of(self, statement: Statement) -> Self;

    /// The statement that failed; `None` for login, handshake and stream.
    fn statement(&self) -> Option<Statement>;
}

impl StatementError for SourceError {
    fn of(self, statement: Statement) -> Self {
        self.labelled(statement.name())
    }

    fn statement(&self) -> Option<Statement> {
        let label = self.label()?;
        Statement::ALL.iter().copied().find(|statement| statement.name() == label)
    }
}
