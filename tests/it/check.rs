//! `postrider check`: what is wrong is found, and each finding is mended by the lines it prints itself.

mod acl;
mod broker;
mod cases;
mod missing;
mod one_by_one;
mod patient;
mod refused;
mod ten;

pub(crate) use patient::{Patient, fixes};

use crate::relay::postrider;
use std::collections::BTreeSet;

/// A file of a database that nobody serves: `--offline` does not ask for it.
#[test]
fn offline_looks_at_the_file_alone() {
    let file = "[pipelines.a]\nsource.url = \"postgresql://u:hush@db.invalid/app?sslmode=require\"\n\
                outbox.table = \"outbox\"\nroute.key = \"\"\n\
                [pipelines.a.sink]\nbrokers = \"k1.invalid:9092\"\n\
                properties = { \"ssl.endpoint.identification.algorithm\" = \"none\" }\n\
                [pipelines.b]\nsource.url = \"host=/tmp user=u dbname=d\"\n\
                outbox.table = \"outbox\"\nsink.kind = \"discard\"\n";
    let output = postrider(file, &["check", "--offline", "--json"]);
    assert_eq!(output.status.code(), Some(0), "warnings do not fail");
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(!said.contains("hush"), "{said}");
    let findings: Vec<serde_json::Value> = serde_json::from_str(&said).unwrap();
    let text = |finding: &serde_json::Value, name: &str| finding[name].as_str().unwrap().to_owned();
    let ids: BTreeSet<_> = findings
        .iter()
        .map(|f| (text(f, "pipeline"), text(f, "id"), text(f, "severity")))
        .collect();
    let expected = [
        ("a", "broker_plaintext"),
        ("a", "broker_verify"),
        ("a", "route_key"),
        ("a", "tls_verify"),
        ("b", "sink_discard"),
    ];
    let expected = expected.map(|(p, id)| (p.to_owned(), id.to_owned(), "warning".to_owned()));
    assert_eq!(ids, BTreeSet::from(expected), "{said}");
    for finding in &findings {
        assert_eq!(finding["fix"][0]["kind"], "config", "{finding}");
    }

    let mistaken = postrider("[pipelines.a]\nnonsense = 1\n", &["check", "--offline"]);
    assert_eq!(mistaken.status.code(), Some(2), "a bad file");
}

/// Every name that a finding can have is in the page about `check`.
#[test]
fn every_finding_stands_in_the_operations_page() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let page = std::fs::read_to_string(root.join("docs/operations/check.md")).unwrap();
    let mut missing = BTreeSet::new();
    let mut known = 0;
    let folders = [
        "crates/postrider-postgres/src/preflight",
        "crates/postrider-sinks/src/kafka",
        "crates/postrider-sinks/src/postgres",
        "crates/postrider-sinks/src/redis",
        "src/cli",
    ];
    let mut places: Vec<_> = folders.map(|folder| root.join(folder)).to_vec();
    while let Some(place) = places.pop() {
        if place.is_dir() {
            places.extend(std::fs::read_dir(place).unwrap().map(|entry| entry.unwrap().path()));
            continue;
        }
        let source = std::fs::read_to_string(&place).unwrap();
        let source = source.split("\nmod tests {").next().unwrap();
        for kind in ["error", "warning", "info", "ok"] {
            for rest in source.split(&format!("Finding::{kind}(")).skip(1) {
                let Some(name) = rest.trim_start().strip_prefix('"') else { continue };
                let name = name.split('"').next().unwrap();
                known += 1;
                if !page.contains(&format!("`{name}`")) {
                    missing.insert(name.to_owned());
                }
            }
        }
    }
    assert!(known > 50, "the findings are found in the source: {known}");
    assert!(missing.is_empty(), "not in docs/operations/check.md: {missing:?}");
}
