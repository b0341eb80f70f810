//! A layout's SQL for a table of another name.

use crate::outbox::Layout;

/// The SQL that makes `layout`'s table under the name `table`, in the first schema of the search path.
///
/// Indexes and side tables named after the table are renamed with it, so that two outboxes fit into one schema.
pub(super) fn for_table(layout: Layout, table: &str) -> String {
    let from = layout.table();
    if table == from {
        return layout.create_sql().to_owned();
    }
    let lines = layout.create_sql().lines().map(|line| {
        // Comments are prose: the name in them means the layout's.
        if line.starts_with("--") { line.to_owned() } else { renamed(line, from, table) }
    });
    lines.collect::<Vec<_>>().join("\n") + "\n"
}

fn renamed(line: &str, from: &str, to: &str) -> String {
    let mut text = String::new();
    let mut rest = line;
    while let Some(start) = rest.find(is_word) {
        let (before, word_on) = rest.split_at(start);
        let (word, after) =
            word_on.split_at(word_on.find(|c| !is_word(c)).unwrap_or(word_on.len()));
        text.push_str(before);
        text.push_str(&named_after(word, from, to).unwrap_or_else(|| word.to_owned()));
        rest = after;
    }
    text + rest
}

fn is_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_'
}

/// `outbox` and `idx_outbox_status` are named after `outbox`; `outboxes` is not.
fn named_after(word: &str, from: &str, to: &str) -> Option<String> {
    let (before, after) = word.split_once(from)?;
    let apart = (before.is_empty() || before.ends_with('_'))
        && (after.is_empty() || after.starts_with('_'));
    let name = format!("{before}{to}{after}").replace('"', "\"\"");
    apart.then(|| format!("\"{name}\""))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_of_another_name_takes_its_indexes_along() {
        let sql = for_table(Layout::Gcx, "Shop \"events\"");
        assert!(sql.contains("CREATE TABLE \"Shop \"\"events\"\"\" (\n"), "{sql}");
        let index = "CREATE INDEX \"idx_Shop \"\"events\"\"_expires\" ON \"Shop \"\"events\"\"\" (";
        assert!(sql.contains(index), "{sql}");
        assert!(
            !sql.lines().any(|line| !line.starts_with("--") && line.contains("outbox")),
            "{sql}"
        );
    }

    #[test]
    fn the_layouts_own_name_changes_nothing() {
        for layout in Layout::ALL {
            assert_eq!(for_table(*layout, layout.table()), layout.create_sql());
        }
    }
}
