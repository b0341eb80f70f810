//! Topics that come and go, and rights to them: `parking.park_after`.

use crate::await_that::await_that;
use crate::parking::{SOON, Scene};
use crate::pipeline::Pipeline;
use crate::private::PrivateKafka;
use crate::relay::postrider_ok;
use crate::server::Version;
use crate::topic::{Topic, create_topic};
use std::collections::{BTreeMap, HashSet};

/// A topic is given up after two seconds.
const LINES: &str =
    "attempts_max = 3\nbackoff = { step = \"300ms\", steps_max = 1 }\npark_after = \"2s\"";

/// Events of type `order` and `shy` go to topics of their own; the first exists.
struct Stage {
    scene: Scene,
    shy: Topic,
}

impl Stage {
    async fn set(pipeline: Pipeline) -> Self {
        let order = pipeline.topic.name.clone();
        let prefix = format!("{order}-");
        let mut scene = Scene::of(pipeline, LINES).await;
        scene.config = scene.config.replace(
            &format!("topic = \"{order}\""),
            &format!("topic = \"{prefix}{{aggregate_type}}\""),
        );
        let brokers = scene.pipeline.topic.brokers.clone();
        create_topic(&brokers, &format!("{prefix}order"), 1, &[]).await;
        scene.pipeline.topic.name = format!("{prefix}order");
        let shy = Topic { brokers, name: format!("{prefix}shy") };
        Self { scene, shy }
    }

    /// Three events of two aggregates of each type, in turn.
    async fn insert(&self, from: u64) {
        let sql = format!(
            "insert into outbox (aggregate_type, aggregate_id, event_type, payload) \
             select kind, (i % 2)::text, 'T', json_build_object('n', i) \
             from generate_series({from}, {from} + 2) i, unnest(array['shy', 'order']) kind"
        );
        self.scene.pipeline.sql.batch(&sql).await;
    }

    async fn await_parked(&self, wanted: &str) {
        let sql = "select coalesce(string_agg(concat_ws(' ', aggregate_type, aggregate_id, state, error_code, \
                     attempts), ', ' order by commit_lsn, ordinal), '') from postrider.parked \
                   where state not in ('done', 'skipped')";
        await_that(&format!("parked: {wanted:?}"), SOON, || async {
            let found = self.scene.value(sql).await;
            if found == wanted { Ok(()) } else { Err(found) }
        })
        .await;
    }
}

/// What each aggregate got, in order.
async fn numbers(topic: &Topic, count: usize) -> BTreeMap<String, Vec<u64>> {
    let mut by_key: BTreeMap<String, Vec<u64>> = BTreeMap::new();
    for record in topic.await_records(count, SOON).await {
        let key = record.key_text().expect("a key").to_owned();
        by_key.entry(key).or_default().push(crate::parking::number(&record));
    }
    by_key
}

fn is(zero: &[u64], one: &[u64]) -> BTreeMap<String, Vec<u64>> {
    [("0".to_owned(), zero.to_vec()), ("1".to_owned(), one.to_vec())].into()
}

const FIRST: &str = "shy 1 waiting topic_missing 0, shy 0 waiting topic_missing 0, shy 1 behind 0";

/// The same of a topic that was known.
const FIRST_KNOWN: &str =
    "shy 1 waiting destination 0, shy 0 waiting destination 0, shy 1 behind 0";

#[tokio::test]
async fn topic_that_is_missing_parks_its_events_alone_until_it_is_made_anew() {
    let stage = Stage::set(Pipeline::shared(Version::Pg18, "given_up").await).await;
    let relay = stage.scene.run();
    stage.insert(1).await;
    stage.await_parked(FIRST).await;
    assert_eq!(numbers(&stage.scene.pipeline.topic, 3).await, is(&[2], &[1, 3]));
    stage.scene.await_passed().await;
    create_topic(&stage.shy.brokers, &stage.shy.name, 1, &[]).await;
    stage.await_parked("").await;
    stage.insert(4).await;
    assert_eq!(numbers(&stage.shy, 6).await, is(&[2, 4, 6], &[1, 3, 5]), "in order, none twice");

    // Deleted while it is known: what is handed over is refused first, and then its events are parked too.
    stage.shy.delete().await;
    stage.insert(7).await;
    await_that("all three parked", SOON * 2, || async {
        let sql =
            "select count(*)::text from postrider.parked where state in ('waiting', 'behind')";
        let found = stage.scene.value(sql).await;
        if found == "3" { Ok(()) } else { Err(found) }
    })
    .await;
    stage.scene.await_passed().await;
    create_topic(&stage.shy.brokers, &stage.shy.name, 1, &[]).await;
    stage.await_parked("").await;
    assert_eq!(numbers(&stage.shy, 3).await, is(&[8], &[7, 9]), "in the new topic, in order");
    stage.scene.end(relay).await;
}

