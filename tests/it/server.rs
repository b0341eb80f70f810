//! The shared servers of `scripts/servers`, and a database of each test's own on them.
//!
//! Connects or fails with the line that mends it. Servers that a test may hurt are in `private`.

use std::collections::BTreeMap;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::Duration;
use tokio::task::JoinSet;
use tokio_postgres::{Config, NoTls, SimpleQueryMessage};

/// The server versions that the tests run against.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Version {
    Pg15,
    Pg16,
    Pg17,
    Pg18,
}

impl Version {
    pub(crate) const ALL: [Self; 4] = [Self::Pg15, Self::Pg16, Self::Pg17, Self::Pg18];

    /// The major version.
    pub(crate) const fn major(self) -> u32 {
        match self {
            Self::Pg15 => 15,
            Self::Pg16 => 16,
            Self::Pg17 => 17,
            Self::Pg18 => 18,
        }
    }

    /// A variable of this version in the servers' file: `PG15_PORT`.
    pub(crate) fn variable(self, name: &str) -> String {
        servers().get(&format!("PG{}_{name}", self.major()))
    }
}

/// What `scripts/servers` wrote of the servers that it started.
pub(crate) struct Servers {
    file: PathBuf,
    values: BTreeMap<String, String>,
}

/// The servers of this checkout, or those of the file that `POSTRIDER_SERVERS` names.
pub(crate) fn servers() -> &'static Servers {
    static SERVERS: OnceLock<Servers> = OnceLock::new();
    SERVERS.get_or_init(|| {
        let file = std::env::var_os("POSTRIDER_SERVERS").map_or_else(
            || Path::new(env!("CARGO_MANIFEST_DIR")).join("target/servers/env"),
            PathBuf::from,
        );
        let text = std::fs::read_to_string(&file).unwrap_or_else(|error| {
            panic!("no servers ({}: {error}); run scripts/servers up", file.display())
        });
        let values = text
            .lines()
            .filter(|line| !line.starts_with('#'))
            .filter_map(|line| line.split_once('='))
            .map(|(name, value)| (name.to_owned(), value.trim_matches('\'').to_owned()))
            .collect();
        Servers { file, values }
    })
}

impl Servers {
    /// One variable; a missing one is a server that does not run.
    pub(crate) fn get(&self, name: &str) -> String {
        self.values.get(name).cloned().unwrap_or_else(|| {
            panic!("{} has no {name}; run scripts/servers up", self.file.display())
        })
    }

    /// One variable, if the file has it.
    pub(crate) fn find(&self, name: &str) -> Option<&str> {
        self.values.get(name).map(String::as_str)
    }

    /// Where servers of a test's own keep their files: readable by the servers' user, short enough for a socket.
    pub(crate) fn private_dir(&self) -> PathBuf {
        Path::new(&self.get("SERVERS_RUN")).join("private")
    }
}

/// The shared broker's addresses.
pub(crate) fn brokers() -> String {
    servers().get("KAFKA_BROKERS")
}

/// A name that no other run has: test, process, a random part; fit for databases, slots and topics.
pub(crate) fn unique(test: &str) -> String {
    let mut name: String = test
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '_' })
        .collect();
    // PostgreSQL's limit is 63 bytes, and tests put `postrider_` before it and a word behind.
    name.truncate(30);
    format!("{name}_{:08x}", fastrand::u32(..))
}

/// A connection that lives as long as this value.
pub(crate) struct Client {
    client: tokio_postgres::Client,
    _connection: JoinSet<()>,
}

impl Deref for Client {
    type Target = tokio_postgres::Client;

    fn deref(&self) -> &Self::Target {
        &self.client
    }
}

impl Client {
    /// Connects, or says why not.
    pub(crate) async fn connect(url: &str) -> Result<Self, tokio_postgres::Error> {
        let config: Config = url.parse()?;
        let (client, connection) = config.connect(NoTls).await?;
        let mut task = JoinSet::new();
        task.spawn(async move {
            // Its error is the answer to whatever the client asks next.
            drop(connection.await);
        });
        Ok(Self { client, _connection: task })
    }

