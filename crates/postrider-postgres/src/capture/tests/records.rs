//! The records that a mapper makes of documents.

use super::support::{SentFrames, assembler, begin, commit, insert, relation, spec, text};
use postrider_core::event::{Histories, Position};
use postrider_core::offset::Offset;
use postrider_core::source::{Batch as _, Change};
use postrider_core::timestamp::Timestamp;
use postrider_outbox::{At, Mapper, OutboxSpec};

#[test]
fn a_document_is_a_record_as_an_event_of_an_outbox_is() {
    let mut assembler = assembler(&spec(&["orders"], 2, 1 << 20));
    let mut mapper = Mapper::new(OutboxSpec::for_deltas()).unwrap();
    let row = |id: u32| insert(16_000, &[text(id)]);
    let sent = SentFrames(vec![
        begin(0x100),
        relation(16_000, "orders", b'd', &[("id", 23, true)]),
        row(1),
        row(2),
        row(3),
        commit(0x100),
    ]);
    mapper.set_histories(Histories::default(), false);
    assembler.begin_batch();
    let mut batch = assembler.batch(&sent);
    let (mut records, mut place, mut ordinal) = (Vec::new(), 0, 0);
    while let Some((change, next)) = batch.change_at(place).unwrap() {
        let position = Position { commit: Offset::new(0x100), ordinal };
        let at = At { position, commit_time: Timestamp { unix_micros: 1_704_164_645_500_000 } };
        match change {
            Change::Table(table) => mapper.table(&table).unwrap(),
            Change::Row(row) => {
                let event = mapper.row(&row, at).unwrap().expect("an event");
                let record = event.record();
                let named = |name| record.headers.iter().find(|header| header.name == name);
                let header = |name| {
                    let value = named(name).and_then(|header| header.value);
                    value.map(|value| String::from_utf8_lossy(value).into_owned())
                };
                assert_eq!((record.topic, record.key), ("orders", Some(&b"public.orders"[..])));
                assert_eq!(record.timestamp_ms, Some(1_704_164_645_500));
                assert_eq!(
                    (header("type").as_deref(), event.event_type),
                    (Some("table_delta"), "table_delta")
                );
                assert!(header("id").is_some_and(|id| id.ends_with(&format!("{ordinal:08X}"))));
                records.push((ordinal, header("position").is_some(), header("history").is_some()));
                ordinal += 1;
            }
            Change::Collected => ordinal += 1,
            Change::Begin { .. }
            | Change::Commit { .. }
            | Change::Other
            | Change::Updated(_)
            | Change::Message(_)
            | Change::Heartbeat(_)
            | Change::Nothing
            | Change::Blocked => {}
        }
        place = next;
    }
    // The document that begins the sequence has no rows, so its position must not be compared.
    assert_eq!(records, [(4, false, true), (5, true, false), (6, true, false)]);
}