/// Events are parked for a topic that is missing. To the next process, whether it streams or polls, that is no trouble
/// of the broker's: it tries them now and then, and all others flow.
#[tokio::test]
async fn parked_events_whose_topic_is_missing_hold_up_no_other() {
    let mut stage = Stage::set(Pipeline::shared(Version::Pg18, "nowhere").await).await;
    let relay = stage.scene.run();
    stage.insert(1).await;
    stage.await_parked(FIRST).await;
    stage.scene.end(relay).await;
    let polls = |config: &str| {
        let lines = "mode = \"poll\"\npoll = { interval = \"50ms\" }\n";
        let head = format!("[pipelines.{}]\n", stage.scene.pipeline.name);
        config.replacen(&head, &format!("{head}{lines}"), 1)
    };
    let (streams, polls) = (stage.scene.config.clone(), polls(&stage.scene.config));
    for (config, state, from) in [(streams, "streaming", 10), (polls, "polling", 20)] {
        stage.scene.config = config;
        // What the stream has published stands in the table still, and would be polled.
        stage.scene.pipeline.sql.batch("delete from outbox").await;
        postrider_ok(&stage.scene.config, &["adopt"]);
        let relay = stage.scene.run();
        relay.await_log("events of the topic are parked", SOON).await;
        let sql = format!(
            "insert into outbox (aggregate_type, aggregate_id, event_type, payload) \
             select 'order', '0', 'T', json_build_object('n', i) from generate_series({from}, {from} + 2) i"
        );
        stage.scene.pipeline.sql.batch(&sql).await;
        let before = if from == 10 { 3 } else { 6 };
        numbers(&stage.scene.pipeline.topic, before + 3).await;
        relay.await_state(state, SOON).await;
        let said = relay.stderr();
        assert!(
            !said.contains("broker not available") && !said.contains("waiting for topic"),
            "{said}"
        );
        stage.scene.end(relay).await;
    }
    create_topic(&stage.shy.brokers, &stage.shy.name, 1, &[]).await;
    let relay = stage.scene.run();
    assert_eq!(numbers(&stage.shy, 3).await, is(&[2], &[1, 3]), "in order, none twice");
    stage.scene.end(relay).await;
}

/// Real ACLs: taken away and given back.
#[tokio::test]
async fn topic_whose_rights_are_taken_away_parks_its_events_until_they_are_given_back() {
    let broker = PrivateKafka::start_with_rules().await;
    let pipeline = Pipeline::to_broker(Version::Pg17, &broker.brokers(), "acl").await;
    let stage = Stage::set(pipeline).await;
    create_topic(&stage.shy.brokers, &stage.shy.name, 1, &[]).await;
    broker.deny(&stage.shy.name, true);
    let relay = stage.scene.run();
    stage.insert(1).await;
    stage.await_parked(FIRST).await;
    assert_eq!(numbers(&stage.scene.pipeline.topic, 3).await, is(&[2], &[1, 3]));
    stage.scene.await_passed().await;
    relay.await_log("not open to us", SOON).await;
    broker.deny(&stage.shy.name, false);
    stage.await_parked("").await;
    stage.insert(4).await;
    assert_eq!(numbers(&stage.shy, 6).await, is(&[2, 4, 6], &[1, 3, 5]), "in order, none twice");
    stage.scene.end(relay).await;
}

/// Such a topic is known like any other, until it refuses a record: that costs a producer, once.
#[tokio::test]
async fn topic_that_may_be_seen_and_not_written_to_parks_its_events_too() {
    let broker = PrivateKafka::start_with_rules().await;
    let pipeline = Pipeline::to_broker(Version::Pg17, &broker.brokers(), "acl_write").await;
    let stage = Stage::set(pipeline).await;
    create_topic(&stage.shy.brokers, &stage.shy.name, 1, &[]).await;
    broker.deny_writes(&stage.shy.name);
    let relay = stage.scene.run();
    stage.insert(1).await;
    stage.await_parked(FIRST_KNOWN).await;
    stage.scene.await_passed().await;
    relay.await_log("not open to us", SOON).await;
    stage.insert(4).await;
    let order = numbers(&stage.scene.pipeline.topic, 6).await;
    let firsts = order.into_iter().map(|(key, mut numbers)| {
        // What was in flight beside the record that was refused comes again.
        let mut seen = HashSet::new();
        numbers.retain(|number| seen.insert(*number));
        (key, numbers)
    });
    assert_eq!(firsts.collect::<BTreeMap<_, _>>(), is(&[2, 4, 6], &[1, 3, 5]));
    let status = relay.status().await.expect("a status");
    let resets = status["pipelines"][0]["sink_resets_total"].as_u64().expect("a number");
    assert!((1..=2).contains(&resets), "{resets} producers thrown away\n{}", relay.stderr());
    broker.deny(&stage.shy.name, false);
    stage.await_parked("").await;
    assert_eq!(numbers(&stage.shy, 6).await, is(&[2, 4, 6], &[1, 3, 5]), "in order, none twice");
    stage.scene.end(relay).await;
}

/// A broker that does not answer is nobody's fault: nothing is parked, however long it takes.
#[tokio::test]
async fn broker_that_is_gone_parks_nothing() {
    let mut broker = PrivateKafka::start("").await;
    let pipeline = Pipeline::to_broker(Version::Pg15, &broker.brokers(), "gone").await;
    let stage = Stage::set(pipeline).await;
    create_topic(&stage.shy.brokers, &stage.shy.name, 1, &[]).await;
    broker.stop().await;
    let relay = stage.scene.run();
    stage.insert(1).await;
    relay.await_state("broker_down", SOON).await;
    // Twice `park_after`, by the relay's own word: it has been down for that long.
    let long = |status: &serde_json::Value| {
        status["pipelines"][0]["lag_seconds"].as_f64().is_some_and(|lag| lag > 4.0)
    };
    relay.await_status("a lag of four seconds", SOON, long).await;
    stage.await_parked("").await;
    broker.restart().await;
    assert_eq!(numbers(&stage.shy, 3).await, is(&[2], &[1, 3]));
    stage.scene.end(relay).await;
    assert_eq!(stage.scene.value("select count(*)::text from postrider.parked").await, "0");
}
