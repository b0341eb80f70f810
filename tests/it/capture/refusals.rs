//! What can't be captured is refused by `setup` before anything is changed, and by `check` and `run`, with the reason
//! and what fixes it; after the fix the same table is accepted.

use super::{BOTH, TABLES, finding, ours, said};
use crate::answers::{Answer, answer};
use crate::pipeline::Pipeline;
use crate::relay::{postrider, postrider_ok};
use crate::server::Version;

/// A table that is refused.
struct Refused {
    /// The input of `docs/bad-input`.
    input: &'static str,
    version: Version,
    ddl: &'static str,
    capture: &'static str,
    /// The name of the finding.
    id: &'static str,
    /// Words of the message.
    says: &'static str,
    /// Words of the fix.
    fix: &'static str,
    /// What is done then, as the fix says; empty if the configuration must change.
    then: &'static str,
}

const IDENTITY: &str = "capture_identity";

const REFUSED: &[Refused] = &[
    Refused {
        input: "captured table without a replica identity",
        version: Version::Pg15,
        ddl: "create table t (id int, a text)",
        capture: "tables = [\"t\"]",
        id: IDENTITY,
        says: "has no replica identity",
        fix: "REPLICA IDENTITY FULL",
        then: "alter table t replica identity full",
    },
    Refused {
        input: "captured table whose primary key is deferrable",
        version: Version::Pg18,
        ddl: "create table t (id int primary key deferrable, a text)",
        capture: "tables = [\"t\"]",
        id: IDENTITY,
        says: "has no replica identity",
        fix: "USING INDEX",
        then: "create unique index i on t (id); alter table t replica identity using index i",
    },
    Refused {
        input: "captured table with REPLICA IDENTITY NOTHING",
        version: Version::Pg17,
        ddl: "create table t (id int primary key, a text); alter table t replica identity nothing",
        capture: "tables = [\"t\"]",
        id: IDENTITY,
        says: "has no replica identity",
        fix: "REPLICA IDENTITY",
        then: "alter table t replica identity default",
    },
    Refused {
        input: "captured table with a partition without a replica identity",
        version: Version::Pg15,
        ddl: "create table t (id int, a text) partition by range (id); \
              create table t1 partition of t for values from (0) to (10); alter table t replica identity full",
        capture: "tables = [\"t\"]",
        id: IDENTITY,
        says: "partition public.t1 of captured table",
        fix: "ALTER TABLE public.t1",
        then: "alter table t1 replica identity full",
    },
    Refused {
        input: "captured table with a partition of another replica identity",
        version: Version::Pg18,
        ddl: "create table t (id int primary key, a text) partition by range (id); \
              create table t1 partition of t for values from (0) to (10); alter table t replica identity full",
        capture: "tables = [\"t\"]",
        id: IDENTITY,
        says: "another replica identity",
        fix: "ALTER TABLE public.t1 REPLICA IDENTITY FULL",
        then: "alter table t1 replica identity full",
    },
    Refused {
        input: "list of columns without the replica identity",
        version: Version::Pg15,
        ddl: "create table t (id int primary key, a text)",
        capture: "tables = [\"t\"]\ncolumns = { t = [\"a\"] }",
        id: "capture_identity_columns",
        says: "leaves out \"id\"",
        fix: "add \"id\" to capture.columns",
        then: "",
    },
    Refused {
        input: "list of columns with REPLICA IDENTITY FULL",
        version: Version::Pg18,
        ddl: "create table t (id int primary key, a text); alter table t replica identity full",
        capture: "tables = [\"t\"]\ncolumns = { t = [\"id\"] }",
        id: "capture_identity_columns",
        says: "REPLICA IDENTITY FULL",
        fix: "REPLICA IDENTITY DEFAULT",
        then: "alter table t replica identity default",
    },
    Refused {
        input: "generated column in the replica identity before PostgreSQL 18",
        version: Version::Pg17,
        ddl: "create table t (a int, id int generated always as (a + 1) stored primary key)",
        capture: "tables = [\"t\"]",
        id: "capture_identity_generated",
        says: "the generated column \"id\"",
        fix: "ordinary columns",
        then: "alter table t replica identity full",
    },
    Refused {
        input: "virtual generated column with REPLICA IDENTITY FULL",
        version: Version::Pg18,
        ddl: "create table t (id int primary key, b int generated always as (id + 1) virtual); \
              alter table t replica identity full",
        capture: "tables = [\"t\"]",
        id: "capture_identity_generated",
        says: "virtual generated column \"b\"",
        fix: "REPLICA IDENTITY DEFAULT",
        then: "alter table t replica identity default",
    },
    Refused {
        input: "list of columns with a column that is not there",
        version: Version::Pg15,
        ddl: "create table t (id int primary key)",
        capture: "tables = [\"t\"]\ncolumns = { t = [\"id\", \"b\"] }",
        id: "capture_column",
        says: "has no column \"b\"",
        fix: "capture.columns",
        then: "alter table t add column b text",
    },
    Refused {
        input: "list of columns with a generated column before PostgreSQL 18",
        version: Version::Pg15,
        ddl: "create table t (id int primary key, b int generated always as (id + 1) stored)",
        capture: "tables = [\"t\"]\ncolumns = { t = [\"id\", \"b\"] }",
        id: "capture_column",
        says: "column \"b\" of captured table",
        fix: "leave it out",
        then: "",
    },
    Refused {
        input: "captured table that does not exist",
        version: Version::Pg15,
        ddl: "create table other (id int primary key)",
        capture: "tables = [\"t\"]",
        id: "capture_missing",
        says: "does not exist",
        fix: "correct capture.tables",
        then: "alter table other rename to t",
    },
    Refused {
        input: "a captured view",
        version: Version::Pg15,
        ddl: "create table o (id int primary key); create view t as select * from o",
        capture: "tables = [\"t\"]",
        id: "capture_kind",
        says: "is not a table",
        fix: "name the tables themselves",
        then: "",
    },
    Refused {
        input: "a captured materialized view",
        version: Version::Pg18,
        ddl: "create table o (id int primary key); create materialized view t as select * from o",
        capture: "tables = [\"t\"]",
        id: "capture_kind",
        says: "is not a table",
        fix: "name the tables themselves",
        then: "",
    },
    Refused {
        input: "a captured foreign table",
        version: Version::Pg17,
        ddl: "create foreign data wrapper w; create server s foreign data wrapper w; \
              create foreign table t (id int) server s",
        capture: "tables = [\"t\"]",
        id: "capture_kind",
        says: "is not a table",
        fix: "name the tables themselves",
        then: "",
    },
    Refused {
        input: "a captured sequence",
        version: Version::Pg16,
        ddl: "create sequence t",
        capture: "tables = [\"t\"]",
        id: "capture_kind",
        says: "is not a table",
        fix: "name the tables themselves",
        then: "",
    },
    // A name without a schema is that of a table in public, and one in a schema of temporary tables is refused in the
    // file.
    Refused {
        input: "a captured temporary table",
        version: Version::Pg18,
        ddl: "create temporary table t (id int primary key)",
        capture: "tables = [\"t\"]",
        id: "capture_missing",
        says: "does not exist",
        fix: "correct capture.tables",
        then: "create table public.t (id int primary key)",
    },
    Refused {
        input: "a captured table that is unlogged",
        version: Version::Pg15,
        ddl: "create unlogged table t (id int primary key)",
        capture: "tables = [\"t\"]",
        id: "capture_unlogged",
        says: "unlogged",
        fix: "SET LOGGED",
        then: "alter table t set logged",
    },
    Refused {
        input: "a captured partitioned table that is unlogged",
        version: Version::Pg15,
        ddl: "create unlogged table t (id int primary key) partition by range (id)",
        capture: "tables = [\"t\"]",
        id: "capture_unlogged",
        says: "marked UNLOGGED",
        fix: "without UNLOGGED in its place",
        then: "",
    },
    Refused {
        input: "a captured table with a foreign partition",
        version: Version::Pg18,
        ddl: "create foreign data wrapper w; create server s foreign data wrapper w; \
              create table t (id int) partition by range (id); alter table t replica identity full; \
              create foreign table t1 partition of t for values from (0) to (10) server s",
        capture: "tables = [\"t\"]",
        id: "capture_partition_unlogged",
        says: "is a foreign table",
        fix: "DETACH PARTITION public.t1",
        then: "alter table t detach partition t1",
    },
    Refused {
        input: "a captured table with an unlogged partition",
        version: Version::Pg17,
        ddl: "create table t (id int primary key) partition by range (id); \
              create unlogged table t1 partition of t for values from (0) to (10)",
        capture: "tables = [\"t\"]",
        id: "capture_partition_unlogged",
        says: "partition public.t1",
        fix: "ALTER TABLE public.t1 SET LOGGED",
        then: "alter table t1 set logged",
    },
    Refused {
        input: "a captured partition in place of its root",
        version: Version::Pg15,
        ddl: "create table r (id int primary key) partition by range (id); \
              create table t partition of r for values from (0) to (10)",
        capture: "tables = [\"t\"]",
        id: "capture_partition",
        says: "is a partition of \"public\".\"r\"",
        fix: "name \"public\".\"r\"",
        then: "",
    },
];

