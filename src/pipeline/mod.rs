//! The driver: the only place where a live pipeline waits.
//!
//! Owns a pipeline's life: connect, stream, reconnect, drain, halt. It selects one input at a time, hands it to the
//! relay, and performs the effects in order. `relay` decides the order and the confirmation of events;
//! `postgres::action` and `postgres::fence` decide about connections. Decided here: whether a missing topic parks an
//! event (`destinations`), whether an event has expired (`feed`), whether a cursor row waits for marks (`marking`).
//!
//! Each pipeline runs on a thread of its own with a runtime of its own, so that one that halts or waits never slows
//! another.

mod claim;
mod commit_watchdog;
mod connect;
mod destinations;
mod failpoint;
mod feed;
mod former;
mod halts;
mod handover;
mod history;
mod lag;
mod lifecycle;
mod log;
mod parked;
mod poll;
mod repair;
mod requeue;
mod row_status;
mod service;
mod settings_change;
mod slot_monitor;
mod spec;
mod status;
mod stream;
mod timer;
mod trouble;

pub use repair::{identity, repair_table, selection};
pub use service::{Exit, Service, Stop, StopHandle};
pub use settings_change::{
    Change, ChangeNote, LeftBehind, Settings, left_behind, look as look_for_changes, polls_now,
};
pub use spec::{Mode, OnSlotLost, PipelineSpec, PollSettings, poll_spec, type_facts};
