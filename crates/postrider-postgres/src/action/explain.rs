//! The halts that come from an error of the server, in the four parts that every halt has.

use crate::fence::run_without_slot;
use crate::names::{Names, admin_url, ident, literal};
use pg_replication::error::{SourceError, SourceErrorKind, Statement};
use postrider_core::error::{Chain, Halt, HaltReason};

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
                "name one publication in source.publication, made by: {}",
                setup_as_admin(names)
            ),
        ),
        HaltReason::SlotUnusable | HaltReason::SlotMissing | HaltReason::SlotLost => (
            format!("slot {:?} can't be read; {NOTHING_LOST}", names.slot),
            format!(
                "look at it: SELECT * FROM pg_replication_slots WHERE slot_name = {};",
                literal(&names.slot)
            ),
        ),
        HaltReason::SchemaUnfit => (NOTHING_LOST.to_owned(), schema_hint(error, names)),
        HaltReason::TableUnfit if error.statement().is_some() => table_refuses(error, names),
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
        | HaltReason::RowUpdated
        | HaltReason::SchemaUntrusted
        | HaltReason::PipelineChanged
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
                "the role lacks a right: postrider setup --url postgresql://ADMIN@HOST/DATABASE gives it, or \
                 --print-sql prints the GRANTs; replication needs ALTER ROLE … REPLICATION (RDS: GRANT \
                 rds_replication TO …)"
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

/// The role that was refused, or for which something is missing, is the relay's: it can't give itself rights.
fn setup_as_admin(names: &Names) -> String {
    format!("postrider setup -p {} --url {}", names.pipeline, admin_url("DATABASE"))
}

fn schema_hint(error: &SourceError, names: &Names) -> String {
    let setup = setup_as_admin(names);
    match error.report().map(|report| report.sqlstate) {
        Some(state)
            if matches!(state.class(), "23" | "27" | "09" | "P0" | "44")
                || state.as_str() == "0A000" =>
        {
            format!(
                "see which trigger, rule or constraint was added to the tables of schema postrider, and remove it; \
                 then start again ({setup} makes what is missing, and changes no row)"
            )
        }
        Some(_) | None => {
            format!("{setup}; it makes what is missing, grants the rights, and changes no row")
        }
    }
}

/// The outbox table refuses a statement of ours: what that means for the data, and what to change. Nothing of it loses
/// an event: rows without a mark are published again at most.
fn table_refuses(error: &SourceError, names: &Names) -> (String, String) {
    let table =
        names.table.as_ref().map_or_else(|| "the outbox table".to_owned(), ToString::to_string);
    let claims = error.statement() == Some(Statement::Claim);
    let meaning = if claims {
        "nothing was claimed or marked; all rows are still in the table".to_owned()
    } else {
        format!(
            "nothing is lost: published rows of {table} can't be marked as published, so nothing is confirmed past \
             them; events published since then are published again at the next start"
        )
    };
    let right = if claims { "lock" } else { "mark" };
    let hint = match error.report().map(|report| report.sqlstate) {
        Some(state) if state.as_str() == "42501" => format!(
            "the role needs UPDATE, and DELETE where marks delete, to {right} rows: GRANT SELECT, UPDATE, DELETE ON \
             {table} TO the role of source.url (postrider setup -p {} --print-sql has the lines); then start again",
            names.pipeline
        ),
        Some(state) if state.as_str() == "55000" => format!(
            "a publication that sends updates or deletes of {table} needs the table's replica identity: add a \
             primary key, or ALTER TABLE {table} REPLICA IDENTITY FULL; or, where nobody else subscribes to it, \
             ALTER PUBLICATION {} SET (publish = '{}'); SELECT pubname FROM pg_publication_tables lists them; \
             then start again",
            ident(&names.publication),
            names.published()
        ),
        Some(state) if matches!(state.as_str(), "42P01" | "42703" | "42804" | "3F000") => format!(
            "{table} is not as the layout describes it: postrider check -p {} names the columns; then start again",
            names.pipeline
        ),
        Some(state)
            if matches!(state.class(), "09" | "27" | "P0" | "23" | "44" | "38" | "39" | "2F") =>
        {
            format!(
                "see which trigger, rule or constraint of {table} refuses or undoes the change, and except the role of \
             source.url from it; then start again"
            )
        }
        Some(_) | None => format!(
            "run the layout's UPDATE or DELETE of one row of {table} as the role of source.url to see what refuses it; \
             then start again"
        ),
    };
    (meaning, hint)
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
        from_table(names),
    )
}

/// The publication, where it is missing, and then what the slot can't bring, from the table.
fn from_table(names: &Names) -> String {
    let (publication, pipeline) = (ident(&names.publication), &names.pipeline);
    let published = names.published();
    let Some(table) = &names.table else {
        return format!(
            "logical messages of that time are lost, since they leave no row: have the application emit them again. \
             If the publication does not exist: CREATE PUBLICATION {publication}. A new slot begins with: SELECT \
             pg_drop_replication_slot({}); then DELETE FROM postrider.cursor WHERE pipeline = {}; then postrider \
             setup -p {pipeline}",
            literal(&names.slot),
            literal(pipeline)
        );
    };
    if names.auto {
        return format!(
            "if the publication does not exist: CREATE PUBLICATION {publication} FOR TABLE {table} WITH (publish = \
             '{published}', publish_via_partition_root = true); then {}",
            run_without_slot(names, true)
        );
    }
    format!(
        "if the publication does not exist: CREATE PUBLICATION {publication} FOR TABLE {table} WITH (publish = \
         '{published}', publish_via_partition_root = true); then postrider repair -p {pipeline} --from-table --dry-run \
         (it \
         counts the rows that are not known to be published); then postrider repair -p {pipeline} --from-table (it \
         publishes them and begins a new slot)"
    )
}
