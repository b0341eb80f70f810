//! The states of an outbox row as data: which columns tell whether a row is ready, delayed, published, failed or
//! expired, and what is written into them. The interface between a layout and a database.
//!
//! A layout describes itself with the types of this module ([`RowState`], a constant), and has no SQL. The dialect of a
//! database renders [`Condition`], [`Assignment`], [`StateType`] and [`FailureLimit`]: it matches on these types, and
//! never on a layout. So the states of another layout are one more constant, and another database is one more dialect.

use std::fmt;

/// A column of a row's state. [`NamedRowState::name`] gives the name that the column has in the table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StateColumn(&'static str);

impl StateColumn {
    /// The column that the layout calls `name`.
    pub const fn new(name: &'static str) -> Self {
        Self(name)
    }
}

/// The type of a [`StateColumn`], and its value in a row that the application inserts without it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StateType {
    /// A point in time; NULL in a new row.
    Time,
    /// A point in time; that of the insert in a new row.
    InsertTime,
    /// A text of any length; NULL in a new row.
    Text,
    /// One of a few words.
    Word {
        /// The length of the column, if it has one. Unit: characters.
        chars_max: Option<u16>,
        /// The default.
        first: &'static str,
    },
    /// A whole number of 16 bits, not NULL; this is its default.
    Number16(u16),
    /// A whole number of 32 bits, not NULL; this is its default.
    Number32(u32),
}

/// A condition on one row.
///
/// As in SQL, neither a comparison with a NULL nor its negation holds. [`DelayOver`](Self::DelayOver),
/// [`Expired`](Self::Expired) and [`RetryDue`](Self::RetryDue) say what a NULL in their time means; of these, either
/// the condition or its negation holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Condition {
    /// Holds for every row.
    Always,
    /// The column is NULL.
    IsNull(StateColumn),
    /// The column is this text.
    Is(StateColumn, &'static str),
    /// The column is one of these texts.
    IsOneOf(StateColumn, &'static [&'static str]),
    /// The column is the number 0.
    IsZero(StateColumn),
    /// The time in the column has come; NULL is no delay. An ambiguous local time is the earlier instant.
    DelayOver(StateColumn),
    /// The time in the column is over; NULL is never over. An ambiguous local time is the later instant.
    Expired(StateColumn),
    /// A failed row is due for another attempt: it has failed less often than the configured maximum, and the pause
    /// after its failures is over. A NULL in `since` is no pause. An ambiguous local time is the earlier instant.
    RetryDue {
        /// Counts the failures.
        failures: StateColumn,
        /// The time of the last attempt.
        since: StateColumn,
    },
    /// The condition does not hold.
    Not(&'static Condition),
    /// All of them hold.
    All(&'static [Condition]),
    /// At least one of them holds.
    Any(&'static [Condition]),
}

impl Condition {
    /// The first column that the condition reads; `None` if it reads none.
    pub fn column(&self) -> Option<StateColumn> {
        match self {
            Self::Always => None,
            Self::IsNull(column)
            | Self::Is(column, _)
            | Self::IsOneOf(column, _)
            | Self::IsZero(column)
            | Self::DelayOver(column)
            | Self::Expired(column)
            | Self::RetryDue { failures: column, .. } => Some(*column),
            Self::Not(inner) => inner.column(),
            Self::All(all) | Self::Any(all) => all.iter().find_map(Self::column),
        }
    }
}

/// What a status update writes into one column.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Assignment {
    /// This text.
    Text(StateColumn, &'static str),
    /// One text if this failure is the row's last one by its [`FailureLimit`], and another one before.
    TextByLimit {
        /// The column.
        column: StateColumn,
        /// The text after the last failure.
        last: &'static str,
        /// The text after any other failure.
        before: &'static str,
    },
    /// The time at which the row was claimed: the begin of the attempt.
    ClaimTime(StateColumn),
    /// The time at which the outcome is written: after the broker's answer.
    SettleTime(StateColumn),
    /// The time at which the outcome is written, plus the pause after this failure.
    RetryTime(StateColumn),
    /// One more.
    Increment(StateColumn),
    /// One more, up to this number, because the count goes on for ever and the type of the column does not.
    IncrementUpTo(StateColumn, u32),
    /// The text of this failure.
    ErrorText(StateColumn),
}

impl Assignment {
    /// The column that is written.
    pub fn column(&self) -> StateColumn {
        match self {
            Self::Text(column, _)
            | Self::TextByLimit { column, .. }
            | Self::ClaimTime(column)
            | Self::SettleTime(column)
            | Self::RetryTime(column)
            | Self::Increment(column)
            | Self::IncrementUpTo(column, _)
            | Self::ErrorText(column) => *column,
        }
    }
}

/// What becomes of a published row.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Done {
    /// It is deleted.
    Delete,
    /// It stays, with these values.
    Set(&'static [Assignment]),
}

/// What a failure writes into its row.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Failed {
    /// Counts the failures of the row.
    pub counter: StateColumn,
    /// Which failure is the last one.
    pub limit: FailureLimit,
    /// Where the pause after a failure is recorded.
    pub pause: Pause,
    /// What is written.
    pub set: &'static [Assignment],
    /// After the last failure the row is moved to the application's dead-letter table, if that exists: beside the
    /// outbox, with this suffix to its name. Without the table, no failure is the last one.
    pub dead_letters: Option<&'static str>,
}

impl Failed {
    /// Whether each row gets a text of its own.
    pub fn records_error(&self) -> bool {
        self.set.iter().any(|assignment| matches!(assignment, Assignment::ErrorText(_)))
    }
}

/// Which failure of a row is the last one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FailureLimit {
    /// The configured maximum.
    Configured,
    /// The first one beyond the configured maximum.
    BeyondConfigured,
    /// The one whose number is in this column of the row.
    Column(StateColumn),
}

