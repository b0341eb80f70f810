//! Planted secrets appear nowhere: not in the log at its most talkative, not at any address of the endpoint, not in
//! what any command writes.

use crate::await_that::SOON;
use crate::pipeline::Pipeline;
use crate::private::PrivatePostgres;
use crate::relay::{Ended, Relay, postrider};
use crate::server::{Version, brokers};
use std::process::{Command, Stdio};
use tempfile::TempDir;

const PASSWORD: &str = "planted-pa55w0rd";
const SASL: &str = "planted-5a51";
const PAYLOAD: &str = "planted-card-4111";

/// Everything a run says: the endpoint while it runs, both streams at its end.
async fn said(relay: Relay) -> String {
    let mut text = String::new();
    for path in ["/status", "/metrics", "/ready", "/live"] {
        text += &relay.get(path).await.expect("an answer").1;
    }
    let status = relay.status().await.expect("a status");
    let name = status["pipelines"][0]["pipeline"].as_str().expect("a pipeline");
    let (code, history) = relay.get(&format!("/history/{name}/0/hour")).await.expect("an answer");
    assert_eq!(code, 200, "{history}");
    assert!(history.contains("\"event\":\"starting\""), "{history}");
    text += &history;
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

/// Every place a secret of an event can be in.
const KEY: &str = "planted-key-77";
const HEADER: &str = "planted-header-88";

/// The commands that the program says it has, with the arguments that make each say most. One that is not listed here
/// is run without.
fn commands(url: &str) -> Vec<Vec<String>> {
    let help = String::from_utf8(postrider("", &["--help"]).stdout).expect("UTF-8");
    let (_, list) = help.split_once("Commands:\n").expect("the commands");
    let names = list.lines().take_while(|line| !line.is_empty());
    let names = names.filter_map(|line| line.split_whitespace().next());
    let mut all = Vec::new();
    for name in names {
        let arguments: &[&[&str]] = match name {
            // It has tests of its own, since it does not end by itself.
            "run" => continue,
            "help" => &[&["setup"]],
            "demo" => &[&["--seconds", "1", "--rate", "50", "--url", url]],
            "setup" => &[
                &[],
                &["--print-sql"],
                &["--url", url],
                &["--undo"],
                &["--undo", "--print-sql"],
                &["--undo", "--url", url, "--yes"],
                &["--create-table", "--url", url],
            ],
            "status" => &[&[], &["--json"]],
            "check" => &[&[], &["--json"], &["--offline"]],
            "init" => &[
                &["-o", "-", "--url", url, "--brokers", "127.0.0.1:1"],
                &["-o", "-", "--from-database", url],
            ],
            "config" => &[&["show"], &["schema"]],
            "parked" | "bookmark" => &[&["list"], &["list", "--json"]],
            "completions" => &[&["bash"]],
            _ => &[&[]],
        };
        let with_name = |rest: &&[&str]| {
            let words = [name].into_iter().chain(rest.iter().copied());
            words.map(str::to_owned).collect()
        };
        all.extend(arguments.iter().map(with_name));
    }
    all
}

/// Runs every command on a configuration, in both forms of the log; none may tell a secret. What was run.
fn none_tells(config: &str, url: &str, env: &[(&str, &str)]) -> usize {
    let dir = TempDir::new().expect("a directory");
    let file = dir.path().join("postrider.toml");
    std::fs::write(&file, config).expect("a configuration");
    std::fs::write(dir.path().join("kafka-password"), SASL).expect("a secret");
    let commands = commands(url);
    for (number, arguments) in commands.iter().enumerate() {
        let format = if number % 2 == 0 { "text" } else { "json" };
        let output = Command::new(env!("CARGO_BIN_EXE_postrider"))
            .args(["--log", "trace", "--log-format", format, "-c"])
            .arg(&file)
            .args(arguments)
            .envs(env.iter().copied())
            .current_dir(dir.path())
            .stdin(Stdio::null())
            .output()
            .expect("postrider");
        let text = [output.stdout, output.stderr].concat();
        let text = String::from_utf8_lossy(&text).replace(&format!("--url {url}"), "");
        for secret in [PASSWORD, SASL, PAYLOAD, KEY, HEADER] {
            let at = text.find(secret);
            let around = at.and_then(|at| text.get(at.saturating_sub(300)..at + secret.len()));
            assert_eq!(around, None, "{secret} is told by {arguments:?}");
        }
    }
    commands.len()
}

/// Secrets in every place that takes one, and what every command makes of it: when all is well, while the service
/// runs, and when the line with the secret has a mistake in it.
#[tokio::test]
async fn planted_secrets_are_told_by_no_command() {
    let pipeline = Pipeline::shared(Version::Pg17, "planted").await;
    let port = crate::private::free_port();
    let url = format!(
        "postgresql://postgres:{PASSWORD}@127.0.0.1:{}/{}",
        Version::Pg17.variable("PORT"),
        pipeline.sql.text("select current_database()").await.expect("a name"),
    );
    let from_variable = url.replace(PASSWORD, "${PLANTED}");
    let config = format!(
        "{}\n[pipelines.{}.sink.properties]\n\"sasl.password\" = \"{SASL}\"\n\
         \"ssl.key.password\" = \"{SASL}\"\n\"client.id\" = \"planted\"\n",
        pipeline.config.replace(&pipeline.url, &from_variable),
        pipeline.name
    );
    let file = config.replace(
        &format!("\"sasl.password\" = \"{SASL}\""),
        "\"sasl.password_file\" = \"kafka-password\"",
    );
    let with_admin = |config: &str| format!("{config}\n[admin]\nlisten = \"127.0.0.1:{port}\"\n");
    let env = [("PLANTED", PASSWORD), ("PGPASSWORD", PASSWORD), ("PGSSLPASSWORD", PASSWORD)];

    let relay = Relay::spawn_at(&config.replace("${PLANTED}", PASSWORD), port, &["--log", "trace"]);
    relay.await_state("streaming", SOON).await;
    pipeline
        .sql(&format!(
            "insert into outbox (aggregate_type, aggregate_id, event_type, payload, headers) \
             values ('order', '{KEY}', 'T', '\"{PAYLOAD}\"', '{{\"h\": \"{HEADER}\"}}')"
        ))
        .await;
    pipeline.topic.await_records(1, SOON).await;
    assert!(none_tells(&with_admin(&config), &url, &env) >= 8);
    let text = said(relay).await;
    for secret in [PASSWORD, SASL, PAYLOAD, KEY, HEADER] {
        assert!(!text.contains(secret), "{secret} is told by run");
    }
    none_tells(&with_admin(&file), &url, &env);

    // The mistake is in the line that holds the secret.
    let literal = with_admin(&config.replace("${PLANTED}", PASSWORD));
    for (right, wrong) in [
        ("url = ", "urll = "),
        ("url = ", "password = "),
        ("127.0.0.1:", "127.0.0.1:x"),
        ("postgresql://", "postgres//"),
        ("\"sasl.password\"", "\"sasl.pasword\""),
        ("\"sasl.password\" =", "\"sasl.password\" = ["),
        ("\"ssl.key.password\"", "\"acks\""),
        ("url = \"", "url = "),
    ] {
        let spoiled = literal.replacen(right, wrong, 1);
        assert_ne!(spoiled, literal, "{right}");
        for command in ["setup", "run", "status", "check", "config"] {
            let output = postrider(&spoiled, &[command, "--log", "trace"]);
            let text = [output.stdout, output.stderr].concat();
            let text = String::from_utf8_lossy(&text);
            for secret in [PASSWORD, SASL] {
                assert!(!text.contains(secret), "{command}, {wrong}: {text}");
            }
        }
    }
}

fn trace(config: &str) -> Relay {
    Relay::spawn_with(config, &["--log", "trace", "--fail-fast"], &[("PLANTED", PASSWORD)])
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
