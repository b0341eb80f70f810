//! `postrider status`: queries the running process over HTTP and prints its status, once or repeatedly.

use super::Output;
use super::args::{Global, StatusArgs};
use super::error::{CliError, Exit, printable};
use super::status_events::{age, counted, parked, skipped, transactions};
use crate::config::{Config, InboxConfig};
use crate::health::grouped;
use crate::pipeline::PipelineSpec;
use serde_json::Value;
use std::fmt::Write as _;
use std::io::{self, IsTerminal as _};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

/// Moves the cursor to the upper left and clears the screen below it, so that a table replaces the one before.
const REPLACE: &str = "\x1b[H\x1b[J";

pub(super) async fn run(
    config: &Config,
    global: &Global,
    args: &StatusArgs,
    color: bool,
) -> Result<Exit, CliError> {
    let address = reachable(config.admin.listen.ok_or(CliError::AdminOff)?);
    let Some(seconds) = args.watch else {
        let answer = query(address, config, global).await?;
        let text = if args.json { format!("{:#}", answer.status) } else { answer.table(color) };
        Output::stdout().line(&text).map_err(CliError::Output)?;
        return Ok(answer.exit());
    };
    tokio::select! {
        biased;
        stopped = tokio::signal::ctrl_c() => stopped.map(|()| Exit::Done).map_err(CliError::Runtime),
        ended = watch(address, config, global, args, (color, seconds)) => ended,
    }
}

/// Queries until the reader of standard output closes it. A process that does not answer is printed as an error, and
/// queried again.
async fn watch(
    address: SocketAddr,
    config: &Config,
    global: &Global,
    args: &StatusArgs,
    (color, seconds): (bool, u32),
) -> Result<Exit, CliError> {
    let mut ticks = tokio::time::interval(Duration::from_secs(seconds.into()));
    let before = if std::io::stdout().is_terminal() && !args.json { REPLACE } else { "" };
    loop {
        ticks.tick().await;
        let text = match (query(address, config, global).await, args.json) {
            (Ok(answer), true) => answer.status.to_string(),
            (Ok(answer), false) => answer.table(color),
            (Err(error), true) => serde_json::json!({ "error": error.one_line() }).to_string(),
            (Err(error), false) => error.report(),
        };
        // A blank line separates two tables, unless one replaces the other.
        let after = if before.is_empty() && !args.json { "\n" } else { "" };
        let text = format!("{before}{text}{after}");
        if !Output::stdout().line_if_read(&text).map_err(CliError::Output)? {
            return Ok(Exit::Done);
        }
    }
}

/// The answer of the running process.
struct StatusAnswer {
    status: Value,
}

async fn query(
    address: SocketAddr,
    config: &Config,
    global: &Global,
) -> Result<StatusAnswer, CliError> {
    let body = status(address).await?;
    let mut status: Value =
        serde_json::from_str(&body).map_err(|_not_json| CliError::Stranger(address))?;
    let intakes = rows(&status, "intakes").to_vec();
    let Some(pipelines) = status.get_mut("pipelines").and_then(Value::as_array_mut) else {
        return Err(CliError::Stranger(address));
    };
    if let Some(name) = &global.pipeline {
        pipelines.retain(|pipeline| pipeline["pipeline"] == name.as_str());
    }
    // `postrider inbox run` has no pipelines: those of the file are another process's.
    let is_of_intakes = pipelines.is_empty() && !intakes.is_empty();
    let mut differences = if is_of_intakes && global.pipeline.is_none() {
        Vec::new()
    } else {
        differences(pipelines, &config.specs)
    };
    if global.pipeline.is_none() {
        differences.extend(differences_of_intakes(&intakes, &config.inboxes));
    } else if let Some(status) = status.as_object_mut() {
        status.remove("intakes");
        status.remove("maintenance");
    }
    if !differences.is_empty() {
        let file = config.file.clone();
        return Err(CliError::OtherConfiguration { address, file, differences });
    }
    Ok(StatusAnswer { status })
}

