//! The conditions on one row, as SQL: all of them must hold before it is removed.

/// Why a row is kept. In this order, the first that applies is reported.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Guard {
    /// It is not older than `keep`, or it has no time.
    Age,
    /// Its transaction is not known to be resolved: its event may not have been published.
    Unresolved,
    /// It does not have its layout's mark of a published row.
    Unmarked,
    /// Its event is parked, or it has no id.
    Parked,
    /// It may have been committed after a bookmark.
    Bookmark,
    /// A consumer group of a log with references has not passed its event.
    Group,
    /// Its layout keeps it: it is a claim check whose rows a consumer has to read.
    Unread,
}

impl Guard {
    /// All of them, in order.
    pub const ALL: [Self; 7] = [
        Self::Age,
        Self::Unresolved,
        Self::Unmarked,
        Self::Parked,
        Self::Bookmark,
        Self::Group,
        Self::Unread,
    ];

    /// The name, for metrics and JSON.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Age => "age",
            Self::Unresolved => "unresolved",
            Self::Unmarked => "unmarked",
            Self::Parked => "parked",
            Self::Bookmark => "bookmark",
            Self::Group => "group",
            Self::Unread => "unread",
        }
    }

    /// What keeps such rows, for people.
    pub const fn words(self) -> &'static str {
        match self {
            Self::Age => "not older than retention.keep",
            Self::Unresolved => "their transactions are not known to be resolved",
            Self::Unmarked => "without the layout's mark of published rows",
            Self::Parked => "their events are parked",
            Self::Bookmark => "newer than the oldest bookmark",
            Self::Group => "a consumer group has not passed their events",
            Self::Unread => "claim checks whose rows are not read by every group",
        }
    }
}

/// A guard as SQL.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RowGuard {
    /// Which one.
    pub guard: Guard,
    /// Whether the guard allows the removal of a row (`o`): true or false, never NULL.
    pub allows: String,
}

/// The condition that all of the guards allow the removal of a row (`o`).
pub(crate) fn all(guards: &[RowGuard]) -> String {
    let allows: Vec<&str> = guards.iter().map(|guard| guard.allows.as_str()).collect();
    if allows.is_empty() { "false".to_owned() } else { allows.join("\n  AND ") }
}

/// Columns that count rows (`o`) by the first guard that keeps each, one for each of [`Guard::ALL`].
pub(crate) fn counts(guards: &[RowGuard]) -> String {
    let count = |of: Guard| {
        let Some(at) = guards.iter().position(|guard| guard.guard == of) else {
            return "0::int8".to_owned();
        };
        let before = guards.iter().take(at).map(|guard| format!("{} AND ", guard.allows));
        let before: String = before.collect();
        let refuses = guards.get(at).map_or_else(String::new, |guard| guard.allows.clone());
        format!("count(*) FILTER (WHERE {before}NOT {refuses})")
    };
    Guard::ALL.map(count).join(", ")
}
