//! What is let go without a person's word: bookmarks whose time is over, and the oldest while all together hold back
//! more WAL than they may.

use super::create::drop_slot;
use super::list::{Bookmark, State, list};
use pg_replication::error::{SourceError, SqlState};
use tokio_postgres::Client;

/// How long the row of a bookmark that was let go is kept, so that a person can see what became of it.
const KEPT_DAYS: i32 = 30;

/// Why a bookmark was let go.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reason {
    /// `--expire`.
    Expired,
    /// `bookmarks.retain_max`.
    Budget,
}

impl Reason {
    /// Its word in the table and the log.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Expired => "expired",
            Self::Budget => "budget",
        }
    }
}

/// A bookmark that was let go.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Swept {
    /// The bookmark.
    pub name: String,
    /// Why.
    pub reason: Reason,
    /// Bytes of WAL that all bookmarks together held back before.
    pub held_bytes: u64,
}

/// Lets go of what has expired, then of the oldest until at most `retain_max` bytes of WAL are held back. One that is
/// being read from stays, and so do all behind it: they hold back no more than it does. Does nothing on a standby.
///
/// # Errors
/// What the server says; what was let go before stays so.
pub async fn sweep(
    client: &Client,
    pipeline: &str,
    retain_max: u64,
) -> Result<Vec<Swept>, SourceError> {
    let failed = |e| SourceError::control("see whether bookmarks are to be let go", e);
    let due = "SELECT ARRAY(SELECT name FROM postrider.bookmark WHERE pipeline = $1 \
                 AND expires_at < pg_catalog.now() AND dropped_at IS NULL) \
               WHERE NOT pg_catalog.pg_is_in_recovery()";
    let Some(row) = client.query_opt(due, &[&pipeline]).await.map_err(failed)? else {
        return Ok(Vec::new());
    };
    let expired: Vec<String> = row.try_get(0).map_err(failed)?;
    let mut there = list(client, pipeline).await?;
    let mut swept = Vec::new();
    while let Some((at, reason)) = next(&there, &expired, retain_max) {
        let bookmark = there.remove(at);
        let held_bytes = there.iter().map(held).fold(held(&bookmark), u64::max);
        match let_go(client, pipeline, &bookmark, reason).await {
            Ok(()) => swept.push(Swept { name: bookmark.name, reason, held_bytes }),
            // A replay was faster.
            Err(error) if error.sqlstate() == Some(SqlState::OBJECT_IN_USE) => {}
            Err(error) => return Err(error),
        }
    }
    let old = "DELETE FROM postrider.bookmark WHERE pipeline = $1 \
               AND dropped_at < pg_catalog.now() - $2::pg_catalog.int4 * interval '1 day'";
    client.execute(old, &[&pipeline, &KEPT_DAYS]).await.map_err(failed)?;
    Ok(swept)
}

/// The next to go, and why.
pub(super) fn next(
    there: &[Bookmark],
    expired: &[String],
    retain_max: u64,
) -> Option<(usize, Reason)> {
    let free = |bookmark: &Bookmark| bookmark.active_pid.is_none();
    let over = |bookmark: &Bookmark| expired.contains(&bookmark.name) && free(bookmark);
    if let Some(at) = there.iter().position(over) {
        return Some((at, Reason::Expired));
    }
    let (at, oldest) = there.iter().enumerate().max_by_key(|(_, bookmark)| held(bookmark))?;
    (held(oldest) > retain_max && free(oldest)).then_some((at, Reason::Budget))
}

/// Bytes it holds back. One whose WAL is gone holds back none.
fn held(bookmark: &Bookmark) -> u64 {
    match bookmark.state {
        State::Usable
        | State::Unfinished
        | State::OtherSystem
        | State::OtherTimeline { .. }
        | State::SlotMissing => bookmark.held_bytes,
        State::Dropped { .. } | State::SlotLost { .. } => 0,
    }
}

async fn let_go(
    client: &Client,
    pipeline: &str,
    bookmark: &Bookmark,
    reason: Reason,
) -> Result<(), SourceError> {
    drop_slot(client, &bookmark.slot).await?;
    let failed = |e| SourceError::control(format!("let go of bookmark {:?}", bookmark.name), e);
    let sql = "UPDATE postrider.bookmark SET dropped_at = pg_catalog.now(), dropped_why = $4 \
               WHERE pipeline = $1 AND name = $2 AND slot = $3 AND dropped_at IS NULL";
    let (name, slot, why) = (&bookmark.name, &bookmark.slot, reason.name());
    client.execute(sql, &[&pipeline, name, slot, &why]).await.map_err(failed).map(|_rows| ())
}
