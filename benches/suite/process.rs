//! The resources that processes use, and the rest of the machine, from `/proc`.

use std::fs;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Clock ticks a second of `/proc/PID/stat` (`getconf CLK_TCK`), on every Linux we know.
const TICKS_PER_SECOND: f64 = 100.0;
const SAMPLE_EVERY: Duration = Duration::from_millis(20);
/// CPU seconds a second that others may take before a run counts as disturbed.
const FOREIGN_MAX: f64 = 0.10;
/// The same for the hypervisor, when a throughput is measured.
pub(crate) const STOLEN_MAX: f64 = 0.03;

/// Seconds since 1970: the clock that the broker stamps records with.
pub(crate) fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("a clock").as_secs_f64()
}

/// CPU seconds of a process so far.
pub(crate) fn cpu(pid: u32) -> Option<f64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, fields) = stat.rsplit_once(')')?;
    let fields: Vec<&str> = fields.split_whitespace().collect();
    let ticks = |index: usize| fields.get(index)?.parse::<f64>().ok();
    Some((ticks(11)? + ticks(12)?) / TICKS_PER_SECOND)
}

/// MiB of a field of `/proc/PID/status`: `VmRSS`, or `VmHWM` for the peak.
pub(crate) fn memory(pid: u32, field: &str) -> Option<f64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'))?;
    Some(line.split_whitespace().next()?.parse::<f64>().ok()? / 1024.0)
}

/// CPU seconds of the whole machine so far: busy, stolen.
fn machine() -> (f64, f64) {
    let stat = fs::read_to_string("/proc/stat").expect("/proc/stat");
    let line = stat.lines().next().expect("a line of all cores");
    let fields: Vec<f64> = line.split_whitespace().skip(1).filter_map(|f| f.parse().ok()).collect();
    let busy = fields[0] + fields[1] + fields[2];
    (busy / TICKS_PER_SECOND, fields.get(7).copied().unwrap_or(0.0) / TICKS_PER_SECOND)
}

/// A process whose CPU time is measured.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Who {
    Relay,
    Walsender,
    Broker,
    /// The writer of the latency bench.
    Writer,
}

#[derive(Clone, Copy)]
pub(crate) struct Sample {
    pub(crate) at: f64,
    cpu: [f64; 4],
    pub(crate) rss_mib: f64,
    pub(crate) peak_mib: f64,
    busy: f64,
    stolen: f64,
    own: f64,
}

