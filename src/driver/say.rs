//! What a pipeline says of itself: one log line for each change of state, and the board.
//!
//! No line for an event. What lasts is said again at growing intervals, with how long and how often. Owns the wall
//! clock, which serves latencies and lag, and no decision.

use super::pipeline::Pipeline;
use super::run::Exit;
use super::spec::PipelineSpec;
use crate::error::{Chain, Halt};
use crate::event::{PgTime, Position};
use crate::parked::{Became, Mark, Parked, State};
use crate::postgres::SourceError;
use crate::postgres::action;
use crate::postgres::cursor::Written;
use crate::record::Refusal;
use crate::relay::Restart;
use crate::status::{self, Board};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tracing::{debug, error, info, warn};

/// How often the board is brought up to date.
pub(super) const REPORT_INTERVAL: Duration = Duration::from_millis(100);

/// The same, while events are published.
pub(super) const REPORT_SOON: Duration = Duration::from_millis(20);

/// What lasts is said again after this long, then after twice as long, up to an hour.
const REPEAT_FIRST: Duration = Duration::from_secs(30);
const REPEAT_LAST: Duration = Duration::from_hours(1);

/// What a pipeline remembers in order to speak.
#[derive(Debug, Default)]
#[expect(clippy::struct_excessive_bools, reason = "what was said last, each of its own")]
pub(super) struct Tell {
    pub(super) published_total: u64,
    pub(super) skipped_total: u64,
    pub(super) parked_total: u64,
    pub(super) clamped_total: u64,
    pub(super) reconnects_total: u64,
    pub(super) resets_total: u64,
    pub(super) source: Option<Trouble>,
    pub(super) sink: Option<Trouble>,
    /// With a destination that holds up nobody.
    pub(super) destination: Option<Trouble>,
    /// With the dead-letter topic.
    pub(super) letters: Option<Trouble>,
    /// Why there is no slot, while polling in its stead.
    pub(super) slot: Option<Trouble>,
    pub(super) standing_by: bool,
    pub(super) streaming: bool,
    pub(super) polling: bool,
    pub(super) draining: bool,
    /// `published_total` at the last report.
    pub(super) reported_total: u64,
    pub(super) reported_at: Option<Instant>,
    pub(super) wall: PgTime,
}

/// Something that is wrong and lasts.
#[derive(Debug)]
pub(super) struct Trouble {
    pub(super) reason: String,
    pub(super) hint: Option<String>,
    since: Instant,
    times: u64,
    said_at: Instant,
    repeat: Duration,
}

impl Trouble {
    fn new(reason: String, hint: Option<String>) -> Self {
        let now = Instant::now();
        Self { reason, hint, since: now, times: 1, said_at: now, repeat: REPEAT_FIRST }
    }

    /// Notes that it is still so; whether it is time to say it again.
    fn again(&mut self, reason: String, hint: Option<String>) -> bool {
        let news = self.reason != reason;
        self.times += 1;
        (self.reason, self.hint) = (reason, hint);
        let due = news || self.said_at.elapsed() >= self.repeat;
        if due {
            self.said_at = Instant::now();
            self.repeat = if news { REPEAT_FIRST } else { (self.repeat * 2).min(REPEAT_LAST) };
        }
        due
    }
}

/// Whether it is time to speak of a trouble that may be new.
fn trouble(slot: &mut Option<Trouble>, reason: String, hint: Option<String>) -> bool {
    if let Some(trouble) = slot {
        return trouble.again(reason, hint);
    }
    *slot = Some(Trouble::new(reason, hint));
    true
}

impl Tell {
    /// Reads the wall clock, once for a whole batch.
    pub(super) fn look_at_the_clock(&mut self) {
        let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let micros = i64::try_from(unix.as_micros()).unwrap_or(i64::MAX);
        self.wall = PgTime { micros: micros - PgTime::UNIX_OFFSET_MICROS };
    }

    /// From now until `at`, by our clock; zero if that is past.
    pub(super) fn until(&self, at: PgTime) -> Duration {
        let micros = at.micros.saturating_sub(self.wall.micros);
        Duration::from_micros(u64::try_from(micros).unwrap_or(0))
    }

    /// Seconds since a commit, by our clock; 0 if the server's is ahead.
    pub(super) fn since(&self, commit_time: PgTime) -> Duration {
        let micros = self.wall.micros.saturating_sub(commit_time.micros);
        Duration::from_micros(u64::try_from(micros).unwrap_or(0))
    }
}

pub(super) fn streaming(pipeline: &mut Pipeline, resume: &crate::postgres::fence::Resume) {
    let outage = pipeline.tell.source.take();
    pipeline.tell.standing_by = false;
    pipeline.tell.streaming = true;
    pipeline.tell.polling = false;
    let name = pipeline.spec.name();
    for note in &resume.notes {
        warn!(pipeline = name, note = note.name, "{}", note.message);
    }
    let outage_seconds = outage.map(|trouble| trouble.since.elapsed().as_secs());
    info!(pipeline = name, slot = pipeline.spec.names.slot, from = %resume.start, outage_seconds, "streaming");
    pipeline.report(None);
}

