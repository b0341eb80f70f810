//! The change that each message is.

use super::support::{AT, Sent, change, message, print, reader, relation, row, type_name};
use crate::decoder::{Decoder, EventObjects};
use crate::encoding::Encoding;
use crate::names::TableName;
use crate::value_types::TypeFacts;
use pg_replication::Frame;
use pg_replication::lsn::Lsn;
use postrider_core::offset::Offset;
use postrider_core::row::{Kind, TableId, ValueType};
use postrider_core::source::{Change, Unreadable};
use postrider_core::timestamp::Timestamp;
use postrider_outbox::{Layout, OutboxSpec};

fn decoder() -> Decoder {
    Decoder::new(EventObjects::default(), None, Encoding::UTF8)
}

fn bytes(parts: &[&[u8]]) -> Vec<u8> {
    parts.concat()
}

#[test]
fn a_transaction_has_its_offsets_and_times() {
    let mut decoder = decoder();
    let micros = 1_000_000_i64.to_be_bytes();
    let time = Timestamp { unix_micros: 946_684_801_000_000 };
    let begin = bytes(&[b"B", &0x200_u64.to_be_bytes(), &micros, &7_u32.to_be_bytes()]);
    let commit = bytes(&[b"C\0", &0x200_u64.to_be_bytes(), &0x230_u64.to_be_bytes(), &micros]);
    assert_eq!(
        change(&mut decoder, &begin).unwrap(),
        Change::Begin {
            commit: Offset::new(0x200),
            first: Offset::new(0x100),
            time,
            transaction: Some(7)
        }
    );
    assert_eq!(
        change(&mut decoder, &commit).unwrap(),
        Change::Commit { commit: Offset::new(0x200), end: Offset::new(0x230), time }
    );
    let keepalive = Frame::Keepalive { wal_end: Lsn::from_wire(0x300), reply_requested: false };
    assert_eq!(decoder.change(&keepalive).unwrap(), Change::Heartbeat(Offset::new(0x300)));
    let delete = bytes(&[b"D", &7_u32.to_be_bytes(), b"K\0\x01n"]);
    assert_eq!(change(&mut decoder, &delete).unwrap(), Change::Other);
    let truncate = bytes(&[b"T", &1_u32.to_be_bytes(), b"\0", &7_u32.to_be_bytes()]);
    assert_eq!(change(&mut decoder, &truncate).unwrap(), Change::Other);
    let origin = bytes(&[b"O", &0x200_u64.to_be_bytes(), b"other\0"]);
    assert_eq!(change(&mut decoder, &origin).unwrap(), Change::Nothing);
}

#[test]
fn a_row_has_the_texts_of_its_columns() {
    let mut decoder = decoder();
    let insert = row(b'I', 7, &[Sent::Text(b"one"), Sent::Null, Sent::Text(b"")]);
    let Change::Row(read) = change(&mut decoder, &insert).unwrap() else { panic!("no row") };
    assert_eq!((read.table, read.cells.len()), (TableId(7), 3));
    assert_eq!([0, 1, 2].map(|at| read.text(at)), [Some(&b"one"[..]), None, Some(b"")]);
    // The next row has fewer columns: nothing of the one before is left.
    let insert = row(b'I', 8, &[Sent::Null]);
    let Change::Row(read) = change(&mut decoder, &insert).unwrap() else { panic!("no row") };
    assert_eq!((read.table, read.cells), (TableId(8), &[None][..]));
}

#[test]
fn a_value_that_is_not_text_stops_a_new_row_and_no_update() {
    let mut decoder = decoder();
    let insert = row(b'I', 7, &[Sent::Text(b"1"), Sent::Binary(b"secret")]);
    let error = change(&mut decoder, &insert).unwrap_err();
    assert!(matches!(error, Unreadable::NotText(TableId(7))), "{error}");
    assert!(!format!("{error} {error:?}").contains("secret"));
    for other in [Sent::Unchanged, Sent::Binary(b"2")] {
        let update = row(b'U', 7, &[Sent::Text(b"1"), other]);
        let Change::Updated(read) = change(&mut decoder, &update).unwrap() else {
            panic!("no update")
        };
        assert_eq!((read.text(0), read.cells[1]), (Some(&b"1"[..]), None));
    }
    let torn = &insert[..insert.len() - 1];
    let error = change(&mut decoder, torn).unwrap_err();
    assert!(matches!(error, Unreadable::Protocol(_)), "{error}");
}

