//! Where in the configuration file a line belongs: below which table's header, under which name of the key.
//!
//! A finding names a key by its whole path, which can be written in a file in several ways: below the header of its
//! table, dotted below an outer header, or above all headers. Each way is tried on the text of the file. The first way
//! that sets the key and changes nothing else is printed.

use crate::config::key_as_toml;
use crate::finding::Fix;
use toml::{Table, Value};

/// How the line is added to the file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Edit {
    /// Below the header `[table]`, in place of the line that sets the key now.
    Replace,
    /// Below the header `[table]`.
    Add,
    /// At the end of the file, below a new header `[table]`.
    NewTable,
    /// Above the first header.
    Top,
}

impl Edit {
    const ALL: [Self; 4] = [Self::Replace, Self::Add, Self::NewTable, Self::Top];

    const fn name(self) -> &'static str {
        match self {
            Self::Replace => "replace",
            Self::Add => "add",
            Self::NewTable => "new_table",
            Self::Top => "top",
        }
    }
}

/// Replaces the line `a.b.c = value` of a finding by the line for a file with this text, and edits the text, because
/// the lines of a report are applied one after the other. If no edit sets the key, the whole path is kept.
pub(super) fn fit(fix: &mut Fix, text: &mut String) {
    let Some(path) = key_of(&fix.line) else { return };
    let Some((_, value)) = fix.line.split_once('=') else { return };
    let value = value.trim().to_owned();
    for edit in Edit::ALL {
        // The nearest header first; the key below it is dotted by what is left.
        for depth in (0..path.len()).rev() {
            let Some((outer, key)) = path.split_at_checked(depth) else { continue };
            if (edit == Edit::Top) != (depth == 0)
                || edit == Edit::NewTable && depth + 1 != path.len()
            {
                continue;
            }
            let line = format!("{} = {value}", dotted(key));
            let edited = apply(text, edit, outer, key, &line);
            if let Some(edited) = edited.filter(|edited| sets(edited, text, &path, &value)) {
                *text = edited;
                fix.line = line;
                fix.table = dotted(outer);
                fix.edit = edit.name();
                return;
            }
        }
    }
}

/// The place of the line, as it is printed behind the name of the file.
pub(super) fn place(fix: &Fix) -> String {
    let table = &fix.table;
    match fix.edit {
        "replace" => format!(", below [{table}], replacing the present line"),
        "add" => format!(", below [{table}]"),
        "new_table" => format!(", at the end of the file, below a new line [{table}]"),
        "top" => ", above the first table".to_owned(),
        _ => String::new(),
    }
}

fn dotted(path: &[String]) -> String {
    path.iter().map(|name| key_as_toml(name)).collect::<Vec<_>>().join(".")
}

/// The text after the edit; `None` if there is no such header or line.
fn apply(text: &str, edit: Edit, outer: &[String], key: &[String], line: &str) -> Option<String> {
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    match edit {
        Edit::Top => lines.insert(0, line.to_owned()),
        Edit::NewTable => lines.extend([format!("[{}]", dotted(outer)), line.to_owned()]),
        Edit::Add => {
            let at = lines.iter().position(|line| header(line).as_deref() == Some(outer))?;
            lines.insert(at + 1, line.to_owned());
        }
        Edit::Replace => {
            let at = lines.iter().position(|line| header(line).as_deref() == Some(outer))?;
            let below = lines.get(at + 1..)?.iter().take_while(|line| header(line).is_none());
            let offset = below.clone().position(|line| key_of(line).as_deref() == Some(key))?;
            line.clone_into(lines.get_mut(at + 1 + offset)?);
        }
    }
    Some(lines.join("\n"))
}

