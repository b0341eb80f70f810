//! Where a document's blocks run: a PostgreSQL and a Kafka of its own, a directory, and the names that stand for them.

use super::answers;
use super::blocks::{Block, commands, option, root};
use crate::await_that::{SOON, await_or_dump};
use crate::private::{PrivateKafka, PrivatePostgres, Signal, exit_of, free_port, signal};
use crate::relay::http_get;
use crate::server::{Client, Version};
use crate::topic::{Topic, admin, create_topic};
use postrider::postgres::schema;
use rdkafka::admin::{AdminOptions, AlterConfig, ResourceSpecifier};
use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::{OpenOptionsExt, symlink};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use tempfile::TempDir;

/// What pages take for granted.
const SETTINGS: &str = "[pipelines.orders]\nsource.url = \
    \"postgresql://postrider@db.internal/shop?sslmode=verify-full\"\n\
    outbox.table = \"public.outbox\"\nsink.brokers = \"k1:9092,k2:9092\"\n";

/// Somebody who has a database and a Kafka, and reads a document from its beginning.
pub(super) struct World {
    postgres: PrivatePostgres,
    kafka: PrivateKafka,
    dir: TempDir,
    admin_port: u16,
    /// What the settings shown so far come to.
    config: toml::Table,
    run: Option<Child>,
    /// All that was typed, and what came of it.
    transcript: String,
}

impl World {
    /// A database `shop` with an administrator, a Kafka, and nothing else.
    pub(super) async fn bare() -> Self {
        let (postgres, kafka) =
            tokio::join!(PrivatePostgres::start(Version::Pg17, ""), PrivateKafka::start(""));
        let sql = postgres.connect().await;
        sql.batch("create role admin superuser login").await;
        sql.batch("create database shop").await;
        let dir = TempDir::new().expect("a directory");
        let bin = dir.path().join("bin");
        fs::create_dir(&bin).expect("a directory");
        let psql = PathBuf::from(Version::Pg17.variable("BIN")).join("psql");
        symlink(env!("CARGO_BIN_EXE_postrider"), bin.join("postrider")).expect("a link");
        symlink(psql, bin.join("psql")).expect("a link");
        symlink(root().join("sql"), dir.path().join("sql")).expect("a link");
        let schema = r#"{"type": "record", "name": "Order", "fields": []}"#;
        fs::write(dir.path().join("orders.avsc"), schema).expect("a schema");
        for name in [
            "pg-password",
            "kafka-password",
            "rabbitmq-password",
            "storage-access-key",
            "storage-secret-key",
            "minio-ca.pem",
        ] {
            let mut file = fs::File::options();
            let file = file.create_new(true).write(true).mode(0o600).open(dir.path().join(name));
            std::io::Write::write_all(&mut file.expect("a file"), b"choose-one\n").expect("a file");
        }
        let config = toml::Table::new();
        let (run, transcript, admin_port) = (None, String::new(), free_port());
        Self { postgres, kafka, dir, admin_port, config, run, transcript }
    }

    /// The same, set up and streaming as `docs/getting-started.md` leaves it.
    pub(super) async fn set_up() -> Self {
        let mut world = Self::bare().await;
        world.statement("CREATE ROLE postrider LOGIN REPLICATION", "set up").await;
        world.settings(SETTINGS, "set up");
        world.shell(
            "postrider setup --create-table --url postgresql://admin@db.internal/shop",
            "set up",
        );
        create_topic(&world.kafka.brokers(), "order", 8, &[]).await;
        world
    }

    /// The role of the documents, where a page takes it for granted.
    pub(super) async fn a_role_that_reads_everything(&self) {
        self.statement("CREATE ROLE postrider LOGIN REPLICATION", "set up").await;
    }

    /// A role for workers, and these topics.
    pub(super) async fn a_worker_and_topics(&self, topics: &[&str]) {
        self.statement("CREATE ROLE worker LOGIN", "set up").await;
        for topic in topics {
            create_topic(&self.kafka.brokers(), topic, 1, &[]).await;
        }
    }

    /// An outbox and settings, and neither role nor objects of ours.
    pub(super) async fn configured(&mut self) {
        self.settings(SETTINGS, "set up");
        self.statement(include_str!("../../../sql/layouts/postrider.sql"), "set up").await;
    }

    /// The tables of the layouts that are polled by marks.
    pub(super) async fn polled(&mut self) {
        self.settings(SETTINGS, "set up");
        self.settings("[pipelines.orders]\noutbox.layout = \"gcx\"\n", "set up");
        self.statement(include_str!("../../../sql/layouts/commerce.sql"), "set up").await;
        self.statement(include_str!("../../../sql/layouts/gcx.sql"), "set up").await;
        self.statement(include_str!("../../../sql/layouts/sqlgarden.sql"), "set up").await;
        let migrations = schema::MIGRATIONS.iter().map(|migration| migration.sql);
        let schema: String =
            std::iter::once("CREATE SCHEMA postrider;").chain(migrations).collect();
        let session = Client::connect(&self.postgres.url_of("shop")).await.expect("a session");
        session.batch(&schema).await;
        session
            .batch("grant usage on schema postrider to admin; grant all on all tables in schema postrider to admin")
            .await;
    }

