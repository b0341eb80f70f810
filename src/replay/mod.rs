//! Publishing again: what was published once, from a saved position, a time, by ids or of one aggregate.
//!
//! Owns which events belong, their pace, and how far a replay has got. Reads the log through a bookmark's slot, which
//! it never moves, or the rows of the outbox table; makes the same records of them as the relay, with header `replay`;
//! and hands them to a sink of its own. Shares nothing with the live stream but the database: not its slot, its cursor,
//! its lanes, nor its producer.
//!
//! ```text
//! bookmark's slot ──frames──▶ log ──┐
//!                                   ├──▶ outbox (record) ──▶ outlet ──▶ sink ──▶ broker
//! outbox table ─────rows────▶ rows ─┘                          │ ▲                │
//!                          postrider.replay ◀── what is done ──┘ └─── reports ◀───┘
//! ```

mod error;
mod job;
mod outlet;
mod plan;
mod run;
mod source;

pub use error::ReplayError;
pub use job::{Ended, Job, Options, Prepared};
pub use outlet::{Moment, Refused, Tally, Tell};
pub use plan::{From, Plan, ReplayRequest, Source, SourceChoice, Until};
