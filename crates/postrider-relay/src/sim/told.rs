//! What producers have said, and so whom a later event of its aggregate has overtaken.
//!
//! Only what one producer says has an order: an event that one has refused and the next has published in its place was
//! overtaken by nobody.

use super::truth::Truth;
use super::world::World;
use postrider_core::record::{Outcome, Scope};

/// What a producer has said of events of the stream.
#[derive(Debug, Default)]
pub(super) struct Told {
    /// The producer's number.
    by: u64,
    acked: Vec<usize>,
    /// In a batch that was refused.
    refused: Vec<usize>,
}

impl Told {
    pub(super) fn by(number: u64) -> Self {
        Self { by: number, ..Self::default() }
    }

    /// Events that were refused, and had a later one of their aggregate acknowledged.
    pub(super) fn overtaken(&self, truth: &Truth) -> Vec<usize> {
        let passed =
            |event: &&usize| self.acked.iter().any(|later| truth.is_behind(*later, **event));
        self.refused.iter().filter(passed).copied().collect()
    }

    /// One more outcome, and whom it shows to be overtaken.
    fn note(&mut self, truth: &Truth, event: usize, outcome: Outcome) -> Vec<usize> {
        match outcome {
            Outcome::Acked => {
                self.acked.push(event);
                let passed = |earlier: &&usize| truth.is_behind(event, **earlier);
                self.refused.iter().filter(passed).copied().collect()
            }
            Outcome::Rejected { scope: Scope::Event, .. } => {
                self.refused.push(event);
                let passed = self.acked.iter().any(|later| truth.is_behind(*later, event));
                passed.then_some(event).into_iter().collect()
            }
            Outcome::Rejected { .. } | Outcome::Unknown => Vec::new(),
        }
    }
}

impl World {
    /// Whom a producer's events have overtaken is found at its end; what it says after that is seen to at once.
    pub(super) fn note(&mut self, i: usize, event: usize, outcome: Outcome, by: u64) {
        let process = &mut self.procs[i];
        if process.ending() {
            return;
        }
        if by == process.told.by {
            process.told.note(&self.truth, event, outcome);
        } else if by == process.told_before.by {
            let overtaken = process.told_before.note(&self.truth, event, outcome);
            process.overtaken.extend(overtaken);
        }
    }
}
