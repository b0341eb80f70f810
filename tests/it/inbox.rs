//! The inbox in SQL: what a consumer has done is done once, inboxes that store messages first, their order, crowds of
//! workers that are killed and stopped, and the times that were asked for.

mod crowd;
mod gates;
mod once;
mod ordered;
mod store;

use crate::await_that::{SOON, await_that};
use crate::groups::{number, refused, rows};
use crate::server::{Client, Database, Version};
use crate::toolkit::install_toolkit;
use tokio::task::JoinSet;

/// A database with the toolkit.
struct InboxDatabase {
    database: Database,
    sql: Client,
}

/// The first value of an answer, or the SQLSTATE of the refusal.
type Answer = Result<Option<String>, String>;

/// A call in a session of its own that waits for another session.
struct Waiting {
    call: JoinSet<Answer>,
}

impl Waiting {
    /// What it answers when it need not wait any more.
    async fn end(mut self) -> Answer {
        self.call.join_next().await.expect("the call").expect("its end")
    }
}

/// What `inbox_next` gave out.
#[derive(PartialEq, Eq, Debug, Default)]
struct Given {
    ids: Vec<String>,
    /// NULL of every row in lock mode.
    claim: Option<i64>,
    aggregates: Vec<String>,
    /// 0 of a message without a number.
    numbers: Vec<i64>,
}

impl InboxDatabase {
    async fn create(version: Version, test: &str) -> Self {
        let database = Database::create(version, test).await;
        let sql = database.connect().await;
        install_toolkit(&sql, "postgres").await;
        Self { database, sql }
    }

    /// With the inbox `jobs`.
    async fn with_inbox(version: Version, test: &str) -> Self {
        let world = Self::create(version, test).await;
        world.sql.batch("select postrider.create_inbox('jobs')").await;
        world
    }

    /// With the inbox `jobs`, ordered by `sequence` or `arrival`.
    async fn ordered(version: Version, test: &str, by: &str) -> Self {
        let world = Self::with_inbox(version, test).await;
        world.sql.batch(&format!("select postrider.enable_inbox_ordering('jobs', '{by}')")).await;
        world
    }

    async fn connect(&self) -> Client {
        self.database.connect().await
    }

    async fn number(&self, text: &str) -> i64 {
        number(&self.sql, text).await
    }

    /// The value of a function that returns a boolean.
    async fn yes(&self, call: &str) -> bool {
        yes(&self.sql, call).await
    }

    async fn refused(&self, call: &str) -> String {
        refused(&self.sql, &format!("select * from postrider.{call}")).await
    }

    /// Begins a call of `postrider` in a session of its own, and returns when it waits for another session.
    async fn waiting(&self, call: &str) -> Waiting {
        let sql = self.connect().await;
        let pid = number(&sql, "select pg_backend_pid()").await;
        let text = format!("select postrider.{call}");
        let mut call = JoinSet::new();
        call.spawn(async move { answer(&sql, &text).await });
        let blocked = format!("select cardinality(pg_blocking_pids({pid}))");
        let look = self.connect().await;
        await_that("the call to wait for another session", SOON, || async {
            if number(&look, &blocked).await > 0 { Ok(()) } else { Err("it waits for nobody") }
        })
        .await;
        Waiting { call }
    }

    /// Adds messages `m1`, `m2` … without an aggregate.
    async fn add(&self, messages: std::ops::RangeInclusive<usize>) {
        let (from, to) = (messages.start(), messages.end());
        self.sql
            .batch(&format!(
                "insert into postrider_inbox.jobs (event_id, event_type, payload) \
                 select 'm' || i, 'Written', jsonb_build_object('n', i) from generate_series({from}, {to}) i"
            ))
            .await;
    }

    async fn next(&self, worker: &str, max: usize, lease: Option<&str>) -> Given {
        next(&self.sql, worker, max, lease).await
    }

    /// Processes messages that were given out.
    async fn done(&self, given: &Given) {
        self.sql.batch(&format!("select postrider.{}", done(&given.ids, given.claim))).await;
    }

    /// Lets the lease of every claimed message run out, as if its time had passed.
    async fn run_out(&self) {
        self.sql
            .batch(
                "update postrider_inbox.jobs set due_at = clock_timestamp() where claim is not null;
                 update postrider.inbox_order set due_at = clock_timestamp() where due_at <> 'infinity'",
            )
            .await;
    }

    /// The keys of `inbox_health`, separated by spaces.
    async fn health(&self, keys: &[&str]) -> String {
        let fields = keys.iter().map(|key| format!("h ->> '{key}'")).collect::<Vec<_>>().join(", ");
        let text = format!(
            "select concat_ws(' ', {fields}) from postrider.inbox_health('jobs') as health(h)"
        );
        self.sql.text(&text).await.expect("a row")
    }
}

async fn yes(sql: &Client, call: &str) -> bool {
    let text = format!("select postrider.{call}");
    match sql.text(&text).await.as_deref() {
        Some("t") => true,
        Some("f") => false,
        other => panic!("{text}: {other:?}"),
    }
}

async fn answer(sql: &Client, text: &str) -> Answer {
    match sql.simple_query(text).await {
        Ok(messages) => Ok(crate::groups::read_rows(&messages)
            .into_iter()
            .next()
            .and_then(|row| row.into_iter().next().flatten())),
        Err(error) => {
            Err(error.code().map_or_else(|| format!("{error:?}"), |code| code.code().to_owned()))
        }
    }
}

/// Text between quotes.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}

fn array(ids: &[String]) -> String {
    let ids: Vec<String> = ids.iter().map(|id| quoted(id)).collect();
    format!("array[{}]::text[]", ids.join(", "))
}

fn next_text(worker: &str, max: usize, lease: Option<&str>) -> String {
    let lease = lease.map_or_else(|| "null".to_owned(), quoted);
    format!(
        "select event_id, claim, aggregate_id, coalesce(sequence_num, 0) \
         from postrider.inbox_next('jobs', '{worker}', {max}, {lease})"
    )
}

fn read_given(rows: &[Vec<Option<String>>]) -> Given {
    let mut given = Given::default();
    for row in rows {
        given.ids.push(row[0].clone().expect("an id"));
        given.claim = row[1].as_deref().map(|claim| claim.parse().expect("a number"));
        given.aggregates.push(row[2].clone().unwrap_or_default());
        given.numbers.push(row[3].as_deref().expect("a value").parse().expect("a number"));
    }
    given
}

async fn next(sql: &Client, worker: &str, max: usize, lease: Option<&str>) -> Given {
    read_given(&rows(sql, &next_text(worker, max, lease)).await)
}

fn or_null(claim: Option<i64>) -> String {
    claim.map_or_else(|| "null".to_owned(), |claim| claim.to_string())
}

fn done(ids: &[String], claim: Option<i64>) -> String {
    format!("inbox_done('jobs', {}, {})", array(ids), or_null(claim))
}

fn fail(id: &str, claim: Option<i64>, retry_after: &str) -> String {
    let id = quoted(id);
    format!("inbox_fail('jobs', {id}, 'it broke', {}, {retry_after})", or_null(claim))
}

/// `replay_inbox_messages` or `skip_inbox_messages` of ids.
fn replay(ids: &[&str]) -> String {
    format!("replay_inbox_messages('jobs', {})", array(&owned(ids)))
}

fn skip(ids: &[&str]) -> String {
    format!("skip_inbox_messages('jobs', {}, 'not needed')", array(&owned(ids)))
}

fn owned(ids: &[&str]) -> Vec<String> {
    ids.iter().map(|id| (*id).to_owned()).collect()
}
