//! Writing to the standard streams. A reader that went away, as `head` does, is no error.

use std::io::{self, ErrorKind, Write};

/// One of the standard streams.
pub(super) struct Output(Box<dyn Write>);

impl Output {
    pub(super) fn stdout() -> Self {
        Self(Box::new(io::stdout().lock()))
    }

    pub(super) fn stderr() -> Self {
        Self(Box::new(io::stderr().lock()))
    }

    /// Writes a text and a line feed.
    pub(super) fn line(&mut self, text: &str) -> io::Result<()> {
        self.line_if_read(text).map(|_read| ())
    }

    /// The same; false once the reader has gone away.
    pub(super) fn line_if_read(&mut self, text: &str) -> io::Result<bool> {
        let written = writeln!(self.0, "{text}").and_then(|()| self.0.flush());
        match written {
            Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(false),
            written => written.map(|()| true),
        }
    }

    /// As [`Output::line`], where there is nobody left to tell that it failed.
    pub(super) fn say(mut self, text: &str) {
        self.line(text).unwrap_or_default();
    }
}
