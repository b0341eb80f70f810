//! Tables: on the screen as they come, and as `performance.md` with its plots at the end.

use crate::args::Args;
use std::fmt::Write;
use std::fs;
use std::path::PathBuf;

pub(crate) struct Table {
    title: String,
    note: String,
    head: Vec<String>,
    rows: Vec<Vec<String>>,
}

impl Table {
    pub(crate) fn new(title: &str, note: &str, head: &[&str]) -> Self {
        let head = head.iter().map(|&cell| cell.to_owned()).collect();
        Self { title: title.to_owned(), note: note.to_owned(), head, rows: Vec::new() }
    }

    pub(crate) fn row(&mut self, cells: Vec<String>) {
        assert_eq!(cells.len(), self.head.len(), "{}", self.title);
        self.rows.push(cells);
    }

    /// The first column to the left, figures to the right.
    fn print(&self) {
        println!("\n{}", self.title);
        let lines: Vec<&Vec<String>> = std::iter::once(&self.head).chain(&self.rows).collect();
        let width = |column: usize| lines.iter().map(|line| line[column].chars().count()).max();
        let widths: Vec<usize> = (0..self.head.len()).filter_map(width).collect();
        for line in lines {
            let mut text = format!("{:<1$}", line[0], widths[0]);
            for (cell, width) in line.iter().zip(&widths).skip(1) {
                write!(text, "  {cell:>width$}").expect("a string");
            }
            println!("{text}");
        }
    }

    fn markdown(&self) -> String {
        let line = |cells: &[String]| format!("| {} |\n", cells.join(" | "));
        let mut text = format!("\n## {}\n\n{}", self.title, line(&self.head));
        writeln!(text, "|---|{}", "---:|".repeat(self.head.len() - 1)).expect("a string");
        for row in &self.rows {
            text += &line(row);
        }
        if self.note.is_empty() { text } else { format!("{text}\n{}\n", fold(&self.note)) }
    }
}

/// Lines of at most 118 characters.
fn fold(text: &str) -> String {
    let (mut folded, mut column) = (String::new(), 0);
    for word in text.split_whitespace() {
        let length = word.chars().count();
        if column > 0 && column + length >= 118 {
            folded.push('\n');
            column = 0;
        } else if column > 0 {
            folded.push(' ');
            column += 1;
        }
        folded += word;
        column += length;
    }
    folded
}

/// Written after each table, so that a run which fails late leaves what it found.
pub(crate) struct Page {
    out: Option<PathBuf>,
    text: String,
    plots: Vec<(String, String)>,
}

impl Page {
    pub(crate) fn new(args: &Args) -> Self {
        let mut command = "scripts/bench".to_owned();
        if args.quick {
            command += " --quick";
        }
        let text = format!(
            "# Performance\n\nWritten by `{command}`, which runs it all again; not by hand.\n\n{}\n",
            fold(&about(args))
        );
        Self { out: args.out.clone(), text, plots: Vec::new() }
    }

    pub(crate) fn table(&mut self, table: &Table) {
        table.print();
        self.text += &table.markdown();
        self.write();
    }

    pub(crate) fn plot(&mut self, name: &str, svg: &str) {
        write!(self.text, "\n![{name}](plots/{name}.svg)\n").expect("a string");
        self.plots.push((name.to_owned(), svg.to_owned()));
    }

    pub(crate) fn write(&self) {
        let Some(out) = &self.out else { return };
        let plots = out.join("plots");
        fs::create_dir_all(&plots).expect("a directory");
        for (name, svg) in &self.plots {
            fs::write(plots.join(format!("{name}.svg")), svg).expect("a plot");
        }
        fs::write(out.join("performance.md"), &self.text).expect("a page");
    }
}

fn about(args: &Args) -> String {
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let model = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = model.lines().find_map(|line| line.strip_prefix("model name")).unwrap_or("");
    let model = model.trim_start_matches([' ', '\t', ':']);
    let rounds = if args.rounds == 1 {
        "one round; the last column says where others used a tenth of a core, or the hypervisor took \
         some"
        .to_owned()
    } else {
        format!(
            "{} rounds; figures are medians of the rounds in which others used less than a tenth of a \
             core",
            args.rounds
        )
    };
    format!(
        "One machine of {cores} cores ({model}) has everything on it: PostgreSQL 15, the relay, the Kafka broker, \
         writer and reader. So compare figures within a table, not with those of other machines. All contenders read \
         the same WAL, each from a copy of one slot, in turn, {rounds}. Postrider and pg_recvlogical read by unix \
         socket, Debezium by TCP since Java's driver knows nothing else. Rows are about 300 B of JSON for 1,000 \
         aggregates, half of it random; topics have 8 partitions; records have three headers (Debezium's two), \
         acks=all, lz4. What is in Kafka was read back, is complete, and in order for each aggregate. Debezium runs \
         on Kafka Connect, tuned \
         (`benches/suite/debezium.rs`)."
    )
}
