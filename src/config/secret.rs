//! Values that must not be printed.

use crate::postgres::conninfo;
use std::collections::BTreeMap;
use std::fmt;

/// What is printed in place of a secret.
pub(super) const MASK: &str = "***";

/// A connection string, which may hold a password: printed without it.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct Url(String);

impl Url {
    /// Wraps a connection string.
    pub fn new(text: String) -> Self {
        Self(text)
    }

    /// The connection string with everything in it.
    pub fn reveal(&self) -> &str {
        &self.0
    }

    /// The whole of it with `***` for its secrets; nothing but that where it is not understood.
    pub fn masked(&self) -> String {
        conninfo::masked(&self.0, Some(MASK)).unwrap_or_else(|_not_understood| MASK.to_owned())
    }
}

impl fmt::Debug for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for Url {
    /// Scheme, hosts and database of a URI, without user part and parameters; nothing at all of other forms.
    ///
    /// Deliberately dull: what is not understood is masked, since a secret may stand in it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some((scheme, rest)) = self.0.split_once("://") else {
            return f.write_str(MASK);
        };
        let rest = rest.split_once('?').map_or(rest, |(before, _)| before);
        let rest = rest.rsplit_once('@').map_or(rest, |(_, after)| after);
        write!(f, "{scheme}://{rest}")
    }
}

/// A sink's properties. `Debug` masks the values of those whose names speak of secrets.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct Properties(pub BTreeMap<String, String>);

impl Properties {
    /// Names and values, with `***` for secrets.
    pub fn masked(&self) -> impl Iterator<Item = (&str, &str)> {
        let shown = |(name, value)| (name, if Self::is_secret(name) { MASK } else { value });
        self.0.iter().map(|(name, value)| (name.as_str(), value.as_str())).map(shown)
    }

    /// Whether a property of this name is a secret.
    pub fn is_secret(name: &str) -> bool {
        const WORDS: [&str; 6] = ["pass", "secret", "token", "pem", "credential", "config"];
        let name = name.to_ascii_lowercase();
        WORDS.iter().any(|word| name.contains(word))
    }
}

impl fmt::Debug for Properties {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.masked()).finish()
    }
}