/// How the running process differs from one that runs the pipelines of this configuration. Any Postrider may listen on
/// the address, so the answer is compared before it is shown.
fn differences(running: &[Value], ours: &[PipelineSpec]) -> Vec<String> {
    let named = |name: &str| running.iter().find(|pipeline| pipeline["pipeline"] == name);
    let mut found = Vec::new();
    for spec in ours {
        let name = spec.name();
        let Some(pipeline) = named(name) else {
            found.push(format!("pipeline \"{name}\" does not run there"));
            continue;
        };
        for (what, here) in [("source", spec.source_name()), ("slot", spec.names.slot.clone())] {
            // Earlier releases do not have this field.
            if let Some(there) = pipeline[what].as_str().filter(|there| *there != here) {
                found
                    .push(format!("pipeline \"{name}\" has {what} {there} there, and {here} here"));
            }
        }
    }
    let strange = running.iter().filter_map(|pipeline| pipeline["pipeline"].as_str());
    let strange = strange.filter(|name| ours.iter().all(|spec| spec.name() != *name));
    found.extend(strange.map(|name| format!("pipeline \"{name}\" runs only there")));
    found
}

/// The same for intakes. `postrider inbox run NAME` runs one of several, so each of them may be missing.
fn differences_of_intakes(running: &[Value], ours: &[InboxConfig]) -> Vec<String> {
    let mut found = Vec::new();
    for intake in running {
        let Some(name) = intake["intake"].as_str() else { continue };
        let Some(own) = ours.iter().find(|own| own.name == name) else {
            found.push(format!("intake \"{name}\" runs only there"));
            continue;
        };
        for (what, here) in [("inbox", own.inbox.as_str()), ("source", own.kind)] {
            if let Some(there) = intake[what].as_str().filter(|there| *there != here) {
                found.push(format!("intake \"{name}\" has {what} {there} there, and {here} here"));
            }
        }
    }
    found
}

/// An array of the status, empty if it has no such field.
fn rows<'a>(status: &'a Value, key: &str) -> &'a [Value] {
    status[key].as_array().map_or(&[], Vec::as_slice)
}

impl StatusAnswer {
    fn table(&self, color: bool) -> String {
        let of = |key| rows(&self.status, key);
        let (pipelines, intakes) = (of("pipelines"), of("intakes"));
        let mut tables = Vec::new();
        if !pipelines.is_empty() || intakes.is_empty() {
            tables.push(render(pipelines, color));
        }
        if !intakes.is_empty() {
            tables.push(render_intakes(intakes, of("maintenance"), color));
        }
        tables.join("\n\n")
    }

    fn exit(&self) -> Exit {
        let all = || rows(&self.status, "pipelines").iter().chain(rows(&self.status, "intakes"));
        let ready = all().count() > 0 && all().all(|row| row["ready"] == Value::Bool(true));
        if ready { Exit::Done } else { Exit::Problems }
    }
}

/// How long the answer may take.
const TIMEOUT: Duration = Duration::from_secs(5);

/// The largest answer that is read. Unit: bytes.
const ANSWER_BYTES_MAX: u64 = 4 << 20;

/// The address at which a process that listens on `address` is reached from the same host.
fn reachable(address: SocketAddr) -> SocketAddr {
    let ip = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => IpAddr::V4(Ipv4Addr::LOCALHOST),
        IpAddr::V6(ip) if ip.is_unspecified() => IpAddr::V6(Ipv6Addr::LOCALHOST),
        IpAddr::V4(_) | IpAddr::V6(_) => address.ip(),
    };
    SocketAddr::new(ip, address.port())
}

/// How long another command waits for the status of a process that may not be running.
const RUNNING_TIMEOUT: Duration = Duration::from_secs(2);

/// A pipeline of a running process.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct RunningPipeline {
    /// Its name.
    pub(super) pipeline: String,
    /// Its database, in the form of [`PipelineSpec::source_name`].
    pub(super) source: String,
    /// The code of its halt, if it has halted.
    pub(super) halted: Option<String>,
}

/// The status of the Postrider that listens on `address`; null if none does.
async fn running(address: SocketAddr) -> Value {
    let answer = tokio::time::timeout(RUNNING_TIMEOUT, status(reachable(address))).await;
    let Ok(Ok(body)) = answer else { return Value::Null };
    serde_json::from_str(&body).unwrap_or(Value::Null)
}

/// The names of the intakes of the Postrider that listens on `address`; empty if none does.
pub(super) async fn running_intakes(address: SocketAddr) -> Vec<String> {
    let status = running(address).await;
    let names = rows(&status, "intakes").iter().filter_map(|intake| intake["intake"].as_str());
    names.map(printable).collect()
}

