//! `postrider parked`: lists the parked events, and requests that they are retried, skipped or replaced.
//!
//! The command reads the parked table and writes requests into it, which the relay carries out or declines. Payloads
//! are printed only by `show --payload`.

use super::bookmark::the_one;
use super::error::{CliError, Exit};
use super::{Output, check_schema};
use crate::config::{self, Config, Env};
use crate::event::{HeaderPosition, Position};
use crate::outbox::Role;
use crate::parked::{Request, State};
use crate::pipeline::PipelineSpec;
use crate::postgres::catalog;
use crate::postgres::control::Control;
use crate::postgres::store::requests::{
    self, Filter, NewRequest, OperatorAction, Padded, ParkedEvent,
};
use crate::record::OwnedRecord;
use crate::sink::SinkConfig;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use clap::Subcommand;
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::io::{IsTerminal as _, Read as _};
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// `application_name` of the session.
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
            let session = ParkedSession::open(config).await?;
            on_selected(&session, Request::Retry, &retry.select, &retry.act, env).await
        }
        ParkedCommand::Skip(skip) => {
            let session = ParkedSession::open(config).await?;
            on_selected(&session, Request::Skip, &skip.select, &skip.act, env).await
        }
        ParkedCommand::Replace(replace) => {
            let payload = payload(&replace.payload_file)?;
            let session = ParkedSession::open(config).await?;
            replace_payload(&session, replace, &payload, env).await
        }
    }
}

/// A session in the database of one pipeline, which has the parked table.
struct ParkedSession<'a> {
    spec: &'a PipelineSpec,
    control: Control,
    padded: Padded,
}

impl<'a> ParkedSession<'a> {
    /// A session for the only pipeline of the configuration, or the one that `-p` selected.
    async fn open(config: &'a Config) -> Result<Self, CliError> {
        Self::of(the_one(config)?).await
    }

    async fn of(spec: &'a PipelineSpec) -> Result<Self, CliError> {
        let control = Control::connect(&spec.conninfo, APPLICATION_NAME).await?;
        let old = |pipeline| CliError::NoParkedTable { pipeline };
        check_schema(spec, &control, old).await?;
        let padded = match &spec.names.table {
            Some(table) => {
                let columns = [Role::Id, Role::AggregateType, Role::AggregateId];
                let columns = columns.map(|role| spec.common.outbox.column(role));
                Padded::read(control.client(), table, columns).await?
            }
            None => Padded::default(),
        };
        Ok(Self { spec, control, padded })
    }

    async fn list(&self, filter: &Filter, limit: i64) -> Result<Vec<ParkedEvent>, CliError> {
        let client = self.control.client();
        Ok(requests::list(client, self.spec.key(), filter, self.padded, limit).await?)
    }

    /// Whether `id` names this event.
    fn names(&self, id: &Id, event: &ParkedEvent) -> bool {
        let bare = |id| Padded::bare(id, self.padded.id);
        match id {
            Id::Position(position) => *position == event.position,
            Id::Event(id) => event.event_id.as_deref().map(bare) == Some(bare(id)),
        }
    }

    async fn by_position(&self, positions: &[Position]) -> Result<Vec<ParkedEvent>, CliError> {
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
        let session = ParkedSession::of(spec).await?;
        let events = session.list(&filter, i64::from(args.limit) + 1).await?;
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
    let session = ParkedSession::open(config).await?;
    let ids = std::slice::from_ref(&args.id);
    let events = session.list(&filter(ids, &FilterArgs::default(), &[]), EVENTS_MAX).await?;
    let mut out = Output::stdout();
    for event in &events {
        let record =
            requests::record(session.control.client(), session.spec.key(), event.position).await?;
        let record = record.unwrap_or_default();
        let text = if args.json {
            format!("{:#}", whole_json(session.spec.name(), event, &record, args.payload))
        } else {
            whole(event, &record, args.payload, &*session.spec.common.sink)
        };
        out.line(&text).map_err(CliError::Output)?;
    }
    if events.is_empty() {
        return Err(CliError::NotParked { ids: vec![args.id.to_string()] });
    }
    Ok(Exit::Done)
}

/// `postrider parked`
#[derive(clap::Args, Debug)]
#[command(
    after_help = "An ID is an event's id, or a position such as 0/1A2B3C8:5, or the value of header position. Requests \
                  are written into the parked table. A running relay carries them out at once; otherwise they are \
                  carried out at the next start."
)]
pub struct ParkedArgs {
    /// The subcommand.
    #[command(subcommand)]
    pub command: ParkedCommand,
}

