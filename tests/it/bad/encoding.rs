//! Databases in another encoding than UTF-8: what has a meaning arrives as UTF-8, and what has none halts.

use super::SOON;
use crate::answers::{Answer, answer};
use crate::halted::run_to_halt;
use crate::pipeline::Pipeline;
use crate::relay::postrider;
use crate::server::{Client, Database, Version, brokers};
use crate::topic::ReadRecord;
use pg_replication::lsn::Lsn;
use postrider::event::Position;
use postrider::outbox::{At, Layout, Mapper, OutboxSpec};
use postrider::postgres::{Decoder, Encoding, EventObjects, Frame};
use postrider::source::Change;
use postrider::timestamp::Timestamp;

/// A pipeline on a database in `encoding`, and the database, which goes away at the end.
async fn encoded(version: Version, encoding: &str) -> (Pipeline, Database) {
    let database = Database::create(version, "encoding").await;
    let admin = Client::connect(&version.variable("URL")).await.expect("a session");
    let name = &database.name;
    admin.batch(&format!("drop database {name}")).await;
    let locale = "template template0 lc_collate 'C' lc_ctype 'C'";
    admin.batch(&format!("create database {name} encoding '{encoding}' {locale}")).await;
    let pipeline = Pipeline::on(&database.socket_url(), &brokers(), "encoding").await;
    (pipeline, database)
}

const INSERT: &str =
    "insert into outbox (aggregate_type, aggregate_id, event_type, payload) values ";

#[tokio::test]
async fn latin1_arrives_as_utf8() {
    for version in Version::ALL {
        let (pipeline, _database) = encoded(version, "LATIN1").await;
        pipeline
            .sql
            .batch(&format!(
                "{INSERT}('order', 'caf\u{e9}', '\u{c4}nderung', '\"\u{bf}qu\u{e9}?\"')"
            ))
            .await;
        let relay = pipeline.run();
        let records = pipeline.topic.await_records(1, SOON).await;
        assert_eq!(records[0].key_text(), Some("caf\u{e9}"));
        assert_eq!(records[0].header("type"), Some("\u{c4}nderung"));
        assert_eq!(records[0].value_text(), Some("\"\u{bf}qu\u{e9}?\""));
        assert_eq!(relay.terminate(SOON).await.code, Some(0));
        answer("a database in LATIN1", &pipeline, Answer::published("published, in UTF-8"));
    }
}

#[tokio::test]
async fn sql_ascii_arrives_where_it_is_utf8_and_halts_where_it_is_not() {
    let (pipeline, _database) = encoded(Version::Pg17, "SQL_ASCII").await;
    pipeline.sql.batch(&format!("{INSERT}('order', 'caf\u{e9}', 'T', '1')")).await;
    pipeline
        .sql
        .batch(&format!("set client_encoding = 'SQL_ASCII'; {INSERT}('order', '1', E'\\xff', '2')"))
        .await;
    pipeline.sql.batch(&format!("{INSERT}('order', '1', 'T', '3')")).await;
    let halted = run_to_halt(&pipeline.config).await;
    halted.assert_says("PR016", &["22021"], &["docs/operations/skipping.md"]);
    assert!(!halted.message.contains("0xff"), "a value: {halted:#?}");
    let records = pipeline.topic.read_all().await;
    let keys: Vec<_> = records.iter().map(ReadRecord::key_text).collect();
    assert_eq!(keys, [Some("caf\u{e9}")], "what is before it, and nothing behind it");
    answer("a database in SQL_ASCII, text in UTF-8", &pipeline, Answer::published("published"));
    answer("a database in SQL_ASCII, bytes that are no text", &pipeline, &halted);
}

/// Logical messages come in the database's encoding, and rows in UTF-8.
#[tokio::test]
async fn logical_messages_are_read_in_the_databases_encoding() {
    for (version, encoding, text) in [
        (Version::Pg15, "LATIN1", "caf\u{e9}"),
        (Version::Pg18, "LATIN1", "caf\u{e9}"),
        (Version::Pg17, "EUC_JP", "\u{6ce8}\u{6587}"),
        (Version::Pg17, "SQL_ASCII", "caf\u{e9}"),
        (Version::Pg17, "UTF8", "caf\u{e9} \u{1f600}"),
    ] {
        let (mut pipeline, _database) = encoded(version, encoding).await;
        pipeline.config = pipeline.config.replace(
            "table = \"public.outbox\"\n",
            "table = \"public.outbox\"\nmessage_prefix = \"outbox\"\n",
        );
        let message = format!(
            "select pg_logical_emit_message(true, 'outbox', '{{\"aggregate_type\": \"order\", \
             \"aggregate_id\": \"{text}\", \"event_type\": \"T\", \"payload\": {{\"name\": \"{text}\"}}, \
             \"headers\": {{\"h\": \"{text}\"}}}}')"
        );
        let relay = pipeline.run();
        relay.await_state("streaming", SOON).await;
        pipeline.sql.batch(&message).await;
        pipeline.sql.batch(&format!("{INSERT}('order', '{text}', 'T', '1')")).await;
        let records = pipeline.topic.await_records(2, SOON).await;
        let value = format!("{{\"name\": \"{text}\"}}");
        let of_message = records.iter().find(|record| record.value_text() == Some(&value));
        let record = of_message.unwrap_or_else(|| panic!("{encoding}: {records:#?}"));
        assert_eq!((record.key_text(), record.header("h")), (Some(text), Some(text)));
        assert!(records.iter().all(|record| record.key_text() == Some(text)), "{records:#?}");
        assert_eq!(relay.terminate(SOON).await.code, Some(0));
    }
}

