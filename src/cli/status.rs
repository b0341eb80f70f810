//! `postrider status`: asks the running process, and shows what it says, once or again and again.

pub(super) mod ask;
mod table;

use super::args::{Global, StatusArgs};
use super::error::CliError;
use super::exit::Exit;
use super::output::Output;
use crate::config::Config;
use crate::driver::PipelineSpec;
use serde_json::Value;
use std::io::IsTerminal as _;
use std::net::SocketAddr;
use std::time::Duration;

/// To the upper left, and everything below it away: what a terminal shows is replaced in place.
const REPLACE: &str = "\x1b[H\x1b[J";

pub(super) async fn run(
    config: &Config,
    global: &Global,
    args: &StatusArgs,
    color: bool,
) -> Result<Exit, CliError> {
    let address = ask::reachable(config.admin.listen.ok_or(CliError::AdminOff)?);
    let Some(seconds) = args.watch else {
        let look = look(address, config, global).await?;
        let text = if args.json { format!("{:#}", look.status) } else { look.table(color) };
        Output::stdout().line(&text).map_err(CliError::Output)?;
        return Ok(look.exit());
    };
    tokio::select! {
        biased;
        stopped = tokio::signal::ctrl_c() => stopped.map(|()| Exit::Done).map_err(CliError::Runtime),
        ended = watch(address, config, global, args, (color, seconds)) => ended,
    }
}

/// Looks until the reader of what is printed has gone away. Nobody answering is news like any other.
async fn watch(
    address: SocketAddr,
    config: &Config,
    global: &Global,
    args: &StatusArgs,
    (color, seconds): (bool, u32),
) -> Result<Exit, CliError> {
    let mut ticks = tokio::time::interval(Duration::from_secs(seconds.into()));
    let before = if std::io::stdout().is_terminal() && !args.json { REPLACE } else { "" };
    loop {
        ticks.tick().await;
        let text = match (look(address, config, global).await, args.json) {
            (Ok(look), true) => look.status.to_string(),
            (Ok(look), false) => look.table(color),
            (Err(error), true) => serde_json::json!({ "error": error.one_line() }).to_string(),
            (Err(error), false) => error.report(),
        };
        // A blank line between two tables that stand one below the other.
        let after = if before.is_empty() && !args.json { "\n" } else { "" };
        let text = format!("{before}{text}{after}");
        if !Output::stdout().line_if_read(&text).map_err(CliError::Output)? {
            return Ok(Exit::Done);
        }
    }
}

/// One answer.
struct Look {
    status: Value,
}

async fn look(address: SocketAddr, config: &Config, global: &Global) -> Result<Look, CliError> {
    let body = ask::status(address).await?;
    let mut status: Value =
        serde_json::from_str(&body).map_err(|_not_json| CliError::Stranger(address))?;
    let Some(pipelines) = status.get_mut("pipelines").and_then(Value::as_array_mut) else {
        return Err(CliError::Stranger(address));
    };
    if let Some(name) = &global.pipeline {
        pipelines.retain(|pipeline| pipeline["pipeline"] == name.as_str());
    }
    let differences = differences(pipelines, &config.specs);
    if !differences.is_empty() {
        let file = config.file.clone();
        return Err(CliError::OtherConfiguration { address, file, differences });
    }
    Ok(Look { status })
}

/// What tells the running process from one that runs the pipelines of our configuration. The address is the only thing
/// that was asked for, and any Postrider may have it.
fn differences(running: &[Value], ours: &[PipelineSpec]) -> Vec<String> {
    let named = |name: &str| running.iter().find(|pipeline| pipeline["pipeline"] == name);
    let mut found = Vec::new();
    for spec in ours {
        let name = spec.name();
        let Some(pipeline) = named(name) else {
            found.push(format!("it has no pipeline \"{name}\""));
            continue;
        };
        for (what, here) in [("source", spec.source_name()), ("slot", spec.names.slot.clone())] {
            // A release before this one does not say.
            if let Some(there) = pipeline[what].as_str().filter(|there| *there != here) {
                found.push(format!("its \"{name}\" has {what} {there}, ours has {here}"));
            }
        }
    }
    let strange = running.iter().filter_map(|pipeline| pipeline["pipeline"].as_str());
    let strange = strange.filter(|name| ours.iter().all(|spec| spec.name() != *name));
    found.extend(strange.map(|name| format!("it has a pipeline \"{name}\"")));
    found
}

impl Look {
    fn pipelines(&self) -> &[Value] {
        self.status["pipelines"].as_array().map_or(&[], Vec::as_slice)
    }

    fn table(&self, color: bool) -> String {
        table::render(self.pipelines(), color)
    }

    fn exit(&self) -> Exit {
        let is_ready = |pipeline: &Value| pipeline["ready"] == Value::Bool(true);
        let pipelines = self.pipelines();
        let well = !pipelines.is_empty() && pipelines.iter().all(is_ready);
        if well { Exit::Done } else { Exit::NotWell }
    }
}
