//! `/find`: where this process has published an event. It searches what the process remembers; no database is asked, and
//! no payload is shown.

use crate::event::Aggregate;
use crate::publications::{Publication, PublicationsReach, Sought};
use crate::status::{PipelineState, StatusHandle};
use serde::Serialize;
use std::time::{SystemTime, UNIX_EPOCH};

/// Events that one answer has.
const EVENTS_MAX: usize = 20;

/// The longest id, and the longest aggregate, that is searched for. Unit: bytes.
pub const TEXT_MAX: usize = 4096;

/// What is searched for: `pipeline=NAME`, with `id=ID` or `aggregate=TYPE:ID`, and `shard=N` for another shard than 0.
/// Values are percent-encoded; `+` is a plus sign.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct FindQuery {
    pub(super) pipeline: String,
    pub(super) shard: i32,
    wanted: WantedEvents,
}

#[derive(Clone, PartialEq, Eq, Debug)]
enum WantedEvents {
    Id(String),
    /// Type and id.
    Aggregate(String, String),
}

impl FindQuery {
    /// Parses the query of the request.
    ///
    /// # Errors
    /// What is wrong, as a sentence without the value.
    pub(super) fn parse(query: &str) -> Result<Self, &'static str> {
        let (mut pipeline, mut shard, mut id, mut aggregate) = (None, None, None, None);
        for part in query.split('&').filter(|part| !part.is_empty()) {
            let (name, value) = part.split_once('=').unwrap_or((part, ""));
            let place = match name {
                "pipeline" => &mut pipeline,
                "shard" => &mut shard,
                "id" => &mut id,
                "aggregate" => &mut aggregate,
                _ => return Err("the parameters are pipeline, shard, id and aggregate"),
            };
            if place.is_some() {
                return Err("a parameter is given twice");
            }
            let value = decoded(value).ok_or("a value is not percent-encoded UTF-8")?;
            if value.len() > TEXT_MAX {
                return Err("a value has more than 4096 bytes");
            }
            *place = Some(value);
        }
        let wanted = match (id, aggregate) {
            (Some(id), None) => WantedEvents::Id(id),
            (None, Some(aggregate)) => {
                let (kind, id) =
                    aggregate.split_once(':').ok_or("aggregate is TYPE:ID, such as order:42")?;
                WantedEvents::Aggregate(kind.to_owned(), id.to_owned())
            }
            (Some(_), Some(_)) | (None, None) => return Err("one of id and aggregate is needed"),
        };
        let shard = match shard {
            Some(shard) => shard.parse().map_err(|_not_a_number| "shard is a number")?,
            None => 0,
        };
        Ok(Self { pipeline: pipeline.ok_or("pipeline is needed")?, shard, wanted })
    }

    fn sought(&self) -> Sought<'_> {
        match &self.wanted {
            WantedEvents::Id(id) => Sought::Id(id),
            WantedEvents::Aggregate(kind, id) => Sought::Aggregate(Aggregate { kind, id }),
        }
    }
}

/// A percent-encoded text; `None` if it is not one, or not UTF-8.
fn decoded(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let mut digit = || char::from(rest.next()?).to_digit(16);
        bytes.push(u8::try_from(digit()? * 16 + digit()?).ok()?);
    }
    String::from_utf8(bytes).ok()
}

/// The body of `/find`.
#[derive(Serialize, Debug)]
pub struct FindReport {
    /// The pipeline.
    pub pipeline: String,
    /// Its shard.
    pub shard: i32,
    /// Its database, as in `/status`.
    pub source: String,
    /// Its slot, as in `/status`.
    pub slot: String,
    /// Its state. A process that stands by knows nothing of what another one publishes.
    pub state: PipelineState,
    /// The clock of the process. Unit: milliseconds since 1970.
    pub now_unix_ms: u64,
    /// How far back the process remembers; `None` if it remembers nothing.
    pub remembers: Option<RememberedReport>,
    /// The newest events that match, the newest first.
    pub found: Vec<FoundEvent>,
    /// There are more.
    pub more: bool,
}

