//! Brokers that go, that do not let us in, and that can't keep what they are given.

use super::SOON;
use crate::answers::{Answer, answer};
use crate::pipeline::Pipeline;
use crate::private::{PrivateKafka, topic_that_lacks_a_copy};
use crate::relay::Relay;
use crate::server::Version;
use crate::topic::{ReadRecord, admin};
use crate::wal_connection::login::make_certificates;
use rdkafka::admin::{AdminOptions, NewPartitions};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::Path;
use tempfile::TempDir;

/// Waits until the broker is told to be unavailable, for a reason with this word.
async fn down(relay: &Relay, word: &str) -> Value {
    relay
        .await_status(&format!("broker_down: {word}"), 2 * SOON, |status| {
            let pipeline = &status["pipelines"][0];
            let reason = pipeline["reason"].as_str().unwrap_or_default();
            pipeline["state"] == "broker_down" && reason.contains(word)
        })
        .await
}

/// Payloads of each key in order: `insert` numbers them, ten keys.
fn in_order(records: &[ReadRecord], count: usize) {
    let mut of_key: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
    for record in records {
        let number = record.value_text().and_then(|text| text.parse().ok()).expect("a number");
        of_key.entry(record.key_text().expect("a key")).or_default().push(number);
    }
    for (key, numbers) in of_key {
        let first = key.parse::<usize>().expect("a digit");
        let wanted: Vec<usize> = (first..=count).step_by(10).filter(|number| *number > 0).collect();
        assert_eq!(numbers, wanted, "{key}: in order, none lost, none twice");
    }
}

#[tokio::test]
async fn broker_killed_or_half_open_is_told_and_all_arrives_once_when_it_is_back() {
    let outage = async |input: &str, freeze: bool| {
        let mut kafka = PrivateKafka::start("").await;
        let pipeline = Pipeline::to_broker(Version::Pg17, &kafka.brokers(), "gone").await;
        let relay = pipeline.run();
        relay.await_state("streaming", SOON).await;
        if freeze {
            kafka.freeze();
        } else {
            kafka.kill().await;
        }
        pipeline.insert(1_000).await;
        let word = if freeze { "no answer" } else { "refused" };
        answer(input, &pipeline, Answer::waits(&down(&relay, word).await));
        if freeze {
            kafka.thaw();
        } else {
            kafka.restart().await;
        }
        in_order(&pipeline.topic.await_records(1_000, 2 * SOON).await, 1_000);
        relay.await_state("streaming", SOON).await;
        assert_eq!(relay.terminate(SOON).await.code, Some(0));
    };
    tokio::join!(outage("broker gone while running", false), outage("broker half-open", true));
}

#[tokio::test]
async fn too_few_replicas_are_told_and_waited_for() {
    let kafka = PrivateKafka::start("").await;
    let mut pipeline = Pipeline::to_broker(Version::Pg18, &kafka.brokers(), "replicas").await;
    let name = format!("{}.twice", pipeline.topic.name);
    pipeline.config = pipeline.config.replace(&pipeline.topic.name, &name);
    // Before the second broker is known to be gone, that is what is told.
    let (topic, mut second) = topic_that_lacks_a_copy(&kafka, name, 4).await;
    pipeline.topic = topic;
    let before = pipeline.confirmed_lsn().await;
    pipeline.insert(100).await;
    let relay = pipeline.run();
    let status = down(&relay, "acknowledged nothing").await;
    answer("not enough replicas", &pipeline, Answer::waits(&status));
    assert_eq!(pipeline.confirmed_lsn().await, before);
    second.restart().await;
    in_order(&pipeline.topic.await_records(100, 2 * SOON).await, 100);
    relay.await_state("streaming", SOON).await;
    assert_eq!(relay.terminate(SOON).await.code, Some(0));
}

/// A partition that is named and not known is asked for, before its event is taken for one that can't be published.
#[tokio::test]
async fn partitions_added_while_running_lose_nothing_and_are_found() {
    let pipeline = Pipeline::shared(Version::Pg17, "grows").await;
    let config = pipeline.with_line("route", "partition = \"{aggregate_id}\"");
    let relay = Relay::spawn(&config);
    relay.await_state("streaming", SOON).await;
    let insert = |partition: u32| {
        format!(
            "insert into outbox (aggregate_type, aggregate_id, event_type, payload) \
             values ('order', '{partition}', 'T', '{partition}')"
        )
    };
    pipeline.sql.batch(&insert(7)).await;
    pipeline.topic.await_records(1, SOON).await;
    let more = NewPartitions::new(&pipeline.topic.name, 12);
    let grown =
        admin(&pipeline.topic.brokers).create_partitions([&more], &AdminOptions::new()).await;
    for result in grown.expect("an answer") {
        result.expect("partitions");
    }
    for partition in [11, 7, 8] {
        pipeline.sql.batch(&insert(partition)).await;
    }
    let records = pipeline.topic.await_records(4, 2 * SOON).await;
    let seen: Vec<_> = records
        .iter()
        .map(|r| (r.partition, r.key_text().unwrap_or_default().to_owned()))
        .collect();
    assert_eq!(seen, [(7, "7".into()), (7, "7".into()), (8, "8".into()), (11, "11".into())]);
    assert_eq!(relay.terminate(SOON).await.code, Some(0));
    let how = "published: a partition that is named is found, whatever was known of the topic";
    answer("partitions added while running", &pipeline, Answer::published(how));
}

