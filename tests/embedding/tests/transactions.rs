//! A sink that publishes in transactions, in the product's pipeline: each event is visible exactly once, whatever ends.
#![expect(clippy::unwrap_used, reason = "a test helper that fails stops its test with the reason")]

use embedding::cursor_file::CursorFile;
use embedding::journal::{self, JournalConfig};
use embedding::spool::{Event, Spool};
use postrider_core::record::{Outcome, Record, Ticket};
use postrider_core::sink::{Mailbox, Needs, Post, Purpose, SinkCall, SinkConfig, SinkProgress};
use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// How long a state that is sure to come may take on a busy machine.
const SOON: Duration = Duration::from_mins(1);

/// Events of a transaction of the spool.
const EVENTS: u64 = 10;

/// A directory with a spool, a cursor and a journal.
struct Place(TempDir);

impl Place {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Commits a transaction of the spool: events of four aggregates from this number on.
    fn commit(&self, first: u64) {
        let event = |number: u64| Event {
            id: Some(number.to_string()),
            aggregate_type: Some("orders".to_owned()),
            aggregate_id: Some((number % 4).to_string()),
            event_type: Some("changed".to_owned()),
            payload: Some(format!("{{\"number\": {number}}}")),
            headers: None,
        };
        let events: Vec<_> = (first..first + EVENTS).map(event).collect();
        Spool::open(self.path("spool")).unwrap().commit(&events).unwrap();
    }

    /// Starts a process with a pipeline.
    fn start(&self) -> Running {
        let mut command = Command::new(env!("CARGO_BIN_EXE_spool_to_journal"));
        command.args([self.path("spool"), self.path("journal")]).stderr(Stdio::piped());
        Running(command.spawn().unwrap())
    }

    /// The ids of the visible records, in their order.
    fn visible(&self) -> Vec<u64> {
        let records = journal::read(&self.path("journal")).unwrap();
        records
            .iter()
            .map(|record| record["headers"]["id"].as_str().unwrap().parse().unwrap())
            .collect()
    }

    fn commits(&self) -> usize {
        journal::commits(&self.path("journal")).unwrap()
    }

    fn await_visible(&self, count: usize) {
        await_that("records to be visible", || self.visible().len() >= count);
    }

    /// Fails unless the events below `count` are visible once each, in the order of their aggregates.
    fn assert_exactly_once(&self, count: u64) {
        let visible = self.visible();
        let mut highest = BTreeMap::new();
        for id in &visible {
            let before = highest.insert(id % 4, *id);
            assert!(before.is_none_or(|before| before < *id), "{id} after {before:?}");
        }
        let mut sorted = visible.clone();
        sorted.sort_unstable();
        assert_eq!(sorted, (0..count).collect::<Vec<_>>(), "events that are visible");
    }
}

fn await_that(what: &str, is_there: impl Fn() -> bool) {
    let since = Instant::now();
    while !is_there() {
        assert!(since.elapsed() < SOON, "waited {SOON:?} for: {what}");
        std::thread::park_timeout(Duration::from_millis(1));
    }
}

/// A process. Dropping it kills it.
struct Running(Child);

impl Running {
    /// Kills the process (SIGKILL).
    fn kill(mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }

    /// Waits for the end of a process that halts. Returns what it has written.
    fn halted(mut self) -> String {
        let mut errors = String::new();
        let mut stderr = self.0.stderr.take().unwrap();
        std::io::Read::read_to_string(&mut stderr, &mut errors).unwrap();
        assert!(!self.0.wait().unwrap().success());
        errors
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended.
        self.0.kill().unwrap_or_default();
        drop(self.0.wait());
    }
}

/// Each process is killed a few commits after its start: between a commit and the cursor that follows it, in the middle
/// of an append, or anywhere else. The cursor is a second behind in all of them.
#[test]
fn every_event_is_visible_once_though_processes_are_killed() {
    const KILLS: u64 = 15;
    const TRANSACTIONS: u64 = 40;
    let place = Place::new();
    let mut count = 0;
    for kill in 0..KILLS {
        for _ in 0..TRANSACTIONS {
            place.commit(count);
            count += EVENTS;
        }
        let before = place.commits();
        let running = place.start();
        await_that("commits", || place.commits() > before + usize::from(kill % 2 == 1));
        running.kill();
    }
    let running = place.start();
    place.await_visible(usize::try_from(count).unwrap());
    running.kill();
    place.assert_exactly_once(count);
}

