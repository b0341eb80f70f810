//! A pipeline whose mode, cluster, topic, table or layout is changed after it has published: it halts and says what
//! would be lost or repeated, and each way out that it prints is followed here. Lost and swapped are counted, and what
//! comes twice.

use crate::answers::{Answer, answer};
use crate::await_that::{SOON, await_that};
use crate::halted::{Halted, run_to_halt, spawn};
use crate::pipeline::{Pipeline, drop_slot};
use crate::private::{PrivateKafka, PrivatePostgres};
use crate::relay::{postrider, postrider_ok};
use crate::server::{Database, Version, brokers};
use crate::sink_caller::alter;
use crate::topic::{ReadRecord, Topic, Topics};
use serde_json::Value;
use std::collections::BTreeMap;

/// The configuration with this mode.
fn with_mode(pipeline: &Pipeline, mode: &str) -> String {
    let head = format!("[pipelines.{}]\n", pipeline.name);
    pipeline.config.replacen(&head, &format!("{head}mode = \"{mode}\"\n"), 1)
}

/// Inserts `count` events of three aggregates, each with a number that grows.
async fn insert(pipeline: &Pipeline, layout: &str, first: usize, count: usize) {
    let last = first + count - 1;
    let sql = match layout {
        "gcx" => format!(
            "insert into outbox (aggregate_type, aggregate_id, event_type, payload, topic) \
             select 'order', ('00000000-0000-0000-0000-00000000000' || i % 3)::uuid, 'T', to_jsonb(i), '{}' \
             from generate_series({first}, {last}) i",
            pipeline.topic.name
        ),
        _ => format!(
            "insert into outbox (aggregate_type, aggregate_id, event_type, payload) \
             select 'order', (i % 3)::text, 'T', to_json(i) from generate_series({first}, {last}) i"
        ),
    };
    pipeline.sql.batch(&sql).await;
}

/// The numbers of the events, by their keys, in the order of the partition.
fn numbers(records: &[ReadRecord]) -> BTreeMap<String, Vec<usize>> {
    let mut numbers: BTreeMap<String, Vec<usize>> = BTreeMap::new();
    for record in records {
        let key = record.key_text().expect("a key").to_owned();
        let number = record.value_text().expect("a value").parse().expect("a number");
        numbers.entry(key).or_default().push(number);
    }
    numbers
}

/// Each of the events from 1 to `last` is there once, in the order of its aggregate.
fn assert_each_once(records: &[ReadRecord], last: usize) {
    let numbers = numbers(records);
    for (key, numbers) in &numbers {
        assert!(numbers.is_sorted_by(|one, next| one < next), "{key}: {numbers:?}");
    }
    assert_eq!(numbers.values().map(Vec::len).sum::<usize>(), last, "{numbers:?}");
}

/// None of the events from 1 to `last` is lost, the first time that each comes it is in order, and so many come again.
fn assert_again(records: &[ReadRecord], last: usize, again: usize) {
    let (mut found, mut repeated) = (0, 0);
    for (key, numbers) in &numbers(records) {
        let mut seen = Vec::new();
        for number in numbers {
            if seen.contains(number) {
                repeated += 1;
            } else {
                seen.push(*number);
            }
        }
        assert!(seen.is_sorted(), "{key}: {numbers:?}");
        found += seen.len();
    }
    assert_eq!((found, repeated), (last, again));
}

/// `check` says the same as `run`, by the same code, and exits with 1.
fn assert_check_says(config: &str, halted: &Halted) {
    let output = postrider(config, &["check", "--json"]);
    let text = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "{text}");
    let findings: Value = serde_json::from_str(&text).expect("JSON");
    let found = findings.as_array().expect("findings").iter();
    let found: Vec<&Value> = found.filter(|finding| finding["id"] == "pipeline_changed").collect();
    assert_eq!(found.len(), 1, "{text}");
    let message = halted.message.trim_start_matches("halted: ");
    assert_eq!(found[0]["what"], *message, "{text}");
    let why = found[0]["why"].as_str().expect("why");
    assert!(why.contains("(PR025)") && why.contains(&halted.hint), "{why}\n{halted:#?}");
}

/// The findings of `check` with this id.
fn findings(config: &str, id: &str) -> Vec<Value> {
    let output = postrider(config, &["check", "--json"]);
    let findings: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let findings = findings.as_array().expect("findings").iter();
    findings.filter(|finding| finding["id"] == id).cloned().collect()
}

/// Runs with this configuration until so many events are in the topic.
async fn run_until(config: &str, state: &str, topic: &Topic, count: usize) -> Vec<ReadRecord> {
    let relay = spawn(config);
    relay.await_state(state, SOON).await;
    let records = topic.await_records(count, SOON).await;
    assert_eq!(relay.terminate(SOON).await.code, Some(0));
    records
}

/// The answer, with words of this run replaced.
fn told(halted: &Halted, word: &str, example: &str) -> Answer {
    let stable = |text: &str| text.replace(word, example);
    let says = format!("{} {}", halted.code, stable(&halted.message));
    Answer::said(&says, &stable(&halted.meaning), &stable(&halted.hint)).then("3")
}

/// Waits until the running process knows so many rows to be published, by what `check` says of mode `poll`.
async fn await_published(polls: &str, rows: usize) {
    let says = format!("Of these rows {rows} are known to be published");
    await_that("the rows are known to be published", SOON, || async {
        let check = findings(polls, "pipeline_changed");
        let why = check.first().map_or_else(String::new, |f| f["why"].to_string());
        if why.contains(&says) { Ok(()) } else { Err(why) }
    })
    .await;
}

/// Slot, publication and cursor made again, as for a table that has rows before its first `setup`.
async fn set_up_again(pipeline: &Pipeline, args: &[&str]) {
    let sql = format!(
        "select pg_drop_replication_slot('{0}'); drop publication {0}; drop schema postrider cascade",
        pipeline.slot()
    );
    pipeline.sql.batch(&sql).await;
    postrider_ok(&pipeline.config, args);
}

/// The statement that a hint prints between these words.
fn between<'a>(hint: &'a str, from: &str, to: &str) -> &'a str {
    let (_, rest) = hint.split_once(from).unwrap_or_else(|| panic!("{from:?} in {hint}"));
    rest.split_once(to).unwrap_or_else(|| panic!("{to:?} in {hint}")).0
}

/// Mode `wal` and then `poll`, by way (a): marked as the hint says, nothing comes twice.
#[tokio::test]
async fn stream_becomes_polling_without_a_repetition_when_its_rows_are_marked_as_printed() {
    for layout in ["postrider", "gcx"] {
        let pipeline = Pipeline::in_layout(Version::Pg17, "walpoll", layout).await;
        insert(&pipeline, layout, 1, 20).await;
        run_until(&pipeline.config, "streaming", &pipeline.topic, 20).await;

        let polls = with_mode(&pipeline, "poll");
        let halted = run_to_halt(&polls).await;
        halted.assert_says("PR025", &["20 rows", "belongs to mode \"wal\""], &["postrider adopt"]);
        assert_check_says(&polls, &halted);
        assert_eq!(pipeline.topic.read_all().await.len(), 20, "nothing was published");
        // As printed: back to the mode of before, without writers, until the position is past everything.
        let relay = spawn(&pipeline.config);
        relay.await_state("streaming", SOON).await;
        await_published(&polls, 20).await;
        assert_eq!(relay.terminate(SOON).await.code, Some(0));
        let halted = run_to_halt(&polls).await;
        let sql = between(&halted.hint, "known to be published: ", " (postrider check");
        if layout == "postrider" {
            let told = told(&halted, sql, "DELETE FROM \"public\".\"outbox\" AS o WHERE …");
            answer("mode poll on a pipeline that has streamed", &pipeline, told);
        }
        // `check` prints it as a line that can be pasted.
        let check = findings(&polls, "pipeline_changed");
        let fix = &check[0]["fix"][0];
        assert_eq!(
            (fix["kind"].as_str(), fix["line"].as_str()),
            (Some("sql"), Some(&*format!("{sql};")))
        );
        pipeline.sql.batch(fix["line"].as_str().expect("a line")).await;
        let said = postrider_ok(&polls, &["adopt"]);
        assert!(said.contains("polling would publish the 0 rows"), "{said}");

        insert(&pipeline, layout, 21, 10).await;
        let records = run_until(&polls, "polling", &pipeline.topic, 30).await;
        assert_each_once(&records, 30);
    }
}

