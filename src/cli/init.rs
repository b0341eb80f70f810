//! `postrider init`: writes a first configuration, and prints what is left to do.

use super::Output;
use super::args::InitArgs;
use super::error::{CliError, Exit};
use crate::config::Env;
use crate::init::debezium::{self, Overrides, Verdict, translator};
use crate::init::{self, Draft, InitError, database};
use crate::outbox::Layout;
use crate::postgres::names::admin_url;
use crate::postgres::{Conninfo, conninfo};
use crate::sink::DEFAULT_KIND;
use std::fs::OpenOptions;
use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};

/// The file name that means standard input or output.
const STREAM: &str = "-";

/// Runs the command. `pipeline`: the name given with `-p`.
pub(super) async fn run(
    args: &InitArgs,
    pipeline: Option<&str>,
    env: Env<'_>,
) -> Result<Exit, CliError> {
    let mut exit = Exit::Done;
    let layout = args.layout.as_deref().and_then(Layout::from_name);
    let (mut draft, mut notes) = match (&args.from_debezium, &args.from_database) {
        (Some(file), _) => from_debezium(args, file)?,
        (None, Some(url)) => {
            let parsed = Conninfo::parse(url, env).map_err(InitError::from)?;
            let proposal = database::propose(url, &parsed, args.table.as_deref(), layout).await?;
            if !proposal.complete {
                exit = Exit::Problems;
            }
            (proposal.draft, proposal.found)
        }
        (None, None) => (init::plain(layout.unwrap_or(Layout::Postrider)), Vec::new()),
    };
    fill_in(&mut draft, args, pipeline)?;
    init::check_draft(&draft)?;
    if !draft.is_complete() {
        exit = Exit::Problems;
    }
    let text = init::text(&draft);
    if args.output == Path::new(STREAM) {
        Output::stdout().line(text.trim_end()).map_err(CliError::Output)?;
    } else {
        write(&args.output, &text, args.force)?;
        notes.extend(next(args, &draft));
    }
    if !notes.is_empty() {
        Output::stderr().line_or_ignore(&notes.join("\n"));
    }
    Ok(exit)
}

/// Values from the command line replace those that were found.
fn fill_in(draft: &mut Draft, args: &InitArgs, pipeline: Option<&str>) -> Result<(), CliError> {
    if let Some(name) = args.name.as_deref().or(pipeline) {
        // Unchanged: `check_draft` reports an invalid name.
        name.clone_into(&mut draft.name);
    }
    if let Some(url) = &args.url {
        draft.set("source", "url", conninfo::masked(url, None).map_err(InitError::from)?);
    }
    if let Some(kind) = &args.sink {
        init::set_sink(draft, kind);
    }
    if let Some(brokers) = &args.brokers {
        draft.set("sink", "brokers", brokers.as_str());
    }
    if let (Some(table), None) = (&args.table, &args.from_database) {
        draft.set("outbox", "table", table.as_str());
    }
    Ok(())
}

fn from_debezium(args: &InitArgs, file: &Path) -> Result<(Draft, Vec<String>), CliError> {
    let text = read(file).map_err(|source| CliError::Read { path: file.to_owned(), source })?;
    let overrides = Overrides { table: args.table.clone(), brokers: args.brokers.clone() };
    let translation = debezium::translate(&text, &overrides)?;
    let count = |verdict: Verdict| {
        translation.answers.iter().filter(|answer| answer.verdict == verdict).count()
    };
    let mut notes = vec![format!(
        "{} options: {} translated, {} not needed, {} without a counterpart; the end of the file lists each of them",
        translation.answers.len(),
        count(Verdict::Translated),
        count(Verdict::NotNeeded),
        count(Verdict::NoCounterpart),
    )];
    notes.extend(translator::lines(&translation.answers, &[Verdict::NoCounterpart]));
    if !translation.hints.is_empty() {
        notes.push("to do:".to_owned());
        notes.extend(translation.hints.iter().map(|hint| format!("  {hint}")));
    }
    Ok((translation.draft, notes))
}

fn read(file: &Path) -> io::Result<String> {
    let mut text = String::new();
    let limit = debezium::FILE_BYTES_MAX;
    let bytes = if file == Path::new(STREAM) {
        io::stdin().lock().take(limit + 1).read_to_string(&mut text)?
    } else {
        std::fs::File::open(file)?.take(limit + 1).read_to_string(&mut text)?
    };
    if u64::try_from(bytes).is_ok_and(|bytes| bytes <= limit) {
        Ok(text)
    } else {
        Err(io::Error::from(io::ErrorKind::FileTooLarge))
    }
}

/// Writes the file. An existing file is replaced only with `force`.
fn write(path: &PathBuf, text: &str, force: bool) -> Result<(), CliError> {
    let failed = |source| CliError::Write { path: path.clone(), source };
    let mut options = OpenOptions::new();
    options.write(true).truncate(force).create(force).create_new(!force);
    let mut file = options.open(path).map_err(failed)?;
    file.write_all(text.as_bytes()).and_then(|()| file.sync_all()).map_err(failed)
}

/// The lines that name what is left to do: keys to fill in, then the commands.
fn next(args: &InitArgs, draft: &Draft) -> Vec<String> {
    let path = args.output.display();
    let file = if args.output == Path::new("./postrider.toml") {
        String::new()
    } else {
        format!(" -c {path}")
    };
    let create = if args.from_database.is_none() && args.from_debezium.is_none() {
        " (add --create-table if the table does not exist yet)"
    } else {
        ""
    };
    let mut lines = vec![format!("wrote {path}: pipeline {}", draft.name)];
    let kind = args.sink.as_deref().unwrap_or(DEFAULT_KIND);
    if args.from_debezium.is_none() && args.brokers.is_none() && kind == DEFAULT_KIND {
        lines.push("to do: fill in sink.brokers".to_owned());
    } else if draft.keys_of(&format!("sink.{kind}")).next().is_some() {
        lines.push(format!("to do: fill in sink.{kind} (docs/sinks/{kind}.md)"));
    }
    if args.from_database.is_none() && args.from_debezium.is_none() && args.url.is_none() {
        lines.push("to do: fill in source.url".to_owned());
    }
    let admin = admin_url("DATABASE");
    lines.push(format!("then, as an administrator: postrider{file} setup --url {admin}{create}"));
    lines.push(format!("then: postrider{file} check, and postrider{file} run"));
    lines
}
