//! Consumers of a group: docs/sql/consumers.md shows programs in five languages, and here they are run, against the
//! servers and through a transaction pooler. They are killed, their leases are taken away, their connections are cut,
//! and they are stopped; each event has its effect once, and the effects of an aggregate are in order.

use crate::await_that::{SOON, await_that};
use crate::docs_commands::blocks;
use crate::pipeline::show;
use crate::private::PrivatePooler;
use crate::programs::{GROUPS, Language, Process, root};
use crate::server::{Client, Database, Version};
use crate::toolkit::install_toolkit;
use std::process::Command;
use std::time::Instant;

/// Aggregates whose events are written.
const AGGREGATES: usize = 50;

/// What PgBouncer is told: a connection to the server is a client's for one transaction. The JDBC driver sends a
/// parameter that PgBouncer does not know.
const TRANSACTION_POOLER: &str =
    "pool_mode = transaction\nignore_startup_parameters = extra_float_digits\n";

/// A file of the repository.
fn read(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// Starts a program as a consumer of this name.
fn spawn_in(program: Command, url: &str, group: &str, name: &str) -> Process {
    Process::spawn(program, url, &[group, name], "")
}

/// A database with a log, a group that reads it, and the table of the effects.
struct World {
    database: Database,
    sql: Client,
    /// How many events were written.
    written: usize,
}

impl World {
    async fn create(version: Version, test: &str) -> Self {
        let world = Self::empty(version, test).await;
        world.sql.batch("select postrider.create_log('orders')").await;
        world.sql.batch("select postrider.create_consumer_group('shipping', 'orders')").await;
        world
    }

    /// Without a log.
    async fn empty(version: Version, test: &str) -> Self {
        let world = Self::bare(version, test).await;
        world.sql.batch(&read("tests/consumers/groups/tables.sql")).await;
        // In which order the effects were done, and what large_payloads.py counts.
        let further =
            "alter table effect add n bigint generated always as identity, add bytes bigint";
        world.sql.batch(further).await;
        world
    }

    /// With nothing but the toolkit and an outbox.
    async fn bare(version: Version, test: &str) -> Self {
        let database = Database::create(version, test).await;
        let sql = database.connect().await;
        install_toolkit(&sql, "postgres").await;
        sql.batch(&read("sql/layouts/postrider.sql")).await;
        Self { database, sql, written: 0 }
    }

    /// Commits events, and appends them to the log.
    async fn write(&mut self, count: usize) {
        let (first, last) = (self.written + 1, self.written + count);
        self.written = last;
        let insert = format!(
            "insert into public.outbox (aggregate_type, aggregate_id, event_type, payload)
             select 'order', (i % {AGGREGATES})::text, 'Written', json_build_object('n', i)
             from generate_series({first}, {last}) i"
        );
        self.sql.batch(&insert).await;
        let feed = "select postrider.log_feed('orders', 'public.outbox', 100000)";
        assert_eq!(self.sql.text(feed).await, Some(count.to_string()));
    }

    /// Waits until every event has an effect.
    async fn await_effects(&self, consumers: &[&Process]) {
        let written = self.written.to_string();
        await_that(&format!("effects of {written} events"), SOON, || async {
            let done = self.sql.text("select count(distinct seq) from effect").await;
            if done.as_ref() == Some(&written) {
                return Ok(());
            }
            let logs: Vec<String> = consumers.iter().map(|process| process.log()).collect();
            Err(format!("{done:?} of {written}; logs: {}", logs.join("\n---\n")))
        })
        .await;
    }

    /// Each event has one effect, and those of an aggregate are in the order of its events.
    async fn assert_each_once_and_in_order(&self) {
        let count =
            "select count(*) || ' effects of ' || count(distinct (event_id, seq)) from effect";
        let wanted = format!("{0} effects of {0}", self.written);
        assert_eq!(self.sql.text(count).await, Some(wanted));
        let swapped = "select count(*) from (
            select seq < lag(seq) over (partition by aggregate_id order by n) as swapped from effect) x
            where swapped";
        assert_eq!(self.sql.text(swapped).await.as_deref(), Some("0"), "effects in another order");
        let lag = "select lag from postrider.consumer_group_lag where group_name = 'shipping'";
        assert_eq!(self.sql.text(lag).await.as_deref(), Some("0"));
    }

    /// A session that makes every effect wait until it is committed.
    async fn hold_effects(&self) -> Client {
        let session = self.database.connect().await;
        session.batch("begin; lock table effect in share mode").await;
        session
    }

    /// Waits until so many consumers are in the middle of a batch, because their effects are held.
    async fn await_in_work(&self, count: usize) {
        let waiting = "select count(*) from pg_locks
            where relation = 'public.effect'::regclass and not granted";
        await_that(&format!("{count} consumers in a batch"), SOON, || async {
            let found = self.sql.text(waiting).await;
            if found.as_ref() == Some(&count.to_string()) {
                Ok(())
            } else {
                Err(format!("{found:?}"))
            }
        })
        .await;
    }

    async fn number(&self, sql: &str) -> i64 {
        self.sql.text(sql).await.and_then(|text| text.parse().ok()).expect("a number")
    }
}

