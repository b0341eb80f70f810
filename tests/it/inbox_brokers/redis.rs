//! Streams of Redis and Valkey.

use super::broker::{Broker, TOPIC, World};
use crate::await_that::{SOON, await_that};
use crate::inbox_run::{COUNT, await_answer, await_intake};
use crate::private::{Flavor, PrivateRedis};
use crate::relay::Relay;
use crate::server::Version;

/// Redis 7.0, or Valkey.
pub(super) struct RedisBroker<const VALKEY: bool>(PrivateRedis);

impl<const VALKEY: bool> RedisBroker<VALKEY> {
    fn access(&self, servers: &str) -> String {
        let password = self.0.ca().with_file_name("admin-password");
        std::fs::write(&password, "admin\n").expect("a file");
        format!(
            "servers = \"{servers}\"\nusername = \"admin\"\npassword_file = \"{}\"\ntimeout = \"3s\"\n",
            password.display()
        )
    }

    fn source_at(&self, servers: &str, more: &str) -> String {
        let access = self.access(servers);
        format!(
            "[.source]\nkind = \"redis\"\n[.source.redis]\n{access}streams = \"{TOPIC}\"\n{more}"
        )
    }

    fn server(&self) -> String {
        format!("127.0.0.1:{}", self.0.port())
    }

    /// The answer to a command, which must succeed.
    async fn ok(&self, command: &str) -> String {
        let answer = self.0.admin(command).await.expect("an answer");
        assert!(!answer.starts_with('-'), "{command}: {answer}");
        answer
    }

    async fn add(&self, stream: &str, numbers: std::ops::RangeInclusive<u32>) {
        for number in numbers {
            self.ok(&format!("XADD {stream} * key k value '{{\"n\": {number}}}'")).await;
        }
    }
}

impl<const VALKEY: bool> Broker for RedisBroker<VALKEY> {
    const KIND: &'static str = "redis";

    async fn start() -> Self {
        let flavor = if VALKEY { Flavor::Valkey9 } else { Flavor::Redis7 };
        Self(PrivateRedis::start(flavor, "").await)
    }

    async fn create(&self) {
        self.ok(&format!("XGROUP CREATE {TOPIC} someone 0 MKSTREAM")).await;
    }

    fn sink(&self) -> String {
        let access = self.access(&self.server());
        format!("[.sink]\nkind = \"redis\"\n[.sink.redis]\n{access}")
    }

    fn source(&self, more: &str) -> String {
        self.source_at(&self.server(), more)
    }

    fn source_over_tls(&self) -> String {
        let tls = format!("[.source.redis.tls]\nca_file = \"{}\"\n", self.0.ca().display());
        self.source_at(&format!("localhost:{}", self.0.tls_port()), &tls)
    }

    async fn kill(&mut self) {
        self.0.kill().await;
    }

    async fn stop(&mut self) {
        self.0.stop().await;
    }

    async fn restart(&mut self) {
        self.0.restart().await;
    }

    fn freeze(&self) {
        self.0.freeze();
    }

    fn thaw(&self) {
        self.0.thaw();
    }
}

mod with_redis_7 {
    use super::RedisBroker;

    crate::inbox_brokers::acknowledged_messages!(RedisBroker<false>);
}

mod with_valkey {
    use super::RedisBroker;

    crate::inbox_brokers::acknowledged_messages!(RedisBroker<true>);
}

#[tokio::test]
async fn entries_without_an_id_are_known_by_their_own_and_other_content_is_another_message() {
    let world = World::<RedisBroker<false>>::create(Version::Pg18, "redis_entries").await;
    world.broker.ok("XADD orders 5-1 value '{\"n\": 1}' tenant a").await;
    let intake = Relay::spawn_intake(&world.config);
    await_answer(&world.sql, COUNT, "1", &intake).await;
    let shown = "select concat_ws(' ', source, headers ->> 'redis.entry_id', headers ->> 'tenant')
                 from postrider_inbox.jobs";
    await_answer(&world.sql, shown, "orders 5-1 a", &intake).await;
    // The same entry to another group, and after the stream was deleted.
    drop(intake);
    let other = world.with_source(&world.broker.source("group = \"other\"\n"));
    let intake = Relay::spawn_intake(&other);
    await_intake(&intake, "a repetition", |it| it["repeated_total"] == 1).await;
    world.broker.ok("DEL orders").await;
    world.broker.ok("XADD orders 5-1 value '{\"n\": 2}'").await;
    await_answer(&world.sql, COUNT, "2", &intake).await;
}

