//! The read-only checks of `postrider check` in the database: each problem that would occur later, with its
//! remediation.
//!
//! Every statement is a read-only transaction of its own with a time-out, so no other session is blocked, and a
//! statement that is refused does not affect the others. Reads the facts of the start check and more. Rules are
//! functions of these facts, in the order in which their remediation can be executed. The columns that a layout needs
//! are checked elsewhere: the table's facts are part of the report.

mod captured;
mod facts;
mod remediation;
mod server;
mod slot;
mod standby;
mod table;
#[cfg(test)]
mod tests;

pub use standby::{StandbyQuery, standbys};
pub use table::TopicPart;

use crate::capture::tables::{CaptureFacts, read_captured};
use crate::catalog::{ChangesSince, PublicationFacts, ServerFacts, SlotRow, TableFacts};
use crate::conninfo::{Conninfo, SslMode};
use crate::control::Control;
use crate::error::SourceError;
use crate::names::{Names, TableName, ident, literal};
use crate::poll::PollSpec;
use crate::poll::order::{self, Unrecorded};
use crate::poll::sql::{self, ClaimIndex};
use crate::schema::SchemaState;
use crate::schema_owner::{self, SessionRights, UntrustedSchema};
use crate::start;
use crate::store::bookmark::{self, Bookmark};
use crate::store::cursor::Cursor;
use crate::stream::WalConnection;
use crate::times::{self, TimesFacts};
use facts::{AnySlot, RoleFacts, Sessions, TableSurroundings};
use pg_replication::error::{ServerReport, SourceErrorKind};
use postrider_core::error::Chain;
use postrider_core::finding::{Finding, Severity};
use remediation::{ADMIN, Remediation, first_host, host_flags, uri};
use std::collections::BTreeMap;
use tokio_postgres::Client;

/// The `application_name` of the sessions.
const APPLICATION_NAME: &str = "postrider check";

/// In addition to the settings of every control session: nothing is written, and no other session is blocked.
const READ_ONLY: &str = "SET default_transaction_read_only = on; SET statement_timeout = '10s'; \
                         SET lock_timeout = '2s'";

/// The settings of the pipeline that the checks depend on.
#[expect(clippy::struct_excessive_bools, reason = "settings of the pipeline")]
#[derive(Clone, Copy, Debug)]
pub struct PreflightQuery<'a> {
    /// The objects of the pipeline.
    pub names: &'a Names,
    /// The relay's login.
    pub conninfo: &'a Conninfo,
    /// Another login for the checks (`--url`).
    pub login: Option<&'a Conninfo>,
    /// The columns that the layout requires.
    pub columns: &'a [String],
    /// Whether WAL is streamed; otherwise the table is only polled.
    pub streams: bool,
    /// How the table's rows get their status, if they do: by polling, or after streaming.
    pub poll: Option<&'a PollSpec>,
    /// Whether the table is polled, or may be.
    pub polls: bool,
    /// How rows are sorted when the table is read, in every mode: by polling, a repair, or a replay.
    pub reads: Option<&'a PollSpec>,
    /// Whether logical messages are events.
    pub messages: bool,
    /// Whether the slot should be a failover slot, if the server supports them.
    pub failover: bool,
    /// Bytes of WAL that all bookmarks together may retain.
    pub bookmarks_retain_max: u64,
    /// How a topic is made from a row, if it is made from columns only.
    pub topic: Option<&'a [TopicPart]>,
}

/// The result of the checks.
#[derive(Clone, Debug, Default)]
pub struct PreflightReport {
    /// In the order in which they can be fixed.
    pub findings: Vec<Finding>,
    /// The outbox table, if it could be read.
    pub table: Option<TableFacts>,
    /// `server_version_num`, if the server could be reached.
    pub version: Option<u32>,
    /// The database's encoding, if it could be read.
    pub encoding: Option<String>,
    /// The columns of the table that the publication publishes.
    pub published: Option<Vec<String>>,
    /// Topics to which rows of the outbox go; `None` if they could not be determined.
    pub topics: Option<Vec<String>>,
}

