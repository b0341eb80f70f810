//! From what is asked for to where it is read: the log through a bookmark's slot where one reaches back far enough,
//! else the rows of the table.

use super::ReplayError;
use super::request::{From, Request, SourceChoice, Until};
use crate::driver::PipelineSpec;
use crate::event::{PgTime, Position};
use crate::lsn::Lsn;
use crate::postgres::bookmark::{self, Bookmark, BookmarkError};
use crate::postgres::replay;
use crate::postgres::server::ServerFacts;
use tokio_postgres::Client;

/// A replay that can begin.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Plan {
    /// Its name.
    pub name: String,
    /// What was asked for.
    pub request: Request,
    /// Where it is read.
    pub source: Source,
}

/// Where a replay is read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Source {
    /// The log: exact, in commit order, with the positions of the first time.
    Log {
        /// The bookmark whose slot is read.
        bookmark: String,
        /// Its slot.
        slot: String,
        /// Whether logical messages are asked for.
        messages: bool,
        /// Where it begins.
        from: Position,
        /// What commits at it or later is not replayed.
        until: Lsn,
    },
    /// The table: rows that are there, without positions.
    Table {
        /// Their order, in words.
        order: String,
        /// Not older than this.
        since: Option<PgTime>,
        /// Older than this.
        until: Option<PgTime>,
    },
}

/// Finds the source.
pub(super) async fn source(
    client: &Client,
    spec: &PipelineSpec,
    server: &ServerFacts,
    request: &Request,
) -> Result<Source, ReplayError> {
    if let (From::Since(since), Some(Until::Time(until))) = (&request.from, request.until)
        && until <= *since
    {
        return Err(ReplayError::UntilBeforeSince);
    }
    let all = bookmark::list(client, spec.name()).await?;
    match &request.from {
        From::Bookmark(name) => {
            let chosen = all.iter().find(|bookmark| bookmark.name == *name).ok_or_else(|| {
                let known = all.iter().map(|bookmark| bookmark.name.clone()).collect();
                let (pipeline, name) = (spec.name().to_owned(), name.clone());
                BookmarkError::Unknown { pipeline, name, known }
            })?;
            if request.source == SourceChoice::Table {
                let since = PgTime { micros: chosen.created_micros };
                return table(client, spec, request, Some(since)).await;
            }
            log_from(
                chosen,
                Position { commit_lsn: chosen_lsn(chosen)?, ordinal: 0 },
                server,
                request,
            )
        }
        From::Lsn { at, timeline } => {
            if request.source == SourceChoice::Table {
                return Err(ReplayError::NoPositions);
            }
            by_lsn(&all, *at, *timeline, server, request)
        }
        From::Since(since) => {
            let before = |bookmark: &&Bookmark| bookmark.created_micros <= since.micros;
            let latest = usable(&all).filter(before).max_by_key(|b| b.created_micros);
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
fn chosen_lsn(bookmark: &Bookmark) -> Result<Lsn, ReplayError> {
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
    request: &Request,
) -> Result<Source, ReplayError> {
    let lsn = at.commit_lsn;
    if let Some(asked) = timeline.filter(|asked| *asked != server.timeline) {
        return Err(ReplayError::OtherTimeline { asked, now: server.timeline });
    }
    if lsn > server.wal_end {
        return Err(ReplayError::Ahead { lsn, wal_end: server.wal_end });
    }
    // The one that stands nearest before it: so the least has to be read and passed over.
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
    request: &Request,
    bookmark: Option<&Bookmark>,
) -> Result<Source, ReplayError> {
    match (request.source, bookmark) {
        (SourceChoice::Auto | SourceChoice::Wal, Some(bookmark)) => {
            let from = Position { commit_lsn: chosen_lsn(bookmark)?, ordinal: 0 };
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
    request: &Request,
) -> Result<Source, ReplayError> {
    if let Some(confirmed) = bookmark.confirmed_lsn.filter(|at| *at > from.commit_lsn) {
        let (name, at) = (bookmark.name.clone(), from.commit_lsn);
        return Err(ReplayError::Moved { name, at, confirmed });
    }
    let until = match request.until {
        Some(Until::Lsn(until)) if until <= from.commit_lsn => {
            return Err(ReplayError::UntilBeforeFrom { until, from: from.commit_lsn });
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
    request: &Request,
    since: Option<PgTime>,
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
