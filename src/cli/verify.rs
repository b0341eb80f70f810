//! `postrider verify`: compares the outbox table, or a ledger file, with the topics.
//!
//! The result goes to standard output, progress to standard error, and only on a terminal.

use super::bookmark::{session, the_one};
use super::dialog::print;
use super::error::{CliError, Exit, printable};
use super::folded;
use super::replay::time;
use crate::config::{self, Config};
use crate::health::grouped;
use crate::offset::Offset;
use crate::pipeline::PipelineSpec;
use crate::postgres::control::Control;
use crate::timestamp::Timestamp;
use crate::units;
use crate::verify::{
    OrderBy, PartitionRange, ReadTopic, SourceSummary, VerifyExample, VerifyFinding,
    VerifyProgress, VerifyReport, VerifyRequest, verify,
};
use clap::ValueEnum;
use serde_json::{Map, Value, json};
use std::io::{IsTerminal as _, Write as _};
use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// `application_name` of the session that reads a time.
const APPLICATION_NAME: &str = "postrider verify";

/// The version of the JSON.
const JSON_VERSION: u32 = 1;

/// Examples of each finding.
const EXAMPLES: &str = "10";

/// Memory for the comparison.
const MEMORY: &str = "1GiB";

/// Pause between two updates of the progress line.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(200);

