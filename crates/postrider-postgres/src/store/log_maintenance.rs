//! The maintenance of event logs and consumer groups: the statements of the session in the log's database.
//!
//! The functions of the SQL toolkit decide (`sql/toolkit/functions/retention.sql`); only the drop of a table is done
//! here, because `DETACH PARTITION … CONCURRENTLY` runs in no function and in no transaction block. Every statement may
//! be run by any number of processes at the same time, and repeated after a crash at any place.

use crate::names::ident;
use pg_replication::error::{SourceError, SqlState};
use std::time::Duration;
use tokio_postgres::{Client, Row};

/// `lock_timeout`: an append waits behind [`retain`] for as long as that waits for an append before it.
const LIMITS: &str = "SET statement_timeout = '10s'; SET lock_timeout = '1s'";

/// While a table is detached, this session waits for transactions that read the log, and nobody waits for this session.
const DETACH_LIMITS: &str = "SET lock_timeout = '10s'";

/// `FINALIZE` waits for every older snapshot of the database, one after the other, and keeps its locks of the log's
/// table and of the detached one meanwhile. An append that creates a table, or a query that reads the bounds of the
/// tables, waits for these locks with a snapshot: the two would be a deadlock, which the server looks for after 1 s.
/// Whoever waited so long would lose, so this statement ends before that.
const FINALIZE_LIMITS: &str = "SET statement_timeout = '700ms'; SET lock_timeout = '300ms'";

/// Attempts of a `FINALIZE`, and the pause between two of them: they take 10 seconds together.
const FINALIZE_ATTEMPTS: u32 = 10;
const FINALIZE_PAUSE: Duration = Duration::from_millis(300);

/// A statement has waited for another transaction for as long as it may.
fn is_waiting(error: &SourceError) -> bool {
    error.sqlstate().is_some_and(|state| {
        state == SqlState::LOCK_NOT_AVAILABLE || state == SqlState::QUERY_CANCELED
    })
}

/// Limits the statements of this session.
///
/// # Errors
/// An error of the server or of the connection.
pub async fn limit(client: &Client) -> Result<(), SourceError> {
    let failed = |e| SourceError::control("set up the session of log maintenance", e);
    client.batch_execute(LIMITS).await.map_err(failed)
}

/// An event log.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LogFacts {
    /// The log's name.
    pub name: String,
    /// The table of its events, in schema `postrider_log`.
    pub table: String,
    /// The lowest number that retention has kept.
    pub first_seq: u64,
    /// The number of the last event; 0 if there was none.
    pub last_seq: u64,
}

/// The logs of a writer by name, at most `max`, and the number of further ones.
///
/// # Errors
/// An error of the server or of the connection.
pub async fn logs(
    client: &Client,
    writer: &str,
    max: usize,
) -> Result<(Vec<LogFacts>, usize), SourceError> {
    let failed = |e| SourceError::control(format!("read the logs of {writer:?}"), e);
    let sql = "SELECT l.name, l.table_name::pg_catalog.text, l.first_seq, h.last_seq \
               FROM postrider.event_log l CROSS JOIN LATERAL postrider.log_head(l.name) h \
               WHERE l.writer = $1 ORDER BY l.name";
    let rows = client.query(sql, &[&writer]).await.map_err(failed)?;
    let log = |row: &Row| -> Result<LogFacts, tokio_postgres::Error> {
        Ok(LogFacts {
            name: row.try_get(0)?,
            table: row.try_get(1)?,
            first_seq: number(row, 2)?,
            last_seq: number(row, 3)?,
        })
    };
    let logs: Result<Vec<_>, _> = rows.iter().take(max).map(log).collect();
    Ok((logs.map_err(failed)?, rows.len().saturating_sub(max)))
}

/// Lets every role that may read the state of groups read the events of a log: roles may have been added since it was
/// created. Returns how many rights were granted.
///
/// # Errors
/// An error of the server or of the connection.
pub async fn grant(client: &Client, log: &str) -> Result<u64, SourceError> {
    let failed = |e| SourceError::control(format!("grant the rights of log {log:?}"), e);
    let row = client.query_one("SELECT postrider.log_grant($1)", &[&log]).await.map_err(failed)?;
    let granted: i32 = row.try_get(0).map_err(failed)?;
    Ok(u64::try_from(granted).unwrap_or(0))
}

/// A consumer of a group.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Consumer {
    /// The log that its group reads.
    pub log: String,
    /// The group.
    pub group: String,
    /// The consumer's name.
    pub name: String,
    /// Age of its last heartbeat. Unit: seconds.
    pub silent_seconds: u64,
}

