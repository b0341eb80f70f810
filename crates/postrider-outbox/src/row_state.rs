//! The states of each layout's rows, with the types of [`postrider_core::row_state`]: a constant for each layout that
//! has columns for them. `tests/it/poll_claims/marks.rs` compares what is written with the statements of each layout's
//! own relay.

use postrider_core::row_state::Assignment::{
    ClaimTime, ErrorText, Increment, IncrementUpTo, RetryTime, SettleTime, Text, TextByLimit,
};
use postrider_core::row_state::Condition::{
    All, Any, DelayOver, Expired, Is, IsNull, IsOneOf, IsZero, Not, RetryDue,
};
use postrider_core::row_state::{
    Done, Expiry, Failed, FailureLimit, Pause, RowState, StateColumn, StateType,
};

/// A time, NULL until the row is published.
pub(super) const ADR30: RowState = {
    const PUBLISHED_AT: StateColumn = StateColumn::new("published_at");
    RowState {
        columns: &[(PUBLISHED_AT, StateType::Time)],
        not_done: IsNull(PUBLISHED_AT),
        unpublished: IsNull(PUBLISHED_AT),
        ready: IsNull(PUBLISHED_AT),
        blocked: None,
        delayed: None,
        indexed: IsNull(PUBLISHED_AT),
        done: Done::Set(&[SettleTime(PUBLISHED_AT)]),
        failed: None,
        expired: None,
        removable: None,
    }
};

/// A time, NULL until the row is published. A row has a delay, which its application or a failure has set, and is moved
/// to a dead-letter table after its last failure.
pub(super) const COMMERCE: RowState = {
    const PROCESSED_AT: StateColumn = StateColumn::new("processed_at");
    const ATTEMPTS: StateColumn = StateColumn::new("attempts");
    const AVAILABLE_AT: StateColumn = StateColumn::new("available_at");
    const LAST_ERROR: StateColumn = StateColumn::new("last_error");
    RowState {
        columns: &[
            (PROCESSED_AT, StateType::Time),
            (ATTEMPTS, StateType::Number16(0)),
            (AVAILABLE_AT, StateType::InsertTime),
            (LAST_ERROR, StateType::Text),
        ],
        not_done: IsNull(PROCESSED_AT),
        unpublished: IsNull(PROCESSED_AT),
        ready: All(&[IsNull(PROCESSED_AT), DelayOver(AVAILABLE_AT)]),
        blocked: Some(All(&[IsNull(PROCESSED_AT), Not(&DelayOver(AVAILABLE_AT))])),
        // A delay that no failure has caused counts even if failures do not hold back other rows.
        delayed: Some(All(&[
            IsNull(PROCESSED_AT),
            Not(&DelayOver(AVAILABLE_AT)),
            IsZero(ATTEMPTS),
        ])),
        indexed: IsNull(PROCESSED_AT),
        done: Done::Set(&[SettleTime(PROCESSED_AT)]),
        failed: Some(Failed {
            counter: ATTEMPTS,
            limit: FailureLimit::BeyondConfigured,
            pause: Pause::Until(AVAILABLE_AT),
            // Without a dead-letter table a row is retried for ever.
            set: &[IncrementUpTo(ATTEMPTS, 32_767), RetryTime(AVAILABLE_AT), ErrorText(LAST_ERROR)],
            dead_letters: Some("_dlq"),
        }),
        expired: None,
        removable: None,
    }
};

/// `pending`, `published` or `failed`. The row itself says how often it may fail, and when it expires.
pub(super) const GCX: RowState = {
    const STATUS: StateColumn = StateColumn::new("status");
    const RETRY_COUNT: StateColumn = StateColumn::new("retry_count");
    const MAX_RETRIES: StateColumn = StateColumn::new("max_retries");
    const PUBLISHED_AT: StateColumn = StateColumn::new("published_at");
    const EXPIRES_AT: StateColumn = StateColumn::new("expires_at");
    RowState {
        columns: &[
            (STATUS, StateType::Word { chars_max: Some(20), first: "pending" }),
            (RETRY_COUNT, StateType::Number16(0)),
            (MAX_RETRIES, StateType::Number16(5)),
            (PUBLISHED_AT, StateType::Time),
            (EXPIRES_AT, StateType::Time),
        ],
        not_done: Not(&Is(STATUS, "published")),
        // An expired row has the status of one that has failed.
        unpublished: Any(&[
            Is(STATUS, "pending"),
            All(&[Is(STATUS, "failed"), Not(&Expired(EXPIRES_AT))]),
        ]),
        ready: Is(STATUS, "pending"),
        blocked: Some(All(&[Is(STATUS, "failed"), Not(&Expired(EXPIRES_AT))])),
        delayed: None,
        indexed: Is(STATUS, "pending"),
        done: Done::Set(&[Text(STATUS, "published"), SettleTime(PUBLISHED_AT)]),
        failed: Some(Failed {
            counter: RETRY_COUNT,
            limit: FailureLimit::Column(MAX_RETRIES),
            pause: Pause::InMemory,
            set: &[
                Increment(RETRY_COUNT),
                TextByLimit { column: STATUS, last: "failed", before: "pending" },
            ],
            dead_letters: None,
        }),
        expired: Some(Expiry { condition: Expired(EXPIRES_AT), set: &[Text(STATUS, "failed")] }),
        removable: None,
    }
};

