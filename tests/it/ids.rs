//! Ids of every type, wherever Postrider finds a row again by the id that the stream had: marks, backfill, repair,
//! replay, and `mode = "auto"`.

use crate::await_that::{SOON, await_that};
use crate::private::PrivatePostgres;
use crate::relay::{Relay, postrider, postrider_ok};
use crate::server::{Client, Version};
use serde_json::Value;

/// A name, the type, and the id of row `i`.
const TYPES: &[(&str, &str, &str)] = &[
    ("char_36", "char(36)", "'id-' || i"),
    ("char_full", "char(4)", "'i' || lpad(i::text, 3, '0')"),
    ("varchar_40", "varchar(40)", "'id-' || i"),
    ("text_blanks", "text", "repeat(' ', i) || 'it''s' || repeat(' ', 2)"),
    ("text_loose", "text collate types.anycase", "'Id-' || i"),
    ("citext", "types.citext", "'Id-' || i"),
    ("name", "name", "'id-' || i"),
    ("one_byte", "\"char\"", "chr(64 + i)"),
    ("bigint", "bigint", "i"),
    ("numeric_2", "numeric(12,2)", "i + 0.5"),
    ("numeric", "numeric", "(i || '.10')::numeric"),
    ("real", "real", "i / 10.0"),
    ("double", "double precision", "i / 10.0"),
    ("bit_8", "bit(8)", "i::bit(8)"),
    ("bit_varying", "bit varying(16)", "i::bit(8)"),
    ("bytea", "bytea", "decode(lpad(i::text, 4, '0'), 'hex')"),
    ("uuid", "uuid", "md5(i::text)::uuid"),
    ("inet", "inet", "('10.0.0.' || i)::inet"),
    ("date", "date", "date '2026-01-01' + i"),
    ("time_3", "time(3)", "time '10:00' + i * interval '1 ms'"),
    ("timestamp_3", "timestamp(3)", "timestamp '2026-01-01' + i * interval '1 ms'"),
    ("timestamptz_0", "timestamptz(0)", "timestamptz '2026-01-01' + i * interval '1 s'"),
    ("timestamptz", "timestamptz", "timestamptz '2026-01-01' + i * interval '1 us'"),
    ("interval_3", "interval(3)", "i * interval '1 month 1 ms'"),
    ("enum", "types.\"Kind\"", "('v' || i)::types.\"Kind\""),
    ("domain_char", "types.id12", "'id-' || i"),
    ("domain_nested", "types.price_id", "i + 0.25"),
    ("domain_citext", "types.ci", "'Id-' || i"),
    ("text_array", "text[]", "array['id', i::text]"),
    ("composite", "types.pair", "row(i, 'it''s, \"' || i)::types.pair"),
    ("json", "json", "json_build_object('n', i)"),
    ("int4range", "int4range", "int4range(i, i + 1)"),
];

/// Rows of each insert.
const ROWS: usize = 4;

/// A server with a table, and a pipeline that marks, for each of the types.
struct Types {
    server: PrivatePostgres,
    sql: Client,
}

impl Types {
    async fn on(version: Version) -> Self {
        let slots = TYPES.len() + 8;
        let settings = format!(
            "max_connections = 300\nmax_replication_slots = {slots}\nmax_wal_senders = {slots}"
        );
        let server = PrivatePostgres::start(version, &settings).await;
        let sql = Client::connect(&server.url()).await.expect("a session");
        // Rows are visible before the stream has them: to a sink that answers at once, a mark could come too early.
        sql.batch("set synchronous_commit = off").await;
        let kinds: Vec<String> = (1..=3 * ROWS).map(|i| format!("'v{i}'")).collect();
        sql.batch(&format!(
            "create schema types; create extension citext schema types; \
             create collation types.anycase (provider = icu, locale = 'und-u-ks-level2', deterministic = false); \
             create type types.\"Kind\" as enum ({}); create type types.pair as (n int, t text); \
             create domain types.id12 as char(12); create domain types.price as numeric(10,2); \
             create domain types.price_id as types.price check (value > 0); \
             create domain types.ci as types.citext",
            kinds.join(", ")
        ))
        .await;
        for (name, of, _) in TYPES {
            sql.batch(&format!(
                "create table {name} (id {of} not null, aggregate_type text not null default 'order', \
                   aggregate_id text not null default 'a', event_type text not null default 'T', \
                   payload jsonb not null default '1', metadata jsonb default '{{}}', \
                   created_at timestamptz not null default clock_timestamp(), published_at timestamptz)"
            ))
            .await;
        }
        Self { server, sql }
    }

    /// Pipelines to standard output, with lines of each one's own.
    fn config(&self, lines: &str) -> String {
        let of = |(name, _, _): &(&str, &str, &str)| {
            format!(
                "[pipelines.{name}]\n{lines}[pipelines.{name}.source]\nurl = \"{}\"\n\
                 [pipelines.{name}.outbox]\nlayout = \"adr30\"\ntable = \"public.{name}\"\n\
                 [pipelines.{name}.route]\ntopic = \"{name}\"\n\
                 [pipelines.{name}.sink]\nkind = \"stdout\"\n",
                self.server.url()
            )
        };
        TYPES.iter().map(of).collect()
    }

    async fn insert(&self, from: usize) {
        for (name, _, id) in TYPES {
            let to = from + ROWS - 1;
            let sql =
                format!("insert into {name} (id) select {id} from generate_series({from}, {to}) i");
            self.sql.batch(&sql).await;
        }
    }

