//! Changes to rows as columns, and the statement that makes them.

use super::rows::wait;
use crate::server::pg_lsn;
use postrider_core::event::Position;
use postrider_core::parked::{Became, Mark};
use tokio_postgres::types::{PgLsn, ToSql};

/// The marks of one statement.
#[derive(Default)]
pub(super) struct Marks {
    commit_lsn: Vec<PgLsn>,
    ordinal: Vec<i64>,
    became: Vec<&'static str>,
    state: Vec<Option<&'static str>>,
    attempts: Vec<Option<i32>>,
    wait: Vec<Option<i64>>,
    error_code: Vec<Option<&'static str>>,
    error: Vec<Option<String>>,
    by_lsn: Vec<Option<PgLsn>>,
    by_ordinal: Vec<Option<i64>>,
}

/// `$26` to `$35`, [`Marks::parameters`], as rows (`m`), in order; which of their rows this statement has locked; and
/// which marks it leaves out (`later`): those whose rows another session has locked, and the later ones of their
/// aggregates. Not those of rows that do not exist, or that the mark does not change.
///
/// `FOR NO KEY UPDATE` is what the update takes. A row that another transaction has changed and committed since the
/// snapshot is locked at its newest version, and the update finds that version too, since it goes by the key. One that
/// was deleted since is among `later` once, and does not exist for the next try.
///
/// `SKIP LOCKED`, since a row that is waited for would keep all others waiting; and the later marks of its aggregate
/// wait with it, since an event whose mark is missing is published again after a crash, and what follows it in its
/// aggregate has to follow it again.
pub(super) const LOCK: &str = "\
m AS MATERIALIZED ( \
  SELECT u.*, u.became IN ('done', 'skipped') AS resolves, \
    u.became IN ('done', 'skipped', 'again', 'declined') AS takes \
  FROM unnest($26::pg_catalog.pg_lsn[], $27::pg_catalog.int8[], $28::pg_catalog.text[], \
    $29::pg_catalog.text[], $30::pg_catalog.int4[], $31::pg_catalog.int8[], \
    $32::pg_catalog.text[], $33::pg_catalog.text[], $34::pg_catalog.pg_lsn[], \
    $35::pg_catalog.int8[]) WITH ORDINALITY \
    AS u(commit_lsn, ordinal, became, state, attempts, wait, error_code, error, by_lsn, by_ordinal, line) \
), there AS MATERIALIZED ( \
  SELECT m.line, CASE WHEN p.blocks THEN p.aggregate_type END AS kind, p.aggregate_id AS id \
  FROM m JOIN postrider.parked p \
    ON p.pipeline = $1 AND p.commit_lsn = m.commit_lsn AND p.ordinal = m.ordinal \
  WHERE p.state NOT IN ('done', 'skipped') OR m.became IN ('declined', 'overtaken') \
), locked AS MATERIALIZED ( \
  SELECT m.line FROM fence, m JOIN postrider.parked p \
    ON p.pipeline = $1 AND p.commit_lsn = m.commit_lsn AND p.ordinal = m.ordinal \
  WHERE p.state NOT IN ('done', 'skipped') OR m.became IN ('declined', 'overtaken') \
  FOR NO KEY UPDATE OF p SKIP LOCKED \
), missed AS MATERIALIZED ( \
  SELECT t.line, t.kind, t.id FROM there t WHERE t.line NOT IN (SELECT l.line FROM locked l) \
), later AS MATERIALIZED ( \
  SELECT x.line FROM missed x \
  UNION SELECT t.line FROM there t JOIN missed x ON x.kind = t.kind AND x.id = t.id AND x.line < t.line \
), due AS MATERIALIZED ( \
  SELECT m.* FROM m WHERE m.line IN (SELECT l.line FROM locked l) \
    AND m.line NOT IN (SELECT x.line FROM later x))";

