//! What a table outbox costs writers: the same statements on a table alone, on a captured one, on one whose rows are
//! identified whole, and on one with the triggers of the SQL toolkit. No relay runs: it is a process of its own, and
//! this is the time of the statement in the writer's session.

use crate::args::Args;
use crate::servers::{Database, Servers};
use std::fmt::Write;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

const DATABASE: &str = "bench_table_outbox";

/// Slot and publication.
const NAME: &str = "bench_table_outbox";

/// Around the result in `docs/table-outbox.md`.
const BEGIN: &str = "<!-- scripts/bench --only table-outbox writes this part -->";
const END: &str = "<!-- end -->";

/// A way to publish changes, each with a table of its own.
#[derive(Clone, Copy)]
struct Way {
    table: &'static str,
    label: &'static str,
}

const WAYS: [Way; 4] = [
    Way { table: "alone", label: "table alone" },
    Way { table: "captured", label: "captured" },
    Way { table: "whole", label: "captured, identity FULL" },
    Way { table: "triggered", label: "by triggers" },
];

/// A statement of the application, with `{t}` for the table and `$1` for the first id.
struct Work {
    label: &'static str,
    sql: &'static str,
    /// Ids that one execution uses.
    ids: i64,
    /// Executions in one measurement.
    times: i64,
    /// It needs the rows that an insert of so many ids has made.
    is_update: bool,
}

const ROW: &str = "insert into {t} (id, customer, total, note) select i, 'customer ' || i % 100, i % 1000 + 0.5, \
                   repeat('x', 60) from generate_series($1::bigint, $1 + {n} - 1) i";

const WORKS: [Work; 6] = [
    Work { label: "insert 1 row", sql: ROW, ids: 1, times: 200, is_update: false },
    Work { label: "insert 100 rows", sql: ROW, ids: 100, times: 20, is_update: false },
    Work { label: "insert 1,000 rows", sql: ROW, ids: 1_000, times: 4, is_update: false },
    Work { label: "insert 10,000 rows", sql: ROW, ids: 10_000, times: 1, is_update: false },
    Work {
        label: "update 400 rows",
        sql: "update {t} set total = total + 1 where id between $1 and $1 + 399",
        ids: 400,
        times: 5,
        is_update: true,
    },
    Work {
        label: "transaction of 5 statements, 1 on the table",
        sql: ROW,
        ids: 1,
        times: 100,
        is_update: false,
    },
];

/// The statements around one on the table.
const AROUND: [&str; 4] = [
    "select count(*) from others where id < 100",
    "insert into others (note) values ('a')",
    "update others set note = 'b' where id = 1",
    "insert into others (note) values ('c')",
];

/// Seconds and bytes of WAL of one execution.
#[derive(Clone, Copy)]
struct Cost {
    seconds: f64,
    wal: f64,
}

pub(crate) fn table_outbox(args: &Args, servers: &Servers) {
    let control = Database::open(servers, "postgres");
    control.drop_slot(NAME);
    control.run(&format!("drop database if exists {DATABASE} with (force)"));
    control.run(&format!("create database {DATABASE}"));
    let database = Database::open(servers, DATABASE);
    let ways = prepare(servers, &database);
    let rounds = if args.quick { 3 } else { args.rounds.max(9) };
    let mut costs: Vec<Vec<Vec<Cost>>> =
        WORKS.iter().map(|_| vec![Vec::new(); ways.len()]).collect();
    let mut next = vec![1_i64; ways.len()];
    println!("\nTable outbox: {rounds} rounds of {} statements", WORKS.len());
    // The first round warms caches up, and is not counted.
    for round in 0..=rounds {
        for (work, costs) in WORKS.iter().zip(&mut costs) {
            for turn in 0..ways.len() {
                // In each round another table begins.
                let at = (turn + round) % ways.len();
                let cost = measure(&database, work, ways[at], &mut next[at]);
                if round > 0 {
                    costs[at].push(cost);
                }
            }
        }
    }
    let text = table(&ways, &costs, rounds);
    println!("{text}");
    if let Some(out) = &args.out {
        write(&out.join("table-outbox.md"), &text);
    }
    drop(database);
    control.drop_slot(NAME);
    control.run(&format!("drop database {DATABASE} with (force)"));
}

