//! What an answer means: by its status, never by its text.

use super::connect::ConnectError;
use hyper::StatusCode;
use hyper::header::{HeaderMap, RETRY_AFTER};
use postrider_core::record::{Refusal, RefusalKind};
use std::time::{Duration, SystemTime};

/// What a failed request says of its host.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum HostState {
    /// It answers.
    Answers,
    /// It fails, or does not answer in time: after several such requests the others wait.
    Fails,
    /// It can't be reached: the others wait.
    Unreachable,
}

/// What to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Meaning {
    /// The events are published.
    Published,
    /// The same request is sent again, after this pause if the receiver has asked for one.
    Again { after: Option<Duration>, host: HostState },
    /// The event can't be published as it is.
    Refused(Refusal),
    /// The destination accepts no events. `may_be_missing`: it may not exist.
    Destination { may_be_missing: bool },
}

/// An answer, or why there is none.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct WebhookAnswer {
    pub(super) verdict: Meaning,
    pub(super) status: Option<StatusCode>,
    /// What happened, without parts of the request.
    pub(super) reason: String,
    pub(super) hint: Option<&'static str>,
}

impl WebhookAnswer {
    /// The receiver has answered. `events`: those of the request.
    pub(super) fn of_status(
        status: StatusCode,
        headers: &HeaderMap,
        events: usize,
        retry_after_max: Duration,
    ) -> Self {
        let verdict = of_status(status, events, || retry_after(headers, retry_after_max));
        let reason = format!("the receiver answers {status}");
        Self { verdict, status: Some(status), reason, hint: hint(status) }
    }

    /// The request was not answered, and may have been processed.
    pub(super) fn lost(reason: String) -> Self {
        let verdict = Meaning::Again { after: None, host: HostState::Fails };
        let hint = "see the receiver's log; the same request is sent again automatically, with the same webhook-id";
        Self { verdict, status: None, reason, hint: Some(hint) }
    }

    /// The request was not sent. `chosen_by_event`: the event's topic is its URL.
    pub(super) fn not_connected(error: &ConnectError, chosen_by_event: bool) -> Self {
        let of_destination = match error {
            ConnectError::Private => true,
            ConnectError::Resolve(_) => chosen_by_event,
            ConnectError::Tcp(_)
            | ConnectError::Late(_)
            | ConnectError::Tls(_)
            | ConnectError::Files(_) => false,
        };
        let verdict = if of_destination {
            Meaning::Destination { may_be_missing: true }
        } else {
            Meaning::Again { after: None, host: HostState::Unreachable }
        };
        Self { verdict, status: None, reason: error.to_string(), hint: Some(error.hint()) }
    }

    /// The request was not sent, because a file or a token is not there.
    pub(super) fn not_sent(reason: String, hint: &'static str) -> Self {
        let verdict = Meaning::Again { after: None, host: HostState::Unreachable };
        Self { verdict, status: None, reason, hint: Some(hint) }
    }
}

fn of_status(
    status: StatusCode,
    events: usize,
    after: impl FnOnce() -> Option<Duration>,
) -> Meaning {
    let refused = |kind| {
        let native = Some(i32::from(status.as_u16()));
        Meaning::Refused(Refusal { kind, native, of_batch: events > 1 })
    };
    match status.as_u16() {
        200..=299 => Meaning::Published,
        408 | 421 | 425 | 429 => Meaning::Again { after: after(), host: HostState::Answers },
        401 | 403 | 407 => Meaning::Destination { may_be_missing: false },
        300..=399 | 404 | 405 | 410 | 426 => Meaning::Destination { may_be_missing: true },
        413 | 431 => refused(RefusalKind::TooLarge(None)),
        400 | 415 | 422 => refused(RefusalKind::Invalid),
        402..=499 => refused(RefusalKind::Other),
        // What is no final answer, and what no standard has, may change.
        _ => Meaning::Again { after: after(), host: HostState::Fails },
    }
}

/// How to make the receiver accept events.
fn hint(status: StatusCode) -> Option<&'static str> {
    Some(match status.as_u16() {
        200..=299 => return None,
        300..=399 => {
            "redirects are not followed, because they would lead signed events elsewhere: let sink.http.url, or the \
             topic, have the receiver's own URL"
        }
        401 | 407 => {
            "correct the login: sink.http.token_file, username and password_file, oauth, or secret_file; the files are \
             read again automatically"
        }
        403 => {
            "give the login of sink.http the right to send events there; the sink tries again automatically"
        }
        404 | 410 => {
            "let the receiver accept POST at this path, or correct sink.http.url and route.topic; the sink tries again \
             automatically"
        }
        405 => "let the receiver accept POST at this path; the sink tries again automatically",
        426 => "set sink.http.version to one that the receiver speaks",
        429 => {
            "the receiver limits the rate: it is sent what it accepts; lower sink.http.concurrency if it should be less"
        }
        408 | 421 | 425 => "the same request is sent again automatically",
        400..=499 => {
            "let the receiver accept the event, or replace its payload: postrider parked replace; postrider parked \
             skip leaves it out"
        }
        _ => {
            "see the receiver's log; the same request is sent again automatically, with the same webhook-id"
        }
    })
}