/// Rows of before the slot was made are published by nobody: the printed statement leaves them out, and says how many.
/// Where `setup --backfill` has published them, it marks them as the others.
#[tokio::test]
async fn rows_of_before_the_slot_are_marked_only_where_a_backfill_has_published_them() {
    for (args, streamed, before) in
        [(&["setup"][..], 15, 5), (&["setup", "--backfill", "all"][..], 20, 0)]
    {
        let pipeline = Pipeline::shared(Version::Pg17, "walpollbefore").await;
        insert(&pipeline, "postrider", 1, 5).await;
        set_up_again(&pipeline, args).await;
        insert(&pipeline, "postrider", 6, 15).await;
        let polls = with_mode(&pipeline, "poll");
        let relay = spawn(&pipeline.config);
        relay.await_state("streaming", SOON).await;
        pipeline.topic.await_records(streamed, SOON).await;
        await_published(&polls, streamed).await;
        assert_eq!(relay.terminate(SOON).await.code, Some(0));

        let halted = run_to_halt(&polls).await;
        halted.assert_says("PR025", &["the 20 rows"], &["postrider adopt"]);
        assert_check_says(&polls, &halted);
        let counted = format!("{before} may be from before the slot was created");
        let left_out = format!("The statement leaves out the {before} rows");
        assert_eq!(halted.meaning.contains(&counted), before > 0, "{halted:#?}");
        assert_eq!(halted.hint.contains(&left_out), before > 0, "{halted:#?}");
        let sql = between(&halted.hint, "known to be published: ", " (postrider check");
        pipeline.sql.batch(sql).await;
        let left = pipeline.sql.text("select count(*)::text from outbox").await;
        assert_eq!(left, Some(before.to_string()));
        let said = postrider_ok(&polls, &["adopt"]);
        assert!(said.contains(&format!("the {before} rows")), "{said}");

        insert(&pipeline, "postrider", 21, 5).await;
        let records = run_until(&polls, "polling", &pipeline.topic, 25).await;
        let mut all: Vec<usize> = numbers(&records).into_values().flatten().collect();
        all.sort_unstable();
        assert_eq!(all, (1..=25).collect::<Vec<usize>>());
    }
}

/// The same by way (b): what the halt counts comes again. The slot that is left behind is told until it is dropped.
#[tokio::test]
async fn stream_becomes_polling_with_the_repetitions_that_were_counted_and_its_slot_is_told() {
    let pipeline = Pipeline::shared(Version::Pg18, "walpollagain").await;
    insert(&pipeline, "postrider", 1, 20).await;
    run_until(&pipeline.config, "streaming", &pipeline.topic, 20).await;
    insert(&pipeline, "postrider", 21, 4).await;

    let polls = with_mode(&pipeline, "poll");
    let halted = run_to_halt(&polls).await;
    halted.assert_says("PR025", &["24 rows"], &["postrider adopt"]);
    let dry = postrider_ok(&polls, &["adopt", "--dry-run"]);
    assert!(dry.contains("24 rows") && dry.contains("nothing was changed"), "{dry}");
    assert_eq!(run_to_halt(&polls).await.code, "PR025", "a dry run adopts nothing");
    let said = postrider_ok(&polls, &["adopt"]);
    assert!(said.contains("adopted"), "{said}");

    let relay = spawn(&polls);
    let records = pipeline.topic.await_records(44, SOON).await;
    assert_again(&records, 24, 20);
    let told = |status: &Value| {
        let one = &status["pipelines"][0];
        let hint = one["hint"].as_str().unwrap_or_default();
        let retained = one["slot_retained_bytes"].as_u64().is_some();
        retained && hint.contains("SELECT pg_drop_replication_slot")
    };
    let status = relay.await_status("the slot that is left behind", SOON, told).await;
    let one = &status["pipelines"][0];
    assert!(one["reason"].to_string().contains(&pipeline.slot()), "{one}");
    assert!(one["belongs_to"].to_string().contains("mode poll"), "{one}");
    let found = findings(&polls, "slot_left_behind");
    assert_eq!(found.len(), 1, "{found:?}");
    relay.await_log("slot_left_behind", SOON).await;

    let hint = one["hint"].as_str().expect("a hint");
    let line = hint.split_inclusive(';').next().expect("a line");
    pipeline.sql.batch(line).await;
    let gone = |status: &Value| status["pipelines"][0]["slot_retained_bytes"].is_null();
    relay.await_status("the slot is gone", SOON, gone).await;
    assert!(findings(&polls, "slot_left_behind").is_empty());
    insert(&pipeline, "postrider", 25, 6).await;
    assert_again(&pipeline.topic.await_records(50, SOON).await, 30, 20);
    assert_eq!(relay.terminate(SOON).await.code, Some(0));

    // Back by the hand-over, with nothing lost or repeated.
    insert(&pipeline, "postrider", 31, 3).await;
    run_until(&with_mode(&pipeline, "auto"), "streaming", &pipeline.topic, 53).await;
    insert(&pipeline, "postrider", 34, 3).await;
    let records = run_until(&pipeline.config, "streaming", &pipeline.topic, 56).await;
    assert_again(&records, 36, 20);
}

/// Mode `poll` and then `wal`: refused, and by way of `auto` nothing is lost or repeated, whatever slot there is.
#[tokio::test]
async fn polling_becomes_a_stream_by_way_of_auto_and_nothing_is_lost_or_repeated() {
    for version in [Version::Pg15, Version::Pg17] {
        let pipeline = Pipeline::shared(version, "pollwal").await;
        let (polls, auto) = (with_mode(&pipeline, "poll"), with_mode(&pipeline, "auto"));
        insert(&pipeline, "postrider", 1, 20).await;
        // `setup` has made a slot that never streamed: polling goes on without a question.
        run_until(&polls, "polling", &pipeline.topic, 20).await;
        insert(&pipeline, "postrider", 21, 15).await;

        let halted = run_to_halt(&pipeline.config).await;
        halted.assert_says("PR025", &["belongs to mode \"poll\""], &["mode = \"auto\""]);
        if version == Version::Pg17 {
            answer("mode wal on a pipeline that has polled", &pipeline, &halted);
        }
        assert_check_says(&pipeline.config, &halted);
        assert_eq!(pipeline.topic.read_all().await.len(), 20, "nothing was published");

        assert_eq!(findings(&auto, "hand_over").len(), 1);
        run_until(&auto, "streaming", &pipeline.topic, 35).await;
        insert(&pipeline, "postrider", 36, 10).await;
        let records = run_until(&auto, "streaming", &pipeline.topic, 45).await;
        assert_each_once(&records, 45);
        insert(&pipeline, "postrider", 46, 5).await;
        let records = run_until(&pipeline.config, "streaming", &pipeline.topic, 50).await;
        assert_each_once(&records, 50);
    }
}

/// The hand-over from polling killed in its middle: the next start goes on with it.
#[tokio::test]
async fn hand_over_from_polling_that_is_killed_loses_nothing() {
    let pipeline = Pipeline::shared(Version::Pg17, "pollkill").await;
    insert(&pipeline, "postrider", 1, 20).await;
    run_until(&with_mode(&pipeline, "poll"), "polling", &pipeline.topic, 20).await;
    let auto = with_mode(&pipeline, "auto");
    insert(&pipeline, "postrider", 21, 2_000).await;
    let relay = spawn(&auto);
    pipeline.topic.await_records(21, SOON).await;
    drop(relay.kill().await);
    // Back to polling is no change: the stream has not begun.
    let relay = spawn(&with_mode(&pipeline, "poll"));
    relay.await_state("polling", SOON).await;
    drop(relay.kill().await);
    let relay = spawn(&auto);
    relay.await_state("streaming", SOON).await;
    insert(&pipeline, "postrider", 2_021, 5).await;
    await_that("every event", SOON, || async {
        let numbers = numbers(&pipeline.topic.read_all().await);
        let mut all: Vec<usize> = numbers.into_values().flatten().collect();
        all.sort_unstable();
        all.dedup();
        if all.len() == 2_025 { Ok(()) } else { Err(all.len()) }
    })
    .await;
    assert_eq!(relay.terminate(SOON).await.code, Some(0));
}

