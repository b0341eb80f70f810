//! Consumer groups in SQL: what sql/toolkit promises, what bad input gets, crowds of consumers that are killed and
//! stopped, and the times that were asked for.

mod arguments;
mod around;
mod crowd;
mod errors;
mod evictions;
mod feed;
mod gates;
mod isolation;
mod maintenance;
mod promises;

use crate::server::{Client, Database, Version};
use crate::toolkit::install_toolkit;
use tokio_postgres::SimpleQueryMessage;

/// The outbox table that `log_feed` reads.
const OUTBOX: &str = "create table public.outbox (id bigint generated always as identity primary key,
    aggregate_type text not null, aggregate_id text not null, event_type text not null, payload json, headers json,
    created_at timestamptz not null default now())";

/// A database with the toolkit, an outbox, and the log `orders`.
pub(crate) struct GroupDatabase {
    pub(crate) database: Database,
    pub(crate) sql: Client,
}

/// What a poll returned.
#[derive(PartialEq, Eq, Debug, Default)]
pub(crate) struct Polled {
    /// 0 if there was no row.
    pub(crate) lease: i64,
    /// The numbers of the events, in the order of the rows.
    pub(crate) seqs: Vec<i64>,
    pub(crate) parts: Vec<i64>,
    pub(crate) aggregates: Vec<String>,
    pub(crate) deliveries: Vec<i64>,
}

impl Polled {
    /// The last event of the batch.
    pub(crate) fn end(&self) -> i64 {
        self.seqs.last().copied().expect("a batch")
    }

    /// The partitions of the batch, each once.
    fn partitions(&self) -> Vec<i64> {
        let mut parts = self.parts.clone();
        parts.sort_unstable();
        parts.dedup();
        parts
    }
}

impl GroupDatabase {
    /// With a log of 16 partitions.
    pub(crate) async fn create(version: Version, test: &str) -> Self {
        Self::with_log(version, test, "select postrider.create_log('orders')").await
    }

    /// With a log of its own.
    async fn with_log(version: Version, test: &str, log: &str) -> Self {
        let database = Database::create(version, test).await;
        let sql = database.connect().await;
        install_toolkit(&sql, "postgres").await;
        sql.batch(OUTBOX).await;
        sql.batch(log).await;
        Self { database, sql }
    }

    /// Appends events of aggregates `0` to `aggregates - 1` in turn.
    pub(crate) async fn append(&self, events: usize, aggregates: usize) {
        append(&self.sql, events, aggregates).await;
    }

    pub(crate) async fn connect(&self) -> Client {
        self.database.connect().await
    }

    /// Creates a group that reads the log from its beginning.
    pub(crate) async fn group(&self, name: &str) {
        self.sql
            .batch(&format!(
                "select postrider.create_consumer_group('{name}', 'orders', 'earliest')"
            ))
            .await;
    }

    pub(crate) async fn poll(&self, group: &str, consumer: &str, max: usize) -> Polled {
        poll(&self.sql, group, consumer, max, 30).await
    }

    async fn commit(&self, group: &str, consumer: &str, polled: &Polled) {
        self.sql.batch(&commit_text(group, consumer, polled.end(), polled.lease)).await;
    }

    /// Polls and commits until there is nothing left; the events in the order in which they came.
    async fn drain(&self, group: &str, consumer: &str) -> Vec<i64> {
        let mut seqs = Vec::new();
        loop {
            let polled = self.poll(group, consumer, 500).await;
            if polled.lease == 0 {
                return seqs;
            }
            self.commit(group, consumer, &polled).await;
            seqs.extend(polled.seqs);
        }
    }

    pub(crate) async fn number(&self, sql: &str) -> i64 {
        number(&self.sql, sql).await
    }

    pub(crate) async fn lag(&self, group: &str) -> i64 {
        self.number(&format!("select sum(lag) from postrider.consumer_lag('{group}')")).await
    }

    /// Lets every lease of a consumer run out, as if its time had passed.
    async fn run_out(&self, consumer: &str) {
        let sql = format!(
            "update postrider.consumer_group_state set lease_from = lease_from - interval '1 hour', \
             lease_until = lease_until - interval '1 hour' where consumer = '{consumer}'"
        );
        self.sql.batch(&sql).await;
    }
}

/// Appends events of aggregates `0` to `aggregates - 1` in turn.
pub(crate) async fn append(sql: &Client, events: usize, aggregates: usize) {
    sql.batch(&format!(
        "insert into public.outbox (aggregate_type, aggregate_id, event_type, payload) \
         select 'order', (i % {aggregates})::text, 'Written', json_build_object('n', i) \
         from generate_series(1, {events}) i"
    ))
    .await;
    // No more at a time than a child of the table takes.
    let feed = "select postrider.log_feed('orders', 'public.outbox', least(50000, rows_per_child)::int) \
        from postrider.event_log where name = 'orders'";
    while number(sql, feed).await > 0 {}
}

pub(crate) async fn poll(
    sql: &Client,
    group: &str,
    consumer: &str,
    max: usize,
    seconds: u32,
) -> Polled {
    let text = poll_text(group, consumer, max, seconds);
    read_poll(&rows(sql, &text).await)
}

pub(crate) fn poll_text(group: &str, consumer: &str, max: usize, seconds: u32) -> String {
    format!(
        "select lease, seq, part, aggregate_id, deliveries \
         from postrider.poll_outbox('{group}', '{consumer}', {max}, {seconds})"
    )
}

pub(crate) fn commit_text(group: &str, consumer: &str, offset: i64, lease: i64) -> String {
    format!("select postrider.commit_offset('{group}', '{consumer}', {offset}, {lease})")
}

pub(crate) fn read_poll(rows: &[Vec<Option<String>>]) -> Polled {
    let mut polled = Polled::default();
    for row in rows {
        let number =
            |column: usize| row[column].as_deref().expect("a value").parse().expect("a number");
        polled.lease = number(0);
        polled.seqs.push(number(1));
        polled.parts.push(number(2));
        polled.aggregates.push(row[3].clone().expect("an aggregate"));
        polled.deliveries.push(number(4));
    }
    polled
}

/// The rows of a query that must succeed.
pub(crate) async fn rows(sql: &Client, text: &str) -> Vec<Vec<Option<String>>> {
    let answer = sql.simple_query(text).await;
    read_rows(&answer.unwrap_or_else(|error| panic!("{text}: {error:?}")))
}

pub(crate) fn read_rows(messages: &[SimpleQueryMessage]) -> Vec<Vec<Option<String>>> {
    let rows = messages.iter().filter_map(|message| {
        if let SimpleQueryMessage::Row(row) = message { Some(row) } else { None }
    });
    rows.map(|row| (0..row.len()).map(|i| row.get(i).map(str::to_owned)).collect()).collect()
}

pub(crate) async fn number(sql: &Client, text: &str) -> i64 {
    sql.text(text).await.unwrap_or_else(|| panic!("{text}: null")).parse().expect("a number")
}

/// The SQLSTATE of a statement that must fail. Errors of the toolkit must say what to do.
pub(crate) async fn refused(sql: &Client, text: &str) -> String {
    let error =
        sql.simple_query(text).await.err().unwrap_or_else(|| panic!("it succeeded: {text}"));
    let error = error.as_db_error().unwrap_or_else(|| panic!("{text}: {error:?}")).clone();
    let code = error.code().code().to_owned();
    if code.starts_with("PR") || code == "22023" {
        assert!(error.hint().is_some(), "no hint: {text}: {error:?}");
    }
    code
}
