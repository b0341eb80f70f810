//! The dialect of PostgreSQL: the layouts' descriptions of row states and the types of times, as SQL.
//!
//! Nothing here knows a layout: [`Dialect`] matches on the types of [`postrider_core::row_state`]. Another database's
//! dialect supplies the same for that database:
//!
//! - a [`Condition`] of a row, with what a NULL means to it;
//! - what follows `SET` for a list of [`Assignment`]s, and the same values as expressions, for a row that is moved;
//! - whether a failure is the last one, before it is counted ([`FailureLimit`]);
//! - a [`StateType`] as the type of a column;
//! - a column's point in time from a local time or a text ([`crate::times`]), and the reverse.

use super::spec::PollSpec;
use super::table::TableShape;
use crate::names::{ident, literal};
use crate::times::{AmbiguousTime, TimeType, instant_sql};
use postrider_core::row_state::{
    Assignment, Condition, Failed, FailureLimit, StateColumn, StateType,
};

/// Renders the states of one table's rows.
#[derive(Clone, Copy)]
pub(super) struct Dialect<'a> {
    spec: &'a PollSpec,
    /// The types of the columns; without it, times are taken for points in time.
    shape: Option<&'a TableShape>,
    /// The time of settling, an expression. The time of the claim is `now()`.
    settled: &'a str,
}

impl<'a> Dialect<'a> {
    pub(super) fn new(spec: &'a PollSpec, shape: &'a TableShape) -> Self {
        Self { shape: Some(shape), ..Self::without_types(spec) }
    }

    /// For conditions that have no time.
    pub(super) fn without_types(spec: &'a PollSpec) -> Self {
        // The statement that settles is sent after the acknowledgement.
        Self { spec, shape: None, settled: "statement_timestamp()" }
    }

    /// With another expression for the time of settling.
    pub(super) fn settling_at(self, settled: &'a str) -> Self {
        Self { settled, ..self }
    }

    /// The condition for `row`, the alias of the table; without an alias if it is empty, as in an index. Conditions can
    /// be joined to it by AND.
    pub(super) fn condition(&self, condition: &Condition, row: &str) -> String {
        let column = |column: &StateColumn| self.column(row, *column);
        match condition {
            Condition::Always => "true".to_owned(),
            Condition::IsNull(of) => format!("{} IS NULL", column(of)),
            Condition::Is(of, text) => format!("{} = {}", column(of), literal(text)),
            Condition::IsOneOf(of, texts) => {
                let texts: Vec<String> = texts.iter().map(|text| literal(text)).collect();
                format!("{} IN ({})", column(of), texts.join(", "))
            }
            Condition::IsZero(of) => format!("{} = 0", column(of)),
            Condition::DelayOver(of) => {
                let at = self.instant(row, *of, AmbiguousTime::Earlier);
                format!("coalesce({at} <= now(), true)")
            }
            Condition::Expired(of) => {
                let at = self.instant(row, *of, AmbiguousTime::Later);
                format!("coalesce({at} <= now(), false)")
            }
            Condition::RetryDue { failures, since } => {
                let count = column(failures);
                let last = self.instant(row, *since, AmbiguousTime::Earlier);
                let (max, pause) = (self.spec.attempts_max, self.pause(&count));
                format!("({count} < {max} AND coalesce({last} + {pause} <= now(), true))")
            }
            Condition::Not(inner) => self.negation(inner, row),
            Condition::All(all) => self.joined(all, row, " AND "),
            Condition::Any(any) => format!("({})", self.joined(any, row, " OR ")),
        }
    }

    fn joined(&self, conditions: &[Condition], row: &str, by: &str) -> String {
        let conditions: Vec<String> =
            conditions.iter().map(|condition| self.condition(condition, row)).collect();
        conditions.join(by)
    }

    fn negation(&self, condition: &Condition, row: &str) -> String {
        match condition {
            Condition::IsNull(of) => format!("{} IS NOT NULL", self.column(row, *of)),
            Condition::Is(of, text) => format!("{} <> {}", self.column(row, *of), literal(text)),
            Condition::DelayOver(of) => {
                format!("{} > now()", self.instant(row, *of, AmbiguousTime::Earlier))
            }
            Condition::Expired(of) => {
                let at = self.instant(row, *of, AmbiguousTime::Later);
                format!("coalesce({at} > now(), true)")
            }
            // These have parentheses of their own.
            Condition::RetryDue { .. } | Condition::Any(_) => {
                format!("NOT {}", self.condition(condition, row))
            }
            Condition::Always
            | Condition::IsOneOf(..)
            | Condition::IsZero(_)
            | Condition::Not(_)
            | Condition::All(_) => format!("NOT ({})", self.condition(condition, row)),
        }
    }

