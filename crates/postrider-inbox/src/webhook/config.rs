//! The keys of a receiver of webhooks.

use super::scheme::{Encoding, Scheme};
use super::secrets::Secrets;
use postrider_core::secret_file::SecretFile;
use postrider_core::sink::{Keys, Shown, ShownValue};
use postrider_core::units::ShowSize;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

/// How far a signed time may be from the clock, unless the file says otherwise.
const TOLERANCE: Duration = Duration::from_mins(5);
const TOLERANCE_MAX: Duration = Duration::from_hours(24);

/// Bounds of a body. The largest one is a batch of its own. Unit: bytes.
const BODY_BYTES: u64 = 1 << 20;
const BODY_BYTES_MIN: u64 = 1 << 10;
const BODY_BYTES_MAX: u64 = 16 << 20;

/// Connections at a time.
const CONNECTIONS: u32 = 256;
const CONNECTIONS_MAX: u32 = 4096;

/// Bytes of a path, and of the name of a header.
const TEXT_BYTES_MAX: usize = 200;

/// The keys that only scheme `hmac` has.
const SIGNATURE_HEADER: &str = "signature_header";
const SIGNATURE_PREFIX: &str = "signature_prefix";
const SIGNATURE_ENCODING: &str = "signature_encoding";
const ID_HEADER: &str = "id_header";

/// `[inboxes.NAME.source]` with `kind = "webhook"`.
#[derive(Clone, PartialEq, Debug)]
pub struct WebhookConfig {
    /// The address that requests come to.
    pub listen: SocketAddr,
    /// The path that requests have.
    pub path: String,
    /// How requests are signed.
    pub scheme: Scheme,
    /// The file with the secrets, one in each line.
    pub secret_file: SecretFile,
    /// How far a signed time may be from the clock, in both directions; only of scheme `standard`.
    pub tolerance: Duration,
    /// The largest body. Unit: bytes.
    pub body_max: usize,
    /// Connections at a time.
    pub connections_max: usize,
}

impl WebhookConfig {
    /// Reads the keys, and reports mistakes. `name` is that of the intake, for examples.
    pub fn read(keys: &dyn Keys, name: &str) -> Self {
        let listen = read_listen(keys);
        let path = keys.text("path").unwrap_or_else(|| "/".to_owned());
        if !is_path(&path) {
            let rule = format!(
                "expected a path such as \"/{name}\": it begins with /, has at most {TEXT_BYTES_MAX} bytes, and no \
                 space, ? or #"
            );
            keys.error("path", rule);
        }
        let scheme = read_scheme(keys);
        let secret_file = read_secrets(keys, &scheme, name);
        let tolerance =
            keys.duration("tolerance", TOLERANCE, Duration::from_secs(1)..=TOLERANCE_MAX);
        if scheme != Scheme::Standard && tolerance != TOLERANCE {
            let only = "only scheme \"standard\" signs a time: remove the key".to_owned();
            keys.error("tolerance", only);
        }
        let body_max = keys.size("body_max", BODY_BYTES, BODY_BYTES_MIN..=BODY_BYTES_MAX);
        let connections_max = keys.number("connections_max", CONNECTIONS, 1..=CONNECTIONS_MAX);
        Self {
            listen,
            path,
            scheme,
            secret_file,
            tolerance,
            body_max: usize::try_from(body_max).unwrap_or(usize::MAX),
            connections_max: usize::try_from(connections_max).unwrap_or(usize::MAX),
        }
    }

