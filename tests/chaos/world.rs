//! Everything that runs in a test: servers, relays, proxies, writers, a reader.

use crate::cluster::Cluster;
use crate::disk::Disk;
use crate::plan::{Act, Lane};
use crate::private::PrivatePostgres;
use crate::reader::{Read, Tail, read_all};
use crate::relay::postrider_ok;
use crate::relays::{PIPELINE, RELAYS, Reads, Relay};
use crate::server::{Client, Version, servers, unique};
use crate::truth::{self, Tape};
use crate::writer::Writers;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Bytes of a batch that the main topic accepts: normally, without poison events; and raised, to let them through.
pub(crate) const LIMIT: u32 = 20_000;
pub(crate) const RAISED_LIMIT: u32 = 1_000_000;

/// Number of writers to the main topic, and events a second of each.
const WRITERS: usize = 3;
const RATE: u32 = 150;

/// A fault, for the picture.
#[derive(Clone, Debug)]
pub(crate) struct Deed {
    pub(crate) lane: Lane,
    pub(crate) act: Act,
    /// Time since the start.
    pub(crate) from: Duration,
    pub(crate) to: Duration,
    /// What was affected, and the result.
    pub(crate) note: String,
}

/// Everything.
pub(crate) struct World {
    /// Dropped first: a mounted directory can't be removed.
    pub(crate) disk: Disk,
    pub(crate) version: Version,
    pub(crate) began: Instant,
    pub(crate) postgres: PrivatePostgres,
    pub(crate) cluster: Cluster,
    pub(crate) relays: Vec<Relay>,
    pub(crate) writers: Writers,
    pub(crate) tail: Tail,
    /// What the database committed.
    pub(crate) truth: Tape,
    /// Prefix of all topic names.
    pub(crate) topics: String,
    /// Directory of the logs.
    out: PathBuf,
    /// Records of topics that were deleted.
    pub(crate) archive: Vec<Read>,
    pub(crate) deeds: Vec<Deed>,
    /// Findings besides those of the ledger.
    pub(crate) findings: Vec<String>,
}

impl World {
    /// Starts everything; the output of the relays goes to `out`.
    pub(crate) async fn start(seed: u64, version: Version, reads: Reads, out: &Path) -> Self {
        let dir: PathBuf = servers().private_dir().join(unique("chaos"));
        fs::create_dir_all(&dir).expect("a directory");
        let durable = "fsync = on\nfull_page_writes = on\nmax_wal_size = 2GB\n\
                       log_replication_commands = on\nlog_line_prefix = '%m [%p] '";
        let (postgres, cluster) =
            tokio::join!(PrivatePostgres::start(version, durable), Cluster::start(&dir));
        let sql = postgres.connect().await;
        // IDs come from the writers: a sequence may return a number twice, one of them rolled back before a crash.
        sql.batch(
            "create table outbox (id text primary key, aggregate_type text not null, aggregate_id text not null, \
             event_type text not null, payload json, headers json, created_at timestamptz not null default clock_timestamp())",
        )
        .await;
        let topics = unique("chaos");
        let mut relays = Vec::new();
        for number in 0..RELAYS {
            let relay = Relay::new(number, out, postgres.port);
            relay.configure(&cluster.of_relay(number), &topics, reads);
            relays.push(relay);
        }
        for topic in ["main", "side"] {
            cluster.create_topic(&format!("{topics}.{topic}")).await;
        }
        let main = format!("{topics}.main");
        cluster.limit(&main, LIMIT).await;
        let config = fs::read_to_string(relays[0].config()).expect("a configuration");
        let setup = tokio::task::spawn_blocking(move || postrider_ok(&config, &["setup"]));
        setup.await.expect("setup");
        let disk = Disk::mount(&dir, &postgres, &sql).await;
        truth::begin(&sql).await;
        for relay in &mut relays {
            relay.start();
        }
        let writers = Writers::start(&postgres.url(), WRITERS, RATE, seed);
        let tail = Tail::start(&cluster.direct(), &main);
        let (archive, deeds, findings) = (Vec::new(), Vec::new(), Vec::new());
        let began = Instant::now();
        Self {
            version,
            began,
            postgres,
            cluster,
            relays,
            disk,
            writers,
            tail,
            truth: Tape::default(),
            topics,
            out: out.to_owned(),
            archive,
            deeds,
            findings,
        }
    }

