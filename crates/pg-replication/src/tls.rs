//! TLS to the server: root certificates, client certificate, verification by libpq's rules, and the hash for channel
//! binding. `rustls` with `ring` does the cryptography and verifies the chain.
//!
//! Certificate files are read for each connection, because they are renewed while the process runs. Unlike in libpq,
//! the common name of a certificate is never taken for a host name: the certificate needs a subject alternative name.

use crate::conninfo::{Host, Root, Ssl, SslMode, TlsVersions};
use crate::error::{SourceError, SourceErrorKind};
use crate::transport::Socket;
use sha2::{Digest, Sha256, Sha384, Sha512};
use std::fs::File;
use std::io::{self, Read as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::client::danger::{
    HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier,
};
use tokio_rustls::rustls::client::{
    VerifierBuilderError, WebPkiServerVerifier, verify_server_name,
};
use tokio_rustls::rustls::crypto::{
    CryptoProvider, WebPkiSupportedAlgorithms, ring, verify_tls12_signature, verify_tls13_signature,
};
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use tokio_rustls::rustls::server::ParsedCertificate;
use tokio_rustls::rustls::version::{TLS12, TLS13};
use tokio_rustls::rustls::{
    self, CertificateError, ClientConfig, DigitallySignedStruct, Error, OtherError, RootCertStore,
    SignatureScheme, SupportedProtocolVersion,
};
use x509_cert::der::Decode;

/// The ALPN protocol name (manual, 54.2.10): servers refuse direct TLS without it.
const ALPN: &[u8] = b"postgresql";

/// Does the TLS handshake, and returns the stream and its `tls-server-end-point` channel binding.
pub(super) async fn connect(
    socket: Socket,
    ssl: &Ssl,
    host: &Host,
    name: &str,
) -> Result<(TlsStream<Socket>, Option<Vec<u8>>), SourceError> {
    let config = client_config(ssl, host)?;
    let server_name = ServerName::try_from(name.to_owned()).map_err(|error| {
        let doing = format!("check a certificate against {host}: it is not a host's name");
        SourceError::new(SourceErrorKind::Settings, doing).caused_by(error)
    })?;
    let connector = TlsConnector::from(Arc::new(config));
    let stream = connector
        .connect(server_name, socket)
        .await
        .map_err(|error| SourceError::io(format!("agree on TLS with {host}"), error))?;
    let certificate = stream.get_ref().1.peer_certificates().and_then(<[_]>::first);
    let end_point = certificate.and_then(end_point);
    Ok((stream, end_point))
}

fn client_config(ssl: &Ssl, host: &Host) -> Result<ClientConfig, SourceError> {
    let provider = Arc::new(ring::default_provider());
    let versions: &[&'static SupportedProtocolVersion] = match ssl.versions {
        TlsVersions::Both => &[&TLS13, &TLS12],
        TlsVersions::Only12 => &[&TLS12],
        TlsVersions::Only13 => &[&TLS13],
    };
    let doing = || format!("set up TLS for {host}");
    let settings = |error: rustls::Error| {
        SourceError::new(SourceErrorKind::Settings, doing()).caused_by(error)
    };
    let builder = ClientConfig::builder_with_provider(Arc::clone(&provider));
    let builder = builder.with_protocol_versions(versions).map_err(settings)?;
    let verifier = verifier(ssl, &provider)?;
    let builder = builder.dangerous().with_custom_certificate_verifier(verifier);
    let mut config = match client_identity(ssl)? {
        Some((chain, key)) => builder.with_client_auth_cert(chain, key).map_err(settings)?,
        None => builder.with_no_client_auth(),
    };
    config.enable_sni = ssl.sni;
    if ssl.direct {
        config.alpn_protocols = vec![ALPN.to_vec()];
    }
    Ok(config)
}

fn verifier(
    ssl: &Ssl,
    provider: &Arc<CryptoProvider>,
) -> Result<Arc<dyn rustls::client::danger::ServerCertVerifier>, SourceError> {
    let default_root = || existing(ssl, "root.crt").map(Root::File);
    let root = ssl.root.clone().or_else(default_root);
    // As in libpq, `require` with a root certificate means `verify-ca`.
    match (ssl.mode, root) {
        (SslMode::Disable | SslMode::Prefer, _) | (SslMode::Require, None) => {
            Ok(Arc::new(Unverified::new(provider)))
        }
        (SslMode::VerifyCa | SslMode::VerifyFull, None) => {
            let doing = "verify the server's certificate: give sslrootcert (a file, or system)";
            Err(SourceError::new(SourceErrorKind::Settings, doing))
        }
        (mode, Some(root)) => {
            let roots = roots(&root)?;
            let verifier = Verified::new(roots, provider, mode == SslMode::VerifyFull);
            Ok(Arc::new(verifier.map_err(|error| {
                let doing = "use the root certificates of sslrootcert";
                SourceError::new(SourceErrorKind::Settings, doing).caused_by(error)
            })?))
        }
    }
}

/// A file in `~/.postgresql`, if it exists.
fn existing(ssl: &Ssl, file: &str) -> Option<PathBuf> {
    ssl.home.as_deref().map(|home| home.join(file)).filter(|path| path.is_file())
}

fn roots(root: &Root) -> Result<Vec<CertificateDer<'static>>, SourceError> {
    match root {
        Root::File(path) => certificates("sslrootcert", path),
        Root::System => {
            let loaded = rustls_native_certs::load_native_certs();
            if loaded.certs.is_empty() {
                let doing = "find any root certificate of the system (sslrootcert=system)";
                return Err(SourceError::new(SourceErrorKind::Settings, doing));
            }
            Ok(loaded.certs)
        }
    }
}

