//! The line of the file under a finding, with a mark where it is, and no secret in it.
//!
//! A value is shown only below a key that can hold no secret, by a list of those keys. Whatever is not on it, is
//! misspelt or goes over several lines is shown up to its `=`, or not at all.

use super::place::Place;
use std::fmt;

/// Keys whose values are no secrets.
const OPEN: &[&str] = &[
    "shutdown_grace",
    "listen",
    "ready_lag_max",
    "mode",
    "slot",
    "publication",
    "failover",
    "wal_retain_max",
    "on_slot_lost",
    "table",
    "layout",
    "message_prefix",
    "on_update",
    "id",
    "aggregate_type",
    "aggregate_id",
    "event_type",
    "payload",
    "topic",
    "partition_key",
    "time",
    "trace",
    "key",
    "partition",
    "timestamp",
    "standard_headers",
    "pattern",
    "with",
    "null",
    "empty",
    "expand_json",
    "size_max",
    "envelope",
    "kind",
    "brokers",
    "delivery",
    "shards",
    "create_topics",
    "partitions",
    "replication_factor",
    "allow",
    "in_flight_bytes",
    "in_flight_events",
    "confirm_interval",
    "cursor_interval",
    "ordering",
    "on_poison",
    "attempts_max",
    "rows_max",
    "dead_topic",
    "park_after",
    "mark_streamed",
    "step",
    "steps_max",
    "interval",
    "batch",
    "mark",
];

/// Characters of a line that are shown.
const CHARS_MAX: usize = 100;

/// A line of the file, as far as it may be shown.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Excerpt {
    place: Place,
    text: String,
}

impl Excerpt {
    pub(super) fn of(line: &str, place: Place) -> Option<Self> {
        let line = line.trim_end();
        let key = line.trim_start();
        let text = if key.is_empty() || key.starts_with('#') {
            return None;
        } else if key.starts_with('[') {
            line.split_once(['=', '#']).map_or(line, |(table, _)| table.trim_end()).to_owned()
        } else {
            let (before, after) = line.split_once('=')?;
            if is_open(before) && !holds_table(line) {
                line.to_owned()
            } else if after.is_empty() || after.starts_with('=') {
                // The end of something in base64, not a key.
                return None;
            } else {
                format!("{before}= …")
            }
        };
        let shown: String = text.chars().take(CHARS_MAX).collect();
        Some(Self { place, text: shown })
    }
}

/// Whether the last part of the key says that its value is no secret.
fn is_open(key: &str) -> bool {
    let last = key.rsplit('.').next().unwrap_or(key);
    OPEN.contains(&last.trim().trim_matches(['"', '\'']))
}

/// An inline table may hold keys of its own, and a value over several lines may be anything.
fn holds_table(line: &str) -> bool {
    let value = line.split_once('=').map_or("", |(_, value)| value);
    value.trim_start().starts_with('{') || value.contains("\"\"\"") || value.contains("'''")
}

impl fmt::Display for Excerpt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Place { line, column } = self.place;
        let width = line.to_string().len();
        write!(f, "  {line} | {}", self.text)?;
        if column <= self.text.chars().count() {
            // Tabs stay, so that the mark stands below its place.
            let before = self.text.chars().take(column - 1);
            let indent: String = before.map(|c| if c == '\t' { c } else { ' ' }).collect();
            write!(f, "\n  {:width$} | {indent}^", "")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(line: &str, column: usize) -> Option<String> {
        Excerpt::of(line, Place { line: 7, column }).map(|excerpt| excerpt.to_string())
    }

    #[test]
    fn the_mark_stands_below_its_place() {
        assert_eq!(shown("  layout = \"x\"", 3).unwrap(), "  7 |   layout = \"x\"\n    |   ^");
        assert_eq!(shown("\tlayout = \"x\"", 2).unwrap(), "  7 | \tlayout = \"x\"\n    | \t^");
        assert_eq!(shown("[pipelines.a] # note", 2).unwrap(), "  7 | [pipelines.a]\n    |  ^");
    }

    #[test]
    fn what_may_be_a_secret_is_not_shown() {
        for line in [
            "url = \"postgresql://u:hush@h/d\"",
            "pasword = \"hush\"",
            "\"sasl.password\" = hush",
            "source = { slot = \"a\", url = \"host=h password=hush\" }",
            "outbox = { table = \"hush\" }",
            "a.headers.token = 'hush'",
            "hush\"\"\"",
            "  -----hush-----",
            "[pipelines.a] url = \"hush\"",
            "topic = \"\"\"hush",
            "# hush",
            "hush==",
        ] {
            let shown = shown(line, 1).unwrap_or_default();
            assert!(!shown.contains("hush"), "{shown}");
        }
        assert_eq!(shown("pasword = \"hush\"", 1).unwrap(), "  7 | pasword = …\n    | ^");
    }
}
