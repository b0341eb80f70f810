//! The keys of `[pipelines.NAME.payload.claim_check]`.

use postrider_core::secret_file::SecretFile;
use postrider_core::units::{ShowDuration, ShowSize};
use postrider_sinks::{Keys, Shown, ShownValue, SinkError};
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

const TABLE: &str = "payload.claim_check";

const KIB: u64 = 1 << 10;
const DAY: Duration = Duration::from_hours(24);

/// The bound, where the key is not given. Unit: bytes.
const ABOVE: u64 = 512 * KIB;

/// The largest payload that one request can store, of S3. PostgreSQL has no value so large. Unit: bytes.
const ABOVE_MAX: u64 = 1 << 30;

/// The bounds of `keep`.
const KEEP: Duration = Duration::from_hours(14 * 24);
const KEEP_MAX: Duration = Duration::from_hours(3650 * 24);

/// The time for a request, where the key is not given.
const TIMEOUT: Duration = Duration::from_secs(30);

/// The region, where neither the key nor the environment names one. Stores other than AWS accept it.
const REGION: &str = "us-east-1";

/// A prefix is a part of each header, and is not longer. Unit: bytes.
const PREFIX_BYTES_MAX: usize = 200;

/// Where large payloads go, and from which size on.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct ClaimCheckConfig {
    /// A payload of more bytes goes to storage. Unit: bytes.
    pub(super) above: usize,
    pub(super) bucket: StorageBucket,
    pub(super) login: StorageLogin,
    /// The authorities of the server; without it those of the system.
    pub(super) ca_file: Option<PathBuf>,
    /// The longest time for a request, without the time that its bytes need.
    pub(super) timeout: Duration,
    /// How long an object must be readable after its last record was published.
    pub(super) keep: Duration,
}

/// A bucket, and how it is reached.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct StorageBucket {
    pub(super) name: String,
    /// Without a slash at its ends; may be empty.
    pub(super) prefix: String,
    /// The URL of the store, without a slash at its end.
    pub(super) endpoint: String,
    pub(super) region: String,
    /// The bucket's name is in the path, not in the host's name.
    pub(super) in_path: bool,
}

impl StorageBucket {
    /// The name of an object below the prefix.
    pub(super) fn key(&self, name: &str) -> String {
        if self.prefix.is_empty() { name.to_owned() } else { format!("{}/{name}", self.prefix) }
    }

    /// The name of the object with this digest, in base 16.
    pub(super) fn key_of(&self, digest: &str) -> String {
        let start = digest.get(..2).unwrap_or_default();
        self.key(&format!("sha256/{start}/{digest}"))
    }

    /// The reference to an object.
    pub(super) fn reference(&self, key: &str) -> String {
        format!("s3://{}/{key}", self.name)
    }
}

/// Where the login is from.
#[derive(Clone, PartialEq)]
pub(super) enum StorageLogin {
    /// Files, read for each request.
    Files { access_key: SecretFile, secret_key: SecretFile, session_token: Option<SecretFile> },
    /// Variables of the environment.
    Environment { access_key: String, secret_key: String, session_token: Option<String> },
    /// Neither.
    Missing,
}

impl fmt::Debug for StorageLogin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Files { .. } => "Files",
            Self::Environment { .. } => "Environment",
            Self::Missing => "Missing",
        })
    }
}

