//! Every command, statement and setting that the documents show, run in the order a reader would.
//!
//! A document is followed from its first block to its last in a world of its own, with the names that documents use
//! (`db.internal`, `k1:9092` …) standing for real servers. What can't be run here is in `answers`, with what holds it
//! instead; a block without an answer fails.

mod answers;
pub(crate) mod blocks;
mod compose;
mod world;

use answers::ANSWERS;
use blocks::{commands, root};
use clap::Parser;
use postrider::cli::Args;
use std::collections::BTreeSet;
use std::fs;
use world::World;

/// Pages that begin otherwise than set up and streaming. The pages of [`OPERATIONS`] are such pages too.
const OWN_TESTS: [&str; 5] = [
    "README.md",
    "docs/getting-started.md",
    "docs/layouts.md",
    "docs/polling.md",
    "docs/security.md",
];

/// The pages of `docs/operations`, in the order in which an operator needs them: one world is set up, run, and removed.
const OPERATIONS: [&str; 13] = [
    "docs/operations/running.md",
    "docs/operations/logs.md",
    "docs/operations/database.md",
    "docs/operations/failover.md",
    "docs/operations/check.md",
    "docs/operations/find.md",
    "docs/operations/tail.md",
    "docs/operations/parked-events.md",
    "docs/operations/retention.md",
    "docs/operations/upgrades.md",
    "docs/operations/skipping.md",
    "docs/operations/halts.md",
    "docs/operations/removing.md",
];

/// The folder of the SQL toolkit: each of its pages has a test of its own, since they begin with logs and groups.
const SQL: &str = "docs/sql/";

/// Pages whose blocks are excerpts of files: `tidy::names` holds them against the files.
const EXCERPTS: [&str; 1] = ["docs/embedding.md"];

async fn follow(document: &str, world: World) {
    follow_all(document, &[document], world).await;
}

async fn follow_all(name: &str, documents: &[&str], mut world: World) {
    let blocks: Vec<_> = documents.iter().flat_map(|document| blocks::of(document)).collect();
    assert!(!blocks.is_empty(), "{name} shows nothing");
    for block in &blocks {
        world.follow(block).await;
    }
    world.end(name).await;
}

#[tokio::test]
async fn readme_runs() {
    follow("README.md", World::bare().await).await;
}

#[tokio::test]
async fn getting_started_runs() {
    follow("docs/getting-started.md", World::bare().await).await;
}

#[tokio::test]
async fn layouts_page_runs() {
    let world = World::bare().await;
    world.a_role_that_reads_everything().await;
    follow("docs/layouts.md", world).await;
}

#[tokio::test]
async fn security_page_runs() {
    let mut world = World::bare().await;
    world.configured().await;
    follow("docs/security.md", world).await;
}

#[tokio::test]
async fn sql_install_page_runs() {
    follow("docs/sql/install.md", World::set_up().await).await;
}

#[tokio::test]
async fn sql_inbox_run_page_runs() {
    let world = World::bare().await;
    world.a_worker_and_topics(&["orders", "payments"]).await;
    follow("docs/sql/inbox-run.md", world).await;
}

#[tokio::test]
async fn operations_page_runs() {
    follow_all("docs/operations", &OPERATIONS, World::set_up().await).await;
}

#[tokio::test]
async fn polling_page_runs() {
    let mut world = World::bare().await;
    world.a_role_that_reads_everything().await;
    world.polled().await;
    follow("docs/polling.md", world).await;
}

/// The rest: pages to come too.
#[tokio::test]
async fn every_other_page_runs() {
    for document in documents() {
        let own = OWN_TESTS.contains(&&*document)
            || OPERATIONS.contains(&&*document)
            || document.starts_with(SQL);
        let excerpts = EXCERPTS.contains(&&*document);
        if own || excerpts || blocks::of(&document).is_empty() {
            continue;
        }
        let mut world = World::set_up().await;
        world.running().await;
        follow(&document, world).await;
    }
}

/// The pages of one folder.
fn pages_in(folder: &str) -> Vec<String> {
    let pages = fs::read_dir(root().join(folder)).expect("a folder");
    let paths = pages.map(|page| page.expect("a page").path());
    let pages = paths.filter(|path| path.extension().is_some_and(|known| known == "md"));
    pages.map(|path| path.strip_prefix(root()).expect("below").display().to_string()).collect()
}

