//! Captured tables: the changes of one transaction and table become one document, or a sequence of documents if there
//! are many.
//!
//! `docs/table-outbox.md` has the format of the documents.

pub use spec::{CHUNK_BYTES_MIN, CaptureSpec, CapturedTable, TABLES_MAX, THRESHOLD_ROWS};

mod spec;
pub mod tables;
