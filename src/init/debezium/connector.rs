//! The options of the connector: database, slot and table.

use super::Overrides;
use super::translator::Verdict::{NoCounterpart, NotNeeded, Translated};
use super::translator::{self, Translator};
use crate::init::InitError;
use crate::init::draft::pipeline_name;
use std::fmt::Write as _;

const DEFAULT_SLOT: &str = "debezium";
const DEFAULT_PUBLICATION: &str = "dbz_publication";

pub(super) fn translate(t: &mut Translator<'_>, overrides: &Overrides) -> Result<(), InitError> {
    if let Some(class) =
        t.get("connector.class").filter(|class| !class.to_ascii_lowercase().contains("postgres"))
    {
        return Err(InitError::NotOurs {
            what: format!("the connector is {class}, but Postrider reads only PostgreSQL"),
            hint: "use the configuration of a PostgreSQL connector".to_owned(),
        });
    }
    if let Some(sink) = t.get("debezium.sink.type").filter(|sink| *sink != "kafka") {
        return Err(InitError::NotOurs {
            what: format!("the server publishes to {sink}, but Postrider publishes to Kafka"),
            hint: "to publish to Kafka, write a file without --from-debezium".to_owned(),
        });
    }
    if let Some(name) = t.get("name") {
        t.draft.name = pipeline_name(name);
    }
    let url = url(t);
    t.draft.set("source", "url", url);
    password(t);
    slot(t);
    let table = match &overrides.table {
        Some(table) => table.clone(),
        None => table(t)?,
    };
    t.draft.set("outbox", "table", table);
    brokers(t);
    created_topics(t);
    dead_letters(t);
    Ok(())
}

/// The topic of dead letters.
fn dead_letters(t: &mut Translator<'_>) {
    const OPTION: &str = "errors.deadletterqueue.topic.name";
    let Some(given) = t.get(OPTION) else { return };
    let topic = translator::plain(given);
    if topic.contains("${") || crate::sink::topic::is_topic_name(topic.as_bytes()) {
        t.draft.set("parking", "dead_topic", topic);
    } else {
        t.answer(OPTION, NoCounterpart, "not the name of a topic: set parking.dead_topic");
    }
}

/// The settings with which Kafka Connect creates topics. Only the default group has a counterpart, and Kafka Connect
/// creates no topics unless partitions and replicas are set.
fn created_topics(t: &mut Translator<'_>) {
    const GROUP: &str = "topic.creation.default.";
    let given = t.given_with(|option| option.strip_prefix(GROUP).map(str::to_owned));
    let number = |name: &str| given.iter().find(|(known, _)| known == name).map(|(_, value)| value);
    let (Some(partitions), Some(replicas)) = (number("partitions"), number("replication.factor"))
    else {
        let text = "Kafka Connect creates no topics without partitions and replication.factor";
        t.answer_where(|option| option.starts_with(GROUP), NotNeeded, text);
        return;
    };
    let table = "sink.create_topics";
    // -1 is the broker's default, as is a missing value.
    for (name, value) in [("partitions", partitions), ("replication_factor", replicas)] {
        match value.trim().parse::<i64>() {
            Ok(number) if number > 0 => t.draft.set(table, name, number),
            Ok(_) => {}
            Err(_) => {
                let option =
                    format!("{GROUP}{}", name.replace("replication_factor", "replication.factor"));
                let text = "not a number and not in the file: set it yourself";
                t.answer(&option, NoCounterpart, format!("{table}.{name}: {text}"));
                t.hint(format!("{table}.{name}: the connector's value is {text}"));
            }
        }
    }
    if t.draft.keys_of(table).next().is_none() {
        // Topics are created only if the table exists.
        t.draft.set(table, "allow", "");
    }
    for (name, value) in &given {
        if !["partitions", "replication.factor"].contains(&name.as_str()) {
            t.draft.set("sink.create_topics.config", name, translator::plain(value));
        }
    }
    t.hint("sink.create_topics creates topics, even for a misspelt field of route.topic");
}