/// The subcommands of `postrider parked`.
#[derive(Subcommand, Debug)]
pub enum ParkedCommand {
    /// List the parked events in order
    List(ListArgs),
    /// Show one event: why it is parked, its headers and its key
    Show(ShowArgs),
    /// Publish an event now, with a new count of attempts
    Retry(RetryArgs),
    /// Never publish an event; later events of its aggregate continue without it
    Skip(SkipArgs),
    /// Publish an event now with another payload
    Replace(ReplaceArgs),
}

/// The flags that select events.
#[derive(clap::Args, Debug, Default, Clone)]
pub struct FilterArgs {
    /// Events of this aggregate
    #[arg(long, value_name = "TYPE:ID", value_parser = parse_aggregate)]
    pub aggregate: Option<(String, String)>,
    /// Events with this error code, which list shows: too_large
    #[arg(long, value_name = "CODE")]
    pub error: Option<String>,
    /// Events parked for longer than this: 10m
    #[arg(long, value_name = "DURATION", value_parser = config::duration)]
    pub older_than: Option<Duration>,
    /// Events in this state: waiting, behind, due, dead; can be given more than once
    #[arg(long = "state", value_name = "STATE", value_parser = state)]
    pub states: Vec<State>,
}

impl FilterArgs {
    /// Whether no flag was given.
    fn is_empty(&self) -> bool {
        let Self { aggregate, error, older_than, states } = self;
        aggregate.is_none() && error.is_none() && older_than.is_none() && states.is_empty()
    }
}

/// `postrider parked list`
#[derive(clap::Args, Debug)]
pub struct ListArgs {
    /// The filter.
    #[command(flatten)]
    pub filter: FilterArgs,
    /// Also list events that were published or skipped since
    #[arg(long)]
    pub all: bool,
    /// List at most N events
    #[arg(long, value_name = "N", default_value = "1000", value_parser = clap::value_parser!(u32).range(1..))]
    pub limit: u32,
    /// Print JSON, one object per line
    #[arg(long)]
    pub json: bool,
}

/// `postrider parked show`
#[derive(clap::Args, Debug)]
pub struct ShowArgs {
    /// A position such as 0/1A2B3C8:5, or an event's id
    #[arg(value_name = "ID", value_parser = id)]
    pub id: Id,
    /// Also print the payload
    #[arg(long)]
    pub payload: bool,
    /// Print JSON; bytes that are not UTF-8 are in base64
    #[arg(long)]
    pub json: bool,
}

/// The flags of `retry`, `skip` and `replace`.
#[derive(clap::Args, Debug, Default, Clone)]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag")]
pub struct ActArgs {
    /// The reason, stored with the request
    #[arg(long, value_name = "TEXT")]
    pub reason: Option<String>,
    /// Show which events would be affected; change nothing
    #[arg(long)]
    pub dry_run: bool,
    /// Do not ask for confirmation
    #[arg(long)]
    pub yes: bool,
    /// Do not wait for the relay to carry out the request
    #[arg(long)]
    pub no_wait: bool,
    /// Print JSON; the selected events are listed on standard error first
    #[arg(long)]
    pub json: bool,
}

/// Events by id or by filter.
#[derive(clap::Args, Debug, Default, Clone)]
pub struct SelectArgs {
    /// Event ids, or positions such as 0/1A2B3C8:5
    #[arg(value_name = "ID", value_parser = id)]
    pub ids: Vec<Id>,
    /// The filter; without --state it selects the events that were refused: waiting and dead
    #[command(flatten)]
    pub filter: FilterArgs,
    /// Every event that was refused: waiting and dead
    #[arg(long, conflicts_with = "ids")]
    pub all: bool,
}

/// `postrider parked retry`
#[derive(clap::Args, Debug)]
pub struct RetryArgs {
    /// The events.
    #[command(flatten)]
    pub select: SelectArgs,
    /// The other flags.
    #[command(flatten)]
    pub act: ActArgs,
}

