//! Words that texts for users do not have: images of our own for things that have a usual name.

use super::{assert_none, files_in, has_extension, is_unit_test, sources, text};
use std::path::{Path, PathBuf};

/// Retired words, each with the usual word. Neither documents nor string literals of the sources have them.
const RETIRED: [(&str, &str); 9] = [
    ("anew", "again, recreated"),
    ("unsaid", "suppressed"),
    ("letter", "dead letter, character"),
    ("letters", "dead letters, characters"),
    ("wish", "request"),
    ("shelf", "record buffer"),
    ("desk", "session"),
    ("bite", "fail"),
    ("bites", "fails"),
];

/// Words that string literals of the sources do not have besides [`RETIRED`]; documents may have them.
const RETIRED_IN_SOURCES: [(&str, &str); 18] = [
    ("tell", "log, report, distinguish"),
    ("tells", "logs, reports, shows"),
    ("told", "logged, reported"),
    ("telling", "logging, reporting"),
    ("mend", "fix"),
    ("mends", "fixes"),
    ("mended", "fixed"),
    ("let go", "drop"),
    ("lets go", "drops"),
    ("holds back", "retains"),
    ("stands", "exists"),
    ("whoever", "a user who"),
    ("somebody", "a user, another process"),
    ("asleep", "idle"),
    ("hushed", "paused"),
    ("farewell", "graceful close"),
    ("patience", "commit watchdog"),
    ("knocks", "connects"),
];

/// The words of `table` in a text, in lower case. A dead letter is the field's own term. A word that is a part of a
/// name, such as a test's, is not read as a word.
fn words_in<'t>(
    table: &'t [(&'static str, &'static str)],
    text: &str,
) -> impl Iterator<Item = &'t (&'static str, &'static str)> {
    let text = text.to_lowercase();
    table.iter().filter(move |(word, _)| {
        text.match_indices(*word).any(|(at, _)| {
            let (before, after) = (&text[..at], &text[at + word.len()..]);
            let part = |c: char| c.is_alphanumeric() || "_:`\\{}".contains(c);
            let whole = !before.ends_with(part) && !after.starts_with(|c| part(c) && c != ':');
            let dead = before.ends_with("dead ") || before.ends_with("dead-");
            whole && !(dead && word.starts_with("letter"))
        })
    })
}

fn retired_in(text: &str) -> impl Iterator<Item = &'static str> {
    words_in(&RETIRED, text).map(|(word, _)| *word)
}

/// The string literals of a source file outside its comments, with the line on which each begins.
fn literals(source: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    let mut inside: Option<(usize, String)> = None;
    for (line, number) in source.lines().zip(1..) {
        if inside.is_none() && line.trim_start().starts_with("//") {
            continue;
        }
        let mut chars = line.chars().peekable();
        while let Some(c) = chars.next() {
            match (&mut inside, c) {
                (Some((_, text)), '\\') => text.extend(chars.next()),
                (Some(_), '"') => found.extend(inside.take()),
                (Some((_, text)), c) => text.push(c),
                // A quote in a character literal does not begin a string.
                (None, '\'') if chars.peek() == Some(&'"') => {
                    chars.next();
                }
                (None, '"') => inside = Some((number, String::new())),
                (None, '/') if chars.peek() == Some(&'/') => break,
                (None, _) => {}
            }
        }
        if let Some((_, text)) = &mut inside {
            text.push(' ');
        }
    }
    found
}

fn is_read_by_users(path: &Path) -> bool {
    let pages = path.starts_with("docs") && has_extension(path, "md");
    let files = path.starts_with("config") || path.starts_with("sql");
    let others = ["README.md", "CHANGELOG.md", "docker-compose.yml", "Dockerfile"].map(Path::new);
    pages || files || others.contains(&path)
}

#[test]
fn literals_are_found_and_retired_words_in_them() {
    let source =
        "// \"wish\"\nlet a = '\"'; f(\"made \\\n  anew\", \"x\"); // \"desk\"\n\"dead letter\"";
    let found = literals(source);
    assert_eq!(found.iter().map(|(line, _)| *line).collect::<Vec<_>>(), [2, 3, 4]);
    let words: Vec<&str> = found.iter().flat_map(|(_, text)| retired_in(text)).collect();
    assert_eq!(words, ["anew"]);
    assert_eq!(retired_in("A letter, and dead letters; renew; no desktop").count(), 1);
    assert_eq!(retired_in("`stuck::letters_wait` is a test").count(), 0);
    assert_eq!(words_in(&RETIRED_IN_SOURCES, "told: mended").count(), 2);
    assert_eq!(words_in(&RETIRED_IN_SOURCES, "a standby; untold; amend it").count(), 0);
}

#[test]
fn users_read_no_retired_words() {
    let mut found = Vec::new();
    let mut note = |path: &PathBuf, line: usize, (word, usual): &(&str, &str)| {
        found.push(format!("{}:{line}: {word} (usual: {usual})", path.display()));
    };
    for path in files_in("").into_iter().filter(|path| is_read_by_users(path)) {
        let Some(text) = text(&path) else { continue };
        for (line, number) in text.lines().zip(1..) {
            words_in(&RETIRED, line).for_each(|word| note(&path, number, word));
        }
    }
    let shown =
        |path: &Path| !is_unit_test(path) && !path.starts_with("crates/postrider-relay/src/sim");
    for (path, source) in sources().into_iter().filter(|(path, _)| shown(path)) {
        let own = source.split("\nmod tests {").next().unwrap_or_default();
        for (line, text) in literals(own) {
            words_in(&RETIRED, &text).for_each(|word| note(&path, line, word));
            words_in(&RETIRED_IN_SOURCES, &text).for_each(|word| note(&path, line, word));
        }
    }
    assert_none("retired words", &found);
}

/// A statement is sent as it is, and a database of another encoding than UTF-8 refuses what its encoding lacks.
#[test]
fn statements_are_ascii() {
    let statements = files_in("sql").into_iter().filter(|path| has_extension(path, "sql"));
    let found: Vec<String> = statements
        .flat_map(|path| {
            let sql = text(&path).expect("SQL is UTF-8");
            let lines = sql.lines().zip(1..).filter(|(line, _)| !line.is_ascii());
            lines.map(|(_, line)| format!("{}:{line}", path.display())).collect::<Vec<_>>()
        })
        .collect();
    assert_none("lines of SQL with other characters than ASCII", &found);
}
