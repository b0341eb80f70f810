//! The long list of bad input: what is wrong is told with where it is and what mends it, and nothing is lost.
//!
//! What other modules test already is only recorded there; here is the rest of it.

mod config;
