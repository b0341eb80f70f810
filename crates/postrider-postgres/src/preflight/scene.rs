//! Everything the rules are functions of, and how it is asked for.

use super::Ask;
use super::facts::{self, AnySlot, Around, RoleFacts, Sessions};
use super::lines::Lines;
use crate::bookmark::{self, Bookmark};
use crate::cursor::Cursor;
use crate::fence;
use crate::names::{Names, TableName};
use crate::ownership::{self, Acting, Ownership};
use crate::poll::PollSpec;
use crate::poll::index::{self, ClaimIndex};
use crate::poll::order::{self, Unrecorded};
use crate::publication::{PublicationFacts, Since};
use crate::schema::SchemaState;
use crate::server::ServerFacts;
use crate::slot::SlotRow;
use crate::table::TableFacts;
use crate::times::{self, TimesFacts};
use pg_replication::error::SourceError;
use std::collections::BTreeMap;
use tokio_postgres::Client;

/// Everything the rules are functions of.
pub(super) struct Scene<'a> {
    pub(super) ask: Ask<'a>,
    pub(super) lines: Lines,
    pub(super) server: ServerFacts,
    pub(super) settings: BTreeMap<String, String>,
    pub(super) sessions: Sessions,
    pub(super) our_clock: Option<f64>,
    pub(super) slots: Vec<AnySlot>,
    pub(super) role: Option<RoleFacts>,
    pub(super) own_role_exists: bool,
    pub(super) table: Option<TableFacts>,
    /// The table's columns that hold times, and their zone.
    pub(super) times: TimesFacts,
    /// The zones that sessions have by settings of roles and databases.
    pub(super) session_zones: Vec<String>,
    pub(super) around: Option<Around>,
    pub(super) namesakes: Vec<TableName>,
    pub(super) claim_index: Option<ClaimIndex>,
    /// Why the table does not record the order of events of one transaction.
    pub(super) unrecorded: Option<Unrecorded>,
    pub(super) publication: Option<PublicationFacts>,
    /// Whether it may have left out rows that are not known to be published.
    pub(super) since: Since,
    pub(super) slot: Option<SlotRow>,
    /// Who reads the slot: application, and role and address.
    pub(super) holder: Option<(String, String)>,
    /// `None` where it may not be read.
    pub(super) schema: Option<SchemaState>,
    /// Why it was not read, where that is so.
    pub(super) ownership: Option<Ownership>,
    /// The relay's role, which is no superuser, owns it.
    pub(super) relay_owns: bool,
    pub(super) cursor: Option<Cursor>,
    pub(super) cursor_usable: bool,
    pub(super) marks: Option<fence::MarkFacts>,
    pub(super) bookmarks: Vec<Bookmark>,
}

impl Scene<'_> {
    pub(super) fn setting(&self, name: &str) -> &str {
        self.settings.get(name).map_or("", String::as_str)
    }

    /// A setting as a number; 0 where the version has none of that name.
    pub(super) fn number(&self, name: &str) -> i64 {
        self.setting(name).parse().unwrap_or(0)
    }

    /// What `run` would decide on; `None` where the schema can't be read.
    pub(super) fn fence(&self) -> Option<fence::Facts> {
        self.schema.map(|schema| self.fence_with(schema))
    }

    /// The same where the schema does not matter.
    pub(super) fn fence_with(&self, schema: SchemaState) -> fence::Facts {
        fence::Facts {
            names: self.ask.names.clone(),
            identity: None,
            server: self.server.clone(),
            schema,
            ownership: self.ownership.clone(),
            slot: self.slot.clone(),
            cursor: self.cursor.clone(),
            publication: self.publication.clone(),
            since: self.since,
            table: self.table.clone(),
            times: self.times.clone(),
            columns: self.ask.columns.to_vec(),
            messages: self.ask.messages,
            failover: self.ask.failover,
            marks: self.marks.clone(),
        }
    }
}

impl Scene<'_> {
    /// The pipeline was not set up yet: nothing that is in the table comes by a slot.
    pub(super) fn is_fresh(&self) -> bool {
        self.slot.is_none() && self.cursor.is_none()
    }
}

