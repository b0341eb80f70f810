//! The uploads of one sink: one at a time, on a thread of its own, and what is known to be stored.

use super::config::ClaimCheckConfig;
use super::digest::PayloadDigest;
use super::problem::StorageProblem;
use super::upload::Upload;
use bytes::Bytes;
use postrider_core::backoff::Backoff;
use postrider_core::record::Refusal;
use postrider_core::sink::{Mailbox, Post, SinkError};
use postrider_sinks::worker_thread;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::{mpsc, watch};

/// The name of the thread.
const THREAD: &str = "claim-check";

/// An object that was stored so long ago is looked up again before a record refers to it. It covers the time from the
/// end of an upload to the record that has waited for it.
const KNOWN_FOR: Duration = Duration::from_mins(1);

/// Answers that are kept. A record of the stream and a few retries take turns.
const ANSWERS_MAX: usize = 64;

/// The pauses between attempts. The problem is posted after each attempt.
const PAUSE_MIN: Duration = Duration::from_millis(200);
const PAUSE_MAX: Duration = Duration::from_secs(5);

/// The words of a refusal: the store's own limit.
const TOO_LARGE: &str = "the payload is larger than an object of the storage may be";

/// Where a payload is on its way to storage.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum UploadState {
    /// Stored under this digest.
    Stored(PayloadDigest),
    /// It is being stored, or waits for another one. A post follows.
    Waits,
    /// The store can't have it.
    Refused(Refusal),
}

/// The uploads of one sink.
#[derive(Debug)]
pub(super) struct Uploads {
    table: Arc<UploadTable>,
    /// The payload that is to be stored. Dropped with the sink, which ends the thread.
    jobs: mpsc::Sender<UploadJob>,
    /// Raised by each reset.
    generation: watch::Sender<u64>,
}

/// What the sink and its thread share.
#[derive(Debug, Default)]
struct UploadTable(Mutex<KnownUploads>);

#[derive(Debug, Default)]
struct KnownUploads {
    /// The payload that is being stored.
    current: Option<UploadJob>,
    /// The latest last.
    answers: VecDeque<UploadAnswer>,
}

#[derive(Clone)]
struct UploadJob {
    payload: Bytes,
    digest: PayloadDigest,
}

impl std::fmt::Debug for UploadJob {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("UploadJob").field("bytes", &self.payload.len()).finish_non_exhaustive()
    }
}

/// What the store has answered.
#[derive(Clone, Copy, Debug)]
struct UploadAnswer {
    digest: PayloadDigest,
    /// Of the payload. Unit: bytes.
    size: usize,
    /// When the request began that was answered.
    asked: Instant,
    /// When its answer came.
    answered: Instant,
    refused: Option<Refusal>,
}

impl UploadTable {
    fn known(&self) -> MutexGuard<'_, KnownUploads> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The job is done, or given up if there is no answer.
    fn done(&self, answer: Option<UploadAnswer>) {
        let mut known = self.known();
        known.current = None;
        if let Some(answer) = answer {
            known.answers.retain(|before| before.digest != answer.digest);
            known.answers.push_back(answer);
            if known.answers.len() > ANSWERS_MAX {
                known.answers.pop_front();
            }
        }
    }
}

impl Uploads {
    /// Starts the thread.
    ///
    /// # Errors
    /// A thread that can't be started.
    pub(super) fn start(config: &ClaimCheckConfig, mailbox: &Mailbox) -> Result<Self, SinkError> {
        let (jobs, received) = mpsc::channel(1);
        let generation = watch::Sender::new(0);
        let table = Arc::<UploadTable>::default();
        let worker = UploadWorker {
            table: Arc::clone(&table),
            generation: generation.subscribe(),
            mailbox: mailbox.clone(),
            place: format!("{} (bucket {})", config.bucket.endpoint, config.bucket.name),
            bucket: config.bucket.name.clone(),
        };
        let config = config.clone();
        worker_thread::start(THREAD, mailbox.clone(), move || async move {
            worker.run(Upload::new(&config), received).await;
        })?;
        Ok(Self { table, jobs, generation })
    }

