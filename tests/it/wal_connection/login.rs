//! Logging in: what is asked for, what is refused.