/// How far back a process remembers.
#[derive(Serialize, Debug)]
pub struct RememberedReport {
    /// Everything that the sink was given since then is remembered. Unit: milliseconds since 1970.
    pub since_unix_ms: u64,
    /// Since when, in seconds.
    pub seconds: f64,
    /// The number of changes that are remembered at most (`admin.remember_changes`).
    pub changes_max: u64,
    /// Nothing is forgotten since the process started.
    pub since_start: bool,
}

impl RememberedReport {
    fn new(reach: &PublicationsReach, now_unix_ms: u64) -> Self {
        let PublicationsReach { changes_max, since_unix_ms, is_whole } = *reach;
        #[expect(clippy::cast_precision_loss, reason = "a duration for people")]
        let seconds = now_unix_ms.saturating_sub(since_unix_ms) as f64 / 1000.0;
        Self { since_unix_ms, seconds, changes_max, since_start: is_whole }
    }
}

/// An event that the sink was given.
#[derive(Serialize, Debug)]
pub struct FoundEvent {
    /// `in_flight`, `in_transaction`, `published`, `refused` or `given_up`.
    pub state: &'static str,
    /// The event's position.
    pub position: String,
    /// The destination; `None` if the process has published to too many of them.
    pub topic: Option<String>,
    /// The partition that the broker has reported.
    pub partition: Option<i32>,
    /// The offset that the broker has reported.
    pub offset: Option<i64>,
    /// When the sink was given the event. Unit: milliseconds since 1970.
    pub sent_unix_ms: u64,
    /// When its outcome was reported. Unit: milliseconds since 1970.
    pub settled_unix_ms: Option<u64>,
}

impl FoundEvent {
    fn new(found: Publication) -> Self {
        let Publication { position, state, topic, placement, sent_unix_ms, settled_unix_ms } =
            found;
        Self {
            state: state.name(),
            position: position.to_string(),
            topic,
            partition: placement.map(|placement| placement.partition),
            offset: placement.map(|placement| placement.offset),
            sent_unix_ms,
            settled_unix_ms,
        }
    }
}

impl FindReport {
    pub(super) fn new(handle: &StatusHandle, query: &FindQuery) -> Self {
        let found = handle.publications().find(query.sought(), EVENTS_MAX);
        // Read after the search: a process that stands by now may have lost the pipeline meanwhile.
        let snapshot = handle.read();
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let now_unix_ms = u64::try_from(since.as_millis()).unwrap_or(u64::MAX);
        let remembers =
            found.as_ref().map(|found| RememberedReport::new(&found.reach, now_unix_ms));
        let more = found.as_ref().is_some_and(|found| found.more);
        let publications = found.map(|found| found.publications).unwrap_or_default();
        Self {
            pipeline: snapshot.key.pipeline,
            shard: snapshot.key.shard,
            source: snapshot.from.source,
            slot: snapshot.from.slot,
            state: snapshot.state,
            now_unix_ms,
            remembers,
            found: publications.into_iter().map(FoundEvent::new).collect(),
            more,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_names_a_pipeline_and_an_id_or_an_aggregate() {
        let query = FindQuery::parse("pipeline=or%20ders&id=a%2Fb%3D%26+c%C3%BC").unwrap();
        assert_eq!(query.pipeline, "or ders");
        assert_eq!(query.sought(), Sought::Id("a/b=&+cü"));
        let query = FindQuery::parse("aggregate=order%3A4%3A2&pipeline=o&shard=1").unwrap();
        assert_eq!(query.sought(), Sought::Aggregate(Aggregate { kind: "order", id: "4:2" }));
        assert_eq!(query.shard, 1);
        for wrong in [
            "",
            "pipeline=o",
            "id=1",
            "pipeline=o&id=1&aggregate=a:b",
            "pipeline=o&aggregate=order",
            "pipeline=o&id=%",
            "pipeline=o&id=%zz",
            "pipeline=o&id=%ff",
            "pipeline=o&id=1&id=2",
            "pipeline=o&id=1&payload=1",
            "pipeline=o&id=1&shard=x",
        ] {
            assert!(FindQuery::parse(wrong).is_err(), "{wrong}");
        }
        assert!(FindQuery::parse(&format!("pipeline=o&id={}", "x".repeat(4097))).is_err());
    }
}
