//! From names and texts to typed settings.

use super::types::{ChannelBinding, SslMode, TargetSessionAttrs};
use super::types::{Keepalive, Root, Secret, Ssl, TlsVersions};
use super::{CONNECT_TIMEOUT, Conninfo, ConninfoError, HOSTS_MAX, Host, Place};
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Where Debian's and Red Hat's libpq look for the socket. (Upstream's own default is `/tmp`.)
pub(super) const DEFAULT_SOCKET_DIR: &str = "/var/run/postgresql";

/// How long sent data may stay without an acknowledgement where `tcp_user_timeout` is not given: a black hole is then
/// noticed before a takeover by another host would be.
const TCP_USER_TIMEOUT: Duration = Duration::from_secs(10);

/// Takes typed values out of the pairs.
pub(super) struct Reader<'a> {
    given: &'a BTreeMap<&'static str, String>,
    env: &'a dyn Fn(&str) -> Option<String>,
}

type Read<T> = Result<T, ConninfoError>;

impl<'a> Reader<'a> {
    pub(super) fn new(
        given: &'a BTreeMap<&'static str, String>,
        env: &'a dyn Fn(&str) -> Option<String>,
    ) -> Self {
        Self { given, env }
    }

    pub(super) fn conninfo(&self) -> Read<Conninfo> {
        let os_user = || (self.env)("USER").or_else(|| (self.env)("LOGNAME"));
        let user = self.text("user").map(str::to_owned).or_else(os_user);
        let user = user.filter(|name| !name.is_empty());
        let user = user.ok_or(ConninfoError::Missing { key: "user" })?;
        for key in ["user", "dbname", "options", "application_name", "password"] {
            if self.text(key).is_some_and(|text| text.contains('\0')) {
                return Err(ConninfoError::Value { key, expected: "text without a zero byte" });
            }
        }
        let home = (self.env)("HOME").filter(|home| !home.is_empty()).map(PathBuf::from);
        let name = self.text("application_name").or(self.text("fallback_application_name"));
        self.gssencmode()?;
        Ok(Conninfo {
            hosts: self.hosts()?,
            shuffle: self.choice("load_balance_hosts", "disable or random", false, |text| {
                [("disable", false), ("random", true)].into_iter().find(|(n, _)| *n == text)
            })?,
            dbname: self.text("dbname").unwrap_or(&user).to_owned(),
            user,
            password: self.text("password").map(|text| Secret::new(text.to_owned())),
            password_file: None,
            passfile: self
                .text("passfile")
                .map(PathBuf::from)
                .or_else(|| home.as_deref().map(|home| home.join(".pgpass"))),
            application_name: name.map(str::to_owned),
            options: self.text("options").map(str::to_owned),
            connect_timeout: self.connect_timeout()?,
            target_session_attrs: self.target_session_attrs()?,
            ssl: self.ssl(home.as_deref())?,
            channel_binding: self.choice(
                "channel_binding",
                "disable, prefer or require",
                ChannelBinding::Prefer,
                |text| {
                    use ChannelBinding::{Disable, Prefer, Require};
                    [("disable", Disable), ("prefer", Prefer), ("require", Require)]
                        .into_iter()
                        .find(|(name, _)| *name == text)
                },
            )?,
            keepalive: self.keepalive()?,
            tcp_user_timeout: match self.number("tcp_user_timeout")? {
                None => Some(TCP_USER_TIMEOUT),
                Some(0) => None,
                Some(millis) => Some(Duration::from_millis(u64::from(millis))),
            },
        })
    }

