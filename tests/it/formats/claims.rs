//! A pipeline to Kafka with a claim check, and what its records refer to.

use crate::await_that::{SOON, await_that};
use crate::pipeline::Pipeline;
use crate::private::{PrivateSeaweed, sha256};
use crate::relay::Relay;
use crate::server::Version;
use crate::topic::ReadRecord;
use serde_json::Value;

/// The bound of the tests. Unit: bytes.
pub(super) const ABOVE: usize = 1000;

/// A pipeline with an object storage of its own.
pub(super) struct Claims {
    pub(super) store: PrivateSeaweed,
    pub(super) pipeline: Pipeline,
}

impl Claims {
    pub(super) async fn start(version: Version, test: &str) -> Self {
        let store = PrivateSeaweed::start().await;
        let mut pipeline = Pipeline::shared(version, test).await;
        pipeline.config.push_str(&table(&pipeline.name, &store, ""));
        Self { store, pipeline }
    }

    /// Adds lines of the configuration, in which `[.` stands for `[pipelines.NAME.`.
    pub(super) fn configure(&mut self, lines: &str) {
        let lines = lines.replace("[.", &format!("[pipelines.{}.", self.pipeline.name));
        self.pipeline.config.push_str(&lines);
    }

    /// Replaces lines of the configuration.
    pub(super) fn change(&mut self, from: &str, to: &str) {
        assert!(self.pipeline.config.contains(from), "no {from:?} in {}", self.pipeline.config);
        self.pipeline.config = self.pipeline.config.replace(from, to);
    }

    pub(super) fn run(&self) -> Relay {
        self.pipeline.run()
    }

    /// Inserts an event whose payload is an expression of SQL.
    pub(super) async fn insert(&self, aggregate: &str, payload: &str) {
        let sql = format!(
            "insert into public.outbox (aggregate_type, aggregate_id, event_type, payload) \
             values ('order', '{aggregate}', 'Written', {payload})"
        );
        self.pipeline.sql.batch(&sql).await;
    }

    /// Waits until the topic has so many records, and reads them with what they refer to.
    pub(super) async fn await_payloads(&self, count: usize) -> Vec<(ReadRecord, Vec<u8>)> {
        let mut found = Vec::new();
        for record in self.pipeline.topic.await_records(count, 2 * SOON).await {
            let payload = payload(&self.store, &record).await;
            found.push((record, payload));
        }
        found
    }

    /// How many parked events there are.
    pub(super) async fn parked(&self) -> String {
        let sql =
            "select count(*)::text from postrider.parked where state not in ('done', 'skipped')";
        self.pipeline.sql.text(sql).await.expect("a number")
    }

    /// Waits until so many events are parked.
    pub(super) async fn await_parked(&self, count: usize) {
        await_that(&format!("{count} parked events"), SOON, || async {
            let found = self.parked().await;
            if found == count.to_string() { Ok(()) } else { Err(found) }
        })
        .await;
    }

    /// Waits for the status that the pipeline waits for the storage.
    pub(super) async fn await_waiting(&self, relay: &Relay, words: &str) -> Value {
        let of_storage = |status: &Value| {
            let pipeline = &status["pipelines"][0];
            let reason = pipeline["reason"].as_str().unwrap_or_default();
            pipeline["state"] == "broker_down"
                && reason.contains("object storage")
                && reason.contains(words)
        };
        relay.await_status("a storage that is waited for", 2 * SOON, of_storage).await
    }
}

/// The table of a pipeline's claim check, and further lines for it.
pub(super) fn table(pipeline: &str, store: &PrivateSeaweed, more: &str) -> String {
    format!(
        "[pipelines.{pipeline}.payload.claim_check]\nabove = \"{ABOVE}B\"\nurl = \"s3://shop/claims\"\n\
         endpoint = \"{}\"\n{}{more}\n",
        store.endpoint(),
        store.login_keys()
    )
}

/// The payload of a record: its value, or what it refers to, which is compared with size and digest.
pub(super) async fn payload(store: &PrivateSeaweed, record: &ReadRecord) -> Vec<u8> {
    let Some(url) = record.header("claim-check-url") else {
        return record.value.clone().unwrap_or_default();
    };
    assert_eq!(record.value.as_deref(), Some(&b""[..]), "a reference and a value");
    let content = store.get_url(url).await.unwrap_or_else(|error| panic!("{url}: {error}"));
    let size = record.header("claim-check-size").expect("a size");
    assert_eq!(size, content.len().to_string());
    let digest = sha256(&content);
    assert_eq!(record.header("claim-check-sha256"), Some(digest.as_str()));
    let folder: String = digest.chars().take(2).collect();
    assert!(url.ends_with(&format!("/sha256/{folder}/{digest}")), "{url}");
    content
}

/// An expression of SQL whose JSON has so many bytes, and begins with `start`.
pub(super) fn text(start: &str, bytes: usize) -> String {
    let rest = bytes - start.len() - 2;
    format!("to_json('{start}' || repeat('x', {rest}))")
}
