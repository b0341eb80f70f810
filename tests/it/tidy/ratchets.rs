//! What the code is to become, as lists of what is not so yet. Each list may only shrink.
//!
//! `ratchets.txt` has the lists. A new entry fails the test. An entry that is no longer true fails it too, until
//! `POSTRIDER_BLESS=1 cargo test --test it tidy::ratchets` has taken the entry out of the file.

use super::{is_unit_test, root, sources, without_comments, word_at_start};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

const FILE: &str = "tests/it/tidy/ratchets.txt";

/// A struct with more fields has more than one owner's state.
const FIELDS_MAX: usize = 12;

const TITLES: [&str; 5] = [
    "inherent impls of a type in more than one file",
    "structs of more than 12 fields",
    "files in an import circle",
    "type names that occur twice in a crate",
    "pub(in …)",
];

/// A source file without its tests and comments.
struct Source {
    path: PathBuf,
    /// `crates/postrider-relay`, or `.` for the product.
    package: String,
    /// The module of the file: `["relay", "parking"]`; empty for the root of the crate.
    module: Vec<String>,
    code: String,
}

fn read() -> Vec<Source> {
    let own = sources().into_iter().filter(|(path, _)| !is_unit_test(path));
    let source = own.map(|(path, text)| {
        let parts: Vec<&str> = path.iter().map(|part| part.to_str().unwrap()).collect();
        let (package, below) = match parts.as_slice() {
            ["crates", name, "src", below @ ..] => (format!("crates/{name}"), below),
            ["src", below @ ..] => (".".to_owned(), below),
            _ => (String::new(), [].as_slice()),
        };
        let mut module: Vec<String> =
            below.iter().map(|part| part.trim_end_matches(".rs").to_owned()).collect();
        if matches!(module.last().map(String::as_str), Some("mod" | "lib" | "main")) {
            module.pop();
        }
        let code = without_comments(&text);
        let code = without_tests(&code);
        Source { path, package, module, code }
    });
    source.filter(|source| !source.package.is_empty()).collect()
}

/// The code without the module of unit tests that ends a file, and without the declaration of one in another file.
fn without_tests(code: &str) -> String {
    let mut parts = code.split("\n#[cfg(test)]\nmod ");
    let mut kept = parts.next().unwrap().to_owned();
    for part in parts {
        let (declared, rest) = part.split_once('\n').unwrap_or((part, ""));
        if !declared.ends_with(';') {
            break;
        }
        kept.push('\n');
        kept.push_str(rest);
    }
    kept
}

/// The type of `impl Type {` and `impl<…> Type<…> {`; none where a trait is implemented.
fn inherent(line: &str) -> Option<&str> {
    let rest = line.strip_prefix("impl")?;
    let rest = if rest.starts_with('<') {
        let mut depth = 0;
        let end = rest.find(|c| {
            depth += i32::from(c == '<') - i32::from(c == '>');
            depth == 0
        })?;
        &rest[end + 1..]
    } else {
        rest
    };
    let name = rest.trim_start();
    (!rest.contains(" for ") && name.starts_with(char::is_uppercase)).then(|| word_at_start(name))
}

/// The name that a line at the left margin defines, of any of these keywords.
fn defined<'a>(line: &'a str, keywords: &[&str]) -> Option<&'a str> {
    let line = match line.strip_prefix("pub") {
        Some(rest) if rest.starts_with('(') => rest.split_once(") ")?.1,
        Some(rest) => rest.trim_start(),
        None => line,
    };
    let (keyword, rest) = line.split_once(' ')?;
    keywords.contains(&keyword).then(|| word_at_start(rest))
}

fn inherent_in_many(all: &[Source]) -> BTreeSet<String> {
    let mut places: BTreeMap<(&str, &str), BTreeSet<&Path>> = BTreeMap::new();
    for source in all {
        for name in source.code.lines().filter_map(inherent) {
            places.entry((&source.package, name)).or_default().insert(&source.path);
        }
    }
    // Two types of one name are another list's business: each has its own definition.
    let definitions = names(all);
    let many = places
        .into_iter()
        .filter(|(key, files)| files.len() > definitions.get(key).map_or(1, BTreeSet::len));
    many.map(|((package, name), files)| format!("{package} {name}: {} files", files.len()))
        .collect()
}

fn names(all: &[Source]) -> BTreeMap<(&str, &str), BTreeSet<&Path>> {
    let mut places: BTreeMap<(&str, &str), BTreeSet<&Path>> = BTreeMap::new();
    for source in all {
        let names = source.code.lines();
        for name in names.filter_map(|line| defined(line, &["struct", "enum", "trait", "type"])) {
            places.entry((&source.package, name)).or_default().insert(&source.path);
        }
    }
    places
}

