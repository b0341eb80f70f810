//! Secrets that are rotated while the service runs: the next connection uses the new one, without a restart.

use crate::await_that::SOON;
use crate::pipeline::Pipeline;
use crate::private::{PrivateKafka, PrivatePostgres, free_port};
use crate::relay::Relay;
use crate::server::{Version, brokers};
use crate::wal_connection::login::{Guarded, make_certificates};
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

/// Key and certificate of a client are read with each connection. They are two files, so for a moment one of them is
/// new and the other is not: that is waited out like a refusal.
#[tokio::test]
async fn a_rotated_certificate_of_the_client_is_used_by_every_session_that_connects_after_it() {
    let guarded = Guarded::start(Version::Pg16).await;
    let dir = TempDir::new().expect("a directory");
    let (key, certificate) = (dir.path().join("my.key"), dir.path().join("my.crt"));
    let install = |from: &str, to: &Path| {
        fs::copy(guarded.file(from), to).expect("a file");
    };
    let server = &guarded.server;
    for mode in ["wal", "poll"] {
        guarded.trust("root.crt").await;
        install("client.key", &key);
        install("client.crt", &certificate);
        let pipeline = Pipeline::on(&server.url(), &brokers(), &format!("rotate_tls_{mode}")).await;
        pipeline.sql.batch("truncate public.outbox; alter role certified superuser").await;
        let url = format!(
            "postgresql://certified@127.0.0.1:{}/postgres?sslmode=require&sslkey={}&sslcert={}",
            server.port,
            key.display(),
            certificate.display()
        );
        let config = pipeline.config.replace(&server.url(), &url);
        let config = config.replacen("]\n", &format!("]\nmode = \"{mode}\"\n"), 1);
        let relay = Relay::spawn(&config);
        let running = if mode == "wal" { "streaming" } else { "polling" };
        relay.await_state(running, SOON).await;
        pipeline.insert(10).await;
        assert_eq!(pipeline.topic.await_records(10, SOON).await.len(), 10);

        // What is trusted changes first: the old certificate is refused.
        guarded.trust("other.crt").await;
        end_sessions(&pipeline, "certified").await;
        relay.await_state("source_down", SOON).await;
        pipeline.insert(10).await;
        // A certificate without its key, then both.
        install("renewed.crt", &certificate);
        stuck(&relay, "source_down", "KeyMismatch").await;
        install("renewed.key", &key);
        assert_eq!(pipeline.topic.await_records(20, 2 * SOON).await.len(), 20);
        relay.await_state(running, SOON).await;
        let ended = relay.terminate(SOON).await;
        assert_eq!(ended.code, Some(0), "{}", ended.stderr);
        if mode == "wal" {
            let drop = format!("select pg_drop_replication_slot('{}')", pipeline.slot());
            pipeline.sql.batch(&drop).await;
        }
    }
}

/// A broker's listener that takes this password.
fn login(password: &str) -> String {
    format!(
        "listener.name.sasl_plaintext.plain.sasl.jaas.config=\
         org.apache.kafka.common.security.plain.PlainLoginModule required user_boss=\"{password}\";\n"
    )
}

/// A broker whose listeners want a login or speak TLS; their addresses.
struct Guards {
    kafka: PrivateKafka,
    /// SASL, PLAIN and SCRAM-SHA-256.
    login: String,
    /// TLS.
    tls: String,
    /// The same, and clients need a certificate of the authority in `trust.pem`.
    mutual: String,
}

impl Guards {
    async fn start(dir: &Path) -> Self {
        make_certificates(dir);
        let pem = |name: &str| fs::read_to_string(dir.join(name)).expect("a file");
        let chain = dir.join("server.pem");
        fs::write(&chain, pem("server.key") + &pem("server.crt")).expect("a file");
        fs::copy(dir.join("root.crt"), dir.join("trust.pem")).expect("an authority");
        let [login_port, tls_port, mutual_port] = [free_port(), free_port(), free_port()];
        let properties = |port, controller| {
            let listeners = format!(
                "PLAINTEXT://127.0.0.1:{port},SASL_PLAINTEXT://127.0.0.1:{login_port},\
                 SSL://127.0.0.1:{tls_port},MUTUAL://127.0.0.1:{mutual_port},\
                 CONTROLLER://127.0.0.1:{controller}"
            );
            format!(
                "listeners={listeners}\nadvertised.listeners={listeners}\n\
                 listener.security.protocol.map=PLAINTEXT:PLAINTEXT,SASL_PLAINTEXT:SASL_PLAINTEXT,\
                 SSL:SSL,MUTUAL:SSL,CONTROLLER:PLAINTEXT\n\
                 sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-256\n{}\
                 listener.name.sasl_plaintext.scram-sha-256.sasl.jaas.config=\
                 org.apache.kafka.common.security.scram.ScramLoginModule required;\n\
                 ssl.keystore.type=PEM\nssl.keystore.location={}\n\
                 listener.name.mutual.ssl.client.auth=required\n\
                 listener.name.mutual.ssl.truststore.type=PEM\n\
                 listener.name.mutual.ssl.truststore.location={}\n",
                login("first-one"),
                chain.display(),
                dir.join("trust.pem").display()
            )
        };
        let kafka = PrivateKafka::start_on(properties).await;
        kafka.set_scram("boss", "first-one");
        let at = |port| format!("127.0.0.1:{port}");
        let (login, tls, mutual) = (at(login_port), at(tls_port), at(mutual_port));
        Self { kafka, login, tls, mutual }
    }

