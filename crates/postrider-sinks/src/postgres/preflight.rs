//! `postrider check` for event logs: whether the database can be reached, has the toolkit, and lets the pipeline write.

use super::problem::{LogProblem, Step};
use super::session::Session;
use super::spec::PostgresSpec;
use crate::worker_thread;
use pg_replication::conninfo::HostAddress;
use pg_replication::{Conninfo, SourceError};
use postrider_core::finding::{Finding, shell_word};

/// The findings about the database, and about the logs that are known before the first event.
pub(super) fn check(spec: &PostgresSpec, logs: &[String]) -> Vec<Finding> {
    answered(|| findings(spec, logs))
}

/// Creates the logs that do not exist.
pub(super) fn create(spec: &PostgresSpec, logs: &[String]) -> Vec<Finding> {
    answered(|| created(spec, logs))
}

/// Asks the server; a finding if there is no answer.
fn answered<A: Future<Output = Result<Vec<Finding>, SourceError>>>(
    question: impl FnOnce() -> A + Send,
) -> Vec<Finding> {
    let failed = |why: String| vec![Finding::error("log_database", why)];
    match worker_thread::ask(question) {
        Ok(Ok(findings)) => findings,
        Ok(Err(error)) => failed(error.to_string()),
        Err(unanswered) => failed(format!("the server of the event logs: {unanswered}")),
    }
}

async fn findings(spec: &PostgresSpec, logs: &[String]) -> Result<Vec<Finding>, SourceError> {
    let (place, database) = (spec.conninfo.hosts(), spec.conninfo.dbname());
    let name = format!("postrider {} check", spec.writer);
    let mut session = match Session::connect(&spec.conninfo, &name).await {
        Ok(session) => session,
        Err(error) => {
            let LogProblem { reason, hint, .. } = LogProblem::of(Step::Connect, &error, spec);
            let why = format!(
                "nothing is published until it can be reached; {}",
                hint.unwrap_or_default()
            );
            return Ok(vec![Finding::error("log_database", reason).why(why)]);
        }
    };
    let facts = session.facts().await?;
    let mut out = Vec::new();
    if facts.encoding != "UTF8" {
        let what = format!("database {database:?} has encoding {}", facts.encoding);
        out.push(
            Finding::error("log_encoding", what)
                .why("event logs need encoding UTF8: every text can be stored"),
        );
    }
    if facts.read_only {
        let what = format!("{place}/{database} accepts no writes");
        out.push(Finding::error("log_read_only", what).why(
            "it is a standby, or default_transaction_read_only is set: nothing is published. Let sink.postgres.url \
             name the primary, with target_session_attrs=read-write if there are several hosts",
        ));
    }
    if !facts.toolkit {
        let what =
            format!("the SQL toolkit of this version is not installed in {place}/{database}");
        let install = Finding::error("log_toolkit", what).why("there are no event logs without it");
        out.push(install.shell(install_command(spec)));
        return Ok(out);
    }
    if let Some(lacks) = facts.lacks {
        let user = spec.conninfo.user();
        let what = format!("role {user:?} lacks a right in database {database:?}: {lacks}");
        let finding = Finding::error("log_rights", what).why("nothing can be appended");
        out.push(finding.shell(install_command(spec)));
    }
    for log in logs {
        out.push(of_log(&mut session, spec, log).await?);
    }
    if out.iter().all(|finding| finding.id == "log") {
        let what = format!(
            "connected to the event logs at {place}/{database}, PostgreSQL {}, toolkit and rights OK",
            facts.version
        );
        out.insert(0, Finding::ok("log_database", what));
    }
    Ok(out)
}

async fn of_log(
    session: &mut Session,
    spec: &PostgresSpec,
    log: &str,
) -> Result<Finding, SourceError> {
    let Some(found) = session.find_log(log).await? else {
        return Ok(match &spec.create {
            Some(create) => Finding::ok(
                "log",
                format!(
                    "event log {log:?} does not exist, and is created with its first event: {} partitions, {} events \
                     in each child, by {}",
                    create.partitions,
                    create.rows_per_child,
                    create.kind.name()
                ),
            ),
            None => Finding::error("log_missing", format!("event log {log:?} does not exist"))
                .why("its events are parked until it exists; sink.postgres.create creates logs automatically")
                .shell(create_log(&spec.conninfo, log)),
        });
    };
    if let Some(other) = found.writer.filter(|writer| *writer != spec.writer) {
        let what = format!("event log {log:?} is written by {other:?}");
        return Ok(Finding::error("log_writer", what).why(
            "a log has one writer, and its events would be parked: give this pipeline another log by route.topic",
        ));
    }
    if let Some(owner) = found.other_owner {
        let user = spec.conninfo.user();
        let what = format!("the table of event log {log:?} belongs to role {owner:?}");
        return Ok(Finding::error("log_owner", what)
            .why(format!(
                "role {user:?} can't create its children. The statements need a superuser, or a role that is a member \
                 of both roles"
            ))
            .sql(session.owner_statements(log).await?.join("\n")));
    }
    let (kind, partitions, events) = (found.kind, found.partitions, found.last_seq);
    let what =
        format!("event log {log:?}: by {kind}, {partitions} partitions, {events} events so far");
    Ok(Finding::ok("log", what))
}

async fn created(spec: &PostgresSpec, logs: &[String]) -> Result<Vec<Finding>, SourceError> {
    let Some(create) = &spec.create else { return Ok(Vec::new()) };
    let name = format!("postrider {} setup", spec.writer);
    let mut session = Session::connect(&spec.conninfo, &name).await?;
    let mut out = Vec::new();
    for log in logs {
        if session.find_log(log).await?.is_some() {
            continue;
        }
        out.push(match session.create_log(log, create).await {
            Ok(()) => Finding::ok("log", format!("event log {log:?} created")),
            Err(error) => {
                let LogProblem { reason, hint, .. } = LogProblem::of(Step::Log, &error, spec);
                Finding::error("log_missing", reason).why(hint.unwrap_or_default())
            }
        });
    }
    Ok(out)
}

/// The command that installs the toolkit, or gives the sink's role its rights. `ADMIN` is an administrator's login.
fn install_command(spec: &PostgresSpec) -> String {
    let (user, database) = (spec.conninfo.user(), spec.conninfo.dbname());
    let host = match spec.conninfo.host_list().first().map(|host| (&host.address, host.port)) {
        Some((HostAddress::Net { name, .. }, port)) => format!("host={name} port={port}"),
        Some((HostAddress::Socket(directory), port)) => format!("host={directory} port={port}"),
        None => String::new(),
    };
    format!("postrider sql --install --url \"{host} dbname={database} user=ADMIN\" --relay {user}")
}

/// The command that creates a log as the sink's role, which must own its tables.
pub(super) fn create_log(conninfo: &Conninfo, log: &str) -> String {
    let statement = format!("SELECT postrider.create_log('{}')", log.replace('\'', "''"));
    let (user, database) = (conninfo.user(), conninfo.dbname());
    let at = conninfo.host_list().first().map_or_else(String::new, |host| {
        let name = match &host.address {
            HostAddress::Socket(directory) => directory.clone(),
            HostAddress::Net { name, .. } => name.clone(),
        };
        format!("host={name} port={} ", host.port)
    });
    // The name of a log may be data of the application: route.topic = "{aggregate_type}".
    let at = format!("{at}user={user} dbname={database}");
    format!("psql {} -c {}", shell_word(&at), shell_word(&statement))
}