fn url(t: &mut Translator<'_>) -> String {
    let mut text = "postgresql://".to_owned();
    let part = |option: &str, variable: &str| {
        t.get(option).map(|given| encoded(&translator::named(given, variable)))
    };
    let host = part("database.hostname", "PGHOST");
    let parameters = [
        ("database.sslmode", "sslmode"),
        ("database.sslrootcert", "sslrootcert"),
        ("database.sslcert", "sslcert"),
        ("database.sslkey", "sslkey"),
    ];
    let is_known = |option: &str| {
        option != "database.sslmode" || !t.get(option).is_some_and(|v| v.contains("${"))
    };
    let parameters =
        parameters.iter().filter(|(option, _)| is_known(option)).filter_map(|(option, name)| {
            let given = encoded(&translator::plain(t.get(option)?));
            Some(format!(
                "{name}={}",
                if *name == "sslmode" { given.to_ascii_lowercase() } else { given }
            ))
        });
    let parameters: Vec<_> = parameters.collect();
    // Writing to a String does not fail.
    if let Some(user) = part("database.user", "PGUSER") {
        write!(text, "{user}@").unwrap_or_default();
    }
    text.push_str(host.as_deref().unwrap_or("localhost"));
    if let Some(port) = part("database.port", "PGPORT") {
        write!(text, ":{port}").unwrap_or_default();
    }
    if let Some(name) = part("database.dbname", "PGDATABASE") {
        write!(text, "/{name}").unwrap_or_default();
    }
    if !parameters.is_empty() {
        write!(text, "?{}", parameters.join("&")).unwrap_or_default();
    }
    if !is_known("database.sslmode") {
        let text = "set by a placeholder and not in the file: add sslmode to source.url";
        t.hint(format!("database.sslmode is {text}"));
        t.answer("database.sslmode", NoCounterpart, text);
    }
    for option in ["database.hostname", "database.user", "database.dbname"] {
        match t.get(option) {
            None => t.hint(format!("{option} is not given: complete source.url")),
            Some(given) if translator::is_foreign(given) => {
                t.hint(format!(
                    "{option} is set by a placeholder: set the variable that source.url uses"
                ));
            }
            Some(_) => {}
        }
    }
    text
}

/// Percent-encodes a part of a URL, except variables and the brackets of IPv6.
fn encoded(text: &str) -> String {
    if text.contains("${") {
        return text.to_owned();
    }
    if text.matches(':').count() > 1 && !text.starts_with('[') {
        return format!("[{text}]");
    }
    let mut encoded = String::new();
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~/[]:,".contains(&byte) {
            encoded.push(char::from(byte));
        } else {
            // Writing to a String does not fail.
            write!(encoded, "%{byte:02X}").unwrap_or_default();
        }
    }
    encoded
}

fn password(t: &mut Translator<'_>) {
    let Some(given) = t.get("database.password") else { return };
    t.draft.note("source", "The connector's password was not copied: see password_file.");
    t.hint(match translator::variable(given) {
        Some(variable) => {
            format!("the password was not copied: start with PGPASSWORD=\"${variable}\", or set password_file")
        }
        None => "the password was not copied: write it to a file and set password_file, or set PGPASSWORD".to_owned(),
    });
}

/// A slot of pgoutput is used further, so that no event is missed while the application keeps writing.
fn slot(t: &mut Translator<'_>) {
    if let Some(failover) = t.get("slot.failover") {
        t.draft.set("source", "failover", failover.eq_ignore_ascii_case("true"));
    }
    if !t.get("plugin.name").is_some_and(|plugin| plugin.starts_with("pgoutput")) {
        let text = "the connector's slot uses decoderbufs, which Postrider cannot read: it needs a slot of its own";
        for option in ["plugin.name", "slot.name", "publication.name"] {
            t.answer(option, NoCounterpart, text);
        }
        t.hint(
            "plugin.name is not pgoutput: postrider setup creates a new slot; to switch over, stop the writers and \
             follow docs/debezium.md",
        );
        return;
    }
    t.answer("plugin.name", Translated, "source.slot: the connector's slot is used further");
    let slot = translator::named(t.get("slot.name").unwrap_or(DEFAULT_SLOT), "SLOT_NAME");
    let publication = translator::named(
        t.get("publication.name").unwrap_or(DEFAULT_PUBLICATION),
        "PUBLICATION_NAME",
    );
    t.draft.set("source", "slot", slot);
    t.draft.set("source", "publication", publication);
    t.draft.note(
        "source",
        "Slot and publication of the connector: stop the connector before postrider run.",
    );
}

