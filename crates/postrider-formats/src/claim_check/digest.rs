//! The digest of a payload, and the name of its object.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use sha2::{Digest as _, Sha256};
use std::fmt::{self, Write as _};

/// A SHA-256 digest. It is no secret, but tells who knows a payload that it was published: `Debug` shows its beginning.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct PayloadDigest([u8; 32]);

impl PayloadDigest {
    pub(super) fn of(payload: &[u8]) -> Self {
        Self(Sha256::digest(payload).into())
    }

    /// 64 digits in base 16.
    pub(super) fn hex(&self) -> String {
        hex(&self.0)
    }

    /// As header `x-amz-checksum-sha256` has it.
    pub(super) fn base64(&self) -> String {
        STANDARD.encode(self.0)
    }
}

impl fmt::Debug for PayloadDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let start: String = self.hex().chars().take(8).collect();
        write!(f, "PayloadDigest({start}…)")
    }
}

/// Bytes in base 16.
pub(super) fn hex(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(2 * bytes.len());
    for byte in bytes {
        // Writing to a string can't fail.
        let _written = write!(text, "{byte:02x}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_digest_is_that_of_sha256_and_its_debug_does_not_show_it() {
        let digest = PayloadDigest::of(b"abc");
        let hex = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(digest.hex(), hex);
        assert_eq!(digest.base64(), "ungWv48Bz+pBQUDeXa4iI7ADYaOWF3qctBD/YfIAFa0=");
        assert_eq!(format!("{digest:?}"), "PayloadDigest(ba7816bf…)");
    }
}
