//! The rights of the relay's role, as the catalog has them, and the statements that grant the missing ones.
//!
//! `GRANT` by a role that may not grant is an error, or only a warning if it holds another right on the same object. So
//! rights are read from the catalog before and afterwards; a statement's success proves nothing.

use super::{Options, SetupCommand, StepKind};
use crate::control::Control;
use crate::names::{OWN_TABLES, TableName, grant_rows, ident, literal};
use crate::poll::PollSpec;
use crate::retention::{RetentionRight, RetentionRule};
use crate::start::Facts;
use pg_replication::error::SourceError;

/// The first server on which membership in a role can lack `INHERIT` and `SET`.
const GRANT_OPTIONS_SINCE: u32 = 160_000;

/// The kind of server: it decides what lets a role replicate.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum ServerKind {
    /// A server with an available superuser.
    #[default]
    Own,
    /// Amazon RDS and Aurora.
    Rds,
    /// Google Cloud SQL.
    CloudSql,
    /// Azure Database for PostgreSQL.
    Azure,
}

impl ServerKind {
    /// The statement that lets a role replicate.
    pub fn replicate(self, role: &str) -> String {
        match self {
            Self::Rds => format!("GRANT rds_replication TO {};", ident(role)),
            Self::Own | Self::CloudSql | Self::Azure => {
                format!("ALTER ROLE {} WITH REPLICATION;", ident(role))
            }
        }
    }

    /// Who can let `role` replicate.
    fn who(self, role: &str, version: u32) -> String {
        let who = match self {
            Self::Rds => "as the master user",
            Self::CloudSql => "as a member of cloudsqlsuperuser, for example user postgres",
            Self::Azure => "as the server's administrator",
            Self::Own if version >= GRANT_OPTIONS_SINCE => {
                return format!(
                    "as a superuser, or as a role that has CREATEROLE and REPLICATION and the ADMIN option on role \
                     {role:?}"
                );
            }
            Self::Own => "as a superuser",
        };
        who.to_owned()
    }
}

/// The rights of a role, and those of the session's role.
#[derive(Clone, PartialEq, Eq, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "rights")]
pub struct RightsFacts {
    /// The kind of server.
    pub kind: ServerKind,
    /// The role of the session.
    admin: String,
    /// The session's role may use replication slots.
    admin_replicates: bool,
    /// The session's role may create schemas and publications.
    admin_creates: bool,
    /// The role may replicate.
    replicates: bool,
    /// The role may connect, and use the tables of schema `postrider`.
    ours: bool,
    /// The owner of schema `postrider`.
    schema_owner: Option<Owner>,
    /// The outbox table, if it exists.
    table: Option<OutboxRights>,
    /// INSERT on the dead-letter table, if it exists.
    dlq: Option<bool>,
    /// What retention needs.
    retention: Vec<RetentionRight>,
}

/// The owner of an object, as the session's role sees it.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Owner {
    name: String,
    /// The session's role is the owner, or a member of it.
    ours: bool,
    /// Membership would be equivalent to superuser rights.
    superuser: bool,
    /// The session's role may grant membership in the owner.
    grantable: bool,
}

#[derive(Clone, PartialEq, Eq, Debug)]
struct OutboxRights {
    owner: Owner,
    select: bool,
    update: bool,
    delete: bool,
}

/// A right that the role needs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Right {
    /// The step that grants it.
    pub(super) step: StepKind,
    /// `SELECT on table "public"."outbox"`
    pub(super) what: String,
    pub(super) sql: String,
    pub(super) held: bool,
}