/// A login as a URI with another user, and without a password.
pub fn login_uri(conninfo: &Conninfo, user: &str) -> String {
    remediation::uri(conninfo, user, &[])
}

/// Checks the connection settings, without connecting to the server.
pub fn settings(names: &Names, conninfo: &Conninfo) -> Vec<Finding> {
    let mode = conninfo.ssl_mode();
    if remediation::is_local(conninfo) || mode == SslMode::VerifyFull {
        return Vec::new();
    }
    let verified = if conninfo.ssl_root().is_some() {
        &[("sslmode", "verify-full")][..]
    } else {
        &[("sslmode", "verify-full"), ("sslrootcert", "system")][..]
    };
    let url = remediation::uri(conninfo, conninfo.user(), verified);
    vec![
        Finding::warning("tls_verify", format!("sslmode does not prove that {} is the server", conninfo.hosts()))
            .why(format!(
            "an attacker on the network could take the server's place and learn the login; if you have your own \
             certificate authority, set sslrootcert to its file{}",
            remediation::password_note(conninfo)
        ))
        .config(remediation::config(&names.key.pipeline, "source.url", &url)),
    ]
}

/// Runs the checks. Every failure is a finding.
pub async fn run(ask: &PreflightQuery<'_>) -> PreflightReport {
    let mut seen = PreflightReport::default();
    if let Some(login) = ask.login {
        // The relay's own login is tried as well.
        if let Err(error) = Control::connect(ask.conninfo, APPLICATION_NAME).await {
            seen.findings.push(finding(&error, ask.conninfo, Connection::Control));
        }
        run_as(ask, login, &mut seen).await;
    } else {
        run_as(ask, ask.conninfo, &mut seen).await;
    }
    seen
}

async fn run_as(ask: &PreflightQuery<'_>, login: &Conninfo, seen: &mut PreflightReport) {
    let control = match Control::connect(login, APPLICATION_NAME).await {
        Ok(control) => control,
        Err(error) => {
            seen.findings.push(finding(&error, login, Connection::Control));
            return;
        }
    };
    let client = control.client();
    let looked = async {
        let pinned = client.batch_execute(READ_ONLY).await;
        pinned.map_err(|e| SourceError::control("set the session to read only", e))?;
        at_server(ask, client, seen).await
    };
    if let Err(error) = looked.await {
        seen.findings.push(unread(&error));
    }
}

/// A statement that failed.
fn unread(error: &SourceError) -> Finding {
    Finding::error("unread", Chain(error).to_string()).why(
        "it could not be read: another session holds a lock on it, or the session ended; check again",
    )
}

async fn at_server(
    ask: &PreflightQuery<'_>,
    client: &Client,
    seen: &mut PreflightReport,
) -> Result<(), SourceError> {
    let server = super::catalog::read_server(client).await?;
    seen.version = Some(server.version);
    seen.encoding = Some(server.encoding.clone());
    if let Some(finding) = server::too_old(server.version) {
        seen.findings.push(finding);
        return Ok(());
    }
    if server.in_recovery {
        seen.findings.push(standby(ask, client).await);
        return Ok(());
    }
    let captured = read_captured(client, ask.names).await?;
    let snapshot = read(ask, client, server, captured.as_ref()).await?;
    // After the facts are read, because the walsender would be in the lists of sessions.
    let replication = if ask.streams { replication(ask, client).await } else { None };
    let mut out = Vec::new();
    rules(&snapshot, captured.as_ref(), &mut out);
    if let Some(finding) = replication
        && !is_reported(&finding, &out)
    {
        out.insert(0, finding);
    }
    if ask.streams && ask.polls {
        out.iter_mut()
            .filter(|finding| is_about_streaming(finding.id))
            .for_each(as_warning_while_polling);
    }
    seen.findings.append(&mut out);
    seen.topics = table::seen(ask, &snapshot, client).await;
    seen.published =
        snapshot.publication.and_then(|publication| publication.table).map(|t| t.columns);
    seen.table = snapshot.table;
    Ok(())
}

