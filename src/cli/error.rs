//! Why a command could not do what it was told.

use super::exit::Exit;
use crate::config::ConfigError;
use crate::demo::DemoError;
use crate::error::Chain;
use std::io;
use std::net::SocketAddr;

/// What ends a command before or instead of its result.
#[derive(Debug, thiserror::Error)]
pub(super) enum CliError {
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error("the configuration has no pipeline \"{name}\"; it has {}", .known.join(", "))]
    Pipeline { name: String, known: Vec<String> },
    #[error("\"{filter}\" is not a log filter")]
    Log {
        filter: String,
        #[source]
        source: tracing_subscriber::filter::ParseError,
    },
    #[error("could not start the runtime")]
    Runtime(#[source] io::Error),
    #[error("admin.listen is \"\": a process without an endpoint can't be asked")]
    AdminOff,
    #[error("could not ask http://{address}/status")]
    Ask {
        address: SocketAddr,
        #[source]
        source: io::Error,
    },
    #[error("what answers at http://{0}/status is not Postrider")]
    Stranger(SocketAddr),
    #[error(transparent)]
    Demo(#[from] DemoError),
    #[error("could not write to standard output")]
    Output(#[source] io::Error),
}

impl CliError {
    pub(super) fn exit(&self) -> Exit {
        match self {
            Self::Config(_) | Self::Pipeline { .. } | Self::Log { .. } | Self::AdminOff => {
                Exit::Usage
            }
            Self::Runtime(_)
            | Self::Ask { .. }
            | Self::Stranger(_)
            | Self::Demo(_)
            | Self::Output(_) => Exit::NotWell,
        }
    }

    /// What is printed: the chain of causes and what mends it; each mistake of a configuration on its own line.
    pub(super) fn report(&self) -> String {
        if let Self::Config(ConfigError::Invalid(findings)) = self {
            let count = findings.list.len();
            let mistakes =
                if count == 1 { "1 mistake".to_owned() } else { format!("{count} mistakes") };
            return format!("{findings}\npostrider: {mistakes} in {}", findings.file);
        }
        let mut text = format!("postrider: {}", Chain(self));
        if let Some(hint) = self.hint() {
            text.push_str("\n  hint: ");
            text.push_str(hint);
        }
        text
    }

    fn hint(&self) -> Option<&'static str> {
        match self {
            Self::Log { .. } => {
                Some("write a level such as debug, or a filter such as info,postrider=debug")
            }
            Self::AdminOff => Some("give admin.listen an address, and restart postrider run"),
            Self::Ask { .. } => Some("is postrider run running, with this configuration?"),
            Self::Stranger(_) => Some("give admin.listen a port of its own"),
            Self::Demo(error) => error.hint(),
            Self::Config(_) | Self::Pipeline { .. } | Self::Runtime(_) | Self::Output(_) => None,
        }
    }
}
