//! The loop: feeds the outlet from the source, writes what is done, and is the only place that waits.

mod reading;

use super::ReplayError;
use super::away::Place;
use super::job::lanes;
use super::log::{Log, Span};
use super::outlet::{Offered, Outlet};
use super::plan::{Plan, Source};
use super::request::From;
use super::rows::Table;
use super::tally::{Moment, Tell};
use crate::driver::{PipelineSpec, type_facts};
use crate::event::Position;
use crate::outbox::Mapper;
use crate::postgres::control::Control;
use crate::postgres::replay::{self as rows, Done, Met, Rows, Select};
use crate::postgres::{server, table, types};
use reading::Reading;
use std::future::Future;
use std::pin::Pin;
use std::time::{Duration, Instant};

/// Pause between two times that progress is written: what comes twice after a kill is what was in flight, and what was
/// acknowledged within this.
const SAVE_INTERVAL: Duration = Duration::from_secs(1);

/// Pause between two looks at the parked table.
const PARKED_INTERVAL: Duration = Duration::from_secs(5);

/// Pause between two words of progress.
const TELL_INTERVAL: Duration = Duration::from_millis(250);

/// How long what is in flight is waited for when it is told to stop.
const STOP_GRACE: Duration = Duration::from_secs(5);

/// What the server knows the sessions by.
pub(super) const APPLICATION_NAME: &str = "postrider replay";

/// How a session with the source ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Turn {
    /// Everything is published.
    Over,
    /// It was told to stop.
    Stopped,
    /// The producer was thrown away: begin anew with what is done.
    Again,
}

/// One run.
pub(super) struct Run<'a> {
    control: Control,
    spec: &'a PipelineSpec,
    plan: &'a Plan,
    dry: bool,
    started: Instant,
    save_at: Instant,
    parked_at: Instant,
    tell_at: Instant,
    saved: Option<(Done, Met)>,
    /// Of the table, what is done: a session that begins anew goes on there.
    row_done: Option<String>,
    /// What the session before was reading: what is still reported counts for it.
    before: Option<Reading>,
    stop_by: Option<Instant>,
}

impl<'a> Run<'a> {
    pub(super) fn new(control: Control, place: Place<'a>, row_done: Option<String>) -> Self {
        let now = Instant::now();
        let Place { spec, plan, dry } = place;
        Self {
            control,
            spec,
            plan,
            dry,
            started: now,
            save_at: now + SAVE_INTERVAL,
            parked_at: now,
            tell_at: now + TELL_INTERVAL,
            saved: None,
            row_done,
            before: None,
            stop_by: None,
        }
    }

    pub(super) fn elapsed(&self) -> Duration {
        self.started.elapsed()
    }

    /// Whether it was told to stop.
    pub(super) fn stopping(&self) -> bool {
        self.stop_by.is_some()
    }

    /// Another session in the place of one that was lost.
    pub(super) fn go_on_with(&mut self, control: Control) {
        self.control = control;
        self.saved = None;
    }

    /// Gives up what is in flight, and remembers how far the rows of the table are done.
    pub(super) fn put_down(&mut self, outlet: &mut Outlet) {
        if let Some(mut reading) = self.before.take() {
            reading.settle(outlet);
            self.row_done = reading.row_done();
        }
        outlet.start_again();
    }

    /// Notes that it is at its end.
    pub(super) async fn finish(&self) -> Result<(), ReplayError> {
        if self.dry {
            return Ok(());
        }
        rows::finish(self.control.client(), self.spec.name(), &self.plan.name).await?;
        Ok(())
    }

