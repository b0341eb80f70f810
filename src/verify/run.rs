//! Reads both sides, the source first, and compares them.

use super::comparison::{ComparisonRules, OrderBy, TopicComparison};
use super::error::VerifyError;
use super::findings::{VerifyFinding, VerifyFindings};
use super::ledger::add_ledger;
use super::outbox::add_rows;
use super::report::{ReadTopic, SourceSummary, VerifyReport};
use super::request::{VerifyProgress, VerifyRequest};
use super::topics::TopicSide;
use crate::inbox::kafka::{KafkaSourceConfig, StartAt};
use crate::pipeline::{PipelineSpec, topic_rule};
use crate::postgres::verify::VerifySnapshot;
use crate::sink::kafka::KafkaConfig;
use crate::sink::{Purpose, SinkConfig};
use std::any::Any;
use std::collections::BTreeSet;

/// An event that an operator has skipped is not remembered for ever (`KEPT` of the maintenance).
const FORGOTTEN: &str = "what an operator has skipped is remembered for 7 days: an event that was skipped before \
                         counts as lost, and so does one that was skipped by moving the slot";

/// Verifies a pipeline.
///
/// # Errors
/// One of the sides can't be read. What is missing in the topics is no error.
pub async fn verify(
    spec: &PipelineSpec,
    request: &VerifyRequest,
    progress: &mut dyn FnMut(VerifyProgress),
) -> Result<VerifyReport, VerifyError> {
    let kafka = kafka(spec)?;
    check(spec, request)?;
    let by_default = if request.ledger.is_some() { OrderBy::Source } else { OrderBy::Position };
    let order = request.order.unwrap_or(by_default);
    let mut comparison = TopicComparison::new(ComparisonRules {
        order,
        positions: request.positions,
        is_partial: !request.parts.is_empty(),
        examples_max: request.examples_max,
        memory_max: request.memory_max,
    });
    let (source, mut notes) = Box::pin(source(&mut comparison, spec, request, progress)).await?;
    comparison.sort();
    // From here on: what the source says to be published is in the topics already.
    let config = consumer(spec, kafka);
    let names = names(spec, request, &comparison);
    let side = TopicSide::find(&config, request, &names)?;
    let compacted = kafka.compaction(&spec.needs(Purpose::Live), &side.existing());
    let events = comparison.events();
    let topics = side.read(&mut comparison, &compacted, progress)?;
    let findings = comparison.finish();
    notes.extend(notes_of_topics(&topics, &findings, request));
    if request.ledger.is_none() && findings.count(VerifyFinding::Lost) > 0 {
        notes.push(FORGOTTEN.to_owned());
    }
    let is_exactly_once = spec.common.sink.capabilities().exactly_once;
    let pipeline = spec.name().to_owned();
    Ok(VerifyReport { pipeline, source, events, topics, order, is_exactly_once, findings, notes })
}

/// Adds the events of the source. Returns what it is, and what could not be known about it.
async fn source(
    comparison: &mut TopicComparison,
    spec: &PipelineSpec,
    request: &VerifyRequest,
    progress: &mut dyn FnMut(VerifyProgress),
) -> Result<(SourceSummary, Vec<String>), VerifyError> {
    if let Some(file) = &request.ledger {
        let topic = spec.common.outbox.constant_topic();
        let (range, memory_max) = ((request.since, request.until), request.memory_max);
        let times = add_ledger(comparison, file, topic.as_deref(), range, memory_max)?;
        return Ok((SourceSummary::Ledger { file: file.clone(), times }, Vec::new()));
    }
    let snapshot = add_rows(comparison, spec, request, progress).await?;
    let mut notes = notes_of_snapshot(spec, &snapshot);
    if spec.messages() {
        notes.push(
            "logical messages have no rows: their records are among those that are not in the source"
                .to_owned(),
        );
    }
    let source = SourceSummary::Outbox {
        table: table(spec),
        at: snapshot.at,
        wal_end: snapshot.wal_end,
        watermark: snapshot.watermark,
    };
    Ok((source, notes))
}

/// The settings of a sink of Kafka.
fn kafka(spec: &PipelineSpec) -> Result<&KafkaConfig, VerifyError> {
    fn of(sink: &dyn SinkConfig) -> Option<&KafkaConfig> {
        if let Some(inner) = sink.inner() {
            of(inner)
        } else {
            let sink: &dyn Any = sink;
            sink.downcast_ref()
        }
    }
    let sink = &*spec.common.sink;
    let not = || VerifyError::NotKafka { pipeline: spec.name().to_owned(), kind: sink.kind() };
    of(sink).ok_or_else(not)
}

