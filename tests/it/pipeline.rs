//! A whole pipeline: an outbox in a database, a topic, and the configuration between them, set up by `postrider setup`.

use crate::await_that::{SOON, await_that};
use crate::load::Plan;
use crate::relay::{Relay, postrider_ok};
use crate::server::{Client, Database, Version, brokers, describe, unique};
use crate::topic::{Topic, Topics};
use postrider::store::PipelineKey;

/// The outbox's layout, where a test does not care.
const LAYOUT: &str = "postrider";

/// One outbox, one topic, one configuration.
pub(crate) struct Pipeline {
    pub(crate) name: String,
    pub(crate) url: String,
    pub(crate) topic: Topic,
    pub(crate) config: String,
    /// A session in the database.
    pub(crate) sql: Client,
    /// Kept for its end: it is dropped with the pipeline.
    database: Option<Database>,
}

impl Pipeline {
    /// What the rows of Postrider's tables are stored under.
    pub(crate) fn key(&self) -> PipelineKey {
        PipelineKey::first(&self.name)
    }

    /// The configuration without compression: the size of an event is known before it is sent, and no broker is asked.
    pub(crate) fn uncompressed(&self) -> String {
        Self::uncompressed_of(&self.config, &self.name)
    }

    /// The same of another configuration of the pipeline with this name.
    pub(crate) fn uncompressed_of(config: &str, name: &str) -> String {
        format!("{config}\n[pipelines.{name}.sink.properties]\n\"compression.type\" = \"none\"\n")
    }

    /// On the shared servers, in a database of its own, with the topic's 8 partitions.
    pub(crate) async fn shared(version: Version, test: &str) -> Self {
        Self::in_layout(version, test, LAYOUT).await
    }

    /// The same with another layout.
    pub(crate) async fn in_layout(version: Version, test: &str, layout: &str) -> Self {
        Self::in_database(version, &brokers(), test, layout, "").await
    }

    /// The same with a broker of the test's own.
    pub(crate) async fn to_broker(version: Version, brokers: &str, test: &str) -> Self {
        Self::in_database(version, brokers, test, LAYOUT, "").await
    }

    /// In a database of its own on the shared servers.
    pub(crate) async fn in_database(
        version: Version,
        brokers: &str,
        test: &str,
        layout: &str,
        more: &str,
    ) -> Self {
        let database = Database::create(version, test).await;
        let url = database.socket_url();
        let mut pipeline = Self::with_layout(&url, brokers, test, layout, more).await;
        pipeline.database = Some(database);
        pipeline
    }

    /// On any servers: makes the table in the database of `url`, and the topic.
    pub(crate) async fn on(url: &str, brokers: &str, test: &str) -> Self {
        Self::with_layout(url, brokers, test, LAYOUT, "").await
    }

    /// The same with another layout, and further lines of TOML for `[pipelines.NAME]`'s tables.
    pub(crate) async fn with_layout(
        url: &str,
        brokers: &str,
        test: &str,
        layout: &str,
        more: &str,
    ) -> Self {
        let name = unique(test);
        let topic = Topics::new(brokers, test).create("events", 8).await;
        let table = match layout {
            "debezium" => "outboxevent",
            "commerce" => "outbox_messages",
            "sqlgarden" => "outbox_events",
            "pgtrickle" => "outbox_changes",
            _ => "outbox",
        };
        let config = format!(
            "[pipelines.{name}]\n\
             [pipelines.{name}.source]\nurl = \"{url}\"\n\
             [pipelines.{name}.outbox]\nlayout = \"{layout}\"\ntable = \"public.{table}\"\n\
             [pipelines.{name}.route]\ntopic = \"{}\"\n\
             [pipelines.{name}.sink]\nkind = \"kafka\"\nbrokers = \"{brokers}\"\n{}",
            topic.name,
            more.replace("[.", &format!("[pipelines.{name}.")),
        );
        postrider_ok(&config, &["setup", "--create-table"]);
        let sql = Client::connect(url).await.expect("a session");
        Self { name, url: url.to_owned(), topic, config, sql, database: None }
    }