/// Where the pause after a failure is recorded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pause {
    /// Not in the row: a failed row is ready, and the relay keeps the pause in memory.
    InMemory,
    /// The column has the earliest time of the next attempt.
    Until(StateColumn),
    /// The column has the time of the last attempt, from which the pause is counted.
    Since(StateColumn),
}

/// Rows that are not published any more, although they are ready.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Expiry {
    /// Which rows.
    pub condition: Condition,
    /// What is written into them.
    pub set: &'static [Assignment],
}

/// The states of a layout's rows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RowState {
    /// Every column that a state reads or writes: the table must have them.
    pub columns: &'static [(StateColumn, StateType)],
    /// Rows whose event was not published, expired ones included.
    pub not_done: Condition,
    /// Rows whose event was not published, except those with the status of an expired row. A row whose time is over,
    /// and whose status does not say so yet, is one of them.
    pub unpublished: Condition,
    /// Rows that may be published now, regardless of other rows.
    pub ready: Condition,
    /// Unpublished rows that are not ready, and hold back the later rows of their aggregate if failures block it
    /// (`parking.on_poison = "block_key"`).
    pub blocked: Option<Condition>,
    /// Used in place of `blocked` with another `parking.on_poison`: rows that the application has delayed.
    pub delayed: Option<Condition>,
    /// The rows that an index of unpublished rows contains. Its first column tells whether a row is published.
    pub indexed: Condition,
    /// What becomes of a published row.
    pub done: Done,
    /// What a failure writes; `None` if a row can't record it.
    pub failed: Option<Failed>,
    /// Rows that expire.
    pub expired: Option<Expiry>,
    /// Rows that retention may remove when they are published and old; `None`: all of them.
    pub removable: Option<Condition>,
}

impl RowState {
    /// There is no column of a state: every row in the table is unpublished, and a published row is deleted.
    pub const DELETE: Self = Self {
        columns: &[],
        not_done: Condition::Always,
        unpublished: Condition::Always,
        ready: Condition::Always,
        blocked: None,
        delayed: None,
        indexed: Condition::Always,
        done: Done::Delete,
        failed: None,
        expired: None,
        removable: None,
    };
}

/// The states of one table's rows: those of its layout, with the table's own names of columns.
#[derive(Clone, PartialEq, Eq)]
pub struct NamedRowState {
    /// The layout's.
    pub state: &'static RowState,
    /// The columns that the table calls otherwise.
    renamed: Vec<(StateColumn, String)>,
}

/// The names of the columns. The rest is a constant of the layout.
impl fmt::Debug for NamedRowState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.columns()).finish()
    }
}

impl NamedRowState {
    /// With the layout's names.
    pub const fn new(state: &'static RowState) -> Self {
        Self { state, renamed: Vec::new() }
    }

    /// The table calls the column `name` that the layout calls `column`. Nothing happens if no state has the column.
    #[must_use]
    pub fn with_name(mut self, column: &str, name: &str) -> Self {
        let of_state = self.state.columns.iter().find(|(of, _)| of.0 == column);
        if let Some((column, _)) = of_state {
            self.renamed.retain(|(of, _)| of != column);
            self.renamed.push((*column, name.to_owned()));
        }
        self
    }

