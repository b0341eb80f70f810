//! The server shuts down while a stream is open: it is not held up, and the slot stands where it was confirmed.

use super::*;

#[tokio::test]
async fn a_fast_shutdown_is_not_held_up_by_an_unconfirmed_event() {
    for version in Version::ALL {
        let (mut server, client) = private(version).await;
        let url = server.url();
        let before = confirmed(&client, "s").await;
        let mut wal = stream(&url, &start("s")).await.expect("a stream");
        client.batch("insert into outbox values ('a')").await;
        commits_of(&mut wal, 1).await;
        drop(client);
        let took = server.stop_fast(SOON).await;
        assert!(took < Duration::from_secs(3), "PostgreSQL {version:?} took {took:?}");
        let error = end_of(&mut wal, SOON).await;
        assert_eq!(*error.kind(), SourceErrorKind::ServerStopping, "{error}");
        server.restart().await;
        assert_eq!(confirmed(&server.connect().await, "s").await, before, "the slot did not move");
        let mut again = stream(&url, &start("s")).await.expect("a stream");
        assert_eq!(commits_of(&mut again, 1).await.payloads, ["a"]);
    }
}

#[tokio::test]
async fn an_event_confirmed_while_the_server_shuts_down_is_not_sent_again() {
    let (mut server, client) = private(Version::Pg18).await;
    let url = server.url();
    let mut wal = stream(&url, &start("s")).await.expect("a stream");
    client.batch("insert into outbox values ('a')").await;
    let seen = commits_of(&mut wal, 1).await;
    drop(client);
    let (took, ()) = tokio::join!(server.stop_fast(SOON), async {
        await_that("the shutdown is noticed", SOON, || async {
            if wal.server_is_stopping() { Ok(()) } else { Err("it is not") }
        })
        .await;
        // Not the commit's end alone: the checkpoint's position, or the server has to wait for the courtesy.
        wal.confirm(Watermark::from_keepalive(wal.received()));
    });
    assert!(took < Duration::from_secs(2), "took {took:?}");
    server.restart().await;
    // 17 and later save the position at a clean shutdown; 15 forgets it whatever a client does.
    let now = confirmed(&server.connect().await, "s").await;
    assert!(now >= seen.ends[0], "{now} is before {}", seen.ends[0]);
}

#[tokio::test]
async fn a_shutdown_behind_a_full_queue_ends_when_the_stream_is_abandoned() {
    let (mut server, client) = private(Version::Pg15).await;
    let mut small = start("s");
    small.queue_bytes_max = 64 << 10;
    let wal = stream(&server.url(), &small).await.expect("a stream");
    client
        .batch("insert into outbox select repeat('x', 1000) from generate_series(1, 20000)")
        .await;
    standing_still(&wal).await;
    drop(client);
    let (took, ()) = tokio::join!(server.stop_fast(SOON), async {
        let started = Instant::now();
        wal.abandon();
        assert!(started.elapsed() < Duration::from_secs(1), "{:?}", started.elapsed());
    });
    assert!(took < Duration::from_secs(3), "took {took:?}");
}

/// Waits until the stream takes no more from the server.
async fn standing_still(wal: &WalStream) -> Lsn {
    let last = std::cell::Cell::new((Lsn::ZERO, Instant::now()));
    await_that("a full queue", SOON, || async {
        let received = wal.received();
        if received != last.get().0 {
            last.set((received, Instant::now()));
        }
        let still = last.get().1.elapsed();
        if received > Lsn::ZERO && still > Duration::from_millis(500) {
            Ok(received)
        } else {
            Err(received)
        }
    })
    .await
}
