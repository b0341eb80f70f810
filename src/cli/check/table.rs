//! Findings for people: a table on a terminal, plain lines otherwise. Mending lines are never folded: they are copied.

use super::{Report, edit};
use crate::finding::{Finding, Mend, MendKind, Severity};
use std::fmt::Write as _;

/// Columns of text where the terminal does not say, and at most.
const WIDTH: usize = 100;

/// Where the lines below a finding begin.
const WHY: usize = 11;

/// The text. `file` is the configuration, for lines that belong into it.
pub(super) fn render(reports: &[Report], file: &str, is_terminal: bool, color: bool) -> String {
    let style = Style { file, width: is_terminal.then(width), color };
    let mut text = String::new();
    for report in reports {
        if is_terminal {
            style.head(report, &mut text);
        }
        let widest = report.findings.iter().map(|finding| finding.id.len()).max().unwrap_or(0);
        for finding in &report.findings {
            if is_terminal {
                style.row(finding, widest, &mut text);
            } else {
                style.lines(&report.pipeline, finding, &mut text);
            }
        }
    }
    text.push_str(&summary(reports));
    text
}

fn width() -> usize {
    let columns = crossterm::terminal::size().map_or(WIDTH, |(columns, _)| usize::from(columns));
    columns.clamp(60, WIDTH)
}

fn summary(reports: &[Report]) -> String {
    let count = |severity| {
        reports
            .iter()
            .flat_map(|report| &report.findings)
            .filter(|f| f.severity == severity)
            .count()
    };
    let number =
        |count: usize, word: &str| format!("{count} {word}{}", if count == 1 { "" } else { "s" });
    format!(
        "{} passed, {}, {}",
        count(Severity::Ok),
        number(count(Severity::Warning), "warning"),
        number(count(Severity::Error), "error"),
    )
}

struct Style<'a> {
    file: &'a str,
    /// Columns of the terminal.
    width: Option<usize>,
    color: bool,
}

