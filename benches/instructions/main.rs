//! The number of instructions per event of each step, which is the same on every run and is compared with a budget.
//!
//! `scripts/bench --budget` counts with callgrind and compares with `budget.txt`; `--bless` writes that file. Each case
//! is run with two numbers of events, and the difference of the counts is divided by the difference of the numbers, so
//! that the preparation does not count.
#![expect(
    clippy::expect_used,
    clippy::print_stdout,
    clippy::panic,
    clippy::as_conversions,
    clippy::cast_precision_loss,
    reason = "a bench prints, and stops at the first thing that is not as it should be"
)]

#[path = "../cases/mod.rs"]
#[expect(dead_code, reason = "only the hot path has a budget")]
mod cases;

use std::fmt::Write;
use std::fs;
use std::path::Path;
use std::process::{Command, ExitCode};

/// How far a figure may deviate from its budget, in both directions: a figure far below the budget would hide a later
/// regression.
const PERCENT: f64 = 5.0;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).filter(|word| word != "--bench").collect();
    if let [flag, name, events] = words.as_slice()
        && flag == "--case"
    {
        let (_, _, ready) = find(name);
        ready(events.parse().expect("a number of events"))();
        return ExitCode::SUCCESS;
    }
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/instructions/budget.txt");
    let counts: Vec<(&str, f64)> =
        cases::ALL.iter().map(|&(name, events, _)| (name, per_event(name, events))).collect();
    if words.iter().any(|word| word == "--bless") {
        bless(&file, &counts);
        return ExitCode::SUCCESS;
    }
    compare(&fs::read_to_string(&file).expect("a budget: --bless makes one"), &counts)
}

fn find(name: &str) -> cases::Case {
    *cases::ALL.iter().find(|case| case.0 == name).unwrap_or_else(|| panic!("no case {name}"))
}

fn per_event(name: &str, events: usize) -> f64 {
    let (few, many) = (count(name, events / 2), count(name, events));
    (many - few) / (events - events / 2) as f64
}

/// Instructions of one run of one case.
fn count(name: &str, events: usize) -> f64 {
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
        .arg(std::env::current_exe().expect("this program"))
        .args(["--case", name, &events.to_string()])
        .output()
        .expect("valgrind: install it");
    let text = String::from_utf8_lossy(&output.stderr);
    let line = text.lines().find_map(|line| line.split_once("Collected :"));
    let (_, number) = line.unwrap_or_else(|| panic!("{name}: {text}"));
    number.trim().parse().expect("a number of instructions")
}

fn bless(file: &Path, counts: &[(&str, f64)]) {
    let mut text = "# Instructions an event, by `scripts/bench --budget --bless`.\n".to_owned();
    for (name, count) in counts {
        writeln!(text, "{name:<24}{count:>8.0}").expect("a string");
    }
    fs::write(file, &text).expect("a budget");
    println!("{text}");
}

fn compare(budget: &str, counts: &[(&str, f64)]) -> ExitCode {
    let mut held = true;
    println!("{:<24}{:>10}{:>10}{:>9}", "instructions per event", "budget", "now", "");
    for (name, count) in counts {
        let line = budget.lines().find(|line| line.split_whitespace().next() == Some(*name));
        let number = line.and_then(|line| line.split_whitespace().nth(1));
        let limit: Option<f64> = number.and_then(|number| number.parse().ok());
        let limit = limit.unwrap_or_else(|| panic!("no budget for {name}: --bless writes it"));
        let change = (count / limit - 1.0) * 100.0;
        let verdict = if change > PERCENT {
            "  OVER"
        } else if change < -PERCENT {
            "  lower the budget: --bless"
        } else {
            ""
        };
        held &= verdict.is_empty();
        println!("{name:<24}{limit:>10.0}{count:>10.0}{change:>+8.1} %{verdict}");
    }
    if held { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