const SQL: &str = "\
SELECT a.rolname::text, a.rolsuper, \
  a.rolsuper OR a.rolreplication OR rds.oid IS NOT NULL AND pg_has_role(a.oid, rds.oid, 'MEMBER'), \
  has_database_privilege(a.oid, current_database(), 'CREATE'), \
  r.rolsuper OR r.rolreplication OR rds.oid IS NOT NULL AND pg_has_role(r.oid, rds.oid, 'MEMBER'), \
  has_database_privilege(r.oid, current_database(), 'CONNECT') \
    AND coalesce(has_schema_privilege(r.oid, p.oid, 'USAGE') \
    AND (SELECT bool_and(has_table_privilege(r.oid, c.oid, 'SELECT') AND has_table_privilege(r.oid, c.oid, 'INSERT') \
           AND has_table_privilege(r.oid, c.oid, 'UPDATE') AND has_table_privilege(r.oid, c.oid, 'DELETE')) \
         FROM pg_class c WHERE c.relnamespace = p.oid AND c.relkind = 'r' AND c.relname = ANY ($5::text[])), false), \
  po.rolname::text, pg_has_role(a.oid, po.oid, 'USAGE'), po.rolsuper, \
  a.rolsuper OR pg_has_role(a.oid, po.oid, 'MEMBER WITH ADMIN OPTION') \
    OR a.rolcreaterole AND NOT po.rolsuper AND current_setting('server_version_num')::int4 < 160000, \
  w.rolname::text, pg_has_role(a.oid, w.oid, 'USAGE'), w.rolsuper, \
  a.rolsuper OR pg_has_role(a.oid, w.oid, 'MEMBER WITH ADMIN OPTION') \
    OR a.rolcreaterole AND NOT w.rolsuper AND current_setting('server_version_num')::int4 < 160000, \
  has_schema_privilege(r.oid, n.oid, 'USAGE') AND has_table_privilege(r.oid, t.oid, 'SELECT'), \
  has_table_privilege(r.oid, t.oid, 'UPDATE'), has_table_privilege(r.oid, t.oid, 'DELETE'), \
  has_table_privilege(r.oid, q.oid, 'INSERT'), \
  CASE WHEN rds.oid IS NOT NULL THEN 'rds' \
       WHEN EXISTS (SELECT FROM pg_roles WHERE rolname = 'cloudsqlsuperuser') THEN 'cloudsql' \
       WHEN EXISTS (SELECT FROM pg_roles WHERE rolname = 'azure_pg_admin') THEN 'azure' ELSE '' END \
FROM pg_roles a LEFT JOIN pg_roles r ON r.rolname = $1 \
LEFT JOIN pg_roles rds ON rds.rolname = 'rds_replication' \
LEFT JOIN pg_namespace p ON p.nspname = 'postrider' \
LEFT JOIN pg_namespace n ON n.nspname = $2 \
LEFT JOIN pg_class t ON t.relnamespace = n.oid AND t.relname = $3 AND t.relkind IN ('r', 'p') \
LEFT JOIN pg_roles po ON po.oid = p.nspowner LEFT JOIN pg_roles w ON w.oid = t.relowner \
LEFT JOIN pg_class q ON q.relnamespace = n.oid AND q.relname = $4 AND q.relkind IN ('r', 'p') \
WHERE a.rolname = current_user";

