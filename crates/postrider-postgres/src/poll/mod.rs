//! Polling: the outbox read as a table, for servers and roles without logical decoding.
//!
//! Owns the claim (which rows, in which order), the status that settles it, and the session that does both. A layout is
//! known here only as the data of a [`PollSpec`]: names of columns, and states of rows, which `dialect` renders as SQL.
//! Rows leave with the texts and types that the stream's rows have, so the outbox mapper makes the same records of
//! them.
//!
//! One claim is one transaction of the database: its rows are locked, published, and get their status by the commit
//! that ends it, never before. If the session ends, the rows are unlocked and have no new status.
//!
//! Order: rows that one statement sees were committed before rows that only a later statement sees, so successive
//! claims follow the commits. No highest id is remembered, so a row whose transaction commits late is not missed.
//! Inside a claim the rows of an aggregate are sorted by their number, or by their time. A row that is locked by
//! another session, delayed, or failed holds back the later rows of its aggregate, and of no other.

pub mod by_id;
pub mod claim;
pub(crate) mod dialect;
pub(crate) mod order;
pub mod row_status;
mod session;
mod spec;
pub(crate) mod sql;
pub(crate) mod table;
#[cfg(test)]
mod tests;

pub use claim::{Claim, MissedRows};
pub use postrider_core::outbox_rows::RowOutcome;
pub use session::{CHANNEL, CLAIM_ROWS_MAX, OldestReady, Opened, Poller};
pub use spec::{Backoff, PollSpec};
pub use sql::{CLAIM_BYTES_MAX, ERROR_CHARS_MAX, PayloadCopy, ROW_BYTES_MAX};
