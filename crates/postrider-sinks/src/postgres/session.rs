//! A session of the writer, and its statements. Each statement is a transaction of its own, so no transaction is left
//! open when a session or a process ends.

use super::batch::{Array, LogFacts};
use super::spec::{CreateLogs, LogKind};
use pg_replication::client::{Canceller, connect_listening};
use pg_replication::{Conninfo, SourceError, SourceErrorKind};
use std::time::Duration;
use tokio::task::JoinHandle;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, Row};

/// Settings of the session; roles and databases can have other defaults.
///
/// The functions of the toolkit are written for READ COMMITTED. `default_transaction_read_only` is not set: with it an
/// operator declares that this role, database or server takes no writes, and the sink waits (SQLSTATE 25006).
/// `lock_timeout`: only an operator or a former writer can hold a lock that an append needs.
const SETTINGS: &str = "\
SET search_path = ''; SET statement_timeout = '60s'; SET lock_timeout = '5s'; \
SET idle_in_transaction_session_timeout = '60s'; SET client_min_messages = 'warning'; SET row_security = off; \
SET jit = off; SET client_encoding = 'UTF8'; SET default_transaction_isolation = 'read committed'; \
SET default_transaction_deferrable = off; SET idle_session_timeout = 0; \
SELECT pg_catalog.set_config('synchronous_commit', 'on', false) \
WHERE pg_catalog.current_setting('synchronous_commit') IN ('off', 'local')";

/// Settings that not every server has, or not every role may set.
const SETTINGS_IF_SUPPORTED: &str = "\
SELECT pg_catalog.set_config('transaction_timeout', '0', false) \
WHERE pg_catalog.current_setting('transaction_timeout', true) IS NOT NULL \
UNION ALL SELECT pg_catalog.set_config('session_replication_role', 'origin', false) \
WHERE pg_catalog.current_setting('session_replication_role') <> 'origin' \
  AND pg_catalog.has_parameter_privilege('session_replication_role', 'SET')";

/// A session whose client has disconnected ends its statement soon. Optional: some platforms refuse it.
const NOTICES_A_LOST_CLIENT: &str = "SET client_connection_check_interval = '2s'";

/// The version, the encoding, whether the session can't write, whether the newest function of the toolkit that the sink
/// calls is installed, and the first right that the role lacks. Names are looked up in the catalog, because a name that
/// is missing would be an error.
const FACTS: &str = "\
SELECT pg_catalog.current_setting('server_version'), pg_catalog.current_setting('server_encoding'), \
  pg_catalog.pg_is_in_recovery() OR pg_catalog.current_setting('transaction_read_only') = 'on', \
  EXISTS (SELECT FROM pg_catalog.pg_proc AS p JOIN pg_catalog.pg_namespace AS n ON n.oid = p.pronamespace \
    WHERE n.nspname = 'postrider' AND p.proname = 'log_append'), \
  (SELECT l.what FROM ( \
    SELECT 1, n.nspname || ': ' || r.name FROM pg_catalog.pg_namespace AS n \
      CROSS JOIN (VALUES ('postrider', 'USAGE'), ('postrider_log', 'USAGE'), ('postrider_log', 'CREATE')) \
        AS r(of, name) \
      WHERE n.nspname = r.of AND NOT pg_catalog.has_schema_privilege(n.oid, r.name) \
    UNION ALL SELECT 2, 'EXECUTE ON FUNCTION ' || p.proname FROM pg_catalog.pg_proc AS p \
      JOIN pg_catalog.pg_namespace AS n ON n.oid = p.pronamespace \
      WHERE n.nspname = 'postrider' AND p.proname IN ('log_append', 'log_begin', 'log_move', 'log_head', 'log_open', \
        'log_take_over', 'log_extend', 'log_grant', 'log_table_name', 'create_log') \
        AND NOT pg_catalog.has_function_privilege(p.oid, 'EXECUTE') \
    UNION ALL SELECT 3, r.name || ' ON TABLE ' || c.relname FROM pg_catalog.pg_class AS c \
      JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace \
      CROSS JOIN (VALUES ('event_log', 'SELECT'), ('event_log', 'INSERT'), ('event_log', 'UPDATE'), \
        ('event_log_head', 'SELECT'), ('event_log_head', 'INSERT'), ('event_log_writer', 'SELECT'), \
        ('event_log_writer', 'INSERT'), ('event_log_writer', 'UPDATE'), ('event_log_progress', 'SELECT'), \
        ('event_log_progress', 'INSERT')) AS r(of, name) \
      WHERE n.nspname = 'postrider' AND c.relname = r.of AND NOT pg_catalog.has_table_privilege(c.oid, r.name) \
  ) AS l(step, what) ORDER BY l.step, l.what LIMIT 1)";

