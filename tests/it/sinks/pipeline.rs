//! A pipeline from an outbox to the server of a sink.

use super::server::SinkServer;
use crate::await_that::{SOON, await_that};
use crate::ledger::{Findings, Ledger};
use crate::load::Plan;
use crate::relay::{Relay, postrider_ok};
use crate::server::{Client, Database, Version, unique};
use crate::topic::ReadRecord;
use serde_json::Value;
use std::cell::Cell;

/// Events in flight, which bounds the repetitions. Bytes: that of the conformance test's memory bound.
pub(super) const IN_FLIGHT_EVENTS: usize = 2_000;

/// One outbox, one server, one configuration. The topic of an event is its aggregate type.
pub(super) struct SinkPipeline<S> {
    pub(super) name: String,
    pub(super) server: S,
    pub(super) url: String,
    pub(super) config: String,
    /// A session in the database.
    pub(super) sql: Client,
    /// Kept for its end.
    _database: Database,
}

impl<S: SinkServer> SinkPipeline<S> {
    /// With a new server that has the destination `orders`.
    pub(super) async fn start(test: &str) -> Self {
        let server = S::start().await;
        server.create("orders").await;
        let sink = server.sink(server.port());
        Self::to(server, test, &sink).await
    }

    /// With this server and this `[.sink]`.
    pub(super) async fn to(server: S, test: &str, sink: &str) -> Self {
        let version = Version::ALL[fastrand::usize(..Version::ALL.len())];
        let database = Database::create(version, test).await;
        let (url, name) = (database.socket_url(), unique(test));
        let config = config(&name, &url, sink);
        postrider_ok(&config, &["setup", "--create-table"]);
        let sql = Client::connect(&url).await.expect("a session");
        Self { name, server, url, config, sql, _database: database }
    }

    /// A pipeline of the same name from another database, with this `[.sink]`.
    pub(super) async fn namesake(&self, test: &str, sink: &str) -> (Database, String) {
        let database = Database::create(Version::ALL[0], test).await;
        let config = config(&self.name, &database.socket_url(), sink);
        // Both databases may be on one server, whose slots have one name each.
        let source = format!("[pipelines.{}.source]\n", self.name);
        let config = config.replace(&source, &format!("{source}slot = \"{}\"\n", unique(test)));
        postrider_ok(&config, &["setup", "--create-table"]);
        (database, config)
    }

    /// The configuration with another `[.sink]`.
    pub(super) fn with_sink(&self, sink: &str) -> String {
        config(&self.name, &self.url, sink)
    }

    /// Parked events are attempted each second: some attempt comes after their destination has changed.
    pub(super) fn retry_each_second(&mut self) {
        self.config = self.config.replace("step = \"1h\"", "step = \"1s\"");
    }

    pub(super) fn run(&self) -> Relay {
        Relay::spawn(&self.config)
    }

    /// A load on the destination.
    pub(super) fn plan(&self) -> Plan {
        Plan { rate: 2_000, ..Plan::new(&self.url, "orders") }
    }

    /// Inserts events with numbers as payloads, in one transaction, for an aggregate of a destination.
    pub(super) async fn insert(&self, destination: &str, aggregate: &str, numbers: &[u32]) {
        let numbers: Vec<String> = numbers.iter().map(ToString::to_string).collect();
        let sql = format!(
            "insert into outbox (aggregate_type, aggregate_id, event_type, payload) \
             select '{destination}', '{aggregate}', 'T', to_json(i) from unnest(array[{}]) i",
            numbers.join(", ")
        );
        self.sql.batch(&sql).await;
    }

    /// Inserts an event with a payload of some `bytes` that can't be compressed much.
    pub(super) async fn insert_large(&self, destination: &str, aggregate: &str, bytes: usize) {
        let sql = format!(
            "insert into outbox (aggregate_type, aggregate_id, event_type, payload) \
             select '{destination}', '{aggregate}', 'T', to_json((select string_agg(md5(random()::text), '') \
               from generate_series(1, {})))",
            bytes.div_ceil(32)
        );
        self.sql.batch(&sql).await;
    }

    /// Waits until a destination has at least so many records, and returns them.
    pub(super) async fn await_records(&self, destination: &str, count: usize) -> Vec<ReadRecord> {
        await_that(&format!("{count} records of {destination}"), SOON, || async {
            let records = self.server.read(destination).await?;
            if records.len() >= count { Ok(records) } else { Err(format!("{}", records.len())) }
        })
        .await
    }