/// `postrider parked skip`
#[derive(clap::Args, Debug)]
pub struct SkipArgs {
    /// The events.
    #[command(flatten)]
    pub select: SelectArgs,
    /// The other flags.
    #[command(flatten)]
    pub act: ActArgs,
}

/// `postrider parked replace`
#[derive(clap::Args, Debug)]
pub struct ReplaceArgs {
    /// A position such as 0/1A2B3C8:5, or an event's id
    #[arg(value_name = "ID", value_parser = id)]
    pub id: Id,
    /// The file with the new payload, byte for byte; - is standard input
    #[arg(long, value_name = "FILE")]
    pub payload_file: PathBuf,
    /// Accept a payload that is not JSON although the payload column is
    #[arg(long)]
    pub not_json: bool,
    /// The other flags.
    #[command(flatten)]
    pub act: ActArgs,
}

/// The name of an event on the command line.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Id {
    /// Its position.
    Position(Position),
    /// Its own id.
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

/// A text in the form of a position, as printed or as in header `position`, is a position. Every other text is the id
/// of an event.
#[expect(clippy::unnecessary_wraps, reason = "clap's parsers may fail")]
fn id(text: &str) -> Result<Id, String> {
    if let Some(header) = HeaderPosition::parse(text) {
        return Ok(Id::Position(header.position));
    }
    let position = text.rsplit_once(':').and_then(|(commit, ordinal)| {
        let commit = commit.parse().ok()?;
        // The column is signed.
        let ordinal =
            ordinal.parse::<i64>().ok().and_then(|ordinal| u64::try_from(ordinal).ok())?;
        Some(Id::Position(Position { commit, ordinal }))
    });
    Ok(position.unwrap_or_else(|| Id::Event(text.to_owned())))
}

pub(super) fn parse_aggregate(text: &str) -> Result<(String, String), String> {
    let (kind, id) = text.split_once(':').ok_or("expected TYPE:ID, such as order:42")?;
    Ok((kind.to_owned(), id.to_owned()))
}

fn state(text: &str) -> Result<State, String> {
    State::parse(text).ok_or_else(|| {
        let names: Vec<&str> = State::ALL.iter().map(|state| state.name()).collect();
        format!("expected one of {}", names.join(", "))
    })
}

/// How long to wait for the relay.
const WAIT_MAX: Duration = Duration::from_secs(5);

/// Pause between two queries of the rows.
const QUERY_INTERVAL: Duration = Duration::from_millis(200);

/// Size of a new payload at most: as large as the relay reads from WAL. Unit: bytes.
const PAYLOAD_BYTES_MAX: u64 = 64 << 20;

/// Reads the new payload.
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

/// `retry` and `skip`.
async fn on_selected(
    session: &ParkedSession<'_>,
    request: Request,
    select: &SelectArgs,
    act: &ActArgs,
    env: Env<'_>,
) -> Result<Exit, CliError> {
    if select.ids.is_empty() && select.filter.is_empty() && !select.all {
        return Err(CliError::NothingSelected);
    }
    // An id selects an event in any state; a filter without states selects those that were refused.
    let refused: &[State] =
        if select.ids.is_empty() { &[State::Waiting, State::Dead] } else { &[] };
    let events = session.list(&filter(&select.ids, &select.filter, refused), EVENTS_MAX).await?;
    let operation = Operation { request, value: None, act };
    operation.run(session, events, &select.ids, env).await
}

/// `replace`.
async fn replace_payload(
    session: &ParkedSession<'_>,
    args: &ReplaceArgs,
    payload: &[u8],
    env: Env<'_>,
) -> Result<Exit, CliError> {
    let ids = std::slice::from_ref(&args.id);
    let events = session.list(&filter(ids, &FilterArgs::default(), &[]), EVENTS_MAX).await?;
    if events.len() > 1 {
        let ids = events.iter().map(|event| event.position.to_string()).collect();
        return Err(CliError::Ambiguous { id: args.id.to_string(), ids });
    }
    if !args.not_json && serde_json::from_slice::<serde::de::IgnoredAny>(payload).is_err() {
        expects_no_json(session).await?;
    }
    let operation = Operation { request: Request::Replace, value: Some(payload), act: &args.act };
    operation.run(session, events, ids, env).await
}

