//! `postrider parked`: the events that were set aside, and what a person says about them.
//!
//! Reads the parked table and writes requests into it; what becomes of them is the relay's to decide. Payloads are
//! printed by `show --payload` and by nothing else.

mod act;
mod args;
mod print;

pub use args::{
    ActArgs, FilterArgs, Id, ListArgs, ParkedArgs, ParkedCommand, ReplaceArgs, RetryArgs,
    SelectArgs, ShowArgs, SkipArgs,
};

use super::error::CliError;
use super::exit::Exit;
use super::output::Output;
use crate::config::{Config, Env};
use crate::driver::PipelineSpec;
use crate::event::Position;
use crate::outbox::Role;
use crate::parked::{State, Wish};
use crate::postgres::control::Control;
use crate::postgres::ownership::Acting;
use crate::postgres::parked::desk::{self, Filter, Listed, Padded};
use crate::postgres::schema::{self, SchemaState};

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
            act::on_selected(&desk, Wish::Retry, &retry.select, &retry.act, env).await
        }
        ParkedCommand::Skip(skip) => {
            let desk = Desk::open(config).await?;
            act::on_selected(&desk, Wish::Skip, &skip.select, &skip.act, env).await
        }
        ParkedCommand::Replace(replace) => {
            let payload = act::payload(&replace.payload_file)?;
            let desk = Desk::open(config).await?;
            act::replace(&desk, replace, &payload, env).await
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
        Ok(desk::list(client, self.spec.name(), filter, self.padded, limit).await?)
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
            print::lines(spec.name(), events)
        } else {
            print::table(spec.name(), events, !more.is_empty())
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
        let record = desk::record(desk.control.client(), desk.spec.name(), event.position).await?;
        let record = record.unwrap_or_default();
        let text = if args.json {
            format!("{:#}", print::whole_json(desk.spec.name(), event, &record, args.payload))
        } else {
            print::whole(event, &record, args.payload, brokers)
        };
        out.line(&text).map_err(CliError::Output)?;
    }
    if events.is_empty() {
        return Err(CliError::NotParked { ids: vec![args.id.to_string()] });
    }
    Ok(Exit::Done)
}
