//! From a file's name to a [`Config`], or to everything that is wrong with it.

use super::context::{Context, Found};
use super::env::Env;
use super::error::{ConfigError, Finding, Findings};
use super::pipeline;
use super::place::Lines;
use super::section::Section;
use super::types::{AdminConfig, Config};
use super::{build, check};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;
use toml::de::DeTable;

/// Where a configuration is looked for when none is named.
const USUAL_PLACES: [&str; 2] = ["./postrider.toml", "/etc/postrider/postrider.toml"];

/// The file to read: the named one, else `$POSTRIDER_CONFIG`, else the first of the usual places that exists.
pub fn find(named: Option<&Path>, env: Env<'_>) -> Result<PathBuf, ConfigError> {
    if let Some(path) = named {
        return Ok(path.to_owned());
    }
    if let Some(path) = env("POSTRIDER_CONFIG").filter(|path| !path.is_empty()) {
        return Ok(PathBuf::from(path));
    }
    let usual = USUAL_PLACES.iter().map(Path::new).find(|path| path.exists());
    usual
        .map(Path::to_owned)
        .ok_or_else(|| ConfigError::Missing(USUAL_PLACES.map(ToOwned::to_owned).to_vec()))
}

/// Reads a file, and the secret files it names relative to its own directory.
pub fn load(path: &Path, env: Env<'_>) -> Result<Config, ConfigError> {
    let text = std::fs::read_to_string(path)
        .map_err(|source| ConfigError::Read { path: path.to_owned(), source })?;
    let directory = path.parent().unwrap_or(Path::new(""));
    parse(&path.display().to_string(), directory, &text, env).map_err(ConfigError::Invalid)
}

/// As [`load`], for a command that logs in nowhere: secret files are not read, and variables of the environment need
/// not be set. A service has secrets that the shell of whoever looks at it does not have.
pub fn load_without_secrets(path: &Path, env: Env<'_>) -> Result<Config, ConfigError> {
    let text = std::fs::read_to_string(path)
        .map_err(|source| ConfigError::Read { path: path.to_owned(), source })?;
    let directory = path.parent().unwrap_or(Path::new(""));
    let file = path.display().to_string();
    let whole = |(config, found)| whole(&file, &text, config, found);
    read_with(&file, directory, &text, env, false).and_then(whole).map_err(ConfigError::Invalid)
}

/// Reads the text of a file called `file`. Secret files are relative to `directory`.
///
/// Every mistake is in the error, in the order of the lines; a text that is no TOML gives the mistakes of syntax alone.
pub fn parse(file: &str, directory: &Path, text: &str, env: Env<'_>) -> Result<Config, Findings> {
    let (config, found) = read(file, directory, text, env)?;
    whole(file, text, config, found)
}

fn whole(file: &str, text: &str, mut config: Config, found: Found) -> Result<Config, Findings> {
    if !found.errors.is_empty() {
        return Err(Findings::new(file, text, found.errors));
    }
    config.warnings = Findings::new(file, text, found.warnings).list;
    config.places = found.places;
    Ok(config)
}

/// Reads a text as far as it can be read, with all that was found.
pub(super) fn read(
    file: &str,
    directory: &Path,
    text: &str,
    env: Env<'_>,
) -> Result<(Config, Found), Findings> {
    read_with(file, directory, text, env, true)
}

fn read_with(
    file: &str,
    directory: &Path,
    text: &str,
    env: Env<'_>,
    secrets: bool,
) -> Result<(Config, Found), Findings> {
    let (table, mistakes) = DeTable::parse_recoverable(text);
    if !mistakes.is_empty() {
        let lines = Lines::new(text);
        let finding = |mistake: &toml::de::Error| {
            let place = lines.place(mistake.span().map_or(0, |span| span.start));
            Finding::new(place, "", mistake.message().to_owned())
        };
        return Err(Findings::new(file, text, mistakes.iter().map(finding).collect()));
    }
    let mut context = Context::new(text, directory, env);
    context.secrets = secrets;
    let config = root(file, Section::root(&context, table.get_ref()));
    Ok((config, context.into_found()))
}

fn root(file: &str, section: Section<'_>) -> Config {
    let admin = admin(section.section("admin"));
    let shutdown_grace = section.duration(
        "shutdown_grace",
        Duration::from_secs(10),
        Duration::from_millis(100)..=Duration::from_hours(1),
    );
    let pipelines = pipeline::all(&section.section("pipelines"));
    let context = section.context;
    section.finish();
    let built = |pipeline| build::spec(context, pipeline, shutdown_grace);
    let specs: Vec<_> = pipelines.iter().filter_map(built).collect();
    check::across(context, &pipelines);
    Config {
        file: file.to_owned(),
        admin,
        shutdown_grace,
        pipelines,
        specs,
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
    section.finish();
    AdminConfig { listen, ready_lag_max }
}
