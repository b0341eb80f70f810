//! What a claim costs behind a backlog, with the index of its order and without.

use super::*;
use crate::pipeline::show;
use postrider::store::PipelineKey;
use std::time::Instant;

/// Rows that wait.
const BACKLOG: u32 = 100_000;

/// Claims that are measured, and the rows of each.
const CLAIMS: (u32, usize) = (5, 100);

/// A layout, its rows, and the index that `check` asks for.
const CASES: [(Layout, &str, &str); 4] = [
    (
        Layout::Commerce,
        "insert into outbox_messages (tenant_id, aggregate_type, aggregate_id, event_type, payload, trace_id) \
         select 1, 'Order', n % 1000, 'x', '{}', 't' from generate_series(1, {n}) n",
        "create index on outbox_messages (id) where processed_at is null",
    ),
    (
        Layout::Gcx,
        "insert into outbox (aggregate_type, aggregate_id, event_type, topic, payload, created_at) \
         select 'Order', gen_random_uuid(), 'x', 'orders', '{}', now() + n * interval '1 us' \
         from generate_series(1, {n}) n",
        "create index on outbox (created_at) where status = 'pending'",
    ),
    (
        Layout::Sqlgarden,
        "insert into outbox_events (aggregate_type, aggregate_id, event_type, payload) \
         select 'Order', n % 1000, 'x', '{}' from generate_series(1, {n}) n",
        "create index on outbox_events (id) where status <> 'PUBLISHED'",
    ),
    (
        Layout::Adr30,
        "insert into outbox (aggregate_type, aggregate_id, event_type, payload, created_at) \
         select 'booking', gen_random_uuid(), 'x', '{}', now() + n * interval '1 us' \
         from generate_series(1, {n}) n",
        "create index on outbox (created_at) where published_at is null",
    ),
];

const NO_INDEXES: &str = "do $$ declare i regclass; begin \
    for i in select indexrelid::regclass from pg_index join pg_class c on c.oid = indrelid \
      where c.relnamespace = 'public'::regnamespace and not indisprimary \
    loop execute format('drop index %s', i); end loop; end $$";

/// Milliseconds of one claim with its marks.
async fn claim_ms(outbox: &Outbox) -> f64 {
    let mut poller = outbox.poller().await;
    let since = Instant::now();
    for _ in 0..CLAIMS.0 {
        let claim = poller.claim(CLAIMS.1, None).await.unwrap();
        assert_eq!(claim.rows.len(), CLAIMS.1);
        published(&mut poller, claim).await;
    }
    since.elapsed().as_secs_f64() * 1000.0 / f64::from(CLAIMS.0)
}

#[tokio::test]
async fn claim_behind_a_backlog_costs_a_fraction_with_the_index_that_check_asks_for() {
    for (layout, rows, index) in CASES {
        let mut outbox = Outbox::create(Version::Pg17, layout, "poll_backlog").await;
        outbox.client.batch(NO_INDEXES).await;
        outbox.client.batch(&rows.replace("{n}", &BACKLOG.to_string())).await;
        outbox.client.batch("vacuum analyze").await;
        let without = claim_ms(&outbox).await;
        outbox.client.batch(index).await;
        outbox.spec.key = PipelineKey::first("again");
        let with = claim_ms(&outbox).await;
        show(&format!(
            "{layout:?}: {BACKLOG} rows wait, a claim of {} takes {without:.1} ms with a primary key alone, {with:.1} ms \
             with the index",
            CLAIMS.1
        ));
        // A number's order is that of the primary key, as long as nothing published is in front.
        let key_serves = matches!(layout, Layout::Commerce | Layout::Sqlgarden);
        assert!(key_serves || without > 3.0 * with, "{layout:?}: {without} ms and {with} ms");
    }
}
