//! Why a request to object storage did not do what it should, by the answer's status and its error code, never by its
//! words.

use crate::https::HttpsError;
use hyper::StatusCode;
use postrider_core::error::Chain;
use std::fmt;

/// A code of an answer is not longer. Unit: bytes.
const CODE_BYTES_MAX: usize = 64;

/// A request that did not do what it should.
#[derive(Debug)]
pub(super) enum StorageProblem {
    /// No answer.
    Unanswered(HttpsError),
    /// The login can't be read. The text names files, without their content.
    Login(String),
    /// A URL or a header that can't be sent: a mistake in the configuration that its reader did not find.
    Unsendable,
    /// An answer of success without header `ETag`, which each object has: that of another service, or of a proxy.
    NoStorage,
    /// An answer that refuses.
    Refused(Refusing),
}

/// An answer that refuses.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Refusing {
    pub(super) status: StatusCode,
    /// The store's own code, such as `NoSuchBucket`; empty if the answer has none.
    pub(super) code: String,
}

impl Refusing {
    /// `body`: an XML document with the element `Code`, or nothing, as of `HEAD`.
    pub(super) fn new(status: StatusCode, body: &[u8]) -> Self {
        let text = String::from_utf8_lossy(body);
        let code = text.split_once("<Code>").and_then(|(_, rest)| rest.split_once("</Code>"));
        let code = code.map_or("", |(code, _)| code.trim());
        let is_code =
            code.len() <= CODE_BYTES_MAX && code.bytes().all(|byte| byte.is_ascii_alphanumeric());
        Self { status, code: if is_code { code.to_owned() } else { String::new() } }
    }
}

impl fmt::Display for StorageProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unanswered(error) => write!(f, "{}", Chain(error)),
            Self::Login(why) => write!(f, "the login can't be read: {why}"),
            Self::Unsendable => f.write_str("the request can't be sent: its URL is not valid"),
            Self::NoStorage => {
                f.write_str("the answer has no ETag: it is not that of an object storage")
            }
            Self::Refused(Refusing { status, code }) if code.is_empty() => {
                write!(f, "the store answers {}", status.as_u16())
            }
            Self::Refused(Refusing { status, code }) => {
                write!(f, "the store answers {} {code}", status.as_u16())
            }
        }
    }
}

impl StorageProblem {
    /// The code of an answer; empty if there is none.
    pub(super) fn code(&self) -> &str {
        match self {
            Self::Refused(refusing) => &refusing.code,
            Self::Unanswered(_) | Self::Login(_) | Self::Unsendable | Self::NoStorage => "",
        }
    }

    /// The status of an answer.
    pub(super) fn status(&self) -> Option<StatusCode> {
        match self {
            Self::Refused(refusing) => Some(refusing.status),
            Self::Unanswered(_) | Self::Login(_) | Self::Unsendable | Self::NoStorage => None,
        }
    }

    /// Whether the store refuses the object because of its size.
    pub(super) fn is_too_large(&self) -> bool {
        // A proxy before the store answers 413 too, and the store would take the object.
        self.code() == "EntityTooLarge"
    }

    /// Whether the object of a conditional request exists, or somebody is storing it now.
    pub(super) fn is_there_already(&self) -> bool {
        matches!(self.status(), Some(StatusCode::PRECONDITION_FAILED | StatusCode::CONFLICT))
    }

    /// Whether the store has no conditional requests.
    pub(super) fn has_no_conditions(&self) -> bool {
        self.status() == Some(StatusCode::NOT_IMPLEMENTED)
    }

