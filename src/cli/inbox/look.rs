//! What `postrider inbox` shows and does not change: list, status, dead messages, gaps.

use super::args::{DeadArgs, GapsArgs, InboxStatusArgs, ListInboxesArgs};
use super::error::{InboxCommandError, InboxStatement};
use super::session::{INBOXES_MAX, InboxSession, failed};
use crate::cli::Output;
use crate::cli::dialog::{columns, print_list, whole_seconds};
use crate::cli::error::{CliError, Exit, printable};
use crate::health::{duration_text, grouped};
use crate::postgres::store::inbox_messages::{self, DeadFilter, DeadMessage, MessagePayload};
use crate::postgres::store::inboxes::{
    self, GapScope, InboxFacts, InboxGap, InboxHealth, InboxOrder, TypeNumbers,
};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD as BASE64;
use serde_json::{Value, json};

/// The most types of one inbox that are shown.
const TYPES_MAX: usize = 100;

/// The most gaps of one inbox that its status shows.
const GAPS_MAX: usize = 5;

/// The most characters of an error in a table; JSON has all of it.
const ERROR_MAX: usize = 120;

/// The state of an inbox, or why it can't be read.
type Health = Result<InboxHealth, CliError>;

async fn health(session: &InboxSession, inbox: &InboxFacts) -> Health {
    let health = inboxes::health(session.client(), &inbox.name).await;
    health.map_err(failed(InboxStatement::Look, inbox))
}

pub(super) async fn list(session: &InboxSession, args: &ListInboxesArgs) -> Result<Exit, CliError> {
    let (all, more) = session.list(INBOXES_MAX).await?;
    let mut rows = Vec::new();
    for inbox in &all {
        rows.push((inbox, health(session, inbox).await));
    }
    print_list(args.json, rows.iter().map(|(inbox, health)| inbox_json(inbox, health)), || {
        if rows.is_empty() {
            return "no inboxes".to_owned();
        }
        columns(&HEAD, &rows.iter().map(|(inbox, health)| cells(inbox, health)).collect::<Vec<_>>())
    })?;
    note_more(more);
    let unread = report_unread(rows.iter().filter_map(|(_, health)| health.as_ref().err()));
    Ok(if unread { Exit::Problems } else { Exit::Done })
}

fn note_more(more: bool) {
    if more {
        let text = format!("only the first {} inboxes are shown", grouped(INBOXES_MAX as u64));
        Output::stderr().line_or_ignore(&text);
    }
}

/// Prints the errors of inboxes that could not be read; whether there is one.
fn report_unread<'e>(errors: impl Iterator<Item = &'e CliError>) -> bool {
    let mut some = false;
    for error in errors {
        some = true;
        Output::stderr().line_or_ignore(&error.report());
    }
    some
}

const HEAD: [&str; 10] = [
    "INBOX",
    "TABLE",
    "KIND",
    "RULE",
    "RETRIES",
    "RETENTION",
    "PENDING",
    "DEAD",
    "OLDEST",
    "STATE",
];

fn cells(inbox: &InboxFacts, health: &Health) -> [String; HEAD.len()] {
    let [pending, dead, oldest, state] = match health {
        Ok(health) => [
            grouped(health.pending),
            grouped(health.dead),
            duration_text(whole_seconds(health.oldest_seconds)),
            printable(&health.status),
        ],
        Err(_) => ["?", "?", "?", "not readable"].map(str::to_owned),
    };
    [
        printable(&inbox.name),
        printable(&inbox.table.name.to_string()),
        if inbox.is_managed { "managed" } else { "adopted" }.to_owned(),
        rule(inbox),
        inbox.max_retries.to_string(),
        retention(inbox),
        pending,
        dead,
        oldest,
        state,
    ]
}

/// Which message is next.
fn rule(inbox: &InboxFacts) -> String {
    match (inbox.order, tiers(inbox)) {
        (Some(InboxOrder::Sequence), _) => format!("sequence from {}", inbox.first_sequence),
        (Some(InboxOrder::Arrival), _) => "arrival".to_owned(),
        (None, Value::Object(tiers)) => {
            let tier =
                |(name, bounds): (&String, &Value)| format!("{name}={}..{}", bounds[0], bounds[1]);
            let tiers: Vec<String> = tiers.iter().map(tier).collect();
            format!("priorities {}", tiers.join(","))
        }
        (None, _) => "-".to_owned(),
    }
}

fn tiers(inbox: &InboxFacts) -> Value {
    let tiers = inbox.tiers.as_deref().map(serde_json::from_str);
    tiers.and_then(Result::ok).unwrap_or(Value::Null)
}

