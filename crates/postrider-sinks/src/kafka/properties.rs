//! Which of librdkafka's properties we set, which an operator may, and which are refused because they would break a
//! promise.
//!
//! Knows the promises; knows no topic and no broker. Makes the [`ClientConfig`] that producers are made from.

use super::logins::Build;
use super::names::NAMES;
use super::sizes::Sizes;
use crate::{KafkaSpec, SinkError};
use rdkafka::config::{ClientConfig, RDKafkaLogLevel};
use rdkafka::error::KafkaError;
use rdkafka::types::RDKafkaConfRes;

/// What an operator's property may be.
enum Rule {
    /// Only these values, each of which keeps the promise.
    Only(&'static [&'static str]),
    /// At most this number, and at least 1.
    AtMost(u32),
    /// No value at all.
    Never,
}

/// What librdkafka takes for the same, and the name that we use (`_RK_C_ALIAS` in rdkafka_conf.c). A configuration is
/// handed over in the order of a hash table: under two names one property would have now this value, now that.
const ALIASES: &[(&str, &str)] = &[
    ("compression.codec", "compression.type"),
    ("delivery.timeout.ms", "message.timeout.ms"),
    ("max.in.flight.requests.per.connection", "max.in.flight"),
    ("message.send.max.retries", "retries"),
    ("metadata.broker.list", "bootstrap.servers"),
    ("queue.buffering.max.ms", "linger.ms"),
    ("request.required.acks", "acks"),
    ("sasl.mechanism", "sasl.mechanisms"),
];

pub(super) fn our_name(name: &str) -> &str {
    ALIASES.iter().find(|(other, _)| *other == name).map_or(name, |(_, ours)| ours)
}

/// A property with a rule, what another value would break, and what to do instead.
struct Guard {
    name: &'static str,
    rule: Rule,
    why: &'static str,
    mend: &'static str,
}

const fn guard(name: &'static str, rule: Rule, why: &'static str, mend: &'static str) -> Guard {
    Guard { name, rule, why, mend }
}

const KEPT: &str = "Postrider sets what its promises need";
const IN_FLIGHT: &str = "`flow.in_flight_events` and `flow.in_flight_bytes` are the bound";
const BOUND: &str = "Postrider bounds what is in flight and makes this queue larger";

/// Every property that is not the operator's alone. Aliases stand beside the name they are an alias of.
const GUARDS: &[Guard] = &[
    guard("bootstrap.servers", Rule::Never, "the key `brokers` says it", "write it in `brokers`"),
    guard(
        "metadata.broker.list",
        Rule::Never,
        "the key `brokers` says it",
        "write it in `brokers`",
    ),
    guard("acks", Rule::Only(&["all", "-1"]), LOSS_ACKS, KEPT),
    guard("request.required.acks", Rule::Only(&["all", "-1"]), LOSS_ACKS, KEPT),
    guard("enable.idempotence", Rule::Only(&["true"]), SWAP_RETRY, KEPT),
    guard("enable.gapless.guarantee", Rule::Only(&["true"]), GAP, KEPT),
    guard("max.in.flight", Rule::AtMost(5), SWAP_FIVE, KEPT),
    guard("max.in.flight.requests.per.connection", Rule::AtMost(5), SWAP_FIVE, KEPT),
    guard("message.timeout.ms", Rule::Only(&["0"]), GAP_TIMEOUT, KEPT),
    guard("delivery.timeout.ms", Rule::Only(&["0"]), GAP_TIMEOUT, KEPT),
    guard("retries", Rule::Only(&["2147483647"]), GAP_RETRIES, KEPT),
    guard("message.send.max.retries", Rule::Only(&["2147483647"]), GAP_RETRIES, KEPT),
    guard("partitioner", Rule::Only(&["murmur2_random", "murmur2"]), PARTITIONER, KEPT),
    guard("queuing.strategy", Rule::Only(&["fifo"]), "events would overtake each other", KEPT),
    guard("queue.buffering.max.messages", Rule::Never, BOUND, IN_FLIGHT),
    guard("queue.buffering.max.kbytes", Rule::Never, BOUND, IN_FLIGHT),
    guard("queue.buffering.backpressure.threshold", Rule::Only(&["1"]), IDEMPOTENT_ONE, KEPT),
    guard("delivery.report.only.error", Rule::Only(&["false"]), REPORTS, KEPT),
    guard("allow.auto.create.topics", Rule::Only(&["false"]), AUTO_CREATE, KEPT),
    guard("transactional.id", Rule::Never, TRANSACTIONS, "exactly once is not built yet"),
    guard("transaction.timeout.ms", Rule::Never, TRANSACTIONS, "exactly once is not built yet"),
    guard("enable.sasl.oauthbearer.unsecure.jwt", Rule::Only(&["false"]), TOKEN, KEPT),
    guard("log.queue", Rule::Never, "log lines go to Postrider's own log", KEPT),
    guard("test.mock.num.brokers", Rule::Never, "a mock broker keeps nothing", KEPT),
];

const TOPIC_PREFIX: &str = "under a name with `topic.` in front no promise is looked after";
const LOSS_ACKS: &str = "an event could be confirmed and then lost with one broker";
const SWAP_RETRY: &str = "a retry could duplicate events or swap them";
const SWAP_FIVE: &str = "with more than 5 requests in flight a retry could swap events";
const GAP: &str = "events behind a refused one would be published before it";
const GAP_TIMEOUT: &str =
    "an event that times out would leave a gap, and its successors would be published";
