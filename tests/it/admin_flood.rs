//! The admin endpoint among clients that connect and do nothing, on a relay with few descriptors.

use crate::await_that::SOON;
use crate::pipeline::Pipeline;
use crate::relay::Relay;
use crate::server::Version;
use std::time::Duration;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

/// What the relay may open; 1,024 is the default of many systems.
const DESCRIPTORS: u32 = 1024;

/// Connections of a flood: twice what the relay may open.
const FLOOD: usize = 2_000;

/// What one connection of a flood may take; one that waits longer is in the backlog of the listener.
const CONNECT_MAX: Duration = Duration::from_millis(200);

/// What the relay may have open in a flood: 64 connections of the endpoint, and what one pipeline needs.
const OPEN_MAX: usize = 200;

/// Connects [`FLOOD`] times, each connection sends `request` and reads nothing.
async fn flood(relay: &Relay, request: &str) -> Vec<TcpStream> {
    let mut held = Vec::new();
    for _ in 0..FLOOD {
        let connecting = TcpStream::connect(relay.admin_address());
        if let Ok(Ok(mut stream)) = tokio::time::timeout(CONNECT_MAX, connecting).await {
            // One that was closed already is one less.
            drop(stream.write_all(request.as_bytes()).await);
            held.push(stream);
        }
    }
    held
}

/// Ends both sessions of the relay, so that it has to open new ones.
async fn lose_the_sessions(pipeline: &Pipeline) {
    let sql = "select pg_terminate_backend(pid) from pg_stat_activity \
               where datname = current_database() and pid <> pg_backend_pid()";
    pipeline.sql.batch(sql).await;
}

async fn await_published(relay: &Relay, count: u64) {
    let what = format!("{count} published");
    relay
        .await_status(&what, SOON, |status| {
            status["pipelines"][0]["published_total"].as_u64() >= Some(count)
        })
        .await;
}

/// While connections of this kind are open: scrapes are answered, events flow, and lost sessions come back.
///
/// `stays`: the endpoint keeps such a connection open; it answers others, and closes them at once.
async fn holds_against(kind: &str, request: &str, stays: bool) {
    let pipeline = Pipeline::shared(Version::Pg17, "admin_flood").await;
    let relay = Relay::spawn_with_descriptors(&pipeline.config, DESCRIPTORS);
    relay.await_state("streaming", SOON).await;
    pipeline.insert(10).await;
    await_published(&relay, 10).await;
    let session = "select string_agg(pid::text, ',' order by pid) from pg_stat_activity \
                   where datname = current_database() and pid <> pg_backend_pid()";
    let before = pipeline.sql.text(session).await;

    let held = flood(&relay, request).await;
    let (code, metrics) = relay.get("/metrics").await.unwrap();
    assert_eq!(code, 200, "{metrics}");
    pipeline.insert(10).await;
    await_published(&relay, 20).await;
    assert_eq!(pipeline.sql.text(session).await, before, "{kind}: a session was lost");
    let open = relay.descriptors();
    assert!(open < OPEN_MAX, "{kind}: {open} descriptors");

    lose_the_sessions(&pipeline).await;
    pipeline.insert(10).await;
    await_published(&relay, 30).await;
    relay.await_state("streaming", SOON).await;
    let (_, metrics) = relay.get("/metrics").await.unwrap();
    let closed = "postrider_admin_connections_closed_total{reason=\"full\"} ";
    let count = metrics.lines().find_map(|line| line.strip_prefix(closed)).unwrap();
    assert_eq!(count.parse::<u64>().unwrap() > 1_000, stays, "{kind}: {count}");
    drop(held);
    let ended = relay.terminate(SOON).await;
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    let lines = ended.stderr.matches("connections of the admin endpoint are in use").count();
    assert_eq!(lines > 0, stays, "{}", ended.stderr);
    assert!(lines <= 3, "{kind}: {lines} lines of the flood");
}

#[tokio::test]
async fn idle_connections_leave_the_pipeline_alone() {
    holds_against("idle", "", true).await;
}

#[tokio::test]
async fn half_sent_requests_leave_the_pipeline_alone() {
    holds_against("half sent", "GET /metrics HTTP/1.1\r\nHost: x\r\nX-Slow: ", true).await;
}

#[tokio::test]
async fn bodies_that_never_end_leave_the_pipeline_alone() {
    let request = "POST /status HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\nbegin";
    holds_against("body", request, false).await;
}

#[tokio::test]
async fn readers_that_read_nothing_leave_the_pipeline_alone() {
    holds_against("slow", &"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n".repeat(50), false).await;
}
