//! What the pipelines, repairs, replays, bookmarks and consumer groups of the database still need: read together, for
//! all rows of a table.

use super::RetentionRule;
use super::hold::{BEHIND_MAX, Hold};
use crate::names::ident;
use postrider_core::store::PipelineKey;
use tokio_postgres::Row;

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

/// What is still needed of a table.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Horizon {
    /// Why nothing may be removed; empty if there is no reason.
    pub holds: Vec<Hold>,
    /// Transactions with lower numbers are resolved by every pipeline that streams the table; `None` if none streams.
    pub below: Option<i64>,
    /// The pipelines that read the table.
    pub readers: Vec<Reader>,
    /// When the oldest bookmark was created. Unit: microseconds since 1970.
    pub bookmark_micros: Option<i64>,
    /// Its name.
    pub bookmark: Option<String>,
    /// Logs with references.
    pub logs: Vec<ReferenceLog>,
}

/// What a cursor row says of its pipeline.
pub(super) struct ReaderFacts {
    reader: Reader,
    streams: bool,
    same_cluster: bool,
    mode: Option<String>,
    marks: Option<bool>,
    layout: Option<String>,
    table: Option<u32>,
    resolved: Option<i64>,
    /// Every row from before the slot is published, or there was none.
    is_whole: bool,
    repair: Option<String>,
    replays: Vec<String>,
    bookmark: Option<(String, i64)>,
}

impl ReaderFacts {
    pub(super) fn read(row: &Row) -> Result<Self, tokio_postgres::Error> {
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
            is_whole: row.try_get(9)?,
            repair: row.try_get(10)?,
            replays: row.try_get(11)?,
            bookmark: bookmark.zip(row.try_get::<_, Option<i64>>(13)?),
        })
    }

    /// Whether it is the pipeline whose retention this is.
    pub(super) fn is(&self, key: &PipelineKey) -> bool {
        self.reader.pipeline == key.pipeline && self.reader.shard == key.shard
    }
}

impl Horizon {
    /// Whether everything that `before` allows to be removed may be removed by this one too, except for parked events:
    /// resolved transactions stay resolved.
    pub(super) fn allows_what(&self, before: &Self) -> bool {
        let below = match (self.below, before.below) {
            (Some(now), Some(before)) => now >= before,
            (now, before) => now == before,
        };
        below
            && self.readers == before.readers
            && self.bookmark_micros == before.bookmark_micros
            && self.logs.iter().all(|log| {
                before
                    .logs
                    .iter()
                    .any(|other| other.table == log.table && other.passed <= log.passed)
            })
    }

    pub(super) fn add(&mut self, rule: &RetentionRule, oid: u32, facts: ReaderFacts) {
        let (own, name) = (facts.is(&rule.table.key), facts.reader.pipeline.clone());
        let polls = facts.mode.as_deref() != Some("wal");
        if !facts.same_cluster {
            self.holds.push(Hold::OtherCluster(name.clone()));
        }
        if facts.mode.is_none() {
            self.holds.push(Hold::NeverRan(name.clone()));
        } else if own {
            let same = facts.table == Some(oid)
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
            // What another pipeline was not asked to publish is not needed by it. A mark proves that a row is
            // published, whenever it was committed.
            if own && !rule.marked && !facts.is_whole {
                self.holds.push(Hold::BeforeSlot(name.clone()));
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

    pub(super) fn add_log(&mut self, row: &Row) -> Result<(), tokio_postgres::Error> {
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
