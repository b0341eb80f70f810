//! The plan of a replay: what is requested, and where it is read. That is the WAL, if a bookmark's slot reaches back
//! far enough, otherwise the rows of the table.

use super::ReplayError;
use crate::event::{Aggregate, Position};
use crate::offset::Offset;
use crate::pipeline::PipelineSpec;
use crate::postgres::catalog::ServerFacts;
use crate::postgres::store::bookmark::{self, Bookmark, BookmarkError};
use crate::postgres::wire::{from_pg_micros, to_pg_micros};
use crate::postgres::{replay, replay as rows};
use crate::timestamp::Timestamp;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use tokio_postgres::Client;

/// A replay that can begin.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Plan {
    /// Its name.
    pub name: String,
    /// What is requested.
    pub request: ReplayRequest,
    /// Where it is read from.
    pub source: Source,
}

/// Where a replay reads from.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Source {
    /// The WAL: exact, in commit order, with the positions of the first publication.
    Log {
        /// The bookmark whose slot is read.
        bookmark: String,
        /// Its slot.
        slot: String,
        /// Whether logical messages are requested.
        messages: bool,
        /// The first position.
        from: Position,
        /// Transactions that commit at this position or later are not replayed.
        until: Offset,
    },
    /// The table: rows that still exist, without positions.
    Table {
        /// The order of the rows, as a text.
        order: String,
        /// Only rows of this time or later.
        since: Option<Timestamp>,
        /// Only rows from before this time.
        until: Option<Timestamp>,
    },
}

/// Finds the source of a new replay.
pub(super) async fn source(
    client: &Client,
    spec: &PipelineSpec,
    server: &ServerFacts,
    request: &ReplayRequest,
) -> Result<Source, ReplayError> {
    if let (From::Since(since), Some(Until::Time(until))) = (&request.from, request.until)
        && until <= *since
    {
        return Err(ReplayError::UntilBeforeSince);
    }
    let all = bookmark::list(client, spec.key()).await?;
    match &request.from {
        From::Bookmark(name) => {
            let chosen = all.iter().find(|bookmark| bookmark.name == *name).ok_or_else(|| {
                let known = all.iter().map(|bookmark| bookmark.name.clone()).collect();
                let (pipeline, name) = (spec.name().to_owned(), name.clone());
                BookmarkError::Unknown { pipeline, name, known }
            })?;
            if request.source == SourceChoice::Table {
                let since = chosen.created;
                return table(client, spec, request, Some(since)).await;
            }
            log_from(chosen, Position { commit: chosen_lsn(chosen)?, ordinal: 0 }, server, request)
        }
        From::Lsn { at, timeline } => {
            if request.source == SourceChoice::Table {
                return Err(ReplayError::NoPositions);
            }
            by_lsn(&all, *at, *timeline, server, request)
        }
        From::Since(since) => {
            let before = |bookmark: &&Bookmark| bookmark.created <= *since;
            let latest = usable(&all).filter(before).max_by_key(|b| b.created);
            log_or_table(client, spec, server, request, latest).await
        }
        From::Anywhere => {
            let oldest = usable(&all).min_by_key(|bookmark| bookmark.lsn);
            log_or_table(client, spec, server, request, oldest).await
        }
    }
}

fn usable(all: &[Bookmark]) -> impl Iterator<Item = &Bookmark> {
    all.iter().filter(|bookmark| bookmark.state.usable())
}

/// The position of a bookmark that can be replayed from.
fn chosen_lsn(bookmark: &Bookmark) -> Result<Offset, ReplayError> {
    bookmark.lsn.filter(|_| bookmark.state.usable()).ok_or_else(|| ReplayError::Unusable {
        name: bookmark.name.clone(),
        why: bookmark.state.to_string(),
        created_at: bookmark.created_at.clone(),
    })
}

