//! Which topics the rows that are in the outbox go to, where topics are made from columns.
//!
//! Looks at a bounded number of rows, and never at payloads.

use super::{Ask, Scene};
use crate::names::{ident, literal};
use tokio_postgres::Client;

/// Rows that are looked at.
const ROWS_MAX: u32 = 10_000;
/// Topics that are told.
const TOPICS_MAX: u32 = 50;

/// A piece of a topic's template.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum TopicPart {
    /// Text as it is.
    Text(String),
    /// The first of these columns that is not NULL.
    Columns(Vec<String>),
}

/// The topics of the rows that are there; `None` where they can't be told by SQL or may not be read.
pub(super) async fn seen(ask: &Ask<'_>, scene: &Scene<'_>, client: &Client) -> Option<Vec<String>> {
    let (parts, name, table) = (ask.topic?, ask.names.table.as_ref()?, scene.table.as_ref()?);
    let used = || {
        parts.iter().flat_map(|part| match part {
            TopicPart::Text(_) => &[][..],
            TopicPart::Columns(columns) => columns.as_slice(),
        })
    };
    if used().any(|column| table.columns.iter().all(|have| have.name != *column)) {
        return None;
    }
    if used().next().is_none() {
        return Some(vec![parts.iter().map(text).collect()]);
    }
    let columns: Vec<String> = used().map(|column| ident(column)).collect();
    let topic: Vec<String> = parts.iter().map(expression).collect();
    let sql = format!(
        "SELECT DISTINCT t.topic FROM (SELECT {} AS topic FROM (SELECT {} FROM {name} LIMIT {ROWS_MAX}) r) t \
         WHERE t.topic IS NOT NULL ORDER BY 1 LIMIT {TOPICS_MAX}",
        topic.join(" || "),
        columns.join(", ")
    );
    let rows = client.query(&sql, &[]).await.ok()?;
    rows.iter().map(|row| row.try_get(0).ok()).collect()
}

fn text(part: &TopicPart) -> &str {
    match part {
        TopicPart::Text(text) => text,
        TopicPart::Columns(_) => "",
    }
}

fn expression(part: &TopicPart) -> String {
    match part {
        TopicPart::Text(text) => format!("{}::text", literal(text)),
        TopicPart::Columns(columns) => {
            let columns: Vec<String> =
                columns.iter().map(|column| format!("r.{}::text", ident(column))).collect();
            format!("coalesce({})", columns.join(", "))
        }
    }
}
