//! Finds PostgreSQL's server programs, the user to run them as, and the programs of brokers.

use super::error::{BIN_VARIABLE, DemoError};
use super::kind::DemoSink;
use crate::config::Env;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Directories in which packages install the programs, as parent, prefix of a directory per version, and subdirectory.
const PLACES: &[(&str, &str, &str)] = &[
    ("/usr/lib/postgresql", "", "bin"),       // Debian, Ubuntu
    ("/usr", "pgsql-", "bin"),                // PostgreSQL's packages for Red Hat
    ("/usr/local/opt", "postgresql@", "bin"), // Homebrew
    ("/opt/homebrew/opt", "postgresql@", "bin"),
    ("/usr/local", "pgsql", "bin"), // from source
];

/// Directories in which the programs of brokers are searched after those of `PATH`, which for an ordinary user lacks
/// some of them.
const BROKER_PLACES: [&str; 5] =
    ["/usr/sbin", "/usr/local/sbin", "/usr/local/bin", "/opt/homebrew/bin", "/opt/homebrew/sbin"];

/// Where packages have RabbitMQ's own script. The one of that name in `PATH` runs only as root or as user `rabbitmq`.
const RABBITMQ_PLACE: &str = "/usr/lib/rabbitmq/bin";

/// The oldest version that Postrider supports: the option `messages` of pgoutput was added in it.
const MAJOR_MIN: u32 = 14;

/// The programs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Binaries {
    pub(super) directory: PathBuf,
    /// The version that the program prints: `15.18`.
    pub(super) version: String,
}

impl Binaries {
    /// The first directory that contains both programs in a supported version.
    pub(super) fn find(env: Env<'_>) -> Result<Self, DemoError> {
        if let Some(directory) = env(BIN_VARIABLE).filter(|directory| !directory.is_empty()) {
            let directory = PathBuf::from(directory);
            return Self::at(&directory).ok_or(DemoError::NoServerIn { directory });
        }
        let mut too_old = None;
        for directory in candidates(env) {
            match Self::at(&directory) {
                Some(found) if found.major() >= MAJOR_MIN => return Ok(found),
                Some(found) => too_old = too_old.or(Some(found)),
                None => {}
            }
        }
        Err(match too_old {
            Some(Self { directory, version }) => DemoError::ServerTooOld { directory, version },
            None => DemoError::NoServer,
        })
    }

    fn at(directory: &Path) -> Option<Self> {
        if !directory.join("initdb").is_file() {
            return None;
        }
        let version = output(&directory.join("postgres"), "--version")?;
        // postgres (PostgreSQL) 15.18 (Debian 15.18-0+deb12u1)
        let version = version.split_whitespace().nth(2)?.to_owned();
        Some(Self { directory: directory.to_owned(), version })
    }

    fn major(&self) -> u32 {
        major(&self.version)
    }

    /// One of the programs.
    pub(super) fn program(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }
}

/// `17.2`, `18beta1` → 17, 18.
fn major(version: &str) -> u32 {
    let digits: String = version.chars().take_while(char::is_ascii_digit).collect();
    digits.parse().unwrap_or(0)
}

fn candidates(env: Env<'_>) -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> =
        env("PATH").map(|path| std::env::split_paths(&path).collect()).unwrap_or_default();
    for (parent, prefix, below) in PLACES {
        let mut versions: Vec<(u32, PathBuf)> = fs::read_dir(parent)
            .into_iter()
            .flatten()
            .filter_map(|entry| {
                let entry = entry.ok()?;
                let name = entry.file_name();
                let version = name.to_str()?.strip_prefix(prefix)?;
                Some((major(version), entry.path().join(below)))
            })
            .collect();
        versions.sort_by(|a, b| b.cmp(a));
        found.extend(versions.into_iter().map(|(_, path)| path));
    }
    found.extend(output(Path::new("pg_config"), "--bindir").map(PathBuf::from));
    found
}

/// The first line that a program writes.
fn output(program: &Path, argument: &str) -> Option<String> {
    let output = Command::new(program).arg(argument).stdin(Stdio::null()).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    let line = text.lines().next()?.trim();
    (output.status.success() && !line.is_empty()).then(|| line.to_owned())
}

/// The path of a broker's program; `None` if the broker is in the demo's process.
pub(super) fn broker_program(sink: DemoSink, env: Env<'_>) -> Result<Option<PathBuf>, DemoError> {
    let Some((program, variable)) = sink.program() else { return Ok(None) };
    if let Some(path) = env(variable).filter(|path| !path.is_empty()) {
        let path = PathBuf::from(path);
        return if is_program(&path) {
            Ok(Some(path))
        } else {
            Err(DemoError::NoBrokerAt { sink, variable, path })
        };
    }
    let own = (sink == DemoSink::RabbitMq).then(|| PathBuf::from(RABBITMQ_PLACE));
    let path = env("PATH").unwrap_or_default();
    let mut found = own
        .into_iter()
        .chain(std::env::split_paths(&path))
        .chain(BROKER_PLACES.map(PathBuf::from))
        .map(|directory| directory.join(program))
        .filter(|path| is_program(path));
    found.next().map(Some).ok_or(DemoError::NoBroker { sink, program })
}

fn is_program(path: &Path) -> bool {
    path.metadata().is_ok_and(|file| file.is_file() && file.permissions().mode() & 0o111 != 0)
}

/// The user to run PostgreSQL as, if the demo runs as root, which PostgreSQL refuses: `postgres`, which its package
/// creates, or else `nobody`.
pub(super) fn server_user() -> Result<Option<(u32, u32)>, DemoError> {
    if !rustix::process::geteuid().is_root() {
        return Ok(None);
    }
    let users = fs::read_to_string("/etc/passwd").unwrap_or_default();
    let user = ["postgres", "nobody"].iter().find_map(|name| user_in(&users, name));
    user.map(Some).ok_or(DemoError::NoServerUser)
}

/// uid and gid of a line `name:x:uid:gid:…`.
fn user_in(passwd: &str, name: &str) -> Option<(u32, u32)> {
    let mut fields =
        passwd.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?.split(':');
    let (uid, gid) = (fields.nth(1)?.parse().ok()?, fields.next()?.parse().ok()?);
    (uid != 0).then_some((uid, gid))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_are_found_by_their_whole_name() {
        let passwd =
            "root:x:0:0::/root:/bin/sh\npostgres2:x:7:8:::\npostgres:x:101:104:P,,,:/v:/bin/sh\n";
        assert_eq!(user_in(passwd, "postgres"), Some((101, 104)));
        assert_eq!(user_in(passwd, "nobody"), None);
        assert_eq!(user_in(passwd, "root"), None);
    }

    #[test]
    fn versions_have_a_major_number() {
        assert_eq!([major("15.18"), major("18beta1"), major("x")], [15, 18, 0]);
    }

    #[test]
    fn a_named_directory_without_programs_is_an_error_of_its_own() {
        let env = |name: &str| (name == BIN_VARIABLE).then(|| "/nonexistent".to_owned());
        let error = Binaries::find(&env).unwrap_err();
        assert!(matches!(error, DemoError::NoServerIn { .. }), "{error:?}");
    }

    #[test]
    fn named_broker_program_that_does_not_exist_is_an_error_of_its_own() {
        let env = |name: &str| (name == "POSTRIDER_NATS_SERVER").then(|| "/nonexistent".to_owned());
        let error = broker_program(DemoSink::Nats, &env).unwrap_err();
        assert!(matches!(error, DemoError::NoBrokerAt { .. }), "{error:?}");
    }
}
