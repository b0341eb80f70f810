use super::*;
use std::collections::BTreeMap;

fn spec(properties: &[(&str, &str)]) -> KafkaSpec {
    KafkaSpec {
        brokers: "k1:9092".to_owned(),
        properties: properties
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect::<BTreeMap<_, _>>(),
        secret_files: BTreeMap::new(),
        producers: 1,
        client_id: "postrider".to_owned(),
        in_flight_events: 50_000,
        in_flight_bytes: 32 << 20,
        size_max: None,
        create_topics: None,
        transaction: None,
    }
}

fn one(name: &str, value: &str) -> Result<ClientConfig, OpenError> {
    client_config(&spec(&[(name, value)]))
}

#[test]
fn librdkafka_takes_our_settings_whatever_the_bounds_are() {
    for (events, bytes) in [(1, 1), (50_000, 32 << 20), (usize::MAX, usize::MAX)] {
        let spec = KafkaSpec { in_flight_events: events, in_flight_bytes: bytes, ..spec(&[]) };
        let config = client_config(&spec).unwrap();
        let producer: rdkafka::producer::BaseProducer = config.create().unwrap();
        drop(producer);
    }
}

#[test]
fn nothing_lingers_unless_the_operator_wants_it() {
    assert_eq!(client_config(&spec(&[])).unwrap().get("linger.ms"), Some("0"));
    assert!(!lingers(&spec(&[])) && !lingers(&spec(&[("linger.ms", "0")])));
    for name in ["linger.ms", "queue.buffering.max.ms"] {
        assert_eq!(one(name, "5").unwrap().get("linger.ms"), Some("5"), "{name}");
        assert!(lingers(&spec(&[(name, "0.5")])), "{name}");
    }
}

/// A broker a network away made medians of up to three and a half times as much (docs/decisions/batching.md).
#[test]
fn small_requests_wait_for_each_other_only_if_the_operator_wants_it() {
    let name = "socket.nagle.disable";
    assert_ne!(client_config(&spec(&[])).unwrap().get(name), Some("false"));
    assert_eq!(one(name, "false").unwrap().get(name), Some("false"));
}

/// librdkafka's own defaults are others, and a producer starts with those too.
#[test]
fn what_the_promises_need_is_set_and_is_what_an_operator_may_write() {
    let config = client_config(&spec(&[])).unwrap();
    for (name, value) in [
        ("acks", "all"),
        ("enable.idempotence", "true"),
        ("enable.gapless.guarantee", "true"),
        ("max.in.flight", "5"),
        ("message.timeout.ms", "0"),
        ("partitioner", "murmur2_random"),
        ("allow.auto.create.topics", "false"),
    ] {
        assert_eq!(config.get(name), Some(value), "{name}");
        assert!(one(name, value).is_ok(), "{name}");
    }
}

/// A refusal must not end the producer that a large record is sent by; all else that a promise needs is as for others.
#[test]
fn producer_for_large_records_differs_in_its_sizes_and_what_comes_of_a_refusal() {
    let operators = [("linger.ms", "20"), ("compression.type", "zstd"), ("acks", "-1")];
    let spec = spec(&operators);
    let others = client_config(&spec).unwrap();
    let large = for_large(SizeLimits::of(&spec), &spec, &others);
    for (name, value) in others.config_map() {
        let wanted: &str = match name {
            "enable.gapless.guarantee" => "false",
            "linger.ms" => "0",
            "message.max.bytes" => "134217728",
            "queue.buffering.max.kbytes" => continue,
            _ => value,
        };
        assert_eq!(large.get(name), Some(wanted), "{name}");
    }
    let limited = self::spec(&[("message.max.bytes", "2000000")]);
    let large = for_large(SizeLimits::of(&limited), &limited, &client_config(&limited).unwrap());
    assert_eq!(large.get("message.max.bytes"), Some("2000000"), "the operator's own limit");
}

#[test]
fn an_operators_property_wins_over_ours_where_it_breaks_nothing() {
    let properties = [
        ("linger.ms", "20"),
        ("compression.type", "zstd"),
        ("client.id", "mine"),
        ("security.protocol", "SASL_SSL"),
        ("sasl.mechanisms", "PLAIN"),
        ("acks", "-1"),
        ("max.in.flight", "1"),
        ("partitioner", "murmur2"),
        ("enable.idempotence", "TRUE"),
    ];
    let config = client_config(&spec(&properties)).unwrap();
    for (name, value) in properties {
        assert_eq!(config.get(name), Some(value));
    }
}

/// What librdkafka is given has no order: two names of one property would have it now this value, now that.
#[test]
fn an_operators_property_wins_under_either_of_its_names() {
    for (name, ours, value) in [
        ("max.in.flight.requests.per.connection", "max.in.flight", "1"),
        ("queue.buffering.max.ms", "linger.ms", "20"),
        ("compression.codec", "compression.type", "zstd"),
        ("request.required.acks", "acks", "-1"),
    ] {
        let config = client_config(&spec(&[(name, value)])).unwrap();
        assert_eq!((config.get(name), config.get(ours)), (None, Some(value)), "{name}");
    }
    assert!(one("topic.metadata.refresh.interval.ms", "60000").is_ok(), "a name of its own");
    for (name, ours) in ALIASES {
        assert!(NAMES.contains(name) && NAMES.contains(ours), "{name}");
    }
}