impl Style<'_> {
    fn paint(&self, code: &str, text: &str) -> String {
        if self.color { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    }

    fn head(&self, report: &Report, text: &mut String) {
        // Writing to a String does not fail.
        writeln!(text, "{}  {}\n", self.paint("1", &report.pipeline), report.route)
            .unwrap_or_default();
    }

    /// Severity, name, what; below it why, and what fixes it.
    fn row(&self, finding: &Finding, widest: usize, text: &mut String) {
        let (code, word) = match finding.severity {
            Severity::Ok => ("32", "ok"),
            Severity::Info => ("36", "info"),
            Severity::Warning => ("33", "WARNING"),
            Severity::Error => ("31", "ERROR"),
        };
        let word = self.paint(code, &format!("{word:<7}"));
        let indent = 2 + 7 + 2 + widest + 2;
        let head = format!("  {word}  {:<widest$}  ", finding.id);
        self.folded(&head, indent, &finding.what, None, text);
        if !finding.why.is_empty() {
            self.folded(&" ".repeat(WHY), WHY, &finding.why, Some("2"), text);
        }
        for mend in &finding.mend {
            writeln!(
                text,
                "{}{} {}",
                " ".repeat(WHY),
                self.paint("1", &self.kind(mend)),
                Self::line(mend)
            )
            .unwrap_or_default();
        }
        if finding.severity > Severity::Info {
            text.push('\n');
        }
    }

    fn kind(&self, mend: &Mend) -> String {
        match mend.kind {
            MendKind::Config => format!("{}{}:", self.file, edit::place(mend)),
            MendKind::Sql | MendKind::Shell => mend.kind.name().to_owned(),
        }
    }

    fn line(mend: &Mend) -> String {
        let comment = match mend.kind {
            MendKind::Sql => "--",
            MendKind::Config | MendKind::Shell => "#",
        };
        if mend.restart {
            format!("{} {comment} then restart PostgreSQL", mend.line)
        } else {
            mend.line.clone()
        }
    }

    /// Words, folded at the terminal's edge behind `head`, which is `indent` columns wide.
    fn folded(
        &self,
        head: &str,
        indent: usize,
        words: &str,
        code: Option<&str>,
        text: &mut String,
    ) {
        let room = self.width.unwrap_or(WIDTH).saturating_sub(indent).max(30);
        let mut lines: Vec<String> = vec![String::new()];
        for word in words.split(' ') {
            let Some(line) = lines.last_mut() else { return };
            if !line.is_empty() && line.chars().count() + 1 + word.chars().count() > room {
                lines.push(word.to_owned());
            } else {
                if !line.is_empty() {
                    line.push(' ');
                }
                line.push_str(word);
            }
        }
        for (index, line) in lines.iter().enumerate() {
            let before = if index == 0 { head.to_owned() } else { " ".repeat(indent) };
            let line = code.map_or_else(|| line.clone(), |code| self.paint(code, line));
            writeln!(text, "{before}{line}").unwrap_or_default();
        }
    }

    /// One line each, so that grep finds it.
    fn lines(&self, pipeline: &str, finding: &Finding, text: &mut String) {
        let (id, severity) = (finding.id, finding.severity.name());
        writeln!(text, "{pipeline}: {severity}: {id}: {}", finding.what).unwrap_or_default();
        if !finding.why.is_empty() {
            writeln!(text, "{pipeline}:   why: {}", finding.why).unwrap_or_default();
        }
        for mend in &finding.mend {
            let kind = match mend.kind {
                MendKind::Config => format!("config {}{}", self.file, edit::place(mend)),
                MendKind::Sql | MendKind::Shell => mend.kind.name().to_owned(),
            };
            writeln!(text, "{pipeline}:   fix ({kind}): {}", Self::line(mend)).unwrap_or_default();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::expect;

    fn reports() -> [Report; 1] {
        let findings = vec![
            Finding::ok("server_version", "PostgreSQL 18.4"),
            Finding::error(
                "wal_level",
                "wal_level is \"replica\", logical decoding needs \"logical\"",
            )
            .why("no slot can be made")
            .sql_and_restart("ALTER SYSTEM SET wal_level = 'logical';"),
            Finding::warning("table", "another")
                .why("words ".repeat(13).trim_end())
                .config("pipelines.orders.outbox.table = \"app.outbox\"")
                .shell("postrider setup -p orders"),
        ];
        [Report {
            pipeline: "orders".to_owned(), route: "db:5432 → k1:9092".to_owned(), findings
        }]
    }

    #[test]
    fn lines_can_be_found_and_copied() {
        expect![[r#"
            orders: ok: server_version: PostgreSQL 18.4
            orders: error: wal_level: wal_level is "replica", logical decoding needs "logical"
            orders:   why: no slot can be made
            orders:   fix (sql): ALTER SYSTEM SET wal_level = 'logical'; -- then restart PostgreSQL
            orders: warning: table: another
            orders:   why: words words words words words words words words words words words words words
            orders:   fix (config postrider.toml): pipelines.orders.outbox.table = "app.outbox"
            orders:   fix (shell): postrider setup -p orders
            1 passed, 1 warning, 1 error"#]]
        .assert_eq(&render(&reports(), "postrider.toml", false, false));
    }

    #[test]
    fn a_terminal_shows_a_table() {
        let shown = render(&reports(), "postrider.toml", true, false);
        for line in shown.lines().filter(|line| line.contains("words")) {
            assert!(line.chars().count() <= WIDTH, "{line}");
        }
        assert!(shown.contains("  ERROR    wal_level       wal_level is"), "{shown}");
        assert!(shown.contains("\n           sql ALTER SYSTEM SET wal_level"), "{shown}");
        let colored = render(&reports(), "postrider.toml", true, true);
        assert!(colored.contains("\x1b[31mERROR"), "{colored}");
    }
}
