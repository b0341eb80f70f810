//! `postrider groups`: the consumer groups of event logs: list, create, drop, seek, lag, evict, resume.
//!
//! The functions of the SQL toolkit do the work, in the database of the logs. A command after which a group loses
//! events or is given events again says how many before it asks.

use super::bookmark::the_one;
use super::dialog::{columns, print, print_list, whole_seconds};
use super::error::{CliError, Exit};
use super::{dialog, error};
use crate::config::{self, Config, Env};
use crate::health::{duration_text, grouped};
use crate::pipeline::log_database;
use crate::postgres::control::Control;
use crate::postgres::store::groups::{self, NewGroup, PartitionFacts, SeekEffect, SeekTo};
use crate::postgres::store::log_maintenance::{self, GroupFacts};
use crate::postgres::{Conninfo, SourceError, SqlState, replay};
use crate::timestamp::Timestamp;
use clap::Subcommand;
use serde_json::{Value, json};

/// `application_name` of the session.
const APPLICATION_NAME: &str = "postrider groups";

/// The most groups that are listed.
const GROUPS_MAX: usize = 100_000;

/// Runs the command. `config`: not needed with `--url`.
pub(super) async fn run(
    config: Option<&Config>,
    args: &GroupsArgs,
    env: Env<'_>,
) -> Result<Exit, CliError> {
    let database = database(config, args.url.as_deref(), env)?;
    let control = Control::connect(&database, APPLICATION_NAME).await?;
    match &args.command {
        GroupsCommand::List(list) => self::list(&control, list).await,
        GroupsCommand::Create(create) => self::create(&control, create).await,
        GroupsCommand::Drop(drop) => self::drop(&control, drop).await,
        GroupsCommand::Seek(seek) => self::seek(&control, seek).await,
        GroupsCommand::Lag(lag) => self::lag(&control, lag).await,
        GroupsCommand::Evict(evict) => self::evict(&control, evict).await,
        GroupsCommand::Resume(resume) => self::resume(&control, resume).await,
    }
}

/// The database of `--url`, else that of the pipeline's event logs, else its source.
pub(super) fn database(
    config: Option<&Config>,
    url: Option<&str>,
    env: Env<'_>,
) -> Result<Conninfo, CliError> {
    match (url, config) {
        (Some(url), _) => Ok(Conninfo::parse(url, env)?),
        (None, Some(config)) => {
            let spec = the_one(config)?;
            let logs = log_database(&*spec.common.sink);
            Ok(logs.unwrap_or_else(|| spec.conninfo.clone()))
        }
        (None, None) => Err(CliError::WhichPipeline { known: Vec::new() }),
    }
}

/// `postrider groups`
#[derive(clap::Args, Debug)]
#[command(
    after_help = "A group reads one event log, and its consumers share the log's hash partitions. Its offset is the \
                  number of the last event up to which everything is done. See docs/sql/groups.md."
)]
pub struct GroupsArgs {
    /// The database of the event logs.
    #[arg(
        help = "The database of the event logs, as a URL [default: that of the pipeline's sink, else its source]"
    )]
    #[arg(long, value_name = "URL", global = true)]
    pub url: Option<String>,
    /// The subcommand.
    #[command(subcommand)]
    pub command: GroupsCommand,
}

/// The subcommands of `postrider groups`.
#[derive(Subcommand, Debug)]
pub enum GroupsCommand {
    /// List the groups: how far each is behind, its consumers and leases
    List(ListGroupsArgs),
    /// Create a group, which reads one event log
    Create(CreateGroupArgs),
    /// Delete a group with its offsets
    Drop(DropGroupArgs),
    /// Let a group continue at another event: forwards it skips events, back it is given them again
    Seek(SeekGroupArgs),
    /// Show how far a group is behind, by hash partition; without a name all groups
    Lag(GroupLagArgs),
    /// Stop protecting the events of a group from retention; polls are refused until it is resumed
    Evict(EvictGroupArgs),
    /// Lift an eviction: the group continues without the events that retention has dropped
    Resume(ResumeGroupArgs),
}

/// `postrider groups list`
#[derive(clap::Args, Debug)]
pub struct ListGroupsArgs {
    /// Only groups of this event log
    #[arg(long, value_name = "LOG")]
    pub event_log: Option<String>,
    /// Print JSON, one object per line
    #[arg(long)]
    pub json: bool,
}

/// Where a new group begins.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, clap::ValueEnum)]
pub enum GroupStart {
    /// After the newest event
    #[default]
    Latest,
    /// At the oldest event that the log has
    Earliest,
}