    /// Waits until what an aggregate has is this.
    pub(super) async fn await_values(&self, destination: &str, aggregate: &str, wanted: &[&str]) {
        await_that(&format!("{wanted:?} of {aggregate}"), SOON, || async {
            let records = self.server.read(destination).await?;
            let found = values_of(&records, aggregate);
            if found == wanted { Ok(()) } else { Err(format!("{found:?}")) }
        })
        .await;
    }

    /// Waits until everything that was committed has arrived.
    pub(super) async fn arrived(&self, ledger: &Ledger) -> Findings {
        let read = Cell::new(0);
        await_that("every committed event", SOON, || async {
            let records = self.server.read("orders").await?;
            if records.len() < ledger.committed() || records.len() == read.get() {
                return Err(format!("{} records for {} events", records.len(), ledger.committed()));
            }
            read.set(records.len());
            let found = ledger.check(&records);
            if found.lost.is_empty() && found.cut_off.is_empty() {
                Ok(found)
            } else {
                Err(found.to_string())
            }
        })
        .await
    }

    /// Parked events that are neither published nor skipped: aggregate and state, in the order of the events.
    pub(super) async fn parked(&self) -> String {
        let sql = "select coalesce(string_agg(concat_ws(' ', aggregate_id, state), ', ' \
                     order by commit_lsn, ordinal), '') \
                   from postrider.parked where state not in ('done', 'skipped')";
        self.sql.text(sql).await.expect("parked events")
    }

    pub(super) async fn await_parked(&self, wanted: &str) {
        await_that(&format!("parked: {wanted:?}"), SOON, || async {
            let found = self.parked().await;
            if found == wanted { Ok(()) } else { Err(found) }
        })
        .await;
    }

    /// Everything committed so far is resolved, and PostgreSQL knows.
    pub(super) async fn resolved(&self) {
        let end = self.sql.text("select pg_current_wal_lsn()::text").await.expect("a position");
        let sql = format!(
            "select confirmed_flush_lsn >= '{end}' from pg_replication_slots where slot_name = 'postrider_{}'",
            self.name
        );
        // Of an idle server the last few kB of WAL are confirmed only with what follows them.
        let more = "select pg_logical_emit_message(false, 'more', repeat('x', 20000))";
        await_that("all to be confirmed", SOON, || async {
            self.sql.batch(more).await;
            match self.sql.text(&sql).await.as_deref() {
                Some("t") => Ok(()),
                other => Err(format!("{other:?}")),
            }
        })
        .await;
    }

    /// Whether the slot's position is behind the present end of WAL for as long as this holds: nothing is confirmed.
    pub(super) async fn confirmed(&self) -> Option<String> {
        let sql = format!(
            "select confirmed_flush_lsn::text from pg_replication_slots where slot_name = 'postrider_{}'",
            self.name
        );
        self.sql.text(&sql).await
    }
}

fn config(name: &str, url: &str, sink: &str) -> String {
    format!(
        "[pipelines.{name}]\n\
         [pipelines.{name}.source]\nurl = \"{url}\"\n\
         [pipelines.{name}.outbox]\ntable = \"public.outbox\"\n\
         [pipelines.{name}.route]\ntopic = \"{{aggregate_type}}\"\n\
         [pipelines.{name}.flow]\nin_flight_events = {IN_FLIGHT_EVENTS}\nin_flight_bytes = \"8MiB\"\n\
         [pipelines.{name}.parking]\nbackoff = {{ step = \"1h\", steps_max = 1 }}\n\
         {}",
        sink.replace("[.", &format!("[pipelines.{name}."))
    )
}

/// The values of an aggregate, in order, each once: a repetition of what came before is left out.
pub(super) fn values_of(records: &[ReadRecord], aggregate: &str) -> Vec<String> {
    let of = records.iter().filter(|record| record.key_text() == Some(aggregate));
    let mut values: Vec<String> = Vec::new();
    for value in of.map(|record| record.value_text().unwrap_or("null").to_owned()) {
        if !values.contains(&value) {
            values.push(value);
        }
    }
    values
}

/// The state of the only pipeline.
pub(super) fn state(status: &Value) -> &str {
    status["pipelines"][0]["state"].as_str().unwrap_or("")
}
