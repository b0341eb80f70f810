//! What can be typed behind `postrider replay`.

use crate::event::{HeaderPosition, Position};
use crate::lsn::Lsn;
use clap::ValueEnum;

/// Events a second, where nothing is said: a live stream beside it does not feel it.
const RATE: &str = "5000";

/// `postrider replay`
#[derive(clap::Args, Debug)]
#[command(
    after_help = "A TIME is what PostgreSQL reads as one (2026-03-01T04:00:00Z), in source.time_zone or else UTC where \
                  it names no zone, or how long ago (90m, 2d). It ends with what is committed when it begins, or at \
                  --until. What was published is noted every second: after an interruption --resume goes on there. \
                  Exits 1 where something that was asked for was not published."
)]
#[command(group = clap::ArgGroup::new("what").required(true).multiple(true)
    .args(["bookmark", "lsn", "since", "ids", "aggregate", "resume"]))]
pub struct ReplayArgs {
    /// What is committed since this bookmark
    #[arg(long, value_name = "NAME", conflicts_with_all = ["lsn", "since"])]
    pub bookmark: Option<String>,
    /// What commits at this position or later.
    #[arg(
        help = "What commits at this LSN or later; or from one event on, by its position: 0/1A2B3C8:5, or as header \
                position has it"
    )]
    #[arg(long, value_name = "X/Y[:N]", value_parser = position, conflicts_with = "since")]
    pub lsn: Option<Position>,
    /// The timeline that --lsn was seen on, to be refused on another
    #[arg(long, value_name = "N", requires = "lsn")]
    pub timeline: Option<u32>,
    /// What was committed at this time or later
    #[arg(long, value_name = "TIME")]
    pub since: Option<String>,
    /// Only what was committed before this time, or commits before this LSN
    #[arg(long, value_name = "TIME|X/Y", conflicts_with = "resume")]
    pub until: Option<String>,
    /// Only the event of this id; may be given more than once
    #[arg(long = "id", id = "ids", value_name = "ID")]
    pub ids: Vec<String>,
    /// Only events of this aggregate
    #[arg(long, value_name = "TYPE:ID", value_parser = aggregate)]
    pub aggregate: Option<(String, String)>,
    /// The topic [default: each event's own]
    #[arg(long, value_name = "TOPIC", conflicts_with = "resume")]
    pub to: Option<String>,
    /// The most events a second; 0 is as fast as it goes
    #[arg(long, value_name = "N", default_value = RATE, value_parser = clap::value_parser!(u32).range(..=1_000_000))]
    pub rate: u32,
    /// Only count: events, destinations, bytes, first and last position
    #[arg(long, conflicts_with = "resume")]
    pub dry_run: bool,
    /// Go on with a replay that was interrupted [default: the only one]
    #[arg(long, value_name = "NAME", num_args = 0..=1, default_missing_value = "")]
    #[arg(conflicts_with_all = ["bookmark", "lsn", "since", "ids", "aggregate", "name", "source", "include_parked"])]
    pub resume: Option<String>,
    /// The replay's name, which header replay has [default: what it begins at, and the time]
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,
    /// Where events are read from
    #[arg(long, value_name = "SOURCE", default_value = "auto")]
    pub source: SourceArg,
    /// Also replay events of aggregates that have parked events; they are published before the parked ones
    #[arg(long)]
    pub include_parked: bool,
    /// JSON
    #[arg(long)]
    pub json: bool,
}

/// `--source`
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, ValueEnum)]
pub enum SourceArg {
    /// The log where a bookmark reaches back far enough, else the table
    #[default]
    Auto,
    /// The log, through a bookmark's slot: exact
    Wal,
    /// The rows that are in the outbox table
    Table,
}

fn position(text: &str) -> Result<Position, String> {
    const EXPECTED: &str = "expected an LSN such as 0/1A2B3C8, or a position such as 0/1A2B3C8:5";
    if let Some(header) = HeaderPosition::parse(text) {
        return Ok(header.position);
    }
    let (lsn, ordinal) = text.split_once(':').unwrap_or((text, "0"));
    let commit_lsn: Lsn = lsn.parse().ok().ok_or(EXPECTED)?;
    // Held in a signed column.
    let ordinal = ordinal.parse::<i64>().ok().and_then(|ordinal| u64::try_from(ordinal).ok());
    Ok(Position { commit_lsn, ordinal: ordinal.ok_or(EXPECTED)? })
}

fn aggregate(text: &str) -> Result<(String, String), String> {
    let (kind, id) = text.split_once(':').ok_or("expected TYPE:ID, such as order:42")?;
    Ok((kind.to_owned(), id.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_replay_begins_at_an_lsn_or_at_one_event() {
        assert_eq!(position("0/1A2B3C8").unwrap().to_string(), "0/1A2B3C8:0");
        assert_eq!(position("0/1A2B3C8:5").unwrap().to_string(), "0/1A2B3C8:5");
        let header = position("68F1A2B3-0000000001A2B3C8-00000005").unwrap();
        assert_eq!(header.to_string(), "0/1A2B3C8:5");
        for text in ["", "5", "0/1:", "0/1:-1", "0/1:x", "0/1:99999999999999999999"] {
            assert!(position(text).is_err(), "{text}");
        }
    }
}
