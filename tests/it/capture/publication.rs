//! A publication, a captured table or its replica identity that is changed while the pipeline streams, or while it is
//! stopped: it is found and reported, and what is printed as the fix works.

use super::{BOTH, TABLES, finding, said};
use crate::answers::answer;
use crate::await_that::{SOON, await_that};
use crate::halted::{Halted, halt_of, run_to_halt, spawn};
use crate::pipeline::Pipeline;
use crate::relay::{Relay, postrider, postrider_ok};
use crate::server::{Version, describe};

/// Streaming, set up.
async fn streaming(version: Version, ddl: &str, capture: &str) -> (Pipeline, Relay) {
    let pipeline = Pipeline::capturing(version, "captured", ddl, capture).await;
    postrider_ok(&pipeline.config, &["setup"]);
    let relay = spawn(&pipeline.config);
    relay.await_state("streaming", SOON).await;
    (pipeline, relay)
}

/// The statements of a hint that begin with a word in capitals, up to `; then`.
async fn run_the_fix(pipeline: &Pipeline, halted: &Halted) {
    let fix = halted.hint.split("; then ").next().expect("a fix");
    for statement in fix.split("; ").map(|statement| statement.trim_end_matches(';')) {
        pipeline.sql.batch(statement).await;
    }
}

/// The relay starts, streams and ends.
async fn streams_again(config: &str) {
    let relay = Relay::spawn(config);
    relay.await_state("streaming", SOON).await;
    assert_eq!(relay.terminate(SOON).await.code, Some(0));
}

/// What is done to a running pipeline, and what it answers.
struct Hurt {
    input: &'static str,
    change: &'static str,
    code: &'static str,
    says: &'static str,
    /// Fixes it; empty if the hint has the statements.
    back: &'static str,
}

const HURTS: &[Hurt] = &[
    Hurt {
        input: "captured table taken out of the publication while running",
        change: "alter publication {publication} drop table orders",
        code: "PR008",
        says: "does not publish table \"public\".\"orders\"",
        back: "",
    },
    Hurt {
        input: "publication of captured tables without updates while running",
        change: "alter publication {publication} set (publish = 'insert, delete, truncate')",
        code: "PR008",
        says: "does not publish all that is captured",
        back: "",
    },
    Hurt {
        input: "publication of captured tables with a row filter while running",
        change: "alter publication {publication} set table orders where (id > 0), order_lines",
        code: "PR008",
        says: "row filter",
        back: "",
    },
    Hurt {
        input: "publication of captured tables with another list of columns while running",
        change: "alter publication {publication} set table orders (id), order_lines",
        code: "PR008",
        says: "publishes \"id\" of table",
        back: "",
    },
    Hurt {
        input: "table that is not captured added to the publication while running",
        change: "create table others (id int primary key); alter publication {publication} add table others",
        code: "PR008",
        says: "publishes public.others, which is not captured",
        back: "",
    },
    Hurt {
        input: "replica identity of a captured table removed while running",
        change: "alter table orders drop constraint orders_pkey",
        code: "PR009",
        says: "has no replica identity",
        back: "alter table orders replica identity full",
    },
    Hurt {
        input: "captured table renamed while running",
        change: "alter table orders rename to sales",
        code: "PR009",
        says: "does not exist",
        back: "alter table sales rename to orders",
    },
    Hurt {
        input: "captured table made unlogged while running",
        change: "alter publication {publication} drop table orders; alter table orders set unlogged",
        code: "PR009",
        says: "is unlogged",
        back: "alter table orders set logged; alter publication {publication} add table only orders",
    },
];

#[tokio::test]
async fn change_of_the_publication_or_a_table_halts_and_its_fix_streams() {
    for (number, hurt) in HURTS.iter().enumerate() {
        let version = Version::ALL[number % Version::ALL.len()];
        let (pipeline, relay) = streaming(version, TABLES, BOTH).await;
        pipeline.sql(hurt.change).await;
        let halted = halt_of(relay).await;
        let input = hurt.input;
        halted.assert_says(hurt.code, &[hurt.says], &[]);
        answer(input, &pipeline, &halted);
        // Started again before it is fixed: the same.
        let again = run_to_halt(&pipeline.config).await;
        again.assert_says(hurt.code, &[hurt.says], &[]);
        if hurt.back.is_empty() {
            run_the_fix(&pipeline, &again).await;
        } else {
            pipeline.sql(hurt.back).await;
        }
        streams_again(&pipeline.config).await;
    }
}

