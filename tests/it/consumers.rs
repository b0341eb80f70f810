//! The consumer's side: docs/consumers.md shows how effects happen once with the inbox of the SQL toolkit, and
//! docs/consumers-without-toolkit.md without it. What they show is run here, in each language and in SQL, over real
//! records: repeats after kill -9, a failover with a new history, an event that was retried behind later ones, and a
//! repair.

use crate::await_that::{SOON, await_that};
use crate::inbox_consumers;
use crate::pipeline::{Pipeline, show};
use crate::programs::Language;
use crate::relay::{Relay, postrider_ok};
use crate::server::{Client, Database, Version};
use crate::sink_caller::alter;
use crate::standby::pair::Pair;
use crate::standby::promotion::pipeline;
use crate::topic::ReadRecord;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The program of the page, for tests that follow its rule record by record.
#[path = "../consumers/consumer.rs"]
#[expect(
    dead_code,
    unreachable_pub,
    clippy::assigning_clones,
    clippy::print_stdout,
    clippy::string_slice,
    reason = "a program of its own, whose main reads standard input"
)]
mod program;

/// The rule of docs/consumers-without-toolkit.md.
pub(crate) type Inbox = program::Inbox;

/// Headers of a record that the rule looks at.
pub(crate) fn headers(record: &ReadRecord) -> HashMap<&str, &str> {
    let header = |name| Some((name, record.header(name)?));
    ["id", "position", "history"].into_iter().filter_map(header).collect()
}

/// Number of the event of a record, which no other event has: ids may be given again after a restore.
pub(crate) fn number(record: &ReadRecord) -> u64 {
    let value: serde_json::Value =
        serde_json::from_str(record.value_text().expect("a payload")).expect("JSON");
    value["n"].as_u64().expect("a number")
}

/// An insert of events numbered from `first` on, of ten aggregates.
pub(crate) fn insert(first: usize, count: usize) -> String {
    format!(
        "insert into public.outbox (aggregate_type, aggregate_id, event_type, payload) \
         select 'order', (i % 10)::text, 'Written', json_build_object('n', i) \
         from generate_series({first}, {first} + {count} - 1) i"
    )
}

/// Rows after which the next one comes no sooner than in 6 s: 50 ms, seven times doubled.
const FIRST_ROWS: usize = 7;

/// A configuration whose cursor row is written at stops, and else hardly ever, so that a kill repeats everything since
/// the last.
fn rare_rows(pipeline: &Pipeline) -> String {
    format!("{}\n[pipelines.{}.flow]\ncursor_interval = \"5m\"\n", pipeline.config, pipeline.name)
}

/// Inserts over a session of its own: the server may be another one than before.
async fn write(pipeline: &Pipeline, sql: &str) {
    Client::connect(&pipeline.url).await.expect("a session").batch(sql).await;
}

