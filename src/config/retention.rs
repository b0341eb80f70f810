//! `[pipelines.NAME.retention]`: how long published rows are kept, and what becomes of them then.

use super::section::{Context, Section};
use super::types::PipelineConfig;
use crate::outbox::{self, OutboxSpec, Role};
use crate::pipeline::PollSettings;
use crate::postgres::names::TableName;
use crate::postgres::retention::{
    KeepFrom, RetentionAction, RetentionRule, RetentionSettings, Width,
};
use std::time::Duration;

/// The longest times: a hundred years.
const LONGEST: Duration = Duration::from_hours(100 * 365 * 24);

/// Reads the name of a table, as SQL writes it.
type ReadName = fn(&str) -> Option<outbox::TableName>;

/// Reads the section.
pub(super) fn read(section: Section<'_>, read_name: ReadName) -> RetentionSettings {
    let default = RetentionSettings::default();
    let times = [
        ("published", KeepFrom::Published),
        ("time", KeepFrom::Time),
        ("expiry", KeepFrom::Expiry),
    ];
    let actions = [
        ("delete", RetentionAction::Delete),
        ("archive", RetentionAction::Archive),
        ("drop", RetentionAction::Drop),
    ];
    let partitions = section.section("partitions");
    let settings = RetentionSettings {
        keep: section.duration_or_never("keep", Duration::from_secs(1)..=LONGEST),
        keep_from: section.one_of("keep_from", &times, &[], default.keep_from),
        action: section.one_of("action", &actions, &[], default.action),
        archive: table(&section, "archive", read_name),
        archive_keep: section.duration_or_never("archive_keep", Duration::from_secs(1)..=LONGEST),
        width: width(&partitions),
        ahead: partitions.small("ahead", default.ahead, 0..=50),
        interval: section.duration(
            "interval",
            default.interval,
            Duration::from_secs(1)..=Duration::from_hours(24),
        ),
        rate: section.small("rate", default.rate, 1..=1_000_000),
        processed_events: table(&section, "processed_events", read_name),
    };
    partitions.finish();
    match (settings.action, &settings.archive) {
        (RetentionAction::Archive, None) if !section.has_failed("archive") => {
            let why = "is missing; action = \"archive\" needs the table to which rows are moved, such as archive = \
                       \"public.outbox_archive\"";
            section.error("archive", why);
        }
        (RetentionAction::Delete | RetentionAction::Drop, Some(_)) => {
            section.error("archive", "needs action = \"archive\"; set it, or remove the archive");
        }
        (RetentionAction::Archive, _) | (RetentionAction::Delete | RetentionAction::Drop, None) => {
        }
    }
    if settings.archive_keep.is_some() && settings.archive.is_none() {
        section.error("archive_keep", "needs an archive; set archive, or remove archive_keep");
    }
    section.finish();
    settings
}

fn table(section: &Section<'_>, key: &'static str, read_name: ReadName) -> Option<TableName> {
    let text = section.optional(key)?;
    let name = read_name(&text);
    if name.is_none() {
        section.error(key, "expected a table's name, such as \"public.outbox_archive\"");
    }
    name.map(|name| TableName::new(name.schema, name.name))
}

fn width(partitions: &Section<'_>) -> Option<Width> {
    let text = partitions.optional("by")?;
    let width = Width::parse(&text);
    if width.is_none() {
        let units: Vec<String> =
            Width::UNITS.iter().map(|(unit, _)| format!("\"{unit}\"")).collect();
        let expected = format!(
            "expected one of {}, or a number such as \"1000000\" for a key of numbers",
            units.join(", ")
        );
        partitions.error("by", expected);
    }
    width
}

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
