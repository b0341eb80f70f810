//! The read-only look that `postrider check` takes at the database: everything that bites later, with what mends it.
//!
//! Changes nothing and holds nothing up: every statement is a read-only transaction of its own with a time-out, so that
//! one that is refused spoils no other. Reads the same facts as `fence` where they are the same, and more; rules are
//! functions of the facts, in the order in which their mending lines can be executed one after the other. What a layout
//! needs of columns is not known here: the table's facts are handed on.

mod bookmarks;
mod cursor;
mod facts;
mod lines;
mod poll;
mod publication;
mod refused;
mod role;
mod scene;
mod server;
mod slot;
mod standbys;
mod table;
#[cfg(test)]
mod tests;
mod times;
mod topics;

pub use topics::TopicPart;

use super::conninfo::{Conninfo, SslMode};
use super::control::Control;
use super::error::SourceError;
use super::names::Names;
use super::poll::PollSpec;
use super::table::TableFacts;
use super::wal::WalConnection;
use postrider_core::error::Chain;
use postrider_core::finding::{Finding, Severity};
use refused::Connection;
use scene::Scene;
use tokio_postgres::Client;

/// What the server knows the sessions by.
const APPLICATION_NAME: &str = "postrider check";

/// On top of what every control session pins: nothing is written, and nobody is held up.
const READ_ONLY: &str = "SET default_transaction_read_only = on; SET statement_timeout = '10s'; \
                         SET lock_timeout = '2s'";

/// What to look at.
#[expect(clippy::struct_excessive_bools, reason = "settings of the pipeline")]
#[derive(Clone, Copy, Debug)]
pub struct Ask<'a> {
    /// The objects of the pipeline.
    pub names: &'a Names,
    /// The relay's login.
    pub conninfo: &'a Conninfo,
    /// Another login to look by (`--url`).
    pub login: Option<&'a Conninfo>,
    /// The columns the layout can't do without.
    pub columns: &'a [String],
    /// Whether the log is streamed; else the table is polled alone.
    pub streams: bool,
    /// How the table's rows are marked, where they are: by polling, or behind the stream.
    pub poll: Option<&'a PollSpec>,
    /// Whether the table is polled, or may be.
    pub polls: bool,
    /// The table as whatever reads it sorts its rows, in every mode: polling, a repair, a replay.
    pub reads: Option<&'a PollSpec>,
    /// Whether logical messages are events.
    pub messages: bool,
    /// Whether a failover slot is wanted where the server has them.
    pub failover: bool,
    /// Bytes of WAL that bookmarks may hold back together.
    pub bookmarks_retain_max: u64,
    /// How a topic is made from a row, where it is made from columns alone.
    pub topic: Option<&'a [TopicPart]>,
}

/// What was seen.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    /// In the order in which they can be mended.
    pub findings: Vec<Finding>,
    /// The outbox table, where it could be looked at.
    pub table: Option<TableFacts>,
    /// `server_version_num`, where the server answered.
    pub version: Option<u32>,
    /// The database's encoding, where it did.
    pub encoding: Option<String>,
    /// The columns that the publication publishes of it.
    pub published: Option<Vec<String>>,
    /// Topics that rows of the outbox go to; `None` where they could not be looked for.
    pub topics: Option<Vec<String>>,
}

/// A login as a URI with another user, and without a password.
pub fn login_uri(conninfo: &Conninfo, user: &str) -> String {
    lines::uri(conninfo, user, &[])
}

/// What the configuration says of the connection, without a look at the server.
pub fn settings(names: &Names, conninfo: &Conninfo) -> Vec<Finding> {
    let mode = conninfo.ssl_mode();
    if lines::is_local(conninfo) || mode == SslMode::VerifyFull {
        return Vec::new();
    }
    let verified = if conninfo.ssl_root().is_some() {
        &[("sslmode", "verify-full")][..]
    } else {
        &[("sslmode", "verify-full"), ("sslrootcert", "system")][..]
    };
    let url = lines::uri(conninfo, conninfo.user(), verified);
    vec![
        Finding::warning("tls_verify", format!("sslmode does not prove that {} is the server", conninfo.hosts()))
            .why(format!(
            "somebody in between could take the server's place and learn the login; sslrootcert names the file of your \
             own certificate authority, where you have one{}",
            lines::password_note(conninfo)
        ))
        .config(lines::config(&names.pipeline, "source.url", &url)),
    ]
}

/// Looks. Whatever fails is a finding.
pub async fn look(ask: &Ask<'_>) -> Seen {
    let mut seen = Seen::default();
    if let Some(login) = ask.login {
        // The relay's own login is tried all the same.
        if let Err(error) = Control::connect(ask.conninfo, APPLICATION_NAME).await {
            seen.findings.push(refused::finding(&error, ask.conninfo, Connection::Control));
        }
        look_by(ask, login, &mut seen).await;
    } else {
        look_by(ask, ask.conninfo, &mut seen).await;
    }
    seen
}

async fn look_by(ask: &Ask<'_>, login: &Conninfo, seen: &mut Seen) {
    let control = match Control::connect(login, APPLICATION_NAME).await {
        Ok(control) => control,
        Err(error) => {
            seen.findings.push(refused::finding(&error, login, Connection::Control));
            return;
        }
    };
    let client = control.client();
    let looked = async {
        let pinned = client.batch_execute(READ_ONLY).await;
        pinned.map_err(|e| SourceError::control("make the session read-only", e))?;
        at_server(ask, client, seen).await
    };
    if let Err(error) = looked.await {
        seen.findings.push(unread(&error));
    }
}

