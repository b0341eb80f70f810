//! One payload to its object.

use super::config::ClaimCheckConfig;
use super::digest::PayloadDigest;
use super::problem::StorageProblem;
use super::storage::{Storage, StoredObject};
use bytes::Bytes;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Stores payloads under their digests.
#[derive(Debug)]
pub(super) struct Upload {
    storage: Storage,
    config: ClaimCheckConfig,
    /// The store has answered that it does not know conditional requests.
    unconditional: AtomicBool,
}

impl Upload {
    pub(super) fn new(config: &ClaimCheckConfig) -> Self {
        Self {
            storage: Storage::new(config),
            config: config.clone(),
            unconditional: AtomicBool::new(false),
        }
    }

    /// Stores a payload, unless an object of its name, size and digest was stored a short time ago. One that was
    /// stored earlier is stored again, so that no rule deletes it while the record that comes now is in use.
    ///
    /// # Errors
    /// The payload is not known to be stored.
    pub(super) async fn ensure(
        &self,
        payload: &Bytes,
        digest: PayloadDigest,
    ) -> Result<(), StorageProblem> {
        let key = self.config.bucket.key_of(&digest.hex());
        let put = |only_new| self.storage.put(&key, payload.clone(), digest, only_new);
        if !self.unconditional.load(Ordering::Relaxed) {
            match put(true).await {
                Ok(_) => return Ok(()),
                Err(problem) if problem.is_there_already() => {
                    let found = self.storage.look(&key).await;
                    if found.is_ok_and(|found| {
                        is_in_use(&found, payload, digest, self.config.renewed_after())
                    }) {
                        return Ok(());
                    }
                }
                Err(problem) if problem.has_no_conditions() => {
                    self.unconditional.store(true, Ordering::Relaxed);
                }
                Err(problem) => return Err(problem),
            }
        }
        put(false).await.map(drop)
    }
}

/// Whether an object is this payload, and young enough. What is not known counts as different.
fn is_in_use(
    found: &StoredObject,
    payload: &Bytes,
    digest: PayloadDigest,
    age_max: Duration,
) -> bool {
    let is_same = found.checksum.as_ref().is_none_or(|checksum| *checksum == digest.base64());
    found.size == Some(payload.len() as u64)
        && is_same
        && found.age.is_some_and(|age| age <= age_max)
}

#[cfg(test)]
mod tests;
