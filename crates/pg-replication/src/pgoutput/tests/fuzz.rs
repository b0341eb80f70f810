//! Mutated messages of servers: each gives a message or an error, without an allocation.

use crate::pgoutput::{Message, Tuple, decode};
use fuzzing::{Memory, hammer, recordings};

fn walk(tuple: &Tuple<'_>) {
    let (columns, cells) = (tuple.columns().count(), tuple.cells().count());
    assert_eq!((columns, cells), (tuple.len(), tuple.len()));
    for cell in tuple.cells() {
        if let crate::pgoutput::Cell::Text { start, len } = cell {
            assert!(tuple.bytes().get(start..).is_some_and(|rest| len <= rest.len()));
        }
    }
    assert!(tuple.get(tuple.len()).is_none());
}

#[test]
fn any_bytes_are_a_message_or_an_error() {
    let corpus: Vec<Vec<u8>> =
        ["pg15", "pg18"].into_iter().flat_map(recordings).flatten().collect();
    hammer(&corpus, Memory { base: 0, each: 0 }, |input| {
        let Ok(message) = decode(input) else { return };
        match message {
            Message::Insert(insert) => walk(&insert.new),
            Message::Update(update) => walk(&update.new),
            Message::Relation(relation) => {
                assert!(relation.columns.iter().all(|column| column.name.len() < input.len()));
            }
            Message::Begin(_)
            | Message::Commit(_)
            | Message::Origin(_)
            | Message::Type(_)
            | Message::Delete(_)
            | Message::Truncate(_)
            | Message::Message(_) => {}
        }
    });
}
