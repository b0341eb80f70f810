//! Mutated templates: each is refused, or gives a record or an error.

use super::support::{INT, JSON, TIMESTAMPTZ, describe, map_row, null, row, text, typed};
use crate::{Layout, MapError, Mapped, Mapper, OutboxSpec};
use fuzzing::{Memory, hammer, lines};

fn check(mapped: &Mapped<'_>) {
    let record = mapped.record();
    assert!((1..=249).contains(&record.topic.len()));
    assert!(record.headers.len() < 1_000);
}

#[test]
fn any_template_is_refused_or_makes_a_topic() {
    let columns = [
        typed("id", INT, "7"),
        text("aggregate_type", "order"),
        text("aggregate_id", "42"),
        text("event_type", "Written"),
        typed("payload", JSON, "{}"),
        null("headers", JSON),
        typed("created_at", TIMESTAMPTZ, "2024-01-02 03:04:05.678+00"),
    ];
    let row = row(7, &columns);
    // A piece of a template may be a byte, and takes tens of them.
    hammer(&lines("templates"), Memory { base: 256 << 10, each: 512 }, |input| {
        let template = String::from_utf8_lossy(input);
        let mut spec = OutboxSpec::for_layout(Layout::Postrider);
        (spec.topic, spec.key) = (template.to_string(), template.to_string());
        spec.headers = vec![("h".to_owned(), template.into_owned())];
        match Mapper::new(spec) {
            Ok(mut mapper) => {
                describe(&mut mapper, 7, ("public", "outbox"), &columns).unwrap();
                match map_row(&mut mapper, &row) {
                    Ok(event) => check(&event.unwrap()),
                    Err(MapError::Poison(poison)) => {
                        assert!(!poison.problem.to_string().is_empty());
                    }
                    Err(error) => panic!("{error}"),
                }
            }
            Err(errors) => {
                assert!(errors.iter().all(|error| !error.to_string().is_empty()));
            }
        }
    });
}
