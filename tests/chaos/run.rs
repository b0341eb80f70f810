//! A run: start, steps, undo all faults, drain, read, compare, report.

use crate::ledger::{Findings, check};
use crate::plan::{Act, Step, steps_of, steps_without_slot};
use crate::proxy::pump::hold;
use crate::reader::Read;
use crate::relays::{IN_FLIGHT_EVENTS, PIPELINE, Reads, Relay, status};
use crate::report;
use crate::server::Version;
use crate::truth::{self, Truth};
use crate::watch::{Verdict, check_updates};
use crate::world::{Deed, World};
use crate::writer::WriterControl;
use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::task::JoinSet;

/// How long everything may take to be normal again.
const SETTLE: Duration = Duration::from_mins(3);
/// Pause between two samples of the relays.
const SAMPLE_INTERVAL: Duration = Duration::from_millis(500);
/// Events by which the cursor row may lag.
const CURSOR_EVENTS: usize = 10_000;

/// One sample.
#[derive(Clone, Debug)]
pub(crate) struct Sample {
    /// Time since the start.
    pub(crate) at: Duration,
    /// The state of each relay; empty if it does not answer.
    pub(crate) states: Vec<String>,
    /// Distinct events of the main topic.
    pub(crate) committed: usize,
    pub(crate) delivered: usize,
}

/// The result of a run.
pub(crate) struct Outcome {
    pub(crate) seed: u64,
    pub(crate) version: Version,
    pub(crate) reads: Reads,
    pub(crate) took: Duration,
    pub(crate) findings: Findings,
    /// One for each relay's connection.
    pub(crate) verdicts: Vec<Verdict>,
    /// Other findings.
    pub(crate) other: Vec<String>,
    /// Streams that were started and producers that were reset: each may repeat events.
    pub(crate) incidents: usize,
    pub(crate) parked: usize,
    pub(crate) deeds: Vec<Deed>,
    pub(crate) samples: Vec<Sample>,
    pub(crate) disk: &'static str,
}

impl Outcome {
    pub(crate) fn duplicates_max(&self) -> usize {
        if exactly_once() { 0 } else { self.incidents * (IN_FLIGHT_EVENTS + CURSOR_EVENTS) }
    }

    pub(crate) fn balanced(&self) -> bool {
        self.findings.balanced()
            && self.other.is_empty()
            && self.findings.duplicates <= self.duplicates_max()
            && self.verdicts.iter().all(|verdict| verdict.broken.is_empty())
    }

    /// Fails with the findings, if there are any.
    pub(crate) fn assert_balanced(&self) {
        let broken: Vec<&String> = self.verdicts.iter().flat_map(|v| &v.broken).collect();
        assert!(
            self.balanced(),
            "seed {}\n{}at most {} duplicates\nthe wire: {broken:#?}\nelse: {:#?}",
            self.seed,
            self.findings,
            self.duplicates_max(),
            self.other
        );
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kinds: BTreeSet<Act> = self.deeds.iter().map(|deed| deed.act).collect();
        let claims: usize = self.verdicts.iter().map(|verdict| verdict.claims).sum();
        writeln!(
            f,
            "seed {}: {} faults of {} kinds in {:.0} s, {} starts of a stream or a producer, {claims} confirmations seen, \
             {} events parked; duplicates at most {}; page, picture and logs: target/chaos/{7}seed-{0}",
            self.seed,
            self.deeds.len(),
            kinds.len(),
            self.took.as_secs_f64(),
            self.incidents,
            self.parked,
            self.duplicates_max(),
            self.reads.prefix(),
        )?;
        self.findings.fmt(f)
    }
}

/// The directory of a run's logs and report. Files of an earlier run of this name are removed.
fn out_dir(name: &str) -> PathBuf {
    let out = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/chaos").join(name);
    drop(fs::remove_dir_all(&out));
    fs::create_dir_all(&out).expect("a directory for the report");
    out
}

