//! Ten workers that are processes of their own, killed with -9, and stopped for longer than their lease: half of them
//! work in the transaction of inbox_next, half with leases. Each effect must be there once, and in order.

use super::{InboxDatabase, done, fail, next_text, read_given};
use crate::await_that::{SOON, await_or_dump, await_that};
use crate::groups::{number, read_rows};
use crate::pipeline::show;
use crate::private::{Signal, signal};
use crate::server::{Client, Version};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use tempfile::TempDir;

/// Whose address and name a process of the crowd finds in its environment.
const URL: &str = "POSTRIDER_INBOX_CROWD_URL";
const NAME: &str = "POSTRIDER_INBOX_CROWD_NAME";
const WORKERS: usize = 10;
const AGGREGATES: usize = 20;
const MESSAGES: usize = 1_200;
const KILLS: usize = 10;
const STALLS: usize = 6;
/// Messages of a call, and their lease.
const BATCH: usize = 3;
const LEASE: &str = "1 second";
/// Between two calls that found nothing.
const IDLE: Duration = Duration::from_millis(10);
const TABLES: &str =
    "create table effect (id bigint generated always as identity, event_id text, aggregate text,
        number bigint, worker text);
    create table refusal (worker text, code text)";
const OPEN: &str = "select count(*) from postrider_inbox.jobs where processed_at is null";

/// Aggregates whose next message is there.
const DUE: &str = "select count(*) from postrider.inbox_order where due_at <> 'infinity'";

/// Messages 1, 2, 3 … of ten aggregates more, behind those that are there.
const EXTRA: &str = "insert into postrider_inbox.jobs (event_id, aggregate_id, sequence_num)
    select format('extra %s %s', a, n), 'extra ' || a, n
    from (select count(*) / 10 as old from postrider_inbox.jobs where aggregate_id like 'extra %') x,
        generate_series(1, 10) a, generate_series(old + 1, old + 20) n
    order by n";

/// Workers that run, by their names.
struct Crowd {
    url: String,
    processes: RefCell<BTreeMap<String, Child>>,
    started: usize,
    dir: TempDir,
}

impl Crowd {
    fn start(url: &str) -> Self {
        let dir = TempDir::new().expect("a directory");
        let processes = RefCell::new(BTreeMap::new());
        let mut crowd = Self { url: url.to_owned(), processes, started: 0, dir };
        for _ in 0..WORKERS {
            let lease = crowd.started % 2 == 1;
            crowd.spawn_new(lease);
        }
        crowd
    }

    fn spawn_new(&mut self, lease: bool) {
        self.started += 1;
        let mode = if lease { "lease" } else { "lock" };
        self.spawn(&format!("{mode}_{}", self.started));
    }

