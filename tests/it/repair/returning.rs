//! A later event of an aggregate is parked already when the slot is lost, and an earlier one was not published: the
//! earlier one goes first all the same, and what a person did to the parked one stays.

use super::interrupted::{Repairing, gone};
use super::{SOON, drop_slot, repaired};
use crate::await_that::await_that;
use crate::parking::{Scene, assert_in_order};
use crate::pipeline::{Pipeline, show};
use crate::private::PrivateKafka;
use crate::relay::Relay;
use crate::server::{Client, Version};
use crate::topic::{Topic, client_config};
use rdkafka::consumer::{BaseConsumer, Consumer};
use std::time::Duration;

const LINES: &str = "attempts_max = 1000\nbackoff = { step = \"300ms\", steps_max = 1 }";

/// A pipeline that streams: one event of `a` and of `b` is published.
async fn streaming(broker: &PrivateKafka, test: &str, mode: &str) -> (Scene, Relay) {
    let mut pipeline = Pipeline::to_broker(Version::Pg17, &broker.brokers(), test).await;
    let head = format!("[pipelines.{}]\n", pipeline.name);
    pipeline.config = pipeline.config.replacen(&head, &format!("{head}{mode}"), 1);
    let mut scene = Scene::of(pipeline, LINES).await;
    // Without compression the size of an event is known before it is sent: 4 is parked while the broker is down. With
    // it the broker is asked, and 4 would wait for that.
    scene.config = Pipeline::uncompressed_of(&scene.config, &scene.pipeline.name);
    let filter = ["--log", "info,postrider::kafka=debug"];
    let relay = Relay::spawn_with(&scene.config, &filter, &[]);
    relay.await_state("streaming", SOON).await;
    scene.insert(&["a", "b"]).await;
    scene.await_last("b", 2).await;
    // Or what is too large is not known to be, once the broker is away.
    relay.await_log("limit=3000", SOON).await;
    (scene, relay)
}

/// The broker is away: 3 of `b` is on its way to it, 4 is too large, 5 waits behind that, and `c` is as `b`.
async fn in_the_dark(scene: &mut Scene) {
    scene.insert(&["b"]).await;
    scene.insert(&["!b", "b", "c", "!c"]).await;
    scene.await_parked("b, b, c").await;
}

/// The broker that was away leads every partition again.
async fn leads(topic: &Topic) {
    await_that("the partitions to be led", SOON, || async {
        let topic = topic.clone();
        let look = move || {
            let consumer: BaseConsumer =
                client_config(&topic.brokers).create().map_err(|error| error.to_string())?;
            for partition in 0..8 {
                let within = Duration::from_secs(5);
                let offsets = consumer.fetch_watermarks(&topic.name, partition, within);
                offsets.map_err(|error| error.to_string())?;
            }
            Ok::<_, String>(())
        };
        tokio::task::spawn_blocking(look).await.expect("a look")
    })
    .await;
}

const HISTORY: &str = "select (attempts >= 7) || ' ' || acted_by from postrider.parked \
                       where aggregate_id = 'b' and acted_by is not null and state <> 'behind'";

#[tokio::test]
async fn earlier_event_that_was_not_published_stays_before_a_parked_one() {
    let mut broker = PrivateKafka::start("").await;
    let (mut scene, relay) = streaming(&broker, "returns", "").await;
    // Claims of two rows at first: 4 comes again in one claim, and 5 in another.
    let mode = "mode = \"auto\"\npoll = { interval = \"50ms\", batch = 2 }\n";
    let (mut auto, polls) = streaming(&broker, "returnsauto", mode).await;
    broker.kill().await;
    in_the_dark(&mut scene).await;
    in_the_dark(&mut auto).await;
    for scene in [&scene, &auto] {
        let acted = "update postrider.parked set attempts = 7, acted_action = 'retry', acted_by = 'ann', \
                     acted_at = now() where aggregate_id = 'b' and value is not null and length(value) > 3000";
        scene.pipeline.sql.batch(acted).await;
    }
    drop(relay.kill().await);
    drop_slot(&scene.pipeline).await;
    drop_slot(&auto.pipeline).await;
    broker.restart().await;
    for scene in [&scene, &auto] {
        leads(&scene.pipeline.topic).await;
    }

    let value = repaired(&scene.config);
    scene.await_parked("b, b, c").await;
    assert_in_order(&scene.delivered().await["b"], &[2, 3]);
    let history = scene.pipeline.sql.text(HISTORY).await;
    assert_eq!(history.as_deref(), Some("true ann"), "what a person did is kept; {value}");
    polls.await_log("polling the table until", SOON).await;
    auto.await_last("b", 3).await;
    let history = auto.pipeline.sql.text(HISTORY).await;
    assert_eq!(history.as_deref(), Some("true ann"), "what a person did is kept");

    let relay = scene.run();
    for (scene, relay) in [(&mut scene, relay), (&mut auto, polls)] {
        scene.raise_the_limit().await;
        scene.insert(&["b", "c"]).await;
        scene.await_last("b", 8).await;
        scene.await_last("c", 9).await;
        let delivered = scene.delivered().await;
        assert_in_order(&delivered["b"], &[2, 3, 4, 5, 8]);
        assert_in_order(&delivered["c"], &[6, 7, 9]);
        show(&format!(
            "slot lost with 3 unpublished and 4 parked: b came as {:?}, c as {:?}",
            delivered["b"], delivered["c"]
        ));
        relay.await_state("streaming", SOON).await;
        // What came later may have been streamed: then its row stays.
        let left = "select count(*)::text from outbox where id <= 7";
        if scene.config.contains("mode = \"auto\"") {
            assert_eq!(scene.pipeline.sql.text(left).await.as_deref(), Some("0"), "all is marked");
        }
        assert_eq!(relay.terminate(SOON).await.code, Some(0));
    }
}

