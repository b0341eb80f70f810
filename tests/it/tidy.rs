//! The rules of the house that no compiler knows. Std only, and no servers.
//!
//! Sizes of files and lines, words that must not be committed; `layers`, `names` and `words` have the rest.
#![expect(clippy::string_slice, reason = "at the ends of matches")]

mod layers;
mod names;
mod ratchets;
mod words;

use std::fs;
use std::path::{Path, PathBuf};

/// Lines of a source file at most. A file is one idea: this ceiling catches a file that has become several.
const FILE_LINES_MAX: usize = 1500;
/// Columns of a line, comments too (rustfmt holds code to 100).
const COLUMNS_MAX: usize = 120;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Every file below `dir`, relative to the root, in order; nothing where there is no such directory.
fn files_in(dir: &str) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(root().join(dir)) else { return Vec::new() };
    let mut names: Vec<String> = entries
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| !matches!(name.as_str(), "target" | ".git"))
        .collect();
    names.sort();
    let below = names.into_iter().flat_map(|name| {
        let path = if dir.is_empty() { name } else { format!("{dir}/{name}") };
        if root().join(&path).is_dir() { files_in(&path) } else { vec![PathBuf::from(path)] }
    });
    below.collect()
}

/// The text of a file; `None` where it is not text.
fn text(path: &Path) -> Option<String> {
    String::from_utf8(fs::read(root().join(path)).unwrap()).ok()
}

fn rust_files(dir: &str) -> Vec<(PathBuf, String)> {
    let sources = files_in(dir).into_iter().filter(|path| has_extension(path, "rs"));
    sources.map(|path| (path.clone(), text(&path).unwrap())).collect()
}

/// Every source file of the product and of its crates.
fn sources() -> Vec<(PathBuf, String)> {
    rust_files("src").into_iter().chain(rust_files("crates")).collect()
}

fn is_source(path: &Path) -> bool {
    path.starts_with("src") || path.starts_with("crates")
}

fn has_extension(path: &Path, extension: &str) -> bool {
    path.extension().is_some_and(|known| known == extension)
}

/// The code without its line comments, which may speak of any module.
fn without_comments(source: &str) -> String {
    let lines = source.lines().map(|line| match line.find("//") {
        Some(at) if !line[..at].contains('"') => &line[..at],
        _ => line,
    });
    lines.collect::<Vec<_>>().join("\n")
}

fn word_at_start(code: &str) -> &str {
    let end = code.find(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    &code[..end.unwrap_or(code.len())]
}

fn assert_none(what: &str, found: &[String]) {
    assert!(found.is_empty(), "{what}:\n  {}", found.join("\n  "));
}

/// The tests of a module, which its own file announces.
fn is_unit_test(path: &Path) -> bool {
    let in_tests = || path.components().any(|part| part.as_os_str() == "tests");
    is_source(path) && (path.ends_with("tests.rs") || in_tests())
}

fn is_test(path: &Path) -> bool {
    path.starts_with("tests") || is_unit_test(path)
}

#[test]
fn every_module_opens_with_what_it_is() {
    let all = sources().into_iter().chain(rust_files("tests"));
    let silent = all.filter(|(path, source)| !is_unit_test(path) && !source.starts_with("//!"));
    let found: Vec<String> = silent.map(|(path, _)| path.display().to_string()).collect();
    assert_none("no `//!` in the first line", &found);
}

/// What people write and read in an editor. Left out are snapshots, and formats that can't break a line:
/// Markdown's tables, and the inline tables of `Cargo.toml`.
fn is_folded(path: &Path) -> bool {
    ["rs", "toml", "sql", "sh", "yml"].iter().any(|extension| has_extension(path, extension))
        && path != Path::new("Cargo.toml")
        && path.components().all(|part| part.as_os_str() != "snapshots")
        || path.starts_with("scripts")
        || path.starts_with(".ci")
}

#[test]
fn files_and_lines_are_short() {
    let mut found = Vec::new();
    for path in files_in("").into_iter().filter(|path| is_folded(path)) {
        let Some(text) = text(&path) else { continue };
        let lines = text.lines().count();
        if has_extension(&path, "rs") && lines > FILE_LINES_MAX {
            found.push(format!("{}: {lines} lines", path.display()));
        }
        for (line, number) in text.lines().zip(1..) {
            // A snapshot in a test is as long as what it shows.
            let shown = is_test(&path) && !line.trim_start().starts_with("//");
            if line.chars().count() > COLUMNS_MAX && !shown {
                found.push(format!("{}:{number}: a long line", path.display()));
            }
        }
    }
    assert_none("too long", &found);
}

#[test]
fn nothing_is_left_for_later_and_no_machine_is_named() {
    // Put together here, so that this file does not find itself.
    let markers = [["FIX", "ME"].concat(), ["TO", "DO"].concat()];
    let places = ["work", "root", "home"].map(|place| format!("/{place}/"));
    let mut found = Vec::new();
    for path in files_in("") {
        let Some(text) = text(&path) else { continue };
        for (line, number) in text.lines().zip(1..) {
            let is_marked = markers.iter().any(|marker| line.contains(marker.as_str()));
            // Behind a name it is a part of another path; made-up homes stand in unit tests.
            let is_placed = places.iter().flat_map(|place| line.match_indices(place.as_str())).any(
                |(at, _)| {
                    !line[..at].ends_with(|c: char| c.is_alphanumeric() || "._-}~".contains(c))
                },
            );
            if is_marked || is_placed && !is_unit_test(&path) {
                found.push(format!("{}:{number}: {}", path.display(), line.trim()));
            }
        }
    }
    assert_none("unfinished, or a path of one machine", &found);
}

#[test]
fn tests_wait_for_states_not_for_time() {
    let own = sources().into_iter().filter(|(path, _)| is_unit_test(path));
    let mut found = Vec::new();
    let calls = ["sleep", "sleep_until"].map(|name| format!("{name}("));
    for (path, source) in own.chain(rust_files("tests")) {
        for (line, number) in without_comments(&source).lines().zip(1..) {
            // The server's own pause is a statement under test.
            let line = line.replace("pg_sleep", "");
            if calls.iter().any(|call| line.contains(call.as_str())) {
                found.push(format!("{}:{number}", path.display()));
            }
        }
    }
    assert_none("a pause in a test (await_that waits for a state)", &found);
}