/// Nothing of ours is there afterwards, and the application's statements work as before.
#[tokio::test]
async fn table_that_can_not_be_captured_is_refused_before_anything_is_changed() {
    for case in REFUSED {
        let Refused { input, version, ddl, capture, id, says, fix, then } = case;
        let pipeline = Pipeline::capturing(*version, "refused", ddl, capture).await;
        let refused = postrider(&pipeline.config, &["setup"]);
        assert_eq!(refused.status.code(), Some(3), "{input}: {}", said(&refused));
        for words in ["PR009", says, fix] {
            assert!(said(&refused).contains(words), "{input}: {words}: {}", said(&refused));
        }
        answer(input, &pipeline, &refused);
        assert_eq!(ours(&pipeline.sql).await, "0 0 0", "{input}");
        let found = finding(&pipeline, id, "error");
        assert!(found["what"].to_string().contains(&says.replace('"', "\\\"")), "{input}: {found}");
        assert!(found["why"].to_string().contains(&fix.replace('"', "\\\"")), "{input}: {found}");
        if !then.is_empty() {
            for statement in then.split("; ") {
                pipeline.sql.batch(statement).await;
            }
            postrider_ok(&pipeline.config, &["setup"]);
            assert_eq!(ours(&pipeline.sql).await, "1 1 1", "{input}");
        }
    }
}

