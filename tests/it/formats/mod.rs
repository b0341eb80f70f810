//! The forms in which events are published, on real servers.

mod claim_check;
mod claim_check_faults;
mod claim_check_readers;
mod claims;
