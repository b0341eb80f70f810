//! What `postrider status` says of the events of a pipeline below its table: transactions of the sink, parked events,
//! and events that were skipped.

use super::error::printable;
use crate::health::grouped;
use serde_json::Value;
use std::fmt::Write as _;

/// The progress that the sink has stored beside the cursor row, and the transactions of the sink.
pub(super) fn transactions(pipeline: &Value) -> String {
    let transactions = &pipeline["sink_transactions"];
    if transactions.is_null() {
        return String::new();
    }
    let name = pipeline["pipeline"].as_str().unwrap_or("-");
    let text = |key: &str| printable(transactions[key].as_str().unwrap_or("-"));
    let count = |key: &str| transactions[key].as_u64().unwrap_or(0);
    let mut lines = format!(
        "\n\n{name}: the sink has the progress {}, the cursor row is {}",
        text("progress"),
        text("cursor_row")
    );
    // Writing to a String does not fail.
    if !transactions["id"].is_null() {
        write!(lines, "\n  transactional id {}", text("id")).unwrap_or_default();
    }
    if !transactions["taken_over_at"].is_null() {
        write!(lines, "\n  taken over at {}", text("taken_over_at")).unwrap_or_default();
    }
    let committed = counted(count("committed_total"), "transaction", "transactions");
    let records = counted(count("records_total"), "record", "records");
    write!(lines, "\n  {committed} committed with {records}").unwrap_or_default();
    for (key, words) in [
        ("aborted_total", "aborted"),
        ("unknown_total", "not answered"),
        ("fenced_total", "fenced"),
    ] {
        if count(key) > 0 {
            write!(lines, ", {} {words}", grouped(count(key))).unwrap_or_default();
        }
    }
    lines
}

/// The parked events, the aggregates that they block, and the command that lists them.
pub(super) fn parked(pipeline: &Value) -> String {
    let name = pipeline["pipeline"].as_str().unwrap_or("-");
    let parked = &pipeline["parked"];
    let count = |key: &str| parked[key].as_u64().unwrap_or(0);
    let states = [
        ("waiting", "refused, being retried"),
        ("dead", "dead"),
        ("behind", "behind an earlier event"),
        ("due", "not due yet"),
    ];
    let states = states.map(|(key, words)| (count(key), words));
    let all: u64 = states.iter().map(|(count, _)| count).sum();
    if all == 0 {
        return String::new();
    }
    let parts = states.iter().filter(|(count, _)| *count > 0);
    let parts: Vec<_> =
        parts.map(|(count, words)| format!("{} {words}", grouped(*count))).collect();
    let mut text = format!(
        "\n\n{name}: {} parked ({})",
        counted(all, "event is", "events are"),
        parts.join(", ")
    );
    let held = counted(count("aggregates"), "aggregate is", "aggregates are");
    let oldest = age(parked["oldest_seconds"].as_f64().unwrap_or(0.0));
    write!(
        text,
        "\n  {held} blocked; the oldest event has been parked for {oldest}\n  postrider parked list -p {name}"
    )
    .unwrap_or_default();
    text
}

/// `1 event is`, `1,234 events are`
pub(super) fn counted(count: u64, one: &str, many: &str) -> String {
    format!("{} {}", grouped(count), if count == 1 { one } else { many })
}

/// A duration in the largest unit of which it has at least two: `90 s`, `12 min`, `3 h`, `5 d`.
pub(super) fn age(seconds: f64) -> String {
    const UNITS: [(&str, f64); 3] = [("d", 86_400.0), ("h", 3_600.0), ("min", 60.0)];
    match UNITS.into_iter().find(|(_, unit)| seconds >= 2.0 * unit) {
        Some((name, unit)) => format!("{:.0} {name}", (seconds / unit).floor()),
        None => format!("{seconds:.0} s"),
    }
}

/// Events that were skipped although the application may expect them to be published.
pub(super) fn skipped(pipeline: &Value) -> String {
    let name = pipeline["pipeline"].as_str().unwrap_or("-");
    let count = |key: &str| pipeline["skipped"][key].as_u64().filter(|count| *count > 0);
    let mut text = String::new();
    for (key, words) in [
        ("expired", "events skipped since the start because they had expired"),
        (
            "not_transactional",
            "logical messages skipped since the start because they are not transactional",
        ),
    ] {
        if let Some(count) = count(key) {
            write!(text, "\n\n{name}: {} {words}", grouped(count)).unwrap_or_default();
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn transactions_are_shown_beside_the_cursor_row() {
        assert_eq!(transactions(&json!({ "pipeline": "orders" })), "");
        let sink = json!({
            "id": "postrider.app.orders", "taken_over_at": "2026-11-30T02:57:20.123456Z", "progress": "68F1A2B3 0/200",
            "cursor_row": "68F1A2B3 0/100", "committed_total": 1_234, "records_total": 12_340,
            "aborted_total": 1, "unknown_total": 0, "fenced_total": 2,
        });
        let shown = transactions(&json!({ "pipeline": "orders", "sink_transactions": sink }));
        assert_eq!(
            shown,
            "\n\norders: the sink has the progress 68F1A2B3 0/200, the cursor row is 68F1A2B3 0/100\n  \
             transactional id postrider.app.orders\n  taken over at 2026-11-30T02:57:20.123456Z\n  \
             1,234 transactions committed with 12,340 records, 1 aborted, 2 fenced"
        );
        // Before the sink has said what it has.
        let sink = json!({ "progress": null, "cursor_row": "68F1A2B3 0/100" });
        let shown = transactions(&json!({ "pipeline": "orders", "sink_transactions": sink }));
        assert!(shown.contains("has the progress -, the cursor row is 68F1A2B3 0/100"), "{shown}");
    }
}
