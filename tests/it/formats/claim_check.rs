//! Claim check: what a reader gets, and what waits for the storage. docs/formats/claim-check.md.

use super::claims::{ABOVE, Claims, payload, text};
use crate::answers::{Answer, answer, answer_alone};
use crate::await_that::SOON;
use crate::polling::polls;
use crate::private::PrivateSeaweed;
use crate::relay::{postrider, postrider_ok};
use crate::server::Version;
use crate::sink_caller::alter;
use crate::topic::Topics;
use serde_json::Value;
use std::path::Path;

/// Payloads around the bound, by the stream and by polling: one more byte makes a reference, and neither a tombstone
/// nor a key is changed.
#[tokio::test]
async fn payload_above_the_bound_is_a_reference_that_resolves() {
    for mode in ["wal", "poll"] {
        let mut claims = Claims::start(Version::Pg17, "claims").await;
        if mode == "poll" {
            polls(&mut claims.pipeline).await;
        }
        let sizes = [10, ABOVE - 1, ABOVE, ABOVE + 1, 3_000_000];
        for size in sizes {
            claims.insert("7", &text(&size.to_string(), size)).await;
        }
        claims.insert("7", "null").await;
        let relay = claims.run();
        let found = claims.await_payloads(sizes.len() + 1).await;
        assert_eq!(found.len(), sizes.len() + 1, "{mode}");
        for ((record, content), size) in found.iter().zip(sizes) {
            assert_eq!(content.len(), size, "{mode}");
            assert!(content.starts_with(format!("\"{size}x").as_bytes()), "{mode} {size}");
            assert_eq!(record.header("claim-check-url").is_some(), size > ABOVE, "{mode} {size}");
            assert_eq!(record.key_text(), Some("7"));
        }
        let (tombstone, _) = found.last().expect("a record");
        assert_eq!(tombstone.value, None, "{mode}");
        assert_eq!(tombstone.header("claim-check-url"), None);
        assert_eq!(claims.store.keys("shop").await.len(), 2, "objects of two payloads");
        assert_eq!(relay.terminate(SOON).await.code, Some(0));
    }
}

/// A service that copies the headers of the event it has read: they would lead a reader to that event's payload.
#[tokio::test]
async fn reference_that_was_copied_from_another_event_is_removed_or_replaced() {
    let claims = Claims::start(Version::Pg16, "claims_copied").await;
    let relay = claims.run();
    for size in [10, 5_000] {
        let sql = format!(
            "insert into public.outbox (aggregate_type, aggregate_id, event_type, payload, headers) \
             values ('order', '7', 'Written', {}, '{{\"claim-check-url\": \"s3://shop/claims/other\", \
                     \"claim-check-size\": \"1\", \"claim-check-sha256\": \"00\", \"tenant\": \"a\"}}')",
            text("own", size)
        );
        claims.pipeline.sql.batch(&sql).await;
    }
    let found = claims.await_payloads(2).await;
    for ((record, content), size) in found.iter().zip([10, 5_000]) {
        assert_eq!(content.len(), size);
        let of_claim = record.headers.iter().filter(|(name, _)| name.starts_with("claim-check-"));
        assert_eq!(of_claim.count(), if size == 10 { 0 } else { 3 });
        assert_eq!(record.header("tenant"), Some("a"));
    }
    assert_eq!(relay.terminate(SOON).await.code, Some(0));
}

/// The same payload twice is one object, a replay refers to it too, and puts it back if somebody has deleted it.
#[tokio::test]
async fn same_payload_is_one_object_which_a_replay_puts_back() {
    let claims = Claims::start(Version::Pg18, "claims_same").await;
    let relay = claims.run();
    claims.insert("a", &text("same", 5000)).await;
    claims.insert("b", &text("same", 5000)).await;
    claims.insert("c", &text("other", 5000)).await;
    let found = claims.await_payloads(3).await;
    let urls = |found: &[(crate::topic::ReadRecord, Vec<u8>)], key: &str| -> Vec<String> {
        let of_key = found.iter().filter(|(record, _)| record.key_text() == Some(key));
        of_key
            .map(|(record, _)| record.header("claim-check-url").expect("a reference").to_owned())
            .collect()
    };
    assert_eq!(urls(&found, "a"), urls(&found, "b"));
    assert_eq!(claims.store.keys("shop").await.len(), 2);

    let keys = claims.store.keys("shop").await;
    for key in &keys {
        claims.store.delete("shop", key).await;
    }
    let ids = ["replay", "--source", "table", "--id", "1", "--id", "2", "--id", "3"];
    postrider_ok(&claims.pipeline.config, &ids);
    let found = claims.await_payloads(6).await;
    assert_eq!(urls(&found, "a")[0], urls(&found, "a")[1]);
    assert_eq!(claims.store.keys("shop").await, keys);
    assert_eq!(relay.terminate(SOON).await.code, Some(0));
}

