//! The report at the end of a demo: the ledger, latencies, and what to do next.

use super::chaos::{self, Injected};
use super::ledger::Totals;
use super::view::Quantiles;
use super::words;
use std::fmt::Write as _;

/// The contents of the report.
#[derive(Clone, Debug)]
pub(super) struct DemoReport {
    pub(super) totals: Totals,
    /// The failures that were injected.
    pub(super) injected: Vec<Injected>,
    /// Whether the failures are those of `--chaos`, which are listed one by one.
    pub(super) chaos: bool,
    /// Number of events that the failures may have caused to be published again.
    pub(super) repeatable: u64,
    pub(super) acknowledged: Quantiles,
    pub(super) consumed: Quantiles,
    pub(super) memory_peak: Option<u64>,
    /// Why the relay did not end cleanly, if it did not.
    pub(super) trouble: Option<String>,
}

impl DemoReport {
    /// Whether the demo succeeded.
    pub(super) fn balances(&self) -> bool {
        // Without an injected failure no event may be repeated.
        let once = !self.injected.is_empty() || self.totals.duplicated == 0;
        let overcome = self.injected.iter().all(|injected| injected.back_after.is_some());
        self.totals.balances()
            && once
            && overcome
            && self.totals.committed > 0
            && self.trouble.is_none()
    }

    /// The report as text.
    pub(super) fn text(&self, color: bool) -> String {
        let paint = |code: &str, text: &str| {
            if color { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
        };
        let totals = &self.totals;
        let zero = |count: u64| if count == 0 { "32" } else { "31" };
        let calm = self.injected.is_empty();
        let repeated = if calm { zero(totals.duplicated) } else { "0" };
        let mut text = String::new();
        if self.chaos {
            text = format!("\n{}\n{}", paint("1", "Chaos"), chaos::page(&self.injected));
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
        let own = if calm { "the relay's histogram" } else { "with repeated events" };
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
            let often = if self.injected.is_empty() { "once" } else { "at least once" };
            let good =
                format!("Balanced: every committed event arrived {often}, in order, nothing else.");
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
        match self.injected.len() {
            0 => "delivered twice".to_owned(),
            _ if self.chaos => format!("delivered twice, at most {bound} expected"),
            1 => format!("after 1 kill, at most {bound} expected"),
            kills => format!("after {kills} kills, at most {bound} expected"),
        }
    }
}

fn line(text: &mut String, line: &str) {
    // Writing to a String does not fail.
    writeln!(text, "{line}").unwrap_or_default();
}

/// What to do next.
pub(super) const NEXT: &str = "
What next
  docs/getting-started.md   use Postrider with your database and broker
  postrider setup -c FILE   create slot, publication and tables (--print-sql)
  postrider run -c FILE     run the service
  postrider demo --chaos    kill -9, a frozen broker, a database restart
  postrider demo --sink K   publish to nats, rabbitmq, redis, valkey or http
";

#[cfg(test)]
mod tests;