fn root_store(certificates: &[CertificateDer<'static>]) -> RootCertStore {
    let mut store = RootCertStore::empty();
    let (_, ignored) = store.add_parsable_certificates(certificates.iter().cloned());
    if ignored > 0 {
        tracing::debug!(ignored, "root certificates that can't be parsed are skipped");
    }
    store
}

type Identity = (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>);

fn client_identity(ssl: &Ssl) -> Result<Option<Identity>, SourceError> {
    let Some(cert) = ssl.cert.clone().or_else(|| existing(ssl, "postgresql.crt")) else {
        return Ok(None);
    };
    let key = ssl.key.clone().or_else(|| existing(ssl, "postgresql.key"));
    let Some(key) = key else {
        let doing = "use the client certificate: give sslkey too";
        return Err(SourceError::new(SourceErrorKind::Settings, doing));
    };
    let chain = certificates("sslcert", &cert)?;
    let pem = read_key(&key)?;
    let found = rustls_pemfile::private_key(&mut pem.as_slice());
    let doing = || format!("find a private key, not encrypted, in \"{}\" (sslkey)", key.display());
    match found {
        Ok(Some(key)) => Ok(Some((chain, key))),
        Ok(None) => Err(SourceError::new(SourceErrorKind::Settings, doing())),
        Err(error) => Err(SourceError::new(SourceErrorKind::Settings, doing()).caused_by(error)),
    }
}

fn certificates(
    key: &'static str,
    path: &Path,
) -> Result<Vec<CertificateDer<'static>>, SourceError> {
    let pem = read(key, path)?;
    let all: Result<Vec<_>, _> = rustls_pemfile::certs(&mut pem.as_slice()).collect();
    let doing = || format!("find a certificate in \"{}\" ({key})", path.display());
    match all {
        Ok(all) if !all.is_empty() => Ok(all),
        Ok(_) => Err(SourceError::new(SourceErrorKind::Settings, doing())),
        Err(error) => Err(SourceError::new(SourceErrorKind::Settings, doing()).caused_by(error)),
    }
}

fn read(key: &'static str, path: &Path) -> Result<Vec<u8>, SourceError> {
    std::fs::read(path).map_err(|error| {
        let doing = format!("read \"{}\" ({key})", path.display());
        SourceError::new(SourceErrorKind::Settings, doing).caused_by(error)
    })
}

/// Reads the file of the private key, if its permissions follow libpq's rule. A key that others can read may have been
/// copied already, so it is refused.
fn read_key(path: &Path) -> Result<Vec<u8>, SourceError> {
    let shown = path.display();
    let failed = |error: io::Error| {
        let doing = format!("read \"{shown}\" (sslkey)");
        SourceError::new(SourceErrorKind::Settings, doing).caused_by(error)
    };
    // The permissions are those of the opened file, which is also the one that is read.
    let mut file = File::open(path).map_err(failed)?;
    let meta = file.metadata().map_err(failed)?;
    if is_exposed(meta.uid(), meta.mode()) {
        let doing = format!(
            "use the private key \"{shown}\" (sslkey), to which its group or others have rights; fix it with: chmod \
             600 '{shown}' (640 is allowed where the file belongs to root)"
        );
        return Err(SourceError::new(SourceErrorKind::Settings, doing));
    }
    let mut pem = Vec::new();
    file.read_to_end(&mut pem).map_err(failed)?;
    Ok(pem)
}

/// libpq's rule: 0600 or less; 0640 or less for a file that belongs to root, which the process may read by its group.
const fn is_exposed(owner: u32, mode: u32) -> bool {
    const ROOT: u32 = 0;
    let others = if owner == ROOT { 0o037 } else { 0o077 };
    mode & others != 0
}

