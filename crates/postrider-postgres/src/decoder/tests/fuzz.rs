//! Mutated streams of servers: each gives records or errors.

use super::support::{AT, change, reader};
use crate::decoder::Decoder;
use fuzzing::{Memory, hammer, recordings};
use postrider_core::source::{Change, Unreadable};
use postrider_outbox::{Layout, MapError, Mapped, Mapper, OutboxSpec};

/// Memory of a decoder, a mapper, its plans for some tables, and the current record.
const MEMORY: Memory = Memory { base: 256 << 10, each: 64 };

fn check(mapped: &Mapped<'_>) {
    let record = mapped.record();
    assert!((1..=249).contains(&record.topic.len()));
    assert!(record.headers.len() < 1_000);
}

fn feed(decoder: &mut Decoder, mapper: &mut Mapper, bytes: &[u8]) {
    if let Ok(Change::Blocked) = change(decoder, bytes) {
        assert!(!decoder.unknown_types().is_empty());
        // As if the catalog did not have the types any more.
        decoder.add_types(&[]);
    }
    let answer = match change(decoder, bytes) {
        Ok(Change::Table(described)) => {
            if let Err(error) = mapper.table(&described) {
                assert!(!error.to_string().is_empty());
            }
            return;
        }
        Ok(Change::Blocked) => panic!("blocked again"),
        Ok(Change::Row(row)) => mapper.row(&row, AT),
        Ok(Change::Message(message)) => mapper.message(&message, AT),
        Ok(_) | Err(Unreadable::NotText(_)) => return,
        Err(Unreadable::Protocol(error)) => {
            assert!(!error.to_string().is_empty());
            return;
        }
    };
    match answer {
        Ok(Some(event)) => check(&event),
        Ok(None) => {}
        Err(MapError::Poison(poison)) => assert!(!poison.problem.to_string().is_empty()),
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}

/// Length and message, one after the other.
fn packed(messages: &[Vec<u8>]) -> Vec<u8> {
    let pack = |message: &Vec<u8>| {
        let length = u16::try_from(message.len()).unwrap().to_be_bytes();
        [&length, message.as_slice()].concat()
    };
    messages.iter().flat_map(pack).collect()
}

#[test]
fn any_stream_is_records_or_errors() {
    let corpus: Vec<Vec<u8>> = recordings("pg18")
        .into_iter()
        .filter(|messages| messages.len() < 100)
        .map(|messages| packed(&messages))
        .collect();
    let mut turn = 0;
    hammer(&corpus, MEMORY, |input| {
        // Each input through every layout in turn; a recording's own is among them.
        for layout in [Layout::ALL[turn % Layout::ALL.len()], Layout::Postrider] {
            let mut spec = OutboxSpec::for_layout(layout);
            spec.message_prefix = Some("outbox".to_owned());
            let (mut decoder, mut mapper) = reader(&spec);
            let mut rest = input;
            while let Some((length, after)) = rest.split_first_chunk() {
                let length = usize::from(u16::from_be_bytes(*length)).min(after.len());
                let (message, after) = after.split_at(length);
                feed(&mut decoder, &mut mapper, message);
                rest = after;
            }
        }
        turn += 1;
    });
}
