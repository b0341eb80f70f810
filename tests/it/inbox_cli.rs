//! `postrider inbox`: what each subcommand says and does, and what is refused with which hint.

use crate::await_that::{SOON, await_that};
use crate::docs_commands::{blocks, words};
use crate::relay::{postrider, postrider_at_a_terminal, postrider_ok};
use crate::server::{Client, Database, Version, unique};
use crate::toolkit::install_toolkit;
use serde_json::Value;

/// The oldest version of the server, and the newest one.
const VERSIONS: [Version; 2] = [Version::Pg15, Version::Pg18];

/// A database with the toolkit, and no configuration.
struct Fixture {
    sql: Client,
    database: Database,
}

/// What a command wrote, and its exit code.
#[derive(Debug)]
struct Said {
    code: Option<i32>,
    out: String,
    err: String,
}

impl Said {
    fn json(&self) -> Value {
        serde_json::from_str(&self.out).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    #[track_caller]
    fn has(&self, code: i32, words: &[&str]) {
        assert_eq!(self.code, Some(code), "{self:?}");
        for word in words {
            assert!(self.out.contains(word) || self.err.contains(word), "{word:?}: {self:?}");
        }
    }
}

fn run_at(url: &str, args: &[&str]) -> Said {
    let output = postrider("", &[&["inbox", "--url", url], args].concat());
    Said {
        code: output.status.code(),
        out: String::from_utf8(output.stdout).expect("UTF-8"),
        err: String::from_utf8(output.stderr).expect("UTF-8"),
    }
}

impl Fixture {
    async fn new(version: Version, test: &str) -> Self {
        let database = Database::create(version, test).await;
        let sql = database.connect().await;
        install_toolkit(&sql, "postgres").await;
        Self { sql, database }
    }

    fn run(&self, args: &[&str]) -> Said {
        run_at(&self.database.url(), args)
    }

    #[track_caller]
    fn ok(&self, args: &[&str]) -> String {
        let said = self.run(args);
        assert_eq!(said.code, Some(0), "{args:?}: {said:?}");
        said.out
    }

    /// Objects, one a line.
    #[track_caller]
    fn lines(&self, args: &[&str]) -> Vec<Value> {
        let said = self.run(args);
        said.out.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
    }

    async fn text(&self, sql: &str) -> String {
        self.sql.text(sql).await.unwrap_or_default()
    }

    /// Inserts messages of the type `Paid`: `dead` dead ones, then `processed` and `pending` ones, `d1`, `p1`, `n1` …
    async fn fill(&self, inbox: &str, [dead, processed, pending]: [u32; 3]) {
        self.sql
            .batch(&format!(
                "insert into postrider_inbox.{inbox} (event_id, event_type, aggregate_id, payload, error, retry_count,
                     dead_at, received_at)
                 select 'd' || i, 'Paid', 'a/' || i, '{{\"n\": 1}}', 'no account ' || i, 5,
                     now() - interval '1 hour' * i, now() - interval '9 hours' from generate_series(1, {dead}) i;
                 insert into postrider_inbox.{inbox} (event_id, event_type, processed_at)
                 select 'p' || i, 'Paid', now() - interval '1 hour' * i from generate_series(1, {processed}) i;
                 insert into postrider_inbox.{inbox} (event_id, event_type)
                 select 'n' || i, 'New' from generate_series(1, {pending}) i"
            ))
            .await;
    }

    /// Pending, dead and processed messages of an inbox, counted in its table.
    async fn states(&self, inbox: &str) -> String {
        self.text(&format!(
            "select count(*) filter (where processed_at is null and dead_at is null) || ' ' ||
                 count(*) filter (where processed_at is null and dead_at is not null) || ' ' || count(processed_at)
             from postrider_inbox.{inbox}"
        ))
        .await
    }
}

#[tokio::test]
async fn inboxes_are_created_listed_and_their_state_is_shown() {
    for version in VERSIONS {
        let fixture = Fixture::new(version, "ib_life").await;
        assert_eq!(fixture.ok(&["list"]), "no inboxes\n");
        assert_eq!(fixture.ok(&["status"]), "no inboxes\n");
        assert_eq!(
            fixture.ok(&["create", "mail", "--max-retries", "3", "--retention", "2d"]),
            "created inbox mail: table \"postrider_inbox\".\"mail\"\n"
        );
        fixture.ok(&["create", "stock", "--order", "sequence", "--first-sequence", "-5"]);
        fixture.ok(&["create", "feed", "--order", "arrival", "--retention", "0"]);
        let job = fixture.run(&[
            "create",
            "job",
            "--priorities",
            "urgent=-2..3,rest=4..9",
            "--default-priority",
            "6",
            "--json",
        ]);
        assert_eq!(job.json()["priorities"]["urgent"], serde_json::json!([-2, 3]), "{job:?}");
        let list = fixture.ok(&["list"]);
        let rows: Vec<Vec<&str>> = list
            .lines()
            .map(|line| line.split("  ").map(str::trim).filter(|s| !s.is_empty()).collect())
            .collect();
        assert_eq!(rows[0][..4], ["INBOX", "TABLE", "KIND", "RULE"], "{list}");
        let of = |name: &str| rows.iter().find(|row| row[0] == name).expect("a row").clone();
        assert_eq!(of("feed")[3..6], ["arrival", "5", "for ever"], "{list}");
        assert_eq!(of("job")[3], "priorities rest=4..9,urgent=-2..3", "{list}");
        assert_eq!(
            of("mail")[2..],
            ["managed", "-", "3", "48 h", "0", "0", "0 s", "healthy"],
            "{list}"
        );
        assert_eq!(of("stock")[3], "sequence from -5", "{list}");
        let json = fixture.lines(&["list", "--json"]);
        assert_eq!(json.len(), 4);
        assert_eq!((&json[2]["inbox"], &json[2]["retention_hours"]), (&"mail".into(), &48.into()));
        assert_eq!(
            (&json[3]["order"], &json[3]["first_sequence"]),
            (&"sequence".into(), &(-5).into())
        );
    }
}

