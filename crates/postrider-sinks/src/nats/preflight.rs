//! `postrider check` for NATS: whether the servers answer, and whether the stream exists, takes the subjects, and keeps
//! what it has acknowledged.

use super::api::{ErrCode, StreamAnswer, StreamFacts, StreamSettings};
use super::link::NatsLink;
use super::problem::NatsProblem;
use super::spec::{ChainMode, NatsSpec};
use super::subject::encoded;
use crate::worker_thread;
use postrider_core::finding::{Finding, shell_word};
use postrider_core::sink::Retention;
use std::time::Duration;

/// The findings about the server, the stream, and the subjects that are known before the first event.
pub(super) fn check(spec: &NatsSpec, topics: &[String]) -> Vec<Finding> {
    answered(spec, || findings(spec, topics))
}

/// Creates the stream if it does not exist.
pub(super) fn create(spec: &NatsSpec) -> Vec<Finding> {
    answered(spec, || created(spec))
}

/// How long the stream keeps messages, if that can be read.
pub(super) fn retentions(spec: &NatsSpec) -> Vec<Retention> {
    let asked = worker_thread::ask(|| async {
        let link = connect(spec).await.ok()?;
        let stream = link.stream(spec).await.ok()?.ok()?;
        Some(u64::try_from(stream.config.max_age).unwrap_or_default())
    });
    let Ok(Some(nanos)) = asked else { return Vec::new() };
    // 0 is for ever.
    let keeps = (nanos > 0).then(|| Duration::from_nanos(nanos));
    vec![Retention { destination: format!("stream {}", spec.stream), keeps }]
}

fn answered<A: Future<Output = Result<Vec<Finding>, NatsProblem>>>(
    spec: &NatsSpec,
    question: impl FnOnce() -> A + Send,
) -> Vec<Finding> {
    match worker_thread::ask(question) {
        Ok(Ok(findings)) => findings,
        Ok(Err(problem)) => vec![failed(problem)],
        Err(unanswered) => {
            vec![Finding::error("nats_server", format!("NATS at {}: {unanswered}", spec.place()))]
        }
    }
}

fn failed(problem: NatsProblem) -> Finding {
    let hint = problem.hint.unwrap_or_default();
    Finding::error("nats_server", problem.reason)
        .why(format!("nothing is published until this works; {hint}"))
}

/// A connection to the first server that answers.
async fn connect(spec: &NatsSpec) -> Result<NatsLink, NatsProblem> {
    let mut problem = NatsProblem::new("sink.nats.url has no server", "write nats://host:port");
    for server in &spec.servers {
        match NatsLink::open(spec, server).await {
            Ok(link) => return Ok(link),
            Err(other) => problem = other,
        }
    }
    Err(problem)
}

async fn findings(spec: &NatsSpec, topics: &[String]) -> Result<Vec<Finding>, NatsProblem> {
    let link = connect(spec).await?;
    let info = link.client.server_info();
    let mut out = Vec::new();
    if version(&info.version) < (2, 10) {
        let what = format!("nats-server {} at {}", info.version, link.address);
        out.push(
            Finding::error("nats_version", what)
                .why("this program needs nats-server 2.10 or later"),
        );
    }
    if !info.headers {
        let what = format!("nats-server at {} supports no headers", link.address);
        out.push(Finding::error("nats_headers", what).why("every message has headers"));
    }
    let stream = match link.stream(spec).await {
        Ok(stream) => stream,
        Err(problem) => {
            let hint = problem.hint.unwrap_or_default();
            out.push(Finding::error("nats_jetstream", problem.reason).why(hint));
            return Ok(out);
        }
    };
    match stream {
        Ok(answer) => of_stream(spec, topics, &answer, info.max_payload, &mut out),
        Err(error) if error.err_code == ErrCode::STREAM_NOT_FOUND => {
            out.push(missing(spec, topics));
        }
        Err(error) => {
            let NatsProblem { reason, hint } = NatsProblem::answer("stream", &error, spec);
            out.push(Finding::error("nats_jetstream", reason).why(hint.unwrap_or_default()));
        }
    }
    if out.iter().all(|finding| finding.severity < postrider_core::finding::Severity::Error) {
        let what = format!(
            "connected to nats-server {} at {}, JetStream and login OK; the right to publish is not known yet",
            info.version, link.address
        );
        out.insert(0, Finding::ok("nats_server", what));
    }
    Ok(out)
}

fn missing(spec: &NatsSpec, topics: &[String]) -> Finding {
    let stream = &spec.stream;
    if let Some(create) = &spec.create {
        let what = format!(
            "stream {stream} does not exist, and is created when the pipeline connects, with subjects {}",
            create.subjects
        );
        return Finding::ok("nats_stream", what);
    }
    let subjects: Vec<String> = topics.iter().map(|topic| encoded(topic)).collect();
    let subjects = if subjects.is_empty() { "SUBJECTS".to_owned() } else { subjects.join(",") };
    let what = format!("stream {stream} does not exist, which has to take {subjects}");
    Finding::error("nats_stream_missing", what).why("events are parked until it exists").shell(
        format!(
            "nats stream add {} --subjects {} --defaults",
            shell_word(stream),
            shell_word(&subjects)
        ),
    )
}

