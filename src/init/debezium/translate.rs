//! What the parts of a translation share: the options given, the draft, and what was answered.

use super::answer::{Answer, Verdict};
use super::options::{CONNECTOR, Known, ROUTER, find};
use super::producer;
use super::read::{Flavour, Given};
use crate::init::draft::PROPERTIES;
use crate::init::{Draft, Value};
use std::collections::BTreeMap;

/// One translation under way.
pub(super) struct Translator<'g> {
    pub(super) flavour: Flavour,
    pub(super) draft: Draft,
    given: &'g [Given],
    /// `transforms.<alias>.` of the router.
    router: String,
    /// Answers that are not the table's, by option.
    answers: BTreeMap<String, (Verdict, String)>,
    hints: Vec<String>,
    /// Properties of the sink, each with the producer's option that it was made from.
    properties: Vec<(String, String)>,
}

/// What may stand in a comment and on a terminal: a connector's file is not ours.
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

    /// The value of an option; an empty one is none.
    pub(super) fn get(&self, option: &str) -> Option<&'g str> {
        let given = self.given.iter().find(|given| given.option == option);
        given.map(|given| given.value.trim()).filter(|value| !value.is_empty())
    }

    /// The value of an option of the router.
    pub(super) fn router(&self, name: &str) -> Option<&'g str> {
        self.get(&format!("{}{name}", self.router))
    }

    /// The same, an empty one too.
    pub(super) fn router_as_given(&self, name: &str) -> Option<&'g str> {
        let option = format!("{}{name}", self.router);
        self.given.iter().find(|given| given.option == option).map(|given| given.value.trim())
    }

    /// Whether an option, of the router or not, is `true`.
    pub(super) fn is_true(value: Option<&str>) -> bool {
        value.is_some_and(|value| value.eq_ignore_ascii_case("true"))
    }

    /// The options for which `name` has a name, with their values.
    pub(super) fn given_with(
        &self,
        name: impl Fn(&str) -> Option<String>,
    ) -> Vec<(String, String)> {
        let pairs =
            self.given.iter().filter_map(|given| Some((name(&given.option)?, given.value.clone())));
        pairs.collect()
    }

    /// Answers an option otherwise than the table does.
    pub(super) fn answer(&mut self, option: &str, verdict: Verdict, text: impl Into<String>) {
        self.answers.insert(option.to_owned(), (verdict, text.into()));
    }

    /// The same for an option of the router.
    pub(super) fn answer_router(&mut self, name: &str, verdict: Verdict, text: impl Into<String>) {
        let option = format!("{}{name}", self.router);
        self.answer(&option, verdict, text);
    }

    /// The same for every option of which `is` says so.
    pub(super) fn answer_where(&mut self, is: impl Fn(&str) -> bool, verdict: Verdict, text: &str) {
        let options: Vec<_> = self.given.iter().filter(|given| is(&given.option)).collect();
        for given in options {
            self.answer(&given.option, verdict, text);
        }
    }

    /// Sets a property of the sink, made from an option of the producer.
    pub(super) fn property(&mut self, option: &str, property: &str, value: impl Into<Value>) {
        self.draft.set(PROPERTIES, property, value);
        self.properties.push((property.to_owned(), option.to_owned()));
    }

    /// The producer's options that a property was made from.
    pub(super) fn options_of(&self, property: &str) -> Vec<String> {
        let made = self.properties.iter().filter(|(known, _)| known == property);
        made.map(|(_, option)| option.clone()).collect()
    }

    /// Something to do before the file runs, once.
    pub(super) fn hint(&mut self, hint: impl Into<String>) {
        let hint = printable(&hint.into());
        if !self.hints.contains(&hint) {
            self.hints.push(hint);
        }
    }

    /// The draft, an answer to every option in the order of the file, and what is to do.
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
                (Verdict::NotNeeded, "with this value it makes no difference".to_owned())
            }
            Some(known) => (known.verdict, known.text.to_owned()),
            None if converter => (Verdict::NoCounterpart, "columns have no converters".to_owned()),
            None => (Verdict::NoCounterpart, "not known here: look up what it does".to_owned()),
        }
    }
}
