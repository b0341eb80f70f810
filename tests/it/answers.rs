//! The pages in `docs/bad-input`: each bad input with the answer of Postrider, word for word.
//!
//! A test that gives a bad input calls [`answer`] with the answer. The row of the page must be equal to the answer,
//! after names and numbers of the run are replaced by stable ones; otherwise the test fails. With `POSTRIDER_BLESS=1`
//! the test writes the row instead. `list` has the inputs, their order and their pages. `docs/bad-input.md` is the
//! index.

mod list;
mod stable;

use crate::halted::Halted;
use crate::pipeline::Pipeline;
use list::{Group, LIST};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Output;
use std::sync::{Mutex, PoisonError};

pub(crate) use stable::stable;

/// One test at a time writes the pages.
static PAGES: Mutex<()> = Mutex::new(());

/// What came back.
#[derive(Clone, Debug, Default)]
pub(crate) struct Answer {
    /// The message, with its code in front of it; lines parted by line feeds.
    says: String,
    /// What it means for the data, where that is said.
    means: String,
    /// What fixes it, as the answer says.
    fixes: String,
    /// The exit code, or the state in which it goes on.
    ends: String,
}

impl Answer {
    /// Nothing to say: what was committed is published.
    pub(crate) fn published(how: &str) -> Self {
        Self { says: how.to_owned(), ends: "goes on".to_owned(), ..Self::default() }
    }

    /// It waits: state, reason and hint of the only pipeline of `/status`.
    pub(crate) fn waits(status: &serde_json::Value) -> Self {
        let pipeline = &status["pipelines"][0];
        let field = |name: &str| pipeline[name].as_str().unwrap_or_default().to_owned();
        assert!(!field("reason").is_empty(), "a state without a reason: {pipeline}");
        Self {
            says: field("reason"),
            fixes: field("hint"),
            ends: format!("waits: `{}`", field("state")),
            ..Self::default()
        }
    }

    /// A line of a log in JSON that holds `words`; it goes on.
    pub(crate) fn logged(log: &str, words: &str) -> Self {
        let lines =
            log.lines().filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
        let mut found = lines.filter(|line| line.to_string().contains(words));
        let line = found.next().unwrap_or_else(|| panic!("no line with {words:?}:\n{log}"));
        let field = |name: &str| line[name].as_str().unwrap_or_default().to_owned();
        let said = [field("message"), field("reason"), field("error")];
        let [message, ..] = &said;
        let is_more =
            |text: &&str| !text.is_empty() && (*text == message || !message.contains(text));
        let said: Vec<&str> = said.iter().map(String::as_str).filter(is_more).collect();
        Self {
            says: said.join(": "),
            fixes: field("hint"),
            ends: "goes on".to_owned(),
            ..Self::default()
        }
    }
}

impl Answer {
    /// What is said, what it means, and what fixes it.
    pub(crate) fn said(says: &str, means: &str, fixes: &str) -> Self {
        let [says, means, fixes] = [says, means, fixes].map(str::to_owned);
        Self { says, means, fixes, ends: "goes on".to_owned() }
    }

    /// The message has these words.
    pub(crate) fn assert_says(&self, words: &[&str]) {
        for word in words {
            assert!(self.says.contains(word), "no {word:?} in {self:#?}");
        }
    }

    /// What becomes of the process, where the constructor can't know it.
    pub(crate) fn then(mut self, ends: &str) -> Self {
        ends.clone_into(&mut self.ends);
        self
    }
}

impl From<&Halted> for Answer {
    fn from(halted: &Halted) -> Self {
        Self {
            says: format!("{} {}", halted.code, halted.message),
            means: halted.meaning.clone(),
            fixes: halted.hint.clone(),
            ends: halted.ended.code.map_or_else(|| "a signal".to_owned(), |code| code.to_string()),
        }
    }
}

