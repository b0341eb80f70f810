//! The time of each step of the hot path, measured by criterion: `scripts/bench --micro`.
//!
//! The cases are those of `instructions`, with the allocator of the program. Times are meaningful only on a machine
//! that does nothing else; criterion prints the change since the last run.
#![expect(
    clippy::expect_used,
    clippy::panic,
    clippy::as_conversions,
    reason = "a bench stops at the first thing that is not as it should be"
)]

mod cases;

use criterion::{BatchSize, Criterion, Throughput};
use std::time::Duration;

#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// Runs per figure: a run of a million events takes a good part of a second.
const SAMPLES: usize = 20;
/// For each case.
const MEASURED: Duration = Duration::from_secs(4);

fn main() {
    let settings = Criterion::default().sample_size(SAMPLES).measurement_time(MEASURED);
    let mut criterion = settings.configure_from_args();
    let mut group = criterion.benchmark_group("event");
    for &(name, events, ready) in cases::ALL.iter().chain(cases::FORMATS) {
        group.throughput(Throughput::Elements(events as u64));
        group.bench_function(name, |bencher| {
            let run = |mut run: cases::Run| {
                run();
                run
            };
            bencher.iter_batched(|| ready(events), run, BatchSize::PerIteration);
        });
    }
    group.finish();
    criterion.final_summary();
}
