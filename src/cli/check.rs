//! `postrider check`: checks file, database and broker for problems, and prints the lines that fix each.
//!
//! Findings about the servers come from `postgres::preflight` and `sink::preflight`. This module adds those that follow
//! from the file, the layout and the table's columns.

mod columns;
mod edit;
mod intake;
mod retention;

use super::Output;
use super::args::{CheckArgs, Global};
use super::error::{CliError, Exit};
use crate::config::{Config, Env, PipelineConfig};
use crate::error::Chain;
use crate::finding::{Finding, Fix, FixKind, Severity};
use crate::outbox;
use crate::pipeline::{
    LeftBehind, Mode, PipelineSpec, Settings, compare_settings, left_behind, polls_now,
};
use crate::postgres::control::{Control, FactsQuery};
use crate::postgres::preflight::{self, TopicPart};
use crate::postgres::schema::{self, SchemaState};
use crate::postgres::schema_owner::SessionRights;
use crate::postgres::{Conninfo, SourceError};
use crate::sink::Purpose;
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::io::IsTerminal as _;
use std::sync::Arc;

/// The findings of one pipeline, or of one intake.
pub(super) struct Report {
    /// `pipeline` or `intake`: the field of the JSON with the name.
    kind: &'static str,
    /// The name, as a pipeline's, or `inboxes.NAME`.
    name: String,
    /// Source and destination, for people.
    route: String,
    pub(super) findings: Vec<Finding>,
}

pub(super) async fn run(
    config: &Config,
    global: &Global,
    args: &CheckArgs,
    env: Env<'_>,
) -> Result<Exit, CliError> {
    let login = args.url.as_deref().map(|url| Conninfo::parse(url, env)).transpose()?;
    let reports = reports(config, global, args.offline, login).await;
    print(config, global, args.json, env, &reports)
}

/// The findings of each pipeline, in the order of the configuration, and of each intake. With `offline` only those of
/// the file.
pub(super) async fn reports(
    config: &Config,
    global: &Global,
    offline: bool,
    login: Option<Conninfo>,
) -> Vec<Report> {
    // If the file cannot be read again, the lines are printed with the whole paths of their keys.
    let mut text = std::fs::read_to_string(&config.file).unwrap_or_default();
    let mut reports = Vec::new();
    for (pipeline, spec) in config.pipelines.iter().zip(&config.specs) {
        let mut findings = file_findings(config, pipeline, spec);
        if !offline {
            check_servers(pipeline, spec, login.as_ref(), &mut findings).await;
            // With the login of an administrator the rights of the relay's role are not known.
            if login.is_none() {
                retention::check(spec, &mut findings).await;
            }
        }
        for finding in &mut findings {
            name_the_file(finding, global);
            for fix in finding.fix.iter_mut().filter(|fix| fix.kind == FixKind::Config) {
                edit::fit(fix, &mut text);
            }
        }
        let route = format!("{} → {}", spec.conninfo.hosts(), spec.common.sink.place());
        reports.push(Report { kind: "pipeline", name: spec.name().to_owned(), route, findings });
    }
    // `-p` selects a pipeline alone. An intake is checked with its own login, whose rights are in question.
    let intakes = config.inboxes.iter().filter(|_| global.pipeline.is_none());
    for intake in intakes {
        let Some(spec) = &intake.spec else { continue };
        let name = format!("inboxes.{}", intake.name);
        let mut findings = of_warnings(config, &format!("{name}."));
        if findings.is_empty() {
            findings.push(Finding::ok("file", format!("{} has no mistakes", config.file)));
        }
        if !offline {
            intake::check(spec, &mut findings).await;
        }
        for finding in &mut findings {
            name_the_file(finding, global);
        }
        let route = format!("{} → {}", intake::place(spec), spec.inbox.conninfo.hosts());
        reports.push(Report { kind: "intake", name, route, findings });
    }
    reports
}

