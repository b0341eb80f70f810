//! The pipeline: connects, streams or polls, reconnects, drains and halts.
//!
//! The loop takes one input at a time, applies it, and performs the effects in order. `relay`, `engine` and `claims`
//! decide the order and the confirmation of events; `postgres::error_policy` and `postgres::start` decide about
//! connections. This module decides whether a missing topic parks an event (`destinations`).
//!
//! Each pipeline has a thread and a runtime of its own, so that a pipeline that halts or waits does not slow another
//! one.

mod backlog_log;
mod backlog_monitor;
mod capture_change;
mod claim;
mod claim_reader;
mod commit_watchdog;
mod connect;
mod counting;
mod destinations;
mod drain_log;
mod embedded;
mod failpoint;
mod failure;
mod feed;
mod former_owner;
mod halts;
mod hand_over;
mod history;
mod lag;
mod mode;
mod observer;
mod parked_causes;
mod parked_log;
mod pause;
mod pause_watch;
mod poll;
mod record_buffer;
mod repair;
mod row_status;
mod running;
mod service;
mod session_context;
mod settings_change;
mod sink_log;
mod sink_port;
mod skipped_log;
mod slot_monitor;
mod source_log;
mod spec;
mod stop;
mod store_job;
mod store_log;
mod store_port;
mod stream;
mod supervisor;
mod timer;
mod transaction_meter;

pub use crate::maintenance::{InboxSettings, MaintenanceSettings};
pub use embedded::Embedded;
pub use history::identity;
pub use mode::Mode;
pub use repair::{refused as repair_refused, selection};
pub use service::Service;
pub use settings_change::{
    Change, ChangeNote, LeftBehind, Settings, compare as compare_settings, left_behind, polls_now,
};
pub use spec::{
    CommonSpec, OnSlotLost, PipelineSpec, PollSettings, RepairRequest, TableOids, log_database,
    poll_spec, repair_table, topic_rule,
};
pub use stop::{PipelineExit, Stop, StopHandle};
