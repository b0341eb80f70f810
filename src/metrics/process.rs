//! The process on its host: processor time, memory, open files, start. Names and units are those of Prometheus' client
//! libraries, so that dashboards for any process show this one too.

use super::catalog::describe;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use rustix::process::{Resource, getrlimit};
use rustix::time::{ClockId, clock_gettime};
use std::fmt;
use std::fs;
use std::time::{SystemTime, UNIX_EPOCH};

/// The figures of this process at one moment. Those that the host does not report are absent: memory and open files are
/// read from `/proc`, which is Linux' own.
#[derive(Debug)]
pub(super) struct ProcessScrape {
    /// Processor time since the start. Unit: seconds.
    cpu_seconds: f64,
    /// Memory that is resident. Unit: bytes.
    resident_bytes: Option<f64>,
    /// File descriptors that are open.
    open_fds: Option<f64>,
    /// File descriptors that may be open.
    max_fds: Option<f64>,
    /// The start, since 1970. Unit: seconds.
    started_seconds: Option<f64>,
}

impl ProcessScrape {
    /// Reads them; `started` is when the process began to count.
    pub(super) fn read(started: SystemTime) -> Self {
        let cpu = clock_gettime(ClockId::ProcessCPUTime);
        Self {
            cpu_seconds: real(cpu.tv_sec) + real(cpu.tv_nsec) / 1e9,
            resident_bytes: fs::read_to_string("/proc/self/status")
                .ok()
                .and_then(|status| resident_bytes(&status)),
            open_fds: open_fds(),
            max_fds: getrlimit(Resource::Nofile)
                .current
                .and_then(|limit| i64::try_from(limit).ok())
                .map(real),
            started_seconds: started
                .duration_since(UNIX_EPOCH)
                .ok()
                .map(|since| since.as_secs_f64()),
        }
    }
}

/// `VmRSS` of `/proc/self/status`, which is in KiB.
fn resident_bytes(status: &str) -> Option<f64> {
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kib: i64 = line.split_whitespace().next()?.parse().ok()?;
    Some(real(kib.saturating_mul(1024)))
}

/// The open descriptors, without the one that this function has open.
fn open_fds() -> Option<f64> {
    let count = fs::read_dir("/proc/self/fd").ok()?.count().saturating_sub(1);
    i64::try_from(count).ok().map(real)
}

#[expect(clippy::cast_precision_loss, reason = "Prometheus has floating point numbers alone")]
fn real(value: i64) -> f64 {
    value as f64
}

impl Collector for ProcessScrape {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let encoder = &mut encoder;
        describe(encoder, "process_cpu_seconds_total", MetricType::Counter)?
            .encode_counter::<NoLabelSet, _, f64>(&self.cpu_seconds, None)?;
        for (name, value) in [
            ("process_resident_memory_bytes", self.resident_bytes),
            ("process_open_fds", self.open_fds),
            ("process_max_fds", self.max_fds),
            ("process_start_time_seconds", self.started_seconds),
        ] {
            if let Some(value) = value {
                describe(encoder, name, MetricType::Gauge)?.encode_gauge(&value)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn memory_is_read_in_bytes_and_absent_where_it_is_not_reported() {
        assert_eq!(
            resident_bytes("Name:\tx\nVmRSS:\t    2048 kB\nThreads:\t3\n"),
            Some(2_097_152.0)
        );
        assert_eq!(resident_bytes("Name:\tx\n"), None);
        assert_eq!(resident_bytes("VmRSS:\tmany kB\n"), None);
    }

    #[test]
    fn figures_are_those_of_this_process() {
        let scrape = ProcessScrape::read(UNIX_EPOCH + Duration::from_millis(1_500));
        assert_eq!(scrape.started_seconds, Some(1.5));
        assert!(scrape.cpu_seconds > 0.0, "{scrape:?}");
        assert!(scrape.open_fds >= Some(3.0) && scrape.open_fds <= scrape.max_fds, "{scrape:?}");
        assert!(scrape.resident_bytes > Some(1e6), "{scrape:?}");
    }
}
