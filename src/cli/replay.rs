//! `postrider replay`: publishes selected events again.
//!
//! Progress and warnings go to standard error, the result to standard output.

use super::Output;
use super::bookmark::{session, size, the_one};
use super::error::{CliError, Exit};
use crate::config::{self, Config};
use crate::event::{HeaderPosition, Position};
use crate::offset::Offset;
use crate::postgres::control::Control;
use crate::postgres::replay as rows;
use crate::replay::{
    Ended, From, Plan, Prepared, ReplayJob, ReplayOptions, ReplayProgress, ReplayRequest,
    ReplayUpdate, Source, SourceChoice, Until,
};
use crate::timestamp::Timestamp;
use crate::zone::Zone;
use clap::ValueEnum;
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::io::{IsTerminal as _, Write as _};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// `application_name` of the session.
const APPLICATION_NAME: &str = "postrider replay";

/// The `nice` value of the process.
#[cfg(unix)]
const NICENESS: i32 = 19;

pub(super) async fn run(config: &Config, args: &ReplayArgs) -> Result<Exit, CliError> {
    let spec = the_one(config)?;
    lower_priority();
    let control = session(spec, APPLICATION_NAME).await?;
    let what = if let Some(name) = &args.resume {
        Prepared::Resume(Some(name.clone()).filter(|name| !name.is_empty()))
    } else {
        let request = request(&control, args, spec.names.times.zone.as_ref()).await?;
        let name = match &args.name {
            Some(name) => name.clone(),
            None => default_name(&request, &control).await?,
        };
        Prepared::New { name, request: Box::new(request) }
    };
    let job = ReplayJob::prepare(Arc::new(spec.clone()), control, what).await?;
    let plan = job.plan().clone();
    let options = ReplayOptions { rate: args.rate, dry_run: args.dry_run };
    Output::stderr().line_or_ignore(&plan_text(spec.name(), &plan, options));
    let mut display = ProgressDisplay::new(std::io::stderr().is_terminal());
    let ended = Box::pin(job.run(options, stop(), &mut |event| display.show(&event))).await;
    display.end();
    let ended = match ended {
        Ok(ended) => ended,
        Err(error) if args.dry_run => return Err(error.into()),
        Err(error) => {
            return Err(CliError::ReplayEnded { name: plan.name, source: Box::new(error) });
        }
    };
    let text = if args.json {
        format!("{:#}", json(spec.name(), &plan, options, &ended))
    } else {
        ended_text(&plan, options, &ended)
    };
    Output::stdout().line(&text).map_err(CliError::Output)?;
    let complete = ended.missing.is_empty() && ended.tally.refused == 0 && !ended.stopped;
    Ok(if complete { Exit::Done } else { Exit::Problems })
}

/// Gives the process the lowest priority, so that it does not slow a pipeline that streams on the same host.
fn lower_priority() {
    #[cfg(unix)]
    if let Err(error) = rustix::process::nice(NICENESS) {
        tracing::debug!(%error, "could not lower the priority of the process");
    }
}

/// The request of the command line, with times parsed by the server.
async fn request(
    control: &Control,
    args: &ReplayArgs,
    zone: Option<&Zone>,
) -> Result<ReplayRequest, CliError> {
    let from = match (&args.bookmark, args.lsn, &args.since) {
        (Some(name), _, _) => From::Bookmark(name.clone()),
        (None, Some(at), _) => From::Lsn { at, timeline: args.timeline },
        (None, None, Some(text)) => From::Since(time(control, "--since", text, zone).await?),
        (None, None, None) => From::Anywhere,
    };
    let until = match &args.until {
        None => None,
        Some(text) => Some(match text.parse::<Offset>() {
            Ok(lsn) => Until::Lsn(lsn),
            Err(_) => Until::Time(time(control, "--until", text, zone).await?),
        }),
    };
    Ok(ReplayRequest {
        from,
        until,
        ids: args.ids.clone(),
        aggregate: args.aggregate.clone(),
        to: args.to.clone(),
        include_parked: args.include_parked,
        source: match args.source {
            SourceArg::Auto => SourceChoice::Auto,
            SourceArg::Wal => SourceChoice::Wal,
            SourceArg::Table => SourceChoice::Table,
        },
    })
}

