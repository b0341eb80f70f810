//! `postrider groups`: what each subcommand says and does, and what is refused with which hint.

use crate::docs_commands::blocks;
use crate::relay::{postrider, postrider_at_a_terminal, postrider_ok};
use crate::server::{Client, Database, Version, unique};
use crate::toolkit::install_toolkit;
use serde_json::Value;

/// A log `orders` with 400 events in four hash partitions, written by SQL; the last 100 are an hour younger.
struct Fixture {
    sql: Client,
    database: Database,
}

/// Appends events to the hash partitions in turn, by a writer that is no pipeline.
const APPEND: &str = "create function append(p_n integer, p_at timestamptz) returns void language plpgsql as $$
declare
    h record;
    v_heads bigint[];
    v_counts bigint[];
begin
    perform postrider.log_open('orders', 'test'), postrider.log_extend('orders');
    select * into h from postrider.log_head('orders');
    with i as (
        insert into postrider_log.log_orders (seq, part, appended_at, event_id, payload)
        select h.last_seq + i, (i % 4)::smallint, p_at, i::text, i::text from generate_series(1, p_n) i
        returning seq, part),
    p as (select part, max(seq) as head, count(*) as n from i group by part)
    select array_agg(coalesce(p.head, h.heads[x]) order by x), array_agg(h.counts[x] + coalesce(p.n, 0) order by x)
    into v_heads, v_counts from generate_series(1, 4) x left join p on p.part = x - 1;
    perform postrider.log_move('orders', h.last_seq, p_n, v_heads, v_counts);
end $$";

impl Fixture {
    async fn new(version: Version, test: &str) -> Self {
        let database = Database::create(version, test).await;
        let sql = database.connect().await;
        install_toolkit(&sql, "postgres").await;
        sql.batch("select postrider.create_log('orders', 4, 100)").await;
        sql.batch(APPEND).await;
        sql.batch(
            "select append(100, now() - interval '3 hours'); select append(100, now() - interval '3 hours'); \
             select append(100, now() - interval '2 hours'); select append(100, now() - interval '1 hour')",
        )
        .await;
        Self { sql, database }
    }

    /// Runs the command, without a configuration.
    fn ok(&self, args: &[&str]) -> String {
        let url = self.database.url();
        postrider_ok("", &[&["groups"], args, &["--url", &url]].concat())
    }

    /// Runs the command, which is refused: its exit code, and what it says.
    fn refused(&self, args: &[&str]) -> (Option<i32>, String) {
        let url = self.database.url();
        let output = postrider("", &[&["groups"], args, &["--url", &url]].concat());
        assert!(!output.status.success(), "{args:?}");
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    }

    async fn number(&self, sql: &str) -> u64 {
        let text = self.sql.text(&format!("select ({sql})::text")).await;
        text.and_then(|text| text.parse().ok()).unwrap_or_else(|| panic!("{sql}: no number"))
    }

    async fn poll(&self, group: &str, max: u32) -> u64 {
        self.number(&format!(
            "select count(*) from postrider.poll_outbox('{group}', 'worker', {max})"
        ))
        .await
    }

    /// Polls once, and commits.
    async fn work(&self, group: &str, max: u32) {
        let sql = format!(
            "select count(postrider.commit_offset('{group}', 'worker', p.seq, p.lease)) from ( \
             select lease, max(seq) as seq from postrider.poll_outbox('{group}', 'worker', {max}) group by lease) p"
        );
        assert_eq!(self.number(&sql).await, 1);
    }
}

