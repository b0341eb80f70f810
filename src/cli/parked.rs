//! `postrider parked`: the events that were set aside, and what a person says about them.
//!
//! Reads the parked table and writes requests into it; what becomes of them is the relay's to decide. Payloads are
//! printed by `show --payload` and by nothing else.

use super::Output;
use super::error::{CliError, Exit};
use crate::config::{self, Config, Env};
use crate::event::{HeaderPosition, Position};
use crate::outbox::Role;
use crate::parked::{Request, State};
use crate::pipeline::PipelineSpec;
use crate::postgres::catalog;
use crate::postgres::control::Control;
use crate::postgres::ownership::Acting;
use crate::postgres::schema::{self, SchemaState};
use crate::postgres::store::requests::{self, Action, Filter, Listed, NewRequest, Padded};
use crate::record::OwnedRecord;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use clap::Subcommand;
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::io::{IsTerminal as _, Read as _};
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// What the server knows the session by.
const APPLICATION_NAME: &str = "postrider parked";

/// The most events that one command acts on.
const EVENTS_MAX: i64 = 1_000_000;

pub(super) async fn run(
    config: &Config,
    args: &ParkedArgs,
    env: Env<'_>,
) -> Result<Exit, CliError> {
    match &args.command {
        ParkedCommand::List(list) => self::list(config, list).await,
        ParkedCommand::Show(show) => self::show(config, show).await,
        ParkedCommand::Retry(retry) => {
            let desk = Desk::open(config).await?;
            on_selected(&desk, Request::Retry, &retry.select, &retry.act, env).await
        }
        ParkedCommand::Skip(skip) => {
            let desk = Desk::open(config).await?;
            on_selected(&desk, Request::Skip, &skip.select, &skip.act, env).await
        }
        ParkedCommand::Replace(replace) => {
            let payload = payload(&replace.payload_file)?;
            let desk = Desk::open(config).await?;
            replace_payload(&desk, replace, &payload, env).await
        }
    }
}

/// A session on the database of one pipeline, in which the parked table stands.
struct Desk<'a> {
    spec: &'a PipelineSpec,
    control: Control,
    padded: Padded,
}

impl<'a> Desk<'a> {
    /// Of the one pipeline that there is, or that `-p` names.
    async fn open(config: &'a Config) -> Result<Self, CliError> {
        match config.specs.as_slice() {
            [spec] => Self::of(spec).await,
            specs => {
                let known = specs.iter().map(|spec| spec.name().to_owned()).collect();
                Err(CliError::WhichPipeline { known })
            }
        }
    }

    async fn of(spec: &'a PipelineSpec) -> Result<Self, CliError> {
        let control = Control::connect(&spec.conninfo, APPLICATION_NAME).await?;
        if schema::read(control.client(), Acting::Relay).await?
            != SchemaState::Version(schema::VERSION)
        {
            return Err(CliError::NoParkedTable { pipeline: spec.name().to_owned() });
        }
        let padded = match &spec.names.table {
            Some(table) => {
                let columns = [Role::Id, Role::AggregateType, Role::AggregateId];
                let columns = columns.map(|role| spec.outbox.column(role));
                Padded::read(control.client(), table, columns).await?
            }
            None => Padded::default(),
        };
        Ok(Self { spec, control, padded })
    }

    async fn list(&self, filter: &Filter, limit: i64) -> Result<Vec<Listed>, CliError> {
        let client = self.control.client();
        Ok(requests::list(client, self.spec.name(), filter, self.padded, limit).await?)
    }

    /// Whether `id` means this event.
    fn names(&self, id: &Id, event: &Listed) -> bool {
        let bare = |id| Padded::bare(id, self.padded.id);
        match id {
            Id::Position(position) => *position == event.position,
            Id::Event(id) => event.event_id.as_deref().map(bare) == Some(bare(id)),
        }
    }

    async fn by_position(&self, positions: &[Position]) -> Result<Vec<Listed>, CliError> {
        if positions.is_empty() {
            return Ok(Vec::new());
        }
        let filter = Filter { positions: positions.to_vec(), ..Filter::default() };
        self.list(&filter, EVENTS_MAX).await
    }
}

