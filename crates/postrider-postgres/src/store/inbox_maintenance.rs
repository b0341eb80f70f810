//! The maintenance of the SQL toolkit's inboxes: the statements of the session in their database.
//!
//! The functions of the toolkit decide what is forgotten and deleted (`sql/toolkit/functions/inbox.sql`,
//! `inbox_store.sql`). Every statement may be run by any number of processes at the same time, and repeated after a
//! crash at any place.

use super::log_maintenance::number;
use crate::names::{ident, literal};
use pg_replication::error::SourceError;
use std::time::Duration;
use tokio_postgres::{Client, Row};

/// `lock_timeout`: calls of `inbox_once` for the messages of a day wait behind [`forget`] for as long as that waits for
/// the table of this day.
const LIMITS: &str = "SET statement_timeout = '10s'; SET lock_timeout = '1s'";

/// Limits the statements of this session.
///
/// # Errors
/// An error of the server or of the connection.
pub async fn limit(client: &Client) -> Result<(), SourceError> {
    let failed = |e| SourceError::control("set up the session of inbox maintenance", e);
    client.batch_execute(LIMITS).await.map_err(failed)
}

/// What a database has of the inboxes, and whether the session's role may maintain them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum InboxAccess {
    /// There is no SQL toolkit with inboxes.
    Absent,
    /// There is one of an earlier version, without the functions that maintenance calls.
    Outdated,
    /// The role lacks rights.
    Denied,
    /// The role may do everything.
    Granted,
}

/// Reads the catalog only: a role without rights on schema `postrider` may do that.
const ACCESS: &str = "\
WITH n AS (SELECT s.oid FROM pg_catalog.pg_namespace s WHERE s.nspname = 'postrider'), \
r AS (SELECT c.oid, c.relname, c.relkind FROM pg_catalog.pg_class c JOIN n ON n.oid = c.relnamespace), \
f AS (SELECT p.oid, p.proname FROM pg_catalog.pg_proc p JOIN n ON n.oid = p.pronamespace \
  WHERE (p.proname::pg_catalog.text, p.pronargs::pg_catalog.int4) IN (('inbox_drain', 4), ('inbox_fold', 2), \
    ('inbox_forget', 2), ('inbox_ordering_gaps', 1), ('inbox_status', 1))), \
w(name, what) AS (VALUES ('inbox', 'SELECT'), ('inbox_delta', 'SELECT'), ('inbox_delta', 'INSERT'), \
  ('inbox_delta', 'UPDATE'), ('inbox_delta', 'DELETE'), ('inbox_order', 'SELECT'), ('inbox_wake', 'SELECT'), \
  ('inbox_sweep', 'SELECT'), ('inbox_sweep', 'INSERT'), ('inbox_sweep', 'UPDATE'), ('inbox_seen_undated', 'SELECT'), \
  ('inbox_seen_undated', 'UPDATE'), ('inbox_seen_undated', 'DELETE')) \
SELECT EXISTS (SELECT FROM r WHERE r.relname = 'inbox' AND r.relkind = 'r'), \
  (SELECT pg_catalog.count(*) FROM f) = 5, \
  coalesce((SELECT pg_catalog.bool_and(pg_catalog.has_schema_privilege(n.oid, 'USAGE')) FROM n), false) \
    AND coalesce((SELECT pg_catalog.bool_and(pg_catalog.has_function_privilege(f.oid, 'EXECUTE')) FROM f), false) \
    AND coalesce((SELECT pg_catalog.bool_and(pg_catalog.has_table_privilege(r.oid, w.what)) \
      FROM w JOIN r ON r.relname::pg_catalog.text = w.name), false) \
    AND coalesce((SELECT pg_catalog.bool_and(pg_catalog.has_table_privilege(r.oid, 'SELECT') \
        AND pg_catalog.has_table_privilege(r.oid, 'DELETE') AND pg_catalog.has_table_privilege(r.oid, 'TRUNCATE')) \
      FROM r WHERE r.relkind = 'r' AND r.relname ~ '^inbox_seen_[0-9][0-9]$'), false) \
    AND coalesce((SELECT pg_catalog.bool_and(pg_catalog.has_sequence_privilege(r.oid, 'SELECT') \
        AND pg_catalog.has_sequence_privilege(r.oid, 'UPDATE')) \
      FROM r WHERE r.relkind = 'S' AND r.relname = 'inbox_first_day'), false)";

