//! The outbox as retention sees it: what is still needed of it, the guards of its rows, and the statements that remove
//! rows and partitions.

use super::exclusion::{enter, leave};
use super::guard::{Guard, RowGuard, all, counts};
use super::hold::Hold;
use super::horizon::{Horizon, Reader, ReaderFacts};
use super::partition::{
    READ_LIMITS, Ready, Taken, add_bounds, attach_again, detach, detach_published, drop_bounds,
    finalize,
};
use super::root::{Child, PartitionState, PartitionedRoot};
use super::rows::{Archive, BlockRange, Chunk, HeldRows};
use super::{KeepFrom, RetentionRule, interval, limit};
use crate::catalog::SYSTEM_IDENTIFIER_SQL;
use crate::names::{TableName, ident, literal};
use crate::poll::by_id::OutboxTable;
use crate::repair::XID;
use crate::store::cursor::NOTHING_BEFORE;
use pg_replication::error::SourceError;
use postrider_core::row_state::{Assignment, Done};
use std::time::Duration;
use tokio_postgres::{Client, Row};

/// A [`RetentionRule`] with the table as the catalog describes it.
#[derive(Clone, Debug)]
pub struct RetentionTable {
    rule: RetentionRule,
    table: OutboxTable,
}

impl RetentionTable {
    /// Reads the definition of the table.
    ///
    /// # Errors
    /// An error of the server or of the connection; 42P01 or 42703 if the table or a column does not exist.
    pub async fn read(client: &Client, rule: RetentionRule) -> Result<Self, SourceError> {
        let spec = rule.table.clone();
        // Without marks the table need not have their columns.
        let spec = if rule.marked { spec } else { spec.without_status() };
        let table = OutboxTable::read(client, spec).await?;
        Ok(Self { rule, table })
    }

    /// The rule.
    pub fn rule(&self) -> &RetentionRule {
        &self.rule
    }

    /// The table's name.
    pub fn name(&self) -> &TableName {
        &self.rule.table.table
    }

    /// The table's OID.
    pub(crate) fn oid(&self) -> u32 {
        self.table.description().id.0
    }

    /// The table as a repair reads it.
    pub(crate) fn table(&self) -> &OutboxTable {
        &self.table
    }

    /// How long rows are kept. With the setting off: for ever.
    pub(crate) fn keep(&self) -> Duration {
        self.rule.settings.keep.unwrap_or(Duration::from_hours(24 * 365 * 1000))
    }

    /// The columns whose times decide, the first that is not NULL counts.
    pub(crate) fn age_columns(&self) -> Vec<&str> {
        let time = self.rule.table.time.as_deref();
        let columns = match self.rule.settings.keep_from {
            KeepFrom::Published => [self.published_column(), time],
            KeepFrom::Time => [None, time],
            KeepFrom::Expiry => [None, self.rule.expiry.as_deref()],
        };
        let has = |column: &&str| self.table.instant(column).is_some();
        columns.into_iter().flatten().filter(has).collect()
    }

    /// The time from which on a row (`o`) is kept for `keep`, as SQL; `None` if the table has no such column.
    pub(crate) fn age(&self) -> Option<String> {
        let columns: Vec<String> = self
            .age_columns()
            .into_iter()
            .filter_map(|column| self.table.instant(column))
            .collect();
        (!columns.is_empty()).then(|| format!("coalesce({})", columns.join(", ")))
    }

    /// The row's own time, as SQL.
    pub(crate) fn time(&self) -> Option<String> {
        self.table.instant(self.rule.table.time.as_deref()?)
    }

    /// The column to which the time of publication is written.
    fn published_column(&self) -> Option<&str> {
        let state = &self.rule.table.row_state;
        let Done::Set(assignments) = state.state.done else { return None };
        assignments.iter().find_map(|assignment| match assignment {
            Assignment::SettleTime(column) => Some(state.name(*column)),
            Assignment::Text(..)
            | Assignment::TextByLimit { .. }
            | Assignment::ClaimTime(_)
            | Assignment::RetryTime(_)
            | Assignment::Increment(_)
            | Assignment::IncrementUpTo(..)
            | Assignment::ErrorText(_) => None,
        })
    }

