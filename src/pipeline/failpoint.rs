//! Points at which a process can be killed, for tests that kill it between two steps.
//!
//! Each failpoint of `tests/it/parking.rs` has a name here. A build with debug assertions kills itself with SIGKILL at
//! the failpoint that `POSTRIDER_FAILPOINT` names (`NAME` the first time, `NAME:3` the third time). A release build
//! contains no failpoints.

/// Kills the process here, if a test asked for it.
#[inline]
pub(super) fn failpoint(name: &str) {
    #[cfg(debug_assertions)]
    armed::failpoint(name);
    #[cfg(not(debug_assertions))]
    let _: &str = name;
}

#[cfg(debug_assertions)]
mod armed {
    use std::sync::LazyLock;
    use std::sync::atomic::{AtomicU32, Ordering};

    /// The name, and the number of the call that kills the process.
    #[expect(clippy::disallowed_methods, reason = "a test's own switch, in no release build")]
    static ASKED: LazyLock<Option<(String, u32)>> = LazyLock::new(|| {
        let asked = std::env::var("POSTRIDER_FAILPOINT").ok()?;
        let (name, times) = asked.split_once(':').unwrap_or((&asked, "1"));
        Some((name.to_owned(), times.parse().unwrap_or(1)))
    });

    static TIMES: AtomicU32 = AtomicU32::new(0);

    pub(super) fn failpoint(name: &str) {
        let Some((asked, times)) = &*ASKED else { return };
        if asked == name && TIMES.fetch_add(1, Ordering::Relaxed) + 1 == *times {
            tracing::warn!(name, "killing this process, as POSTRIDER_FAILPOINT asks");
            let killed = rustix::process::kill_process(
                rustix::process::getpid(),
                rustix::process::Signal::KILL,
            );
            tracing::error!(?killed, "still alive");
        }
    }
}
