//! Each rule of the fence that a real server can be brought to break.

use super::{OUTBOX, Pipeline, ROW};
use crate::await_that::{SOON, await_that};
use crate::private::PrivatePostgres;
use crate::server::Version;
use postrider::error::HaltReason;
use postrider::offset::{Offset, Watermark};
use postrider::postgres::catalog;
use postrider::postgres::setup::Options;
use postrider::postgres::start::{AfterStart, Decision, check_after_start, decide};
use postrider::postgres::store::cursor::{self, Cursor, CursorWrite};
use postrider::postgres::stream::StartReplication;

/// What is done to a pipeline that is set up, and the halt it gets.
const CASES: &[(&str, HaltReason)] = &[
    ("select pg_drop_replication_slot('{slot}')", HaltReason::SlotMissing),
    (
        "select pg_drop_replication_slot('{slot}'); \
         select pg_create_physical_replication_slot('{slot}')",
        HaltReason::SlotUnusable,
    ),
    (
        "select pg_drop_replication_slot('{slot}'); \
         select pg_create_logical_replication_slot('{slot}', 'test_decoding')",
        HaltReason::SlotUnusable,
    ),
    (
        "select pg_drop_replication_slot('{slot}'); \
         select pg_create_logical_replication_slot('{slot}', 'pgoutput', false, true)",
        HaltReason::SlotUnusable,
    ),
    // The trap: a slot of the same name, made again.
    (
        "select pg_drop_replication_slot('{slot}'); \
         select pg_create_logical_replication_slot('{slot}', 'pgoutput')",
        HaltReason::SlotMoved,
    ),
    ("select pg_replication_slot_advance('{slot}', pg_current_wal_lsn())", HaltReason::SlotMoved),
    ("update postrider.cursor set slot = 'another'", HaltReason::SlotMoved),
    ("update postrider.cursor set system_identifier = '1'", HaltReason::OtherHistory),
    ("update postrider.cursor set timeline = 9", HaltReason::OtherHistory),
    (
        "update postrider.cursor set watermark = 'FFFF/0', flush_limit = 'FFFF/0'",
        HaltReason::PositionAhead,
    ),
    ("drop schema postrider cascade", HaltReason::SchemaUnfit),
    ("delete from postrider.migration", HaltReason::SchemaUnfit),
    ("insert into postrider.migration values (99, 'later')", HaltReason::SchemaUnfit),
    ("drop publication {publication}", HaltReason::PublicationMissing),
    ("alter publication {publication} set (publish = 'delete')", HaltReason::PublicationUnfit),
    ("alter publication {publication} drop table public.outbox", HaltReason::PublicationUnfit),
    (
        "alter publication {publication} set table public.outbox where (id > 5)",
        HaltReason::PublicationUnfit,
    ),
    (
        "alter publication {publication} set table public.outbox (id, payload)",
        HaltReason::PublicationUnfit,
    ),
    ("drop table public.outbox", HaltReason::TableUnfit),
    ("alter table public.outbox rename to outbox_old", HaltReason::TableUnfit),
    ("alter table public.outbox rename payload to body", HaltReason::TableUnfit),
    (
        "drop publication {publication}; alter table public.outbox set unlogged",
        HaltReason::TableUnfit,
    ),
    (
        "alter table public.outbox rename to old; create view public.outbox as select * from public.old",
        HaltReason::TableUnfit,
    ),
];

async fn halts(version: Version) {
    for (sql, reason) in CASES {
        let pipeline = Pipeline::ready(version, "fence").await;
        pipeline.sql(ROW).await;
        let client = pipeline.client().await;
        // One by one: a slot can't be made in a transaction that has written.
        for statement in sql.split("; ") {
            client.batch(&pipeline.fill(statement)).await;
        }
        match pipeline.decide().await {
            Err(halt) => assert_eq!(halt.reason, *reason, "{sql}\n{halt}"),
            Ok(other) => panic!("{sql}\n{other:?}"),
        }
    }
}

#[tokio::test]
async fn every_broken_rule_halts_on_15() {
    halts(Version::Pg15).await;
}

#[tokio::test]
async fn every_broken_rule_halts_on_17() {
    halts(Version::Pg17).await;
}

#[tokio::test]
async fn every_broken_rule_halts_on_18() {
    halts(Version::Pg18).await;
}

