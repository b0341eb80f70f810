//! The panels of the dashboard: their titles and queries. Kind, unit and description of a metric are those of the table
//! in `docs/metrics.md`.
//!
//! A query selects series by one of four short forms, which [`Query::expr`] replaces: `{P}` those of the chosen
//! pipelines, `{I}` of the chosen intakes, `{O}` of what a chosen pipeline or intake maintains, `{H}` of the chosen
//! processes. Further conditions follow a comma: `{P,state="polling"}`.

/// Panels below one heading.
pub(super) struct Row {
    pub(super) title: &'static str,
    /// Whether a reader has to open it: what is not needed at every look.
    pub(super) collapsed: bool,
    pub(super) panels: &'static [Panel],
}

pub(super) struct Panel {
    pub(super) title: &'static str,
    pub(super) shows: Shows,
    pub(super) queries: &'static [Query],
}

/// What the values of a panel are. The names are units of the metrics, as `docs/metrics.md` has them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Shows {
    /// Which of several states holds, as bars on a time line: values are 1 or absent.
    States,
    /// A duration.
    Seconds,
    Bytes,
    /// A number of these.
    Count(&'static str),
    /// The rate of counters of these.
    PerSecond(&'static str),
    /// How much counters of these have grown.
    Growth(&'static str),
    /// Counters of these as they are, since the start of the process: series begin with their first event, which a rate
    /// does not show.
    Total(&'static str),
    /// Calculated from several metrics, with a unit of Grafana and the name of the axis.
    Derived(&'static str, &'static str),
}

pub(super) struct Query {
    expr: &'static str,
    pub(super) legend: &'static str,
}

impl Query {
    /// The query with the variables of the dashboard.
    pub(super) fn expr(&self) -> String {
        [
            ("{P", r#"{pipeline=~"$pipeline",instance=~"$instance""#),
            ("{I", r#"{intake=~"$intake",instance=~"$instance""#),
            ("{O", r#"{pipeline=~"$pipeline|$intake",instance=~"$instance""#),
            ("{H", r#"{instance=~"$instance""#),
        ]
        .into_iter()
        .fold(self.expr.to_owned(), |expr, (short, long)| expr.replace(short, long))
    }
}

const fn row(title: &'static str, panels: &'static [Panel]) -> Row {
    Row { title, collapsed: false, panels }
}

const fn collapsed(title: &'static str, panels: &'static [Panel]) -> Row {
    Row { title, collapsed: true, panels }
}

const fn panel(title: &'static str, shows: Shows, queries: &'static [Query]) -> Panel {
    Panel { title, shows, queries }
}

const fn query(expr: &'static str, legend: &'static str) -> Query {
    Query { expr, legend }
}

use Shows::{Bytes, Count, Derived, Growth, PerSecond, Seconds, States, Total};

pub(super) const ROWS: &[Row] = &[
    row(
        "Is it flowing",
        &[
            panel(
                "State of each pipeline",
                States,
                &[query(
                    "max by (pipeline, shard, instance, state) (postrider_state{P}) == 1",
                    "{{pipeline}}/{{shard}} on {{instance}}: {{state}}",
                )],
            ),
            panel(
                "Alerts that fire",
                States,
                &[query(
                    r#"max by (alertname, pipeline, intake) (ALERTS{alertname=~"Postrider.*",alertstate="firing"})"#,
                    "{{alertname}} {{pipeline}}{{intake}}",
                )],
            ),
            panel(
                "Halted pipelines and the code",
                States,
                &[query(
                    "max by (pipeline, shard, code) (postrider_halted{P}) == 1",
                    "{{pipeline}}/{{shard}}: {{code}}",
                )],
            ),
            panel(
                "Events published",
                PerSecond("events"),
                &[query(
                    "sum by (pipeline, shard) \
                     (rate(postrider_events_total{P,outcome=\"published\"}[$__rate_interval]))",
                    "{{pipeline}}/{{shard}}",
                )],
            ),
            panel(
                "Lag: age of the oldest commit that is not published",
                Seconds,
                &[query(
                    "max by (pipeline, shard) (postrider_lag_seconds{P})",
                    "{{pipeline}}/{{shard}}",
                )],
            ),
            panel(
                "Lag in WAL",
                Bytes,
                &[query(
                    "max by (pipeline, shard) (postrider_lag_bytes{P})",
                    "{{pipeline}}/{{shard}}",
                )],
            ),
        ],
    ),
    row(
        "What blocks it",
        &[
            panel(
                "Events in flight to the broker",
                Count("events"),
                &[query(
                    "sum by (pipeline, shard) (postrider_in_flight_events{P})",
                    "{{pipeline}}/{{shard}}",
                )],
            ),
            panel(
                "Bytes in flight to the broker",
                Bytes,
                &[query(
                    "sum by (pipeline, shard) (postrider_in_flight_bytes{P})",
                    "{{pipeline}}/{{shard}}",
                )],
            ),
            panel(
                "Since the database last answered",
                Seconds,
                &[query(
                    "max by (pipeline, shard, instance) (postrider_source_contact_seconds{P})",
                    "{{pipeline}}/{{shard}} on {{instance}}",
                )],
            ),
            panel(
                "Connections lost since the start of the process",
                Total(""),
                &[query(
                    "sum by (pipeline, shard, side, class) (postrider_reconnects_total{P})",
                    "{{pipeline}}/{{shard}}: {{side}}, {{class}}",
                )],
            ),
            panel(
                "Events parked and changes skipped",
                PerSecond("events"),
                &[query(
                    "sum by (pipeline, shard, outcome) \
                     (rate(postrider_events_total{P,outcome!=\"published\"}[$__rate_interval]))",
                    "{{pipeline}}/{{shard}}: {{outcome}}",
                )],
            ),
            panel(
                "Changes skipped, by reason",
                PerSecond("changes"),
                &[query(
                    "sum by (pipeline, shard, reason) (rate(postrider_skipped_total{P}[$__rate_interval]))",
                    "{{pipeline}}/{{shard}}: {{reason}}",
                )],
            ),
        ],
    ),
    row(
        "Slot and WAL",
        &[
            panel(
                "WAL that the slot retains, and its limits",
                Bytes,
                &[
                    query(
                        "max by (pipeline, shard) (postrider_slot_retained_bytes{P})",
                        "{{pipeline}}/{{shard}}: retained",
                    ),
                    query(
                        "max by (pipeline, shard) (postrider_slot_retain_max_bytes{P})",
                        "{{pipeline}}/{{shard}}: source.wal_retain_max",
                    ),
                    query(
                        "min by (pipeline, shard) (postrider_slot_safe_bytes{P})",
                        "{{pipeline}}/{{shard}}: until the slot is lost",
                    ),
                ],
            ),
            panel(
                "Time until a limit of the slot is reached, at the growth of the last 10 minutes",
                Derived("s", "while it grows"),
                &[
                    query(
                        "min by (pipeline, shard) (postrider_slot_safe_bytes{P} \
                         / (deriv(postrider_slot_retained_bytes{P}[10m]) > 0))",
                        "{{pipeline}}/{{shard}}: until the slot is lost",
                    ),
                    query(
                        "min by (pipeline, shard) ((postrider_slot_retain_max_bytes{P} \
                         - postrider_slot_retained_bytes{P}) / (deriv(postrider_slot_retained_bytes{P}[10m]) > 0))",
                        "{{pipeline}}/{{shard}}: until source.wal_retain_max",
                    ),
                ],
            ),
            panel(
                "wal_status of the slot",
                States,
                &[query(
                    "max by (pipeline, shard, state) (postrider_slot_state{P}) == 1",
                    "{{pipeline}}/{{shard}}: {{state}}",
                )],
            ),
        ],
    ),
    row(
        "Latency",
        &[
            panel(
                "From commit to acknowledgement: 50, 95 and 99 of 100 events",
                Seconds,
                &[
                    query(
                        "histogram_quantile(0.5, sum by (pipeline, shard, le) \
                         (rate(postrider_publish_latency_seconds_bucket{P}[$__rate_interval])))",
                        "{{pipeline}}/{{shard}}: 50",
                    ),
                    query(
                        "histogram_quantile(0.95, sum by (pipeline, shard, le) \
                         (rate(postrider_publish_latency_seconds_bucket{P}[$__rate_interval])))",
                        "{{pipeline}}/{{shard}}: 95",
                    ),
                    query(
                        "histogram_quantile(0.99, sum by (pipeline, shard, le) \
                         (rate(postrider_publish_latency_seconds_bucket{P}[$__rate_interval])))",
                        "{{pipeline}}/{{shard}}: 99",
                    ),
                ],
            ),
            panel(
                "From commit to acknowledgement: mean",
                Seconds,
                &[query(
                    "sum by (pipeline, shard) (rate(postrider_publish_latency_seconds_sum{P}[$__rate_interval])) \
                     / sum by (pipeline, shard) (rate(postrider_publish_latency_seconds_count{P}[$__rate_interval]))",
                    "{{pipeline}}/{{shard}}",
                )],
            ),
        ],
    ),
    row(
        "Parked events and dead letters",
        &[
            panel(
                "Parked events, by state",
                Count("events"),
                &[query(
                    "max by (pipeline, shard, state) (postrider_parked_events{P})",
                    "{{pipeline}}/{{shard}}: {{state}}",
                )],
            ),
            panel(
                "How long the oldest event has been parked",
                Seconds,
                &[query(
                    "max by (pipeline, shard) (postrider_parked_oldest_seconds{P})",
                    "{{pipeline}}/{{shard}}",
                )],
            ),
            panel(
                "Most attempts of a parked event that others wait for",
                Count("attempts"),
                &[query(
                    "max by (pipeline, shard) (postrider_parked_attempts{P})",
                    "{{pipeline}}/{{shard}}",
                )],
            ),
            panel(
                "Refused events since the start of the process, by type",
                Total("events"),
                &[query(
                    "sum by (pipeline, shard, event_type) (outbox_failures{P})",
                    "{{pipeline}}/{{shard}}: {{event_type}}",
                )],
            ),
        ],
    ),
    collapsed(
        "Transactions of the sink: exactly once, fencing",
        &[
            panel(
                "Duration of a commit: 50 and 99 of 100",
                Seconds,
                &[
                    query(
                        "histogram_quantile(0.5, sum by (pipeline, shard, le) \
                         (rate(postrider_sink_commit_seconds_bucket{P}[$__rate_interval])))",
                        "{{pipeline}}/{{shard}}: 50",
                    ),
                    query(
                        "histogram_quantile(0.99, sum by (pipeline, shard, le) \
                         (rate(postrider_sink_commit_seconds_bucket{P}[$__rate_interval])))",
                        "{{pipeline}}/{{shard}}: 99",
                    ),
                ],
            ),
            panel(
                "Transactions, by outcome",
                PerSecond("transactions"),
                &[query(
                    "sum by (pipeline, shard, outcome) (rate(postrider_sink_transactions_total{P}[$__rate_interval]))",
                    "{{pipeline}}/{{shard}}: {{outcome}}",
                )],
            ),
            panel(
                "Records of one transaction",
                Derived("short", "records"),
                &[query(
                    "sum by (pipeline, shard) (rate(postrider_sink_transaction_records_total{P}[$__rate_interval])) \
                     / sum by (pipeline, shard) \
                     (rate(postrider_sink_transactions_total{P,outcome=\"committed\"}[$__rate_interval]))",
                    "{{pipeline}}/{{shard}}",
                )],
            ),
            panel(
                "Producers that were fenced off",
                Growth("producers"),
                &[query(
                    "sum by (pipeline, shard) (increase(postrider_sink_fenced_total{P}[$__rate_interval]))",
                    "{{pipeline}}/{{shard}}",
                )],
            ),
        ],
    ),
    collapsed(
        "Polling",
        &[
            panel(
                "Events published while polling",
                PerSecond("events"),
                &[query(
                    "sum by (pipeline, shard) \
                     (rate(postrider_events_total{P,outcome=\"published\"}[$__rate_interval])) \
                     and on (pipeline, shard) postrider_state{P,state=\"polling\"} == 1",
                    "{{pipeline}}/{{shard}}",
                )],
            ),
            panel(
                "Age of the oldest ready row while polling",
                Seconds,
                &[query(
                    "max by (pipeline, shard) (postrider_lag_seconds{P}) \
                     and on (pipeline, shard) postrider_state{P,state=\"polling\"} == 1",
                    "{{pipeline}}/{{shard}}",
                )],
            ),
            panel(
                "Rows skipped: expired, or published before",
                PerSecond("changes"),
                &[query(
                    "sum by (pipeline, shard, reason) \
                     (rate(postrider_skipped_total{P,reason=~\"expired|repeated\"}[$__rate_interval]))",
                    "{{pipeline}}/{{shard}}: {{reason}}",
                )],
            ),
        ],
    ),
    collapsed(
        "Retention of the outbox",
        &[
            panel(
                "Rows removed",
                PerSecond("rows"),
                &[query(
                    "sum by (pipeline, shard) (rate(postrider_retention_removed_rows_total{P}[$__rate_interval]))",
                    "{{pipeline}}/{{shard}}",
                )],
            ),
            panel(
                "Old rows that are kept, by reason",
                Count("rows"),
                &[query(
                    "max by (pipeline, shard, reason) (postrider_retention_held_rows{P})",
                    "{{pipeline}}/{{shard}}: {{reason}}",
                )],
            ),
            panel(
                "What blocks the removal of all rows",
                States,
                &[query(
                    "max by (pipeline, shard, reason) (postrider_retention_blocked{P}) == 1",
                    "{{pipeline}}/{{shard}}: {{reason}}",
                )],
            ),
            panel(
                "Partitions created and removed",
                Growth("partitions"),
                &[
                    query(
                        "sum by (pipeline, shard) \
                         (increase(postrider_retention_partitions_created_total{P}[$__rate_interval]))",
                        "{{pipeline}}/{{shard}}: created",
                    ),
                    query(
                        "sum by (pipeline, shard) \
                         (increase(postrider_retention_partitions_removed_total{P}[$__rate_interval]))",
                        "{{pipeline}}/{{shard}}: removed",
                    ),
                ],
            ),
        ],
    ),
    collapsed(
        "Event logs and consumer groups",
        &[
            panel(
                "Events that a group has not done",
                Count("events"),
                &[query(
                    "max by (pipeline, log, group) (postrider_group_lag_events{P})",
                    "{{group}} of {{log}} ({{pipeline}})",
                )],
            ),
            panel(
                "How long the oldest of them has been in the log",
                Seconds,
                &[query(
                    "max by (pipeline, log, group) (postrider_group_lag_seconds{P})",
                    "{{group}} of {{log}} ({{pipeline}})",
                )],
            ),
            panel(
                "Consumers, by state",
                Count("consumers"),
                &[query(
                    "max by (pipeline, log, group, state) (postrider_group_consumers{P})",
                    "{{group}} of {{log}} ({{pipeline}}): {{state}}",
                )],
            ),
            panel(
                "Hash partitions with a lease",
                Count("hash partitions"),
                &[query(
                    "max by (pipeline, log, group) (postrider_group_leased_partitions{P})",
                    "{{group}} of {{log}} ({{pipeline}})",
                )],
            ),
            panel(
                "How often events that are not done were given out",
                Count("deliveries"),
                &[query(
                    "max by (pipeline, log, group) (postrider_group_deliveries{P})",
                    "{{group}} of {{log}} ({{pipeline}})",
                )],
            ),
            panel(
                "Evicted groups",
                States,
                &[query(
                    "max by (pipeline, log, group) (postrider_group_evicted{P}) == 1",
                    "{{group}} of {{log}} ({{pipeline}})",
                )],
            ),
            panel(
                "Events appended to a log",
                Derived("short", "events/s"),
                &[query(
                    "max by (pipeline, log) (deriv(postrider_log_last_seq{P}[$__rate_interval]))",
                    "{{log}} ({{pipeline}})",
                )],
            ),
            panel(
                "Events that a log has",
                Count("events"),
                &[query(
                    "max by (pipeline, log) (postrider_log_retained_events{P})",
                    "{{log}} ({{pipeline}})",
                )],
            ),
            panel(
                "Old events that a group keeps from being dropped",
                Count("events"),
                &[query(
                    "max by (pipeline, log, group) (postrider_group_held_events{P})",
                    "{{group}} of {{log}} ({{pipeline}})",
                )],
            ),
            panel(
                "Tables of old events dropped",
                Growth("tables"),
                &[query(
                    "sum by (pipeline) (increase(postrider_log_children_dropped_total{P}[$__rate_interval]))",
                    "{{pipeline}}",
                )],
            ),
            panel(
                "Logs and groups without metrics of their own",
                Count("logs and groups"),
                &[query("max by (pipeline) (postrider_groups_unreported{P})", "{{pipeline}}")],
            ),
        ],
    ),
    collapsed(
        "Inboxes",
        &[
            panel(
                "Pending messages",
                Count("messages"),
                &[query(
                    "max by (pipeline, database, inbox) (postrider_inbox_pending_messages{O})",
                    "{{inbox}} ({{pipeline}}, {{database}})",
                )],
            ),
            panel(
                "How long ago the oldest pending message arrived",
                Seconds,
                &[query(
                    "max by (pipeline, database, inbox) (postrider_inbox_oldest_pending_seconds{O})",
                    "{{inbox}} ({{pipeline}}, {{database}})",
                )],
            ),
            panel(
                "Dead messages",
                Count("messages"),
                &[query(
                    "max by (pipeline, database, inbox) (postrider_inbox_dead_messages{O})",
                    "{{inbox}} ({{pipeline}}, {{database}})",
                )],
            ),
            panel(
                "Degraded inboxes",
                States,
                &[query(
                    "max by (pipeline, database, inbox) (postrider_inbox_degraded{O}) == 1",
                    "{{inbox}} ({{pipeline}}, {{database}})",
                )],
            ),
            panel(
                "Aggregates that wait for missing numbers",
                Count("aggregates"),
                &[query(
                    "max by (pipeline, database, inbox) (postrider_inbox_gaps{O})",
                    "{{inbox}} ({{pipeline}}, {{database}})",
                )],
            ),
            panel(
                "Old messages deleted",
                PerSecond("messages"),
                &[query(
                    "sum by (pipeline, database) (rate(postrider_inbox_drained_messages_total{O}[$__rate_interval]))",
                    "{{pipeline}}, {{database}}",
                )],
            ),
            panel(
                "Inboxes without metrics of their own",
                Count("inboxes"),
                &[query(
                    "max by (pipeline, database) (postrider_inboxes_unreported{O})",
                    "{{pipeline}}, {{database}}",
                )],
            ),
        ],
    ),
    collapsed(
        "Intakes: postrider inbox run",
        &[
            panel(
                "State of each intake",
                States,
                &[query(
                    "max by (intake, instance, state) (postrider_intake_state{I}) == 1",
                    "{{intake}} on {{instance}}: {{state}}",
                )],
            ),
            panel(
                "Messages, by outcome",
                PerSecond("messages"),
                &[query(
                    "sum by (intake, outcome) (rate(postrider_intake_messages_total{I}[$__rate_interval]))",
                    "{{intake}}: {{outcome}}",
                )],
            ),
            panel(
                "Records that are not stored yet",
                Count("records"),
                &[query("sum by (intake) (postrider_intake_lag_records{I})", "{{intake}}")],
            ),
            panel(
                "Messages of the inbox that wait to be processed",
                Count("messages"),
                &[query("max by (intake) (postrider_intake_pending_messages{I})", "{{intake}}")],
            ),
            panel(
                "Partitions that are read, and blocked ones",
                Count("partitions"),
                &[
                    query("sum by (intake) (postrider_intake_partitions{I})", "{{intake}}: read"),
                    query(
                        "max by (intake) (postrider_intake_blocked_partitions{I})",
                        "{{intake}}: blocked",
                    ),
                ],
            ),
            panel(
                "Since messages were last stored",
                Seconds,
                &[query("min by (intake) (postrider_intake_last_stored_seconds{I})", "{{intake}}")],
            ),
        ],
    ),
    collapsed(
        "Maintenance",
        &[
            panel(
                "Since all work was last done",
                Seconds,
                &[
                    query(
                        "min by (pipeline, shard) (postrider_maintenance_last_run_seconds{P})",
                        "{{pipeline}}/{{shard}}: own tables",
                    ),
                    query(
                        "min by (pipeline, shard) (postrider_retention_last_run_seconds{P})",
                        "{{pipeline}}/{{shard}}: retention",
                    ),
                    query(
                        "min by (pipeline, shard) (postrider_log_maintenance_last_run_seconds{P})",
                        "{{pipeline}}/{{shard}}: event logs",
                    ),
                    query(
                        "min by (pipeline, database) (postrider_inbox_maintenance_last_run_seconds{O})",
                        "{{pipeline}}: inboxes in {{database}}",
                    ),
                ],
            ),
            panel(
                "Failures",
                Growth("runs, passes and steps"),
                &[
                    query(
                        "sum by (pipeline, shard) \
                         (increase(postrider_maintenance_failures_total{P}[$__rate_interval]))",
                        "{{pipeline}}/{{shard}}: own tables",
                    ),
                    query(
                        "sum by (pipeline, shard) (increase(postrider_retention_failures_total{P}[$__rate_interval]))",
                        "{{pipeline}}/{{shard}}: retention",
                    ),
                    query(
                        "sum by (pipeline, shard) \
                         (increase(postrider_log_maintenance_failures_total{P}[$__rate_interval]))",
                        "{{pipeline}}/{{shard}}: event logs",
                    ),
                    query(
                        "sum by (pipeline, database) \
                         (increase(postrider_inbox_maintenance_failures_total{O}[$__rate_interval]))",
                        "{{pipeline}}: inboxes in {{database}}",
                    ),
                ],
            ),
            panel(
                "Resolved parked events and bookmarks that were deleted",
                Growth("rows and bookmarks"),
                &[
                    query(
                        "sum by (pipeline, shard) (increase(postrider_parked_pruned_total{P}[$__rate_interval]))",
                        "{{pipeline}}/{{shard}}: parked events",
                    ),
                    query(
                        "sum by (pipeline, shard) (increase(postrider_bookmarks_dropped_total{P}[$__rate_interval]))",
                        "{{pipeline}}/{{shard}}: bookmarks",
                    ),
                ],
            ),
        ],
    ),
    row(
        "Process",
        &[
            panel(
                "Resident memory",
                Bytes,
                &[query("process_resident_memory_bytes{H}", "{{instance}}")],
            ),
            panel(
                "Processors in use",
                Derived("short", "processors"),
                &[query("rate(process_cpu_seconds_total{H}[$__rate_interval])", "{{instance}}")],
            ),
            panel(
                "File descriptors",
                Count("descriptors"),
                &[
                    query("process_open_fds{H}", "{{instance}}: open"),
                    query("process_max_fds{H}", "{{instance}}: limit"),
                ],
            ),
            panel(
                "Time since the start of the process",
                Derived("s", ""),
                &[query("time() - process_start_time_seconds{H}", "{{instance}}")],
            ),
            panel(
                "Connections of the admin endpoint that were closed unanswered",
                Growth("connections"),
                &[query(
                    "sum by (instance, reason) \
                     (increase(postrider_admin_connections_closed_total{H}[$__rate_interval]))",
                    "{{instance}}: {{reason}}",
                )],
            ),
        ],
    ),
];