/// The pages whose commands are run. Those of `docs/decisions` and `docs/chaos` show none.
fn documents() -> Vec<String> {
    let folders = [
        "docs",
        "docs/operations",
        "docs/guarantees",
        "docs/bad-input",
        "docs/sql",
        "docs/formats",
    ];
    let pages = folders.into_iter().flat_map(pages_in);
    let mut all: Vec<String> = pages.chain(["README.md".to_owned()]).collect();
    all.sort();
    all
}

#[test]
fn every_operations_page_is_followed() {
    let mut pages = pages_in("docs/operations");
    pages.sort();
    let mut followed = OPERATIONS.to_vec();
    followed.sort_unstable();
    assert_eq!(pages, followed);
}

/// The words of a command, those in double quotes whole.
pub(crate) fn words(command: &str) -> Vec<String> {
    let parts = command.split('"').enumerate();
    let words = parts.flat_map(|(number, part)| {
        let whole = [part.to_owned()];
        let split = part.split_whitespace().map(str::to_owned);
        if number % 2 == 1 { whole.to_vec() } else { split.collect() }
    });
    words.collect()
}

/// What is not run is still what can be typed: the scripts are there, and their options are the command's.
#[test]
fn what_is_not_run_is_parsed_and_every_answer_is_still_needed() {
    let mut used = BTreeSet::new();
    for document in documents() {
        for block in blocks::of(&document) {
            used.extend(answers::to(&block.text).map(|answer| answer.matches));
            for command in commands(&block.text) {
                let Some(answer) = answers::to(&command).filter(|_| block.language == "sh") else {
                    continue;
                };
                used.insert(answer.matches);
                let demo = command.starts_with("scripts/demo");
                assert!(!demo || root().join("scripts/demo").is_file());
                let typed = command.replacen("scripts/demo", "postrider demo", 1);
                if typed.starts_with("postrider ") {
                    let parsed = Args::try_parse_from(words(&typed));
                    parsed.unwrap_or_else(|error| panic!("{}: {error}", block.place));
                }
                if typed.starts_with("scripts/") {
                    assert!(root().join(words(&typed)[0].as_str()).is_file());
                }
            }
        }
    }
    let stale: Vec<&str> =
        ANSWERS.iter().map(|answer| answer.matches).filter(|text| !used.contains(text)).collect();
    assert!(stale.is_empty(), "no document shows {stale:?} any more");
    assert!(ANSWERS.iter().all(|answer| !answer.why.is_empty()));
}

/// A heading as a link names it.
fn anchor(heading: &str) -> String {
    let text = heading.trim_start_matches('#').trim().to_lowercase();
    let kept = text.chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c));
    kept.collect::<String>().replace(' ', "-")
}

#[test]
fn links_lead_somewhere() {
    let mut broken = Vec::new();
    let others = ["docs/decisions", "docs/chaos"].into_iter().flat_map(pages_in);
    let root_pages = ["ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md"].map(str::to_owned);
    for document in documents().into_iter().chain(others).chain(root_pages) {
        let text = fs::read_to_string(root().join(&document)).expect("a page");
        let here = root().join(&document);
        for target in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            if target.starts_with("http") {
                continue;
            }
            let (path, name) = target.split_once('#').unwrap_or((target, ""));
            let file = if path.is_empty() {
                here.clone()
            } else {
                here.parent().expect("a directory").join(path)
            };
            let page = if name.is_empty() {
                String::new()
            } else {
                fs::read_to_string(&file).unwrap_or_default()
            };
            let found = page.lines().any(|line| line.starts_with('#') && anchor(line) == name)
                || page.contains(&format!("<a id=\"{name}\">"));
            if !file.exists() || !name.is_empty() && !found {
                broken.push(format!("{document}: {target}"));
            }
        }
    }
    assert!(broken.is_empty(), "{broken:#?}");
}

/// Whoever is called at night finds three answers under each code, and something to type.
#[test]
fn every_halt_has_symptom_meaning_and_commands() {
    let page = fs::read_to_string(root().join("docs/operations/halts.md")).expect("the page");
    let sections: Vec<&str> =
        page.split("\n## ").filter(|section| section.starts_with("PR0")).collect();
    assert_eq!(sections.len(), postrider::error::HaltReason::ALL.len());
    for section in sections {
        let code = section.lines().next().expect("a heading");
        for part in ["**Symptom.**", "**Data.**", "**Do.**"] {
            assert!(section.contains(part), "{code} lacks {part}");
        }
        let (_, act) = section.split_once("**Do.**").expect("what to do");
        let typed = act.contains("```") || act.contains("](") || act.contains("`sink.properties`");
        assert!(typed, "{code} says nothing to type");
    }
}
