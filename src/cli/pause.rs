//! `postrider pause` and `postrider resume`: a pipeline stands still until an operator lets it continue.
//!
//! Both write a request in the database, wait until the running process has carried it out, and print what they found.
//! `pause` prints what the pause costs the database.

use super::bookmark::{session, size};
use super::dialog::print;
use super::error::{CliError, Exit, printable};
use super::folded;
use super::parked::operator;
use crate::config::{self, Config, Env};
use crate::health::duration_text;
use crate::pipeline::{Mode, PipelineSpec};
use crate::postgres::store::pause::{self, Pause, PauseCost, REASON_MAX};
use serde_json::{Value, json};
use std::time::{Duration, Instant};
use tokio_postgres::Client;

/// `application_name` of the sessions.
const PAUSE: &str = "postrider pause";
const RESUME: &str = "postrider resume";

/// Pause between two looks at the request.
const LOOK_PAUSE: Duration = Duration::from_millis(100);

/// For how long no process may be connected before it counts as not running: a process that has just drained connects
/// again, and records of one that has lost its session may be on their way for 8 s.
const ABSENT_FOR: Duration = Duration::from_secs(8);

/// `postrider pause`
#[derive(clap::Args, Debug)]
#[command(
    after_help = "The process that runs the pipeline completes what is in flight, confirms it, closes its producer and \
                  its stream, and reads nothing until postrider resume. The pause is stored in the source database: a \
                  process that is restarted, and a standby process, stay paused. Meanwhile the slot retains WAL. \
                  Exits 0 once nothing is in flight, also if no process runs; 1 if a process has not drained within \
                  --wait: the request remains."
)]
pub struct PauseArgs {
    /// The pipeline
    #[arg(value_name = "PIPELINE")]
    pub pipeline: String,
    /// Why, for status, log and other operators
    #[arg(long, value_name = "TEXT", value_parser = reason)]
    pub reason: Option<String>,
    /// How long to wait until nothing is in flight
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = config::duration)]
    pub wait: Duration,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `postrider resume`
#[derive(clap::Args, Debug)]
#[command(
    after_help = "The process that is paused connects again and continues after the last event that was published. If \
                  several processes are paused, one of them publishes and the others stand by. Exits 0 also if the \
                  pipeline was not paused; 1 if a paused process has not connected within --wait."
)]
pub struct ResumeArgs {
    /// The pipeline
    #[arg(value_name = "PIPELINE")]
    pub pipeline: String,
    /// How long to wait until a paused process reads again
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = config::duration)]
    pub wait: Duration,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

fn reason(text: &str) -> Result<String, String> {
    let length = text.chars().count();
    if length > REASON_MAX {
        Err(format!("it has {length} characters, at most {REASON_MAX} are stored"))
    } else if text.contains('\0') {
        Err("it has a NUL character".to_owned())
    } else {
        Ok(text.to_owned())
    }
}

/// What became of the request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum PauseOutcome {
    /// Nothing is in flight.
    Paused,
    /// No process was connected.
    NotRunning,
    /// A process has not drained yet.
    Draining,
    /// Somebody has ended the pause meanwhile.
    Ended,
}

impl PauseOutcome {
    const fn name(self) -> &'static str {
        match self {
            Self::Paused => "paused",
            Self::NotRunning => "not_running",
            Self::Draining => "draining",
            Self::Ended => "ended",
        }
    }
}

/// The pipeline of this name.
fn named<'a>(config: &'a Config, name: &str) -> Result<&'a PipelineSpec, CliError> {
    config.specs.iter().find(|spec| spec.name() == name).ok_or_else(|| CliError::Pipeline {
        name: name.to_owned(),
        known: config.specs.iter().map(|spec| spec.name().to_owned()).collect(),
    })
}

pub(super) async fn pause(
    config: &Config,
    args: &PauseArgs,
    env: Env<'_>,
) -> Result<Exit, CliError> {
    let spec = named(config, &args.pipeline)?;
    let control = session(spec, PAUSE).await?;
    let client = control.client();
    let reason = args.reason.as_deref();
    let is_new = pause::request(client, spec.key(), &operator(env), reason).await?;
    let (outcome, row) = drained(client, spec, args.wait).await?;
    let cost = PauseCost::read(client, &spec.names.slot).await?;
    let text = text(spec, (is_new, outcome), row.as_ref(), &cost);
    print(args.json, &as_json(spec, (is_new, outcome), row.as_ref(), &cost), &text)?;
    Ok(match outcome {
        PauseOutcome::Paused | PauseOutcome::NotRunning => Exit::Done,
        PauseOutcome::Draining | PauseOutcome::Ended => Exit::Problems,
    })
}

