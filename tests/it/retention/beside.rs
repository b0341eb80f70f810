//! What readers and writers of the outbox wait for while retention works.

use crate::server::{Client, describe};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How often a statement was run, and the longest time that one took.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Waits {
    pub(super) count: usize,
    pub(super) longest: Duration,
}

/// A session that repeats a statement until it is stopped, on a thread of its own: a test that waits for a command
/// holds up its own runtime.
pub(super) struct Beside {
    stop: Arc<AtomicBool>,
    since: Arc<Mutex<Waits>>,
    thread: JoinHandle<Result<Waits, String>>,
}

impl Beside {
    pub(super) fn start(url: &str, sql: &str) -> Self {
        let (stop, since) = (Arc::new(AtomicBool::new(false)), Arc::new(Mutex::default()));
        let (stopped, waits) = (Arc::clone(&stop), Arc::clone(&since));
        let (url, sql) = (url.to_owned(), sql.to_owned());
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.expect("a runtime").block_on(repeat(&url, &sql, &stopped, &waits))
        });
        Self { stop, since, thread }
    }

    /// How often it was run since the last call of [`Self::take`].
    pub(super) fn count(&self) -> usize {
        self.since.lock().unwrap_or_else(PoisonError::into_inner).count
    }

    /// What was run since the last call.
    pub(super) fn take(&self) -> Waits {
        std::mem::take(&mut self.since.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Ends the session. Fails if a statement has failed.
    pub(super) fn stop(self) -> Waits {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().expect("no panic").unwrap_or_else(|error| panic!("{error}"))
    }
}

async fn repeat(
    url: &str,
    sql: &str,
    stop: &AtomicBool,
    since: &Mutex<Waits>,
) -> Result<Waits, String> {
    let session = Client::connect(url).await.map_err(|error| describe(&error))?;
    session.batch("set statement_timeout = '10s'").await;
    let mut all = Waits::default();
    while !stop.load(Ordering::Relaxed) {
        let started = Instant::now();
        session.simple_query(sql).await.map_err(|error| format!("{sql}: {}", describe(&error)))?;
        let took = started.elapsed();
        let mut since = since.lock().unwrap_or_else(PoisonError::into_inner);
        for waits in [&mut all, &mut *since] {
            waits.count += 1;
            waits.longest = waits.longest.max(took);
        }
    }
    Ok(all)
}
