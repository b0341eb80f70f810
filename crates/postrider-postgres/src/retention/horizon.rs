//! What the pipelines, repairs, replays, bookmarks and consumer groups of the database still need: read together, for
//! all rows of a table.

use super::RetentionTable;
use super::hold::Hold;
use crate::catalog::SYSTEM_IDENTIFIER_SQL;
use crate::names::{ident, literal};
use pg_replication::error::SourceError;
use tokio_postgres::{Client, Row};

/// Events of a log with references that a group may be behind: with more of them, no row is compared with them, and
/// nothing is removed.
pub(crate) const BEHIND_MAX: i64 = 200_000;

/// The snapshot of a pipeline whose stream has published everything from before its slot.
const NOTHING: &str = "3:3:";

/// A pipeline, or a shard of one, that reads the table.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Reader {
    /// The pipeline.
    pub pipeline: String,
    /// Its shard.
    pub shard: i32,
}

/// A log with references to the table's rows.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ReferenceLog {
    /// The table of its events, as SQL.
    pub table: String,
    /// Every event up to this number was done by all groups that are not evicted.
    pub passed: i64,
}

/// What the rows that may be from before the slot are known by. Each of the two is enough.
///
/// An update gives a row the number of its own transaction, so that the snapshot does not see the row any more; then its
/// time is from before the slot nevertheless.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BeforeSlot {
    /// A `pg_snapshot` that sees them.
    pub snapshot: String,
    /// Their time is not later. Unit: seconds since 1970.
    pub until: i64,
}

/// What is still needed of a table.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Horizon {
    /// Why nothing may be removed; empty if there is no reason.
    pub holds: Vec<Hold>,
    /// Transactions with lower numbers are resolved by every pipeline that streams the table; `None` if none streams.
    pub below: Option<i64>,
    /// What the rows from before the pipeline's slot are known by; `None` if there are none, or all are published.
    pub before_slot: Option<BeforeSlot>,
    /// The pipelines that read the table.
    pub readers: Vec<Reader>,
    /// When the oldest bookmark was created. Unit: microseconds since 1970.
    pub bookmark_micros: Option<i64>,
    /// Its name.
    pub bookmark: Option<String>,
    /// Logs with references.
    pub logs: Vec<ReferenceLog>,
}

impl RetentionTable {
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
        let failed = |e| SourceError::control("read what is still needed of the outbox", e);
        let sql = format!(
            "SELECT c.pipeline, c.shard, c.slot <> '', c.system_identifier = {SYSTEM_IDENTIFIER_SQL}, c.of_mode, \
               c.of_marks, c.of_layout, c.of_table_oid, \
               pg_catalog.pg_snapshot_xmin(c.resolved_snapshot)::pg_catalog.text::pg_catalog.int8, \
               c.before_slot::pg_catalog.text, \
               (SELECT r.kind || ' (' || r.state || ')' FROM postrider.repair AS r \
                WHERE r.pipeline = c.pipeline AND r.shard = c.shard AND r.state <> 'done'), \
               ARRAY(SELECT y.name FROM postrider.replay AS y WHERE y.pipeline = c.pipeline AND y.shard = c.shard \
                 AND y.source = 'table' AND y.finished_at IS NULL ORDER BY 1 LIMIT 20), \
               b.name, c.histories[1], (pg_catalog.date_part('epoch', b.created_at) * 1000000)::pg_catalog.int8 \
             FROM postrider.cursor AS c LEFT JOIN LATERAL ( \
               SELECT k.name, k.created_at FROM postrider.bookmark AS k \
               WHERE k.pipeline = c.pipeline AND k.shard = c.shard AND k.dropped_at IS NULL \
               ORDER BY k.created_at LIMIT 1) AS b ON true \
             WHERE {} ORDER BY c.pipeline, c.shard",
            self.readers_sql()
        );
        let rows = client.query(&sql, &[]).await.map_err(failed)?;
        let mut found = false;
        for row in &rows {
            let facts = ReaderFacts::read(row).map_err(failed)?;
            found |= facts.is(self);
            horizon.add(self, facts);
        }
        if !found {
            horizon.holds.push(Hold::NoPosition);
        }
        Ok(())
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
}

/// What a cursor row says of its pipeline.
struct ReaderFacts {
    reader: Reader,
    streams: bool,
    same_cluster: bool,
    mode: Option<String>,
    marks: Option<bool>,
    layout: Option<String>,
    table: Option<u32>,
    resolved: Option<i64>,
    /// With the second at which the cursor row was created.
    before_slot: Option<(String, i64)>,
    repair: Option<String>,
    replays: Vec<String>,
    bookmark: Option<(String, i64)>,
}