/// The pipelines of the Postrider that listens on `address`; empty if none does.
pub(super) async fn running_pipelines(address: SocketAddr) -> Vec<RunningPipeline> {
    let status = running(address).await;
    let pipelines = rows(&status, "pipelines");
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let running = pipelines.iter().map(|pipeline| RunningPipeline {
        pipeline: text(&pipeline["pipeline"]),
        source: text(&pipeline["source"]),
        halted: (pipeline["state"] == "halted").then(|| text(&pipeline["halt_code"])),
    });
    running.collect()
}

/// The instruction that starts a pipeline which was set up or repaired. A process whose pipelines have halted may still
/// run and occupy its port, so it must be restarted.
pub(super) async fn how_to_start(listen: Option<SocketAddr>, spec: &PipelineSpec) -> String {
    let running = match listen {
        Some(address) => running_pipelines(address).await,
        None => Vec::new(),
    };
    let own = running
        .into_iter()
        .find(|other| other.pipeline == spec.name() && other.source == spec.source_name());
    match own {
        Some(RunningPipeline { halted: Some(code), .. }) => format!(
            "the process that halted with {code} is still running: restart postrider run (systemctl restart postrider)"
        ),
        Some(RunningPipeline { halted: None, .. }) => "postrider run is running".to_owned(),
        None => "start it with: postrider run".to_owned(),
    }
}

/// The body of `/status`.
async fn status(address: SocketAddr) -> Result<String, CliError> {
    get(address, "/status").await
}

/// The body of the answer of the process that listens on `address` to a request for `target`, which is in the form of
/// a request line. An answer that is not 200 is [`CliError::Stranger`].
pub(super) async fn get(address: SocketAddr, target: &str) -> Result<String, CliError> {
    let address = reachable(address);
    let answer = tokio::time::timeout(TIMEOUT, exchange(address, target)).await;
    let late = |_| io::Error::from(io::ErrorKind::TimedOut);
    let answer = answer.map_err(late).flatten();
    let answer = answer.map_err(|source| CliError::Ask { address, source })?;
    let (head, body) = answer.split_once("\r\n\r\n").ok_or(CliError::Stranger(address))?;
    let ok = head.starts_with("HTTP/1.") && head.split(' ').nth(1) == Some("200");
    if ok { Ok(body.to_owned()) } else { Err(CliError::Stranger(address)) }
}

