//! The inbox in a consumer and in workers, in Rust. docs/sql/inbox-programs.md shows it, and `inbox_consumers` runs it.
#![expect(
    clippy::print_stderr,
    clippy::print_stdout,
    clippy::disallowed_methods,
    reason = "a program of its own, without Postrider's logger and tasks"
)]

// docs: begin
// The inbox in a consumer and in workers. Needs tokio-postgres and tokio, and DATABASE_URL.
//
// consumer is-new|advance|once CONSUMER < records    each effect once, behind Kafka
// consumer store INBOX < records                     store first ...
// consumer work INBOX WORKER                         ... and work in one transaction
// consumer ordered INBOX WORKER SECONDS              ... or with a lease

use std::collections::HashMap;
use std::time::Duration;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, Error, GenericClient, NoTls, Row, Transaction};

/// The name of the pipeline, if the records do not have it as a header.
const SOURCE: &str = "orders";
const BATCH_MESSAGES: i32 = 10;

type Failure = Box<dyn std::error::Error>;

/// A record of Kafka.
struct Record<'l> {
    offset: &'l str,
    topic: &'l str,
    key: &'l str,
    headers: HashMap<&'l str, &'l str>,
    value: &'l str,
}

impl<'l> Record<'l> {
    /// Stands for a client of Kafka: a record is a line of the standard input, its fields separated by tabs. Headers
    /// are NAME=VALUE, separated by commas.
    fn of(line: &'l str) -> Option<Self> {
        let mut fields = line.splitn(5, '\t');
        let (offset, topic, key) = (fields.next()?, fields.next()?, fields.next()?);
        let headers = fields.next()?.split(',').filter_map(|header| header.split_once('='));
        Some(Self { offset, topic, key, headers: headers.collect(), value: fields.next()? })
    }

    fn header(&self, name: &str) -> Option<&'l str> {
        self.headers.get(name).copied()
    }

    fn aggregate(&self) -> String {
        format!("{}/{}", self.topic, self.key)
    }

    /// Stands for the commit of the offset in Kafka.
    fn commit_offset(&self) {
        println!("{}", self.offset);
    }
}

/// A message of a stored inbox; `inbox_next` has more columns.
struct Message {
    event_id: String,
    aggregate: String,
    payload: String,
    claim: Option<i64>,
}

impl Message {
    fn of(row: &Row) -> Result<Self, Error> {
        Ok(Self {
            event_id: row.try_get("event_id")?,
            aggregate: row.try_get("aggregate_id")?,
            payload: row.try_get("payload")?,
            claim: row.try_get("claim")?,
        })
    }
}

/// Whether a function of the toolkit returns true. `query_typed` and `execute_typed` use no prepared statements, which
/// would not outlive a transaction behind a transaction pooler.
async fn ask(
    transaction: &Transaction<'_>,
    sql: &str,
    values: &[Option<&str>],
) -> Result<bool, Error> {
    let values: Vec<_> = values.iter().map(|value| (text(value), Type::TEXT)).collect();
    let rows = transaction.query_typed(sql, &values).await?;
    rows.first().map_or(Ok(false), |row| row.try_get(0))
}

fn text<T: ToSql + Sync>(value: &T) -> &(dyn ToSql + Sync) {
    value
}

/// Whatever is to happen once, in this database.
async fn effect(
    transaction: &Transaction<'_>,
    [event_id, aggregate, payload, done_by]: [&str; 4],
) -> Result<(), Error> {
    let insert = "INSERT INTO effect (event_id, aggregate_id, payload, done_by)
        VALUES ($1, $2, $3::jsonb, $4)";
    let values: [(&(dyn ToSql + Sync), Type); 4] = [
        (&event_id, Type::TEXT),
        (&aggregate, Type::TEXT),
        (&payload, Type::TEXT),
        (&done_by, Type::TEXT),
    ];
    transaction.execute_typed(insert, &values).await?;
    Ok(())
}

/// For all events of Postrider.
async fn is_new(
    transaction: &Transaction<'_>,
    consumer: &str,
    record: &Record<'_>,
) -> Result<bool, Error> {
    let (source, aggregate) = (record.header("source").unwrap_or(SOURCE), record.aggregate());
    let [id, position, history] = ["id", "position", "history"].map(|name| record.header(name));
    let values = [Some(consumer), Some(source), Some(&*aggregate), id, position, history];
    ask(transaction, "SELECT postrider.inbox_is_new($1, $2, $3, $4, $5, $6)", &values).await
}

