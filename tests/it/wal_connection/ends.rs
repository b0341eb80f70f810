//! How streams end: by us, by the server (its shutdowns in `shutdown`), by silence; and what they stand before that.

mod shutdown;

use super::*;
use crate::private::{PrivatePostgres, Signal, signal};
use postrider::postgres::SqlState;
use std::cell::{Cell, RefCell};

/// Rows of one transaction of [`fill`].
const ROWS: usize = 20_000;

async fn private(version: Version) -> (PrivatePostgres, Client) {
    let server = PrivatePostgres::start(version, "").await;
    let client = server.connect().await;
    outbox(&client, "s").await;
    (server, client)
}

/// Where the walsender is, if it waits for its reader.
async fn waits_for_reader_at(client: &Client, wal: &WalStream) -> Option<String> {
    let sql = format!(
        "select r.sent_lsn::text from pg_stat_activity a join pg_stat_replication r using (pid) \
         where a.pid = {} and a.wait_event = 'WalSenderWriteData'",
        wal.backend_pid()
    );
    client.text(&sql).await
}

/// Commits transactions of [`ROWS`] rows of 500 bytes until the server can't send, since the queue and every buffer on
/// the way are full: how much the kernel takes for a connection is different on each machine (`tcp_rmem`). Returns the
/// number of transactions.
async fn fill(client: &Client, wal: &WalStream) -> usize {
    let sql = format!("insert into outbox select repeat('x', 500) from generate_series(1, {ROWS})");
    let (committed, last) = (Cell::new(0), RefCell::new(None));
    await_that("a walsender that waits for its reader", SOON, || async {
        let now = waits_for_reader_at(client, wal).await;
        if now.is_some() && *last.borrow() == now {
            return Ok(());
        }
        last.replace(now);
        client.batch(&sql).await;
        committed.set(committed.get() + 1);
        Err(format!("{} transactions are committed", committed.get()))
    })
    .await;
    committed.get()
}

#[tokio::test]
async fn a_reader_that_does_not_read_keeps_the_stream_and_loses_nothing() {
    let database = Database::create(Version::Pg15, "wal_blocked").await;
    let client = database.connect().await;
    let slot = format!("s_{}", database.name);
    outbox(&client, &slot).await;
    let timeout = Duration::from_secs(1);
    let conninfo = conninfo(&database.url());
    let connected = WalConnection::connect_with_timeout(&conninfo, "it", timeout);
    let mut bounded = start(&slot);
    bounded.queue_bytes_max = 1 << 20;
    let mut wal = connected.await.expect("a login").start(&bounded).await.expect("a stream");
    let transactions = fill(&client, &wal).await;
    // Four times wal_sender_timeout, as the server's own clock has it.
    let since = client.text("select clock_timestamp()").await.expect("a time");
    let alive = format!(
        "select coalesce(max(reply_time) > timestamptz '{since}' + interval '4 s', false) \
         from pg_stat_replication where pid = {}",
        wal.backend_pid()
    );
    await_that("replies 4 s later", SOON, || async {
        if client.text(&alive).await.as_deref() == Some("t") { Ok(()) } else { Err("no reply") }
    })
    .await;
    assert!(waits_for_reader_at(&client, &wal).await.is_some(), "the walsender goes on");
    let mut seen = Seen::default();
    seen.read(&mut wal, false, |seen| seen.ends.len() == transactions).await;
    let rows = transactions * ROWS;
    assert_eq!((seen.rows, seen.bytes), (rows, rows * 500));
}

#[tokio::test]
async fn a_server_that_goes_silent_is_noticed() {
    let (server, client) = private(Version::Pg15).await;
    let mut impatient = start("s");
    impatient.silence_max = Duration::from_secs(2);
    let mut wal = stream(&server.url(), &impatient).await.expect("a stream");
    client.batch("insert into outbox values ('a')").await;
    commits_of(&mut wal, 1).await;
    signal(wal.backend_pid(), Signal::Stop);
    let frozen = Instant::now();
    let error = end_of(&mut wal, SOON).await;
    signal(wal.backend_pid(), Signal::Cont);
    assert_eq!(*error.kind(), SourceErrorKind::Silent(Duration::from_secs(2)));
    assert!(frozen.elapsed() < Duration::from_secs(4), "took {:?}", frozen.elapsed());
}

