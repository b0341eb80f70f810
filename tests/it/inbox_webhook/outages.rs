//! Databases that are killed, stopped, frozen and full: what was acknowledged is there once, and nothing else.

use super::sender::Sender;
use super::{Hooks, Receiver, create_inbox, with_inbox};
use crate::await_that::{SOON, await_that};
use crate::groups::number;
use crate::private::PrivatePostgres;
use crate::server::{Client, Version};
use postrider::intake_status::IntakeState;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;
use tokio::task::JoinSet;

/// Messages of the long run.
const MESSAGES: usize = 10_000;

/// Connections that send them.
const SENDERS: usize = 32;

/// One message in so many is signed with another secret.
const FORGED_EVERY: usize = 20;

/// Sends a message until it is acknowledged, as a sender does.
async fn deliver(sender: &Sender, id: &str) {
    let body = format!("{{\"type\": \"paid\", \"id\": \"{id}\"}}");
    await_that(&format!("{id} to be acknowledged"), SOON, || async {
        let answer = sender.send(id, &body).await?;
        match answer.code {
            204 => Ok(()),
            503 if answer.is_put_off() => Err(format!("{answer:?}")),
            code => panic!("{code}: {answer:?}"),
        }
    })
    .await;
}

/// Sends every message whose number leaves this rest, and forged ones, which are refused each time.
async fn sends(sender: Sender, rest: usize, acknowledged: Arc<AtomicUsize>) {
    let forger = sender.with_secret("whsec_Zm9yZ2VkIHdpdGggdGhpcw==");
    for i in (rest..MESSAGES).step_by(SENDERS) {
        if i % FORGED_EVERY == 0 {
            let answer = forger.send(&format!("forged_{i}"), "{}").await;
            // A connection may be lost; an answer is always the same.
            assert!(answer.as_ref().map_or(true, |answer| answer.code == 401), "{answer:?}");
        }
        deliver(&sender, &format!("msg_{i}")).await;
        acknowledged.fetch_add(1, Ordering::Relaxed);
    }
}

/// Ends the receiver's sessions again and again, until `ended`.
async fn terminates(postgres_url: String, ended: Arc<AtomicBool>) {
    let mut ticks = tokio::time::interval(Duration::from_millis(300));
    while !ended.load(Ordering::Relaxed) {
        ticks.tick().await;
        if let Ok(sql) = Client::connect(&postgres_url).await {
            let sessions = "select pg_terminate_backend(pid) from pg_stat_activity \
                            where application_name like 'postrider inbox%'";
            drop(sql.simple_query(sessions).await);
        }
    }
}

#[tokio::test]
async fn each_acknowledged_message_of_ten_thousand_is_there_once_although_the_server_is_killed() {
    let mut postgres = PrivatePostgres::start(Version::Pg17, "").await;
    create_inbox(&postgres.connect().await).await;
    let receiver = Receiver::storing(&postgres.url(), |_, _| {}).await;
    let acknowledged = Arc::new(AtomicUsize::new(0));
    let ended = Arc::new(AtomicBool::new(false));
    let mut senders = JoinSet::new();
    for rest in 0..SENDERS {
        senders.spawn(sends(receiver.sender(), rest, Arc::clone(&acknowledged)));
    }
    let mut terminators = JoinSet::new();
    terminators.spawn(terminates(postgres.url(), Arc::clone(&ended)));
    for kill in 1..=4 {
        let share = MESSAGES * kill / 5;
        await_that(&format!("{share} acknowledged messages"), SOON, || async {
            let now = acknowledged.load(Ordering::Relaxed);
            if now >= share { Ok(()) } else { Err(format!("{now}")) }
        })
        .await;
        postgres.kill().await;
        receiver.await_state(IntakeState::DatabaseDown).await;
        postgres.restart().await;
    }
    while let Some(ended) = senders.join_next().await {
        ended.expect("a sender");
    }
    ended.store(true, Ordering::Relaxed);
    while terminators.join_next().await.is_some() {}
    assert_eq!(acknowledged.load(Ordering::Relaxed), MESSAGES);
    receiver.stop().await;
    let sql = postgres.connect().await;
    for (what, expected) in [
        ("count(*)", MESSAGES),
        ("count(distinct event_id)", MESSAGES),
        ("count(*) filter (where event_id = 'hooks//' || (payload ->> 'id'))", MESSAGES),
        ("count(*) filter (where event_id like '%forged%')", 0),
    ] {
        let found = number(&sql, &format!("select {what} from postrider_inbox.hooks")).await;
        assert_eq!(usize::try_from(found).expect("a count"), expected, "{what}");
    }
}

