//! A malformed message is an error with its offset.

use crate::pgoutput::{Cell, Column, Message, decode};
use expect_test::{Expect, expect};

fn check(bytes: &[u8], error: &Expect) {
    let decoded = decode(bytes).map_or_else(|error| error.to_string(), |m| format!("{m:?}"));
    error.assert_eq(decoded.trim_start_matches("could not decode pgoutput message "));
}

/// An insert into relation 7 with this tuple.
fn insert(tuple: &[u8]) -> Vec<u8> {
    [b"I\0\0\0\x07N", tuple].concat()
}

#[test]
fn errors_have_the_tag_and_the_offset() {
    let expected = "could not decode pgoutput message 'I' at byte 1: the message ends early";
    assert_eq!(decode(b"I").unwrap_err().to_string(), expected);
}

#[test]
fn an_empty_message_is_refused() {
    check(b"", &expect!["0x00 at byte 0: the message is empty"]);
}

#[test]
fn unknown_tags_are_refused_those_of_later_protocols_among_them() {
    check(b"S\0\0\0\x01\x01", &expect!["'S' at byte 0: an unknown kind of message"]);
    check(b"\x00", &expect!["0x00 at byte 0: an unknown kind of message"]);
    check(b"x", &expect!["'x' at byte 0: an unknown kind of message"]);
}

#[test]
fn an_unchanged_toast_value_in_an_insert_is_refused() {
    check(&insert(b"\0\x02nu"), &expect!["'I' at byte 9: an unchanged TOAST value in a new row"]);
}

#[test]
fn an_insert_of_an_old_row_is_refused() {
    check(b"I\0\0\0\x07K\0\0", &expect!["'I' at byte 5: an insert without a new row"]);
}

#[test]
fn lengths_below_zero_are_refused() {
    check(&insert(b"\xFF\xFF"), &expect!["'I' at byte 6: a count is below zero"]);
    check(&insert(b"\0\x01t\xFF\xFF\xFF\xFF"), &expect!["'I' at byte 9: a length is below zero"]);
    check(b"T\xFF\xFF\xFF\xFF\0", &expect!["'T' at byte 1: a length is below zero"]);
    check(
        b"M\x01\0\0\0\0\0\0\0\0p\0\x80\0\0\0",
        &expect!["'M' at byte 12: a length is below zero"],
    );
}

#[test]
fn lengths_beyond_the_message_are_refused_without_allocating() {
    check(
        &insert(b"\0\x01t\x7F\xFF\xFF\xFFab"),
        &expect!["'I' at byte 13: the message ends early"],
    );
    check(&insert(b"\x7F\xFF"), &expect!["'I' at byte 8: the message ends early"]);
    check(b"T\x7F\xFF\xFF\xFF\0", &expect!["'T' at byte 6: the message ends early"]);
    check(b"R\0\0\0\x07s\0t\0d\x7F\xFF", &expect!["'R' at byte 12: the message ends early"]);
}

#[test]
fn an_unknown_kind_of_column_is_refused() {
    check(&insert(b"\0\x02nz"), &expect!["'I' at byte 9: an unknown kind of column"]);
}

#[test]
fn names_that_are_not_utf8_or_do_not_end_are_refused() {
    check(b"R\0\0\0\x07s\xFF\0t\0d\0\0", &expect!["'R' at byte 5: a name is not UTF-8"]);
    check(b"R\0\0\0\x07schema", &expect!["'R' at byte 5: a name has no end"]);
    check(b"O\0\0\0\0\0\0\0\x01\xC3\x28\0", &expect!["'O' at byte 9: a name is not UTF-8"]);
}

#[test]
fn flags_that_could_change_the_meaning_are_refused() {
    let commit = [b"C\x01".as_slice(), &[0; 24]].concat();
    check(&commit, &expect!["'C' at byte 1: unknown flags of a commit"]);
    check(
        b"M\x02\0\0\0\0\0\0\0\0p\0\0\0\0\0",
        &expect!["'M' at byte 1: unknown flags of a logical message"],
    );
}

#[test]
fn bytes_after_the_message_are_refused() {
    check(&insert(b"\0\x01n!"), &expect!["'I' at byte 9: bytes follow the message"]);
}

#[test]
fn values_never_appear_in_errors_or_debug_output() {
    let bytes = insert(b"\0\x01t\0\0\0\x06secret");
    check(&bytes, &expect!["Insert(Insert { relation_id: 7, new: Tuple(1 columns, 11 B) })"]);
    let Message::Insert(insert) = decode(&bytes).unwrap() else { unreachable!() };
    assert_eq!(format!("{:?}", insert.new.get(0)), "Some(Text(6 B))");
    check(
        b"M\x01\0\0\0\0\0\0\0\0\0\0\0\0\x06secret",
        &expect![[
            r#"Message(LogicalMessage { transactional: true, lsn: 0/0, prefix: "", content_bytes: 6 })"#
        ]],
    );
}

#[test]
fn every_kind_of_value_is_shown_only_by_its_size() {
    let bytes = b"U\0\0\0\x07N\0\x04nub\0\0\0\x06secrett\0\0\0\x06secret";
    let Message::Update(update) = decode(bytes).unwrap() else { unreachable!() };
    let shown = format!("{:?}", update.new.columns().collect::<Vec<_>>());
    assert_eq!(shown, "[Null, Unchanged, Binary(6 B), Text(6 B)]");
    check(
        b"R\0\0\0\x07s\0t\0d\0\x01\x01id\0\0\0\0\x14\xFF\xFF\xFF\xFF",
        &expect![[
            r#"Relation(Relation { id: 7, schema: "s", name: "t", replica_identity: 100, columns: [RelationColumn { key: true, name: "id", type_oid: 20, type_modifier: -1 }] })"#
        ]],
    );
    assert!(format!("{:?}", decode(b"x\0")).contains("tag: 'x'"));
}

/// `CREATE TABLE t ()`.
#[test]
fn table_without_columns_has_empty_rows() {
    let Message::Relation(relation) = decode(b"R\0\0\0\x07s\0t\0d\0\0").unwrap() else {
        unreachable!()
    };
    assert!(relation.columns.is_empty() && relation.columns.iter().next().is_none());
    let bytes = insert(b"\0\0");
    let Message::Insert(insert) = decode(&bytes).unwrap() else { unreachable!() };
    assert!(insert.new.is_empty() && insert.new.columns().next().is_none());
}

#[test]
fn binary_columns_are_distinguished_from_text() {
    let bytes = insert(b"\0\x03b\0\0\0\x01xt\0\0\0\x02yzn");
    let Message::Insert(insert) = decode(&bytes).unwrap() else { unreachable!() };
    let columns: Vec<_> = insert.new.columns().collect();
    assert_eq!(columns, [Column::Binary(b"x"), Column::Text(b"yz"), Column::Null]);
    let cells: Vec<_> = insert.new.cells().collect();
    assert_eq!(cells, [Cell::Other, Cell::Text { start: 11, len: 2 }, Cell::Null]);
    assert_eq!(&insert.new.bytes()[11..13], b"yz");
    assert_eq!(insert.new.get(3), None);
}