/// Uses HTTP/1.0, so that the answer ends with the connection and is not chunked.
async fn exchange(address: SocketAddr, target: &str) -> io::Result<String> {
    let mut stream = TcpStream::connect(address).await?;
    let request =
        format!("GET {target} HTTP/1.0\r\nHost: {address}\r\nAccept: application/json\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut answer = Vec::new();
    stream.take(ANSWER_BYTES_MAX).read_to_end(&mut answer).await?;
    Ok(String::from_utf8_lossy(&answer).into_owned())
}

const HEAD: [&str; 9] = [
    "PIPELINE",
    "STATE",
    "LAG",
    "WAL LAG",
    "IN FLIGHT",
    "PUBLISHED",
    "SLOT",
    "RETAINED",
    "WATERMARK",
];

/// Columns of numbers are aligned to the right.
const RIGHT: [bool; 9] = [false, false, true, true, true, true, false, true, false];

const INTAKE_HEAD: [&str; 9] =
    ["INTAKE", "SOURCE", "INBOX", "STATE", "LAG", "PENDING", "STORED", "DEAD", "BLOCKED"];

const INTAKE_RIGHT: [bool; 9] = [false, false, false, false, true, true, true, true, true];

/// Index of the coloured column.
const INTAKE_STATE: usize = 3;

/// Printed behind the remedy of a halt: a halted pipeline does not check again whether its cause was removed.
const HALTED: &str =
    "then restart the process, which is still running (systemctl restart postrider)";

/// Index of the coloured column.
const STATE: usize = 1;

/// The status as a table with a line for each pipeline, then the reasons and remedies of those that are not ready.
fn render(pipelines: &[Value], color: bool) -> String {
    let rows = pipelines.iter().map(|pipeline| (row(pipeline), color.then(|| paint(pipeline))));
    let columns = Columns { right: RIGHT, painted: STATE };
    let mut text = grid(HEAD, &rows.collect::<Vec<_>>(), &columns);
    for pipeline in pipelines {
        text.push_str(&captured(pipeline));
        text.push_str(&problem(pipeline));
        text.push_str(&maintenance(pipeline));
        text.push_str(&retention(pipeline));
        text.push_str(&event_logs(pipeline));
        text.push_str(&inboxes(pipeline));
        text.push_str(&transactions(pipeline));
        text.push_str(&parked(pipeline));
        text.push_str(&skipped(pipeline));
    }
    text
}

/// The intakes as a table with a line for each, then the reasons and remedies of those that are not ready, and what the
/// maintenance of their databases has read.
fn render_intakes(intakes: &[Value], maintenance: &[Value], color: bool) -> String {
    let rows = intakes.iter().map(|intake| (intake_row(intake), color.then(|| paint(intake))));
    let columns = Columns { right: INTAKE_RIGHT, painted: INTAKE_STATE };
    let mut text = grid(INTAKE_HEAD, &rows.collect::<Vec<_>>(), &columns);
    for intake in intakes {
        text.push_str(&intake_problem(intake));
    }
    for database in maintenance {
        let name = database["intake"].as_str().unwrap_or("-");
        text.push_str(&inboxes_of(name, std::slice::from_ref(database)));
    }
    text
}

fn intake_row(intake: &Value) -> [String; INTAKE_HEAD.len()] {
    let text = |key: &str| printable(intake[key].as_str().unwrap_or("-"));
    let count = |key: &str| intake[key].as_u64().map_or_else(|| "-".to_owned(), grouped);
    [
        text("intake"),
        text("source"),
        text("inbox"),
        text("state"),
        count("lag_records"),
        count("pending"),
        count("stored_total"),
        count("dead_total"),
        count("blocked_total"),
    ]
}

/// Why an intake is not ready, and the remedy: its own, and those of its partitions.
fn intake_problem(intake: &Value) -> String {
    let name = intake["intake"].as_str().unwrap_or("-");
    let mut text = String::new();
    let mut problem = |what: &str, hint: Option<&str>| {
        // Writing to a String does not fail.
        write!(text, "\n\n{name}: {what}").unwrap_or_default();
        for line in hint.unwrap_or_default().lines() {
            write!(text, "\n  {line}").unwrap_or_default();
        }
    };
    if let Some(reason) = intake["reason"].as_str() {
        problem(reason, intake["hint"].as_str());
    }
    for partition in rows(intake, "blocked") {
        let of = |key: &str| partition[key].as_str().unwrap_or("-");
        let number = partition["partition"].as_i64().unwrap_or(0);
        let what = format!(
            "partition {number} of topic {} is blocked: {}: {}",
            printable(of("topic")),
            of("code"),
            of("reason")
        );
        problem(&what, partition["hint"].as_str());
    }
    let listed = u64::try_from(rows(intake, "blocked").len()).unwrap_or(u64::MAX);
    let more = intake["blocked_total"].as_u64().unwrap_or(0).saturating_sub(listed);
    if more > 0 {
        problem(&format!("{} more partitions are blocked", grouped(more)), None);
    }
    text
}

fn row(pipeline: &Value) -> [String; HEAD.len()] {
    let text = |key: &str| pipeline[key].as_str().unwrap_or("-").to_owned();
    let count = |key: &str| pipeline[key].as_u64().map_or_else(|| "-".to_owned(), grouped);
    let size = |key: &str| pipeline[key].as_u64().map_or_else(|| "-".to_owned(), bytes);
    [
        text("pipeline"),
        text("state"),
        pipeline["lag_seconds"]
            .as_f64()
            .map_or_else(|| "-".to_owned(), |lag| format!("{lag:.1} s")),
        size("lag_bytes"),
        count("in_flight_events"),
        count("published_total"),
        text("slot_state"),
        size("slot_retained_bytes"),
        text("watermark"),
    ]
}

/// Nine columns of a table: which are aligned to the right, and which one is coloured.
struct Columns {
    right: [bool; 9],
    painted: usize,
}

/// The lines of a table, with the colour of each.
fn grid(heads: [&str; 9], rows: &[([String; 9], Option<&str>)], columns: &Columns) -> String {
    let heads = heads.map(str::to_owned);
    let mut widths = heads.each_ref().map(String::len);
    for (row, _) in rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let mut text = line(&heads, &widths, columns, None);
    for (row, paint) in rows {
        text.push('\n');
        text.push_str(&line(row, &widths, columns, *paint));
    }
    text
}

fn line(
    cells: &[String; 9],
    widths: &[usize; 9],
    columns: &Columns,
    paint: Option<&str>,
) -> String {
    let mut text = String::new();
    let cells = cells.iter().zip(widths).zip(columns.right);
    for (index, ((cell, width), right)) in cells.enumerate() {
        let pad = " ".repeat(width.saturating_sub(cell.chars().count()));
        let cell = match paint {
            Some(paint) if index == columns.painted => format!("{paint}{cell}\x1b[0m"),
            Some(_) | None => cell.clone(),
        };
        let gap = if index == 0 { "" } else { "  " };
        let (before, after) = if right { (pad.as_str(), "") } else { ("", pad.as_str()) };
        // Writing to a String does not fail.
        write!(text, "{gap}{before}{cell}{after}").unwrap_or_default();
    }
    text.truncate(text.trim_end().len());
    text
}

/// Green: ready. Red: waits for an operator. Yellow: everything else.
fn paint(pipeline: &Value) -> &'static str {
    match (pipeline["ready"].as_bool(), pipeline["state"].as_str()) {
        (Some(true), _) => "\x1b[32m",
        (_, Some("halted" | "blocked" | "failed")) => "\x1b[31m",
        _ => "\x1b[33m",
    }
}

