//! A topic that asks for more copies than there are.

use super::PrivateKafka;
use crate::await_that::{SOON, await_that};
use crate::topic::{Topic, admin, client_config};
use rdkafka::admin::{AdminOptions, NewTopic, TopicReplication};
use rdkafka::consumer::{BaseConsumer, Consumer as _};

/// Makes a topic of which two brokers must have each record, and kills the second, which is given back. The first leads
/// alone then, and takes nothing until the second runs again. (Of a topic that never had two copies it would take
/// records: it asks for no more copies than there should be.)
pub(crate) async fn topic_that_lacks_a_copy(
    kafka: &PrivateKafka,
    name: String,
    partitions: i32,
) -> (Topic, PrivateKafka) {
    let mut second = kafka.start_beside().await;
    let brokers = kafka.brokers();
    let twice = NewTopic::new(&name, partitions, TopicReplication::Fixed(2));
    let twice = twice.set("min.insync.replicas", "2").set("retention.ms", "-1");
    let made = admin(&brokers).create_topics([&twice], &AdminOptions::new()).await;
    for result in made.expect("an answer") {
        result.expect("a topic");
    }
    second.kill().await;
    await_that("the first broker leads", SOON, || async {
        let consumer: BaseConsumer = client_config(&brokers).create().expect("a client");
        let metadata = consumer.fetch_metadata(Some(&name), SOON);
        let metadata = metadata.map_err(|error| error.to_string())?;
        let all = metadata.topics()[0].partitions();
        let led = all.iter().filter(|one| one.leader() == 1 && one.isr() == [1]).count();
        if i32::try_from(led) == Ok(partitions) {
            Ok(())
        } else {
            Err(format!("{led} of {partitions}"))
        }
    })
    .await;
    (Topic { brokers, name }, second)
}
