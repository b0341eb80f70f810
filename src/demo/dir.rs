//! The directory of one demo: data, socket, configuration and logs. It goes with the value.

use super::DemoError;
use std::fs::{self, DirBuilder};
use std::os::unix::fs::{DirBuilderExt as _, chown};
use std::path::{Path, PathBuf};

/// Longest path of the directory: a unix socket's whole path may have 107 bytes on Linux, 103 elsewhere. Unit: bytes.
const PATH_BYTES_MAX: usize = 80;

/// A directory that nobody else can look into, removed when dropped.
#[derive(Debug)]
pub(super) struct Dir(PathBuf);

impl Dir {
    /// A new one under the system's directory for temporary files, or `/tmp` where that path is too long for a socket.
    pub(super) fn create() -> Result<Self, DemoError> {
        let name = format!("postrider-demo-{:08x}", fastrand::u32(..));
        let mut path = std::env::temp_dir().join(&name);
        if path.as_os_str().len() > PATH_BYTES_MAX {
            path = Path::new("/tmp").join(&name);
        }
        let created = DirBuilder::new().mode(0o700).create(&path);
        created.map_err(|source| DemoError::Directory { path: path.clone(), source })?;
        Ok(Self(path))
    }

    /// A path in it.
    pub(super) fn join(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// The directory.
    pub(super) fn path(&self) -> &Path {
        &self.0
    }

    /// Writes a file into it.
    pub(super) fn write(&self, name: &str, text: &str) -> Result<PathBuf, DemoError> {
        let path = self.join(name);
        match fs::write(&path, text) {
            Ok(()) => Ok(path),
            Err(source) => Err(DemoError::Directory { path, source }),
        }
    }

    /// Gives the directory to the user that the server runs as; root still sees into it.
    pub(super) fn give(&self, uid: u32, gid: u32) -> Result<(), DemoError> {
        let given = chown(&self.0, Some(uid), Some(gid));
        given.map_err(|source| DemoError::Directory { path: self.0.clone(), source })
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        // Nobody is left to tell; the path holds the demo's name, so what stays behind is easily known for what it is.
        drop(fs::remove_dir_all(&self.0));
    }
}

/// The last lines of a log, indented, for an error.
pub(super) fn tail(path: &Path, lines: usize) -> String {
    let text = fs::read(path).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let all: Vec<&str> = text.lines().collect();
    let last = all.get(all.len().saturating_sub(lines)..).unwrap_or_default();
    last.iter().flat_map(|line| ["\n    ", line]).collect()
}
