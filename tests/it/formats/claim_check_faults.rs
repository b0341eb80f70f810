//! Claim check among failures: large payloads while relay and storage are killed, a storage that hangs, and what
//! waiting for an upload costs.

use super::claims::{Claims, payload, text};
use crate::await_that::{SOON, await_that};
use crate::pipeline::show;
use crate::server::Version;
use crate::topic::Looker;
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

/// A payload of the long test. Unit: bytes.
const LARGE_BYTES: usize = 50_000_000;

/// Large events of that test, of two aggregates.
const LARGE: usize = 6;

/// The most memory of a relay meanwhile. A row is there as the server sends it, as a record, and as an upload; the
/// queue of the WAL thread has as much again.
const MEMORY_MAX_KIB: u64 = 400 << 10;

/// Time for all of the long test.
const ENDS: Duration = Duration::from_mins(6);

/// An expression of SQL for a JSON string that can't be compressed, and begins with its number.
fn noise(number: usize) -> String {
    let count = LARGE_BYTES / 32;
    format!(
        "to_json((select '{number} ' || string_agg(md5(i::text || '{number}'), '') from generate_series(1, {count}) i))"
    )
}

/// The records that the topic has.
async fn held(claims: &Claims, looker: &Looker) -> usize {
    claims.pipeline.topic.held(looker).await.unwrap_or(0)
}

/// Waits until the topic has so many records, and gives the most memory of the relay.
async fn until(claims: &Claims, relay: &crate::relay::Relay, wanted: usize) -> u64 {
    let looker = Looker::default();
    await_that(&format!("{wanted} records"), ENDS, || async {
        let found = held(claims, &looker).await;
        if found >= wanted { Ok(()) } else { Err(format!("{found}\n{}", relay.stderr())) }
    })
    .await;
    relay.memory_kib().1
}

/// The relay is killed when the storage has begun an upload, the storage when a relay waits for one: each event comes,
/// each reference leads to its payload, and memory is bounded.
#[tokio::test]
async fn fifty_megabytes_survive_kills_of_relay_and_storage() {
    let mut claims = Claims::start(Version::Pg17, "claims_large").await;
    let began = Instant::now();
    for number in 1..=LARGE {
        claims.insert(if number % 2 == 0 { "even" } else { "odd" }, &noise(number)).await;
        claims.insert("small", &format!("'{number}'")).await;
    }
    let mut most = 0;
    for round in 1..=4 {
        let relay = claims.run();
        let wanted = 2 * round;
        most = most.max(until(&claims, &relay, wanted).await);
        if round % 2 == 0 {
            claims.store.kill().await;
            claims.await_waiting(&relay, "").await;
            claims.store.restart().await;
            most = most.max(until(&claims, &relay, wanted + 1).await);
        }
        relay.kill().await;
    }
    let relay = claims.run();
    let ids = async || -> Vec<u32> {
        let records = claims.pipeline.topic.read_without_values(ENDS).await;
        records
            .iter()
            .map(|record| record.header("id").expect("an id").parse().expect("a number"))
            .collect()
    };
    await_that("every event", ENDS, || async {
        let found: BTreeSet<u32> = ids().await.into_iter().collect();
        let all = found.len() == 2 * LARGE;
        if all { Ok(()) } else { Err(format!("{found:?}\n{}", relay.stderr())) }
    })
    .await;
    most = most.max(relay.memory_kib().1);
    show(&format!(
        "{LARGE} events of {LARGE_BYTES} bytes, 4 kills of the relay and 2 of the storage: {:.0} s, VmHWM {} MiB",
        began.elapsed().as_secs_f64(),
        most >> 10
    ));
    assert!(most < MEMORY_MAX_KIB, "{most} KiB");
    assert_eq!(claims.parked().await, "0");
    assert_eq!(
        claims.store.keys("shop").await.len(),
        LARGE,
        "an object for each payload, and no other"
    );
    for record in claims.pipeline.topic.read_all().await {
        let content = payload(&claims.store, &record).await;
        // Ids count from 1; a large event is before each small one.
        let id: usize = record.header("id").expect("an id").parse().expect("a number");
        let number = id.div_ceil(2).to_string();
        if id % 2 == 1 {
            assert!(content.len() > LARGE_BYTES - 32, "{} bytes", content.len());
            assert!(
                content.starts_with(format!("\"{number} ").as_bytes()),
                "another event's payload"
            );
        } else {
            assert_eq!(content, number.as_bytes());
        }
    }
    assert_eq!(relay.terminate(SOON).await.code, Some(0));
}

/// A storage that takes no answer back: the request ends after its time, the relay says so, stops when it is asked to,
/// and nothing is published whose payload is not known to be stored.
#[tokio::test]
async fn storage_that_hangs_is_waited_for() {
    let mut claims = Claims::start(Version::Pg18, "claims_hangs").await;
    claims.change("above =", "timeout = \"2s\"\nabove =");
    let relay = claims.run();
    claims.insert("a", &text("first", 5000)).await;
    claims.await_payloads(1).await;
    claims.store.freeze();
    claims.insert("a", &text("second", 5000)).await;
    claims.insert("b", "'1'").await;
    claims.await_waiting(&relay, "no answer within 2s").await;
    assert_eq!(held(&claims, &Looker::default()).await, 1, "an event overtook the upload");
    // SIGTERM does not wait for the storage.
    assert_eq!(relay.terminate(SOON).await.code, Some(0));
    let relay = claims.run();
    claims.await_waiting(&relay, "no answer within 2s").await;
    claims.store.thaw();
    let found = claims.await_payloads(3).await;
    assert_eq!(found.len(), 3, "a repetition");
    assert_eq!(claims.parked().await, "0");
    assert_eq!(relay.terminate(SOON).await.code, Some(0));
}

/// The stream waits for each upload: what that costs is printed.
#[tokio::test]
async fn stream_waits_for_each_upload() {
    const COUNT: usize = 100;
    let claims = Claims::start(Version::Pg17, "claims_cost").await;
    let sql = format!(
        "insert into public.outbox (aggregate_type, aggregate_id, event_type, payload) \
         select 'order', (i % 10)::text, 'Written', to_json(i || repeat('x', 1000000)) from generate_series(1, {COUNT}) i"
    );
    claims.pipeline.sql.batch(&sql).await;
    let began = Instant::now();
    let relay = claims.run();
    until(&claims, &relay, COUNT).await;
    let each = began.elapsed().as_millis() / COUNT as u128;
    show(&format!("{COUNT} payloads of 1 MB by claim check: {each} ms each"));
    assert_eq!(claims.store.keys("shop").await.len(), COUNT);
    assert_eq!(relay.terminate(SOON).await.code, Some(0));
}