/// `postrider verify`
#[derive(clap::Args, Debug)]
#[command(
    after_help = "Reads and moves nothing: no slot, no consumer group, no write. A row counts as published if the \
                  pipeline has recorded that; parked, skipped and expired events and those that are not reached yet \
                  are counted apart. A TIME is a time that PostgreSQL can read, or how long ago (90m, 2d). Exits 0 if \
                  every published event of the range is in its topic and in order; 1 if one is lost, different, \
                  swapped or unexpected, if a missing one can't be explained (--allow-unproven), or if one is \
                  repeated although records are published exactly once (or with --no-repeats); 2 for wrong usage."
)]
pub struct VerifyArgs {
    /// Compare with this ledger of a writer instead of the outbox table
    #[arg(long, value_name = "FILE")]
    pub ledger: Option<PathBuf>,
    /// Also read this topic, to which events were routed before; can be given more than once
    #[arg(long = "topic", id = "topics", value_name = "TOPIC")]
    pub topics: Vec<String>,
    /// Only events of this time or later, by the time column
    #[arg(long, value_name = "TIME")]
    pub since: Option<String>,
    /// Only events of before this time
    #[arg(long, value_name = "TIME")]
    pub until: Option<String>,
    /// Only records that were committed at the first LSN or later and before the second; each may be left out
    #[arg(long, value_name = "X/Y..X/Y", value_parser = positions)]
    pub lsn: Option<(Offset, Offset)>,
    /// Only these records: order and repetitions, but not whether one is missing; can be given more than once
    #[arg(long, value_name = "TOPIC:PARTITION:FROM..TO", value_parser = part)]
    #[arg(conflicts_with_all = ["topics", "since", "until", "lsn"])]
    pub offsets: Vec<PartitionRange>,
    /// What the order is compared with [default: position, and source for a ledger]
    #[arg(long, value_name = "ORDER")]
    pub order: Option<OrderArg>,
    /// A repeated record is a fault
    #[arg(long)]
    pub no_repeats: bool,
    /// An event without a record is no fault if the record may have been removed from the topic
    #[arg(long)]
    pub allow_unproven: bool,
    /// Examples of each finding at most
    #[arg(long, value_name = "N", default_value = EXAMPLES, value_parser = clap::value_parser!(u16).range(..=10_000))]
    pub examples: u16,
    /// Memory for the events at most: 48 bytes for each, three times that while the list grows
    #[arg(long, value_name = "SIZE", default_value = MEMORY, value_parser = memory)]
    pub memory: u64,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `--order`
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum OrderArg {
    /// Header position of the records: the order of the commits
    Position,
    /// The order of the source: the id if it is a number, else the time; the lines of a ledger
    Source,
}

fn memory(text: &str) -> Result<u64, String> {
    units::size(text).map_err(|error| error.to_string())
}

fn positions(text: &str) -> Result<(Offset, Offset), String> {
    const EXPECTED: &str = "expected two LSNs such as 0/1A2B3C8..0/1A2B900; one may be left out";
    let (from, to) = text.split_once("..").ok_or(EXPECTED)?;
    let bound = |text: &str, open: Offset| match text {
        "" => Ok(open),
        text => text.parse::<Offset>().map_err(|error| format!("{EXPECTED}: {error}")),
    };
    Ok((bound(from, Offset::ZERO)?, bound(to, Offset::MAX)?))
}

fn part(text: &str) -> Result<PartitionRange, String> {
    const EXPECTED: &str = "expected TOPIC:PARTITION:FROM..TO, such as orders:0:1000..2000";
    let mut parts = text.rsplitn(3, ':');
    let (range, partition, topic) = (parts.next(), parts.next(), parts.next());
    let (from, to) = range.and_then(|range| range.split_once("..")).ok_or(EXPECTED)?;
    let number = |text: &str| text.parse::<i64>().ok().filter(|number| *number >= 0);
    let partition = partition.and_then(|text| text.parse::<i32>().ok());
    Ok(PartitionRange {
        topic: topic.filter(|topic| !topic.is_empty()).ok_or(EXPECTED)?.to_owned(),
        partition: partition.filter(|number| *number >= 0).ok_or(EXPECTED)?,
        from: number(from).ok_or(EXPECTED)?,
        to: number(to).ok_or(EXPECTED)?,
    })
}

pub(super) async fn run(config: &Config, args: &VerifyArgs) -> Result<Exit, CliError> {
    let spec = the_one(config)?;
    let request = request(spec, args).await?;
    let mut line = ProgressLine::new(std::io::stderr().is_terminal());
    let verified = Box::pin(verify(spec, &request, &mut |progress| line.show(progress))).await;
    line.end();
    let report = verified?;
    let faults = report.faults(args.no_repeats, args.allow_unproven);
    print(args.json, &as_json(&report, &faults), &as_text(&report, &faults))?;
    Ok(if faults.is_empty() { Exit::Done } else { Exit::Problems })
}

async fn request(spec: &PipelineSpec, args: &VerifyArgs) -> Result<VerifyRequest, CliError> {
    // A ledger needs no database, unless a time has to be read; a table needs the tables of this version.
    let times = [&args.since, &args.until];
    let is_time = |text: &String| ago(text).is_none();
    let control = if args.ledger.is_none() || times.into_iter().flatten().any(is_time) {
        Some(open(spec, args).await?)
    } else {
        None
    };
    let control = control.as_ref();
    Ok(VerifyRequest {
        ledger: args.ledger.clone(),
        topics: args.topics.clone(),
        since: instant(control, spec, "--since", args.since.as_ref()).await?,
        until: instant(control, spec, "--until", args.until.as_ref()).await?,
        positions: args.lsn,
        parts: args.offsets.clone(),
        order: args.order.map(|order| match order {
            OrderArg::Position => OrderBy::Position,
            OrderArg::Source => OrderBy::Source,
        }),
        examples_max: usize::from(args.examples),
        memory_max: args.memory,
    })
}

async fn open(spec: &PipelineSpec, args: &VerifyArgs) -> Result<Control, CliError> {
    match args.ledger {
        None => session(spec, APPLICATION_NAME).await,
        Some(_) => Ok(Control::connect(&spec.conninfo, APPLICATION_NAME).await?),
    }
}

/// How long ago, as a point in time.
fn ago(text: &str) -> Option<Timestamp> {
    let ago = i64::try_from(config::duration(text).ok()?.as_micros()).ok()?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let now = i64::try_from(now.as_micros()).unwrap_or(i64::MAX);
    Some(Timestamp { unix_micros: now.saturating_sub(ago) })
}

async fn instant(
    control: Option<&Control>,
    spec: &PipelineSpec,
    flag: &'static str,
    text: Option<&String>,
) -> Result<Option<Timestamp>, CliError> {
    let Some(text) = text else { return Ok(None) };
    match control {
        // By the clock of the server.
        Some(control) => time(control, flag, text, spec.names.times.zone.as_ref()).await.map(Some),
        None => Ok(ago(text)),
    }
}

/// The progress on a terminal.
struct ProgressLine {
    is_terminal: bool,
    shown: Option<Instant>,
}

impl ProgressLine {
    const fn new(is_terminal: bool) -> Self {
        Self { is_terminal, shown: None }
    }