/// Prints the findings. The exit status is that of the worst one.
pub(super) fn print(
    config: &Config,
    global: &Global,
    as_json: bool,
    env: Env<'_>,
    reports: &[Report],
) -> Result<Exit, CliError> {
    let is_terminal = std::io::stdout().is_terminal();
    let text = if as_json {
        render_json(reports)
    } else {
        render_table(reports, &config.file, is_terminal, global.color(env, is_terminal))
    };
    Output::stdout().line(&text).map_err(CliError::Output)?;
    let worst = reports.iter().flat_map(|report| &report.findings).map(|f| f.severity).max();
    Ok(if worst == Some(Severity::Error) { Exit::Problems } else { Exit::Done })
}

/// Checks the database, then the broker: the topics to check come from rows in the database.
async fn check_servers(
    pipeline: &PipelineConfig,
    spec: &PipelineSpec,
    login: Option<&Conninfo>,
    findings: &mut Vec<Finding>,
) {
    let columns = spec.columns();
    let parts: Option<Vec<TopicPart>> =
        spec.common.outbox.topic_parts().map(|parts| parts.into_iter().map(part).collect());
    let ask = preflight::PreflightQuery {
        names: &spec.names,
        conninfo: &spec.conninfo,
        login,
        columns: &columns,
        streams: spec.common.mode != Mode::Poll,
        poll: spec.marks(),
        polls: spec.common.mode != Mode::Wal,
        reads: spec.poll.table.as_ref(),
        messages: spec.messages(),
        failover: spec.failover,
        bookmarks_retain_max: spec.bookmarks_retain_max,
        topic: parts.as_deref(),
    };
    let mut seen = preflight::run(&ask).await;
    if let Some(table) = &seen.table {
        let of_columns =
            columns::findings(pipeline, spec, table, seen.published.as_deref(), seen.version);
        // Behind the findings of the table, before those of the publication, which depend on it.
        let at = seen.findings.iter().position(|finding| finding.id.starts_with("publication"));
        let at = at.unwrap_or(seen.findings.len());
        seen.findings.splice(at..at, of_columns);
    }
    if let Some(halt) = seen.encoding.and_then(|of| spec.messages_encoding(&of).err()) {
        let finding = Finding::error("message_encoding", halt.message).why(format!(
            "Postrider could not read any logical message ({}): {}",
            halt.reason.code(),
            halt.hint
        ));
        seen.findings.push(finding);
    }
    findings.append(&mut seen.findings);
    check_broker(spec, seen.topics, findings).await;
    let mut of_changes = changes(spec, login, findings).await;
    findings.append(&mut of_changes);
}

/// Checks the broker, and the topics to which rows of the outbox table are published.
async fn check_broker(
    spec: &PipelineSpec,
    topics: Option<Vec<String>>,
    findings: &mut Vec<Finding>,
) {
    let capabilities = spec.common.sink.capabilities();
    if !capabilities.remote {
        return;
    }
    let promises = format!("{}: {}", spec.common.sink.kind(), capabilities.words());
    findings.push(Finding::ok("sink", promises));
    let of_rows = topics.map(|topics| spec.common.outbox.replaced(topics));
    let of_captured = Some(spec.captured_topics()).filter(|topics| !topics.is_empty());
    let constant = spec.common.outbox.constant_topic().map(|topic| vec![topic]);
    let topics = constant.or(of_captured).or(of_rows);
    if topics.as_ref().is_none_or(Vec::is_empty) {
        let why = if topics.is_some() {
            "the outbox table has no rows"
        } else {
            "the rows of the outbox table could not be read"
        };
        let by = if spec.common.outbox.replace.is_some() {
            "route.topic and route.replace"
        } else {
            "route.topic"
        };
        findings.push(
            Finding::info(
                "topics",
                format!("no topic was checked: {by} takes the topic from each row, and {why}"),
            )
            .why(if spec.common.sink.creates() {
                "sink.create_topics creates each topic with its first event, even if a field is misspelt"
            } else {
                "create the topics before the first events: events of a missing topic wait until it exists"
            }),
        );
    }
    let (sink, needs) = (Arc::clone(&spec.common.sink), spec.needs(Purpose::Live));
    let topics = topics.unwrap_or_default();
    let keyed = !spec.common.outbox.key.is_empty();
    let asked = tokio::task::spawn_blocking(move || sink.preflight(&needs, &topics, keyed)).await;
    // The task does not panic and is not aborted.
    let mut asked = asked.unwrap_or_default();
    for finding in &mut asked {
        name_the_pipeline(finding, spec.name());
    }
    findings.append(&mut asked);
}

