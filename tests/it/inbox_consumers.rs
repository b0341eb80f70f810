//! The inbox in programs: docs/consumers.md and docs/sql/inbox-programs.md show them in five languages, and here they
//! are run, two at once, over records that a pipeline has published and that come twice. They are killed, their
//! connections are cut and their leases end; each effect happens once, and in order where that is promised.

use crate::await_that::{SOON, await_that};
use crate::consumers::await_numbers;
use crate::docs_commands::blocks;
use crate::pipeline::{Pipeline, show};
use crate::programs::{INBOX, Language, Process, root};
use crate::server::{Client, Database, Version};
use crate::toolkit::install_toolkit;
use crate::topic::ReadRecord;
use std::fmt::Write as _;
use std::time::Instant;

/// Events that are published, and aggregates that they belong to.
const EVENTS: usize = 120;
const AGGREGATES: usize = 20;

/// The event whose effect fails each time in inbox `mail`, and the one whose effect fails twice in both inboxes.
const DEAD: usize = 47;
const FLAKY: usize = 48;

/// How long a worker of the ordered inbox has its messages, in seconds.
const LEASE: &str = "2";

/// A file of the repository.
fn read(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// A record as the programs read it; `offset` is its place in what they read, and `source` is the pipeline, if the
/// record is to say so.
fn line(offset: usize, topic: &str, source: Option<&str>, record: &ReadRecord) -> String {
    let mut headers = source.map(|name| format!("source={name},")).unwrap_or_default();
    for (name, value) in record.headers.iter().filter(|(name, _)| name != "source") {
        let value = value.as_deref().map(String::from_utf8_lossy).unwrap_or_default();
        assert!(!value.contains(','), "{name} of a test has no comma: {value}");
        write!(headers, "{name}={value},").expect("a String");
    }
    let (key, value) = (record.key_text().expect("a key"), record.value_text().expect("a payload"));
    format!("{offset}\t{topic}\t{key}\t{headers}\t{value}\n")
}

/// The effects, as `topic/key`, a tab and the number of the event, that the program has over these records. Each of
/// them is in the topics of all `pipelines`, whose names are those of their topics.
pub(crate) async fn effects(
    language: Language,
    pipelines: &[&str],
    records: &[ReadRecord],
) -> Vec<String> {
    INBOX.build(language).await;
    let world = World::create(language, Version::Pg18, "inbox_recorded").await;
    let of_all =
        |(offset, record)| pipelines.iter().map(move |name| line(offset, name, Some(name), record));
    let input: Vec<String> = records.iter().enumerate().flat_map(of_all).collect();
    world.spawn(&["is-new", "billing"], &input).finishes().await;
    let effects = "select aggregate_id || E'\\t' || (payload->>'n') from effect";
    let rows = world.sql.query(effects, &[]).await.expect("the effects");
    rows.iter().map(|row| row.get(0)).collect()
}

/// What a pipeline has published: the records as the programs read them, each of them twice, as after offsets that were
/// set back. Header `sequence` is the number of the event in its aggregate.
async fn published(version: Version, test: &str) -> Vec<String> {
    let pipeline = Pipeline::shared(version, test).await;
    let relay = pipeline.run();
    let insert = format!(
        "insert into public.outbox (aggregate_type, aggregate_id, event_type, payload, headers)
         select 'order', (i % {AGGREGATES})::text, 'Written', json_build_object('n', i),
             json_build_object('sequence', ((i - 1) / {AGGREGATES} + 1)::text)
         from generate_series(1, {EVENTS}) i"
    );
    pipeline.sql.batch(&insert).await;
    await_numbers(&pipeline, 1..EVENTS + 1).await;
    assert_eq!(relay.terminate(SOON).await.code, Some(0));
    let records = pipeline.topic.read_all().await;
    let sequences = records.iter().filter(|record| record.header("sequence").is_some()).count();
    assert_eq!((records.len(), sequences), (EVENTS, EVENTS), "each event once, and numbered");
    let twice = records.iter().chain(&records).enumerate();
    twice.map(|(offset, record)| line(offset, "order", None, record)).collect()
}

/// Messages of another producer, each twice; every second one has its time.
fn messages() -> Vec<String> {
    let one = |offset: usize| {
        let n = offset % EVENTS + 1;
        let time = if n.is_multiple_of(2) { "time=2026-10-05T10:00:00Z," } else { "" };
        let key = n % AGGREGATES;
        format!("{offset}\tmail\t{key}\tid=message-{n},{time}source=shop\t{{\"n\": {n}}}\n")
    };
    (0..2 * EVENTS).map(one).collect()
}

/// A database with the toolkit and the table of the effects.
struct World {
    language: Language,
    database: Database,
    sql: Client,
}

impl World {
    async fn create(language: Language, version: Version, test: &str) -> Self {
        let database = Database::create(version, test).await;
        let sql = database.connect().await;
        install_toolkit(&sql, "postgres").await;
        sql.batch(&read("tests/consumers/inbox/tables.sql")).await;
        Self { language, database, sql }
    }

    /// Starts the program.
    fn spawn(&self, arguments: &[&str], input: &[String]) -> Process {
        let program = INBOX.consumer(self.language);
        Process::spawn(program, &self.database.url(), arguments, &input.concat())
    }

    async fn text(&self, sql: &str) -> String {
        self.sql.text(sql).await.unwrap_or_default()
    }

    /// A session that makes every insert into a table wait until it is committed.
    async fn hold(&self, table: &str) -> Client {
        let session = self.database.connect().await;
        session.batch(&format!("begin; lock table {table} in share mode")).await;
        session
    }

    /// Waits until so many sessions wait for a lock.
    async fn await_blocked(&self, count: usize, processes: &[&Process]) {
        let waiting = "select count(*) from pg_stat_activity
            where datname = current_database() and wait_event_type = 'Lock'";
        await_that(&format!("{count} programs in the middle of their work"), SOON, || async {
            let found = self.text(waiting).await;
            if found == count.to_string() {
                return Ok(());
            }
            let logs: Vec<String> = processes.iter().map(|process| process.log()).collect();
            Err(format!("{found}; logs: {}", logs.join("\n---\n")))
        })
        .await;
    }

    /// Waits until no message is pending.
    async fn await_processed(&self, inbox: &str, workers: &[&Process]) {
        let pending = format!("select count(*) from postrider_inbox.pending_{inbox}");
        await_that(&format!("the messages of {inbox}"), SOON, || async {
            let found = self.text(&pending).await;
            if found == "0" {
                return Ok(());
            }
            let logs: Vec<String> = workers.iter().map(|process| process.log()).collect();
            Err(format!("{found} are pending; logs: {}", logs.join("\n---\n")))
        })
        .await;
    }

    /// A process does a part of the input. Then two at once have all of it, both in the middle of an insert into
    /// `table`. One is killed, and started again behind the last offset that it has committed.
    async fn two_at_once(&self, arguments: &[&str], input: &[String], table: &str) {
        self.spawn(arguments, &input[..EVENTS / 3]).finishes().await;
        let held = self.hold(table).await;
        let (a, b) = (self.spawn(arguments, input), self.spawn(arguments, input));
        self.await_blocked(2, &[&a, &b]).await;
        let other = b.output().lines().count();
        let committed = a.kill().await.lines().count();
        // A repetition has no effect: the one that is ahead is at the first new record. The other one is there too, or
        // at a repetition of the same aggregate.
        assert_eq!(committed.max(other), if table == "effect" { EVENTS / 3 } else { 0 });
        held.batch("commit").await;
        let again = self.spawn(arguments, &input[committed..]);
        b.finishes().await;
        again.finishes().await;
    }

    /// The numbers of the effects of those whose name begins so: each once, and which ones are missing.
    async fn assert_once(&self, by: &str, missing: &[usize]) {
        let found = self
            .text(&format!(
                "select string_agg((payload->>'n'), ' ' order by (payload->>'n')::int)
                 from effect where starts_with(done_by, '{by}')"
            ))
            .await;
        let wanted = (1..=EVENTS).filter(|n| !missing.contains(n)).map(|n| n.to_string());
        assert_eq!(found, wanted.collect::<Vec<_>>().join(" "), "{by}: {:?}", self.language);
    }

    /// The effects of each aggregate were done in the order of its events.
    async fn assert_in_order(&self, by: &str) {
        let swapped = self
            .text(&format!(
                "select count(*) from (
                     select (payload->>'n')::int < lag((payload->>'n')::int)
                         over (partition by aggregate_id order by n) as swapped
                     from effect where starts_with(done_by, '{by}')) x where swapped"
            ))
            .await;
        assert_eq!(swapped, "0", "{by}: {:?}", self.language);
    }

    /// Behind Kafka: by each of the three rules.
    async fn behind_kafka(&self, records: &[String]) {
        for mode in ["is-new", "advance"] {
            self.two_at_once(&[mode, mode], records, "effect").await;
            self.assert_once(mode, &[]).await;
            self.assert_in_order(mode).await;
        }
        self.two_at_once(&["once", "once"], &messages(), "effect").await;
        self.assert_once("once", &[]).await;
    }

    /// Two inboxes, into which all records are stored once, and effects that fail.
    async fn stored(&self, records: &[String]) {
        self.sql
            .batch(&format!(
                "select postrider.create_inbox('mail', p_max_retries => 3);
                 select postrider.create_inbox('stock', p_max_retries => 20);
                 select postrider.enable_inbox_ordering('stock', 'sequence');
                 create function fail() returns trigger language plpgsql as $$
                 declare
                     failed int;
                 begin
                     execute format('select retry_count from postrider_inbox.%I where event_id = $1',
                         split_part(new.done_by, '-', 1)) into failed using new.event_id;
                     if new.payload->>'n' = '{DEAD}' and starts_with(new.done_by, 'mail')
                         or new.payload->>'n' = '{FLAKY}' and failed < 2 then
                         raise 'no such account';
                     end if;
                     return new;
                 end $$;
                 create trigger fail before insert on effect for each row
                     when (new.done_by not in ('is-new', 'advance', 'once')) execute function fail()"
            ))
            .await;
        self.two_at_once(&["store", "mail"], records, "postrider_inbox.mail").await;
        let mut shuffled = records.to_vec();
        fastrand::Rng::with_seed(7).shuffle(&mut shuffled);
        self.two_at_once(&["store", "stock"], &shuffled, "postrider_inbox.stock").await;
        let stored = "select (select count(*) from postrider_inbox.mail) || ' '
            || (select count(*) from postrider_inbox.stock)";
        assert_eq!(self.text(stored).await, format!("{EVENTS} {EVENTS}"));
    }

    /// Store first, and work in one transaction: a worker is killed, and another loses its connection.
    async fn worked(&self) {
        let worker = |name| self.spawn(&["work", "mail", name], &[]);
        let held = self.hold("effect").await;
        let (a, mut b) = (worker("mail-a"), worker("mail-b"));
        self.await_blocked(2, &[&a, &b]).await;
        a.kill().await;
        let cut = "select count(pg_terminate_backend(pid)) from pg_stat_activity
            where datname = current_database() and wait_event_type = 'Lock'";
        assert_eq!(self.text(cut).await, "2");
        // A supervisor starts it again.
        let code = b.gives_up().await;
        assert_ne!(code, Some(0), "{}", b.log());
        held.batch("commit").await;
        let (c, d) = (worker("mail-c"), worker("mail-d"));
        self.await_processed("mail", &[&c, &d]).await;
        self.assert_once("mail", &[DEAD]).await;
        let failed = "select string_agg(concat_ws(' ', payload->>'n', retry_count, dead_at is not null), ', '
                order by event_id)
            from postrider_inbox.mail where retry_count > 0";
        assert_eq!(self.text(failed).await, format!("{DEAD} 3 t, {FLAKY} 2 f"));
        let reason = self.text("select error from postrider_inbox.dlq_mail").await;
        assert!(reason.contains("no such account"), "{reason}");
    }

    /// An ordered inbox, with leases: one worker is killed, and another works for longer than its lease.
    async fn ordered(&self) {
        let worker = |name| self.spawn(&["ordered", "stock", name, LEASE], &[]);
        let held = self.hold("effect").await;
        let (a, b) = (worker("stock-a"), worker("stock-b"));
        self.await_blocked(2, &[&a, &b]).await;
        a.kill().await;
        await_that("the end of the leases", SOON, || async {
            let leased = "select count(*) from postrider_inbox.pending_stock
                where claim is not null and due_at > clock_timestamp()";
            let found = self.text(leased).await;
            if found == "0" { Ok(()) } else { Err(found) }
        })
        .await;
        // Each of them takes the next messages of half of the aggregates: those of the former two.
        let (c, d) = (worker("stock-c"), worker("stock-d"));
        self.await_blocked(4, &[&b, &c, &d]).await;
        held.batch("commit").await;
        b.await_log("PR114").await;
        self.await_processed("stock", &[&b, &c, &d]).await;
        self.assert_once("stock", &[]).await;
        self.assert_in_order("stock").await;
    }
}

