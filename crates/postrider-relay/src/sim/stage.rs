//! How far a process has come with its connection to the server.

use super::polling::PollSession;
use super::streaming::Session;
use crate::ack::Progress;
use postrider_core::event::Position;
use postrider_core::parked::{Entry, Request};

/// The stage of a process.
#[derive(Debug)]
pub(super) enum Stage {
    /// The process does not run.
    Off {
        until: u64,
    },
    /// The process waits before it connects again.
    Pause {
        until: u64,
    },
    /// The process has read the cursor row.
    Read {
        row: Progress,
    },
    /// The process has the slot.
    Owns {
        start: Progress,
    },
    /// No other process can write any more, and the parked table is read.
    TookOver {
        start: Progress,
        row: Progress,
        parked: Vec<Entry>,
        requests: Vec<(Position, Request)>,
    },
    Streaming(Box<Session>),
    Polling(Box<PollSession>),
}

impl Stage {
    /// Whether the process has a session on which it reads events.
    pub(super) fn reads(&self) -> bool {
        matches!(self, Self::Streaming(_) | Self::Polling(_))
    }

    pub(super) fn is_off(&self) -> bool {
        matches!(self, Self::Off { .. })
    }
}
