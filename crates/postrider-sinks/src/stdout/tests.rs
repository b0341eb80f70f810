use super::*;
use expect_test::expect;
use postrider_core::record::Header;
use std::io;
use std::sync::mpsc;

/// A stream whose writes wait for a word each.
struct Gate {
    open: mpsc::Receiver<io::Result<()>>,
    written: Arc<Mutex<Vec<u8>>>,
}

impl Write for Gate {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.open.recv().unwrap_or(Ok(()))?;
        self.written.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

struct Bench {
    sink: Lines,
    mailbox: Mailbox,
    open: mpsc::Sender<io::Result<()>>,
    written: Arc<Mutex<Vec<u8>>>,
}

fn bench() -> Bench {
    let mailbox = Mailbox::default();
    let (open, gate) = mpsc::channel();
    let written = Arc::default();
    let stream = Gate { open: gate, written: Arc::clone(&written) };
    let sink = Lines::open(stream, mailbox.clone()).unwrap();
    Bench { sink, mailbox, open, written }
}

impl Bench {
    fn posts(&self) -> Vec<Post> {
        let mut posts = Vec::new();
        self.mailbox.take(&mut posts);
        posts
    }

    fn text(&self) -> String {
        String::from_utf8(self.written.lock().unwrap().clone()).unwrap()
    }
}

fn record(value: &[u8]) -> Record<'_> {
    Record {
        topic: "orders",
        partition: None,
        key: Some(b"7"),
        value: Some(value),
        timestamp_ms: Some(1),
        headers: &[],
    }
}

#[test]
fn lines_are_what_they_say() {
    let headers = [
        Header { name: "id", value: Some(b"1") },
        Header { name: "id", value: None },
        Header { name: "raw", value: Some(b"\xff") },
    ];
    let mut lines = Vec::new();
    append(&Record { headers: &headers, ..record(b"{\"a\":\"\n\"}") }, &mut lines);
    let rest = Record {
        partition: Some(3),
        key: Some(b"\xfe"),
        timestamp_ms: None,
        ..record(b"\xff\x00")
    };
    append(&rest, &mut lines);
    append(&Record { key: None, value: None, ..record(b"") }, &mut lines);
    expect![[r#"
        {"topic":"orders","key":"7","headers":[["id","1"],["id",null],["raw","/w==","base64"]],"timestamp":1,"value":"{\"a\":\"\n\"}"}
        {"topic":"orders","partition":3,"key":"/g==","key_encoding":"base64","headers":[],"timestamp":null,"value":"/wA=","encoding":"base64"}
        {"topic":"orders","key":null,"headers":[],"timestamp":1,"value":null}
    "#]]
    .assert_eq(std::str::from_utf8(&lines).unwrap());
}

#[test]
fn a_line_is_acknowledged_only_when_the_stream_has_it() {
    let mut bench = bench();
    bench.sink.enqueue(Ticket(1), &record(b"a")).unwrap();
    bench.sink.enqueue(Ticket(2), &record(b"b")).unwrap();
    assert_eq!(bench.posts(), []);
    drop(bench.open);
    bench.sink.close(Duration::from_secs(10));
    let mut posts = Vec::new();
    bench.mailbox.take(&mut posts);
    let acked = |ticket| Post::Report { ticket: Ticket(ticket), outcome: Outcome::Acked };
    assert_eq!(posts, [acked(1), acked(2)]);
    let text = String::from_utf8(bench.written.lock().unwrap().clone()).unwrap();
    assert_eq!(text.lines().count(), 2);
}

#[test]
fn a_slow_reader_fills_a_bounded_buffer_and_retry_is_posted_when_it_reads() {
    let mut bench = bench();
    let value = vec![b'x'; 100_000];
    let mut taken = 0;
    while bench.sink.enqueue(Ticket(taken), &record(&value)).is_ok() {
        taken += 1;
        assert!(taken < 100, "the buffer has no bound");
    }
    drop(bench.open);
    bench.sink.close(Duration::from_secs(10));
    let mut posts = Vec::new();
    bench.mailbox.take(&mut posts);
    assert!(posts.contains(&Post::Retry));
    assert_eq!(posts.len() as u64, taken + 1);
}

#[test]
fn a_reader_that_is_gone_makes_the_sink_unfit() {
    let mut bench = bench();
    bench.sink.enqueue(Ticket(1), &record(b"a")).unwrap();
    bench.open.send(Err(io::ErrorKind::BrokenPipe.into())).unwrap();
    bench.sink.close(Duration::from_secs(10));
    let posts = bench.posts();
    assert!(matches!(posts.as_slice(), [Post::Unfit { .. }]), "{posts:?}");
    assert_eq!(bench.sink.enqueue(Ticket(2), &record(b"b")), Err(NotTaken::Full));
    assert_eq!(bench.text(), "");
}

#[test]
fn a_reset_forgets_what_is_not_written() {
    let mut bench = bench();
    bench.sink.enqueue(Ticket(1), &record(b"a")).unwrap();
    bench.sink.enqueue(Ticket(2), &record(b"b")).unwrap();
    bench.sink.reset();
    bench.sink.enqueue(Ticket(3), &record(b"c")).unwrap();
    drop(bench.open);
    bench.sink.close(Duration::from_secs(10));
    let text = String::from_utf8(bench.written.lock().unwrap().clone()).unwrap();
    assert!(text.ends_with("\"value\":\"c\"}\n"), "{text}");
}
