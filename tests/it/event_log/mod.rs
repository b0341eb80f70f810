//! The sink `postgres`: each event is in its log once, and in the order of the commits, whatever ends.

mod alone;
mod crashes;
mod logs;
mod refused;

use crate::await_that::{SOON, await_that};
use crate::ledger::Ledger;
use crate::load::Plan;
use crate::relay::{Relay, postrider_ok};
use crate::server::{Client, Database, Version, unique};
use crate::toolkit::install_toolkit;
use crate::topic::ReadRecord;
use tokio_postgres::SimpleQueryMessage;

/// Where the log is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum LogAt {
    /// In the database of the outbox.
    Source,
    /// In another database of the same server.
    Other,
}

/// One outbox, one log, one configuration.
struct LogPipeline {
    name: String,
    url: String,
    log_url: String,
    config: String,
    /// A session in the database of the outbox.
    sql: Client,
    /// A session in the database of the log.
    log: Client,
    /// Kept for their ends.
    databases: Vec<Database>,
}

/// Settings of `[pipelines.NAME.sink.postgres.create]` that the tests use.
const CREATE: &str = "[.sink.postgres.create]\npartitions = 4\nrows_per_child = 1000\n";

impl LogPipeline {
    /// On the shared servers, in databases of its own. `more`: further TOML, with `[.` for `[pipelines.NAME.`.
    async fn shared(version: Version, test: &str, at: LogAt, more: &str) -> Self {
        let source = Database::create(version, test).await;
        let (url, mut databases) = (source.socket_url(), vec![source]);
        let log_url = match at {
            LogAt::Source => url.clone(),
            LogAt::Other => {
                let other = Database::create(version, &format!("{test}_log")).await;
                let url = other.socket_url();
                databases.push(other);
                url
            }
        };
        let mut pipeline = Self::on(&url, &log_url, test, more).await;
        pipeline.databases = databases;
        pipeline
    }

    /// In these databases: creates the outbox, and installs the toolkit.
    async fn on(url: &str, log_url: &str, test: &str, more: &str) -> Self {
        Self::with_layout((url, log_url), test, ("postrider", "outbox"), more).await
    }

    /// The same with another layout and its table.
    async fn with_layout(
        (url, log_url): (&str, &str),
        test: &str,
        (layout, table): (&str, &str),
        more: &str,
    ) -> Self {
        let name = unique(test);
        let to = if url == log_url { String::new() } else { format!("url = \"{log_url}\"\n") };
        let config = format!(
            "[pipelines.{name}]\n\
             [pipelines.{name}.source]\nurl = \"{url}\"\n\
             [pipelines.{name}.outbox]\nlayout = \"{layout}\"\ntable = \"public.{table}\"\n\
             [pipelines.{name}.route]\ntopic = \"orders\"\n\
             [pipelines.{name}.sink]\nkind = \"postgres\"\n\
             [pipelines.{name}.sink.postgres]\n{to}{}",
            more.replace("[.", &format!("[pipelines.{name}.")),
        );
        postrider_ok(&config, &["setup", "--create-table"]);
        let sql = Client::connect(url).await.expect("a session");
        let log = Client::connect(log_url).await.expect("a session");
        install_toolkit(&log, "postgres").await;
        let (url, log_url) = (url.to_owned(), log_url.to_owned());
        Self { name, url, log_url, config, sql, log, databases: Vec::new() }
    }

    fn run(&self) -> Relay {
        Relay::spawn(&self.config)
    }

    fn plan(&self) -> Plan {
        Plan::new(&self.url, "order")
    }

    /// Inserts `count` events of ten aggregates, in one transaction; payloads count from 1.
    async fn insert(&self, count: usize) {
        let sql = format!(
            "insert into public.outbox (aggregate_type, aggregate_id, event_type, payload) \
             select 'order', (i % 10)::text, 'Written', to_json(i) from generate_series(1, {count}) i"
        );
        self.sql.batch(&sql).await;
    }

    /// The number of events in the log, over a new session: the server may have been killed.
    async fn count(&self, log: &str) -> Result<usize, String> {
        let session = Client::connect(&self.log_url).await.map_err(|error| error.to_string())?;
        let sql = format!("select last_seq::text from postrider.log_head('{log}')");
        let count = session.text(&sql).await.ok_or("no such log")?;
        count.parse().map_err(|error| format!("{error}"))
    }

    /// Waits until the log has this many events.
    async fn await_count(&self, log: &str, wanted: usize) {
        await_that(&format!("{wanted} events in log {log}"), SOON, || async {
            match self.count(log).await {
                Ok(found) if found == wanted => Ok(()),
                other => Err(format!("{other:?}")),
            }
        })
        .await;
    }

