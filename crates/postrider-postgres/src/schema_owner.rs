//! Which roles could run code with the rights of an administrator who uses schema `postrider`.
//!
//! A trigger, a view in place of a table, a default or a CHECK runs with the rights of the role that uses the table.
//! The owner of the schema or of a table can add one at any time, and so can a role with `CREATE` on the schema or
//! `TRIGGER` on a table. So an administrator's session reads and writes these tables only if they belong to its own
//! role or to a superuser, if no other role may add anything, and if every object in the schema is Postrider's. All of
//! this is read from the catalog, which runs no code of others.

use super::error::SourceError;
use super::names::{OWN_TABLES, grant_rows, ident};
use super::setup::notify_function_sql;
use super::toolkit::files;
use std::collections::BTreeSet;
use std::fmt::Write as _;
use tokio_postgres::Client;

const FOREIGN: &str = concat!(
    include_str!("toolkit/objects.sql"),
    include_str!("toolkit/former.sql"),
    include_str!("schema_owner/foreign.sql")
);
const HELD: &str = include_str!("schema_owner/held.sql");

/// The SQLSTATE that the printed SQL raises if it refuses the schema: the halt's code.
pub const UNTRUSTED: &str = "PR024";

/// Most objects that a message names; further ones are counted.
const NAMED_MAX: usize = 12;

/// The first server version on which membership in a role can be granted without `SET`, and by several grantors.
const GRANTORS_SINCE: u32 = 160_000;

/// Whose rights the statements of a session have.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SessionRights {
    /// The rights of the relay: `run` and the commands that work for it.
    Relay,
    /// `setup` or `check` by the login of `source.url`.
    OwnLogin,
    /// `setup` or `check` by another login (`--url`).
    Administrator,
    /// `setup --print-sql` by the login of `source.url`: an administrator will run the printed SQL.
    Printing,
}

/// An object that is not Postrider's.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ForeignObject {
    /// The object's name: `trigger x on postrider.cursor`.
    pub name: String,
    /// The statement that removes it; `None` if no such statement can be printed.
    pub line: Option<String>,
}

/// Ownership or a right that another role has.
#[derive(Clone, PartialEq, Eq, Debug)]
struct ForeignRight {
    /// `TABLE postrider.cursor`, which the role owns.
    alters: Option<String>,
    /// `TRIGGER ON TABLE postrider.cursor`, which the role has.
    revokes: Option<String>,
    /// The role; empty for `PUBLIC`.
    role: String,
}

/// An owner, and whether the session can act as the owner.
#[derive(Clone, PartialEq, Eq, Debug)]
struct ObjectOwner {
    role: String,
    /// The session's role has the owner's rights.
    acts: bool,
    /// The session's role is a member by a grant that another grant by it would change: on 16 and later a grant by the
    /// role itself, before that any grant.
    granted: bool,
    /// The session's role may grant the membership.
    grants: bool,
}

/// Why a session must not use schema `postrider`.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct UntrustedSchema {
    /// Objects that are not Postrider's, in the order in which they can be removed.
    pub foreign: Vec<ForeignObject>,
    /// The session has another login than the relay's.
    pub by_other_login: bool,
    held: Vec<ForeignRight>,
    owners: Vec<ObjectOwner>,
    /// Those of Postrider's own tables that exist.
    tables: Vec<&'static str>,
}

