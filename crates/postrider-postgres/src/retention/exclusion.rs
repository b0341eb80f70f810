//! Keeps the detach of partitions and the begin of a repair apart.
//!
//! While a partition is detached, no query of the table finds its rows. If a repair listed the rows then, it would lack
//! a row that was inserted between the first look and the detach; its snapshot would see the row nevertheless, and the
//! row would count as published. So a repair excludes detaches until it has its list, and first attaches what a process
//! that has ended left detached. Retention sees the repair afterwards ([`super::Hold::Repair`]).
//!
//! It is an advisory lock of the sessions: a detach can't be in a transaction, and a process that ends loses its lock.

use super::limit;
use super::partition::{attach_again, finalize};
use super::root::{Child, PartitionState, PartitionedRoot, mark};
use crate::control::Control;
use crate::names::{TableName, literal};
use pg_replication::conninfo::Conninfo;
use pg_replication::error::SourceError;
use std::time::Duration;
use tokio_postgres::Client;

/// A repair waits so long for a detach, which itself waits up to 30 s for transactions that use the table.
const WAIT: &str = "BEGIN; SET LOCAL statement_timeout = '60s'; SET LOCAL lock_timeout = '60s'";

/// While this exists, no partition of the table is detached by retention, and none is left detached.
pub struct DetachExclusion {
    /// The session that has the lock, until it ends; `None` if the table has no partitions.
    _control: Option<Control>,
}

impl DetachExclusion {
    /// Waits for a detach that is in progress, and attaches again what was left detached, on a session of its own.
    /// `client`: a session that reads whether the table has partitions.
    ///
    /// # Errors
    /// An error of the server or of the connection; 55P03 or 57014: a transaction that reads the table is waited for.
    /// The caller tries again later.
    pub async fn begin(
        client: &Client,
        (conninfo, application_name): (&Conninfo, &str),
        table: &TableName,
    ) -> Result<Self, SourceError> {
        let failed = |e| SourceError::control(format!("read whether {table} is partitioned"), e);
        let sql =
            "SELECT EXISTS (SELECT FROM pg_class WHERE oid = to_regclass($1) AND relkind = 'p')";
        let row = client.query_one(sql, &[&table.to_string()]).await.map_err(failed)?;
        if !row.try_get::<_, bool>(0).map_err(failed)? {
            return Ok(Self { _control: None });
        }
        let control = Control::connect(conninfo, application_name).await?;
        let client = control.client();
        let failed =
            |e| SourceError::control(format!("wait for a detach of a partition of {table}"), e);
        let sql = format!("{WAIT}; SELECT pg_catalog.pg_advisory_lock({}); COMMIT", key(table));
        client.batch_execute(&sql).await.map_err(failed)?;
        if let Some(root) = PartitionedRoot::read(client, table, None, Duration::ZERO).await? {
            limit(client).await?;
            for child in &root.children {
                match child.state {
                    PartitionState::Attached => {}
                    PartitionState::Detaching => {
                        finalize(client, &root, child).await?;
                        attach_again(client, &root, child).await?;
                    }
                    PartitionState::Detached => attach_again(client, &root, child).await?,
                }
            }
        }
        Ok(Self { _control: Some(control) })
    }
}

/// The key of the lock.
fn key(table: &TableName) -> String {
    format!("pg_catalog.hashtextextended({}, 0)", literal(&mark(table)))
}

/// Takes the lock for a detach; false while a repair begins.
pub(super) async fn enter(client: &Client, table: &TableName) -> Result<bool, SourceError> {
    ask(client, table, "pg_try_advisory_lock_shared").await
}

/// Returns it.
pub(super) async fn leave(client: &Client, table: &TableName) -> Result<(), SourceError> {
    ask(client, table, "pg_advisory_unlock_shared").await.map(drop)
}

async fn ask(client: &Client, table: &TableName, function: &str) -> Result<bool, SourceError> {
    let failed = |e| SourceError::control(format!("lock the partitions of {table}"), e);
    let sql = format!("SELECT pg_catalog.{function}({})", key(table));
    client.query_one(&sql, &[]).await.and_then(|row| row.try_get(0)).map_err(failed)
}

/// Removes the comments that processes have left which ended before they detached anything: a partition that its owner
/// detaches by hand must not look like one of retention's.
pub(super) async fn clear_marks(
    client: &Client,
    root: &PartitionedRoot,
) -> Result<(), SourceError> {
    let table = &root.name;
    let failed =
        |e| SourceError::control(format!("clear the comments on partitions of {table}"), e);
    let stale = root.children.iter().filter(|child| child.is_marked);
    let stale = stale.filter(|child| child.state == PartitionState::Attached);
    // It may be detached since it was read: then the comment is needed.
    let clear = |child: &Child| {
        let comment = literal(&format!("COMMENT ON TABLE {} IS NULL", child.name));
        let of = literal(&child.name.to_string());
        let body = format!(
            "BEGIN IF EXISTS (SELECT FROM pg_inherits WHERE inhrelid = to_regclass({of}) \
             AND NOT inhdetachpending) THEN EXECUTE {comment}; END IF; END"
        );
        format!("DO {};", literal(&body))
    };
    let sql: Vec<String> = stale.map(clear).collect();
    // Another process may be about to detach one.
    if sql.is_empty() || !ask(client, table, "pg_try_advisory_lock").await? {
        return Ok(());
    }
    let cleared = client.batch_execute(&sql.concat()).await.map_err(failed);
    ask(client, table, "pg_advisory_unlock").await?;
    cleared
}
