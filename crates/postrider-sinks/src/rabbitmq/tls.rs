//! TLS of a connection: rustls with ring, which checks the server's certificate and name.

use super::spec::RabbitTls;
use std::fmt::Display;
use std::fs;
use std::io;
use std::path::Path;
use std::sync::Arc;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

/// TLS on a connection to the host of this name.
///
/// # Errors
/// The files can't be used, or the server's certificate is refused.
pub(super) async fn connect(
    stream: TcpStream,
    files: &RabbitTls,
    host: &str,
) -> io::Result<TlsStream<TcpStream>> {
    let config = client_config(files)?;
    let name = ServerName::try_from(host.to_owned()).map_err(other)?;
    let connected = TlsConnector::from(Arc::new(config)).connect(name, stream).await;
    connected.map_err(|error| io::Error::new(error.kind(), format!("TLS: {error}")))
}

fn client_config(files: &RabbitTls) -> io::Result<ClientConfig> {
    let mut roots = RootCertStore::empty();
    if let Some(file) = &files.authorities {
        for certificate in certificates(file)? {
            roots.add(certificate).map_err(|error| of_file(file, error))?;
        }
    } else {
        let found = rustls_native_certs::load_native_certs();
        roots.add_parsable_certificates(found.certs);
    }
    if roots.is_empty() {
        return Err(other("no certificate of an authority was found"));
    }
    let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()));
    let builder = builder.with_safe_default_protocol_versions().map_err(other)?;
    let builder = builder.with_root_certificates(roots);
    match (&files.certificate, &files.key) {
        (Some(cert), Some(key)) => {
            let chain = certificates(cert)?;
            let pem = key.read().map_err(other)?;
            let secret = PrivateKeyDer::from_pem_slice(pem.as_bytes());
            let secret = secret.map_err(|error| of_file(key.path(), error))?;
            builder.with_client_auth_cert(chain, secret).map_err(other)
        }
        _ => Ok(builder.with_no_client_auth()),
    }
}

fn certificates(file: &Path) -> io::Result<Vec<CertificateDer<'static>>> {
    let pem = fs::read(file).map_err(|error| of_file(file, error))?;
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&pem).collect();
    let found = found.map_err(|error| of_file(file, error))?;
    if found.is_empty() {
        return Err(of_file(file, "it has no certificate"));
    }
    Ok(found)
}

fn of_file(file: &Path, error: impl Display) -> io::Error {
    other(format!("TLS: \"{}\": {error}", file.display()))
}

fn other(error: impl Display) -> io::Error {
    io::Error::other(error.to_string())
}
