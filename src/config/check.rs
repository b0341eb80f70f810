//! What can only be seen by looking at several keys, or at a file beside the configuration.

use super::context::Context;
use super::types::PipelineConfig;
use crate::postgres::Conninfo;
use crate::secret_file::SecretFile;
use std::path::Path;

/// Checks across pipelines, whatever else is wrong with them.
pub(super) fn across(context: &Context<'_>, pipelines: &[PipelineConfig]) {
    // Slots belong to the server, not to a database of it.
    let hosts = |pipeline: &PipelineConfig| {
        let parsed = Conninfo::parse(pipeline.source.url.reveal(), context.env).ok();
        parsed.map(|conninfo| conninfo.hosts())
    };
    let servers: Vec<_> = pipelines.iter().map(hosts).collect();
    for (index, (pipeline, server)) in pipelines.iter().zip(&servers).enumerate() {
        let (name, slot) = (&pipeline.name, &pipeline.source.slot);
        let mut earlier = pipelines.iter().zip(&servers).take(index);
        let shares = earlier.find(|(other, there)| {
            other.source.slot == *slot && there.is_some() && *there == server
        });
        if let Some((other, _)) = shares {
            let message = format!(
                "the pipelines \"{}\" and \"{name}\" would share the slot \"{slot}\" of one server: \
                 give each a slot of its own",
                other.name
            );
            context.error_at(&format!("pipelines.{name}.source.slot"), message);
        }
    }
}

impl Context<'_> {
    /// A secret file and its content. Warns where others may read the file.
    pub(super) fn secret_file(&self, key: &str, file: &str) -> Option<(SecretFile, String)> {
        let file = SecretFile::new(self.directory.join(file));
        if !self.secrets {
            self.unread(key);
            return Some((file, String::new()));
        }
        let secret = match file.read() {
            Ok(secret) => secret,
            Err(error) => {
                self.error_at(key, error);
                return None;
            }
        };
        self.warn_where_others_read(key, file.path());
        Some((file, secret))
    }

    /// Warns where everybody may read a file that holds a secret.
    pub(super) fn warn_where_others_read(&self, key: &str, path: &Path) {
        if self.secrets && others_may_read(path) {
            let path = path.display();
            self.warn_at(
                key,
                format_args!("everybody can read \"{path}\"; fix it with: chmod o-rwx '{path}'"),
            );
        }
    }
}

#[cfg(unix)]
fn others_may_read(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt as _;
    std::fs::metadata(path).is_ok_and(|data| data.permissions().mode() & 0o004 != 0)
}

#[cfg(not(unix))]
fn others_may_read(_: &Path) -> bool {
    false
}
