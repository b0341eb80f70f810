//! The schemes by which senders sign requests, and their headers.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

/// Name, in lower case, and value of a header.
pub type Header = (String, Vec<u8>);

/// The headers of Standard Webhooks.
pub(super) const STANDARD_ID: &str = "webhook-id";
pub(super) const STANDARD_TIMESTAMP: &str = "webhook-timestamp";
pub(super) const STANDARD_SIGNATURE: &str = "webhook-signature";

/// The headers of GitHub.
pub(super) const GITHUB_ID: &str = "x-github-delivery";
pub(super) const GITHUB_SIGNATURE: &str = "x-hub-signature-256";

/// How requests are signed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Scheme {
    /// Standard Webhooks: id, time and body are signed.
    Standard,
    /// GitHub: the body is signed.
    GitHub,
    /// HMAC-SHA256 of the body, in a header of the sender's choice. Names of headers are in lower case.
    Hmac {
        /// The header with the signature.
        signature_header: String,
        /// The text before the signature, such as `sha256=`.
        signature_prefix: String,
        /// How the signature is written.
        encoding: Encoding,
        /// The header with the id of the message.
        id_header: String,
    },
}

/// How a signature is written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Encoding {
    /// In base 16, in upper or lower case.
    Hex,
    /// In base 64.
    Base64,
}

impl Scheme {
    /// The word of the configuration.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Standard => "standard",
            Self::GitHub => "github",
            Self::Hmac { .. } => "hmac",
        }
    }

    /// The header with the signature, in lower case.
    pub fn signature_header(&self) -> &str {
        match self {
            Self::Standard => STANDARD_SIGNATURE,
            Self::GitHub => GITHUB_SIGNATURE,
            Self::Hmac { signature_header, .. } => signature_header,
        }
    }
}

impl Encoding {
    /// The word of the configuration.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Hex => "hex",
            Self::Base64 => "base64",
        }
    }

    /// The bytes of a signature; `None` if it is not written so.
    pub(super) fn decode(self, text: &[u8]) -> Option<Vec<u8>> {
        match self {
            Self::Base64 => STANDARD.decode(text).ok(),
            Self::Hex => {
                let (pairs, rest) = text.as_chunks::<2>();
                let byte = |[high, low]: &[u8; 2]| Some(digit(*high)? << 4 | digit(*low)?);
                rest.is_empty().then(|| pairs.iter().map(byte).collect()).flatten()
            }
        }
    }
}

fn digit(character: u8) -> Option<u8> {
    let digit = char::from(character).to_digit(16)?;
    u8::try_from(digit).ok()
}
