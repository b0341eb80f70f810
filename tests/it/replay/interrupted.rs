//! Killed, stopped, resumed, and without a broker for a while.

use super::{Going, SOON, another_topic, insert_many, numbers, position, replay};
use crate::answers::{Answer, answer};
use crate::await_that::await_that;
use crate::pipeline::{Pipeline, show};
use crate::private::{PrivateKafka, Signal};
use crate::relay::{postrider, postrider_ok};
use crate::server::Version;
use crate::sink_caller::alter;
use crate::topic::{ReadRecord, Topic, Topics, create_topic};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// In every partition positions rise, but for repeated suffixes; how many came twice.
fn repeated(records: &[ReadRecord]) -> usize {
    let mut highest: BTreeMap<i32, (u64, u64)> = BTreeMap::new();
    let mut seen = BTreeSet::new();
    let mut twice = 0;
    for record in records {
        let at = position(record);
        let known = !seen.insert(at);
        twice += usize::from(known);
        let top = highest.entry(record.partition).or_default();
        assert!(known || at > *top, "{at:?} after {top:?} for the first time");
        *top = at.max(*top);
    }
    twice
}

async fn holds(topic: &Topic, count: usize) -> Result<(), usize> {
    let held = topic.read_all().await.len();
    if held >= count { Ok(()) } else { Err(held) }
}

#[tokio::test]
async fn a_killed_replay_goes_on_where_it_was() {
    const EVENTS: usize = 6_000;
    for version in Version::ALL {
        let pipeline = Pipeline::shared(version, "replay_kill").await;
        let again = another_topic(&pipeline).await;
        postrider_ok(&pipeline.config, &["bookmark", "create", "b"]);
        insert_many(&pipeline.sql, EVENTS / 500, 500).await;
        let args = ["--bookmark", "b", "--to", &again.name, "--rate", "1000", "--name", "fix"];
        let going = Going::start(&pipeline, &args);
        await_that("a part of it", SOON, || holds(&again, 2_500)).await;
        if version == Version::Pg17 {
            let other = postrider(&pipeline.config, &["replay", "--bookmark", "b", "--dry-run"]);
            answer("two replays at once", &pipeline, &other);
        }
        going.signal(Signal::Kill);
        going.end(SOON).await;
        // What is committed after the replay began is not of it.
        insert_many(&pipeline.sql, 1, 50).await;
        let (code, said) = Going::start(&pipeline, &["--resume", "--rate", "0"]).end(SOON).await;
        assert_eq!(code, Some(0), "{said}");
        let records = again.read_all().await;
        let twice = repeated(&records);
        let mut all = numbers(&records);
        all.dedup();
        assert_eq!(all.len(), EVENTS, "each at least once\n{said}");
        show(&format!(
            "{version:?}: killed at 1000/s and resumed: {twice} of {EVENTS} events came twice"
        ));
        // Two seconds of acknowledgements at most, on a machine that is late.
        assert!(twice <= 2_500, "{twice} came twice");
        assert!(records.iter().all(|record| record.header("replay") == Some("fix")));
        if version == Version::Pg17 {
            let told = "published: each at least once, in order but for a suffix that comes again";
            answer("replay killed with kill -9, and resumed", &pipeline, Answer::published(told));
        }
    }
}

#[tokio::test]
async fn a_stopped_replay_repeats_nothing_when_it_goes_on() {
    const EVENTS: usize = 3_000;
    let pipeline = Pipeline::shared(Version::Pg18, "replay_stop").await;
    let again = another_topic(&pipeline).await;
    postrider_ok(&pipeline.config, &["bookmark", "create", "b"]);
    insert_many(&pipeline.sql, 2, EVENTS / 2).await;
    let args = ["--bookmark", "b", "--to", &again.name, "--rate", "1000", "--name", "calm"];
    let going = Going::start(&pipeline, &args);
    await_that("a part of it", SOON, || holds(&again, 1_000)).await;
    going.signal(Signal::Int);
    let (code, said) = going.end(SOON).await;
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("resume: postrider replay --resume calm"), "{said}");
    let (code, last) = replay(&pipeline, &["--resume", "calm"]);
    assert_eq!((code, &last["published"]), (Some(0), &EVENTS.into()), "{last}");
    let records = again.read_all().await;
    assert_eq!((repeated(&records), records.len()), (0, EVENTS));
    let over = postrider(&pipeline.config, &["replay", "--resume", "calm"]);
    assert_eq!(over.status.code(), Some(1));
    answer("a replay that is at its end, resumed", &pipeline, &over);
}

#[tokio::test]
async fn a_replay_waits_for_a_broker_that_is_away() {
    const EVENTS: usize = 4_000;
    let mut broker = PrivateKafka::start("").await;
    let pipeline = Pipeline::to_broker(Version::Pg15, &broker.brokers(), "replay_broker").await;
    create_topic(&broker.brokers(), "again", 2, &[]).await;
    let again = Topic { brokers: broker.brokers(), name: "again".to_owned() };
    postrider_ok(&pipeline.config, &["bookmark", "create", "b"]);
    insert_many(&pipeline.sql, 4, EVENTS / 4).await;
    let going = Going::start(&pipeline, &["--bookmark", "b", "--to", "again", "--rate", "1000"]);
    await_that("a part of it", SOON, || holds(&again, 500)).await;
    broker.kill().await;
    await_that("a word of it", SOON, || {
        let said = going.text("stderr");
        std::future::ready(if said.contains("waiting: ") { Ok(()) } else { Err(said) })
    })
    .await;
    broker.restart().await;
    let (code, said) = going.end(Duration::from_mins(2)).await;
    assert_eq!(code, Some(0), "{said}");
    let records = again.read_all().await;
    let mut all = numbers(&records);
    all.dedup();
    assert_eq!(all.len(), EVENTS, "{said}");
    repeated(&records);
}

