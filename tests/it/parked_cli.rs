//! `postrider parked` without a relay: what is shown, what is asked for, what is refused.

use crate::await_that::{SOON, await_that};
use crate::pipeline::Pipeline;
use crate::relay::{postrider, postrider_at_a_terminal, postrider_ok};
use crate::server::Version;
use postrider::event::{Aggregate, Position};
use postrider::parked::{Entry, Lane, Parked, ParkedOutcome, ParkedUpdate, Request, State};
use postrider::postgres::Conninfo;
use postrider::postgres::control::Control;
use postrider::postgres::store::{cursor, parked};
use postrider::postgres::wire::from_pg_micros;
use postrider::record::OwnedRecord;
use serde_json::Value;
use std::process::Output;
use std::time::Duration;

const PAYLOAD: &str = "planted-card-4111";

fn at(text: &str) -> Position {
    let (commit_lsn, ordinal) = text.split_once(':').expect("LSN:ORDINAL");
    let commit_lsn = commit_lsn.parse().expect("a position");
    Position { commit: commit_lsn, ordinal: ordinal.parse().expect("an ordinal") }
}

fn row(position: &str, id: &str, aggregate: &str, state: State) -> Parked {
    let refused = state != State::Behind;
    Parked {
        entry: Entry {
            position: at(position),
            lane: Some(Lane::of(Aggregate { kind: "order", id: aggregate })),
            state,
            attempts: u32::from(refused),
            wait: Duration::ZERO,
            overtaken_by: None,
            xid: None,
        },
        commit_time: from_pg_micros(817_000_000_000_000),
        event_id: Some(id.to_owned()),
        event_type: Some("OrderPlaced".to_owned()),
        aggregate: Some(("order".to_owned(), aggregate.to_owned())),
        record: OwnedRecord {
            topic: "orders".to_owned(),
            partition: Some(3),
            key: Some(aggregate.as_bytes().to_vec()),
            value: Some(PAYLOAD.as_bytes().to_vec()),
            timestamp_ms: Some(1_763_000_000_000),
            headers: vec![
                ("id".to_owned(), Some(id.as_bytes().to_vec())),
                ("bin".to_owned(), Some(vec![0xff])),
            ],
        },
        error_code: refused.then_some("too_large"),
        error: refused
            .then(|| "the record has 2000000 bytes, the destination takes 1048576".to_owned()),
    }
}

/// A pipeline that is set up, with parked events in it and no relay.
struct Office {
    pipeline: Pipeline,
    control: Control,
    epoch: i64,
}

impl Office {
    async fn new(version: Version, test: &str) -> Self {
        let pipeline = Pipeline::shared(version, test).await;
        let conninfo = Conninfo::parse(&pipeline.url, &|_| None).expect("a connection string");
        let control = Control::connect(&conninfo, "postrider test").await.expect("a session");
        let epoch = cursor::take_over(control.client(), &pipeline.key()).await.expect("an epoch");
        let mut office = Self { pipeline, control, epoch };
        let mut topicless = row("0/400:0", "no-topic", "9", State::Dead);
        topicless.record.topic.clear();
        topicless.error_code = Some("topic_name");
        let rows = [
            row("0/100:1", "e-1", "1", State::Dead),
            row("0/100:2", "e-2", "1", State::Behind),
            row("0/200:0", "e-3", "2", State::Waiting),
            row("0/300:0", "gone", "3", State::Waiting),
            topicless,
        ];
        let gone = ParkedUpdate { position: at("0/300:0"), became: ParkedOutcome::Done };
        office.write(&rows, &[]).await;
        office.write(&[], &[gone]).await;
        office
    }

    async fn write(&mut self, rows: &[Parked], marks: &[ParkedUpdate]) {
        let (client, key) = (self.control.client(), self.pipeline.key());
        let stored = parked::write(client, &key, self.epoch, rows, marks).await.expect("a write");
        assert_eq!(stored, parked::Stored::Yes);
    }

