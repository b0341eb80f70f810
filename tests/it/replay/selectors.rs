//! Which events: by position, time, id and aggregate, from the log and from the table.

use super::{
    SOON, another_topic, assert_in_order, ids, insert_many, numbers, position, replay, same, typed,
};
use crate::answers::{Answer, answer};
use crate::pipeline::Pipeline;
use crate::relay::{postrider, postrider_ok};
use crate::server::Version;
use serde_json::Value;
use std::collections::BTreeSet;

/// A live pipeline with a bookmark, 100 events before it and 100 after it, each half published.
async fn halves(version: Version, test: &str) -> Pipeline {
    let pipeline = Pipeline::shared(version, test).await;
    let relay = pipeline.run();
    insert_many(&pipeline.sql, 10, 10).await;
    pipeline.topic.await_records(100, SOON).await;
    postrider_ok(&pipeline.config, &["bookmark", "create", "half"]);
    insert_many(&pipeline.sql, 10, 10).await;
    pipeline.topic.await_records(200, SOON).await;
    assert_eq!(relay.terminate(SOON).await.code, Some(0));
    pipeline
}

#[tokio::test]
async fn a_bookmark_serves_any_number_of_replays_and_a_dry_run_only_counts() {
    for version in Version::ALL {
        let pipeline = halves(version, "replay_twice").await;
        let again = another_topic(&pipeline).await;
        let (code, last) = replay(&pipeline, &["--bookmark", "half", "--dry-run"]);
        assert_eq!(code, Some(0), "{last}");
        assert_eq!(
            (&last["events"], &last["topics"][&pipeline.topic.name]),
            (&100.into(), &100.into())
        );
        assert!(last["bytes"].as_u64() > Some(1000), "{last}");
        assert_eq!(pipeline.topic.read_all().await.len(), 200, "nothing is published");

        for round in 1..=2 {
            let (code, last) = replay(&pipeline, &["--bookmark", "half", "--to", &again.name]);
            assert_eq!((code, &last["published"]), (Some(0), &100.into()), "{last}");
            assert_eq!(again.read_all().await.len(), 100 * round);
        }
        // To each event's own topic.
        let (code, last) = replay(&pipeline, &["--bookmark", "half"]);
        assert_eq!(code, Some(0), "{last}");
        let records = pipeline.topic.read_all().await;
        let (live, again): (Vec<_>, Vec<_>) =
            records.into_iter().partition(|record| record.header("replay").is_none());
        assert_eq!((live.len(), again.len()), (200, 100));
        assert_in_order(&again);
        assert_eq!(numbers(&again), (101..=200).collect::<Vec<u64>>());
        let live: BTreeSet<_> = live.iter().map(same).collect();
        assert!(again.iter().all(|record| live.contains(&same(record))));
        let first = again.iter().min_by_key(|r| position(r)).unwrap();
        assert_eq!(last["first"].as_str(), Some(typed(first).as_str()));
    }
}

#[tokio::test]
async fn from_an_lsn_or_one_event_up_to_another_lsn() {
    let pipeline = halves(Version::Pg17, "replay_lsn").await;
    let again = another_topic(&pipeline).await;
    let mut live = pipeline.topic.read_all().await;
    live.sort_by_key(position);
    let at = |index: usize| typed(&live[index]);
    let header = |index: usize| live[index].header("position").unwrap();
    let lsn = |index: usize| live[index].commit_lsn();
    // Transactions have ten events: from the fourth of one, before the one two behind it.
    let (code, last) =
        replay(&pipeline, &["--lsn", header(133), "--until", &lsn(150), "--to", &again.name]);
    assert_eq!((code, &last["published"]), (Some(0), &17.into()), "{last}");
    let records = again.read_all().await;
    assert_eq!(numbers(&records), (134..=150).collect::<Vec<u64>>());
    assert_eq!(last["first"].as_str(), Some(at(133).as_str()));
    assert_eq!(last["last"].as_str(), Some(at(149).as_str()));
    let (_, last) = replay(&pipeline, &["--lsn", &lsn(130), "--dry-run"]);
    assert_eq!((&last["events"], &last["straddling"]), (&70.into(), &0.into()), "{last}");
}

#[tokio::test]
async fn an_lsn_inside_a_transaction_means_the_whole_of_it_and_says_so() {
    let pipeline = Pipeline::shared(Version::Pg18, "replay_mid").await;
    postrider_ok(&pipeline.config, &["bookmark", "create", "b"]);
    let other = crate::server::Client::connect(&pipeline.url).await.expect("a session");
    let insert = "insert into public.outbox (aggregate_type, aggregate_id, event_type, payload) \
                  values ('order', '1', 'Written', '1')";
    other.batch(&format!("begin; {insert}")).await;
    insert_many(&pipeline.sql, 1, 5).await;
    let middle = pipeline.wal_end().await;
    other.batch(&format!("{insert}; commit")).await;
    let (code, last) = replay(&pipeline, &["--lsn", &middle, "--dry-run"]);
    assert_eq!(
        (code, &last["events"], &last["straddling"]),
        (Some(0), &2.into(), &1.into()),
        "{last}"
    );
    let output = postrider(&pipeline.config, &["replay", "--lsn", &middle, "--dry-run"]);
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(said.contains("a transaction is replayed as a whole"), "{said}");
}

