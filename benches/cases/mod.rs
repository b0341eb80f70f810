//! The steps of the hot path, without sockets: `instructions` counts their instructions, `micro` measures their time.
//!
//! The preparation of a case is not measured; then the case processes its events.

use pg_replication::lsn::Lsn;
use postrider::ack::{Progress, Tracker};
use postrider::event::{Aggregate, Position};
use postrider::formats::{PayloadEncoder, SchemaLanguage};
use postrider::offset::{Offset, Watermark};
use postrider::outbox::{At, Layout, Mapper, OutboxSpec};
use postrider::parked::{Entry, Lane, State};
use postrider::postgres::wire::from_pg_micros;
use postrider::postgres::{Decoder, Encoding, EventObjects, Frame};
use postrider::record::{Outcome, Ticket};
use postrider::relay::{
    self, Effect, HaltWords, Input, Limits, OnPoison, ParkingRules, Relay, Settings,
};
use postrider::source::Change;
use postrider::timestamp::Timestamp;
use std::hint::black_box;
use std::time::Duration;

/// Processes the events once. The result is dropped outside of the measurement.
pub(crate) type Run = Box<dyn FnMut()>;

/// Name, number of events, and the function that prepares a run of so many events.
pub(crate) type Case = (&'static str, usize, fn(usize) -> Run);

pub(crate) const ALL: &[Case] = &[
    ("frame-to-change", 20_000, decode),
    ("row-to-record", 20_000, map),
    ("relay", 20_000, relay),
    ("relay-100k-parked", 20_000, relay_beside_parked),
    ("relay-1M-behind-one", 1_000_000, relay_behind_one),
    ("tracker-1M-backwards", 1_000_000, tracker_backwards),
];

/// Cases whose time is measured beside those of the hot path: what the formats add to an event that is not `raw`.
pub(crate) const FORMATS: &[Case] = &[
    ("json-to-avro", 20_000, avro),
    ("json-to-protobuf", 20_000, protobuf),
    ("json-schema", 20_000, json_schema),
];

const TABLE: u32 = 16_433;
const TRANSACTION_EVENTS: usize = 1_000;

fn text(frame: &mut Vec<u8>, value: &str) {
    frame.push(b't');
    frame.extend_from_slice(&u32::try_from(value.len()).expect("a length").to_be_bytes());
    frame.extend_from_slice(value.as_bytes());
}

/// A row of layout `postrider` with a payload of 300 B in the format of the server.
fn insert() -> Vec<u8> {
    let payload = format!("{{\"n\": 4711, \"note\": \"{}\"}}", "as it was ordered ".repeat(15));
    let mut frame = vec![b'I'];
    frame.extend_from_slice(&TABLE.to_be_bytes());
    frame.extend_from_slice(b"N\x00\x07");
    for value in ["4711", "order", "711", "OrderChanged", &payload] {
        text(&mut frame, value);
    }
    frame.push(b'n');
    text(&mut frame, "2026-11-21 03:04:05.678123+00");
    frame
}

fn relation() -> Vec<u8> {
    let mut frame = vec![b'R'];
    frame.extend_from_slice(&TABLE.to_be_bytes());
    frame.extend_from_slice(b"public\0outbox\0d\x00\x07");
    let columns: [(&str, u32); 7] = [
        ("id", 20),
        ("aggregate_type", 25),
        ("aggregate_id", 25),
        ("event_type", 25),
        ("payload", 114),
        ("headers", 114),
        ("created_at", 1184),
    ];
    for (name, oid) in columns {
        frame.push(u8::from(name == "id"));
        frame.extend_from_slice(name.as_bytes());
        frame.push(0);
        frame.extend_from_slice(&oid.to_be_bytes());
        frame.extend_from_slice(&u32::MAX.to_be_bytes());
    }
    frame
}

fn frame(data: &[u8]) -> Frame<'_> {
    Frame::XLogData { wal_start: Lsn::ZERO, wal_end: Lsn::ZERO, data }
}

