//! Domains: a column of one is published as a column of the type beneath it is, wherever it stands and however its row
//! is read.

use crate::await_that::{SOON, await_that};
use crate::halted::run_to_halt;
use crate::private::PrivatePostgres;
use crate::relay::{Relay, postrider, postrider_ok};
use crate::server::{Client, Version};
use serde_json::Value;

/// The types beneath, and the domains over them, each over another domain.
const DOMAINS: &[(&str, &str)] = &[
    ("uid", "uuid"),
    ("words", "text"),
    ("padded", "char(6)"),
    ("short", "varchar(20)"),
    ("raw", "bytea"),
    ("doc", "jsonb"),
    ("text_doc", "json"),
    ("price", "numeric(10,2)"),
    ("amount", "numeric"),
    ("flag", "boolean"),
    ("whole", "bigint"),
    ("ratio", "double precision"),
    ("day", "date"),
    ("clock", "time(3)"),
    ("plain", "timestamp(3)"),
    ("moment", "timestamptz(3)"),
    ("span", "interval"),
];

/// Columns that are placed beside the event: name and type.
const EXTRA: &[&str] = &[
    "raw", "doc", "price", "amount", "flag", "whole", "ratio", "day", "clock", "plain", "moment",
    "span",
];

/// A table of each kind in each layout: of the types themselves, and of domains over them.
const TABLES: [(&str, &str, bool); 4] = [
    ("own_plain", "postrider", false),
    ("own_domains", "postrider", true),
    ("dbz_plain", "debezium", false),
    ("dbz_domains", "debezium", true),
];

struct Kinds {
    server: PrivatePostgres,
    sql: Client,
}

fn column(domains: bool, name: &str) -> String {
    let beneath = DOMAINS.iter().find(|(domain, _)| *domain == name).expect("a type").1;
    if domains { format!("types.{name}") } else { beneath.to_owned() }
}

impl Kinds {
    async fn on(version: Version) -> Self {
        let server = PrivatePostgres::start(version, "").await;
        let sql = Client::connect(&server.url()).await.expect("a session");
        sql.batch("create schema types; set synchronous_commit = off").await;
        for (name, beneath) in DOMAINS {
            sql.batch(&format!(
                "create domain types.{name}_1 as {beneath}; \
                 create domain types.{name} as types.{name}_1 check (value is not null or value is null)"
            ))
            .await;
        }
        for (table, layout, domains) in TABLES {
            let of = |name| column(domains, name);
            let extra: Vec<String> = EXTRA
                .iter()
                .flat_map(|name| {
                    [format!("h_{name} {}", of(name)), format!("e_{name} {}", of(name))]
                })
                .collect();
            let event = if layout == "debezium" {
                format!(
                    "id {} primary key, aggregatetype {}, aggregateid {}, type {}, payload {}",
                    of("uid"),
                    of("short"),
                    of("padded"),
                    of("words"),
                    of("text_doc")
                )
            } else {
                format!(
                    "id {} primary key, aggregate_type {}, aggregate_id {}, event_type {}, payload {}, headers {}, \
                     created_at {}",
                    of("uid"),
                    of("short"),
                    of("padded"),
                    of("words"),
                    of("raw"),
                    of("doc"),
                    of("moment")
                )
            };
            sql.batch(&format!("create table {table} ({event}, {})", extra.join(", "))).await;
        }
        Self { server, sql }
    }

    /// Rows `from` to `to` of every table.
    async fn insert(&self, from: usize, to: usize) {
        for (table, layout, _) in TABLES {
            let values = "decode('00ff' || lpad(i::text, 2, '0'), 'hex'), '{\"b\": 1, \"a\": [1.50]}'::jsonb, i + 0.5, \
                          i + 0.125, i % 2 = 0, i, i / 3.0, date '2026-01-01' + i, time '10:00:00.123', \
                          timestamp '2026-01-01 10:00:00.5', timestamptz '2026-01-01 10:00:00.25+02', \
                          interval '1 mon 2 days 00:00:00.001'";
            // Twice each: as a header, and in the envelope.
            let twice: Vec<String> =
                EXTRA.iter().map(|name| format!("v.{name}, v.{name}")).collect();
            let event = if layout == "debezium" {
                "'order', i % 2, 'T', json_build_object('n', i)"
            } else {
                "'order', i % 2, 'T', decode('00ff10', 'hex'), '{\"source\": \"shop\"}', \
                 timestamptz '2026-02-03 04:05:06.789+00'"
            };
            self.sql
                .batch(&format!(
                    "insert into {table} select md5(i::text)::uuid, {event}, {} from generate_series({from}, {to}) i, \
                     lateral (select {values}) as v ({})",
                    twice.join(", "),
                    EXTRA.join(", ")
                ))
                .await;
        }
    }

