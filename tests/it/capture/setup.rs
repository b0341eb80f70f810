//! `postrider setup` of captured tables: what it creates, which rights it needs, and that the application's statements
//! go on.

use super::{BOTH, TABLES, finding, findings, ours, said};
use crate::await_that::SOON;
use crate::check::Patient;
use crate::halted::run_to_halt;
use crate::pipeline::Pipeline;
use crate::relay::{postrider, postrider_ok};
use crate::server::{Client, Version, describe, unique};

/// A table that can be captured, and statements of the application.
struct Accepted {
    name: &'static str,
    /// The oldest version that has it.
    since: u32,
    ddl: &'static str,
    capture: &'static str,
    /// Statements that must succeed after setup, with `; ` between them.
    application: &'static str,
}

const ACCEPTED: &[Accepted] = &[
    Accepted {
        name: "primary key",
        since: 15,
        ddl: "create table t (id int primary key, a text)",
        capture: "tables = [\"t\"]",
        application: "update t set id = 3, a = 'c' where id = 1; delete from t where id = 2; truncate t",
    },
    Accepted {
        name: "unique index",
        since: 15,
        ddl: "create table t (id int not null, a text); create unique index i on t (id) include (a); \
              alter table t replica identity using index i",
        capture: "tables = [\"t\"]",
        application: "update t set id = 3, a = 'c' where id = 1; delete from t where id = 2; truncate t",
    },
    Accepted {
        name: "whole row",
        since: 15,
        ddl: "create table t (id int, a text); alter table t replica identity full",
        capture: "tables = [\"t\"]",
        application: "update t set a = 'c' where id = 1; delete from t where id = 2; truncate t",
    },
    Accepted {
        name: "list of columns",
        since: 15,
        ddl: "create table t (id int primary key, a text, secret text)",
        capture: "tables = [\"t\"]\ncolumns = { t = [\"id\", \"a\"] }",
        application: "update t set id = 3, secret = 'c' where id = 1; delete from t where id = 2; truncate t",
    },
    Accepted {
        name: "partitioned table with a primary key",
        since: 15,
        ddl: "create table t (id int, a text, primary key (id)) partition by range (id); \
              create table t1 partition of t for values from (0) to (10)",
        capture: "tables = [\"t\"]",
        application: "create table t2 partition of t for values from (10) to (20); update t set id = 11 where id = 1; \
                      update t2 set a = 'd'; delete from t1 where id = 2; truncate t",
    },
    Accepted {
        name: "partitioned table whose rows are identified whole",
        since: 15,
        ddl: "create table t (id int, a text) partition by range (id); \
              create table t1 partition of t for values from (0) to (10); \
              alter table t replica identity full; alter table t1 replica identity full",
        capture: "tables = [\"t\"]",
        application: "update t set a = 'c' where id = 1; delete from t1 where id = 2; truncate t",
    },
    Accepted {
        name: "stored generated column, rows identified whole",
        since: 15,
        ddl: "create table t (id int, a text, b int generated always as (id + 1) stored); \
              alter table t replica identity full",
        capture: "tables = [\"t\"]",
        application: "update t set a = 'c' where id = 1; delete from t where id = 2; truncate t",
    },
    Accepted {
        name: "stored generated column in the key",
        since: 18,
        ddl: "create table t (id int, a text, b int generated always as (id + 1) stored primary key)",
        capture: "tables = [\"t\"]",
        application: "update t set id = 5 where id = 1; delete from t where id = 2; truncate t",
    },
    Accepted {
        name: "stored generated column in a list of columns",
        since: 18,
        ddl: "create table t (id int primary key, a text, b int generated always as (id + 1) stored)",
        capture: "tables = [\"t\"]\ncolumns = { t = [\"id\", \"b\"] }",
        application: "update t set id = 5 where id = 1; delete from t where id = 2; truncate t",
    },
    Accepted {
        name: "virtual generated column beside a primary key",
        since: 18,
        ddl: "create table t (id int primary key, a text, b int generated always as (id + 1) virtual)",
        capture: "tables = [\"t\"]",
        application: "update t set id = 5 where id = 1; delete from t where id = 2; truncate t",
    },
    Accepted {
        name: "child that inherits and has no identity",
        since: 15,
        ddl: "create table t (id int primary key, a text); create table child () inherits (t)",
        capture: "tables = [\"t\"]",
        application: "insert into child (id) values (7); update child set id = 8; delete from child; update t set a = 'x'",
    },
];

fn major(version: Version) -> u32 {
    match version {
        Version::Pg15 => 15,
        Version::Pg16 => 16,
        Version::Pg17 => 17,
        Version::Pg18 => 18,
    }
}

