//! The plan as SQL that a DBA reads, and psql runs.

use super::{SetupPlan, Step, UndoPlan};
use std::fmt;

/// Longest comment line. Unit: characters.
const WIDTH: usize = 100;

const HOW: &str = "\
-- Run with: psql -X -v ON_ERROR_STOP=1 -f FILE, and without --single-transaction:
-- each step is a transaction of its own, and their order matters.
";

impl fmt::Display for SetupPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(HOW)?;
        for adopted in &self.adopted {
            writeln!(f, "-- There already: {adopted}.")?;
        }
        if self.steps.is_empty() {
            writeln!(f, "-- Nothing is missing.")?;
        }
        steps(f, &self.steps)
    }
}

impl fmt::Display for UndoPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(HOW)?;
        for lost in &self.lost {
            comment(f, &format!("Lost: {lost}."))?;
        }
        for stays in &self.stays {
            comment(f, &format!("Stays: {stays}."))?;
        }
        if self.steps.is_empty() {
            writeln!(f, "-- Nothing is there to undo.")?;
        }
        steps(f, &self.steps)
    }
}

fn steps(f: &mut fmt::Formatter<'_>, steps: &[Step]) -> fmt::Result {
    for (number, step) in (1..).zip(steps) {
        writeln!(f, "\n-- {number}. {}", step.title)?;
        comment(f, step.why)?;
        writeln!(f, "{}", step.sql)?;
    }
    Ok(())
}

fn comment(f: &mut fmt::Formatter<'_>, text: &str) -> fmt::Result {
    let mut width = 0;
    for word in text.split_whitespace() {
        if width == 0 || width + word.len() > WIDTH {
            write!(f, "{}--", if width == 0 { "" } else { "\n" })?;
            width = 2;
        }
        write!(f, " {word}")?;
        width += word.len() + 1;
    }
    writeln!(f)
}
