//! A Redis or Valkey to hurt.

use super::program::Program;
use super::tls::make_certificates;
use super::{Signal, free_port};
use std::fs;
use std::path::PathBuf;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// How long one command may take.
const COMMAND_MAX: Duration = Duration::from_secs(5);

/// Which server.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Flavor {
    /// Redis 7.0 of Debian 12, the oldest one that is supported.
    Redis7,
    /// Valkey 9.1 of Debian unstable.
    Valkey9,
}

impl Flavor {
    pub(crate) const ALL: [Self; 2] = [Self::Redis7, Self::Valkey9];

    const fn name(self) -> &'static str {
        match self {
            Self::Redis7 => "redis",
            Self::Valkey9 => "valkey",
        }
    }

    /// Commands of the relay that Redis 7.0 does not know: it would not start with a rule about them.
    const fn later_commands(self) -> &'static str {
        match self {
            Self::Redis7 => "",
            Self::Valkey9 => "+client|setinfo +waitaof",
        }
    }
}

/// A Redis or Valkey of the test's own. Logins: `admin` with password `admin`, and `relay` with password `secret`.
pub(crate) struct PrivateRedis {
    port: u16,
    tls_port: u16,
    program: Program,
}

impl PrivateRedis {
    /// Starts one with extra lines for its configuration, which take the place of the lines before them.
    pub(crate) async fn start(flavor: Flavor, extra_config: &str) -> Self {
        let mut server =
            Self { port: free_port(), tls_port: free_port(), program: Program::new(flavor.name()) };
        let dir = &server.program.dir.0;
        make_certificates(dir);
        fs::create_dir(dir.join("data")).expect("a directory for its data");
        let config = format!(
            include_str!("redis.conf"),
            port = server.port,
            tls_port = server.tls_port,
            dir = dir.display(),
            later = flavor.later_commands(),
            extra = extra_config
        );
        fs::write(dir.join("redis.conf"), config).expect("redis.conf");
        server.restart().await;
        server
    }

    /// The port without TLS.
    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// The port with TLS.
    pub(crate) fn tls_port(&self) -> u16 {
        self.tls_port
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

    /// Starts it on the data and the ports that it had, and waits until its data is loaded. It must not be running.
    pub(crate) async fn restart(&mut self) {
        let mut command = self.program.command();
        command.arg(self.program.file("redis.conf"));
        let port = self.port;
        let answers = || async move {
            match as_user(port, "admin admin", "PING").await?.as_str() {
                "+PONG\r\n" => Ok(()),
                other => Err(other.to_owned()),
            }
        };
        self.program.start(command, answers).await;
    }

    /// Disables the login `relay` and closes its connections, or enables the login. A restart enables it too.
    pub(crate) async fn allow(&self, allow: bool) {
        let state = if allow { "on" } else { "off" };
        let set = self.admin(&format!("ACL SETUSER relay {state}")).await;
        assert_eq!(set.as_deref(), Ok("+OK\r\n"));
        if !allow {
            self.admin("CLIENT KILL USER relay").await.expect("closed connections");
        }
    }

    /// The answer to an inline command of `admin`, as RESP2 writes it.
    pub(crate) async fn admin(&self, command: &str) -> Result<String, String> {
        as_user(self.port, "admin admin", command).await
    }

    /// The answer to an inline command of `relay`.
    pub(crate) async fn relay(&self, command: &str) -> Result<String, String> {
        as_user(self.port, "relay secret", command).await
    }
}

/// Logs in on a connection of its own, sends one command, and reads its answer. A refused login is an error.
async fn as_user(port: u16, login: &str, command: &str) -> Result<String, String> {
    let exchange = async {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).await?;
        let request = format!("AUTH {login}\r\n{command}\r\nQUIT\r\n");
        stream.write_all(request.as_bytes()).await?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).await?;
        Ok::<_, std::io::Error>(answer)
    };
    let answer = tokio::time::timeout(COMMAND_MAX, exchange)
        .await
        .map_err(|elapsed| format!("{command}: {elapsed}"))?
        .map_err(|error| format!("{command}: {error}"))?;
    let answer = String::from_utf8_lossy(&answer).into_owned();
    let inner = answer.strip_prefix("+OK\r\n").and_then(|rest| rest.strip_suffix("+OK\r\n"));
    inner.map(str::to_owned).ok_or(answer)
}
