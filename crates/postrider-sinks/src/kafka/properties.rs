//! librdkafka's properties: which are set by Postrider, which an operator may set, and which are refused because they
//! would break a guarantee. The result is the [`ClientConfig`] that producers are created with.

#[cfg(test)]
mod tests;

use super::producer::{SizeLimits, TRANSACTIONAL_ID};
use super::spec::{KafkaSpec, OpenError};
use rdkafka::config::{ClientConfig, RDKafkaLogLevel};
use rdkafka::error::KafkaError;
use rdkafka::types::RDKafkaConfRes;
use std::collections::BTreeMap;
use std::time::Duration;

/// The values that an operator may give a property.
enum Rule {
    /// Only these values, each of which keeps the guarantee.
    Only(&'static [&'static str]),
    /// At most this number, and at least 1.
    AtMost(u32),
    /// No value at all.
    Never,
}

/// Other names of properties (`_RK_C_ALIAS` in rdkafka_conf.c), each with the name that is used here. A configuration
/// is passed to librdkafka in the order of a hash table, so the value of a property that is set under two names would
/// differ from start to start.
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

/// A property with a rule: what another value would break, and what to do instead.
struct Guard {
    name: &'static str,
    rule: Rule,
    why: &'static str,
    fix: &'static str,
}

const fn guard(name: &'static str, rule: Rule, why: &'static str, fix: &'static str) -> Guard {
    Guard { name, rule, why, fix }
}

const KEPT: &str = "Postrider sets what its promises need";
const IN_FLIGHT: &str = "`flow.in_flight_events` and `flow.in_flight_bytes` are the bound";
const BOUND: &str = "Postrider bounds what is in flight and makes this queue larger";

/// Every property that has a rule. An alias follows the property that it is an alias of.
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
    guard("transactional.id", Rule::Never, TRANSACTIONS, "write it in `transaction.id`"),
    guard("transaction.timeout.ms", Rule::Never, TRANSACTIONS, "write it in `transaction.timeout`"),
    guard("isolation.level", Rule::Never, ISOLATION, "set it in the consumers of the events"),
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
const TRANSACTIONS: &str = "the table `transaction` says it";
const ISOLATION: &str = "it is a property of consumers";

/// The error of a time-out of requests that is longer than that of transactions, which librdkafka refuses.
fn long_request(spec: &KafkaSpec) -> Option<OpenError> {
    let transaction = spec.transaction.as_ref()?;
    let millis = spec.properties.get("socket.timeout.ms")?.trim().parse::<u64>().ok()?;
    (Duration::from_millis(millis) > transaction.timeout).then(|| OpenError::Refused {
        name: "socket.timeout.ms".to_owned(),
        why: "a request could take longer than the brokers allow a transaction to take",
        fix: "set at most `transaction.timeout`",
    })
}

/// librdkafka's configuration for `spec`: our settings, overridden by the operator's properties.
///
/// # Errors
/// The first of [`mistakes`].
pub(super) fn client_config(spec: &KafkaSpec) -> Result<ClientConfig, OpenError> {
    if let Some(first) = mistakes(spec).into_iter().next() {
        return Err(first);
    }
    let mut config = ours(spec);
    for (name, value) in &spec.properties {
        config.set(our_name(name), value);
    }
    Ok(config)
}

/// The configuration of the producer for large records. That producer has one record at a time, so a gap cannot reorder
/// records, and without `enable.gapless.guarantee` it can be used after a refusal. Its records do not wait for others.
pub(super) fn for_large(
    sizes: SizeLimits,
    spec: &KafkaSpec,
    config: &ClientConfig,
) -> ClientConfig {
    let mut config = config.clone();
    sizes.for_large().put(spec, &mut config);
    config.set("enable.gapless.guarantee", "false").set("linger.ms", "0");
    config
}

/// The errors of all refused properties, in the order of their names, and then the error of their combination.
pub(super) fn mistakes(spec: &KafkaSpec) -> Vec<OpenError> {
    let build = Build::here();
    let of = |(name, value): (&String, &String)| of_property(build, name, value).err();
    let mut errors: Vec<OpenError> = spec.properties.iter().filter_map(of).collect();
    errors.extend(build.allows_all(spec).err());
    errors.extend(long_request(spec));
    errors
}

fn of_property(build: Build, name: &str, value: &str) -> Result<(), OpenError> {
    build.allows(name, value)?;
    allowed(name, value)?;
    probe(name, value)
}

