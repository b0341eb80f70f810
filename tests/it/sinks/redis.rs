//! The Redis sink in the conformance test, with Redis and with Valkey.

use super::server::SinkServer;
use crate::private::{Flavor, PrivateRedis};
use crate::topic::ReadRecord;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use tempfile::TempDir;

/// A server, with a file that has the relay's password. `VALKEY`: Valkey, else the oldest Redis. `EXACT`: the sink
/// publishes in transactions.
pub(super) struct RedisServer<const VALKEY: bool, const EXACT: bool = false> {
    pub(super) redis: PrivateRedis,
    files: TempDir,
}

impl<const VALKEY: bool, const EXACT: bool> RedisServer<VALKEY, EXACT> {
    pub(super) async fn with(extra_config: &str) -> Self {
        let flavor = if VALKEY { Flavor::Valkey9 } else { Flavor::Redis7 };
        let files = TempDir::new().expect("a directory");
        let password = files.path().join("password");
        fs::write(&password, "secret\n").expect("a password");
        fs::set_permissions(&password, fs::Permissions::from_mode(0o600)).expect("its rights");
        Self { redis: PrivateRedis::start(flavor, extra_config).await, files }
    }

    /// `[.sink]` for a server at this address, with further keys.
    pub(super) fn sink_at(&self, servers: &str, more: &str) -> String {
        let delivery = if EXACT { "delivery = \"exactly-once\"\n" } else { "" };
        format!(
            "[.sink]\nkind = \"redis\"\n{delivery}[.sink.redis]\nservers = \"{servers}\"\nusername = \"relay\"\n\
             password_file = \"{}\"\n{more}",
            self.files.path().join("password").display()
        )
    }

    /// The same for this server.
    pub(super) fn sink_with(&self, more: &str) -> String {
        self.sink_at(&format!("127.0.0.1:{}", self.redis.port()), more)
    }
}

/// Events of a stream that does not exist are parked, as with other servers.
const PARK: &str = "missing_streams = \"park\"\n";

impl<const VALKEY: bool, const EXACT: bool> SinkServer for RedisServer<VALKEY, EXACT> {
    const KIND: &'static str = "redis";

    /// The progress says what is stored. But Redis 7.0.15, which is killed in the middle of a transaction, keeps the
    /// beginning of it in its append-only file, and executes it at the start after the next one: at most the events of
    /// one call are there twice then. Seen by cutting the file; Valkey 9.1.2 removes the beginning.
    const REPEATS_PER_LOSS: usize = if VALKEY { 0 } else { 256 };

    const EXACTLY_ONCE: bool = EXACT;

    async fn start() -> Self {
        Self::with("").await
    }

    async fn version(&self) -> String {
        let version = self.redis.version();
        let number = version.split_once("v=").map_or("", |(_, rest)| rest);
        let name = if VALKEY { "valkey" } else { "redis" };
        let delivery = if EXACT { ", exactly once" } else { "" };
        format!("{name} {}{delivery}", number.split(' ').next().unwrap_or_default())
    }

    fn port(&self) -> Option<u16> {
        Some(self.redis.port())
    }

    fn sink(&self, port: Option<u16>) -> String {
        let port = port.unwrap_or_else(|| self.redis.port());
        self.sink_at(&format!("127.0.0.1:{port}"), PARK)
    }

    fn sink_over_tls(&self, right: bool) -> String {
        let host = if right { "localhost" } else { "127.0.0.1" };
        let tls = format!("{PARK}[.sink.redis.tls]\nca_file = \"{}\"\n", self.redis.ca().display());
        self.sink_at(&format!("{host}:{}", self.redis.tls_port()), &tls)
    }

    async fn create(&self, destination: &str) {
        let command = format!("XGROUP CREATE {destination} group 0 MKSTREAM");
        assert_eq!(self.redis.admin(&command).await.as_deref(), Ok("+OK\r\n"));
    }

    async fn delete(&self, destination: &str) {
        let deleted = self.redis.admin(&format!("DEL {destination}")).await;
        assert_eq!(deleted.as_deref(), Ok(":1\r\n"));
    }

    async fn limit(&mut self, _destination: &str, bytes: Option<usize>) -> String {
        let limit = format!("{PARK}event_bytes_max = \"{}B\"\n", bytes.unwrap_or(1_000_000));
        self.sink_with(&limit)
    }

    async fn read(&self, destination: &str) -> Result<Vec<ReadRecord>, String> {
        read(&self.redis, destination).await
    }

    async fn kill(&mut self) {
        self.redis.kill().await;
    }

    async fn restart(&mut self) {
        self.redis.restart().await;
    }

    fn freeze(&self) {
        self.redis.freeze();
    }

    fn thaw(&self) {
        self.redis.thaw();
    }

    async fn allow(&mut self, allowed: bool) {
        self.redis.allow(allowed).await;
    }
}

/// All entries of a stream.
pub(super) async fn read(redis: &PrivateRedis, stream: &str) -> Result<Vec<ReadRecord>, String> {
    let answer = redis.admin(&format!("XRANGE {stream} - +")).await?;
    let mut rest = answer.as_str();
    let Value::Array(entries) = value(&mut rest)? else { return Err(answer) };
    Ok(entries.into_iter().zip(0..).map(|(entry, offset)| record(entry, offset)).collect())
}

enum Value {
    Text(String),
    Array(Vec<Value>),
}

/// Takes a value of RESP2 off the text.
fn value(rest: &mut &str) -> Result<Value, String> {
    let (line, behind) = rest.split_once("\r\n").ok_or("no line")?;
    *rest = behind;
    let (kind, length) = line.split_at_checked(1).ok_or("an empty line")?;
    let length: Result<usize, _> = length.parse();
    match (kind, length) {
        ("$", Ok(length)) => {
            let (text, behind) = rest.split_at_checked(length).ok_or("a short string")?;
            *rest = behind.strip_prefix("\r\n").ok_or("a long string")?;
            Ok(Value::Text(text.to_owned()))
        }
        ("*", Ok(length)) => {
            Ok(Value::Array((0..length).map(|_| value(rest)).collect::<Result<_, _>>()?))
        }
        _ => Err(line.to_owned()),
    }
}

/// An entry as docs/sinks/redis.md describes it.
fn record(entry: Value, offset: i64) -> ReadRecord {
    let Value::Array(parts) = entry else { panic!("an entry") };
    let Some(Value::Array(fields)) = parts.into_iter().nth(1) else { panic!("fields") };
    let mut texts = fields.into_iter().map(|field| match field {
        Value::Text(text) => text,
        Value::Array(_) => panic!("a field"),
    });
    let mut record = ReadRecord {
        partition: 0,
        offset,
        key: None,
        value: None,
        headers: Vec::new(),
        timestamp: None,
    };
    while let (Some(name), Some(text)) = (texts.next(), texts.next()) {
        match name.as_str() {
            "key" => record.key = Some(text.into_bytes()),
            "value" => record.value = Some(text.into_bytes()),
            "timestamp" => record.timestamp = text.parse().ok(),
            _ => {
                let name = name.strip_prefix("header:").unwrap_or(&name).to_owned();
                record.headers.push((name, Some(text.into_bytes())));
            }
        }
    }
    record
}

mod redis_7 {
    crate::sinks::conformance!(super::RedisServer<false>);
}

mod valkey_9 {
    crate::sinks::conformance!(super::RedisServer<true>);
}

mod valkey_9_exactly_once {
    crate::sinks::conformance!(super::RedisServer<true, true>);
}