fn check(spec: &PipelineSpec, request: &VerifyRequest) -> Result<(), VerifyError> {
    let pipeline = || spec.name().to_owned();
    if request.ledger.is_none() {
        if spec.capture.is_some() {
            return Err(VerifyError::Captured { pipeline: pipeline() });
        }
        if spec.poll.table.is_none() {
            return Err(VerifyError::NoTable { pipeline: pipeline() });
        }
    }
    if request.since.zip(request.until).is_some_and(|(since, until)| until <= since) {
        return Err(VerifyError::EmptyRange("--until is not after --since"));
    }
    if request.positions.is_some_and(|(from, to)| to <= from) {
        return Err(VerifyError::EmptyRange("the end of --lsn is not after its beginning"));
    }
    if request.parts.iter().any(|part| part.to <= part.from) {
        return Err(VerifyError::EmptyRange(
            "the second offset of --offsets is not after the first",
        ));
    }
    Ok(())
}

/// The settings of a consumer of the same brokers. It has the name of a group, because librdkafka wants one, and joins
/// none.
fn consumer(spec: &PipelineSpec, kafka: &KafkaConfig) -> KafkaSourceConfig {
    let (properties, secret_files) = kafka.consumer_properties();
    KafkaSourceConfig {
        brokers: kafka.brokers.clone(),
        topics: Vec::new(),
        group: format!("postrider-verify-{}", spec.name()),
        start: StartAt::default(),
        properties,
        secret_files,
    }
}

/// The topics to read: with `--offsets` those that it names; otherwise those of the events, that of the pipeline, and
/// those that the user has named.
fn names(
    spec: &PipelineSpec,
    request: &VerifyRequest,
    comparison: &TopicComparison,
) -> BTreeSet<String> {
    if !request.parts.is_empty() {
        return request.parts.iter().map(|part| part.topic.clone()).collect();
    }
    let of_events = comparison.topics().filter(|topic| !topic.is_empty()).map(str::to_owned);
    let of_pipeline = spec.common.outbox.constant_topic();
    of_events.chain(of_pipeline).chain(request.topics.iter().cloned()).collect()
}

/// The outbox table, as SQL writes it.
fn table(spec: &PipelineSpec) -> String {
    spec.poll.table.as_ref().map_or_else(String::new, |table| table.table.to_string())
}

fn notes_of_snapshot(spec: &PipelineSpec, snapshot: &VerifySnapshot) -> Vec<String> {
    let mut notes = Vec::new();
    if snapshot.watermark.is_none() {
        notes.push("the pipeline has no position yet: nothing is known to be published".to_owned());
    } else if !snapshot.has_resolved {
        notes.push(
            "no transaction is known to be resolved yet, so no row is known to be published"
                .to_owned(),
        );
    }
    if !snapshot.tells_before {
        notes.push(
            "the table had rows when the slot was created, and rows have no time: a row of before that was updated \
             since counts as published"
                .to_owned(),
        );
    }
    if snapshot.repair {
        notes.push("a repair or a backfill is in progress".to_owned());
    }
    let rule = topic_rule(&spec.common.outbox);
    if let Some(before) = snapshot.of_topic.as_ref().filter(|before| **before != rule) {
        notes.push(format!(
            "route.topic was {before} when the pipeline last ran: events of before are in other topics (--topic)"
        ));
    }
    notes
}

fn notes_of_topics(
    topics: &[ReadTopic],
    findings: &VerifyFindings,
    request: &VerifyRequest,
) -> Vec<String> {
    let mut notes = Vec::new();
    for topic in topics {
        let name = &topic.name;
        if !topic.exists {
            notes.push(format!("topic \"{name}\" does not exist"));
            continue;
        }
        match topic.is_compacted {
            Some(true) => notes.push(format!(
                "topic \"{name}\" is compacted: a missing record may have been removed for a later one with its key"
            )),
            None => notes.push(format!(
                "the settings of topic \"{name}\" could not be read (operation DescribeConfigs): it may be compacted"
            )),
            Some(false) => {}
        }
        let removed = topic.partitions.iter().filter(|partition| partition.low > 0).count();
        if removed > 0 {
            notes.push(format!(
                "the beginning of {removed} of {} partitions of topic \"{name}\" was removed (retention)",
                topic.partitions.len()
            ));
        }
    }
    if findings.count(VerifyFinding::WithoutOrder) > 0 {
        notes.push(
            "records without header position (polling, repair, layout debezium) have no order that could be compared; \
             --order source compares the order of the source, which is that of the commits only if writers of an \
             aggregate exclude each other"
                .to_owned(),
        );
    }
    if request.positions.is_some() {
        notes.push(
            "rows do not record an LSN: events without a record are counted whatever the range of positions is"
                .to_owned(),
        );
    }
    if request.since.is_some() || request.until.is_some() {
        notes.push(
            "only events of the range were read: records of other events are among those that are not in the source"
                .to_owned(),
        );
    }
    notes
}
