//! `postrider sql`: installation, upgrade, rights and uninstallation of the SQL toolkit, on every server version.

use crate::await_that::SOON;
use crate::managed::{Managed, said};
use crate::relay::{Relay, postrider, postrider_ok};
use crate::server::{Client, Database, Version, unique};
use crate::toolkit::{functions, install_toolkit, migrations, numbered, text};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

const OBJECTS: &str = "crates/postrider-postgres/src/toolkit/objects.sql";

/// A database of an administrator who may create schemas in it, and nothing more.
struct Place {
    database: Database,
    /// A superuser's session.
    sql: Client,
    admin: String,
    /// Roles of this test, which are dropped at its end.
    roles: Vec<String>,
}

impl Place {
    async fn new(version: Version, test: &str) -> Self {
        let database = Database::create(version, test).await;
        let sql = database.connect().await;
        let admin = unique("admin");
        sql.batch(&format!(
            "create role {admin} login; grant create on database {} to {admin}",
            database.name
        ))
        .await;
        Self { database, sql, admin: admin.clone(), roles: vec![admin] }
    }

    /// A role of this test that can log in.
    async fn role(&mut self, name: &str) -> String {
        let role = unique(name);
        self.sql.batch(&format!("create role {role} login")).await;
        self.roles.push(role.clone());
        role
    }

    /// The login of a role.
    fn url(&self, role: &str) -> String {
        self.database.url().replacen("postgres@", &format!("{role}@"), 1)
    }

    /// `postrider sql ARGS --url ADMIN`, which ends well.
    fn by_admin(&self, args: &[&str]) -> String {
        let url = self.url(&self.admin);
        ok(&[&["sql"][..], args, &["--url", &url]].concat())
    }

    /// A log of a relay with its events, moved from an outbox table.
    async fn log(&self, relay: &str, log: &str, events: u32) {
        self.sql.batch(include_str!("../../sql/layouts/postrider.sql")).await;
        self.sql
            .batch(&format!(
                "grant select, update, delete on outbox to \"{relay}\"; \
                 insert into outbox (aggregate_type, aggregate_id, event_type, payload) \
                 select 'order', i::text, 'T', to_json(i) from generate_series(1, {events}) i; \
                 set role \"{relay}\"; \
                 select postrider.create_log({log}, 4); select postrider.log_feed({log}, 'public.outbox'); \
                 reset role",
                log = quoted(log)
            ))
            .await;
    }

    async fn value(&self, sql: &str) -> String {
        self.sql.text(sql).await.unwrap_or_default()
    }

    async fn gone(self) {
        for role in &self.roles {
            self.sql
                .batch(&format!("drop owned by \"{role}\" cascade; drop role \"{role}\""))
                .await;
        }
    }
}

/// A literal.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}

/// `postrider ARGS` where there is no configuration.
fn plain(args: &[&str]) -> Output {
    let dir = tempfile::TempDir::new().expect("a directory");
    Command::new(env!("CARGO_BIN_EXE_postrider"))
        .args(args)
        .current_dir(dir.path())
        .env_remove("POSTRIDER_CONFIG")
        .stdin(Stdio::null())
        .output()
        .expect("postrider")
}

fn ok(args: &[&str]) -> String {
    let output = plain(args);
    let (code, text) = said(&output);
    assert_eq!(code, Some(0), "{args:?}: {text}");
    text
}

/// Runs SQL as a DBA does: the psql of the lowest version works with every server.
fn psql(url: &str, sql: &str) -> (Option<i32>, String) {
    let program = PathBuf::from(Version::Pg15.variable("BIN")).join("psql");
    let mut child = Command::new(program)
        .args(["-X", "-q", "-v", "ON_ERROR_STOP=1", "-f", "-", url])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("psql");
    // It ends at the first error, and does not read the rest.
    drop(child.stdin.take().expect("a pipe").write_all(sql.as_bytes()));
    said(&child.wait_with_output().expect("psql"))
}

/// What is in a schema, by kind and name.
async fn objects(sql: &Client, schema: &str) -> BTreeSet<String> {
    let list = format!(
        "select coalesce(string_agg(o.type || ' ' || o.identity, E'\\n'), '') from pg_depend d \
         join pg_namespace n on n.oid = d.refobjid and n.nspname = '{schema}' \
         cross join lateral pg_identify_object(d.classid, d.objid, 0) o \
         where d.refclassid = 'pg_namespace'::regclass and d.deptype = 'n'"
    );
    let text = sql.text(&list).await.unwrap_or_default();
    text.lines().map(str::to_owned).collect()
}

/// The parts of `objects.sql`, each with the query that reads its rows from the catalog.
const PARTS: [(&str, &str); 6] = [
    (
        "toolkit_relations(kind, name)",
        "select c.relkind::text, c.relname::text from pg_catalog.pg_class c \
         where c.relnamespace = 'postrider'::pg_catalog.regnamespace and c.relkind in ('r', 'p', 'v', 'S')",
    ),
    (
        "toolkit_defaults(rel, col, expr)",
        "select c.relname::text, a.attname::text, pg_catalog.pg_get_expr(d.adbin, d.adrelid) \
         from pg_catalog.pg_attrdef d \
         join pg_catalog.pg_attribute a on a.attrelid = d.adrelid and a.attnum = d.adnum \
         join pg_catalog.pg_class c on c.oid = d.adrelid \
         where c.relnamespace = 'postrider'::pg_catalog.regnamespace",
    ),
    (
        "toolkit_checks(rel, def)",
        "select r.relname::text, \
           pg_catalog.regexp_replace(pg_catalog.pg_get_constraintdef(c.oid), '^CHECK \\((.*)\\)$', '\\1') \
         from pg_catalog.pg_constraint c join pg_catalog.pg_class r on r.oid = c.conrelid \
         where c.connamespace = 'postrider'::pg_catalog.regnamespace and c.contype = 'c'",
    ),
    (
        "toolkit_predicates(rel, def)",
        "select r.relname::text, pg_catalog.pg_get_expr(i.indpred, i.indrelid) \
         from pg_catalog.pg_index i join pg_catalog.pg_class r on r.oid = i.indrelid \
         where r.relnamespace = 'postrider'::pg_catalog.regnamespace and i.indpred is not null",
    ),
    (
        "toolkit_keys(rel, def)",
        "select r.relname::text, pg_catalog.pg_get_constraintdef(c.oid) \
         from pg_catalog.pg_constraint c join pg_catalog.pg_class r on r.oid = c.conrelid \
         where c.connamespace = 'postrider'::pg_catalog.regnamespace and c.contype = 'f'",
    ),
    (
        "toolkit_routines(name, arguments, result)",
        "select p.proname::text, pg_catalog.pg_get_function_arguments(p.oid), \
           pg_catalog.pg_get_function_result(p.oid) from pg_catalog.pg_proc p \
         where p.pronamespace = 'postrider'::pg_catalog.regnamespace",
    ),
];

const OBJECTS_HEAD: &str = "\
-- What the SQL toolkit has in schema \"postrider\", as PostgreSQL 15 to 18 prints it with search_path = ''. The check of
-- the schema (schema_owner/foreign.sql) continues this text, and an uninstallation reads it. It is generated from an
-- installed toolkit: POSTRIDER_BLESS=1 scripts/test it objects_of_the_toolkit_are_listed
";