/// For events that always have a position.
async fn advance(
    transaction: &Transaction<'_>,
    consumer: &str,
    record: &Record<'_>,
) -> Result<bool, Error> {
    let (source, aggregate) = (record.header("source").unwrap_or(SOURCE), record.aggregate());
    let values = [Some(consumer), Some(source), Some(&*aggregate), record.header("position")];
    ask(transaction, "SELECT postrider.inbox_advance($1, $2, $3, $4)", &values).await
}

/// For messages of other producers, with their own time if they have one.
async fn once(
    transaction: &Transaction<'_>,
    consumer: &str,
    record: &Record<'_>,
) -> Result<bool, Error> {
    let source = record.header("source").unwrap_or(record.topic);
    let values = [Some(consumer), Some(source), record.header("id"), record.header("time")];
    ask(transaction, "SELECT postrider.inbox_once($1, $2, $3, $4::timestamptz)", &values).await
}

async fn attempt(
    client: &mut Client,
    mode: &str,
    consumer: &str,
    record: &Record<'_>,
) -> Result<(), Failure> {
    let transaction = client.transaction().await?;
    let new = match mode {
        "is-new" => is_new(&transaction, consumer, record).await?,
        "advance" => advance(&transaction, consumer, record).await?,
        "once" => once(&transaction, consumer, record).await?,
        _ => return Err(format!("no mode {mode}").into()),
    };
    if new {
        let id = record.header("id").unwrap_or_default();
        effect(&transaction, [id, &record.aggregate(), record.value, consumer]).await?;
    }
    Ok(transaction.commit().await?)
}

async fn handle(
    client: &mut Client,
    mode: &str,
    consumer: &str,
    record: &Record<'_>,
) -> Result<(), Failure> {
    while let Err(error) = attempt(client, mode, consumer, record).await {
        if !error.downcast_ref().is_some_and(is_retry) || client.is_closed() {
            return Err(error);
        }
    }
    record.commit_offset();
    Ok(())
}

/// Stores a record, and nothing else. A repetition has the same `event_id`.
async fn store(client: &Client, inbox: &str, record: &Record<'_>) -> Result<(), Failure> {
    let (source, aggregate) = (record.header("source").unwrap_or(SOURCE), record.aggregate());
    let history = record.header("position").and_then(|position| position.get(..8));
    let history = history.or(record.header("history")).ok_or("no history")?;
    let event_id = format!("{source}/{history}/{}", record.header("id").ok_or("no id")?);
    let insert = format!(
        "INSERT INTO postrider_inbox.{inbox}
             (event_id, event_type, source, aggregate_id, payload, sequence_num)
         VALUES ($1, $2, $3, $4, $5::jsonb, $6::bigint) ON CONFLICT (event_id) DO NOTHING"
    );
    let values: [(&(dyn ToSql + Sync), Type); 6] = [
        (&event_id, Type::TEXT),
        (&record.header("type"), Type::TEXT),
        (&source, Type::TEXT),
        (&aggregate, Type::TEXT),
        (&record.value, Type::TEXT),
        (&record.header("sequence"), Type::TEXT),
    ];
    client.execute_typed(&insert, &values).await?;
    record.commit_offset();
    Ok(())
}

/// A worker of a stored inbox.
struct Worker<'n> {
    inbox: &'n str,
    name: &'n str,
}

