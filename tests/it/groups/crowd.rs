//! Ten consumers that are processes of their own: killed with -9, stopped for longer than their lease, their sessions
//! terminated, directly and behind a pooler. Each effect must be there once, and in order.
//!
//! The large forms are run by name: `cargo test --locked --test it -- --ignored --nocapture groups::crowd::large`.

use super::{GroupDatabase, append, commit_text, number, poll_text, read_poll, read_rows};
use crate::await_that::{SOON, await_or_dump, await_that};
use crate::pipeline::show;
use crate::private::{PrivatePooler, Signal, signal};
use crate::server::{Client, Version};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use tempfile::TempDir;

/// Whose address and name a process of the crowd finds in its environment.
const URL: &str = "POSTRIDER_CROWD_URL";
const NAME: &str = "POSTRIDER_CROWD_NAME";
/// Events of a poll, and seconds of a lease.
const BATCH: usize = 50;
const LEASE_SECONDS: u32 = 1;
const AGGREGATES: usize = 200;
/// Appended when a consumer is to be stalled, and there is nothing to do.
const EXTRA: usize = 500;
/// Between two polls that found nothing.
const IDLE: Duration = Duration::from_millis(10);
const TABLES: &str =
    "create table effect (id bigint generated always as identity, seq bigint, aggregate text,
        consumer text);
    create table refusal (consumer text, code text)";

/// What is done to a crowd.
struct Plan {
    version: Version,
    consumers: usize,
    events: usize,
    kills: usize,
    stalls: usize,
    terminations: usize,
    pooled: bool,
}

const LARGE: Plan = Plan {
    version: Version::Pg17,
    consumers: 10,
    events: 100_000,
    kills: 34,
    stalls: 34,
    terminations: 10,
    pooled: false,
};

/// What is done next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fault {
    Kill,
    Stall,
    Terminate,
}

/// Consumers that run, by their names.
struct Crowd {
    url: String,
    processes: RefCell<BTreeMap<String, Child>>,
    started: usize,
    /// Events that were appended so that a consumer has a lease to be stalled with.
    extra: Cell<usize>,
    dir: TempDir,
}

impl Crowd {
    fn start(url: &str, consumers: usize) -> Self {
        let dir = TempDir::new().expect("a directory");
        let processes = RefCell::new(BTreeMap::new());
        let extra = Cell::new(0);
        let mut crowd = Self { url: url.to_owned(), processes, started: 0, extra, dir };
        for _ in 0..consumers {
            crowd.spawn_new();
        }
        crowd
    }

    fn spawn_new(&mut self) {
        self.started += 1;
        self.spawn(&format!("consumer_{}", self.started));
    }

