//! The state of a translation: the options, the draft, the answers and the hints.

use super::options::{CONNECTOR, Known, ROUTER, find};
use super::producer;
use super::read::{Flavour, Given};
use crate::init::draft::PROPERTIES;
use crate::init::{Draft, Value};
use std::collections::BTreeMap;
use std::fmt::Write as _;

/// A translation in progress.
pub(super) struct Translator<'g> {
    pub(super) flavour: Flavour,
    pub(super) draft: Draft,
    given: &'g [Given],
    /// `transforms.<alias>.` of the router.
    router: String,
    /// Answers that differ from the table, by option.
    answers: BTreeMap<String, (Verdict, String)>,
    hints: Vec<String>,
    /// Properties of the sink, each with the producer's option that it was translated from.
    properties: Vec<(String, String)>,
}

/// Replaces control characters, which the connector's file may contain, for comments and terminals.
fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}

impl<'g> Translator<'g> {
    pub(super) fn new(flavour: Flavour, given: &'g [Given], alias: &str) -> Self {
        Self {
            flavour,
            draft: Draft::new("outbox"),
            given,
            router: format!("transforms.{alias}."),
            answers: BTreeMap::new(),
            hints: Vec::new(),
            properties: Vec::new(),
        }
    }

    /// The value of an option; `None` if it is empty.
    pub(super) fn get(&self, option: &str) -> Option<&'g str> {
        let given = self.given.iter().find(|given| given.option == option);
        given.map(|given| given.value.trim()).filter(|value| !value.is_empty())
    }

    /// The value of an option of the router.
    pub(super) fn router(&self, name: &str) -> Option<&'g str> {
        self.get(&format!("{}{name}", self.router))
    }

    /// As [`Translator::router`], including an empty value.
    pub(super) fn router_as_given(&self, name: &str) -> Option<&'g str> {
        let option = format!("{}{name}", self.router);
        self.given.iter().find(|given| given.option == option).map(|given| given.value.trim())
    }

    /// Whether the value of an option is `true`.
    pub(super) fn is_true(value: Option<&str>) -> bool {
        value.is_some_and(|value| value.eq_ignore_ascii_case("true"))
    }

    /// The options for which `name` returns a name, as this name with the value.
    pub(super) fn given_with(
        &self,
        name: impl Fn(&str) -> Option<String>,
    ) -> Vec<(String, String)> {
        let pairs =
            self.given.iter().filter_map(|given| Some((name(&given.option)?, given.value.clone())));
        pairs.collect()
    }

    /// Sets an answer that differs from the table.
    pub(super) fn answer(&mut self, option: &str, verdict: Verdict, text: impl Into<String>) {
        self.answers.insert(option.to_owned(), (verdict, text.into()));
    }

    /// As [`Translator::answer`], for an option of the router.
    pub(super) fn answer_router(&mut self, name: &str, verdict: Verdict, text: impl Into<String>) {
        let option = format!("{}{name}", self.router);
        self.answer(&option, verdict, text);
    }

    /// As [`Translator::answer`], for every option for which `is` returns true.
    pub(super) fn answer_where(&mut self, is: impl Fn(&str) -> bool, verdict: Verdict, text: &str) {
        let options: Vec<_> = self.given.iter().filter(|given| is(&given.option)).collect();
        for given in options {
            self.answer(&given.option, verdict, text);
        }
    }

    /// Sets a property of the sink that was translated from an option of the producer.
    pub(super) fn property(&mut self, option: &str, property: &str, value: impl Into<Value>) {
        self.draft.set(PROPERTIES, property, value);
        self.properties.push((property.to_owned(), option.to_owned()));
    }

    /// The producer's options that a property was translated from.
    pub(super) fn options_of(&self, property: &str) -> Vec<String> {
        let made = self.properties.iter().filter(|(known, _)| known == property);
        made.map(|(_, option)| option.clone()).collect()
    }

    /// Adds something that must be done before the file is used, unless it was added before.
    pub(super) fn hint(&mut self, hint: impl Into<String>) {
        let hint = printable(&hint.into());
        if !self.hints.contains(&hint) {
            self.hints.push(hint);
        }
    }

    /// The draft, the answers in the order of the file, and what must be done.
    pub(super) fn finish(self) -> (Draft, Vec<Answer>, Vec<String>) {
        let answer = |given: &Given| {
            let (verdict, text) = match self.answers.get(&given.option) {
                Some((verdict, text)) => (*verdict, text.clone()),
                None => self.of_table(given),
            };
            Answer { option: printable(&given.name), verdict, text }
        };
        let answers = self.given.iter().map(answer).collect();
        (self.draft, answers, self.hints)
    }

    fn of_table(&self, given: &Given) -> (Verdict, String) {
        let of_router = given.option.strip_prefix(&self.router).map(|name| find(ROUTER, name));
        let of_producer = producer::name_of(&given.option).map(|name| find(producer::TABLE, name));
        let converter = self.get("converters").is_some_and(|names| {
            names.split(',').any(|name| given.option.starts_with(&format!("{}.", name.trim())))
        });
        let known = of_router.or(of_producer).unwrap_or_else(|| find(CONNECTOR, &given.option));
        match known {
            Some(Known { same, .. }) if same.contains(&given.value.trim()) => {
                (Verdict::NotNeeded, "this value makes no difference".to_owned())
            }
            Some(known) => (known.verdict, known.text.to_owned()),
            None if converter => {
                (Verdict::NoCounterpart, "there are no converters of columns".to_owned())
            }
            None => (Verdict::NoCounterpart, "unknown option: check what it does".to_owned()),
        }
    }
}

