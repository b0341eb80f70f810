//! A connection that did not come to be, as a finding: by the kind of the error and its SQLSTATE, never by its text.

use super::lines::{ADMIN, first_host, host_flags, uri};
use crate::names::{ident, literal};
use pg_replication::conninfo::Conninfo;
use pg_replication::error::{ServerReport, SourceError, SourceErrorKind};
use postrider_core::error::Chain;
use postrider_core::finding::Finding;

/// Which of the two connections it was.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Connection {
    /// The one for statements.
    Control,
    /// The one for the stream.
    Replication,
}

const NOTHING: &str =
    "nothing can be read from it; what is committed meanwhile waits in the slot, if there is one";

/// What a refused or failed connection says.
pub(super) fn finding(error: &SourceError, conninfo: &Conninfo, which: Connection) -> Finding {
    let what = Chain(error).to_string();
    match error.kind() {
        SourceErrorKind::Unreachable | SourceErrorKind::Timeout(_) => {
            Finding::error("source_unreachable", what)
                .why(format!(
                    "{NOTHING}; either host and port in source.url are wrong, or PostgreSQL does not run or listen \
                     there (listen_addresses), or the network blocks the connection"
                ))
                .shell(format!("pg_isready {}", host_flags(conninfo)))
        }
        SourceErrorKind::Tls => Finding::error("source_tls", what)
            .why(
                "Postrider does not log in without a TLS session that it can trust: the certificate authority in \
                 sslrootcert must have signed the server's certificate, which must name the host of source.url",
            )
            .shell(format!("openssl s_client -starttls postgres -connect {} </dev/null", first_host(conninfo)))
            .sql("SHOW ssl;"),
        SourceErrorKind::AuthRefused => Finding::error("source_password", what).why(
            "no password is configured, or the server asks for it in clear text without TLS: write it to a file, and \
             set source.password_file to the file's name",
        ),
        SourceErrorKind::Settings => {
            Finding::error("source_settings", what).why("a file that source.url names can't be used")
        }
        SourceErrorKind::SessionAttrs => Finding::error("standby", what).why(
            "no host of source.url is what target_session_attrs asks for: the primary is missing from the list",
        ),
        SourceErrorKind::Server(report) => by_sqlstate(report, what, conninfo, which),
        SourceErrorKind::Protocol => Finding::error("pooler", what).why(
            "the program that answers is not PostgreSQL itself; a pooler can't carry replication: point source.url at \
             the server",
        ),
        SourceErrorKind::Closed
        | SourceErrorKind::Silent(_)
        | SourceErrorKind::TooLarge { .. }
        | SourceErrorKind::ServerStopping
        | SourceErrorKind::Stopped
        | SourceErrorKind::System => Finding::error("source_failed", what).why(NOTHING),
    }
}

fn by_sqlstate(
    report: &ServerReport,
    what: String,
    conninfo: &Conninfo,
    which: Connection,
) -> Finding {
    let (user, database) = (conninfo.user(), conninfo.dbname());
    match (report.sqlstate.as_str(), which) {
        ("28P01", _) => Finding::error("source_password", what)
            .why(format!(
                "the password is wrong, or role {user:?} has none, does not exist or has expired: the server does not \
                 say which. A new password goes into source.password_file"
            ))
            .sql(format!(
                "SELECT rolname, rolcanlogin, rolvaliduntil FROM pg_roles WHERE rolname = {};",
                literal(user)
            ))
            .shell(format!("psql '{}' -c '\\password {user}'", uri(conninfo, ADMIN, &[]))),
        ("28000", _) => Finding::error("source_refused", what)
            .why(format!(
                "either no line of pg_hba.conf lets role {user:?} into database {database:?} from here (the line names \
                 the database, also for replication; \"replication\" there is for physical standbys), or the role does \
                 not exist, or it may not log in"
            ))
            .sql(format!(
                "SELECT line_number, type, database, user_name, address, auth_method FROM pg_hba_file_rules WHERE {} = \
                 ANY (database) OR 'all' = ANY (database) ORDER BY line_number;",
                literal(database)
            ))
            .shell(format!(
                "echo 'hostssl {database} {user} samenet scram-sha-256' >> \"$(psql -XAtc 'SHOW hba_file')\""
            ))
            .sql("SELECT pg_reload_conf();"),
        ("3D000", _) => Finding::error("source_database", what)
            .why("the name in source.url is wrong, or the database does not exist yet")
            .sql(format!("CREATE DATABASE {};", ident(database))),
        ("53300", Connection::Control) => Finding::error("source_connections", what)
            .why(
                "the relay needs two sessions a pipeline; max_connections, or the limit of the role or the database, \
                 is reached",
            )
            .sql("SELECT datname, usename, state, count(*) FROM pg_stat_activity GROUP BY 1, 2, 3 ORDER BY 4 DESC;")
            .sql(format!("ALTER ROLE {} CONNECTION LIMIT -1;", ident(user))),
        ("53300", Connection::Replication) => senders_full(what),
        ("42501", Connection::Control) => Finding::error("source_connect", what)
            .why(format!("role {user:?} may not connect to database {database:?}"))
            .sql(format!("GRANT CONNECT ON DATABASE {} TO {};", ident(database), ident(user))),
        ("42501", Connection::Replication) => replication(user, false),
        ("55000", Connection::Control) => Finding::error("source_refused", what)
            .why("the database takes no connections")
            .sql(format!("ALTER DATABASE {} ALLOW_CONNECTIONS true;", ident(database))),
        ("57P03", _) => Finding::error("source_starting", what)
            .why("it is starting, stopping or recovering: check again in a moment"),
        ("08P01", _) => Finding::error("pooler", what).why(
            "the program that answers does not know the protocol's parameters: most likely a pooler, which can't carry \
             replication; point source.url at the server",
        ),
        (_, _) => Finding::error("source_failed", what).why(NOTHING),
    }
}

/// No walsender is left for us.
pub(super) fn senders_full(what: String) -> Finding {
    Finding::error("max_wal_senders", what)
        .why(
            "every stream needs a walsender: the relay would wait until one is free; raise it on standbys before the \
             primary",
        )
        .sql_and_restart("ALTER SYSTEM SET max_wal_senders = 20;")
}

/// The role may not stream.
pub(super) fn replication(user: &str, rds: bool) -> Finding {
    let user_ident = ident(user);
    Finding::error("role_replication", format!("role {user:?} has no right to replication"))
        .why("streaming is refused without it; a role with REPLICATION can read every published table of the cluster: \
             keep its password as secret as a superuser's")
        .sql(if rds {
            format!("GRANT rds_replication TO {user_ident};")
        } else {
            format!("ALTER ROLE {user_ident} REPLICATION;")
        })
}
