//! Whether this process owns the pipeline, as the pipeline announces it to the maintenance of its tables.

use std::sync::Arc;
use tokio::sync::watch;

/// What maintenance has to do.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) enum Duty {
    /// Nothing: this process does not own the pipeline.
    #[default]
    Idle,
    /// This process owns the pipeline under this epoch.
    Owner(i64),
    /// The pipeline has ended, and the task ends.
    End,
}

/// The epoch under which this process owns the pipeline. The pipeline announces it; maintenance works while there is
/// one. Clones announce to the same task.
#[derive(Clone, Default, Debug)]
pub(crate) struct OwnerEpoch(Arc<watch::Sender<Duty>>);

impl OwnerEpoch {
    /// This process owns the pipeline from now on, and no record of an earlier owner can arrive any more.
    pub(crate) fn begins(&self, epoch: i64) {
        self.announce(Duty::Owner(epoch));
    }

    /// This process no longer streams or polls: another process may own the pipeline.
    pub(crate) fn ends(&self) {
        self.announce(Duty::Idle);
    }

    /// The pipeline has ended.
    pub(super) fn close(&self) {
        self.announce(Duty::End);
    }

    pub(super) fn subscribe(&self) -> watch::Receiver<Duty> {
        self.0.subscribe()
    }

    fn announce(&self, duty: Duty) {
        self.0.send_if_modified(|now| {
            let before = std::mem::replace(now, duty);
            before != duty
        });
    }
}

/// Work that is done while this process owns the pipeline.
pub(super) trait OwnersWork: Send {
    /// What the pipeline has announced.
    fn duty(&mut self) -> &mut watch::Receiver<Duty>;

    /// This process does not own the pipeline.
    fn rests(&mut self);

    /// This process owns the pipeline under another epoch than before.
    fn begins(&mut self);

    /// Waits until there is something to do, and does it. Returns early if this process loses the epoch.
    fn wait_and_run(&mut self, epoch: i64) -> impl Future<Output = ()> + Send;
}

/// Works while this process owns the pipeline, until the pipeline ends.
pub(super) async fn serve(mut work: impl OwnersWork) {
    let mut owned = None;
    // An error means that the pipeline is gone.
    while work.duty().has_changed().is_ok() {
        let duty = *work.duty().borrow_and_update();
        match duty {
            Duty::End => return work.rests(),
            Duty::Idle => {
                owned = None;
                work.rests();
                if work.duty().changed().await.is_err() {
                    return;
                }
            }
            Duty::Owner(epoch) => {
                if owned.replace(epoch) != Some(epoch) {
                    work.begins();
                }
                work.wait_and_run(epoch).await;
            }
        }
    }
}

/// Waits until this process no longer owns the pipeline under this epoch. Cancel-safe.
pub(super) async fn ownership_ends(duty: &mut watch::Receiver<Duty>, epoch: i64) {
    // An error means that the pipeline is gone.
    drop(duty.wait_for(|duty| *duty != Duty::Owner(epoch)).await);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[tokio::test]
    async fn ownership_ends_with_its_epoch_whatever_comes_next() {
        let owner = OwnerEpoch::default();
        let mut duty = owner.subscribe();
        let ends = |next: fn(&OwnerEpoch)| {
            owner.begins(7);
            next(&owner);
        };
        ends(|owner| owner.begins(7));
        let waits = tokio::time::timeout(Duration::ZERO, ownership_ends(&mut duty, 7)).await;
        assert!(waits.is_err(), "the epoch is still owned");
        // A session that ended and another one that began since: the epoch is not the same.
        ends(|owner| {
            owner.ends();
            owner.begins(8);
        });
        ownership_ends(&mut duty, 7).await;
        ends(OwnerEpoch::ends);
        ownership_ends(&mut duty, 7).await;
        ends(OwnerEpoch::close);
        ownership_ends(&mut duty, 7).await;
        owner.begins(7);
        drop(owner);
        ownership_ends(&mut duty, 7).await;
    }
}
