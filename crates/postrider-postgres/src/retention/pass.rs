//! One pass of retention: partitions that are missing, partitions or rows that may go, old partitions of the archive.

use super::exclusion::{clear_marks, enter, leave};
use super::hold::Hold;
use super::partition::{Ready, Taken, is_waiting};
use super::root::{Child, PartitionState, PartitionedRoot};
use super::rows::{Archive, BlockRange, Chunk, HeldRows};
use super::{RetentionAction, RetentionRule, RetentionTable, limit};
use crate::names::{TableName, ident, literal};
use pg_replication::error::SourceError;
use std::pin::Pin;
use std::time::Duration;
use tokio::time::{Instant, sleep};
use tokio_postgres::Client;

/// Blocks of one transaction: as many as take some tens of milliseconds.
const BLOCKS_MIN: u32 = 8;
const BLOCKS_FIRST: u32 = 64;
const BLOCKS_MAX: u32 = 2048;

/// With a faster transaction the next one has twice as many blocks, with a slower one half as many.
const FAST: Duration = Duration::from_millis(50);
const SLOW: Duration = Duration::from_millis(500);

/// Expired rows that one statement deletes, and statements of one pass.
const EXPIRED_ROWS: u32 = 1000;
const EXPIRED_STATEMENTS: u32 = 1000;

/// What a pass has just done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PassEvent<'a> {
    /// Rows were deleted, or moved to the archive.
    Rows(u64),
    /// A partition of the outbox or of the archive was created.
    Created(&'a TableName),
    /// A partition of the outbox was dropped. Unit: bytes.
    Dropped(&'a TableName, u64),
    /// A partition of the outbox was attached to the archive. Unit: bytes.
    Archived(&'a TableName, u64),
    /// A partition of the archive was dropped. Unit: bytes.
    ArchiveDropped(&'a TableName, u64),
    /// A partition whose bound has passed is kept because of its rows.
    Kept(&'a TableName, &'a Ready),
}

/// What a pass has done, and what keeps the rest.
#[derive(Default, Debug)]
pub struct PassReport {
    /// Rows that were deleted or moved to the archive.
    pub rows: u64,
    /// Partitions that were created.
    pub created: u64,
    /// Partitions of the outbox that were dropped or archived.
    pub taken: u64,
    /// Partitions of the archive that were dropped.
    pub archive_dropped: u64,
    /// Expired rows that were deleted from the table of processed events.
    pub expired: u64,
    /// Rows that are old enough and are kept, by the guard that keeps them.
    pub held: HeldRows,
    /// What blocks the removal of all rows.
    pub holds: Vec<Hold>,
    /// Ranges of blocks that were left to the next pass, because something has waited for a lock for too long.
    pub busy: u64,
    /// What has failed; the other steps were done.
    pub errors: Vec<SourceError>,
}

/// A pass, as a future that another thread may run.
pub type PassFuture<'a> = Pin<Box<dyn Future<Output = PassReport> + Send + 'a>>;

/// Does all that is due. An error of one step does not keep the others from being done.
pub fn pass<'a>(
    client: &'a Client,
    rule: &'a RetentionRule,
    on: &'a mut (dyn FnMut(PassEvent<'_>) + Send),
) -> PassFuture<'a> {
    Box::pin(async move {
        let report = PassReport::default();
        let mut pass = Pass { client, on, report };
        if let Err(error) = pass.run(rule).await {
            pass.report.errors.push(error);
        }
        pass.report
    })
}

struct Pass<'a> {
    client: &'a Client,
    on: &'a mut (dyn FnMut(PassEvent<'_>) + Send),
    report: PassReport,
}