/// Whether the edited text is the old text with this value at this path and no other difference.
fn sets(edited: &str, text: &str, path: &[String], value: &str) -> bool {
    let parsed = |text: &str| text.parse::<Table>().ok();
    let Some(edited) = parsed(edited) else { return false };
    let Some(mut wanted) = parsed(text) else { return false };
    let Some(value) = parsed(&format!("value = {value}")).and_then(|mut t| t.remove("value"))
    else {
        return false;
    };
    let Some((last, outer)) = path.split_last() else { return false };
    let mut at = &mut wanted;
    for name in outer {
        let inner = at.entry(name.clone()).or_insert_with(|| Value::Table(Table::new()));
        let Value::Table(inner) = inner else { return false };
        at = inner;
    }
    at.insert(last.clone(), value);
    edited == wanted
}

/// The path of a line `[a.b]`.
fn header(line: &str) -> Option<Vec<String>> {
    let line = line.trim_start();
    if !line.starts_with('[') || line.starts_with("[[") {
        return None;
    }
    let mut table: Table = line.parse().ok()?;
    let mut path = Vec::new();
    while let Some((name, Value::Table(inner))) = table.into_iter().next() {
        path.push(name);
        table = inner;
    }
    Some(path)
}

/// The path of the key of a line `a.b = value`.
fn key_of(line: &str) -> Option<Vec<String>> {
    let (key, _) = line.split_once('=')?;
    let mut table: Table = format!("{key} = 0").parse().ok()?;
    let mut path = Vec::new();
    loop {
        let (name, inner) = table.into_iter().next()?;
        path.push(name);
        let Value::Table(inner) = inner else { return Some(path) };
        table = inner;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::finding::Finding;

    fn fitted(text: &str, line: &str) -> (String, String) {
        let mut finding = Finding::error("id", "what").config(line);
        let fix = finding.fix.first_mut().unwrap();
        fit(fix, &mut text.to_owned());
        (place(fix), fix.line.clone())
    }

    #[test]
    fn a_line_fits_the_style_of_the_file() {
        let headers =
            "[pipelines.orders.source]\nurl = \"a\"\n\n[pipelines.orders.sink]\nkind = \"kafka\"\n";
        let dotted = "[pipelines.orders]\nsource.url = \"a\"\nsink.brokers = \"b\"\n";
        let roots = "pipelines.orders.source.url = \"a\"\npipelines.orders.sink.brokers = \"b\"\n";
        let inline = "[pipelines.orders]\nsource = { url = \"a\" }\n";
        for (text, line, place, fits) in [
            (
                headers,
                "pipelines.orders.source.time_zone = \"UTC\"",
                ", below [pipelines.orders.source]",
                "time_zone = \"UTC\"",
            ),
            (
                headers,
                "pipelines.orders.source.url = \"z\"",
                ", below [pipelines.orders.source], replacing the present line",
                "url = \"z\"",
            ),
            (
                headers,
                "pipelines.orders.outbox.extra.\"a b\" = { ignore = true }",
                ", at the end of the file, below a new line [pipelines.orders.outbox.extra]",
                "\"a b\" = { ignore = true }",
            ),
            (
                headers,
                "pipelines.orders.sink.properties.\"security.protocol\" = \"SSL\"",
                ", below [pipelines.orders.sink]",
                "properties.\"security.protocol\" = \"SSL\"",
            ),
            (
                dotted,
                "pipelines.orders.source.time_zone = \"UTC\"",
                ", below [pipelines.orders]",
                "source.time_zone = \"UTC\"",
            ),
            (
                dotted,
                "pipelines.orders.source.url = \"z\"",
                ", below [pipelines.orders], replacing the present line",
                "source.url = \"z\"",
            ),
            (
                roots,
                "pipelines.orders.source.time_zone = \"UTC\"",
                ", above the first table",
                "pipelines.orders.source.time_zone = \"UTC\"",
            ),
            // The table is inline: there is no line that can be pasted.
            (
                inline,
                "pipelines.orders.source.time_zone = \"UTC\"",
                "",
                "pipelines.orders.source.time_zone = \"UTC\"",
            ),
        ] {
            assert_eq!(
                fitted(text, line),
                (place.to_owned(), fits.to_owned()),
                "{line} in\n{text}"
            );
        }
    }
}
