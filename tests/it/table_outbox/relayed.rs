//! The events of a table in Kafka: layout `pgtrickle`, by the stream and by polling.

use super::{ORDERS, TableCopy, TableDatabase};
use crate::await_that::{SOON, await_that};
use crate::relay::{Relay, postrider_ok};
use crate::server::{Version, brokers, unique};
use crate::topic::{Topic, Topics};
use serde_json::Value;

/// A pipeline over the outbox of table `orders`.
struct Relayed {
    world: TableDatabase,
    topic: Topic,
    config: String,
}

impl Relayed {
    async fn new(version: Version, mode: &str) -> Self {
        let name = unique("tblout");
        let world = TableDatabase::create(version, "tbl_relayed").await;
        let enable = "select postrider.enable_outbox('orders', p_inline_threshold_rows => 10, p_notify => true)";
        world.sql.batch(&format!("{ORDERS}; {enable}")).await;
        let topic = Topics::new(&brokers(), "tblout").create("orders", 4).await;
        let config = format!(
            "[pipelines.{name}]\nmode = \"{mode}\"\n\
             [pipelines.{name}.source]\nurl = \"{}\"\n\
             [pipelines.{name}.outbox]\nlayout = \"pgtrickle\"\ntable = \"postrider_outbox.outbox_orders\"\n\
             [pipelines.{name}.route]\ntopic = \"{}\"\n\
             [pipelines.{name}.sink]\nkind = \"kafka\"\nbrokers = \"{}\"\n",
            world.database.socket_url(),
            topic.name,
            brokers(),
        );
        postrider_ok(&config, &["setup"]);
        Self { world, topic, config }
    }

    /// Changes the table in each way, then reads the records, applies them, and acknowledges the claim checks.
    async fn whole(&self) {
        let sql = &self.world.sql;
        let mut statements = vec![
            "insert into orders select i, i from generate_series(1, 8) i".to_owned(),
            "insert into orders select i, i from generate_series(100, 140) i".to_owned(),
            "update orders set note = 'all'".to_owned(),
            "delete from orders where id between 3 and 5".to_owned(),
            "truncate orders; insert into orders values (7, 12345678901234567890.5)".to_owned(),
        ];
        for i in 0..30 {
            statements.push(format!(
                "insert into orders values ({}, {i}) on conflict (id) do update set amount = excluded.amount",
                1000 + i % 7
            ));
        }
        for statement in &statements {
            sql.batch(statement).await;
        }
        let events = self.world.events("outbox_orders").await;
        let records = self.topic.await_records(events.len(), SOON).await;
        assert_eq!(records.len(), events.len());
        let mut copy = TableCopy::default();
        let mut checks = 0;
        for (record, event) in records.iter().zip(&events) {
            let id: i64 = record.header("id").expect("an id").parse().expect("a number");
            assert_eq!(id, event.id, "in the order of the table");
            assert_eq!(record.key_text(), Some("public.orders"));
            assert_eq!(record.header("type"), Some(event.kind.as_str()));
            let document: Value =
                serde_json::from_str(record.value_text().expect("text")).expect("JSON");
            copy.apply(sql, &document, id, "outbox_delta_rows_orders").await;
            if document["claim_check"] == true {
                checks += 1;
                sql.batch(&format!(
                    "select postrider.outbox_rows_consumed('orders', {id}, 'billing')"
                ))
                .await;
            }
        }
        assert_eq!(copy, TableCopy::of(sql, "orders").await);
        assert!(checks >= 2, "{checks}");
        assert_eq!(self.world.status("orders", "claim_check_pending_count").await, "0");
        let digits = records.iter().any(|record| {
            record.value_text().is_some_and(|text| text.contains("12345678901234567890.5"))
        });
        assert!(digits, "every digit arrives");
    }
}

#[tokio::test]
async fn the_changes_of_a_table_arrive_in_order_by_the_stream() {
    for version in [Version::Pg15, Version::Pg18] {
        let relayed = Relayed::new(version, "wal").await;
        let relay = Relay::spawn(&relayed.config);
        relay.await_state("streaming", SOON).await;
        relayed.whole().await;
        assert_eq!(relay.terminate(SOON).await.code, Some(0));
        assert_eq!(
            relayed.world.status("orders", "marked_published").await,
            "0",
            "the stream needs no marks"
        );
    }
}

#[tokio::test]
async fn the_changes_of_a_table_arrive_in_order_by_polling_and_are_marked() {
    for version in [Version::Pg15, Version::Pg18] {
        let relayed = Relayed::new(version, "poll").await;
        let relay = Relay::spawn(&relayed.config);
        relay.await_state("polling", SOON).await;
        relayed.whole().await;
        let left = "select count(*) from postrider_outbox.outbox_orders where published_at is null";
        await_that("all events to be marked", SOON, || async {
            let left = relayed.world.number(left).await;
            if left == 0 { Ok(()) } else { Err(left) }
        })
        .await;
        assert_eq!(relay.terminate(SOON).await.code, Some(0));
    }
}

/// Who adds a relay later: its role has what `outbox_grant` gives it.
#[tokio::test]
async fn check_finds_nothing_amiss_in_a_pipeline_over_a_table_outbox() {
    let relayed = Relayed::new(Version::Pg17, "poll").await;
    let text = postrider_ok(&relayed.config, &["check"]);
    assert!(text.contains("0 errors"), "{text}");
}