#[tokio::test]
async fn a_status_has_its_reasons_and_its_exit_code() {
    for version in VERSIONS {
        let fixture = Fixture::new(version, "ib_status").await;
        for args in [&["mail"][..], &["feed"], &["job"], &["stock", "--order", "sequence"]] {
            fixture.ok(&[&["create"], args].concat());
        }
        fixture
            .sql
            .batch("update postrider.inbox set first_sequence = -5 where name = 'stock'")
            .await;
        // A healthy one, one with dead messages, one whose oldest message waits for too long.
        fixture.fill("job", [0, 0, 2]).await;
        fixture.run(&["status", "job"]).has(0, &["job: healthy", "2 pending", "New   2"]);
        fixture.fill("mail", [2, 1, 1]).await;
        let said = fixture.run(&["status", "mail"]);
        said.has(
            1,
            &[
                "mail: degraded",
                "2 dead messages: postrider inbox dead mail",
                "Paid  0        2     1",
            ],
        );
        fixture.sql.batch(
            "insert into postrider_inbox.stock (event_id, aggregate_id, sequence_num, received_at)
             values ('s', 'item/1', -3, now() - interval '2 hours')",
        ).await;
        let said = fixture.run(&["status", "stock"]);
        said.has(1, &[
            "stock: critical",
            "critical: the oldest pending message is 2 h 0 min old; the limit is 60 min",
            "waiting for missing numbers: 1 aggregate: item/1 for -5..-4: postrider inbox gaps stock",
        ]);
        let all = fixture.lines(&["status", "--json"]);
        let health: Vec<&str> = all.iter().filter_map(|one| one["health"].as_str()).collect();
        assert_eq!(health, ["healthy", "healthy", "degraded", "critical"]);
        assert_eq!(
            all[2]["types"][0],
            serde_json::json!({
                "type": "Paid", "pending": 0, "dead": 2, "processed": 1, "processing_seconds": null,
            })
        );
        assert_eq!(
            (&all[3]["gaps"], all[3]["reasons"].as_array().map(Vec::len)),
            (&1.into(), Some(2))
        );
        assert_eq!(fixture.run(&["status"]).code, Some(1));
        assert_eq!(fixture.run(&["status", "job"]).code, Some(0));
    }
}

#[tokio::test]
async fn what_is_printed_is_what_creates_the_inbox_and_printing_changes_nothing() {
    for version in VERSIONS {
        let fixture = Fixture::new(version, "ib_print").await;
        fixture.sql.batch("create schema \"My 'schema\"").await;
        let args = [
            "create",
            "stock",
            "--order",
            "sequence",
            "--first-sequence",
            "7",
            "--schema",
            "My 'schema",
            "--max-retries",
            "2",
            "--if-not-exists",
        ];
        let printed = fixture.ok(&[&args[..], &["--print-sql"]].concat());
        assert_eq!(fixture.text("select count(*)::text from postrider.inbox").await, "0");
        assert_eq!(
            fixture.text("select count(*)::text from pg_tables where tablename = 'stock'").await,
            "0"
        );
        // No database is needed.
        let plain = postrider_ok("", &["inbox", "create", "mail", "--print-sql"]);
        assert!(plain.contains("SELECT postrider.create_inbox('mail');"), "{plain}");
        for _ in 0..2 {
            fixture.sql.batch(&printed).await;
        }
        let row = "select name || table_schema || ordering || first_sequence || max_retries from postrider.inbox";
        assert_eq!(fixture.text(row).await, "stockMy 'schemasequence72");
        // The command itself finds that it is there.
        fixture.run(&args).has(0, &["inbox stock exists, and is left as it is\n"]);
        let other = fixture.run(&[
            "create",
            "stock",
            "--if-not-exists",
            "--order",
            "arrival",
            "--max-retries",
            "9",
            "--json",
        ]);
        assert_eq!(other.code, Some(1));
        assert_eq!(
            other.json()["differs"],
            serde_json::json!(["max_retries is 2, not 9", "its order is sequence, not arrival",])
        );
        assert_eq!(fixture.text(row).await, "stockMy 'schemasequence72");
        // A rule that fails leaves no inbox behind.
        fixture
            .run(&["create", "half", "--priorities", "NoName=1..2"])
            .has(2, &["22023", "name of a tier"]);
        assert_eq!(fixture.text("select count(*)::text from postrider.inbox").await, "1");
    }
}

