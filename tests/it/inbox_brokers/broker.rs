//! What the tests need of a broker, and a world around it: a database with an outbox and an inbox, a relay that
//! publishes to the broker, and intakes that read it.

use crate::inbox_run::create_inbox;
use crate::private::PrivatePostgres;
use crate::relay::{Relay, postrider_ok};
use crate::server::{Client, Database, Version};

/// The stream, queue or subject of the events.
pub(super) const TOPIC: &str = "orders";

/// A broker of a test's own.
pub(super) trait Broker: Sized {
    /// `source.kind`.
    const KIND: &'static str;

    /// Starts one, without what is to be read.
    async fn start() -> Self;

    /// Creates what the events are published to, and read from.
    async fn create(&self);

    /// `[.sink]` of a pipeline, where `[.` stands for `[pipelines.NAME.`.
    fn sink(&self) -> String;

    /// `[.source]` of an intake, where `[.` stands for `[inboxes.jobs.`. `more` are further keys.
    fn source(&self, more: &str) -> String;

    /// The same over TLS with the right name, and a password in a file.
    fn source_over_tls(&self) -> String;

    /// kill -9.
    async fn kill(&mut self);

    /// A clean stop.
    async fn stop(&mut self);

    /// Starts it again on its data and its ports, and waits until it answers.
    async fn restart(&mut self);

    /// SIGSTOP.
    fn freeze(&self);

    /// SIGCONT.
    fn thaw(&self);
}

/// A broker, a database, and the configurations of a relay and of an intake.
pub(super) struct World<B> {
    pub(super) broker: B,
    pub(super) sql: Client,
    pub(super) url: String,
    pub(super) config: String,
    relay: String,
    /// Kept for its end.
    _database: Option<Database>,
}

impl<B: Broker> World<B> {
    /// A world in a database of a shared server, with what is to be read.
    pub(super) async fn create(version: Version, test: &str) -> Self {
        let broker = B::start().await;
        broker.create().await;
        Self::with(broker, version, test).await
    }

    /// The same with this broker.
    pub(super) async fn with(broker: B, version: Version, test: &str) -> Self {
        let database = Database::create(version, test).await;
        let (sql, url) = (database.connect().await, database.url());
        let name = database.connect().await.text("select current_database()").await;
        let name = name.expect("the name of the database").replace('-', "_");
        Self::in_database(broker, (sql, url), &name, Some(database)).await
    }

    /// The same in a private server.
    pub(super) async fn in_private(broker: B, server: &PrivatePostgres) -> Self {
        let of = (server.connect().await, server.url());
        Self::in_database(broker, of, "orders", None).await
    }

    async fn in_database(
        broker: B,
        (sql, url): (Client, String),
        name: &str,
        database: Option<Database>,
    ) -> Self {
        create_inbox(&sql).await;
        let sink = broker.sink().replace("[.", &format!("[pipelines.{name}."));
        let relay = format!(
            "[pipelines.{name}.source]\nurl = \"{url}\"\n\
             [pipelines.{name}.outbox]\ntable = \"public.outbox\"\n\
             [pipelines.{name}.route]\ntopic = \"{{aggregate_type}}\"\n{sink}"
        );
        let config = intake(&url, &broker.source(""));
        Self { broker, sql, url, config, relay, _database: database }
    }

    /// An intake with another `[.source]`.
    pub(super) fn with_source(&self, source: &str) -> String {
        intake(&self.url, source)
    }

    /// A relay that publishes the outbox.
    pub(super) fn relay(&self) -> Relay {
        postrider_ok(&self.relay, &["setup", "--create-table"]);
        Relay::spawn(&self.relay)
    }

    /// Inserts events with these numbers. `keys`: the number of aggregates.
    pub(super) async fn insert(&self, from: u64, to: u64, keys: u64) {
        let sql = &self.sql;
        sql.batch(&format!(
            "insert into outbox (aggregate_type, aggregate_id, event_type, payload)
             select '{TOPIC}', 'k' || i % {keys}, 'Counted', json_build_object('n', i)
             from generate_series({from}, {to}) i"
        ))
        .await;
    }
}

fn intake(url: &str, source: &str) -> String {
    let source = source.replace("[.", "[inboxes.jobs.");
    format!("[inboxes.jobs]\nbatch = 500\n[inboxes.jobs.database]\nurl = \"{url}\"\n{source}")
}
