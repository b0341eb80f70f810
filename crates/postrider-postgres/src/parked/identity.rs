//! Whether a row of the outbox (`o`) is the event of a row of the parked table (`p`) that has the same id.
//!
//! An equal id proves nothing: `TRUNCATE … RESTART IDENTITY`, a restored backup and a sequence that was set back give
//! ids a second time. What decides is the transaction that wrote the row, and the answer has three values: the same
//! event, another event, or unknown. `docs/decisions/reused-ids.md` has the rule in words.

use crate::poll::listed::Table;
use postrider_core::event::AHEAD_MAX_MS;

/// When the transaction that wrote the row was committed; NULL where the server does not keep that.
const WRITTEN_AT: &str = "(CASE WHEN current_setting('track_commit_timestamp') = 'on' \
                          THEN pg_xact_commit_timestamp(o.xmin) END)";

/// A claim has parked it, and not a stream: its time is that of the claim.
const CLAIMED: &str = "(p.commit_lsn - '0/0'::pg_lsn) % 2 = 1";

/// The row was committed with the event, or was in the table when a claim found the event.
fn committed_with() -> String {
    format!(
        "(CASE WHEN {CLAIMED} THEN {WRITTEN_AT} <= p.commit_time ELSE {WRITTEN_AT} = p.commit_time END)"
    )
}

/// The row was written by a later transaction than the one that last wrote `p`, whatever the server's clock said of the
/// two. Numbers of transactions have no epoch here: the two are taken to be less than 2^31 transactions apart.
const IS_NEWER: &str =
    "((o.xmin::text::int8 - p.xmin::text::int8) & 4294967295) BETWEEN 1 AND 2147483647";

/// A person has decided that the event is not published as its row has it.
pub(crate) const DECIDED: &str =
    "(p.state = 'skipped' OR p.state = 'done' AND p.acted_action IS NOT DISTINCT FROM 'replace')";

/// Whether the row is certainly the event of `p`, where it is not [`another`].
pub(crate) fn the_same() -> String {
    format!("coalesce({} AND NOT {IS_NEWER}, false)", committed_with())
}

/// Whether the row is certainly another event than that of `p`, or was written again since. Without commit times that
/// is known of a row that is newer than `p`, and of one whose aggregate or time is another.
pub(crate) fn another(table: &Table) -> String {
    let (kind, id) = table.aggregate();
    // A time that no broker takes is replaced by that of the commit: then it tells nothing.
    let time = table.time().filter(|_| table.spec().stamps).map_or_else(String::new, |time| {
        let of = format!("extract(epoch FROM {time}) * 1000");
        let commit = "floor(extract(epoch FROM p.commit_time) * 1000)";
        format!(
            " OR coalesce(abs({of} - p.timestamp_ms) > 1 AND (p.timestamp_ms <> {commit} \
             OR {of} BETWEEN 1 AND {commit} + {AHEAD_MAX_MS}), false)"
        )
    });
    format!(
        "(coalesce(NOT {committed}, false) OR {IS_NEWER} \
         OR coalesce(({kind}, {id}) <> (p.aggregate_type, p.aggregate_id), false){time})",
        committed = committed_with(),
    )
}
