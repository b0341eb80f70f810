//! The faults: each one is begun, lasts, and is undone.

use crate::plan::{Act, Lane, Step};
use crate::private::Signal;
use crate::proxy::Mode;
use crate::proxy::pump::hold;
use crate::proxy::tap::now;
use crate::reader::read_all;
use crate::relays::{PIPELINE, RELAYS};
use crate::world::{Deed, LIMIT, RAISED_LIMIT, World};
use crate::writer::Outcome;
use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Delay of a distant server.
const DELAY: Duration = Duration::from_millis(150);
/// Bytes a second of a slow connection.
const SLOW: u32 = 64_000;
/// How long a deleted topic stays deleted at least: until its producers know that.
const GONE: Duration = Duration::from_secs(10);
/// How long the topic accepts large events at most before the next fault.
const UNPARK: Duration = Duration::from_secs(20);

/// Bytes that are written before each checkpoint while the slot is to be lost. The truth slot is read after each of
/// them, so that it never lags by as much.
const WAL_BYTES: u32 = 16 << 20;
const WAL_TIMES_MAX: u32 = 20;
/// WAL that a slot may retain meanwhile.
const KEPT_SIZE: &str = "64MB";

/// A fault that lasts.
struct Begun {
    act: Act,
    /// The number of the affected relay or broker.
    whom: usize,
    deed: Deed,
}

impl World {
    /// One step of the schedule, from its pause to its end.
    pub(crate) async fn step(&mut self, step: &Step) {
        self.rest(step.pause).await;
        let first = self.begin(step.act, step.pick).await;
        let second = match step.second {
            Some(act) => {
                self.rest(step.hold / 2).await;
                Some(self.begin(act, step.pick).await)
            }
            None => None,
        };
        self.rest(step.hold / if second.is_some() { 2 } else { 1 }).await;
        if let Some(second) = second {
            self.end(second).await;
        }
        self.end(first).await;
    }

    /// Lets time pass. A relay that ends meanwhile is a finding.
    async fn rest(&mut self, time: Duration) {
        let end = tokio::time::Instant::now() + time;
        while tokio::time::Instant::now() < end {
            let left = end.saturating_duration_since(tokio::time::Instant::now());
            hold(left.min(Duration::from_millis(500))).await;
            self.restart_ended_relays();
        }
    }

    async fn begin(&mut self, act: Act, pick: u32) -> Begun {
        let (from, lane) = (self.began.elapsed(), act.lane());
        let (whom, note) = self.inject(act, pick).await;
        eprintln!("{:7.1} s  {}{note}", from.as_secs_f64(), act.words());
        Begun { act, whom, deed: Deed { lane, act, from, to: from, note } }
    }

    async fn end(&mut self, begun: Begun) {
        let Begun { act, whom, mut deed } = begun;
        let note = self.heal(act, whom).await;
        deed.note += &note;
        deed.to = self.began.elapsed();
        self.deeds.push(deed);
    }

    /// Begins a fault. Returns what is affected, and a note.
    async fn inject(&mut self, act: Act, pick: u32) -> (usize, String) {
        match act {
            Act::KillActive | Act::KillStandby | Act::FreezeActive | Act::FreezeStandby => {
                let active = self.active().await;
                let standby = matches!(act, Act::KillStandby | Act::FreezeStandby);
                let whom = if standby { (active + 1) % RELAYS } else { active };
                if matches!(act, Act::KillActive | Act::KillStandby) {
                    self.relays[whom].kill().await;
                } else {
                    self.relays[whom].signal(Signal::Stop);
                }
                (whom, format!(": relay {}", whom + 1))
            }
            Act::KillBoth => {
                for relay in &mut self.relays {
                    relay.kill().await;
                }
                (0, String::new())
            }
            Act::StopActive => {
                let whom = self.active().await;
                let code = self.relays[whom].terminate().await;
                if code != Some(0) {
                    self.findings.push(format!("relay {} left with {code:?}", whom + 1));
                }
                (whom, format!(": relay {}", whom + 1))
            }
            _ => match act.lane() {
                Lane::Database => (0, self.hurt_database(act).await),
                Lane::Brokers => self.hurt_brokers(act).await,
                Lane::Network => self.hurt_network(act, pick).await,
                Lane::Data | Lane::Relays => (0, self.hurt_data(act).await),
            },
        }
    }