/// The error of a property that this build's logins or librdkafka refuse, for another client than the sink's producers.
///
/// # Errors
/// A login that this build can't make; a name that librdkafka does not know; a value that it does not take.
pub fn check_property(name: &str, value: &str) -> Result<(), OpenError> {
    Build::here().allows(name, value)?;
    probe(name, value)
}

/// The error of properties that ask for SASL without a mechanism that this build has.
///
/// # Errors
/// The default mechanism is not in this build.
pub fn check_login(properties: &BTreeMap<String, String>) -> Result<(), OpenError> {
    Build::here().allows_login(properties)
}

/// The name of librdkafka that another name of a property stands for.
pub fn canonical_name(name: &str) -> &str {
    our_name(name)
}

fn probe(name: &str, value: &str) -> Result<(), OpenError> {
    // Each property is tried alone, so that our error names it. librdkafka's own text repeats the value, which may be a
    // secret.
    let mut probe = ClientConfig::new();
    probe.set(name, value);
    probe.create_native_config().map(drop).map_err(|error| refusal(name, &error))
}

fn allowed(name: &str, value: &str) -> Result<(), OpenError> {
    // librdkafka reads `topic.acks` as `acks`. The names of some properties begin with `topic.` themselves.
    if name.starts_with("topic.") && !NAMES.contains(&name) {
        let (why, fix) = (TOPIC_PREFIX, "write its name without `topic.`");
        return Err(OpenError::Refused { name: name.to_owned(), why, fix });
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
    Err(OpenError::Refused { name: name.to_owned(), why: guard.why, fix: guard.fix })
}

fn refusal(name: &str, error: &KafkaError) -> OpenError {
    if let KafkaError::ClientConfig(RDKafkaConfRes::RD_KAFKA_CONF_UNKNOWN, ..) = error {
        let nearest = NAMES
            .iter()
            .map(|known| (strsim::damerau_levenshtein(known, name), *known))
            .min()
            .filter(|(distance, known)| *distance * 3 <= known.len())
            .map(|(_, known)| known);
        return OpenError::UnknownProperty { name: name.to_owned(), nearest };
    }
    OpenError::BadValue { name: name.to_owned() }
}

/// Whether the operator has set that records wait for others in librdkafka (`linger.ms`).
pub(super) fn lingers(spec: &KafkaSpec) -> bool {
    let names = ["linger.ms", "queue.buffering.max.ms"];
    let mut values = names.iter().filter_map(|name| spec.properties.get(*name));
    values.any(|value| value.trim().parse::<f64>() != Ok(0.0))
}

/// The settings that the guarantees require, and otherwise those that had the best results in measurements. Security
/// has librdkafka's defaults: no encryption and no login, unless the operator sets them.
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
        // Records that arrive while five requests are in flight are batched even so (docs/decisions/batching.md).
        ("linger.ms", "0"),
        ("batch.num.messages", "50000"),
        ("socket.keepalive.enable", "true"),
        ("reconnect.backoff.ms", "50"),
        ("reconnect.backoff.max.ms", "1000"),
        // Brokers close idle connections regularly, so this is not logged.
        ("log.connection.close", "false"),
        ("allow.auto.create.topics", "false"),
        ("client.id", spec.client_id.as_str()),
        ("bootstrap.servers", spec.brokers.as_str()),
    ] {
        config.set(name, value);
    }
    if let Some(transaction) = &spec.transaction {
        config.set(TRANSACTIONAL_ID, &transaction.id);
        config.set("transaction.timeout.ms", transaction.timeout.as_millis().to_string());
    }
    config.set("queue.buffering.max.messages", queue_messages(spec).to_string());
    SizeLimits::of(spec).put(spec, &mut config);
    config
}

/// More than twice the events that the pipeline allows in flight. The pipeline's bound is the effective one;
/// librdkafka's queue is never full in normal operation.
fn queue_messages(spec: &KafkaSpec) -> usize {
    spec.in_flight_events.saturating_mul(2).saturating_add(1_000).min(10_000_000)
}

// The names of librdkafka's producer properties (CONFIGURATION.md of librdkafka 2.12.1), for suggestions in messages.
// librdkafka alone decides whether a name is known.