fn part(part: outbox::TopicPart) -> TopicPart {
    match part {
        outbox::TopicPart::Text(text) => TopicPart::Text(text),
        outbox::TopicPart::Columns(columns) => TopicPart::Columns(columns),
    }
}

/// Adds `-p` to the `postrider` commands of a sink's finding: a sink does not know the name of its pipeline, without
/// which the command is refused if the file has several pipelines.
fn name_the_pipeline(finding: &mut Finding, pipeline: &str) {
    for fix in finding.fix.iter_mut().filter(|fix| fix.kind == FixKind::Shell) {
        if fix.line.starts_with("postrider ") && !fix.line.contains(" -p ") {
            fix.line = format!("{} -p {pipeline}", fix.line);
        }
    }
}

/// Adds the `-c` of this command to the `postrider` commands that a finding prints.
pub(super) fn name_the_file(finding: &mut Finding, global: &Global) {
    let Some(file) = &global.config else { return };
    for fix in finding.fix.iter_mut().filter(|fix| fix.kind == FixKind::Shell) {
        if let Some(rest) = fix.line.strip_prefix("postrider ") {
            let file = file.display().to_string().replace('\'', "'\\''");
            fix.line = format!("postrider -c '{file}' {rest}");
        }
    }
}

/// `application_name` of the session.
const APPLICATION_NAME: &str = "postrider check";

/// Makes the session read-only, in addition to the settings of every control session.
const READ_ONLY: &str = "SET default_transaction_read_only = on; SET lock_timeout = '2s'";

/// What a changed configuration means for the next start, as `run` would report it. `found`: the findings so far, which
/// decide whether the database and the broker can be queried.
async fn changes(spec: &PipelineSpec, login: Option<&Conninfo>, found: &[Finding]) -> Vec<Finding> {
    let has = |id: &str| found.iter().any(|finding| finding.id == id);
    if has("standby") {
        return Vec::new();
    }
    // A query to a broker that does not answer takes half a minute, so the earlier finding is used.
    let answers = has("broker");
    // The reason why a session cannot be opened is a finding already.
    let Ok(control) = Control::connect(login.unwrap_or(&spec.conninfo), APPLICATION_NAME).await
    else {
        return Vec::new();
    };
    let acting = match login {
        Some(login) if login.user() != spec.conninfo.user() => SessionRights::Administrator,
        Some(_) | None => SessionRights::OwnLogin,
    };
    match changes_of(spec, &control, acting, answers).await {
        Ok(findings) => findings,
        Err(error) => vec![
            Finding::warning("changes_unread", Chain(&error).to_string()).why(
                "it is not known whether the configuration was changed since the pipeline reached its position; \
                 postrider run checks this before it publishes",
            ),
        ],
    }
}

