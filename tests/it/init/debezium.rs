//! A Debezium connector's configuration, translated, run as it is against the connector's own table and topics: the
//! records are those that Debezium writes.

use super::{SOON, init, records_of, text, topic, written};
use crate::relay::{Relay, postrider_ok};
use crate::server::{Client, Database, Version, brokers, unique};
use crate::topic::{ReadRecord, Topic};
use serde_json::{Value, json};

const TABLE: &str = "create table public.outboxevent (id uuid primary key, aggregatetype varchar(255) not null, \
    aggregateid varchar(255) not null, type varchar(255) not null, payload jsonb)";

const UUID: &str = "0B6C8A4E-1111-4222-8333-944444444444";

/// A connector in front of a database of its own, with further options of connector and router.
struct Connector {
    database: Database,
    sql: Client,
    /// Slot and publication, and the start of every topic.
    name: String,
    options: Value,
}

impl Connector {
    async fn new(version: Version, test: &str, table: &str) -> Self {
        let database = Database::create(version, test).await;
        let sql = database.connect().await;
        sql.batch(table).await;
        let name = unique(test);
        let options = json!({
            "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
            "plugin.name": "pgoutput",
            "slot.name": name,
            "publication.name": name,
            "database.hostname": "127.0.0.1",
            "database.port": version.variable("PORT"),
            "database.user": "postgres",
            "database.password": "hush",
            "database.dbname": database.name,
            "topic.prefix": "shop",
            "table.include.list": "public\\.outboxevent",
            "key.converter": "org.apache.kafka.connect.storage.StringConverter",
            "value.converter": "org.apache.kafka.connect.storage.StringConverter",
            "transforms": "outbox",
            "transforms.outbox.type": "io.debezium.transforms.outbox.EventRouter",
        });
        Self { database, sql, name, options }
    }

    fn with(mut self, option: &str, value: &str) -> Self {
        self.options[option] = json!(value);
        self
    }

    /// The same for an option of the router.
    fn routed(self, option: &str, value: &str) -> Self {
        self.with(&format!("transforms.outbox.{option}"), value)
    }

    /// What `postrider init --from-debezium` makes of it.
    fn translated(&self) -> String {
        let file = json!({"name": self.name, "config": self.options}).to_string();
        let args = ["--from-debezium", "connector.json", "--brokers", &brokers()];
        let (dir, output) = init(("connector.json", &file), &args);
        let config = written(&dir, &output);
        assert!(!config.contains("hush") && !text(&output.stderr).contains("hush"), "{config}");
        config
    }

    async fn topic(&self, name: &str, partitions: i32) -> Topic {
        topic(name, partitions).await
    }

    async fn records(&self, statements: &str, topics: &[(&Topic, usize)]) -> Vec<Vec<ReadRecord>> {
        let records = records_of(&self.translated(), &self.sql, statements, topics).await;
        assert!(!self.database.name.is_empty());
        records
    }
}

fn names(record: &ReadRecord) -> Vec<&str> {
    record.headers.iter().map(|(name, _)| name.as_str()).collect()
}

/// The usual connector: topic, key, value, the one header, a tombstone, nothing of updates and deletes.
#[tokio::test]
async fn the_usual_connector_runs_as_it_is() {
    let connector = Connector::new(Version::Pg17, "dbzusual", TABLE).await;
    let topic = connector.topic(&format!("outbox.event.Order_{}", connector.name), 8).await;
    let kind = format!("Order_{}", connector.name);
    let statements = format!(
        "insert into outboxevent values ('{UUID}', '{kind}', 'o 1', 'Made', '{{\"b\":1,  \"a\":[]}}'); \
         insert into outboxevent values (gen_random_uuid(), '{kind}', 'o 1', 'Gone', null); \
         update outboxevent set type = 'x'; delete from outboxevent; \
         insert into outboxevent values (gen_random_uuid(), '{kind}', 'o 1', 'Last', '\"text\"')"
    );
    let records = connector.records(&statements, &[(&topic, 3)]).await.remove(0);
    assert_eq!(records.len(), 3);
    assert!(records.iter().all(|record| names(record) == ["id"]), "{records:?}");
    assert!(records.iter().all(|record| record.key_text() == Some("o 1")));
    assert_eq!(records[0].header("id"), Some(UUID.to_lowercase().as_str()));
    assert_eq!(
        records[0].value_text(),
        Some("{\"a\": [], \"b\": 1}"),
        "jsonb as PostgreSQL writes it"
    );
    assert_eq!(records[1].value, None, "NULL is a tombstone");
    assert_eq!(records[2].value_text(), Some("\"text\""));
    let partitions: Vec<_> = records.iter().map(|record| record.partition).collect();
    assert!(
        partitions.windows(2).all(|pair| pair[0] == pair[1]),
        "one aggregate, one partition: {partitions:?}"
    );
}