/// An error if the pipeline's payloads are JSON: without it, consumers would be the first to notice that this payload
/// is not.
async fn expects_no_json(session: &ParkedSession<'_>) -> Result<(), CliError> {
    let outbox = &session.spec.common.outbox;
    let Some((table, column)) = session.spec.names.table.as_ref().zip(outbox.column(Role::Payload))
    else {
        return Ok(());
    };
    match requests::json_type(session.control.client(), table, column).await? {
        Some(type_name) => Err(CliError::NotJson {
            column: column.to_owned(),
            table: table.to_string(),
            type_name,
        }),
        None => Ok(()),
    }
}

/// An error if several events have the same id: the user may not know of all of them.
fn one_each(
    session: &ParkedSession<'_>,
    ids: &[Id],
    events: &[ParkedEvent],
) -> Result<(), CliError> {
    for id in ids.iter().filter(|id| matches!(id, Id::Event(_))) {
        let named: Vec<&ParkedEvent> =
            events.iter().filter(|event| session.names(id, event)).collect();
        if named.len() > 1 {
            let ids = named.iter().map(|event| event.position.to_string()).collect();
            return Err(CliError::Ambiguous { id: id.to_string(), ids });
        }
    }
    Ok(())
}

/// One request for the selected events.
struct Operation<'a> {
    request: Request,
    value: Option<&'a [u8]>,
    act: &'a ActArgs,
}