    fn spawn(&self, name: &str) {
        let log = File::options().create(true).append(true).open(self.dir.path().join(name));
        let log = log.expect("a log");
        let child = Command::new(std::env::current_exe().expect("this test"))
            .args(["--exact", "inbox::crowd::process_of_the_crowd", "--ignored", "--nocapture"])
            .env(URL, &self.url)
            .env(NAME, name)
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("a log"))
            .stderr(log)
            .spawn()
            .expect("this test as a worker");
        self.processes.borrow_mut().insert(name.to_owned(), child);
    }

    fn any(&self, kind: &str) -> (String, u32) {
        let processes = self.processes.borrow();
        let fit: Vec<_> = processes.iter().filter(|(name, _)| name.starts_with(kind)).collect();
        let (name, child) = fit[fastrand::usize(..fit.len())];
        (name.clone(), child.id())
    }

    /// Every second one comes back under its old name.
    fn kill(&mut self) {
        let (name, pid) = self.any("l");
        signal(pid, Signal::Kill);
        let child = self.processes.borrow_mut().remove(&name);
        child.expect("a process").wait().expect("its end");
        if fastrand::bool() {
            self.spawn(&name);
        } else {
            self.spawn_new(name.starts_with("lease"));
        }
    }

    /// Stops a worker while it has a lease, until another worker has taken all of it.
    async fn stall(&self, sql: &Client) {
        loop {
            let (name, pid, claim) = self.stop_one(sql).await;
            let left = format!("select count(*) from postrider_inbox.jobs where claim = {claim}");
            // Between its inbox_done and its COMMIT it holds the rows, and nobody takes them.
            let finishing = format!(
                "select count(*) from pg_stat_activity where application_name = '{name}' \
                 and state = 'idle in transaction' and query like '%inbox_done%'"
            );
            let taken = await_or_dump(
                "another worker to take the lease",
                SOON,
                || async {
                    match number(sql, &left).await {
                        0 => Ok(true),
                        _ if number(sql, &finishing).await > 0 => Ok(false),
                        left => Err(format!("{left} messages of claim {claim}")),
                    }
                },
                || self.log(&name),
            )
            .await;
            signal(pid, Signal::Cont);
            if taken {
                return;
            }
        }
    }

    /// Stops a worker that has a lease: its name, its process, and the claim.
    async fn stop_one(&self, sql: &Client) -> (String, u32, String) {
        await_that("a worker with a lease", SOON, || async {
            // All that is there may wait for a number that has not arrived.
            if number(sql, DUE).await == 0 {
                sql.batch(EXTRA).await;
            }
            let (name, pid) = self.any("lease");
            signal(pid, Signal::Stop);
            let claim = format!(
                "select max(claim)::text from postrider_inbox.jobs where claimed_by = '{name}' \
                 and due_at > clock_timestamp()"
            );
            if let Some(claim) = sql.text(&claim).await {
                return Ok((name, pid, claim));
            }
            signal(pid, Signal::Cont);
            Err("nobody has a lease")
        })
        .await
    }

    fn log(&self, name: &str) -> String {
        fs::read_to_string(self.dir.path().join(name)).unwrap_or_default()
    }

    fn logs(&self) -> String {
        self.processes.borrow().keys().map(|name| self.log(name)).collect()
    }
}

impl Drop for Crowd {
    fn drop(&mut self) {
        for child in self.processes.get_mut().values_mut() {
            drop(child.kill());
            drop(child.wait());
        }
    }
}

/// Numbers 1 to 60 of each aggregate, shuffled so that a message is at most some dozens of places early or late.
fn arrivals() -> Vec<(usize, usize)> {
    let mut messages: Vec<(usize, usize)> =
        (0..MESSAGES).map(|i| (i % AGGREGATES, i / AGGREGATES + 1)).collect();
    for window in messages.chunks_mut(200) {
        fastrand::shuffle(window);
    }
    messages
}

async fn add(sql: &Client, messages: &[(usize, usize)]) {
    // Statements of different sizes, so that messages meet workers in every state.
    for some in messages.chunks(fastrand::usize(1..12)) {
        let values = some.iter().map(|(aggregate, number)| {
            format!("('{aggregate} {number}', '{aggregate}', {number})")
        });
        let values: Vec<String> = values.collect();
        sql.batch(&format!(
            "insert into postrider_inbox.jobs (event_id, aggregate_id, sequence_num) values {}",
            values.join(", ")
        ))
        .await;
    }
}

async fn run(version: Version) {
    let world = InboxDatabase::create(version, "inbox_crowd").await;
    world.sql.batch(TABLES).await;
    world.sql.batch("select postrider.create_inbox('jobs', p_max_retries => 1000)").await;
    world.sql.batch("select postrider.enable_inbox_ordering('jobs')").await;
    let mut crowd = Crowd::start(&world.database.url());
    let mut kills = [vec![true; KILLS], vec![false; STALLS]].concat();
    fastrand::shuffle(&mut kills);
    let start = std::time::Instant::now();
    let messages = arrivals();
    let slices = kills.len() + 1;
    for slice in 0..slices {
        let (from, to) = (MESSAGES * slice / slices, MESSAGES * (slice + 1) / slices);
        add(&world.sql, &messages[from..to]).await;
        match kills.get(slice) {
            Some(true) => crowd.kill(),
            Some(false) => crowd.stall(&world.sql).await,
            None => {}
        }
    }
    await_or_dump(
        "all messages",
        SOON,
        || async {
            let left = world.number(OPEN).await;
            if left == 0 { Ok(()) } else { Err(format!("{left} left")) }
        },
        || crowd.logs(),
    )
    .await;
    let seconds = start.elapsed().as_secs_f64();
    drop(crowd);
    check(&world, seconds).await;
}

