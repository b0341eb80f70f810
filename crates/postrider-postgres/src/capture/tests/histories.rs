//! Random histories: what a consumer has is what the tables have, whatever the limits, and however often it stops.

use super::consumer::{TableConsumer, TableCopy};
use super::support::{
    ColumnOf, Made, Value, assembler, batches, begin, commit, delete, insert, read, relation, spec,
    text, truncate, update,
};
use crate::capture::CaptureSpec;
use postrider_core::event::Position;
use postrider_core::offset::Offset;
use std::collections::BTreeMap;

/// Tables by replica identity: the primary key, another unique column, the whole row.
const TABLES: [(&str, &str, u8); 3] =
    [("by_id", "id", b'd'), ("by_code", "code", b'i'), ("whole", "id", b'f')];

/// A row: id, code, a number, and a long text.
type Row = [String; 4];

/// What the database has, and what the stream sends.
struct Database {
    rng: fastrand::Rng,
    tables: [BTreeMap<String, Row>; 3],
    messages: Vec<Vec<u8>>,
}

fn columns(table: usize) -> [ColumnOf; 4] {
    let (_, key, identity) = TABLES[table];
    let is_key = |name: &str| identity == b'f' || name == key;
    [("id", 23), ("code", 25), ("n", 1700), ("long", 25)]
        .map(|(name, oid)| (name, oid, is_key(name)))
}

fn values(row: &Row) -> Vec<Value> {
    row.iter().map(text).collect()
}

impl Database {
    fn new(seed: u64) -> Self {
        let rng = fastrand::Rng::with_seed(seed);
        Self { rng, tables: Default::default(), messages: Vec::new() }
    }

    fn id(table: usize) -> u32 {
        16_000 + u32::try_from(table).unwrap()
    }

    /// The old row as the server sends it.
    fn old(table: usize, row: &Row) -> (u8, Vec<Value>) {
        if TABLES[table].2 == b'f' {
            return (b'O', values(row));
        }
        let keys = columns(table).map(|(_, _, key)| key);
        let key = |(at, value): (usize, Value)| if keys[at] { value } else { Value::Null };
        (b'K', values(row).into_iter().enumerate().map(key).collect())
    }

    fn new_row(&mut self, table: usize) -> Option<(String, Row)> {
        // Few keys, so that many come back.
        let number = self.rng.u32(..12);
        let row = [
            number.to_string(),
            format!("c\"{number}"),
            self.rng.u32(..1000).to_string(),
            "x".repeat(self.rng.usize(..30)),
        ];
        let key = self.key(table, &row);
        (!self.tables[table].contains_key(&key)).then_some((key, row))
    }

    fn key(&self, table: usize, row: &Row) -> String {
        let _ = self;
        row[usize::from(TABLES[table].1 == "code")].clone()
    }

    fn change(&mut self, table: usize) {
        let id = Self::id(table);
        let existing: Vec<String> = self.tables[table].keys().cloned().collect();
        let chosen =
            (!existing.is_empty()).then(|| existing[self.rng.usize(..existing.len())].clone());
        match (self.rng.u8(..20), chosen) {
            (0, _) => {
                let others: Vec<usize> =
                    (0..3).filter(|_| self.rng.bool()).chain([table]).collect();
                let ids: Vec<u32> = others.iter().map(|table| Self::id(*table)).collect();
                self.messages.push(truncate(&ids));
                for table in others {
                    self.tables[table].clear();
                }
            }
            (1..=8, _) | (_, None) => {
                let Some((key, row)) = self.new_row(table) else { return };
                self.messages.push(insert(id, &values(&row)));
                self.tables[table].insert(key, row);
            }
            (9..=13, Some(key)) => {
                let old = self.tables[table].remove(&key).unwrap();
                let (tag, sent) = Self::old(table, &old);
                self.messages.push(delete(id, (tag, &sent)));
            }
            (14, Some(key)) => {
                let Some((new_key, row)) = self.new_row(table) else { return };
                let old = self.tables[table].remove(&key).unwrap();
                let (tag, sent) = Self::old(table, &old);
                self.messages.push(update(id, Some((tag, &sent)), &values(&row)));
                self.tables[table].insert(new_key, row);
            }
            (_, Some(key)) => {
                let old = self.tables[table][&key].clone();
                let mut row = old.clone();
                row[2] = self.rng.u32(..1000).to_string();
                let mut sent = values(&row);
                if self.rng.bool() {
                    sent[3] = Value::Unchanged;
                } else {
                    row[3] = "y".repeat(self.rng.usize(..30));
                    sent = values(&row);
                }
                let whole = Self::old(table, &old);
                let whole = (whole.0 == b'O').then_some((whole.0, whole.1.as_slice()));
                self.messages.push(update(id, whole, &sent));
                self.tables[table].insert(key, row);
            }
        }
    }

