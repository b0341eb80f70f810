//! Going on with a replay that was interrupted: which one, and the same source up to the same end.
//!
//! Reads its row and writes nothing; what is done already is for `job` to leave out.

use super::ReplayError;
use super::plan::{Source, source};
use super::request::{From, Request, SourceChoice};
use crate::driver::PipelineSpec;
use crate::event::Position;
use crate::postgres::replay as rows;
use crate::postgres::server::ServerFacts;
use tokio_postgres::Client;

/// The row to go on with.
pub(super) async fn resumed(
    client: &Client,
    spec: &PipelineSpec,
    name: Option<String>,
) -> Result<rows::Replay, ReplayError> {
    let known = rows::names(client, spec.name()).await?;
    let name = match (name, known.as_slice()) {
        (Some(name), _) => name,
        (None, []) => return Err(ReplayError::NothingToResume),
        (None, [only]) => only.clone(),
        (None, _) => return Err(ReplayError::WhichReplay { known }),
    };
    match rows::find(client, spec.name(), &name).await? {
        None => Err(ReplayError::Unknown { name, known }),
        Some(row) if row.finished => Err(ReplayError::Finished { name, published: row.published }),
        Some(row) => Ok(row),
    }
}

/// The source of a replay that goes on: the same, up to the same end.
pub(super) async fn again(
    client: &Client,
    spec: &PipelineSpec,
    server: &ServerFacts,
    request: &Request,
    row: &rows::Replay,
) -> Result<Source, ReplayError> {
    let place = (row.bookmark.clone(), row.next, row.until);
    let (Some(bookmark), Some(next), Some(until)) = place else {
        let request = Request { source: SourceChoice::Table, ..request.clone() };
        return source(client, spec, server, &request).await;
    };
    // The bookmark has to be there, and to reach back to where it goes on.
    let from = match &request.from {
        From::Bookmark(name) if *name == bookmark => request.from.clone(),
        From::Bookmark(_) | From::Lsn { .. } | From::Since(_) | From::Anywhere => {
            From::Bookmark(bookmark.clone())
        }
    };
    let asked = Request { from, source: SourceChoice::Wal, until: None, ..request.clone() };
    match source(client, spec, server, &asked).await? {
        Source::Log { bookmark, slot, messages, from, .. } => {
            let start = row.from.map_or(from, |lsn| Position { commit_lsn: lsn, ordinal: 0 });
            if next.commit_lsn < from.commit_lsn.min(start.commit_lsn) {
                return Err(ReplayError::BadRow { name: row.name.clone() });
            }
            Ok(Source::Log { bookmark, slot, messages, from: start, until })
        }
        table @ Source::Table { .. } => Ok(table),
    }
}