    /// Reads from what is done to the end.
    pub(super) async fn session<S: Future<Output = ()>>(
        &mut self,
        mapper: &mut Mapper,
        outlet: &mut Outlet,
        stop: Pin<&mut S>,
        tell: &mut dyn FnMut(Tell<'_>),
    ) -> Result<Turn, ReplayError> {
        let mut reading = self.open(mapper, outlet).await?;
        let turn = self.read_on(&mut reading, mapper, outlet, stop, tell).await;
        // The connection goes, and what it was reading stays.
        reading.hang_up();
        self.before = Some(reading);
        turn
    }

    async fn read_on<S: Future<Output = ()>>(
        &mut self,
        reading: &mut Reading,
        mapper: &mut Mapper,
        outlet: &mut Outlet,
        mut stop: Pin<&mut S>,
        tell: &mut dyn FnMut(Tell<'_>),
    ) -> Result<Turn, ReplayError> {
        loop {
            outlet.take_posts(tell)?;
            reading.settle(outlet);
            self.tick(reading, outlet, tell).await?;
            if outlet.reset {
                return Ok(Turn::Again);
            }
            if reading.over() && outlet.is_settled() {
                self.save(reading, outlet).await?;
                self.tell(reading, outlet, tell);
                return Ok(Turn::Over);
            }
            if let Some(by) = self.stop_by
                && (outlet.in_flight() == 0 || Instant::now() >= by)
            {
                self.save(reading, outlet).await?;
                return Ok(Turn::Stopped);
            }
            let wake = match self.feed(reading, mapper, outlet).await? {
                Some(wake) => wake,
                None => Instant::now(),
            };
            let wants = reading.wants_frames() && self.stop_by.is_none();
            tokio::select! {
                biased;
                () = &mut stop, if self.stop_by.is_none() => {
                    self.stop_by = Some(Instant::now() + STOP_GRACE);
                }
                () = outlet.posted() => {}
                // A server that stops waits for its walsenders, and the loss of this session is its first word.
                error = self.control.closed() => return Err(error.into()),
                read = reading.read(), if wants => read?,
                () = tokio::time::sleep_until(wake.into()) => {}
            }
        }
    }

    /// Feeds what is at hand. When to feed again, unless something happens before; `None` for at once.
    async fn feed(
        &self,
        reading: &mut Reading,
        mapper: &mut Mapper,
        outlet: &mut Outlet,
    ) -> Result<Option<Instant>, ReplayError> {
        let timers = self.tell_at.min(self.save_at);
        if self.stop_by.is_some() || reading.over() {
            return Ok(Some(timers));
        }
        reading.fetch().await?;
        if let Reading::Table(table) = &reading
            && table.over
            && table.lost_its_place()
        {
            let id = self.row_done.clone().unwrap_or_default();
            return Err(ReplayError::LostPlace { id });
        }
        let offered = reading.feed(mapper, outlet)?;
        if let Reading::Log(log) = &mut *reading
            && !log.unknown_types.is_empty()
        {
            let asked = std::mem::take(&mut log.unknown_types);
            let found = types::read(self.control.client(), &asked).await?;
            mapper.learn_types(&asked, &found.iter().map(type_facts).collect::<Vec<_>>());
            return Ok(None);
        }
        match offered {
            Offered::Done if reading.wants_frames() => Ok(Some(timers)),
            Offered::Done => Ok(None),
            Offered::Wait(due) => Ok(Some(due.map_or(timers, |due| due.min(timers)))),
        }
    }

    async fn open(&self, mapper: &mut Mapper, outlet: &mut Outlet) -> Result<Reading, ReplayError> {
        match &self.plan.source {
            Source::Log { bookmark, slot, messages, from: _, until } => {
                let oid = match &self.spec.names.table {
                    Some(name) => {
                        table::read(self.control.client(), name).await?.map(|table| table.oid)
                    }
                    None => None,
                };
                mapper.forget_relations(oid);
                let encoding = server::read(self.control.client()).await?.encoding;
                let encoding = self.spec.messages_encoding(&encoding);
                let unreadable = |halt| ReplayError::Messages(Box::new(halt));
                mapper.read_messages_as(encoding.map_err(unreadable)?);
                let asked = match &self.plan.request.from {
                    From::Lsn { at, .. } => Some(at.commit_lsn),
                    From::Bookmark(_) | From::Since(_) | From::Anywhere => None,
                };
                let span = Span {
                    bookmark: bookmark.clone(),
                    slot: slot.clone(),
                    publication: self.spec.names.publication.clone(),
                    messages: *messages || self.spec.messages(),
                    until: *until,
                    asked,
                };
                let start = outlet.tracker.progress().position();
                let log = Log::open(&self.spec.conninfo, APPLICATION_NAME, &span, start).await?;
                Ok(Reading::Log(Box::new(log)))
            }
            Source::Table { order: _, since, until } => {
                let Some(poll) = &self.spec.poll.table else { return Err(ReplayError::NoSource) };
                let request = &self.plan.request;
                let select = Select {
                    ids: &request.ids,
                    aggregate: request.aggregate.as_ref(),
                    since: *since,
                    until: *until,
                    after: self.row_done.as_deref(),
                };
                let rows = Rows::open(&self.spec.conninfo, APPLICATION_NAME, poll, &select).await?;
                let table = Table::new(rows, self.row_done.clone(), mapper, outlet)?;
                Ok(Reading::Table(Box::new(table)))
            }
        }
    }

    /// What is due: the row of progress, a look at the parked table, a word to whoever watches.
    async fn tick(
        &mut self,
        reading: &Reading,
        outlet: &mut Outlet,
        tell: &mut dyn FnMut(Tell<'_>),
    ) -> Result<(), ReplayError> {
        let now = Instant::now();
        if now >= self.parked_at
            && let Some(parked) = &mut outlet.parked
        {
            parked.now = lanes(self.control.client(), self.spec.name()).await?;
            self.parked_at = now + PARKED_INTERVAL;
        }
        if now >= self.save_at {
            self.save(reading, outlet).await?;
            self.save_at = Instant::now() + SAVE_INTERVAL;
        }
        if now >= self.tell_at {
            self.tell(reading, outlet, tell);
            self.tell_at = now + TELL_INTERVAL;
        }
        Ok(())
    }

    fn tell(&self, reading: &Reading, outlet: &Outlet, tell: &mut dyn FnMut(Tell<'_>)) {
        let log = match (reading, &self.plan.source) {
            (Reading::Log(log), Source::Log { from, until, .. }) => {
                Some((from.commit_lsn, log.at.min(*until), *until))
            }
            (Reading::Log(_) | Reading::Table(_) | Reading::Nothing, _) => None,
        };
        tell(Tell::Progress(Moment {
            tally: &outlet.tally,
            elapsed: self.elapsed(),
            log,
            in_flight: outlet.in_flight(),
        }));
    }

    /// Writes what is done, where that is news.
    async fn save(&mut self, reading: &Reading, outlet: &Outlet) -> Result<(), ReplayError> {
        if self.dry {
            return Ok(());
        }
        let done = match reading {
            Reading::Log(log) if log.over && outlet.is_settled() => {
                Done::Upto(Position { commit_lsn: log.until(), ordinal: 0 })
            }
            Reading::Log(_) | Reading::Nothing => Done::Upto(outlet.tracker.progress().position()),
            Reading::Table(table) => Done::Row(table.done.clone()),
        };
        let (published, refused) = (outlet.tally.published, outlet.tally.refused);
        let met = Met { published, refused, found: outlet.choice.met() };
        if self.saved.as_ref().is_some_and(|saved| (&saved.0, &saved.1) == (&done, &met)) {
            return Ok(());
        }
        rows::save(self.control.client(), self.spec.name(), &self.plan.name, &done, &met).await?;
        self.saved = Some((done, met));
        Ok(())
    }
}
