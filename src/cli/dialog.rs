//! What several commands print and ask: tables, a result as text or JSON, and the question before a change.

use super::Output;
use super::error::{CliError, Exit};
use serde_json::Value;
use std::fmt::Write as _;
use std::io::IsTerminal as _;

/// Prints what a command would do, and asks for confirmation, unless `yes`. Without a terminal nothing is asked: the
/// error is `needs_yes`.
pub(super) fn agreed(
    effect: &str,
    question: &str,
    yes: bool,
    needs_yes: impl FnOnce() -> CliError,
) -> Result<bool, CliError> {
    Output::stderr().line_or_ignore(effect);
    if yes {
        return Ok(true);
    }
    if !std::io::stdin().is_terminal() {
        return Err(needs_yes());
    }
    Output::stderr().line_or_ignore(&format!("{question} [y/N]"));
    let mut answer = String::new();
    std::io::stdin().read_line(&mut answer).map_err(CliError::Input)?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}

/// Prints a result.
pub(super) fn print(as_json: bool, value: &Value, text: &str) -> Result<Exit, CliError> {
    let text = if as_json { format!("{value:#}") } else { text.to_owned() };
    print_text(&text)
}

/// Prints a list: as JSON one object per line.
pub(super) fn print_list(
    as_json: bool,
    values: impl Iterator<Item = Value>,
    text: impl FnOnce() -> String,
) -> Result<Exit, CliError> {
    if as_json {
        let lines: Vec<String> = values.map(|value| value.to_string()).collect();
        print_text(&lines.join("\n"))
    } else {
        print_text(&text())
    }
}

fn print_text(text: &str) -> Result<Exit, CliError> {
    if !text.is_empty() {
        Output::stdout().line(text).map_err(CliError::Output)?;
    }
    Ok(Exit::Done)
}

/// A table, its columns aligned to the left.
pub(super) fn columns<const N: usize>(head: &[&str; N], rows: &[[String; N]]) -> String {
    let head = head.map(str::to_owned);
    let lines = || std::iter::once(&head).chain(rows);
    let width = |column: usize| lines().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: [usize; N] = std::array::from_fn(width);
    let line = |row: &[String; N]| {
        let mut line = String::new();
        for (cell, width) in row.iter().zip(widths) {
            // Writing to a String does not fail.
            write!(line, "{cell:<width$}  ").unwrap_or_default();
        }
        line.trim_end().to_owned()
    };
    lines().map(line).collect::<Vec<_>>().join("\n")
}

/// Seconds without their fraction.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a number of seconds that is not negative; the cast saturates"
)]
pub(super) fn whole_seconds(seconds: f64) -> u64 {
    seconds.max(0.0) as u64
}