fn decoder() -> Decoder {
    Decoder::new(EventObjects::default(), None, Encoding::UTF8)
}

fn decode(events: usize) -> Run {
    let data = insert();
    let mut decoder = decoder();
    Box::new(move || {
        for _ in 0..events {
            let Ok(Change::Row(row)) = decoder.change(&frame(black_box(&data))) else {
                panic!("a row")
            };
            black_box(row.cells.len());
        }
    })
}

fn map(events: usize) -> Run {
    let (data, relation) = (insert(), relation());
    let mut mapper = Mapper::new(OutboxSpec::for_layout(Layout::Postrider)).expect("a mapper");
    let mut decoder = decoder();
    let Ok(Change::Table(table)) = decoder.change(&frame(&relation)) else { panic!("a table") };
    mapper.table(&table).expect("a table that fits");
    Box::new(move || {
        let Ok(Change::Row(row)) = decoder.change(&frame(&data)) else { panic!("a row") };
        for ordinal in 0..events as u64 {
            let position = Position { commit: lsn(4_711), ordinal };
            let at = At { position, commit_time: from_pg_micros(848_599_143_833_097) };
            let event = mapper.row(black_box(&row), at);
            black_box(event.expect("no poison").expect("our table").record().size_bytes());
        }
    })
}

fn lsn(value: u64) -> Offset {
    Offset::new(value)
}

fn rules() -> ParkingRules {
    ParkingRules {
        on_poison: OnPoison::BlockKey,
        attempts_max: 10,
        step: Duration::from_secs(30),
        steps_max: 8,
        rows_max: 1_000_000,
        strict: false,
        dead_letters: false,
    }
}

/// A relay that has started behind these rows.
fn started(events_max: u64, parked: &[Entry]) -> Relay {
    let limits = Limits { events_max, bytes_max: u64::MAX };
    let cursor_interval = Duration::from_secs(1);
    let (words, rules) = (HaltWords::POSTGRES, rules());
    let transactions = None;
    let mut relay = Relay::new(Settings {
        limits,
        cursor_interval,
        idle_step: 4096,
        words,
        rules,
        transactions,
    });
    let cursor = Progress { watermark: Watermark::resumed(lsn(1_000_000)), partial: None };
    let input =
        Input::Started { cursor, same_history: true, same_owner: true, parked, requests: &[] };
    relay.apply(Duration::ZERO, input, &mut Vec::new());
    relay
}

fn aggregates() -> Vec<String> {
    (0..1_000).map(|number| number.to_string()).collect()
}

fn event(id: &str) -> Input<'_> {
    let aggregate = Aggregate { kind: "order", id };
    Input::Change(relay::Change::Event { aggregate, size_bytes: 350, wait: Duration::ZERO })
}

/// Whole transactions: every event is published, then all reports of a transaction arrive.
fn through(relay: &mut Relay, names: &[String], events: usize) {
    let (mut effects, mut tickets) = (Vec::new(), Vec::new());
    for transaction in 0..(events / TRANSACTION_EVENTS) as u64 {
        let commit_lsn = lsn(2_000_000 + transaction * 1_000_000);
        let end_lsn = lsn(2_000_100 + transaction * 1_000_000);
        // Later than the interval of the cursor row, which is written at most once per transaction.
        let now = Duration::from_millis(transaction);
        let commit_time = Timestamp { unix_micros: 0 };
        relay.apply(now, Input::Begin { commit: commit_lsn, commit_time }, &mut effects);
        for id in names {
            relay.apply(now, event(black_box(id)), &mut effects);
            tickets.extend(effects.drain(..).filter_map(|effect| {
                if let Effect::Publish(ticket) = effect { Some(ticket) } else { None }
            }));
        }
        relay.apply(now, Input::Commit { commit: commit_lsn, end: end_lsn }, &mut effects);
        assert_eq!(tickets.len(), TRANSACTION_EVENTS, "events published");
        for ticket in tickets.drain(..) {
            relay.apply(now, Input::Report { ticket, outcome: Outcome::Acked }, &mut effects);
            effects.clear();
        }
    }
    assert_eq!(relay.in_flight().0, 0, "all are reported");
}

