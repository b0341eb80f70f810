//! Statements on the parked table, as jobs beside the stream: the write, the records of tries, people's requests.

use super::connect::Connected;
use super::session::Job;
use super::spec::PipelineSpec;
use crate::event::Position;
use crate::parked::{Mark, OwnedRecord, Parked, Wish};
use crate::postgres::control::{Control, Notifications};
use crate::postgres::parked::{self, Stored};
use std::sync::Arc;
use tokio::time::{Instant, sleep_until};

/// Records that were asked for, and those that were there.
pub(super) type Fetched = (Vec<Position>, Vec<(Position, OwnedRecord)>);

/// Commits rows and marks, fenced by our epoch.
pub(super) fn write(
    connected: &Connected,
    spec: &Arc<PipelineSpec>,
    rows: Arc<Vec<Parked>>,
    marks: Vec<Mark>,
) -> Job<Stored> {
    let (client, spec) = (connected.control.shared_client(), Arc::clone(spec));
    let epoch = connected.epoch;
    Box::pin(async move { parked::write(&client, spec.name(), epoch, &rows, &marks).await })
}

/// Reads the records that are to be tried.
pub(super) fn fetch(
    control: &Control,
    spec: &Arc<PipelineSpec>,
    positions: Vec<Position>,
) -> Job<Fetched> {
    let (client, spec) = (control.shared_client(), Arc::clone(spec));
    Box::pin(async move {
        let records = parked::fetch(&client, spec.name(), &positions).await?;
        Ok((positions, records))
    })
}

/// Reads what people ask for.
pub(super) fn requests(control: &Control, spec: &Arc<PipelineSpec>) -> Job<Vec<(Position, Wish)>> {
    let (client, spec) = (control.shared_client(), Arc::clone(spec));
    Box::pin(async move { parked::requests(&client, spec.name()).await })
}

/// Waits until somebody says that there are requests, or it is time to look anyway.
pub(super) async fn asked(notifications: &Notifications, look_at: Instant) {
    tokio::select! {
        () = notifications.next() => {}
        () = sleep_until(look_at) => {}
    }
}
