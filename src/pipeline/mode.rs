//! How a pipeline reads events.

use crate::relay::HaltWords;

/// How events are read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mode {
    /// From the write-ahead log, through a replication slot.
    Wal,
    /// By polling the outbox table.
    Poll,
    /// From the write-ahead log; by polling while the slot can't be used.
    Auto,
    /// From a source of the program that embeds Postrider ([`Embedded`](super::Embedded)).
    Embedded,
}

impl Mode {
    /// As in the configuration.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Wal => "wal",
            Self::Poll => "poll",
            Self::Auto => "auto",
            Self::Embedded => "embedded",
        }
    }

    /// How halts call what events are read from.
    pub(super) const fn words(self) -> HaltWords {
        match self {
            Self::Wal | Self::Poll | Self::Auto => HaltWords::POSTGRES,
            Self::Embedded => HaltWords {
                sender: "the source",
                keeper: "the source",
                disorder_hint: "correct the source so that it keeps the rules of docs/embedding.md, then start again",
            },
        }
    }

    /// How far a position moves before the cursor is written without events. In PostgreSQL the write moves the position
    /// itself: its commit, and an image of a page after a checkpoint. Unit: that of the source's offsets.
    pub(super) const fn idle_step(self) -> u64 {
        match self {
            Self::Wal | Self::Poll | Self::Auto => 4096,
            Self::Embedded => 1,
        }
    }
}
