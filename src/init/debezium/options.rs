//! Every option of the outbox event router and of the PostgreSQL connector, with what became of it here.
//!
//! The one table that both the translation and docs/debezium.md are made from. Names are those of Debezium 3.7, and of
//! older releases where people still write them; one that ends in `*` stands for all that begin so.

mod connector;
mod router;

pub use connector::CONNECTOR;
pub use router::ROUTER;

use super::answer::Verdict::{self, NoCounterpart, NotNeeded, Translated};

/// One option.
#[derive(Clone, Copy, Debug)]
pub struct Known {
    /// Its name.
    pub name: &'static str,
    /// What became of it.
    pub verdict: Verdict,
    /// Values with which it makes no difference, whatever the verdict.
    pub same: &'static [&'static str],
    /// Where it went, why it is not needed, or what to do.
    pub text: &'static str,
}

const fn to(name: &'static str, text: &'static str) -> Known {
    Known { name, verdict: Translated, same: &[], text }
}

const fn needless(name: &'static str, text: &'static str) -> Known {
    Known { name, verdict: NotNeeded, same: &[], text }
}

const fn without(name: &'static str, same: &'static [&'static str], text: &'static str) -> Known {
    Known { name, verdict: NoCounterpart, same, text }
}

/// The entry for an option: its own, or the longest that stands for it.
pub fn find(table: &'static [Known], option: &str) -> Option<&'static Known> {
    let stands = |known: &&Known| match known.name.strip_suffix('*') {
        Some(start) => option.starts_with(start),
        None => known.name == option,
    };
    table.iter().filter(stands).max_by_key(|known| (!known.name.ends_with('*'), known.name.len()))
}