/// Whether `mode = "auto"` polls the table while this finding exists. If the slot was moved, or the publication is
/// missing or unsuitable, that mode halts, because rows may be in no stream.
fn is_about_streaming(id: &str) -> bool {
    ["wal_level", "max_replication_slots", "max_wal_senders", "role_replication"].contains(&id)
        || id.starts_with("slot_") && id != "slot_moved"
}

/// `mode = "auto"` polls if it cannot stream: the error becomes a warning.
fn as_warning_while_polling(finding: &mut Finding) {
    if finding.severity == Severity::Error {
        finding.severity = Severity::Warning;
        finding.why.push_str("; until it is fixed the table is polled (mode = \"auto\")");
    }
}

fn rules(snapshot: &FactSnapshot<'_>, captured: Option<&CaptureFacts>, out: &mut Vec<Finding>) {
    let streams = snapshot.ask.streams;
    server::rules(snapshot, out);
    if streams {
        server::decoding(snapshot, out);
    }
    server::role_rules(snapshot, out);
    table::rules(snapshot, out);
    table::time_rules(snapshot, out);
    table::polling_rules(snapshot, out);
    table::order(snapshot, out);
    if streams {
        match captured {
            Some(captured) => captured::rules(snapshot, captured, out),
            None => table::publication_rules(snapshot, out),
        }
        slot::standby_rules(snapshot, out);
        // From here on the remediation is `setup`, which requires the rules above to pass.
        slot::rules(snapshot, out);
        slot::failover(snapshot, out);
        backfill(snapshot, out);
    }
    slot::cursor_rules(snapshot, out);
    slot::bookmark_rules(snapshot, out);
    server::rights(snapshot, out);
    server::superuser(snapshot, out);
}

/// Rows of a table or partition that is unlogged before a slot exists are in no stream: the `setup` that creates the
/// slot publishes them first. A second `setup` cannot do that.
fn backfill(snapshot: &FactSnapshot<'_>, out: &mut [Finding]) {
    if !snapshot.is_fresh() {
        return;
    }
    let ids = ["table_unlogged", "table_partition_unlogged"];
    let unlogged = out.iter().rposition(|finding| ids.contains(&finding.id));
    let Some((_, behind)) = unlogged.and_then(|at| out.split_at_mut_checked(at)) else { return };
    let mut is_first = true;
    for finding in behind {
        finding.fix.retain_mut(|fix| {
            if fix.line != snapshot.lines.setup {
                return true;
            }
            fix.line.push_str(" --backfill all");
            std::mem::take(&mut is_first)
        });
    }
}

/// Logs in as a stream would, and closes the connection. Nothing is started.
async fn replication(ask: &PreflightQuery<'_>, client: &Client) -> Option<Finding> {
    let refused = |error: SourceError| Some(finding(&error, ask.conninfo, Connection::Replication));
    let mut wal = match WalConnection::connect(ask.conninfo, APPLICATION_NAME).await {
        Ok(wal) => wal,
        Err(error) => return refused(error),
    };
    let identity = match wal.identify_system().await {
        Ok(identity) => identity,
        Err(error) => return refused(error),
    };
    let same =
        super::catalog::read_server(client).await.ok()?.system_identifier == identity.system_id;
    // A backend that is not of this server: a pooler in between invented the number. The connection is still open.
    let known = facts::has_backend(client, wal.backend_pid()).await.ok()?;
    let other = Finding::error("pooler", "the two connections reach two servers").why(
        "source.url leads to a pooler or a balancer: the stream and the cursor must be of one server, so point it at \
         the server itself",
    );
    (!same || !known).then_some(other)
}

/// Whether a rule has already reported the reason for this refusal.
fn is_reported(finding: &Finding, reported: &[Finding]) -> bool {
    reported.iter().any(|known| {
        known.severity == Severity::Error
            && (known.id == finding.id
                || finding.id == "max_wal_senders" && known.id == "role_connections")
    })
}