/// Waits until a process has drained, or none is connected.
async fn drained(
    client: &Client,
    spec: &PipelineSpec,
    longest: Duration,
) -> Result<(PauseOutcome, Option<Pause>), CliError> {
    let since = Instant::now();
    let mut absent_since: Option<Instant> = None;
    loop {
        let Some(row) = pause::read(client, spec.key()).await? else {
            return Ok((PauseOutcome::Ended, None));
        };
        let now = pause::connected(client, spec.key()).await?;
        if row.drained_at.is_some() && !now.reads {
            return Ok((PauseOutcome::Paused, Some(row)));
        }
        let absent = !now.reads && now.paused == 0;
        absent_since = if absent { absent_since.or(Some(Instant::now())) } else { None };
        if absent_since.is_some_and(|at| at.elapsed() >= ABSENT_FOR) {
            return Ok((PauseOutcome::NotRunning, Some(row)));
        }
        if since.elapsed() >= longest {
            return Ok((PauseOutcome::Draining, Some(row)));
        }
        tokio::time::sleep(LOOK_PAUSE).await;
    }
}

/// A request as one line: who, when and why.
fn request_words(row: &Pause) -> String {
    let Pause { requested_by, requested_at, reason, .. } = row;
    let reason = reason.as_ref().map_or_else(String::new, |reason| format!(": {reason}"));
    printable(&format!("requested by {requested_by} at {requested_at}{reason}"))
}

fn text(
    spec: &PipelineSpec,
    (is_new, outcome): (bool, PauseOutcome),
    row: Option<&Pause>,
    cost: &PauseCost,
) -> String {
    let name = spec.name();
    let Some(row) = row else {
        return format!("{name}: the pause was ended by another command meanwhile");
    };
    let earlier = if is_new { "" } else { " (an earlier request is kept)" };
    let (state, in_flight) = match outcome {
        PauseOutcome::Paused if row.unacknowledged == 0 => {
            ("paused", "nothing; what was published is confirmed".to_owned())
        }
        PauseOutcome::Paused => (
            "paused",
            format!(
                "nothing; {} events were not acknowledged and are published again after the pause{}",
                row.unacknowledged,
                if spec.common.sink.capabilities().exactly_once {
                    "; a consumer that reads as the page of the sink says sees them once"
                } else {
                    ", also if the broker has them"
                }
            ),
        ),
        PauseOutcome::NotRunning => (
            "paused",
            "no process of this pipeline is connected to the database (it is not running, or has halted): one that \
             starts or reconnects stays paused"
                .to_owned(),
        ),
        PauseOutcome::Draining | PauseOutcome::Ended => (
            "pause requested, and not reached yet",
            "a process still reads or waits for acknowledgements (at most shutdown_grace), or records of one that has \
             ended may still arrive (at most 8 s). A process of a version before schema 10 does not know pauses: \
             replace it"
                .to_owned(),
        ),
    };
    let mut lines = vec![
        folded("", &format!("{name}: {state}, {}{earlier}", request_words(row))),
        folded("  in flight    ", &in_flight),
    ];
    lines.extend(cost_lines(spec, cost));
    lines.push(format!("  to continue  postrider resume {name}"));
    lines.join("\n")
}

/// What the pause costs the database.
fn cost_lines(spec: &PipelineSpec, cost: &PauseCost) -> Vec<String> {
    let slot = &spec.names.slot;
    let mut lines = Vec::new();
    match (cost.retained(), spec.common.mode) {
        (None, Mode::Poll) => {
            lines.push(
                "  costs        no WAL is retained; rows wait in the outbox table".to_owned(),
            );
            return lines;
        }
        (None, _) => {
            let text = format!(
                "slot {slot} does not exist, or was invalidated: postrider check -p {}",
                spec.name()
            );
            lines.push(folded("  costs        ", &text));
            return lines;
        }
        (Some(bytes), _) => {
            let text = format!(
                "slot {slot} retains {} of WAL, and more with everything that the server writes",
                size(bytes)
            );
            lines.push(folded("  costs        ", &text));
        }
    }
    let rate = cost.wal_bytes_per_second.zip(cost.measured_since.as_ref());
    if let Some((rate, since)) = rate {
        let text = format!(
            "{} of WAL an hour on average since {since} (pg_stat_wal), for the whole server",
            size(whole(rate * 3600.0))
        );
        lines.push(folded("  grows by     ", &text));
    }
    let room = match (cost.safe(), cost.seconds_left()) {
        (Some(safe), Some(seconds)) => format!(
            "the slot is lost after {} more (max_slot_wal_keep_size): in {} at this rate",
            size(safe),
            duration_text(whole(seconds))
        ),
        (Some(safe), None) => {
            format!("the slot is lost after {} more (max_slot_wal_keep_size)", size(safe))
        }
        (None, _) => "the server's disk: max_slot_wal_keep_size sets no limit".to_owned(),
    };
    lines.push(folded("  limit        ", &room));
    if let Some(limit) = cost.idle_timeout {
        let text = format!(
            "the slot is lost after {} without a reader, which it does not have during the pause \
             (idle_replication_slot_timeout): resume before, or let an administrator execute ALTER SYSTEM SET \
             idle_replication_slot_timeout = 0; SELECT pg_reload_conf();",
            duration_text(limit.as_secs())
        );
        lines.push(folded("               ", &text));
    }
    if let Some(max) = spec.wal_retain_max {
        let then = if spec.common.mode == Mode::Auto {
            "is not enforced during the pause; after it, a slot that retains more is dropped, and the table is polled"
        } else {
            "is not enforced during the pause; after it, the backlog is published"
        };
        let text = format!("source.wal_retain_max ({}) {then}", size(max));
        lines.push(folded("               ", &text));
    }
    lines
}

