//! `postrider check`: checks file, database and broker for problems, and prints the lines that fix each.
//!
//! Joins what the adapters find. What only file and layout know is found here; what stands on the servers is theirs.

mod changes;
mod columns;
mod edit;
mod file;
mod json;
mod table;

use super::args::{CheckArgs, Global};
use super::error::CliError;
use super::exit::Exit;
use super::output::Output;
use crate::config::{Config, Env, PipelineConfig};
use crate::driver::{Mode, PipelineSpec};
use crate::finding::{Finding, MendKind, Severity};
use crate::outbox::TopicPiece;
use crate::postgres::Conninfo;
use crate::postgres::preflight::{self, Ask, TopicPart};
use crate::sink;
use std::io::IsTerminal as _;

/// What was found of one pipeline.
struct Report {
    pipeline: String,
    /// Where from and where to, for people.
    route: String,
    findings: Vec<Finding>,
}

pub(super) async fn run(
    config: &Config,
    global: &Global,
    args: &CheckArgs,
    env: Env<'_>,
) -> Result<Exit, CliError> {
    let login = args.url.as_deref().map(|url| Conninfo::parse(url, env)).transpose()?;
    // It was read a moment ago; what can't be read again leaves the lines with their whole paths.
    let mut text = std::fs::read_to_string(&config.file).unwrap_or_default();
    let mut reports = Vec::new();
    for (pipeline, spec) in config.pipelines.iter().zip(&config.specs) {
        let mut findings = file::findings(config, pipeline, spec);
        if !args.offline {
            look(pipeline, spec, login.as_ref(), &mut findings).await;
        }
        for finding in &mut findings {
            name_the_file(finding, global);
            for mend in finding.mend.iter_mut().filter(|mend| mend.kind == MendKind::Config) {
                edit::fit(mend, &mut text);
            }
        }
        let route = format!("{} → {}", spec.conninfo.hosts(), destination(pipeline));
        reports.push(Report { pipeline: spec.name().to_owned(), route, findings });
    }
    let is_terminal = std::io::stdout().is_terminal();
    let text = if args.json {
        json::render(&reports)
    } else {
        table::render(&reports, &config.file, is_terminal, global.color(env, is_terminal))
    };
    Output::stdout().line(&text).map_err(CliError::Output)?;
    let worst = reports.iter().flat_map(|report| &report.findings).map(|f| f.severity).max();
    Ok(if worst == Some(Severity::Error) { Exit::NotWell } else { Exit::Done })
}

fn destination(pipeline: &PipelineConfig) -> String {
    match pipeline.sink.kind {
        crate::config::SinkKind::Kafka => pipeline.sink.brokers.clone(),
        crate::config::SinkKind::Stdout => "standard output".to_owned(),
        crate::config::SinkKind::Discard => "nowhere".to_owned(),
    }
}

/// Database, then broker: which topics there are stands in the database.
async fn look(
    pipeline: &PipelineConfig,
    spec: &PipelineSpec,
    login: Option<&Conninfo>,
    findings: &mut Vec<Finding>,
) {
    let columns = spec.columns();
    let parts: Option<Vec<TopicPart>> =
        spec.outbox.topic_pieces().map(|pieces| pieces.into_iter().map(part).collect());
    let ask = Ask {
        names: &spec.names,
        conninfo: &spec.conninfo,
        login,
        columns: &columns,
        streams: spec.mode != Mode::Poll,
        poll: spec.marks(),
        polls: spec.mode != Mode::Wal,
        reads: spec.poll.table.as_ref(),
        messages: spec.messages(),
        failover: spec.failover,
        bookmarks_retain_max: spec.bookmarks_retain_max,
        topic: parts.as_deref(),
    };
    let mut seen = preflight::look(&ask).await;
    if let Some(table) = &seen.table {
        let of_columns =
            columns::findings(pipeline, spec, table, seen.published.as_deref(), seen.version);
        // Behind the table, before what wants it to be well.
        let behind = seen.findings.iter().position(|finding| finding.id.starts_with("publication"));
        let behind = behind.unwrap_or(seen.findings.len());
        seen.findings.splice(behind..behind, of_columns);
    }
    if let Some(halt) = seen.encoding.and_then(|of| spec.messages_encoding(&of).err()) {
        let finding = Finding::error("message_encoding", halt.message).why(format!(
            "no logical message could be read ({}): {}",
            halt.reason.code(),
            halt.hint
        ));
        seen.findings.push(finding);
    }
    findings.append(&mut seen.findings);
    look_at_broker(spec, seen.topics, findings).await;
    let mut of_changes = changes::findings(spec, login, findings).await;
    findings.append(&mut of_changes);
}

/// The broker, and the topics that rows of the outbox go to.
async fn look_at_broker(
    spec: &PipelineSpec,
    topics: Option<Vec<String>>,
    findings: &mut Vec<Finding>,
) {
    if matches!(spec.sink, sink::SinkSpec::Stdout | sink::SinkSpec::Discard) {
        return;
    }
    let of_rows = topics.map(|topics| spec.outbox.replaced(topics));
    let topics = spec.outbox.constant_topic().map(|topic| vec![topic]).or(of_rows);
    if topics.as_ref().is_none_or(Vec::is_empty) {
        let why = if topics.is_some() {
            "the outbox table has no rows to take topics from"
        } else {
            "the rows of the outbox table could not be read"
        };
        let by = if spec.outbox.replace.is_some() {
            "route.topic and route.replace"
        } else {
            "route.topic"
        };
        findings.push(
            Finding::info(
                "topics",
                format!("no topic was checked: {by} makes them from each row, and {why}"),
            )
            .why(if makes_topics(&spec.sink) {
                "sink.create_topics creates each topic with its first event, also if a field is misspelt"
            } else {
                "create the topics before the first events: events of a topic that does not exist wait"
            }),
        );
    }
    let (kafka, topics) = (spec.sink.clone(), topics.unwrap_or_default());
    let keyed = !spec.outbox.key.is_empty();
    let asked = tokio::task::spawn_blocking(move || sink::preflight(&kafka, &topics, keyed)).await;
    // It does not panic, and nobody aborts it.
    findings.append(&mut asked.unwrap_or_default());
}

fn part(piece: TopicPiece) -> TopicPart {
    match piece {
        TopicPiece::Text(text) => TopicPart::Text(text),
        TopicPiece::Columns(columns) => TopicPart::Columns(columns),
    }
}

fn makes_topics(sink: &sink::SinkSpec) -> bool {
    matches!(sink, sink::SinkSpec::Kafka(kafka) if kafka.create_topics.is_some())
}

/// A command of ours names the file that this one was told to read.
fn name_the_file(finding: &mut Finding, global: &Global) {
    let Some(file) = &global.config else { return };
    for mend in finding.mend.iter_mut().filter(|mend| mend.kind == MendKind::Shell) {
        if let Some(rest) = mend.line.strip_prefix("postrider ") {
            let file = file.display().to_string().replace('\'', "'\\''");
            mend.line = format!("postrider -c '{file}' {rest}");
        }
    }
}
