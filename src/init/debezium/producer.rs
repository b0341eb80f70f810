//! Translates settings of the Java producer into settings of librdkafka.

use super::options::{Known, find};
use super::translator::Verdict::{self, NoCounterpart, NotNeeded, Translated};
use super::translator::{self, Translator};
use crate::config::Finding;
use crate::init::InitError;
use crate::init::draft::{PROPERTIES, is_of_login};

const fn same(name: &'static str) -> Known {
    Known { name, verdict: Translated, same: &[], text: "sink.properties, with the same name" }
}

const fn renamed(name: &'static str, text: &'static str) -> Known {
    Known { name, verdict: Translated, same: &[], text }
}

const fn needless(name: &'static str, text: &'static str) -> Known {
    Known { name, verdict: NotNeeded, same: &[], text }
}

const fn without(name: &'static str, text: &'static str) -> Known {
    Known { name, verdict: NoCounterpart, same: &[], text }
}

const PROMISE: &str = "set by Postrider as its guarantees require";
const LOGINS: &str = "this build has no Kerberos, OIDC or MSK IAM login: use SCRAM-SHA-512, PLAIN or a TLS certificate";
const NO_QUEUE: &str = "the limit is flow.in_flight_bytes";

/// The settings of the Java producer.
pub(super) const TABLE: &[Known] = &[
    renamed("bootstrap.servers", "sink.brokers"),
    same("client.id"),
    same("client.dns.lookup"),
    same("client.rack"),
    same("linger.ms"),
    same("batch.size"),
    same("compression.type"),
    renamed("compression.gzip.level", "compression.level"),
    renamed("compression.lz4.level", "compression.level"),
    renamed("compression.zstd.level", "compression.level"),
    renamed("max.request.size", "message.max.bytes"),
    same("request.timeout.ms"),
    same("retry.backoff.ms"),
    same("retry.backoff.max.ms"),
    same("reconnect.backoff.ms"),
    same("reconnect.backoff.max.ms"),
    same("metadata.max.age.ms"),
    same("connections.max.idle.ms"),
    same("socket.connection.setup.timeout.ms"),
    renamed("send.buffer.bytes", "socket.send.buffer.bytes"),
    renamed("receive.buffer.bytes", "socket.receive.buffer.bytes"),
    same("security.protocol"),
    same("sasl.mechanism"),
    without("sasl.kerberos.*", LOGINS),
    renamed("sasl.jaas.config", "sasl.username; the password is not copied: set KAFKA_PASSWORD"),
    without("sasl.login.*", LOGINS),
    without("sasl.oauthbearer.*", LOGINS),
    without("sasl.client.callback.handler.class", LOGINS),
    renamed("ssl.endpoint.identification.algorithm", "the same name; an empty value becomes none"),
    renamed("ssl.truststore.location", "ssl.ca.location, if it is PEM"),
    renamed("ssl.truststore.type", "decides whether the trust store is PEM"),
    needless("ssl.truststore.password", "a PEM file of certificates has no password"),
    without("ssl.truststore.certificates", "write them to a file and set ssl.ca.location"),
    renamed(
        "ssl.keystore.location",
        "ssl.keystore.location, if it is PKCS#12; PEM: ssl.certificate.location, ssl.key.location",
    ),
    renamed("ssl.keystore.type", "decides whether the key store is PKCS#12 or PEM"),
    renamed("ssl.keystore.password", "not copied: set KAFKA_KEYSTORE_PASSWORD"),
    renamed("ssl.key.password", "not copied: set KAFKA_KEY_PASSWORD"),
    without("ssl.keystore.key", "write it to a file and set ssl.key.location"),
    without(
        "ssl.keystore.certificate.chain",
        "write it to a file and set ssl.certificate.location",
    ),
    without("ssl.cipher.suites", "OpenSSL has other names for cipher suites"),
    needless("ssl.*", "OpenSSL's defaults"),
    needless("acks", PROMISE),
    needless("retries", PROMISE),
    needless("delivery.timeout.ms", PROMISE),
    needless("enable.idempotence", PROMISE),
    needless("max.in.flight.requests.per.connection", PROMISE),
    needless("transactional.id", PROMISE),
    needless("transaction.timeout.ms", PROMISE),
    needless("buffer.memory", NO_QUEUE),
    needless("max.block.ms", NO_QUEUE),
    needless("key.serializer", "keys are plain text"),
    needless("value.serializer", "values are the text or bytes of the payload"),
    without("partitioner.class", "partitions are those of Java's default partitioner"),
    needless("partitioner.*", "partitions are those of Java's default partitioner"),
    without("interceptor.classes", "there are no interceptors"),
    needless("metric.reporters", "docs/metrics.md"),
    needless("metrics.*", "docs/metrics.md"),
    needless("enable.metrics.push", "docs/metrics.md"),
    needless("auto.include.jmx.reporter", "docs/metrics.md"),
];