fn retention(inbox: &InboxFacts) -> String {
    let kept = |hours: u64| match hours {
        0 => "for ever".to_owned(),
        hours => format!("{hours} h"),
    };
    if inbox.is_managed && inbox.dead_retention_hours != 0 {
        return format!(
            "{}, dead {}",
            kept(inbox.retention_hours),
            kept(inbox.dead_retention_hours)
        );
    }
    kept(inbox.retention_hours)
}

pub(super) fn facts_json(inbox: &InboxFacts) -> Value {
    json!({
        "inbox": inbox.name,
        "table": inbox.table.name.to_string(),
        "managed": inbox.is_managed,
        "owner": inbox.table.owner,
        "order": inbox.order.map(InboxOrder::name),
        "first_sequence": (inbox.order == Some(InboxOrder::Sequence)).then_some(inbox.first_sequence),
        "priorities": tiers(inbox),
        "max_retries": inbox.max_retries,
        "retention_hours": inbox.retention_hours,
        "dead_retention_hours": inbox.dead_retention_hours,
    })
}

fn inbox_json(inbox: &InboxFacts, health: &Health) -> Value {
    let mut value = facts_json(inbox);
    match health {
        Ok(health) => {
            value["pending"] = json!(health.pending);
            value["dead"] = json!(health.dead);
            value["oldest_pending_seconds"] = json!(health.oldest_seconds);
            value["processed_per_second"] = json!(health.per_second);
            value["processing_seconds"] = json!(health.processing_seconds);
            value["health"] = json!(health.status);
        }
        Err(error) => value["unreadable"] = json!(error.one_line()),
    }
    value
}

/// What `status` shows of an inbox beside its settings.
struct InboxReport {
    health: Health,
    types: (Vec<TypeNumbers>, bool),
    gaps: (Vec<InboxGap>, u64),
}

impl InboxReport {
    async fn read(session: &InboxSession, inbox: &InboxFacts) -> Self {
        let health = health(session, inbox).await;
        let mut report = Self { health, types: (Vec::new(), false), gaps: (Vec::new(), 0) };
        if report.health.is_ok()
            && let Err(error) = report.read_details(session, inbox).await
        {
            report.health = Err(error);
        }
        report
    }

    async fn read_details(
        &mut self,
        session: &InboxSession,
        inbox: &InboxFacts,
    ) -> Result<(), CliError> {
        let (client, failed) = (session.client(), failed(InboxStatement::Look, inbox));
        self.types = inboxes::types(client, &inbox.name, TYPES_MAX).await.map_err(failed)?;
        if inbox.order == Some(InboxOrder::Sequence) {
            let gaps = inboxes::gaps(client, &inbox.name, GapScope::First, GAPS_MAX).await;
            self.gaps = gaps.map_err(failed)?;
        }
        Ok(())
    }

    fn is_healthy(&self) -> bool {
        self.health.as_ref().is_ok_and(InboxHealth::is_healthy)
    }

    /// Why the inbox is not healthy, and what waits for numbers.
    fn reasons(&self, inbox: &InboxFacts) -> Vec<String> {
        let Ok(health) = &self.health else { return Vec::new() };
        let (age, name) = (whole_seconds(health.oldest_seconds), printable(&inbox.name));
        let mut reasons = Vec::new();
        let limits = [("critical", inbox.critical_after), ("degraded", inbox.degraded_after)];
        let over = limits.into_iter().find(|(_, limit)| health.pending > 0 && age >= *limit);
        if let Some((state, limit)) = over {
            reasons.push(format!(
                "{state}: the oldest pending message is {} old; the limit is {}",
                duration_text(age),
                duration_text(limit)
            ));
        }
        if health.dead > 0 {
            reasons.push(format!(
                "degraded: {}: postrider inbox dead {name}",
                counted(health.dead, "dead message")
            ));
        }
        let (gaps, total) = &self.gaps;
        if *total > 0 {
            let shown: Vec<String> = gaps.iter().map(gap_text).collect();
            let more = if gaps.len() as u64 == *total { "" } else { ", …" };
            reasons.push(format!(
                "waiting for missing numbers: {}: {}{more}: postrider inbox gaps {name}",
                counted(*total, "aggregate"),
                shown.join(", ")
            ));
        }
        reasons
    }

