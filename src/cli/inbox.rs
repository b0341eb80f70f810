//! `postrider inbox`: the inboxes of a service: run, list, create, status, dead, replay,
//! skip, purge, gaps, skip-gap, seek, drop.
//!
//! The functions of the SQL toolkit do the work, in the database of the service that has the inbox. A command after
//! which messages are lost, or effects happen again, says how many before it asks.

mod args;
mod create;
pub(super) mod error;
mod look;
mod messages;
#[cfg(feature = "kafka")]
pub(super) mod run;
#[cfg(feature = "kafka")]
pub(super) mod seek;
mod session;

pub use args::{
    AdoptTableArgs, CreateInboxArgs, DeadArgs, DropInboxArgs, GapsArgs, InboxArgs, InboxCommand,
    InboxOrderArg, InboxRuleArgs, InboxStatusArgs, ListInboxesArgs, PurgeArgs, ReplayInboxArgs,
    SkipGapArgs, SkipInboxArgs, StoredInboxCommand,
};
#[cfg(feature = "kafka")]
pub use args::{IntakeCommand, SeekInboxArgs, SeekOffset};
#[cfg(feature = "kafka")]
pub use run::RunInboxArgs;

use super::error::{CliError, Exit};
use crate::config::Env;
pub(super) use session::InboxDatabase;
use session::InboxSession;

/// Runs the command.
pub(super) async fn run(
    database: &InboxDatabase<'_>,
    command: &StoredInboxCommand,
    env: Env<'_>,
) -> Result<Exit, CliError> {
    if let StoredInboxCommand::Create(new) = command
        && new.print_sql
    {
        return create::print_sql(new);
    }
    let session = InboxSession::open(database, command.inbox(), env).await?;
    match command {
        StoredInboxCommand::List(list) => look::list(&session, list).await,
        StoredInboxCommand::Create(new) => create::create(&session, new).await,
        StoredInboxCommand::Status(status) => look::status(&session, status).await,
        StoredInboxCommand::Dead(dead) => look::dead(&session, dead).await,
        StoredInboxCommand::Replay(replay) => messages::replay(&session, replay).await,
        StoredInboxCommand::Skip(skip) => messages::skip(&session, skip).await,
        StoredInboxCommand::Purge(purge) => messages::purge(&session, purge).await,
        StoredInboxCommand::Gaps(gaps) => look::gaps(&session, gaps).await,
        StoredInboxCommand::SkipGap(skip) => messages::skip_gap(&session, skip).await,
        StoredInboxCommand::Drop(drop) => create::drop(&session, drop).await,
    }
}

/// Refuses `--url` and `-p`, which other commands have, for one that concerns an intake: its table names the database.
#[cfg(feature = "kafka")]
pub(super) fn refuse_flags(
    command: &IntakeCommand,
    has_url: bool,
    has_pipeline: bool,
) -> Result<(), CliError> {
    let flag = match (has_url, has_pipeline) {
        (true, _) => "--url",
        (false, true) => "--pipeline",
        (false, false) => return Ok(()),
    };
    let (command, intake) = match command {
        IntakeCommand::Run(_) => ("run", "NAME".to_owned()),
        IntakeCommand::Seek(seek) => ("seek", seek.name.clone()),
    };
    Err(CliError::IntakeHasDatabase { command, intake, flag })
}
