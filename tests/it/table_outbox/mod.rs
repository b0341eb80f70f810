//! Table outboxes by triggers: which document each statement writes, whose rights are needed, which tables are refused,
//! and how the events reach Kafka.

mod lifecycle;
mod relayed;
mod rights;
mod statements;
mod tables;

use crate::groups::{number, refused, rows};
use crate::server::{Client, Database, Version};
use crate::toolkit::install_toolkit;
use serde_json::Value;
use std::collections::BTreeMap;

/// The table whose changes the tests capture.
const ORDERS: &str = "create table public.orders (id int primary key, amount numeric, note text)";

/// A database with the toolkit.
struct TableDatabase {
    database: Database,
    sql: Client,
}

/// An event of an outbox.
#[derive(Clone, Debug)]
struct TableEvent {
    id: i64,
    kind: String,
    inserted: i64,
    deleted: i64,
    is_claim_check: bool,
    document: Value,
}

impl TableEvent {
    /// The kind, with the numbers of inserted and deleted rows.
    fn line(&self) -> String {
        let check = if self.is_claim_check { " elsewhere" } else { "" };
        format!("{} +{} -{}{check}", self.kind, self.inserted, self.deleted)
    }
}

impl TableDatabase {
    async fn create(version: Version, test: &str) -> Self {
        let database = Database::create(version, test).await;
        let sql = database.connect().await;
        install_toolkit(&sql, "postgres").await;
        Self { database, sql }
    }

    /// With the table `orders`, and its outbox.
    async fn with_orders(version: Version, test: &str, arguments: &str) -> Self {
        let world = Self::create(version, test).await;
        world.sql.batch(ORDERS).await;
        world
            .sql
            .batch(&format!("select postrider.enable_outbox('public.orders'{arguments})"))
            .await;
        world
    }

    async fn number(&self, text: &str) -> i64 {
        number(&self.sql, text).await
    }

    async fn refused(&self, call: &str) -> String {
        refused(&self.sql, &format!("select postrider.{call}")).await
    }

    /// The events of the outbox with this table, in order.
    async fn events(&self, table: &str) -> Vec<TableEvent> {
        let list = format!(
            "select id, event_type, inserted_count, deleted_count, is_claim_check, payload \
             from postrider_outbox.{table} order by id"
        );
        let number =
            |cell: &Option<String>| cell.as_deref().expect("a value").parse().expect("a number");
        let event = |row: &Vec<Option<String>>| TableEvent {
            id: number(&row[0]),
            kind: row[1].clone().expect("a kind"),
            inserted: number(&row[2]),
            deleted: number(&row[3]),
            is_claim_check: row[4].as_deref() == Some("t"),
            document: serde_json::from_str(row[5].as_deref().expect("a payload")).expect("JSON"),
        };
        rows(&self.sql, &list).await.iter().map(event).collect()
    }

    /// A line for each event.
    async fn lines(&self, table: &str) -> Vec<String> {
        self.events(table).await.iter().map(TableEvent::line).collect()
    }

    /// A field of the status of an outbox, as text.
    async fn status(&self, name: &str, field: &str) -> String {
        let ask = format!("select postrider.outbox_status('{name}') ->> '{field}'");
        self.sql.text(&ask).await.unwrap_or_else(|| "null".to_owned())
    }
}

/// A consumer's copy of a table, by the rule of the page: if the event says `truncated`, remove all rows; remove the
/// deleted rows; add the inserted ones.
#[derive(PartialEq, Debug, Default)]
struct TableCopy(BTreeMap<i64, Value>);

impl TableCopy {
    /// Applies a document; the rows of a claim check are read from `delta`.
    async fn apply(&mut self, sql: &Client, document: &Value, id: i64, delta: &str) {
        assert_eq!(document["v"], 1, "{document}");
        if document["truncated"] == true {
            self.0.clear();
        }
        if document["claim_check"] == true {
            let list = format!(
                "select op, payload from postrider_outbox.{delta} where outbox_id = {id} order by row_num"
            );
            let found = rows(sql, &list).await;
            let count = |op: &str| found.iter().filter(|row| row[0].as_deref() == Some(op)).count();
            assert_eq!(document["inserted_count"], count("I"));
            assert_eq!(document["deleted_count"], count("D"));
            for row in &found {
                let value = serde_json::from_str(row[1].as_deref().expect("a row")).expect("JSON");
                self.row(row[0].as_deref() == Some("I"), value);
            }
            return;
        }
        for (name, is_insert) in [("deleted", false), ("inserted", true)] {
            for row in document[name].as_array().expect("rows") {
                self.row(is_insert, row.clone());
            }
        }
    }

    fn row(&mut self, is_insert: bool, row: Value) {
        let key = row["id"].as_i64().expect("a key");
        if is_insert {
            self.0.insert(key, row);
        } else {
            self.0.remove(&key);
        }
    }

    /// The table itself.
    async fn of(sql: &Client, table: &str) -> Self {
        let list = rows(sql, &format!("select row_to_json(t.*) from {table} t")).await;
        let mut copy = Self::default();
        for row in list {
            copy.row(true, serde_json::from_str(row[0].as_deref().expect("a row")).expect("JSON"));
        }
        copy
    }
}
