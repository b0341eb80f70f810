//! Which module may use which: the table of the layers, and every path in the code held against it.

use super::{
    assert_none, files_in, has_extension, root, rust_files, sources, text, without_comments,
    word_at_start,
};
use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

/// Each crate of the workspace, and the others that it may depend on. The same table is in ARCHITECTURE.md.
const CRATES: &[(&str, &[&str])] = &[
    ("secret-file", &[]),
    ("pg-replication", &["secret-file"]),
    ("postrider-core", &["secret-file"]),
    ("postrider-relay", &["postrider-core"]),
    ("postrider-outbox", &["postrider-core"]),
    ("postrider-postgres", &["pg-replication", "postrider-core"]),
    ("postrider-sinks", &["pg-replication", "postrider-core"]),
    ("postrider-formats", &["postrider-core", "postrider-sinks"]),
    ("postrider-inbox", &["postrider-core", "postrider-postgres", "postrider-sinks"]),
    ("fuzzing", &[]),
];

/// Those of them that neither wait nor draw.
const PURE: [&str; 3] = ["postrider-core", "postrider-relay", "postrider-outbox"];

/// Each module of the product, and what it may use: its other modules, and the crates by the names they have there.
/// Crates hold the walls between each other; these are the ones that they can't hold.
const MODULES: &[(&str, &str)] = &[
    // How often a lasting condition is logged, and numbers as people read them: no state of a pipeline.
    ("health", ""),
    ("metrics", "status intake_status"),
    // Announced to by the pipeline, which it does not see.
    ("maintenance", "CORE postgres health"),
    ("pipeline", "CORE DECISIONS outbox postgres sink metrics health maintenance"),
    ("replay", "CORE DECISIONS outbox postgres sink metrics pipeline"),
    // The connections of an HTTP server: no state of a pipeline, of an intake, or of the metrics.
    ("connections", ""),
    // Reads a snapshot and the metrics, and calls into nothing.
    ("admin", "event status intake_status offset publications metrics connections health"),
    ("intake", "CORE inbox postgres health maintenance pipeline connections"),
    (
        "config",
        "CORE DECISIONS outbox postgres sink formats metrics pipeline replay admin secret_file inbox intake",
    ),
    ("demo", "CORE DECISIONS outbox postgres sink metrics pipeline replay admin config"),
    ("init", "CORE DECISIONS outbox postgres sink metrics pipeline replay admin config"),
    (
        "cli",
        "CORE DECISIONS outbox postgres sink metrics health pipeline replay admin config demo init inbox intake",
    ),
];

/// What `CORE` stands for in [`MODULES`].
const CORE: [&str; 19] = [
    "backoff",
    "delta",
    "error",
    "event",
    "finding",
    "intake_status",
    "offset",
    "outbox_rows",
    "parked",
    "publications",
    "record",
    "row",
    "row_buffer",
    "source",
    "status",
    "store",
    "timestamp",
    "units",
    "zone",
];

/// What `DECISIONS` stands for: the modules of `postrider-relay`.
const DECISIONS: [&str; 5] = ["ack", "claims", "engine", "published", "relay"];

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
    let Some((_, allowed)) = MODULES.iter().find(|(known, _)| *known == module) else {
        return false;
    };
    let mut allowed = allowed.split(' ');
    let group = |word| match word {
        "CORE" => CORE.contains(&other),
        "DECISIONS" => DECISIONS.contains(&other),
        _ => false,
    };
    module == other || allowed.any(|word| word == other || group(word))
}

/// The members of the workspace that a manifest names as dependencies that are not for tests alone.
fn dependencies(manifest: &str) -> BTreeSet<&str> {
    let mut section = "";
    let mut found = BTreeSet::new();
    for line in manifest.lines() {
        if line.starts_with('[') {
            section = line;
        } else if section == "[dependencies]" {
            let name = line.split(['.', ' ', '=']).next().unwrap_or_default();
            found.extend(CRATES.iter().map(|(known, _)| *known).filter(|known| *known == name));
        }
    }
    found
}