/// Mode `wal` and then `auto`: it goes on, and says how many rows a lost slot would have published again.
#[tokio::test]
async fn stream_becomes_auto_and_rows_without_a_mark_are_told_with_the_statement() {
    let pipeline = Pipeline::in_layout(Version::Pg18, "walauto", "gcx").await;
    insert(&pipeline, "gcx", 1, 20).await;
    let relay = spawn(&pipeline.config);
    pipeline.topic.await_records(20, SOON).await;
    let auto = with_mode(&pipeline, "auto");
    await_that("the rows are known to be published", SOON, || async {
        let found = findings(&auto, "setting_changed");
        let what = found.first().map_or_else(String::new, |finding| finding["what"].to_string());
        if what.contains("20 rows") { Ok(()) } else { Err(what) }
    })
    .await;
    assert_eq!(relay.terminate(SOON).await.code, Some(0));

    let relay = spawn(&auto);
    relay.await_log("20 rows of", SOON).await;
    insert(&pipeline, "gcx", 21, 5).await;
    pipeline.topic.await_records(25, SOON).await;
    let found = findings(&auto, "setting_changed");
    let line = found[0]["fix"][0]["line"].as_str().expect("a statement");
    pipeline.sql.batch(line).await;
    assert!(findings(&auto, "setting_changed").is_empty());
    assert_eq!(relay.terminate(SOON).await.code, Some(0));
    // The slot is lost: the table is polled, and nothing comes again.
    pipeline.sql.batch(&format!("select pg_drop_replication_slot('{}')", pipeline.slot())).await;
    insert(&pipeline, "gcx", 26, 5).await;
    let records = run_until(&auto, "streaming", &pipeline.topic, 30).await;
    assert_each_once(&records, 30);
}

/// Another topic: refused; by way (a) it has everything, and what was committed since the position twice. The old
/// configuration halts from then on, and never takes the position back.
#[tokio::test]
async fn another_topic_is_refused_and_has_everything_after_a_replay_as_printed() {
    let pipeline = Pipeline::shared(Version::Pg17, "topicto").await;
    insert(&pipeline, "postrider", 1, 20).await;
    run_until(&pipeline.config, "streaming", &pipeline.topic, 20).await;
    let other = Topics::new(&brokers(), "topicother").create("other", 8).await;
    let config = pipeline.config.replace(
        &format!("topic = \"{}\"", pipeline.topic.name),
        &format!("topic = \"{}\"", other.name),
    );
    insert(&pipeline, "postrider", 21, 3).await;
    let halted = run_to_halt(&config).await;
    halted.assert_says("PR025", &["route.topic", &other.name], &["postrider replay", "adopt"]);
    assert_check_says(&config, &halted);
    assert!(other.read_all().await.is_empty());
    let told = told(&halted, &other.name, "order.v2");
    answer("another topic for a pipeline that has published", &pipeline, told);

    // Going back is a way out too.
    insert(&pipeline, "postrider", 24, 2).await;
    let records = run_until(&pipeline.config, "streaming", &pipeline.topic, 25).await;
    assert_each_once(&records, 25);

    insert(&pipeline, "postrider", 26, 5).await;
    let halted = run_to_halt(&config).await;
    let line = between(&halted.hint, "the table still has: postrider ", ", then postrider adopt");
    let args: Vec<&str> = line.split_whitespace().collect();
    postrider_ok(&config, &args);
    postrider_ok(&config, &["adopt"]);
    insert(&pipeline, "postrider", 31, 5).await;
    // 30 by the replay, then 26 to 30 once more.
    let records = run_until(&config, "streaming", &other, 40).await;
    assert_again(&records, 35, 5);

    let old = run_to_halt(&pipeline.config).await;
    old.assert_says("PR025", &["route.topic"], &["postrider adopt"]);
    assert_eq!(pipeline.topic.read_all().await.len(), 25);
    run_until(&config, "streaming", &other, 40).await;
}

/// Another cluster behind `sink.brokers`: refused, though nothing but the brokers changed; by way (b) it begins there.
/// A process of the old configuration stands by beside the new one, and halts when it could take over.
#[tokio::test]
async fn another_cluster_is_refused_and_begins_with_the_next_event_when_it_is_adopted() {
    let pipeline = Pipeline::shared(Version::Pg18, "cluster").await;
    insert(&pipeline, "postrider", 1, 20).await;
    run_until(&pipeline.config, "streaming", &pipeline.topic, 20).await;
    let broker = PrivateKafka::start("").await;
    crate::topic::create_topic(&broker.brokers(), &pipeline.topic.name, 8, &[]).await;
    let other = Topic { brokers: broker.brokers(), name: pipeline.topic.name.clone() };
    let config = pipeline.config.replace(&brokers(), &broker.brokers());

    let halted = run_to_halt(&config).await;
    halted.assert_says("PR025", &["the Kafka cluster"], &["postrider adopt"]);
    assert_check_says(&config, &halted);
    assert!(other.read_all().await.is_empty());
    postrider_ok(&config, &["adopt"]);

    let relay = spawn(&config);
    relay.await_state("streaming", SOON).await;
    let old = spawn(&pipeline.config);
    old.await_state("standing_by", SOON).await;
    insert(&pipeline, "postrider", 21, 5).await;
    let records = other.await_records(5, SOON).await;
    assert_eq!(records.len(), 5);
    assert_eq!(relay.terminate(SOON).await.code, Some(0));
    let halted = crate::halted::halt_of(old).await;
    halted.assert_says("PR025", &["the Kafka cluster"], &["postrider adopt"]);
    assert_eq!(pipeline.topic.read_all().await.len(), 20, "nothing more in the old place");
    insert(&pipeline, "postrider", 26, 5).await;
    assert_eq!(run_until(&config, "streaming", &other, 10).await.len(), 10);
}

/// A broker that is away at the start is no change: events flow when it is back, and no other cluster gets them.
#[tokio::test]
async fn broker_that_is_away_at_the_start_is_compared_when_it_answers() {
    let mut broker = PrivateKafka::start("").await;
    let pipeline = Pipeline::to_broker(Version::Pg17, &broker.brokers(), "away").await;
    insert(&pipeline, "postrider", 1, 10).await;
    run_until(&pipeline.config, "streaming", &pipeline.topic, 10).await;
    let cluster = "select of_cluster from postrider.cursor";
    let known = pipeline.sql.text(cluster).await.expect("a cluster");
    broker.kill().await;
    insert(&pipeline, "postrider", 11, 10).await;
    let relay = spawn(&pipeline.config);
    relay.await_state("broker_down", SOON).await;
    assert_eq!(pipeline.sql.text(cluster).await.as_deref(), Some(&*known));
    broker.restart().await;
    assert_each_once(&pipeline.topic.await_records(20, SOON).await, 20);
    assert_eq!(relay.terminate(SOON).await.code, Some(0));
    assert_eq!(pipeline.sql.text(cluster).await.as_deref(), Some(&*known));
}

