//! What can only be seen by looking at several keys, or at a file beside the configuration.

use super::context::Context;
use crate::driver::PipelineSpec;
use std::path::Path;

/// Bytes a secret file may have.
const SECRET_BYTES_MAX: usize = 64 << 10;

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
    /// The content of a secret file without one trailing newline. Tells when others may read the file.
    pub(super) fn secret_file(&self, key: &str, file: &str) -> Option<String> {
        let path = self.directory.join(file);
        let content = match std::fs::read(&path) {
            Ok(content) => content,
            Err(error) => {
                self.error_at(key, format_args!("could not read \"{}\": {error}", path.display()));
                return None;
            }
        };
        let fits = content.len() <= SECRET_BYTES_MAX;
        let Some(mut secret) =
            fits.then_some(content).and_then(|bytes| String::from_utf8(bytes).ok())
        else {
            let message = format!("\"{}\" is not a secret: no UTF-8, or too long", path.display());
            self.error_at(key, message);
            return None;
        };
        if secret.ends_with('\n') {
            secret.pop();
            if secret.ends_with('\r') {
                secret.pop();
            }
        }
        if secret.is_empty() {
            self.error_at(key, format_args!("\"{}\" is empty", path.display()));
        }
        if others_may_read(&path) {
            let path = path.display();
            self.warn_at(
                key,
                format_args!("everybody can read \"{path}\"; mend it with: chmod o-rwx '{path}'"),
            );
        }
        Some(secret)
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
