//! Where each subject ends, with `chain = "subject"`.

use std::collections::HashMap;

/// Subjects that are remembered. Of a further one the server is asked.
const SUBJECTS_MAX: usize = 100_000;

/// The sequences of the last messages, by the order of their records
/// ([`order`](super::message::order)).
#[derive(Debug, Default)]
pub(super) struct SubjectEnds(HashMap<u64, u64>);

impl SubjectEnds {
    /// The sequence of the subject's last message; 0 if there is none. `None`: it is not known.
    pub(super) fn get(&self, order: u64) -> Option<u64> {
        self.0.get(&order).copied()
    }

    pub(super) fn set(&mut self, order: u64, sequence: u64) {
        if self.0.len() >= SUBJECTS_MAX && !self.0.contains_key(&order) {
            self.0.clear();
        }
        self.0.insert(order, sequence);
    }

    /// Another process may have stored messages.
    pub(super) fn forget(&mut self) {
        self.0.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_are_remembered_up_to_a_bound() {
        let mut ends = SubjectEnds::default();
        for order in 0..SUBJECTS_MAX as u64 {
            ends.set(order, order + 1);
        }
        ends.set(0, 7);
        assert_eq!((ends.get(0), ends.get(1)), (Some(7), Some(2)));
        ends.set(u64::MAX, 9);
        assert_eq!((ends.get(0), ends.get(u64::MAX)), (None, Some(9)));
        ends.forget();
        assert_eq!(ends.get(u64::MAX), None);
    }
}