/// A row of `VALUES`, in lines of at most 120 columns.
fn values(cells: &[String]) -> String {
    let literal = |text: &str| format!("'{}'", text.replace('\'', "''"));
    let cells_of: Vec<String> = cells.iter().map(|cell| literal(cell)).collect();
    let row = format!("  ({})", cells_of.join(", "));
    if row.chars().count() <= 118 {
        return row;
    }
    let folded = cells.iter().map(|cell| {
        let characters: Vec<char> = cell.chars().collect();
        let pieces = characters.chunks(100).map(|piece| literal(&piece.iter().collect::<String>()));
        pieces.collect::<Vec<_>>().join("\n      ")
    });
    format!("  ({})", folded.collect::<Vec<_>>().join(",\n    "))
}

/// The text of `objects.sql` for a database that has nothing but the toolkit in schema `postrider`.
async fn listed(sql: &Client) -> String {
    let mut text = format!("{OBJECTS_HEAD}WITH ");
    sql.batch("set search_path = ''").await;
    for (head, query) in PARTS {
        let rows = sql.query(query, &[]).await.expect("the catalog");
        let columns = head.matches(',').count() + 1;
        let cells = rows.iter().map(|row| (0..columns).map(|at| row.get(at)).collect());
        let mut rows: Vec<Vec<String>> = cells.collect();
        rows.sort();
        let rows: Vec<String> = rows.iter().map(|cells| values(cells)).collect();
        if rows.is_empty() {
            let none = vec!["''::pg_catalog.text"; columns].join(", ");
            writeln!(text, "{head} AS (SELECT {none} WHERE false),").expect("a String");
        } else {
            writeln!(text, "{head} AS (VALUES\n{}),", rows.join(",\n")).expect("a String");
        }
    }
    sql.batch("reset search_path").await;
    text
}

/// The list decides what another role could have planted, and what an uninstallation drops.
#[tokio::test]
async fn objects_of_the_toolkit_are_listed() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(OBJECTS);
    for version in Version::ALL {
        let database = Database::create(version, "listed").await;
        let sql = database.connect().await;
        install_toolkit(&sql, "postgres").await;
        let now = listed(&sql).await;
        if std::env::var_os("POSTRIDER_BLESS").is_some() && version == Version::Pg15 {
            fs::write(&file, &now).expect("the list");
        }
        let known = fs::read_to_string(&file).expect("the list");
        assert!(
            known == now,
            "{OBJECTS} is not what PostgreSQL {} has; renew it with POSTRIDER_BLESS=1:\n{now}",
            version.major()
        );
    }
}

/// A DBA runs the printed text, again after an error, and again at any time.
#[tokio::test]
async fn printed_sql_runs_through_psql_any_number_of_times() {
    for version in Version::ALL {
        let mut place = Place::new(version, "printed").await;
        let relay = place.role("relay").await;
        let worker = place.role("worker").await;
        let url = place.url(&place.admin);
        let printed = ok(&["sql", "--print", "--relay", &relay, "--worker", &worker]);
        assert!(printed.starts_with("-- The SQL toolkit of Postrider, version "), "{printed}");
        let absent = ok(&["sql", "--print", "--reader", "nobody of this name"]);
        let (code, text) = psql(&url, &absent);
        assert!(code != Some(0) && text.contains("does not exist"), "{text}");
        assert!(objects(&place.sql, "postrider").await.is_empty(), "it is one transaction");
        for _ in 0..2 {
            let (code, text) = psql(&url, &printed);
            assert_eq!((code, text.as_str()), (Some(0), ""));
        }
        place.log(&relay, "orders", 3).await;
        let before = objects(&place.sql, "postrider").await;
        let (code, text) = psql(&url, &printed);
        assert_eq!((code, text.as_str()), (Some(0), ""));
        // The relay's tables are not the administrator's: the line for their owner is a warning.
        let reader = place.role("reader").await;
        let (code, text) = psql(&url, &ok(&["sql", "--print", "--reader", &reader]));
        assert_eq!(code, Some(0), "{text}");
        assert!(text.contains("SELECT postrider.log_grant('orders')"), "{text}");
        assert_eq!(objects(&place.sql, "postrider").await, before);
        let count = "select count(*)::text from postrider.log_read('orders', 0)";
        assert_eq!(place.value(count).await, "3");
        let installed =
            "select string_agg(number::text, ' ' order by number) from postrider.toolkit_migration";
        assert_eq!(place.value(installed).await, "1 2 3 4 5");
        place.gone().await;
    }
}

#[tokio::test]
async fn administrator_with_create_alone_installs_updates_and_removes() {
    for version in Version::ALL {
        let mut place = Place::new(version, "alone").await;
        let relay = place.role("relay").await;
        let text = place.by_admin(&["--version"]);
        assert!(text.contains("does not have it"), "{text}");
        let text = place.by_admin(&["--install", "--relay", &relay]);
        assert!(text.contains("installed version"), "{text}");
        assert!(text.contains(&format!("relay          \"{relay}\"")), "{text}");
        let text = place.by_admin(&["--install"]);
        assert!(text.contains("already"), "{text}");
        assert!(text.contains(&relay), "a role keeps its rights: {text}");
        let text = place.by_admin(&["--version", "--json"]);
        let json: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        assert_eq!(json["version"], json["installs"], "{text}");
        assert_eq!(json["roles"][0]["kind"], "relay", "{text}");
        let owners = "select string_agg(distinct r.rolname, ' ') from pg_roles r where r.oid in ( \
            select relowner from pg_class where relnamespace = 'postrider'::regnamespace \
            union select proowner from pg_proc where pronamespace = 'postrider'::regnamespace)";
        assert_eq!(place.value(owners).await, place.admin);
        place.by_admin(&["--uninstall", "--yes"]);
        let left = "select count(*)::text from pg_namespace where nspname like 'postrider%'";
        assert_eq!(place.value(left).await, "0");
        let text = place.by_admin(&["--uninstall", "--yes"]);
        assert!(text.contains("nothing to remove"), "{text}");
        place.gone().await;
    }
}

/// What each refusal names is enough to go on.
#[tokio::test]
async fn refusals_name_the_right_that_is_missing() {
    let place = Place::new(Version::Pg18, "refused").await;
    let (admin, database) = (&place.admin, &place.database.name);
    place.sql.batch(&format!("revoke create on database {database} from {admin}")).await;
    let url = place.url(admin);
    let refused = |args: &[&str]| {
        let (code, text) = said(&plain(&[&["sql"][..], args, &["--url", &url]].concat()));
        assert_ne!(code, Some(0), "{args:?}: {text}");
        (code.unwrap_or(-1), text)
    };
    let (code, text) = refused(&["--install"]);
    let line = format!("GRANT CREATE ON DATABASE \"{database}\" TO \"{admin}\";");
    assert!(code == 1 && text.contains(&line), "{text}");
    place.sql.batch(crate::managed::line(&text, "GRANT CREATE")).await;
    let (code, text) = refused(&["--install", "--worker", "no such"]);
    assert!(code == 1 && text.contains("CREATE ROLE \"no such\" LOGIN;"), "{text}");
    place.by_admin(&["--install"]);
    let (code, text) = refused(&["--uninstall"]);
    assert!(code == 2 && text.contains("--yes"), "{text}");
    place
        .sql
        .batch("insert into postrider.toolkit_migration (number, name) values (99, 'later')")
        .await;
    for args in [&["--install"][..], &["--uninstall", "--yes"]] {
        let (code, text) = refused(args);
        assert!(code == 1 && text.contains("version 99"), "{text}");
    }
    let (code, text) = psql(&url, &ok(&["sql", "--print"]));
    assert!(code != Some(0) && text.contains("later version"), "{text}");
    place.sql.batch("delete from postrider.toolkit_migration where number = 99").await;
    place.sql.batch("create table postrider.mine (i int)").await;
    for args in [&["--install"][..], &["--uninstall", "--yes"]] {
        let (code, text) = refused(args);
        assert!(code == 3 && text.contains("table postrider.mine"), "{text}");
    }
    // What is typed wrongly is refused before anything is read.
    for args in [&["sql"][..], &["sql", "--print", "--install"], &["sql", "--install", "--yes"]] {
        assert_eq!(plain(args).status.code(), Some(2), "{args:?}");
    }
    place.gone().await;
}