/// A command that ended: what it wrote on standard error, without the log.
impl From<&Output> for Answer {
    fn from(output: &Output) -> Self {
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        let (mut says, mut means, mut fixes) = (Vec::new(), String::new(), String::new());
        for line in text.lines() {
            if let Some(meaning) = line.strip_prefix("  meaning: ") {
                meaning.clone_into(&mut means);
            } else if let Some(hint) = line.strip_prefix("  hint: ") {
                hint.clone_into(&mut fixes);
            } else if !line.starts_with("postrider: 1 mistake in ") {
                says.push(line);
            }
        }
        let code = output.status.code().expect("an exit code");
        Self { says: says.join("\n"), means, fixes, ends: code.to_string() }
    }
}

/// Compares the answer with the page's row, or writes the row with `POSTRIDER_BLESS=1`. `input` is one of the list.
pub(crate) fn answer(input: &str, pipeline: &Pipeline, answer: impl Into<Answer>) {
    let text = |text: &str| stable(Some(pipeline), text);
    hold(input, answer.into(), text);
}

/// The same where there is no pipeline: of a file, or of a command.
pub(crate) fn answer_alone(input: &str, answer: impl Into<Answer>) {
    hold(input, answer.into(), |text| stable(None, text));
}

fn hold(input: &str, answer: Answer, stable: impl Fn(&str) -> String) {
    let group = LIST.iter().find(|group| group.inputs.contains(&input));
    let group = group.unwrap_or_else(|| panic!("{input:?} is not in tests/it/answers/list.rs"));
    let says = stable(&answer.says);
    // Words of the test, not of the program.
    let own = says.starts_with("published") && answer.ends == "goes on";
    let mut cells = vec![if own { says } else { spans(&says) }];
    let fixes = [&answer.means, &answer.fixes].map(|text| spans(&stable(text)));
    cells.push(
        fixes.iter().filter(|text| !text.is_empty()).cloned().collect::<Vec<_>>().join("<br>→ "),
    );
    cells.push(answer.ends);
    let row = format!("| {input} | {} | ", cells.join(" | "));
    if std::env::var_os("POSTRIDER_BLESS").is_some() {
        return bless(input, &row);
    }
    let page = fs::read_to_string(path(&group.path())).unwrap_or_default();
    let start = format!("| {input} | ");
    let held = page.lines().find(|line| line.starts_with(&start)).unwrap_or("(no row)");
    assert!(
        held.starts_with(&row),
        "{} has\n  {held}\nand the answer is now\n  {row}\n\
         if that is right: POSTRIDER_BLESS=1 scripts/test it NAME",
        group.path()
    );
}

/// Each line as code, which Markdown leaves as it is.
fn spans(text: &str) -> String {
    let span = |line: &str| {
        let line = line.replace('|', "\\|");
        if line.contains('`') { format!("`` {line} ``") } else { format!("`{line}`") }
    };
    text.lines().map(span).collect::<Vec<_>>().join("<br>")
}

/// Where a page of the repository is.
fn path(page: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(page)
}

impl Group {
    /// The page of the group, relative to the repository.
    fn path(&self) -> String {
        format!("docs/bad-input/{}.md", self.page)
    }
}

/// Writes this row, and the pages again with all rows.
fn bless(input: &str, row: &str) {
    let _one = PAGES.lock().unwrap_or_else(PoisonError::into_inner);
    let mut rows = all_rows();
    if rows.get(input).is_some_and(|held| held.starts_with(row)) {
        return;
    }
    // The runner names each test's thread after it, but for one that runs alone.
    let thread = std::thread::current();
    let mut name = thread.name().unwrap_or_default().rsplitn(3, "::");
    let (Some(test), Some(module)) = (name.next(), name.next()) else {
        panic!("{input}: not on a test's own thread; leave out --test-threads 1");
    };
    rows.insert(input.to_owned(), format!("{row}`{module}::{test}` |"));
    write(&render(&rows));
}

fn write(pages: &[(String, String)]) {
    fs::create_dir_all(path("docs/bad-input")).expect("docs/bad-input");
    for (page, text) in pages {
        fs::write(path(page), text).expect("a page");
    }
}