#[tokio::test]
#[expect(clippy::too_many_lines, reason = "one group's life, command by command")]
async fn groups_are_created_listed_moved_and_dropped() {
    for version in Version::ALL {
        let fixture = Fixture::new(version, "gr_cli").await;
        assert_eq!(fixture.ok(&["list"]), "no groups\n");
        assert_eq!(
            fixture.ok(&[
                "create",
                "billing",
                "--event-log",
                "orders",
                "--from",
                "earliest",
                "--retain-max",
                "1000"
            ]),
            "created group billing of log orders: 400 events to read\n"
        );
        assert_eq!(
            fixture.ok(&["create", "search", "--event-log", "orders"]),
            "created group search of log orders: 0 events to read\n"
        );
        fixture.work("billing", 10).await;
        assert_eq!(fixture.poll("billing", 10).await, 10);
        let list = fixture.ok(&["list"]);
        let lines: Vec<Vec<&str>> =
            list.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(lines[0][..3], ["GROUP", "LOG", "LAG"], "{list}");
        assert_eq!(
            lines[1],
            [
                "billing", "orders", "390", "3", "h", "0", "min", "1", "1", "of", "4", "1",
                "1,000", "-"
            ],
            "{list}"
        );
        assert_eq!(
            lines[2],
            ["search", "orders", "0", "0", "s", "0", "0", "of", "4", "0", "-", "-"],
            "{list}"
        );
        let json: Vec<Value> = fixture
            .ok(&["list", "--json", "--event-log", "orders"])
            .lines()
            .map(|line| serde_json::from_str(line).expect("JSON"))
            .collect();
        assert_eq!(json.len(), 2);
        assert_eq!((&json[0]["lag_events"], &json[0]["retain_max"]), (&390.into(), &1000.into()));
        assert!(json[0]["lag_seconds"].as_f64() > Some(10_000.0), "{}", json[0]);

        let lag = fixture.ok(&["lag", "billing"]);
        assert!(lag.starts_with("PART  OFFSET  LAST EVENT  LAG"), "{lag}");
        assert!(lag.contains("worker") && lag.contains("leased"), "{lag}");
        assert!(lag.ends_with("390 events to read, the oldest since 3 h 0 min\n"), "{lag}");
        let lag: Value =
            serde_json::from_str(&fixture.ok(&["lag", "billing", "--json"])).expect("JSON");
        let parts = lag["partitions"].as_array().expect("partitions");
        let sum: u64 = parts.iter().filter_map(|part| part["lag_events"].as_u64()).sum();
        assert_eq!((parts.len(), sum), (4, 390));

        // Forwards and back: what is said is what happens.
        let (code, said) = fixture.refused(&["seek", "billing", "--to", "200"]);
        assert_eq!(code, Some(2));
        assert!(
            said.contains("skips 190 events and repeats 0; 1 hash partitions are leased"),
            "{said}"
        );
        assert!(said.contains("groups seek asks for confirmation"), "{said}");
        assert_eq!(
            fixture.number("select sum(lag) from postrider.consumer_lag('billing')").await,
            390
        );
        assert_eq!(
            fixture.ok(&["seek", "billing", "--to", "200", "--yes"]),
            "group billing continues after event 200\n"
        );
        assert_eq!(
            fixture.number("select sum(lag) from postrider.consumer_lag('billing')").await,
            200
        );
        let back: Value = serde_json::from_str(
            &fixture.ok(&["seek", "billing", "--to", "150", "--yes", "--json"]),
        )
        .expect("JSON");
        assert_eq!(
            (&back["offset"], &back["skipped"], &back["repeated"]),
            (&150.into(), &0.into(), &50.into())
        );
        assert_eq!(fixture.poll("billing", 1000).await, 250);
        for (time, offset) in [("150m", 200), ("90m", 300), ("1s", 400), ("10d", 0)] {
            let said = fixture.ok(&["seek", "search", "--to-time", time, "--yes"]);
            assert_eq!(said, format!("group search continues after event {offset}\n"), "{time}");
            let lag = fixture.number("select sum(lag) from postrider.consumer_lag('search')").await;
            assert_eq!(lag, 400 - offset);
        }
        fixture.ok(&["seek", "search", "--earliest", "--yes"]);
        assert_eq!(
            fixture.number("select sum(lag) from postrider.consumer_lag('search')").await,
            400
        );
        fixture.ok(&["seek", "search", "--latest", "--yes"]);
        assert_eq!(
            fixture.number("select sum(lag) from postrider.consumer_lag('search')").await,
            0
        );

        let (code, said) = fixture.refused(&["drop", "search"]);
        assert_eq!(code, Some(2));
        assert!(said.contains("its offsets are deleted with it"), "{said}");
        assert_eq!(fixture.ok(&["drop", "search", "--yes"]), "dropped group search\n");
        assert_eq!(fixture.number("select count(*) from postrider.consumer_group").await, 1);
    }
}