/// A parked event is stored with its payload, not with a reference: its retry stores the object again, and its dead
/// letter refers to it.
#[tokio::test]
async fn parked_event_is_retried_with_its_object_and_its_dead_letter_refers_to_it() {
    let mut claims = Claims::start(Version::Pg16, "claims_parked").await;
    let topics = Topics::new(&claims.pipeline.topic.brokers, "claims_dead");
    let dead = topics.create("dead", 1).await;
    let parking = format!("[.parking]\nattempts_max = 1\ndead_topic = \"{}\"\n", dead.name);
    claims.configure(&parking);
    claims.configure("[.sink.properties]\n\"compression.type\" = \"none\"\n");
    // A reference has some 300 bytes of headers.
    alter(&claims.pipeline.topic, "max.message.bytes", "200").await;
    let relay = claims.run();
    claims.insert("a", &text("large", 5000)).await;
    claims.await_parked(1).await;
    let letters = dead.await_records(1, 2 * SOON).await;
    let content = payload(&claims.store, &letters[0]).await;
    assert!(content.starts_with(b"\"largex"), "the payload of the dead letter");

    for key in claims.store.keys("shop").await {
        claims.store.delete("shop", &key).await;
    }
    alter(&claims.pipeline.topic, "max.message.bytes", "1000000").await;
    postrider_ok(
        &claims.pipeline.config,
        &["parked", "retry", "--all", "--state", "dead", "--yes"],
    );
    let found = claims.await_payloads(1).await;
    assert!(found[0].1.starts_with(b"\"largex"));
    claims.await_parked(0).await;
    assert_eq!(relay.terminate(SOON).await.code, Some(0));
}

/// Attribute `dataref` of a CloudEvent is the reference, in both modes; a small payload is in the event.
#[tokio::test]
async fn cloud_event_has_the_reference_as_dataref() {
    for mode in ["binary", "structured"] {
        let mut claims = Claims::start(Version::Pg17, "claims_ce").await;
        let format =
            format!("[.format]\nkind = \"cloudevents\"\nmode = \"{mode}\"\nsource = \"/shop\"\n");
        claims.configure(&format);
        claims.insert("a", &text("large", 5000)).await;
        claims.insert("a", &text("small", 50)).await;
        let relay = claims.run();
        let records = claims.pipeline.topic.await_records(2, 2 * SOON).await;
        let url = records[0].header("claim-check-url").expect("a reference");
        let content = claims.store.get_url(url).await.expect("an object");
        assert!(content.starts_with(b"\"largex"));
        if mode == "binary" {
            assert_eq!(records[0].header("ce_dataref"), Some(url));
            assert_eq!(records[0].header("ce_specversion"), Some("1.0"));
            assert_eq!(records[0].value.as_deref(), Some(&b""[..]));
            assert_eq!(records[1].header("ce_dataref"), None);
        } else {
            let event = |value: &Option<Vec<u8>>| -> Value {
                serde_json::from_slice(value.as_deref().expect("a value")).expect("JSON")
            };
            let large = event(&records[0].value);
            assert_eq!(large["dataref"].as_str(), Some(url), "{large}");
            assert!(large.get("data").is_none(), "{large}");
            let small = event(&records[1].value);
            assert!(small.get("dataref").is_none() && small["data"].is_string(), "{small}");
        }
        assert_eq!(relay.terminate(SOON).await.code, Some(0));
    }
}

