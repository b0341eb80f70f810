//! Polling: the outbox read as a table, for servers and roles without logical decoding.
//!
//! Owns the claim (which rows, in which order), the marks that settle it, and the session that does both. Knows
//! nothing of layouts but the names in a [`PollSpec`], nothing of records, and nothing of brokers: rows leave as
//! pgoutput Insert messages, so that `outbox` makes the same records of them as of the stream's.
//!
//! One claim is one transaction of the database, as one transaction of the stream is: its rows are locked, published,
//! and marked by the commit that ends it, never before. If the session dies, the rows are free again, and unmarked.
//!
//! Order. Rows that one statement sees were committed before those that only a later one sees, so claims, one after
//! the other, follow the commits; there is no "last id", hence no gap to fall into. Inside a claim an aggregate's rows
//! go by their number, or by their time. A row that is locked by somebody else, delayed, or failed holds back the
//! later ones of its aggregate, and of no other.

pub mod claim;
pub mod marks;
pub(crate) mod order;
mod session;
mod spec;
pub(crate) mod sql;
mod table;
#[cfg(test)]
mod tests;

pub use claim::{Claim, Missed, Settled};
pub(crate) use order::{order, source};
pub use session::{CHANNEL, CLAIM_ROWS_MAX, OldestReady, Opened, Poller};
pub use spec::{Backoff, Marks, PollSpec};
pub(crate) use sql::instant;
pub use sql::{CLAIM_BYTES_MAX, ERROR_CHARS_MAX, Keep, ROW_BYTES_MAX, Twice, instant_sql};
pub(crate) use table::{Shape, shape};