    fn show(&mut self, progress: VerifyProgress) {
        let is_due = self.shown.is_none_or(|shown| shown.elapsed() >= PROGRESS_INTERVAL);
        if !self.is_terminal || !is_due {
            return;
        }
        self.shown = Some(Instant::now());
        let (events, records) = (grouped(progress.events), grouped(progress.records));
        // Moves to the beginning of the line and clears it.
        Self::write(&format!("\r{events} events, {records} records\x1b[K"));
    }

    /// Clears the line.
    fn end(&mut self) {
        if self.shown.take().is_some() {
            Self::write("\r\x1b[K");
        }
    }

    fn write(text: &str) {
        let mut out = std::io::stderr().lock();
        // There is no stream on which a failure to write could be reported.
        out.write_all(text.as_bytes()).and_then(|()| out.flush()).unwrap_or_default();
    }
}

/// What a finding means, behind its count.
const fn words(finding: VerifyFinding) -> &'static str {
    match finding {
        VerifyFinding::Published => "published: a record is in the topic",
        VerifyFinding::Parked => "parked: postrider parked list",
        VerifyFinding::Dead => "parked and dead: an operator has to act",
        VerifyFinding::Skipped => "skipped by an operator",
        VerifyFinding::Before => "from before the pipeline, without a record",
        VerifyFinding::NotReached => "not reached yet: not known to be published, without a record",
        VerifyFinding::Expired => "expired, without a record",
        VerifyFinding::Unpublishable => "not publishable: no record can be made of the row",
        VerifyFinding::OutcomeUnknown => "without a record; the ledger does not know the outcome",
        VerifyFinding::RolledBack => "rolled back, without a record",
        VerifyFinding::OutsideRange => "outside of the range",
        VerifyFinding::SharedId => {
            "with an id that several events have: which of them are in the topic is not known"
        }
        VerifyFinding::NotJudged => "without a record among those that were read",
        VerifyFinding::Unproven => "without a record, which may have been removed from the topic",
        VerifyFinding::Different => "whose record has another topic or key",
        VerifyFinding::Lost => "LOST: published, and not in the topic",
        VerifyFinding::Repeated => "repeated",
        VerifyFinding::Replayed => "of replays",
        VerifyFinding::Swapped => "SWAPPED: behind a later event of the aggregate",
        VerifyFinding::OrderUnproven => {
            "behind a later event that comes again: a repetition of removed records, or swapped"
        }
        VerifyFinding::WithoutOrder => "without an order",
        VerifyFinding::Unexpected => "UNEXPECTED: of events that were rolled back",
        VerifyFinding::OtherSource => "of other pipelines",
        VerifyFinding::NotInSource => "not in the source",
        VerifyFinding::WithoutId => "without an id: of other writers",
    }
}

/// Findings whose examples are printed: what somebody has to look at.
const SHOWN: [VerifyFinding; 8] = [
    VerifyFinding::Lost,
    VerifyFinding::Different,
    VerifyFinding::Unproven,
    VerifyFinding::Swapped,
    VerifyFinding::Unexpected,
    VerifyFinding::Repeated,
    VerifyFinding::NotInSource,
    VerifyFinding::WithoutId,
];

fn as_text(report: &VerifyReport, faults: &[VerifyFinding]) -> String {
    let mut lines = vec![format!("{}: {}", report.pipeline, verdict(report, faults))];
    lines.push(folded("  source: ", &source_text(&report.source)));
    for topic in &report.topics {
        lines.push(folded("  topic: ", &topic_text(topic)));
    }
    lines.push(format!("  events: {}", grouped(report.events)));
    lines.extend(finding_lines(report, &VerifyFinding::OF_EVENTS));
    lines.push(format!("  records: {}", grouped(report.records())));
    lines.extend(finding_lines(report, &VerifyFinding::OF_RECORDS));
    lines.push(folded("  order: ", order_text(report.order)));
    lines.extend(report.notes.iter().map(|note| folded("  note: ", &printable(note))));
    lines.join("\n")
}