#[tokio::test]
async fn an_idle_stream_is_not_taken_for_a_dead_one() {
    let database = Database::create(Version::Pg15, "wal_idle").await;
    let client = database.connect().await;
    let slot = format!("s_{}", database.name);
    outbox(&client, &slot).await;
    let mut impatient = start(&slot);
    impatient.silence_max = Duration::from_secs(3);
    let mut wal = stream(&database.url(), &impatient).await.expect("a stream");
    let quiet = tokio::time::timeout(Duration::from_secs(8), end_of(&mut wal, SOON)).await;
    assert!(quiet.is_err(), "it ended: {quiet:?}");
}

#[tokio::test]
async fn a_terminated_walsender_says_57p01() {
    for version in Version::ALL {
        let database = Database::create(version, "wal_terminated").await;
        let client = database.connect().await;
        let slot = format!("s_{}", database.name);
        outbox(&client, &slot).await;
        let mut wal = stream(&database.socket_url(), &start(&slot)).await.expect("a stream");
        client.batch(&format!("select pg_terminate_backend({})", wal.backend_pid())).await;
        let error = end_of(&mut wal, SOON).await;
        assert_eq!(error.sqlstate(), Some(SqlState::ADMIN_SHUTDOWN), "{error}");
        let after = wal.next().await.expect_err("nothing comes after the end");
        assert_eq!(*after.kind(), SourceErrorKind::Stopped);
        wal.stop(SOON).await.expect_err("it had ended before");
    }
}

#[tokio::test]
async fn a_slot_that_cannot_be_used_is_named_with_its_sqlstate() {
    for version in Version::ALL {
        let database = Database::create(version, "wal_slot").await;
        let client = database.connect().await;
        let slot = format!("s_{}", database.name);
        let refused = |error: Option<SourceError>| error.and_then(|error| error.sqlstate());
        let missing = stream(&database.url(), &start(&slot)).await.err();
        assert_eq!(refused(missing), Some(SqlState::UNDEFINED_OBJECT));
        outbox(&client, &slot).await;
        let holder = stream(&database.url(), &start(&slot)).await.expect("a stream");
        let active = stream(&database.url(), &start(&slot)).await.err().expect("it is active");
        assert_eq!(active.sqlstate(), Some(SqlState::OBJECT_IN_USE));
        let text = active.to_string();
        assert!(text.starts_with("could not start replication on slot \"s_"), "{text}");
        holder.stop(SOON).await.expect("an end in good order");
        drop(stream(&database.url(), &start(&slot)).await.expect("it is free again"));
        let unquoted = stream(&database.url(), &start("Slot; drop")).await.err();
        let unquoted = unquoted.expect("no slot is called so");
        assert_eq!(*unquoted.kind(), SourceErrorKind::Settings);
    }
}

#[tokio::test]
async fn a_missing_publication_ends_the_stream_on_every_version() {
    for version in Version::ALL {
        let database = Database::create(version, "wal_publication").await;
        let client = database.connect().await;
        let slot = format!("s_{}", database.name);
        outbox(&client, &slot).await;
        client.batch("drop publication \"Pub's\"; insert into outbox values ('a')").await;
        client.batch("create publication \"Pub's\" for table outbox").await;
        client.batch("insert into outbox values ('b')").await;
        let before = confirmed(&client, &slot).await;
        let mut wal = stream(&database.url(), &start(&slot)).await.expect("a stream");
        let mut seen = Seen::default();
        let error = loop {
            match wal.next().await {
                Ok(batch) => batch.frames().for_each(|frame| seen.frame(frame, true)),
                Err(error) => break error,
            }
        };
        let report = error.report().expect("the server's own words");
        let expected = if version == Version::Pg18 { "55000" } else { "42704" };
        assert_eq!(report.sqlstate.as_str(), expected, "{error}");
        assert_eq!(report.is_warning(), version == Version::Pg18);
        assert!(report.associated_lsn.is_some(), "{report:?}");
        assert_eq!(seen.rows, 0, "nothing after the warning is handed over");
        assert_eq!(confirmed(&client, &slot).await, before);
    }
}

