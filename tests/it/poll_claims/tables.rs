//! Tables that are not as the layout has them: names, partitions, sizes, what is missing.

use super::*;
use pg_replication::lsn::Lsn;
use postrider::outbox::Role;
use postrider::postgres::poll::CLAIM_BYTES_MAX;
use postrider::postgres::{Decoder, Encoding, EventObjects, Frame, catalog};
use postrider::row::{Column, Kind, Row, TableId};
use postrider::source::Change;

#[tokio::test]
async fn names_may_be_any() {
    for version in VERSIONS {
        let mut spec = OutboxSpec::for_layout(Layout::Commerce);
        spec.table = Some(postrider::outbox::TableName {
            schema: "Ä \"b\"".into(),
            name: "out'box\\".into(),
        });
        spec.topic = "orders".to_owned();
        spec.columns = vec![
            (Role::Id, "order".to_owned()),
            (Role::AggregateId, "Ünïcode \"id\"".to_owned()),
            (Role::AvailableAt, "not' before\\".to_owned()),
        ];
        let outbox = Outbox::with(version, spec, "poll_names").await;
        let table = &outbox.spec.table;
        let create = Layout::Commerce.create_sql();
        outbox.client.batch(create).await;
        outbox.client.batch(&format!(
            "create schema \"Ä \"\"b\"\"\"; alter table outbox_messages rename id to \"order\";
             alter table outbox_messages rename aggregate_id to \"Ünïcode \"\"id\"\"\";
             alter table outbox_messages rename available_at to \"not' before\\\";
             alter table outbox_messages rename to \"out'box\\\";
             alter table \"out'box\\\" set schema \"Ä \"\"b\"\"\";
             create table \"Ä \"\"b\"\"\".\"out'box\\_dlq\" (like {table});
             insert into {table} (tenant_id, aggregate_type, \"Ünïcode \"\"id\"\"\", event_type, payload)
             select 1, 'order\\', n, 'x', '{{}}' from generate_series(1, 3) n;
             update {table} set attempts = 10 where \"order\" = 1"
        )).await;
        let mut poller = outbox.poller().await;
        let claim = poller.claim(10, None).await.unwrap();
        assert_eq!(outbox.ids(&poller, &claim), ["1/1", "2/2", "3/3"]);
        poller.settle(claim, &[failed(), failed(), RowOutcome::Published]).await.unwrap();
        let left =
            format!("select count(*) from {table} where processed_at is null and attempts = 1");
        assert_eq!(outbox.client.text(&left).await.as_deref(), Some("1"));
        let dead = "select attempts from \"Ä \"\"b\"\"\".\"out'box\\_dlq\"";
        assert_eq!(outbox.client.text(dead).await.as_deref(), Some("11"));
    }
}

#[tokio::test]
async fn a_partitioned_outbox_is_polled_as_one() {
    for version in VERSIONS {
        let spec = OutboxSpec::for_layout(Layout::Postrider);
        let outbox = Outbox::with(version, spec, "poll_partitions").await;
        let sql = "create table outbox (id bigint not null, aggregate_type text not null, aggregate_id text not null,
              event_type text not null, payload json, headers json, created_at timestamptz) partition by list (id);
            create table even partition of outbox for values in (0, 2, 4, 6);
            create table odd partition of outbox for values in (1, 3, 5, 7);
            insert into outbox (id, aggregate_type, aggregate_id, event_type)
            select n, 'order', 'a', 'x' from generate_series(0, 7) n";
        outbox.client.batch(sql).await;
        let mut poller = outbox.poller().await;
        let claim = poller.claim(5, None).await.unwrap();
        assert_eq!(outbox.ids(&poller, &claim), ["a/0", "a/1", "a/2", "a/3", "a/4"]);
        let outcomes = [
            RowOutcome::Published,
            RowOutcome::Published,
            RowOutcome::Published,
            RowOutcome::Held,
            RowOutcome::Held,
        ];
        poller.settle(claim, &outcomes).await.unwrap();
        assert_eq!(outbox.drain(&mut poller, 5).await, ["a/3", "a/4", "a/5", "a/6", "a/7"]);
    }
}

#[tokio::test]
async fn a_claim_is_bounded_in_bytes_also_where_rows_are_compressed() {
    let outbox = Outbox::create(Version::Pg15, Layout::Postrider, "poll_bytes").await;
    let sql = "insert into outbox (aggregate_type, aggregate_id, event_type, payload)
        select 'order', 'a', 'x', to_json(repeat('x', 3000000)) from generate_series(1, 6)";
    outbox.client.batch(sql).await;
    let mut poller = outbox.poller().await;
    let claim = poller.claim(10, None).await.unwrap();
    let bytes: usize = claim.rows.iter().map(|row| row.bytes.len()).sum();
    assert!(claim.rows.len() == 2 && bytes <= CLAIM_BYTES_MAX && claim.more, "{claim:?}");
    published(&mut poller, claim).await;
    assert_eq!(outbox.drain(&mut poller, 10).await.len(), 4);
}

const EVERY_TYPE: &str = "
    create type mood as enum ('sad', 'ok');
    create domain short as varchar(9) check (value <> 'no');
    create table outbox (id bigint primary key, aggregate_type text, aggregate_id text, event_type text, payload json,
        headers json, created_at timestamptz, c1 bool, c2 char(5), c3 varchar(9), c4 numeric(9, 3), c5 float8, c6 real,
        c7 bytea, c8 date, c9 interval, c10 uuid, c11 jsonb, c12 int[], c13 mood, c14 short, c15 \"char\", c16 oid,
        c17 inet, c18 tsvector, c19 int4range, c20 point, c21 timestamp, c22 time, c23 name, c24 text, c25 xid);
    create publication outbox for table outbox with (publish = 'insert')";

