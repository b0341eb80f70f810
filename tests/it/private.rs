//! Servers of a test's own: to kill with -9, freeze, stop and start again on the same data and the same port.
//!
//! Ended by process id when the value is dropped. `scripts/servers down` ends what a killed test run left behind.

mod copies;
pub(crate) mod kafka;
mod nats;
mod pooler;
mod postgres;
mod program;
mod rabbitmq;
mod redis;
mod registry;
mod seaweed;
mod tls;

pub(crate) use copies::topic_that_lacks_a_copy;
pub(crate) use kafka::{Operation, PrivateKafka, Resource};
pub(crate) use nats::PrivateNats;
pub(crate) use pooler::PrivatePooler;
pub(crate) use postgres::PrivatePostgres;
pub(crate) use program::executable;
pub(crate) use rabbitmq::PrivateRabbitMq;
pub(crate) use redis::{Flavor, PrivateRedis, PrivateSentinel};
pub(crate) use registry::{PrivateRegistry, schema_python};
pub(crate) use seaweed::{PrivateSeaweed, sha256};
pub(crate) use tls::tls;

use crate::await_that::await_that;
use crate::server::{servers, unique};
use std::fs::{self, File};
use std::net::TcpListener;
use std::ops::Range;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How long a server may take to start, on a machine that is busy with other tests.
const START_DEADLINE: Duration = Duration::from_mins(2);
/// How long a killed or stopped one may take to be gone.
const END_DEADLINE: Duration = Duration::from_secs(30);
/// How long a process may take to stop at SIGSTOP: a thread that waits for a disk stops afterwards.
const STOPPED_MAX: Duration = Duration::from_secs(2);

/// What a test does to a process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Signal {
    /// kill -9
    Kill,
    /// A polite request to end.
    Term,
    /// Ctrl-C; PostgreSQL's fast shutdown.
    Int,
    /// Freeze: no FIN, no RST, no answer.
    Stop,
    /// Thaw.
    Cont,
    /// Read the configuration again.
    Hup,
    /// PostgreSQL's immediate shutdown: no checkpoint, and recovery at the next start.
    Quit,
}

/// Sends a signal; false when there is no such process any more.
pub(crate) fn signal(pid: u32, signal: Signal) -> bool {
    let name = match signal {
        Signal::Kill => "KILL",
        Signal::Term => "TERM",
        Signal::Int => "INT",
        Signal::Stop => "STOP",
        Signal::Cont => "CONT",
        Signal::Hup => "HUP",
        Signal::Quit => "QUIT",
    };
    // The shell's own `kill`: a minimal system has no other.
    let sent = Command::new("sh")
        .args(["-c", "kill -s \"$1\" \"$2\" 2>/dev/null", "sh", name, &pid.to_string()])
        .status()
        .is_ok_and(|status| status.success());
    if sent && name == "STOP" {
        await_stopped(pid);
    }
    sent
}

/// Waits until every thread of a process is stopped: one that is running on another core goes on for a moment.
fn await_stopped(pid: u32) {
    let deadline = Instant::now() + STOPPED_MAX;
    let runs = || {
        let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
        let state = |thread: fs::DirEntry| {
            let stat = fs::read_to_string(thread.path().join("stat")).unwrap_or_default();
            // The name, in parentheses, may hold anything.
            stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next())
        };
        threads.filter_map(state).any(|state| !matches!(state, 'T' | 't' | 'Z' | 'X'))
    };
    while runs() && Instant::now() < deadline {
        std::thread::yield_now();
    }
}

/// Below the range that outgoing connections take: a port stays free while its server restarts.
const PORTS: Range<u16> = 20_000..32_000;

/// A port that nobody listens on, and that this process gave to nobody before: between two tests that are about to
/// listen, the second one would not start.
pub(crate) fn free_port() -> u16 {
    static NEXT: Mutex<Option<u16>> = Mutex::new(None);
    let mut next = NEXT.lock().unwrap_or_else(PoisonError::into_inner);
    // From anywhere: servers of another run may be there.
    let from = next.unwrap_or_else(|| fastrand::u16(PORTS));
    let port = (from..PORTS.end)
        .chain(PORTS.start..from)
        .find(|port| TcpListener::bind(("127.0.0.1", *port)).is_ok())
        .expect("a free port");
    *next = Some(if port + 1 == PORTS.end { PORTS.start } else { port + 1 });
    port
}

/// A directory of one server, readable by the user it runs as; removed at the end.
struct Dir(PathBuf);

impl Dir {
    fn create(name: &str) -> Self {
        let path = servers().private_dir().join(unique(name));
        fs::create_dir_all(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        Self(path)
    }

    fn log(&self) -> String {
        let text = fs::read(self.0.join("log")).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let last = text.lines().count().saturating_sub(30);
        text.lines().skip(last).collect::<Vec<_>>().join("\n")
    }

    /// The program's output goes to `log`; its pid to `pid`, for `scripts/servers down`.
    fn spawn(&self, command: &mut Command) -> Child {
        let log =
            File::options().create(true).append(true).open(self.0.join("log")).expect("a log");
        let errors = log.try_clone().expect("a log");
        let child = command.stdin(Stdio::null()).stdout(log).stderr(errors).spawn();
        let child = child.unwrap_or_else(|error| panic!("{command:?}: {error}"));
        fs::write(self.0.join("pid"), child.id().to_string()).expect("a pid file");
        child
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        drop(fs::remove_dir_all(&self.0));
    }
}

/// Waits for the end of a child without holding up the test's runtime.
pub(crate) async fn exit_of(child: &mut Child, deadline: Duration) -> ExitStatus {
    let what = format!("end of process {}", child.id());
    let cell = std::cell::RefCell::new(child);
    await_that(&what, deadline, || async {
        match cell.borrow_mut().try_wait() {
            Ok(Some(status)) => Ok(status),
            Ok(None) => Err("it runs".to_owned()),
            Err(error) => Err(error.to_string()),
        }
    })
    .await
}
