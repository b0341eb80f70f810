//! The decisions of a relay: which events are published, repeated, parked and confirmed.
//!
//! Every decision is a synchronous function of the inputs. The tidy test `layers` holds that the crate depends on
//! neither an asynchronous runtime nor a generator of random numbers. Only the seed of the hash of lanes is random.

pub mod ack;
pub mod claims;
pub mod engine;
pub mod published;
pub mod relay;
#[cfg(test)]
mod sim;