#[tokio::test]
async fn a_large_row_passes_and_a_larger_one_ends_the_stream() {
    const LARGE: usize = 40 << 20;
    let database = Database::create(Version::Pg15, "wal_large").await;
    let client = database.connect().await;
    let slot = format!("s_{}", database.name);
    outbox(&client, &slot).await;
    client.batch("insert into outbox values ('a')").await;
    client.batch(&format!("insert into outbox values (repeat('x', {LARGE}))")).await;
    let mut wal = stream(&database.socket_url(), &start(&slot)).await.expect("a stream");
    let mut seen = Seen::default();
    seen.read(&mut wal, false, |seen| seen.rows == 2).await;
    assert_eq!(seen.bytes, LARGE + 1);
    wal.stop(SOON).await.expect("an end in good order");

    let mut small = start(&slot);
    small.message_bytes_max = 1 << 20;
    let mut wal = stream(&database.socket_url(), &small).await.expect("a stream");
    assert_eq!(
        commits_of(&mut wal, 1).await.payloads,
        ["a"],
        "what comes before it is handed over"
    );
    let error = end_of(&mut wal, SOON).await;
    let SourceErrorKind::TooLarge { size, limit } = error.kind() else { panic!("{error}") };
    assert!(*size > LARGE as u64 && *limit == 1 << 20, "{error}");

    // The connection stands: what came before is confirmed on it.
    let received = wal.received();
    wal.confirm(Watermark::from_keepalive(received));
    wal.stop(SOON).await.expect("an end in good order");
    assert_eq!(confirmed(&client, &slot).await, received);
}

#[tokio::test]
async fn a_dropped_next_loses_nothing() {
    const ROWS: usize = 5000;
    let database = Database::create(Version::Pg15, "wal_cancel").await;
    let client = database.connect().await;
    let slot = format!("s_{}", database.name);
    outbox(&client, &slot).await;
    let mut wal = stream(&database.socket_url(), &start(&slot)).await.expect("a stream");
    let sql = format!(
        "do $$ begin for i in 1..{ROWS} loop insert into public.outbox values (i::text); commit; end loop; end $$"
    );
    let mut seen = Seen::default();
    let ((), ()) = tokio::join!(client.batch(&sql), async {
        let deadline = Instant::now() + SOON;
        while seen.ends.len() < ROWS {
            assert!(Instant::now() < deadline, "{} commits", seen.ends.len());
            tokio::select! {
                biased;
                batch = wal.next() => {
                    let batch = batch.expect("the stream goes on");
                    batch.frames().for_each(|frame| seen.frame(frame, true));
                }
                () = tokio::task::yield_now() => {}
            }
        }
    });
    let expected: Vec<String> = (1..=ROWS).map(|i| i.to_string()).collect();
    assert_eq!(seen.payloads, expected);
    assert!(seen.ends.is_sorted());
    wal.confirm(seen.last_end());
}

#[tokio::test]
async fn a_dropped_stream_frees_its_slot_at_once() {
    let database = Database::create(Version::Pg15, "wal_drop").await;
    let client = database.connect().await;
    let slot = format!("s_{}", database.name);
    outbox(&client, &slot).await;
    let wal = stream(&database.url(), &start(&slot)).await.expect("a stream");
    let started = Instant::now();
    drop(wal);
    assert!(started.elapsed() < Duration::from_millis(500), "{:?}", started.elapsed());
    let active = format!("select active from pg_replication_slots where slot_name = '{slot}'");
    await_that("a free slot", SOON, || async {
        if client.text(&active).await.as_deref() == Some("f") { Ok(()) } else { Err("active") }
    })
    .await;
}

#[tokio::test]
async fn a_stream_resumes_where_it_is_told_and_takes_messages_if_asked() {
    let database = Database::create(Version::Pg15, "wal_resume").await;
    let client = database.connect().await;
    let slot = format!("s_{}", database.name);
    outbox(&client, &slot).await;
    client.batch("insert into outbox values ('a')").await;
    client.batch("insert into outbox values ('b')").await;
    let mut wal = stream(&database.url(), &start(&slot)).await.expect("a stream");
    let first = commits_of(&mut wal, 2).await;
    assert_eq!(first.messages, 0);
    drop(wal);
    client.batch("select pg_logical_emit_message(true, 'p', 'hello')").await;
    let mut resumed = start(&slot);
    resumed.lsn = first.ends[0];
    resumed.messages = true;
    await_that("a free slot", SOON, || async {
        let mut wal = stream(&database.url(), &resumed).await.map_err(|e| e.to_string())?;
        let seen = commits_of(&mut wal, 2).await;
        assert_eq!((seen.payloads.as_slice(), seen.messages), (&["b".to_owned()][..], 1));
        Ok::<_, String>(())
    })
    .await;
}

#[tokio::test]
#[should_panic(expected = "is confirmed, only")]
async fn a_watermark_ahead_of_the_stream_is_a_bug() {
    let database = Database::create(Version::Pg15, "wal_ahead").await;
    let client = database.connect().await;
    let slot = format!("s_{}", database.name);
    outbox(&client, &slot).await;
    let wal = stream(&database.url(), &start(&slot)).await.expect("a stream");
    wal.confirm(Watermark::from_commit_end("FFFF/0".parse().expect("an LSN")));
}
