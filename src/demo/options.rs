//! The options of a demo.

use super::kind::DemoSink;
use std::path::PathBuf;
use std::time::Duration;

/// The options of a demo.
#[derive(Clone, Debug)]
pub struct DemoOptions {
    /// The user's database, instead of a temporary one. May contain a password.
    pub url: Option<String>,
    /// Where events are published to.
    pub sink: DemoSink,
    /// `bootstrap.servers` of the user's broker, instead of the mock.
    pub brokers: Option<String>,
    /// Where to write the ledger to, for `postrider verify`. The topic is then not deleted.
    pub ledger: Option<PathBuf>,
    /// How long events are written; `None`: until Ctrl-C.
    pub limit: Option<Duration>,
    /// How many times the relay is killed.
    pub kills: u32,
    /// Inject failures into relay, broker and database in turn.
    pub chaos: bool,
    /// Events per second.
    pub rate: u32,
    /// Whether standard output is a terminal, which has the live screen.
    pub is_terminal: bool,
    /// Whether to use colours.
    pub color: bool,
    /// The path of this program.
    pub executable: PathBuf,
}