/// Consumers without a heartbeat for 60 seconds, in groups of a writer's logs; at most `max`, the last ones heard of
/// first.
///
/// # Errors
/// An error of the server or of the connection.
pub async fn silent_consumers(
    client: &Client,
    writer: &str,
    max: usize,
) -> Result<Vec<Consumer>, SourceError> {
    let failed = |e| SourceError::control("read the heartbeats of consumers", e);
    let sql = "SELECT g.log, c.group_name, c.consumer, \
                 pg_catalog.date_part('epoch', pg_catalog.clock_timestamp() - c.last_heartbeat_at)::pg_catalog.int8 \
               FROM postrider.consumer c JOIN postrider.consumer_group g ON g.name = c.group_name \
               JOIN postrider.event_log l ON l.name = g.log \
               WHERE l.writer = $1 AND c.last_heartbeat_at NOT BETWEEN \
                 pg_catalog.clock_timestamp() - interval '60 seconds' \
                 AND pg_catalog.clock_timestamp() + interval '60 seconds' \
               ORDER BY c.last_heartbeat_at DESC LIMIT $2";
    let limit = i64::try_from(max).unwrap_or(i64::MAX);
    let rows = client.query(sql, &[&writer, &limit]).await.map_err(failed)?;
    let consumer = |row: &Row| -> Result<Consumer, tokio_postgres::Error> {
        Ok(Consumer {
            log: row.try_get(0)?,
            group: row.try_get(1)?,
            name: row.try_get(2)?,
            silent_seconds: number(row, 3)?,
        })
    };
    rows.iter().map(consumer).collect::<Result<_, _>>().map_err(failed)
}

/// Deletes consumers without a heartbeat for `dead_after`, in all groups of the database, and returns them.
///
/// # Errors
/// An error of the server or of the connection.
pub async fn reap(
    client: &Client,
    dead_after: Duration,
) -> Result<Vec<(String, String)>, SourceError> {
    let failed = |e| SourceError::control("delete dead consumers", e);
    let sql = "SELECT r.group_name, r.consumer FROM postrider.reap_consumers(pg_catalog.make_interval(secs => $1)) r";
    let rows = client.query(sql, &[&dead_after.as_secs_f64()]).await.map_err(failed)?;
    let reaped = |row: &Row| -> Result<(String, String), tokio_postgres::Error> {
        Ok((row.try_get(0)?, row.try_get(1)?))
    };
    rows.iter().map(reaped).collect::<Result<_, _>>().map_err(failed)
}

/// Deletes what is not among the `keep` newest ends of logs, progress of writers, and states of groups, in all logs of
/// the database; at most `max` rows of each table. Returns the number of rows.
///
/// # Errors
/// An error of the server or of the connection.
pub async fn sweep(client: &Client, keep: u32, max: u32) -> Result<u64, SourceError> {
    let failed = |e| SourceError::control("delete states that are not the newest", e);
    let parameters: [i32; 2] = [keep, max].map(|number| i32::try_from(number).unwrap_or(i32::MAX));
    let sql = "SELECT postrider.sweep_states($1, $2)";
    let row = client.query_one(sql, &[&parameters[0], &parameters[1]]).await.map_err(failed)?;
    number(&row, 0).map_err(failed)
}

