//! Rules about bookmarks: what they hold back, and which of them can't be replayed from any more.

use super::Scene;
use crate::bookmark::{Bookmark, State};
use postrider_core::finding::Finding;

pub(super) fn rules(scene: &Scene<'_>, out: &mut Vec<Finding>) {
    let standing = |bookmark: &&Bookmark| !matches!(bookmark.state, State::Dropped { .. });
    let standing: Vec<&Bookmark> = scene.bookmarks.iter().filter(standing).collect();
    if standing.is_empty() {
        return;
    }
    let before = out.len();
    held(scene, &standing, out);
    for bookmark in standing.iter().filter(|bookmark| !bookmark.state.usable()) {
        out.push(
            Finding::warning(
                "bookmark_unusable",
                format!("bookmark {:?} can't be replayed from", bookmark.name),
            )
            .why(bookmark.state.to_string())
            .shell(drop_line(scene, bookmark)),
        );
    }
    if out.len() == before {
        let held = standing.iter().map(|bookmark| bookmark.held_bytes).max().unwrap_or(0);
        let (count, mib) = (standing.len(), held >> 20);
        let s = if count == 1 { "" } else { "s" };
        out.push(Finding::ok(
            "bookmarks",
            format!("{count} bookmark{s}, retaining {mib} MiB of WAL"),
        ));
    }
}

/// They hold back as much as the oldest alone, since WAL is kept from it on.
fn held(scene: &Scene<'_>, standing: &[&Bookmark], out: &mut Vec<Finding>) {
    let max = scene.ask.bookmarks_retain_max;
    let oldest = standing.iter().max_by_key(|bookmark| bookmark.held_bytes);
    let Some(oldest) = oldest.filter(|oldest| oldest.held_bytes > max) else { return };
    let (held, max) = (oldest.held_bytes >> 20, max >> 20);
    out.push(
        Finding::warning(
            "bookmarks_held",
            format!("bookmarks retain {held} MiB of WAL, more than bookmarks.retain_max ({max} MiB)"),
        )
        .why(format!(
            "the running relay drops the oldest, {:?}, within a minute; while no relay runs the disk may fill",
            oldest.name
        ))
        .shell(drop_line(scene, oldest)),
    );
}

fn drop_line(scene: &Scene<'_>, bookmark: &Bookmark) -> String {
    format!("postrider bookmark drop {} -p {}", bookmark.name, scene.ask.names.pipeline)
}
