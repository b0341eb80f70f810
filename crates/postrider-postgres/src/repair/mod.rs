//! A new slot for a pipeline whose slot is gone, or that begins on a table which has rows: what the stream won't bring
//! is listed, published from the table, and only then does the cursor stand at the new slot.
//!
//! Owns the two tables of it (`postrider.repair`, `postrider.repair_page`), the question which rows are unpublished,
//! and the moment at which snapshot and stream part. Knows nothing of records and brokers: rows leave as pgoutput
//! Insert messages, and the driver publishes them as it publishes polled ones.
//!
//! ```text
//! making      what was resolved is noted ─▶ the old slot goes ─▶ new slot, with its snapshot
//! publishing  ids of the rows that the snapshot sees and that are not resolved, in order, page by page
//! done        cursor := the slot's consistent point, in the transaction that says so
//! ```
//!
//! Each state is committed before the next begins, so it may be killed anywhere. Until the last one the cursor row
//! stands where it stood: nothing streams from the new slot.

mod begin;
mod judge;
mod list;
mod reader;
mod row;
mod survey;

pub use begin::{Ask, Told, begin};
pub use judge::{Verdict, fit, judge, live};
pub use list::{Method, Unmarked};
pub use reader::{Finished, PAGE_ROWS, Reader};
pub use row::{Kind, Ledger, Row, Selection, State, ledger, read};
pub use survey::{Survey, left, parked_aggregates, relays, survey, undecided, without_id};
