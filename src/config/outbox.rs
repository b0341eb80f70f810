//! `[pipelines.NAME.outbox]`: the table, its layout, its columns, and logical messages.

use super::kind::Kind;
use super::names::{nearest, quoted};
use super::pipeline::{NAME_BYTES_MAX, texts};
use super::section::{Entry, Section, wrong_kind};
use super::types::OutboxConfig;
use crate::outbox::{Extra, Layout, OnUpdate, Placement, Role, TableName};

pub(super) fn read(section: Section<'_>) -> OutboxConfig {
    let table = section.optional("table");
    let message_prefix = section.optional("message_prefix");
    let nothing = table.is_none() && message_prefix.is_none();
    let told = section.has_failed("table") || section.has_failed("message_prefix");
    if nothing && !told && section.is_whole() {
        section.error(
            "table",
            "neither a table nor a message_prefix is given; for example table = \"public.outbox\"",
        );
    }
    let name = table.as_deref().and_then(table_name);
    if table.is_some() && name.is_none() {
        section.error("table", "expected a table's name, such as \"public.outbox\"");
    }
    let layouts: Vec<_> = Layout::ALL.iter().map(|layout| (layout.name(), *layout)).collect();
    let layout = section.one_of("layout", &layouts, &["pgtrickle"], Layout::Postrider);
    let on_update = section.one_of(
        "on_update",
        &[("skip", OnUpdate::Skip), ("halt", OnUpdate::Halt)],
        &[],
        OnUpdate::Skip,
    );
    let config = OutboxConfig {
        table: name,
        layout,
        message_prefix,
        on_update,
        columns: columns(&section.section("columns"), layout),
        extra: extra(&section.section("extra")),
    };
    section.finish();
    config
}

fn columns(section: &Section<'_>, layout: Layout) -> Vec<(Role, String)> {
    let mut columns: Vec<(Role, String)> = Vec::new();
    for (name, column) in texts(section) {
        let Some(role) = layout.role(&name) else {
            let roles = Role::ALL.iter().map(|role| role.name());
            let near = nearest(&name, roles.clone());
            let hint = near.map_or_else(
                || format!("there are {}", roles.collect::<Vec<_>>().join(", ")),
                |near| format!("did you mean \"{near}\"?"),
            );
            section.error(&quoted(&name), format_args!("an event has no such field; {hint}"));
            continue;
        };
        // An empty name says that the table has no such column.
        if !column.is_empty() && !is_column(&column) {
            section.error(&quoted(&name), "expected a column's name of 1 to 63 bytes");
        }
        if columns.iter().any(|(of, _)| *of == role) {
            section.error(&quoted(&name), format_args!("{role} is given twice; delete one"));
        }
        columns.push((role, column));
    }
    columns
}

fn extra(section: &Section<'_>) -> Vec<Extra> {
    let mut columns = Vec::new();
    for entry in section.entries(Kind::Table) {
        if !is_column(entry.name) {
            section.context.error(
                entry.place,
                &entry.path,
                "expected a column's name of 1 to 63 bytes",
            );
        }
        if let Some((placement, may_lack)) = extra_column(section, &entry) {
            columns.push(Extra { column: entry.name.to_owned(), placement, may_lack });
        }
    }
    columns
}

fn extra_column<'a>(section: &Section<'a>, entry: &Entry<'a>) -> Option<(Placement, bool)> {
    const WAYS: &str = "expected one of { header = \"NAME\" }, { envelope = \"NAME\" }, \
                        { partition = true }, { ignore = true }";
    let Some(inner) = section.inner(entry) else {
        let (context, value) = (section.context, entry.value.get_ref());
        wrong_kind(context, entry.place, &entry.path, "a table", value);
        return None;
    };
    let keys = ["header", "envelope", "partition", "ignore"];
    let count = keys.iter().filter(|key| inner.has(key)).count();
    let name = |key| inner.text(key).filter(|name| !name.is_empty());
    let ways = [
        name("header").map(Placement::Header),
        name("envelope").map(Placement::Envelope),
        inner.boolean("partition", false).then_some(Placement::Partition),
        inner.boolean("ignore", false).then_some(Placement::Ignore),
    ];
    let found = ways.into_iter().flatten().next();
    if count != 1 || found.is_none() {
        section.context.error(entry.place, &entry.path, WAYS);
    }
    let may_lack = inner.boolean("optional", false);
    inner.finish();
    Some((found?, may_lack))
}

fn is_column(name: &str) -> bool {
    (1..=NAME_BYTES_MAX).contains(&name.len()) && !name.contains('\0')
}

/// Reads `name` or `schema.name` as PostgreSQL does: folded to lower case unless in double quotes. The schema of a bare
/// name is `public`.
pub fn table_name(text: &str) -> Option<TableName> {
    let (first, rest) = identifier(text)?;
    if rest.is_empty() {
        return Some(TableName { schema: "public".to_owned(), name: first });
    }
    let (name, rest) = identifier(rest.strip_prefix('.')?)?;
    rest.is_empty().then_some(TableName { schema: first, name })
}

/// Takes one identifier off the front.
fn identifier(text: &str) -> Option<(String, &str)> {
    let (name, rest) = if let Some(quoted) = text.strip_prefix('"') {
        quoted_identifier(quoted)?
    } else {
        let fits = |c: char| c.is_alphanumeric() || c == '_' || c == '$';
        let end = text.find(|c| !fits(c)).unwrap_or(text.len());
        let (name, rest) = text.split_at_checked(end)?;
        let digit = name.starts_with(|c: char| c.is_ascii_digit() || c == '$');
        if digit {
            return None;
        }
        (name.to_ascii_lowercase(), rest)
    };
    is_column(&name).then_some((name, rest))
}

fn quoted_identifier(text: &str) -> Option<(String, &str)> {
    let mut name = String::new();
    let mut rest = text;
    loop {
        let (before, after) = rest.split_once('"')?;
        name.push_str(before);
        match after.strip_prefix('"') {
            Some(after) => {
                name.push('"');
                rest = after;
            }
            None => return Some((name, after)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Option<(String, String)> {
        table_name(text).map(|table| (table.schema, table.name))
    }

    #[test]
    fn table_names_are_read_as_postgresql_reads_them() {
        let pair = |schema: &str, name: &str| Some((schema.to_owned(), name.to_owned()));
        assert_eq!(read("outbox"), pair("public", "outbox"));
        assert_eq!(read("App.OutBox"), pair("app", "outbox"));
        assert_eq!(read("\"App\".\"a.\"\"b\""), pair("App", "a.\"b"));
        for text in ["", ".", "a.", ".a", "a.b.c", "a b", "\"a", "1a", "a.\"\"", "a-b"] {
            assert_eq!(read(text), None, "{text:?}");
        }
    }
}
