//! A schema registry to hurt: Apicurio, whose interface for Confluent's programs is used.

use super::program::{Program, executable};
use super::tls::make_certificates;
use super::{Signal, free_port};
use serde_json::{Value, json};
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// How long one request may take.
const REQUEST_MAX: Duration = Duration::from_secs(20);

/// How often a schema is registered until the answer comes: on a busy machine the registry was seen to close the
/// connection before it had written one. Registering a schema again returns its id.
const REGISTERED_MAX: usize = 5;

/// A registry of the test's own. Its schemas are in memory, and gone with its process.
pub(crate) struct PrivateRegistry {
    port: u16,
    program: Program,
}

impl PrivateRegistry {
    /// Starts one that refuses schemas which readers of the version before could not read.
    pub(crate) async fn start() -> Self {
        let mut registry = Self { port: free_port(), program: Program::new("registry") };
        make_certificates(&registry.program.dir.0);
        registry.restart().await;
        registry
    }

    /// Starts it on the port that it had, without the schemas that it had. It must not be running.
    pub(crate) async fn restart(&mut self) {
        let (port, mut command) = (self.port, self.program.command());
        command.args([
            format!("-Dquarkus.http.port={port}"),
            format!("-Dquarkus.management.port={}", free_port()),
        ]);
        let answers = || async move { request(port, "GET", "/subjects", None).await.map(drop) };
        self.program.start(command, answers).await;
        let backward = json!({"compatibility": "BACKWARD"});
        self.ask("PUT", "/config", &backward).await.expect("its mode");
    }

    /// Where it listens, without TLS and without a login.
    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// The URL for `format.registry.url`.
    pub(crate) fn url(&self) -> String {
        format!("http://127.0.0.1:{}{BASE}", self.port)
    }

    /// A file of the certificates that were made for this test: `ca.pem`, `server.pem`, `server.key`.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.program.file(name)
    }

    /// SIGSTOP: connections stay open and nothing answers.
    pub(crate) fn freeze(&self) {
        self.program.freeze();
    }

    /// The end of [`Self::freeze`].
    pub(crate) fn thaw(&self) {
        self.program.thaw();
    }

    /// kill -9. Its schemas are gone.
    pub(crate) async fn kill(&mut self) {
        self.program.end(Signal::Kill).await;
    }

    /// Registers a schema, and returns its id.
    pub(crate) async fn register(&self, subject: &str, kind: &str, schema: &str) -> u32 {
        let body = json!({"schema": schema, "schemaType": kind});
        let path = format!("/subjects/{subject}/versions");
        let mut answer = self.ask("POST", &path, &body).await;
        for _ in 1..REGISTERED_MAX {
            if answer.as_ref().is_err_and(|error| error == NO_ANSWER) {
                answer = self.ask("POST", &path, &body).await;
            }
        }
        let answer = answer.unwrap_or_else(|error| panic!("{subject}: {error}"));
        u32::try_from(answer["id"].as_u64().expect("an id")).expect("an id")
    }

    /// Sends a request.
    pub(crate) async fn ask(
        &self,
        method: &str,
        path: &str,
        body: &Value,
    ) -> Result<Value, String> {
        request(self.port, method, path, Some(body)).await
    }
}

/// The error of a request whose connection was closed without an answer.
const NO_ANSWER: &str = "no answer";

/// The path of the interface.
const BASE: &str = "/apis/ccompat/v7";

async fn request(
    port: u16,
    method: &str,
    path: &str,
    body: Option<&Value>,
) -> Result<Value, String> {
    let body = body.map(Value::to_string).unwrap_or_default();
    let request = format!(
        "{method} {BASE}{path} HTTP/1.0\r\nhost: localhost\r\naccept: application/json\r\n\
         content-type: application/vnd.schemaregistry.v1+json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    let exchange = async {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).await?;
        stream.write_all(request.as_bytes()).await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        std::io::Result::Ok(answer)
    };
    let answer =
        tokio::time::timeout(REQUEST_MAX, exchange).await.map_err(|late| late.to_string())?;
    let answer = answer.map_err(|error| error.to_string())?;
    let (head, body) = answer.split_once("\r\n\r\n").ok_or(NO_ANSWER)?;
    if !head.split(' ').nth(1).is_some_and(|status| status.starts_with('2')) {
        return Err(answer);
    }
    serde_json::from_str(body).map_err(|error| format!("{error}: {body}"))
}

/// A Python with `fastavro`, `grpcio-tools` and `protobuf`, beside the registry.
pub(crate) fn schema_python() -> Command {
    let server = executable("registry");
    let folder = server.parent().expect("its folder");
    let mut command = Command::new("python3");
    command.env("PYTHONPATH", folder.join("python"));
    command
}