/// From every number of migrations that a database can have.
#[tokio::test]
async fn each_earlier_version_is_updated_with_its_logs() {
    let all = migrations();
    for version in Version::ALL {
        for from in 1..=all.len() {
            let mut place = Place::new(version, "updated").await;
            let relay = place.role("relay").await;
            place
                .sql
                .batch(&format!(
                    "set role {}; create schema postrider; create schema postrider_log; \
                     create table postrider.toolkit_migration (number integer primary key, name text not null, \
                       applied_at timestamptz not null default now())",
                    place.admin
                ))
                .await;
            for file in &all[..from] {
                let (number, name) = numbered(file);
                place.sql.batch(&text(file)).await;
                let row =
                    format!("insert into postrider.toolkit_migration values ({number}, '{name}')");
                place.sql.batch(&row).await;
            }
            // The first version has the functions of logs alone, the second one those of groups too, the third one
            // those of inboxes, the fifth one all.
            let all_functions = functions().len();
            let have = [0, 1, 3, all_functions - 1, all_functions - 1, all_functions][from];
            for file in &functions()[..have] {
                place.sql.batch(&text(file)).await;
            }
            place
                .sql
                .batch(&format!(
                    "grant usage on schema postrider to {relay}; grant usage, create on schema postrider_log to {relay}; \
                     grant all on all tables in schema postrider to {relay}; reset role"
                ))
                .await;
            place.log(&relay, "orders", 5).await;
            let text = place.by_admin(&["--install", "--relay", &relay]);
            let is_old = from < all.len();
            assert_eq!(text.contains("updated the SQL toolkit"), is_old, "{from}: {text}");
            let group = "select postrider.create_consumer_group('billing', 'orders', 'earliest')";
            let polled = "select count(*)::text from postrider.poll_outbox('billing', 'one')";
            place.sql.batch(&format!("set role {relay}; {group}")).await;
            assert_eq!(place.value(polled).await, "5");
            place.sql.batch("reset role").await;
            let numbers = "select string_agg(number::text, ' ' order by number) from postrider.toolkit_migration";
            let expected: Vec<String> = (1..=all.len()).map(|number| number.to_string()).collect();
            assert_eq!(place.value(numbers).await, expected.join(" "));
            place.gone().await;
        }
    }
}

/// The page's table: for each function, which of the four kinds of roles may call it.
fn page() -> BTreeMap<String, [bool; 4]> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/sql/install.md");
    let page = fs::read_to_string(path).expect("the page");
    let (_, table) = page
        .split_once("| function | relay | administrator | worker | reader |")
        .expect("the table");
    let mut found = BTreeMap::new();
    for row in table.lines().skip(2).take_while(|line| line.starts_with('|')) {
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        let [_, functions, relay, administrator, worker, reader, _] = cells.as_slice() else {
            panic!("a row of six cells: {row}");
        };
        let may = [relay, administrator, worker, reader].map(|cell| match *cell {
            "yes" => true,
            "no" => false,
            other => panic!("yes or no, not {other:?}: {row}"),
        });
        let names = functions.split('`').skip(1).step_by(2);
        found.extend(names.map(|name| (name.to_owned(), may)));
    }
    found
}