#[tokio::test]
async fn dead_messages_are_listed_in_pages_and_payloads_only_when_asked() {
    for version in VERSIONS {
        let fixture = Fixture::new(version, "ib_dead").await;
        fixture.ok(&["create", "mail"]);
        assert_eq!(fixture.ok(&["dead", "mail"]), "no dead messages\n");
        fixture.fill("mail", [3, 1, 1]).await;
        let awkward = "it's \"x\"; drop table y --";
        fixture.sql.execute(
            "insert into postrider_inbox.mail (event_id, event_type, dead_at, error, payload_bytes)
             values ($1, null, now(), E'line\\nesc\\x1b[1m', '\\xff00')",
            &[&awkward],
        ).await.expect("a message");
        fixture
            .sql
            .batch(
                "insert into postrider_inbox.mail (event_id, dead_at, payload)
             values ('z', now(), to_jsonb(repeat('x', 300000)))",
            )
            .await;
        let said = fixture.run(&["dead", "mail"]);
        said.has(
            0,
            &["ID", "DEAD SINCE", "no account 2", "a/3", awkward, "line\u{fffd}esc\u{fffd}[1m"],
        );
        assert!(!said.out.contains("\"n\": 1") && !said.out.contains('\u{1b}'), "{said:?}");
        let first = fixture.run(&["dead", "mail", "--limit", "3", "--json"]);
        first.has(0, &["there are more: --after d3"]);
        let rest = fixture.lines(&["dead", "mail", "--after", "d3", "--json", "--payload"]);
        assert_eq!(rest.len(), 2, "{rest:?}");
        assert_eq!(
            (&rest[0]["id"], &rest[0]["payload"]["base64"]),
            (&awkward.into(), &"/wA=".into())
        );
        assert_eq!(
            (&rest[1]["payload"], &rest[1]["payload_bytes"]),
            (&Value::Null, &300_002.into())
        );
        let end = fixture.lines(&["dead", "mail", "--after", awkward, "--json"]);
        assert_eq!(end.len(), 1, "{end:?}");
        let paid = fixture.lines(&["dead", "mail", "--type", "Paid", "--json", "--payload"]);
        assert_eq!(paid.len(), 3);
        assert_eq!((&paid[0]["payload"]["n"], &paid[0]["attempts"]), (&1.into(), &5.into()));
        assert!(paid[0]["dead_at"].as_str().is_some_and(|at| at.ends_with('Z')), "{paid:?}");
        assert_eq!(fixture.lines(&["dead", "mail", "--type", "", "--json"]).len(), 2);
        fixture.run(&["replay", "mail", awkward, "--yes"]).has(0, &["1 dead", "replayed 1"]);
        assert_eq!(fixture.ok(&["dead", "mail", "--type", "it's; --"]), "no dead messages\n");
        fixture
            .run(&["dead", "mail", "--payload", "--after", "y"])
            .has(0, &["not shown: 300,002 bytes"]);
    }
}

#[tokio::test]
async fn a_replay_says_what_happens_again_before_it_does_it() {
    for version in VERSIONS {
        let fixture = Fixture::new(version, "ib_replay").await;
        fixture.ok(&["create", "mail"]);
        fixture.fill("mail", [3, 2, 1]).await;
        fixture.sql.batch("select postrider.inbox_next('mail', 'w', 1, '1 hour')").await;
        let chosen = ["replay", "mail", "d1", "p1", "n1", "no", "d1"];
        let said = fixture.run(&chosen);
        said.has(2, &[
            "replay of 3 messages of inbox mail: 1 dead, 1 pending with the lease of a worker, 1 processed; 1 of the \
             ids does not exist; the effects of the processed ones happen again",
            "inbox replay asks for confirmation",
            "--yes",
        ]);
        assert_eq!(fixture.states("mail").await, "1 3 2");
        let said = fixture.run(&[&chosen[..], &["--yes", "--json"]].concat());
        assert_eq!((said.code, said.json()["replayed"].as_u64()), (Some(1), Some(3)), "{said:?}");
        assert_eq!(fixture.states("mail").await, "3 2 1");
        fixture
            .run(&["replay", "mail", "--type", "New", "--yes"])
            .has(0, &["has 0 dead messages", "replayed 0"]);
        fixture
            .run(&["replay", "mail", "--all-dead"])
            .has(2, &["inbox mail has 2 dead messages, which become pending"]);
        fixture
            .run(&["replay", "mail", "--type", "Paid", "--yes"])
            .has(0, &["replayed 2 messages of inbox mail"]);
        assert_eq!(fixture.states("mail").await, "5 0 1");
        // Several transactions, an inbox with an order.
        fixture.ok(&["create", "feed", "--order", "arrival"]);
        fixture
            .sql
            .batch(
                "insert into postrider_inbox.feed (event_id, aggregate_id)
                 select 'f' || i, 'a/' || i % 7 from generate_series(1, 2500) i;
                 select * from postrider.inbox_next('feed', 'w', 100);
                 update postrider_inbox.feed set dead_at = now()",
            )
            .await;
        let said = fixture.run(&["replay", "feed", "--all-dead", "--yes"]);
        said.has(0, &["has 2,500 dead messages", "replayed 2,500 messages"]);
        assert_eq!(fixture.states("feed").await, "2500 0 0");
        let next = "select count(*)::text from postrider.inbox_next('feed', 'w', 100)";
        assert_eq!(fixture.text(next).await, "7");
    }
}

/// Between the count and the change a message is processed: its effect does not happen again.
#[tokio::test]
async fn a_message_that_is_processed_meanwhile_is_not_replayed() {
    for ids in [&["--all-dead"][..], &["d1", "d2"]] {
        let fixture = Fixture::new(Version::Pg17, "ib_meanwhile").await;
        fixture.ok(&["create", "mail"]);
        fixture.fill("mail", [2, 0, 0]).await;
        let worker = fixture.database.connect().await;
        let process = "update postrider_inbox.mail set processed_at = now() where event_id = 'd1'";
        worker.batch(&format!("begin; {process}")).await;
        let url = fixture.database.url();
        let args = [&["replay", "mail", "--yes"], ids].concat();
        let args: Vec<String> = args.into_iter().map(str::to_owned).collect();
        let command = std::thread::spawn(move || {
            run_at(&url, &args.iter().map(String::as_str).collect::<Vec<_>>())
        });
        await_lock(&fixture).await;
        worker.batch("commit").await;
        let said = command.join().expect("the command");
        assert!(said.out.contains("replayed 1 message of inbox mail"), "{said:?}");
        assert_eq!(fixture.states("mail").await, "1 0 1");
    }
}