#[test]
fn what_would_break_a_promise_is_refused_with_the_reason() {
    for (name, value) in [
        ("acks", "1"),
        ("request.required.acks", "0"),
        ("enable.idempotence", "false"),
        ("enable.gapless.guarantee", "false"),
        ("max.in.flight", "6"),
        ("max.in.flight.requests.per.connection", "1000000"),
        ("message.timeout.ms", "300000"),
        ("delivery.timeout.ms", "1"),
        ("retries", "3"),
        ("message.send.max.retries", "0"),
        ("partitioner", "consistent_random"),
        ("queuing.strategy", "lifo"),
        ("queue.buffering.max.messages", "10"),
        ("queue.buffering.max.kbytes", "10"),
        ("delivery.report.only.error", "true"),
        ("allow.auto.create.topics", "true"),
        ("transactional.id", "x"),
        ("transaction.timeout.ms", "1000"),
        ("isolation.level", "read_committed"),
        ("bootstrap.servers", "k2:9092"),
        ("metadata.broker.list", "k2:9092"),
        ("test.mock.num.brokers", "1"),
        ("topic.partitioner", "random"),
        ("topic.message.timeout.ms", "1"),
        ("topic.acks", "all"),
    ] {
        let error = one(name, value).unwrap_err();
        let OpenError::Refused { name: refused, why, .. } = &error else {
            panic!("{name}: {error:?}");
        };
        assert_eq!(refused, name);
        assert!(!why.is_empty());
        assert!(error.hint().starts_with(&format!("delete `{name}`")), "{}", error.hint());
    }
}

#[test]
fn an_unknown_property_is_answered_with_the_nearest_name() {
    let error = one("linger.m", "1").unwrap_err();
    assert_eq!(error.to_string(), "librdkafka has no property `linger.m`");
    assert_eq!(error.hint(), "did you mean `linger.ms`?");
    let error = one("sasl.mechansim", "PLAIN").unwrap_err();
    assert_eq!(error.hint(), "did you mean `sasl.mechanism`?");
    let error = one("nothing.like.it", "1").unwrap_err();
    assert_eq!(error.hint(), "librdkafka's CONFIGURATION.md lists all names");
}

#[test]
fn a_value_that_is_not_taken_is_never_repeated() {
    let error = one("security.protocol", "hunter2").unwrap_err();
    let text = format!("{error} {error:?} {}", error.hint());
    assert!(text.contains("security.protocol"), "{text}");
    assert!(!text.contains("hunter2"), "{text}");
}

#[test]
fn a_specification_shows_no_values_of_properties() {
    let spec = spec(&[("sasl.password", "hunter2")]);
    let text = format!("{spec:?}");
    assert!(text.contains("sasl.password"), "{text}");
    assert!(!text.contains("hunter2"), "{text}");
    let read = [("sasl.password", "hunter2"), ("sasl.username", "carrier")];
    let read = read.map(|(name, value)| (name.to_owned(), value.to_owned()));
    let text = format!("{:?}", crate::kafka::config::Properties(read.into()));
    assert!(text.contains("sasl.password") && text.contains("sasl.username"), "{text}");
    assert!(!text.contains("hunter2") && !text.contains("carrier"), "{text}");
}

#[test]
fn every_name_that_is_proposed_is_librdkafkas() {
    for name in NAMES {
        // A wrong value is fine here, an unknown name is not.
        if let Err(OpenError::UnknownProperty { name, .. }) = one(name, "?") {
            panic!("librdkafka does not know {name}");
        }
    }
    for guard in GUARDS {
        assert!(one(guard.name, "?").is_err());
        let plain = guard.name.starts_with("test.") || NAMES.contains(&guard.name);
        assert!(plain, "{} is not in the list of names", guard.name);
    }
}

#[test]
fn transactions_have_their_id_and_no_request_outlasts_them() {
    let transaction = crate::kafka::KafkaTransaction {
        id: "postrider.app.orders".to_owned(),
        progress_topic: "postrider.progress".to_owned(),
        timeout: Duration::from_secs(15),
    };
    let with = |properties: &[(&str, &str)]| KafkaSpec {
        transaction: Some(Box::new(transaction.clone())),
        ..spec(properties)
    };
    let config = client_config(&with(&[])).unwrap();
    assert_eq!(config.get("transactional.id"), Some("postrider.app.orders"));
    assert_eq!(config.get("transaction.timeout.ms"), Some("15000"));
    config.create::<rdkafka::producer::BaseProducer>().unwrap();
    assert_eq!(client_config(&spec(&[])).unwrap().get("transactional.id"), None);
    for (millis, refused) in [("15000", false), ("15001", true)] {
        let config = client_config(&with(&[("socket.timeout.ms", millis)]));
        assert_eq!(matches!(config, Err(OpenError::Refused { .. })), refused, "{millis}");
    }
}
