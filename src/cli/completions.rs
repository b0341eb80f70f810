//! `postrider completions`: the script that makes a shell complete our commands and flags.

use super::args::{Args, CompletionsArgs};
use super::error::CliError;
use super::exit::Exit;
use super::output::Output;
use clap::CommandFactory as _;

pub(super) fn run(args: &CompletionsArgs) -> Result<Exit, CliError> {
    let mut command = Args::command();
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut command, "postrider", &mut script);
    let script = String::from_utf8_lossy(&script);
    Output::stdout().line(script.trim_end()).map_err(CliError::Output)?;
    Ok(Exit::Done)
}
