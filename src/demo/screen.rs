//! Showing a run: a live screen on a terminal, one line a second elsewhere.

mod live;
mod plain;

use super::view::{Meter, View};
use live::Live;
use plain::Plain;
pub(super) use plain::write;
use std::io;

/// One of the two.
pub(super) enum Screen {
    /// The whole terminal, restored when dropped.
    Live(Live),
    /// Lines.
    Plain(Plain),
}

impl Screen {
    /// The live one on a terminal that can do it; it keeps showing the `parts`.
    pub(super) fn open(is_terminal: bool, color: bool, parts: &[(&str, String)]) -> Self {
        let live = is_terminal.then(|| Live::open(color, parts));
        // A terminal that can't be put into raw mode, as where there is no keyboard, still takes lines.
        live.and_then(Result::ok).map_or_else(|| Self::Plain(Plain::default()), Self::Live)
    }

    /// Shows the newest figures.
    pub(super) fn show(&mut self, view: &View, meter: &Meter) -> io::Result<()> {
        match self {
            Self::Live(live) => live.draw(view, meter),
            Self::Plain(plain) => plain.line(view),
        }
    }

    /// Whether a key asked for the end: in raw mode Ctrl-C is a key like others.
    pub(super) fn asked_to_stop(&self) -> io::Result<bool> {
        match self {
            Self::Live(_) => Live::asked_to_stop(),
            Self::Plain(_) => Ok(false),
        }
    }
}
