//! The latency from the answer to COMMIT until a consumer has the record, at fixed rates; and the resources that the
//! relay uses meanwhile and when idle.

use crate::contender::{Contender, Job, Running};
use crate::debezium;
use crate::process::{self, Samples, Watch, Who};
use crate::servers::{DEADLINE, Database, Servers};
use crate::topic::{Topic, number};
use crate::wal::{Backlog, Road, Workload, payload};
use rdkafka::Message;
use rdkafka::consumer::BaseConsumer;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Rows of a transaction.
const TRANSACTION_ROWS: u32 = 10;
/// The rehearsal where the broker is Kafka: a Java virtual machine compiles its hot code meanwhile.
pub(crate) const REHEARSAL: (u32, f64) = (10_000, 10.0);
/// The first seconds of a rate, which are not measured.
const WARM: f64 = 1.0;
/// Slices of this length that other processes disturbed are dropped.
const SLICE: Duration = Duration::from_secs(2);
/// The share of a slice that the hypervisor may take. With more, a percentile would not be one of the software.
const STOLEN_MAX: f64 = 0.01;

/// The results of one rate.
#[derive(Clone)]
pub(crate) struct Rate {
    pub(crate) per_second: u32,
    pub(crate) achieved: f64,
    /// Milliseconds, in order.
    pub(crate) latencies: Vec<f64>,
    pub(crate) relay_cores: f64,
    pub(crate) walsender_cores: f64,
    pub(crate) broker_cores: f64,
    pub(crate) rss_mib: f64,
    pub(crate) slices: usize,
    /// Slices that other processes disturbed, which are left out above unless there are no other slices.
    pub(crate) disturbed: usize,
}

/// One start of one contender.
#[derive(Clone)]
pub(crate) struct Session {
    pub(crate) rates: Vec<Rate>,
    pub(crate) idle_cores: f64,
    pub(crate) idle_mib: f64,
    /// The first event after the idle time, in milliseconds.
    pub(crate) after_idle: f64,
    /// Postrider's `/metrics` at the end.
    pub(crate) metrics: String,
}

pub(crate) struct Plan {
    pub(crate) partitions: i32,
    pub(crate) rates: Vec<u32>,
    pub(crate) seconds: f64,
    pub(crate) idle: Duration,
    /// Events per second and seconds before the first rate, which are not measured.
    pub(crate) rehearsal: (u32, f64),
}

/// A database without a backlog.
pub(crate) fn prepare(servers: &Servers) -> Backlog {
    Workload::new("latency", "a trickle", 0, 1).make(servers)
}

pub(crate) fn run(
    servers: &Servers,
    quiet: &Backlog,
    contender: &Contender,
    plan: &Plan,
) -> Session {
    let name = format!("{}_{}_{}", quiet.name, contender.short(), plan.partitions);
    let job = Job {
        servers,
        database: &quiet.name,
        slot: name.clone(),
        topic: name,
        end: String::new(),
        road: Road::UnixSocket,
        messages: false,
        sink: String::new(),
        broker_pid: servers.broker_pid,
        more: "",
    };
    quiet.slot_here(&job.slot);
    debezium::forget(&job);
    let topic = Topic::make(servers, &job.topic, plan.partitions);
    let consumer = topic.consumer();
    let reader = Reader::start(Came::default(), move || read_topic(&consumer));
    let session = measure(servers, quiet, contender, plan, &job, reader);
    topic.remove();
    quiet.database.drop_slot(&job.slot);
    session
}

/// A session whose destination and slot exist.
pub(crate) fn measure(
    servers: &Servers,
    quiet: &Backlog,
    contender: &Contender,
    plan: &Plan,
    job: &Job<'_>,
    mut reader: Reader,
) -> Session {
    let watch = Watch::start();
    let mut running = Running::start(contender, job, &watch);
    running.streams(job, &quiet.database, &watch);
    let mut writer = Writer::open(servers, &quiet.name);
    watch.look_at(Who::Writer, writer.database.backend());
    // The first event waits for the connections; when it arrives, all of them are established.
    writer.write(&reader);
    let idle_from = process::now() + 0.5;
    std::thread::sleep(plan.idle);
    let idle_until = process::now();
    let after_idle = writer.write(&reader);
    drop(writer.rate(plan.rehearsal.0, plan.rehearsal.1, &reader));
    let mut parts = Vec::new();
    for &per_second in &plan.rates {
        parts.push(writer.rate(per_second, plan.seconds, &reader));
        assert!(!running.ended());
    }
    let (samples, metrics) = (watch.end(), running.metrics());
    running.end();
    reader.end();
    let cores = |who, from: f64, until: f64| samples.cpu(who, from, until) / (until - from);
    Session {
        rates: parts.into_iter().map(|part| part.judge(&samples)).collect(),
        idle_cores: cores(Who::Relay, idle_from, idle_until),
        idle_mib: samples.rss_mib(idle_from, idle_until),
        after_idle,
        metrics,
    }
}