    /// A pipeline that captures tables, in a database of its own, with one topic for all; not set up. `ddl` makes the
    /// tables; `capture` has the lines of `[pipelines.NAME.capture]`.
    pub(crate) async fn capturing(version: Version, test: &str, ddl: &str, capture: &str) -> Self {
        let database = Database::create(version, test).await;
        let mut pipeline = Self::capturing_on(&database.socket_url(), test, ddl, capture).await;
        pipeline.database = Some(database);
        pipeline
    }

    /// The same in a database of any server.
    pub(crate) async fn capturing_on(url: &str, test: &str, ddl: &str, capture: &str) -> Self {
        let (brokers, name) = (brokers(), unique(test));
        let topic = Topics::new(&brokers, test).create("events", 1).await;
        let config = format!(
            "[pipelines.{name}]\n\
             [pipelines.{name}.source]\nurl = \"{url}\"\n\
             [pipelines.{name}.capture]\n{capture}\n\
             [pipelines.{name}.route]\ntopic = \"{}\"\n\
             [pipelines.{name}.sink]\nkind = \"kafka\"\nbrokers = \"{brokers}\"\n",
            topic.name
        );
        let sql = Client::connect(url).await.expect("a session");
        sql.batch(ddl).await;
        Self { name, url: url.to_owned(), topic, config, sql, database: None }
    }

    /// From now on no more events than these are on their way to the broker.
    pub(crate) fn bound_in_flight(&mut self, events: usize) {
        let flow = format!("[pipelines.{}.flow]\nin_flight_events = {events}\n", self.name);
        self.config.push_str(&flow);
    }

    /// `postrider run`.
    pub(crate) fn run(&self) -> Relay {
        Relay::spawn(&self.config)
    }

    /// The slot's and the publication's name.
    pub(crate) fn slot(&self) -> String {
        format!("postrider_{}", self.name)
    }

    /// A load on the outbox.
    pub(crate) fn plan(&self) -> Plan {
        Plan::new(&self.url, "order")
    }

    /// Inserts `count` events of ten aggregates, in one transaction; payloads count from 1.
    pub(crate) async fn insert(&self, count: usize) {
        let sql = format!(
            "insert into public.outbox (aggregate_type, aggregate_id, event_type, payload) \
             select 'order', (i % 10)::text, 'Written', to_json(i) from generate_series(1, {count}) i"
        );
        self.sql.batch(&sql).await;
    }

    /// `confirmed_flush_lsn` of the slot has reached `lsn`, or what it is. Over a new session: the server may have
    /// been killed.
    pub(crate) async fn confirmed(&self, lsn: &str) -> Result<(), String> {
        let sql = format!(
            "select case when confirmed_flush_lsn >= '{lsn}' then 'yes' else confirmed_flush_lsn::text end \
             from pg_replication_slots where slot_name = '{}'",
            self.slot()
        );
        let session = Client::connect(&self.url).await.map_err(|error| error.to_string())?;
        match session.text(&sql).await.as_deref() {
            Some("yes") => Ok(()),
            other => Err(format!("confirmed_flush_lsn is {other:?}, wanted {lsn}")),
        }
    }

    /// The end of WAL, over a new session.
    pub(crate) async fn wal_end(&self) -> String {
        let session = Client::connect(&self.url).await.expect("a session");
        session.text("select pg_current_wal_lsn()::text").await.expect("a position")
    }
}

/// Takes the slot away: whoever streams from it is ended first, and again where it comes back before the slot is gone.
pub(crate) async fn drop_slot(pipeline: &Pipeline) {
    let slot = pipeline.slot();
    let active = format!(
        "select pg_terminate_backend(active_pid) from pg_replication_slots where slot_name = '{slot}' and active"
    );
    let drop = format!("select pg_drop_replication_slot('{slot}')");
    await_that("the slot to be dropped", SOON, || async {
        pipeline.sql.batch(&active).await;
        pipeline.sql.simple_query(&drop).await.map(|_| ()).map_err(|error| describe(&error))
    })
    .await;
}

/// A figure, for whoever runs a test with `--nocapture`.
pub(crate) fn show(line: &str) {
    #[expect(clippy::print_stdout, reason = "the figure is what the test is run for")]
    {
        println!("{line}");
    }
}