/// The topic takes less than it did when the replay began: the batch that has the one large event is refused whole.
#[tokio::test]
async fn only_the_culprit_of_a_refused_batch_is_left_out() {
    const EVENTS: usize = 3_500;
    let pipeline = Pipeline::shared(Version::Pg17, "replay_culprit").await;
    let again = Topics::new(&pipeline.topic.brokers, "culprit").create("again", 1).await;
    postrider_ok(&pipeline.config, &["bookmark", "create", "b"]);
    insert_many(&pipeline.sql, EVENTS / 500, 500).await;
    // Digests: a batch may be compressed, and the limit is on what is left.
    let large = "insert into public.outbox (aggregate_type, aggregate_id, event_type, payload) \
                 select 'order', '1', 'Written', to_json(string_agg(md5(random()::text), '')) \
                 from generate_series(1, 600)";
    pipeline.sql.batch(large).await;
    insert_many(&pipeline.sql, 1, 500).await;
    let properties = format!("[pipelines.{}.sink.properties]\n\"linger.ms\" = 50\n", pipeline.name);
    let slow = format!("{}{properties}", pipeline.config);
    let args = ["--bookmark", "b", "--to", &again.name, "--rate", "1000", "--json"];
    let going = Going::start_with(&slow, &args);
    await_that("a part of it", SOON, || holds(&again, 200)).await;
    alter(&again, "max.message.bytes", "9000").await;
    let (code, said) = going.end(SOON).await;
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("\"refused\": 1,"), "{said}");
    let records = again.read_all().await;
    repeated(&records);
    let mut all = numbers(&records);
    all.dedup();
    assert_eq!(all.len(), EVENTS + 500, "all but the culprit\n{said}");
    show(&format!(
        "a refused batch: 1 of {} left out, {} came twice",
        EVENTS + 501,
        records.len() - all.len()
    ));
}

/// Nobody but the broker can tell that an event is too old for the topic, and it refuses the whole batch. The events of
/// the batch are sent one at a time then, and the one that is refused alone is left out.
#[tokio::test]
async fn event_that_only_the_broker_refuses_is_found_and_left_out() {
    const EVENTS: usize = 100;
    let pipeline = Pipeline::shared(Version::Pg17, "replay_old").await;
    let again = Topics::new(&pipeline.topic.brokers, "old").create("again", 1).await;
    alter(&again, "message.timestamp.before.max.ms", "3600000").await;
    postrider_ok(&pipeline.config, &["bookmark", "create", "b"]);
    let insert = format!(
        "insert into public.outbox (aggregate_type, aggregate_id, event_type, payload, created_at) \
         select 'order', '1', 'Written', to_json(i), \
           case i when 50 then now() - interval '1 day' else now() end \
         from generate_series(1, {EVENTS}) i"
    );
    pipeline.sql.batch(&insert).await;
    let args = ["--bookmark", "b", "--to", &again.name, "--json"];
    let (code, said) = Going::start_with(&pipeline.config, &args).end(SOON).await;
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("\"refused\": 1,"), "{said}");
    let records = again.read_all().await;
    repeated(&records);
    let mut all = numbers(&records);
    all.dedup();
    assert_eq!(all.len(), EVENTS - 1, "all but the culprit\n{said}");
}

/// An event behind the refused batch was left out already, and is offered again when the batch is.
#[tokio::test]
async fn event_left_out_behind_a_refused_batch_is_counted_once() {
    const EVENTS: usize = 100;
    let pipeline = Pipeline::shared(Version::Pg17, "replay_twice").await;
    let again = Topics::new(&pipeline.topic.brokers, "twice").create("again", 1).await;
    alter(&again, "message.timestamp.before.max.ms", "3600000").await;
    postrider_ok(&pipeline.config, &["bookmark", "create", "b"]);
    let insert = format!(
        "insert into public.outbox (aggregate_type, aggregate_id, event_type, payload, created_at) \
         select 'order', '1', 'Written', to_json(case i when 60 then repeat('x', 100000) else i::text end), \
           case i when 50 then now() - interval '1 day' else now() end \
         from generate_series(1, {EVENTS}) i"
    );
    pipeline.sql.batch(&insert).await;
    let small = format!("[pipelines.{}.payload]\nsize_max = \"64KiB\"\n", pipeline.name);
    let small = format!("{}{small}", pipeline.config);
    let args = ["--bookmark", "b", "--to", &again.name, "--rate", "0", "--json"];
    let (code, said) = Going::start_with(&small, &args).end(SOON).await;
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("\"refused\": 2,"), "{said}");
    let records = again.read_all().await;
    repeated(&records);
    let mut all = numbers(&records);
    all.dedup();
    assert_eq!(all.len(), EVENTS - 2, "all but the two\n{said}");
}
