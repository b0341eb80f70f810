//! The commits of a sink's transactions, from the histogram `postrider_sink_commit_seconds` of `/metrics`.

/// The name of the histogram.
const NAME: &str = "postrider_sink_commit_seconds";

/// A histogram.
#[derive(Clone, Default)]
pub(crate) struct Commits {
    pub(crate) count: f64,
    /// Unit: seconds.
    sum: f64,
    /// The upper bounds of the buckets in seconds, and the commits up to each.
    buckets: Vec<(f64, f64)>,
}

impl Commits {
    /// From the text of a scrape of one pipeline. Without the histogram there was no commit.
    pub(crate) fn read(metrics: &str) -> Self {
        let mut commits = Self::default();
        for line in metrics.lines() {
            let Some((series, value)) = line.rsplit_once(' ') else { continue };
            let Some(rest) = series.strip_prefix(NAME) else { continue };
            let value: f64 = value.parse().expect("a figure");
            if rest.starts_with("_count") {
                commits.count = value;
            } else if rest.starts_with("_sum") {
                commits.sum = value;
            } else if let Some((_, bound)) = rest.split_once("le=\"") {
                let (bound, _) = bound.split_once('"').expect("a label");
                let bound =
                    if bound == "+Inf" { f64::INFINITY } else { bound.parse().expect("a bound") };
                commits.buckets.push((bound, value));
            }
        }
        commits.buckets.sort_by(|one, other| one.0.total_cmp(&other.0));
        commits
    }

    /// Unit: milliseconds.
    pub(crate) fn mean(&self) -> f64 {
        self.sum / self.count.max(1.0) * 1e3
    }

    /// A quantile, interpolated in its bucket as Prometheus does. Unit: milliseconds.
    pub(crate) fn quantile(&self, part: f64) -> f64 {
        let rank = self.count * part;
        let (mut low, mut below) = (0.0, 0.0);
        for &(bound, count) in &self.buckets {
            if count >= rank && count > below {
                // The last bucket has no bound.
                let high = if bound.is_finite() { bound } else { low };
                return (low + (high - low) * (rank - below) / (count - below)) * 1e3;
            }
            (low, below) = (bound, count);
        }
        0.0
    }
}
