//! A session without a server: the test puts the server's bytes into the read buffer.

use super::*;
use crate::stream::queue::{Next, batch};
use tokio::net::UnixStream;

/// Bound of the queue: it has room for one batch of the tests, not for two.
const QUEUE_BYTES: usize = 100;

/// A frame of `bytes` bytes.
fn frame(bytes: usize) -> Vec<u8> {
    let mut frame = vec![b'd', 0, 0, 0, 0, b'w'];
    frame.resize(bytes, 0);
    frame[1..5].copy_from_slice(&u32::try_from(bytes - 1).unwrap().to_be_bytes());
    frame
}

/// What a slow consumer gets from a session whose read buffer is `inbox` and whose queue is nearly full.
async fn read(inbox: &[u8]) -> Vec<String> {
    let (ours, _servers) = UnixStream::pair().unwrap();
    let shared = Arc::new(Shared {
        queue: Queue::new(QUEUE_BYTES),
        confirmed: AtomicU64::new(0),
        received: AtomicU64::new(0),
        draining: AtomicBool::new(false),
        wake: Notify::new(),
        stop: std::sync::OnceLock::new(),
        abandoned: Notify::new(),
    });
    assert!(shared.queue.offer(batch(90)).is_ok());
    let start = StartReplication::new("s", "p");
    let inbox = BytesMut::from(inbox);
    let minute = Duration::from_mins(1);
    let of = Arc::clone(&shared);
    let session = WalSession::new(Transport::of(ours), inbox, of, minute, &start);
    let session = async { shared.queue.end(Box::pin(session.run()).await) };
    let reader = async {
        let mut seen = Vec::new();
        loop {
            match shared.queue.next().await {
                Next::Batch(batch) => seen.push(batch.size_bytes().to_string()),
                Next::End(End::Error(error) | End::Message(error)) => {
                    let kind = format!("{:?}", error.kind());
                    seen.extend(kind.split_whitespace().next().map(str::to_owned));
                    // The connection is kept after some errors.
                    let _first = shared.stop.set(Instant::now());
                    shared.wake.notify_one();
                    return seen;
                }
                Next::End(End::Panicked | End::Taken) => panic!("another end"),
            }
        }
    };
    // The session is polled first.
    tokio::join!(session, reader).1
}

#[tokio::test]
async fn an_error_comes_after_the_batches_before_it_which_wait_for_room() {
    let frames = [frame(40), frame(50)].concat();
    let too_large = [&frames[..], b"d\x7f\xff\xff\xff"].concat();
    let broken = [&frames[..], b"d\0\0\0\x05?"].concat();
    let stops = [&frames[..], b"c\0\0\0\x04"].concat();
    let ends = [read(&too_large).await, read(&broken).await, read(&stops).await];
    assert_eq!(
        ends.map(|seen| seen.join(" ")),
        ["90 90 TooLarge", "90 90 Protocol", "90 90 ServerStopping"]
    );
}
