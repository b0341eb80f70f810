//! A file is read whole: its values, or all of its mistakes.
#![expect(clippy::needless_raw_string_hashes, reason = "expect-test writes them so")]

use super::file::read;
use super::*;
use expect_test::{Expect, expect};
use std::path::Path;
use std::time::Duration;

const SMALL: &str = r#"
    [pipelines.orders]
    source.url = "postgresql://postrider@localhost/app"
    outbox.table = "outbox"
    sink.brokers = "localhost:9092"
"#;

fn none(_: &str) -> Option<String> {
    None
}

fn parsed(text: &str) -> Result<Config, Findings> {
    parse("postrider.toml", Path::new(""), text, &none)
}

fn refused(text: &str, expected: &Expect) {
    let findings = parsed(text).expect_err("a file with mistakes was taken");
    expected.assert_eq(&format!("{findings}\n"));
}

#[test]
fn four_lines_are_enough() {
    let config = parsed(SMALL).unwrap();
    let pipeline = &config.pipelines[0];
    assert_eq!(pipeline.source.slot, "postrider_orders");
    assert_eq!(pipeline.source.publication, "postrider_orders");
    assert_eq!(pipeline.outbox.table.as_ref().unwrap().to_string(), "public.outbox");
    assert_eq!(pipeline.flow.in_flight_bytes, 32 << 20);
    assert_eq!(config.shutdown_grace, Duration::from_secs(10));
    assert_eq!(config.warnings, []);
}

