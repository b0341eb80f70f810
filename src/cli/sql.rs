//! `postrider sql`: prints, installs and removes the SQL toolkit: event logs, consumer groups, inboxes and table
//! outboxes.
//!
//! The database is that of `--url`, or that of the pipeline's event logs, or its source. `--print` needs neither a
//! database nor a configuration.

use super::error::{CliError, Exit};
use super::{Output, folded, groups};
use crate::config::{Config, Env};
use crate::postgres::control::Control;
use crate::postgres::toolkit::{
    self, Installed, NewInstallation, RemovalPlan, RoleKind, ToolkitFacts, ToolkitRole,
    ToolkitVersion, files, script, state, uninstall,
};
use clap::ArgGroup;
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::io::{self, BufRead as _, IsTerminal as _};

/// `application_name` of the session.
const APPLICATION_NAME: &str = "postrider sql";

/// `postrider sql`
#[derive(clap::Args, Debug)]
#[command(group = ArgGroup::new("action").required(true))]
#[command(
    after_help = "The tables and functions are in schema postrider, the events of logs in schema postrider_log, the \
                  messages of inboxes in schema postrider_inbox, the events of tables in schema postrider_outbox. \
                  An installation is one transaction, and can be \
                  repeated at any time: it creates what is missing and writes all functions again. It needs CREATE on \
                  the database, and no superuser."
)]
#[expect(clippy::struct_excessive_bools, reason = "options of the command line")]
pub struct SqlArgs {
    /// Print the SQL of an installation, for psql; needs no database
    #[arg(long, group = "action")]
    pub print: bool,
    /// Install the toolkit, or update it
    #[arg(long, group = "action")]
    pub install: bool,
    /// Remove the toolkit with all its logs, consumer groups, inboxes and outboxes, after printing what will be lost
    #[arg(long, group = "action")]
    pub uninstall: bool,
    /// Show which version this program installs, which one the database has, and the roles that use it
    #[arg(long, group = "action")]
    pub version: bool,
    /// Log in with this URL [default: the database of the pipeline's sink, else its source]
    #[arg(long, value_name = "URL", conflicts_with = "print")]
    pub url: Option<String>,
    /// A role that writes logs, and does the maintenance of logs and inboxes; repeatable
    #[arg(long, value_name = "ROLE", conflicts_with_all = ["uninstall", "version"])]
    pub relay: Vec<String>,
    /// A role that creates, drops and moves consumer groups, and creates inboxes and outboxes; repeatable
    #[arg(long, value_name = "ROLE", conflicts_with_all = ["uninstall", "version"])]
    pub administrator: Vec<String>,
    /// A role that polls and commits in consumer groups, and uses the inbox; repeatable
    #[arg(long, value_name = "ROLE", conflicts_with_all = ["uninstall", "version"])]
    pub worker: Vec<String>,
    /// A role that reads logs and the state of consumer groups and inboxes; repeatable
    #[arg(long, value_name = "ROLE", conflicts_with_all = ["uninstall", "version"])]
    pub reader: Vec<String>,
    /// With --uninstall: do not ask for confirmation
    #[arg(long, requires = "uninstall")]
    pub yes: bool,
    /// With --version: print JSON
    #[arg(long, requires = "version")]
    pub json: bool,
}

impl SqlArgs {
    /// The database is that of the configuration.
    pub(super) const fn needs_config(&self) -> bool {
        !self.print && self.url.is_none()
    }

    /// The roles that are to have rights, in the order of the kinds.
    fn roles(&self) -> Vec<ToolkitRole> {
        let of = |kind: RoleKind| match kind {
            RoleKind::Relay => &self.relay,
            RoleKind::Administrator => &self.administrator,
            RoleKind::Worker => &self.worker,
            RoleKind::Reader => &self.reader,
        };
        let roles = RoleKind::ALL.into_iter().flat_map(|kind| {
            of(kind).iter().map(move |name| ToolkitRole { kind, name: name.clone() })
        });
        roles.collect()
    }
}

/// `config`: the configuration, if [`SqlArgs::needs_config`].
pub(super) async fn run(
    args: &SqlArgs,
    config: Option<&Config>,
    env: Env<'_>,
) -> Result<Exit, CliError> {
    if args.print {
        let text = script::script(&args.roles());
        Output::stdout().line(text.trim_end()).map_err(CliError::Output)?;
        return Ok(Exit::Done);
    }
    let conninfo = groups::database(config, args.url.as_deref(), env)?;
    let control = Control::connect(&conninfo, APPLICATION_NAME).await?;
    let text = if args.install {
        let new = NewInstallation { roles: &args.roles(), takes_over: args.url.is_some() };
        of_installed(&toolkit::install(&control, &new).await?)
    } else if args.version {
        of_version(&state::read(control.client()).await?, args.json)
    } else {
        return remove(&control, args).await;
    };
    Output::stdout().line(&text).map_err(CliError::Output)?;
    Ok(Exit::Done)
}