    /// The rows of `postrider.cursor` (`c`) of the pipelines that read the table, or may.
    fn readers_sql(&self) -> String {
        let key = &self.rule().table.key;
        format!(
            "((c.pipeline = {pipeline} AND c.shard = {shard}) OR c.of_table_oid = {oid} OR c.of_mode IS NULL)",
            pipeline = literal(&key.pipeline),
            shard = key.shard,
            oid = self.oid(),
        )
    }

    /// Locks the cursor rows of these pipelines until the end of the transaction: no repair and no replay from the
    /// table begins meanwhile.
    ///
    /// # Errors
    /// An error of the server or of the connection; 55P03 if a lock is not granted in time.
    pub async fn lock_readers(&self, client: &Client) -> Result<(), SourceError> {
        let failed =
            |e| SourceError::control("lock the positions of the pipelines of the outbox", e);
        let sql = format!(
            "SELECT FROM postrider.cursor AS c WHERE {} ORDER BY c.pipeline, c.shard FOR KEY SHARE",
            self.readers_sql()
        );
        client.query(&sql, &[]).await.map(drop).map_err(failed)
    }

    /// Reads what is still needed. In a transaction: after [`Self::lock_readers`].
    ///
    /// # Errors
    /// An error of the server or of the connection.
    pub async fn horizon(&self, client: &Client) -> Result<Horizon, SourceError> {
        let mut horizon = Horizon::default();
        self.unfit_time(&mut horizon);
        self.pipelines(client, &mut horizon).await?;
        self.logs(client, &mut horizon).await?;
        Ok(horizon)
    }

    /// What the position of the pipeline itself proves about the rows: as [`Self::horizon`], without the other pipelines
    /// and without what only keeps rows from being removed.
    ///
    /// # Errors
    /// An error of the server or of the connection.
    pub async fn own_horizon(&self, client: &Client) -> Result<Horizon, SourceError> {
        let mut horizon = Horizon::default();
        let key = &self.rule.table.key;
        let facts = self.reader_facts(client).await?;
        let mut found = false;
        for facts in facts.into_iter().filter(|facts| facts.is(key)) {
            found = true;
            horizon.add(&self.rule, self.oid(), facts);
        }
        if !found {
            horizon.holds.push(Hold::NoPosition);
        }
        // A replay publishes again what was published.
        horizon.holds.retain(|hold| !matches!(hold, Hold::Replay(..)));
        Ok(horizon)
    }

    fn unfit_time(&self, horizon: &mut Horizon) {
        if self.age().is_none() {
            horizon.holds.push(Hold::NoTime);
        }
        let columns = self.age_columns().into_iter().chain(self.rule().table.time.as_deref());
        let unclear = columns
            .filter(|column| self.rule().table.zone.is_none() && self.table().lacks_zone(column));
        if let Some(column) = unclear.into_iter().next() {
            horizon.holds.push(Hold::NoZone(column.to_owned()));
        }
    }

    async fn pipelines(&self, client: &Client, horizon: &mut Horizon) -> Result<(), SourceError> {
        let key = &self.rule.table.key;
        let mut found = false;
        for facts in self.reader_facts(client).await? {
            found |= facts.is(key);
            horizon.add(&self.rule, self.oid(), facts);
        }
        if !found {
            horizon.holds.push(Hold::NoPosition);
        }
        Ok(())
    }