/// The tables that a pipeline captures, if it captures any.
fn captured(pipeline: &Value) -> String {
    let tables = rows(pipeline, "captured").iter().filter_map(Value::as_str);
    let tables: Vec<String> = tables.map(printable).collect();
    if tables.is_empty() {
        return String::new();
    }
    let name = pipeline["pipeline"].as_str().unwrap_or("-");
    format!("\n\n{name}: captures {}", tables.join(", "))
}

/// Why a pipeline is not ready, and the remedy.
fn problem(pipeline: &Value) -> String {
    let mut text = String::new();
    let name = pipeline["pipeline"].as_str().unwrap_or("-");
    let parts = ["halt_code", "reason"].into_iter().filter_map(|key| pipeline[key].as_str());
    let parts: Vec<_> = parts.collect();
    if !parts.is_empty() {
        write!(text, "\n\n{name}: {}", parts.join(": ")).unwrap_or_default();
    }
    if let Some(hint) = pipeline["hint"].as_str() {
        for line in hint.lines() {
            text.push_str("\n  ");
            text.push_str(line);
        }
    }
    if pipeline["state"].as_str() == Some("halted") {
        text.push_str("\n  ");
        text.push_str(HALTED);
    }
    text
}

/// Why the maintenance of the pipeline's tables fails, and what fixes that.
fn maintenance(pipeline: &Value) -> String {
    let name = pipeline["pipeline"].as_str().unwrap_or("-");
    let of = |key: &str| pipeline["maintenance"][key].as_str();
    let Some(reason) = of("reason") else { return String::new() };
    let mut text = format!(
        "\n\n{name}: maintenance of its tables fails, and is repeated; publishing is not affected: {reason}"
    );
    if let Some(hint) = of("hint") {
        write!(text, "\n  {hint}").unwrap_or_default();
    }
    text
}

/// What blocks retention of the outbox, or why it fails.
fn retention(pipeline: &Value) -> String {
    let name = pipeline["pipeline"].as_str().unwrap_or("-");
    let retention = &pipeline["maintenance"]["retention"];
    let mut text = String::new();
    let mut line = |what: &str, reason: &str, hint: Option<&str>| {
        // Writing to a String does not fail.
        write!(text, "\n\n{name}: retention {what}: {reason}").unwrap_or_default();
        if let Some(hint) = hint {
            write!(text, "\n  {hint}").unwrap_or_default();
        }
    };
    if let Some(reason) = retention["reason"].as_str() {
        let what = "fails, and is repeated; publishing is not affected";
        line(what, reason, retention["hint"].as_str());
    }
    for blocked in retention["blocked"].as_array().into_iter().flatten() {
        let reason = blocked["message"].as_str().unwrap_or("-");
        line("removes nothing", reason, blocked["hint"].as_str());
    }
    text
}