/// A point in time, or how long ago. A local time that exists twice, at the end of daylight saving time, is read as the
/// one with which more is replayed.
pub(super) async fn time(
    control: &Control,
    flag: &'static str,
    text: &str,
    zone: Option<&Zone>,
) -> Result<Timestamp, CliError> {
    let wrong = || CliError::NotATime { flag, text: text.to_owned() };
    if let Ok(ago) = config::duration(text) {
        let now = rows::time(control.client(), "now", None, false).await?.ok_or_else(wrong)?;
        let ago = i64::try_from(ago.as_micros()).unwrap_or(i64::MAX);
        return Ok(Timestamp { unix_micros: now.unix_micros.saturating_sub(ago) });
    }
    rows::time(control.client(), text, zone, flag == "--until").await?.ok_or_else(wrong)
}

/// The default name of a replay, such as `before-fix-20260301T040000.123`: its beginning, and the time.
async fn default_name(request: &ReplayRequest, control: &Control) -> Result<String, CliError> {
    let what = match &request.from {
        From::Bookmark(name) => name.chars().take(40).collect(),
        From::Lsn { at, .. } => format!("lsn-{}", at.commit).replace('/', "-"),
        From::Since(_) => "since".to_owned(),
        From::Anywhere => "events".to_owned(),
    };
    let at = rows::stamp(control.client()).await?;
    // Milliseconds, so that two replays that begin in the same second have different names.
    let millis = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().subsec_millis();
    Ok(format!("{what}-{at}.{millis:03}"))
}

/// Waits for Ctrl-C or SIGTERM.
async fn stop() {
    #[cfg(unix)]
    {
        use tokio::signal::unix::{SignalKind, signal};
        if let Ok(mut terminate) = signal(SignalKind::terminate()) {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = tokio::signal::ctrl_c() => {}
            }
            return;
        }
    }
    if tokio::signal::ctrl_c().await.is_err() {
        std::future::pending::<()>().await;
    }
}

/// The default rate, which does not slow a pipeline that streams at the same time. Unit: events per second.
const RATE: &str = "5000";

/// `postrider replay`
#[derive(clap::Args, Debug)]
#[command(
    after_help = "A TIME is a time that PostgreSQL can read (2026-03-01T04:00:00Z; without a zone in source.time_zone, \
                  else UTC), or how long ago (90m, 2d). The replay ends with the events that were committed before it \
                  began, or at --until. Its position is stored every second: after an interruption, --resume continues \
                  from there. Exits 1 if a selected event was not published."
)]
#[command(group = clap::ArgGroup::new("what").required(true).multiple(true)
    .args(["bookmark", "lsn", "since", "ids", "aggregate", "resume"]))]
pub struct ReplayArgs {
    /// Events committed since this bookmark
    #[arg(long, value_name = "NAME", conflicts_with_all = ["lsn", "since"])]
    pub bookmark: Option<String>,
    /// Events committed at this position or later.
    #[arg(
        help = "Events committed at this LSN or later; or from one event on, by its position (0/1A2B3C8:5) or the \
                value of its header position"
    )]
    #[arg(long, value_name = "X/Y[:N]", value_parser = position, conflicts_with = "since")]
    pub lsn: Option<Position>,
    /// The timeline of --lsn; on another timeline the replay is refused
    #[arg(long, value_name = "N", requires = "lsn")]
    pub timeline: Option<u32>,
    /// Events committed at this time or later
    #[arg(long, value_name = "TIME")]
    pub since: Option<String>,
    /// Only events committed before this time or LSN
    #[arg(long, value_name = "TIME|X/Y", conflicts_with = "resume")]
    pub until: Option<String>,
    /// Only the event with this id; can be given more than once
    #[arg(long = "id", id = "ids", value_name = "ID")]
    pub ids: Vec<String>,
    /// Only events of this aggregate
    #[arg(long, value_name = "TYPE:ID", value_parser = aggregate)]
    pub aggregate: Option<(String, String)>,
    /// Publish to this topic [default: the topic of each event]
    #[arg(long, value_name = "TOPIC", conflicts_with = "resume")]
    pub to: Option<String>,
    /// Events per second at most; 0: no limit
    #[arg(long, value_name = "N", default_value = RATE, value_parser = clap::value_parser!(u32).range(..=1_000_000))]
    pub rate: u32,
    /// Publish nothing; count events, destinations and bytes, and print the first and last position
    #[arg(long, conflicts_with = "resume")]
    pub dry_run: bool,
    /// Continue an interrupted replay [default: the only one]
    #[arg(long, value_name = "NAME", num_args = 0..=1, default_missing_value = "")]
    #[arg(conflicts_with_all = ["bookmark", "lsn", "since", "ids", "aggregate", "name", "source", "include_parked"])]
    pub resume: Option<String>,
    /// The name of the replay, which each record has in header replay [default: its beginning and the time]
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,
    /// What to read the events from
    #[arg(long, value_name = "SOURCE", default_value = "auto")]
    pub source: SourceArg,
    /// Also replay events of aggregates that have parked events; they are published before the parked ones
    #[arg(long)]
    pub include_parked: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `--source`
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, ValueEnum)]
pub enum SourceArg {
    /// WAL if a bookmark is old enough, else the outbox table
    #[default]
    Auto,
    /// WAL, through the slot of a bookmark: the events as they were committed
    Wal,
    /// The rows of the outbox table
    Table,
}