/// A statement of ours that failed.
fn unread(error: &SourceError) -> Finding {
    Finding::error("unread", Chain(error).to_string()).why(
        "it could not be read: another session holds a lock on it, or the session ended; check again",
    )
}

async fn at_server(ask: &Ask<'_>, client: &Client, seen: &mut Seen) -> Result<(), SourceError> {
    let server = super::server::read(client).await?;
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
    let scene = scene::read(ask, client, server).await?;
    // Behind the look, in whose lists it would stand.
    let replication = if ask.streams { replication(ask, client).await } else { None };
    let mut out = Vec::new();
    rules(&scene, &mut out);
    if let Some(finding) = replication
        && !is_told(&finding, &out)
    {
        out.insert(0, finding);
    }
    if ask.streams && ask.polls {
        out.iter_mut().filter(|finding| is_of_the_log(finding.id)).for_each(polled_meanwhile);
    }
    seen.findings.append(&mut out);
    seen.topics = topics::seen(ask, &scene, client).await;
    seen.published = scene.publication.and_then(|publication| publication.table).map(|t| t.columns);
    seen.table = scene.table;
    Ok(())
}

/// Whether `mode = "auto"` polls the table while there is this finding. Where the slot was moved, or the publication is
/// missing or does not fit, it halts: rows may be in no stream.
fn is_of_the_log(id: &str) -> bool {
    ["wal_level", "max_replication_slots", "max_wal_senders", "role_replication"].contains(&id)
        || id.starts_with("slot_") && id != "slot_moved"
}

/// `mode = "auto"` polls where it can't stream.
fn polled_meanwhile(finding: &mut Finding) {
    if finding.severity == Severity::Error {
        finding.severity = Severity::Warning;
        finding.why.push_str("; until it is mended the table is polled (mode = \"auto\")");
    }
}

fn rules(scene: &Scene<'_>, out: &mut Vec<Finding>) {
    let streams = scene.ask.streams;
    server::rules(scene, out);
    if streams {
        server::decoding(scene, out);
    }
    role::rules(scene, out);
    table::rules(scene, out);
    times::rules(scene, out);
    poll::rules(scene, out);
    poll::order(scene, out);
    if streams {
        publication::rules(scene, out);
        standbys::rules(scene, out);
        // From here on `setup` is what mends, and it wants what is above to be well.
        slot::rules(scene, out);
        slot::failover(scene, out);
        backfill(scene, out);
    }
    cursor::rules(scene, out);
    bookmarks::rules(scene, out);
    role::rights(scene, out);
    role::superuser(scene, out);
}

/// Rows of a table or partition that is unlogged before there is a slot are in no stream: the `setup` that creates the
/// slot publishes them first. Once it has run, another one can't.
fn backfill(scene: &Scene<'_>, out: &mut [Finding]) {
    if !scene.is_fresh() {
        return;
    }
    let ids = ["table_unlogged", "table_partition_unlogged"];
    let unlogged = out.iter().rposition(|finding| ids.contains(&finding.id));
    let Some((_, behind)) = unlogged.and_then(|at| out.split_at_mut_checked(at)) else { return };
    let mut is_first = true;
    for finding in behind {
        finding.mend.retain_mut(|mend| {
            if mend.line != scene.lines.setup {
                return true;
            }
            mend.line.push_str(" --backfill all");
            std::mem::take(&mut is_first)
        });
    }
}

/// Logs in as a stream would, and out again. Nothing is started.
async fn replication(ask: &Ask<'_>, client: &Client) -> Option<Finding> {
    let refused =
        |error: SourceError| Some(refused::finding(&error, ask.conninfo, Connection::Replication));
    let mut wal = match WalConnection::connect(ask.conninfo, APPLICATION_NAME).await {
        Ok(wal) => wal,
        Err(error) => return refused(error),
    };
    let identity = match wal.identify_system().await {
        Ok(identity) => identity,
        Err(error) => return refused(error),
    };
    let same = super::server::read(client).await.ok()?.system_identifier == identity.system_id;
    // A backend that is none of this server's: somebody in between made the number up. The connection is still open.
    let known = facts::has_backend(client, wal.backend_pid()).await.ok()?;
    let other = Finding::error("pooler", "the two connections reach two servers").why(
        "source.url leads to a pooler or a balancer: the stream and the cursor must be of one server, so point it at \
         the server itself",
    );
    (!same || !known).then_some(other)
}

/// A refusal that the rules have told the reason of is not told twice.
fn is_told(finding: &Finding, told: &[Finding]) -> bool {
    told.iter().any(|known| {
        known.severity == Severity::Error
            && (known.id == finding.id
                || finding.id == "max_wal_senders" && known.id == "role_connections")
    })
}

/// The server is a standby: what its primary is, where we may see it.
async fn standby(ask: &Ask<'_>, client: &Client) -> Finding {
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
            lines::password_note(conninfo)
        ));
    let more = [("target_session_attrs", "read-write")];
    match primary {
        Some(primary) => {
            let hosts = format!("{primary},{}", lines::authorities(conninfo));
            let url = lines::uri_of(conninfo, conninfo.user(), &hosts, &more);
            finding.config(lines::config(&ask.names.pipeline, "source.url", &url))
        }
        None => finding,
    }
}