/// Reads why a session of this kind must not use the schema; `None` if it may, or if there is no schema.
///
/// # Errors
/// An error of the server or of the connection.
pub async fn read(
    client: &Client,
    acting: SessionRights,
) -> Result<Option<UntrustedSchema>, SourceError> {
    let failed = |e| SourceError::control("read who owns schema \"postrider\"", e);
    let sql = "SELECT r.rolsuper, r.rolname::pg_catalog.text, \
                 EXISTS (SELECT FROM pg_catalog.pg_namespace n WHERE n.nspname = 'postrider') \
               FROM pg_catalog.pg_roles r WHERE r.rolname = current_user";
    let row = client.query_one(sql, &[]).await.map_err(failed)?;
    let superuser: bool = row.try_get(0).map_err(failed)?;
    let me: String = row.try_get(1).map_err(failed)?;
    let exists: bool = row.try_get(2).map_err(failed)?;
    if !exists {
        return Ok(None);
    }
    if matches!(acting, SessionRights::Relay | SessionRights::OwnLogin) && !superuser {
        return Ok(None);
    }
    let by_other_login = acting == SessionRights::Administrator;
    let mut ownership = UntrustedSchema { by_other_login, ..UntrustedSchema::default() };
    let rows = client.query(&format!("{HELD} ORDER BY 1, 2, 3, 4"), &[]).await.map_err(failed)?;
    for row in rows {
        let (alters, revokes): (Option<String>, Option<String>) =
            (row.try_get(1).map_err(failed)?, row.try_get(2).map_err(failed)?);
        let role: String = row.try_get(3).map_err(failed)?;
        let is_super: bool = row.try_get(4).map_err(failed)?;
        let trusted = match acting {
            // The role that will run the SQL is not known; the SQL checks again.
            SessionRights::Printing if alters.is_some() => role != me || superuser,
            SessionRights::Printing => is_super,
            // The relay's role is a superuser: the right to add triggers was granted deliberately.
            SessionRights::Relay => alters.is_none() || is_super || role == me,
            SessionRights::OwnLogin | SessionRights::Administrator => is_super || role == me,
        };
        if !trusted {
            ownership.held.push(ForeignRight { alters, revokes, role });
        }
    }
    if acting != SessionRights::Relay {
        let sql = format!("{FOREIGN} ORDER BY 1, 2");
        for row in client.query(&sql, &[]).await.map_err(failed)? {
            let (name, line): (String, Option<String>) =
                (row.try_get(1).map_err(failed)?, row.try_get(2).map_err(failed)?);
            ownership.foreign.push(foreign(&name, line));
        }
    }
    if ownership.foreign.is_empty() && ownership.held.is_empty() {
        return Ok(None);
    }
    ownership.owners = owners(client, &ownership.roles()).await?;
    ownership.tables = own_tables(client).await?;
    Ok(Some(ownership))
}

/// Those of Postrider's own tables that exist.
async fn own_tables(client: &Client) -> Result<Vec<&'static str>, SourceError> {
    let failed = |e| SourceError::control("list the tables of schema \"postrider\"", e);
    let sql = "SELECT c.relname::pg_catalog.text FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n \
               ON n.oid = c.relnamespace WHERE n.nspname = 'postrider' AND c.relkind = 'r'";
    let rows = client.query(sql, &[]).await.map_err(failed)?;
    let names: Vec<String> =
        rows.iter().map(|row| row.try_get(0)).collect::<Result<_, _>>().map_err(failed)?;
    Ok(OWN_TABLES.into_iter().filter(|own| names.iter().any(|name| name == own)).collect())
}

/// A name without control characters for a terminal, and a statement only if it can be pasted.
fn foreign(name: &str, line: Option<String>) -> ForeignObject {
    let plain = |text: &str| !text.chars().any(char::is_control);
    let shown = if plain(name) { name.to_owned() } else { name.escape_debug().to_string() };
    ForeignObject { name: shown, line: line.filter(|line| !line.is_empty() && plain(line)) }
}

/// Reads what the session may do as each of these roles.
///
/// # Errors
/// An error of the server or of the connection.
async fn owners(client: &Client, roles: &[String]) -> Result<Vec<ObjectOwner>, SourceError> {
    let failed =
        |e| SourceError::control("read who may act for the owner of schema \"postrider\"", e);
    let sql = "SELECT o.rolname::pg_catalog.text, pg_catalog.pg_has_role(a.oid, o.oid, 'USAGE'), \
                 CASE WHEN pg_catalog.current_setting('server_version_num')::pg_catalog.int4 < 160000 \
                   THEN pg_catalog.pg_has_role(a.oid, o.oid, 'MEMBER') \
                   ELSE EXISTS (SELECT FROM pg_catalog.pg_auth_members m WHERE m.roleid = o.oid \
                     AND m.member = a.oid AND m.grantor = a.oid) END, \
                 pg_catalog.pg_has_role(a.oid, o.oid, 'MEMBER WITH ADMIN OPTION') \
                   OR a.rolcreaterole AND NOT o.rolsuper \
                     AND pg_catalog.current_setting('server_version_num')::pg_catalog.int4 < 160000 \
               FROM pg_catalog.pg_roles o, pg_catalog.pg_roles a \
               WHERE a.rolname = current_user AND o.rolname::pg_catalog.text = ANY ($1) ORDER BY 1";
    let rows = client.query(sql, &[&roles]).await.map_err(failed)?;
    let owner = |row: &tokio_postgres::Row| {
        Ok(ObjectOwner {
            role: row.try_get(0)?,
            acts: row.try_get(1)?,
            granted: row.try_get(2)?,
            grants: row.try_get(3)?,
        })
    };
    rows.iter().map(owner).collect::<Result<_, _>>().map_err(failed)
}

impl UntrustedSchema {
    /// The roles that own something.
    fn roles(&self) -> Vec<String> {
        let owned = self.held.iter().filter(|held| held.alters.is_some());
        let roles: BTreeSet<&str> = owned.map(|held| held.role.as_str()).collect();
        roles.into_iter().map(str::to_owned).collect()
    }