/// Every property that an operator may write, in alphabetical order.
pub(super) const NAMES: &[&str] = &[
    "acks",
    "allow.auto.create.topics",
    "api.version.fallback.ms",
    "api.version.request",
    "api.version.request.timeout.ms",
    "batch.num.messages",
    "batch.size",
    "bootstrap.servers",
    "broker.address.family",
    "broker.address.ttl",
    "broker.version.fallback",
    "client.dns.lookup",
    "client.id",
    "client.rack",
    "compression.codec",
    "compression.level",
    "compression.type",
    "connections.max.idle.ms",
    "debug",
    "delivery.report.only.error",
    "delivery.timeout.ms",
    "enable.gapless.guarantee",
    "enable.idempotence",
    "enable.metrics.push",
    "enable.random.seed",
    "enable.sasl.oauthbearer.unsecure.jwt",
    "enable.ssl.certificate.verification",
    "https.ca.location",
    "https.ca.pem",
    "internal.termination.signal",
    "isolation.level",
    "linger.ms",
    "log.connection.close",
    "log.queue",
    "log.thread.name",
    "max.in.flight",
    "max.in.flight.requests.per.connection",
    "message.copy.max.bytes",
    "message.max.bytes",
    "message.send.max.retries",
    "message.timeout.ms",
    "metadata.broker.list",
    "metadata.max.age.ms",
    "metadata.recovery.rebootstrap.trigger.ms",
    "metadata.recovery.strategy",
    "partitioner",
    "plugin.library.paths",
    "produce.offset.report",
    "queue.buffering.backpressure.threshold",
    "queue.buffering.max.kbytes",
    "queue.buffering.max.messages",
    "queue.buffering.max.ms",
    "queuing.strategy",
    "receive.message.max.bytes",
    "reconnect.backoff.jitter.ms",
    "reconnect.backoff.max.ms",
    "reconnect.backoff.ms",
    "request.required.acks",
    "request.timeout.ms",
    "retries",
    "retry.backoff.max.ms",
    "retry.backoff.ms",
    "sasl.kerberos.keytab",
    "sasl.kerberos.kinit.cmd",
    "sasl.kerberos.min.time.before.relogin",
    "sasl.kerberos.principal",
    "sasl.kerberos.service.name",
    "sasl.mechanism",
    "sasl.mechanisms",
    "sasl.oauthbearer.assertion.algorithm",
    "sasl.oauthbearer.assertion.claim.aud",
    "sasl.oauthbearer.assertion.claim.exp.seconds",
    "sasl.oauthbearer.assertion.claim.iss",
    "sasl.oauthbearer.assertion.claim.jti.include",
    "sasl.oauthbearer.assertion.claim.nbf.seconds",
    "sasl.oauthbearer.assertion.claim.sub",
    "sasl.oauthbearer.assertion.file",
    "sasl.oauthbearer.assertion.jwt.template.file",
    "sasl.oauthbearer.assertion.private.key.file",
    "sasl.oauthbearer.assertion.private.key.passphrase",
    "sasl.oauthbearer.assertion.private.key.pem",
    "sasl.oauthbearer.client.credentials.client.id",
    "sasl.oauthbearer.client.credentials.client.secret",
    "sasl.oauthbearer.client.id",
    "sasl.oauthbearer.client.secret",
    "sasl.oauthbearer.config",
    "sasl.oauthbearer.extensions",
    "sasl.oauthbearer.grant.type",
    "sasl.oauthbearer.metadata.authentication.type",
    "sasl.oauthbearer.method",
    "sasl.oauthbearer.scope",
    "sasl.oauthbearer.token.endpoint.url",
    "sasl.password",
    "sasl.username",
    "security.protocol",
    "socket.blocking.max.ms",
    "socket.connection.setup.timeout.ms",
    "socket.keepalive.enable",
    "socket.max.fails",
    "socket.nagle.disable",
    "socket.receive.buffer.bytes",
    "socket.send.buffer.bytes",
    "socket.timeout.ms",
    "ssl.ca.certificate.stores",
    "ssl.ca.location",
    "ssl.ca.pem",
    "ssl.certificate.location",
    "ssl.certificate.pem",
    "ssl.cipher.suites",
    "ssl.crl.location",
    "ssl.curves.list",
    "ssl.endpoint.identification.algorithm",
    "ssl.engine.id",
    "ssl.engine.location",
    "ssl.key.location",
    "ssl.key.password",
    "ssl.key.pem",
    "ssl.keystore.location",
    "ssl.keystore.password",
    "ssl.providers",
    "ssl.sigalgs.list",
    "statistics.interval.ms",
    "sticky.partitioning.linger.ms",
    "topic.blacklist",
    "topic.metadata.propagation.max.ms",
    "topic.metadata.refresh.fast.cnt",
    "topic.metadata.refresh.fast.interval.ms",
    "topic.metadata.refresh.interval.ms",
    "topic.metadata.refresh.sparse",
    "transaction.timeout.ms",
    "transactional.id",
];

