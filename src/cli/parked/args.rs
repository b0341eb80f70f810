//! What can be typed behind `postrider parked`.

use crate::config;
use crate::event::{HeaderPosition, Position};
use crate::parked::State;
use clap::Subcommand;
use std::path::PathBuf;
use std::time::Duration;

/// `postrider parked`
#[derive(clap::Args, Debug)]
#[command(
    after_help = "An ID is a position such as 0/1A2B3C8:5, or as header position has it, or an event's id. Requests \
                  are written into the parked table; the running relay carries them out at once, else the next start \
                  does."
)]
pub struct ParkedArgs {
    /// What to do.
    #[command(subcommand)]
    pub command: ParkedCommand,
}

/// The words of `postrider parked`.
#[derive(Subcommand, Debug)]
pub enum ParkedCommand {
    /// The events that are set aside, in order
    List(ListArgs),
    /// One event: why it is parked, its headers and its key
    Show(ShowArgs),
    /// Try it again now, with a new count of attempts
    Retry(RetryArgs),
    /// Give it up for good: its aggregate goes on without it
    Skip(SkipArgs),
    /// Try it again now with another payload
    Replace(ReplaceArgs),
}

/// Which events are meant.
#[derive(clap::Args, Debug, Default, Clone)]
pub struct FilterArgs {
    /// Events of this aggregate
    #[arg(long, value_name = "TYPE:ID", value_parser = aggregate)]
    pub aggregate: Option<(String, String)>,
    /// Events with this error, as list shows it: too_large
    #[arg(long, value_name = "CODE")]
    pub error: Option<String>,
    /// Events parked for longer than this: 10m
    #[arg(long, value_name = "DURATION", value_parser = config::duration)]
    pub older_than: Option<Duration>,
    /// Events in this state: waiting, behind, due, dead; may be given more than once
    #[arg(long = "state", value_name = "STATE", value_parser = state)]
    pub states: Vec<State>,
}

impl FilterArgs {
    /// Whether it narrows anything.
    pub(super) fn is_empty(&self) -> bool {
        let Self { aggregate, error, older_than, states } = self;
        aggregate.is_none() && error.is_none() && older_than.is_none() && states.is_empty()
    }
}

/// `postrider parked list`
#[derive(clap::Args, Debug)]
pub struct ListArgs {
    /// Which.
    #[command(flatten)]
    pub filter: FilterArgs,
    /// Those that were published or skipped as well
    #[arg(long)]
    pub all: bool,
    /// The most that are listed
    #[arg(long, value_name = "N", default_value = "1000", value_parser = clap::value_parser!(u32).range(1..))]
    pub limit: u32,
    /// JSON, one object a line
    #[arg(long)]
    pub json: bool,
}

/// `postrider parked show`
#[derive(clap::Args, Debug)]
pub struct ShowArgs {
    /// A position such as 0/1A2B3C8:5, or an event's id
    #[arg(value_name = "ID", value_parser = id)]
    pub id: Id,
    /// The payload too
    #[arg(long)]
    pub payload: bool,
    /// JSON; bytes that are not UTF-8 are in base64
    #[arg(long)]
    pub json: bool,
}

/// What `retry`, `skip` and `replace` share.
#[derive(clap::Args, Debug, Default, Clone)]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag")]
pub struct ActArgs {
    /// Why, to be kept in the row
    #[arg(long, value_name = "TEXT")]
    pub reason: Option<String>,
    /// Show which events would be affected; change nothing
    #[arg(long)]
    pub dry_run: bool,
    /// Do not ask for confirmation
    #[arg(long)]
    pub yes: bool,
    /// Don't wait for the relay to say what became of it
    #[arg(long)]
    pub no_wait: bool,
    /// JSON; the ids go to standard error first
    #[arg(long)]
    pub json: bool,
}

/// Events by id or by filter.
#[derive(clap::Args, Debug, Default, Clone)]
pub struct SelectArgs {
    /// Positions such as 0/1A2B3C8:5, or events' ids
    #[arg(value_name = "ID", value_parser = id)]
    pub ids: Vec<Id>,
    /// Which; without --state those that were refused: waiting and dead
    #[command(flatten)]
    pub filter: FilterArgs,
    /// Every event that was refused: waiting and dead
    #[arg(long, conflicts_with = "ids")]
    pub all: bool,
}