/// Reads the rights. A role that does not exist has none.
///
/// # Errors
/// An error of the server or of the connection.
pub async fn read_rights(
    control: &Control,
    role: &str,
    table: Option<&TableName>,
    marks: Option<&PollSpec>,
    retention: Option<&RetentionRule>,
) -> Result<RightsFacts, SourceError> {
    let retention = match retention {
        Some(of) => of.rights(control.client(), Some(role)).await?,
        None => Vec::new(),
    };
    let failed = |e| SourceError::control(format!("read the rights of role {role:?}"), e);
    let (schema, name) = table.map_or(("", ""), |table| (&*table.schema, &*table.name));
    let dlq = marks.and_then(PollSpec::dlq).map_or_else(String::new, |dlq| dlq.name);
    let own = OWN_TABLES.as_slice();
    let row = control.client().query_one(SQL, &[&role, &schema, &name, &dlq, &own]).await;
    let row = row.map_err(failed)?;
    let read = || {
        let held =
            |index: usize| row.try_get::<_, Option<bool>>(index).map(Option::unwrap_or_default);
        let owner = |at: usize| {
            let name = row.try_get::<_, Option<String>>(at)?;
            let read = |name| {
                Ok::<_, tokio_postgres::Error>(Owner {
                    name,
                    ours: held(at + 1)?,
                    superuser: held(at + 2)?,
                    grantable: held(at + 3)?,
                })
            };
            name.map(read).transpose()
        };
        let table = match owner(10)? {
            Some(owner) => Some(OutboxRights {
                owner,
                select: held(14)?,
                update: held(15)?,
                delete: held(16)?,
            }),
            None => None,
        };
        let schema_owner = owner(6)?;
        Ok(RightsFacts {
            kind: match row.try_get::<_, &str>(18)? {
                "rds" => ServerKind::Rds,
                "cloudsql" => ServerKind::CloudSql,
                "azure" => ServerKind::Azure,
                _ => ServerKind::Own,
            },
            admin: row.try_get(0)?,
            admin_replicates: held(2)?,
            admin_creates: held(3)?,
            replicates: held(4)?,
            ours: held(5)?,
            schema_owner,
            table,
            dlq: row.try_get(17)?,
            retention,
        })
    };
    read().map_err(failed)
}

/// The statements that let the application's role insert into a table that was just created; `APPLICATION` stands for
/// its name.
///
/// # Errors
/// An error of the server or of the connection.
pub async fn insert_grants(
    control: &Control,
    table: &TableName,
) -> Result<Vec<String>, SourceError> {
    let failed = |e| SourceError::control(format!("read the sequences of table {table}"), e);
    // An identity column needs no right on its sequence, a serial column does.
    let sql = "SELECT pg_catalog.format('%I.%I', n.nspname, s.relname) FROM pg_catalog.pg_depend d \
               JOIN pg_catalog.pg_class s ON s.oid = d.objid AND s.relkind = 'S' \
               JOIN pg_catalog.pg_namespace n ON n.oid = s.relnamespace \
               WHERE d.classid = 'pg_catalog.pg_class'::pg_catalog.regclass AND d.deptype = 'a' \
                 AND d.refobjid = pg_catalog.to_regclass($1::pg_catalog.text)";
    let rows = control.client().query(sql, &[&table.to_string()]).await.map_err(failed)?;
    let mut grants = Vec::new();
    if table.schema != "public" {
        grants.push(format!("GRANT USAGE ON SCHEMA {} TO APPLICATION;", ident(&table.schema)));
    }
    grants.push(format!("GRANT INSERT ON TABLE {table} TO APPLICATION;"));
    for row in rows {
        let sequence: &str = row.try_get(0).map_err(failed)?;
        grants.push(format!("GRANT USAGE ON SEQUENCE {sequence} TO APPLICATION;"));
    }
    Ok(grants)
}