/// Each other setting: what is refused, and what is only told.
#[tokio::test]
async fn each_other_setting_is_refused_or_told() {
    let pipeline = Pipeline::shared(Version::Pg17, "settings").await;
    insert(&pipeline, "postrider", 1, 20).await;
    run_until(&pipeline.config, "streaming", &pipeline.topic, 20).await;
    pipeline
        .sql
        .batch(
            "create table outbox2 (like outbox including all); insert into outbox2 (aggregate_type, aggregate_id, \
             event_type, payload) select 'order', '1', 'T', '1' from generate_series(1, 3)",
        )
        .await;
    let publication = format!("alter publication {} add table outbox2", pipeline.slot());
    pipeline.sql.batch(&publication).await;
    let kafka = format!("kind = \"kafka\"\nbrokers = \"{}\"\n", brokers());
    let cases = [
        (kafka.as_str(), "kind = \"discard\"\n", "sink.kind"),
        ("table = \"public.outbox\"", "table = \"public.outbox2\"", "outbox.table"),
        (
            "layout = \"postrider\"",
            "layout = \"adr30\"\ncolumns = { headers = \"headers\" }",
            "outbox.layout",
        ),
    ];
    for (from, to, says) in cases {
        let config = pipeline.config.replace(from, to);
        assert_ne!(config, pipeline.config, "{from}");
        let halted = run_to_halt(&config).await;
        halted.assert_says("PR025", &[says], &["postrider adopt", "set the old values again"]);
        if says == "outbox.table" {
            // Rows of before the publication had the table are among them, though no position says so.
            let counted =
                ["outbox\", up to ", "rows are not known to be published", "up to 3 rows"];
            assert!(counted.iter().all(|words| halted.meaning.contains(words)), "{halted:#?}");
            // The rest of the old table comes before what leaves it behind.
            let (before, _) = halted.hint.split_once("postrider adopt").expect("adopt");
            let rest = "let nothing write to \"public\".\"outbox\" any more";
            assert!(before.contains(rest), "{halted:#?}");
        }
        if says == "outbox.layout" {
            assert!(halted.meaning.contains("no event is lost or repeated"), "{halted:#?}");
            assert!(!halted.hint.contains("replay"), "{halted:#?}");
        }
        assert_check_says(&config, &halted);
    }
    assert_eq!(pipeline.topic.read_all().await.len(), 20, "nothing was published");

    // The key says where events go, and not whether they go: it is told.
    let route = format!("[pipelines.{}.route]\n", pipeline.name);
    let config = pipeline.config.replace(&route, &format!("{route}key = \"{{event_type}}\"\n"));
    let found = findings(&config, "setting_changed");
    assert_eq!(found.len(), 1, "{found:?}");
    let relay = spawn(&config);
    relay.await_log("route.key or route.partition", SOON).await;
    relay.await_state("streaming", SOON).await;
    assert_eq!(relay.terminate(SOON).await.code, Some(0));

    // The same table with another name.
    pipeline.sql.batch("alter table outbox rename to renamed").await;
    let config = pipeline.config.replace("public.outbox\"", "public.renamed\"");
    let sql = "insert into renamed (aggregate_type, aggregate_id, event_type, payload) \
               select 'order', '1', 'T', to_json(21)";
    pipeline.sql.batch(sql).await;
    let records = run_until(&config, "streaming", &pipeline.topic, 21).await;
    assert_each_once(&records, 21);
}

/// Mode `wal` and then `auto` while there is no slot: the table would be polled at once, with all that is published.
#[tokio::test]
async fn stream_without_its_slot_becomes_auto_after_a_repair() {
    let pipeline = Pipeline::shared(Version::Pg17, "walautolost").await;
    insert(&pipeline, "postrider", 1, 20).await;
    let relay = spawn(&pipeline.config);
    pipeline.topic.await_records(20, SOON).await;
    await_published(&with_mode(&pipeline, "poll"), 20).await;
    assert_eq!(relay.terminate(SOON).await.code, Some(0));
    pipeline.sql.batch(&format!("select pg_drop_replication_slot('{}')", pipeline.slot())).await;
    insert(&pipeline, "postrider", 21, 3).await;

    let auto = with_mode(&pipeline, "auto");
    let halted = run_to_halt(&auto).await;
    let hints = ["postrider repair", "postrider adopt"];
    halted.assert_says("PR025", &["no stream can be started", "the 23 rows"], &hints);
    assert_check_says(&auto, &halted);
    assert_eq!(pipeline.topic.read_all().await.len(), 20, "nothing was published");
    postrider_ok(&pipeline.config, &["repair"]);
    insert(&pipeline, "postrider", 24, 3).await;
    let records = run_until(&auto, "streaming", &pipeline.topic, 26).await;
    assert_each_once(&records, 26);
}

/// Mode `wal` and then `poll` because the slot is lost: nothing is in the slot, and a repair is the way.
#[tokio::test]
async fn stream_whose_slot_is_lost_becomes_polling_after_a_repair_as_printed() {
    let pipeline = Pipeline::shared(Version::Pg18, "walpolllost").await;
    insert(&pipeline, "postrider", 1, 20).await;
    let relay = spawn(&pipeline.config);
    pipeline.topic.await_records(20, SOON).await;
    let polls = with_mode(&pipeline, "poll");
    await_published(&polls, 20).await;
    assert_eq!(relay.terminate(SOON).await.code, Some(0));
    pipeline.sql.batch(&format!("select pg_drop_replication_slot('{}')", pipeline.slot())).await;
    insert(&pipeline, "postrider", 21, 3).await;

    let halted = run_to_halt(&polls).await;
    let hints = ["mode = \"wal\", run postrider repair", "postrider adopt"];
    halted.assert_says("PR025", &["the 23 rows"], &hints);
    assert!(halted.meaning.contains("is lost or does not exist"), "{}", halted.meaning);
    assert_check_says(&polls, &halted);
    assert!(!halted.hint.contains("DELETE"), "{}", halted.hint);
    // As printed.
    postrider_ok(&pipeline.config, &["repair"]);
    run_until(&pipeline.config, "streaming", &pipeline.topic, 23).await;
    let halted = run_to_halt(&polls).await;
    halted.assert_says("PR025", &["mode is \"poll\""], &["stop the writers"]);
    pipeline.sql.batch("delete from outbox").await;
    postrider_ok(&polls, &["adopt"]);
    insert(&pipeline, "postrider", 24, 3).await;
    let records = run_until(&polls, "polling", &pipeline.topic, 26).await;
    assert_each_once(&records, 26);
}

/// The first transaction is published in part, so the position has not moved, and the topic has records all the same.
#[tokio::test]
async fn topic_that_has_part_of_the_first_transaction_is_compared() {
    let pipeline = Pipeline::shared(Version::Pg17, "adoptpart").await;
    let relay = spawn(&pipeline.config);
    relay.await_state("streaming", SOON).await;
    assert_eq!(relay.terminate(SOON).await.code, Some(0));
    pipeline
        .sql
        .batch(
            "update postrider.cursor set slot_created_lsn = watermark, \
             partial_commit_lsn = watermark + 4096, partial_ordinal = 7",
        )
        .await;
    let topic = &pipeline.topic.name;
    let other = pipeline.config.replace(&format!("\"{topic}\""), &format!("\"{topic}.other\""));
    let halted = run_to_halt(&other).await;
    halted.assert_says("PR025", &["route.topic is", "and was"], &["postrider adopt"]);
}

/// What is known of the rows of one table says nothing of those of another, though their transactions are older.
#[tokio::test]
async fn rows_of_another_table_are_not_known_to_be_published() {
    let pipeline = Pipeline::shared(Version::Pg17, "adopttable").await;
    insert(&pipeline, "postrider", 1, 20).await;
    let relay = spawn(&pipeline.config);
    pipeline.topic.await_records(20, SOON).await;
    let polls = with_mode(&pipeline, "poll");
    await_published(&polls, 20).await;
    assert_eq!(relay.terminate(SOON).await.code, Some(0));
    let known = "select (resolved_snapshot is null)::text from postrider.cursor";
    assert_eq!(pipeline.sql.text(known).await.as_deref(), Some("false"));
    let slot = pipeline.slot();
    let publication = format!("alter publication {slot} add table other");
    pipeline.sql.batch("create table other (like outbox including all)").await;
    let other = pipeline.config.replace("public.outbox\"", "public.other\"");
    // Its rows would come by no stream, and count as published later.
    let refused = postrider(&other, &["adopt"]);
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && said.contains("PR008"), "{said}");
    pipeline.sql.batch(&publication).await;
    postrider_ok(&other, &["adopt"]);
    assert_eq!(pipeline.sql.text(known).await.as_deref(), Some("true"));
}