async fn each_once(language: Language, version: Version) {
    let start = Instant::now();
    INBOX.build(language).await;
    let built = start.elapsed();
    let test = format!("inbox_{language:?}").to_lowercase();
    let records = published(version, &test).await;
    let world = World::create(language, version, &format!("{test}_effects")).await;
    world.behind_kafka(&records).await;
    world.stored(&records).await;
    world.worked().await;
    world.ordered().await;
    let all = start.elapsed();
    show(&format!("{language:?}: each effect once, in {all:?}, of which {built:?} to compile"));
}

#[tokio::test]
async fn python_has_each_effect_once_behind_kafka_and_from_stored_inboxes() {
    each_once(Language::Python, Version::Pg15).await;
}

#[tokio::test]
async fn java_has_each_effect_once_behind_kafka_and_from_stored_inboxes() {
    each_once(Language::Java, Version::Pg16).await;
}

#[tokio::test]
async fn typescript_has_each_effect_once_behind_kafka_and_from_stored_inboxes() {
    each_once(Language::TypeScript, Version::Pg17).await;
}

#[tokio::test]
async fn go_has_each_effect_once_behind_kafka_and_from_stored_inboxes() {
    each_once(Language::Go, Version::Pg18).await;
}

#[tokio::test]
async fn rust_has_each_effect_once_behind_kafka_and_from_stored_inboxes() {
    each_once(Language::Rust, Version::Pg17).await;
}