    fn config(&self, mode: &str) -> String {
        let of = |(table, layout, _): &(&str, &str, bool)| {
            let extra: Vec<String> = EXTRA
                .iter()
                .map(|name| {
                    format!("h_{name} = {{ header = \"{name}\" }}\ne_{name} = {{ envelope = \"{name}\" }}\n")
                })
                .collect();
            format!(
                "[pipelines.{table}]\nmode = \"{mode}\"\n[pipelines.{table}.source]\nurl = \"{}\"\n\
                 [pipelines.{table}.outbox]\nlayout = \"{layout}\"\ntable = \"public.{table}\"\n\
                 [pipelines.{table}.outbox.extra]\n{}\
                 [pipelines.{table}.route]\ntopic = \"{table}\"\nstandard_headers = []\n\
                 [pipelines.{table}.sink]\nkind = \"stdout\"\n",
                self.server.url(),
                extra.concat()
            )
        };
        TABLES.iter().map(of).collect()
    }
}

/// The records of a topic, sorted, as what is published of them.
fn records(stdout: &str, topic: &str) -> Vec<String> {
    let lines = stdout.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let mut of_topic: Vec<String> = lines
        .filter(|line| line["topic"] == topic)
        .map(|mut line| {
            line["topic"] = Value::Null;
            // The commit's time, where the layout has none of its own.
            line["timestamp"] =
                if topic.starts_with("own") { line["timestamp"].clone() } else { Value::Null };
            line.to_string()
        })
        .collect();
    of_topic.sort();
    of_topic
}

fn alike(stdout: &str, count: usize, what: &str) {
    for layout in ["own", "dbz"] {
        let plain = records(stdout, &format!("{layout}_plain"));
        let domains = records(stdout, &format!("{layout}_domains"));
        assert_eq!(plain.len(), count, "{what}, {layout}: {plain:#?}");
        assert_eq!(domains, plain, "{what}, {layout}");
    }
}

async fn all(relay: &Relay, count: usize) {
    await_that("all records", SOON, || async {
        let counts = TABLES.map(|(table, _, _)| records(&relay.stdout(), table).len());
        if counts == [count; 4] { Ok(()) } else { Err(format!("{counts:?}\n{}", relay.stderr())) }
    })
    .await;
}

/// In the stream, from its first row on; in a backfill, a repair, a replay, and by polling.
#[tokio::test]
async fn a_domain_is_published_as_the_type_beneath_it_wherever_its_row_is_read() {
    for version in [Version::Pg15, Version::Pg18] {
        let kinds = Kinds::on(version).await;
        let config = kinds.config("wal");
        kinds.insert(1, 3).await;
        postrider_ok(&config, &["setup", "--backfill", "all"]);
        let relay = Relay::spawn(&config);
        all(&relay, 3).await;
        alike(&relay.stdout(), 3, "backfill");
        kinds.insert(4, 6).await;
        all(&relay, 6).await;
        alike(&relay.stdout(), 6, "stream");
        assert_eq!(relay.terminate(SOON).await.code, Some(0));
        kinds.insert(7, 9).await;
        kinds
            .sql
            .batch("select pg_drop_replication_slot(slot_name) from pg_replication_slots")
            .await;
        let repaired = postrider(&config, &["repair", "--json"]);
        let stdout = String::from_utf8_lossy(&repaired.stdout).into_owned();
        alike(&newest(&stdout), 3, "repair");
        let mut replayed = String::new();
        for (table, _, _) in TABLES {
            // The id of the aggregate is filled up with blanks.
            for aggregate in ["order:0", "order:1"] {
                let args = ["replay", "-p", table, "--aggregate", aggregate, "--source", "table"];
                replayed.push_str(&postrider_ok(&config, &args));
            }
        }
        alike(&without_replay(&replayed), 9, "replay");
        // Polled, each row goes.
        let polling = kinds.config("poll");
        postrider_ok(&polling, &["setup"]);
        for (table, _, _) in TABLES {
            postrider_ok(&polling, &["adopt", "-p", table]);
        }
        let relay = Relay::spawn(&polling);
        all(&relay, 9).await;
        alike(&relay.stdout(), 9, "polling");
        assert_eq!(relay.terminate(SOON).await.code, Some(0));
    }
}

/// The lines of rows 7 to 9. A repair may publish again what was published shortly before the slot was lost, and that
/// differs from pipeline to pipeline.
fn newest(stdout: &str) -> String {
    let lines = stdout.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let is_newest = |line: &Value| {
        let mut headers = line["headers"].as_array().into_iter().flatten();
        headers.any(|header| {
            header[0] == "whole" && matches!(header[1].as_str(), Some("7" | "8" | "9"))
        })
    };
    let newest: Vec<String> = lines.filter(is_newest).map(|line| line.to_string()).collect();
    newest.join("\n")
}

