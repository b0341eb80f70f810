//! `postrider run`: runs all pipelines and the admin endpoint until a signal stops the process.

use super::args::RunArgs;
use super::error::{CliError, Exit};
use super::status::{running_intakes, running_pipelines};
use crate::admin::{Admin, AdminView, CONNECTIONS_MAX, LogEvents};
use crate::config::Config;
use crate::metrics::Metrics;
use crate::pipeline::{self, PipelineSpec, Service, Stop, StopHandle};
use crate::status::StatusHandle;
use std::net::SocketAddr;
use std::pin::pin;

pub(super) async fn run(config: Config, args: &RunArgs) -> Result<Exit, CliError> {
    let process = Process::listen()?;
    // Only the endpoint reads what is remembered.
    let remembered = config.admin.listen.map_or(0, |_| config.admin.remember_changes);
    let handle = |spec: &PipelineSpec| StatusHandle::of(spec.key()).remembering(remembered);
    let status_handles: Vec<_> = config.specs.iter().map(handle).collect();
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
        intake_handles: Vec::new(),
        maintenance_handles: Vec::new(),
        metrics,
        log_events: LogEvents::of_the_process(),
        ready_lag_max: config.admin.ready_lag_max,
    };
    let (handle, stop) = Stop::new();
    let pipelines = config.specs.into_iter().zip(status_handles).zip(counts);
    let pipelines =
        pipelines.map(|((spec, status_handle), counts)| (spec, status_handle, counts)).collect();
    let service = Service::start(pipelines, &stop).map_err(CliError::Thread)?;

    let mut exit = pin!(pipelines_end(service, total, args.fail_fast, (&handle, &stop)));
    let mut aside = pin!(process.serve(admin, view, &handle));
    tokio::select! {
        exit = &mut exit => Ok(exit),
        never = &mut aside => match never {},
    }
}

/// Listens on the address. If another Postrider occupies it, the error names its pipelines and intakes: a process whose
/// pipelines have halted keeps its port.
pub(super) async fn bind(address: SocketAddr) -> Result<Admin, CliError> {
    let error = match Admin::bind(address).await {
        Ok(admin) => return Ok(admin),
        Err(error) => error,
    };
    if !error.is_in_use() {
        return Err(error.into());
    }
    let (running, intakes) = (running_pipelines(address).await, running_intakes(address).await);
    if running.is_empty() && intakes.is_empty() {
        return Err(error.into());
    }
    let intakes = intakes.into_iter().map(|name| format!("intake \"{name}\""));
    let pipelines = running.into_iter().map(|other| match other.halted {
        Some(code) => format!("pipeline \"{}\", halted with {code}", other.pipeline),
        None => format!("pipeline \"{}\"", other.pipeline),
    });
    Err(CliError::Occupied { address, pipelines: pipelines.chain(intakes).collect() })
}

/// The result of a task that runs as long as the process.
pub(super) enum Never {}

/// What a process does beside its pipelines or intakes.
pub(super) struct Process {
    signals: Signals,
    hangup: Hangup,
}

impl Process {
    /// Handles the signals from now on.
    pub(super) fn listen() -> Result<Self, CliError> {
        let signals = Signals::listen().map_err(CliError::Runtime)?;
        let hangup = Hangup::listen().map_err(CliError::Runtime)?;
        Ok(Self { signals, hangup })
    }

    /// Serves the endpoint, and stops everything when a signal asks for it.
    pub(super) async fn serve(
        self,
        admin: Option<Admin>,
        view: AdminView,
        handle: &StopHandle,
    ) -> Never {
        aside(admin, view, self, handle).await
    }
}

async fn aside(
    admin: Option<Admin>,
    view: AdminView,
    Process { mut signals, mut hangup }: Process,
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
                hint = "restart the process to apply a changed configuration",
                "received SIGHUP and ignored it: the configuration cannot be reloaded in a running process"
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
        // The pipeline has logged its own end, unless it ended by a panic.
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
            "every pipeline has halted; the process stays up and answers on admin.listen until it is stopped \
             (--fail-fast exits instead)"
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
    /// Counts an end, and returns whether it stops the other pipelines. A halt stops them only with `fail_fast`. A bug
    /// always does: only a restart of the process starts that pipeline again.
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

    /// Whether the process stays up after its last pipeline has ended, so that the endpoint can answer with the reasons
    /// of the halts.
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

    /// Waits for the next signal and returns its name.
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

/// SIGHUP, which a closing terminal sends, and service managers send for a reload. Its default action would end the
/// process without waiting for the events in flight.
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

// File descriptors. A process that has used up its descriptors cannot reconnect to its database. So the soft limit is
// raised to the hard limit, and the admin endpoint, to which anyone may connect, gets only what the pipelines leave.

/// Descriptors of the process itself: those of the runtimes, standard streams, the listener, files.
const OF_THE_PROCESS: u64 = 64;

/// Descriptors of one pipeline: its sessions in the database, and a socket and a pipe for each broker (some ten of
/// them) for each of up to four producers of librdkafka.
const OF_A_PIPELINE: u64 = 160;

/// The highest soft limit that is set. More is never needed.
const RAISED_MAX: u64 = 65_536;

/// Connections that the endpoint always has: one for a scrape, and one for an operator.
const CONNECTIONS_MIN: u64 = 2;

/// Raises the limit, and returns the number of connections that the admin endpoint may have open beside `pipelines`.
pub(super) fn prepare(pipelines: usize) -> usize {
    let Some(limit) = raised() else { return CONNECTIONS_MAX };
    let (connections, needed) = shared_out(limit, pipelines);
    if limit < needed {
        tracing::warn!(
            event = "descriptors_low",
            limit,
            needed,
            connections,
            hint = "raise the limit: LimitNOFILE= of the systemd unit, ulimit -n of a shell, ulimits of a container",
            "the process may open {limit} file descriptors and may need {needed}; the admin endpoint is limited to \
             {connections} connections"
        );
    }
    usize::try_from(connections).unwrap_or(CONNECTIONS_MAX)
}

/// For a process that may open `limit` descriptors: the endpoint's connections, and the descriptors that everything
/// together may need.
fn shared_out(limit: u64, pipelines: usize) -> (u64, u64) {
    let most = CONNECTIONS_MAX as u64;
    let reserve = OF_THE_PROCESS + OF_A_PIPELINE * pipelines as u64;
    (limit.saturating_sub(reserve).clamp(CONNECTIONS_MIN, most), reserve + most)
}

/// Raises the limit and returns it; `None` if there is no limit.
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
        // A sandbox may forbid it. If the present limit is too low, `descriptors_low` is logged.
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
    fn the_process_stays_up_when_all_have_halted_unless_fail_fast_is_set() {
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
    fn others_are_stopped_once_by_a_bug_or_by_the_first_halt_with_fail_fast() {
        let mut ends = Ends::default();
        assert!(!ends.count(&halted(), false));
        assert!(ends.count(&pipeline::PipelineExit::Bug, false));
        assert!(!ends.count(&pipeline::PipelineExit::Bug, false));
        let mut ends = Ends::default();
        assert!(ends.count(&halted(), true));
        assert!(!ends.count(&halted(), true));
    }

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