/// Applies the marks of [`LOCK`] that are not left out (`due`), where `fence` lets it.
///
/// A resolved row stays resolved: of the marks only those that take a request off reach it. A large value that is kept
/// is not rewritten: the new version of the row points to the same one.
pub(super) const UPDATE: &str = "\
UPDATE postrider.parked p SET \
  state = CASE m.became WHEN 'done' THEN 'done' WHEN 'skipped' THEN 'skipped' \
    WHEN 'refused' THEN m.state WHEN 'again' THEN 'waiting' ELSE p.state END, \
  resolved_at = CASE WHEN m.resolves THEN pg_catalog.now() ELSE p.resolved_at END, \
  key = CASE WHEN m.resolves THEN NULL ELSE p.key END, \
  value = CASE WHEN m.resolves THEN NULL \
    WHEN m.became = 'again' AND p.requested_action = 'replace' THEN p.requested_value \
    ELSE p.value END, \
  header_names = CASE WHEN m.resolves THEN '{}' ELSE p.header_names END, \
  header_values = CASE WHEN m.resolves THEN '{}' ELSE p.header_values END, \
  attempts = CASE m.became WHEN 'refused' THEN m.attempts WHEN 'again' THEN 0 ELSE p.attempts END, \
  next_attempt_at = CASE WHEN m.resolves THEN NULL \
    WHEN m.became = 'refused' THEN pg_catalog.now() + m.wait * interval '1 microsecond' \
    WHEN m.became = 'again' THEN pg_catalog.now() ELSE p.next_attempt_at END, \
  error_code = CASE WHEN m.became = 'refused' THEN m.error_code ELSE p.error_code END, \
  error = CASE WHEN m.became = 'refused' THEN m.error ELSE p.error END, \
  dead_sent_at = CASE m.became WHEN 'dead_sent' THEN pg_catalog.now() WHEN 'again' THEN NULL \
    ELSE p.dead_sent_at END, \
  overtaken_lsn = CASE WHEN m.became = 'overtaken' THEN coalesce(p.overtaken_lsn, m.by_lsn) \
    ELSE p.overtaken_lsn END, \
  overtaken_ordinal = CASE WHEN m.became = 'overtaken' \
    THEN coalesce(p.overtaken_ordinal, m.by_ordinal) ELSE p.overtaken_ordinal END, \
  acted_action = CASE WHEN m.takes THEN coalesce(p.requested_action, p.acted_action) \
    ELSE p.acted_action END, \
  acted_by = CASE WHEN m.takes AND p.requested_action IS NOT NULL THEN p.requested_by \
    ELSE p.acted_by END, \
  acted_at = CASE WHEN m.takes AND p.requested_action IS NOT NULL THEN pg_catalog.now() \
    ELSE p.acted_at END, \
  acted_reason = CASE WHEN m.takes AND p.requested_action IS NOT NULL THEN p.requested_reason \
    ELSE p.acted_reason END, \
  acted_declined = CASE WHEN m.takes AND p.requested_action IS NOT NULL \
    THEN m.became IN ('done', 'declined') ELSE p.acted_declined END, \
  requested_action = CASE WHEN m.takes THEN NULL ELSE p.requested_action END, \
  requested_by = CASE WHEN m.takes THEN NULL ELSE p.requested_by END, \
  requested_at = CASE WHEN m.takes THEN NULL ELSE p.requested_at END, \
  requested_reason = CASE WHEN m.takes THEN NULL ELSE p.requested_reason END, \
  requested_value = CASE WHEN m.takes THEN NULL ELSE p.requested_value END \
FROM fence, due m \
WHERE p.pipeline = $1 AND p.commit_lsn = m.commit_lsn AND p.ordinal = m.ordinal \
  AND (p.state NOT IN ('done', 'skipped') OR m.became IN ('declined', 'overtaken'))";

impl Marks {
    pub(super) fn push(&mut self, mark: &Mark) {
        self.commit_lsn.push(pg_lsn(mark.position.commit_lsn));
        self.ordinal.push(mark.position.ordinal.cast_signed());
        self.became.push(name(mark.became));
        let mut by: Option<Position> = None;
        let mut refused = (None, None, None, None, None);
        match mark.became {
            Became::Refused { state, attempts, wait: until, reason } => {
                refused = (
                    Some(state.name()),
                    Some(i32::try_from(attempts).unwrap_or(i32::MAX)),
                    wait(state, until),
                    Some(reason.code()),
                    Some(reason.to_string()),
                );
            }
            Became::Overtaken { by: later } => by = Some(later),
            Became::Done
            | Became::Skipped
            | Became::Again
            | Became::Declined
            | Became::DeadSent => {}
        }
        let (state, attempts, wait, error_code, error) = refused;
        self.state.push(state);
        self.attempts.push(attempts);
        self.wait.push(wait);
        self.error_code.push(error_code);
        self.error.push(error);
        self.by_lsn.push(by.map(|by| pg_lsn(by.commit_lsn)));
        self.by_ordinal.push(by.map(|by| by.ordinal.cast_signed()));
    }

    /// `$26` to `$35`.
    pub(super) fn parameters(&self) -> [&(dyn ToSql + Sync); 10] {
        [
            &self.commit_lsn,
            &self.ordinal,
            &self.became,
            &self.state,
            &self.attempts,
            &self.wait,
            &self.error_code,
            &self.error,
            &self.by_lsn,
            &self.by_ordinal,
        ]
    }
}

/// As [`UPDATE`] calls it.
const fn name(became: Became) -> &'static str {
    match became {
        Became::Done => "done",
        Became::Skipped => "skipped",
        Became::Refused { .. } => "refused",
        Became::Again => "again",
        Became::Declined => "declined",
        Became::DeadSent => "dead_sent",
        Became::Overtaken { .. } => "overtaken",
    }
}