/// The slot can't be used, and the table can be polled.
pub(super) fn falling_back(pipeline: &mut Pipeline, halt: &Halt) {
    pipeline.tell.streaming = false;
    warn!(
        pipeline = pipeline.spec.name(),
        code = halt.reason.code(),
        reason = halt.reason.name(),
        hint = halt.hint,
        "polling the table until the slot can be used: {}",
        halt.message
    );
}

/// A slot stands again: what is committed from now on comes by it.
pub(super) fn slot_stands(pipeline: &Pipeline) {
    let (name, slot) = (pipeline.spec.name(), &pipeline.spec.names.slot);
    info!(pipeline = name, slot, "the slot stands: polling what is older, then streaming");
}

/// It can't be made yet.
pub(super) fn slot_not_yet(pipeline: &mut Pipeline, reason: &str) {
    if trouble(&mut pipeline.tell.slot, reason.to_owned(), None) {
        warn!(pipeline = pipeline.spec.name(), reason, "no slot yet: going on polling");
    }
}

pub(super) fn polling(pipeline: &mut Pipeline) {
    let outage = pipeline.tell.source.take();
    pipeline.tell.standing_by = false;
    pipeline.tell.streaming = true;
    if !std::mem::replace(&mut pipeline.tell.polling, true) || outage.is_some() {
        let outage_seconds = outage.map(|trouble| trouble.since.elapsed().as_secs());
        let table = pipeline.spec.names.table.as_ref().map(ToString::to_string);
        info!(pipeline = pipeline.spec.name(), table, outage_seconds, "polling");
    }
    pipeline.report(None);
}

pub(super) fn source_down(pipeline: &mut Pipeline, error: &SourceError) {
    let reason = Chain(error).to_string();
    let hint = action::hint(error);
    pipeline.tell.reconnects_total += 1;
    pipeline.tell.streaming = false;
    if trouble(&mut pipeline.tell.source, reason.clone(), hint.clone()) {
        let (seconds, tries) = pipeline
            .tell
            .source
            .as_ref()
            .map_or((0, 1), |trouble| (trouble.since.elapsed().as_secs(), trouble.times));
        warn!(
            pipeline = pipeline.spec.name(),
            seconds,
            tries,
            error = reason,
            hint,
            "database not available: trying again until it is"
        );
    }
    pipeline.report(None);
}

pub(super) fn waiting(pipeline: &mut Pipeline, message: &str) {
    pipeline.tell.streaming = false;
    if trouble(&mut pipeline.tell.source, message.to_owned(), None) {
        info!(pipeline = pipeline.spec.name(), reason = message, "not streaming yet");
    }
    pipeline.report(None);
}

pub(super) fn standing_by(pipeline: &mut Pipeline, active_pid: Option<u32>) {
    pipeline.tell.streaming = false;
    if !std::mem::replace(&mut pipeline.tell.standing_by, true) {
        info!(
            pipeline = pipeline.spec.name(),
            slot = pipeline.spec.names.slot,
            active_pid,
            "another process streams from the slot: standing by to take over when it is free"
        );
    }
    pipeline.report(None);
}

pub(super) fn sink_down(pipeline: &mut Pipeline, reason: &str, hint: Option<&str>) {
    if trouble(&mut pipeline.tell.sink, reason.to_owned(), hint.map(str::to_owned)) {
        let seconds = pipeline.tell.sink.as_ref().map_or(0, |t| t.since.elapsed().as_secs());
        warn!(
            pipeline = pipeline.spec.name(),
            seconds,
            reason,
            hint,
            "broker not available: nothing is lost, PostgreSQL keeps the WAL"
        );
    }
}

/// A destination takes no records, and the pipeline goes on without it.
pub(super) fn destination_down(pipeline: &mut Pipeline, reason: &str, hint: Option<&str>) {
    if trouble(&mut pipeline.tell.destination, reason.to_owned(), hint.map(str::to_owned)) {
        warn!(
            pipeline = pipeline.spec.name(),
            reason, hint, "a topic takes no records: its events wait, parked"
        );
    }
}

/// Events of a destination are parked from here on.
pub(super) fn destination_given_up(spec: &PipelineSpec, topic: &str) {
    let park_after = spec.park_after.unwrap_or_default();
    warn!(
        pipeline = spec.name(),
        topic,
        ?park_after,
        hint = "mend the topic: its parked events are tried again by themselves",
        "the topic has taken no records for parking.park_after: its events are parked, all others go on"
    );
}

/// The dead-letter topic did not take a record.
pub(super) fn undelivered(pipeline: &mut Pipeline, position: Position, reason: Refusal) {
    let said = reason.code().to_owned();
    if trouble(&mut pipeline.tell.letters, said, None) {
        warn!(
            pipeline = pipeline.spec.name(),
            %position,
            topic = pipeline.spec.dead_topic,
            %reason,
            hint = "see that parking.dead_topic exists and takes records as large as the other topics",
            "dead event not sent to the dead-letter topic: it stays parked, and is offered again"
        );
    }
}

