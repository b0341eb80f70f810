//! The database goes in the middle of a replay and comes back: it goes on by itself.

use super::{Going, SOON, another_topic, insert_many, numbers};
use crate::await_that::await_that;
use crate::pipeline::{Pipeline, show};
use crate::private::PrivatePostgres;
use crate::relay::postrider_ok;
use crate::server::{Version, brokers};
use crate::topic::{ReadRecord, Topic};
use std::collections::BTreeSet;
use std::time::Duration;

const EVENTS: usize = 4_000;

async fn holds(topic: &Topic, count: usize) {
    await_that(&format!("{count} replayed"), SOON, || async {
        let held = topic.read_all().await.len();
        if held >= count { Ok(()) } else { Err(held) }
    })
    .await;
}

async fn told(going: &Going, times: usize) {
    await_that("a word of it", SOON, || {
        let said = going.text("stderr");
        let well = said.matches("continuing").count() >= times;
        std::future::ready(if well { Ok(()) } else { Err(said) })
    })
    .await;
}

/// Ends every session of the replay.
async fn terminate(pipeline: &Pipeline) {
    let sql = "select count(pg_terminate_backend(pid))::text from pg_stat_activity \
               where application_name = 'postrider replay' and datname = current_database()";
    assert_ne!(pipeline.sql.text(sql).await.as_deref(), Some("0"), "nothing to end");
}

/// Ids rise in every partition, the first time they come; how many came twice.
fn twice(records: &[ReadRecord]) -> usize {
    let id = |record: &ReadRecord| -> u64 {
        record.header("id").expect("an id").parse().expect("a number")
    };
    let mut seen = BTreeSet::new();
    let mut highest = std::collections::BTreeMap::new();
    for record in records {
        let top = highest.entry(record.partition).or_insert(0);
        assert!(!seen.insert(id(record)) || id(record) > *top, "{} after {top}", id(record));
        *top = id(record).max(*top);
    }
    records.len() - seen.len()
}

/// From the WAL nothing comes twice: what is in flight when the database goes stays in flight, and changes that the
/// stream repeats are recognised by their positions. Rows of the table are not.
async fn ends_well(going: Going, again: &Topic, what: &str, twice_max: usize) {
    let (code, said) = going.end(Duration::from_mins(2)).await;
    assert_eq!(code, Some(0), "{said}");
    let records = again.read_all().await;
    let mut all = numbers(&records);
    all.dedup();
    assert_eq!(all.len(), EVENTS, "{said}");
    let twice = twice(&records);
    assert!(twice <= twice_max, "{twice} came twice\n{said}");
    show(&format!("{what}: {EVENTS} events replayed, in order, {twice} twice"));
}

#[tokio::test]
async fn a_replay_whose_sessions_are_ended_goes_on_by_itself() {
    for source in ["wal", "table"] {
        let pipeline = Pipeline::shared(Version::Pg18, "replay_ended").await;
        let again = another_topic(&pipeline).await;
        postrider_ok(&pipeline.config, &["bookmark", "create", "b"]);
        insert_many(&pipeline.sql, 8, EVENTS / 8).await;
        let args = ["--bookmark", "b", "--source", source, "--to", &again.name, "--rate", "800"];
        let going = Going::start(&pipeline, &args);
        for times in 1..=2 {
            holds(&again, times * EVENTS / 5).await;
            terminate(&pipeline).await;
            told(&going, times).await;
        }
        let twice_max = if source == "wal" { 0 } else { 500 };
        ends_well(going, &again, &format!("sessions ended twice, source {source}"), twice_max)
            .await;
    }
}

#[tokio::test]
async fn a_replay_waits_for_a_server_that_restarts() {
    let mut server = PrivatePostgres::start(Version::Pg17, "").await;
    let pipeline = Pipeline::on(&server.url(), &brokers(), "replay_restart").await;
    let again = another_topic(&pipeline).await;
    postrider_ok(&pipeline.config, &["bookmark", "create", "b"]);
    insert_many(&pipeline.sql, 8, EVENTS / 8).await;
    let args = ["--bookmark", "b", "--to", &again.name, "--rate", "800"];
    let going = Going::start(&pipeline, &args);
    holds(&again, EVENTS / 4).await;
    let took = server.stop_fast(SOON).await;
    assert!(took < Duration::from_secs(10), "the shutdown took {took:?}");
    await_that("a word of it", SOON, || {
        let said = going.text("stderr");
        std::future::ready(if said.contains("waiting: ") { Ok(()) } else { Err(said) })
    })
    .await;
    server.restart().await;
    told(&going, 1).await;
    ends_well(going, &again, "a fast shutdown and a start", 0).await;
}

/// What waiting can't fix ends it, with the reason.
#[tokio::test]
async fn a_replay_whose_bookmark_is_gone_meanwhile_ends_with_the_reason() {
    let pipeline = Pipeline::shared(Version::Pg17, "replay_gone").await;
    let again = another_topic(&pipeline).await;
    postrider_ok(&pipeline.config, &["bookmark", "create", "b"]);
    insert_many(&pipeline.sql, 8, EVENTS / 8).await;
    let going = Going::start(&pipeline, &["--bookmark", "b", "--to", &again.name, "--rate", "500"]);
    holds(&again, 200).await;
    let drop_it = "do $$ declare s text; begin \
        select slot into s from postrider.bookmark where name = 'b'; \
        for i in 1..500 loop \
          perform pg_terminate_backend(active_pid) from pg_replication_slots where slot_name = s and active; \
          begin perform pg_drop_replication_slot(s); return; \
          exception when object_in_use then perform pg_sleep(0.01); end; \
        end loop; raise 'the slot stays active'; end $$";
    pipeline.sql.batch(drop_it).await;
    terminate(&pipeline).await;
    let (code, said) = going.end(SOON).await;
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("bookmark \"b\" can't be replayed from"), "{said}");
}