/// The connector's own slot is taken over: what was committed while nobody ran is there, and nothing had to stop.
#[tokio::test]
async fn the_connectors_slot_is_taken_over_without_a_gap() {
    for version in [Version::Pg15, Version::Pg18] {
        let connector = Connector::new(version, "dbzslot", TABLE).await;
        let name = &connector.name;
        connector.sql.batch(&format!("create publication {name} for all tables")).await;
        let slot = format!("select pg_create_logical_replication_slot('{name}', 'pgoutput')::text");
        connector.sql.text(&slot).await;
        let topic = connector.topic(&format!("outbox.event.{name}"), 1).await;
        let insert = |id: u32| {
            format!(
                "insert into outboxevent values (gen_random_uuid(), '{name}', '{id}', 'T', '{id}')"
            )
        };
        connector.sql.batch(&insert(1)).await;
        let records = connector.records(&insert(2), &[(&topic, 2)]).await.remove(0);
        let values: Vec<_> = records.iter().filter_map(ReadRecord::value_text).collect();
        assert_eq!(values, ["1", "2"], "PostgreSQL {}", version.major());
    }
}

/// Other columns, another topic, placed headers of several types, a timestamp of the event's own.
#[tokio::test]
async fn columns_topics_headers_and_timestamps_are_as_debeziums() {
    let table = "create table public.events (event_id bigint primary key, stream text not null, order_id numeric(10,2), \
        type text, body text, made timestamp(6), tenant uuid, ok boolean, at timestamptz(3), n numeric, note text)";
    let connector = Connector::new(Version::Pg18, "dbzcolumns", table).await;
    let placed = "type:header:eventType,tenant:header,ok:header:is-ok,at:header,n:header,note:header,event_id:header:id,absent:header";
    let name = connector.name.clone();
    let connector = connector
        .with("table.include.list", "public.events")
        .routed("route.by.field", "stream")
        .routed("route.topic.regex", "(.*)\\.v\\d+")
        .routed("route.topic.replacement", &format!("{name}.$1"))
        .routed("table.field.event.id", "event_id")
        .routed("table.field.event.key", "order_id")
        .routed("table.field.event.payload", "body")
        .routed("table.field.event.timestamp", "made")
        .routed("table.field.additional.missing", "ignore")
        .routed("table.fields.additional.placement", placed);
    let routed = connector.topic(&format!("{name}.order"), 1).await;
    let raw = connector.topic(&format!("{name}.plain"), 1).await;
    let statements = format!(
        "insert into events values (7, 'order.v12', 4.5, 'Made', ' raw {{ ', '2024-01-02 03:04:05.678901', \
           '{UUID}', true, '2024-01-02 03:04:05.6789+02', 123.45, null); \
         insert into events values (8, '{name}.plain', null, 'Made', '', null, null, false, null, null, 'x')"
    );
    let all = connector.records(&statements, &[(&routed, 1), (&raw, 1)]).await;
    let record = &all[0][0];
    assert_eq!(record.key_text(), Some("4.50"));
    assert_eq!(record.value_text(), Some(" raw { "));
    assert_eq!(record.timestamp, Some(1_704_164_645_678));
    assert_eq!(names(record), ["id", "eventType", "tenant", "is-ok", "at", "n", "note", "id"]);
    let values: Vec<_> = record
        .headers
        .iter()
        .map(|(_, v)| v.as_deref().map(|v| String::from_utf8_lossy(v).into_owned()))
        .collect();
    let some = |text: &str| Some(text.to_owned());
    let expected = [
        some("7"),
        some("Made"),
        Some(UUID.to_lowercase()),
        some("true"),
        some("2024-01-02T01:04:05.679Z"),
        some("{\"scale\":2,\"value\":\"MDk=\"}"),
        None,
        some("7"),
    ];
    assert_eq!(values, expected);
    let other = &all[1][0];
    assert_eq!(other.key, None, "a NULL key stays NULL");
    assert_eq!(other.value_text(), Some(""), "an empty payload is no tombstone unless asked for");
    assert!(other.timestamp.is_some_and(|ms| ms > 1_704_164_645_678), "NULL falls back");
}

