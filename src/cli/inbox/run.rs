//! `postrider inbox run`: stores messages of brokers, and webhooks, in inboxes until a signal stops the process.

use crate::admin::{Admin, AdminView, LogEvents};
use crate::cli::error::{CliError, Exit};
use crate::cli::run::{Process, bind};
use crate::config::Config;
use crate::intake::{IntakeExit, IntakeMaintenance, IntakeService, IntakeSpec};
use crate::intake_status::IntakeHandle;
use crate::metrics::Metrics;
use crate::pipeline::Stop;
use std::pin::pin;

/// `postrider inbox run`
#[derive(clap::Args, Debug)]
pub struct RunInboxArgs {
    /// Only these tables [inboxes.NAME] of the configuration
    #[arg(value_name = "NAME")]
    pub names: Vec<String>,
    /// Refused.
    #[command(flatten)]
    pub refused: super::args::NoDatabaseArgs,
}

/// Runs the intakes, and the admin endpoint.
pub(crate) async fn run(config: &Config, args: &RunInboxArgs) -> Result<Exit, CliError> {
    let specs = chosen(config, &args.names)?;
    let handle_of =
        |spec: &IntakeSpec| IntakeHandle::new(&spec.name, &spec.inbox.inbox, spec.source.kind());
    let handles: Vec<_> = specs.iter().map(handle_of).collect();
    let metrics = Metrics::default();
    for handle in &handles {
        metrics.intake(handle);
    }
    let process = Process::listen()?;
    let admin = match config.admin.listen {
        Some(address) => Some(bind(address).await?),
        None => None,
    };
    announce(config, &specs, admin.as_ref());
    let maintenance = IntakeMaintenance::start(&specs, &config.maintenance.inboxes);
    for status_handle in maintenance.status_handles() {
        metrics.maintained(status_handle);
    }
    let view = AdminView {
        status_handles: Vec::new(),
        intake_handles: handles.clone(),
        maintenance_handles: maintenance.status_handles().to_vec(),
        metrics,
        log_events: LogEvents::of_the_process(),
        ready_lag_max: config.admin.ready_lag_max,
    };
    let (stop_handle, stop) = Stop::new();
    let intakes = specs.into_iter().zip(handles).collect();
    let service = IntakeService::start(intakes, &stop).map_err(CliError::Thread)?;
    let mut ended = pin!(all_end(service, &stop_handle));
    // A client whose broker does not answer may take longer to leave its group. What it has read is stored or not, in
    // one transaction with its offset, so nothing depends on its end.
    let mut late = pin!(async {
        stop.drain().await;
        tokio::select! {
            () = stop.leave() => {}
            () = tokio::time::sleep(config.shutdown_grace) => {}
        }
    });
    let mut aside = pin!(process.serve(admin, view, &stop_handle));
    tokio::select! {
        exit = &mut ended => Ok(exit),
        () = &mut late => {
            tracing::warn!(
                event = "shutdown_incomplete",
                "stopped before every intake has ended, after shutdown_grace; nothing is lost"
            );
            Ok(Exit::Done)
        }
        never = &mut aside => match never {},
    }
}

/// The intakes with these names, or all.
pub(super) fn chosen(config: &Config, names: &[String]) -> Result<Vec<IntakeSpec>, CliError> {
    let known = || config.inboxes.iter().map(|inbox| inbox.name.clone()).collect::<Vec<_>>();
    if let Some(name) = names.iter().find(|name| !known().contains(name)) {
        return Err(CliError::Intake { name: Some(name.clone()), known: known() });
    }
    let is_chosen = |name: &String| names.is_empty() || names.contains(name);
    let chosen = config.inboxes.iter().filter(|inbox| is_chosen(&inbox.name));
    let specs: Vec<_> = chosen.filter_map(|inbox| inbox.spec.clone()).collect();
    if specs.is_empty() {
        return Err(CliError::Intake { name: None, known: known() });
    }
    Ok(specs)
}

/// Waits until every intake has ended. A bug of one stops the others: only a restart of the process starts it again.
async fn all_end(mut service: IntakeService, stop: &crate::pipeline::StopHandle) -> Exit {
    let mut exit = Exit::Done;
    while let Some((intake, ended)) = service.next_exit().await {
        if ended == IntakeExit::Bug && exit != Exit::Bug {
            tracing::error!(
                event = "bug",
                intake,
                "ended by a bug in Postrider; the other intakes stop too"
            );
            exit = Exit::Bug;
            stop.stop();
        }
    }
    exit
}

fn announce(config: &Config, specs: &[IntakeSpec], admin: Option<&Admin>) {
    let names: Vec<_> = specs.iter().map(|spec| spec.name.as_str()).collect();
    let address = admin.and_then(|admin| admin.address().ok());
    let address = address.map_or_else(|| "off".to_owned(), |address| address.to_string());
    tracing::info!(
        event = "starting",
        version = env!("CARGO_PKG_VERSION"),
        config = config.file,
        intakes = names.join(","),
        admin = address,
        "starting"
    );
}
