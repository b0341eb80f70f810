//! A ledger file: what a writer has committed, one JSON object a line, in the order of the commits of each aggregate.
//!
//! ```json
//! {"ledger": "postrider", "version": 1}
//! {"id": "1", "topic": "order", "key": "42", "aggregate_type": "order", "aggregate_id": "42"}
//! {"id": "2", "topic": "order", "key": "42", "outcome": "rolled_back", "at_us": 1772337600000000}
//! ```

use super::comparison::{Expectation, SourceEvent, SourceKey, TopicComparison};
use super::error::VerifyError;
use super::findings::VerifyFinding;
use crate::timestamp::Timestamp;
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{BufRead as _, BufReader, Read as _};
use std::path::Path;

/// The version of the lines.
pub const LEDGER_VERSION: u32 = 1;

/// What the first line has as `ledger`.
const NAME: &str = "postrider";

/// The longest line. Unit: bytes.
const LINE_BYTES_MAX: u64 = 1 << 20;

/// The first line.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct LedgerHead {
    /// `postrider`.
    pub ledger: String,
    /// [`LEDGER_VERSION`].
    pub version: u32,
}

impl Default for LedgerHead {
    fn default() -> Self {
        Self { ledger: NAME.to_owned(), version: LEDGER_VERSION }
    }
}

/// What became of the transaction of an event.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LedgerOutcome {
    /// The event must be in the topic.
    #[default]
    Committed,
    /// It must not be there.
    RolledBack,
    /// The connection ended during COMMIT: it may be there or not.
    Unknown,
}

/// Any other line: an event.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct LedgerEvent {
    /// The id, as header `id` of its record has it.
    pub id: String,
    /// The topic; without it the topic of the pipeline, if that is the same for all events.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub topic: Option<String>,
    /// The key; without it the key is not compared.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// Type and id of the aggregate; without an id the key, or else the event, is the aggregate.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub aggregate_type: String,
    /// See [`Self::aggregate_type`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub aggregate_id: Option<String>,
    /// What became of it.
    #[serde(default)]
    pub outcome: LedgerOutcome,
    /// Its time. Unit: microseconds since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at_us: Option<i64>,
}

/// Adds the events of a ledger to a comparison. Returns the first and the last time, as far as the lines have one.
///
/// # Errors
/// The file can't be read, a line is not one of a ledger, or there is no memory for its events.
pub(super) fn add_ledger(
    comparison: &mut TopicComparison,
    path: &Path,
    topic: Option<&str>,
    (since, until): (Option<Timestamp>, Option<Timestamp>),
    memory_max: u64,
) -> Result<Option<(Timestamp, Timestamp)>, VerifyError> {
    let unread = |source| VerifyError::LedgerFile { path: path.to_owned(), source };
    let mut lines = BufReader::new(File::open(path).map_err(unread)?);
    let wrong = |line, what: String| VerifyError::LedgerLine { path: path.to_owned(), line, what };
    let (mut text, mut number, mut times) = (String::new(), 0, None);
    loop {
        text.clear();
        let mut line = lines.by_ref().take(LINE_BYTES_MAX + 1);
        if line.read_line(&mut text).map_err(unread)? == 0 {
            break;
        }
        number += 1;
        if text.len() as u64 > LINE_BYTES_MAX {
            return Err(wrong(number, format!("it has more than {LINE_BYTES_MAX} bytes")));
        }
        if number == 1 {
            head(&text).map_err(|what| wrong(number, what))?;
            continue;
        }
        if text.trim().is_empty() {
            continue;
        }
        // serde_json's message names line 1 of the text that it was given.
        let event: LedgerEvent = serde_json::from_str(&text)
            .map_err(|error| wrong(number, format!("not an event: column {}", error.column())))?;
        if let Some(at) = event.at_us {
            let at = Timestamp { unix_micros: at };
            if since.is_some_and(|since| at < since) || until.is_some_and(|until| at >= until) {
                continue;
            }
            let (first, last) = times.unwrap_or((at, at));
            times = Some((first.min(at), last.max(at)));
        } else if since.is_some() || until.is_some() {
            let why = format!("line {number} of the ledger has no at_us");
            return Err(VerifyError::NoTime { what: "the events", why });
        }
        let Some(topic) = event.topic.as_deref().or(topic) else {
            let what =
                "it has no topic, and the topic of the pipeline is not the same for all events";
            return Err(wrong(number, what.to_owned()));
        };
        let added = comparison.add_event(&of_line(&event, topic, number));
        added.map_err(|full| VerifyError::Memory { events: full.events, memory_max })?;
    }
    if number == 0 {
        return Err(wrong(1, "the file is empty".to_owned()));
    }
    Ok(times)
}