    /// What the cursor rows of the pipelines that read the table, or may, say.
    async fn reader_facts(&self, client: &Client) -> Result<Vec<ReaderFacts>, SourceError> {
        let failed = |e| SourceError::control("read what is still needed of the outbox", e);
        let sql = format!(
            "SELECT c.pipeline, c.shard, c.slot <> '', c.system_identifier = {SYSTEM_IDENTIFIER_SQL}, c.of_mode, \
               c.of_marks, c.of_layout, c.of_table_oid, \
               pg_catalog.pg_snapshot_xmin(c.resolved_snapshot)::pg_catalog.text::pg_catalog.int8, \
               c.before_slot IS NOT NULL AND c.before_slot::pg_catalog.text = {NOTHING_BEFORE}::pg_catalog.text, \
               (SELECT r.kind || ' (' || r.state || ')' FROM postrider.repair AS r \
                WHERE r.pipeline = c.pipeline AND r.shard = c.shard AND r.state <> 'done'), \
               ARRAY(SELECT y.name FROM postrider.replay AS y WHERE y.pipeline = c.pipeline AND y.shard = c.shard \
                 AND y.source = 'table' AND y.finished_at IS NULL ORDER BY 1 LIMIT 20), \
               b.name, (pg_catalog.date_part('epoch', b.created_at) * 1000000)::pg_catalog.int8 \
             FROM postrider.cursor AS c LEFT JOIN LATERAL ( \
               SELECT k.name, k.created_at FROM postrider.bookmark AS k \
               WHERE k.pipeline = c.pipeline AND k.shard = c.shard AND k.dropped_at IS NULL \
               ORDER BY k.created_at LIMIT 1) AS b ON true \
             WHERE {} ORDER BY c.pipeline, c.shard",
            self.readers_sql()
        );
        let rows = client.query(&sql, &[]).await.map_err(failed)?;
        rows.iter().map(|row| ReaderFacts::read(row).map_err(failed)).collect()
    }

    /// The logs with references whose writers are the pipelines of the table.
    async fn logs(&self, client: &Client, horizon: &mut Horizon) -> Result<(), SourceError> {
        let failed = |e| SourceError::control("read the logs with references to the outbox", e);
        let sql = "SELECT pg_catalog.to_regclass('postrider.event_log') IS NOT NULL \
                     AND pg_catalog.to_regclass('postrider.consumer_group') IS NOT NULL";
        let exists: bool =
            client.query_one(sql, &[]).await.and_then(|row| row.try_get(0)).map_err(failed)?;
        if !exists {
            return Ok(());
        }
        let writers: Vec<&str> =
            horizon.readers.iter().map(|reader| reader.pipeline.as_str()).collect();
        let sql = "SELECT l.name, l.table_name::pg_catalog.text, h.last_seq, g.group_name, g.done_to \
                   FROM postrider.event_log AS l CROSS JOIN LATERAL postrider.log_head(l.name) AS h \
                   LEFT JOIN LATERAL (SELECT s.group_name, s.done_to FROM postrider.group_status(l.name, NULL) AS s \
                     WHERE s.evicted_at IS NULL ORDER BY s.done_to LIMIT 1) AS g ON true \
                   WHERE l.kind = 'reference' AND l.writer = ANY ($1) ORDER BY l.name";
        let rows = client.query(sql, &[&writers]).await.map_err(failed)?;
        for row in &rows {
            horizon.add_log(row).map_err(failed)?;
        }
        Ok(())
    }

