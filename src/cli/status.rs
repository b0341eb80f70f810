//! `postrider status`: asks the running process, and shows what it says.

mod ask;
mod table;

use super::args::{Global, StatusArgs};
use super::error::CliError;
use super::exit::Exit;
use super::output::Output;
use crate::config::Config;
use serde_json::Value;

pub(super) async fn run(
    config: &Config,
    global: &Global,
    args: &StatusArgs,
    color: bool,
) -> Result<Exit, CliError> {
    let address = ask::reachable(config.admin.listen.ok_or(CliError::AdminOff)?);
    let body = ask::status(address).await?;
    let mut status: Value =
        serde_json::from_str(&body).map_err(|_not_json| CliError::Stranger(address))?;
    let Some(pipelines) = status.get_mut("pipelines").and_then(Value::as_array_mut) else {
        return Err(CliError::Stranger(address));
    };
    if let Some(name) = &global.pipeline {
        pipelines.retain(|pipeline| pipeline["pipeline"] == name.as_str());
    }
    let is_ready = |pipeline: &Value| pipeline["ready"] == Value::Bool(true);
    let well = !pipelines.is_empty() && pipelines.iter().all(is_ready);
    let text = if args.json { format!("{status:#}") } else { table::render(pipelines, color) };
    Output::stdout().line(&text).map_err(CliError::Output)?;
    Ok(if well { Exit::Done } else { Exit::NotWell })
}