/// A log, where it ends, and the owner of its table if the role has not the rights of the owner.
const FIND_LOG: &str = "\
SELECT e.kind, e.partitions, e.writer, h.last_seq, (SELECT pg_catalog.pg_get_userbyid(c.relowner)::text \
    FROM pg_catalog.pg_class AS c JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace \
    WHERE n.nspname = 'postrider_log' AND c.relname = e.table_name \
      AND NOT pg_catalog.pg_has_role(c.relowner, 'USAGE')) \
FROM postrider.event_log AS e CROSS JOIN LATERAL postrider.log_head(e.name) AS h WHERE e.name = $1";

/// The statements after which the session's role owns the tables of a log, a row for each that it does not own.
const OWNER_STATEMENTS: &str = "\
SELECT pg_catalog.format('ALTER TABLE postrider_log.%I OWNER TO %I;', c.relname, current_user) \
FROM postrider.event_log AS e JOIN pg_catalog.pg_namespace AS n ON n.nspname = 'postrider_log' \
JOIN pg_catalog.pg_class AS r ON r.relnamespace = n.oid AND r.relname = e.table_name \
JOIN pg_catalog.pg_class AS c ON c.oid = r.oid \
  OR c.oid IN (SELECT i.inhrelid FROM pg_catalog.pg_inherits AS i WHERE i.inhparent = r.oid) \
WHERE e.name = $1 AND NOT pg_catalog.pg_has_role(c.relowner, 'USAGE') ORDER BY c.relname";

/// The longest wait for an answer of the server: longer than `statement_timeout`.
const ANSWER_MAX: Duration = Duration::from_secs(90);

/// Children of a log that are created ahead of its end.
pub(super) const CHILDREN_AHEAD: i32 = 2;

/// The longest wait for the cancel request of a former session.
const CANCEL_MAX: Duration = Duration::from_secs(2);

/// The session. Dropping it ends the connection.
pub(super) struct Session {
    client: Client,
    canceller: Canceller,
    connection: JoinHandle<Result<(), SourceError>>,
    ended: bool,
}

/// What a recovery has found.
pub(super) struct TakenOver {
    /// The number of this writer among all that wrote under its name.
    pub(super) epoch: i64,
    /// The number of appends.
    pub(super) appends: i64,
    /// What the last append has stored.
    pub(super) progress: Option<String>,
}

/// Where a log ends.
pub(super) struct LogEnd {
    pub(super) facts: LogFacts,
    pub(super) last_seq: i64,
    /// By hash partition: the `seq` of its last event.
    pub(super) heads: Vec<i64>,
    /// By hash partition: the number of events that it ever had.
    pub(super) counts: Vec<i64>,
    /// The last `seq` that the children of the table have room for.
    pub(super) room_to: i64,
    /// Further children are created when there is room for this many events.
    pub(super) extends_at: i64,
}

/// What the database of the logs has.
pub(super) struct DatabaseFacts {
    pub(super) version: String,
    pub(super) encoding: String,
    /// The server or the role takes no writes.
    pub(super) read_only: bool,
    /// The functions of this version are installed.
    pub(super) toolkit: bool,
    /// A right that the role lacks.
    pub(super) lacks: Option<String>,
}

/// What a log is.
pub(super) struct FoundLog {
    pub(super) kind: String,
    pub(super) partitions: i32,
    pub(super) writer: Option<String>,
    pub(super) last_seq: i64,
    /// The role that owns the table, if the sink's role is not a member of it.
    pub(super) other_owner: Option<String>,
}

/// What an append stores beside the events. The numbers of logs are in the order of `logs`.
pub(super) struct Append<'a> {
    pub(super) writer: &'a str,
    pub(super) epoch: i64,
    pub(super) appends: i64,
    pub(super) progress: &'a str,
    pub(super) logs: Vec<&'a str>,
    pub(super) last_seqs: Vec<i64>,
    pub(super) sizes: Vec<i32>,
    pub(super) partitions: Vec<i32>,
    /// Those of all logs, one behind the other.
    pub(super) heads: Vec<i64>,
    pub(super) counts: Vec<i64>,
    pub(super) columns: Vec<(Array<'a>, Type)>,
}

impl Session {
    /// Connects, and sets the session up.
    pub(super) async fn connect(conninfo: &Conninfo, name: &str) -> Result<Self, SourceError> {
        let opened = connect_listening(conninfo, name, |_, _| {}).await?;
        let (client, connection, canceller) = opened;
        #[expect(clippy::disallowed_methods, reason = "the handle is kept, and aborted on drop")]
        let connection = tokio::spawn(connection);
        let mut session = Self { client, canceller, connection, ended: false };
        for settings in [SETTINGS, SETTINGS_IF_SUPPORTED] {
            if let Err(error) = session.client.batch_execute(settings).await {
                return Err(session.blame("set up the session of the event logs", error).await);
            }
        }
        // If the connection is lost here, the next statement fails.
        drop(session.client.batch_execute(NOTICES_A_LOST_CLIENT).await);
        Ok(session)
    }

