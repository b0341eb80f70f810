//! Bookmarks as text and as JSON.

use crate::postgres::bookmark::Bookmark;
use serde_json::{Value, json};
use std::fmt::Write as _;

const HEAD: [&str; 7] = ["BOOKMARK", "POSITION", "MADE", "HOLDS BACK", "EXPIRES", "STATE", "NOTE"];

/// One line for each, and what they cost together.
pub(super) fn table(pipeline: &str, all: &[Bookmark], retain_max: u64) -> String {
    if all.is_empty() {
        return format!("{pipeline}: no bookmarks");
    }
    let rows: Vec<[String; HEAD.len()]> =
        std::iter::once(HEAD.map(str::to_owned)).chain(all.iter().map(cells)).collect();
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max();
    let widths: Vec<usize> = (0..HEAD.len()).map(|column| width(column).unwrap_or(0)).collect();
    let mut text = String::new();
    for row in &rows {
        let mut line = String::new();
        for (cell, width) in row.iter().zip(&widths) {
            // Writing to a String does not fail.
            write!(line, "{cell:<width$}  ").unwrap_or_default();
        }
        writeln!(text, "{}", line.trim_end()).unwrap_or_default();
    }
    // WAL is kept from the oldest on, so they cost as much as it alone.
    let held = all.iter().map(|bookmark| bookmark.held_bytes).max().unwrap_or(0);
    let (held, max) = (size(held), size(retain_max));
    write!(text, "{pipeline}: together they retain {held} of WAL, of {max} (bookmarks.retain_max)")
        .unwrap_or_default();
    text
}

fn cells(bookmark: &Bookmark) -> [String; HEAD.len()] {
    let text = |text: Option<&String>| text.map_or("-".to_owned(), |text| printable(text));
    let reading = if bookmark.active_pid.is_some() { ", being read" } else { "" };
    [
        bookmark.name.clone(),
        bookmark.lsn.map_or("-".to_owned(), |lsn| lsn.to_string()),
        bookmark.created_at.clone(),
        size(bookmark.held_bytes),
        text(bookmark.expires_at.as_ref()),
        format!("{}{reading}", bookmark.state),
        text(bookmark.note.as_ref()),
    ]
}

/// What was made.
pub(super) fn made(pipeline: &str, bookmark: &Bookmark) -> String {
    let at = bookmark.lsn.map_or_else(String::new, |lsn| format!(" at {lsn}"));
    let until = bookmark.expires_at.as_ref();
    let until = until.map_or("until it is dropped".to_owned(), |at| format!("until {at}"));
    format!(
        "bookmark {name} of pipeline {pipeline}{at}: PostgreSQL keeps WAL from there on, {until}\n\
         publish again what is committed from now on: postrider replay --bookmark {name}",
        name = bookmark.name
    )
}

/// One bookmark for programs.
pub(super) fn json(pipeline: &str, bookmark: &Bookmark) -> Value {
    json!({
        "pipeline": pipeline,
        "name": bookmark.name,
        "note": bookmark.note,
        "position": bookmark.lsn.map(|lsn| lsn.to_string()),
        "timeline": bookmark.timeline,
        "slot": bookmark.slot,
        "created_at": bookmark.created_at,
        "expires_at": bookmark.expires_at,
        "state": bookmark.state.name(),
        "why": (!bookmark.state.usable()).then(|| bookmark.state.to_string()),
        "held_bytes": bookmark.held_bytes,
        "active_pid": bookmark.active_pid,
    })
}

/// Bytes for a person.
pub(in crate::cli) fn size(bytes: u64) -> String {
    match bytes {
        0..1024 => format!("{bytes} B"),
        1024..1_048_576 => format!("{} KiB", bytes >> 10),
        1_048_576..10_737_418_240 => format!("{} MiB", bytes >> 20),
        10_737_418_240.. => format!("{} GiB", bytes >> 30),
    }
}

/// Without what a terminal would obey.
fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}
