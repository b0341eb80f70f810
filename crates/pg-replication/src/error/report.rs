//! What the server reports: the fields of an `ErrorResponse` or a `NoticeResponse`, without anybody's values.
//!
//! Whether a report ends anything is not decided here; it goes into a [`SourceError`](super::SourceError).

use super::SqlState;
use crate::lsn::Lsn;

/// An `ErrorResponse` or `NoticeResponse` of the server.
///
/// The CONTEXT field is not kept: it can hold row values. The LSN in it, where pgoutput names one, is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ServerReport {
    /// `ERROR`, `FATAL`, `WARNING` …, never localised.
    pub severity: String,
    /// The SQLSTATE, `XX000` where the server sent none that is well formed.
    pub sqlstate: SqlState,
    /// MESSAGE: for people.
    pub message: String,
    /// DETAIL: for people; the reason of a slot's invalidation stands here.
    pub detail: Option<String>,
    /// HINT: for people.
    pub hint: Option<String>,
    /// The "associated LSN" of an output plugin's error.
    pub associated_lsn: Option<Lsn>,
}

/// Longest message, detail or hint kept. Unit: characters.
const TEXT_MAX: usize = 1000;

impl ServerReport {
    /// From the fields of an `ErrorResponse` or a `NoticeResponse` (manual, 55.8 "Error and Notice Message Fields").
    ///
    /// Each field is a byte that names it and a text that ends with a zero; a further zero ends the list. What is not
    /// so is passed over: a damaged report is still a report.
    pub fn from_fields(body: &[u8]) -> Self {
        let mut report = Self {
            severity: String::new(),
            sqlstate: SqlState(*b"XX000"),
            message: String::new(),
            detail: None,
            hint: None,
            associated_lsn: None,
        };
        for field in body.split(|byte| *byte == 0) {
            let Some((name, text)) = field.split_first() else { break };
            let text = String::from_utf8_lossy(text);
            match name {
                b'V' => report.severity = clean(&text),
                b'S' if report.severity.is_empty() => report.severity = clean(&text),
                b'C' => report.sqlstate = SqlState::parse(&text).unwrap_or(report.sqlstate),
                b'M' => report.message = clean(&text),
                b'D' => report.detail = Some(clean(&text)),
                b'H' => report.hint = Some(clean(&text)),
                b'W' => report.associated_lsn = associated_lsn(&text),
                _ => {}
            }
        }
        report.without_values()
    }

    /// Data exceptions and broken constraints (classes 22 and 23) quote the values they are about: other people's data.
    /// 22023 is about settings.
    pub(super) fn without_values(mut self) -> Self {
        let quotes = matches!(self.sqlstate.class(), "22" | "23");
        if quotes && self.sqlstate.as_str() != "22023" {
            self.message = String::from("the server's words are not shown, they may hold values");
            self.detail = None;
        }
        self
    }

    /// The function of the server's source that reports: the one field beside the SQLSTATE that no locale changes.
    pub fn routine(body: &[u8]) -> Option<&[u8]> {
        body.split(|byte| *byte == 0).find_map(|field| field.strip_prefix(b"R"))
    }

    /// Whether it is a WARNING (a notice that matters).
    pub fn is_warning(&self) -> bool {
        self.severity == "WARNING"
    }
}

/// Without control characters, and not without end.
pub(super) fn clean(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(TEXT_MAX).collect()
}

/// The LSN that `output_plugin_error_callback` (`replication/logical/logical.c`) puts last in the CONTEXT.
pub(super) fn associated_lsn(context: &str) -> Option<Lsn> {
    let (_, rest) = context.split_once("associated LSN ")?;
    let end = rest.find(|c: char| !c.is_ascii_hexdigit() && c != '/').unwrap_or(rest.len());
    rest.get(..end)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::SourceError;

    #[test]
    fn a_report_keeps_what_people_need_and_no_context() {
        let fields = b"SFEHLER\0VERROR\0C42704\0Mpublication \"p\" does\nnot exist\0Dd\0Hh\0\
            Wslot \"s\", in the change callback, associated LSN 0/1A2B, secret row\0\0";
        let report = ServerReport::from_fields(fields);
        assert_eq!(report.severity, "ERROR");
        assert_eq!(report.associated_lsn, "0/1A2B".parse().ok());
        assert!(!format!("{report:?}").contains("secret"));
        let error = SourceError::server("stream from slot \"s\"", report);
        assert_eq!(
            error.to_string(),
            "could not stream from slot \"s\": publication \"p\" does not exist (SQLSTATE 42704): d"
        );
        assert_eq!(error.sqlstate(), Some(SqlState::UNDEFINED_OBJECT));
    }

    #[test]
    fn the_routine_is_told_apart_from_all_else() {
        let fields =
            b"SWARNING\0VWARNING\0C55000\0MRoutine\0Fslot.c\0L2700\0RStandbySlotsHaveCaughtup\0\0";
        assert_eq!(ServerReport::routine(fields), Some(&b"StandbySlotsHaveCaughtup"[..]));
        assert_eq!(ServerReport::routine(b"C55000\0MRoutine\0\0"), None);
    }

    #[test]
    fn words_that_quote_values_are_not_shown() {
        for (sqlstate, shown) in [("22P02", false), ("23505", false), ("22023", true)] {
            let fields = format!("C{sqlstate}\0Mbad: hunter2\0DKey (id)=(hunter2) exists.\0\0");
            let report = ServerReport::from_fields(fields.as_bytes());
            assert_eq!(report.sqlstate.as_str(), sqlstate);
            assert_eq!(format!("{report:?}").contains("hunter2"), shown, "{sqlstate}");
        }
    }

    #[test]
    fn a_damaged_report_is_still_a_report() {
        for fields in [&b""[..], b"\0", b"C", b"C\xff\xff\0M\xff", b"C12\0"] {
            let report = ServerReport::from_fields(fields);
            assert_eq!(report.sqlstate.as_str(), "XX000", "{fields:?}");
        }
    }
}
