//! The driver: the only place where a live pipeline waits.
//!
//! Owns a pipeline's life: connect, stream, reconnect, drain, halt. It selects one input at a time, hands it to the
//! relay, and performs the effects in order. `relay` decides the order and the confirmation of events;
//! `postgres::action` and `postgres::fence` decide about connections. Decided here: whether a missing topic parks an
//! event (`destinations`), whether an event has expired (`feed`), whether a cursor row waits for marks (`marking`).
//!
//! Each pipeline runs on a thread of its own with a runtime of its own, so that one that halts or waits never slows
//! another.

mod alarm;
mod board;
mod budget;
mod change;
mod claim;
mod connect;
mod cut;
mod destinations;
mod farewell;
mod feed;
mod former;
mod halted;
mod halts;
mod history;
mod judge;
mod lag;
mod looks;
mod marking;
mod parking;
mod patience;
mod pipeline;
mod poll;
mod poll_spec;
mod reader;
mod renewal;
mod repair;
mod returning;
mod run;
mod say;
mod session;
mod shelf;
mod spec;
mod trouble;

pub use change::{
    Change, ChangeNote, LeftBehind, Settings, left_behind, look as look_for_changes, polls_now,
};
pub use poll_spec::poll_spec;
pub use repair::{identity, repair_table, selection};
pub use run::{Exit, Service, Stop, StopHandle};
pub use spec::{Mode, OnSlotLost, PipelineSpec, PollSettings, type_facts};
