//! Frames to changes, and with the mapper to records.

mod changes;
mod fuzz;
mod recorded;
mod support;
