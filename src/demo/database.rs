//! The database of a demo: a temporary server, or the user's own with a schema that is dropped at the end.

use super::cluster::TemporaryServer;
use super::error::DemoError;
use super::options::DemoOptions;
use super::process::Dir;
use crate::config::Env;
use crate::postgres::names::{ident, literal};
use crate::postgres::{Conninfo, connect_client};
use std::process::Command;
use std::time::Duration;

/// The outbox table of layout `postrider`, as `setup --create-table` creates it.
const OUTBOX: &str = include_str!("../../sql/layouts/postrider.sql");

/// How long an attempt to drop the demo's objects may take.
const CLOSE_DEADLINE: Duration = Duration::from_secs(10);

/// The database to which the demo writes and from which the relay reads.
#[derive(Debug)]
pub(super) struct Database {
    cluster: Option<TemporaryServer>,
    /// The relay's `source.url`. May contain a password, so it is passed in the environment.
    pub(super) url: String,
    pub(super) conninfo: Conninfo,
    /// The schema of the outbox table; slot and publication have the same name.
    pub(super) name: String,
    /// Whether Postrider's schema existed before the demo: then it is not dropped.
    had_schema: bool,
}

impl Database {
    /// Starts a temporary server, or connects to the server of `--url`.
    pub(super) async fn open(
        options: &DemoOptions,
        dir: &Dir,
        env: Env<'_>,
    ) -> Result<Self, DemoError> {
        let name = format!("postrider_demo_{:08x}", fastrand::u32(..));
        if let Some(url) = &options.url {
            let conninfo = parse(url, env)?;
            let found = query(&conninfo, "select 1 from pg_namespace where nspname = 'postrider'");
            let had_schema = found.await?;
            let url = url.clone();
            return Ok(Self { cluster: None, url, conninfo, name, had_schema });
        }
        let cluster = TemporaryServer::start(dir, env).await?;
        let url = cluster.conninfo.clone();
        let conninfo = parse(&url, &|_| None)?;
        Ok(Self { cluster: Some(cluster), url, conninfo, name, had_schema: false })
    }

    /// Creates the outbox table.
    pub(super) async fn prepare(&self) -> Result<(), DemoError> {
        let schema = ident(&self.name);
        let sql = format!("create schema {schema}; set search_path to {schema}; {OUTBOX}");
        execute(&self.conninfo, &sql).await
    }

    /// The database in one line.
    pub(super) fn describe(&self) -> String {
        match &self.cluster {
            Some(cluster) => format!("PostgreSQL {}, temporary, unix socket only", cluster.version),
            None => format!(
                "yours at {}; everything created there is named {} and dropped at the end",
                self.conninfo.hosts(),
                self.name
            ),
        }
    }

    /// Whether the temporary server has ended unexpectedly.
    pub(super) fn is_gone(&mut self) -> bool {
        self.cluster.as_mut().is_some_and(|cluster| !cluster.is_running())
    }

    /// Begins a restart of the temporary server, which [`Self::step_restart`] completes.
    pub(super) fn begin_restart(&mut self) -> Result<(), DemoError> {
        self.cluster.as_mut().map_or(Ok(()), TemporaryServer::begin_restart)
    }

    /// Continues the restart. Returns whether it is complete.
    pub(super) fn step_restart(&mut self) -> Result<bool, DemoError> {
        self.cluster.as_mut().map_or(Ok(true), TemporaryServer::step_restart)
    }

    /// The error for a server that has ended unexpectedly.
    pub(super) fn ended(&self) -> DemoError {
        let log = self.cluster.as_ref().map(TemporaryServer::log_tail);
        DemoError::ServerEnded { log: log.unwrap_or_default() }
    }

    /// Ends the temporary server, or drops the demo's objects in the user's database and returns what was dropped. The
    /// relay must have ended, because a slot in use cannot be dropped.
    pub(super) async fn close(self) -> Result<Option<String>, DemoError> {
        if self.cluster.is_some() {
            return Ok(None);
        }
        let dropped = tokio::time::timeout(CLOSE_DEADLINE, self.drop_objects()).await;
        match dropped {
            Ok(Ok(())) => Ok(Some(format!("dropped {} and its slot and publication", self.name))),
            Ok(Err(source)) => {
                Err(DemoError::LeftBehind { name: self.name, source: Some(source.into()) })
            }
            Err(_elapsed) => Err(DemoError::LeftBehind { name: self.name, source: None }),
        }
    }

    async fn drop_objects(&self) -> Result<(), DemoError> {
        let (name, text) = (ident(&self.name), literal(&self.name));
        // A walsender may take a moment to notice that its client has disconnected.
        let slot = format!(
            "do $$ declare walsender int; begin \
               for i in 1..50 loop \
                 select active_pid into walsender from pg_replication_slots where slot_name = {text}; \
                 exit when walsender is null; \
                 perform pg_terminate_backend(walsender), pg_sleep(0.1); \
               end loop; end $$; \
             select pg_drop_replication_slot(slot_name) from pg_replication_slots where slot_name = {text}"
        );
        execute(&self.conninfo, &slot).await?;
        // If the user has set up a pipeline meanwhile, Postrider's schema is not dropped.
        let keep = self.had_schema;
        let objects = format!(
            "drop publication if exists {name}; drop schema if exists {name} cascade; \
             do $$ begin \
               if to_regclass('postrider.cursor') is not null then \
                 delete from postrider.cursor where slot = {text}; \
                 if not {keep} and not exists (select from postrider.cursor) then \
                   drop schema postrider cascade; \
                 end if; \
               end if; end $$"
        );
        execute(&self.conninfo, &objects).await
    }
}

/// Parses a connection string.
pub(super) fn parse(url: &str, env: Env<'_>) -> Result<Conninfo, DemoError> {
    Conninfo::parse(url, env).map_err(DemoError::Url)
}

/// Runs statements on a new connection.
pub(super) async fn execute(conninfo: &Conninfo, sql: &str) -> Result<(), DemoError> {
    let (client, connection) =
        connect_client(conninfo, "postrider demo").await.map_err(DemoError::Connect)?;
    tokio::select! {
        done = client.batch_execute(sql) => done.map_err(DemoError::Sql),
        ended = connection => Err(ended.map_or_else(DemoError::Connect, |()| DemoError::Closed)),
    }
}

/// Whether a query has a row.
async fn query(conninfo: &Conninfo, sql: &str) -> Result<bool, DemoError> {
    let (client, connection) =
        connect_client(conninfo, "postrider demo").await.map_err(DemoError::Connect)?;
    tokio::select! {
        rows = client.query(sql, &[]) => Ok(!rows.map_err(DemoError::Sql)?.is_empty()),
        ended = connection => Err(ended.map_or_else(DemoError::Connect, |()| DemoError::Closed)),
    }
}

/// A value for a `key=value` connection string.
pub(super) fn quoted(value: &str) -> String {
    format!("'{}'", value.replace('\\', "\\\\").replace('\'', "\\'"))
}

/// Removes libpq's variables from the environment of a child process.
pub(super) fn without_pg_variables(command: &mut Command) {
    for (name, _) in std::env::vars_os() {
        if name.to_str().is_some_and(|name| name.starts_with("PG")) {
            command.env_remove(name);
        }
    }
}
