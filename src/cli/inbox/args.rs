//! The arguments of `postrider inbox`.

use crate::config;
use crate::postgres::store::inboxes::InboxOrder;
use clap::{ArgGroup, Subcommand};
use std::time::Duration;

/// `postrider inbox`
#[derive(clap::Args, Debug)]
#[command(
    after_help = "An inbox is a table of messages in the database of the service that processes them, which is often \
                  not the source of a pipeline: name it with --url. A message is pending until it is processed or \
                  dead. See docs/sql/inbox.md."
)]
pub struct InboxArgs {
    /// The database of the service.
    #[arg(
        help = "The database of the service that has the inbox, as a URL [default: that of the \
                table [inboxes.NAME] that stores in the inbox, else the source of the pipeline]"
    )]
    #[arg(long, value_name = "URL", global = true)]
    pub url: Option<String>,
    /// The subcommand.
    #[command(subcommand)]
    pub command: InboxCommand,
}

/// The subcommands of `postrider inbox`.
#[derive(Subcommand, Debug)]
pub enum InboxCommand {
    /// Those that concern an intake, and have its database.
    #[cfg(feature = "kafka")]
    #[command(flatten)]
    Intake(IntakeCommand),
    /// Those that concern an inbox in the database of a service.
    #[command(flatten)]
    Stored(StoredInboxCommand),
}

/// The subcommands that concern an intake: what stores messages in an inbox, as a table `[inboxes.NAME]` says.
#[cfg(feature = "kafka")]
#[derive(Subcommand, Debug)]
pub enum IntakeCommand {
    /// Store messages of brokers, or webhooks, in inboxes until SIGTERM or SIGINT, as [inboxes.NAME] of the file says
    Run(super::run::RunInboxArgs),
    /// Let an intake continue at another offset of a partition of Kafka
    Seek(SeekInboxArgs),
}

/// Flags of other commands that these refuse. They replace the flags of the same names that `postrider` and `postrider
/// inbox` pass on to every subcommand, so that the help does not offer them.
#[cfg(feature = "kafka")]
#[derive(clap::Args, Debug)]
pub struct NoDatabaseArgs {
    /// Refused.
    #[arg(long, value_name = "URL", hide = true)]
    pub url: Option<String>,
    /// Refused.
    #[arg(short, long, value_name = "NAME", hide = true)]
    pub pipeline: Option<String>,
}

/// The subcommands that concern an inbox in the database of a service.
#[derive(Subcommand, Debug)]
pub enum StoredInboxCommand {
    /// List the inboxes: table, order or priorities, retention, pending and dead messages
    List(ListInboxesArgs),
    /// Create an inbox, or adopt a table of yours
    Create(Box<CreateInboxArgs>),
    /// Show the state of an inbox with its reasons, by type; without a name of all. Exits 1 if one is not healthy
    Status(InboxStatusArgs),
    /// List the dead messages of an inbox, in the order of their ids
    Dead(DeadArgs),
    /// Make messages pending again; the effects of processed ones happen again
    Replay(ReplayInboxArgs),
    /// Give messages up: they count as processed, and their effects do not happen
    Skip(SkipInboxArgs),
    /// Delete processed or dead messages; pending ones are never deleted
    Purge(PurgeArgs),
    /// List the missing numbers that aggregates of an inbox with an order by sequence wait for
    Gaps(GapsArgs),
    /// Give up waiting for the missing numbers of aggregates
    SkipGap(SkipGapArgs),
    /// Delete an inbox with its messages; an adopted table stays
    Drop(DropInboxArgs),
}

impl StoredInboxCommand {
    /// The command prints SQL, and needs no database.
    pub(crate) fn is_printed(&self) -> bool {
        matches!(self, Self::Create(new) if new.print_sql)
    }

    /// The inbox that the command names, if it names one.
    pub(super) fn inbox(&self) -> Option<&str> {
        match self {
            Self::List(_) => None,
            Self::Create(new) => Some(&new.name),
            Self::Status(status) => status.name.as_deref(),
            Self::Dead(dead) => Some(&dead.name),
            Self::Replay(replay) => Some(&replay.name),
            Self::Skip(skip) => Some(&skip.name),
            Self::Purge(purge) => Some(&purge.name),
            Self::Gaps(gaps) => Some(&gaps.name),
            Self::SkipGap(skip) => Some(&skip.name),
            Self::Drop(drop) => Some(&drop.name),
        }
    }
}