/// The event logs that the pipeline writes: a line for each log and each group, and why their maintenance fails.
fn event_logs(pipeline: &Value) -> String {
    let name = pipeline["pipeline"].as_str().unwrap_or("-");
    let event_logs = &pipeline["maintenance"]["event_logs"];
    let array = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let mut text = String::new();
    for log in array(&event_logs["logs"]) {
        let count = |key: &str| log[key].as_u64().unwrap_or(0);
        let (last, first) = (count("last_seq"), count("first_seq"));
        let log_name = log["log"].as_str().unwrap_or("-");
        let kept = (last + 1).saturating_sub(first);
        // Writing to a String does not fail.
        write!(
            text,
            "\n\n{name}: log {log_name} ends with event {} and has {}",
            grouped(last),
            counted(kept, "event", "events")
        )
        .unwrap_or_default();
        for group in array(&log["groups"]) {
            text.push_str("\n  ");
            text.push_str(&group_line(&group));
        }
    }
    if let Some(more) = event_logs["unreported"].as_u64().filter(|more| *more > 0) {
        write!(text, "\n  {} more: postrider groups list -p {name}", grouped(more))
            .unwrap_or_default();
    }
    if let Some(reason) = event_logs["reason"].as_str() {
        write!(
            text,
            "\n\n{name}: maintenance of event logs fails, and is repeated; publishing is not affected: {reason}"
        )
        .unwrap_or_default();
        if let Some(hint) = event_logs["hint"].as_str() {
            write!(text, "\n  {hint}").unwrap_or_default();
        }
    }
    text
}

/// `group billing: 1,234 events to read, the oldest since 12 min; 3 consumers, 1 silent`
fn group_line(group: &Value) -> String {
    let count = |key: &str| group[key].as_u64().unwrap_or(0);
    let name = printable(group["group"].as_str().unwrap_or("-"));
    let lag = counted(count("lag_events"), "event", "events");
    let mut text = format!("group {name}: {lag} to read");
    if count("lag_events") > 0 {
        let oldest = age(group["lag_seconds"].as_f64().unwrap_or(0.0));
        write!(text, ", the oldest since {oldest}").unwrap_or_default();
    }
    let consumers = counted(count("consumers_alive"), "consumer", "consumers");
    write!(text, "; {consumers}, {} silent", grouped(count("consumers_silent")))
        .unwrap_or_default();
    if group["evicted"].as_bool() == Some(true) {
        text.push_str("; evicted (postrider groups resume)");
    }
    if count("held_events") > 0 {
        write!(text, "; retains {}", counted(count("held_events"), "event", "events"))
            .unwrap_or_default();
    }
    text
}

/// The inboxes that the pipeline maintains: a line for each, and why their maintenance fails.
fn inboxes(pipeline: &Value) -> String {
    let name = pipeline["pipeline"].as_str().unwrap_or("-");
    inboxes_of(name, rows(&pipeline["maintenance"], "inboxes"))
}

/// The inboxes in these databases of a pipeline or an intake.
fn inboxes_of(name: &str, databases: &[Value]) -> String {
    let mut text = String::new();
    for database in databases {
        let (which, unaffected) = match database["database"].as_str() {
            Some("sink") => ("database of the event logs", "publishing"),
            Some("inbox") => ("database", "storing"),
            Some(_) | None => ("database", "publishing"),
        };
        let inboxes = rows(database, "inboxes");
        if !inboxes.is_empty() {
            // Writing to a String does not fail.
            let count = u64::try_from(inboxes.len()).unwrap_or(u64::MAX);
            write!(text, "\n\n{name}: {} in its {which}", counted(count, "inbox", "inboxes"))
                .unwrap_or_default();
        }
        for inbox in inboxes {
            text.push_str("\n  ");
            text.push_str(&inbox_line(inbox));
        }
        if let Some(more) = database["unreported"].as_u64().filter(|more| *more > 0) {
            write!(text, "\n  {} more: SELECT * FROM postrider.inbox_status();", grouped(more))
                .unwrap_or_default();
        }
        if let Some(reason) = database["reason"].as_str() {
            write!(
                text,
                "\n\n{name}: maintenance of inboxes in its {which} fails; {unaffected} is not affected: {reason}"
            )
            .unwrap_or_default();
            if let Some(hint) = database["hint"].as_str() {
                write!(text, "\n  {hint}").unwrap_or_default();
            }
        }
    }
    text
}

/// `inbox mail: healthy; 1,234 messages pending, the oldest since 12 min; 1 message dead; 2 gaps`
fn inbox_line(inbox: &Value) -> String {
    let count = |key: &str| inbox[key].as_u64().unwrap_or(0);
    let messages = |key: &str| counted(count(key), "message", "messages");
    let name = printable(inbox["inbox"].as_str().unwrap_or("-"));
    let health = printable(inbox["health"].as_str().unwrap_or("-"));
    let mut text = format!("inbox {name}: {health}; {} pending", messages("pending"));
    if count("pending") > 0 {
        let oldest = age(inbox["oldest_pending_seconds"].as_f64().unwrap_or(0.0));
        write!(text, ", the oldest since {oldest}").unwrap_or_default();
    }
    if count("dead") > 0 {
        write!(text, "; {} dead", messages("dead")).unwrap_or_default();
    }
    if count("gaps") > 0 {
        write!(text, "; {}", counted(count("gaps"), "gap", "gaps")).unwrap_or_default();
    }
    text
}

