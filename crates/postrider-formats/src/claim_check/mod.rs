//! Claim check: a payload above a size goes to object storage, and the record has a reference in its place.
//!
//! An object is named by the SHA-256 digest of its content, so neither a reused id nor a replay can make a reference
//! lead to another payload, and an upload that is repeated stores the same again. A payload is stored before its record
//! is published: `uploads` requests it on a thread of its own, and the record waits.
//!
//! Nothing here deletes an object. A rule of the bucket does (`preflight` prints it), and an object that is older than
//! a quarter of `keep` is stored again when a record refers to it (`upload`). So each object lives `keep` or longer
//! after the upload of the last record that refers to it.

#[cfg(feature = "claim-check")]
mod claim_step;
mod config;
#[cfg(feature = "claim-check")]
mod digest;
#[cfg(feature = "claim-check")]
mod lifecycle;
#[cfg(feature = "claim-check")]
mod preflight;
#[cfg(feature = "claim-check")]
mod problem;
#[cfg(feature = "claim-check")]
mod sign;
#[cfg(feature = "claim-check")]
mod storage;
#[cfg(feature = "claim-check")]
mod upload;
#[cfg(feature = "claim-check")]
mod uploads;

#[cfg(feature = "claim-check")]
pub(crate) use claim_step::ClaimCheck;
pub(crate) use config::{ClaimCheckConfig, ClaimCheckKeys};
#[cfg(feature = "claim-check")]
pub(crate) use preflight::check_storage;
