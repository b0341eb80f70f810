//! The secrets of a receiver: one in each line of a file, so that a secret can be replaced while both are valid.

use super::scheme::Scheme;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use postrider_core::secret_file::{SecretFile, SecretFileError};
use std::fmt;
use std::path::PathBuf;

/// Secrets of a file.
const SECRETS_MAX: usize = 16;

/// The keys of HMAC. `Debug` shows their number.
#[derive(Clone, PartialEq, Eq)]
pub struct Secrets(Vec<Vec<u8>>);

/// Why a file has no secrets. The messages have the path, never the content.
#[derive(Debug, thiserror::Error)]
pub enum SecretsError {
    /// The file can't be read.
    #[error(transparent)]
    File(#[from] SecretFileError),
    /// A line is no secret, or there is none, or there are too many.
    #[error("\"{}\" {why}", .path.display())]
    Content {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
}

impl Secrets {
    /// Reads the secrets of a file, of which each line is valid.
    ///
    /// # Errors
    /// The file can't be read, or a line of it is no secret of this scheme.
    pub fn read(file: &SecretFile, scheme: &Scheme) -> Result<Self, SecretsError> {
        let text = file.read()?;
        Self::parse(&text, scheme)
            .map_err(|why| SecretsError::Content { path: file.path().to_owned(), why })
    }

    /// The secrets of a text; otherwise why it has none, without its content.
    pub(super) fn parse(text: &str, scheme: &Scheme) -> Result<Self, String> {
        let mut keys = Vec::new();
        for (line, number) in text.lines().zip(1..) {
            if line.trim().is_empty() {
                continue;
            }
            if keys.len() == SECRETS_MAX {
                return Err(format!("has more than {SECRETS_MAX} secrets, one in each line"));
            }
            let key = match scheme {
                Scheme::Standard => standard(line.trim()).ok_or_else(|| {
                    format!("has no secret of Standard Webhooks, whsec_BASE64, in line {number}")
                })?,
                Scheme::GitHub | Scheme::Hmac { .. } => line.as_bytes().to_vec(),
            };
            keys.push(key);
        }
        if keys.is_empty() {
            return Err("has no secret".to_owned());
        }
        Ok(Self(keys))
    }

    pub(super) fn keys(&self) -> impl Iterator<Item = &[u8]> {
        self.0.iter().map(Vec::as_slice)
    }

    /// Number of secrets.
    pub const fn count(&self) -> usize {
        self.0.len()
    }
}

impl fmt::Debug for Secrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Secrets({})", self.0.len())
    }
}

/// The key of `whsec_BASE64`; some senders leave the prefix out.
fn standard(text: &str) -> Option<Vec<u8>> {
    let key = STANDARD.decode(text.strip_prefix("whsec_").unwrap_or(text)).ok()?;
    (!key.is_empty()).then_some(key)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_line_is_a_secret() {
        let read = |text, scheme| Secrets::parse(text, scheme).map(|secrets| secrets.0);
        assert_eq!(read("a\r\n\n b \n", &Scheme::GitHub), Ok(vec![b"a".to_vec(), b" b ".to_vec()]));
        let keys = vec![b"hello".to_vec(), b"there".to_vec()];
        assert_eq!(read(" whsec_aGVsbG8= \ndGhlcmU=\n", &Scheme::Standard), Ok(keys));
        for text in ["", "\n\n", "  "] {
            assert_eq!(read(text, &Scheme::GitHub), Err("has no secret".to_owned()));
        }
        for text in ["whsec_aGVsbG8=\nwhsec_hush!", "x\nwhsec_", "whsk_aGVsbG8="] {
            let why = read(text, &Scheme::Standard).unwrap_err();
            assert!(why.starts_with("has no secret of Standard Webhooks"), "{why}");
            assert!(!why.contains("hush"), "{why}");
        }
        for (count, is_read) in [(SECRETS_MAX, true), (SECRETS_MAX + 1, false)] {
            assert_eq!(Secrets::parse(&"a\n".repeat(count), &Scheme::GitHub).is_ok(), is_read);
        }
    }

    #[test]
    fn errors_and_debug_output_name_the_file_and_no_secret() {
        let dir = tempfile::tempdir().unwrap();
        let file = SecretFile::new(dir.path().join("hook"));
        assert!(matches!(Secrets::read(&file, &Scheme::Standard), Err(SecretsError::File(_))));
        std::fs::write(file.path(), "hush!\n").unwrap();
        let error = Secrets::read(&file, &Scheme::Standard).unwrap_err().to_string();
        assert!(error.contains("hook\" has no secret") && !error.contains("hush"), "{error}");
        let secrets = Secrets::read(&file, &Scheme::GitHub).unwrap();
        assert_eq!((format!("{secrets:?}").as_str(), secrets.count()), ("Secrets(1)", 1));
    }
}
