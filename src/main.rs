//! The command.

use postrider::cli::{self, Exit};
use postrider::config;

/// librdkafka frees on other threads than it allocates; the system's allocator pays for that.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// What jemalloc is told before `main`. Left alone it makes an arena for each thread, up to four a processor: two are
/// 0.6 MB less at rest (`docs/decisions/allocator.md`).
#[expect(unsafe_code, reason = "jemalloc looks for this name: nothing else has it")]
#[unsafe(export_name = "malloc_conf")]
static ALLOCATOR_SETTINGS: &[u8] = b"narenas:2\0";

fn main() -> Exit {
    // A panic is a broken invariant of our own: the message is printed by the hook, the code says it to the supervisor.
    std::panic::catch_unwind(|| cli::main(std::env::args_os(), &config::process_variable))
        .unwrap_or(Exit::Bug)
}