/// Waits until the command waits for a lock of another session.
async fn await_lock(fixture: &Fixture) {
    let waiting = "select count(*)::text from pg_stat_activity where datname = current_database()
                   and application_name = 'postrider inbox' and wait_event_type = 'Lock'";
    await_that("the command to wait for a lock", SOON, || async {
        let count = fixture.text(waiting).await;
        if count == "1" { Ok(()) } else { Err(count) }
    })
    .await;
}

/// The missing number arrives before it is given up: it is not given up, and no later number is.
#[tokio::test]
async fn a_number_that_arrives_meanwhile_is_not_given_up() {
    let fixture = Fixture::new(Version::Pg17, "ib_arrives").await;
    fixture.ok(&["create", "stock", "--order", "sequence"]);
    let insert = "insert into postrider_inbox.stock (event_id, aggregate_id, sequence_num) values";
    fixture.sql.batch(&format!("{insert} ('s2', 'a', 2), ('s4', 'a', 4)")).await;
    fixture.sql.batch("select * from postrider.inbox_next('stock', 'w')").await;
    let writer = fixture.database.connect().await;
    writer.batch("begin; select from postrider.inbox_order for update").await;
    let url = fixture.database.url();
    let command = std::thread::spawn(move || run_at(&url, &["skip-gap", "stock", "a", "--yes"]));
    await_lock(&fixture).await;
    writer.batch(&format!("{insert} ('s1', 'a', 1); commit")).await;
    let said = command.join().expect("the command");
    said.has(1, &["aggregate a does not wait for 1..1 any more, and is left as it is"]);
    let last = "select last_seq::text from postrider.inbox_order";
    assert_eq!(fixture.text(last).await, "0");
}

/// While the question is open a message comes: the table is not dropped.
#[tokio::test]
async fn a_drop_that_was_agreed_to_loses_no_more_than_it_said() {
    let fixture = Fixture::new(Version::Pg17, "ib_grown").await;
    fixture.ok(&["create", "mail"]);
    fixture.fill("mail", [0, 0, 1]).await;
    let writer = fixture.database.connect().await;
    writer.batch("begin; insert into postrider_inbox.mail (event_id) values ('late')").await;
    let url = fixture.database.url();
    let command = std::thread::spawn(move || {
        postrider_at_a_terminal("", &["inbox", "--url", &url, "drop", "mail"], "y\n")
    });
    await_lock(&fixture).await;
    writer.batch("commit").await;
    let (code, shown) = command.join().expect("the command");
    assert_eq!(code, Some(1), "{shown}");
    assert!(
        shown.contains("more messages by now, 2 pending and 0 dead: nothing was changed"),
        "{shown}"
    );
    assert_eq!(fixture.states("mail").await, "2 0 0");
}

#[tokio::test]
async fn messages_are_skipped_with_a_reason_and_in_an_order_only_the_next_one() {
    for version in VERSIONS {
        let fixture = Fixture::new(version, "ib_skip").await;
        fixture.ok(&["create", "mail"]);
        fixture.fill("mail", [2, 1, 1]).await;
        let skip = ["skip", "mail", "d1", "n1", "p1", "no", "--reason", "it's closed"];
        let said = fixture.run(&skip);
        said.has(2, &["skip of 2 messages of inbox mail: 1 dead, 1 pending, 1 processed; 1 of the ids does not exist"]);
        assert_eq!(fixture.states("mail").await, "1 2 1");
        let said = fixture.run(&[&skip[..], &["--yes"]].concat());
        said.has(1, &["skipped 2 messages of inbox mail"]);
        assert_eq!(fixture.states("mail").await, "0 1 3");
        let error = "select error from postrider_inbox.mail where event_id = 'd1'";
        assert_eq!(fixture.text(error).await, "skipped: it's closed; no account 1");
        fixture.run(&["skip", "mail", "d2", "--reason", "", "--yes"]).has(2, &["22023", "Say why"]);
        assert_eq!(fixture.run(&["skip", "mail", "d2"]).code, Some(2));

        fixture.ok(&["create", "stock", "--order", "sequence"]);
        fixture
            .sql
            .batch(
                "insert into postrider_inbox.stock (event_id, aggregate_id, sequence_num)
                 values ('s1', 'a', 1), ('s2', 'a', 2), ('s4', 'a', 4), ('t3', 'b', 3), ('t9', 'b', 9)",
            )
            .await;
        let said = fixture.run(&["skip", "stock", "s2", "--reason", "x", "--yes"]);
        said.has(
            1,
            &["is not the next one of its aggregate", "PR114", "skip the earlier messages"],
        );
        fixture
            .run(&["skip", "stock", "s2", "s1", "--reason", "x", "--yes"])
            .has(0, &["skipped 2"]);

        let gaps = fixture.lines(&["gaps", "stock", "--json"]);
        let of = |gap: &Value| {
            (gap["aggregate"].clone(), gap["missing_from"].clone(), gap["missing_to"].clone())
        };
        let expected = [("a".into(), 3.into(), 3.into()), ("b".into(), 1.into(), 2.into())];
        assert_eq!(gaps.iter().map(of).collect::<Vec<_>>(), expected);
        assert_eq!(gaps[1]["next_id"], "t3");
        assert_eq!(fixture.lines(&["gaps", "stock", "--all", "--json"]).len(), 3);
        fixture.run(&["gaps", "stock", "--all"]).has(0, &["b          4..8     5"]);
        fixture.run(&["gaps", "stock", "--all", "--limit", "1"]).has(0, &["shown: 1 of 3 gaps"]);
        fixture.run(&["skip-gap", "stock", "a", "b", "c"]).has(
            2,
            &[
                "these aggregates wait for no number: c",
                "2 waiting aggregates of inbox stock: a for 3..3, b for 1..2",
            ],
        );
        assert_eq!(fixture.lines(&["gaps", "stock", "--json"]).len(), 2);
        let said = fixture.run(&["skip-gap", "stock", "b", "c", "--yes", "--json"]);
        assert_eq!(
            (said.code, &said.json()["skipped"][0]["missing"]),
            (Some(1), &2.into()),
            "{said:?}"
        );
        fixture
            .run(&["skip-gap", "stock", "a", "--yes"])
            .has(0, &["without the missing numbers: 1 aggregate of inbox stock"]);
        assert_eq!(fixture.ok(&["gaps", "stock"]), "no gaps\n");
        let next = "select string_agg(event_id, ' ' order by event_id) from postrider.inbox_next('stock', 'w')";
        assert_eq!(fixture.text(next).await, "s4 t3");
    }
}

