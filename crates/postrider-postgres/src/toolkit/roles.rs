//! The kinds of roles that use the SQL toolkit, the statements that grant each its rights, and which roles have them.
//!
//! The statements are the files of `sql/toolkit/roles`, in which `:"role"` stands for the role, as in psql. The rights
//! of a kind are found again by a function that roles of this kind alone execute.

use crate::names::ident;
use pg_replication::error::SourceError;
use std::collections::BTreeMap;
use std::fmt;
use tokio_postgres::Client;

/// What stands for the role in a file of `sql/toolkit/roles`.
const PLACE: &str = ":\"role\"";

/// What a role does with the toolkit.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum RoleKind {
    /// Writes logs, and does the maintenance of logs and groups.
    Relay,
    /// Creates, drops and moves consumer groups.
    Administrator,
    /// Polls, commits, extends and releases.
    Worker,
    /// Reads logs and the state of groups.
    Reader,
}

impl RoleKind {
    /// Every kind, in the order of the documents.
    pub const ALL: [Self; 4] = [Self::Relay, Self::Administrator, Self::Worker, Self::Reader];

    /// The name of the kind, as the option of the command line has it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Relay => "relay",
            Self::Administrator => "administrator",
            Self::Worker => "worker",
            Self::Reader => "reader",
        }
    }

    /// The statements of this kind, with comments and the place of the role.
    const fn file(self) -> &'static str {
        match self {
            Self::Relay => include_str!("../../../../sql/toolkit/roles/relay.sql"),
            Self::Administrator => include_str!("../../../../sql/toolkit/roles/administrator.sql"),
            Self::Worker => include_str!("../../../../sql/toolkit/roles/worker.sql"),
            Self::Reader => include_str!("../../../../sql/toolkit/roles/reader.sql"),
        }
    }

    /// A function that only roles of this kind, and of the kinds that include it, may execute.
    const fn mark(self) -> &'static str {
        match self {
            Self::Relay => "log_take_over",
            Self::Administrator => "create_consumer_group",
            Self::Worker => "poll_outbox",
            Self::Reader => "log_read",
        }
    }
}

impl fmt::Display for RoleKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A role, and what it does with the toolkit.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct ToolkitRole {
    /// What it does.
    pub kind: RoleKind,
    /// The role, as stored in the catalog.
    pub name: String,
}

impl ToolkitRole {
    /// The statements that grant the role its rights.
    pub fn sql(&self) -> String {
        self.kind.file().trim_end().replace(PLACE, &ident(&self.name))
    }
}

/// Reads which roles have the rights of a kind by a grant of their own. A relay has the rights of every kind, an
/// administrator and a worker have those of a reader: the included kinds are not returned.
///
/// # Errors
/// An error of the server or of the connection.
pub async fn read(client: &Client) -> Result<Vec<ToolkitRole>, SourceError> {
    let failed = |e| SourceError::control("read which roles use the SQL toolkit", e);
    let sql = "SELECT DISTINCT r.rolname::pg_catalog.text, p.proname::pg_catalog.text \
               FROM pg_catalog.pg_proc p JOIN pg_catalog.pg_namespace n ON n.oid = p.pronamespace \
               CROSS JOIN LATERAL pg_catalog.aclexplode(p.proacl) a \
               JOIN pg_catalog.pg_roles r ON r.oid = a.grantee \
               WHERE n.nspname = 'postrider' AND a.grantee <> p.proowner AND a.privilege_type = 'EXECUTE' \
                 AND p.proname = ANY ($1::pg_catalog.text[]) ORDER BY 1, 2";
    let marks = RoleKind::ALL.map(RoleKind::mark);
    let mut found: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for row in client.query(sql, &[&marks.as_slice()]).await.map_err(failed)? {
        found
            .entry(row.try_get(0).map_err(failed)?)
            .or_default()
            .push(row.try_get(1).map_err(failed)?);
    }
    Ok(found.into_iter().flat_map(|(name, marks)| kinds_of(&name, &marks)).collect())
}

/// The kinds of a role that may execute these functions.
fn kinds_of(name: &str, marks: &[String]) -> Vec<ToolkitRole> {
    let has = |kind: RoleKind| marks.iter().any(|mark| mark == kind.mark());
    let mut kinds: Vec<RoleKind> = if has(RoleKind::Relay) {
        vec![RoleKind::Relay]
    } else {
        [RoleKind::Administrator, RoleKind::Worker].into_iter().filter(|kind| has(*kind)).collect()
    };
    if kinds.is_empty() && has(RoleKind::Reader) {
        kinds.push(RoleKind::Reader);
    }
    kinds.into_iter().map(|kind| ToolkitRole { kind, name: name.to_owned() }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kinds(marks: &[&str]) -> Vec<RoleKind> {
        let marks: Vec<String> = marks.iter().map(|mark| (*mark).to_owned()).collect();
        kinds_of("r", &marks).into_iter().map(|role| role.kind).collect()
    }

    #[test]
    fn a_kind_that_includes_another_is_named_alone() {
        let all = ["create_consumer_group", "log_read", "log_take_over", "poll_outbox"];
        assert_eq!(kinds(&all), [RoleKind::Relay]);
        assert_eq!(kinds(&["create_consumer_group", "log_read"]), [RoleKind::Administrator]);
        let both = kinds(&["create_consumer_group", "log_read", "poll_outbox"]);
        assert_eq!(both, [RoleKind::Administrator, RoleKind::Worker]);
        assert_eq!(kinds(&["log_read", "poll_outbox"]), [RoleKind::Worker]);
        assert_eq!(kinds(&["log_read"]), [RoleKind::Reader]);
        assert_eq!(kinds(&[]), []);
    }

    #[test]
    fn a_name_is_quoted_wherever_the_role_stands() {
        for kind in RoleKind::ALL {
            let sql = ToolkitRole { kind, name: "o\"b; DROP".to_owned() }.sql();
            assert!(!sql.contains(PLACE) && sql.contains("TO \"o\"\"b; DROP\";"), "{sql}");
        }
    }
}
