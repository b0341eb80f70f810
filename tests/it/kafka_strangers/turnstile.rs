//! A proxy before a broker that lets one client's requests of one kind through one by one, in the order they come; all
//! else passes. It can keep the answer to one, and end its connection.

use crate::private::PrivateKafka;
use std::collections::{BTreeSet, VecDeque};
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio::task::JoinSet;

/// The keys of a produce request, and of one that ends a transaction (Kafka protocol, "Api Keys").
const PRODUCE: [u8; 2] = [0, 0];
const END_TRANSACTION: [u8; 2] = [0, 26];

/// Messages of a connection that stand before the turnstile. A producer has five requests on their way at most.
const QUEUED_MAX: usize = 100;

pub(crate) struct Turnstile {
    port: u16,
    counts: Arc<Counts>,
    _accepting: JoinSet<()>,
}

struct Counts {
    client: String,
    key: [u8; 2],
    passes: Semaphore,
    seen: AtomicUsize,
    answered: AtomicUsize,
    /// Answers that are still to be kept.
    kept: AtomicUsize,
    /// The last request that has come, as it was sent.
    last: Mutex<Vec<u8>>,
}

impl Turnstile {
    /// For produce requests, before a broker of its own, which names it as its address.
    pub(crate) async fn before_a_broker(client: &str) -> (PrivateKafka, Self) {
        Self::before(client, PRODUCE).await
    }

    /// The same for requests that end a transaction.
    pub(crate) async fn before_a_coordinator(client: &str) -> (PrivateKafka, Self) {
        Self::before(client, END_TRANSACTION).await
    }

    async fn before(client: &str, key: [u8; 2]) -> (PrivateKafka, Self) {
        let turnstile = OnceLock::new();
        let broker = PrivateKafka::start_on(|port, _| {
            let turnstile = turnstile.get_or_init(|| Self::start(port, client.to_owned(), key));
            format!("advertised.listeners=PLAINTEXT://127.0.0.1:{}", turnstile.port)
        });
        let broker = broker.await;
        (broker, turnstile.into_inner().expect("a turnstile"))
    }

    /// To a port of this machine; shut for the client of this name (`client.id`).
    fn start(to: u16, client: String, key: [u8; 2]) -> Self {
        let listener = std::net::TcpListener::bind(("127.0.0.1", 0)).expect("a port");
        listener.set_nonblocking(true).expect("a socket that does not block");
        let port = listener.local_addr().expect("an address").port();
        let counts = Arc::new(Counts {
            client,
            key,
            passes: Semaphore::new(0),
            seen: AtomicUsize::default(),
            answered: AtomicUsize::default(),
            kept: AtomicUsize::default(),
            last: Mutex::default(),
        });
        let mut accepting = JoinSet::new();
        accepting.spawn(accept(listener, to, Arc::clone(&counts)));
        Self { port, counts, _accepting: accepting }
    }

    /// Requests that have come to it so far.
    pub(crate) fn seen(&self) -> usize {
        self.counts.seen.load(Ordering::SeqCst)
    }

    /// Those of them that the broker has answered.
    pub(crate) fn answered(&self) -> usize {
        self.counts.answered.load(Ordering::SeqCst)
    }

    /// Keeps the next answers, and ends their connections: the broker has done what was requested.
    pub(crate) fn keep_answers(&self, answers: usize) {
        self.counts.kept.store(answers, Ordering::SeqCst);
    }

    /// The last request that has come, with the four bytes of its length.
    pub(crate) fn last(&self) -> Vec<u8> {
        self.counts.last.lock().expect("no panic").clone()
    }

    pub(crate) fn let_through(&self, requests: usize) {
        self.counts.passes.add_permits(requests);
    }

    /// For good.
    pub(crate) fn open(&self) {
        self.let_through(Semaphore::MAX_PERMITS / 2);
    }
}

async fn accept(listener: std::net::TcpListener, to: u16, counts: Arc<Counts>) {
    let listener = TcpListener::from_std(listener).expect("a listener");
    let mut connections = JoinSet::new();
    loop {
        let Ok((client, _)) = listener.accept().await else { continue };
        let counts = Arc::clone(&counts);
        connections.spawn(async move {
            let Ok(server) = TcpStream::connect(("127.0.0.1", to)).await else { return };
            let asked = Mutex::default();
            let (from_client, to_client) = client.into_split();
            let (from_server, to_server) = server.into_split();
            let (sender, queue) = channel(QUEUED_MAX);
            drop(tokio::try_join!(
                requests(from_client, sender, &counts),
                pass_on(queue, to_server, &counts, &asked),
                answers(from_server, to_client, &counts, &asked),
            ));
        });
    }
}

/// What the client has sent, read at once: one that stands before the turnstile hides no other.
async fn requests(
    mut from: OwnedReadHalf,
    queue: Sender<Vec<u8>>,
    counts: &Counts,
) -> io::Result<()> {
    loop {
        let message = message(&mut from).await?;
        if is_meant(&message, counts) {
            counts.last.lock().expect("no panic").clone_from(&message);
            counts.seen.fetch_add(1, Ordering::SeqCst);
        }
        queue.send(message).await.map_err(io::Error::other)?;
    }
}

async fn pass_on(
    mut queue: Receiver<Vec<u8>>,
    mut to: OwnedWriteHalf,
    counts: &Counts,
    asked: &Mutex<BTreeSet<[u8; 4]>>,
) -> io::Result<()> {
    let mut held = VecDeque::new();
    loop {
        let message = tokio::select! {
            message = queue.recv() => {
                let Some(message) = message else { return Ok(()) };
                if is_meant(&message, counts) {
                    held.push_back(message);
                    continue;
                }
                message
            }
            pass = counts.passes.acquire(), if !held.is_empty() => {
                pass.expect("never closed").forget();
                let message: Vec<u8> = held.pop_front().expect("one that is held");
                asked.lock().expect("no panic").insert(correlation(&message[8..]));
                message
            }
        };
        to.write_all(&message).await?;
    }
}

/// Header of a request: key, version, correlation id, and the client's name behind the two bytes of its length.
fn is_meant(message: &[u8], counts: &Counts) -> bool {
    message[4..6] == counts.key && message[14..].starts_with(counts.client.as_bytes())
}

async fn answers(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    counts: &Counts,
    asked: &Mutex<BTreeSet<[u8; 4]>>,
) -> io::Result<()> {
    loop {
        let message = message(&mut from).await?;
        if asked.lock().expect("no panic").remove(&correlation(&message[4..])) {
            counts.answered.fetch_add(1, Ordering::SeqCst);
            let keeps = |kept: usize| kept.checked_sub(1);
            if counts.kept.fetch_update(Ordering::SeqCst, Ordering::SeqCst, keeps).is_ok() {
                return Err(io::Error::from(io::ErrorKind::ConnectionAborted));
            }
        }
        to.write_all(&message).await?;
    }
}

/// One message, with the four bytes of its length.
async fn message(from: &mut OwnedReadHalf) -> io::Result<Vec<u8>> {
    let length = from.read_u32().await?;
    let mut message = length.to_be_bytes().to_vec();
    message.resize(4 + length as usize, 0);
    from.read_exact(&mut message[4..]).await?;
    Ok(message)
}

fn correlation(bytes: &[u8]) -> [u8; 4] {
    *bytes.first_chunk().expect("a correlation id")
}
