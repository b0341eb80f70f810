//! The script of an installation, which `postrider sql --print` prints for a DBA and `--install` runs: one transaction,
//! the same text for an empty database and for one that has the toolkit.

use super::files::{MIGRATION_TABLE, VERSION, objects_sql};
use super::roles::ToolkitRole;
use crate::schema_owner::{self, UNTRUSTED};
use std::fmt::Write as _;

/// The SQLSTATE that the script raises if the database has a later version of the toolkit.
pub const NEWER: &str = "PR100";

/// How long a statement waits for a lock. Unit: as PostgreSQL writes it.
const LOCK_TIMEOUT: &str = "5s";

/// The settings of the transaction. With `pg_temp` last, no temporary object is found in place of a function or a type
/// of the server.
fn settings() -> String {
    format!(
        "BEGIN ISOLATION LEVEL READ COMMITTED;\nSET LOCAL lock_timeout = '{LOCK_TIMEOUT}';\n\
         SET LOCAL search_path = pg_catalog, pg_temp;\nSET LOCAL client_min_messages = warning;\n"
    )
}

/// Statements as a transaction, after the check that no other role could have put code into schema `postrider`.
pub(super) fn guarded(sql: &str) -> String {
    format!("{}{}{sql}\nCOMMIT;\n", settings(), schema_owner::guard())
}

/// The script: creates or updates the toolkit, and grants these roles their rights.
pub fn script(roles: &[ToolkitRole]) -> String {
    let mut sql = header();
    sql.push_str(&settings());
    let mut part = |title: &str, text: &str| {
        // Writing to a String does not fail.
        write!(sql, "\n-- {title}\n{}\n", text.trim_end()).unwrap_or_default();
    };
    part(
        "1. Nothing that another role could have put into schema postrider.",
        &schema_owner::guard(),
    );
    part(
        "2. Schemas, and the table of versions.",
        &format!("{SCHEMAS}{MIGRATION_TABLE}\n{}", newer()),
    );
    part("3. Tables that are missing; all functions and views.", &objects_sql());
    part("4. Rights.", PUBLIC);
    for role in roles {
        part(&format!("The rights of a role, as {}:", role.kind), &role.sql());
    }
    part(
        "The roles with these rights may read the logs and use the inboxes and outboxes that exist.",
        LOGS,
    );
    sql.push_str(INBOXES);
    sql.push_str(OUTBOXES);
    sql.push_str("\nCOMMIT;\n");
    sql
}

fn header() -> String {
    format!(
        "\
-- The SQL toolkit of Postrider, version {VERSION} (postrider {}): event logs, consumer groups, inboxes and table
-- outboxes in plain SQL.
-- PostgreSQL 15 or later; no extension, no superuser.
--
-- Run it in the database that is to have the logs: psql -X -v ON_ERROR_STOP=1 -f FILE URL
-- It is one transaction, and can be run any number of times. Rows and tables that exist stay as they are.
--
--   1. It stops (SQLSTATE {UNTRUSTED}) if schema postrider has objects of others, or another owner than this role.
--   2. It creates schema postrider for tables and functions, schema postrider_log for the events of logs, schema
--      postrider_inbox for the messages of inboxes, and schema postrider_outbox for the events of tables.
--      It stops (SQLSTATE {NEWER}) if the database has a later version of the toolkit.
--   3. It creates the tables that are missing, and writes all functions again.
--   4. It revokes EXECUTE on the functions from PUBLIC, and grants rights to the roles that are named at the end.
--
-- The first time it needs CREATE on the database; later the role that ran it then. postrider sql --uninstall removes
-- everything again.

",
        env!("CARGO_PKG_VERSION")
    )
}

/// `CREATE SCHEMA IF NOT EXISTS` would need CREATE on the database also for a schema that exists.
const SCHEMAS: &str = "\
DO $postrider$ BEGIN
    IF NOT EXISTS (SELECT FROM pg_catalog.pg_namespace WHERE nspname = 'postrider') THEN
        CREATE SCHEMA postrider;
    END IF;
    IF NOT EXISTS (SELECT FROM pg_catalog.pg_namespace WHERE nspname = 'postrider_log') THEN
        CREATE SCHEMA postrider_log;
    END IF;
    IF NOT EXISTS (SELECT FROM pg_catalog.pg_namespace WHERE nspname = 'postrider_inbox') THEN
        CREATE SCHEMA postrider_inbox;
    END IF;
END $postrider$;
";

/// Two installations wait for each other here. A later version is left alone.
fn newer() -> String {
    format!(
        "LOCK TABLE postrider.toolkit_migration IN SHARE ROW EXCLUSIVE MODE;\n\
         DO $postrider$ BEGIN\n    \
         IF EXISTS (SELECT FROM postrider.toolkit_migration WHERE number > {VERSION}) THEN\n        \
         RAISE EXCEPTION 'the database has a later version of the SQL toolkit than {VERSION}'\n            \
         USING ERRCODE = '{NEWER}', HINT = 'Use postrider of that version.';\n    \
         END IF;\nEND $postrider$;\n"
    )
}

/// No other role adds objects to the schemas or code to the tables, and no function can be called without a grant.
const PUBLIC: &str = "\
REVOKE CREATE ON SCHEMA postrider, postrider_log, postrider_inbox, postrider_outbox FROM PUBLIC;
REVOKE TRIGGER, REFERENCES, TRUNCATE ON ALL TABLES IN SCHEMA postrider FROM PUBLIC;
REVOKE EXECUTE ON ALL FUNCTIONS IN SCHEMA postrider FROM PUBLIC;
";

