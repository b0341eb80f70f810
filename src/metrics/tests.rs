//! The text of a scrape.
#![expect(clippy::needless_raw_string_hashes, reason = "expect-test writes them so")]

use super::*;
use crate::intake_status::IntakeState;
use crate::status::{
    BlockedRetention, EventLogSummary, EventLogsSummary, GroupSummary, HeldByReason, InboxSummary,
    InboxesSummary, Lag, PipelineState, RetentionSummary, RunsSummary, TransactionsSummary,
};
use expect_test::expect;
use std::time::{Duration, Instant};

fn retention(at: Instant) -> RetentionSummary {
    RetentionSummary {
        removed_rows_total: 5_000,
        partitions_created_total: 3,
        partitions_removed_total: 1,
        held_rows: vec![HeldByReason { reason: "unresolved", rows: 17 }],
        blocked: vec![BlockedRetention { reason: "replay", ..BlockedRetention::default() }],
        runs: RunsSummary { failures_total: 4, ran_at: Some(at), ..RunsSummary::default() },
    }
}

fn transactions() -> TransactionsSummary {
    TransactionsSummary {
        committed_total: 20,
        records_total: 200,
        aborted_total: 2,
        unknown_total: 1,
        fenced_total: Some(3),
        ..TransactionsSummary::default()
    }
}

fn metrics() -> Metrics {
    let metrics = Metrics::default();
    let status_handle = StatusHandle::new("orders");
    let counts = metrics.pipeline(&status_handle);
    status_handle.update(|snapshot| {
        snapshot.state = PipelineState::Streaming;
        snapshot.published_total = 7;
        snapshot.skipped_total = 2;
        // In the future, so that the lag does not grow while the test runs.
        let at = Instant::now() + Duration::from_hours(1);
        snapshot.moments.lag = Lag::Growing { was: Duration::from_millis(250), at };
        snapshot.moments.source_contact_at = Some(at);
        snapshot.lag_bytes = 4096;
        snapshot.in_flight_events = 3;
        snapshot.in_flight_bytes = 900;
        snapshot.slot_retained_bytes = Some(16 << 20);
        snapshot.slot_retain_max_bytes = Some(64 << 20);
        snapshot.slot_safe_bytes = Some(-1);
        snapshot.slot_state = Some("reserved".to_owned());
        snapshot.sink.transactions = Some(transactions());
        snapshot.maintenance.pruned_total = 1_200;
        snapshot.maintenance.bookmarks_dropped_total = 1;
        snapshot.maintenance.runs.failures_total = 2;
        snapshot.maintenance.runs.ran_at = Some(at);
        snapshot.maintenance.retention = Some(retention(at));
        snapshot.maintenance.event_logs = Some(EventLogsSummary {
            logs: vec![EventLogSummary {
                log: "shop".to_owned(),
                first_seq: 101,
                last_seq: 300,
                groups: vec![GroupSummary {
                    group: "billing".to_owned(),
                    lag_events: 17,
                    lag_seconds: 4.5,
                    consumers_alive: 3,
                    consumers_silent: 1,
                    leased_partitions: 4,
                    deliveries_max: 2,
                    evicted: true,
                    held_events: 40,
                }],
            }],
            unreported: 5,
            dropped_total: 6,
            runs: RunsSummary { failures_total: 7, ran_at: Some(at), ..Default::default() },
        });
        snapshot.maintenance.inboxes.push(InboxesSummary {
            database: "source",
            inboxes: vec![InboxSummary {
                inbox: "stock".to_owned(),
                pending: 12,
                dead: 1,
                oldest_pending_seconds: 3.5,
                gaps: Some(2),
                health: "degraded".to_owned(),
            }],
            unreported: 8,
            drained_total: 9,
            runs: RunsSummary { failures_total: 10, ran_at: Some(at), ..Default::default() },
        });
    });
    counts.latency().observe(Duration::from_micros(500));
    counts.latency().observe_many(Duration::from_millis(3), 2);
    counts.latency().observe(Duration::from_secs(100));
    counts.commits().observe(Duration::from_millis(4));
    counts.reconnected(Side::Source, "transient");
    counts.failed("order\"\n\\placed");
    metrics
}