/// A process that takes over fences the one before it off, though that one still runs.
#[test]
fn every_event_is_visible_once_though_two_processes_run() {
    let place = Place::new();
    place.commit(0);
    let former = place.start();
    place.await_visible(10);
    let running = place.start();
    for number in 1..40 {
        place.commit(number * EVENTS);
        place.await_visible(usize::try_from((number + 1) * EVENTS).unwrap());
    }
    drop(former);
    running.kill();
    place.assert_exactly_once(400);
}

/// The stored cursor may be any that was ever stored: the journal says where to go on.
#[test]
fn an_older_cursor_repeats_nothing() {
    let place = Place::new();
    // The spool keeps what is confirmed, so that it could send all of it again.
    let kept = place.path("kept");
    fs::create_dir(&kept).unwrap();
    for number in 0..20 {
        place.commit(number * EVENTS);
    }
    let files =
        |directory: &PathBuf| fs::read_dir(directory).unwrap().map(|file| file.unwrap().path());
    for file in files(&place.path("spool")) {
        fs::copy(&file, kept.join(file.file_name().unwrap())).unwrap();
    }
    let running = place.start();
    place.await_visible(200);
    running.kill();
    fs::remove_file(place.path("spool/cursor")).unwrap();
    for file in files(&kept) {
        fs::copy(&file, place.path("spool").join(file.file_name().unwrap())).unwrap();
    }
    let running = place.start();
    place.commit(200);
    place.await_visible(210);
    running.kill();
    place.assert_exactly_once(210);
}

/// A journal that was restored from a backup does not have what the source may have removed since.
#[test]
fn a_sink_that_has_lost_its_progress_halts_the_pipeline() {
    let place = Place::new();
    place.commit(0);
    let running = place.start();
    place.await_visible(10);
    running.kill();
    let backup = fs::read(place.path("journal/journal")).unwrap();
    place.commit(10);
    let running = place.start();
    place.await_visible(20);
    let cursor = CursorFile::new(place.path("spool/cursor"));
    await_that("the cursor", || {
        cursor.read().unwrap().is_some_and(|cursor| cursor.watermark.offset().get() == 3)
    });
    running.kill();
    fs::write(place.path("journal/journal"), backup).unwrap();
    let why = place.start().halted();
    assert!(why.contains("PR025") && why.contains("behind the cursor row"), "{why}");
    assert_eq!(place.visible().len(), 10);
}

fn needs() -> Needs {
    Needs {
        pipeline: "orders".to_owned(),
        in_flight_events: 10,
        in_flight_bytes: 1 << 20,
        size_max: None,
        destinations: Vec::new(),
        purpose: Purpose::Live,
    }
}

/// The sink itself: the commit of a producer that was fenced off has no effect.
#[test]
fn former_producer_can_not_commit() {
    let place = Place::new();
    let config = JournalConfig(place.path("journal"));
    let open = || {
        let mailbox = Mailbox::default();
        (config.open(&needs(), mailbox.clone()).unwrap(), mailbox)
    };
    let posts = |mailbox: &Mailbox| {
        let mut posts = Vec::new();
        mailbox.take(&mut posts);
        posts
    };
    let record = Record {
        topic: "orders",
        partition: None,
        key: Some(b"1"),
        value: Some(b"{}"),
        timestamp_ms: None,
        headers: &[],
    };
    let (mut former, former_posts) = open();
    former.transactional().unwrap().recover(SinkCall(1));
    former.enqueue(Ticket(0), &record).unwrap();
    let (mut latter, latter_posts) = open();
    latter.transactional().unwrap().recover(SinkCall(1));
    former.transactional().unwrap().commit(SinkCall(2), &SinkProgress::default());
    let [recovered, report, broken] = posts(&former_posts).try_into().unwrap();
    assert_eq!(recovered, Post::Recovered { call: SinkCall(1), progress: None });
    assert_eq!(report, Post::Report { ticket: Ticket(0), outcome: Outcome::Acked });
    assert!(matches!(broken, Post::Broken { .. }), "{broken:?}");
    assert!(place.visible().is_empty());

    latter.enqueue(Ticket(0), &record).unwrap();
    latter.transactional().unwrap().commit(SinkCall(2), &SinkProgress::default());
    assert_eq!(posts(&latter_posts).last(), Some(&Post::Committed { call: SinkCall(2) }));
    assert_eq!(place.commits(), 1);
}
