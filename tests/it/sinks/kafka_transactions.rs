//! What only the Kafka sink with transactions has: producers, the topic of the progress, rights, other pipelines.

use super::kafka::KafkaServer;
use super::pipeline::{SinkPipeline, state};
use super::server::SinkServer;
use super::transaction_caller::{FIRST, SECOND, TransactionCaller, topics, values};
use crate::await_that::{SOON, await_that};
use crate::halted::run_to_halt;
use crate::private::free_port;
use crate::relay::{postrider, postrider_ok};
use crate::server::{brokers, unique};
use crate::sink_caller::record;
use crate::topic::{client_config, create_topic};
use postrider::record::Ticket;
use postrider::sink::{NotTaken, Post};
use rdkafka::producer::{BaseProducer, BaseRecord, Producer};

type Exact = KafkaServer<true, true>;

/// The topic of the progress, where the configuration names no other one.
const PROGRESS: &str = "postrider.progress";

#[tokio::test]
async fn records_and_progress_become_visible_together() {
    let (orders, spec) = topics("visible").await;
    let mut sink = TransactionCaller::open(&spec);
    assert_eq!(sink.recover().await, None);
    for value in ["1", "2"] {
        sink.send(&orders.name, value).await;
    }
    assert!(orders.read_all().await.is_empty(), "the transaction is open");
    let call = sink.commit(FIRST);
    sink.committed(call).await;
    assert_eq!(values(&orders.read_all().await), ["1", "2"]);
    sink.send(&orders.name, "3").await;
    let call = sink.commit(SECOND);
    sink.committed(call).await;
    // Without a record, too.
    let call = sink.commit(SECOND);
    sink.committed(call).await;
    sink.send(&orders.name, "lost").await;
    // Another process.
    let mut next = TransactionCaller::open(&spec);
    assert_eq!(next.recover().await, Some(SECOND.parse().unwrap()));
    next.send(&orders.name, "4").await;
    let call = next.commit(SECOND);
    next.committed(call).await;
    assert_eq!(values(&orders.read_all().await), ["1", "2", "3", "4"]);
}

/// The former owner has sent records and calls for a commit: nothing of it becomes visible, and nothing is written
/// behind a record of the new owner.
#[tokio::test]
async fn former_producer_writes_nothing_after_a_recovery() {
    let (orders, spec) = topics("former").await;
    let mut former = TransactionCaller::open(&spec);
    former.recover().await;
    former.send(&orders.name, "of the former").await;
    let mut owner = TransactionCaller::open(&spec);
    assert_eq!(owner.recover().await, None);
    owner.send(&orders.name, "1").await;
    former.commit(SECOND);
    let reason = former.broken().await;
    assert!(reason.contains("transactional id"), "{reason}");
    let call = owner.commit(FIRST);
    owner.committed(call).await;
    assert_eq!(values(&orders.read_all().await), ["1"]);
    assert_eq!(values(&orders.read_uncommitted().await), ["of the former", "1"]);
    assert_eq!(former.recover().await, Some(FIRST.parse().unwrap()), "and it has the id again");
    owner.commit(SECOND);
    owner.broken().await;
}

/// The intake of the pipeline is closed meanwhile: what is offered before the recovery, and during a commit, waits.
#[tokio::test]
async fn nothing_is_taken_without_an_open_transaction() {
    let (orders, spec) = topics("closed").await;
    let mut sink = TransactionCaller::open(&spec);
    let offered = record(&orders.name, "k", b"1");
    assert_eq!(sink.sink.enqueue(Ticket(1), &offered), Err(NotTaken::Full));
    sink.recover().await;
    sink.send(&orders.name, "2").await;
    assert!(!sink.sink.is_idle(), "a transaction is open");
    let call = sink.commit(FIRST);
    assert_eq!(sink.sink.enqueue(Ticket(2), &offered), Err(NotTaken::Full));
    sink.committed(call).await;
    assert!(sink.sink.is_idle());
    let progress_topic = &spec.transaction.as_ref().expect("transactions").progress_topic;
    let to_progress = sink.sink.enqueue(Ticket(3), &record(progress_topic, "k", b"3"));
    assert!(matches!(to_progress, Err(NotTaken::Refused(_))), "{to_progress:?}");
}

