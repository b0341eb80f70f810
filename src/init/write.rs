//! A draft as the text of a file, with comments for whoever reads it next.

use super::draft::Draft;
use crate::config::key_as_toml;
use std::fmt::Write as _;
use toml::Value;

/// Columns of a comment.
const WIDTH: usize = 116;

/// One table of the file: its comment, and its keys in order, each with a comment and, unless it is always written,
/// what stands in a comment where the draft has no value.
struct Part {
    table: &'static str,
    comment: &'static str,
    keys: &'static [(&'static str, &'static str, Option<&'static str>)],
    /// Written even when it has no key.
    always: bool,
}

const PARTS: &[Part] = &[
    Part {
        table: "source",
        comment: "",
        keys: &[
            (
                "url",
                "The database: URI or key=value, as libpq takes it, with PG* variables for what it does not say.",
                None,
            ),
            (
                "password_file",
                "A file with the password; without it PGPASSWORD, .pgpass or the URL has it.",
                Some("\"pg-password\""),
            ),
            ("slot", "", None),
            ("publication", "", None),
            ("failover", "", None),
        ],
        always: true,
    },
    Part {
        table: "outbox",
        comment: "",
        keys: &[
            ("table", "", None),
            (
                "layout",
                "What its columns are: postrider, debezium, commerce, gcx, sqlgarden or adr30.",
                None,
            ),
        ],
        always: true,
    },
    Part {
        table: "outbox.columns",
        comment: "Columns that are called otherwise than in the layout; \"\" where the table has none.",
        keys: &[],
        always: false,
    },
    Part {
        table: "outbox.extra",
        comment: "Further columns, and where each goes: header, envelope, partition, or ignore.",
        keys: &[],
        always: false,
    },
    Part {
        table: "route",
        comment: "",
        keys: &[
            (
                "topic",
                "A template over the event's fields. Make the topics first, or see sink.create_topics.",
                None,
            ),
            ("key", "", None),
            ("partition", "", None),
            ("timestamp", "", None),
            ("standard_headers", "", None),
        ],
        always: false,
    },
    Part {
        table: "route.replace",
        comment: "Rewrites the topic; the pattern has to match the whole of it.",
        keys: &[("pattern", "", None), ("with", "", None)],
        always: false,
    },
    Part { table: "route.headers", comment: "Further headers.", keys: &[], always: false },
    Part {
        table: "payload",
        comment: "",
        keys: &[
            ("null", "", None),
            ("empty", "", None),
            ("envelope", "", None),
            ("expand_json", "", None),
        ],
        always: false,
    },
    Part { table: "parking", comment: "", keys: &[("dead_topic", "", None)], always: false },
    Part {
        table: "sink",
        comment: "",
        keys: &[("kind", "", None), ("brokers", "", None)],
        always: true,
    },
    Part {
        table: "sink.create_topics",
        comment: "Topics that do not exist are made with these settings; what is not set is the broker's default.",
        keys: &[("partitions", "", None), ("replication_factor", "", None), ("allow", "", None)],
        always: false,
    },
    Part { table: "sink.create_topics.config", comment: "", keys: &[], always: false },
    Part {
        table: "sink.properties",
        comment: "librdkafka's own settings. With _file at the end of its name one takes its value from a file.",
        keys: &[],
        always: false,
    },
];

/// The text of the file.
pub fn text(draft: &Draft) -> String {
    let mut text = String::new();
    comment(
        &mut text,
        "Postrider's configuration. What each key means and what else there is: docs/configuration.md;",
    );
    comment(&mut text, "what is in effect: postrider config show.");
    if !draft.head.is_empty() {
        text.push_str("#\n");
    }
    draft.head.iter().for_each(|line| comment(&mut text, line));
    for part in PARTS {
        table(&mut text, draft, part);
    }
    if !draft.tail.is_empty() {
        text.push('\n');
    }
    draft.tail.iter().for_each(|line| comment(&mut text, line));
    text
}

fn table(text: &mut String, draft: &Draft, part: &Part) {
    let has_more =
        draft.keys_of(part.table).next().is_some() || draft.notes_of(part.table).next().is_some();
    if !part.always && !has_more {
        return;
    }
    text.push('\n');
    if !part.comment.is_empty() {
        comment(text, part.comment);
    }
    // Writing to a String does not fail.
    writeln!(text, "[pipelines.{}.{}]", key_as_toml(&draft.name), part.table).unwrap_or_default();
    for (key, words, example) in part.keys {
        match (draft.get(part.table, key), example) {
            (Some(value), _) => {
                if !words.is_empty() {
                    comment(text, words);
                }
                line(text, key, value);
            }
            (None, Some(example)) => {
                comment(text, words);
                comment(text, &format!("{key} = {example}"));
            }
            (None, None) => {}
        }
    }
    let known = |key: &str| part.keys.iter().any(|(known, ..)| *known == key);
    draft
        .keys_of(part.table)
        .filter(|(key, _)| !known(key))
        .for_each(|(key, value)| line(text, key, value));
    draft.notes_of(part.table).for_each(|note| comment(text, note));
}

fn line(text: &mut String, key: &str, value: &Value) {
    writeln!(text, "{} = {value}", key_as_toml(key)).unwrap_or_default();
}

/// A comment, folded between words; what is folded is indented as its first line is.
fn comment(text: &mut String, words: &str) {
    let indent = words.len() - words.trim_start().len();
    let mut line = String::new();
    for word in words.trim_start().split(' ') {
        if !line.is_empty() && line.chars().count() + word.chars().count() + indent + 3 > WIDTH {
            writeln!(text, "# {:indent$}{line}", "").unwrap_or_default();
            line.clear();
        }
        if !line.is_empty() {
            line.push(' ');
        }
        line.push_str(word);
    }
    let folded = format!("# {:indent$}{line}", "");
    text.push_str(folded.trim_end());
    text.push('\n');
}
