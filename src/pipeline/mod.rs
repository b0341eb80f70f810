//! The pipeline: connects, streams or polls, reconnects, drains and halts.
//!
//! The loop takes one input at a time, applies it to the relay, and performs the relay's effects in order. `relay`
//! decides the order and the confirmation of events; `postgres::error_policy` and `postgres::start` decide about
//! connections. This module decides whether a missing topic parks an event (`destinations`), whether an event has
//! expired (`feed`), and whether a cursor row waits for marks (`row_status`).
//!
//! Each pipeline has a thread and a runtime of its own, so that a pipeline that halts or waits does not slow another
//! one.

mod claim;
mod commit_watchdog;
mod connect;
mod destinations;
mod embedded;
mod failpoint;
mod feed;
mod former_owner;
mod halts;
mod hand_over;
mod health;
mod history;
mod lag;
mod lifecycle;
mod log;
mod parked;
mod parked_log;
mod poll;
mod repair;
mod requeue;
mod row_status;
mod service;
mod settings_change;
mod skipped_log;
mod slot_monitor;
mod spec;
mod status;
mod stream;
mod timer;

pub use embedded::Embedded;
pub use repair::{identity, repair_table, selection};
pub use service::{PipelineExit, Service, Stop, StopHandle};
pub use settings_change::{
    Change, ChangeNote, LeftBehind, Settings, compare as compare_settings, left_behind, polls_now,
};
pub use spec::{Mode, OnSlotLost, PipelineSpec, PollSettings, poll_spec};
