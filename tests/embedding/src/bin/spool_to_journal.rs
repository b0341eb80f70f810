//! A source, a store and a sink that publishes in transactions: `spool_to_journal SPOOL JOURNAL`.

use embedding::cursor_file::CursorFile;
use embedding::journal::JournalConfig;
use embedding::spool::{self, Spool};
use postrider::outbox::{Layout, OutboxSpec, Role, TableName};
use postrider::pipeline::{Embedded, PipelineExit, Stop};
use std::error::Error;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

fn main() -> Result<ExitCode, Box<dyn Error>> {
    let mut arguments = std::env::args_os().skip(1).map(PathBuf::from);
    let (Some(spool), Some(journal)) = (arguments.next(), arguments.next()) else {
        return Err("usage: spool_to_journal SPOOL JOURNAL".into());
    };
    let table = TableName { schema: spool::SCHEMA.to_owned(), name: spool::TABLE.to_owned() };
    let outbox = OutboxSpec {
        table: Some(table),
        columns: vec![(Role::Time, String::new())],
        ..OutboxSpec::for_layout(Layout::Postrider)
    };
    let pipeline = Embedded::new("spool", outbox, Arc::new(JournalConfig(journal)));
    let store = CursorFile::new(spool.join("cursor"));
    let source = Spool::open(spool)?;
    let (_stopper, stop) = Stop::new();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    // Killing the process is a way to stop it: each event is in the journal once in any case.
    match runtime.block_on(pipeline.run(source, store, &stop)) {
        PipelineExit::Stopped => Ok(ExitCode::SUCCESS),
        PipelineExit::Halted(halt) => Err(format!("{halt}; to do: {}", halt.hint).into()),
        PipelineExit::Bug => Ok(ExitCode::FAILURE),
    }
}