impl Worker<'_> {
    async fn next(
        &self,
        client: &impl GenericClient,
        lease: Option<&str>,
    ) -> Result<Vec<Message>, Error> {
        let select = "SELECT event_id, aggregate_id, payload::text, claim
            FROM postrider.inbox_next($1, $2, $3, $4::interval)";
        let values: [(&(dyn ToSql + Sync), Type); 4] = [
            (&self.inbox, Type::TEXT),
            (&self.name, Type::TEXT),
            (&BATCH_MESSAGES, Type::INT4),
            (&lease, Type::TEXT),
        ];
        client.query_typed(select, &values).await?.iter().map(Message::of).collect()
    }

    async fn effect_and_done(
        &self,
        transaction: &Transaction<'_>,
        message: &Message,
    ) -> Result<(), Error> {
        let Message { event_id, aggregate, payload, .. } = message;
        effect(transaction, [event_id, aggregate, payload, self.name]).await?;
        let ids: &[&String] = &[event_id];
        let values: [(&(dyn ToSql + Sync), Type); 3] =
            [(&self.inbox, Type::TEXT), (&ids, Type::TEXT_ARRAY), (&message.claim, Type::INT8)];
        transaction.execute_typed("SELECT postrider.inbox_done($1, $2, $3)", &values).await?;
        Ok(())
    }

    async fn fail(
        &self,
        client: &impl GenericClient,
        message: &Message,
        error: &Error,
    ) -> Result<(), Error> {
        let reason = describe(error);
        eprintln!("failed: {} {reason}", message.event_id);
        let values: [(&(dyn ToSql + Sync), Type); 4] = [
            (&self.inbox, Type::TEXT),
            (&message.event_id, Type::TEXT),
            (&reason, Type::TEXT),
            (&message.claim, Type::INT8),
        ];
        client.query_typed("SELECT postrider.inbox_fail($1, $2, $3, $4)", &values).await?;
        Ok(())
    }

    /// A batch in one transaction. Returns how many messages it had.
    async fn work(&self, client: &mut Client) -> Result<usize, Error> {
        let mut transaction = client.transaction().await?;
        let batch = self.next(&transaction, None).await?;
        for message in &batch {
            let savepoint = transaction.savepoint("message").await?;
            match self.effect_and_done(&savepoint, message).await {
                Ok(()) => savepoint.commit().await?,
                Err(error) if is_retry(&error) => return Err(error),
                Err(error) => {
                    savepoint.rollback().await?; // fails if the connection is lost
                    self.fail(&transaction, message, &error).await?;
                }
            }
        }
        transaction.commit().await?;
        Ok(batch.len())
    }

    /// A batch with a lease, and a transaction for each message. Returns how many messages it had.
    async fn work_with_lease(&self, client: &mut Client, seconds: &str) -> Result<usize, Error> {
        let batch = self.next(client, Some(&format!("{seconds} seconds"))).await?;
        for message in &batch {
            match self.work_on(client, message).await {
                // Another worker has the message since the lease ended. The effect is rolled back.
                Err(error) if is_lost(&error) => eprintln!("lost: {} PR114", message.event_id),
                result => result?,
            }
        }
        Ok(batch.len())
    }

    async fn work_on(&self, client: &mut Client, message: &Message) -> Result<(), Error> {
        loop {
            let transaction = client.transaction().await?;
            let error = match self.effect_and_done(&transaction, message).await {
                Ok(()) => match transaction.commit().await {
                    Ok(()) => return Ok(()),
                    Err(error) => error,
                },
                Err(error) => {
                    transaction.rollback().await?; // fails if the connection is lost
                    error
                }
            };
            if is_lost(&error) {
                return Err(error);
            }
            if !is_retry(&error) {
                return self.fail(client, message, &error).await;
            }
        }
    }
}

/// SQLSTATE and message, if the error is the server's.
fn describe(error: &Error) -> String {
    error.as_db_error().map_or_else(
        || error.to_string(),
        |refused| format!("{} {}", refused.code().code(), refused.message()),
    )
}

fn is_retry(error: &Error) -> bool {
    error.code().is_some_and(|code| ["40001", "40P01"].contains(&code.code()))
}

fn is_lost(error: &Error) -> bool {
    error.code().is_some_and(|code| code.code() == "PR114")
}

async fn run(client: &mut Client, words: &[&str]) -> Result<(), Failure> {
    match *words {
        ["work" | "ordered", inbox, name, ref lease @ ..] => {
            let worker = Worker { inbox, name };
            let mut idle = tokio::time::interval(Duration::from_millis(500));
            loop {
                let count = match lease.first() {
                    None => worker.work(client).await,
                    Some(seconds) => worker.work_with_lease(client, seconds).await,
                };
                match count {
                    Err(error) if !is_retry(&error) => return Err(error.into()),
                    Ok(0) => drop(idle.tick().await),
                    Ok(_) | Err(_) => {}
                }
            }
        }
        [mode, name] => {
            for line in std::io::stdin().lines() {
                let line = line?;
                let record = Record::of(&line).ok_or("a line is not a record")?;
                match mode {
                    "store" => store(client, name, &record).await?,
                    _ => handle(client, mode, name, &record).await?,
                }
            }
            Ok(())
        }
        _ => Err("usage: consumer MODE NAME".into()),
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Failure> {
    let url = std::env::var("DATABASE_URL")?;
    let (mut client, connection) = tokio_postgres::connect(&url, NoTls).await?;
    // Its error is also that of the statement which runs.
    tokio::spawn(connection);
    let words: Vec<String> = std::env::args().skip(1).collect();
    run(&mut client, &words.iter().map(String::as_str).collect::<Vec<_>>()).await
}
// docs: end
