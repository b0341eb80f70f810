//! Claim check with every sink: what the record has does not depend on the broker.

use super::http::HttpServer;
use super::nats::NatsServer;
use super::pipeline::SinkPipeline;
use super::redis::RedisServer;
use super::server::SinkServer;
use crate::await_that::SOON;
use crate::private::{PrivateSeaweed, sha256};

/// The payload that becomes a reference. Unit: bytes.
const LARGE_BYTES: usize = 2_000_000;

/// A large payload is a reference that leads to it, an empty value is in its place, and small ones and NULL stay.
async fn references_resolve<S: SinkServer>() {
    let store = PrivateSeaweed::start().await;
    let mut pipeline = SinkPipeline::<S>::start("claims_sink").await;
    let claim_check = format!(
        "\n[pipelines.{}.payload.claim_check]\nabove = \"100KiB\"\nurl = \"s3://shop/claims\"\n\
         endpoint = \"{}\"\n{}",
        pipeline.name,
        store.endpoint(),
        store.login_keys()
    );
    pipeline.config.push_str(&claim_check);
    pipeline.insert_large("orders", "a", LARGE_BYTES).await;
    let wanted = pipeline.sql.text("select payload::text from outbox").await.expect("a payload");
    pipeline.insert("orders", "a", &[1]).await;
    let relay = pipeline.run();
    let records = pipeline.await_records("orders", 2).await;
    let large = &records[0];
    let header =
        |name: &str| large.header(name).unwrap_or_else(|| panic!("no {name}: {:?}", large.headers));
    let content = store.get_url(header("claim-check-url")).await.expect("an object");
    assert!(content == wanted.as_bytes(), "another content");
    assert_eq!(header("claim-check-size"), wanted.len().to_string());
    assert_eq!(header("claim-check-sha256"), sha256(wanted.as_bytes()));
    // A request of HTTP has a body of 0 bytes for NULL too.
    assert!(large.value.as_ref().is_none_or(Vec::is_empty), "a reference and a value");
    assert_eq!(records[1].value_text(), Some("1"));
    assert_eq!(records[1].header("claim-check-url"), None);
    assert_eq!(relay.terminate(SOON).await.code, Some(0));
}

#[tokio::test]
async fn references_resolve_over_http() {
    references_resolve::<HttpServer>().await;
}

#[tokio::test]
async fn references_resolve_over_nats() {
    references_resolve::<NatsServer>().await;
}

#[tokio::test]
async fn references_resolve_over_redis() {
    references_resolve::<RedisServer<true>>().await;
}

/// In transactions, which wait for the upload.
#[tokio::test]
async fn references_resolve_exactly_once() {
    references_resolve::<RedisServer<true, true>>().await;
}
