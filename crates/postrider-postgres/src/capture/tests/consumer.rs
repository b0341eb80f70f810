//! A consumer that keeps copies of tables by the rule of the documents.

use super::support::Event;
use postrider_core::event::Position;
use serde_json::{Map, Value};
use std::collections::BTreeMap;

/// The rows of one table, by the columns that identify them.
pub(super) type TableCopy = BTreeMap<String, Map<String, Value>>;

/// Copies of tables.
#[derive(Clone, Debug, Default)]
pub(super) struct TableConsumer {
    pub(super) tables: BTreeMap<String, TableCopy>,
    /// The columns that identify a row, by table.
    keys: BTreeMap<String, &'static str>,
    /// Events that are not above the highest position of their aggregate are skipped.
    deduplicates: bool,
    highest: BTreeMap<String, Position>,
}

impl TableConsumer {
    pub(super) fn new(keys: &[(&str, &'static str)], deduplicates: bool) -> Self {
        let keys = keys.iter().map(|(table, key)| (format!("public.{table}"), *key)).collect();
        Self { keys, deduplicates, ..Self::default() }
    }

    /// Applies an event.
    pub(super) fn apply(&mut self, event: &Event) {
        let table = &event.aggregate_id;
        let seen = self.highest.get(table).is_some_and(|highest| event.position <= *highest);
        if self.deduplicates && seen {
            return;
        }
        let document: Value = serde_json::from_str(&event.document).expect("JSON");
        assert_eq!(document["v"], 1);
        // It has no rows, so its position says nothing about the rows before it.
        if document.get("claim_check").is_some() {
            return;
        }
        self.highest.insert(table.clone(), event.position);
        let key = self.keys[table];
        let copy = self.tables.entry(table.clone()).or_default();
        if document.get("truncated").is_some() {
            copy.clear();
        }
        let rows = |name: &str| document[name].as_array().expect("a list").clone();
        let mut removed = TableCopy::new();
        for row in rows("deleted") {
            if let Some(row) = copy.remove(&row[key].to_string()) {
                removed.insert(row[key].to_string(), row);
            }
        }
        for row in rows("inserted") {
            let of_key = row[key].to_string();
            let mut row = row.as_object().expect("an object").clone();
            for column in document.get("unchanged").and_then(Value::as_array).into_iter().flatten()
            {
                let column = column.as_str().expect("a name");
                let before = copy.get(&of_key).or_else(|| removed.get(&of_key));
                if let Some(value) = before.and_then(|before| before.get(column)) {
                    row.entry(column).or_insert_with(|| value.clone());
                }
            }
            copy.insert(of_key, row);
        }
    }

    pub(super) fn apply_all<'e>(&mut self, events: impl IntoIterator<Item = &'e Event>) {
        events.into_iter().for_each(|event| self.apply(event));
    }

    /// The rows, without empty tables.
    pub(super) fn state(&self) -> BTreeMap<&str, &TableCopy> {
        let tables = self.tables.iter().filter(|(_, copy)| !copy.is_empty());
        tables.map(|(table, copy)| (table.as_str(), copy)).collect()
    }
}