/// A call of each function that works for a role with all rights. `{lease}` is a lease of consumer `one`, `{own}` is an
/// inbox whose table belongs to the role, and the outbox of a table that does.
const CALLS: &[(&str, &str)] = &[
    ("check_name", "check_name('p_name', 'x')"),
    ("check_number", "check_number('p_max', 1, 1, 2)"),
    ("check_read_committed", "check_read_committed('poll_outbox')"),
    ("commit_offset", "commit_offset('billing', 'one', 1, {lease})"),
    ("consumer_heartbeat", "consumer_heartbeat('billing', 'two')"),
    ("consumer_lag", "consumer_lag('billing')"),
    ("create_consumer_group", "create_consumer_group('other', 'orders', 'earliest')"),
    ("create_inbox", "create_inbox('another')"),
    ("create_log", "create_log('another')"),
    ("disable_inbox_ordering", "disable_inbox_ordering('{own}')"),
    ("disable_inbox_priority", "disable_inbox_priority('{own}', true)"),
    ("disable_outbox", "disable_outbox('{own}', p_discard => true)"),
    ("drop_consumer_group", "drop_consumer_group('billing')"),
    ("drop_inbox", "drop_inbox('{own}', false, true)"),
    ("drop_log", "drop_log('unused')"),
    ("enable_inbox_ordering", "enable_inbox_ordering('{own}')"),
    ("enable_inbox_priority", "enable_inbox_priority('{own}')"),
    ("enable_inbox_tracking", "enable_inbox_tracking('adopted', 'public.outbox')"),
    ("enable_outbox", "enable_outbox('public.new_{own}')"),
    ("evict_consumer_group", "evict_consumer_group('billing')"),
    ("extend_lease", "extend_lease('billing', 'one', 60, {lease})"),
    ("group_append", "group_append(array(select s from postrider.group_state('billing') s))"),
    ("group_done_to", "group_done_to('billing')"),
    ("group_lock", "group_lock('billing', 'one', {lease})"),
    ("group_state", "group_state('billing')"),
    ("group_status", "group_status('orders')"),
    ("groups_hold", "groups_hold('orders')"),
    ("hash_partition", "hash_partition('x', 4)"),
    ("inbox_advance", "inbox_advance('c', 's', 'a', '00000001-0000000000000001-00000001')"),
    ("inbox_all_gaps", "inbox_all_gaps('mail')"),
    ("inbox_arrived", "inbox_arrived()"),
    ("inbox_check_name", "inbox_check_name('x')"),
    ("inbox_claim_lost", "inbox_claim_lost('mail', array['1'])"),
    ("inbox_day", "inbox_day(now())"),
    ("inbox_deleted", "inbox_deleted()"),
    ("inbox_done", "inbox_done('mail', array['1'])"),
    ("inbox_drain", "inbox_drain('{own}')"),
    ("inbox_extend", "inbox_extend('mail', array['1'], 1, '1 minute')"),
    ("inbox_fail", "inbox_fail('mail', '1', 'no')"),
    ("inbox_fold", "inbox_fold('mail')"),
    ("inbox_forget", "inbox_forget('14 days')"),
    ("inbox_get", "inbox_get('mail')"),
    ("inbox_grant", "inbox_grant('{own}')"),
    ("inbox_has_rule", "inbox_has_rule(postrider.inbox_get('mail'))"),
    ("inbox_heads", "inbox_heads(postrider.inbox_get('mail'), 1, now(), null)"),
    ("inbox_health", "inbox_health('mail')"),
    ("inbox_inserted", "inbox_inserted()"),
    ("inbox_is_my_partition", "inbox_is_my_partition('a', 0, 2)"),
    ("inbox_is_new", "inbox_is_new('c', 's', 'a', '1', null, '00000001')"),
    ("inbox_is_next", "inbox_is_next(postrider.inbox_get('mail'))"),
    ("inbox_key", "inbox_key('p_aggregate', 'x')"),
    ("inbox_lock", "inbox_lock(postrider.inbox_get('mail'), array['1'])"),
    ("inbox_next", "inbox_next('mail', 'one')"),
    ("inbox_number", "inbox_number(postrider.inbox_get('mail'))"),
    ("inbox_object", "inbox_object('dlq', 'mail')"),
    ("inbox_once", "inbox_once('c', 's', '1')"),
    ("inbox_ordering_gaps", "inbox_ordering_gaps('mail')"),
    ("inbox_passed", "inbox_passed(postrider.inbox_get('mail'), array['1'])"),
    ("inbox_recount", "inbox_recount('{own}')"),
    ("inbox_refuse", "inbox_refuse('c', 's', 'a', null)"),
    ("inbox_settle", "inbox_settle(postrider.inbox_get('mail'), array['a'])"),
    ("inbox_stats", "inbox_stats('mail')"),
    ("inbox_status", "inbox_status()"),
    ("inbox_table", "inbox_table(postrider.inbox_get('mail'))"),
    ("inbox_truncated", "inbox_truncated()"),
    ("inbox_updated", "inbox_updated()"),
    ("inbox_views", "inbox_views('{own}')"),
    ("lease_lost", "lease_lost('billing', 'one', {lease})"),
    ("lease_over", "lease_over(now(), now())"),
    (
        "log_append",
        "log_append('log_feed of public.outbox', 1, 0, 'x', '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}', \
         '{}', '{}', '{}', '{}', '{}', '{}', '{}')",
    ),
    ("log_begin", "log_begin('log_feed of public.outbox', 1)"),
    ("log_blockers", "log_blockers('orders', '1 day')"),
    ("log_children", "log_children('orders')"),
    ("log_evict", "log_evict('orders', '1 day', 'billing')"),
    ("log_evictable", "log_evictable('orders', '1 day')"),
    ("log_expired_to", "log_expired_to('orders', '1 day')"),
    ("log_extend", "log_extend('orders')"),
    ("log_feed", "log_feed('orders', 'public.outbox')"),
    ("log_gap", "log_gap('orders', 0, 3)"),
    ("log_grant", "log_grant('orders')"),
    ("log_head", "log_head('orders')"),
    (
        "log_move",
        "log_move('orders', 3, 1, array[4, 1, 2, 3]::bigint[], array[1, 1, 1, 1]::bigint[])",
    ),
    ("log_offset_at", "log_offset_at('orders', now())"),
    ("log_open", "log_open('unused', 'me')"),
    ("log_progress", "log_progress('log_feed of public.outbox', 'x')"),
    ("log_read", "log_read('orders', 0)"),
    ("log_retain", "log_retain('orders', '1 day')"),
    ("log_table_name", "log_table_name('x')"),
    ("log_take_over", "log_take_over('me')"),
    ("no_group", "no_group('none')"),
    ("outbox_add_group", "outbox_add_group('{own}', 'g')"),
    ("outbox_check_columns", "outbox_check_columns('public.new_{own}', null)"),
    ("outbox_cover", "outbox_cover('public.of_{own}', 'outbox_fn_{own}')"),
    ("outbox_create", "outbox_create('none')"),
    ("outbox_drop_group", "outbox_drop_group('{own}', 'g')"),
    ("outbox_function", "outbox_function('{own}')"),
    ("outbox_get", "outbox_get('{own}')"),
    ("outbox_grant", "outbox_grant('{own}')"),
    ("outbox_object", "outbox_object('outbox_', 'x')"),
    ("outbox_other_triggers", "outbox_other_triggers('public.of_{own}')"),
    ("outbox_owned", "outbox_owned('public.of_{own}')"),
    ("outbox_refresh", "outbox_refresh('{own}')"),
    ("outbox_rows_consumed", "outbox_rows_consumed('{own}', 1)"),
    ("outbox_source", "outbox_source('outbox_fn_{own}')"),
    ("outbox_status", "outbox_status('{own}')"),
    ("outbox_tables", "outbox_tables('public.of_{own}')"),
    ("outbox_triggers", "outbox_triggers('outbox_fn_{own}')"),
    ("outbox_unfit", "outbox_unfit('public.of_{own}')"),
    ("outbox_ways", "outbox_ways('public.of_{own}')"),
    ("outbox_writers_without_rights", "outbox_writers_without_rights('{own}')"),
    ("part_heads", "part_heads('orders')"),
    ("part_state", "part_state('billing', array[0]::smallint[])"),
    ("poll_outbox", "poll_outbox('billing', 'two')"),
    ("position_text", "position_text(1, '0/1', 1)"),
    ("reap_consumers", "reap_consumers()"),
    ("release_lease", "release_lease('billing', 'one', {lease})"),
    ("replay_inbox_messages", "replay_inbox_messages('mail', array['1'])"),
    ("resume_consumer_group", "resume_consumer_group('billing')"),
    ("seek_offset", "seek_offset('billing', null, 0)"),
    ("skip_inbox_gap", "skip_inbox_gap('mail', 'a')"),
    ("skip_inbox_messages", "skip_inbox_messages('{own}', array['1'], 'a reason')"),
    ("state_closed", "state_closed((select s from postrider.group_state('billing') s limit 1))"),
    ("sweep_states", "sweep_states()"),
];

/// Errors that these calls may end with when they are allowed: the groups' own, and what a helper raises by design.
fn is_an_answer(state: &str) -> bool {
    // A trigger's function answers that it is one.
    state.starts_with("PR1") || matches!(state, "0A000" | "22023")
}

/// No function and no table is open to everybody.
async fn closed_to_strangers(place: &mut Place, functions: &BTreeSet<String>) {
    let stranger = place.role("stranger").await;
    for name in functions {
        let open = format!(
            "select bool_or(has_function_privilege('{stranger}', oid, 'execute'))::text from pg_proc \
             where pronamespace = 'postrider'::regnamespace and proname = '{name}'"
        );
        assert_eq!(place.value(&open).await, "false", "{name}");
    }
    let open = format!(
        "select count(*)::text from pg_class c where relnamespace::regnamespace::text like 'postrider%' \
           and relkind in ('r', 'p', 'v') \
           and has_table_privilege('{stranger}', oid, 'select, insert, update, delete, truncate, references, trigger')"
    );
    assert_eq!(place.value(&open).await, "0");
}

