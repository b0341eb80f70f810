//! The HTTP sink: in the conformance test with a receiver of its own, and what only webhooks have.

mod answers;
mod inbox;
mod logins;
mod receiver;

use super::server::SinkServer;
use crate::topic::ReadRecord;
use receiver::{BASE, Receiver};

/// `concurrency`, by default.
const CONCURRENCY: usize = 64;

pub(super) struct HttpServer(Receiver);

impl SinkServer for HttpServer {
    const KIND: &'static str = "http";

    /// What was in flight is sent again.
    const REPEATS_PER_LOSS: usize = CONCURRENCY;

    async fn start() -> Self {
        Self(Receiver::start().await)
    }

    async fn version(&self) -> String {
        "receiver of hyper 1, HTTP/1.1 and HTTP/2".to_owned()
    }

    fn port(&self) -> Option<u16> {
        Some(self.0.port)
    }

    fn sink(&self, port: Option<u16>) -> String {
        let port = port.unwrap_or(self.0.port);
        format!("[.sink]\nkind = \"http\"\n[.sink.http]\nurl = \"http://127.0.0.1:{port}{BASE}\"\n")
    }

    fn sink_over_tls(&self, right: bool) -> String {
        let host = if right { "127.0.0.1" } else { "localhost" };
        format!(
            "[.sink]\nkind = \"http\"\n[.sink.http]\nurl = \"https://{host}:{}{BASE}\"\nca_file = \"{}\"\n",
            self.0.tls_port,
            self.0.certificates.path().join("root.crt").display()
        )
    }

    async fn create(&self, destination: &str) {
        self.0.create(destination);
    }

    async fn delete(&self, destination: &str) {
        self.0.delete(destination);
    }

    async fn limit(&mut self, _destination: &str, bytes: Option<usize>) -> String {
        self.0.limit(bytes);
        self.sink(None)
    }

    async fn read(&self, destination: &str) -> Result<Vec<ReadRecord>, String> {
        self.0.records(destination)
    }

    async fn kill(&mut self) {
        self.0.kill();
    }

    async fn restart(&mut self) {
        self.0.listen().await;
    }

    fn freeze(&self) {
        self.0.freeze(true);
    }

    fn thaw(&self) {
        self.0.freeze(false);
    }

    async fn allow(&mut self, allowed: bool) {
        self.0.forbid(!allowed);
    }
}

/// The receiver's table with further keys.
fn with_keys(server: &HttpServer, keys: &str) -> String {
    server.sink(None) + keys
}

super::conformance!(HttpServer);