#[test]
fn crates_depend_only_on_those_below_them() {
    let mut found = Vec::new();
    let mut seen = 0;
    for path in files_in("crates").iter().filter(|path| path.ends_with("Cargo.toml")) {
        let name = path.components().nth(1).unwrap().as_os_str().to_str().unwrap();
        let Some((_, allowed)) = CRATES.iter().find(|(known, _)| *known == name) else {
            found.push(format!("{name} has no line in CRATES"));
            continue;
        };
        seen += 1;
        let manifest = text(path).unwrap();
        // What decides has no clock, no lock to wait for, no socket and no random number.
        let waits = ["tokio", "fastrand"].iter().filter(|other| {
            PURE.contains(&name)
                && manifest.split("[dev-dependencies]").next().unwrap().contains(**other)
        });
        found.extend(waits.map(|other| format!("{name} uses {other}")));
        let others = dependencies(&manifest).into_iter();
        found.extend(
            others
                .filter(|other| !allowed.contains(other))
                .map(|other| format!("{name} uses {other}")),
        );
    }
    assert_none("against the direction of the crates", &found);
    assert_eq!(seen, CRATES.len());
    // The table in words.
    let page = text(Path::new("ARCHITECTURE.md")).unwrap();
    for (name, allowed) in CRATES.iter().filter(|(name, _)| *name != "fuzzing") {
        let allowed = allowed.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ");
        let row = format!("| `{name}` | {} |", if allowed.is_empty() { "none" } else { &allowed });
        assert!(page.contains(&row), "ARCHITECTURE.md lacks: {row}");
    }
}

/// The crates that a crate may be built with: those of its line, and those of theirs.
fn below(name: &str) -> BTreeSet<&'static str> {
    let (_, direct) = CRATES.iter().find(|(known, _)| *known == name).unwrap();
    let further = direct.iter().flat_map(|other| below(other));
    direct.iter().copied().chain(further).collect()
}

/// Clients of brokers and databases, and what they are built on. None of them is below a crate that decides or makes
/// records ([`PURE`]), also if Postrider does not use it yet.
const CLIENTS: &[&str] = &[
    "tokio",
    "tokio-postgres",
    "rdkafka",
    "async-nats",
    "lapin",
    "redis",
    "reqwest",
    "hyper",
    "mysql_async",
    "rusqlite",
];

/// What else a crate must not be built with, however it came there.
const NEVER: &[(&str, &[&str])] = &[
    ("pg-replication", &["rdkafka"]),
    ("postrider-core", &["fastrand"]),
    ("postrider-relay", &["fastrand"]),
    ("postrider-outbox", &["fastrand"]),
    ("postrider-postgres", &["rdkafka"]),
    ("postrider-sinks", &["postrider-relay"]),
];

/// Everything that a package is built with. `cargo tree -e normal -p CRATE` sees what a manifest does not: the
/// dependencies of dependencies.
fn built_with(name: &str) -> BTreeSet<String> {
    let mut tree = Command::new(env!("CARGO"));
    tree.args(["tree", "--locked", "--offline", "--prefix", "none", "-e", "normal", "-p", name]);
    let output = tree.current_dir(root()).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let built: BTreeSet<String> =
        text.lines().filter_map(|line| line.split(' ').next()).map(str::to_owned).collect();
    assert!(built.contains(name), "{text}");
    built
}

#[test]
fn no_crate_is_built_with_one_that_it_may_not_use() {
    let mut found = Vec::new();
    for (name, never) in NEVER {
        let built = built_with(name);
        let below = below(name);
        let others = CRATES.iter().map(|(other, _)| other);
        let others = others.filter(|other| *other != name && !below.contains(*other));
        let clients = if PURE.contains(name) { CLIENTS } else { &[] };
        let others = others.chain(*never).chain(clients);
        for other in others.filter(|other| built.contains(**other)) {
            found.push(format!("{name} is built with {other}"));
        }
    }
    assert_none("against the direction of the crates", &found);
}

