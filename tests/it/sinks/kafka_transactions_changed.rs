//! The Kafka sink with transactions while what the progress relies on changes: the coordinator, the cluster, and which
//! changes of a transaction the stream has.

use super::kafka::KafkaServer;
use super::pipeline::SinkPipeline;
use super::scenarios::grown;
use super::server::SinkServer;
use crate::await_that::{SOON, await_that};
use crate::halted::run_to_halt;
use crate::load::{Load, Plan};
use crate::relay::{Relay, postrider_ok};
use crate::topic::{admin, client_config, create_topic};
use rdkafka::admin::{AdminOptions, NewTopic, TopicReplication};
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::metadata::MetadataPartition;
use serde_json::Value;

type Exact = KafkaServer<true, true>;

/// The topic of the progress, and the brokers' topic of transactions.
const PROGRESS: &str = "postrider.progress";
const STATES: &str = "__transaction_state";

/// Partitions of that topic, by the properties of a test's brokers.
const STATES_PARTITIONS: usize = 4;

/// The broker that leads each partition of the topic of transactions.
fn coordinators(brokers: &str) -> Result<Vec<i32>, String> {
    let client: BaseConsumer = client_config(brokers).create().map_err(|e| e.to_string())?;
    let metadata = client.fetch_metadata(Some(STATES), SOON).map_err(|e| e.to_string())?;
    Ok(metadata.topics()[0].partitions().iter().map(MetadataPartition::leader).collect())
}

async fn await_coordinator(brokers: &str, broker: i32) {
    await_that(&format!("broker {broker} to coordinate"), SOON, || async {
        let brokers = brokers.to_owned();
        let found = tokio::task::spawn_blocking(move || coordinators(&brokers)).await;
        let found = found.map_err(|error| error.to_string())??;
        if found.len() == STATES_PARTITIONS && found.iter().all(|leader| *leader == broker) {
            Ok(())
        } else {
            Err(format!("{found:?}"))
        }
    })
    .await;
}

/// Of two brokers the second one coordinates all transactions, and has no other topic. It is killed under load: the
/// first one coordinates from there on, and continues or aborts the transaction that was open.
#[tokio::test]
async fn coordinator_that_is_killed_is_succeeded_and_no_event_is_lost_or_comes_twice() {
    let server = Exact::start().await;
    let first = server.kafka.brokers();
    let mut second = server.kafka.start_beside().await;
    let both: [&[i32]; STATES_PARTITIONS] = [&[2, 1]; STATES_PARTITIONS];
    let states = NewTopic::new(STATES, 4, TopicReplication::Variable(&both));
    let states = states.set("cleanup.policy", "compact");
    let here: [&[i32]; 1] = [&[1]];
    let orders = NewTopic::new("orders", 1, TopicReplication::Variable(&here));
    let orders = orders.set("retention.ms", "-1");
    let progress = NewTopic::new(PROGRESS, 1, TopicReplication::Variable(&here));
    let progress = progress.set("cleanup.policy", "compact");
    let topics = [&states, &orders, &progress];
    let made = admin(&first).create_topics(topics, &AdminOptions::new()).await;
    for result in made.expect("an answer") {
        result.expect("a topic");
    }
    await_coordinator(&first, 2).await;
    let sink = server.sink(None).replace(&first, &format!("{first},{}", second.brokers()));
    let pipeline = SinkPipeline::to(server, "coordinators", &sink).await;
    let relay = pipeline.run();
    let load = Load::start(&Plan { rate: 500, ..pipeline.plan() }, 1);
    let committed = |status: &Value| {
        status["pipelines"][0]["sink_transactions"]["committed_total"].as_u64().unwrap_or(0)
    };
    relay.await_status("commits", SOON, |status| committed(status) >= 20).await;
    second.kill().await;
    await_coordinator(&first, 1).await;
    let before = relay.status().await.map_or(0, |status| committed(&status));
    relay.await_status("commits again", SOON, |status| committed(status) >= before + 20).await;
    grown(&load, 500).await;
    // It is back, and coordinates nothing.
    second.restart().await;
    grown(&load, 500).await;
    let ledger = load.stop().await;
    pipeline.arrived(&ledger).await.assert_balanced(0);
    pipeline.resolved().await;
    assert_eq!(relay.terminate(SOON).await.code, Some(0));
}

