//! `postrider find`: where one event is, or the newest events of an aggregate.
//!
//! It asks the database (parked events, rows of the outbox, the stored position) in one snapshot, then the running
//! process. It says which of them it could ask, and how far back each answer reaches.

mod process;
mod report;
mod verdict;

use super::Output;
use super::bookmark::session;
use super::error::{CliError, Exit};
use super::parked::parse_aggregate;
use crate::config::Config;
use crate::outbox::Role;
use crate::parked::State;
use crate::pipeline::{Mode, PipelineSpec};
use crate::postgres::SourceError;
use crate::postgres::find::{self, FoundRow, FoundRows, RowSought, StoredPosition};
use crate::postgres::retention::{Hold, RetentionRule, RetentionSettings};
use crate::postgres::store::pause::{self, ConnectedProcesses};
use crate::postgres::store::requests::{self, Filter, Padded, ParkedEvent};
use process::{ProcessAnswer, SentEvent, Wanted, ask};
use report::{EventAnswer, PipelineReportText, Sources};
use std::net::SocketAddr;
use tokio_postgres::Client;
use verdict::{EventFacts, PipelineFacts, decide};

/// `application_name` of the session.
const APPLICATION_NAME: &str = "postrider find";

/// `postrider find`
#[derive(clap::Args, Debug)]
#[command(
    after_help = "Searches every pipeline of the configuration, or that of -p. Reads only, shows no payload, and asks \
                  the database and the process at admin.listen; it prints which of them have answered, and how far \
                  back each of them reaches. Exits 0 if something was found, 1 if nothing is known of such an event."
)]
pub struct FindArgs {
    /// The event's id
    #[arg(value_name = "ID", required_unless_present = "aggregate", conflicts_with = "aggregate")]
    pub id: Option<String>,
    /// The newest events of this aggregate
    #[arg(long, value_name = "TYPE:ID", value_parser = parse_aggregate)]
    pub aggregate: Option<(String, String)>,
    /// Show at most N events of each pipeline
    #[arg(long, value_name = "N", default_value = "20", value_parser = clap::value_parser!(u32).range(1..=100))]
    pub limit: u32,
    /// Print JSON, one object per pipeline
    #[arg(long)]
    pub json: bool,
}

impl FindArgs {
    fn wanted(&self) -> Wanted<'_> {
        match (&self.id, &self.aggregate) {
            (_, Some((kind, id))) => Wanted::Aggregate(kind, id),
            (id, None) => Wanted::Id(id.as_deref().unwrap_or_default()),
        }
    }
}

pub(super) async fn run(config: &Config, args: &FindArgs) -> Result<Exit, CliError> {
    let mut exit = Exit::Problems;
    for spec in &config.specs {
        let search = Search { spec, listen: config.admin.listen, wanted: args.wanted(), args };
        let report = search.run().await?;
        if !report.answers.is_empty() {
            exit = Exit::Done;
        }
        let text = if args.json { report.json().to_string() } else { report.text() };
        Output::stdout().line(&text).map_err(CliError::Output)?;
    }
    Ok(exit)
}

/// What the table of the outbox has answered.
enum TableAnswer {
    /// There are no rows to search for.
    None(&'static str),
    Rows(FoundRows),
    /// It could not be searched.
    Failed(String),
}

impl TableAnswer {
    fn rows(&self) -> &[FoundRow] {
        match self {
            Self::Rows(found) => &found.rows,
            Self::None(_) | Self::Failed(_) => &[],
        }
    }

    fn holds(&self) -> &[Hold] {
        match self {
            Self::Rows(found) => &found.holds,
            Self::None(_) | Self::Failed(_) => &[],
        }
    }
}

/// What the database has answered.
struct DatabaseAnswer {
    position: Option<StoredPosition>,
    parked: Vec<ParkedEvent>,
    more_parked: bool,
    table: TableAnswer,
    processes: ConnectedProcesses,
}

/// A search for one pipeline.
struct Search<'a> {
    spec: &'a PipelineSpec,
    listen: Option<SocketAddr>,
    wanted: Wanted<'a>,
    args: &'a FindArgs,
}