impl Operation<'_> {
    async fn run(
        &self,
        session: &ParkedSession<'_>,
        events: Vec<ParkedEvent>,
        ids: &[Id],
        env: Env<'_>,
    ) -> Result<Exit, CliError> {
        let missing: Vec<String> = ids
            .iter()
            .filter(|id| !events.iter().any(|event| session.names(id, event)))
            .map(Id::to_string)
            .collect();
        let mut refused = Vec::new();
        let mut possible = Vec::new();
        for event in events {
            match self.refuses(&event) {
                Some(why) => refused.push((event, why)),
                None => possible.push(event),
            }
        }
        let events = possible;
        one_each(session, ids, &events)?;
        self.announce(session, &events)?;
        let mut outcomes: Vec<(ParkedEvent, RequestOutcome)> = Vec::new();
        if self.act.dry_run {
            outcomes.extend(
                events.into_iter().map(|event| (event, RequestOutcome::Would(self.request))),
            );
        } else if !events.is_empty() && self.agreed(&events)? {
            outcomes = self.carry_out(session, &events, env).await?;
        } else {
            outcomes.extend(events.into_iter().map(|event| (event, RequestOutcome::Unchanged)));
        }
        // An event for which the request is not possible is an error only if it was named by its id.
        let succeeded = (refused.is_empty() || ids.is_empty())
            && outcomes.iter().all(|(_, outcome)| outcome.is_success());
        outcomes.extend(refused);
        outcomes.sort_by_key(|(event, _)| event.position);
        let mut out = Output::stdout();
        if self.act.json {
            let value = outcomes_json(
                session.spec.name(),
                self.request,
                self.act.dry_run,
                &outcomes,
                &missing,
            );
            out.line(&format!("{value:#}")).map_err(CliError::Output)?;
        } else if outcomes.is_empty() && missing.is_empty() {
            let text = format!("{}: no parked event matches", session.spec.name());
            out.line(&text).map_err(CliError::Output)?;
        } else if !outcomes.is_empty() {
            let lines: Vec<String> = outcomes
                .iter()
                .map(|(event, outcome)| format!("{}  {outcome}", event.position))
                .collect();
            out.line(&lines.join("\n")).map_err(CliError::Output)?;
        }
        if !missing.is_empty() {
            return Err(CliError::NotParked { ids: missing });
        }
        Ok(if succeeded { Exit::Done } else { Exit::Problems })
    }

    /// Why the request is not possible for this event.
    fn refuses(&self, event: &ParkedEvent) -> Option<RequestOutcome> {
        if event.state.resolved() {
            return Some(RequestOutcome::AlreadyResolved(event.state));
        }
        if let Some(other) = &event.requested {
            let (what, by) = (other.what.clone(), other.by.clone());
            return Some(RequestOutcome::AlreadyRequested { what, by });
        }
        // A request cannot supply a topic: the topic comes from the row, which cannot be changed.
        let no_topic = event.topic.is_empty() && self.request != Request::Skip;
        no_topic.then_some(RequestOutcome::NoTopic)
    }

    /// Prints the events before anything is changed.
    fn announce(
        &self,
        session: &ParkedSession<'_>,
        events: &[ParkedEvent],
    ) -> Result<(), CliError> {
        if events.is_empty() {
            return Ok(());
        }
        let text = table(session.spec.name(), events, false);
        if self.act.json {
            Output::stderr().line_or_ignore(&text);
            return Ok(());
        }
        Output::stdout().line(&text).map_err(CliError::Output)
    }

    /// Asks for confirmation if an event would be lost or changed, or if several events are selected. Without a
    /// terminal a request that loses or changes an event requires `--yes`.
    fn agreed(&self, events: &[ParkedEvent]) -> Result<bool, CliError> {
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
        Output::stderr().line_or_ignore(&question);
        let mut answer = String::new();
        std::io::stdin().read_line(&mut answer).map_err(CliError::Input)?;
        Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
    }

    async fn carry_out(
        &self,
        session: &ParkedSession<'_>,
        events: &[ParkedEvent],
        env: Env<'_>,
    ) -> Result<Vec<(ParkedEvent, RequestOutcome)>, CliError> {
        let by = operator(env);
        let reason = self.act.reason.as_deref();
        let request = NewRequest { request: self.request, by: &by, reason, value: self.value };
        let positions: Vec<Position> = events.iter().map(|event| event.position).collect();
        let (client, key) = (session.control.client(), session.spec.key());
        let accepted = requests::write_requests(client, key, &positions, &request).await?;
        let relay = relay_runs(session).await?;
        let waits = !self.act.no_wait && relay != Some(false);
        let deadline = Instant::now() + if waits { WAIT_MAX } else { Duration::ZERO };
        loop {
            let now = session.by_position(&positions).await?;
            let open = now.iter().any(|event| !self.settled(event));
            if open && Instant::now() < deadline {
                sleep(QUERY_INTERVAL).await;
                continue;
            }
            let mut outcomes = Vec::with_capacity(now.len());
            for event in now {
                let outcome = if !accepted.contains(&event.position) {
                    self.lost(&event)
                } else if self.settled(&event) || event.requested.is_some() {
                    self.became(&event, relay)
                } else {
                    RequestOutcome::Queued { blocked_by: blocker(session, &event).await? }
                };
                outcomes.push((event, outcome));
            }
            return Ok(outcomes);
        }
    }

    /// Whether the outcome of the request is final.
    fn settled(&self, event: &ParkedEvent) -> bool {
        let tried =
            self.request == Request::Skip || event.attempts > 0 || event.state == State::Dead;
        event.state.resolved() || event.requested.is_none() && (event.declined || tried)
    }

    /// The outcome for an event whose state was changed by another user since it was listed.
    fn lost(&self, event: &ParkedEvent) -> RequestOutcome {
        self.refuses(event).unwrap_or(RequestOutcome::ChangedMeanwhile)
    }

    /// The outcome of the request.
    fn became(&self, event: &ParkedEvent, relay: Option<bool>) -> RequestOutcome {
        match (event.state, &event.requested) {
            (State::Done, _) => RequestOutcome::Published,
            (State::Skipped, _) => RequestOutcome::Skipped,
            (_, Some(_)) if relay == Some(false) => RequestOutcome::AtNextStart(self.request),
            (_, Some(_)) => RequestOutcome::NotYet(self.request),
            (_, None) if event.declined => RequestOutcome::Declined,
            (state, None) if event.attempts > 0 || state == State::Dead => {
                RequestOutcome::RefusedAgain { state, why: event.error.clone() }
            }
            (_, None) => RequestOutcome::Queued { blocked_by: None },
        }
    }
}

