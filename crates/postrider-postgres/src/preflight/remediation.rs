//! Remediation that more than one rule prints: the call of `setup`, a login as a URI, and the statements that accept a
//! gap. No password is ever part of it.

use super::PreflightQuery;
use crate::names::literal;
use pg_replication::conninfo::{Conninfo, Host, HostAddress, Root, SslMode};
use postrider_core::finding::Finding;
use std::fmt::Write as _;

/// Placeholder for an administrator's role.
pub(super) const ADMIN: &str = "ADMIN";

/// The commands and statements for one pipeline.
#[derive(Clone, Debug)]
pub(super) struct Remediation {
    pub(super) pipeline: String,
    /// The command that publishes the rows that no slot sends: `postrider repair -p NAME`, or the run itself in mode
    /// `auto`.
    pub(super) repair: String,
    /// `postrider setup -p NAME`, with `--url` if the role of the session may not create what is missing.
    pub(super) setup: String,
    /// The login of a role that may create objects, as a URI.
    pub(super) admin: String,
    slot: String,
    has_cursor: bool,
    /// As `setup`, for a slot and a cursor row in place of former ones: a sink that publishes in transactions has
    /// stored a position of the former slot.
    pub(super) setup_again: String,
    /// Rows of the table can be published.
    repairs: bool,
    polls: bool,
}

impl Remediation {
    /// `able`: whether the role of the session may create objects itself. Which other role may is unknown here: a
    /// superuser of the cluster may belong to the provider.
    pub(super) fn new(ask: &PreflightQuery<'_>, able: bool, has_cursor: bool) -> Self {
        let pipeline = ask.names.key.pipeline.clone();
        let mut setup = format!("postrider setup -p {pipeline}");
        let login = ask.login.unwrap_or(ask.conninfo);
        let known = able || ask.login.is_some();
        let admin = uri(login, if known { login.user() } else { ADMIN }, &[]);
        if ask.login.is_some() || !able {
            write!(setup, " --url '{admin}'").unwrap_or_default();
        }
        let repair = match ask.poll {
            Some(_) => "postrider run".to_owned(),
            None => format!("postrider repair -p {pipeline}"),
        };
        Self {
            pipeline,
            repair,
            setup_again: format!(
                "{setup}{}",
                if ask.names.in_transactions { " --adopt-cursor" } else { "" }
            ),
            setup,
            admin,
            slot: ask.names.slot.clone(),
            has_cursor,
            repairs: ask.names.repair_table().is_some(),
            polls: ask.poll.is_some(),
        }
    }

    /// A configuration line for a key of the pipeline with a text value.
    pub(super) fn config(&self, key: &str, value: &str) -> String {
        config(&self.pipeline, key, value)
    }

    /// The statement that deletes the cursor row, if there is one. A user who executes it accepts the gap.
    pub(super) fn forget(&self) -> Option<String> {
        let pipeline = literal(&self.pipeline);
        self.has_cursor
            .then(|| format!("DELETE FROM postrider.cursor WHERE pipeline = {pipeline};"))
    }

    /// After a change of the publication: publishes the rows that it left out. `slot`: there is a usable slot.
    pub(super) fn left_out(&self, finding: Finding, slot: bool) -> Finding {
        match (self.has_cursor && slot && self.repairs, self.polls) {
            (false, _) => finding,
            (true, false) => finding.shell(format!("{} --from-table", self.repair)),
            // The run polls the table while there is no slot, and creates a new one.
            (true, true) => finding.sql(self.drop_slot()).shell(self.repair.clone()),
        }
    }

    /// Starts again and publishes every row of the table: for a cursor row that does not belong to this server.
    pub(super) fn every_row(&self, finding: Finding, slot: bool) -> Finding {
        let finding = if slot { finding.sql(self.drop_slot()) } else { finding };
        let finding = match self.forget() {
            Some(forget) => finding.sql(forget),
            None => finding,
        };
        finding.shell(if self.repairs {
            format!("{} --backfill all", self.setup)
        } else {
            self.setup_again.clone()
        })
    }

    /// Drops the slot.
    pub(super) fn drop_slot(&self) -> String {
        format!("SELECT pg_drop_replication_slot({});", literal(&self.slot))
    }
}

/// A configuration line in TOML for a key of a pipeline with a text value.
pub(super) fn config(pipeline: &str, key: &str, value: &str) -> String {
    let value = value.replace('\\', "\\\\").replace('"', "\\\"");
    format!("pipelines.{pipeline}.{key} = \"{value}\"")
}

/// The connection as a URI with another user and with changed parameters; never with a password.
pub(super) fn uri(conninfo: &Conninfo, user: &str, more: &[(&str, &str)]) -> String {
    uri_of(conninfo, user, &authorities(conninfo), more)
}

/// The hosts in URI syntax.
pub(super) fn authorities(conninfo: &Conninfo) -> String {
    conninfo.host_list().iter().map(authority).collect::<Vec<_>>().join(",")
}

