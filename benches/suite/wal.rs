//! Workloads: a table, a slot before all rows, and rows. Every contender streams from a copy of that slot.

use crate::contender::setup;
use crate::servers::{Database, Servers};

pub(crate) const PUBLICATION: &str = "postrider_bench";
/// The prefix of logical messages.
pub(crate) const PREFIX: &str = "outbox";

/// How a contender connects to PostgreSQL, if it can choose.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Road {
    UnixSocket,
    Tcp,
    /// TCP with TLS; the certificate is not verified.
    Tls,
}

impl Road {
    /// The value of `sslmode` in libpq and Postrider. Debezium's default would use TLS too, if the server offers it.
    pub(crate) const fn sslmode(self) -> &'static str {
        if matches!(self, Self::Tls) { "require" } else { "disable" }
    }
}

#[derive(Clone)]
pub(crate) struct Workload {
    /// The name for `--workload`.
    pub(crate) name: &'static str,
    pub(crate) label: String,
    pub(crate) rows: usize,
    pub(crate) per_transaction: usize,
    pub(crate) aggregates: usize,
    /// Approximate size. Unit: bytes.
    pub(crate) payload: usize,
    /// The type of the payload's column.
    pub(crate) column: &'static str,
    pub(crate) partitions: i32,
    /// Rows of another table for each row of the outbox table.
    pub(crate) busy: usize,
    /// Logical messages instead of rows.
    pub(crate) messages: bool,
    /// Events of other aggregates that are parked before the start.
    pub(crate) parked: usize,
    /// Measured from the first query that shows published events, so that other costs of a start are left out.
    pub(crate) steady: bool,
    pub(crate) road: Road,
}

impl Workload {
    pub(crate) fn new(
        name: &'static str,
        label: &str,
        rows: usize,
        per_transaction: usize,
    ) -> Self {
        Self {
            name,
            label: label.to_owned(),
            rows,
            per_transaction: per_transaction.min(rows),
            aggregates: 1_000,
            payload: 300,
            column: "json",
            partitions: 8,
            busy: 0,
            messages: false,
            parked: 0,
            steady: false,
            road: Road::UnixSocket,
        }
    }

    /// The workloads of a whole run, with `rows` in the first.
    pub(crate) fn main(rows: usize) -> Vec<Self> {
        vec![
            Self::new("batch", "1,000 rows a transaction", rows, 1_000),
            Self::new("single", "1 row a transaction", (rows / 4).max(1_000), 1),
            Self::new("huge", "one transaction", rows, rows),
        ]
    }

    /// The workloads with these names.
    pub(crate) fn others(rows: usize) -> Vec<Self> {
        let plain = |name, label: &str| Self::new(name, label, rows, 1_000);
        let sized = |name, label: &str, payload, rows| Self {
            payload,
            ..Self::new(name, label, rows, 1_000)
        };
        let typed = |name, label: &str, column| Self { column, ..plain(name, label) };
        let parted = |name, label: &str, partitions| Self { partitions, ..plain(name, label) };
        let spread = |name, label: &str, aggregates| Self { aggregates, ..plain(name, label) };
        vec![
            sized("100B", "payload of 100 B", 100, rows),
            sized("1600B", "payload of 1.6 kB", 1_600, rows / 2),
            sized("64kB", "payload of 64 kB", 64_000, (rows / 50).max(1_000)),
            typed("jsonb", "payload column jsonb", "jsonb"),
            typed("text", "payload column text", "text"),
            typed("bytea", "payload column bytea", "bytea"),
            parted("1-partition", "1 partition", 1),
            parted("64-partitions", "64 partitions", 64),
            spread("1-aggregate", "1 aggregate", 1),
            spread("1M-aggregates", "1,000,000 aggregates", 1_000_000),
            Self {
                busy: 10,
                ..Self::new("busy", "10 rows of another table for each", rows / 4, 1_000)
            },
            Self { messages: true, ..plain("messages", "logical messages") },
            Self { road: Road::Tcp, ..plain("tcp", "TCP instead of the unix socket") },
            Self { road: Road::Tls, ..plain("tls", "TCP with TLS") },
        ]
    }

    pub(crate) fn database(&self) -> String {
        format!("bench_{}", self.name.replace('-', "_").to_lowercase())
    }

    /// Creates the database and its backlog.
    pub(crate) fn make(&self, servers: &Servers) -> Backlog {
        let name = self.database();
        remove(servers, &name);
        Database::open(servers, "postgres").run(&format!("create database {name}"));
        let database = Database::open(servers, &name);
        database.run(&table(self.column));
        setup(servers, &name, &template(&name));
        database.run("set synchronous_commit = off");
        let backlog = Backlog { database, name, workload: self.clone() };
        if self.rows > 0 {
            backlog.fill(1, self.rows);
        }
        backlog
    }
}

/// The slot that is only copied: names of slots are the cluster's, not the database's.
fn template(database: &str) -> String {
    format!("{database}_template")
}