/// Mode and table change together: what is known of transactions says nothing of the rows of the new table, so no
/// statement marks them, and the ways that are printed are those of the table alone.
#[tokio::test]
async fn mode_and_table_that_change_together_mark_no_row_of_the_new_table() {
    let pipeline = Pipeline::shared(Version::Pg17, "modetable").await;
    pipeline.sql.batch("create table outbox2 (like outbox including all)").await;
    pipeline.sql.batch(&rows("outbox2", 11, 13)).await;
    pipeline.sql("alter publication {publication} add table outbox2").await;
    insert(&pipeline, "postrider", 1, 10).await;
    let relay = spawn(&pipeline.config);
    pipeline.topic.await_records(10, SOON).await;
    await_published(&with_mode(&pipeline, "poll"), 10).await;
    assert_eq!(relay.terminate(SOON).await.code, Some(0));

    let to_other = |config: &str| config.replace("public.outbox\"", "public.outbox2\"");
    let polls = to_other(&with_mode(&pipeline, "poll"));
    let halted = run_to_halt(&polls).await;
    let first = "Change one setting at a time. First set back: mode = \"wal\".";
    halted.assert_says("PR025", &["outbox.table is", "mode is \"poll\""], &[first]);
    assert!(halted.hint.starts_with(first), "{halted:#?}");
    assert_check_says(&polls, &halted);
    let found = findings(&polls, "pipeline_changed")[0].to_string();
    assert!(!format!("{halted:?} {found}").contains("DELETE"), "{halted:#?}\n{found}");
    assert!(!halted.meaning.contains("are known to be published, and would"), "{halted:#?}");
    let auto = to_other(&with_mode(&pipeline, "auto"));
    run_to_halt(&auto).await.assert_says("PR025", &["outbox.table is"], &["postrider adopt"]);
    assert!(findings(&auto, "setting_changed").is_empty());
    assert_eq!(pipeline.topic.read_all().await.len(), 10, "nothing was published");

    // As printed: the table in the mode of before, and then the mode.
    let other = to_other(&pipeline.config);
    let line = between(&halted.hint, "rows of the new table: postrider ", ", then postrider adopt");
    let args: Vec<&str> = line.split_whitespace().collect();
    postrider_ok(&other, &args);
    postrider_ok(&other, &["adopt"]);
    assert_each_once(&run_until(&other, "streaming", &pipeline.topic, 13).await, 13);
    let halted = run_to_halt(&polls).await;
    halted.assert_says("PR025", &["mode is \"poll\"", "the 3 rows"], &["postrider adopt"]);
    postrider_ok(&polls, &["adopt"]);
    assert_again(&run_until(&polls, "polling", &pipeline.topic, 16).await, 13, 3);
}

/// Mode `auto` and then `poll` while the slot is lost: `auto` would poll rows that the stream has published without a
/// mark. As printed they are marked first, and nothing comes twice.
#[tokio::test]
async fn auto_whose_slot_is_lost_becomes_polling_without_a_repetition_as_printed() {
    let pipeline = Pipeline::shared(Version::Pg17, "autopolllost").await;
    let (auto, polls) = (with_mode(&pipeline, "auto"), with_mode(&pipeline, "poll"));
    insert(&pipeline, "postrider", 1, 20).await;
    let relay = spawn(&pipeline.config);
    pipeline.topic.await_records(20, SOON).await;
    await_published(&polls, 20).await;
    assert_eq!(relay.terminate(SOON).await.code, Some(0));
    run_until(&auto, "streaming", &pipeline.topic, 20).await;
    drop_slot(&pipeline).await;
    insert(&pipeline, "postrider", 21, 3).await;

    let halted = run_to_halt(&polls).await;
    let hints = ["mode = \"auto\" and start: it polls the table", "postrider adopt"];
    halted.assert_says("PR025", &["belongs to mode \"auto\"", "the 23 rows"], &hints);
    assert_check_says(&polls, &halted);
    let sql = between(&halted.hint, "mark what is known to be published: ", " (postrider check");
    let check = findings(&polls, "pipeline_changed");
    assert_eq!(check[0]["fix"][0]["line"].as_str(), Some(&*format!("{sql};")));
    pipeline.sql.batch(sql).await;
    assert_each_once(&run_until(&auto, "streaming", &pipeline.topic, 23).await, 23);
}

/// Mode `poll` and then a stream with logical messages, where `auto` makes no slot: nothing is lost by the way that is
/// printed, and what was polled is streamed again from the slot.
#[tokio::test]
async fn polling_with_logical_messages_becomes_a_stream_as_printed() {
    let pipeline = Pipeline::shared(Version::Pg17, "pollmessages").await;
    let table = "table = \"public.outbox\"\n";
    let messages = |config: &str| {
        assert!(config.contains(table), "{config}");
        config.replace(table, &format!("{table}message_prefix = \"outbox\"\n"))
    };
    let polls = messages(&with_mode(&pipeline, "poll"));
    insert(&pipeline, "postrider", 1, 20).await;
    run_until(&polls, "polling", &pipeline.topic, 20).await;
    insert(&pipeline, "postrider", 21, 5).await;
    for config in [messages(&with_mode(&pipeline, "auto")), messages(&pipeline.config)] {
        let halted = run_to_halt(&config).await;
        let hints = ["(a) to lose nothing", "mode = \"poll\" again, stop the writers"];
        halted.assert_says("PR025", &["belongs to mode \"poll\""], &hints);
        assert_check_says(&config, &halted);
    }
    // As printed.
    run_until(&polls, "polling", &pipeline.topic, 25).await;
    let stream = messages(&pipeline.config);
    postrider_ok(&stream, &["adopt"]);
    assert_again(&run_until(&stream, "streaming", &pipeline.topic, 50).await, 25, 25);
}

/// The cursor row as a version left it that did not know the columns: they are dropped, and `setup` adds them again.
async fn upgrade(pipeline: &Pipeline) {
    let sql = "alter table postrider.cursor drop of_mode, drop of_marks, drop of_sink, drop of_cluster, drop of_topic, \
                 drop of_key, drop of_table, drop of_table_oid, drop of_layout, drop before_slot; \
               delete from postrider.migration where number >= 7";
    pipeline.sql.batch(sql).await;
    postrider_ok(&pipeline.config, &["setup"]);
}

/// A row of before the upgrade belongs to the first configuration that uses it, and the log says so.
#[tokio::test]
async fn row_of_an_older_version_belongs_to_the_first_that_uses_it() {
    let pipeline = Pipeline::shared(Version::Pg17, "oldrow").await;
    insert(&pipeline, "postrider", 1, 20).await;
    let polls = with_mode(&pipeline, "poll");
    let relay = spawn(&pipeline.config);
    pipeline.topic.await_records(20, SOON).await;
    await_published(&polls, 20).await;
    assert_eq!(relay.terminate(SOON).await.code, Some(0));
    insert(&pipeline, "postrider", 21, 5).await;
    upgrade(&pipeline).await;
    // Streamed, and polled from here on: that much is known of it. What is from before the slot is not.
    let halted = run_to_halt(&polls).await;
    halted.assert_says("PR025", &["the 25 rows", "belongs to mode \"wal\""], &["postrider adopt"]);
    assert!(halted.hint.contains("No statement is printed"), "{halted:#?}");
    let relay = spawn(&pipeline.config);
    relay.await_log("position_belongs", SOON).await;
    relay.await_state("streaming", SOON).await;
    assert_each_once(&pipeline.topic.await_records(25, SOON).await, 25);
    let ended = relay.terminate(SOON).await;
    assert_eq!(ended.code, Some(0));
    assert!(!ended.stderr.contains("setting_changed"), "{}", ended.stderr);
    let mode = pipeline.sql.text("select of_mode from postrider.cursor").await;
    assert_eq!(mode.as_deref(), Some("wal"));
    assert!(findings(&pipeline.config, "pipeline_changed").is_empty());
}

/// The same for a pipeline that polls, also where a slot that has streamed before is left behind.
#[tokio::test]
async fn row_of_an_older_version_that_polls_goes_on() {
    let pipeline = Pipeline::shared(Version::Pg17, "oldpoll").await;
    let polls = with_mode(&pipeline, "poll");
    insert(&pipeline, "postrider", 1, 20).await;
    let relay = spawn(&pipeline.config);
    pipeline.topic.await_records(20, SOON).await;
    await_published(&polls, 20).await;
    assert_eq!(relay.terminate(SOON).await.code, Some(0));
    // It has polled since, as the older version did without a question.
    postrider_ok(&polls, &["adopt"]);
    run_until(&polls, "polling", &pipeline.topic, 40).await;
    upgrade(&pipeline).await;
    insert(&pipeline, "postrider", 21, 5).await;
    assert!(findings(&polls, "pipeline_changed").is_empty());
    let records = run_until(&polls, "polling", &pipeline.topic, 45).await;
    assert_again(&records, 25, 20);
}

