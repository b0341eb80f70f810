//! The changes that single transactions become.

use super::support::{
    ColumnOf, SentFrames, Value, assembler, begin, commit, delete, insert, read, relation, spec,
    text, truncate, update,
};
use crate::capture::{CaptureError, CaptureFault, ShapeFacts};
use postrider_core::source::{Batch as _, Change, Unreadable};

const ID: u32 = 16_000;

const COLUMNS: [ColumnOf; 2] = [("id", 23, true), ("note", 25, false)];

fn orders() -> Vec<u8> {
    relation(ID, "orders", b'd', &COLUMNS)
}

/// The events of one transaction, each as ordinal, aggregate and document.
fn events(rows: u32, bytes: usize, messages: &[Vec<u8>]) -> Result<Vec<String>, Unreadable> {
    let mut rng = fastrand::Rng::with_seed(1);
    let mut assembler = assembler(&spec(&["orders", "lines"], rows, bytes));
    let sent = SentFrames([&[begin(0x100), orders()], messages, &[commit(0x100)]].concat());
    let made = read(&mut assembler, &[sent], &mut rng)?;
    let shown = |event: &super::support::Event| {
        format!("{} {} {}", event.position.ordinal, event.aggregate_type, event.document)
    };
    Ok(made.events.iter().map(shown).collect())
}

fn fault(messages: &[Vec<u8>]) -> CaptureFault {
    match events(10, 1 << 20, messages).unwrap_err() {
        Unreadable::Protocol(error) => error.downcast::<CaptureError>().unwrap().fault,
        Unreadable::NotText(table) => {
            assert_eq!(table.0, ID);
            CaptureFault::NotText
        }
    }
}

#[test]
fn a_small_change_is_one_document_for_each_table_at_the_commit() {
    let lines = relation(17_000, "lines", b'd', &[("line", 23, true)]);
    let messages = [
        lines,
        insert(17_000, &[text(7)]),
        insert(ID, &[text(1), text("a")]),
        update(ID, None, &[text(2), Value::Null]),
        delete(ID, (b'K', &[text(3), Value::Null])),
    ];
    // Two ordinals for each change, then one for each table in the order of their first changes.
    assert_eq!(
        events(1000, 1 << 20, &messages).unwrap(),
        [
            r#"8 lines {"v":1,"inserted":[{"line":7}],"deleted":[]}"#,
            r#"9 orders {"v":1,"inserted":[{"id":1,"note":"a"},{"id":2,"note":null}],"deleted":[{"id":2},{"id":3}]}"#,
        ]
    );
}