async fn changes_of(
    spec: &PipelineSpec,
    control: &Control,
    acting: SessionRights,
    answers: bool,
) -> Result<Vec<Finding>, SourceError> {
    let client = control.client();
    let pinned = client.batch_execute(READ_ONLY).await;
    pinned.map_err(|e| SourceError::control("set the session to read only", e))?;
    let state = schema::read(client, acting).await;
    // A schema that is missing, older or unreadable is a finding already.
    if !matches!(state, Ok(SchemaState::Version(schema::VERSION))) {
        return Ok(Vec::new());
    }
    let columns = spec.columns();
    let facts = control.facts(&FactsQuery { acting, ..spec.ask(&None, &columns) }).await?;
    if spec.names.table.is_some() && facts.table.is_none() {
        return Ok(Vec::new());
    }
    let cluster = if answers && spec.common.sink.capabilities().clusters {
        let (sink, needs) = (Arc::clone(&spec.common.sink), spec.needs(Purpose::Live));
        tokio::task::spawn_blocking(move || sink.cluster(&needs)).await.unwrap_or_default()
    } else {
        None
    };
    let settings = Settings {
        spec,
        cluster: cluster.as_deref(),
        table_oid: facts.table.as_ref().map(|table| table.oid),
        repairs: false,
        polls: polls_now(spec, &facts, APPLICATION_NAME).await,
        thorough: true,
    };
    let change = compare_settings(client, settings).await?;
    let mut findings = Vec::new();
    if let Some(halt) = change.halt {
        let why = format!("{} ({}); {}", halt.meaning, halt.reason.code(), halt.hint);
        let finding = Finding::error("pipeline_changed", halt.message).why(why);
        findings.push(match change.sql {
            Some(sql) => finding.sql(sql),
            None => finding,
        });
    }
    for note in change.notes {
        let finding = Finding::warning("setting_changed", note.message).why(note.why);
        findings.push(match note.sql {
            Some(sql) => finding.sql(sql),
            None => finding,
        });
    }
    if change.hands_over {
        findings.push(
            Finding::info("hand_over", "mode was \"poll\" and is \"auto\"").why(
                "postrider run polls the table to its end, drops the slot of this pipeline if it exists, creates a new \
                 one, and streams from it: no event is lost, and only events in flight may be published twice",
            ),
        );
    }
    if spec.common.mode == Mode::Poll
        && !findings.iter().any(|finding| finding.severity == Severity::Error)
        && let Some(left) = left_behind(client, spec).await?
    {
        findings.push(
            Finding::warning("slot_left_behind", left.message())
                .why(LeftBehind::WHY)
                .sql(left.line()),
        );
    }
    Ok(findings)
}

/// The findings that need only the file: all of `check --offline`, and the first ones of every other check.
fn file_findings(config: &Config, pipeline: &PipelineConfig, spec: &PipelineSpec) -> Vec<Finding> {
    let own = format!("pipelines.{}.", pipeline.name);
    let mut found = of_warnings(config, &own);
    found.extend(preflight::settings(&spec.names, &spec.conninfo));
    found.extend(spec.common.sink.settings(&pipeline.name));
    if spec.common.outbox.key.is_empty() {
        found.push(
            Finding::warning("route_key", "route.key is empty")
                .why("records without a key go to all partitions: the events of an aggregate lose their order")
                .config(format!("{own}route.key = \"{{aggregate_id}}\"")),
        );
    }
    if found.is_empty() {
        found.push(Finding::ok("file", format!("{} has no mistakes", config.file)));
    }
    found
}

/// The warnings about the whole file, and about the table whose keys begin with `own`.
fn of_warnings(config: &Config, own: &str) -> Vec<Finding> {
    let warnings = config.warnings.iter().filter(|w| w.key.is_empty() || w.key.starts_with(own));
    warnings.map(|warning| of_warning(&warning.key, &warning.message)).collect()
}

/// The finding of a warning about the file. The command that fixes it, if any, follows "; fix it with: ".
fn of_warning(key: &str, message: &str) -> Finding {
    let (what, command) = message.split_once("; fix it with: ").unwrap_or((message, ""));
    let finding = if key.ends_with("_file") {
        Finding::warning("secret_file", format!("{key}: {what}"))
            .why("every user of this machine can read the secret")
    } else {
        Finding::warning("file", format!("{key}: {what}")).why("the key has no effect yet")
    };
    if command.is_empty() { finding } else { finding.shell(command) }
}

/// The findings as a JSON array with an object for each. The names of the fields are stable.
fn render_json(reports: &[Report]) -> String {
    let findings: Vec<Value> = reports
        .iter()
        .flat_map(|report| {
            report.findings.iter().map(|finding| {
                json!({
                    (report.kind): report.name.trim_start_matches("inboxes."),
                    "id": finding.id,
                    "severity": finding.severity,
                    "what": finding.what,
                    "why": finding.why,
                    "fix": finding.fix,
                })
            })
        })
        .collect();
    format!("{:#}", Value::Array(findings))
}

/// Width of the text at most, and if the width of the terminal is unknown. Unit: columns.
const WIDTH: usize = 100;

/// The column at which the lines below a finding begin.
const WHY: usize = 11;