/// Logs, a group, and inboxes for the calls. The roles are a relay and an administrator.
async fn set_the_stage(place: &Place, roles: &[String]) {
    let [relay, administrator, ..] = roles else { panic!("two roles") };
    place.log(relay, "orders", 3).await;
    for role in [relay, administrator] {
        place
            .sql
            .batch(&format!(
                "create table of_{role} (id int); alter table of_{role} owner to {role}; \
                 create table new_{role} (id int); alter table new_{role} owner to {role}; \
                 set role {role}; select postrider.enable_outbox('public.of_{role}', '{role}'); reset role"
            ))
            .await;
    }
    place
        .sql
        .batch(&format!(
            "set role {relay}; select postrider.create_log('unused'); \
             select postrider.create_consumer_group('billing', 'orders', 'earliest'); \
             select postrider.create_inbox('{relay}'); \
             set role {administrator}; select postrider.create_inbox('{administrator}'); \
             select postrider.create_inbox('mail'); select postrider.enable_inbox_ordering('mail'); reset role"
        ))
        .await;
}

#[tokio::test]
async fn each_kind_of_role_may_call_what_the_page_says_and_nothing_else() {
    const KINDS: [&str; 4] = ["relay", "administrator", "worker", "reader"];
    let page = page();
    for version in Version::ALL {
        let mut place = Place::new(version, "kinds").await;
        let mut roles = Vec::new();
        let mut args = vec!["--install".to_owned()];
        for kind in KINDS {
            let role = place.role(kind).await;
            args.extend([format!("--{kind}"), role.clone()]);
            roles.push(role);
        }
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        place.by_admin(&args);
        set_the_stage(&place, &roles).await;
        let lease = place
            .value("select lease::text from postrider.poll_outbox('billing', 'one', 1, 600)")
            .await;
        let named: BTreeSet<String> = CALLS.iter().map(|(name, _)| (*name).to_owned()).collect();
        let exist = place
            .value(
                "select string_agg(distinct proname, ' ') from pg_proc \
                 where pronamespace = 'postrider'::regnamespace",
            )
            .await;
        let exist: BTreeSet<String> = exist.split(' ').map(str::to_owned).collect();
        assert_eq!(named, exist, "each function is called");
        assert_eq!(
            page.keys().cloned().collect::<BTreeSet<_>>(),
            exist,
            "the page has each function"
        );
        let mut wrong = Vec::new();
        for (name, call) in CALLS {
            let call = call.replace("{lease}", &lease);
            for ((kind, role), may) in KINDS.iter().zip(&roles).zip(page[*name]) {
                let own = if *kind == "relay" { role } else { &roles[1] };
                let call = call.replace("{own}", own);
                place.sql.batch(&format!("begin; set local role {role}")).await;
                let answer = place.sql.simple_query(&format!("select postrider.{call}")).await;
                place.sql.batch("rollback").await;
                let state = answer.err().map(|error| {
                    error.code().map_or_else(String::new, |code| code.code().to_owned())
                });
                let is_right = match &state {
                    None => may,
                    Some(state) if state == "42501" => !may,
                    Some(state) => may && is_an_answer(state),
                };
                if !is_right {
                    wrong.push(format!("{kind} {call}: {state:?}, the page says {may}"));
                }
            }
        }
        assert!(wrong.is_empty(), "PostgreSQL {}: {wrong:#?}", version.major());
        closed_to_strangers(&mut place, &exist).await;
        place.gone().await;
    }
}

/// Roles that are added later may read the logs that exist, once their owner has let them.
#[tokio::test]
async fn role_that_is_added_later_reads_logs_that_exist() {
    for version in [Version::Pg15, Version::Pg18] {
        let mut place = Place::new(version, "later").await;
        let relay = place.role("relay").await;
        place.by_admin(&["--install", "--relay", &relay]);
        place.log(&relay, "o'rders", 2).await;
        let reader = place.role("reader").await;
        let text = place.by_admin(&["--install", "--reader", &reader]);
        let grant = crate::managed::line(&text, "SELECT postrider.log_grant");
        let read = "select count(*)::text from postrider.log_read('o''rders', 0)";
        let as_reader = Client::connect(&place.url(&reader)).await.expect("a session");
        assert!(as_reader.simple_query(read).await.is_err());
        let as_relay = Client::connect(&place.url(&relay)).await.expect("a session");
        as_relay.batch(grant).await;
        assert_eq!(as_reader.text(read).await.as_deref(), Some("2"));
        let text = place.by_admin(&["--install"]);
        assert!(!text.contains("log_grant"), "{text}");
        // A superuser may grant it on the way.
        let second = place.role("second").await;
        place.sql.batch(&format!("grant {relay} to {}", place.admin)).await;
        let text = place.by_admin(&["--install", "--reader", &second]);
        assert!(!text.contains("log_grant"), "{text}");
        let as_second = Client::connect(&place.url(&second)).await.expect("a session");
        assert_eq!(as_second.text(read).await.as_deref(), Some("2"));
        drop((as_second, as_reader, as_relay));
        place.gone().await;
    }
}

/// The same with inboxes.
#[tokio::test]
async fn role_that_is_added_later_uses_inboxes_that_exist() {
    for version in [Version::Pg15, Version::Pg18] {
        let mut place = Place::new(version, "later_inbox").await;
        let leader = place.role("leader").await;
        place.by_admin(&["--install", "--administrator", &leader]);
        let as_leader = Client::connect(&place.url(&leader)).await.expect("a session");
        as_leader.batch("select postrider.create_inbox('mail')").await;
        let worker = place.role("worker").await;
        let text = place.by_admin(&["--install", "--worker", &worker]);
        let grant = crate::managed::line(&text, "SELECT postrider.inbox_grant");
        let as_worker = Client::connect(&place.url(&worker)).await.expect("a session");
        let store = "insert into postrider_inbox.mail (event_id) values ('1')";
        assert!(as_worker.simple_query(store).await.is_err());
        as_leader.batch(grant).await;
        as_worker.batch(store).await;
        let done = "select postrider.inbox_done('mail', array_agg(event_id))::text \
                    from postrider.inbox_next('mail', 'one')";
        assert_eq!(as_worker.text(done).await.as_deref(), Some("1"));
        let text = place.by_admin(&["--install"]);
        assert!(!text.contains("inbox_grant"), "{text}");
        // The views of tiers come later.
        as_leader.batch("select postrider.enable_inbox_priority('mail')").await;
        for view in ["pending_mail", "dlq_mail", "stats_mail", "tier_mail_critical"] {
            as_worker.batch(&format!("select count(*) from postrider_inbox.{view}")).await;
        }
        // What the worker may not do.
        for call in ["drop_inbox('mail')", "inbox_drain('mail')", "skip_inbox_gap('mail', 'a')"] {
            let refused = as_worker.simple_query(&format!("select postrider.{call}")).await;
            let state = refused.err().and_then(|error| error.code().cloned());
            assert_eq!(
                state.map(|state| state.code().to_owned()).as_deref(),
                Some("42501"),
                "{call}"
            );
        }
        drop((as_worker, as_leader));
        place.gone().await;
    }
}

