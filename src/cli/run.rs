//! `postrider run`: all pipelines, the admin endpoint and the signals, until told to stop.

use super::args::RunArgs;
use super::descriptors;
use super::error::CliError;
use super::exit::Exit;
use super::status::ask::glance;
use crate::admin::{Admin, View};
use crate::config::Config;
use crate::driver::{self, PipelineSpec, Service, Stop, StopHandle};
use crate::metrics::Metrics;
use crate::status::Board;
use std::net::SocketAddr;
use std::pin::pin;

pub(super) async fn run(config: Config, args: &RunArgs) -> Result<Exit, CliError> {
    let signals = Signals::listen().map_err(CliError::Runtime)?;
    let hangup = Hangup::listen().map_err(CliError::Runtime)?;
    let boards: Vec<_> = config.specs.iter().map(|spec| Board::new(spec.name())).collect();
    let total = boards.len();
    let metrics = Metrics::default();
    let counts: Vec<_> = boards.iter().map(|board| metrics.pipeline(board)).collect();
    let connections = descriptors::prepare(total);
    let admin = match config.admin.listen {
        Some(address) => Some(bind(address).await?.with_connections_max(connections)),
        None => None,
    };
    announce(&config, admin.as_ref());
    let view = View { boards: boards.clone(), metrics, ready_lag_max: config.admin.ready_lag_max };
    let (handle, stop) = Stop::new();
    let pipelines = config.specs.into_iter().zip(boards).zip(counts);
    let pipelines = pipelines.map(|((spec, board), counts)| (spec, board, counts)).collect();
    let service = Service::start(pipelines, &stop).map_err(CliError::Thread)?;

    let mut exit = pin!(pipelines_end(service, total, args.fail_fast, (&handle, &stop)));
    let mut aside = pin!(aside(admin, view, (signals, hangup), &handle));
    tokio::select! {
        exit = &mut exit => Ok(exit),
        never = &mut aside => match never {},
    }
}

/// Takes the address. Where a Postrider has it, says which: it may be one that halted, and was left running.
async fn bind(address: SocketAddr) -> Result<Admin, CliError> {
    let error = match Admin::bind(address).await {
        Ok(admin) => return Ok(admin),
        Err(error) => error,
    };
    let seen = glance(address).await;
    if seen.is_empty() || !error.is_in_use() {
        return Err(error.into());
    }
    let pipelines = seen.into_iter().map(|seen| match seen.halted {
        Some(code) => format!("pipeline \"{}\", halted with {code}", seen.pipeline),
        None => format!("pipeline \"{}\"", seen.pipeline),
    });
    Err(CliError::Occupied { address, pipelines: pipelines.collect() })
}

/// What never ends by itself and never ends the process.
enum Never {}

/// The endpoint and the signals.
async fn aside(
    admin: Option<Admin>,
    view: View,
    (mut signals, mut hangup): (Signals, Hangup),
    handle: &StopHandle,
) -> Never {
    let serve = async {
        if let Some(admin) = admin {
            admin.serve(view, std::future::pending()).await;
        }
        std::future::pending::<Never>().await
    };
    let ignore = async {
        loop {
            hangup.next().await;
            tracing::warn!(
                event = "hangup_ignored",
                signal = "SIGHUP",
                hint = "restart the process to have it read its configuration again",
                "received SIGHUP: reloading the configuration is not supported yet, nothing changes"
            );
        }
    };
    let obey = async {
        loop {
            let name = signals.next().await;
            tracing::info!(
                event = "told_to_stop",
                signal = name,
                "received {name}, shutting down; send it again to exit immediately"
            );
            handle.stop();
        }
    };
    tokio::select! {
        never = serve => never,
        never = ignore => never,
        never = obey => never,
    }
}

/// Waits until every one of `left` pipelines has ended.
async fn pipelines_end(
    mut service: Service,
    mut left: usize,
    fail_fast: bool,
    (handle, stop): (&StopHandle, &Stop),
) -> Exit {
    let mut ends = Ends::default();
    while let Some((pipeline, exit)) = service.next_exit().await {
        let stop = ends.count(&exit, fail_fast);
        left = left.saturating_sub(1);
        // The pipeline has told its own end, unless it was a panic.
        if let driver::Exit::Bug = exit {
            tracing::error!(event = "bug", pipeline, "ended by a bug in Postrider");
        }
        if stop && left > 0 {
            tracing::warn!(event = "stopping_all", pipeline, "stopping the other pipelines");
            handle.stop();
        }
    }
    if ends.stays_up() && !stop.is_asked_for() {
        tracing::warn!(
            event = "all_halted",
            hint = "postrider status shows why; fix it, then restart the process",
            "every pipeline has halted: the process keeps answering until it is stopped (--fail-fast exits instead)"
        );
        stop.drain().await;
    }
    ends.exit()
}

/// How the pipelines ended so far.
#[derive(Default)]
struct Ends {
    stopped: usize,
    halted: usize,
    bugs: usize,
    failed_fast: bool,
}

