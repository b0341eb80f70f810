//! The tests that every broker passes.

use super::broker::{Broker, World};
use crate::await_that::{SOON, await_or_dump};
use crate::inbox_run::{COUNT, await_answer, await_intake, await_intake_state, faults};
use crate::private::{PrivatePostgres, Signal};
use crate::relay::{Relay, postrider};
use crate::server::{Client, Version};
use std::time::{Duration, Instant};
use tokio::task::JoinSet;

/// Aggregates of the events.
const KEYS: u64 = 50;

pub(super) async fn each_event_is_stored_once_and_in_order_through_kills_of_all<B: Broker>() {
    through_kills::<B>(20_000, Duration::from_secs(40)).await;
}

/// Events that are inserted, published and stored while intakes, the database and the broker are killed.
pub(super) async fn through_kills<B: Broker>(events: u64, seconds: Duration) {
    let conf = "fsync = on\nfull_page_writes = on\n";
    let mut server = PrivatePostgres::start(Version::Pg17, conf).await;
    let broker = B::start().await;
    broker.create().await;
    let mut world = World::in_private(broker, &server).await;
    let relay = world.relay();
    let url = server.url();
    let mut writer = JoinSet::new();
    writer.spawn(async move { insert_through_kills(&url, events).await });
    let spawn = |world: &World<B>| Relay::spawn_intake(&world.config);
    let mut intakes = vec![spawn(&world), spawn(&world)];
    let (start, mut kills, mut is_written) = (Instant::now(), [0; 3], false);
    let mut pauses = tokio::time::interval(Duration::from_secs(4));
    pauses.tick().await;
    for round in 0.. {
        pauses.tick().await;
        if let Some(ended) = writer.try_join_next() {
            ended.expect("the writer");
            is_written = true;
        }
        if start.elapsed() > seconds && is_written {
            break;
        }
        match round % 4 {
            0 | 2 => {
                kills[0] += 1;
                intakes.remove(0).kill().await;
                intakes.push(spawn(&world));
            }
            1 => {
                kills[1] += 1;
                server.kill().await;
                server.restart().await;
            }
            _ => {
                kills[2] += 1;
                world.broker.kill().await;
                world.broker.restart().await;
            }
        }
    }
    let sql = server.connect().await;
    let look = || async {
        let now = sql.text(COUNT).await.unwrap_or_default();
        if now == events.to_string() { Ok(()) } else { Err(now) }
    };
    let logs = || format!("{}\n{}\n{}", intakes[0].stderr(), intakes[1].stderr(), relay.stderr());
    await_or_dump(&format!("{events} messages"), SOON, look, logs).await;
    assert_eq!(faults(&sql, events).await, "");
    let [of_intakes, of_server, of_broker] = kills;
    crate::pipeline::show(&format!(
        "{events} events in {:.0} s, each stored once and in order; killed: {of_intakes} intakes, the database \
         {of_server} times, the broker {of_broker} times",
        start.elapsed().as_secs_f64()
    ));
}

/// Inserts events in order, each once, whatever happens to the sessions.
async fn insert_through_kills(url: &str, events: u64) {
    const CHUNK: u64 = 500;
    let mut from = 1;
    while from <= events {
        let Ok(client) = Client::connect(url).await else {
            tokio::task::yield_now().await;
            continue;
        };
        // A commit whose answer was lost counts too.
        let Some(last) =
            client.text("select coalesce(max((payload ->> 'n')::bigint), 0) from outbox").await
        else {
            continue;
        };
        from = last.parse::<u64>().expect("a number") + 1;
        while from <= events {
            let to = (from + CHUNK - 1).min(events);
            let sql = format!(
                "insert into outbox (aggregate_type, aggregate_id, event_type, payload)
                 select 'orders', 'k' || i % {KEYS}, 'Counted', json_build_object('n', i)
                 from generate_series({from}, {to}) i returning '1'"
            );
            if client.text(&sql).await.is_none() {
                break;
            }
            from = to + 1;
        }
    }
}

pub(super) async fn of_two_processes_one_reads_and_the_other_follows_it<B: Broker>() {
    let world = World::<B>::create(Version::Pg18, "acked_two").await;
    let relay = world.relay();
    world.insert(1, 1_000, KEYS).await;
    let first = Relay::spawn_intake(&world.config);
    await_answer(&world.sql, COUNT, "1000", &first).await;
    let second = Relay::spawn_intake(&world.config);
    await_intake(&second, "the second one stands by", |it| it["state"] == "standing_by").await;
    world.insert(1_001, 3_000, KEYS).await;
    await_answer(&world.sql, COUNT, "3000", &first).await;
    let of_first = await_intake(&first, "all is stored", |it| it["stored_total"] == 3_000).await;
    assert_eq!(of_first["state"], "storing");
    world.insert(3_001, 6_000, KEYS).await;
    first.kill().await;
    await_intake(&second, "the second one reads", |it| it["state"] == "storing").await;
    world.insert(6_001, 7_000, KEYS).await;
    await_answer(&world.sql, COUNT, "7000", &second).await;
    assert_eq!(faults(&world.sql, 7_000).await, "");
    // A stop gives the turn back at once.
    let third = Relay::spawn_intake(&world.config);
    await_intake(&third, "the third one stands by", |it| it["state"] == "standing_by").await;
    let ended = second.terminate(SOON).await;
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    world.insert(7_001, 7_100, KEYS).await;
    await_answer(&world.sql, COUNT, "7100", &third).await;
    assert_eq!(faults(&world.sql, 7_100).await, "");
    drop(relay);
}