    fn run(&self, args: &[&str]) -> Output {
        let args: Vec<&str> = std::iter::once("parked").chain(args.iter().copied()).collect();
        postrider(&self.pipeline.config, &args)
    }

    fn ok(&self, args: &[&str]) -> String {
        let args: Vec<&str> = std::iter::once("parked").chain(args.iter().copied()).collect();
        postrider_ok(&self.pipeline.config, &args)
    }

    async fn requests(&self) -> Vec<(String, Request)> {
        let requests = parked::requests(self.control.client(), &self.pipeline.key()).await;
        let requests = requests.expect("the requests");
        requests.into_iter().map(|(position, request)| (position.to_string(), request)).collect()
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// A payload that nobody could read is not read for the dead-letter topic, whatever code its event has.
#[tokio::test]
async fn payload_of_a_dead_event_that_is_too_large_to_be_read_is_not_sent() {
    let office = Office::new(Version::Pg17, "largeletter").await;
    let sql = "update postrider.parked set error_code = 'id_used_before', \
                 value = convert_to(repeat('x', 64 * 1024 * 1024 + 1), 'UTF8') where commit_lsn = '0/400'";
    office.pipeline.sql.batch(sql).await;
    let (client, key) = (office.control.client(), office.pipeline.key());
    let positions = [at("0/100:1"), at("0/400:0")];
    let letters =
        parked::fetch_dead_letters(client, &key, &positions, "dead").await.expect("letters");
    let values: Vec<_> = letters.iter().map(|(_, letter)| letter.value.as_deref()).collect();
    assert_eq!(values, [Some(PAYLOAD.as_bytes()), None]);
}

/// The positions in the first column.
fn positions(list: &str) -> Vec<&str> {
    let words = list.lines().filter_map(|line| line.split_whitespace().next());
    words.filter(|word| word.starts_with("0/")).collect()
}

#[tokio::test]
async fn list_and_its_filters_show_what_they_say() {
    for version in [Version::Pg15, Version::Pg18] {
        let office = Office::new(version, "cli_list").await;
        let all = ["0/100:1", "0/100:2", "0/200:0", "0/300:0", "0/400:0"];
        for (args, expected) in [
            (&["list"][..], &[0, 1, 2, 4][..]),
            (&["list", "--all"], &[0, 1, 2, 3, 4]),
            (&["list", "--aggregate", "order:1"], &[0, 1]),
            (&["list", "--error", "too_large"], &[0, 2]),
            (&["list", "--state", "behind", "--state", "dead"], &[0, 1, 4]),
            (&["list", "--older-than", "1h"], &[]),
            (&["list", "--older-than", "0ms", "--error", "topic_name"], &[4]),
        ] {
            let listed = office.ok(args);
            let expected: Vec<&str> = expected.iter().map(|index| all[*index]).collect();
            assert_eq!(positions(&listed), expected, "{args:?}\n{listed}");
        }
        assert!(office.ok(&["list", "--older-than", "1h"]).contains("no events are parked"));
        assert!(office.ok(&["list", "--limit", "2"]).contains("there are more events"));
        let lines = office.ok(&["list", "--json", "--all"]);
        let events: Vec<Value> =
            lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(events.len(), 5);
        assert_eq!(events[0]["position"], "0/100:1");
        assert_eq!(events[0]["state"], "dead");
        assert_eq!(events[0]["aggregate_id"], "1");
        assert_eq!(events[0]["payload_bytes"], 17);
        assert_eq!(events[0]["committed_at"], "2025-11-21T00:26:40Z");
        assert_eq!(events[3]["payload_bytes"], Value::Null);
        assert!(!lines.contains("planted"), "{lines}");
    }
}

#[tokio::test]
async fn show_has_headers_and_key_and_the_payload_only_when_asked() {
    let office = Office::new(Version::Pg18, "cli_show").await;
    for id in ["0/100:1", "e-1"] {
        let shown = office.ok(&["show", id]);
        for part in [
            "state        dead",
            "aggregate    order:1",
            "error        too_large",
            "topic        orders / 3",
            "key          1",
            "header       id: e-1",
            "header       bin: base64 /w==",
            "payload      17 bytes",
            "fix          kafka-configs.sh --bootstrap-server",
            "--entity-name orders --add-config max.message.bytes=",
        ] {
            assert!(shown.contains(part), "{part}\n{shown}");
        }
        assert!(!shown.contains("planted"), "{shown}");
    }
    assert!(office.ok(&["show", "e-1", "--payload"]).contains(PAYLOAD));
    let shown: Value = serde_json::from_str(&office.ok(&["show", "e-1", "--json"])).unwrap();
    assert_eq!(shown["headers"][1][1]["base64"], "/w==");
    assert_eq!(shown.get("payload"), None);
    let shown = office.ok(&["show", "e-1", "--json", "--payload"]);
    assert_eq!(serde_json::from_str::<Value>(&shown).unwrap()["payload"], PAYLOAD);
    assert!(office.ok(&["show", "gone"]).contains("payload      deleted since"));
    for id in ["nobody", "0/999:0"] {
        let output = office.run(&["show", id]);
        assert_eq!(output.status.code(), Some(1));
        assert!(text(&output.stderr).contains(&format!("not parked: {id}")));
    }
}

#[tokio::test]
async fn a_request_names_its_ids_first_and_is_kept_with_who_and_why() {
    for version in [Version::Pg15, Version::Pg18] {
        let office = Office::new(version, "cli_ask").await;
        let dry = office.ok(&["retry", "--all", "--dry-run"]);
        assert!(
            dry.contains("0/100:1  would retry") && dry.contains("0/200:0  would retry"),
            "{dry}"
        );
        assert_eq!(office.requests().await, []);

        let said = office.ok(&["retry", "e-1", "0/100:2", "--reason", "limit was raised"]);
        let done = said.find("0/100:1  retry requested; carried out when postrider run starts");
        let named = said.find("0/100:1   dead");
        assert!(named.is_some() && named < done, "{said}");
        let requests =
            [("0/100:1".to_owned(), Request::Retry), ("0/100:2".to_owned(), Request::Retry)];
        assert_eq!(office.requests().await, requests);
        let shown = office.ok(&["show", "e-1"]);
        let line = shown.lines().find(|line| line.starts_with("requested")).unwrap();
        assert!(line.contains("retry by postgres (") && line.contains("uid "), "{line}");
        assert!(line.ends_with(": limit was raised"), "{line}");
        assert!(office.ok(&["list"]).contains("dead (retry requested)"));

        // What is asked for stands until the relay has seen it.
        let output = office.run(&["skip", "e-1", "--yes"]);
        assert_eq!(output.status.code(), Some(1));
        assert!(text(&output.stdout).contains("retry was already requested by postgres"));
        assert_eq!(office.requests().await, requests);
        // The operations page's way to take one back.
        let back = format!(
            "UPDATE postrider.parked SET requested_action = NULL, requested_value = NULL \
             WHERE pipeline = '{}' AND commit_lsn = '0/100' AND ordinal = 1",
            office.pipeline.name
        );
        office.pipeline.sql.batch(&back).await;
        assert_eq!(office.requests().await, requests[1..]);
    }
}

#[tokio::test]
async fn what_can_not_be_done_is_named_and_the_rest_is_done() {
    let office = Office::new(Version::Pg18, "cli_refused").await;
    let output = office.run(&["retry", "e-3", "nobody", "gone", "no-topic", "0/999:7"]);
    assert_eq!(output.status.code(), Some(1));
    let (said, errors) = (text(&output.stdout), text(&output.stderr));
    assert!(errors.contains("not parked: nobody, 0/999:7"), "{errors}");
    assert!(said.contains("0/300:0  nothing to do: the event is already done"), "{said}");
    assert!(said.contains("0/400:0  nothing done: the event has no topic"), "{said}");
    assert_eq!(office.requests().await, [("0/200:0".to_owned(), Request::Retry)]);

    let output = office.run(&["skip", "no-topic", "--json", "--no-wait", "--yes"]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let outcome: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(outcome["action"], "skip");
    assert_eq!(outcome["events"][0]["requested"]["action"], "skip");
    assert!(text(&output.stderr).contains("0/400:0"), "the ids come first");

    for wrong in
        [&["retry"][..], &["skip", "--json"], &["skip", "--all", "e-1"], &["replace", "e-1"]]
    {
        assert_eq!(office.run(wrong).status.code(), Some(2), "{wrong:?}");
    }
}

/// Ids and aggregates of `character(n)` end in blanks, and nobody has to type them: a request hits what it names, as
/// the type compares. In any other type blanks count.
/// Ids that differ only behind many characters: each event is found by its own, and by nothing shorter. Polling marks
/// the row of the event that is meant.
#[tokio::test]
async fn ids_of_parked_events_are_whole_however_long_they_are() {
    let mut pipeline = Pipeline::shared(Version::Pg17, "cli_long_ids").await;
    let marks = "mode = \"auto\"\npoll = { interval = \"50ms\" }\n";
    let head = format!("[pipelines.{}]\n", pipeline.name);
    pipeline.config = pipeline.config.replacen(&head, &format!("{head}{marks}"), 1);
    let alter = "alter table outbox alter id drop identity; alter table outbox alter id type text; \
                 alter table outbox alter event_type drop not null";
    pipeline.sql.batch(alter).await;
    postrider_ok(&pipeline.config, &["setup"]);
    let relay = pipeline.run();
    relay.await_state("streaming", SOON).await;
    pipeline
        .sql
        .batch(
            "insert into outbox (id, aggregate_type, aggregate_id, event_type, payload) \
             select repeat('i', 500) || i, 'order', i, case when i <= 2 then null else 'T' end, '1' \
             from generate_series(1, 4) i",
        )
        .await;
    let id = |number: u32| format!("{}{number}", "i".repeat(500));
    let parked = "select string_agg(event_id, ',' order by event_id) from postrider.parked where state = 'dead'";
    let both = format!("{},{}", id(1), id(2));
    await_that("two parked events with their ids", SOON, || async {
        let found = pipeline.sql.text(parked).await.unwrap_or_default();
        if found == both { Ok(()) } else { Err(found) }
    })
    .await;
    // The two that are parked and the two that are published have their marks: none is polled again.
    await_that("no row to be polled", SOON, || async {
        let rows = pipeline.sql.text("select count(*)::text from outbox").await.unwrap_or_default();
        if rows == "0" { Ok(()) } else { Err(rows) }
    })
    .await;
    let ok = |args: &[&str]| postrider_ok(&pipeline.config, &[&["parked"], args].concat());
    assert!(ok(&["show", &id(1)]).contains(&id(1)));
    ok(&["skip", &id(1), "--yes"]);
    assert_eq!(pipeline.sql.text(parked).await, Some(id(2)));
    let output = postrider(&pipeline.config, &["parked", "skip", &"i".repeat(400), "--yes"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("not parked:"), "{}", text(&output.stderr));
    let ended = relay.terminate(SOON).await;
    assert_eq!(ended.code, Some(0));
    assert!(!ended.stderr.contains(&"i".repeat(101)), "{}", ended.stderr);
}

#[tokio::test]
async fn blanks_that_fill_up_an_id_need_not_be_typed() {
    for version in [Version::Pg16, Version::Pg18] {
        let pipeline = Pipeline::shared(version, "cli_blanks").await;
        let alter = "create domain code as character(8); create domain short as code; \
                     alter table outbox alter id drop identity; \
                     alter table outbox alter id type short using id::text::short, \
                       alter aggregate_type type character(10), alter aggregate_id type code, \
                       alter event_type drop not null";
        pipeline.sql.batch(alter).await;
        let relay = pipeline.run();
        relay.await_state("streaming", SOON).await;
        pipeline
            .sql
            .batch(
                "insert into outbox (id, aggregate_type, aggregate_id, event_type, payload) \
                 select 'e-' || i, 'order', i, null, '1' from generate_series(1, 4) i",
            )
            .await;
        let parked = "select count(*)::text from postrider.parked where state = 'dead' and event_id like 'e-_     '";
        await_that("four parked events", SOON, || async {
            let count = pipeline.sql.text(parked).await.unwrap_or_default();
            if count == "4" { Ok(()) } else { Err(count) }
        })
        .await;
        let ok = |args: &[&str]| postrider_ok(&pipeline.config, &[&["parked"], args].concat());
        for args in [
            &["show", "e-1"][..],
            &["show", "e-1     "],
            &["list", "--aggregate", "order:1"],
            &["list", "--aggregate", "order     :1    "],
        ] {
            let shown = ok(args);
            assert!(shown.contains("e-1") && !shown.contains("e-2"), "{args:?}: {shown}");
        }
        ok(&["skip", "e-1", "e-2     ", "--yes"]);
        ok(&["skip", "--aggregate", "order:3", "--yes"]);
        let left = "select string_agg(event_id, ',') from postrider.parked where state = 'dead'";
        assert_eq!(pipeline.sql.text(left).await.as_deref(), Some("e-4     "));
        for args in [&["skip", "e-", "--yes"][..], &["skip", " e-4", "--yes"], &["show", "E-4"]] {
            let output = postrider(&pipeline.config, &[&["parked"], args].concat());
            assert_eq!(output.status.code(), Some(1), "{args:?}");
            assert!(text(&output.stderr).contains("not parked:"), "{}", text(&output.stderr));
        }
        assert_eq!(relay.terminate(SOON).await.code, Some(0));
    }
    let mut office = Office::new(Version::Pg17, "cli_texts").await;
    office.write(&[row("0/500:0", "e-5  ", "5 ", State::Dead)], &[]).await;
    for args in [&["show", "e-5"][..], &["show", "e-5 "]] {
        assert_eq!(office.run(args).status.code(), Some(1), "{args:?}");
    }
    assert_eq!(positions(&office.ok(&["list", "--aggregate", "order:5"])), Vec::<&str>::new());
    assert_eq!(positions(&office.ok(&["list", "--aggregate", "order:5 "])), ["0/500:0"]);
    assert!(office.ok(&["show", "e-5  "]).contains("0/500:0"));
}

/// What loses or changes events needs a yes; a retry does not.
#[tokio::test]
async fn without_a_terminal_only_a_retry_goes_without_a_yes() {
    let office = Office::new(Version::Pg17, "cli_yes").await;
    for args in [&["skip", "e-1"][..], &["skip", "--all"], &["skip", "--error", "too_large"]] {
        let output = office.run(args);
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        assert!(text(&output.stderr).contains("--yes"), "{}", text(&output.stderr));
        assert_eq!(office.requests().await, [], "{args:?}");
    }
    office.ok(&["retry", "--all", "--no-wait"]);
    assert_eq!(office.requests().await.len(), 2);
}

/// At a terminal a person is asked before an event is lost or changed, or more than one is meant; one retry is not
/// asked about. What is not a yes changes nothing.
#[tokio::test]
async fn at_a_terminal_a_person_is_asked() {
    let office = Office::new(Version::Pg18, "cli_tty").await;
    let at_terminal = |args: &[&str], typed: &str| {
        let args = [&["parked"], args, &["--no-wait"]].concat();
        postrider_at_a_terminal(&office.pipeline.config, &args, typed)
    };
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("payload");
    std::fs::write(&file, "{}").unwrap();
    let replace = ["replace", "e-1", "--payload-file", file.to_str().unwrap()];
    for (args, question) in [
        (&["skip", "e-1"][..], "skip 1 event? [y/N]"),
        (&["skip", "--error", "too_large"], "skip 2 events? [y/N]"),
        (&["retry", "--error", "too_large"], "retry 2 events? [y/N]"),
        (&replace, "replace 1 event? [y/N]"),
    ] {
        for typed in ["n\n", "\n", "yup\n"] {
            let (code, shown) = at_terminal(args, typed);
            assert_eq!(code, Some(0), "{args:?} {typed:?}: {shown}");
            assert!(shown.contains(question), "{args:?}: {shown}");
            assert!(shown.contains("0/100:1  unchanged"), "{args:?} {typed:?}: {shown}");
            let asked = shown.find(question);
            assert!(shown.find("0/100:1 ") < asked, "the events are named first: {shown}");
            assert_eq!(office.requests().await, [], "{args:?} {typed:?}");
        }
    }
    let (code, shown) = at_terminal(&["retry", "e-3"], "");
    assert!(code == Some(0) && !shown.contains("[y/N]"), "{shown}");
    assert_eq!(office.requests().await, [("0/200:0".to_owned(), Request::Retry)]);
    let (code, shown) = at_terminal(&["skip", "e-1"], "y\n");
    assert!(code == Some(0) && shown.contains("skip 1 event? [y/N]"), "{shown}");
    let requests = [("0/100:1".to_owned(), Request::Skip), ("0/200:0".to_owned(), Request::Retry)];
    assert_eq!(office.requests().await, requests);
}

#[tokio::test]
async fn replace_keeps_the_new_payload_in_the_request() {
    let mut office = Office::new(Version::Pg15, "cli_replace").await;
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("payload");
    std::fs::write(&file, [b'{', 0xff, b'}']).unwrap();
    let file = file.to_str().unwrap();
    // Off a terminal nobody can be asked; and the payload column is JSON.
    let unasked = office.run(&["replace", "e-1", "--payload-file", file, "--not-json"]);
    assert_eq!(unasked.status.code(), Some(2));
    assert!(text(&unasked.stderr).contains("nothing was changed"), "{}", text(&unasked.stderr));
    assert!(text(&unasked.stderr).contains("--yes"), "{}", text(&unasked.stderr));
    let not_json = office.run(&["replace", "e-1", "--payload-file", file, "--yes"]);
    assert_eq!(not_json.status.code(), Some(2));
    let errors = text(&not_json.stderr);
    assert!(errors.contains("the new payload is not JSON, and column payload"), "{errors}");
    assert!(errors.contains("--not-json"), "{errors}");
    assert_eq!(office.requests().await, []);
    let said = office.ok(&["replace", "e-1", "--payload-file", file, "--yes", "--not-json"]);
    assert!(said.contains("0/100:1  replace requested"), "{said}");
    assert_eq!(office.requests().await, [("0/100:1".to_owned(), Request::Replace)]);
    // As the relay takes it.
    office
        .write(&[], &[ParkedUpdate { position: at("0/100:1"), became: ParkedOutcome::Again }])
        .await;
    let fetched =
        parked::fetch(office.control.client(), &office.pipeline.key(), &[at("0/100:1")], 1).await;
    assert_eq!(fetched.unwrap()[0].record.value.as_deref(), Some(&[b'{', 0xff, b'}'][..]));
    assert!(office.ok(&["show", "e-1"]).contains("last request replace by postgres ("));

    // By standard input, which is empty here; a file that is not there touches nothing.
    office.ok(&["replace", "e-2", "--payload-file", "-", "--yes", "--not-json"]);
    let output = office.run(&["replace", "e-3", "--payload-file", "/nowhere/payload"]);
    assert_eq!(output.status.code(), Some(2));
    assert_eq!(office.requests().await, [("0/100:2".to_owned(), Request::Replace)]);
}

#[tokio::test]
async fn a_database_of_the_first_release_is_told_what_makes_the_table() {
    let office = Office::new(Version::Pg18, "cli_v1").await;
    office
        .pipeline
        .sql
        .batch("delete from postrider.migration where number > 1; drop table postrider.parked")
        .await;
    let output = office.run(&["list"]);
    assert_eq!(output.status.code(), Some(1));
    let errors = text(&output.stderr);
    assert!(errors.contains("has no parked table"), "{errors}");
    assert!(errors.contains(&format!("postrider setup -p {}", office.pipeline.name)), "{errors}");
}
