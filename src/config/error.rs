//! What can be wrong with a configuration.

use super::excerpt::Excerpt;
use super::place::{Lines, Place};
use std::fmt;
use std::io;
use std::path::PathBuf;

/// No configuration came of it.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// None of the usual places has a file, and none was named.
    #[error(
        "found no configuration: name a file with --config, or write one of {}; postrider init writes a first one",
        .0.join(", ")
    )]
    Missing(Vec<String>),
    /// The file can't be read.
    #[error("could not read the configuration file \"{}\"", .path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// The file has mistakes.
    #[error(transparent)]
    Invalid(Findings),
}

/// One thing to say about one place of a file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Finding {
    /// Where.
    pub place: Place,
    /// The key's path, `pipelines.orders.flow.in_flight_bytes`; empty where the file is no TOML.
    pub key: String,
    /// What is wrong and what mends it: a lowercase fragment without full stop, without the value of a variable.
    pub message: String,
    /// The line of the file, as far as it may be shown.
    pub excerpt: Option<Excerpt>,
}

impl Finding {
    pub(super) fn new(place: Place, key: &str, message: String) -> Self {
        Self { place, key: key.to_owned(), message, excerpt: None }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.key.is_empty() {
            write!(f, "{}: {}", self.place, self.message)
        } else {
            write!(f, "{}: {}: {}", self.place, self.key, self.message)
        }
    }
}

/// Everything there is to say about a file, in the order of its lines: one line each, and the file's own below it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Findings {
    /// The file's name as the user gave it.
    pub file: String,
    /// The findings, by place.
    pub list: Vec<Finding>,
}

impl Findings {
    pub(super) fn new(file: &str, text: &str, mut list: Vec<Finding>) -> Self {
        list.sort_by(|a, b| (a.place, &a.key).cmp(&(b.place, &b.key)));
        let lines = Lines::new(text);
        for finding in &mut list {
            let line = lines.line(finding.place.line);
            finding.excerpt = line.and_then(|line| Excerpt::of(line, finding.place));
        }
        Self { file: file.to_owned(), list }
    }
}

impl fmt::Display for Findings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, finding) in self.list.iter().enumerate() {
            if index > 0 {
                writeln!(f)?;
            }
            write!(f, "{}:{finding}", self.file)?;
            if let Some(excerpt) = &finding.excerpt {
                write!(f, "\n{excerpt}")?;
            }
        }
        Ok(())
    }
}

impl std::error::Error for Findings {}