/// Two processes, of which one is connected directly and the other one through the pooler, in sessions whose
/// transactions are REPEATABLE READ, so that a commit can meet a state that its snapshot does not have.
async fn each_once(language: Language, version: Version) {
    let start = Instant::now();
    GROUPS.build(language).await;
    let built = start.elapsed();
    let mut world = World::create(version, &format!("consumer_{language:?}")).await;
    let name = world.database.name.clone();
    let isolation = "set default_transaction_isolation = 'repeatable read'";
    world.sql.batch(&format!("alter database {name} {isolation}")).await;
    let pooler = PrivatePooler::start(version, TRANSACTION_POOLER).await;
    let spawn =
        |url: &str, consumer| spawn_in(GROUPS.consumer(language), url, "shipping", consumer);
    let direct = || spawn(&world.database.url(), "direct");
    let a = direct();
    let b = spawn(&pooler.url(&name), "pooled");
    world.write(1000).await;
    world.await_effects(&[&a, &b]).await;

    // One is killed in the middle of a batch, and the other one loses its lease in the middle of a batch. Started
    // again under the same name, the first one does not wait until its lease has run out.
    let held = world.hold_effects().await;
    world.write(1000).await;
    world.await_in_work(2).await;
    a.kill().await;
    let released = "select postrider.release_lease('shipping', 'pooled')";
    assert_ne!(world.number(released).await, 0, "it had a lease");
    held.batch("commit").await;
    let a = spawn_in(GROUPS.consumer(language), &world.database.url(), "shipping", "direct");
    world.await_effects(&[&a, &b]).await;
    // The snapshot of its first attempt is older than the release, and the next attempt sees the release.
    b.await_log("40001").await;
    b.await_log("PR114").await;

    // Both lose their connections in the middle of a batch.
    let held = world.hold_effects().await;
    world.write(500).await;
    world.await_in_work(2).await;
    let cut = "select count(pg_terminate_backend(pid)) from pg_locks
        where relation = 'public.effect'::regclass and not granted";
    assert_eq!(world.number(cut).await, 2);
    held.batch("commit").await;
    a.await_log("connecting again").await;
    b.await_log("connecting again").await;
    world.await_effects(&[&a, &b]).await;

    // Both are stopped in the middle of a batch, and give it back.
    let held = world.hold_effects().await;
    world.write(500).await;
    world.await_in_work(2).await;
    a.terminate();
    b.terminate();
    held.batch("commit").await;
    a.ended().await;
    b.ended().await;
    let leased = "select count(*) from postrider.consumer_lag('shipping') where leased";
    assert_eq!(world.number(leased).await, 0);
    let a = spawn_in(GROUPS.consumer(language), &world.database.url(), "shipping", "other");
    world.await_effects(&[&a]).await;
    a.terminate();
    a.ended().await;
    world.assert_each_once_and_in_order().await;

    // A group that does not exist ends the program, with an error.
    let mut lost = spawn(&world.database.url(), "lost");
    world.sql.batch("select postrider.drop_consumer_group('shipping')").await;
    assert_eq!(lost.gives_up().await, Some(1), "{}", lost.log());
    assert!(lost.log().contains("does not exist"), "{}", lost.log());
    pooler.stop().await;
    let all = start.elapsed();
    show(&format!(
        "{language:?}: {} events, each once, in {all:?}, of which {built:?} to compile",
        world.written
    ));
}