/// `postrider groups create`
#[derive(clap::Args, Debug)]
pub struct CreateGroupArgs {
    /// The group
    #[arg(value_name = "NAME")]
    pub name: String,
    /// The event log that it reads
    #[arg(long, value_name = "LOG")]
    pub event_log: String,
    /// Where it begins
    #[arg(long, value_name = "WHERE", default_value = "latest")]
    pub from: GroupStart,
    /// Events that it may hold back from retention; further behind it is evicted if maintenance.log_evict is set
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub retain_max: Option<u64>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `postrider groups drop`
#[derive(clap::Args, Debug)]
pub struct DropGroupArgs {
    /// The group
    #[arg(value_name = "NAME")]
    pub name: String,
    /// Do not ask for confirmation
    #[arg(short, long)]
    pub yes: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `postrider groups seek`
#[derive(clap::Args, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag")]
#[command(group(clap::ArgGroup::new("where").required(true).args(["to", "to_time", "earliest", "latest"])))]
pub struct SeekGroupArgs {
    /// The group
    #[arg(value_name = "NAME")]
    pub name: String,
    /// Continue after the event with this number; 0: at the first event
    #[arg(long, value_name = "SEQ")]
    pub to: Option<u64>,
    /// Continue at the first event that was appended at this time or later: 2026-03-01T04:00:00Z, or 90m (before now)
    #[arg(long, value_name = "TIME")]
    pub to_time: Option<String>,
    /// Continue at the oldest event that the log has
    #[arg(long)]
    pub earliest: bool,
    /// Continue after the newest event
    #[arg(long)]
    pub latest: bool,
    /// Do not ask for confirmation
    #[arg(short, long)]
    pub yes: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `postrider groups lag`
#[derive(clap::Args, Debug)]
pub struct GroupLagArgs {
    /// The group
    #[arg(value_name = "NAME")]
    pub name: Option<String>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `postrider groups evict`
#[derive(clap::Args, Debug)]
pub struct EvictGroupArgs {
    /// The group
    #[arg(value_name = "NAME")]
    pub name: String,
    /// Do not ask for confirmation
    #[arg(short, long)]
    pub yes: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `postrider groups resume`
#[derive(clap::Args, Debug)]
pub struct ResumeGroupArgs {
    /// The group
    #[arg(value_name = "NAME")]
    pub name: String,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// An error of a statement of this command: without the SQL toolkit none of them can succeed.
fn failed(error: SourceError) -> CliError {
    let state = error.sqlstate();
    let missing =
        state.is_some_and(|state| matches!(state.as_str(), "3F000" | "42P01" | "42883" | "42703"));
    if missing {
        CliError::NoToolkit(error)
    } else if state.is_some_and(|state| state == SqlState::INSUFFICIENT_PRIVILEGE) {
        CliError::NoGroupRight(error)
    } else {
        CliError::Source(error)
    }
}

async fn list(control: &Control, args: &ListGroupsArgs) -> Result<Exit, CliError> {
    let all =
        log_maintenance::groups(control.client(), args.event_log.as_deref(), GROUPS_MAX).await;
    print_groups(&all.map_err(failed)?, args.json)
}

fn print_groups(all: &[GroupFacts], as_json: bool) -> Result<Exit, CliError> {
    print_list(as_json, all.iter().map(summary), || {
        if all.is_empty() {
            return "no groups".to_owned();
        }
        columns(&HEAD, &all.iter().map(cells).collect::<Vec<_>>())
    })
}

/// Prints what a command would do, and asks for confirmation, unless `--yes` was given.
fn agreed(effect: &str, command: &'static str, yes: bool) -> Result<bool, CliError> {
    let question = format!("{command} this group?");
    dialog::agreed(effect, &question, yes, || CliError::GroupNeedsYes { command })
}

async fn create(control: &Control, args: &CreateGroupArgs) -> Result<Exit, CliError> {
    let new = NewGroup {
        name: &args.name,
        log: &args.event_log,
        earliest: args.from == GroupStart::Earliest,
        retain_max: args.retain_max,
    };
    groups::create(control.client(), &new).await.map_err(failed)?;
    let group = find(control, &args.name).await?;
    let text = format!(
        "created group {} of log {}: {} events to read",
        group.name,
        group.log,
        grouped(group.lag)
    );
    print(args.json, &summary(&group), &text)
}

async fn drop(control: &Control, args: &DropGroupArgs) -> Result<Exit, CliError> {
    let group = find(control, &args.name).await?;
    let loss = format!(
        "group {} of log {} has {} events to read; its offsets are deleted with it{}",
        group.name,
        group.log,
        grouped(group.lag),
        leased(&group)
    );
    if !agreed(&loss, "drop", args.yes)? {
        return Ok(Exit::Done);
    }
    groups::drop(control.client(), &args.name).await.map_err(failed)?;
    let value = json!({ "group": group.name, "log": group.log, "dropped": true });
    print(args.json, &value, &format!("dropped group {}", group.name))
}

async fn seek(control: &Control, args: &SeekGroupArgs) -> Result<Exit, CliError> {
    let group = find(control, &args.name).await?;
    let to = match (args.to, &args.to_time) {
        (Some(seq), _) => SeekTo::After(seq),
        (None, Some(text)) => SeekTo::Time(time(control, text).await?),
        (None, None) if args.earliest => SeekTo::Earliest,
        (None, None) => SeekTo::Latest,
    };
    let effect = groups::seek_effect(control.client(), &group, to).await.map_err(failed)?;
    if !agreed(&effect_text(&group, &effect), "seek", args.yes)? {
        return Ok(Exit::Done);
    }
    groups::seek(control.client(), &args.name, effect.offset).await.map_err(failed)?;
    let SeekEffect { offset, skipped, repeated, is_before_first: _ } = effect;
    let value = json!({
        "group": group.name, "log": group.log, "offset": offset, "skipped": skipped, "repeated": repeated,
        "was_evicted": group.evicted_at.is_some(),
    });
    let text = format!("group {} continues after event {}", group.name, grouped(offset));
    print(args.json, &value, &text)
}

/// What a seek does, for the question.
fn effect_text(group: &GroupFacts, effect: &SeekEffect) -> String {
    let SeekEffect { offset, skipped, repeated, is_before_first } = *effect;
    let mut text = format!(
        "group {} of log {} has {} events to read; a seek after event {} skips {} events and repeats {}",
        group.name,
        group.log,
        grouped(group.lag),
        grouped(offset),
        grouped(skipped),
        grouped(repeated)
    );
    if is_before_first {
        text.push_str("; what is before that is gone, dropped by retention");
    }
    if group.evicted_at.is_some() {
        text.push_str("; it ends the eviction");
    }
    text.push_str(&leased(group));
    text
}

/// What becomes of the leases that are out.
fn leased(group: &GroupFacts) -> String {
    match group.leased {
        0 => String::new(),
        leased => format!(
            "; {leased} hash partitions are leased, and the commits of their consumers are refused"
        ),
    }
}

async fn lag(control: &Control, args: &GroupLagArgs) -> Result<Exit, CliError> {
    let Some(name) = &args.name else {
        let all = log_maintenance::groups(control.client(), None, GROUPS_MAX).await;
        return print_groups(&all.map_err(failed)?, args.json);
    };
    let partitions = groups::partitions(control.client(), name).await.map_err(failed)?;
    let group = find(control, name).await?;
    let mut value = summary(&group);
    value["partitions"] = partitions.iter().map(partition_json).collect();
    let rows: Vec<_> = partitions.iter().map(partition_cells).collect();
    let text = format!(
        "{}\ngroup {} of log {}: {} events to read, the oldest since {}",
        columns(&PARTITION_HEAD, &rows),
        group.name,
        group.log,
        grouped(group.lag),
        duration_text(whole_seconds(group.lag_seconds))
    );
    print(args.json, &value, &text)
}

async fn evict(control: &Control, args: &EvictGroupArgs) -> Result<Exit, CliError> {
    let group = find(control, &args.name).await?;
    let loss = format!(
        "group {} of log {} has {} events to read; after an eviction retention may drop them, and its consumers are \
         refused until postrider groups resume",
        group.name,
        group.log,
        grouped(group.lag)
    );
    if group.evicted_at.is_none() && !agreed(&loss, "evict", args.yes)? {
        return Ok(Exit::Done);
    }
    let evicted = groups::evict(control.client(), &args.name).await.map_err(failed)?;
    let text = if evicted {
        format!("evicted group {}", group.name)
    } else {
        format!("group {} was evicted before", group.name)
    };
    let value = json!({ "group": group.name, "log": group.log, "evicted": evicted });
    print(args.json, &value, &text)
}

async fn resume(control: &Control, args: &ResumeGroupArgs) -> Result<Exit, CliError> {
    let group = find(control, &args.name).await?;
    let lost = groups::resume(control.client(), &args.name).await.map_err(failed)?;
    let text = format!(
        "group {} of log {} continues; {} events that it had not done are gone, dropped by retention",
        group.name,
        group.log,
        grouped(lost)
    );
    let value = json!({
        "group": group.name, "log": group.log, "lost": lost, "was_evicted": group.evicted_at.is_some(),
    });
    print(args.json, &value, &text)
}

/// The group of this name.
async fn find(control: &Control, name: &str) -> Result<GroupFacts, CliError> {
    let all = log_maintenance::groups(control.client(), None, GROUPS_MAX).await.map_err(failed)?;
    let known = all.iter().map(|group| group.name.clone()).collect();
    let found = all.into_iter().find(|group| group.name == name);
    found.ok_or_else(|| CliError::NoGroup { name: name.to_owned(), known })
}

/// A point in time, or how long ago.
async fn time(control: &Control, text: &str) -> Result<Timestamp, CliError> {
    let wrong = || CliError::NotATime { flag: "--to-time", text: text.to_owned() };
    let client = control.client();
    if let Ok(ago) = config::duration(text) {
        let now = replay::time(client, "now", None, false).await?.ok_or_else(wrong)?;
        let ago = i64::try_from(ago.as_micros()).unwrap_or(i64::MAX);
        return Ok(Timestamp { unix_micros: now.unix_micros.saturating_sub(ago) });
    }
    replay::time(client, text, None, false).await?.ok_or_else(wrong)
}

const HEAD: [&str; 9] =
    ["GROUP", "LOG", "LAG", "OLDEST", "CONSUMERS", "LEASED", "DELIVERIES", "RETAIN MAX", "STATE"];

fn cells(group: &GroupFacts) -> [String; HEAD.len()] {
    let consumers = match group.silent {
        0 => group.alive.to_string(),
        silent => format!("{} + {silent} silent", group.alive),
    };
    [
        error::printable(&group.name),
        error::printable(&group.log),
        grouped(group.lag),
        duration_text(whole_seconds(group.lag_seconds)),
        consumers,
        format!("{} of {}", group.leased, group.partitions),
        group.max_deliveries.to_string(),
        group.retain_max.map_or_else(|| "-".to_owned(), grouped),
        group.evicted_at.as_ref().map_or("-".to_owned(), |at| format!("evicted {at}")),
    ]
}

const PARTITION_HEAD: [&str; 7] =
    ["PART", "OFFSET", "LAST EVENT", "LAG", "CONSUMER", "STATE", "DELIVERIES"];

fn partition_cells(partition: &PartitionFacts) -> [String; PARTITION_HEAD.len()] {
    let state = match (partition.leased, partition.healthy) {
        (true, Some(false)) => "leased, silent",
        (true, Some(true) | None) => "leased",
        (false, _) => "-",
    };
    [
        partition.part.to_string(),
        grouped(partition.last_offset),
        grouped(partition.head),
        grouped(partition.lag),
        partition.consumer.as_deref().map_or("-".to_owned(), error::printable),
        state.to_owned(),
        partition.deliveries.to_string(),
    ]
}

fn summary(group: &GroupFacts) -> Value {
    json!({
        "group": group.name,
        "log": group.log,
        "lag_events": group.lag,
        "lag_seconds": group.lag_seconds,
        "done_to": group.done_to,
        "consumers_alive": group.alive,
        "consumers_silent": group.silent,
        "leased_partitions": group.leased,
        "partitions": group.partitions,
        "deliveries_max": group.max_deliveries,
        "retain_max": group.retain_max,
        "evicted_at": group.evicted_at,
    })
}

fn partition_json(partition: &PartitionFacts) -> Value {
    json!({
        "part": partition.part,
        "offset": partition.last_offset,
        "head": partition.head,
        "lag_events": partition.lag,
        "consumer": partition.consumer,
        "leased": partition.leased,
        "healthy": partition.healthy,
        "deliveries": partition.deliveries,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::expect;

    #[test]
    fn a_list_shows_what_each_group_needs() {
        let billing = GroupFacts {
            name: "billing".to_owned(),
            log: "orders".to_owned(),
            lag: 1_234_567,
            lag_seconds: 754.9,
            done_to: 17,
            alive: 3,
            silent: 1,
            leased: 4,
            partitions: 16,
            max_deliveries: 2,
            retain_max: Some(2_000_000),
            evicted_at: None,
        };
        let search = GroupFacts {
            name: "search\n".to_owned(),
            lag: 0,
            lag_seconds: 0.0,
            silent: 0,
            retain_max: None,
            evicted_at: Some("at noon".to_owned()),
            ..billing.clone()
        };
        expect![[r#"
            GROUP    LOG     LAG        OLDEST  CONSUMERS     LEASED   DELIVERIES  RETAIN MAX  STATE
            billing  orders  1,234,567  12 min  3 + 1 silent  4 of 16  2           2,000,000   -
            search�  orders  0          0 s     3             4 of 16  2           -           evicted at noon"#]]
        .assert_eq(&columns(&HEAD, &[cells(&billing), cells(&search)]));
        let effect = SeekEffect { offset: 99, skipped: 82, repeated: 1_000, is_before_first: true };
        let text = effect_text(&billing, &effect);
        for words in [
            "group billing of log orders has 1,234,567 events to read",
            "; a seek after event 99 skips 82 events and repeats 1,000",
            "; what is before that is gone, dropped by retention",
            "; 4 hash partitions are leased, and the commits of their consumers are refused",
        ] {
            assert!(text.contains(words), "{text}");
        }
    }
}