/// OID 20001 is a domain over bytea, 20002 one over numeric(10,2), 20003 an enum.
#[test]
fn a_domain_is_the_type_beneath_it_once_the_catalog_was_asked() {
    let spec = OutboxSpec::for_layout(Layout::Postrider);
    let (mut decoder, mut mapper) = reader(&spec);
    let columns = [
        ("id", 20, -1),
        ("aggregate_type", 25, -1),
        ("aggregate_id", 25, -1),
        ("event_type", 20_003, -1),
        ("payload", 20_001, -1),
        ("headers", 114, -1),
        ("created_at", 1184, -1),
        // No field of an event is in it, so nobody has to know its type.
        ("more", 20_002, -1),
    ];
    let described = relation(7, "public", "outbox", &columns);
    assert_eq!(change(&mut decoder, &described).unwrap(), Change::Blocked);
    assert_eq!(decoder.unknown_types(), [20_001, 20_003]);
    // Offered again without the answer, it asks again.
    assert_eq!(change(&mut decoder, &described).unwrap(), Change::Blocked);
    let domain = TypeFacts { oid: 20_001, base_oid: 17, base_modifier: -1, is_text: false };
    decoder.add_types(&[domain]);
    let Change::Table(table) = change(&mut decoder, &described).unwrap() else {
        panic!("what is not in the catalog is asked for once")
    };
    let of: Vec<ValueType> = table.columns.iter().map(|column| column.of).collect();
    assert_eq!(
        of[3..],
        [
            ValueType::default(),
            ValueType::of(Kind::Bytea),
            ValueType::of(Kind::Json),
            ValueType::of(Kind::Timestamptz { digits: 6 }),
            ValueType::default(),
        ]
    );
    mapper.table(&table).unwrap();
    let texts: [&[u8]; 5] = [b"1", b"order", b"o-7", b"OrderPlaced", b"\\x6869"];
    let mut cells: Vec<Sent<'_>> = texts.map(Sent::Text).to_vec();
    cells.extend([Sent::Null; 3]);
    let insert = row(b'I', 7, &cells);
    let Change::Row(read) = change(&mut decoder, &insert).unwrap() else { panic!("no row") };
    assert!(print(mapper.row(&read, AT)).contains("value     \"hi\""));
    // Another connection may be one to another server.
    let (mut decoder, _) = reader(&spec);
    assert_eq!(change(&mut decoder, &described).unwrap(), Change::Blocked);
    // The types of other tables are not asked for, and are those of the outbox under another name.
    let other = relation(8, "public", "orders", &columns);
    assert!(matches!(change(&mut decoder, &other).unwrap(), Change::Table(_)));
    let objects = EventObjects {
        table: Some(TableName::new("public", "outbox")),
        columns: vec!["payload".to_owned()],
        message_prefix: None,
    };
    let mut decoder = Decoder::new(objects, Some(8), Encoding::UTF8);
    assert_eq!(change(&mut decoder, &other).unwrap(), Change::Blocked);
    assert_eq!(decoder.unknown_types(), [20_001]);
}

/// A Type message has the OID of the domain and the name of the type beneath it.
#[test]
fn a_domain_that_the_catalog_does_not_have_any_more_is_what_the_stream_names() {
    let objects = EventObjects {
        table: Some(TableName::new("public", "outbox")),
        columns: vec!["payload".to_owned()],
        message_prefix: None,
    };
    let mut decoder = Decoder::new(objects, None, Encoding::UTF8);
    let named = type_name(20_001, "", "bytea");
    assert_eq!(change(&mut decoder, &named).unwrap(), Change::Nothing);
    let described = relation(7, "public", "outbox", &[("payload", 20_001, -1)]);
    assert_eq!(change(&mut decoder, &described).unwrap(), Change::Blocked);
    decoder.add_types(&[]);
    let Change::Table(table) = change(&mut decoder, &described).unwrap() else { panic!("blocked") };
    assert_eq!(table.columns[0].of, ValueType::of(Kind::Bytea));
}

#[test]
fn the_content_of_an_events_message_is_converted_from_the_databases_encoding() {
    let objects =
        EventObjects { message_prefix: Some("orders".to_owned()), ..EventObjects::default() };
    let with =
        |encoding: &str| Decoder::new(objects.clone(), None, Encoding::of(encoding).unwrap());
    for (encoding, transactional, prefix, content, expected, is_text) in [
        ("UTF8", true, "orders", &b"caf\xc3\xa9"[..], "caf\u{e9}".as_bytes(), true),
        ("LATIN1", true, "orders", b"caf\xe9", "caf\u{e9}".as_bytes(), true),
        ("LATIN1", true, "orders", b"cafe", b"cafe", true),
        ("EUC_JP", true, "orders", b"\xff\xff", b"\xff\xff", false),
        // These are no events, and are as the server sends them.
        ("LATIN1", false, "orders", b"caf\xe9", b"caf\xe9", false),
        ("LATIN1", true, "other", b"caf\xe9", b"caf\xe9", false),
    ] {
        let mut decoder = with(encoding);
        let sent = message(transactional, prefix, content);
        let Change::Message(read) = change(&mut decoder, &sent).unwrap() else { panic!("none") };
        assert_eq!((read.transactional, read.prefix), (transactional, prefix));
        assert_eq!((read.content, read.is_text), (expected, is_text), "{encoding} {prefix}");
    }
}