/// Runs the steps until all are done or the time is over. Logs, page and picture are in `target/chaos/<name>`.
pub(crate) async fn play(
    seed: u64,
    (version, reads): (Version, Reads),
    (plan, length): (&[Step], Duration),
    name: &str,
) -> Outcome {
    let out = out_dir(name);
    let schedule: Vec<String> = plan.iter().map(|step| format!("{step:?}")).collect();
    fs::write(out.join("schedule"), schedule.join("\n")).expect("a schedule");
    let mut world = World::start(seed, version, reads, &out).await;
    let samples = Arc::new(Mutex::new(Vec::new()));
    let mut looker = JoinSet::new();
    let ports = world.relays.iter().map(|relay| relay.port).collect();
    let counters = (Arc::clone(&world.writers.control), world.tail.delivered());
    looker.spawn(sample(ports, world.began, counters, Arc::clone(&samples)));

    for step in plan {
        if world.began.elapsed() >= length {
            break;
        }
        world.step(step).await;
    }
    world.writers.stop().await;
    world.settle(SETTLE).await;
    let fresh = world.fresh_event().await;
    world.settle(SETTLE).await;
    let took = world.began.elapsed();
    world.restart_ended_relays();
    for number in 0..world.relays.len() {
        let code = world.relays[number].terminate().await;
        if code != Some(0) {
            world.findings.push(format!("relay {} left with {code:?}", number + 1));
        }
    }
    drop(looker);

    let sql = world.sql().await;
    world.truth.take(&sql).await;
    let truth = std::mem::take(&mut world.truth).truth();
    truth::end(&sql).await;
    let records = world.read_all().await;
    if !records.iter().any(|record| record.id == fresh) {
        world.findings.push("a fresh event did not flow".to_owned());
    }
    world.keep_logs(&out);
    let samples = samples.lock().expect("the samples").clone();
    let outcome = outcome((seed, reads), took, &mut world, &truth, &records, samples);
    report::write(&outcome, &out);
    outcome
}

fn outcome(
    (seed, reads): (u64, Reads),
    took: Duration,
    world: &mut World,
    truth: &Truth,
    records: &[Read],
    samples: Vec<Sample>,
) -> Outcome {
    let control = &world.writers.control;
    let entries = control.ledger.lock().expect("the ledger").clone();
    let recreated = if one_in_flight() {
        Vec::new()
    } else {
        control.recreated.lock().expect("the times").clone()
    };
    let mut appended: HashMap<String, i64> = HashMap::new();
    for record in records {
        let first = appended.entry(record.id.clone()).or_insert(i64::MAX);
        *first = record.appended.min(*first);
    }
    let verdicts: Vec<Verdict> = world
        .relays
        .iter()
        .map(|relay| check_updates(&relay.wire.seen(), truth, &appended))
        .collect();
    for (number, (relay, verdict)) in (1..).zip(world.relays.iter().zip(&verdicts)) {
        // In a short run one of the relays may never own the pipeline: the successor of a killed owner waits for 8 s.
        let streams = log_lines(relay, "streaming");
        if verdict.claims == 0 && streams > 0 {
            let blind = format!("relay {number}: no status update was seen, of {streams} streams");
            world.findings.push(blind);
        }
    }
    if reads == Reads::Stream && world.relays.iter().all(|relay| log_lines(relay, "streaming") == 0)
    {
        world.findings.push("no relay has streamed".to_owned());
    }
    if reads == Reads::Both && world.relays.iter().all(|relay| log_lines(relay, "polling") == 0) {
        world.findings.push("no relay has polled".to_owned());
    }
    Outcome {
        seed,
        version: world.version,
        reads,
        took,
        findings: check(&entries, truth, records, (&recreated, reads)),
        verdicts,
        other: std::mem::take(&mut world.findings),
        incidents: world.relays.iter().map(incidents).sum(),
        parked: truth.parked.len(),
        deeds: std::mem::take(&mut world.deeds),
        samples,
        disk: world.disk.words(),
    }
}

/// How often a relay may have repeated events, by its log.
fn incidents(relay: &Relay) -> usize {
    ["streaming", "polling", "producer_reset"].map(|event| log_lines(relay, event)).iter().sum()
}

/// How often a relay logged an event.
fn log_lines(relay: &Relay, event: &str) -> usize {
    relay.log().matches(&format!("\"event\":\"{event}\"")).count()
}

impl World {
    /// Writes one more event when everything is quiet; returns its ID.
    async fn fresh_event(&mut self) -> String {
        use crate::writer::{Entry, Outcome, payload};
        let (id, aggregate) = ("fresh-1".to_owned(), "fresh-a".to_owned());
        let payload = payload(&id, 80);
        let insert = format!(
            "insert into outbox (id, aggregate_type, aggregate_id, event_type, payload) \
             values ('{id}', 'main', '{aggregate}', 'Written', '{payload}')"
        );
        self.sql().await.batch(&insert).await;
        let (bytes, outcome) = (payload.len(), Outcome::Committed);
        let entry = Entry { id: id.clone(), aggregate, bytes, outcome };
        self.writers.control.ledger.lock().expect("the ledger").push(entry);
        id
    }
}