    pub(crate) fn main(&self) -> String {
        format!("{}.main", self.topics)
    }

    pub(crate) fn side(&self) -> String {
        format!("{}.side", self.topics)
    }

    /// A session that goes directly to the server.
    pub(crate) async fn sql(&self) -> Client {
        self.postgres.connect().await
    }

    /// The relay that streams or polls, or the first one.
    pub(crate) async fn active(&self) -> usize {
        for (number, relay) in self.relays.iter().enumerate() {
            let status = relay.status().await.unwrap_or_default();
            if matches!(status["state"].as_str(), Some("streaming" | "catching_up" | "polling")) {
                return number;
            }
        }
        0
    }

    /// Relays that ended without being stopped are findings, and are started again.
    pub(crate) fn restart_ended_relays(&mut self) {
        for relay in &mut self.relays {
            self.findings.extend(relay.unexpected_end());
        }
    }

    /// Waits until everything committed so far is confirmed, and nothing is parked.
    pub(crate) async fn settled(&self) {
        drop(self.settled_within(Duration::MAX).await);
    }

    /// The same with a deadline, at which it fails.
    pub(crate) async fn settle(&self, deadline: Duration) {
        self.cluster.limit(&self.main(), RAISED_LIMIT).await;
        if let Err(seen) = self.settled_within(deadline).await {
            self.keep_logs(&self.out);
            let logs: Vec<String> = self.relays.iter().map(|r| last_lines(&r.log(), 12)).collect();
            panic!("not all is confirmed after {deadline:?}: {seen}\n{}", logs.join("\n"));
        }
    }

    async fn settled_within(&self, deadline: Duration) -> Result<(), String> {
        let sql = self.sql().await;
        let end = sql.text("select pg_current_wal_lsn()::text").await.expect("a position");
        // In a quiet database a relay leaves the last 4 kB unconfirmed: its own rows.
        let more = "select pg_logical_emit_message(true, 'elsewhere', repeat('x', 8192))::text";
        sql.text(more).await.expect("a position");
        let question = format!(
            "select coalesce(confirmed_flush_lsn >= '{end}', false) and not exists (select from postrider.parked \
             where state not in ('done', 'skipped')), coalesce(confirmed_flush_lsn::text, 'none') || ' of {end}, parked ' || \
             (select count(*) from postrider.parked where state not in ('done', 'skipped')) \
             from pg_replication_slots where slot_name = 'postrider_{PIPELINE}'"
        );
        let began = Instant::now();
        let mut ticks = tokio::time::interval(Duration::from_millis(200));
        loop {
            ticks.tick().await;
            let row = sql.query_opt(&question, &[]).await.expect("an answer");
            let (settled, seen): (bool, String) =
                row.map_or((false, "no slot".to_owned()), |row| (row.get(0), row.get(1)));
            if settled {
                return Ok(());
            }
            if began.elapsed() > deadline {
                return Err(seen);
            }
        }
    }

    /// Copies the servers' logs.
    pub(crate) fn keep_logs(&self, out: &Path) {
        let log = |dir: &Path| dir.join("log");
        if let Some(dir) = self.postgres.data().parent() {
            drop(fs::copy(log(dir), out.join("postgres.log")));
        }
        for (number, broker) in self.cluster.brokers.iter().enumerate() {
            drop(fs::copy(log(&broker.dir), out.join(format!("broker-{}.log", number + 1))));
        }
    }

    /// Stops writers and relays, and reads every topic to its end.
    pub(crate) async fn read_all(&mut self) -> Vec<Read> {
        let direct = self.cluster.direct();
        let mut records = read_all(&direct, &self.main()).await;
        records.append(&mut self.archive);
        records.extend(read_all(&direct, &self.side()).await);
        records
    }
}

fn last_lines(text: &str, lines: usize) -> String {
    let all: Vec<&str> = text.lines().collect();
    all[all.len().saturating_sub(lines)..].join("\n")
}