/// Rounds of the search for refused properties.
const ROUNDS_MAX: usize = 20;

/// The producer's name of an option, if it is an option of the producer.
pub(super) fn name_of(option: &str) -> Option<&str> {
    option.strip_prefix("producer.override.").or_else(|| option.strip_prefix("producer."))
}

/// Translates every setting of the producer.
pub(super) fn translate(t: &mut Translator<'_>) {
    let settings: Vec<(String, String)> = t.given_with(|option| name_of(option).map(str::to_owned));
    let get = |name: &str| {
        settings.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    };
    for (name, given) in &settings {
        let Some(known) = find(TABLE, name) else { continue };
        if known.verdict != Translated {
            continue;
        }
        match name.as_str() {
            "bootstrap.servers" => t.draft.set("sink", "brokers", translator::plain(given)),
            "sasl.jaas.config" => jaas(t, given),
            "ssl.truststore.location" => truststore(t, given, get("ssl.truststore.type")),
            "ssl.keystore.location" => keystore(t, given, get("ssl.keystore.type")),
            "ssl.keystore.password"
                if is_pem(get("ssl.keystore.location"), get("ssl.keystore.type")) =>
            {
                answer(t, name, NotNeeded, "a PEM key store has no password");
            }
            "ssl.keystore.password" => secret(t, name, name, given, "KAFKA_KEYSTORE_PASSWORD"),
            "ssl.key.password" => secret(t, name, name, given, "KAFKA_KEY_PASSWORD"),
            "ssl.keystore.type" | "ssl.truststore.type" => {
                let location = name.replace(".type", ".location");
                let is_taken = is_pem(None, Some(given))
                    || (name == "ssl.keystore.type" && given.eq_ignore_ascii_case("PKCS12"));
                if get(&location).is_none() {
                    answer(t, name, NotNeeded, "no store is set");
                } else if !is_taken {
                    let text = format!("a store of this type is not supported: see {location}");
                    answer(t, name, NoCounterpart, &text);
                }
            }
            "ssl.endpoint.identification.algorithm" => {
                let given = if given.trim().is_empty() { "none" } else { given };
                t.property(name, name, translator::plain(given));
            }
            "send.buffer.bytes" | "receive.buffer.bytes" => {
                // -1 is the default of the operating system, which is 0 in librdkafka.
                let given = if given.trim() == "-1" { "0" } else { given };
                t.property(name, &format!("socket.{name}"), translator::plain(given));
            }
            "max.request.size" => t.property(name, "message.max.bytes", translator::plain(given)),
            "compression.gzip.level" | "compression.lz4.level" | "compression.zstd.level" => {
                t.property(name, "compression.level", translator::plain(given));
            }
            name => t.property(name, name, translator::plain(given)),
        }
    }
}

fn answer(t: &mut Translator<'_>, name: &str, verdict: Verdict, text: &str) {
    t.answer_where(|option| name_of(option) == Some(name), verdict, text);
}