impl Ends {
    /// Counts one; whether the others are to stop because of it. A halt is the pipeline's own affair, unless asked
    /// otherwise; after a bug the process is started anew, since nothing else brings that pipeline back.
    fn count(&mut self, exit: &driver::Exit, fail_fast: bool) -> bool {
        let first = self.bugs == 0 && !self.failed_fast;
        match exit {
            driver::Exit::Stopped => {
                self.stopped += 1;
                false
            }
            driver::Exit::Halted(_) => {
                self.halted += 1;
                self.failed_fast |= fail_fast;
                first && fail_fast
            }
            driver::Exit::Bug => {
                self.bugs += 1;
                first
            }
        }
    }

    /// Whether the process goes on answering after the last pipeline: nobody asked for its end, and its answers have
    /// the reasons.
    fn stays_up(&self) -> bool {
        self.halted > 0 && self.bugs == 0 && !self.failed_fast
    }

    fn exit(&self) -> Exit {
        if self.bugs > 0 {
            Exit::Bug
        } else if self.failed_fast || (self.halted > 0 && self.stopped == 0) {
            Exit::Halted
        } else {
            Exit::Done
        }
    }
}

fn announce(config: &Config, admin: Option<&Admin>) {
    let names: Vec<_> = config.specs.iter().map(PipelineSpec::name).collect();
    let address = admin.and_then(|admin| admin.address().ok());
    let address = address.map_or_else(|| "off".to_owned(), |address| address.to_string());
    tracing::info!(
        event = "starting",
        version = env!("CARGO_PKG_VERSION"),
        config = config.file,
        pipelines = names.join(","),
        admin = address,
        "starting"
    );
}

/// SIGTERM and SIGINT.
pub(super) struct Signals {
    #[cfg(unix)]
    terminate: tokio::signal::unix::Signal,
    #[cfg(unix)]
    interrupt: tokio::signal::unix::Signal,
}

impl Signals {
    #[cfg(unix)]
    pub(super) fn listen() -> std::io::Result<Self> {
        use tokio::signal::unix::{SignalKind, signal};
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
        })
    }

    /// Waits for the next one, and gives its name.
    #[cfg(unix)]
    pub(super) async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
        }
    }

    #[cfg(not(unix))]
    pub(super) fn listen() -> std::io::Result<Self> {
        Ok(Self {})
    }

    #[cfg(not(unix))]
    pub(super) async fn next(&mut self) -> &'static str {
        match tokio::signal::ctrl_c().await {
            Ok(()) => "Ctrl-C",
            Err(_) => std::future::pending().await,
        }
    }
}

/// SIGHUP, which a terminal sends that closes, and service managers for a reload. By default it ends a process, and
/// nothing that is in flight would be waited for.
struct Hangup {
    #[cfg(unix)]
    signal: tokio::signal::unix::Signal,
}

impl Hangup {
    #[cfg(unix)]
    fn listen() -> std::io::Result<Self> {
        use tokio::signal::unix::{SignalKind, signal};
        Ok(Self { signal: signal(SignalKind::hangup())? })
    }

    #[cfg(unix)]
    async fn next(&mut self) {
        if self.signal.recv().await.is_none() {
            std::future::pending::<()>().await;
        }
    }

    #[cfg(not(unix))]
    #[expect(clippy::unnecessary_wraps, reason = "as on Unix")]
    fn listen() -> std::io::Result<Self> {
        Ok(Self {})
    }

    #[cfg(not(unix))]
    async fn next(&mut self) {
        std::future::pending().await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::{Halt, HaltReason};

    fn halted() -> driver::Exit {
        driver::Exit::Halted(Box::new(Halt {
            reason: HaltReason::SlotLost,
            message: String::new(),
            meaning: String::new(),
            hint: String::new(),
        }))
    }

    fn exit(ends: &[driver::Exit], fail_fast: bool) -> Exit {
        let mut counted = Ends::default();
        for end in ends {
            counted.count(end, fail_fast);
        }
        counted.exit()
    }

    #[test]
    fn the_exit_is_3_only_when_every_pipeline_has_halted() {
        use driver::Exit::{Bug, Stopped};
        assert_eq!(exit(&[Stopped, Stopped], false), Exit::Done);
        assert_eq!(exit(&[halted(), Stopped], false), Exit::Done);
        assert_eq!(exit(&[halted(), halted()], false), Exit::Halted);
        assert_eq!(exit(&[halted(), Stopped], true), Exit::Halted);
        assert_eq!(exit(&[Bug, Stopped, halted()], false), Exit::Bug);
    }

    #[test]
    fn the_process_stays_up_when_all_have_halted_unless_told_otherwise() {
        use driver::Exit::{Bug, Stopped};
        let stays_up = |ends: &[driver::Exit], fail_fast| {
            let mut counted = Ends::default();
            for end in ends {
                counted.count(end, fail_fast);
            }
            counted.stays_up()
        };
        assert!(stays_up(&[halted(), halted()], false));
        assert!(!stays_up(&[halted()], true));
        assert!(!stays_up(&[halted(), Bug], false));
        assert!(!stays_up(&[Stopped], false));
    }

    #[test]
    fn others_are_stopped_once_by_a_bug_or_when_asked_to_fail_fast() {
        let mut ends = Ends::default();
        assert!(!ends.count(&halted(), false));
        assert!(ends.count(&driver::Exit::Bug, false));
        assert!(!ends.count(&driver::Exit::Bug, false));
        let mut ends = Ends::default();
        assert!(ends.count(&halted(), true));
        assert!(!ends.count(&halted(), true));
    }
}
