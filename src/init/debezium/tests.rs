//! A connector's configuration goes in; a file that our own reader takes comes out, with an answer to every option.

mod options;

use super::options::{CONNECTOR, ROUTER};
use super::*;
use expect_test::{expect, expect_file};
use proptest::prelude::*;

/// The least that is a connector with the router.
const LEAST: &str = "connector.class=io.debezium.connector.postgresql.PostgresConnector\n\
                     plugin.name=pgoutput\n\
                     transforms=outbox\n\
                     transforms.outbox.type=io.debezium.transforms.outbox.EventRouter\n";

fn translated(text: &str) -> Translation {
    let translation = translate(text, &Overrides::default()).unwrap();
    crate::init::check(&crate::init::text(&translation.draft)).unwrap();
    translation
}

/// The keys of the written file, without its comments.
fn keys(text: &str) -> String {
    let text = crate::init::text(&translated(text).draft);
    text.lines()
        .filter(|line| !line.starts_with('#') && !line.is_empty())
        .collect::<Vec<_>>()
        .join("\n")
}

fn answer_to(translation: &Translation, option: &str) -> Answer {
    translation.answers.iter().find(|answer| answer.option == option).unwrap().clone()
}

const CONNECT: &str = r#"{
  "name": "orders-outbox",
  "config": {
    "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
    "tasks.max": 1,
    "plugin.name": "pgoutput",
    "slot.name": "orders",
    "publication.name": "orders_pub",
    "publication.autocreate.mode": "filtered",
    "database.hostname": "db.internal",
    "database.port": "5432",
    "database.user": "${env:DB_USER}",
    "database.password": "hush-pg",
    "database.dbname": "shop",
    "database.sslmode": "verify-full",
    "database.sslrootcert": "/etc/tls/ca.pem",
    "topic.prefix": "shop",
    "table.include.list": "public\\.outbox_orders",
    "heartbeat.interval.ms": "10000",
    "snapshot.mode": "no_data",
    "decimal.handling.mode": "string",
    "slot.drop.on.stop": "true",
    "key.converter": "org.apache.kafka.connect.storage.StringConverter",
    "value.converter": "org.apache.kafka.connect.json.JsonConverter",
    "value.converter.schemas.enable": false,
    "transforms": "mask,ob",
    "transforms.mask.type": "org.apache.kafka.connect.transforms.MaskField$Value",
    "transforms.mask.fields": "x",
    "transforms.ob.type": "io.debezium.transforms.outbox.EventRouter",
    "transforms.ob.table.field.event.id": "event_id",
    "transforms.ob.table.field.event.key": "order_id",
    "transforms.ob.table.field.event.timestamp": "created",
    "transforms.ob.route.by.field": "stream",
    "transforms.ob.route.topic.regex": "(.*)\\.v\\d+",
    "transforms.ob.route.topic.replacement": "events.$1",
    "transforms.ob.table.fields.additional.placement": "type:header:eventType,tenant:envelope,type:envelope:kind,bucket:partition",
    "transforms.ob.table.expand.json.payload": "true",
    "producer.override.security.protocol": "SASL_SSL",
    "producer.override.sasl.mechanism": "SCRAM-SHA-512",
    "producer.override.sasl.jaas.config": "org.apache.kafka.common.security.scram.ScramLoginModule required username=\"relay\" password=\"hush-kafka\";",
    "producer.override.ssl.truststore.location": "/etc/tls/trust.jks",
    "producer.override.ssl.truststore.password": "hush-trust",
    "producer.override.acks": "all",
    "nonsense": "hush-unknown"
  }
}"#;

#[test]
fn a_connector_of_kafka_connect_is_translated() {
    let translation = translated(CONNECT);
    let text = crate::init::text(&translation.draft);
    assert!(!text.contains("hush") && !format!("{translation:?}").contains("hush"), "{text}");
    let told = translation.hints.join("\n");
    expect_file!["../snapshots/connect.toml"]
        .assert_eq(&format!("{text}\n# to do:\n{}\n", commented(&told)));
}