    async fn hurt_database(&mut self, act: Act) -> String {
        match act {
            Act::KillDatabase => self.postgres.kill().await,
            Act::StopDatabaseAtOnce => self.postgres.stop_immediately().await,
            Act::RestartDatabase => {
                let took = self.postgres.stop_fast(Duration::from_mins(1)).await;
                return format!(": stopped in {:.1} s", took.as_secs_f64());
            }
            Act::FreezeDatabase => self.postgres.freeze(),
            Act::EndWalsender => {
                let end = "select pg_terminate_backend(active_pid) from pg_replication_slots where active";
                drop(self.sql().await.batch_execute(end).await);
            }
            Act::EndSessions => {
                let end = "select pg_terminate_backend(pid) from pg_stat_activity \
                           where pid <> pg_backend_pid() and backend_type in ('client backend', 'walsender')";
                drop(self.sql().await.batch_execute(end).await);
            }
            Act::DropSlot => {
                let slot = format!("postrider_{PIPELINE}");
                let drops = format!(
                    "do $$ begin for i in 1..300 loop \
                       perform pg_terminate_backend(active_pid) from pg_replication_slots \
                         where slot_name = '{slot}' and active; \
                       begin perform pg_drop_replication_slot('{slot}'); return; \
                       exception when object_in_use then perform pg_sleep(0.01); end; \
                     end loop; end $$"
                );
                let dropped = self.sql().await.batch_execute(&drops).await;
                return if dropped.is_ok() { String::new() } else { ": there was none".to_owned() };
            }
            Act::LoseSlot => return self.lose_slot().await,
            _ => {}
        }
        String::new()
    }

    /// Makes the server invalidate the slot: no relay reads from it, and it may retain little.
    async fn lose_slot(&mut self) -> String {
        for relay in &self.relays {
            relay.signal(Signal::Stop);
        }
        let sql = self.sql().await;
        // Writes WAL since the last checkpoint, and the records of running transactions that let a slot advance. The
        // records of an open claim prevent that, so the session of a stopped relay is terminated.
        let end = "select pg_terminate_backend(pid) from pg_stat_activity \
                   where application_name like 'postrider %' and state like 'idle in transaction%'";
        for _ in 0..3 {
            sql.batch(end).await;
            sql.batch("checkpoint").await;
            self.truth.take(&sql).await;
        }
        let keeps = format!("alter system set max_slot_wal_keep_size = '{KEPT_SIZE}'");
        sql.batch(&keeps).await;
        sql.batch("select pg_reload_conf()").await;
        let state = format!(
            "select coalesce((select wal_status from pg_replication_slots \
             where slot_name = 'postrider_{PIPELINE}'), 'missing')"
        );
        let mut seen = String::new();
        for _ in 0..WAL_TIMES_MAX {
            let writes = format!(
                "select pg_logical_emit_message(false, 'filler', repeat('x', {WAL_BYTES}))"
            );
            sql.batch(&writes).await;
            sql.batch("checkpoint").await;
            self.truth.take(&sql).await;
            seen = sql.text(&state).await.expect("the state of the slot");
            if seen == "lost" || seen == "missing" {
                break;
            }
        }
        sql.batch("alter system reset max_slot_wal_keep_size").await;
        sql.batch("select pg_reload_conf()").await;
        for relay in &self.relays {
            relay.signal(Signal::Cont);
        }
        format!(": {seen}")
    }

    async fn hurt_brokers(&mut self, act: Act) -> (usize, String) {
        let leader = self.cluster.leader(&self.main()).await.unwrap_or(0);
        let how = if act == Act::RestartLeader { Signal::Term } else { Signal::Kill };
        if act == Act::FreezeLeader {
            self.cluster.brokers[leader].signal(Signal::Stop);
        } else {
            self.cluster.brokers[leader].end(how).await;
        }
        if act == Act::KillTwoBrokers {
            let other = (leader + 1) % self.cluster.brokers.len();
            self.cluster.brokers[other].end(Signal::Kill).await;
        }
        (leader, format!(": broker {}", leader + 1))
    }

    async fn hurt_network(&mut self, act: Act, pick: u32) -> (usize, String) {
        // Mostly the connections of the streaming relay.
        let active = self.active().await;
        let whom = if pick.is_multiple_of(4) { (active + 1) % RELAYS } else { active };
        let hole = [Mode::Hole, Mode::HoleUp, Mode::HoleDown][(pick / 4 % 3) as usize];
        let mode = match act {
            Act::DelayDatabase | Act::DelayBrokers => Mode::Delay(DELAY),
            Act::SliceDatabase => Mode::Slice,
            Act::SlowBrokers => Mode::Slow(SLOW),
            Act::HoleDatabase | Act::HoleBrokers => hole,
            _ => Mode::Pass,
        };
        let database = matches!(
            act,
            Act::CutDatabase
                | Act::DelayDatabase
                | Act::SliceDatabase
                | Act::HalveDatabase
                | Act::HoleDatabase
        );
        let own = std::iter::once(&self.relays[whom].proxy).filter(|_| database);
        for proxy in own.chain(self.cluster.proxies(whom).filter(|_| !database)) {
            match act {
                Act::CutDatabase | Act::CutBrokers => proxy.cut(),
                Act::HalveDatabase | Act::HalveBrokers => proxy.halve(),
                _ => proxy.set(mode),
            }
        }
        let which = match mode {
            Mode::HoleUp => ", towards the server",
            Mode::HoleDown => ", towards the relay",
            _ => "",
        };
        (whom, format!(": relay {}{which}", whom + 1))
    }