/// The statements that grant what the session's role lacks, in order.
const MISSING: &str = "\
SELECT 1, format('GRANT USAGE ON SCHEMA postrider TO %I;', current_user) \
FROM pg_namespace AS n WHERE n.nspname = 'postrider' AND NOT has_schema_privilege(n.oid, 'USAGE') \
UNION ALL SELECT 2, format('GRANT USAGE, CREATE ON SCHEMA postrider_log TO %I;', current_user) \
FROM pg_namespace AS n WHERE n.nspname = 'postrider_log' \
  AND NOT (has_schema_privilege(n.oid, 'USAGE') AND has_schema_privilege(n.oid, 'CREATE')) \
UNION ALL SELECT 3, format('GRANT %s ON TABLE postrider.%I TO %I;', \
  string_agg(w.what, ', ' ORDER BY w.what DESC), w.name, current_user) \
FROM (VALUES ('event_log', 'SELECT'), ('event_log', 'UPDATE'), ('event_log_head', 'SELECT'), \
    ('event_log_head', 'DELETE'), ('event_log_progress', 'SELECT'), ('event_log_progress', 'DELETE'), \
    ('event_log_writer', 'SELECT'), ('event_log_sweep', 'SELECT'), ('event_log_sweep', 'INSERT'), \
    ('event_log_sweep', 'UPDATE'), ('consumer_group', 'SELECT'), ('consumer_group', 'UPDATE'), \
    ('consumer_group_partition', 'SELECT'), ('consumer_group_partition', 'UPDATE'), \
    ('consumer_group_state', 'SELECT'), ('consumer_group_state', 'INSERT'), ('consumer_group_state', 'DELETE'), \
    ('consumer_seen', 'SELECT'), ('consumer_seen', 'DELETE'), ('consumer', 'SELECT'), \
    ('consumer_group_lag', 'SELECT')) AS w(name, what) \
JOIN pg_namespace AS n ON n.nspname = 'postrider' \
JOIN pg_class AS c ON c.relnamespace = n.oid AND c.relname = w.name \
WHERE NOT has_table_privilege(c.oid, w.what) GROUP BY w.name \
UNION ALL SELECT 4, format('GRANT EXECUTE ON FUNCTION %s TO %I;', \
  string_agg(p.oid::regprocedure::text, ', ' ORDER BY p.oid), current_user) \
FROM pg_proc AS p JOIN pg_namespace AS n ON n.oid = p.pronamespace AND n.nspname = 'postrider' \
WHERE p.prokind = 'f' AND NOT has_function_privilege(p.oid, 'EXECUTE') HAVING count(*) > 0 \
ORDER BY 1, 2";

/// The statements after which the session's role owns the tables of a writer's logs: only the owner of a table can
/// attach and drop its partitions.
const NOT_OWNED: &str = "\
SELECT format('ALTER TABLE postrider_log.%I OWNER TO %I;', c.relname, current_user) \
FROM postrider.event_log AS l JOIN pg_namespace AS n ON n.nspname = 'postrider_log' \
JOIN pg_class AS r ON r.relnamespace = n.oid AND r.relname = l.table_name \
JOIN pg_class AS c ON c.oid = r.oid OR c.oid IN (SELECT i.inhrelid FROM pg_inherits AS i WHERE i.inhparent = r.oid) \
WHERE l.writer = $1 AND NOT pg_has_role(c.relowner, 'USAGE') ORDER BY c.relname";

/// After a statement of this module was refused (SQLSTATE 42501): the statements that grant what the session's role
/// lacks for the logs of `writer`, each with its semicolon. Empty if it lacks nothing any more.
///
/// # Errors
/// An error of the server or of the connection.
pub async fn missing_rights(client: &Client, writer: &str) -> Result<Vec<String>, SourceError> {
    let failed = |e| SourceError::control("read the rights that the maintenance of logs needs", e);
    let rows = client.query(MISSING, &[]).await.map_err(failed)?;
    let read = |row: &Row| row.try_get(1);
    let missing: Vec<String> = rows.iter().map(read).collect::<Result<_, _>>().map_err(failed)?;
    if !missing.is_empty() {
        return Ok(missing);
    }
    let rows = client.query(NOT_OWNED, &[&writer]).await.map_err(failed)?;
    rows.iter().map(|row| row.try_get(0)).collect::<Result<_, _>>().map_err(failed)
}

/// A group, as it is watched.
#[derive(Clone, PartialEq, Debug)]
pub struct GroupFacts {
    /// The group.
    pub name: String,
    /// The log that it reads.
    pub log: String,
    /// Events that are not done.
    pub lag: u64,
    /// How long the oldest of them has been in the log; 0 if there is none.
    pub lag_seconds: f64,
    /// Every event up to this number is done.
    pub done_to: u64,
    /// Consumers with a heartbeat in the last 60 seconds.
    pub alive: u64,
    /// Consumers without one.
    pub silent: u64,
    /// Hash partitions with a lease.
    pub leased: u64,
    /// Hash partitions of the log.
    pub partitions: u64,
    /// How often events were given out that are not done; the highest number.
    pub max_deliveries: u64,
    /// How many events it may hold back from retention; `None`: any number.
    pub retain_max: Option<u64>,
    /// When it was evicted, UTC.
    pub evicted_at: Option<String>,
}