fn bytes(number: u64) -> String {
    const UNITS: [(&str, u64); 3] = [("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)];
    let Some((unit, factor)) = UNITS.into_iter().find(|(_, factor)| number >= *factor) else {
        return format!("{number} B");
    };
    let tenths = u128::from(number) * 10 / u128::from(factor);
    format!("{}.{} {unit}", tenths / 10, tenths % 10)
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::expect;
    use serde_json::json;

    #[test]
    fn a_table_shows_figures_and_then_problems() {
        let pipelines = [
            json!({
                "pipeline": "orders", "state": "streaming", "ready": true, "lag_seconds": 0.04,
                "lag_bytes": 1536, "in_flight_events": 12, "published_total": 1_234_567,
                "slot_state": "reserved", "slot_retained_bytes": 17_000_000, "watermark": "0/1A2B3C8",
                "skipped": {"expired": 1_100, "not_transactional": 0, "others": 7},
                "maintenance": {"reason": "permission denied", "hint": "GRANT one; GRANT two;"},
            }),
            json!({
                "pipeline": "invoices", "state": "halted", "ready": false, "lag_seconds": 3600.5,
                "lag_bytes": 0, "in_flight_events": 0, "published_total": 0, "slot_state": null,
                "slot_retained_bytes": null, "watermark": "0/0", "halt_code": "PR002",
                "reason": "slot \"postrider_invoices\" does not exist", "hint": "run one\nrun two",
            }),
        ];
        expect![[r#"
            PIPELINE  STATE           LAG  WAL LAG  IN FLIGHT  PUBLISHED  SLOT      RETAINED  WATERMARK
            orders    streaming     0.0 s  1.5 KiB         12  1,234,567  reserved  16.2 MiB  0/1A2B3C8
            invoices  halted     3600.5 s      0 B          0          0  -                -  0/0

            orders: maintenance of its tables fails, and is repeated; publishing is not affected: permission denied
              GRANT one; GRANT two;

            orders: 1,100 events skipped since the start because they had expired

            invoices: PR002: slot "postrider_invoices" does not exist
              run one
              run two
              then restart the process, which is still running (systemctl restart postrider)"#]]
        .assert_eq(&render(&pipelines, false));
        let colored = render(&pipelines, true);
        assert!(colored.contains("\x1b[32mstreaming\x1b[0m"), "{colored}");
        assert!(colored.contains("\x1b[31mhalted\x1b[0m"), "{colored}");
    }

    #[test]
    fn intakes_have_a_table_of_their_own_with_reasons_and_maintenance() {
        let intakes = [
            json!({
                "intake": "mail", "source": "kafka", "inbox": "letters", "state": "storing", "ready": false,
                "lag_records": 1_234, "pending": 7, "stored_total": 12_345, "dead_total": 1, "blocked_total": 2,
                "blocked": [{"topic": "orders", "partition": 3, "code": "records_deleted", "reason": "5 are gone",
                    "hint": "postrider inbox seek mail"}],
            }),
            json!({
                "intake": "hooks", "source": "webhook", "inbox": "hooks", "state": "database_down", "ready": false,
                "lag_records": null, "pending": null, "stored_total": 0, "dead_total": 0, "blocked_total": 0,
                "reason": "no route", "hint": "one\ntwo",
            }),
        ];
        let maintenance = [json!({
            "intake": "mail", "database": "inbox", "unreported": 0, "reason": "denied", "hint": "GRANT one;",
            "inboxes": [{"inbox": "letters", "pending": 7, "dead": 1, "health": "degraded"}],
        })];
        expect![[r#"
            INTAKE  SOURCE   INBOX    STATE            LAG  PENDING  STORED  DEAD  BLOCKED
            mail    kafka    letters  storing        1,234        7  12,345     1        2
            hooks   webhook  hooks    database_down      -        -       0     0        0

            mail: partition 3 of topic orders is blocked: records_deleted: 5 are gone
              postrider inbox seek mail

            mail: 1 more partitions are blocked

            hooks: no route
              one
              two

            mail: 1 inbox in its database
              inbox letters: degraded; 7 messages pending, the oldest since 0 s; 1 message dead

            mail: maintenance of inboxes in its database fails; storing is not affected: denied
              GRANT one;"#]]
        .assert_eq(&render_intakes(&intakes, &maintenance, false));
    }

    #[test]
    fn parked_events_are_shown_with_what_they_block() {
        let of = |value: Value| parked(&json!({"pipeline": "orders", "parked": value}));
        assert_eq!(of(Value::Null), "");
        assert_eq!(
            of(json!({"waiting": 0, "behind": 0, "due": 0, "dead": 0, "aggregates": 0})),
            ""
        );
        let some = of(json!({
            "waiting": 1, "behind": 1_500, "due": 0, "dead": 1, "aggregates": 2, "oldest_seconds": 754.2,
        }));
        expect![[r#"


            orders: 1,502 events are parked (1 refused, being retried, 1 dead, 1,500 behind an earlier event)
              2 aggregates are blocked; the oldest event has been parked for 12 min
              postrider parked list -p orders"#]].assert_eq(&some);
        let one = of(json!({"waiting": 0, "due": 1, "aggregates": 0, "oldest_seconds": 3.0}));
        assert!(
            one.contains("1 event is parked (1 not due yet)\n  0 aggregates are blocked"),
            "{one}"
        );
        assert!(one.contains("the oldest event has been parked for 3 s"), "{one}");
    }

    #[test]
    fn event_logs_have_a_line_for_each_group() {
        assert_eq!(event_logs(&json!({"pipeline": "orders"})), "");
        let some = event_logs(&json!({"pipeline": "orders", "maintenance": {"event_logs": {
            "logs": [{"log": "shop", "first_seq": 1_001, "last_seq": 3_000, "groups": [
                {"group": "billing", "lag_events": 1_234, "lag_seconds": 754.2, "consumers_alive": 3,
                 "consumers_silent": 1, "evicted": false, "held_events": 0},
                {"group": "search", "lag_events": 0, "lag_seconds": 0.0, "consumers_alive": 1, "consumers_silent": 0,
                 "evicted": true, "held_events": 7},
            ]}],
            "unreported": 2, "reason": "permission denied", "hint": "GRANT one;",
        }}}));
        expect![[r#"


            orders: log shop ends with event 3,000 and has 2,000 events
              group billing: 1,234 events to read, the oldest since 12 min; 3 consumers, 1 silent
              group search: 0 events to read; 1 consumer, 0 silent; evicted (postrider groups resume); retains 7 events
              2 more: postrider groups list -p orders

            orders: maintenance of event logs fails, and is repeated; publishing is not affected: permission denied
              GRANT one;"#]]
        .assert_eq(&some);
    }

    #[test]
    fn inboxes_have_a_line_each() {
        assert_eq!(inboxes(&json!({"pipeline": "orders"})), "");
        let some = inboxes(&json!({"pipeline": "orders", "maintenance": {"inboxes": [
            {"database": "source", "inboxes": [
                {"inbox": "mail", "pending": 1_234, "dead": 1, "oldest_pending_seconds": 754.2, "health": "degraded"},
                {"inbox": "stock", "pending": 0, "dead": 0, "oldest_pending_seconds": 0.0, "gaps": 2,
                 "health": "healthy"},
            ], "unreported": 1},
            {"database": "sink", "inboxes": [], "reason": "denied", "hint": "GRANT one;"},
        ]}}));
        expect![[r#"


            orders: 2 inboxes in its database
              inbox mail: degraded; 1,234 messages pending, the oldest since 12 min; 1 message dead
              inbox stock: healthy; 0 messages pending; 2 gaps
              1 more: SELECT * FROM postrider.inbox_status();

            orders: maintenance of inboxes in its database of the event logs fails; publishing is not affected: denied
              GRANT one;"#]]
        .assert_eq(&some);
    }

    #[test]
    fn ages_have_one_unit() {
        for (seconds, text) in
            [(0.4, "0 s"), (119.0, "119 s"), (120.0, "2 min"), (7_200.0, "2 h"), (172_800.0, "2 d")]
        {
            assert_eq!(age(seconds), text);
        }
    }

    #[test]
    fn figures_are_short() {
        assert_eq!(grouped(0), "0");
        assert_eq!(grouped(999), "999");
        assert_eq!(grouped(1000), "1,000");
        assert_eq!(bytes(1023), "1023 B");
        assert_eq!(bytes(1024), "1.0 KiB");
        assert_eq!(bytes(u64::MAX), "17179869183.9 GiB");
    }
}
