//! The reference file against the reader: every key, each with its default, and all of them shown.

use super::{SMALL, none, parsed};
use crate::config::file::read;
use crate::config::schema::{REFERENCE, uncommented, uncommented_text};
use crate::config::{parse, section, show};
use crate::sink::KINDS;

#[test]
fn the_reference_file_has_the_defaults() {
    let values = |text| {
        let config = parsed(text).unwrap();
        let pipelines = format!("{:#?}", config.pipelines);
        (config.admin, config.shutdown_grace, config.maintenance, pipelines)
    };
    assert_eq!(values(REFERENCE), values(SMALL));
}

/// A key of a pipeline: that of the one which has it, as one has an outbox and the other captured tables.
fn of_pipeline(key: &str, has: impl Fn(&str) -> bool) -> String {
    let of = |name: &str| key.replace("pipelines.*", &format!("pipelines.{name}"));
    let keys = ["orders", "changes"].map(of);
    keys.iter().find(|key| has(key)).unwrap_or(&keys[0]).clone()
}

/// A key of an inbox: that of the one which has it, as they have different sources.
fn of_inbox(key: &str, has: impl Fn(&str) -> bool) -> String {
    let of = |name: &str| key.replace("inboxes.*", name);
    let names = ["mail", "payments", "events", "tasks", "jobs"];
    let names = names.map(|name| of(&format!("inboxes.{name}")));
    names.iter().find(|key| has(key)).unwrap_or(&names[0]).clone()
}

#[test]
fn the_reference_file_has_every_key() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("pg-password"), "hush").unwrap();
    std::fs::write(directory.path().join("orders.avsc"), "\"long\"").unwrap();
    let (_, found) = read("f", directory.path(), &uncommented(), &none).unwrap();
    assert_eq!(found.errors, []);
    // The kinds of sinks that the file does not use have a reference of their own.
    let of_kinds: Vec<_> = KINDS
        .iter()
        .map(|kind| {
            let text = format!(
                "{SMALL}\n[pipelines.orders.sink]\nkind = \"{}\"\n{}",
                kind.name(),
                uncommented_text(kind.reference())
            );
            let text = text.replace("    sink.brokers = \"localhost:9092\"\n", "");
            read("f", directory.path(), &text, &none).unwrap().1.places
        })
        .collect();
    for key in found.asked.keys() {
        let key = of_pipeline(key, |key| match key.split_once(".*") {
            Some((table, _)) => found.places.under(table).next().is_some(),
            None => found.places.get(key).is_some(),
        });
        let key = of_inbox(&key, |key| found.places.get(key).is_some());
        if key.contains('*') {
            let (table, _) = key.split_once(".*").unwrap();
            let mut all = of_kinds.iter().chain([&found.places]);
            let has = all.any(|places| places.under(table).next().is_some());
            assert!(has, "no example of {key}");
        } else {
            let mut all = of_kinds.iter().chain([&found.places]);
            let has = all.any(|places| places.get(&key).is_some());
            assert!(has, "{key} is not in the reference file");
        }
    }
}

#[test]
fn every_key_is_shown_with_where_it_comes_from() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("pg-password"), "hush").unwrap();
    std::fs::write(directory.path().join("orders.avsc"), "\"long\"").unwrap();
    let (_, found) = read("f", directory.path(), &uncommented(), &none).unwrap();
    let config = parse("f", directory.path(), &uncommented(), &none).unwrap();
    let rows = show::show(&config);
    let path =
        |row: &show::Shown| format!("{}.{}", row.table, row.key).trim_matches('.').to_owned();
    let shown: Vec<_> = rows.iter().map(path).collect();
    // The file has no keys of other kinds of sinks.
    let is_of_other_sink =
        |key: &str| !key.contains('*') && key.contains(".sink.") && found.places.get(key).is_none();
    for (key, kind) in &found.asked {
        let key = of_pipeline(key, |key| match key.split_once(".*") {
            Some((table, _)) => shown.iter().any(|shown| shown.starts_with(table)),
            None => shown.iter().any(|shown| shown == key),
        });
        let key = of_inbox(&key, |key| shown.iter().any(|shown| shown == key));
        if key.contains(".extra.*.")
            || matches!(kind, section::Kind::Table | section::Kind::TableOrFalse)
            || is_of_other_sink(&key)
        {
            continue;
        }
        let is = |shown: &String| match key.split_once(".*") {
            Some((table, _)) => shown.starts_with(table),
            None => *shown == key,
        };
        assert!(shown.iter().any(is), "{key} is not shown");
    }
    // The other pipeline has only the keys of its captured tables, the other inboxes those of their sources.
    let is_of_another = |row: &show::Shown| {
        row.table.starts_with("pipelines.changes")
            || row.table.starts_with("inboxes.") && !row.table.starts_with("inboxes.mail")
    };
    assert!(
        rows.iter().all(|row| row.origin != show::Origin::Default || is_of_another(row)),
        "all of it stands in the file"
    );
}

#[test]
fn the_reference_file_has_the_keys_of_the_default_sink_as_the_kind_has_them() {
    for kind in KINDS.iter().filter(|kind| kind.name() == crate::sink::DEFAULT_KIND) {
        assert!(REFERENCE.contains(kind.reference()), "{}", kind.name());
    }
}
