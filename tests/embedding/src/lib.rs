//! A source, a store and a sink that are not part of Postrider. `docs/embedding.md` walks through them.
//!
//! They are small, and yet they do what the interfaces require: [`spool`] repeats what is not confirmed and removes
//! what is, [`cursor_file`] is durable when it returns, and [`folder`] acknowledges what is on the disk, in batches, on
//! a thread of its own. [`journal`] is a sink that publishes in transactions.

pub mod cursor_file;
pub mod folder;
pub mod journal;
pub mod spool;
