//! Polling's adapter against real servers: what is claimed, in which order, what is marked. No broker: a test publishes
//! by noting the record.

mod alone;
mod marks;
mod order;
mod session;
mod tables;

use crate::server::{Client, Database, Version};
use postrider::event::Position;
use postrider::outbox::{At, Layout, Mapper, OutboxSpec};
use postrider::pipeline::poll_spec;
use postrider::postgres::poll::{Claim, Opened, PollSpec, Poller, RowOutcome};
use postrider::postgres::{Conninfo, SourceError};
use std::time::Duration;

/// For everything that a loaded machine may be slow at.
const DEADLINE: Duration = Duration::from_mins(1);

/// The versions at both ends.
const VERSIONS: [Version; 2] = [Version::Pg15, Version::Pg18];

/// An outbox of a layout in a database of its own.
struct Outbox {
    records: OutboxSpec,
    spec: PollSpec,
    client: Client,
    database: Database,
}

impl Outbox {
    async fn create(version: Version, layout: Layout, test: &str) -> Self {
        let outbox = Self::with(version, OutboxSpec::for_layout(layout), test).await;
        outbox.client.batch(layout.create_sql()).await;
        outbox
    }

    /// Without its table.
    async fn with(version: Version, outbox: OutboxSpec, test: &str) -> Self {
        let database = Database::create(version, test).await;
        let client = database.connect().await;
        let spec = poll_spec("orders", &outbox, false).unwrap();
        Self { records: outbox, spec, client, database }
    }

    async fn open(&self) -> Result<Opened, SourceError> {
        let conninfo = Conninfo::parse(&self.database.url(), &|_| None).unwrap();
        Poller::open(&conninfo, "postrider poll", &self.spec).await
    }

    async fn poller(&self) -> Box<Poller> {
        match self.open().await.unwrap() {
            Opened::Polling(poller) => poller,
            Opened::StandBy { pid } => panic!("{pid:?} polls"),
        }
    }

    /// `aggregate/event id` of each row, as the mapper reads them.
    fn ids(&self, poller: &Poller, claim: &Claim) -> Vec<String> {
        let mut mapper = Mapper::new(self.records.clone()).unwrap();
        let table = poller.description();
        mapper.clear_tables(Some(table.id));
        mapper.table(&table.as_table()).unwrap();
        let mut ids = Vec::new();
        for (row, ordinal) in claim.rows.iter().zip(0..) {
            let position = Position { commit: claim.at, ordinal };
            let at = At { position, commit_time: claim.claimed_at };
            let event = mapper.row(&row, at).unwrap().expect("a row of the outbox");
            ids.push(format!("{}/{}", event.aggregate.id, event.event_id));
        }
        ids
    }

    /// Claims and publishes until nothing is left.
    async fn drain(&self, poller: &mut Poller, limit: usize) -> Vec<String> {
        let mut ids = Vec::new();
        loop {
            let claim = poller.claim(limit, None).await.unwrap();
            if claim.rows.is_empty() && !claim.more {
                return ids;
            }
            ids.extend(self.ids(poller, &claim));
            published(poller, claim).await;
        }
    }
}

async fn published(poller: &mut Poller, claim: Claim) {
    let outcomes = vec![RowOutcome::Published; claim.rows.len()];
    poller.settle(claim, &outcomes).await.unwrap();
}

fn failed() -> RowOutcome {
    RowOutcome::Failed { error: "the broker's limit is 'smaller'".to_owned(), code: "too_large" }
}