fn of_stream(
    spec: &NatsSpec,
    topics: &[String],
    answer: &StreamAnswer,
    max_payload: usize,
    out: &mut Vec<Finding>,
) {
    let settings = &answer.config;
    let stream = &spec.stream;
    let edit = format!("nats stream edit {}", shell_word(stream));
    if settings.sealed {
        let what = format!("stream {stream} is sealed");
        out.push(Finding::error("nats_stream_sealed", what).why(
            "it accepts no messages, and can't be opened again: let sink.nats.stream name another stream",
        ));
    }
    if settings.no_ack {
        let what = format!("stream {stream} acknowledges no messages (no_ack)");
        out.push(
            Finding::error("nats_stream_no_ack", what)
                .why("an event counts as published with its acknowledgement only"),
        );
    }
    for subject in topics.iter().map(|topic| encoded(topic)) {
        let facts = StreamFacts { subjects: settings.subjects.clone(), ..StreamFacts::none(0) };
        if !facts.takes(&subject) {
            let taken = settings.subjects.join(", ");
            let what = format!("stream {stream} does not take subject {subject}; it takes {taken}");
            let all = format!("{},{subject}", settings.subjects.join(","));
            out.push(
                Finding::error("nats_subject", what)
                    .why("its events are parked until the stream takes the subject")
                    .shell(format!("{edit} --subjects {}", shell_word(&all))),
            );
        }
    }
    durability(spec, settings, &edit, out);
    let limit = usize::try_from(settings.max_msg_size).ok().filter(|limit| *limit > 0);
    let limit = limit.map_or(max_payload, |limit| limit.min(max_payload));
    if let Some(size_max) = spec.size_max.filter(|size_max| size_max + 1_024 > limit) {
        let what = format!(
            "payload.size_max is {size_max} bytes, and a message of stream {stream} may have {limit} with its headers"
        );
        out.push(
            Finding::warning("nats_size", what)
                .why("larger events are parked, although payload.size_max allows them")
                .shell(format!("{edit} --max-msg-size {}", size_max + 1_024)),
        );
    }
    let what = format!(
        "stream {stream}: {} messages, last sequence {}, {} copies, {} storage",
        answer.state.messages, answer.state.last_seq, settings.num_replicas, settings.storage
    );
    out.push(Finding::ok("nats_stream", what));
}

/// Settings with which messages are lost that nobody has read, or that were acknowledged.
fn durability(spec: &NatsSpec, settings: &StreamSettings, edit: &str, out: &mut Vec<Finding>) {
    let stream = &spec.stream;
    let is_limited = settings.limits.max_msgs > 0
        || settings.limits.max_bytes > 0
        || settings.limits.max_msgs_per_subject > 0;
    if settings.discard == "old" && is_limited {
        let what = format!("stream {stream} has a limit and discards its oldest messages at it");
        out.push(
            Finding::warning("nats_discard", what)
                .why(
                    "messages are deleted whether they were read or not; with discard new the pipeline waits while the \
                     stream is full",
                )
                .shell(format!("{edit} --discard new")),
        );
    }
    if settings.max_age > 0 {
        let age = settings.max_age / 1_000_000_000;
        let what = format!("stream {stream} deletes messages after {age} s (max_age)");
        out.push(
            Finding::warning("nats_max_age", what)
                .why("they are deleted whether they were read or not"),
        );
    }
    if settings.storage == "memory" {
        let what = format!("stream {stream} is in memory");
        out.push(
            Finding::warning("nats_storage", what)
                .why("a restart of the server loses acknowledged messages; the storage can't be changed later"),
        );
    }
    if settings.num_replicas <= 1 {
        let what = format!("stream {stream} has one copy");
        out.push(
            Finding::warning("nats_replicas", what)
                .why(
                    "an acknowledged message is on one server, which writes to its disk every 2 minutes unless its \
                     configuration has sync_interval: always; three servers survive the loss of one",
                )
                .shell(format!("{edit} --replicas 3")),
        );
    }
    if spec.chain == ChainMode::None && settings.duplicate_window < 120_000_000_000 {
        let window = settings.duplicate_window / 1_000_000;
        let what =
            format!("stream {stream} remembers identifiers for {window} ms (duplicate_window)");
        out.push(
            Finding::warning("nats_duplicate_window", what)
                .why("with chain = \"none\" an outage that is longer publishes some events twice")
                .shell(format!("{edit} --dupe-window 2m")),
        );
    }
    if settings.retention == "interest" {
        let what = format!(
            "stream {stream} keeps messages only while a consumer exists (retention interest)"
        );
        out.push(
            Finding::warning("nats_retention", what)
                .why("events that are published without any consumer are deleted at once"),
        );
    }
}

async fn created(spec: &NatsSpec) -> Result<Vec<Finding>, NatsProblem> {
    let Some(create) = &spec.create else { return Ok(Vec::new()) };
    let link = connect(spec).await?;
    let stream = &spec.stream;
    if link.stream(spec).await?.is_ok() {
        return Ok(Vec::new());
    }
    let answer = link.create(spec, create).await?;
    Ok(vec![match answer.error {
        None => {
            let what = format!("stream {stream} created with subjects {}", create.subjects);
            Finding::ok("nats_stream", what)
        }
        Some(error) => {
            let what = format!("stream {stream} could not be created");
            let NatsProblem { reason, hint } = NatsProblem::answer(&what, &error, spec);
            Finding::error("nats_stream_missing", reason).why(hint.unwrap_or_default())
        }
    }])
}

/// The first two numbers of a version.
fn version(text: &str) -> (u32, u32) {
    let mut numbers = text.split('.').map(|number| number.parse().unwrap_or(0));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
}