impl<'a> Search<'a> {
    async fn run(&self) -> Result<PipelineReportText<'a>, CliError> {
        let database = self.ask_database().await;
        let process = ask(self.listen, self.spec, self.wanted).await;
        let (database, process) = match (database, process) {
            // Nobody has answered.
            (Err(error), Err(_)) => return Err(error),
            (database, process) => (database.map_err(|error| error.one_line()), process),
        };
        let other_reads = database.as_ref().is_ok_and(|database| {
            let may_have_lost = process
                .as_ref()
                .is_ok_and(|process| matches!(process.state.as_str(), "source_down" | "paused"));
            database.processes.reads && may_have_lost
        });
        let process_reads = !other_reads
            && process.as_ref().is_ok_and(|process| process.reads() && process.remembers.is_some());
        let holds: &[Hold] = match &database {
            Ok(database) => database.table.holds(),
            Err(_) => &[],
        };
        let marks_decide = self.spec.common.mode != Mode::Wal;
        let facts = PipelineFacts { holds, marks_decide, process_reads };
        let mut answers = self.answers(database.as_ref().ok(), process.as_ref().ok(), facts).await;
        let more = process.as_ref().is_ok_and(|process| process.more)
            || database.as_ref().is_ok_and(|database| {
                database.more_parked
                    || matches!(&database.table, TableAnswer::Rows(found) if found.more)
            });
        let limit = usize::try_from(self.args.limit).unwrap_or(usize::MAX);
        let cut = answers.len() > limit;
        answers.truncate(limit);
        Ok(PipelineReportText {
            spec: self.spec,
            wanted: self.wanted,
            answers,
            more: more || cut,
            sources: self.sources(database, process),
        })
    }

    /// What was asked, for people.
    fn sources(
        &self,
        database: Result<DatabaseAnswer, String>,
        process: Result<ProcessAnswer, String>,
    ) -> Sources {
        let (table, position, processes) = match &database {
            Ok(database) => {
                let name = self.spec.names.table.as_ref().map(ToString::to_string);
                let table = match &database.table {
                    TableAnswer::Rows(_) => Ok(name.unwrap_or_default()),
                    TableAnswer::None(why) => Err((*why).to_owned()),
                    TableAnswer::Failed(why) => Err(why.clone()),
                };
                (Some(table), database.position.clone(), Some(database.processes))
            }
            Err(_) => (None, None, None),
        };
        Sources {
            listen: self.listen,
            process,
            database: database.map(drop),
            table,
            position,
            processes,
        }
    }

    /// An answer for each event that anything is known of, the newest first.
    async fn answers(
        &self,
        database: Option<&DatabaseAnswer>,
        process: Option<&ProcessAnswer>,
        facts: PipelineFacts<'_>,
    ) -> Vec<EventAnswer> {
        let (rows, parked): (&[FoundRow], &[ParkedEvent]) = match database {
            Some(database) => (database.table.rows(), &database.parked),
            None => (&[], &[]),
        };
        let mut answers = Vec::new();
        let mut shown: Vec<String> = Vec::new();
        for id in ids(rows, parked, self.wanted) {
            let rows: Vec<&FoundRow> = rows.iter().filter(|row| row.id == id).collect();
            let own = |event: &&ParkedEvent| event.event_id.as_deref() == Some(id.as_str());
            let parked: Vec<&ParkedEvent> = parked.iter().filter(own).collect();
            let sent = match self.wanted {
                Wanted::Id(wanted) if wanted == id => {
                    process.map(|process| process.found.clone()).unwrap_or_default()
                }
                // The process has answered about the aggregate, or about another form of the id.
                Wanted::Id(_) | Wanted::Aggregate(..) if process.is_some() => {
                    let answer = ask(self.listen, self.spec, Wanted::Id(&id)).await;
                    answer.map(|answer| answer.found).unwrap_or_default()
                }
                Wanted::Id(_) | Wanted::Aggregate(..) => Vec::new(),
            };
            shown.extend(sent.iter().map(|sent| sent.position.clone()));
            answers.extend(of_one_id(&id, &rows, &parked, &sent, facts));
        }
        // Events whose rows are deleted: the process remembers no ids.
        if let (Wanted::Aggregate(kind, id), Some(process)) = (self.wanted, process) {
            for sent in process.found.iter().filter(|sent| !shown.contains(&sent.position)) {
                let event = EventFacts { sent: &[sent], parked: None, row: None };
                if let Some(verdict) = decide(event, facts) {
                    let aggregate = Some((kind.to_owned(), id.to_owned()));
                    answers.push(EventAnswer::new(None, aggregate, verdict, event));
                }
            }
        }
        answers
    }

    async fn ask_database(&self) -> Result<DatabaseAnswer, CliError> {
        let control = session(self.spec, APPLICATION_NAME).await?;
        let client = control.client();
        let key = self.spec.key();
        let padded = match &self.spec.names.table {
            Some(table) => {
                let columns = [Role::Id, Role::AggregateType, Role::AggregateId];
                let columns = columns.map(|role| self.spec.common.outbox.column(role));
                Padded::read(client, table, columns).await?
            }
            None => Padded::default(),
        };
        find::begin(client).await?;
        let processes = pause::connected(client, key).await?;
        let position = find::position(client, key).await?;
        let (mut parked, more_parked) = self.parked(client, padded).await?;
        // An error of the table ends the transaction, so the table comes last.
        let table = self.table(client).await?;
        find::end(client).await?;
        // The newest first, as rows are.
        parked.reverse();
        Ok(DatabaseAnswer { position, parked, more_parked, table, processes })
    }

    /// Parked events, those that still wait before those that are published or skipped.
    async fn parked(
        &self,
        client: &Client,
        padded: Padded,
    ) -> Result<(Vec<ParkedEvent>, bool), SourceError> {
        let limit = i64::from(self.args.limit);
        let mut filter = Filter::default();
        match self.wanted {
            Wanted::Id(id) => filter.event_ids.push(id.to_owned()),
            Wanted::Aggregate(kind, id) => {
                filter.aggregate = Some((kind.to_owned(), id.to_owned()));
            }
        }
        let (resolved, open): (Vec<State>, Vec<State>) =
            State::ALL.iter().partition(|state| state.resolved());
        let mut found = Vec::new();
        let mut more = false;
        for states in [resolved, open] {
            let filter = Filter { states, ..filter.clone() };
            let mut some =
                requests::list(client, self.spec.key(), &filter, padded, limit + 1).await?;
            more |= i64::try_from(some.len()).unwrap_or(i64::MAX) > limit;
            some.truncate(usize::try_from(limit).unwrap_or(usize::MAX));
            found.extend(some);
        }
        Ok((found, more))
    }

    async fn table(&self, client: &Client) -> Result<TableAnswer, CliError> {
        let Some(rule) = rule(self.spec) else {
            return Ok(TableAnswer::None(if self.spec.capture.is_some() {
                "the events are changes of captured tables, whose rows have no event ids"
            } else {
                "the events are logical messages, which leave no rows"
            }));
        };
        let sought = match self.wanted {
            Wanted::Id(id) => RowSought::Id(id),
            Wanted::Aggregate(kind, id) => RowSought::Aggregate(kind, id),
        };
        let name = rule.table.table.to_string();
        match find::rows(client, rule, sought, self.args.limit).await {
            Ok(found) => Ok(TableAnswer::Rows(found)),
            Err(error) if find::took_too_long(&error) => Ok(TableAnswer::Failed(format!(
                "table {name} could not be searched within 10 s: search for the event's id, or create an index on the \
                 columns of the aggregate"
            ))),
            Err(error) if error.sqlstate().is_some() => {
                Ok(TableAnswer::Failed(CliError::from(error).one_line()))
            }
            Err(error) => Err(error.into()),
        }
    }
}

