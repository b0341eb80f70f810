//! The errors of `postrider retain` and `postrider partition`, and what fixes them.

/// An error of these commands, beside those of the server.
#[derive(Debug, thiserror::Error)]
pub(super) enum RetentionError {
    #[error("no pipeline of the configuration {file} has retention")]
    Off { file: String },
    #[error("the outbox is not partitioned: {why}")]
    Refused { why: String, hint: String },
    #[error(
        "partition asks for confirmation, but standard input is not a terminal: nothing was changed"
    )]
    NeedsYes,
}

impl RetentionError {
    /// What fixes it.
    pub(super) fn hint(&self) -> &str {
        match self {
            Self::Off { .. } => {
                "set how long rows are kept: [pipelines.NAME.retention] keep = \"7d\""
            }
            Self::Refused { hint, .. } => hint,
            Self::NeedsYes => "read the steps above, and run it again with --yes",
        }
    }

    /// Whether the command was called wrongly.
    pub(super) const fn is_usage(&self) -> bool {
        match self {
            Self::Off { .. } | Self::NeedsYes => true,
            Self::Refused { .. } => false,
        }
    }
}