#[tokio::test]
async fn a_purge_deletes_what_it_has_counted_and_never_a_pending_message() {
    for version in VERSIONS {
        let fixture = Fixture::new(version, "ib_purge").await;
        fixture.ok(&["create", "mail"]);
        fixture.fill("mail", [4, 3, 2]).await;
        let said = fixture.run(&["purge", "mail", "--processed-before", "90m"]);
        said.has(2, &["2 processed messages of inbox mail are deleted: a repetition of a deleted message is new"]);
        assert_eq!(fixture.states("mail").await, "2 4 3");
        let said = fixture.run(&["purge", "mail", "--processed-before", "90m", "--yes", "--json"]);
        assert_eq!((said.code, said.json()["deleted"].as_u64()), (Some(0), Some(2)));
        assert_eq!(fixture.states("mail").await, "2 4 1");
        fixture.run(&["purge", "mail", "--dead-before", "210m", "--yes"]).has(
            0,
            &[
                "1 dead message of inbox mail is deleted",
                "the effects of these messages never happen",
                "deleted 1 dead message of inbox mail",
            ],
        );
        let ids = ["purge", "mail", "--dead-ids", "d1", "d2", "n1", "p1", "no"];
        fixture.run(&ids).has(2, &["2 dead messages"]);
        let said = fixture.run(&[&ids[..], &["--yes"]].concat());
        said.has(1, &["deleted 2 dead messages"]);
        assert_eq!(fixture.states("mail").await, "2 1 1");
        fixture
            .run(&["purge", "mail", "--processed-before", "30d"])
            .has(0, &["deleted 0 processed messages"]);
        let health = "select pending || ' ' || dead from postrider.inbox_status('mail')";
        assert_eq!(fixture.text(health).await, "2 1");

        // In batches; a message that a worker has is passed over, and is named.
        fixture.ok(&["create", "bulk"]);
        fixture.fill("bulk", [0, 2500, 1]).await;
        let holder = fixture.database.connect().await;
        holder
            .batch("begin; select * from postrider_inbox.bulk where event_id = 'p2000' for update")
            .await;
        let said = fixture.run(&["purge", "bulk", "--processed-before", "0s", "--yes"]);
        said.has(
            1,
            &[
                "deleted 2,499 processed",
                "not deleted, because other transactions use them: 1 message",
            ],
        );
        holder.batch("rollback").await;
        fixture
            .run(&["purge", "bulk", "--processed-before", "0s", "--yes"])
            .has(0, &["deleted 1 processed"]);
        assert_eq!(fixture.states("bulk").await, "1 0 0");

        // An aggregate goes on behind a message that is deleted, or waits for its number.
        for (order, words) in [
            ("arrival", "the messages behind them are next: 1 aggregate"),
            ("sequence", "or for postrider inbox skip-gap: 1 aggregate"),
        ] {
            fixture.ok(&["create", order, "--order", order]);
            fixture
                .sql
                .batch(&format!(
                    "insert into postrider_inbox.{order} (event_id, aggregate_id, sequence_num, dead_at)
                     values ('s1', 'a', 1, now()), ('s2', 'a', 2, null)"
                ))
                .await;
            let next = format!("select count(*)::text from postrider.inbox_next('{order}', 'w')");
            assert_eq!(fixture.text(&next).await, "0");
            let said = fixture.run(&["purge", order, "--dead-ids", "s1", "--yes"]);
            said.has(0, &[words]);
            let given = if order == "arrival" { "1" } else { "0" };
            assert_eq!(fixture.text(&next).await, given);
        }
        assert_eq!(fixture.lines(&["gaps", "sequence", "--json"]).len(), 1);
    }
}

#[tokio::test]
async fn a_drop_says_what_is_lost_and_a_table_of_others_stays() {
    for version in VERSIONS {
        let fixture = Fixture::new(version, "ib_drop").await;
        fixture.ok(&["create", "mail"]);
        fixture.fill("mail", [2, 4, 3]).await;
        fixture.run(&["drop", "mail"]).has(
            2,
            &[
                "inbox mail has 3 pending and 2 dead messages, which are lost with its table",
                "inbox drop asks for confirmation",
            ],
        );
        assert_eq!(fixture.states("mail").await, "3 2 4");
        let said = fixture.run(&["drop", "mail", "--yes", "--json"]);
        let json = said.json();
        assert_eq!((&json["pending_lost"], &json["dead_lost"]), (&3.into(), &2.into()), "{said:?}");
        let exists = "select coalesce(to_regclass('postrider_inbox.mail')::text, 'none')";
        assert_eq!(fixture.text(exists).await, "none");

        fixture.ok(&["create", "mail"]);
        fixture.fill("mail", [0, 0, 1]).await;
        fixture
            .run(&["drop", "mail", "--keep-table", "--yes"])
            .has(0, &["stays with its messages", "dropped inbox mail"]);
        assert_eq!(fixture.states("mail").await, "1 0 0");
        fixture.run(&["create", "mail"]).has(1, &["PR122", "Drop or rename it"]);

        // A table that was dropped by hand.
        fixture.ok(&["create", "gone", "--order", "arrival"]);
        fixture.ok(&["create", "here"]);
        fixture.sql.batch("drop table postrider_inbox.gone cascade").await;
        let said = fixture.run(&["list"]);
        said.has(
            1,
            &[
                "not readable",
                "the table \"postrider_inbox\".\"gone\" of inbox \"gone\" does not exist",
                "here",
            ],
        );
        let json = fixture.lines(&["status", "--json"]);
        assert!(
            json[0]["unreadable"].as_str().is_some_and(|why| why.contains("does not exist")),
            "{json:?}"
        );
        assert_eq!(json[1]["health"], "healthy");
        fixture
            .run(&["replay", "gone", "--all-dead", "--yes"])
            .has(1, &["does not exist", "postrider inbox drop gone"]);
        fixture
            .run(&["drop", "gone", "--yes"])
            .has(0, &["does not exist any more", "dropped inbox gone"]);
        assert_eq!(fixture.text("select string_agg(name, ' ') from postrider.inbox").await, "here");
    }
}

