//! A NATS server with JetStream to hurt.

use super::program::Program;
use super::tls::make_certificates;
use super::{Signal, free_port, signal};
use crate::await_that::{SOON, await_or_dump};
use crate::relay::http_get;
use std::fs;
use std::path::PathBuf;
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;

/// How long one request may take.
const REQUEST_MAX: Duration = Duration::from_secs(5);

/// The user of the relay, who may publish `events.>` and read what it needs of JetStream.
const RELAY: &str = r#", { user: relay, password: secret, permissions: {
      publish: { allow: ["events.>", "orders", "orders.>", "nowhere", "$JS.API.STREAM.INFO.>", "$JS.API.INFO", "$JS.API.STREAM.MSG.GET.>",
        "$JS.API.DIRECT.GET.>"] }
      subscribe: { allow: ["_INBOX.>"] } } }"#;

fn accounts(relay: bool) -> String {
    let relay = if relay { RELAY } else { "" };
    format!(
        "system_account: SYS\naccounts {{\n  SYS {{ users: [ {{ user: sys, password: sys }} ] }}\n  \
         APP {{ jetstream: enabled, users: [ {{ user: admin, password: admin }} {relay} ] }}\n}}"
    )
}

/// A NATS server of the test's own. Logins of its account: `admin` with password `admin`, and `relay` with password
/// `secret`.
pub(crate) struct PrivateNats {
    port: u16,
    http: u16,
    /// In place of the accounts that [`Self`] has.
    accounts: Option<String>,
    extra_config: String,
    program: Program,
}

impl PrivateNats {
    /// Starts one with extra lines for its configuration.
    pub(crate) async fn start(extra_config: &str) -> Self {
        let mut server = Self {
            port: free_port(),
            http: free_port(),
            accounts: None,
            extra_config: extra_config.to_owned(),
            program: Program::new("nats"),
        };
        make_certificates(&server.program.dir.0);
        server.configure(true);
        server.restart().await;
        server
    }

    fn configure(&self, relay: bool) {
        let config = format!(
            include_str!("nats.conf"),
            port = self.port,
            http = self.http,
            dir = self.program.dir.0.display(),
            accounts = self.accounts.clone().unwrap_or_else(|| accounts(relay)),
            extra = self.extra_config
        );
        fs::write(self.program.file("nats.conf"), config).expect("nats.conf");
    }

    /// Other extra lines for its configuration, from the next start on.
    pub(crate) fn set(&mut self, extra_config: &str) {
        extra_config.clone_into(&mut self.extra_config);
        self.configure(true);
    }

    /// Other accounts, or what stands in their place, from the next start on.
    pub(crate) fn set_accounts(&mut self, accounts: &str) {
        self.accounts = Some(accounts.to_owned());
        self.configure(true);
    }

    /// Its port, with and without TLS.
    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// The same port: a client asks for TLS after the server's `INFO`.
    pub(crate) fn tls_port(&self) -> u16 {
        self.port
    }

    /// The authority of its certificate, which is for `localhost` only.
    pub(crate) fn ca(&self) -> PathBuf {
        self.program.file("ca.pem")
    }

    /// Its process.
    pub(crate) fn pid(&self) -> u32 {
        self.program.pid()
    }

    /// What `--version` prints.
    pub(crate) fn version(&self) -> String {
        self.program.version()
    }

    /// The last lines of its log.
    pub(crate) fn log(&self) -> String {
        self.program.dir.log()
    }

    /// kill -9.
    pub(crate) async fn kill(&mut self) {
        self.program.end(Signal::Kill).await;
    }

    /// A clean stop.
    pub(crate) async fn stop(&mut self) {
        self.program.end(Signal::Term).await;
    }

    /// SIGSTOP: connections stay open and nothing answers.
    pub(crate) fn freeze(&self) {
        self.program.freeze();
    }

    /// The end of [`Self::freeze`].
    pub(crate) fn thaw(&self) {
        self.program.thaw();
    }

