//! Reads a configuration file into a [`Config`], or reports all of its mistakes.

use super::section::{Context, Excerpt, FilePosition, Lines, ReadOutcome, Section};
use super::types::{AdminConfig, Config};
use super::{build, pipeline};
use crate::pipeline::{InboxSettings, MaintenanceSettings};
use crate::postgres::conninfo;
use crate::postgres::store::inbox_maintenance::InboxKeep;
use crate::publications::REMEMBERED_MAX;
use crate::sink::{KINDS, SinkKind};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;
use std::{fmt, io};
use toml::de::DeTable;

/// The default paths of the configuration file.
const DEFAULT_PATHS: [&str; 2] = ["./postrider.toml", "/etc/postrider/postrider.toml"];

/// The file to read: `named`, else `$POSTRIDER_CONFIG`, else the first of the default paths that exists.
pub fn find(named: Option<&Path>, env: Env<'_>) -> Result<PathBuf, ConfigError> {
    if let Some(path) = named {
        return Ok(path.to_owned());
    }
    if let Some(path) = env("POSTRIDER_CONFIG").filter(|path| !path.is_empty()) {
        return Ok(PathBuf::from(path));
    }
    let default = DEFAULT_PATHS.iter().map(Path::new).find(|path| path.exists());
    default
        .map(Path::to_owned)
        .ok_or_else(|| ConfigError::Missing(DEFAULT_PATHS.map(ToOwned::to_owned).to_vec()))
}

/// Reads a file, and the secret files that it names, relative to its directory.
pub fn load(path: &Path, env: Env<'_>) -> Result<Config, ConfigError> {
    let text = std::fs::read_to_string(path)
        .map_err(|source| ConfigError::Read { path: path.to_owned(), source })?;
    let directory = path.parent().unwrap_or(Path::new(""));
    parse(&path.display().to_string(), directory, &text, env).map_err(ConfigError::Invalid)
}

/// As [`load`], for a command that does not log in: secret files are not read, and environment variables need not be
/// set. The secrets of a service are not in the shell of the user who queries it.
pub fn load_without_secrets(path: &Path, env: Env<'_>) -> Result<Config, ConfigError> {
    let text = std::fs::read_to_string(path)
        .map_err(|source| ConfigError::Read { path: path.to_owned(), source })?;
    let directory = path.parent().unwrap_or(Path::new(""));
    let file = path.display().to_string();
    let whole = |(config, found)| whole(&file, &text, config, found);
    let read = read_with(KINDS, (&file, directory, &text), env, false);
    read.and_then(whole).map_err(ConfigError::Invalid)
}

/// Reads the text of a file named `file`. Secret files are relative to `directory`.
///
/// The error has every mistake, in the order of the lines. If the text is not TOML, it has only the mistakes of syntax.
pub fn parse(file: &str, directory: &Path, text: &str, env: Env<'_>) -> Result<Config, Findings> {
    parse_with(KINDS, file, directory, text, env)
}

/// As [`parse`], with these kinds of sinks instead of those of the product: for a caller that brings its own.
///
/// # Errors
/// As [`parse`].
pub fn parse_with(
    kinds: &[&dyn SinkKind],
    file: &str,
    directory: &Path,
    text: &str,
    env: Env<'_>,
) -> Result<Config, Findings> {
    let (config, found) = read_with(kinds, (file, directory, text), env, true)?;
    whole(file, text, config, found)
}

fn whole(
    file: &str,
    text: &str,
    mut config: Config,
    found: ReadOutcome,
) -> Result<Config, Findings> {
    if !found.errors.is_empty() {
        return Err(Findings::new(file, text, found.errors));
    }
    config.warnings = Findings::new(file, text, found.warnings).list;
    config.places = found.places;
    Ok(config)
}

/// Reads a text as far as possible, and returns what was found besides the values.
pub(super) fn read(
    file: &str,
    directory: &Path,
    text: &str,
    env: Env<'_>,
) -> Result<(Config, ReadOutcome), Findings> {
    read_with(KINDS, (file, directory, text), env, true)
}