fn position(text: &str) -> Result<Position, String> {
    const EXPECTED: &str = "expected an LSN such as 0/1A2B3C8, or a position such as 0/1A2B3C8:5";
    if let Some(header) = HeaderPosition::parse(text) {
        return Ok(header.position);
    }
    let (lsn, ordinal) = text.split_once(':').unwrap_or((text, "0"));
    let commit: Offset = lsn.parse().ok().ok_or(EXPECTED)?;
    // The column is signed.
    let ordinal = ordinal.parse::<i64>().ok().and_then(|ordinal| u64::try_from(ordinal).ok());
    Ok(Position { commit, ordinal: ordinal.ok_or(EXPECTED)? })
}

fn aggregate(text: &str) -> Result<(String, String), String> {
    let (kind, id) = text.split_once(':').ok_or("expected TYPE:ID, such as order:42")?;
    Ok((kind.to_owned(), id.to_owned()))
}

/// Pause between two lines of progress without a terminal.
const LINE_INTERVAL: Duration = Duration::from_secs(10);

/// Width of the progress bar. Unit: characters.
const BAR: u64 = 24;

/// What the replay is going to do.
fn plan_text(pipeline: &str, plan: &Plan, options: ReplayOptions) -> String {
    let from = match &plan.source {
        Source::Log { bookmark, from, until, .. } => format!(
            "from WAL, through bookmark {bookmark}: {from} to {until}, {} of WAL, in commit order",
            size(until.distance_from(from.commit))
        ),
        Source::Table { order, .. } => format!(
            "from the outbox table, {order}, which may differ from commit order; without header position, which rows \
             do not have"
        ),
    };
    let to = plan.request.to.as_ref();
    let to = to.map_or("the topic of each event".to_owned(), |topic| format!("topic {topic}"));
    if options.dry_run {
        return format!("dry run of pipeline {pipeline}, {from}; to {to}");
    }
    let rate = match options.rate {
        0 => "without a rate limit".to_owned(),
        rate => format!("at most {rate} events per second"),
    };
    format!("replay {} of pipeline {pipeline}, {from}; to {to}, {rate}", plan.name)
}

/// The progress on standard error.
struct ProgressDisplay {
    terminal: bool,
    line_at: Option<Instant>,
    /// The cursor is at the end of a progress line that the next one replaces.
    open: bool,
    down: Option<String>,
}

impl ProgressDisplay {
    fn new(terminal: bool) -> Self {
        Self { terminal, line_at: None, open: false, down: None }
    }

    fn show(&mut self, event: &ReplayUpdate<'_>) {
        match event {
            ReplayUpdate::Progress(moment) => self.progress(moment),
            ReplayUpdate::Down(reason, hint) => {
                let hint = hint.map_or_else(String::new, |hint| format!("\n  hint: {hint}"));
                let text = format!("waiting: {reason}{hint}");
                if self.down.as_ref() != Some(&text) {
                    self.whole(&text);
                    self.down = Some(text);
                }
            }
            ReplayUpdate::Up => {
                if self.down.take().is_some() {
                    self.whole("continuing");
                }
            }
        }
    }

