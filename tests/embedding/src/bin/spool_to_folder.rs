//! A source, a store and a sink of one's own: `spool_to_folder SPOOL OUT`.

use embedding::cursor_file::CursorFile;
use embedding::folder::FolderConfig;
use embedding::spool::{self, Spool};
use postrider::outbox::{Layout, OutboxSpec, Role, TableName};
use postrider::pipeline::{Embedded, PipelineExit, Stop};
use std::error::Error;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

fn main() -> Result<ExitCode, Box<dyn Error>> {
    let mut arguments = std::env::args_os().skip(1).map(PathBuf::from);
    let (Some(spool), Some(out)) = (arguments.next(), arguments.next()) else {
        return Err("usage: spool_to_folder SPOOL OUT".into());
    };

    // Which table of the source has events, and how their records are made.
    let table = TableName { schema: spool::SCHEMA.to_owned(), name: spool::TABLE.to_owned() };
    let outbox = OutboxSpec {
        table: Some(table),
        // The spool's events have no time of their own: the one of the commit is used.
        columns: vec![(Role::Time, String::new())],
        ..OutboxSpec::for_layout(Layout::Postrider)
    };
    let sink = Arc::new(FolderConfig { directory: out, line_bytes_max: 1 << 20 });
    let pipeline = Embedded::new("spool", outbox, sink);

    let store = CursorFile::new(spool.join("cursor"));
    let source = Spool::open(spool)?;
    let (stopper, stop) = Stop::new();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let exit = runtime.block_on(async {
        let stopping = async {
            // The first Ctrl-C drains, the second one stops at once.
            while tokio::signal::ctrl_c().await.is_ok() {
                stopper.stop();
            }
            std::future::pending::<()>().await;
        };
        tokio::select! {
            exit = pipeline.run(source, store, &stop) => exit,
            () = stopping => PipelineExit::Stopped,
        }
    });
    match exit {
        PipelineExit::Stopped => Ok(ExitCode::SUCCESS),
        PipelineExit::Halted(halt) => Err(format!("{halt}; to do: {}", halt.hint).into()),
        PipelineExit::Bug => Ok(ExitCode::FAILURE),
    }
}
