//! The log: a line for each change of state and none for an event. Events and fields are those that
//! `docs/operations/logs.md` documents.

use crate::await_that::SOON;
use crate::halted;
use crate::pipeline::Pipeline;
use crate::private::{PrivatePostgres, free_port};
use crate::relay::Relay;
use crate::server::{Version, brokers};
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// What every line has, as the subscriber writes it.
const EVERY_LINE: [&str; 4] = ["timestamp", "level", "message", "target"];

/// The table of `docs/operations/logs.md`: each event with its fields.
fn documented() -> Vec<(String, BTreeSet<String>)> {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/operations/logs.md");
    let page = fs::read_to_string(page).expect("the page");
    let (_, section) = page.split_once("## Events and their fields").expect("the section");
    let rows = section.lines().skip_while(|line| !line.starts_with("|---")).skip(1);
    let rows = rows.take_while(|line| line.starts_with("| `"));
    let quoted =
        |cell: &str| cell.split('`').skip(1).step_by(2).map(str::to_owned).collect::<Vec<_>>();
    rows.flat_map(|row| {
        let cells: Vec<&str> = row.split('|').collect();
        let fields: BTreeSet<String> = quoted(cells[3]).into_iter().collect();
        quoted(cells[1]).into_iter().map(move |name| (name, fields.clone()))
    })
    .collect()
}

/// The lines with an event; every field of every line must be documented.
fn events(log: &str) -> Vec<Value> {
    let table = documented();
    let lines = log.lines().map(|line| {
        serde_json::from_str::<Value>(line).unwrap_or_else(|error| panic!("{error}: {line}"))
    });
    let lines: Vec<Value> = lines.filter(|line| line["event"].is_string()).collect();
    for line in &lines {
        let event = line["event"].as_str().expect("an event");
        let fields = table.iter().find(|(name, _)| name == event);
        let (_, fields) =
            fields.unwrap_or_else(|| panic!("docs/operations/logs.md has no {event}"));
        for name in line.as_object().expect("an object").keys() {
            let known = name == "event" || EVERY_LINE.contains(&&**name) || fields.contains(name);
            assert!(known, "{event} has an undocumented field {name}: {line}");
        }
    }
    lines
}

fn names(events: &[Value]) -> Vec<&str> {
    events.iter().filter_map(|event| event["event"].as_str()).collect()
}

/// Every name in the code is in the table, and the other way.
#[test]
fn every_event_of_the_code_is_documented_and_no_other() {
    fn visit(dir: &Path, found: &mut BTreeSet<String>) {
        for entry in fs::read_dir(dir).expect("a directory") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                visit(&path, found);
            } else if !path.ends_with("tests.rs") {
                let source = fs::read_to_string(&path).unwrap_or_default();
                let names =
                    source.split("event = \"").skip(1).filter_map(|rest| rest.split('"').next());
                found.extend(names.map(str::to_owned));
            }
        }
    }
    let mut code = BTreeSet::new();
    for folder in ["src", "crates"] {
        visit(&Path::new(env!("CARGO_MANIFEST_DIR")).join(folder), &mut code);
    }
    let page: BTreeSet<String> = documented().into_iter().map(|(name, _)| name).collect();
    // A configuration's `timestamp = "event"` is no event of the log; nor is what follows it.
    let code: BTreeSet<String> = code.into_iter().filter(|name| !name.contains(' ')).collect();
    assert_eq!(code, page);
}

#[tokio::test]
async fn a_run_says_a_line_for_each_change_of_state_and_none_for_an_event() {
    let pipeline = Pipeline::shared(Version::Pg18, "lines").await;
    let relay = halted::spawn(&pipeline.config);
    relay.await_state("streaming", SOON).await;
    for _ in 0..5 {
        pipeline.insert(200).await;
    }
    pipeline.topic.await_records(1000, SOON).await;
    let ended = relay.terminate(SOON).await;
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    let events = events(&ended.stderr);
    // A busy machine may fall behind, and an old server has its note.
    let aside = ["note", "catching_up", "caught_up"];
    let told: Vec<&str> = names(&events).into_iter().filter(|name| !aside.contains(name)).collect();
    assert_eq!(
        told,
        [
            "starting",
            "position_belongs",
            "history_begins",
            "streaming",
            "told_to_stop",
            "draining",
            "stopped"
        ],
        "{}",
        ended.stderr
    );
    for event in &events {
        let of_process =
            ["starting", "told_to_stop"].contains(&event["event"].as_str().expect("a name"));
        assert!(of_process || event["pipeline"] == pipeline.name.as_str(), "{event}");
    }
}

/// A backlog is told when it is found and when it is gone, not in between.
#[tokio::test]
async fn a_backlog_is_two_lines() {
    let pipeline = Pipeline::shared(Version::Pg18, "backlog").await;
    pipeline.insert(1000).await;
    // The events are old when the relay finds them.
    pipeline.sql("select pg_sleep(6)").await;
    // One after the other, so that it lasts: what is gone between two looks at the lag is no backlog.
    let one = format!("[pipelines.{}.flow]\nin_flight_events = 1\n", pipeline.name);
    let relay = halted::spawn(&format!("{}{one}", pipeline.config));
    pipeline.topic.await_records(1000, SOON).await;
    relay.await_log("\"caught_up\"", SOON).await;
    let ended = relay.terminate(SOON).await;
    let events = events(&ended.stderr);
    let told: Vec<&str> = names(&events).into_iter().filter(|name| name.starts_with('c')).collect();
    assert_eq!(told, ["catching_up", "caught_up"], "{}", ended.stderr);
}

