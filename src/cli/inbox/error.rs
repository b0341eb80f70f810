//! The errors of `postrider inbox`, and their hints: an error of the server is classified by its SQLSTATE and
//! by the statement that failed.

use crate::health::grouped;
use crate::postgres::names::literal;
use crate::postgres::store::inboxes::InboxFacts;
use crate::postgres::{SourceError, SqlState};

/// What a statement of this command is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum InboxStatement {
    /// Reads the list of inboxes: without the toolkit it fails.
    List,
    /// Reads an inbox.
    Look,
    /// Creates an inbox.
    Create,
    /// Changes messages.
    Change,
    /// Skips messages.
    Skip,
    /// Deletes messages.
    Purge,
    /// Drops an inbox.
    Drop,
}

/// An error that ends `postrider inbox` without its result.
#[derive(Debug, thiserror::Error)]
pub(crate) enum InboxCommandError {
    #[error("there is no inbox \"{name}\"; there are {known}")]
    NoInbox { name: String, known: String },
    #[error("the database has no inboxes of this version")]
    NotInstalled(#[source] SourceError),
    #[error("the role of this login has no right to do this with inboxes")]
    NoRight {
        hint: String,
        #[source]
        source: SourceError,
    },
    #[error("the table {table} of inbox \"{inbox}\" does not exist")]
    TableIsGone { inbox: String, table: String },
    #[error("the inbox was not created: its schema or table does not exist")]
    NoSuchObject(#[source] SourceError),
    #[error(
        "inbox {command} asks for confirmation, but standard input is not a terminal: nothing was changed"
    )]
    NeedsYes { command: &'static str },
    #[error("inbox \"{inbox}\" is a table of yours, {table}, which has no {lacks}")]
    Adopted { inbox: String, table: String, lacks: &'static str },
    #[error("inbox \"{inbox}\" is a table of yours, {table}: {command} is not for it")]
    NotManaged { inbox: String, table: String, command: &'static str },
    #[error("another transaction uses the messages")]
    Busy(#[source] SourceError),
    #[error("one of the ids cannot be an id of inbox \"{inbox}\", whose ids are of type {id_type}")]
    NotAnId {
        inbox: String,
        id_type: String,
        #[source]
        source: SourceError,
    },
    #[error("a message is not the next one of its aggregate: nothing was changed")]
    NotNext(#[source] SourceError),
    #[error("the inbox has more messages by now, {pending} pending and {dead} dead: nothing was changed",
        pending = grouped(*.pending), dead = grouped(*.dead))]
    Grown { pending: u64, dead: u64 },
    #[error("inbox \"{inbox}\": {progress} before this error")]
    Partly {
        inbox: String,
        progress: String,
        #[source]
        source: Box<InboxCommandError>,
    },
    #[error("--first-sequence is for --order sequence: nothing was changed")]
    FirstSequence,
    #[error("intake \"{intake}\" does not read Kafka: it has no partitions")]
    NoPartitions { intake: String },
    #[error("the intake has stored no offset of partition {partition} of topic \"{topic}\"")]
    NoOffset { topic: String, partition: i32 },
    #[error(
        "offset {at} is not in the log, which has offsets {low} to {high}: nothing was changed"
    )]
    OutOfRange { at: i64, low: i64, high: i64 },
    #[error("the offset was changed meanwhile: nothing was changed")]
    OffsetMoved,
    #[error("could not ask the brokers {brokers}: {error}")]
    Broker { brokers: String, error: String },
    #[error(transparent)]
    Server(SourceError),
}

impl InboxCommandError {
    /// The error of a statement. `inbox`: the one that it is about, if it was read before.
    pub(super) fn of(
        error: SourceError,
        statement: InboxStatement,
        inbox: Option<&InboxFacts>,
    ) -> Self {
        let Some(state) = error.sqlstate() else { return Self::Server(error) };
        if state == SqlState::INSUFFICIENT_PRIVILEGE {
            return Self::NoRight { hint: right(statement, inbox), source: error };
        }
        match (state.as_str(), statement, inbox) {
            ("42883", _, _) | ("3F000" | "42P01" | "42703", InboxStatement::List, _) => {
                Self::NotInstalled(error)
            }
            ("3F000" | "42P01", InboxStatement::Create, _) => Self::NoSuchObject(error),
            ("3F000" | "42P01", _, Some(inbox)) => Self::gone(inbox),
            ("55P03" | "40P01" | "40001", _, _) => Self::Busy(error),
            ("PR114", InboxStatement::Skip, _) => Self::NotNext(error),
            ("22P02" | "22003" | "22007" | "22008", _, Some(inbox)) => Self::NotAnId {
                inbox: inbox.name.clone(),
                id_type: inbox.table.id_type.clone().unwrap_or_default(),
                source: error,
            },
            _ => Self::Server(error),
        }
    }

    pub(super) fn gone(inbox: &InboxFacts) -> Self {
        Self::TableIsGone { inbox: inbox.name.clone(), table: inbox.table.name.to_string() }
    }

    /// Wrong usage: nothing was changed.
    pub(crate) fn is_usage(&self) -> bool {
        match self {
            Self::NeedsYes { .. }
            | Self::Adopted { .. }
            | Self::NotManaged { .. }
            | Self::FirstSequence
            | Self::OutOfRange { .. }
            | Self::NoPartitions { .. }
            | Self::NotAnId { .. } => true,
            Self::Server(error) => error.sqlstate().is_some_and(|s| s.as_str() == "22023"),
            Self::NoInbox { .. }
            | Self::NotInstalled(_)
            | Self::NoRight { .. }
            | Self::TableIsGone { .. }
            | Self::NoSuchObject(_)
            | Self::Busy(_)
            | Self::NotNext(_)
            | Self::Grown { .. }
            | Self::NoOffset { .. }
            | Self::OffsetMoved
            | Self::Broker { .. }
            | Self::Partly { .. } => false,
        }
    }

