//! Replay: publishes again what was published before, from a bookmark, a position, a time, by IDs or of one aggregate.
//!
//! A replay reads the WAL through a bookmark's slot, which it never moves, or the rows of the outbox table. It makes
//! the same records as the live stream, with the header `replay`, and passes them to a sink of its own. A relay of its
//! own, which parks nothing, decides what is in flight and what is sent again. A replay shares only the database with
//! the live stream: no slot, cursor, lanes or producer. The position up to which it is done is kept in
//! `postrider.replay`.
//!
//! ```text
//! bookmark's slot ──frames──▶ stream ──┐
//!                                      ├──▶ outbox (record) ──▶ publisher ──▶ sink ──▶ broker
//! outbox table ─────rows────▶ rows ────┘                          │ ▲                   │
//!                                postrider.replay ◀── progress ───┘ └──── reports ◀─────┘
//! ```

mod error;
mod job;
mod plan;
mod publisher;
mod run;
mod source;
mod tally;

pub use error::ReplayError;
pub use job::{Ended, Prepared, ReplayJob, ReplayOptions};
pub use plan::{From, Plan, ReplayRequest, Source, SourceChoice, Until};
pub use tally::{Refused, ReplayProgress, ReplayUpdate, Tally};
