//! The signature of a request, as Standard Webhooks has it: HMAC-SHA256 of id, time and body.
//!
//! The file of secrets is read again every few seconds, so a secret is replaced without a restart: while both are in
//! the file, each request has a signature with each.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, KeyInit as _, Mac as _};
use postrider_core::secret_file::SecretFile;
use sha2::Sha256;
use std::fmt;
use std::time::{Duration, Instant};

const SECRETS_MAX: usize = 16;

/// A file of secrets is read again when it was read so long ago.
pub(super) const SECRETS_AGE_MAX: Duration = Duration::from_secs(2);

const PREFIX: &str = "whsec_";

/// The keys of HMAC. `Debug` shows their number.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct SigningKeys(Vec<Vec<u8>>);

impl fmt::Debug for SigningKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SigningKeys({})", self.0.len())
    }
}

impl SigningKeys {
    /// # Errors
    /// The file can't be read, or a line of it is no secret: with the path, never the content.
    pub(super) fn read(file: &SecretFile) -> Result<Self, String> {
        let text = file.read().map_err(|error| error.to_string())?;
        Self::parse(&text).map_err(|why| format!("\"{}\" {why}", file.path().display()))
    }

    fn parse(text: &str) -> Result<Self, String> {
        let mut keys = Vec::new();
        for (line, number) in text.lines().zip(1..).filter(|(line, _)| !line.trim().is_empty()) {
            let encoded = line.trim();
            let encoded = encoded.strip_prefix(PREFIX).unwrap_or(encoded);
            let key = STANDARD.decode(encoded).ok().filter(|key| !key.is_empty());
            keys.push(key.ok_or_else(|| format!("has no secret, whsec_BASE64, in line {number}"))?);
        }
        match keys.len() {
            0 => Err("has no secret".to_owned()),
            1..=SECRETS_MAX => Ok(Self(keys)),
            _ => Err(format!("has more than {SECRETS_MAX} secrets, one in each line")),
        }
    }

    /// The value of `webhook-signature`. `timestamp`: seconds since 1970.
    pub(super) fn sign(&self, id: &str, timestamp: u64, body: &[u8]) -> String {
        let mut value = String::new();
        for key in &self.0 {
            // A key of any length is taken.
            let Ok(mut mac) = Hmac::<Sha256>::new_from_slice(key) else { continue };
            mac.update(format!("{id}.{timestamp}.").as_bytes());
            mac.update(body);
            if !value.is_empty() {
                value.push(' ');
            }
            value.push_str("v1,");
            STANDARD.encode_string(mac.finalize().into_bytes(), &mut value);
        }
        value
    }
}

/// A value that is read from files, and read again after [`SECRETS_AGE_MAX`]. What can't be read leaves it as it was.
#[derive(Debug)]
pub(super) struct Reread<T> {
    value: Option<T>,
    read_at: Option<Instant>,
}

impl<T> Default for Reread<T> {
    fn default() -> Self {
        Self { value: None, read_at: None }
    }
}

impl<T> Reread<T> {
    /// # Errors
    /// It was never read, and can't be read now.
    pub(super) fn get(&mut self, read: impl FnOnce() -> Result<T, String>) -> Result<&T, String> {
        let is_old = self.read_at.is_none_or(|at| at.elapsed() >= SECRETS_AGE_MAX);
        let mut problem = None;
        if is_old || self.value.is_none() {
            self.read_at = Some(Instant::now());
            match read() {
                Ok(value) => self.value = Some(value),
                Err(error) => problem = Some(error),
            }
        }
        self.value.as_ref().ok_or_else(|| problem.unwrap_or_default())
    }

    /// It is read again at the next [`Self::get`].
    pub(super) fn expire(&mut self) {
        self.read_at = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example of the Standard Webhooks specification.
    #[test]
    fn signature_is_that_of_the_specification() {
        let keys = SigningKeys::parse("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw").unwrap();
        let body = br#"{"test": 2432232314}"#;
        assert_eq!(
            keys.sign("msg_p5jXN8AQM9LWM0D4loKWxJek", 1_614_265_330, body),
            "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
        );
    }

    #[test]
    fn each_line_is_a_secret_and_each_signs() {
        let two = SigningKeys::parse("whsec_b25l\n\n dHdv \n").unwrap();
        let value = two.sign("a", 1, b"");
        let parts: Vec<_> = value.split(' ').collect();
        assert_eq!(parts.len(), 2);
        assert_eq!(parts[1], SigningKeys::parse("dHdv").unwrap().sign("a", 1, b""));
        for text in ["", "\n", "whsec_", "whsec_???", "a secret"] {
            let error = SigningKeys::parse(text).unwrap_err();
            assert!(!error.contains("???") && !error.contains("a secret"), "{error}");
        }
        assert!(SigningKeys::parse(&"b25l\n".repeat(17)).is_err());
        assert_eq!(format!("{two:?}"), "SigningKeys(2)");
    }
}