/// Reports the properties that are refused. A refused login property stays in the file, so that the file is refused
/// too: without the property the connection might be, for example, unencrypted. Other refused properties are left out.
pub(super) fn answer_refused(t: &mut Translator<'_>) {
    let mut rest = t.draft.clone();
    // When one property is removed, another one may be refused.
    for _ in 0..ROUNDS_MAX {
        let Err(InitError::Refused(findings)) = crate::init::check(&crate::init::text(&rest))
        else {
            return;
        };
        let of = |finding: &Finding| {
            let name = finding.key.split_once(".sink.properties.")?.1.replace('"', "");
            Some((name, finding.message.clone()))
        };
        for (name, why) in findings.list.iter().filter_map(of) {
            let (text, to_do) = if is_of_login(&name) {
                t.draft.keep_refused(&name);
                rest = t.draft.checkable();
                (
                    format!("refused, so the file is invalid until this line is replaced: {why}"),
                    format!("replace \"{name}\" in sink.properties: {why}"),
                )
            } else {
                rest.unset(PROPERTIES, &name);
                t.draft.unset(PROPERTIES, &name);
                (
                    format!("not in the file: {why}"),
                    format!("\"{name}\" was left out of sink.properties: {why}"),
                )
            };
            for option in t.options_of(&name) {
                answer(t, &option, NoCounterpart, &text);
            }
            t.hint(to_do);
        }
    }
}

/// Replaces a secret by a variable: the one of the connector's file if there is one.
fn secret(t: &mut Translator<'_>, option: &str, name: &str, given: &str, variable: &str) {
    let variable = translator::variable(given).unwrap_or_else(|| variable.to_owned());
    t.property(option, name, format!("${{{variable}}}"));
    t.hint(format!(
        "set the environment variable {variable}, or set \"{name}_file\" to a file that contains the value"
    ));
}

/// `….ScramLoginModule required username="u" password="p";`
fn jaas(t: &mut Translator<'_>, given: &str) {
    const OPTION: &str = "sasl.jaas.config";
    let module = given.split_whitespace().next().unwrap_or_default();
    if !(module.ends_with("ScramLoginModule") || module.ends_with("PlainLoginModule")) {
        let text =
            "only PLAIN and SCRAM are translated: set librdkafka's sasl.* in sink.properties";
        answer(t, OPTION, NoCounterpart, text);
        return;
    }
    let field = |name: &str| {
        let (_, rest) = given.split_once(&format!("{name}="))?;
        let quote = rest.chars().next().filter(|c| matches!(c, '"' | '\''))?;
        rest.get(1..)?.split(quote).next().map(str::to_owned)
    };
    let user = field("username").unwrap_or_default();
    t.property(OPTION, "sasl.username", translator::named(&user, "KAFKA_USERNAME"));
    let password = field("password").unwrap_or_default();
    secret(t, OPTION, "sasl.password", &password, "KAFKA_PASSWORD");
}

fn is_pem(location: Option<&str>, kind: Option<&str>) -> bool {
    let named =
        location.is_some_and(|path| [".pem", ".crt", ".cer"].iter().any(|end| path.ends_with(end)));
    kind.map_or(named, |kind| kind.eq_ignore_ascii_case("PEM"))
}

fn truststore(t: &mut Translator<'_>, path: &str, kind: Option<&str>) {
    const OPTION: &str = "ssl.truststore.location";
    if is_pem(Some(path), kind) {
        t.property(OPTION, "ssl.ca.location", translator::plain(path));
        return;
    }
    let text = "a Java key store: keytool -exportcert -rfc -keystore FILE -alias NAME > ca.pem, and set \
                ssl.ca.location to ca.pem";
    answer(t, OPTION, NoCounterpart, text);
}

fn keystore(t: &mut Translator<'_>, path: &str, kind: Option<&str>) {
    const OPTION: &str = "ssl.keystore.location";
    let is_pkcs12 = kind.map_or_else(
        || [".p12", ".pfx"].iter().any(|end| path.ends_with(end)),
        |kind| kind.eq_ignore_ascii_case("PKCS12"),
    );
    if is_pem(Some(path), kind) {
        t.property(OPTION, "ssl.certificate.location", translator::plain(path));
        t.property(OPTION, "ssl.key.location", translator::plain(path));
    } else if is_pkcs12 {
        t.property(OPTION, OPTION, translator::plain(path));
    } else {
        let text = "a Java key store: keytool -importkeystore -deststoretype PKCS12, and set ssl.keystore.location to \
                    the result";
        answer(t, OPTION, NoCounterpart, text);
    }
}