/// The rows of all pages, by their first cell.
fn all_rows() -> BTreeMap<String, String> {
    let page = |group: &Group| fs::read_to_string(path(&group.path())).unwrap_or_default();
    LIST.iter().flat_map(|group| rows_of(&page(group))).collect()
}

/// The rows of a page, by their first cell.
fn rows_of(page: &str) -> BTreeMap<String, String> {
    let row = |line: &str| {
        let (input, _) = line.strip_prefix("| ")?.split_once(" | ")?;
        Some((input.to_owned(), line.to_owned()))
    };
    page.lines().filter_map(row).collect()
}

/// The index and the pages, each with its path and its text.
fn render(rows: &BTreeMap<String, String>) -> Vec<(String, String)> {
    const TABLE: &str = "| input | says | means → fix | exit | test |\n|---|---|---|---|---|\n";
    let index = LIST.iter().map(|Group { name, page, inputs, .. }| {
        format!("| [{name}](bad-input/{page}.md) | {} |\n", inputs.len())
    });
    let index = list::HEAD.replace("INDEX\n", &index.collect::<String>());
    let pages = LIST.iter().map(|group| {
        let Group { name, about, inputs, left_out, .. } = group;
        let rows = inputs.iter().filter_map(|input| rows.get(*input));
        let rows: String = rows.flat_map(|row| [row.as_str(), "\n"]).collect();
        let left_out: Vec<String> =
            left_out.iter().map(|(input, why)| format!("- {input}: {why}\n")).collect();
        let not_run = if left_out.is_empty() { "" } else { "\nNot run:\n\n" };
        let text = format!(
            "# Bad input: {name}\n\n{}\n{about}\n\n{TABLE}{rows}{not_run}{}",
            list::PAGE_HEAD,
            left_out.concat()
        );
        (group.path(), text)
    });
    std::iter::once(("docs/bad-input.md".to_owned(), index)).chain(pages).collect()
}

/// The sources of the tests of a module, which is a file or a folder.
fn sources(dir: &Path, module: &str, text: &mut String) {
    for entry in fs::read_dir(dir).expect("tests") {
        let path = entry.expect("an entry").path();
        let is_it = path.file_stem().is_some_and(|stem| stem == module);
        if path.is_dir() {
            sources(&path, module, text);
        } else if is_it {
            *text += &fs::read_to_string(path).expect("a source");
        }
    }
}

/// Every input has a row, the test that the row names gives this input, and the pages were not edited by hand.
#[test]
fn the_pages_are_what_the_tests_wrote() {
    let rows = all_rows();
    let inputs: Vec<&str> = LIST.iter().flat_map(|group| group.inputs.iter().copied()).collect();
    let missing: Vec<_> = inputs.iter().filter(|input| !rows.contains_key(**input)).collect();
    assert!(missing.is_empty(), "POSTRIDER_BLESS=1 scripts/test it NAME writes them: {missing:#?}");
    let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it");
    for input in inputs {
        let test = rows[input].rsplit('`').nth(1).and_then(|test| test.split_once("::"));
        let (module, name) = test.unwrap_or_else(|| panic!("no test in {}", rows[input]));
        let mut source = String::new();
        sources(&tests, module, &mut source);
        for part in [format!("fn {name}("), format!("\"{input}\"")] {
            assert!(
                source.contains(&part),
                "{input}: {module} has no {part}: delete the row and write it again"
            );
        }
    }
    let pages = render(&rows);
    if std::env::var_os("POSTRIDER_BLESS").is_some() {
        write(&pages);
    }
    for (page, text) in &pages {
        let held = fs::read_to_string(path(page)).unwrap_or_default();
        assert_eq!(&held, text, "{page} was changed by hand");
    }
    let files = fs::read_dir(path("docs/bad-input")).expect("docs/bad-input").count();
    assert_eq!(files + 1, pages.len(), "docs/bad-input has a page that no group has");
}
