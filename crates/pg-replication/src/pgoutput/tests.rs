//! Messages recorded from servers, malformed messages, and generated messages.

mod fuzz;
mod malformed;
mod properties;
mod recorded;