fn verdict(report: &VerifyReport, faults: &[VerifyFinding]) -> String {
    if !faults.is_empty() {
        let of = |finding: &VerifyFinding| {
            format!("{} {}", grouped(report.findings.count(*finding)), finding.name())
        };
        let faults: Vec<String> = faults.iter().map(of).collect();
        return format!("faults found: {}", faults.join(", "));
    }
    let published = grouped(report.findings.count(VerifyFinding::Published));
    let partial = report.findings.count(VerifyFinding::NotJudged) > 0;
    let unproven = report.findings.count(VerifyFinding::Unproven)
        + report.findings.count(VerifyFinding::SharedId);
    if partial {
        format!("no fault in the records that were read, of {published} events")
    } else if unproven > 0 {
        format!(
            "no fault is proven; {published} events are in the topics, {} are unproven",
            grouped(unproven)
        )
    } else {
        let text =
            format!("every event that is known to be published is in the topics: {published}");
        text + &not_compared(report)
    }
}

/// What the verdict says nothing about, because it could not be compared.
fn not_compared(report: &VerifyReport) -> String {
    let count = |findings: &[VerifyFinding]| {
        findings.iter().map(|finding| report.findings.count(*finding)).sum::<u64>()
    };
    let events = count(&[
        VerifyFinding::NotReached,
        VerifyFinding::Expired,
        VerifyFinding::Unpublishable,
        VerifyFinding::Before,
    ]);
    let records = count(&[VerifyFinding::WithoutOrder, VerifyFinding::OrderUnproven]);
    let of_events = if events > 0 {
        format!("; {} are not known to be published, or have no record to expect", grouped(events))
    } else {
        String::new()
    };
    let of_records = if records > 0 {
        format!("; the order of {} records could not be compared", grouped(records))
    } else {
        String::new()
    };
    of_events + &of_records
}

const fn order_text(order: OrderBy) -> &'static str {
    match order {
        OrderBy::Position => {
            "by header position: that of the commits, for the first record of each event"
        }
        OrderBy::Source => "that of the source, for the first record of each event",
    }
}

fn source_text(source: &SourceSummary) -> String {
    match source {
        SourceSummary::Outbox { table, at, wal_end, watermark } => {
            let position = watermark.map_or("none".to_owned(), |at| at.to_string());
            format!(
                "outbox table {table}, snapshot of {} at WAL {wal_end}; position of the pipeline {position}",
                utc(*at)
            )
        }
        SourceSummary::Ledger { file, times } => {
            let of = |(first, last): &(Timestamp, Timestamp)| {
                format!(", times from {} to {}", utc(*first), utc(*last))
            };
            format!("ledger {}{}", file.display(), times.as_ref().map_or_else(String::new, of))
        }
    }
}

fn utc(at: Timestamp) -> String {
    at.to_rfc3339().unwrap_or_else(|| format!("{} us", at.unix_micros))
}

fn topic_text(topic: &ReadTopic) -> String {
    if !topic.exists {
        return format!("{}: does not exist", topic.name);
    }
    let part = |part: &crate::verify::ReadPartition| {
        let removed = if part.low > 0 { format!(" (oldest {})", part.low) } else { String::new() };
        format!("{}: {}..{}{removed}", part.number, part.from, part.to)
    };
    let parts: Vec<String> = topic.partitions.iter().map(part).collect();
    format!("{}, offsets by partition {}", topic.name, parts.join(", "))
}

fn finding_lines(report: &VerifyReport, of: &[VerifyFinding]) -> Vec<String> {
    let mut lines = Vec::new();
    for finding in of {
        let count = report.findings.count(*finding);
        if count == 0 {
            continue;
        }
        lines.push(folded(&format!("    {} ", grouped(count)), words(*finding)));
        if SHOWN.contains(finding) {
            let examples = report.findings.examples(*finding).iter();
            lines.extend(examples.map(|example| format!("      {}", example_text(example))));
        }
    }
    lines
}