/// The filter of these ids and flags.
fn filter(ids: &[Id], flags: &FilterArgs, states: &[State]) -> Filter {
    let mut filter = Filter {
        aggregate: flags.aggregate.clone(),
        error_code: flags.error.clone(),
        older_than: flags.older_than,
        states: if flags.states.is_empty() { states } else { &flags.states }.to_vec(),
        ..Filter::default()
    };
    for id in ids {
        match id {
            Id::Position(position) => filter.positions.push(*position),
            Id::Event(id) => filter.event_ids.push(id.clone()),
        }
    }
    filter
}

async fn list(config: &Config, args: &ListArgs) -> Result<Exit, CliError> {
    let open: Vec<State> = State::ALL.iter().copied().filter(|state| !state.resolved()).collect();
    let filter = filter(&[], &args.filter, if args.all { State::ALL } else { &open });
    let mut out = Output::stdout();
    for spec in &config.specs {
        let desk = Desk::of(spec).await?;
        let events = desk.list(&filter, i64::from(args.limit) + 1).await?;
        let limit = usize::try_from(args.limit).unwrap_or(usize::MAX);
        let (events, more) = events.split_at(events.len().min(limit));
        let text = if args.json {
            lines(spec.name(), events)
        } else {
            table(spec.name(), events, !more.is_empty())
        };
        if !text.is_empty() {
            out.line(&text).map_err(CliError::Output)?;
        }
    }
    Ok(Exit::Done)
}

async fn show(config: &Config, args: &ShowArgs) -> Result<Exit, CliError> {
    let desk = Desk::open(config).await?;
    let brokers = config.pipelines.first().map_or("", |pipeline| pipeline.sink.brokers.as_str());
    let ids = std::slice::from_ref(&args.id);
    let events = desk.list(&filter(ids, &FilterArgs::default(), &[]), EVENTS_MAX).await?;
    let mut out = Output::stdout();
    for event in &events {
        let record =
            requests::record(desk.control.client(), desk.spec.name(), event.position).await?;
        let record = record.unwrap_or_default();
        let text = if args.json {
            format!("{:#}", whole_json(desk.spec.name(), event, &record, args.payload))
        } else {
            whole(event, &record, args.payload, brokers)
        };
        out.line(&text).map_err(CliError::Output)?;
    }
    if events.is_empty() {
        return Err(CliError::NotParked { ids: vec![args.id.to_string()] });
    }
    Ok(Exit::Done)
}