/// The same with table outboxes.
#[tokio::test]
async fn role_that_is_added_later_reads_outboxes_that_exist() {
    for version in [Version::Pg15, Version::Pg18] {
        let mut place = Place::new(version, "later_outbox").await;
        let leader = place.role("leader").await;
        place.by_admin(&["--install", "--administrator", &leader]);
        place
            .sql
            .batch(&format!(
                "create table sales (id int); alter table sales owner to {leader}; set role {leader}; \
                 select postrider.enable_outbox('public.sales', p_inline_threshold_rows => 0); \
                 insert into sales values (1); reset role"
            ))
            .await;
        let worker = place.role("worker").await;
        let text = place.by_admin(&["--install", "--worker", &worker]);
        let grant = crate::managed::line(&text, "SELECT postrider.outbox_grant");
        let as_worker = Client::connect(&place.url(&worker)).await.expect("a session");
        let read = "select count(*)::text from postrider_outbox.outbox_delta_rows_sales";
        assert!(as_worker.simple_query(read).await.is_err());
        let as_leader = Client::connect(&place.url(&leader)).await.expect("a session");
        as_leader.batch(grant).await;
        assert_eq!(as_worker.text(read).await.as_deref(), Some("1"));
        let consumed = "select postrider.outbox_rows_consumed('sales', 1)::text";
        assert_eq!(as_worker.text(consumed).await.as_deref(), Some("true"));
        let text = place.by_admin(&["--install"]);
        assert!(!text.contains("outbox_grant"), "{text}");
        for call in ["disable_outbox('sales')", "outbox_drop_group('sales', 'default')"] {
            let refused = as_worker.simple_query(&format!("select postrider.{call}")).await;
            assert!(refused.is_err(), "{call}");
        }
        drop((as_worker, as_leader));
        place.gone().await;
    }
}

/// Objects of a user in front of the server's own: each notes that it was used.
const HOSTILE: &str = "\
create sequence public.ran; grant usage on sequence public.ran to public; create schema hostile; \
create function hostile.note() returns boolean language plpgsql as $$ begin \
  perform pg_catalog.nextval('public.ran'); return true; end $$; \
create function hostile.md5(text) returns text language sql as $$ select hostile.note()::pg_catalog.text $$; \
create function hostile.now() returns timestamptz language sql as $$ select null::timestamptz where hostile.note() $$; \
create function hostile.clock_timestamp() returns timestamptz language sql \
  as $$ select pg_catalog.now() where hostile.note() $$; \
create function hostile.format(text, variadic text[]) returns text language sql as $$ select hostile.note()::pg_catalog.text $$; \
create function hostile.array_fill(bigint, integer[]) returns bigint[] language sql \
  as $$ select null::bigint[] where hostile.note() $$; \
create function hostile.octet_length(text) returns integer language sql as $$ select 1 where hostile.note() $$; \
create function hostile.quote_literal(text) returns text language sql as $$ select hostile.note()::pg_catalog.text $$; \
create function hostile.same(text, text) returns boolean language sql as $$ select hostile.note() $$; \
create operator hostile.= (leftarg = text, rightarg = text, function = hostile.same); \
create operator hostile.<> (leftarg = text, rightarg = text, function = hostile.same); \
create function hostile.more(bigint, bigint) returns boolean language sql as $$ select hostile.note() $$; \
create operator hostile.> (leftarg = bigint, rightarg = bigint, function = hostile.more); \
create operator hostile.>= (leftarg = bigint, rightarg = bigint, function = hostile.more); \
create function hostile.plus(bigint, bigint) returns bigint language sql as $$ select 1::bigint where hostile.note() $$; \
create operator hostile.+ (leftarg = bigint, rightarg = bigint, function = hostile.plus); \
create type hostile.text as (x pg_catalog.text); \
create function hostile.make(pg_catalog.text) returns hostile.text language sql \
  as $$ select row(hostile.note()::pg_catalog.text)::hostile.text $$; \
create cast (pg_catalog.text as hostile.text) with function hostile.make(pg_catalog.text) as implicit; \
create table hostile.event_log (name pg_catalog.text); create table hostile.consumer_group (name pg_catalog.text); \
grant usage on schema hostile to public; grant select on all tables in schema hostile to public";

const RAN: &str = "select is_called::text from public.ran";

/// The hostile objects are found first, in a session that names them as the server's own.
async fn would_run(place: &Place, role: &str) {
    let probe = Client::connect(&place.url(role)).await.expect("a session");
    probe.batch("select md5('x')").await;
    assert_eq!(place.value(RAN).await, "true");
    place.sql.batch("select setval('public.ran', 1, false)").await;
    probe.batch("select 'a'::pg_catalog.text = 'b'::pg_catalog.text").await;
    assert_eq!(place.value(RAN).await, "true");
    place.sql.batch("select setval('public.ran', 1, false)").await;
}

/// Temporary tables in front of the catalog's and the toolkit's.
const TEMPORARY: &str = "\
create temp table pg_class (oid oid, relname name, relnamespace oid, relowner oid, relkind \"char\"); \
create temp table pg_namespace (oid oid, nspname name); create temp table pg_proc (proname name); \
create temp table pg_roles (rolname name); create temp table pg_inherits (inhrelid oid); \
create temp table event_log (name pg_catalog.text); create temp table event_log_head (log pg_catalog.text); \
create temp table consumer_group (name pg_catalog.text); create temp table consumer_group_state (n bigint); \
create temp table toolkit_migration (number integer)";

const BY_ADMINISTRATOR: &[&str] = &[
    "select postrider.create_consumer_group('g', 'orders', 'earliest')",
    "select postrider.seek_offset('g', null, 0)",
    "select postrider.create_inbox('mail')",
    "select postrider.enable_inbox_ordering('mail', 'arrival')",
];

const BY_WORKER: &[&str] = &[
    "select postrider.consumer_heartbeat('g', 'one')",
    "select postrider.extend_lease('g', 'one', 60)",
    "select postrider.commit_offset('g', 'one', 4)",
    "select postrider.inbox_once('c', 's', '1', pg_catalog.now()), postrider.inbox_once('c', 's', '1')",
    "select postrider.inbox_is_new('c', 's', 'a', '1', '00000001-0000000000000001-00000001', null)",
    "insert into postrider_inbox.mail (event_id, aggregate_id) values ('1', 'a'), ('2', 'a')",
    "select postrider.inbox_done('mail', pg_catalog.array_agg(event_id)) \
     from postrider.inbox_next('mail', 'one')",
    "select postrider.inbox_fail('mail', event_id, 'no', claim) \
     from postrider.inbox_next('mail', 'one', 1, '1 minute')",
    "select postrider.inbox_health('mail'), (select count(*) from postrider.inbox_status())",
    "select count(*) from postrider.consumer_lag('g')",
    "select count(*) from postrider.consumer_group_lag",
    "select count(*) from postrider.consumer_offsets",
    "select count(*) from postrider.log_read('orders', 0)",
];

const BY_RELAY: &[&str] = &[
    "select postrider.create_log('second')",
    "select postrider.log_extend('second', 3)",
    "select postrider.log_take_over('me')",
    "select postrider.sweep_states()",
    "select postrider.inbox_forget('1 day')",
    "select postrider.inbox_fold('mail'), postrider.inbox_drain('mail')",
    "select count(*) from postrider.reap_consumers()",
    "select postrider.drop_log('second')",
];

async fn run(session: &Client, calls: &[&str]) {
    for call in calls {
        session.batch(call).await;
    }
}

