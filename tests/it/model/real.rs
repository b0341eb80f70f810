//! Runs a script on a real PostgreSQL, by the crate's own adapters: what the relay does there.

mod owner;
mod reader;

use super::fake::entry;
use super::notes::{Notes, marker};
use super::script::{By, From, Step};
use crate::await_that::{SOON, await_that};
use crate::private::PrivatePostgres;
use crate::server::{Client, Database, Version, unique};
use postrider::event::Position;
use postrider::offset::{Offset, Watermark};
use postrider::parked::{Parked, ParkedOutcome, ParkedUpdate, Request, State};
use postrider::postgres::control::Control;
use postrider::postgres::store::cursor::{self, Cursor};
use postrider::postgres::store::parked::{self, Stored};
use postrider::postgres::stream::WalStream;
use postrider::postgres::wire::confirmable;
use postrider::postgres::{Conninfo, schema};
use postrider::record::OwnedRecord;
use postrider::store::PipelineKey;
use postrider::timestamp::Timestamp;
use std::collections::BTreeMap;
use std::sync::LazyLock;
use tokio::task::JoinSet;

/// The pipeline of every script.
const PIPELINE: &str = "orders";

fn key() -> &'static PipelineKey {
    static KEY: LazyLock<PipelineKey> = LazyLock::new(|| PipelineKey::first(PIPELINE));
    &KEY
}

/// An outbox and another table, in one publication.
const TABLES: &str = "create table outbox (payload text); create table other (payload text);
    create publication model for table outbox, other";

/// A server with the pipeline of one script.
pub(super) struct Real {
    url: String,
    slot: String,
    control: Control,
    client: Client,
    /// Sessions of open transactions, and events written in each.
    open: BTreeMap<char, (Client, u32)>,
    stream: Option<WalStream>,
    cursor: Cursor,
    former: i64,
    /// Who has locked the cursor row.
    locker: Option<Client>,
    sent: JoinSet<()>,
    notes: Notes,
    markers: u32,
    // Last: they can't go while the sessions are there.
    server: Option<PrivatePostgres>,
    _database: Option<Database>,
}

impl Real {
    /// The transcript of a script. One in which the server crashes gets a server of its own.
    pub(super) async fn run(version: Version, script: &[Step]) -> Vec<String> {
        let crashes = script.iter().any(|step| matches!(step, Step::Crash));
        let mut real = if crashes {
            let server = PrivatePostgres::start(version, "").await;
            let real = Self::at(&server.url()).await;
            Self { server: Some(server), ..real }
        } else {
            let database = Database::create(version, "model").await;
            let real = Self::at(&database.url()).await;
            Self { _database: Some(database), ..real }
        };
        for step in script {
            real.step(*step).await;
        }
        real.notes.lines
    }

    async fn at(url: &str) -> Self {
        let (control, client) = sessions(url).await;
        let migrations = schema::MIGRATIONS.iter().map(|migration| migration.sql);
        let sql: String = std::iter::once("CREATE SCHEMA postrider;").chain(migrations).collect();
        client.batch(&sql).await;
        client.batch(TABLES).await;
        let slot = unique("model");
        let made =
            format!("select lsn from pg_create_logical_replication_slot('{slot}', 'pgoutput')");
        let start: Offset = client.text(&made).await.expect("a slot").parse().expect("a position");
        let mut cursor = Cursor {
            key: key().clone(),
            system_identifier: "7000".to_owned(),
            timeline: 1,
            slot: slot.clone(),
            slot_created_lsn: start,
            publication: "model".to_owned(),
            messages: false,
            watermark: Watermark::resumed(start),
            flush_limit: start,
            partial: None,
            owner_epoch: 0,
        };
        assert!(cursor::create(control.client(), &cursor).await.expect("the cursor row"));
        cursor.owner_epoch = cursor::take_over(control.client(), key()).await.expect("an epoch");
        Self {
            url: url.to_owned(),
            slot,
            control,
            client,
            open: BTreeMap::new(),
            stream: None,
            cursor,
            former: 0,
            locker: None,
            sent: JoinSet::new(),
            notes: Notes::default(),
            markers: 0,
            server: None,
            _database: None,
        }
    }

