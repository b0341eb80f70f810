//! What blocks the removal of all rows of a table.

use crate::names::literal;
use crate::store::cursor::NOTHING_BEFORE;
use std::fmt;

/// Events of a log with references that a group may be behind: with more of them, no row is compared with them, and
/// nothing is removed.
pub(super) const BEHIND_MAX: i64 = 200_000;

/// Why nothing of a table may be removed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Hold {
    /// The pipeline has no cursor row.
    NoPosition,
    /// The position of this pipeline belongs to another cluster.
    OtherCluster(String),
    /// The position of this pipeline belongs to another table, mode or layout than the configuration.
    OtherSettings(String),
    /// A pipeline has a position and has never run, so that it is not known which table it reads.
    NeverRan(String),
    /// No transaction is known to be resolved by this pipeline.
    NothingResolved(String),
    /// The table may have rows from before the slot of this pipeline, which no stream has published. Which rows these
    /// are is not known: an update, or a rewrite of the table, gives a row the number of its own transaction, and
    /// applications write the times.
    BeforeSlot(String),
    /// A repair or a backfill of this pipeline is in progress: its kind and state.
    Repair(String, String),
    /// A replay of this pipeline from the table is not finished.
    Replay(String, String),
    /// Another pipeline polls the table, and its marks are not known here.
    Polled(String),
    /// A consumer group is too many events behind: group, log, events.
    GroupBehind(String, String, i64),
    /// The table has no time column that `keep` could count from.
    NoTime,
    /// The column has times without a zone, and `source.time_zone` is not set.
    NoZone(String),
    /// pg_partman removes partitions of the table.
    Partman,
    /// The table is not partitioned by one column of times or numbers.
    NotPartitioned,
    /// The table has a default partition, so that no partition can be detached concurrently.
    DefaultPartition(String),
    /// The archive does not exist.
    NoArchive(String),
    /// The archive lacks a column of the outbox.
    ArchiveLacks(String, String),
    /// The archive has no partition for some rows, and none can be created: `retention.partitions.by` is not set, or
    /// does not fit.
    ArchiveLacksPartition(String),
    /// The archive is not partitioned, so that nothing of it can be dropped.
    ArchiveNotPartitioned(String),
    /// A partition has no upper bound, so that none can be created after it.
    NoUpperBound(String),
    /// Whether a partition has rows without a mark is not found quickly enough to exclude writers meanwhile: the
    /// partition, and the statements that create an index.
    UnmarkedWithoutIndex(String, String),
}

impl Hold {
    /// The name, for metrics and JSON.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::NoPosition => "no_position",
            Self::OtherCluster(_) => "other_cluster",
            Self::OtherSettings(_) => "other_settings",
            Self::NeverRan(_) => "never_ran",
            Self::NothingResolved(_) => "nothing_resolved",
            Self::BeforeSlot(_) => "before_slot",
            Self::Repair(..) => "repair",
            Self::Replay(..) => "replay",
            Self::Polled(_) => "polled",
            Self::GroupBehind(..) => "group_behind",
            Self::NoTime => "no_time",
            Self::NoZone(_) => "no_zone",
            Self::Partman => "pg_partman",
            Self::NotPartitioned => "not_partitioned",
            Self::DefaultPartition(_) => "default_partition",
            Self::NoArchive(_) => "no_archive",
            Self::ArchiveLacks(..) => "archive_lacks_column",
            Self::ArchiveLacksPartition(_) => "archive_lacks_partition",
            Self::ArchiveNotPartitioned(_) => "archive_not_partitioned",
            Self::NoUpperBound(_) => "no_upper_bound",
            Self::UnmarkedWithoutIndex(..) => "unmarked_without_index",
        }
    }

    /// What ends it: a command, a statement or a key; `None` if it ends without an action.
    pub fn hint(&self) -> Option<String> {
        Some(match self {
            Self::NoPosition | Self::NothingResolved(_) | Self::Repair(..) | Self::GroupBehind(..) => return None,
            Self::OtherCluster(_) | Self::OtherSettings(_) => {
                "start postrider run of this pipeline: it compares the settings, and prints what is possible".to_owned()
            }
            Self::NeverRan(pipeline) => format!(
                "start postrider run of pipeline {pipeline}; or, if it is not used, remove it: postrider setup --undo \
                 -p {pipeline} --url ADMIN_URL, which prints what is lost"
            ),
            Self::BeforeSlot(pipeline) => format!(
                "publish every row of the table, which repeats events: postrider replay -p {pipeline} --since \
                 1970-01-02 --source table --include-parked; then, or if every row from before the slot was published \
                 otherwise or is not needed (postrider retain --dry-run prints how many rows are removed then): UPDATE \
                 postrider.cursor SET before_slot = {NOTHING_BEFORE} WHERE pipeline = {};",
                literal(pipeline)
            ),
            Self::Replay(pipeline, name) => format!(
                "finish it: postrider replay -p {pipeline} --resume; or give it up: UPDATE postrider.replay SET \
                 finished_at = now() WHERE pipeline = {} AND name = {};",
                literal(pipeline),
                literal(name)
            ),
            Self::Polled(pipeline) => format!(
                "set [pipelines.{pipeline}.retention] for the pipeline that polls the table, and remove it here"
            ),
            Self::NoTime => "name the column: [pipelines.NAME.outbox.columns] time = \"created_at\"; for keep_from = \
                             \"expiry\": expires_at"
                .to_owned(),
            Self::NoZone(_) => "set source.time_zone to the zone of the column's times".to_owned(),
            Self::Partman => "leave the removal to pg_partman, and remove [pipelines.NAME.retention]; or remove the \
                              table from part_config"
                .to_owned(),
            Self::NotPartitioned => {
                "partition it: postrider partition; or set retention.action = \"delete\"".to_owned()
            }
            Self::DefaultPartition(table) => format!(
                "move its rows to partitions of their own, then detach it: ALTER TABLE ... DETACH PARTITION {table};"
            ),
            Self::NoArchive(sql) | Self::UnmarkedWithoutIndex(_, sql) => sql.clone(),
            Self::ArchiveLacks(table, column) => format!("ALTER TABLE {table} ADD COLUMN {column} ...;"),
            Self::ArchiveLacksPartition(_) => "set retention.partitions.by to the width of the archive's partitions: \
                                               \"month\", or a number for a key of numbers"
                .to_owned(),
            Self::ArchiveNotPartitioned(_) => "remove retention.archive_keep, or partition the archive".to_owned(),
            Self::NoUpperBound(table) => {
                format!("give partition {table} an upper bound, by detaching and attaching it again")
            }
        })
    }
}

