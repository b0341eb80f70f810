//! What can't be replayed: said exactly, with what is possible instead, and nothing is published.

use super::{SOON, another_topic, insert_many, replay};
use crate::answers::answer;
use crate::await_that::await_that;
use crate::bookmarks::listed;
use crate::pipeline::Pipeline;
use crate::private::PrivatePostgres;
use crate::relay::{postrider, postrider_ok};
use crate::server::{Version, brokers};
use crate::topic::Topics;
use std::process::Output;

/// Fails with this exit code.
fn fails(pipeline: &Pipeline, args: &[&str], code: i32) -> Output {
    let output = postrider(&pipeline.config, &[&["replay"], args].concat());
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "replay {args:?}: {said}");
    output
}

#[tokio::test]
async fn what_is_asked_for_in_vain_is_refused_with_what_is_possible() {
    let pipeline = Pipeline::shared(Version::Pg18, "replay_no").await;
    let early = pipeline.wal_end().await;
    insert_many(&pipeline.sql, 2, 10).await;
    let lsn = fails(&pipeline, &["--lsn", &early], 1);
    answer("an LSN, and no bookmark", &pipeline, &lsn);
    let relay = pipeline.run();
    pipeline.topic.await_records(20, SOON).await;
    assert_eq!(relay.terminate(SOON).await.code, Some(0));
    postrider_ok(&pipeline.config, &["bookmark", "create", "b"]);
    insert_many(&pipeline.sql, 2, 10).await;

    let cases: [(&str, &[&str], i32); 9] = [
        ("an LSN that is older than any WAL kept", &["--lsn", "0/100"], 1),
        ("an LSN in the future", &["--lsn", "FFFF/0"], 1),
        ("an LSN of another timeline", &["--lsn", "0/100", "--timeline", "7"], 1),
        ("a bookmark that there is not, replayed", &["--bookmark", "c"], 1),
        ("--until before --since", &["--since", "1h", "--until", "2h"], 2),
        ("--until before the bookmark", &["--bookmark", "b", "--until", "0/100"], 2),
        ("a time that is none", &["--since", "yesterdayish"], 2),
        ("--source wal, and no bookmark reaches back", &["--since", "1d", "--source", "wal"], 1),
        ("nothing to resume", &["--resume"], 1),
    ];
    for (input, args, code) in cases {
        answer(input, &pipeline, &fails(&pipeline, args, code));
    }
    let missing = Topics::new(&brokers(), "never").prefix + "made";
    let topic = fails(&pipeline, &["--bookmark", "b", "--to", &missing], 1);
    let said = String::from_utf8_lossy(&topic.stderr);
    assert!(said.contains("accepts no records") && said.contains(&missing), "{said}");
    answer("a topic that does not exist, replayed to", &pipeline, &topic);
    assert_eq!(pipeline.topic.read_all().await.len(), 20, "nothing was published again");
}

#[tokio::test]
async fn a_bookmark_whose_wal_is_gone_is_told_apart_and_the_table_helps() {
    let settings = "max_slot_wal_keep_size = '16MB'\nwal_keep_size = 0\nmin_wal_size = '32MB'\n\
                    max_wal_size = '32MB'";
    let server = PrivatePostgres::start(Version::Pg17, settings).await;
    let pipeline = Pipeline::on(&server.url(), &brokers(), "replay_lost").await;
    let again = another_topic(&pipeline).await;
    postrider_ok(&pipeline.config, &["bookmark", "create", "old"]);
    insert_many(&pipeline.sql, 2, 10).await;
    await_that("a lost slot", SOON, || async {
        pipeline
            .sql
            .batch("select pg_switch_wal(); create table if not exists filler (i int)")
            .await;
        pipeline.sql.batch("insert into filler select 1; select pg_switch_wal(); checkpoint").await;
        let state = listed(&pipeline)[0]["state"].clone();
        if state == "slot_lost" { Ok(()) } else { Err(state) }
    })
    .await;
    let output = fails(&pipeline, &["--bookmark", "old"], 1);
    answer("replay from a bookmark whose WAL is gone", &pipeline, &output);
    // The line that helps.
    let made = listed(&pipeline)[0]["created_at"].as_str().unwrap().to_owned();
    let to = ["--since", &made, "--source", "table", "--to", &again.name];
    let (code, last) = replay(&pipeline, &to);
    assert_eq!((code, &last["published"]), (Some(0), &20.into()), "{last}");
}

/// An event that no topic of this broker takes, and two behind it.
#[tokio::test]
async fn events_of_a_parked_aggregate_are_left_out_unless_asked_for() {
    let pipeline = Pipeline::shared(Version::Pg15, "replay_parked").await;
    let again = another_topic(&pipeline).await;
    postrider_ok(&pipeline.config, &["bookmark", "create", "b"]);
    let relay = pipeline.run();
    let large = "insert into public.outbox (aggregate_type, aggregate_id, event_type, payload) \
                 select 'order', '1', 'Written', to_json(string_agg(md5(g::text), '')) \
                 from generate_series(1, 62500) g";
    insert_many(&pipeline.sql, 1, 10).await;
    pipeline.sql.batch(large).await;
    insert_many(&pipeline.sql, 1, 10).await;
    // Of the second ten one is behind the large one.
    pipeline.topic.await_records(19, SOON).await;
    let parked = "select count(*)::text from postrider.parked";
    await_that("two parked", SOON, || async {
        let count = pipeline.sql.text(parked).await;
        if count.as_deref() == Some("2") { Ok(()) } else { Err(format!("{count:?}")) }
    })
    .await;
    assert_eq!(relay.terminate(SOON).await.code, Some(0));

    let output = fails(&pipeline, &["--bookmark", "b", "--aggregate", "order:1"], 1);
    answer("replay of an aggregate with parked events", &pipeline, &output);
    let (code, last) = replay(&pipeline, &["--bookmark", "b", "--to", &again.name]);
    // Those of aggregate 1: one of each ten, and the large one.
    let counts = (&last["published"], &last["refused"]);
    assert_eq!((code, counts), (Some(1), (&18.into(), &3.into())), "{last}");
    assert!(last["refusals"][0]["why"].as_str().unwrap().contains("parked"), "{last}");
    let (code, last) =
        replay(&pipeline, &["--bookmark", "b", "--include-parked", "--to", &again.name]);
    let counts = (&last["published"], &last["refused"]);
    assert_eq!((code, counts), (Some(1), (&20.into(), &1.into())), "too large here too: {last}");
}
