//! A place with a spool, a cursor and a folder; pipelines that run there; and what watches and disturbs them.

mod script;

pub(crate) use script::Sent;

use embedding::cursor_file::CursorFile;
use embedding::folder::{self, FolderConfig, FolderKind};
use embedding::spool::{self, Event, Spool, SpoolStream};
use postrider::config;
use postrider::outbox::{Layout, OutboxSpec, Role, TableName};
use postrider::pipeline::{Embedded, PipelineExit, PipelineSpec, Stop, StopHandle};
use postrider_core::error::{Failure, Halt};
use postrider_core::event::HistoryId;
use postrider_core::offset::Watermark;
use postrider_core::record::{Record, Ticket};
use postrider_core::sink::{
    Capabilities, Mailbox, NameRule, Needs, NotTaken, Post, Shown, Sink, SinkConfig, SinkError,
    SinkKind,
};
use postrider_core::source::{Batch, Source, Stream};
use postrider_core::status::{Snapshot, StatusHandle};
use postrider_core::store::{Cursor, Store};
use script::Script;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt::Debug;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tempfile::TempDir;
use tokio::sync::oneshot;

/// How long a state that is sure to come may take on a busy machine.
const SOON: Duration = Duration::from_mins(1);

const DESTINATIONS: [&str; 2] = ["orders", "payments"];

/// Looks again until the state is there; `look` returns whether it is, and what was seen.
pub(crate) fn await_that<T: Debug>(what: &str, look: impl Fn() -> (bool, T)) {
    let since = Instant::now();
    loop {
        let (there, seen) = look();
        if there {
            return;
        }
        assert!(since.elapsed() < SOON, "waited {SOON:?} for: {what}\nlast seen: {seen:?}");
        std::thread::park_timeout(Duration::from_millis(2));
    }
}

/// An event of one of four aggregates; even ones are orders, odd ones payments.
pub(crate) fn event(number: u64) -> Event {
    let kind = DESTINATIONS[usize::from(number % 2 == 1)];
    Event {
        id: Some(number.to_string()),
        aggregate_type: Some(kind.to_owned()),
        aggregate_id: Some(format!("{kind}-{}", number % 4)),
        event_type: Some("changed".to_owned()),
        payload: Some(format!("{{\"number\": {number}}}")),
        headers: None,
    }
}

/// `count` events from this number on.
pub(crate) fn events(first: u64, count: u64) -> Vec<Event> {
    (first..first + count).map(event).collect()
}

/// What the store and the source were asked.
#[derive(Clone, Default, Debug)]
pub(crate) struct Calls {
    /// Watermarks that were stored.
    pub(crate) stored: Vec<u64>,
    /// Watermarks that were confirmed.
    pub(crate) confirmed: Vec<u64>,
    /// Attempts to connect: from where, and when.
    pub(crate) connected: Vec<(u64, Instant)>,
}

/// What is known of a place by those who watch.
#[derive(Default, Debug)]
struct Known {
    calls: Calls,
    /// The ids of each transaction.
    committed: BTreeMap<u64, Vec<u64>>,
}

impl Known {
    /// The ids of events that the cursor says are resolved.
    fn below(&self, cursor: Cursor) -> BTreeSet<u64> {
        let mut ids = BTreeSet::new();
        for (number, of_transaction) in &self.committed {
            let partial = cursor.partial.filter(|at| at.commit.get() == *number);
            let whole = *number < cursor.watermark.offset().get();
            let ordinal = partial.map_or(0, |at| usize::try_from(at.ordinal).unwrap());
            let resolved = if whole { of_transaction.len() } else { ordinal };
            ids.extend(&of_transaction[..resolved]);
        }
        ids
    }
}

/// A directory of a test.
pub(crate) struct Place {
    directory: TempDir,
    known: Arc<Mutex<Known>>,
}

