//! Rules about the relay's role: what it must be able to do, and what it should not.

use super::Scene;
use super::facts::RoleFacts;
use super::lines::{ADMIN, uri};
use super::refused::replication;
use crate::names::ident;
use crate::schema::SchemaState;
use pg_replication::conninfo::Conninfo;
use postrider_core::finding::Finding;

/// The name of a role that is proposed in place of a superuser.
const OWN_ROLE: &str = "postrider";

/// Sessions a running pipeline has: stream and control, and a moment's third while it reconnects.
const SESSIONS: i32 = 3;

pub(super) fn rules(scene: &Scene<'_>, out: &mut Vec<Finding>) {
    let user = scene.ask.conninfo.user();
    let name = ident(user);
    let Some(role) = &scene.role else {
        out.push(
            Finding::error("role_missing", format!("role {user:?} of source.url does not exist"))
                .why("the relay logs in by it; setup then gives it what it needs, and nothing else")
                .sql(format!("CREATE ROLE {name} LOGIN REPLICATION;"))
                .shell(scene.lines.setup.clone()),
        );
        return;
    };
    let mut found = Vec::new();
    if !role.can_login {
        found.push(
            Finding::error("role_login", format!("role {user:?} may not log in"))
                .why("the relay logs in by it")
                .sql(format!("ALTER ROLE {name} LOGIN;")),
        );
    }
    if !role.replication && scene.ask.streams {
        found.push(replication(user, role.rds));
    }
    if !role.may_connect {
        let database = ident(&scene.server.database);
        found.push(
            Finding::error(
                "source_connect",
                format!("role {user:?} may not connect to database {database}"),
            )
            .why("the relay logs in by it")
            .sql(format!("GRANT CONNECT ON DATABASE {database} TO {name};")),
        );
    }
    limits(scene, role, &name, &mut found);
    if found.is_empty() {
        found.push(Finding::ok(
            "role",
            format!(
                "role {user:?} may log in{}",
                if scene.ask.streams { " and stream" } else { "" }
            ),
        ));
    }
    out.append(&mut found);
}

fn limits(scene: &Scene<'_>, role: &RoleFacts, name: &str, out: &mut Vec<Finding>) {
    let user = &role.name;
    let until = role.valid_until.as_deref().unwrap_or_default();
    let forever = format!("ALTER ROLE {name} VALID UNTIL 'infinity';");
    if role.expired {
        out.push(
            Finding::error(
                "role_expired",
                format!("the password of role {user:?} expired on {until}"),
            )
            .why("a login by password is refused")
            .sql(forever),
        );
    } else if role.expires_soon {
        out.push(
            Finding::warning("role_expired", format!("the password of role {user:?} expires on {until}"))
                .why("from then on a login by password is refused: the pipeline stops at its next reconnect")
                .sql(forever),
        );
    }
    if (0..SESSIONS).contains(&role.connections) {
        out.push(
            Finding::error(
                "role_connections",
                format!(
                    "role {user:?} may have {} sessions, a pipeline needs {SESSIONS}",
                    role.connections
                ),
            )
            .why("the relay's second connection is refused (53300)")
            .sql(format!("ALTER ROLE {name} CONNECTION LIMIT -1;")),
        );
    }
    if role.read_only {
        let database = ident(&scene.server.database);
        out.push(
            Finding::error(
                "read_only",
                format!("default_transaction_read_only is on for role {user:?} or its database"),
            )
            .why("the relay can't write its cursor row, and so can't confirm anything")
            .sql(format!(
                "ALTER ROLE {name} IN DATABASE {database} SET default_transaction_read_only = off;"
            )),
        );
    }
}

/// Comes late: its mending runs `setup`, which wants everything else to be well.
pub(super) fn superuser(scene: &Scene<'_>, out: &mut Vec<Finding>) {
    let Some(role) = scene.role.as_ref().filter(|role| role.superuser) else { return };
    let user = &role.name;
    let finding = Finding::warning("role_superuser", format!("role {user:?} is a superuser"))
        .why("whoever has the relay's password has the whole cluster; it needs REPLICATION and four grants");
    out.push(if role.bootstrap {
        let conninfo = scene.ask.conninfo;
        let verb = if scene.own_role_exists { "ALTER" } else { "CREATE" };
        let finding = finding
            .sql(format!("{verb} ROLE {OWN_ROLE} LOGIN REPLICATION;"))
            .config(scene.lines.config("source.url", &uri(conninfo, OWN_ROLE, &[])));
        let finding = if conninfo.has_password() {
            finding.shell(format!("psql '{}' -c '\\password {OWN_ROLE}'", uri(conninfo, user, &[])))
        } else {
            finding
        };
        finding.shell(format!(
            "postrider setup -p {} --url '{}'",
            scene.lines.pipeline,
            uri(conninfo, user, &[])
        ))
    } else {
        finding.sql(format!("ALTER ROLE {} NOSUPERUSER LOGIN REPLICATION;", ident(user))).shell(
            format!(
                "postrider setup -p {} --url '{}'",
                scene.lines.pipeline,
                uri(
                    scene.ask.login.unwrap_or(scene.ask.conninfo),
                    scene.ask.login.map_or(ADMIN, Conninfo::user),
                    &[]
                )
            ),
        )
    });
}

/// The name to look for.
pub(super) const fn own_role() -> &'static str {
    OWN_ROLE
}

/// What the role must be able to read and write.
pub(super) fn rights(scene: &Scene<'_>, out: &mut Vec<Finding>) {
    let Some(role) = &scene.role else { return };
    let name = ident(&role.name);
    if let (Some(table), Some(around), Some(_)) =
        (&scene.ask.names.table, &scene.around, &scene.table)
    {
        if around.readable {
            out.push(Finding::ok("table_select", format!("role {:?} may read {table}", role.name)));
        } else {
            out.push(
                Finding::warning("table_select", format!("role {:?} may not read {table}", role.name))
                    .why(
                        "Streaming does not need SELECT, but `repair`, `replay --source table` and the topic check do",
                    )
                    .sql(format!("GRANT USAGE ON SCHEMA {} TO {name};", ident(&table.schema)))
                    .sql(format!("GRANT SELECT ON TABLE {table} TO {name};")),
            );
        }
    }
    if scene.relay_owns && scene.ownership.is_none() {
        let login = scene.ask.login.unwrap_or(scene.ask.conninfo);
        let admin = scene.ask.login.map_or(ADMIN, Conninfo::user);
        out.push(
            Finding::warning(
                "schema_owner",
                format!("role {:?} owns schema \"postrider\" or tables in it", role.name),
            )
            .why(
                "Whoever has its login can add a trigger there, which runs with the rights of an administrator who \
                 uses the tables by hand (Postrider itself refuses that). setup by an administrator takes them over, \
                 and the relay keeps its rights on rows",
            )
            .shell(format!(
                "postrider setup -p {} --url '{}'",
                scene.lines.pipeline,
                uri(login, admin, &[])
            )),
        );
    }
    let stands = !matches!(scene.schema, Some(SchemaState::Missing | SchemaState::Empty));
    if stands && !scene.cursor_usable {
        out.push(
            Finding::error(
                "cursor_rights",
                format!("role {:?} may not use the tables of schema \"postrider\"", role.name),
            )
            .why("Postrider cannot store its position: nothing is ever confirmed")
            .sql(format!("GRANT USAGE ON SCHEMA postrider TO {name};"))
            .sql(format!(
                "GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA postrider TO {name};"
            )),
        );
    }
}