#[tokio::test]
async fn entries_that_are_trimmed_before_they_are_stored_are_counted_as_lost() {
    let world = World::<RedisBroker<true>>::create(Version::Pg17, "redis_trimmed").await;
    world.broker.add(TOPIC, 1..=3).await;
    let intake = Relay::spawn_intake(&world.config);
    await_answer(&world.sql, COUNT, "3", &intake).await;
    assert_eq!(intake.terminate(SOON).await.code, Some(0));
    // Seven that are not delivered, of which five are trimmed.
    world.broker.add(TOPIC, 4..=10).await;
    world.broker.ok("XTRIM orders MAXLEN 2").await;
    let intake = Relay::spawn_intake(&world.config);
    await_answer(&world.sql, COUNT, "5", &intake).await;
    await_intake(&intake, "five are lost", |it| it["lost_total"] == 5).await;
    intake.await_log("not read yet", SOON).await;
    assert_eq!(intake.terminate(SOON).await.code, Some(0));
    // Three that are delivered to a consumer that has died, and trimmed.
    world.broker.add(TOPIC, 11..=13).await;
    world.broker.ok("XREADGROUP GROUP postrider-inbox-jobs dead STREAMS orders >").await;
    world.broker.ok("XTRIM orders MAXLEN 0").await;
    world.broker.add(TOPIC, 14..=14).await;
    let intake = Relay::spawn_intake(&world.config);
    await_answer(&world.sql, COUNT, "6", &intake).await;
    await_intake(&intake, "three are lost", |it| it["lost_total"] == 3).await;
    intake.await_log("delivered and not stored", SOON).await;
    let (_, metrics) = intake.get("/metrics").await.expect("metrics");
    let lost = "postrider_intake_messages_total{intake=\"jobs\",outcome=\"lost\"} 3";
    assert!(metrics.contains(lost), "{metrics}");
}

#[tokio::test]
async fn entries_of_a_consumer_that_has_died_are_stored_before_later_ones() {
    let world = World::<RedisBroker<true>>::create(Version::Pg16, "redis_taken").await;
    world.broker.add(TOPIC, 1..=2).await;
    world.broker.ok("XGROUP CREATE orders postrider-inbox-jobs 0").await;
    world.broker.ok("XREADGROUP GROUP postrider-inbox-jobs dead STREAMS orders >").await;
    world.broker.add(TOPIC, 3..=4).await;
    let intake = Relay::spawn_intake(&world.config);
    await_answer(&world.sql, COUNT, "4", &intake).await;
    let numbers = "select string_agg(payload ->> 'n', ' ' order by seq) from postrider_inbox.jobs";
    assert_eq!(world.sql.text(numbers).await.as_deref(), Some("1 2 3 4"));
    // All are acknowledged.
    await_that("no pending entries", SOON, || async {
        let pending = world.broker.ok("XPENDING orders postrider-inbox-jobs").await;
        if pending.starts_with("*4\r\n:0\r\n") { Ok(()) } else { Err(pending) }
    })
    .await;
}

#[tokio::test]
async fn several_streams_are_read_and_one_that_is_missing_is_read_when_it_exists() {
    let world = World::<RedisBroker<false>>::create(Version::Pg15, "redis_streams").await;
    world.broker.add(TOPIC, 1..=2).await;
    let source =
        world.broker.source("").replace("streams = \"orders\"", "streams = \"orders, payments\"");
    let intake = Relay::spawn_intake(&world.with_source(&source));
    await_answer(&world.sql, COUNT, "2", &intake).await;
    intake.await_log("stream \"payments\" does not exist", SOON).await;
    world.broker.add("payments", 3..=4).await;
    await_answer(&world.sql, COUNT, "4", &intake).await;
}
