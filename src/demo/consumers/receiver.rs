//! A receiver of webhooks: a thread for each connection, and a function that gets each request before its answer.

use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Connections at a time; a further one is closed at once.
const CONNECTIONS_MAX: usize = 256;
/// Bytes of one line of a request's header.
const LINE_BYTES_MAX: u64 = 64 << 10;
/// Bytes of a request's body.
const BODY_BYTES_MAX: usize = 64 << 20;
/// Pause after a failed accept: without descriptors the next one fails too.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// A POST request. One with another method has no body.
#[derive(Clone, Debug, Default)]
pub(crate) struct ReceivedRequest {
    /// The header `key`.
    pub(crate) key: Vec<u8>,
    pub(crate) body: Vec<u8>,
}

type RequestHandler = Box<dyn Fn(ReceivedRequest) + Send + Sync>;

/// A receiver on a free port of the loopback interface, which ends when the value is dropped.
pub(crate) struct WebhookReceiver {
    pub(crate) address: SocketAddr,
    shared: Arc<ReceiverState>,
    accepting: Option<JoinHandle<()>>,
}

struct ReceiverState {
    handler: RequestHandler,
    stop: AtomicBool,
    connections: Mutex<ReceiverConnections>,
    /// Is notified when `frozen_until` changes.
    thawed: Condvar,
}

#[derive(Default)]
struct ReceiverConnections {
    next: u64,
    open: Vec<(u64, TcpStream)>,
    /// Until then nothing is processed or answered.
    frozen_until: Option<Instant>,
}

impl WebhookReceiver {
    /// Starts one. `handler` gets each POST request, and the answer 204 is sent afterwards.
    ///
    /// # Errors
    /// There is no port or no thread.
    pub(crate) fn start(
        handler: impl Fn(ReceivedRequest) + Send + Sync + 'static,
    ) -> io::Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0))?;
        let address = listener.local_addr()?;
        let shared = Arc::new(ReceiverState {
            handler: Box::new(handler),
            stop: AtomicBool::new(false),
            connections: Mutex::default(),
            thawed: Condvar::new(),
        });
        let theirs = Arc::clone(&shared);
        let accepting = std::thread::Builder::new().name("receiver".to_owned());
        let accepting = accepting.spawn(move || accept(&listener, &theirs))?;
        Ok(Self { address, shared, accepting: Some(accepting) })
    }

    /// Processes and answers nothing for this time. Zero ends that.
    pub(crate) fn freeze(&self, time: Duration) {
        self.shared.lock().frozen_until =
            (!time.is_zero()).then(|| Instant::now().checked_add(time)).flatten();
        self.shared.thawed.notify_all();
    }

    /// Closes all connections, as the end of the process would: what is not answered yet never is.
    pub(crate) fn close_connections(&self) {
        for (_, stream) in self.shared.lock().open.drain(..) {
            // It may be closed already.
            drop(stream.shutdown(Shutdown::Both));
        }
    }
}

impl Drop for WebhookReceiver {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        self.freeze(Duration::ZERO);
        // Wakes the thread that accepts.
        drop(TcpStream::connect(self.address));
        if let Some(accepting) = self.accepting.take() {
            drop(accepting.join());
        }
        self.close_connections();
    }
}

impl ReceiverState {
    fn lock(&self) -> MutexGuard<'_, ReceiverConnections> {
        self.connections.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for the end of a freeze.
    fn await_thaw(&self) {
        let mut connections = self.lock();
        while let Some(until) = connections.frozen_until {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            let waited = self.thawed.wait_timeout(connections, left);
            connections = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

fn accept(listener: &TcpListener, shared: &Arc<ReceiverState>) {
    while !shared.stop.load(Ordering::Relaxed) {
        match listener.accept() {
            Ok((stream, _)) => {
                // If the connection can't be served, it is closed, and the sender connects again.
                drop(serve(stream, shared));
            }
            Err(_) => std::thread::sleep(ACCEPT_PAUSE),
        }
    }
}

fn serve(stream: TcpStream, shared: &Arc<ReceiverState>) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let number = {
        let mut connections = shared.lock();
        if connections.open.len() >= CONNECTIONS_MAX {
            return Ok(());
        }
        connections.next += 1;
        let number = connections.next;
        connections.open.push((number, stream.try_clone()?));
        number
    };
    let shared = Arc::clone(shared);
    let thread = std::thread::Builder::new().name("receiver-connection".to_owned());
    thread.spawn(move || {
        // The sender has closed the connection, or it was closed here.
        drop(requests(stream, &shared));
        shared.lock().open.retain(|(other, _)| *other != number);
    })?;
    Ok(())
}

/// Serves the requests of a connection until it is closed.
fn requests(stream: TcpStream, shared: &ReceiverState) -> io::Result<()> {
    let mut writer = stream.try_clone()?;
    let mut reader = BufReader::new(stream);
    while let Some((is_post, request)) = request(&mut reader)? {
        shared.await_thaw();
        if is_post {
            (shared.handler)(request);
        }
        writer.write_all(b"HTTP/1.1 204 No Content\r\n\r\n")?;
    }
    Ok(())
}

/// The next request, and whether it is a POST; `None` at the end of the connection.
fn request(reader: &mut BufReader<TcpStream>) -> io::Result<Option<(bool, ReceivedRequest)>> {
    let mut line = String::new();
    if reader.take(LINE_BYTES_MAX).read_line(&mut line)? == 0 {
        return Ok(None);
    }
    let is_post = line.starts_with("POST ");
    let (mut request, mut length) = (ReceivedRequest::default(), 0);
    loop {
        line.clear();
        reader.take(LINE_BYTES_MAX).read_line(&mut line)?;
        let text = line.trim_end();
        let Some((name, value)) = text.split_once(':') else {
            if text.is_empty() {
                break;
            }
            return Err(io::ErrorKind::InvalidData.into());
        };
        if name.eq_ignore_ascii_case("content-length") {
            length = value.trim().parse().map_err(|_text| io::ErrorKind::InvalidData)?;
        } else if name.eq_ignore_ascii_case("key") {
            request.key = value.trim().as_bytes().to_vec();
        }
    }
    if length > BODY_BYTES_MAX {
        return Err(io::ErrorKind::InvalidData.into());
    }
    request.body.resize(length, 0);
    reader.read_exact(&mut request.body)?;
    Ok(Some((is_post, request)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    #[test]
    fn request_is_handled_before_its_answer_and_not_while_frozen() {
        let (handled, requests) = channel();
        let receiver =
            WebhookReceiver::start(move |request| handled.send(request).unwrap()).unwrap();
        let mut stream = TcpStream::connect(receiver.address).unwrap();
        let post = b"POST /order HTTP/1.1\r\nKey: a-1\r\nContent-Length: 2\r\n\r\n{}";
        stream.write_all(post).unwrap();
        let mut answer = [0; 27];
        stream.read_exact(&mut answer).unwrap();
        assert!(answer.starts_with(b"HTTP/1.1 204"));
        let request = requests.try_recv().unwrap();
        assert_eq!((request.key.as_slice(), request.body.as_slice()), (&b"a-1"[..], &b"{}"[..]));
        receiver.freeze(Duration::from_mins(1));
        stream.write_all(post).unwrap();
        receiver.close_connections();
        assert_eq!(stream.read(&mut answer).unwrap(), 0);
        assert!(requests.try_recv().is_err());
    }
}
