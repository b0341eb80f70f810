//! `postrider verify`: proves that the events of the outbox table, or of a ledger file, are in the topics: complete, in
//! order per aggregate, and how many are repeated. It moves nothing: no slot, no consumer group, no write.
//!
//! The source is read first, in one snapshot; the ends of the topics are requested after it. So a record that has to be
//! there is below them.

mod comparison;
mod error;
mod event_ids;
mod findings;
mod ledger;
mod outbox;
mod report;
mod request;
mod run;
mod topics;

pub use comparison::OrderBy;
pub use error::VerifyError;
pub use findings::{VerifyExample, VerifyFinding, VerifyFindings};
pub use ledger::{LEDGER_VERSION, LedgerEvent, LedgerHead, LedgerOutcome};
pub use report::{ReadPartition, ReadTopic, SourceSummary, VerifyReport};
pub use request::{PartitionRange, VerifyProgress, VerifyRequest};
pub use run::verify;
