//! Secrets that are rotated while the service runs: the next connection uses the new one, without a restart.

use crate::await_that::SOON;
use crate::pipeline::Pipeline;
use crate::private::{PrivateKafka, PrivatePostgres, free_port};
use crate::relay::Relay;
use crate::server::{Version, brokers};
use crate::wal_connection::login::make_certificates;
use serde_json::Value;
use std::fs;
use std::path::Path;
use tempfile::TempDir;

/// Ends every session of the role, and waits until it has none.
async fn end_sessions(pipeline: &Pipeline, role: &str) {
    let end = format!(
        "select count(pg_terminate_backend(pid)) from pg_stat_activity where usename = '{role}'"
    );
    pipeline.sql.batch(&end).await;
}

/// Waits until the pipeline is in `state` with `word` in its reason.
async fn stuck(relay: &Relay, state: &str, word: &str) {
    let wanted = |status: &Value| {
        let pipeline = &status["pipelines"][0];
        pipeline["state"] == state && pipeline["reason"].as_str().unwrap_or_default().contains(word)
    };
    relay.await_status(&format!("{state}: {word}"), 2 * SOON, wanted).await;
}

/// Every session of the process logs in anew: replication, control, and polling's own.
#[tokio::test]
async fn a_rotated_password_file_is_used_by_every_session_that_connects_after_it() {
    let rule = "host all carrier 127.0.0.1/32 scram-sha-256";
    let server = PrivatePostgres::start_with(Version::Pg18, "", rule).await;
    let dir = TempDir::new().expect("a directory");
    let secret = dir.path().join("pg-password");
    for mode in ["wal", "poll"] {
        let pipeline = Pipeline::on(&server.url(), &brokers(), &format!("rotate_{mode}")).await;
        pipeline.sql.batch("truncate public.outbox; drop role if exists carrier").await;
        pipeline.sql.batch("create role carrier superuser login password 'first-one'").await;
        fs::write(&secret, "first-one\n").expect("a secret");
        let config = pipeline
            .config
            .replace("postgresql://postgres@", "postgresql://carrier@")
            .replacen(
                ".source]\n",
                &format!(".source]\npassword_file = \"{}\"\n", secret.display()),
                1,
            )
            .replacen("]\n", &format!("]\nmode = \"{mode}\"\n"), 1);
        let relay = Relay::spawn(&config);
        let running = if mode == "wal" { "streaming" } else { "polling" };
        relay.await_state(running, SOON).await;
        pipeline.insert(10).await;
        assert_eq!(pipeline.topic.await_records(10, SOON).await.len(), 10);

        // The role first: until the file follows, logins are refused.
        pipeline.sql.batch("alter role carrier password 'second-one'").await;
        end_sessions(&pipeline, "carrier").await;
        stuck(&relay, "source_down", "28P01").await;
        pipeline.insert(10).await;
        fs::write(&secret, "second-one\n").expect("a secret");
        assert_eq!(pipeline.topic.await_records(20, 2 * SOON).await.len(), 20);
        relay.await_state(running, SOON).await;

        // A file that is missing in the middle of a rotation is no end either.
        fs::remove_file(&secret).expect("no secret");
        end_sessions(&pipeline, "carrier").await;
        stuck(&relay, "source_down", "could not read").await;
        pipeline.insert(10).await;
        fs::write(&secret, "second-one\n").expect("a secret");
        assert_eq!(pipeline.topic.await_records(30, 2 * SOON).await.len(), 30);

        let ended = relay.terminate(SOON).await;
        assert_eq!(ended.code, Some(0));
        for password in ["first-one", "second-one"] {
            assert!(!ended.stderr.contains(password), "{}", ended.stderr);
        }
        pipeline
            .sql
            .batch(&format!("select pg_drop_replication_slot('{}')", pipeline.slot()))
            .await;
    }
}

/// A broker's listener that takes this password.
fn login(password: &str) -> String {
    format!(
        "listener.name.sasl_plaintext.plain.sasl.jaas.config=\
         org.apache.kafka.common.security.plain.PlainLoginModule required user_boss=\"{password}\";\n"
    )
}

