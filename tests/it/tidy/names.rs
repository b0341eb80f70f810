//! Names that documents promise exist: tests, metrics, layouts, configuration keys.

use super::{
    assert_none, files_in, root, rust_files, sources, text, without_comments, word_at_start,
};
use postrider::error::HaltReason;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// The outbox layouts that ship.
const LAYOUTS: [&str; 7] =
    ["adr30", "commerce", "debezium", "gcx", "pgtrickle", "postrider", "sqlgarden"];

/// All test functions of the package, each with the modules of its file: `resume::name`, `relay::name`, `tests::name`.
fn test_names() -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for (path, source) in sources().into_iter().chain(rust_files("tests")) {
        let mut is_test = false;
        for line in source.lines().map(str::trim_start) {
            if line.starts_with("#[test]") || line.starts_with("#[tokio::test") {
                is_test = true;
            } else if let Some((_, rest)) = line.split_once("fn ").filter(|_| is_test) {
                let modules = path.with_extension("");
                names.extend(modules.iter().map(|module| {
                    format!("{}::{}", module.to_str().unwrap(), word_at_start(rest))
                }));
                is_test = false;
            }
        }
    }
    names
}

/// Words between backticks.
fn quoted(text: &str) -> impl Iterator<Item = &str> {
    text.lines().flat_map(|line| line.split('`').skip(1).step_by(2))
}

/// Pages that are worth what the tests behind them are worth.
const LEAST_TESTS: [(&str, usize); 14] = [
    ("docs/guarantees.md", 6),
    ("docs/guarantees/bad-events.md", 6),
    ("docs/guarantees/database.md", 6),
    ("docs/guarantees/duplicates.md", 6),
    ("docs/guarantees/lost-slot.md", 6),
    ("docs/guarantees/nothing-is-lost.md", 6),
    ("docs/guarantees/order.md", 6),
    ("docs/guarantees/status.md", 6),
    ("docs/operations/failover.md", 2),
    ("docs/operations/skipping.md", 2),
    ("docs/debezium.md", 6),
    ("docs/bad-input/unpublishable-events.md", 6),
    ("docs/bad-input/publication-and-slot.md", 6),
    ("README.md", 6),
];

/// A test is named by its file, or a folder of it, and its own name: `resume::a_clean_stop_repeats_nothing`.
#[test]
fn documents_name_tests_that_exist() {
    let known = test_names();
    let is_path = |word: &&str| {
        word.contains("::")
            && word
                .chars()
                .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || "_:".contains(c))
    };
    let mut missing = Vec::new();
    let pages =
        files_in("docs").into_iter().filter(|path| path.extension().is_some_and(|e| e == "md"));
    for page in pages.chain([PathBuf::from("README.md")]) {
        let text = text(&page).unwrap();
        let named: Vec<&str> = quoted(&text).filter(is_path).collect();
        let least =
            LEAST_TESTS.iter().find(|(name, _)| page == Path::new(name)).map_or(0, |(_, n)| *n);
        assert!(named.len() >= least, "{} names its tests: {named:?}", page.display());
        let unknown = named.iter().filter(|name| !known.contains(**name));
        missing.extend(unknown.map(|name| format!("{}: {name}", page.display())));
    }
    assert_none("tests that documents name and nobody wrote", &missing);
}

/// Words of this prefix, as they stand between other characters.
fn words_with<'a>(text: &'a str, prefix: &'a str) -> impl Iterator<Item = &'a str> {
    let starts = text
        .match_indices(prefix)
        .filter(|(at, _)| !text[..*at].ends_with(|c: char| c.is_ascii_alphanumeric() || c == '_'));
    starts.map(|(at, _)| word_at_start(&text[at..])).filter(move |word| word.len() > prefix.len())
}

#[test]
fn metrics_and_their_page_agree() {
    let code: String = rust_files("src/metrics")
        .into_iter()
        .filter(|(path, _)| !path.ends_with("tests.rs"))
        .map(|(_, source)| without_comments(&source))
        .collect();
    if code.is_empty() {
        return;
    }
    let page = text(Path::new("docs/metrics.md")).unwrap();
    let mut found = Vec::new();
    for prefix in ["\"postrider_", "\"outbox_", "\"process_"] {
        for start in code.match_indices(prefix).map(|(at, _)| at + 1) {
            let name = word_at_start(&code[start..]);
            if !page.contains(&format!("`{name}")) {
                found.push(format!("{name} is not in docs/metrics.md"));
            }
        }
    }
    for row in page.lines().filter(|line| line.starts_with("| `")) {
        let name = quoted(row).next().map_or("", |cell| word_at_start(cell));
        let base = name.strip_suffix("_total").unwrap_or(name);
        if !code.contains(&format!("\"{name}\"")) && !code.contains(&format!("\"{base}\"")) {
            found.push(format!("{name} is in docs/metrics.md and not in src/metrics"));
        }
    }
    // Alerts and dashboards speak of metrics too.
    let rules = text(Path::new("config/alerts.yml")).unwrap();
    let both = format!("{page}\n{rules}");
    for name in words_with(&both, "postrider_").chain(words_with(&both, "outbox_")) {
        let base = ["_bucket", "_sum", "_count", "_total"]
            .iter()
            .find_map(|suffix| name.strip_suffix(suffix))
            .unwrap_or(name);
        if !code.contains(&format!("\"{base}")) {
            found.push(format!("pages or alerts speak of {name}, which src/metrics has not"));
        }
    }
    assert_none("metrics", &found);
}

