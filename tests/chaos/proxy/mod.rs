//! A TCP proxy that can disconnect, delay, throttle, slice, truncate and drop, in either direction.
//!
//! Bytes that pass are not changed. A black hole stops reading: what was sent arrives when the hole is removed, as
//! after a network partition.

pub(crate) mod pump;
pub(crate) mod tap;

use pump::{Direction, pump};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tap::Wire;
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::task::JoinSet;

/// How bytes pass.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum Mode {
    /// Unchanged.
    #[default]
    Pass,
    /// Each piece this much later.
    Delay(Duration),
    /// At most so many bytes a second.
    Slow(u32),
    /// In pieces of a few bytes.
    Slice,
    /// Nothing from the client passes.
    HoleUp,
    /// Nothing from the server passes.
    HoleDown,
    /// Nothing passes.
    Hole,
}

/// The settings that the connections of one proxy follow.
struct Controls {
    mode: watch::Sender<Mode>,
    /// Counts disconnects; a connection ends when the count changes.
    cuts: watch::Sender<u32>,
    /// Half of the next piece is passed, and the connection ends in the middle of it.
    halve: AtomicBool,
    wire: Option<Arc<Wire>>,
}

/// One listening port that leads to another.
pub(crate) struct Proxy {
    pub(crate) port: u16,
    controls: Arc<Controls>,
    _accepting: JoinSet<()>,
}

impl Proxy {
    /// Starts a proxy to a port of this machine. With a `wire`, traffic is parsed as PostgreSQL's protocol and recorded
    /// there.
    pub(crate) fn start(to: u16, wire: Option<Arc<Wire>>) -> Self {
        let listener = std::net::TcpListener::bind(("127.0.0.1", 0)).expect("a port for a proxy");
        listener.set_nonblocking(true).expect("a socket that does not block");
        let port = listener.local_addr().expect("an address").port();
        let (mode, cuts) = (watch::Sender::new(Mode::Pass), watch::Sender::new(0));
        let controls = Arc::new(Controls { mode, cuts, halve: AtomicBool::new(false), wire });
        let mut accepting = JoinSet::new();
        accepting.spawn_on(accept(listener, to, Arc::clone(&controls)), runtime());
        Self { port, controls, _accepting: accepting }
    }

    /// Sets the mode, for existing connections too.
    pub(crate) fn set(&self, mode: Mode) {
        self.controls.mode.send_replace(mode);
    }

    /// Resets every connection.
    pub(crate) fn cut(&self) {
        self.controls.cuts.send_modify(|cuts| *cuts += 1);
    }

    /// Half of the next piece, in either direction, is passed, and its connection ends.
    pub(crate) fn halve(&self) {
        self.controls.halve.store(true, Ordering::Relaxed);
    }

    /// Back to normal.
    pub(crate) fn heal(&self) {
        self.controls.halve.store(false, Ordering::Relaxed);
        self.set(Mode::Pass);
    }
}

/// All proxies have a thread of their own, so that the harness does not delay them.
fn runtime() -> &'static Handle {
    static RUNTIME: OnceLock<Handle> = OnceLock::new();
    RUNTIME.get_or_init(|| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.expect("a runtime");
        let handle = runtime.handle().clone();
        std::thread::spawn(move || runtime.block_on(std::future::pending::<()>()));
        handle
    })
}

async fn accept(listener: std::net::TcpListener, to: u16, controls: Arc<Controls>) {
    let listener = TcpListener::from_std(listener).expect("a listener");
    let mut connections = JoinSet::new();
    loop {
        let Ok((client, _)) = listener.accept().await else { continue };
        connections.spawn(carry(client, to, Arc::clone(&controls)));
        while connections.try_join_next().is_some() {}
    }
}

async fn carry(client: TcpStream, to: u16, controls: Arc<Controls>) {
    let mut cuts = controls.cuts.subscribe();
    let Ok(server) = TcpStream::connect(("127.0.0.1", to)).await else { return reset(&client) };
    for stream in [&client, &server] {
        drop(stream.set_nodelay(true));
    }
    let seen = controls.wire.as_ref().map(Wire::connection);
    let (client, server) = (Arc::new(client), Arc::new(server));
    let up = pump(&client, &server, Direction::Up, &controls, seen.clone());
    let down = pump(&server, &client, Direction::Down, &controls, seen);
    let cut = tokio::select! {
        _ = cuts.changed() => true,
        // The pump passes the end of one side on, and waits for the other side.
        ends = async { tokio::try_join!(up, down) } => ends.is_err(),
    };
    if cut {
        reset(&client);
        reset(&server);
    }
}

/// Dropping the stream then sends RST.
fn reset(stream: &TcpStream) {
    drop(socket2::SockRef::from(stream).set_linger(Some(Duration::ZERO)));
}