/// What was installed, the roles with their kinds, and what is left to do.
fn of_installed(done: &Installed) -> String {
    let (database, now) = (&done.database, files::VERSION);
    let mut text = match done.before {
        ToolkitVersion::Missing => {
            format!("installed version {now} of the SQL toolkit in database {database:?}")
        }
        ToolkitVersion::Version(before) if before < now => format!(
            "updated the SQL toolkit in database {database:?} from version {before} to version {now}"
        ),
        ToolkitVersion::Version(_) => format!(
            "database {database:?} has version {now} of the SQL toolkit already; its functions were written again"
        ),
    };
    let mut line = |text_of: &str| {
        // Writing to a String does not fail.
        write!(text, "\n{text_of}").unwrap_or_default();
    };
    if let Some(taken) = &done.taken {
        line(&format!("done: {taken}"));
    }
    for role in &done.roles {
        line(&format!("  {:<13}  {:?}", role.kind.name(), role.name));
    }
    if done.roles.is_empty() {
        line(&folded(
            "  ",
            "no role except the owner has rights on it; run this again with --relay ROLE, --administrator ROLE, \
             --worker ROLE, --reader ROLE",
        ));
    }
    for log in &done.closed {
        let owner = log.owner.as_deref().unwrap_or_default();
        let call = crate::postgres::names::literal(&log.name);
        line(&format!(
            "  log {:?} belongs to role {owner:?}. That role lets the others read it:\n    sql  SELECT \
             postrider.log_grant({call});",
            log.name
        ));
    }
    for inbox in &done.closed_inboxes {
        let owner = inbox.owner.as_deref().unwrap_or_default();
        let call = crate::postgres::names::literal(&inbox.name);
        line(&format!(
            "  inbox {:?} belongs to role {owner:?}. That role lets the others use it:\n    sql  SELECT \
             postrider.inbox_grant({call});",
            inbox.name
        ));
    }
    for outbox in &done.closed_outboxes {
        let owner = outbox.owner.as_deref().unwrap_or_default();
        let call = crate::postgres::names::literal(&outbox.name);
        line(&format!(
            "  outbox {:?} belongs to role {owner:?}. That role lets the others use it:\n    sql  SELECT \
             postrider.outbox_grant({call});",
            outbox.name
        ));
    }
    text
}

/// The versions of program and database.
fn of_version(facts: &ToolkitFacts, is_json: bool) -> String {
    if is_json {
        return format!("{:#}", version_json(facts));
    }
    let mut text = format!(
        "postrider {} installs version {} of the SQL toolkit\n",
        env!("CARGO_PKG_VERSION"),
        files::VERSION
    );
    let database = &facts.database;
    let has = match facts.version {
        ToolkitVersion::Missing => format!("database {database:?} does not have it"),
        ToolkitVersion::Version(number) if number < files::VERSION => format!(
            "database {database:?} has version {number}; to update it: postrider sql --install --url ADMIN_URL"
        ),
        ToolkitVersion::Version(number) if number > files::VERSION => {
            format!("database {database:?} has version {number}, of a later release")
        }
        ToolkitVersion::Version(number) => format!("database {database:?} has version {number}"),
    };
    text.push_str(&has);
    for role in &facts.roles {
        write!(text, "\n  {:<13}  {:?}", role.kind.name(), role.name).unwrap_or_default();
    }
    text
}

fn version_json(facts: &ToolkitFacts) -> Value {
    let roles: Vec<Value> = facts
        .roles
        .iter()
        .map(|role| json!({ "role": role.name, "kind": role.kind.name() }))
        .collect();
    let version = match facts.version {
        ToolkitVersion::Missing => None,
        ToolkitVersion::Version(number) => Some(number),
    };
    json!({
        "installs": files::VERSION,
        "database": facts.database,
        "version": version,
        "roles": roles,
    })
}

/// `--uninstall`: prints what is lost, asks, and removes the toolkit.
async fn remove(control: &Control, args: &SqlArgs) -> Result<Exit, CliError> {
    let plan = uninstall::plan(control).await?;
    let mut out = Output::stdout();
    let database = &plan.database;
    if plan.sql.is_empty() {
        let text =
            format!("database {database:?} does not have the SQL toolkit: nothing to remove");
        out.line(&text).map_err(CliError::Output)?;
        return Ok(Exit::Done);
    }
    out.line(&of_plan(&plan)).map_err(CliError::Output)?;
    if !args.yes && !agreed(database)? {
        out.line("nothing was changed").map_err(CliError::Output)?;
        return Ok(Exit::Done);
    }
    uninstall::uninstall(control, &plan).await?;
    let text = format!("removed the SQL toolkit from database {database:?}");
    out.line(&text).map_err(CliError::Output)?;
    Ok(Exit::Done)
}

fn of_plan(plan: &RemovalPlan) -> String {
    let mut lines = vec![format!("removes the SQL toolkit from database {:?}", plan.database)];
    if plan.lost.is_empty() {
        lines.push("  lost   no event: there is no log".to_owned());
    }
    lines.extend(plan.lost.iter().map(|lost| folded("  lost   ", lost)));
    lines.extend(plan.stays.iter().map(|stays| folded("  stays  ", stays)));
    lines.join("\n")
}

/// Asks for confirmation. Without a terminal nothing is dropped unless `--yes` was given.
fn agreed(database: &str) -> Result<bool, CliError> {
    let input = io::stdin();
    if !input.is_terminal() {
        return Err(CliError::UninstallNotAgreed);
    }
    Output::stderr()
        .line_or_ignore(&format!("Remove the SQL toolkit from {database:?}? Type yes:"));
    let mut answer = String::new();
    input.lock().read_line(&mut answer).map_err(CliError::Input)?;
    Ok(answer.trim() == "yes")
}
