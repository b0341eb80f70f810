//! The loop of a replay: feeds the publisher from the source, writes progress, and waits.

use super::ReplayError;
use super::job::{lanes, locked};
use super::plan::{From, Plan, Source, resumed_source};
use super::publisher::{Offered, Publisher};
use super::source::{BookmarkStream, LogRange, TableRows};
use super::tally::{ReplayProgress, ReplayUpdate};
use crate::backoff::Backoff;
use crate::error::Chain;
use crate::event::Position;
use crate::outbox::Mapper;
use crate::pipeline::{PipelineSpec, TableOids};
use crate::postgres::control::Control;
use crate::postgres::error_policy::{Action, Phase, Repeats, action};
use crate::postgres::replay::{OutboxRows, ReplayCounts, RowSelection, SavedPosition};
use crate::postgres::store::cursor;
use crate::postgres::{SourceError, catalog, replay as rows};
use crate::row::TableId;
use std::future::Future;
use std::pin::Pin;
use std::time::{Duration, Instant};

/// Pause between two queries of the parked table.
const PARKED_INTERVAL: Duration = Duration::from_secs(5);

/// Pause between two reports of progress.
const REPORT_INTERVAL: Duration = Duration::from_millis(250);

/// How long a stop waits for what is in flight.
const STOP_GRACE: Duration = Duration::from_secs(5);

/// `application_name` of the sessions.
pub(super) const APPLICATION_NAME: &str = "postrider replay";

/// How a session with the source ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum SessionEnd {
    /// Everything is published.
    Over,
    /// The run was stopped.
    Stopped,
    /// The sink was reset: start again from the recorded progress.
    Restart,
}

/// One run of a replay.
pub(super) struct Run<'a> {
    /// A session for progress and catalog queries.
    control: Control,
    /// The pipeline.
    spec: &'a PipelineSpec,
    /// What is replayed.
    plan: &'a Plan,
    /// Only count.
    dry: bool,
    /// When the run began.
    started: Instant,
    /// When the parked table is next queried.
    parked_at: Instant,
    /// When progress is next reported.
    report_at: Instant,
    /// The progress that was last written.
    saved: Option<(SavedPosition, ReplayCounts)>,
    /// When a stop no longer waits for what is in flight.
    stop_by: Option<Instant>,
}

impl<'a> Run<'a> {
    pub(super) fn new(control: Control, context: ReplayContext<'a>) -> Self {
        let now = Instant::now();
        let ReplayContext { spec, plan, dry } = context;
        Self {
            control,
            spec,
            plan,
            dry,
            started: now,
            parked_at: now,
            report_at: now + REPORT_INTERVAL,
            saved: None,
            stop_by: None,
        }
    }

    pub(super) fn elapsed(&self) -> Duration {
        self.started.elapsed()
    }

    /// Whether a stop was requested.
    pub(super) fn stopping(&self) -> bool {
        self.stop_by.is_some()
    }

    /// Replaces a session that was lost.
    pub(super) fn resume_with(&mut self, control: Control) {
        self.control = control;
        self.saved = None;
    }

    /// Records that the replay is finished.
    pub(super) async fn finish(&self) -> Result<(), ReplayError> {
        if self.dry {
            return Ok(());
        }
        rows::finish(self.control.client(), self.spec.key(), &self.plan.name).await?;
        Ok(())
    }