pub(super) async fn a_process_that_was_frozen_stores_nothing_twice_and_swaps_nothing<B: Broker>() {
    let world = World::<B>::create(Version::Pg16, "acked_zombie").await;
    let relay = world.relay();
    let first = Relay::spawn_intake(&world.config);
    await_intake_state(&first, "storing").await;
    let second = Relay::spawn_intake(&world.config);
    await_intake_state(&second, "standing_by").await;
    for round in 0..3 {
        let from = round * 3_000;
        world.insert(from + 1, from + 1_000, KEYS).await;
        let (frozen, other) = if round % 2 == 0 { (&first, &second) } else { (&second, &first) };
        frozen.signal(Signal::Stop);
        world.insert(from + 1_001, from + 2_000, KEYS).await;
        await_answer(&world.sql, COUNT, &(from + 2_000).to_string(), other).await;
        frozen.signal(Signal::Cont);
        world.insert(from + 2_001, from + 3_000, KEYS).await;
        await_answer(&world.sql, COUNT, &(from + 3_000).to_string(), other).await;
        await_intake_state(frozen, "standing_by").await;
    }
    assert_eq!(faults(&world.sql, 9_000).await, "");
    drop(relay);
}

pub(super) async fn poison_is_stored_as_dead_and_later_messages_go_on<B: Broker>() {
    let world = World::<B>::create(Version::Pg17, "acked_poison").await;
    let refuses = "alter table postrider_inbox.jobs add check (dead_at is not null or payload ->> 'n' <> '13')";
    world.sql.batch(refuses).await;
    let relay = world.relay();
    world.insert(1, 30, 3).await;
    // What jsonb can't store is stored as bytes.
    world
        .sql
        .batch(
            "insert into outbox (aggregate_type, aggregate_id, event_type, payload)
             values ('orders', 'k1', 'Odd', '{\"n\": \"\\u0000\"}')",
        )
        .await;
    let intake = Relay::spawn_intake(&world.config);
    await_answer(&world.sql, COUNT, "31", &intake).await;
    let dead = "select string_agg(payload::text, ' ') from postrider_inbox.dlq_jobs";
    await_answer(&world.sql, dead, "{\"n\": 13}", &intake).await;
    let error = world.sql.text("select error from postrider_inbox.dlq_jobs").await;
    assert!(error.as_ref().is_some_and(|error| error.contains("SQLSTATE 23514")), "{error:?}");
    let bytes = "select convert_from(payload_bytes, 'UTF8') from postrider_inbox.jobs where payload_bytes is not null";
    await_answer(&world.sql, bytes, "{\"n\": \"\\u0000\"}", &intake).await;
    let status = await_intake(&intake, "one dead", |it| it["dead_total"] == 1).await;
    assert_eq!(status["repeated_total"], 0, "{status}");
    intake.await_log("is stored as a dead one", SOON).await;
    drop(relay);
}

pub(super) async fn a_message_that_the_table_refuses_for_ever_holds_later_ones_back_until_it_is_accepted<
    B: Broker,
>() {
    let world = World::<B>::create(Version::Pg18, "acked_unstorable").await;
    // By its aggregate, which a bare message has too.
    let refuses =
        "alter table postrider_inbox.jobs add constraint no_seventh check (aggregate_id !~ '/k7$')";
    world.sql.batch(refuses).await;
    let relay = world.relay();
    world.insert(1, 20, 1_000).await;
    let intake = Relay::spawn_intake(&world.config);
    let blocked = await_intake(&intake, "blocked", |it| it["state"] == "blocked").await;
    assert_eq!(world.sql.text(COUNT).await.as_deref(), Some("6"), "what is before it is stored");
    let of = &blocked["blocked"][0];
    assert_eq!((&of["code"], &of["needs_decision"]), (&"message_unstorable".into(), &true.into()));
    assert!(of["reason"].to_string().contains("23514"), "{blocked}");
    world.sql.batch("alter table postrider_inbox.jobs drop constraint no_seventh").await;
    await_answer(&world.sql, COUNT, "20", &intake).await;
    await_intake(&intake, "storing", |it| it["state"] == "storing" && it["blocked_total"] == 0)
        .await;
    assert_eq!(faults(&world.sql, 20).await, "");
    drop(relay);
}

pub(super) async fn a_broker_that_is_down_at_the_start_and_what_is_missing_are_waited_for<
    B: Broker,