// What can be typed behind `postrider parked`.

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
    #[arg(long, value_name = "TYPE:ID", value_parser = parse_aggregate)]
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
    fn is_empty(&self) -> bool {
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

fn parse_aggregate(text: &str) -> Result<(String, String), String> {
    let (kind, id) = text.split_once(':').ok_or("expected TYPE:ID, such as order:42")?;
    Ok((kind.to_owned(), id.to_owned()))
}

fn state(text: &str) -> Result<State, String> {
    State::parse(text).ok_or_else(|| {
        let names: Vec<&str> = State::ALL.iter().map(|state| state.name()).collect();
        format!("expected one of {}", names.join(", "))
    })
}

// `retry`, `skip` and `replace`: which events, the request, and what became of it.

/// How long the relay is waited for.
const WAIT_MAX: Duration = Duration::from_secs(5);

/// Pause between two looks at the rows.
const LOOK_INTERVAL: Duration = Duration::from_millis(200);

/// Bytes a new payload may have: as much as the relay takes from the log.
const PAYLOAD_BYTES_MAX: u64 = 64 << 20;

/// The new payload.
fn payload(file: &Path) -> Result<Vec<u8>, CliError> {
    let failed = |source| CliError::PayloadFile { file: file.display().to_string(), source };
    let mut payload = Vec::new();
    let read = if file.as_os_str() == "-" {
        std::io::stdin().lock().take(PAYLOAD_BYTES_MAX + 1).read_to_end(&mut payload)
    } else {
        std::fs::File::open(file)
            .and_then(|file| file.take(PAYLOAD_BYTES_MAX + 1).read_to_end(&mut payload))
    };
    let bytes = read.map_err(failed)?;
    if u64::try_from(bytes).is_ok_and(|bytes| bytes > PAYLOAD_BYTES_MAX) {
        return Err(failed(std::io::ErrorKind::FileTooLarge.into()));
    }
    Ok(payload)
}

async fn on_selected(
    desk: &Desk<'_>,
    request: Request,
    select: &SelectArgs,
    act: &ActArgs,
    env: Env<'_>,
) -> Result<Exit, CliError> {
    if select.ids.is_empty() && select.filter.is_empty() && !select.all {
        return Err(CliError::NothingSelected);
    }
    // By name any event may be meant; by filter those that were refused, unless states are named.
    let refused: &[State] =
        if select.ids.is_empty() { &[State::Waiting, State::Dead] } else { &[] };
    let events = desk.list(&filter(&select.ids, &select.filter, refused), EVENTS_MAX).await?;
    let job = Job { request, value: None, act };
    job.run(desk, events, &select.ids, env).await
}

async fn replace_payload(
    desk: &Desk<'_>,
    args: &ReplaceArgs,
    payload: &[u8],
    env: Env<'_>,
) -> Result<Exit, CliError> {
    let ids = std::slice::from_ref(&args.id);
    let events = desk.list(&filter(ids, &FilterArgs::default(), &[]), EVENTS_MAX).await?;
    if events.len() > 1 {
        let ids = events.iter().map(|event| event.position.to_string()).collect();
        return Err(CliError::Ambiguous { id: args.id.to_string(), ids });
    }
    if !args.not_json && serde_json::from_slice::<serde::de::IgnoredAny>(payload).is_err() {
        expects_no_json(desk).await?;
    }
    let job = Job { request: Request::Replace, value: Some(payload), act: &args.act };
    job.run(desk, events, ids, env).await
}

/// An error where the pipeline's payloads are JSON: consumers would be the first to notice that this one is not.
async fn expects_no_json(desk: &Desk<'_>) -> Result<(), CliError> {
    let outbox = &desk.spec.outbox;
    let Some((table, column)) = desk.spec.names.table.as_ref().zip(outbox.column(Role::Payload))
    else {
        return Ok(());
    };
    match requests::json_type(desk.control.client(), table, column).await? {
        Some(type_name) => Err(CliError::NotJson {
            column: column.to_owned(),
            table: table.to_string(),
            type_name,
        }),
        None => Ok(()),
    }
}

/// An event's id that was given twice may mean an event that its user does not know of.
fn one_each(desk: &Desk<'_>, ids: &[Id], events: &[Listed]) -> Result<(), CliError> {
    for id in ids.iter().filter(|id| matches!(id, Id::Event(_))) {
        let named: Vec<&Listed> = events.iter().filter(|event| desk.names(id, event)).collect();
        if named.len() > 1 {
            let ids = named.iter().map(|event| event.position.to_string()).collect();
            return Err(CliError::Ambiguous { id: id.to_string(), ids });
        }
    }
    Ok(())
}

/// One request for some events.
struct Job<'a> {
    request: Request,
    value: Option<&'a [u8]>,
    act: &'a ActArgs,
}

