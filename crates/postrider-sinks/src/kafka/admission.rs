//! Which cluster records may go to: the one that the pipeline's position belongs to.
//!
//! The configuration names hosts, and hosts can come to belong to another cluster: their names are given to other
//! machines, or the configuration is changed. So the brokers are asked for their cluster by each new set of producers,
//! before anything is handed to those.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Open, unless somebody has asked to be asked ([`Admission::hold`]).
pub(super) struct Admission {
    open: AtomicBool,
    clusters: Mutex<Clusters>,
}

#[derive(Default)]
struct Clusters {
    /// Records wait for an answer.
    held: bool,
    /// Where they may go.
    admitted: Option<String>,
    /// What the brokers said last.
    found: Option<String>,
}

impl Default for Admission {
    fn default() -> Self {
        Self { open: AtomicBool::new(true), clusters: Mutex::default() }
    }
}

impl Admission {
    fn clusters(&self) -> MutexGuard<'_, Clusters> {
        self.clusters.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Brings `open` in step with what is known, under the lock; whether it is open.
    fn settle(&self, clusters: &Clusters) -> bool {
        let known = clusters.found.is_some() && clusters.found == clusters.admitted;
        let open = !clusters.held || known;
        self.open.store(open, Ordering::Release);
        open
    }

    /// Whether records may be handed over.
    #[inline]
    pub(super) fn is_open(&self) -> bool {
        self.open.load(Ordering::Acquire)
    }

    /// Nothing is handed over until a cluster is admitted from now on.
    pub(super) fn hold(&self) {
        let mut clusters = self.clusters();
        (clusters.held, clusters.admitted) = (true, None);
        self.settle(&clusters);
    }

    /// Records may go to this cluster alone.
    pub(super) fn admit(&self, cluster: &str) {
        let mut clusters = self.clusters();
        clusters.admitted = Some(cluster.to_owned());
        self.settle(&clusters);
    }

    /// New producers are made: they may reach other brokers.
    pub(super) fn reconnects(&self) {
        let mut clusters = self.clusters();
        clusters.found = None;
        self.settle(&clusters);
    }

    /// The brokers are of this cluster; whether records may be handed over.
    pub(super) fn locate(&self, cluster: &str) -> bool {
        let mut clusters = self.clusters();
        clusters.found = Some(cluster.to_owned());
        self.settle(&clusters)
    }

    /// What the brokers said; `None` where none of the present producers has had an answer.
    pub(super) fn found(&self) -> Option<String> {
        self.clusters().found.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_go_to_the_admitted_cluster_alone() {
        let admission = Admission::default();
        assert!(admission.is_open(), "nobody asked to be asked");
        admission.hold();
        assert!(!admission.is_open());
        assert!(!admission.locate("A"), "not admitted yet");
        admission.admit("A");
        assert!(admission.is_open());
        admission.reconnects();
        assert!(!admission.is_open(), "the new producers may have reached another cluster");
        assert!(!admission.locate("B"));
        assert!(!admission.is_open());
        assert_eq!(admission.found().as_deref(), Some("B"));
        assert!(admission.locate("A"));
        admission.admit("B");
        assert!(!admission.is_open());
        admission.admit("A");
        assert!(admission.is_open());
        admission.hold();
        assert!(!admission.is_open(), "what was admitted before is not any more");
        assert!(!admission.locate("A"));
    }
}
