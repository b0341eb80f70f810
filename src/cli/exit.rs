//! How the process ends.

use std::process::{ExitCode, Termination};

/// The exit codes: a contract with scripts and service managers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Exit {
    /// Done; a clean stop.
    Done,
    /// Completed, but found problems.
    NotWell,
    /// Wrong usage or configuration; nothing was touched.
    Usage,
    /// Stopped for an operator: going on could lose or reorder events.
    Halted,
    /// A bug in Postrider: an invariant of its own broke.
    Bug,
}

impl Exit {
    /// The number.
    pub const fn code(self) -> u8 {
        match self {
            Self::Done => 0,
            Self::NotWell => 1,
            Self::Usage => 2,
            Self::Halted => 3,
            Self::Bug => 70,
        }
    }
}

impl Termination for Exit {
    fn report(self) -> ExitCode {
        ExitCode::from(self.code())
    }
}
