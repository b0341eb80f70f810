//! A store: the cursor in a file.

use postrider_core::error::{Failure, HaltReason};
use postrider_core::store::{Cursor, Store};
use std::fs::{self, File};
use std::io::{self, ErrorKind, Write};
use std::path::PathBuf;

/// Keeps the cursor as one line of a file.
#[derive(Clone, Debug)]
pub struct CursorFile(PathBuf);

impl CursorFile {
    /// The cursor in this file, which is made by the first write.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self(path.into())
    }

    /// What the file holds; `None` if there is no file.
    ///
    /// # Errors
    /// [`Failure::Temporary`] if the file can't be read; [`Failure::Halt`] if it holds something else.
    pub fn read(&self) -> Result<Option<Cursor>, Failure> {
        let text = match fs::read_to_string(&self.0) {
            Ok(text) => text,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(Failure::temporary(&error)),
        };
        let cursor = text.trim_end().parse().map_err(|error| {
            Failure::halt(
                HaltReason::SchemaUnfit,
                format!("{}: {error}", self.0.display()),
                "it is not known which events are published",
                "restore the file; or remove it, and everything that the source has is published again",
            )
        })?;
        Ok(Some(cursor))
    }

    /// Replaces the file: after a crash it has the old cursor or the new one, and after a return the new one.
    fn replace(&self, cursor: Cursor) -> io::Result<()> {
        let new = self.0.with_extension("new");
        let mut file = File::create(&new)?;
        writeln!(file, "{cursor}")?;
        file.sync_all()?;
        fs::rename(&new, &self.0)?;
        let directory = self.0.parent().filter(|directory| !directory.as_os_str().is_empty());
        File::open(directory.unwrap_or(".".as_ref()))?.sync_all()
    }
}

impl Store for CursorFile {
    async fn read_cursor(&self) -> Result<Option<Cursor>, Failure> {
        self.read()
    }

    async fn write_cursor(&self, cursor: Cursor) -> Result<(), Failure> {
        self.replace(cursor).map_err(|error| Failure::temporary(&error))
    }
}