/// A process of another pipeline has ended in the middle of its transaction: the progress behind that can't be read,
/// and is waited for.
#[tokio::test]
async fn open_transaction_of_another_pipeline_is_waited_for() {
    let (orders, spec) = topics("other").await;
    let transaction = spec.transaction.as_ref().expect("transactions");
    let mut sink = TransactionCaller::open(&spec);
    sink.recover().await;
    let other: BaseProducer = client_config(&brokers())
        .set("transactional.id", unique("another"))
        .create()
        .expect("a producer");
    other.init_transactions(SOON).expect("transactions");
    other.begin_transaction().expect("a transaction");
    let open =
        BaseRecord::to(&transaction.progress_topic).key("another").payload("1 -").partition(0);
    other.send(open).expect("a record");
    other.flush(SOON).expect("an open transaction");
    sink.send(&orders.name, "1").await;
    let call = sink.commit(FIRST);
    sink.committed(call).await;
    let mut next = TransactionCaller::open(&spec);
    let number = next.call();
    next.sink.transactional().expect("transactions").recover(number);
    let said = |post: &Post| {
        if let Post::Down { reason, .. } = post { Some(reason.clone()) } else { None }
    };
    let reason = next.until("reason", said).await;
    assert!(reason.contains("can't be read to its end"), "{reason}");
    other.commit_transaction(SOON).expect("its end");
    let progress = next.until("recovery", |post| {
        if let Post::Recovered { progress, .. } = post { Some(progress.clone()) } else { None }
    });
    assert_eq!(progress.await, Some(FIRST.parse().unwrap()));
}

async fn pipeline(test: &str) -> SinkPipeline<Exact> {
    SinkPipeline::start(test).await
}

/// The topic of the progress is deleted: the pipeline waits, and does not take itself for a new one. `postrider setup`
/// creates the topic, and the pipeline continues at its cursor row.
#[tokio::test]
async fn deleted_progress_is_waited_for_and_setup_begins_at_the_cursor_row() {
    let pipeline = pipeline("deleted").await;
    let relay = pipeline.run();
    pipeline.insert("orders", "a", &[1, 2]).await;
    pipeline.await_values("orders", "a", &["1", "2"]).await;
    pipeline.resolved().await;
    relay.terminate(SOON).await;
    pipeline.server.topic(PROGRESS).delete().await;
    let relay = pipeline.run();
    relay.await_log("which has the progress, does not exist", SOON).await;
    relay.await_state("broker_down", SOON).await;
    pipeline.insert("orders", "a", &[3]).await;
    // An empty topic is none that a pipeline has published with.
    create_topic(&pipeline.server.kafka.brokers(), PROGRESS, 1, &[("cleanup.policy", "compact")])
        .await;
    relay.await_log("has no progress of", SOON).await;
    let said = postrider_ok(&pipeline.config, &["setup"]);
    assert!(said.contains("begins at the cursor row"), "{said}");
    pipeline.await_values("orders", "a", &["1", "2", "3"]).await;
    assert_eq!(pipeline.server.read("orders").await.expect("records").len(), 3, "nothing twice");
    pipeline.resolved().await;
    let said = postrider_ok(&pipeline.config, &["setup"]);
    assert!(said.contains("has the progress of"), "a second time changes nothing: {said}");
    pipeline.insert("orders", "a", &[4]).await;
    pipeline.await_values("orders", "a", &["1", "2", "3", "4"]).await;
    relay.terminate(SOON).await;
}