/// Takes samples until it is dropped.
async fn sample(
    ports: Vec<u16>,
    began: Instant,
    (control, delivered): (Arc<WriterControl>, Arc<AtomicUsize>),
    samples: Arc<Mutex<Vec<Sample>>>,
) {
    loop {
        let mut states = Vec::new();
        for port in &ports {
            let seen = status(*port).await.unwrap_or_default();
            states.push(seen["state"].as_str().unwrap_or_default().to_owned());
        }
        let sample = Sample {
            at: began.elapsed(),
            states,
            committed: control.committed.load(Ordering::Relaxed),
            delivered: delivered.load(Ordering::Relaxed),
        };
        samples.lock().expect("the samples").push(sample);
        hold(SAMPLE_INTERVAL).await;
    }
}

/// A number from the environment, as `scripts/chaos` sets it.
pub(crate) fn setting(name: &str) -> Option<u64> {
    let value = std::env::var_os(name)?.into_string().expect("UTF-8");
    Some(value.parse().unwrap_or_else(|error| panic!("{name}={value}: {error}")))
}

/// Whether the producers have one request in flight: then a recreated topic does not explain swapped events either.
pub(crate) fn one_in_flight() -> bool {
    setting("POSTRIDER_CHAOS_IN_FLIGHT") == Some(1)
}

/// Whether the relays publish in transactions, exactly once; the consumers of the run read committed records.
pub(crate) fn exactly_once() -> bool {
    setting("POSTRIDER_CHAOS_EXACTLY_ONCE") == Some(1)
}

/// All faults, or those that `scripts/chaos --only` names.
fn acts() -> Vec<Act> {
    let only = std::env::var_os("POSTRIDER_CHAOS_ONLY").unwrap_or_default();
    let only = only.into_string().expect("UTF-8");
    let named =
        |act: &Act| only.is_empty() || only.split(',').any(|name| name == format!("{act:?}"));
    let acts: Vec<Act> = Act::ALL.into_iter().filter(named).collect();
    assert!(!acts.is_empty(), "none of {:?} is called {only}", Act::ALL);
    acts
}

/// Three minutes, or `scripts/chaos --minutes`. The seed is printed, and gives the same schedule again.
#[tokio::test]
async fn whatever_happens_to_whom_the_ledger_balances() {
    let seconds = setting("POSTRIDER_CHAOS_SECONDS").unwrap_or(180);
    let seed = setting("POSTRIDER_CHAOS_SEED").unwrap_or_else(|| fastrand::u64(1..1_000_000));
    let version = Version::ALL[usize::try_from(seed % 4).expect("a small number")];
    eprintln!(
        "seed {seed}, {seconds} s, PostgreSQL {}, slot postrider_{PIPELINE}",
        version.major()
    );
    let length = Duration::from_secs(seconds);
    let plan = steps_of(&acts(), seed, length);
    let name = format!("{}seed-{seed}", Reads::Stream.prefix());
    let outcome = play(seed, (version, Reads::Stream), (&plan, length), &name).await;
    eprintln!("{outcome}");
    outcome.assert_balanced();
}

/// Mode `auto`: the slot is dropped or lost before every second one of the other faults, so that each of them meets
/// both ways of reading and both transitions between them. One minute, or `scripts/chaos --auto --minutes`.
#[tokio::test]
async fn two_auto_relays_whose_slot_goes_again_and_again_lose_and_swap_nothing() {
    let seconds = setting("POSTRIDER_CHAOS_AUTO_SECONDS").unwrap_or(60);
    let seed = setting("POSTRIDER_CHAOS_SEED").unwrap_or_else(|| fastrand::u64(1..1_000_000));
    let version = Version::ALL[usize::try_from(seed % 4).expect("a small number")];
    eprintln!("seed {seed}, {seconds} s, PostgreSQL {}, mode auto", version.major());
    let length = Duration::from_secs(seconds);
    let plan = steps_without_slot(&acts(), seed, length);
    let name = format!("{}seed-{seed}", Reads::Both.prefix());
    let outcome = play(seed, (version, Reads::Both), (&plan, length), &name).await;
    eprintln!("{outcome}");
    outcome.assert_balanced();
}
