//! Messages recorded from real servers, messages no server sends, and messages of our own making.

mod fuzz;
mod malformed;
mod properties;
mod recorded;