/// Whether there are inboxes to maintain, and whether the session's role may.
///
/// # Errors
/// An error of the server or of the connection.
pub async fn access(client: &Client) -> Result<InboxAccess, SourceError> {
    let failed = |e| SourceError::control("look for the inboxes of the SQL toolkit", e);
    let row = client.query_one(ACCESS, &[]).await.map_err(failed)?;
    let flag = |index: usize| row.try_get::<_, bool>(index).map_err(failed);
    Ok(match (flag(0)?, flag(1)?, flag(2)?) {
        (false, _, _) => InboxAccess::Absent,
        (true, false, _) => InboxAccess::Outdated,
        (true, true, false) => InboxAccess::Denied,
        (true, true, true) => InboxAccess::Granted,
    })
}

/// An inbox that stores messages.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MaintainedInbox {
    /// Its name.
    pub name: String,
    /// Its table, as SQL names it.
    pub table: String,
    /// `create_inbox` has created the table. Otherwise it is a table of the user's own.
    pub is_managed: bool,
    /// The messages of an aggregate have numbers without gaps.
    pub is_numbered: bool,
}

impl MaintainedInbox {
    /// The statement that grants `role` what maintenance needs of this inbox. The owner of the table runs it.
    pub fn grant(&self, role: &str) -> String {
        if self.is_managed {
            format!("SELECT postrider.inbox_grant({});", literal(&self.name))
        } else {
            format!("GRANT SELECT, UPDATE, DELETE ON TABLE {} TO {};", self.table, ident(role))
        }
    }
}

/// The inboxes behind the name `after` in their order, at most `max`.
///
/// # Errors
/// An error of the server or of the connection.
pub async fn inboxes(
    client: &Client,
    after: &str,
    max: usize,
) -> Result<Vec<MaintainedInbox>, SourceError> {
    let failed = |e| SourceError::control("read the list of inboxes", e);
    let sql = "SELECT i.name, pg_catalog.format('%I.%I', i.table_schema, i.table_name), i.is_managed, \
                 i.ordering IS NOT DISTINCT FROM 'sequence' \
               FROM postrider.inbox i WHERE i.name > $1 ORDER BY i.name LIMIT $2";
    let limit = i64::try_from(max).unwrap_or(i64::MAX);
    let rows = client.query(sql, &[&after, &limit]).await.map_err(failed)?;
    let facts = |row: &Row| -> Result<MaintainedInbox, tokio_postgres::Error> {
        Ok(MaintainedInbox {
            name: row.try_get(0)?,
            table: row.try_get(1)?,
            is_managed: row.try_get(2)?,
            is_numbered: row.try_get(3)?,
        })
    };
    rows.iter().map(facts).collect::<Result<_, _>>().map_err(failed)
}

/// How many inboxes there are.
///
/// # Errors
/// An error of the server or of the connection.
pub async fn count_inboxes(client: &Client) -> Result<u64, SourceError> {
    let failed = |e| SourceError::control("count the inboxes", e);
    let sql = "SELECT pg_catalog.count(*) FROM postrider.inbox";
    let row = client.query_one(sql, &[]).await.map_err(failed)?;
    number(&row, 0).map_err(failed)
}

/// Forgets ids of messages that are older than `keep`, a part of them. Returns whether there is more to do.
///
/// # Errors
/// An error of the server or of the connection; SQLSTATE 55P03 if a transaction that has a message of the day in hand
/// does not end.
pub async fn forget(client: &Client, keep: Duration) -> Result<bool, SourceError> {
    let failed = |e| SourceError::control("forget the ids of old messages", e);
    let sql = "SELECT postrider.inbox_forget(pg_catalog.make_interval(secs => $1))";
    let row = client.query_one(sql, &[&keep.as_secs_f64()]).await.map_err(failed)?;
    row.try_get(0).map_err(failed)
}

/// How long an inbox keeps messages.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum InboxKeep {
    /// As long as the row of the inbox in `postrider.inbox` says.
    #[default]
    OfInbox,
    /// For ever.
    Forever,
    /// So long.
    For(Duration),
}

impl InboxKeep {
    /// The argument of `inbox_drain`. Unit: seconds.
    const fn seconds(self) -> Option<f64> {
        match self {
            Self::OfInbox => None,
            Self::Forever => Some(0.0),
            Self::For(keep) => Some(keep.as_secs_f64()),
        }
    }
}