/// A database whose messages can't be converted is refused where they are asked for.
#[tokio::test]
async fn encodings_that_cannot_be_converted_are_refused_where_messages_are_asked_for() {
    let (pipeline, _database) = encoded(Version::Pg17, "EUC_TW").await;
    let relay = pipeline.run();
    relay.await_state("streaming", SOON).await;
    assert_eq!(relay.terminate(SOON).await.code, Some(0), "without messages it streams");
    let config = pipeline.config.replace(
        "table = \"public.outbox\"\n",
        "table = \"public.outbox\"\nmessage_prefix = \"outbox\"\n",
    );
    let halted = run_to_halt(&config).await;
    halted.assert_says("PR013", &["encoding EUC_TW", "message_prefix"], &["outbox.table", "UTF8"]);
    answer("logical messages of a database in EUC_TW", &pipeline, &halted);
    let output = postrider(&config, &["check"]);
    let said = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("encoding EUC_TW"), "{said}");
    let output = postrider(&config, &["setup"]);
    assert_eq!(output.status.code(), Some(3), "{}", String::from_utf8_lossy(&output.stderr));
}

/// Each character of each encoding, by the server's own conversion.
#[tokio::test]
async fn every_character_is_the_one_that_the_server_converts_it_to() {
    let database = Database::create(Version::Pg17, "characters").await;
    let client = database.connect().await;
    client
        .batch(
            "create function decoded(b bytea, e name) returns text language plpgsql as \
             $$ begin return convert_from(b, e); exception when others then return null; end $$",
        )
        .await;
    let single = (0x80..=0xFF_u8).map(|byte| vec![byte]);
    let single: Vec<Vec<u8>> = single.collect();
    let pairs = (0xA1..=0xFE_u8).flat_map(|a| (0xA1..=0xFE_u8).map(move |b| vec![a, b]));
    let pairs: Vec<Vec<u8>> = pairs.collect();
    let of_one = [
        "LATIN1",
        "LATIN2",
        "LATIN3",
        "LATIN4",
        "LATIN5",
        "LATIN6",
        "LATIN7",
        "LATIN8",
        "LATIN9",
        "LATIN10",
        "ISO_8859_5",
        "ISO_8859_6",
        "ISO_8859_7",
        "ISO_8859_8",
        "KOI8R",
        "WIN866",
        "WIN874",
        "WIN1250",
        "WIN1251",
        "WIN1252",
        "WIN1253",
        "WIN1254",
        "WIN1255",
        "WIN1256",
        "WIN1257",
        "WIN1258",
    ];
    let all = of_one.map(|name| (name, &single)).into_iter();
    let mut wrong = Vec::new();
    for (name, codes) in all.chain(["EUC_JP", "EUC_KR"].map(|name| (name, &pairs))) {
        let sql = "select decoded(c, $2::text::name) from unnest($1::bytea[]) with ordinality as u(c, n) order by n";
        let rows = client.query(sql, &[codes, &name]).await.expect("characters");
        for (code, row) in codes.iter().zip(rows) {
            let server: Option<String> = row.get(0);
            // What the server can't convert it would not have taken from a client in UTF-8.
            if let Some(server) = server
                && decoded(name, code).as_ref() != Some(&server)
            {
                wrong.push(format!("{name} {code:02x?}: {server:?} {:?}", decoded(name, code)));
            }
        }
    }
    // One that is parked, since it is not in the Encoding Standard; none is taken for another.
    assert_eq!(wrong, ["EUC_KR [a2, e8]: \"\u{327e}\" None"]);
}

/// The value of a message that has these bytes for its payload.
fn decoded(encoding: &str, code: &[u8]) -> Option<String> {
    let mut spec = OutboxSpec::for_layout(Layout::Postrider);
    spec.message_prefix = Some("outbox".to_owned());
    let mut mapper = Mapper::new(spec).expect("a mapper");
    let message_prefix = Some("outbox".to_owned());
    let objects = EventObjects { message_prefix, ..EventObjects::default() };
    let encoding = Encoding::of(encoding).expect("an encoding");
    let mut decoder = Decoder::new(objects, None, encoding);
    let head = br#"{"aggregate_type":"a","aggregate_id":"1","event_type":"T","payload":""#;
    let content = [head.as_slice(), code, br#""}"#].concat();
    let length = u32::try_from(content.len()).expect("a short content").to_be_bytes();
    let data = [b"M\x01", &[0; 8][..], b"outbox\0", &length, &content].concat();
    let frame = Frame::XLogData { wal_start: Lsn::ZERO, wal_end: Lsn::ZERO, data: &data };
    let Ok(Change::Message(message)) = decoder.change(&frame) else { panic!("no message") };
    let at = At { position: Position::default(), commit_time: Timestamp::default() };
    let event = mapper.message(&message, at).ok()??;
    let value = String::from_utf8(event.record().value?.to_vec()).ok()?;
    Some(value.trim_matches('"').to_owned())
}