    /// A running relay that reaches the broker at `address` with these properties.
    fn run(&self, pipeline: &Pipeline, address: &str, properties: &str) -> Relay {
        let config = pipeline.config.replace(&self.kafka.brokers(), address);
        Relay::spawn(&format!(
            "{config}\n[pipelines.{}.sink.properties]\n{properties}",
            pipeline.name
        ))
    }

    /// The same by a login with the password in `file`.
    fn run_with_login(&self, pipeline: &Pipeline, mechanism: &str, file: &Path) -> Relay {
        let properties = format!(
            "\"security.protocol\" = \"SASL_PLAINTEXT\"\n\"sasl.mechanism\" = \"{mechanism}\"\n\
             \"sasl.username\" = \"boss\"\n\"sasl.password_file\" = \"{}\"\n",
            file.display()
        );
        self.run(pipeline, &self.login, &properties)
    }
}

/// Passwords by SASL go to the producers that are there; certificates and keys need new producers.
#[tokio::test]
#[expect(clippy::too_many_lines, reason = "one broker, which is started twice")]
async fn rotated_secrets_of_the_broker_are_used_without_a_restart() {
    let dir = TempDir::new().expect("a directory");
    let mut guards = Guards::start(dir.path()).await;
    let file = |name: &str| dir.path().join(name);
    let install = |from: &str, to: &str| {
        fs::copy(file(from), file(to)).expect("a file");
    };
    let secrets = ["plain-password", "scram-password"].map(file);
    for secret in &secrets {
        fs::write(secret, "first-one\n").expect("a secret");
    }
    install("other.crt", "ca.pem");
    install("client.crt", "my.crt");
    install("client.key", "my.key");
    let brokers = guards.kafka.brokers();
    let pipeline = async |name: &str| Pipeline::to_broker(Version::Pg17, &brokers, name).await;
    let (plain, scram) = (pipeline("rotate_plain").await, pipeline("rotate_scram").await);
    let (tls, mutual) = (pipeline("rotate_tls").await, pipeline("rotate_mutual").await);
    let by_plain = guards.run_with_login(&plain, "PLAIN", &secrets[0]);
    let by_scram = guards.run_with_login(&scram, "SCRAM-SHA-256", &secrets[1]);
    let over_tls = |authority: &str, more: &str| {
        let authority = file(authority);
        format!(
            "\"security.protocol\" = \"SSL\"\n\"ssl.ca.location\" = \"{}\"\n{more}",
            authority.display()
        )
    };
    let by_tls = guards.run(&tls, &guards.tls, &over_tls("ca.pem", ""));
    let own = format!(
        "\"ssl.certificate.location\" = \"{}\"\n\"ssl.key.location\" = \"{}\"\n",
        file("my.crt").display(),
        file("my.key").display()
    );
    let by_mutual = guards.run(&mutual, &guards.mutual, &over_tls("root.crt", &own));
    for pipeline in [&plain, &scram, &mutual] {
        pipeline.insert(10).await;
        assert_eq!(pipeline.topic.await_records(10, SOON).await.len(), 10);
    }
    // Above the topic's limit before compression: by a producer of its own.
    let large = "insert into outbox (aggregate_type, aggregate_id, event_type, payload) \
                 values ('order', 'large', 'T', to_json(repeat('an event like others; ', 100000)))";
    for pipeline in [&plain, &mutual] {
        pipeline.sql.batch(large).await;
        assert_eq!(pipeline.topic.await_records(11, SOON).await.len(), 11);
    }

    stuck(&by_tls, "broker_down", "TLS").await;
    tls.insert(10).await;
    install("root.crt", "ca.pem");
    assert_eq!(tls.topic.await_records(10, 2 * SOON).await.len(), 10);

    // The broker takes other secrets than before.
    guards.kafka.set_scram("boss", "second-one");
    guards.kafka.stop().await;
    guards.kafka.set(&login("second-one"));
    install("other.crt", "trust.pem");
    guards.kafka.restart().await;
    for relay in [&by_plain, &by_scram] {
        stuck(relay, "broker_down", "refuse our login").await;
    }
    stuck(&by_mutual, "broker_down", "").await;
    for pipeline in [&plain, &scram, &mutual] {
        pipeline.insert(10).await;
    }
    // A mistake first: it is refused like the old secret, and is not the last word.
    for (secret, relay) in secrets.iter().zip([&by_plain, &by_scram]) {
        fs::write(secret, "mistaken\n").expect("a secret");
        relay.await_log("the SASL login was read again", SOON).await;
        stuck(relay, "broker_down", "refuse our login").await;
    }
    install("renewed.crt", "my.crt");
    stuck(&by_mutual, "broker_down", "ssl.key.location").await;
    for secret in &secrets {
        fs::write(secret, "second-one\n").expect("a secret");
    }
    install("renewed.key", "my.key");
    for (pipeline, relay, records) in
        [(&plain, &by_plain, 21), (&scram, &by_scram, 20), (&mutual, &by_mutual, 21)]
    {
        assert_eq!(pipeline.topic.await_records(records, 2 * SOON).await.len(), records);
        relay.await_state("streaming", SOON).await;
    }
    for pipeline in [&plain, &mutual] {
        pipeline.sql.batch(large).await;
        assert_eq!(pipeline.topic.await_records(22, SOON).await.len(), 22);
    }
    let status = by_plain.status().await.expect("a status");
    assert_eq!(status["pipelines"][0]["sink_resets_total"], 0, "{status}");
    tls.insert(1).await;
    tls.topic.await_records(11, SOON).await;

    for relay in [by_plain, by_scram, by_tls, by_mutual] {
        let ended = relay.terminate(SOON).await;
        assert_eq!(ended.code, Some(0));
        for password in ["first-one", "second-one", "mistaken"] {
            assert!(!ended.stderr.contains(password), "{}", ended.stderr);
        }
    }
}
