//! What the database committed, in the order of the WAL, by a slot and a publication of the test's own.
//!
//! Decodes pgoutput itself (manual, 54.9), so that what the relay reads is compared with an independent decoder.

use crate::proxy::tap::parse_lsn;
use crate::server::Client;
use std::collections::{BTreeMap, HashMap};

/// Name of the slot and of the publication.
const NAME: &str = "chaos_truth";
/// Changes read at a time.
const CHANGES: u32 = 50_000;
/// Microseconds from the Unix epoch to 2000-01-01, the epoch of PostgreSQL.
const EPOCH_MICROSECONDS: i64 = 946_684_800_000_000;

/// A committed transaction that inserted events.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Transaction {
    /// Start of its commit record, which determines the order.
    pub(crate) commit_lsn: u64,
    /// IDs of its events, in order.
    pub(crate) events: Vec<String>,
}

/// Everything that was committed.
#[derive(Default, Debug)]
pub(crate) struct Truth {
    /// In commit order.
    pub(crate) transactions: BTreeMap<u64, Transaction>,
    /// When an event's parked row was first committed, in milliseconds since the Unix epoch.
    pub(crate) parked: HashMap<String, i64>,
    /// The time of the rows (`created_at`), by which polling sorts.
    pub(crate) created: HashMap<String, String>,
}

/// From now on everything is retained for a [`Tape`].
pub(crate) async fn begin(sql: &Client) {
    sql.batch(&format!(
        "create publication {NAME} for table public.outbox, postrider.parked with (publish = 'insert')"
    ))
    .await;
    sql.batch(&format!("select pg_create_logical_replication_slot('{NAME}', 'pgoutput')")).await;
}

/// What was committed since [`begin`] and read so far.
#[derive(Default)]
pub(crate) struct Tape(Decoder);

impl Tape {
    /// Reads what was committed since the last call. A server that crashed may send some of it again.
    pub(crate) async fn take(&mut self, sql: &Client) {
        let statement = format!(
            "select data from pg_logical_slot_get_binary_changes('{NAME}', null, {CHANGES}, \
             'proto_version', '1', 'publication_names', '{NAME}')"
        );
        loop {
            let rows = sql.query(&statement, &[]).await.expect("the changes of the truth's slot");
            if rows.is_empty() {
                return;
            }
            for row in rows {
                self.0.message(row.get(0));
            }
        }
    }

    /// Everything that was read.
    pub(crate) fn truth(self) -> Truth {
        self.0.truth
    }
}

/// Drops the slot.
pub(crate) async fn end(sql: &Client) {
    sql.batch(&format!("select pg_drop_replication_slot('{NAME}')")).await;
}

#[derive(Default)]
struct Decoder {
    truth: Truth,
    /// By the relation's OID: whether it is the parked table, and which columns have the event's ID and its time.
    relations: HashMap<u32, (bool, usize, Option<usize>)>,
    commit_lsn: u64,
    commit_time: i64,
    events: Vec<String>,
}

impl Decoder {
    fn message(&mut self, data: &[u8]) {
        let mut bytes = Bytes(&data[1..]);
        match data[0] {
            b'B' => {
                self.commit_lsn = bytes.u64();
                let microseconds = i64::from_ne_bytes(bytes.u64().to_ne_bytes());
                self.commit_time = (microseconds + EPOCH_MICROSECONDS) / 1_000;
                self.events.clear();
            }
            b'R' => {
                let number = bytes.u32();
                let parked = bytes.text() == "postrider";
                let (_name, _identity) = (bytes.text(), bytes.u8());
                let columns: Vec<String> = (0..bytes.u16())
                    .map(|_| {
                        let (_key, name) = (bytes.u8(), bytes.text());
                        let (_type, _modifier) = (bytes.u32(), bytes.u32());
                        name
                    })
                    .collect();
                let id = if parked { "event_id" } else { "id" };
                let at = columns.iter().position(|column| column == id).expect("an id");
                let created = columns.iter().position(|column| column == "created_at");
                self.relations.insert(number, (parked, at, created));
            }
            b'I' => {
                let (parked, at, created) = self.relations[&bytes.u32()];
                let (_new, columns) = (bytes.u8(), bytes.u16());
                let mut values: Vec<_> = (0..columns).map(|_| bytes.value()).collect();
                let created = created.and_then(|at| values[at].take());
                let id = values[at].take().expect("an event's id");
                if parked {
                    self.truth.parked.entry(id).or_insert(self.commit_time);
                } else {
                    self.truth.created.insert(id.clone(), created.unwrap_or_default());
                    self.events.push(id);
                }
            }
            b'C' if !self.events.is_empty() => {
                let (commit_lsn, events) = (self.commit_lsn, std::mem::take(&mut self.events));
                let transaction = Transaction { commit_lsn, events };
                self.truth.transactions.insert(commit_lsn, transaction);
            }
            _ => {}
        }
    }
}

/// A message, read from its beginning.
struct Bytes<'a>(&'a [u8]);

impl Bytes<'_> {
    fn take<const N: usize>(&mut self) -> [u8; N] {
        let (first, rest) = self.0.split_first_chunk().expect("a whole message");
        self.0 = rest;
        *first
    }

    fn u8(&mut self) -> u8 {
        self.take::<1>()[0]
    }

    fn u16(&mut self) -> u16 {
        u16::from_be_bytes(self.take())
    }

    fn u32(&mut self) -> u32 {
        u32::from_be_bytes(self.take())
    }

    fn u64(&mut self) -> u64 {
        u64::from_be_bytes(self.take())
    }

    fn text(&mut self) -> String {
        let end = self.0.iter().position(|byte| *byte == 0).expect("a string's end");
        let text = String::from_utf8(self.0[..end].to_vec()).expect("UTF-8");
        self.0 = &self.0[end + 1..];
        text
    }

    /// The value of a column as text; `None` if there is none.
    fn value(&mut self) -> Option<String> {
        if self.u8() != b't' {
            return None;
        }
        let length = self.u32() as usize;
        let (value, rest) = self.0.split_at(length);
        self.0 = rest;
        Some(String::from_utf8(value.to_vec()).expect("UTF-8"))
    }
}

/// `confirmed_flush_lsn` of the relay's slot, and the end of WAL.
pub(crate) async fn slot(sql: &Client, slot: &str) -> Option<(u64, u64)> {
    let statement = format!(
        "select confirmed_flush_lsn::text || ' ' || pg_current_wal_lsn()::text \
         from pg_replication_slots where slot_name = '{slot}'"
    );
    let both = sql.text(&statement).await?;
    let (confirmed, end) = both.split_once(' ')?;
    Some((parse_lsn(confirmed)?, parse_lsn(end)?))
}
