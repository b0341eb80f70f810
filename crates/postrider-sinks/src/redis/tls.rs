//! TLS to the server, by rustls with ring. The files are read for each connection, because they are renewed while the
//! process runs.

use super::problem::RedisProblem;
use super::spec::{Address, TlsFiles};
use std::fs;
use std::path::Path;
use std::sync::Arc;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{self, ClientConfig, RootCertStore};

const HINT: &str = "correct the files in sink.redis.tls";

/// Does the handshake. The certificate must be for the host of the address.
pub(super) async fn connect(
    socket: TcpStream,
    address: &Address,
    files: &TlsFiles,
) -> Result<TlsStream<TcpStream>, RedisProblem> {
    let config = client_config(files)?;
    let name = ServerName::try_from(address.host.clone()).map_err(|error| {
        RedisProblem::lost(
            format!("{:?} is no name for TLS: {error}", address.host),
            "correct sink.redis.servers",
        )
    })?;
    let connected = TlsConnector::from(Arc::new(config)).connect(name, socket).await;
    connected.map_err(|error| {
        RedisProblem::io("agree on TLS and certificates with", &address.to_string(), &error)
    })
}

/// What the connections are made with.
///
/// # Errors
/// A file that can't be used.
pub(super) fn client_config(files: &TlsFiles) -> Result<ClientConfig, RedisProblem> {
    let failed = |error: rustls::Error| RedisProblem::lost(format!("TLS: {error}"), HINT);
    let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()));
    let builder = builder.with_safe_default_protocol_versions().map_err(failed)?;
    let mut roots = RootCertStore::empty();
    let authorities = match &files.ca {
        Some(file) => certificates(file)?,
        None => rustls_native_certs::load_native_certs().certs,
    };
    let (added, _unreadable) = roots.add_parsable_certificates(authorities);
    if added == 0 {
        return Err(RedisProblem::lost("there is no authority for the server's certificate", HINT));
    }
    let builder = builder.with_root_certificates(roots);
    match &files.identity {
        None => Ok(builder.with_no_client_auth()),
        Some((certificate, key)) => {
            let chain = certificates(certificate)?;
            let pem = read(key)?;
            let found = rustls_pemfile::private_key(&mut pem.as_slice());
            let found = found.ok().flatten().ok_or_else(|| {
                let reason =
                    format!("\"{}\" has no private key, or an encrypted one", key.display());
                RedisProblem::lost(reason, HINT)
            })?;
            builder.with_client_auth_cert(chain, found).map_err(failed)
        }
    }
}

fn certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>, RedisProblem> {
    let pem = read(file)?;
    let found: Result<Vec<_>, _> = rustls_pemfile::certs(&mut pem.as_slice()).collect();
    found.ok().filter(|found| !found.is_empty()).ok_or_else(|| {
        RedisProblem::lost(format!("\"{}\" has no certificate", file.display()), HINT)
    })
}

fn read(file: &Path) -> Result<Vec<u8>, RedisProblem> {
    fs::read(file).map_err(|error| {
        RedisProblem::lost(format!("could not read \"{}\": {error}", file.display()), HINT)
    })
}
