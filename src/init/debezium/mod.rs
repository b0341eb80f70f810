//! Translates a Debezium connector's configuration, so that table, topics, records and consumers stay the same.
//!
//! [`options`] is the table of every option; `router`, `connector` and `producer` translate; [`translator`] collects
//! the result for each option. A secret is never copied: it is replaced by a variable, or by a line of what is left to
//! do.

mod connector;
mod java_regex;
pub mod options;
mod producer;
mod read;
mod router;
pub mod translator;

pub use read::FILE_BYTES_MAX;
pub use translator::{Answer, Verdict};

use super::{Draft, InitError};
use translator::Translator;

/// Arguments that take precedence over the file.
#[derive(Clone, Default, Debug)]
pub struct Overrides {
    /// The outbox table.
    pub table: Option<String>,
    /// The brokers.
    pub brokers: Option<String>,
}

/// The translation of a connector's configuration.
#[derive(Debug)]
pub struct Translation {
    /// The configuration, with every answer at its end.
    pub draft: Draft,
    /// The result for each option, in the order of the file.
    pub answers: Vec<Answer>,
    /// What must be done before the file is used.
    pub hints: Vec<String>,
}

/// The class of the transform; the one for MongoDB is different.
const ROUTER_CLASS: &str = "io.debezium.transforms.outbox.EventRouter";

/// Translates the text of a connector's configuration.
///
/// # Errors
/// The text cannot be read, or Postrider cannot replace the connector.
pub fn translate(text: &str, overrides: &Overrides) -> Result<Translation, InitError> {
    let (flavour, given) = read::read(text)?;
    let find = |option: &str| {
        given.iter().find(|given| given.option == option).map(|given| given.value.trim())
    };
    let aliases: Vec<&str> =
        find("transforms").unwrap_or_default().split(',').map(str::trim).collect();
    let is_router = |alias: &&&str| find(&format!("transforms.{alias}.type")) == Some(ROUTER_CLASS);
    let alias = aliases.iter().find(is_router).ok_or_else(no_router)?;
    let mut t = Translator::new(flavour, &given, alias);
    connector::translate(&mut t, overrides)?;
    router::translate(&mut t)?;
    producer::translate(&mut t);
    let has_brokers = given.iter().any(|given| given.option.ends_with("bootstrap.servers"));
    match &overrides.brokers {
        Some(brokers) => t.draft.set("sink", "brokers", brokers.clone()),
        None if !has_brokers => t.hint(
            "the brokers are the worker's bootstrap.servers, which is not in this file: set sink.brokers, or use \
             --brokers",
        ),
        None => {}
    }
    transforms(&mut t, &aliases, alias);
    producer::answer_refused(&mut t);
    let (mut draft, answers, hints) = t.finish();
    let head = "Translated from the configuration of a Debezium connector. At the end of the file: what to do before \
                it is used, and the result for each option.";
    draft.head = vec![head.to_owned()];
    if !hints.is_empty() {
        draft.tail.push("to do:".to_owned());
        draft.tail.extend(hints.iter().map(|hint| format!("  {hint}")));
    }
    draft.tail.extend(translator::lines(&answers, &Verdict::ALL));
    Ok(Translation { draft, answers, hints })
}

/// Suffixes of the classes of transforms that change the topic of a record.
const RENAMING: [&str; 3] = ["Router", "ExtractTopic$Key", "ExtractTopic$Value"];

/// Reports transforms that rename the topics of the event router: Postrider publishes to the original names.
fn transforms(t: &mut Translator<'_>, aliases: &[&str], router: &str) {
    for alias in aliases.iter().skip_while(|alias| **alias != router).skip(1) {
        let option = format!("transforms.{alias}.type");
        let Some(class) = t.get(&option) else { continue };
        if !RENAMING.iter().any(|end| class.ends_with(end)) {
            continue;
        }
        let topics = match t.draft.get("route", "topic") {
            Some(topic) => format!(" ({topic})"),
            None => String::new(),
        };
        let text = format!(
            "renamed the topics and is not applied: set route.topic or route.replace to the new names before the first \
             run; otherwise records go to the topics of the event router{topics}"
        );
        t.hint(format!("transform {alias} {text}"));
        t.answer(&option, Verdict::NoCounterpart, text);
    }
}

fn no_router() -> InitError {
    InitError::NotOurs {
        what: format!("none of the connector's transforms is {ROUTER_CLASS}"),
        hint: "Postrider publishes the events of an outbox table, not the changes of tables; if the engine calls the \
               router in code, add transforms=outbox and transforms.outbox.type"
            .to_owned(),
    }
}

#[cfg(test)]
mod tests;
