//! A timeline's history file: which timelines a server has behind it, and where each was left.
//!
//! Text of lines `timeline, position, reason`, parted by tabs, oldest first (manual, 26.3.6; written by
//! `writeTimeLineHistory`, `src/backend/access/transam/timeline.c`).

use crate::lsn::Lsn;

/// The end of one timeline.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Switch {
    /// The timeline that was left.
    pub timeline: u32,
    /// Where: what was written on it from here on is no part of the server's history.
    pub at: Lsn,
    /// Why, in the server's words: `no recovery target specified` for a promotion.
    pub reason: String,
}

impl Switch {
    /// Whether recovery was told where to end: this is a restored backup, not the other half of a pair. The words are
    /// those of `getRecoveryStopReason` (`src/backend/access/transam/xlogrecovery.c`), the same in 15 to 18.
    pub fn stopped_at_a_target(&self) -> bool {
        let targets = ["before ", "after ", "at restore point ", "reached consistency"];
        targets.iter().any(|words| self.reason.starts_with(words))
    }
}

/// The lines of the file; what is not one is passed over, as the server itself reads on.
pub(super) fn parse(text: &str) -> Vec<Switch> {
    let lines = text.lines().filter(|line| !line.trim_start().starts_with('#'));
    lines.filter_map(switch).collect()
}

fn switch(line: &str) -> Option<Switch> {
    let mut fields = line.trim_start().splitn(2, char::is_whitespace);
    let timeline = fields.next()?.parse().ok()?;
    let mut rest = fields.next()?.trim_start().splitn(2, char::is_whitespace);
    let at = rest.next()?.parse().ok()?;
    let reason = rest.next().unwrap_or_default().trim().to_owned();
    Some(Switch { timeline, at, reason })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As PostgreSQL 18 wrote it, with the comment an operator may add.
    #[test]
    fn every_timeline_that_was_left_is_read_with_its_end_and_its_reason() {
        let text = "1\t0/303D298\tno recovery target specified\n\n# a comment\n2\t1/5000\tbefore 2026-03-01 04:00\n";
        let switches = parse(text);
        let read: Vec<_> =
            switches.iter().map(|s| (s.timeline, s.at.to_string(), s.reason.as_str())).collect();
        assert_eq!(
            read,
            [
                (1, "0/303D298".to_owned(), "no recovery target specified"),
                (2, "1/5000".to_owned(), "before 2026-03-01 04:00"),
            ]
        );
        assert_eq!(
            switches.iter().map(Switch::stopped_at_a_target).collect::<Vec<_>>(),
            [false, true]
        );
    }

    #[test]
    fn lines_that_are_none_are_passed_over() {
        for text in ["", "\n\n", "x\t0/1\tno", "1", "1\t", "1\tnowhere\tno", "# 1\t0/1\tno"] {
            assert_eq!(parse(text), [], "{text:?}");
        }
        assert_eq!(parse("1\t0/1")[0].reason, "");
    }
}