#[tokio::test]
async fn python_has_each_effect_once_through_kills_lost_leases_and_lost_connections() {
    each_once(Language::Python, Version::Pg15).await;
}

#[tokio::test]
async fn java_has_each_effect_once_through_kills_lost_leases_and_lost_connections() {
    each_once(Language::Java, Version::Pg16).await;
}

#[tokio::test]
async fn typescript_has_each_effect_once_through_kills_lost_leases_and_lost_connections() {
    each_once(Language::TypeScript, Version::Pg17).await;
}

#[tokio::test]
async fn go_has_each_effect_once_through_kills_lost_leases_and_lost_connections() {
    each_once(Language::Go, Version::Pg18).await;
}

#[tokio::test]
async fn rust_has_each_effect_once_through_kills_lost_leases_and_lost_connections() {
    each_once(Language::Rust, Version::Pg17).await;
}

/// One connection to the server for six clients: a prepared statement of one would be found by the next.
#[tokio::test]
async fn all_languages_share_a_group_and_one_pooled_connection() {
    for language in Language::ALL {
        GROUPS.build(language).await;
    }
    let mut world = World::create(Version::Pg17, "consumers_pooled").await;
    let lines = format!("{TRANSACTION_POOLER}default_pool_size = 1\n");
    let pooler = PrivatePooler::start(Version::Pg17, &lines).await;
    let url = pooler.url(&world.database.name);
    let spawn = |language: Language| {
        spawn_in(GROUPS.consumer(language), &url, "shipping", &format!("{language:?}"))
    };
    let mut consumers: Vec<Process> = Language::ALL.map(spawn).into_iter().collect();
    consumers.push(spawn_in(GROUPS.python("one_transaction.py"), &url, "shipping", "one"));
    // Once each of them is there, everyone has a share of the work.
    await_that("all consumers", SOON, || async {
        let seen = "select count(*) from postrider.consumer where group_name = 'shipping'";
        let seen = world.number(seen).await;
        if seen == 6 { Ok(()) } else { Err(seen) }
    })
    .await;
    // Until each of them has done a part.
    let mut parts = 0;
    while parts < 6 {
        assert!(world.written < 20_000, "only {parts} consumers got a part");
        world.write(600).await;
        let all: Vec<&Process> = consumers.iter().collect();
        world.await_effects(&all).await;
        parts = world.number("select count(distinct consumer) from effect").await;
    }
    for process in &consumers {
        process.terminate();
    }
    for process in consumers {
        assert!(!process.log().contains("rolled back"), "{}", process.log());
        process.ended().await;
    }
    world.assert_each_once_and_in_order().await;
    pooler.stop().await;
}

#[tokio::test]
async fn one_transaction_leaves_no_lease_behind_a_kill() {
    let mut world = World::create(Version::Pg18, "consumers_one").await;
    let url = world.database.url();
    let spawn = |name| spawn_in(GROUPS.python("one_transaction.py"), &url, "shipping", name);
    let (a, b) = (spawn("a"), spawn("b"));
    world.write(1000).await;
    world.await_effects(&[&a, &b]).await;
    let held = world.hold_effects().await;
    world.write(1000).await;
    world.await_in_work(2).await;
    a.kill().await;
    let leased = "select count(*) from postrider.consumer_lag('shipping') where leased";
    assert_eq!(world.number(leased).await, 0);
    held.batch("commit").await;
    world.await_effects(&[&b]).await;
    b.terminate();
    b.ended().await;
    world.assert_each_once_and_in_order().await;
}

