//! Why a change of a captured table can't become part of a document.

use postrider_core::row::TableId;
use postrider_core::source::Unreadable;
use std::error::Error;
use std::fmt;

/// A change that can't become part of a document. It has no content of the change.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CaptureError {
    /// OID of the table.
    pub relation: u32,
    /// What is wrong.
    pub fault: CaptureFault,
}

/// What is wrong with a change of a captured table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CaptureFault {
    /// The server never described the table.
    NotDescribed,
    /// The row has another number of columns than the table.
    Width,
    /// An UPDATE or a DELETE of a table without a replica identity.
    NoIdentity,
    /// The change has no value for a column of the replica identity.
    NoKeyValue,
    /// A value is not UTF-8.
    NotText,
}

impl From<CaptureError> for Unreadable {
    fn from(error: CaptureError) -> Self {
        match error.fault {
            CaptureFault::NotText => Self::NotText(TableId(error.relation)),
            CaptureFault::NotDescribed
            | CaptureFault::Width
            | CaptureFault::NoIdentity
            | CaptureFault::NoKeyValue => Self::Protocol(Box::new(error)),
        }
    }
}

impl fmt::Display for CaptureError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = match self.fault {
            CaptureFault::NotDescribed => "the server never described that table",
            CaptureFault::Width => "the row has another number of columns than the table",
            CaptureFault::NoIdentity => {
                "an UPDATE or DELETE of a table that has no replica identity"
            }
            CaptureFault::NoKeyValue => {
                "an UPDATE or DELETE without a value for a column of the replica identity"
            }
            CaptureFault::NotText => "a value is not UTF-8",
        };
        write!(f, "a change of the table with OID {} can't be read: {what}", self.relation)
    }
}

impl Error for CaptureError {}
