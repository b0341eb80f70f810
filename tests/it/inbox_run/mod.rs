//! `postrider inbox run`: records of Kafka are stored in an inbox, each once and in order, whatever is killed.

mod blocked;
mod crowd;
mod outages;
mod records;

use crate::await_that::{SOON, await_or_dump};
use crate::relay::Relay;
use crate::server::{Client, Database, Version};
use crate::toolkit::install_toolkit;
use crate::topic::{Topic, client_config};
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::{FutureProducer, FutureRecord};
use std::fmt::Write as _;
use std::time::Duration;

/// A configuration of one intake, `jobs`; `more` has further keys and tables of it.
fn config(url: &str, brokers: &str, topics: &str, more: &str) -> String {
    format!(
        "[inboxes.jobs]\n\
         [inboxes.jobs.database]\nurl = \"{url}\"\n\
         [inboxes.jobs.source]\nbrokers = \"{brokers}\"\ntopics = \"{topics}\"\ngroup = \"{topics}\"\n\
         [inboxes.jobs.source.properties]\n\"session.timeout.ms\" = \"6000\"\n\"heartbeat.interval.ms\" = \"500\"\n\
         \"fetch.wait.max.ms\" = \"20\"\n{more}"
    )
}

/// Installs the toolkit, and creates the inbox `jobs`.
async fn create_inbox(sql: &Client) {
    install_toolkit(sql, "postgres").await;
    sql.batch("select postrider.create_inbox('jobs')").await;
}

/// A database with the inbox `jobs`.
struct World {
    database: Database,
    sql: Client,
}

impl World {
    async fn create(version: Version, test: &str) -> Self {
        let database = Database::create(version, test).await;
        let sql = database.connect().await;
        create_inbox(&sql).await;
        Self { database, sql }
    }

    fn config(&self, topic: &Topic, more: &str) -> String {
        config(&self.database.url(), &topic.brokers, &topic.name, more)
    }
}

/// A record to be written.
#[derive(Clone, Copy, Default)]
struct Written<'a> {
    partition: Option<i32>,
    key: Option<&'a [u8]>,
    value: Option<&'a [u8]>,
    headers: &'a [(&'a str, &'a [u8])],
}

fn producer(brokers: &str) -> FutureProducer {
    let mut config = client_config(brokers);
    config.set("enable.idempotence", "true").set("linger.ms", "5");
    config.create().expect("a producer")
}

/// Writes records, and waits until the broker has all of them.
async fn write(topic: &Topic, records: &[Written<'_>]) {
    let producer = producer(&topic.brokers);
    let mut waiting = Vec::new();
    for written in records {
        let mut headers = OwnedHeaders::new();
        for (key, value) in written.headers {
            headers = headers.insert(Header { key, value: Some(*value) });
        }
        let mut record: FutureRecord<'_, [u8], [u8]> =
            FutureRecord::to(&topic.name).headers(headers);
        record.partition = written.partition;
        record.key = written.key;
        record.payload = written.value;
        waiting.push(producer.send_result(record).map_err(|(error, _)| error).expect("room"));
    }
    for delivery in waiting {
        delivery.await.expect("an answer").map_err(|(error, _)| error).expect("a delivery");
    }
}

/// Writes numbers as JSON, each with the key that `key` gives.
async fn write_numbers(
    topic: &Topic,
    numbers: std::ops::RangeInclusive<u64>,
    key: impl Fn(u64) -> String,
) {
    let all: Vec<(String, String)> =
        numbers.map(|number| (key(number), format!("{{\"n\": {number}}}"))).collect();
    let records: Vec<Written<'_>> = all
        .iter()
        .map(|(key, value)| Written {
            key: Some(key.as_bytes()),
            value: Some(value.as_bytes()),
            ..Written::default()
        })
        .collect();
    write(topic, &records).await;
}

/// Waits until a query has this answer.
async fn await_answer(sql: &Client, query: &str, answer: &str, relay: &Relay) {
    let look = || async {
        let now = sql.text(query).await.unwrap_or_default();
        if now == answer { Ok(()) } else { Err(now) }
    };
    let what = format!("{answer} from {query}");
    await_or_dump(&what, SOON, look, || relay.stderr()).await;
}

/// Number of messages in the inbox.
const COUNT: &str = "select count(*) from postrider_inbox.jobs";

/// What is wrong with the inbox, if it should have each of the numbers up to `last` once, and those of a key in order;
/// empty if nothing is.
async fn faults(sql: &Client, last: u64) -> String {
    let mut faults = String::new();
    let query = format!(
        "select count(*) from generate_series(1, {last}) n
         where not exists (select from postrider_inbox.jobs j where (j.payload ->> 'n')::bigint = n)"
    );
    for (what, query) in [
        ("missing", query.as_str()),
        (
            "repeated",
            "select count(*) - count(distinct payload ->> 'n') from postrider_inbox.jobs where dead_at is null",
        ),
        (
            "swapped",
            "select count(*) from (select (payload ->> 'n')::bigint < lag((payload ->> 'n')::bigint)
                over (partition by aggregate_id order by seq) as is_swapped
             from postrider_inbox.jobs where dead_at is null) x where is_swapped",
        ),
    ] {
        let found = sql.text(query).await.unwrap_or_default();
        if found != "0" {
            writeln!(faults, "{what}: {found}").expect("a text");
        }
    }
    faults
}

/// Waits until `/status` of the intake is as `wanted` says.
async fn await_intake(
    relay: &Relay,
    what: &str,
    wanted: impl Fn(&serde_json::Value) -> bool,
) -> serde_json::Value {
    let status = relay.await_status(what, SOON, |status| wanted(&status["intakes"][0])).await;
    status["intakes"][0].clone()
}

async fn await_intake_state(relay: &Relay, state: &str) -> serde_json::Value {
    await_intake(relay, state, |intake| intake["state"] == state).await
}

/// How long an end may take.
const END: Duration = Duration::from_secs(30);
