//! `postrider replay`: publishes again what a person names, and tells how it goes.
//!
//! Progress and warnings go to standard error, the last word to standard output.

use super::Output;
use super::bookmark::{session, size, the_one};
use super::error::{CliError, Exit};
use crate::config::{self, Config};
use crate::event::{HeaderPosition, PgTime, Position};
use crate::lsn::Lsn;
use crate::postgres::control::Control;
use crate::postgres::replay as rows;
use crate::replay::{
    Ended, From, Plan, Prepared, ReplayJob, ReplayOptions, ReplayProgress, ReplayRequest,
    ReplayUpdate, Source, SourceChoice, Until,
};
use crate::zone::Zone;
use clap::ValueEnum;
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::io::{IsTerminal as _, Write as _};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// What the server knows the session by.
const APPLICATION_NAME: &str = "postrider replay";

/// How far the process gives way, as `nice` counts.
#[cfg(unix)]
const NICENESS: i32 = 19;

pub(super) async fn run(config: &Config, args: &ReplayArgs) -> Result<Exit, CliError> {
    let spec = the_one(config)?;
    give_way();
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
    Output::stderr().say(&plan_text(spec.name(), &plan, options));
    let mut screen = Screen::new(std::io::stderr().is_terminal());
    let ended = Box::pin(job.run(options, stop(), &mut |told| screen.tell(&told))).await;
    screen.end();
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
    let well = ended.missing.is_empty() && ended.tally.refused == 0 && !ended.stopped;
    Ok(if well { Exit::Done } else { Exit::NotWell })
}

/// Lets everything else of this host go first: a live stream beside it has the processor when it wants it.
fn give_way() {
    #[cfg(unix)]
    if let Err(error) = rustix::process::nice(NICENESS) {
        tracing::debug!(%error, "the replay runs at the priority of the rest");
    }
}

/// What was asked for, with times as the server reads them.
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
        Some(text) => Some(match text.parse::<Lsn>() {
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

/// A point in time, or how long ago. Of a time that comes twice, the one with which more is replayed.
async fn time(
    control: &Control,
    flag: &'static str,
    text: &str,
    zone: Option<&Zone>,
) -> Result<PgTime, CliError> {
    let wrong = || CliError::NotATime { flag, text: text.to_owned() };
    if let Ok(ago) = config::duration(text) {
        let now = rows::time(control.client(), "now", None, false).await?.ok_or_else(wrong)?;
        let ago = i64::try_from(ago.as_micros()).unwrap_or(i64::MAX);
        return Ok(PgTime { micros: now.micros.saturating_sub(ago) });
    }
    rows::time(control.client(), text, zone, flag == "--until").await?.ok_or_else(wrong)
}

/// `before-fix-20260301T040000`: where it begins, and the second of this host.
async fn default_name(request: &ReplayRequest, control: &Control) -> Result<String, CliError> {
    let what = match &request.from {
        From::Bookmark(name) => name.chars().take(40).collect(),
        From::Lsn { at, .. } => format!("lsn-{}", at.commit_lsn).replace('/', "-"),
        From::Since(_) => "since".to_owned(),
        From::Anywhere => "events".to_owned(),
    };
    let at = rows::stamp(control.client()).await?;
    // Two of one second have two names all the same.
    let micros = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().subsec_millis();
    Ok(format!("{what}-{at}.{micros:03}"))
}

/// Ctrl-C, or SIGTERM.
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

// What can be typed behind `postrider replay`.

/// Events a second, where nothing is said: a live stream beside it does not feel it.
const RATE: &str = "5000";

/// `postrider replay`
#[derive(clap::Args, Debug)]
#[command(
    after_help = "A TIME is what PostgreSQL reads as one (2026-03-01T04:00:00Z), in source.time_zone or else UTC where \
                  it names no zone, or how long ago (90m, 2d). It ends with what is committed when it begins, or at \
                  --until. What was published is noted every second: after an interruption --resume goes on there. \
                  Exits 1 where something that was asked for was not published."
)]
#[command(group = clap::ArgGroup::new("what").required(true).multiple(true)
    .args(["bookmark", "lsn", "since", "ids", "aggregate", "resume"]))]