/// `postrider inbox list`
#[derive(clap::Args, Debug)]
pub struct ListInboxesArgs {
    /// Print JSON, one object per line
    #[arg(long)]
    pub json: bool,
}

/// What decides the order of the messages of an aggregate.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub enum InboxOrderArg {
    /// sequence_num: numbers without gaps
    Sequence,
    /// The order of the inserts
    Arrival,
}

impl InboxOrderArg {
    pub(super) const fn order(self) -> InboxOrder {
        match self {
            Self::Sequence => InboxOrder::Sequence,
            Self::Arrival => InboxOrder::Arrival,
        }
    }
}

/// Which message of an inbox is next. By default the oldest one that is due.
#[derive(clap::Args, Debug, Default)]
pub struct InboxRuleArgs {
    /// Give out only the next message of each aggregate
    #[arg(long, value_name = "BY", conflicts_with = "priorities")]
    pub order: Option<InboxOrderArg>,
    /// With --order sequence: the first number of each aggregate [default: 1]
    #[arg(long, value_name = "N", requires = "order", allow_negative_numbers = true)]
    pub first_sequence: Option<i64>,
    /// Give out the lowest priority number first; names and ranges of numbers, such as urgent=0..3,rest=4..9
    #[arg(long, value_name = "TIERS", value_delimiter = ',', value_parser = tier)]
    pub priorities: Option<Vec<(String, i16, i16)>>,
    /// With --priorities: the priority of messages without one [default: 5]
    #[arg(long, value_name = "N", requires = "priorities", allow_negative_numbers = true)]
    pub default_priority: Option<i16>,
}

/// A table of yours that becomes an inbox.
#[derive(clap::Args, Debug, Default)]
pub struct AdoptTableArgs {
    /// Adopt this table instead of creating one; as in SQL, with its schema, such as public.webhook
    #[arg(long, value_name = "TABLE", conflicts_with_all = ["schema", "order", "priorities"])]
    pub adopt: Option<String>,
    /// With --adopt: the column of the ids, unique by itself [default: event_id]
    #[arg(long, value_name = "COLUMN", requires = "adopt")]
    pub id_column: Option<String>,
    /// With --adopt: the time when a message was processed [default: processed_at]
    #[arg(long, value_name = "COLUMN", requires = "adopt")]
    pub processed_at_column: Option<String>,
    /// With --adopt: how often it has failed [default: retry_count]
    #[arg(long, value_name = "COLUMN", requires = "adopt")]
    pub retry_count_column: Option<String>,
    /// With --adopt: its last error [default: error]
    #[arg(long, value_name = "COLUMN", requires = "adopt")]
    pub error_column: Option<String>,
    /// With --adopt: the time when it arrived [default: received_at]
    #[arg(long, value_name = "COLUMN", requires = "adopt")]
    pub received_at_column: Option<String>,
    /// With --adopt: its type; "": the table has no types [default: event_type]
    #[arg(long, value_name = "COLUMN", requires = "adopt")]
    pub event_type_column: Option<String>,
}

