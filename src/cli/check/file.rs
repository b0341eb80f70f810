//! What can be seen in the file alone: `check --offline`, and the first findings of every other.

use crate::config::{Config, PipelineConfig, SinkKind};
use crate::driver::PipelineSpec;
use crate::finding::Finding;
use crate::postgres::preflight;
use crate::sink;

pub(super) fn findings(
    config: &Config,
    pipeline: &PipelineConfig,
    spec: &PipelineSpec,
) -> Vec<Finding> {
    let mut found = Vec::new();
    let own = format!("pipelines.{}.", pipeline.name);
    for warning in config.warnings.iter().filter(|w| w.key.is_empty() || w.key.starts_with(&own)) {
        found.push(of_warning(&warning.key, &warning.message));
    }
    found.extend(preflight::settings(&spec.names, &spec.conninfo));
    found.extend(sink::settings(&spec.sink, &pipeline.name));
    if pipeline.sink.kind == SinkKind::Discard {
        found.push(
            Finding::warning("sink_discard", "sink.kind is \"discard\"")
                .why("every event is confirmed to the database and goes nowhere: for measurements alone")
                .config(format!("{own}sink.kind = \"stdout\"")),
        );
    }
    if spec.outbox.key.is_empty() {
        found.push(
            Finding::warning("route_key", "route.key is empty")
                .why("records without a key scatter over partitions: the events of an aggregate lose their order")
                .config(format!("{own}route.key = \"{{aggregate_id}}\"")),
        );
    }
    if found.is_empty() {
        found.push(Finding::ok("file", format!("{} has no mistakes", config.file)));
    }
    found
}

/// A warning of the file's reader. Where it names the command that mends it, that comes behind "fix it with".
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
