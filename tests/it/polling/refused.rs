//! What nobody but the broker can tell: it refuses a batch for one of its events. Those of the batch are published one
//! at a time then, and the one it means is parked.

use super::{count, ids, polling};
use crate::await_that::SOON;
use crate::server::Version;
use crate::sink_caller::alter;
use crate::topic::ReadRecord;
use std::collections::HashSet;

/// An hour: what was made long ago is refused, and no sink looks at that.
const OLD: (&str, &str) = ("message.timestamp.before.max.ms", "3600000");

/// Numbers and aggregates; 2 and 5 are refused.
const ROWS: &str = "(values (1, 1), (2, 1), (3, 2), (4, 1), (5, 2), (6, 2), (7, 3)) v(i, a)";

const MADE: &str = "case when i in (2, 5) then now() - interval '1 day' else now() end";

/// The ids of each aggregate. What was in flight at a refusal may come twice.
fn first_copies(records: &[ReadRecord]) -> [String; 3] {
    ["1", "2", "3"].map(|key| {
        let mut ids = ids(records, key);
        let mut seen = HashSet::new();
        ids.retain(|id| seen.insert(id.clone()));
        ids.join(" ")
    })
}

#[tokio::test]
async fn event_that_only_the_broker_refuses_is_found_and_parked() {
    let pipeline = polling(Version::Pg17, "pollrefuse", "postrider").await;
    alter(&pipeline.topic, OLD.0, OLD.1).await;
    let insert = format!(
        "insert into outbox (aggregate_type, aggregate_id, event_type, payload, created_at) \
         select 'order', a, 'T', '1', {MADE} from {ROWS}"
    );
    pipeline.sql.batch(&insert).await;
    let relay = pipeline.run();
    let states = "select string_agg(event_id || ' ' || state, ', ' order by commit_lsn, ordinal) \
                  from postrider.parked";
    count(&pipeline, states, "2 dead, 4 behind, 5 dead, 6 behind").await;
    count(&pipeline, "select count(*)::text from outbox", "0").await;
    let records = pipeline.topic.read_all().await;
    assert_eq!(first_copies(&records), ["1", "3", "7"], "none behind a parked one");
    // Others go on.
    pipeline.insert(20).await;
    count(&pipeline, "select count(*)::text from outbox", "0").await;
    assert_eq!(relay.terminate(SOON).await.code, Some(0));
}

/// Where the table has columns for it, nothing but the claim knows which aggregates wait, until it is settled.
#[tokio::test]
async fn refused_events_of_one_claim_hold_up_their_aggregates_in_a_table_that_keeps_failures() {
    let mut pipeline = polling(Version::Pg18, "pollrefusekeep", "commerce").await;
    pipeline.config = pipeline.config.replace("attempts_max = 3", "attempts_max = 1000");
    alter(&pipeline.topic, OLD.0, OLD.1).await;
    let insert = format!(
        "insert into outbox_messages \
         (tenant_id, aggregate_type, aggregate_id, event_type, event_version, payload, occurred_at) \
         select 1, 'order', a, 'T', 1, to_jsonb(i), {MADE} from {ROWS}"
    );
    pipeline.sql.batch(&insert).await;
    let relay = pipeline.run();
    let published = "select string_agg(id::text, ' ' order by id) from outbox_messages where processed_at is not null";
    count(&pipeline, published, "1 3 7").await;
    let failed = "select string_agg(id::text, ' ' order by id) from outbox_messages \
                  where attempts > 1 and last_error is not null";
    count(&pipeline, failed, "2 5").await;
    let records = pipeline.topic.read_all().await;
    assert_eq!(first_copies(&records), ["1", "3", "7"], "none behind a failed one");
    alter(&pipeline.topic, OLD.0, "9223372036854775807").await;
    count(&pipeline, published, "1 2 3 4 5 6 7").await;
    let records = pipeline.topic.read_all().await;
    assert_eq!(first_copies(&records), ["1 2 4", "3 5 6", "7"], "in order");
    assert_eq!(relay.terminate(SOON).await.code, Some(0));
}
