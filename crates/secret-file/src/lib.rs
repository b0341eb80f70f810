//! A file that holds one secret.
//!
//! The file is read each time the secret is needed, at the start and at every new connection, because secrets are
//! rotated while the process runs. `Debug` shows the path, never the content.

use std::io;
use std::path::{Path, PathBuf};

/// Maximum size of a secret. Unit: bytes.
const BYTES_MAX: usize = 64 << 10;

/// A file that holds one secret.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SecretFile(PathBuf);

/// Why a secret could not be read. The message has the file's path, never its content.
#[derive(Debug, thiserror::Error)]
pub enum SecretFileError {
    /// The file can't be read.
    #[error("could not read \"{}\": {source}", .path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The error of the operating system. It is part of the message, and therefore not the error's source.
        source: io::Error,
    },
    /// The content is not UTF-8, or is larger than 64 KiB.
    #[error("\"{}\" is not a secret: no UTF-8, or too long", .path.display())]
    NotASecret {
        /// The file.
        path: PathBuf,
    },
    /// The file is empty, or has only a newline.
    #[error("\"{}\" is empty", .path.display())]
    Empty {
        /// The file.
        path: PathBuf,
    },
}

impl SecretFile {
    /// The file at `path`. The file is not opened yet.
    pub fn new(path: PathBuf) -> Self {
        Self(path)
    }

    /// The file's path.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Reads the file. One trailing newline is removed.
    ///
    /// # Errors
    /// The file can't be read, or is not a secret: see [`SecretFileError`].
    pub fn read(&self) -> Result<String, SecretFileError> {
        let path = || self.0.clone();
        let content = std::fs::read(&self.0)
            .map_err(|source| SecretFileError::Read { path: path(), source })?;
        let text = (content.len() <= BYTES_MAX).then(|| String::from_utf8(content).ok()).flatten();
        let mut secret = text.ok_or_else(|| SecretFileError::NotASecret { path: path() })?;
        if secret.ends_with('\n') {
            secret.pop();
            if secret.ends_with('\r') {
                secret.pop();
            }
        }
        if secret.is_empty() {
            return Err(SecretFileError::Empty { path: path() });
        }
        Ok(secret)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_read_each_time_and_without_its_newline() {
        let dir = tempfile::tempdir().unwrap();
        let file = SecretFile::new(dir.path().join("pg"));
        for (content, secret) in
            [("one", "one"), ("two\n", "two"), ("three\r\n", "three"), ("f\n\n", "f\n")]
        {
            std::fs::write(file.path(), content).unwrap();
            assert_eq!(file.read().unwrap(), secret);
        }
    }

    #[test]
    fn other_content_is_an_error_that_names_only_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let file = SecretFile::new(dir.path().join("pg"));
        assert!(matches!(file.read(), Err(SecretFileError::Read { .. })));
        std::fs::write(file.path(), b"hush\xff").unwrap();
        let error = file.read().unwrap_err();
        assert!(matches!(error, SecretFileError::NotASecret { .. }));
        assert!(!error.to_string().contains("hush"), "{error}");
        std::fs::write(file.path(), "\n").unwrap();
        assert!(matches!(file.read(), Err(SecretFileError::Empty { .. })));
        std::fs::write(file.path(), vec![b'a'; BYTES_MAX + 1]).unwrap();
        assert!(matches!(file.read(), Err(SecretFileError::NotASecret { .. })));
    }
}