#[tokio::test]
async fn application_updates_and_deletes_after_setup_in_every_accepted_case() {
    for version in [Version::Pg15, Version::Pg18] {
        for case in ACCEPTED.iter().filter(|case| case.since <= major(version)) {
            let name = case.name;
            let pipeline = Pipeline::capturing(version, "accepted", case.ddl, case.capture).await;
            postrider_ok(&pipeline.config, &["setup"]);
            pipeline.sql.batch("insert into t (id, a) values (1, 'a'), (2, 'b')").await;
            for statement in case.application.split("; ") {
                let done = pipeline.sql.simple_query(statement).await;
                done.unwrap_or_else(|error| {
                    panic!("{version:?}, {name}: {statement}: {}", describe(&error))
                });
            }
            let errors: Vec<_> =
                findings(&pipeline).into_iter().filter(|of| of["severity"] == "error").collect();
            // The topic is not asked for by the server that has it: only what concerns the table counts.
            let of_capture = errors.iter().filter(|of| of["id"].to_string().contains("capture"));
            assert_eq!(of_capture.count(), 0, "{version:?}, {name}: {errors:#?}");
            let again = postrider_ok(&pipeline.config, &["setup"]);
            assert!(again.contains("nothing is missing"), "{name}: {again}");
        }
    }
}

/// What setup creates is exactly what is captured.
#[tokio::test]
async fn publication_publishes_every_change_of_exactly_these_tables_and_columns() {
    for version in Version::ALL {
        let capture = format!("{BOTH}\ncolumns = {{ orders = [\"total\", \"id\"] }}");
        let pipeline = Pipeline::capturing(version, "exactly", TABLES, &capture).await;
        let text = postrider_ok(&pipeline.config, &["setup"]);
        assert!(text.contains("captured tables \"public\".\"orders\""), "{text}");
        let flags = "select concat(pubinsert, pubupdate, pubdelete, pubtruncate, pubviaroot, puballtables) \
                     from pg_publication";
        assert_eq!(pipeline.sql.text(flags).await.as_deref(), Some("tttttf"));
        let tables = "select string_agg(tablename || ' ' || attnames::text, '; ' order by tablename) \
                      from pg_publication_tables";
        let tables = pipeline.sql.text(tables).await;
        assert_eq!(
            tables.as_deref(),
            Some("order_lines {order_id,line,item}; orders {id,total}"),
            "{version:?}"
        );
        let position = pipeline.confirmed_lsn().await;
        assert!(position.is_some(), "the slot");
        finding(&pipeline, "publication", "ok");
        finding(&pipeline, "capture_table", "ok");
        let undone = postrider_ok(&pipeline.config, &["setup", "--undo", "--yes"]);
        assert!(undone.contains("stays  tables \"public\".\"orders\""), "{undone}");
        assert_eq!(ours(&pipeline.sql).await, "0 0 0");
        assert_eq!(pipeline.sql.text("select count(*) from orders").await.as_deref(), Some("1"));
    }
}

#[tokio::test]
async fn printed_setup_is_what_setup_does() {
    for version in [Version::Pg15, Version::Pg18] {
        let pipeline = Pipeline::capturing(version, "printed", TABLES, BOTH).await;
        let sql = postrider_ok(&pipeline.config, &["setup", "--print-sql"]);
        assert_eq!(ours(&pipeline.sql).await, "0 0 0", "{sql}");
        pipeline.sql.batch(&sql).await;
        let again = postrider_ok(&pipeline.config, &["setup"]);
        assert!(again.contains("nothing is missing"), "{again}");
    }
}

