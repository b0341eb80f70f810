//! What is said of bookmarks that were let go while the pipeline runs.

use crate::postgres::bookmark::{Reason, Swept};
use tracing::{info, warn};

/// A bookmark's slot was dropped without a person's word.
pub(in crate::driver) fn bookmark_let_go(pipeline: &str, swept: &Swept, retain_max: u64) {
    let (bookmark, held_bytes) = (&swept.name, swept.held_bytes);
    match swept.reason {
        Reason::Expired => {
            info!(
                event = "bookmark_expired",
                pipeline, bookmark, "the bookmark has expired: its slot is dropped"
            );
        }
        Reason::Budget => warn!(
            event = "bookmark_dropped",
            pipeline,
            bookmark,
            held_bytes,
            retain_max,
            hint = "raise bookmarks.retain_max where the disk allows it; what is still in the outbox table can be \
                    replayed by --since",
            "the oldest bookmark is dropped: bookmarks retained more WAL than bookmarks.retain_max"
        ),
    }
}