impl Job<'_> {
    async fn run(
        &self,
        desk: &Desk<'_>,
        events: Vec<Listed>,
        ids: &[Id],
        env: Env<'_>,
    ) -> Result<Exit, CliError> {
        let missing: Vec<String> = ids
            .iter()
            .filter(|id| !events.iter().any(|event| desk.names(id, event)))
            .map(Id::to_string)
            .collect();
        let (events, refused): (Vec<_>, Vec<_>) =
            events.into_iter().partition(|event| self.refuses(event).is_none());
        one_each(desk, ids, &events)?;
        self.announce(desk, &events)?;
        let mut told: Vec<(Listed, String)> = Vec::new();
        if self.act.dry_run {
            let would = format!("would {}", self.request.name());
            told.extend(events.into_iter().map(|event| (event, would.clone())));
        } else if !events.is_empty() && self.agreed(&events)? {
            told = self.carry_out(desk, &events, env).await?;
        } else {
            told.extend(events.into_iter().map(|event| (event, "left alone".to_owned())));
        }
        // What a filter takes in and can't be helped is told; what was named is a mistake.
        let well =
            (refused.is_empty() || ids.is_empty()) && told.iter().all(|(_, word)| fine(word));
        for event in refused {
            let why = self.refuses(&event).unwrap_or_default();
            told.push((event, why));
        }
        told.sort_by_key(|(event, _)| event.position);
        let mut out = Output::stdout();
        if self.act.json {
            let value = outcome(desk.spec.name(), self.request, self.act.dry_run, &told, &missing);
            out.line(&format!("{value:#}")).map_err(CliError::Output)?;
        } else if told.is_empty() && missing.is_empty() {
            let text = format!("{}: no parked event matches", desk.spec.name());
            out.line(&text).map_err(CliError::Output)?;
        } else if !told.is_empty() {
            let lines: Vec<String> =
                told.iter().map(|(event, word)| format!("{}  {word}", event.position)).collect();
            out.line(&lines.join("\n")).map_err(CliError::Output)?;
        }
        if !missing.is_empty() {
            return Err(CliError::NotParked { ids: missing });
        }
        Ok(if well { Exit::Done } else { Exit::NotWell })
    }

    /// Why it makes no sense for this event.
    fn refuses(&self, event: &Listed) -> Option<String> {
        if event.state.resolved() {
            return Some(format!("nothing to do: it is {} already", event.state.name()));
        }
        if let Some(asked) = &event.requested {
            let by = asked.by.as_deref().unwrap_or("somebody");
            return Some(format!("nothing done: {} is asked for already, by {by}", asked.what));
        }
        // A topic can't be asked for again: it was made from the row, which can't be changed.
        let no_topic = event.topic.is_empty() && self.request != Request::Skip;
        no_topic.then(|| "nothing done: it has no topic, so it can only be skipped".to_owned())
    }

    /// The ids, before anything happens.
    fn announce(&self, desk: &Desk<'_>, events: &[Listed]) -> Result<(), CliError> {
        if events.is_empty() {
            return Ok(());
        }
        let text = table(desk.spec.name(), events, false);
        if self.act.json {
            Output::stderr().say(&text);
            return Ok(());
        }
        Output::stdout().line(&text).map_err(CliError::Output)
    }

    /// Asks where something would be gone or more than one event is meant. Without a terminal there is nobody to ask:
    /// what loses or changes an event is not done without `--yes`.
    fn agreed(&self, events: &[Listed]) -> Result<bool, CliError> {
        let asks = std::io::stdin().is_terminal();
        let harmless = self.request == Request::Retry && (events.len() == 1 || !asks);
        if self.act.yes || harmless {
            return Ok(true);
        }
        if !asks {
            return Err(CliError::NeedsYes { command: self.request.name() });
        }
        let s = if events.len() == 1 { "" } else { "s" };
        let question = format!("{} {} event{s}? [y/N]", self.request.name(), events.len());
        Output::stderr().say(&question);
        let mut answer = String::new();
        std::io::stdin().read_line(&mut answer).map_err(CliError::Input)?;
        Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
    }

    async fn carry_out(
        &self,
        desk: &Desk<'_>,
        events: &[Listed],
        env: Env<'_>,
    ) -> Result<Vec<(Listed, String)>, CliError> {
        let by = operator(env);
        let reason = self.act.reason.as_deref();
        let request = NewRequest { request: self.request, by: &by, reason, value: self.value };
        let positions: Vec<Position> = events.iter().map(|event| event.position).collect();
        let (client, name) = (desk.control.client(), desk.spec.name());
        let asked = requests::ask(client, name, &positions, &request).await?;
        let relay = relay_runs(desk).await?;
        let waits = !self.act.no_wait && relay != Some(false);
        let deadline = Instant::now() + if waits { WAIT_MAX } else { Duration::ZERO };
        loop {
            let now = desk.by_position(&positions).await?;
            let open = now.iter().any(|event| !self.settled(event));
            if open && Instant::now() < deadline {
                sleep(LOOK_INTERVAL).await;
                continue;
            }
            let mut told = Vec::with_capacity(now.len());
            for event in now {
                let word = if !asked.contains(&event.position) {
                    self.lost(&event)
                } else if self.settled(&event) || event.requested.is_some() {
                    self.became(&event, relay)
                } else {
                    queued(blocker(desk, &event).await?.as_ref())
                };
                told.push((event, word));
            }
            return Ok(told);
        }
    }

    /// Whether nothing more is to be waited for.
    fn settled(&self, event: &Listed) -> bool {
        let tried =
            self.request == Request::Skip || event.attempts > 0 || event.state == State::Dead;
        event.state.resolved() || event.requested.is_none() && (event.declined || tried)
    }

    /// Somebody else was first.
    fn lost(&self, event: &Listed) -> String {
        let why = self.refuses(event);
        why.unwrap_or_else(|| "nothing done: somebody else was first".to_owned())
    }

    /// What became of the request.
    fn became(&self, event: &Listed, relay: Option<bool>) -> String {
        match (event.state, &event.requested) {
            (State::Done, _) => "published".to_owned(),
            (State::Skipped, _) => "skipped".to_owned(),
            (_, Some(_)) if relay == Some(false) => {
                format!("{}: asked for; no relay runs, its next start does it", self.request.name())
            }
            (_, Some(_)) => format!("{}: asked for, not done yet", self.request.name()),
            (_, None) if event.declined => {
                "declined by the relay: it can't be done where the event stands".to_owned()
            }
            (state, None) if event.attempts > 0 || state == State::Dead => {
                let why = event.error.as_deref().unwrap_or("no reason is known");
                format!("refused again, {}: {why}", state.name())
            }
            (_, None) => queued(None),
        }
    }
}

