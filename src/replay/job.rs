//! A replay from its preparation to its end.

use super::ReplayError;
use super::plan::{Choice, Plan, ReplayRequest, Source, Until, resumed, resumed_source, source};
use super::publisher::{
    BYTES_MAX, EVENTS_MAX, ParkedLanes, Publisher, PublisherParts, Selection, Stamp,
};
use super::run::{Reconnect, ReplayContext, Run, SessionEnd};
use super::tally::{Account, ReplayUpdate, Tally};
use crate::event::{Aggregate, Position};
use crate::finding::{Finding, Severity};
use crate::offset::Offset;
use crate::outbox::Mapper;
use crate::parked::Lane;
use crate::pipeline::PipelineSpec;
use crate::postgres::catalog::{self, ServerFacts};
use crate::postgres::control::Control;
use crate::postgres::replay::NewReplay;
use crate::postgres::store::{bookmark, cursor, parked};
use crate::postgres::{SourceError, replay as rows};
use crate::sink::{Mailbox, Needs, Purpose, Sink};
use crate::store::PipelineKey;
use std::collections::HashSet;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;
use tokio_postgres::Client;

/// Options of one run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ReplayOptions {
    /// Events a second; 0 for no limit.
    pub rate: u32,
    /// Only count the events.
    pub dry_run: bool,
}

/// What [`ReplayJob::prepare`] prepares.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Prepared {
    /// A new replay of this name.
    New {
        /// Its name.
        name: String,
        /// What to replay.
        request: Box<ReplayRequest>,
    },
    /// Resume the replay of this name, or the only one that was interrupted.
    Resume(Option<String>),
}

/// A prepared replay.
pub struct ReplayJob {
    /// The pipeline.
    spec: Arc<PipelineSpec>,
    /// The session that has the lock.
    control: Control,
    /// Its row; `None` for a new replay.
    row: Option<rows::Replay>,
    /// What is replayed, and from where.
    plan: Plan,
}

impl ReplayJob {
    /// Takes the lock of replays, and finds out where to read from. Nothing is written. `control` is a session in the
    /// pipeline's database, whose schema is current.
    ///
    /// # Errors
    /// Any reason why the replay can't begin; see [`ReplayError`].
    pub async fn prepare(
        spec: Arc<PipelineSpec>,
        control: Control,
        what: Prepared,
    ) -> Result<Self, ReplayError> {
        let (client, server) = (control.client(), locked(&control, &spec).await?);
        let (name, request, row) = match what {
            Prepared::New { name, request } => {
                if !bookmark::name_allowed(&name) {
                    return Err(ReplayError::Name { name });
                }
                if rows::find(client, spec.key(), &name).await?.is_some() {
                    return Err(ReplayError::Taken { name });
                }
                (name, *request, None)
            }
            Prepared::Resume(name) => {
                let row = resumed(client, &spec, name).await?;
                let request = ReplayRequest::from_json(&row.request);
                let name = row.name.clone();
                let request = request.ok_or_else(|| ReplayError::BadRow { name: name.clone() })?;
                (name, request, Some(row))
            }
        };
        let source = match &row {
            Some(row) => resumed_source(client, &spec, &server, &request, row).await?,
            None => source(client, &spec, &server, &request).await?,
        };
        let plan = Plan { name, request, source };
        let job = Self { spec, control, row, plan };
        job.refuse_parked().await?;
        job.check_topic()?;
        Ok(job)
    }

    /// What will be replayed, and from where.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// Refuses an aggregate that is requested by name and has parked events.
    async fn refuse_parked(&self) -> Result<(), ReplayError> {
        let request = &self.plan.request;
        let Some((kind, id)) = &request.aggregate else { return Ok(()) };
        if request.include_parked {
            return Ok(());
        }
        let lanes = lanes(self.control.client(), self.spec.key()).await?;
        if lanes.contains(&Lane::of(Aggregate { kind, id })) {
            return Err(ReplayError::Parked { kind: kind.clone(), id: id.clone() });
        }
        Ok(())
    }