    /// A transaction that commits at this position.
    fn transaction(&mut self, at: u64, changes: usize) {
        self.messages.push(begin(at));
        for (table, (name, _, identity)) in TABLES.iter().enumerate() {
            self.messages.push(relation(Self::id(table), name, *identity, &columns(table)));
        }
        for _ in 0..changes {
            let table = self.rng.usize(..3);
            self.change(table);
        }
        self.messages.push(commit(at));
    }

    /// The tables as a consumer keeps them.
    fn state(&self) -> BTreeMap<String, TableCopy> {
        let mut state = BTreeMap::new();
        for (rows, (name, key, _)) in self.tables.iter().zip(TABLES) {
            let object = |row: &Row| {
                let [id, code, n, long] = row;
                let row = format!(
                    "{{\"id\":{id},\"code\":{},\"n\":{n},\"long\":\"{long}\"}}",
                    serde_json::Value::from(code.as_str())
                );
                let row: serde_json::Value = serde_json::from_str(&row).unwrap();
                (row[key].to_string(), row.as_object().unwrap().clone())
            };
            let copy: TableCopy = rows.values().map(object).collect();
            if !copy.is_empty() {
                state.insert(format!("public.{name}"), copy);
            }
        }
        state
    }
}

fn all(rows: u32, bytes: usize) -> CaptureSpec {
    spec(&TABLES.map(|(name, ..)| name), rows, bytes)
}

fn random_spec(rng: &mut fastrand::Rng) -> CaptureSpec {
    let rows = [1, 2, 3, 5, 9, 40, 1000][rng.usize(..7)];
    all(rows, [600, 700, 1000, 1 << 20][rng.usize(..4)])
}

fn consumer(deduplicates: bool) -> TableConsumer {
    TableConsumer::new(&TABLES.map(|(name, key, _)| (name, key)), deduplicates)
}

fn made(messages: &[Vec<u8>], spec: &CaptureSpec, absolute: bool, rng: &mut fastrand::Rng) -> Made {
    let mut assembler = assembler(spec);
    if absolute {
        assembler.set_absolute(Offset::MAX);
    }
    read(&mut assembler, &batches(messages, rng), rng).unwrap()
}

fn assert_state(consumer: &TableConsumer, database: &Database, case: &str) {
    let expected = database.state();
    let expected: BTreeMap<&str, &TableCopy> =
        expected.iter().map(|(name, of)| (name.as_str(), of)).collect();
    assert_eq!(consumer.state(), expected, "{case}");
}

/// Every document is within the limits, a sequence is complete, and positions rise.
fn assert_form(made: &Made, spec: &CaptureSpec, case: &str) {
    let rows_max = usize::try_from(spec.inline_threshold_rows).unwrap().max(2);
    let mut open: BTreeMap<&str, (String, u64, [u64; 2])> = BTreeMap::new();
    let mut before = None;
    for event in &made.events {
        assert!(before < Some(event.position), "{case}");
        before = Some(event.position);
        let document: serde_json::Value = serde_json::from_str(&event.document).unwrap();
        let table = event.aggregate_id.as_str();
        if document.get("claim_check").is_some() {
            let sequence = document["sequence"].as_str().unwrap().to_owned();
            assert!(open.insert(table, (sequence, 0, [0, 0])).is_none(), "{case}");
            continue;
        }
        let count = |name: &str| document[name].as_array().unwrap().len();
        let rows = count("inserted") + count("deleted");
        assert!(rows <= rows_max, "{case}: {rows} rows");
        assert!(
            event.document.len() <= spec.chunk_bytes || rows <= 2,
            "{case}: {}",
            event.document
        );
        let Some((sequence, number, counts)) = open.get_mut(table) else {
            assert!(document.get("sequence").is_none(), "{case}: a chunk without a header");
            continue;
        };
        *number += 1;
        counts[0] += count("inserted") as u64;
        counts[1] += count("deleted") as u64;
        assert_eq!(
            (&document["sequence"], &document["chunk"]),
            (&(*sequence).clone().into(), &(*number).into())
        );
        if document.get("last").is_some() {
            assert_eq!(document["chunks"], *number);
            assert_eq!(
                [&document["inserted_count"], &document["deleted_count"]],
                [counts[0], counts[1]]
            );
            open.remove(table);
        }
    }
    assert!(open.is_empty(), "{case}: a sequence without an end");
}

#[test]
fn a_consumer_has_the_tables_after_every_transaction() {
    for seed in 0..400 {
        let mut database = Database::new(seed);
        let mut rng = fastrand::Rng::with_seed(seed);
        let spec = random_spec(&mut rng);
        let mut assembler = assembler(&spec);
        let mut consumer = consumer(rng.bool());
        for number in 1..8_u64 {
            let case = format!("seed {seed}, transaction {number}");
            let changes = rng.usize(..60);
            database.transaction(number * 0x100, changes);
            let messages = std::mem::take(&mut database.messages);
            let made = read(&mut assembler, &batches(&messages, &mut rng), &mut rng).unwrap();
            assert_form(&made, &spec, &case);
            consumer.apply_all(&made.events);
            assert_state(&consumer, &database, &case);
        }
    }
}

