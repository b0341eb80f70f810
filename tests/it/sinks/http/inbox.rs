//! From an outbox to an inbox: the sink against our own receiver of webhooks.

use super::HttpServer;
use crate::await_that::{SOON, await_that};
use crate::inbox_webhook::{Hooks, SECRET};
use crate::relay::Relay;
use crate::server::Version;
use crate::sinks::pipeline::SinkPipeline;
use crate::sinks::server::SinkServer as _;

/// Each event is stored once, with its aggregate and its type, although relays are killed and repeat events.
#[tokio::test]
async fn events_of_an_outbox_are_stored_once_in_an_inbox() {
    let hooks = Hooks::start_with(Version::Pg17, "from_outbox", |spec, _| {
        spec.rules.aggregate_header = Some("key".to_owned());
    })
    .await;
    let pipeline = SinkPipeline::<HttpServer>::start("to_inbox").await;
    let secrets = tempfile::tempdir().expect("a directory");
    let file = secrets.path().join("hooks");
    std::fs::write(&file, SECRET).expect("a file");
    let sink = pipeline.server.sink(Some(hooks.receiver.port)).replace("/hooks\"", "\"");
    let config = pipeline.with_sink(&format!("{sink}secret_file = \"{}\"\n", file.display()));
    for round in 1..=4_i64 {
        let sql = format!(
            "insert into outbox (aggregate_type, aggregate_id, event_type, payload) \
             select 'hooks', 'a' || i % 20, 'Paid', json_build_object('n', i) \
             from generate_series({}, {}) i",
            (round - 1) * 500 + 1,
            round * 500
        );
        pipeline.sql.batch(&sql).await;
        let relay = Relay::spawn(&config);
        await_that("half of the events", SOON, || async {
            let stored = hooks.count().await;
            if stored >= round * 500 - 250 { Ok(()) } else { Err(stored) }
        })
        .await;
        relay.kill().await;
    }
    let relay = Relay::spawn(&config);
    pipeline.resolved().await;
    assert_eq!(hooks.count().await, 2_000, "each once");
    let check = "select count(distinct (payload->>'n')) || ' ' || count(distinct aggregate_id) || ' ' || \
                 min(event_type) || ' ' || count(*) filter (where headers->>'position' is not null) \
                 from postrider_inbox.hooks";
    assert_eq!(hooks.sql.text(check).await.as_deref(), Some("2000 20 Paid 2000"));
    relay.terminate(SOON).await;
}
