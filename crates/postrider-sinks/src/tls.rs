//! TLS to a broker: rustls with ring, which checks the server's certificate and name. The files are read for each
//! connection, because they are renewed while the process runs.

use postrider_core::secret_file::SecretFile;
use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::{fs, io};
use thiserror::Error;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

/// The files of a sink's connections, in the format PEM.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct TlsFiles {
    /// The authorities of the server; without it those of the system.
    pub authorities: Option<PathBuf>,
    /// The client's certificate, with its chain.
    pub certificate: Option<PathBuf>,
    /// The key of that certificate.
    pub key: Option<SecretFile>,
}

/// A file that can't be used. The message has its path, and nothing of its content.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[error("{0}")]
pub struct TlsFilesError(String);

/// TLS on a connection to the host of this name.
///
/// # Errors
/// The files can't be used ([`TlsFilesError`] as the inner error), or the server's certificate is refused.
pub async fn connect(
    stream: TcpStream,
    files: &TlsFiles,
    host: &str,
) -> io::Result<TlsStream<TcpStream>> {
    let config = client_config(files).map_err(io::Error::other)?;
    let name = ServerName::try_from(host.to_owned()).map_err(|error| {
        let message = format!("{host:?} is no name for TLS: {error}");
        io::Error::new(io::ErrorKind::InvalidInput, message)
    })?;
    TlsConnector::from(Arc::new(config)).connect(name, stream).await
}

/// What connections are made with.
///
/// # Errors
/// A file can't be used.
pub fn client_config(files: &TlsFiles) -> Result<ClientConfig, TlsFilesError> {
    let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()));
    let builder = builder.with_safe_default_protocol_versions().map_err(failed)?;
    let builder = builder.with_root_certificates(roots(files)?);
    match (&files.certificate, &files.key) {
        (Some(certificate), Some(key)) => {
            let chain = certificates(certificate)?;
            let pem = key.read().map_err(failed)?;
            let secret = PrivateKeyDer::from_pem_slice(pem.as_bytes()).map_err(|_unreadable| {
                of_file(key.path(), "no private key, or an encrypted one")
            })?;
            builder
                .with_client_auth_cert(chain, secret)
                .map_err(|error| of_file(key.path(), format!("it does not fit: {error}")))
        }
        (Some(_) | None, None) | (None, Some(_)) => Ok(builder.with_no_client_auth()),
    }
}

fn roots(files: &TlsFiles) -> Result<Arc<RootCertStore>, TlsFilesError> {
    /// The system has some 150, and they are read once.
    static SYSTEM: OnceLock<Arc<RootCertStore>> = OnceLock::new();
    let store = |certificates: Vec<CertificateDer<'static>>| {
        let mut store = RootCertStore::empty();
        store.add_parsable_certificates(certificates);
        Arc::new(store)
    };
    let (roots, place) = if let Some(file) = &files.authorities {
        (store(certificates(file)?), file.as_path())
    } else {
        let read = || store(rustls_native_certs::load_native_certs().certs);
        (Arc::clone(SYSTEM.get_or_init(read)), Path::new("the system's store"))
    };
    if roots.is_empty() {
        return Err(of_file(place, "no certificate of an authority: set ca_file"));
    }
    Ok(roots)
}

fn certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>, TlsFilesError> {
    let pem = fs::read(file).map_err(|error| of_file(file, error))?;
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&pem).collect();
    let found = found.map_err(|error| of_file(file, error))?;
    if found.is_empty() {
        return Err(of_file(file, "it has no certificate"));
    }
    Ok(found)
}

fn of_file(file: &Path, why: impl Display) -> TlsFilesError {
    failed(format!("\"{}\": {why}", file.display()))
}

fn failed(error: impl Display) -> TlsFilesError {
    TlsFilesError(format!("TLS: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_that_can_not_be_used_are_named_without_their_content() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("ca.pem");
        let files = TlsFiles { authorities: Some(file.clone()), ..TlsFiles::default() };
        let error = || client_config(&files).unwrap_err().to_string();
        assert!(error().contains("ca.pem"), "{}", error());
        fs::write(&file, "hush").unwrap();
        assert!(error().contains("it has no certificate"), "{}", error());
        let broken = "-----BEGIN CERTIFICATE-----\nhush\n-----END CERTIFICATE-----\n";
        fs::write(&file, broken).unwrap();
        assert!(error().contains("ca.pem") && !error().contains("hush"), "{}", error());
    }
}
