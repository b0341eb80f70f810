//! `postrider inbox run`: records of Kafka are stored in an inbox, each once and in order, whatever is killed.

mod blocked;
mod commands;
mod crowd;
mod outages;
mod placing;
mod records;
mod unstorable;

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
pub(crate) async fn create_inbox(sql: &Client) {
    install_toolkit(sql, "postgres").await;
    sql.batch("select postrider.create_inbox('jobs')").await;
}

/// A database with the inbox `jobs`.
pub(crate) struct World {
    database: Database,
    pub(crate) sql: Client,
}

impl World {
    pub(crate) async fn create(version: Version, test: &str) -> Self {
        let database = Database::create(version, test).await;
        let sql = database.connect().await;
        create_inbox(&sql).await;
        Self { database, sql }
    }

    /// A configuration of an intake from this topic.
    pub(crate) fn config(&self, topic: &Topic, more: &str) -> String {
        config(&self.database.url(), &topic.brokers, &topic.name, more)
    }
}

/// A record to be written.
#[derive(Clone, Copy, Default)]
pub(crate) struct Written<'a> {
    pub(crate) partition: Option<i32>,
    pub(crate) key: Option<&'a [u8]>,
    pub(crate) value: Option<&'a [u8]>,
    pub(crate) headers: &'a [(&'a str, &'a [u8])],
}

fn producer(brokers: &str) -> FutureProducer {
    let mut config = client_config(brokers);
    config.set("enable.idempotence", "true").set("linger.ms", "5");
    // On a busy machine a broker that is killed again and again takes longer than librdkafka's five minutes.
    config.set("message.timeout.ms", "0");
    config.create().expect("a producer")
}

/// Writes records, and waits until the broker has all of them.
pub(crate) async fn write(topic: &Topic, records: &[Written<'_>]) {
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
pub(crate) async fn await_answer(sql: &Client, query: &str, answer: &str, relay: &Relay) {
    let look = || async {
        let now = sql.text(query).await.unwrap_or_default();
        if now == answer { Ok(()) } else { Err(now) }
    };
    let what = format!("{answer} from {query}");
    await_or_dump(&what, SOON, look, || relay.stderr()).await;
}

/// Number of messages in the inbox.
pub(crate) const COUNT: &str = "select count(*) from postrider_inbox.jobs";

/// What is wrong with the inbox, if it should have each of the numbers up to `last` once, and those of a key in order;
/// empty if nothing is.
pub(crate) async fn faults(sql: &Client, last: u64) -> String {
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
pub(crate) async fn await_intake(
    relay: &Relay,
    what: &str,
    wanted: impl Fn(&serde_json::Value) -> bool,
) -> serde_json::Value {
    let status = relay.await_status(what, SOON, |status| wanted(&status["intakes"][0])).await;
    status["intakes"][0].clone()
}

pub(crate) async fn await_intake_state(relay: &Relay, state: &str) -> serde_json::Value {
    await_intake(relay, state, |intake| intake["state"] == state).await
}

/// How long an end may take.
const END: Duration = Duration::from_secs(30);

/// Stores everything that a pipeline has published into an ordered inbox, by two processes of which one is killed, and
/// processes it: of the events numbered up to `last`, each has its effect once, and those of an aggregate in order. The
/// same by `inbox_is_new`, record by record.
pub(crate) async fn each_effect_once_and_in_order(topic: &Topic, last: u64) {
    let world = World::create(Version::Pg18, "intake_effects").await;
    world
        .sql
        .batch(
            "select postrider.enable_inbox_ordering('jobs', 'arrival');
             create table effect (number bigint, aggregate text, seq bigserial);
             create table direct (number bigint, aggregate text, seq bigserial)",
        )
        .await;
    let records = topic.read_all().await;
    let first = Relay::spawn_intake(&world.config(topic, ""));
    await_intake(&first, "something stored", |it| it["stored_total"] != 0).await;
    first.kill().await;
    let second = Relay::spawn_intake(&world.config(topic, ""));
    await_intake(&second, "no lag", |it| it["lag_records"] == 0).await;
    let work = "with batch as materialized (select * from postrider.inbox_next('jobs', 'w', 1000)),
             work as (insert into effect (number, aggregate)
                select (payload ->> 'n')::bigint, aggregate_id from batch)
         select postrider.inbox_done('jobs', array_agg(event_id))::text from batch having count(*) > 0";
    while world.sql.text(work).await.is_some() {}
    for record in &records {
        let value = |name| record.header(name).map(str::to_owned);
        let (key, number) = (record.key_text().expect("a key"), crate::consumers::number(record));
        world
            .sql
            .execute(
                "insert into direct (number, aggregate) select $1, $2
                 where postrider.inbox_is_new('effects', $3, $2, $4, $5, $6)",
                &[
                    &i64::try_from(number).expect("a number"),
                    &key,
                    &value("source").expect("a source"),
                    &value("id"),
                    &value("position"),
                    &value("history"),
                ],
            )
            .await
            .expect("the effect");
    }
    for table in ["effect", "direct"] {
        let found = world
            .sql
            .text(&format!(
                "select count(*) || ' ' || count(distinct number) || ' ' || min(number) || ' ' || max(number) || ' '
                    || count(*) filter (where is_swapped)
                 from (select number, number < lag(number) over (partition by aggregate order by seq) as is_swapped
                       from {table}) x"
            ))
            .await;
        assert_eq!(
            found,
            Some(format!("{last} {last} 1 {last} 0")),
            "{table}\n{}",
            second.stderr()
        );
    }
    let repeats = u64::try_from(records.len()).expect("a number") - last;
    crate::pipeline::show(&format!(
        "{} records of {last} events: each effect once and in order, {repeats} repeats passed over",
        records.len()
    ));
}
