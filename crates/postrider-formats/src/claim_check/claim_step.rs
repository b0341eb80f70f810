//! The step that puts a reference in place of a large payload.

use super::config::ClaimCheckConfig;
use super::uploads::{UploadState, Uploads};
use crate::cloud_events::DATA_REF;
use crate::draft::Draft;
use crate::step::{NotReady, Step};
use postrider_core::record::Record;
use postrider_sinks::{Mailbox, SinkError};
use std::sync::Arc;
use std::time::Instant;

/// The headers of a reference.
const URL: &str = "claim-check-url";
const SIZE: &str = "claim-check-size";
const SHA256: &str = "claim-check-sha256";

/// Puts a reference in place of a payload that is larger than a bound.
pub(crate) struct ClaimCheck {
    config: ClaimCheckConfig,
    uploads: Uploads,
    names: ClaimNames,
}

/// The names of headers.
struct ClaimNames {
    url: Arc<str>,
    size: Arc<str>,
    sha256: Arc<str>,
    /// The attribute of a CloudEvent with the reference.
    data_ref: Option<Arc<str>>,
}

impl ClaimNames {
    /// Whether a header of this name is that of a reference.
    fn have(&self, name: &str) -> bool {
        [&self.url, &self.size, &self.sha256]
            .into_iter()
            .chain(&self.data_ref)
            .any(|known| known.eq_ignore_ascii_case(name))
    }
}

impl ClaimCheck {
    /// `attribute_prefix`: the beginning of the headers that are attributes of CloudEvents, where records are such.
    ///
    /// # Errors
    /// There is no login; a thread that can't be started.
    pub(crate) fn open(
        config: &ClaimCheckConfig,
        attribute_prefix: Option<&str>,
        mailbox: &Mailbox,
    ) -> Result<Self, SinkError> {
        if let Some(error) = config.missing_login() {
            return Err(error);
        }
        let uploads = Uploads::start(config, mailbox)?;
        let names = ClaimNames {
            url: URL.into(),
            size: SIZE.into(),
            sha256: SHA256.into(),
            data_ref: attribute_prefix.map(|prefix| format!("{prefix}{DATA_REF}").into()),
        };
        Ok(Self { config: config.clone(), uploads, names })
    }
}

impl Step for ClaimCheck {
    fn apply(
        &mut self,
        record: &Record<'_>,
        draft: &mut Draft,
        since: Option<Instant>,
    ) -> Result<(), NotReady> {
        // An application may have copied the headers of another event.
        for (index, header) in record.headers.iter().enumerate() {
            if self.names.have(header.name) {
                draft.remove_header(index);
            }
        }
        let Some(payload) = draft.value(record).filter(|value| value.len() > self.config.above)
        else {
            return Ok(());
        };
        let size = payload.len();
        let digest = match self.uploads.state(payload, since) {
            UploadState::Stored(digest) => digest.hex(),
            UploadState::Waits => return Err(NotReady::Waits),
            UploadState::Refused(refusal) => return Err(NotReady::Refused(refusal)),
        };
        let bucket = &self.config.bucket;
        let url = bucket.reference(&bucket.key_of(&digest));
        draft.set_value(Vec::new());
        draft.add_header(&self.names.url, url.as_bytes());
        draft.add_header(&self.names.size, size.to_string().as_bytes());
        draft.add_header(&self.names.sha256, digest.as_bytes());
        if let Some(name) = &self.names.data_ref {
            // It has no character that a binding encodes.
            draft.add_header(name, url.as_bytes());
        }
        Ok(())
    }

    fn reset(&mut self) {
        self.uploads.reset();
    }
}