/// The groups of a log, or of all logs of the database, by name; at most `max`.
///
/// # Errors
/// An error of the server or of the connection.
pub async fn groups(
    client: &Client,
    log: Option<&str>,
    max: usize,
) -> Result<Vec<GroupFacts>, SourceError> {
    let failed = |e| SourceError::control("read the state of consumer groups", e);
    let sql = "SELECT s.group_name, s.log, s.lag, s.lag_seconds, s.done_to, s.alive, s.silent, s.leased, \
                 s.partitions::pg_catalog.int8, s.max_deliveries::pg_catalog.int8, s.retain_max, \
                 pg_catalog.to_char(s.evicted_at AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS\"Z\"') \
               FROM postrider.group_status($1, $2) s";
    let limit = i32::try_from(max).unwrap_or(i32::MAX);
    let rows = client.query(sql, &[&log, &limit]).await.map_err(failed)?;
    rows.iter().map(group).collect::<Result<_, _>>().map_err(failed)
}

fn group(row: &Row) -> Result<GroupFacts, tokio_postgres::Error> {
    Ok(GroupFacts {
        name: row.try_get(0)?,
        log: row.try_get(1)?,
        lag: number(row, 2)?,
        lag_seconds: row.try_get(3)?,
        done_to: number(row, 4)?,
        alive: number(row, 5)?,
        silent: number(row, 6)?,
        leased: number(row, 7)?,
        partitions: number(row, 8)?,
        max_deliveries: number(row, 9)?,
        retain_max: row.try_get::<_, Option<i64>>(10)?.map(|max| u64::try_from(max).unwrap_or(0)),
        evicted_at: row.try_get(11)?,
    })
}

/// How many groups a log has.
///
/// # Errors
/// An error of the server or of the connection.
pub async fn count_groups(client: &Client, log: &str) -> Result<usize, SourceError> {
    let failed = |e| SourceError::control("count the consumer groups", e);
    let sql = "SELECT pg_catalog.count(*) FROM postrider.consumer_group g WHERE g.log = $1";
    let row = client.query_one(sql, &[&log]).await.map_err(failed)?;
    let count: i64 = row.try_get(0).map_err(failed)?;
    Ok(usize::try_from(count).unwrap_or(0))
}

/// A table of events that is to be dropped.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LogChild {
    /// Its name, in schema `postrider_log`.
    pub table: String,
    /// What of the drop is done already.
    pub state: ChildState,
    /// The lowest number that it may have.
    pub from_seq: u64,
    /// The highest number that it may have.
    pub to_seq: u64,
}

/// How far the drop of a table of events is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ChildState {
    /// A partition of the log's table.
    Attached,
    /// Its `DETACH CONCURRENTLY` was interrupted: no query finds it any more, and it has to be finalized.
    Detaching,
    /// A table of its own.
    Detached,
}

/// Evicts the groups that are further behind than their `retain_max` and hold tables of events older than `keep` back,
/// if at least one table can be dropped then. Returns the groups that were evicted, and up to which event each is done,
/// and the first error.
///
/// Each eviction waits for the polls and commits of its group, at most `lock_timeout` for each of them, and nobody else
/// waits for it.
pub async fn evict(
    client: &Client,
    log: &str,
    keep: Duration,
) -> (Vec<(String, u64)>, Result<(), SourceError>) {
    let failed = |e| SourceError::control(format!("read which groups hold log {log:?} back"), e);
    let sql = "SELECT e.group_name FROM postrider.log_evictable($1, pg_catalog.make_interval(secs => $2)) e";
    let rows = match client.query(sql, &[&log, &keep.as_secs_f64()]).await {
        Ok(rows) => rows,
        Err(error) => return (Vec::new(), Err(failed(error))),
    };
    let (mut evicted, mut done) = (Vec::new(), Ok(()));
    for row in &rows {
        match evict_one(client, log, keep, row).await {
            Ok(Some(group)) => evicted.push(group),
            Ok(None) => {}
            Err(error) => done = done.and(Err(error)),
        }
    }
    (evicted, done)
}

async fn evict_one(
    client: &Client,
    log: &str,
    keep: Duration,
    row: &Row,
) -> Result<Option<(String, u64)>, SourceError> {
    let failed = |e| SourceError::control(format!("evict a group of log {log:?}"), e);
    let group: String = row.try_get(0).map_err(failed)?;
    let sql = "SELECT postrider.log_evict($1, pg_catalog.make_interval(secs => $2), $3)";
    let failed = |e| SourceError::control(format!("evict group {group:?} of log {log:?}"), e);
    let row = client.query_one(sql, &[&log, &keep.as_secs_f64(), &group]).await.map_err(failed)?;
    let done_to: Option<i64> = row.try_get(0).map_err(failed)?;
    Ok(done_to.map(|done_to| (group, u64::try_from(done_to).unwrap_or(0))))
}

