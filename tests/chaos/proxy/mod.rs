//! A TCP proxy that can cut, delay, slow, slice, halve and black-hole, in either direction.
//!
//! Nothing that passes is changed. A black hole does not read: what was sent arrives when it is opened again, as after
//! a partition of the network that heals.

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
    /// As they come.
    #[default]
    Pass,
    /// Each piece this much later.
    Delay(Duration),
    /// No more than so many bytes a second.
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

/// What the connections of one proxy listen to.
struct Controls {
    mode: watch::Sender<Mode>,
    /// Counts the cuts; a connection ends when it changes.
    cuts: watch::Sender<u32>,
    /// The next piece is passed by half, and the connection ends in the middle of it.
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
    /// To a port of this machine; with a wire, what passes is taken for PostgreSQL's protocol and written down there.
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

    /// From now on, for connections that stand too.
    pub(crate) fn set(&self, mode: Mode) {
        self.controls.mode.send_replace(mode);
    }

    /// Resets every connection.
    pub(crate) fn cut(&self) {
        self.controls.cuts.send_modify(|cuts| *cuts += 1);
    }

    /// The next piece that passes, in either direction, is the half of one, and its connection ends.
    pub(crate) fn halve(&self) {
        self.controls.halve.store(true, Ordering::Relaxed);
    }

    /// As if nothing had been.
    pub(crate) fn heal(&self) {
        self.controls.halve.store(false, Ordering::Relaxed);
        self.set(Mode::Pass);
    }
}

/// A thread of all proxies' own: what the harness does must not be in their way.
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
        // One side's end is passed on by its pump, and the other is waited for.
        ends = async { tokio::try_join!(up, down) } => ends.is_err(),
    };
    if cut {
        reset(&client);
        reset(&server);
    }
}

/// The next drop of the stream sends RST.
fn reset(stream: &TcpStream) {
    drop(socket2::SockRef::from(stream).set_linger(Some(Duration::ZERO)));
}