#[tokio::test]
async fn since_a_time_goes_by_the_commit_where_a_bookmark_reaches_back() {
    let pipeline = Pipeline::shared(Version::Pg15, "replay_time").await;
    let again = another_topic(&pipeline).await;
    let time = async || -> String {
        pipeline.sql.batch("select pg_sleep(0.01)").await;
        let time = pipeline.sql.text("select clock_timestamp()::text").await.expect("a time");
        pipeline.sql.batch("select pg_sleep(0.01)").await;
        time
    };
    let early = time().await;
    postrider_ok(&pipeline.config, &["bookmark", "create", "b"]);
    insert_many(&pipeline.sql, 2, 10).await;
    let since = time().await;
    insert_many(&pipeline.sql, 2, 10).await;
    let until = time().await;
    insert_many(&pipeline.sql, 2, 10).await;
    let to = ["--to", &again.name];
    let (code, last) =
        replay(&pipeline, &[&["--since", &since, "--until", &until], &to[..]].concat());
    assert_eq!((code, &last["source"]), (Some(0), &"wal".into()), "{last}");
    assert_eq!(numbers(&again.read_all().await), (21..=40).collect::<Vec<u64>>());
    // Before the bookmark there is the table alone.
    let (code, last) = replay(&pipeline, &["--since", &early, "--dry-run"]);
    assert_eq!((code, &last["source"], &last["events"]), (Some(0), &"table".into(), &60.into()));
    let (_, last) = replay(&pipeline, &["--since", "1h", "--until", &since, "--dry-run"]);
    assert_eq!((&last["source"], &last["events"]), (&"table".into(), &20.into()), "{last}");
}

#[tokio::test]
async fn ids_and_an_aggregate_are_found_in_the_log_and_the_rest_is_listed() {
    let pipeline = halves(Version::Pg18, "replay_ids").await;
    let again = another_topic(&pipeline).await;
    let wanted = ["--id", "150", "--id", "120", "--id", "7", "--id", "no-such"];
    let (code, last) = replay(&pipeline, &[&wanted[..], &["--to", &again.name]].concat());
    assert_eq!(code, Some(1), "some are missing: {last}");
    assert_eq!((&last["source"], &last["published"]), (&"wal".into(), &2.into()));
    assert_eq!(last["not_found"], Value::from(vec!["7", "no-such"]), "7 is before the bookmark");
    assert_eq!(numbers(&again.read_all().await), [120, 150]);
    let output = postrider(&pipeline.config, &[&["replay", "--dry-run"], &wanted[..]].concat());
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let line = said.lines().find(|line| line.contains("not found")).expect("the missing");
    let (says, mends) = line.trim().split_once("; ").expect("what else there is");
    let told = Answer::said(says, "what was found is published", mends).then("1");
    answer("ids that are not found", &pipeline, told);
    // The table has it.
    let (code, last) = replay(&pipeline, &["--id", "7", "--source", "table", "--dry-run"]);
    assert_eq!((code, &last["events"]), (Some(0), &1.into()), "{last}");

    let (code, last) =
        replay(&pipeline, &["--bookmark", "half", "--aggregate", "order:3", "--to", &again.name]);
    assert_eq!((code, &last["published"]), (Some(0), &10.into()), "{last}");
    let of_three = again.read_all().await;
    let of_three: Vec<_> = of_three.into_iter().filter(|r| r.key_text() == Some("3")).collect();
    assert_in_order(&of_three[..]);
}

#[tokio::test]
async fn the_table_is_read_in_the_order_of_its_key_without_positions() {
    for layout in ["postrider", "adr30"] {
        let pipeline = Pipeline::in_layout(Version::Pg17, "replay_table", layout).await;
        let again = another_topic(&pipeline).await;
        let insert = match layout {
            "postrider" => {
                "insert into public.outbox (aggregate_type, aggregate_id, event_type, payload) \
                            select 'order', (i % 3)::text, 'Written', to_json(i) from generate_series(1, 3000) i"
            }
            _ => {
                "insert into public.outbox (id, aggregate_type, aggregate_id, event_type, payload, created_at) \
                  select gen_random_uuid(), 'order', ('00000000-0000-0000-0000-00000000000' || (i % 3))::uuid, 'Written', \
                  to_jsonb(i), now() + i * interval '1 ms' from generate_series(1, 3000) i"
            }
        };
        pipeline.sql.batch(insert).await;
        let (code, last) = replay(
            &pipeline,
            &["--since", "1d", "--to", &again.name, "--rate", "0", "--name", "t"],
        );
        assert_eq!((code, &last["source"]), (Some(0), &"table".into()), "{layout}: {last}");
        let records = again.read_all().await;
        assert_eq!(records.len(), 3000);
        for record in &records {
            assert_eq!((record.header("position"), record.header("replay")), (None, Some("t")));
            assert_eq!(record.header("history").map(str::len), Some(8));
        }
        for pair in records.windows(2).filter(|pair| pair[0].key == pair[1].key) {
            let number = |at: usize| pair[at].value_text().unwrap().parse::<u64>().unwrap();
            assert!(number(0) < number(1), "{layout}");
        }
        assert_eq!(ids(&records).into_iter().collect::<BTreeSet<_>>().len(), 3000);
    }
}