/// An envelope with the payload expanded, in the order of the configuration, a column placed twice, the partition.
#[tokio::test]
async fn envelopes_partitions_and_tombstones_are_as_debeziums() {
    let table = "create table public.outboxevent (id uuid primary key, aggregatetype text not null, aggregateid text, \
        type text, payload text, n int, ok boolean, meta jsonb, bucket int)";
    let connector = Connector::new(Version::Pg17, "dbzenvelope", table).await;
    let name = connector.name.clone();
    let connector = connector
        .with("value.converter", "org.apache.kafka.connect.json.JsonConverter")
        .with("value.converter.schemas.enable", "false")
        .routed("route.topic.replacement", &format!("{name}.${{routedByValue}}"))
        .routed("table.expand.json.payload", "true")
        .routed("route.tombstone.on.empty.payload", "true")
        .routed(
            "table.fields.additional.placement",
            "type:header:eventType,n:envelope,type:envelope:kind,ok:envelope,meta:envelope,bucket:partition",
        );
    let topic = connector.topic(&format!("{name}.a"), 4).await;
    let statements = "insert into outboxevent values \
         (gen_random_uuid(), 'a', '1', 'Made', '{\"x\": 10000000000000000000001}', 3, true, '{\"m\": 1}', 2), \
         (gen_random_uuid(), 'a', '1', 'Made', 'no json', null, false, null, 2), \
         (gen_random_uuid(), 'a', '1', 'Gone', '  ', 1, true, null, 2), \
         (gen_random_uuid(), 'a', '1', 'Gone', null, 1, true, null, 2)";
    let records = connector.records(statements, &[(&topic, 4)]).await.remove(0);
    assert!(records.iter().all(|record| record.partition == 2), "{records:?}");
    assert!(records.iter().all(|record| names(record) == ["id", "eventType"]), "{records:?}");
    let values: Vec<_> = records.iter().map(ReadRecord::value_text).collect();
    let expected = [
        Some(
            "{\"payload\":{\"x\": 10000000000000000000001},\"n\":3,\"kind\":\"Made\",\"ok\":true,\"meta\":\"{\\\"m\\\": 1}\"}",
        ),
        Some("{\"payload\":\"no json\",\"n\":null,\"kind\":\"Made\",\"ok\":false,\"meta\":null}"),
        None,
        None,
    ];
    assert_eq!(values, expected);
}

/// Without the option a NULL payload is a null in the object, and without an envelope JSON passes as it was written.
#[tokio::test]
async fn null_stays_in_the_envelope_and_json_passes_as_it_is() {
    let table = "create table public.outboxevent (id uuid primary key, aggregatetype text not null, aggregateid text, \
        type text, payload json)";
    let connector = Connector::new(Version::Pg18, "dbznull", table).await;
    let name = connector.name.clone();
    let connector = connector
        .routed("route.topic.replacement", &name)
        .routed("table.fields.additional.placement", "type:envelope:eventType,");
    let topic = connector.topic(&name, 1).await;
    let row = |payload: &str| {
        format!("insert into outboxevent values (gen_random_uuid(), 'a', '1', 'T', {payload})")
    };
    let records = connector.records(&row("null"), &[(&topic, 1)]).await.remove(0);
    assert_eq!(records[0].value_text(), Some("{\"payload\":null,\"eventType\":\"T\"}"));
    // The same connector without the envelope, and with the expansion that loses digits and nulls in Debezium.
    let connector = connector
        .routed("table.fields.additional.placement", "type:header")
        .routed("table.expand.json.payload", "true");
    let config = connector.translated();
    postrider_ok(&config, &["setup"]);
    let relay = Relay::spawn(&config);
    let json = "{\"a\":null, \"b\":[], \"c\":1.10000000000000000000001}";
    connector.sql.batch(&row(&format!("'{json}'"))).await;
    let records = topic.await_records(2, SOON).await;
    assert_eq!(records[1].value_text(), Some(json));
    assert_eq!(relay.terminate(SOON).await.code, Some(0));
}

