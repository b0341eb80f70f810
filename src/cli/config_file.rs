//! `postrider config show` and `postrider config schema`.

use super::args::ConfigShowArgs;
use super::error::CliError;
use super::exit::Exit;
use super::output::Output;
use crate::config::show::{Origin, Shown, is_masked, show as rows_of};
use crate::config::{Config, Env, schema as config_schema};
use crate::postgres::conninfo;
use serde_json::{Value, json};
use std::fmt::Write as _;

/// The column at which origins begin, where the value leaves room.
const ORIGIN_COLUMN: usize = 50;

pub(super) fn show(config: &Config, args: &ConfigShowArgs, env: Env<'_>) -> Result<Exit, CliError> {
    let rows = rows_of(config);
    let variables = conninfo::variables(env);
    let text = if args.json {
        format!("{:#}", as_json(config, &rows, &variables))
    } else {
        as_text(config, &rows, &variables)
    };
    Output::stdout().line(&text).map_err(CliError::Output)?;
    Ok(Exit::Done)
}

pub(super) fn schema() -> Result<Exit, CliError> {
    let text = format!("{:#}", config_schema::schema());
    Output::stdout().line(&text).map_err(CliError::Output)?;
    Ok(Exit::Done)
}

fn as_json(config: &Config, rows: &[Shown], variables: &[&str]) -> Value {
    let key = |row: &Shown| {
        let path = if row.table.is_empty() {
            row.key.clone()
        } else {
            format!("{}.{}", row.table, row.key)
        };
        let mut shown = json!({"key": path, "value": row.value, "masked": is_masked(&row.value)});
        let origin = match &row.origin {
            Origin::File { place, variables } => {
                shown["line"] = json!(place.line);
                shown["column"] = json!(place.column);
                shown["variables"] = json!(variables);
                "file"
            }
            Origin::Layout(_) => "layout",
            Origin::Default => "default",
        };
        shown["from"] = json!(origin);
        shown
    };
    let keys: Vec<_> = rows.iter().map(key).collect();
    json!({"file": config.file, "keys": keys, "connection_variables": variables})
}

fn as_text(config: &Config, rows: &[Shown], variables: &[&str]) -> String {
    // Writing to a String does not fail.
    let mut text = format!("# {}, with the defaults of what it does not say\n", config.file);
    let mut table = "";
    for row in rows {
        if row.table != table {
            table = &row.table;
            write!(text, "\n[{table}]\n").unwrap_or_default();
        }
        let line = match toml_of(&row.value) {
            Some(value) => format!("{} = {value}", row.key),
            None => format!("# {} is not set", row.key),
        };
        let origin = match &row.origin {
            Origin::File { place, variables } if variables.is_empty() => {
                format!("line {}", place.line)
            }
            Origin::File { place, variables } => {
                format!("line {}, ${}", place.line, variables.join(", $"))
            }
            Origin::Layout(layout) => format!("layout {layout}"),
            Origin::Default => "default".to_owned(),
        };
        writeln!(text, "{line:ORIGIN_COLUMN$} # {origin}").unwrap_or_default();
    }
    if !variables.is_empty() {
        let names = variables.join(", $");
        write!(text, "\n# What source.url does not say comes from ${names} too.\n")
            .unwrap_or_default();
    }
    text.truncate(text.trim_end().len());
    text
}

/// A value as TOML has it; `None` for null, which TOML does not have.
fn toml_of(value: &Value) -> Option<String> {
    match value {
        Value::Null => None,
        // As the file would have it: what is shown is no variable any more.
        Value::String(text) => Some(toml::Value::String(text.replace("${", "$${")).to_string()),
        Value::Bool(_) | Value::Number(_) => {
            toml::Value::try_from(value).ok().map(|value| value.to_string())
        }
        Value::Array(values) => {
            let values: Vec<_> = values.iter().filter_map(toml_of).collect();
            Some(format!("[{}]", values.join(", ")))
        }
        Value::Object(members) => {
            let members =
                members.iter().filter_map(|(k, v)| Some(format!("{k} = {}", toml_of(v)?)));
            Some(format!("{{ {} }}", members.collect::<Vec<_>>().join(", ")))
        }
    }
}