/// The brokers are replaced by those of another cluster while the pipeline runs: it halts, and writes nothing there.
/// When the former ones are back, it continues where it was.
#[tokio::test]
async fn another_cluster_at_the_same_address_gets_nothing_and_halts_the_pipeline() {
    let mut pipeline = SinkPipeline::<Exact>::start("cluster").await;
    let relay = pipeline.run();
    pipeline.insert("orders", "a", &[1, 2]).await;
    pipeline.await_values("orders", "a", &["1", "2"]).await;
    pipeline.resolved().await;
    let kafka = &mut pipeline.server.kafka;
    kafka.stop().await;
    let saved = kafka.saved();
    kafka.become_another_cluster().await;
    kafka.restart().await;
    let brokers = kafka.brokers();
    create_topic(&brokers, "orders", 1, &[]).await;
    create_topic(&brokers, PROGRESS, 1, &[("cleanup.policy", "compact")]).await;
    pipeline.insert("orders", "a", &[3]).await;
    let status = relay.await_state("halted", SOON).await;
    let halted = &status["pipelines"][0];
    assert_eq!(halted["halt_code"], "PR025", "{status}");
    let reason = halted["reason"].as_str().unwrap_or_default();
    assert!(reason.contains("the Kafka cluster"), "{status}");
    relay.terminate(SOON).await;
    for topic in ["orders", PROGRESS] {
        let records = pipeline.server.topic(topic).read_uncommitted().await;
        assert!(records.is_empty(), "{topic}: {records:?}");
    }
    let kafka = &mut pipeline.server.kafka;
    kafka.stop().await;
    kafka.restore(&saved);
    kafka.restart().await;
    let relay = pipeline.run();
    pipeline.await_values("orders", "a", &["1", "2", "3"]).await;
    let records = pipeline.server.read("orders").await.expect("records");
    assert_eq!(records.len(), 3, "nothing twice");
    relay.terminate(SOON).await;
}

// A transaction of the database that is larger than the bounds is published in several transactions of Kafka. The
// progress says how many of its changes are published, and the stream says which changes it has.

/// Events of the transaction, and the bound.
const ROWS: usize = 1_000;
const TABLES: &str = "[.sink.transaction]\nevents_max = 100\n";

/// The process is killed when it has seen so many commits.
const COMMITS: &str = "sink_committed:5";

/// A pipeline, one transaction with a change behind each event that is none, and two configurations. With the first
/// one the stream has these changes, and with the second one it has not.
struct Divided<const EXACT: bool> {
    pipeline: SinkPipeline<KafkaServer<true, EXACT>>,
    other: String,
}

impl<const EXACT: bool> Divided<EXACT> {
    async fn start(test: &str) -> Self {
        let server = KafkaServer::<true, EXACT>::start().await;
        server.create("orders").await;
        let sink = server.sink(None) + TABLES;
        let mut pipeline = SinkPipeline::to(server, test, &sink).await;
        let table = "table = \"public.outbox\"\n";
        assert!(pipeline.config.contains(table), "{}", pipeline.config);
        let with = pipeline.config.replace(table, &format!("{table}message_prefix = \"ours\"\n"));
        let other = std::mem::replace(&mut pipeline.config, with);
        Self { pipeline, other }
    }

    /// Commits the transaction.
    async fn commit(&self, behind_each: &str) {
        let sql = format!(
            "do $$ begin for i in 1..{ROWS} loop \
               insert into outbox (aggregate_type, aggregate_id, event_type, payload) \
                 values ('orders', 'a', 'T', to_json(i)); \
               {behind_each}; \
             end loop; end $$"
        );
        self.pipeline.sql.batch(&sql).await;
    }

    /// Publishes a part of it; returns how many events that is.
    async fn kill_within(&self) -> usize {
        let at = [("POSTRIDER_FAILPOINT", COMMITS)];
        let ended = Relay::spawn_with(&self.pipeline.config, &[], &at).ended(SOON).await;
        assert!(ended.stderr.contains("as POSTRIDER_FAILPOINT asks"), "{}", ended.stderr);
        let records = self.pipeline.server.read("orders").await.expect("records").len();
        assert!((1..ROWS).contains(&records), "{records} of {ROWS}");
        records
    }

    /// Waits until every event is there, and then for one that is committed later.
    async fn complete(&self) {
        let wanted: Vec<String> = (1..=ROWS).map(|number| number.to_string()).collect();
        let wanted: Vec<&str> = wanted.iter().map(String::as_str).collect();
        self.pipeline.await_values("orders", "a", &wanted).await;
        self.pipeline.insert("orders", "b", &[1]).await;
        self.pipeline.await_values("orders", "b", &["1"]).await;
    }

    /// How many records there are.
    async fn count(&self) -> usize {
        self.pipeline.server.read("orders").await.expect("records").len()
    }
}

