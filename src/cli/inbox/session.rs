//! The session of `postrider inbox`: in the database of `--url`, else in the source of the pipeline.

use super::error::{InboxCommandError, InboxStatement};
use crate::cli::bookmark::the_one;
use crate::cli::error::{CliError, printable};
use crate::config::{Config, Env};
use crate::postgres::control::Control;
use crate::postgres::store::inboxes::{self, InboxFacts};
use crate::postgres::{Conninfo, SourceError};
use tokio_postgres::Client;

/// `application_name` of the session.
const APPLICATION_NAME: &str = "postrider inbox";

/// The most inboxes that are read.
pub(super) const INBOXES_MAX: usize = 10_000;

/// The most inboxes that an error names.
const NAMED_MAX: usize = 20;

/// The session.
pub(super) struct InboxSession {
    control: Control,
}

impl InboxSession {
    pub(super) async fn open(
        config: Option<&Config>,
        url: Option<&str>,
        env: Env<'_>,
    ) -> Result<Self, CliError> {
        let database = match (url, config) {
            (Some(url), _) => Conninfo::parse(url, env)?,
            (None, Some(config)) => the_one(config)?.conninfo.clone(),
            (None, None) => return Err(CliError::WhichPipeline { known: Vec::new() }),
        };
        Ok(Self { control: Control::connect(&database, APPLICATION_NAME).await? })
    }

    pub(super) fn client(&self) -> &Client {
        self.control.client()
    }

    /// The inbox of this name, if there is one.
    pub(super) async fn look_for(&self, name: &str) -> Result<Option<InboxFacts>, CliError> {
        let found = inboxes::find(self.client(), name).await;
        found.map_err(|error| InboxCommandError::of(error, InboxStatement::List, None).into())
    }

    /// The inbox of this name.
    pub(super) async fn find(&self, name: &str) -> Result<InboxFacts, CliError> {
        if let Some(inbox) = self.look_for(name).await? {
            return Ok(inbox);
        }
        let (all, more) = self.list(NAMED_MAX).await?;
        let mut known: Vec<_> = all.iter().map(|inbox| printable(&inbox.name)).collect();
        if more {
            known.push("others".to_owned());
        }
        let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
        Err(InboxCommandError::NoInbox { name: printable(name), known }.into())
    }

    /// The inbox of this name, whose table exists.
    pub(super) async fn find_with_table(&self, name: &str) -> Result<InboxFacts, CliError> {
        let inbox = self.find(name).await?;
        match inbox.table.id_type {
            Some(_) => Ok(inbox),
            None => Err(InboxCommandError::gone(&inbox).into()),
        }
    }

    /// The inboxes by name, at most `max`, and whether there are more.
    pub(super) async fn list(&self, max: usize) -> Result<(Vec<InboxFacts>, bool), CliError> {
        let all = inboxes::list(self.client(), max).await;
        all.map_err(|error| InboxCommandError::of(error, InboxStatement::List, None).into())
    }
}

/// Classifies the errors of a statement about an inbox.
pub(super) fn failed(
    statement: InboxStatement,
    inbox: &InboxFacts,
) -> impl Fn(SourceError) -> CliError + Copy + '_ {
    move |error| InboxCommandError::of(error, statement, Some(inbox)).into()
}