    /// Starts it on the data and the port that it had, and waits until it is healthy. It must not be running.
    pub(crate) async fn restart(&mut self) {
        let mut command = self.program.command();
        command.arg("-c").arg(self.program.file("nats.conf"));
        let http = self.http;
        let healthy = || async move {
            match http_get(http, "/healthz").await? {
                (200, _) => Ok(()),
                (code, body) => Err(format!("{code} {body}")),
            }
        };
        self.program.start(command, healthy).await;
    }

    /// Removes the login `relay`, which closes its connections, or adds it again; waits until that is in force. A
    /// restart keeps it as it is.
    pub(crate) async fn allow(&self, allow: bool) {
        self.configure(allow);
        if !self.program.runs() {
            return;
        }
        signal(self.pid(), Signal::Hup);
        let look = || async {
            let login = Login::open(self.port, "relay", "secret").await.map(drop);
            if login.is_ok() == allow { Ok(()) } else { Err(format!("{login:?}")) }
        };
        await_or_dump("a reload of NATS", SOON, look, || self.log()).await;
    }

    /// The answer to a request of `admin`: `$JS.API.STREAM.CREATE.EVENTS`, or a subject of a stream.
    pub(crate) async fn admin(&self, subject: &str, body: &str) -> Result<String, String> {
        self.request(("admin", "admin"), subject, body).await
    }

    /// The answer to a request of `relay`.
    pub(crate) async fn relay(&self, subject: &str, body: &str) -> Result<String, String> {
        self.request(("relay", "secret"), subject, body).await
    }

    async fn request(
        &self,
        (user, password): (&str, &str),
        subject: &str,
        body: &str,
    ) -> Result<String, String> {
        let exchange =
            async { Login::open(self.port, user, password).await?.request(subject, body).await };
        let answer = tokio::time::timeout(REQUEST_MAX, exchange).await;
        answer.map_err(|elapsed| format!("{subject}: {elapsed}"))?
    }
}

/// A connection that has logged in.
struct Login(BufReader<TcpStream>);

impl Login {
    async fn open(port: u16, user: &str, password: &str) -> Result<Self, String> {
        let stream = TcpStream::connect(("127.0.0.1", port)).await;
        let mut login = Self(BufReader::new(stream.map_err(|error| error.to_string())?));
        let connect = format!(
            "CONNECT {{\"verbose\":false,\"user\":\"{user}\",\"pass\":\"{password}\"}}\r\nPING\r\n"
        );
        login.send(&connect).await?;
        loop {
            let line = login.line().await?;
            if line == "PONG" {
                return Ok(login);
            }
        }
    }

    async fn request(&mut self, subject: &str, body: &str) -> Result<String, String> {
        let length = body.len();
        self.send(&format!(
            "SUB _INBOX.test 1\r\nPUB {subject} _INBOX.test {length}\r\n{body}\r\n"
        ))
        .await?;
        loop {
            let line = self.line().await?;
            let Some(message) = line.strip_prefix("MSG ") else { continue };
            let length = message.rsplit(' ').next().and_then(|length| length.parse().ok());
            let mut answer = vec![0; length.ok_or_else(|| line.clone())?];
            self.0.read_exact(&mut answer).await.map_err(|error| error.to_string())?;
            return String::from_utf8(answer).map_err(|error| error.to_string());
        }
    }

    async fn send(&mut self, text: &str) -> Result<(), String> {
        self.0.get_mut().write_all(text.as_bytes()).await.map_err(|error| error.to_string())
    }

    /// The next line; an error of the server, and the end of the connection, are errors.
    async fn line(&mut self) -> Result<String, String> {
        let mut line = String::new();
        self.0.read_line(&mut line).await.map_err(|error| error.to_string())?;
        if !line.ends_with("\r\n") || line.starts_with("-ERR") {
            return Err(format!("it answered {line:?}"));
        }
        Ok(line.trim_end().to_owned())
    }
}