const EVERY_VALUE: &str = "
    insert into outbox values
    (1, 'order', 'a', 'x', '{\"a\":  1.0}', null, '2024-01-02 03:04:05.600+02', true, 'ab', 'ab ', 1.5, 0.1, 1e-7,
     '\\xff00', '2024-02-29', '1 year 2 days 03:00', '00000000-0000-4000-8000-000000000001', '{\"b\": [1]}', '{1,null,3}',
     'ok', 'yes', 'c', 4294967295, '::1', 'fat:1 cat', '[1,9)', '(1,2)', '2024-01-02 03:04:05', '03:04:05.5', 'n',
     E'line\\n \\\\ \"quote\" ü', '7'),
    (2, 'order', 'a', 'x', null, '{}', 'infinity', false, '', '', 'NaN', 'Infinity', '-0', '', '0044-03-15 BC', '-1 mon',
     null, '1', '{}', null, null, null, null, null, null, 'empty', null, '-infinity', null, '', '', null)";

/// Table and texts of a row.
fn texts(row: &Row<'_>) -> (TableId, Vec<Option<Vec<u8>>>) {
    let texts = (0..row.cells.len()).map(|column| row.text(column).map(<[u8]>::to_vec));
    (row.table, texts.collect())
}

/// Names and types of columns. Polling does not tell a type that has no kind from one that is not known.
fn columns(columns: &[Column]) -> Vec<(String, Kind, bool)> {
    columns.iter().map(|column| (column.name.clone(), column.of.kind, column.of.array)).collect()
}

#[tokio::test]
async fn rows_are_byte_for_byte_those_of_the_stream() {
    for version in VERSIONS {
        let spec = OutboxSpec::for_layout(Layout::Postrider);
        let outbox = Outbox::with(version, spec, "poll_bytes_alike").await;
        outbox.client.batch(EVERY_TYPE).await;
        let slot = crate::server::unique("poll_alike");
        let make = format!("select pg_create_logical_replication_slot('{slot}', 'pgoutput')");
        outbox.client.batch(&make).await;
        outbox.client.batch(EVERY_VALUE).await;
        // As both sessions of ours have it.
        let pinned = "set datestyle = 'iso'; set timezone = 'utc'; set intervalstyle = 'postgres'";
        outbox.client.batch(pinned).await;
        let changes = format!(
            "select data from pg_logical_slot_get_binary_changes('{slot}', null, null, 'proto_version', '1',
             'publication_names', 'outbox')"
        );
        let changes = outbox.client.query(&changes, &[]).await.unwrap();
        let changes: Vec<Vec<u8>> = changes.iter().map(|row| row.get(0)).collect();
        let mut poller = outbox.poller().await;
        let table = poller.description();
        let objects = EventObjects {
            table: Some(outbox.spec.table.clone()),
            columns: table.columns.iter().map(|column| column.name.clone()).collect(),
            message_prefix: None,
        };
        let mut decoder = Decoder::new(objects, None, Encoding::UTF8);
        let (mut streamed, mut described) = (Vec::new(), None);
        for data in &changes {
            let frame =
                Frame::XLogData { wal_start: Lsn::ZERO, wal_end: Lsn::ZERO, data: data.as_slice() };
            // A domain is described as the type beneath it, which the stream leaves to the catalog.
            if decoder.change(&frame).unwrap() == Change::Blocked {
                let asked = decoder.unknown_types();
                let found = catalog::read_types(poller.client(), asked).await.unwrap();
                decoder.add_types(&found);
            }
            match decoder.change(&frame).unwrap() {
                Change::Table(of) => described = Some((of.id, columns(of.columns))),
                Change::Row(row) => streamed.push(texts(&row)),
                Change::Begin { .. } | Change::Commit { .. } | Change::Nothing => {}
                other @ (Change::Updated(_)
                | Change::Message(_)
                | Change::Collected
                | Change::Other
                | Change::Heartbeat(_)
                | Change::Blocked) => panic!("{other:?}"),
            }
        }
        assert_eq!(described, Some((table.id, columns(&table.columns))), "{version:?}");
        let claim = poller.claim(10, None).await.unwrap();
        let claimed: Vec<_> = claim.rows.iter().map(|row| texts(&row)).collect();
        assert_eq!(claimed, streamed, "{version:?}");
        assert_eq!((claimed.len(), claimed[0].1.len()), (2, 32), "{version:?}");
    }
}

#[tokio::test]
async fn a_table_that_does_not_fit_is_told_before_anything_is_claimed() {
    let outbox =
        Outbox::with(Version::Pg15, OutboxSpec::for_layout(Layout::Adr30), "poll_unfit").await;
    let error = outbox.open().await.unwrap_err();
    assert_eq!(error.sqlstate().unwrap().as_str(), "42P01", "{error}");
    outbox.client.batch("create table outbox (id uuid, aggregate_type text, aggregate_id uuid, created_at date)").await;
    let error = outbox.open().await.unwrap_err();
    assert_eq!(error.sqlstate().unwrap().as_str(), "42703", "{error}");
    assert!(error.to_string().contains("it has no column \"published_at\""), "{error}");
}

#[tokio::test]
async fn a_table_that_does_not_fit_is_told_also_while_another_polls() {
    let outbox = Outbox::create(Version::Pg15, Layout::Adr30, "poll_unfit_two").await;
    let poller = outbox.poller().await;
    outbox.client.batch("alter table outbox drop column published_at cascade").await;
    let error = outbox.open().await.unwrap_err();
    assert_eq!(error.sqlstate().unwrap().as_str(), "42703", "{error}");
    drop(poller);
}