    /// Whether schema or tables belong to another role.
    pub fn is_owned(&self) -> bool {
        self.held.iter().any(|held| held.alters.is_some())
    }

    /// What is wrong, in a fragment that names objects and roles.
    pub fn words(&self) -> String {
        if !self.foreign.is_empty() {
            let names: Vec<&str> = self.foreign.iter().map(|object| &*object.name).collect();
            return format!(
                "schema \"postrider\" has objects that are not Postrider's: {}",
                listed(&names)
            );
        }
        let roles: Vec<String> = self.roles().iter().map(|role| format!("role {role:?}")).collect();
        if !roles.is_empty() {
            return format!("schema \"postrider\" or tables in it belong to {}", listed(&roles));
        }
        let rights: Vec<String> = self
            .held
            .iter()
            .filter_map(|held| {
                Some(format!("{} has {}", grantee(&held.role), held.revokes.as_ref()?))
            })
            .collect();
        format!("others may add code to schema \"postrider\": {}", listed(&rights))
    }

    /// The statements that remove foreign objects.
    pub fn removals(&self) -> impl Iterator<Item = &str> {
        self.foreign.iter().filter_map(|object| object.line.as_deref())
    }

    /// The title of the step that takes ownership.
    pub(crate) fn title(&self) -> String {
        let roles: Vec<String> = self.roles().iter().map(|role| format!("role {role:?}")).collect();
        if roles.is_empty() {
            return "revoke rights to add code to schema \"postrider\"".to_owned();
        }
        format!(
            "take ownership of schema \"postrider\" and its tables from {}",
            roles.join(" and ")
        )
    }

    /// The statements of that step: objects of others become the session's, their rights to add code are revoked, and
    /// the previous owners and the relay's `role` keep their rights on rows. `version`: the server's.
    pub(crate) fn sql(&self, role: Option<&str>, version: u32) -> String {
        let owners = self.roles();
        let lent: Vec<&ObjectOwner> = self.owners.iter().filter(|owner| owner.is_lent()).collect();
        let (options, by) = if version >= GRANTORS_SINCE {
            (" WITH INHERIT TRUE, SET FALSE", " GRANTED BY CURRENT_USER")
        } else {
            ("", "")
        };
        let mut sql = guard_foreign();
        let mut line = |text: String| writeln!(sql, "{text}").unwrap_or_default();
        for owner in &lent {
            line(format!("GRANT {} TO CURRENT_USER{options};", ident(&owner.role)));
        }
        let (mut rewrites, mut kept) = (false, Vec::new());
        for held in &self.held {
            let Some(object) = &held.alters else { continue };
            line(format!("ALTER {object} OWNER TO CURRENT_USER;"));
            // The previous owner may have revoked its own rights, and the new owner would inherit that.
            line(format!("GRANT ALL ON {object} TO CURRENT_USER;"));
            if object == NOTIFY_FUNCTION {
                line(notify_function_sql());
            } else if is_of_toolkit(object) {
                rewrites = true;
                kept.extend(kept_rights(object, &held.role));
            }
        }
        if rewrites {
            // Functions and views of the SQL toolkit that another role has written do not keep their bodies.
            line(files::objects_sql().trim_end().to_owned());
        }
        for right in kept {
            line(right);
        }
        for held in &self.held {
            if let Some(right) = &held.revokes {
                line(format!("REVOKE {right} FROM {} CASCADE;", grantee(&held.role)));
            }
        }
        let tables = &self.tables;
        let keeps: BTreeSet<&str> = owners.iter().map(String::as_str).chain(role).collect();
        for role in keeps.iter().map(|role| ident(role)) {
            line(format!("GRANT USAGE ON SCHEMA postrider TO {role};"));
            if !tables.is_empty() {
                line(grant_rows(tables, &role));
            }
        }
        for owner in &lent {
            line(format!("REVOKE {} FROM CURRENT_USER{by};", ident(&owner.role)));
        }
        sql.push_str(&guard());
        sql
    }

    /// What allows the session to take ownership, a line for each owner that it cannot act as.
    pub(crate) fn remedies(
        &self,
        admin: &str,
        database: &str,
        creates: bool,
        version: u32,
    ) -> Vec<String> {
        let admin = ident(admin);
        let mut lines = Vec::new();
        if !creates {
            lines.push(format!(
                "as the owner of the database or a superuser: GRANT CREATE ON DATABASE {} TO {admin};",
                ident(database)
            ));
        }
        for owner in self.owners.iter().filter(|owner| !owner.acts && !owner.is_lent()) {
            let (who, options) = if version >= GRANTORS_SINCE {
                (
                    format!(
                        "as a superuser, or as a role that has the ADMIN option on role {:?}",
                        owner.role
                    ),
                    " WITH INHERIT TRUE, SET TRUE",
                )
            } else {
                ("as a superuser, or as a role that has CREATEROLE".to_owned(), "")
            };
            lines.push(format!("{who}: GRANT {} TO {admin}{options};", ident(&owner.role)));
        }
        if lines.is_empty() {
            lines.push(
                "run setup as a superuser, or as the role that owns schema \"postrider\""
                    .to_owned(),
            );
        }
        lines
    }
}