/// The statement that is refused by PostgreSQL afterwards is one that worked: with a publication and without an
/// identity the application fails, and without setup it does not.
#[tokio::test]
async fn application_updates_a_table_that_setup_has_refused() {
    for version in Version::ALL {
        let ddl = "create table t (id int, a text); insert into t values (1, 'a')";
        let pipeline = Pipeline::capturing(version, "goes_on", ddl, "tables = [\"t\"]").await;
        assert_eq!(postrider(&pipeline.config, &["setup"]).status.code(), Some(3));
        pipeline.sql.batch("update t set a = 'b'").await;
        let publish = format!("create publication {} for table t", pipeline.slot());
        pipeline.sql.batch(&publish).await;
        let error = pipeline.sql.simple_query("update t set a = 'c'").await;
        let state = error.expect_err("no identity").code().map(|code| code.code().to_owned());
        assert_eq!(state.as_deref(), Some("55000"), "the test can fail");
    }
}

/// Large values that the stream does not have are named, for tables whose rows are not identified whole.
#[tokio::test]
async fn check_warns_about_values_that_are_published_only_when_they_change() {
    let pipeline = Pipeline::capturing(Version::Pg17, "toast", TABLES, BOTH).await;
    postrider_ok(&pipeline.config, &["setup"]);
    let warned = finding(&pipeline, "capture_unchanged", "warning");
    assert!(warned["what"].to_string().contains("customer"), "{warned}");
    for fix in ["orders", "order_lines"] {
        pipeline.sql.batch(&format!("alter table {fix} replica identity full")).await;
    }
    let all = super::findings(&pipeline);
    assert!(all.iter().all(|found| found["id"] != "capture_unchanged"), "{all:#?}");
}

