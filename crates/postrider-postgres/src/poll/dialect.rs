//! The dialect of PostgreSQL: the layouts' descriptions of row states and the types of times, as SQL.
//!
//! Nothing here knows a layout: [`Dialect`] matches on the words of [`postrider_core::row_state`]. Another database's
//! dialect supplies the same for that database:
//!
//! - a [`Condition`] of a row, with what a NULL means to it;
//! - what follows `SET` for a list of [`Assignment`]s, and the same values as expressions, for a row that is moved;
//! - whether a failure is the last one, before it is counted ([`FailureLimit`]);
//! - a [`StateType`] as the type of a column;
//! - a column's point in time from a local time or a text, and the reverse.
//!
//! The server computes the points in time that the stream's mapper computes (`zone`, `outbox::time`): of an ambiguous
//! local time the later instant is an expiry, the earlier one a delay; a local time that does not exist is read with
//! the offset from before the change. `AT TIME ZONE` gives the later of two instants, and has the same rule for local
//! times that do not exist.

use super::spec::PollSpec;
use super::table::TableShape;
use crate::names::{ident, literal};
use crate::times::TimeType;
use postrider_core::row_state::{
    Assignment, Condition, Failed, FailureLimit, StateColumn, StateType,
};
use postrider_core::zone::Zone;

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
                    .marks
                    .state
                    .failed
                    .as_ref()
                    .map_or_else(|| "true".to_owned(), |failed| self.limit(failed, ">="));
                format!("CASE WHEN {is_last} THEN {} ELSE {} END", literal(last), literal(before))
            }
            Assignment::ClaimTime(column) => self.stored(*column, "now()"),
            Assignment::SettleTime(column) => self.stored(*column, self.settled),
            Assignment::RetryTime(column) => {
                let failed = self.spec.marks.state.failed.as_ref();
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
        self.spec.marks.name(column)
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
    match spec.marks.column_type(column).unwrap_or(StateType::Time) {
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

/// Which of two instants an ambiguous local time means (when clocks are set back, local times occur twice).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AmbiguousTime {
    /// The earlier one.
    Earlier,
    /// The later one.
    Later,
}

/// An existing day of the years 1 to 9999, as in `outbox::time::is_plain`.
const DAY: &str = "(?!0000)([0-9]{4}-((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)\
                   |02-(0[1-9]|1[0-9]|2[0-8]))\
                   |([0-9]{2}(0[48]|[2468][048]|[13579][26])|([02468][048]|[13579][26])00)-02-29)";
/// A time of day.
const TIME: &str = "[ T]([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\\.[0-9]{1,6})?";
/// An offset.
const OFFSET: &str = "(Z|[+-](0[0-9]|1[0-5])(:[0-5][0-9]){0,2})";

/// The point in time of `column`; NULL if a text is no time, which the mapper then refuses.
pub(crate) fn instant(
    shape: &TableShape,
    zone: Option<&Zone>,
    row: &str,
    column: &str,
    twice: AmbiguousTime,
) -> String {
    instant_sql(shape.time_type(column), zone, &format!("{row}.{}", ident(column)), twice)
}

/// As [`instant`], for any expression of such a type.
pub fn instant_sql(
    kind: TimeType,
    zone: Option<&Zone>,
    value: &str,
    twice: AmbiguousTime,
) -> String {
    match kind {
        TimeType::Absolute | TimeType::Other => value.to_owned(),
        TimeType::Local => local(&format!("{value}::timestamp"), zone, twice),
        TimeType::Text => {
            let local = local("t.v::timestamp", zone, twice);
            format!(
                "(SELECT CASE WHEN t.v ~ {absolute} THEN t.v::timestamptz WHEN t.v ~ {plain} THEN {local} END \
                 FROM (SELECT rtrim({value}::text) AS v) AS t)",
                absolute = literal(&format!("^(-?infinity|{DAY}{TIME}{OFFSET})$")),
                plain = literal(&format!("^{DAY}({TIME})?$")),
            )
        }
    }
}

/// Without a configured zone, UTC: then no such column decides anything.
fn local(value: &str, zone: Option<&Zone>, twice: AmbiguousTime) -> String {
    let Some(zone) = zone else { return format!("({value} AT TIME ZONE 'UTC')") };
    let zone = literal(zone.name());
    // Outside of these bounds, and for infinity, UTC: `zone::Zone` has the same bounds.
    let has_rules = "l.at >= timestamp '0001-01-02' AND l.at < timestamp '9999-12-01'";
    match twice {
        AmbiguousTime::Later => format!(
            "(SELECT CASE WHEN {has_rules} THEN l.at AT TIME ZONE {zone} ELSE l.at AT TIME ZONE 'UTC' END \
             FROM (SELECT {value} AS at) AS l)"
        ),
        // The other instant of an ambiguous time has the offset of the day before.
        AmbiguousTime::Earlier => format!(
            "(SELECT CASE WHEN e.at < l.later AND e.at AT TIME ZONE {zone} = l.at THEN e.at \
             ELSE coalesce(l.later, l.at AT TIME ZONE 'UTC') END \
             FROM (SELECT l.at, CASE WHEN {has_rules} THEN l.at AT TIME ZONE {zone} END AS later \
             FROM (SELECT {value} AS at) AS l) AS l \
             CROSS JOIN LATERAL (SELECT (l.at - ((l.later - interval '24 hours') AT TIME ZONE {zone} \
             - (l.later - interval '24 hours') AT TIME ZONE 'UTC')) AT TIME ZONE 'UTC' AS at) AS e)"
        ),
    }
}
