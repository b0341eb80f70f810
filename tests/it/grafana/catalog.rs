//! The table of metrics in `docs/metrics.md`: what a dashboard has to know of a metric.

use crate::prometheus::root;
use std::fs;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    Counter,
    Gauge,
    Histogram,
}

/// A row of the table.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Metric {
    pub(super) name: String,
    pub(super) kind: Kind,
    pub(super) unit: String,
    /// What it is, in Markdown without links.
    pub(super) about: String,
}

/// The page.
pub(super) const PAGE: &str = "docs/metrics.md";

pub(super) fn page() -> String {
    fs::read_to_string(root().join(PAGE)).expect("the page")
}

/// Every metric, in the order of the page.
pub(super) fn metrics() -> Vec<Metric> {
    page().lines().filter(|line| line.starts_with("| `")).map(of_row).collect()
}

fn of_row(row: &str) -> Metric {
    let cells: Vec<&str> = row.trim().trim_matches('|').split('|').map(str::trim).collect();
    let [name, kind, unit, _labels, about] = cells.as_slice() else { panic!("5 cells: {row}") };
    let kind = match kind.split([',', ' ']).next() {
        Some("counter") => Kind::Counter,
        Some("gauge") => Kind::Gauge,
        Some("histogram") => Kind::Histogram,
        _ => panic!("a kind: {row}"),
    };
    let name = name.trim_matches('`').to_owned();
    Metric { name, kind, unit: (*unit).to_owned(), about: without_links(about) }
}

/// The text with each link's words in the place of the link: a link of this page leads nowhere from Grafana.
fn without_links(text: &str) -> String {
    let link = regex::Regex::new(r"\[([^\]]*)\]\([^)]*\)").expect("a pattern");
    link.replace_all(text, "$1").into_owned()
}

#[test]
fn rows_are_read_with_kind_and_unit_and_links_are_words() {
    let row = "| `a_total` | counter, shown without a type | events | `x`: `y` | [what](b.md#c) it is; `d` |";
    let metric = of_row(row);
    assert_eq!((metric.name.as_str(), metric.kind), ("a_total", Kind::Counter));
    assert_eq!((metric.unit.as_str(), metric.about.as_str()), ("events", "what it is; `d`"));
}
