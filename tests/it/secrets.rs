//! Planted secrets appear nowhere: not in the log at its most talkative, not at any address of the endpoint.

use crate::pipeline::Pipeline;
use crate::private::PrivatePostgres;
use crate::relay::{Ended, Relay, postrider};
use crate::server::{Version, brokers};
use std::time::Duration;
use tempfile::TempDir;

const SOON: Duration = Duration::from_secs(30);

const PASSWORD: &str = "planted-pa55w0rd";
const SASL: &str = "planted-5a51";
const PAYLOAD: &str = "planted-card-4111";

/// Everything a run says: the endpoint while it runs, both streams at its end.
async fn said(relay: Relay) -> String {
    let mut text = String::new();
    for path in ["/status", "/metrics", "/ready", "/live"] {
        text += &relay.get(path).await.expect("an answer").1;
    }
    let Ended { stdout, stderr, .. } = relay.terminate(SOON).await;
    assert!(!stderr.is_empty());
    text + &stdout + &stderr
}

fn silent_on_secrets(text: &str) {
    for secret in [PASSWORD, SASL, PAYLOAD] {
        let at = text.find(secret);
        let around = at.and_then(|at| text.get(at.saturating_sub(200)..at + secret.len()));
        assert_eq!(around, None, "{secret} is told");
    }
}

fn trace(config: &str) -> Relay {
    Relay::spawn_with(config, &["--log", "trace"], &[("PLANTED", PASSWORD)])
}

#[tokio::test]
async fn passwords_and_payloads_are_not_told_by_a_run_that_works() {
    let rules = "host all carrier 127.0.0.1/32 scram-sha-256\nhost all old 127.0.0.1/32 md5";
    let server = PrivatePostgres::start_with(Version::Pg17, "", rules).await;
    let pipeline = Pipeline::on(&server.url(), &brokers(), "secrets").await;
    pipeline
        .sql(&format!(
            "create role carrier superuser login password '{PASSWORD}'; set password_encryption = 'md5'; \
             create role old superuser login password '{PASSWORD}'"
        ))
        .await;
    let dir = TempDir::new().expect("a directory");
    let file = dir.path().join("password");
    std::fs::write(&file, format!("{PASSWORD}\n")).expect("a file");
    let from_file =
        format!("password_file = \"{}\"\nurl = \"postgresql://carrier@", file.display());
    let logins = [
        format!("url = \"postgresql://carrier:{PASSWORD}@"),
        "url = \"postgresql://carrier:${PLANTED}@".to_owned(),
        format!("url = \"postgresql://old:{PASSWORD}@"),
        from_file,
    ];
    for (round, login) in (1..).zip(logins) {
        let config = pipeline.config.replace("url = \"postgresql://postgres@", &login);
        let relay = trace(&config);
        pipeline
            .sql(&format!(
                "insert into outbox (aggregate_type, aggregate_id, event_type, payload) \
                 values ('order', 'a', 'T', '\"{PAYLOAD}\"')"
            ))
            .await;
        pipeline.topic.await_records(round, SOON).await;
        silent_on_secrets(&said(relay).await);
    }
}

#[tokio::test]
async fn passwords_are_not_told_by_a_run_that_is_refused() {
    let rule = "host all carrier 127.0.0.1/32 scram-sha-256";
    let server = PrivatePostgres::start_with(Version::Pg18, "", rule).await;
    let pipeline = Pipeline::on(&server.url(), &brokers(), "refused").await;
    pipeline.sql.batch("create role carrier login password 'another'").await;
    let login = format!("postgresql://carrier:{PASSWORD}@");
    let config = pipeline.config.replace("postgresql://postgres@", &login);
    let ended = trace(&config).ended(SOON).await;
    assert_eq!(ended.code, Some(3));
    silent_on_secrets(&(ended.stdout + &ended.stderr));
    // A URL that can't be read is an error that must not quote it.
    for wrong in [
        format!("postgresql://carrier:{PASSWORD}@host:port:5/db?sslmode=maybe"),
        format!("postgresql://carrier:{PASSWORD}@[::1/db"),
        format!("host=localhost password='{PASSWORD}"),
        format!("host=localhost passwrd={PASSWORD}"),
    ] {
        let config = pipeline.config.replace(&pipeline.url, &wrong);
        for command in ["setup", "run", "status"] {
            let output = postrider(&config, &[command, "--log", "trace"]);
            assert_ne!(output.status.code(), Some(0), "{command}");
            silent_on_secrets(&String::from_utf8_lossy(&output.stderr));
            silent_on_secrets(&String::from_utf8_lossy(&output.stdout));
        }
    }
}

/// The broker speaks no SASL: the login fails for ever, and what is said of it holds no password.
#[tokio::test]
async fn passwords_of_the_broker_are_not_told() {
    let pipeline = Pipeline::shared(Version::Pg15, "sasl").await;
    let sasl = |mechanism: &str, value: &str| {
        format!(
            "{}\n[pipelines.{}.sink.properties]\n\"security.protocol\" = \"SASL_PLAINTEXT\"\n\
             \"sasl.mechanism\" = \"{mechanism}\"\n\"sasl.username\" = \"carrier\"\n\
             \"sasl.password\" = \"{value}\"\n\"debug\" = \"all\"\n",
            pipeline.config, pipeline.name
        )
    };
    pipeline.insert(1).await;
    for mechanism in ["PLAIN", "SCRAM-SHA-256"] {
        let relay = trace(&sasl(mechanism, SASL));
        relay.await_state("broker_down", 2 * SOON).await;
        silent_on_secrets(&said(relay).await);
    }
    // A property that is refused, and one that is unknown.
    for wrong in [
        sasl("PLAIN", SASL).replace("\"debug\" = \"all\"", "\"acks\" = \"1\""),
        sasl("PLAIN", SASL).replace("sasl.password", "sasl.pasword"),
    ] {
        let ended = trace(&wrong).ended(SOON).await;
        assert!(matches!(ended.code, Some(2 | 3)), "{}", ended.stderr);
        silent_on_secrets(&(ended.stdout + &ended.stderr));
    }
}
