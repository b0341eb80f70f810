//! The tables of schema `postrider`: positions, parked events, requests of operators, and bookmarks.

pub mod bookmark;
pub mod cursor;
pub mod groups;
pub mod log_maintenance;
pub mod maintenance;
pub mod parked;
pub mod requests;
pub mod requeue;