#[tokio::test]
async fn poison_event_becomes_a_dead_letter_at_its_fifth_delivery_and_the_others_go_on() {
    let mut world = World::create(Version::Pg16, "consumers_poison").await;
    world.sql.batch("alter table effect add check (seq not in (30, 70))").await;
    let url = world.database.url();
    let consumer = spawn_in(GROUPS.python("dead_letters.py"), &url, "shipping", "a");
    world.write(200).await;
    await_that("all events", SOON, || async {
        let lag =
            world.number("select sum(lag)::bigint from postrider.consumer_lag('shipping')").await;
        if lag == 0 { Ok(()) } else { Err(format!("{lag} events\n{}", consumer.log())) }
    })
    .await;
    let dead = "select string_agg(seq || ' ' || aggregate_id || ' ' || payload, ', ' order by seq)
        from dead_letter";
    let wanted = "30 30 {\"n\" : 30}, 70 20 {\"n\" : 70}";
    assert_eq!(world.sql.text(dead).await.as_deref(), Some(wanted));
    let others = "select count(*) || ' ' || count(distinct seq) from effect";
    assert_eq!(world.sql.text(others).await.as_deref(), Some("198 198"));
    consumer.await_log("event 30 rolled back, delivery 5: 23514").await;
    consumer.terminate();
    consumer.ended().await;
}

#[tokio::test]
async fn work_that_takes_longer_than_a_lease_keeps_it() {
    GROUPS.build(Language::Java).await;
    let mut world = World::create(Version::Pg15, "consumers_long").await;
    // Ten events of one aggregate, each of which takes more than half a second: the lease is two seconds.
    world
        .sql
        .batch(
            "insert into public.outbox (aggregate_type, aggregate_id, event_type, payload)
        select 'order', '1', 'Written', json_build_object('n', i) from generate_series(1, 10) i",
        )
        .await;
    world.sql.batch("select postrider.log_feed('orders', 'public.outbox')").await;
    world.sql.batch("select postrider.seek_offset('shipping', null, 0)").await;
    world.written = 10;
    let url = world.database.url();
    let spawn = |name| spawn_in(GROUPS.java("LongWork"), &url, "shipping", name);
    let (a, b) = (spawn("a"), spawn("b"));
    world.await_effects(&[&a, &b]).await;
    for process in [&a, &b] {
        assert!(!process.log().contains("rolled back"), "{}", process.log());
        process.terminate();
    }
    a.ended().await;
    b.ended().await;
    world.assert_each_once_and_in_order().await;
    // The other one polled all the time and did not get it.
    assert_eq!(world.number("select count(distinct consumer) from effect").await, 1);
}