    fn spawn(&self, name: &str) {
        let log = File::options().create(true).append(true).open(self.dir.path().join(name));
        let log = log.expect("a log");
        let child = Command::new(std::env::current_exe().expect("this test"))
            .args(["--exact", "groups::crowd::process_of_the_crowd", "--ignored", "--nocapture"])
            .env(URL, &self.url)
            .env(NAME, name)
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("a log"))
            .stderr(log)
            .spawn()
            .expect("this test as a consumer");
        self.processes.borrow_mut().insert(name.to_owned(), child);
    }

    fn any(&self) -> (String, u32) {
        let processes = self.processes.borrow();
        let chosen = processes.iter().nth(fastrand::usize(..processes.len()));
        let (name, child) = chosen.expect("a consumer");
        (name.clone(), child.id())
    }

    /// Every second one comes back under its old name.
    fn kill(&mut self) {
        let (name, pid) = self.any();
        signal(pid, Signal::Kill);
        let child = self.processes.borrow_mut().remove(&name);
        child.expect("a process").wait().expect("its end");
        if fastrand::bool() { self.spawn(&name) } else { self.spawn_new() }
    }

    /// Stops a consumer while it has a lease, until another consumer has taken all of it.
    async fn stall(&self, sql: &Client) {
        loop {
            let (name, pid, leased) = self.stop_one(sql).await;
            let left = format!(
                "select string_agg(s.part::text, ' ') from postrider.group_state('g') s \
                 where s.lease_until is not null and (s.part || ':' || s.lease) \
                    = any (string_to_array('{leased}', ' '))"
            );
            // Between its commit_offset and its COMMIT it holds the locks of its partitions, and nobody takes them.
            let committing = format!(
                "select count(*) from pg_stat_activity where application_name = '{name}' \
                 and state = 'idle in transaction' and query like '%commit_offset%'"
            );
            let taken = await_or_dump(
                "another consumer to take the lease",
                SOON,
                || async {
                    match sql.text(&left).await {
                        None => Ok(true),
                        Some(_) if number(sql, &committing).await > 0 => Ok(false),
                        Some(left) => Err(left),
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

    /// Stops a consumer that has a lease: its name, its process, and the partitions with the lease.
    async fn stop_one(&self, sql: &Client) -> (String, u32, String) {
        await_that("a consumer with a lease", SOON, || async {
            if number(sql, "select sum(lag) from postrider.consumer_lag('g')").await == 0 {
                append(sql, EXTRA, AGGREGATES).await;
                self.extra.set(self.extra.get() + EXTRA);
            }
            let (name, pid) = self.any();
            signal(pid, Signal::Stop);
            let leased = format!(
                "select string_agg(s.part || ':' || s.lease, ' ') from postrider.group_state('g') s \
                 where s.consumer = '{name}' and s.lease_until is not null"
            );
            if let Some(leased) = sql.text(&leased).await {
                return Ok((name, pid, leased));
            }
            signal(pid, Signal::Cont);
            Err("nobody has a lease")
        })
        .await
    }

    async fn terminate(&self, sql: &Client) {
        let (name, _) = self.any();
        let text = format!(
            "select count(pg_terminate_backend(pid)) from pg_stat_activity where application_name = '{name}'"
        );
        number(sql, &text).await;
    }

    fn log(&self, name: &str) -> String {
        fs::read_to_string(self.dir.path().join(name)).unwrap_or_default()
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

async fn run(plan: &Plan) {
    let world = GroupDatabase::create(plan.version, "group_crowd").await;
    world.sql.batch(TABLES).await;
    world.group("g").await;
    let pooler = if plan.pooled { Some(PrivatePooler::in_transaction_mode(8).await) } else { None };
    let url = pooler
        .as_ref()
        .map_or_else(|| world.database.url(), |pooler| pooler.url(&world.database.name));
    let mut crowd = Crowd::start(&url, plan.consumers);
    let faults = [
        vec![Fault::Kill; plan.kills],
        vec![Fault::Stall; plan.stalls],
        vec![Fault::Terminate; plan.terminations],
    ];
    let mut faults = faults.concat();
    fastrand::shuffle(&mut faults);
    // Events are appended as the faults go on, so there is always something in hand.
    let slices = faults.len() + 1;
    let start = std::time::Instant::now();
    for slice in 0..slices {
        let events = plan.events * (slice + 1) / slices - plan.events * slice / slices;
        append(&world.sql, events, AGGREGATES).await;
        match faults.get(slice) {
            Some(Fault::Kill) => crowd.kill(),
            Some(Fault::Stall) => crowd.stall(&world.sql).await,
            Some(Fault::Terminate) => crowd.terminate(&world.sql).await,
            None => {}
        }
    }
    let left = "select sum(lag) from postrider.consumer_lag('g')";
    await_or_dump(
        "all events",
        SOON,
        || async {
            let lag = world.number(left).await;
            if lag == 0 { Ok(()) } else { Err(format!("{lag} left")) }
        },
        || crowd.processes.borrow().keys().map(|name| crowd.log(name)).collect(),
    )
    .await;
    let seconds = start.elapsed().as_secs_f64();
    let events = i64::try_from(plan.events + crowd.extra.get()).expect("few");
    drop(crowd);
    let effects = world.number("select count(*) from effect").await;
    let twice = world.number("select count(*) - count(distinct seq) from effect").await;
    let swapped = "select count(*) from (select seq, lag(seq) over (partition by aggregate order by id) as before \
        from effect) x where before >= seq";
    let swapped = world.number(swapped).await;
    let refusals = world.sql.text(
        "select string_agg(format('%s x %s', n, code), ', ') from (\
        select code, count(*) n from refusal group by code) x",
    );
    let refusals = refusals.await.unwrap_or_else(|| "none".to_owned());
    let consumers = world.number("select count(distinct consumer) from effect").await;
    show(&format!(
        "{} consumers, {} killed, {} stalled, {} sessions terminated{}: {effects} effects of {events} events in \
         {seconds:.0} s, {twice} twice, {swapped} swapped, by {consumers} names; refused: {refusals}",
        plan.consumers,
        plan.kills,
        plan.stalls,
        plan.terminations,
        if plan.pooled { ", behind PgBouncer" } else { "" },
    ));
    assert_eq!((effects, twice, swapped), (events, 0, 0));
    if plan.stalls > 0 {
        let late = "select count(*) from refusal where code in ('PR114', 'PR115')";
        assert!(world.number(late).await > 0, "no stalled consumer tried to commit");
    }
}

#[tokio::test]
async fn killed_and_stalled_consumers_do_everything_once() {
    let plan = Plan { consumers: 4, events: 5_000, kills: 4, stalls: 3, terminations: 2, ..LARGE };
    run(&Plan { version: Version::Pg15, ..plan }).await;
}

#[tokio::test]
async fn killed_and_stalled_consumers_do_everything_once_behind_a_pooler() {
    let plan = Plan { consumers: 4, events: 5_000, kills: 4, stalls: 3, terminations: 0, ..LARGE };
    run(&Plan { pooled: true, ..plan }).await;
}

#[tokio::test]
#[ignore = "a minute: run by name"]
async fn large_crowd_without_faults() {
    run(&Plan { kills: 0, stalls: 0, terminations: 0, version: Version::Pg18, ..LARGE }).await;
}

#[tokio::test]
#[ignore = "some minutes: run by name"]
async fn large_crowd_with_kills_and_stalls() {
    run(&LARGE).await;
}

#[tokio::test]
#[ignore = "some minutes: run by name"]
async fn large_crowd_with_kills_and_stalls_behind_a_pooler() {
    run(&Plan { pooled: true, terminations: 0, ..LARGE }).await;
}

/// One consumer: it polls, works and commits until it is killed.
#[tokio::test]
#[ignore = "a process of the crowd, which the other tests start"]
async fn process_of_the_crowd() {
    let given = |name: &str| std::env::var_os(name).and_then(|value| value.into_string().ok());
    let url = given(URL).expect("the tests of this module start it");
    let name = given(NAME).expect("a name");
    let separator = if url.contains('?') { '&' } else { '?' };
    let url = format!("{url}{separator}application_name={name}");
    // Half of them work in the transaction of the poll.
    let together = name.ends_with(['0', '2', '4', '6', '8']);
    let mut ticks = tokio::time::interval(IDLE);
    loop {
        ticks.tick().await;
        let Ok(sql) = Client::connect(&url).await else { continue };
        while !sql.is_closed() {
            match turn(&sql, &name, together).await {
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

/// One poll, its work and its commit; the number of events.
async fn turn(sql: &Client, name: &str, together: bool) -> Result<usize, tokio_postgres::Error> {
    if together {
        sql.simple_query("begin").await?;
    }
    let rows = sql.simple_query(&poll_text("g", name, BATCH, LEASE_SECONDS)).await?;
    let polled = read_poll(&read_rows(&rows));
    if polled.lease == 0 {
        if together {
            sql.simple_query("rollback").await?;
        }
        return Ok(0);
    }
    if !together {
        sql.simple_query("begin").await?;
    }
    for (seq, aggregate) in polled.seqs.iter().zip(&polled.aggregates).take(1) {
        // The first one alone, so that a batch can be interrupted in its middle.
        sql.simple_query(&effects(name, &[(*seq, aggregate)])).await?;
    }
    let rest: Vec<_> = polled.seqs.iter().copied().zip(&polled.aggregates).skip(1).collect();
    if !rest.is_empty() {
        sql.simple_query(&effects(name, &rest)).await?;
    }
    sql.simple_query(&commit_text("g", name, polled.end(), polled.lease)).await?;
    sql.simple_query("commit").await?;
    Ok(polled.seqs.len())
}

fn effects(name: &str, events: &[(i64, &String)]) -> String {
    let rows = events.iter().map(|(seq, aggregate)| format!("({seq}, '{aggregate}', '{name}')"));
    let rows: Vec<String> = rows.collect();
    format!("insert into effect (seq, aggregate, consumer) values {}", rows.join(", "))
}