#[tokio::test]
async fn while_the_database_is_down_requests_are_put_off_and_stored_afterwards() {
    let mut postgres = PrivatePostgres::start(Version::Pg17, "").await;
    create_inbox(&postgres.connect().await).await;
    let receiver = Receiver::storing(&postgres.url(), |_, _| {}).await;
    let sender = receiver.sender();
    assert_eq!(sender.sent("msg_1", "{}").await.code, 204);
    postgres.stop_fast(SOON).await;
    await_that("a request that is put off", SOON, || async {
        let answer = sender.send("msg_2", "{}").await?;
        if answer.is_put_off() { Ok(()) } else { Err(format!("{answer:?}")) }
    })
    .await;
    receiver.await_state(IntakeState::DatabaseDown).await;
    let status = receiver.status();
    assert!(status.reason.is_some() && status.totals.refused_total > 0, "{status:?}");
    let answer = sender.sent("msg_2", "{}").await;
    assert_eq!(answer.body, "the database of the inbox is not available\n");
    // A wrong signature is not put off.
    assert_eq!(sender.with_secret("whsec_eA==").sent("msg_2", "{}").await.code, 401);
    postgres.restart().await;
    deliver(&sender, "msg_2").await;
    receiver.await_state(IntakeState::Storing).await;
    let sql = postgres.connect().await;
    assert_eq!(number(&sql, "select count(*) from postrider_inbox.hooks").await, 2);
    // A receiver that begins while the database is down answers too.
    receiver.stop().await;
    postgres.stop_fast(SOON).await;
    let receiver = Receiver::start(&postgres.url(), |_, _| {}).await;
    receiver.await_state(IntakeState::DatabaseDown).await;
    assert!(receiver.sender().sent("msg_3", "{}").await.is_put_off());
    receiver.stop().await;
}

#[tokio::test]
async fn a_server_that_does_not_answer_keeps_no_request_waiting_for_long() {
    let postgres = PrivatePostgres::start(Version::Pg17, "").await;
    create_inbox(&postgres.connect().await).await;
    let receiver = Receiver::storing(&postgres.url(), |_, _| {}).await;
    let sender = receiver.sender();
    postgres.freeze();
    // Not answered by the server: the receiver answers by itself.
    let answer = sender.sent("msg_1", "{}").await;
    assert!(answer.is_put_off(), "{answer:?}");
    postgres.thaw();
    deliver(&sender, "msg_1").await;
    let sql = postgres.connect().await;
    assert_eq!(number(&sql, "select count(*) from postrider_inbox.hooks").await, 1);
    receiver.stop().await;
}

#[tokio::test]
async fn an_address_that_another_process_has_is_waited_for() {
    let (database, sql) = with_inbox(Version::Pg16, "hook_address").await;
    let mut other = None;
    let receiver = Receiver::start(&database.url(), |_, config| {
        other = std::net::TcpListener::bind(config.listen).ok();
    })
    .await;
    receiver.await_state(IntakeState::ListenerDown).await;
    let status = receiver.status();
    let hint = status.hint.as_deref().unwrap_or_default();
    assert!(hint.contains("another process listens there"), "{status:?}");
    drop(other.expect("the address"));
    receiver.await_state(IntakeState::Storing).await;
    deliver(&receiver.sender(), "msg_1").await;
    assert_eq!(number(&sql, "select count(*) from postrider_inbox.hooks").await, 1);
    receiver.stop().await;
}

#[tokio::test]
async fn requests_that_find_a_full_queue_are_put_off_and_stored_afterwards() {
    const REQUESTS: usize = 1200;
    let hooks = Hooks::start_with(Version::Pg17, "hook_queue", |_, config| {
        config.connections_max = 4096;
    })
    .await;
    let lock = hooks.database.connect().await;
    lock.batch("begin; lock table postrider_inbox.hooks in share mode").await;
    let sender = hooks.receiver.sender();
    let mut sends = JoinSet::new();
    for i in 0..REQUESTS {
        let sender = sender.clone();
        sends.spawn(async move { sender.send(&format!("msg_{i}"), "{}").await });
    }
    let mut busy = 0;
    while let Some(answer) = sends.join_next().await {
        // A connection may be lost when so many are opened at once.
        let Ok(answer) = answer.expect("a sender") else { continue };
        assert!(answer.code == 204 || answer.is_put_off(), "{answer:?}");
        if answer.body == "too many requests wait to be stored\n" {
            busy += 1;
            if busy == 1 {
                lock.batch("commit").await;
            }
        }
    }
    assert!(busy > 0);
    for i in 0..REQUESTS {
        deliver(&sender, &format!("msg_{i}")).await;
    }
    assert_eq!(hooks.count().await, 1200);
    hooks.receiver.stop().await;
}

#[tokio::test]
async fn a_full_inbox_puts_requests_off_until_messages_are_processed() {
    let hooks = Hooks::start_with(Version::Pg17, "hook_full", |spec, _| {
        spec.pending_max = Some(20);
    })
    .await;
    let sender = hooks.receiver.sender();
    let mut sends = JoinSet::new();
    for i in 0..60 {
        let sender = sender.clone();
        sends.spawn(async move { sender.sent(&format!("msg_{i}"), "{}").await });
    }
    let mut stored = 0;
    while let Some(answer) = sends.join_next().await {
        let answer = answer.expect("an answer");
        assert!(answer.code == 204 || answer.is_put_off(), "{answer:?}");
        stored += i64::from(answer.code == 204);
    }
    assert_eq!((stored, hooks.count().await), (20, 20));
    hooks.receiver.await_state(IntakeState::Full).await;
    let answer = sender.sent("msg_100", "{}").await;
    assert_eq!(answer.body, "the inbox is full\n");
    hooks
        .sql
        .batch(
            "with batch as materialized (select * from postrider.inbox_next('hooks', 'w', 10)) \
             select postrider.inbox_done('hooks', array_agg(event_id)) from batch",
        )
        .await;
    deliver(&sender, "msg_100").await;
    assert_eq!(hooks.count().await, 21);
    hooks.receiver.stop().await;
}
