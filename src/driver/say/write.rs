//! What is said of writes that PostgreSQL takes long to commit.

use crate::driver::pipeline::Pipeline;
use crate::driver::trouble::{Due, Trouble};
use std::time::{Duration, Instant};
use tracing::{info, warn};

const HINT: &str = "another session may hold a lock: SELECT pid, pg_blocking_pids(pid), wait_event_type FROM \
                    pg_stat_activity WHERE application_name LIKE 'postrider%'; or a standby in \
                    synchronous_standby_names is not connected: see SELECT application_name, sync_state FROM \
                    pg_stat_replication; bring it back, or take it out and SELECT pg_reload_conf()";

/// A write is not committed after so long.
pub(in crate::driver) fn write_waits(pipeline: &mut Pipeline, patience: Duration) {
    let now = Instant::now();
    pipeline.tell.write_at = Some(now);
    let longer = patience.as_secs();
    let reason = format!("PostgreSQL has not committed a write for more than {longer} s");
    let told = Trouble::note(&mut pipeline.tell.write, reason, Some(HINT.into()), now);
    if let Some(Due { seconds, tries }) = told {
        warn!(
            event = "write_waits",
            pipeline = pipeline.spec.name(),
            seconds,
            tries,
            hint = HINT,
            "PostgreSQL has not committed a write for more than {} s: parked events wait, nothing is lost",
            longer + seconds
        );
    }
}

/// It is committed.
pub(in crate::driver) fn write_done(pipeline: &mut Pipeline) {
    pipeline.tell.write_at = None;
    if let Some(trouble) = pipeline.tell.write.take() {
        let seconds = trouble.seconds(Instant::now());
        let pipeline = pipeline.spec.name();
        info!(event = "write_done", pipeline, seconds, "PostgreSQL commits writes again");
    }
}