/// The halt's meaning has these words.
fn assert_means(halted: &Halted, words: &[&str]) {
    for word in words {
        assert!(halted.meaning.contains(word), "no {word:?} in the meaning: {halted:#?}");
    }
}

/// Inserts events with these numbers into a table of layout `postrider`.
fn rows(table: &str, first: usize, last: usize) -> String {
    format!(
        "insert into {table} (aggregate_type, aggregate_id, event_type, payload) \
         select 'order', (i % 3)::text, 'T', to_json(i) from generate_series({first}, {last}) i;"
    )
}

/// The table is renamed, and created again under its name.
const AGAIN: &str = "alter table outbox rename to outbox_old; \
                     create table outbox (like outbox_old including all);";

/// Mode `poll`, and the table is renamed and created again under its name, before a start or while it is polled: the
/// rest of the renamed one is published as the halt prints.
#[tokio::test]
async fn rest_of_a_renamed_table_that_polling_read_is_published_as_printed() {
    for running in [false, true] {
        let pipeline = Pipeline::shared(Version::Pg17, "pollrename").await;
        let polls = with_mode(&pipeline, "poll");
        insert(&pipeline, "postrider", 1, 10).await;
        let relay = spawn(&polls);
        pipeline.topic.await_records(10, SOON).await;
        let (old, new) = (rows("outbox", 11, 15), rows("outbox", 16, 20));
        let again = format!("begin; {old} {AGAIN} {new} commit");
        let halted = if running {
            pipeline.sql.batch(&again).await;
            crate::halted::halt_of(relay).await
        } else {
            assert_eq!(relay.terminate(SOON).await.code, Some(0));
            pipeline.sql.batch(&again).await;
            run_to_halt(&polls).await
        };
        let message = ["is another table", "is now named \"public\".\"outbox_old\""];
        halted.assert_says("PR025", &message, &["postrider adopt", "insert the rows of"]);
        let old = "Of \"public\".\"outbox_old\", up to 5 rows are not known to be published";
        assert_means(&halted, &["Polling publishes all 5 rows", old]);
        let of_a_stream = ["next event", "replay"].iter().any(|word| halted.hint.contains(word));
        assert!(!of_a_stream, "{halted:#?}");
        assert_check_says(&polls, &halted);
        answer("table that polling reads renamed and created again", &pipeline, &halted);
        assert_eq!(pipeline.topic.read_all().await.len(), 10, "nothing was published");

        // As printed.
        let name = between(&halted.hint, "set outbox.table = \"", "\", start");
        let rest = polls.replace("public.outbox\"", &format!("{name}\""));
        run_until(&rest, "polling", &pipeline.topic, 15).await;
        let halted = run_to_halt(&polls).await;
        halted.assert_says("PR025", &["outbox.table"], &["postrider adopt", "set the old values"]);
        assert_means(&halted, &["up to 0 rows", "Polling publishes all 5 rows"]);
        postrider_ok(&polls, &["adopt"]);
        insert(&pipeline, "postrider", 21, 5).await;
        assert_each_once(&run_until(&polls, "polling", &pipeline.topic, 25).await, 25);
    }
}

/// The same by way (c): the rows of both tables are published under the old name.
#[tokio::test]
async fn renamed_table_that_gets_its_name_back_as_printed_has_the_rows_of_both() {
    let pipeline = Pipeline::shared(Version::Pg18, "pollback").await;
    let polls = with_mode(&pipeline, "poll");
    insert(&pipeline, "postrider", 1, 10).await;
    run_until(&polls, "polling", &pipeline.topic, 10).await;
    insert(&pipeline, "postrider", 11, 5).await;
    pipeline.sql.batch(AGAIN).await;
    insert(&pipeline, "postrider", 16, 5).await;
    let halted = run_to_halt(&polls).await;
    let back = "lock both tables, insert the rows of \"public\".\"outbox\" into \"public\".\"outbox_old\" (ids that \
                are numbers begin again in a new table: leave them out, and sort by them), drop \
                \"public\".\"outbox\", and rename \"public\".\"outbox_old\" to \"public\".\"outbox\"";
    halted.assert_says("PR025", &["is another table"], &[back]);
    let sql = "begin; lock table outbox, outbox_old; \
               insert into outbox_old (aggregate_type, aggregate_id, event_type, payload, headers, created_at) \
               select aggregate_type, aggregate_id, event_type, payload, headers, created_at from outbox order by id; \
               drop table outbox; alter table outbox_old rename to outbox; commit";
    pipeline.sql.batch(sql).await;
    assert_each_once(&run_until(&polls, "polling", &pipeline.topic, 20).await, 20);
}

/// The same where the table of before was dropped: what it had unpublished is gone, and the halt says so.
#[tokio::test]
async fn table_that_polling_read_and_that_was_dropped_is_another_one() {
    let pipeline = Pipeline::shared(Version::Pg18, "polldrop").await;
    let polls = with_mode(&pipeline, "poll");
    insert(&pipeline, "postrider", 1, 10).await;
    run_until(&polls, "polling", &pipeline.topic, 10).await;
    let again = "begin; alter table outbox rename to gone; \
                 create table outbox (like gone including all); drop table gone; commit";
    pipeline.sql.batch(again).await;
    insert(&pipeline, "postrider", 11, 3).await;
    let halted = run_to_halt(&polls).await;
    halted.assert_says("PR025", &["was dropped, or this database was restored"], &["backup"]);
    assert_means(&halted, &["Polling publishes all 3 rows", "can't be counted"]);
    assert_check_says(&polls, &halted);
    postrider_ok(&polls, &["adopt"]);
    assert_each_once(&run_until(&polls, "polling", &pipeline.topic, 13).await, 13);
}

/// A stream whose table is renamed and created again: the slot brings what was committed before that, and the halt
/// counts and says what it does not bring.
#[tokio::test]
async fn rest_of_a_renamed_table_that_a_stream_read_is_counted() {
    let pipeline = Pipeline::shared(Version::Pg17, "walrename").await;
    insert(&pipeline, "postrider", 1, 10).await;
    let relay = spawn(&pipeline.config);
    pipeline.topic.await_records(10, SOON).await;
    await_published(&with_mode(&pipeline, "poll"), 10).await;
    assert_eq!(relay.terminate(SOON).await.code, Some(0));
    insert(&pipeline, "postrider", 11, 5).await;
    pipeline.sql.batch(AGAIN).await;
    pipeline.sql("alter publication {publication} add table outbox").await;
    insert(&pipeline, "postrider", 16, 4).await;
    pipeline.sql.batch(&rows("outbox_old", 20, 20)).await;

    let halted = run_to_halt(&pipeline.config).await;
    let message = ["is another table", "is now named \"public\".\"outbox_old\""];
    halted.assert_says("PR025", &message, &["insert them into \"public\".\"outbox\" too"]);
    let old = "Of \"public\".\"outbox_old\", up to 6 rows are not known to be published";
    assert_means(&halted, &[old, "committed before the table was renamed", "up to 4 rows"]);
    assert_check_says(&pipeline.config, &halted);
    assert_eq!(pipeline.topic.read_all().await.len(), 10, "nothing was published");
    postrider_ok(&pipeline.config, &["adopt"]);
    insert(&pipeline, "postrider", 20, 1).await;
    assert_each_once(&run_until(&pipeline.config, "streaming", &pipeline.topic, 20).await, 20);
    // What is known of transactions was known of the rows of the table before.
    let before = "select (pg_visible_in_snapshot(max(xmin::text::xid8), (select before_slot from postrider.cursor))) \
                  ::text from outbox where payload::text = '19'";
    assert_eq!(pipeline.sql.text(before).await.as_deref(), Some("true"));
}

