//! Installs the toolkit, or updates it: runs the script as the role of the session.

use super::error::ToolkitError;
use super::roles::ToolkitRole;
use super::script::{NEWER, script};
use super::state::{
    self, InstalledInbox, InstalledLog, InstalledOutbox, ToolkitFacts, ToolkitVersion,
};
use crate::control::Control;
use crate::names::ident;
use crate::schema_owner::{self, SessionRights, UNTRUSTED, UntrustedSchema};
use pg_replication::error::{SourceError, SqlState};
use std::collections::BTreeSet;

/// What is to be installed.
#[derive(Clone, Debug)]
pub struct NewInstallation<'a> {
    /// The roles that are to have rights, beside those that have them already.
    pub roles: &'a [ToolkitRole],
    /// The schema may be taken over from another role that owns it: an administrator has given another login than the
    /// relay's.
    pub takes_over: bool,
}

/// What an installation did.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Installed {
    /// The database.
    pub database: String,
    /// The version before.
    pub before: ToolkitVersion,
    /// Which ownership was taken over, if any.
    pub taken: Option<String>,
    /// Every role that has rights now.
    pub roles: Vec<ToolkitRole>,
    /// Logs whose tables some of the roles may not read yet: only the table's owner can grant that.
    pub closed: Vec<InstalledLog>,
    /// Inboxes, the same.
    pub closed_inboxes: Vec<InstalledInbox>,
    /// Table outboxes, the same.
    pub closed_outboxes: Vec<InstalledOutbox>,
}

/// Installs or updates the toolkit.
///
/// Roles that have rights of a kind keep it, and get those of new functions too.
///
/// # Errors
/// Why it was not installed. Nothing was changed, apart from an ownership that was taken over.
pub async fn install(
    control: &Control,
    new: &NewInstallation<'_>,
) -> Result<Installed, ToolkitError> {
    let client = control.client();
    let taken = match schema_owner::read(client, SessionRights::Administrator).await? {
        None => None,
        Some(found) if found.foreign.is_empty() && new.takes_over => {
            Some(take_over(control, found).await?)
        }
        Some(found) => return Err(ToolkitError::Untrusted(Box::new(found))),
    };
    let facts = state::read(client).await?;
    if facts.version.is_newer() {
        let (database, found) = (facts.database, facts.version.number());
        return Err(ToolkitError::Newer { database, found });
    }
    missing_role(control, new.roles).await?;
    let roles: BTreeSet<ToolkitRole> = facts.roles.iter().chain(new.roles).cloned().collect();
    let roles: Vec<ToolkitRole> = roles.into_iter().collect();
    if let Err(error) = run(control, &script(&roles)).await {
        return Err(refused(control, &facts, error).await);
    }
    let closed = state::logs(client).await?.into_iter().filter(|log| log.is_closed).collect();
    let closed_inboxes =
        state::inboxes(client).await?.into_iter().filter(|inbox| inbox.is_closed).collect();
    let closed_outboxes =
        state::outboxes(client).await?.into_iter().filter(|outbox| outbox.is_closed).collect();
    let (database, before) = (facts.database, facts.version);
    Ok(Installed { database, before, taken, roles, closed, closed_inboxes, closed_outboxes })
}

/// Takes the schema from the roles that own it, and returns what was done.
async fn take_over(control: &Control, found: UntrustedSchema) -> Result<String, ToolkitError> {
    const DOING: &str = "take over schema \"postrider\"";
    let failed = |e| SourceError::control("read the version of the server", e);
    let sql = "SELECT pg_catalog.current_setting('server_version_num')::pg_catalog.int4";
    let row = control.client().query_one(sql, &[]).await.map_err(failed)?;
    let version: i32 = row.try_get(0).map_err(failed)?;
    let version = version.cast_unsigned();
    let sql = format!("BEGIN;\nSET LOCAL search_path = '';\n{}COMMIT;", found.sql(None, version));
    let Err(error) = run(control, &sql).await else { return Ok(found.title()) };
    if error.sqlstate() == Some(SqlState::INSUFFICIENT_PRIVILEGE) {
        let facts = state::read(control.client()).await?;
        let lines = found.remedies(&facts.role, &facts.database, facts.creates, version);
        return Err(ToolkitError::Denied { doing: DOING, error, lines });
    }
    Err(ToolkitError::Failed { doing: DOING, error })
}

/// An error if one of the roles does not exist.
async fn missing_role(control: &Control, roles: &[ToolkitRole]) -> Result<(), ToolkitError> {
    let failed = |e| SourceError::control("look for the roles", e);
    let names: Vec<&str> = roles.iter().map(|role| role.name.as_str()).collect();
    let sql = "SELECT w.name FROM pg_catalog.unnest($1::pg_catalog.text[]) w(name) \
               WHERE NOT EXISTS (SELECT FROM pg_catalog.pg_roles r WHERE r.rolname::pg_catalog.text = w.name) LIMIT 1";
    match control.client().query_opt(sql, &[&names]).await.map_err(failed)? {
        None => Ok(()),
        Some(row) => Err(ToolkitError::NoRole { role: row.try_get(0).map_err(failed)? }),
    }
}

/// Why the script was refused.
async fn refused(control: &Control, facts: &ToolkitFacts, error: SourceError) -> ToolkitError {
    const DOING: &str = "install the SQL toolkit";
    match error.sqlstate() {
        Some(state) if state.as_str() == UNTRUSTED => {
            // Objects that were created after the schema was read: they are read again, to be named.
            match schema_owner::read(control.client(), SessionRights::Administrator).await {
                Ok(Some(found)) => ToolkitError::Untrusted(Box::new(found)),
                Ok(None) | Err(_) => ToolkitError::Failed { doing: DOING, error },
            }
        }
        Some(state) if state.as_str() == NEWER => {
            let found = state::read_version(control.client()).await;
            let found = found.map_or(0, ToolkitVersion::number);
            ToolkitError::Newer { database: facts.database.clone(), found }
        }
        Some(SqlState::INSUFFICIENT_PRIVILEGE) => {
            let lines = vec![if facts.creates {
                "run it as the role that owns schema \"postrider\", or as a superuser".to_owned()
            } else {
                format!(
                    "as the owner of the database or a superuser: GRANT CREATE ON DATABASE {} TO {};",
                    ident(&facts.database),
                    ident(&facts.role)
                )
            }];
            ToolkitError::Denied { doing: DOING, error, lines }
        }
        Some(_) | None => ToolkitError::Failed { doing: DOING, error },
    }
}

/// Runs statements that begin and end a transaction.
pub(super) async fn run(control: &Control, sql: &str) -> Result<(), SourceError> {
    let Err(error) = control.client().batch_execute(sql).await else { return Ok(()) };
    // The session is in a failed transaction; if the rollback does not work, the next statement fails.
    drop(control.client().batch_execute("ROLLBACK").await);
    Err(SourceError::control("run its statements", error))
}
