//! Processes that the demo starts: asked to end, ended by their own id, waited for.

use rustix::process::{Pid, Signal, kill_process};
use std::io;
use std::process::{Child, ExitStatus};
use std::time::Duration;
use tokio::time::Instant;

/// Between two looks at a process that is to end.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// Sends a signal to a child that was not waited for yet, so the id is still its own.
pub(super) fn signal(child: &Child, signal: Signal) -> io::Result<()> {
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    Ok(kill_process(pid.ok_or(io::ErrorKind::InvalidInput)?, signal)?)
}

/// Waits for the end; `None` when the deadline comes first.
pub(super) async fn ended(child: &mut Child, within: Duration) -> io::Result<Option<ExitStatus>> {
    let deadline = Instant::now() + within;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        if Instant::now() >= deadline {
            return Ok(None);
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

/// The same where nothing can be awaited: when a value is dropped. Ends with SIGKILL whatever happens.
pub(super) fn end_now(child: &mut Child, politely: Signal, within: Duration) {
    if matches!(child.try_wait(), Ok(Some(_))) {
        return;
    }
    if signal(child, politely).is_ok() {
        let deadline = std::time::Instant::now() + within;
        while std::time::Instant::now() < deadline {
            if matches!(child.try_wait(), Ok(Some(_)) | Err(_)) {
                return;
            }
            std::thread::sleep(LOOK_EVERY);
        }
    }
    // It may have ended between the two; then there is nothing to kill.
    drop(child.kill());
    drop(child.wait());
}

/// Resident memory of a process: now, and the most it ever was. Unit: bytes. `None` where there is no `/proc`.
pub(super) fn memory(pid: u32) -> Option<(u64, u64)> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name))?;
        line.split_whitespace().next()?.parse::<u64>().ok().map(|kib| kib * 1024)
    };
    Some((field("VmRSS:")?, field("VmHWM:")?))
}