/// A broker with listeners that want a login, and one that speaks TLS; their addresses.
async fn guarded(dir: &Path) -> (PrivateKafka, String, String) {
    make_certificates(dir);
    let pem = |name: &str| fs::read_to_string(dir.join(name)).expect("a file");
    let chain = dir.join("server.pem");
    fs::write(&chain, pem("server.key") + &pem("server.crt")).expect("a file");
    let (login_port, tls_port) = (free_port(), free_port());
    let properties = |port, controller| {
        let listeners = format!(
            "PLAINTEXT://127.0.0.1:{port},SASL_PLAINTEXT://127.0.0.1:{login_port},\
             SSL://127.0.0.1:{tls_port},CONTROLLER://127.0.0.1:{controller}"
        );
        format!(
            "listeners={listeners}\nadvertised.listeners={listeners}\n\
             listener.security.protocol.map=PLAINTEXT:PLAINTEXT,SASL_PLAINTEXT:SASL_PLAINTEXT,\
             SSL:SSL,CONTROLLER:PLAINTEXT\n\
             sasl.enabled.mechanisms=PLAIN\n{}\
             ssl.keystore.type=PEM\nssl.keystore.location={}\n",
            login("first-one"),
            chain.display()
        )
    };
    let kafka = PrivateKafka::start_on(properties).await;
    (kafka, format!("127.0.0.1:{login_port}"), format!("127.0.0.1:{tls_port}"))
}

/// A running relay that reaches the broker at `address` with these properties.
fn run_to(pipeline: &Pipeline, kafka: &PrivateKafka, address: &str, properties: &str) -> Relay {
    let config = pipeline.config.replace(&kafka.brokers(), address);
    Relay::spawn(&format!("{config}\n[pipelines.{}.sink.properties]\n{properties}", pipeline.name))
}

/// A password by SASL goes to the producers that are there; authorities of TLS need new producers.
#[tokio::test]
async fn rotated_secrets_of_the_broker_are_used_without_a_restart() {
    let dir = TempDir::new().expect("a directory");
    let (mut kafka, login_at, tls_at) = guarded(dir.path()).await;
    let (secret, root) = (dir.path().join("sasl-password"), dir.path().join("ca.pem"));
    fs::write(&secret, "first-one\n").expect("a secret");
    fs::copy(dir.path().join("other.crt"), &root).expect("an authority");
    let sasl = Pipeline::to_broker(Version::Pg17, &kafka.brokers(), "rotate_sasl").await;
    let tls = Pipeline::to_broker(Version::Pg17, &kafka.brokers(), "rotate_tls").await;
    let by_sasl = run_to(
        &sasl,
        &kafka,
        &login_at,
        &format!(
            "\"security.protocol\" = \"SASL_PLAINTEXT\"\n\"sasl.mechanism\" = \"PLAIN\"\n\
             \"sasl.username\" = \"boss\"\n\"sasl.password_file\" = \"{}\"\n",
            secret.display()
        ),
    );
    let by_tls = run_to(
        &tls,
        &kafka,
        &tls_at,
        &format!("\"security.protocol\" = \"SSL\"\n\"ssl.ca.location\" = \"{}\"\n", root.display()),
    );
    sasl.insert(10).await;
    // Above the topic's limit before compression: by a producer of its own.
    let large = "insert into outbox (aggregate_type, aggregate_id, event_type, payload) \
                 values ('order', 'large', 'T', to_json(repeat('an event like others; ', 100000)))";
    sasl.sql.batch(large).await;
    assert_eq!(sasl.topic.await_records(11, SOON).await.len(), 11);

    stuck(&by_tls, "broker_down", "TLS").await;
    tls.insert(10).await;
    fs::copy(dir.path().join("root.crt"), &root).expect("an authority");
    assert_eq!(tls.topic.await_records(10, 2 * SOON).await.len(), 10);

    kafka.stop().await;
    kafka.set(&login("second-one"));
    kafka.restart().await;
    stuck(&by_sasl, "broker_down", "refuse our login").await;
    sasl.insert(10).await;
    fs::write(&secret, "second-one\n").expect("a secret");
    assert_eq!(sasl.topic.await_records(21, 2 * SOON).await.len(), 21);
    sasl.sql.batch(large).await;
    assert_eq!(sasl.topic.await_records(22, SOON).await.len(), 22);
    let status = by_sasl.status().await.expect("a status");
    assert_eq!(status["pipelines"][0]["sink_resets_total"], 0, "{status}");
    by_sasl.await_state("streaming", SOON).await;
    tls.insert(1).await;
    tls.topic.await_records(11, SOON).await;

    for relay in [by_sasl, by_tls] {
        let ended = relay.terminate(SOON).await;
        assert_eq!(ended.code, Some(0));
        for password in ["first-one", "second-one"] {
            assert!(!ended.stderr.contains(password), "{}", ended.stderr);
        }
    }
}
