//! Integration tests against real servers: one binary.