/// Decides what is dropped of a log: every table of events that are older than `keep` and done by every group that is
/// not evicted. Returns the tables to be dropped, in this order.
///
/// # Errors
/// An error of the server or of the connection.
pub async fn retain(
    client: &Client,
    log: &str,
    keep: Duration,
) -> Result<Vec<LogChild>, SourceError> {
    let failed = |e| SourceError::control(format!("decide what is dropped of log {log:?}"), e);
    let sql = "SELECT r.child::pg_catalog.text, r.state, r.from_seq, r.to_seq \
               FROM postrider.log_retain($1, pg_catalog.make_interval(secs => $2)) r";
    let rows = client.query(sql, &[&log, &keep.as_secs_f64()]).await.map_err(failed)?;
    let child = |row: &Row| -> Result<LogChild, tokio_postgres::Error> {
        let state: String = row.try_get(1)?;
        let state = match state.as_str() {
            "detaching" => ChildState::Detaching,
            "detached" => ChildState::Detached,
            _ => ChildState::Attached,
        };
        let (from_seq, to_seq) = (number(row, 2)?, number(row, 3)?);
        Ok(LogChild { table: row.try_get(0)?, state, from_seq, to_seq })
    };
    rows.iter().map(child).collect::<Result<_, _>>().map_err(failed)
}

/// Drops a table of events that [`retain`] returned. Polls and appends go on meanwhile: the table is detached
/// concurrently, which waits for the transactions that read the log, and dropped when no query can find it.
///
/// If the process ends between two of the statements, the next [`retain`] returns the table again.
///
/// # Errors
/// An error of the server or of the connection; SQLSTATE 55P03 or 57014 if a transaction that reads the log does not
/// end.
pub async fn drop_child(
    client: &Client,
    log: &LogFacts,
    child: &LogChild,
) -> Result<(), SourceError> {
    let doing = |what: &str| format!("{what} table postrider_log.{}", ident(&child.table));
    let run = async |what: &str, sql: &str| {
        let done = client.batch_execute(sql).await;
        done.map_err(|e| SourceError::control(doing(what), e))
    };
    let (root, table) = (ident(&log.table), ident(&child.table));
    let detach = format!("ALTER TABLE postrider_log.{root} DETACH PARTITION postrider_log.{table}");
    match child.state {
        ChildState::Attached => {
            run("detach", DETACH_LIMITS).await?;
            run("detach", &format!("{detach} CONCURRENTLY")).await?;
        }
        ChildState::Detaching => {
            run("finish the detach of", FINALIZE_LIMITS).await?;
            let finalize = format!("{detach} FINALIZE");
            let mut done = run("finish the detach of", &finalize).await;
            for _ in 1..FINALIZE_ATTEMPTS {
                // The snapshots that were waited for may be gone now, and newer ones do not count.
                let waited = done.as_ref().is_err_and(is_waiting);
                if !waited {
                    break;
                }
                tokio::time::sleep(FINALIZE_PAUSE).await;
                done = run("finish the detach of", &finalize).await;
            }
            done?;
        }
        ChildState::Detached => {}
    }
    run("drop", LIMITS).await?;
    run("drop", &format!("DROP TABLE postrider_log.{table}")).await
}

/// A group that holds back tables which are old enough to be dropped.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HoldingGroup {
    /// The group.
    pub group: String,
    /// Events of these tables that it has not passed.
    pub held_events: u64,
    /// Events that it has not done.
    pub lag: u64,
}

/// The groups that hold tables back, the one that holds back most first.
///
/// # Errors
/// An error of the server or of the connection.
pub async fn blockers(
    client: &Client,
    log: &str,
    keep: Duration,
) -> Result<Vec<HoldingGroup>, SourceError> {
    let failed = |e| SourceError::control(format!("read what holds log {log:?} back"), e);
    let sql = "SELECT b.group_name, b.held_events, b.lag \
               FROM postrider.log_blockers($1, pg_catalog.make_interval(secs => $2)) b";
    let rows = client.query(sql, &[&log, &keep.as_secs_f64()]).await.map_err(failed)?;
    let blocker = |row: &Row| -> Result<HoldingGroup, tokio_postgres::Error> {
        Ok(HoldingGroup {
            group: row.try_get(0)?,
            held_events: number(row, 1)?,
            lag: number(row, 2)?,
        })
    };
    rows.iter().map(blocker).collect::<Result<_, _>>().map_err(failed)
}

/// A number that is never negative.
pub(super) fn number(row: &Row, index: usize) -> Result<u64, tokio_postgres::Error> {
    row.try_get::<_, i64>(index).map(|number| u64::try_from(number).unwrap_or(0))
}