    /// Runs the replay to its end, or until `stop` completes. Returns what was done, and the requested IDs that were
    /// not found.
    ///
    /// # Errors
    /// What ended the replay early. What was acknowledged is recorded, if the database could be reached; `--resume`
    /// continues from there.
    pub async fn run(
        mut self,
        options: ReplayOptions,
        stop: impl Future<Output = ()>,
        report: &mut dyn FnMut(ReplayUpdate<'_>),
    ) -> Result<Ended, ReplayError> {
        if !options.dry_run {
            self.begin().await?;
        }
        let mut publisher = self.publisher(options)?;
        let mut mapper = self.mapper().await?;
        let Self { spec, control, row: _, plan } = self;
        let context = ReplayContext { spec: &spec, plan: &plan, dry: options.dry_run };
        let mut run = Run::new(control, context);
        let mut reconnect = Reconnect::new();
        let mut stop = std::pin::pin!(stop);
        let stopped = loop {
            let session = run.session(&mut mapper, &mut publisher, stop.as_mut(), report);
            let error = match Box::pin(session).await {
                Ok(SessionEnd::Over) => match run.finish().await {
                    Ok(()) => break false,
                    Err(error) => error,
                },
                Ok(SessionEnd::Stopped) => break true,
                Ok(SessionEnd::Restart) => continue,
                Err(_) if run.stopping() => break true,
                Err(error) => error,
            };
            let back = reconnect.wait(error, context, &mut publisher, stop.as_mut(), report);
            let Some(control) = Box::pin(back).await? else { break true };
            run.resume_with(control);
        };
        let (tally, choice) = publisher.close();
        let elapsed = run.elapsed();
        Ok(Ended { missing: choice.missing(), tally, elapsed, stopped })
    }

    /// A topic that the user names must exist.
    fn check_topic(&self) -> Result<(), ReplayError> {
        let Some(topic) = &self.plan.request.to else { return Ok(()) };
        let refused = |what: String, fix| ReplayError::Topic { topic: topic.clone(), what, fix };
        if !(self.spec.common.sink.names().allows)(topic.as_bytes()) {
            return Err(refused("it is not the name of a topic".to_owned(), None));
        }
        let found =
            self.spec.common.sink.preflight(&self.needs(), std::slice::from_ref(topic), true);
        let worst = |finding: &Finding| finding.severity == Severity::Error;
        match found.into_iter().find(worst) {
            None => Ok(()),
            Some(finding) => {
                let lines: Vec<String> = finding.fix.iter().map(|fix| fix.line.clone()).collect();
                Err(refused(finding.what, (!lines.is_empty()).then(|| lines.join("\n"))))
            }
        }
    }

    /// Writes the row of a new replay.
    async fn begin(&mut self) -> Result<(), ReplayError> {
        if self.row.is_some() {
            return Ok(());
        }
        let request = self.plan.request.to_json();
        let until_asked = match self.plan.request.until {
            Some(Until::Lsn(until)) => Some(until),
            Some(Until::Time(_)) | None => None,
        };
        let (bookmark, from) = match &self.plan.source {
            Source::Log { bookmark, from, .. } => (Some(bookmark.as_str()), Some(*from)),
            Source::Table { .. } => (None, None),
        };
        let name = &self.plan.name;
        let new = NewReplay { name, request: &request, bookmark, from, until: until_asked };
        let row = rows::insert(self.control.client(), self.spec.key(), &new).await?;
        let row = row.ok_or_else(|| ReplayError::Taken { name: name.clone() })?;
        if let (Source::Log { until, .. }, Some(fixed)) = (&mut self.plan.source, row.until) {
            *until = fixed;
        }
        self.row = Some(row);
        Ok(())
    }

    /// A mapper with the recorded histories, so that positions are those of the first publication.
    async fn mapper(&self) -> Result<Mapper, ReplayError> {
        let mut mapper = self.spec.mapper().map_err(|mut errors| match errors.pop() {
            Some(error) => ReplayError::Spec(error),
            None => ReplayError::NoSource,
        })?;
        let histories = cursor::histories(self.control.client(), self.spec.key()).await?;
        let rows = matches!(self.plan.source, Source::Table { .. });
        mapper.set_histories(histories.unwrap_or_default(), rows);
        Ok(mapper)
    }

    fn publisher(&self, options: ReplayOptions) -> Result<Publisher, ReplayError> {
        let mailbox = Mailbox::default();
        let beside = self.spec.common.sink.capabilities().held_bytes;
        let sink = if options.dry_run { None } else { Some((self.sink(&mailbox)?, beside)) };
        let row = self.row.as_ref();
        let found = row.map_or(&[][..], |row| &row.found);
        let choice = Choice::new(&self.plan.request, found);
        let (published, refused) = row.map_or((0, 0), |row| (row.published, row.refused));
        let tally = Tally::resumed_with(published, refused);
        let (choice, start, account) = match &self.plan.source {
            Source::Log { from, .. } => {
                let start = row.and_then(|row| row.next).unwrap_or(*from);
                (choice, start, Account::of_positions(tally))
            }
            Source::Table { .. } => {
                let done = row.and_then(|row| row.last_id.clone());
                (choice.without_times(), Position::default(), Account::of_rows(tally, done))
            }
        };
        let parked = (!self.plan.request.include_parked).then(ParkedLanes::default);
        let (to, name) = (self.plan.request.to.clone(), self.plan.name.clone());
        Ok(Publisher::new(PublisherParts {
            sink,
            mailbox,
            rate: options.rate,
            selection: Selection { start, choice, parked },
            stamp: Stamp { to, name },
            account,
        }))
    }

    /// What the sink of a replay is opened with: limits of its own, beside those of the live stream.
    fn needs(&self) -> Needs {
        Needs {
            in_flight_events: EVENTS_MAX,
            in_flight_bytes: BYTES_MAX,
            ..self.spec.needs(Purpose::Replay)
        }
    }

    /// A sink of its own, which shares nothing with the live stream.
    fn sink(&self, mailbox: &Mailbox) -> Result<Box<dyn Sink>, ReplayError> {
        // A second producer of the pipeline would fence the live one off.
        if self.spec.common.sink.capabilities().transactions.is_some() {
            return Err(ReplayError::SinkUnfit {
                reason: "a sink that publishes in transactions takes no replay".to_owned(),
                hint: "insert the rows again as new events (docs/operations/upgrades.md)"
                    .to_owned(),
            });
        }
        Ok(self.spec.common.sink.open(&self.needs(), mailbox.clone())?)
    }
}

/// How a replay ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Ended {
    /// What was done.
    pub tally: Tally,
    /// The requested IDs that were not found.
    pub missing: Vec<String>,
    /// How long the run took.
    pub elapsed: Duration,
    /// The run was stopped before the end.
    pub stopped: bool,
}

/// Takes the lock of the pipeline's replays, on a server that is no standby.
pub(super) async fn locked(
    control: &Control,
    spec: &PipelineSpec,
) -> Result<ServerFacts, ReplayError> {
    let client = control.client();
    let server = catalog::read_server(client).await?;
    if server.in_recovery {
        return Err(ReplayError::Standby);
    }
    if let Some(pid) = rows::lock(client, spec.key()).await? {
        return Err(ReplayError::Busy { pipeline: spec.name().to_owned(), pid });
    }
    Ok(server)
}

/// The lanes of all parked events that are not resolved.
pub(super) async fn lanes(
    client: &Client,
    key: &PipelineKey,
) -> Result<HashSet<Lane>, SourceError> {
    let end = Position { commit: Offset::MAX, ordinal: 0 };
    let loaded = parked::load(client, key, end).await?;
    let open = loaded.iter().filter(|loaded| !loaded.entry.state.resolved());
    Ok(open.filter_map(|loaded| loaded.entry.lane).collect())
}
