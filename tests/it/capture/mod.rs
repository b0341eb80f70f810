//! Captured tables: what is refused, what setup creates, and what becomes of a publication that is changed.

mod documents;
mod keeper;
mod parked;
mod publication;
mod refusals;
mod replaced;
mod sequences;
mod setup;

use crate::pipeline::Pipeline;
use crate::relay::postrider;
use crate::server::Client;
use serde_json::Value;
use std::process::Output;

/// Two tables with primary keys, one of which has a row.
const TABLES: &str = "create table orders (id int primary key, customer text, total numeric); \
     create table order_lines (order_id int, line int, item text, primary key (order_id, line)); \
     insert into orders values (1, 'Ada', 12.50)";

/// Both of them.
const BOTH: &str = "tables = [\"public.orders\", \"public.order_lines\"]";

fn said(output: &Output) -> String {
    let [out, err] = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text));
    format!("{out}{err}")
}

/// Slots, publications and schemas of this database that are ours.
async fn ours(sql: &Client) -> String {
    let count = "select (select count(*) from pg_replication_slots where database = current_database()) || ' ' ||
                        (select count(*) from pg_publication) || ' ' ||
                        (select count(*) from pg_namespace where nspname = 'postrider')";
    sql.text(count).await.expect("a row")
}

/// The findings of `postrider check`.
fn findings(pipeline: &Pipeline) -> Vec<Value> {
    let output = postrider(&pipeline.config, &["check", "--json"]);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    serde_json::from_str(&text).unwrap_or_else(|_| panic!("{}", said(&output)))
}

/// The finding with this id and severity.
fn finding(pipeline: &Pipeline, id: &str, severity: &str) -> Value {
    let all = findings(pipeline);
    let found = all.iter().find(|finding| finding["id"] == id && finding["severity"] == severity);
    found.unwrap_or_else(|| panic!("no {severity} {id}: {all:#?}")).clone()
}
