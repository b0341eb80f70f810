//! The metrics of intakes, read from their status.

use super::catalog::describe;
use crate::intake_status::{IntakeHandle, IntakeSnapshot, IntakeState};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use std::fmt;

/// All intakes at one moment.
#[derive(Debug)]
pub(super) struct IntakeScrape(Vec<IntakeSnapshot>);

impl IntakeScrape {
    pub(super) fn of(intakes: &[IntakeHandle]) -> Self {
        Self(intakes.iter().map(IntakeHandle::read).collect())
    }

    fn messages(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let name = "postrider_intake_messages_total";
        let mut family = describe(encoder, name, MetricType::Counter)?;
        for snapshot in &self.0 {
            for (outcome, count) in [
                ("stored", snapshot.totals.stored_total),
                ("repeated", snapshot.totals.repeated_total),
                ("dead", snapshot.totals.dead_total),
                ("refused", snapshot.totals.refused_total),
                ("lost", snapshot.totals.lost_total),
            ] {
                let labels = [labels(snapshot), vec![("outcome", outcome)]].concat();
                let mut metric = family.encode_family(&labels)?;
                metric.encode_counter::<NoLabelSet, _, f64>(&count, None)?;
            }
        }
        Ok(())
    }

    fn gauge(
        &self,
        encoder: &mut DescriptorEncoder<'_>,
        name: &'static str,
        of: impl Fn(&IntakeSnapshot) -> Option<f64>,
    ) -> fmt::Result {
        let mut family = describe(encoder, name, MetricType::Gauge)?;
        for snapshot in &self.0 {
            if let Some(value) = of(snapshot) {
                family.encode_family(&labels(snapshot))?.encode_gauge(&value)?;
            }
        }
        Ok(())
    }

    fn states(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let mut family = describe(encoder, "postrider_intake_state", MetricType::Gauge)?;
        for snapshot in &self.0 {
            for state in IntakeState::ALL {
                let is_current = u32::from(snapshot.state == *state);
                let labels = [labels(snapshot), vec![("state", state.name())]].concat();
                family.encode_family(&labels)?.encode_gauge(&is_current)?;
            }
        }
        Ok(())
    }
}

fn labels(snapshot: &IntakeSnapshot) -> Vec<(&'static str, &str)> {
    vec![("intake", snapshot.intake.as_str())]
}

#[expect(clippy::cast_precision_loss, reason = "Prometheus has floating point numbers alone")]
fn real(value: u64) -> f64 {
    value as f64
}

fn count(value: usize) -> f64 {
    real(u64::try_from(value).unwrap_or(u64::MAX))
}

impl Collector for IntakeScrape {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let encoder = &mut encoder;
        self.messages(encoder)?;
        self.gauge(encoder, "postrider_intake_lag_records", |it| it.lag_records.map(real))?;
        self.gauge(encoder, "postrider_intake_pending_messages", |it| it.pending.map(real))?;
        self.gauge(encoder, "postrider_intake_partitions", |it| Some(count(it.partitions)))?;
        let blocked = "postrider_intake_blocked_partitions";
        self.gauge(encoder, blocked, |it| Some(count(it.blocked_total)))?;
        let last = "postrider_intake_last_stored_seconds";
        self.gauge(encoder, last, |it| it.last_stored_seconds)?;
        self.states(encoder)
    }
}