/// The finding for a standby; names its primary if the role may see it.
async fn standby(ask: &PreflightQuery<'_>, client: &Client) -> Finding {
    let sql = "SELECT sender_host, sender_port FROM pg_catalog.pg_stat_wal_receiver \
               WHERE sender_host IS NOT NULL AND sender_host NOT LIKE '/%'";
    let row = client.query_opt(sql, &[]).await.ok().flatten();
    let primary = row.and_then(|row| {
        Some(format!("{}:{}", row.try_get::<_, String>(0).ok()?, row.try_get::<_, i32>(1).ok()?))
    });
    let conninfo = ask.conninfo;
    let finding = Finding::error("standby", format!("the server at {} is a standby", conninfo.hosts()))
        .why(format!(
            "the relay waits until it is a primary: slot, publication and cursor are the primary's. Name all hosts, \
             then a failover is followed too{}",
            remediation::password_note(conninfo)
        ));
    let more = [("target_session_attrs", "read-write")];
    match primary {
        Some(primary) => {
            let hosts = format!("{primary},{}", remediation::authorities(conninfo));
            let url = remediation::uri_of(conninfo, conninfo.user(), &hosts, &more);
            finding.config(remediation::config(&ask.names.key.pipeline, "source.url", &url))
        }
        None => finding,
    }
}

/// The snapshot of facts that the rules are functions of.
struct FactSnapshot<'a> {
    ask: PreflightQuery<'a>,
    lines: Remediation,
    server: ServerFacts,
    settings: BTreeMap<String, String>,
    sessions: Sessions,
    our_clock: Option<f64>,
    slots: Vec<AnySlot>,
    role: Option<RoleFacts>,
    own_role_exists: bool,
    table: Option<TableFacts>,
    /// The table's columns that hold times, and their zone.
    times: TimesFacts,
    /// The zones that sessions have by settings of roles and databases.
    session_zones: Vec<String>,
    around: Option<TableSurroundings>,
    namesakes: Vec<TableName>,
    claim_index: Option<ClaimIndex>,
    /// Why the table does not record the order of events of one transaction.
    unrecorded: Option<Unrecorded>,
    publication: Option<PublicationFacts>,
    /// Whether the publication may have left out rows that are not known to be published.
    since: ChangesSince,
    slot: Option<SlotRow>,
    /// The session that reads the slot: its application, and its role with address.
    holder: Option<(String, String)>,
    /// `None` if it may not be read.
    schema: Option<SchemaState>,
    /// Why the schema was not read, if it was not.
    untrusted: Option<UntrustedSchema>,
    /// The relay's role owns the schema and is not a superuser.
    relay_owns: bool,
    cursor: Option<Cursor>,
    cursor_usable: bool,
    marks: Option<start::RowStatusFacts>,
    bookmarks: Vec<Bookmark>,
}

impl FactSnapshot<'_> {
    fn setting(&self, name: &str) -> &str {
        self.settings.get(name).map_or("", String::as_str)
    }

    /// A setting as a number; 0 if this version has no such setting.
    fn number(&self, name: &str) -> i64 {
        self.setting(name).parse().unwrap_or(0)
    }

    /// The facts of the start check; `None` if the schema cannot be read.
    fn fence(&self) -> Option<start::Facts> {
        self.schema.map(|schema| self.fence_with(schema))
    }

    /// As [`Self::fence`], with a given state of the schema.
    fn fence_with(&self, schema: SchemaState) -> start::Facts {
        start::Facts {
            names: self.ask.names.clone(),
            identity: None,
            server: self.server.clone(),
            schema,
            untrusted: self.untrusted.clone(),
            slot: self.slot.clone(),
            cursor: self.cursor.clone(),
            publication: self.publication.clone(),
            since: self.since,
            table: self.table.clone(),
            times: self.times.clone(),
            columns: self.ask.columns.to_vec(),
            stream: start::StreamOptions {
                messages: self.ask.messages,
                failover: self.ask.failover,
            },
            marks: self.marks.clone(),
            captured: None,
        }
    }
}

impl FactSnapshot<'_> {
    /// The pipeline was not set up yet: no slot will send the rows of the table.
    fn is_fresh(&self) -> bool {
        self.slot.is_none() && self.cursor.is_none()
    }
}