/// The publication has the renamed table, so the new one is refused first. The statement of that halt brings the rows
/// of the new table by the slot, and after it the position is adopted without a replay.
#[tokio::test]
async fn renamed_table_of_a_stream_goes_on_by_the_statement_of_the_publication_without_a_replay() {
    let pipeline = Pipeline::shared(Version::Pg17, "walrenamed").await;
    insert(&pipeline, "postrider", 1, 10).await;
    let relay = spawn(&pipeline.config);
    pipeline.topic.await_records(10, SOON).await;
    await_published(&with_mode(&pipeline, "poll"), 10).await;
    assert_eq!(relay.terminate(SOON).await.code, Some(0));
    insert(&pipeline, "postrider", 11, 5).await;
    pipeline.sql.batch(AGAIN).await;
    insert(&pipeline, "postrider", 16, 4).await;

    let halted = run_to_halt(&pipeline.config).await;
    halted.assert_says("PR008", &["does not publish table"], &["it writes the rows"]);
    let (add, _) = halted.hint.split_once("; then ").expect("a statement");
    pipeline.sql.batch(add).await;
    pipeline.sql.batch(between(&halted.hint, "; then ", " (it writes the rows")).await;
    let halted = run_to_halt(&pipeline.config).await;
    halted.assert_says("PR025", &["is another table"], &["after that statement take (b)"]);
    postrider_ok(&pipeline.config, &["adopt"]);
    assert_each_once(&run_until(&pipeline.config, "streaming", &pipeline.topic, 19).await, 19);
}

/// Another table for a stream: its rows of before the publication had it are counted, whatever their transactions are,
/// and published by the way that is printed.
#[tokio::test]
async fn rows_of_before_the_publication_had_their_table_are_counted_and_replayed_as_printed() {
    let pipeline = Pipeline::shared(Version::Pg17, "newmember").await;
    insert(&pipeline, "postrider", 1, 10).await;
    run_until(&pipeline.config, "streaming", &pipeline.topic, 10).await;
    pipeline.sql.batch("create table outbox2 (like outbox including all)").await;
    pipeline.sql.batch(&rows("outbox2", 11, 13)).await;
    pipeline.sql("alter publication {publication} add table outbox2").await;
    let other = pipeline.config.replace("public.outbox\"", "public.outbox2\"");
    let halted = run_to_halt(&other).await;
    halted.assert_says("PR025", &["outbox.table"], &["postrider replay", "postrider adopt"]);
    assert_means(&halted, &["No stream contains rows", "up to 3 rows", &pipeline.slot()]);
    assert_check_says(&other, &halted);
    let line = between(&halted.hint, "rows of the new table: postrider ", ", then postrider adopt");
    let args: Vec<&str> = line.split_whitespace().collect();
    postrider_ok(&other, &args);
    postrider_ok(&other, &["adopt"]);
    assert_each_once(&run_until(&other, "streaming", &pipeline.topic, 13).await, 13);
}

/// Waits until so many parked events are not resolved.
async fn await_open_parked(pipeline: &Pipeline, count: &str) {
    let open = "select count(*)::text from postrider.parked where state not in ('done', 'skipped')";
    await_that("parked events", SOON, || async {
        let found = pipeline.sql.text(open).await.unwrap_or_default();
        if found == count { Ok(()) } else { Err(found) }
    })
    .await;
}

/// A parked event keeps its topic: the halt counts it, and says that it is resolved first.
#[tokio::test]
async fn parked_events_are_counted_when_the_topic_changes() {
    let pipeline = Pipeline::shared(Version::Pg17, "topicparked").await;
    alter(&pipeline.topic, "max.message.bytes", "3000").await;
    insert(&pipeline, "postrider", 1, 5).await;
    let large = "insert into outbox (aggregate_type, aggregate_id, event_type, payload) \
                 select 'order', '9', 'T', to_json(string_agg(md5(i::text), '')) from generate_series(1, 600) i";
    pipeline.sql.batch(large).await;
    let relay = spawn(&pipeline.config);
    pipeline.topic.await_records(5, SOON).await;
    await_open_parked(&pipeline, "1").await;
    assert_eq!(relay.terminate(SOON).await.code, Some(0));
    let other = Topics::new(&brokers(), "topicparkedto").create("other", 8).await;
    let config = pipeline.config.replace(
        &format!("topic = \"{}\"", pipeline.topic.name),
        &format!("topic = \"{}\"", other.name),
    );
    let halted = run_to_halt(&config).await;
    let hints = [
        "first resolve the parked events",
        "--all publishes them to the old topic",
        "--all gives them up. The replay of (a) publishes skipped events too",
    ];
    halted.assert_says("PR025", &["route.topic"], &hints);
    assert_means(&halted, &["Parked events that are not resolved: 1", "keeps the topic"]);
    assert_check_says(&config, &halted);
    let dry = postrider_ok(&config, &["adopt", "--dry-run"]);
    assert!(dry.contains("Parked events that are not resolved: 1"), "{dry}");

    // As printed.
    let relay = spawn(&pipeline.config);
    relay.await_state("streaming", SOON).await;
    postrider_ok(&pipeline.config, &["parked", "skip", "--all", "--yes"]);
    await_open_parked(&pipeline, "0").await;
    assert_eq!(relay.terminate(SOON).await.code, Some(0));
    let halted = run_to_halt(&config).await;
    halted.assert_says("PR025", &["route.topic"], &["(a) to publish"]);
    assert!(
        !halted.meaning.contains("Parked") && !halted.hint.contains("parked list"),
        "{halted:#?}"
    );
}

/// An event that has expired is published by nobody: it is not counted as published, and its row is not marked so.
#[tokio::test]
async fn rows_that_have_expired_are_neither_counted_nor_marked() {
    let pipeline = Pipeline::in_layout(Version::Pg17, "walpollexpired", "gcx").await;
    insert(&pipeline, "gcx", 1, 15).await;
    let expired = format!(
        "insert into outbox (aggregate_type, aggregate_id, event_type, payload, topic, expires_at) \
         select 'order', ('00000000-0000-0000-0000-00000000000' || i % 3)::uuid, 'T', to_jsonb(i), '{}', \
           now() - interval '1 hour' from generate_series(101, 105) i",
        pipeline.topic.name
    );
    pipeline.sql.batch(&expired).await;
    let polls = with_mode(&pipeline, "poll");
    let relay = spawn(&pipeline.config);
    pipeline.topic.await_records(15, SOON).await;
    await_published(&polls, 15).await;
    assert_eq!(relay.terminate(SOON).await.code, Some(0));
    let halted = run_to_halt(&polls).await;
    halted.assert_says("PR025", &["the 15 rows"], &["postrider adopt"]);
    let check = findings(&polls, "pipeline_changed");
    pipeline.sql.batch(check[0]["fix"][0]["line"].as_str().expect("a statement")).await;
    let states = "select string_agg(concat_ws(' ', status, n), ', ' order by status) from \
                  (select status, count(*) as n from outbox group by 1) s";
    let states = pipeline.sql.text(states).await;
    assert_eq!(states.as_deref(), Some("pending 5, published 15"));
    let said = postrider_ok(&polls, &["adopt"]);
    assert!(said.contains("polling would publish the 0 rows"), "{said}");
    insert(&pipeline, "gcx", 16, 5).await;
    assert_each_once(&run_until(&polls, "polling", &pipeline.topic, 20).await, 20);
}

/// `poll.mark_streamed` was turned on after rows had been published without a mark, and the slot is lost: mode `auto`
/// would publish these rows again. By way (a) nothing comes twice.
#[tokio::test]
async fn marks_that_were_turned_on_late_do_not_hide_rows_that_would_be_polled_again() {
    let pipeline = Pipeline::shared(Version::Pg17, "walautomarks").await;
    insert(&pipeline, "postrider", 1, 20).await;
    let relay = spawn(&pipeline.config);
    pipeline.topic.await_records(20, SOON).await;
    await_published(&with_mode(&pipeline, "poll"), 20).await;
    assert_eq!(relay.terminate(SOON).await.code, Some(0));
    let marks = "poll = { mark_streamed = true }\n";
    let head = format!("[pipelines.{}]\n", pipeline.name);
    let marking = pipeline.config.replacen(&head, &format!("{head}{marks}"), 1);
    let relay = spawn(&marking);
    relay.await_state("streaming", SOON).await;
    assert_eq!(relay.terminate(SOON).await.code, Some(0));
    pipeline.sql.batch(&format!("select pg_drop_replication_slot('{}')", pipeline.slot())).await;

    let auto = with_mode(&pipeline, "auto");
    let halted = run_to_halt(&auto).await;
    halted.assert_says("PR025", &["no stream can be started", "the 20 rows"], &["repair"]);
    assert_means(&halted, &["Of these rows 20 are known to be published"]);
    assert_check_says(&auto, &halted);
    assert_eq!(pipeline.topic.read_all().await.len(), 20, "nothing was published");
    postrider_ok(&marking, &["repair"]);
    run_until(&marking, "streaming", &pipeline.topic, 20).await;
    insert(&pipeline, "postrider", 21, 3).await;
    assert_each_once(&run_until(&auto, "streaming", &pipeline.topic, 23).await, 23);
}