    async fn hurt_data(&mut self, act: Act) -> String {
        let control = &self.writers.control;
        match act {
            Act::Poison => control.poison.store(true, Ordering::Relaxed),
            Act::FullDisk => {
                control.poison.store(true, Ordering::Relaxed);
                self.disk.fill(&self.sql().await).await;
                return format!(": {}", self.disk.words());
            }
            Act::SlowConsumer => self.tail.rest(true),
            Act::Burst => control.burst.store(true, Ordering::Relaxed),
            Act::DeleteTopic => return self.delete_side().await,
            _ => {}
        }
        String::new()
    }

    /// Deletes the side topic once everything that was committed to it has arrived and is archived by the test: records
    /// that an operator deletes are no loss of the relay. So its writer pauses until no broker accepts records for it
    /// any more.
    async fn delete_side(&mut self) -> String {
        let control = Arc::clone(&self.writers.control);
        control.side_pauses.store(true, Ordering::Relaxed);
        let (direct, side) = (self.cluster.direct(), self.side());
        let mut ticks = tokio::time::interval(Duration::from_millis(500));
        for _ in 0..60 {
            ticks.tick().await;
            if !control.side_paused.load(Ordering::Relaxed) {
                continue;
            }
            let records = read_all(&direct, &side).await;
            let kept = self.archive.iter().chain(&records).map(|record| record.id.as_str());
            let there: HashSet<&str> = kept.collect();
            let all = control.ledger.lock().expect("the ledger").iter().all(|entry| {
                !entry.id.starts_with("side")
                    || entry.outcome == Outcome::RolledBack
                    || there.contains(entry.id.as_str())
            });
            if all {
                self.archive.extend(records);
                self.cluster.delete_topic(&side).await;
                control.side_pauses.store(false, Ordering::Relaxed);
                return format!(": {} records kept aside", self.archive.len());
            }
        }
        control.side_pauses.store(false, Ordering::Relaxed);
        ": not done, it was never whole".to_owned()
    }

    /// Undoes a fault. Returns a note.
    async fn heal(&mut self, act: Act, whom: usize) -> String {
        match act {
            Act::KillActive | Act::KillStandby | Act::KillBoth | Act::StopActive => {
                self.relays.iter_mut().for_each(crate::relays::Relay::start);
            }
            Act::FreezeActive | Act::FreezeStandby => self.relays[whom].signal(Signal::Cont),
            Act::KillDatabase | Act::StopDatabaseAtOnce | Act::RestartDatabase => {
                self.postgres.restart().await;
            }
            Act::FreezeDatabase => self.postgres.thaw(),
            Act::KillLeader | Act::KillTwoBrokers | Act::RestartLeader | Act::FreezeLeader => {
                for broker in &mut self.cluster.brokers {
                    broker.signal(Signal::Cont);
                    if !broker.runs() {
                        broker.start();
                    }
                }
                self.cluster.await_brokers().await;
            }
            Act::Poison => return self.accept_poison().await,
            Act::FullDisk => {
                self.disk.empty(&self.sql().await).await;
                return self.accept_poison().await;
            }
            Act::DeleteTopic => {
                let gone = crate::run::setting("POSTRIDER_CHAOS_GONE_MS");
                self.rest(gone.map_or(GONE, Duration::from_millis)).await;
                self.writers.control.recreated.lock().expect("the times").push(now());
                self.cluster.create_topic(&self.side()).await;
            }
            Act::SlowConsumer => self.tail.rest(false),
            _ if act.lane() == Lane::Network => {
                self.relays[whom].proxy.heal();
                self.cluster.proxies(whom).for_each(crate::proxy::Proxy::heal);
            }
            _ => {}
        }
        String::new()
    }

    /// The topic accepts large events until all that were written are published, or until the time is over: then some
    /// stay parked until the end of the run.
    async fn accept_poison(&mut self) -> String {
        self.writers.control.poison.store(false, Ordering::Relaxed);
        let main = self.main();
        self.cluster.limit(&main, RAISED_LIMIT).await;
        let through = tokio::time::timeout(UNPARK, self.settled()).await;
        self.cluster.limit(&main, LIMIT).await;
        if through.is_ok() { String::new() } else { ", not all let through".to_owned() }
    }
}