#[test]
fn the_number_of_changes_does_not_depend_on_the_limits_and_events_not_on_the_batches() {
    for seed in 0..100 {
        let mut database = Database::new(seed);
        let mut rng = fastrand::Rng::with_seed(seed);
        database.transaction(0x100, 80);
        let (one, other) = (random_spec(&mut rng), random_spec(&mut rng));
        let first = made(&database.messages, &one, false, &mut rng);
        assert_eq!(first, made(&database.messages, &one, false, &mut rng), "seed {seed}");
        let second = made(&database.messages, &other, true, &mut rng);
        assert_eq!(first.changes, second.changes, "seed {seed}");
    }
}

/// A relay stops within a transaction, at each position of it, and another one continues there.
#[test]
fn a_stop_within_a_transaction_loses_no_row_whatever_the_limits_are_afterwards() {
    for seed in 0..20 {
        let mut database = Database::new(seed);
        let mut rng = fastrand::Rng::with_seed(seed);
        let (before, after) = (random_spec(&mut rng), random_spec(&mut rng));
        database.transaction(0x100, 20);
        let filled = made(&database.messages, &before, false, &mut rng);
        database.messages.clear();
        database.transaction(0x200, 50);
        let first = made(&database.messages, &before, false, &mut rng);
        let again = made(&database.messages, &before, false, &mut rng);
        let recounted = made(&database.messages, &after, true, &mut rng);
        for ordinal in 0..=first.changes[0] {
            let at = Position { commit: Offset::new(0x200), ordinal };
            for deduplicates in [false, true] {
                let case = format!("seed {seed}, stopped before {ordinal}, {deduplicates}");
                let mut stopped = consumer(deduplicates);
                stopped.apply_all(&filled.events);
                stopped.apply_all(first.events.iter().filter(|event| event.position < at));
                let mut same = stopped.clone();
                same.apply_all(again.events.iter().filter(|event| event.position >= at));
                assert_state(&same, &database, &case);
                // Another specification: the position is not used.
                let mut other = stopped;
                other.apply_all(&recounted.events);
                assert_state(&other, &database, &format!("{case}, another specification"));
            }
        }
    }
}

/// A relay stops within a transaction again and again, at random positions, and each of them continues with the same
/// specification: documents up to a position are absolute, later ones are not.
#[test]
fn stops_within_transactions_lose_no_row_whether_documents_are_absolute_or_not() {
    for seed in 0..150 {
        let mut database = Database::new(seed);
        let mut rng = fastrand::Rng::with_seed(seed);
        let spec = random_spec(&mut rng);
        let upto = Offset::new(rng.u64(..6) * 0x100);
        let mut consumers = [consumer(false), consumer(true)];
        for number in 1..6_u64 {
            let at = number * 0x100;
            database.transaction(at, rng.usize(..60));
            let messages = std::mem::take(&mut database.messages);
            let absolute = Offset::new(at) <= upto;
            let whole = made(&messages, &spec, absolute, &mut rng);
            // Each relay publishes up to a random position, and the next one continues before or at that position.
            let (mut from, end) = (0, whole.changes[0]);
            while from < end {
                let to = rng.u64(from..=end) + 1;
                let again = made(&messages, &spec, absolute, &mut rng);
                for consumer in &mut consumers {
                    consumer.apply_all(
                        again
                            .events
                            .iter()
                            .filter(|event| (from..to).contains(&event.position.ordinal)),
                    );
                }
                from = if to > end { end } else { to - rng.u64(..=(to - from) / 2) };
            }
            for consumer in &consumers {
                let case = format!("seed {seed}, transaction {number}, absolute: {absolute}");
                assert_state(consumer, &database, &case);
            }
        }
    }
}

/// What absolute documents are for: without them, a consumer that has a part of a transaction keeps rows that are gone
/// if the rest is divided in another way.
#[test]
fn documents_that_are_divided_in_another_way_and_are_not_absolute_leave_rows_that_are_gone() {
    let mut wrong = [0, 0];
    for seed in 0..60 {
        let mut database = Database::new(seed);
        let mut rng = fastrand::Rng::with_seed(seed);
        database.transaction(0x100, 60);
        let (before, after) = (all(2, 1 << 20), all(1000, 1 << 20));
        let first = made(&database.messages, &before, false, &mut rng);
        for absolute in [false, true] {
            let rest = made(&database.messages, &after, absolute, &mut rng);
            let mut consumer = consumer(false);
            consumer.apply_all(first.events.iter().take(first.events.len() / 2));
            consumer.apply_all(&rest.events);
            let expected = database.state();
            let expected: BTreeMap<&str, &TableCopy> =
                expected.iter().map(|(name, of)| (name.as_str(), of)).collect();
            wrong[usize::from(absolute)] += usize::from(consumer.state() != expected);
        }
    }
    assert!(wrong[0] > 0 && wrong[1] == 0, "{wrong:?}");
}