/// The relay's role has no right on the captured tables, and a writer has none on anything of ours.
#[tokio::test]
async fn neither_the_relay_nor_a_writer_needs_a_right() {
    for version in [Version::Pg15, Version::Pg18] {
        let mut pipeline = Pipeline::capturing(version, "rights", TABLES, BOTH).await;
        let (relay, writer) = (unique("relay"), unique("writer"));
        let roles = format!(
            "create role {relay} login replication; create role {writer} login; \
             grant select, insert, update, delete, truncate on orders, order_lines to {writer}"
        );
        pipeline.sql.batch(&roles).await;
        let admin = pipeline.url.clone();
        let own = admin.replacen("user=postgres", &format!("user={relay}"), 1);
        let own = own.replacen("://postgres@", &format!("://{relay}@"), 1);
        assert_ne!(own, admin, "the URL names a user");
        pipeline.config = pipeline.config.replace(&admin, &own);
        postrider_ok(&pipeline.config, &["setup", "--url", &admin]);
        let held = format!(
            "select count(*)::text from pg_class c, unnest(array['select', 'insert', 'update', 'delete']) right_of \
             where c.relname in ('orders', 'order_lines') and has_table_privilege('{relay}', c.oid, right_of)"
        );
        assert_eq!(pipeline.sql.text(&held).await.as_deref(), Some("0"));
        let process = pipeline.run();
        process.await_state("streaming", SOON).await;
        let session = Client::connect(&admin).await.expect("a session");
        session.batch(&format!("set role {writer}")).await;
        for statement in [
            "insert into orders values (2, 'Bob', 1)",
            "update orders set id = 3 where id = 2",
            "delete from orders where id = 3",
            "truncate order_lines",
        ] {
            let done = session.simple_query(statement).await;
            done.unwrap_or_else(|error| panic!("{statement}: {}", describe(&error)));
        }
        let seen = session.simple_query("select 1 from postrider.cursor").await;
        assert!(seen.is_err(), "the writer has no right on schema postrider");
        assert_eq!(process.terminate(SOON).await.code, Some(0));
        pipeline.sql.batch("reset role").await;
        postrider_ok(&pipeline.config, &["setup", "--undo", "--yes", "--url", &admin]);
        pipeline
            .sql
            .batch(&format!("drop owned by {relay}, {writer}; drop role {relay}, {writer}"))
            .await;
    }
}

/// The relay's role may create schemas and slots, and does not own the tables: what `check` and the halt print is a
/// command for an administrator, and it works.
#[tokio::test]
async fn proposed_setup_is_for_an_administrator_if_the_relay_does_not_own_the_tables() {
    for version in [Version::Pg15, Version::Pg18] {
        let mut pipeline = Pipeline::capturing(version, "proposed", TABLES, BOTH).await;
        let relay = unique("relay");
        let database = database(&pipeline).await;
        let role = format!(
            "create role {relay} login replication; grant create on database {database} to {relay}"
        );
        pipeline.sql.batch(&role).await;
        let admin = pipeline.url.clone();
        let own = admin.replacen("user=postgres", &format!("user={relay}"), 1);
        let own = own.replacen("://postgres@", &format!("://{relay}@"), 1);
        assert_ne!(own, admin, "the URL names a user");
        pipeline.config = pipeline.config.replace(&admin, &own);
        let halted = run_to_halt(&pipeline.config).await;
        assert!(halted.hint.contains("--url postgresql://ADMIN@HOST/"), "{halted:#?}");
        let patient = Patient::new(&pipeline.config, &admin);
        let checked = patient.check(&[]);
        let missing = checked.expect("publication_missing", "error");
        assert!(missing["fix"].to_string().contains(" --url "), "{missing:#}");
        patient.fix(missing).await;
        let checked = patient.check(&[]);
        assert!(checked.find("publication_missing").is_none(), "{checked}");
        let process = pipeline.run();
        process.await_state("streaming", SOON).await;
        assert_eq!(process.terminate(SOON).await.code, Some(0));
        pipeline.sql.batch(&format!("drop owned by {relay}; drop role {relay}")).await;
    }
}

/// An administrator that does not own the tables is refused, and the message names who can.
#[tokio::test]
async fn login_that_does_not_own_the_tables_creates_no_publication() {
    let pipeline = Pipeline::capturing(Version::Pg17, "owner", TABLES, BOTH).await;
    let admin = unique("admin");
    let sql = format!(
        "create role {admin} login replication; grant create on database {} to {admin}",
        database(&pipeline).await
    );
    pipeline.sql.batch(&sql).await;
    let url = pipeline.url.replacen("://postgres@", &format!("://{admin}@"), 1);
    let url = url.replacen("user=postgres", &format!("user={admin}"), 1);
    let refused = postrider(&pipeline.config, &["setup", "--url", &url]);
    assert_eq!(refused.status.code(), Some(1), "{}", said(&refused));
    for words in ["create publication", "member of the owners of \"public\".\"orders\""] {
        assert!(said(&refused).contains(words), "{words}: {}", said(&refused));
    }
    let publications = "select count(*)::text from pg_publication";
    assert_eq!(pipeline.sql.text(publications).await.as_deref(), Some("0"));
    pipeline
        .sql
        .batch(&format!(
            "drop schema if exists postrider cascade; drop owned by {admin}; drop role {admin}"
        ))
        .await;
}

async fn database(pipeline: &Pipeline) -> String {
    pipeline.sql.text("select quote_ident(current_database())").await.expect("a name")
}