#[tokio::test]
async fn hostile_objects_on_the_search_path_are_never_used() {
    for version in Version::ALL {
        let mut place = Place::new(version, "hostile").await;
        let relay = place.role("relay").await;
        let worker = place.role("worker").await;
        let leader = place.role("leader").await;
        place.sql.batch(HOSTILE).await;
        let path = "pg_temp, hostile, pg_catalog, public";
        place
            .sql
            .batch(&format!("alter database {} set search_path = {path}", place.database.name))
            .await;
        would_run(&place, &worker).await;

        let args = ["--relay", &relay, "--administrator", &leader, "--worker", &worker];
        let printed = ok(&[&["sql", "--print"][..], &args].concat());
        let (code, text) = psql(&place.url(&place.admin), &format!("{TEMPORARY};\n{printed}"));
        assert_eq!(code, Some(0), "{text}");
        place.by_admin(&["--install"]);
        assert_eq!(place.value(RAN).await, "false", "by the installation");

        place.log(&relay, "orders", 4).await;
        let hostile = |session: Client| async move {
            session.batch(&format!("set search_path = {path}; {TEMPORARY}")).await;
            session
        };
        let session = hostile(Client::connect(&place.url(&leader)).await.expect("a session")).await;
        run(&session, BY_ADMINISTRATOR).await;
        let session = hostile(Client::connect(&place.url(&worker)).await.expect("a session")).await;
        let polled = session
            .simple_query("select * from postrider.poll_outbox('g', 'one', 100, 600)")
            .await
            .expect("events");
        assert_eq!(
            polled
                .iter()
                .filter(|row| matches!(row, tokio_postgres::SimpleQueryMessage::Row(_)))
                .count(),
            4
        );
        run(&session, BY_WORKER).await;
        let session = hostile(Client::connect(&place.url(&relay)).await.expect("a session")).await;
        run(&session, BY_RELAY).await;
        assert_eq!(place.value(RAN).await, "false", "by a function");
        place.by_admin(&["--version"]);
        let text = place.by_admin(&["--install"]);
        assert!(text.contains("already"), "{text}");
        assert_eq!(place.value(RAN).await, "false");
        drop(session);
        place.gone().await;
    }
}

/// Postrider's own tables and the toolkit's are in one schema, whichever comes first.
#[tokio::test]
async fn setup_and_installation_come_in_any_order_and_leave_each_other_alone() {
    let rounds = [
        (Version::Pg15, true),
        (Version::Pg16, false),
        (Version::Pg17, true),
        (Version::Pg18, false),
        (Version::Pg18, true),
    ];
    for (version, toolkit_first) in rounds {
        let managed = Managed::new(version, "together", "replication", "").await;
        let admin_url = managed.database.url();
        let install = ["sql", "--install", "--url", &admin_url, "--relay", &managed.relay];
        let setup = ["setup", "--url", &admin_url, "--notify"];
        let both = if toolkit_first { [&install[..], &setup] } else { [&setup[..], &install] };
        for args in both {
            postrider_ok(&managed.config, args);
        }
        let log = format!(
            "set role {}; select postrider.create_log('orders'); reset role",
            managed.relay
        );
        managed.sql.batch(&log).await;
        // Each knows the objects of the other.
        let text = postrider_ok(&managed.config, &setup);
        assert!(text.contains("nothing is missing"), "{text}");
        let text = postrider_ok(&managed.config, &install);
        assert!(text.contains("already"), "{text}");
        postrider_ok(&managed.config, &["check", "--url", &admin_url]);
        postrider_ok(&managed.config, &["check"]);
        managed.streams().await;

        let before: BTreeSet<String> = objects(&managed.sql, "postrider").await;
        let logs = objects(&managed.sql, "postrider_log").await;
        let text =
            postrider_ok(&managed.config, &["setup", "--undo", "--yes", "--url", &admin_url]);
        assert!(text.contains("postrider sql --uninstall"), "{text}");
        let after = objects(&managed.sql, "postrider").await;
        let gone: Vec<&String> = before.difference(&after).collect();
        assert!(gone.iter().all(|name| is_own(name)), "{gone:?}");
        assert!(after.iter().all(|name| !is_own(name)), "{after:?}");
        assert_eq!(objects(&managed.sql, "postrider_log").await, logs);
        // The toolkit alone in the schema is not a schema of another version.
        let text =
            postrider_ok(&managed.config, &["setup", "--undo", "--yes", "--url", &admin_url]);
        assert!(text.contains("nothing to undo"), "{text}");
        postrider_ok(&managed.config, &setup);
        let text =
            postrider_ok(&managed.config, &["sql", "--uninstall", "--yes", "--url", &admin_url]);
        assert!(text.contains("postrider setup --undo"), "{text}");
        assert!(objects(&managed.sql, "postrider").await.iter().all(|name| is_own(name)));
        postrider_ok(&managed.config, &["check", "--url", &admin_url]);
        managed.streams().await;
        managed.gone().await;
    }
}

/// An object of `setup`.
fn is_own(object: &str) -> bool {
    let tables =
        ["migration", "cursor", "parked", "repair", "repair_page", "bookmark", "replay", "pause"];
    tables.iter().any(|table| object == format!("table postrider.{table}"))
        || object == "function postrider.notify_outbox()"
        || object.starts_with("index postrider.")
            && tables.iter().any(|table| object.starts_with(&format!("index postrider.{table}_")))
}

/// Who removes it sees the numbers first, and nothing of others goes.
#[tokio::test]
async fn uninstallation_says_what_is_lost_and_removes_what_is_the_toolkits() {
    for version in Version::ALL {
        let mut place = Place::new(version, "removed").await;
        let relay = place.role("relay").await;
        place.by_admin(&["--install", "--relay", &relay]);
        place.log(&relay, "orders", 5).await;
        place
            .sql
            .batch(&format!(
                "create table public.adopted (event_id text primary key, event_type text, processed_at timestamptz, \
                   retry_count integer, error text, received_at timestamptz); \
                 insert into public.adopted (event_id) values ('x'); grant select on public.adopted to {relay}; \
                 set role {relay}; select postrider.create_log('empty'); \
                 select postrider.create_consumer_group('billing', 'orders', 'earliest'); \
                 select postrider.create_inbox('mail'); select postrider.enable_inbox_priority('mail'); \
                 insert into postrider_inbox.mail (event_id) values ('1'), ('2'); \
                 select postrider.inbox_done('mail', '{{1}}'); \
                 select postrider.enable_inbox_tracking('adopted', 'public.adopted'); reset role; \
                 create table public.sales (id int); select postrider.enable_outbox('public.sales'); \
                 insert into public.sales values (1); insert into public.sales values (2); \
                 alter table public.sales owner to {admin}; alter table postrider_outbox.outbox_sales owner to {admin}; \
                 alter table postrider_outbox.outbox_delta_rows_sales owner to {admin}; \
                 alter view postrider_outbox.outbox_latest_sales owner to {admin}; \
                 alter function postrider_outbox.outbox_fn_sales() owner to {admin}; \
                 create view public.mine as select * from postrider_log.log_orders",
                admin = place.admin
            ))
            .await;
        let url = place.url(&place.admin);
        let before = objects(&place.sql, "postrider").await;
        let inboxes = objects(&place.sql, "postrider_inbox").await;
        let (code, text) = said(&plain(&["sql", "--uninstall", "--yes", "--url", &url]));
        assert_eq!(code, Some(1), "{text}");
        for words in [
            "log \"orders\": 5 events, in table postrider_log.\"log_orders\" of role",
            "log \"empty\": 0 events",
            "consumer group \"billing\" of log \"orders\": its position; 5 events not done",
            "inbox \"mail\": messages in table \"postrider_inbox\".\"mail\": 2, of them not processed: 1",
            "inbox \"adopted\": its views; table \"public\".\"adopted\" stays",
            "table outbox \"sales\" of table public.sales: 2 events, and the rows of its claim checks",
            "view public.mine",
        ] {
            assert!(text.contains(words), "{words}: {text}");
        }
        assert_eq!(objects(&place.sql, "postrider").await, before, "nothing was dropped");
        assert_eq!(objects(&place.sql, "postrider_inbox").await, inboxes, "nothing was dropped");
        place.sql.batch("drop view public.mine; create table postrider_log.mine (i int)").await;
        let text = place.by_admin(&["--uninstall", "--yes"]);
        assert!(text.contains("objects that belong to no log: postrider_log.mine"), "{text}");
        assert_eq!(
            place.value("select string_agg(nspname, ' ') from pg_namespace where nspname like 'postrider%'").await,
            "postrider_log"
        );
        assert_eq!(
            place.value("select count(*)::text from public.outbox").await,
            "0",
            "the outbox stays"
        );
        assert_eq!(place.value("select count(*)::text from public.adopted").await, "1");
        place.sql.batch("insert into public.sales values (3)").await;
        assert_eq!(
            place.value("select count(*)::text from public.sales").await,
            "3",
            "no trigger is left"
        );
        // Installed again, it is empty.
        place.by_admin(&["--install", "--relay", &relay]);
        assert_eq!(place.value("select count(*)::text from postrider.event_log").await, "0");
        place.sql.batch("drop table postrider_log.mine").await;
        place.by_admin(&["--uninstall", "--yes"]);
        place.gone().await;
    }
}

