//! Why the SQL toolkit was not installed or removed. Nothing was changed: each of the two is one transaction.

use super::files::VERSION;
use crate::schema_owner::UntrustedSchema;
use pg_replication::error::SourceError;

/// Why the toolkit was not installed or removed.
#[derive(Debug, thiserror::Error)]
pub enum ToolkitError {
    /// The database has a later version.
    #[error(
        "database \"{database}\" has version {found} of the SQL toolkit, and this program has {}",
        VERSION
    )]
    Newer {
        /// The database.
        database: String,
        /// Its version.
        found: u32,
    },
    /// Another role could run code with the rights of this session.
    #[error("{}", .0.words())]
    Untrusted(Box<UntrustedSchema>),
    /// The session's role lacks a right.
    #[error("could not {doing}")]
    Denied {
        /// What was refused.
        doing: &'static str,
        /// The server's error.
        #[source]
        error: SourceError,
        /// What allows it, a line for each alternative.
        lines: Vec<String>,
    },
    /// A role that is to have rights does not exist.
    #[error("role \"{role}\" does not exist")]
    NoRole {
        /// The role.
        role: String,
    },
    /// A statement failed.
    #[error("could not {doing}")]
    Failed {
        /// What failed.
        doing: &'static str,
        /// The server's error.
        #[source]
        error: SourceError,
    },
    /// The state could not be read.
    #[error(transparent)]
    Source(#[from] SourceError),
}

impl ToolkitError {
    /// What fixes it, a line for each alternative or step; none where the server's own hint has to do.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Newer { .. } => Some(
                "use a release of Postrider that installs this version of the toolkit or a later one: postrider sql \
                 --version shows which version a release installs"
                    .to_owned(),
            ),
            Self::Untrusted(schema) => Some(of_untrusted(schema)),
            Self::Denied { lines, .. } => Some(lines.join("\n")),
            Self::NoRole { role } => {
                Some(format!("create it first: CREATE ROLE {} LOGIN;", crate::names::ident(role)))
            }
            // The server's own hint would be DROP … CASCADE.
            Self::Failed { error, .. }
                if error.sqlstate().is_some_and(|state| state.as_str() == "2BP01") =>
            {
                Some(
                    "nothing was removed. Drop or change the objects that the error names, which are not the \
                     toolkit's; then run it again"
                        .to_owned(),
                )
            }
            Self::Failed { .. } | Self::Source(_) => None,
        }
    }
}

fn of_untrusted(schema: &UntrustedSchema) -> String {
    if schema.foreign.is_empty() {
        return "run it as that role; or as a superuser, or as the owner of the database: postrider sql --install takes \
                the schema over"
            .to_owned();
    }
    let lines: Vec<&str> = schema.removals().collect();
    let remove = if lines.is_empty() {
        "Remove them".to_owned()
    } else {
        format!("To remove them, as a superuser or as their owner: {}", lines.join(" "))
    };
    format!(
        "if a later version of postrider has upgraded the schema, use that version. Otherwise find out who made them. \
         {remove} Then run the same command again"
    )
}