/// When each number arrived.
#[derive(Clone)]
pub(crate) struct Came {
    base: Instant,
    state: Arc<Mutex<CameState>>,
}

#[derive(Default)]
struct CameState {
    /// By number, nanoseconds since `base`; 0 if it did not arrive yet.
    at: Vec<u64>,
    /// By aggregate, the newest number.
    newest: Vec<u32>,
}

impl Default for Came {
    fn default() -> Self {
        Self { base: Instant::now(), state: Arc::default() }
    }
}

impl Came {
    /// Checks that the number is new, and in order for its aggregate.
    pub(crate) fn note(&self, number: u32) {
        let nanos = u64::try_from(self.base.elapsed().as_nanos()).expect("a time");
        let mut state = self.state.lock().expect("no panic");
        let (index, aggregate) = (number as usize, number as usize % 1_000);
        if state.at.len() <= index {
            state.at.resize(index + 1, 0);
        }
        state.newest.resize(1_000, 0);
        assert_eq!(state.at[index], 0, "event {number} came twice");
        state.at[index] = nanos.max(1);
        let newest = std::mem::replace(&mut state.newest[aggregate], number);
        assert!(newest < number, "{number} came after {newest}");
    }

    fn at(&self, number: u32) -> u64 {
        self.state.lock().expect("no panic").at.get(number as usize).copied().unwrap_or(0)
    }
}

/// Reads on a thread of its own.
pub(crate) struct Reader {
    came: Came,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Reader {
    /// `poll` returns the numbers that have arrived, after a short wait if there are none.
    pub(crate) fn start(came: Came, mut poll: impl FnMut() -> Vec<u32> + Send + 'static) -> Self {
        let stop = Arc::<AtomicBool>::default();
        let (to, end) = (came.clone(), Arc::clone(&stop));
        let thread = std::thread::spawn(move || {
            while !end.load(Ordering::Relaxed) {
                for number in poll() {
                    to.note(number);
                }
            }
        });
        Self { came, stop, thread: Some(thread) }
    }

    fn wait(&self, numbers: std::ops::RangeInclusive<u32>) {
        for number in numbers {
            let since = Instant::now();
            while self.came.at(number) == 0 {
                assert!(since.elapsed() < DEADLINE, "event {number} did not come");
                let ended = self.thread.as_ref().is_none_or(JoinHandle::is_finished);
                assert!(!ended, "the reader has failed");
                std::thread::sleep(Duration::from_millis(2));
            }
        }
    }

    fn end(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.take().expect("one end").join().expect("no panic");
    }
}

pub(crate) fn read_topic(consumer: &BaseConsumer) -> Vec<u32> {
    let Some(message) = consumer.poll(Duration::from_millis(50)) else { return Vec::new() };
    vec![number(message.expect("a record").payload().unwrap_or_default())]
}

struct Writer {
    database: Database,
    statement: tokio_postgres::Statement,
    next: u32,
}

/// One rate, written and read.
struct Part {
    per_second: u32,
    slices: Vec<Slice>,
}

/// A part of a rate that is used or dropped as a whole.
struct Slice {
    from: f64,
    until: f64,
    latencies: Vec<f64>,
}

impl Writer {
    fn open(servers: &Servers, name: &str) -> Self {
        let database = Database::open(servers, name);
        let last = TRANSACTION_ROWS - 1;
        let value = payload("$1::bigint + i", 300, "json");
        let statement = database.prepare(&format!(
            "insert into outbox (aggregate_type, aggregate_id, event_type, payload) \
             select 'order', (($1::bigint + i) % 1000)::text, 'OrderChanged', {value} \
             from generate_series(0, {last}) i"
        ));
        Self { database, statement, next: 1 }
    }

    /// One transaction. Returns the milliseconds from the answer to COMMIT until the reader has its last event.
    fn write(&mut self, reader: &Reader) -> f64 {
        let first = self.next;
        let answered = self.transaction(reader.came.base);
        let last = first + TRANSACTION_ROWS - 1;
        reader.wait(first..=last);
        (first..=last).map(|number| millis(reader.came.at(number), answered)).fold(0.0, f64::max)
    }