/// What the table has, for `postrider config show`.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct ClaimCheckKeys {
    above: u64,
    texts: [(&'static str, String); 8],
    timeout: Duration,
    keep: Duration,
}

impl ClaimCheckConfig {
    /// Reads the keys. Without `url` there is no claim check.
    pub(crate) fn read(keys: &dyn Keys) -> (Option<Self>, ClaimCheckKeys) {
        let above = keys.size("above", ABOVE, 1..=ABOVE_MAX);
        let text = |key| keys.text(key).unwrap_or_default();
        let (url, endpoint, region) = (text("url"), text("endpoint"), text("region"));
        let words = ["auto", "path", "host"];
        let addressing = keys.word("addressing", &words, &[]);
        let timeout =
            keys.duration("timeout", TIMEOUT, Duration::from_secs(1)..=Duration::from_mins(10));
        let keep = keys.duration("keep", KEEP, DAY..=KEEP_MAX);
        let names = ["access_key_file", "secret_key_file", "session_token_file"];
        let is_given = |name| keys.text(name).is_some_and(|file| !file.is_empty());
        let files = names.map(|name| if is_given(name) { keys.secret(name) } else { None });
        let ca_file = text("ca_file");
        if keys.is_present() && url.is_empty() && !endpoint.is_empty() {
            let message = "is missing: claim check is off without it; for example url = \
                           \"s3://bucket/prefix\"";
            keys.error("url", message.to_owned());
        }
        let shown = |index: usize| {
            let file: Option<&(String, SecretFile)> = files.get(index).and_then(Option::as_ref);
            file.map(|(name, _)| name.clone()).unwrap_or_default()
        };
        let shown = ClaimCheckKeys {
            above,
            texts: [
                ("url", url.clone()),
                ("endpoint", endpoint.clone()),
                ("region", region.clone()),
                ("addressing", words.get(addressing).copied().unwrap_or_default().to_owned()),
                ("access_key_file", shown(0)),
                ("secret_key_file", shown(1)),
                ("session_token_file", shown(2)),
                ("ca_file", ca_file.clone()),
            ],
            timeout,
            keep,
        };
        let login = login(keys, files);
        let bucket = bucket(keys, &url, (endpoint, region), addressing);
        keys.finish();
        let config = bucket.map(|bucket| Self {
            above: usize::try_from(above).unwrap_or(usize::MAX),
            bucket,
            login,
            ca_file: Some(ca_file).filter(|file| !file.is_empty()).map(PathBuf::from),
            timeout,
            keep,
        });
        (config, shown)
    }

    /// The mistake that there is no login. It is none of the configuration file: a command that publishes nothing needs
    /// no login.
    pub(super) fn missing_login(&self) -> Option<SinkError> {
        match &self.login {
            StorageLogin::Files { .. } | StorageLogin::Environment { .. } => None,
            StorageLogin::Missing => Some(SinkError::new(
                "payload.claim_check has no login for the storage",
                "set access_key_file and secret_key_file of payload.claim_check, or AWS_ACCESS_KEY_ID and \
                 AWS_SECRET_ACCESS_KEY in the environment",
            )),
        }
    }

    /// How old an object may be when a record refers to it: an older one is stored again. What is deleted after
    /// `keep` and this time is never deleted less than `keep` after it was referred to.
    pub(super) fn renewed_after(&self) -> Duration {
        self.keep / 4
    }

    /// The age in days after which a rule of the bucket may delete objects.
    pub(super) fn days_min(&self) -> u64 {
        (self.keep + self.renewed_after()).as_secs().div_ceil(DAY.as_secs())
    }
}

impl Default for ClaimCheckKeys {
    fn default() -> Self {
        let names = [
            "url",
            "endpoint",
            "region",
            "addressing",
            "access_key_file",
            "secret_key_file",
            "session_token_file",
            "ca_file",
        ];
        let texts = names.map(|name| (name, String::new()));
        Self { above: ABOVE, texts, timeout: TIMEOUT, keep: KEEP }
    }
}

impl ClaimCheckKeys {
    /// The keys with the values in effect.
    pub(crate) fn values(&self) -> Vec<Shown> {
        let text = |key: &str, value: String| Shown {
            table: TABLE,
            key: key.to_owned(),
            value: ShownValue::Text(value),
        };
        let mut rows = vec![text("above", ShowSize(self.above).to_string())];
        rows.extend(self.texts.iter().map(|(key, value)| text(key, value.clone())));
        rows.push(text("timeout", ShowDuration(self.timeout).to_string()));
        rows.push(text("keep", ShowDuration(self.keep).to_string()));
        rows
    }
}

/// The login that the keys or the environment name: all of it from one place.
fn login(keys: &dyn Keys, files: [Option<(String, SecretFile)>; 3]) -> StorageLogin {
    let [access_key, secret_key, session_token] = files.map(|file| file.map(|(_, file)| file));
    let variable = |name| keys.variable(name).filter(|value| !value.is_empty());
    match (access_key, secret_key) {
        (Some(access_key), Some(secret_key)) => {
            StorageLogin::Files { access_key, secret_key, session_token }
        }
        (None, None) => {
            let (access, secret) =
                (variable("AWS_ACCESS_KEY_ID"), variable("AWS_SECRET_ACCESS_KEY"));
            match (access, secret) {
                (Some(access_key), Some(secret_key)) => StorageLogin::Environment {
                    access_key,
                    secret_key,
                    session_token: variable("AWS_SESSION_TOKEN"),
                },
                (Some(_) | None, Some(_) | None) => StorageLogin::Missing,
            }
        }
        (Some(_), None) => {
            let message =
                "is missing: give both access_key_file and secret_key_file, or none of them";
            keys.error("secret_key_file", message.to_owned());
            StorageLogin::Missing
        }
        (None, Some(_)) => {
            let message =
                "is missing: give both access_key_file and secret_key_file, or none of them";
            keys.error("access_key_file", message.to_owned());
            StorageLogin::Missing
        }
    }
}

/// Reads `s3://bucket/prefix`, and where that is.
fn bucket(
    keys: &dyn Keys,
    url: &str,
    (endpoint, region): (String, String),
    addressing: usize,
) -> Option<StorageBucket> {
    if url.is_empty() {
        return None;
    }
    let (name, prefix) = match parse_place(url) {
        Ok(place) => place,
        Err(why) => {
            keys.error("url", why.to_owned());
            return None;
        }
    };
    let variable = |name| keys.variable(name).filter(|value| !value.is_empty());
    let region = Some(region).filter(|region| !region.is_empty());
    let region = region.or_else(|| variable("AWS_REGION"));
    let region = region.or_else(|| variable("AWS_DEFAULT_REGION"));
    let region = region.unwrap_or_else(|| REGION.to_owned());
    if !region.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte)) {
        keys.error("region", "must have a to z, A to Z, 0 to 9, - and _ only".to_owned());
        return None;
    }
    let is_aws = endpoint.is_empty();
    let endpoint = if is_aws { format!("https://s3.{region}.amazonaws.com") } else { endpoint };
    if let Err(why) = check_endpoint(&endpoint) {
        keys.error("endpoint", why.to_owned());
        return None;
    }
    let in_path = match addressing {
        1 => true,
        2 => false,
        // A certificate for *.s3.REGION.amazonaws.com is not valid for a name with one more dot.
        _ => !is_aws || name.contains('.'),
    };
    let endpoint = endpoint.trim_end_matches('/').to_owned();
    Some(StorageBucket {
        name: name.to_owned(),
        prefix: prefix.to_owned(),
        endpoint,
        region,
        in_path,
    })
}