pub struct ReplayArgs {
    /// What is committed since this bookmark
    #[arg(long, value_name = "NAME", conflicts_with_all = ["lsn", "since"])]
    pub bookmark: Option<String>,
    /// What commits at this position or later.
    #[arg(
        help = "What commits at this LSN or later; or from one event on, by its position: 0/1A2B3C8:5, or as header \
                position has it"
    )]
    #[arg(long, value_name = "X/Y[:N]", value_parser = position, conflicts_with = "since")]
    pub lsn: Option<Position>,
    /// The timeline that --lsn was seen on, to be refused on another
    #[arg(long, value_name = "N", requires = "lsn")]
    pub timeline: Option<u32>,
    /// What was committed at this time or later
    #[arg(long, value_name = "TIME")]
    pub since: Option<String>,
    /// Only what was committed before this time, or commits before this LSN
    #[arg(long, value_name = "TIME|X/Y", conflicts_with = "resume")]
    pub until: Option<String>,
    /// Only the event of this id; may be given more than once
    #[arg(long = "id", id = "ids", value_name = "ID")]
    pub ids: Vec<String>,
    /// Only events of this aggregate
    #[arg(long, value_name = "TYPE:ID", value_parser = aggregate)]
    pub aggregate: Option<(String, String)>,
    /// The topic [default: each event's own]
    #[arg(long, value_name = "TOPIC", conflicts_with = "resume")]
    pub to: Option<String>,
    /// The most events a second; 0 is as fast as it goes
    #[arg(long, value_name = "N", default_value = RATE, value_parser = clap::value_parser!(u32).range(..=1_000_000))]
    pub rate: u32,
    /// Only count: events, destinations, bytes, first and last position
    #[arg(long, conflicts_with = "resume")]
    pub dry_run: bool,
    /// Go on with a replay that was interrupted [default: the only one]
    #[arg(long, value_name = "NAME", num_args = 0..=1, default_missing_value = "")]
    #[arg(conflicts_with_all = ["bookmark", "lsn", "since", "ids", "aggregate", "name", "source", "include_parked"])]
    pub resume: Option<String>,
    /// The replay's name, which header replay has [default: what it begins at, and the time]
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,
    /// Where events are read from
    #[arg(long, value_name = "SOURCE", default_value = "auto")]
    pub source: SourceArg,
    /// Also replay events of aggregates that have parked events; they are published before the parked ones
    #[arg(long)]
    pub include_parked: bool,
    /// JSON
    #[arg(long)]
    pub json: bool,
}

/// `--source`
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, ValueEnum)]
pub enum SourceArg {
    /// The log where a bookmark reaches back far enough, else the table
    #[default]
    Auto,
    /// The log, through a bookmark's slot: exact
    Wal,
    /// The rows that are in the outbox table
    Table,
}

fn position(text: &str) -> Result<Position, String> {
    const EXPECTED: &str = "expected an LSN such as 0/1A2B3C8, or a position such as 0/1A2B3C8:5";
    if let Some(header) = HeaderPosition::parse(text) {
        return Ok(header.position);
    }
    let (lsn, ordinal) = text.split_once(':').unwrap_or((text, "0"));
    let commit_lsn: Lsn = lsn.parse().ok().ok_or(EXPECTED)?;
    // Held in a signed column.
    let ordinal = ordinal.parse::<i64>().ok().and_then(|ordinal| u64::try_from(ordinal).ok());
    Ok(Position { commit_lsn, ordinal: ordinal.ok_or(EXPECTED)? })
}

fn aggregate(text: &str) -> Result<(String, String), String> {
    let (kind, id) = text.split_once(':').ok_or("expected TYPE:ID, such as order:42")?;
    Ok((kind.to_owned(), id.to_owned()))
}

// A replay as text and as JSON: what it is going to do, how it goes, what it did.

/// Pause between two lines of progress where nobody looks at a terminal.
const LINE_INTERVAL: Duration = Duration::from_secs(10);

/// Characters of the bar.
const BAR: u64 = 24;

