//! A file is read whole: its values, or all of its mistakes.
#![expect(clippy::needless_raw_string_hashes, reason = "expect-test writes them so")]

mod fuzz;
mod kinds;
mod reference;

use super::*;
use crate::relay::OnPoison;
use crate::sink::kafka::KafkaConfig;
use expect_test::{expect, expect_file};
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

/// The settings of a Kafka sink.
fn kafka(pipeline: &PipelineConfig) -> &KafkaConfig {
    (&*pipeline.sink as &dyn std::any::Any).downcast_ref().expect("a Kafka sink")
}

fn mistakes(text: &str) -> String {
    let findings = parsed(text).expect_err("a file with mistakes was taken");
    format!("{findings}\n")
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
fn all_mistakes_are_reported_at_once() {
    let text = r#"
shutdown_grace = 10
[admin]
listen = "localhost"
redy_lag_max = "30s"
[pipelines.orders]
mode = "pull"
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
kind = "mqtt"
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
    expect_file!["snapshots/mistakes.txt"].assert_eq(&mistakes(text));
}

/// What the file's reader, the templates, librdkafka and the look across pipelines refuse, in one answer.
#[test]
fn mistakes_of_all_layers_are_reported_at_once() {
    let text = r#"
[pipelines.orders]
nonsense = 1
[pipelines.orders.source]
url = "postgresql://postrider@db.internal/shop"
time_zone = "CET"
slot = "relay"
[pipelines.orders.outbox]
table = "outbox"
[pipelines.orders.route]
key = "{aggregat_id}"
[pipelines.orders.sink]
brokers = "k1:9092"
[pipelines.orders.sink.properties]
acks = 1
"linger.msec" = 5
"security.protocol" = "SASL_SSL"
[pipelines.invoices.source]
url = "postgresql://postrider@db.internal/shop"
slot = "relay"
wal_retain_max = "many"
[pipelines.invoices.outbox]
table = "outbox"
[pipelines.invoices.sink]
brokers = "k1:9092"
"#;
    let told = mistakes(text);
    assert_eq!(told.matches("postrider.toml:").count(), 8, "{told}");
    for words in [
        "nonsense: unknown key",
        "\"CET\" is refused: PostgreSQL reads a name without a slash as a fixed offset",
        "aggregat_id",
        "properties.acks",
        "linger.msec",
        "sasl.mechanism",
        "wal_retain_max",
        "would share the slot \"relay\"",
    ] {
        assert!(told.contains(words), "{words}: {told}");
    }
    // An unknown name with a slash is another mistake.
    let told = mistakes(&text.replace("CET", "Europe/Pairs"));
    assert!(told.contains("\"Europe/Pairs\" is not the name of a known time zone"), "{told}");
}

#[test]
fn mistakes_of_syntax_have_their_place() {
    expect![[r#"
        postrider.toml:1:7: unclosed table, expected `]`
          1 | [admin
        postrider.toml:3:5: extra `=`, expected nothing
          3 | x = …
            |     ^
        postrider.toml:3:7: unexpected key or value, expected newline, `#`
          3 | x = …
    "#]]
    .assert_eq(&mistakes("[admin\nlisten = 1\nx = = 2\n"));
}

#[test]
fn an_empty_file_lacks_a_pipeline() {
    expect![[r#"
        postrider.toml:1:1: pipelines: no pipeline is configured; write [pipelines.NAME]
    "#]]
    .assert_eq(&mistakes(""));
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
    expect_file!["snapshots/one_slot.txt"].assert_eq(&mistakes(text));
    parsed(&text.replacen("relay", "other", 1)).unwrap();
}

#[test]
fn every_bound_is_held() {
    for (key, values) in [
        ("flow.in_flight_events", ["0", "-1", "99999999999999999999", "1.5", "true"]),
        ("flow.in_flight_bytes", ["\"0MiB\"", "\"64\"", "1", "\"1TB\"", "\"8GiB\""]),
        ("flow.confirm_interval", ["\"0ms\"", "\"1h\"", "\"200\"", "200", "\"-1s\""]),
        ("sink.producers", ["0", "17", "\"1\"", "[]", "1979-05-27"]),
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
         \"linger.ms\" = 1\nsecurity.protocol = \"SSL\"\nsocket.keepalive.enable = true\n"
    );
    let config = parsed(&text).unwrap();
    let properties = &kafka(&config.pipelines[0]).properties.0;
    let pairs: Vec<_> = properties.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
    let expected =
        [("linger.ms", "1"), ("security.protocol", "SSL"), ("socket.keepalive.enable", "true")];
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
    expect_file!["snapshots/refused.txt"].assert_eq(&mistakes(text));
}

#[test]
fn values_become_what_the_adapters_take() {
    let text = r#"
[pipelines.orders]
source.url = "postgresql://postrider@db1,db2/shop"
source.slot = "relay"
outbox.table = "app.Events"
outbox.layout = "debezium"
outbox.columns = { aggregatetype = "kind", payload = "body" }
outbox.extra = { tenant_id = { header = "tenant" } }
route = { key = "", standard_headers = ["position"], headers = { source = "shop" } }
payload = { size_max = "1MiB", envelope = "data" }
sink.brokers = "localhost:9092"
flow.in_flight_events = 7
"#;
    let config = parsed(text).unwrap();
    let shown = format!("{:#?}\n", config.specs[0]);
    expect_file!["snapshots/spec.txt"].assert_eq(&shown);
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
    assert_eq!(orders.source.password.as_ref().unwrap().read().unwrap(), "hush-pg");
    assert_eq!(kafka(orders).properties.0["sasl.password"], "hush-kafka");
    let printed = format!("{config:?} {config:#?} {}", orders.source.url);
    assert!(!printed.contains("hush"), "{printed}");
    assert!(printed.contains("postgresql://localhost/app"), "{printed}");
}

#[cfg(unix)]
#[test]
fn a_secret_that_everybody_can_read_is_reported() {
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
    // A key that librdkafka reads itself.
    std::fs::write(&secret, "hush").unwrap();
    let path = secret.display();
    let text = format!("{SMALL}\nsink.properties = {{ \"ssl.key.location\" = \"{path}\" }}\n");
    for (mode, warnings) in [(0o600, 0), (0o640, 0), (0o644, 1)] {
        std::fs::set_permissions(&secret, std::fs::Permissions::from_mode(mode)).unwrap();
        let config = parse("f", directory.path(), &text, &none).unwrap();
        assert_eq!(config.warnings.len(), warnings, "{mode:o}");
    }
}

#[test]
fn parking_is_as_the_file_says() {
    let parking = |lines: &str| {
        let lines: Vec<_> = lines.lines().map(|line| format!("parking.{line}")).collect();
        let text = format!("{SMALL}\n{}\n", lines.join("\n"));
        let config = parsed(&text).map_err(|findings| findings.to_string())?;
        assert_eq!(config.warnings, []);
        Ok::<_, String>(config.pipelines[0].parking.clone())
    };
    let quiet = parking("").unwrap();
    assert_eq!(
        (quiet.on_poison, quiet.dead_topic, quiet.park_after),
        (OnPoison::BlockKey, None, None)
    );
    for (word, value) in [("skip_event", OnPoison::SkipEvent), ("stop", OnPoison::Stop)] {
        assert_eq!(parking(&format!("on_poison = \"{word}\"")).unwrap().on_poison, value);
    }
    let told = parking("dead_topic = \"orders.dead\"\npark_after = \"10m\"").unwrap();
    assert_eq!(told.dead_topic.as_deref(), Some("orders.dead"));
    assert_eq!(told.park_after, Some(Duration::from_mins(10)));
    assert_eq!(parking("dead_topic = \"\"\npark_after = \"0\"").unwrap().park_after, None);
    for wrong in [
        "dead_topic = \"no topic\"",
        "park_after = \"10\"",
        "park_after = \"1ms\"",
        "park_after = 0",
    ] {
        let key = wrong.split(' ').next().unwrap();
        assert!(parking(wrong).unwrap_err().contains(key), "{wrong}");
    }
}

#[test]
fn values_are_shown_with_their_origin_and_without_their_secrets() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("pg"), "hush-pg").unwrap();
    std::fs::write(directory.path().join("kafka"), "hush-kafka").unwrap();
    let text = r#"
[pipelines.orders]
source.url = "postgresql://postrider:hush-url@${DB_HOST}/app?sslmode=require&sslpassword=hush-key"
source.password_file = "pg"
outbox.table = 'App."Out box"'
outbox.layout = "debezium"
outbox.columns.payload = "body"
outbox.extra.tenant = { header = "tenant" }
[pipelines.orders.sink]
brokers = "localhost:9092"
properties = { "sasl.password_file" = "kafka", linger.ms = 5, "ssl.key.password" = "hush-key" }
"#;
    let text = text.replace("sslpassword=hush-key", "connect_timeout=5");
    let env = |name: &str| (name == "DB_HOST").then(|| "db1".to_owned());
    let config = parse("f", directory.path(), &text, &env).unwrap();
    let line = |row: show::Shown| {
        let origin = match row.origin {
            show::Origin::File { place, variables } => format!("{place} {variables:?}"),
            show::Origin::Layout(layout) => format!("layout {layout}"),
            show::Origin::Default => "default".to_owned(),
        };
        format!("{}.{} = {}  {origin}\n", row.table, row.key, row.value)
    };
    let shown: String = show::show(&config).into_iter().map(line).collect();
    assert!(!shown.contains("hush"), "{shown}");
    expect_file!["snapshots/shown.txt"].assert_eq(&shown);
}

#[cfg(feature = "kafka")]
#[test]
fn keys_of_messages_that_a_source_has_no_use_for_are_refused() {
    let of = |kind: &str| {
        let findings = parsed(&format!(
            "[inboxes.a]\ndatabase.url = \"postgresql://w@localhost/app\"\nsource.kind = \"{kind}\"\n\
             source.brokers = \"k:9092\"\nsource.topics = \"a\"\nmessage.positions = true\nmessage.id_header = \"x\""
        ));
        findings.map_or_else(|findings| findings.to_string(), |_| String::new())
    };
    assert_eq!(of("kafka"), "");
    for key in ["id_header", "positions"] {
        assert!(
            of("webhook").contains(&format!("message.{key}: is for messages of brokers alone")),
            "{}",
            of("webhook")
        );
    }
}

/// A pipeline that captures tables.
const CAPTURE: &str = r#"
[pipelines.changes]
source.url = "postgresql://postrider@localhost/app"
sink.brokers = "localhost:9092"
[pipelines.changes.capture]
tables = ["Orders", "shop.\"Lines\""]
"#;

#[test]
fn captured_tables_take_the_place_of_an_outbox() {
    let config =
        parsed(&format!("{CAPTURE}columns = {{ \"public.orders\" = [\"id\", \"total\"] }}\n"))
            .unwrap();
    let spec = &config.specs[0];
    let capture = spec.capture.as_ref().unwrap();
    assert_eq!((capture.inline_threshold_rows, capture.chunk_bytes), (1000, 512 << 10));
    let names: Vec<_> = capture.tables.iter().map(|table| table.name.to_string()).collect();
    assert_eq!(names, ["\"public\".\"orders\"", "\"shop\".\"Lines\""]);
    assert_eq!(capture.tables[0].columns, Some(vec!["id".to_owned(), "total".to_owned()]));
    assert_eq!(capture.tables[1].columns, None);
    assert_eq!(spec.names.captured, capture.tables);
    assert_eq!((&spec.names.table, spec.poll.table.is_some()), (&None, false));
    assert_eq!(spec.captured_topics(), ["Lines", "orders"]);
}

#[test]
fn captured_tables_and_what_does_not_go_with_them_exclude_each_other() {
    for (lines, key, words) in [
        ("outbox.table = \"outbox\"", "outbox.table", "outbox.table and capture.tables"),
        ("outbox.layout = \"gcx\"", "outbox.layout", "outbox.layout and capture.tables"),
        ("outbox.columns.id = \"n\"", "outbox.columns", "outbox.columns and capture.tables"),
        ("outbox.message_prefix = \"m\"", "outbox.message_prefix", "capture.tables"),
        ("mode = \"poll\"", "mode", "there is no outbox table to poll"),
        ("mode = \"auto\"", "mode", "there is no outbox table to poll"),
        ("source.on_slot_lost = \"repair\"", "source.on_slot_lost", "on_slot_lost = \"halt\""),
        ("poll.mark_streamed = true", "poll.mark_streamed", "have no mark"),
        ("retention.keep = \"7d\"", "retention.keep", "the application's data"),
        ("payload.size_max = \"64KiB\"", "capture.chunk_bytes", "payload.size_max"),
        ("capture.tables = []", "capture.tables", "at least one table"),
        ("capture.tables = [\"a b\"]", "capture.tables", "found \"a b\""),
        ("capture.tables = [\"a\", \"A\"]", "capture.tables", "there twice"),
        ("capture.tables = [\"pg_catalog.pg_class\"]", "capture.tables", "belongs to PostgreSQL"),
        ("capture.tables = [\"pg_temp_3.orders\"]", "capture.tables", "belongs to PostgreSQL"),
        ("capture.tables = [\"postrider.cursor\"]", "capture.tables", "belongs to Postrider"),
        ("capture.tables = [\"postrider_inbox.jobs\"]", "capture.tables", "belongs to Postrider"),
        ("capture.columns.orders = []", "capture.columns.orders", "at least one column"),
        ("capture.columns.orders = [\"a\", \"a\"]", "capture.columns.orders", "there twice"),
        ("capture.columns.bills = [\"a\"]", "capture.columns.bills", "not in capture.tables"),
        ("capture.inline_threshold_rows = 0", "capture.inline_threshold_rows", "from 1 to 100000"),
        ("capture.chunk_bytes = \"1KiB\"", "capture.chunk_bytes", "from 64KiB to 64MiB"),
    ] {
        let tables = if lines.starts_with("capture.tables") {
            ""
        } else {
            "capture.tables = [\"orders\"]\n"
        };
        let text = format!(
            "[pipelines.changes]\n{lines}\n{tables}source.url = \"postgresql://postrider@localhost/app\"\n\
             sink.brokers = \"localhost:9092\"\n"
        );
        // TOML has each table once: those in dotted keys may be in any order.
        let findings = parsed(&text).expect_err(&text);
        let found =
            findings.list.iter().find(|found| found.key == format!("pipelines.changes.{key}"));
        let found = found.unwrap_or_else(|| panic!("nothing at {key}: {findings}"));
        assert!(found.message.contains(words), "{found:?}");
        assert_eq!(findings.list.len(), 1, "{findings}");
    }
}