#[test]
fn all_mistakes_are_told_at_once() {
    let text = r#"
shutdown_grace = 10
[admin]
listen = "localhost"
redy_lag_max = "30s"
[pipelines.orders]
mode = "poll"
[pipelines.orders.source]
slot = "Postrider-Orders"
[pipelines.orders.outbox]
table = "a.b.c"
layout = "debezum"
[pipelines.orders.outbox.extra]
tenant_id = { heder = "tenant" }
[pipelines.orders.route.replace]
pattern = "(a"
[pipelines.orders.sink]
kind = "nats"
brokers = "k1:port"
delivery = "exactly-once"
[pipelines.orders.sink.properties]
"sasl.password" = "${KAFKA_PASSWORD}"
[pipelines.orders.flow]
in_flight_bytes = "1B"
in_flight_events = 0
confirm_interval = "soon"
[pipelines.Invoices]
source = "postgresql://localhost"
outbox = {}
"#;
    refused(
        text,
        &expect![[r#"
            postrider.toml:2:1: shutdown_grace: expected a duration such as "10s", found a value of type integer
            postrider.toml:4:1: admin.listen: expected an IP address and a port, such as "127.0.0.1:9464" or "[::]:9464", or "" for none
            postrider.toml:5:1: admin.redy_lag_max: unknown key; did you mean "ready_lag_max"?
            postrider.toml:7:1: pipelines.orders.mode: "poll" is not yet available in this version; there is "wal"
            postrider.toml:8:19: pipelines.orders.source.url: is missing; for example url = "postgresql://postrider@localhost/app"
            postrider.toml:9:1: pipelines.orders.source.slot: a slot's name has 1 to 63 of the characters a-z, 0-9 and _
            postrider.toml:11:1: pipelines.orders.outbox.table: expected a table's name, such as "public.outbox"
            postrider.toml:12:1: pipelines.orders.outbox.layout: expected one of "postrider", "debezium", "commerce", "gcx", "sqlgarden", "adr30"; did you mean "debezium"?
            postrider.toml:14:1: pipelines.orders.outbox.extra.tenant_id: expected one of { header = "NAME" }, { envelope = "NAME" }, { partition = true }, { ignore = true }
            postrider.toml:14:15: pipelines.orders.outbox.extra.tenant_id.heder: unknown key; did you mean "header"?
            postrider.toml:15:25: pipelines.orders.route.replace.with: is missing; for example with = "$1"
            postrider.toml:16:1: pipelines.orders.route.replace.pattern: not a regular expression: unclosed group
            postrider.toml:18:1: pipelines.orders.sink.kind: "nats" is not yet available in this version; there is "kafka", "stdout", "discard"
            postrider.toml:19:1: pipelines.orders.sink.brokers: expected host:port pairs with commas between them
            postrider.toml:20:1: pipelines.orders.sink.delivery: "exactly-once" is not yet available in this version; there is "at-least-once"
            postrider.toml:22:1: pipelines.orders.sink.properties."sasl.password": the environment variable KAFKA_PASSWORD is not set; set it, or write ${KAFKA_PASSWORD:-default}
            postrider.toml:24:1: pipelines.orders.flow.in_flight_bytes: expected a size from 64KiB to 4GiB
            postrider.toml:25:1: pipelines.orders.flow.in_flight_events: expected a number from 1 to 10000000
            postrider.toml:26:1: pipelines.orders.flow.confirm_interval: expected a duration with its unit, such as "250ms", "10s" or "5m"
            postrider.toml:27:12: pipelines.Invoices: a pipeline's name has 1 to 53 of the characters a-z, 0-9 and _: slot and publication are named after it
            postrider.toml:27:12: pipelines.Invoices.sink.brokers: is missing; for example brokers = "localhost:9092"
            postrider.toml:28:1: pipelines.Invoices.source: expected a table, found a value of type string
            postrider.toml:29:1: pipelines.Invoices.outbox.table: neither a table nor a message_prefix is given; for example table = "public.outbox"
        "#]],
    );
}

#[test]
fn mistakes_of_syntax_have_their_place() {
    refused(
        "[admin\nlisten = 1\nx = = 2\n",
        &expect![[r#"
        postrider.toml:1:7: unclosed table, expected `]`
        postrider.toml:3:5: extra `=`, expected nothing
        postrider.toml:3:7: unexpected key or value, expected newline, `#`
    "#]],
    );
}

#[test]
fn an_empty_file_is_told_what_it_lacks() {
    refused(
        "",
        &expect![[r#"
        postrider.toml:1:1: pipelines: no pipeline is configured; write [pipelines.NAME]
    "#]],
    );
}

#[test]
fn two_pipelines_do_not_share_a_slot() {
    let text = r#"
[pipelines.a]
source = { url = "postgresql://postrider@localhost/app", slot = "relay" }
outbox.table = "a"
sink.kind = "discard"
[pipelines.b]
source = { url = "postgresql://postrider@localhost/app", slot = "relay" }
outbox.table = "b"
sink.kind = "discard"
"#;
    refused(
        text,
        &expect![[r#"
            postrider.toml:7:58: pipelines.b.source.slot: the pipelines "a" and "b" would share the slot "relay" of one server: give each a slot of its own
        "#]],
    );
    parsed(&text.replacen("relay", "other", 1)).unwrap();
}

#[test]
fn every_bound_is_held() {
    for (key, values) in [
        ("flow.in_flight_events", ["0", "-1", "99999999999999999999", "1.5", "true"]),
        ("flow.in_flight_bytes", ["\"0MiB\"", "\"64\"", "1", "\"1TB\"", "\"8GiB\""]),
        ("flow.confirm_interval", ["\"0ms\"", "\"1h\"", "\"200\"", "200", "\"-1s\""]),
        ("sink.shards", ["0", "17", "\"1\"", "[]", "1979-05-27"]),
    ] {
        for value in values {
            let text = format!("{SMALL}\n{key} = {value}\n");
            let findings = parsed(&text).expect_err(&text);
            assert_eq!(findings.list.len(), 1, "{findings}");
            assert_eq!(findings.list[0].key, format!("pipelines.orders.{key}"));
        }
    }
}

#[test]
fn variables_come_through_the_given_door() {
    let text = SMALL.replace("localhost/app", "${DB_HOST}/${DB_NAME:-shop}");
    let env = |name: &str| (name == "DB_HOST").then(|| "db1".to_owned());
    let config = parse("f", Path::new(""), &text, &env).unwrap();
    assert_eq!(config.pipelines[0].source.url.reveal(), "postgresql://postrider@db1/shop");
}

#[test]
fn properties_are_librdkafkas_names_in_quotes_or_not() {
    let text = format!(
        "{SMALL}\n[pipelines.orders.sink.properties]\n\
         \"linger.ms\" = 1\nsecurity.protocol = \"SASL_SSL\"\nsocket.keepalive.enable = true\n"
    );
    let config = parsed(&text).unwrap();
    let properties = &config.pipelines[0].sink.properties.0;
    let pairs: Vec<_> = properties.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
    let expected = [
        ("linger.ms", "1"),
        ("security.protocol", "SASL_SSL"),
        ("socket.keepalive.enable", "true"),
    ];
    assert_eq!(pairs, expected);
}

#[test]
fn what_the_adapters_refuse_is_a_mistake_of_the_file() {
    let text = r#"
[pipelines.orders]
source.url = "postgresql://postrider@localhost/app?sslmode=mostly"
outbox.table = "outbox"
[pipelines.orders.route]
topic = "{aggregate_typ}"
replace = { pattern = "a", with = "$2" }
[pipelines.orders.sink]
brokers = "localhost:9092"
[pipelines.orders.sink.properties]
"acks" = 1
[pipelines.invoices]
source.url = "postgresql://postrider@localhost/app"
outbox = { table = "outbox", columns = { event_typ = "kind" } }
sink.brokers = "localhost:9092"
[pipelines.bills]
source.url = "postgresql://postrider@localhost/app"
outbox.table = "outbox"
sink = { brokers = "localhost:9092", properties = { linger.msec = 5 } }
"#;
    refused(
        text,
        &expect![[r#"
        postrider.toml:3:8: pipelines.orders.source.url: connection parameter "sslmode": expected disable, allow, prefer, require, verify-ca or verify-full
        postrider.toml:6:1: pipelines.orders.route.topic: the template of route.topic names "aggregate_typ"; it may name id, aggregate_type, aggregate_id, event_type, payload, headers, time
        postrider.toml:7:28: pipelines.orders.route.replace.with: the replacement of route.replace can't be used: "$" names no group of the pattern; a dollar is written "\$"
        postrider.toml:11:1: pipelines.orders.sink.properties.acks: property `acks` can't be set here: an event could be confirmed and then lost with one broker; delete `acks`: Postrider sets what its promises need
        postrider.toml:14:42: pipelines.invoices.outbox.columns.event_typ: an event has no such field; did you mean "event_type"?
        postrider.toml:19:38: pipelines.bills.sink.properties."linger.msec": librdkafka has no property `linger.msec`; did you mean `linger.ms`?
    "#]],
    );
}

#[test]
#[expect(clippy::too_many_lines, reason = "it is the snapshot")]
fn values_become_what_the_adapters_take() {
    let text = r#"
[pipelines.orders]
source.url = "postgresql://postrider@db1,db2/shop"
source.slot = "relay"
outbox = { table = "app.Events", layout = "debezium", columns = { aggregatetype = "kind", payload = "body" }, extra = { tenant_id = { header = "tenant" } } }
route = { key = "", standard_headers = ["position"], headers = { source = "shop" } }
payload = { size_max = "1MiB", envelope = "data" }
sink.brokers = "localhost:9092"
flow.in_flight_events = 7
"#;
    let config = parsed(text).unwrap();
    let shown = format!("{:#?}\n", config.specs[0]);
    expect![[r#"
        PipelineSpec {
            conninfo: Conninfo {
                hosts: "db1:5432, db2:5432",
                user: "postrider",
                dbname: "shop",
                sslmode: Prefer,
                target_session_attrs: Any,
                ..
            },
            names: Names {
                pipeline: "orders",
                slot: "relay",
                publication: "postrider_orders",
                table: Some(
                    TableName {
                        schema: "app",
                        name: "events",
                    },
                ),
            },
            failover: true,
            outbox: OutboxSpec {
                layout: Debezium,
                table: Some(
                    TableName {
                        schema: "app",
                        name: "events",
                    },
                ),
                columns: [
                    (
                        AggregateType,
                        "kind",
                    ),
                    (
                        Payload,
                        "body",
                    ),
                ],
                extra: [
                    Extra {
                        column: "tenant_id",
                        placement: Header(
                            "tenant",
                        ),
                        may_lack: false,
                    },
                ],
                message_prefix: None,
                topic: "outbox.event.{aggregate_type}",
                key: "",
                partition: "",
                replace: None,
                timestamp: Event,
                headers: [
                    (
                        "source",
                        "shop",
                    ),
                ],
                standard_headers: StandardHeaders {
                    event_type: false,
                    position: true,
                },
                null_payload: Tombstone,
                envelope: Some(
                    "data",
                ),
                envelope_json: false,
            },
            sink: Kafka(
                KafkaSpec {
                    brokers: "localhost:9092",
                    properties: [],
                    client_id: "postrider-orders",
                    in_flight_events: 7,
                    in_flight_bytes: 33554432,
                    size_max: Some(
                        1048576,
                    ),
                },
            ),
            limits: Limits {
                events_max: 7,
                bytes_max: 33554432,
            },
            cursor_interval: 1s,
            confirm_interval: 200ms,
            shutdown_grace: 10s,
        }
    "#]]
    .assert_eq(&shown);
}

#[test]
fn secrets_are_read_from_files_and_never_printed() {
    let directory = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| std::fs::write(directory.path().join(name), text).unwrap();
    write("pg", "hush-pg\n");
    write("kafka", "hush-kafka\r\n");
    let text = r#"
        [pipelines.orders]
        source.url = "postgresql://postrider:hush-url@localhost/app?password=hush-parameter"
        source.password_file = "pg"
        outbox.table = "outbox"
        sink.brokers = "localhost:9092"
        [pipelines.orders.sink.properties]
        "sasl.password_file" = "kafka"
        "ssl.key.pem" = "hush-pem"
        [pipelines.keyvalue]
        source.url = "host=localhost user=postrider password=hush-pair"
        outbox.table = "outbox"
        sink.kind = "discard"
    "#;
    let config = parse("f", directory.path(), text, &none).unwrap();
    let orders = config.pipelines.iter().find(|pipeline| pipeline.name == "orders").unwrap();
    assert_eq!(orders.source.password.as_ref().unwrap().reveal(), "hush-pg");
    assert_eq!(orders.sink.properties.0["sasl.password"], "hush-kafka");
    let printed = format!("{config:?} {config:#?} {}", orders.source.url);
    assert!(!printed.contains("hush"), "{printed}");
    assert!(printed.contains("postgresql://localhost/app"), "{printed}");
}

#[cfg(unix)]
#[test]
fn a_secret_that_everybody_can_read_is_told() {
    use std::os::unix::fs::PermissionsExt as _;
    let directory = tempfile::tempdir().unwrap();
    let secret = directory.path().join("pg");
    std::fs::write(&secret, "hush").unwrap();
    let text = format!("{SMALL}\nsource.password_file = \"pg\"\n");
    for (mode, warnings) in [(0o600, 0), (0o644, 1)] {
        std::fs::set_permissions(&secret, std::fs::Permissions::from_mode(mode)).unwrap();
        let config = parse("f", directory.path(), &text, &none).unwrap();
        assert_eq!(config.warnings.len(), warnings, "{mode:o}");
    }
    std::fs::remove_file(&secret).unwrap();
    let findings = parse("f", directory.path(), &text, &none).unwrap_err();
    assert_eq!(findings.list[0].key, "pipelines.orders.source.password_file");
}

#[test]
fn warnings_are_of_keys_that_do_nothing_yet() {
    let text = format!("{SMALL}\nparking.on_poison = \"skip_event\"\n");
    assert_eq!(parsed(&text).unwrap().warnings.len(), 1);
    let text = format!("{SMALL}\nparking.on_poison = \"stop\"\n");
    assert_eq!(parsed(&text).unwrap().warnings, []);
}

const REFERENCE: &str = include_str!("../../config/postrider.reference.toml");

/// The reference file with everything in it that stands in comments.
fn uncommented() -> String {
    let is_toml = |line: &str| {
        line.starts_with('[') || line.split_once(" = ").is_some_and(|(key, _)| !key.contains(' '))
    };
    let line = |line: &'static str| match line.strip_prefix("# ") {
        Some(rest) if is_toml(rest) => rest,
        Some(_) | None => line,
    };
    REFERENCE.lines().map(line).collect::<Vec<_>>().join("\n")
}

#[test]
fn the_reference_file_has_the_defaults() {
    let values = |text| {
        let config = parsed(text).unwrap();
        (config.admin, config.shutdown_grace, config.pipelines)
    };
    assert_eq!(values(REFERENCE), values(SMALL));
}

#[test]
fn the_reference_file_has_every_key() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("pg-password"), "hush").unwrap();
    let (_, found) = read("f", directory.path(), &uncommented(), &none).unwrap();
    assert_eq!(found.errors, []);
    for key in &found.asked {
        let key = key.replace("pipelines.*", "pipelines.orders");
        if key.contains('*') {
            let (table, _) = key.split_once(".*").unwrap();
            assert!(found.places.under(table).next().is_some(), "no example of {key}");
        } else {
            assert!(found.places.has(&key), "{key} is not in the reference file");
        }
    }
}
