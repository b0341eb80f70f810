//! The names of the metrics, and their figures at the time of a scrape.

use super::catalog::describe;
use super::process::ProcessScrape;
use super::{Closed, EndpointMetrics, Latency, PipelineMetrics, PipelineSource};
use crate::status::{
    EventLogSummary, EventLogsSummary, GroupSummary, InboxSummary, InboxesSummary, PipelineState,
    RetentionSummary, Snapshot, StatusHandle, TransactionsSummary,
};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;
use std::collections::BTreeSet;
use std::fmt;

/// A counter of retention.
type RetentionCounter = (&'static str, fn(&RetentionSummary) -> u64);
/// A counter of the transactions of a sink.
type TransactionsCounter = (&'static str, fn(&TransactionsSummary) -> Option<u64>);
/// A counter of the maintenance of event logs.
type EventLogsCounter = (&'static str, fn(&EventLogsSummary) -> u64);

/// A counter of the maintenance of inboxes.
type InboxesCounter = (&'static str, fn(&InboxesSummary) -> u64);

/// A gauge of the maintenance of inboxes.
type InboxesGauge = (&'static str, fn(&InboxesSummary) -> Option<f64>);

/// A gauge of an inbox.
type InboxGauge = (&'static str, fn(&InboxSummary) -> Option<f64>);

/// A gauge of a consumer group.
type GroupGauge = (&'static str, fn(&GroupSummary) -> f64);

/// `pg_replication_slots.wal_status`, and `missing`.
const SLOT_STATES: [&str; 5] = ["reserved", "extended", "unreserved", "lost", "missing"];

pub(super) fn encode(
    (sources, maintained): (&[PipelineSource], &[StatusHandle]),
    more: Option<Box<dyn Collector>>,
    endpoint: &EndpointMetrics,
    process: ProcessScrape,
) -> Result<String, fmt::Error> {
    let mut registry = Registry::default();
    let pipelines: Vec<_> = sources.iter().map(PipelineSample::new).collect();
    let of_pipelines = pipelines.iter().flat_map(|sample| InboxesSample::of(&sample.snapshot));
    let of_intakes = maintained.iter().flat_map(|handle| InboxesSample::of(&handle.read()));
    let inboxes = of_pipelines.chain(of_intakes).collect();
    registry.register_collector(Box::new(Scrape { pipelines, inboxes }));
    if let Some(more) = more {
        registry.register_collector(more);
    }
    registry.register_collector(Box::new(endpoint.clone()));
    registry.register_collector(Box::new(process));
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, &registry)?;
    Ok(text)
}

/// All pipelines, and all databases with inboxes, at one moment.
#[derive(Debug)]
struct Scrape {
    pipelines: Vec<PipelineSample>,
    inboxes: Vec<InboxesSample>,
}

/// The inboxes of a database, which a pipeline or a process with intakes maintains.
#[derive(Debug)]
struct InboxesSample {
    /// The name of the pipeline, or that of the first intake with this database.
    owner: String,
    /// The shard's number as a label.
    shard: String,
    summary: InboxesSummary,
}

impl InboxesSample {
    fn of(snapshot: &Snapshot) -> Vec<Self> {
        let key = &snapshot.key;
        let sample = |summary: &InboxesSummary| Self {
            owner: key.pipeline.clone(),
            shard: key.shard.to_string(),
            summary: summary.clone(),
        };
        snapshot.maintenance.inboxes.iter().map(sample).collect()
    }

    fn labels(&self) -> [(&'static str, &str); 3] {
        [("pipeline", &self.owner), ("shard", &self.shard), ("database", self.summary.database)]
    }
}

#[derive(Debug)]
struct PipelineSample {
    snapshot: Snapshot,
    /// The shard's number as a label.
    shard: String,
    source: PipelineSource,
}

impl PipelineSample {
    fn new(source: &PipelineSource) -> Self {
        let snapshot = source.status_handle.read();
        Self { shard: snapshot.key.shard.to_string(), snapshot, source: source.clone() }
    }

    fn pipeline(&self) -> (&'static str, &str) {
        ("pipeline", &self.snapshot.key.pipeline)
    }

    fn shard(&self) -> (&'static str, &str) {
        ("shard", &self.shard)
    }

    /// The event logs that the pipeline writes.
    fn event_logs(&self) -> &[EventLogSummary] {
        self.snapshot.maintenance.event_logs.as_ref().map_or(&[], |logs| logs.logs.as_slice())
    }

    /// The consumer groups of these logs, with their labels.
    fn groups(&self) -> impl Iterator<Item = ([(&'static str, &str); 4], &GroupSummary)> {
        self.event_logs().iter().flat_map(move |log| {
            log.groups.iter().map(move |group| {
                let names = [("log", log.log.as_str()), ("group", group.group.as_str())];
                let [log, name] = names;
                ([self.pipeline(), self.shard(), log, name], group)
            })
        })
    }
}

impl Collector for Scrape {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        self.events(&mut encoder)?;
        self.skipped(&mut encoder)?;
        self.latencies(&mut encoder)?;
        self.transactions(&mut encoder)?;
        self.gauges(&mut encoder)?;
        self.parked(&mut encoder)?;
        self.states(&mut encoder)?;
        self.maintenance(&mut encoder)?;
        self.retention(&mut encoder)?;
        self.event_logs(&mut encoder)?;
        self.groups(&mut encoder)?;
        self.inboxes(&mut encoder)?;
        self.reconnects(&mut encoder)?;
        self.common_names(&mut encoder)
    }
}

impl Scrape {
    fn events(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let mut family = describe(encoder, "postrider_events_total", MetricType::Counter)?;
        for sample in &self.pipelines {
            let snapshot = &sample.snapshot;
            let outcomes = [
                ("published", snapshot.published_total),
                ("parked", snapshot.parked_total),
                ("skipped", snapshot.skipped_total),
            ];
            for (outcome, count) in outcomes {
                let labels = [sample.pipeline(), sample.shard(), ("outcome", outcome)];
                family
                    .encode_family(&labels)?
                    .encode_counter::<NoLabelSet, _, f64>(&count, None)?;
            }
        }
        Ok(())
    }

    fn skipped(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let mut family = describe(encoder, "postrider_skipped_total", MetricType::Counter)?;
        for sample in &self.pipelines {
            for (reason, count) in sample.snapshot.skipped.reasons() {
                let labels = [sample.pipeline(), sample.shard(), ("reason", reason)];
                family
                    .encode_family(&labels)?
                    .encode_counter::<NoLabelSet, _, f64>(&count, None)?;
            }
        }
        Ok(())
    }

    fn latencies(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let publish = "postrider_publish_latency_seconds";
        self.histogram(encoder, publish, true, PipelineMetrics::latency)?;
        let commits = "postrider_sink_commit_seconds";
        self.histogram(encoder, commits, false, PipelineMetrics::commits)
    }

    /// The transactions of sinks that have them.
    fn transactions(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let with = || {
            let of = |sample: &PipelineSample| sample.snapshot.sink.transactions.clone();
            self.pipelines.iter().filter_map(move |sample| Some((sample, of(sample)?)))
        };
        let name = "postrider_sink_transactions_total";
        let mut family = describe(encoder, name, MetricType::Counter)?;
        for (sample, summary) in with() {
            let outcomes = [
                ("committed", summary.committed_total),
                ("aborted", summary.aborted_total),
                ("unknown", summary.unknown_total),
            ];
            for (outcome, count) in outcomes {
                let labels = [sample.pipeline(), sample.shard(), ("outcome", outcome)];
                family
                    .encode_family(&labels)?
                    .encode_counter::<NoLabelSet, _, f64>(&count, None)?;
            }
        }
        let counters: [TransactionsCounter; 2] = [
            ("postrider_sink_transaction_records_total", |of| Some(of.records_total)),
            ("postrider_sink_fenced_total", |of| of.fenced_total),
        ];
        for (name, value) in counters {
            let mut family = describe(encoder, name, MetricType::Counter)?;
            for (sample, summary) in with() {
                let Some(count) = value(&summary) else { continue };
                family
                    .encode_family(&[sample.pipeline(), sample.shard()])?
                    .encode_counter::<NoLabelSet, _, f64>(&count, None)?;
            }
        }
        Ok(())
    }

    /// A histogram of each pipeline; `empty`: also of those without a duration.
    fn histogram(
        &self,
        encoder: &mut DescriptorEncoder<'_>,
        name: &str,
        empty: bool,
        durations: impl Fn(&PipelineMetrics) -> &Latency,
    ) -> fmt::Result {
        let mut family = describe(encoder, name, MetricType::Histogram)?;
        for sample in &self.pipelines {
            let (sum, buckets) = durations(&sample.source.counters).read();
            let count = buckets.iter().map(|(_, count)| count).sum();
            if count == 0 && !empty {
                continue;
            }
            let labels = [sample.pipeline(), sample.shard()];
            let mut metric = family.encode_family(&labels)?;
            metric.encode_histogram::<NoLabelSet>(sum, count, &buckets, None)?;
        }
        Ok(())
    }

    fn gauges(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        self.gauge(encoder, "postrider_lag_seconds", |snapshot| Some(snapshot.lag_seconds))?;
        self.gauge(encoder, "postrider_source_contact_seconds", |snapshot| {
            snapshot.source_contact_seconds
        })?;
        self.gauge(encoder, "postrider_lag_bytes", |snapshot| Some(real(snapshot.lag_bytes)))?;
        self.gauge(encoder, "postrider_in_flight_events", |snapshot| {
            Some(real(snapshot.in_flight_events))
        })?;
        self.gauge(encoder, "postrider_in_flight_bytes", |snapshot| {
            Some(real(snapshot.in_flight_bytes))
        })?;
        self.gauge(encoder, "postrider_slot_retained_bytes", |snapshot| {
            snapshot.slot_retained_bytes.map(real)
        })?;
        self.gauge(encoder, "postrider_slot_retain_max_bytes", |snapshot| {
            snapshot.slot_retain_max_bytes.map(real)
        })?;
        self.gauge(encoder, "postrider_slot_safe_bytes", |snapshot| {
            let bytes = snapshot.slot_safe_bytes?;
            Some(real(u64::try_from(bytes).unwrap_or(0)))
        })
    }

    /// One gauge of each pipeline that has a value.
    fn gauge(
        &self,
        encoder: &mut DescriptorEncoder<'_>,
        name: &str,
        value: impl Fn(&Snapshot) -> Option<f64>,
    ) -> fmt::Result {
        let mut family = describe(encoder, name, MetricType::Gauge)?;
        for sample in &self.pipelines {
            if let Some(value) = value(&sample.snapshot) {
                family.encode_family(&[sample.pipeline(), sample.shard()])?.encode_gauge(&value)?;
            }
        }
        Ok(())
    }

    fn parked(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let mut family = describe(encoder, "postrider_parked_events", MetricType::Gauge)?;
        for sample in &self.pipelines {
            let parked = &sample.snapshot.parked;
            let states = [
                ("waiting", parked.waiting),
                ("behind", parked.behind),
                ("due", parked.due),
                ("dead", parked.dead),
            ];
            for (state, count) in states {
                let labels = [sample.pipeline(), sample.shard(), ("state", state)];
                family.encode_family(&labels)?.encode_gauge(&real(count))?;
            }
        }
        self.gauge(encoder, "postrider_parked_attempts", |snapshot| {
            let attempts = snapshot.parked.heads.iter().map(|head| u64::from(head.attempts));
            Some(real(attempts.max().unwrap_or(0)))
        })?;
        self.gauge(encoder, "postrider_parked_oldest_seconds", |snapshot| {
            Some(snapshot.parked.oldest_seconds)
        })?;
        self.gauge(encoder, "outbox_dlq_depth", |snapshot| Some(real(snapshot.parked.dead)))
    }

    fn states(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let mut family = describe(encoder, "postrider_slot_state", MetricType::Gauge)?;
        for sample in &self.pipelines {
            let Some(held) = sample.snapshot.slot_state.as_deref() else { continue };
            for state in SLOT_STATES {
                let labels = [sample.pipeline(), sample.shard(), ("state", state)];
                family.encode_family(&labels)?.encode_gauge(&u32::from(state == held))?;
            }
        }
        let mut family = describe(encoder, "postrider_state", MetricType::Gauge)?;
        for sample in &self.pipelines {
            for state in PipelineState::ALL {
                let labels = [sample.pipeline(), sample.shard(), ("state", state.name())];
                let holds = u32::from(*state == sample.snapshot.state);
                family.encode_family(&labels)?.encode_gauge(&holds)?;
            }
        }
        let mut family = describe(encoder, "postrider_halted", MetricType::Gauge)?;
        for sample in &self.pipelines {
            match sample.snapshot.halt_code {
                Some(code) => {
                    family
                        .encode_family(&[sample.pipeline(), sample.shard(), ("code", code)])?
                        .encode_gauge(&1_u32)?;
                }
                None => family
                    .encode_family(&[sample.pipeline(), sample.shard()])?
                    .encode_gauge(&0_u32)?,
            }
        }
        Ok(())
    }

    fn maintenance(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        self.counter(encoder, "postrider_parked_pruned_total", |snapshot| {
            snapshot.maintenance.pruned_total
        })?;
        self.counter(encoder, "postrider_bookmarks_dropped_total", |snapshot| {
            snapshot.maintenance.bookmarks_dropped_total
        })?;
        self.counter(encoder, "postrider_maintenance_failures_total", |snapshot| {
            snapshot.maintenance.runs.failures_total
        })?;
        self.gauge(encoder, "postrider_maintenance_last_run_seconds", |snapshot| {
            snapshot.maintenance.runs.last_run_seconds
        })
    }

    fn retention(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let counters: [RetentionCounter; 4] = [
            ("postrider_retention_removed_rows_total", |of| of.removed_rows_total),
            ("postrider_retention_partitions_created_total", |of| of.partitions_created_total),
            ("postrider_retention_partitions_removed_total", |of| of.partitions_removed_total),
            ("postrider_retention_failures_total", |of| of.runs.failures_total),
        ];
        let with = || {
            let of = |sample: &PipelineSample| sample.snapshot.maintenance.retention.clone();
            self.pipelines.iter().filter_map(move |sample| Some((sample, of(sample)?)))
        };
        for (name, value) in counters {
            let mut family = describe(encoder, name, MetricType::Counter)?;
            for (sample, summary) in with() {
                family
                    .encode_family(&[sample.pipeline(), sample.shard()])?
                    .encode_counter::<NoLabelSet, _, f64>(&value(&summary), None)?;
            }
        }
        let mut family = describe(encoder, "postrider_retention_held_rows", MetricType::Gauge)?;
        for (sample, summary) in with() {
            for held in &summary.held_rows {
                let labels = [sample.pipeline(), sample.shard(), ("reason", held.reason)];
                family.encode_family(&labels)?.encode_gauge(&real(held.rows))?;
            }
        }
        let mut family = describe(encoder, "postrider_retention_blocked", MetricType::Gauge)?;
        for (sample, summary) in with() {
            // Several pipelines or replays may block for one reason.
            let reasons: BTreeSet<&str> =
                summary.blocked.iter().map(|blocked| blocked.reason).collect();
            for reason in reasons {
                let labels = [sample.pipeline(), sample.shard(), ("reason", reason)];
                family.encode_family(&labels)?.encode_gauge(&1_u32)?;
            }
        }
        self.gauge(encoder, "postrider_retention_last_run_seconds", |snapshot| {
            snapshot.maintenance.retention.as_ref()?.runs.last_run_seconds
        })
    }

    fn event_logs(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        self.gauge_of_logs(encoder, "postrider_log_last_seq", |log| log.last_seq)?;
        let retained = EventLogSummary::retained_events;
        self.gauge_of_logs(encoder, "postrider_log_retained_events", retained)?;
        let writes = |sample: &&PipelineSample| sample.snapshot.maintenance.event_logs.is_some();
        let counters: [EventLogsCounter; 2] = [
            ("postrider_log_children_dropped_total", |logs| logs.dropped_total),
            ("postrider_log_maintenance_failures_total", |logs| logs.runs.failures_total),
        ];
        for (name, value) in counters {
            let mut family = describe(encoder, name, MetricType::Counter)?;
            for sample in self.pipelines.iter().filter(writes) {
                let count = sample.snapshot.maintenance.event_logs.as_ref().map_or(0, value);
                family
                    .encode_family(&[sample.pipeline(), sample.shard()])?
                    .encode_counter::<NoLabelSet, _, f64>(&count, None)?;
            }
        }
        self.gauge(encoder, "postrider_log_maintenance_last_run_seconds", |snapshot| {
            snapshot.maintenance.event_logs.as_ref()?.runs.last_run_seconds
        })?;
        self.gauge(encoder, "postrider_groups_unreported", |snapshot| {
            snapshot.maintenance.event_logs.as_ref().map(|logs| real(logs.unreported))
        })
    }

    /// One gauge of each event log.
    fn gauge_of_logs(
        &self,
        encoder: &mut DescriptorEncoder<'_>,
        name: &str,
        value: impl Fn(&EventLogSummary) -> u64,
    ) -> fmt::Result {
        let mut family = describe(encoder, name, MetricType::Gauge)?;
        for sample in &self.pipelines {
            for log in sample.event_logs() {
                let labels = [sample.pipeline(), sample.shard(), ("log", log.log.as_str())];
                family.encode_family(&labels)?.encode_gauge(&real(value(log)))?;
            }
        }
        Ok(())
    }

    fn groups(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let gauges: [GroupGauge; 6] = [
            ("postrider_group_lag_events", |group| real(group.lag_events)),
            ("postrider_group_lag_seconds", |group| group.lag_seconds),
            ("postrider_group_leased_partitions", |group| real(group.leased_partitions)),
            ("postrider_group_deliveries", |group| real(group.deliveries_max)),
            ("postrider_group_evicted", |group| f64::from(u8::from(group.evicted))),
            ("postrider_group_held_events", |group| real(group.held_events)),
        ];
        for (name, value) in gauges {
            let mut family = describe(encoder, name, MetricType::Gauge)?;
            for (labels, group) in self.pipelines.iter().flat_map(PipelineSample::groups) {
                family.encode_family(&labels)?.encode_gauge(&value(group))?;
            }
        }
        let mut family = describe(encoder, "postrider_group_consumers", MetricType::Gauge)?;
        for ([pipeline, shard, log, name], group) in
            self.pipelines.iter().flat_map(PipelineSample::groups)
        {
            let states = [("alive", group.consumers_alive), ("silent", group.consumers_silent)];
            for (state, count) in states {
                let labels = [pipeline, shard, log, name, ("state", state)];
                family.encode_family(&labels)?.encode_gauge(&real(count))?;
            }
        }
        Ok(())
    }

    fn inboxes(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let gauges: [InboxGauge; 5] = [
            ("postrider_inbox_pending_messages", |inbox| Some(real(inbox.pending))),
            ("postrider_inbox_dead_messages", |inbox| Some(real(inbox.dead))),
            ("postrider_inbox_oldest_pending_seconds", |inbox| Some(inbox.oldest_pending_seconds)),
            ("postrider_inbox_degraded", |inbox| {
                Some(f64::from(u8::from(inbox.health != "healthy")))
            }),
            ("postrider_inbox_gaps", |inbox| inbox.gaps.map(real)),
        ];
        for (name, value) in gauges {
            let mut family = describe(encoder, name, MetricType::Gauge)?;
            for sample in &self.inboxes {
                let [pipeline, shard, database] = sample.labels();
                for inbox in &sample.summary.inboxes {
                    let labels = [pipeline, shard, database, ("inbox", inbox.inbox.as_str())];
                    if let Some(value) = value(inbox) {
                        family.encode_family(&labels)?.encode_gauge(&value)?;
                    }
                }
            }
        }
        let counters: [InboxesCounter; 2] = [
            ("postrider_inbox_drained_messages_total", |inboxes| inboxes.drained_total),
            ("postrider_inbox_maintenance_failures_total", |inboxes| inboxes.runs.failures_total),
        ];
        for (name, value) in counters {
            let mut family = describe(encoder, name, MetricType::Counter)?;
            for sample in &self.inboxes {
                family
                    .encode_family(&sample.labels())?
                    .encode_counter::<NoLabelSet, _, f64>(&value(&sample.summary), None)?;
            }
        }
        let gauges: [InboxesGauge; 2] = [
            ("postrider_inbox_maintenance_last_run_seconds", |inboxes| {
                inboxes.runs.last_run_seconds
            }),
            ("postrider_inboxes_unreported", |inboxes| Some(real(inboxes.unreported))),
        ];
        for (name, value) in gauges {
            let mut family = describe(encoder, name, MetricType::Gauge)?;
            for sample in &self.inboxes {
                if let Some(value) = value(&sample.summary) {
                    family.encode_family(&sample.labels())?.encode_gauge(&value)?;
                }
            }
        }
        Ok(())
    }

    /// One counter of each pipeline.
    fn counter(
        &self,
        encoder: &mut DescriptorEncoder<'_>,
        name: &str,
        value: impl Fn(&Snapshot) -> u64,
    ) -> fmt::Result {
        let mut family = describe(encoder, name, MetricType::Counter)?;
        for sample in &self.pipelines {
            let count = value(&sample.snapshot);
            family
                .encode_family(&[sample.pipeline(), sample.shard()])?
                .encode_counter::<NoLabelSet, _, f64>(&count, None)?;
        }
        Ok(())
    }

    fn reconnects(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let mut family = describe(encoder, "postrider_reconnects_total", MetricType::Counter)?;
        for sample in &self.pipelines {
            for ((side, class), count) in sample.source.counters.reconnects() {
                let labels =
                    [sample.pipeline(), sample.shard(), ("side", side.name()), ("class", class)];
                family
                    .encode_family(&labels)?
                    .encode_counter::<NoLabelSet, _, f64>(&count, None)?;
            }
        }
        Ok(())
    }

    /// The names that dashboards of the outbox pattern use. Two of them are counters without the suffix `_total` that
    /// the format requires of a counter, so their type is unknown.
    fn common_names(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        self.gauge(encoder, "outbox_lag_seconds", |snapshot| Some(snapshot.lag_seconds))?;
        let mut family = describe(encoder, "outbox_throughput", MetricType::Unknown)?;
        for sample in &self.pipelines {
            let count = sample.snapshot.published_total;
            family.encode_family(&[sample.pipeline(), sample.shard()])?.encode_gauge(&count)?;
        }
        let mut family = describe(encoder, "outbox_failures", MetricType::Unknown)?;
        for sample in &self.pipelines {
            for (event_type, count) in sample.source.counters.failures() {
                let labels =
                    [sample.pipeline(), sample.shard(), ("event_type", event_type.as_str())];
                family.encode_family(&labels)?.encode_gauge(&count)?;
            }
        }
        Ok(())
    }
}

impl Collector for EndpointMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let name = "postrider_admin_connections_closed_total";
        let mut family = describe(&mut encoder, name, MetricType::Counter)?;
        for why in Closed::ALL {
            let count = self.closed_total(why);
            let labels = [("reason", why.name())];
            family.encode_family(&labels)?.encode_counter::<NoLabelSet, _, f64>(&count, None)?;
        }
        Ok(())
    }
}

#[expect(clippy::cast_precision_loss, reason = "Prometheus has floating point numbers alone")]
fn real(value: u64) -> f64 {
    value as f64
}
