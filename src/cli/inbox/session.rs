//! The session of `postrider inbox`: in the database of `--url`, else in that of the table `[inboxes.NAME]` that stores
//! in the inbox, else in the source of the pipeline.

use super::error::{InboxCommandError, InboxStatement};
use crate::cli::bookmark::the_one;
use crate::cli::error::{CliError, printable};
use crate::config::{Config, Env};
use crate::intake::IntakeSpec;
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

/// Where a command looks for the database.
pub(crate) struct InboxDatabase<'a> {
    /// The configuration, unless `--url` is given.
    pub(crate) config: Option<&'a Config>,
    /// `--url`
    pub(crate) url: Option<&'a str>,
    /// `-p` has chosen the pipeline whose source it is.
    pub(crate) is_of_pipeline: bool,
}

impl InboxDatabase<'_> {
    /// The database, for the inbox that the command names.
    fn conninfo(&self, inbox: Option<&str>, env: Env<'_>) -> Result<Conninfo, CliError> {
        let config = match (self.url, self.config) {
            (Some(url), _) => return Ok(Conninfo::parse(url, env)?),
            (None, Some(config)) => config,
            (None, None) => return Err(CliError::WhichInboxDatabase { tables: Vec::new() }),
        };
        if self.is_of_pipeline {
            return Ok(the_one(config)?.conninfo.clone());
        }
        let tables = of_inbox(config, inbox);
        match (tables.split_first(), inbox) {
            (Some((first, more)), _) => {
                let is_same =
                    |it: &&IntakeSpec| it.inbox.conninfo.is_same_database(&first.inbox.conninfo);
                if more.iter().all(is_same) {
                    return Ok(first.inbox.conninfo.clone());
                }
                let tables = tables.iter().map(|table| format!("[inboxes.{}]", table.name));
                Err(CliError::WhichInboxDatabase { tables: tables.collect() })
            }
            (None, Some(inbox)) if config.specs.is_empty() => {
                let known = config.inboxes.iter().map(|table| table.inbox.clone()).collect();
                Err(CliError::NoInboxDatabase { inbox: printable(inbox), known })
            }
            (None, _) => Ok(the_one(config)?.conninfo.clone()),
        }
    }
}

/// The tables `[inboxes.NAME]` that store in an inbox, or else the one of this name. Without an inbox: all of them,
/// unless a pipeline has a database too.
fn of_inbox<'a>(config: &'a Config, inbox: Option<&str>) -> Vec<&'a IntakeSpec> {
    let tables = || config.inboxes.iter().filter_map(|table| table.spec.as_ref());
    let Some(inbox) = inbox else {
        return tables().filter(|_| config.specs.is_empty()).collect();
    };
    let storing: Vec<_> = tables().filter(|table| table.inbox.inbox == inbox).collect();
    if storing.is_empty() {
        return tables().filter(|table| table.name == inbox).collect();
    }
    storing
}

impl InboxSession {
    /// `inbox`: the one that the command names.
    pub(super) async fn open(
        database: &InboxDatabase<'_>,
        inbox: Option<&str>,
        env: Env<'_>,
    ) -> Result<Self, CliError> {
        let conninfo = database.conninfo(inbox, env)?;
        Ok(Self { control: Control::connect(&conninfo, APPLICATION_NAME).await? })
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