impl Place {
    pub(crate) fn new() -> Self {
        Self { directory: tempfile::tempdir().unwrap(), known: Arc::default() }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    pub(crate) fn out(&self) -> PathBuf {
        self.path("out")
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn calls(&self) -> Calls {
        self.known().calls.clone()
    }

    /// Commits a transaction; returns its number.
    pub(crate) fn commit(&self, events: &[Event]) -> u64 {
        let ids = events.iter().map(|event| event.id.as_ref().unwrap().parse().unwrap()).collect();
        // The pipeline may publish the events before the number is known here.
        let mut known = self.known();
        let number = Spool::open(self.path("spool")).unwrap().commit(events).unwrap();
        known.committed.insert(number, ids);
        number
    }

    /// Replaces the rows of a transaction.
    pub(crate) fn correct(&self, number: u64, events: &[Event]) {
        let lines: Vec<_> = events.iter().map(|e| serde_json::to_string(e).unwrap()).collect();
        fs::write(self.path(&format!("spool/{number}.jsonl")), lines.join("\n")).unwrap();
    }

    /// Transactions that the spool still has.
    pub(crate) fn transactions(&self) -> usize {
        let names = fs::read_dir(self.path("spool")).unwrap().map(|entry| entry.unwrap().path());
        names.filter(|name| name.extension().is_some_and(|known| known == "jsonl")).count()
    }

    pub(crate) fn set_history(&self, number: u32) {
        fs::create_dir_all(self.path("spool")).unwrap();
        fs::write(self.path("spool/history"), number.to_string()).unwrap();
    }

    /// Begins a spool with the same numbers, and a higher history.
    pub(crate) fn recreate_spool(&self) {
        let history: u32 = fs::read_to_string(self.path("spool/history")).unwrap().parse().unwrap();
        fs::remove_dir_all(self.path("spool")).unwrap();
        self.set_history(history + 1);
        self.known().committed.clear();
    }

    /// The cursor in the store; the lowest one if there is none.
    pub(crate) fn stored(&self) -> Cursor {
        CursorFile::new(self.path("cursor")).read().unwrap().unwrap_or_default()
    }

    pub(crate) fn store(&self, text: &str) {
        fs::write(self.path("cursor"), text).unwrap();
    }

    pub(crate) fn remove_cursor(&self) {
        fs::remove_file(self.path("cursor")).unwrap();
    }

    /// The ids of the events that a start from this cursor reads.
    pub(crate) fn ids_at_or_above(&self, cursor: Cursor) -> BTreeSet<u64> {
        let known = self.known();
        let below = known.below(cursor);
        known.committed.values().flatten().copied().filter(|id| !below.contains(id)).collect()
    }

    /// The ids of the lines in the folder, file by file.
    pub(crate) fn published_ids(&self) -> Vec<u64> {
        published_ids(&self.out())
    }

    /// Fails unless the events below `count` are there, in the order of their aggregates; returns how many lines repeat
    /// an earlier one.
    pub(crate) fn assert_in_order(&self, count: u64) -> usize {
        let mut lines = 0;
        let mut seen = BTreeSet::new();
        let mut highest: BTreeMap<String, u64> = BTreeMap::new();
        for topic in DESTINATIONS {
            for line in folder::read(&self.out(), topic).unwrap() {
                lines += 1;
                let id = id_of(&line);
                let expected = event(id);
                let key = line["key"].as_str().unwrap().to_owned();
                assert_eq!(Some(topic), expected.aggregate_type.as_deref(), "{line}");
                assert_eq!(Some(&key), expected.aggregate_id.as_ref(), "{line}");
                if seen.insert(id) {
                    let before = highest.insert(key, id);
                    assert!(before.is_none_or(|before| before < id), "{id} after {before:?}");
                }
            }
        }
        assert_eq!(seen, (0..count).collect(), "events that were published");
        lines - seen.len()
    }

    pub(crate) fn assert_in_order_without_repeats(&self, count: u64) {
        assert_eq!(self.assert_in_order(count), 0, "events were published twice");
    }

    /// A configuration whose sink is the folder.
    pub(crate) fn configuration(&self) -> String {
        format!(
            r#"
[pipelines.orders]
source.url = "postgresql://postrider@localhost/app"
outbox.table = "{}.{}"
outbox.columns.time = ""

[pipelines.orders.sink]
kind = "folder"
directory = "{}"
line_bytes_max = 10000
"#,
            spool::SCHEMA,
            spool::TABLE,
            self.out().display()
        )
    }

    pub(crate) fn run(&self) -> Running {
        self.run_with(|_setup| {})
    }

    /// Runs a pipeline that is set up otherwise.
    pub(crate) fn run_with(&self, change: impl FnOnce(&mut Setup)) -> Running {
        let mut setup = Setup::default();
        change(&mut setup);
        let pipeline = self.pipeline(&setup);
        self.start(pipeline, &setup)
    }

    /// Runs a pipeline over these changes in place of the spool.
    pub(crate) fn run_script(&self, changes: &[Sent]) -> Running {
        let setup = Setup::default();
        let source = Script { changes: changes.to_vec(), known: Arc::clone(&self.known) };
        self.spawn(self.pipeline(&setup), source, &setup)
    }

    fn pipeline(&self, setup: &Setup) -> Embedded {
        let table = TableName { schema: spool::SCHEMA.to_owned(), name: spool::TABLE.to_owned() };
        let outbox = OutboxSpec {
            table: Some(table),
            columns: setup.columns.clone(),
            ..OutboxSpec::for_layout(Layout::Postrider)
        };
        let line_bytes_max = setup.line_bytes_max;
        let inner = FolderConfig { directory: self.out(), line_bytes_max };
        let sink = Arc::new(GatedConfig { inner, gate: setup.gate.clone() });
        Embedded::new("orders", outbox, sink)
    }

    /// Runs a pipeline with the outbox and the sink of a configuration.
    pub(crate) fn run_configured(&self, spec: &PipelineSpec) -> Running {
        let pipeline =
            Embedded::new(spec.name(), spec.common.outbox.clone(), Arc::clone(&spec.common.sink));
        self.start(pipeline, &Setup::default())
    }

    fn start(&self, pipeline: Embedded, setup: &Setup) -> Running {
        let source = WatchedSource {
            inner: Spool::open(self.path("spool")).unwrap(),
            known: Arc::clone(&self.known),
            cursor: self.path("cursor"),
            faults: setup.faults.clone().into(),
        };
        self.spawn(pipeline, source, setup)
    }

    fn spawn(
        &self,
        pipeline: Embedded,
        source: impl Source + Send + 'static,
        setup: &Setup,
    ) -> Running {
        let pipeline = pipeline
            .in_flight(setup.in_flight, 32 << 20)
            .cursor_interval(setup.cursor_interval)
            .shutdown_grace(setup.shutdown_grace);
        let store = WatchedStore {
            inner: CursorFile::new(self.path("cursor")),
            known: Arc::clone(&self.known),
            out: self.out(),
            faults: AtomicUsize::new(setup.write_faults),
            takes: setup.write_takes,
        };
        let status_handle = pipeline.status();
        let (stopper, stop) = Stop::new();
        let (crash, crashed) = oneshot::channel::<()>();
        let thread = std::thread::spawn(move || {
            let runtime =
                tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                tokio::select! {
                    exit = pipeline.run(source, store, &stop) => Some(exit),
                    _dropped = crashed => None,
                }
            })
        });
        Running { status_handle, stopper, crash: Some(crash), thread: Some(thread) }
    }
}

