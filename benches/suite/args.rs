//! The command line, which `scripts/bench` passes on.

use std::path::PathBuf;

#[derive(Clone)]
pub(crate) struct Args {
    pub(crate) quick: bool,
    pub(crate) rows: usize,
    /// Rows of the drains of phase `sinks`.
    pub(crate) sink_rows: usize,
    pub(crate) rounds: usize,
    /// The rates of the latency phase, in events per second.
    pub(crate) rates: Vec<u32>,
    /// The phases to run; all if none is named.
    only: Vec<String>,
    /// The sinks of phase `sinks`; all if none is named.
    sinks: Vec<String>,
    /// Workloads beside the main ones.
    pub(crate) workloads: Vec<String>,
    pub(crate) with_debezium: bool,
    /// Another build of Postrider than this one, for phase `sinks`.
    pub(crate) binary: Option<PathBuf>,
    /// Another build of Postrider, than which this one must not be slower.
    pub(crate) guard: Option<PathBuf>,
    /// The directory for `performance.md` and the plots.
    pub(crate) out: Option<PathBuf>,
}

impl Args {
    pub(crate) fn parse() -> Self {
        let words: Vec<String> = std::env::args().skip(1).collect();
        let value = |name: &str| {
            let at = words.iter().position(|word| word == name)?;
            Some(words.get(at + 1).unwrap_or_else(|| panic!("{name} needs a value")).clone())
        };
        let has = |name: &str| words.iter().any(|word| word == name);
        let number = |name: &str| value(name).map(|v| v.parse().expect("a number"));
        let list = |name: &str| -> Vec<String> {
            value(name).map(|v| v.split(',').map(str::to_owned).collect()).unwrap_or_default()
        };
        let quick = has("--quick");
        let guard = value("--guard").map(PathBuf::from);
        Self {
            quick,
            rows: number("--rows").unwrap_or(if quick { 200_000 } else { 1_000_000 }),
            sink_rows: number("--rows").unwrap_or(if quick { 50_000 } else { 200_000 }),
            rounds: number("--rounds").unwrap_or(if guard.is_some() { 5 } else { 3 }),
            rates: value("--rates").map_or_else(
                || vec![500, 2_000, 10_000],
                |v| v.split(',').map(|rate| rate.parse().expect("a rate")).collect(),
            ),
            only: list("--only"),
            sinks: list("--sinks"),
            workloads: list("--workload"),
            with_debezium: !has("--no-debezium"),
            binary: value("--binary").map(PathBuf::from),
            guard,
            out: value("--out").map(PathBuf::from),
        }
    }

    /// Whether some phases are left out, so that the other parts of the page are kept.
    pub(crate) fn is_partial(&self) -> bool {
        !self.only.is_empty() || !self.workloads.is_empty()
    }

    /// Whether a sink takes part in phase `sinks`.
    pub(crate) fn measures(&self, sink: &str) -> bool {
        self.sinks.is_empty() || self.sinks.iter().any(|wanted| wanted == sink)
    }

    /// Whether a phase runs.
    pub(crate) fn does(&self, phase: &str) -> bool {
        self.only.is_empty() && self.workloads.is_empty()
            || self.only.iter().any(|only| only == phase)
    }
}