/// What a topic may hold after all that can happen to a pipeline, and what was committed: aggregate and number of each
/// event.
#[expect(clippy::too_many_lines, reason = "one story, in the order in which it happens")]
async fn recorded() -> (Vec<ReadRecord>, BTreeSet<(String, u64)>) {
    let mut pair = Pair::start(Version::Pg17, true).await;
    let mut pipeline = pipeline(&pair, "consumers").await;
    pipeline.config = pipeline.with_parking(&pipeline.config, "on_poison = \"skip_event\"");
    alter(&pipeline.topic, "max.message.bytes", "3000").await;
    let rare = rare_rows(&pipeline);

    // An event that its topic does not take: the next one of its aggregate goes on without it.
    let relay = Relay::spawn(&rare);
    relay.await_state("streaming", SOON).await;
    pair.await_synced(&pipeline.slot()).await;
    let next = until_rows_are_rare(&pipeline, 1).await;
    write(&pipeline, &insert(next, 101 - next)).await;
    let large = "insert into public.outbox (aggregate_type, aggregate_id, event_type, payload) values
        ('order', '77', 'Large', (select json_build_object('n', 101, 'x', string_agg(md5(random()::text), ''))
                                  from generate_series(1, 600)));
        insert into public.outbox (aggregate_type, aggregate_id, event_type, payload) values
        ('order', '77', 'Small', json_build_object('n', 102))";
    write(&pipeline, large).await;
    await_numbers(&pipeline, 1..101).await;
    await_numbers(&pipeline, 102..103).await;
    relay.kill().await;
    // All of it again, and more.
    let relay = Relay::spawn(&rare);
    write(&pipeline, &insert(103, 100)).await;
    await_numbers(&pipeline, 103..203).await;

    // A failover under the same process, and a kill after it: repeats of before the switch and of behind it.
    pair.fail_over().await;
    relay.await_log("the server went from timeline 1 to 2", SOON).await;
    write(&pipeline, &insert(203, 100)).await;
    await_numbers(&pipeline, 203..303).await;
    relay.kill().await;
    let relay = Relay::spawn(&rare);
    relay.await_state("streaming", SOON).await;
    await_repeats(&pipeline, 302).await;
    alter(&pipeline.topic, "max.message.bytes", "1000000").await;
    postrider_ok(&rare, &["parked", "retry", "--all", "--state", "dead", "--yes"]);
    await_numbers(&pipeline, 101..102).await;
    assert_eq!(relay.terminate(SOON).await.code, Some(0));

    // The cursor row learns what is resolved, then a kill leaves it behind, and the slot is lost.
    let relay = pipeline.run();
    relay.await_state("streaming", SOON).await;
    let next = knows_the_past(&pipeline, 303).await;
    assert_eq!(relay.terminate(SOON).await.code, Some(0));
    let relay = Relay::spawn(&rare);
    let next = until_rows_are_rare(&pipeline, next).await;
    write(&pipeline, &insert(next, 50)).await;
    await_numbers(&pipeline, next..next + 50).await;
    relay.kill().await;
    let slot = pipeline.slot();
    let free = format!(
        "select coalesce(active_pid, 0)::text from pg_replication_slots where slot_name = '{slot}'"
    );
    let session = Client::connect(&pipeline.url).await.expect("a session");
    await_that("the slot to be free", SOON, || async {
        let pid = session.text(&free).await.unwrap_or_default();
        if pid == "0" { Ok(()) } else { Err(pid) }
    })
    .await;
    write(&pipeline, &format!("select pg_drop_replication_slot('{slot}')")).await;
    write(&pipeline, &insert(next + 50, 50)).await;
    postrider_ok(&pipeline.config, &["repair"]);
    let relay = pipeline.run();
    write(&pipeline, &insert(next + 100, 20)).await;
    await_numbers(&pipeline, next + 50..next + 120).await;
    assert_eq!(relay.terminate(SOON).await.code, Some(0));

    let session = Client::connect(&pipeline.url).await.expect("a session");
    let rows = session
        .query("select aggregate_id, (payload->>'n')::bigint from public.outbox", &[])
        .await
        .expect("the outbox");
    let committed = rows
        .iter()
        .map(|row| (row.get::<_, String>(0), row.get::<_, i64>(1).cast_unsigned()))
        .collect();
    (pipeline.topic.read_all().await, committed)
}

/// Events, each with the cursor row behind it: a process writes its first rows soon after each other, whatever the
/// interval is, and waits twice as long each time. What comes next has no row for some seconds; the number of the next.
async fn until_rows_are_rare(pipeline: &Pipeline, first: usize) -> usize {
    let next = first + FIRST_ROWS;
    for number in first..next {
        write_and_await_row(pipeline, number).await;
    }
    next
}

