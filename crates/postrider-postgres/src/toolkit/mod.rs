//! The SQL toolkit: event logs, consumer groups, inboxes and table outboxes as tables and functions of schema
//! `postrider`, which are installed into the database that is to have them. The SQL is in `sql/toolkit`.
//!
//! Owns the installation: the numbered migrations and the functions ([`files`]), the script that installs them
//! ([`script`]), the rights of each kind of role ([`roles`]), what a database has ([`state`]), and the uninstallation
//! ([`uninstall`]). An installation is one transaction, and the same text for `postrider sql --print` and `--install`.
//!
//! Postrider's own tables ([`crate::schema`]) may be in the same schema. Neither of the two drops what is the other's.

pub mod error;
pub mod files;
pub mod install;
pub mod roles;
pub mod script;
pub mod state;
pub mod uninstall;

pub use error::ToolkitError;
pub use install::{Installed, NewInstallation, install};
pub use roles::{RoleKind, ToolkitRole};
pub use state::{
    InstalledGroup, InstalledInbox, InstalledLog, InstalledOutbox, ToolkitFacts, ToolkitVersion,
};
pub use uninstall::RemovalPlan;
