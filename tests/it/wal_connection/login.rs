//! Logging in: what is asked for, what is answered, what is refused. Both connections, one set of rules; TLS in `tls`.

mod scram;
mod tls;

use super::*;
use crate::private::PrivatePostgres;
use std::fs;
use std::path::Path;
use std::process::Command;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

const RULES: &str = "
    hostssl all tls_only 127.0.0.1/32 scram-sha-256
    host all tls_only 127.0.0.1/32 reject
    host all scram 127.0.0.1/32 scram-sha-256
    host all md5ed 127.0.0.1/32 md5
    host all clear 127.0.0.1/32 password
    local all clear password
    hostssl all certified 127.0.0.1/32 cert
    host all certified 127.0.0.1/32 reject
";

const ROLES: &str = "
    set password_encryption = 'scram-sha-256';
    create role tls_only login replication password 'pa ss''w\u{f6}rd';
    create role scram login replication password 'pa ss''w\u{f6}rd';
    create role clear login replication password 'pa ss''w\u{f6}rd';
    create role certified login replication;
    set password_encryption = 'md5';
    create role md5ed login replication password 'pa ss''w\u{f6}rd';
";

/// The password above as it stands in a connection string.
const PASSWORD: &str = "password='pa ss\\'w\u{f6}rd'";

/// A server with those roles, and files of TLS beside them.
pub(crate) struct Guarded {
    pub(crate) server: PrivatePostgres,
    certificates: tempfile::TempDir,
}

impl Guarded {
    pub(crate) async fn start(version: Version) -> Self {
        let certificates = tempfile::tempdir().expect("a directory");
        make_certificates(certificates.path());
        let server = PrivatePostgres::start_with(version, "", RULES).await;
        let client = server.connect().await;
        client.batch(ROLES).await;
        for file in ["server.crt", "server.key", "root.crt"] {
            let to = server.data().join(file);
            fs::copy(certificates.path().join(file), &to).expect("a copy");
            server.hand_over(&to);
        }
        client.batch("alter system set ssl_ca_file = 'root.crt'").await;
        client.batch("alter system set ssl = on").await;
        server.reload();
        await_that("TLS", SOON, || async {
            if client.text("show ssl").await.as_deref() == Some("on") { Ok(()) } else { Err("off") }
        })
        .await;
        Self { server, certificates }
    }

    /// `file` in the directory of certificates.
    pub(crate) fn file(&self, name: &str) -> String {
        self.certificates.path().join(name).display().to_string()
    }

    /// From now on clients need a certificate of this authority.
    pub(crate) async fn trust(&self, authority: &str) {
        let to = self.server.data().join("root.crt");
        fs::copy(self.file(authority), &to).expect("a copy");
        self.server.hand_over(&to);
        let client = self.server.connect().await;
        let loaded = "select pg_conf_load_time()::text";
        let before = client.text(loaded).await;
        self.server.reload();
        await_that("the server to read its files", SOON, || async {
            if client.text(loaded).await == before { Err("not yet") } else { Ok(()) }
        })
        .await;
    }

    /// A login over TCP.
    fn tcp(&self, more: &str) -> String {
        let port = self.server.port;
        format!("hostaddr=127.0.0.1 port={port} dbname=postgres {more}")
    }

    async fn log_in(&self, more: &str) -> Result<(), SourceError> {
        log_in(&self.tcp(more)).await
    }
}

/// Logs in twice, with either connection, and uses it.
async fn log_in(text: &str) -> Result<(), SourceError> {
    let conninfo = conninfo(text);
    let control = control(&conninfo).await;
    let mut wal = match WalConnection::connect(&conninfo, "it").await {
        Ok(wal) => wal,
        Err(error) => {
            let other = control.expect_err("both are refused");
            assert_eq!(other.kind(), error.kind(), "refused alike");
            return Err(error);
        }
    };
    wal.identify_system().await?;
    control
}

async fn control(conninfo: &Conninfo) -> Result<(), SourceError> {
    let (client, connection) = connect_client(conninfo, "it").await?;
    let asked = async {
        let row = client.query_one("select current_setting('search_path'), 1 + 1", &[]).await;
        let row = row.expect("an answer");
        assert_eq!((row.get::<_, &str>(0), row.get::<_, i32>(1)), ("", 2));
    };
    tokio::select! {
        ended = connection => ended,
        () = asked => Ok(()),
    }
}

fn openssl(dir: &Path, arguments: &str) {
    let output = Command::new("openssl").args(arguments.split(' ')).current_dir(dir).output();
    let output = output.expect("openssl");
    assert!(output.status.success(), "{arguments}: {}", String::from_utf8_lossy(&output.stderr));
}