/// Every right that the role needs; without `options.rights` none counts as held.
pub(super) fn wanted(facts: &Facts, role: &str, options: &Options<'_>) -> Vec<Right> {
    let have = options.rights;
    let to = ident(role);
    let database = ident(&facts.server.database);
    let mut rights = vec![Right {
        step: StepKind::Rights,
        what: "the tables of schema \"postrider\"".to_owned(),
        sql: format!(
            "GRANT CONNECT ON DATABASE {database} TO {to};\nGRANT USAGE ON SCHEMA postrider TO {to};\n{}",
            grant_rows(&OWN_TABLES, &to)
        ),
        held: have.is_some_and(|have| have.ours),
    }];
    if let Some(table) = &facts.names.table {
        let of_table = |held: fn(&OutboxRights) -> bool| {
            have.and_then(|have| have.table.as_ref()).is_some_and(held)
        };
        let mut right = |name: &str, held: bool| {
            rights.push(Right {
                step: StepKind::TableRights,
                what: format!("{name} on table {table}"),
                sql: format!("GRANT {name} ON TABLE {table} TO {to};"),
                held,
            });
        };
        right("SELECT", of_table(|table| table.select));
        if let Some(marks) = options.marks {
            right("UPDATE", of_table(|table| table.update));
            if marks.deletes() {
                right("DELETE", of_table(|table| table.delete));
            }
        }
        if let Some(first) = rights.iter_mut().find(|right| right.step == StepKind::TableRights) {
            first.sql =
                format!("GRANT USAGE ON SCHEMA {} TO {to};\n{}", ident(&table.schema), first.sql);
        }
        if let Some(dlq) = options.marks.and_then(PollSpec::dlq) {
            // The table is the application's, and may not exist yet.
            let is_to_come = options.create_table.is_some();
            rights.push(Right {
                step: StepKind::TableRights,
                what: format!("INSERT on table {dlq}"),
                sql: format!(
                    "DO $$ BEGIN IF to_regclass({}) IS NOT NULL THEN\n  GRANT INSERT ON TABLE {dlq} TO {to};\n\
                     END IF; END $$;",
                    literal(&dlq.to_string())
                ),
                held: have.is_some_and(|have| have.dlq.unwrap_or(!is_to_come)),
            });
        }
    }
    rights.extend(for_retention(facts, &to, options));
    if !options.polls {
        rights.push(Right {
            step: StepKind::Replication,
            what: "REPLICATION".to_owned(),
            sql: have.map_or_else(ServerKind::default, |have| have.kind).replicate(role),
            held: have.is_some_and(|have| have.replicates),
        });
    }
    rights
}

/// What retention needs, except membership in a superuser, which is granted by nobody.
fn for_retention(facts: &Facts, to: &str, options: &Options<'_>) -> Vec<Right> {
    let right = |what: String, sql: String, held: bool| Right {
        step: StepKind::Retention,
        what,
        sql,
        held,
    };
    let known = options.rights.map_or(&[][..], |have| &have.retention);
    let granted = known.iter().filter(|of| !of.of_superuser);
    let mut rights: Vec<Right> =
        granted.map(|of| right(of.what.clone(), of.grant.clone(), of.held)).collect();
    if let (Some(retention), Some(table)) = (options.retention, &facts.names.table)
        && retention.settings.keep.is_some()
        && facts.table.is_none()
    {
        // The table is created by an earlier step, as a plain one.
        let what = format!("DELETE on table {table}");
        rights.push(right(what, format!("GRANT DELETE ON TABLE {table} TO {to};"), false));
    }
    rights
}

impl RightsFacts {
    /// Rights of retention that setup does not grant, because they would make a superuser of the role, each with the
    /// statements that give the table another owner.
    pub fn not_granted(&self) -> impl Iterator<Item = (&str, &str)> {
        let missing = self.retention.iter().filter(|right| right.of_superuser && !right.held);
        missing.map(|right| (right.what.as_str(), right.grant.as_str()))
    }

    /// What lets the session's role act for an owner. If the owner is a superuser: who has to run setup instead,
    /// because membership in a superuser makes a superuser.
    fn act_for(&self, owner: &Owner, version: u32, call: &SetupCommand) -> String {
        if owner.superuser {
            return format!(
                "run setup as role {:?}, a superuser: {}",
                owner.name,
                call.by(&owner.name)
            );
        }
        let who = if owner.grantable {
            format!("as role {:?}, which may grant it", self.admin)
        } else if version >= GRANT_OPTIONS_SINCE {
            format!(
                "as a superuser, or as a role that has the ADMIN option on role {:?}",
                owner.name
            )
        } else {
            "as a superuser, or as a role that has CREATEROLE".to_owned()
        };
        let options =
            if version >= GRANT_OPTIONS_SINCE { " WITH INHERIT TRUE, SET TRUE" } else { "" };
        format!("{who}: GRANT {} TO {}{options};", ident(&owner.name), ident(&self.admin))
    }

