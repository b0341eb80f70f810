//! What the relay's role may do, as the catalog has it, and the statements that give it the rest.
//!
//! `GRANT` by a role that may not grant is an error, or a mere warning where it holds another right of the same object.
//! So what is true is read from the catalog before and afterwards, and never taken from a statement's success.

use super::{Options, StepKind};
use crate::postgres::control::Control;
use crate::postgres::error::SourceError;
use crate::postgres::fence::Facts;
use crate::postgres::names::{TableName, ident, literal};
use crate::postgres::poll::PollSpec;

/// The first server on which membership in a role can lack `INHERIT` and `SET`.
const GRANT_OPTIONS_SINCE: u32 = 160_000;

/// Who runs the server: what lets a role replicate there.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum ServerKind {
    /// A server whose superuser somebody has.
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

    /// Who may run it.
    const fn who(self, version: u32) -> &'static str {
        match self {
            Self::Rds => "as the master user",
            Self::CloudSql => "as a member of cloudsqlsuperuser, for example user postgres",
            Self::Azure => "as the server's administrator",
            Self::Own if version >= GRANT_OPTIONS_SINCE => {
                "as a superuser, or as a role that has CREATEROLE and REPLICATION and the ADMIN option on it"
            }
            Self::Own => "as a superuser",
        }
    }
}

/// The rights of a role, and of who asks.
#[derive(Clone, PartialEq, Eq, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "rights")]
pub struct RightsFacts {
    /// Who runs the server.
    pub kind: ServerKind,
    /// The role of the session.
    admin: String,
    /// It is a superuser.
    pub(super) superuser: bool,
    /// It may use replication slots.
    admin_replicates: bool,
    /// It may make schemas and publications.
    admin_creates: bool,
    /// The role may replicate.
    replicates: bool,
    /// The role may connect, and use the tables of schema `postrider`.
    ours: bool,
    /// Who owns schema `postrider`, and whether that is the session's role or one that it acts for.
    schema_owner: Option<(String, bool)>,
    /// The outbox table, where it exists.
    table: Option<OutboxRights>,
    /// INSERT on the table of dead letters, where it exists.
    dlq: Option<bool>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "rights")]
struct OutboxRights {
    owner: String,
    /// The session's role acts for the owner.
    owned: bool,
    select: bool,
    update: bool,
    delete: bool,
}

/// One right that the role needs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Right {
    /// The step that gives it.
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
         FROM pg_class c WHERE c.relnamespace = p.oid AND c.relkind = 'r'), false), \
  pg_get_userbyid(p.nspowner)::text, pg_has_role(a.oid, p.nspowner, 'USAGE'), \
  pg_get_userbyid(t.relowner)::text, pg_has_role(a.oid, t.relowner, 'USAGE'), \
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
LEFT JOIN pg_class q ON q.relnamespace = n.oid AND q.relname = $4 AND q.relkind IN ('r', 'p') \
WHERE a.rolname = current_user";