/// A dropped table is gone: only the list can change.
#[tokio::test]
async fn captured_table_that_is_dropped_halts_until_the_list_has_it_no_more() {
    let (mut pipeline, relay) = streaming(Version::Pg17, TABLES, BOTH).await;
    pipeline.sql("drop table order_lines").await;
    let halted = halt_of(relay).await;
    halted.assert_says("PR009", &["\"order_lines\" does not exist"], &["capture.tables"]);
    answer("captured table dropped while running", &pipeline, &halted);
    pipeline.config = pipeline.config.replace(", \"public.order_lines\"", "");
    // What the slot still has of it would be left out.
    let halted = run_to_halt(&pipeline.config).await;
    halted.assert_says(
        "PR025",
        &["capture.tables had \"public\".\"order_lines\""],
        &["postrider adopt"],
    );
    postrider_ok(&pipeline.config, &["adopt"]);
    streams_again(&pipeline.config).await;
}

/// Nothing in the tables shows what was left out, so each change that was undone is a halt. The next start goes on.
#[tokio::test]
async fn change_that_was_undone_between_two_looks_halts_and_the_next_start_goes_on() {
    for (version, change, back) in [
        (
            Version::Pg15,
            "alter publication {publication} drop table orders",
            "alter publication {publication} add table only orders",
        ),
        (
            Version::Pg18,
            "alter publication {publication} set (publish = 'insert')",
            "alter publication {publication} set (publish = 'insert, update, delete, truncate')",
        ),
    ] {
        let (pipeline, relay) = streaming(version, TABLES, BOTH).await;
        pipeline.sql(change).await;
        pipeline.sql.batch("update orders set total = 1").await;
        pipeline.sql(back).await;
        let halted = halt_of(relay).await;
        halted.assert_says(
            "PR008",
            &["changed and changed back"],
            &["load the consumers", "orders"],
        );
        assert!(halted.meaning.contains("How many is not known"), "{halted:#?}");
        if version == Version::Pg15 {
            answer(
                "captured table taken out of the publication and put back while running",
                &pipeline,
                &halted,
            );
        }
        streams_again(&pipeline.config).await;
    }
}

/// The process is killed before it looks: the next start says it, and once it has said it, it is not said again.
#[tokio::test]
async fn change_while_nobody_looked_is_logged_by_the_next_start() {
    for version in [Version::Pg15, Version::Pg18] {
        let (pipeline, relay) = streaming(version, TABLES, BOTH).await;
        drop(relay.kill().await);
        pipeline.sql("alter publication {publication} drop table orders").await;
        pipeline.sql.batch("update orders set total = 1").await;
        pipeline.sql("alter publication {publication} add table only orders").await;
        finding(&pipeline, "publication_changed", "warning");
        let relay = pipeline.run();
        relay.await_log("publication_changed", SOON).await;
        relay.await_state("streaming", SOON).await;
        let newest = "select pg_visible_in_snapshot(pg_current_xact_id(), resolved_snapshot)::text from postrider.cursor";
        await_that("a cursor row that knows the change to be resolved", SOON, || async {
            // Each gives the relay a position to write a row for.
            pipeline.sql.batch("insert into order_lines select max(line) + 1, max(line) + 1, 'x' from \
                (select 0 as line union all select line from order_lines) l").await;
            let known = "select coalesce(bool_and(pg_visible_in_snapshot(r.xmin::text::xid8, c.resolved_snapshot)), \
                         false)::text from pg_publication_rel r, postrider.cursor c";
            match pipeline.sql.text(known).await.as_deref() {
                Some("true") => Ok(()),
                other => Err(format!("{other:?}, {newest}")),
            }
        })
        .await;
        assert_eq!(relay.terminate(SOON).await.code, Some(0));
        let relay = pipeline.run();
        relay.await_state("streaming", SOON).await;
        assert!(!relay.stderr().contains("publication_changed"), "{}", relay.stderr());
        assert_eq!(relay.terminate(SOON).await.code, Some(0));
    }
}

