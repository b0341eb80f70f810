//! Which module may use which: the table of the layers, and every path in the code held against it.

use super::{assert_none, rust_files, without_comments, word_at_start};
use std::collections::BTreeSet;
use std::path::Path;

/// Each module with its layer and what it may use: names of layers and of modules.
///
/// A new top-level module needs a line here; think first where it belongs.
const LAYERS: &[(&str, &str, &str)] = &[
    ("words", "lsn", ""),
    ("words", "event", "lsn"),
    ("words", "record", "lsn event"),
    ("words", "error", "lsn event"),
    ("words", "status", "lsn event error"),
    ("words", "finding", ""),
    ("words", "secret_file", ""),
    ("words", "zone", ""),
    // Test only: beside each reader, its tests use it.
    ("words", "fuzz", ""),
    ("words", "parked", "lsn event record"),
    ("pure", "pgoutput", "words"),
    ("pure", "outbox", "words pgoutput"),
    ("pure", "ack", "words"),
    ("pure", "backoff", "words"),
    ("core", "relay", "words pure"),
    // Adapters never know each other, nor the relay.
    ("adapters", "postgres", "words pgoutput"),
    ("adapters", "sink", "words"),
    ("services", "metrics", "words"),
    ("services", "driver", "words pure core adapters metrics"),
    ("services", "replay", "words pure core adapters metrics driver"),
    // Reads a snapshot and the metrics, and calls into nothing.
    ("services", "admin", "words metrics"),
    ("test only", "sim", "words ack relay"),
    ("edge", "config", "words pure core adapters services"),
    ("edge", "demo", "words pure core adapters services config"),
    ("edge", "init", "words pure core adapters services config"),
    ("edge", "cli", "words pure core adapters services config demo init"),
];

/// The top-level module that a file of `src` belongs to; none for `lib.rs` and `main.rs`, which may use everything.
fn module_of(path: &Path) -> Option<String> {
    let below = path.strip_prefix("src").unwrap();
    let first = below.components().next().unwrap().as_os_str().to_str().unwrap();
    let name = first.strip_suffix(".rs").unwrap_or(first);
    (!matches!(name, "lib" | "main")).then(|| name.to_owned())
}

/// The first segment of every `crate::a::…`, and of every arm of `crate::{a::…, b::{…}}`.
fn modules_used(source: &str) -> BTreeSet<String> {
    let code = without_comments(source);
    let mut used = BTreeSet::new();
    for (at, prefix) in code.match_indices("crate::") {
        let rest = code[at + prefix.len()..].trim_start();
        let Some(group) = rest.strip_prefix('{') else {
            used.insert(word_at_start(rest).to_owned());
            continue;
        };
        let (mut depth, mut arm_begins) = (1, true);
        for (at, c) in group.char_indices() {
            match c {
                '{' => depth += 1,
                '}' => depth -= 1,
                ',' if depth == 1 => arm_begins = true,
                c if arm_begins && !c.is_whitespace() => {
                    used.insert(word_at_start(&group[at..]).to_owned());
                    arm_begins = false;
                }
                _ => {}
            }
            if depth == 0 {
                break;
            }
        }
    }
    used
}

fn may_use(module: &str, other: &str) -> bool {
    let line = |name: &str| LAYERS.iter().find(|(_, module, _)| *module == name);
    let (Some((_, user, allowed)), Some((layer, target, _))) = (line(module), line(other)) else {
        return false;
    };
    user == target || allowed.split(' ').any(|word| word == *layer || word == *target)
}

#[test]
fn grouped_and_nested_paths_are_seen() {
    let source = "use crate::lsn::Lsn;\nuse crate::{event, sink::{self, a::B},\n  relay};\n\
                  // crate::x\nf(crate::ack::T)";
    let used = modules_used(source);
    assert_eq!(used.into_iter().collect::<Vec<_>>(), ["ack", "event", "lsn", "relay", "sink"]);
    assert!(may_use("relay", "outbox") && may_use("driver", "postgres"));
    assert!(!may_use("sink", "postgres") && !may_use("ack", "relay") && !may_use("lsn", "event"));
}

#[test]
fn modules_use_only_the_layers_above_them() {
    let mut found = Vec::new();
    for (path, source) in rust_files("src") {
        let Some(module) = module_of(&path) else { continue };
        if !LAYERS.iter().any(|(_, known, _)| *known == module) {
            found.push(format!("{}: module {module} has no line in LAYERS", path.display()));
            continue;
        }
        for other in modules_used(&source).iter().filter(|other| !may_use(&module, other)) {
            found.push(format!("{}: {module} uses {other}", path.display()));
        }
    }
    assert_none("against the layers", &found);
}

#[test]
fn layers_are_not_passed_by_through_super() {
    let mut found = Vec::new();
    let twice = ["super", "super"].join("::");
    for (path, source) in rust_files("src").into_iter().chain(rust_files("tests")) {
        let code = without_comments(&source);
        if code.contains(&twice) {
            found.push(format!("{}: {twice}", path.display()));
        }
        // In the file of a top-level module, `super` is the crate: any layer would be in reach.
        let depth = path.components().count();
        let top = depth == 2 || depth == 3 && path.ends_with("mod.rs");
        let own = code.split("\nmod tests {").next().unwrap();
        if path.starts_with("src") && top && own.contains("super::") {
            found.push(format!("{}: super of a top-level module", path.display()));
        }
    }
    assert_none("paths through super", &found);
}