    /// Everything committed so far is resolved, and the source knows.
    async fn resolved(&self) {
        let end = self.sql.text("select pg_current_wal_lsn()::text").await.unwrap();
        let sql = format!(
            "select confirmed_flush_lsn >= '{end}' from pg_replication_slots where slot_name = 'postrider_{}'",
            self.name
        );
        await_that("all to be confirmed", SOON, || async {
            match self.sql.text(&sql).await.as_deref() {
                Some("t") => Ok(()),
                other => Err(format!("{other:?}")),
            }
        })
        .await;
    }

    /// The events of the log as records, after everything is checked that must hold of any log.
    async fn records(&self, log: &str) -> Vec<ReadRecord> {
        let session = Client::connect(&self.log_url).await.expect("a session");
        assert_sound(&session, log).await;
        records(&session, log).await
    }

    /// Waits until all of the ledger has arrived, and compares: each event once, each aggregate in order.
    async fn assert_exactly_once(&self, ledger: &Ledger) {
        self.await_count("orders", ledger.committed()).await;
        ledger.check(&self.records("orders").await).assert_balanced(0);
    }
}

/// The name of the log's table.
async fn table_of(sql: &Client, log: &str) -> String {
    let sql_text = format!(
        "select format('postrider_log.%I', table_name) from postrider.event_log where name = '{log}'"
    );
    sql.text(&sql_text).await.expect("the log")
}

/// As [`assert_counted`], and positions rise with the numbers: no event was parked.
async fn assert_sound(sql: &Client, log: &str) {
    assert_counted(sql, log).await;
    let swapped = format!(
        "select count(*)::text from (select seq, (history, commit_lsn, ordinal) p, \
           lag((history, commit_lsn, ordinal)) over (order by seq) q from {} where commit_lsn is not null) x \
         where p <= q",
        table_of(sql, log).await
    );
    assert_eq!(sql.text(&swapped).await.unwrap(), "0", "positions do not rise");
}

/// Numbers without a gap, heads and counts that are those of the table, and every event in its hash partition.
async fn assert_counted(sql: &Client, log: &str) {
    let table = table_of(sql, log).await;
    let dense = format!(
        "select count(*) || ' events, 1 to ' || coalesce(max(seq), 0) || ' from ' || coalesce(min(seq), 1) from {table}"
    );
    let last = format!("select last_seq::text from postrider.log_head('{log}')");
    let last = sql.text(&last).await.expect("the log");
    assert_eq!(sql.text(&dense).await.unwrap(), format!("{last} events, 1 to {last} from 1"));
    let wrong = format!(
        "select count(*)::text from postrider.log_head('{log}') h, \
           generate_subscripts(h.heads, 1) i left join (select part, count(*) n, max(seq) last from {table} \
           group by part) e on e.part = i - 1 \
         where h.heads[i] <> coalesce(e.last, 0) or h.counts[i] <> coalesce(e.n, 0)"
    );
    assert_eq!(sql.text(&wrong).await.unwrap(), "0", "heads or counts are wrong");
    let astray = format!(
        "select count(*)::text from {table} e, postrider.event_log l where l.name = '{log}' \
         and e.part <> postrider.hash_partition(coalesce(e.aggregate_id, e.event_id), l.partitions)"
    );
    assert_eq!(sql.text(&astray).await.unwrap(), "0", "events are in another hash partition");
}

/// The events of a log, as records of a topic are read.
async fn records(sql: &Client, log: &str) -> Vec<ReadRecord> {
    let query = format!(
        "select seq, part, postrider.position_text(history, commit_lsn, ordinal), event_id, event_type, aggregate_id, \
         payload, headers from {} order by seq",
        table_of(sql, log).await
    );
    let messages = sql.simple_query(&query).await.expect("the log");
    let rows = messages.iter().filter_map(|message| {
        if let SimpleQueryMessage::Row(row) = message { Some(row) } else { None }
    });
    rows.map(|row| {
        let bytes = |at: usize| row.get(at).map(|text| text.as_bytes().to_vec());
        let number = |at: usize| row.get(at).and_then(|text| text.parse().ok()).unwrap_or(-1);
        ReadRecord {
            partition: i32::try_from(number(1)).unwrap(),
            offset: number(0),
            key: bytes(5),
            value: bytes(6),
            headers: [("id", 3), ("type", 4), ("position", 2), ("headers", 7)]
                .map(|(name, at)| (name.to_owned(), bytes(at)))
                .to_vec(),
            timestamp: None,
        }
    })
    .collect()
}
