//! Outboxes in PostgreSQL, and a sink of one's own: `postgres_to_folder postrider.toml`.

use embedding::folder::FolderKind;
use postrider::config;
use postrider::metrics::Metrics;
use postrider::pipeline::{PipelineExit, Service, Stop};
use postrider::sink::{KINDS, SinkKind};
use postrider::status::StatusHandle;
use std::error::Error;
use std::path::Path;

fn main() -> Result<(), Box<dyn Error>> {
    let file = std::env::args().nth(1).ok_or("usage: postgres_to_folder FILE")?;
    let text = std::fs::read_to_string(&file)?;
    let directory = Path::new(&file).parent().unwrap_or(Path::new(""));

    // The kinds of the product, and one more.
    let own: &dyn SinkKind = &FolderKind;
    let kinds: Vec<_> = KINDS.iter().copied().chain([own]).collect();
    let config = config::parse_with(&kinds, &file, directory, &text, &config::process_variable)
        .map_err(|findings| findings.to_string())?;

    // Each pipeline has a thread of its own.
    let metrics = Metrics::default();
    let pipelines = config.specs.into_iter().map(|spec| {
        let status_handle = StatusHandle::new(spec.name());
        let counters = metrics.pipeline(&status_handle);
        (spec, status_handle, counters)
    });
    let (stopper, stop) = Stop::new();
    let mut service = Service::start(pipelines.collect(), &stop)?;

    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        loop {
            tokio::select! {
                signal = tokio::signal::ctrl_c() => {
                    signal?;
                    stopper.stop();
                }
                ended = service.next_exit() => match ended {
                    Some((_, PipelineExit::Stopped)) => {}
                    Some((name, PipelineExit::Halted(halt))) => return Err(format!("{name}: {halt}").into()),
                    Some((name, PipelineExit::Bug)) => return Err(format!("{name}: a bug").into()),
                    None => return Ok(()),
                },
            }
        }
    })
}
