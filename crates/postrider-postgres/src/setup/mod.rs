//! Sets a pipeline up: what is missing is made, what stands is adopted if it fits.
//!
//! Owns the order, which is what keeps the first events: the publication is committed before the slot is made, since
//! WAL is decoded with the publication of its own time; the cursor row is made by the statement that makes the slot,
//! with the slot's own position. [`plan`] is pure and prints as SQL for a DBA; [`apply`] runs the same text, step by
//! step.
//!
//! Setting up drops nothing ([`undo`] does, and says what is lost first). No slot is made where a cursor says that one
//! was: that is a gap, and a human's to accept.

pub(crate) mod apply;
pub(crate) mod plan;
mod rights;
#[cfg(test)]
mod tests;
pub mod undo;

pub use apply::{
    Blocker, Partial, Progress, Refused, Renewed, SetupError, apply, held, let_go, renew,
};
pub(super) use plan::notify_function_sql;
pub use plan::{
    Backfilled, ROWS_COUNTED_MAX, TRIGGER, backfill, check_backfill, notify_sql, notify_undo_sql,
    plan, rows,
};
pub use rights::{RightsFacts, ServerKind, insert_grants, read_rights};
pub use undo::UndoPlan;

use super::conninfo::Conninfo;
use super::control::Control;
use super::error::SourceError;
use super::names::ident;
use super::poll::PollSpec;
use super::preflight::login_uri;

/// What is to be done, in order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SetupPlan {
    /// What is missing, each with its SQL.
    pub steps: Vec<Step>,
    /// What stands already and fits, one line each.
    pub adopted: Vec<String>,
}

/// One step: a text of statements that psql runs as well, a transaction of its own.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Step {
    /// What it makes.
    pub kind: StepKind,
    /// The same with the object's name: `create publication "postrider_orders"`.
    pub title: String,
    /// Why, and why now: a sentence or two.
    pub why: &'static str,
    /// The statements.
    pub sql: String,
}

/// What a step makes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StepKind {
    /// The outbox table.
    Table,
    /// The publication.
    Publication,
    /// Who owns Postrider's schema: nobody but the role that runs the steps adds code to it.
    Ownership,
    /// Postrider's schema, or the next numbers of it.
    Schema,
    /// The slot, and the cursor row with its position.
    Slot,
    /// The cursor row of a slot that stands already.
    Cursor,
    /// The trigger that wakes a polling relay.
    Notify,
    /// Rights of the relay's role on the database and on schema `postrider`.
    Rights,
    /// Rights of the relay's role on the application's tables.
    TableRights,
    /// The right to replicate. A transaction of its own: where it is refused, the other rights stay given.
    Replication,
}

impl StepKind {
    /// The step that has to be done before this one.
    const fn needs(self, earlier: Self) -> bool {
        match self {
            Self::Table | Self::Ownership | Self::Replication => false,
            Self::Schema => matches!(earlier, Self::Ownership),
            Self::Publication | Self::TableRights | Self::Notify => matches!(earlier, Self::Table),
            Self::Rights | Self::Cursor => matches!(earlier, Self::Schema | Self::Ownership),
            Self::Slot => {
                matches!(earlier, Self::Table | Self::Publication | Self::Schema | Self::Ownership)
            }
        }
    }

    /// A step whose success is read from the catalog; where it is refused the others go on.
    const fn gives_rights(self) -> bool {
        matches!(self, Self::Rights | Self::TableRights | Self::Replication)
    }
}

/// What the operator asked for beside the facts.
#[expect(clippy::struct_excessive_bools, reason = "options of the command line")]
#[derive(Clone, Copy, Debug, Default)]
pub struct Options<'a> {
    /// `--create-table`: the layout's SQL, already with the table's name in it. It may name the table without its
    /// schema.
    pub create_table: Option<&'a str>,
    /// The role the relay will run as, where it is not the one that runs the steps: it is given what it needs.
    pub role: Option<&'a str>,
    /// `--notify`: the trigger that wakes a polling relay.
    pub notify: bool,
    /// Nothing but who owns schema `postrider`: what the other steps are is read afterwards.
    pub ownership_alone: bool,
    /// `mode = "poll"`: neither publication nor slot.
    pub polls: bool,
    /// `--backfill`: the slot is made with its snapshot, by [`backfill`], after these steps.
    pub backfill: bool,
    /// Rows of the table are marked as this says: by polling, or behind the stream.
    pub marks: Option<&'a PollSpec>,
    /// How setup was called: what the lines that it prints call again.
    pub call: Option<&'a Call>,
    /// That role does not exist: nothing is begun ([`role_exists`]).
    pub role_missing: bool,
    /// What that role may do already; without it every right is given.
    pub rights: Option<&'a RightsFacts>,
}

/// The command line of this setup, to be printed with another login.
#[derive(Clone, Debug)]
pub struct Call {
    /// `postrider setup -p orders --create-table`, without `--url`.
    pub command: String,
    /// The login, whose hosts, database and TLS another one shares; `None`: the reader fills them in.
    pub login: Option<Conninfo>,
}

impl Call {
    /// The same command by the login of `user`. It has no password in it.
    pub fn by(&self, user: &str) -> String {
        let url = match &self.login {
            Some(login) => login_uri(login, user),
            None => format!("postgresql://{user}@HOST/DATABASE"),
        };
        format!("{} --url '{url}'", self.command)
    }
}

/// Whether the server has the role.
///
/// # Errors
/// What the server says.
pub async fn role_exists(control: &Control, role: &str) -> Result<bool, SourceError> {
    let failed = |e| SourceError::control("look for the role", e);
    let sql = "SELECT EXISTS (SELECT FROM pg_catalog.pg_roles WHERE rolname = $1)";
    let row = control.client().query_one(sql, &[&role]).await.map_err(failed)?;
    row.try_get(0).map_err(failed)
}

/// The statements that make the role; the password is for the reader to fill in.
pub fn role_sql(role: &str, polls: bool, kind: ServerKind) -> String {
    match (polls, kind) {
        (true, _) => format!("CREATE ROLE {} LOGIN PASSWORD '…';", ident(role)),
        (false, ServerKind::Rds) => {
            format!("CREATE ROLE {} LOGIN PASSWORD '…'; {}", ident(role), kind.replicate(role))
        }
        (false, ServerKind::Own | ServerKind::CloudSql | ServerKind::Azure) => {
            format!("CREATE ROLE {} LOGIN REPLICATION PASSWORD '…';", ident(role))
        }
    }
}

/// Locks are waited for this long: setup never queues in front of the application for longer.
const LOCK_TIMEOUT: &str = "5s";

/// Statements as a transaction of their own, with a bound on waiting for locks. psql runs them too, where the schemas
/// of its `search_path` may have functions and operators of others.
fn transaction(sql: &str) -> String {
    let sql = sql.trim_end();
    // On a line of its own: the text may end with a comment.
    let end = if sql.ends_with(';') { "" } else { "\n;" };
    format!(
        "BEGIN;\nSET LOCAL lock_timeout = '{LOCK_TIMEOUT}';\nSET LOCAL search_path = '';\n{sql}{end}\nCOMMIT;"
    )
}
