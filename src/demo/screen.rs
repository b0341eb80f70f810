//! The display of a run: a live screen on a terminal, else one line per second.

mod live;
mod plain;

use super::view::{Meter, ScreenView};
use live::Live;
use plain::Plain;
pub(super) use plain::write;
use std::io;

/// The display.
pub(super) enum Screen {
    /// The whole terminal, restored when dropped.
    Live(Live),
    /// Lines.
    Plain(Plain),
}

impl Screen {
    /// The live screen if the terminal supports it, else lines. The live screen shows the `parts` all the time.
    pub(super) fn open(is_terminal: bool, color: bool, parts: &[(&str, String)]) -> Self {
        let live = is_terminal.then(|| Live::open(color, parts));
        // A terminal that has no raw mode, for example without a keyboard, gets lines.
        live.and_then(Result::ok).map_or_else(|| Self::Plain(Plain::default()), Self::Live)
    }

    /// Shows the newest figures.
    pub(super) fn show(&mut self, view: &ScreenView, meter: &Meter) -> io::Result<()> {
        match self {
            Self::Live(live) => live.draw(view, meter),
            Self::Plain(plain) => plain.line(view),
        }
    }

    /// Whether a key that ends the demo was pressed: in raw mode Ctrl-C is not a signal but a key.
    pub(super) fn asked_to_stop(&self) -> io::Result<bool> {
        match self {
            Self::Live(_) => Live::asked_to_stop(),
            Self::Plain(_) => Ok(false),
        }
    }
}
