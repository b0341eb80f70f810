//! Whatever ends while events are appended: the relay, its session, its server; and a second relay.

use super::*;
use crate::load::Load;
use crate::private::PrivatePostgres;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Waits until the log has grown by as many events since now.
pub(super) async fn grown(pipeline: &LogPipeline, by: usize) {
    let before = pipeline.count("orders").await.unwrap_or(0);
    await_that("the log to grow", SOON, || async {
        match pipeline.count("orders").await {
            Ok(now) if now >= before + by => Ok(()),
            other => Err(format!("{before} before, {other:?} now")),
        }
    })
    .await;
}

#[tokio::test]
async fn a_relay_that_is_killed_repeats_nothing() {
    for (version, at) in [(Version::Pg15, LogAt::Other), (Version::Pg18, LogAt::Source)] {
        let pipeline = LogPipeline::shared(version, "log_kill", at, CREATE).await;
        let load = Load::start(&pipeline.plan(), 4);
        for _ in 0..6 {
            let relay = pipeline.run();
            grown(&pipeline, 500).await;
            relay.kill().await;
        }
        let ledger = load.stop().await;
        let relay = pipeline.run();
        pipeline.assert_exactly_once(&ledger).await;
        pipeline.resolved().await;
        relay.terminate(SOON).await;
    }
}

/// A second relay waits for the slot; when the first one is killed, it takes over.
#[tokio::test]
async fn a_second_relay_takes_over_and_repeats_nothing() {
    let pipeline = LogPipeline::shared(Version::Pg17, "log_take", LogAt::Other, CREATE).await;
    let load = Load::start(&pipeline.plan(), 4);
    let mut first = pipeline.run();
    grown(&pipeline, 100).await;
    for _ in 0..4 {
        let second = pipeline.run();
        grown(&pipeline, 300).await;
        first.kill().await;
        first = second;
        grown(&pipeline, 300).await;
    }
    let ledger = load.stop().await;
    pipeline.assert_exactly_once(&ledger).await;
    first.terminate(SOON).await;
}

/// Ends, or only cancels, what the writer's session does, again and again until the flag is set; returns how often.
pub(super) async fn disturb(
    url: &str,
    function: &str,
    stop: Arc<AtomicBool>,
    hits: Arc<AtomicUsize>,
) {
    let sql = format!(
        "select count(*)::text from (select {function}(pid) from pg_stat_activity \
         where application_name like 'postrider % log' and state = 'active' and datname = current_database()) x"
    );
    let mut session = None;
    let mut ticks = tokio::time::interval(std::time::Duration::from_millis(3));
    while !stop.load(Ordering::Relaxed) {
        ticks.tick().await;
        if session.is_none() {
            session = Client::connect(url).await.ok();
        }
        let Some(client) = &session else { continue };
        match client.simple_query(&sql).await {
            Ok(messages) => {
                let found = messages.iter().find_map(|message| {
                    let SimpleQueryMessage::Row(row) = message else { return None };
                    row.get(0)?.parse::<usize>().ok()
                });
                hits.fetch_add(found.unwrap_or(0), Ordering::Relaxed);
            }
            // The server was stopped: the next turn connects again.
            Err(_) => session = None,
        }
    }
}

#[tokio::test]
async fn sessions_that_are_ended_or_cancelled_in_the_middle_of_appends_repeat_nothing() {
    for function in ["pg_terminate_backend", "pg_cancel_backend"] {
        let pipeline = LogPipeline::shared(Version::Pg17, "log_ended", LogAt::Other, CREATE).await;
        let relay = pipeline.run();
        let load = Load::start(&pipeline.plan(), 4);
        grown(&pipeline, 100).await;
        let (stop, hits) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let wanted = 20;
        let disturbed = async {
            await_that("sessions to be hit", SOON, || async {
                let hits = hits.load(Ordering::Relaxed);
                if hits >= wanted { Ok(()) } else { Err(format!("{hits} hits of {function}")) }
            })
            .await;
            stop.store(true, Ordering::Relaxed);
        };
        tokio::join!(
            disturb(&pipeline.log_url, function, Arc::clone(&stop), Arc::clone(&hits)),
            disturbed
        );
        grown(&pipeline, 100).await;
        let ledger = load.stop().await;
        pipeline.assert_exactly_once(&ledger).await;
        assert_eq!(relay.terminate(SOON).await.code, Some(0));
    }
}

/// The server of the log crashes; the source stays. While it is away, the status says so.
#[tokio::test]
async fn a_server_that_crashes_has_each_event_once() {
    let mut server = PrivatePostgres::start(Version::Pg16, "").await;
    let source = Database::create(Version::Pg16, "log_crash").await;
    let pipeline = LogPipeline::on(&source.socket_url(), &server.url(), "log_crash", CREATE).await;
    let relay = pipeline.run();
    let load = Load::start(&pipeline.plan(), 4);
    for round in 0..3 {
        grown(&pipeline, 300).await;
        server.stop_immediately().await;
        if round == 0 {
            let status = relay.await_state("broker_down", SOON).await.to_string();
            assert!(status.contains("could not"), "{status}");
        }
        server.restart().await;
    }
    grown(&pipeline, 300).await;
    let ledger = load.stop().await;
    pipeline.assert_exactly_once(&ledger).await;
    assert_eq!(relay.terminate(SOON).await.code, Some(0));
}

/// Source and log are on one server, which crashes.
#[tokio::test]
async fn a_crash_of_both_has_each_event_once() {
    let mut server = PrivatePostgres::start(Version::Pg18, "fsync = on").await;
    let url = server.url();
    let pipeline = LogPipeline::on(&url, &url, "log_both", CREATE).await;
    let relay = pipeline.run();
    let load = Load::start(&pipeline.plan(), 4);
    for _ in 0..3 {
        grown(&pipeline, 300).await;
        server.stop_immediately().await;
        server.restart().await;
    }
    grown(&pipeline, 300).await;
    let ledger = load.stop().await;
    await_that("every committed event", SOON, || async {
        match pipeline.count("orders").await {
            Ok(found) if found >= ledger.committed() => Ok(()),
            other => Err(format!("{other:?} of {}", ledger.committed())),
        }
    })
    .await;
    // A transaction whose COMMIT was not answered may have been committed.
    ledger.check(&pipeline.records("orders").await).assert_balanced(0);
    assert_eq!(relay.terminate(SOON).await.code, Some(0));
}
