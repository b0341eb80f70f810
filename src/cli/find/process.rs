//! What the running process remembers: the answer of `/find` of its admin endpoint.

use crate::cli::error::CliError;
use crate::cli::status::get;
use crate::pipeline::PipelineSpec;
use serde::Deserialize;
use std::fmt::Write as _;
use std::net::SocketAddr;

/// What is asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Wanted<'a> {
    Id(&'a str),
    /// Type and id.
    Aggregate(&'a str, &'a str),
}

/// An event that the process has passed to its sink.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
pub(super) struct SentEvent {
    pub(super) state: SentState,
    pub(super) position: String,
    pub(super) topic: Option<String>,
    pub(super) partition: Option<i32>,
    pub(super) offset: Option<i64>,
    pub(super) sent_unix_ms: u64,
    pub(super) settled_unix_ms: Option<u64>,
}

/// How far the process has published it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum SentState {
    InFlight,
    InTransaction,
    Published,
    Refused,
    GivenUp,
}

/// How far back the process remembers.
#[derive(Clone, PartialEq, Debug, Deserialize)]
pub(super) struct Remembered {
    pub(super) since_unix_ms: u64,
    pub(super) seconds: f64,
    pub(super) changes_max: u64,
    pub(super) since_start: bool,
}

/// The answer of the process.
#[derive(Clone, PartialEq, Debug, Deserialize)]
pub(super) struct ProcessAnswer {
    source: String,
    slot: String,
    pub(super) state: String,
    pub(super) now_unix_ms: u64,
    pub(super) remembers: Option<Remembered>,
    pub(super) found: Vec<SentEvent>,
    pub(super) more: bool,
}

impl ProcessAnswer {
    /// Whether the process reads for the pipeline, or did so last: what it does not remember, no other process publishes.
    pub(super) fn reads(&self) -> bool {
        !matches!(self.state.as_str(), "standing_by" | "halted" | "stopped" | "starting")
    }
}

/// Asks the process. The error says why there is no answer about this pipeline.
pub(super) async fn ask(
    listen: Option<SocketAddr>,
    spec: &PipelineSpec,
    wanted: Wanted<'_>,
) -> Result<ProcessAnswer, String> {
    let Some(address) = listen else { return Err("admin.listen is \"\"".to_owned()) };
    let mut target = String::from("/find?pipeline=");
    encode(&mut target, &spec.key().pipeline);
    // Writing to a String does not fail.
    write!(target, "&shard={}", spec.key().shard).unwrap_or_default();
    match wanted {
        Wanted::Id(id) => {
            target.push_str("&id=");
            encode(&mut target, id);
        }
        Wanted::Aggregate(kind, id) => {
            target.push_str("&aggregate=");
            encode(&mut target, kind);
            target.push(':');
            encode(&mut target, id);
        }
    }
    let body = match get(address, &target).await {
        Ok(body) => body,
        Err(CliError::Stranger(_)) => {
            return Err(format!(
                "the process at {address} does not run this pipeline, is of an earlier version, or is no Postrider"
            ));
        }
        Err(error) => return Err(error.one_line()),
    };
    let answer: ProcessAnswer = serde_json::from_str(&body)
        .map_err(|_not_json| format!("the process at {address} is no Postrider of this version"))?;
    let own = (spec.source_name(), &spec.names.slot);
    for (what, here, there) in [("source", &own.0, &answer.source), ("slot", own.1, &answer.slot)] {
        // Empty before the pipeline has begun.
        if !there.is_empty() && there != here {
            return Err(format!(
                "the process at {address} runs a pipeline of this name with {what} {there}, and here it is {here}"
            ));
        }
    }
    Ok(answer)
}

/// Adds a text, percent-encoded.
fn encode(target: &mut String, text: &str) {
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.' | b'~') {
            target.push(char::from(byte));
        } else {
            // Writing to a String does not fail.
            write!(target, "%{byte:02X}").unwrap_or_default();
        }
    }
}