fn id_of(line: &serde_json::Value) -> u64 {
    line["headers"]["id"].as_str().unwrap().parse().unwrap()
}

fn published_ids(out: &Path) -> Vec<u64> {
    let lines = DESTINATIONS.iter().flat_map(|topic| folder::read(out, topic).unwrap());
    lines.map(|line| id_of(&line)).collect()
}

/// The kinds of sinks of a program that has the folder beside those of the product, and a file that is read with them.
pub(crate) fn configured(text: &str) -> Result<config::Config, String> {
    let own: &dyn SinkKind = &FolderKind;
    let kinds: Vec<_> = postrider::sink::KINDS.iter().copied().chain([own]).collect();
    let config = config::parse_with(&kinds, "postrider.toml", Path::new(""), text, &|_| None);
    config.map_err(|findings| findings.to_string())
}

/// How a pipeline is run, and what disturbs it.
pub(crate) struct Setup {
    pub(crate) in_flight: u64,
    pub(crate) cursor_interval: Duration,
    pub(crate) shutdown_grace: Duration,
    pub(crate) line_bytes_max: u32,
    pub(crate) columns: Vec<(Role, String)>,
    pub(crate) gate: Gate,
    /// What the connections to the source meet with, one after the other.
    pub(crate) faults: Vec<Fault>,
    /// Writes of the cursor that fail.
    pub(crate) write_faults: usize,
    /// How long a write of the cursor takes.
    pub(crate) write_takes: Duration,
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            in_flight: 50_000,
            cursor_interval: Duration::from_millis(10),
            shutdown_grace: SOON,
            line_bytes_max: 1 << 20,
            columns: vec![(Role::Time, String::new())],
            gate: Gate::closed_after(usize::MAX),
            faults: Vec::new(),
            write_faults: 0,
            write_takes: Duration::ZERO,
        }
    }
}

/// A pipeline on a thread of its own. Dropping it is a crash.
pub(crate) struct Running {
    status_handle: StatusHandle,
    stopper: StopHandle,
    crash: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<Option<PipelineExit>>>,
}

impl Running {
    pub(crate) fn handle(&self) -> StatusHandle {
        self.status_handle.clone()
    }