fn by_lsn(
    all: &[Bookmark],
    at: Position,
    timeline: Option<u32>,
    server: &ServerFacts,
    request: &ReplayRequest,
) -> Result<Source, ReplayError> {
    let lsn = at.commit;
    if let Some(asked) = timeline.filter(|asked| *asked != server.timeline) {
        return Err(ReplayError::OtherTimeline { asked, now: server.timeline });
    }
    if lsn > server.wal_end {
        return Err(ReplayError::Ahead { lsn, wal_end: server.wal_end });
    }
    // The bookmark nearest before the position, so that the least has to be read and skipped.
    let reaches = |bookmark: &&Bookmark| bookmark.confirmed_lsn.is_some_and(|from| from <= lsn);
    let nearest = usable(all).filter(reaches).max_by_key(|bookmark| bookmark.confirmed_lsn);
    let Some(nearest) = nearest else {
        let oldest = usable(all).min_by_key(|bookmark| bookmark.confirmed_lsn);
        let known = oldest.and_then(|oldest| Some((oldest.name.clone(), oldest.confirmed_lsn?)));
        return Err(ReplayError::TooOld { lsn, known });
    };
    log_from(nearest, at, server, request)
}

async fn log_or_table(
    client: &Client,
    spec: &PipelineSpec,
    server: &ServerFacts,
    request: &ReplayRequest,
    bookmark: Option<&Bookmark>,
) -> Result<Source, ReplayError> {
    match (request.source, bookmark) {
        (SourceChoice::Auto | SourceChoice::Wal, Some(bookmark)) => {
            let from = Position { commit: chosen_lsn(bookmark)?, ordinal: 0 };
            log_from(bookmark, from, server, request)
        }
        (SourceChoice::Wal, None) => Err(ReplayError::NoLog),
        (SourceChoice::Auto, None) | (SourceChoice::Table, _) => {
            table(client, spec, request, None).await
        }
    }
}

fn log_from(
    bookmark: &Bookmark,
    from: Position,
    server: &ServerFacts,
    request: &ReplayRequest,
) -> Result<Source, ReplayError> {
    if let Some(confirmed) = bookmark.confirmed_lsn.filter(|at| *at > from.commit) {
        let (name, at) = (bookmark.name.clone(), from.commit);
        return Err(ReplayError::Moved { name, at, confirmed });
    }
    let until = match request.until {
        Some(Until::Lsn(until)) if until <= from.commit => {
            return Err(ReplayError::UntilBeforeFrom { until, from: from.commit });
        }
        Some(Until::Lsn(until)) => until.min(server.wal_end),
        Some(Until::Time(_)) | None => server.wal_end,
    };
    Ok(Source::Log {
        bookmark: bookmark.name.clone(),
        slot: bookmark.slot.clone(),
        messages: bookmark.messages,
        from,
        until,
    })
}

async fn table(
    client: &Client,
    spec: &PipelineSpec,
    request: &ReplayRequest,
    since: Option<Timestamp>,
) -> Result<Source, ReplayError> {
    let Some(poll) = &spec.poll.table else { return Err(ReplayError::NoSource) };
    let since = match &request.from {
        From::Since(time) => Some(*time),
        From::Bookmark(_) | From::Lsn { .. } | From::Anywhere => since,
    };
    let until = match request.until {
        None => None,
        Some(Until::Time(time)) => Some(time),
        Some(Until::Lsn(_)) => return Err(ReplayError::NoPositions),
    };
    if (since.is_some() || until.is_some()) && poll.time.is_none() {
        return Err(ReplayError::NoTime { table: poll.table.to_string() });
    }
    if (since.is_some() || until.is_some())
        && let Some(column) = replay::time_without_zone(client, poll).await?
    {
        return Err(ReplayError::NoZone { table: poll.table.to_string(), column });
    }
    let order = replay::order_in_words(client, poll).await?;
    Ok(Source::Table { order, since, until })
}

