//! `postrider run`: all pipelines, the admin endpoint and the signals, until told to stop.

use super::args::RunArgs;
use super::error::{CliError, Exit};
use super::status::glance;
use crate::admin::{Admin, AdminView, CONNECTIONS_MAX};
use crate::config::Config;
use crate::metrics::Metrics;
use crate::pipeline::{self, PipelineSpec, Service, Stop, StopHandle};
use crate::status::StatusHandle;
use std::net::SocketAddr;
use std::pin::pin;

pub(super) async fn run(config: Config, args: &RunArgs) -> Result<Exit, CliError> {
    let signals = Signals::listen().map_err(CliError::Runtime)?;
    let hangup = Hangup::listen().map_err(CliError::Runtime)?;
    let status_handles: Vec<_> =
        config.specs.iter().map(|spec| StatusHandle::new(spec.name())).collect();
    let total = status_handles.len();
    let metrics = Metrics::default();
    let counts: Vec<_> =
        status_handles.iter().map(|status_handle| metrics.pipeline(status_handle)).collect();
    let connections = prepare(total);
    let admin = match config.admin.listen {
        Some(address) => Some(bind(address).await?.with_connections_max(connections)),
        None => None,
    };
    announce(&config, admin.as_ref());
    let view = AdminView {
        status_handles: status_handles.clone(),
        metrics,
        ready_lag_max: config.admin.ready_lag_max,
    };
    let (handle, stop) = Stop::new();
    let pipelines = config.specs.into_iter().zip(status_handles).zip(counts);
    let pipelines =
        pipelines.map(|((spec, status_handle), counts)| (spec, status_handle, counts)).collect();
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
    view: AdminView,
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
        if let pipeline::PipelineExit::Bug = exit {
            tracing::error!(event = "bug", pipeline, "ended by a bug in Postrider");
        }
        if stop && left > 0 {
            tracing::warn!(event = "stopping_all", pipeline, "stopping the other pipelines");
            handle.stop();
        }
    }
    if ends.stays_up() && !stop.is_requested() {
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
    fn count(&mut self, exit: &pipeline::PipelineExit, fail_fast: bool) -> bool {
        let first = self.bugs == 0 && !self.failed_fast;
        match exit {
            pipeline::PipelineExit::Stopped => {
                self.stopped += 1;
                false
            }
            pipeline::PipelineExit::Halted(_) => {
                self.halted += 1;
                self.failed_fast |= fail_fast;
                first && fail_fast
            }
            pipeline::PipelineExit::Bug => {
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

// How many descriptors the process may open, and how they are shared out.
//
// A process that has used up its descriptors can't connect to its database again. So the soft limit is raised to the
// hard one, and the admin endpoint, which strangers may connect to, gets only what the pipelines leave.

/// Descriptors of the process itself: the runtimes' own, standard streams, the listener, files that are read.
const OF_THE_PROCESS: u64 = 64;

/// Descriptors of one pipeline: its sessions in the database, and for each of up to four producers of librdkafka a
/// socket and a pipe for each broker of a cluster of some ten.
const OF_A_PIPELINE: u64 = 160;

/// The soft limit is raised to the hard one, and not above this: more is never needed.
const RAISED_MAX: u64 = 65_536;

/// Connections that the endpoint has in the smallest process: one scrape, and one person who looks.
const CONNECTIONS_MIN: u64 = 2;

/// Raises the limit, and gives the number of connections that the admin endpoint may have open beside `pipelines`.
pub(super) fn prepare(pipelines: usize) -> usize {
    let Some(limit) = raised() else { return CONNECTIONS_MAX };
    let (connections, needed) = shared_out(limit, pipelines);
    if limit < needed {
        tracing::warn!(
            event = "descriptors_low",
            limit,
            needed,
            connections,
            hint = "allow more: LimitNOFILE= of the systemd unit, ulimit -n of a shell, ulimits of a container",
            "the process may open {limit} descriptors, {needed} may be needed; the admin endpoint takes {connections} \
             connections at a time"
        );
    }
    usize::try_from(connections).unwrap_or(CONNECTIONS_MAX)
}

/// The endpoint's connections where the process may open `limit` descriptors, and what everything together may need.
fn shared_out(limit: u64, pipelines: usize) -> (u64, u64) {
    let most = CONNECTIONS_MAX as u64;
    let reserve = OF_THE_PROCESS + OF_A_PIPELINE * pipelines as u64;
    (limit.saturating_sub(reserve).clamp(CONNECTIONS_MIN, most), reserve + most)
}

/// The limit as it is after it was raised; `None` where there is none.
#[cfg(unix)]
fn raised() -> Option<u64> {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let before = getrlimit(Resource::Nofile);
    let soft = before.current?;
    let wanted = before.maximum.unwrap_or(RAISED_MAX).min(RAISED_MAX);
    if wanted <= soft {
        return Some(soft);
    }
    let raised = Rlimit { current: Some(wanted), maximum: before.maximum };
    match setrlimit(Resource::Nofile, raised) {
        Ok(()) => Some(wanted),
        // A sandbox may forbid it. What is allowed is enough, or `descriptors_low` is logged.
        Err(_refused) => Some(soft),
    }
}

#[cfg(not(unix))]
fn raised() -> Option<u64> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::{Halt, HaltReason};

    fn halted() -> pipeline::PipelineExit {
        pipeline::PipelineExit::Halted(Box::new(Halt {
            reason: HaltReason::SlotLost,
            message: String::new(),
            meaning: String::new(),
            hint: String::new(),
        }))
    }

    fn exit(ends: &[pipeline::PipelineExit], fail_fast: bool) -> Exit {
        let mut counted = Ends::default();
        for end in ends {
            counted.count(end, fail_fast);
        }
        counted.exit()
    }

    #[test]
    fn the_exit_is_3_only_when_every_pipeline_has_halted() {
        use pipeline::PipelineExit::{Bug, Stopped};
        assert_eq!(exit(&[Stopped, Stopped], false), Exit::Done);
        assert_eq!(exit(&[halted(), Stopped], false), Exit::Done);
        assert_eq!(exit(&[halted(), halted()], false), Exit::Halted);
        assert_eq!(exit(&[halted(), Stopped], true), Exit::Halted);
        assert_eq!(exit(&[Bug, Stopped, halted()], false), Exit::Bug);
    }

    #[test]
    fn the_process_stays_up_when_all_have_halted_unless_told_otherwise() {
        use pipeline::PipelineExit::{Bug, Stopped};
        let stays_up = |ends: &[pipeline::PipelineExit], fail_fast| {
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
        assert!(ends.count(&pipeline::PipelineExit::Bug, false));
        assert!(!ends.count(&pipeline::PipelineExit::Bug, false));
        let mut ends = Ends::default();
        assert!(ends.count(&halted(), true));
        assert!(!ends.count(&halted(), true));
    }
}

#[cfg(test)]
mod descriptors_tests {
    use super::*;

    #[test]
    fn the_endpoint_gets_what_the_pipelines_leave() {
        assert_eq!(shared_out(1024, 1), (64, 288));
        assert_eq!(shared_out(1024, 5), (64, 928));
        assert_eq!(shared_out(1024, 6), (2, 1088));
        assert_eq!(shared_out(1024, 100), (2, 16_128));
        assert_eq!(shared_out(256, 1), (32, 288));
        assert_eq!(shared_out(64, 1), (2, 288));
        assert_eq!(shared_out(u64::MAX, 1), (64, 288));
    }
}
