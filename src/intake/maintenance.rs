//! The maintenance of the inboxes of a process that runs intakes: the same as a pipeline does, for a database that no
//! relay maintains.

use super::spec::IntakeSpec;
use crate::maintenance::{InboxMaintenance, InboxesSpec, OwnerEpoch};
use crate::pipeline::InboxSettings;
use crate::status::StatusHandle;

/// The maintenance of the databases of some intakes. Dropping it ends its sessions.
#[derive(Debug)]
pub struct IntakeMaintenance {
    /// Any number of processes may maintain a database, so none of them has to own it.
    _owner: OwnerEpoch,
    _tasks: Vec<InboxMaintenance>,
    /// What was read of each database, under the name of the first intake that has it.
    status_handles: Vec<StatusHandle>,
}

impl IntakeMaintenance {
    /// Starts a task for each database, on the runtime of this thread.
    pub fn start(intakes: &[IntakeSpec], settings: &InboxSettings) -> Self {
        let owner = OwnerEpoch::default();
        owner.begins(1);
        let databases = intakes.iter().map(|spec| (spec.name.as_str(), &spec.inbox.conninfo));
        let (tasks, status_handles) = InboxesSpec::of_intakes(databases, settings)
            .into_iter()
            .map(|spec| {
                let status_handle = StatusHandle::new(&spec.owner);
                (InboxMaintenance::start(spec, &owner, status_handle.clone()), status_handle)
            })
            .unzip();
        Self { _tasks: tasks, _owner: owner, status_handles }
    }

    /// A status for each database, of which only `maintenance.inboxes` is used; `/status` and the metrics read it.
    pub fn status_handles(&self) -> &[StatusHandle] {
        &self.status_handles
    }
}
