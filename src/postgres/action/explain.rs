//! The halts that come from an error of the server, in the four parts that every halt has.

use crate::error::{Chain, Halt, HaltReason};
use crate::postgres::error::{SourceError, SourceErrorKind};
use crate::postgres::names::{Names, literal};

const NOTHING_LOST: &str =
    "nothing is confirmed while halted; the slot keeps the WAL, nothing is lost";

/// The halt for `reason`, with the error's own words in it.
pub fn explain(reason: HaltReason, error: &SourceError, names: &Names) -> Halt {
    let (meaning, hint) = match reason {
        HaltReason::AccessDenied => {
            ("nothing was read or confirmed".to_owned(), access_hint(error))
        }
        HaltReason::PublicationMissing => publication_missing(error, names),
        HaltReason::PublicationUnfit => (
            NOTHING_LOST.to_owned(),
            format!(
                "name one publication in source.publication, made by: postrider setup -p {}",
                names.pipeline
            ),
        ),
        HaltReason::SlotUnusable | HaltReason::SlotMissing | HaltReason::SlotLost => (
            format!("slot {:?} can't be read; {NOTHING_LOST}", names.slot),
            format!(
                "look at it: SELECT * FROM pg_replication_slots WHERE slot_name = {};",
                literal(&names.slot)
            ),
        ),
        HaltReason::SchemaUnfit => {
            (NOTHING_LOST.to_owned(), format!("postrider setup -p {}", names.pipeline))
        }
        HaltReason::PoisonEvent => (
            "one message of the stream can't be taken; everything behind it waits in the slot".to_owned(),
            "keep payloads below the limit: ALTER TABLE … ADD CHECK (octet_length(payload::text) < …); to pass over \
             this one see docs/operations.md"
                .to_owned(),
        ),
        HaltReason::Wedged => (
            "the server fails at the same position each time: everything behind it waits in the slot".to_owned(),
            "the server's log has the full error; a row that can't be converted or decoded is passed over as \
             docs/operations.md says"
                .to_owned(),
        ),
        HaltReason::Protocol => (
            "the bytes of the stream can't be trusted; nothing was skipped and nothing is confirmed".to_owned(),
            "make sure that source.url reaches PostgreSQL itself and no pooler; then report it with the log".to_owned(),
        ),
        HaltReason::ServerUnfit
        | HaltReason::OtherHistory
        | HaltReason::PositionAhead
        | HaltReason::SlotMoved
        | HaltReason::TableUnfit
        | HaltReason::MarksUnfit
        | HaltReason::WalBudget
        | HaltReason::RelayRunning
        | HaltReason::NotApplicable
        | HaltReason::AlreadySetUp
        | HaltReason::SinkUnfit => (
            NOTHING_LOST.to_owned(),
            format!("postrider setup -p {} --print-sql shows what is needed", names.pipeline),
        ),
    };
    Halt { reason, message: Chain(error).to_string(), meaning, hint }
}

const READ_ONLY: &str = "name the primary in source.url (target_session_attrs=read-write finds it among several \
    hosts); or default_transaction_read_only is on: reset it for the role, the database or the server";

const USED_UP: &str = "every connection or walsender is taken: raise max_connections or max_wal_senders (a restart), \
    or end one of SELECT pid, application_name FROM pg_stat_activity WHERE backend_type IN ('walsender', 'client \
    backend')";

/// PgBouncer's word for a parameter that it does not pass on, and the server's for a replication command in a session
/// that is none, since the pooler left `replication` out (measured with 1.18).
const POOLER: &str = "name PostgreSQL itself in source.url: a connection pooler such as PgBouncer is in between, and \
    replication does not pass it";

/// What to look at while an error is waited out; `None` where waiting is all there is to do, or the server has said it.
pub fn hint(error: &SourceError) -> Option<String> {
    match error.kind() {
        SourceErrorKind::Unreachable | SourceErrorKind::Timeout(_) => Some(
            "check host and port in source.url, the network, and that PostgreSQL runs and listens there"
                .to_owned(),
        ),
        SourceErrorKind::SessionAttrs => {
            Some("name all hosts in source.url, the one that takes writes among them".to_owned())
        }
        SourceErrorKind::Settings | SourceErrorKind::Tls | SourceErrorKind::AuthRefused => {
            Some(access_hint(error))
        }
        SourceErrorKind::Server(report) => {
            let access = matches!(report.sqlstate.class(), "28" | "3D")
                || report.sqlstate.as_str() == "42501";
            if access {
                return Some(access_hint(error));
            }
            match report.sqlstate.as_str() {
                "25006" => Some(READ_ONLY.to_owned()),
                "53300" => Some(USED_UP.to_owned()),
                "08P01" | "42601" => Some(POOLER.to_owned()),
                _ => report.hint.clone(),
            }
        }
        SourceErrorKind::Protocol
        | SourceErrorKind::Closed
        | SourceErrorKind::Silent(_)
        | SourceErrorKind::TooLarge { .. }
        | SourceErrorKind::Stopped
        | SourceErrorKind::ServerStopping
        | SourceErrorKind::System => None,
    }
}

fn access_hint(error: &SourceError) -> String {
    let hint = match error.kind() {
        SourceErrorKind::Tls => {
            "check sslmode, sslrootcert, and name and dates of the server's certificate; the server may not offer TLS \
             at all"
        }
        SourceErrorKind::Settings => "check the files and names of source.url",
        SourceErrorKind::AuthRefused => {
            "check password_file; a password is only sent over TLS or by SCRAM or md5"
        }
        SourceErrorKind::Server(report) => match report.sqlstate.as_str() {
            "3D000" => "correct the database in source.url",
            "42501" => {
                "the role lacks a right: postrider setup --print-sql has the GRANTs; replication needs ALTER ROLE … \
                 REPLICATION (RDS: GRANT rds_replication TO …)"
            }
            _ => {
                "check the user and password_file, the role's VALID UNTIL, and pg_hba.conf: its line names the \
                 database, not \"replication\""
            }
        },
        SourceErrorKind::Unreachable
        | SourceErrorKind::Timeout(_)
        | SourceErrorKind::SessionAttrs
        | SourceErrorKind::Protocol
        | SourceErrorKind::Closed
        | SourceErrorKind::Silent(_)
        | SourceErrorKind::TooLarge { .. }
        | SourceErrorKind::Stopped
        | SourceErrorKind::ServerStopping
        | SourceErrorKind::System => "check source.url",
    };
    hint.to_owned()
}

/// The WAL being decoded is of a time when the publication did not exist: no publication made now helps it.
fn publication_missing(error: &SourceError, names: &Names) -> (String, String) {
    let at = error
        .report()
        .and_then(|report| report.associated_lsn)
        .map_or_else(String::new, |at| format!(" at {at}"));
    (
        format!(
            "the publication did not exist when the WAL{at} was written: rows of that time are not sent, even if it \
             exists again now; nothing was confirmed past them"
        ),
        format!(
            "make sure that publication {:?} exists and nobody drops it; then begin a new slot: SELECT \
             pg_drop_replication_slot({}); DELETE FROM postrider.cursor WHERE pipeline = {}; then postrider setup -p \
             {}; then insert again the outbox rows that consumers miss",
            names.publication,
            literal(&names.slot),
            literal(&names.pipeline),
            names.pipeline
        ),
    )
}