fn read_with(
    kinds: &[&dyn SinkKind],
    (file, directory, text): (&str, &Path, &str),
    env: Env<'_>,
    secrets: bool,
) -> Result<(Config, ReadOutcome), Findings> {
    let (table, mistakes) = DeTable::parse_recoverable(text);
    if !mistakes.is_empty() {
        let lines = Lines::new(text);
        let finding = |mistake: &toml::de::Error| {
            let place = lines.place(mistake.span().map_or(0, |span| span.start));
            Finding::new(place, "", mistake.message().to_owned())
        };
        return Err(Findings::new(file, text, mistakes.iter().map(finding).collect()));
    }
    let mut context = Context::new(kinds, text, directory, env);
    context.secrets = secrets;
    let config = root(file, Section::root(&context, table.get_ref()));
    Ok((config, context.into_outcome()))
}

fn root(file: &str, section: Section<'_>) -> Config {
    let admin = admin(section.section("admin"));
    let shutdown_grace = section.duration(
        "shutdown_grace",
        Duration::from_secs(10),
        Duration::from_millis(100)..=Duration::from_hours(1),
    );
    let maintenance = maintenance(section.section("maintenance"));
    #[cfg(feature = "kafka")]
    let inboxes = super::inboxes::all(&section.section("inboxes"));
    #[cfg(feature = "kafka")]
    let needs_pipeline = inboxes.is_empty();
    #[cfg(not(feature = "kafka"))]
    let needs_pipeline = true;
    let pipelines = pipeline::all(&section.section("pipelines"), needs_pipeline);
    let context = section.context;
    section.finish();
    let built = |pipeline| build::spec(context, pipeline, shutdown_grace, &maintenance);
    let specs: Vec<_> = pipelines.iter().filter_map(built).collect();
    build::across(context, &pipelines);
    Config {
        file: file.to_owned(),
        admin,
        shutdown_grace,
        maintenance,
        pipelines,
        specs,
        #[cfg(feature = "kafka")]
        inboxes,
        warnings: Vec::new(),
        places: super::Places::default(),
    }
}

fn admin(section: Section<'_>) -> AdminConfig {
    let default = SocketAddr::from(([127, 0, 0, 1], 9464));
    let listen = match section.text("listen") {
        None => Some(default),
        Some(text) if text.is_empty() => None,
        Some(text) => {
            let parsed = text.parse().ok();
            if parsed.is_none() {
                let example = "such as \"127.0.0.1:9464\" or \"[::]:9464\", or \"\" for none";
                section
                    .error("listen", format_args!("expected an IP address and a port, {example}"));
            }
            parsed
        }
    };
    let ready_lag_max = section.duration(
        "ready_lag_max",
        Duration::from_secs(30),
        Duration::from_millis(100)..=Duration::from_hours(24),
    );
    let remember_changes = section.small("remember_changes", 65_536, 0..=REMEMBERED_MAX);
    section.finish();
    AdminConfig { listen, ready_lag_max, remember_changes }
}

fn maintenance(section: Section<'_>) -> MaintenanceSettings {
    let default = MaintenanceSettings::default();
    let settings = MaintenanceSettings {
        sweep_interval: section.duration(
            "sweep_interval",
            default.sweep_interval,
            Duration::from_millis(100)..=Duration::from_hours(1),
        ),
        sweep_keep: section.small("sweep_keep", default.sweep_keep, 1..=1000),
        sweep_max: section.small("sweep_max", default.sweep_max, 1..=1_000_000),
        consumer_dead_after: section.duration(
            "consumer_dead_after",
            default.consumer_dead_after,
            Duration::from_mins(1)..=Duration::from_hours(365 * 24),
        ),
        log_keep: section.duration_or_never(
            "log_keep",
            Duration::from_secs(1)..=Duration::from_hours(100 * 365 * 24),
        ),
        log_evict: section.boolean("log_evict", default.log_evict),
        log_retain_interval: section.duration(
            "log_retain_interval",
            default.log_retain_interval,
            Duration::from_secs(1)..=Duration::from_hours(24),
        ),
        inboxes: inboxes(&section),
        retention: None,
    };
    section.finish();
    settings
}

