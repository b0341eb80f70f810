//! `postrider partition`: a live outbox becomes a partitioned one, and no writer, and no consumer, misses an event.

use super::beside::{Beside, Waits};
use crate::await_that::{SOON, await_that};
use crate::pipeline::{Pipeline, show};
use crate::relay::{postrider, postrider_ok};
use crate::server::Version;
use std::collections::BTreeSet;
use std::time::Duration;

async fn ids(pipeline: &Pipeline, count: usize) -> BTreeSet<String> {
    let records = pipeline.topic.await_records(count, SOON).await;
    assert_eq!(records.len(), count);
    records.iter().filter_map(|record| record.header("id")).map(str::to_owned).collect()
}

/// A session that writes all the time, and has begun.
async fn writing(url: &str, insert: &str) -> Beside {
    let writer = Beside::start(url, insert);
    await_that("a row of the writer", SOON, || async {
        if writer.count() > 0 { Ok(()) } else { Err("none") }
    })
    .await;
    writer
}

#[tokio::test]
async fn live_outbox_is_partitioned_by_numbers_without_an_error_of_a_writer() {
    for version in Version::ALL {
        let pipeline = Pipeline::shared(version, "partition_numbers").await;
        pipeline
            .sql
            .batch("create index outbox_type on public.outbox (event_type) where payload is null")
            .await;
        pipeline.insert(1000).await;
        let insert = "insert into public.outbox (aggregate_type, aggregate_id, event_type, payload) \
                      values ('order', '1', 'Written', '1')";
        let writer = writing(&pipeline.url, insert).await;
        let relay = pipeline.run();
        relay.await_state("streaming", SOON).await;
        let beside = postrider(&pipeline.config, &["partition", "--by", "1000000", "--yes"]);
        let said = String::from_utf8_lossy(&beside.stderr).into_owned();
        assert_eq!(beside.status.code(), Some(1), "{said}");
        assert!(said.contains("is running (backend"), "{said}");
        assert_eq!(relay.terminate(SOON).await.code, Some(0));
        let undone = postrider_ok(&pipeline.config, &["partition", "--by", "1000000", "--undo"]);
        assert!(undone.contains("DROP CONSTRAINT"), "{undone}");
        let printed = postrider_ok(&pipeline.config, &["partition", "--by", "1000000", "--print"]);
        assert!(printed.contains("ATTACH PARTITION"), "{printed}");
        writer.take();
        postrider_ok(&pipeline.config, &["partition", "--by", "1000000", "--yes"]);
        assert!(writer.count() > 10, "it has not written meanwhile");
        let kind = "select relkind::text from pg_class where oid = 'public.outbox'::regclass";
        assert_eq!(pipeline.sql.text(kind).await.as_deref(), Some("p"));
        let relay = pipeline.run();
        relay.await_state("streaming", SOON).await;
        let Waits { count, longest } = writer.stop();
        show(&format!("{version:?}: {count} inserts, the longest {longest:?}"));
        assert!(longest < Duration::from_secs(3), "{longest:?}");
        let rows = pipeline.sql.text("select count(*) from public.outbox").await.unwrap();
        assert_eq!(rows, (count + 1000).to_string());
        assert_eq!(ids(&pipeline, count + 1000).await.len(), count + 1000);
        let indexes = "select count(*) from pg_indexes where tablename = 'outbox'";
        assert_eq!(pipeline.sql.text(indexes).await.as_deref(), Some("2"));
        assert_eq!(relay.terminate(SOON).await.code, Some(0));
    }
}

#[tokio::test]
async fn live_outbox_with_uuids_is_partitioned_by_time_without_an_error_of_a_writer() {
    for version in Version::ALL {
        let pipeline = Pipeline::in_layout(version, "partition_time", "adr30").await;
        let insert = "insert into public.outbox (aggregate_type, aggregate_id, event_type, payload) \
                      values ('booking', gen_random_uuid(), 'Written', '1')";
        let writer = writing(&pipeline.url, insert).await;
        let printed = postrider_ok(&pipeline.config, &["partition", "--by", "month", "--print"]);
        assert!(printed.contains("ON CONFLICT (\"id\") fails (42P10)"), "{printed}");
        writer.take();
        postrider_ok(&pipeline.config, &["partition", "--by", "month", "--yes"]);
        assert!(writer.count() > 10, "it has not written meanwhile");
        let relay = pipeline.run();
        relay.await_state("streaming", SOON).await;
        let Waits { count, longest } = writer.stop();
        show(&format!("{version:?}: {count} inserts, the longest {longest:?}"));
        assert!(longest < Duration::from_secs(3), "{longest:?}");
        assert_eq!(ids(&pipeline, count).await.len(), count);
        assert_eq!(relay.terminate(SOON).await.code, Some(0));
    }
}

/// What the exchange would break is named before anything is changed.
#[tokio::test]
async fn tables_that_others_depend_on_are_not_converted() {
    let pipeline = Pipeline::shared(Version::Pg17, "partition_refused").await;
    for (makes, says, undoes) in [
        (
            "create view public.v as select id from public.outbox",
            "the views public.v read",
            "drop view public.v",
        ),
        (
            "create table public.r (id bigint references public.outbox)",
            "foreign keys of public.r",
            "drop table public.r",
        ),
        (
            "create unique index u on public.outbox (aggregate_id, event_type)",
            "does not contain \"id\"",
            "drop index public.u",
        ),
        (
            "alter table public.outbox enable row level security",
            "row security",
            "alter table public.outbox disable row level security",
        ),
    ] {
        pipeline.sql.batch(makes).await;
        let refused = postrider(&pipeline.config, &["partition", "--by", "1000", "--yes"]);
        let said = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert_eq!(refused.status.code(), Some(1), "{makes}: {said}");
        assert!(said.contains(says) && said.contains("hint:"), "{makes}: {said}");
        pipeline.sql.batch(undoes).await;
    }
    let constraints = "select count(*) from pg_constraint where conname = 'outbox_below'";
    assert_eq!(pipeline.sql.text(constraints).await.as_deref(), Some("0"));
}