fn twice(all: &[Source]) -> BTreeSet<String> {
    let many = names(all).into_iter().filter(|(_, files)| files.len() > 1);
    many.map(|((package, name), files)| {
        let files: Vec<String> = files.iter().map(|file| file.display().to_string()).collect();
        format!("{package} {name}: {} files ({})", files.len(), files.join(", "))
    })
    .collect()
}

fn wide(all: &[Source]) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for source in all {
        let mut open: Option<(&str, usize)> = None;
        for line in source.code.lines() {
            if let Some(name) = defined(line, &["struct"]).filter(|_| line.ends_with('{')) {
                open = Some((name, 0));
            } else if line == "}" {
                if let Some((name, fields)) = open.take().filter(|(_, fields)| *fields > FIELDS_MAX)
                {
                    found.insert(format!("{} {name}: {fields}", source.path.display()));
                }
            } else if let Some((_, fields)) = &mut open {
                let indented = line.starts_with("    ") && !line.starts_with("     ");
                let field = line.trim_start();
                *fields += usize::from(indented && field.contains(": ") && !field.starts_with('#'));
            }
        }
    }
    found
}

fn narrow_pub(all: &[Source]) -> BTreeSet<String> {
    let uses = |source: &Source| source.code.matches("pub(in ").count();
    let found = all.iter().filter(|source| uses(source) > 0);
    found.map(|source| format!("{}: {}", source.path.display(), uses(source))).collect()
}

/// The paths that a file imports at its left margin, each as segments from the root of the crate. A re-export
/// (`pub use`) makes a name, and is no dependency.
fn imports(source: &Source, known: &BTreeSet<Vec<String>>) -> BTreeSet<Vec<String>> {
    let mut found = BTreeSet::new();
    let mut code = source.code.as_str();
    while let Some(at) = code.find("\nuse ") {
        code = &code[at + 5..];
        let Some(end) = code.find(';') else { break };
        let tree: String = code[..end].split_whitespace().collect::<Vec<_>>().join(" ");
        expand(&mut Vec::new(), &tree, &mut |path| {
            let mut from: Vec<String> = match path.first().map(String::as_str) {
                Some("crate") => Vec::new(),
                Some("super") => source.module[..source.module.len().saturating_sub(1)].to_vec(),
                Some("self") => source.module.clone(),
                Some(child) => {
                    let mut own = source.module.clone();
                    own.push(child.to_owned());
                    if !known.contains(&own) {
                        return;
                    }
                    own
                }
                None => return,
            };
            from.extend(path.iter().skip(1).cloned());
            // The module is the longest part of the path that is a file.
            while !known.contains(&from) {
                if from.pop().is_none() {
                    return;
                }
            }
            if from != source.module {
                found.insert(from);
            }
        });
    }
    found
}

/// Every path of a `use` tree.
fn expand(prefix: &mut Vec<String>, tree: &str, take: &mut dyn FnMut(&[String])) {
    let depth_at_start = prefix.len();
    let (head, group) = match tree.split_once('{') {
        Some((head, group)) => (head, Some(group.trim_end().trim_end_matches('}'))),
        None => (tree, None),
    };
    let segments = head.split("::").map(|segment| word_at_start(segment.trim()));
    prefix.extend(segments.filter(|segment| !segment.is_empty()).map(str::to_owned));
    match group {
        None => take(prefix),
        Some(group) => {
            let (mut depth, mut start) = (0, 0);
            for (at, c) in group.char_indices() {
                match c {
                    '{' => depth += 1,
                    '}' => depth -= 1,
                    ',' if depth == 0 => {
                        expand(prefix, &group[start..at], take);
                        start = at + 1;
                    }
                    _ => {}
                }
            }
            if !group[start..].trim().is_empty() {
                expand(prefix, &group[start..], take);
            }
        }
    }
    prefix.truncate(depth_at_start);
}

/// Files from which an import leads back to themselves. A root of a crate is left out: it only lists its modules.
fn circles(all: &[Source]) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let packages: BTreeSet<&str> = all.iter().map(|source| source.package.as_str()).collect();
    for package in packages {
        let own: Vec<&Source> = all
            .iter()
            .filter(|source| source.package == package && !source.module.is_empty())
            .collect();
        let known: BTreeSet<Vec<String>> = own.iter().map(|source| source.module.clone()).collect();
        let edges: BTreeMap<&[String], BTreeSet<Vec<String>>> =
            own.iter().map(|source| (source.module.as_slice(), imports(source, &known))).collect();
        for source in &own {
            let mut seen: BTreeSet<&[String]> = BTreeSet::new();
            let mut next: Vec<&[String]> = vec![&source.module];
            while let Some(module) = next.pop() {
                for to in edges.get(module).into_iter().flatten() {
                    if seen.insert(to) {
                        next.push(to);
                    }
                }
            }
            if seen.contains(source.module.as_slice()) {
                found.insert(source.path.display().to_string());
            }
        }
    }
    found
}

