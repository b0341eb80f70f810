//! What was seen, in words that are the same for a fake and a real server: positions by name.

use postrider::event::Position;
use postrider::offset::Offset;
use postrider::parked::{Entry, Request};
use std::collections::BTreeMap;

/// What a stream brings.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Seen {
    Keepalive(u64),
    Begin(u64),
    Row(String),
    Commit { commit: u64, end: u64 },
}

/// The last transaction of a [`Read`](super::script::Step::Read), which tells that it has come to its end.
pub(super) fn marker(number: u32) -> String {
    format!("marker {number}")
}

#[derive(Default, Debug)]
pub(super) struct Notes {
    pub(super) lines: Vec<String>,
    /// Commit and end of each transaction.
    places: BTreeMap<char, (u64, u64)>,
    positions: BTreeMap<String, Position>,
    /// The furthest that a keepalive of this stream has told.
    told: u64,
}

impl Notes {
    pub(super) fn say(&mut self, line: impl Into<String>) {
        self.lines.push(line.into());
    }

    /// A stream begins.
    pub(super) fn stream(&mut self) {
        self.told = 0;
        self.say("a stream:");
    }

    pub(super) fn commit_of(&self, letter: char) -> u64 {
        self.places[&letter].0
    }

    pub(super) fn end_of(&self, letter: char) -> u64 {
        self.places[&letter].1
    }

    pub(super) fn position(&self, event: &str) -> Position {
        self.positions[event]
    }

    /// Whole transactions, and whether a keepalive was ahead of one that came later.
    pub(super) fn read(&mut self, frames: &[Seen]) {
        let mut rows: Vec<String> = Vec::new();
        let mut begun = None;
        for frame in frames {
            match frame {
                Seen::Keepalive(wal_end) => self.told = self.told.max(*wal_end),
                Seen::Begin(commit) => {
                    assert_eq!(begun, None, "a Begin inside a transaction");
                    begun = Some(*commit);
                }
                Seen::Row(row) => rows.push(row.clone()),
                Seen::Commit { commit, end } => {
                    assert_eq!(begun.take(), Some(*commit), "another transaction ends");
                    assert!(end > commit);
                    if self.told > *commit {
                        self.say("a keepalive was ahead of what was sent");
                    }
                    self.transaction(&std::mem::take(&mut rows), (*commit, *end));
                }
            }
        }
    }

    fn transaction(&mut self, rows: &[String], place: (u64, u64)) {
        if rows[0].starts_with("marker") {
            return;
        }
        let letter = rows[0].chars().next().expect("a letter");
        let before = self.places.insert(letter, place);
        assert!(before.is_none_or(|before| before == place), "{letter} has moved");
        for (row, ordinal) in rows.iter().zip(0..) {
            let position = Position { commit: Offset::new(place.0), ordinal };
            self.positions.insert(row.clone(), position);
        }
        self.say(format!("  {letter}: {}", rows.join(" ")));
    }

    /// A position in words.
    pub(super) fn name(&self, lsn: u64) -> String {
        let last = self.places.iter().filter(|(_, (_, end))| *end <= lsn).max_by_key(|(_, at)| *at);
        match last {
            None => "before all".to_owned(),
            Some((letter, (_, end))) if *end == lsn => format!("at the end of {letter}"),
            Some((letter, _)) => format!("somewhere behind {letter}"),
        }
    }

    /// The parked table.
    pub(super) fn table(&mut self, rows: &[(Entry, Option<Request>)]) {
        self.say("the table:");
        let named = |position: Position| {
            let known = self.positions.iter().find(|(_, known)| **known == position);
            known.map_or("?", |(name, _)| name.as_str())
        };
        let line = |(entry, request): &(Entry, Option<Request>)| {
            let (name, state) = (named(entry.position), entry.state.name());
            let by = entry.overtaken_by.map(|by| format!(", overtaken by {}", named(by)));
            let request = request.map(|request| format!(", asked to {}", request.name()));
            let (by, request) = (by.unwrap_or_default(), request.unwrap_or_default());
            format!("  {name} {state}, {} refusals{by}{request}", entry.attempts)
        };
        let lines: Vec<String> = rows.iter().map(line).collect();
        self.lines.extend(lines);
    }
}
