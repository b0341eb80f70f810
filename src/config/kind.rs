//! What a key takes, as its reader says it: the words of the schema.

/// What a key takes. Bounds of durations and sizes are the reader's alone: a schema has no word for them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    /// A table.
    Table,
    /// A table, or `false`.
    TableOrFalse,
    /// Any string.
    Text,
    /// `true` or `false`.
    Boolean,
    /// A whole number.
    Integer {
        /// The least.
        min: u64,
        /// The most.
        max: u64,
    },
    /// A duration with its unit.
    Duration,
    /// A duration with its unit, or `0` for never.
    DurationOrNever,
    /// A size with its unit.
    Size,
    /// One of a few words.
    Word(Vec<String>),
    /// An array of any of a few words.
    Words(Vec<String>),
    /// A string, a number or a boolean, or a table of such, where a dotted name is not in quotes.
    Scalar,
}