/// A number without its fraction.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a number that is not negative; the cast saturates"
)]
fn whole(number: f64) -> u64 {
    number.max(0.0) as u64
}

fn as_json(
    spec: &PipelineSpec,
    (is_new, outcome): (bool, PauseOutcome),
    row: Option<&Pause>,
    cost: &PauseCost,
) -> Value {
    json!({
        "pipeline": spec.name(),
        "state": outcome.name(),
        "new": is_new,
        "requested_at": row.map(|row| &row.requested_at),
        "requested_by": row.map(|row| &row.requested_by),
        "reason": row.and_then(|row| row.reason.as_ref()),
        "drained_at": row.and_then(|row| row.drained_at.as_ref()),
        "unacknowledged_events": row.map(|row| row.unacknowledged),
        "slot": spec.names.slot,
        "slot_retained_bytes": cost.retained(),
        "slot_safe_bytes": cost.safe(),
        "wal_bytes_per_second": cost.wal_bytes_per_second,
        "wal_measured_since": cost.measured_since,
        "slot_seconds_left": cost.seconds_left(),
        "slot_idle_timeout_seconds": cost.idle_timeout.map(|limit| limit.as_secs()),
    })
}

pub(super) async fn resume(config: &Config, args: &ResumeArgs) -> Result<Exit, CliError> {
    let spec = named(config, &args.pipeline)?;
    let control = session(spec, RESUME).await?;
    let client = control.client();
    let before = pause::connected(client, spec.key()).await?;
    let ended = pause::end(client, spec.key()).await?;
    let reads = match &ended {
        Some(_) if before.paused > 0 => Some(reads(client, spec, args.wait).await?),
        Some(_) | None => None,
    };
    let (state, words, exit) = match (&ended, reads) {
        (None, _) => ("not_paused", "it was not paused: nothing was changed".to_owned(), Exit::Done),
        (Some(row), Some(true)) => {
            ("resumed", format!("resumed after {}", duration_text(row.seconds)), Exit::Done)
        }
        (Some(_), Some(false)) => (
            "waiting",
            "the pause has ended, and no process reads yet: postrider status shows what it waits for, or why it has \
             halted"
                .to_owned(),
            Exit::Problems,
        ),
        (Some(row), None) => (
            "not_running",
            format!(
                "the pause has ended after {}; no process of this pipeline was paused: start it with postrider run, \
                 unless it runs",
                duration_text(row.seconds)
            ),
            Exit::Done,
        ),
    };
    let mut text = folded("", &format!("{}: {words}", spec.name()));
    if let Some(row) = &ended {
        text =
            format!("{text}\n{}", folded("  ", &format!("the pause was {}", request_words(row))));
    }
    let value = json!({
        "pipeline": spec.name(),
        "state": state,
        "requested_at": ended.as_ref().map(|row| &row.requested_at),
        "requested_by": ended.as_ref().map(|row| &row.requested_by),
        "reason": ended.as_ref().and_then(|row| row.reason.as_ref()),
        "seconds": ended.as_ref().map(|row| row.seconds),
    });
    print(args.json, &value, &text)?;
    Ok(exit)
}

/// Waits until a process reads for the pipeline; returns whether one does.
async fn reads(client: &Client, spec: &PipelineSpec, longest: Duration) -> Result<bool, CliError> {
    let since = Instant::now();
    loop {
        if pause::connected(client, spec.key()).await?.reads {
            return Ok(true);
        }
        if since.elapsed() >= longest {
            return Ok(false);
        }
        tokio::time::sleep(LOOK_PAUSE).await;
    }
}