fn example_text(example: &VerifyExample) -> String {
    let mut text = match &example.id {
        Some(id) => format!("id {}", printable(id)),
        None => "no id".to_owned(),
    };
    let topic = printable(&example.topic);
    let place = if let Some((partition, offset)) = example.place {
        format!(", topic {topic}, partition {partition}, offset {offset}")
    } else {
        format!(", routed to topic {topic}")
    };
    text.push_str(&place);
    if let Some((id, offset)) = &example.behind {
        let behind = format!("; behind id {}, offset {offset}", printable(id));
        text.push_str(&behind);
    }
    text
}

fn as_json(report: &VerifyReport, faults: &[VerifyFinding]) -> Value {
    let counts = |of: &[VerifyFinding]| -> Map<String, Value> {
        let count =
            |of: &VerifyFinding| (of.name().to_owned(), Value::from(report.findings.count(*of)));
        of.iter().map(count).collect()
    };
    let all = VerifyFinding::OF_EVENTS.iter().chain(&VerifyFinding::OF_RECORDS);
    let examples: Map<String, Value> = all
        .filter(|finding| !report.findings.examples(**finding).is_empty())
        .map(|finding| {
            let examples = report.findings.examples(*finding).iter().map(example_json);
            (finding.name().to_owned(), examples.collect::<Value>())
        })
        .collect();
    let names: Vec<&str> = faults.iter().map(|finding| finding.name()).collect();
    json!({
        "version": JSON_VERSION,
        "pipeline": report.pipeline,
        "ok": faults.is_empty(),
        "faults": names,
        "source": source_json(&report.source),
        "events": {"total": report.events, "by_finding": counts(&VerifyFinding::OF_EVENTS)},
        "records": {"total": report.records(), "by_finding": counts(&VerifyFinding::OF_RECORDS)},
        "order": match report.order {
            OrderBy::Position => "position",
            OrderBy::Source => "source",
        },
        "topics": report.topics.iter().map(topic_json).collect::<Vec<_>>(),
        "examples": examples,
        "notes": report.notes,
    })
}

fn source_json(source: &SourceSummary) -> Value {
    match source {
        SourceSummary::Outbox { table, at, wal_end, watermark } => json!({
            "kind": "outbox",
            "table": table,
            "at_us": at.unix_micros,
            "wal_end": wal_end.to_string(),
            "position": watermark.map(|at| at.to_string()),
        }),
        SourceSummary::Ledger { file, times } => json!({
            "kind": "ledger",
            "file": file.display().to_string(),
            "first_us": times.map(|(first, _)| first.unix_micros),
            "last_us": times.map(|(_, last)| last.unix_micros),
        }),
    }
}

fn topic_json(topic: &ReadTopic) -> Value {
    let partition = |part: &crate::verify::ReadPartition| {
        json!({
            "partition": part.number,
            "oldest": part.low,
            "from": part.from,
            "to": part.to,
            "records": part.records,
        })
    };
    json!({
        "topic": topic.name,
        "exists": topic.exists,
        "compacted": topic.is_compacted,
        "partitions": topic.partitions.iter().map(partition).collect::<Vec<_>>(),
    })
}

fn example_json(example: &VerifyExample) -> Value {
    let mut value = json!({"id": example.id, "topic": example.topic});
    if let Some((partition, offset)) = example.place {
        value["partition"] = partition.into();
        value["offset"] = offset.into();
    }
    if let Some((id, offset)) = &example.behind {
        value["behind_id"] = id.as_str().into();
        value["behind_offset"] = (*offset).into();
    }
    value
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_read_and_others_refused() {
        let lsn = |text: &str| text.parse::<Offset>().unwrap();
        assert_eq!(positions("0/10..0/20"), Ok((lsn("0/10"), lsn("0/20"))));
        assert_eq!(positions("..0/20"), Ok((Offset::ZERO, lsn("0/20"))));
        assert_eq!(positions("0/10.."), Ok((lsn("0/10"), Offset::MAX)));
        for text in ["", "0/10", "x..0/20", "0/10..7"] {
            assert!(positions(text).is_err(), "{text}");
        }
        let range = PartitionRange { topic: "a.b".to_owned(), partition: 3, from: 5, to: 9 };
        assert_eq!(part("a.b:3:5..9"), Ok(range));
        for text in ["", "a:3", "a:3:5", ":3:5..9", "a:x:5..9", "a:-1:5..9", "a:3:-5..9"] {
            assert!(part(text).is_err(), "{text}");
        }
    }
}
