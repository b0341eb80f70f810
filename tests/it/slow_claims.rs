//! A stop while a statement of polling takes its time: it is cancelled, and nothing of it is left on the server.

use crate::await_that::{SOON, await_that};
use crate::pipeline::Pipeline;
use crate::private::PrivatePostgres;
use crate::relay::{Relay, postrider_ok};
use crate::server::{Version, brokers};
use std::time::Duration;

/// A stop without anything to wait for takes a moment; `shutdown_grace` is 10 s.
const STOP_MAX: Duration = Duration::from_secs(8);

/// A column that the server computes when it is read, half a second a row: a claim takes minutes.
const SLOW: &str = "alter table public.outbox add column slow numeric \
                    generated always as (factorial(12000 + 0 * id)) virtual";

fn polls(pipeline: &mut Pipeline) {
    let head = format!("[pipelines.{}]\n", pipeline.name);
    let lines = "mode = \"poll\"\npoll = { interval = \"50ms\" }\n";
    pipeline.config = pipeline.config.replacen(&head, &format!("{head}{lines}"), 1);
    postrider_ok(&pipeline.config, &["setup"]);
}

/// Waits until a claim is executing, and gives its backend.
async fn await_claim(pipeline: &Pipeline) -> String {
    let sql = "select pid::text from pg_stat_activity where datname = current_database() \
               and state = 'active' and query like 'BEGIN ISOLATION LEVEL%WITH % first AS%' and pid <> pg_backend_pid()";
    await_that("a claim that is executing", SOON, || async {
        pipeline.sql.text(sql).await.ok_or("none")
    })
    .await
}

#[tokio::test]
async fn stop_cancels_a_claim_that_takes_long() {
    let mut pipeline = Pipeline::shared(Version::Pg18, "slow_claim").await;
    polls(&mut pipeline);
    pipeline.sql.batch(SLOW).await;
    pipeline.insert(200).await;
    let relay = Relay::spawn(&pipeline.config);
    let backend = await_claim(&pipeline).await;
    let ended = relay.terminate(STOP_MAX).await;
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    assert!(!ended.stderr.contains("WARN"), "{}", ended.stderr);
    // The next process finds the lock free.
    await_that("the claim's session to end", STOP_MAX, || async {
        let sql = format!("select pid::text from pg_stat_activity where pid = {backend}");
        pipeline.sql.text(&sql).await.map_or(Ok(()), Err)
    })
    .await;
}

/// A server that does not react to the request: the session is given up.
#[tokio::test]
async fn stop_does_not_wait_for_a_claim_that_can_not_be_cancelled() {
    let server = PrivatePostgres::start(Version::Pg17, "").await;
    let mut pipeline = Pipeline::on(&server.url(), &brokers(), "stuck_claim").await;
    polls(&mut pipeline);
    let relay = Relay::spawn(&pipeline.config);
    relay.await_state("polling", SOON).await;
    // A session of its own: in a transaction pg_stat_activity stays as it was when it was first read.
    let locker = server.connect().await;
    locker.batch("begin; lock table public.outbox in access exclusive mode").await;
    let backend: u32 = await_claim(&pipeline).await.parse().expect("a process");
    crate::private::signal(backend, crate::private::Signal::Stop);
    let ended = relay.terminate(STOP_MAX).await;
    crate::private::signal(backend, crate::private::Signal::Cont);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
}