/// Samples up to four processes until the value is dropped.
pub(crate) struct Watch {
    pids: Arc<[AtomicU32; 4]>,
    samples: Arc<Mutex<Vec<Sample>>>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Watch {
    pub(crate) fn start() -> Self {
        let pids = Arc::<[AtomicU32; 4]>::default();
        let samples = Arc::<Mutex<Vec<Sample>>>::default();
        let stop = Arc::<AtomicBool>::default();
        let watch = (Arc::clone(&pids), Arc::clone(&samples), Arc::clone(&stop));
        let thread = std::thread::spawn(move || {
            let mut last = [0.0; 4];
            let mut peak_mib = 0.0;
            while !stop.load(Ordering::Relaxed) {
                let sample = look(&pids, &mut last, &mut peak_mib);
                samples.lock().expect("no panic").push(sample);
                std::thread::sleep(SAMPLE_EVERY);
            }
        });
        let (pids, samples, stop) = watch;
        Self { pids, samples, stop, thread: Some(thread) }
    }

    pub(crate) fn look_at(&self, who: Who, pid: u32) {
        self.pids[who as usize].store(pid, Ordering::Relaxed);
    }

    pub(crate) fn end(mut self) -> Samples {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.take().expect("one end").join().expect("no panic");
        Samples(std::mem::take(&mut self.samples.lock().expect("no panic")))
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

fn look(pids: &[AtomicU32; 4], last: &mut [f64; 4], peak_mib: &mut f64) -> Sample {
    // The clock is read before the counters, so CPU time used meanwhile counts for the next interval.
    let at = now();
    for (pid, last) in pids.iter().zip(last.iter_mut()) {
        let pid = pid.load(Ordering::Relaxed);
        // A process that has ended keeps its last value.
        *last = if pid == 0 { *last } else { cpu(pid).unwrap_or(*last) };
    }
    let relay = pids[Who::Relay as usize].load(Ordering::Relaxed);
    let rss_mib = memory(relay, "VmRSS").unwrap_or(0.0);
    *peak_mib = memory(relay, "VmHWM").unwrap_or(0.0).max(*peak_mib);
    let (busy, stolen) = machine();
    let own = cpu(std::process::id()).unwrap_or(0.0);
    Sample { at, cpu: *last, rss_mib, peak_mib: *peak_mib, busy, stolen, own }
}

/// The samples, in order of time.
#[derive(Clone, Default)]
pub(crate) struct Samples(Vec<Sample>);

impl Samples {
    /// CPU seconds between two moments, interpolated.
    pub(crate) fn cpu(&self, who: Who, from: f64, until: f64) -> f64 {
        let used = |at| self.value(at, |sample| sample.cpu[who as usize]);
        // The first sample of a process includes what it used before.
        let floor = self.0.iter().map(|s| s.cpu[who as usize]).find(|&cpu| cpu > 0.0);
        let started_here = who == Who::Relay || who == Who::Walsender;
        let floor = if started_here { 0.0 } else { floor.unwrap_or(0.0) };
        used(until) - used(from).max(floor)
    }

    fn value(&self, at: f64, field: impl Fn(&Sample) -> f64) -> f64 {
        let after = self.0.partition_point(|sample| sample.at < at);
        let Some(next) = self.0.get(after) else { return self.0.last().map_or(0.0, &field) };
        let Some(before) = after.checked_sub(1).map(|index| &self.0[index]) else {
            return field(next);
        };
        let part = (at - before.at) / (next.at - before.at);
        field(before) + (field(next) - field(before)) * part
    }

    pub(crate) fn peak_mib(&self) -> f64 {
        self.0.last().map_or(0.0, |sample| sample.peak_mib)
    }

    /// Mean resident MiB between two moments.
    pub(crate) fn rss_mib(&self, from: f64, until: f64) -> f64 {
        let seen: Vec<f64> =
            self.0.iter().filter(|s| (from..=until).contains(&s.at)).map(|s| s.rss_mib).collect();
        if seen.is_empty() {
            self.value(until, |s| s.rss_mib)
        } else {
            seen.iter().sum::<f64>() / seen.len() as f64
        }
    }

    /// (seconds from the start, resident MiB), for a plot.
    pub(crate) fn rss_curve(&self) -> Vec<(f64, f64)> {
        let start = self.0.first().map_or(0.0, |sample| sample.at);
        let seen = self.0.iter().filter(|sample| sample.rss_mib > 0.0);
        seen.step_by(5).map(|sample| (sample.at - start, sample.rss_mib)).collect()
    }

    /// Whether other processes used the machine, and how much.
    pub(crate) fn disturbed(&self, from: f64, until: f64, stolen_max: f64) -> Option<String> {
        let seconds = until - from;
        let difference = |field: fn(&Sample) -> f64| {
            (self.value(until, field) - self.value(from, field)) / seconds
        };
        let whose = [Who::Relay, Who::Walsender, Who::Broker, Who::Writer];
        let known: f64 = whose.iter().map(|&who| self.cpu(who, from, until)).sum();
        let foreign = difference(|s| s.busy) - difference(|s| s.own) - known / seconds;
        let stolen = difference(|s| s.stolen);
        (foreign > FOREIGN_MAX || stolen > stolen_max).then(|| {
            format!(
                "others used {:.0} % of a core, {:.0} % was stolen",
                foreign * 100.0,
                stolen * 100.0
            )
        })
    }
}