    pub(crate) fn status(&self) -> Snapshot {
        self.status_handle.read()
    }

    /// Events that this pipeline has published.
    pub(crate) fn published(&self) -> u64 {
        self.status().published_total
    }

    pub(crate) fn await_published(&self, count: u64) {
        await_that("events to be published", || {
            (self.published() >= count || self.is_finished(), self.published())
        });
        assert_eq!(self.published(), count, "{:?}", self.status().reason);
    }

    fn is_finished(&self) -> bool {
        self.thread.as_ref().unwrap().is_finished()
    }

    /// Ends the pipeline in the middle of what it does.
    pub(crate) fn crash(mut self) {
        drop(self.crash.take());
        assert!(self.thread.take().unwrap().join().unwrap().is_none(), "it had ended before");
    }

    fn exit(mut self) -> PipelineExit {
        await_that("the end of the pipeline", || (self.is_finished(), self.status().state));
        self.thread.take().unwrap().join().unwrap().unwrap()
    }

    /// Drains the pipeline; returns how it has ended.
    pub(crate) fn stop(self) -> String {
        self.stopper.stop();
        self.ended()
    }

    /// Waits for the pipeline to end by itself; returns how.
    pub(crate) fn ended(self) -> String {
        match self.exit() {
            PipelineExit::Stopped => "stopped".to_owned(),
            PipelineExit::Halted(halt) => halt.to_string(),
            PipelineExit::Bug => "a bug".to_owned(),
        }
    }

    /// Waits for the pipeline to halt; returns why.
    pub(crate) fn halted(self) -> Halt {
        match self.exit() {
            PipelineExit::Halted(halt) => *halt,
            exit @ (PipelineExit::Stopped | PipelineExit::Bug) => unreachable!("{exit:?}"),
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        drop(self.crash.take());
        if let Some(thread) = self.thread.take() {
            drop(thread.join());
        }
    }
}

/// What happens to a connection.
#[derive(Clone, Debug)]
pub(crate) enum Fault {
    /// It is not made.
    Connect,
    /// It is lost after so many batches.
    AfterBatches(usize),
    /// It ends with this failure after so many batches.
    Halt(usize, Failure),
}

fn cable() -> Failure {
    Failure::Temporary { reason: "the cable is out".to_owned(), hint: None }
}

struct WatchedSource {
    inner: Spool,
    known: Arc<Mutex<Known>>,
    cursor: PathBuf,
    faults: VecDeque<Fault>,
}

impl Source for WatchedSource {
    type Stream = WatchedStream;

    fn name(&self) -> String {
        self.inner.name()
    }

    async fn connect(&mut self, from: Watermark) -> Result<WatchedStream, Failure> {
        let call = (from.offset().get(), Instant::now());
        self.known.lock().unwrap().calls.connected.push(call);
        let fault = match self.faults.pop_front() {
            Some(Fault::Connect) => return Err(cable()),
            Some(Fault::AfterBatches(batches)) => Some((batches, cable())),
            Some(Fault::Halt(batches, halt)) => Some((batches, halt)),
            None => None,
        };
        Ok(WatchedStream {
            inner: self.inner.connect(from).await?,
            known: Arc::clone(&self.known),
            cursor: CursorFile::new(&self.cursor),
            fault,
        })
    }
}

struct WatchedStream {
    inner: SpoolStream,
    known: Arc<Mutex<Known>>,
    cursor: CursorFile,
    fault: Option<(usize, Failure)>,
}

impl Stream for WatchedStream {
    fn history(&self) -> HistoryId {
        self.inner.history()
    }

    async fn next(&mut self) -> Result<Box<dyn Batch>, Failure> {
        if let Some((0, failure)) = &self.fault {
            return Err(failure.clone());
        }
        let batch = self.inner.next().await?;
        if let Some((batches, _)) = &mut self.fault {
            *batches -= 1;
        }
        Ok(batch)
    }

    fn confirm(&mut self, upto: Watermark) {
        let stored = self.cursor.read().unwrap().unwrap_or_default();
        assert!(stored.watermark >= upto, "{upto} was confirmed, and {stored} is stored");
        self.known.lock().unwrap().calls.confirmed.push(upto.offset().get());
        self.inner.confirm(upto);
    }

    async fn close(self) -> Result<(), Failure> {
        self.inner.close().await
    }
}

struct WatchedStore {
    inner: CursorFile,
    known: Arc<Mutex<Known>>,
    out: PathBuf,
    faults: AtomicUsize,
    takes: Duration,
}

impl Store for WatchedStore {
    async fn read_cursor(&self) -> Result<Option<Cursor>, Failure> {
        self.inner.read_cursor().await
    }