/// Two authorities; of the first a server's certificate for 127.0.0.1 and db.test, and a client's; of the second
/// another one of the same client, `renewed`.
pub(crate) fn make_certificates(dir: &Path) {
    let key = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes";
    for name in ["root", "other"] {
        openssl(
            dir,
            &format!(
                "req -x509 {key} -keyout {name}.key -out {name}.crt -days 2 -subj /CN={name} \
                 -sha384"
            ),
        );
    }
    fs::write(dir.join("server.ext"), "subjectAltName=IP:127.0.0.1,DNS:db.test\n").expect("ext");
    fs::write(dir.join("client.ext"), "extendedKeyUsage=clientAuth\n").expect("ext");
    for (name, subject, ext, ca) in [
        ("server", "/CN=db", "server", "root"),
        ("client", "/CN=certified", "client", "root"),
        ("renewed", "/CN=certified", "client", "other"),
    ] {
        openssl(dir, &format!("req {key} -keyout {name}.key -out {name}.csr -subj {subject}"));
        openssl(
            dir,
            &format!(
                "x509 -req -in {name}.csr -CA {ca}.crt -CAkey {ca}.key -CAcreateserial -days 2 \
                 -extfile {ext}.ext -out {name}.crt -sha384"
            ),
        );
    }
}

#[tokio::test]
async fn passwords_are_answered_where_it_is_safe() {
    for version in Version::ALL {
        let guarded = Guarded::start(version).await;
        let root = guarded.file("root.crt");
        let verified = format!("sslmode=verify-full sslrootcert={root}");
        for (login, works) in [
            (format!("user=scram {PASSWORD} sslmode=disable"), true),
            (format!("user=scram {PASSWORD} sslmode=require channel_binding=require"), true),
            (format!("user=scram {PASSWORD} sslmode=require channel_binding=disable"), true),
            (format!("user=scram {PASSWORD} sslmode=disable channel_binding=require"), false),
            (format!("user=tls_only {PASSWORD} {verified} channel_binding=require"), true),
            (format!("user=tls_only {PASSWORD}"), true),
            (format!("user=md5ed {PASSWORD} sslmode=disable"), true),
            (format!("user=md5ed {PASSWORD} sslmode=require channel_binding=require"), false),
            (format!("user=clear {PASSWORD} sslmode=require"), true),
            (format!("user=clear {PASSWORD} sslmode=disable"), false),
            ("user=scram sslmode=disable".to_owned(), false),
            ("user=postgres sslmode=disable".to_owned(), true),
            ("user=postgres sslmode=require channel_binding=require".to_owned(), false),
        ] {
            match guarded.log_in(&login).await {
                Ok(()) => assert!(works, "{version:?} let in {login}"),
                Err(error) => {
                    assert!(!works, "{version:?} refused {login}: {error}");
                    assert_eq!(*error.kind(), SourceErrorKind::AuthRefused, "{login}: {error}");
                    assert!(!format!("{error:?}").contains("pa ss"), "{error:?}");
                }
            }
        }
        let socket = format!("{} {PASSWORD}", guarded.server.socket_url());
        log_in(&format!("{socket} user=clear")).await.expect("in the clear over a unix socket");
    }
}

#[tokio::test]
async fn what_the_server_refuses_comes_with_its_sqlstate() {
    let guarded = Guarded::start(Version::Pg15).await;
    for (login, expected) in [
        ("user=scram password=wrong sslmode=require", "28P01"),
        ("user=md5ed password=wrong", "28P01"),
        ("user=nobody", "28000"),
        ("user=postgres dbname=nowhere", "3D000"),
        ("user=tls_only password=x sslmode=disable", "28000"),
        ("user=postgres options='-c no_such_setting=1'", "42704"),
    ] {
        let error = guarded.log_in(login).await.expect_err(login);
        let sqlstate = error.sqlstate().map(|state| state.to_string());
        assert_eq!(sqlstate.as_deref(), Some(expected), "{login}: {error}");
    }
}

