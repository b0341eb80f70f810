//! `[pipelines.NAME.sink]`: the broker and its settings.

use super::context::Context;
use super::kind::Kind;
use super::secret::Properties;
use super::section::Section;
use super::types::{Delivery, SinkConfig, SinkKind};
use crate::secret_file::SecretFile;
use crate::sink::CreateTopics;
use std::collections::BTreeMap;
use std::path::Path;
use toml::de::DeValue;

/// Partitions of a topic that is made.
const PARTITIONS_MAX: u32 = 10_000;

/// Replicas of a topic that is made.
const REPLICAS_MAX: u32 = 100;

/// A property whose name ends so takes its value from the file named.
const FILE_SUFFIX: &str = "_file";

/// Properties that name a file with a private key, which librdkafka reads itself, whatever the file's rights.
const KEY_FILES: [&str; 2] = ["ssl.key.location", "ssl.keystore.location"];

pub(super) fn read(section: Section<'_>) -> SinkConfig {
    let kinds =
        [("kafka", SinkKind::Kafka), ("stdout", SinkKind::Stdout), ("discard", SinkKind::Discard)];
    let later = ["nats", "redis", "rabbitmq", "http", "postgres"];
    let kind = section.one_of("kind", &kinds, &later, SinkKind::Kafka);
    let brokers = match kind {
        SinkKind::Kafka => section.required("brokers", "localhost:9092").unwrap_or_default(),
        SinkKind::Stdout | SinkKind::Discard => section.text("brokers").unwrap_or_default(),
    };
    check_brokers(&section, &brokers);
    let (properties, secret_files) = properties(&section.section("properties"));
    let config = SinkConfig {
        kind,
        brokers,
        delivery: section.one_of(
            "delivery",
            &[("at-least-once", Delivery::AtLeastOnce)],
            &["exactly-once"],
            Delivery::AtLeastOnce,
        ),
        shards: section.small("shards", 1, 1..=16),
        create_topics: create_topics(&section),
        properties,
        secret_files,
    };
    section.finish();
    config
}

/// `false`, or a table that says how topics are made. What is not in it is the broker's default.
fn create_topics(section: &Section<'_>) -> Option<CreateTopics> {
    let table = section.section_or_false("create_topics");
    let number = |key, max| Some(table.small(key, 0, 1..=max)).filter(|number| *number > 0);
    let (partitions, replication_factor) =
        (number("partitions", PARTITIONS_MAX), number("replication_factor", REPLICAS_MAX));
    let allow = table.optional("allow");
    let config = properties(&table.section("config")).0.0;
    let is_on = table.is_present();
    table.finish();
    is_on.then(|| CreateTopics { partitions, replication_factor, config, allow, known: Vec::new() })
}

fn check_brokers(section: &Section<'_>, brokers: &str) {
    if brokers.is_empty() {
        return;
    }
    for broker in brokers.split(',') {
        let broker = broker.trim();
        let address = broker.rsplit_once("://").map_or(broker, |(_, address)| address);
        let port = address.rsplit_once(':').map(|(_, port)| port);
        let port_fits = port.is_none_or(|port| {
            port.ends_with(']') || port.parse::<u16>().is_ok_and(|port| port > 0)
        });
        if address.is_empty() || address.starts_with(':') || !port_fits {
            section.error("brokers", "expected host:port pairs with commas between them");
            return;
        }
    }
}

/// librdkafka's names have dots: `"linger.ms"` in quotes is meant, a bare `linger.ms` is taken as the same.
///
/// Those that come from a file are given beside their value with the file, which is read again when producers are made.
fn properties(section: &Section<'_>) -> (Properties, BTreeMap<String, SecretFile>) {
    let (mut properties, mut files) = (BTreeMap::new(), BTreeMap::new());
    for entry in section.entries(Kind::Scalar) {
        let mut leaves = Vec::new();
        flatten(entry.name.to_owned(), entry.value.get_ref(), &mut leaves);
        for (name, value) in leaves {
            let Some(text) = scalar(section.context, &entry.path, value) else { continue };
            let Some(text) = section.context.fill(entry.place, &entry.path, &text) else {
                continue;
            };
            let (name, text) = if let Some(name) = name.strip_suffix(FILE_SUFFIX) {
                let Some((file, text)) = section.context.secret_file(&entry.path, &text) else {
                    continue;
                };
                files.insert(name.to_owned(), file);
                (name.to_owned(), text)
            } else {
                if KEY_FILES.contains(&name.as_str()) {
                    section.context.warn_where_others_read(&entry.path, Path::new(&text));
                }
                (name, text)
            };
            if properties.insert(name.clone(), text).is_some() {
                let message = format!("\"{name}\" is given twice; delete one");
                section.context.error(entry.place, &entry.path, message);
            }
        }
    }
    (Properties(properties), files)
}

fn flatten<'v>(name: String, value: &'v DeValue<'v>, leaves: &mut Vec<(String, &'v DeValue<'v>)>) {
    match value.as_table() {
        Some(table) => {
            for (key, value) in table {
                flatten(format!("{name}.{}", key.get_ref()), value.get_ref(), leaves);
            }
        }
        None => leaves.push((name, value)),
    }
}

/// A property's value as librdkafka has it, which knows strings alone.
fn scalar(context: &Context<'_>, path: &str, value: &DeValue<'_>) -> Option<String> {
    match value {
        DeValue::String(text) => Some(text.clone().into_owned()),
        DeValue::Integer(number) => Some(number.to_string()),
        DeValue::Float(number) => Some(number.to_string()),
        DeValue::Boolean(yes) => Some(yes.to_string()),
        DeValue::Datetime(_) | DeValue::Array(_) | DeValue::Table(_) => {
            let expected = "expected a string, a number, true or false";
            context.error_at(path, expected);
            None
        }
    }
}