/// The outbox table: from the list, else from the transform's predicate, else the default.
fn table(t: &mut Translator<'_>) -> Result<String, InitError> {
    let list = t.get("table.include.list").or_else(|| t.get("table.whitelist")).unwrap_or_default();
    let listed: Vec<&str> =
        list.split(',').map(str::trim).filter(|entry| !entry.is_empty()).collect();
    let predicate =
        t.router("predicate").and_then(|name| t.get(&format!("predicates.{name}.pattern")));
    // `<prefix>.<schema>.<table>`
    let predicate = predicate.and_then(parts).filter(|parts| parts.len() > 1);
    let by_predicate =
        predicate.map(|parts| sql_name(parts.get(parts.len() - 2..).unwrap_or(&parts)));
    let like_outbox = |entry: &&&str| entry.to_ascii_lowercase().contains("outbox");
    let chosen = match listed.as_slice() {
        [] => None,
        [one] => Some(*one),
        _ => match listed.iter().filter(like_outbox).collect::<Vec<_>>().as_slice() {
            [one] => Some(**one),
            _ => None,
        },
    };
    if listed.len() > 1 {
        t.hint(
            "the connector reads other tables too, whose changes Postrider does not publish: keep a connector for \
             them",
        );
    }
    if let Some(table) =
        chosen.and_then(parts).filter(|parts| parts.len() <= 2).map(|parts| sql_name(&parts))
    {
        if table.contains('"') {
            t.hint(format!("check the case of the table's name, {table}: Debezium ignores case, Postrider does not"));
        }
        return Ok(table);
    }
    match by_predicate {
        Some(table) => Ok(table),
        None if listed.is_empty() => {
            t.hint("no option names the outbox table: public.outboxevent is used; --table sets another");
            Ok("public.outboxevent".to_owned())
        }
        None => Err(InitError::NotOurs {
            what: "table.include.list has no unique outbox table".to_owned(),
            hint: "name it with --table SCHEMA.NAME".to_owned(),
        }),
    }
}

/// The names in an expression that matches one table; `None` where it may match others.
fn parts(pattern: &str) -> Option<Vec<String>> {
    let pattern = pattern
        .trim_start_matches('^')
        .trim_end_matches('$')
        .replace("\\.", ".")
        .replace("[.]", ".");
    let fits = |c: char| c.is_alphanumeric() || c == '_' || c == '-' || c == ' ';
    let parts: Vec<String> = pattern.split('.').map(str::to_owned).collect();
    parts.iter().all(|part| !part.is_empty() && part.chars().all(fits)).then_some(parts)
}

fn sql_name(parts: &[String]) -> String {
    let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    let one = |part: &String| {
        let bare = part.chars().all(plain) && !part.starts_with(|c: char| c.is_ascii_digit());
        if bare { part.clone() } else { format!("\"{part}\"") }
    };
    let parts: Vec<_> = parts.iter().map(one).collect();
    if parts.len() == 1 { format!("public.{}", parts.join("")) } else { parts.join(".") }
}

/// The brokers, if the connector's file has them. The producer's option replaces them later.
fn brokers(t: &mut Translator<'_>) {
    const OPTIONS: [&str; 3] = [
        "bootstrap.servers",
        "signal.kafka.bootstrap.servers",
        "schema.history.internal.kafka.bootstrap.servers",
    ];
    let given = OPTIONS.iter().find_map(|option| t.get(option));
    t.draft.set(
        "sink",
        "brokers",
        given.map_or_else(|| "localhost:9092".to_owned(), translator::plain),
    );
    t.draft.set("sink", "kind", "kafka");
}