impl Pass<'_> {
    async fn run(&mut self, rule: &RetentionRule) -> Result<(), SourceError> {
        limit(self.client).await?;
        if let Some(table) = &rule.settings.processed_events
            && let Err(error) = self.expire(table).await
        {
            self.report.errors.push(error);
        }
        if rule.settings.keep.is_none() {
            return Ok(());
        }
        let table = RetentionTable::read(self.client, rule.clone()).await?;
        let root = PartitionedRoot::read(
            self.client,
            table.name(),
            rule.table.zone.as_ref(),
            table.keep(),
        );
        let root = root.await?;
        if let Some(root) = &root
            && let Err(error) = self.extend(root, rule).await
        {
            self.report.errors.push(error);
        }
        let archive = match table.archive(self.client).await? {
            Ok(archive) => archive,
            Err(hold) => {
                self.report.holds.push(hold);
                return Ok(());
            }
        };
        let archive = archive.filter(|_| rule.settings.action == RetentionAction::Archive);
        if let Err(error) = self.remove(&table, root.as_ref(), archive.as_ref()).await {
            self.report.errors.push(error);
        }
        match &archive {
            Some(archive) => self.drop_archived(&table, archive).await,
            None => Ok(()),
        }
    }

    async fn expire(&mut self, table: &TableName) -> Result<(), SourceError> {
        for _ in 0..EXPIRED_STATEMENTS {
            let started = Instant::now();
            let rows = remove_expired(self.client, table, EXPIRED_ROWS).await?;
            self.report.expired += rows;
            if rows < u64::from(EXPIRED_ROWS) {
                break;
            }
            sleep(started.elapsed()).await;
        }
        Ok(())
    }

    async fn extend(
        &mut self,
        root: &PartitionedRoot,
        rule: &RetentionRule,
    ) -> Result<(), SourceError> {
        let Some(width) = rule.settings.width else { return Ok(()) };
        if managed_by_partman(self.client, &root.name).await? {
            return Ok(());
        }
        match root.extend(self.client, width, rule.settings.ahead).await? {
            Ok(created) => self.created(&created),
            Err(hold) => self.report.holds.push(hold),
        }
        Ok(())
    }

    fn created(&mut self, created: &[TableName]) {
        for table in created {
            self.report.created += 1;
            (self.on)(PassEvent::Created(table));
        }
    }

    async fn remove(
        &mut self,
        table: &RetentionTable,
        root: Option<&PartitionedRoot>,
        archive: Option<&Archive>,
    ) -> Result<(), SourceError> {
        if let Some(root) = root
            && let Err(error) = clear_marks(self.client, root).await
        {
            self.report.errors.push(error);
        }
        match (table.rule().settings.action, root) {
            (RetentionAction::Delete, root) => {
                // Left by a pass with another action.
                if let Some(root) = root {
                    for child in unfinished(root) {
                        RetentionTable::restore(self.client, root, child).await?;
                    }
                }
                self.remove_rows(table, None).await
            }
            (RetentionAction::Archive, None) => self.remove_rows(table, archive).await,
            (RetentionAction::Archive | RetentionAction::Drop, Some(root)) => {
                self.take_partitions(table, root, archive).await
            }
            (RetentionAction::Drop, None) => {
                self.report.holds.push(Hold::NotPartitioned);
                Ok(())
            }
        }
    }

    async fn remove_rows(
        &mut self,
        table: &RetentionTable,
        archive: Option<&Archive>,
    ) -> Result<(), SourceError> {
        for (leaf, blocks) in table.leaves(self.client).await? {
            let (mut from, mut step) = (0, BLOCKS_FIRST);
            while from < blocks {
                let range = BlockRange { from, to: blocks.min(from.saturating_add(step)) };
                let started = Instant::now();
                let removed = match self.remove_range(table, &leaf, range, archive).await {
                    Ok(Some(removed)) => removed,
                    Ok(None) => return Ok(()),
                    Err(error) if is_waiting(&error) && step > BLOCKS_MIN => {
                        step = BLOCKS_MIN;
                        continue;
                    }
                    Err(error) if is_waiting(&error) => {
                        self.report.busy += 1;
                        0
                    }
                    Err(error) => return Err(error),
                };
                let took = started.elapsed();
                if took < FAST {
                    step = (step * 2).min(BLOCKS_MAX);
                } else if took > SLOW {
                    step = (step / 2).max(BLOCKS_MIN);
                }
                from = range.to;
                // As much time for others as this took, and no more rows than the rate.
                let rate = f64::from(table.rule().settings.rate.max(1));
                #[expect(clippy::cast_precision_loss, reason = "rows of a transaction are few")]
                let paced = Duration::from_secs_f64(removed as f64 / rate);
                sleep(paced.max(took)).await;
            }
        }
        Ok(())
    }

    /// Returns the number of rows that were removed; `None` if nothing may be removed.
    async fn remove_range(
        &mut self,
        table: &RetentionTable,
        leaf: &TableName,
        range: BlockRange,
        archive: Option<&Archive>,
    ) -> Result<Option<u64>, SourceError> {
        let mut chunk = table.remove(self.client, leaf, range, archive).await?;
        if chunk == Chunk::NoPartition {
            if let Some(archive) = archive {
                self.extend_archive(table, leaf, range, archive).await?;
            }
            chunk = table.remove(self.client, leaf, range, archive).await?;
        }
        match chunk {
            Chunk::Done { removed, held } => {
                self.report.rows += removed;
                self.report.held += held;
                if removed > 0 {
                    (self.on)(PassEvent::Rows(removed));
                }
                Ok(Some(removed))
            }
            Chunk::Held(holds) => {
                self.report.holds.extend(holds);
                Ok(None)
            }
            Chunk::NoPartition => {
                let table = archive.map(|archive| archive.table.to_string()).unwrap_or_default();
                self.report.holds.push(Hold::ArchiveLacksPartition(table));
                Ok(None)
            }
        }
    }

    /// Creates the partitions of the archive that the rows of a range need.
    async fn extend_archive(
        &mut self,
        table: &RetentionTable,
        leaf: &TableName,
        range: BlockRange,
        archive: &Archive,
    ) -> Result<(), SourceError> {
        let rule = table.rule();
        let zone = rule.table.zone.as_ref();
        let root = PartitionedRoot::read(self.client, &archive.table, zone, Duration::ZERO).await?;
        let (Some(root), Some(width)) = (root, rule.settings.width) else { return Ok(()) };
        let (_, Ok(guards)) = table.decide(self.client).await? else { return Ok(()) };
        let keys = RetentionTable::keys_sql(leaf, range, &guards, &root.key);
        match root.create_for(self.client, width, &keys).await? {
            Ok(created) => self.created(&created),
            Err(hold) => self.report.holds.push(hold),
        }
        Ok(())
    }

    async fn take_partitions(
        &mut self,
        table: &RetentionTable,
        root: &PartitionedRoot,
        archive: Option<&Archive>,
    ) -> Result<(), SourceError> {
        if managed_by_partman(self.client, &root.name).await? {
            self.report.holds.push(Hold::Partman);
            return Ok(());
        }
        for child in due(root) {
            if let Some(default) = root.default_partition() {
                self.report.holds.push(Hold::DefaultPartition(default.name.to_string()));
                return Ok(());
            }
            match table.take(self.client, root, child, archive).await? {
                Taken::Dropped => {
                    self.report.taken += 1;
                    (self.on)(PassEvent::Dropped(&child.name, child.bytes));
                }
                Taken::Archived => {
                    self.report.taken += 1;
                    (self.on)(PassEvent::Archived(&child.name, child.bytes));
                }
                Taken::Kept(ready) => {
                    (self.on)(PassEvent::Kept(&child.name, &ready));
                    match ready {
                        Ready::Yes => {}
                        Ready::Held(held, _) => self.report.held += held,
                        Ready::Blocked(holds) => {
                            self.report.holds.extend(holds);
                            return Ok(());
                        }
                    }
                }
            }
        }
        Ok(())
    }

    async fn drop_archived(
        &mut self,
        table: &RetentionTable,
        archive: &Archive,
    ) -> Result<(), SourceError> {
        let Some(keep) = table.rule().settings.archive_keep else { return Ok(()) };
        let zone = table.rule().table.zone.as_ref();
        let root = PartitionedRoot::read(self.client, &archive.table, zone, keep).await?;
        let Some(root) = root else {
            self.report.holds.push(Hold::ArchiveNotPartitioned(archive.table.to_string()));
            return Ok(());
        };
        clear_marks(self.client, &root).await?;
        for child in due(&root) {
            if let Some(default) = root.default_partition() {
                self.report.holds.push(Hold::DefaultPartition(default.name.to_string()));
                return Ok(());
            }
            if !enter(self.client, &root.name).await? {
                return Ok(());
            }
            let dropped = table.drop_archived(self.client, &root, child, keep).await;
            leave(self.client, &root.name).await?;
            if !dropped? {
                // Later partitions have later rows.
                return Ok(());
            }
            self.report.archive_dropped += 1;
            (self.on)(PassEvent::ArchiveDropped(&child.name, child.bytes));
        }
        Ok(())
    }
}

