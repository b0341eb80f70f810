//! The table of options against what the translation makes of each, and against the page.

use super::{LEAST, answer_to, keys, translated};
use crate::init::debezium::options::{CONNECTOR, Known, ROUTER};
use crate::init::debezium::translator::page;
use crate::init::debezium::{Overrides, Verdict, producer, translate};

/// A value with which an option is not what it is by default.
fn sample(name: &str) -> &'static str {
    match name {
        "database.port" => "5433",
        "database.sslmode" => "require",
        "database.sslcert" | "database.sslkey" | "database.sslrootcert" => "/etc/tls/some.pem",
        "plugin.name" => "decoderbufs",
        "slot.failover" | "table.expand.json.payload" | "route.tombstone.on.empty.payload" => {
            "true"
        }
        "table.fields.additional.error.on.missing" => "false",
        "table.include.list" | "table.whitelist" => "shop.events",
        "table.fields.additional.placement" => "type:header:eventType",
        "table.field.additional.missing" => "ignore",
        "table.op.invalid.behavior" => "fatal",
        "route.topic.regex" => "(.*)Event",
        "route.topic.replacement" => "all.${routedByValue}",
        "bootstrap.servers" => "k1:9092",
        "compression.type" => "gzip",
        "security.protocol" => "SSL",
        "errors.deadletterqueue.topic.name" => "orders.dead",
        "topic.creation.default.partitions" => "8",
        "topic.creation.default.replication.factor" => "3",
        "sasl.mechanism" => "SCRAM-SHA-512",
        "sasl.jaas.config" => "x.ScramLoginModule required username=\"u\" password=\"hush\";",
        "ssl.truststore.location" => "/etc/tls/ca.pem",
        "ssl.keystore.location" => "/etc/tls/client.p12",
        "client.dns.lookup" => "resolve_canonical_bootstrap_servers_only",
        "ssl.endpoint.identification.algorithm" => "",
        _ => match name.rsplit('.').next() {
            Some("ms" | "bytes" | "size") => "4711",
            Some("level") => "3",
            _ => "some_name",
        },
    }
}

/// What an option says only together with others.
fn beside(name: &str) -> &'static str {
    match name {
        "table.expand.json.payload" => {
            "transforms.outbox.table.fields.additional.placement=a:envelope\n"
        }
        "table.field.additional.missing" | "table.fields.additional.error.on.missing" => {
            "transforms.outbox.table.fields.additional.placement=a:header\n"
        }
        "topic.creation.default.partitions" => "topic.creation.default.replication.factor=3\n",
        "topic.creation.default.replication.factor" => "topic.creation.default.partitions=8\n",
        "route.topic.regex" => "transforms.outbox.route.topic.replacement=events.$1\n",
        "ssl.truststore.type" => "producer.override.ssl.truststore.location=/etc/tls/trust\n",
        "ssl.keystore.type" => "producer.override.ssl.keystore.location=/etc/tls/keys\n",
        _ => "",
    }
}

/// The table tells no lies: what it calls translated changes the file, what it calls needless does not.
#[test]
fn every_option_is_what_the_table_says() {
    let least = keys(LEAST);
    let check = |known: &Known, prefix: &str| {
        // What stands for many is shown by its members; of these the value decides, or other options.
        let elsewhere =
            ["type", "transforms", "predicates", "debezium.sink.type", "connector.class"];
        if known.name.ends_with('*') || elsewhere.contains(&known.name) {
            return;
        }
        let value = match known.name {
            "ssl.truststore.type" | "ssl.keystore.type" => "PEM",
            name => sample(name),
        };
        let option = format!("{prefix}{}", known.name);
        let text = format!("{LEAST}{}{option}={value}\n", beside(known.name));
        let without = keys(&format!("{LEAST}{}", beside(known.name)));
        let changed = keys(&text) != without;
        assert_eq!(
            changed,
            known.verdict == Verdict::Translated,
            "{option}={value}:\n{}",
            keys(&text)
        );
        let answer = answer_to(&translated(&text), &option);
        if known.name != "plugin.name" {
            assert_eq!(answer.verdict, known.verdict, "{option}: {}", answer.text);
        }
    };
    let producer = producer::TABLE;
    for (table, prefix) in
        [(ROUTER, "transforms.outbox."), (CONNECTOR, ""), (producer, "producer.override.")]
    {
        for known in table {
            check(known, prefix);
        }
    }
    assert!(least.contains("layout = \"debezium\""), "{least}");
}

/// Nor does an answer: whatever the value is, what is called translated has changed the file.
#[test]
fn what_is_called_translated_is_in_the_file() {
    // Of these other options decide, or a value that is none of their words is the default.
    let elsewhere = [
        "transforms",
        "connector.class",
        "debezium.sink.type",
        "name",
        "plugin.name",
        "predicates",
        "table.field.additional.missing",
        "table.fields.additional.error.on.missing",
        "table.expand.json.payload",
        "route.tombstone.on.empty.payload",
        "table.op.invalid.behavior",
    ];
    let tables =
        [(ROUTER, "transforms.outbox."), (CONNECTOR, ""), (producer::TABLE, "producer.override.")];
    let file = |text: &str| {
        let translation = translate(text, &Overrides::default()).ok()?;
        let text = crate::init::text(&translation.draft);
        let of_keys =
            text.lines().filter(|line| !line.starts_with('#')).collect::<Vec<_>>().join("\n");
        Some((of_keys, translation))
    };
    for (table, prefix) in tables {
        let known = table.iter().filter(|known| known.verdict == Verdict::Translated);
        for known in known.filter(|k| !k.name.ends_with('*') && !elsewhere.contains(&k.name)) {
            for value in ["some nonsense", "0", "-5", "${file:/x:y}", "/x/y.jks", "http://x"] {
                let option = format!("{prefix}{}", known.name);
                let (without, _) = file(&format!("{LEAST}{}", beside(known.name))).unwrap();
                let text = format!("{LEAST}{}{option}={value}\n", beside(known.name));
                let Some((with, translation)) = file(&text) else { continue };
                let answer = answer_to(&translation, &option);
                assert!(
                    answer.verdict != Verdict::Translated || with != without,
                    "{option}={value} is called translated:\n{with}"
                );
            }
        }
    }
}

#[test]
fn values_that_make_no_difference_are_not_complained_of() {
    for known in CONNECTOR
        .iter()
        .filter(|known| !known.same.is_empty() && !known.name.starts_with("debezium."))
    {
        for value in known.same {
            let translation = translated(&format!("{LEAST}{}={value}\n", known.name));
            assert_eq!(
                answer_to(&translation, known.name).verdict,
                Verdict::NotNeeded,
                "{}",
                known.name
            );
        }
    }
}

const BEGIN: &str = "<!-- options: begin -->\n";
const END: &str = "<!-- options: end -->";

/// `UPDATE_EXPECT=1` writes the page anew.
#[test]
fn the_page_has_every_option() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/debezium.md");
    let text = std::fs::read_to_string(path).unwrap();
    let (before, rest) = text.split_once(BEGIN).unwrap();
    let (within, after) = rest.split_once(END).unwrap();
    let made = format!("\n{}", page());
    if within != made && std::env::var_os("UPDATE_EXPECT").is_some() {
        std::fs::write(path, format!("{before}{BEGIN}{made}{END}{after}")).unwrap();
        return;
    }
    assert_eq!(
        within, made,
        "docs/debezium.md is not what src/init/debezium has; UPDATE_EXPECT=1 writes it again"
    );
}
