//! What can only be seen by looking at several keys, or at a file beside the configuration.

use super::context::Context;
use crate::driver::PipelineSpec;
use crate::secret_file::SecretFile;
use std::path::Path;

/// Checks across pipelines.
pub(super) fn across(context: &Context<'_>, specs: &[PipelineSpec]) {
    for (index, spec) in specs.iter().enumerate() {
        if let Some(other) = specs.iter().take(index).find(|other| share_a_slot(other, spec)) {
            let message = format!(
                "the pipelines \"{}\" and \"{}\" would share the slot \"{}\" of one server: \
                 give each a slot of its own",
                other.names.pipeline, spec.names.pipeline, spec.names.slot
            );
            context.error_at(&format!("pipelines.{}.source.slot", spec.names.pipeline), message);
        }
    }
}

/// Slots belong to the server, not to a database of it.
fn share_a_slot(a: &PipelineSpec, b: &PipelineSpec) -> bool {
    a.names.slot == b.names.slot && a.conninfo.hosts() == b.conninfo.hosts()
}

impl Context<'_> {
    /// A secret file and its content. Warns where others may read the file.
    pub(super) fn secret_file(&self, key: &str, file: &str) -> Option<(SecretFile, String)> {
        let file = SecretFile::new(self.directory.join(file));
        let secret = match file.read() {
            Ok(secret) => secret,
            Err(error) => {
                self.error_at(key, error);
                return None;
            }
        };
        if others_may_read(file.path()) {
            let path = file.path().display();
            self.warn_at(
                key,
                format_args!("everybody can read \"{path}\"; fix it with: chmod o-rwx '{path}'"),
            );
        }
        Some((file, secret))
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