    /// The guards of this table's rows, in order. Empty if the table has no time column: then nothing may be removed.
    pub fn guards(&self, horizon: &Horizon) -> Vec<RowGuard> {
        let Some(age) = self.age() else { return Vec::new() };
        let mut guards = Vec::new();
        let mut add = |guard: Guard, conditions: Vec<String>| {
            if !conditions.is_empty() {
                let allows = format!("coalesce(({}), false)", conditions.join(" AND "));
                guards.push(RowGuard { guard, allows });
            }
        };
        let keep = interval(self.keep());
        add(Guard::Age, vec![format!("{age} < statement_timestamp() - {keep}")]);
        let below = horizon.below.map(|below| format!("{XID} < {below}"));
        add(Guard::Unresolved, below.into_iter().collect());
        let unmarked = self.rule().marked.then(|| format!("NOT ({})", self.table().unmarked()));
        add(Guard::Unmarked, unmarked.into_iter().collect());
        add(Guard::Parked, vec![self.not_parked(&horizon.readers)]);
        let bookmark = horizon.bookmark_micros.zip(self.time()).map(|(micros, time)| {
            format!("{time} < timestamptz 'epoch' + {micros} * interval '1 microsecond'")
        });
        add(Guard::Bookmark, bookmark.into_iter().collect());
        let groups = horizon.logs.iter().map(|log| {
            format!(
                "NOT EXISTS (SELECT FROM {table} AS e WHERE e.seq > {passed} AND e.event_id = {id})",
                table = log.table,
                passed = log.passed,
                id = self.table().id(),
            )
        });
        add(Guard::Group, groups.collect());
        add(Guard::Unread, self.table().removable().into_iter().collect());
        guards
    }

    /// Rows (`o`) whose events no pipeline has parked. A row with the id of a parked event may be another event, and is
    /// kept too.
    fn not_parked(&self, readers: &[Reader]) -> String {
        let of = readers.iter().map(|reader| {
            format!("(p.pipeline = {} AND p.shard = {})", literal(&reader.pipeline), reader.shard)
        });
        let of: Vec<String> = of.collect();
        let id = self.table().id();
        format!(
            "{id} <> '' AND NOT EXISTS (SELECT FROM postrider.parked AS p WHERE ({of}) \
             AND p.state NOT IN ('done', 'skipped') AND p.event_id = {id})",
            of = if of.is_empty() { "true".to_owned() } else { of.join(" OR ") },
        )
    }

    /// Reads the archive of the settings; `None` if they have none, or `Err` if it does not fit.
    ///
    /// # Errors
    /// An error of the server or of the connection.
    pub async fn archive(
        &self,
        client: &Client,
    ) -> Result<Result<Option<Archive>, Hold>, SourceError> {
        let Some(table) = &self.rule().settings.archive else { return Ok(Ok(None)) };
        let failed = |e| SourceError::control(format!("read the columns of archive {table}"), e);
        let sql = "SELECT a.attname::text, a.attgenerated <> '' FROM pg_class AS c \
                   JOIN pg_namespace AS n ON n.oid = c.relnamespace \
                   JOIN pg_attribute AS a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped \
                   WHERE n.nspname = $1::text AND c.relname = $2::text AND c.relkind IN ('r', 'p') ORDER BY a.attnum";
        let rows = client.query(sql, &[&table.schema, &table.name]).await.map_err(failed)?;
        let mut found: Vec<(String, bool)> = Vec::with_capacity(rows.len());
        for row in &rows {
            found.push((row.try_get(0).map_err(failed)?, row.try_get(1).map_err(failed)?));
        }
        if found.is_empty() {
            return Ok(Err(Hold::NoArchive(self.create_archive_sql(table))));
        }
        let mut columns = Vec::new();
        for column in self.table().column_names() {
            match found.iter().find(|(name, _)| name == column) {
                Some((_, generated)) if *generated => {}
                Some(_) => columns.push(column.to_owned()),
                None => return Ok(Err(Hold::ArchiveLacks(table.to_string(), ident(column)))),
            }
        }
        Ok(Ok(Some(Archive::new(table.clone(), columns))))
    }

    /// The statement that creates the archive.
    pub fn create_archive_sql(&self, archive: &TableName) -> String {
        let key = self.rule().table.time.as_deref().unwrap_or(&self.rule().table.id);
        format!(
            "CREATE TABLE {archive} (LIKE {table} INCLUDING DEFAULTS INCLUDING CONSTRAINTS) PARTITION BY RANGE \
             ({key});",
            table = self.name(),
            key = ident(key)
        )
    }