/// Parked events of an aggregate are on two pages of the list. The repair has requeued those of the first page when it
/// is killed. The next repair requeues the others behind them.
#[tokio::test]
async fn parked_events_on_two_pages_stay_in_order_if_the_repair_is_killed_between_them() {
    let mut broker = PrivateKafka::start("").await;
    let (mut scene, relay) = streaming(&broker, "returnspages", "").await;
    broker.kill().await;
    scene.insert(&["b"]).await;
    scene.insert(&["!b"]).await;
    scene.insert(&["b"; 1_001]).await;
    let parked = "select count(*)::text from postrider.parked";
    await_that("4 and the events behind it to be parked", SOON, || async {
        let parked = scene.pipeline.sql.text(parked).await.unwrap_or_default();
        if parked == "1002" { Ok(()) } else { Err(parked) }
    })
    .await;
    drop(relay.kill().await);
    drop_slot(&scene.pipeline).await;
    broker.restart().await;
    leads(&scene.pipeline.topic).await;

    // The second page is published, and not settled.
    let holder = Client::connect(&scene.pipeline.url).await.expect("a session");
    holder
        .batch(
            "create function hold() returns trigger language plpgsql as \
               $$ begin perform pg_advisory_xact_lock_shared(77); return old; end $$; \
             create trigger hold before delete on postrider.repair_page for each row \
               when (old.number = 1) execute function hold()",
        )
        .await;
    holder.batch("select pg_advisory_lock(77)").await;
    let repairing = Repairing::start(&scene.config);
    let waits = "select count(*)::text from pg_locks where locktype = 'advisory' and objid = 77 and not granted";
    await_that("the second page to be published", SOON, || async {
        let waits = scene.pipeline.sql.text(waits).await.unwrap_or_default();
        if waits == "1" { Ok(()) } else { Err(waits) }
    })
    .await;
    repairing.kill().await;
    let end = "select pg_terminate_backend(pid) from pg_locks \
               where locktype = 'advisory' and objid = 77 and not granted";
    scene.pipeline.sql.batch(end).await;
    gone(&scene.pipeline).await;
    holder.batch("select pg_advisory_unlock(77); drop trigger hold on postrider.repair_page").await;

    scene.raise_the_limit().await;
    repaired(&scene.config);
    let relay = scene.run();
    scene.await_last("b", 1_005).await;
    let wanted: Vec<u64> = (2..=1_005).collect();
    assert_in_order(&scene.delivered().await["b"], &wanted);
    assert_eq!(relay.terminate(SOON).await.code, Some(0));
}

/// A person asks for a parked event that is to come again from the table, while a lock keeps its row from being read.
/// The request stays until then: nothing is known of the event before.
#[tokio::test]
async fn request_for_a_parked_event_that_comes_again_waits_until_it_has_come() {
    let mut broker = PrivateKafka::start("").await;
    let mode = "mode = \"auto\"\npoll = { interval = \"50ms\" }\n";
    let (mut scene, relay) = streaming(&broker, "returnsask", mode).await;
    broker.kill().await;
    in_the_dark(&mut scene).await;
    drop(relay.kill().await);
    drop_slot(&scene.pipeline).await;
    broker.restart().await;
    leads(&scene.pipeline.topic).await;
    let holder = Client::connect(&scene.pipeline.url).await.expect("a session");
    holder.batch("begin; select from outbox where id = 4 for update").await;

    let relay = scene.run();
    let sql = &scene.pipeline.sql;
    let text = async |query: &str| sql.text(query).await.unwrap_or_default();
    let left = "select string_agg(id::text, ' ' order by id) from outbox";
    await_that("all but the locked row, and what is behind it, read", SOON, || async {
        let ids = text(left).await;
        if ids == "4 5" { Ok(()) } else { Err(ids) }
    })
    .await;
    let ask = "update postrider.parked set requested_action = 'skip', requested_at = now(), requested_by = 'ann' \
               where state not in ('done', 'skipped') and length(value) > 3000";
    sql.batch(ask).await;
    let states = "select string_agg(aggregate_id || ' ' || state || ' ' || coalesce(requested_action, 'no'), ', ' \
                  order by aggregate_id) from postrider.parked where acted_by = 'ann' or requested_by = 'ann'";
    await_that("the request for c is carried out", SOON, || async {
        let found = text(states).await;
        if found.contains("c skipped no") { Ok(()) } else { Err(found) }
    })
    .await;
    assert!(text(states).await.contains("skip, c skipped no"), "{}", text(states).await);
    holder.batch("rollback").await;
    await_that("the request for b is carried out", SOON, || async {
        let found = text(states).await;
        if found == "b skipped no, c skipped no" { Ok(()) } else { Err(found) }
    })
    .await;
    scene.await_last("b", 5).await;
    relay.await_state("streaming", SOON).await;
    let delivered = scene.delivered().await;
    assert_in_order(&delivered["b"], &[2, 3, 5]);
    assert_in_order(&delivered["c"], &[6]);
    assert_eq!(relay.terminate(SOON).await.code, Some(0));
}

impl Scene {
    /// Waits until the aggregates of the parked rows that are not resolved, in order, are these.
    async fn await_parked(&self, wanted: &str) {
        let sql = "select coalesce(string_agg(aggregate_id, ', ' order by commit_lsn, ordinal), '') \
                   from postrider.parked where state not in ('done', 'skipped')";
        await_that(&format!("parked: {wanted:?}"), SOON, || async {
            let found = self.pipeline.sql.text(sql).await.unwrap_or_default();
            if found == wanted { Ok(()) } else { Err(found) }
        })
        .await;
    }
}