// Login methods that this build does not support. They are refused here, because librdkafka's own message only says
// "recompile", or librdkafka accepts the property and the login fails later.
//
// `builtin.features` lists what librdkafka was built with. Postrider's own build has neither Cyrus SASL (Kerberos) nor
// libcurl (OIDC tokens); docs/decisions/logins.md has the reasons.

/// Alternatives that every broker supports.
const INSTEAD: &str = "use SCRAM-SHA-512 or PLAIN over SASL_SSL (sasl.username, sasl.password), or a TLS client \
                       certificate (ssl.certificate.location, ssl.key.location)";
/// Alternatives at Amazon's managed service.
const INSTEAD_MSK: &str = "Amazon MSK also takes SASL/SCRAM (port 9096, user and password in AWS Secrets Manager: \
                           sasl.mechanism = SCRAM-SHA-512) and TLS client certificates (port 9094)";
/// The alternative to the property in which Java's clients have the whole login.
const JAAS: &str = "write user and password into sasl.username and sasl.password";

const KERBEROS: &str = "Kerberos (GSSAPI), and this build has no Cyrus SASL";
const OIDC: &str = "OAuth tokens (OAUTHBEARER, OIDC), and this build has no libcurl to fetch them";
const MSK: &str =
    "the IAM login of Amazon MSK, whose signed tokens only Amazon's Java classes make";
const JAVA: &str = "a login of the Java client, and librdkafka has no such property";

/// The names of the property for the login method.
const MECHANISM: [&str; 2] = ["sasl.mechanisms", "sasl.mechanism"];

/// Optional login methods that librdkafka was built with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Build {
    kerberos: bool,
    oidc: bool,
}

impl Build {
    /// The methods of this process' librdkafka, from `builtin.features`.
    pub(super) fn here() -> Self {
        let native = ClientConfig::new().create_native_config();
        let features = native.and_then(|native| native.get("builtin.features"));
        let features = features.unwrap_or_default();
        let has = |wanted: &str| features.split(',').any(|feature| feature.trim() == wanted);
        Self { kerberos: has("sasl_gssapi"), oidc: has("oidc") || has("sasl_oauthbearer_oidc") }
    }

    /// Refuses a property that requests a login method which this build does not support.
    pub(super) fn allows(self, name: &str, value: &str) -> Result<(), OpenError> {
        let lacks =
            |what, instead| Err(OpenError::NoLogin { name: name.to_owned(), what, instead });
        let value = value.trim();
        let java = [
            "sasl.jaas.config",
            "sasl.client.callback.handler.class",
            "sasl.login.callback.handler.class",
        ];
        let msk = value.to_ascii_lowercase().contains("software.amazon.msk.auth.iam");
        if msk || (MECHANISM.contains(&name) && value.eq_ignore_ascii_case("AWS_MSK_IAM")) {
            return lacks(MSK, INSTEAD_MSK);
        }
        if java.contains(&name) || name.starts_with("sasl.login.") {
            return lacks(JAVA, if name == "sasl.jaas.config" { JAAS } else { INSTEAD });
        }
        let mechanism =
            |wanted: &str| MECHANISM.contains(&name) && value.eq_ignore_ascii_case(wanted);
        if !self.kerberos && (mechanism("GSSAPI") || name.starts_with("sasl.kerberos.")) {
            return lacks(KERBEROS, INSTEAD);
        }
        // Without OIDC nothing provides a token. librdkafka's unsecured token is refused because it expires.
        if !self.oidc && (mechanism("OAUTHBEARER") || name.starts_with("sasl.oauthbearer.")) {
            return lacks(OIDC, INSTEAD);
        }
        Ok(())
    }

    /// Refuses properties that request SASL without a mechanism if this build does not support librdkafka's default
    /// mechanism, GSSAPI.
    pub(super) fn allows_all(self, spec: &KafkaSpec) -> Result<(), OpenError> {
        self.allows_login(&spec.properties)
    }