/// The earliest unresolved event of the same aggregate that `event` waits behind.
async fn blocker(desk: &Desk<'_>, event: &Listed) -> Result<Option<Listed>, CliError> {
    if event.aggregate.is_none() {
        return Ok(None);
    }
    let mut wanted = filter(&[], &FilterArgs::default(), &[State::Waiting, State::Dead]);
    wanted.aggregate.clone_from(&event.aggregate);
    let first = desk.list(&wanted, 1).await?.pop();
    Ok(first.filter(|first| first.position < event.position))
}

/// The event is to be published, and nothing has refused it since the request.
fn queued(blocker: Option<&Listed>) -> String {
    blocker.map_or_else(
        || "queued".to_owned(),
        |first| {
            let (state, position) = (first.state.name(), first.position);
            format!("queued; blocked by {state} event {position} of the same aggregate")
        },
    )
}

/// Whether a word of [`Job::became`] is no trouble.
fn fine(word: &str) -> bool {
    !["nothing done", "declined", "refused"].iter().any(|trouble| word.starts_with(trouble))
}

/// Whether something reads the pipeline's slot; `None` where that can't be told by the slot.
async fn relay_runs(desk: &Desk<'_>) -> Result<Option<bool>, CliError> {
    let client = desk.control.client();
    let version = catalog::read_server(client).await?.version;
    let slot = catalog::read_slot(client, version, &desk.spec.names.slot).await?;
    Ok(slot.map(|slot| slot.active_pid.is_some()))
}

/// The user of this host, as the environment and the system have it.
fn operator(env: Env<'_>) -> String {
    let name = env("USER").or_else(|| env("LOGNAME")).filter(|name| !name.is_empty());
    #[cfg(unix)]
    let uid = format!("uid {}", rustix::process::getuid().as_raw());
    #[cfg(not(unix))]
    let uid = String::from("no uid");
    let name = name.map(|name| format!("{name}, ")).unwrap_or_default();
    format!("{name}{uid}").replace('\0', "")
}

// Parked events as text and as JSON.

const HEAD: [&str; 8] =
    ["POSITION", "STATE", "EVENT", "TYPE", "AGGREGATE", "TRIES", "SINCE", "ERROR"];

/// One line for each event.
fn table(pipeline: &str, events: &[Listed], more: bool) -> String {
    if events.is_empty() {
        return format!("{pipeline}: nothing is parked");
    }
    let rows: Vec<[String; HEAD.len()]> =
        std::iter::once(HEAD.map(str::to_owned)).chain(events.iter().map(cells)).collect();
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max();
    let widths: Vec<usize> = (0..HEAD.len()).map(|column| width(column).unwrap_or(0)).collect();
    let line = |row: &[String; HEAD.len()]| {
        let mut text = String::new();
        for (cell, width) in row.iter().zip(&widths) {
            let pad = width.saturating_sub(cell.chars().count()) + 2;
            // Writing to a String does not fail.
            write!(text, "{cell}{}", " ".repeat(pad)).unwrap_or_default();
        }
        text.truncate(text.trim_end().len());
        text
    };
    let mut lines: Vec<String> = rows.iter().map(line).collect();
    if more {
        lines.push("and more: --limit shows them".to_owned());
    }
    lines.join("\n")
}