impl fmt::Display for Hold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoPosition => f.write_str("the pipeline has no position yet"),
            Self::OtherCluster(of) => {
                write!(f, "the position of pipeline {of} belongs to another cluster")
            }
            Self::OtherSettings(of) => {
                write!(f, "the position of pipeline {of} belongs to another table, mode or layout")
            }
            Self::NeverRan(of) => {
                write!(f, "pipeline {of} has a position and has never run: it may read this table")
            }
            Self::NothingResolved(of) => {
                write!(f, "no transaction is known to be published by pipeline {of} yet")
            }
            Self::BeforeSlot(of) => write!(
                f,
                "the table may have rows from before the slot of pipeline {of}, which no stream has published"
            ),
            Self::Repair(of, what) => write!(f, "a {what} of pipeline {of} is in progress"),
            Self::Replay(of, name) => {
                write!(f, "replay {name} of pipeline {of} reads the table and is not finished")
            }
            Self::Polled(of) => write!(f, "pipeline {of} polls the table"),
            Self::GroupBehind(group, log, events) => {
                let max = BEHIND_MAX;
                write!(f, "group {group} is {events} events behind in log {log} (more than {max})")
            }
            Self::NoTime => {
                f.write_str("the table has no time column that retention.keep could count from")
            }
            Self::NoZone(column) => {
                write!(
                    f,
                    "column {column} has times without a zone, and source.time_zone is not set"
                )
            }
            Self::Partman => f.write_str("pg_partman manages the partitions of the table"),
            Self::NotPartitioned => f.write_str(
                "the table is not partitioned by a range of one column of times or numbers",
            ),
            Self::DefaultPartition(table) => write!(
                f,
                "the table has a default partition, {table}, beside which no partition can be detached concurrently"
            ),
            Self::NoArchive(_) => f.write_str("the archive does not exist"),
            Self::ArchiveLacks(table, column) => {
                write!(f, "the archive {table} has no column {column}")
            }
            Self::ArchiveLacksPartition(table) => {
                write!(
                    f,
                    "the archive {table} has no partition for some of the rows, and none can be created"
                )
            }
            Self::ArchiveNotPartitioned(table) => {
                write!(
                    f,
                    "the archive {table} is not partitioned by a range of one column of times or numbers"
                )
            }
            Self::NoUpperBound(table) => {
                write!(
                    f,
                    "partition {table} has no upper bound, so that no partition can be created after it"
                )
            }
            Self::UnmarkedWithoutIndex(table, _) => {
                write!(f, "no index has the rows of partition {table} that have no mark yet")
            }
        }
    }
}