/// The findings as a table for a terminal, or as plain lines. Lines that fix something are never folded, so that they
/// can be copied. `file` is the configuration file, named before lines that belong in it.
fn render_table(reports: &[Report], file: &str, is_terminal: bool, color: bool) -> String {
    let style = Style { file, width: is_terminal.then(width), color };
    let mut text = String::new();
    for report in reports {
        if is_terminal {
            style.head(report, &mut text);
        }
        let widest = report.findings.iter().map(|finding| finding.id.len()).max().unwrap_or(0);
        for finding in &report.findings {
            if is_terminal {
                style.row(finding, widest, &mut text);
            } else {
                style.lines(&report.name, finding, &mut text);
            }
        }
    }
    text.push_str(&summary(reports));
    text
}

fn width() -> usize {
    let columns = crossterm::terminal::size().map_or(WIDTH, |(columns, _)| usize::from(columns));
    columns.clamp(60, WIDTH)
}

fn summary(reports: &[Report]) -> String {
    let count = |severity| {
        reports
            .iter()
            .flat_map(|report| &report.findings)
            .filter(|f| f.severity == severity)
            .count()
    };
    let number =
        |count: usize, word: &str| format!("{count} {word}{}", if count == 1 { "" } else { "s" });
    format!(
        "{} passed, {}, {}",
        count(Severity::Ok),
        number(count(Severity::Warning), "warning"),
        number(count(Severity::Error), "error"),
    )
}

struct Style<'a> {
    file: &'a str,
    /// Columns of the terminal.
    width: Option<usize>,
    color: bool,
}