async fn write_and_await_row(pipeline: &Pipeline, number: usize) {
    write(pipeline, &insert(number, 1)).await;
    await_numbers(pipeline, number..number + 1).await;
    let records = pipeline.topic.read_all().await;
    let record = records.iter().find(|record| self::number(record) == number as u64);
    let at = record.expect("it was awaited").commit_lsn();
    let session = Client::connect(&pipeline.url).await.expect("a session");
    let passed = format!("select (watermark > '{at}')::text from postrider.cursor");
    await_that("the cursor row", SOON, || async {
        let passed = session.text(&passed).await;
        if passed.as_deref() == Some("true") { Ok(()) } else { Err(format!("{passed:?}")) }
    })
    .await;
}

/// Waits until these events are in the topic.
pub(crate) async fn await_numbers(pipeline: &Pipeline, wanted: std::ops::Range<usize>) {
    await_that(&format!("events {wanted:?} in the topic"), SOON, || async {
        let found: BTreeSet<u64> = pipeline.topic.read_all().await.iter().map(number).collect();
        let missing = wanted.clone().filter(|n| !found.contains(&(*n as u64))).count();
        if missing == 0 { Ok(()) } else { Err(format!("{missing} are missing")) }
    })
    .await;
}

/// Waits until event `last` was repeated.
async fn await_repeats(pipeline: &Pipeline, last: u64) {
    await_that("repeats in the topic", SOON, || async {
        let records = pipeline.topic.read_all().await;
        let times = records.iter().filter(|record| number(record) == last).count();
        if times > 1 { Ok(()) } else { Err(format!("event {last} is there {times} times")) }
    })
    .await;
}

/// Inserts events, one by one, until the cursor row knows that every transaction of before is resolved; the number of
/// the next.
async fn knows_the_past(pipeline: &Pipeline, first: usize) -> usize {
    let session = Client::connect(&pipeline.url).await.expect("a session");
    let horizon = session.text("select pg_current_xact_id()::text").await.expect("a transaction");
    let known = format!(
        "select (pg_snapshot_xmin(resolved_snapshot)::text::int8 > {horizon})::text from postrider.cursor"
    );
    let next = std::cell::Cell::new(first);
    await_that("the cursor row to know", SOON, || async {
        if session.text(&known).await.as_deref() == Some("true") {
            return Ok(());
        }
        write(pipeline, &insert(next.get(), 1)).await;
        next.set(next.get() + 1);
        Err("not yet")
    })
    .await;
    await_numbers(pipeline, first..next.get()).await;
    next.get()
}

/// The pipelines whose records a consumer reads here. They were set up in the same second, so they have the same
/// history, and the sequences of their tables give the same ids.
const PIPELINES: [&str; 2] = ["orders", "payments"];

/// A record of a pipeline as the programs read it.
fn line(pipeline: &str, record: &ReadRecord) -> String {
    let header = |name| record.header(name).unwrap_or_default();
    let (key, number) = (record.key_text().expect("a key"), number(record));
    let (id, position, history) = (header("id"), header("position"), header("history"));
    format!("{pipeline}/{key}\t{id}\t{position}\t{history}\t{number}\n")
}

#[tokio::test]
async fn each_effect_happens_once_by_the_rule_of_the_page_in_every_language() {
    // Compilers take seconds, and so does what is to be recorded.
    let (compiled, (records, committed)) =
        tokio::join!(tokio::task::spawn_blocking(programs), recorded());
    let compiled = compiled.expect("programs");
    assert_holds_all_cases(&records);
    let of_both = |record| PIPELINES.map(|pipeline| line(pipeline, record));
    let input: String = records.iter().flat_map(of_both).collect();
    let of_both = |(aggregate, number): &(String, u64)| {
        PIPELINES.map(|pipeline| format!("{pipeline}/{aggregate}\t{number}"))
    };
    let expected = sorted(committed.iter().flat_map(of_both));
    for (language, command) in compiled {
        let output = run(&language, command, &input);
        assert_eq!(sorted(output.lines().map(str::to_owned)), expected, "{language}");
    }
    assert_eq!(in_sql(&input).await, expected, "SQL");
    for language in Language::ALL {
        let found = inbox_consumers::effects(language, &PIPELINES, &records).await;
        assert_eq!(sorted(found.into_iter()), expected, "{language:?}, with the toolkit");
    }
    show(&format!(
        "{} records of {} events: each effect once in Python, Java, Go, TypeScript, Rust and SQL",
        records.len(),
        committed.len()
    ));
}