const GAP_RETRIES: &str = "an event that runs out of retries would leave a gap";
const PARTITIONER: &str = "keys would go to other partitions than those the Java client chooses";
const IDEMPOTENT_ONE: &str = "an idempotent producer needs 1";
const REPORTS: &str = "Postrider confirms an event only when its delivery is reported";
const AUTO_CREATE: &str = "a misspelt route would create topics with the broker's defaults";
const TOKEN: &str = "nobody would renew the token when it expires";
const TRANSACTIONS: &str = "Postrider does not use transactions";

/// librdkafka's configuration for `spec`: our settings, and the operator's on top where they break no promise.
///
/// # Errors
/// The first of [`mistakes`].
pub(super) fn client_config(spec: &KafkaSpec) -> Result<ClientConfig, SinkError> {
    if let Some(first) = mistakes(spec).into_iter().next() {
        return Err(first);
    }
    let mut config = ours(spec);
    for (name, value) in &spec.properties {
        config.set(our_name(name), value);
    }
    Ok(config)
}

/// The same for the producer for large records. It has one record at a time, so there is nothing that a gap could
/// reorder, and without that guarantee librdkafka goes on with the producer after a refusal. Nor does a record of it
/// wait for others.
pub(super) fn for_large(sizes: Sizes, spec: &KafkaSpec, config: &ClientConfig) -> ClientConfig {
    let mut config = config.clone();
    sizes.for_large().put(spec, &mut config);
    config.set("enable.gapless.guarantee", "false").set("linger.ms", "0");
    config
}

/// Every property that is refused, in the order of their names, and what they lack together.
pub(super) fn mistakes(spec: &KafkaSpec) -> Vec<SinkError> {
    let build = Build::here();
    let of = |(name, value): (&String, &String)| of_property(build, name, value).err();
    let mut errors: Vec<SinkError> = spec.properties.iter().filter_map(of).collect();
    errors.extend(build.allows_all(spec).err());
    errors
}

fn of_property(build: Build, name: &str, value: &str) -> Result<(), SinkError> {
    build.allows(name, value)?;
    allowed(name, value)?;
    // One property at a time, so that the error names it: librdkafka's own text repeats the value, which may be a
    // secret.
    let mut probe = ClientConfig::new();
    probe.set(name, value);
    probe.create_native_config().map(drop).map_err(|error| refusal(name, &error))
}

fn allowed(name: &str, value: &str) -> Result<(), SinkError> {
    // librdkafka takes `topic.acks` for `acks`, and some names begin with it by themselves.
    if name.starts_with("topic.") && !NAMES.contains(&name) {
        let (why, mend) = (TOPIC_PREFIX, "write its name without `topic.`");
        return Err(SinkError::Refused { name: name.to_owned(), why, mend });
    }
    let Some(guard) = GUARDS.iter().find(|guard| guard.name == name) else {
        return Ok(());
    };
    let value = value.trim();
    let fits = match guard.rule {
        Rule::Only(values) => values.iter().any(|allowed| allowed.eq_ignore_ascii_case(value)),
        Rule::AtMost(max) => value.parse::<u32>().is_ok_and(|number| (1..=max).contains(&number)),
        Rule::Never => false,
    };
    if fits {
        return Ok(());
    }
    Err(SinkError::Refused { name: name.to_owned(), why: guard.why, mend: guard.mend })
}

fn refusal(name: &str, error: &KafkaError) -> SinkError {
    if let KafkaError::ClientConfig(RDKafkaConfRes::RD_KAFKA_CONF_UNKNOWN, ..) = error {
        let nearest = NAMES
            .iter()
            .map(|known| (strsim::damerau_levenshtein(known, name), *known))
            .min()
            .filter(|(distance, known)| *distance * 3 <= known.len())
            .map(|(_, known)| known);
        return SinkError::UnknownProperty { name: name.to_owned(), nearest };
    }
    SinkError::BadValue { name: name.to_owned() }
}

/// Whether the operator has records wait for others in librdkafka.
pub(super) fn lingers(spec: &KafkaSpec) -> bool {
    let names = ["linger.ms", "queue.buffering.max.ms"];
    let mut values = names.iter().filter_map(|name| spec.properties.get(*name));
    values.any(|value| value.trim().parse::<f64>() != Ok(0.0))
}

/// What the promises need, and for the rest what measured best. Security is as librdkafka's defaults have it: none,
/// unless the operator says so.
fn ours(spec: &KafkaSpec) -> ClientConfig {
    let mut config = ClientConfig::new();
    config.set_log_level(RDKafkaLogLevel::Info);
    for (name, value) in [
        ("acks", "all"),
        ("enable.idempotence", "true"),
        ("enable.gapless.guarantee", "true"),
        ("max.in.flight", "5"),
        ("message.timeout.ms", "0"),
        ("partitioner", "murmur2_random"),
        ("compression.type", "lz4"),
        // What comes while five requests are on their way goes together all the same (docs/decisions/batching.md).
        ("linger.ms", "0"),
        ("batch.num.messages", "50000"),
        ("socket.keepalive.enable", "true"),
        ("reconnect.backoff.ms", "50"),
        ("reconnect.backoff.max.ms", "1000"),
        // A broker that closes an idle connection is not worth a line.
        ("log.connection.close", "false"),
        ("allow.auto.create.topics", "false"),
        ("client.id", spec.client_id.as_str()),
        ("bootstrap.servers", spec.brokers.as_str()),
    ] {
        config.set(name, value);
    }
    config.set("queue.buffering.max.messages", queue_messages(spec).to_string());
    Sizes::of(spec).put(spec, &mut config);
    config
}

/// Twice what the caller lets in flight, and some: librdkafka's queue is a safety net, the caller's bound is the bound.
fn queue_messages(spec: &KafkaSpec) -> usize {
    spec.in_flight_events.saturating_mul(2).saturating_add(1_000).min(10_000_000)
}

#[cfg(test)]
mod tests;
