//! Captured tables: the changes of one transaction and table become one document, or a sequence of documents if there
//! are many.
//!
//! ```text
//! Begin  changes of tables a, b, a, a, b …  Commit
//!          └─▶ the net changes of a, of b: one [`Document`] each, which is published at the commit, or, as a part of
//!              a sequence, at the change for which it has no room
//! ```
//!
//! Every change of a captured table counts two ordinals: at the first a sequence may begin, at the second a document of
//! it may be published, which then holds changes *before* this one only. So the ordinals of a transaction do not depend
//! on the specification, and a consumer that has seen a table's document has every change of the table below that
//! document's ordinal. At the commit, each table of the transaction counts one ordinal, in the order of their first
//! changes.
//!
//! `docs/table-outbox.md` has the format of the documents.

pub use assembler::{AssembledBatch, DeltaAssembler, Frames};
pub use error::{CaptureError, CaptureFault};
pub use oids::read_oids;
pub use shapes::{READ_SHAPES, ShapeFacts, read_shapes};
pub use spec::{
    CHUNK_BYTES_MIN, CaptureSpec, CapturedTable, SettingsNumber, TABLES_MAX, THRESHOLD_ROWS,
};

mod assembler;
mod document;
mod error;
mod json;
mod oids;
mod open_table;
mod relations;
mod shapes;
mod spec;
mod streamed_table;
pub mod tables;
#[cfg(test)]
mod tests;
