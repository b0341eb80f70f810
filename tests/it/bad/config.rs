//! A configuration that can't be meant: told with file, line and key, before anything is touched.

use crate::answers::{Answer, answer, answer_alone};
use crate::await_that::SOON;
use crate::halted::spawn;
use crate::pipeline::Pipeline;
use crate::relay::postrider;
use crate::server::Version;
use std::os::unix::fs::PermissionsExt as _;
use std::process::Output;

const GOOD: &str = r#"[pipelines.orders]
source.url = "postgresql://postrider@db.internal/shop"
outbox.table = "public.outbox"
route.topic = "order"
sink.brokers = "k1:9092"
"#;

/// `run` refuses this file, and so does every other command, in the same words.
fn refused(input: &str, config: &str, words: &[&str]) {
    let run = postrider(config, &["run"]);
    told(&run, words);
    // `status` reads no secret: on_call::status_needs_no_secret.
    let commands =
        if input.starts_with("secret file") { &["setup"][..] } else { &["setup", "status"] };
    for command in commands {
        let other = postrider(config, &[*command]);
        assert_eq!(other.status.code(), Some(2), "{command}");
        let mistake = |output: &Output| {
            let text = String::from_utf8_lossy(&output.stderr).into_owned();
            text.lines()
                .filter_map(|line| Some(line.split_once(".toml")?.1.to_owned()))
                .collect::<Vec<_>>()
        };
        assert_eq!(mistake(&other), mistake(&run), "{command}");
    }
    answer_alone(input, &run);
}

fn told(output: &Output, words: &[&str]) {
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{text}");
    assert!(output.stdout.is_empty(), "nothing on standard output");
    for word in words {
        assert!(text.contains(word), "no {word:?} in {text}");
    }
}

#[test]
fn what_can_not_be_meant_is_refused_with_line_and_key_before_anything_is_touched() {
    for (input, line, words) in [
        ("unknown key", "source.slott = \"a\"", &[":6:", "slott", "did you mean \"slot\""][..]),
        (
            "wrong type",
            "flow.in_flight_events = \"many\"",
            &[":6:", "flow.in_flight_events", "number"],
        ),
        (
            "unset variable",
            "source.slot = \"${POSTRIDER_NOBODY_SET_THIS}\"",
            &[":6:", "POSTRIDER_NOBODY_SET_THIS", "not set"],
        ),
        ("bad unit", "flow.confirm_interval = \"200 ticks\"", &[":6:", "confirm_interval", "unit"]),
        (
            "template that names no column",
            "route.key = \"{aggregat_id}\"",
            &[":6:", "route.key", "aggregat_id", "aggregate_id"],
        ),
        (
            "regular expression that does not compile",
            "route.replace = { pattern = \"(.*\", with = \"$1\" }",
            &[":6:", "route.replace.pattern", "not a regular expression"],
        ),
        (
            "second header of a name that is taken",
            "route.headers = { position = \"{aggregate_id}\" }",
            &[":6:", "route.headers.position", "second header"],
        ),
        (
            "librdkafka property that is unknown",
            "sink.properties = { \"linger.msec\" = 5 }",
            &[":6:", "linger.msec", "linger.ms"],
        ),
        (
            "librdkafka property that would break a promise",
            "sink.properties = { acks = 1 }",
            &[":6:", "acks", "lost", "delete"],
        ),
        (
            "secret file that can't be read",
            "source.password_file = \"/nonexistent/pg\"",
            &[":6:", "password_file", "/nonexistent/pg"],
        ),
    ] {
        refused(input, &format!("{GOOD}{line}\n"), words);
    }
    refused("no pipeline", "[admin]\nlisten = \"\"\n", &["pipelines", "[pipelines.NAME]"]);
    let other = GOOD.replace("pipelines.orders", "pipelines.invoices");
    let two = format!("{GOOD}source.slot = \"relay\"\n{other}source.slot = \"relay\"\n");
    refused(
        "two pipelines on one slot",
        &two,
        &[":12:", "\"orders\"", "\"invoices\"", "\"relay\""],
    );

    let nobody = postrider(GOOD, &["setup", "-p", "invoices"]);
    told(&nobody, &["invoices", "orders"]);
    answer_alone("a pipeline that is not in the file", &nobody);
}

/// Not a reason to stand still: a warning, and the password is not in it.
#[tokio::test]
async fn secret_that_everybody_can_read_is_warned_of_and_works() {
    let pipeline = Pipeline::shared(Version::Pg17, "readable").await;
    let dir = tempfile::TempDir::new().expect("a directory");
    let file = dir.path().join("pg-password");
    std::fs::write(&file, "planted-7e0a\n").expect("a file");
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o644)).expect("a mode");
    let line = format!("password_file = \"{}\"", file.display());
    let relay = spawn(&pipeline.with_line("source", &line));
    pipeline.insert(10).await;
    assert_eq!(pipeline.topic.await_records(10, SOON).await.len(), 10);
    let ended = relay.terminate(SOON).await;
    assert_eq!(ended.code, Some(0));
    assert!(!ended.stderr.contains("planted"), "{}", ended.stderr);
    answer(
        "secret file that everybody can read",
        &pipeline,
        Answer::logged(&ended.stderr, "pg-password"),
    );
}
