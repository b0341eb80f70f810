//! A consumer of documents: it keeps copies of tables by the rule of docs/table-outbox.md.

use crate::server::Client;
use crate::topic::ReadRecord;
use serde_json::{Map, Value};
use std::collections::{BTreeMap, BTreeSet};

/// Copies of tables, by qualified name and by the value of the first identifying column.
#[derive(Default)]
pub(crate) struct Keeper {
    tables: BTreeMap<String, BTreeMap<String, Map<String, Value>>>,
    /// The column that identifies a row, by table; otherwise `id`.
    keys: BTreeMap<String, String>,
    /// Ids of events that were applied, if repetitions are skipped.
    seen: Option<BTreeSet<String>>,
}

impl Keeper {
    /// A consumer that skips an event whose id it has seen.
    pub(crate) fn skipping_repetitions() -> Self {
        Self { seen: Some(BTreeSet::new()), ..Self::default() }
    }

    /// Rows of `table` are identified by `column`.
    pub(crate) fn with_key(mut self, table: &str, column: &str) -> Self {
        self.keys.insert(table.to_owned(), column.to_owned());
        self
    }

    /// Applies records in order.
    pub(crate) fn apply_all(&mut self, records: &[ReadRecord]) {
        for record in records {
            self.apply(record);
        }
    }

    fn apply(&mut self, record: &ReadRecord) {
        let id = record.header("id").expect("an id").to_owned();
        if self.seen.as_mut().is_some_and(|seen| !seen.insert(id)) {
            return;
        }
        let document = document(record);
        if document.get("claim_check").is_some() {
            return;
        }
        let table = record.key_text().expect("a key").to_owned();
        let key = self.keys.get(&table).map_or("id", String::as_str).to_owned();
        let copy = self.tables.entry(table).or_default();
        if document.get("truncated").is_some() {
            copy.clear();
        }
        let mut removed = BTreeMap::new();
        for row in list(&document, "deleted") {
            if let Some(row) = copy.remove(&row[&key].to_string()) {
                removed.insert(row[&key].to_string(), row);
            }
        }
        for row in list(&document, "inserted") {
            let of_key = row[&key].to_string();
            let mut row = row.as_object().expect("an object").clone();
            for column in list(&document, "unchanged") {
                let column = column.as_str().expect("a name");
                let before = copy.get(&of_key).or_else(|| removed.get(&of_key));
                if let Some(value) = before.and_then(|before| before.get(column)) {
                    row.entry(column).or_insert_with(|| value.clone());
                }
            }
            copy.insert(of_key, row);
        }
    }

    /// The rows of a table, sorted as text.
    fn rows(&self, table: &str) -> Vec<String> {
        let copy = self.tables.get(table).into_iter().flat_map(BTreeMap::values);
        let mut rows: Vec<String> = copy.map(|row| sorted(&Value::Object(row.clone()))).collect();
        rows.sort_unstable();
        rows
    }

    /// The copy of a table is what the database has.
    pub(crate) async fn assert_has(&self, sql: &Client, table: &str) {
        let all =
            format!("select coalesce(json_agg(to_jsonb(t)), '[]')::text from {table} t where true");
        let all: Value = serde_json::from_str(&sql.text(&all).await.expect("rows")).expect("JSON");
        let mut expected: Vec<String> =
            all.as_array().expect("a list").iter().map(sorted).collect();
        expected.sort_unstable();
        let found = self.rows(table);
        let differ = found.iter().zip(&expected).find(|(one, other)| one != other);
        assert!(
            found == expected,
            "{table}: {} rows instead of {}; {differ:?}",
            found.len(),
            expected.len()
        );
    }
}

/// A row as text, with its members in the order of their names.
fn sorted(row: &Value) -> String {
    let object = row.as_object().expect("an object");
    let members: BTreeMap<&String, String> =
        object.iter().map(|(name, value)| (name, value.to_string())).collect();
    format!("{members:?}")
}

/// The document of a record.
pub(crate) fn document(record: &ReadRecord) -> Value {
    let document: Value =
        serde_json::from_str(record.value_text().expect("a text")).expect("a document");
    assert_eq!(document["v"], 1);
    assert_eq!(record.header("type"), Some("table_delta"));
    document
}

/// A list of the document; empty if it has none of that name.
pub(crate) fn list<'d>(document: &'d Value, name: &str) -> &'d [Value] {
    document.get(name).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}