/// The rule by which a row of the pipeline's table is known to be published; `None` without a table.
fn rule(spec: &PipelineSpec) -> Option<RetentionRule> {
    let outbox = &spec.common.outbox;
    Some(RetentionRule {
        table: spec.poll.table.clone()?,
        mode: spec.common.mode.name(),
        layout: outbox.layout.name().to_owned(),
        marked: spec.marks().is_some(),
        expiry: outbox.column(Role::ExpiresAt).map(str::to_owned),
        settings: RetentionSettings::default(),
    })
}

/// The ids that anything is known of, the newest first.
fn ids(rows: &[FoundRow], parked: &[ParkedEvent], wanted: Wanted<'_>) -> Vec<String> {
    let mut ids: Vec<String> = rows.iter().map(|row| row.id.clone()).collect();
    ids.extend(parked.iter().filter_map(|event| event.event_id.clone()));
    if let Wanted::Id(id) = wanted {
        ids.push(id.to_owned());
    }
    let mut known = Vec::new();
    for id in ids {
        if !known.contains(&id) {
            known.push(id);
        }
    }
    known
}

/// The answers for the events of one id. Usually there is one. If the id was given to several events, a row cannot be
/// told to be one of the others, so each of them has an answer of its own.
fn of_one_id(
    id: &str,
    rows: &[&FoundRow],
    parked: &[&ParkedEvent],
    sent: &[SentEvent],
    facts: PipelineFacts<'_>,
) -> Vec<EventAnswer> {
    let mut positions: Vec<String> = Vec::new();
    let all = sent.iter().map(|sent| sent.position.clone());
    for position in all.chain(parked.iter().map(|event| event.position.to_string())) {
        if !positions.contains(&position) {
            positions.push(position);
        }
    }
    let is_one = positions.len() <= 1 && rows.len() <= 1;
    let mut answers = Vec::new();
    let mut add = |event: EventFacts<'_>| {
        let Some(verdict) = decide(event, facts) else { return };
        let aggregate = event
            .row
            .map(|row| row.aggregate.clone())
            .or_else(|| event.parked.and_then(|parked| parked.aggregate.clone()));
        answers.push(EventAnswer::new(Some(id.to_owned()), aggregate, verdict, event));
    };
    if is_one {
        let sent: Vec<&SentEvent> = sent.iter().collect();
        let (parked, row) = (parked.first().copied(), rows.first().copied());
        add(EventFacts { sent: &sent, parked, row });
        return answers;
    }
    for position in &positions {
        let sent: Vec<&SentEvent> = sent.iter().filter(|sent| sent.position == *position).collect();
        let parked = parked.iter().find(|event| event.position.to_string() == *position).copied();
        add(EventFacts { sent: &sent, parked, row: None });
    }
    for row in rows {
        add(EventFacts { sent: &[], parked: None, row: Some(row) });
    }
    answers
}