/// What is to be published again; a row keeps it as JSON for `--resume`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ReplayRequest {
    /// Where the replay begins.
    pub from: From,
    /// Where it ends; `None` for what is committed when it begins.
    pub until: Option<Until>,
    /// Only events with these IDs; empty for all.
    pub ids: Vec<String>,
    /// Only events of this aggregate: type and ID.
    pub aggregate: Option<(String, String)>,
    /// The topic; `None` for each event's own topic.
    pub to: Option<String>,
    /// Whether events of aggregates with parked events are published too.
    pub include_parked: bool,
    /// Where events are read from.
    pub source: SourceChoice,
}

/// Where a replay begins.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum From {
    /// At a bookmark.
    Bookmark(String),
    /// At a position: everything that commits at it or later, and of its own transaction everything from the ordinal
    /// on.
    Lsn {
        /// The position.
        at: Position,
        /// The timeline of the position, if known.
        timeline: Option<u32>,
    },
    /// With what was committed at this time or later (from the table: with rows of this time or later).
    Since(Timestamp),
    /// At the oldest event there is.
    Anywhere,
}

/// Where a replay ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Until {
    /// Before what commits at this position or later.
    Lsn(Offset),
    /// Before what was committed at this time or later.
    Time(Timestamp),
}

/// Where events are read from.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum SourceChoice {
    /// The WAL if a bookmark reaches back far enough, otherwise the table.
    #[default]
    Auto,
    /// The WAL.
    Wal,
    /// The table.
    Table,
}

impl ReplayRequest {
    /// The JSON of the row.
    pub(super) fn to_json(&self) -> String {
        let from = match &self.from {
            From::Bookmark(name) => json!({"bookmark": name}),
            From::Lsn { at, timeline } => {
                json!({"lsn": at.commit.to_string(), "ordinal": at.ordinal, "timeline": timeline})
            }
            From::Since(time) => json!({"since": to_pg_micros(*time)}),
            From::Anywhere => Value::Null,
        };
        let until = self.until.map(|until| match until {
            Until::Lsn(lsn) => json!({"lsn": lsn.to_string()}),
            Until::Time(time) => json!({"time": to_pg_micros(time)}),
        });
        let source = match self.source {
            SourceChoice::Auto => "auto",
            SourceChoice::Wal => "wal",
            SourceChoice::Table => "table",
        };
        json!({
            "from": from,
            "until": until,
            "ids": self.ids,
            "aggregate": self.aggregate.as_ref().map(|(kind, id)| [kind, id]),
            "to": self.to,
            "include_parked": self.include_parked,
            "source": source,
        })
        .to_string()
    }

    /// The request of a row; `None` if the JSON is of another version, or was changed by hand.
    pub(super) fn from_json(text: &str) -> Option<Self> {
        let value: Value = serde_json::from_str(text).ok()?;
        let time = |value: &Value| Some(from_pg_micros(value.as_i64()?));
        let from = &value["from"];
        let from = if let Some(name) = from["bookmark"].as_str() {
            From::Bookmark(name.to_owned())
        } else if let Some(lsn) = from["lsn"].as_str() {
            let at = Position { commit: lsn.parse().ok()?, ordinal: from["ordinal"].as_u64()? };
            let timeline = from["timeline"].as_u64().and_then(|number| u32::try_from(number).ok());
            From::Lsn { at, timeline }
        } else if from.is_object() {
            From::Since(time(&from["since"])?)
        } else {
            From::Anywhere
        };
        let until = &value["until"];
        let until = if until.is_null() {
            None
        } else if let Some(lsn) = until["lsn"].as_str() {
            Some(Until::Lsn(lsn.parse().ok()?))
        } else {
            Some(Until::Time(time(&until["time"])?))
        };
        let text = |value: &Value| value.as_str().map(str::to_owned);
        let aggregate = &value["aggregate"];
        Some(Self {
            from,
            until,
            ids: value["ids"].as_array()?.iter().map(text).collect::<Option<_>>()?,
            aggregate: text(&aggregate[0]).zip(text(&aggregate[1])),
            to: text(&value["to"]),
            include_parked: value["include_parked"].as_bool()?,
            source: match value["source"].as_str()? {
                "auto" => SourceChoice::Auto,
                "wal" => SourceChoice::Wal,
                "table" => SourceChoice::Table,
                _ => return None,
            },
        })
    }
}

