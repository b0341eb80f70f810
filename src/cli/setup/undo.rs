//! `postrider setup --undo`: says what is lost, asks, and takes the pipeline out of the database.

use super::words;
use crate::cli::args::SetupArgs;
use crate::cli::error::CliError;
use crate::cli::output::Output;
use crate::postgres::control::{Ask, Control};
use crate::postgres::setup::{UndoPlan, undo};
use std::io::{self, BufRead as _, IsTerminal as _};

pub(super) async fn one(
    pipeline: &str,
    control: &Control,
    ask: &Ask<'_>,
    args: &SetupArgs,
) -> Result<(), CliError> {
    let plan = undo::read(control, ask).await?;
    let mut out = Output::stdout();
    if args.print_sql {
        let text = format!("-- Pipeline {pipeline}\n{plan}");
        return out.line(text.trim_end()).map_err(CliError::Output);
    }
    if plan.steps.is_empty() {
        let text = format!("{pipeline}: nothing is there to undo");
        return out.line(&text).map_err(CliError::Output);
    }
    out.line(&in_words(pipeline, &plan)).map_err(CliError::Output)?;
    if !args.yes && !agreed(pipeline)? {
        return out.line("nothing was changed").map_err(CliError::Output);
    }
    undo::undo(control, &plan).await?;
    out.line(&format!("{pipeline} is undone")).map_err(CliError::Output)
}

fn in_words(pipeline: &str, plan: &UndoPlan) -> String {
    let mut lines = vec![format!("{pipeline}: to be undone")];
    lines.extend(words::steps(&plan.steps));
    lines.extend(plan.lost.iter().map(|lost| words::folded("  lost   ", lost)));
    lines.extend(plan.stays.iter().map(|stays| words::folded("  stays  ", stays)));
    lines.join("\n")
}

/// Asks a person; where there is none, nothing is dropped without `--yes`.
fn agreed(pipeline: &str) -> Result<bool, CliError> {
    let input = io::stdin();
    if !input.is_terminal() {
        return Err(CliError::NotAgreed);
    }
    Output::stderr().say(&format!("Undo {pipeline}? Type yes:"));
    let mut answer = String::new();
    input.lock().read_line(&mut answer).map_err(CliError::Output)?;
    Ok(answer.trim() == "yes")
}