impl ObjectOwner {
    /// The session can grant itself the owner's rights, and revoke them without changing an earlier grant.
    fn is_lent(&self) -> bool {
        !self.acts && self.grants && !self.granted
    }
}

/// The function of `setup --notify`, as [`ForeignRight::alters`] names it.
const NOTIFY_FUNCTION: &str = "ROUTINE postrider.notify_outbox()";

/// Whether the object that [`ForeignRight::alters`] names is of the SQL toolkit. Foreign objects are refused before.
fn is_of_toolkit(object: &str) -> bool {
    let own = |table: &str| object.strip_prefix("TABLE postrider.") == Some(table);
    object != "SCHEMA postrider" && object != NOTIFY_FUNCTION && !OWN_TABLES.into_iter().any(own)
}

/// The rights that the previous owner of an object of the SQL toolkit keeps, a statement for each.
fn kept_rights(object: &str, role: &str) -> Vec<String> {
    let role = ident(role);
    if is_former(object) {
        return Vec::new();
    }
    if object.starts_with("ROUTINE ") {
        return vec![
            format!("GRANT EXECUTE ON {object} TO {role};"),
            format!("REVOKE EXECUTE ON {object} FROM PUBLIC;"),
        ];
    }
    vec![format!("GRANT SELECT, INSERT, UPDATE, DELETE ON {object} TO {role};")]
}

/// Whether the object is a function of `toolkit/former.sql`, which the text of the toolkit's objects has just dropped.
fn is_former(object: &str) -> bool {
    let arguments = object.strip_prefix("ROUTINE postrider.inbox_drain(");
    arguments.is_some_and(|arguments| arguments.matches(',').count() == 1)
}

fn grantee(role: &str) -> String {
    if role.is_empty() { "PUBLIC".to_owned() } else { ident(role) }
}

/// The first items of a list, and the number of further ones.
fn listed<T: AsRef<str>>(items: &[T]) -> String {
    let shown: Vec<&str> = items.iter().take(NAMED_MAX).map(AsRef::as_ref).collect();
    let more = items.len().saturating_sub(NAMED_MAX);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    format!("{}{more}", shown.join(", "))
}

/// A statement that fails with SQLSTATE [`UNTRUSTED`] if schema `postrider` contains foreign objects. The transaction
/// has an empty `search_path`.
fn guard_foreign() -> String {
    format!(
        "DO $postrider$ DECLARE found pg_catalog.text; BEGIN\n\
         SELECT pg_catalog.string_agg(o.named, ', ') INTO found FROM (\n{FOREIGN}ORDER BY 1, 2) AS o;\n\
         IF found IS NOT NULL THEN RAISE EXCEPTION USING ERRCODE = '{UNTRUSTED}',\n  \
           MESSAGE = 'schema \"postrider\" has objects that are not Postrider''s: ' || found;\nEND IF;\n\
         END $postrider$;\n"
    )
}

/// As [`guard_foreign`], and also if objects belong to another role, or other roles may add code.
pub(crate) fn guard() -> String {
    format!(
        "{}DO $postrider$ DECLARE found pg_catalog.text; BEGIN\n\
         SELECT pg_catalog.string_agg(DISTINCT nullif(o.role, ''), ', ') INTO found\n\
         FROM (\n{HELD}) AS o WHERE NOT o.super AND NOT o.me AND o.alters IS NOT NULL;\n\
         IF found IS NOT NULL THEN RAISE EXCEPTION USING ERRCODE = '{UNTRUSTED}',\n  \
           MESSAGE = 'schema \"postrider\" or tables in it belong to another role: ' || found;\nEND IF;\n\
         SELECT pg_catalog.string_agg(o.revokes, ', ') INTO found\n\
         FROM (\n{HELD}) AS o WHERE NOT o.super AND NOT o.me AND o.revokes IS NOT NULL;\n\
         IF found IS NOT NULL THEN RAISE EXCEPTION USING ERRCODE = '{UNTRUSTED}',\n  \
           MESSAGE = 'others may add code to schema \"postrider\": ' || found;\nEND IF;\n\
         END $postrider$;\n",
        guard_foreign()
    )
}
