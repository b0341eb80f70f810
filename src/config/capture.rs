//! `[pipelines.NAME.capture]`: the tables whose changes are published, instead of the rows of an outbox table.

use super::pipeline::{NAME_BYTES_MAX, table_name};
use super::section::{Kind, Section, quoted, text_list};
use super::types::{PipelineConfig, SizeMax};
use crate::pipeline::{Mode, OnSlotLost};
use crate::postgres::capture::{
    CHUNK_BYTES_MIN, CaptureSpec, CapturedTable, TABLES_MAX, THRESHOLD_ROWS,
};
use crate::postgres::names::{TableName, ident};

/// Default of `inline_threshold_rows`. Unit: rows.
const INLINE_THRESHOLD: u32 = 1_000;

/// Default of `chunk_bytes`: what a broker with Kafka's default limit of about 1 MB takes, with room for key, headers
/// and an envelope. Unit: bytes.
const CHUNK_BYTES: u64 = 512 << 10;

/// Largest `chunk_bytes`: as many bytes of a document are in memory for each captured table. Unit: bytes.
const CHUNK_BYTES_MAX: u64 = 64 << 20;

/// Schemas whose tables are no application's: those of PostgreSQL, and Postrider's own, whose changes publishing would
/// itself cause.
const NOT_CAPTURED: [&str; 6] = [
    "pg_catalog",
    "information_schema",
    "postrider",
    "postrider_log",
    "postrider_inbox",
    "postrider_outbox",
];

/// Reads the table; `None` if it is not in the file.
pub(super) fn read(section: Section<'_>) -> Option<CaptureSpec> {
    let is_present = section.is_present();
    let names = section.text_list("tables");
    let columns = columns(&section.section("columns"));
    let chunk_bytes_min = u64::try_from(CHUNK_BYTES_MIN).unwrap_or(u64::MAX);
    let mut spec = CaptureSpec {
        tables: names.as_deref().map_or_else(Vec::new, |names| tables(&section, names)),
        inline_threshold_rows: section.small(
            "inline_threshold_rows",
            INLINE_THRESHOLD,
            THRESHOLD_ROWS,
        ),
        chunk_bytes: section
            .size("chunk_bytes", CHUNK_BYTES, &(chunk_bytes_min..=CHUNK_BYTES_MAX))
            .try_into()
            .unwrap_or(usize::MAX),
    };
    if !is_present {
        return None;
    }
    let is_missing = names.as_ref().is_none_or(Vec::is_empty);
    if is_missing && !section.has_failed("tables") && section.is_whole() {
        section
            .error("tables", "name at least one table; for example tables = [\"public.orders\"]");
    }
    for (key, name, list) in columns {
        match spec.tables.iter_mut().find(|table| table.name == name) {
            Some(table) => table.columns = Some(list),
            // A list of tables with a mistake may have had it.
            None if section.has_failed("tables") => {}
            None => section.error(
                &format!("columns.{key}"),
                format_args!(
                    "table {name} is not in capture.tables; add it there, or remove its columns"
                ),
            ),
        }
    }
    section.finish();
    Some(spec)
}

fn tables(section: &Section<'_>, names: &[String]) -> Vec<CapturedTable> {
    let mut tables: Vec<CapturedTable> = Vec::new();
    if names.len() > TABLES_MAX {
        section.error("tables", format_args!("a pipeline captures at most {TABLES_MAX} tables"));
    }
    for text in names {
        let Some(name) = table_name(text) else {
            section.error(
                "tables",
                format_args!("expected names of tables such as \"public.orders\", found {text:?}"),
            );
            continue;
        };
        let name = TableName::new(name.schema, name.name);
        if NOT_CAPTURED.contains(&name.schema.as_str()) || name.schema.starts_with("pg_") {
            let whose =
                if name.schema.starts_with("postrider") { "Postrider" } else { "PostgreSQL" };
            section.error(
                "tables",
                format_args!(
                    "table {name} belongs to {whose} itself and can't be captured; remove it"
                ),
            );
        } else if tables.iter().any(|table| table.name == name) {
            section.error("tables", format_args!("table {name} is there twice; delete one"));
        } else {
            tables.push(CapturedTable { name, columns: None });
        }
    }
    tables
}

/// The key as it is in the file, the table, and its columns.
fn columns(section: &Section<'_>) -> Vec<(String, TableName, Vec<String>)> {
    let mut all = Vec::new();
    for entry in section.entries(Kind::Texts) {
        let key = quoted(entry.name);
        let found = text_list(section.context, entry.place, &entry.path, entry.value.get_ref());
        let Some(name) = table_name(entry.name) else {
            section.error(&key, "expected a table's name, such as \"public.orders\"");
            continue;
        };
        let Some(list) = found else { continue };
        if list.is_empty() {
            section.error(&key, "name at least one column; or remove the list: all are published");
        }
        for (index, column) in list.iter().enumerate() {
            if !(1..=NAME_BYTES_MAX).contains(&column.len()) || column.contains('\0') {
                section.error(&key, "expected names of columns of 1 to 63 bytes");
            } else if list.iter().take(index).any(|earlier| earlier == column) {
                section.error(&key, format_args!("column {} is there twice", ident(column)));
            }
        }
        all.push((key, TableName::new(name.schema, name.name), list));
    }
    all
}

/// Keys of a pipeline that do not go with captured tables, and why: the key and the message.
pub(super) fn conflicts(
    pipeline: &PipelineConfig,
    capture: &CaptureSpec,
) -> Vec<(&'static str, String)> {
    let mut found = Vec::new();
    let mut conflict = |key, why: &str| found.push((key, why.to_owned()));
    match pipeline.mode {
        Mode::Poll => conflict(
            "mode",
            "\"poll\" does not go with capture.tables: changes are read from WAL alone, and there is no outbox table \
             to poll; set mode = \"wal\"",
        ),
        Mode::Auto => conflict(
            "mode",
            "\"auto\" does not go with capture.tables: without the slot there is no outbox table to poll; set mode = \
             \"wal\"",
        ),
        Mode::Wal | Mode::Embedded => {}
    }
    if pipeline.source.on_slot_lost == OnSlotLost::Repair {
        conflict(
            "source.on_slot_lost",
            "\"repair\" does not go with capture.tables: the tables do not show which changes were published; set \
             on_slot_lost = \"halt\"",
        );
    }
    if pipeline.poll.mark_streamed {
        conflict(
            "poll.mark_streamed",
            "does not go with capture.tables: rows of captured tables have no mark; remove it",
        );
    }
    let retention = &pipeline.kept.retention;
    if retention.keep.is_some() {
        conflict(
            "retention.keep",
            "does not go with capture.tables: their rows are the application's data, and none is removed; remove it",
        );
    }
    if retention.processed_events.is_some() {
        conflict(
            "retention.processed_events",
            "does not go with capture.tables: retention is a part of an outbox table; remove it",
        );
    }
    if let SizeMax::Bytes(max) = pipeline.payload.size_max {
        let chunk = u64::try_from(capture.chunk_bytes).unwrap_or(u64::MAX);
        if chunk >= max {
            conflict(
                "capture.chunk_bytes",
                "must be less than payload.size_max, which has the key and the headers of the record too: larger \
                 documents would be parked",
            );
        }
    }
    found
}
