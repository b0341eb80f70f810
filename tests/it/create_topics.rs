//! `sink.create_topics`: topics that are missing are made, with the settings of the file; what can't be made is told by
//! name, and holds up no other.

use crate::await_that::{SOON, await_that};
use crate::pipeline::Pipeline;
use crate::private::PrivateKafka;
use crate::relay::{Relay, postrider, postrider_ok};
use crate::server::{Version, brokers};
use crate::topic::{Topic, admin, create_topic};
use rdkafka::admin::AdminOptions;
use rdkafka::config::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer};
use std::time::Duration;

/// How long one question to the broker may take.
const ANSWER_MAX: Duration = Duration::from_secs(20);

const SETTINGS: &str = "create_topics = { partitions = 3, replication_factor = 1, \
                        config = { \"retention.ms\" = \"-1\", max.message.bytes = 2000000 } }";

/// Partitions of a topic; 0 where there is none.
async fn partitions(brokers: &str, name: &str) -> usize {
    let (brokers, name) = (brokers.to_owned(), name.to_owned());
    let asked = tokio::task::spawn_blocking(move || {
        let consumer: BaseConsumer =
            ClientConfig::new().set("bootstrap.servers", &brokers).create().expect("a consumer");
        let metadata = consumer.fetch_metadata(None, ANSWER_MAX).expect("metadata");
        let found = metadata.topics().iter().find(|topic| topic.name() == name);
        found.map_or(0, |topic| topic.partitions().len())
    });
    asked.await.expect("an answer")
}

fn insert(kind: &str, id: &str, number: u32) -> String {
    format!(
        "insert into outbox (aggregate_type, aggregate_id, event_type, payload) \
         values ('{kind}', '{id}', 'T', to_json({number}))"
    )
}

/// Topics that differ by row: each is made when its first event comes, also where somebody else makes it at that
/// moment. A row without a type makes none.
#[tokio::test]
async fn missing_topics_are_made_with_their_first_event() {
    let pipeline = Pipeline::shared(Version::Pg18, "create").await;
    let (base, brokers) = (pipeline.topic.name.clone(), brokers());
    let config = pipeline.with_line("sink", SETTINGS);
    let config = config.replace(&format!("\"{base}\""), &format!("\"{base}.{{aggregate_type}}\""));
    let relay = Relay::spawn(&config);
    let topic = |kind: &str| Topic { brokers: brokers.clone(), name: format!("{base}.{kind}") };
    let raced = topic("raced");
    for kind in ["order", "invoice", "", "raced", "order"] {
        pipeline.sql.batch(&insert(kind, "a", 1)).await;
        if kind == "raced" {
            // By somebody else, at the same time; either may be the first.
            let options = AdminOptions::new().operation_timeout(Some(ANSWER_MAX));
            let new = rdkafka::admin::NewTopic::new(
                &raced.name,
                5,
                rdkafka::admin::TopicReplication::Fixed(1),
            );
            admin(&brokers).create_topics([&new], &options).await.expect("an answer");
        }
    }
    for (kind, count) in [("order", 2), ("invoice", 1), ("raced", 1)] {
        assert_eq!(topic(kind).await_records(count, SOON).await.len(), count, "{kind}");
    }
    for kind in ["order", "invoice"] {
        assert_eq!(partitions(&brokers, &topic(kind).name).await, 3, "{kind}");
        assert_eq!(topic(kind).setting("retention.ms").await, "-1", "{kind}");
        assert_eq!(topic(kind).setting("max.message.bytes").await, "2000000", "{kind}");
    }
    assert!([3, 5].contains(&partitions(&brokers, &raced.name).await));
    assert_eq!(partitions(&brokers, &topic("").name).await, 0, "an empty part makes no topic");
    let sql = "select string_agg(concat_ws(' ', state, error_code), ', ') from postrider.parked \
               where state not in ('done', 'skipped')";
    await_that("the row without a type, parked", SOON, || async {
        let found = pipeline.sql.text(sql).await.unwrap_or_default();
        if found == "waiting topic_missing" { Ok(()) } else { Err(found) }
    })
    .await;
    relay.await_log("created the topic", SOON).await;
    let log = relay.terminate(SOON).await;
    assert_eq!(log.code, Some(0), "{}", log.stderr);
    let waits =
        ["broker not available", "waiting for topic"].map(|words| log.stderr.contains(words));
    assert_eq!(waits, [false, false], "{}", log.stderr);
}

