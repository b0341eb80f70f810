//! A Debezium connector's configuration as ours: the same table, topics, records and consumers.
//!
//! [`options`] is the table of every option; `router`, `connector` and `producer` translate; [`answer`] says what
//! became of each. A secret of the connector's file is never copied: it becomes a variable, or something to do.

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

/// What was typed beside the file, and wins.
#[derive(Clone, Default, Debug)]
pub struct Overrides {
    /// The outbox table.
    pub table: Option<String>,
    /// The brokers.
    pub brokers: Option<String>,
}

/// What came of a connector's configuration.
#[derive(Debug)]
pub struct Translation {
    /// The configuration, with every answer at its end.
    pub draft: Draft,
    /// What became of each option, in the order of the file.
    pub answers: Vec<Answer>,
    /// What is to do before the file runs.
    pub hints: Vec<String>,
}

/// The class of the transform; a MongoDB's has another.
const ROUTER_CLASS: &str = "io.debezium.transforms.outbox.EventRouter";

/// Translates the text of a connector's configuration.
///
/// # Errors
/// It can't be read, or is nothing that Postrider can stand in for.
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
    let said = given.iter().any(|given| given.option.ends_with("bootstrap.servers"));
    match &overrides.brokers {
        Some(brokers) => t.draft.set("sink", "brokers", brokers.clone()),
        None if !said => t.hint(
            "the brokers are the worker's bootstrap.servers, which this file does not have: write sink.brokers, \
             or give --brokers",
        ),
        None => {}
    }
    transforms(&mut t, &aliases, alias);
    producer::answer_refused(&mut t);
    let (mut draft, answers, hints) = t.finish();
    let head = "Translated from the configuration of a Debezium connector. At the end of the file: what to do before \
                it runs, and what became of each option.";
    draft.head = vec![head.to_owned()];
    if !hints.is_empty() {
        draft.tail.push("to do:".to_owned());
        draft.tail.extend(hints.iter().map(|hint| format!("  {hint}")));
    }
    draft.tail.extend(translator::lines(&answers, &Verdict::ALL));
    Ok(Translation { draft, answers, hints })
}

/// Ends of the classes of transforms that give a record another topic.
const RENAMING: [&str; 3] = ["Router", "ExtractTopic$Key", "ExtractTopic$Value"];

/// Transforms that rename the topics which the event router made: without them records go elsewhere.
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
            "renamed the topics, and is not run: set route.topic or route.replace to the new names before the first \
             run; else records go to the topics that the event router names{topics}"
        );
        t.hint(format!("transform {alias} {text}"));
        t.answer(&option, Verdict::NoCounterpart, text);
    }
}

fn no_router() -> InitError {
    InitError::NotOurs {
        what: format!("none of the connector's transforms is {ROUTER_CLASS}"),
        hint: "Postrider carries the events of an outbox, not the changes of tables; where the engine calls the router \
               in code, add transforms=outbox and transforms.outbox.type"
            .to_owned(),
    }
}

#[cfg(test)]
mod tests;