pub(super) fn sink_up(pipeline: &mut Pipeline) {
    pipeline.tell.destination = None;
    if let Some(trouble) = pipeline.tell.sink.take() {
        let seconds = trouble.since.elapsed().as_secs();
        info!(pipeline = pipeline.spec.name(), seconds, "broker available again");
    }
}

pub(super) fn sink_broken(pipeline: &Pipeline, reason: &str) {
    warn!(pipeline = pipeline.spec.name(), reason, "the producer's state can't be trusted");
}

pub(super) fn resetting(pipeline: &mut Pipeline, why: Restart) {
    pipeline.tell.resets_total += 1;
    let cursor = pipeline.relay.progress().watermark;
    warn!(
        pipeline = pipeline.spec.name(),
        why = why.name(),
        from = %cursor,
        "throwing away what is in flight and streaming it again"
    );
}

pub(super) fn row_taken(pipeline: &Pipeline, written: &Written) {
    let found = match written {
        Written::Stored => return,
        Written::Behind(_) => "it is further on",
        Written::Rebound(_) => "it belongs to another slot or cluster now",
        Written::TakenOver => "it has another owner now",
        Written::Missing => "it is gone",
    };
    warn!(pipeline = pipeline.spec.name(), found, "another process changed the cursor row");
}

/// An event was set aside because something is wrong with it.
pub(super) fn parked(spec: &PipelineSpec, row: &Parked) {
    warn!(
        pipeline = spec.name(),
        position = %row.entry.position,
        event = row.event_id,
        code = row.error_code,
        reason = row.error,
        state = row.entry.state.name(),
        blocks = row.entry.lane.is_some(),
        hint = format!("postrider parked show {}", row.entry.position),
        "event parked: the later ones of its aggregate wait, all others go on"
    );
}

/// A parked event was published.
pub(super) fn released(pipeline: &Pipeline, position: Position) {
    debug!(pipeline = pipeline.spec.name(), %position, "parked event published");
}

/// What became of parked events.
pub(super) fn marked(pipeline: &Pipeline, marks: &[Mark]) {
    let name = pipeline.spec.name();
    for Mark { position, became } in marks {
        match became {
            Became::Refused { state: State::Dead, attempts, reason, .. } => warn!(
                pipeline = name,
                %position,
                attempts,
                %reason,
                hint = format!("postrider parked show {position}"),
                "parked event is dead: only a person moves it now (parked retry, skip or replace)"
            ),
            Became::Skipped | Became::Again => {
                info!(pipeline = name, %position, ?became, "parked event: done as asked");
            }
            Became::DeadSent => {
                debug!(pipeline = name, %position, "dead event sent to the dead-letter topic");
            }
            Became::Done | Became::Refused { .. } | Became::Declined | Became::Overtaken { .. } => {
                debug!(pipeline = name, %position, "parked event marked")
            }
        }
    }
}

pub(super) fn look_failed(pipeline: &Pipeline, error: &SourceError) {
    warn!(pipeline = pipeline.spec.name(), error = %Chain(error), "could not look at the slot");
}

pub(super) fn draining(pipeline: &mut Pipeline) {
    pipeline.tell.draining = true;
    let (in_flight, _) = pipeline.relay.in_flight();
    info!(pipeline = pipeline.spec.name(), in_flight, "stopping: finishing what is in flight");
    pipeline.report(None);
}

pub(super) fn left_behind(pipeline: &Pipeline) {
    let (in_flight, _) = pipeline.relay.in_flight();
    warn!(
        pipeline = pipeline.spec.name(),
        in_flight,
        "leaving before everything is acknowledged: it is published again at the next start"
    );
}

pub(super) fn farewell_failed(pipeline: &Pipeline, error: &SourceError) {
    warn!(
        pipeline = pipeline.spec.name(),
        error = %Chain(error),
        "the stream did not end in good order: the cursor row still bounds what is repeated"
    );
}

/// The last word of a pipeline.
pub(super) fn ended(name: &str, board: &Board, exit: &Exit) {
    board.update(|snapshot| match exit {
        Exit::Stopped => snapshot.state = status::State::Stopped,
        Exit::Halted(halt) => {
            snapshot.state = status::State::Halted;
            // Without the code: it stands beside it.
            snapshot.reason = Some(halt.message.clone());
            snapshot.halt_code = Some(halt.reason.code());
            snapshot.hint = Some(halt.hint.clone());
        }
        Exit::Bug => snapshot.state = status::State::Halted,
    });
    match exit {
        Exit::Stopped => info!(pipeline = name, "stopped"),
        Exit::Halted(halt) => error!(
            pipeline = name,
            code = halt.reason.code(),
            reason = halt.reason.name(),
            meaning = halt.meaning,
            hint = halt.hint,
            "halted: {}",
            halt.message
        ),
        Exit::Bug => error!(pipeline = name, "a bug in Postrider"),
    }
}