async fn check(world: &InboxDatabase, seconds: f64) {
    let messages = world.number("select count(*) from postrider_inbox.jobs").await;
    let effects = world.number("select count(*) from effect").await;
    let twice = world.number("select count(*) - count(distinct event_id) from effect").await;
    let swapped = "select count(*) from (select number, row_number() over (partition by aggregate order by id) as i \
        from effect) x where number <> i";
    let swapped = world.number(swapped).await;
    let refusals = world.sql.text(
        "select string_agg(format('%s x %s', n, code), ', ') from (\
        select code, count(*) n from refusal group by code) x",
    );
    let refusals = refusals.await.unwrap_or_else(|| "none".to_owned());
    let names = world.number("select count(distinct worker) from effect").await;
    show(&format!(
        "{WORKERS} workers, {KILLS} killed, {STALLS} stalled: {effects} effects of {messages} messages in \
         {seconds:.0} s, {twice} twice, {swapped} swapped, by {names} names; refused: {refusals}"
    ));
    assert_eq!((effects, twice, swapped), (messages, 0, 0));
    let late = "select count(*) from refusal where code = 'PR114'";
    assert!(world.number(late).await > 0, "no stalled worker tried to finish");
    let modes = "select count(distinct left(worker, 4)) from effect";
    assert_eq!(world.number(modes).await, 2, "both kinds have worked");
    let odd = "select count(*) from refusal where code not in ('PR114', 'closed')";
    assert_eq!(world.number(odd).await, 0, "refused: {refusals}");
    assert_eq!(world.health(&["pending_count", "dead_letter_count"]).await, "0 0");
}

#[tokio::test]
async fn killed_and_stalled_workers_do_everything_once_and_in_order() {
    run(Version::Pg17).await;
}

/// One worker: it processes messages until it is killed.
#[tokio::test]
#[ignore = "a process of the crowd, which the other tests start"]
async fn process_of_the_crowd() {
    let given = |name: &str| std::env::var_os(name).and_then(|value| value.into_string().ok());
    let url = given(URL).expect("the tests of this module start it");
    let name = given(NAME).expect("a name");
    let url = format!("{url}?application_name={name}");
    let lease = name.starts_with("lease").then_some(LEASE);
    let mut ticks = tokio::time::interval(IDLE);
    loop {
        ticks.tick().await;
        let Ok(sql) = Client::connect(&url).await else { continue };
        while !sql.is_closed() {
            match turn(&sql, &name, lease).await {
                Ok(0) => {
                    ticks.tick().await;
                }
                Ok(_) => {}
                Err(error) => {
                    let code = error.code().map_or("closed", |code| code.code()).to_owned();
                    let refusal =
                        format!("rollback; insert into refusal values ('{name}', '{code}')");
                    drop(sql.simple_query(&refusal).await);
                }
            }
        }
    }
}

/// One call, its work and its end; the number of messages.
async fn turn(
    sql: &Client,
    name: &str,
    lease: Option<&str>,
) -> Result<usize, tokio_postgres::Error> {
    if lease.is_none() {
        sql.simple_query("begin").await?;
    }
    let rows = sql.simple_query(&next_text(name, BATCH, lease)).await?;
    let given = read_given(&read_rows(&rows));
    if given.ids.is_empty() {
        if lease.is_none() {
            sql.simple_query("commit").await?;
        }
        return Ok(0);
    }
    if lease.is_some() {
        sql.simple_query("begin").await?;
    }
    if fastrand::u8(..100) < 5 {
        // The work on the first one fails: it comes again. The others are left: locked, or until the lease is over.
        let call = fail(&given.ids[0], given.claim, "'10 ms'");
        sql.simple_query(&format!("select postrider.{call}; commit")).await?;
        return Ok(given.ids.len());
    }
    // One after the other, so that a batch can be interrupted in its middle.
    for ((id, aggregate), n) in given.ids.iter().zip(&given.aggregates).zip(&given.numbers) {
        let effect = format!(
            "insert into effect (event_id, aggregate, number, worker) values ('{id}', '{aggregate}', {n}, '{name}')"
        );
        sql.simple_query(&effect).await?;
    }
    sql.simple_query(&format!("select postrider.{}", done(&given.ids, given.claim))).await?;
    sql.simple_query("commit").await?;
    Ok(given.ids.len())
}
