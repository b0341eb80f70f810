//! SCRAM with somebody in between, who reads and changes what passes to and from a real server.
//!
//! The server's signature is what proves that it knows the password. The channel-binding flag is what tells a server
//! that somebody took its offer of channel binding out, or that the client speaks TLS with somebody else.

use super::*;
use bytes::BytesMut;
use std::sync::{Arc, Mutex};
use tokio::io::{AsyncRead, AsyncWrite, copy_bidirectional};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio_rustls::rustls::crypto::ring::default_provider;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore, ServerConfig};
use tokio_rustls::{TlsAcceptor, TlsConnector};

/// Codes of Authentication messages (manual, 54.7).
const OK: u32 = 0;
const SASL: u32 = 10;
const SASL_FINAL: u32 = 12;

/// `SSLRequest`, with its length (manual, 54.7).
const SSL_REQUEST: [u8; 8] = [0, 0, 0, 8, 0x04, 0xd2, 0x16, 0x2f];

/// What the one in between does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Does {
    /// Passes everything on.
    Nothing,
    /// Puts another signature in place of the server's.
    ChangesSignature,
    /// Takes `SCRAM-SHA-256-PLUS` out of the server's offer.
    TakesOfferOut,
}

/// What a login sent first: the mechanism, and the message.
type First = (String, String);

/// Somebody between client and server.
struct Between {
    port: u16,
    firsts: Arc<Mutex<Vec<First>>>,
    _accepting: JoinSet<()>,
}

/// How the one in between speaks TLS: with the client, and with the server.
type Tls = (TlsAcceptor, TlsConnector);

impl Between {
    async fn start(server: u16, tls: Option<Tls>, does: Does) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let firsts = Arc::<Mutex<Vec<First>>>::default();
        let mut accepting = JoinSet::new();
        let heard = Arc::clone(&firsts);
        accepting.spawn(async move {
            let mut open = JoinSet::new();
            while let Ok((client, _)) = listener.accept().await {
                open.spawn(pass(client, server, tls.clone(), does, Arc::clone(&heard)));
            }
        });
        Self { port, firsts, _accepting: accepting }
    }

    /// What logins have sent first.
    fn firsts(&self) -> Vec<First> {
        std::mem::take(&mut self.firsts.lock().expect("the list"))
    }
}

/// One connection, to its end.
async fn pass(
    mut client: TcpStream,
    server: u16,
    tls: Option<Tls>,
    does: Does,
    heard: Arc<Mutex<Vec<First>>>,
) {
    let mut server = TcpStream::connect(("127.0.0.1", server)).await.expect("the server");
    let Some((acceptor, connector)) = tls else {
        log_in_between(client, server, does, &heard).await.unwrap_or_default();
        return;
    };
    let mut request = [0; SSL_REQUEST.len()];
    client.read_exact(&mut request).await.expect("a request for TLS");
    assert_eq!(request, SSL_REQUEST);
    client.write_all(b"S").await.expect("a client");
    server.write_all(&SSL_REQUEST).await.expect("the server");
    assert_eq!(server.read_u8().await.expect("an answer"), b'S');
    let name = ServerName::try_from("127.0.0.1").expect("a name");
    let server = connector.connect(name, server).await.expect("TLS with the server");
    let client = acceptor.accept(client).await.expect("TLS with the client");
    log_in_between(client, server, does, &heard).await.unwrap_or_default();
}

/// Passes messages until the login is over, and then bytes.
async fn log_in_between<C, S>(
    mut client: C,
    mut server: S,
    does: Does,
    heard: &Mutex<Vec<First>>,
) -> std::io::Result<()>
where
    C: AsyncRead + AsyncWrite + Unpin,
    S: AsyncRead + AsyncWrite + Unpin,
{
    let length = client.read_u32().await?;
    let mut startup = length.to_be_bytes().to_vec();
    startup.resize(length as usize, 0);
    client.read_exact(&mut startup[4..]).await?;
    server.write_all(&startup).await?;
    let mut first = true;
    loop {
        let (tag, mut body) = message(&mut server).await?;
        let asked = u32::from_be_bytes(body[..4].try_into().expect("4 bytes"));
        match (tag, asked, does) {
            (b'R', SASL, Does::TakesOfferOut) => body = b"\0\0\0\x0aSCRAM-SHA-256\0\0".to_vec(),
            (b'R', SASL_FINAL, Does::ChangesSignature) => {
                let at = body.len() - 3;
                body[at] = if body[at] == b'A' { b'B' } else { b'A' };
            }
            _ => {}
        }
        send(&mut client, tag, &body).await?;
        match (tag, asked) {
            (b'R', SASL_FINAL) => {}
            (b'R', OK) | (b'E', _) => break,
            _ => {
                let (tag, body) = message(&mut client).await?;
                if std::mem::take(&mut first) {
                    let end = body.iter().position(|byte| *byte == 0).expect("a mechanism");
                    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
                    let said = (text(&body[..end]), text(&body[end + 5..]));
                    heard.lock().expect("the list").push(said);
                }
                send(&mut server, tag, &body).await?;
            }
        }
    }
    copy_bidirectional(&mut client, &mut server).await.map(drop)
}

