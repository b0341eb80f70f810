//! Dead letters of a table that keeps its failures.

use super::{count, polling};
use crate::await_that::SOON;
use crate::server::Version;
use crate::sink_caller::alter;
use crate::topic::{Topic, create_topic};

/// Each failing claim is a new beginning for the relay; the letter of the one before is most likely on its way then.
#[tokio::test]
async fn rows_that_fail_one_after_the_other_do_not_cost_a_producer_each() {
    let mut pipeline = polling(Version::Pg15, "pollletters", "sqlgarden").await;
    let dead = Topic { name: format!("{}-dead", pipeline.topic.name), ..pipeline.topic.clone() };
    create_topic(&dead.brokers, &dead.name, 1, &[]).await;
    let line = format!("parking = {{ dead_topic = \"{}\", ", dead.name);
    let config = pipeline.config.replace("parking = { ", &line);
    let config = config.replace("attempts_max = 3", "attempts_max = 1");
    pipeline.config = config.replace("poll = { ", "poll = { batch = 1, ");
    alter(&pipeline.topic, "max.message.bytes", "3000").await;
    let rows = "insert into outbox_events (aggregate_type, aggregate_id, event_type, payload)
        select 'order', i::text, 'T', to_jsonb((select string_agg(md5(random()::text), '') from generate_series(1, 600)))
        from generate_series(1, 30) i";
    pipeline.sql.batch(rows).await;
    let relay = pipeline.run();
    assert_eq!(dead.await_records(30, SOON).await.len(), 30, "once each");
    let sent = "select count(*)::text from postrider.parked where dead_sent_at is not null";
    count(&pipeline, sent, "30").await;
    let (_, metrics) = relay.get("/metrics").await.expect("an answer");
    let resets: Vec<&str> = metrics.lines().filter(|line| line.contains("side=\"sink\"")).collect();
    assert_eq!(resets, [""; 0], "producers thrown away\n{}", relay.stderr());
    assert_eq!(relay.terminate(SOON).await.code, Some(0));
}