#[tokio::test]
async fn hosts_are_tried_in_order_until_one_fits() {
    let database = Database::create(Version::Pg15, "hosts").await;
    let port = database.version.variable("PORT");
    let closed = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let shut = closed.local_addr().expect("an address").port();
    drop(closed);
    let name = &database.name;
    let two = |attrs: &str| {
        format!("postgresql://postgres@127.0.0.1:{shut},127.0.0.1:{port}/{name}?{attrs}")
    };
    for attrs in ["", "target_session_attrs=read-write", "target_session_attrs=prefer-standby"] {
        log_in(&two(attrs)).await.unwrap_or_else(|error| panic!("{attrs}: {error}"));
    }
    log_in(&two("target_session_attrs=primary&load_balance_hosts=random")).await.expect("primary");
    for attrs in ["target_session_attrs=standby", "target_session_attrs=read-only"] {
        let error = log_in(&two(attrs)).await.expect_err(attrs);
        assert_eq!(*error.kind(), SourceErrorKind::SessionAttrs, "{error}");
    }
    let read_only = "target_session_attrs=read-write&options=-c%20default_transaction_read_only=on";
    let error = log_in(&two(read_only)).await.expect_err("it can't write");
    assert_eq!(*error.kind(), SourceErrorKind::SessionAttrs, "{error}");
    let error = log_in(&format!("postgresql://postgres@127.0.0.1:{shut}/x")).await;
    assert_eq!(*error.expect_err("nobody is there").kind(), SourceErrorKind::Unreachable);
}

#[tokio::test]
async fn settings_of_role_and_options_do_not_leak_into_the_stream() {
    let server = PrivatePostgres::start(Version::Pg15, "").await;
    let client = server.connect().await;
    client.batch("alter role postgres set datestyle = 'German'").await;
    client.batch("alter role postgres set timezone = 'Asia/Tokyo'").await;
    client.batch("create table t (at timestamptz, d float8, b bytea)").await;
    client.batch("create publication p for table t with (publish = 'insert')").await;
    client.batch("select pg_create_logical_replication_slot('s', 'pgoutput')").await;
    let options = "options='-c bytea_output=escape -c extra_float_digits=0 -c search_path=public'";
    let url = format!("{} {options}", server.socket_url());
    log_in(&url).await.expect("search_path is ours");
    let mut wal = stream(&url, &StartReplication::new("s", "p")).await.expect("a stream");
    client
        .batch("insert into t values ('2024-01-02 03:04:05Z', 0.1::float8 + 0.2, '\\x00ff')")
        .await;
    let row = loop {
        let batch = wal.next().await.expect("the stream goes on");
        let row = batch.frames().find_map(|frame| match frame {
            Frame::XLogData { data, .. } if data[0] == b'I' => {
                Some(String::from_utf8_lossy(data).into_owned())
            }
            Frame::XLogData { .. } | Frame::Keepalive { .. } => None,
        });
        if let Some(row) = row {
            break row;
        }
    };
    for value in ["2024-01-02 03:04:05+00", "0.30000000000000004", "\\x00ff"] {
        assert!(row.contains(value), "{value} is not in {row:?}");
    }
}

/// A server that says `answer` to whatever comes first, and then nothing.
async fn impostor(answer: &'static [u8]) -> (u16, tokio::task::JoinSet<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let port = listener.local_addr().expect("an address").port();
    let mut task = tokio::task::JoinSet::new();
    task.spawn(async move {
        let mut open = Vec::new();
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut first = [0; 1024];
            drop(stream.read(&mut first).await);
            drop(stream.write_all(answer).await);
            open.push(stream);
        }
    });
    (port, task)
}

#[tokio::test]
async fn an_impostor_gets_nothing() {
    let require = "sslmode=require password=hunter2";
    let plain = "sslmode=disable password=hunter2";
    let second = Duration::from_secs(2);
    for (answer, login, expected) in [
        // Bytes after the answer to the request for TLS (CVE-2021-23222).
        (&b"SR\0\0\0\x08\0\0\0\0"[..], require, SourceErrorKind::Protocol),
        (b"N", require, SourceErrorKind::Tls),
        (b"E\0\0\0\x08Mno\0", require, SourceErrorKind::Unreachable),
        (b"?", require, SourceErrorKind::Protocol),
        // The password in the clear; a SASL login that ends before it began; a method nobody knows.
        (b"R\0\0\0\x08\0\0\0\x03", plain, SourceErrorKind::AuthRefused),
        (b"R\0\0\0\x08\0\0\0\x07", plain, SourceErrorKind::AuthRefused),
        (
            b"R\0\0\0\x18\0\0\0\x0aSCRAM-SHA-256\0\0\0R\0\0\0\x08\0\0\0\0",
            plain,
            SourceErrorKind::AuthRefused,
        ),
        // Lengths that no message has.
        (b"R\0\0\0\x01", plain, SourceErrorKind::Protocol),
        (b"R\x7f\xff\xff\xff", plain, SourceErrorKind::Protocol),
        (b"", plain, SourceErrorKind::Timeout(second)),
    ] {
        let (port, _task) = impostor(answer).await;
        let text = format!("host=127.0.0.1 port={port} user=u connect_timeout=2 {login}");
        let error = log_in(&text).await.expect_err("an impostor");
        assert_eq!(*error.kind(), expected, "{answer:?}: {error}");
        assert!(!format!("{error:?} {error}").contains("hunter2"));
    }
}
