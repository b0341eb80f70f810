//! The stream of a real server, frame by frame.

use super::conninfo;
use crate::await_that::SOON;
use crate::model::notes::Seen;
use postrider::postgres::SourceError;
use postrider::postgres::error::SqlState;
use postrider::postgres::stream::{Frame, StartReplication, WalConnection, WalStream};

/// Asks for the slot's stream from a position on, 0 for where it stands.
pub(super) async fn open(url: &str, slot: &str, from: u64) -> Result<WalStream, SourceError> {
    let start = StartReplication {
        lsn: pg_replication::lsn::Lsn::from_wire(from),
        ..StartReplication::new(slot, "model")
    };
    WalConnection::connect(&conninfo(url), "model").await?.start(&start).await
}

/// Whether the slot was refused because somebody has it.
pub(super) fn is_in_use(answer: &Result<WalStream, SourceError>) -> bool {
    answer.as_ref().is_err_and(|error| error.sqlstate() == Some(SqlState::OBJECT_IN_USE))
}

/// Everything up to the end of the transaction that has this row.
pub(super) async fn read(stream: &mut WalStream, last: &str) -> Vec<Seen> {
    let mut frames = Vec::new();
    let reading = async {
        loop {
            let batch = stream.next().await.expect("the stream goes on");
            for frame in batch.frames() {
                frames.extend(seen(frame));
            }
            let marker =
                frames.iter().position(|frame| matches!(frame, Seen::Row(row) if row == last));
            let rest = marker.map_or(&[][..], |at| &frames[at..]);
            if rest.iter().any(|frame| matches!(frame, Seen::Commit { .. })) {
                return;
            }
        }
    };
    let in_time = tokio::time::timeout(SOON, reading).await;
    assert!(in_time.is_ok(), "waited {SOON:?} for {last}: {frames:?}");
    frames
}

fn seen(frame: Frame<'_>) -> Option<Seen> {
    let data = match frame {
        Frame::Keepalive { wal_end, .. } => return Some(Seen::Keepalive(wal_end.to_wire())),
        Frame::XLogData { data, .. } => data,
    };
    let number = |at: usize| u64::from_be_bytes(data[at..at + 8].try_into().expect("8 bytes"));
    match data[0] {
        b'B' => Some(Seen::Begin(number(1))),
        // Flags come first.
        b'C' => Some(Seen::Commit { commit: number(2), end: number(10) }),
        // The table's oid, 'N', one column, 't', the length, the text.
        b'I' => Some(Seen::Row(String::from_utf8(data[13..].to_vec()).expect("text"))),
        _ => None,
    }
}