/// Partitions whose bound has passed, and what an earlier pass has not finished.
fn due(root: &PartitionedRoot) -> Vec<&Child> {
    let children = root.children.iter().filter(|child| !child.is_default);
    children.filter(|child| child.is_past || child.state != PartitionState::Attached).collect()
}

/// What an earlier pass has not finished.
fn unfinished(root: &PartitionedRoot) -> Vec<&Child> {
    root.children.iter().filter(|child| child.state != PartitionState::Attached).collect()
}

/// Deletes rows of `table` whose `expires_at` has passed, at most `max`, and returns their number. Rows that another
/// session has locked are skipped. It is a table in which consumers record the events that they have processed, and has
/// nothing to do with what is published.
async fn remove_expired(client: &Client, table: &TableName, max: u32) -> Result<u64, SourceError> {
    let failed = |e| SourceError::control(format!("delete expired rows of {table}"), e);
    let sql = format!(
        "DELETE FROM {table} WHERE ctid = ANY (ARRAY(SELECT o.ctid FROM {table} AS o \
           WHERE o.expires_at < now() LIMIT {max} FOR UPDATE SKIP LOCKED)) AND expires_at < now()"
    );
    client.execute(&sql, &[]).await.map_err(failed)
}

/// Whether `pg_partman` manages the partitions of a table, or may: its list can't be read.
async fn managed_by_partman(client: &Client, table: &TableName) -> Result<bool, SourceError> {
    let failed = |e| SourceError::control(format!("read whether pg_partman manages {table}"), e);
    let sql = "SELECT n.nspname::text, has_schema_privilege(n.oid, 'USAGE') AND has_table_privilege(c.oid, 'SELECT') \
               FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace \
               JOIN pg_attribute AS a ON a.attrelid = c.oid AND a.attname = 'parent_table' AND a.attnum > 0 \
               WHERE c.relname = 'part_config' AND c.relkind = 'r'";
    for row in client.query(sql, &[]).await.map_err(failed)? {
        let (schema, readable): (String, bool) =
            (row.try_get(0).map_err(failed)?, row.try_get(1).map_err(failed)?);
        if !readable {
            return Ok(true);
        }
        let sql = format!(
            "SELECT EXISTS (SELECT FROM {}.part_config WHERE parent_table IN ({}, {}))",
            ident(&schema),
            literal(&format!("{}.{}", table.schema, table.name)),
            literal(&table.to_string()),
        );
        let managed = client.query_one(&sql, &[]).await.and_then(|row| row.try_get::<_, bool>(0));
        if managed.map_err(failed)? {
            return Ok(true);
        }
    }
    Ok(false)
}