/// The `tls-server-end-point` channel binding (RFC 5929, section 4.1): the certificate's hash by the hash function of
/// its signature, or by SHA-256 if that is MD5 or SHA-1.
///
/// `None` for a signature algorithm that names no single hash function here (Ed25519, RSA-PSS): then there is no
/// channel binding.
fn end_point(certificate: &CertificateDer<'_>) -> Option<Vec<u8>> {
    let parsed = x509_cert::Certificate::from_der(certificate).ok()?;
    match parsed.signature_algorithm.oid.to_string().as_str() {
        // RSA with MD5, SHA-1, SHA-256; ECDSA with SHA-1, SHA-256.
        "1.2.840.113549.1.1.4"
        | "1.2.840.113549.1.1.5"
        | "1.2.840.113549.1.1.11"
        | "1.2.840.10045.4.1"
        | "1.2.840.10045.4.3.2" => Some(Sha256::digest(certificate).to_vec()),
        "1.2.840.113549.1.1.12" | "1.2.840.10045.4.3.3" => {
            Some(Sha384::digest(certificate).to_vec())
        }
        "1.2.840.113549.1.1.13" | "1.2.840.10045.4.3.4" => {
            Some(Sha512::digest(certificate).to_vec())
        }
        _ => None,
    }
}

/// Accepts any certificate: `sslmode` `prefer` and `require`. The server must still prove that it has the certificate's
/// key, otherwise channel binding would have no effect.
#[derive(Debug)]
struct Unverified(WebPkiSupportedAlgorithms);

impl Unverified {
    fn new(provider: &Arc<CryptoProvider>) -> Self {
        Self(provider.signature_verification_algorithms)
    }
}

impl ServerCertVerifier for Unverified {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, cert, dss, &self.0)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, cert, dss, &self.0)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_schemes()
    }
}

/// Accepts a certificate signed by one of the roots: `verify-ca`, or, if the name is checked too, `verify-full`.
#[derive(Debug)]
struct Verified {
    webpki: Arc<WebPkiServerVerifier>,
    roots: Vec<CertificateDer<'static>>,
    with_name: bool,
}

impl Verified {
    fn new(
        roots: Vec<CertificateDer<'static>>,
        provider: &Arc<CryptoProvider>,
        with_name: bool,
    ) -> Result<Self, VerifierBuilderError> {
        let store = Arc::new(root_store(&roots));
        let webpki =
            WebPkiServerVerifier::builder_with_provider(store, Arc::clone(provider)).build()?;
        Ok(Self { webpki, roots, with_name })
    }

    /// Verifies a server certificate that is itself a root, as `openssl req -x509` makes them. libpq accepts such a
    /// certificate; webpki alone does not, because it is a certificate of an authority.
    fn verify_root(
        &self,
        certificate: &CertificateDer<'_>,
        server_name: &ServerName<'_>,
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let parsed = x509_cert::Certificate::from_der(certificate);
        let wrong = |error| Error::InvalidCertificate(error);
        let validity =
            parsed.map_err(|error| wrong(CertificateError::Other(OtherError(Arc::new(error)))))?;
        let validity = validity.tbs_certificate.validity;
        let seconds = now.as_secs();
        if seconds < validity.not_before.to_unix_duration().as_secs() {
            return Err(wrong(CertificateError::NotValidYet));
        }
        if seconds > validity.not_after.to_unix_duration().as_secs() {
            return Err(wrong(CertificateError::Expired));
        }
        if self.with_name {
            verify_server_name(&ParsedCertificate::try_from(certificate)?, server_name)?;
        }
        Ok(ServerCertVerified::assertion())
    }
}

impl ServerCertVerifier for Verified {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        if self.roots.iter().any(|root| root == end_entity) {
            return self.verify_root(end_entity, server_name, now);
        }
        let verdict = self.webpki.verify_server_cert(
            end_entity,
            intermediates,
            server_name,
            ocsp_response,
            now,
        );
        match verdict {
            // webpki checks the name last, so the chain is good.
            Err(Error::InvalidCertificate(
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
            )) if !self.with_name => Ok(ServerCertVerified::assertion()),
            verdict => verdict,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.webpki.verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.webpki.verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.webpki.supported_verify_schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    #[test]
    fn a_key_is_exposed_by_the_rule_of_libpq() {
        for (owner, mode, exposed) in [
            (1000, 0o600, false),
            (1000, 0o400, false),
            (1000, 0o640, true),
            (1000, 0o604, true),
            (1000, 0o620, true),
            (1000, 0o610, true),
            (1000, 0o602, true),
            (0, 0o600, false),
            (0, 0o640, false),
            (0, 0o440, false),
            (0, 0o660, true),
            (0, 0o650, true),
            (0, 0o644, true),
            (0, 0o641, true),
        ] {
            assert_eq!(is_exposed(owner, 0o100_000 | mode), exposed, "{owner} {mode:o}");
        }
    }

    #[test]
    fn an_exposed_key_is_refused_with_the_command_that_fixes_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("my.key");
        std::fs::write(&path, "hush").unwrap();
        let with = |mode| {
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
            read_key(&path)
        };
        assert_eq!(with(0o600).unwrap(), b"hush");
        let error = with(0o644).unwrap_err();
        assert_eq!(*error.kind(), SourceErrorKind::Settings);
        let message = error.to_string();
        assert!(message.contains("chmod 600") && !message.contains("hush"), "{message}");
    }
}
