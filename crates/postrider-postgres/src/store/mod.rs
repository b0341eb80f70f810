//! The tables of schema `postrider`: positions, parked events, requests of operators, bookmarks; and what operators do
//! with consumer groups and inboxes.

pub mod bookmark;
pub mod cursor;
pub mod groups;
pub mod inbox_maintenance;
pub mod inbox_messages;
pub mod inboxes;
pub mod log_maintenance;
pub mod maintenance;
pub mod parked;
pub mod pause;
pub mod requests;
pub mod requeue;