    /// Where a payload is. One that is unknown is requested, unless another one is being stored. `since`: answers to
    /// requests from before that time do not count.
    pub(super) fn state(&self, payload: &[u8], since: Option<Instant>) -> UploadState {
        let mut known = self.table.known();
        // A payload that waits is offered again and again: comparing it is ten times faster than its digest.
        if known.current.as_ref().is_some_and(|job| *job.payload == *payload) {
            return UploadState::Waits;
        }
        let now = Instant::now();
        let may_count = |answer: &&UploadAnswer| {
            answer.size == payload.len()
                && since.is_none_or(|since| since <= answer.asked)
                && now.saturating_duration_since(answer.answered) <= KNOWN_FOR
        };
        // Without its digest, where that would not matter.
        if known.current.is_some() && !known.answers.iter().any(|answer| may_count(&answer)) {
            return UploadState::Waits;
        }
        let digest = PayloadDigest::of(payload);
        let counts = |answer: &&UploadAnswer| answer.digest == digest && may_count(answer);
        match known.answers.iter().find(counts) {
            Some(UploadAnswer { refused: Some(refusal), .. }) => {
                return UploadState::Refused(*refusal);
            }
            Some(UploadAnswer { refused: None, .. }) => return UploadState::Stored(digest),
            None => {}
        }
        if known.current.is_none() {
            let job = UploadJob { payload: Bytes::copy_from_slice(payload), digest };
            // There is room: the thread has taken the job before.
            if self.jobs.try_send(job.clone()).is_ok() {
                known.current = Some(job);
            }
        }
        UploadState::Waits
    }

    /// The records in flight are given up. A payload that the store does not take is given up with them.
    pub(super) fn reset(&self) {
        self.generation.send_modify(|generation| *generation += 1);
    }
}

/// What the thread has.
struct UploadWorker {
    table: Arc<UploadTable>,
    generation: watch::Receiver<u64>,
    mailbox: Mailbox,
    /// The store, for messages.
    place: String,
    bucket: String,
}

/// How the thread goes on after an attempt.
enum UploadNext {
    /// With the next payload.
    Done(UploadAnswer),
    /// With the next payload: this one was given up.
    GivenUp,
    /// The sink is closed.
    Closed,
}

impl UploadWorker {
    /// Stores payloads until the sink is dropped.
    async fn run(mut self, upload: Upload, mut jobs: mpsc::Receiver<UploadJob>) {
        while let Some(job) = jobs.recv().await {
            let mut is_down = false;
            let next = self.store(&upload, &job, &mut is_down).await;
            drop(job);
            let answer = match next {
                UploadNext::Done(answer) => Some(answer),
                UploadNext::GivenUp => None,
                UploadNext::Closed => return,
            };
            self.table.done(answer);
            if is_down {
                self.mailbox.post(Post::Up { topic: None });
            }
            self.mailbox.post(Post::Retry);
        }
    }

    /// Stores one payload, without a limit of attempts.
    async fn store(&mut self, upload: &Upload, job: &UploadJob, is_down: &mut bool) -> UploadNext {
        let mut backoff = Backoff::new(PAUSE_MIN, PAUSE_MAX);
        self.generation.mark_unchanged();
        loop {
            let asked = Instant::now();
            let stored = {
                let mut life = self.generation.clone();
                tokio::select! {
                    stored = upload.ensure(&job.payload, job.digest) => stored,
                    () = closed(&mut life) => return UploadNext::Closed,
                }
            };
            let refused = match stored {
                Ok(()) => None,
                Err(problem) if problem.is_too_large() => Some(Refusal::content(TOO_LARGE)),
                Err(problem) => {
                    *is_down = true;
                    self.down(&problem);
                    let pause = backoff.next(fastrand::f64());
                    match tokio::time::timeout(pause, self.generation.changed()).await {
                        // No reset meanwhile.
                        Err(_elapsed) => continue,
                        Ok(Ok(())) => return UploadNext::GivenUp,
                        Ok(Err(_closed)) => return UploadNext::Closed,
                    }
                }
            };
            return UploadNext::Done(UploadAnswer {
                digest: job.digest,
                size: job.payload.len(),
                asked,
                answered: Instant::now(),
                refused,
            });
        }
    }

