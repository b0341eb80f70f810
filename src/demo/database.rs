//! The database of a demo: a throwaway server, or the user's own with a schema that is dropped at the end.

use super::cluster::Cluster;
use super::process::Dir;
use super::{DemoError, Options};
use crate::config::Env;
use crate::postgres::names::{ident, literal};
use crate::postgres::{Conninfo, connect_client};
use std::process::Command;
use std::time::Duration;

/// The outbox of layout `postrider`, as `setup --create-table` makes it.
const OUTBOX: &str = include_str!("../../sql/layouts/postrider.sql");

/// How long each try to leave nothing behind may take.
const CLOSE_DEADLINE: Duration = Duration::from_secs(10);

/// Where the demo writes, and where the relay reads.
#[derive(Debug)]
pub(super) struct Database {
    cluster: Option<Cluster>,
    /// What the relay's configuration takes as `source.url`. May hold a password: it goes by the environment.
    pub(super) url: String,
    pub(super) conninfo: Conninfo,
    /// The schema of the outbox; slot and publication bear the same name.
    pub(super) name: String,
    /// Whether Postrider's own schema was there before the demo: then it stays.
    had_schema: bool,
}

impl Database {
    /// Starts a throwaway server, or connects to the one that `--url` names.
    pub(super) async fn open(
        options: &Options,
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
        let cluster = Cluster::start(dir, env).await?;
        let url = cluster.conninfo.clone();
        let conninfo = parse(&url, &|_| None)?;
        Ok(Self { cluster: Some(cluster), url, conninfo, name, had_schema: false })
    }

    /// Makes the outbox.
    pub(super) async fn prepare(&self) -> Result<(), DemoError> {
        let schema = ident(&self.name);
        let sql = format!("create schema {schema}; set search_path to {schema}; {OUTBOX}");
        execute(&self.conninfo, &sql).await
    }

    /// What it is, in one line.
    pub(super) fn describe(&self) -> String {
        match &self.cluster {
            Some(cluster) => format!("PostgreSQL {}, throwaway, unix socket only", cluster.version),
            None => format!(
                "yours at {}; all that is made there is named {} and dropped at the end",
                self.conninfo.hosts(),
                self.name
            ),
        }
    }

    /// The throwaway server has ended by itself.
    pub(super) fn is_gone(&mut self) -> bool {
        self.cluster.as_mut().is_some_and(|cluster| !cluster.is_running())
    }

    /// Tells the throwaway server to stop, and to be started again by [`Self::step_restart`].
    pub(super) fn begin_restart(&mut self) -> Result<(), DemoError> {
        self.cluster.as_mut().map_or(Ok(()), Cluster::begin_restart)
    }

    /// Whether it was started again.
    pub(super) fn step_restart(&mut self) -> Result<bool, DemoError> {
        self.cluster.as_mut().map_or(Ok(true), Cluster::step_restart)
    }

    /// The error of its end.
    pub(super) fn ended(&self) -> DemoError {
        let log = self.cluster.as_ref().map(Cluster::log_tail);
        DemoError::ServerEnded { log: log.unwrap_or_default() }
    }

    /// Ends the throwaway server, or drops what was made in the user's: each object that is there, and no other. Says
    /// what it left, for the relay must be gone first.
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
        // A walsender may take a moment to notice that its client has gone.
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
        // Somebody may have set up a pipeline of their own meanwhile: then the schema is theirs.
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

/// A connection string, or what is wrong with it.
pub(super) fn parse(url: &str, env: Env<'_>) -> Result<Conninfo, DemoError> {
    Conninfo::parse(url, env).map_err(DemoError::Url)
}

/// Runs statements on a connection of their own.
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

/// Takes libpq's variables from a child that is to use nothing but what it is told.
pub(super) fn without_pg_variables(command: &mut Command) {
    for (name, _) in std::env::vars_os() {
        if name.to_str().is_some_and(|name| name.starts_with("PG")) {
            command.env_remove(name);
        }
    }
}
