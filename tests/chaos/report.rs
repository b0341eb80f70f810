//! The report of a run: a page and a picture.

mod picture;

use crate::plan::{Act, Lane};
use crate::relays::Reads;
use crate::run::{Outcome, exactly_once, one_in_flight};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

/// Writes `report.md` and `timeline.svg` into `out`.
pub(crate) fn write(outcome: &Outcome, out: &Path) {
    fs::write(out.join("report.md"), page(outcome)).expect("a report");
    fs::write(out.join("timeline.svg"), picture::draw(outcome)).expect("a picture");
}

fn page(outcome: &Outcome) -> String {
    let found = &outcome.findings;
    let claims: usize = outcome.verdicts.iter().map(|verdict| verdict.claims).sum();
    let sessions: usize = outcome.verdicts.iter().map(|verdict| verdict.sessions).sum();
    let early: usize = outcome.verdicts.iter().map(|verdict| verdict.broken.len()).sum();
    let word =
        if outcome.balanced() { "The ledger balances" } else { "THE LEDGER DOES NOT BALANCE" };
    let mut text = format!(
        "# Chaos: {:.0} minutes, seed {}\n\n\
         {word}. PostgreSQL {} with `fsync = on`, three brokers (two must have a record), two relays, a proxy on each of\n\
         their connections, four writers; {} faults in {:.1} minutes. Again: `scripts/chaos{} --minutes {:.0} --seed {}{}`.\n\n\
         ![faults, states and lag](timeline.svg)\n\n",
        outcome.took.as_secs_f64() / 60.0,
        outcome.seed,
        outcome.version.major(),
        outcome.deeds.len(),
        outcome.took.as_secs_f64() / 60.0,
        match (outcome.reads, exactly_once()) {
            (Reads::Both, _) => " --auto",
            (Reads::Stream, true) => " --exactly-once",
            (Reads::Stream, false) => "",
        },
        outcome.took.as_secs_f64() / 60.0,
        outcome.seed,
        if one_in_flight() { " --one-in-flight" } else { "" },
    );
    let rows = [
        ("committed events", found.committed.to_string()),
        ("… whose writer never learnt of it", found.unknown_committed.to_string()),
        ("rolled back events", found.rolled_back.to_string()),
        ("records in the topics", found.records.to_string()),
        ("**lost**", found.lost.len().to_string()),
        ("**invented**", found.invented.len().to_string()),
        ("**corrupted** (payload, key, position, partition)", found.corrupted.len().to_string()),
        ("**swapped** in an aggregate", found.swapped.len().to_string()),
        (
            "**positions confirmed too early**",
            format!("{early} of {claims} claims in {sessions} sessions"),
        ),
        ("duplicates", found.duplicates.to_string()),
        (
            "… at most",
            format!(
                "{} ({} starts of a stream or a producer)",
                outcome.duplicates_max(),
                outcome.incidents
            ),
        ),
        ("… repeated late, not as a suffix", found.late.len().to_string()),
        ("… swapped in a topic that had just been recreated", found.recreated.len().to_string()),
        ("events that were parked, and published later", outcome.parked.to_string()),
        ("slot at the end of WAL, nothing parked, a fresh event flows", "yes".to_owned()),
    ];
    text += "| | |\n|---|---:|\n";
    for (what, number) in rows {
        writeln!(text, "| {what} | {number} |").expect("a string takes all");
    }
    text += "\n";
    if !outcome.other.is_empty() {
        writeln!(text, "Beside it: {}.\n", outcome.other.join("; ")).expect("a string takes all");
    }
    text += &faults(outcome);
    text
}

fn faults(outcome: &Outcome) -> String {
    let mut acts: BTreeMap<(Lane, Act), (usize, f64)> = BTreeMap::new();
    for deed in &outcome.deeds {
        let sum = acts.entry((deed.lane, deed.act)).or_default();
        sum.0 += 1;
        sum.1 = sum.1.max(deed.to.saturating_sub(deed.from).as_secs_f64());
    }
    let mut text = "| faults | times | longest, s |\n|---|---:|---:|\n".to_owned();
    for ((_, act), (times, longest)) in acts {
        let words = match act {
            Act::FullDisk => format!("{} ({})", act.words(), outcome.disk),
            _ => act.words().to_owned(),
        };
        writeln!(text, "| {words} | {times} | {longest:.1} |").expect("a string takes all");
    }
    text
}