/// There and back: the stored progress is older than the cursor row then, which looks as if the brokers had lost
/// records.
#[tokio::test]
async fn progress_behind_the_cursor_row_halts_until_the_row_is_adopted() {
    let mut pipeline = pipeline("adopt").await;
    let exactly_once = pipeline.config.clone();
    let at_least_once = exactly_once.replace("delivery = \"exactly-once\"\n", "");
    for (config, number) in [(&exactly_once, 1), (&at_least_once, 2)] {
        pipeline.config.clone_from(config);
        let relay = pipeline.run();
        pipeline.insert("orders", "a", &[number]).await;
        let values: Vec<String> = (1..=number).map(|number| number.to_string()).collect();
        let values: Vec<&str> = values.iter().map(String::as_str).collect();
        pipeline.await_values("orders", "a", &values).await;
        pipeline.resolved().await;
        relay.terminate(SOON).await;
    }
    pipeline.config = exactly_once;
    let halted = run_to_halt(&pipeline.config).await;
    halted.assert_says("PR025", &["is behind the cursor row at"], &["docs/exactly-once.md"]);
    postrider_ok(&pipeline.config, &["setup", "--adopt-cursor"]);
    let relay = pipeline.run();
    pipeline.insert("orders", "a", &[3]).await;
    pipeline.await_values("orders", "a", &["1", "2", "3"]).await;
    assert_eq!(pipeline.server.read("orders").await.expect("records").len(), 3, "nothing twice");
    relay.terminate(SOON).await;
}

/// Rights to the transactional id are taken away: the login is refused for good by librdkafka's producer, and works
/// again when they are back.
#[tokio::test]
async fn transactional_id_that_is_not_allowed_is_named_and_waited_for() {
    let pipeline = pipeline("denied").await;
    let relay = pipeline.run();
    pipeline.insert("orders", "a", &[1]).await;
    pipeline.await_values("orders", "a", &["1"]).await;
    let status = relay.status().await.expect("a status");
    assert_eq!(state(&status), "streaming", "{status}");
    relay.terminate(SOON).await;
    let dbname = pipeline.sql.text("select current_database()").await.expect("a name");
    let id = format!("postrider.{dbname}.{}", pipeline.name);
    pipeline.server.kafka.deny_transactions(&id, true);
    let relay = pipeline.run();
    relay.await_log("do not allow us the transactional id", SOON).await;
    pipeline.insert("orders", "a", &[2]).await;
    pipeline.server.kafka.deny_transactions(&id, false);
    pipeline.await_values("orders", "a", &["1", "2"]).await;
    relay.terminate(SOON).await;
}

#[tokio::test]
async fn check_looks_at_the_topic_of_the_progress() {
    let pipeline = pipeline("progress").await;
    let check = || {
        let output = postrider(&pipeline.config, &["check"]);
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let good = check();
    assert!(good.contains("exactly once") && good.contains("has the progress of"), "{good}");
    let topic = pipeline.server.topic(PROGRESS);
    crate::sink_caller::alter(&topic, "cleanup.policy", "delete").await;
    let found = check();
    assert!(
        found.contains("is not compacted") && found.contains("cleanup.policy=compact"),
        "{found}"
    );
    topic.delete().await;
    let found = check();
    assert!(found.contains("does not exist") && found.contains("' setup"), "{found}");
    create_topic(&pipeline.server.kafka.brokers(), PROGRESS, 2, &[("cleanup.policy", "compact")])
        .await;
    await_that("two partitions", SOON, || async {
        let found = check();
        if found.contains("has 2 partitions") && found.contains("has no progress of") {
            Ok(())
        } else {
            Err(found)
        }
    })
    .await;
}

/// Without the first record of the progress nothing is published, so `postrider setup` fails if it is not written.
#[tokio::test]
async fn setup_that_could_not_begin_the_progress_fails() {
    let pipeline = pipeline("unprepared").await;
    let nowhere = pipeline.server.kafka.brokers();
    let config = pipeline.config.replace(&nowhere, &format!("127.0.0.1:{}", free_port()));
    let output = postrider(&config, &["setup"]);
    let (said, error) = (
        String::from_utf8_lossy(&output.stdout).into_owned(),
        String::from_utf8_lossy(&output.stderr).into_owned(),
    );
    assert_eq!(output.status.code(), Some(1), "{said}{error}");
    assert!(
        said.contains("not done       progress in topic \"postrider.progress\": no answer"),
        "{said}"
    );
    assert!(error.contains("is set up in the database, but not at the broker"), "{error}");
    postrider_ok(&pipeline.config, &["setup"]);
}
