//! A file that holds one secret, and the rules by which it is read.
//!
//! Secrets are rotated while the process runs, so the file is read each time that the secret is needed: at the start,
//! and at every new connection. `Debug` shows the path, never the content.

use std::io;
use std::path::{Path, PathBuf};

/// The longest secret. Unit: bytes.
const BYTES_MAX: usize = 64 << 10;

/// A file that holds one secret.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SecretFile(PathBuf);

/// Why a secret could not be read from its file. Names the file, never what is in it.
#[derive(Debug, thiserror::Error)]
pub enum SecretFileError {
    /// The file can't be read.
    #[error("could not read \"{}\": {source}", .path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system reported. Part of the message, and therefore not a source.
        source: io::Error,
    },
    /// It is not text, or too long.
    #[error("\"{}\" is not a secret: no UTF-8, or too long", .path.display())]
    NotASecret {
        /// The file.
        path: PathBuf,
    },
    /// Nothing is in it.
    #[error("\"{}\" is empty", .path.display())]
    Empty {
        /// The file.
        path: PathBuf,
    },
}

impl SecretFile {
    /// The file at `path`. It is not opened yet.
    pub fn new(path: PathBuf) -> Self {
        Self(path)
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// What the file holds now, without one trailing newline.
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
    fn what_is_no_secret_is_an_error_that_names_the_file_alone() {
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
