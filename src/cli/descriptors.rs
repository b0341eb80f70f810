//! How many descriptors the process may open, and how they are shared out.
//!
//! A process that has used up its descriptors can't connect to its database again. So the soft limit is raised to the
//! hard one, and the admin endpoint, which strangers may connect to, gets only what the pipelines leave.

use crate::admin::CONNECTIONS_MAX;

/// Descriptors of the process itself: the runtimes' own, standard streams, the listener, files that are read.
const OF_THE_PROCESS: u64 = 64;

/// Descriptors of one pipeline: its sessions in the database, and for each of up to four producers of librdkafka a
/// socket and a pipe for each broker of a cluster of some ten.
const OF_A_PIPELINE: u64 = 160;

/// The soft limit is raised to the hard one, and not above this: more is never needed.
const RAISED_MAX: u64 = 65_536;

/// Connections that the endpoint has in the smallest process: one scrape, and one person who looks.
const CONNECTIONS_MIN: u64 = 2;

/// Raises the limit, and gives the number of connections that the admin endpoint may have open beside `pipelines`.
pub(super) fn prepare(pipelines: usize) -> usize {
    let Some(limit) = raised() else { return CONNECTIONS_MAX };
    let (connections, needed) = shared_out(limit, pipelines);
    if limit < needed {
        tracing::warn!(
            event = "descriptors_low",
            limit,
            needed,
            connections,
            hint = "allow more: LimitNOFILE= of the systemd unit, ulimit -n of a shell, ulimits of a container",
            "the process may open {limit} descriptors, {needed} may be needed; the admin endpoint takes {connections} \
             connections at a time"
        );
    }
    usize::try_from(connections).unwrap_or(CONNECTIONS_MAX)
}

/// The endpoint's connections where the process may open `limit` descriptors, and what everything together may need.
fn shared_out(limit: u64, pipelines: usize) -> (u64, u64) {
    let most = CONNECTIONS_MAX as u64;
    let reserve = OF_THE_PROCESS + OF_A_PIPELINE * pipelines as u64;
    (limit.saturating_sub(reserve).clamp(CONNECTIONS_MIN, most), reserve + most)
}

/// The limit as it is after it was raised; `None` where there is none.
#[cfg(unix)]
fn raised() -> Option<u64> {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let before = getrlimit(Resource::Nofile);
    let soft = before.current?;
    let wanted = before.maximum.unwrap_or(RAISED_MAX).min(RAISED_MAX);
    if wanted <= soft {
        return Some(soft);
    }
    let raised = Rlimit { current: Some(wanted), maximum: before.maximum };
    match setrlimit(Resource::Nofile, raised) {
        Ok(()) => Some(wanted),
        // A sandbox may forbid it. What is allowed is enough, or `descriptors_low` is logged.
        Err(_refused) => Some(soft),
    }
}

#[cfg(not(unix))]
fn raised() -> Option<u64> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_endpoint_gets_what_the_pipelines_leave() {
        assert_eq!(shared_out(1024, 1), (64, 288));
        assert_eq!(shared_out(1024, 5), (64, 928));
        assert_eq!(shared_out(1024, 6), (2, 1088));
        assert_eq!(shared_out(1024, 100), (2, 16_128));
        assert_eq!(shared_out(256, 1), (32, 288));
        assert_eq!(shared_out(64, 1), (2, 288));
        assert_eq!(shared_out(u64::MAX, 1), (64, 288));
    }
}