    fn text(&self, key: &'static str) -> Option<&'a str> {
        self.given.get(key).map(String::as_str)
    }

    fn choice<T>(
        &self,
        key: &'static str,
        expected: &'static str,
        default: T,
        find: impl FnOnce(&str) -> Option<(&'static str, T)>,
    ) -> Read<T> {
        match self.text(key) {
            None => Ok(default),
            Some(text) => {
                find(text).map(|(_, value)| value).ok_or(ConninfoError::Value { key, expected })
            }
        }
    }

    fn number(&self, key: &'static str) -> Read<Option<u32>> {
        let wrong = ConninfoError::Value { key, expected: "a whole number that is not negative" };
        self.text(key).map(|text| text.trim().parse().ok().ok_or(wrong)).transpose()
    }

    fn gssencmode(&self) -> Read<()> {
        match self.text("gssencmode") {
            None | Some("disable" | "prefer") => Ok(()),
            Some(_) => Err(ConninfoError::Unsupported {
                key: "gssencmode",
                why: "Kerberos and GSSAPI are not supported",
            }),
        }
    }

    /// As libpq: 0 and negative numbers wait for ever (we then wait a day), 1 counts as 2.
    fn connect_timeout(&self) -> Read<Duration> {
        const FOR_EVER: Duration = Duration::from_hours(24);
        let Some(text) = self.text("connect_timeout") else { return Ok(CONNECT_TIMEOUT) };
        match text.trim().parse::<i32>().map(u64::try_from) {
            Ok(Ok(0) | Err(_)) => Ok(FOR_EVER),
            Ok(Ok(seconds)) => Ok(Duration::from_secs(seconds.max(2)).min(FOR_EVER)),
            Err(_) => {
                Err(ConninfoError::Value { key: "connect_timeout", expected: "whole seconds" })
            }
        }
    }

    fn target_session_attrs(&self) -> Read<TargetSessionAttrs> {
        use TargetSessionAttrs::{Any, PreferStandby, Primary, ReadOnly, ReadWrite, Standby};
        let expected = "any, read-write, read-only, primary, standby or prefer-standby";
        self.choice("target_session_attrs", expected, Any, |text| {
            [
                ("any", Any),
                ("read-write", ReadWrite),
                ("read-only", ReadOnly),
                ("primary", Primary),
                ("standby", Standby),
                ("prefer-standby", PreferStandby),
            ]
            .into_iter()
            .find(|(name, _)| *name == text)
        })
    }

    fn keepalive(&self) -> Read<Option<Keepalive>> {
        let seconds = |key| -> Read<Option<Duration>> {
            let number = self.number(key)?.filter(|number| *number > 0);
            Ok(number.map(|number| Duration::from_secs(u64::from(number))))
        };
        let (idle, interval) = (seconds("keepalives_idle")?, seconds("keepalives_interval")?);
        let count = self.number("keepalives_count")?.filter(|number| *number > 0);
        let off = self.number("keepalives")? == Some(0);
        Ok((!off).then_some(Keepalive { idle, interval, count }))
    }

    fn hosts(&self) -> Read<Vec<Host>> {
        let list = |key| self.text(key).map(|text| text.split(',').map(str::trim).collect());
        let names: Option<Vec<&str>> = list("host");
        let addresses: Option<Vec<&str>> = list("hostaddr");
        let ports: Vec<&str> = list("port").unwrap_or_else(|| vec!["5432"]);
        let count = addresses.as_ref().or(names.as_ref()).map_or(1, Vec::len);
        if names.as_ref().is_some_and(|names| names.len() != count) {
            let expected = "as many entries as \"host\" has";
            return Err(ConninfoError::Value { key: "hostaddr", expected });
        }
        if ports.len() != 1 && ports.len() != count {
            let expected = "one port, or as many as there are hosts";
            return Err(ConninfoError::Value { key: "port", expected });
        }
        if count > HOSTS_MAX {
            return Err(ConninfoError::Value { key: "host", expected: "at most 32 hosts" });
        }
        let at = |list: &Option<Vec<&'a str>>, index: usize| -> &'a str {
            list.as_ref().and_then(|list| list.get(index).copied()).unwrap_or("")
        };
        (0..count)
            .map(|index| {
                let port = ports.get(index).or(ports.first()).copied().unwrap_or("");
                let port = if port.is_empty() { "5432" } else { port };
                let expected = "a number from 1 to 65535";
                let wrong = ConninfoError::Value { key: "port", expected };
                let port = port.parse::<u16>().ok().filter(|port| *port > 0).ok_or(wrong)?;
                Ok(Host { place: place(at(&names, index), at(&addresses, index))?, port })
            })
            .collect()
    }

    fn ssl(&self, home: Option<&Path>) -> Read<Ssl> {
        let root = self.text("sslrootcert").map(|text| match text {
            "system" => Root::System,
            path => Root::File(PathBuf::from(path)),
        });
        let system = root == Some(Root::System);
        // As libpq: the system's roots are worth nothing without the name.
        let default = if system { SslMode::VerifyFull } else { SslMode::Prefer };
        let expected = "disable, allow, prefer, require, verify-ca or verify-full";
        let mode = self.choice("sslmode", expected, default, |text| {
            use SslMode::{Disable, Prefer, Require, VerifyCa, VerifyFull};
            [
                ("disable", Disable),
                ("allow", Prefer),
                ("prefer", Prefer),
                ("require", Require),
                ("verify-ca", VerifyCa),
                ("verify-full", VerifyFull),
            ]
            .into_iter()
            .find(|(name, _)| *name == text)
        })?;
        if system && mode < SslMode::VerifyFull {
            let expected = "verify-full, since sslrootcert is \"system\"";
            return Err(ConninfoError::Value { key: "sslmode", expected });
        }
        let expected = "postgres or direct";
        let direct = self.choice("sslnegotiation", expected, false, |text| {
            [("postgres", false), ("direct", true)].into_iter().find(|(name, _)| *name == text)
        })?;
        if direct && mode < SslMode::Require {
            let expected = "require or stronger, since sslnegotiation is \"direct\"";
            return Err(ConninfoError::Value { key: "sslmode", expected });
        }
        Ok(Ssl {
            mode,
            direct,
            root,
            cert: self.text("sslcert").map(PathBuf::from),
            key: self.text("sslkey").map(PathBuf::from),
            sni: self.number("sslsni")? != Some(0),
            versions: self.tls_versions()?,
            home: home.map(|home| home.join(".postgresql")),
        })
    }

    fn tls_versions(&self) -> Read<TlsVersions> {
        let expected = "TLSv1.2 or TLSv1.3";
        let version = |key: &'static str, default: u8| match self.text(key) {
            None => Ok(default),
            // Older ones as a lower bound change nothing: we never speak them.
            Some("TLSv1" | "TLSv1.1") if key == "ssl_min_protocol_version" => Ok(2),
            Some("TLSv1.2") => Ok(2),
            Some("TLSv1.3") => Ok(3),
            Some(_) => Err(ConninfoError::Value { key, expected }),
        };
        let lowest = version("ssl_min_protocol_version", 2)?;
        let highest = version("ssl_max_protocol_version", 3)?;
        match (lowest, highest) {
            (2, 3) => Ok(TlsVersions::Both),
            (2, _) => Ok(TlsVersions::Only12),
            (_, 3) => Ok(TlsVersions::Only13),
            _ => {
                let expected = "no less than ssl_min_protocol_version";
                Err(ConninfoError::Value { key: "ssl_max_protocol_version", expected })
            }
        }
    }
}

fn place(name: &str, address: &str) -> Read<Place> {
    if !address.is_empty() {
        let expected = "IP addresses (names belong into \"host\")";
        let wrong = ConninfoError::Value { key: "hostaddr", expected };
        let address: IpAddr = address.parse().ok().ok_or(wrong)?;
        let name = if name.is_empty() { address.to_string() } else { name.to_owned() };
        return Ok(Place::Net { name, address: Some(address) });
    }
    Ok(match name {
        "" => Place::Socket(DEFAULT_SOCKET_DIR.to_owned()),
        path if path.starts_with(['/', '@']) => Place::Socket(path.to_owned()),
        name => Place::Net { name: name.to_owned(), address: name.parse().ok() },
    })
}