/// `postrider inbox create`
#[derive(clap::Args, Debug)]
pub struct CreateInboxArgs {
    /// The inbox: 1 to 47 characters of a-z, 0-9 and _
    #[arg(value_name = "NAME")]
    pub name: String,
    /// A message that has failed this often is dead [default: 5]
    #[arg(long, value_name = "N")]
    pub max_retries: Option<u32>,
    /// How long processed messages are kept, in whole hours, such as 3d; 0: for ever [default: 72h; with --adopt 0]
    #[arg(long, value_name = "DURATION", value_parser = hours)]
    pub retention: Option<u32>,
    /// Which message is next.
    #[command(flatten)]
    pub rule: InboxRuleArgs,
    /// A table of yours.
    #[command(flatten)]
    pub adopt: AdoptTableArgs,
    /// Create the table in this schema [default: postrider_inbox]
    #[arg(long, value_name = "SCHEMA")]
    pub schema: Option<String>,
    /// Leave an inbox of this name as it is; exits 1 if its settings differ
    #[arg(long)]
    pub if_not_exists: bool,
    /// Print the statements, which are one transaction, and change nothing; needs no database
    #[arg(long, conflicts_with = "json")]
    pub print_sql: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `postrider inbox status`
#[derive(clap::Args, Debug)]
pub struct InboxStatusArgs {
    /// The inbox
    #[arg(value_name = "NAME")]
    pub name: Option<String>,
    /// Print JSON, one object per line
    #[arg(long)]
    pub json: bool,
}

/// `postrider inbox dead`
#[derive(clap::Args, Debug)]
pub struct DeadArgs {
    /// The inbox
    #[arg(value_name = "NAME")]
    pub name: String,
    /// Only messages of this type; "": those without a type
    #[arg(long = "type", value_name = "TYPE")]
    pub event_type: Option<String>,
    /// The most messages that are listed, at most 1000
    #[arg(long, value_name = "N", default_value = "100", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub limit: u32,
    /// Continue behind the message with this id
    #[arg(long, value_name = "ID", allow_hyphen_values = true)]
    pub after: Option<String>,
    /// Print payloads too, those of up to 256 KiB; not of an adopted table
    #[arg(long)]
    pub payload: bool,
    /// Print JSON, one object per line
    #[arg(long)]
    pub json: bool,
}

/// `postrider inbox replay`
#[derive(clap::Args, Debug)]
#[command(group(ArgGroup::new("which").required(true).args(["ids", "all_dead", "event_type"])))]
pub struct ReplayInboxArgs {
    /// The inbox
    #[arg(value_name = "NAME")]
    pub name: String,
    /// Ids of messages, dead, processed or pending ones, at most 10000
    #[arg(value_name = "ID", num_args = 1..=10_000)]
    pub ids: Vec<String>,
    /// All dead messages
    #[arg(long)]
    pub all_dead: bool,
    /// All dead messages of this type; "": those without a type
    #[arg(long = "type", value_name = "TYPE")]
    pub event_type: Option<String>,
    /// Do not ask for confirmation
    #[arg(short, long)]
    pub yes: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `postrider inbox skip`
#[derive(clap::Args, Debug)]
pub struct SkipInboxArgs {
    /// The inbox
    #[arg(value_name = "NAME")]
    pub name: String,
    /// Ids of pending or dead messages, at most 1000: they are skipped in one transaction
    #[arg(value_name = "ID", num_args = 1..=1000, required = true)]
    pub ids: Vec<String>,
    /// Why; it is stored in front of the error of the message
    #[arg(long, value_name = "TEXT")]
    pub reason: String,
    /// Do not ask for confirmation
    #[arg(short, long)]
    pub yes: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `postrider inbox purge`
#[derive(clap::Args, Debug)]
#[command(group(
    ArgGroup::new("which").required(true).args(["processed_before", "dead_before", "dead_ids"])
))]
pub struct PurgeArgs {
    /// The inbox
    #[arg(value_name = "NAME")]
    pub name: String,
    /// Messages that have been processed for at least this long, such as 30d
    #[arg(long, value_name = "DURATION", value_parser = config::duration)]
    pub processed_before: Option<Duration>,
    /// Messages that have been dead for at least this long; not of an adopted table
    #[arg(long, value_name = "DURATION", value_parser = config::duration)]
    pub dead_before: Option<Duration>,
    /// Those of these messages that are dead, at most 10000
    #[arg(long, value_name = "ID", num_args = 1..=10_000)]
    pub dead_ids: Vec<String>,
    /// Do not ask for confirmation
    #[arg(short, long)]
    pub yes: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `postrider inbox gaps`
#[derive(clap::Args, Debug)]
pub struct GapsArgs {
    /// The inbox
    #[arg(value_name = "NAME")]
    pub name: String,
    /// Also the gaps behind the first one of an aggregate; reads all messages that wait
    #[arg(long)]
    pub all: bool,
    /// The most gaps that are listed, at most 100000
    #[arg(long, value_name = "N", default_value = "1000", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub limit: u32,
    /// Print JSON, one object per line
    #[arg(long)]
    pub json: bool,
}

/// `postrider inbox skip-gap`
#[derive(clap::Args, Debug)]
pub struct SkipGapArgs {
    /// The inbox
    #[arg(value_name = "NAME")]
    pub name: String,
    /// The aggregates, at most 1000: of each the first gap
    #[arg(value_name = "AGGREGATE", num_args = 1..=1000, required = true)]
    pub aggregates: Vec<String>,
    /// Do not ask for confirmation
    #[arg(short, long)]
    pub yes: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `postrider inbox drop`
#[derive(clap::Args, Debug)]
pub struct DropInboxArgs {
    /// The inbox
    #[arg(value_name = "NAME")]
    pub name: String,
    /// Leave the table with its messages, as a table without an inbox
    #[arg(long)]
    pub keep_table: bool,
    /// Do not ask for confirmation
    #[arg(short, long)]
    pub yes: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `urgent=0..3`
fn tier(text: &str) -> Result<(String, i16, i16), String> {
    let parsed = text.split_once('=').and_then(|(name, range)| {
        let (low, high) = range.split_once("..")?;
        Some((name.to_owned(), low.parse().ok()?, high.parse().ok()?))
    });
    match parsed {
        Some((_, low, high)) if low > high => Err("the first number is the lowest one".to_owned()),
        Some(tier) => Ok(tier),
        None => Err("a tier is a name with its lowest and highest number: urgent=0..3".to_owned()),
    }
}

/// A duration of whole hours, or 0.
fn hours(text: &str) -> Result<u32, String> {
    if text == "0" {
        return Ok(0);
    }
    let seconds = config::duration(text)?;
    let whole = u32::try_from(seconds.as_secs() / 3600).ok();
    match whole {
        Some(hours) if hours > 0 && seconds == Duration::from_hours(u64::from(hours)) => Ok(hours),
        Some(_) | None => {
            Err("it is a number of whole hours, such as 72h or 3d; 0: for ever".to_owned())
        }
    }
}

/// `postrider inbox seek`
#[derive(clap::Args, Debug)]
#[cfg(feature = "kafka")]
pub struct SeekInboxArgs {
    /// The table [inboxes.NAME] of the configuration
    #[arg(value_name = "NAME")]
    pub name: String,
    /// The topic
    #[arg(long, value_name = "TOPIC")]
    pub topic: String,
    /// The number of the partition
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(i32).range(0..))]
    pub partition: i32,
    /// The offset of the next record, or earliest (the oldest one that there is), or latest (behind the newest one)
    #[arg(long, value_name = "OFFSET|earliest|latest")]
    pub to: SeekOffset,
    /// Do not ask for confirmation
    #[arg(short, long)]
    pub yes: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// Refused.
    #[command(flatten)]
    pub refused: NoDatabaseArgs,
}

/// Where an intake continues.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[cfg(feature = "kafka")]
pub enum SeekOffset {
    /// At the oldest record that there is.
    Earliest,
    /// Behind the newest record.
    Latest,
    /// At this offset.
    At(i64),
}

#[cfg(feature = "kafka")]
impl std::str::FromStr for SeekOffset {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "earliest" => Ok(Self::Earliest),
            "latest" => Ok(Self::Latest),
            _ => match text.parse() {
                Ok(at) if at >= 0 => Ok(Self::At(at)),
                Ok(_) | Err(_) => Err("expected a number from 0 on, earliest or latest"),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tiers_and_hours_are_read_as_they_are_documented() {
        assert_eq!(tier("urgent=0..3"), Ok(("urgent".to_owned(), 0, 3)));
        assert_eq!(tier("a=-5..-1"), Ok(("a".to_owned(), -5, -1)));
        for text in
            ["", "urgent", "urgent=0", "urgent=0-3", "urgent=3..0", "u=0..99999", "=..", "u=a..b"]
        {
            assert!(tier(text).is_err(), "{text}");
        }
        assert_eq!((hours("0"), hours("72h"), hours("3d")), (Ok(0), Ok(72), Ok(72)));
        for text in ["", "72", "90m", "1ms", "0h", "-1h", "99999999999999d"] {
            assert!(hours(text).is_err(), "{text}");
        }
        assert_eq!(hours("120m"), Ok(2));
    }
}