fn sorted(lines: impl Iterator<Item = String>) -> Vec<String> {
    let mut lines: Vec<String> = lines.collect();
    lines.sort_unstable();
    lines
}

/// Whether the records are what the rule has to cope with: a test of a topic without repeats would show nothing.
fn assert_holds_all_cases(records: &[ReadRecord]) {
    let mut times: BTreeMap<u64, Vec<&ReadRecord>> = BTreeMap::new();
    for record in records {
        times.entry(number(record)).or_default().push(record);
    }
    let with = |record: &&ReadRecord| record.header("position").is_some();
    let count = |is: &dyn Fn(&Vec<&ReadRecord>) -> bool| times.values().filter(|of| is(of)).count();
    let repeated = count(&|of| of.iter().filter(|record| with(record)).count() > 1);
    let twins = count(&|of| of.iter().any(&with) && !of.iter().all(&with));
    let alone = count(&|of| !of.iter().any(&with));
    let histories: BTreeSet<u32> =
        records.iter().filter_map(|record| Some(record.place()?.0)).collect();
    assert!(repeated >= 20, "{repeated} events repeated with their positions");
    assert!(twins >= 20, "{twins} events with a position, and without by a repair");
    assert!(alone >= 51, "{alone} events that never had a position");
    assert_eq!(histories.len(), 2, "one failover: {histories:?}");
    // An event is the same wherever it is repeated: before the switch it keeps its history.
    for (number, of) in &times {
        let places: BTreeSet<_> =
            of.iter().filter_map(|record| record.header("position")).collect();
        assert!(places.len() <= 1, "event {number}: {places:?}");
        let neither = |record: &&&ReadRecord| {
            record.header("position").is_some() == record.header("history").is_some()
        };
        assert_eq!(of.iter().find(neither), None, "event {number} has one of both");
    }
    // The one that was retried behind a later one of its aggregate.
    assert_eq!(times[&101].len(), 1);
    assert_eq!(times[&101][0].header("position"), None);
    let first = histories.first().map(|history| format!("{history:08X}"));
    assert_eq!(times[&101][0].header("history"), first.as_deref());
}

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn directory() -> PathBuf {
    root().join("tests/consumers")
}

/// Each language, and what runs its program. A compiler that is missing is a failure: scripts/test installs all.
fn programs() -> Vec<(String, Command)> {
    let (sources, target) = (directory(), root().join("target/consumers"));
    std::fs::create_dir_all(&target).expect("a directory");
    let text = |path: &Path| path.to_str().expect("a path in UTF-8").to_owned();
    let (built, source) =
        (|name: &str| text(&target.join(name)), |name: &str| text(&sources.join(name)));
    let compiler = text(&root().join("target/tools/node_modules/typescript/bin/tsc"));
    compile(&["rustc", "--edition", "2024", "-o", &built("consumer"), &source("consumer.rs")]);
    compile(&["javac", "-d", &built("java"), &source("Consumer.java")]);
    compile(&["go", "build", "-o", &built("consumer-go"), &source("consumer.go")]);
    let strict = ["--strict", "--noUncheckedIndexedAccess", "--target", "ES2022"];
    let out = ["--outDir", &built("typescript"), &source("consumer.ts")].map(str::to_owned);
    let mut words = vec!["node".to_owned(), compiler];
    words.extend(strict.map(str::to_owned));
    words.extend(out);
    compile(&words.iter().map(String::as_str).collect::<Vec<_>>());
    let command = |words: &[&str]| {
        let mut command = Command::new(words[0]);
        command.args(&words[1..]);
        command
    };
    vec![
        ("Python".to_owned(), command(&["python3", &source("consumer.py")])),
        ("Java".to_owned(), command(&["java", "-cp", &built("java"), "Consumer"])),
        ("Go".to_owned(), command(&[&built("consumer-go")])),
        ("TypeScript".to_owned(), command(&["node", &built("typescript/consumer.js")])),
        ("Rust".to_owned(), command(&[&built("consumer")])),
    ]
}