fn relay(events: usize) -> Run {
    let (mut relay, names) = (started(50_000, &[]), aggregates());
    Box::new(move || through(&mut relay, &names, events))
}

fn dead(number: u64) -> Entry {
    let id = number.to_string();
    Entry {
        position: Position { commit: lsn(number + 1), ordinal: 0 },
        lane: Some(Lane::of(Aggregate { kind: "stuck", id: &id })),
        state: State::Dead,
        attempts: 10,
        wait: Duration::ZERO,
        overtaken_by: None,
        xid: None,
    }
}

/// The difference to [`relay`] is the cost of the search for the aggregate among the blocked ones.
fn relay_beside_parked(events: usize) -> Run {
    let parked: Vec<Entry> = (0..100_000).map(dead).collect();
    let (mut relay, names) = (started(50_000, &parked), aggregates());
    assert_eq!(relay.parked().dead, 100_000, "parked");
    Box::new(move || through(&mut relay, &names, events))
}

/// As [`relay`], but all reports wait for the first one.
fn relay_behind_one(events: usize) -> Run {
    let (mut relay, names) = (started(2_000_000, &[]), aggregates());
    Box::new(move || {
        let mut effects = Vec::new();
        let (commit_lsn, end_lsn) = (lsn(2_000_000), lsn(2_000_100));
        let (now, commit_time) = (Duration::ZERO, Timestamp { unix_micros: 0 });
        relay.apply(now, Input::Begin { commit: commit_lsn, commit_time }, &mut effects);
        for number in 0..events {
            relay.apply(now, event(&names[number % names.len()]), &mut effects);
            effects.clear();
        }
        relay.apply(now, Input::Commit { commit: commit_lsn, end: end_lsn }, &mut effects);
        for ticket in (1..events as u64).chain([0]).map(Ticket) {
            relay.apply(now, Input::Report { ticket, outcome: Outcome::Acked }, &mut effects);
            effects.clear();
        }
        assert_eq!(relay.in_flight().0, 0, "all are reported");
    })
}

fn tracker_backwards(events: usize) -> Run {
    let mut tracker = Tracker::new(Progress::default());
    Box::new(move || {
        tracker.begin(lsn(1_000), 0).expect("a transaction");
        for _ in 0..events {
            black_box(tracker.change());
        }
        tracker.commit(lsn(1_000), lsn(2_000)).expect("a commit");
        for ticket in (0..events as u64).rev().map(Ticket) {
            black_box(tracker.resolve(ticket).expect("a ticket that is out"));
        }
        assert!(tracker.all_resolved(), "all are reported");
    })
}

/// Encodes a document of 300 B, as [`insert`] has it.
fn encode(events: usize, language: SchemaLanguage, schema: &str) -> Run {
    let document = format!("{{\"n\": 4711, \"note\": \"{}\"}}", "as it was ordered ".repeat(15));
    let encoder = PayloadEncoder::new(language, schema, &[]).expect("a schema");
    let mut out = Vec::new();
    Box::new(move || {
        for _ in 0..events {
            out.clear();
            encoder.encode(black_box(document.as_bytes()), None, &mut out).expect("a document");
            black_box(out.len());
        }
    })
}

fn avro(events: usize) -> Run {
    let schema = r#"{"type": "record", "name": "Order", "fields": [{"name": "n", "type": "long"},
        {"name": "note", "type": ["null", "string"], "default": null}]}"#;
    encode(events, SchemaLanguage::Avro, schema)
}

fn protobuf(events: usize) -> Run {
    let schema = "syntax = \"proto3\"; message Order { int64 n = 1; string note = 2; }";
    encode(events, SchemaLanguage::Protobuf, schema)
}

fn json_schema(events: usize) -> Run {
    let schema = r#"{"type": "object", "required": ["n"],
        "properties": {"n": {"type": "integer"}, "note": {"type": "string"}}}"#;
    encode(events, SchemaLanguage::JsonSchema, schema)
}
