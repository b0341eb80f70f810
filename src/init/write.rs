//! The text of the file of a draft, with comments.

use super::draft::Draft;
use crate::config::key_as_toml;
use crate::sink::FirstFileTable;
use std::fmt::Write as _;
use toml::Value;

/// Width of a comment. Unit: columns.
const WIDTH: usize = 116;

/// One table of the file: its comment, and its keys in order. Each key has a comment, and an example that is written as
/// a comment if the draft has no value.
struct FileTable {
    table: &'static str,
    comment: &'static str,
    keys: &'static [(&'static str, &'static str, Option<&'static str>)],
    /// Whether the table is written even without a key.
    always: bool,
}

const TABLES: &[FileTable] = &[
    FileTable {
        table: "source",
        comment: "",
        keys: &[
            (
                "url",
                "The database: a URI or key=value pairs as in libpq; PG* variables supply what is left out.",
                None,
            ),
            (
                "password_file",
                "A file with the password; without it the password comes from PGPASSWORD, .pgpass or the URL.",
                Some("\"pg-password\""),
            ),
            ("slot", "", None),
            ("publication", "", None),
            ("failover", "", None),
        ],
        always: true,
    },
    FileTable {
        table: "outbox",
        comment: "",
        keys: &[
            ("table", "", None),
            (
                "layout",
                "The columns of the table: postrider, debezium, commerce, gcx, sqlgarden, adr30 or pgtrickle.",
                None,
            ),
        ],
        always: true,
    },
    FileTable {
        table: "outbox.columns",
        comment: "Columns that have another name than in the layout; \"\" if the table has no such column.",
        keys: &[],
        always: false,
    },
    FileTable {
        table: "outbox.extra",
        comment: "Additional columns, and where each is placed: header, envelope, partition, or ignore.",
        keys: &[],
        always: false,
    },
    FileTable {
        table: "route",
        comment: "",
        keys: &[
            (
                "topic",
                "A template over the event's fields. Create the topics first, or see sink.create_topics.",
                None,
            ),
            ("key", "", None),
            ("partition", "", None),
            ("timestamp", "", None),
            ("standard_headers", "", None),
        ],
        always: false,
    },
    FileTable {
        table: "route.replace",
        comment: "Rewrites the topic; the pattern must match the whole topic.",
        keys: &[("pattern", "", None), ("with", "", None)],
        always: false,
    },
    FileTable { table: "route.headers", comment: "Additional headers.", keys: &[], always: false },
    FileTable {
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
    FileTable { table: "parking", comment: "", keys: &[("dead_topic", "", None)], always: false },
];

/// The text of the file.
pub fn text(draft: &Draft) -> String {
    let mut text = String::new();
    comment(&mut text, "The configuration of Postrider. All keys: docs/configuration.md;");
    comment(&mut text, "the values in effect: postrider config show.");
    if !draft.head.is_empty() {
        text.push_str("#\n");
    }
    draft.head.iter().for_each(|line| comment(&mut text, line));
    for part in TABLES {
        table(&mut text, draft, part);
    }
    sink(&mut text, draft);
    if !draft.tail.is_empty() {
        text.push('\n');
    }
    draft.tail.iter().for_each(|line| comment(&mut text, line));
    text
}

/// The sink's tables, as its kind orders them.
fn sink(text: &mut String, draft: &Draft) {
    let first = super::first_file(draft.sink_kind());
    heading(text, draft, "sink", "");
    rest(text, draft, "sink", &["kind"], first.keys.iter().map(|(key, _)| *key));
    for FirstFileTable { path, comment, keys } in first.tables {
        let table = format!("sink.{path}");
        if has_content(draft, &table) {
            heading(text, draft, &table, comment);
            rest(text, draft, &table, keys, []);
        }
    }
}

/// Whether a table has a key or a comment.
fn has_content(draft: &Draft, table: &str) -> bool {
    draft.keys_of(table).next().is_some() || draft.notes_of(table).next().is_some()
}

fn heading(text: &mut String, draft: &Draft, table: &str, words: &str) {
    text.push('\n');
    if !words.is_empty() {
        comment(text, words);
    }
    // Writing to a String does not fail.
    writeln!(text, "[pipelines.{}.{table}]", key_as_toml(&draft.name)).unwrap_or_default();
}

/// The keys `first` and `second` in this order, then the table's other keys, then its comments.
fn rest<'k>(
    text: &mut String,
    draft: &Draft,
    table: &str,
    first: &[&'k str],
    second: impl IntoIterator<Item = &'k str>,
) {
    let known: Vec<&str> = first.iter().copied().chain(second).collect();
    for key in &known {
        if let Some(value) = draft.get(table, key) {
            line(text, key, value);
        }
    }
    let others = draft.keys_of(table).filter(|(key, _)| !known.contains(key));
    others.for_each(|(key, value)| line(text, key, value));
    draft.notes_of(table).for_each(|note| comment(text, note));
}

fn table(text: &mut String, draft: &Draft, part: &FileTable) {
    if !part.always && !has_content(draft, part.table) {
        return;
    }
    heading(text, draft, part.table, part.comment);
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

/// Writes a comment, folded between words, with all lines indented as the first one.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::outbox::Layout;

    #[test]
    fn comment_of_the_layout_names_every_layout() {
        let outbox = TABLES.iter().find(|part| part.table == "outbox").unwrap();
        let (_, words, _) = outbox.keys.iter().find(|(key, ..)| *key == "layout").unwrap();
        for layout in Layout::ALL {
            assert!(words.contains(layout.name()), "{layout:?}");
        }
    }
}
