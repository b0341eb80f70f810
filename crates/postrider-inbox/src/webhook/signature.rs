//! The signature of a request: whether its sender has a secret of the receiver, and the id of its message.
//!
//! Signatures are compared in constant time. Nothing here reads a clock or a file.

use super::scheme::{
    Encoding, GITHUB_ID, GITHUB_SIGNATURE, Header, STANDARD_ID, STANDARD_SIGNATURE,
    STANDARD_TIMESTAMP, Scheme,
};
use super::secrets::Secrets;
use crate::message::ID_BYTES_MAX;
use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;
use std::time::Duration;

/// Digits of a time. Unit: digits of seconds since 1970.
const TIMESTAMP_DIGITS_MAX: usize = 12;

/// Signatures of one request that are compared; more are a mistake or an attack.
const SIGNATURES_MAX: usize = 16;

/// What is verified.
#[derive(Clone, Copy)]
pub struct SignedRequest<'a> {
    /// The headers, with names in lower case.
    pub headers: &'a [Header],
    /// The body, as it was sent.
    pub body: &'a [u8],
    /// The time of the arrival. Unit: seconds since 1970.
    pub now: i64,
    /// How far the time of the request may be from `now`, in both directions.
    pub tolerance: Duration,
}

/// A request whose sender has a secret.
#[derive(Clone, PartialEq, Eq)]
pub struct Verified {
    /// The id of the message.
    pub id: String,
    /// The signed time, with Standard Webhooks. Unit: seconds since 1970.
    pub timestamp: Option<i64>,
}

/// Why a request is refused. The messages have nothing of the request but the names of headers that are configured.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Refused {
    /// There is no id: a repetition of the message could not be recognised.
    #[error("header \"{header}\", the id of the message, is missing")]
    NoId {
        /// The header.
        header: String,
    },
    /// The id can't be stored, or is ambiguous.
    #[error("header \"{header}\", the id of the message, {why}")]
    BadId {
        /// The header.
        header: String,
        /// What is wrong with it.
        why: &'static str,
    },
    /// A header that decides about the request is there twice.
    #[error("header \"{header}\" is there twice")]
    Twice {
        /// The header.
        header: String,
    },
    /// There is no signature.
    #[error("header \"{header}\", the signature, is missing")]
    NoSignature {
        /// The header.
        header: String,
    },
    /// The signature has another form than the scheme has.
    #[error("header \"{header}\" has no signature of the form {form}")]
    BadSignature {
        /// The header.
        header: String,
        /// The form.
        form: &'static str,
    },
    /// No secret gives this signature.
    #[error("the signature does not match: another secret, or another body than was signed")]
    NoMatch,
    /// There is no time.
    #[error("header \"webhook-timestamp\" is missing, or is no number of seconds")]
    NoTimestamp,
    /// The request was signed too long ago, or will be signed.
    #[error(
        "the signed time is {seconds} s {direction} the clock of the receiver, and {tolerance} s are allowed"
    )]
    Time {
        /// How far it is.
        seconds: u64,
        /// `behind` or `ahead of`.
        direction: &'static str,
        /// How far it may be. Unit: seconds.
        tolerance: u64,
    },
}

impl Refused {
    /// Whether the request is malformed; otherwise its sender is not known to have a secret.
    pub const fn is_malformed(&self) -> bool {
        match self {
            Self::NoId { .. } | Self::BadId { .. } | Self::Twice { .. } => true,
            Self::NoSignature { .. }
            | Self::BadSignature { .. }
            | Self::NoMatch
            | Self::NoTimestamp
            | Self::Time { .. } => false,
        }
    }
}

/// Whether the sender of a request has one of the secrets, and the id of its message.
///
/// # Errors
/// The request must not be stored.
pub fn verify(
    scheme: &Scheme,
    request: &SignedRequest<'_>,
    secrets: &Secrets,
) -> Result<Verified, Refused> {
    match scheme {
        Scheme::Standard => standard(request, secrets),
        Scheme::GitHub => {
            let (signature, form) = (GITHUB_SIGNATURE, "sha256=HEX");
            of_body(request, secrets, (signature, "sha256=", Encoding::Hex, form))?;
            Ok(Verified { id: id(request.headers, GITHUB_ID)?, timestamp: None })
        }
        Scheme::Hmac { signature_header, signature_prefix, encoding, id_header } => {
            let form = match encoding {
                Encoding::Hex => "signature_prefix and 64 digits in base 16",
                Encoding::Base64 => "signature_prefix and 44 characters of base64",
            };
            of_body(request, secrets, (signature_header, signature_prefix, *encoding, form))?;
            Ok(Verified { id: id(request.headers, id_header)?, timestamp: None })
        }
    }
}