    /// Streaming.
    pub(super) async fn running(&mut self) {
        self.start("set up").await;
    }

    /// Does what the block says.
    pub(super) async fn follow(&mut self, block: &Block) {
        let place = &block.place;
        match block.language.as_str() {
            "sql" if answers::to(&block.text).is_some() => self.prepare(&block.text, place).await,
            "sql" => {
                writeln!(self.transcript, "shop=# {}", block.text.trim_end()).expect("a String");
                self.statement(&block.text, place).await;
            }
            "toml" => {
                writeln!(self.transcript, "$ cat >> postrider.toml\n{}", block.text)
                    .expect("a String");
                self.settings(&block.text, place);
            }
            "yaml" => {
                let parsed = yaml_rust2::YamlLoader::load_from_str(&block.text);
                parsed.unwrap_or_else(|error| panic!("{place}: {error}"));
            }
            "sh" => {
                for command in commands(&block.text) {
                    self.command(&command, place).await;
                }
            }
            // Programs: `page_shows_the_programs_that_are_tested` of `consumers` and `inbox_consumers`.
            "text" | "json" | "java" | "python" | "go" | "typescript" | "rust" => {}
            other => panic!("{place}: blocks of \"{other}\" have no answer"),
        }
    }

    /// The names that documents use, and what stands for them here.
    fn here(&self, text: &str) -> String {
        let address = format!("127.0.0.1:{}", self.postgres.port);
        let password = self.dir.path().join("pg-password");
        [
            ("db.internal", address.as_str()),
            ("sslmode=verify-full", "sslmode=disable"),
            ("k1:9092,k2:9092", &self.kafka.brokers()),
            ("k1:9092", &self.kafka.brokers()),
            ("/run/secrets/pg", &password.display().to_string()),
            ("127.0.0.1:9464", &format!("127.0.0.1:{}", self.admin_port)),
        ]
        .into_iter()
        .fold(text.to_owned(), |text, (name, ours)| text.replace(name, ours))
    }

    async fn command(&mut self, command: &str, place: &str) {
        let first = command.split_whitespace().next().unwrap_or_default();
        writeln!(self.transcript, "$ {command}").expect("a String");
        if let Some(answer) = answers::to(command) {
            writeln!(self.transcript, "(not run here: {})", answer.why).expect("a String");
            return;
        }
        match (first, command) {
            ("kafka-topics.sh" | "kafka-console-consumer.sh" | "kafka-configs.sh", _) => {
                self.kafka(first, command, place).await;
            }
            (_, "postrider run") => self.start(place).await,
            (_, "postrider inbox run") => self.start_as(&["inbox", "run"], place).await,
            ("systemctl", _) => {
                if command.contains("stop") || command.contains("restart") {
                    self.stop(place).await;
                }
                if !command.contains("stop") {
                    self.start(place).await;
                }
            }
            _ => self.shell(command, place),
        }
    }

    /// Kafka's own scripts are not on every machine: the same by an admin client and a consumer.
    async fn kafka(&mut self, tool: &str, command: &str, place: &str) {
        let brokers = self.kafka.brokers();
        let value =
            |name| option(command, name).unwrap_or_else(|| panic!("{place}: no {name}: {command}"));
        assert_eq!(value("--bootstrap-server"), "k1:9092", "{place}");
        match tool {
            "kafka-topics.sh" => {
                assert!(command.contains("--create"), "{place}: {command}");
                let partitions = value("--partitions").parse().expect("a number");
                create_topic(&brokers, value("--topic"), partitions, &[]).await;
            }
            "kafka-configs.sh" => {
                assert_eq!(value("--entity-type"), "topics", "{place}");
                let (name, value_of) = value("--add-config").split_once('=').expect("a setting");
                let topic = ResourceSpecifier::Topic(value("--entity-name"));
                let change = AlterConfig::new(topic).set(name, value_of);
                let done = admin(&brokers).alter_configs([&change], &AdminOptions::new()).await;
                done.expect("an answer")
                    .remove(0)
                    .unwrap_or_else(|error| panic!("{place}: {error:?}"));
            }
            _ => {
                let count = value("--max-messages").parse().expect("a number");
                let topic = Topic { brokers, name: value("--topic").to_owned() };
                let records = topic.await_records(count, SOON).await;
                assert_eq!(records.len(), count, "{place}");
                for record in records {
                    let headers =
                        ["id", "type", "position"].map(|name| record.header(name).unwrap_or("-"));
                    let (key, value) = (record.key_text(), record.value_text());
                    writeln!(self.transcript, "headers {headers:?} key {key:?} value {value:?}")
                        .expect("a String");
                }
            }
        }
    }

    /// A command in a shell, which must end well.
    fn shell(&mut self, command: &str, place: &str) {
        let bin = self.dir.path().join("bin");
        let script = format!("PATH='{}':\"$PATH\"\n{}", bin.display(), self.here(command));
        let output = Command::new("bash")
            .args(["-euo", "pipefail", "-c", &script])
            .current_dir(self.dir.path())
            .env_remove("POSTRIDER_CONFIG")
            .stdin(Stdio::null())
            .output()
            .expect("bash");
        let said = format!(
            "{}{}",
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        );
        assert!(output.status.success(), "{place}: {command}: {}\n{said}", output.status);
        self.transcript.push_str(&said);
    }

