//! Sets a pipeline up: creates what is missing, and adopts existing objects if they are suitable.
//!
//! Owns the order of the steps, which keeps the first events: the publication is committed before the slot is created,
//! because WAL is decoded with the publication of its own time; the cursor row is created by the statement that creates
//! the slot, with the slot's own position. [`plan`] is pure and prints as SQL for a DBA; [`apply`] runs the same text,
//! step by step.
//!
//! Setup drops nothing ([`undo`] does, after it has printed what will be lost). No slot is created if a cursor row
//! shows that there was one: that is a gap, and only an operator may accept it.

pub(crate) mod apply;
pub(crate) mod plan;
mod rights;
#[cfg(test)]
mod tests;
pub mod undo;

pub use apply::{
    Blocker, PartialSetup, RefusedStep, SetupError, SetupProgress, SlotOutcome, apply, drop_slot,
    recreate_slot, retained_wal,
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
use super::retention::RetentionRule;

/// The steps of a setup, in order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SetupPlan {
    /// Steps for what is missing, each with its SQL.
    pub steps: Vec<Step>,
    /// Existing objects that are suitable, one line each.
    pub adopted: Vec<String>,
}

/// One step: statements that psql can run too, as a transaction of its own.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Step {
    /// What it creates.
    pub kind: StepKind,
    /// Kind and name of the object: `create publication "postrider_orders"`.
    pub title: String,
    /// Why the step is needed, and why at this point: a sentence or two.
    pub why: &'static str,
    /// The statements.
    pub sql: String,
}

/// What a step creates.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StepKind {
    /// The outbox table.
    Table,
    /// The publication.
    Publication,
    /// The ownership of Postrider's schema: only the role that runs the steps can add code to it.
    Ownership,
    /// Postrider's schema, or its next migrations.
    Schema,
    /// The slot, and the cursor row with its position.
    Slot,
    /// The cursor row for an existing slot.
    Cursor,
    /// The trigger that wakes a polling relay.
    Notify,
    /// Rights of the relay's role on the database and on schema `postrider`.
    Rights,
    /// Rights of the relay's role on the application's tables.
    TableRights,
    /// What retention needs: rights on tables, and membership in their owners. A transaction of its own, as the next.
    Retention,
    /// The right to replicate. A transaction of its own: if it is refused, the other rights are kept.
    Replication,
}

impl StepKind {
    /// Whether `earlier` must be done before this step.
    const fn needs(self, earlier: Self) -> bool {
        match self {
            Self::Table | Self::Ownership | Self::Replication => false,
            Self::Schema => matches!(earlier, Self::Ownership),
            Self::Publication | Self::TableRights | Self::Retention | Self::Notify => {
                matches!(earlier, Self::Table)
            }
            Self::Rights | Self::Cursor => matches!(earlier, Self::Schema | Self::Ownership),
            Self::Slot => {
                matches!(earlier, Self::Table | Self::Publication | Self::Schema | Self::Ownership)
            }
        }
    }

    /// A step whose success is read from the catalog; if it is refused, the other steps continue.
    const fn gives_rights(self) -> bool {
        matches!(self, Self::Rights | Self::TableRights | Self::Retention | Self::Replication)
    }
}

/// Options of the operator.
#[expect(clippy::struct_excessive_bools, reason = "options of the command line")]
#[derive(Clone, Copy, Debug, Default)]
pub struct Options<'a> {
    /// `--create-table`: the layout's SQL, already with the table's name in it. It may name the table without its
    /// schema.
    pub create_table: Option<&'a str>,
    /// The role that the relay will run as, if it is another one than the role that runs the steps: it is given what it
    /// needs.
    pub role: Option<&'a str>,
    /// `--notify`: the trigger that wakes a polling relay.
    pub notify: bool,
    /// Only the ownership of schema `postrider`: the other steps are determined afterwards.
    pub ownership_alone: bool,
    /// `mode = "poll"`: neither publication nor slot.
    pub polls: bool,
    /// `--backfill`: the slot is created with its snapshot, by [`backfill`], after these steps.
    pub backfill: bool,
    /// How rows of the table get their status: by polling, or after streaming.
    pub marks: Option<&'a PollSpec>,
    /// The command line of this setup, for the commands that it prints.
    pub call: Option<&'a SetupCommand>,
    /// That role does not exist: no step is begun ([`role_exists`]).
    pub role_missing: bool,
    /// The rights that the role already has; without them every right is granted.
    pub rights: Option<&'a RightsFacts>,
    /// `[pipelines.NAME.retention]`, whose rights the role is given.
    pub retention: Option<&'a RetentionRule>,
}

/// The command line of this setup, to be printed with another login.
#[derive(Clone, Debug)]
pub struct SetupCommand {
    /// `postrider setup -p orders --create-table`, without `--url`.
    pub command: String,
    /// The login, whose hosts, database and TLS settings another login shares; `None`: placeholders are printed.
    pub login: Option<Conninfo>,
}

impl SetupCommand {
    /// The same command with the login of `user`, without a password.
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
/// An error of the server or of the connection.
pub async fn role_exists(control: &Control, role: &str) -> Result<bool, SourceError> {
    let failed = |e| SourceError::control("check whether the role exists", e);
    let sql = "SELECT EXISTS (SELECT FROM pg_catalog.pg_roles WHERE rolname = $1)";
    let row = control.client().query_one(sql, &[&role]).await.map_err(failed)?;
    row.try_get(0).map_err(failed)
}

/// The statements that create the role; the password is a placeholder.
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

/// How long setup waits for a lock: it never delays the application for longer.
const LOCK_TIMEOUT: &str = "5s";

/// Statements as a transaction of their own, with a limit on waiting for locks. psql runs them too, in sessions where
/// the schemas of the `search_path` may contain functions and operators of others.
fn transaction(sql: &str) -> String {
    let sql = sql.trim_end();
    // On a line of its own: the text may end with a comment.
    let end = if sql.ends_with(';') { "" } else { "\n;" };
    format!(
        "BEGIN;\nSET LOCAL lock_timeout = '{LOCK_TIMEOUT}';\nSET LOCAL search_path = '';\n{sql}{end}\nCOMMIT;"
    )
}
