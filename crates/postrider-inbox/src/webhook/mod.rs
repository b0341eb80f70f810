//! Webhooks as the source of messages: signatures, secrets, and the message that a request becomes. The HTTP server is
//! not here.

mod config;
mod request;
mod scheme;
mod secrets;
mod signature;

pub use config::WebhookConfig;
pub use request::WebhookRequest;
pub use scheme::{Encoding, Header, Scheme};
pub use secrets::{Secrets, SecretsError};
pub use signature::{Refused, SignedRequest, Verified, verify};