/// `postrider parked retry`
#[derive(clap::Args, Debug)]
pub struct RetryArgs {
    /// Which.
    #[command(flatten)]
    pub select: SelectArgs,
    /// How.
    #[command(flatten)]
    pub act: ActArgs,
}

/// `postrider parked skip`
#[derive(clap::Args, Debug)]
pub struct SkipArgs {
    /// Which.
    #[command(flatten)]
    pub select: SelectArgs,
    /// How.
    #[command(flatten)]
    pub act: ActArgs,
}

/// `postrider parked replace`
#[derive(clap::Args, Debug)]
pub struct ReplaceArgs {
    /// A position such as 0/1A2B3C8:5, or an event's id
    #[arg(value_name = "ID", value_parser = id)]
    pub id: Id,
    /// The new payload, byte for byte; "-" is standard input
    #[arg(long, value_name = "FILE")]
    pub payload_file: PathBuf,
    /// Publish it although the payload column is JSON and this is not
    #[arg(long)]
    pub not_json: bool,
    /// How.
    #[command(flatten)]
    pub act: ActArgs,
}

/// How a person names an event.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Id {
    /// By its position.
    Position(Position),
    /// By its own id.
    Event(String),
}

impl std::fmt::Display for Id {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Position(position) => position.fmt(f),
            Self::Event(id) => f.write_str(id),
        }
    }
}

/// What has the form of a position is one, as we print it or as header `position` has it; everything else is an event's
/// id.
#[expect(clippy::unnecessary_wraps, reason = "clap's parsers may fail")]
fn id(text: &str) -> Result<Id, String> {
    if let Some(header) = HeaderPosition::parse(text) {
        return Ok(Id::Position(header.position));
    }
    let position = text.rsplit_once(':').and_then(|(commit_lsn, ordinal)| {
        let commit_lsn = commit_lsn.parse().ok()?;
        // Held in a signed column.
        let ordinal =
            ordinal.parse::<i64>().ok().and_then(|ordinal| u64::try_from(ordinal).ok())?;
        Some(Id::Position(Position { commit_lsn, ordinal }))
    });
    Ok(position.unwrap_or_else(|| Id::Event(text.to_owned())))
}

fn aggregate(text: &str) -> Result<(String, String), String> {
    let (kind, id) = text.split_once(':').ok_or("expected TYPE:ID, such as order:42")?;
    Ok((kind.to_owned(), id.to_owned()))
}

fn state(text: &str) -> Result<State, String> {
    State::parse(text).ok_or_else(|| {
        let names: Vec<&str> = State::ALL.iter().map(|state| state.name()).collect();
        format!("expected one of {}", names.join(", "))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parked::Wish;

    #[test]
    fn a_position_is_told_from_an_id_by_its_form() {
        let parsed = id("16/B374D848:12").unwrap();
        assert!(matches!(parsed, Id::Position(Position { ordinal: 12, .. })));
        assert_eq!(parsed.to_string(), "16/B374D848:12");
        assert_eq!(id("68F1A2B3-00000016B374D848-0000000C"), Ok(parsed));
        for text in
            ["42", "order:7", "0/1", "0/1:", "0/1:-1", "0/1:99999999999999999999", "7f0c-4111"]
        {
            assert_eq!(id(text), Ok(Id::Event(text.to_owned())));
        }
        assert_eq!(aggregate("order:a:b"), Ok(("order".to_owned(), "a:b".to_owned())));
        assert!(aggregate("order").is_err());
        assert!(state("waitng").unwrap_err().contains("waiting"));
    }

    #[test]
    fn any_text_is_a_parked_row_or_a_refusal() {
        let memory = fuzzing::Memory { base: 4 << 10, each: 16 };
        fuzzing::hammer(&fuzzing::lines("parked"), memory, |input| {
            let text = String::from_utf8_lossy(input);
            match id(&text).unwrap() {
                // As it is printed it is read again.
                Id::Position(position) => {
                    assert!(
                        matches!(id(&position.to_string()), Ok(Id::Position(p)) if p == position)
                    );
                }
                Id::Event(event) => assert_eq!(event, text),
            }
            if let Ok((kind, of)) = aggregate(&text) {
                assert_eq!(format!("{kind}:{of}"), text);
            }
            assert!(state(&text).is_ok_and(|state| state.name() == text) || state(&text).is_err());
            assert!(Wish::parse(&text).is_none_or(|wish| wish.name() == text));
        });
    }
}