/// A program that embeds the product need not have what the binary has.
#[test]
fn embedding_package_is_built_without_default_features() {
    let built = built_with("embedding");
    assert!(built.contains("postrider-relay"), "{built:?}");
    let unwanted = ["rdkafka", "axum", "clap", "ratatui", "tikv-jemallocator"];
    let found: Vec<_> = unwanted.into_iter().filter(|name| built.contains(*name)).collect();
    assert!(found.is_empty(), "tests/embedding is built with {found:?}");
}

#[test]
fn the_map_names_files_that_exist_and_few_rules() {
    let page = text(Path::new("ARCHITECTURE.md")).unwrap();
    let missing: Vec<String> = page
        .split('`')
        .skip(1)
        .step_by(2)
        .filter(|name| {
            name.contains('/') && has_extension(Path::new(name), "rs") || name.ends_with('/')
        })
        .filter(|name| !root().join(name).exists())
        .map(str::to_owned)
        .collect();
    assert_none("ARCHITECTURE.md names files that do not exist", &missing);
    let table = page.split("## Where is the rule for").nth(1).unwrap();
    let table = table.split("\n## ").next().unwrap();
    let rows = table.lines().filter(|line| line.starts_with("| ")).count();
    // The heading is a row too. A sixteenth rule means that a file is misnamed.
    assert!((2..=16).contains(&rows), "{} rows", rows - 1);
}

#[test]
fn grouped_and_nested_paths_are_seen() {
    let source = "use crate::offset::Offset;\nuse crate::{event, sink::{self, a::B},\n  relay};\n\
                  // crate::x\nf(crate::ack::T)";
    let used = modules_used(source);
    assert_eq!(used.into_iter().collect::<Vec<_>>(), ["ack", "event", "offset", "relay", "sink"]);
    assert!(may_use("pipeline", "postgres") && may_use("pipeline", "event"));
    assert!(!may_use("admin", "postgres") && !may_use("metrics", "pipeline"));
}

#[test]
fn modules_use_only_the_layers_above_them() {
    let mut found = Vec::new();
    for (path, source) in rust_files("src") {
        let Some(module) = module_of(&path) else { continue };
        if !MODULES.iter().any(|(known, _)| *known == module) {
            found.push(format!("{}: module {module} has no line in MODULES", path.display()));
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
    let twice = ["super", "super", ""].join("::");
    for (path, source) in sources().into_iter().chain(rust_files("tests")) {
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

/// The methods of a trait, or of its implementation, in this file.
fn methods(path: &str, header: &str) -> BTreeSet<String> {
    let text = text(&root().join(path)).expect("a file");
    let (_, rest) = text.split_once(header).unwrap_or_else(|| panic!("{path} has no {header}"));
    let (body, _) = rest.split_once("\n}\n").expect("an end");
    let of_line = |line: &str| Some(word_at_start(line.strip_prefix("    fn ")?).to_owned());
    body.lines().filter_map(of_line).collect()
}

/// A method with a default that the sink before another one does not pass on would be the default for every format.
#[test]
fn formatted_sink_passes_every_method_on() {
    let sink = "crates/postrider-core/src/sink.rs";
    for (of, path, by) in [
        ("pub trait SinkConfig", "formatted_config.rs", "impl SinkConfig for FormattedConfig"),
        ("pub trait Sink: Send", "formatted_sink.rs", "impl Sink for FormattedSink"),
    ] {
        let path = format!("crates/postrider-formats/src/{path}");
        let missing: Vec<_> = methods(sink, of).difference(&methods(&path, by)).cloned().collect();
        assert_none(&format!("{path} does not pass on"), &missing);
    }
}
