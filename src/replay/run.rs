//! The loop: feeds the outlet from the source, writes what is done, and is the only place that waits.

use super::ReplayError;
use super::job::{lanes, locked};
use super::outlet::{Moment, Offered, Outlet, Tell};
use super::plan::{From, Plan, Source, again};
use super::source::{Log, Span, Table};
use crate::backoff::Backoff;
use crate::error::Chain;
use crate::event::Position;
use crate::outbox::Mapper;
use crate::pipeline::{PipelineSpec, type_facts};
use crate::postgres::control::Control;
use crate::postgres::error_policy::{Action, Phase, Repeats, action};
use crate::postgres::replay::{Done, Met, Rows, Select};
use crate::postgres::{SourceError, catalog, replay as rows};
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
            let found = catalog::read_types(self.control.client(), &asked).await?;
            mapper.add_types(&asked, &found.iter().map(type_facts).collect::<Vec<_>>());
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
                    Some(name) => catalog::read_table(self.control.client(), name)
                        .await?
                        .map(|table| table.oid),
                    None => None,
                };
                mapper.clear_relations(oid);
                let encoding = catalog::read_server(self.control.client()).await?.encoding;
                let encoding = self.spec.messages_encoding(&encoding);
                let unreadable = |halt| ReplayError::Messages(Box::new(halt));
                mapper.set_message_encoding(encoding.map_err(unreadable)?);
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

// What a session reads: the log or the table, asked the same questions.
//
// Knows neither progress nor time; what is fed goes to the outlet, and the loop decides when.

enum Reading {
    Log(Box<Log>),
    Table(Box<Table>),
    /// The log, after its connection.
    Nothing,
}

impl Reading {
    fn over(&self) -> bool {
        match self {
            Self::Log(log) => log.over,
            Self::Table(table) => table.over,
            Self::Nothing => false,
        }
    }

    /// Lets go of the connection to a log.
    fn hang_up(&mut self) {
        if matches!(self, Self::Log(_)) {
            *self = Self::Nothing;
        }
    }

    fn wants_frames(&self) -> bool {
        matches!(self, Self::Log(log) if !log.has_frames() && !log.over)
    }

    /// Waits for frames of the log. Cancel-safe.
    async fn read(&mut self) -> Result<(), SourceError> {
        match self {
            Self::Log(log) => log.read().await,
            Self::Table(_) | Self::Nothing => std::future::pending().await,
        }
    }

    /// Fetches rows of the table, where none are at hand.
    async fn fetch(&mut self) -> Result<(), SourceError> {
        match self {
            Self::Table(table) if !table.has_rows() && !table.over => table.read().await,
            Self::Log(_) | Self::Table(_) | Self::Nothing => Ok(()),
        }
    }

    fn feed(&mut self, mapper: &mut Mapper, outlet: &mut Outlet) -> Result<Offered, ReplayError> {
        match self {
            Self::Log(log) => log.feed(mapper, outlet),
            Self::Table(table) => table.feed(mapper, outlet),
            Self::Nothing => Ok(Offered::Done),
        }
    }

    fn settle(&mut self, outlet: &Outlet) {
        if let Self::Table(table) = self {
            table.settle(outlet);
        }
    }

    fn row_done(&self) -> Option<String> {
        match self {
            Self::Log(_) | Self::Nothing => None,
            Self::Table(table) => table.done.clone(),
        }
    }
}

// A database that is away: waited for, with pauses that double, until it is back, can't be gone on with, or the replay
// is told to stop. There is no last try.

/// Pauses between two tries: the first, and the longest.
const PAUSE_MIN: Duration = Duration::from_millis(200);
const PAUSE_MAX: Duration = Duration::from_secs(15);

/// A try to connect may take this long.
const TRY_MAX: Duration = Duration::from_mins(1);

/// What is gone on with.
#[derive(Clone, Copy)]
pub(super) struct Place<'a> {
    pub(super) spec: &'a PipelineSpec,
    pub(super) plan: &'a Plan,
    /// A dry run has no row.
    pub(super) dry: bool,
}

/// The wait for a database.
#[derive(Debug)]
pub(super) struct Away {
    backoff: Backoff,
    repeats: Repeats,
    back_at: Instant,
}

