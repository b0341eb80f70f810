//! One HTTP question to a process on this host.

use crate::cli::error::CliError;
use crate::driver::PipelineSpec;
use serde_json::Value;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

/// How long the answer may take.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Bytes the answer may have.
const ANSWER_BYTES_MAX: u64 = 4 << 20;

/// Where a process that listens on `address` is reached from the same host.
pub(super) fn reachable(address: SocketAddr) -> SocketAddr {
    let ip = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => IpAddr::V4(Ipv4Addr::LOCALHOST),
        IpAddr::V6(ip) if ip.is_unspecified() => IpAddr::V6(Ipv6Addr::LOCALHOST),
        IpAddr::V4(_) | IpAddr::V6(_) => address.ip(),
    };
    SocketAddr::new(ip, address.port())
}

/// How long a command waits for a process that may not be there, before it says what comes next.
const GLANCE: Duration = Duration::from_secs(2);

/// A pipeline of the process that listens on an address.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(in crate::cli) struct Seen {
    /// Its name.
    pub(in crate::cli) pipeline: String,
    /// Its database, as [`PipelineSpec::source_name`] has it.
    pub(in crate::cli) source: String,
    /// The code of its halt, where it is halted.
    pub(in crate::cli) halted: Option<String>,
}

/// The pipelines of the Postrider that listens on `address`; none where none does.
pub(in crate::cli) async fn glance(address: SocketAddr) -> Vec<Seen> {
    let answer = tokio::time::timeout(GLANCE, status(reachable(address))).await;
    let Ok(Ok(body)) = answer else { return Vec::new() };
    let Ok(status) = serde_json::from_str::<Value>(&body) else { return Vec::new() };
    let pipelines = status["pipelines"].as_array().map_or(&[][..], Vec::as_slice);
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let seen = pipelines.iter().map(|pipeline| Seen {
        pipeline: text(&pipeline["pipeline"]),
        source: text(&pipeline["source"]),
        halted: (pipeline["state"] == "halted").then(|| text(&pipeline["halt_code"])),
    });
    seen.collect()
}

/// What starts a pipeline that was set up or repaired: a process that halted may still run, and holds its port.
pub(in crate::cli) async fn how_to_start(
    listen: Option<SocketAddr>,
    spec: &PipelineSpec,
) -> String {
    let seen = match listen {
        Some(address) => glance(address).await,
        None => Vec::new(),
    };
    let here = seen
        .into_iter()
        .find(|seen| seen.pipeline == spec.name() && seen.source == spec.source_name());
    match here {
        Some(Seen { halted: Some(code), .. }) => format!(
            "the process that halted with {code} still runs: restart postrider run (systemctl restart postrider)"
        ),
        Some(Seen { halted: None, .. }) => "postrider run is running".to_owned(),
        None => "start it with: postrider run".to_owned(),
    }
}

/// The body of `/status`.
pub(super) async fn status(address: SocketAddr) -> Result<String, CliError> {
    let answer = tokio::time::timeout(TIMEOUT, exchange(address)).await;
    let late = |_elapsed| io::Error::from(io::ErrorKind::TimedOut);
    let answer = answer.map_err(late).flatten();
    let answer = answer.map_err(|source| CliError::Ask { address, source })?;
    let (head, body) = answer.split_once("\r\n\r\n").ok_or(CliError::Stranger(address))?;
    let ok = head.starts_with("HTTP/1.") && head.split(' ').nth(1) == Some("200");
    if ok { Ok(body.to_owned()) } else { Err(CliError::Stranger(address)) }
}

/// HTTP/1.0, so that the answer ends with the connection and has no chunks.
async fn exchange(address: SocketAddr) -> io::Result<String> {
    let mut stream = TcpStream::connect(address).await?;
    let request =
        format!("GET /status HTTP/1.0\r\nHost: {address}\r\nAccept: application/json\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut answer = Vec::new();
    stream.take(ANSWER_BYTES_MAX).read_to_end(&mut answer).await?;
    Ok(String::from_utf8_lossy(&answer).into_owned())
}