impl ReaderFacts {
    fn read(row: &Row) -> Result<Self, tokio_postgres::Error> {
        let bookmark: Option<String> = row.try_get(12)?;
        Ok(Self {
            reader: Reader { pipeline: row.try_get(0)?, shard: row.try_get(1)? },
            streams: row.try_get(2)?,
            same_cluster: row.try_get(3)?,
            mode: row.try_get(4)?,
            marks: row.try_get(5)?,
            layout: row.try_get(6)?,
            table: row.try_get(7)?,
            resolved: row.try_get(8)?,
            before_slot: row
                .try_get::<_, Option<String>>(9)?
                .map(|snapshot| Ok::<_, tokio_postgres::Error>((snapshot, row.try_get(13)?)))
                .transpose()?,
            repair: row.try_get(10)?,
            replays: row.try_get(11)?,
            bookmark: bookmark.zip(row.try_get::<_, Option<i64>>(14)?),
        })
    }

    /// Whether it is the pipeline whose retention this is.
    fn is(&self, table: &RetentionTable) -> bool {
        let key = &table.rule().table.key;
        self.reader.pipeline == key.pipeline && self.reader.shard == key.shard
    }
}

impl Horizon {
    fn add(&mut self, table: &RetentionTable, facts: ReaderFacts) {
        let rule = table.rule();
        let (own, name) = (facts.is(table), facts.reader.pipeline.clone());
        let polls = facts.mode.as_deref() != Some("wal");
        if !facts.same_cluster {
            self.holds.push(Hold::OtherCluster(name.clone()));
        }
        if facts.mode.is_none() {
            self.holds.push(Hold::NeverRan(name.clone()));
        } else if own {
            let same = facts.table == Some(table.oid())
                && facts.mode.as_deref() == Some(rule.mode)
                && facts.layout.as_deref() == Some(rule.layout.as_str())
                && facts.marks == Some(rule.marked);
            if !same {
                self.holds.push(Hold::OtherSettings(name.clone()));
            }
        } else if polls && !rule.marked {
            self.holds.push(Hold::Polled(name.clone()));
        }
        // A row that only polling reads is known to be published by its mark alone.
        if facts.streams && facts.mode.as_deref() != Some("poll") {
            match facts.resolved {
                Some(below) => {
                    self.below = Some(self.below.map_or(below, |least| least.min(below)));
                }
                None => self.holds.push(Hold::NothingResolved(name.clone())),
            }
            if own {
                self.add_before_slot(rule.marked, &name, facts.before_slot);
            }
        } else if !polls {
            self.holds.push(Hold::NothingResolved(name.clone()));
        }
        self.holds.extend(facts.repair.map(|what| Hold::Repair(name.clone(), what)));
        self.holds
            .extend(facts.replays.into_iter().map(|replay| Hold::Replay(name.clone(), replay)));
        if let Some((bookmark, micros)) = facts.bookmark
            && self.bookmark_micros.is_none_or(|oldest| micros < oldest)
        {
            (self.bookmark, self.bookmark_micros) = (Some(bookmark), Some(micros));
        }
        self.readers.push(facts.reader);
    }

    /// Rows from before the slot of the pipeline itself, which it has not published. What another pipeline was not
    /// asked to publish is not needed by it. A mark proves that a row is published, whenever it was committed.
    fn add_before_slot(&mut self, marked: bool, name: &str, of: Option<(String, i64)>) {
        match of {
            Some((snapshot, _)) if snapshot == NOTHING => {}
            // A row of an earlier version, which does not have the time.
            Some((_, 0)) | None if !marked => {
                self.holds.push(Hold::BeforeSlotUnknown(name.to_owned()));
            }
            Some((snapshot, until)) => self.before_slot = Some(BeforeSlot { snapshot, until }),
            None => {}
        }
    }

    fn add_log(&mut self, row: &Row) -> Result<(), tokio_postgres::Error> {
        let (log, table): (String, String) = (row.try_get(0)?, row.try_get(1)?);
        let last: Option<i64> = row.try_get(2)?;
        let (group, passed): (Option<String>, Option<i64>) = (row.try_get(3)?, row.try_get(4)?);
        let Some((group, passed)) = group.zip(passed) else { return Ok(()) };
        let behind = last.unwrap_or_default() - passed;
        if behind > BEHIND_MAX {
            self.holds.push(Hold::GroupBehind(group, log, behind));
        } else if behind > 0 {
            let table = format!("postrider_log.{}", ident(&table));
            self.logs.push(ReferenceLog { table, passed });
        }
        Ok(())
    }
}