/// Logical messages, none of which is an event.
const MESSAGE: &str = "perform pg_logical_emit_message(true, 'theirs', 'x')";

/// Without messages the position would leave out one event for each message before it.
#[tokio::test]
async fn messages_turned_off_within_a_transaction_halt_until_they_are_on_again() {
    let mut divided = Divided::<true>::start("messagesoff").await;
    divided.commit(MESSAGE).await;
    let there = divided.kill_within().await;
    let halted = run_to_halt(&divided.other).await;
    let hint = ["set both as they were", "setup --adopt-cursor"];
    halted.assert_says("PR025", &["a part of the transaction", "outbox.message_prefix"], &hint);
    assert_eq!(divided.count().await, there, "nothing was published");
    let relay = divided.pipeline.run();
    divided.complete().await;
    assert_eq!(divided.count().await, ROWS + 1, "nothing twice");
    divided.pipeline.resolved().await;
    relay.terminate(SOON).await;
    // Between two transactions it is no more than a setting.
    divided.pipeline.config.clone_from(&divided.other);
    let relay = divided.pipeline.run();
    divided.pipeline.insert("orders", "c", &[1]).await;
    divided.pipeline.await_values("orders", "c", &["1"]).await;
    assert_eq!(divided.count().await, ROWS + 2, "nothing twice");
    relay.terminate(SOON).await;
}

/// Another publication has other tables. The way that repeats the transaction is taken.
#[tokio::test]
async fn another_publication_within_a_transaction_halts_until_the_cursor_row_is_adopted() {
    let divided = Divided::<true>::start("otherpublication").await;
    let name = &divided.pipeline.name;
    let source = format!("[pipelines.{name}.source]\n");
    let other = format!(
        "create table theirs (i int); \
                         create publication {name}_other for table outbox, theirs with (publish = 'insert')"
    );
    divided.pipeline.sql.batch(&other).await;
    // The server streams with a publication that exists where the stream begins.
    let relay = divided.pipeline.run();
    divided.pipeline.resolved().await;
    relay.terminate(SOON).await;
    divided.commit("insert into theirs values (i)").await;
    let there = divided.kill_within().await;
    let config = divided
        .pipeline
        .config
        .replace(&source, &format!("{source}publication = \"{name}_other\"\n"));
    let halted = run_to_halt(&config).await;
    halted.assert_says("PR025", &["source.publication"], &["setup --adopt-cursor"]);
    postrider_ok(&config, &["setup", "--adopt-cursor"]);
    let relay = Relay::spawn(&config);
    divided.complete().await;
    assert_eq!(divided.count().await, there + ROWS + 1, "its published part came twice");
    relay.terminate(SOON).await;
}

/// Where repetitions are allowed, the published part is repeated, as without transactions.
#[tokio::test]
async fn messages_turned_off_within_a_transaction_repeat_its_published_part_with_fencing_alone() {
    let mut divided = Divided::<false>::start("fencedoff").await;
    divided.commit(MESSAGE).await;
    divided.kill_within().await;
    divided.pipeline.config.clone_from(&divided.other);
    let relay = divided.pipeline.run();
    relay.await_log("partial_dropped", SOON).await;
    divided.complete().await;
    relay.terminate(SOON).await;
}

/// The server decodes a transaction with the publication as it was when the transaction was committed: a publication
/// that is changed later has the same changes of it.
#[tokio::test]
async fn publication_altered_behind_a_transaction_changes_nothing_of_it() {
    let divided = Divided::<true>::start("altered").await;
    let name = &divided.pipeline.name;
    let publication = format!("postrider_{name}");
    let create =
        format!("create table theirs (i int); alter publication {publication} add table theirs");
    divided.pipeline.sql.batch(&create).await;
    divided.commit("insert into theirs values (i)").await;
    divided.kill_within().await;
    let drop = format!("alter publication {publication} drop table theirs");
    divided.pipeline.sql.batch(&drop).await;
    // The stream would leave out events that are committed from now on.
    let filter =
        format!("alter publication {publication} set table outbox where (aggregate_id = 'b')");
    divided.pipeline.sql.batch(&filter).await;
    let halted = run_to_halt(&divided.pipeline.config).await;
    assert_eq!(halted.code, "PR008", "{halted:#?}");
    divided.pipeline.sql.batch(&format!("alter publication {publication} set table outbox")).await;
    let relay = divided.pipeline.run();
    divided.complete().await;
    assert_eq!(divided.count().await, ROWS + 1, "nothing twice");
    relay.terminate(SOON).await;
}