/// A partition that is created or attached later is covered by the root, and the application's statements work.
#[tokio::test]
async fn partition_that_is_attached_later_is_captured_and_logged() {
    for version in [Version::Pg15, Version::Pg18] {
        let ddl = "create table t (id int primary key, a text) partition by range (id); \
                   create table t1 partition of t for values from (0) to (10)";
        let (pipeline, relay) = streaming(version, ddl, "tables = [\"t\"]").await;
        // The monitor has to have seen the partitions before.
        relay
            .await_status("the slot", SOON, |status| {
                status["pipelines"][0]["slot_state"].is_string()
            })
            .await;
        pipeline.sql.batch("create table t2 partition of t for values from (10) to (20)").await;
        pipeline
            .sql
            .batch("create table t3 (id int primary key, a text); insert into t3 values (21, 'x')")
            .await;
        pipeline.sql.batch("alter table t attach partition t3 for values from (20) to (30)").await;
        relay.await_log("partition_attached", SOON).await;
        for statement in [
            "insert into t values (11, 'a')",
            "update t set a = 'b'",
            "update t2 set a = 'c'",
            "delete from t3",
        ] {
            let done = pipeline.sql.simple_query(statement).await;
            done.unwrap_or_else(|error| panic!("{statement}: {}", describe(&error)));
        }
        pipeline.sql.batch("alter table t detach partition t2").await;
        relay.await_log("partition_detached", SOON).await;
        relay.await_state("streaming", SOON).await;
        assert_eq!(relay.terminate(SOON).await.code, Some(0));
    }
}

/// REPLICA IDENTITY FULL of the root is not that of a partition that is created later.
#[tokio::test]
async fn partition_without_the_identity_of_its_root_halts_until_it_has_it() {
    let ddl = "create table t (id int primary key, a text) partition by range (id); \
               create table t1 partition of t for values from (0) to (10); \
               alter table t replica identity full; alter table t1 replica identity full";
    let (pipeline, relay) = streaming(Version::Pg18, ddl, "tables = [\"t\"]").await;
    pipeline.sql("create table t2 partition of t for values from (10) to (20)").await;
    let halted = halt_of(relay).await;
    halted.assert_says(
        "PR009",
        &["partition public.t2"],
        &["ALTER TABLE public.t2 REPLICA IDENTITY FULL"],
    );
    run_the_fix(&pipeline, &halted).await;
    streams_again(&pipeline.config).await;
}

/// A table is added to the list: the start prints the statement, and goes on after it.
#[tokio::test]
async fn table_that_is_added_to_the_list_is_added_to_the_publication_by_the_printed_statement() {
    let ddl = format!("{TABLES}; create table bills (id int primary key)");
    let (mut pipeline, relay) = streaming(Version::Pg17, &ddl, BOTH).await;
    advanced(&pipeline).await;
    assert_eq!(relay.terminate(SOON).await.code, Some(0));
    pipeline.config =
        pipeline.config.replace("\"public.orders\",", "\"public.bills\", \"public.orders\",");
    let halted = run_to_halt(&pipeline.config).await;
    halted.assert_says(
        "PR008",
        &["does not publish table \"public\".\"bills\""],
        &["LOCK TABLE", "SET TABLE"],
    );
    answer("a table added to capture.tables", &pipeline, &halted);
    finding(&pipeline, "capture_publication", "error");
    run_the_fix(&pipeline, &halted).await;
    let relay = Relay::spawn(&pipeline.config);
    relay.await_log("capture.tables has \"public\".\"bills\"", SOON).await;
    relay.await_state("streaming", SOON).await;
    let status = relay.status().await.expect("a status");
    let captured = status["pipelines"][0]["captured"].to_string();
    assert_eq!(captured, "[\"public.bills\",\"public.orders\",\"public.order_lines\"]");
    assert_eq!(relay.terminate(SOON).await.code, Some(0));
}

