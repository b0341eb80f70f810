//! `route.replace`: a regular expression over the topic, with Debezium's meaning and Java's replacement syntax.

use super::error::SpecError;
use super::span::Span;
use super::spec::Replace;
use regex::bytes::{CaptureLocations, Regex};

/// A compiled replacement.
#[derive(Debug)]
pub(super) struct Rewrite {
    pattern: Regex,
    parts: Vec<Part>,
    /// Reused from event to event.
    found: CaptureLocations,
}

#[derive(Debug, PartialEq, Eq)]
enum Part {
    Text(String),
    Group(usize),
}

impl Rewrite {
    pub(super) fn compile(spec: &Replace) -> Result<Self, SpecError> {
        // Alone first, so that the error shows what the user wrote.
        Regex::new(&spec.pattern).map_err(SpecError::Pattern)?;
        let whole = format!(r"\A(?:{}){}", spec.pattern, r"\z");
        let pattern = Regex::new(&whole).map_err(SpecError::Pattern)?;
        let parts = replacement(&spec.with, &pattern).map_err(SpecError::Replacement)?;
        let found = pattern.capture_locations();
        Ok(Self { pattern, parts, found })
    }

    /// Writes the replacement of `subject`, where the pattern matches the whole of it.
    pub(super) fn apply(&mut self, subject: &[u8], scratch: &mut Vec<u8>) -> Option<Span> {
        self.pattern.captures_read(&mut self.found, subject)?;
        let start = scratch.len();
        for part in &self.parts {
            match part {
                Part::Text(text) => scratch.extend_from_slice(text.as_bytes()),
                Part::Group(group) => {
                    if let Some((from, to)) = self.found.get(*group) {
                        scratch.extend_from_slice(&subject[from..to]);
                    }
                }
            }
        }
        Some(Span::since(start, scratch))
    }
}

/// `java.util.regex.Matcher.appendReplacement`: `$12` is group 12 where there is one, else group 1 and a 2.
fn replacement(with: &str, pattern: &Regex) -> Result<Vec<Part>, &'static str> {
    let mut parts = Vec::new();
    let mut text = String::new();
    let mut chars = with.chars().peekable();
    while let Some(char) = chars.next() {
        match char {
            '\\' => text.push(chars.next().ok_or("\"\\\" at the end escapes nothing")?),
            '$' => {
                let group = if chars.next_if_eq(&'{').is_some() {
                    let name: String = chars.by_ref().take_while(|char| *char != '}').collect();
                    let known = pattern.capture_names().position(|known| known == Some(&name));
                    known.ok_or("\"${name}\" names no group of the pattern")?
                } else {
                    let mut group: Option<usize> = None;
                    while let Some(digit) = chars.peek().and_then(|char| char.to_digit(10)) {
                        let next = group.unwrap_or(0) * 10 + usize::try_from(digit).unwrap_or(0);
                        if group.is_some() && next >= pattern.captures_len() {
                            break;
                        }
                        group = Some(next);
                        chars.next();
                    }
                    group
                        .filter(|group| *group < pattern.captures_len())
                        .ok_or("\"$\" names no group of the pattern; a dollar is written \"\\$\"")?
                };
                if !text.is_empty() {
                    parts.push(Part::Text(std::mem::take(&mut text)));
                }
                parts.push(Part::Group(group));
            }
            other => text.push(other),
        }
    }
    if !text.is_empty() {
        parts.push(Part::Text(text));
    }
    Ok(parts)
}