/// The note for a line that contains [`uri`], if the login has a password.
pub(super) const fn password_note(conninfo: &Conninfo) -> &'static str {
    if conninfo.has_password() {
        ". The line does not show the password: write it to a file, and set source.password_file"
    } else {
        ""
    }
}

/// As [`uri`], with given hosts.
pub(super) fn uri_of(
    conninfo: &Conninfo,
    user: &str,
    hosts: &str,
    more: &[(&str, &str)],
) -> String {
    let mut text = format!("postgresql://{}@{hosts}/{}", encoded(user), encoded(conninfo.dbname()));
    let mut parameters: Vec<(&str, String)> = Vec::new();
    let replaced = |name: &str| more.iter().any(|(known, _)| *known == name);
    if !matches!(conninfo.ssl_mode(), SslMode::Prefer) && !replaced("sslmode") {
        parameters.push(("sslmode", mode(conninfo.ssl_mode()).to_owned()));
    }
    if let Some(root) = conninfo.ssl_root().filter(|_| !replaced("sslrootcert")) {
        let root = match root {
            Root::System => "system".to_owned(),
            Root::File(path) => path.display().to_string(),
        };
        parameters.push(("sslrootcert", root));
    }
    parameters.extend(more.iter().map(|(name, value)| (*name, (*value).to_owned())));
    for (index, (name, value)) in parameters.iter().enumerate() {
        let mark = if index == 0 { '?' } else { '&' };
        write!(text, "{mark}{name}={}", encoded(value)).unwrap_or_default();
    }
    text
}

const fn mode(mode: SslMode) -> &'static str {
    match mode {
        SslMode::Disable => "disable",
        SslMode::Prefer => "prefer",
        SslMode::Require => "require",
        SslMode::VerifyCa => "verify-ca",
        SslMode::VerifyFull => "verify-full",
    }
}

fn authority(host: &Host) -> String {
    let name = match &host.address {
        HostAddress::Socket(directory) => encoded(directory),
        HostAddress::Net { name, .. } if name.contains(':') => format!("[{name}]"),
        HostAddress::Net { name, .. } => encoded(name),
    };
    format!("{name}:{}", host.port)
}

/// Percent-encoding of every byte that is not a letter, a digit or one of `-._~`.
fn encoded(text: &str) -> String {
    let mut out = String::new();
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            out.push(char::from(byte));
        } else {
            write!(out, "%{byte:02X}").unwrap_or_default();
        }
    }
    out
}

/// Whether every host is this machine, so that no network is used.
pub(super) fn is_local(conninfo: &Conninfo) -> bool {
    conninfo.host_list().iter().all(|host| match &host.address {
        HostAddress::Socket(_) => true,
        HostAddress::Net { name, address } => {
            let address = address.or_else(|| name.parse().ok());
            name == "localhost" || address.is_some_and(|address| address.is_loopback())
        }
    })
}

/// `HOST:PORT` of the first host.
pub(super) fn first_host(conninfo: &Conninfo) -> String {
    conninfo.host_list().first().map_or_else(String::new, authority)
}

/// `-h HOST -p PORT` of the first host, for PostgreSQL's own programs.
pub(super) fn host_flags(conninfo: &Conninfo) -> String {
    conninfo.host_list().first().map_or_else(String::new, |host| {
        let name = match &host.address {
            HostAddress::Socket(directory) => directory,
            HostAddress::Net { name, .. } => name,
        };
        format!("-h '{name}' -p {}", host.port)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Conninfo {
        Conninfo::parse(text, &|_| None).unwrap()
    }

    #[test]
    fn a_login_is_written_without_its_password_and_read_back() {
        let given =
            "postgresql://a%20b:hush@db1:5433,[::1]/shop?sslmode=verify-full&sslrootcert=/c/r.crt";
        let text = uri(&parse(given), "it's", &[("target_session_attrs", "read-write")]);
        assert_eq!(
            text,
            "postgresql://it%27s@db1:5433,[::1]:5432/shop?sslmode=verify-full&sslrootcert=%2Fc%2Fr.crt\
             &target_session_attrs=read-write"
        );
        let again = parse(&text);
        assert_eq!((again.user(), again.dbname()), ("it's", "shop"));
        let socket = uri(&parse("host=/var/run/pg port=5 user=u dbname=d"), "u", &[]);
        assert_eq!(socket, "postgresql://u@%2Fvar%2Frun%2Fpg:5/d");
        assert_eq!(parse(&socket).hosts(), "/var/run/pg/.s.PGSQL.5");
    }

    #[test]
    fn only_this_machine_is_local() {
        for (text, local) in [
            ("host=/tmp user=u", true),
            ("host=localhost user=u", true),
            ("host=127.0.0.1 user=u", true),
            ("host=::1 user=u", true),
            ("host=db.internal user=u", false),
            ("host=localhost,10.0.0.1 user=u", false),
        ] {
            assert_eq!(is_local(&parse(text)), local, "{text}");
        }
    }
}