    /// Cancels the statement that the server may still execute, and ends the connection.
    pub(super) async fn end(self) {
        // An unreachable server can't be asked. The epoch keeps its statement from taking effect later.
        drop(tokio::time::timeout(CANCEL_MAX, self.canceller.cancel()).await);
    }

    /// Waits until the connection ends, and returns why. Cancel-safe, and may be called again.
    pub(super) async fn closed(&mut self) -> SourceError {
        const DOING: &str = "keep the connection to the event logs";
        if self.ended {
            return SourceError::new(SourceErrorKind::Closed, DOING);
        }
        let outcome = (&mut self.connection).await;
        self.ended = true;
        match outcome {
            Ok(Err(error)) => error,
            Ok(Ok(())) => SourceError::new(SourceErrorKind::Closed, DOING),
            Err(error) => SourceError::new(SourceErrorKind::System, DOING).caused_by(error),
        }
    }

    /// The more exact of two errors with one cause: the client only knows that its connection was closed, the
    /// connection knows why.
    async fn blame(&mut self, doing: &str, error: tokio_postgres::Error) -> SourceError {
        if error.is_closed() { self.closed().await } else { SourceError::control(doing, error) }
    }

    /// Executes one statement, without a prepared one: a pooler may give each statement another session.
    async fn rows(
        &mut self,
        doing: &str,
        statement: &str,
        params: &[(&(dyn ToSql + Sync), Type)],
    ) -> Result<Vec<Row>, SourceError> {
        let answer = self.client.query_typed(statement, params);
        match tokio::time::timeout(ANSWER_MAX, answer).await {
            Ok(Ok(rows)) => Ok(rows),
            Ok(Err(error)) => Err(self.blame(doing, error).await),
            Err(elapsed) => {
                let kind = SourceErrorKind::Timeout(ANSWER_MAX);
                Err(SourceError::new(kind, doing).caused_by(elapsed))
            }
        }
    }

    async fn row(
        &mut self,
        doing: &str,
        statement: &str,
        params: &[(&(dyn ToSql + Sync), Type)],
    ) -> Result<Row, SourceError> {
        let first = self.rows(doing, statement, params).await?.into_iter().next();
        first.ok_or_else(|| SourceError::new(SourceErrorKind::Protocol, doing))
    }

    /// The encoding of the database.
    pub(super) async fn encoding(&mut self) -> Result<String, SourceError> {
        let doing = "read the encoding of the database";
        let row =
            self.row(doing, "SELECT pg_catalog.current_setting('server_encoding')", &[]).await?;
        value(&row, 0, doing)
    }

    /// What `postrider check` shows of the database.
    pub(super) async fn facts(&mut self) -> Result<DatabaseFacts, SourceError> {
        let doing = "read the rights in the database of the event logs";
        let row = self.row(doing, FACTS, &[]).await?;
        Ok(DatabaseFacts {
            version: value(&row, 0, doing)?,
            encoding: value(&row, 1, doing)?,
            read_only: value(&row, 2, doing)?,
            toolkit: value(&row, 3, doing)?,
            lacks: value(&row, 4, doing)?,
        })
    }

    /// What a log is, without binding it to a writer; `None` if there is none of this name.
    pub(super) async fn find_log(&mut self, log: &str) -> Result<Option<FoundLog>, SourceError> {
        let doing = format!("look for event log {log:?}");
        let found = self.rows(&doing, FIND_LOG, &[(&log, Type::TEXT)]).await?;
        let read = |row: &Row| {
            Ok(FoundLog {
                kind: value(row, 0, &doing)?,
                partitions: value(row, 1, &doing)?,
                writer: value(row, 2, &doing)?,
                last_seq: value(row, 3, &doing)?,
                other_owner: value(row, 4, &doing)?,
            })
        };
        found.first().map(read).transpose()
    }

    /// The statements after which the session's role owns the tables of a log.
    pub(super) async fn owner_statements(&mut self, log: &str) -> Result<Vec<String>, SourceError> {
        let doing = format!("look for the owners of event log {log:?}");
        let rows = self.rows(&doing, OWNER_STATEMENTS, &[(&log, Type::TEXT)]).await?;
        rows.iter().map(|row| value(row, 0, &doing)).collect()
    }

    /// Makes this process the only one that appends under the name.
    pub(super) async fn take_over(&mut self, writer: &str) -> Result<TakenOver, SourceError> {
        let doing = format!("make this process the writer {writer:?} of event logs");
        let statement = "SELECT w.epoch, w.n, w.progress FROM postrider.log_take_over($1) AS w";
        let row = self.row(&doing, statement, &[(&writer, Type::TEXT)]).await?;
        Ok(TakenOver {
            epoch: value(&row, 0, &doing)?,
            appends: value(&row, 1, &doing)?,
            progress: value(&row, 2, &doing)?,
        })
    }