    async fn write_cursor(&self, cursor: Cursor) -> Result<(), Failure> {
        let on_disk: BTreeSet<u64> = published_ids(&self.out).into_iter().collect();
        let resolved = self.known.lock().unwrap().below(cursor);
        let missing: Vec<_> = resolved.difference(&on_disk).collect();
        assert!(missing.is_empty(), "cursor {cursor}, and {missing:?} are not on the disk");
        let disk = std::future::pending::<()>();
        tokio::time::timeout(self.takes, disk).await.unwrap_or_default();
        let one_less = |faults: usize| faults.checked_sub(1);
        if self.faults.fetch_update(Ordering::AcqRel, Ordering::Acquire, one_less).is_ok() {
            return Err(Failure::Temporary { reason: "the disk is full".to_owned(), hint: None });
        }
        self.inner.write_cursor(cursor).await?;
        self.known.lock().unwrap().calls.stored.push(cursor.watermark.offset().get());
        Ok(())
    }
}

/// Lets a number of records through to the folder. Further ones are taken and stay in flight.
#[derive(Clone, Debug)]
pub(crate) struct Gate(Arc<GateState>);

#[derive(Debug)]
struct GateState {
    left: AtomicUsize,
    swallowed: AtomicUsize,
    mailbox: Mutex<Option<Mailbox>>,
}

impl Gate {
    pub(crate) fn closed_after(records: usize) -> Self {
        let (left, swallowed) = (AtomicUsize::new(records), AtomicUsize::new(0));
        Self(Arc::new(GateState { left, swallowed, mailbox: Mutex::new(None) }))
    }

    /// Records in flight that have no report, and will have none.
    pub(crate) fn swallowed(&self) -> usize {
        self.0.swallowed.load(Ordering::Acquire)
    }

    /// The sink loses track of what it has, and lets everything through from now on.
    pub(crate) fn break_and_open(&self) {
        self.0.left.store(usize::MAX, Ordering::Release);
        let mailbox = self.0.mailbox.lock().unwrap().clone().unwrap();
        mailbox.post(Post::Broken { reason: "it has lost track".to_owned() });
    }
}

#[derive(Clone, Debug)]
struct GatedConfig {
    inner: FolderConfig,
    gate: Gate,
}

impl SinkConfig for GatedConfig {
    fn kind(&self) -> &'static str {
        self.inner.kind()
    }

    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    fn names(&self) -> NameRule {
        self.inner.names()
    }

    fn place(&self) -> String {
        self.inner.place()
    }

    fn values(&self) -> Vec<Shown> {
        self.inner.values()
    }

    fn check(&self, needs: &Needs) -> Vec<SinkError> {
        self.inner.check(needs)
    }

    fn open(&self, needs: &Needs, mailbox: Mailbox) -> Result<Box<dyn Sink>, SinkError> {
        *self.gate.0.mailbox.lock().unwrap() = Some(mailbox.clone());
        let inner = self.inner.open(needs, mailbox)?;
        Ok(Box::new(Gated { inner, gate: self.gate.clone() }))
    }
}

struct Gated {
    inner: Box<dyn Sink>,
    gate: Gate,
}

impl Sink for Gated {
    fn enqueue(&mut self, ticket: Ticket, record: &Record<'_>) -> Result<(), NotTaken> {
        let state = &self.gate.0;
        let left = state.left.load(Ordering::Acquire);
        if left == 0 {
            state.swallowed.fetch_add(1, Ordering::AcqRel);
            return Ok(());
        }
        self.inner.enqueue(ticket, record)?;
        // Another thread may only open the gate, which stays open then.
        let fewer =
            state.left.compare_exchange(left, left - 1, Ordering::AcqRel, Ordering::Acquire);
        fewer.unwrap_or_default();
        Ok(())
    }

    // Both are for a sink whose capabilities have `clusters`. This one would accept nothing any more.
    fn hold(&mut self) {
        unreachable!("a folder has no cluster");
    }

    fn admit(&mut self, _cluster: &str) {
        unreachable!("a folder has no cluster");
    }

    fn is_idle(&self) -> bool {
        self.gate.swallowed() == 0 && self.inner.is_idle()
    }

    fn reset(&mut self) {
        self.gate.0.swallowed.store(0, Ordering::Release);
        self.inner.reset();
    }

    fn close(&mut self, grace: Duration) {
        self.inner.close(grace);
    }
}
