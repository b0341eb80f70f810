//! A replay as text and as JSON: what it is going to do, how it goes, what it did.

use crate::cli::bookmark::size;
use crate::lsn::Lsn;
use crate::replay::{Ended, Moment, Options, Plan, Source, Tell};
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::io::Write as _;
use std::time::{Duration, Instant};

/// Pause between two lines of progress where nobody looks at a terminal.
const LINE_INTERVAL: Duration = Duration::from_secs(10);

/// Characters of the bar.
const BAR: u64 = 24;

/// What it is going to do.
pub(super) fn plan(pipeline: &str, plan: &Plan, options: Options) -> String {
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
pub(super) struct Screen {
    terminal: bool,
    line_at: Option<Instant>,
    /// A line without its end stands there.
    open: bool,
    down: Option<String>,
}

impl Screen {
    pub(super) fn new(terminal: bool) -> Self {
        Self { terminal, line_at: None, open: false, down: None }
    }

    pub(super) fn tell(&mut self, told: &Tell<'_>) {
        match told {
            Tell::Progress(moment) => self.progress(moment),
            Tell::Down(reason, hint) => {
                let hint = hint.map_or_else(String::new, |hint| format!("\n  hint: {hint}"));
                let text = format!("waiting: {reason}{hint}");
                if self.down.as_ref() != Some(&text) {
                    self.whole(&text);
                    self.down = Some(text);
                }
            }
            Tell::Up => {
                if self.down.take().is_some() {
                    self.whole("it goes on");
                }
            }
        }
    }

    fn progress(&mut self, moment: &Moment<'_>) {
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
    pub(super) fn end(&mut self) {
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

fn line(moment: &Moment<'_>, bar: bool) -> String {
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
pub(super) fn ended(plan: &Plan, options: Options, ended: &Ended) -> String {
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
pub(super) fn json(pipeline: &str, plan: &Plan, options: Options, ended: &Ended) -> Value {
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
        let moment = Moment { tally: &tally, elapsed: second * 10, log, in_flight: 0 };
        assert_eq!(
            line(&moment, true),
            "[############............]  50%  00:00:10 left  5000 events  500/s"
        );
    }
}