    /// The tables that have its rows, and their numbers of blocks: the table itself, or its partitions.
    ///
    /// # Errors
    /// An error of the server or of the connection.
    pub(super) async fn leaves(
        &self,
        client: &Client,
    ) -> Result<Vec<(TableName, u32)>, SourceError> {
        let failed = |e| SourceError::control(format!("read the partitions of {}", self.name()), e);
        let sql = "SELECT n.nspname::text, c.relname::text, \
                     pg_relation_size(c.oid) / current_setting('block_size')::int8 \
                   FROM pg_partition_tree($1::oid::regclass) AS t JOIN pg_class AS c ON c.oid = t.relid \
                   JOIN pg_namespace AS n ON n.oid = c.relnamespace WHERE c.relkind = 'r' \
                   UNION ALL \
                   SELECT n.nspname::text, c.relname::text, \
                     pg_relation_size(c.oid) / current_setting('block_size')::int8 \
                   FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace \
                   WHERE c.oid = $1 AND c.relkind = 'r' \
                     AND NOT EXISTS (SELECT FROM pg_partition_tree($1::oid::regclass)) ORDER BY 1, 2";
        let rows = client.query(sql, &[&self.oid()]).await.map_err(failed)?;
        let leaf = |row: &Row| -> Result<(TableName, u32), tokio_postgres::Error> {
            let name = TableName::new(row.try_get::<_, String>(0)?, row.try_get::<_, String>(1)?);
            Ok((name, u32::try_from(row.try_get::<_, i64>(2)?).unwrap_or(u32::MAX)))
        };
        rows.iter().map(leaf).collect::<Result<_, _>>().map_err(failed)
    }

    /// The statement that removes the rows of a range of blocks that all of these guards allow to be removed. It must
    /// run in the transaction in which the guards were read.
    pub fn remove_sql(
        &self,
        leaf: &TableName,
        range: BlockRange,
        guards: &[RowGuard],
        archive: Option<&Archive>,
    ) -> String {
        let delete = format!(
            "DELETE FROM ONLY {leaf} AS o WHERE {range}\n  AND {allowed}",
            range = range.rows(),
            allowed = all(guards)
        );
        match archive {
            Some(archive) => archive.insert_sql(&delete),
            None => delete,
        }
    }

    /// The values of a column of the rows that would be removed, as a query.
    pub(crate) fn keys_sql(
        leaf: &TableName,
        range: BlockRange,
        guards: &[RowGuard],
        key: &str,
    ) -> String {
        format!(
            "SELECT DISTINCT o.{key} FROM ONLY {leaf} AS o WHERE {range} AND {allowed}",
            key = ident(key),
            range = range.rows(),
            allowed = all(guards)
        )
    }

    /// Removes what may be removed of a range of blocks.
    ///
    /// # Errors
    /// An error of the server or of the connection; the transaction is rolled back. 55P03 or 57014: something has
    /// waited for too long, and the range is to be tried later.
    pub async fn remove(
        &self,
        client: &Client,
        leaf: &TableName,
        range: BlockRange,
        archive: Option<&Archive>,
    ) -> Result<Chunk, SourceError> {
        let failed = |e| SourceError::control(format!("remove old rows of {leaf}"), e);
        client.batch_execute("BEGIN").await.map_err(failed)?;
        let done = self.remove_within(client, leaf, range, archive).await;
        let end = if matches!(done, Ok(Chunk::Done { .. })) { "COMMIT" } else { "ROLLBACK" };
        let ended = client.batch_execute(end).await.map_err(failed);
        match done {
            Ok(chunk) => ended.map(|()| chunk),
            Err(error) if archive.is_some() && Archive::lacks_partition(&error) => {
                ended.map(|()| Chunk::NoPartition)
            }
            Err(error) => Err(error),
        }
    }

