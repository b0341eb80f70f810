//! The reference file against the reader: every key, each with its default, and all of them shown.

use super::{SMALL, none, parsed};
use crate::config::file::read;
use crate::config::schema::{REFERENCE, uncommented};
use crate::config::{parse, section, show};

#[test]
fn the_reference_file_has_the_defaults() {
    let values = |text| {
        let config = parsed(text).unwrap();
        (config.admin, config.shutdown_grace, config.pipelines)
    };
    assert_eq!(values(REFERENCE), values(SMALL));
}

#[test]
fn the_reference_file_has_every_key() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("pg-password"), "hush").unwrap();
    let (_, found) = read("f", directory.path(), &uncommented(), &none).unwrap();
    assert_eq!(found.errors, []);
    for key in found.asked.keys() {
        let key = key.replace("pipelines.*", "pipelines.orders");
        if key.contains('*') {
            let (table, _) = key.split_once(".*").unwrap();
            assert!(found.places.under(table).next().is_some(), "no example of {key}");
        } else {
            assert!(found.places.get(&key).is_some(), "{key} is not in the reference file");
        }
    }
}

#[test]
fn every_key_is_shown_with_where_it_comes_from() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("pg-password"), "hush").unwrap();
    let (_, found) = read("f", directory.path(), &uncommented(), &none).unwrap();
    let config = parse("f", directory.path(), &uncommented(), &none).unwrap();
    let rows = show::show(&config);
    let path =
        |row: &show::Shown| format!("{}.{}", row.table, row.key).trim_matches('.').to_owned();
    let shown: Vec<_> = rows.iter().map(path).collect();
    for (key, kind) in &found.asked {
        let key = key.replace("pipelines.*", "pipelines.orders");
        if key.contains(".extra.*.")
            || matches!(kind, section::Kind::Table | section::Kind::TableOrFalse)
        {
            continue;
        }
        let is = |shown: &String| match key.split_once(".*") {
            Some((table, _)) => shown.starts_with(table),
            None => *shown == key,
        };
        assert!(shown.iter().any(is), "{key} is not shown");
    }
    assert!(
        rows.iter().all(|row| row.origin != show::Origin::Default),
        "all of it stands in the file"
    );
}
