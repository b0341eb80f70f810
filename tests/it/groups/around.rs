//! What stands between consumers and the log: a pooler in transaction mode, a standby.

use super::{GroupDatabase, OUTBOX, append, commit_text, number, poll, refused};
use crate::await_that::{SOON, await_that};
use crate::private::PrivatePooler;
use crate::server::{Client, Version};
use crate::standby::pair::Pair;
use crate::toolkit::install_toolkit;

/// Each statement may run in another session of the server: nothing is kept in one.
#[tokio::test]
async fn consumers_work_through_a_pooler_in_transaction_mode() {
    let world = GroupDatabase::create(Version::Pg17, "group_pooled").await;
    world.append(600, 60).await;
    world.group("g").await;
    // Six consumers, two sessions.
    let pooler = PrivatePooler::in_transaction_mode(2).await;
    let url = pooler.url(&world.database.name);
    let mut consumers = tokio::task::JoinSet::new();
    for i in 0..6 {
        let url = url.clone();
        consumers.spawn(async move {
            let (sql, name) = (Client::connect(&url).await.expect("the pooler"), format!("c{i}"));
            let mut seqs = Vec::new();
            loop {
                let polled = poll(&sql, "g", &name, 20, 30).await;
                if polled.lease == 0 {
                    if number(&sql, "select sum(lag) from postrider.consumer_lag('g')").await == 0 {
                        return seqs;
                    }
                    continue;
                }
                sql.batch("begin").await;
                sql.batch(&format!(
                    "select postrider.extend_lease('g', '{name}', 60, {})",
                    polled.lease
                ))
                .await;
                sql.batch(&commit_text("g", &name, polled.end(), polled.lease)).await;
                sql.batch("commit").await;
                seqs.extend(polled.seqs);
            }
        });
    }
    let mut seqs: Vec<i64> = consumers.join_all().await.into_iter().flatten().collect();
    seqs.sort_unstable();
    assert!(seqs.into_iter().eq(1..=600));
    pooler.stop().await;
}

#[tokio::test]
async fn a_standby_reads_the_log_and_the_lag_and_gives_nothing_out() {
    let pair = Pair::start(Version::Pg17, false).await;
    let primary = pair.primary.connect().await;
    install_toolkit(&primary, "postgres").await;
    primary.batch(OUTBOX).await;
    primary.batch("select postrider.create_log('orders')").await;
    append(&primary, 300, 30).await;
    primary.batch("select postrider.create_consumer_group('g', 'orders', 'earliest')").await;
    let polled = poll(&primary, "g", "a", 100, 30).await;
    primary.batch(&commit_text("g", "a", polled.end(), polled.lease)).await;
    let standby = pair.standby.connect().await;
    let position =
        primary.text("select pg_current_wal_insert_lsn()::text").await.expect("a position");
    let replayed = format!("select (pg_last_wal_replay_lsn() >= '{position}')::int");
    await_that("the standby to be there", SOON, || async {
        if number(&standby, &replayed).await == 1 { Ok(()) } else { Err("behind") }
    })
    .await;
    // The numbers are dense there too: a prefix of the log, in its order.
    let read = "select format('%s %s %s', count(*), min(seq), max(seq)) from postrider.log_read('orders', 0, 1000)";
    assert_eq!(standby.text(read).await.as_deref(), Some("300 1 300"));
    assert_eq!(number(&standby, "select sum(lag) from postrider.consumer_lag('g')").await, 200);
    assert_eq!(number(&standby, "select lag from postrider.consumer_group_lag").await, 200);
    for call in [
        "select * from postrider.poll_outbox('g', 'a')",
        "select postrider.commit_offset('g', 'a', 100, 1)",
    ] {
        assert_eq!(refused(&standby, call).await, "25006", "{call}");
    }
}