#[test]
fn a_large_change_is_a_sequence() {
    let row = |id: u32| insert(ID, &[text(id), text("x")]);
    let messages: Vec<_> = (0..5).map(row).collect();
    let id = "00000ABC-0000000000000100-00000004";
    let of = |event: &str| event.replace("ID", id);
    assert_eq!(
        events(2, 1 << 20, &messages).unwrap(),
        [
            of(r#"4 orders {"v":1,"claim_check":false,"sequence":"ID"}"#),
            of(
                r#"5 orders {"v":1,"sequence":"ID","chunk":1,"inserted":[{"id":0,"note":"x"},{"id":1,"note":"x"}],"deleted":[]}"#
            ),
            of(
                r#"9 orders {"v":1,"sequence":"ID","chunk":2,"inserted":[{"id":2,"note":"x"},{"id":3,"note":"x"}],"deleted":[]}"#
            ),
            of(
                r#"10 orders {"v":1,"sequence":"ID","chunk":3,"last":true,"chunks":3,"inserted_count":5,"deleted_count":0,"inserted":[{"id":4,"note":"x"}],"deleted":[]}"#
            ),
        ]
    );
}

#[test]
fn a_row_that_is_larger_than_a_document_is_a_document_of_its_own() {
    let row = |id: u32, bytes| insert(ID, &[text(id), text("x".repeat(bytes))]);
    let found = events(1000, 2000, &[row(1, 10), row(2, 5000), row(3, 10)]).unwrap();
    let rows: Vec<usize> = found.iter().map(|event| event.matches("\"id\"").count()).collect();
    assert_eq!(rows, [0, 1, 1, 1]);
    // Alone in its transaction it is no sequence.
    let alone = events(1000, 2000, &[row(2, 5000)]).unwrap();
    assert!(alone.len() == 1 && !alone[0].contains("sequence"));
}

#[test]
fn what_leaves_nothing_is_no_event_and_other_tables_are_none() {
    let other = relation(18_000, "other", b'd', &COLUMNS);
    let messages = [
        other,
        insert(18_000, &[text(1), text("a")]),
        truncate(&[18_000]),
        insert(ID, &[text(1), text("a")]),
        delete(ID, (b'K', &[text(1), Value::Null])),
    ];
    assert_eq!(events(10, 1 << 20, &messages).unwrap(), [""; 0]);
    let truncated = [orders(), truncate(&[ID, 18_000])];
    let messages = [&messages[..1], &truncated].concat();
    assert_eq!(
        events(10, 1 << 20, &messages).unwrap(),
        [r#"2 orders {"v":1,"truncated":true,"inserted":[],"deleted":[]}"#]
    );
}

#[test]
fn rows_from_before_and_after_a_change_of_the_table_are_in_two_documents() {
    let by_note = relation(ID, "orders", b'i', &[("id", 23, false), ("note", 25, true)]);
    let messages = [
        insert(ID, &[text(1), text("a")]),
        // SentFrames again without a change.
        orders(),
        insert(ID, &[text(2), text("b")]),
        by_note,
        delete(ID, (b'K', &[Value::Null, text("a")])),
    ];
    let id = "00000ABC-0000000000000100-00000004";
    let of = |event: &str| event.replace("ID", id);
    assert_eq!(
        events(10, 1 << 20, &messages).unwrap(),
        [
            of(r#"4 orders {"v":1,"claim_check":false,"sequence":"ID"}"#),
            of(
                r#"5 orders {"v":1,"sequence":"ID","chunk":1,"inserted":[{"id":1,"note":"a"},{"id":2,"note":"b"}],"deleted":[]}"#
            ),
            of(
                r#"6 orders {"v":1,"sequence":"ID","chunk":2,"last":true,"chunks":2,"inserted_count":2,"deleted_count":1,"inserted":[],"deleted":[{"note":"a"}]}"#
            ),
        ]
    );
}

#[test]
fn unchanged_values_come_from_the_old_row_or_are_named() {
    let whole = relation(ID, "orders", b'f', &[("id", 23, true), ("note", 25, true)]);
    let old = [text(1), text("long")];
    let messages = [whole, update(ID, Some((b'O', &old)), &[text(2), Value::Unchanged])];
    assert_eq!(
        events(10, 1 << 20, &messages).unwrap(),
        [
            r#"2 orders {"v":1,"inserted":[{"id":2,"note":"long"}],"deleted":[{"id":1,"note":"long"}]}"#
        ]
    );
    assert_eq!(
        events(10, 1 << 20, &[update(ID, None, &[text(1), Value::Unchanged])]).unwrap(),
        [r#"2 orders {"v":1,"unchanged":["note"],"inserted":[{"id":1}],"deleted":[{"id":1}]}"#]
    );
    // A long key that is stored out of line is in the old row.
    let key = [text(1), Value::Null];
    assert_eq!(
        events(10, 1 << 20, &[update(ID, Some((b'K', &key)), &[Value::Unchanged, text("b")])])
            .unwrap(),
        [r#"2 orders {"v":1,"inserted":[{"id":1,"note":"b"}],"deleted":[{"id":1}]}"#]
    );
}

/// A partition that identifies rows by a key, of a partitioned table that sends whole rows.
#[test]
fn a_key_that_can_not_be_compared_is_not_in_one_document_with_rows_before_it() {
    let whole = relation(ID, "orders", b'f', &[("id", 23, true), ("note", 25, true)]);
    let messages = [
        whole,
        insert(ID, &[text(1), text("a")]),
        update(ID, None, &[text(1), text("b")]),
        delete(ID, (b'K', &[text(1), Value::Null])),
    ];
    let documents: Vec<String> = events(10, 1 << 20, &messages).unwrap();
    let rows: Vec<&str> =
        documents.iter().filter_map(|of| of.split("\"inserted\":").nth(1)).collect();
    assert_eq!(
        rows,
        [
            r#"[{"id":1,"note":"a"}],"deleted":[]}"#,
            r#"[{"id":1,"note":"b"}],"deleted":[{"id":1,"note":"b"}]}"#,
            r#"[],"deleted":[{"id":1}]}"#,
        ]
    );
}

#[test]
fn a_change_that_can_not_be_read_is_an_error_without_content() {
    let no_key = relation(ID, "orders", b'n', &[("id", 23, false), ("note", 25, false)]);
    for (messages, expected) in [
        (vec![insert(99, &[text(1)])], CaptureFault::NotDescribed),
        (vec![truncate(&[99])], CaptureFault::NotDescribed),
        (vec![insert(ID, &[text(1)])], CaptureFault::Width),
        (vec![delete(ID, (b'K', &[text(1)]))], CaptureFault::Width),
        (vec![no_key, update(ID, None, &[text(1), text("a")])], CaptureFault::NoIdentity),
        (vec![update(ID, None, &[Value::Unchanged, text("a")])], CaptureFault::NoKeyValue),
        (vec![delete(ID, (b'K', &[Value::Null, text("a")]))], CaptureFault::NoKeyValue),
    ] {
        assert_eq!(fault(&messages), expected);
    }
    let mut not_utf8 = insert(ID, &[text(1), text("ab")]);
    *not_utf8.last_mut().unwrap() = 0xE4;
    assert_eq!(fault(&[not_utf8]), CaptureFault::NotText);
    // A table without an identity has new rows only.
    let no_key = relation(ID, "orders", b'n', &[("id", 23, false), ("note", 25, false)]);
    let row = insert(ID, &[text(1), text("a")]);
    assert_eq!(
        events(10, 1 << 20, &[no_key, row.clone(), row]).unwrap(),
        [r#"4 orders {"v":1,"inserted":[{"id":1,"note":"a"},{"id":1,"note":"a"}],"deleted":[]}"#]
    );
}

#[test]
fn types_of_the_catalog_are_looked_up_before_rows_are_read() {
    let mut assembler = assembler(&spec(&["orders"], 10, 1 << 20));
    let columns: [ColumnOf; 2] = [("id", 23, true), ("note", 20_001, false)];
    let described = relation(ID, "orders", b'd', &columns);
    let sent = SentFrames(vec![
        begin(0x100),
        described,
        insert(ID, &[text(1), text("{1,2}")]),
        commit(0x100),
    ]);
    assembler.begin_batch();
    // The table of documents, with both of its numbers, and the beginning.
    for place in 0..3 {
        assert!(assembler.batch(&sent).change_at(place).unwrap().is_some());
    }
    for _ in 0..2 {
        let blocked = assembler
            .batch(&sent)
            .change_at(3)
            .unwrap()
            .map(|(change, _)| matches!(change, Change::Blocked));
        assert_eq!((blocked, assembler.unknown_types()), (Some(true), &[20_001][..]));
    }
    let facts = ShapeFacts { oid: 20_001, base: 0, element: 23, delimiter: b',', fields: None };
    assembler.add_shapes(&[facts]);
    assert_eq!(assembler.unknown_types(), &[0; 0]);
    let mut documents = Vec::new();
    for place in 3..7 {
        let mut batch = assembler.batch(&sent);
        if let Some((Change::Row(row), _)) = batch.change_at(place).unwrap() {
            documents.push(String::from_utf8(row.text(4).unwrap().to_vec()).unwrap());
        }
    }
    assert_eq!(documents, [r#"{"v":1,"inserted":[{"id":1,"note":[1,2]}],"deleted":[]}"#]);
    assert!(assembler.batch(&sent).change_at(7).unwrap().is_none());
}
