//! The command.

use postrider::cli::{self, Exit};
use postrider::config::env;

/// librdkafka frees on other threads than it allocates; the system's allocator pays for that.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> Exit {
    // A panic is a broken invariant of our own: the message is printed by the hook, the code says it to the supervisor.
    std::panic::catch_unwind(|| cli::main(std::env::args_os(), &env::process)).unwrap_or(Exit::Bug)
}