#[tokio::test]
async fn an_adopted_table_has_the_commands_that_are_for_it() {
    for version in VERSIONS {
        let fixture = Fixture::new(version, "ib_adopt").await;
        fixture
            .sql
            .batch(
                "create table \"Web hook\" (id bigint primary key, \"Kind\" text, received_at timestamptz,
                     processed_at timestamptz, attempts int not null default 0, error text);
                 insert into \"Web hook\" select i, 'push', now(), case when i > 8 then now() - interval '2 days' end,
                     case when i < 4 then 5 else 0 end from generate_series(1, 12) i",
            )
            .await;
        let adopt = [
            "create",
            "hook",
            "--adopt",
            "public.\"Web hook\"",
            "--id-column",
            "id",
            "--retry-count-column",
            "attempts",
        ];
        fixture.run(&adopt).has(1, &["PR123", "has no column \"event_type\""]);
        let said = fixture.run(&[&adopt[..], &["--event-type-column", "Kind"]].concat());
        said.has(0, &["adopted inbox hook: table \"public\".\"Web hook\""]);
        fixture.run(&["list"]).has(0, &["adopted", "degraded"]);
        fixture.run(&["status", "hook"]).has(1, &["3 dead messages", "push  5        3     4"]);
        let dead = fixture.lines(&["dead", "hook", "--json", "--after", "1"]);
        assert_eq!(
            dead.iter().filter_map(|one| one["id"].as_str()).collect::<Vec<_>>(),
            ["2", "3"]
        );
        let no_id = fixture.run(&["dead", "hook", "--after", "x'y"]);
        no_id.has(2, &["cannot be an id of inbox \"hook\", whose ids are of type bigint"]);
        fixture
            .run(&["replay", "hook", "99999999999999999999", "--yes"])
            .has(2, &["cannot be an id"]);
        for args in [
            &["dead", "hook", "--payload"][..],
            &["purge", "hook", "--dead-before", "1d", "--yes"],
            &["skip", "hook", "1", "--reason", "x", "--yes"],
        ] {
            fixture.run(args).has(2, &["inbox \"hook\" is a table of yours"]);
        }
        fixture.run(&["gaps", "hook"]).has(1, &["PR124"]);
        fixture
            .run(&["replay", "hook", "1", "12", "--yes"])
            .has(0, &["1 dead, 1 processed", "replayed 2"]);
        fixture.run(&["replay", "hook", "--all-dead", "--yes"]).has(0, &["replayed 2 messages"]);
        fixture
            .run(&["purge", "hook", "--processed-before", "1d", "--yes"])
            .has(0, &["deleted 3 processed"]);
        fixture.sql.batch("update \"Web hook\" set attempts = 5 where id in (5, 6)").await;
        fixture
            .run(&["purge", "hook", "--dead-ids", "5", "--yes"])
            .has(0, &["deleted 1 dead message"]);
        fixture.run(&["drop", "hook", "--yes"]).has(0, &["stays with its messages"]);
        assert_eq!(fixture.text("select count(*)::text from \"Web hook\"").await, "8");
    }
}

#[tokio::test]
async fn a_table_without_types_is_adopted_and_one_that_is_missing_is_not() {
    for version in VERSIONS {
        let fixture = Fixture::new(version, "ib_adopt_not").await;
        fixture
            .sql
            .batch(
                "create table plain (event_id text primary key, received_at timestamptz, processed_at timestamptz,
                     retry_count int, error text)",
            )
            .await;
        let adopt = ["create", "hook", "--adopt", "public.plain", "--event-type-column", ""];
        fixture.ok(&adopt);
        fixture.run(&["dead", "hook", "--type", "push"]).has(2, &["has no column of types"]);
        fixture
            .run(&["create", "x", "--adopt", "nosuch.table"])
            .has(1, &["does not exist", "--adopt public.webhook"]);
        fixture
            .run(&["create", "x", "--adopt", "public.nosuch"])
            .has(1, &["42P01", "--adopt public.webhook"]);
        fixture.run(&["create", "x", "--schema", "nosuch"]).has(1, &["3F000", "--schema"]);
        fixture
            .run(&[&["create", "x"], &adopt[2..]].concat())
            .has(1, &["PR122", "another one has table"]);
    }
}