/// Deletes messages that are processed for longer than `processed`, and dead for longer than `dead`, at most `batch` of
/// each. Returns how many were deleted.
///
/// # Errors
/// An error of the server or of the connection.
pub async fn drain(
    client: &Client,
    inbox: &str,
    batch: u32,
    (processed, dead): (InboxKeep, InboxKeep),
) -> Result<u64, SourceError> {
    let failed = |e| SourceError::control(format!("delete old messages of inbox {inbox:?}"), e);
    let sql = "SELECT postrider.inbox_drain($1, $2, pg_catalog.make_interval(secs => $3), \
                 pg_catalog.make_interval(secs => $4))::pg_catalog.int8";
    let batch = i32::try_from(batch).unwrap_or(i32::MAX);
    let row = client
        .query_one(sql, &[&inbox, &batch, &processed.seconds(), &dead.seconds()])
        .await
        .map_err(failed)?;
    number(&row, 0).map_err(failed)
}

/// Whether the numbers of an inbox are in more than `rows` rows of `postrider.inbox_delta`. Reads at most one more.
///
/// # Errors
/// An error of the server or of the connection.
pub async fn is_unfolded(client: &Client, inbox: &str, rows: u32) -> Result<bool, SourceError> {
    let failed = |e| SourceError::control(format!("count the changes of inbox {inbox:?}"), e);
    let sql = "SELECT pg_catalog.count(*) > $2::pg_catalog.int8 FROM (SELECT FROM postrider.inbox_delta d \
                 WHERE d.inbox = $1 LIMIT $2::pg_catalog.int8 + 1) x";
    let row = client.query_one(sql, &[&inbox, &i64::from(rows)]).await.map_err(failed)?;
    row.try_get(0).map_err(failed)
}

/// Folds rows of `postrider.inbox_delta` into few, at most 10,000 of them. Returns how many rows there are less.
///
/// # Errors
/// An error of the server or of the connection.
pub async fn fold(client: &Client, inbox: &str) -> Result<u64, SourceError> {
    let failed = |e| SourceError::control(format!("fold the changes of inbox {inbox:?}"), e);
    let row =
        client.query_one("SELECT postrider.inbox_fold($1)", &[&inbox]).await.map_err(failed)?;
    number(&row, 0).map_err(failed)
}

/// The state of an inbox, as `inbox_health` has it.
#[derive(Clone, PartialEq, Debug)]
pub struct InboxState {
    /// Messages that are neither processed nor dead.
    pub pending: u64,
    /// Dead messages.
    pub dead: u64,
    /// How long ago the oldest pending message arrived; 0 if there is none. Unit: seconds.
    pub oldest_pending_seconds: f64,
    /// `healthy`, `degraded` or `critical`.
    pub health: String,
}

/// The state of an inbox; `None` if it does not exist any more. Costs the same for any number of messages if the
/// toolkit manages the table; otherwise it counts the rows of the table.
///
/// # Errors
/// An error of the server or of the connection.
pub async fn state(client: &Client, inbox: &str) -> Result<Option<InboxState>, SourceError> {
    let failed = |e| SourceError::control(format!("read the state of inbox {inbox:?}"), e);
    let sql = "SELECT s.pending, s.dead, s.oldest_pending_age_sec, s.health_status \
               FROM postrider.inbox_status($1) s";
    let row = client.query_opt(sql, &[&inbox]).await.map_err(failed)?;
    let state = |row: &Row| -> Result<InboxState, tokio_postgres::Error> {
        Ok(InboxState {
            pending: number(row, 0)?,
            dead: number(row, 1)?,
            oldest_pending_seconds: row.try_get(2)?,
            health: row.try_get(3)?,
        })
    };
    row.as_ref().map(state).transpose().map_err(failed)
}

/// When a message died, and which it is: dead messages are read in this order.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Debug)]
pub struct DeathMark {
    /// When, by the server's clock. Unit: microseconds since 1970-01-01, UTC.
    pub at: i64,
    /// The number of the message in its inbox.
    pub seq: i64,
}

/// A dead message.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NewDeadMessage {
    /// When it died.
    pub mark: DeathMark,
    /// Its id, at most 200 characters of it.
    pub id: String,
}

/// The server's clock. Unit: microseconds since 1970-01-01, UTC.
///
/// # Errors
/// An error of the server or of the connection.
pub async fn clock(client: &Client) -> Result<i64, SourceError> {
    let failed = |e| SourceError::control("read the server's clock", e);
    let sql =
        "SELECT (extract(epoch FROM pg_catalog.clock_timestamp()) * 1000000)::pg_catalog.int8";
    client.query_one(sql, &[]).await.and_then(|row| row.try_get(0)).map_err(failed)
}