    /// What follows `UPDATE … AS o SET`. Texts of failures are `v.error`.
    pub(super) fn set(&self, assignments: &[Assignment]) -> String {
        let mut list = String::new();
        for assignment in assignments {
            let between = match assignment {
                _ if list.is_empty() => "",
                // A long one has a line of its own.
                Assignment::TextByLimit { .. } => ",\n  ",
                Assignment::Text(..)
                | Assignment::ClaimTime(_)
                | Assignment::SettleTime(_)
                | Assignment::RetryTime(_)
                | Assignment::Increment(_)
                | Assignment::IncrementUpTo(..)
                | Assignment::ErrorText(_) => ", ",
            };
            list.push_str(between);
            list.push_str(&ident(self.name(assignment.column())));
            list.push_str(" = ");
            list.push_str(&self.value(assignment));
        }
        list
    }

    /// The value that is written, as an expression over the row `o` before it is written.
    pub(super) fn value(&self, assignment: &Assignment) -> String {
        let more = |column: &StateColumn| format!("{} + 1", self.column("o", *column));
        match assignment {
            Assignment::Text(_, text) => literal(text),
            Assignment::TextByLimit { last, before, .. } => {
                let is_last = self
                    .spec
                    .row_state
                    .state
                    .failed
                    .as_ref()
                    .map_or_else(|| "true".to_owned(), |failed| self.limit(failed, ">="));
                format!("CASE WHEN {is_last} THEN {} ELSE {} END", literal(last), literal(before))
            }
            Assignment::ClaimTime(column) => self.stored(*column, "now()"),
            Assignment::SettleTime(column) => self.stored(*column, self.settled),
            Assignment::RetryTime(column) => {
                let failed = self.spec.row_state.state.failed.as_ref();
                let failures = failed.map_or_else(|| "1".to_owned(), |f| more(&f.counter));
                let at = format!("{} + {}", self.settled, self.pause(&failures));
                self.stored(*column, &at)
            }
            Assignment::Increment(column) => more(column),
            Assignment::IncrementUpTo(column, most) => format!("least({}, {most})", more(column)),
            Assignment::ErrorText(_) => "v.error".to_owned(),
        }
    }

    /// Whether one more failure of the row `o` is the last one (`compare` is `>=`), or is not (`<`).
    pub(super) fn limit(&self, failed: &Failed, compare: &str) -> String {
        let count = self.column("o", failed.counter);
        let max = self.spec.attempts_max;
        match failed.limit {
            FailureLimit::Configured => format!("{count} + 1 {compare} {max}"),
            FailureLimit::BeyondConfigured => format!("{count} {compare} {max}"),
            FailureLimit::Column(column) => {
                format!("{count} + 1 {compare} {}", self.column("o", column))
            }
        }
    }

    /// The pause after `failures`, an expression: [`super::Backoff::after`].
    fn pause(&self, failures: &str) -> String {
        let backoff = self.spec.backoff;
        format!(
            "least({failures}, {}) * interval '{} milliseconds'",
            backoff.steps_max,
            backoff.step.as_millis()
        )
    }

    fn name(&self, column: StateColumn) -> &'a str {
        self.spec.row_state.name(column)
    }

    fn column(&self, row: &str, column: StateColumn) -> String {
        let name = ident(self.name(column));
        if row.is_empty() { name } else { format!("{row}.{name}") }
    }

    fn time_type(&self, column: StateColumn) -> TimeType {
        self.shape.map_or(TimeType::Other, |shape| shape.time_type(self.name(column)))
    }

    fn instant(&self, row: &str, column: StateColumn, twice: AmbiguousTime) -> String {
        let zone = self.spec.zone.as_ref();
        instant_sql(self.time_type(column), zone, &self.column(row, column), twice)
    }

    /// The value to write into `column` for a point in time.
    fn stored(&self, column: StateColumn, instant: &str) -> String {
        match (self.time_type(column), &self.spec.zone) {
            (TimeType::Local, Some(zone)) => {
                format!("({instant}) AT TIME ZONE {}", literal(zone.name()))
            }
            // The session's zone is UTC.
            (TimeType::Local, None)
            | (TimeType::Absolute | TimeType::Text | TimeType::Other, _) => instant.to_owned(),
        }
    }
}

/// The type of a column that the table lacks, as in the layouts' own SQL.
pub(crate) fn column_type(spec: &PollSpec, column: &str) -> String {
    // A column that no state has is the time of the event.
    match spec.row_state.column_type(column).unwrap_or(StateType::Time) {
        StateType::Time => "timestamptz".to_owned(),
        StateType::InsertTime => "timestamptz NOT NULL DEFAULT now()".to_owned(),
        StateType::Text => "text".to_owned(),
        StateType::Word { chars_max: None, first } => {
            format!("text NOT NULL DEFAULT {}", literal(first))
        }
        StateType::Word { chars_max: Some(max), first } => {
            format!("varchar({max}) NOT NULL DEFAULT {}", literal(first))
        }
        StateType::Number16(first) => format!("smallint NOT NULL DEFAULT {first}"),
        StateType::Number32(first) => format!("integer NOT NULL DEFAULT {first}"),
    }
}