/// The result of the translation of an option.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Verdict {
    /// The option has no counterpart; the user must check whether it matters.
    NoCounterpart,
    /// The option is in the written file.
    Translated,
    /// The option is not needed.
    NotNeeded,
}

impl Verdict {
    /// The heading in the summary.
    pub const fn heading(self) -> &'static str {
        match self {
            Self::NoCounterpart => "without a counterpart, check these",
            Self::Translated => "translated",
            Self::NotNeeded => "not needed",
        }
    }

    /// The text in the table of docs/debezium.md.
    const fn word(self) -> &'static str {
        match self {
            Self::NoCounterpart => "**no counterpart**",
            Self::Translated => "translated",
            Self::NotNeeded => "not needed",
        }
    }

    /// All values, in the order of the summary.
    pub const ALL: [Self; 3] = [Self::NoCounterpart, Self::Translated, Self::NotNeeded];
}

/// The result for one option of a file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Answer {
    /// The name of the option in the file.
    pub option: String,
    /// The result.
    pub verdict: Verdict,
    /// The key that replaces the option, why it is not needed, or what to do. Never contains its value.
    pub text: String,
}

/// The answers as lines, grouped by verdict, each group with a heading.
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

/// The tables of every option in Markdown, for docs/debezium.md.
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

/// A value of a connector in the syntax of Postrider: placeholders for environment variables are translated, and every
/// other `${` is escaped.
pub(super) fn plain(text: &str) -> String {
    named(text, "")
}

/// As [`plain`]; a placeholder for something else, such as a file or a vault, becomes the variable `otherwise`.
pub(super) fn named(text: &str, otherwise: &str) -> String {
    let mut ours = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("${") {
        ours.push_str(before);
        let Some((inner, after)) = after.split_once('}') else {
            ours.push_str("$${");
            rest = after;
            continue;
        };
        match placeholder(inner) {
            Some(variable) => ours.push_str(&format_variable(&variable)),
            None if !otherwise.is_empty() && inner.contains(':') => {
                ours.push_str(&format_variable(otherwise));
            }
            None => {
                ours.push_str("$${");
                ours.push_str(inner);
                ours.push('}');
            }
        }
        rest = after;
    }
    ours.push_str(rest);
    ours
}

/// Whether a value has a placeholder that is not for an environment variable.
pub(super) fn is_foreign(text: &str) -> bool {
    let mut parts = text.split("${").skip(1).filter_map(|part| part.split_once('}'));
    parts.any(|(inner, _)| inner.contains(':') && placeholder(inner).is_none())
}

/// The variable of a value that consists of one placeholder for an environment variable.
pub(super) fn variable(text: &str) -> Option<String> {
    let inner = text.trim().strip_prefix("${")?.strip_suffix('}')?;
    let variable = placeholder(inner)?;
    variable.split(":-").next().map(str::to_owned)
}

fn format_variable(variable: &str) -> String {
    format!("${{{variable}}}")
}

/// `env:NAME` of Kafka's `EnvVarConfigProvider`, `NAME` and `NAME:default` of Debezium Server.
fn placeholder(inner: &str) -> Option<String> {
    let inner = inner.strip_prefix("env:").map_or(inner, |name| name.trim_start_matches(':'));
    let (name, default) =
        inner.split_once(':').map_or((inner, None), |(name, default)| (name, Some(default)));
    let is_name = name.bytes().all(|b| b.is_ascii_uppercase() || b.is_ascii_digit() || b == b'_');
    let begins = name.bytes().next().is_some_and(|b| b.is_ascii_uppercase() || b == b'_');
    (is_name && begins).then(|| match default {
        Some(default) => format!("{name}:-{default}"),
        None => name.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn placeholders_of_the_environment_are_translated() {
        for (given, ours) in [
            ("db", "db"),
            ("${env:DB_HOST}", "${DB_HOST}"),
            ("${DB_HOST}:${PORT:5432}", "${DB_HOST}:${PORT:-5432}"),
            ("${routedByValue}", "$${routedByValue}"),
            ("${file:/etc/x.properties:host}", "$${file:/etc/x.properties:host}"),
            ("a${", "a$${"),
        ] {
            assert_eq!(plain(given), ours);
        }
        assert_eq!(named("${file:/etc/x.properties:host}", "HOST"), "${HOST}");
        assert_eq!(variable("${env:PG_PASSWORD}").as_deref(), Some("PG_PASSWORD"));
        assert_eq!(variable("hush"), None);
        assert!(
            is_foreign("${file:/x:y}")
                && !is_foreign("${env:A}")
                && !is_foreign("${routedByValue}")
        );
    }
}