    async fn step(&mut self, step: Step) {
        match step {
            Step::Begin(letter) => {
                let client = Client::connect(&self.url).await.expect("a session");
                client.batch("begin").await;
                self.open.insert(letter, (client, 0));
            }
            Step::Write(letter) => {
                let (client, written) = self.open.get_mut(&letter).unwrap();
                *written += 1;
                client.batch(&format!("insert into outbox values ('{letter}{written}')")).await;
            }
            Step::Other(letter) => {
                let (client, _) = &self.open[&letter];
                client.batch(&format!("insert into other values ('{letter}-other')")).await;
            }
            Step::Commit(letter) => self.open.remove(&letter).unwrap().0.batch("commit").await,
            Step::RollBack(letter) => self.open.remove(&letter).unwrap().0.batch("rollback").await,
            Step::Open(_)
            | Step::Read
            | Step::Second
            | Step::Confirm(_)
            | Step::Close
            | Step::Slot
            | Step::Checkpoint
            | Step::Crash => self.streaming(step).await,
            Step::TakeOver
            | Step::Cursor(..)
            | Step::Row
            | Step::Lock
            | Step::Send(_)
            | Step::Gone
            | Step::TakeOverLocked
            | Step::Unlock => self.owning(step).await,
            Step::Park(rows, marks, by) => self.park(rows, marks, by).await,
            Step::AtOnce(event) => self.at_once(event).await,
            Step::Overtaken(event, by) => {
                let by = self.notes.position(by);
                self.park(&[], &[(event, ParkedOutcome::Overtaken { by })], By::TheOwner).await;
            }
            Step::Ask(event, request) => self.ask(event, request).await,
            Step::Table(from) => self.table(from).await,
        }
    }

    #[expect(clippy::wildcard_enum_match_arm, reason = "the caller has chosen")]
    async fn streaming(&mut self, step: Step) {
        match step {
            Step::Open(from) => {
                let from = match from {
                    From::Slot => 0,
                    From::CommitOf(letter) => self.notes.commit_of(letter),
                    From::PastCommitOf(letter) => self.notes.commit_of(letter) + 1,
                    From::EndOf(letter) => self.notes.end_of(letter),
                };
                let stream = reader::open(&self.url, &self.slot, from).await;
                self.stream = Some(stream.expect("a stream"));
                self.notes.stream();
            }
            Step::Read => {
                self.markers += 1;
                let last = marker(self.markers);
                self.client.batch(&format!("insert into outbox values ('{last}')")).await;
                let stream = self.stream.as_mut().expect("a stream");
                let frames = reader::read(stream, &last).await;
                self.notes.read(&frames);
            }
            Step::Second => {
                let answer = reader::open(&self.url, &self.slot, 0).await;
                let refused = reader::is_in_use(&answer);
                self.notes.say(format!("a second reader: refused {refused}"));
            }
            Step::Confirm(letter) => {
                let end = Offset::new(self.notes.end_of(letter));
                let stream = self.stream.as_ref().expect("a stream");
                stream.confirm(confirmable(Watermark::from_commit_end(end)));
            }
            Step::Close => {
                let stream = self.stream.take().expect("a stream");
                stream.stop(SOON).await.expect("an end in good order");
                self.slot_is_free().await;
            }
            Step::Slot => {
                let slot = self.notes.name(self.confirmed().await);
                self.notes.say(format!("the slot is {slot}"));
            }
            Step::Checkpoint => self.client.batch("checkpoint").await,
            Step::Crash => {
                self.stream = None;
                let server = self.server.as_mut().expect("a server of the script's own");
                server.stop_immediately().await;
                server.restart().await;
                (self.control, self.client) = sessions(&self.url).await;
                self.notes.say("it crashes");
            }
            other => panic!("{other:?} is not about the stream"),
        }
    }

