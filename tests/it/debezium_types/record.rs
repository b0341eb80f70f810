//! Records what Debezium writes: one Kafka Connect worker with three connectors, on a database of its own.

use super::{
    IDENTITY, NOTHING, PLACES, Value, hex, insert, member, prepare, quoted, table, tables, values,
};
use crate::await_that::{SOON, await_that};
use crate::private::free_port;
use crate::server::{Database, Version, brokers};
use crate::topic::{ReadRecord, Topic, create_topic};
use std::fmt::Write as _;
use std::fs::{self, File};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use tempfile::TempDir;

const STRING: &str = "org.apache.kafka.connect.storage.StringConverter";
const JSON: &str = "org.apache.kafka.connect.json.JsonConverter";
const BYTES: &str = "org.apache.kafka.connect.converters.ByteArrayConverter";

/// The server that was read.
const VERSION: Version = Version::Pg17;

/// The rest of a connector, by what its value converter is.
const CONNECTORS: [(&str, &str, &str); 3] = [
    ("string", STRING, "n:header,aggregateid:header:again"),
    ("json", JSON, "n:header,aggregateid:envelope:again"),
    ("bytes", BYTES, "n:header"),
];

/// Ends the worker whatever becomes of the test.
struct Worker(Child);

impl Drop for Worker {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

/// Writes the file anew: `connect` is the directory that `scripts/record-debezium` fetched.
pub(super) async fn record(connect: &Path) {
    let mut values = values();
    let database = Database::create(VERSION, "dbzrecord").await;
    let sql = database.connect().await;
    prepare(&sql, &values).await;
    let mut topics = Vec::new();
    for (name, ..) in CONNECTORS {
        let name = format!("{}_{name}", database.name);
        create_topic(&brokers(), &name, 1, &[]).await;
        topics.push(Topic { brokers: brokers(), name });
    }
    let scratch = TempDir::new().unwrap();
    let _worker = start(connect, scratch.path(), &database);
    let active = format!(
        "select count(*) from pg_replication_slots where active and database = '{}'",
        database.name
    );
    await_that("three connectors that stream", SOON, || async {
        let log = || fs::read_to_string(scratch.path().join("log")).unwrap_or_default();
        let count = sql.text(&active).await;
        if count.as_deref() == Some("3") { Ok(()) } else { Err(log()) }
    })
    .await;
    insert(&sql, &values).await;
    // No converter refuses a NULL of this type.
    let last = &tables(&values)["bytea"];
    sql.batch(&format!("insert into {last} (n, aggregatetype) values (-1, 't')")).await;
    let all = read(&topics).await;
    for (n, value) in values.iter_mut().enumerate() {
        value.recorded = recorded(n, &all);
    }
    write(&values, connect);
    for topic in topics {
        topic.delete().await;
    }
}

fn start(connect: &Path, scratch: &Path, database: &Database) -> Worker {
    let worker = format!(
        "bootstrap.servers={}\nkey.converter={STRING}\nvalue.converter={STRING}\n\
         plugin.path={}\nplugin.discovery=hybrid_warn\nlisteners=http://127.0.0.1:{}\n\
         offset.storage.file.filename={}\n",
        brokers(),
        connect.join("plugins").display(),
        free_port(),
        scratch.join("offsets").display(),
    );
    fs::write(scratch.join("worker.properties"), worker).unwrap();
    let mut java = Command::new("java");
    java.args(["-Xmx1g", "-Dorg.slf4j.simpleLogger.defaultLogLevel=error", "-cp"])
        .arg(format!("{}/lib/*", connect.display()))
        .arg("org.apache.kafka.connect.cli.ConnectStandalone")
        .arg(scratch.join("worker.properties"));
    for (name, converter, placement) in CONNECTORS {
        let name = format!("{}_{name}", database.name);
        let connector = format!(
            "name={name}\nconnector.class=io.debezium.connector.postgresql.PostgresConnector\ntasks.max=1\n\
             database.hostname=127.0.0.1\ndatabase.port={}\ndatabase.user=postgres\ndatabase.password=none\n\
             database.dbname={}\ntopic.prefix={name}\nplugin.name=pgoutput\nslot.name={name}\n\
             publication.name=everything\npublication.autocreate.mode=disabled\nsnapshot.mode=no_data\n\
             errors.tolerance=all\nvalue.converter={converter}\nvalue.converter.schemas.enable=false\n\
             transforms=outbox\ntransforms.outbox.type=io.debezium.transforms.outbox.EventRouter\n\
             transforms.outbox.route.topic.replacement={name}\n\
             transforms.outbox.table.fields.additional.placement={placement}\n",
            VERSION.variable("PORT"),
            database.name,
        );
        let file = scratch.join(format!("{name}.properties"));
        fs::write(&file, connector).unwrap();
        java.arg(file);
    }
    let log = File::create(scratch.join("log")).unwrap();
    let errors = log.try_clone().unwrap();
    java.stdin(Stdio::null()).stdout(log).stderr(errors);
    Worker(java.spawn().expect("java"))
}

/// Everything up to the last row, by connector.
async fn read(topics: &[Topic]) -> Vec<Vec<ReadRecord>> {
    let mut all = Vec::new();
    for topic in topics {
        let records = await_that("the last record", SOON, || async {
            let records = topic.read_all().await;
            let is_last = records.last().is_some_and(|last| last.header("n") == Some("-1"));
            if is_last { Ok(records) } else { Err(records.len()) }
        });
        all.push(records.await);
    }
    all
}

fn recorded(n: usize, all: &[Vec<ReadRecord>]) -> Vec<String> {
    let n = n.to_string();
    let mut found =
        all.iter().map(|records| records.iter().find(|record| record.header("n") == Some(&n)));
    let mut next = || found.next().flatten();
    let (string, json, bytes) = (next(), next(), next());
    let plain = string.map(|record| {
        let (key, value) = (plain(record.key.as_deref()), plain(record.value.as_deref()));
        assert_eq!(key, value, "key and value");
        key
    });
    let header = string.map(|record| {
        let of =
            |name| record.headers.iter().find(|(known, _)| known == name).unwrap().1.as_deref();
        assert_eq!(of("id"), of("again"), "header id and a placed one");
        quoted(of("id"))
    });
    let json = json.map(|record| {
        let value = record.value_text().expect("an envelope");
        member(value).unwrap_or_else(|| panic!("payload and member differ: {value}"))
    });
    let bytes = bytes.map(|record| record.value.as_deref().map_or_else(|| "null".to_owned(), hex));
    let places = [plain, header, json, bytes];
    places.into_iter().map(|text| text.unwrap_or_else(|| NOTHING.to_owned())).collect()
}

fn plain(bytes: Option<&[u8]>) -> String {
    let text = quoted(bytes);
    if text.contains("[B@") || text.contains("HeapByteBuffer") { IDENTITY.to_owned() } else { text }
}

fn write(values: &[Value], connect: &Path) {
    let version = |dir: &str, start: &str| {
        let names = fs::read_dir(connect.join(dir)).unwrap();
        let mut names = names.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let name = names.find(|name| name.starts_with(start)).expect(start);
        name.trim_start_matches(start).trim_end_matches(".jar").to_owned()
    };
    let plugin = fs::read_dir(connect.join("plugins")).unwrap().next().unwrap().unwrap().path();
    let plugin = format!("plugins/{}", plugin.file_name().unwrap().to_string_lossy());
    let mut text = format!(
        "# What Debezium {} on Kafka Connect {} made of rows of PostgreSQL {}: written by scripts/record-debezium.\n\
         # \"{NOTHING}\": no record; \"{IDENTITY}\": the identity of a Java object, another one each time.\n# type\tliteral",
        version(&plugin, "debezium-connector-postgres-"),
        version("lib", "connect-runtime-"),
        VERSION.major(),
    );
    for place in PLACES {
        text.push('\t');
        text.push_str(place);
    }
    text.push('\n');
    for value in values {
        let Value { of_type, literal, recorded } = value;
        writeln!(text, "{of_type}\t{literal}\t{}", recorded.join("\t")).unwrap();
    }
    fs::write(table(), text).unwrap();
}