fn compile(words: &[&str]) {
    let done = Command::new(words[0]).args(&words[1..]).output();
    let done =
        done.unwrap_or_else(|error| panic!("{}: {error}; scripts/test installs it", words[0]));
    let said = String::from_utf8_lossy(&done.stdout) + String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{words:?}: {said}; scripts/test installs what is missing");
}

/// Feeds a program, and gives what it prints.
fn run(language: &str, mut command: Command, input: &str) -> String {
    let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
    let mut child =
        child.unwrap_or_else(|error| panic!("{language}: {error}; scripts/test installs it"));
    let mut standard_input = child.stdin.take().expect("standard input");
    let input = input.to_owned();
    let feeding = std::thread::spawn(move || standard_input.write_all(input.as_bytes()));
    let output = child.wait_with_output().expect("its output");
    feeding.join().expect("a thread").expect("it reads all of it");
    assert!(output.status.success(), "{language}");
    String::from_utf8(output.stdout).expect("UTF-8")
}

/// The page's two tables and its function, on a server; each record in a transaction of its own.
async fn in_sql(input: &str) -> Vec<String> {
    let database = Database::create(Version::Pg18, "consumers_sql").await;
    let client = Client::connect(&database.socket_url()).await.expect("a session");
    let sql = std::fs::read_to_string(directory().join("inbox.sql")).expect("inbox.sql");
    client.batch(&sql).await;
    let mut effects = Vec::new();
    for line in input.lines() {
        let fields: Vec<&str> = line.split('\t').collect();
        let named = |place: usize| Some(fields[place]).filter(|field| !field.is_empty());
        let (aggregate, id, position, history) = (named(0), named(1), named(2), named(3));
        let sql = "select inbox_is_new($1, $2, $3, $4)";
        let row = client.query_one(sql, &[&aggregate, &id, &position, &history]).await;
        if row.expect("an answer").get(0) {
            effects.push(format!("{}\t{}", fields[0], fields[4]));
        }
    }
    sorted(effects.into_iter())
}

/// What the page shows is what is run: between the marks of a program, less its indentation, or all of it.
#[test]
fn page_shows_the_programs_that_are_tested() {
    let page = std::fs::read_to_string(root().join("docs/consumers-without-toolkit.md"))
        .expect("the page");
    for name in
        ["consumer.py", "Consumer.java", "consumer.go", "consumer.ts", "consumer.rs", "inbox.sql"]
    {
        let text = std::fs::read_to_string(directory().join(name)).expect(name);
        let begins = |line: &&str| !line.contains("docs: begin");
        let shown: Vec<&str> = if name == "inbox.sql" {
            text.lines().collect()
        } else {
            let rest = text.lines().skip_while(begins).skip(1);
            rest.take_while(|line| !line.contains("docs: end")).collect()
        };
        let indent = |line: &&str| line.len() - line.trim_start().len();
        let least = shown.iter().filter(|line| !line.trim().is_empty()).map(indent).min();
        let mut block = String::new();
        for line in &shown {
            writeln!(block, "{}", line.get(least.unwrap_or(0)..).unwrap_or_default())
                .expect("text");
        }
        let block = block.trim();
        assert!(
            !block.is_empty() && page.contains(block),
            "docs/consumers-without-toolkit.md shows {name} as:\n{block}"
        );
    }
}