    /// Nanoseconds since `base` when the server had answered.
    fn transaction(&mut self, base: Instant) -> u64 {
        self.database.execute(&self.statement, i64::from(self.next));
        self.next += TRANSACTION_ROWS;
        u64::try_from(base.elapsed().as_nanos()).expect("a time")
    }

    fn rate(&mut self, per_second: u32, seconds: f64, reader: &Reader) -> Part {
        drop(self.keep_to(per_second, WARM, reader.came.base));
        let begun = Instant::now();
        let mut slices = Vec::new();
        while begun.elapsed().as_secs_f64() + 0.1 < seconds {
            let from = process::now();
            let first = self.next;
            let answers = self.keep_to(per_second, SLICE.as_secs_f64(), reader.came.base);
            slices.push((from, process::now(), first, answers));
        }
        let newest = self.next - 1;
        let slices = slices.into_iter().map(|(from, until, first, answers)| {
            reader.wait(first..=newest);
            let each = answers.iter().zip((first..).step_by(TRANSACTION_ROWS as usize));
            let latencies = each.flat_map(|(&answered, first)| {
                (first..first + TRANSACTION_ROWS)
                    .map(move |number| millis(reader.came.at(number), answered))
            });
            Slice { from, until, latencies: latencies.collect() }
        });
        Part { per_second, slices: slices.collect() }
    }

    /// Writes so many events per second, on schedule however long a transaction takes. Returns when each was answered.
    fn keep_to(&mut self, per_second: u32, seconds: f64, base: Instant) -> Vec<u64> {
        let every = Duration::from_secs_f64(f64::from(TRANSACTION_ROWS) / f64::from(per_second));
        let whole = Duration::from_secs_f64(seconds);
        let begun = Instant::now();
        let (mut due, mut answers) = (Duration::ZERO, Vec::new());
        while due < whole {
            if let Some(pause) = due.checked_sub(begun.elapsed()) {
                std::thread::sleep(pause);
            }
            answers.push(self.transaction(base));
            due += every;
        }
        // Until the next transaction is due.
        std::thread::sleep(whole.saturating_sub(begun.elapsed()));
        answers
    }
}

/// The reader may have a record before the writer has the answer to COMMIT.
fn millis(came: u64, answered: u64) -> f64 {
    came.saturating_sub(answered) as f64 / 1e6
}

impl Part {
    fn judge(self, samples: &Samples) -> Rate {
        let whole = self.slices.len();
        let is_quiet =
            |slice: &Slice| samples.disturbed(slice.from, slice.until, STOLEN_MAX).is_none();
        let (quiet, noisy): (Vec<Slice>, Vec<Slice>) = self.slices.into_iter().partition(is_quiet);
        let disturbed = noisy.len();
        let counted = if quiet.is_empty() { noisy } else { quiet };
        let seconds: f64 = counted.iter().map(|slice| slice.until - slice.from).sum();
        let cores = |who| {
            counted.iter().map(|slice| samples.cpu(who, slice.from, slice.until)).sum::<f64>()
                / seconds
        };
        let rss = counted.iter().map(|slice| samples.rss_mib(slice.from, slice.until)).sum::<f64>();
        let (relay_cores, walsender_cores, broker_cores) =
            (cores(Who::Relay), cores(Who::Walsender), cores(Who::Broker));
        let rss_mib = rss / counted.len() as f64;
        let mut latencies: Vec<f64> =
            counted.into_iter().flat_map(|slice| slice.latencies).collect();
        latencies.sort_by(f64::total_cmp);
        Rate {
            per_second: self.per_second,
            achieved: latencies.len() as f64 / seconds,
            latencies,
            relay_cores,
            walsender_cores,
            broker_cores,
            rss_mib,
            slices: whole,
            disturbed,
        }
    }
}

/// Of values in order.
pub(crate) fn quantile(values: &[f64], part: f64) -> f64 {
    let index = (values.len() as f64 * part).ceil() - 1.0;
    let (mut low, mut high) = (0, values.len().saturating_sub(1));
    // The index as an integer, without a cast that may cut.
    while low < high {
        let middle = usize::midpoint(low, high);
        if (middle as f64) < index { low = middle + 1 } else { high = middle }
    }
    values.get(low).copied().unwrap_or(0.0)
}
