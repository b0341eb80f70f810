//! The control side against real servers. Here: one pipeline on a database of the test's own.

mod cursor;
mod fence;
mod session;
mod setup;

use crate::server::{Client, Database, Version, unique};
use postrider::error::Halt;
use postrider::postgres::Conninfo;
use postrider::postgres::control::{Control, FactsQuery};
use postrider::postgres::names::{Names, TableName, Times};
use postrider::postgres::setup::{Options, SetupError, SetupPlan, SetupProgress, apply};
use postrider::postgres::start::{Decision, Facts, Identity, Resume, decide};
use postrider::postgres::stream::WalConnection;
use postrider::store::PipelineKey;

const OUTBOX: &str = "create table public.outbox (
    id bigint generated always as identity primary key,
    aggregate_type text not null, aggregate_id text not null, payload json)";

const ROW: &str =
    "insert into public.outbox (aggregate_type, aggregate_id, payload) values ('a', '1', '{}')";

/// A pipeline by its configuration, and two control sessions of it.
struct Pipeline {
    names: Names,
    columns: Vec<String>,
    messages: bool,
    conninfo: Conninfo,
    control: Control,
    watch: Control,
    url: String,
    // Last: its slots can't go while the sessions are there.
    database: Option<Database>,
}

fn conninfo(url: &str) -> Conninfo {
    Conninfo::parse(url, &|_| None).expect("a connection string")
}

async fn control(conninfo: &Conninfo, name: &str) -> Control {
    Control::connect(conninfo, name).await.expect("a control session")
}

impl Pipeline {
    /// A database without anything of ours, on a shared server.
    async fn bare(version: Version, test: &str) -> Self {
        let database = Database::create(version, test).await;
        let pipeline = Self::on(&database.url(), test).await;
        Self { database: Some(database), ..pipeline }
    }

    /// On a server of the test's own.
    async fn on(url: &str, test: &str) -> Self {
        let name = unique(test);
        let names = Names {
            key: PipelineKey::first(&name),
            slot: format!("postrider_{name}"),
            publication: format!("postrider_{name}"),
            table: Some(TableName::new("public", "outbox")),
            captured: Vec::new(),
            times: Times::default(),
            auto: false,
            in_transactions: false,
            updates: false,
        };
        let conninfo = conninfo(url);
        Self {
            names,
            columns: ["id", "aggregate_type", "aggregate_id", "payload"].map(str::to_owned).into(),
            messages: false,
            control: control(&conninfo, "postrider test").await,
            watch: control(&conninfo, "postrider watch").await,
            conninfo,
            url: url.to_owned(),
            database: None,
        }
    }

    /// New sessions, after the server was away.
    async fn reconnect(&mut self) {
        self.control = control(&self.conninfo, "postrider test").await;
        self.watch = control(&self.conninfo, "postrider watch").await;
    }

    /// A connection of the application or an operator.
    async fn client(&self) -> Client {
        Client::connect(&self.url).await.expect("a connection")
    }

    /// With the outbox table, and set up.
    async fn ready(version: Version, test: &str) -> Self {
        let pipeline = Self::bare(version, test).await;
        pipeline.sql(OUTBOX).await;
        pipeline.set_up(&Options::default()).await.expect("setup");
        pipeline
    }

    #[expect(clippy::ref_option, reason = "as `FactsQuery` has it")]
    fn ask<'a>(&'a self, identity: &'a Option<Identity>) -> FactsQuery<'a> {
        FactsQuery {
            names: &self.names,
            identity,
            columns: &self.columns,
            messages: self.messages,
            failover: true,
            marks: None,
            polls: false,
            acting: postrider::postgres::schema_owner::SessionRights::OwnLogin,
        }
    }

    async fn set_up(&self, options: &Options<'_>) -> Result<SetupPlan, SetupError> {
        let mut told = |_: SetupProgress<'_>| {};
        apply(&self.control, &self.watch, &self.ask(&None), options, &mut told).await
    }

    async fn facts(&self) -> Facts {
        self.control.facts(&self.ask(&None)).await.expect("the facts")
    }

    async fn decide(&self) -> Result<Decision, Halt> {
        decide(&self.facts().await)
    }

    #[expect(clippy::ref_option, reason = "as `FactsQuery` has it")]
    async fn decide_with(&self, identity: &Option<Identity>) -> Result<Decision, Halt> {
        decide(&self.control.facts(&self.ask(identity)).await.expect("the facts"))
    }

    async fn resume(&self) -> Resume {
        match self.decide().await {
            Ok(Decision::Resume(resume)) => *resume,
            other => panic!("does not resume: {other:?}"),
        }
    }

    /// The replication connection's word for it, as in a whole handshake.
    async fn wal(&self) -> (WalConnection, Option<Identity>) {
        let mut wal =
            WalConnection::connect(&self.conninfo, "postrider test").await.expect("a connection");
        let identity = Identity::from(&wal.identify_system().await.expect("an identity"));
        (wal, Some(identity))
    }

    /// Statements as the application or an operator.
    async fn sql(&self, sql: &str) {
        self.client().await.batch(&self.fill(sql)).await;
    }

    /// `{slot}`, `{publication}` and `{pipeline}` in a statement.
    fn fill(&self, sql: &str) -> String {
        sql.replace("{slot}", &self.names.slot)
            .replace("{publication}", &self.names.publication)
            .replace("{pipeline}", &self.names.key.pipeline)
    }
}