/// Whatever librdkafka has to say, at its start, while it can't connect, or at its end: each line is one of ours, and
/// no secret is in it.
#[tokio::test]
async fn librdkafka_writes_no_line_beside_the_log() {
    let nobody = format!("127.0.0.1:{}", free_port());
    let everything = "\"debug\" = \"all\"\n\"log_level\" = 7\n";
    let login = "\"security.protocol\" = \"SASL_PLAINTEXT\"\n\"sasl.mechanism\" = \"SCRAM-SHA-256\"\n\
                 \"sasl.username\" = \"carrier\"\n\"sasl.password\" = \"planted-hush\"\n";
    let tls = "\"security.protocol\" = \"SSL\"\n";
    for (to, properties, state) in [
        (brokers(), everything.to_owned(), "streaming"),
        (nobody.clone(), everything.to_owned(), "broker_down"),
        (nobody, format!("{everything}{login}"), "broker_down"),
        (brokers(), format!("{everything}{login}"), "broker_down"),
        (brokers(), format!("{everything}{tls}"), "broker_down"),
    ] {
        let pipeline = Pipeline::to_broker(Version::Pg17, &brokers(), "beside").await;
        let config = pipeline.config.replace(&brokers(), &to);
        let name = &pipeline.name;
        let relay =
            halted::spawn(&format!("{config}[pipelines.{name}.sink.properties]\n{properties}"));
        relay.await_state(state, SOON).await;
        pipeline.insert(10).await;
        if state == "streaming" {
            pipeline.topic.await_records(10, SOON).await;
        }
        let ended = relay.terminate(SOON).await;
        assert!(!names(&events(&ended.stderr)).is_empty());
        assert!(ended.stdout.is_empty(), "{}", ended.stdout);
        assert!(!ended.stderr.contains("planted-hush"));
    }
}

/// The text is for people: the same in words, without what only machines read; and of polling it says nothing of a
/// stream, which there is not.
#[tokio::test]
async fn text_says_why_and_what_mends_it_and_not_which_module_speaks() {
    for (mode, kept) in
        [("wal", "PostgreSQL keeps the WAL"), ("poll", "the rows stay in the table")]
    {
        let pipeline = Pipeline::to_broker(Version::Pg17, &brokers(), "text").await;
        if mode == "poll" {
            // A slot that is not read is a warning of its own, as soon as it retains enough WAL.
            pipeline.sql("select pg_drop_replication_slot('{slot}')").await;
        }
        let nobody = format!("127.0.0.1:{}", free_port());
        let head = format!("[pipelines.{}]\n", pipeline.name);
        let config = pipeline.config.replacen(&head, &format!("{head}mode = \"{mode}\"\n"), 1);
        let relay = Relay::spawn(&config.replace(&brokers(), &nobody));
        relay.await_log("broker not available", SOON).await;
        let log = relay.terminate(SOON).await.stderr;
        let line =
            log.lines().find(|line| line.contains("broker not available")).expect("the line");
        assert!(
            line.contains("WARN") && line.contains(&nobody) && line.contains("hint="),
            "{line}"
        );
        assert!(line.contains(&format!("pipeline=\"{}\"", pipeline.name)), "{line}");
        assert!(line.contains(&format!("nothing is lost, {kept}")), "{line}");
        if mode == "poll" {
            assert!(
                !log.contains("WAL") && !log.contains("stream") && !log.contains("slot"),
                "{log}"
            );
        }
        for machine in ["event=", "seconds=", "postrider::"] {
            assert!(!line.contains(machine), "{line}");
        }
    }
}

/// A database that stops and comes back: two lines, whatever the number of tries.
#[tokio::test]
async fn an_outage_of_the_database_is_two_lines() {
    let mut server = PrivatePostgres::start(Version::Pg15, "").await;
    let pipeline = Pipeline::on(&server.url(), &brokers(), "outage").await;
    let relay = halted::spawn(&pipeline.config);
    relay.await_state("streaming", SOON).await;
    server.stop_fast(SOON).await;
    let tried =
        |status: &Value| status["pipelines"][0]["source_reconnects_total"].as_u64() >= Some(4);
    relay.await_status("four tries", SOON, tried).await;
    server.restart().await;
    relay.await_state("streaming", SOON).await;
    let ended = relay.terminate(SOON).await;
    let events = events(&ended.stderr);
    let outage: Vec<&Value> = events
        .iter()
        .filter(|event| {
            ["source_down", "streaming"].contains(&event["event"].as_str().unwrap_or(""))
        })
        .collect();
    let told = outage.len();
    // The end of the stream and the refused connections are two reasons.
    assert!((3..=5).contains(&told), "{}", ended.stderr);
    assert_eq!(outage[1]["tries"], 1, "{}", outage[1]);
    assert!(outage[1]["reason"].is_string() && outage[1]["seconds"].is_u64(), "{}", outage[1]);
    let back = outage[told - 1];
    assert_eq!(back["event"], "streaming");
    assert!(
        back["message"].as_str().unwrap_or("").starts_with("streaming again, after "),
        "{back}"
    );
}

#[tokio::test]
async fn a_halt_has_code_meaning_and_hint_in_fields_of_its_own() {
    let pipeline = Pipeline::shared(Version::Pg17, "halt_line").await;
    pipeline.sql("select pg_drop_replication_slot('{slot}')").await;
    let halted = halted::run_to_halt(&pipeline.config).await;
    let events = events(&halted.ended.stderr);
    let halt = events.last().expect("a line");
    assert_eq!((&halt["event"], &halt["code"]), (&"halted".into(), &"PR002".into()), "{halt}");
    assert_eq!((&halt["level"], &halt["reason"]), (&"ERROR".into(), &"slot_missing".into()));
}