    /// Reads from the progress to the end.
    pub(super) async fn session<S: Future<Output = ()>>(
        &mut self,
        mapper: &mut Mapper,
        publisher: &mut Publisher,
        stop: Pin<&mut S>,
        report: &mut dyn FnMut(ReplayUpdate<'_>),
    ) -> Result<SessionEnd, ReplayError> {
        let mut reader = self.open(mapper, publisher).await?;
        let end = self.read_on(&mut reader, mapper, publisher, stop, report).await;
        if end.is_err() {
            publisher.session_lost();
        }
        end
    }

    async fn read_on<S: Future<Output = ()>>(
        &mut self,
        reader: &mut SourceReader,
        mapper: &mut Mapper,
        publisher: &mut Publisher,
        mut stop: Pin<&mut S>,
        report: &mut dyn FnMut(ReplayUpdate<'_>),
    ) -> Result<SessionEnd, ReplayError> {
        loop {
            publisher.take_posts(report)?;
            publisher.tick()?;
            self.tick(reader, publisher, report).await?;
            if reader.over() && publisher.is_settled() {
                self.save(reader, publisher).await?;
                self.report_progress(reader, publisher, report);
                return Ok(SessionEnd::Over);
            }
            // After a restart nothing is in flight: a stop does not wait for what would be sent again.
            if let Some(by) = self.stop_by
                && (publisher.in_flight() == 0 || Instant::now() >= by)
            {
                self.save(reader, publisher).await?;
                return Ok(SessionEnd::Stopped);
            }
            if publisher.restarts() {
                return Ok(SessionEnd::Restart);
            }
            let wake = match self.feed(reader, mapper, publisher).await? {
                Some(wake) => wake,
                None => Instant::now(),
            };
            let wants = reader.wants_frames() && self.stop_by.is_none();
            tokio::select! {
                biased;
                () = &mut stop, if self.stop_by.is_none() => {
                    self.stop_by = Some(Instant::now() + STOP_GRACE);
                }
                () = publisher.posted() => {}
                // A server that stops waits for its walsenders. The end of this session is the first sign of that.
                error = self.control.closed() => return Err(error.into()),
                read = reader.read(), if wants => read?,
                () = tokio::time::sleep_until(wake.into()) => {}
            }
        }
    }

    /// Feeds what was read. Returns when to feed again at the latest; `None` for at once.
    async fn feed(
        &self,
        reader: &mut SourceReader,
        mapper: &mut Mapper,
        publisher: &mut Publisher,
    ) -> Result<Option<Instant>, ReplayError> {
        let timers = self.report_at;
        if self.stop_by.is_some() || reader.over() {
            return Ok(Some(timers));
        }
        reader.fetch().await?;
        if let SourceReader::Table(table) = &reader
            && table.over
            && table.lost_position()
        {
            let id = publisher.row_done().unwrap_or_default().to_owned();
            return Err(ReplayError::LostPlace { id });
        }
        let offered = reader.feed(mapper, publisher)?;
        if let SourceReader::Stream(log) = &mut *reader
            && log.reader().is_blocked()
        {
            log.reader().look_up_types(self.control.client()).await?;
            return Ok(None);
        }
        match offered {
            Offered::Done if reader.wants_frames() => Ok(Some(timers)),
            Offered::Done => Ok(None),
            Offered::Wait(due) => Ok(Some(due.map_or(timers, |due| due.min(timers)))),
        }
    }

    /// Opens the source at the progress.
    async fn open(
        &self,
        mapper: &mut Mapper,
        publisher: &mut Publisher,
    ) -> Result<SourceReader, ReplayError> {
        publisher.session_started();
        match &self.plan.source {
            Source::Log { bookmark, slot, messages, from: _, until } => {
                let client = self.control.client();
                let found = TableOids::read(client, self.spec).await?;
                mapper.clear_tables(found.outbox.map(TableId));
                let encoding = catalog::read_server(client).await?.encoding;
                let encoding = self.spec.messages_encoding(&encoding);
                let unreadable = |halt| ReplayError::Messages(Box::new(halt));
                let encoding = encoding.map_err(unreadable)?;
                let histories = cursor::histories(client, self.spec.key()).await?;
                let histories = histories.unwrap_or_default();
                let changes = self.spec.change_reader(mapper, found, encoding, histories);
                let asked = match &self.plan.request.from {
                    From::Lsn { at, .. } => Some(at.commit),
                    From::Bookmark(_) | From::Since(_) | From::Anywhere => None,
                };
                let range = LogRange {
                    bookmark: bookmark.clone(),
                    slot: slot.clone(),
                    publication: self.spec.names.publication.clone(),
                    messages: *messages || self.spec.messages(),
                    until: *until,
                    asked,
                };
                let start = publisher.read_from();
                let log = BookmarkStream::open(
                    &self.spec.conninfo,
                    APPLICATION_NAME,
                    changes,
                    &range,
                    start,
                )
                .await?;
                Ok(SourceReader::Stream(Box::new(log)))
            }
            Source::Table { order: _, since, until } => {
                let Some(poll) = &self.spec.poll.table else { return Err(ReplayError::NoSource) };
                let request = &self.plan.request;
                let select = RowSelection {
                    ids: &request.ids,
                    aggregate: request.aggregate.as_ref(),
                    since: *since,
                    until: *until,
                    after: publisher.row_done(),
                };
                let rows =
                    OutboxRows::open(&self.spec.conninfo, APPLICATION_NAME, poll, &select).await?;
                let table = TableRows::new(rows, mapper, publisher)?;
                Ok(SourceReader::Table(Box::new(table)))
            }
        }
    }

    /// Does what is due: writes progress, queries the parked table, reports progress.
    async fn tick(
        &mut self,
        reader: &SourceReader,
        publisher: &mut Publisher,
        report: &mut dyn FnMut(ReplayUpdate<'_>),
    ) -> Result<(), ReplayError> {
        let now = Instant::now();
        if now >= self.parked_at
            && let Some(parked) = &mut publisher.selection.parked
        {
            parked.now = lanes(self.control.client(), self.spec.key()).await?;
            self.parked_at = now + PARKED_INTERVAL;
        }
        if publisher.cursor_is_due() {
            self.save(reader, publisher).await?;
            publisher.cursor_written();
        }
        if now >= self.report_at {
            self.report_progress(reader, publisher, report);
            self.report_at = now + REPORT_INTERVAL;
        }
        Ok(())
    }

    fn report_progress(
        &self,
        reader: &SourceReader,
        publisher: &Publisher,
        report: &mut dyn FnMut(ReplayUpdate<'_>),
    ) {
        let log = match (reader, &self.plan.source) {
            (SourceReader::Stream(log), Source::Log { from, until, .. }) => {
                Some((from.commit, log.at().min(*until), *until))
            }
            (SourceReader::Stream(_) | SourceReader::Table(_), _) => None,
        };
        report(ReplayUpdate::Progress(ReplayProgress {
            tally: publisher.tally(),
            elapsed: self.elapsed(),
            log,
            in_flight: publisher.in_flight(),
        }));
    }

    /// Writes progress, if it has changed.
    async fn save(
        &mut self,
        reader: &SourceReader,
        publisher: &Publisher,
    ) -> Result<(), ReplayError> {
        if self.dry {
            return Ok(());
        }
        let done = match reader {
            SourceReader::Stream(log) if log.is_over() && publisher.is_settled() => {
                SavedPosition::Upto(Position { commit: log.until(), ordinal: 0 })
            }
            // Another configuration may divide the changes of captured tables in another way when the replay is
            // resumed, so a transaction that is done in part is published again from its beginning.
            SourceReader::Stream(_) if self.spec.capture.is_some() => {
                let whole = Position { ordinal: 0, ..publisher.done() };
                SavedPosition::Upto(whole.max(publisher.selection.start))
            }
            SourceReader::Stream(_) => SavedPosition::Upto(publisher.done()),
            SourceReader::Table(_) => SavedPosition::Row(publisher.row_done().map(str::to_owned)),
        };
        let tally = publisher.tally();
        let met = ReplayCounts {
            published: tally.published,
            refused: tally.refused,
            found: publisher.selection.choice.met(),
        };
        if self.saved.as_ref().is_some_and(|saved| (&saved.0, &saved.1) == (&done, &met)) {
            return Ok(());
        }
        rows::save(self.control.client(), self.spec.key(), &self.plan.name, &done, &met).await?;
        self.saved = Some((done, met));
        Ok(())
    }
}

enum SourceReader {
    Stream(Box<BookmarkStream>),
    Table(Box<TableRows>),
}

impl SourceReader {
    fn over(&self) -> bool {
        match self {
            Self::Stream(log) => log.is_over(),
            Self::Table(table) => table.over,
        }
    }

    fn wants_frames(&self) -> bool {
        matches!(self, Self::Stream(log) if !log.has_frames() && !log.is_over())
    }

    /// Waits for frames of the WAL. Cancel-safe.
    async fn read(&mut self) -> Result<(), SourceError> {
        match self {
            Self::Stream(log) => log.read().await,
            Self::Table(_) => std::future::pending().await,
        }
    }

    /// Fetches rows of the table, if none are left.
    async fn fetch(&mut self) -> Result<(), SourceError> {
        match self {
            Self::Table(table) if !table.has_rows() && !table.over => table.read().await,
            Self::Stream(_) | Self::Table(_) => Ok(()),
        }
    }

    fn feed(
        &mut self,
        mapper: &mut Mapper,
        publisher: &mut Publisher,
    ) -> Result<Offered, ReplayError> {
        match self {
            Self::Stream(log) => log.feed(mapper, publisher),
            Self::Table(table) => table.feed(mapper, publisher),
        }
    }
}

/// The shortest and the longest pause between two attempts to connect.
const PAUSE_MIN: Duration = Duration::from_millis(200);
const PAUSE_MAX: Duration = Duration::from_secs(15);

/// The longest time for an attempt to connect.
const ATTEMPT_MAX: Duration = Duration::from_mins(1);

/// What is replayed.
#[derive(Clone, Copy)]
pub(super) struct ReplayContext<'a> {
    /// The pipeline.
    pub(super) spec: &'a PipelineSpec,
    /// What is replayed.
    pub(super) plan: &'a Plan,
    /// A dry run has no row.
    pub(super) dry: bool,
}

/// Waits for an unavailable database, with pauses that double, until it is back, the replay can't continue, or a stop
/// is requested. The number of attempts is not limited.
#[derive(Debug)]
pub(super) struct Reconnect {
    /// Pauses between attempts.
    backoff: Backoff,
    /// Detects an error that repeats at the same position.
    repeats: Repeats,
    /// When the database was last available again.
    back_at: Instant,
}

impl Reconnect {
    pub(super) fn new() -> Self {
        let backoff = Backoff::new(PAUSE_MIN, PAUSE_MAX);
        Self { backoff, repeats: Repeats::default(), back_at: Instant::now() }
    }

    /// Waits until there is a session on which the replay may continue after `error`; `None` if a stop is requested.
    /// Reports of events in flight are handled meanwhile.
    ///
    /// # Errors
    /// `error`, if waiting does not help; or the reason why the replay can't continue.
    pub(super) async fn wait<S: Future<Output = ()>>(
        &mut self,
        error: ReplayError,
        context: ReplayContext<'_>,
        publisher: &mut Publisher,
        mut stop: Pin<&mut S>,
        report: &mut dyn FnMut(ReplayUpdate<'_>),
    ) -> Result<Option<Control>, ReplayError> {
        if self.back_at.elapsed() > PAUSE_MAX {
            self.backoff.reset();
        }
        let mut least = self.pause_before_retry(&error, Phase::Stream, publisher);
        let mut error = error;
        loop {
            let Some(pause_min) = least else { return Err(error) };
            let reason =
                format!("the database is unavailable, or does not continue: {}", Chain(&error));
            report(ReplayUpdate::Down(&reason, None));
            let until = Instant::now() + self.backoff.next(fastrand::f64()).max(pause_min);
            while Instant::now() < until {
                tokio::select! {
                    biased;
                    () = &mut stop => return Ok(None),
                    () = publisher.posted() => publisher.take_posts(report)?,
                    () = tokio::time::sleep_until(until.into()) => {}
                }
            }
            let attempt = tokio::time::timeout(ATTEMPT_MAX, connect(context, publisher));
            let tried = tokio::select! {
                biased;
                () = &mut stop => return Ok(None),
                tried = attempt => tried,
            };
            match tried {
                Ok(Ok(control)) => {
                    report(ReplayUpdate::Up);
                    self.back_at = Instant::now();
                    return Ok(Some(control));
                }
                Ok(Err(why)) => {
                    least = self.pause_before_retry(&why, Phase::Control, publisher);
                    error = why;
                }
                Err(_elapsed) => least = Some(PAUSE_MIN),
            }
        }
    }

    /// The shortest pause before the next attempt, if another attempt may succeed.
    fn pause_before_retry(
        &mut self,
        error: &ReplayError,
        phase: Phase,
        publisher: &Publisher,
    ) -> Option<Duration> {
        let ReplayError::Source(error) = error else {
            // The lock may belong to a session of this process that the server still has, or to another one; a standby
            // may be promoted.
            let passes = matches!(
                error,
                ReplayError::Busy { .. } | ReplayError::InUse { .. } | ReplayError::Standby
            );
            return (passes && phase == Phase::Control).then_some(Duration::from_secs(1));
        };
        match action(error, phase, true) {
            Action::Reconnect(class) | Action::Later(class) => {
                let at = publisher.done().commit;
                let wedged = self.repeats.wedged(error, at);
                (!wedged).then(|| class.pause_min())
            }
            Action::StandBy => Some(PAUSE_MIN),
            Action::Recheck(_) | Action::Halt(_) => None,
        }
    }
}

/// Opens a session that has the lock, on a server where the recorded progress is that of this process.
async fn connect(
    context: ReplayContext<'_>,
    publisher: &Publisher,
) -> Result<Control, ReplayError> {
    let ReplayContext { spec, plan, dry } = context;
    let control = Control::connect(&spec.conninfo, APPLICATION_NAME).await?;
    let (client, server) = (control.client(), locked(&control, spec).await?);
    if dry {
        return Ok(control);
    }
    let name = plan.name.clone();
    let Some(row) = rows::find(client, spec.key(), &name).await? else {
        let known = rows::names(client, spec.key()).await?;
        return Err(ReplayError::Unknown { name, known });
    };
    if row.finished {
        return Err(ReplayError::Finished { name, published: row.published });
    }
    // The last write of progress may have succeeded without an answer, even that of the end. Any further progress was
    // written by another process.
    let end = match &plan.source {
        Source::Log { until, .. } => Some(*until),
        Source::Table { .. } => None,
    };
    let ours = |next: Position| next <= publisher.done() || Some(next.commit) == end;
    if row.next.is_some_and(|next| !ours(next)) {
        return Err(ReplayError::TakenOver { name });
    }
    resumed_source(client, spec, &server, &plan.request, &row).await?;
    Ok(control)
}