/// The keys of `[maintenance]` for inboxes.
fn inboxes(section: &Section<'_>) -> InboxSettings {
    let default = InboxSettings::default();
    let keep = |key| {
        let given = section.has(key);
        let range = Duration::from_secs(1)..=Duration::from_hours(100 * 365 * 24);
        match section.duration_or_never(key, range) {
            Some(keep) => InboxKeep::For(keep),
            None if given => InboxKeep::Forever,
            None => InboxKeep::OfInbox,
        }
    };
    InboxSettings {
        enabled: section.boolean("inbox_enabled", default.enabled),
        ids_keep: section.duration(
            "inbox_ids_keep",
            default.ids_keep,
            Duration::from_hours(24)..=Duration::from_hours(28 * 24),
        ),
        processed_keep: keep("inbox_processed_keep"),
        dead_keep: keep("inbox_dead_keep"),
        drain_interval: section.duration(
            "inbox_drain_interval",
            default.drain_interval,
            Duration::from_secs(1)..=Duration::from_hours(24),
        ),
        drain_batch: section.small("inbox_drain_batch", default.drain_batch, 1..=100_000),
        dead_alerts_max: section.small("inbox_dead_alerts_max", default.dead_alerts_max, 0..=1000),
    }
}

/// Why the variables of a string, `${NAME}` or `${NAME:-default}`, could not be replaced. The text names variables, and
/// never contains their values.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub(super) enum InterpolateError {
    #[error("the environment variable {0} is not set; set it, or write ${{{0}:-default}}")]
    Unset(String),
    #[error("\"${{\" is not closed by \"}}\"; write \"$${{\" for the characters themselves")]
    Unclosed,
    #[error("\"${{{0}}}\" does not name a variable; write \"$${{\" for the characters themselves")]
    Name(String),
}

/// Replaces the variables of `text`. `$${` becomes `${`; `${1}`, the group of a regular expression, and every other `$`
/// are kept.
pub(super) fn interpolate(text: &str, env: Env<'_>) -> Result<String, InterpolateError> {
    let mut filled = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("${") {
        if let Some(before) = before.strip_suffix('$') {
            filled.push_str(before);
            filled.push_str("${");
            rest = after;
            continue;
        }
        filled.push_str(before);
        let (reference, after) = after.split_once('}').ok_or(InterpolateError::Unclosed)?;
        filled.push_str(&resolve(reference, env)?);
        rest = after;
    }
    filled.push_str(rest);
    Ok(filled)
}

/// The variables that `text` names, in order, each once.
pub(super) fn variables(text: &str) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("${") {
        rest = after;
        if before.ends_with('$') {
            continue;
        }
        let Some((reference, after)) = after.split_once('}') else { break };
        let name = reference.split_once(":-").map_or(reference, |(name, _)| name);
        let is_group = name.bytes().all(|b| b.is_ascii_digit());
        if !is_group && !names.iter().any(|known| known == name) {
            names.push(name.to_owned());
        }
        rest = after;
    }
    names
}

fn resolve(reference: &str, env: Env<'_>) -> Result<String, InterpolateError> {
    let (name, default) = match reference.split_once(":-") {
        Some((name, default)) => (name, Some(default)),
        None => (reference, None),
    };
    if !name.is_empty() && name.bytes().all(|b| b.is_ascii_digit()) {
        return Ok(format!("${{{reference}}}"));
    }
    let first = name.bytes().next().is_some_and(|b| b.is_ascii_alphabetic() || b == b'_');
    if !first || !name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_') {
        return Err(InterpolateError::Name(reference.to_owned()));
    }
    // As in a shell, `:-` uses the default also for an empty variable.
    match (env(name), default) {
        (Some(value), Some(default)) if value.is_empty() => Ok(default.to_owned()),
        (Some(value), _) => Ok(value),
        (None, Some(default)) => Ok(default.to_owned()),
        (None, None) => Err(InterpolateError::Unset(name.to_owned())),
    }
}

/// Reads an environment variable. Tests pass a closure of their own; the command passes [`process_variable`].
pub type Env<'e> = &'e dyn Fn(&str) -> Option<String>;

/// The process environment. A value that is not UTF-8 counts as unset.
#[expect(clippy::disallowed_methods, reason = "the only access to the environment")]
pub fn process_variable(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

/// Printed in place of a secret.
pub(super) const MASK: &str = "***";

/// A connection string, which is printed without its password.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct Url(String);

impl Url {
    /// Wraps a connection string.
    pub fn new(text: String) -> Self {
        Self(text)
    }

    /// The whole connection string, with its secrets.
    pub fn reveal(&self) -> &str {
        &self.0
    }

    /// The connection string with `***` for its secrets; only `***` if it cannot be parsed.
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
    /// Scheme, hosts and database of a URI, without user part and parameters; `***` for other forms.
    ///
    /// Everything that is not parsed is masked, because it may contain a secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some((scheme, rest)) = self.0.split_once("://") else {
            return f.write_str(MASK);
        };
        let rest = rest.split_once('?').map_or(rest, |(before, _)| before);
        let rest = rest.rsplit_once('@').map_or(rest, |(_, after)| after);
        write!(f, "{scheme}://{rest}")
    }
}