/// Which events of a source belong to a replay. Where the source begins and ends is in the plan.
#[derive(Clone, Debug)]
pub(super) struct Choice {
    since: Option<Timestamp>,
    until: Option<Timestamp>,
    /// Each requested ID, and whether it was found.
    ids: BTreeMap<String, bool>,
    aggregate: Option<(String, String)>,
}

impl Choice {
    /// `found`: IDs that were found in earlier runs.
    pub(super) fn new(request: &ReplayRequest, found: &[String]) -> Self {
        let since = match request.from {
            From::Since(time) => Some(time),
            From::Bookmark(_) | From::Lsn { .. } | From::Anywhere => None,
        };
        let until = match request.until {
            Some(Until::Time(time)) => Some(time),
            Some(Until::Lsn(_)) | None => None,
        };
        let met = |id: &String| (id.clone(), found.contains(id));
        let ids = request.ids.iter().map(met).collect();
        Self { since, until, ids, aggregate: request.aggregate.clone() }
    }

    /// The same for a source that selects by times itself.
    pub(super) fn without_times(self) -> Self {
        Self { since: None, until: None, ..self }
    }

    /// Whether an event belongs to the replay.
    pub(super) fn takes(
        &mut self,
        id: &str,
        aggregate: Option<Aggregate<'_>>,
        committed: Timestamp,
    ) -> bool {
        if self.since.is_some_and(|since| committed < since)
            || self.until.is_some_and(|until| committed >= until)
        {
            return false;
        }
        if let Some((kind, of)) = &self.aggregate
            && aggregate.is_none_or(|aggregate| {
                ![(aggregate.kind, kind), (aggregate.id, of)]
                    .into_iter()
                    .all(|(text, asked)| text == asked || unfilled(text) == asked)
            })
        {
            return false;
        }
        if self.ids.is_empty() {
            return true;
        }
        let asked = if self.ids.contains_key(id) { id } else { unfilled(id) };
        self.ids.get_mut(asked).is_some_and(|met| {
            *met = true;
            true
        })
    }

    /// The IDs that were found.
    pub(super) fn met(&self) -> Vec<String> {
        self.ids.iter().filter(|(_, met)| **met).map(|(id, _)| id.clone()).collect()
    }

    /// The IDs that were not found.
    pub(super) fn missing(&self) -> Vec<String> {
        self.ids.iter().filter(|(_, met)| !**met).map(|(id, _)| id.clone()).collect()
    }
}

/// The text without the blanks that pad a `char(n)`: a user need not write them.
fn unfilled(text: &str) -> &str {
    text.trim_end_matches(' ')
}

/// The row of the replay to resume.
pub(super) async fn resumed(
    client: &Client,
    spec: &PipelineSpec,
    name: Option<String>,
) -> Result<rows::Replay, ReplayError> {
    let known = rows::names(client, spec.key()).await?;
    let name = match (name, known.as_slice()) {
        (Some(name), _) => name,
        (None, []) => return Err(ReplayError::NothingToResume),
        (None, [only]) => only.clone(),
        (None, _) => return Err(ReplayError::WhichReplay { known }),
    };
    match rows::find(client, spec.key(), &name).await? {
        None => Err(ReplayError::Unknown { name, known }),
        Some(row) if row.finished => Err(ReplayError::Finished { name, published: row.published }),
        Some(row) => Ok(row),
    }
}

