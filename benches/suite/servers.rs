//! The running servers, from the file of `scripts/servers`; SQL to one database at a time.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};
use tokio::runtime::Runtime;
use tokio_postgres::{Client, NoTls, SimpleQueryMessage, Statement};

/// Anything that takes longer than this has failed.
pub(crate) const DEADLINE: Duration = Duration::from_mins(10);

#[derive(Clone)]
pub(crate) struct Servers {
    pub(crate) socket: String,
    pub(crate) port: String,
    pub(crate) bin: String,
    pub(crate) data: PathBuf,
    pub(crate) brokers: String,
    pub(crate) broker_pid: u32,
    /// The directory that has the data of the servers.
    pub(crate) run: PathBuf,
    /// The programs of other brokers, by the names of their variables: `NATS_SERVER`.
    programs: BTreeMap<String, PathBuf>,
    /// PerfTest of RabbitMQ, if `scripts/bench` has fetched it.
    pub(crate) perf_test: PathBuf,
    /// Kafka Connect with Debezium, if `scripts/bench` has fetched it.
    pub(crate) connect: PathBuf,
    /// `benches/pgwire`, if `scripts/bench` has built it.
    pub(crate) pgwire: PathBuf,
    /// Configurations, logs and offsets of the processes.
    pub(crate) scratch: PathBuf,
}

impl Servers {
    pub(crate) fn find() -> Self {
        let target = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/target"));
        let file = std::env::var_os("POSTRIDER_SERVERS")
            .map_or_else(|| target.join("servers/env"), PathBuf::from);
        let text = fs::read_to_string(&file).expect("run scripts/servers up first");
        let get = |name: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(&format!("{name}=")));
            let line = line.unwrap_or_else(|| panic!("no {name} in {}", file.display()));
            line.trim_matches('\'').to_owned()
        };
        let scratch = target.join("bench");
        fs::create_dir_all(&scratch).expect("a directory for configurations");
        Self {
            socket: get("PG15_SOCKET"),
            port: get("PG15_PORT"),
            bin: get("PG15_BIN"),
            data: get("PG15_DATA").into(),
            brokers: get("KAFKA_BROKERS"),
            broker_pid: get("KAFKA_PID").parse().expect("a process id"),
            run: get("SERVERS_RUN").into(),
            programs: programs(
                &fs::read_to_string(target.join("bench-brokers")).unwrap_or(text.clone()),
            ),
            perf_test: target.join("perf-test"),
            connect: target.join("connect"),
            pgwire: target.join("pgwire/release/pgwire-reader"),
            scratch,
        }
    }

    /// The program of another broker: `NATS_SERVER`.
    pub(crate) fn program(&self, variable: &str) -> PathBuf {
        let program = self.programs.get(variable).cloned();
        program.unwrap_or_else(|| panic!("no {variable}: run scripts/servers brokers"))
    }
}

fn programs(text: &str) -> BTreeMap<String, PathBuf> {
    let lines = text.lines().filter_map(|line| line.split_once('='));
    let servers = lines.filter(|(name, _)| name.ends_with("_SERVER"));
    servers.map(|(name, path)| (name.to_owned(), path.trim_matches('\'').into())).collect()
}

/// One connection by unix socket.
pub(crate) struct Database {
    runtime: Runtime,
    client: Client,
}

impl Database {
    pub(crate) fn open(servers: &Servers, name: &str) -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.expect("a runtime");
        let url =
            format!("host={} port={} user=postgres dbname={name}", servers.socket, servers.port);
        let (client, connection) =
            runtime.block_on(tokio_postgres::connect(&url, NoTls)).expect("a connection");
        runtime.spawn(async move { drop(connection.await) });
        Self { runtime, client }
    }

    pub(crate) fn run(&self, sql: &str) {
        self.runtime
            .block_on(self.client.batch_execute(sql))
            .unwrap_or_else(|error| panic!("{sql}: {error:?}"));
    }

    /// The first column of the first row; empty without a row.
    pub(crate) fn text(&self, sql: &str) -> String {
        let rows = self.runtime.block_on(self.client.simple_query(sql));
        let rows = rows.unwrap_or_else(|error| panic!("{sql}: {error:?}"));
        let mut values = rows.iter().filter_map(|message| {
            if let SimpleQueryMessage::Row(row) = message { row.get(0) } else { None }
        });
        values.next().unwrap_or_default().to_owned()
    }

    pub(crate) fn prepare(&self, sql: &str) -> Statement {
        self.runtime.block_on(self.client.prepare(sql)).expect("a statement")
    }

    pub(crate) fn execute(&self, statement: &Statement, number: i64) {
        self.runtime.block_on(self.client.execute(statement, &[&number])).expect("rows written");
    }

    pub(crate) fn backend(&self) -> u32 {
        self.text("select pg_backend_pid()").parse().expect("a process id")
    }

    /// The process that streams from a slot.
    pub(crate) fn walsender(&self, slot: &str) -> Option<u32> {
        let sql = format!("select active_pid from pg_replication_slots where slot_name = '{slot}'");
        self.text(&sql).parse().ok()
    }

    pub(crate) fn copy_slot(&self, from: &str, to: &str) {
        self.drop_slot(to);
        self.text(&format!("select pg_copy_logical_replication_slot('{from}', '{to}')"));
    }

    /// Drops a slot when its last reader has disconnected; a killed process leaves a walsender for a moment.
    pub(crate) fn drop_slot(&self, slot: &str) {
        let since = Instant::now();
        while let Some(pid) = self.walsender(slot) {
            self.text(&format!("select pg_terminate_backend({pid})"));
            assert!(since.elapsed() < DEADLINE, "{slot} stays active");
            std::thread::sleep(Duration::from_millis(20));
        }
        let sql = "select pg_drop_replication_slot(slot_name) from pg_replication_slots where slot_name =";
        self.text(&format!("{sql} '{slot}'"));
    }
}

/// Waits for a state, which is checked at an interval.
pub(crate) fn wait_for<T>(what: &str, every: Duration, mut look: impl FnMut() -> Option<T>) -> T {
    let since = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(since.elapsed() < DEADLINE, "waited too long for {what}");
        std::thread::sleep(every);
    }
}