fn head(text: &str) -> Result<(), String> {
    let expected = LedgerHead::default();
    let written = || serde_json::to_string(&expected).unwrap_or_default();
    match serde_json::from_str::<LedgerHead>(text) {
        Ok(head) if head == expected => Ok(()),
        Ok(head) if head.ledger == expected.ledger => {
            Err(format!("version {} of the ledger is not known", head.version))
        }
        Ok(_) | Err(_) => Err(format!("expected {}", written())),
    }
}

fn of_line<'a>(event: &'a LedgerEvent, topic: &'a str, number: u64) -> SourceEvent<'a> {
    let key = event.key.as_deref();
    let aggregate_id = event.aggregate_id.as_deref().or(key).unwrap_or(&event.id);
    SourceEvent {
        id: &event.id,
        aggregate: (&event.aggregate_type, aggregate_id),
        topic,
        key: key.map_or(SourceKey::Unknown, |key| SourceKey::Known(Some(key.as_bytes()))),
        origin: None,
        order: Some(number),
        expected: match event.outcome {
            LedgerOutcome::Committed => Expectation::Record,
            LedgerOutcome::RolledBack => Expectation::NoRecord,
            LedgerOutcome::Unknown => Expectation::Nothing(VerifyFinding::OutcomeUnknown),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verify::comparison::ComparisonRules;

    const HEAD: &str = "{\"ledger\": \"postrider\", \"version\": 1}\n";

    fn added(text: &str, topic: Option<&str>) -> Result<(u64, Vec<String>), VerifyError> {
        let dir = tempfile::TempDir::new().unwrap();
        let path = dir.path().join("ledger");
        std::fs::write(&path, text).unwrap();
        let rules = ComparisonRules { memory_max: 1 << 20, ..ComparisonRules::default() };
        let mut comparison = TopicComparison::new(rules);
        add_ledger(&mut comparison, &path, topic, (None, None), 1 << 20)?;
        Ok((comparison.events(), comparison.topics().map(str::to_owned).collect()))
    }

    #[test]
    fn lines_are_read_with_the_topic_of_the_pipeline_where_they_have_none() {
        let text = format!("{HEAD}{{\"id\": \"1\"}}\n\n{{\"id\": \"2\", \"topic\": \"u\"}}");
        assert_eq!(added(&text, Some("t")).unwrap(), (2, vec!["t".to_owned(), "u".to_owned()]));
    }

    #[test]
    fn what_is_no_ledger_is_refused_with_its_line() {
        for (text, line) in [
            (String::new(), 1),
            ("{\"id\": \"1\"}\n".to_owned(), 1),
            ("{\"ledger\": \"postrider\", \"version\": 2}\n".to_owned(), 1),
            (format!("{HEAD}{{\"topic\": \"t\"}}\n"), 2),
            (format!("{HEAD}{{\"id\": \"1\", \"topic\": \"t\"}}\nnot json\n"), 3),
            (format!("{HEAD}{{\"id\": \"1\", \"outcome\": \"lost\"}}\n"), 2),
            (format!("{HEAD}{{\"id\": \"1\"}}\n"), 2),
            (format!("{HEAD}{}\n", "x".repeat(2 << 20)), 2),
        ] {
            let refused = added(&text, None).unwrap_err();
            let VerifyError::LedgerLine { line: at, .. } = &refused else { panic!("{refused}") };
            assert_eq!(*at, line, "{refused}");
            assert!(refused.is_usage());
        }
    }
}