pub(crate) fn remove(servers: &Servers, name: &str) {
    let postgres = Database::open(servers, "postgres");
    let gone = format!(
        "select pg_terminate_backend(active_pid) from pg_replication_slots \
         where database = '{name}' and active_pid is not null"
    );
    postgres.text(&gone);
    while !postgres
        .text(&format!("select 1 from pg_replication_slots where database = '{name}'"))
        .is_empty()
    {
        let slot =
            format!("select slot_name from pg_replication_slots where database = '{name}' limit 1");
        postgres.drop_slot(&postgres.text(&slot));
    }
    postgres.run(&format!("drop database if exists {name} with (force)"));
}

fn table(column: &str) -> String {
    format!(
        "create table outbox (id bigint generated always as identity primary key, \
         aggregate_type text not null, aggregate_id text not null, event_type text not null, \
         payload {column}, headers json, created_at timestamptz not null default clock_timestamp()); \
         alter table outbox set (autovacuum_enabled = off); \
         create table ledger (id bigint, note text) with (autovacuum_enabled = off)"
    )
}

/// A payload of about `bytes` that contains its number; a part is not compressible, the rest is.
pub(crate) fn payload(number: &str, bytes: usize, column: &str) -> String {
    let random = (bytes / 2).clamp(32, 512) / 32;
    let hashes: Vec<String> =
        (0..random).map(|part| format!("md5(({number})::text || '{part}')")).collect();
    let filler = bytes.saturating_sub(random * 32 + 24);
    let text = format!(
        "'{{\"n\": ' || ({number}) || ', \"note\": \"' || {} || \
         left(repeat('as it was ordered ', {}), {filler}) || '\"}}'",
        hashes.join(" || "),
        filler / 18 + 1,
    );
    match column {
        "bytea" => format!("convert_to({text}, 'UTF8')"),
        column => format!("({text})::{column}"),
    }
}

/// The backlog.
pub(crate) struct Backlog {
    pub(crate) database: Database,
    pub(crate) name: String,
    pub(crate) workload: Workload,
}

impl Backlog {
    /// Rows with the numbers from `first` to `last`.
    pub(crate) fn fill(&self, first: usize, last: usize) {
        let Workload {
            per_transaction, aggregates, payload: bytes, column, busy, messages, ..
        } = self.workload;
        let value = payload("i", bytes, column);
        let others = if busy == 0 {
            String::new()
        } else {
            format!(
                "insert into ledger select i, repeat('paid in full ', 20) \
                 from generate_series(1, {busy} * {per_transaction}) i;"
            )
        };
        let series = format!("generate_series(t, least({last}, t + {per_transaction} - 1)) i");
        let ours = if messages {
            format!(
                "perform pg_logical_emit_message(true, '{PREFIX}', json_build_object('aggregate_type', 'order', \
                 'aggregate_id', (i % {aggregates})::text, 'event_type', 'OrderChanged', 'payload', {value})::text) \
                 from {series};"
            )
        } else {
            format!(
                "insert into outbox (aggregate_type, aggregate_id, event_type, payload) \
                 select 'order', (i % {aggregates})::text, 'OrderChanged', {value} from {series};"
            )
        };
        self.database.run(&format!(
            "do $$ declare t bigint := {first}; begin while t <= {last} loop {others} {ours} \
             commit; t := t + {per_transaction}; end loop; end $$"
        ));
        self.database.run("checkpoint");
    }

    /// The present end of the backlog.
    pub(crate) fn end(&self) -> String {
        self.database.text("select pg_current_wal_lsn()")
    }

    /// A slot at the beginning of the backlog.
    ///
    /// Postrider's rows for a slot of the same name are deleted. Dead events of other aggregates are inserted as
    /// Postrider would have written them.
    pub(crate) fn slot(&self, name: &str) {
        self.database.copy_slot(&template(&self.name), name);
        self.forget(name);
        self.database.run(&format!(
            "insert into postrider.parked (pipeline, commit_lsn, ordinal, commit_time, event_id, event_type, \
             aggregate_type, aggregate_id, blocks, topic, key, value, error_code, error, attempts, state) \
             select '{name}', '0/1000'::pg_lsn + i, 0, now(), i::text, 'OrderChanged', 'stuck', i::text, true, \
             'nowhere', convert_to(i::text, 'UTF8'), convert_to(repeat('held up ', 37), 'UTF8'), 'too_large', \
             'larger than its topic takes', 10, 'dead' from generate_series(1, {}) i",
            self.workload.parked
        ));
        if self.workload.parked > 0 {
            // Otherwise autovacuum and the checkpointer would work during the drain.
            self.database.run("vacuum (analyze) postrider.parked");
            self.database.run("checkpoint");
        }
    }

    /// A slot at the end of the backlog. Postrider's rows for a slot of the same name are deleted.
    pub(crate) fn slot_here(&self, name: &str) {
        self.database.drop_slot(name);
        self.forget(name);
        self.database
            .text(&format!("select pg_create_logical_replication_slot('{name}', 'pgoutput')"));
    }

    /// Deletes Postrider's rows for a pipeline of that name.
    fn forget(&self, name: &str) {
        self.database.run(&format!(
            "delete from postrider.cursor where pipeline = '{name}'; \
             delete from postrider.parked where pipeline = '{name}'"
        ));
    }
}