#[tokio::test]
async fn an_eviction_is_asked_for_and_ended_by_a_seek() {
    let fixture = Fixture::new(Version::Pg17, "gr_evict").await;
    fixture.ok(&["create", "billing", "--event-log", "orders", "--from", "earliest"]);
    let (code, said) = fixture.refused(&["evict", "billing"]);
    assert_eq!(code, Some(2));
    assert!(
        said.contains("has 400 events to read; after an eviction retention may drop them"),
        "{said}"
    );
    assert_eq!(fixture.ok(&["evict", "billing", "--yes"]), "evicted group billing\n");
    assert_eq!(fixture.ok(&["evict", "billing"]), "group billing was evicted before\n");
    assert!(fixture.ok(&["list"]).contains("evicted 20"), "{}", fixture.ok(&["list"]));
    fixture.sql.batch("select postrider.log_retain('orders', '90 minutes')").await;
    assert_eq!(fixture.number("select first_seq from postrider.event_log").await, 300);
    let polled =
        fixture.sql.simple_query("select * from postrider.poll_outbox('billing', 'worker')").await;
    let code = polled.expect_err("an evicted group").code().map(|code| code.code().to_owned());
    assert_eq!(code.as_deref(), Some("PR113"));
    let (_, said) = fixture.refused(&["seek", "billing", "--to", "5"]);
    assert!(said.contains("a seek after event 299 skips"), "{said}");
    assert!(
        said.contains("what is before that is gone, dropped by retention; it ends the eviction"),
        "{said}"
    );
    fixture.ok(&["seek", "billing", "--to", "5", "--yes"]);
    assert_eq!(fixture.poll("billing", 1000).await, 101);
    fixture.ok(&["create", "other", "--event-log", "orders", "--from", "earliest"]);
    fixture.ok(&["evict", "other", "--yes"]);
    let said = fixture.ok(&["resume", "other"]);
    assert_eq!(
        said,
        "group other of log orders continues; 0 events that it had not done are gone, dropped by retention\n"
    );
    assert_eq!(fixture.poll("other", 1000).await, 101);
}

/// At a terminal it asks, and only `y` changes something.
#[tokio::test]
async fn at_a_terminal_it_asks() {
    let fixture = Fixture::new(Version::Pg18, "gr_asks").await;
    fixture.ok(&["create", "billing", "--event-log", "orders"]);
    let url = fixture.database.url();
    let args = ["groups", "drop", "billing", "--url", &url];
    let (code, shown) = postrider_at_a_terminal("", &args, "n\n");
    assert_eq!(code, Some(0), "{shown}");
    assert_eq!(fixture.number("select count(*) from postrider.consumer_group").await, 1);
    let (code, shown) = postrider_at_a_terminal("", &args, "y\n");
    assert_eq!(code, Some(0), "{shown}");
    assert!(
        shown.contains("drop this group? [y/N]") && shown.contains("dropped group billing"),
        "{shown}"
    );
    assert_eq!(fixture.number("select count(*) from postrider.consumer_group").await, 0);
}