    /// The statements that grant the missing rights of one step, a line for each alternative or right.
    pub(super) fn remedy(
        &self,
        facts: &Facts,
        role: &str,
        missing: &[&Right],
        call: &SetupCommand,
    ) -> Vec<String> {
        let version = facts.server.version;
        let (mut sql, mut lines) = (Vec::new(), Vec::new());
        for right in missing {
            if right.step == StepKind::Replication {
                lines.push(format!("{}: {}", self.kind.who(role, version), right.sql));
            } else {
                sql.extend(right.sql.lines());
            }
        }
        if !sql.is_empty() {
            lines.push(format!("as the owner or a superuser: {}", sql.join(" ")));
            let on_table = missing.iter().any(|right| right.step == StepKind::TableRights);
            let owner = self.table.as_ref().map(|table| &table.owner);
            if let Some(owner) = owner.filter(|owner| on_table && !owner.ours) {
                lines.push(format!("or {}", self.act_for(owner, version, call)));
            }
        }
        lines
    }

    /// What lets the session's role do a step that was refused with SQLSTATE 42501; a line for each.
    pub(super) fn denied(&self, facts: &Facts, step: StepKind, call: &SetupCommand) -> Vec<String> {
        let version = facts.server.version;
        let database = ident(&facts.server.database);
        let admin = ident(&self.admin);
        let create = || {
            format!(
                "as the owner of the database or a superuser: GRANT CREATE ON DATABASE {database} TO {admin};"
            )
        };
        let mut lines = Vec::new();
        match step {
            StepKind::Table => {
                let schema = facts.names.table.as_ref().map(|table| ident(&table.schema));
                lines.extend(schema.map(|schema| {
                    format!(
                        "as the owner of the schema or a superuser: GRANT USAGE, CREATE ON SCHEMA {schema} TO {admin};"
                    )
                }));
            }
            StepKind::Publication | StepKind::Notify => {
                if step == StepKind::Publication && !self.admin_creates {
                    lines.push(create());
                }
                if facts.names.captures() {
                    lines.push(format!(
                        "as a superuser, or as a role that is a member of the owners of {}: {}",
                        facts.names.captured_list(),
                        call.by("OWNER")
                    ));
                }
                let owner = self.table.as_ref().map(|table| &table.owner);
                let owner = owner.filter(|owner| !owner.ours);
                lines.extend(owner.map(|owner| self.act_for(owner, version, call)));
            }
            StepKind::Ownership => {
                lines.extend(facts.untrusted.iter().flat_map(|untrusted| {
                    untrusted.remedies(
                        &self.admin,
                        &facts.server.database,
                        self.admin_creates,
                        version,
                    )
                }));
            }
            StepKind::Schema => match &self.schema_owner {
                Some(owner) if !owner.ours => lines.push(self.act_for(owner, version, call)),
                Some(_) => {}
                None => lines.push(create()),
            },
            StepKind::Slot | StepKind::Cursor => lines.extend(self.denied_slot(version, call)),
            StepKind::Rights
            | StepKind::TableRights
            | StepKind::Retention
            | StepKind::Replication => {}
        }
        lines
    }

    /// The same for the slot and the cursor row.
    fn denied_slot(&self, version: u32, call: &SetupCommand) -> Vec<String> {
        let mut lines = vec![format!(
            "{}run setup as the relay's role, which creates the rest: {} (without --url)",
            if self.replicates && self.ours { "" } else { "when the role has its rights, " },
            call.command
        )];
        if !self.admin_replicates {
            lines.push(format!(
                "or, {}: {}",
                self.kind.who(&self.admin, version),
                self.kind.replicate(&self.admin)
            ));
        }
        lines
    }
}