/// The outcome of a request for one event. Its text is printed, and [`RequestOutcome::is_success`] decides the exit
/// code.
#[derive(Clone, PartialEq, Eq, Debug)]
enum RequestOutcome {
    /// With `--dry-run`: the request would be written.
    Would(Request),
    /// The user did not confirm.
    Unchanged,
    /// The event was already published or skipped.
    AlreadyResolved(State),
    /// The event has a request that is not carried out yet.
    AlreadyRequested {
        /// That request.
        what: String,
        /// Its author, if known.
        by: Option<String>,
    },
    /// The event has no topic, so it can only be skipped.
    NoTopic,
    /// The event was changed after it was listed, and the request was not written.
    ChangedMeanwhile,
    /// The event is published.
    Published,
    /// The event is skipped.
    Skipped,
    /// The request is written, and no relay is running.
    AtNextStart(Request),
    /// The request is written, and the relay has not carried it out yet.
    NotYet(Request),
    /// The relay declined the request.
    Declined,
    /// The event was attempted again and refused.
    RefusedAgain {
        /// The state since then.
        state: State,
        /// The reason of the refusal, if known.
        why: Option<String>,
    },
    /// The event is to be published and has not been refused since the request.
    Queued {
        /// State and position of the earliest unresolved event of the same aggregate, if the event waits behind it.
        blocked_by: Option<(State, Position)>,
    },
}

impl RequestOutcome {
    /// Whether the request was carried out or can still be: otherwise the exit code is that of problems.
    const fn is_success(&self) -> bool {
        match self {
            Self::Would(_)
            | Self::Unchanged
            | Self::AlreadyResolved(_)
            | Self::Published
            | Self::Skipped
            | Self::AtNextStart(_)
            | Self::NotYet(_)
            | Self::Queued { .. } => true,
            Self::AlreadyRequested { .. }
            | Self::NoTopic
            | Self::ChangedMeanwhile
            | Self::Declined
            | Self::RefusedAgain { .. } => false,
        }
    }
}

impl std::fmt::Display for RequestOutcome {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Would(request) => write!(f, "would {}", request.name()),
            Self::Unchanged => f.write_str("unchanged"),
            Self::AlreadyResolved(state) => {
                write!(f, "nothing to do: the event is already {}", state.name())
            }
            Self::AlreadyRequested { what, by } => {
                let by = by.as_deref().unwrap_or("an unknown user");
                write!(f, "nothing done: {what} was already requested by {by}")
            }
            Self::NoTopic => {
                f.write_str("nothing done: the event has no topic and can only be skipped")
            }
            Self::ChangedMeanwhile => f.write_str("nothing done: the event was changed meanwhile"),
            Self::Published => f.write_str("published"),
            Self::Skipped => f.write_str("skipped"),
            Self::AtNextStart(request) => {
                write!(f, "{} requested; carried out when postrider run starts", request.name())
            }
            Self::NotYet(request) => {
                write!(f, "{} requested, not carried out yet", request.name())
            }
            Self::Declined => {
                f.write_str("declined by the relay: not possible in the event's present state")
            }
            Self::RefusedAgain { state, why } => {
                let why = why.as_deref().unwrap_or("unknown reason");
                write!(f, "refused again, {}: {why}", state.name())
            }
            Self::Queued { blocked_by: None } => f.write_str("queued"),
            Self::Queued { blocked_by: Some((state, position)) } => {
                let state = state.name();
                write!(f, "queued; blocked by {state} event {position} of the same aggregate")
            }
        }
    }
}

/// State and position of the earliest unresolved event of the same aggregate, if `event` waits behind it.
async fn blocker(
    session: &ParkedSession<'_>,
    event: &ParkedEvent,
) -> Result<Option<(State, Position)>, CliError> {
    if event.aggregate.is_none() {
        return Ok(None);
    }
    let mut wanted = filter(&[], &FilterArgs::default(), &[State::Waiting, State::Dead]);
    wanted.aggregate.clone_from(&event.aggregate);
    let first = session.list(&wanted, 1).await?.pop();
    let first = first.filter(|first| first.position < event.position);
    Ok(first.map(|first| (first.state, first.position)))
}

/// Whether a process reads the pipeline's slot; `None` if there is no slot.
async fn relay_runs(session: &ParkedSession<'_>) -> Result<Option<bool>, CliError> {
    let client = session.control.client();
    let version = catalog::read_server(client).await?.version;
    let slot = catalog::read_slot(client, version, &session.spec.names.slot).await?;
    Ok(slot.map(|slot| slot.active_pid.is_some()))
}