/// As many have it: routed by the event's type, to one topic, with a null for every column that is not there.
#[tokio::test]
async fn events_routed_by_their_type_and_types_in_the_envelope_are_as_debeziums() {
    let table = "create table public.outboxevent (id uuid primary key, aggregateid varchar(9), type varchar(20), \
        payload jsonb, made timestamp, at timestamptz(3), price numeric(5,2), day date, f float8)";
    let connector = Connector::new(Version::Pg15, "dbztypes", table).await;
    let name = connector.name.clone();
    let connector = connector
        .routed("route.by.field", "type")
        .routed("route.topic.replacement", &format!("{name}.${{routedByValue}}"))
        .routed(
            "table.fields.additional.placement",
            "made:envelope,at:envelope,price:envelope,day:envelope,f:envelope,type:header:eventType",
        );
    let topic = connector.topic(&format!("{name}.Made"), 1).await;
    let statements = "insert into outboxevent values (gen_random_uuid(), '1', 'Made', '{}', \
        '2024-01-02 03:04:05.5', '2024-01-02 03:04:05.5+02', 1.5, '2024-01-02', 100)";
    let record = connector.records(statements, &[(&topic, 1)]).await.remove(0).remove(0);
    let value = "{\"payload\":\"{}\",\"made\":1704164645500000,\"at\":\"2024-01-02T01:04:05.500Z\",\"price\":\"AJY=\",\
        \"day\":19724,\"f\":100.0}";
    assert_eq!(record.value_text(), Some(value));
    assert_eq!(record.header("eventType"), Some("Made"));
}

/// What a connector has that we have not is told before anything runs, with what to do; the file still runs.
#[test]
fn options_without_a_counterpart_are_told_and_secrets_are_not() {
    let properties = "name=orders\n\
        connector.class=io.debezium.connector.postgresql.PostgresConnector\n\
        plugin.name=pgoutput\n\
        database.hostname=db\n\
        database.user=relay\n\
        database.password=hush-pg\n\
        database.dbname=shop\n\
        slot.drop.on.stop=true\n\
        transforms=outbox\n\
        transforms.outbox.type=io.debezium.transforms.outbox.EventRouter\n\
        transforms.outbox.debezium.op.invalid.behavior=error\n\
        producer.override.bootstrap.servers=k1:9092\n\
        producer.override.sasl.jaas.config=x.PlainLoginModule required username='u' password='hush-kafka';\n\
        producer.override.ssl.key.password=hush-key\n";
    let (dir, output) = init(("c.properties", properties), &["--from-debezium", "c.properties"]);
    let config = written(&dir, &output);
    let told = text(&output.stderr);
    assert!(!config.contains("hush") && !told.contains("hush"), "{config}{told}");
    for line in [
        "14 options: 9 translated, 3 not needed, 2 without a counterpart",
        "slot.drop.on.stop: set it to false before you stop the connector",
        "database.password: not copied",
        "set the environment variable KAFKA_PASSWORD",
        "set the environment variable KAFKA_KEY_PASSWORD",
        "then, as an administrator: postrider setup --url postgresql://ADMIN@HOST/DATABASE",
        "then: postrider check, and postrider run",
    ] {
        assert!(told.contains(line), "{line}: {told}");
    }
    for line in [
        "transforms.outbox.debezium.op.invalid.behavior: Debezium itself ignores this option",
        "slot = \"debezium\"",
    ] {
        assert!(config.contains(line), "{line}: {config}");
    }
    // A secret that is not set is asked for by its name, with its place.
    let (_dir, refused) =
        init(("c.json", "{\"transforms\": \"x\"}"), &["--from-debezium", "c.json"]);
    assert_eq!(refused.status.code(), Some(2));
    assert!(
        text(&refused.stderr).contains("none of the connector's transforms is"),
        "{}",
        text(&refused.stderr)
    );
}