/// A replay names itself in a header.
fn without_replay(stdout: &str) -> String {
    let lines = stdout.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let cut = |mut line: Value| {
        if let Some(headers) = line["headers"].as_array_mut() {
            headers.retain(|header| header[0] != "replay");
        }
        format!("{line}\n")
    };
    lines.map(cut).collect()
}

/// The column becomes a domain while the stream runs, of a type that was made meanwhile; and the domain is gone when
/// its rows are read.
#[tokio::test]
async fn a_column_that_becomes_a_domain_while_the_stream_runs_is_the_type_beneath_it() {
    for version in [Version::Pg15, Version::Pg18] {
        let kinds = Kinds::on(version).await;
        let config = kinds.config("wal");
        postrider_ok(&config, &["setup"]);
        let relay = Relay::spawn(&config);
        kinds.insert(1, 1).await;
        all(&relay, 1).await;
        kinds
            .sql
            .batch(
                "create domain types.later as bytea; create domain types.sized as numeric(10,2); \
                 create domain types.sized_2 as types.sized; \
                 alter table own_domains alter payload type types.later, alter h_price type types.sized_2; \
                 alter table dbz_domains alter h_price type types.sized_2, alter e_price type types.sized_2",
            )
            .await;
        kinds.insert(2, 2).await;
        all(&relay, 2).await;
        alike(&relay.stdout(), 2, "altered while streaming");
        assert_eq!(relay.terminate(SOON).await.code, Some(0));
        // Rows of a domain that is not there any more when they are read.
        kinds.insert(3, 3).await;
        kinds
            .sql
            .batch("alter table own_domains alter payload type bytea; drop domain types.later")
            .await;
        let relay = Relay::spawn(&config);
        all(&relay, 1).await;
        alike(&relay.stdout(), 1, "a domain that is gone");
        assert_eq!(relay.terminate(SOON).await.code, Some(0));
    }
}

/// What can't be a time or an object of headers is told before the first event, by each command and in each mode.
#[tokio::test]
async fn columns_of_types_that_cannot_be_are_told_before_the_first_event() {
    let cases = [
        ("created_at", "bigint"),
        ("created_at", "types.whole"),
        ("created_at", "inet"),
        ("headers", "bytea"),
        ("headers", "types.raw"),
        ("headers", "text[]"),
        ("headers", "types.mood"),
    ];
    let server = PrivatePostgres::start(Version::Pg17, "").await;
    let sql = Client::connect(&server.url()).await.expect("a session");
    sql.batch(
        "create schema types; create domain types.raw as bytea; create domain types.whole as bigint; \
         create type types.mood as enum ('sad')",
    )
    .await;
    for (column, of) in cases {
        let other = if column == "headers" { "created_at timestamptz" } else { "headers jsonb" };
        sql.batch(&format!(
            "drop table if exists outbox; create table outbox (id bigint primary key, aggregate_type text not null, \
             aggregate_id text not null, event_type text not null, payload json, {column} text, {other})"
        ))
        .await;
        let config = |mode: &str| {
            format!(
                "[pipelines.orders]\nmode = \"{mode}\"\n[pipelines.orders.source]\nurl = \"{}\"\n\
                 [pipelines.orders.outbox]\ntable = \"public.outbox\"\n\
                 [pipelines.orders.route]\ntopic = \"t\"\n[pipelines.orders.sink]\nkind = \"stdout\"\n",
                server.url()
            )
        };
        postrider_ok(&config("wal"), &["setup"]);
        sql.batch(&format!(
            "alter table outbox drop {column}; alter table outbox add {column} {of}"
        ))
        .await;
        let words = [format!("column \"{column}\" of table \"public.outbox\" is of type {of}")];
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        for mode in ["wal", "poll", "auto"] {
            let config = config(mode);
            let halted = run_to_halt(&config).await;
            halted.assert_says(
                "PR009",
                &words,
                &[if column == "headers" { "jsonb" } else { "timestamptz" }],
            );
            let output = postrider(&config, &["setup"]);
            let errors = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.code(), Some(3), "{mode} {column} {of}: {errors}");
            assert!(errors.contains(words[0]), "{errors}");
            let output = postrider(&config, &["check"]);
            let said = String::from_utf8_lossy(&output.stdout);
            assert_eq!(output.status.code(), Some(1), "{said}");
            assert!(said.contains(&format!("is {of}")), "{said}");
        }
        postrider_ok(&config("wal"), &["setup", "--undo", "--yes"]);
    }
}