/// A time, NULL until the row is published; and another one that is not NULL as long as a consumer has to read the rows
/// of a claim check, which are removed with their event.
pub(super) const PGTRICKLE: RowState = {
    const PUBLISHED_AT: StateColumn = StateColumn::new("published_at");
    const UNREAD_SINCE: StateColumn = StateColumn::new("unread_since");
    RowState {
        columns: &[(PUBLISHED_AT, StateType::Time), (UNREAD_SINCE, StateType::Time)],
        not_done: IsNull(PUBLISHED_AT),
        unpublished: IsNull(PUBLISHED_AT),
        ready: IsNull(PUBLISHED_AT),
        blocked: None,
        delayed: None,
        indexed: IsNull(PUBLISHED_AT),
        done: Done::Set(&[SettleTime(PUBLISHED_AT)]),
        failed: None,
        expired: None,
        removable: Some(IsNull(UNREAD_SINCE)),
    }
};

/// `PENDING`, `PUBLISHING`, `PUBLISHED` or `FAILED`, and a count of attempts that includes the successful one.
///
/// `PUBLISHING`, and the count of the attempt, would be written by the transaction that writes the outcome, so no other
/// session could see them.
pub(super) const SQLGARDEN: RowState = {
    const STATUS: StateColumn = StateColumn::new("status");
    const ATTEMPT_COUNT: StateColumn = StateColumn::new("attempt_count");
    const LAST_ATTEMPT_AT: StateColumn = StateColumn::new("last_attempt_at");
    RowState {
        columns: &[
            (STATUS, StateType::Word { chars_max: None, first: "PENDING" }),
            (ATTEMPT_COUNT, StateType::Number32(0)),
            (LAST_ATTEMPT_AT, StateType::Time),
        ],
        not_done: Not(&Is(STATUS, "PUBLISHED")),
        unpublished: Not(&Is(STATUS, "PUBLISHED")),
        ready: All(&[
            // The condition of the partial index in `sql/layouts`.
            Not(&Is(STATUS, "PUBLISHED")),
            Any(&[
                IsOneOf(STATUS, &["PENDING", "PUBLISHING"]),
                All(&[
                    Is(STATUS, "FAILED"),
                    RetryDue { failures: ATTEMPT_COUNT, since: LAST_ATTEMPT_AT },
                ]),
            ]),
        ]),
        blocked: Some(All(&[
            Not(&Is(STATUS, "PUBLISHED")),
            Is(STATUS, "FAILED"),
            Not(&RetryDue { failures: ATTEMPT_COUNT, since: LAST_ATTEMPT_AT }),
        ])),
        delayed: None,
        indexed: Not(&Is(STATUS, "PUBLISHED")),
        done: Done::Set(&[
            Text(STATUS, "PUBLISHED"),
            Increment(ATTEMPT_COUNT),
            ClaimTime(LAST_ATTEMPT_AT),
        ]),
        failed: Some(Failed {
            counter: ATTEMPT_COUNT,
            limit: FailureLimit::Configured,
            pause: Pause::Since(LAST_ATTEMPT_AT),
            set: &[Text(STATUS, "FAILED"), Increment(ATTEMPT_COUNT), ClaimTime(LAST_ATTEMPT_AT)],
            dead_letters: None,
        }),
        expired: None,
        removable: None,
    }
};

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Layout;
    use postrider_core::row_state::{Assignment, Condition};

    fn columns_of(condition: &Condition, found: &mut Vec<StateColumn>) {
        found.extend(condition.column());
        match condition {
            RetryDue { failures: _, since } => found.push(*since),
            Not(inner) => columns_of(inner, found),
            All(all) | Any(all) => all.iter().for_each(|inner| columns_of(inner, found)),
            Condition::Always
            | IsNull(_)
            | Is(..)
            | IsOneOf(..)
            | IsZero(_)
            | DelayOver(_)
            | Expired(_) => {}
        }
    }

    /// A column that is not in the list is not looked for in the table before SQL names it.
    #[test]
    fn a_state_lists_every_column_that_it_names() {
        for layout in Layout::ALL {
            let state = &layout.preset().state;
            let mut named = Vec::new();
            for condition in [
                Some(&state.not_done),
                Some(&state.unpublished),
                Some(&state.ready),
                state.blocked.as_ref(),
                state.delayed.as_ref(),
                Some(&state.indexed),
                state.expired.as_ref().map(|expiry| &expiry.condition),
                state.removable.as_ref(),
            ]
            .into_iter()
            .flatten()
            {
                columns_of(condition, &mut named);
            }
            if let Some(failed) = &state.failed {
                named.push(failed.counter);
                match failed.limit {
                    FailureLimit::Column(column) => named.push(column),
                    FailureLimit::Configured | FailureLimit::BeyondConfigured => {}
                }
                match failed.pause {
                    Pause::Until(column) | Pause::Since(column) => named.push(column),
                    Pause::InMemory => {}
                }
                named.extend(failed.set.iter().map(Assignment::column));
            }
            if let Done::Set(set) = state.done {
                named.extend(set.iter().map(Assignment::column));
            }
            named.extend(state.expired.iter().flat_map(|of| of.set).map(Assignment::column));
            let listed: Vec<StateColumn> = state.columns.iter().map(|(of, _)| *of).collect();
            assert!(named.iter().all(|column| listed.contains(column)), "{layout:?}");
            assert!(listed.iter().all(|column| named.contains(column)), "{layout:?}");
            // Deletion is the only way without a column.
            assert_eq!(listed.is_empty(), state.done == Done::Delete, "{layout:?}");
        }
    }
}
