//! Parked events of the old slot: they stay, and the rows of their aggregates wait behind them.

use super::{drop_slot, number, repaired};
use crate::parking::{SOON, Scene, assert_in_order};
use crate::pipeline::show;
use crate::server::Version;

#[tokio::test]
async fn rows_of_a_parked_aggregate_wait_behind_its_parked_event() {
    let mut scene = Scene::set(Version::Pg17, "reppark").await;
    let relay = crate::relay::Relay::spawn(&scene.config);
    relay.await_state("streaming", SOON).await;
    scene.insert(&["a", "!b", "c"]).await;
    scene.pipeline.topic.await_records(2, SOON).await;
    drop(relay.kill().await);
    scene.insert(&["b", "a", "b", "c"]).await;
    drop_slot(&scene.pipeline).await;
    let value = repaired(&scene.config);
    let behind = "select count(*)::text from postrider.parked where state in ('behind', 'due') and aggregate_id = 'b'";
    assert_eq!(scene.pipeline.sql.text(behind).await.as_deref(), Some("2"), "{value}");
    let published = scene.pipeline.topic.read_all().await;
    let of_b = published.iter().filter(|record| record.key_text() == Some("b")).count();
    assert_eq!(of_b, 0, "an event of b overtook its parked one");
    show(&format!(
        "a parked event of the old slot: {} rows done, 2 of them parked behind it, none of its aggregate published",
        number(&value, "published")
    ));
    // The destination is mended: all of b comes, in order.
    scene.raise_the_limit().await;
    let relay = crate::relay::Relay::spawn(&scene.config);
    relay.await_state("streaming", SOON).await;
    scene.insert(&["b"]).await;
    scene.await_last("b", 8).await;
    assert_in_order(&scene.delivered().await["b"], &[2, 4, 6, 8]);
    assert_eq!(relay.terminate(SOON).await.code, Some(0));
}
