//! Tables that are not as the layout has them: names, partitions, sizes, what is missing.

use super::*;
use postrider::outbox::Role;
use postrider::postgres::poll::CLAIM_BYTES_MAX;

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
        poller.settle(claim, &[failed(), failed(), Settled::Published]).await.unwrap();
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
            Settled::Published,
            Settled::Published,
            Settled::Published,
            Settled::Held,
            Settled::Held,
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
    let bytes: usize = claim.rows.iter().map(bytes::Bytes::len).sum();
    assert!(claim.rows.len() == 2 && bytes <= CLAIM_BYTES_MAX && claim.more, "{claim:?}");
    published(&mut poller, claim).await;
    assert_eq!(outbox.drain(&mut poller, 10).await.len(), 4);
}

#[tokio::test]
async fn values_are_written_as_the_stream_writes_them() {
    let mut spec = OutboxSpec::for_layout(Layout::Postrider);
    spec.columns = vec![(Role::Headers, String::new())];
    spec.topic = "t-{flag}-{padded}".to_owned();
    for column in ["flag", "padded"] {
        let placement = postrider::outbox::Placement::Header(column.to_owned());
        spec.extra.push(postrider::outbox::Extra {
            column: column.to_owned(),
            placement,
            may_lack: false,
        });
    }
    let outbox = Outbox::with(Version::Pg18, spec, "poll_values").await;
    let sql = "create table outbox (id bigint, aggregate_type text, aggregate_id text, event_type text, payload bytea,
          created_at timestamptz, flag bool, padded char(3));
        insert into outbox values (1, 'order', 'a', 'x', '\\xff00', now(), true, 'p')";
    outbox.client.batch(sql).await;
    let mut poller = outbox.poller().await;
    let claim = poller.claim(1, None).await.unwrap();
    let row = String::from_utf8_lossy(&claim.rows[0]).into_owned();
    assert!(row.contains("\\xff00") && row.ends_with("t\0\0\0\u{1}tt\0\0\0\u{3}p  "), "{row:?}");
    poller.abandon().await.unwrap();
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