/// Sixty payloads of four mebibytes, of a log of references: with one in memory the process stays small.
#[tokio::test]
async fn large_payloads_are_read_from_the_outbox_one_at_a_time() {
    const EVENTS: usize = 60;
    const BYTES: usize = 4 << 20;
    let mut world = World::empty(Version::Pg18, "consumers_large").await;
    world.sql.batch("select postrider.create_log('orders', 4, 1000, 'reference')").await;
    world.sql.batch("select postrider.create_consumer_group('shipping', 'orders')").await;
    let (count, length) = (EVENTS, BYTES - 2);
    world.sql.batch(&format!(
        "insert into public.outbox (aggregate_type, aggregate_id, event_type, payload)
         select 'order', (i % 4)::text, 'Large', to_json(repeat('x', {length})) from generate_series(1, {count}) i"
    )).await;
    // As the sink of a relay writes it.
    world.sql.batch(
        "do $$
         declare
             o record;
         begin
             perform postrider.log_take_over('test');
             perform postrider.log_begin('test', 1);
             select * into o from postrider.log_open('orders', 'test');
             execute format('insert into postrider_log.%I (seq, part, event_id, event_type, aggregate_type, aggregate_id)
                 select row_number() over (order by id), postrider.hash_partition(aggregate_id, 4), id::text, event_type,
                     aggregate_type, aggregate_id from public.outbox', o.table_name);
             execute format('insert into postrider.event_log_head (log, last_seq, heads, counts, appended_at)
                 select ''orders'', sum(n), array_agg(head order by part), array_agg(n order by part), now() from (
                     select p as part, coalesce(max(l.seq), 0) as head, count(l.seq) as n
                     from generate_series(0, 3) p left join postrider_log.%I l on l.part = p group by p) x', o.table_name);
         end $$",
    ).await;
    world.written = EVENTS;
    let url = world.database.url();
    let spawn = |name| spawn_in(GROUPS.python("large_payloads.py"), &url, "shipping", name);
    let (a, b) = (spawn("a"), spawn("b"));
    world.await_effects(&[&a, &b]).await;
    let peak = [&a, &b].map(Process::peak_kib);
    let bytes = "select count(distinct bytes) || ' ' || min(bytes) from effect";
    assert_eq!(world.sql.text(bytes).await, Some(format!("1 {BYTES}")));
    world.assert_each_once_and_in_order().await;
    show(&format!("payloads of {BYTES} bytes, batches of 20: peak RSS {peak:?} KiB"));
    assert!(peak.into_iter().max() < Some(80 << 10), "{peak:?} KiB");
    a.terminate();
    a.ended().await;

    // A row that was deleted too early ends the program, and its event is not passed over.
    world
        .sql
        .batch("delete from public.outbox; select postrider.seek_offset('shipping', null, 0)")
        .await;
    let mut b = b;
    assert_eq!(b.gives_up().await, Some(1), "{}", b.log());
    assert!(b.log().contains("the outbox has no row with id"), "{}", b.log());
    assert_eq!(world.number("select count(*) from effect").await, 60);
}

#[tokio::test]
async fn statements_of_the_page_run_and_pass_over_an_event_by_hand() {
    for version in Version::ALL {
        let mut world = World::bare(version, "consumers_page").await;
        world.sql.batch("select postrider.create_log('orders')").await;
        world.write(3).await;
        for block in blocks::of("docs/sql/consumers.md") {
            if block.language == "sql" {
                let result = world.sql.batch_execute(&block.text).await;
                result.unwrap_or_else(|error| panic!("{}: {error:?}", block.place));
            }
        }
        let left = "select string_agg(seq::text, ' ' order by seq)
            from postrider.poll_outbox('shipping', 'next')";
        assert_eq!(world.sql.text(left).await.as_deref(), Some("2 3"));
    }
}

/// What the page shows is what is run: all of a file, or what is between its marks.
#[test]
fn page_shows_the_programs_that_are_tested() {
    let page = read("docs/sql/consumers.md");
    let files = [
        ("sql", "tables.sql"),
        ("python", "consumer.py"),
        ("java", "Consumer.java"),
        ("typescript", "consumer.ts"),
        ("go", "go/consumer.go"),
        ("rust", "consumer.rs"),
        ("python", "one_transaction.py"),
        ("python", "dead_letters.py"),
        ("python", "large_payloads.py"),
        ("java", "LongWork.java"),
    ];
    for (language, name) in files {
        let text = read(&format!("tests/consumers/groups/{name}"));
        let marked = text
            .split_once("// docs: begin\n")
            .and_then(|(_, rest)| rest.split_once("// docs: end"));
        let shown = marked.map_or(text.as_str(), |(shown, _)| shown);
        assert!(
            page.contains(&format!("```{language}\n{shown}```\n")),
            "docs/sql/consumers.md shows {name} as it is"
        );
    }
}