    /// The name of the column in the table. Not quoted.
    pub fn name(&self, column: StateColumn) -> &str {
        let renamed = self.renamed.iter().find(|(of, _)| *of == column);
        renamed.map_or(column.0, |(_, name)| name.as_str())
    }

    /// The names of the columns that the table must have.
    pub fn columns(&self) -> Vec<&str> {
        self.state.columns.iter().map(|(column, _)| self.name(*column)).collect()
    }

    /// Whether a row records that it is published. Otherwise a published row is deleted.
    pub fn has_status(&self) -> bool {
        !self.state.columns.is_empty()
    }

    /// The type of the column that the table calls `name`; `None` if no state has it.
    pub fn column_type(&self, name: &str) -> Option<StateType> {
        let mut columns = self.state.columns.iter();
        columns.find(|(column, _)| self.name(*column) == name).map(|(_, of)| *of)
    }

    /// The name of the column that counts failures; `None` if a row can't record a failure.
    pub fn failures(&self) -> Option<&str> {
        self.state.failed.as_ref().map(|failed| self.name(failed.counter))
    }

    /// The name of the column that has the time of the last attempt, if the pause after a failure is counted from it.
    pub fn last_attempt(&self) -> Option<&str> {
        match self.state.failed.as_ref()?.pause {
            Pause::Since(column) => Some(self.name(column)),
            Pause::InMemory | Pause::Until(_) => None,
        }
    }

    /// The name of the column since whose time a row is ready that was delayed, or has failed; `None` if the table
    /// records no such time.
    pub fn ready_since(&self) -> Option<&str> {
        match self.state.failed.as_ref()?.pause {
            Pause::Since(column) | Pause::Until(column) => Some(self.name(column)),
            Pause::InMemory => None,
        }
    }

    /// The names of the columns that status updates write. `deletes`: published rows are deleted, whatever the layout
    /// would write.
    pub fn written(&self, deletes: bool) -> Vec<&str> {
        let done = match self.state.done {
            Done::Set(set) if !deletes => set,
            Done::Set(_) | Done::Delete => &[],
        };
        let failed = self.state.failed.as_ref().map_or(&[][..], |failed| failed.set);
        let expired = self.state.expired.as_ref().map_or(&[][..], |expired| expired.set);
        let written = |column: &StateColumn| {
            done.iter().chain(failed).chain(expired).any(|set| set.column() == *column)
        };
        let columns = self.state.columns.iter().map(|(column, _)| *column);
        columns.filter(written).map(|column| self.name(column)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STATUS: StateColumn = StateColumn::new("status");
    const TRIES: StateColumn = StateColumn::new("tries");
    const AT: StateColumn = StateColumn::new("at");
    const STATE: RowState = RowState {
        columns: &[
            (AT, StateType::Time),
            (TRIES, StateType::Number16(0)),
            (STATUS, StateType::Word { chars_max: None, first: "new" }),
        ],
        ready: Condition::All(&[Condition::Always, Condition::Not(&Condition::IsNull(STATUS))]),
        done: Done::Set(&[Assignment::Text(STATUS, "done"), Assignment::SettleTime(AT)]),
        failed: Some(Failed {
            counter: TRIES,
            limit: FailureLimit::Configured,
            pause: Pause::InMemory,
            set: &[Assignment::Increment(TRIES)],
            dead_letters: None,
        }),
        ..RowState::DELETE
    };

    #[test]
    fn a_column_has_the_tables_name_wherever_it_is_asked_for() {
        let named = NamedRowState::new(&STATE).with_name("tries", "n").with_name("other", "x");
        assert_eq!(named.columns(), ["at", "n", "status"]);
        assert_eq!(format!("{named:?}"), r#"["at", "n", "status"]"#);
        assert_eq!(named.failures(), Some("n"));
        assert_eq!(named.column_type("n"), Some(StateType::Number16(0)));
        assert_eq!(named.column_type("tries"), None);
        assert_eq!(named.with_name("tries", "m").columns(), ["at", "m", "status"]);
    }

    #[test]
    fn what_is_written_depends_on_whether_rows_are_deleted() {
        let named = NamedRowState::new(&STATE);
        assert_eq!(named.written(false), ["at", "tries", "status"]);
        assert_eq!(named.written(true), ["tries"]);
        assert!(NamedRowState::new(&RowState::DELETE).written(false).is_empty());
    }

    #[test]
    fn the_first_column_of_a_condition_is_found_in_it() {
        assert_eq!(STATE.ready.column(), Some(STATUS));
        assert_eq!(RowState::DELETE.ready.column(), None);
    }
}
