//! What is remembered by id: events that polling has published and the stream repeats, published events whose rows have
//! no status yet, and parked events whose rows are read from the table again.
//!
//! Ids are kept whole: with hashes, an event that was never published would one day be skipped.

mod polled_ids;
mod requeued;
mod row_status;

pub use polled_ids::PolledIds;
pub use requeued::{ParkedRow, REQUEUED_WAIT, RequeuedEvents, RowOrigin};
pub use row_status::{
    RowStatusBatch, RowStatusMade, RowStatusQueue, RowStatusRule, StatusesWaiting,
};