    async fn remove_within(
        &self,
        client: &Client,
        leaf: &TableName,
        range: BlockRange,
        archive: Option<&Archive>,
    ) -> Result<Chunk, SourceError> {
        let failed = |e| SourceError::control(format!("remove old rows of {leaf}"), e);
        self.lock_readers(client).await?;
        let horizon = self.horizon(client).await?;
        if !horizon.holds.is_empty() {
            return Ok(Chunk::Held(horizon.holds));
        }
        let guards = self.guards(&horizon);
        let sql = self.remove_sql(leaf, range, &guards, archive);
        let removed = client.execute(&sql, &[]).await.map_err(failed)?;
        let held = self.held(client, leaf, Some(range), &guards).await?;
        Ok(Chunk::Done { removed, held })
    }

    /// Counts the rows of a table, or of a range of its blocks, that are old enough, by the guard that keeps them.
    ///
    /// # Errors
    /// An error of the server or of the connection.
    pub(crate) async fn held(
        &self,
        client: &Client,
        leaf: &TableName,
        range: Option<BlockRange>,
        guards: &[RowGuard],
    ) -> Result<HeldRows, SourceError> {
        let failed = |e| SourceError::control(format!("count the kept rows of {leaf}"), e);
        let age = guards.iter().find(|guard| guard.guard == Guard::Age);
        let sql = format!(
            "SELECT {counts} FROM ONLY {leaf} AS o WHERE {range} AND {age}",
            counts = counts(guards),
            range = range.map_or_else(|| "true".to_owned(), BlockRange::rows),
            age = age.map_or("false", |guard| guard.allows.as_str()),
        );
        let row = client.query_one(&sql, &[]).await.map_err(failed)?;
        HeldRows::read(&row, 0).map_err(failed)
    }

    /// What is needed now, and the guards that follow from it; `Err` if nothing may be removed.
    ///
    /// # Errors
    /// An error of the server or of the connection.
    pub async fn decide(
        &self,
        client: &Client,
    ) -> Result<(Horizon, Result<Vec<RowGuard>, Vec<Hold>>), SourceError> {
        let horizon = self.horizon(client).await?;
        let decided = if horizon.holds.is_empty() {
            Ok(self.guards(&horizon))
        } else {
            Err(horizon.holds.clone())
        };
        Ok((horizon, decided))
    }

    /// Whether all rows of a partition, or of a table that was one, may be removed now. Reads all of its rows.
    ///
    /// # Errors
    /// An error of the server or of the connection.
    pub async fn ready(&self, client: &Client, child: &TableName) -> Result<Ready, SourceError> {
        let failed = |e| SourceError::control(format!("read the rows of {child}"), e);
        let guards = match self.decide(client).await? {
            (_, Ok(guards)) => guards,
            (_, Err(holds)) => return Ok(Ready::Blocked(holds)),
        };
        client.batch_execute(READ_LIMITS).await.map_err(failed)?;
        let ready = self.all_allowed(client, child, &guards).await;
        limit(client).await?;
        ready
    }

    /// As [`Self::ready`], by these guards.
    pub(crate) async fn all_allowed(
        &self,
        client: &Client,
        child: &TableName,
        guards: &[RowGuard],
    ) -> Result<Ready, SourceError> {
        let failed = |e| SourceError::control(format!("read the rows of {child}"), e);
        let sql = format!("SELECT EXISTS (SELECT FROM {child} AS o WHERE NOT ({}))", all(guards));
        let needed = client.query_one(&sql, &[]).await.and_then(|row| row.try_get::<_, bool>(0));
        if !needed.map_err(failed)? {
            return Ok(Ready::Yes);
        }
        let sql = format!("SELECT {} FROM {child} AS o", counts(guards));
        let row = client.query_one(&sql, &[]).await.map_err(failed)?;
        let held = HeldRows::read(&row, 0).map_err(failed)?;
        Ok(Ready::Held(held, held.of(Guard::Age)))
    }

