//! What JetStream answers, as far as the sink reads it.

use super::subject::covers;
use serde::Deserialize;
use std::time::Instant;

/// The codes of JetStream.
#[derive(Clone, Copy, Debug)]
pub(super) struct ErrCode;

impl ErrCode {
    pub(super) const STREAM_NOT_FOUND: i32 = 10_059;
    pub(super) const NOT_ENABLED: i32 = 10_076;
    pub(super) const NOT_ENABLED_FOR_ACCOUNT: i32 = 10_039;
    pub(super) const TOO_LARGE: i32 = 10_054;
    pub(super) const OTHER_STREAM: i32 = 10_060;
    pub(super) const WRONG_LAST_MSG_ID: i32 = 10_070;
    pub(super) const WRONG_LAST_SEQUENCE: i32 = 10_071;
    pub(super) const STORE_FAILED: i32 = 10_077;
    pub(super) const SEALED: i32 = 10_109;
    /// Not of JetStream: the status of a subject that nobody takes.
    pub(super) const NO_RESPONDERS: i32 = 503;
}

/// An error of JetStream. `err_code` is its number; `code` is like one of HTTP.
#[derive(Clone, PartialEq, Eq, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct ApiError {
    pub(super) code: i32,
    pub(super) err_code: i32,
    pub(super) description: String,
}

impl ApiError {
    /// The answer of a server to a message that is too large, for one that its client did not send.
    pub(super) fn too_large() -> Self {
        let description = "the message is larger than the server takes".to_owned();
        Self { code: 400, err_code: ErrCode::TOO_LARGE, description }
    }
}

/// The answer to a message.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct PubAck {
    pub(super) error: Option<ApiError>,
    pub(super) stream: String,
    pub(super) seq: u64,
    pub(super) duplicate: bool,
}

/// The answer to `STREAM.INFO` and `STREAM.CREATE`.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct StreamAnswer {
    pub(super) error: Option<ApiError>,
    pub(super) config: StreamSettings,
    pub(super) state: StreamState,
}

/// The settings of a stream.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct StreamSettings {
    pub(super) subjects: Vec<String>,
    pub(super) retention: String,
    pub(super) discard: String,
    pub(super) storage: String,
    #[serde(flatten)]
    pub(super) limits: StreamLimits,
    /// Nanoseconds.
    pub(super) max_age: i64,
    pub(super) max_msg_size: i64,
    pub(super) num_replicas: u32,
    /// Nanoseconds.
    pub(super) duplicate_window: i64,
    pub(super) sealed: bool,
    pub(super) no_ack: bool,
}

/// The limits at which a stream discards messages; 0 or lower for none.
#[expect(clippy::struct_field_names, reason = "the names that the server gives them")]
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct StreamLimits {
    pub(super) max_msgs: i64,
    pub(super) max_bytes: i64,
    pub(super) max_msgs_per_subject: i64,
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct StreamState {
    pub(super) messages: u64,
    pub(super) first_seq: u64,
    pub(super) last_seq: u64,
}

/// The answer to `STREAM.MSG.GET`.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct StoredAnswer {
    pub(super) error: Option<ApiError>,
    pub(super) message: Stored,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Stored {
    /// The headers as they were sent, in base64.
    pub(super) hdrs: String,
}

impl Stored {
    /// The value of a header.
    pub(super) fn header(&self, name: &str) -> Option<String> {
        use base64::Engine as _;
        let bytes = base64::engine::general_purpose::STANDARD.decode(&self.hdrs).ok()?;
        let text = String::from_utf8(bytes).ok()?;
        let mut lines = text.lines().filter_map(|line| line.split_once(':'));
        lines.find(|(known, _)| *known == name).map(|(_, value)| value.trim().to_owned())
    }
}

/// What is known of the stream.
#[derive(Clone, Debug)]
pub(super) struct StreamFacts {
    /// The subjects that it takes; none if the stream does not exist.
    pub(super) subjects: Vec<String>,
    /// The largest message, with headers: the lower one of the server's and the stream's limit. Unit: bytes.
    pub(super) size_max: usize,
    pub(super) last_seq: u64,
    pub(super) at: Instant,
}

impl StreamFacts {
    /// Of a stream that does not exist.
    pub(super) fn none(max_payload: usize) -> Self {
        let at = Instant::now();
        Self { subjects: Vec::new(), size_max: max_payload, last_seq: 0, at }
    }

    pub(super) fn of(answer: StreamAnswer, max_payload: usize) -> Self {
        let limit = usize::try_from(answer.config.max_msg_size).ok().filter(|limit| *limit > 0);
        Self {
            subjects: answer.config.subjects,
            size_max: limit.map_or(max_payload, |limit| limit.min(max_payload)),
            last_seq: answer.state.last_seq,
            at: Instant::now(),
        }
    }

    pub(super) fn takes(&self, subject: &str) -> bool {
        self.subjects.iter().any(|pattern| covers(pattern, subject))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_read() {
        let ack: PubAck =
            serde_json::from_str(r#"{"stream":"EVENTS","seq":7}"#).expect("an answer");
        assert_eq!((ack.stream.as_str(), ack.seq, ack.duplicate), ("EVENTS", 7, false));
        let refused = r#"{"error":{"code":400,"err_code":10071,"description":"wrong last sequence: 4"},
                          "stream":"EVENTS","seq":0}"#;
        let ack: PubAck = serde_json::from_str(refused).expect("an answer");
        assert_eq!(ack.error.map(|error| error.err_code), Some(10_071));
        // NATS/1.0, then Nats-Msg-Id: a/b
        let stored = Stored { hdrs: "TkFUUy8xLjANCk5hdHMtTXNnLUlkOiBhL2INCg0K".to_owned() };
        assert_eq!(stored.header("Nats-Msg-Id").as_deref(), Some("a/b"));
        assert_eq!(stored.header("Other"), None);
    }

    #[test]
    fn lower_limit_counts() {
        let answer = |max_msg_size| StreamAnswer {
            config: StreamSettings { max_msg_size, ..StreamSettings::default() },
            ..StreamAnswer::default()
        };
        for (limit, size_max) in [(-1, 1_000), (0, 1_000), (10, 10), (5_000, 1_000)] {
            assert_eq!(StreamFacts::of(answer(limit), 1_000).size_max, size_max);
        }
    }
}