#[tokio::test]
async fn a_slot_of_another_database_halts() {
    let pipeline = Pipeline::ready(Version::Pg17, "other_database").await;
    let other = Pipeline::bare(Version::Pg17, "other_database").await;
    pipeline.sql("select pg_drop_replication_slot('{slot}')").await;
    other
        .sql(&pipeline.fill("select pg_create_logical_replication_slot('{slot}', 'pgoutput')"))
        .await;
    assert_eq!(pipeline.decide().await.unwrap_err().reason, HaltReason::SlotUnusable);
}

#[tokio::test]
async fn partitions_are_published_by_root_or_not_at_all() {
    for version in Version::ALL {
        let pipeline = Pipeline::bare(version, "partitions").await;
        pipeline
            .sql(
                "create table public.outbox (id bigint, aggregate_type text, aggregate_id text, \
                 payload json) partition by range (id); \
                 create table public.outbox_1 partition of public.outbox for values from (0) to (9)",
            )
            .await;
        pipeline.set_up(&Options::default()).await.unwrap();
        pipeline.resume().await;
        pipeline
            .sql("alter publication {publication} set (publish_via_partition_root = false)")
            .await;
        let halt = pipeline.decide().await.unwrap_err();
        assert_eq!(halt.reason, HaltReason::PublicationUnfit);
        assert!(halt.hint.contains("publish_via_partition_root = true"), "{}", halt.hint);
        // What the hint says mends it.
        let (statement, _) = halt.hint.split_once("; then postrider repair").expect("a repair");
        pipeline.sql(statement).await;
        pipeline.resume().await;
        pipeline.sql("alter publication {publication} set table public.outbox_1").await;
        let halt = pipeline.decide().await.unwrap_err();
        assert_eq!(halt.reason, HaltReason::PublicationUnfit);
    }
}

#[tokio::test]
async fn a_table_left_out_is_mended_by_what_the_hint_says() {
    let pipeline = Pipeline::ready(Version::Pg15, "hint").await;
    pipeline.sql("alter publication {publication} drop table public.outbox").await;
    let halt = pipeline.decide().await.unwrap_err();
    // What follows is the repair, for rows that were committed meanwhile: `remedies` has it.
    let (statement, repair) = halt.hint.split_once("; then postrider repair").expect("a repair");
    assert!(repair.contains("--from-table"), "{halt:?}");
    pipeline.sql(statement).await;
    pipeline.resume().await;
}

#[tokio::test]
async fn for_all_tables_and_messages_alone_are_allowed() {
    let mut pipeline = Pipeline::bare(Version::Pg18, "allowed").await;
    pipeline.sql(OUTBOX).await;
    pipeline.sql("create publication {publication} for all tables with (publish = 'insert')").await;
    pipeline.set_up(&Options::default()).await.unwrap();
    assert!(pipeline.resume().await.notes.iter().any(|note| note.name == "all_tables"));
    pipeline.names.table = None;
    pipeline.columns.clear();
    pipeline.messages = true;
    assert!(pipeline.resume().await.cursor.messages);
}

/// The whole handshake: both connections, the stream started, the second look, and another process that stands by.
#[tokio::test]
async fn the_slot_we_hold_is_ours_and_others_stand_by() {
    for version in Version::ALL {
        let pipeline = Pipeline::ready(version, "stand_by").await;
        let (wal, identity) = pipeline.wal().await;
        let facts = pipeline.control.facts(&pipeline.ask(&identity)).await.unwrap();
        let Ok(Decision::Resume(resume)) = decide(&facts) else { panic!("does not resume") };
        let pid = wal.backend_pid();
        let mut start = StartReplication::new(&pipeline.names.slot, &pipeline.names.publication);
        start.lsn = postrider::postgres::wire::to_wire(resume.start.offset());
        let stream = wal.start(&start).await.unwrap();
        let row =
            catalog::read_slot(pipeline.control.client(), facts.server.version, &start.slot).await;
        let row = row.unwrap();
        assert_eq!(check_after_start(row.as_ref(), pid, &resume), AfterStart::Held);
        assert!(matches!(
            check_after_start(row.as_ref(), pid + 1, &resume),
            AfterStart::Again { .. }
        ));
        assert_eq!(pipeline.decide().await, Ok(Decision::StandBy { pid }));
        stream.stop(SOON).await.unwrap();
        await_that("the slot is free", SOON, || async {
            match pipeline.decide().await {
                Ok(Decision::Resume(_)) => Ok(()),
                other => Err(format!("{other:?}")),
            }
        })
        .await;
    }
}

