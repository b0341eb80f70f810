//! The look-up of streams: whether a stream exists, before the first event goes to it.

use super::codec::{NO_STREAM, OK};
use super::link::StreamLink;
use super::problem::{StreamProblem, StreamStep};
use super::shared::PublisherShared;
use postrider_core::backoff::Backoff;
use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The connection is closed after this time without a question.
const IDLE_MAX: Duration = Duration::from_secs(20);

/// Streams that are remembered.
const KNOWN_MAX: usize = 10_000;

/// Looks streams up, one after another.
#[derive(Debug)]
pub(super) struct StreamLookUp {
    shared: Arc<PublisherShared>,
    /// Streams that have existed: one of these that does not is waited for.
    known: HashSet<String>,
    /// Streams that were reported as not accepting records.
    closed: HashSet<String>,
    /// The stream that is looked up, until there is an answer.
    wanted: Option<String>,
}

impl StreamLookUp {
    pub(super) fn new(shared: Arc<PublisherShared>) -> Self {
        Self { shared, known: HashSet::new(), closed: HashSet::new(), wanted: None }
    }

    /// Runs until the task is ended.
    pub(super) async fn run(mut self) {
        let mut pauses = Backoff::new(Duration::from_millis(100), Duration::from_secs(5));
        loop {
            while !self.has_question() {
                self.shared.wanted.notified().await;
            }
            let Err(problem) = self.answer(&mut pauses).await else { continue };
            self.shared.next_host();
            self.shared.failed("", false, problem);
            tokio::time::sleep(pauses.next(fastrand::f64())).await;
        }
    }

    /// Whether there is a stream to look up.
    fn has_question(&mut self) -> bool {
        if self.wanted.is_none() {
            self.wanted = self.shared.queue.next_wanted();
        }
        self.wanted.is_some()
    }

    /// Answers until there is no question for a while.
    async fn answer(&mut self, pauses: &mut Backoff) -> Result<(), StreamProblem> {
        let shared = Arc::clone(&self.shared);
        let mut link = StreamLink::open(&shared.spec, &shared.host()).await?;
        shared.limit.set(link.server.frame_max);
        let mut asked = Instant::now();
        while asked.elapsed() < IDLE_MAX {
            while self.has_question() {
                self.look_up(&mut link).await?;
                asked = Instant::now();
                pauses.reset();
            }
            let due = link.beats_at().min(asked + IDLE_MAX);
            tokio::select! {
                // A connection that ends without a question is no problem.
                turned = link.turn(None) => if turned.is_err() { return Ok(()) },
                () = shared.wanted.notified() => {}
                () = tokio::time::sleep_until(due.into()) => {}
            }
            if link.beat().is_err() {
                return Ok(());
            }
        }
        link.close().await;
        Ok(())
    }

    async fn look_up(&mut self, link: &mut StreamLink) -> Result<(), StreamProblem> {
        let Some(name) = self.wanted.clone() else { return Ok(()) };
        let (shared, queue) = (&self.shared, &self.shared.queue);
        // The publisher knows more: whether it may write, for one thing.
        if let Some((reason, hint)) = shared.trouble(&name) {
            queue.unavailable(&name, false, reason, hint);
        } else {
            let place = link.find(&name).await?;
            match place.code {
                OK => {
                    remember(&mut self.known, &name);
                    queue.opened(&name, (), self.closed.remove(&name));
                }
                code => {
                    let StreamProblem { reason, hint, .. } =
                        StreamProblem::refused(StreamStep::Find, code, &name, &shared.spec);
                    let missing = code == NO_STREAM && !self.known.contains(&name);
                    remember(&mut self.closed, &name);
                    queue.unavailable(&name, missing, reason, hint);
                }
            }
        }
        shared.reached("");
        self.wanted = None;
        Ok(())
    }
}

fn remember(names: &mut HashSet<String>, name: &str) {
    if names.len() >= KNOWN_MAX {
        names.clear();
    }
    names.insert(name.to_owned());
}