/// The tables, and what publishes them. Without the toolkit's function there is no table with triggers.
fn prepare(servers: &Servers, database: &Database) -> Vec<Way> {
    database
        .run("create table others (id bigint generated always as identity primary key, note text)");
    database.run("insert into others (note) select 'x' from generate_series(1, 1000)");
    for Way { table, .. } in WAYS {
        database.run(&format!(
            "create table {table} (id bigint primary key, customer text not null, total numeric(12, 2) not null, \
             note text, changed_at timestamptz not null default clock_timestamp()); \
             create index on {table} (customer); create index on {table} (changed_at)"
        ));
    }
    database.run("alter table whole replica identity full");
    database.run(&format!(
        "create publication {NAME} for table only captured, only whole \
         with (publish = 'insert, update, delete, truncate', publish_via_partition_root = true)"
    ));
    database.text(&format!("select pg_create_logical_replication_slot('{NAME}', 'pgoutput')"));
    let url =
        format!("host={} port={} user=postgres dbname={DATABASE}", servers.socket, servers.port);
    let installed = Command::new(env!("CARGO_BIN_EXE_postrider"))
        .args(["sql", "--install", "--url", &url])
        .output()
        .expect("postrider");
    let has = "select to_regproc('postrider.enable_outbox') is not null";
    if installed.status.success() && database.text(has) == "t" {
        database.run("select postrider.enable_outbox('public.triggered')");
        return WAYS.to_vec();
    }
    println!("the SQL toolkit has no enable_outbox: triggers are not measured");
    WAYS.into_iter().filter(|way| way.table != "triggered").collect()
}

fn measure(database: &Database, work: &Work, way: Way, next: &mut i64) -> Cost {
    let sql = work.sql.replace("{t}", way.table).replace("{n}", &work.ids.to_string());
    if work.is_update && *next <= work.ids {
        database.run(
            &ROW.replace("{t}", way.table).replace("{n}", &work.ids.to_string()).replace("$1", "1"),
        );
        *next += work.ids;
    }
    let statement = database.prepare(&sql);
    let is_one_of_five = work.label.starts_with("transaction");
    let wal = "select pg_current_wal_insert_lsn() - '0/0'";
    let bytes = || database.text(wal).parse::<f64>().expect("a number");
    let before = bytes();
    let began = Instant::now();
    for time in 0..work.times {
        let first = if work.is_update { 1 } else { *next + time * work.ids };
        if is_one_of_five {
            database.run("begin");
            for other in AROUND {
                database.run(other);
            }
        }
        database.execute(&statement, first);
        if is_one_of_five {
            database.run("commit");
        }
    }
    let seconds = began.elapsed().as_secs_f64();
    let wal = bytes() - before;
    if !work.is_update {
        *next += work.times * work.ids;
    }
    let times = work.times as f64;
    Cost { seconds: seconds / times, wal: wal / times }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn table(ways: &[Way], costs: &[Vec<Vec<Cost>>], rounds: usize) -> String {
    let mut text = format!(
        "Time of a statement in the writer's session, and WAL that it writes: medians of {rounds} rounds, in which the \
         tables take\nturns; the relay does not run. The table has a primary key and two more indexes, rows of about \
         120 bytes. Ratios are to the\nfirst column. Written by `scripts/bench --only table-outbox`.\n\n| statement |"
    );
    for way in ways {
        write!(text, " {} |", way.label).expect("a string");
    }
    for way in ways {
        write!(text, " WAL, {} |", way.label).expect("a string");
    }
    text.push_str("\n|---|");
    text.push_str(&"---:|".repeat(2 * ways.len()));
    text.push('\n');
    for (work, costs) in WORKS.iter().zip(costs) {
        write!(text, "| {} |", work.label).expect("a string");
        let seconds: Vec<f64> =
            costs.iter().map(|of| median(of.iter().map(|cost| cost.seconds).collect())).collect();
        let wal: Vec<f64> =
            costs.iter().map(|of| median(of.iter().map(|cost| cost.wal).collect())).collect();
        cells(&mut text, &seconds, |seconds| format!("{:.0} µs", seconds * 1e6));
        cells(&mut text, &wal, |bytes| format!("{bytes:.0} B"));
        text.push('\n');
    }
    text
}

/// The first value as it is, the others with their ratio to it.
fn cells(text: &mut String, values: &[f64], shown: impl Fn(f64) -> String) {
    for (index, value) in values.iter().enumerate() {
        let ratio = if index == 0 {
            String::new()
        } else {
            format!(" ({:+.0} %)", (value / values[0] - 1.0) * 100.0)
        };
        write!(text, " {}{ratio} |", shown(*value)).expect("a string");
    }
}

/// Replaces the result in the page, if it is in the directory of the pages.
fn write(page: &Path, text: &str) {
    let Ok(old) = fs::read_to_string(page) else {
        println!("there is no {}: the result is only printed", page.display());
        return;
    };
    let (before, rest) = old.split_once(BEGIN).expect("the place of the result");
    let (_, after) = rest.split_once(END).expect("its end");
    fs::write(page, format!("{before}{BEGIN}\n{text}{END}{after}")).expect("a page");
}