    /// How to fix it: a line that follows the problem.
    pub(super) fn hint(&self, bucket: &str) -> String {
        let refusing = match self {
            Self::Unanswered(error) => return of_no_answer(error).to_owned(),
            Self::Login(_) => {
                return "correct access_key_file, secret_key_file and session_token_file of payload.claim_check"
                    .to_owned();
            }
            Self::Unsendable | Self::NoStorage => {
                return "correct payload.claim_check.endpoint and url".to_owned();
            }
            Self::Refused(refusing) => refusing,
        };
        match refusing.code.as_str() {
            "NoSuchBucket" => format!(
                "create the bucket (aws s3api create-bucket --bucket {bucket}), or correct \
                 payload.claim_check.url"
            ),
            "InvalidAccessKeyId" | "SignatureDoesNotMatch" | "InvalidToken" | "TokenRefreshRequired" => {
                "correct access_key_file and secret_key_file of payload.claim_check, or AWS_ACCESS_KEY_ID and \
                 AWS_SECRET_ACCESS_KEY; SignatureDoesNotMatch can also mean that a proxy changes the host's name"
                    .to_owned()
            }
            "ExpiredToken" => "the login has ended: write a new one into access_key_file, secret_key_file and \
                               session_token_file of payload.claim_check, which are read for each request"
                .to_owned(),
            "RequestTimeTooSkewed" | "RequestExpired" => {
                "the clocks of this machine and of the store differ by more than 15 minutes: correct the wrong one \
                 (timedatectl)"
                    .to_owned()
            }
            "AuthorizationHeaderMalformed" | "PermanentRedirect" | "TemporaryRedirect"
            | "IllegalLocationConstraintException" => format!(
                "the bucket is in another region: set payload.claim_check.region (aws s3api get-bucket-location \
                 --bucket {bucket})"
            ),
            "SlowDown" | "ServiceUnavailable" | "InternalError" | "OperationAborted"
            | "ConditionalRequestConflict" | "RequestTimeout" => {
                "nothing to do: the store is busy, and the request is repeated".to_owned()
            }
            "QuotaExceeded" | "XMinioStorageFull" | "InsufficientStorage" => {
                "give the store more space".to_owned()
            }
            _ => of_status(refusing.status, bucket),
        }
    }
}

fn of_status(status: StatusCode, bucket: &str) -> String {
    if status == StatusCode::FORBIDDEN || status == StatusCode::UNAUTHORIZED {
        return format!(
            "let the login put objects: a policy that allows s3:PutObject and s3:GetObject on \
             arn:aws:s3:::{bucket}/*; a bucket with a key of KMS also needs kms:GenerateDataKey"
        );
    }
    if status.is_redirection() {
        return format!(
            "the bucket is elsewhere: set payload.claim_check.region (aws s3api get-bucket-location --bucket \
             {bucket}) or endpoint"
        );
    }
    if status.is_server_error() {
        return "look at the store's log; the request is repeated".to_owned();
    }
    "look up the code in the store's documentation; check payload.claim_check.endpoint, which may lead to another \
     service"
        .to_owned()
}

fn of_no_answer(error: &HttpsError) -> &'static str {
    match error {
        HttpsError::Connect(connect) if connect.is_certificate() => {
            "let the host in payload.claim_check.endpoint be a name of the store's certificate, and \
             payload.claim_check.ca_file the certificate of its authority"
        }
        HttpsError::Connect(_) => {
            "start the store, or correct payload.claim_check.endpoint; a proxy of the environment is not used"
        }
        HttpsError::Late(_) => {
            "the store or the network is slow: raise payload.claim_check.timeout if that is usual"
        }
        HttpsError::TooLarge { .. } | HttpsError::Lost(_) => {
            "look at the store's log; the request is repeated"
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(status: u16, body: &str) -> StorageProblem {
        let status = StatusCode::from_u16(status).unwrap();
        StorageProblem::Refused(Refusing::new(status, body.as_bytes()))
    }

    #[test]
    fn an_answer_is_known_by_its_code_and_status_and_shows_no_words_of_its_own() {
        let body = "<?xml version=\"1.0\"?>\n<Error><Code>NoSuchBucket</Code><Message>hush</Message></Error>";
        let problem = refused(404, body);
        assert_eq!(problem.to_string(), "the store answers 404 NoSuchBucket");
        assert!(problem.hint("shop").contains("create-bucket --bucket shop"));
        let odd = refused(400, "<Error><Code>a <b>hush</b></Code></Error>");
        assert_eq!(odd.to_string(), "the store answers 400");
        assert_eq!(refused(500, "").to_string(), "the store answers 500");
        assert!(refused(400, "<Error><Code>EntityTooLarge</Code></Error>").is_too_large());
        assert!(refused(412, "").is_there_already());
        let busy = "<Error><Code>ConditionalRequestConflict</Code></Error>";
        assert!(refused(409, busy).is_there_already());
        assert!(refused(501, "").has_no_conditions());
    }

    #[test]
    fn each_known_code_has_a_hint_of_its_own() {
        for (code, words) in [
            ("SignatureDoesNotMatch", "secret_key_file"),
            ("ExpiredToken", "session_token_file"),
            ("RequestTimeTooSkewed", "clocks"),
            ("AuthorizationHeaderMalformed", "claim_check.region"),
            ("SlowDown", "nothing to do"),
            ("AccessDenied", "s3:PutObject"),
        ] {
            let body = format!("<Error><Code>{code}</Code></Error>");
            let hint = refused(403, &body).hint("shop");
            assert!(hint.contains(words), "{code}: {hint}");
        }
        assert!(refused(301, "").hint("shop").contains("region"));
    }
}
