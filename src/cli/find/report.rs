//! The result of a search as text and as JSON.

use super::process::{ProcessAnswer, Remembered, SentEvent, SentState, Wanted};
use super::verdict::{EventFacts, Verdict, Whereabouts};
use crate::cli::dialog::whole_seconds;
use crate::cli::error::printable;
use crate::cli::folded;
use crate::health::{duration_text, grouped};
use crate::pipeline::PipelineSpec;
use crate::postgres::find::StoredPosition;
use crate::postgres::store::pause::ConnectedProcesses;
use serde_json::{Value, json};
use std::net::SocketAddr;

/// Width of the labels. Unit: characters.
const LABEL: usize = 22;

/// Where one event is.
pub(super) struct EventAnswer {
    id: Option<String>,
    aggregate: Option<(String, String)>,
    verdict: Verdict,
    position: Option<String>,
    /// What the process knows best.
    sent: Option<SentEvent>,
    topic: Option<String>,
    error_code: Option<String>,
    /// The row's own time.
    time: Option<String>,
}

impl EventAnswer {
    pub(super) fn new(
        id: Option<String>,
        aggregate: Option<(String, String)>,
        verdict: Verdict,
        event: EventFacts<'_>,
    ) -> Self {
        // A publication that is acknowledged before any later one that is not.
        let placed = event.sent.iter().find(|sent| sent.offset.is_some());
        let best = placed.or(event.sent.first());
        // What was given up says nothing once something else proves where the event is.
        let is_meant = |sent: &&&SentEvent| {
            sent.state != SentState::GivenUp || verdict.whereabouts == Whereabouts::Unconfirmed
        };
        let sent = best.filter(is_meant).map(|sent| (*sent).clone());
        let parked = event.parked;
        let topic = sent.as_ref().and_then(|sent| sent.topic.clone()).or_else(|| {
            parked.map(|parked| parked.topic.clone()).filter(|topic| !topic.is_empty())
        });
        let position = sent.as_ref().map(|sent| sent.position.clone());
        Self {
            id,
            aggregate,
            verdict,
            position: position.or_else(|| parked.map(|parked| parked.position.to_string())),
            topic,
            error_code: parked.and_then(|parked| parked.error_code.clone()),
            time: event.row.and_then(|row| row.time.clone()),
            sent,
        }
    }

    fn facts(&self, now_unix_ms: u64) -> String {
        let mut facts = Vec::new();
        if let Some(id) = &self.id {
            facts.push(format!("event {id}"));
        }
        if let Some((kind, id)) = &self.aggregate {
            facts.push(format!("{kind}:{id}"));
        }
        if let Some(topic) = &self.topic {
            facts.push(format!("topic {topic}"));
        }
        if let Some(sent) = &self.sent {
            if let (Some(partition), Some(offset)) = (sent.partition, sent.offset) {
                facts.push(format!("partition {partition}, offset {offset}"));
            }
            let at = sent.settled_unix_ms.unwrap_or(sent.sent_unix_ms);
            facts.push(format!("{} ago", duration_text(now_unix_ms.saturating_sub(at) / 1000)));
        }
        if let Some(position) = &self.position {
            facts.push(format!("position {position}"));
        }
        if let Some(time) = &self.time {
            facts.push(format!("written at {time}"));
        }
        facts.join(", ")
    }

    fn json(&self) -> Value {
        let sent = self.sent.as_ref();
        json!({
            "state": self.verdict.whereabouts.name(),
            "because": self.verdict.because,
            "id": self.id,
            "aggregate_type": self.aggregate.as_ref().map(|(kind, _)| kind),
            "aggregate_id": self.aggregate.as_ref().map(|(_, id)| id),
            "position": self.position,
            "topic": self.topic,
            "partition": sent.and_then(|sent| sent.partition),
            "offset": sent.and_then(|sent| sent.offset),
            "sent_unix_ms": sent.map(|sent| sent.sent_unix_ms),
            "settled_unix_ms": sent.and_then(|sent| sent.settled_unix_ms),
            "error_code": self.error_code,
            "time": self.time,
        })
    }
}

/// What was asked, and how far back it reaches.
pub(super) struct Sources {
    pub(super) listen: Option<SocketAddr>,
    /// The answer of the process, or why there is none.
    pub(super) process: Result<ProcessAnswer, String>,
    /// Whether the database has answered, or why not.
    pub(super) database: Result<(), String>,
    /// The table that was searched, or why none was; `None` if the database has not answered.
    pub(super) table: Option<Result<String, String>>,
    pub(super) position: Option<StoredPosition>,
    /// The processes that are connected to the database.
    pub(super) processes: Option<ConnectedProcesses>,
}

impl Sources {
    fn now_unix_ms(&self) -> u64 {
        self.process.as_ref().map_or(0, |process| process.now_unix_ms)
    }

    /// What the process was asked, as a line.
    fn of_process(&self) -> Result<String, String> {
        let process = self.process.as_ref().map_err(|why| format!("the process: {why}"))?;
        let address = self.listen.map_or_else(String::new, |address| format!(" at {address}"));
        let state = process.state.replace('_', " ");
        let Some(remembered) = &process.remembers else {
            return Err(format!(
                "the process{address} ({state}) remembers no publications: admin.remember_changes is 0"
            ));
        };
        let Remembered { seconds, changes_max, since_start, .. } = remembered;
        let since = duration_text(whole_seconds(*seconds));
        let reach = if *since_start {
            format!(
                "everything since its start {since} ago (at most {} changes)",
                grouped(*changes_max)
            )
        } else {
            format!("the newest {} changes, back to {since} ago", grouped(*changes_max))
        };
        Ok(format!("the process{address} ({state}), which remembers {reach}"))
    }