/// The tables of logs belong to the relays that created them: only their owner, a member of it or a superuser can grant
/// rights on them.
const LOGS: &str = "\
DO $postrider$
DECLARE
    l record;
BEGIN
    FOR l IN
        SELECT e.name, pg_catalog.pg_has_role(c.relowner, 'USAGE') AS mine,
            pg_catalog.pg_get_userbyid(c.relowner) AS owner
        FROM postrider.event_log e JOIN pg_catalog.pg_class c ON c.relname = e.table_name
        JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace AND n.nspname = 'postrider_log'
        WHERE EXISTS (
            SELECT FROM pg_catalog.pg_class x CROSS JOIN LATERAL pg_catalog.aclexplode(x.relacl) a
            WHERE x.oid = 'postrider.event_log'::pg_catalog.regclass AND a.privilege_type = 'SELECT'
              AND NOT CASE WHEN a.grantee = 0 THEN pg_catalog.has_table_privilege('public', c.oid, 'SELECT')
                ELSE pg_catalog.has_table_privilege(a.grantee, c.oid, 'SELECT') END)
        ORDER BY e.name
    LOOP
        IF l.mine THEN
            PERFORM postrider.log_grant(l.name);
        ELSE
            RAISE WARNING 'the table of log \"%\" belongs to role \"%\"; as that role: SELECT postrider.log_grant(%);',
                l.name, l.owner, pg_catalog.quote_literal(l.name);
        END IF;
    END LOOP;
END $postrider$;
";

/// The same for inboxes, whose tables belong to the roles that created them.
const INBOXES: &str = "\
DO $postrider$
DECLARE
    i record;
BEGIN
    FOR i IN
        SELECT x.name, pg_catalog.pg_has_role(c.relowner, 'USAGE') AS mine,
            pg_catalog.pg_get_userbyid(c.relowner) AS owner, x.is_managed AND EXISTS (
                SELECT FROM pg_catalog.pg_class l CROSS JOIN LATERAL pg_catalog.aclexplode(l.relacl) a
                WHERE l.oid = 'postrider.inbox'::pg_catalog.regclass AND a.privilege_type = 'SELECT'
                  AND NOT CASE WHEN a.grantee = 0 THEN pg_catalog.has_table_privilege('public', c.oid, 'SELECT')
                    ELSE pg_catalog.has_table_privilege(a.grantee, c.oid, 'SELECT') END) AS is_closed
        FROM postrider.inbox x JOIN pg_catalog.pg_namespace n ON n.nspname = x.table_schema
        JOIN pg_catalog.pg_class c ON c.relnamespace = n.oid AND c.relname = x.table_name
        ORDER BY x.name
    LOOP
        IF i.mine THEN
            PERFORM postrider.inbox_grant(i.name);
        ELSIF i.is_closed THEN
            RAISE WARNING 'inbox \"%\" belongs to role \"%\"; as that role: SELECT postrider.inbox_grant(%);',
                i.name, i.owner, pg_catalog.quote_literal(i.name);
        END IF;
    END LOOP;
END $postrider$;
";

/// The same for table outboxes. A role that can write the table gets the rights of its triggers too.
const OUTBOXES: &str = "\
DO $postrider$
DECLARE
    o record;
BEGIN
    FOR o IN
        SELECT x.name, pg_catalog.pg_has_role(c.relowner, 'USAGE') AS mine,
            pg_catalog.pg_get_userbyid(c.relowner) AS owner, EXISTS (
                SELECT FROM pg_catalog.pg_class l CROSS JOIN LATERAL pg_catalog.aclexplode(l.relacl) a
                WHERE l.oid = 'postrider.table_outbox'::pg_catalog.regclass AND a.privilege_type = 'SELECT'
                  AND NOT CASE WHEN a.grantee = 0 THEN pg_catalog.has_table_privilege('public', c.oid, 'SELECT')
                    ELSE pg_catalog.has_table_privilege(a.grantee, c.oid, 'SELECT') END) AS is_closed
        FROM postrider.table_outbox x JOIN pg_catalog.pg_namespace n ON n.nspname = 'postrider_outbox'
        JOIN pg_catalog.pg_class c ON c.relnamespace = n.oid AND c.relname = x.outbox_table
        ORDER BY x.name
    LOOP
        IF o.mine THEN
            PERFORM postrider.outbox_grant(o.name);
        ELSIF o.is_closed THEN
            RAISE WARNING 'outbox \"%\" belongs to role \"%\"; as that role: SELECT postrider.outbox_grant(%);',
                o.name, o.owner, pg_catalog.quote_literal(o.name);
        END IF;
    END LOOP;
END $postrider$;
";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::toolkit::roles::RoleKind;

    #[test]
    fn the_script_is_one_transaction_and_has_every_part() {
        let role = |kind, name: &str| ToolkitRole { kind, name: name.to_owned() };
        let text = script(&[role(RoleKind::Relay, "jockey"), role(RoleKind::Worker, "a\nb")]);
        let ends = |word: &str| text.lines().filter(|line| *line == word).count();
        assert_eq!(
            (ends("BEGIN ISOLATION LEVEL READ COMMITTED;"), ends("COMMIT;")),
            (1, 1),
            "{text}"
        );
        for words in
            ["CREATE TABLE IF NOT EXISTS postrider.event_log (", "TO \"jockey\";", "FROM PUBLIC;"]
        {
            assert!(text.contains(words), "{words}");
        }
        // A name is in quotes, and in no comment, which a line feed would end.
        let comments: Vec<&str> = text.lines().filter(|line| line.starts_with("--")).collect();
        assert!(comments.iter().all(|line| !line.contains("jockey") && !line.contains("\"a")));
        assert!(text.contains("TO \"a\nb\";"), "{text}");
    }
}
