//! Why something was not replayed, and what to do about it.

use crate::error::Halt;
use crate::offset::Offset;
use crate::outbox::{MapError, SpecError};
use crate::postgres::store::bookmark::BookmarkError;
use crate::postgres::{SourceError, error_policy};
use crate::sink::SinkError;
use crate::source::Unreadable;

/// Why a replay did not begin, or ended early. What was acknowledged until then is recorded.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the fields are the words of the message above them")]
pub enum ReplayError {
    /// The time range is empty.
    #[error("--until is not after --since")]
    UntilBeforeSince,
    /// The range of positions is empty.
    #[error("--until {until} is not after the position where the replay would begin, {from}")]
    UntilBeforeFrom { until: Offset, from: Offset },
    /// The bookmark does not exist, or can't be used.
    #[error(transparent)]
    Bookmark(#[from] BookmarkError),
    /// The bookmark exists, but its WAL does not.
    #[error("bookmark \"{name}\" can't be replayed from: {why}")]
    Unusable { name: String, why: String, created_at: String },
    /// Logical messages can't be read.
    #[error("{}", .0.message)]
    Messages(Box<Halt>),
    /// The bookmark's slot was moved.
    #[error(
        "the slot of bookmark \"{name}\" is at {confirmed}, after the position {at}: it was moved"
    )]
    Moved { name: String, at: Offset, confirmed: Offset },
    /// A walsender has the slot and does not release it.
    #[error("bookmark \"{name}\" is being read by the server's process {pid}")]
    InUse { name: String, pid: u32 },
    /// No bookmark reaches back that far.
    #[error("{lsn} is older than any WAL that is kept for replays{}", oldest(known.as_ref()))]
    TooOld { lsn: Offset, known: Option<(String, Offset)> },
    /// The position is not written yet.
    #[error("{lsn} is in the future: the server's WAL ends at {wal_end}")]
    Ahead { lsn: Offset, wal_end: Offset },
    /// The position belongs to another history.
    #[error("the position is of timeline {asked}, and the server is on timeline {now}")]
    OtherTimeline { asked: u32, now: u32 },
    /// `--source wal` without a bookmark that reaches back that far.
    #[error("no bookmark reaches back that far, so the log can't be read")]
    NoLog,
    /// Neither the WAL nor the table can be read.
    #[error(
        "there is nothing to replay from: no bookmark reaches back that far, and the pipeline has no outbox table"
    )]
    NoSource,
    /// The rows of the table have no time.
    #[error(
        "no bookmark reaches back that far, and the rows of table {table} have no time to go by"
    )]
    NoTime { table: String },
    /// The rows have a time without a known time zone.
    #[error(
        "column \"{column}\" of table {table} has no time zone: which rows are of that time can't be known"
    )]
    NoZone { table: String, column: String },
    /// The rows of the table have no position.
    #[error("the table's rows have no positions: --source table can't begin or end at an LSN")]
    NoPositions,
    /// Events of the requested aggregate are parked.
    #[error("aggregate \"{kind}:{id}\" has parked events: what is published now would pass them")]
    Parked { kind: String, id: String },
    /// The topic accepts no records.
    #[error("topic \"{topic}\" accepts no records: {what}")]
    Topic { topic: String, what: String, fix: Option<String> },
    /// The name is not allowed.
    #[error("\"{name}\" can't be the name of a replay")]
    Name { name: String },
    /// A replay of this name exists.
    #[error("there is a replay \"{name}\" already")]
    Taken { name: String },
    /// No replay of this name exists.
    #[error("there is no replay \"{name}\" that could go on{}", list(known))]
    Unknown { name: String, known: Vec<String> },
    /// No replay was interrupted.
    #[error("no replay was interrupted")]
    NothingToResume,
    /// Several replays were interrupted.
    #[error("several replays were interrupted: {}", known.join(", "))]
    WhichReplay { known: Vec<String> },
    /// The replay is finished.
    #[error("replay \"{name}\" is at its end: {published} events were published")]
    Finished { name: String, published: u64 },
    /// Another process resumed the replay while this one had no connection to the database.
    #[error("another process has resumed replay \"{name}\"")]
    TakenOver { name: String },
    /// The row of the replay can't be read.
    #[error(
        "the row of replay \"{name}\" can't be read: it is of another version, or was changed by hand"
    )]
    BadRow { name: String },
    /// Another replay of the pipeline is running.
    #[error("another replay of pipeline \"{pipeline}\" is running, on the server's process {pid}")]
    Busy { pipeline: String, pid: u32 },
    /// The server is a standby, where progress can't be written.
    #[error("the server is a standby: a replay is run on the primary")]
    Standby,
    /// The row after which the table was to be read was deleted.
    #[error(
        "the row of event \"{id}\", at which the replay was interrupted, was deleted from the table"
    )]
    LostPlace { id: String },
    /// The configuration of the outbox is inconsistent.
    #[error("the outbox can't be read as it is configured")]
    Spec(#[source] SpecError),
    /// The table does not fit the layout.
    #[error("the outbox can't be read")]
    Unfit(#[source] MapError),
    /// A message of the server can't be read.
    #[error("the server sent a message that can't be read")]
    Protocol(#[source] Unreadable),
    /// The stream contradicts itself.
    #[error("{}", .0.message)]
    Broken(Box<Halt>),
    /// The sink could not be opened.
    #[error("could not open the sink")]
    Sink(#[from] SinkError),
    /// The sink can't be used as it is configured.
    #[error("the sink can't be used: {reason}")]
    SinkUnfit { reason: String, hint: String },
    /// An error of the server or of the connection.
    #[error(transparent)]
    Source(#[from] SourceError),
}

impl From<Unreadable> for ReplayError {
    fn from(error: Unreadable) -> Self {
        match error {
            Unreadable::Protocol(_) => Self::Protocol(error),
            Unreadable::NotText(table) => Self::Unfit(MapError::not_text(table)),
        }
    }
}

fn oldest(known: Option<&(String, Offset)>) -> String {
    known.map_or_else(
        || ": there is no usable bookmark".to_owned(),
        |(name, lsn)| format!(": the oldest is bookmark \"{name}\", from {lsn}"),
    )
}

fn list(known: &[String]) -> String {
    if known.is_empty() { String::new() } else { format!("; there is {}", known.join(", ")) }
}

const TABLE: &str =
    "--since TIME --source table publishes the rows that are still in the outbox table";

/// For a replay that cannot continue at its place.
const AGAIN: &str =
    "begin another replay: rows that this one has published are published again, with the same ids";

const NO_ZONE: &str = "set source.time_zone to the zone of the sessions that insert, such as \
                       \"America/New_York\"; or ask by --bookmark, --id or --aggregate";

impl ReplayError {
    /// Whether the request itself can't be carried out: wrong usage.
    pub fn is_usage(&self) -> bool {
        matches!(
            self,
            Self::UntilBeforeSince
                | Self::UntilBeforeFrom { .. }
                | Self::NoPositions
                | Self::Name { .. }
                | Self::Taken { .. }
                | Self::WhichReplay { .. }
        )
    }

    /// What to do about it.
    pub fn hint(&self) -> Option<String> {
        Some(match self {
            Self::UntilBeforeSince | Self::UntilBeforeFrom { .. } => {
                "give a later --until, or none: then it ends with what is committed now".to_owned()
            }
            Self::Bookmark(error) => return error.hint(),
            Self::Unusable { name, created_at, .. } => format!(
                "its WAL does not come back; --since {created_at} --source table publishes the rows of the outbox \
                 table from the time of the bookmark on, as far as they are still there; then postrider bookmark drop \
                 {name}"
            ),
            Self::Moved { name, .. } => {
                format!("what lies between can't be read any more: postrider bookmark drop {name}. {TABLE}")
            }
            Self::InUse { .. } => {
                "wait for it, or end it: SELECT pid, application_name FROM pg_stat_replication;".to_owned()
            }
            Self::TooOld { known: Some((name, _)), .. } => {
                format!("begin there: --bookmark {name}. {TABLE}")
            }
            Self::TooOld { known: None, .. } | Self::NoLog => {
                format!("{TABLE}; for the next time: postrider bookmark create NAME")
            }
            Self::Ahead { .. } => {
                "see that it is of this cluster; an LSN of another one means nothing here".to_owned()
            }
            Self::OtherTimeline { .. } => format!(
                "WAL of before the promotion is in no slot of this server: replay from a bookmark made since, or by \
                 time. {TABLE}"
            ),
            Self::NoSource => "for the next time: postrider bookmark create NAME".to_owned(),
            Self::NoTime { .. } => {
                "name the column of the row's time: outbox.columns.time; or ask by --id or --aggregate".to_owned()
            }
            Self::NoZone { .. } => NO_ZONE.to_owned(),
            Self::NoPositions => "ask by --since TIME, --id or --aggregate".to_owned(),
            Self::Parked { kind, id } => format!(
                "look at them first: postrider parked list --aggregate {kind}:{id}; or --include-parked publishes \
                 all the same"
            ),
            Self::Topic { fix, topic, .. } => fix.clone().unwrap_or_else(|| {
                format!("see that topic {topic} exists and may be written to, or name another by --to")
            }),
            Self::Name { .. } => "use 1 to 63 of A-Z a-z 0-9 . _ -".to_owned(),
            Self::Taken { name } => {
                format!("choose another --name, or go on with it: postrider replay --resume {name}")
            }
            Self::Unknown { .. } | Self::NothingToResume | Self::Finished { .. } => {
                "begin another one: postrider replay --bookmark NAME".to_owned()
            }
            Self::WhichReplay { .. } => "name the one that is meant: --resume NAME".to_owned(),
            Self::BadRow { .. } => "begin another one, from the position in its row".to_owned(),
            Self::TakenOver { .. } => {
                "let that one come to its end: this one published nothing since it lost the database".to_owned()
            }
            Self::Busy { .. } => "wait until it has ended, or end it; one runs at a time".to_owned(),
            Self::Standby => {
                "point source.url at the primary (target_session_attrs=read-write)".to_owned()
            }
            Self::LostPlace { .. } => AGAIN.to_owned(),
            Self::Messages(halt) | Self::Broken(halt) => halt.hint.clone(),
            Self::Spec(_) | Self::Unfit(_) => "run postrider check: it shows what does not fit".to_owned(),
            Self::Protocol(_) => "report it with the server's version".to_owned(),
            Self::Sink(error) => error.hint().to_owned(),
            Self::SinkUnfit { hint, .. } => hint.clone(),
            Self::Source(error) => return error_policy::hint(error),
        })
    }
}