/// Errors of the functions have their hints; a database without the toolkit says how it is installed.
#[tokio::test]
async fn what_is_refused_has_a_hint() {
    let fixture = Fixture::new(Version::Pg16, "gr_refused").await;
    fixture.ok(&["create", "billing", "--event-log", "orders"]);
    let cases: [(&[&str], &[&str]); 7] = [
        (
            &["create", "x", "--event-log", "nosuch"],
            &["PR110", "Table postrider.event_log lists the logs"],
        ),
        (&["create", "billing", "--event-log", "orders"], &["PR111", "Give this one another name"]),
        (&["create", "", "--event-log", "orders"], &["22023", "a name of 1 to 200 bytes"]),
        (
            &["drop", "nosuch", "--yes"],
            &["no consumer group \"nosuch\"; there are billing", "groups create"],
        ),
        (&["seek", "nosuch", "--latest"], &["no consumer group \"nosuch\""]),
        (&["lag", "nosuch"], &["PR112", "create_consumer_group"]),
        (
            &["seek", "billing", "--to-time", "yesterdayish"],
            &["is not a time", "2026-03-01T04:00:00Z"],
        ),
    ];
    for (args, words) in cases {
        let (_, said) = fixture.refused(args);
        for word in words {
            assert!(said.contains(word), "{args:?}: {word}: {said}");
        }
    }
    // Exactly one place.
    for args in [&["seek", "billing"][..], &["seek", "billing", "--latest", "--earliest"]] {
        assert_eq!(fixture.refused(args).0, Some(2), "{args:?}");
    }
    let other = Database::create(Version::Pg16, "gr_empty").await;
    let output = postrider("", &["groups", "list", "--url", &other.url()]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        said.contains("has no consumer groups") && said.contains("postrider sql --install"),
        "{said}"
    );
}

/// Without `--url` it is the database of the pipeline: the source, if the sink has none.
#[tokio::test]
async fn the_database_is_that_of_the_pipeline() {
    let fixture = Fixture::new(Version::Pg15, "gr_conf").await;
    fixture.ok(&["create", "billing", "--event-log", "orders"]);
    let name = unique("gr_conf");
    let config = |url: &str, sink: &str| {
        format!(
            "[pipelines.{name}.source]\nurl = \"{url}\"\n[pipelines.{name}.outbox]\ntable = \"public.outbox\"\n\
             [pipelines.{name}.route]\ntopic = \"orders\"\n[pipelines.{name}.sink]\n{sink}\n"
        )
    };
    let other = Database::create(Version::Pg15, "gr_conf_source").await;
    let of_source = config(&fixture.database.url(), "kind = \"postgres\"");
    let of_sink = config(
        &other.url(),
        &format!(
            "kind = \"postgres\"\n[pipelines.{name}.sink.postgres]\nurl = \"{}\"",
            fixture.database.url()
        ),
    );
    for config in [of_source, of_sink] {
        let list = postrider_ok(&config, &["groups", "list"]);
        assert!(list.contains("billing  orders"), "{list}");
    }
}

/// What docs/sql/running.md shows, in its order: settings, commands of groups, statements.
#[tokio::test]
async fn what_the_page_of_running_shows_can_be_run() {
    let database = Database::create(Version::Pg17, "gr_page").await;
    let sql = database.connect().await;
    let config = format!(
        "[pipelines.orders.source]\nurl = \"{}\"\n[pipelines.orders.outbox]\ntable = \"public.outbox\"\n\
         [pipelines.orders.sink]\nkind = \"postgres\"\n",
        database.url()
    );
    postrider_ok(&config, &["setup", "--create-table"]);
    install_toolkit(&sql, "postgres").await;
    sql.batch("select postrider.create_log('orders')").await;
    postrider_ok(&config, &["groups", "create", "billing", "--event-log", "orders"]);
    for block in blocks::of("docs/sql/running.md") {
        match block.language.as_str() {
            "toml" => {
                postrider_ok(&format!("{}{config}", block.text), &["config", "show"]);
            }
            "sh" => {
                let commands =
                    block.text.lines().map(|line| line.split('#').next().unwrap_or(line));
                for command in commands.filter(|command| command.starts_with("postrider groups")) {
                    if command.contains(" create ") {
                        postrider_ok(&config, &["groups", "drop", "billing", "--yes"]);
                    }
                    let args: Vec<&str> = command.split_whitespace().skip(1).collect();
                    postrider_ok(&config, &args);
                }
            }
            "sql" => {
                let result = sql.simple_query(&block.text).await;
                result.unwrap_or_else(|error| panic!("{}: {error:?}", block.place));
            }
            other => assert_eq!(other, "text", "{}", block.place),
        }
    }
}