/// A broker with a listener that wants a login, and one that speaks TLS.
async fn guarded(dir: &Path) -> (PrivateKafka, String, String) {
    make_certificates(dir);
    let pem = |name: &str| std::fs::read_to_string(dir.join(name)).expect("a file");
    let chain = dir.join("server.pem");
    std::fs::write(&chain, pem("server.key") + &pem("server.crt")).expect("a file");
    let (login_port, tls_port) = (crate::private::free_port(), crate::private::free_port());
    let properties = |port, controller| {
        let listeners = format!(
            "PLAINTEXT://127.0.0.1:{port},SASL_PLAINTEXT://127.0.0.1:{login_port},SSL://127.0.0.1:{tls_port},\
         CONTROLLER://127.0.0.1:{controller}"
        );
        format!(
            "listeners={listeners}\nadvertised.listeners={listeners}\n\
         listener.security.protocol.map=PLAINTEXT:PLAINTEXT,SASL_PLAINTEXT:SASL_PLAINTEXT,SSL:SSL,\
         CONTROLLER:PLAINTEXT\n\
         sasl.enabled.mechanisms=PLAIN\n\
         listener.name.sasl_plaintext.plain.sasl.jaas.config=\
         org.apache.kafka.common.security.plain.PlainLoginModule required user_carrier=\"right\" user_boss=\"right\";\n\
         ssl.keystore.type=PEM\nssl.keystore.location={}\n\
         authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer\n\
         super.users=User:ANONYMOUS;User:boss\n",
            chain.display()
        )
    };
    let kafka = PrivateKafka::start_on(properties).await;
    (kafka, format!("127.0.0.1:{login_port}"), format!("127.0.0.1:{tls_port}"))
}

/// Logins with SASL, in `user:password`.
fn sasl(mechanism: &str, login: &str) -> String {
    let (user, password) = login.split_once(':').expect("user:password");
    format!(
        "\"security.protocol\" = \"SASL_PLAINTEXT\"\n\"sasl.mechanism\" = \"{mechanism}\"\n\
         \"sasl.username\" = \"{user}\"\n\"sasl.password\" = \"{password}\"\n"
    )
}

/// One pipeline for each, since all wait at the same time; mended, each has its ten events.
#[tokio::test]
async fn broker_that_does_not_let_us_in_is_told_and_all_arrives_when_it_does() {
    let dir = TempDir::new().expect("a directory");
    let (kafka, login_at, tls_at) = guarded(dir.path()).await;
    let tls = |root: &str| {
        let root = dir.path().join(root);
        format!("\"security.protocol\" = \"SSL\"\n\"ssl.ca.location\" = \"{}\"\n", root.display())
    };
    let boss = sasl("PLAIN", "boss:right");
    let good = tls("root.crt");
    let cases = [
        (
            "wrong SASL password",
            &login_at,
            sasl("PLAIN", "carrier:planted-9d0c"),
            "refuse our login",
            &boss,
        ),
        (
            "wrong SASL mechanism",
            &login_at,
            sasl("SCRAM-SHA-256", "carrier:right"),
            "refuse our login",
            &boss,
        ),
        (
            "not authorised for the topic",
            &login_at,
            sasl("PLAIN", "carrier:right"),
            "not open to us",
            &boss,
        ),
        (
            "broker's certificate of an authority that is not trusted",
            &tls_at,
            tls("other.crt"),
            "TLS",
            &good,
        ),
        ("TLS asked of a listener without it", &login_at, tls("root.crt"), "", &boss),
        ("no TLS asked of a listener with it", &tls_at, String::new(), "", &good),
    ];
    let mut waiting = Vec::new();
    for (input, address, properties, word, mended) in cases {
        let pipeline = Pipeline::to_broker(Version::Pg17, &kafka.brokers(), "letin").await;
        pipeline.insert(10).await;
        let config = |properties: &str| {
            let brokers = pipeline.config.replace(&kafka.brokers(), address);
            format!("{brokers}\n[pipelines.{}.sink.properties]\n{properties}", pipeline.name)
        };
        let relay = Relay::spawn(&config(&properties));
        let mended = config(mended);
        waiting.push((input, word, pipeline, relay, mended));
    }
    for (input, word, pipeline, relay, mended) in waiting {
        let status = down(&relay, word).await;
        answer(input, &pipeline, Answer::waits(&status));
        let ended = relay.terminate(SOON).await;
        assert_eq!(ended.code, Some(0));
        assert!(!ended.stderr.contains("planted-9d0c"), "{}", ended.stderr);
        assert_eq!(pipeline.topic.read_all().await.len(), 0);
        super::arrives_with(&pipeline, &mended, 10).await;
    }
}