/// Why a configuration could not be read.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// No file was named, and none of the default paths exists.
    #[error(
        "no configuration file found: name one with --config, or create one of {}; postrider init writes a first one",
        .0.join(", ")
    )]
    Missing(Vec<String>),
    /// The file cannot be read.
    #[error("could not read the configuration file \"{}\"", .path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The error of the operating system.
        #[source]
        source: io::Error,
    },
    /// The file has mistakes.
    #[error(transparent)]
    Invalid(Findings),
}

/// A mistake or a warning at a position of the file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Finding {
    /// The position.
    pub place: FilePosition,
    /// The key's path, `pipelines.orders.flow.in_flight_bytes`; empty if the file is not TOML.
    pub key: String,
    /// What is wrong and how to fix it: a lowercase fragment without full stop, without the value of a variable.
    pub message: String,
    /// The line of the file, without secrets.
    pub excerpt: Option<Excerpt>,
}

impl Finding {
    pub(super) fn new(place: FilePosition, key: &str, message: String) -> Self {
        Self { place, key: key.to_owned(), message, excerpt: None }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.key.is_empty() {
            write!(f, "{}: {}", self.place, self.message)
        } else {
            write!(f, "{}: {}: {}", self.place, self.key, self.message)
        }
    }
}

/// The mistakes or warnings of a file, in the order of its lines. Each is printed with the line of the file below it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Findings {
    /// The file's name as the user gave it.
    pub file: String,
    /// The findings, by place.
    pub list: Vec<Finding>,
}

impl Findings {
    pub(super) fn new(file: &str, text: &str, mut list: Vec<Finding>) -> Self {
        list.sort_by(|a, b| (a.place, &a.key).cmp(&(b.place, &b.key)));
        let lines = Lines::new(text);
        for finding in &mut list {
            let line = lines.line(finding.place.line);
            finding.excerpt = line.and_then(|line| Excerpt::of(line, finding.place));
        }
        Self { file: file.to_owned(), list }
    }
}

impl fmt::Display for Findings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, finding) in self.list.iter().enumerate() {
            if index > 0 {
                writeln!(f)?;
            }
            write!(f, "{}:{finding}", self.file)?;
            if let Some(excerpt) = &finding.excerpt {
                write!(f, "\n{excerpt}")?;
            }
        }
        Ok(())
    }
}

impl std::error::Error for Findings {}

#[cfg(test)]
mod tests {
    use super::*;

    fn filled(text: &str) -> Result<String, InterpolateError> {
        interpolate(text, &|name| match name {
            "HOST" => Some("db1".to_owned()),
            "EMPTY" => Some(String::new()),
            _ => None,
        })
    }

    #[test]
    fn variables_are_replaced() {
        assert_eq!(filled("pg://${HOST}/x${HOST}").as_deref(), Ok("pg://db1/xdb1"));
        assert_eq!(filled("${NONE:-a:-b}${EMPTY:-c}${EMPTY}").as_deref(), Ok("a:-bc"));
    }

    #[test]
    fn variables_are_named_once_and_groups_are_none() {
        let names = variables("${A}-${B:-x}-${A}-$${C}-${1}-$D");
        assert_eq!(names, ["A", "B"]);
    }

    #[test]
    fn other_dollars_stay() {
        for text in ["$1", "${1}", "a$", "$", "$HOST", "$$1"] {
            assert_eq!(filled(text).as_deref(), Ok(text));
        }
        assert_eq!(filled("$${HOST}").as_deref(), Ok("${HOST}"));
    }

    #[test]
    fn what_can_not_be_replaced_is_refused() {
        assert_eq!(filled("${NONE}"), Err(InterpolateError::Unset("NONE".to_owned())));
        assert_eq!(filled("a${HOST"), Err(InterpolateError::Unclosed));
        assert_eq!(filled("${}"), Err(InterpolateError::Name(String::new())));
        assert_eq!(filled("${a-b}"), Err(InterpolateError::Name("a-b".to_owned())));
    }
}
