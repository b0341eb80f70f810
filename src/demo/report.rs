//! The ledger as it is printed at the end, and what to do next.

use super::chaos::{self, Played};
use super::ledger::Totals;
use super::view::Quantiles;
use super::words;
use std::fmt::Write as _;

/// Everything the last page tells.
#[derive(Clone, Debug)]
pub(super) struct Report {
    pub(super) totals: Totals,
    /// What was broken.
    pub(super) played: Vec<Played>,
    /// Whether by `--chaos`: then each is told.
    pub(super) chaos: bool,
    /// What that may have caused to be published again.
    pub(super) repeatable: u64,
    pub(super) acknowledged: Quantiles,
    pub(super) consumed: Quantiles,
    pub(super) memory_peak: Option<u64>,
    /// Why the relay did not end as it should, where it did not.
    pub(super) trouble: Option<String>,
}

impl Report {
    /// Whether the demo shows what it is to show.
    pub(super) fn balances(&self) -> bool {
        // Only what is broken repeats.
        let once = !self.played.is_empty() || self.totals.duplicated == 0;
        let overcome = self.played.iter().all(|played| played.back_after.is_some());
        self.totals.balances()
            && once
            && overcome
            && self.totals.committed > 0
            && self.trouble.is_none()
    }

    /// The page.
    pub(super) fn text(&self, color: bool) -> String {
        let paint = |code: &str, text: &str| {
            if color { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
        };
        let totals = &self.totals;
        let zero = |count: u64| if count == 0 { "32" } else { "31" };
        let calm = self.played.is_empty();
        let repeated = if calm { zero(totals.duplicated) } else { "0" };
        let mut text = String::new();
        if self.chaos {
            text = format!("\n{}\n{}", paint("1", "Chaos"), chaos::page(&self.played));
        }
        line(&mut text, &format!("\n{}", paint("1", "Ledger")));
        let rows = [
            ("committed", totals.committed, "0", "COMMIT was answered".to_owned()),
            (
                "delivered",
                totals.delivered,
                "0",
                "different events, read back from the broker".to_owned(),
            ),
            (
                "lost",
                totals.outstanding,
                zero(totals.outstanding),
                "committed, not delivered".to_owned(),
            ),
            (
                "out of order",
                totals.out_of_order,
                zero(totals.out_of_order),
                "of one aggregate".to_owned(),
            ),
            ("invented", totals.invented, zero(totals.invented), self.not_committed()),
            ("duplicated", totals.duplicated, repeated, self.duplicates()),
        ];
        for (name, count, code, note) in rows {
            let count = paint(code, &format!("{:>12}", words::count(count)));
            line(&mut text, &format!("  {name:<13}{count}   {}", paint("2", &note)));
        }
        text.push('\n');
        let own = if calm { "the relay's histogram" } else { "the relay's, repeats too" };
        let latencies = [
            ("commit → acknowledged", &self.acknowledged, own),
            ("commit → consumed", &self.consumed, "from COMMIT to the reader"),
        ];
        for (name, quantiles, note) in latencies {
            let (p50, p99) = (words::duration(quantiles.p50), words::duration(quantiles.p99));
            line(
                &mut text,
                &format!("  {name:<22} p50 {p50:>7}   p99 {p99:>7}   {}", paint("2", note)),
            );
        }
        let memory = words::memory(self.memory_peak);
        line(
            &mut text,
            &format!(
                "  {:<22}     {memory:>7}   {}\n",
                "peak memory",
                paint("2", "RSS of the relay")
            ),
        );
        if let Some(trouble) = &self.trouble {
            line(&mut text, trouble);
        }
        line(&mut text, &self.verdict(&paint));
        text
    }

    fn verdict(&self, paint: &impl Fn(&str, &str) -> String) -> String {
        if self.balances() {
            let often = if self.played.is_empty() { "once" } else { "at least once" };
            let good =
                format!("Balanced: all that was committed came {often}, in order, nothing else.");
            return paint("1;32", &good);
        }
        if self.totals.committed == 0 {
            return paint("1;31", "Not balanced: nothing was written.");
        }
        paint("1;31", "Not balanced.")
    }

    fn not_committed(&self) -> String {
        let rolled_back = words::count(self.totals.rolled_back);
        let mut note = format!("rolled back ({rolled_back}) or never written");
        if self.totals.unknown > 0 {
            let unknown = words::count(self.totals.unknown);
            write!(note, "; {unknown} unknown").unwrap_or_default();
        }
        note
    }

    fn duplicates(&self) -> String {
        let bound = words::count(self.repeatable);
        match self.played.len() {
            0 => "delivered again".to_owned(),
            _ if self.chaos => format!("again, at most {bound} expected"),
            1 => format!("again after the kill, at most {bound} expected"),
            kills => format!("again after {kills} kills, at most {bound} expected"),
        }
    }
}

fn line(text: &mut String, line: &str) {
    // Writing to a String does not fail.
    writeln!(text, "{line}").unwrap_or_default();
}

/// Where to go from here.
pub(super) const NEXT: &str = "
What next
  docs/getting-started.md   point it at a database and a broker of your own
  postrider setup -c FILE   make slot, publication, tables; --print-sql: print
  postrider run -c FILE     stream until it is stopped
  postrider demo --chaos    kill -9, a frozen broker, a database restart
";

#[cfg(test)]
mod tests;
