//! Whole messages over a transport, one at a time: enough for login and simple queries, too slow for the stream.
//!
//! Knows the five bytes every message starts with, and nothing of what is in it. Time limits are the callers'.

use super::error::{ServerReport, SourceError, SourceErrorKind};
use super::transport::Transport;
use bytes::{Buf, Bytes, BytesMut};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// Most bytes of one message outside the stream. A row of `IDENTIFY_SYSTEM` has some hundred.
const HANDSHAKE_MESSAGE_BYTES_MAX: usize = 1 << 20;

/// Bytes before a message's body: the tag, and the length that counts itself.
pub(super) const HEADER_BYTES: usize = 5;

/// A transport with what has been read from it and not yet looked at.
pub(super) struct Wire {
    pub(super) transport: Transport,
    pub(super) inbox: BytesMut,
}

/// One message: its tag and its body.
pub(super) struct Frame {
    pub(super) tag: u8,
    pub(super) body: Bytes,
}

impl Wire {
    pub(super) fn new(transport: Transport) -> Self {
        Self { transport, inbox: BytesMut::with_capacity(8 << 10) }
    }

    /// Sends bytes at once.
    pub(super) async fn send(&mut self, doing: &str, bytes: &[u8]) -> Result<(), SourceError> {
        let sent = async {
            self.transport.write_all(bytes).await?;
            self.transport.flush().await
        };
        sent.await.map_err(|error| SourceError::io(doing, error))
    }

    /// The next message; an `ErrorResponse` comes back as the error it is, notices are logged and passed over.
    pub(super) async fn receive(&mut self, doing: &str) -> Result<Frame, SourceError> {
        loop {
            let frame = self.any(doing).await?;
            match frame.tag {
                b'E' => {
                    return Err(SourceError::server(doing, ServerReport::from_fields(&frame.body)));
                }
                b'N' => {
                    let notice = ServerReport::from_fields(&frame.body);
                    tracing::debug!(sqlstate = %notice.sqlstate, "notice from the server");
                }
                _ => return Ok(frame),
            }
        }
    }

    async fn any(&mut self, doing: &str) -> Result<Frame, SourceError> {
        loop {
            if let Some(whole) = frame_bytes(&self.inbox)
                .map_err(|NotAFrame| SourceError::new(SourceErrorKind::Protocol, doing))?
            {
                if whole > HANDSHAKE_MESSAGE_BYTES_MAX {
                    return Err(SourceError::new(SourceErrorKind::Protocol, doing));
                }
                if self.inbox.len() >= whole {
                    let mut body = self.inbox.split_to(whole).freeze();
                    let tag = body.get_u8();
                    body.advance(HEADER_BYTES - 1);
                    return Ok(Frame { tag, body });
                }
                self.inbox.reserve(whole - self.inbox.len());
            }
            let read = self.transport.read_buf(&mut self.inbox).await;
            if read.map_err(|error| SourceError::io(doing, error))? == 0 {
                return Err(SourceError::new(SourceErrorKind::Closed, doing));
            }
        }
    }
}

/// A length that no message can have.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct NotAFrame;

/// Bytes of the message `buf` starts with, header included; `None` while the header is not whole.
pub(super) fn frame_bytes(buf: &[u8]) -> Result<Option<usize>, NotAFrame> {
    let Some(&[_, a, b, c, d]) = buf.first_chunk::<HEADER_BYTES>() else { return Ok(None) };
    // The length counts its own four bytes; the server's is a signed number.
    match i32::from_be_bytes([a, b, c, d]) {
        length @ 4.. => Ok(usize::try_from(length).ok().map(|length| length + 1)),
        _ => Err(NotAFrame),
    }
}