#[tokio::test]
async fn an_invalidated_slot_is_lost_and_says_why() {
    for version in Version::ALL {
        let conf = "max_slot_wal_keep_size = 1MB\nmin_wal_size = 32MB\nmax_wal_size = 32MB";
        let server = PrivatePostgres::start(version, conf).await;
        let pipeline = Pipeline::on(&server.url(), "lost").await;
        let client = pipeline.client().await;
        client.batch(OUTBOX).await;
        pipeline.set_up(&Options::default()).await.unwrap();
        for _ in 0..4 {
            client.batch("create table t (i int); drop table t; select pg_switch_wal()").await;
        }
        client.batch("checkpoint").await;
        let halt = pipeline.decide().await.unwrap_err();
        assert_eq!(halt.reason, HaltReason::SlotLost, "{halt}");
        assert!(halt.message.contains("wal_removed"), "{halt}");
    }
}

/// The row proves the watermark; what the slot forgot in the crash is not asked for again.
#[tokio::test]
async fn after_kill_9_of_the_server_the_cursor_leads_the_slot() {
    let mut server = PrivatePostgres::start(Version::Pg15, "").await;
    let mut pipeline = Pipeline::on(&server.url(), "cursor_leads").await;
    pipeline.sql(OUTBOX).await;
    pipeline.set_up(&Options::default()).await.unwrap();
    pipeline.sql(ROW).await;
    let end = resolve_all(&pipeline).await;
    server.kill().await;
    server.restart().await;
    pipeline.reconnect().await;
    assert_eq!(pipeline.resume().await.start.offset(), end);
}

/// As if every event were resolved: the row goes to the end of WAL, the slot stays.
async fn resolve_all(pipeline: &Pipeline) -> Offset {
    let facts = pipeline.facts().await;
    let end = facts.server.wal_end;
    let row = Cursor {
        watermark: Watermark::resumed(end),
        flush_limit: end,
        ..facts.cursor.expect("a row")
    };
    let written = cursor::write(pipeline.control.client(), &row, &cursor::SnapshotPolicy::Always)
        .await
        .expect("a write");
    assert_eq!(written, CursorWrite::Stored);
    end
}

/// A standby is waited for; promoted, it is the same history on a higher timeline.
#[tokio::test]
async fn a_promoted_server_goes_on_where_the_cursor_stands() {
    for version in Version::ALL {
        let mut server = PrivatePostgres::start(version, "").await;
        let mut pipeline = Pipeline::on(&server.url(), "promoted").await;
        pipeline.sql(OUTBOX).await;
        pipeline.set_up(&Options::default()).await.unwrap();
        let end = resolve_all(&pipeline).await;
        server.stop_fast(SOON).await;
        let signal = server.data().join("standby.signal");
        std::fs::write(&signal, "").unwrap();
        server.hand_over(&signal);
        server.restart().await;
        pipeline.reconnect().await;
        assert!(matches!(pipeline.decide().await, Ok(Decision::Wait { .. })));

        pipeline.sql("select pg_promote()").await;
        pipeline.reconnect().await;
        let (_wal, identity) = pipeline.wal().await;
        assert_eq!(identity.as_ref().unwrap().timeline, 2);
        let switches = &identity.as_ref().unwrap().switches;
        assert!(
            matches!(&switches[..], [only] if only.timeline == 1 && postrider::postgres::wire::from_wire(only.at) >= end),
            "{switches:?}"
        );
        if version.major() >= 17 {
            // Its failover slot came from no primary: what a restored copy looks like. A person vouches for it.
            let halt = pipeline.decide_with(&identity).await.unwrap_err();
            assert_eq!(halt.reason, HaltReason::OtherHistory, "{halt}");
            pipeline.sql("update postrider.cursor set timeline = 2").await;
        }
        let facts = pipeline.control.facts(&pipeline.ask(&identity)).await.unwrap();
        let Ok(Decision::Resume(resume)) = decide(&facts) else { panic!("{:?}", decide(&facts)) };
        assert_eq!((resume.start.offset(), resume.cursor.timeline), (end, 2));
        let is_told = resume.notes.iter().any(|note| note.name == "promoted");
        assert_eq!(is_told, version.major() < 17);

        // A slot that was made again after the promotion leaves a gap, and is not taken.
        pipeline.sql("update postrider.cursor set timeline = 1").await;
        pipeline.sql("select pg_drop_replication_slot('{slot}')").await;
        pipeline.sql("select pg_create_logical_replication_slot('{slot}', 'pgoutput')").await;
        let halt = pipeline.decide().await.unwrap_err();
        assert_eq!(halt.reason, HaltReason::OtherHistory, "{halt}");
    }
}