    fn down(&self, problem: &StorageProblem) {
        self.mailbox.post(Post::Down {
            reason: format!("object storage {}: {problem}", self.place),
            hint: Some(problem.hint(&self.bucket)),
            topic: None,
            missing: false,
        });
    }
}

/// Waits until the sink is dropped. Resets do not end an attempt.
async fn closed(life: &mut watch::Receiver<u64>) {
    while life.changed().await.is_ok() {}
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The uploads of a sink without a thread, and what it would get.
    fn uploads() -> (Uploads, mpsc::Receiver<UploadJob>) {
        let (jobs, received) = mpsc::channel(1);
        let uploads = Uploads { table: Arc::default(), jobs, generation: watch::Sender::new(0) };
        (uploads, received)
    }

    fn answer(payload: &[u8], refused: Option<Refusal>) -> UploadAnswer {
        let (digest, size, now) = (PayloadDigest::of(payload), payload.len(), Instant::now());
        UploadAnswer { digest, size, asked: now, answered: now, refused }
    }

    #[test]
    fn one_payload_is_stored_at_a_time_and_others_wait_for_it() {
        let (uploads, mut jobs) = uploads();
        assert_eq!(uploads.state(b"first", None), UploadState::Waits);
        assert_eq!(uploads.state(b"second", None), UploadState::Waits);
        assert_eq!(uploads.state(b"first", None), UploadState::Waits);
        assert_eq!(*jobs.try_recv().unwrap().payload, *b"first");
        assert!(jobs.try_recv().is_err(), "the payload of another record was requested");
        uploads.table.done(Some(answer(b"first", None)));
        let digest = PayloadDigest::of(b"first");
        assert_eq!(uploads.state(b"first", None), UploadState::Stored(digest));
        assert_eq!(uploads.state(b"second", None), UploadState::Waits);
        assert_eq!(*jobs.try_recv().unwrap().payload, *b"second");
        // The first one is not forgotten by that.
        assert_eq!(uploads.state(b"first", None), UploadState::Stored(digest));
    }

    #[test]
    fn an_answer_from_before_a_retry_does_not_count() {
        let (uploads, mut jobs) = uploads();
        let refusal = Refusal::content(TOO_LARGE);
        uploads.table.done(Some(answer(b"first", Some(refusal))));
        assert_eq!(uploads.state(b"first", None), UploadState::Refused(refusal));
        let since = Instant::now();
        assert_eq!(uploads.state(b"first", Some(since)), UploadState::Waits);
        assert_eq!(*jobs.try_recv().unwrap().payload, *b"first");
        uploads.table.done(Some(answer(b"first", None)));
        let stored = UploadState::Stored(PayloadDigest::of(b"first"));
        assert_eq!(uploads.state(b"first", Some(since)), stored);
    }

    #[test]
    fn an_answer_counts_for_some_time_from_its_end_not_from_its_beginning() {
        let (uploads, _jobs) = uploads();
        let Some(earlier) = Instant::now().checked_sub(2 * KNOWN_FOR) else { return };
        let slow = UploadAnswer { asked: earlier, ..answer(b"slow", None) };
        uploads.table.done(Some(slow));
        let stored = UploadState::Stored(PayloadDigest::of(b"slow"));
        assert_eq!(uploads.state(b"slow", None), stored);
        uploads.table.done(Some(UploadAnswer { answered: earlier, ..slow }));
        assert_eq!(uploads.state(b"slow", None), UploadState::Waits);
    }

    #[test]
    fn the_number_of_answers_is_bounded() {
        let (uploads, _jobs) = uploads();
        for number in 0..2 * ANSWERS_MAX {
            uploads.table.done(Some(answer(number.to_string().as_bytes(), None)));
        }
        assert_eq!(uploads.table.known().answers.len(), ANSWERS_MAX);
        // The same payload has one answer.
        uploads.table.done(Some(answer(b"127", None)));
        assert_eq!(uploads.table.known().answers.len(), ANSWERS_MAX);
    }
}