#[test]
#[expect(clippy::too_many_lines, reason = "it is the snapshot")]
fn a_scrape_shows_everything() {
    expect![[r##"
        # HELP postrider_events Events by outcome since the start
        # TYPE postrider_events counter
        postrider_events_total{pipeline="orders",shard="0",outcome="published"} 7
        postrider_events_total{pipeline="orders",shard="0",outcome="parked"} 0
        postrider_events_total{pipeline="orders",shard="0",outcome="skipped"} 2
        # HELP postrider_skipped Changes skipped on purpose since the start, by reason
        # TYPE postrider_skipped counter
        postrider_skipped_total{pipeline="orders",shard="0",reason="not_inserts"} 0
        postrider_skipped_total{pipeline="orders",shard="0",reason="others"} 0
        postrider_skipped_total{pipeline="orders",shard="0",reason="expired"} 0
        postrider_skipped_total{pipeline="orders",shard="0",reason="not_transactional"} 0
        postrider_skipped_total{pipeline="orders",shard="0",reason="repeated"} 0
        # HELP postrider_publish_latency_seconds From commit to the broker's acknowledgement
        # TYPE postrider_publish_latency_seconds histogram
        postrider_publish_latency_seconds_sum{pipeline="orders",shard="0"} 100.0065
        postrider_publish_latency_seconds_count{pipeline="orders",shard="0"} 4
        postrider_publish_latency_seconds_bucket{le="0.0005",pipeline="orders",shard="0"} 1
        postrider_publish_latency_seconds_bucket{le="0.001",pipeline="orders",shard="0"} 1
        postrider_publish_latency_seconds_bucket{le="0.002",pipeline="orders",shard="0"} 1
        postrider_publish_latency_seconds_bucket{le="0.005",pipeline="orders",shard="0"} 3
        postrider_publish_latency_seconds_bucket{le="0.01",pipeline="orders",shard="0"} 3
        postrider_publish_latency_seconds_bucket{le="0.02",pipeline="orders",shard="0"} 3
        postrider_publish_latency_seconds_bucket{le="0.05",pipeline="orders",shard="0"} 3
        postrider_publish_latency_seconds_bucket{le="0.1",pipeline="orders",shard="0"} 3
        postrider_publish_latency_seconds_bucket{le="0.25",pipeline="orders",shard="0"} 3
        postrider_publish_latency_seconds_bucket{le="0.5",pipeline="orders",shard="0"} 3
        postrider_publish_latency_seconds_bucket{le="1.0",pipeline="orders",shard="0"} 3
        postrider_publish_latency_seconds_bucket{le="2.5",pipeline="orders",shard="0"} 3
        postrider_publish_latency_seconds_bucket{le="5.0",pipeline="orders",shard="0"} 3
        postrider_publish_latency_seconds_bucket{le="10.0",pipeline="orders",shard="0"} 3
        postrider_publish_latency_seconds_bucket{le="30.0",pipeline="orders",shard="0"} 3
        postrider_publish_latency_seconds_bucket{le="60.0",pipeline="orders",shard="0"} 3
        postrider_publish_latency_seconds_bucket{le="+Inf",pipeline="orders",shard="0"} 4
        # HELP postrider_sink_commit_seconds Commits of the sink's transactions, from the call to the answer
        # TYPE postrider_sink_commit_seconds histogram
        postrider_sink_commit_seconds_sum{pipeline="orders",shard="0"} 0.004
        postrider_sink_commit_seconds_count{pipeline="orders",shard="0"} 1
        postrider_sink_commit_seconds_bucket{le="0.0005",pipeline="orders",shard="0"} 0
        postrider_sink_commit_seconds_bucket{le="0.001",pipeline="orders",shard="0"} 0
        postrider_sink_commit_seconds_bucket{le="0.002",pipeline="orders",shard="0"} 0
        postrider_sink_commit_seconds_bucket{le="0.005",pipeline="orders",shard="0"} 1
        postrider_sink_commit_seconds_bucket{le="0.01",pipeline="orders",shard="0"} 1
        postrider_sink_commit_seconds_bucket{le="0.02",pipeline="orders",shard="0"} 1
        postrider_sink_commit_seconds_bucket{le="0.05",pipeline="orders",shard="0"} 1
        postrider_sink_commit_seconds_bucket{le="0.1",pipeline="orders",shard="0"} 1
        postrider_sink_commit_seconds_bucket{le="0.25",pipeline="orders",shard="0"} 1
        postrider_sink_commit_seconds_bucket{le="0.5",pipeline="orders",shard="0"} 1
        postrider_sink_commit_seconds_bucket{le="1.0",pipeline="orders",shard="0"} 1
        postrider_sink_commit_seconds_bucket{le="2.5",pipeline="orders",shard="0"} 1
        postrider_sink_commit_seconds_bucket{le="5.0",pipeline="orders",shard="0"} 1
        postrider_sink_commit_seconds_bucket{le="10.0",pipeline="orders",shard="0"} 1
        postrider_sink_commit_seconds_bucket{le="30.0",pipeline="orders",shard="0"} 1
        postrider_sink_commit_seconds_bucket{le="60.0",pipeline="orders",shard="0"} 1
        postrider_sink_commit_seconds_bucket{le="+Inf",pipeline="orders",shard="0"} 1
        # HELP postrider_sink_transactions Transactions of the sink since the start, by outcome
        # TYPE postrider_sink_transactions counter
        postrider_sink_transactions_total{pipeline="orders",shard="0",outcome="committed"} 20
        postrider_sink_transactions_total{pipeline="orders",shard="0",outcome="aborted"} 2
        postrider_sink_transactions_total{pipeline="orders",shard="0",outcome="unknown"} 1
        # HELP postrider_sink_transaction_records Records of committed transactions of the sink
        # TYPE postrider_sink_transaction_records counter
        postrider_sink_transaction_records_total{pipeline="orders",shard="0"} 200
        # HELP postrider_sink_fenced Producers that brokers have fenced off since the start
        # TYPE postrider_sink_fenced counter
        postrider_sink_fenced_total{pipeline="orders",shard="0"} 3
        # HELP postrider_lag_seconds Age of the oldest commit that is not published or parked
        # TYPE postrider_lag_seconds gauge
        postrider_lag_seconds{pipeline="orders",shard="0"} 0.25
        # HELP postrider_source_contact_seconds Time since the database last answered
        # TYPE postrider_source_contact_seconds gauge
        postrider_source_contact_seconds{pipeline="orders",shard="0"} 0.0
        # HELP postrider_lag_bytes WAL between the server's end and what is confirmed
        # TYPE postrider_lag_bytes gauge
        postrider_lag_bytes{pipeline="orders",shard="0"} 4096.0
        # HELP postrider_in_flight_events Events sent to the broker without a report yet
        # TYPE postrider_in_flight_events gauge
        postrider_in_flight_events{pipeline="orders",shard="0"} 3.0
        # HELP postrider_in_flight_bytes Bytes sent to the broker without a report yet
        # TYPE postrider_in_flight_bytes gauge
        postrider_in_flight_bytes{pipeline="orders",shard="0"} 900.0
        # HELP postrider_slot_retained_bytes WAL the slot retains
        # TYPE postrider_slot_retained_bytes gauge
        postrider_slot_retained_bytes{pipeline="orders",shard="0"} 16777216.0
        # HELP postrider_slot_retain_max_bytes WAL the slot may retain at most
        # TYPE postrider_slot_retain_max_bytes gauge
        postrider_slot_retain_max_bytes{pipeline="orders",shard="0"} 67108864.0
        # HELP postrider_slot_safe_bytes WAL that can be written before the slot is lost
        # TYPE postrider_slot_safe_bytes gauge
        postrider_slot_safe_bytes{pipeline="orders",shard="0"} 0.0
        # HELP postrider_parked_events Parked events, by state
        # TYPE postrider_parked_events gauge
        postrider_parked_events{pipeline="orders",shard="0",state="waiting"} 0.0
        postrider_parked_events{pipeline="orders",shard="0",state="behind"} 0.0
        postrider_parked_events{pipeline="orders",shard="0",state="due"} 0.0
        postrider_parked_events{pipeline="orders",shard="0",state="dead"} 0.0
        # HELP postrider_parked_attempts Highest number of attempts of a parked event that later events wait for
        # TYPE postrider_parked_attempts gauge
        postrider_parked_attempts{pipeline="orders",shard="0"} 0.0
        # HELP postrider_parked_oldest_seconds How long the oldest parked event has been parked
        # TYPE postrider_parked_oldest_seconds gauge
        postrider_parked_oldest_seconds{pipeline="orders",shard="0"} 0.0
        # HELP outbox_dlq_depth Dead events, which only a person can move
        # TYPE outbox_dlq_depth gauge
        outbox_dlq_depth{pipeline="orders",shard="0"} 0.0
        # HELP postrider_slot_state The slot's wal_status: 1 for the current one
        # TYPE postrider_slot_state gauge
        postrider_slot_state{pipeline="orders",shard="0",state="reserved"} 1
        postrider_slot_state{pipeline="orders",shard="0",state="extended"} 0
        postrider_slot_state{pipeline="orders",shard="0",state="unreserved"} 0
        postrider_slot_state{pipeline="orders",shard="0",state="lost"} 0
        postrider_slot_state{pipeline="orders",shard="0",state="missing"} 0
        # HELP postrider_state State of the pipeline: 1 for the current one
        # TYPE postrider_state gauge
        postrider_state{pipeline="orders",shard="0",state="starting"} 0
        postrider_state{pipeline="orders",shard="0",state="streaming"} 1
        postrider_state{pipeline="orders",shard="0",state="polling"} 0
        postrider_state{pipeline="orders",shard="0",state="catching_up"} 0
        postrider_state{pipeline="orders",shard="0",state="standing_by"} 0
        postrider_state{pipeline="orders",shard="0",state="broker_down"} 0
        postrider_state{pipeline="orders",shard="0",state="source_down"} 0
        postrider_state{pipeline="orders",shard="0",state="parking_full"} 0
        postrider_state{pipeline="orders",shard="0",state="draining"} 0
        postrider_state{pipeline="orders",shard="0",state="paused"} 0
        postrider_state{pipeline="orders",shard="0",state="halted"} 0
        postrider_state{pipeline="orders",shard="0",state="stopped"} 0
        # HELP postrider_halted Whether the pipeline waits for an operator, and the code of the halt
        # TYPE postrider_halted gauge
        postrider_halted{pipeline="orders",shard="0"} 0
        # HELP postrider_parked_pruned Rows of resolved parked events deleted since the start
        # TYPE postrider_parked_pruned counter
        postrider_parked_pruned_total{pipeline="orders",shard="0"} 1200
        # HELP postrider_bookmarks_dropped Bookmarks dropped automatically since the start
        # TYPE postrider_bookmarks_dropped counter
        postrider_bookmarks_dropped_total{pipeline="orders",shard="0"} 1
        # HELP postrider_maintenance_failures Failed runs of maintenance since the start
        # TYPE postrider_maintenance_failures counter
        postrider_maintenance_failures_total{pipeline="orders",shard="0"} 2
        # HELP postrider_maintenance_last_run_seconds Time since the last run of maintenance that did all its work
        # TYPE postrider_maintenance_last_run_seconds gauge
        postrider_maintenance_last_run_seconds{pipeline="orders",shard="0"} 0.0
        # HELP postrider_retention_removed_rows Rows of the outbox removed since the start
        # TYPE postrider_retention_removed_rows counter
        postrider_retention_removed_rows_total{pipeline="orders",shard="0"} 5000
        # HELP postrider_retention_partitions_created Partitions created since the start
        # TYPE postrider_retention_partitions_created counter
        postrider_retention_partitions_created_total{pipeline="orders",shard="0"} 3
        # HELP postrider_retention_partitions_removed Partitions dropped or archived since the start
        # TYPE postrider_retention_partitions_removed counter
        postrider_retention_partitions_removed_total{pipeline="orders",shard="0"} 1
        # HELP postrider_retention_failures Failed passes of retention since the start
        # TYPE postrider_retention_failures counter
        postrider_retention_failures_total{pipeline="orders",shard="0"} 4
        # HELP postrider_retention_held_rows Rows old enough that the last pass kept, by reason
        # TYPE postrider_retention_held_rows gauge
        postrider_retention_held_rows{pipeline="orders",shard="0",reason="unresolved"} 17.0
        # HELP postrider_retention_blocked What blocked the removal of all rows in the last pass
        # TYPE postrider_retention_blocked gauge
        postrider_retention_blocked{pipeline="orders",shard="0",reason="replay"} 1
        # HELP postrider_retention_last_run_seconds Time since the last pass of retention that did all its work
        # TYPE postrider_retention_last_run_seconds gauge
        postrider_retention_last_run_seconds{pipeline="orders",shard="0"} 0.0
        # HELP postrider_log_last_seq Number of the last event of an event log
        # TYPE postrider_log_last_seq gauge
        postrider_log_last_seq{pipeline="orders",shard="0",log="shop"} 300.0
        # HELP postrider_log_retained_events Events that an event log has
        # TYPE postrider_log_retained_events gauge
        postrider_log_retained_events{pipeline="orders",shard="0",log="shop"} 200.0
        # HELP postrider_log_children_dropped Tables of events dropped since the start
        # TYPE postrider_log_children_dropped counter
        postrider_log_children_dropped_total{pipeline="orders",shard="0"} 6
        # HELP postrider_log_maintenance_failures Failed runs of log maintenance since the start
        # TYPE postrider_log_maintenance_failures counter
        postrider_log_maintenance_failures_total{pipeline="orders",shard="0"} 7
        # HELP postrider_log_maintenance_last_run_seconds Time since the last run of log maintenance that did all its work
        # TYPE postrider_log_maintenance_last_run_seconds gauge
        postrider_log_maintenance_last_run_seconds{pipeline="orders",shard="0"} 0.0
        # HELP postrider_groups_unreported Event logs and groups beyond the limits of this page
        # TYPE postrider_groups_unreported gauge
        postrider_groups_unreported{pipeline="orders",shard="0"} 5.0
        # HELP postrider_group_lag_events Events that a consumer group has not done
        # TYPE postrider_group_lag_events gauge
        postrider_group_lag_events{pipeline="orders",shard="0",log="shop",group="billing"} 17.0
        # HELP postrider_group_lag_seconds How long the oldest event not done has been in the log
        # TYPE postrider_group_lag_seconds gauge
        postrider_group_lag_seconds{pipeline="orders",shard="0",log="shop",group="billing"} 4.5
        # HELP postrider_group_leased_partitions Hash partitions with a lease
        # TYPE postrider_group_leased_partitions gauge
        postrider_group_leased_partitions{pipeline="orders",shard="0",log="shop",group="billing"} 4.0
        # HELP postrider_group_deliveries Highest number of times that events not done were given out
        # TYPE postrider_group_deliveries gauge
        postrider_group_deliveries{pipeline="orders",shard="0",log="shop",group="billing"} 2.0
        # HELP postrider_group_evicted Whether a group is evicted
        # TYPE postrider_group_evicted gauge
        postrider_group_evicted{pipeline="orders",shard="0",log="shop",group="billing"} 1.0
        # HELP postrider_group_held_events Events of tables old enough to be dropped that the group has not passed
        # TYPE postrider_group_held_events gauge
        postrider_group_held_events{pipeline="orders",shard="0",log="shop",group="billing"} 40.0
        # HELP postrider_group_consumers Consumers of a group, by state
        # TYPE postrider_group_consumers gauge
        postrider_group_consumers{pipeline="orders",shard="0",log="shop",group="billing",state="alive"} 3.0
        postrider_group_consumers{pipeline="orders",shard="0",log="shop",group="billing",state="silent"} 1.0
        # HELP postrider_inbox_pending_messages Messages of an inbox neither processed nor dead
        # TYPE postrider_inbox_pending_messages gauge
        postrider_inbox_pending_messages{pipeline="orders",shard="0",database="source",inbox="stock"} 12.0
        # HELP postrider_inbox_dead_messages Dead messages of an inbox
        # TYPE postrider_inbox_dead_messages gauge
        postrider_inbox_dead_messages{pipeline="orders",shard="0",database="source",inbox="stock"} 1.0
        # HELP postrider_inbox_oldest_pending_seconds How long ago the oldest pending message arrived
        # TYPE postrider_inbox_oldest_pending_seconds gauge
        postrider_inbox_oldest_pending_seconds{pipeline="orders",shard="0",database="source",inbox="stock"} 3.5
        # HELP postrider_inbox_degraded Whether an inbox is degraded or critical
        # TYPE postrider_inbox_degraded gauge
        postrider_inbox_degraded{pipeline="orders",shard="0",database="source",inbox="stock"} 1.0
        # HELP postrider_inbox_gaps Aggregates of an inbox that wait for missing numbers
        # TYPE postrider_inbox_gaps gauge
        postrider_inbox_gaps{pipeline="orders",shard="0",database="source",inbox="stock"} 2.0
        # HELP postrider_inbox_drained_messages Old messages of inboxes deleted since the start
        # TYPE postrider_inbox_drained_messages counter
        postrider_inbox_drained_messages_total{pipeline="orders",shard="0",database="source"} 9
        # HELP postrider_inbox_maintenance_failures Failed runs of inbox maintenance since the start
        # TYPE postrider_inbox_maintenance_failures counter
        postrider_inbox_maintenance_failures_total{pipeline="orders",shard="0",database="source"} 10
        # HELP postrider_inbox_maintenance_last_run_seconds Time since the last run of inbox maintenance that did all its work
        # TYPE postrider_inbox_maintenance_last_run_seconds gauge
        postrider_inbox_maintenance_last_run_seconds{pipeline="orders",shard="0",database="source"} 0.0
        # HELP postrider_inboxes_unreported Inboxes beyond the limit
        # TYPE postrider_inboxes_unreported gauge
        postrider_inboxes_unreported{pipeline="orders",shard="0",database="source"} 8.0
        # HELP postrider_reconnects Connections lost and recreated since the start
        # TYPE postrider_reconnects counter
        postrider_reconnects_total{pipeline="orders",shard="0",side="source",class="transient"} 1
        # HELP outbox_lag_seconds The same as postrider_lag_seconds
        # TYPE outbox_lag_seconds gauge
        outbox_lag_seconds{pipeline="orders",shard="0"} 0.25
        # HELP outbox_throughput Events published since the start, a counter
        # TYPE outbox_throughput unknown
        outbox_throughput{pipeline="orders",shard="0"} 7
        # HELP outbox_failures Events that could not be published, a counter
        # TYPE outbox_failures unknown
        outbox_failures{pipeline="orders",shard="0",event_type="order\"\n\\placed"} 1
        # HELP postrider_admin_connections_closed Connections of the admin endpoint closed before they were answered, by reason
        # TYPE postrider_admin_connections_closed counter
        postrider_admin_connections_closed_total{reason="full"} 0
        postrider_admin_connections_closed_total{reason="late"} 0
        # EOF
    "##]]
    .assert_eq(&without_process(&metrics().text().unwrap()));
}

/// The text without the figures of the process, which differ from run to run.
fn without_process(text: &str) -> String {
    let is_of_process = |line: &&str| {
        !line.trim_start_matches("# HELP ").trim_start_matches("# TYPE ").starts_with("process_")
    };
    text.lines().filter(is_of_process).flat_map(|line| [line, "\n"]).collect()
}

/// The metrics of `postrider inbox run`.
#[test]
fn intakes_have_their_own_metrics_and_processes_without_intakes_have_none_of_them() {
    let metrics = Metrics::default();
    assert!(!metrics.text().unwrap().contains("postrider_intake"));
    metrics.intake(&intake());
    let text = metrics.text().unwrap();
    let lines: Vec<&str> =
        text.lines().filter(|line| line.starts_with("postrider_intake")).collect();
    expect![[r#"
        postrider_intake_messages_total{intake="mail",outcome="stored"} 10
        postrider_intake_messages_total{intake="mail",outcome="repeated"} 2
        postrider_intake_messages_total{intake="mail",outcome="dead"} 1
        postrider_intake_messages_total{intake="mail",outcome="refused"} 0
        postrider_intake_messages_total{intake="mail",outcome="lost"} 0
        postrider_intake_lag_records{intake="mail"} 5.0
        postrider_intake_pending_messages{intake="mail"} 7.0
        postrider_intake_partitions{intake="mail"} 3.0
        postrider_intake_blocked_partitions{intake="mail"} 1.0
        postrider_intake_last_stored_seconds{intake="mail"} 0.0
    "#]]
    .assert_eq(&format!("{}\n", lines[..10].join("\n")));
    assert!(lines.contains(&"postrider_intake_state{intake=\"mail\",state=\"storing\"} 1"));
    assert!(lines.contains(&"postrider_intake_state{intake=\"mail\",state=\"full\"} 0"));
}

fn intake() -> IntakeHandle {
    let handle = IntakeHandle::new("mail", "mail", "kafka");
    handle.update(|snapshot| {
        snapshot.state = IntakeState::Storing;
        (
            snapshot.totals.stored_total,
            snapshot.totals.repeated_total,
            snapshot.totals.dead_total,
        ) = (10, 2, 1);
        (snapshot.lag_records, snapshot.pending) = (Some(5), Some(7));
        (snapshot.partitions, snapshot.blocked_total) = (3, 1);
        // In the future, so that it does not grow while the test runs.
        snapshot.stored_at = Some(Instant::now() + Duration::from_hours(1));
    });
    handle
}

#[test]
fn every_metric_of_the_catalog_is_shown_and_explained() {
    let metrics = metrics();
    metrics.intake(&intake());
    let text = metrics.text().unwrap();
    let page = include_str!("../../docs/metrics.md");
    for (name, _) in CATALOG {
        // Metrics of the process have no label.
        let shown = |rest: &str| rest.starts_with(['{', '_', ' ']);
        let mut lines = text.lines().filter(|line| !line.starts_with('#'));
        assert!(
            lines.any(|line| line.strip_prefix(name).is_some_and(shown)),
            "{name} is not shown"
        );
        assert!(page.contains(&format!("`{name}`")), "{name} is not in docs/metrics.md");
    }
    let words = page.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    let prefixes = ["postrider_", "outbox_", "process_"];
    for word in words.filter(|word| prefixes.iter().any(|prefix| word.starts_with(prefix))) {
        let base = ["_bucket", "_count", "_sum"].iter().find_map(|end| word.strip_suffix(end));
        let known = |name: &str| CATALOG.iter().any(|(known, _)| *known == name);
        assert!(known(word) || base.is_some_and(known), "docs/metrics.md has {word}, no metric");
    }
}

#[test]
fn a_halt_has_its_code_in_a_label() {
    let metrics = Metrics::default();
    let status_handle = StatusHandle::new("orders");
    metrics.pipeline(&status_handle);
    let halted = || {
        metrics
            .text()
            .unwrap()
            .lines()
            .find(|l| l.starts_with("postrider_halted{"))
            .unwrap()
            .to_owned()
    };
    assert_eq!(halted(), "postrider_halted{pipeline=\"orders\",shard=\"0\"} 0");
    status_handle.update(|snapshot| snapshot.halt_code = Some("PR002"));
    assert_eq!(halted(), "postrider_halted{pipeline=\"orders\",shard=\"0\",code=\"PR002\"} 1");
}

#[test]
fn event_types_are_bounded() {
    let counts = PipelineMetrics::default();
    for number in 0..EVENT_TYPES_MAX * 2 {
        counts.failed(&format!("type-{number}"));
    }
    let failures = counts.failures();
    assert_eq!(failures.len(), EVENT_TYPES_MAX + 1);
    assert_eq!(failures[OTHER_EVENT_TYPE], EVENT_TYPES_MAX as u64);
}

#[test]
fn a_duration_on_a_bound_belongs_below_it() {
    let latency = Latency::default();
    latency.observe(Duration::from_micros(500));
    latency.observe(Duration::from_micros(501));
    let (_, buckets) = latency.read();
    assert_eq!((buckets[0].1, buckets[1].1), (1, 1));
}