/// Reads all facts that the rules need.
///
/// The order matters as in [`control::facts`](crate::control::facts): slot, then cursor, then end of WAL. A relay may
/// be running meanwhile, and a position that it confirmed must not appear to be ahead of an end of WAL that was read
/// before.
async fn read<'a>(
    ask: &PreflightQuery<'a>,
    client: &Client,
    server: ServerFacts,
    captured: Option<&CaptureFacts>,
) -> Result<FactSnapshot<'a>, SourceError> {
    let (names, user) = (ask.names, ask.conninfo.user());
    let settings = facts::settings(client).await?;
    let sessions = facts::sessions(client).await?;
    let our_clock = server::our_clock();
    let slots = facts::slots(client).await?;
    let role = facts::role(client, user).await?;
    let session_role = facts::role(client, &server.role).await?;
    let slot = crate::catalog::read_slot(client, server.version, &names.slot).await?;
    let holder = match slot.as_ref().and_then(|slot| slot.active_pid) {
        Some(pid) => Some(facts::who(client, pid).await?),
        None => None,
    };
    let SchemaContents { schema, untrusted, relay_owns, cursor, bookmarks } =
        own(ask, client).await?;
    let server = crate::catalog::read_server(client).await?;
    let viewer = role.as_ref().map_or(server.role.as_str(), |role| role.name.as_str());
    let OutboxFacts { table, around, namesakes, claims, unrecorded, marks } =
        outbox(ask, client, viewer).await?;
    let publication =
        crate::catalog::read_publication(client, &names.publication, names.table.as_ref()).await?;
    let oid = table.as_ref().map(|table| table.oid);
    let since = match (&cursor, &publication) {
        (Some(_), Some(_)) => {
            let captured = captured.iter().flat_map(|captured| captured.oids());
            let oids: Vec<u32> = oid.into_iter().chain(captured).collect();
            changed(client, names, &oids).await
        }
        _ => ChangesSince::default(),
    };
    let (times, session_zones) = zones(client, names, oid).await?;
    let owned = around.as_ref().is_none_or(|around| around.owned)
        && captured.is_none_or(CaptureFacts::owned);
    let able = session_role.is_some_and(|r| r.superuser || r.may_create && r.replication && owned);
    Ok(FactSnapshot {
        ask: *ask,
        lines: Remediation::new(ask, able, cursor.is_some()),
        settings,
        sessions,
        our_clock,
        slots,
        own_role_exists: facts::role(client, server::own_role()).await?.is_some(),
        relay_owns,
        cursor_usable: match &role {
            Some(role) => facts::cursor_usable(client, &role.name).await?,
            None => true,
        },
        publication,
        since,
        role,
        table,
        times,
        session_zones,
        around,
        namesakes,
        claim_index: claims,
        unrecorded,
        slot,
        holder,
        bookmarks,
        schema,
        untrusted,
        cursor,
        marks,
        server,
    })
}

/// Schema `postrider` and its contents.
struct SchemaContents {
    schema: Option<SchemaState>,
    untrusted: Option<UntrustedSchema>,
    relay_owns: bool,
    cursor: Option<Cursor>,
    bookmarks: Vec<Bookmark>,
}

/// Reads [`SchemaContents`]: the tables only if no other role could run code through them.
async fn own(ask: &PreflightQuery<'_>, client: &Client) -> Result<SchemaContents, SourceError> {
    let (key, user) = (&ask.names.key, ask.conninfo.user());
    let acting = match ask.login {
        Some(login) if login.user() != user => SessionRights::Administrator,
        Some(_) | None => SessionRights::OwnLogin,
    };
    let untrusted = schema_owner::read(client, acting).await?;
    let schema = match &untrusted {
        Some(_) => Some(SchemaState::Untrusted),
        // A schema that may not be read is a finding, not an error.
        None => crate::schema::read_trusted(client).await.ok(),
    };
    let relay_owns = facts::owns_schema(client, user).await?;
    let (mut cursor, mut bookmarks) = (None, Vec::new());
    if schema == Some(SchemaState::Version(crate::schema::VERSION)) {
        // Rows that may not be read are reported by the rules about rights.
        cursor = crate::store::cursor::read(client, key).await.ok().flatten();
        bookmarks = bookmark::list(client, key).await.unwrap_or_default();
    }
    Ok(SchemaContents { schema, untrusted, relay_owns, cursor, bookmarks })
}