    /// Takes a partition out of the table, if all of its rows may be removed, or ends what an earlier pass has begun.
    ///
    /// # Errors
    /// An error of the server or of the connection; 55P03 or 57014: something has waited for too long. The next call
    /// continues.
    pub async fn take(
        &self,
        client: &Client,
        root: &PartitionedRoot,
        child: &Child,
        archive: Option<&Archive>,
    ) -> Result<Taken, SourceError> {
        if child.state == PartitionState::Attached {
            let ready = self.ready(client, &child.name).await?;
            if ready != Ready::Yes {
                return Ok(Taken::Kept(ready));
            }
            if self.rule.marked {
                add_bounds(client, child).await?;
            }
        }
        if !enter(client, &root.name).await? {
            // A repair begins: what it has recorded by now is a hold.
            let holds = self.horizon(client).await?.holds;
            return Ok(Taken::Kept(Ready::Blocked(holds)));
        }
        let taken = self.take_within(client, root, child, archive).await;
        leave(client, &root.name).await?;
        taken
    }

    /// As [`Self::take`], while no repair begins.
    async fn take_within(
        &self,
        client: &Client,
        root: &PartitionedRoot,
        child: &Child,
        archive: Option<&Archive>,
    ) -> Result<Taken, SourceError> {
        match child.state {
            PartitionState::Attached => {
                // A repair that has begun since the rows were read may be listing them.
                let holds = self.horizon(client).await?.holds;
                if !holds.is_empty() {
                    return Ok(Taken::Kept(Ready::Blocked(holds)));
                }
                if !self.rule.marked {
                    detach(client, root, child).await?;
                } else if !detach_published(client, root, child, &self.table.unmarked()).await? {
                    // A row was added since the rows were read.
                    return self.ready(client, &child.name).await.map(Taken::Kept);
                }
            }
            PartitionState::Detaching => finalize(client, root, child).await?,
            PartitionState::Detached => {}
        }
        let done = self.finish(client, child, archive).await;
        limit(client).await?;
        let taken = done?;
        if matches!(taken, Taken::Kept(_)) {
            attach_again(client, root, child).await?;
        }
        Ok(taken)
    }

    /// Makes a table that an earlier pass has detached, or has begun to detach, a partition again.
    ///
    /// # Errors
    /// As [`Self::take`].
    pub async fn restore(
        client: &Client,
        root: &PartitionedRoot,
        child: &Child,
    ) -> Result<(), SourceError> {
        if child.state == PartitionState::Detaching {
            finalize(client, root, child).await?;
        }
        attach_again(client, root, child).await
    }

    /// Drops a detached table, or attaches it to the archive, if all of its rows may be removed.
    async fn finish(
        &self,
        client: &Client,
        child: &Child,
        archive: Option<&Archive>,
    ) -> Result<Taken, SourceError> {
        let failed = |e| SourceError::control(format!("remove table {}", child.name), e);
        client.batch_execute("BEGIN").await.map_err(failed)?;
        let done = self.finish_within(client, child, archive).await;
        let end = if matches!(done, Ok(Taken::Dropped | Taken::Archived)) {
            "COMMIT"
        } else {
            "ROLLBACK"
        };
        let ended = client.batch_execute(end).await.map_err(failed);
        done.and_then(|taken| ended.map(|()| taken))
    }