fn lists(all: &[Source]) -> [BTreeSet<String>; 5] {
    [inherent_in_many(all), wide(all), circles(all), twice(all), narrow_pub(all)]
}

fn written(lists: &[BTreeSet<String>; 5]) -> String {
    let mut text = String::new();
    for (title, list) in TITLES.iter().zip(lists) {
        writeln!(text, "# {title}: {}", list.len()).unwrap();
        for entry in list {
            writeln!(text, "{entry}").unwrap();
        }
        text.push('\n');
    }
    text
}

fn recorded(text: &str) -> [BTreeSet<String>; 5] {
    TITLES.map(|title| {
        let begins = format!("# {title}: ");
        let lines = text.lines().skip_while(|line| !line.starts_with(&begins)).skip(1);
        lines.take_while(|line| !line.is_empty()).map(str::to_owned).collect()
    })
}

/// The name of an entry without its figures: `Pipeline: 13 files` that becomes `Pipeline: 12 files` has shrunk.
fn grown(now: &BTreeSet<String>, before: &BTreeSet<String>) -> Vec<String> {
    let parts = |entry: &str| {
        let (name, figure) = entry.split_once(": ").unwrap_or((entry, ""));
        let figure = word_at_start(figure).parse::<usize>().unwrap_or(0);
        (name.to_owned(), figure)
    };
    let before: BTreeMap<String, usize> = before.iter().map(|entry| parts(entry)).collect();
    let new = now.iter().filter(|entry| {
        let (name, figure) = parts(entry);
        before.get(&name).is_none_or(|known| figure > *known)
    });
    new.cloned().collect()
}

#[test]
fn what_is_not_so_yet_only_shrinks() {
    let now = lists(&read());
    let path = root().join(FILE);
    let text = fs::read_to_string(&path).unwrap_or_default();
    let before = recorded(&text);
    let mut new = Vec::new();
    for ((title, now), before) in TITLES.iter().zip(&now).zip(&before) {
        new.extend(grown(now, before).into_iter().map(|entry| format!("{title}: {entry}")));
    }
    assert!(text.is_empty() || new.is_empty(), "new entries:\n  {}", new.join("\n  "));
    let now = written(&now);
    if std::env::var_os("POSTRIDER_BLESS").is_some() {
        fs::write(&path, &now).unwrap();
    }
    assert!(
        now == fs::read_to_string(&path).unwrap_or_default(),
        "a list has shrunk: POSTRIDER_BLESS=1 cargo test --test it tidy::ratchets writes {FILE} again"
    );
}

#[test]
fn lists_see_what_they_are_about() {
    let source = |path: &str, module: &[&str], code: &str| Source {
        path: path.into(),
        package: ".".to_owned(),
        module: module.iter().map(|part| (*part).to_owned()).collect(),
        code: format!("\n{code}"),
    };
    let fields = "    pub field: u8,\n".repeat(13);
    let all = [
        source(
            "src/a.rs",
            &["a"],
            "use crate::b::{B, c::C};\npub struct A<'x> {\n}\nimpl<'x> A<'x> {\n}\nimpl Drop for A<'_> {\n}",
        ),
        source("src/b.rs", &["b"], &format!("mod c;\npub(crate) struct Wide {{\n{fields}}}\n")),
        source(
            "src/b/c.rs",
            &["b", "c"],
            "use crate::a::A;\nimpl A<'_> {\n    pub(in crate::b) fn f() {}\n}\nenum Wide {\n}",
        ),
        source("src/d.rs", &["d"], "use crate::a::A;\npub use crate::d::x;"),
    ];
    let found = lists(&all).map(|list| list.into_iter().collect::<Vec<_>>());
    assert_eq!(found[0], [". A: 2 files"]);
    assert_eq!(found[1], ["src/b.rs Wide: 13"]);
    assert_eq!(found[2], ["src/a.rs", "src/b/c.rs"]);
    assert_eq!(found[3], [". Wide: 2 files (src/b/c.rs, src/b.rs)"]);
    assert_eq!(found[4], ["src/b/c.rs: 1"]);
    let list = |entry: &str| BTreeSet::from([entry.to_owned()]);
    assert!(grown(&list("A: 2 files"), &list("A: 3 files")).is_empty());
    assert_eq!(grown(&list("A: 4 files"), &list("A: 3 files")), ["A: 4 files"]);
    assert_eq!(grown(&list("src/a.rs"), &BTreeSet::new()), ["src/a.rs"]);
}
