//! The status as a table: one line for each pipeline, then what is not well and what mends it.

use serde_json::Value;
use std::fmt::Write as _;

const HEAD: [&str; 9] = [
    "PIPELINE",
    "STATE",
    "LAG",
    "WAL LAG",
    "IN FLIGHT",
    "PUBLISHED",
    "SLOT",
    "RETAINED",
    "WATERMARK",
];

/// Columns of figures are aligned to the right.
const RIGHT: [bool; 9] = [false, false, true, true, true, true, false, true, false];

/// Index of the state's column, which has the colour.
const STATE: usize = 1;

pub(super) fn render(pipelines: &[Value], color: bool) -> String {
    let rows: Vec<_> = pipelines.iter().map(row).collect();
    let heads = HEAD.map(str::to_owned);
    let mut widths = heads.each_ref().map(String::len);
    for row in &rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let mut text = line(&heads, &widths, None);
    for (row, pipeline) in rows.iter().zip(pipelines) {
        text.push('\n');
        text.push_str(&line(row, &widths, color.then(|| paint(pipeline))));
    }
    for pipeline in pipelines {
        text.push_str(&trouble(pipeline));
        text.push_str(&skipped(pipeline));
    }
    text
}

fn row(pipeline: &Value) -> [String; HEAD.len()] {
    let text = |key: &str| pipeline[key].as_str().unwrap_or("-").to_owned();
    let count = |key: &str| pipeline[key].as_u64().map_or_else(|| "-".to_owned(), grouped);
    let size = |key: &str| pipeline[key].as_u64().map_or_else(|| "-".to_owned(), bytes);
    [
        text("pipeline"),
        text("state"),
        pipeline["lag_seconds"]
            .as_f64()
            .map_or_else(|| "-".to_owned(), |lag| format!("{lag:.1} s")),
        size("lag_bytes"),
        count("in_flight_events"),
        count("published_total"),
        text("slot_state"),
        size("slot_retained_bytes"),
        text("watermark"),
    ]
}

fn line(cells: &[String; HEAD.len()], widths: &[usize; HEAD.len()], paint: Option<&str>) -> String {
    let mut text = String::new();
    for (index, ((cell, width), right)) in cells.iter().zip(widths).zip(RIGHT).enumerate() {
        let pad = " ".repeat(width.saturating_sub(cell.chars().count()));
        let cell = match paint {
            Some(paint) if index == STATE => format!("{paint}{cell}\x1b[0m"),
            Some(_) | None => cell.clone(),
        };
        let gap = if index == 0 { "" } else { "  " };
        let (before, after) = if right { (pad.as_str(), "") } else { ("", pad.as_str()) };
        // Writing to a String does not fail.
        write!(text, "{gap}{before}{cell}{after}").unwrap_or_default();
    }
    text.truncate(text.trim_end().len());
    text
}

/// Green is ready, red waits for an operator, yellow is everything between.
fn paint(pipeline: &Value) -> &'static str {
    match (pipeline["ready"].as_bool(), pipeline["state"].as_str()) {
        (Some(true), _) => "\x1b[32m",
        (_, Some("halted")) => "\x1b[31m",
        _ => "\x1b[33m",
    }
}

/// Why a pipeline is not well, and what mends it.
fn trouble(pipeline: &Value) -> String {
    let mut text = String::new();
    let name = pipeline["pipeline"].as_str().unwrap_or("-");
    let parts = ["halt_code", "reason"].into_iter().filter_map(|key| pipeline[key].as_str());
    let parts: Vec<_> = parts.collect();
    if !parts.is_empty() {
        write!(text, "\n\n{name}: {}", parts.join(": ")).unwrap_or_default();
    }
    if let Some(hint) = pipeline["hint"].as_str() {
        for line in hint.lines() {
            text.push_str("\n  ");
            text.push_str(line);
        }
    }
    text
}

/// What was skipped that an application may have meant to be published.
fn skipped(pipeline: &Value) -> String {
    let name = pipeline["pipeline"].as_str().unwrap_or("-");
    let count = |key: &str| pipeline["skipped"][key].as_u64().filter(|count| *count > 0);
    let mut text = String::new();
    for (key, words) in [
        ("expired", "events skipped since the start: they had expired"),
        ("not_transactional", "logical messages skipped since the start: not transactional"),
    ] {
        if let Some(count) = count(key) {
            write!(text, "\n\n{name}: {} {words}", grouped(count)).unwrap_or_default();
        }
    }
    text
}

/// `1234567` as `1,234,567`.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

fn bytes(number: u64) -> String {
    const UNITS: [(&str, u64); 3] = [("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)];
    let Some((unit, factor)) = UNITS.into_iter().find(|(_, factor)| number >= *factor) else {
        return format!("{number} B");
    };
    let tenths = u128::from(number) * 10 / u128::from(factor);
    format!("{}.{} {unit}", tenths / 10, tenths % 10)
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::expect;
    use serde_json::json;

    #[test]
    fn a_table_shows_figures_and_then_troubles() {
        let pipelines = [
            json!({
                "pipeline": "orders", "state": "streaming", "ready": true, "lag_seconds": 0.04,
                "lag_bytes": 1536, "in_flight_events": 12, "published_total": 1_234_567,
                "slot_state": "reserved", "slot_retained_bytes": 17_000_000, "watermark": "0/1A2B3C8",
                "skipped": {"expired": 1_100, "not_transactional": 0, "others": 7},
            }),
            json!({
                "pipeline": "invoices", "state": "halted", "ready": false, "lag_seconds": 3600.5,
                "lag_bytes": 0, "in_flight_events": 0, "published_total": 0, "slot_state": null,
                "slot_retained_bytes": null, "watermark": "0/0", "halt_code": "PR002",
                "reason": "slot \"postrider_invoices\" does not exist", "hint": "run one\nrun two",
            }),
        ];
        expect![[r#"
            PIPELINE  STATE           LAG  WAL LAG  IN FLIGHT  PUBLISHED  SLOT      RETAINED  WATERMARK
            orders    streaming     0.0 s  1.5 KiB         12  1,234,567  reserved  16.2 MiB  0/1A2B3C8
            invoices  halted     3600.5 s      0 B          0          0  -                -  0/0

            orders: 1,100 events skipped since the start: they had expired

            invoices: PR002: slot "postrider_invoices" does not exist
              run one
              run two"#]].assert_eq(&render(&pipelines, false));
        let colored = render(&pipelines, true);
        assert!(colored.contains("\x1b[32mstreaming\x1b[0m"), "{colored}");
        assert!(colored.contains("\x1b[31mhalted\x1b[0m"), "{colored}");
    }

    #[test]
    fn figures_are_short() {
        assert_eq!(grouped(0), "0");
        assert_eq!(grouped(999), "999");
        assert_eq!(grouped(1000), "1,000");
        assert_eq!(bytes(1023), "1023 B");
        assert_eq!(bytes(1024), "1.0 KiB");
        assert_eq!(bytes(u64::MAX), "17179869183.9 GiB");
    }
}