/// A topic that is known before the first event: `check` tells how it would be made and makes nothing, `setup` makes
/// it, and so does the start where `setup` ran before.
#[tokio::test]
async fn check_tells_setup_makes_and_the_start_makes_what_is_known() {
    let pipeline = Pipeline::shared(Version::Pg17, "create_known").await;
    let base = pipeline.topic.name.clone();
    let config_of = |name: &str| {
        pipeline.with_line("sink", SETTINGS).replace(&format!("\"{base}\""), &format!("\"{name}\""))
    };
    let (by_setup, by_start) = (format!("{base}.by_setup"), format!("{base}.by_start"));
    let text = |output: &std::process::Output| String::from_utf8_lossy(&output.stdout).into_owned();
    let checked = text(&postrider(&config_of(&by_setup), &["check"]));
    assert!(
        checked.contains(&format!("topic \"{by_setup}\" does not exist, and is made")),
        "{checked}"
    );
    assert!(checked.contains("3 partitions, 1 replica, max.message.bytes=2000000"), "{checked}");
    assert_eq!(partitions(&brokers(), &by_setup).await, 0, "check makes nothing");
    let said = postrider_ok(&config_of(&by_setup), &["setup"]);
    assert!(said.contains(&format!("done           topic \"{by_setup}\" was made")), "{said}");
    assert_eq!(partitions(&brokers(), &by_setup).await, 3);
    let again = postrider_ok(&config_of(&by_setup), &["setup"]);
    assert!(again.contains(&format!("topic \"{by_setup}\" exists")), "{again}");
    let relay = Relay::spawn(&config_of(&by_start));
    await_that("the topic, before any event", SOON, || async {
        let found = partitions(&brokers(), &by_start).await;
        if found == 3 { Ok(()) } else { Err(found.to_string()) }
    })
    .await;
    assert_eq!(relay.terminate(SOON).await.code, Some(0));
    // Off, which is the default: the topic is an error, and nobody makes it.
    let off = pipeline.config.replace(&format!("\"{base}\""), &format!("\"{base}.off\""));
    let checked = text(&postrider(&off, &["check"]));
    assert!(checked.contains("topic_missing") || checked.contains("does not exist"), "{checked}");
    assert_eq!(partitions(&brokers(), &format!("{base}.off")).await, 0);
}

/// What stands in the way is told by name, and only the topic's own events wait: no right to create, a setting that the
/// broker refuses, a name that is not allowed.
#[tokio::test]
async fn what_can_not_be_made_is_told_by_name_and_holds_up_no_other() {
    let broker = PrivateKafka::start_with_rules().await;
    let pipeline = Pipeline::to_broker(Version::Pg18, &broker.brokers(), "create_denied").await;
    let base = pipeline.topic.name.clone();
    for (kind, settings, told) in [
        ("odd", "create_topics = { config = { \"no.such.setting\" = 1 } }", "could not be made"),
        ("far", "create_topics = { replication_factor = 7 }", "could not be made"),
        ("other", "create_topics = { allow = \"nothing\" }", "does not exist"),
        // The last: nobody creates anything after that.
        ("denied", "create_topics = {}", "and we may not create it"),
    ] {
        let prefix = format!("{base}.{kind}");
        create_topic(&broker.brokers(), &format!("{prefix}.order"), 1, &[]).await;
        let missing = format!("{prefix}.new");
        if kind == "denied" {
            broker.deny_creation(&missing);
        }
        let config = pipeline.with_line("sink", settings);
        let config =
            config.replace(&format!("\"{base}\""), &format!("\"{prefix}.{{aggregate_type}}\""));
        // The case before had other topics.
        postrider_ok(&config, &["adopt"]);
        let relay = Relay::spawn(&config);
        for (kind, number) in [("order", 1), ("new", 2), ("order", 3)] {
            pipeline.sql.batch(&insert(kind, kind, number)).await;
        }
        relay.await_log(told, SOON).await;
        let order = Topic { brokers: broker.brokers(), name: format!("{prefix}.order") };
        assert_eq!(order.await_records(2, SOON).await.len(), 2, "{kind}");
        assert_eq!(partitions(&broker.brokers(), &missing).await, 0, "{kind}");
        let ended = relay.terminate(SOON).await;
        assert_eq!(ended.code, Some(0), "{}", ended.stderr);
        assert!(ended.stderr.contains(&missing), "{kind}: by name: {}", ended.stderr);
        // The next case begins without what this one parked.
        let waits = "select count(*)::text from postrider.parked where state = 'waiting'";
        assert_eq!(pipeline.sql.text(waits).await.as_deref(), Some("1"), "{kind}");
        postrider_ok(&config, &["parked", "skip", "--all", "--yes"]);
        pipeline.sql.batch("delete from postrider.parked; delete from outbox").await;
    }
}