/// The source of a resumed replay: the same source, up to the same end.
pub(super) async fn resumed_source(
    client: &Client,
    spec: &PipelineSpec,
    server: &ServerFacts,
    request: &ReplayRequest,
    row: &rows::Replay,
) -> Result<Source, ReplayError> {
    let context = (row.bookmark.clone(), row.next, row.until);
    let (Some(bookmark), Some(next), Some(until)) = context else {
        let request = ReplayRequest { source: SourceChoice::Table, ..request.clone() };
        return source(client, spec, server, &request).await;
    };
    // The bookmark must exist, and reach back to the position where the replay resumes.
    let from = match &request.from {
        From::Bookmark(name) if *name == bookmark => request.from.clone(),
        From::Bookmark(_) | From::Lsn { .. } | From::Since(_) | From::Anywhere => {
            From::Bookmark(bookmark.clone())
        }
    };
    let asked = ReplayRequest { from, source: SourceChoice::Wal, until: None, ..request.clone() };
    match source(client, spec, server, &asked).await? {
        Source::Log { bookmark, slot, messages, from, .. } => {
            let start = row.from.map_or(from, |lsn| Position { commit: lsn, ordinal: 0 });
            if next.commit < from.commit.min(start.commit) {
                return Err(ReplayError::BadRow { name: row.name.clone() });
            }
            Ok(Source::Log { bookmark, slot, messages, from: start, until })
        }
        table @ Source::Table { .. } => Ok(table),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_keeps_everything_that_was_asked_for() {
        let lsn = |text: &str| text.parse::<Offset>().unwrap();
        let at = Position { commit: lsn("0/1A2B3C8"), ordinal: 5 };
        let plain = ReplayRequest {
            from: From::Anywhere,
            until: None,
            ids: Vec::new(),
            aggregate: None,
            to: None,
            include_parked: false,
            source: SourceChoice::Auto,
        };
        let whole = ReplayRequest {
            from: From::Bookmark("b".to_owned()),
            until: Some(Until::Time(from_pg_micros(-7))),
            ids: vec!["1".to_owned(), "ü\"".to_owned()],
            aggregate: Some(("order".to_owned(), "a:b".to_owned())),
            to: Some("again".to_owned()),
            include_parked: true,
            source: SourceChoice::Table,
        };
        let of = |from: From| ReplayRequest { from, source: SourceChoice::Wal, ..plain.clone() };
        let until = ReplayRequest { until: Some(Until::Lsn(lsn("1/2"))), ..plain.clone() };
        let all = [
            of(From::Lsn { at, timeline: Some(2) }),
            of(From::Since(from_pg_micros(9))),
            until,
            whole,
            plain.clone(),
        ];
        for request in all {
            assert_eq!(ReplayRequest::from_json(&request.to_json()).as_ref(), Some(&request));
        }
        assert_eq!(ReplayRequest::from_json("{}"), None);
    }
}

#[cfg(test)]
mod choice_tests {
    use super::*;
    use crate::replay::SourceChoice;

    fn request() -> ReplayRequest {
        ReplayRequest {
            from: From::Since(from_pg_micros(10)),
            until: Some(Until::Time(from_pg_micros(20))),
            ids: vec!["a".to_owned(), "b".to_owned()],
            aggregate: Some(("order".to_owned(), "1".to_owned())),
            to: None,
            include_parked: false,
            source: SourceChoice::Auto,
        }
    }

    #[test]
    fn an_event_belongs_when_time_aggregate_and_id_fit() {
        let mut choice = Choice::new(&request(), &[]);
        let order = Some(Aggregate { kind: "order", id: "1" });
        let other = Some(Aggregate { kind: "order", id: "2" });
        let at = from_pg_micros;
        assert!(choice.takes("a", order, at(10)));
        assert!(!choice.takes("a", order, at(9)) && !choice.takes("a", order, at(20)));
        assert!(!choice.takes("b", other, at(15)) && !choice.takes("b", None, at(15)));
        assert!(!choice.takes("c", order, at(15)));
        assert_eq!((choice.met(), choice.missing()), (vec!["a".into()], vec!["b".into()]));
        assert_eq!(Choice::new(&request(), &["b".to_owned()]).missing(), ["a"]);
        let filled = Some(Aggregate { kind: "order     ", id: "1  " });
        assert!(choice.takes("b   ", filled, at(15)), "char(n) is filled up with blanks");
        assert!(!choice.takes(" b", filled, at(15)));
        assert_eq!(choice.missing(), Vec::<String>::new());
        assert!(choice.without_times().takes("b", order, at(99)));
    }
}