    fn progress(&mut self, moment: &ReplayProgress<'_>) {
        if self.terminal {
            // Moves to the beginning of the line and clears it.
            Self::write(&format!("\r{}\x1b[K", line(moment, true)));
            self.open = true;
            return;
        }
        let now = Instant::now();
        let at = *self.line_at.get_or_insert(now + LINE_INTERVAL);
        if now >= at {
            self.whole(&line(moment, false));
            self.line_at = Some(now + LINE_INTERVAL);
        }
    }

    fn whole(&mut self, text: &str) {
        self.end();
        Self::write(&format!("{text}\n"));
    }

    /// Ends a progress line, which stays on the screen.
    fn end(&mut self) {
        if std::mem::take(&mut self.open) {
            Self::write("\n");
        }
    }

    fn write(text: &str) {
        let mut out = std::io::stderr().lock();
        // There is no stream on which a failure to write could be reported.
        out.write_all(text.as_bytes()).and_then(|()| out.flush()).unwrap_or_default();
    }
}

fn line(moment: &ReplayProgress<'_>, bar: bool) -> String {
    let seconds = moment.elapsed.as_secs_f64().max(0.001);
    let sent = moment.tally.sent;
    let rate = per_second(sent, seconds);
    let mut text = String::new();
    if let Some((from, at, until)) = moment.log {
        let permille = permille(from, at, until);
        if bar {
            let full = usize::try_from(permille * BAR / 1000).unwrap_or(0);
            let rest = usize::try_from(BAR).unwrap_or(0).saturating_sub(full);
            write!(text, "[{}{}] ", "#".repeat(full), ".".repeat(rest)).unwrap_or_default();
        }
        write!(text, "{:>3}%  ", permille / 10).unwrap_or_default();
        if let Some(left) = left(moment.elapsed, permille) {
            write!(text, "{} left  ", clock(left)).unwrap_or_default();
        }
    }
    write!(text, "{sent} events  {rate}/s").unwrap_or_default();
    if moment.tally.refused > 0 {
        write!(text, "  {} refused", moment.tally.refused).unwrap_or_default();
    }
    text
}

fn per_second(events: u64, seconds: f64) -> u64 {
    let events = Duration::from_secs(events).as_secs_f64();
    Duration::try_from_secs_f64(events / seconds).map_or(0, |rate| rate.as_secs())
}

fn permille(from: Offset, at: Offset, until: Offset) -> u64 {
    let all = u128::from(until.distance_from(from)).max(1);
    let done = u128::from(at.distance_from(from));
    u64::try_from(done * 1000 / all).unwrap_or(1000).min(1000)
}

/// Estimates the time left from the WAL that was read.
fn left(elapsed: Duration, permille: u64) -> Option<Duration> {
    let done = u32::try_from(permille).ok().filter(|done| *done >= 5)?;
    Some(elapsed * (1000 - done) / done)
}

fn clock(time: Duration) -> String {
    let seconds = time.as_secs();
    format!("{:02}:{:02}:{:02}", seconds / 3600, seconds / 60 % 60, seconds % 60)
}

