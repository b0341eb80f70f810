//! The `postrider` command.

use postrider::cli::{self, Exit};
use postrider::config;

/// librdkafka frees memory on other threads than the one that allocated it, which is slow with the system's allocator.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// Settings that jemalloc reads before `main`. By default jemalloc creates up to four arenas for each processor; with
/// two arenas an idle process uses 0.6 MB less (`docs/decisions/allocator.md`).
#[expect(unsafe_code, reason = "jemalloc looks for this name: nothing else has it")]
#[unsafe(export_name = "malloc_conf")]
static ALLOCATOR_SETTINGS: &[u8] = b"narenas:2\0";

fn main() -> Exit {
    // A panic is a bug in Postrider. The panic hook prints the message, and the exit code reports it to the supervisor.
    std::panic::catch_unwind(|| cli::main(std::env::args_os(), &config::process_variable))
        .unwrap_or(Exit::Bug)
}
