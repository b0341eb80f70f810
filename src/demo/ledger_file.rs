//! The ledger as a file, for `postrider verify --ledger`.

use super::error::DemoError;
use super::ledger::{Ledger, Outcome};
use super::writer::{AGGREGATE_TYPE, key};
use crate::verify::{LedgerEvent, LedgerHead, LedgerOutcome};
use serde::Serialize;
use std::fs::File;
use std::io::{self, BufWriter, Write as _};
use std::path::Path;

/// Writes the events that were inserted, with the topic that they are routed to.
pub(super) fn write(path: &Path, topic: &str, ledger: &Ledger) -> Result<(), DemoError> {
    let written = File::create(path).and_then(|file| {
        let mut file = BufWriter::new(file);
        line(&mut file, &LedgerHead::default())?;
        for (lane, id, outcome) in ledger.entries() {
            let event = LedgerEvent {
                id: id.to_string(),
                topic: Some(topic.to_owned()),
                key: Some(key(lane)),
                aggregate_type: AGGREGATE_TYPE.to_owned(),
                aggregate_id: Some(key(lane)),
                outcome: match outcome {
                    Outcome::Committed => LedgerOutcome::Committed,
                    Outcome::RolledBack => LedgerOutcome::RolledBack,
                    Outcome::Pending | Outcome::Unknown => LedgerOutcome::Unknown,
                },
                at_us: None,
            };
            line(&mut file, &event)?;
        }
        file.flush()
    });
    written.map_err(|source| DemoError::LedgerFile { path: path.to_owned(), source })
}

fn line(file: &mut impl io::Write, value: &impl Serialize) -> io::Result<()> {
    serde_json::to_writer(&mut *file, value)?;
    file.write_all(b"\n")
}