/// The user who runs the command, from the environment and the operating system.
pub(super) fn operator(env: Env<'_>) -> String {
    let name = env("USER").or_else(|| env("LOGNAME")).filter(|name| !name.is_empty());
    #[cfg(unix)]
    let uid = format!("uid {}", rustix::process::getuid().as_raw());
    #[cfg(not(unix))]
    let uid = String::from("no uid");
    let name = name.map(|name| format!("{name}, ")).unwrap_or_default();
    format!("{name}{uid}").replace('\0', "")
}

const HEAD: [&str; 8] =
    ["POSITION", "STATE", "EVENT", "TYPE", "AGGREGATE", "ATTEMPTS", "SINCE", "ERROR"];

/// A table with a line for each event.
fn table(pipeline: &str, events: &[ParkedEvent], more: bool) -> String {
    if events.is_empty() {
        return format!("{pipeline}: no events are parked");
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
        lines.push("there are more events; --limit N shows more".to_owned());
    }
    lines.join("\n")
}

fn cells(event: &ParkedEvent) -> [String; HEAD.len()] {
    let text = |text: &Option<String>| text.as_deref().map_or("-".to_owned(), printable);
    let requested = event.requested.as_ref().map(|by| format!(" ({} requested)", by.what));
    [
        event.position.to_string(),
        format!("{}{}", event.state.name(), requested.unwrap_or_default()),
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

/// Replaces control characters, which a terminal would interpret.
fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}

/// The command after which the topic accepts the event, if there is one.
fn fix(event: &ParkedEvent, record: &OwnedRecord, sink: &dyn SinkConfig) -> Option<String> {
    let (topic, position) = (&event.topic, event.position);
    if event.state.resolved() || topic.is_empty() {
        return None;
    }
    let code = event.error_code.as_deref()?;
    let command = sink.command(code, topic, record.size_bytes())?;
    Some(match code {
        "too_large" => format!(
            "{command}; if payload.size_max sets the limit, raise it; then postrider parked retry {position}"
        ),
        "topic_missing" => format!("{command}; the event is then published automatically"),
        _ => command,
    })
}

/// Everything about one event as text. `sink`: for the command that fixes the event.
fn whole(
    event: &ParkedEvent,
    record: &OwnedRecord,
    payload: bool,
    sink: &dyn SinkConfig,
) -> String {
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
        ("fix", fix(event, record, sink)),
        ("attempts", Some(event.attempts.to_string())),
        ("next attempt", event.next_attempt_at.clone()),
        ("committed", event.commit_time.clone()),
        ("parked", event.parked_at.clone()),
        ("resolved", event.resolved_at.clone()),
        ("overtaken by", event.overtaken_by.map(|by| by.to_string())),
        ("requested", event.requested.as_ref().map(action)),
        ("last request", event.acted.as_ref().map(|acted| last_request(acted, event.declined))),
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
            line("payload", &format!("{} bytes (--payload prints them)", value.len()));
        }
        (None, _) if event.state.resolved() => line("payload", "deleted since"),
        (None, _) => line("payload", "null"),
    }
    text.truncate(text.trim_end().len());
    text
}

fn action(action: &OperatorAction) -> String {
    let part = |word: &str, text: &Option<String>| {
        text.as_ref().map_or_else(String::new, |text| format!("{word}{text}"))
    };
    let (by, at) = (part(" by ", &action.by), part(" at ", &action.at));
    format!("{}{by}{at}{}", action.what, part(": ", &action.reason))
}

fn last_request(acted: &OperatorAction, declined: bool) -> String {
    format!("{}{}", if declined { "declined: " } else { "" }, action(acted))
}

/// UTF-8 as text, other bytes in base64.
fn bytes(bytes: &[u8]) -> String {
    match std::str::from_utf8(bytes) {
        Ok(text) => text.to_owned(),
        Err(_) => format!("base64 {}", BASE64.encode(bytes)),
    }
}

/// The events as JSON, one object per line.
fn lines(pipeline: &str, events: &[ParkedEvent]) -> String {
    let lines: Vec<String> =
        events.iter().map(|event| event_json(pipeline, event).to_string()).collect();
    lines.join("\n")
}

