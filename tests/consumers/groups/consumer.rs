//! Poll, work, commit. Usage: consumer GROUP CONSUMER, with DATABASE_URL. Needs tokio-postgres, tokio and fastrand.
#![expect(
    clippy::print_stderr,
    clippy::disallowed_methods,
    reason = "a program of its own, without Postrider's logger and tasks"
)]

// docs: begin
use std::time::Duration;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;
use tokio_postgres::error::{DbError, SqlState};
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, Config, Error, NoTls, Row, Transaction};

const BATCH_EVENTS: i32 = 100;
/// More than a batch takes.
const VISIBILITY_SECONDS: i32 = 30;

/// One consumer of a group. Two running processes never have the same name.
struct Consumer {
    group: String,
    name: String,
    /// Whether the process is to stop.
    stop: watch::Receiver<bool>,
}

/// An event of a batch; `poll_outbox` has more columns.
struct Event {
    lease: i64,
    seq: i64,
    id: String,
    aggregate_id: String,
}

impl Event {
    fn of(row: &Row) -> Result<Self, Error> {
        Ok(Self {
            lease: row.try_get("lease")?,
            seq: row.try_get("seq")?,
            id: row.try_get("event_id")?,
            aggregate_id: row.try_get("aggregate_id")?,
        })
    }
}

/// The effect of one event. It is committed together with the offset, or not at all.
///
/// `execute_typed` and `query_typed` use no prepared statements, which would not outlive a transaction behind a
/// transaction pooler.
async fn work(transaction: &Transaction<'_>, event: &Event, name: &str) -> Result<(), Error> {
    let insert =
        "INSERT INTO effect (event_id, seq, aggregate_id, consumer) VALUES ($1, $2, $3, $4)";
    let values: [(&(dyn ToSql + Sync), Type); 4] = [
        (&event.id, Type::TEXT),
        (&event.seq, Type::INT8),
        (&event.aggregate_id, Type::TEXT),
        (&name, Type::TEXT),
    ];
    transaction.execute_typed(insert, &values).await?;
    Ok(())
}

impl Consumer {
    fn stops(&self) -> bool {
        *self.stop.borrow()
    }

    /// Waits for a part of `max`, at least a fifth of it, or until the process is to stop.
    async fn wait(&self, max: Duration) {
        let time = max.mul_f64(0.2 + 0.8 * fastrand::f64());
        let mut stop = self.stop.clone();
        drop(tokio::time::timeout(time, stop.wait_for(|stops| *stops)).await);
    }

    async fn poll(&self, client: &Client) -> Result<Vec<Event>, Error> {
        let rows = client
            .query_typed(
                "SELECT * FROM postrider.poll_outbox($1, $2, $3, $4)",
                &[
                    (&self.group, Type::TEXT),
                    (&self.name, Type::TEXT),
                    (&BATCH_EVENTS, Type::INT4),
                    (&VISIBILITY_SECONDS, Type::INT4),
                ],
            )
            .await?;
        rows.iter().map(Event::of).collect()
    }

    /// Works on a batch and commits its offset, in one transaction, which an error or a stop rolls back.
    async fn attempt(
        &self,
        client: &mut Client,
        batch: &[Event],
        last: &Event,
    ) -> Result<(), Error> {
        let transaction = client.transaction().await?;
        for event in batch {
            if self.stops() {
                return transaction.rollback().await;
            }
            work(&transaction, event, &self.name).await?;
        }
        transaction
            .execute_typed(
                "SELECT postrider.commit_offset($1, $2, $3, $4)",
                &[
                    (&self.group, Type::TEXT),
                    (&self.name, Type::TEXT),
                    (&last.seq, Type::INT8),
                    (&last.lease, Type::INT8),
                ],
            )
            .await?;
        transaction.commit().await
    }

    async fn handle(
        &self,
        client: &mut Client,
        batch: &[Event],
        last: &Event,
    ) -> Result<(), Error> {
        while let Err(error) = self.attempt(client, batch, last).await {
            eprintln!("batch rolled back: {}", describe(&error));
            if client.is_closed() {
                return Err(error);
            }
            // PR114, PR115: another consumer has the batch, or has done it. Any other error: the batch is delivered
            // again when its lease has run out; the other partitions go on meanwhile.
            if !is_retry(&error) {
                break;
            }
        }
        Ok(())
    }

    /// What this name has leased can be polled again at once.
    async fn release(&self, client: &Client) -> Result<(), Error> {
        let names: [(&(dyn ToSql + Sync), Type); 2] =
            [(&self.group, Type::TEXT), (&self.name, Type::TEXT)];
        client.execute_typed("SELECT postrider.release_lease($1, $2)", &names).await?;
        Ok(())
    }

    /// One connection, until it is lost or the process is to stop.
    async fn run(&self, config: &Config) -> Result<(), Error> {
        let (mut client, connection) = config.connect(NoTls).await?;
        // Its error is also that of the statement which runs.
        let connection = tokio::spawn(connection);
        self.release(&client).await?; // of a process of this name that was killed, or has lost its connection
        while !self.stops() {
            let batch = match self.poll(&client).await {
                Err(error) if !is_retry(&error) => return Err(error),
                polled => polled.unwrap_or_default(),
            };
            match batch.last() {
                Some(last) => self.handle(&mut client, &batch, last).await?,
                None => self.wait(Duration::from_secs(1)).await,
            }
        }
        self.release(&client).await?;
        drop(client);
        drop(connection.await);
        Ok(())
    }
}

/// SQLSTATE and message, if the error is the server's.
fn describe(error: &Error) -> String {
    let refused = |error: &DbError| format!("{} {}", error.code().code(), error.message());
    error.as_db_error().map_or_else(|| error.to_string(), refused)
}

fn is_retry(error: &Error) -> bool {
    let retried = [SqlState::T_R_SERIALIZATION_FAILURE, SqlState::T_R_DEADLOCK_DETECTED];
    error.code().is_some_and(|code| retried.contains(code))
}

/// Whether the server refuses what is asked, and will refuse it again: no such group, no rights.
fn is_refusal(error: &Error) -> bool {
    error.code().is_some_and(|code| {
        !["08", "40", "53", "57"].iter().any(|class| code.code().starts_with(class))
    })
}

async fn stop_at(mut terminate: Signal, mut interrupt: Signal, stop: watch::Sender<bool>) {
    tokio::select! {
        _ = terminate.recv() => (),
        _ = interrupt.recv() => (),
    }
    stop.send_replace(true);
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut config: Config = std::env::var("DATABASE_URL")?.parse()?;
    config.connect_timeout(Duration::from_secs(10));
    let (sender, stop) = watch::channel(false);
    tokio::spawn(stop_at(
        signal(SignalKind::terminate())?,
        signal(SignalKind::interrupt())?,
        sender,
    ));
    let mut words = std::env::args().skip(1);
    let (Some(group), Some(name)) = (words.next(), words.next()) else {
        return Err("usage: consumer GROUP CONSUMER".into());
    };
    let consumer = Consumer { group, name, stop };
    while !consumer.stops() {
        if let Err(error) = consumer.run(&config).await {
            if is_refusal(&error) {
                return Err(error.into());
            }
            eprintln!("connecting again: {}", describe(&error));
            consumer.wait(Duration::from_secs(3)).await;
        }
    }
    Ok(())
}
// docs: end