    /// The error of the server whose own detail and hint are to be printed.
    pub(crate) fn server(&self) -> Option<&SourceError> {
        match self {
            Self::Server(error) => Some(error),
            Self::Partly { source, .. } => source.server(),
            Self::NoInbox { .. }
            | Self::NotInstalled(_)
            | Self::NoRight { .. }
            | Self::TableIsGone { .. }
            | Self::NoSuchObject(_)
            | Self::NeedsYes { .. }
            | Self::Adopted { .. }
            | Self::NotManaged { .. }
            | Self::FirstSequence
            | Self::Busy(_)
            | Self::NotAnId { .. }
            | Self::NotNext(_)
            | Self::NoOffset { .. }
            | Self::NoPartitions { .. }
            | Self::OutOfRange { .. }
            | Self::OffsetMoved
            | Self::Broker { .. }
            | Self::Grown { .. } => None,
        }
    }

    /// What fixes it; `None`: the server says it.
    pub(crate) fn hint(&self) -> Option<String> {
        let text = match self {
            Self::NoInbox { .. } => "create it: postrider inbox create NAME",
            Self::NotInstalled(_) => {
                "name the database of the service that has the inbox with --url; or, if this is the database, install \
                 the SQL toolkit in it, or update it, with the login of an administrator: postrider sql --install \
                 --url ADMIN_URL --administrator ROLE"
            }
            Self::NoRight { hint, .. } => return Some(hint.clone()),
            Self::TableIsGone { inbox, .. } => {
                return Some(format!(
                    "restore the table, with its messages; or, if they are not needed, remove the inbox: postrider \
                     inbox drop {inbox}"
                ));
            }
            Self::NoSuchObject(_) => {
                "name a schema that exists with --schema; name a table with its schema, as in SQL: --adopt \
                 public.webhook"
            }
            Self::NeedsYes { .. } => {
                "read above which messages are affected, and run it again with --yes"
            }
            Self::Adopted { .. } => "ask the table itself, in SQL",
            Self::NotManaged { .. } => "change its rows in SQL: its own workers process them",
            Self::FirstSequence => "leave it out: by arrival there are no numbers",
            Self::Busy(_) => {
                "run the command again; pg_blocking_pids() shows what a session waits for"
            }
            Self::NotAnId { .. } => "postrider inbox dead NAME lists ids",
            Self::NotNext(_) => {
                "an inbox with an order goes on message by message: skip the earlier messages of the aggregate in the \
                 same command, or the missing numbers before it with postrider inbox skip-gap"
            }
            Self::Grown { .. } | Self::OffsetMoved => {
                "run the command again, and read what it says"
            }
            Self::NoPartitions { .. } => "name a table [inboxes.NAME] with source.kind = \"kafka\"",
            Self::NoOffset { .. } => {
                "correct --topic and --partition; an intake stores the first offset when it begins to read a partition"
            }
            Self::OutOfRange { .. } => "give an offset in this range, or earliest, or latest",
            Self::Broker { .. } => "check `brokers`, `source.properties` and the network",
            Self::Partly { source, .. } => {
                let rest = "the command can be repeated: it goes on with the rest";
                return Some(
                    source.hint().map_or(rest.to_owned(), |hint| format!("{hint}\n{rest}")),
                );
            }
            Self::Server(_) => return None,
        };
        Some(text.to_owned())
    }
}

/// What gives a role the right for a statement.
fn right(statement: InboxStatement, inbox: Option<&InboxFacts>) -> String {
    let kind = match statement {
        InboxStatement::List | InboxStatement::Look => "reader",
        InboxStatement::Create
        | InboxStatement::Change
        | InboxStatement::Skip
        | InboxStatement::Purge
        | InboxStatement::Drop => "administrator",
    };
    let mut text = format!(
        "give the role its rights, with the login of an administrator: postrider sql --install --url ADMIN_URL \
         --{kind} ROLE; or name another login with --url"
    );
    let Some(inbox) = inbox else { return text };
    let owner = inbox.table.owner.as_deref().unwrap_or("its owner");
    let further = match statement {
        InboxStatement::Drop => format!(
            "an inbox can be dropped only by the owner of its table and views, and by members of that role; the table \
             belongs to role {owner:?}"
        ),
        InboxStatement::List | InboxStatement::Create => return text,
        InboxStatement::Look
        | InboxStatement::Change
        | InboxStatement::Skip
        | InboxStatement::Purge
            if inbox.is_managed =>
        {
            format!(
                "a role that has its rights for less long than the inbox exists gets those of its table from role \
                 {owner:?}: SELECT postrider.inbox_grant({});",
                literal(&inbox.name)
            )
        }
        InboxStatement::Look => grant("SELECT", inbox, owner),
        InboxStatement::Change | InboxStatement::Skip => grant("SELECT, UPDATE", inbox, owner),
        InboxStatement::Purge => grant("SELECT, UPDATE, DELETE", inbox, owner),
    };
    text.push('\n');
    text.push_str(&further);
    text
}

fn grant(rights: &str, inbox: &InboxFacts, owner: &str) -> String {
    format!(
        "and the rights on your table, as role {owner:?}: GRANT {rights} ON TABLE {} TO ROLE;",
        inbox.table.name
    )
}