    /// Where a log ends; `None` if there is none of this name. Binds it to the writer, and creates children ahead.
    pub(super) async fn open_log(
        &mut self,
        log: &str,
        writer: &str,
    ) -> Result<Option<LogEnd>, SourceError> {
        let doing = format!("read where event log {log:?} ends");
        let statement = "SELECT o.kind, o.partitions, o.last_seq, o.heads, o.counts \
                         FROM postrider.log_open($1, $2) AS o";
        let params: [(&(dyn ToSql + Sync), Type); 2] = [(&log, Type::TEXT), (&writer, Type::TEXT)];
        let Some(row) = self.rows(&doing, statement, &params).await?.into_iter().next() else {
            return Ok(None);
        };
        let wrong = || SourceError::new(SourceErrorKind::Protocol, doing.as_str());
        let kind: String = value(&row, 0, &doing)?;
        let partitions: i32 = value(&row, 1, &doing)?;
        let facts = LogFacts {
            kind: LogKind::parse(&kind).ok_or_else(wrong)?,
            partitions: u32::try_from(partitions).map_err(|_negative| wrong())?,
        };
        let (heads, counts) = (value(&row, 3, &doing)?, value(&row, 4, &doing)?);
        let last_seq: i64 = value(&row, 2, &doing)?;
        self.grant(log).await?;
        let room_to = self.extend(log, CHILDREN_AHEAD).await?;
        let extends_at = (room_to - last_seq) / 2;
        Ok(Some(LogEnd { facts, last_seq, heads, counts, room_to, extends_at }))
    }

    /// Creates a log.
    pub(super) async fn create_log(
        &mut self,
        log: &str,
        create: &CreateLogs,
    ) -> Result<(), SourceError> {
        let (partitions, rows) =
            (create.partitions.cast_signed(), i64::from(create.rows_per_child));
        let kind = create.kind.name();
        let params: [(&(dyn ToSql + Sync), Type); 4] = [
            (&log, Type::TEXT),
            (&partitions, Type::INT4),
            (&rows, Type::INT8),
            (&kind, Type::TEXT),
        ];
        let statement = "SELECT postrider.create_log($1, $2, $3, $4)";
        self.rows(&format!("create event log {log:?}"), statement, &params).await.map(drop)
    }

    /// Creates the children of the next `ahead` ranges. Returns the last `seq` that there is room for.
    pub(super) async fn extend(&mut self, log: &str, ahead: i32) -> Result<i64, SourceError> {
        let doing = format!("create children of event log {log:?}");
        let params: [(&(dyn ToSql + Sync), Type); 2] = [(&log, Type::TEXT), (&ahead, Type::INT4)];
        let row = self.row(&doing, "SELECT postrider.log_extend($1, $2)", &params).await?;
        value(&row, 0, &doing)
    }

    /// Lets the roles that read consumer groups read the log.
    async fn grant(&mut self, log: &str) -> Result<(), SourceError> {
        let doing = format!("give the readers of event log {log:?} their rights");
        let statement = "SELECT postrider.log_grant($1)";
        self.rows(&doing, statement, &[(&log, Type::TEXT)]).await.map(drop)
    }

    /// Appends events, and stores the progress, in one transaction.
    pub(super) async fn append(&mut self, append: &Append<'_>) -> Result<(), SourceError> {
        const STATEMENT: &str = "SELECT postrider.log_append($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, \
                                 $14, $15, $16, $17, $18, $19, $20, $21)";
        let fixed: [(&(dyn ToSql + Sync), Type); 10] = [
            (&append.writer, Type::TEXT),
            (&append.epoch, Type::INT8),
            (&append.appends, Type::INT8),
            (&append.progress, Type::TEXT),
            (&append.logs, Type::TEXT_ARRAY),
            (&append.last_seqs, Type::INT8_ARRAY),
            (&append.sizes, Type::INT4_ARRAY),
            (&append.partitions, Type::INT4_ARRAY),
            (&append.heads, Type::INT8_ARRAY),
            (&append.counts, Type::INT8_ARRAY),
        ];
        let mut params = Vec::from(fixed);
        let columns = append.columns.iter();
        params.extend(columns.map(|(array, of)| (array as &(dyn ToSql + Sync), of.clone())));
        self.rows("append to the event logs", STATEMENT, &params).await.map(drop)
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.connection.abort();
    }
}

/// A column of a row.
fn value<'r, T: tokio_postgres::types::FromSql<'r>>(
    row: &'r Row,
    at: usize,
    doing: &str,
) -> Result<T, SourceError> {
    row.try_get(at).map_err(|error| SourceError::control(doing, error))
}