/// Standard Webhooks: id, time and body are signed, with full stops between them.
fn standard(request: &SignedRequest<'_>, secrets: &Secrets) -> Result<Verified, Refused> {
    let id = id(request.headers, STANDARD_ID)?;
    // Otherwise one signature could be for two requests: a part of the id could be read as the time, and the time as
    // the beginning of the body.
    let is_number = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    if id.split('.').skip(1).any(is_number) {
        let why = "has a number between full stops, which could be read as the time";
        return Err(Refused::BadId { header: STANDARD_ID.to_owned(), why });
    }
    let time = one(request.headers, STANDARD_TIMESTAMP)?.ok_or(Refused::NoTimestamp)?;
    let timestamp = seconds(time).ok_or(Refused::NoTimestamp)?;
    let header = one(request.headers, STANDARD_SIGNATURE)?
        .ok_or_else(|| Refused::NoSignature { header: STANDARD_SIGNATURE.to_owned() })?;
    let signatures: Vec<Vec<u8>> = header
        .split(|byte| *byte == b' ')
        // Other versions are signatures of other kinds, which a sender may add.
        .filter_map(|signature| signature.strip_prefix(b"v1,"))
        .take(SIGNATURES_MAX)
        .filter_map(|signature| Encoding::Base64.decode(signature))
        .collect();
    if signatures.is_empty() {
        let header = STANDARD_SIGNATURE.to_owned();
        return Err(Refused::BadSignature { header, form: "v1,BASE64" });
    }
    is_signed(&[id.as_bytes(), b".", time, b".", request.body], &signatures, secrets)?;
    let (now, tolerance) = (request.now, request.tolerance.as_secs());
    let (seconds, direction) = if timestamp <= now {
        (now.abs_diff(timestamp), "behind")
    } else {
        (timestamp.abs_diff(now), "ahead of")
    };
    if seconds > tolerance {
        return Err(Refused::Time { seconds, direction, tolerance });
    }
    Ok(Verified { id, timestamp: Some(timestamp) })
}

/// Whether the body is signed. The tuple: header, prefix, encoding, and the form for a message.
fn of_body(
    request: &SignedRequest<'_>,
    secrets: &Secrets,
    (header, prefix, encoding, form): (&str, &str, Encoding, &'static str),
) -> Result<(), Refused> {
    let value = one(request.headers, header)?
        .ok_or_else(|| Refused::NoSignature { header: header.to_owned() })?;
    let signature = value
        .strip_prefix(prefix.as_bytes())
        .and_then(|signature| encoding.decode(signature))
        .ok_or_else(|| Refused::BadSignature { header: header.to_owned(), form })?;
    is_signed(&[request.body], &[signature], secrets)
}

/// Whether one of the signatures is that of the parts, by one of the secrets.
fn is_signed(parts: &[&[u8]], signatures: &[Vec<u8>], secrets: &Secrets) -> Result<(), Refused> {
    for key in secrets.keys() {
        // A key of any length is a key of HMAC.
        let Ok(mut mac) = Hmac::<Sha256>::new_from_slice(key) else { continue };
        for part in parts {
            mac.update(part);
        }
        // In constant time.
        if signatures.iter().any(|signature| mac.clone().verify_slice(signature).is_ok()) {
            return Ok(());
        }
    }
    Err(Refused::NoMatch)
}

/// The value of a header that must not be there twice.
fn one<'a>(headers: &'a [Header], name: &str) -> Result<Option<&'a [u8]>, Refused> {
    let mut values = headers.iter().filter(|(known, _)| known == name);
    let first = values.next().map(|(_, value)| value.as_slice());
    if values.next().is_some() {
        return Err(Refused::Twice { header: name.to_owned() });
    }
    Ok(first)
}

fn id(headers: &[Header], name: &str) -> Result<String, Refused> {
    let header = || name.to_owned();
    let value = one(headers, name)?.ok_or_else(|| Refused::NoId { header: header() })?;
    let bad = |why| Refused::BadId { header: header(), why };
    if value.is_empty() {
        return Err(Refused::NoId { header: header() });
    }
    if value.len() > ID_BYTES_MAX {
        return Err(bad("is longer than 991 bytes"));
    }
    let text = std::str::from_utf8(value).ok().filter(|text| !text.contains('\0'));
    text.map(str::to_owned).ok_or_else(|| bad("is no text"))
}