    /// Statements, as an administrator in psql would run them.
    async fn statement(&self, sql: &str, place: &str) {
        let session = Client::connect(&self.postgres.url_of("shop")).await.expect("a session");
        session.batch("set role admin").await;
        // One by one, as psql does: some can't be in a transaction with others.
        // An id that stands for any.
        let sql = sql.replace("id = '…'", "id = '00000000-0000-0000-0000-000000000000'");
        for statement in statements(&sql) {
            let done = session.simple_query(&statement).await;
            done.unwrap_or_else(|error| {
                panic!("{place}: {statement}: {}", crate::server::describe(&error));
            });
        }
    }

    /// Statements that fit only one moment of one server: they are parsed against real tables, and a test runs them.
    async fn prepare(&self, sql: &str, place: &str) {
        let session = Client::connect(&self.postgres.url_of("shop")).await.expect("a session");
        for statement in statements(sql) {
            let parsed = session.prepare(&statement).await;
            parsed.unwrap_or_else(|error| {
                panic!("{place}: {statement}: {}", crate::server::describe(&error));
            });
        }
    }

    /// Settings add to those shown before them; the whole must be a configuration.
    fn settings(&mut self, text: &str, place: &str) {
        let text = self.here(text);
        let parsed: toml::Table =
            text.parse().unwrap_or_else(|error| panic!("{place}: {error}\n{text}"));
        // A line of a table that the text around it names.
        if !text.trim_start().starts_with('[') {
            return;
        }
        merge(&mut self.config, parsed);
        let listen = format!("[admin]\nlisten = \"127.0.0.1:{}\"\n", self.admin_port);
        merge(&mut self.config, listen.parse().expect("TOML"));
        let file = self.dir.path().join("postrider.toml");
        fs::write(&file, self.config.to_string()).expect("a configuration");
        // libpq's variables are no part of a document.
        let known = |name: &str| (!name.starts_with("PG")).then(|| format!("value-of-{name}"));
        let loaded = postrider::config::load(&file, &known);
        loaded.unwrap_or_else(|error| panic!("{place}: {error}\n{}", self.config));
    }

    /// `postrider run`, until the document stops it or ends.
    async fn start(&mut self, place: &str) {
        self.start_as(&["run"], place).await;
    }

    async fn start_as(&mut self, args: &[&str], place: &str) {
        if self.run.is_some() {
            return;
        }
        let log = fs::File::options().create(true).append(true).open(self.dir.path().join("log"));
        let child = Command::new(env!("CARGO_BIN_EXE_postrider"))
            .args(args)
            .current_dir(self.dir.path())
            .env_remove("POSTRIDER_CONFIG")
            .stdin(Stdio::null())
            .stderr(log.expect("a log"))
            .spawn();
        let run = self.run.insert(child.expect("postrider"));
        let port = self.admin_port;
        let log = || fs::read_to_string(self.dir.path().join("log")).unwrap_or_default();
        let ready = || {
            let ended = run.try_wait().expect("its state");
            assert!(ended.is_none(), "{place}: postrider run ended: {ended:?}\n{}", log());
            async move {
                match http_get(port, "/ready").await {
                    Ok((200, _)) => Ok(()),
                    Ok((_, why)) | Err(why) => Err(why),
                }
            }
        };
        await_or_dump(&format!("{place}: postrider run is ready"), SOON, ready, log).await;
    }

    async fn stop(&mut self, place: &str) {
        let Some(mut child) = self.run.take() else { return };
        signal(child.id(), Signal::Term);
        let status = exit_of(&mut child, SOON).await;
        assert_eq!(status.code(), Some(0), "{place}: postrider run ends well");
    }

    /// The end of the document.
    pub(super) async fn end(&mut self, document: &str) {
        self.stop("the end").await;
        let name = format!("transcript-{}.txt", document.replace('/', "-"));
        let file = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
        fs::write(file, &self.transcript).expect("a transcript");
    }
}

impl Drop for World {
    fn drop(&mut self) {
        if let Some(mut child) = self.run.take() {
            drop(child.kill());
            drop(child.wait());
        }
    }
}

/// Statements by their semicolons at the end of a line, without comments.
fn statements(sql: &str) -> Vec<String> {
    let lines =
        sql.lines().map(|line| line.split_once(" --").map_or(line, |(code, _)| code.trim_end()));
    let code = lines.collect::<Vec<_>>().join("\n") + "\n";
    code.split(";\n").map(str::trim).filter(|text| !text.is_empty()).map(str::to_owned).collect()
}

fn merge(into: &mut toml::Table, from: toml::Table) {
    for (name, value) in from {
        match (into.get_mut(&name), value) {
            (Some(toml::Value::Table(known)), toml::Value::Table(more)) => merge(known, more),
            (_, value) => {
                into.insert(name, value);
            }
        }
    }
}