/// The second transaction fails: the first one is done, and the command can be repeated.
#[tokio::test]
async fn an_error_in_between_says_how_many_are_done() {
    let fixture = Fixture::new(Version::Pg17, "ib_partly").await;
    fixture.ok(&["create", "mail"]);
    fixture
        .sql
        .batch(
            "insert into postrider_inbox.mail (event_id, dead_at)
             select 'm' || lpad(i::text, 5, '0'), now() from generate_series(1, 2500) i;
             create function refuse() returns trigger language plpgsql as $$ begin
                 raise exception 'not this one' using errcode = 'P0001';
             end $$;
             create trigger refuse before update on postrider_inbox.mail for each row
                 when (new.event_id = 'm01500') execute function refuse()",
        )
        .await;
    let said = fixture.run(&["replay", "mail", "--all-dead", "--yes"]);
    said.has(1, &["1,000 messages were replayed before this error", "P0001", "can be repeated"]);
    assert_eq!(fixture.states("mail").await, "1000 1500 0");
    fixture.sql.batch("drop trigger refuse on postrider_inbox.mail").await;
    fixture.run(&["replay", "mail", "--all-dead", "--yes"]).has(0, &["replayed 1,500 messages"]);
}

/// At a terminal it asks, and only `y` changes something.
#[tokio::test]
async fn at_a_terminal_it_asks() {
    let fixture = Fixture::new(Version::Pg18, "ib_asks").await;
    fixture.ok(&["create", "mail"]);
    fixture.fill("mail", [1, 1, 1]).await;
    let url = fixture.database.url();
    let cases: [(&[&str], &str, &str, &str); 4] = [
        (&["replay", "mail", "d1"], "replay these messages? [y/N]", "1 1 1", "2 0 1"),
        (&["skip", "mail", "d1", "--reason", "x"], "skip these messages? [y/N]", "2 0 1", "1 0 2"),
        (
            &["purge", "mail", "--processed-before", "0s"],
            "delete these messages? [y/N]",
            "1 0 2",
            "1 0 0",
        ),
        (&["drop", "mail"], "drop this inbox? [y/N]", "1 0 0", ""),
    ];
    for (args, question, before, after) in cases {
        let args = [&["inbox", "--url", &url], args].concat();
        let (code, shown) = postrider_at_a_terminal("", &args, "n\n");
        assert!(code == Some(0) && shown.contains(question), "{shown}");
        assert_eq!(fixture.states("mail").await, before);
        let (code, shown) = postrider_at_a_terminal("", &args, "y\n");
        assert_eq!(code, Some(0), "{shown}");
        if !after.is_empty() {
            assert_eq!(fixture.states("mail").await, after);
        }
    }
    assert_eq!(fixture.ok(&["list"]), "no inboxes\n");
}

#[tokio::test]
async fn what_is_refused_has_a_hint() {
    let fixture = Fixture::new(Version::Pg16, "ib_refused").await;
    fixture.ok(&["create", "mail"]);
    let cases: [(&[&str], i32, &[&str]); 12] = [
        (&["create", "mail"], 1, &["PR122", "Give this one another name"]),
        (&["create", "Mail'; drop"], 2, &["22023", "1 to 47 characters"]),
        (&["create", "x", "--max-retries", "0"], 2, &["22023", "p_max_retries"]),
        (&["create", "x", "--retention", "90m"], 2, &["whole hours"]),
        (&["create", "x", "--order", "arrival", "--first-sequence", "1"], 2, &["--order sequence"]),
        (
            &["create", "x", "--order", "arrival", "--priorities", "a=1..2"],
            2,
            &["cannot be used with"],
        ),
        (
            &["status", "no'such"],
            1,
            &["there is no inbox \"no'such\"; there are mail", "postrider inbox create"],
        ),
        (&["gaps", "mail"], 1, &["PR125", "Only numbers have gaps"]),
        (&["skip-gap", "mail", "a", "--yes"], 1, &["PR125"]),
        (&["replay", "mail"], 2, &["required"]),
        (&["replay", "mail", "x", "--all-dead"], 2, &["cannot be used with"]),
        (
            &["purge", "mail", "--dead-before", "1d", "--processed-before", "1d"],
            2,
            &["cannot be used with"],
        ),
    ];
    for (args, code, words) in cases {
        fixture.run(args).has(code, words);
    }
    // A worker has the message in a transaction.
    fixture.fill("mail", [0, 0, 1]).await;
    let worker = fixture.database.connect().await;
    worker.batch("begin; select * from postrider.inbox_next('mail', 'w')").await;
    let said = fixture.run(&["replay", "mail", "n1", "--yes"]);
    said.has(1, &["another transaction uses the messages", "55P03", "run the command again"]);
    worker.batch("rollback").await;

    // Not installed, and an earlier version.
    let other = Database::create(Version::Pg16, "ib_empty").await;
    let hint = "postrider sql --install --url ADMIN_URL --administrator ROLE";
    for args in [&["list"][..], &["create", "mail"], &["drop", "mail", "--yes"]] {
        run_at(&other.url(), args).has(1, &["has no inboxes of this version", hint]);
    }
    fixture.sql.batch("drop function postrider.inbox_health(text) cascade").await;
    fixture.run(&["status", "mail"]).has(1, &["has no inboxes of this version", hint]);
}