/// The messages of a managed inbox that died after `mark`, in the order in which they died, at most `max`.
///
/// # Errors
/// An error of the server or of the connection.
pub async fn dead_messages(
    client: &Client,
    inbox: &str,
    mark: DeathMark,
    max: usize,
) -> Result<Vec<NewDeadMessage>, SourceError> {
    let failed = |e| SourceError::control(format!("read the dead messages of inbox {inbox:?}"), e);
    let after = "TIMESTAMPTZ '1970-01-01 00:00:00+00' \
                 + $1::pg_catalog.int8::pg_catalog.float8 * INTERVAL '1 microsecond'";
    let sql = format!(
        "SELECT (extract(epoch FROM d.dead_at) * 1000000)::pg_catalog.int8, d.seq, \
           pg_catalog.substr(d.event_id, 1, 200) \
         FROM postrider_inbox.{} d WHERE d.dead_at >= {after} AND (d.dead_at, d.seq) > ({after}, $2) \
         ORDER BY d.dead_at, d.seq LIMIT $3",
        ident(&format!("dlq_{inbox}"))
    );
    let limit = i64::try_from(max).unwrap_or(i64::MAX);
    let rows = client.query(&sql, &[&mark.at, &mark.seq, &limit]).await.map_err(failed)?;
    let message = |row: &Row| -> Result<NewDeadMessage, tokio_postgres::Error> {
        let mark = DeathMark { at: row.try_get(0)?, seq: row.try_get(1)? };
        Ok(NewDeadMessage { mark, id: row.try_get(2)? })
    };
    rows.iter().map(message).collect::<Result<_, _>>().map_err(failed)
}

/// Numbers that are missing in an aggregate, whose later messages wait for them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct WaitingGap {
    /// The aggregate. A key of messages, which no log line has.
    pub aggregate_id: String,
    /// The first number that is missing.
    pub missing_from: i64,
    /// The last one.
    pub missing_to: i64,
    /// The id of the message behind them, at most 200 characters of it.
    pub next_id: String,
    /// How long this message has been waiting. Unit: seconds.
    pub waiting_seconds: u64,
}

/// The gaps behind which a message has been waiting for `min_age`, the oldest first, at most `max`, and how many there
/// are.
///
/// # Errors
/// An error of the server or of the connection.
pub async fn gaps(
    client: &Client,
    inbox: &str,
    min_age: Duration,
    max: usize,
) -> Result<(Vec<WaitingGap>, u64), SourceError> {
    let failed = |e| SourceError::control(format!("read the gaps of inbox {inbox:?}"), e);
    let sql = "SELECT g.aggregate_id, g.missing_from, g.missing_to, pg_catalog.substr(g.next_event_id, 1, 200), \
                 extract(epoch FROM pg_catalog.clock_timestamp() - g.waiting_since)::pg_catalog.int8, \
                 pg_catalog.count(*) OVER () \
               FROM postrider.inbox_ordering_gaps($1) g \
               WHERE g.waiting_since <= pg_catalog.now() - pg_catalog.make_interval(secs => $2) \
               ORDER BY g.waiting_since, g.aggregate_id LIMIT $3";
    let limit = i64::try_from(max).unwrap_or(i64::MAX);
    let rows =
        client.query(sql, &[&inbox, &min_age.as_secs_f64(), &limit]).await.map_err(failed)?;
    let gap = |row: &Row| -> Result<WaitingGap, tokio_postgres::Error> {
        Ok(WaitingGap {
            aggregate_id: row.try_get(0)?,
            missing_from: row.try_get(1)?,
            missing_to: row.try_get(2)?,
            next_id: row.try_get(3)?,
            waiting_seconds: number(row, 4)?,
        })
    };
    let count = rows.first().map_or(Ok(0), |row| number(row, 5)).map_err(failed)?;
    let gaps: Result<Vec<_>, _> = rows.iter().map(gap).collect();
    Ok((gaps.map_err(failed)?, count))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_statement_that_grants_names_what_is_the_users_own() {
        let mut facts = MaintainedInbox {
            name: "mail".to_owned(),
            table: "public.\"Mail\"".to_owned(),
            is_managed: true,
            is_numbered: false,
        };
        assert_eq!(facts.grant("a b"), "SELECT postrider.inbox_grant('mail');");
        facts.is_managed = false;
        let adopted = "GRANT SELECT, UPDATE, DELETE ON TABLE public.\"Mail\" TO \"a b\";";
        assert_eq!(facts.grant("a b"), adopted);
    }

    #[test]
    fn nothing_but_the_inbox_decides_without_a_time() {
        assert_eq!(InboxKeep::default().seconds(), None);
        assert_eq!(InboxKeep::Forever.seconds(), Some(0.0));
        assert_eq!(InboxKeep::For(Duration::from_mins(2)).seconds(), Some(120.0));
    }
}