    fn allows_login(self, properties: &BTreeMap<String, String>) -> Result<(), OpenError> {
        let protocol = properties.get("security.protocol");
        let sasl =
            protocol.is_some_and(|text| text.trim().to_ascii_lowercase().starts_with("sasl"));
        let named = MECHANISM.iter().any(|name| properties.contains_key(*name));
        if sasl && !named && !self.kerberos {
            return Err(OpenError::NoMechanism);
        }
        Ok(())
    }
}

#[cfg(test)]
mod logins_tests {
    use super::*;
    use std::collections::BTreeMap;

    const NEITHER: Build = Build { kerberos: false, oidc: false };

    fn what(build: Build, name: &str, value: &str) -> Option<&'static str> {
        match build.allows(name, value) {
            Ok(()) => None,
            Err(OpenError::NoLogin { what, name: told, instead }) => {
                assert_eq!(told, name);
                assert!(!instead.is_empty());
                Some(what)
            }
            Err(other) => panic!("{other}"),
        }
    }

    /// A build with more features refuses less: the rules depend on what librdkafka reports about itself.
    #[test]
    fn logins_that_a_build_lacks_are_refused_by_name() {
        let both = Build { kerberos: true, oidc: true };
        for (name, value, without, with) in [
            ("sasl.mechanism", "GSSAPI", Some(KERBEROS), None),
            ("sasl.mechanisms", "gssapi", Some(KERBEROS), None),
            ("sasl.kerberos.service.name", "kafka", Some(KERBEROS), None),
            ("sasl.kerberos.keytab", "/x", Some(KERBEROS), None),
            ("sasl.mechanism", "OAUTHBEARER", Some(OIDC), None),
            ("sasl.oauthbearer.method", "oidc", Some(OIDC), None),
            ("sasl.oauthbearer.token.endpoint.url", "https://x", Some(OIDC), None),
            ("sasl.mechanism", "AWS_MSK_IAM", Some(MSK), Some(MSK)),
            (
                "sasl.jaas.config",
                "software.amazon.msk.auth.iam.IAMLoginModule required;",
                Some(MSK),
                Some(MSK),
            ),
            (
                "sasl.client.callback.handler.class",
                "software.amazon.msk.auth.iam.IAMClientCallbackHandler",
                Some(MSK),
                Some(MSK),
            ),
            (
                "sasl.jaas.config",
                "org.apache.kafka.common.security.scram.ScramLoginModule required;",
                Some(JAVA),
                Some(JAVA),
            ),
            ("sasl.login.callback.handler.class", "com.example.Login", Some(JAVA), Some(JAVA)),
            ("sasl.mechanism", "PLAIN", None, None),
            ("sasl.mechanism", "SCRAM-SHA-512", None, None),
            ("sasl.username", "relay", None, None),
            ("ssl.ca.location", "/x", None, None),
        ] {
            assert_eq!(what(NEITHER, name, value), without, "{name} {value}");
            assert_eq!(what(both, name, value), with, "{name} {value}");
        }
    }

    /// librdkafka's default mechanism is GSSAPI.
    #[test]
    fn mechanism_is_named_where_the_default_is_one_that_the_build_lacks() {
        let spec = |properties: &[(&str, &str)]| KafkaSpec {
            brokers: "k1:9092".to_owned(),
            properties: properties
                .iter()
                .map(|(n, v)| ((*n).to_owned(), (*v).to_owned()))
                .collect(),
            producers: 1,
            client_id: "postrider".to_owned(),
            in_flight_events: 1,
            in_flight_bytes: 1,
            size_max: None,
            create_topics: None,
            transaction: None,
            secret_files: BTreeMap::new(),
        };
        let sasl = ("security.protocol", "SASL_SSL");
        assert!(matches!(NEITHER.allows_all(&spec(&[sasl])), Err(OpenError::NoMechanism)));
        assert!(NEITHER.allows_all(&spec(&[sasl, ("sasl.mechanism", "PLAIN")])).is_ok());
        assert!(NEITHER.allows_all(&spec(&[("security.protocol", "SSL")])).is_ok());
        assert!(Build { kerberos: true, oidc: false }.allows_all(&spec(&[sasl])).is_ok());
    }

    /// The documents describe this build. A build with other features requires a change of the documents.
    #[test]
    fn this_build_has_what_the_documents_say() {
        assert_eq!(Build::here(), NEITHER);
    }
}