/// The result as text.
fn ended_text(plan: &Plan, options: ReplayOptions, ended: &Ended) -> String {
    let tally = &ended.tally;
    let mut text = String::new();
    let seconds = ended.elapsed.as_secs_f64().max(0.001);
    if options.dry_run {
        let events = if tally.sent == 1 { "event" } else { "events" };
        write!(text, "{} {events} would be published, {}", tally.sent, size(tally.bytes))
            .unwrap_or_default();
    } else {
        let how = if ended.stopped { "stopped" } else { "complete" };
        write!(
            text,
            "replay {} {how}: {} events published; in this run {} ({}) in {seconds:.1} s, {}/s",
            plan.name,
            tally.published,
            tally.sent,
            size(tally.bytes),
            per_second(tally.sent, seconds)
        )
        .unwrap_or_default();
    }
    if let (Some(first), Some(last)) = (&tally.first, tally.last()) {
        write!(text, "\n  first {first}, last {last}").unwrap_or_default();
    }
    for (topic, count) in &tally.topics {
        write!(text, "\n  {count} to topic {topic}").unwrap_or_default();
    }
    if tally.straddling > 0 {
        write!(
            text,
            "\n  {} transactions began before the requested position and committed after it: a transaction is replayed \
             as a whole",
            tally.straddling
        )
        .unwrap_or_default();
    }
    if tally.refused > 0 {
        write!(text, "\n  {} not published:", tally.refused).unwrap_or_default();
        for refused in &tally.refusals {
            write!(text, "\n    {}  {}", printable(&refused.event), refused.why)
                .unwrap_or_default();
        }
        if tally.refusals.iter().any(|refused| refused.why.contains("parked")) {
            text.push_str(
                "\n  hint: list them with postrider parked list, or publish them nevertheless with --include-parked",
            );
        }
    }
    if !ended.missing.is_empty() {
        let ids: Vec<String> = ended.missing.iter().map(|id| printable(id)).collect();
        let other = match &plan.source {
            Source::Log { .. } => "; to search the outbox table: --source table",
            Source::Table { .. } => "",
        };
        write!(text, "\n  not found: {}{other}", ids.join(", ")).unwrap_or_default();
    }
    if ended.stopped {
        write!(text, "\n  resume: postrider replay --resume {}", plan.name).unwrap_or_default();
    }
    text
}

/// The result as JSON.
fn json(pipeline: &str, plan: &Plan, options: ReplayOptions, ended: &Ended) -> Value {
    let tally = &ended.tally;
    let (source, bookmark, from, until) = match &plan.source {
        Source::Log { bookmark, from, until, .. } => {
            ("wal", Some(bookmark), Some(from.to_string()), Some(until.to_string()))
        }
        Source::Table { .. } => ("table", None, None, None),
    };
    let refusals = tally.refusals.iter();
    let refusals: Vec<Value> =
        refusals.map(|refused| json!({"event": refused.event, "why": refused.why})).collect();
    json!({
        "pipeline": pipeline,
        "replay": plan.name,
        "dry_run": options.dry_run,
        "source": source,
        "bookmark": bookmark,
        "from": from,
        "until": until,
        "events": tally.sent,
        "published": tally.published,
        "bytes": tally.bytes,
        "first": tally.first,
        "last": tally.last(),
        "topics": tally.topics,
        "straddling": tally.straddling,
        "refused": tally.refused,
        "refusals": refusals,
        "not_found": ended.missing,
        "finished": !ended.stopped,
        "seconds": ended.elapsed.as_secs_f64(),
    })
}

/// Replaces control characters, which a terminal would interpret.
fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_replay_begins_at_an_lsn_or_at_one_event() {
        assert_eq!(position("0/1A2B3C8").unwrap().to_string(), "0/1A2B3C8:0");
        assert_eq!(position("0/1A2B3C8:5").unwrap().to_string(), "0/1A2B3C8:5");
        let header = position("68F1A2B3-0000000001A2B3C8-00000005").unwrap();
        assert_eq!(header.to_string(), "0/1A2B3C8:5");
        for text in ["", "5", "0/1:", "0/1:-1", "0/1:x", "0/1:99999999999999999999"] {
            assert!(position(text).is_err(), "{text}");
        }
    }

    #[test]
    fn the_bar_follows_the_wal_and_shows_the_time_left() {
        let lsn = |at: u64| Offset::new(at);
        assert_eq!(permille(lsn(100), lsn(150), lsn(200)), 500);
        assert_eq!(permille(lsn(100), lsn(100), lsn(100)), 0);
        let second = Duration::from_secs(1);
        assert_eq!(left(second * 30, 250), Some(second * 90));
        assert_eq!(left(second * 30, 1), None, "too early for an estimate");
        assert_eq!(clock(second * 3725), "01:02:05");
        let mut tally = crate::replay::Tally::default();
        tally.sent = 5000;
        let log = Some((lsn(100), lsn(150), lsn(200)));
        let moment = ReplayProgress { tally: &tally, elapsed: second * 10, log, in_flight: 0 };
        assert_eq!(
            line(&moment, true),
            "[############............]  50%  00:00:10 left  5000 events  500/s"
        );
    }
}
