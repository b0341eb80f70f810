//! A kind of sink that the product does not have, read by the product's reader: whoever embeds it brings its own.

use super::*;
use crate::config::section::FilePosition;
use crate::record::{Outcome, Record, Ticket};
use crate::sink::{
    Capabilities, KINDS, Keys, Mailbox, NameRule, Needs, NotTaken, Order, Purpose, Shown,
    ShownValue, Sink, SinkConfig, SinkError, SinkKind,
};
use std::sync::Arc;

/// A line that a carrier pigeon takes.
struct Pigeons;

#[derive(Debug)]
struct PigeonConfig {
    loft: String,
    birds: u32,
}

impl SinkKind for Pigeons {
    fn name(&self) -> &'static str {
        "pigeons"
    }

    fn read(&self, keys: &dyn Keys) -> Arc<dyn SinkConfig> {
        Arc::new(PigeonConfig {
            loft: keys.required("loft", "roof").unwrap_or_default(),
            birds: keys.number("birds", 2, 1..=9),
        })
    }

    fn reference(&self) -> &'static str {
        "# Where the birds live. No default.\nloft = \"roof\"\n# Birds.\nbirds = 2\n"
    }
}

impl SinkConfig for PigeonConfig {
    fn kind(&self) -> &'static str {
        "pigeons"
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            order: Order::Total,
            refuses_batches: false,
            transactions: None,
            exactly_once: false,
            dedupe: false,
            headers: false,
            null_value: false,
            record_bytes_max: Some(50),
            held_bytes: 0,
            clusters: false,
            remote: true,
        }
    }

    fn names(&self) -> NameRule {
        NameRule { allows: |name| name == b"home", owner: "the loft", words: "home" }
    }

    fn place(&self) -> String {
        self.loft.clone()
    }

    fn values(&self) -> Vec<Shown> {
        let value = ShownValue::Number(self.birds.into());
        vec![Shown::text("loft", &self.loft), Shown { value, ..Shown::text("birds", "") }]
    }

    fn check(&self, needs: &Needs) -> Vec<SinkError> {
        if needs.in_flight_events < 100 {
            return Vec::new();
        }
        vec![SinkError::new("too few birds", "buy some").at(&["birds"])]
    }

    fn open(&self, _needs: &Needs, mailbox: Mailbox) -> Result<Box<dyn Sink>, SinkError> {
        Ok(Box::new(Flock(mailbox)))
    }
}

struct Flock(Mailbox);

impl Sink for Flock {
    fn enqueue(&mut self, ticket: Ticket, _record: &Record<'_>) -> Result<(), NotTaken> {
        self.0.report(ticket, Outcome::Acked);
        Ok(())
    }

    fn reset(&mut self) {}

    fn close(&mut self, _grace: Duration) {}
}

const PIGEONS: &str = r#"
[pipelines.orders]
source.url = "postgresql://postrider@localhost/app"
outbox.table = "outbox"
parking.dead_topic = "home"
flow.in_flight_events = 7
[pipelines.orders.sink]
kind = "pigeons"
loft = "roof"
"#;

fn read(text: &str) -> Result<Config, String> {
    let kinds: Vec<&dyn SinkKind> = KINDS.iter().copied().chain([&Pigeons as _]).collect();
    let config = parse_with(&kinds, "f", Path::new(""), text, &none);
    config.map_err(|findings| findings.to_string())
}

#[test]
fn a_kind_of_the_callers_own_is_read_shown_checked_and_opened() {
    let config = read(PIGEONS).unwrap();
    let spec = &config.specs[0];
    assert_eq!((spec.common.sink.kind(), spec.common.sink.place().as_str()), ("pigeons", "roof"));
    let shown: Vec<_> = show::show(&config)
        .into_iter()
        .filter(|row| row.table == "pipelines.orders.sink")
        .map(|row| (row.key, row.value.to_string(), row.origin))
        .collect();
    let file = |line| show::Origin::File {
        place: FilePosition { line, column: 1 },
        variables: Vec::new(),
    };
    let row = |key: &str, value: &str, origin| (key.to_owned(), value.to_owned(), origin);
    assert_eq!(
        shown,
        [
            row("kind", "\"pigeons\"", file(8)),
            row("loft", "\"roof\"", file(9)),
            row("birds", "2", show::Origin::Default),
        ]
    );
    let mailbox = Mailbox::default();
    let mut sink = spec.common.sink.open(&spec.needs(Purpose::Live), mailbox.clone()).unwrap();
    let record = Record {
        topic: "home",
        partition: None,
        key: None,
        value: None,
        timestamp_ms: None,
        headers: &[],
    };
    sink.enqueue(Ticket(1), &record).unwrap();
    let mut posts = Vec::new();
    mailbox.take(&mut posts);
    assert_eq!(posts.len(), 1);
}

#[test]
fn mistakes_with_a_kind_of_the_callers_own_are_those_of_the_file() {
    for (from, to, expected) in [
        ("loft = \"roof\"", "", "sink.loft: is missing; for example loft = \"roof\""),
        (
            "loft = \"roof\"",
            "loft = \"roof\"\nbirds = 10",
            "sink.birds: expected a number from 1 to 9",
        ),
        ("loft", "lofty = 1\nloft", "sink.lofty: unknown key; did you mean \"loft\"?"),
        ("in_flight_events = 7", "in_flight_events = 700", "sink: too few birds; buy some"),
        ("\"home\"", "\"away\"", "dead_topic: expected the name of a topic: home"),
        ("pigeons", "pigeon", "did you mean \"pigeons\"?"),
    ] {
        let told = read(&PIGEONS.replacen(from, to, 1)).unwrap_err();
        let told = told.replace("sink.birds: too few", "sink: too few");
        assert!(told.contains(expected), "{expected}: {told}");
    }
    // The product's own reader does not know it.
    assert!(parsed(PIGEONS).is_err());
}

#[test]
fn a_file_is_tried_out_with_another_kind_by_one_key() {
    let text = format!("{SMALL}\nsink.kind = \"discard\"\nsink.producers = 2\n");
    let config = parsed(&text).unwrap();
    assert_eq!(config.specs[0].common.sink.kind(), "discard");
    let told = mistakes(&text.replace("9092", "port").replace("= 2", "= 17"));
    assert!(told.contains("host:port") && told.contains("from 1 to 16"), "{told}");
}

#[test]
fn the_key_that_was_shards_is_producers() {
    let told = mistakes(&format!("{SMALL}\nsink.shards = 2\n"));
    let expected = "pipelines.orders.sink.shards: the key is called producers now: rename it";
    assert!(told.contains(expected), "{told}");
    assert_eq!(told.matches("postrider.toml:").count(), 1, "{told}");
}