    async fn finish_within(
        &self,
        client: &Client,
        child: &Child,
        archive: Option<&Archive>,
    ) -> Result<Taken, SourceError> {
        let name = &child.name;
        let failed = |e| SourceError::control(format!("remove table {name}"), e);
        let lock = format!("LOCK TABLE {name} IN SHARE MODE; {READ_LIMITS}");
        client.batch_execute(&lock).await.map_err(failed)?;
        let (before, decided) = self.decide(client).await?;
        let guards = match decided {
            Ok(guards) => guards,
            Err(holds) => return Ok(Taken::Kept(Ready::Blocked(holds))),
        };
        let ready = self.all_allowed(client, name, &guards).await?;
        if ready != Ready::Yes {
            return Ok(Taken::Kept(ready));
        }
        // The rows were read without the lock of the positions, because that may have taken minutes. What has begun
        // meanwhile shows now.
        client.batch_execute("SET statement_timeout = '3s'").await.map_err(failed)?;
        self.lock_readers(client).await?;
        let (now, decided) = self.decide(client).await?;
        if let Err(holds) = decided {
            return Ok(Taken::Kept(Ready::Blocked(holds)));
        }
        if !now.allows_what(&before) || self.has_parked(client).await? {
            // Parked events, bookmarks or groups are compared with each row again, which ends in time or fails.
            let ready = self.all_allowed(client, name, &self.guards(&now)).await?;
            if ready != Ready::Yes {
                return Ok(Taken::Kept(ready));
            }
        }
        let (sql, taken) = match archive {
            Some(archive) => (
                format!(
                    "ALTER TABLE {archive} ATTACH PARTITION {name} {bound}; COMMENT ON TABLE {name} IS NULL; \
                     {drop_bounds}",
                    archive = archive.table,
                    bound = child.bound,
                    drop_bounds = drop_bounds(name)
                ),
                Taken::Archived,
            ),
            None => (format!("DROP TABLE {name}"), Taken::Dropped),
        };
        client.batch_execute(&sql).await.map_err(failed)?;
        Ok(taken)
    }

    /// Whether a pipeline of the table has parked events that are not resolved.
    async fn has_parked(&self, client: &Client) -> Result<bool, SourceError> {
        let failed = |e| SourceError::control("read the parked events", e);
        let sql =
            "SELECT EXISTS (SELECT FROM postrider.parked WHERE state NOT IN ('done', 'skipped'))";
        client.query_one(sql, &[]).await.and_then(|row| row.try_get(0)).map_err(failed)
    }

    /// Drops a partition of the archive whose rows are older than `keep` by the layout's time column, or ends what an
    /// earlier pass has begun. Returns whether it was dropped.
    ///
    /// # Errors
    /// As [`Self::take`].
    pub async fn drop_archived(
        &self,
        client: &Client,
        root: &PartitionedRoot,
        child: &Child,
        keep: Duration,
    ) -> Result<bool, SourceError> {
        let name = &child.name;
        match child.state {
            PartitionState::Attached if self.has_young(client, name, keep).await? => {
                return Ok(false);
            }
            PartitionState::Attached => detach(client, root, child).await?,
            PartitionState::Detaching => finalize(client, root, child).await?,
            PartitionState::Detached => {}
        }
        // Rows may have been moved there before it was detached.
        if self.has_young(client, name, keep).await? {
            attach_again(client, root, child).await?;
            return Ok(false);
        }
        let failed = |e| SourceError::control(format!("remove table {name} of the archive"), e);
        client.batch_execute(&format!("DROP TABLE {name}")).await.map_err(failed)?;
        Ok(true)
    }

    /// Whether a table of the archive has a row that is not older than `keep`, or has no time.
    async fn has_young(
        &self,
        client: &Client,
        name: &TableName,
        keep: Duration,
    ) -> Result<bool, SourceError> {
        let Some(time) = self.time() else { return Ok(true) };
        let failed = |e| SourceError::control(format!("read the rows of {name}"), e);
        let sql = format!(
            "SELECT EXISTS (SELECT FROM {name} AS o \
               WHERE NOT coalesce({time} < statement_timestamp() - {}, false))",
            interval(keep)
        );
        client.batch_execute(READ_LIMITS).await.map_err(failed)?;
        let young = client.query_one(&sql, &[]).await.and_then(|row| row.try_get::<_, bool>(0));
        limit(client).await?;
        young.map_err(failed)
    }
}
