//! What a PostgreSQL sink writes, and where: the settings that its parts share.

use pg_replication::Conninfo;
use postrider_core::sink::NameRule;

/// The name of a log, as `CHECK` of table `postrider.event_log` has it. Unit: bytes.
const NAME_BYTES_MAX: usize = 200;

/// Whether a log has the payloads.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LogKind {
    /// Payload and headers are in the log.
    Value,
    /// Payload and headers stay in the outbox table, in the row with the event's id.
    Reference,
}

impl LogKind {
    /// The words of `kind`, in the order of the values.
    pub(super) const WORDS: [&str; 2] = ["value", "reference"];

    /// The word in the configuration, and in table `postrider.event_log`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Value => "value",
            Self::Reference => "reference",
        }
    }

    /// Reads the column `kind` of `postrider.event_log`.
    pub(super) fn parse(text: &str) -> Option<Self> {
        [Self::Value, Self::Reference].into_iter().find(|kind| kind.name() == text)
    }
}

/// How logs that do not exist are created.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CreateLogs {
    /// Hash partitions.
    pub partitions: u32,
    /// Events in each child of the table.
    pub rows_per_child: u32,
    /// Whether the log has the payloads.
    pub kind: LogKind,
}

/// What the sink is opened with.
#[derive(Clone, Debug)]
pub(super) struct PostgresSpec {
    /// The database of the logs.
    pub(super) conninfo: Conninfo,
    /// The name under which the sink writes: that of the pipeline.
    pub(super) writer: String,
    /// How logs that do not exist are created; `None` if they are not.
    pub(super) create: Option<CreateLogs>,
    /// The operator's limit on the size of a record. Unit: bytes.
    pub(super) size_max: Option<usize>,
}

/// Whether a log may have this name.
fn is_log_name(name: &[u8]) -> bool {
    (1..=NAME_BYTES_MAX).contains(&name.len())
        && !name.contains(&0)
        && std::str::from_utf8(name).is_ok()
}

/// The rule for names of logs.
pub(super) const NAMES: NameRule = NameRule {
    allows: is_log_name,
    owner: "an event log",
    words: "1 to 200 bytes of UTF-8 without a zero byte",
};
