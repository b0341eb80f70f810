//! Postrider and its alternatives over the same WAL, in one run, which `scripts/bench` starts.
//!
//! Contenders take turns, each on a copy of one slot. A round that other processes disturbed is repeated. The results
//! are medians and ratios. Records in Kafka are read back: a run counts only if they are complete and in order.
#![expect(
    clippy::expect_used,
    clippy::print_stdout,
    clippy::panic,
    clippy::cast_precision_loss,
    clippy::as_conversions,
    clippy::indexing_slicing,
    reason = "a bench prints, reads its environment, and stops at the first thing that is not as it should be"
)]

mod args;
mod brokers;
mod commits;
#[path = "../../src/demo/consumers/mod.rs"]
#[expect(unused_imports, reason = "its unit tests, which run with the crate")]
mod consumers;
mod contender;
mod crash;
mod debezium;
mod drain;
mod exactly_once;
mod latency;
mod page;
mod phases;
mod plot;
mod poll;
mod process;
mod rivals;
mod servers;
mod sinks;
mod table_outbox;
mod targets;
mod tls;
mod topic;
mod trials;
mod wal;

use args::Args;
use page::Page;
use servers::Servers;
use std::process::ExitCode;

fn main() -> ExitCode {
    let args = Args::parse();
    let servers = Servers::find();
    let mut page = Page::new(&args);
    let passed = if let Some(baseline) = &args.guard {
        phases::guard(&args, &servers, baseline, &mut page)
    } else {
        phases::all(&args, &servers, &mut page);
        true
    };
    page.write();
    if !passed {
        println!("\nslower than the baseline by more than {} %", phases::GUARD_PERCENT);
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}