/// Rights, bucket and server that are missing: everything waits, nothing is parked, the status has the line that fixes
/// it, and after it all events come in order.
#[tokio::test]
async fn storage_that_refuses_is_waited_for_and_named() {
    let mut claims = Claims::start(Version::Pg17, "claims_waits").await;
    let relay = claims.run();
    claims.insert("a", &text("first", 5000)).await;
    claims.await_payloads(1).await;

    claims.store.log_in("reader");
    claims.insert("a", &text("second", 5000)).await;
    claims.insert("b", "'1'").await;
    let status = claims.await_waiting(&relay, "AccessDenied").await;
    answer(
        "an object storage that the login may not write to",
        &claims.pipeline,
        Answer::waits(&status),
    );
    claims.store.log_in("relay");
    claims.await_payloads(3).await;

    claims.store.log_in("nobody");
    claims.insert("a", &text("third", 5000)).await;
    let status = claims.await_waiting(&relay, "InvalidAccessKeyId").await;
    answer(
        "an object storage that does not know the login",
        &claims.pipeline,
        Answer::waits(&status),
    );
    claims.store.log_in("relay");
    claims.await_payloads(4).await;

    claims.store.delete_bucket("shop").await;
    claims.insert("a", &text("fourth", 5000)).await;
    let status = claims.await_waiting(&relay, "NoSuchBucket").await;
    answer("a bucket that does not exist", &claims.pipeline, Answer::waits(&status));
    claims.store.create_bucket("shop").await;
    let records = claims.pipeline.topic.await_records(5, 2 * SOON).await;

    claims.store.kill().await;
    claims.insert("a", &text("fifth", 5000)).await;
    let status = claims.await_waiting(&relay, "could not connect").await;
    answer("an object storage that does not answer", &claims.pipeline, Answer::waits(&status));
    claims.store.restart().await;
    let last = claims.pipeline.topic.await_records(6, 2 * SOON).await;
    assert_eq!(claims.parked().await, "0");
    assert_eq!((records.len(), last.len()), (5, 6), "a repetition");
    let of_a: Vec<_> = last.iter().filter(|record| record.key_text() == Some("a")).collect();
    for (record, word) in of_a.iter().zip(["first", "second", "third", "fourth", "fifth"]) {
        // The objects of the first ones went with their bucket.
        if ["fourth", "fifth"].contains(&word) {
            let content = payload(&claims.store, record).await;
            assert!(content.starts_with(format!("\"{word}x").as_bytes()), "{word}");
        }
    }
    let log = relay.stderr();
    assert!(!log.contains(PrivateSeaweed::SECRET), "the secret is in the log");
    assert_eq!(relay.terminate(SOON).await.code, Some(0));
}

/// TLS: the authority in ca_file is trusted, and a certificate of another name is not.
#[tokio::test]
async fn certificate_of_the_storage_is_verified() {
    let mut claims = Claims::start(Version::Pg17, "claims_tls").await;
    let ca = format!("ca_file = \"{}\"\n", claims.store.ca().display());
    let (plain, wrong) = (claims.store.endpoint(), claims.store.tls_endpoint(false));
    claims.change(&format!("endpoint = \"{plain}\"\n"), &format!("endpoint = \"{wrong}\"\n{ca}"));
    let relay = claims.run();
    claims.insert("a", &text("large", 5000)).await;
    let status = claims.await_waiting(&relay, "certificate").await;
    answer(
        "an object storage with a certificate of another name",
        &claims.pipeline,
        Answer::waits(&status),
    );
    assert_eq!(relay.terminate(SOON).await.code, Some(0));
    let right = claims.store.tls_endpoint(true);
    claims.change(&wrong, &right);
    let relay = claims.run();
    claims.await_payloads(1).await;
    assert_eq!(relay.terminate(SOON).await.code, Some(0));
}

