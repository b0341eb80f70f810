//! Changed settings of captured tables: whether a pipeline may continue at its position with other tables.
//!
//! A table that is added begins with what is committed after the publication has it. A table that is removed ends at
//! the position: what the stream has of it after that is not published, so it is a halt until an operator decides.

use super::spec::PipelineSpec;
use crate::error::{Halt, HaltReason};
use crate::postgres::SourceError;
use crate::postgres::catalog;
use crate::postgres::names::admin_url;
use crate::postgres::store::cursor::{PositionSettings, SettingsRow};
use tokio_postgres::Client;

/// What the settings of a pipeline that captures tables have in place of a layout.
pub(super) const LAYOUT: &str = "capture";

/// The captured tables of a configuration, as they are stored: as SQL, sorted, with commas.
pub(super) fn stored_tables(spec: &PipelineSpec) -> String {
    let mut tables: Vec<String> =
        spec.names.captured.iter().map(|table| table.name.to_string()).collect();
    tables.sort_unstable();
    tables.join(", ")
}

/// The difference of the captured tables.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct CaptureChange {
    /// Why the pipeline may not continue.
    pub(super) halt: Option<Halt>,
    /// Tables that are captured from here on, as SQL.
    pub(super) added: Vec<String>,
}

/// Compares the tables, and whether tables are captured at all.
///
/// # Errors
/// Errors of the server.
pub(super) async fn compare(
    client: &Client,
    spec: &PipelineSpec,
    found: &SettingsRow,
    before: &PositionSettings,
) -> Result<CaptureChange, SourceError> {
    if (before.layout == LAYOUT) != spec.names.captures() {
        return Ok(CaptureChange { halt: Some(other_source(spec, before)), added: Vec::new() });
    }
    let was = split(before.table.as_deref().unwrap_or_default());
    let is = split(&stored_tables(spec));
    let added = is.iter().filter(|table| !was.contains(table)).cloned().collect();
    let removed: Vec<String> = was.into_iter().filter(|table| !is.contains(table)).collect();
    if removed.is_empty() {
        return Ok(CaptureChange { halt: None, added });
    }
    let bytes = catalog::wal_after(client, &found.watermark).await?;
    Ok(CaptureChange { halt: Some(of_removed(spec, found, &removed, bytes)), added })
}

fn of_removed(spec: &PipelineSpec, found: &SettingsRow, removed: &[String], bytes: u64) -> Halt {
    let (name, list) = (spec.name(), removed.join(", "));
    Halt {
        reason: HaltReason::PipelineChanged,
        message: format!(
            "the position of pipeline {name:?} belongs to other settings: capture.tables had {list}, and has not any \
             more"
        ),
        meaning: format!(
            "nothing was published. Changes of {list} that were committed after {} and are not published would be \
             left out: those in the {} MiB of WAL behind it",
            found.watermark,
            bytes.div_ceil(1 << 20)
        ),
        hint: format!(
            "(a) to publish them first: set capture.tables as it was, stop the writers of {list}, start, and wait \
             until postrider status shows no lag for a few seconds; stop, set the new value, and (b). (b) to leave \
             them out: postrider adopt -p {name}. (c) if a table was renamed: rename it back and do (a), because the \
             documents get another topic with the new name. Then start again; the start prints the statement for the \
             publication"
        ),
    }
}

/// An outbox became captured tables, or captured tables an outbox: publication, topics and documents are other ones.
fn other_source(spec: &PipelineSpec, before: &PositionSettings) -> Halt {
    let name = spec.name();
    let table = before.table.as_deref().unwrap_or("logical messages");
    let (was, is) = if spec.names.captures() {
        (format!("the outbox {table}"), "captures tables")
    } else {
        (format!("the captured tables {table}"), "has an outbox")
    };
    Halt {
        reason: HaltReason::PipelineChanged,
        message: format!("the position of pipeline {name:?} belongs to {was}, and the pipeline now {is}"),
        meaning: "nothing was published. The slot has events of the old settings, which these settings do not publish"
            .to_owned(),
        hint: format!(
            "give the new settings a pipeline of their own: another name after [pipelines.], and postrider setup -p \
             NAME --url {admin}. To end the old one first: set the old values again, stop the writers, start, wait \
             until postrider status shows no lag for a few seconds, stop, and postrider setup --undo -p {name} --url \
             {admin}; it lists what is lost",
            admin = admin_url(spec.conninfo.dbname())
        ),
    }
}

/// Splits a list of quoted names at its commas.
fn split(list: &str) -> Vec<String> {
    let (mut names, mut name, mut is_quoted) = (Vec::new(), String::new(), false);
    for c in list.chars() {
        match c {
            '"' => {
                is_quoted = !is_quoted;
                name.push(c);
            }
            ',' if !is_quoted => names.push(std::mem::take(&mut name)),
            ' ' if !is_quoted => {}
            _ => name.push(c),
        }
    }
    if !name.is_empty() {
        names.push(name);
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_is_split_at_commas_outside_of_quotes() {
        assert_eq!(split(""), Vec::<String>::new());
        let list = "\"public\".\"a, b\", \"s\".\"it\"\"s\"";
        assert_eq!(split(list), ["\"public\".\"a, b\"", "\"s\".\"it\"\"s\""]);
    }
}
