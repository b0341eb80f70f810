//! The operator's secrets and certificates, which may be rotated while the sink runs.
//!
//! librdkafka takes a password and its TLS files once, when a producer is made. A SASL name and password can be
//! replaced in a live producer, which uses them at its next login. Everything else needs new producers; the metadata
//! thread asks for those only when a connection fails, because a connection that works needs no new certificate.
//!
//! A key and its certificate are two files. Between the two writes of a rotation no producer can be made of them, so
//! the metadata thread makes one on trial first.

use super::properties;
use super::spec::{KafkaSpec, OpenError};
use postrider_core::secret_file::SecretFile;
use rdkafka::config::ClientConfig;
use rdkafka::producer::BaseProducer;
use std::collections::BTreeMap;
use std::path::Path;
use std::time::SystemTime;

/// The properties that can be replaced in a live producer.
const USERNAME: &str = "sasl.username";
const PASSWORD: &str = "sasl.password";

/// The properties that name a file which librdkafka reads when a producer is made.
const LOCATIONS: [&str; 5] = [
    "ssl.ca.location",
    "ssl.certificate.location",
    "ssl.crl.location",
    "ssl.key.location",
    "ssl.keystore.location",
];

/// When a file was written last, and its length: what a rotation changes, without a look at the content.
type Stamp = Option<(SystemTime, u64)>;

/// What the secret files hold at one moment. No `Debug`.
#[derive(Clone, PartialEq, Eq, Default)]
pub(super) struct Secrets {
    /// By property, those that come from a file.
    values: BTreeMap<String, String>,
    /// Of the files that librdkafka reads itself.
    stamps: Vec<Stamp>,
}

/// A SASL login.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct SaslLogin {
    pub(super) username: String,
    pub(super) password: String,
}

impl Secrets {
    /// Reads all files. A file that can't be read just now keeps the value of `before`, or else that of the start: in
    /// the middle of a rotation a file may be missing for a moment.
    pub(super) fn read(spec: &KafkaSpec, before: &Self) -> Self {
        let value = |(name, file): (&String, &SecretFile)| {
            let value = file.read().or_else(|error| {
                tracing::debug!(target: "postrider::kafka", %error, "could not read a secret again");
                before.values.get(name).or_else(|| spec.properties.get(name)).cloned().ok_or(())
            });
            value.ok().map(|value| (name.clone(), value))
        };
        let values = spec.secret_files.iter().filter_map(value).collect();
        let located = LOCATIONS.iter().filter_map(|name| spec.properties.get(*name));
        let stamps = located.map(|path| stamp(Path::new(path))).collect();
        Self { values, stamps }
    }

    /// The properties that come from files, with their values.
    pub(super) fn values(&self) -> impl Iterator<Item = (&str, &str)> {
        self.values.iter().map(|(name, value)| (name.as_str(), value.as_str()))
    }

    /// The SASL login, where a part of it comes from a file.
    pub(super) fn login(&self, spec: &KafkaSpec) -> Option<SaslLogin> {
        if !self.values.contains_key(USERNAME) && !self.values.contains_key(PASSWORD) {
            return None;
        }
        let of = |name: &str| self.values.get(name).or_else(|| spec.properties.get(name)).cloned();
        Some(SaslLogin { username: of(USERNAME)?, password: of(PASSWORD)? })
    }

    /// Whether a producer depends on files that may change while the sink runs.
    pub(super) fn are_in_files(spec: &KafkaSpec) -> bool {
        !spec.secret_files.is_empty()
            || LOCATIONS.iter().any(|name| spec.properties.contains_key(*name))
    }

    /// Makes a producer of them and of the files as they are now, and drops it.
    ///
    /// # Errors
    /// None can be made.
    pub(super) fn try_out(&self, spec: &KafkaSpec) -> Result<(), OpenError> {
        self.config(spec)?.create::<BaseProducer>().map(drop).map_err(OpenError::Create)
    }

    /// librdkafka's configuration for `spec`, with the secrets as they are.
    ///
    /// # Errors
    /// As [`properties::client_config`].
    pub(super) fn config(&self, spec: &KafkaSpec) -> Result<ClientConfig, OpenError> {
        let mut config = properties::client_config(spec)?;
        for (name, value) in self.values() {
            config.set(properties::our_name(name), value);
        }
        Ok(config)
    }

    /// Whether producers made with `self` differ from producers made with `other` in more than the SASL login.
    pub(super) fn needs_new_producers(&self, other: &Self) -> bool {
        let beside_login = |secrets: &Self| {
            let mut values = secrets.values.clone();
            values.retain(|name, _| name != USERNAME && name != PASSWORD);
            values
        };
        self.stamps != other.stamps || beside_login(self) != beside_login(other)
    }
}

fn stamp(path: &Path) -> Stamp {
    let data = std::fs::metadata(path).ok()?;
    Some((data.modified().ok()?, data.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(dir: &Path) -> KafkaSpec {
        let file = |name: &str| SecretFile::new(dir.join(name));
        let text = |name: &str| dir.join(name).to_str().unwrap().to_owned();
        let properties = [
            (USERNAME, "carrier".to_owned()),
            (PASSWORD, "at the start".to_owned()),
            ("ssl.key.password", "at the start".to_owned()),
            ("ssl.key.location", text("key.pem")),
        ];
        KafkaSpec {
            brokers: "localhost:9092".to_owned(),
            properties: properties.map(|(name, value)| (name.to_owned(), value)).into(),
            secret_files: [(PASSWORD, "sasl"), ("ssl.key.password", "key-password")]
                .map(|(name, of)| (name.to_owned(), file(of)))
                .into(),
            producers: 1,
            client_id: "postrider-test".to_owned(),
            in_flight_events: 1,
            in_flight_bytes: 1,
            size_max: None,
            create_topics: None,
            transaction: None,
        }
    }

    #[test]
    fn a_rotated_login_is_taken_by_live_producers_and_a_rotated_key_by_new_ones() {
        let dir = tempfile::tempdir().unwrap();
        let spec = spec(dir.path());
        let write = |name: &str, text: &str| std::fs::write(dir.path().join(name), text).unwrap();
        write("sasl", "one\n");
        write("key-password", "one");
        write("key.pem", "one");
        let first = Secrets::read(&spec, &Secrets::default());
        let password = |secrets: &Secrets| secrets.login(&spec).unwrap().password;
        assert_eq!(password(&first), "one");
        assert_eq!(first.login(&spec).unwrap().username, "carrier");

        write("sasl", "two");
        let second = Secrets::read(&spec, &first);
        assert_eq!(password(&second), "two");
        assert!(!second.needs_new_producers(&first));

        for (name, text) in [("key-password", "two"), ("key.pem", "a longer one")] {
            write(name, text);
            assert!(Secrets::read(&spec, &second).needs_new_producers(&first), "{name}");
            write(name, "one");
        }
    }

    #[test]
    fn a_file_that_is_missing_for_a_moment_keeps_what_it_held() {
        let dir = tempfile::tempdir().unwrap();
        let spec = spec(dir.path());
        let none = Secrets::read(&spec, &Secrets::default());
        assert_eq!(none.login(&spec).unwrap().password, "at the start");
        std::fs::write(dir.path().join("sasl"), "one").unwrap();
        let first = Secrets::read(&spec, &none);
        std::fs::remove_file(dir.path().join("sasl")).unwrap();
        let second = Secrets::read(&spec, &first);
        assert_eq!(second.login(&spec).unwrap().password, "one");
        assert!(!second.needs_new_producers(&first));
    }
}
