//! A name that leads to more than one server: connections of one pipeline that reach different servers.

use crate::await_that::SOON;
use crate::pipeline::Pipeline;
use crate::private::PrivatePostgres;
use crate::relay::{Relay, postrider_ok};
use crate::server::{Client, Version, brokers};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::task::JoinSet;

/// Connections go to the two servers in turn.
const IN_TURN: usize = 2;

/// A balancer before two servers, on a thread of its own: a test waits for commands. It ends with this value.
struct Balancer {
    port: u16,
    /// The server of all connections, or [`IN_TURN`].
    to: Arc<AtomicUsize>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Balancer {
    fn start(servers: [u16; 2]) -> Self {
        let listener = std::net::TcpListener::bind(("127.0.0.1", 0)).expect("a port");
        listener.set_nonblocking(true).expect("a listener");
        let port = listener.local_addr().expect("an address").port();
        let to = Arc::new(AtomicUsize::new(0));
        let (choice, (stop, stopped)) = (Arc::clone(&to), oneshot::channel());
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.expect("a runtime").block_on(async {
                let listener = TcpListener::from_std(listener).expect("a listener");
                tokio::select! {
                    () = carry(listener, servers, &choice) => {}
                    _ = stopped => {}
                }
            });
        });
        Self { port, to, stop: Some(stop), thread: Some(thread) }
    }

    fn to(&self, server: usize) {
        self.to.store(server, Ordering::SeqCst);
    }
}

impl Drop for Balancer {
    fn drop(&mut self) {
        drop(self.stop.take());
        drop(self.thread.take().map(JoinHandle::join));
    }
}

async fn carry(listener: TcpListener, servers: [u16; 2], choice: &AtomicUsize) {
    let (mut connections, mut turn) = (JoinSet::new(), 0);
    while let Ok((mut client, _)) = listener.accept().await {
        let chosen = match choice.load(Ordering::SeqCst) {
            IN_TURN => {
                turn += 1;
                turn % 2
            }
            one => one,
        };
        let port = servers[chosen];
        connections.spawn(async move {
            if let Ok(mut server) = TcpStream::connect(("127.0.0.1", port)).await {
                drop(copy_bidirectional(&mut client, &mut server).await);
            }
        });
    }
}

const ROWS: &str = "insert into public.outbox (aggregate_type, aggregate_id, event_type, payload) \
                    select 'order', 'x', 'Written', to_json(i) from generate_series(1, 10) i";

/// Two servers of one cluster identifier and timeline (copies of one `initdb`), both set up for the pipeline, and a
/// relay that is led to them in turn.
async fn waits_for_one_server(lines: &str, state: &str) {
    let one = PrivatePostgres::start(Version::Pg17, "").await;
    let other = PrivatePostgres::start(Version::Pg17, "").await;
    let balancer = Balancer::start([one.port, other.port]);
    let url = format!("postgresql://postgres@127.0.0.1:{}/postgres", balancer.port);
    let mut pipeline = Pipeline::on(&url, &brokers(), "two_servers").await;
    let head = format!("[pipelines.{}]\n", pipeline.name);
    pipeline.config = pipeline.config.replacen(&head, &format!("{head}{lines}"), 1);
    balancer.to(1);
    postrider_ok(&pipeline.config, &["setup", "--create-table"]);
    let sql = Client::connect(&other.url()).await.expect("a session");
    sql.batch(ROWS).await;

    balancer.to(IN_TURN);
    let relay = Relay::spawn(&pipeline.config);
    relay.await_log("two connections reached two servers", SOON).await;
    assert_eq!(sql.text("select count(*)::text from outbox").await.as_deref(), Some("10"));
    assert!(
        pipeline.topic.read_all().await.is_empty(),
        "rows of one, with the cursor of the other"
    );

    balancer.to(0);
    pipeline.sql.batch(ROWS).await;
    relay.await_state(state, SOON).await;
    assert_eq!(pipeline.topic.await_records(10, SOON).await.len(), 10);
    assert_eq!(sql.text("select count(*)::text from outbox").await.as_deref(), Some("10"));
    assert_eq!(relay.terminate(SOON).await.code, Some(0));
}

#[tokio::test]
async fn polling_takes_no_rows_of_one_server_with_the_cursor_of_another() {
    waits_for_one_server("mode = \"poll\"\npoll = { interval = \"50ms\" }\n", "polling").await;
}

#[tokio::test]
async fn stream_of_one_server_does_not_start_at_the_cursor_of_another() {
    waits_for_one_server("", "streaming").await;
}