fn event_json(pipeline: &str, event: &ParkedEvent) -> Value {
    let action = |action: &Option<OperatorAction>| {
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

/// Everything about one event as JSON.
fn whole_json(pipeline: &str, event: &ParkedEvent, record: &OwnedRecord, payload: bool) -> Value {
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

/// UTF-8 as a string, other bytes as an object with member `base64`.
fn bytes_json(bytes: Option<&[u8]>) -> Value {
    match bytes.map(|bytes| (std::str::from_utf8(bytes), bytes)) {
        None => Value::Null,
        Some((Ok(text), _)) => json!(text),
        Some((Err(_), bytes)) => json!({"base64": BASE64.encode(bytes)}),
    }
}

/// The outcomes of a command as JSON.
fn outcomes_json(
    pipeline: &str,
    request: Request,
    dry_run: bool,
    outcomes: &[(ParkedEvent, RequestOutcome)],
    missing: &[String],
) -> Value {
    let event = |(event, outcome): &(ParkedEvent, RequestOutcome)| {
        let mut value = event_json(pipeline, event);
        value["outcome"] = json!(outcome.to_string());
        value
    };
    json!({
        "pipeline": pipeline,
        "action": request.name(),
        "dry_run": dry_run,
        "events": outcomes.iter().map(event).collect::<Vec<_>>(),
        "not_parked": missing,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parked::Request;

    #[test]
    fn a_position_is_distinguished_from_an_id_by_its_form() {
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

    fn parked_event(state: State) -> ParkedEvent {
        ParkedEvent {
            position: Position { commit: "0/1A2B3C8".parse().unwrap(), ordinal: 5 },
            state,
            event_id: None,
            event_type: None,
            aggregate: None,
            blocks: true,
            topic: "orders".to_owned(),
            payload_bytes: None,
            attempts: 0,
            next_attempt_at: None,
            error_code: None,
            error: None,
            commit_time: None,
            parked_at: None,
            resolved_at: None,
            overtaken_by: None,
            requested: None,
            acted: None,
            declined: false,
        }
    }

    #[test]
    fn an_outcome_decides_the_exit_code_whatever_its_text_is() {
        let act = ActArgs::default();
        let operation = Operation { request: Request::Retry, value: None, act: &act };
        let waiting = parked_event(State::Waiting);
        let skip = OperatorAction { what: "skip".to_owned(), by: None, at: None, reason: None };
        let requested = ParkedEvent { requested: Some(skip), ..waiting.clone() };
        let refused =
            ParkedEvent { attempts: 2, error: Some("queued".to_owned()), ..waiting.clone() };
        let declined = ParkedEvent { declined: true, ..waiting.clone() };
        let done = parked_event(State::Done);
        let outcomes = [
            operation.became(&waiting, Some(true)),
            RequestOutcome::Queued { blocked_by: Some((State::Dead, waiting.position)) },
            operation.became(&done, Some(true)),
            operation.became(&requested, Some(false)),
            operation.became(&requested, Some(true)),
            operation.became(&refused, Some(true)),
            operation.became(&declined, Some(true)),
            operation.lost(&waiting),
            operation.lost(&requested),
            operation.lost(&ParkedEvent { topic: String::new(), ..waiting.clone() }),
            operation.lost(&done),
        ];
        let shown: Vec<String> = outcomes
            .iter()
            .map(|outcome| format!("{}: {outcome}", u8::from(!outcome.is_success())))
            .collect();
        assert_eq!(
            shown,
            [
                "0: queued",
                "0: queued; blocked by dead event 0/1A2B3C8:5 of the same aggregate",
                "0: published",
                "0: retry requested; carried out when postrider run starts",
                "0: retry requested, not carried out yet",
                "1: refused again, waiting: queued",
                "1: declined by the relay: not possible in the event's present state",
                "1: nothing done: the event was changed meanwhile",
                "1: nothing done: skip was already requested by an unknown user",
                "1: nothing done: the event has no topic and can only be skipped",
                "0: nothing to do: the event is already done",
            ]
        );
    }

    #[test]
    fn any_text_is_a_parked_row_or_a_refusal() {
        let memory = fuzzing::Memory { base: 4 << 10, each: 16 };
        fuzzing::hammer(&fuzzing::lines("parked"), memory, |input| {
            let text = String::from_utf8_lossy(input);
            match id(&text).unwrap() {
                // The printed form is read as the same position.
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
