//! Logins that this build can't make, refused by name before librdkafka is asked: its own words are "recompile", or the
//! property is taken and the login fails later.
//!
//! What librdkafka was built with is what it says of itself (`builtin.features`). Postrider's own build has neither
//! Cyrus SASL (Kerberos) nor libcurl (OIDC tokens); docs/decisions/logins.md has the reasons.

use crate::{KafkaSpec, SinkError};
use rdkafka::config::ClientConfig;

/// What to use instead, of what every broker has.
const INSTEAD: &str = "use SCRAM-SHA-512 or PLAIN over SASL_SSL (sasl.username, sasl.password), or a TLS client \
                       certificate (ssl.certificate.location, ssl.key.location)";
/// The same at Amazon's managed service.
const INSTEAD_MSK: &str = "Amazon MSK also takes SASL/SCRAM (port 9096, user and password in AWS Secrets Manager: \
                           sasl.mechanism = SCRAM-SHA-512) and TLS client certificates (port 9094)";
/// Where Java's clients write the login into one property.
const JAAS: &str = "write user and password into sasl.username and sasl.password";

const KERBEROS: &str = "Kerberos (GSSAPI), and this build has no Cyrus SASL";
const OIDC: &str = "OAuth tokens (OAUTHBEARER, OIDC), and this build has no libcurl to fetch them";
const MSK: &str =
    "the IAM login of Amazon MSK, whose signed tokens only Amazon's Java classes make";
const JAVA: &str = "a login of the Java client, and librdkafka has no such property";

/// The names of the property that says how to log in.
const MECHANISM: [&str; 2] = ["sasl.mechanisms", "sasl.mechanism"];

/// What librdkafka was built with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Build {
    kerberos: bool,
    oidc: bool,
}

impl Build {
    /// By its own word.
    pub(super) fn here() -> Self {
        let native = ClientConfig::new().create_native_config();
        let features = native.and_then(|native| native.get("builtin.features"));
        let features = features.unwrap_or_default();
        let has = |wanted: &str| features.split(',').any(|feature| feature.trim() == wanted);
        Self { kerberos: has("sasl_gssapi"), oidc: has("oidc") || has("sasl_oauthbearer_oidc") }
    }

    /// Whether one property asks for a login that can't be made.
    pub(super) fn allows(self, name: &str, value: &str) -> Result<(), SinkError> {
        let lacks =
            |what, instead| Err(SinkError::NoLogin { name: name.to_owned(), what, instead });
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
        // Without OIDC there is nobody to give a token: librdkafka's unsecured one is refused for its expiry.
        if !self.oidc && (mechanism("OAUTHBEARER") || name.starts_with("sasl.oauthbearer.")) {
            return lacks(OIDC, INSTEAD);
        }
        Ok(())
    }

    /// Whether all of them ask for the mechanism that librdkafka takes where none is named.
    pub(super) fn allows_all(self, spec: &KafkaSpec) -> Result<(), SinkError> {
        let protocol = spec.properties.get("security.protocol");
        let sasl =
            protocol.is_some_and(|text| text.trim().to_ascii_lowercase().starts_with("sasl"));
        let named = MECHANISM.iter().any(|name| spec.properties.contains_key(*name));
        if sasl && !named && !self.kerberos {
            return Err(SinkError::NoMechanism);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    const NEITHER: Build = Build { kerberos: false, oidc: false };

    fn what(build: Build, name: &str, value: &str) -> Option<&'static str> {
        match build.allows(name, value) {
            Ok(()) => None,
            Err(SinkError::NoLogin { what, name: told, instead }) => {
                assert_eq!(told, name);
                assert!(!instead.is_empty());
                Some(what)
            }
            Err(other) => panic!("{other}"),
        }
    }

    /// A build that has more is told nothing: the table holds for whatever librdkafka says of itself.
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

    /// librdkafka would take GSSAPI.
    #[test]
    fn mechanism_is_named_where_the_default_is_one_that_the_build_lacks() {
        let spec = |properties: &[(&str, &str)]| KafkaSpec {
            brokers: "k1:9092".to_owned(),
            properties: properties
                .iter()
                .map(|(n, v)| ((*n).to_owned(), (*v).to_owned()))
                .collect(),
            shards: 1,
            client_id: "postrider".to_owned(),
            in_flight_events: 1,
            in_flight_bytes: 1,
            size_max: None,
            create_topics: None,
            secret_files: BTreeMap::new(),
        };
        let sasl = ("security.protocol", "SASL_SSL");
        assert!(matches!(NEITHER.allows_all(&spec(&[sasl])), Err(SinkError::NoMechanism)));
        assert!(NEITHER.allows_all(&spec(&[sasl, ("sasl.mechanism", "PLAIN")])).is_ok());
        assert!(NEITHER.allows_all(&spec(&[("security.protocol", "SSL")])).is_ok());
        assert!(Build { kerberos: true, oidc: false }.allows_all(&spec(&[sasl])).is_ok());
    }

    /// The documents say so: a build that has them changes the documents.
    #[test]
    fn this_build_has_what_the_documents_say() {
        assert_eq!(Build::here(), NEITHER);
    }
}
