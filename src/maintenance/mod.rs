//! Maintenance: work on Postrider's own tables that no event waits for.
//!
//! Each pipeline has one task for it, with a timer and a session of its own. A run deletes resolved rows of the parked
//! table that no stream sends again, and drops bookmarks that have expired or retain too much WAL. What is to be
//! maintained later becomes a further step of a run (`run`).
//!
//! There is one task for each pipeline and not for each database, because ownership belongs to a pipeline, and because
//! pipelines share nothing: a run that fails or waits delays no other pipeline.
//!
//! - *Only the owner.* The pipeline announces its epoch while it streams or polls ([`OwnerEpoch`]). A process that
//!   stands by has no epoch, so its maintenance opens no session. Each statement that changes something checks the
//!   epoch in the cursor row in its own transaction, because the announcement may be late.
//! - *Never in the way.* The session is not the stream's, the statements are short and take no lock that the stream
//!   waits for (`postgres::store::parked::prune` has the rules), and an error never stops the stream.
//! - *A session for each run.* A run takes a few milliseconds a minute, so a session that is kept would occupy one of
//!   `max_connections` for nothing. The price is one login a minute and pipeline.
//!
//! A pipeline whose sink writes event logs has a second task (`event_logs_task`), for the logs and their consumer
//! groups. It works on the logs' database, which may be another one, every few seconds, and so keeps its session. Its
//! statements check no epoch: each of them is right whoever runs it, and however often.
//!
//! A pipeline with `[pipelines.NAME.retention]` has another one (`retention_task`), which removes rows of the outbox
//! table and moves its partitions, on a session for each pass. Its statements check no epoch: they decide by what the
//! database has (`postgres::retention`).
//!
//! A further task (`inboxes_task`) is for the inboxes of the SQL toolkit, one for each database of the pipeline. Most
//! databases have none: then it looks every few minutes, and keeps no session. Its statements check no epoch either.

mod duty;
mod event_logs;
mod event_logs_report;
mod event_logs_task;
mod inbox_pace;
mod inbox_watch;
mod inboxes;
mod inboxes_report;
mod inboxes_task;
mod pace;
mod report;
mod retention_report;
mod retention_task;
mod run;
mod task;

pub(crate) use duty::OwnerEpoch;
pub(crate) use event_logs::EventLogsSpec;
pub use event_logs::MaintenanceSettings;
pub use inboxes::InboxSettings;
pub(crate) use inboxes::InboxesSpec;
#[cfg(feature = "kafka")]
pub(crate) use inboxes_task::InboxMaintenance;
pub(crate) use retention_task::RetentionSpec;
pub(crate) use run::MaintenanceSpec;
pub(crate) use task::Maintenance;
