//! Streams the changes of a publication through an existing slot, prints them, and confirms each transaction.
//!
//! ```text
//! psql -c 'CREATE PUBLICATION p FOR TABLE t'
//! psql -c "SELECT pg_create_logical_replication_slot('s', 'pgoutput')"
//! cargo run -p pg-replication --example stream -- 'host=localhost dbname=shop user=postgres' s p
//! ```

#![expect(clippy::print_stdout, reason = "the example prints what it receives")]
#![expect(clippy::disallowed_methods, reason = "libpq's environment variables are read here")]

use pg_replication::lsn::{Lsn, Watermark};
use pg_replication::pgoutput::{Column, Message, Tuple, decode};
use pg_replication::{Conninfo, Frame, StartReplication, WalConnection};
use std::collections::HashMap;
use std::error::Error;

/// The connection's name in `pg_stat_replication`, unless the connection string has one.
const APPLICATION_NAME: &str = "stream-example";

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [conninfo, slot, publication] = arguments.as_slice() else {
        return Err("usage: stream CONNINFO SLOT PUBLICATION".into());
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(run(conninfo, slot, publication))
}

async fn run(conninfo: &str, slot: &str, publication: &str) -> Result<(), Box<dyn Error>> {
    let conninfo = Conninfo::parse(conninfo, &|name| std::env::var(name).ok())?;
    let mut connection = WalConnection::connect(&conninfo, APPLICATION_NAME).await?;
    let system = connection.identify_system().await?;
    println!("system {}, timeline {}", system.system_id, system.timeline);

    let mut stream = connection.start(&StartReplication::new(slot, publication)).await?;
    let mut printer = Printer::default();
    loop {
        // Frames that arrived together. An error is the end of the connection.
        let batch = stream.next().await?;
        for frame in batch.frames() {
            match frame {
                Frame::XLogData { data, .. } => printer.print(&decode(data)?),
                Frame::Keepalive { wal_end, .. } => printer.keepalive(wal_end),
            }
        }
        // Sent with the next status update: the server may remove the WAL of printed transactions.
        stream.confirm(printer.printed);
    }
}

/// Prints changes, and keeps the position up to which everything is printed.
#[derive(Default)]
struct Printer {
    /// Names of tables by OID, from Relation messages.
    tables: HashMap<u32, String>,
    in_transaction: bool,
    printed: Watermark,
}

impl Printer {
    fn print(&mut self, message: &Message<'_>) {
        match message {
            Message::Begin(begin) => {
                self.in_transaction = true;
                println!("BEGIN {}", begin.xid);
            }
            Message::Commit(commit) => {
                self.in_transaction = false;
                self.printed = self.printed.max(Watermark::from_commit_end(commit.end_lsn));
                println!("COMMIT at {}", commit.commit_lsn);
            }
            Message::Relation(relation) => {
                let name = format!("{}.{}", relation.schema, relation.name);
                self.tables.insert(relation.id, name);
            }
            Message::Insert(insert) => {
                println!("INSERT {}{}", self.table(insert.relation_id), row(&insert.new));
            }
            Message::Update(update) => {
                println!("UPDATE {}{}", self.table(update.relation_id), row(&update.new));
            }
            Message::Delete(delete) => println!("DELETE {}", self.table(delete.relation_id)),
            Message::Truncate(truncate) => {
                let names = truncate.relations.iter().map(|id| self.table(id));
                println!("TRUNCATE {}", names.collect::<Vec<_>>().join(", "));
            }
            Message::Origin(_) | Message::Type(_) | Message::Message(_) => {}
        }
    }

    /// A keepalive outside a transaction confirms WAL that has no changes of the publication.
    fn keepalive(&mut self, wal_end: Lsn) {
        if !self.in_transaction {
            self.printed = self.printed.max(Watermark::from_keepalive(wal_end));
        }
    }

    fn table(&self, id: u32) -> &str {
        self.tables.get(&id).map_or("?", String::as_str)
    }
}

fn row(tuple: &Tuple<'_>) -> String {
    let text = |column| match column {
        Column::Null => " NULL".to_owned(),
        Column::Unchanged => " (unchanged)".to_owned(),
        Column::Text(value) => format!(" '{}'", String::from_utf8_lossy(value)),
        Column::Binary(value) => format!(" ({} bytes)", value.len()),
    };
    tuple.columns().map(text).collect()
}
