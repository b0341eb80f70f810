//! Which event is published, repeated, parked and confirmed: pure, without a clock, a socket or a random number.

pub mod ack;
pub mod relay;
#[cfg(test)]
mod sim;
