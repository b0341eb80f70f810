//! A document that the broker refuses: it is parked, and what follows of its table waits behind it.

use super::keeper::{Keeper, document};
use super::sequences::{DDL, confirmed};
use crate::await_that::{SOON, await_that};
use crate::pipeline::Pipeline;
use crate::relay::postrider_ok;
use crate::server::Version;
use crate::sink_caller::alter;
use serde_json::Value;
use std::collections::BTreeMap;

/// Each is a transaction.
const CHANGES: [&str; 7] = [
    "insert into orders values (1, 0, 'small')",
    // More than the topic takes, and fewer rows than a sequence has.
    "insert into orders select i, 0, md5(random()::text) from generate_series(100, 900) i",
    "update orders set n = 1 where id = 1",
    "insert into logs values (1, 0, 'other table')",
    "delete from orders where id between 100 and 150",
    // A sequence.
    "insert into orders select i, 0, 'x' from generate_series(1000, 3500) i",
    "truncate orders; insert into orders values (7, 7, 'last')",
];

/// The events of parked rows that are not resolved: the state of each, in their order.
async fn parked(pipeline: &Pipeline) -> Vec<String> {
    let sql = "select coalesce(string_agg(state, ' ' order by commit_lsn, ordinal), '') from postrider.parked \
               where state not in ('done', 'skipped')";
    let states = pipeline.sql.text(sql).await.unwrap_or_default();
    states.split_whitespace().map(str::to_owned).collect()
}

#[tokio::test]
async fn document_that_is_refused_holds_back_its_table_and_nothing_comes_out_of_order() {
    for version in [Version::Pg15, Version::Pg18] {
        let capture = "tables = [\"orders\", \"logs\"]";
        let mut pipeline = Pipeline::capturing(version, "captured_parked", DDL, capture).await;
        alter(&pipeline.topic, "max.message.bytes", "3000").await;
        let often = "attempts_max = 1000\nbackoff = { step = \"300ms\", steps_max = 1 }";
        pipeline.config = pipeline.with_parking(&pipeline.config, often);
        postrider_ok(&pipeline.config, &["setup"]);
        let relay = pipeline.run();
        relay.await_state("streaming", SOON).await;
        for change in CHANGES {
            pipeline.sql.batch(change).await;
        }
        // The position goes on: parked documents are stored.
        confirmed(&pipeline).await;
        let states = parked(&pipeline).await;
        // The update, the deletion, four documents of the sequence, the truncation.
        let wanted = [vec!["waiting"], vec!["behind"; 7]].concat();
        assert_eq!(states, wanted);
        let mut keys: Vec<String> = Vec::new();
        for record in pipeline.topic.read_all().await {
            keys.push(record.key_text().expect("a key").to_owned());
        }
        assert_eq!(keys, ["public.orders", "public.logs"], "the other table goes on");

        alter(&pipeline.topic, "max.message.bytes", "1000000").await;
        await_that("all parked documents to be published", SOON, || async {
            let left = parked(&pipeline).await;
            if left.is_empty() { Ok(()) } else { Err(left.join(" ")) }
        })
        .await;
        pipeline.sql.batch("update orders set n = 8 where id = 7").await;
        confirmed(&pipeline).await;
        assert_eq!(relay.terminate(SOON).await.code, Some(0));
        let records = pipeline.topic.read_all().await;
        let mut highest = BTreeMap::new();
        for record in &records {
            let key = record.key_text().expect("a key");
            let position = record.header("position");
            if document(record).get("claim_check").is_some() {
                assert_eq!(position, None, "it has no rows");
                continue;
            }
            let before = highest.insert(key, position.expect("a position"));
            assert!(before < position, "{key}: {before:?} and then {position:?}");
        }
        let of_orders: Vec<Value> = records
            .iter()
            .filter(|record| record.key_text() == Some("public.orders"))
            .map(document)
            .collect();
        assert_eq!(of_orders.len(), 10, "each once");
        let mut keeper = Keeper::default();
        keeper.apply_all(&records);
        keeper.assert_has(&pipeline.sql, "public.orders").await;
        keeper.assert_has(&pipeline.sql, "public.logs").await;
    }
}