fn commented(text: &str) -> String {
    text.lines().map(|line| format!("#   {line}")).collect::<Vec<_>>().join("\n")
}

#[test]
fn debezium_server_is_translated() {
    let text = "debezium.sink.type=kafka\n\
                debezium.sink.kafka.producer.bootstrap.servers=k1:9092,k2:9092\n\
                debezium.sink.kafka.producer.key.serializer=org.apache.kafka.common.serialization.StringSerializer\n\
                debezium.format.key=simplestring\n\
                debezium.format.value.schemas.enable=false\n\
                debezium.source.connector.class=io.debezium.connector.postgresql.PostgresConnector\n\
                debezium.source.offset.storage.file.filename=data/offsets.dat\n\
                debezium.source.database.hostname=${DB_HOST:localhost}\n\
                debezium.source.database.user=debezium\n\
                debezium.source.database.password=hush\n\
                debezium.source.database.dbname=shop\n\
                debezium.source.plugin.name=pgoutput\n\
                debezium.source.table.include.list=inventory.outboxevent\n\
                debezium.transforms=outbox\n\
                debezium.transforms.outbox.type=io.debezium.transforms.outbox.EventRouter\n\
                debezium.transforms.outbox.route.topic.replacement=${routedByValue}.events\n\
                quarkus.log.console.json=false\n";
    expect![[r#"
        [pipelines.outbox.source]
        url = "postgresql://debezium@${DB_HOST:-localhost}/shop"
        slot = "debezium"
        publication = "dbz_publication"
        [pipelines.outbox.outbox]
        table = "inventory.outboxevent"
        layout = "debezium"
        [pipelines.outbox.route]
        topic = "{aggregate_type}.events"
        [pipelines.outbox.sink]
        kind = "kafka"
        brokers = "k1:9092,k2:9092""#]]
    .assert_eq(&keys(text));
    let hints = translated(text).hints.join("\n");
    assert!(hints.contains("debezium.format.value is not given, so it is json"), "{hints}");
    assert!(!format!("{:?}", translated(text)).contains("hush"));
}

/// `fatal` stops at an UPDATE; the other two drop it, as a publication without updates does.
#[test]
fn what_an_update_does_is_translated() {
    let with = |value: &str| {
        let text = format!("{LEAST}transforms.outbox.table.op.invalid.behavior={value}\n");
        translated(&text).draft.get("outbox", "on_update").cloned()
    };
    assert_eq!(with("fatal"), Some("halt".into()));
    assert_eq!(with("FATAL"), Some("halt".into()));
    for value in ["warn", "error"] {
        assert_eq!(with(value), None, "{value}");
    }
}

#[test]
fn topics_that_connect_makes_are_made_with_its_settings() {
    let translation = translated(&format!(
        "{LEAST}topic.creation.enable=true\ntopic.creation.default.partitions=8\n\
         topic.creation.default.replication.factor=-1\ntopic.creation.default.cleanup.policy=delete\n\
         topic.creation.groups=big\n"
    ));
    let get = |table: &str, key: &str| translation.draft.get(table, key).map(ToString::to_string);
    assert_eq!(get("sink.create_topics", "partitions").as_deref(), Some("8"));
    assert_eq!(get("sink.create_topics", "replication_factor"), None, "the broker's default");
    let policy = get("sink.create_topics.config", "cleanup.policy");
    assert_eq!(policy.as_deref(), Some("\"delete\""));
    assert_eq!(answer_to(&translation, "topic.creation.groups").verdict, Verdict::NoCounterpart);
    crate::init::check(&crate::init::text(&translation.draft)).expect("a file that is taken");
    // Both of the broker's own: made all the same.
    let both = translated(&format!(
        "{LEAST}topic.creation.default.partitions=-1\n\
         topic.creation.default.replication.factor=-1\n"
    ));
    let written = crate::init::text(&both.draft);
    let user = |name: &str| (name == "PGUSER").then(|| "relay".to_owned());
    let config = crate::config::parse("f", std::path::Path::new(""), &written, &user);
    let config = config.expect("a file that is taken");
    assert!(config.pipelines[0].sink.creates(), "{written}");
    // Connect makes none without both.
    let one = translated(&format!("{LEAST}topic.creation.default.partitions=8\n"));
    assert_eq!(one.draft.keys_of("sink.create_topics").count(), 0);
}

/// What the connector logs in with and this build can't: named, with what to use; and the file is refused until it is
/// replaced, since without it the relay would log in otherwise, or in clear text.
#[test]
fn logins_that_this_build_lacks_stay_in_the_file_and_it_is_refused() {
    for (options, property, told) in [
        ("producer.override.sasl.mechanism=GSSAPI\n", "sasl.mechanism", "Kerberos"),
        ("producer.override.sasl.mechanism=OAUTHBEARER\n", "sasl.mechanism", "OAuth tokens"),
        ("producer.override.sasl.mechanism=AWS_MSK_IAM\n", "sasl.mechanism", "Amazon MSK"),
        ("", "security.protocol", "without `sasl.mechanism`"),
        (
            "producer.override.ssl.endpoint.identification.algorithm=nonsense\n\
             producer.override.sasl.mechanism=PLAIN\n",
            "ssl.endpoint.identification.algorithm",
            "nonsense",
        ),
    ] {
        let given = format!("{LEAST}producer.override.security.protocol=SASL_SSL\n{options}");
        let translation = translate(&given, &Overrides::default()).unwrap();
        let file = crate::init::text(&translation.draft);
        assert!(!translation.draft.is_complete(), "{file}");
        crate::init::check_draft(&translation.draft).expect("nothing else is wrong with it");
        let Err(InitError::Refused(refused)) = crate::init::check(&file) else { panic!("{file}") };
        let of_login = format!("pipelines.outbox.sink.properties.{property}");
        let keys: Vec<_> = refused.list.iter().map(|f| f.key.replace('"', "")).collect();
        assert_eq!(keys, [of_login], "{file}");
        assert!(file.contains("\"security.protocol\" = \"SASL_SSL\""), "{file}");
        let answer = answer_to(&translation, &format!("producer.override.{property}"));
        assert_eq!(answer.verdict, Verdict::NoCounterpart, "{file}");
        if told != "nonsense" {
            assert!(answer.text.contains(told), "{}", answer.text);
        }
        assert!(
            file.contains("# to do:\n") && file.contains(&format!("replace \"{property}\"")),
            "{file}"
        );
    }
}

/// A transform behind the router that renames topics: without it records go to other topics than before.
#[test]
fn a_transform_that_renames_topics_is_something_to_do() {
    let told = |transforms: &str, class: &str| {
        let given = LEAST.replace("transforms=outbox", &format!("transforms={transforms}"));
        let given =
            format!("{given}transforms.prefix.type={class}\ntransforms.prefix.regex=(.*)\n");
        let translation = translated(&given);
        let answer = answer_to(&translation, "transforms.prefix.type");
        (answer.text.contains("renamed the topics"), translation.hints.join("\n"))
    };
    let (renamed, hints) = told("outbox,prefix", "org.apache.kafka.connect.transforms.RegexRouter");
    assert!(renamed && hints.contains("transform prefix renamed the topics"), "{hints}");
    assert!(
        hints.contains("\"outbox.event.{aggregate_type}\""),
        "the topics of now are named: {hints}"
    );
    // The event router names the topic whatever came before it.
    let (renamed, _) = told("prefix,outbox", "org.apache.kafka.connect.transforms.RegexRouter");
    assert!(!renamed);
    let (renamed, _) = told("outbox,prefix", "org.apache.kafka.connect.transforms.MaskField$Value");
    assert!(!renamed);
}

/// Records that a registry describes can't be read by their consumers any more.
#[test]
fn converters_with_a_registry_are_something_to_do() {
    for (option, class) in [
        ("value.converter", "io.confluent.connect.avro.AvroConverter"),
        ("key.converter", "io.confluent.connect.avro.AvroConverter"),
        ("value.converter", "io.confluent.connect.protobuf.ProtobufConverter"),
        ("value.converter", "io.confluent.connect.json.JsonSchemaConverter"),
        ("value.converter", "io.apicurio.registry.utils.converter.AvroConverter"),
    ] {
        let translation = translated(&format!("{LEAST}{option}={class}\n"));
        let answer = answer_to(&translation, option);
        assert_eq!(answer.verdict, Verdict::NoCounterpart, "{class}");
        assert!(answer.text.contains("cannot read these records"), "{class}: {}", answer.text);
        let hints = translation.hints.join("\n");
        assert!(hints.contains(&format!("{option}: written as Avro")), "{class}: {hints}");
    }
}

#[test]
fn the_topic_of_dead_letters_is_translated() {
    const OPTION: &str = "errors.deadletterqueue.topic.name";
    let translation = translated(&format!("{LEAST}{OPTION}=orders.dead\n"));
    let topic = translation.draft.get("parking", "dead_topic").and_then(|topic| topic.as_str());
    assert_eq!(topic, Some("orders.dead"));
    assert!(
        crate::init::text(&translation.draft)
            .contains("[pipelines.outbox.parking]\ndead_topic = \"orders.dead\"")
    );
    assert_eq!(answer_to(&translation, OPTION).verdict, Verdict::Translated);
    let none = translated(&format!("{LEAST}{OPTION}=no topic\n"));
    assert_eq!(answer_to(&none, OPTION).verdict, Verdict::NoCounterpart);
}

#[test]
fn what_nobody_can_translate_is_refused_with_what_to_do() {
    let refused = |text: &str| {
        let error = translate(text, &Overrides::default()).unwrap_err();
        format!("{error}; {}\n", error.hint().unwrap())
    };
    let mut all = String::new();
    for text in [
        "connector.class=io.debezium.connector.mysql.MySqlConnector\ntransforms=o\ntransforms.o.type=io.debezium.transforms.outbox.EventRouter\n".to_owned(),
        LEAST.replace("EventRouter", "Other"),
        format!("{LEAST}transforms.outbox.route.topic.regex=(?!x).*\n"),
        format!("{LEAST}transforms.outbox.route.topic.replacement=$${{other}}\n"),
        format!("{LEAST}transforms.outbox.route.topic.regex=a(.*)\n"),
        format!("{LEAST}transforms.outbox.table.fields.additional.placement=a:heder\n"),
        format!("{LEAST}transforms.outbox.table.fields.additional.placement=\n"),
        format!("{LEAST}transforms.outbox.table.fields.additional.placement=a:header,,b:header\n"),
        format!("{LEAST}transforms.outbox.table.fields.additional.placement=:header\n"),
        format!("{LEAST}transforms.outbox.table.fields.additional.placement=a:envelope:payload\n"),
        format!("{LEAST}transforms.outbox.table.fields.additional.placement=a:envelope,b:envelope:a\n"),
        format!("{LEAST}table.include.list=public.orders,public.items\n"),
        format!("{LEAST}table.include.list=public\\\\..*\n"),
        "{\"a\": [1]}".to_owned(),
    ] {
        all.push_str(&refused(&text));
    }
    expect_file!["../snapshots/refused.txt"].assert_eq(&all);
}

/// As Java splits: what is empty at the end is left out.
#[test]
fn a_placement_may_end_in_what_parts_its_entries() {
    for placement in ["a:header", "a:header,", " a : HEADER ,, ", "a:header:", "a:header:a"] {
        let option = "transforms.outbox.table.fields.additional.placement";
        let draft = translated(&format!("{LEAST}{option}={placement}\n")).draft;
        let placed: Vec<_> = draft.keys_of("outbox.extra").map(|(key, _)| key).collect();
        assert_eq!(placed, ["a"], "{placement}");
    }
}

#[test]
fn the_outbox_table_is_found() {
    let table = |more: &str| {
        translated(&format!("{LEAST}{more}\n"))
            .draft
            .get("outbox", "table")
            .unwrap()
            .as_str()
            .unwrap()
            .to_owned()
    };
    for (more, expected) in [
        ("", "public.outboxevent"),
        ("table.include.list=shop.Outbox", "shop.\"Outbox\""),
        ("table.include.list=^shop[.]outbox$", "shop.outbox"),
        ("table.include.list=public.orders, public.outbox", "public.outbox"),
        (
            "transforms.outbox.predicate=p\npredicates=p\npredicates.p.type=x.TopicNameMatches\n\
             predicates.p.pattern=shop\\\\.app\\\\.events",
            "app.events",
        ),
    ] {
        assert_eq!(table(more), expected, "{more}");
    }
    let overrides = Overrides { table: Some("app.x".to_owned()), brokers: None };
    let text = format!("{LEAST}table.include.list=a.*\n");
    let translation = translate(&text, &overrides).unwrap();
    assert_eq!(translation.draft.get("outbox", "table").unwrap().as_str(), Some("app.x"));
}

#[test]
fn a_value_that_librdkafka_does_not_take_is_left_out_and_reported() {
    let translation = translated(&format!(
        "{LEAST}producer.override.batch.size=0\ndatabase.sslmode=${{env:MODE}}\n"
    ));
    assert_eq!(translation.draft.get("sink.properties", "batch.size"), None);
    let hints = translation.hints.join("\n");
    assert!(
        hints.contains("\"batch.size\" was left out")
            && hints.contains("database.sslmode is set by"),
        "{hints}"
    );
    for option in ["producer.override.batch.size", "database.sslmode"] {
        let answer = answer_to(&translation, option);
        assert_eq!(answer.verdict, Verdict::NoCounterpart, "{option}: {}", answer.text);
        assert!(answer.text.contains("not in the file"), "{option}: {}", answer.text);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 64, ..ProptestConfig::default() })]

    /// Whatever the values are, nothing panics, what is written is TOML, and no password is in it.
    #[test]
    fn whatever_the_values_are_the_file_is_toml(
        values in proptest::collection::vec(("[a-z${}()\\\\.:,*+?\"'=\\[\\] \\PC]{0,12}", 0..200_usize), 1..12)
    ) {
        let all = ROUTER.iter().map(|known| format!("transforms.outbox.{}", known.name));
        let all: Vec<_> = all.chain(CONNECTOR.iter().map(|known| known.name.to_owned())).collect();
        let mut options = serde_json::Map::new();
        for (value, at) in &values {
            options.insert(all[at % all.len()].clone(), (*value).clone().into());
        }
        options.insert("a\nb = 1\u{1b}[2J".to_owned(), "x".into());
        options.insert("database.password".to_owned(), "hush-hush".into());
        options.insert("transforms".to_owned(), "outbox".into());
        options.insert("transforms.outbox.type".to_owned(), ROUTER_CLASS.into());
        if let Ok(translation) = translate(&serde_json::Value::Object(options).to_string(), &Overrides::default()) {
            let text = crate::init::text(&translation.draft);
            prop_assert!(toml::from_str::<toml::Table>(&text).is_ok(), "{text}");
            let found = ["hush-hush", "\u{1b}", "\nb = 1"].iter().any(|bad| text.contains(bad));
            prop_assert!(!found, "{text}");
        }
    }
}