    /// Access for `transaction`, which wants the client for itself.
    pub(crate) fn get_mut(&mut self) -> &mut tokio_postgres::Client {
        &mut self.client
    }

    /// One value as text, `None` when it is null or there is no row.
    pub(crate) async fn text(&self, sql: &str) -> Option<String> {
        let messages = self
            .simple_query(sql)
            .await
            .unwrap_or_else(|error| panic!("{sql}: {}", describe(&error)));
        let rows = messages.iter().filter_map(|message| {
            if let SimpleQueryMessage::Row(row) = message { Some(row) } else { None }
        });
        rows.map(|row| row.get(0)).next().flatten().map(str::to_owned)
    }

    /// Statements without an answer.
    pub(crate) async fn batch(&self, sql: &str) {
        self.batch_execute(sql).await.unwrap_or_else(|error| panic!("{sql}: {}", describe(&error)));
    }
}

/// The server's own words; the crate's `Display` says only "db error".
pub(crate) fn describe(error: &tokio_postgres::Error) -> String {
    error.as_db_error().map_or_else(
        || format!("{error:?}"),
        |error| format!("{} {}", error.code().code(), error.message()),
    )
}

/// A database of one test's own; it goes away with its slots.
pub(crate) struct Database {
    pub(crate) version: Version,
    pub(crate) name: String,
}

impl Database {
    /// Creates it, named after the test.
    pub(crate) async fn create(version: Version, test: &str) -> Self {
        let admin = version.variable("URL");
        let client = Client::connect(&admin).await.unwrap_or_else(|error| {
            panic!("PostgreSQL {} ({error}); run scripts/servers up", version.major())
        });
        let name = unique(test);
        client.batch(&format!("create database {name}")).await;
        Self { version, name }
    }

    /// Its URI, over TCP.
    pub(crate) fn url(&self) -> String {
        format!("postgresql://postgres@127.0.0.1:{}/{}", self.version.variable("PORT"), self.name)
    }

    /// Its address over the unix socket, as key=value.
    pub(crate) fn socket_url(&self) -> String {
        format!(
            "host={} port={} user=postgres dbname={}",
            self.version.variable("SOCKET"),
            self.version.variable("PORT"),
            self.name
        )
    }

    /// A connection to it.
    pub(crate) async fn connect(&self) -> Client {
        Client::connect(&self.url()).await.expect("a connection to the test's own database")
    }
}

/// Ends what holds the database, drops its slots, then the database.
async fn clean_up(admin: String, name: String) -> Result<(), tokio_postgres::Error> {
    let client = Client::connect(&admin).await?;
    // A slot is busy until its walsender is gone: ask until the database can be dropped.
    let mut ticks = tokio::time::interval(Duration::from_millis(20));
    for _ in 0..100 {
        ticks.tick().await;
        client
            .simple_query(&format!(
                "select pg_terminate_backend(active_pid) from pg_replication_slots \
                 where database = '{name}' and active_pid is not null"
            ))
            .await?;
        let dropped = client
            .simple_query(&format!(
                "select pg_drop_replication_slot(slot_name) from pg_replication_slots \
                 where database = '{name}'"
            ))
            .await;
        if dropped.is_ok() {
            break;
        }
    }
    client.batch_execute(&format!("drop database if exists {name} with (force)")).await
}

impl Drop for Database {
    fn drop(&mut self) {
        let (admin, name) = (self.version.variable("URL"), self.name.clone());
        // Its own thread: a test's runtime can't wait inside a drop. A failure leaves a database on a throwaway server.
        let cleaner = std::thread::spawn(move || {
            tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .is_ok_and(|runtime| runtime.block_on(clean_up(admin, name)).is_ok())
        });
        drop(cleaner.join());
    }
}
