//! The retention of a pipeline: the mistakes that need several of its keys, and the rule that follows from them.

use super::section::Context;
use super::types::PipelineConfig;
use crate::outbox::{OutboxSpec, Role};
use crate::pipeline::PollSettings;
use crate::postgres::retention::{KeepFrom, RetentionRule};

/// The rule of a pipeline, and the mistakes that need several of its keys. `None` if nothing is to be removed.
pub(super) fn rule(
    context: &Context<'_>,
    path: &str,
    pipeline: &PipelineConfig,
    (outbox, poll): (&OutboxSpec, &PollSettings),
    marked: bool,
) -> Option<RetentionRule> {
    let settings = &pipeline.kept.retention;
    if settings.keep.is_none() && settings.processed_events.is_none() {
        return None;
    }
    let mistake = |key: &str, why: &str| {
        context.error_at(&format!("{path}.retention.{key}"), why);
    };
    let Some(table) = &poll.table else {
        mistake("keep", "needs outbox.table: logical messages leave no rows; remove it");
        return None;
    };
    let expiry = outbox.column(Role::ExpiresAt).map(str::to_owned);
    if settings.keep.is_some() {
        if marked && table.deletes_published() {
            mistake(
                "keep",
                "has no effect: published rows are deleted at once, as poll.mark and the layout say; remove it",
            );
        }
        if table.time.is_none() {
            mistake(
                "keep",
                "needs the time of a row: name its column with [outbox.columns] time = \"created_at\"",
            );
        }
        if settings.keep_from == KeepFrom::Expiry && expiry.is_none() {
            mistake(
                "keep_from",
                "\"expiry\" needs a layout with a time of expiry, such as gcx; use \"published\"",
            );
        }
    }
    Some(RetentionRule {
        table: table.clone(),
        mode: pipeline.mode.name(),
        layout: outbox.layout.name().to_owned(),
        marked,
        expiry,
        settings: settings.clone(),
    })
}
