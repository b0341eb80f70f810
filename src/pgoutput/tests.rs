//! Messages recorded from real servers, messages no server sends, and messages of our own making.

mod malformed;
mod properties;
mod recorded;
