//! The names of all metrics, and how a family of them begins in a scrape.

use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder};
use prometheus_client::metrics::MetricType;
use std::fmt;

/// Every metric: its name in a scrape, and its help. A test compares `docs/metrics.md` with this list.
pub const CATALOG: &[(&str, &str)] = &[
    ("postrider_events_total", "Events by outcome since the start"),
    ("postrider_skipped_total", "Changes skipped on purpose since the start, by reason"),
    ("postrider_publish_latency_seconds", "From commit to the broker's acknowledgement"),
    (
        "postrider_sink_commit_seconds",
        "Commits of the sink's transactions, from the call to the answer",
    ),
    ("postrider_sink_transactions_total", "Transactions of the sink since the start, by outcome"),
    ("postrider_sink_transaction_records_total", "Records of committed transactions of the sink"),
    ("postrider_sink_fenced_total", "Producers that brokers have fenced off since the start"),
    ("postrider_lag_seconds", "Age of the oldest commit that is not published or parked"),
    ("postrider_source_contact_seconds", "Time since the database last answered"),
    ("postrider_lag_bytes", "WAL between the server's end and what is confirmed"),
    ("postrider_in_flight_events", "Events sent to the broker without a report yet"),
    ("postrider_in_flight_bytes", "Bytes sent to the broker without a report yet"),
    ("postrider_parked_events", "Parked events, by state"),
    (
        "postrider_parked_attempts",
        "Highest number of attempts of a parked event that later events wait for",
    ),
    ("postrider_parked_oldest_seconds", "How long the oldest parked event has been parked"),
    ("postrider_slot_retained_bytes", "WAL the slot retains"),
    ("postrider_slot_retain_max_bytes", "WAL the slot may retain at most"),
    ("postrider_slot_safe_bytes", "WAL that can be written before the slot is lost"),
    ("postrider_slot_state", "The slot's wal_status: 1 for the current one"),
    ("postrider_state", "State of the pipeline: 1 for the current one"),
    ("postrider_halted", "Whether the pipeline waits for an operator, and the code of the halt"),
    ("postrider_parked_pruned_total", "Rows of resolved parked events deleted since the start"),
    ("postrider_bookmarks_dropped_total", "Bookmarks dropped automatically since the start"),
    ("postrider_maintenance_failures_total", "Failed runs of maintenance since the start"),
    (
        "postrider_maintenance_last_run_seconds",
        "Time since the last run of maintenance that did all its work",
    ),
    ("postrider_retention_removed_rows_total", "Rows of the outbox removed since the start"),
    ("postrider_retention_partitions_created_total", "Partitions created since the start"),
    (
        "postrider_retention_partitions_removed_total",
        "Partitions dropped or archived since the start",
    ),
    ("postrider_retention_held_rows", "Rows old enough that the last pass kept, by reason"),
    ("postrider_retention_blocked", "What blocked the removal of all rows in the last pass"),
    ("postrider_retention_failures_total", "Failed passes of retention since the start"),
    (
        "postrider_retention_last_run_seconds",
        "Time since the last pass of retention that did all its work",
    ),
    ("postrider_log_last_seq", "Number of the last event of an event log"),
    ("postrider_log_retained_events", "Events that an event log has"),
    ("postrider_log_children_dropped_total", "Tables of events dropped since the start"),
    ("postrider_log_maintenance_failures_total", "Failed runs of log maintenance since the start"),
    (
        "postrider_log_maintenance_last_run_seconds",
        "Time since the last run of log maintenance that did all its work",
    ),
    ("postrider_groups_unreported", "Event logs and groups beyond the limits of this page"),
    ("postrider_group_lag_events", "Events that a consumer group has not done"),
    ("postrider_group_lag_seconds", "How long the oldest event not done has been in the log"),
    ("postrider_group_consumers", "Consumers of a group, by state"),
    ("postrider_group_leased_partitions", "Hash partitions with a lease"),
    ("postrider_group_deliveries", "Highest number of times that events not done were given out"),
    ("postrider_group_evicted", "Whether a group is evicted"),
    (
        "postrider_group_held_events",
        "Events of tables old enough to be dropped that the group has not passed",
    ),
    ("postrider_intake_messages_total", "Messages of an intake since the start, by outcome"),
    ("postrider_intake_lag_records", "Records that the intake has not stored yet"),
    ("postrider_intake_pending_messages", "Messages of the inbox that wait to be processed"),
    ("postrider_intake_partitions", "Partitions of Kafka that the intake reads"),
    ("postrider_intake_blocked_partitions", "Partitions that wait for a decision of a person"),
    ("postrider_intake_last_stored_seconds", "Time since the intake last stored messages"),
    ("postrider_intake_state", "State of the intake: 1 for the current one"),
    ("postrider_inbox_pending_messages", "Messages of an inbox neither processed nor dead"),
    ("postrider_inbox_dead_messages", "Dead messages of an inbox"),
    ("postrider_inbox_oldest_pending_seconds", "How long ago the oldest pending message arrived"),
    ("postrider_inbox_degraded", "Whether an inbox is degraded or critical"),
    ("postrider_inbox_gaps", "Aggregates of an inbox that wait for missing numbers"),
    ("postrider_inbox_drained_messages_total", "Old messages of inboxes deleted since the start"),
    (
        "postrider_inbox_maintenance_failures_total",
        "Failed runs of inbox maintenance since the start",
    ),
    (
        "postrider_inbox_maintenance_last_run_seconds",
        "Time since the last run of inbox maintenance that did all its work",
    ),
    ("postrider_inboxes_unreported", "Inboxes beyond the limit"),
    ("postrider_reconnects_total", "Connections lost and recreated since the start"),
    (
        "postrider_admin_connections_closed_total",
        "Connections of the admin endpoint closed before they were answered, by reason",
    ),
    ("outbox_lag_seconds", "The same as postrider_lag_seconds"),
    ("outbox_throughput", "Events published since the start, a counter"),
    ("outbox_failures", "Events that could not be published, a counter"),
    ("outbox_dlq_depth", "Dead events, which only a person can move"),
    ("process_cpu_seconds_total", "Processor time of the process since its start"),
    ("process_resident_memory_bytes", "Resident memory of the process"),
    ("process_open_fds", "File descriptors that the process has open"),
    ("process_max_fds", "File descriptors that the process may have open"),
    ("process_start_time_seconds", "Start of the process, since 1970"),
];

/// Begins the family of a metric.
pub(super) fn describe<'e>(
    encoder: &'e mut DescriptorEncoder<'_>,
    name: &'e str,
    kind: MetricType,
) -> Result<MetricEncoder<'e>, fmt::Error> {
    let (_, help) = CATALOG.iter().find(|(known, _)| *known == name).ok_or(fmt::Error)?;
    // The encoder adds the suffix of counters.
    let name = match kind {
        MetricType::Counter => name.strip_suffix("_total").unwrap_or(name),
        MetricType::Gauge | MetricType::Histogram | MetricType::Info | MetricType::Unknown => name,
    };
    encoder.encode_descriptor(name, help, None, kind)
}