/// An administrator may do all of it, a reader looks; each of the rest names the line that gives the right.
#[tokio::test]
async fn a_reader_looks_and_is_given_the_line_for_the_rest() {
    for version in VERSIONS {
        let fixture = Fixture::new(version, "ib_roles").await;
        let [leader, second, reader, nobody] = ["leader", "second", "reader", "nobody"].map(unique);
        let url = fixture.database.url();
        for role in [&leader, &second, &reader, &nobody] {
            fixture.sql.batch(&format!("create role {role} login")).await;
        }
        let roles = ["--administrator", &leader, "--administrator", &second, "--reader", &reader];
        postrider_ok("", &[&["sql", "--install", "--url", &url], &roles[..]].concat());
        let at = |role: &str, args: &[&str]| {
            run_at(&url.replacen("postgres@", &format!("{role}@"), 1), args)
        };
        at(&leader, &["create", "stock", "--order", "sequence"]).has(0, &["created inbox stock"]);
        at(&leader, &["create", "mail"]).has(0, &["created inbox mail"]);
        fixture.fill("mail", [3, 2, 2]).await;
        at(&reader, &["list"]).has(0, &["mail", "stock"]);
        at(&reader, &["status", "mail"]).has(1, &["mail: degraded"]);
        at(&reader, &["dead", "mail", "--payload"]).has(0, &["no account 1"]);
        at(&reader, &["gaps", "stock"]).has(0, &["no gaps"]);
        let changes: [&[&str]; 6] = [
            &["create", "other"],
            &["replay", "mail", "d1", "--yes"],
            &["replay", "mail", "--all-dead", "--yes"],
            &["skip", "mail", "d1", "--reason", "x", "--yes"],
            &["purge", "mail", "--dead-ids", "d1", "--yes"],
            &["drop", "mail", "--yes"],
        ];
        for args in changes {
            at(&reader, args).has(1, &["42501", "--install --url ADMIN_URL --administrator ROLE"]);
        }
        at(&nobody, &["list"]).has(1, &["42501", "--install --url ADMIN_URL --reader ROLE"]);
        assert_eq!(fixture.states("mail").await, "2 3 2");
        // Another administrator changes messages; the inbox belongs to the first one.
        at(&second, &["replay", "mail", "d1", "--yes"]).has(0, &["replayed 1"]);
        at(&second, &["skip", "mail", "d2", "--reason", "x", "--yes"]).has(0, &["skipped 1"]);
        at(&second, &["purge", "mail", "--dead-ids", "d3", "--yes"]).has(0, &["deleted 1"]);
        let said = at(&second, &["drop", "mail", "--yes"]);
        said.has(1, &["42501", "can be dropped only by the owner", &leader]);
        assert_eq!(fixture.states("mail").await, "3 0 3");
        at(&leader, &["drop", "mail", "--yes"]).has(0, &["dropped inbox mail with 3 pending"]);
        at(&leader, &["drop", "stock", "--yes"]).has(0, &["dropped inbox stock"]);
        // A table whose owner has granted nothing.
        fixture
            .sql
            .batch(
                "create table public.hook (event_id text primary key, event_type text, processed_at timestamptz,
                     retry_count int, error text, received_at timestamptz);
                 select postrider.enable_inbox_tracking('hook', 'public.hook'), postrider.create_inbox('late')",
            )
            .await;
        let said = at(&reader, &["list"]);
        said.has(1, &["late", "not readable", "GRANT SELECT ON TABLE \"public\".\"hook\" TO ROLE"]);
        let roles = [&leader, &second, &reader, &nobody].map(String::as_str).join(", ");
        fixture.sql.batch(&format!("drop owned by {roles} cascade; drop role {roles}")).await;
    }
}

/// Without `--url` it is the source of the pipeline.
#[tokio::test]
async fn the_database_is_the_source_of_the_pipeline() {
    let fixture = Fixture::new(Version::Pg15, "ib_conf").await;
    fixture.ok(&["create", "mail"]);
    let one = |name: &str| {
        format!(
            "[pipelines.{name}.source]\nurl = \"{}\"\n[pipelines.{name}.outbox]\ntable = \"public.outbox\"\n\
             [pipelines.{name}.sink]\nkind = \"discard\"\n",
            fixture.database.url()
        )
    };
    let (first, other) = (unique("ib_conf"), unique("ib_conf"));
    assert!(postrider_ok(&one(&first), &["inbox", "list"]).contains("mail"));
    let both = one(&first) + &one(&other);
    let refused = postrider(&both, &["inbox", "list"]);
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(refused.status.code() == Some(2) && said.contains("select one with -p"), "{said}");
    assert!(postrider_ok(&both, &["inbox", "list", "-p", &first]).contains("mail"));
}

/// What the section of the page shows, in its order, after the statements of the page.
#[tokio::test]
async fn what_the_page_shows_of_the_command_can_be_run() {
    let fixture = Fixture::new(Version::Pg17, "ib_page").await;
    fixture
        .sql
        .batch(
            "create table public.webhook (id bigint generated always as identity primary key, kind text,
                 received_at timestamptz not null default now(), processed_at timestamptz,
                 attempts integer not null default 0, error text)",
        )
        .await;
    let mut ran = Vec::new();
    for block in blocks::of("docs/sql/inbox.md").into_iter().filter(|block| block.language == "sh")
    {
        for command in block.text.lines().filter(|line| line.starts_with("postrider inbox ")) {
            let command = command.split(" #").next().unwrap_or(command);
            let typed = words(command);
            let args: Vec<&str> = typed.iter().skip(2).map(String::as_str).collect();
            let said = fixture.run(&args);
            let looks =
                args[0] == "status" && said.code == Some(1) && said.out.contains("degraded");
            assert!(said.code == Some(0) || looks, "{}: {command}: {said:?}", block.place);
            ran.push(args[0].to_owned());
            if command.contains("create stock") {
                fixture.fill("mail", [3, 2, 2]).await;
                fixture
                    .sql
                    .batch(
                        "insert into postrider_inbox.stock (event_id, aggregate_id, sequence_num)
                         values ('s-3', 'item/1', 3)",
                    )
                    .await;
            }
        }
    }
    ran.sort();
    ran.dedup();
    let all =
        ["create", "dead", "drop", "gaps", "list", "purge", "replay", "skip", "skip-gap", "status"];
    assert_eq!(ran, all);
}