/// A table is removed from the list: what is not published of it would be left out, so an operator decides.
#[tokio::test]
async fn table_that_is_removed_from_the_list_halts_until_that_is_adopted() {
    let (mut pipeline, relay) = streaming(Version::Pg15, TABLES, BOTH).await;
    advanced(&pipeline).await;
    assert_eq!(relay.terminate(SOON).await.code, Some(0));
    pipeline.config = pipeline.config.replace(", \"public.order_lines\"", "");
    let halted = run_to_halt(&pipeline.config).await;
    halted.assert_says(
        "PR025",
        &["capture.tables had \"public\".\"order_lines\""],
        &["postrider adopt"],
    );
    answer("a table removed from capture.tables", &pipeline, &halted);
    finding(&pipeline, "pipeline_changed", "error");
    let adopted = postrider_ok(&pipeline.config, &["adopt"]);
    assert!(adopted.contains("would be left out"), "{adopted}");
    let halted = run_to_halt(&pipeline.config).await;
    halted.assert_says(
        "PR008",
        &["publishes public.order_lines, which is not captured"],
        &["SET TABLE"],
    );
    run_the_fix(&pipeline, &halted).await;
    streams_again(&pipeline.config).await;
}

/// Captured tables in place of an outbox are another pipeline.
#[tokio::test]
async fn captured_tables_do_not_take_over_the_position_of_an_outbox() {
    let pipeline = Pipeline::shared(Version::Pg17, "other").await;
    let relay = pipeline.run();
    pipeline.insert(3).await;
    pipeline.topic.await_records(3, SOON).await;
    assert_eq!(relay.terminate(SOON).await.code, Some(0));
    let outbox = format!(
        "[pipelines.{}.outbox]\nlayout = \"postrider\"\ntable = \"public.outbox\"\n",
        pipeline.name
    );
    let capture = format!("[pipelines.{}.capture]\ntables = [\"public.outbox\"]\n", pipeline.name);
    assert!(pipeline.config.contains(&outbox), "{}", pipeline.config);
    let config = pipeline.config.replace(&outbox, &capture);
    let halted = run_to_halt(&config).await;
    halted.assert_says("PR025", &["belongs to the outbox"], &["a pipeline of their own"]);
    answer("captured tables in place of an outbox", &pipeline, &halted);
    streams_again(&pipeline.config).await;
}

/// A slot that is lost: what is printed begins again, and says what is lost.
#[tokio::test]
async fn lost_slot_is_begun_again_by_the_printed_lines() {
    let (pipeline, relay) = streaming(Version::Pg17, TABLES, BOTH).await;
    advanced(&pipeline).await;
    assert_eq!(relay.terminate(SOON).await.code, Some(0));
    pipeline.sql("select pg_drop_replication_slot('{slot}')").await;
    let halted = run_to_halt(&pipeline.config).await;
    halted.assert_says(
        "PR002",
        &["does not exist"],
        &[
            "are lost as events",
            "MiB of WAL",
            "DELETE FROM postrider.cursor",
            "load the consumers again",
        ],
    );
    answer("slot of captured tables dropped", &pipeline, &halted);
    let found = finding(&pipeline, "slot_missing", "error");
    assert!(found["why"].to_string().contains("lost as events"), "{found}");
    for line in found["fix"].as_array().expect("lines") {
        let text = line["line"].as_str().expect("a line");
        if line["kind"] == "sql" {
            pipeline.sql.batch(text).await;
            continue;
        }
        let args: Vec<&str> = text.split(' ').skip_while(|word| *word != "setup").collect();
        let done = postrider(&pipeline.config, &args);
        assert_eq!(done.status.code(), Some(0), "{text}: {}", said(&done));
    }
    streams_again(&pipeline.config).await;
}

/// Changes tables until the cursor row has moved past where its slot was created.
async fn advanced(pipeline: &Pipeline) {
    let moved = "select (watermark > slot_created_lsn)::text from postrider.cursor";
    await_that("a cursor row that has moved", SOON, || async {
        pipeline.sql.batch("update orders set total = coalesce(total, 0) + 1").await;
        match pipeline.sql.text(moved).await.as_deref() {
            Some("true") => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await;
}