>() {
    let mut world = World::with(B::start().await, Version::Pg15, "acked_down").await;
    world.broker.stop().await;
    let intake = Relay::spawn_intake(&world.config);
    let down = await_intake_state(&intake, "broker_down").await;
    assert!(down["reason"].is_string(), "{down}");
    intake.await_log("stores nothing until this ends", SOON).await;
    world.broker.restart().await;
    let missing = await_intake(&intake, "what is missing", |it| {
        it["reason"].to_string().contains("exist") || it["reason"].to_string().contains("404")
    })
    .await;
    assert!(missing["hint"].to_string().contains("create"), "{missing}");
    world.broker.create().await;
    let relay = world.relay();
    world.insert(1, 100, KEYS).await;
    await_answer(&world.sql, COUNT, "100", &intake).await;
    await_intake_state(&intake, "storing").await;
    intake.await_log("the outage has ended", SOON).await;
    drop(relay);
}

pub(super) async fn a_broker_that_is_frozen_is_waited_for<B: Broker>() {
    let world = World::<B>::create(Version::Pg16, "acked_frozen").await;
    let relay = world.relay();
    world.insert(1, 500, KEYS).await;
    let intake = Relay::spawn_intake(&world.config);
    await_answer(&world.sql, COUNT, "500", &intake).await;
    world.broker.freeze();
    world.insert(501, 1_000, KEYS).await;
    await_intake_state(&intake, "broker_down").await;
    world.broker.thaw();
    await_answer(&world.sql, COUNT, "1000", &intake).await;
    assert_eq!(faults(&world.sql, 1_000).await, "");
    drop(relay);
}

pub(super) async fn nothing_is_read_while_the_inbox_is_full<B: Broker>() {
    let world = World::<B>::create(Version::Pg17, "acked_full").await;
    let relay = world.relay();
    world.insert(1, 2_000, KEYS).await;
    let config = world.config.replace("batch = 500", "batch = 100\npending_max = 300");
    let intake = Relay::spawn_intake(&config);
    await_intake_state(&intake, "full").await;
    let stored: u64 = world.sql.text(COUNT).await.and_then(|count| count.parse().ok()).unwrap();
    assert!((300..=400).contains(&stored), "{stored}");
    let work = "with batch as materialized (select * from postrider.inbox_next('jobs', 'w', 100))
                select postrider.inbox_done('jobs', array_agg(event_id))::text from batch having count(*) > 0";
    let look = || async {
        drop(world.sql.text(work).await);
        let now = world.sql.text(COUNT).await.unwrap_or_default();
        if now == "2000" { Ok(()) } else { Err(now) }
    };
    await_or_dump("2000 messages", SOON, look, || intake.stderr()).await;
    assert_eq!(faults(&world.sql, 2_000).await, "");
    drop(relay);
}

pub(super) async fn database_sessions_that_are_ended_repeat_nothing<B: Broker>() {
    let world = World::<B>::create(Version::Pg15, "acked_sessions").await;
    let relay = world.relay();
    let intake = Relay::spawn_intake(&world.config);
    await_intake_state(&intake, "storing").await;
    let mut ended = 0;
    for chunk in 0..20 {
        world.insert(chunk * 500 + 1, chunk * 500 + 500, KEYS).await;
        let end = "select count(pg_terminate_backend(pid))::text from pg_stat_activity
                   where application_name like 'postrider inbox%' and datname = current_database()";
        let of = world.sql.text(end).await.and_then(|count| count.parse::<u32>().ok());
        ended += of.unwrap_or(0);
    }
    assert!(ended > 0, "no session was ended");
    await_answer(&world.sql, COUNT, "10000", &intake).await;
    assert_eq!(faults(&world.sql, 10_000).await, "");
    drop(relay);
}

pub(super) async fn a_login_is_checked_over_tls_and_is_not_shown<B: Broker>() {
    let world = World::<B>::create(Version::Pg18, "acked_tls").await;
    let source = world.broker.source_over_tls();
    let config = world.with_source(&source);
    let checked = postrider(&config, &["check"]);
    let said = String::from_utf8_lossy(&checked.stdout).into_owned();
    assert!(checked.status.success(), "{said}\n{}", String::from_utf8_lossy(&checked.stderr));
    assert!(said.contains("exist") || said.contains("queue"), "{said}");
    let shown = postrider(&config, &["config", "show"]);
    let shown = String::from_utf8_lossy(&shown.stdout).into_owned();
    assert!(shown.contains(B::KIND) && !shown.contains("admin\n"), "{shown}");
    let relay = world.relay();
    world.insert(1, 100, KEYS).await;
    let intake = Relay::spawn_intake(&config);
    await_answer(&world.sql, COUNT, "100", &intake).await;
    drop(intake);
    // The certificate is for localhost.
    let wrong = world.with_source(&source.replace("localhost", "127.0.0.1"));
    let refused = Relay::spawn_intake(&wrong);
    let status = await_intake_state(&refused, "broker_down").await;
    assert!(status["hint"].is_string(), "{status}");
    assert!(!postrider(&wrong, &["check"]).status.success());
    drop(relay);
}