/// Asks everything that the rules want to know.
///
/// The order matters as in [`control::facts`](crate::control::facts): slot, then cursor, then end of WAL. A
/// relay may be at work meanwhile, and what it confirmed is not ahead of a server whose end was read before.
pub(super) async fn read<'a>(
    ask: &Ask<'a>,
    client: &Client,
    server: ServerFacts,
) -> Result<Scene<'a>, SourceError> {
    let (names, user) = (ask.names, ask.conninfo.user());
    let settings = facts::settings(client).await?;
    let sessions = facts::sessions(client).await?;
    let our_clock = super::server::our_clock();
    let slots = facts::slots(client).await?;
    let role = facts::role(client, user).await?;
    let looks = facts::role(client, &server.role).await?;
    let slot = crate::slot::read(client, server.version, &names.slot).await?;
    let holder = match slot.as_ref().and_then(|slot| slot.active_pid) {
        Some(pid) => Some(facts::who(client, pid).await?),
        None => None,
    };
    let Own { schema, ownership, relay_owns, cursor, bookmarks } = own(ask, client).await?;
    let server = crate::server::read(client).await?;
    let viewer = role.as_ref().map_or(server.role.as_str(), |role| role.name.as_str());
    let Outbox { table, around, namesakes, claims, unrecorded, marks } =
        outbox(ask, client, viewer).await?;
    let publication =
        crate::publication::read(client, &names.publication, names.table.as_ref()).await?;
    let oid = table.as_ref().map(|table| table.oid);
    let since = match (&cursor, &publication) {
        (Some(_), Some(_)) => changed(client, names, oid).await,
        _ => Since::default(),
    };
    let (times, session_zones) = zones(client, names, oid).await?;
    let owned = around.as_ref().is_none_or(|around| around.owned);
    let able = looks.is_some_and(|r| r.superuser || r.may_create && r.replication && owned);
    Ok(Scene {
        ask: *ask,
        lines: Lines::new(ask, able, cursor.is_some()),
        settings,
        sessions,
        our_clock,
        slots,
        own_role_exists: facts::role(client, super::role::own_role()).await?.is_some(),
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
        ownership,
        cursor,
        marks,
        server,
    })
}

/// Schema `postrider`, and what is read of it.
struct Own {
    schema: Option<SchemaState>,
    ownership: Option<Ownership>,
    relay_owns: bool,
    cursor: Option<Cursor>,
    bookmarks: Vec<Bookmark>,
}

/// Reads [`Own`]: the tables only where nobody could run code by that.
async fn own(ask: &Ask<'_>, client: &Client) -> Result<Own, SourceError> {
    let (pipeline, user) = (&ask.names.pipeline, ask.conninfo.user());
    let acting = match ask.login {
        Some(login) if login.user() != user => Acting::Administrator,
        Some(_) | None => Acting::OwnLogin,
    };
    let ownership = ownership::read(client, acting).await?;
    let schema = match &ownership {
        Some(_) => Some(SchemaState::Untrusted),
        // A schema that may not be read is a finding, and no failure.
        None => crate::schema::read_trusted(client).await.ok(),
    };
    let relay_owns = facts::owns_schema(client, user).await?;
    let (mut cursor, mut bookmarks) = (None, Vec::new());
    if schema == Some(SchemaState::Version(crate::schema::VERSION)) {
        // Rows that may not be read are told by the rights.
        cursor = crate::cursor::read(client, pipeline).await.ok().flatten();
        bookmarks = bookmark::list(client, pipeline).await.unwrap_or_default();
    }
    Ok(Own { schema, ownership, relay_owns, cursor, bookmarks })
}

/// What was changed since what is known to be published; a cursor row that may not be read is a finding of the rights.
async fn changed(client: &Client, names: &Names, table: Option<u32>) -> Since {
    let (pipeline, publication) = (&names.pipeline, &names.publication);
    let changed = crate::publication::changed_since(client, pipeline, publication, table).await;
    changed.unwrap_or_default()
}

/// The table's columns that hold times, and the zones that sessions have where they matter.
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

/// The outbox table and what is around it.
#[derive(Default)]
struct Outbox {
    table: Option<TableFacts>,
    around: Option<Around>,
    namesakes: Vec<TableName>,
    claims: Option<ClaimIndex>,
    unrecorded: Option<Unrecorded>,
    marks: Option<fence::MarkFacts>,
}

/// Reads [`Outbox`]; rights are those of the role `viewer`.
async fn outbox(ask: &Ask<'_>, client: &Client, viewer: &str) -> Result<Outbox, SourceError> {
    let mut outbox = Outbox::default();
    if let Some(spec) = ask.poll {
        outbox.marks = Some(crate::control::marks(client, spec, ask.polls).await?);
    }
    let Some(name) = &ask.names.table else { return Ok(outbox) };
    outbox.table = crate::table::read(client, name).await?;
    match &outbox.table {
        Some(table) => {
            let dlq = ask.poll.filter(|_| ask.polls).and_then(PollSpec::dlq);
            outbox.around = Some(facts::around(client, table.oid, viewer, dlq).await?);
            if let Some(spec) = ask.poll {
                outbox.claims = index::read(client, table.oid, spec).await?;
            }
            if let Some(spec) = ask.reads {
                outbox.unrecorded = order::unrecorded(client, table.oid, spec).await?;
            }
        }
        None => outbox.namesakes = facts::namesakes(client, name).await?,
    }
    Ok(outbox)
}