/// `postrider check`: what the storage lacks, and rules of the bucket that delete objects too early.
#[tokio::test]
async fn check_finds_what_the_storage_lacks_and_rules_that_delete_too_early() {
    let mut claims = Claims::start(Version::Pg17, "claims_check").await;
    let check = |claims: &Claims| {
        let output = postrider(&claims.pipeline.config, &["check"]);
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    // The broker of the tests keeps records for ever, where a topic does not say otherwise.
    let said = check(&claims);
    let words =
        ["login OK", "was stored and deleted", "no rule of bucket shop deletes", "for ever"];
    for words in words {
        assert!(said.contains(words), "{words}: {said}");
    }
    alter(&claims.pipeline.topic, "retention.ms", "604800000").await;
    let said = check(&claims);
    assert!(said.contains("\"Days\":18") && said.contains("replaces all rules"), "{said}");
    assert_eq!(claims.store.keys("shop").await, [""; 0], "the object of the check");

    // The topic keeps records for 7 days, and then for 30.
    claims.store.expire("shop", "claims/", 18).await;
    let said = check(&claims);
    assert!(said.contains("objects are deleted 18 days after they were stored"), "{said}");
    alter(&claims.pipeline.topic, "retention.ms", "2592000000").await;
    let said = check(&claims);
    assert!(said.contains("keeps records for 30 days, and objects are deleted after 18"), "{said}");
    assert!(said.contains("keep = \"30d\""), "{said}");
    claims.store.expire("shop", "claims/", 2).await;
    let said = check(&claims);
    assert!(
        said.contains("deletes objects after 2 days, and payload.claim_check.keep needs 18"),
        "{said}"
    );

    claims.store.log_in("writer");
    let said = check(&claims);
    assert!(said.contains("to HEAD of an object") && said.contains("can't be read"), "{said}");
    claims.store.log_in("reader");
    let said = check(&claims);
    assert!(said.contains("AccessDenied") && said.contains("s3:PutObject"), "{said}");
    claims.store.log_in("relay");
    claims.change("s3://shop/claims", "s3://nowhere/claims");
    let said = check(&claims);
    assert!(said.contains("NoSuchBucket") && said.contains("create-bucket"), "{said}");
}

/// A login that may only put objects is enough: an object that is there is stored again.
#[tokio::test]
async fn login_that_may_only_write_is_enough() {
    let claims = Claims::start(Version::Pg18, "claims_writer").await;
    claims.store.log_in("writer");
    let relay = claims.run();
    claims.insert("a", &text("same", 5000)).await;
    claims.await_payloads(1).await;
    assert_eq!(relay.terminate(SOON).await.code, Some(0));
    // Another process, which does not know that it is there.
    let relay = claims.run();
    claims.insert("b", &text("same", 5000)).await;
    claims.await_payloads(2).await;
    assert_eq!(relay.terminate(SOON).await.code, Some(0));
}

/// An object of the right name with another content, which only a stranger can have made, is replaced.
#[tokio::test]
async fn object_of_another_size_is_replaced() {
    let claims = Claims::start(Version::Pg18, "claims_stranger").await;
    let relay = claims.run();
    claims.insert("a", &text("same", 5000)).await;
    claims.await_payloads(1).await;
    assert_eq!(relay.terminate(SOON).await.code, Some(0));
    let key = claims.store.keys("shop").await.remove(0);
    claims.store.put("shop", &key, b"something else").await;
    let relay = claims.run();
    claims.insert("b", &text("same", 5000)).await;
    claims.await_payloads(2).await;
    assert_eq!(relay.terminate(SOON).await.code, Some(0));
}

/// Mistakes in the keys, each with its line.
#[test]
fn keys_that_do_not_fit_are_refused() {
    let refused = |input: &str, lines: &str| {
        let config = format!(
            "[pipelines.orders]\n[pipelines.orders.source]\nurl = \"postgresql://postrider@db.internal/shop\"\n\
             [pipelines.orders.outbox]\ntable = \"public.outbox\"\n\
             [pipelines.orders.sink]\nkind = \"kafka\"\nbrokers = \"k1:9092\"\n\
             [pipelines.orders.payload.claim_check]\n{lines}"
        );
        let output = postrider(&config, &["check"]);
        assert_eq!(output.status.code(), Some(2), "{input}");
        answer_alone(input, &output);
    };
    let url = "url = \"s3://shop/claims\"\n";
    refused("payload.claim_check.url is not s3://bucket", "url = \"https://s3.internal/shop\"\n");
    refused(
        "payload.claim_check.endpoint with a path",
        &format!("{url}endpoint = \"https://s3.internal/shop\"\n"),
    );
    refused(
        "payload.claim_check with an endpoint and without url",
        "endpoint = \"https://s3.internal\"\n",
    );
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("access");
    std::fs::write(&file, "relay").expect("a file");
    refused(
        "payload.claim_check.access_key_file without secret_key_file",
        &format!("{url}access_key_file = \"{}\"\n", shown(&file)),
    );
    refused("payload.claim_check.keep of an hour", &format!("{url}keep = \"1h\"\n"));
}

fn shown(path: &Path) -> String {
    path.display().to_string()
}

/// Without a login nothing starts.
#[tokio::test]
async fn missing_login_halts_at_the_start() {
    let mut claims = Claims::start(Version::Pg17, "claims_login").await;
    let keys = claims.store.login_keys();
    claims.change(&keys, "");
    let halted = crate::halted::run_to_halt(&claims.pipeline.config).await;
    answer("payload.claim_check without a login", &claims.pipeline, &halted);
    // With the login of the environment.
    let env = [("AWS_ACCESS_KEY_ID", "relay"), ("AWS_SECRET_ACCESS_KEY", PrivateSeaweed::SECRET)];
    let relay = crate::relay::Relay::spawn_with(&claims.pipeline.config, &[], &env);
    claims.insert("a", &text("large", 5000)).await;
    claims.await_payloads(1).await;
    assert_eq!(relay.terminate(SOON).await.code, Some(0));
}
