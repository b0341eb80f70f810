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
    SkipGapArgs, SkipInboxArgs,
};
#[cfg(feature = "kafka")]
pub use args::{SeekInboxArgs, SeekOffset};
#[cfg(feature = "kafka")]
pub use run::RunInboxArgs;

use super::error::{CliError, Exit};
use crate::config::{Config, Env};
use session::InboxSession;

/// Runs the command. `config`: if [`InboxArgs::needs_config`].
pub(super) async fn run(
    config: Option<&Config>,
    args: &InboxArgs,
    env: Env<'_>,
) -> Result<Exit, CliError> {
    if let InboxCommand::Create(new) = &args.command
        && new.print_sql
    {
        return create::print_sql(new);
    }
    let session = InboxSession::open(config, args.url.as_deref(), env).await?;
    match &args.command {
        InboxCommand::List(list) => look::list(&session, list).await,
        InboxCommand::Create(new) => create::create(&session, new).await,
        InboxCommand::Status(status) => look::status(&session, status).await,
        InboxCommand::Dead(dead) => look::dead(&session, dead).await,
        InboxCommand::Replay(replay) => messages::replay(&session, replay).await,
        InboxCommand::Skip(skip) => messages::skip(&session, skip).await,
        InboxCommand::Purge(purge) => messages::purge(&session, purge).await,
        InboxCommand::Gaps(gaps) => look::gaps(&session, gaps).await,
        InboxCommand::SkipGap(skip) => messages::skip_gap(&session, skip).await,
        // They have the database of an intake, and no session here.
        #[cfg(feature = "kafka")]
        InboxCommand::Run(_) | InboxCommand::Seek(_) => Ok(Exit::Done),
        InboxCommand::Drop(drop) => create::drop(&session, drop).await,
    }
}