/// What was changed since what is known to be published; a cursor row that may not be read is reported by the rules
/// about rights.
async fn changed(client: &Client, names: &Names, tables: &[u32]) -> ChangesSince {
    let (key, publication) = (&names.key, &names.publication);
    let changed = crate::catalog::changed_since(client, key, publication, tables).await;
    changed.unwrap_or_default()
}

/// The table's columns that hold times, and the time zones of sessions if they matter.
async fn zones(
    client: &Client,
    names: &Names,
    table: Option<u32>,
) -> Result<(TimesFacts, Vec<String>), SourceError> {
    let times = times::read(client, &names.times, table).await?;
    let lack = times.columns.iter().any(|column| column.kind.lacks_zone());
    let zones = if lack && names.times.zone.is_none() {
        times::session_zones(client).await?
    } else {
        Vec::new()
    };
    Ok((times, zones))
}

/// The outbox table and related objects.
#[derive(Default)]
struct OutboxFacts {
    table: Option<TableFacts>,
    around: Option<TableSurroundings>,
    namesakes: Vec<TableName>,
    claims: Option<ClaimIndex>,
    unrecorded: Option<Unrecorded>,
    marks: Option<start::RowStatusFacts>,
}

/// Reads [`OutboxFacts`]; rights are those of the role `viewer`.
async fn outbox(
    ask: &PreflightQuery<'_>,
    client: &Client,
    viewer: &str,
) -> Result<OutboxFacts, SourceError> {
    let mut outbox = OutboxFacts::default();
    if let Some(spec) = ask.poll {
        outbox.marks = Some(crate::control::marks(client, spec, ask.polls).await?);
    }
    let Some(name) = &ask.names.table else { return Ok(outbox) };
    outbox.table = crate::catalog::read_table(client, name).await?;
    match &outbox.table {
        Some(table) => {
            let dlq = ask.poll.filter(|_| ask.polls).and_then(PollSpec::dlq);
            outbox.around = Some(facts::around(client, table.oid, viewer, dlq.as_ref()).await?);
            if let Some(spec) = ask.poll {
                outbox.claims = sql::read(client, table.oid, spec).await?;
            }
            if let Some(spec) = ask.reads {
                outbox.unrecorded = order::unrecorded(client, table.oid, spec).await?;
            }
        }
        None => outbox.namesakes = facts::namesakes(client, name).await?,
    }
    Ok(outbox)
}

/// Which connection failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Connection {
    /// The one for statements.
    Control,
    /// The one for the stream.
    Replication,
}

const NOTHING: &str =
    "nothing can be read from it; what is committed meanwhile waits in the slot, if there is one";

/// The finding for a connection that was refused or failed: by the kind of the error and its SQLSTATE, never by its
/// text.
fn finding(error: &SourceError, conninfo: &Conninfo, which: Connection) -> Finding {
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
                "the relay needs two sessions a pipeline, and briefly up to two more; max_connections, or the limit of \
                 the role or the database, is reached",
            )
            .sql("SELECT datname, usename, state, count(*) FROM pg_stat_activity GROUP BY 1, 2, 3 ORDER BY 4 DESC;")
            .sql(format!("ALTER ROLE {} CONNECTION LIMIT -1;", ident(user))),
        ("53300", Connection::Replication) => senders_full(what),
        ("42501", Connection::Control) => Finding::error("source_connect", what)
            .why(format!("role {user:?} may not connect to database {database:?}"))
            .sql(format!("GRANT CONNECT ON DATABASE {} TO {};", ident(database), ident(user))),
        ("42501", Connection::Replication) => replication_refused(user, false),
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

/// No walsender is free.
fn senders_full(what: String) -> Finding {
    Finding::error("max_wal_senders", what)
        .why(
            "every stream needs a walsender: the relay would wait until one is free; raise it on standbys before the \
             primary",
        )
        .sql_and_restart("ALTER SYSTEM SET max_wal_senders = 20;")
}

/// The role may not replicate.
fn replication_refused(user: &str, rds: bool) -> Finding {
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