/// Each file of the programs, without what is outside its marks if it has some.
fn program(name: &str) -> String {
    let text = read(&format!("tests/consumers/inbox/{name}"));
    let marked =
        text.split_once("// docs: begin\n").and_then(|(_, rest)| rest.split_once("// docs: end"));
    marked.map_or(text.as_str(), |(shown, _)| shown).to_owned()
}

/// What the page shows is what is run: all of a file, or what is between its marks.
#[test]
fn page_shows_the_programs_that_are_tested() {
    let page = read("docs/sql/inbox-programs.md");
    for (language, name) in [
        ("sql", "tables.sql"),
        ("python", "consumer.py"),
        ("java", "Consumer.java"),
        ("typescript", "consumer.ts"),
        ("go", "go/consumer.go"),
        ("rust", "consumer.rs"),
        ("sql", "order_service.sql"),
        ("python", "order_service.py"),
    ] {
        assert!(
            page.contains(&format!("```{language}\n{}```\n", program(name))),
            "docs/sql/inbox-programs.md shows {name} as it is"
        );
    }
}

/// The first page shows parts of the same programs: whole lines, perhaps with another indentation.
#[test]
fn first_page_shows_parts_of_the_programs() {
    let mut shown = Vec::new();
    for block in blocks::of("docs/consumers.md") {
        let name = match block.language.as_str() {
            "python" => "consumer.py",
            "java" => "Consumer.java",
            "typescript" => "consumer.ts",
            "go" => "go/consumer.go",
            "rust" => "consumer.rs",
            _ => continue,
        };
        let program = program(name);
        for part in block.text.split("\n\n").map(str::trim_end) {
            let indented = |indent: &str| {
                let line = |line: &str| format!("{indent}{line}").trim_end().to_owned();
                part.lines().map(line).collect::<Vec<_>>().join("\n")
            };
            let found = ["", "    "].into_iter().any(|indent| program.contains(&indented(indent)));
            assert!(found, "{}: {name} does not have:\n{part}", block.place);
        }
        shown.push(block.language);
    }
    assert_eq!(shown, ["python", "java", "typescript", "go", "rust"]);
}

/// The statements of the page, in the order of the page, in a database that has nothing but the toolkit.
#[tokio::test]
async fn statements_of_the_programs_page_run() {
    for version in Version::ALL {
        let database = Database::create(version, "inbox_programs").await;
        let sql = database.connect().await;
        install_toolkit(&sql, "postgres").await;
        for block in blocks::of("docs/sql/inbox-programs.md") {
            if block.language == "sql" {
                let result = sql.simple_query(&block.text).await;
                result.unwrap_or_else(|error| panic!("{}: {error:?}", block.place));
            }
        }
        let inboxes =
            "select string_agg(name || coalesce(' by ' || ordering, ''), ', ' order by name)
            from postrider.inbox";
        let found = sql.text(inboxes).await;
        assert_eq!(found.as_deref(), Some("mail, payment by arrival, stock by sequence"));
    }
}