#[test]
fn every_layout_ships_its_sql() {
    let shipped: Vec<String> = files_in("sql/layouts")
        .iter()
        .map(|path| path.file_name().unwrap().to_str().unwrap().to_owned())
        .collect();
    if shipped.is_empty() && !root().join("crates/postrider-outbox").exists() {
        return;
    }
    assert_eq!(shipped, LAYOUTS.map(|name| format!("{name}.sql")));
}

/// Tables of the configuration whose keys the user chooses: columns, headers, librdkafka's properties, subjects.
const OPEN_TABLES: [&str; 5] = ["columns", "extra", "headers", "properties", "schemas"];

/// Every key of the reference configuration, keys in comments too, with its line.
fn reference_keys(reference: &str) -> BTreeMap<String, usize> {
    let mut keys = BTreeMap::new();
    let mut open = false;
    for (line, number) in reference.lines().zip(1..) {
        let line = line.trim_start_matches("# ");
        if let Some(table) = line.strip_prefix('[') {
            open = OPEN_TABLES.iter().any(|name| table.trim_end().ends_with(&format!(".{name}]")));
        }
        let Some((name, _)) = line.split_once(" = ").filter(|_| !open) else { continue };
        if !name.is_empty() && word_at_start(name) == name {
            keys.insert(name.to_owned(), number);
        }
    }
    keys
}

#[test]
fn every_key_of_the_reference_configuration_is_one_that_the_code_reads() {
    let crates = ["formats", "inbox", "sinks"].map(|name| format!("crates/postrider-{name}/src"));
    let folders = crates.iter().map(String::as_str).chain(["src/config"]);
    let sources = folders.flat_map(rust_files);
    let code: String = sources.map(|(_, source)| source).collect();
    if code.is_empty() {
        return;
    }
    let reference = text(Path::new("config/postrider.reference.toml")).unwrap();
    let page = Path::new("docs/configuration.md");
    let page = root().join(page).exists().then(|| text(page).unwrap());
    let mut found = Vec::new();
    let words: BTreeSet<&str> =
        code.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').collect();
    for (key, line) in reference_keys(&reference) {
        if !words.contains(key.as_str()) {
            found.push(format!("line {line}: {key}: src/config has no such key"));
        }
        if page.as_ref().is_some_and(|page| !page.contains(&key)) {
            found.push(format!("line {line}: {key}: not in docs/configuration.md"));
        }
    }
    assert_none("config/postrider.reference.toml", &found);
}

/// A halt's code is how an operator finds the page's section.
#[test]
fn every_halt_has_its_section_and_its_row_in_the_index() {
    let page = text(Path::new("docs/operations/halts.md")).unwrap();
    let index = text(Path::new("docs/operations.md")).unwrap();
    let has = |heading: &str| page.lines().any(|line| line == heading);
    let reasons = HaltReason::ALL;
    let headings = reasons.iter().map(|reason| format!("## {} {}", reason.code(), reason.name()));
    let missing: Vec<String> = headings.filter(|heading| !has(heading)).collect();
    assert_none("headings that docs/operations/halts.md lacks", &missing);
    let rows = reasons.iter().map(|reason| {
        format!("(operations/halts.md#{}-{})", reason.code().to_lowercase(), reason.name())
    });
    let missing: Vec<String> = rows.filter(|row| !index.contains(row)).collect();
    assert_none("links that docs/operations.md lacks", &missing);
    let sections = page.lines().filter(|line| line.starts_with("## PR")).count();
    assert_eq!(sections, reasons.len(), "docs/operations/halts.md has halts that the code has not");
}

/// The lines of a text without their indentation.
fn without_indentation<'t>(lines: impl Iterator<Item = &'t str>) -> String {
    lines.flat_map(|line| [line.trim(), "\n"]).collect()
}

/// All code of the page is compiled and tested: each block is in a file of the package.
#[test]
fn blocks_of_the_embedding_page_are_excerpts() {
    let files: Vec<String> = files_in("tests/embedding")
        .iter()
        .filter_map(|path| text(path))
        .map(|text| without_indentation(text.lines()))
        .collect();
    let page = text(Path::new("docs/embedding.md")).unwrap();
    // Behind each opening fence the language, then the block.
    let blocks = page.split("```").skip(1).step_by(2).map(|block| block.lines().skip(1));
    let blocks: Vec<String> = blocks.map(without_indentation).collect();
    assert!(blocks.len() >= 10, "{blocks:?}");
    let known = |block: &String| files.iter().any(|file| file.contains(block.as_str()));
    let unknown: Vec<String> = blocks.into_iter().filter(|block| !known(block)).collect();
    assert_none("blocks of docs/embedding.md that no file of tests/embedding has", &unknown);
}