/// What it is going to do.
fn plan_text(pipeline: &str, plan: &Plan, options: ReplayOptions) -> String {
    let from = match &plan.source {
        Source::Log { bookmark, from, until, .. } => format!(
            "from the log, through bookmark {bookmark}: {from} to {until}, {} of WAL, in commit order",
            size(until.bytes_since(from.commit_lsn))
        ),
        Source::Table { order, .. } => format!(
            "from the outbox table, {order}, which need not be the order of the commits; without header position, as \
             rows have none"
        ),
    };
    let to = plan.request.to.as_ref();
    let to = to.map_or("each event's own topic".to_owned(), |topic| format!("topic {topic}"));
    if options.dry_run {
        return format!("dry run of pipeline {pipeline}, {from}; to {to}");
    }
    let rate = match options.rate {
        0 => "as fast as it goes".to_owned(),
        rate => format!("at most {rate} events a second"),
    };
    format!("replay {} of pipeline {pipeline}, {from}; to {to}, {rate}", plan.name)
}

/// Standard error while it runs.
struct Screen {
    terminal: bool,
    line_at: Option<Instant>,
    /// A line without its end stands there.
    open: bool,
    down: Option<String>,
}

impl Screen {
    fn new(terminal: bool) -> Self {
        Self { terminal, line_at: None, open: false, down: None }
    }

    fn tell(&mut self, told: &ReplayUpdate<'_>) {
        match told {
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
                    self.whole("it goes on");
                }
            }
        }
    }

    fn progress(&mut self, moment: &ReplayProgress<'_>) {
        if self.terminal {
            // To the beginning of the line, and clear what is behind.
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

    /// The line that stands there is left as it is.
    fn end(&mut self) {
        if std::mem::take(&mut self.open) {
            Self::write("\n");
        }
    }

    fn write(text: &str) {
        let mut out = std::io::stderr().lock();
        // There is nobody left to tell that it failed.
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

fn permille(from: Lsn, at: Lsn, until: Lsn) -> u64 {
    let all = u128::from(until.bytes_since(from)).max(1);
    let done = u128::from(at.bytes_since(from));
    u64::try_from(done * 1000 / all).unwrap_or(1000).min(1000)
}

/// Time left, by the WAL that was read.
fn left(elapsed: Duration, permille: u64) -> Option<Duration> {
    let done = u32::try_from(permille).ok().filter(|done| *done >= 5)?;
    Some(elapsed * (1000 - done) / done)
}

fn clock(time: Duration) -> String {
    let seconds = time.as_secs();
    format!("{:02}:{:02}:{:02}", seconds / 3600, seconds / 60 % 60, seconds % 60)
}

/// The last word.
fn ended_text(plan: &Plan, options: ReplayOptions, ended: &Ended) -> String {
    let tally = &ended.tally;
    let mut text = String::new();
    let seconds = ended.elapsed.as_secs_f64().max(0.001);
    if options.dry_run {
        let events = if tally.sent == 1 { "event" } else { "events" };
        write!(text, "{} {events} would be published, {}", tally.sent, size(tally.bytes))
            .unwrap_or_default();
    } else {
        let how = if ended.stopped { "stopped" } else { "done" };
        write!(
            text,
            "replay {} is {how}: {} events published, in this run {} ({}) in {seconds:.1} s, {}/s",
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
            "\n  {} transactions had begun before the position that was asked for, and committed behind it: a \
             transaction is replayed whole",
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
                "\n  hint: look at them by postrider parked list, or publish all the same by --include-parked",
            );
        }
    }
    if !ended.missing.is_empty() {
        let ids: Vec<String> = ended.missing.iter().map(|id| printable(id)).collect();
        let other = match &plan.source {
            Source::Log { .. } => "; the rows that are in the table: --source table",
            Source::Table { .. } => "",
        };
        write!(text, "\n  not found: {}{other}", ids.join(", ")).unwrap_or_default();
    }
    if ended.stopped {
        write!(text, "\n  go on: postrider replay --resume {}", plan.name).unwrap_or_default();
    }
    text
}

/// The same for programs.
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

/// Without what a terminal would obey.
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
}

#[cfg(test)]
mod print_tests {
    use super::*;

    #[test]
    fn the_bar_goes_by_the_log_and_says_what_is_left() {
        let lsn = |at: u64| Lsn::from_wire(at);
        assert_eq!(permille(lsn(100), lsn(150), lsn(200)), 500);
        assert_eq!(permille(lsn(100), lsn(100), lsn(100)), 0);
        let second = Duration::from_secs(1);
        assert_eq!(left(second * 30, 250), Some(second * 90));
        assert_eq!(left(second * 30, 1), None, "too early to tell");
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