    async fn confirmed(&self) -> u64 {
        let slot = &self.slot;
        let sql = format!(
            "select confirmed_flush_lsn from pg_replication_slots where slot_name = '{slot}'"
        );
        let text = self.client.text(&sql).await.expect("a slot");
        text.parse::<Offset>().expect("a position").get()
    }

    async fn slot_is_free(&self) {
        let slot = &self.slot;
        let sql = format!("select active from pg_replication_slots where slot_name = '{slot}'");
        await_that("the slot is free", SOON, || async {
            let active = self.client.text(&sql).await;
            if active.as_deref() == Some("f") { Ok(()) } else { Err(format!("{active:?}")) }
        })
        .await;
    }

    async fn park(&mut self, rows: &[(&str, State)], marks: &[(&str, ParkedOutcome)], by: By) {
        let rows: Vec<Parked> = rows
            .iter()
            .map(|(event, state)| Parked {
                entry: entry(self.notes.position(event), *state),
                commit_time: Timestamp::default(),
                event_id: None,
                event_type: None,
                aggregate: Some(("order".to_owned(), "7".to_owned())),
                record: OwnedRecord { topic: "orders".to_owned(), ..OwnedRecord::default() },
                error_code: None,
                error: None,
            })
            .collect();
        let marks: Vec<ParkedUpdate> = marks
            .iter()
            .map(|(event, became)| ParkedUpdate {
                position: self.notes.position(event),
                became: *became,
            })
            .collect();
        let epoch = self.epoch(by);
        let written = parked::write(self.control.client(), key(), epoch, &rows, &marks).await;
        let stored = written.expect("a write") == Stored::Yes;
        self.notes.say(format!("a parking write: stored {stored}"));
    }

    /// By hand: the adapter, which knows, makes it two statements.
    async fn at_once(&mut self, event: &str) {
        let Position { commit: commit_lsn, ordinal } = self.notes.position(event);
        let sql = format!(
            "with parked as (insert into postrider.parked (pipeline, commit_lsn, ordinal, commit_time, \
               aggregate_type, aggregate_id, blocks, topic, attempts, next_attempt_at, state) \
               values ('{PIPELINE}', '{commit_lsn}', {ordinal}, now(), 'order', '7', true, 'orders', 1, \
               now(), 'waiting')), \
             marked as (update postrider.parked set state = 'dead', attempts = 2 \
               where commit_lsn = '{commit_lsn}' and ordinal = {ordinal}) \
             select 1"
        );
        self.client.batch(&sql).await;
        self.notes.say("a parking write: stored true");
    }

    async fn ask(&self, event: &str, request: Request) {
        let Position { commit: commit_lsn, ordinal } = self.notes.position(event);
        let request = request.name();
        let sql = format!(
            "update postrider.parked set requested_action = '{request}', requested_by = 'ada', \
             requested_at = now(), \
             requested_value = case when '{request}' = 'replace' then 'other'::bytea end \
             where commit_lsn = '{commit_lsn}' and ordinal = {ordinal}"
        );
        self.client.batch(&sql).await;
    }

    async fn table(&mut self, from: Option<char>) {
        let commit = from.map_or(0, |letter| self.notes.commit_of(letter));
        let from = Position { commit: Offset::new(commit), ordinal: 0 };
        let rows = parked::load(self.control.client(), key(), from).await.expect("the rows");
        let rows: Vec<_> = rows.iter().map(|row| (row.entry, row.request)).collect();
        self.notes.table(&rows);
    }
}

fn conninfo(url: &str) -> Conninfo {
    Conninfo::parse(url, &|_| None).expect("a connection string")
}

async fn sessions(url: &str) -> (Control, Client) {
    let control = Control::connect(&conninfo(url), "model").await.expect("a session");
    (control, Client::connect(url).await.expect("a session"))
}
