//! What makes changes of the frames of a connection: rows of an outbox as they are, or documents of captured tables.

use crate::capture::{self, DeltaAssembler};
use crate::catalog;
use crate::decoder::Decoder;
use crate::error::SourceError;
use tokio_postgres::Client;

/// Makes changes of the frames of one connection. A caller asks once for each batch which of the two it is, so an event
/// costs no branch.
#[derive(Debug)]
pub enum ChangeReader {
    /// The rows of an outbox table.
    Rows(Box<Decoder>),
    /// The documents of captured tables.
    Deltas(Box<DeltaAssembler>),
}

impl ChangeReader {
    /// A new batch is read, from place 0 on. To be called before any change of it is read.
    pub fn begin_batch(&mut self) {
        match self {
            // A place in a batch of frames is all that a decoder needs.
            Self::Rows(_) => {}
            Self::Deltas(deltas) => deltas.begin_batch(),
        }
    }

    /// Whether types must be looked up in the catalog before the stream can be read on.
    pub fn is_blocked(&self) -> bool {
        match self {
            Self::Rows(decoder) => !decoder.unknown_types().is_empty(),
            Self::Deltas(deltas) => !deltas.unknown_types().is_empty(),
        }
    }

    /// Looks up the types that the description of a table waits for.
    ///
    /// # Errors
    /// An error of the server or of the connection.
    pub async fn look_up_types(&mut self, client: &Client) -> Result<(), SourceError> {
        match self {
            Self::Rows(decoder) => {
                let found = catalog::read_types(client, decoder.unknown_types()).await?;
                decoder.add_types(&found);
            }
            Self::Deltas(deltas) => {
                let found = capture::read_shapes(client, deltas.unknown_types()).await?;
                deltas.add_shapes(&found);
            }
        }
        Ok(())
    }
}
