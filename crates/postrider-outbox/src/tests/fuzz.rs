//! Mutated streams of servers, and templates: each gives a record or an error.

use super::support::{AT, insert, null, relation, text, typed};
use crate::{Layout, MapError, Mapped, Mapper, OutboxSpec};
use fuzzing::{Memory, hammer, lines, recordings};
use pg_replication::pgoutput::{Message, decode};

/// Memory of a mapper, its plans for some tables, and the current record.
const MEMORY: Memory = Memory { base: 256 << 10, each: 64 };

fn check(mapped: &Mapped<'_>) {
    let record = mapped.record();
    assert!((1..=249).contains(&record.topic.len()));
    assert!(record.headers.len() < 1_000);
}

fn feed(mapper: &mut Mapper, bytes: &[u8]) {
    let answer = match decode(bytes) {
        Ok(Message::Relation(described)) => {
            if let Err(error) = mapper.relation(&described) {
                assert!(!error.to_string().is_empty());
            }
            return;
        }
        Ok(Message::Insert(row)) => mapper.insert(&row, AT),
        Ok(Message::Message(message)) => mapper.message(&message, AT),
        Ok(_) | Err(_) => return,
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
            let mut mapper = Mapper::new(spec).unwrap();
            let mut rest = input;
            while let Some((length, after)) = rest.split_first_chunk() {
                let length = usize::from(u16::from_be_bytes(*length)).min(after.len());
                let (message, after) = after.split_at(length);
                feed(&mut mapper, message);
                rest = after;
            }
        }
        turn += 1;
    });
}

#[test]
fn any_template_is_refused_or_makes_a_topic() {
    let columns = [
        typed("id", 20, "7"),
        text("aggregate_type", "order"),
        text("aggregate_id", "42"),
        text("event_type", "Written"),
        typed("payload", 114, "{}"),
        null("headers", 114),
        typed("created_at", 1184, "2024-01-02 03:04:05.678+00"),
    ];
    let (described, row) = (relation(7, "public", "outbox", &columns), insert(7, &columns));
    // A piece of a template may be a byte, and takes tens of them.
    hammer(&lines("templates"), Memory { base: 256 << 10, each: 512 }, |input| {
        let template = String::from_utf8_lossy(input);
        let mut spec = OutboxSpec::for_layout(Layout::Postrider);
        (spec.topic, spec.key) = (template.to_string(), template.to_string());
        spec.headers = vec![("h".to_owned(), template.into_owned())];
        match Mapper::new(spec) {
            Ok(mut mapper) => {
                feed(&mut mapper, &described);
                feed(&mut mapper, &row);
            }
            Err(errors) => {
                assert!(errors.iter().all(|error| !error.to_string().is_empty()));
            }
        }
    });
}
