//! The processes, the directory and the signals of a demo.

use super::error::DemoError;
use rustix::process::{Pid, Signal, kill_process};
use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, chown};
use std::path::{Path, PathBuf};
use std::process::{Child, ExitStatus};
use std::time::Duration;
use tokio::signal::unix::{self, SignalKind};
use tokio::time::Instant;

/// Pause between two checks whether a process has ended.
const CHECK_EVERY: Duration = Duration::from_millis(10);

/// Sends a signal to a child that was not waited for yet, so that its process id cannot have been reused.
pub(super) fn signal(child: &Child, signal: Signal) -> io::Result<()> {
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    Ok(kill_process(pid.ok_or(io::ErrorKind::InvalidInput)?, signal)?)
}

/// Waits for the end of a child; `None` if the deadline is reached first.
pub(super) async fn ended(child: &mut Child, within: Duration) -> io::Result<Option<ExitStatus>> {
    let deadline = Instant::now() + within;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        if Instant::now() >= deadline {
            return Ok(None);
        }
        tokio::time::sleep(CHECK_EVERY).await;
    }
}

/// Ends a child without `await`, for `Drop`: sends the signal `politely`, waits, then sends SIGKILL.
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
            std::thread::sleep(CHECK_EVERY);
        }
    }
    // If the child has ended meanwhile, `kill` fails, which does not matter.
    drop(child.kill());
    drop(child.wait());
}

/// Resident memory of a process, present and peak. Unit: bytes. `None` without `/proc`.
pub(super) fn memory(pid: u32) -> Option<(u64, u64)> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name))?;
        line.split_whitespace().next()?.parse::<u64>().ok().map(|kib| kib * 1024)
    };
    Some((field("VmRSS:")?, field("VmHWM:")?))
}

/// Longest path of the directory: the path of a unix socket may have 107 bytes on Linux, 103 elsewhere. Unit: bytes.
const PATH_BYTES_MAX: usize = 80;

/// The directory of a demo, for data, socket, configuration and logs. Only this user can read it. It is removed when
/// the value is dropped.
#[derive(Debug)]
pub(super) struct Dir(PathBuf);

impl Dir {
    /// Creates the directory in the system's directory for temporary files, or in `/tmp` if that path is too long for a
    /// socket.
    pub(super) fn create() -> Result<Self, DemoError> {
        let name = format!("postrider-demo-{:08x}", fastrand::u32(..));
        let mut path = std::env::temp_dir().join(&name);
        if path.as_os_str().len() > PATH_BYTES_MAX {
            path = Path::new("/tmp").join(&name);
        }
        let created = DirBuilder::new().mode(0o700).create(&path);
        created.map_err(|source| DemoError::Directory { path: path.clone(), source })?;
        Ok(Self(path))
    }

    /// A path in it.
    pub(super) fn join(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// The directory.
    pub(super) fn path(&self) -> &Path {
        &self.0
    }

    /// Writes a file into it.
    pub(super) fn write(&self, name: &str, text: &str) -> Result<PathBuf, DemoError> {
        let path = self.join(name);
        match fs::write(&path, text) {
            Ok(()) => Ok(path),
            Err(source) => Err(DemoError::Directory { path, source }),
        }
    }

    /// Writes a file that only this user can read.
    pub(super) fn write_secret(&self, name: &str, text: &str) -> Result<PathBuf, DemoError> {
        let path = self.join(name);
        let opened = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path);
        match opened.and_then(|mut file| file.write_all(text.as_bytes())) {
            Ok(()) => Ok(path),
            Err(source) => Err(DemoError::Directory { path, source }),
        }
    }

    /// Makes the server's user the owner of the directory.
    pub(super) fn give(&self, uid: u32, gid: u32) -> Result<(), DemoError> {
        let given = chown(&self.0, Some(uid), Some(gid));
        given.map_err(|source| DemoError::Directory { path: self.0.clone(), source })
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        // A failure cannot be reported here. The name of the directory shows that it belongs to a demo.
        drop(fs::remove_dir_all(&self.0));
    }
}

/// The last lines of a log, indented, for an error.
pub(super) fn tail(path: &Path, lines: usize) -> String {
    let text = fs::read(path).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let all: Vec<&str> = text.lines().collect();
    let last = all.get(all.len().saturating_sub(lines)..).unwrap_or_default();
    last.iter().flat_map(|line| ["\n    ", line]).collect()
}

/// The signals that end a demo: SIGINT, SIGTERM and SIGHUP.
#[derive(Debug)]
pub(super) struct Interrupts([unix::Signal; 3]);

impl Interrupts {
    /// Listens from now on.
    pub(super) fn new() -> Result<Self, DemoError> {
        let on = |kind| unix::signal(kind).map_err(DemoError::Signals);
        Ok(Self([
            on(SignalKind::interrupt())?,
            on(SignalKind::terminate())?,
            on(SignalKind::hangup())?,
        ]))
    }

    /// Waits for the next signal. Cancel safe.
    pub(super) async fn next(&mut self) {
        let [interrupt, terminate, hangup] = &mut self.0;
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
            _ = hangup.recv() => {}
        }
    }
}