/// Each setting of a pipeline that polls before and after: the halt says what polling does, and not what a stream does.
#[tokio::test]
async fn each_setting_of_a_polling_pipeline_is_refused_in_words_that_are_true_of_polling() {
    let pipeline = Pipeline::shared(Version::Pg18, "pollsettings").await;
    let polls = with_mode(&pipeline, "poll");
    insert(&pipeline, "postrider", 1, 10).await;
    run_until(&polls, "polling", &pipeline.topic, 10).await;
    insert(&pipeline, "postrider", 11, 4).await;
    let more = "alter table outbox add published_at timestamptz; \
                create table outbox2 (like outbox including all); \
                insert into outbox2 (aggregate_type, aggregate_id, event_type, payload) \
                select 'order', '1', 'T', to_json(i) from generate_series(15, 17) i";
    pipeline.sql.batch(more).await;
    let topic = format!("topic = \"{}\"", pipeline.topic.name);
    let cases: [(&str, &str, &[&str], &[&str]); 3] = [
        (
            &topic,
            "topic = \"elsewhere\"",
            &["Polling publishes there the 4 rows that have no mark"],
            &["begin there with the rows that have no mark", "has published are deleted"],
        ),
        (
            "layout = \"postrider\"",
            "layout = \"adr30\"\ncolumns = { headers = \"headers\" }",
            &["Polling goes by the marks of layout \"adr30\"", "the 4 rows"],
            &["layout \"postrider\" has marked as published", "all rows that have no mark"],
        ),
        (
            "table = \"public.outbox\"",
            "table = \"public.outbox2\"",
            &["Polling publishes all 3 rows", "Of \"public\".\"outbox\", up to 4 rows"],
            &[
                "let nothing write to \"public\".\"outbox\" any more",
                "outbox.table = \"public.outbox\"",
                "all rows of \"public\".\"outbox2\" that have no",
            ],
        ),
    ];
    for (from, to, means, hints) in cases {
        let config = polls.replace(from, to);
        assert_ne!(config, polls, "{from}");
        let halted = run_to_halt(&config).await;
        halted.assert_says("PR025", &["belongs to other settings"], hints);
        assert_means(&halted, means);
        let said = format!("{} {}", halted.meaning, halted.hint);
        for word in ["next event", "since the position", "stream brings"] {
            assert!(!said.contains(word), "{word:?} of polling: {halted:#?}");
        }
        assert_check_says(&config, &halted);
        if from.starts_with("table") {
            answer("another table for a pipeline that polls", &pipeline, &halted);
        }
    }
    assert_eq!(pipeline.topic.read_all().await.len(), 10, "nothing was published");
    // As printed: the rest of the old table, and then the new one.
    run_until(&polls, "polling", &pipeline.topic, 14).await;
    let other = polls.replace("public.outbox\"", "public.outbox2\"");
    let halted = run_to_halt(&other).await;
    assert_means(&halted, &["up to 0 rows"]);
    postrider_ok(&other, &["adopt"]);
    assert_each_once(&run_until(&other, "polling", &pipeline.topic, 17).await, 17);
}

/// Rows that a person has left out of the polling before a stream are not known to be published.
#[tokio::test]
async fn rows_that_were_left_out_before_a_new_slot_are_not_known_to_be_published() {
    // A slot waits for every transaction of its server, also for those of other tests.
    let server = PrivatePostgres::start(Version::Pg17, "").await;
    let broker = PrivateKafka::start("").await;
    let pipeline = Pipeline::on(&server.url(), &broker.brokers(), "leftout").await;
    let (polls, auto) = (with_mode(&pipeline, "poll"), with_mode(&pipeline, "auto"));
    insert(&pipeline, "postrider", 1, 10).await;
    run_until(&auto, "streaming", &pipeline.topic, 10).await;
    pipeline.sql.batch("delete from outbox").await;
    drop_slot(&pipeline).await;
    insert(&pipeline, "postrider", 11, 2).await;
    broker.freeze();
    let relay = spawn(&auto);
    relay.await_log("the slot exists", SOON).await;
    drop(relay.kill().await);
    broker.thaw();
    let halted = run_to_halt(&pipeline.config).await;
    halted.assert_says("PR002", &["while the table was polled"], &["mode = \"auto\""]);
    // As printed: those rows are left out.
    let (_, sql) = halted.hint.split_once("to leave those rows out: ").expect("a statement");
    pipeline.sql.batch(sql).await;
    let relay = spawn(&pipeline.config);
    relay.await_state("streaming", SOON).await;
    insert(&pipeline, "postrider", 13, 5).await;
    pipeline.topic.await_records(15, SOON).await;
    await_published(&polls, 5).await;
    assert_eq!(relay.terminate(SOON).await.code, Some(0));
    let halted = run_to_halt(&polls).await;
    halted.assert_says("PR025", &["the 7 rows"], &["The statement leaves out the 2 rows"]);
    assert_means(&halted, &["5 are known to be published", "2 may be from before the slot"]);
    let sql = between(&halted.hint, "known to be published: ", " (postrider check");
    pipeline.sql.batch(sql).await;
    assert_eq!(pipeline.sql.text("select count(*)::text from outbox").await.as_deref(), Some("2"));
}

/// Mode `wal` and then `auto` while no stream can be started, for each reason for which `auto` polls: `check` and
/// `adopt` say before what `run` says.
#[tokio::test]
async fn check_and_adopt_foresee_each_reason_for_which_auto_polls_at_once() {
    for reason in ["physical", "other database", "role"] {
        let pipeline = Pipeline::shared(Version::Pg17, "foreseen").await;
        insert(&pipeline, "postrider", 1, 20).await;
        run_until(&pipeline.config, "streaming", &pipeline.topic, 20).await;
        let (slot, mut auto) = (pipeline.slot(), with_mode(&pipeline, "auto"));
        let other = Database::create(Version::Pg17, "foreseenother").await;
        let sql = other.connect().await;
        if reason == "role" {
            let role = format!(
                "create role {0} login; grant pg_read_all_data, pg_write_all_data to {0}",
                pipeline.name
            );
            pipeline.sql.batch(&role).await;
            auto = auto.replace("user=postgres", &format!("user={}", pipeline.name));
        } else {
            pipeline.sql.batch(&format!("select pg_drop_replication_slot('{slot}')")).await;
            let make = if reason == "physical" {
                format!("select pg_create_physical_replication_slot('{slot}')")
            } else {
                format!("select pg_create_logical_replication_slot('{slot}', 'pgoutput')")
            };
            sql.batch(&make).await;
        }
        let halted = run_to_halt(&auto).await;
        let says = ["no stream can be started", "the 20 rows"];
        halted.assert_says("PR025", &says, &["postrider check names", "postrider adopt"]);
        assert_check_says(&auto, &halted);
        let dry = postrider_ok(&auto, &["adopt", "--dry-run"]);
        assert!(dry.contains("the 20 rows"), "{reason}: {dry}");
        assert_eq!(pipeline.topic.read_all().await.len(), 20, "{reason}: nothing was published");
        if reason == "role" {
            let role = format!("drop owned by {0}; drop role {0}", pipeline.name);
            pipeline.sql.batch(&role).await;
        } else {
            sql.batch(&format!("select pg_drop_replication_slot('{slot}')")).await;
        }
    }
}