async fn message(from: &mut (impl AsyncRead + Unpin)) -> std::io::Result<(u8, Vec<u8>)> {
    let (tag, length) = (from.read_u8().await?, from.read_u32().await?);
    let mut body = vec![0; length as usize - 4];
    from.read_exact(&mut body).await?;
    Ok((tag, body))
}

async fn send(to: &mut (impl AsyncWrite + Unpin), tag: u8, body: &[u8]) -> std::io::Result<()> {
    let mut bytes = BytesMut::with_capacity(body.len() + 5);
    bytes.extend_from_slice(&[tag]);
    bytes.extend_from_slice(&u32::try_from(body.len() + 4).expect("a length").to_be_bytes());
    bytes.extend_from_slice(body);
    to.write_all(&bytes).await?;
    to.flush().await
}

/// TLS of the one in between: with this certificate to the client, and to the server as any client.
fn tls(guarded: &Guarded, certificate: &str) -> Tls {
    let file = |kind: &str| guarded.file(&format!("{certificate}.{kind}"));
    let chain = vec![CertificateDer::from_pem_file(file("crt")).expect("a certificate")];
    let key = PrivateKeyDer::from_pem_file(file("key")).expect("a key");
    let provider = Arc::new(default_provider());
    let server = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .and_then(|builder| builder.with_no_client_auth().with_single_cert(chain, key))
        .expect("a configuration");
    let mut roots = RootCertStore::empty();
    let root = CertificateDer::from_pem_file(guarded.file("root.crt")).expect("a certificate");
    roots.add(root).expect("an authority");
    let client = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("a configuration")
        .with_root_certificates(roots)
        .with_no_client_auth();
    (TlsAcceptor::from(Arc::new(server)), TlsConnector::from(Arc::new(client)))
}

/// What the first message begins with: the GS2 header (RFC 5802, 7).
fn header(first: &str) -> &str {
    first.split_once("n=").map_or(first, |(header, _)| header)
}

/// Both connections log in through the one in between, or neither does; the first message of each, without its nonce.
async fn tried(between: &Between, more: &str) -> (Result<(), SourceError>, Vec<First>) {
    let port = between.port;
    let text = format!("host=127.0.0.1 port={port} dbname=postgres user=scram {PASSWORD} {more}");
    let outcome = log_in(&text).await;
    let firsts = between.firsts().into_iter();
    (outcome, firsts.map(|(name, first)| (name, header(&first).to_owned())).collect())
}

#[tokio::test]
async fn server_that_does_not_prove_that_it_knows_the_password_is_refused() {
    let guarded = Guarded::start(Version::Pg17).await;
    for (tls, more) in
        [(None, "sslmode=disable"), (Some(tls(&guarded, "server")), "sslmode=require")]
    {
        let honest = Between::start(guarded.server.port, tls.clone(), Does::Nothing).await;
        tried(&honest, more).await.0.expect("nothing was changed");
        let between = Between::start(guarded.server.port, tls, Does::ChangesSignature).await;
        let error = tried(&between, more).await.0.expect_err("another signature");
        assert_eq!(*error.kind(), SourceErrorKind::AuthRefused, "{more}: {error}");
        assert!(!format!("{error:?} {error}").contains("pa ss"), "{error:?}");
    }
}

#[tokio::test]
async fn channel_binding_is_used_where_it_is_offered_and_a_lost_offer_is_noticed() {
    let guarded = Guarded::start(Version::Pg17).await;
    let (own, other) = (Some(tls(&guarded, "server")), Some(tls(&guarded, "client")));
    let (plain, plus) = ("SCRAM-SHA-256", "SCRAM-SHA-256-PLUS");
    for (tls, does, more, works, mechanism, flag) in [
        // "n": this client can't. The server knows no TLS of this connection.
        (None, Does::Nothing, "sslmode=disable", true, plain, "n,,"),
        (own.clone(), Does::Nothing, "sslmode=require", true, plus, "p=tls-server-end-point,,"),
        (own.clone(), Does::Nothing, "sslmode=require channel_binding=disable", true, plain, "n,,"),
        // The client speaks TLS with somebody else than the server: the hashes of the certificates differ.
        (other.clone(), Does::Nothing, "sslmode=require", false, plus, "p=tls-server-end-point,,"),
        // "y": this client could have. The server has offered it, and refuses.
        (other.clone(), Does::TakesOfferOut, "sslmode=require", false, plain, "y,,"),
        (own, Does::TakesOfferOut, "sslmode=require", false, plain, "y,,"),
    ] {
        let between = Between::start(guarded.server.port, tls, does).await;
        let (outcome, firsts) = tried(&between, more).await;
        assert_eq!(outcome.is_ok(), works, "{does:?}, {more}: {outcome:?}");
        let first = (mechanism.to_owned(), flag.to_owned());
        assert_eq!(firsts, [first.clone(), first], "{does:?}, {more}");
    }
    // Where it is required, nothing is sent to a server that does not offer it.
    let between = Between::start(guarded.server.port, other, Does::TakesOfferOut).await;
    let (outcome, firsts) = tried(&between, "sslmode=require channel_binding=require").await;
    let error = outcome.expect_err("the offer is missing");
    assert_eq!((error.kind(), firsts.len()), (&SourceErrorKind::AuthRefused, 0), "{error}");
}