    async fn drop_slots(&self) {
        self.sql
            .batch("select pg_drop_replication_slot(slot_name) from pg_replication_slots")
            .await;
    }

    /// Every row of every table is marked.
    async fn marked(&self, what: &str) {
        let unmarked = |(name, _, _): &(&str, &str, &str)| {
            format!("select '{name}' as t from {name} where published_at is null")
        };
        let all: Vec<String> = TYPES.iter().map(unmarked).collect();
        let sql = format!(
            "select string_agg(t || ' ' || n, ', ') from (select t, count(*) as n from ({}) as r group by t) as s",
            all.join(" union all ")
        );
        await_that(what, SOON, || async {
            self.sql.text(&sql).await.map_or(Ok(()), |left| Err(format!("not marked: {left}")))
        })
        .await;
    }
}

/// The ids that were published of each topic, in order.
fn published(stdout: &str, topic: &str) -> Vec<String> {
    let lines = stdout.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let of_topic = lines.filter(|line| line["topic"] == topic);
    of_topic.map(|line| line["headers"][0][1].as_str().expect("an id").to_owned()).collect()
}

fn all_published(stdout: &str, what: &str) {
    let mut wrong = Vec::new();
    for (name, _, _) in TYPES {
        let mut ids = published(stdout, name);
        let count = ids.len();
        ids.sort();
        ids.dedup();
        if (count, ids.len()) != (ROWS, ROWS) {
            wrong.push(format!("{name}: {count} records, {} ids", ids.len()));
        }
    }
    assert!(wrong.is_empty(), "{what}: {wrong:#?}");
}

async fn streaming(relay: &Relay) {
    relay
        .await_status("all streaming", SOON, |status| {
            let list = status["pipelines"].as_array();
            list.is_some_and(|list| list.iter().all(|one| one["state"] == "streaming"))
        })
        .await;
}

async fn all_found(version: Version) {
    let types = Types::on(version).await;
    let config = types.config("poll = { mark_streamed = true }\n");
    // Backfill: rows that are there before.
    types.insert(1).await;
    postrider_ok(&config, &["setup", "--backfill", "all"]);
    let relay = Relay::spawn(&config);
    streaming(&relay).await;
    types.marked("marks of a backfill").await;
    all_published(&relay.stdout(), "backfill");
    // The stream's marks.
    types.insert(1 + ROWS).await;
    types.marked("marks of the stream").await;
    assert_eq!(relay.terminate(SOON).await.code, Some(0));
    // Repair.
    types.insert(1 + 2 * ROWS).await;
    types.drop_slots().await;
    let output = postrider(&config, &["repair", "--json"]);
    let stdout = String::from_utf8(output.stdout).expect("UTF-8");
    let mut wrong = Vec::new();
    for (name, _, _) in TYPES {
        let reports = stdout.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let report = reports.into_iter().find(|line| line["pipeline"] == *name);
        let report = report.unwrap_or_default();
        if (&report["published"], &report["gone"]) != (&ROWS.into(), &0.into()) {
            wrong.push(format!("{name}: {report}"));
        }
    }
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(wrong.is_empty(), "{wrong:#?}\n{errors}");
    assert_eq!(output.status.code(), Some(0), "{errors}");
    all_published(&stdout, "repair");
    types.marked("marks of a repair").await;
    // Replay, by the id that consumers have seen.
    for (name, _, _) in TYPES {
        let id = published(&stdout, name).remove(1);
        let output = postrider(
            &config,
            &["replay", "-p", name, "--id", &id, "--source", "table", "--dry-run", "--json"],
        );
        let report: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
        assert_eq!(report["events"], 1, "{name} {id:?}: {report}");
    }
}

#[tokio::test]
async fn ids_of_every_type_are_marked_backfilled_repaired_and_replayed() {
    all_found(Version::Pg15).await;
    all_found(Version::Pg18).await;
}

/// The slot goes while nothing is unpublished: polling in its stead finds every row marked.
#[tokio::test]
async fn auto_publishes_nothing_again_whatever_the_type_of_the_id() {
    let types = Types::on(Version::Pg17).await;
    let config = types.config("mode = \"auto\"\npoll = { interval = \"100ms\" }\n");
    postrider_ok(&config, &["setup"]);
    let relay = Relay::spawn(&config);
    streaming(&relay).await;
    types.insert(1).await;
    types.marked("marks of the stream").await;
    types
        .sql
        .batch(
            "do $$ declare slot text; begin \
               for slot in select slot_name from pg_replication_slots loop for i in 1..500 loop begin \
                 perform pg_terminate_backend(active_pid) from pg_replication_slots where slot_name = slot and active; \
                 perform pg_drop_replication_slot(slot); exit; \
               exception when object_in_use then perform pg_sleep(0.01); \
                 when undefined_object then exit; end; end loop; end loop; end $$",
        )
        .await;
    await_that("all polled and streaming again", SOON, || async {
        let polled = relay.stderr().matches("polling the table until").count();
        let streams = relay.stderr().matches("INFO streaming ").count();
        if polled >= TYPES.len() && streams >= 2 * TYPES.len() {
            Ok(())
        } else {
            Err(format!("{polled} polled, {streams} streaming"))
        }
    })
    .await;
    all_published(&relay.stdout(), "auto");
    assert_eq!(relay.terminate(SOON).await.code, Some(0));
}