impl Style<'_> {
    fn paint(&self, code: &str, text: &str) -> String {
        if self.color { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    }

    fn head(&self, report: &Report, text: &mut String) {
        // Writing to a String does not fail.
        writeln!(text, "{}  {}\n", self.paint("1", &report.name), report.route).unwrap_or_default();
    }

    /// A finding: severity, name and description; below them the reason and the lines that fix it.
    fn row(&self, finding: &Finding, widest: usize, text: &mut String) {
        let (code, word) = match finding.severity {
            Severity::Ok => ("32", "ok"),
            Severity::Info => ("36", "info"),
            Severity::Warning => ("33", "WARNING"),
            Severity::Error => ("31", "ERROR"),
        };
        let word = self.paint(code, &format!("{word:<7}"));
        let indent = 2 + 7 + 2 + widest + 2;
        let head = format!("  {word}  {:<widest$}  ", finding.id);
        self.folded(&head, indent, &finding.what, None, text);
        if !finding.why.is_empty() {
            self.folded(&" ".repeat(WHY), WHY, &finding.why, Some("2"), text);
        }
        for fix in &finding.fix {
            writeln!(
                text,
                "{}{} {}",
                " ".repeat(WHY),
                self.paint("1", &self.kind(fix)),
                Self::line(fix)
            )
            .unwrap_or_default();
        }
        if finding.severity > Severity::Info {
            text.push('\n');
        }
    }

    fn kind(&self, fix: &Fix) -> String {
        match fix.kind {
            FixKind::Config => format!("{}{}:", self.file, edit::place(fix)),
            FixKind::Sql | FixKind::Shell => fix.kind.name().to_owned(),
        }
    }

    fn line(fix: &Fix) -> String {
        let comment = match fix.kind {
            FixKind::Sql => "--",
            FixKind::Config | FixKind::Shell => "#",
        };
        if fix.restart {
            format!("{} {comment} then restart PostgreSQL", fix.line)
        } else {
            fix.line.clone()
        }
    }

    /// Writes `words` behind `head`, folded at the width of the terminal and indented by `indent` columns.
    fn folded(
        &self,
        head: &str,
        indent: usize,
        words: &str,
        code: Option<&str>,
        text: &mut String,
    ) {
        let room = self.width.unwrap_or(WIDTH).saturating_sub(indent).max(30);
        let mut lines: Vec<String> = vec![String::new()];
        for word in words.split(' ') {
            let Some(line) = lines.last_mut() else { return };
            if !line.is_empty() && line.chars().count() + 1 + word.chars().count() > room {
                lines.push(word.to_owned());
            } else {
                if !line.is_empty() {
                    line.push(' ');
                }
                line.push_str(word);
            }
        }
        for (index, line) in lines.iter().enumerate() {
            let before = if index == 0 { head.to_owned() } else { " ".repeat(indent) };
            let line = code.map_or_else(|| line.clone(), |code| self.paint(code, line));
            writeln!(text, "{before}{line}").unwrap_or_default();
        }
    }

    /// A finding as plain lines, each of which begins with the pipeline, so that grep finds it.
    fn lines(&self, pipeline: &str, finding: &Finding, text: &mut String) {
        let (id, severity) = (finding.id, finding.severity.name());
        writeln!(text, "{pipeline}: {severity}: {id}: {}", finding.what).unwrap_or_default();
        if !finding.why.is_empty() {
            writeln!(text, "{pipeline}:   why: {}", finding.why).unwrap_or_default();
        }
        for fix in &finding.fix {
            let kind = match fix.kind {
                FixKind::Config => format!("config {}{}", self.file, edit::place(fix)),
                FixKind::Sql | FixKind::Shell => fix.kind.name().to_owned(),
            };
            writeln!(text, "{pipeline}:   fix ({kind}): {}", Self::line(fix)).unwrap_or_default();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::expect;

    fn reports() -> [Report; 1] {
        let findings = vec![
            Finding::ok("server_version", "PostgreSQL 18.4"),
            Finding::error(
                "wal_level",
                "wal_level is \"replica\", logical decoding needs \"logical\"",
            )
            .why("no slot can be made")
            .sql_and_restart("ALTER SYSTEM SET wal_level = 'logical';"),
            Finding::warning("table", "another")
                .why("words ".repeat(13).trim_end())
                .config("pipelines.orders.outbox.table = \"app.outbox\"")
                .shell("postrider setup -p orders"),
        ];
        [Report {
            kind: "pipeline",
            name: "orders".to_owned(),
            route: "db:5432 → k1:9092".to_owned(),
            findings,
        }]
    }

    #[test]
    fn commands_of_a_sink_name_the_pipeline() {
        let mut finding = Finding::error("progress_topic", "it does not exist")
            .shell("postrider setup")
            .shell("postrider setup -p orders --url 'u'")
            .shell("kafka-topics.sh --create");
        name_the_pipeline(&mut finding, "orders");
        let lines: Vec<&str> = finding.fix.iter().map(|fix| fix.line.as_str()).collect();
        assert_eq!(
            lines,
            [
                "postrider setup -p orders",
                "postrider setup -p orders --url 'u'",
                "kafka-topics.sh --create"
            ]
        );
    }

    #[test]
    fn plain_lines_name_the_pipeline_and_the_fix() {
        expect![[r#"
            orders: ok: server_version: PostgreSQL 18.4
            orders: error: wal_level: wal_level is "replica", logical decoding needs "logical"
            orders:   why: no slot can be made
            orders:   fix (sql): ALTER SYSTEM SET wal_level = 'logical'; -- then restart PostgreSQL
            orders: warning: table: another
            orders:   why: words words words words words words words words words words words words words
            orders:   fix (config postrider.toml): pipelines.orders.outbox.table = "app.outbox"
            orders:   fix (shell): postrider setup -p orders
            1 passed, 1 warning, 1 error"#]]
        .assert_eq(&render_table(&reports(), "postrider.toml", false, false));
    }

    #[test]
    fn a_terminal_shows_a_table() {
        let shown = render_table(&reports(), "postrider.toml", true, false);
        for line in shown.lines().filter(|line| line.contains("words")) {
            assert!(line.chars().count() <= WIDTH, "{line}");
        }
        assert!(shown.contains("  ERROR    wal_level       wal_level is"), "{shown}");
        assert!(shown.contains("\n           sql ALTER SYSTEM SET wal_level"), "{shown}");
        let colored = render_table(&reports(), "postrider.toml", true, true);
        assert!(colored.contains("\x1b[31mERROR"), "{colored}");
    }
}