#[tokio::test]
async fn check_warns_about_partitions_to_come_and_tables_that_inherit() {
    let ddl = "create table p (id int, a text) partition by range (id); \
               create table p1 partition of p for values from (0) to (10); \
               alter table p replica identity full; alter table p1 replica identity full; \
               create table t (id int primary key); create table child () inherits (t)";
    let capture = "tables = [\"p\", \"t\"]";
    let pipeline = Pipeline::capturing(Version::Pg15, "warned", ddl, capture).await;
    let later = finding(&pipeline, "capture_later_partitions", "warning");
    assert!(later["what"].to_string().contains("\\\"p\\\""), "{later}");
    let children = finding(&pipeline, "capture_inherited", "warning");
    assert!(children["what"].to_string().contains("public.child"), "{children}");
}

/// Commands that read an outbox table say that there is none.
#[tokio::test]
async fn commands_of_an_outbox_table_are_refused() {
    let pipeline = Pipeline::capturing(Version::Pg17, "commands", TABLES, BOTH).await;
    let config = &pipeline.config;
    let backfill = postrider(config, &["setup", "--backfill", "all"]);
    assert_eq!(backfill.status.code(), Some(3), "{}", said(&backfill));
    answer("setup --backfill of captured tables", &pipeline, &backfill);
    assert_eq!(ours(&pipeline.sql).await, "0 0 0");
    let create = postrider(config, &["setup", "--create-table"]);
    assert_eq!(create.status.code(), Some(2), "{}", said(&create));
    answer("setup --create-table of captured tables", &pipeline, &create);
    postrider_ok(config, &["setup"]);
    for (input, args, words) in [
        ("repair of captured tables", &["repair"][..], "cannot be repaired from"),
        (
            "partition of captured tables",
            &["partition", "--by", "day", "--yes"],
            "application's data",
        ),
        (
            "replay of captured tables from the table",
            &["replay", "--since", "1970-01-02", "--source", "table"],
            "no bookmark",
        ),
    ] {
        let refused = postrider(config, args);
        assert_ne!(refused.status.code(), Some(0), "{input}: {}", said(&refused));
        assert!(said(&refused).contains(words), "{input}: {}", said(&refused));
        answer(input, &pipeline, &refused);
    }
}

/// What does not go with captured tables in the file is refused by every command.
#[tokio::test]
async fn settings_of_an_outbox_table_are_refused() {
    let pipeline = Pipeline::capturing(Version::Pg17, "settings", TABLES, BOTH).await;
    let table = |table: &str, line: &str| {
        format!("{}\n[pipelines.{}.{table}]\n{line}\n", pipeline.config, pipeline.name)
    };
    let head = format!("[pipelines.{}]\n", pipeline.name);
    let of_pipeline = |line: &str| pipeline.config.replacen(&head, &format!("{head}{line}\n"), 1);
    for (input, config) in [
        ("captured tables and an outbox table", table("outbox", "table = \"outbox\"")),
        ("captured tables with mode poll", of_pipeline("mode = \"poll\"")),
        ("captured tables with mode auto", of_pipeline("mode = \"auto\"")),
        (
            "captured tables with on_slot_lost repair",
            pipeline.with_line("source", "on_slot_lost = \"repair\""),
        ),
        ("captured tables with retention", table("retention", "keep = \"7d\"")),
        ("captured tables with poll.mark_streamed", table("poll", "mark_streamed = true")),
    ] {
        for command in [&["check", "--offline"][..], &["setup"], &["run"]] {
            let refused = postrider(&config, command);
            assert_eq!(refused.status.code(), Some(2), "{input}: {}", said(&refused));
            assert!(said(&refused).contains("capture.tables"), "{input}: {}", said(&refused));
        }
        answer(input, &pipeline, Answer::from(&postrider(&config, &["check", "--offline"])));
    }
}