    /// A note about other processes of the pipeline.
    fn of_others(&self) -> Option<String> {
        let processes = self.processes?;
        let own = self.process.as_ref().ok();
        if own.is_some_and(|process| process.state == "standing_by") {
            return Some(
                "this is a standby process: another one publishes, and remembers its own publications. Ask that one \
                 with its configuration (-c)"
                    .to_owned(),
            );
        }
        if own.is_none() && processes.reads {
            return Some(
                "a process reads for this pipeline, and could not be asked: run the command on its host, or with its \
                 admin.listen"
                    .to_owned(),
            );
        }
        None
    }

    fn of_database(&self) -> Vec<Result<String, String>> {
        if let Err(why) = &self.database {
            return vec![Err(format!("the database: {why}"))];
        }
        let position = self.position.as_ref().map_or_else(
            || "no position is stored yet".to_owned(),
            |position| format!("the position {} of {}", position.watermark, position.written_at),
        );
        let mut lines = vec![Ok(format!(
            "the database: parked events (those that were published or skipped, for 7 days), {position}"
        ))];
        match &self.table {
            Some(Ok(table)) => lines.push(Ok(format!("table {table}, rows that were not deleted"))),
            Some(Err(why)) => lines.push(Err(format!("the table: {why}"))),
            None => {}
        }
        lines
    }

    fn json(&self) -> Value {
        let process = match &self.process {
            Ok(process) => json!({
                "asked": true,
                "state": process.state,
                "remembers": process.remembers.as_ref().map(|of| json!({
                    "since_unix_ms": of.since_unix_ms,
                    "seconds": of.seconds,
                    "changes_max": of.changes_max,
                    "since_start": of.since_start,
                })),
            }),
            Err(why) => json!({ "asked": false, "why": why }),
        };
        let database = match &self.database {
            Ok(()) => json!({
                "asked": true,
                "table": self.table.as_ref().and_then(|table| table.as_ref().ok()),
                "table_not_searched": self.table.as_ref().and_then(|table| table.as_ref().err()),
                "position": self.position.as_ref().map(|position| &position.watermark),
                "position_written_at": self.position.as_ref().map(|position| &position.written_at),
                "a_process_reads": self.processes.map(|processes| processes.reads),
                "paused_processes": self.processes.map(|processes| processes.paused),
            }),
            Err(why) => json!({ "asked": false, "why": why }),
        };
        json!({ "process": process, "database": database, "note": self.of_others() })
    }
}

/// The result of a search for one pipeline.
pub(super) struct PipelineReportText<'a> {
    pub(super) spec: &'a PipelineSpec,
    pub(super) wanted: Wanted<'a>,
    pub(super) answers: Vec<EventAnswer>,
    pub(super) more: bool,
    pub(super) sources: Sources,
}

impl PipelineReportText<'_> {
    pub(super) fn text(&self) -> String {
        let what = match self.wanted {
            Wanted::Id(id) => format!("event {id}"),
            Wanted::Aggregate(kind, id) => format!("the newest events of {kind}:{id}"),
        };
        let mut lines = vec![printable(&format!("{}: {what}", self.spec.name()))];
        let line =
            |label: &str, text: &str| folded(&format!("  {label:<LABEL$}"), &printable(text));
        let now = self.sources.now_unix_ms();
        for answer in &self.answers {
            let name = answer.verdict.whereabouts.name().replace('_', " ");
            lines.push(line(&name, &answer.facts(now)));
            lines.push(line("", &answer.verdict.because));
        }
        if self.answers.is_empty() {
            lines.push(line("unknown", &self.unknown()));
        }
        if self.more {
            lines.push(line("", "there are more events: raise --limit, or search for an id"));
        }
        let mut label = "asked";
        let mut not = Vec::new();
        for asked in self.sources.of_database().into_iter().chain([self.sources.of_process()]) {
            match asked {
                Ok(text) => {
                    lines.push(line(label, &text));
                    label = "";
                }
                Err(text) => not.push(text),
            }
        }
        label = "not asked";
        for text in not {
            lines.push(line(label, &text));
            label = "";
        }
        if let Some(note) = self.sources.of_others() {
            lines.push(line("note", &note));
        }
        lines.join("\n")
    }

    /// What it means that nothing is known.
    fn unknown(&self) -> String {
        let what = match self.wanted {
            Wanted::Id(_) => "such an event",
            Wanted::Aggregate(..) => "events of this aggregate",
        };
        format!(
            "nothing is known of {what}. It was not committed, or its row was deleted and it was published before what \
             is remembered: see below how far back each answer reaches. This does not mean that it was lost"
        )
    }

    pub(super) fn json(&self) -> Value {
        let (id, aggregate) = match self.wanted {
            Wanted::Id(id) => (Some(id), None),
            Wanted::Aggregate(kind, id) => (None, Some(format!("{kind}:{id}"))),
        };
        json!({
            "pipeline": self.spec.name(),
            "id": id,
            "aggregate": aggregate,
            "state": self.state(),
            "found": self.answers.iter().map(EventAnswer::json).collect::<Vec<_>>(),
            "more": self.more,
            "sources": self.sources.json(),
        })
    }

    /// The state of the only event, `unknown` without one, and `several`.
    fn state(&self) -> &'static str {
        match self.answers.as_slice() {
            [] => "unknown",
            [one] => one.verdict.whereabouts.name(),
            _ => "several",
        }
    }
}