    fn text(&self, inbox: &InboxFacts) -> String {
        let name = printable(&inbox.name);
        let Ok(health) = &self.health else { return format!("{name}: not readable") };
        let mut lines = vec![format!("{name}: {}", printable(&health.status))];
        lines.extend(self.reasons(inbox).into_iter().map(|reason| format!("  {reason}")));
        let average = health
            .processing_seconds
            .map(|seconds| format!(", on average {seconds:.1} s after they arrived"));
        lines.push(format!(
            "  {} pending, the oldest since {}; {} dead; {:.2} messages per second are processed{}",
            grouped(health.pending),
            duration_text(whole_seconds(health.oldest_seconds)),
            grouped(health.dead),
            health.per_second,
            average.unwrap_or_default()
        ));
        let (types, more) = &self.types;
        if !types.is_empty() {
            let rows: Vec<_> = types.iter().map(type_cells).collect();
            let table = columns(&["TYPE", "PENDING", "DEAD", "PROCESSED", "SECONDS"], &rows);
            lines.extend(table.lines().map(|line| format!("  {line}")));
        }
        if *more {
            lines.push(format!("  further types are not shown: view stats_{name} has all"));
        }
        lines.join("\n")
    }

    fn json(&self, inbox: &InboxFacts) -> Value {
        let mut value = inbox_json(inbox, &self.health);
        if self.health.is_err() {
            return value;
        }
        let of_type = |of: &TypeNumbers| {
            json!({
                "type": of.event_type, "pending": of.pending, "dead": of.dead, "processed": of.processed,
                "processing_seconds": of.processing_seconds,
            })
        };
        value["reasons"] = json!(self.reasons(inbox));
        value["types"] = self.types.0.iter().map(of_type).collect();
        value["types_complete"] = json!(!self.types.1);
        value["gaps"] = json!(self.gaps.1);
        value
    }
}

fn type_cells(of: &TypeNumbers) -> [String; 5] {
    [
        if of.event_type.is_empty() { "-".to_owned() } else { printable(&of.event_type) },
        grouped(of.pending),
        grouped(of.dead),
        grouped(of.processed),
        of.processing_seconds.map_or("-".to_owned(), |seconds| format!("{seconds:.1}")),
    ]
}

pub(super) async fn status(
    session: &InboxSession,
    args: &InboxStatusArgs,
) -> Result<Exit, CliError> {
    let (all, more) = match &args.name {
        Some(name) => (vec![session.find(name).await?], false),
        None => session.list(INBOXES_MAX).await?,
    };
    let mut reports = Vec::new();
    for inbox in &all {
        reports.push((inbox, InboxReport::read(session, inbox).await));
    }
    print_list(args.json, reports.iter().map(|(inbox, report)| report.json(inbox)), || {
        if reports.is_empty() {
            return "no inboxes".to_owned();
        }
        let texts: Vec<String> = reports.iter().map(|(inbox, report)| report.text(inbox)).collect();
        texts.join("\n")
    })?;
    note_more(more);
    report_unread(reports.iter().filter_map(|(_, report)| report.health.as_ref().err()));
    let healthy = reports.iter().all(|(_, report)| report.is_healthy());
    Ok(if healthy { Exit::Done } else { Exit::Problems })
}

pub(super) async fn dead(session: &InboxSession, args: &DeadArgs) -> Result<Exit, CliError> {
    let inbox = session.find_with_table(&args.name).await?;
    if args.payload && !inbox.is_managed {
        return Err(lacks(&inbox, "column that is known as the payload"));
    }
    if args.event_type.is_some() && inbox.columns.event_type.is_none() {
        return Err(lacks(&inbox, "column of types"));
    }
    let filter =
        DeadFilter { after: args.after.as_deref(), event_type: args.event_type.as_deref() };
    let limit = args.limit as usize;
    let found =
        inbox_messages::dead(session.client(), &inbox, filter, limit + 1, args.payload).await;
    let mut messages = found.map_err(failed(InboxStatement::Look, &inbox))?;
    let more = messages.len() > limit;
    messages.truncate(limit);
    print_list(args.json, messages.iter().map(|message| dead_json(&inbox, message)), || {
        dead_text(&messages)
    })?;
    if more && let Some(last) = messages.last() {
        let text = format!("there are more: --after {}", shell_word(&last.id));
        Output::stderr().line_or_ignore(&text);
    }
    Ok(Exit::Done)
}

/// An argument as a shell reads it.
fn shell_word(text: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:@+".contains(c);
    let text = printable(text);
    if !text.is_empty() && text.chars().all(plain) {
        return text;
    }
    format!("'{}'", text.replace('\'', "'\\''"))
}

pub(super) fn lacks(inbox: &InboxFacts, what: &'static str) -> CliError {
    let (name, table) = (printable(&inbox.name), inbox.table.name.to_string());
    InboxCommandError::Adopted { inbox: name, table, lacks: what }.into()
}

