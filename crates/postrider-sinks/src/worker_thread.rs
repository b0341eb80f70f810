//! Threads with a tokio runtime of their own: a sink's worker, and the questions of `postrider check`.

use postrider_core::sink::{Mailbox, Post, SinkError};
use std::fmt;
use std::io;
use std::time::Duration;

/// The longest time for all questions of a check.
const ANSWER_MAX: Duration = Duration::from_secs(30);

/// Posts that the sink can't go on, if its thread panics: without a worker nothing would ever be reported.
struct PanicGuard(Mailbox);

impl Drop for PanicGuard {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.post(Post::Unfit {
                reason: "the sink's thread has panicked: a bug of Postrider".to_owned(),
                hint: "start again, and report the lines of standard error with the panic"
                    .to_owned(),
            });
        }
    }
}

/// Runs a sink's worker on a thread of its own. The thread is not joined: it may wait for a server that does not
/// answer, and holds nothing that must be kept.
///
/// # Errors
/// A thread or a runtime that can't be started.
pub fn start<W: Future<Output = ()>>(
    thread: &str,
    mailbox: Mailbox,
    worker: impl FnOnce() -> W + Send + 'static,
) -> Result<(), SinkError> {
    let failed = |error| {
        let hint = "raise the limits of threads and of open files (ulimit -u, ulimit -n, pids.max)";
        SinkError::new("could not start the sink's thread", hint).caused_by(error)
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(failed)?;
    let guard = PanicGuard(mailbox);
    let worker = move || {
        let _guard = guard;
        runtime.block_on(worker());
    };
    std::thread::Builder::new().name(thread.to_owned()).spawn(worker).map_err(failed)?;
    Ok(())
}

/// Why there is no answer.
#[derive(Debug)]
pub enum Unanswered {
    /// Not within [`ANSWER_MAX`].
    Late,
    /// No runtime could be made.
    Runtime(io::Error),
    /// The thread has panicked.
    Panicked,
}

impl fmt::Display for Unanswered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Late => write!(f, "no answer within {ANSWER_MAX:?}"),
            Self::Runtime(error) => write!(f, "could not start a runtime: {error}"),
            Self::Panicked => f.write_str("the check has failed"),
        }
    }
}

/// Asks on a thread of its own: the caller may be in a runtime, in which it must not wait.
///
/// # Errors
/// There is no answer.
pub fn ask<T: Send, A: Future<Output = T>>(
    question: impl FnOnce() -> A + Send,
) -> Result<T, Unanswered> {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            let runtime = runtime.map_err(Unanswered::Runtime)?;
            let answered =
                runtime.block_on(async { tokio::time::timeout(ANSWER_MAX, question()).await });
            answered.map_err(|_elapsed| Unanswered::Late)
        });
        thread.join().unwrap_or(Err(Unanswered::Panicked))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn worker_that_panics_ends_the_pipeline() {
        let mailbox = Mailbox::default();
        start("panics", mailbox.clone(), || async { panic!("a bug") }).unwrap();
        mailbox.arrived().await;
        let mut posts = Vec::new();
        mailbox.take(&mut posts);
        assert!(matches!(posts[..], [Post::Unfit { .. }]), "{posts:?}");
    }
}
