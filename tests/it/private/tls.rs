//! Certificates of private servers, and a TLS client that checks them.

use std::fs;
use std::io;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::crypto::ring::default_provider;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

/// Writes `ca.pem`, and `server.pem` with `server.key`: a certificate for the name `localhost` and for no address, so
/// that a client of 127.0.0.1 finds a wrong name. `client.pem` with `client.key` is that of a client, whose subject is
/// `CN=relay`.
pub(super) fn make_certificates(dir: &Path) {
    let key = "-newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes";
    let server = "subjectAltName=DNS:localhost\nextendedKeyUsage=serverAuth\n\
                  basicConstraints=CA:FALSE\nkeyUsage=digitalSignature\n";
    let client =
        "extendedKeyUsage=clientAuth\nbasicConstraints=CA:FALSE\nkeyUsage=digitalSignature\n";
    fs::write(dir.join("server.ext"), server).expect("server.ext");
    fs::write(dir.join("client.ext"), client).expect("client.ext");
    for arguments in [
        format!(
            "req -x509 {key} -keyout ca.key -out ca.pem -days 2 -subj /CN=test-ca \
             -addext basicConstraints=critical,CA:TRUE -addext keyUsage=critical,keyCertSign,cRLSign"
        ),
        format!("req {key} -keyout server.key -out server.csr -subj /CN=server"),
        "x509 -req -in server.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 2 \
         -out server.pem -extfile server.ext"
            .to_owned(),
        format!("req {key} -keyout client.key -out client.csr -subj /CN=relay"),
        "x509 -req -in client.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 2 \
         -out client.pem -extfile client.ext"
            .to_owned(),
    ] {
        let output = Command::new("openssl").args(arguments.split(' ')).current_dir(dir).output();
        let output = output.expect("openssl");
        assert!(
            output.status.success(),
            "{arguments}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
    }
}

/// TLS on a connection, with a server whose certificate must be of the authority in `ca` and for `name`.
pub(crate) async fn tls(
    stream: TcpStream,
    ca: &Path,
    name: &str,
) -> io::Result<TlsStream<TcpStream>> {
    let mut roots = RootCertStore::empty();
    let ca = CertificateDer::from_pem_file(ca).expect("a certificate");
    roots.add(ca).expect("an authority");
    let config = ClientConfig::builder_with_provider(Arc::new(default_provider()))
        .with_safe_default_protocol_versions()
        .expect("protocol versions")
        .with_root_certificates(roots)
        .with_no_client_auth();
    let name = ServerName::try_from(name.to_owned()).expect("a name");
    TlsConnector::from(Arc::new(config)).connect(name, stream).await
}
