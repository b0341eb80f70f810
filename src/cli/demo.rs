//! `postrider demo`: turns the arguments into the options of [`crate::demo`].

use super::args::{DemoArgs, Global};
use super::error::{CliError, Exit};
use crate::config::Env;
use crate::demo::{self, DemoError, DemoOptions};
use std::io::IsTerminal as _;
use std::time::Duration;

/// How long a demo runs without a terminal. Unit: seconds.
const SECONDS_WITHOUT_TERMINAL: u32 = 15;
/// The same with `--chaos`: recovery from each of the three failures takes some seconds.
const SECONDS_OF_CHAOS: u32 = 30;

pub(super) fn run(args: &DemoArgs, global: &Global, env: Env<'_>) -> Result<Exit, CliError> {
    let is_dumb = env("TERM").is_some_and(|term| term == "dumb");
    let is_terminal = std::io::stdout().is_terminal() && !is_dumb;
    let alone = if args.chaos { SECONDS_OF_CHAOS } else { SECONDS_WITHOUT_TERMINAL };
    let seconds = args.seconds.or((!is_terminal).then_some(alone));
    let executable = std::env::current_exe();
    let executable =
        executable.map_err(|source| DemoError::Spawn { path: "postrider".into(), source })?;
    let options = DemoOptions {
        url: args.url.clone(),
        sink: args.sink.into(),
        brokers: args.brokers.clone(),
        ledger: args.ledger.clone(),
        limit: seconds.map(|seconds| Duration::from_secs(seconds.into())),
        kills: args.kill,
        chaos: args.chaos,
        rate: args.rate,
        is_terminal,
        color: global.color(env, is_terminal),
        executable,
    };
    let balanced = demo::run(&options, env)?;
    Ok(if balanced { Exit::Done } else { Exit::Problems })
}