/// `Retry-After`, in seconds or as a date.
fn retry_after(headers: &HeaderMap, max: Duration) -> Option<Duration> {
    let text = headers.get(RETRY_AFTER)?.to_str().ok()?.trim();
    if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) {
        // A number that does not fit is longer than any maximum.
        return Some(text.parse().map_or(max, Duration::from_secs).min(max));
    }
    let at = httpdate::parse_http_date(text).ok()?;
    Some(at.duration_since(SystemTime::now()).unwrap_or_default().min(max))
}

#[cfg(test)]
mod tests {
    use super::*;
    use hyper::header::HeaderValue;

    const MAX: Duration = Duration::from_mins(10);

    fn of(status: u16) -> Meaning {
        let status = StatusCode::from_u16(status).unwrap();
        WebhookAnswer::of_status(status, &HeaderMap::new(), 1, MAX).verdict
    }

    #[test]
    fn only_2xx_is_published_and_every_other_status_has_its_meaning_and_its_hint() {
        for status in 100..=999_u16 {
            let code = StatusCode::from_u16(status).unwrap();
            let answer = WebhookAnswer::of_status(code, &HeaderMap::new(), 1, MAX);
            let is_published = answer.verdict == Meaning::Published;
            assert_eq!(is_published, (200..300).contains(&status), "{status}");
            assert_eq!(answer.hint.is_none(), is_published, "{status}");
        }
        for status in [408, 421, 425, 429] {
            assert_eq!(of(status), Meaning::Again { after: None, host: HostState::Answers });
        }
        for status in [100, 500, 502, 503, 504, 599, 600, 999] {
            assert_eq!(of(status), Meaning::Again { after: None, host: HostState::Fails });
        }
        for status in [401, 403, 407] {
            assert_eq!(of(status), Meaning::Destination { may_be_missing: false });
        }
        for status in [301, 302, 307, 308, 404, 405, 410] {
            assert_eq!(of(status), Meaning::Destination { may_be_missing: true });
        }
        for (status, code) in [
            (400, "invalid_record"),
            (415, "invalid_record"),
            (422, "invalid_record"),
            (413, "too_large"),
            (431, "too_large"),
            (402, "refused_by_broker"),
            (409, "refused_by_broker"),
            (451, "refused_by_broker"),
        ] {
            let Meaning::Refused(refusal) = of(status) else { panic!("{status}") };
            assert_eq!((refusal.code(), refusal.native), (code, Some(i32::from(status))));
            assert!(!refusal.of_batch);
        }
        let batch = WebhookAnswer::of_status(StatusCode::BAD_REQUEST, &HeaderMap::new(), 2, MAX);
        let Meaning::Refused(refusal) = batch.verdict else { panic!("{batch:?}") };
        assert!(refusal.of_batch, "any event of the batch may be meant");
    }

    #[test]
    fn retry_after_is_seconds_or_a_date_and_has_a_maximum() {
        let after = |text: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(RETRY_AFTER, HeaderValue::from_str(text).unwrap());
            retry_after(&headers, MAX)
        };
        assert_eq!(after("7"), Some(Duration::from_secs(7)));
        assert_eq!(after("0"), Some(Duration::ZERO));
        assert_eq!(after("601"), Some(MAX));
        assert_eq!(after("99999999999999999999999"), Some(MAX));
        assert_eq!(after("Thu, 01 Jan 1970 00:00:00 GMT"), Some(Duration::ZERO));
        assert_eq!(after("Fri, 31 Dec 2100 23:59:59 GMT"), Some(MAX));
        let soon = SystemTime::now() + Duration::from_mins(1);
        let read = after(&httpdate::fmt_http_date(soon)).unwrap();
        assert!((Duration::from_secs(50)..=Duration::from_mins(1)).contains(&read), "{read:?}");
        for text in ["", "-1", "1.5", "soon", "1s"] {
            assert_eq!(after(text), None, "{text:?}");
        }
    }
}