#[tokio::test]
async fn names_with_quotes_and_of_63_bytes_are_roles_and_logs() {
    for version in [Version::Pg15, Version::Pg18] {
        let mut place = Place::new(version, "names").await;
        let tag = format!("{:08x}", fastrand::u32(..));
        let quotes = format!("o\"'b $postrider$ ;-- {tag}");
        let long = format!("{tag}{}", "é".repeat(27)) + "x";
        assert_eq!(long.len(), 63);
        for role in [&quotes, &long] {
            let name = role.replace('"', "\"\"");
            place.sql.batch(&format!("create role \"{name}\" login")).await;
            place.roles.push(name);
        }
        place.by_admin(&["--install", "--relay", &quotes, "--worker", &long]);
        let printed = ok(&["sql", "--print", "--relay", &quotes, "--worker", &long]);
        let (code, text) = psql(&place.url(&place.admin), &printed);
        assert_eq!(code, Some(0), "{text}");
        let text = place.by_admin(&["--version", "--json"]);
        let json: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        let names: BTreeSet<&str> = json["roles"]
            .as_array()
            .expect("roles")
            .iter()
            .filter_map(|role| role["role"].as_str())
            .collect();
        assert_eq!(names, BTreeSet::from([quotes.as_str(), long.as_str()]));
        let odd = format!("{long}\"'; drop table");
        place.log(&quotes.replace('"', "\"\""), &odd, 3).await;
        let read = format!("select count(*)::text from postrider.log_read({}, 0)", quoted(&odd));
        place.sql.batch(&format!("set role \"{long}\"")).await;
        assert_eq!(place.value(&read).await, "3");
        place.sql.batch("reset role").await;
        let text = place.by_admin(&["--uninstall", "--yes"]);
        assert!(text.contains("3 events"), "{text}");
        assert!(objects(&place.sql, "postrider_log").await.is_empty());
        place.gone().await;
    }
}

/// The relay's role owned the schema, and has written one of the toolkit's functions: its body runs with the rights of
/// whoever calls it, until setup or an installation has taken the schema over.
#[tokio::test]
async fn functions_that_another_role_has_written_are_written_again() {
    for version in [Version::Pg15, Version::Pg18] {
        for by_setup in [true, false] {
            let managed = Managed::new(version, "written", "replication", "").await;
            let (sql, relay) = (&managed.sql, &managed.relay);
            let url = managed.database.url();
            let install = ["sql", "--install", "--url", &url, "--relay", relay];
            postrider_ok(&managed.config, &["setup", "--url", &url]);
            postrider_ok(&managed.config, &install);
            sql.batch(
                "create table public.ran (by name); grant insert on public.ran to public; \
                 create function public.probe() returns void language sql \
                   as $$ insert into public.ran values (current_user) $$",
            )
            .await;
            sql.batch(&format!(
                "do $$ declare o record; begin \
                   for o in select oid::regprocedure::text as name from pg_proc \
                     where pronamespace = 'postrider'::regnamespace loop \
                     execute format('alter routine %s owner to {relay}', o.name); end loop; \
                   for o in select oid::regclass::text as name from pg_class \
                     where relnamespace = 'postrider'::regnamespace and relkind in ('r', 'v', 'S') loop \
                     execute format('alter table %s owner to {relay}', o.name); end loop; end $$; \
                 grant create on schema postrider to {relay}; set role {relay}; \
                 create or replace function postrider.hash_partition(p_key text, p_partitions integer) returns integer \
                   language sql security definer as $$ select public.probe(); select 1 $$; \
                 create rule evil as on insert to postrider.consumer_group_lag do instead select public.probe(); \
                 reset role"
            ))
            .await;
            let (code, text) = said(&postrider(&managed.config, &["check", "--url", &url]));
            assert!(
                code == Some(1) && text.contains("rule evil on postrider.consumer_group_lag"),
                "{text}"
            );
            let (code, text) = said(&postrider(&managed.config, &install));
            assert!(
                code == Some(3) && text.contains("rule evil on postrider.consumer_group_lag"),
                "{text}"
            );
            sql.batch(crate::managed::line(&text, "DROP RULE")).await;
            let taken = if by_setup {
                postrider_ok(&managed.config, &["setup", "--url", &url])
            } else {
                postrider_ok(&managed.config, &install)
            };
            assert!(taken.contains("take ownership of schema"), "{taken}");
            sql.batch("select postrider.hash_partition('x', 4)").await;
            assert_eq!(
                sql.text("select count(*)::text from public.ran").await.as_deref(),
                Some("0")
            );
            let definer = "select count(*)::text from pg_proc where pronamespace = 'postrider'::regnamespace and prosecdef";
            assert_eq!(sql.text(definer).await.as_deref(), Some("0"));
            postrider_ok(&managed.config, &["check", "--url", &url]);
            // The role that owned it still calls it.
            sql.batch(&format!(
                "set role {relay}; select postrider.create_log('kept'); \
                 select postrider.create_consumer_group('kept', 'kept'); \
                 select postrider.seek_offset('kept', null, 0); select postrider.sweep_states(); reset role"
            ))
            .await;
            managed.streams().await;
            sql.batch("drop table public.ran cascade; drop function public.probe() cascade").await;
            managed.gone().await;
        }
    }
}

/// A relay that runs is not disturbed by an installation beside it.
#[tokio::test]
async fn installation_beside_a_running_relay_is_not_noticed() {
    let managed = Managed::new(Version::Pg18, "beside", "replication", "").await;
    let url = managed.database.url();
    postrider_ok(&managed.config, &["setup", "--url", &url]);
    let relay = Relay::spawn(&managed.config);
    relay.await_state("streaming", SOON).await;
    for _ in 0..3 {
        postrider_ok(
            &managed.config,
            &["sql", "--install", "--url", &url, "--relay", &managed.relay],
        );
    }
    relay.await_state("streaming", SOON).await;
    assert_eq!(relay.terminate(SOON).await.code, Some(0));
    managed.gone().await;
}
