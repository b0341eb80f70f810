//! The replication connection against real servers: the stream here, the login in `login`, the ends in `ends`.

mod ends;
pub(crate) mod login;

use crate::await_that::{SOON, await_that};
use crate::server::{Client, Database, Version};
use pg_replication::lsn::{Lsn, Watermark};
use postrider::postgres::stream::{Frame, StartReplication, WalConnection, WalStream};
use postrider::postgres::{Conninfo, SourceError, SourceErrorKind, connect_client};
use std::time::{Duration, Instant};

/// A slot, a publication and a table of one column, in a database of the test's own.
const OUTBOX: &str = "create table outbox (payload text);
    create publication \"Pub's\" for table outbox with (publish = 'insert')";

fn conninfo(url: &str) -> Conninfo {
    Conninfo::parse(url, &|_| None).expect("a connection string")
}

async fn outbox(client: &Client, slot: &str) {
    client.batch(OUTBOX).await;
    client.batch(&format!("select pg_create_logical_replication_slot('{slot}', 'pgoutput')")).await;
}

fn start(slot: &str) -> StartReplication {
    StartReplication::new(slot, "Pub's")
}

async fn stream(url: &str, start: &StartReplication) -> Result<WalStream, SourceError> {
    WalConnection::connect(&conninfo(url), "it").await?.start(start).await
}

/// What a test wants of a stream: the payloads, and where their transactions end.
#[derive(Default, Debug)]
struct Seen {
    payloads: Vec<String>,
    bytes: usize,
    rows: usize,
    ends: Vec<Lsn>,
    keepalive: Lsn,
    messages: usize,
}

impl Seen {
    fn frame(&mut self, frame: Frame<'_>, keep: bool) {
        let data = match frame {
            Frame::Keepalive { wal_end, .. } => {
                self.keepalive = wal_end;
                return;
            }
            Frame::XLogData { data, .. } => data,
        };
        match data[0] {
            b'C' => {
                let end = data[10..18].try_into().expect("8 bytes");
                self.ends.push(Lsn::from_wire(u64::from_be_bytes(end)));
            }
            b'M' => self.messages += 1,
            b'I' => {
                // 'I' oid 'N' one column 't' length text
                self.rows += 1;
                self.bytes += data.len() - 13;
                if keep {
                    self.payloads.push(String::from_utf8(data[13..].to_vec()).expect("text"));
                }
            }
            _ => {}
        }
    }

    /// Reads until `enough`.
    async fn read(&mut self, stream: &mut WalStream, keep: bool, enough: impl Fn(&Self) -> bool) {
        let reading = async {
            while !enough(self) {
                let batch = stream.next().await.expect("the stream goes on");
                for frame in batch.frames() {
                    self.frame(frame, keep);
                }
            }
        };
        let in_time = tokio::time::timeout(SOON, reading).await;
        assert!(in_time.is_ok(), "waited {SOON:?}, seen {self:?}");
    }

    fn last_end(&self) -> Watermark {
        Watermark::from_commit_end(*self.ends.last().expect("a commit"))
    }
}

/// Reads whole transactions.
async fn commits_of(stream: &mut WalStream, count: usize) -> Seen {
    let mut seen = Seen::default();
    seen.read(stream, true, |seen| seen.ends.len() >= count).await;
    seen
}

async fn confirmed(client: &Client, slot: &str) -> Lsn {
    let sql =
        format!("select confirmed_flush_lsn from pg_replication_slots where slot_name = '{slot}'");
    client.text(&sql).await.expect("a slot").parse().expect("an LSN")
}

/// What ends the stream, whatever comes before it.
async fn end_of(stream: &mut WalStream, deadline: Duration) -> SourceError {
    let reading = async {
        loop {
            if let Err(error) = stream.next().await {
                return error;
            }
        }
    };
    tokio::time::timeout(deadline, reading).await.expect("the stream ends")
}

#[tokio::test]
async fn rows_come_in_commit_order_and_a_confirmed_one_comes_once() {
    for version in Version::ALL {
        for socket in [false, true] {
            let database = Database::create(version, "wal_order").await;
            let url = if socket { database.socket_url() } else { database.url() };
            let client = database.connect().await;
            let slot = format!("s_{}", database.name);
            outbox(&client, &slot).await;
            let mut wal = WalConnection::connect(&conninfo(&url), "it").await.expect("a login");
            let identity = wal.identify_system().await.expect("an identity");
            assert_eq!(identity.database, database.name);
            assert_eq!(identity.timeline, 1);
            let id = client.text("select system_identifier from pg_control_system()").await;
            assert_eq!(Some(identity.system_id), id);
            let pid = wal.backend_pid();
            let mut wal = wal.start(&start(&slot)).await.expect("a stream");
            let active = "select active_pid from pg_replication_slots where slot_name = ";
            let active = client.text(&format!("{active}'{slot}'")).await;
            assert_eq!(active, Some(pid.to_string()));

            client.batch("insert into outbox values ('a')").await;
            client.batch("insert into outbox values ('b'), ('c')").await;
            let seen = commits_of(&mut wal, 2).await;
            assert_eq!(seen.payloads, ["a", "b", "c"]);
            wal.confirm(Watermark::from_commit_end(seen.ends[0]));
            await_that("the first commit is confirmed", SOON, || async {
                let now = confirmed(&client, &slot).await;
                if now == seen.ends[0] { Ok(()) } else { Err(now) }
            })
            .await;
            // The watermark that is confirmed just before the end goes with the last status.
            client.batch("insert into outbox values ('d')").await;
            let more = commits_of(&mut wal, 1).await;
            wal.confirm(Watermark::from_commit_end(seen.ends[1]));
            wal.stop(SOON).await.expect("an end in good order");
            assert_eq!(confirmed(&client, &slot).await, seen.ends[1]);

            let mut again = stream(&url, &start(&slot)).await.expect("a stream");
            let seen = commits_of(&mut again, 1).await;
            assert_eq!(seen.payloads, ["d"], "confirmed once, sent once");
            assert_eq!(seen.ends, more.ends);
        }
    }
}