impl Away {
    pub(super) fn new() -> Self {
        let backoff = Backoff::new(PAUSE_MIN, PAUSE_MAX);
        Self { backoff, repeats: Repeats::default(), back_at: Instant::now() }
    }

    /// Waits until there is a session again that may go on after `error`; `None` where it is told to stop. What is in
    /// flight meanwhile is still reported.
    ///
    /// # Errors
    /// `error`, where waiting does not mend it, or what has become of the place.
    pub(super) async fn wait<S: Future<Output = ()>>(
        &mut self,
        error: ReplayError,
        place: Place<'_>,
        outlet: &mut Outlet,
        mut stop: Pin<&mut S>,
        tell: &mut dyn FnMut(Tell<'_>),
    ) -> Result<Option<Control>, ReplayError> {
        if self.back_at.elapsed() > PAUSE_MAX {
            self.backoff.reset();
        }
        let mut least = self.heals(&error, Phase::Stream, outlet);
        let mut error = error;
        loop {
            let Some(pause_min) = least else { return Err(error) };
            let told = format!("the database is away, or will not go on: {}", Chain(&error));
            tell(Tell::Down(&told, None));
            let until = Instant::now() + self.backoff.next(fastrand::f64()).max(pause_min);
            while Instant::now() < until {
                tokio::select! {
                    biased;
                    () = &mut stop => return Ok(None),
                    () = outlet.posted() => outlet.take_posts(tell)?,
                    () = tokio::time::sleep_until(until.into()) => {}
                }
            }
            let attempt = tokio::time::timeout(TRY_MAX, connect(place, outlet));
            let tried = tokio::select! {
                biased;
                () = &mut stop => return Ok(None),
                tried = attempt => tried,
            };
            match tried {
                Ok(Ok(control)) => {
                    tell(Tell::Up);
                    self.back_at = Instant::now();
                    return Ok(Some(control));
                }
                Ok(Err(why)) => {
                    least = self.heals(&why, Phase::Control, outlet);
                    error = why;
                }
                Err(_elapsed) => least = Some(PAUSE_MIN),
            }
        }
    }

    /// The shortest pause before the next try, where another may do better.
    fn heals(&mut self, error: &ReplayError, phase: Phase, outlet: &Outlet) -> Option<Duration> {
        let ReplayError::Source(error) = error else {
            // A session of ours that the server still has, or somebody else's; a standby may be promoted.
            let passes = matches!(
                error,
                ReplayError::Busy { .. } | ReplayError::InUse { .. } | ReplayError::Standby
            );
            return (passes && phase == Phase::Control).then_some(Duration::from_secs(1));
        };
        match action(error, phase, true) {
            Action::Reconnect(class) | Action::Later(class) => {
                let at = outlet.tracker.progress().position().commit_lsn;
                let wedged = self.repeats.wedged(error, at);
                (!wedged).then(|| class.pause_min())
            }
            Action::StandBy => Some(PAUSE_MIN),
            Action::Recheck(_) | Action::Halt(_) => None,
        }
    }
}

/// A session that has the lock, on a server where the replay is as we left it.
async fn connect(place: Place<'_>, outlet: &Outlet) -> Result<Control, ReplayError> {
    let Place { spec, plan, dry } = place;
    let control = Control::connect(&spec.conninfo, APPLICATION_NAME).await?;
    let (client, server) = (control.client(), locked(&control, spec).await?);
    if dry {
        return Ok(control);
    }
    let name = plan.name.clone();
    let Some(row) = rows::find(client, spec.name(), &name).await? else {
        let known = rows::names(client, spec.name()).await?;
        return Err(ReplayError::Unknown { name, known });
    };
    if row.finished {
        return Err(ReplayError::Finished { name, published: row.published });
    }
    // What we noted last may have arrived though nobody said so, the end of all too; more than that only another can
    // have noted.
    let end = match &plan.source {
        Source::Log { until, .. } => Some(*until),
        Source::Table { .. } => None,
    };
    let ours = |next: Position| {
        next <= outlet.tracker.progress().position() || Some(next.commit_lsn) == end
    };
    if row.next.is_some_and(|next| !ours(next)) {
        return Err(ReplayError::TakenOver { name });
    }
    again(client, spec, &server, &plan.request, &row).await?;
    Ok(control)
}
