//! The parked table on real servers. Here: a table of a test's own, and how rows are made and looked at.

mod fence;
mod marks;
mod pruning;
mod rows;

use crate::await_that::SOON;
use crate::server::{Client, Database, Version};
use postrider::event::{Aggregate, Position};
use postrider::offset::{Offset, Watermark};
use postrider::parked::{Entry, Lane, Parked, ParkedUpdate, State};
use postrider::postgres::control::Control;
use postrider::postgres::store::cursor::{self, Cursor};
use postrider::postgres::store::parked::{self, Loaded, Stored};
use postrider::postgres::wire::from_pg_micros;
use postrider::postgres::{Conninfo, schema};
use postrider::record::OwnedRecord;
use postrider::store::PipelineKey;
use std::sync::LazyLock;
use std::time::Duration;

/// The pipeline of every table here.
const PIPELINE: &str = "orders";

fn key() -> &'static PipelineKey {
    static KEY: LazyLock<PipelineKey> = LazyLock::new(|| PipelineKey::first(PIPELINE));
    &KEY
}

/// A schema of ours with a cursor row, and the relay's session; no slot.
struct Table {
    control: Control,
    epoch: i64,
    url: String,
    // Last: it can't go while the session is there.
    _database: Option<Database>,
}

impl Table {
    async fn new(version: Version, test: &str) -> Self {
        let database = Database::create(version, test).await;
        let table = Self::at(&database.url()).await;
        Self { _database: Some(database), ..table }
    }

    /// On a server of the test's own.
    async fn at(url: &str) -> Self {
        let control = session(url).await;
        let migrations = schema::MIGRATIONS.iter().map(|migration| migration.sql);
        let sql: String = std::iter::once("CREATE SCHEMA postrider;").chain(migrations).collect();
        control.client().batch_execute(&sql).await.expect("the schema");
        let cursor = Cursor {
            key: key().clone(),
            system_identifier: "7000".to_owned(),
            timeline: 1,
            slot: "s".to_owned(),
            slot_created_lsn: lsn("0/1"),
            publication: "p".to_owned(),
            messages: false,
            watermark: Watermark::resumed(lsn("0/1")),
            flush_limit: lsn("0/1"),
            partial: None,
            owner_epoch: 0,
        };
        assert!(cursor::create(control.client(), &cursor).await.expect("the cursor row"));
        let epoch = cursor::take_over(control.client(), key()).await.expect("an epoch");
        Self { control, epoch, url: url.to_owned(), _database: None }
    }

    fn client(&self) -> &tokio_postgres::Client {
        self.control.client()
    }

    async fn write(&self, rows: &[Parked], marks: &[ParkedUpdate]) {
        let stored = parked::write(self.client(), key(), self.epoch, rows, marks).await;
        assert_eq!(stored.expect("a write"), Stored::Yes);
    }

    async fn load(&self) -> Vec<Loaded> {
        self.load_from("0/0").await
    }

    async fn load_from(&self, from: &str) -> Vec<Loaded> {
        let from = Position { commit: lsn(from), ordinal: 0 };
        parked::load(self.client(), key(), from).await.expect("the rows")
    }

    /// A person's session.
    async fn person(&self) -> Client {
        Client::connect(&self.url).await.expect("a session")
    }

    /// One value of the row at `position`, as text.
    async fn value(&self, position: Position, expression: &str) -> Option<String> {
        let sql = format!(
            "select ({expression})::text from postrider.parked where commit_lsn = '{}' and ordinal = {}",
            position.commit, position.ordinal
        );
        self.person().await.text(&sql).await
    }
}

async fn session(url: &str) -> Control {
    let conninfo = Conninfo::parse(url, &|_| None).expect("a connection string");
    Control::connect(&conninfo, "postrider parked test").await.expect("a session")
}

fn lsn(text: &str) -> Offset {
    text.parse().expect("a position")
}

fn at(text: &str) -> Position {
    let (commit_lsn, ordinal) = text.split_once(':').expect("LSN:ORDINAL");
    Position { commit: lsn(commit_lsn), ordinal: ordinal.parse().expect("an ordinal") }
}

/// A parked event with everything in it.
fn row(position: &str, aggregate: &str, state: State) -> Parked {
    let lane = Lane::of(Aggregate { kind: "order", id: aggregate });
    let attempts = u32::from(state == State::Waiting);
    Parked {
        entry: Entry {
            position: at(position),
            lane: Some(lane),
            state,
            attempts,
            wait: Duration::ZERO,
            overtaken_by: None,
            xid: None,
        },
        commit_time: from_pg_micros(817_000_000_123_456),
        event_id: Some(format!("id-{position}")),
        event_type: Some("OrderPlaced".to_owned()),
        aggregate: Some(("order".to_owned(), aggregate.to_owned())),
        record: OwnedRecord {
            topic: "orders".to_owned(),
            partition: None,
            key: Some(aggregate.as_bytes().to_vec()),
            value: Some(b"{\"total\": 9.5}".to_vec()),
            timestamp_ms: Some(1_763_000_000_000),
            headers: vec![("id".to_owned(), Some(b"1".to_vec()))],
        },
        error_code: (state == State::Waiting).then_some("too_large"),
        error: (state == State::Waiting).then(|| "the record has 2 bytes".to_owned()),
    }
}