const DEAD_HEAD: [&str; 6] = ["ID", "TYPE", "AGGREGATE", "ATTEMPTS", "DEAD SINCE", "ERROR"];

fn dead_text(messages: &[DeadMessage]) -> String {
    if messages.is_empty() {
        return "no dead messages".to_owned();
    }
    let table = columns(&DEAD_HEAD, &messages.iter().map(dead_cells).collect::<Vec<_>>());
    let payloads = messages.iter().filter_map(|message| {
        let size = grouped(message.payload_bytes.unwrap_or(0));
        let text = match message.payload.as_ref()? {
            MessagePayload::Json(text) => printable(text),
            MessagePayload::Bytes(bytes) => format!("base64 {}", BASE64.encode(bytes)),
            MessagePayload::TooLarge => format!("not shown: {size} bytes"),
        };
        Some(format!("payload of {}: {text}", printable(&message.id)))
    });
    std::iter::once(table).chain(payloads).collect::<Vec<_>>().join("\n")
}

fn dead_cells(message: &DeadMessage) -> [String; DEAD_HEAD.len()] {
    let or_dash = |text: &Option<String>| text.as_deref().map_or("-".to_owned(), printable);
    let error = match &message.error {
        Some(error) if error.chars().count() > ERROR_MAX => {
            format!("{}…", printable(&error.chars().take(ERROR_MAX).collect::<String>()))
        }
        error => or_dash(error),
    };
    [
        printable(&message.id),
        or_dash(&message.event_type),
        or_dash(&message.aggregate),
        message.attempts.to_string(),
        or_dash(&message.dead_at),
        error,
    ]
}

fn dead_json(inbox: &InboxFacts, message: &DeadMessage) -> Value {
    let mut value = json!({
        "inbox": inbox.name,
        "id": message.id,
        "type": message.event_type,
        "aggregate": message.aggregate,
        "attempts": message.attempts,
        "error": message.error,
        "received_at": message.received_at,
        "dead_at": message.dead_at,
        "payload_bytes": message.payload_bytes,
    });
    match &message.payload {
        Some(MessagePayload::Json(text)) => {
            value["payload"] = serde_json::from_str(text).unwrap_or_else(|_| json!(text));
        }
        Some(MessagePayload::Bytes(bytes)) => {
            value["payload"] = json!({"base64": BASE64.encode(bytes)});
        }
        Some(MessagePayload::TooLarge) | None => {}
    }
    value
}

pub(super) async fn gaps(session: &InboxSession, args: &GapsArgs) -> Result<Exit, CliError> {
    let inbox = session.find_with_table(&args.name).await?;
    let scope = if args.all { GapScope::All } else { GapScope::First };
    let found = inboxes::gaps(session.client(), &inbox.name, scope, args.limit as usize).await;
    let (gaps, total) = found.map_err(failed(InboxStatement::Look, &inbox))?;
    print_list(args.json, gaps.iter().map(|gap| gap_json(&inbox, gap)), || {
        if gaps.is_empty() {
            return "no gaps".to_owned();
        }
        columns(&GAP_HEAD, &gaps.iter().map(gap_cells).collect::<Vec<_>>())
    })?;
    if total > gaps.len() as u64 {
        let text =
            format!("shown: {} of {}; --limit shows more", gaps.len(), counted(total, "gap"));
        Output::stderr().line_or_ignore(&text);
    }
    Ok(Exit::Done)
}

const GAP_HEAD: [&str; 5] = ["AGGREGATE", "MISSING", "NUMBERS", "NEXT MESSAGE", "WAITING SINCE"];

fn gap_cells(gap: &InboxGap) -> [String; GAP_HEAD.len()] {
    [
        printable(&gap.aggregate),
        format!("{}..{}", gap.from, gap.to),
        grouped(gap.count()),
        gap.next_id.as_deref().map_or("-".to_owned(), printable),
        gap.waiting_since.as_deref().map_or("-".to_owned(), printable),
    ]
}

/// `item/1 for 2..2`
pub(super) fn gap_text(gap: &InboxGap) -> String {
    format!("{} for {}..{}", printable(&gap.aggregate), gap.from, gap.to)
}

fn gap_json(inbox: &InboxFacts, gap: &InboxGap) -> Value {
    json!({
        "inbox": inbox.name,
        "aggregate": gap.aggregate,
        "missing_from": gap.from,
        "missing_to": gap.to,
        "next_id": gap.next_id,
        "waiting_since": gap.waiting_since,
    })
}

/// `1 dead message`, `1,234 dead messages`
pub(super) fn counted(number: u64, thing: &str) -> String {
    format!("{} {thing}{}", grouped(number), if number == 1 { "" } else { "s" })
}
