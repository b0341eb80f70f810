//! What became of each option of a connector's configuration.

use super::options::{CONNECTOR, Known, ROUTER};
use super::producer;
use std::fmt::Write as _;

/// What became of an option.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Verdict {
    /// It has no counterpart: somebody has to look.
    NoCounterpart,
    /// It stands in the written file.
    Translated,
    /// Nothing is lost without it.
    NotNeeded,
}

impl Verdict {
    /// As a heading of the summary.
    pub const fn heading(self) -> &'static str {
        match self {
            Self::NoCounterpart => "without a counterpart, look at these",
            Self::Translated => "translated",
            Self::NotNeeded => "not needed",
        }
    }

    /// In the table of the page.
    const fn word(self) -> &'static str {
        match self {
            Self::NoCounterpart => "**no counterpart**",
            Self::Translated => "translated",
            Self::NotNeeded => "not needed",
        }
    }

    /// In the order of the summary.
    pub const ALL: [Self; 3] = [Self::NoCounterpart, Self::Translated, Self::NotNeeded];
}

/// What became of one option of a file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Answer {
    /// The option, as the file has it.
    pub option: String,
    /// What became of it.
    pub verdict: Verdict,
    /// Where it went, why it is not needed, or what to do. Never its value.
    pub text: String,
}

/// The answers as lines: by verdict, each with its heading.
pub fn lines(answers: &[Answer], verdicts: &[Verdict]) -> Vec<String> {
    let mut lines = Vec::new();
    for verdict in verdicts {
        let of: Vec<_> = answers.iter().filter(|answer| answer.verdict == *verdict).collect();
        if of.is_empty() {
            continue;
        }
        lines.push(format!("{}:", verdict.heading()));
        lines.extend(of.iter().map(|answer| format!("  {}: {}", answer.option, answer.text)));
    }
    lines
}

/// The tables of every option, in Markdown, as they stand in docs/debezium.md.
pub fn page() -> String {
    let mut page = String::new();
    for (title, table) in [
        ("The router, below `transforms.<alias>.`", ROUTER),
        ("The connector, Kafka Connect, Debezium Server and the embedded engine", CONNECTOR),
        (
            "The producer, below `producer.override.` or `debezium.sink.kafka.producer.`",
            producer::TABLE,
        ),
    ] {
        // Writing to a String does not fail.
        write!(page, "### {title}\n\n| option | | here |\n|---|---|---|\n").unwrap_or_default();
        for known in table {
            writeln!(
                page,
                "| `{}` | {} | {}{} |",
                known.name,
                known.verdict.word(),
                known.text,
                same(known)
            )
            .unwrap_or_default();
        }
        page.push('\n');
    }
    page
}

fn same(known: &Known) -> String {
    if known.same.is_empty() {
        return String::new();
    }
    let last = |value: &str| value.rsplit('.').next().unwrap_or(value).to_owned();
    let values: Vec<_> = known.same.iter().map(|value| format!("`{}`", last(value))).collect();
    format!(" (no difference with {})", values.join(", "))
}