/// Bucket and prefix.
fn parse_place(url: &str) -> Result<(&str, &str), &'static str> {
    let Some(place) = url.strip_prefix("s3://") else {
        return Err(
            "expected s3://bucket or s3://bucket/prefix; the address of a store that is not AWS is key endpoint",
        );
    };
    let (name, prefix) = place.split_once('/').unwrap_or((place, ""));
    let is_name = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
    if !(3..=63).contains(&name.len()) || !name.bytes().all(is_name) {
        return Err(
            "the bucket's name must have 3 to 63 characters: a to z, A to Z, 0 to 9, -, . and _",
        );
    }
    let prefix = prefix.strip_suffix('/').unwrap_or(prefix);
    let is_part = |part: &str| {
        !part.is_empty()
            && part != "."
            && part != ".."
            && part.bytes().all(|b| is_name(b) || b == b'=')
    };
    if !prefix.is_empty() && !prefix.split('/').all(is_part) {
        return Err("the prefix must have a to z, A to Z, 0 to 9, -, ., _, = and single / only");
    }
    if prefix.len() > PREFIX_BYTES_MAX {
        return Err("the prefix must have 200 characters at most");
    }
    Ok((name, prefix))
}

/// Whether this is the URL of a store.
fn check_endpoint(endpoint: &str) -> Result<(), &'static str> {
    let rest = endpoint.strip_prefix("https://").or_else(|| endpoint.strip_prefix("http://"));
    let Some(host) = rest.map(|rest| rest.strip_suffix('/').unwrap_or(rest)) else {
        return Err("must begin with https:// or http://");
    };
    let is_host = |byte: u8| byte.is_ascii_alphanumeric() || b"-._:[]".contains(&byte);
    if host.is_empty() || !host.bytes().all(is_host) {
        return Err(
            "must be a scheme and a host with or without a port, such as https://minio.internal:9000",
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_a_bucket_with_or_without_a_prefix() {
        for (url, place) in [
            ("s3://shop", ("shop", "")),
            ("s3://shop/", ("shop", "")),
            ("s3://shop/a/b=c/", ("shop", "a/b=c")),
            ("s3://my.shop-1/claims", ("my.shop-1", "claims")),
        ] {
            assert_eq!(parse_place(url), Ok(place), "{url}");
        }
        for url in [
            "https://s3/shop",
            "s3://ab",
            "s3://",
            "s3://shop//a",
            "s3://shop/a//b",
            "s3://shop/../b",
            "s3://shop/a b",
            "s3://shop/ä",
            "s3://shop?x",
        ] {
            assert!(parse_place(url).is_err(), "{url}");
        }
    }

    #[test]
    fn an_endpoint_is_a_scheme_and_a_host() {
        for url in ["https://s3.example", "http://127.0.0.1:9000/", "http://[::1]:9000"] {
            assert_eq!(check_endpoint(url), Ok(()), "{url}");
        }
        for url in ["s3.example", "https://", "https://user:hush@s3.example", "https://s3/shop"] {
            assert!(check_endpoint(url).is_err(), "{url}");
        }
    }

    #[test]
    fn an_object_lives_keep_after_the_last_record_whenever_that_came() {
        let keep = |days: u64| ClaimCheckConfig {
            above: 1,
            bucket: StorageBucket {
                name: "shop".to_owned(),
                prefix: String::new(),
                endpoint: String::new(),
                region: String::new(),
                in_path: true,
            },
            login: StorageLogin::Missing,
            ca_file: None,
            timeout: TIMEOUT,
            keep: DAY * u32::try_from(days).unwrap(),
        };
        for (days, rule) in [(1, 2), (4, 5), (14, 18), (30, 38)] {
            let config = keep(days);
            assert_eq!(config.days_min(), rule);
            // The oldest object that is referred to without being stored again.
            let deleted = DAY * u32::try_from(rule).unwrap();
            assert!(deleted.checked_sub(config.renewed_after()).unwrap() >= config.keep);
        }
    }

    #[test]
    fn the_name_of_an_object_is_its_digest_below_the_prefix() {
        let mut bucket = StorageBucket {
            name: "shop".to_owned(),
            prefix: "claims/a".to_owned(),
            endpoint: String::new(),
            region: String::new(),
            in_path: true,
        };
        assert_eq!(bucket.key_of("abcdef"), "claims/a/sha256/ab/abcdef");
        assert_eq!(bucket.reference("x/y"), "s3://shop/x/y");
        bucket.prefix.clear();
        assert_eq!(bucket.key_of("abcdef"), "sha256/ab/abcdef");
    }
}