/// Reads them. Of a role that does not exist none is held.
///
/// # Errors
/// What the server says.
pub async fn read_rights(
    control: &Control,
    role: &str,
    table: Option<&TableName>,
    marks: Option<&PollSpec>,
) -> Result<RightsFacts, SourceError> {
    let failed = |e| SourceError::control(format!("read the rights of role {role:?}"), e);
    let (schema, name) = table.map_or(("", ""), |table| (&*table.schema, &*table.name));
    let dlq = marks.and_then(PollSpec::dlq).map_or("", |dlq| dlq.name.as_str());
    let row = control.client().query_one(SQL, &[&role, &schema, &name, &dlq]).await;
    let row = row.map_err(failed)?;
    let read = || {
        let held =
            |index: usize| row.try_get::<_, Option<bool>>(index).map(Option::unwrap_or_default);
        let text = |index: usize| row.try_get::<_, Option<String>>(index);
        let table = match text(8)? {
            Some(owner) => Some(OutboxRights {
                owner,
                owned: held(9)?,
                select: held(10)?,
                update: held(11)?,
                delete: held(12)?,
            }),
            None => None,
        };
        let schema_owner = match text(6)? {
            Some(owner) => Some((owner, held(7)?)),
            None => None,
        };
        Ok(RightsFacts {
            kind: match row.try_get::<_, &str>(14)? {
                "rds" => ServerKind::Rds,
                "cloudsql" => ServerKind::CloudSql,
                "azure" => ServerKind::Azure,
                _ => ServerKind::Own,
            },
            admin: row.try_get(0)?,
            superuser: held(1)?,
            admin_replicates: held(2)?,
            admin_creates: held(3)?,
            replicates: held(4)?,
            ours: held(5)?,
            schema_owner,
            table,
            dlq: row.try_get(13)?,
        })
    };
    read().map_err(failed)
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
            "GRANT CONNECT ON DATABASE {database} TO {to};\nGRANT USAGE ON SCHEMA postrider TO {to};\n\
             GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA postrider TO {to};"
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
            // The application's, and may not exist.
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

impl RightsFacts {
    /// The line by which the session's role acts for another.
    fn act_for(&self, owner: &str, version: u32) -> String {
        let options =
            if version >= GRANT_OPTIONS_SINCE { " WITH INHERIT TRUE, SET TRUE" } else { "" };
        format!("GRANT {} TO {}{options};", ident(owner), ident(&self.admin))
    }

    /// What gives the rights that are missing, as lines.
    pub(super) fn remedy(&self, facts: &Facts, missing: &[Right]) -> String {
        let version = facts.server.version;
        let mut lines = Vec::new();
        let of = |step| missing.iter().filter(move |right| right.step == step);
        let sql: Vec<&str> = of(StepKind::Rights)
            .chain(of(StepKind::TableRights))
            .flat_map(|right| right.sql.lines())
            .collect();
        if !sql.is_empty() {
            let acts = match &self.table {
                Some(table) if !table.owned && of(StepKind::TableRights).next().is_some() => {
                    format!(
                        ", or let {} act for the table's owner and run setup again: {}",
                        ident(&self.admin),
                        self.act_for(&table.owner, version)
                    )
                }
                Some(_) | None => String::new(),
            };
            lines.push(format!("as the owner or a superuser: {}{acts}", sql.join(" ")));
        }
        for right in of(StepKind::Replication) {
            lines.push(format!("{}: {}", self.kind.who(version), right.sql));
        }
        lines.join("\n")
    }

    /// What lets the session's role do a step that was refused with SQLSTATE 42501.
    pub(super) fn denied(&self, facts: &Facts, step: StepKind) -> Option<String> {
        let version = facts.server.version;
        let database = ident(&facts.server.database);
        let create = || format!("GRANT CREATE ON DATABASE {database} TO {};", ident(&self.admin));
        let mut lines = Vec::new();
        match step {
            StepKind::Table => {
                let schema = facts.names.table.as_ref().map(|table| ident(&table.schema))?;
                lines.push(format!("GRANT CREATE ON SCHEMA {schema} TO {};", ident(&self.admin)));
            }
            StepKind::Publication | StepKind::Notify => {
                if step == StepKind::Publication && !self.admin_creates {
                    lines.push(create());
                }
                let owner = self.table.as_ref().filter(|table| !table.owned);
                lines.extend(owner.map(|table| self.act_for(&table.owner, version)));
            }
            StepKind::Schema => match &self.schema_owner {
                Some((owner, false)) => lines.push(self.act_for(owner, version)),
                Some(_) => {}
                None => lines.push(create()),
            },
            StepKind::Slot | StepKind::Cursor => {
                let mut ways = Vec::new();
                if self.replicates && self.ours {
                    ways.push(format!(
                        "run setup again as the relay's role, which makes what is left: postrider setup -p {} (without \
                         --url)",
                        facts.names.pipeline
                    ));
                }
                if !self.admin_replicates {
                    ways.push(format!(
                        "{}, then run setup again: {}",
                        self.kind.who(version),
                        self.kind.replicate(&self.admin)
                    ));
                }
                return (!ways.is_empty()).then(|| ways.join("; or "));
            }
            StepKind::Rights | StepKind::TableRights | StepKind::Replication => return None,
        }
        (!lines.is_empty())
            .then(|| format!("as a superuser, then run setup again: {}", lines.join(" ")))
    }
}
