//! How streams end: by us, by the server, by silence.