fn cells(event: &Listed) -> [String; HEAD.len()] {
    let text = |text: &Option<String>| text.as_deref().map_or("-".to_owned(), printable);
    let asked = event.requested.as_ref().map(|asked| format!(" ({} asked)", asked.what));
    [
        event.position.to_string(),
        format!("{}{}", event.state.name(), asked.unwrap_or_default()),
        text(&event.event_id),
        text(&event.event_type),
        event.aggregate.as_ref().map_or("-".to_owned(), aggregate),
        event.attempts.to_string(),
        text(&event.parked_at),
        text(&event.error_code),
    ]
}

fn aggregate((kind, id): &(String, String)) -> String {
    printable(&format!("{kind}:{id}"))
}

/// Without what a terminal would obey.
fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}

/// Bytes by which a broker counts a record larger than its key, value and headers are: its batch's head and lengths.
const RECORD_OVERHEAD_BYTES: usize = 1024;

/// The command that lets the topic take the event, where there is one.
fn fix(event: &Listed, record: &OwnedRecord, brokers: &str) -> Option<String> {
    let (topic, position) = (&event.topic, event.position);
    if event.state.resolved() || topic.is_empty() {
        return None;
    }
    match event.error_code.as_deref()? {
        "too_large" => Some(format!(
            "kafka-configs.sh --bootstrap-server {brokers} --alter --entity-type topics --entity-name {topic} \
             --add-config max.message.bytes={}; where payload.size_max sets the limit, raise that; then postrider \
             parked retry {position}",
            record.size_bytes() + RECORD_OVERHEAD_BYTES
        )),
        "topic_missing" => Some(format!(
            "kafka-topics.sh --bootstrap-server {brokers} --create --topic {topic} --partitions 8; the event is then \
             published automatically"
        )),
        _ => None,
    }
}

/// Everything that is known of one event. `brokers`: where the topics are.
fn whole(event: &Listed, record: &OwnedRecord, payload: bool, brokers: &str) -> String {
    let mut text = String::new();
    let mut line = |name: &str, value: &str| {
        writeln!(text, "{name:<12} {}", printable(value)).unwrap_or_default();
    };
    line("position", &event.position.to_string());
    line("state", event.state.name());
    let partition = record.partition.map_or_else(String::new, |number| format!(" / {number}"));
    let aggregate = event.aggregate.as_ref().map(self::aggregate);
    for (name, value) in [
        ("event", event.event_id.clone()),
        ("type", event.event_type.clone()),
        ("aggregate", aggregate),
        ("error", event.error_code.clone()),
        ("why", event.error.clone()),
        ("fix", fix(event, record, brokers)),
        ("attempts", Some(event.attempts.to_string())),
        ("next try", event.next_attempt_at.clone()),
        ("committed", event.commit_time.clone()),
        ("parked", event.parked_at.clone()),
        ("resolved", event.resolved_at.clone()),
        ("overtaken by", event.overtaken_by.map(|by| by.to_string())),
        ("asked for", event.requested.as_ref().map(action)),
        ("last word", event.acted.as_ref().map(|acted| last_word(acted, event.declined))),
        ("topic", Some(format!("{}{partition}", event.topic)).filter(|topic| !topic.is_empty())),
        ("timestamp", record.timestamp_ms.map(|ms| ms.to_string())),
        ("key", record.key.as_deref().map(bytes)),
    ] {
        if let Some(value) = value {
            line(name, &value);
        }
    }
    for (name, value) in &record.headers {
        let value = value.as_deref().map_or_else(|| "null".to_owned(), bytes);
        line("header", &format!("{name}: {value}"));
    }
    match (&record.value, payload) {
        (Some(value), true) => line("payload", &bytes(value)),
        (Some(value), false) => {
            line("payload", &format!("{} bytes; --payload shows them", value.len()));
        }
        (None, _) if event.state.resolved() => line("payload", "not kept"),
        (None, _) => line("payload", "null"),
    }
    text.truncate(text.trim_end().len());
    text
}