fn seconds(text: &[u8]) -> Option<i64> {
    let is_number = text.len() <= TIMESTAMP_DIGITS_MAX && text.iter().all(u8::is_ascii_digit);
    is_number.then(|| std::str::from_utf8(text).ok()?.parse().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;
    use base64::Engine as _;
    use base64::engine::general_purpose::STANDARD;

    /// The published example of Standard Webhooks.
    const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
    const ID: &str = "msg_p5jXN8AQM9LWM0D4loKWxJek";
    const TIME: i64 = 1_614_265_330;
    const BODY: &str = "{\"test\": 2432232314}";
    const SIGNATURE: &str = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=";

    fn headers(all: &[(&str, &str)]) -> Vec<Header> {
        all.iter().map(|(name, value)| ((*name).to_owned(), value.as_bytes().to_vec())).collect()
    }

    fn verify(
        scheme: &Scheme,
        secrets: &str,
        all: &[(&str, &str)],
        body: &str,
        now: i64,
    ) -> Result<String, Refused> {
        let secrets = Secrets::parse(secrets, scheme).unwrap();
        let (headers, tolerance) = (headers(all), Duration::from_mins(5));
        let request = SignedRequest { headers: &headers, body: body.as_bytes(), now, tolerance };
        super::verify(scheme, &request, &secrets).map(|verified| verified.id)
    }

    fn standard_at(id: &str, time: &str, signature: &str, now: i64) -> Result<String, Refused> {
        let all = [(STANDARD_ID, id), (STANDARD_TIMESTAMP, time), (STANDARD_SIGNATURE, signature)];
        verify(&Scheme::Standard, SECRET, &all, BODY, now)
    }

    fn sign(secret: &[u8], parts: &[&str]) -> Vec<u8> {
        let mut mac = Hmac::<Sha256>::new_from_slice(secret).unwrap();
        mac.update(parts.join(".").as_bytes());
        mac.finalize().into_bytes().to_vec()
    }

    #[test]
    fn the_published_example_of_standard_webhooks_is_verified() {
        let time = TIME.to_string();
        assert_eq!(standard_at(ID, &time, SIGNATURE, TIME).unwrap(), ID);
        let others = format!("v1a,aaaa v1,{} v1,! {SIGNATURE}", STANDARD.encode([7; 32]));
        assert_eq!(standard_at(ID, &time, &others, TIME).unwrap(), ID);
        for (id, time, signature) in [
            ("msg_p5jXN8AQM9LWM0D4loKWxJeK", "1614265330", SIGNATURE),
            (ID, "1614265331", SIGNATURE),
            (ID, "1614265330", "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OF="),
            (ID, "1614265330", "v1,AAAA"),
        ] {
            let refused = standard_at(id, time, signature, TIME).unwrap_err();
            assert!(!refused.is_malformed(), "{refused}");
            let no_match = matches!(refused, Refused::NoMatch | Refused::BadSignature { .. });
            assert!(no_match, "{refused}");
        }
        for signature in ["", "v1,", "v1", "v2,AAAA", "AAAA", "v1,%%%"] {
            let refused = standard_at(ID, &time, signature, TIME).unwrap_err();
            let is_form = matches!(refused, Refused::BadSignature { .. } | Refused::NoMatch);
            assert!(is_form, "{signature}: {refused}");
        }
    }

    #[test]
    fn a_signed_time_is_near_the_clock() {
        let time = TIME.to_string();
        for (now, is_near) in
            [(TIME, true), (TIME + 300, true), (TIME + 301, false), (TIME - 300, true)]
        {
            assert_eq!(standard_at(ID, &time, SIGNATURE, now).is_ok(), is_near, "{now}");
        }
        let refused = standard_at(ID, &time, SIGNATURE, TIME - 301).unwrap_err();
        let text =
            "the signed time is 301 s ahead of the clock of the receiver, and 300 s are allowed";
        assert_eq!(refused.to_string(), text);
        for time in ["", "-1614265330", "+1614265330", "1614265330.0", "16142653300000", "now"] {
            let refused = standard_at(ID, time, SIGNATURE, TIME);
            let is_no_time = matches!(refused, Err(Refused::NoTimestamp | Refused::NoMatch));
            assert!(is_no_time, "{time}");
        }
    }

    #[test]
    fn one_signature_is_for_one_request() {
        let key = STANDARD.decode("MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw").unwrap();
        let now = TIME.to_string();
        // Signed as id "a", time TIME and body "1614265331.5".
        let signature = format!("v1,{}", STANDARD.encode(sign(&key, &["a", &now, "1614265331.5"])));
        let all = |id: &'static str, time: &'static str| {
            let signature = signature.clone();
            move |body: &str| {
                let all = [
                    (STANDARD_ID, id),
                    (STANDARD_TIMESTAMP, time),
                    (STANDARD_SIGNATURE, &signature),
                ];
                verify(&Scheme::Standard, SECRET, &all, body, TIME)
            }
        };
        assert_eq!(all("a", "1614265330")("1614265331.5").unwrap(), "a");
        let other = all("a.1614265330", "1614265331")("5").unwrap_err();
        assert!(matches!(other, Refused::BadId { .. }), "{other}");
        let dots = format!("v1,{}", STANDARD.encode(sign(&key, &["evt.a-1.b", &now, BODY])));
        assert!(standard_at("evt.a-1.b", &now, &dots, TIME).is_ok());
    }

    #[test]
    fn the_published_example_of_github_is_verified() {
        let secret = "It's a Secret to Everybody";
        let signature = "sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17";
        let ask = |signature: &str, body: &str| {
            let all = [(GITHUB_SIGNATURE, signature), (GITHUB_ID, "72d3162e")];
            verify(&Scheme::GitHub, secret, &all, body, 0)
        };
        assert_eq!(ask(signature, "Hello, World!").unwrap(), "72d3162e");
        assert_eq!(ask(signature, "Hello, World?"), Err(Refused::NoMatch));
        let upper = signature.to_uppercase().replace("SHA256", "sha256");
        assert!(ask(&upper, "Hello, World!").is_ok());
        for bad in ["", "sha256=", "sha256=7", "sha1=757107", "sha256=zz", "sha256=7571é"] {
            let refused = ask(bad, "Hello, World!").unwrap_err();
            let is_refused = matches!(refused, Refused::BadSignature { .. } | Refused::NoMatch);
            assert!(is_refused && !refused.is_malformed(), "{bad}");
        }
    }

    #[test]
    fn a_scheme_of_the_senders_own_is_verified() {
        let scheme = |encoding| Scheme::Hmac {
            signature_header: "x-signature".to_owned(),
            signature_prefix: "v=".to_owned(),
            encoding,
            id_header: "x-id".to_owned(),
        };
        let signature = sign(b"secret", &[BODY]);
        let digits = |byte: &u8| {
            [byte >> 4, byte & 15].map(|digit| char::from(b"0123456789abcdef"[usize::from(digit)]))
        };
        let hex: String = signature.iter().flat_map(digits).collect();
        let base64 = STANDARD.encode(&signature);
        for (encoding, right, wrong) in
            [(Encoding::Hex, &hex, &base64), (Encoding::Base64, &base64, &hex)]
        {
            let ask = |signature: &str| {
                let all = [("x-signature", signature), ("x-id", "7")];
                verify(&scheme(encoding), "other\nsecret\n", &all, BODY, 0)
            };
            assert_eq!(ask(&format!("v={right}")).unwrap(), "7");
            assert!(ask(right).is_err());
            assert!(ask(&format!("v={wrong}")).is_err());
        }
    }

    #[test]
    fn what_a_request_lacks_is_named() {
        let time = TIME.to_string();
        let whole = [
            (STANDARD_ID, ID),
            (STANDARD_TIMESTAMP, time.as_str()),
            (STANDARD_SIGNATURE, SIGNATURE),
        ];
        for (left_out, text, is_malformed) in [
            (0, "header \"webhook-id\", the id of the message, is missing", true),
            (1, "header \"webhook-timestamp\" is missing, or is no number of seconds", false),
            (2, "header \"webhook-signature\", the signature, is missing", false),
        ] {
            let mut all = whole.to_vec();
            all.remove(left_out);
            let refused = verify(&Scheme::Standard, SECRET, &all, BODY, TIME).unwrap_err();
            assert_eq!(
                (refused.to_string().as_str(), refused.is_malformed()),
                (text, is_malformed)
            );
            all = whole.to_vec();
            all.push(whole[left_out]);
            let refused = verify(&Scheme::Standard, SECRET, &all, BODY, TIME).unwrap_err();
            assert!(matches!(refused, Refused::Twice { .. }), "{refused}");
        }
        let long = "a".repeat(ID_BYTES_MAX + 1);
        let refused = standard_at(&long, &time, SIGNATURE, TIME).unwrap_err();
        assert!(refused.is_malformed() && !refused.to_string().contains("aaa"), "{refused}");
    }
}