    /// Keys and values, for `postrider config show`.
    pub fn values(&self) -> Vec<Shown> {
        let number = |key: &str, value: usize| Shown {
            table: "",
            key: key.to_owned(),
            value: ShownValue::Number(value as u64),
        };
        let mut rows = vec![
            Shown::text("listen", &self.listen.to_string()),
            Shown::text("path", &self.path),
            Shown::text("scheme", self.scheme.name()),
        ];
        if let Scheme::Hmac { signature_header, signature_prefix, encoding, id_header } =
            &self.scheme
        {
            rows.push(Shown::text(SIGNATURE_HEADER, signature_header));
            rows.push(Shown::text(SIGNATURE_PREFIX, signature_prefix));
            rows.push(Shown::text(SIGNATURE_ENCODING, encoding.name()));
            rows.push(Shown::text(ID_HEADER, id_header));
        }
        rows.push(Shown::text("tolerance", &format!("{}s", self.tolerance.as_secs())));
        let file = self.secret_file.path().display().to_string();
        rows.push(Shown::text("secret_file", &file));
        rows.push(Shown::text("body_max", &ShowSize(self.body_max as u64).to_string()));
        rows.push(number("connections_max", self.connections_max));
        rows
    }
}

fn read_listen(keys: &dyn Keys) -> SocketAddr {
    let none = SocketAddr::from(([127, 0, 0, 1], 0));
    let Some(text) = keys.required("listen", "127.0.0.1:8080") else { return none };
    match text.parse::<SocketAddr>() {
        Ok(address) if address.port() != 0 => address,
        Ok(_) | Err(_) => {
            let rule =
                "expected an address of this host and a port, such as 127.0.0.1:8080 or [::]:8080";
            keys.error("listen", rule.to_owned());
            none
        }
    }
}

fn read_scheme(keys: &dyn Keys) -> Scheme {
    let word = keys.word("scheme", &["standard", "github", "hmac"], &[]);
    let encodings = [Encoding::Hex, Encoding::Base64];
    if word != 2 {
        for key in [SIGNATURE_HEADER, SIGNATURE_PREFIX, SIGNATURE_ENCODING, ID_HEADER] {
            if keys.text(key).is_some() {
                keys.error(key, "only scheme \"hmac\" has this key: remove it".to_owned());
            }
        }
        return if word == 1 { Scheme::GitHub } else { Scheme::Standard };
    }
    let encoding = keys.word(SIGNATURE_ENCODING, &encodings.map(Encoding::name), &[]);
    Scheme::Hmac {
        signature_header: read_header(keys, SIGNATURE_HEADER, "x-signature"),
        signature_prefix: keys.text(SIGNATURE_PREFIX).unwrap_or_default(),
        encoding: encodings.get(encoding).copied().unwrap_or(Encoding::Hex),
        id_header: read_header(keys, ID_HEADER, "x-webhook-id"),
    }
}

/// The name of a header, in lower case.
fn read_header(keys: &dyn Keys, key: &'static str, example: &str) -> String {
    let name = keys.required(key, example).unwrap_or_default();
    let is_token = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.!#$%&'*+^`|~".contains(&byte);
    if name.len() > TEXT_BYTES_MAX || !name.bytes().all(is_token) {
        keys.error(key, format!("expected the name of a header, such as {example}"));
    }
    name.to_ascii_lowercase()
}

fn read_secrets(keys: &dyn Keys, scheme: &Scheme, name: &str) -> SecretFile {
    // The path is required; the file is read by the table's own reader, which knows what it is relative to.
    let example = format!("/run/secrets/{name}");
    let is_named = keys.required("secret_file", &example).is_some();
    let file = if is_named { keys.secret("secret_file").map(|(_, file)| file) } else { None };
    let file = file.unwrap_or_else(|| SecretFile::new(PathBuf::new()));
    // A file that can't be read is reported already.
    if !file.path().as_os_str().is_empty()
        && let Err(error) = Secrets::read(&file, scheme)
    {
        keys.error("secret_file", error.to_string());
    }
    file
}

fn is_path(path: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_graphic() && !matches!(byte, b'?' | b'#');
    path.starts_with('/') && path.len() <= TEXT_BYTES_MAX && path.bytes().all(is_plain)
}

#[cfg(test)]
mod tests;