fn action(action: &Action) -> String {
    let part = |word: &str, text: &Option<String>| {
        text.as_ref().map_or_else(String::new, |text| format!("{word}{text}"))
    };
    let (by, at) = (part(" by ", &action.by), part(" at ", &action.at));
    format!("{}{by}{at}{}", action.what, part(": ", &action.reason))
}

fn last_word(acted: &Action, declined: bool) -> String {
    format!("{}{}", if declined { "declined: " } else { "" }, action(acted))
}

/// As text where it is text, else in base64.
fn bytes(bytes: &[u8]) -> String {
    match std::str::from_utf8(bytes) {
        Ok(text) => text.to_owned(),
        Err(_) => format!("base64 {}", BASE64.encode(bytes)),
    }
}

/// One JSON object a line.
fn lines(pipeline: &str, events: &[Listed]) -> String {
    let lines: Vec<String> =
        events.iter().map(|event| event_json(pipeline, event).to_string()).collect();
    lines.join("\n")
}

fn event_json(pipeline: &str, event: &Listed) -> Value {
    let action = |action: &Option<Action>| {
        action.as_ref().map(|action| {
            json!({"action": action.what, "by": action.by, "at": action.at, "reason": action.reason})
        })
    };
    json!({
        "pipeline": pipeline,
        "position": event.position.to_string(),
        "state": event.state.name(),
        "event_id": event.event_id,
        "event_type": event.event_type,
        "aggregate_type": event.aggregate.as_ref().map(|(kind, _)| kind),
        "aggregate_id": event.aggregate.as_ref().map(|(_, id)| id),
        "blocks": event.blocks,
        "topic": event.topic,
        "payload_bytes": event.payload_bytes,
        "attempts": event.attempts,
        "next_attempt_at": event.next_attempt_at,
        "error_code": event.error_code,
        "error": event.error,
        "committed_at": event.commit_time,
        "parked_at": event.parked_at,
        "resolved_at": event.resolved_at,
        "overtaken_by": event.overtaken_by.map(|by| by.to_string()),
        "requested": action(&event.requested),
        "acted": action(&event.acted),
        "declined": event.declined,
    })
}

/// As [`whole`].
fn whole_json(pipeline: &str, event: &Listed, record: &OwnedRecord, payload: bool) -> Value {
    let mut value = event_json(pipeline, event);
    let header =
        |(name, value): &(String, Option<Vec<u8>>)| json!([name, bytes_json(value.as_deref())]);
    value["partition"] = json!(record.partition);
    value["timestamp_ms"] = json!(record.timestamp_ms);
    value["key"] = bytes_json(record.key.as_deref());
    value["headers"] = record.headers.iter().map(header).collect();
    if payload {
        value["payload"] = bytes_json(record.value.as_deref());
    }
    value
}

/// A string where it is text, else an object that says so.
fn bytes_json(bytes: Option<&[u8]>) -> Value {
    match bytes.map(|bytes| (std::str::from_utf8(bytes), bytes)) {
        None => Value::Null,
        Some((Ok(text), _)) => json!(text),
        Some((Err(_), bytes)) => json!({"base64": BASE64.encode(bytes)}),
    }
}

/// What a command did.
fn outcome(
    pipeline: &str,
    request: Request,
    dry_run: bool,
    told: &[(Listed, String)],
    missing: &[String],
) -> Value {
    let event = |(event, word): &(Listed, String)| {
        let mut value = event_json(pipeline, event);
        value["outcome"] = json!(word);
        value
    };
    json!({
        "pipeline": pipeline,
        "action": request.name(),
        "dry_run": dry_run,
        "events": told.iter().map(event).collect::<Vec<_>>(),
        "not_parked": missing,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parked::Request;

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
        assert_eq!(parse_aggregate("order:a:b"), Ok(("order".to_owned(), "a:b".to_owned())));
        assert!(parse_aggregate("order").is_err());
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
            if let Ok((kind, of)) = parse_aggregate(&text) {
                assert_eq!(format!("{kind}:{of}"), text);
            }
            assert!(state(&text).is_ok_and(|state| state.name() == text) || state(&text).is_err());
            assert!(Request::parse(&text).is_none_or(|request| request.name() == text));
        });
    }
}
